/* Receive: lease what is ready, or wait for it. */
#include "broker/api.h"
#include "broker/broker_priv.h"
#include "broker/call.h"
#include "broker/consumers.h"
#include "broker/lookup.h"
#include "broker/named.h"
#include "broker/page.h"
#include "broker/parse.h"
#include "broker/receipts.h"
#include "broker/render.h"
#include "broker/room.h"
#include "broker/scope.h"
#include "broker/waits.h"
#include "broker/watch.h"

#define READY_AHEAD 16u  /* records brought near together */
#define READY_BYTES 384u /* of each: a message with a small payload */
#define FULL_TRIES  16u  /* retries without room for their lease that are passed over to find a message that has it */

struct take {
    u16 queue;
    u32 max, count;
    struct lease_in in;
    slice queue_name;
    struct buf *body;
    struct receipt *receipt; /* of these leases */
    struct part {
        size_t from, n;
    } name, expires;  /* in the body: what the first message says there, all the others say too */
    struct part seen; /* what the last one says of this time */
    i64 seen_ms;
    struct due *due;
    struct budget g; /* once it is long */
    bool full;       /* the next one does not fit into it */
};

/* Tokens whose places in the body are empty as yet. */
struct due {
    u32 count;
    struct token tokens[TOKENS_TOGETHER];
    size_t at[TOKENS_TOGETHER];
};

/* What the reply has said before: with what follows it there, which is written over next, short parts are a copy of known length. */
static void put_again(struct buf *body, struct part p) {
    enum { SHORT = 96 };
    buf_grow(body, p.n + SHORT);
    if (p.n <= SHORT && body->len - p.from >= SHORT)
        memcpy(body->p + body->len, body->p + p.from, SHORT);
    else
        memcpy(body->p + body->len, body->p + p.from, p.n);
    body->len += p.n;
}

static void put_queue(struct take *t) {
    size_t from = t->body->len;
    if (t->name.n) return put_again(t->body, t->name);
    buf_lit(t->body, ",\"queue\":");
    json_put_string(t->body, t->queue_name);
    t->name = (struct part){from, t->body->len - from};
}

static void put_lease_end(struct broker *b, struct take *t) {
    size_t from = t->body->len;
    if (t->expires.n) return put_again(t->body, t->expires);
    put_time_member(b, t->body, "lease_expires_at", b->now.wall_ms + t->in.lease_ms);
    t->expires = (struct part){from, t->body->len - from};
}

/* It is queued as soon as it is seen: the same time twice. The next one often came in the same millisecond. */
static void put_first_seen(struct broker *b, struct take *t, i64 ms) {
    struct buf *body = t->body;
    size_t from = body->len;
    if (t->seen.n && t->seen_ms == ms) return put_again(body, t->seen);
    buf_grow(body, 64 + 2 * RFC3339_BYTES);
    char *time = write_lit(buf_end(body), ",\"first_seen\":\""), *p = write_time(b, time, ms);
    p = write_lit(p, "\",\"enqueued_at\":\"");
    memcpy(p, time, RFC3339_BYTES);
    buf_end_at(body, write_lit(p + RFC3339_BYTES, "\""));
    t->seen = (struct part){from, body->len - from};
    t->seen_ms = ms;
}

static char *write_small(char *to, u64 v) {
    if (v >= 10) return write_dec(to, v);
    *to = (char)('0' + v);
    return to + 1;
}

/* Their codes are made side by side. */
static void put_tokens(struct broker *b, struct buf *body, struct due *due) {
    const struct token *tokens[TOKENS_TOGETHER];
    u64 codes[TOKENS_TOGETHER];
    for (u32 i = 0; i < due->count; i++) tokens[i] = &due->tokens[i];
    core_token_codes(b->core, tokens, due->count, codes);
    for (u32 i = 0; i < due->count; i++) core_token_put(tokens[i], codes[i], body->p + due->at[i]);
    due->count = 0;
}

static char *leave_token(struct broker *b, struct take *t, const struct ref *ref, u64 fence, char *to) {
    struct due *due = t->due;
    if (due->count == TOKENS_TOGETHER) put_tokens(b, t->body, due);
    due->tokens[due->count] = (struct token){.hash = ref->hash, .seq = ref->seq, .fence = fence};
    due->at[due->count++] = (size_t)(to - t->body->p);
    return to + TOKEN_TEXT;
}

static void put_lease(struct broker *b, struct take *t, const struct message_view *before,
                      const struct lease_out *lease) {
    buf_grow(t->body, 128 + TOKEN_TEXT + 5 * DEC_BYTES_MAX);
    char *p = write_lit(buf_end(t->body), ",\"token\":\"");
    p = leave_token(b, t, &before->ref, lease->fence, p);
    p = write_lit(p, "\",\"fence\":\"");
    p = write_dec(p, lease->fence);
    p = write_lit(p, "\",\"attempt\":");
    p = write_small(p, lease->attempt);
    p = write_lit(p, ",\"failures\":");
    p = write_small(p, (u64)before->failures + before->unknowns);
    p = write_lit(p, ",\"crashes\":");
    p = write_small(p, before->crashes);
    p = write_lit(p, ",\"generation\":");
    buf_end_at(t->body, write_small(p, before->generation));
}

static void render_delivery(struct broker *b, struct take *t, const struct message_view *before,
                            const struct rec_message *m, const struct lease_out *lease) {
    struct buf *body = t->body;
    buf_grow(body, 64 + ID_TEXT);
    char *p = core_id_write(&m->ref, write_lit(buf_end(body), "{\"id\":\""));
    buf_end_at(body, write_lit(p, "\""));
    put_shown_key(b, body, m->ref.queue, m->key);
    put_queue(t);
    put_lease(b, t, before, lease);
    put_effect_key_member(b, body, &m->ref, m->key, before->generation);
    buf_lit(body, ",\"delivery\":\"");
    buf_slice_add(body, slice_str(delivery_text(lease->delivery)));
    buf_char(body, '"');
    if (m->group.n) json_put_member(body, "group", m->group);
    put_attrs(body, m->attrs);
    buf_lit(body, ",\"content_type\":");
    json_put_string(body, m->content_type);
    put_bytes_members(body, "payload", m->payload);
    put_first_seen(b, t, m->first_seen_ms);
    if (lease->settled)
        buf_lit(body, ",\"lease_expires_at\":null");
    else
        put_lease_end(b, t);
    put_steps(body, true, before->history);
    if (m->traceparent.n) json_put_member(body, "traceparent", m->traceparent);
    if (m->tracestate.n) json_put_member(body, "tracestate", m->tracestate);
    buf_char(body, '}');
}

/* Whatever it says, escaped, with what the broker says of it. Into a short reply any message does. */
static bool fits_in(const struct take *t, const struct message_view *v, const struct rec_message *m) {
    enum { SHORT = 3 << 20, BESIDE = 8192 };
    if (t->body->len <= SHORT) return true;
    u64 said = m->payload.n + m->attrs.n + m->key.n + v->history.n;
    return t->body->len + said * ESCAPED_GROWS + BESIDE <= REPLY_BYTES_MAX;
}

/* What was asked for may be a thousand large ones. Few, or small ones, come together however slow the machine is, and without a look
 * at the clock. */
static bool takes_long(struct broker *b, struct take *t) {
    if (t->body->len <= PAGE_LEAST_BYTES) return false;
    if (!t->g.b) t->g = budget_of(b, RECEIVE_US);
    return budget_spent(&t->g);
}

/* Lease one message and add it to the reply. If it does not fit in, the reply is full. */
static enum lease_verdict take_one(struct broker *b, struct take *t, u32 no) {
    struct message_view before;
    struct buf *history = &b->scratch->history;
    struct lease_out lease;
    core_message_view(b->core, b->now, no, &before);
    const struct record *base = lookup_record(b, b->lookup, before.pos, before.size_hint);
    CHECK(base->type == REC_MESSAGE);
    t->full = !fits_in(t, &before, &base->message);
    if (t->full) return LEASE_OK;
    /* Leasing changes the history the view points into: what is rendered is what was before it. */
    buf_reset(history);
    buf_slice_add(history, before.history);
    before.history = buf_slice(history);
    room_prepare(b, core_said_bytes(b->core, no)); /* under at_most_once it is settled here */
    enum lease_verdict v = core_lease(b->core, b->now, no, &base->message, &t->in, &lease);
    if (v != LEASE_OK) return v;
    if (t->count) buf_char(t->body, ',');
    render_delivery(b, t, &before, &base->message, &lease);
    watch_delivered(b, &base->message, &lease);
    t->receipt = receipt_add(t->receipt, &base->message.ref, lease.fence);
    t->count++;
    return v;
}

static void prefetch_ready(struct broker *b, u16 queue) {
    u64 positions[READY_AHEAD];
    u32 bytes[READY_AHEAD], n = core_ready_positions(b->core, queue, READY_AHEAD, positions);
    for (u32 i = 0; i < n; i++) bytes[i] = READY_BYTES;
    journal_prefetch(b->journal, positions, bytes, n);
}

static void take_ready(struct broker *b, struct take *t) {
    u32 refused = 0, no;
    if (t->in.lease_ms == 0) t->in.lease_ms = core_queue_rules(b->core, t->queue)->lease_ms;
    while (t->count < t->max && !t->full && refused < FULL_TRIES) {
        if (takes_long(b, t)) break;
        if ((no = core_next_ready(b->core, t->queue)) == MESSAGE_NONE) break;
        if (t->count % READY_AHEAD == 0 && t->max > 1) prefetch_ready(b, t->queue);
        if (take_one(b, t, no) == LEASE_FULL) refused++;
    }
}

static void reply_take(struct broker *b, void *conn, struct take *t) {
    reply_made(b, conn, t->body, receipts_keep(b, t->receipt));
}

static bool parse_consumer(struct call *c, struct buf *store, slice *consumer) {
    bool bad = false;
    *consumer = SL("");
    if (!http_query_get(c->req, SL("consumer"), store, consumer, &bad) && !bad) return true;
    if (!bad && consumer->n <= CONSUMER_BYTES_MAX && utf8_valid(*consumer) && !has_control(*consumer)) return true;
    return fail(c, PROBLEM_param_invalid, "consumer must be UTF-8 without control characters, at most %u bytes",
                CONSUMER_BYTES_MAX);
}

static bool parse_start(struct call *c, bool *reserve_only) {
    struct buf store = {0};
    slice text;
    bool bad = false, ok = true;
    *reserve_only = false;
    if (http_query_get(c->req, SL("start"), &store, &text, &bad)) {
        *reserve_only = slice_eq(text, SL("explicit"));
        ok = *reserve_only || slice_eq(text, SL("auto"));
    }
    buf_free(&store);
    return (ok && !bad) || fail(c, PROBLEM_param_invalid, "start must be auto or explicit");
}

/* What the queue has for it now. A queue that is not there is as good as an empty one. */
static void take_for(struct broker *b, struct take *t) {
    struct due due;
    due.count = 0;
    t->due = &due;
    consumer_spoke(b, t->queue, t->in.consumer);
    buf_reset(t->body);
    buf_grow(t->body, HTTP_HEAD_ROOM);
    t->body->len = HTTP_HEAD_ROOM;
    buf_lit(t->body, "{\"messages\":[");
    if (t->queue) take_ready(b, t);
    put_tokens(b, t->body, &due);
    buf_lit(t->body, "]}");
    t->due = NULL;
}

/* There is something ready, or its time is over. */
static void answer_poll(struct broker *b, struct wait *w, bool over) {
    struct queue_info q = {0};
    if (w->queue) core_queue_info(b->core, b->now, w->queue, &q);
    struct take t = {
        .queue = w->queue,
        .max = w->max,
        .in = {.lease_ms = w->lease_ms, .reserve_only = w->reserve_only, .consumer = buf_slice(&w->consumer)},
        .queue_name = q.name,
        .body = &b->scratch->body,
    };
    take_for(b, &t);
    if (t.count == 0 && !over) return;
    void *conn = w->conn;
    wait_end(b, w);
    reply_take(b, conn, &t);
}

static void wait_with(struct call *c, const struct take *t, i64 wait_ms) {
    struct broker *b = c->b;
    struct wait *w = wait_new(b, c->conn, c->user, wait_ms, answer_poll);
    w->right = RIGHT_RECEIVE;
    w->max = t->max;
    w->lease_ms = t->in.lease_ms;
    w->reserve_only = t->in.reserve_only;
    buf_slice_add(&w->consumer, t->in.consumer);
    if (t->queue == 0) return wait_for_queue(b, w, t->queue_name);
    if (core_next_ready(b->core, t->queue) != MESSAGE_NONE) waits_starve(b);
    wait_for_messages(b, w, t->queue);
}

void api_receive(struct call *c) {
    struct broker *b = c->b;
    struct buf consumer = {0};
    struct take t = {.body = &b->scratch->body, .queue_name = c->arg[0]};
    i64 wait_ms, lease_ms;
    u64 max;
    bool ok = param_u64(c, "max", 1, RECEIVE_MAX, 1, &max) && param_wait(c, &wait_ms) &&
              param_duration(c, "lease", LEASE_MS_MIN, LEASE_MS_MAX, 0, &lease_ms) &&
              parse_start(c, &t.in.reserve_only) && parse_consumer(c, &consumer, &t.in.consumer) &&
              queue_to_receive(c, &t.queue);
    if (ok) {
        t.max = (u32)max;
        t.in.lease_ms = lease_ms == 0 && t.queue ? core_queue_rules(b->core, t.queue)->lease_ms : (u32)lease_ms;
        take_for(b, &t);
        if (t.count || wait_ms == 0 || b->draining)
            reply_take(b, c->conn, &t);
        else if (ration_to_wait(c))
            wait_with(c, &t, wait_ms);
        else
            reply_failure(c);
    } else {
        reply_failure(c);
    }
    buf_free(&consumer);
}
