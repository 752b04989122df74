/* Load client for Hapax, written against the HTTP contract alone: it shares no code with the client library or the
 * server's parser. Every reply is framed by its own Content-Length and must have the status, outcome and key expected.
 */
#include "bench/engine.h"

enum { SEND, BATCH, FETCH, ACK };

/* --kind json sends 1 KiB of JSON under the same header key, --kind derived the same payload without one: the queue
 * makes the key of its first field. Both only with --mode send. */
enum { JSON_BYTES = 1024, JSON_KEY_AT = sizeof("{\"payment_intent_id\":\"") - 1 };

/* ---- one reply */

struct http_reply {
    int status;
    slice body;
    size_t bytes; /* all of it, 0 if not whole */
};

/* "HTTP/1.1 202 Accepted" */
static int parse_status(const struct bench *b, slice line) {
    u64 status;
    if (!slice_starts(line, SL("HTTP/1.1 ")) || line.n < 12 || !slice_u64(slice_of(line.p + 9, 3), &status))
        fail(b, "not a status line: %.*s", (int)line.n, line.p);
    return (int)status;
}

/* Looks at one header line; only the framing matters here. */
static void parse_header(const struct bench *b, slice line, u64 *length, bool *has_length) {
    slice name, value;
    if (!slice_cut(line, ':', &name, &value)) fail(b, "a header without a colon: %.*s", (int)line.n, line.p);
    if (slice_eq_nocase(name, SL("transfer-encoding"))) fail(b, "a reply without a length");
    if (!slice_eq_nocase(name, SL("content-length"))) return;
    if (*has_length || !slice_u64(slice_trim(value), length)) fail(b, "bad Content-Length");
    *has_length = true;
}

static struct http_reply parse_reply(const struct bench *b, slice in) {
    struct http_reply r = {0};
    u64 length = 0;
    bool has_length = false;
    size_t at = 0;
    for (;;) {
        const char *end = memchr(in.p + at, '\n', in.n - at);
        if (!end) return (struct http_reply){0};
        slice line = slice_of(in.p + at, (size_t)(end - in.p) - at);
        if (line.n == 0 || line.p[line.n - 1] != '\r') fail(b, "a header line without CRLF");
        line.n--;
        bool first = at == 0;
        at = (size_t)(end - in.p) + 1;
        if (line.n == 0) break;
        if (first)
            r.status = parse_status(b, line);
        else
            parse_header(b, line, &length, &has_length);
    }
    if (!has_length) fail(b, "a reply without a length");
    if (in.n < at + length) return (struct http_reply){0};
    r.body = slice_of(in.p + at, (size_t)length);
    r.bytes = at + (size_t)length;
    return r;
}

static bool contains(slice text, slice what) {
    return memmem(text.p, text.n, what.p, what.n) != NULL;
}

/* The text of the next string member of this name at or after *at; ours have nothing escaped in them. */
static slice next_string(slice text, size_t *at, slice quoted_name) {
    const char *name = *at < text.n ? memmem(text.p + *at, text.n - *at, quoted_name.p, quoted_name.n) : NULL;
    if (!name) return (slice){0};
    const char *from = name + quoted_name.n, *end = memchr(from, '"', text.n - (size_t)(from - text.p));
    if (!end) return (slice){0};
    *at = (size_t)(end - text.p) + 1;
    return slice_of(from, (size_t)(end - from));
}

/* ---- requests */

static void request_line(const struct bench *b, struct buf *out, const char *what) {
    buf_lit(out, "POST /v1/queues/");
    buf_slice_add(out, slice_str(b->queue));
    buf_slice_add(out, slice_str(what));
    buf_lit(out, " HTTP/1.1\r\nHost: 127.0.0.1\r\n");
}

/* An event as payment systems send them, filled up to its size with a note. */
static void json_write(const struct bench *b, const char key[KEY_BYTES], char payload[JSON_BYTES]) {
    static char event[JSON_BYTES];
    static const char before_note[] =
        "{\"payment_intent_id\":\"000000000000000000000000000000000000\",\"amount\":129900,\"currency\":\"EUR\","
        "\"customer\":{"
        "\"id\":\"cus_8812\",\"name\":\"Zo\\u00eb "
        "Example\",\"address\":{\"city\":\"Hamburg\",\"zip\":\"20095\",\"country\":\"DE\"}},"
        "\"items\":[{\"sku\":\"A-1\",\"quantity\":2,\"price\":49950},{\"sku\":\"B-7\",\"quantity\":1,\"price\":30000}],"
        "\"captured\":true,\"risk\":0.125,\"refund\":null,\"sent_at\":\"2026-01-31T12:00:00.000Z\",\"note\":\"";
    if (event[0] == 0) {
        memcpy(event, before_note, sizeof before_note - 1);
        for (size_t i = sizeof before_note - 1; i < JSON_BYTES - 2; i++) event[i] = b->filler[i % (PAYLOAD_BYTES / 2)];
        memcpy(event + JSON_BYTES - 2, "\"}", 2);
    }
    memcpy(payload, event, JSON_BYTES);
    memcpy(payload + JSON_KEY_AT, key, KEY_BYTES);
}

static void send_one(struct bench *b, struct conn *c) {
    char key[KEY_BYTES], payload[JSON_BYTES];
    bool plain = strcmp(b->kind, "plain") == 0;
    u64 number = engine_take(b, 1);
    key_write(b, number, key);
    if (plain)
        payload_write(b, number, key, payload);
    else
        json_write(b, key, payload);
    request_line(b, &c->out, "/messages");
    if (strcmp(b->kind, "derived") != 0) {
        buf_lit(&c->out, "Idempotency-Key: ");
        buf_add(&c->out, key, sizeof key);
        buf_lit(&c->out, "\r\n");
    }
    buf_slice_add(&c->out, plain ? SL("Content-Type: text/plain\r\nContent-Length: ")
                                 : SL("Content-Type: application/json\r\nContent-Length: "));
    size_t bytes = plain ? PAYLOAD_BYTES : JSON_BYTES;
    buf_dec(&c->out, bytes);
    buf_lit(&c->out, "\r\n\r\n");
    buf_add(&c->out, payload, bytes);
    engine_sent(b, c, SEND, number, 1);
}

static void send_batch(struct bench *b, struct conn *c) {
    static const char before_key[] = "{\"key\":\"", before_payload[] = "\",\"payload\":\"", after[] = "\"}\n";
    static const size_t line_bytes = sizeof before_key + sizeof before_payload + sizeof after - 3;
    char key[KEY_BYTES], payload[PAYLOAD_BYTES];
    u64 left = b->count ? b->count - b->issued : b->batch;
    u32 n = left < b->batch ? (u32)left : b->batch;
    u64 first = engine_take(b, n);
    request_line(b, &c->out, "/batch");
    buf_lit(&c->out, "Content-Type: application/x-ndjson\r\nContent-Length: ");
    buf_dec(&c->out, n * (line_bytes + KEY_BYTES + PAYLOAD_BYTES));
    buf_lit(&c->out, "\r\n\r\n");
    for (u32 i = 0; i < n; i++) {
        key_write(b, first + i, key);
        payload_write(b, first + i, key, payload);
        buf_add(&c->out, before_key, sizeof before_key - 1);
        buf_add(&c->out, key, sizeof key);
        buf_add(&c->out, before_payload, sizeof before_payload - 1);
        buf_add(&c->out, payload, sizeof payload);
        buf_add(&c->out, after, sizeof after - 1);
    }
    engine_sent(b, c, BATCH, first, n);
}

static void fetch(struct bench *b, struct conn *c) {
    char what[64];
    snprintf(what, sizeof what, "/receive?max=%u&lease=5m&consumer=c%u", b->batch, c->id);
    request_line(b, &c->out, what);
    buf_lit(&c->out, "Content-Length: 0\r\n\r\n");
    engine_sent(b, c, FETCH, 0, 0);
}

static void issue(struct bench *b, struct conn *c) {
    if (b->mode == MODE_CONSUME)
        fetch(b, c);
    else if (b->mode == MODE_BATCH)
        send_batch(b, c);
    else
        send_one(b, c);
}

/* ---- replies */

/* One answer to one message, alone or as a line of a batch: accepted, or a duplicate, under the key that was sent. */
static void check_outcome(const struct bench *b, slice text, u64 number) {
    char key[KEY_BYTES];
    size_t at = 0;
    slice want = b->mode == MODE_DUPLICATE ? SL("\"outcome\":\"duplicate\"") : SL("\"outcome\":\"accepted\"");
    key_write(b, number, key);
    if (!contains(text, want) || !slice_eq(next_string(text, &at, SL("\"key\":\"")), slice_of(key, sizeof key)))
        fail(b, "message %llu (key %.36s): %.*s", (unsigned long long)number, key, (int)text.n, text.p);
}

static void check_batch(const struct bench *b, slice body, const struct op *op) {
    u32 lines = 0;
    for (slice line, rest = body; rest.n; lines++) {
        slice_cut(rest, '\n', &line, &rest);
        if (lines == op->n) fail(b, "more answers than lines");
        if (!contains(line, SL("\"status\":202"))) fail(b, "a line of a batch: %.*s", (int)line.n, line.p);
        check_outcome(b, line, op->first + lines);
    }
    if (lines != op->n) fail(b, "%u answers to %u lines", lines, op->n);
}

/* Checks what was delivered and settles it all in one request. */
static void fetched(struct bench *b, struct conn *c, slice body) {
    static struct buf tokens;
    size_t key_at = 0, token_at = 0, payload_at = 0;
    u32 n = 0;
    buf_reset(&tokens);
    for (;; n++) {
        slice token = next_string(body, &token_at, SL("\"token\":\""));
        if (token.n == 0) break;
        slice key = next_string(body, &key_at, SL("\"key\":\""));
        payload_received(b, key, next_string(body, &payload_at, SL("\"payload\":\"")));
        buf_slice_add(&tokens, n ? SL("\"},{\"token\":\"") : SL("[{\"token\":\""));
        buf_slice_add(&tokens, token);
    }
    if (n == 0) {
        b->idle_fetches++;
        return;
    }
    buf_lit(&tokens, "\"}]");
    buf_lit(&c->out, "POST /v1/ack HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: ");
    buf_dec(&c->out, tokens.len);
    buf_lit(&c->out, "\r\n\r\n");
    buf_slice_add(&c->out, buf_slice(&tokens));
    engine_sent(b, c, ACK, 0, n);
}

static void check_acks(const struct bench *b, slice body, u32 n) {
    u32 settled = 0;
    for (size_t at = 0; slice_eq(next_string(body, &at, SL("\"state\":\"")), SL("done"));) settled++;
    if (settled != n || contains(body, SL("\"duplicate\":true")))
        fail(b, "%u of %u acks settled: %.*s", settled, n, (int)(body.n < 300 ? body.n : 300), body.p);
}

static size_t reply(struct bench *b, struct conn *c, slice in) {
    struct http_reply r = parse_reply(b, in);
    if (r.bytes == 0) return 0;
    const struct op op = *engine_next(b, c);
    bool good = op.kind == SEND ? r.status == 202 || (r.status == 200 && b->mode == MODE_DUPLICATE) : r.status == 200;
    if (!good) fail(b, "status %d: %.*s", r.status, (int)(r.body.n < 300 ? r.body.n : 300), r.body.p);
    if (op.kind == SEND) check_outcome(b, r.body, op.first);
    if (op.kind == BATCH) check_batch(b, r.body, &op);
    if (op.kind == ACK) check_acks(b, r.body, op.n);
    engine_done(b, c, op.kind == FETCH ? 0 : op.n);
    if (op.kind == FETCH) fetched(b, c, r.body);
    if (op.kind != ACK) engine_slot_free(c);
    return r.bytes;
}

int main(int argc, char **argv) {
    static const struct protocol hapax = {"hapax", NULL, issue, reply};
    return bench_main(&hapax, argc, argv);
}
