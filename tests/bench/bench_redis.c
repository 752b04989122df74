/* Load client for Redis: an idempotent queue the way it is usually built there. One script admits a key (SET NX) and
 * appends to a stream (XADD); consumers read with a group and settle with XACK and XDEL. */
#include "bench/client.h"

enum { SEND, FETCH, ACK, DELETE };

static const char admit_script[] = "if redis.call('SET', KEYS[1], '1', 'NX') then "
                                   "return redis.call('XADD', KEYS[2], '*', 'k', KEYS[1], 'p', ARGV[1]) end "
                                   "return false";
#define STREAM "bench:stream"

static char script_sha[40];

static void arg(struct buf *out, slice s) {
    buf_char(out, '$');
    buf_dec(out, s.n);
    buf_lit(out, "\r\n");
    buf_slice_add(out, s);
    buf_lit(out, "\r\n");
}

static void args_begin(struct buf *out, size_t n) {
    buf_char(out, '*');
    buf_dec(out, n);
    buf_lit(out, "\r\n");
}

/* ---- RESP2 */

/* The number after a type byte, and the offset of what follows its CRLF; 0 if the line is not whole. */
static size_t resp_line(slice in, size_t at, i64 *number) {
    const char *end = memchr(in.p + at, '\n', in.n - at);
    if (!end) return 0;
    size_t i = at + 1;
    bool negative = in.p[i] == '-';
    i64 v = 0;
    for (i += negative; i < in.n && in.p[i] >= '0' && in.p[i] <= '9'; i++) v = v * 10 + (in.p[i] - '0');
    *number = negative ? -v : v;
    return (size_t)(end - in.p) + 1;
}

/* The offset past the value at `at`, 0 if it is not whole. Nested arrays are walked flat: they only add to the count.
 */
static size_t resp_end(const struct load *l, slice in, size_t at) {
    for (u64 left = 1; left > 0; left--) {
        i64 n;
        if (at >= in.n) return 0;
        char type = in.p[at];
        at = resp_line(in, at, &n);
        if (at == 0) return 0;
        if (type == '$' && n >= 0) at += (size_t)n + 2;
        if (type == '*' && n > 0) left += (u64)n;
        if (type == '-') fail(l, "%.*s", (int)(in.n < 200 ? in.n : 200), in.p);
        if (at > in.n) return 0;
    }
    return at;
}

static slice resp_bulk(const struct load *l, slice in, size_t *at) {
    i64 n;
    if (in.p[*at] != '$') fail(l, "expected a string in a stream entry");
    size_t from = resp_line(in, *at, &n);
    *at = from + (size_t)n + 2;
    return slice_of(in.p + from, (size_t)n);
}

static i64 resp_array(const struct load *l, slice in, size_t *at) {
    i64 n;
    if (in.p[*at] != '*') fail(l, "expected an array");
    *at = resp_line(in, *at, &n);
    return n;
}

/* ---- requests and replies */

static void hello(struct load *l, struct load_conn *c) {
    args_begin(&c->out, 3);
    arg(&c->out, SL("SCRIPT"));
    arg(&c->out, SL("LOAD"));
    arg(&c->out, slice_str(admit_script));
    buf_lit(&c->out, "XGROUP CREATE " STREAM " workers 0 MKSTREAM\r\n");
    flush_wait(l, c);
    line_wait(l, c);
    slice sha = line_wait(l, c);
    if (sha.n != sizeof script_sha) fail(l, "SCRIPT LOAD: %.*s", (int)sha.n, sha.p);
    memcpy(script_sha, sha.p, sizeof script_sha);
    slice created = line_wait(l, c);
    if (!slice_starts(created, SL("+OK")) && !slice_starts(created, SL("-BUSYGROUP")))
        fail(l, "XGROUP: %.*s", (int)created.n, created.p);
}

static void send_one(struct load *l, struct load_conn *c) {
    char key[LOAD_KEY_BYTES], payload[PAYLOAD_BYTES];
    u64 number = load_take(l, 1);
    load_key(l, number, key);
    load_payload(l, key, payload);
    buf_lit(&c->out, "*6\r\n$7\r\nEVALSHA\r\n$40\r\n");
    buf_add(&c->out, script_sha, sizeof script_sha);
    buf_lit(&c->out, "\r\n$1\r\n2\r\n");
    arg(&c->out, slice_of(key, sizeof key));
    arg(&c->out, SL(STREAM));
    arg(&c->out, slice_of(payload, sizeof payload));
    load_sent(l, c, SEND, number, 1);
}

static void fetch(struct load *l, struct load_conn *c) {
    buf_printf(&c->out, "XREADGROUP GROUP workers c%u COUNT %u STREAMS " STREAM " >\r\n", c->id, l->o.batch);
    load_sent(l, c, FETCH, 0, 0);
}

static void issue(struct load *l, struct load_conn *c) {
    if (l->o.mode == LOAD_CONSUME)
        fetch(l, c);
    else
        send_one(l, c);
}

/* One stream, its entries: [[stream, [[id, [k, key, p, payload]], ...]]]. Settles them all. */
static void fetched(struct load *l, struct load_conn *c, slice in) {
    static struct buf ids;
    size_t at = 0;
    buf_reset(&ids);
    if (resp_array(l, in, &at) <= 0) {
        load_idle(l, c);
        return;
    }
    resp_array(l, in, &at);
    resp_bulk(l, in, &at);
    u32 entries = (u32)resp_array(l, in, &at);
    for (u32 i = 0; i < entries; i++) {
        resp_array(l, in, &at);
        arg(&ids, resp_bulk(l, in, &at));
        if (resp_array(l, in, &at) != 4) fail(l, "an entry without its four fields");
        resp_bulk(l, in, &at);
        slice key = resp_bulk(l, in, &at);
        resp_bulk(l, in, &at);
        load_received(l, key, resp_bulk(l, in, &at));
    }
    args_begin(&c->out, entries + 3);
    buf_lit(&c->out, "$4\r\nXACK\r\n");
    arg(&c->out, SL(STREAM));
    buf_lit(&c->out, "$7\r\nworkers\r\n");
    buf_slice_add(&c->out, buf_slice(&ids));
    load_sent(l, c, ACK, 0, entries);
    args_begin(&c->out, entries + 2);
    buf_lit(&c->out, "$4\r\nXDEL\r\n");
    arg(&c->out, SL(STREAM));
    buf_slice_add(&c->out, buf_slice(&ids));
    load_sent(l, c, DELETE, 0, entries);
}

static size_t reply(struct load *l, struct load_conn *c, slice in) {
    size_t end = resp_end(l, in, 0);
    if (end == 0) return 0;
    const struct load_op op = *next_op(l, c);
    i64 n = 0;
    resp_line(in, 0, &n);
    if (op.kind == SEND && (n < 0) != (l->o.mode == LOAD_DUPLICATE))
        fail(l, "message %llu: wrong outcome", (unsigned long long)op.first);
    if ((op.kind == ACK || op.kind == DELETE) && n != op.n) fail(l, "settled %lld of %u", (long long)n, op.n);
    load_done(l, c, op.kind == SEND || op.kind == DELETE ? op.n : 0);
    if (op.kind == FETCH) fetched(l, c, slice_of(in.p, end));
    if (op.kind == SEND || op.kind == FETCH) load_slot_free(c);
    return end;
}

int main(int argc, char **argv) {
    static const struct load_protocol redis = {"redis", hello, issue, reply};
    return bench_main(&redis, argc, argv);
}
