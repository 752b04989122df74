/* Keys and messages: looking at one, listing many, waiting for a result, cancelling. */
#include "broker/broker_priv.h"

static bool forgotten(struct broker *b, const struct seen *s) {
    return s->settle && core_key_left_ms(b->core, b->now, s->settle) <= 0;
}

static struct seen *seen_of_key(struct call *c, slice key) {
    const char *why;
    u16 queue;
    if (!queue_of_call(c, false, &queue)) return NULL;
    if (!key_bytes_valid(key, &why)) return fail(c, PROBLEM_key_invalid, "%s", why), NULL;
    struct seen *s = broker_find_key(c->b, queue, core_hash(c->b->core, queue, key), key);
    if (s && !forgotten(c->b, s)) return s;
    return fail(c, PROBLEM_no_such_key, "never seen here, or past its window"), NULL;
}

static struct seen *seen_of_id(struct call *c) {
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
    render_key_view(c->b, &c->b->body, s, true);
    reply_json(c, 200, buf_slice(&c->b->body));
}

void api_key(struct call *c) {
    reply_view(c, seen_of_key(c, c->arg[1]));
}

void api_key_query(struct call *c) {
    struct buf store = {0};
    slice key;
    bool bad = false;
    if (!http_query_get(c->req, SL("key"), &store, &key, &bad) || bad) {
        fail(c, PROBLEM_param_invalid, "the query parameter key is missing, given twice or badly encoded");
        reply_failure(c);
    } else {
        reply_view(c, seen_of_key(c, key));
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

/* ---- lists */

static bool parse_state(struct call *c, enum state *state) {
    struct buf store = {0};
    slice text;
    bool bad = false, found = false;
    *state = STATE_PENDING;
    if (!http_query_get(c->req, SL("state"), &store, &text, &bad)) {
        found = !bad;
    } else {
        for (u32 s = STATE_PENDING; s <= STATE_DEAD && !found; s++) {
            found = slice_eq(text, slice_str(state_text((enum state)s)));
            if (found) *state = (enum state)s;
        }
    }
    buf_free(&store);
    return (found && !bad) || fail(c, PROBLEM_param_invalid, "state must be pending, leased, held or dead");
}

/* The cursor is the id of the last message shown. If that message has moved on meanwhile the list starts over: a page may
 * repeat items, none is missed. */
static bool parse_cursor(struct call *c, u16 queue, enum state state, u32 *after) {
    struct buf store = {0};
    slice text;
    u64 seq, hash;
    bool bad = false, ok = true;
    *after = MESSAGE_NONE;
    if (http_query_get(c->req, SL("cursor"), &store, &text, &bad)) {
        ok = core_id_parse(text, &seq, &hash);
        u32 no = ok ? core_message_find(c->b->core, hash, seq) : MESSAGE_NONE;
        struct message_view v;
        if (no != MESSAGE_NONE) core_message_view(c->b->core, c->b->now, no, &v);
        if (no != MESSAGE_NONE && v.state == state && v.ref.queue == queue) *after = no;
    }
    buf_free(&store);
    return (ok && !bad) || fail(c, PROBLEM_param_invalid, "cursor must be a next_cursor of an earlier page");
}

void api_messages(struct call *c) {
    struct broker *b = c->b;
    u16 queue;
    u64 limit;
    u32 no;
    enum state state;
    bool ok = queue_of_call(c, false, &queue) && param_u64(c, "limit", 1, LIST_LIMIT_MAX, 100, &limit) &&
              parse_state(c, &state) && parse_cursor(c, queue, state, &no);
    if (!ok) return reply_failure(c);
    struct ref last = {0};
    struct buf *body = &b->body;
    buf_reset(body);
    buf_lit(body, "{\"items\":[");
    for (u64 n = 0; n < limit && body->len < REPLY_BYTES_MAX; n++) {
        u32 next = core_list(b->core, queue, state, no);
        if (next == MESSAGE_NONE) break;
        no = next;
        struct message_view v;
        core_message_view(b->core, b->now, no, &v);
        last = v.ref;
        if (n) buf_char(body, ',');
        render_key_view(b, body, broker_find_id(b, v.ref.hash, v.ref.seq), true);
    }
    buf_char(body, ']');
    bool more = last.seq && core_list(b->core, queue, state, no) != MESSAGE_NONE;
    if (more)
        put_id(body, "next_cursor", &last);
    else
        json_put_member_raw(body, "next_cursor", SL("null"));
    buf_char(body, '}');
    reply_json(c, 200, buf_slice(body));
}

/* ---- cancel */

/* "cancelled by NAME: WHY" from the headers, or from by and note in the body. */
static bool cancel_reason(struct call *c, struct buf *reason) {
    slice by = SL(""), note = SL(""), name;
    http_field_get(c->req, SL("hapax-actor"), &by);
    http_field_get(c->req, SL("hapax-reason"), &note);
    struct json j;
    json_init(&j, c->req->body);
    if (c->req->body.n && json_object(&j))
        while (json_member(&j, &name)) {
            bool known = slice_eq(name, SL("by")) || slice_eq(name, SL("note"));
            if (known ? !json_string(&j, slice_eq(name, SL("by")) ? &by : &note) : !json_skip(&j)) break;
        }
    bool ok = c->req->body.n == 0 || json_end(&j);
    ok =
        ok && by.n <= 255 && note.n <= REASON_BYTES_MAX - 300 && utf8_valid(by) && utf8_valid(note) && !has_control(by);
    buf_lit(reason, "cancelled");
    if (ok && by.n) buf_printf(reason, " by %.*s", (int)by.n, by.p);
    if (ok && note.n) buf_printf(reason, ": %.*s", (int)note.n, note.p);
    json_free(&j);
    return ok || fail(c, PROBLEM_json_invalid, "the body, if any, is {\"by\":...,\"note\":...} with short plain texts");
}

void api_cancel(struct call *c) {
    struct broker *b = c->b;
    struct buf reason = {0};
    struct seen *s = cancel_reason(c, &reason) ? seen_of_id(c) : NULL;
    enum cancel_verdict v = s ? core_cancel(b->core, b->now, s, buf_slice(&reason)) : CANCEL_SETTLED;
    bool again = s && v == CANCEL_SETTLED && s->settle->state == STATE_CANCELLED;
    buf_free(&reason);
    if (s && v == CANCEL_SETTLED && !again) {
        fail(c, PROBLEM_settled, "it is %s already", state_text((enum state)s->settle->state));
        json_put_member(&c->failure.more, "state", slice_str(state_text((enum state)s->settle->state)));
    } else if (v == CANCEL_FULL) {
        fail(c, PROBLEM_storage_full, "the disk has no room for so long a note");
    }
    if (!s || (v != CANCEL_OK && !again)) return reply_failure(c);
    buf_reset(&b->body);
    buf_lit(&b->body, "{\"state\":\"cancelled\"");
    put_id(&b->body, "id", seen_ref(s));
    json_put_member(&b->body, "key", s->settle ? s->settle->key : s->message->key);
    if (again) json_put_member_bool(&b->body, "duplicate", true);
    buf_char(&b->body, '}');
    reply_json(c, 200, buf_slice(&b->body));
}
