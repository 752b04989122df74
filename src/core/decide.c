/* Decisions: what a request makes of the state. Each reads the state, writes at most a few records, and applies them;
 * values that depend on policy, chance or the clock go into the record, never into apply. */
#include "core/core_priv.h"

#define KEPT_RECORD_MAX (3u << 20) /* a settlement with a kept payload beyond this goes without it */

/* ---- send */

static bool past_window(const struct core *c, const struct rec_settle *s) {
    return window_left_ms(queue_at(c, s->ref.queue), s->settled_run_ms, c->now.run_ms) <= 0;
}

static enum arrival_kind arrival_kind(const struct core *c, const struct seen *seen) {
    if (!seen->settle) return ARRIVAL_REPLAY;
    const struct rules *rules = &queue_at(c, seen->at.queue)->rules;
    if (rules->window_ms == WINDOW_FOREVER) return ARRIVAL_REPLAY;
    i64 age = c->now.run_ms - seen->settle->settled_run_ms;
    return age > rules->window_ms / 2 ? ARRIVAL_LATE : ARRIVAL_REPLAY;
}

/* Over a limit nothing new comes in until all of them are kept by a margin: not one message in for each that goes. */
bool queue_pressed(const struct core *c, const struct queue *q, i64 run_ms, size_t payload) {
    const struct rules *r = &q->rules;
    if (!r->limit_pending && !r->limit_bytes && !r->limit_lag_ms) return false;
    u32 head = q->places[PLACE_READY].head;
    u64 lag_ms = head == MESSAGE_NONE ? 0 : (u64)(run_ms - message_at(c, head)->when_ms);
    u64 limit_lag_ms = (u64)r->limit_lag_ms;
    u64 count = q->unsettled - q->refused_copies, bytes = q->unsettled_bytes - q->refused_bytes;
    bool over = (r->limit_pending && count >= r->limit_pending) ||
                (r->limit_bytes && bytes + payload > r->limit_bytes) || (limit_lag_ms && lag_ms >= limit_lag_ms);
    bool below = (!r->limit_pending || count * 5 < r->limit_pending * 4) &&
                 (!r->limit_bytes || bytes * 5 < r->limit_bytes * 4) &&
                 (!limit_lag_ms || lag_ms * 5 < limit_lag_ms * 4);
    return over || (q->pressed && !below);
}

static bool under_pressure(const struct core *c, struct queue *q, size_t payload) {
    return q->pressed = queue_pressed(c, q, c->now.run_ms, payload);
}

/* What has no key to be found by, or shares one with too many others, is found by its number alone. */
static u64 unique_hash(const struct core *c) {
    struct siphash_key k = c->options.hash_key;
    k.k0 ^= 0x6e756d626572ull;
    return siphash(&k, &c->next_seq, sizeof c->next_seq);
}

/* Only at_least_once queues repeat a key; thousands of entries under one hash would make each look-up a walk. */
static u64 repeatable_hash(const struct core *c, const struct send_in *in) {
    if (in->key.n == 0) return unique_hash(c);
    struct index_cursor cursor = {0};
    for (u32 n = 0; n < KEY_REPEATS_FOUND; n++)
        if (index_find(&c->keys, in->hash, &cursor) == ENTRY_NONE) return in->hash;
    return unique_hash(c);
}

static void message_record(const struct core *c, const struct send_in *in, struct record *r) {
    i64 delay_ms = c->now.delay_ms;
    r->type = REC_MESSAGE;
    r->message = (struct rec_message){
        .ref = {.hash = in->hash, .seq = c->next_seq, .queue = in->queue},
        .fingerprint = in->fingerprint,
        .first_seen_ms = c->now.wall_ms,
        .due_ms = in->delay_ms > 0 ? delay_ms + in->delay_ms : 0,
        .ttl_ms = in->ttl_ms > 0 ? delay_ms + in->ttl_ms : 0,
        .key = in->key,
        .group = in->group,
        .content_type = in->content_type,
        .attrs = in->attrs,
        .traceparent = in->traceparent,
        .tracestate = in->tracestate,
        .request_id = in->request_id,
        .payload = in->payload,
    };
}

static enum send_verdict admit(struct core *c, const struct record *r, struct send_out *out) {
    const struct rec_message *m = &r->message;
    struct queue *q = queue_at(c, m->ref.queue);
    if (under_pressure(c, q, m->payload.n)) {
        COUNT(c, q, backpressured);
        return SEND_BACKPRESSURE;
    }
    if (!room_for(c, c->sink->cost(record_size_max(r)) + admission_room(c, m->key.n, m->request_id.n)))
        return SEND_FULL;
    core_emit(c, r);
    out->ref = m->ref;
    out->first_seen_ms = m->first_seen_ms;
    out->duplicates = 0;
    return SEND_ACCEPTED;
}

bool core_other_key(const struct core *c, const struct send_in *in, struct send_out *out) {
    static const char digits[] = "0123456789abcdef";
    if (in->key.n + OTHER_KEY_TAIL > KEY_BYTES_MAX) return false;
    char *p = out->other_key + in->key.n;
    memcpy(out->other_key, in->key.p, in->key.n);
    *p++ = '~';
    for (int shift = 60; shift >= 0; shift -= 4) *p++ = digits[in->fingerprint >> shift & 15];
    out->other_key_len = (u8)(in->key.n + OTHER_KEY_TAIL);
    out->other_hash = core_hash(c, in->queue, slice_of(out->other_key, out->other_key_len));
    return true;
}

static enum send_verdict send_again(struct core *c, const struct send_in *in, const struct seen *seen,
                                    struct send_out *out) {
    u64 fingerprint = seen->settle ? seen->settle->fingerprint : seen->message->fingerprint;
    bool conflict = fingerprint != in->fingerprint;
    struct queue *q = queue_at(c, in->queue);
    out->ref = seen->settle ? seen->settle->ref : seen->message->ref;
    out->first_seen_ms = seen->settle ? seen->settle->first_seen_ms : seen->message->first_seen_ms;
    enum arrival_kind kind = conflict ? ARRIVAL_CONFLICT : arrival_kind(c, seen);
    tally_note(c, seen->at.entry, seen->arrivals, kind, in->request_id);
    struct tally *t = tally_find(c, seen->at.entry);
    if (conflict) tally_write(c, t);
    out->duplicates = t->duplicates;
    if (!conflict) {
        if (seen->settle) window_learn(c, q, c->now.run_ms - seen->settle->settled_run_ms);
        return SEND_DUPLICATE;
    }
    return q->rules.on_conflict != ON_CONFLICT_REJECT && core_other_key(c, in, out) ? SEND_ELSEWHERE : SEND_CONFLICT;
}

enum send_verdict core_send(struct core *c, struct core_now now, const struct send_in *in, const struct seen *seen,
                            struct send_out *out) {
    c->now = now;
    struct queue *q = queue_at(c, in->queue);
    bool repeats = q->rules.semantics == SEMANTICS_AT_LEAST_ONCE || in->key.n == 0;
    bool gone = !repeats && seen && seen->settle && past_window(c, seen->settle);
    if (!repeats && seen && !gone) return send_again(c, in, seen, out);

    struct record r;
    message_record(c, in, &r);
    if (repeats) r.message.ref.hash = repeatable_hash(c, in);
    if (!gone) return admit(c, &r, out);
    r.message.replaces = seen->at.pos;
    r.message.replaces_seq = seen->settle->ref.seq;
    if (seen->settle->fingerprint ==
        in->fingerprint) /* it came back too late for its window: the next one should not */
        window_learn(c, q, now.run_ms - seen->settle->settled_run_ms);
    return admit(c, &r, out);
}

enum send_verdict core_send_conflict(struct core *c, struct core_now now, const struct send_in *in,
                                     const struct send_out *first, const struct seen *other, struct send_out *out) {
    c->now = now;
    const struct queue *q = queue_at(c, in->queue);
    struct send_in own = *in;
    own.key = slice_of(first->other_key, first->other_key_len);
    own.hash = first->other_hash;
    bool gone = other && other->settle && past_window(c, other->settle);
    if (other && !gone) {
        enum send_verdict v = send_again(c, &own, other, out);
        return v == SEND_ELSEWHERE ? SEND_CONFLICT : v; /* somebody took that very key for something else */
    }
    bool hold = q->rules.on_conflict == ON_CONFLICT_HOLD;
    if (hold && q->conflict_copies >= CONFLICTS_HELD_MAX) return SEND_CONFLICT;
    struct record r;
    message_record(c, &own, &r);
    r.message.origin_hash = first->ref.hash;
    r.message.origin_seq = first->ref.seq;
    r.message.replaces = gone ? other->at.pos : 0;
    r.message.replaces_seq = gone ? other->settle->ref.seq : 0;
    r.message.state = hold ? STATE_HELD : STATE_PENDING;
    r.message.traits = hold ? TRAIT_CONFLICT : 0;
    enum send_verdict v = admit(c, &r, out);
    return v == SEND_ACCEPTED && hold ? SEND_HELD : v;
}

/* ---- refused copies */

/* Keys have no control characters: none of them meets this. */
static u64 refused_hash(const struct core *c, const struct send_in *in) {
    char text[9] = {1};
    put_u64(text + 1, in->fingerprint);
    return core_hash(c, in->queue, slice_of(text, sizeof text));
}

static bool refused_before(const struct core *c, const struct queue *q, u64 hash) {
    struct index_cursor cursor = {0};
    for (u32 no; (no = index_find(&c->keys, hash, &cursor)) != ENTRY_NONE;) {
        const struct entry *e = index_entry(&c->keys, no);
        if (e->kind == ENTRY_LIVE) return true;
        if (!entry_forgotten(c, e) && window_left_ms(q, (i64)e->settled_run_ms, c->now.run_ms) > 0) return true;
    }
    return false;
}

enum refuse_verdict core_refuse(struct core *c, struct core_now now, const struct send_in *in, slice reason,
                                struct ref *out) {
    c->now = now;
    struct queue *q = queue_at(c, in->queue);
    struct record r;
    struct history *h = scratch_history(c, SL(""));
    history_add(h, &(struct history_item){
                       .kind = HISTORY_DECISION, .at_ms = now.wall_ms, .what = DECISION_REFUSED, .reason = reason});
    message_record(c, in, &r);
    r.message.ref.hash = refused_hash(c, in);
    r.message.key = SL("");
    r.message.due_ms = r.message.ttl_ms = 0;
    r.message.refused = true;
    r.message.state = STATE_DEAD;
    r.message.history = slice_of(h->p, h->len);
    bool known = refused_before(c, q, r.message.ref.hash);
    bool fits = q->refused_copies < q->rules.refused_kept &&
                q->refused_bytes + in->payload.n <= q->rules.refused_bytes &&
                room_for(c, c->sink->cost(record_size_max(&r)) + admission_room(c, h->len, in->request_id.n));
    if (known || !fits) {
        COUNT(c, q, refused);
        return known ? REFUSE_KNOWN : REFUSE_BEYOND;
    }
    core_emit(c, &r);
    *out = r.message.ref;
    return REFUSE_KEPT;
}

/* ---- settle records */

/* What was said goes along if it is to be kept: a replay will need it. */
static void keep_said(const struct core *c, const struct rec_message *base, struct rec_settle *s) {
    const struct rules *rules = &queue_at(c, base->ref.queue)->rules;
    s->kept.is = false;
    if (rules->keep_payload_ms == 0 || base->refused) return;
    s->kept = (struct kept){
        .is = true,
        .group = base->group,
        .content_type = base->content_type,
        .attrs = base->attrs,
        .traceparent = base->traceparent,
        .tracestate = base->tracestate,
        .payload = base->payload,
    };
}

void settle_record(struct core *c, const struct message *m, const struct rec_message *base, enum state state,
                   struct record *r) {
    CHECK(base->ref.seq == m->seq);
    r->type = REC_SETTLE;
    r->settle = (struct rec_settle){
        .ref = base->ref,
        .fingerprint = base->fingerprint,
        .fence = m->fence,
        .first_seen_ms = base->first_seen_ms,
        .settled_ms = c->now.wall_ms,
        .settled_run_ms = c->now.run_ms,
        .state = (u8)state,
        .ended = m->ended,
        .generation = m->generation,
        .attempts = m->attempts,
        .failures = m->failures,
        .unknowns = m->unknowns,
        .crashes = m->crashes,
        .key = base->key,
        .request_id = base->request_id,
    };
    keep_said(c, base, &r->settle);
}

void settle_emit(struct core *c, struct record *r) {
    struct kept *k = &r->settle.kept;
    if (k->is && (record_size_max(r) > KEPT_RECORD_MAX || !room_for(c, kept_bytes(k)))) *k = (struct kept){0};
    core_emit(c, r);
}

/* The message's history, copied where it can be amended before the record is written. */
struct history *scratch_history(struct core *c, slice from) {
    struct history *h = &c->scratch;
    h->len = (u32)from.n;
    if (h->cap < h->len) {
        h->cap = h->len;
        h->p = mem_realloc(h->p, h->cap);
    }
    if (from.n) memcpy(h->p, from.p, from.n);
    return h;
}

static void note_effect(struct history *h, slice effect_id) {
    u32 count;
    if (effect_id.n == 0 || history_has_effect(slice_of(h->p, h->len), effect_id, &count)) return;
    if (count >= HISTORY_EFFECTS_KEPT) return;
    history_add(h, &(struct history_item){.kind = HISTORY_EFFECT, .name = effect_id});
}

/* ---- cancel, by an operator or because its time to live is over */

enum cancel_verdict core_cancel(struct core *c, struct core_now now, const struct seen *seen, slice reason) {
    c->now = now;
    if (seen->settle) return CANCEL_SETTLED;
    const struct message *m = message_at(c, seen->at.message);
    struct record r;
    settle_record(c, m, seen->message, STATE_CANCELLED, &r);
    struct history *h = scratch_history(c, slice_of(m->history.p, m->history.len));
    if (m->place == PLACE_LEASED) {
        history_end(h, m->fence, now.wall_ms, ENDED_CANCELLED, CLASS_NONE, SL(""));
        r.settle.ended = ENDED_CANCELLED;
    }
    r.settle.reason = reason;
    r.settle.history = slice_of(h->p, h->len);
    if (reason.n > RESULT_ALWAYS_FITS && !room_for_deed(c, reason.n)) return CANCEL_FULL;
    settle_emit(c, &r);
    return CANCEL_OK;
}

/* ---- receive */

/* Its time to live ended before the work was started. */
static bool out_of_time(const struct core *c, const struct message *m) {
    return m->ttl_ms && m->ttl_ms <= c->now.delay_ms && m->attempts == 0;
}

u32 core_next_ready(const struct core *c, u16 queue) {
    const struct queue *q = queue_at(c, queue);
    return q->paused ? MESSAGE_NONE : q->places[PLACE_READY].head;
}

static const char *const delivery_names[] = {
#define DELIVERY_NAME(name, text) text,
    DELIVERY_LIST(DELIVERY_NAME)
#undef DELIVERY_NAME
};
const char *delivery_text(enum delivery d) {
    CHECK(d < DELIVERY_COUNT);
    return delivery_names[d];
}

static enum delivery delivery_of(const struct message *m) {
    if (m->reconcile) return DELIVERY_RECONCILE;
    return m->attempts > 0 ? DELIVERY_RETRY : DELIVERY_FIRST;
}

/* at_most_once: the hand-out is the settlement, so that nothing can hand it out again. */
static void hand_out(struct core *c, const struct message *m, const struct rec_message *base, slice consumer,
                     struct lease_out *out) {
    struct record r;
    settle_record(c, m, base, STATE_DONE, &r);
    struct history *h = scratch_history(c, slice_of(m->history.p, m->history.len));
    history_add(h, &(struct history_item){
                       .kind = HISTORY_ATTEMPT,
                       .fence = out->fence,
                       .at_ms = c->now.wall_ms,
                       .ended_ms = c->now.wall_ms,
                       .ended = ENDED_HANDED_OUT,
                       .attempt = out->attempt,
                       .consumer = consumer,
                   });
    r.settle.fence = out->fence;
    r.settle.ended = ENDED_HANDED_OUT;
    r.settle.attempts = out->attempt;
    r.settle.history = slice_of(h->p, h->len);
    out->settled = true;
    settle_emit(c, &r);
}

enum lease_verdict core_lease(struct core *c, struct core_now now, u32 message, const struct rec_message *base,
                              const struct lease_in *in, struct lease_out *out) {
    c->now = now;
    c->likely = message;
    const struct message *m = message_at(c, message);
    INVARIANT(2, m->place == PLACE_READY);
    INVARIANT(6, !is_behind(c, message));
    if (out_of_time(c, m)) {
        struct seen seen = {.at = {.message = message}, .message = base};
        core_cancel(c, now, &seen, SL("ttl"));
        return LEASE_TTL_OVER;
    }
    *out = (struct lease_out){
        .fence = c->fence + 1, .attempt = (u16)(m->attempts + 1), .delivery = delivery_of(m), .settled = false};
    if (queue_at(c, m->queue)->rules.semantics == SEMANTICS_AT_MOST_ONCE && !m->reconcile) {
        hand_out(c, m, base, in->consumer, out);
        return LEASE_OK;
    }
    if (!m->lease_paid && !room_for(c, lease_room(c))) {
        unplace_message(c, message);
        queue_at(c, m->queue)->announced = true; /* it only goes behind the others: no news */
        place_message(c, message, PLACE_READY, false);
        return LEASE_FULL;
    }
    struct record r;
    r.type = REC_LEASE;
    r.lease = (struct rec_lease){
        .ref = message_ref(c, m),
        .fence = out->fence,
        .at_ms = now.wall_ms,
        .lease_ms = in->lease_ms,
        .attempts = (u16)(m->attempts + (in->reserve_only ? 0 : 1)),
        .started = !in->reserve_only,
        .again = m->fence != 0,
        .lookup = m->reconcile,
        .consumer = in->consumer,
    };
    core_emit(c, &r);
    return LEASE_OK;
}

/* Given back with the word that nothing was done: the attempt does not count. */
static void give_back(struct record *r, const struct message *m) {
    if (m->started && r->ret.attempts > 0) r->ret.attempts--;
}

void core_unlease(struct core *c, struct core_now now, const struct ref *ref, u64 fence) {
    c->now = now;
    u32 no = core_message_find(c, ref->hash, ref->seq);
    struct queue *q = queue_at(c, ref->queue);
    if (no == MESSAGE_NONE && q->rules.semantics == SEMANTICS_AT_MOST_ONCE) COUNT(c, q, lost);
    if (no == MESSAGE_NONE) return;
    const struct message *m = message_at(c, no);
    if (m->fence != fence || m->place != PLACE_LEASED) return;
    struct record r = {.type = REC_RETURN, .ret = return_record(c, m, ENDED_UNDONE)};
    give_back(&r, m);
    if (!room_for(c, c->sink->cost(record_size_max(&r)))) return; /* then it runs out by itself */
    core_emit(c, &r);
    if (m->ttl_ms && m->attempts == 0) ttl_push(c, no);
}

/* ---- settle */

/* A lease's work counts as an attempt once it is settled, started or not, run out or not. */
static u16 attempts_spent(const struct message *m) {
    bool reservation = (m->place == PLACE_LEASED && !m->started) || m->ended == ENDED_LAPSED;
    return (u16)(m->attempts + (reservation ? 1 : 0));
}

/* The lease ran out and was taken for a crash. Whoever speaks up with its token has not crashed. */
static u16 crashes_after_all(const struct message *m) {
    return (u16)(m->crashes - (m->ended == ENDED_EXPIRED && m->crashes > 0 ? 1 : 0));
}

static enum settle_verdict settle_with(struct core *c, const struct settle_in *in, const struct seen *seen,
                                       enum state state, struct settle_out *out) {
    const struct message *m = message_at(c, seen->at.message);
    if (in->result.n > RESULT_BYTES_MAX) return SETTLE_TOO_LARGE;
    struct record r;
    settle_record(c, m, seen->message, state, &r);
    struct history *h = scratch_history(c, slice_of(m->history.p, m->history.len));
    enum ended ended = state == STATE_DONE ? ENDED_ACKED : ENDED_NACKED;
    r.settle.attempts = attempts_spent(m);
    r.settle.crashes = crashes_after_all(m);
    history_end(h, m->fence, c->now.wall_ms, (u8)ended, (u8)in->failure_class, in->reason);
    history_set_attempt(h, m->fence, r.settle.attempts);
    note_effect(h, in->effect_id);
    r.settle.ended = (u8)ended;
    r.settle.by_token = true;
    r.settle.reason = in->reason;
    r.settle.content_type = in->content_type;
    r.settle.result = in->result;
    r.settle.history = slice_of(h->p, h->len);
    u64 said = in->result.n + in->content_type.n + 2 * in->reason.n + in->effect_id.n;
    if (said > RESULT_ALWAYS_FITS && !room_for(c, said - RESULT_ALWAYS_FITS)) return SETTLE_FULL;
    settle_emit(c, &r);
    out->state = state;
    return SETTLE_OK;
}

static enum settle_verdict nack(struct core *c, const struct settle_in *in, const struct seen *seen,
                                struct settle_out *out) {
    const struct message *m = message_at(c, seen->at.message);
    if (in->failure_class == CLASS_REJECTED) return settle_with(c, in, seen, STATE_REJECTED, out);
    if (in->failure_class == CLASS_ABSENT && !m->lookup) return SETTLE_NOT_RECONCILE;
    struct record r = {.type = REC_RETURN, .ret = return_record(c, m, ENDED_NACKED)};
    if (!room_for(c, c->sink->cost(record_size_max(&r) + in->reason.n) + lease_room(c))) return SETTLE_FULL;
    r.ret.reason = in->reason;
    r.ret.attempts = attempts_spent(m);
    r.ret.crashes = crashes_after_all(m);
    i64 wait_ms;
    lease_end_decide(c, m, &r.ret, in->failure_class, in->delay_ms, &wait_ms);
    core_emit(c, &r);
    out->state = (enum state)r.ret.state;
    if (out->state == STATE_PENDING) out->due_ms = wait_ms;
    return SETTLE_OK;
}

static enum settle_verdict extend(struct core *c, const struct message *m, u32 lease_ms, struct settle_out *out) {
    out->state = STATE_LEASED;
    if (m->place == PLACE_HELD || m->place == PLACE_DEAD || m->place == PLACE_BEHIND) {
        out->state = message_state(m);
        return SETTLE_EXPIRED;
    }
    struct record r = {.type = REC_EXTEND};
    r.extend = (struct rec_extend){
        .ref = message_ref(c, m),
        .fence = m->fence,
        .at_ms = c->now.wall_ms,
        .lease_ms = lease_ms ? lease_ms : m->lease_ms,
        .crashes = crashes_after_all(m),
    };
    if (!room_for(c, c->sink->cost(record_size_max(&r)))) return SETTLE_FULL;
    core_emit(c, &r);
    return SETTLE_OK;
}

static enum settle_verdict start(struct core *c, const struct message *m, struct settle_out *out) {
    struct record r = {.type = REC_START};
    if (m->place != PLACE_LEASED) {
        /* Both records or none: what is refused must not have happened by half. */
        if (!room_for(c, 3 * c->sink->cost(record_size_max(&r)))) return SETTLE_FULL;
        enum settle_verdict v = extend(c, m, 0, out);
        if (v != SETTLE_OK) return v;
    }
    out->state = STATE_LEASED;
    if (m->started) return SETTLE_DUPLICATE;
    r.start = (struct rec_start){.ref = message_ref(c, m), .fence = m->fence, .attempts = (u16)(m->attempts + 1)};
    if (!room_for(c, c->sink->cost(record_size_max(&r)))) return SETTLE_FULL;
    core_emit(c, &r);
    return SETTLE_OK;
}

static enum settle_verdict step(struct core *c, const struct message *m, const struct settle_in *in,
                                struct settle_out *out) {
    out->state = message_state(m);
    struct history_item known;
    if (history_find_step(slice_of(m->history.p, m->history.len), in->name, &known)) {
        out->step_result = known.result;
        out->step_content_type = known.content_type;
        return SETTLE_DUPLICATE;
    }
    struct record r = {.type = REC_STEP};
    r.step = (struct rec_step){
        .ref = message_ref(c, m),
        .name = in->name,
        .content_type = in->content_type,
        .result = in->result,
    };
    u64 size = record_size_max(&r);
    if (m->history.len + size > HISTORY_BYTES_MAX) return SETTLE_TOO_LARGE;
    if (!room_for(c, c->sink->cost(size) + size)) return SETTLE_FULL; /* itself, and its part of the settlement */
    core_emit(c, &r);
    out->step_result = in->result;
    out->step_content_type = in->content_type;
    return SETTLE_OK;
}

static enum settle_verdict release(struct core *c, const struct message *m, struct settle_out *out) {
    struct record r = {.type = REC_RETURN, .ret = return_record(c, m, ENDED_RELEASED)};
    if (!room_for(c, c->sink->cost(record_size_max(&r)) + lease_room(c))) return SETTLE_FULL;
    r.ret.crashes = crashes_after_all(m);
    if (m->ended == ENDED_EXPIRED && r.ret.attempts > 0) r.ret.attempts--;
    give_back(&r, m);
    u32 no = (u32)entry_of(c, m)->at;
    core_emit(c, &r);
    if (m->ttl_ms && m->attempts == 0) ttl_push(c, no);
    out->state = STATE_PENDING;
    return SETTLE_OK;
}

static enum settle_verdict too_late(struct core *c, const struct seen *seen, struct settle_out *out) {
    core_cancel(c, c->now, seen, SL("ttl"));
    out->state = STATE_CANCELLED;
    return SETTLE_SETTLED;
}

static enum settle_verdict settle_live(struct core *c, const struct settle_in *in, const struct seen *seen,
                                       struct settle_out *out) {
    const struct message *m = message_at(c, seen->at.message);
    out->state = message_state(m);
    if (in->fence != m->fence) return SETTLE_FENCED;
    if (in->verb == VERB_NACK && m->ended == ENDED_NACKED) {
        if (m->due_ms > c->now.delay_ms) out->due_ms = m->due_ms - c->now.delay_ms;
        return SETTLE_DUPLICATE;
    }
    if (in->verb == VERB_RELEASE && m->ended == ENDED_RELEASED) return SETTLE_DUPLICATE;
    if (m->ended != ENDED_OPEN && m->ended != ENDED_EXPIRED && m->ended != ENDED_LAPSED)
        return SETTLE_SETTLED; /* the token died by its own call */
    switch (in->verb) {
    case VERB_ACK:
        return settle_with(c, in, seen, STATE_DONE, out);
    case VERB_NACK:
        return nack(c, in, seen, out);
    case VERB_EXTEND:
        return extend(c, m, in->lease_ms, out);
    case VERB_STEP:
        return step(c, m, in, out);
    case VERB_START:
        return out_of_time(c, m) ? too_late(c, seen, out) : start(c, m, out);
    case VERB_RELEASE:
        return release(c, m, out);
    }
    CHECK(false && "a verb");
}

/* at_most_once: the consumer says that it came to nothing. It will not come again; the loss is counted, and why is kept. */
static enum settle_verdict lose(struct core *c, const struct settle_in *in, const struct seen *seen) {
    struct record r = {.type = REC_SETTLE};
    struct history *h = scratch_history(c, seen->settle->history);
    history_end(h, in->fence, c->now.wall_ms, ENDED_NACKED, (u8)in->failure_class, in->reason);
    r.settle = *seen->settle;
    r.settle.carried = true;
    r.settle.from_pos = seen->at.pos;
    r.settle.by_token = true;
    r.settle.ended = ENDED_NACKED;
    r.settle.reason = in->reason;
    r.settle.history = slice_of(h->p, h->len);
    if (!room_for(c, c->sink->cost(record_size_max(&r)))) return SETTLE_FULL;
    core_emit(c, &r);
    if (in->failure_class != CLASS_REJECTED) COUNT(c, queue_at(c, r.settle.ref.queue), lost);
    return SETTLE_OK;
}

static enum settle_verdict settle_settled(struct core *c, const struct settle_in *in, const struct seen *seen,
                                          struct settle_out *out) {
    const struct rec_settle *s = seen->settle;
    out->state = (enum state)s->state;
    if (s->ended == ENDED_HANDED_OUT && in->fence == s->fence) {
        if (in->verb == VERB_ACK || in->verb == VERB_START || in->verb == VERB_EXTEND) return SETTLE_DUPLICATE;
        if (in->verb == VERB_NACK) return lose(c, in, seen);
    }
    bool same_verb =
        (in->verb == VERB_ACK && s->ended == ENDED_ACKED) || (in->verb == VERB_NACK && s->ended == ENDED_NACKED);
    if (s->by_token && in->fence == s->fence && same_verb) return SETTLE_DUPLICATE;
    return in->fence < s->fence ? SETTLE_FENCED : SETTLE_SETTLED;
}

/* An effect that was reported is recorded even when the ack is refused: that is how doubled effects are seen. */
static void record_refused_effect(struct core *c, const struct seen *seen, slice effect_id) {
    slice history = seen->settle ? seen->settle->history : SL("");
    if (seen->message) {
        const struct message *m = message_at(c, seen->at.message);
        history = slice_of(m->history.p, m->history.len);
    }
    u32 count;
    if (history_has_effect(history, effect_id, &count) || count >= HISTORY_EFFECTS_KEPT) return;
    struct record r = {.type = REC_EFFECT};
    if (seen->message) {
        r.effect = (struct rec_effect){.ref = seen->message->ref, .effect_id = effect_id};
        if (room_for(c, 2 * c->sink->cost(record_size_max(&r)))) core_emit(c, &r);
        return;
    }
    CHECK(seen->settle);
    struct history *h = scratch_history(c, history);
    note_effect(h, effect_id);
    r.type = REC_SETTLE;
    r.settle = *seen->settle;
    r.settle.carried = true;
    r.settle.from_pos = seen->at.pos;
    r.settle.history = slice_of(h->p, h->len);
    if (room_for(c, c->sink->cost(record_size_max(&r)))) core_emit(c, &r);
}

enum settle_verdict core_settle(struct core *c, struct core_now now, const struct settle_in *in,
                                const struct seen *seen, struct settle_out *out) {
    c->now = now;
    c->likely = seen->at.message;
    *out = (struct settle_out){0};
    enum settle_verdict v = seen->settle ? settle_settled(c, in, seen, out) : settle_live(c, in, seen, out);
    if (v != SETTLE_OK && in->verb == VERB_ACK && in->effect_id.n) record_refused_effect(c, seen, in->effect_id);
    return v;
}

/* ---- compaction */

bool core_points_at(const struct core *c, u64 hash, u64 pos) {
    struct core_cursor cursor = {0};
    struct found f;
    while (core_find(c, hash, &cursor, &f))
        if (f.pos == pos || f.arrivals_pos == pos) return true;
    return false;
}

u64 core_carry_arrivals(const struct core *c, const struct record *r, u64 pos) {
    u64 hash = r->type == REC_MESSAGE ? r->message.ref.hash : r->settle.ref.hash;
    struct core_cursor cursor = {0};
    struct found f;
    while (core_find(c, hash, &cursor, &f))
        if (f.pos == pos) return f.arrivals_pos;
    return 0;
}

/* Both: the entry it belongs to, ENTRY_NONE if it is not needed any more. */
static u32 carry_message(struct core *c, const struct rec_message *old, u64 pos) {
    u32 no = core_message_find(c, old->ref.hash, old->ref.seq);
    if (no == MESSAGE_NONE || message_at(c, no)->pos != pos) return ENTRY_NONE;
    const struct message *m = message_at(c, no);
    struct record r = {.type = REC_MESSAGE, .message = *old};
    r.message.carried = true;
    r.message.replaces = r.message.replaces_seq = 0;
    r.message.due_ms = m->due_ms;
    r.message.state = m->taken ? STATE_PENDING : (u8)message_state(m); /* taken: that follows from its head */
    r.message.traits = message_traits(m);
    r.message.ended = m->ended;
    r.message.started = m->started;
    r.message.generation = m->generation;
    r.message.lease_ms = m->lease_ms;
    r.message.attempts = m->attempts;
    r.message.failures = m->failures;
    r.message.unknowns = m->unknowns;
    r.message.crashes = m->crashes;
    r.message.fence = m->fence;
    r.message.history = slice_of(m->history.p, m->history.len);
    core_emit(c, &r);
    return m->entry;
}

static u32 carry_settle(struct core *c, const struct rec_settle *old, u64 pos) {
    struct core_cursor cursor = {0};
    struct found f;
    while (core_find(c, old->ref.hash, &cursor, &f)) {
        if (f.message != MESSAGE_NONE || f.pos != pos) continue;
        struct record r = {.type = REC_SETTLE, .settle = *old};
        r.settle.carried = true;
        r.settle.from_pos = pos;
        r.settle.erasing = false;
        if (!core_payload_kept(c, c->now, old)) r.settle.kept = (struct kept){0};
        core_emit(c, &r);
        return f.entry;
    }
    return ENTRY_NONE;
}

/* Its counts are in the queue's counters already: the copy adds none. */
static void write_arrivals_again(struct core *c, u32 entry, const struct rec_arrivals *old) {
    struct record r = {.type = REC_ARRIVALS, .arrivals = *old};
    c->likely_entry = entry;
    r.arrivals.fresh = r.arrivals.fresh_conflicts = 0;
    core_emit(c, &r);
}

static void carry_arrivals(struct core *c, const struct rec_arrivals *old, u64 pos) {
    struct core_cursor cursor = {0};
    struct found f;
    while (core_find(c, old->ref.hash, &cursor, &f)) {
        if (f.arrivals_pos != pos) continue;
        write_arrivals_again(c, f.entry, old);
        return;
    }
}

void core_carry(struct core *c, struct core_now now, const struct record *r, u64 pos,
                const struct rec_arrivals *arrivals) {
    c->now = now;
    u32 entry = ENTRY_NONE;
    if (r->type == REC_MESSAGE) entry = carry_message(c, &r->message, pos);
    if (r->type == REC_SETTLE) entry = carry_settle(c, &r->settle, pos);
    if (entry != ENTRY_NONE && arrivals) write_arrivals_again(c, entry, arrivals);
    if (r->type == REC_ARRIVALS) carry_arrivals(c, &r->arrivals, pos);
    if (r->type == REC_AUDIT) audit_carry(c, &r->audit, pos);
    if (r->type == REC_QUEUE && queue_at(c, r->queue.queue)->pos == pos) core_queue_write(c, r->queue.queue);
}
