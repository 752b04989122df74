/* Decisions: what a request makes of the state. Each reads the state, writes at most a few records, and applies them;
 * values that depend on policy, chance or the clock go into the record, never into apply. */
#include "core/core_priv.h"

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

static enum send_verdict send_again(struct core *c, const struct send_in *in, const struct seen *seen,
                                    struct send_out *out) {
    u64 fingerprint = seen->settle ? seen->settle->fingerprint : seen->message->fingerprint;
    bool conflict = fingerprint != in->fingerprint;
    out->ref = seen->settle ? seen->settle->ref : seen->message->ref;
    out->first_seen_ms = seen->settle ? seen->settle->first_seen_ms : seen->message->first_seen_ms;
    enum arrival_kind kind = conflict ? ARRIVAL_CONFLICT : arrival_kind(c, seen);
    tally_note(c, seen->at.entry, seen->arrivals, kind, in->request_id);
    struct tally *t = tally_find(c, seen->at.entry);
    if (conflict) tally_write(c, t);
    out->duplicates = t->duplicates;
    return conflict ? SEND_CONFLICT : SEND_DUPLICATE;
}

enum send_verdict core_send(struct core *c, struct core_now now, const struct send_in *in, const struct seen *seen,
                            struct send_out *out) {
    c->now = now;
    bool gone = seen && seen->settle && past_window(c, seen->settle);
    if (seen && !gone) return send_again(c, in, seen, out);

    struct record r = {.type = REC_MESSAGE};
    r.message = (struct rec_message){
        .ref = {.hash = in->hash, .seq = c->next_seq, .queue = in->queue},
        .fingerprint = in->fingerprint,
        .first_seen_ms = now.wall_ms,
        .due_ms = in->delay_ms > 0 ? now.delay_ms + in->delay_ms : 0,
        .ttl_ms = in->ttl_ms > 0 ? now.delay_ms + in->ttl_ms : 0,
        .replaces = gone ? seen->at.pos : 0,
        .replaces_seq = gone ? seen->settle->ref.seq : 0,
        .key = in->key,
        .group = in->group,
        .content_type = in->content_type,
        .attrs = in->attrs,
        .traceparent = in->traceparent,
        .tracestate = in->tracestate,
        .request_id = in->request_id,
        .payload = in->payload,
    };
    if (!room_for(c, c->sink->cost(record_size_max(&r)) + admission_room(c, in->key.n, in->request_id.n)))
        return SEND_FULL;
    core_emit(c, &r);
    *out = (struct send_out){.ref = r.message.ref, .first_seen_ms = now.wall_ms};
    return SEND_ACCEPTED;
}

/* ---- settle records */

/* All that will be kept of an unsettled message, as it stands. History is the core's scratch copy. */
static struct record settle_record(struct core *c, const struct message *m, const struct rec_message *base,
                                   enum state state) {
    struct record r = {.type = REC_SETTLE};
    r.settle = (struct rec_settle){
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
    CHECK(base->ref.seq == m->seq);
    return r;
}

/* The message's history, copied where it can be amended before the record is written. */
static struct history *scratch_history(struct core *c, slice from) {
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
    struct record r = settle_record(c, m, seen->message, STATE_CANCELLED);
    struct history *h = scratch_history(c, slice_of(m->history.p, m->history.len));
    if (m->place == PLACE_LEASED) {
        history_end(h, m->fence, now.wall_ms, ENDED_CANCELLED, CLASS_NONE, SL(""));
        r.settle.ended = ENDED_CANCELLED;
    }
    r.settle.reason = reason;
    r.settle.history = slice_of(h->p, h->len);
    if (reason.n > RESULT_ALWAYS_FITS && !room_for(c, reason.n)) return CANCEL_FULL;
    core_emit(c, &r);
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
    if (!m->lease_paid && !room_for(c, lease_room(c))) {
        unplace_message(c, message);
        queue_at(c, m->queue)->announced = true; /* it only goes behind the others: no news */
        place_message(c, message, PLACE_READY, false);
        return LEASE_FULL;
    }
    struct record r = {.type = REC_LEASE};
    r.lease = (struct rec_lease){
        .ref = message_ref(c, m),
        .fence = c->fence + 1,
        .at_ms = now.wall_ms,
        .lease_ms = in->lease_ms,
        .attempts = (u16)(m->attempts + (in->reserve_only ? 0 : 1)),
        .started = !in->reserve_only,
        .again = m->fence != 0,
        .consumer = in->consumer,
    };
    *out = (struct lease_out){.fence = r.lease.fence, .attempt = (u16)(m->attempts + 1), .retry = m->attempts > 0};
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
    if (no == MESSAGE_NONE) return;
    const struct message *m = message_at(c, no);
    if (m->fence != fence || m->place != PLACE_LEASED) return;
    struct record r = return_record(c, m, ENDED_UNDONE);
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
    struct record r = settle_record(c, m, seen->message, state);
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
    core_emit(c, &r);
    out->state = state;
    return SETTLE_OK;
}

static enum settle_verdict nack(struct core *c, const struct settle_in *in, const struct seen *seen,
                                struct settle_out *out) {
    if (in->failure_class == CLASS_REJECTED) return settle_with(c, in, seen, STATE_REJECTED, out);
    if (in->failure_class == CLASS_ABSENT) return SETTLE_NOT_RECONCILE;
    const struct message *m = message_at(c, seen->at.message);
    const struct rules *rules = &queue_at(c, m->queue)->rules;
    struct record r = return_record(c, m, ENDED_NACKED);
    if (!room_for(c, c->sink->cost(record_size_max(&r) + in->reason.n) + lease_room(c))) return SETTLE_FULL;
    r.ret.failure_class = (u8)in->failure_class;
    r.ret.reason = in->reason;
    r.ret.attempts = attempts_spent(m);
    r.ret.crashes = crashes_after_all(m);
    u16 *count = in->failure_class == CLASS_UNKNOWN ? &r.ret.unknowns : &r.ret.failures;
    u16 limit = in->failure_class == CLASS_UNKNOWN ? rules->unknown_attempts : rules->transient_attempts;
    ++*count;
    if (in->failure_class == CLASS_POISON || *count >= limit) {
        r.ret.state = STATE_DEAD;
    } else {
        out->due_ms = rules_backoff_ms(rules, *count, in->delay_ms, &c->rng);
        r.ret.due_ms = c->now.delay_ms + out->due_ms;
    }
    core_emit(c, &r);
    out->state = (enum state)r.ret.state;
    return SETTLE_OK;
}

static enum settle_verdict extend(struct core *c, const struct message *m, u32 lease_ms, struct settle_out *out) {
    out->state = STATE_LEASED;
    if (m->place == PLACE_HELD || m->place == PLACE_DEAD) {
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
    struct record r = return_record(c, m, ENDED_RELEASED);
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
    CHECK(!"a verb");
}

static enum settle_verdict settle_settled(const struct settle_in *in, const struct rec_settle *s,
                                          struct settle_out *out) {
    out->state = (enum state)s->state;
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
    enum settle_verdict v = seen->settle ? settle_settled(in, seen->settle, out) : settle_live(c, in, seen, out);
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
    r.message.state = (u8)message_state(m);
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
    if (r->type == REC_QUEUE && queue_at(c, r->queue.queue)->pos == pos) core_queue_write(c, r->queue.queue);
}
