/* Load client for NATS JetStream: a file-backed work-queue stream that deduplicates by Nats-Msg-Id, publishes answered
 * on an inbox, a durable pull consumer. Each message is acknowledged by itself; the last of a fetch asks for the
 * server's confirmation, and as acknowledgements are handled in order it confirms them all. */
#include "bench/client.h"

enum { SEND, FETCH, CONFIRM };

#define STREAM "BENCH"

/* What a connection keeps. The inbox carries the process id: a fetch that outlives its run must not reach the next. */
struct session {
    char inbox[32];
    u32 got; /* of the fetch under way; there is one */
};

/* ---- one message from the server */

struct message {
    slice subject, reply, headers, body;
    size_t bytes; /* all of it, 0 if not whole */
};

/* "MSG subject sid [reply] size" or "HMSG subject sid [reply] header-size size". */
static struct message parse_message(const struct load *l, slice in, slice line, bool with_headers) {
    slice word[6] = {{0}};
    size_t words = 0;
    for (slice rest = line; rest.n && words < 6; words++) slice_cut(rest, ' ', &word[words], &rest);
    size_t numbers = with_headers ? 2 : 1;
    u64 size = 0, head = 0;
    if (words < 3 + numbers || !slice_u64(word[words - 1], &size)) fail(l, "bad line %.*s", (int)line.n, line.p);
    if (with_headers && !slice_u64(word[words - 2], &head)) fail(l, "bad line %.*s", (int)line.n, line.p);
    size_t body_at = line.n + 2;
    if (in.n < body_at + size + 2) return (struct message){.bytes = 0};
    return (struct message){.subject = word[1],
                            .reply = words == 4 + numbers ? word[3] : (slice){0},
                            .headers = slice_of(in.p + body_at, (size_t)head),
                            .body = slice_of(in.p + body_at + head, (size_t)(size - head)),
                            .bytes = body_at + (size_t)size + 2};
}

/* ---- greeting */

static void request_wait(struct load *l, struct load_conn *c, const char *subject, const char *json, slice expect) {
    buf_printf(&c->out, "PUB %s %s.0 %zu\r\n%s\r\n", subject, ((struct session *)c->state)->inbox, strlen(json), json);
    flush_wait(l, c);
    for (;;) {
        slice line = line_wait(l, c);
        if (!slice_starts(line, SL("MSG"))) continue;
        slice body = line_wait(l, c);
        if (!memmem(body.p, body.n, expect.p, expect.n)) fail(l, "%s: %.*s", subject, (int)body.n, body.p);
        return;
    }
}

static void hello(struct load *l, struct load_conn *c) {
    struct session *session = c->state = mem_zalloc(sizeof *session);
    snprintf(session->inbox, sizeof session->inbox, "inbox%d-%u", (int)getpid(), c->id);
    line_wait(l, c);
    buf_printf(&c->out,
               "CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":true,\"no_responders\":true}\r\n"
               "SUB %s.* 1\r\n",
               session->inbox);
    if (c->id > 0) {
        flush_wait(l, c);
        return;
    }
    request_wait(
        l, c, "$JS.API.STREAM.CREATE." STREAM,
        "{\"name\":\"" STREAM "\",\"subjects\":[\"bench\"],\"retention\":\"workqueue\",\"storage\":\"file\","
        "\"max_msgs\":-1,\"max_bytes\":-1,\"max_age\":0,\"num_replicas\":1,\"duplicate_window\":3600000000000}",
        SL("\"config\""));
    request_wait(l, c, "$JS.API.CONSUMER.DURABLE.CREATE." STREAM ".workers",
                 "{\"stream_name\":\"" STREAM "\",\"config\":{\"durable_name\":\"workers\",\"ack_policy\":\"explicit\","
                 "\"deliver_policy\":\"all\",\"replay_policy\":\"instant\",\"max_ack_pending\":100000,"
                 "\"ack_wait\":300000000000}}",
                 SL("\"config\""));
}

/* ---- requests and replies */

static void send_one(struct load *l, struct load_conn *c) {
    char key[LOAD_KEY_BYTES], payload[PAYLOAD_BYTES];
    static const char head[] = "NATS/1.0\r\nNats-Msg-Id: ";
    u64 number = load_take(l, 1);
    size_t head_bytes = sizeof head - 1 + LOAD_KEY_BYTES + 4;
    load_key(l, number, key);
    load_payload(l, key, payload);
    buf_lit(&c->out, "HPUB bench ");
    buf_slice_add(&c->out, slice_str(((struct session *)c->state)->inbox));
    buf_char(&c->out, '.');
    buf_dec(&c->out, c->op_tail);
    buf_char(&c->out, ' ');
    buf_dec(&c->out, head_bytes);
    buf_char(&c->out, ' ');
    buf_dec(&c->out, head_bytes + PAYLOAD_BYTES);
    buf_lit(&c->out, "\r\n");
    buf_add(&c->out, head, sizeof head - 1);
    buf_add(&c->out, key, sizeof key);
    buf_lit(&c->out, "\r\n\r\n");
    buf_add(&c->out, payload, sizeof payload);
    buf_lit(&c->out, "\r\n");
    load_sent(l, c, SEND, number, 1);
}

static void issue(struct load *l, struct load_conn *c) {
    if (l->o.mode != LOAD_CONSUME) {
        send_one(l, c);
        return;
    }
    static const char ask[] = "{\"batch\":%u,\"no_wait\":true}";
    struct session *session = c->state;
    char body[64];
    int n = snprintf(body, sizeof body, ask, l->o.batch);
    session->got = 0;
    buf_printf(&c->out, "PUB $JS.API.CONSUMER.MSG.NEXT." STREAM ".workers %s.fetch %d\r\n%s\r\n", session->inbox, n,
               body);
}

/* A publish's answer: {"stream":"BENCH","seq":7} with "duplicate":true when the id was known. */
static void published(struct load *l, struct load_conn *c, const struct message *m) {
    const struct load_op *op = next_op(l, c);
    slice head, number_text;
    u64 number;
    slice_cut(m->subject, '.', &head, &number_text);
    if (!slice_u64(number_text, &number) || (u32)number != c->op_head) fail(l, "answers came out of order");
    bool stored = memmem(m->body.p, m->body.n, "\"seq\":", 6) != NULL;
    bool duplicate = memmem(m->body.p, m->body.n, "\"duplicate\"", 11) != NULL;
    if (!stored || duplicate != (l->o.mode == LOAD_DUPLICATE))
        fail(l, "message %llu: %.*s", (unsigned long long)op->first, (int)m->body.n, m->body.p);
    load_done(l, c, 1);
    load_slot_free(c);
}

static void delivered(struct load *l, struct load_conn *c, const struct message *m) {
    struct session *session = c->state;
    const char *id = memmem(m->headers.p, m->headers.n, "Nats-Msg-Id: ", 13);
    if (!id) fail(l, "delivered a message without its id");
    load_received(l, slice_of(id + 13, LOAD_KEY_BYTES), m->body);
    bool last = ++session->got == l->o.batch;
    buf_lit(&c->out, "PUB ");
    buf_slice_add(&c->out, m->reply);
    if (last) buf_printf(&c->out, " %s.ack", session->inbox);
    buf_lit(&c->out, " 4\r\n+ACK\r\n");
    if (!last) return;
    load_sent(l, c, CONFIRM, 0, l->o.batch);
    load_slot_free(c);
}

/* A fetch that ran into its time limit: what it brought has been acknowledged; take the server's word by a PING. */
static void fetch_ended(struct load *l, struct load_conn *c) {
    struct session *session = c->state;
    if (session->got == 0) load_idle(l, c);
    buf_lit(&c->out, "PING\r\n");
    load_sent(l, c, CONFIRM, 0, session->got);
    load_slot_free(c);
}

static void on_message(struct load *l, struct load_conn *c, const struct message *m) {
    bool status = slice_starts(m->headers, SL("NATS/1.0 "));
    if (status && l->o.mode == LOAD_CONSUME && slice_starts(m->headers, SL("NATS/1.0 40")))
        fetch_ended(l, c);
    else if (status)
        fail(l, "%.*s", (int)m->headers.n, m->headers.p);
    else if (l->o.mode != LOAD_CONSUME)
        published(l, c, m);
    else if (m->body.n)
        delivered(l, c, m);
    else
        load_done(l, c, next_op(l, c)->n);
}

static size_t reply(struct load *l, struct load_conn *c, slice in) {
    const char *end = memmem(in.p, in.n, "\r\n", 2);
    if (!end) return 0;
    slice line = slice_of(in.p, (size_t)(end - in.p));
    bool with_headers = slice_starts(line, SL("HMSG ")), plain = slice_starts(line, SL("MSG "));
    if (with_headers || plain) {
        struct message m = parse_message(l, in, line, with_headers);
        if (m.bytes) on_message(l, c, &m);
        return m.bytes;
    }
    if (slice_starts(line, SL("PING")))
        buf_lit(&c->out, "PONG\r\n");
    else if (slice_starts(line, SL("PONG")))
        load_done(l, c, next_op(l, c)->n);
    else if (slice_starts(line, SL("-ERR")))
        fail(l, "%.*s", (int)line.n, line.p);
    return line.n + 2;
}

int main(int argc, char **argv) {
    static const struct load_protocol nats = {"nats", hello, issue, reply};
    return bench_main(&nats, argc, argv);
}
