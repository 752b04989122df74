/* Request bodies and parameters into the whole broker, on a disk in memory: nothing crashes, every request is answered
 * exactly once or waits, and every JSON answer is JSON. */
#include "base/json.h"
#include "broker/broker.h"
#include "core/core.h"
#include "journal/disk_sim.h"
#include "journal/file.h"

int LLVMFuzzerTestOneInput(const u8 *data, size_t n);

static struct world {
    struct disk *disk;
    struct journal *journal;
    struct broker *broker;
    struct broker_time t;
    u32 answers;
    char token[64];
    char id[64]; /* of the last message spoken of */
    u64 receipt, clock_us;
} w;

static void check_json(slice text) {
    struct json j;
    enum json_type type;
    slice raw;
    json_init(&j, text);
    CHECK(json_value(&j, &type, &raw) && json_end(&j));
    json_free(&j);
}

static void remember(slice body, const char *name, char *out, size_t bytes) {
    const char *at = body.n ? memmem(body.p, body.n, name, strlen(name)) : NULL;
    if (at && body.n - (size_t)(at - body.p) >= strlen(name) + bytes) memcpy(out, at + strlen(name), bytes);
}

static void respond(void *ctx, void *conn, const struct http_reply *reply) {
    (void)ctx, (void)conn;
    w.answers++;
    CHECK(reply->status >= 200 && reply->status < 600);
    if (slice_eq(reply->content_type, SL("application/problem+json"))) check_json(reply->body);
    if (slice_eq(reply->content_type, SL("application/json"))) check_json(reply->body);
    remember(reply->body, "\"id\":\"", w.id, ID_TEXT);
    if (slice_eq(reply->content_type, SL("application/x-ndjson"))) {
        slice rest = reply->body, line;
        while (rest.n) {
            slice_cut(rest, '\n', &line, &rest);
            if (line.n) check_json(line);
        }
    }
    if (reply->receipt) {
        w.receipt = reply->receipt;
        remember(reply->body, "\"token\":\"", w.token, TOKEN_TEXT);
    }
}

/* Long requests are cut into parts. */
static u64 now_us(void *ctx) {
    (void)ctx;
    return w.clock_us += 700;
}

static void open_world(void) {
    struct errbuf err;
    w.disk = disk_sim_new(1, 1u << 30);
    struct journal_file_options jo = {.disk = w.disk, .segment_bytes = 4u << 20, .manual = true};
    CHECK(journal_file_open(&jo, &w.journal, &err) == ST_OK);
    struct broker_options bo = {.journal = w.journal, .port = {.respond = respond, .now_us = now_us}};
    w.t = (struct broker_time){.mono_ms = 1000, .wall_ms = 1800000000000};
    CHECK(broker_open(&bo, w.t, &w.broker, &err) == ST_OK);
}

static void close_world(void) {
    broker_free(w.broker);
    journal_close(w.journal);
    disk_close(w.disk);
}

static const struct shape {
    enum http_method method;
    const char *path;
} shapes[] = {
    {HTTP_POST, "/v1/queues/q/batch"},
    {HTTP_POST, "/v1/ack"},
    {HTTP_POST, "/v1/nack"},
    {HTTP_POST, "/v1/extend"},
    {HTTP_POST, "/v1/step"},
    {HTTP_POST, "/v1/start"},
    {HTTP_POST, "/v1/release"},
    {HTTP_POST, "/v1/queues/q/messages"},
    {HTTP_POST, "/v1/queues/q/receive"},
    {HTTP_GET, "/v1/queues/q/keys/k"},
    {HTTP_GET, "/v1/queues/q/messages"},
    {HTTP_GET, "/v1/queues/q/keys"},
    {HTTP_GET, "/v1/stats"},
    {HTTP_POST, "/v1/queues/r/messages"},
    {HTTP_POST, "/v1/queues/r/batch"},
    {HTTP_POST, "/v1/queues/r/receive"},
    {HTTP_PUT, "/v1/queues/r"},
    {HTTP_PUT, "/v1/queues/q"},
    {HTTP_GET, "/v1/queues/r"},
    {HTTP_DELETE, "/v1/queues/r"},
    {HTTP_POST, "/v1/queues/q/messages/$I/resolve"},
    {HTTP_POST, "/v1/queues/r/messages/$I/resolve"},
    {HTTP_POST, "/v1/queues/q/messages/$I/cancel"},
    {HTTP_POST, "/v1/queues/q/keys/k/resolve"},
    {HTTP_POST, "/v1/queues/q/keys/k/replay"},
    {HTTP_POST, "/v1/queues/r/keys/k:1/replay"},
    {HTTP_POST, "/v1/queues/q/keys/k/erase"},
    {HTTP_DELETE, "/v1/queues/q/keys/k"},
    {HTTP_POST, "/v1/queues/q/redrive"},
    {HTTP_POST, "/v1/queues/r/redrive"},
    {HTTP_POST, "/v1/queues/r/purge"},
    {HTTP_POST, "/v1/queues/q/pause"},
    {HTTP_POST, "/v1/queues/q/resume"},
    {HTTP_GET, "/v1/queues/r/messages"},
    {HTTP_GET, "/v1/queues/r/keys"},
    {HTTP_GET, "/v1/audit"},
    {HTTP_GET, "/v1/tasks"},
    {HTTP_GET, "/v1/queues"},
};

/* $T in the input stands for the last token handed out and $I for the last id, so that calls get past their first check. */
static void expand(slice in, struct buf *out) {
    for (size_t i = 0; i < in.n; i++) {
        char sign = i + 1 < in.n && in.p[i] == '$' ? in.p[i + 1] : 0;
        if (sign == 'T' && w.token[0]) {
            buf_add(out, w.token, TOKEN_TEXT);
            i++;
        } else if (sign == 'I' && w.id[0]) {
            buf_add(out, w.id, ID_TEXT);
            i++;
        } else {
            buf_char(out, in.p[i]);
        }
    }
}

static void one_request(slice in) {
    if (in.n == 0) return;
    const struct shape *shape = &shapes[(u8)in.p[0] % (sizeof shapes / sizeof shapes[0])];
    slice head, body;
    slice_cut(slice_of(in.p + 1, in.n - 1), '\0', &head, &body);
    struct buf text = {0}, path = {0};
    expand(body, &text);
    expand(slice_str(shape->path), &path);
    struct http_field fields[] = {
        {SL("idempotency-key"), head}, {SL("prefer"), SL("wait=1")}, {SL("hapax-group"), head}};
    struct http_request req = {
        .method = shape->method,
        .path = buf_slice(&path),
        .query = head,
        .fields = fields,
        .field_count = (u8)in.p[0] % 4,
        .body = buf_slice(&text),
        .body_length = text.len,
    };
    if (req.field_count > 3) req.field_count = 3;
    void *user = NULL;
    u32 before = w.answers;
    w.receipt = 0;
    if (in.n % 2) broker_ahead(w.broker, &(struct http_request *){&req}, 1);
    broker_request(w.broker, w.t, &req, &user, &req);
    CHECK(w.answers == before + 1 || (w.answers == before && user));
    u64 receipt = w.receipt;
    if (receipt) broker_receipt(w.broker, w.t, receipt, receipt % 5 != 0);
    if (user) broker_gone(w.broker, w.t, user);
    w.t.mono_ms += 300;
    w.t.wall_ms += 300;
    broker_tick(w.broker, w.t);
    broker_turn_end(w.broker, w.t);
    while (journal_file_work(w.journal)) {
    }
    buf_free(&text);
    buf_free(&path);
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t n) {
    slice rest = slice_of(data, n), request;
    memset(&w, 0, sizeof w);
    open_world();
    one_request(SL("\007k\0payload"));
    one_request(SL("\010"));
    one_request(SL(
        "\020\0{\"key\":\"k:${a}\",\"order_by\":\"${g}\",\"fingerprint\":{\"ignore\":[\"t\"]},\"on_conflict\":\"hold\","
        "\"schema\":{\"required\":[\"a\"]},\"keep_payload\":\"1h\",\"on_unknown\":\"reconcile\",\"limits\":{"
        "\"pending\":9}}"));
    while (rest.n) { /* requests are separated by 0xff, which is in no UTF-8 */
        slice_cut(rest, (char)0xff, &request, &rest);
        one_request(request);
    }
    close_world();
    return 0;
}
