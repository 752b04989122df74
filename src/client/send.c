#include "client/client_priv.h"

static hx_status bad(hx_error *err, const char *code, const char *detail) {
    return error_set(err, HX_INVALID, HX_APPLIED_NO, code, "%s", detail);
}

static bool attr_name_ok(slice name) {
    if (name.n == 0) return false;
    for (size_t i = 0; i < name.n; i++) {
        char c = name.p[i];
        bool word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!word && !strchr("-_.", c)) return false;
    }
    return true;
}

/* What a header field can carry unchanged: no control characters, no blanks at the ends. */
static bool field_ok(const char *text) {
    if (!text) return true;
    slice s = slice_str(text);
    return utf8_valid(s) && !has_control(s) && slice_trim(s).n == s.n;
}

hx_status draft_check(const hx_draft *d, bool batch, hx_error *err) {
    slice key = slice_str(d->key);
    if (d->key && (key.n < 1 || key.n > 255 || !utf8_valid(key) || has_control(key)))
        return bad(err, "key_invalid", "a key is 1-255 bytes of UTF-8 without control characters");
    if (d->delay_ms < 0 || d->ttl_ms < 0) return bad(err, "duration_invalid", "a delay or TTL below zero");
    if (!field_ok(d->content_type) || !field_ok(d->group) || !field_ok(d->request_id) || !field_ok(d->traceparent) ||
        !field_ok(d->tracestate))
        return bad(err, "field_invalid", "a field is not UTF-8, has control characters, or blanks at its ends");
    for (size_t i = 0; i < d->attr_count; i++) {
        if (!d->attrs[i].name || !attr_name_ok(slice_str(d->attrs[i].name)))
            return bad(err, "attr_invalid", "an attribute's name is made of letters, digits, '-', '_' and '.'");
        if (!d->attrs[i].value || !field_ok(d->attrs[i].value))
            return bad(err, "attr_invalid",
                       "an attribute's value is not UTF-8, or has control characters or blank ends");
    }
    if (batch && (d->traceparent || d->tracestate))
        return bad(err, "field_invalid", "a batch does not carry traceparent or tracestate: use hx_send");
    return HX_OK;
}

static void field_add(struct buf *b, const char *name, const char *value) {
    if (value) buf_printf(b, "%s: %s\r\n", name, value);
}

static void field_duration(struct buf *b, const char *name, i64 ms) {
    if (!ms) return;
    buf_printf(b, "%s: ", name);
    buf_duration(b, ms);
    buf_lit(b, "\r\n");
}

/* As a structured-field string, or a display string when it is not all ASCII. */
static void field_key(struct buf *b, slice key) {
    bool ascii = true;
    for (size_t i = 0; i < key.n; i++) ascii = ascii && (u8)key.p[i] < 0x80;
    buf_lit(b, "Idempotency-Key: ");
    if (!ascii) buf_char(b, '%');
    buf_char(b, '"');
    for (size_t i = 0; i < key.n; i++) {
        char c = key.p[i];
        if (!ascii && ((u8)c >= 0x80 || c == '%' || c == '"'))
            buf_printf(b, "%%%02x", (unsigned)(u8)c);
        else if (ascii && (c == '"' || c == '\\'))
            buf_char(b, '\\'), buf_char(b, c);
        else
            buf_char(b, c);
    }
    buf_lit(b, "\"\r\n");
}

static void draft_fields(struct buf *b, const hx_draft *d, i64 wait_ms) {
    if (d->key) field_key(b, slice_str(d->key));
    field_add(b, "Hapax-Group", d->group);
    field_duration(b, "Hapax-Delay", d->delay_ms);
    field_duration(b, "Hapax-Ttl", d->ttl_ms);
    for (size_t i = 0; i < d->attr_count; i++)
        buf_printf(b, "Hapax-Attr-%s: %s\r\n", d->attrs[i].name, d->attrs[i].value);
    field_add(b, "traceparent", d->traceparent);
    field_add(b, "tracestate", d->tracestate);
    field_add(b, "Hapax-Request-Id", d->request_id);
    if (wait_ms > 0) buf_printf(b, "Prefer: wait=%lld\r\n", (long long)((wait_ms + 999) / 1000));
}

void draft_line(struct buf *b, const hx_draft *d) {
    buf_char(b, '{');
    put_text(b, "key", d->key);
    /* No payload and an empty one are the same message. */
    put_bytes(b, "payload", d->payload.data ? d->payload : hx_str(""));
    /* Given explicitly, because a string's own default is another one than that of bytes. */
    put_text(b, "content_type", d->content_type ? d->content_type : "application/octet-stream");
    put_text(b, "group", d->group);
    if (d->delay_ms) put_duration(b, "delay", d->delay_ms);
    if (d->ttl_ms) put_duration(b, "ttl", d->ttl_ms);
    if (d->attr_count) {
        json_put_name(b, "attrs");
        buf_char(b, '{');
        for (size_t i = 0; i < d->attr_count; i++) put_text(b, d->attrs[i].name, d->attrs[i].value);
        buf_char(b, '}');
    }
    put_text(b, "request_id", d->request_id);
    buf_lit(b, "}\n");
}

/* Moves the reply's body into the receipt. */
static hx_status receipt_fill(struct reply *reply, bool retried, hx_receipt *out, hx_error *err) {
    hx_receipt spare = {0};
    hx_receipt *r = out ? out : &spare;
    struct arena *a = arena_new();
    slice body = arena_adopt(a, &reply->body);
    *r = (hx_receipt){.memory = a, .retried = retried, .json = hx_bytes_of(body.p, body.n)};
    bool ok = receipt_read(body, a, r, NULL);
    hx_status st = err->status;
    if (st == HX_OK && (!ok || (r->outcome != HX_ACCEPTED && r->outcome != HX_DUPLICATE && r->outcome != HX_HELD)))
        st = error_protocol(err, reply->status, "a send was answered with something else than a receipt");
    if (!out) hx_receipt_free(&spare);
    return st;
}

hx_status hx_send(hx_client *c, const char *queue, const hx_draft *draft, i64 wait_ms, hx_receipt *out, hx_error *err) {
    hx_error spare;
    if (!err) err = &spare;
    if (out) *out = (hx_receipt){.id = ""};
    if (!queue_ok(queue, err)) return HX_INVALID;
    if (draft_check(draft, false, err) != HX_OK) return HX_INVALID;
    struct buf target = {0}, fields = {0};
    target_queue(&target, queue, "/messages");
    draft_fields(&fields, draft, wait_ms);
    slice type = draft->content_type ? slice_str(draft->content_type) : SL("application/octet-stream");
    struct call call =
        CALL(.method = "POST", .target = buf_slice(&target), .fields = buf_slice(&fields), .content_type = type,
             .body = slice_of(draft->payload.data, draft->payload.size), .wait_ms = wait_ms > 0 ? wait_ms : 0);
    struct reply reply = {0};
    hx_status st = client_call(c, &call, &reply, err);
    if (reply.status) st = receipt_fill(&reply, call.retried, out, err);
    reply_free(&reply);
    buf_free(&target);
    buf_free(&fields);
    return st;
}

void hx_receipt_free(hx_receipt *receipt) {
    arena_free(receipt->memory);
    *receipt = (hx_receipt){.id = ""};
}
