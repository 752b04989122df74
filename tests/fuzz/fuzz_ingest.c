/* Webhooks: signature headers and CloudEvents, from any bytes. Nothing is verified without its secret; an event that is taken
 * is complete. The first byte chooses the kind, then lines of headers, an empty line, the body. */
#include "broker/cloudevent.h"
#include "broker/signature.h"

int LLVMFuzzerTestOneInput(const u8 *data, size_t n);

static size_t read_fields(slice *text, struct http_field *fields, size_t most) {
    size_t count = 0;
    slice line;
    while (text->n && count < most) {
        slice_cut(*text, '\n', &line, text);
        if (line.n == 0) break;
        slice_cut(line, ':', &fields[count].name, &fields[count].value);
        count += fields[count].name.n > 0;
    }
    return count;
}

static void try_signature(u8 kind, const struct http_request *req) {
    slice secret = SL("a secret that the fuzzer does not know, 0123456789");
    struct source_config s = {.scheme = (u8)(kind % SCHEME_NONE),
                              .secrets = {.at = &secret, .count = 1},
                              .header = SL("x-sign"),
                              .prefix = SL("v="),
                              .encoding = (u8)(kind / 16 % ENCODING_COUNT),
                              .tolerance_ms = 300000};
    CHECK(signature_wrong(&s, req, 1614265330000));
}

static void try_event(const struct http_request *req, bool headers) {
    struct attrs attrs = {0};
    struct buf store = {0};
    struct failure f = {0};
    struct cloudevent e;
    bool taken =
        headers ? event_from_headers(req, &attrs, &store, &e, &f) : event_from_json(req->body, &attrs, &store, &e, &f);
    CHECK(taken ? e.said : f.detail.len > 0);
    if (taken) CHECK(utf8_valid(e.content_type) || headers);
    attrs_free(&attrs);
    buf_free(&store);
    failure_free(&f);
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t n) {
    struct http_field fields[16];
    if (n == 0) return 0;
    slice text = slice_of(data + 1, n - 1), type = {0};
    struct http_request req = {.method = HTTP_POST, .fields = fields};
    req.field_count = read_fields(&text, fields, 16);
    req.body = text;
    http_field_get(&req, SL("content-type"), &type);
    enum event_mode mode = event_mode(&req, type);
    try_signature(data[0], &req);
    try_event(&req, mode == EVENT_BINARY);
    return 0;
}
