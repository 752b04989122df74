/* Between clients and broker. A call travels, is worked on, may wait there, is answered, and its reply leaves once what it
 * saw is durable. On every one of these ways it can be delayed, doubled, lost or cut off.
 *
 * The model hears of answers in the order the broker decided them: the answer to the request being worked on first, then
 * those of waiting calls that the same request set free. */
#include "model.h"

static struct call *free_call(struct world *w) {
    for (u32 i = 0; i < CALLS_MAX; i++) {
        struct call *c = &w->calls[(w->next_call + i) % CALLS_MAX];
        if (c->state == CALL_FREE) return c;
    }
    return NULL;
}

static void end_call(struct world *w, struct call *c) {
    c->state = CALL_FREE;
    w->calls_live--;
}

static i64 travel_ms(struct world *w, bool well_behaved) {
    if (well_behaved || chance(w, 7000)) return 0;
    return chance(w, 1000) ? between(w, 0, 8000) : between(w, 0, 400);
}

static struct call *start_call(struct world *w, struct op *op, u32 actor, bool well_behaved) {
    struct call *c = free_call(w);
    if (!c) return NULL;
    op->number = ++w->next_call;
    *c = (struct call){.state = CALL_TRAVELLING, .op = op, .actor = actor, .well_behaved = well_behaved};
    c->at_ms = w->mono_ms + travel_ms(w, well_behaved);
    w->calls_live++;
    if (well_behaved) return c;
    c->lose_reply = chance(w, w->profile.lose_reply);
    if (op->wait_ms && chance(w, w->profile.cut_poll)) c->cut_ms = c->at_ms + between(w, 1, op->wait_ms + 1000);
    return c;
}

struct call *net_send(struct world *w, struct op *op, u32 actor, bool well_behaved) {
    bool faults = w->faults_on && !well_behaved;
    if (faults && chance(w, w->profile.lose_request)) {
        tally.requests_lost++;
        return NULL;
    }
    if (faults && chance(w, w->profile.double_request)) {
        struct op *again = arena_alloc(&w->arena, sizeof *again);
        *again = *op;
        tally.requests_doubled++;
        start_call(w, again, actor, false);
    }
    return start_call(w, op, actor, well_behaved);
}

/* ---- answers */

static void trace_answer(const struct op *op, const struct http_reply *r) {
    if (!tracing) return;
    int n = (int)(r->body.n < 1200 ? r->body.n : 1200);
    trace("  #%u %s%s%s -> %u after %llu: %.*s", op->number, op_name(op->kind), op->kind == OP_SETTLE ? " " : "",
          op->kind == OP_SETTLE ? verb_name(op->verb) : "", r->status, (unsigned long long)r->after.position, n,
          r->body.p);
}

static void take_answer(struct world *w, struct call *c, const struct http_reply *reply) {
    if (c->state != CALL_IN_BROKER) sim_fail("a request was answered twice");
    trace_answer(c->op, reply);
    /* What is decided after the journal has failed never leaves, and no start will know of it. */
    if (!world_dead(w)) model_answered(w->model, c->op, reply, &w->scratch);
    arena_reset(&w->scratch);
    c->state = CALL_ANSWERED;
    c->after = reply->after.position;
    c->receipt = reply->receipt;
}

void net_respond(void *ctx, void *conn, const struct http_reply *reply) {
    struct world *w = ctx;
    struct call *c = conn;
    if (w->census) {
        *w->census = *reply;
        w->census->body = arena_copy(&w->scratch, reply->body);
        w->census->fields = arena_copy(&w->scratch, reply->fields);
        return;
    }
    if (!w->asking || c == w->asking) {
        take_answer(w, c, reply);
        return;
    }
    struct buf *bytes = &w->late[w->late_count].bytes;
    buf_reset(bytes);
    buf_slice_add(bytes, reply->body);
    buf_slice_add(bytes, reply->fields);
    w->late[w->late_count].call = c;
    w->late[w->late_count].reply = *reply;
    w->late_count++;
}

void net_settle_late(struct world *w) {
    for (u32 i = 0; i < w->late_count; i++) {
        struct http_reply r = w->late[i].reply;
        const struct buf *bytes = &w->late[i].bytes;
        r.content_type = SL(""); /* not kept */
        r.body = slice_of(bytes->p, r.body.n);
        r.fields = slice_of(bytes->p + r.body.n, r.fields.n);
        take_answer(w, w->late[i].call, &r);
    }
    w->late_count = 0;
}

/* ---- a turn of the net */

/* Whether a send that is made to wait is new is not told before it is answered, and by then others have come between: the
 * key is looked up first. */
static void look_first(struct world *w, const struct op *op) {
    struct op look = {.kind = OP_KEY, .queue = op->queue, .sends = op->sends};
    struct http_reply reply;
    net_ask(w, &look, &reply);
    if (!world_dead(w)) model_answered(w->model, &look, &reply, &w->scratch);
    arena_reset(&w->scratch);
}

static void arrive(struct world *w, struct call *c) {
    struct request r;
    if (c->op->kind == OP_SEND && c->op->wait_ms) look_first(w, c->op);
    request_build(&w->scratch, c->op, &r);
    if (tracing)
        trace("  #%u %.*s?%.*s key %d: %.*s", c->op->number, (int)r.http.path.n, r.http.path.p, (int)r.http.query.n,
              r.http.query.p, c->op->sends ? (int)c->op->sends[0].key : -1,
              c->op->kind == OP_SETTLE ? (int)r.http.body.n : 0, r.http.body.p);
    c->state = CALL_IN_BROKER;
    c->user = NULL;
    w->asking = c;
    tally.requests++;
    if (c->op->number % 2) broker_ahead(w->broker, &(struct http_request *){&r.http}, 1);
    broker_request(w->broker, world_time(w), c, &c->user, &r.http);
    w->asking = NULL;
    if (c->state == CALL_IN_BROKER) {
        if (!c->user) sim_fail("a request is neither answered nor waiting");
        if (!world_dead(w)) model_parked(w->model, c->op);
    }
    net_settle_late(w);
    arena_reset(&w->scratch);
}

void net_arrivals(struct world *w) {
    struct call *due[CALLS_MAX];
    u32 n = 0;
    for (u32 i = 0; i < CALLS_MAX; i++)
        if (w->calls[i].state == CALL_TRAVELLING && w->calls[i].at_ms <= w->mono_ms) due[n++] = &w->calls[i];
    while (n > 0) {
        u32 pick = (u32)rng_below(&w->rng, n);
        struct call *c = due[pick];
        due[pick] = due[--n];
        arrive(w, c);
        world_beside(w);
    }
}

static void cut(struct world *w, struct call *c) {
    trace("  #%u hangs up", c->op->number);
    if (c->state == CALL_IN_BROKER) {
        tally.polls_cut++;
        broker_gone(w->broker, world_now(w), c->user);
        model_gone(w->model, c->op);
    } else if (c->receipt) {
        tally.replies_unwritten++;
        broker_receipt(w->broker, world_now(w), c->receipt, false);
        model_unwritten(w->model, c->op);
    }
    end_call(w, c);
}

void net_cuts(struct world *w) {
    for (u32 i = 0; i < CALLS_MAX; i++) {
        struct call *c = &w->calls[i];
        bool there = c->state == CALL_IN_BROKER || c->state == CALL_ANSWERED;
        if (there && c->cut_ms && c->cut_ms <= w->mono_ms) cut(w, c);
    }
}

/* The reply's bytes leave. From here on the broker's fate is no longer its own. */
static void leave(struct world *w, struct call *c) {
    if (w->faults_on && !c->well_behaved && chance(w, w->profile.unwritten)) {
        cut(w, c);
        return;
    }
    if (c->receipt) broker_receipt(w->broker, world_time(w), c->receipt, true);
    if (c->lose_reply && w->faults_on) {
        tally.replies_lost++;
        end_call(w, c);
        return;
    }
    model_delivered(w->model, c->op);
    tally.replies_delivered++;
    c->state = CALL_RETURNING;
    c->at_ms = w->mono_ms + travel_ms(w, c->well_behaved);
}

/* P1, P7: the broker lets nothing go that is not durable, and nothing at all once the journal has failed. */
void net_released(void *ctx, u64 position) {
    struct world *w = ctx;
    if (position > journal_durable(w->journal)) sim_fail("replies are let go before their records are durable");
    if (world_dead(w)) sim_fail("replies are let go after the journal failed");
    w->released = position;
}

void net_release(struct world *w) {
    broker_durable(w->broker, world_time(w), journal_durable(w->journal));
    for (u32 i = 0; i < CALLS_MAX; i++)
        if (w->calls[i].state == CALL_ANSWERED && w->calls[i].after <= w->released) leave(w, &w->calls[i]);
    for (u32 i = 0; i < CALLS_MAX; i++) {
        struct call *c = &w->calls[i];
        if (c->state != CALL_RETURNING || c->at_ms > w->mono_ms) continue;
        struct op *op = c->op;
        u32 actor = c->actor;
        end_call(w, c);
        clients_delivered(w, op, actor);
    }
}

void net_forget_all(struct world *w) {
    w->late_count = 0;
    w->asking = NULL;
    for (u32 i = 0; i < CALLS_MAX; i++)
        if (w->calls[i].state == CALL_IN_BROKER || w->calls[i].state == CALL_ANSWERED) end_call(w, &w->calls[i]);
}

/* ---- out of band */

void net_ask_built(struct world *w, struct request *r, struct http_reply *out) {
    void *user = NULL;
    w->census = out;
    *out = (struct http_reply){0};
    broker_request(w->broker, world_time(w), NULL, &user, &r->http);
    w->census = NULL;
    if (out->status == 0) sim_fail("a look-up was not answered at once");
}

void net_ask(struct world *w, struct op *op, struct http_reply *out) {
    struct request r;
    request_build(&w->scratch, op, &r);
    net_ask_built(w, &r, out);
}
