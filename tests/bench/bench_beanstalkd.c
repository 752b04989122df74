/* Load client for beanstalkd: put; reserve and delete. It knows no keys, so there are no duplicates to measure. */
#include "bench/client.h"

enum { PUT, RESERVE, DELETE };

static void issue(struct load *l, struct load_conn *c) {
    if (l->o.mode == LOAD_CONSUME) {
        buf_lit(&c->out, "reserve-with-timeout 0\r\n");
        load_sent(l, c, RESERVE, 0, 0);
        return;
    }
    char key[LOAD_KEY_BYTES], payload[PAYLOAD_BYTES];
    u64 number = load_take(l, 1);
    load_key(l, number, key);
    load_payload(l, key, payload);
    buf_printf(&c->out, "put 0 0 300 %d\r\n", PAYLOAD_BYTES);
    buf_add(&c->out, payload, sizeof payload);
    buf_lit(&c->out, "\r\n");
    load_sent(l, c, PUT, number, 1);
}

/* "RESERVED id bytes", then the body. Returns the length of all of it, 0 if it is not whole. */
static size_t reserved(struct load *l, struct load_conn *c, slice in, slice line) {
    slice word, rest, id, size_text;
    u64 size;
    slice_cut(line, ' ', &word, &rest);
    slice_cut(rest, ' ', &id, &size_text);
    if (!slice_u64(size_text, &size)) fail(l, "%.*s", (int)line.n, line.p);
    size_t body_at = line.n + 2;
    if (in.n < body_at + size + 2) return 0;
    load_received(l, (slice){0}, slice_of(in.p + body_at, (size_t)size));
    load_done(l, c, 0);
    buf_lit(&c->out, "delete ");
    buf_slice_add(&c->out, id);
    buf_lit(&c->out, "\r\n");
    load_sent(l, c, DELETE, 0, 1);
    load_slot_free(c);
    return body_at + (size_t)size + 2;
}

static size_t reply(struct load *l, struct load_conn *c, slice in) {
    const char *end = memmem(in.p, in.n, "\r\n", 2);
    if (!end) return 0;
    slice line = slice_of(in.p, (size_t)(end - in.p));
    u32 kind = next_op(l, c)->kind;
    if (kind == RESERVE && slice_starts(line, SL("RESERVED "))) return reserved(l, c, in, line);
    bool good = (kind == PUT && slice_starts(line, SL("INSERTED "))) ||
                (kind == DELETE && slice_starts(line, SL("DELETED"))) ||
                (kind == RESERVE && slice_starts(line, SL("TIMED_OUT")));
    if (!good) fail(l, "%.*s", (int)line.n, line.p);
    if (kind == RESERVE) load_idle(l, c);
    load_done(l, c, kind == RESERVE ? 0 : 1);
    if (kind != DELETE) load_slot_free(c);
    return line.n + 2;
}

int main(int argc, char **argv) {
    static const struct load_protocol beanstalkd = {"beanstalkd", NULL, issue, reply};
    return bench_main(&beanstalkd, argc, argv);
}
