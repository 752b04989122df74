/* Keys and messages: looking at one, waiting for a result. */
#include "broker/broker_priv.h"

static bool forgotten(struct broker *b, const struct seen *s) {
    return s->settle && core_key_left_ms(b->core, b->now, s->settle) <= 0;
}

struct seen *seen_of_key(struct call *c, slice key) {
    const char *why;
    u16 queue;
    if (!queue_of_call(c, false, &queue)) return NULL;
    if (!key_bytes_valid(key, &why)) return fail(c, PROBLEM_key_invalid, "%s", why), NULL;
    struct seen *s = broker_find_key(c->b, queue, core_hash(c->b->core, queue, key), key);
    if (s && !forgotten(c->b, s)) return s;
    return fail(c, PROBLEM_no_such_key, "never seen here, or past its window"), NULL;
}

struct seen *seen_of_id(struct call *c) {
    u64 seq, hash;
    u16 queue;
    if (!queue_of_call(c, false, &queue)) return NULL;
    struct seen *s = core_id_parse(c->arg[1], &seq, &hash) ? broker_find_id(c->b, hash, seq) : NULL;
    if (s && s->at.queue == queue && !forgotten(c->b, s)) return s;
    return fail(c, PROBLEM_no_such_message, "queue '%.*s' has no message with that id, or its key is past its window",
                (int)c->arg[0].n, c->arg[0].p),
           NULL;
}

static void reply_view(struct call *c, const struct seen *s) {
    if (!s) return reply_failure(c);
    buf_reset(&c->b->body);
    put_key_page(c->b, &c->b->body, s);
    reply_json(c, 200, buf_slice(&c->b->body));
}

/* Under at_least_once a key repeats: all of them, the index's order. */
static void reply_repeats(struct call *c, u16 queue, slice key) {
    struct broker *b = c->b;
    struct core_cursor cursor = {0};
    struct found f;
    u64 hash = core_hash(b->core, queue, key);
    u32 count = 0;
    buf_reset(&b->body);
    buf_lit(&b->body, "{\"items\":[");
    while (core_find(b->core, hash, &cursor, &f)) {
        const struct seen *s = f.queue == queue ? lookup_found(b, &b->lookup, &f) : NULL;
        if (!s || !slice_eq(seen_key(s), key) || forgotten(b, s)) continue;
        if (count++) buf_char(&b->body, ',');
        put_key_page(b, &b->body, s);
    }
    buf_lit(&b->body, "],\"next_cursor\":null}");
    if (count) return reply_json(c, 200, buf_slice(&b->body));
    fail(c, PROBLEM_no_such_key, "never seen here, or past its window");
    reply_failure(c);
}

static void reply_key(struct call *c, slice key) {
    u16 queue;
    const char *why;
    bool found = core_queue_find(c->b->core, c->arg[0], &queue);
    if (found && core_queue_rules(c->b->core, queue)->semantics == SEMANTICS_AT_LEAST_ONCE &&
        key_bytes_valid(key, &why))
        return reply_repeats(c, queue, key);
    reply_view(c, seen_of_key(c, key));
}

void api_key(struct call *c) {
    reply_key(c, c->arg[1]);
}

void api_key_query(struct call *c) {
    struct buf store = {0};
    slice key;
    bool bad = false;
    if (!http_query_get(c->req, SL("key"), &store, &key, &bad) || bad) {
        fail(c, PROBLEM_param_invalid, "the query parameter key is missing, given twice or badly encoded");
        reply_failure(c);
    } else {
        reply_key(c, key);
    }
    buf_free(&store);
}

void api_message(struct call *c) {
    reply_view(c, seen_of_id(c));
}

/* ---- results */

static void reply_result(struct broker *b, void *conn, const struct rec_settle *s) {
    buf_reset(&b->fields);
    buf_lit(&b->fields, "Hapax-State: ");
    buf_slice_add(&b->fields, slice_str(state_text((enum state)s->state)));
    buf_lit(&b->fields, "\r\n");
    if (s->result.n == 0)
        reply_with(b, conn, 204, SL(""), buf_slice(&b->fields), SL(""), 0);
    else
        reply_with(b, conn, 200, s->content_type, buf_slice(&b->fields), s->result, 0);
}

static void not_settled(struct call *c, const struct seen *s) {
    struct message_view v;
    core_message_view(c->b->core, c->b->now, s->at.message, &v);
    fail(c, PROBLEM_not_settled, "its state is %s", state_text(v.state));
    json_put_member(&c->failure.more, "state", slice_str(state_text(v.state)));
}

void api_key_result(struct call *c) {
    struct broker *b = c->b;
    i64 wait_ms;
    struct seen *s = parse_wait_param(c, &wait_ms) ? seen_of_key(c, c->arg[1]) : NULL;
    if (!s) return reply_failure(c);
    if (s->settle) return reply_result(b, c->conn, s->settle);
    struct message_view v;
    core_message_view(b->core, b->now, s->at.message, &v);
    if (wait_ms == 0 || v.state == STATE_DEAD || v.state == STATE_HELD || b->draining) {
        not_settled(c, s);
        return reply_failure(c);
    }
    wait_for_outcome(b, wait_new(b, WAIT_RESULT, c->conn, c->user, wait_ms), &v.ref);
}

void answer_result(struct broker *b, struct wait *w) {
    struct call c = {.b = b, .conn = w->conn};
    struct seen *s = broker_find_id(b, w->ref.hash, w->ref.seq);
    wait_end(b, w);
    if (s && s->settle) {
        reply_result(b, c.conn, s->settle);
    } else {
        if (s)
            not_settled(&c, s);
        else
            fail(&c, PROBLEM_no_such_key, "it was forgotten meanwhile");
        reply_failure(&c);
    }
    buf_free(&c.failure.detail);
    buf_free(&c.failure.more);
}
