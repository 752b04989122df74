/* Hapax under load, written against the HTTP contract alone: it shares no code with the client library or the server's parser.
 * Every reply is framed by its own Content-Length and must have the status, outcome and key expected. */
#include "cli/load.h"

#include <stdio.h>

enum { SEND, BATCH, FETCH, ACK, SHOWN = 300, HEAD_MAX = 64 << 10 };

/* ---- one reply */

struct reply {
    int status;
    slice body;
    size_t bytes; /* all of it, 0 if not whole */
};

/* "HTTP/1.1 202 Accepted" */
static bool parse_status(struct load *l, slice line, int *status) {
    u64 number = 0;
    if (!slice_starts(line, SL("HTTP/1.1 ")) || line.n < 12 || !slice_u64(slice_of(line.p + 9, 3), &number))
        return load_fail(l, ST_INVALID, "not a status line: %.*s", (int)line.n, line.p);
    *status = (int)number;
    return true;
}

static bool parse_field(struct load *l, slice line, u64 *length, bool *has_length) {
    slice name, value;
    if (!slice_cut(line, ':', &name, &value))
        return load_fail(l, ST_INVALID, "a header field without a colon: %.*s", (int)line.n, line.p);
    if (slice_eq_nocase(name, SL("transfer-encoding"))) return load_fail(l, ST_INVALID, "a reply without a length");
    if (!slice_eq_nocase(name, SL("content-length"))) return true;
    if (*has_length || !slice_u64(slice_trim(value), length)) return load_fail(l, ST_INVALID, "bad Content-Length");
    *has_length = true;
    return true;
}

static struct reply parse_reply(struct load *l, slice in) {
    struct reply r = {0}, none = {0};
    u64 length = 0;
    bool has_length = false;
    for (size_t at = 0;;) {
        const char *end = memchr(in.p + at, '\n', in.n - at);
        if (!end && in.n > HEAD_MAX) load_fail(l, ST_INVALID, "a reply without an end to its head");
        if (!end) return none;
        slice line = slice_of(in.p + at, (size_t)(end - in.p) - at);
        bool first = at == 0;
        at = (size_t)(end - in.p) + 1;
        if (line.n == 0 || line.p[--line.n] != '\r') return load_fail(l, ST_INVALID, "a head line without CRLF"), none;
        if (line.n == 0) {
            if (!has_length) return load_fail(l, ST_INVALID, "a reply without a length"), none;
            if (in.n - at < length) return none;
            r.body = slice_of(in.p + at, (size_t)length);
            r.bytes = at + (size_t)length;
            return r;
        }
        if (!(first ? parse_status(l, line, &r.status) : parse_field(l, line, &length, &has_length))) return none;
    }
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

static void request_line(const struct load *l, struct buf *out, slice what) {
    buf_lit(out, "POST ");
    buf_slice_add(out, slice_str(l->o.prefix));
    buf_lit(out, "/v1/");
    buf_slice_add(out, what);
}

static void queue_line(const struct load *l, struct buf *out, const char *what) {
    request_line(l, out, SL("queues/"));
    buf_slice_add(out, slice_str(l->o.queue));
    buf_slice_add(out, slice_str(what));
}

static void head_end(const struct load *l, struct buf *out, slice content_type, size_t length) {
    buf_lit(out, " HTTP/1.1\r\nHost: ");
    buf_slice_add(out, slice_str(l->o.authority));
    buf_slice_add(out, slice_str(l->o.fields));
    buf_slice_add(out, content_type);
    buf_lit(out, "\r\nContent-Length: ");
    buf_dec(out, length);
}

/* Appends the payload of that key. */
static void put_payload(const struct load *l, struct buf *out, const char key[LOAD_KEY_BYTES]) {
    buf_grow(out, l->o.payload);
    load_payload(l, key, out->p + out->len);
    out->len += l->o.payload;
}

static void send_one(struct load *l, struct load_conn *c) {
    char key[LOAD_KEY_BYTES];
    u64 number = load_take(l, 1);
    load_key(l, number, key);
    queue_line(l, &c->out, "/messages");
    head_end(l, &c->out, l->o.fill ? SL("\r\nContent-Type: application/json") : SL("\r\nContent-Type: text/plain"),
             l->o.payload);
    if (!l->o.keyless) {
        buf_lit(&c->out, "\r\nIdempotency-Key: ");
        buf_add(&c->out, key, sizeof key);
    }
    buf_lit(&c->out, "\r\n\r\n");
    put_payload(l, &c->out, key);
    load_sent(l, c, SEND, number, 1);
}

static void send_batch(struct load *l, struct load_conn *c) {
    static const char before_key[] = "{\"key\":\"", before_payload[] = "\",\"payload\":\"", after[] = "\"}\n";
    static const size_t line_bytes = sizeof before_key + sizeof before_payload + sizeof after - 3;
    char key[LOAD_KEY_BYTES];
    u64 left = l->o.count ? l->o.count - l->issued : l->o.batch;
    u32 n = left < l->o.batch ? (u32)left : l->o.batch;
    u64 first = load_take(l, n);
    queue_line(l, &c->out, "/batch");
    head_end(l, &c->out, SL("\r\nContent-Type: application/x-ndjson"),
             n * (line_bytes + LOAD_KEY_BYTES + l->o.payload));
    buf_lit(&c->out, "\r\n\r\n");
    for (u32 i = 0; i < n; i++) {
        load_key(l, first + i, key);
        buf_add(&c->out, before_key, sizeof before_key - 1);
        buf_add(&c->out, key, sizeof key);
        buf_add(&c->out, before_payload, sizeof before_payload - 1);
        put_payload(l, &c->out, key);
        buf_add(&c->out, after, sizeof after - 1);
    }
    load_sent(l, c, BATCH, first, n);
}

static void fetch(struct load *l, struct load_conn *c) {
    char what[64];
    snprintf(what, sizeof what, "/receive?max=%u&lease=5m&consumer=c%u", l->o.batch, c->id);
    queue_line(l, &c->out, what);
    head_end(l, &c->out, SL(""), 0);
    buf_lit(&c->out, "\r\n\r\n");
    load_sent(l, c, FETCH, 0, 0);
}

static void issue(struct load *l, struct load_conn *c) {
    if (l->o.mode == LOAD_CONSUME)
        fetch(l, c);
    else if (l->o.mode == LOAD_BATCH)
        send_batch(l, c);
    else
        send_one(l, c);
}

/* ---- replies */

/* One answer to one message, alone or as a line of a batch: accepted, or a duplicate, under the key that was sent. */
static bool check_outcome(struct load *l, slice text, u64 number) {
    char key[LOAD_KEY_BYTES];
    size_t at = 0;
    slice want = l->o.mode == LOAD_DUPLICATE ? SL("\"outcome\":\"duplicate\"") : SL("\"outcome\":\"accepted\"");
    load_key(l, number, key);
    if (contains(text, want) && slice_eq(next_string(text, &at, SL("\"key\":\"")), slice_of(key, sizeof key)))
        return true;
    return load_fail(l, ST_INVALID, "key %.36s was answered %.*s", key, (int)(text.n < SHOWN ? text.n : SHOWN), text.p);
}

static bool check_batch(struct load *l, slice body, const struct load_op *op) {
    u32 lines = 0;
    for (slice line, rest = body; rest.n; lines++) {
        slice_cut(rest, '\n', &line, &rest);
        if (lines == op->n) return load_fail(l, ST_INVALID, "more answers than lines");
        if (!check_outcome(l, line, op->first + lines)) return false;
    }
    return lines == op->n || load_fail(l, ST_INVALID, "%u answers to %u lines", lines, op->n);
}

/* Checks what was delivered and settles it all in one request. */
static void fetched(struct load *l, struct load_conn *c, slice body) {
    struct buf *tokens = &l->scratch;
    size_t key_at = 0, token_at = 0, payload_at = 0;
    u32 n = 0;
    buf_reset(tokens);
    for (;; n++) {
        slice token = next_string(body, &token_at, SL("\"token\":\""));
        if (token.n == 0) break;
        slice key = next_string(body, &key_at, SL("\"key\":\""));
        if (!load_received(l, key, next_string(body, &payload_at, SL("\"payload\":\"")))) return;
        buf_slice_add(tokens, n ? SL("\"},{\"token\":\"") : SL("[{\"token\":\""));
        buf_slice_add(tokens, token);
    }
    if (n == 0) {
        load_idle(l, c);
        return;
    }
    buf_lit(tokens, "\"}]");
    request_line(l, &c->out, SL("ack"));
    head_end(l, &c->out, SL("\r\nContent-Type: application/json"), tokens->len);
    buf_lit(&c->out, "\r\n\r\n");
    buf_slice_add(&c->out, buf_slice(tokens));
    load_sent(l, c, ACK, 0, n);
}

static bool check_acks(struct load *l, slice body, u32 n) {
    u32 settled = 0;
    for (size_t at = 0; slice_eq(next_string(body, &at, SL("\"state\":\"")), SL("done"));) settled++;
    if (settled == n && !contains(body, SL("\"duplicate\":true"))) return true;
    return load_fail(l, ST_INVALID, "%u of %u acks settled: %.*s", settled, n, (int)(body.n < SHOWN ? body.n : SHOWN),
                     body.p);
}

static bool check(struct load *l, const struct load_op *op, const struct reply *r) {
    bool known = r->status == 200 && l->o.mode == LOAD_DUPLICATE;
    bool good = op->kind == SEND ? r->status == 202 || known : r->status == 200;
    if (!good)
        return load_fail(l, ST_INVALID, "HTTP %d: %.*s", r->status, (int)(r->body.n < SHOWN ? r->body.n : SHOWN),
                         r->body.p);
    if (op->kind == SEND) return check_outcome(l, r->body, op->first);
    if (op->kind == BATCH) return check_batch(l, r->body, op);
    return op->kind == FETCH || check_acks(l, r->body, op->n);
}

static size_t reply(struct load *l, struct load_conn *c, slice in) {
    struct reply r = parse_reply(l, in);
    if (r.bytes == 0) return 0;
    const struct load_op *next = load_next(l, c);
    if (!next || !check(l, next, &r)) return 0;
    struct load_op op = *next;
    load_done(l, c, op.kind == FETCH ? 0 : op.n);
    if (op.kind == FETCH) fetched(l, c, r.body);
    if (op.kind != ACK) load_slot_free(c);
    return r.bytes;
}

const struct load_protocol load_hapax = {"hapax", NULL, issue, reply};
