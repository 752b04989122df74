/* Settling: what the holder of a token says of a message, and the record that is all a settled key leaves behind. The order of
 * the checks is CONTRACT.md's. */
#include "core/core_priv.h"

#define KEPT_RECORD_MAX (3u << 20) /* a settlement with a kept payload beyond this goes without it */

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
    r->about = message_no(c, m);
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

void cancel_record(struct core *c, const struct message *m, const struct rec_message *base, struct record *r,
                   slice *former) {
    struct rec_settle was, *s = &r->settle;
    settle_record(c, m, base, STATE_CANCELLED, r);
    if (m->place == PLACE_LEASED) s->ended = ENDED_CANCELLED;
    *former = SL("");
    if (base->former.n == 0) return;
    CHECK(former_decode(base->former, &was));
    s->restored = true;
    s->first_seen_ms = was.first_seen_ms;
    s->settled_ms = was.settled_ms; /* but its window counts from here: it may have been over before */
    s->state = was.state;
    s->attempts = was.attempts;
    s->failures = was.failures;
    s->unknowns = was.unknowns;
    s->crashes = was.crashes;
    s->request_id = was.request_id;
    s->reason = was.reason;
    s->content_type = was.content_type;
    s->result = was.result;
    s->http = was.http;
    *former = was.history;
}

void settle_emit(struct core *c, struct record *r) {
    struct kept *k = &r->settle.kept;
    if (k->is && (record_size(r) > KEPT_RECORD_MAX || !room_for(c, kept_bytes(k)))) *k = (struct kept){0};
    core_emit(c, r);
}

/* The message's history, copied where it can be amended before the record is written. */
struct history *scratch_history(struct core *c, slice from) {
    struct history *h = &c->scratch;
    h->len = (u32)from.n;
    history_reserve(h, h->len);
    if (from.n) memcpy(h->p, from.p, from.n);
    return h;
}

/* How many there are now; 0: it was none, or is not new. */
static u32 note_effect(struct history *h, slice effect_id) {
    u32 count;
    if (effect_id.n == 0 || history_has_effect(slice_of(h->p, h->len), effect_id, &count)) return 0;
    if (count >= HISTORY_EFFECTS_KEPT) return 0;
    history_add(h, &(struct history_item){.kind = HISTORY_EFFECT, .name = effect_id});
    return count + 1;
}

/* ---- cancel, by an operator or because its time to live is over */

/* A replay is cancelled: behind the history of the outcome that stands, what has happened since. Steps were for the next
 * attempt. An effect was an effect, and who tried to bring it about is seen too. */
static void history_since(struct history *h, slice since) {
    struct history_item item;
    for (u32 at = 0; history_next(since, &at, &item);) {
        if (item.kind == HISTORY_ATTEMPT) history_append(h, &item);
        if (item.kind == HISTORY_EFFECT) note_effect(h, item.name);
        if (item.kind == HISTORY_DECISION) history_add(h, &item);
    }
}

enum cancel_verdict core_cancel(struct core *c, struct core_now now, const struct seen *seen, slice reason,
                                const struct audit_in *audit) {
    c->now = now;
    if (seen->settle) return CANCEL_SETTLED;
    const struct message *m = message_at(c, seen->at.message);
    slice own = slice_of(m->history.p, m->history.len), former;
    u64 said = reason.n;
    struct record r;
    cancel_record(c, m, seen->message, &r, &former);
    struct history *h = scratch_history(c, r.settle.restored ? former : own);
    if (r.settle.restored) {
        struct history_item item = {.kind = HISTORY_DECISION,
                                    .at_ms = now.wall_ms,
                                    .what = DECISION_CANCELLED,
                                    .consumer = audit ? audit->who : SL(""),
                                    .reason = audit ? audit->why : reason};
        history_since(h, own);
        history_add(h, &item);
        said = history_item_size(&item);
    } else {
        r.settle.reason = reason;
    }
    struct history_item over = {.fence = m->fence, .ended_ms = now.wall_ms, .ended = ENDED_CANCELLED};
    if (m->place == PLACE_LEASED) history_end(h, &over);
    r.settle.history = slice_of(h->p, h->len);
    u64 beyond = said > RESULT_ALWAYS_FITS ? said : 0;
    if (!audit_deed(c, audit, m->queue, &r.settle.ref, r.settle.key, beyond)) return CANCEL_FULL;
    settle_emit(c, &r);
    return CANCEL_OK;
}

/* ---- by token */

/* Its time to live ended before the work was started. */
bool out_of_time(const struct core *c, const struct message *m) {
    return m->ttl_ms && m->ttl_ms <= c->now.delay_ms && m->attempts == 0;
}

/* Given back with the word that nothing was done: the attempt does not count. */
void give_back(struct record *r, const struct message *m) {
    if (m->started && r->ret.attempts > 0) r->ret.attempts--;
}

/* A lease's work counts as an attempt once it is settled, started or not, run out or not. */
static u16 attempts_spent(const struct message *m) {
    bool reservation = (m->place == PLACE_LEASED && !m->started) || m->ended == ENDED_LAPSED;
    return (u16)(m->attempts + (reservation ? 1 : 0));
}

/* The lease ran out, and that was counted: as a look-up of the broker's without an answer, else as a crash. */
static bool counted_as_lookup(const struct message *m) {
    return m->ended == ENDED_EXPIRED && m->lookup && m->lookups > 0;
}

/* Whoever speaks up with its token has not crashed. */
static u16 crashes_after_all(const struct message *m) {
    bool counted = m->ended == ENDED_EXPIRED && !counted_as_lookup(m) && m->crashes > 0;
    return (u16)(m->crashes - (counted ? 1 : 0));
}

static void speak_up(struct rec_return *r, const struct message *m) {
    r->crashes = crashes_after_all(m);
    if (counted_as_lookup(m)) r->lookups--;
}

static u64 above(u64 bytes, u64 limit) {
    return bytes > limit ? bytes - limit : 0;
}

static enum settle_verdict settle_with(struct core *c, const struct settle_in *in, const struct seen *seen,
                                       enum state state, struct settle_out *out) {
    const struct message *m = message_at(c, seen->at.message);
    if (in->result.n > RESULT_BYTES_MAX || in->http.n > HTTP_HEAD_BYTES_MAX) return SETTLE_TOO_LARGE;
    struct record r;
    settle_record(c, m, seen->message, state, &r);
    struct history *h = scratch_history(c, slice_of(m->history.p, m->history.len));
    enum ended ended = state == STATE_DONE ? ENDED_ACKED : ENDED_NACKED;
    r.settle.attempts = attempts_spent(m);
    r.settle.crashes = crashes_after_all(m);
    history_end(h, &(struct history_item){.fence = m->fence,
                                          .ended_ms = c->now.wall_ms,
                                          .ended = (u8)ended,
                                          .failure_class = (u8)in->failure_class,
                                          .attempt = r.settle.attempts,
                                          .lookup = m->lookup,
                                          .reason = in->reason});
    u32 effects = note_effect(h, in->effect_id);
    r.settle.ended = (u8)ended;
    r.settle.by_token = true;
    r.settle.reason = in->reason;
    r.settle.content_type = in->content_type;
    r.settle.result = in->result;
    r.settle.http = in->http;
    r.settle.history = slice_of(h->p, h->len);
    u64 beyond = above(in->result.n + in->http.n, RESULT_ALWAYS_FITS) +
                 above(in->content_type.n + 2 * in->reason.n + in->effect_id.n, WORDS_ALWAYS_FIT);
    if (beyond && !room_for(c, beyond)) return SETTLE_FULL;
    settle_emit(c, &r);
    out->state = state;
    out->effects = effects;
    return SETTLE_OK;
}

static enum settle_verdict nack(struct core *c, const struct settle_in *in, const struct seen *seen,
                                struct settle_out *out) {
    const struct message *m = message_at(c, seen->at.message);
    if (in->failure_class == CLASS_REJECTED) return settle_with(c, in, seen, STATE_REJECTED, out);
    if (in->failure_class == CLASS_ABSENT && !m->lookup) return SETTLE_NOT_RECONCILE;
    struct record r = {.type = REC_RETURN, .about = seen->at.message, .ret = return_record(c, m, ENDED_NACKED)};
    char brief[BRIEF_REASON_BYTES];
    r.ret.reason = brief_reason(c, in->reason, brief);
    r.ret.attempts = attempts_spent(m);
    speak_up(&r.ret, m);
    i64 wait_ms;
    lease_end_decide(c, m, &r.ret, in, &wait_ms);
    /* Itself, the reason once more in the history, and the next lease. */
    if (!room_for(c, c->sink->cost(record_size(&r)) + history_room(r.ret.reason.n) + lease_room(c))) return SETTLE_FULL;
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
    if (lease_ms == 0) lease_ms = m->lease_ms;
    if (m->place == PLACE_LEASED && lease_ms == m->lease_ms) {
        core_derive(c, &(struct derived){.kind = DERIVE_RENEWED, .message = message_no(c, m)});
        return SETTLE_OK;
    }
    struct record r = {.type = REC_EXTEND, .about = message_no(c, m)};
    r.extend = (struct rec_extend){
        .ref = message_ref(c, m),
        .fence = m->fence,
        .at_ms = c->now.wall_ms,
        .lease_ms = lease_ms,
        .crashes = crashes_after_all(m),
    };
    if (!room_for(c, c->sink->cost(record_size(&r)))) return SETTLE_FULL;
    core_emit(c, &r);
    return SETTLE_OK;
}

static enum settle_verdict start(struct core *c, const struct message *m, struct settle_out *out) {
    struct record r = {.type = REC_START, .about = message_no(c, m)};
    if (m->place != PLACE_LEASED) {
        /* Both records or none: what is refused must not have happened by half. */
        if (!room_for(c, 3 * c->sink->cost(record_size(&r)))) return SETTLE_FULL;
        enum settle_verdict v = extend(c, m, 0, out);
        if (v != SETTLE_OK) return v;
    }
    out->state = STATE_LEASED;
    if (m->started) return SETTLE_DUPLICATE;
    r.start = (struct rec_start){.ref = message_ref(c, m), .fence = m->fence, .attempts = (u16)(m->attempts + 1)};
    core_emit(c, &r); /* into the room its lease has paid for */
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
    struct record r = {.type = REC_STEP, .about = message_no(c, m)};
    r.step = (struct rec_step){
        .ref = message_ref(c, m),
        .name = in->name,
        .content_type = in->content_type,
        .result = in->result,
    };
    u64 kept = history_item_size(&(struct history_item){
        .kind = HISTORY_STEP, .name = in->name, .content_type = in->content_type, .result = in->result});
    if (m->history.len + kept > HISTORY_BYTES_MAX) return SETTLE_TOO_LARGE;
    if (core_memory_short(c) || !room_for(c, c->sink->cost(record_size(&r)) + history_room(kept))) return SETTLE_FULL;
    core_emit(c, &r);
    out->step_result = in->result;
    out->step_content_type = in->content_type;
    return SETTLE_OK;
}

static enum settle_verdict release(struct core *c, const struct message *m, i64 delay_ms, struct settle_out *out) {
    struct record r = {.type = REC_RETURN, .about = message_no(c, m), .ret = return_record(c, m, ENDED_RELEASED)};
    if (!room_for(c, c->sink->cost(record_size(&r)) + lease_room(c))) return SETTLE_FULL;
    speak_up(&r.ret, m);
    if (ended_unsaid(m->ended) && r.ret.attempts > 0) r.ret.attempts--;
    give_back(&r, m);
    if (delay_ms > 0) r.ret.due_ms = c->now.delay_ms + delay_ms;
    core_emit(c, &r);
    out->state = STATE_PENDING;
    out->due_ms = delay_ms;
    return SETTLE_OK;
}

/* Nothing was done under it, and nothing is to be done before a person has decided. */
static enum settle_verdict hold(struct core *c, const struct message *m, slice reason, struct settle_out *out) {
    CHECK(!m->started && !ended_unsaid(m->ended));
    struct record r = {.type = REC_RETURN, .about = message_no(c, m), .ret = return_record(c, m, ENDED_RELEASED)};
    r.ret.state = STATE_HELD;
    r.ret.traits = lease_end_traits(c, m, STATE_HELD, r.ret.traits, &r.ret.taken);
    char brief[BRIEF_REASON_BYTES];
    r.ret.reason = brief_reason(c, reason, brief);
    u64 size = record_size(&r);
    if (!room_for(c, c->sink->cost(size) + history_room(size))) return SETTLE_FULL;
    core_emit(c, &r);
    out->state = STATE_HELD;
    return SETTLE_OK;
}

static enum settle_verdict too_late(struct core *c, const struct seen *seen, struct settle_out *out) {
    core_cancel(c, c->now, seen, SL("ttl"), NULL);
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
    if (m->ended == ENDED_RELEASED && in->verb == (m->place == PLACE_HELD ? VERB_HOLD : VERB_RELEASE))
        return SETTLE_DUPLICATE;
    if (m->ended != ENDED_OPEN && !ended_unsaid(m->ended) && m->ended != ENDED_LAPSED)
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
        return release(c, m, in->delay_ms, out);
    case VERB_HOLD:
        return hold(c, m, in->reason, out);
    }
    CHECK(false && "a verb");
}

/* at_most_once: the consumer says that it came to nothing. It will not come again; the loss is counted, and why is kept. */
static enum settle_verdict lose(struct core *c, const struct settle_in *in, const struct seen *seen) {
    struct record r = {.type = REC_SETTLE};
    struct history *h = scratch_history(c, seen->settle->history);
    slice reason = seen->settle->erased ? SL("") : in->reason; /* what was erased gets no new words */
    history_end(h, &(struct history_item){.fence = in->fence,
                                          .ended_ms = c->now.wall_ms,
                                          .ended = ENDED_NACKED,
                                          .failure_class = (u8)in->failure_class,
                                          .reason = reason});
    r.settle = *seen->settle;
    r.settle.carried = true;
    r.settle.from_pos = seen->at.pos;
    r.settle.by_token = true;
    r.settle.ended = ENDED_NACKED;
    if (!r.settle.erased) r.settle.reason = reason;
    r.settle.history = slice_of(h->p, h->len);
    if (!room_for(c, c->sink->cost(record_size(&r)))) return SETTLE_FULL;
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

bool core_settled_before(const struct seen *seen, enum verb verb, u64 fence, struct rec_settle *was) {
    if (seen->settle ? !seen->settle->restored : seen->message->former.n == 0) return false;
    if (seen->settle)
        *was = *seen->settle;
    else
        CHECK(former_decode(seen->message->former, was));
    enum verb made_it = was->state == STATE_DONE ? VERB_ACK : VERB_NACK;
    enum ended ended = was->state == STATE_DONE ? ENDED_ACKED : ENDED_NACKED;
    struct history_item item;
    for (u32 at = 0; history_next(was->history, &at, &item);)
        if (item.kind == HISTORY_ATTEMPT && item.fence == fence && item.ended == ended)
            return verb == made_it && (ended == ENDED_ACKED || item.failure_class == CLASS_REJECTED);
    return false;
}

/* An effect that was reported is recorded even when the ack is refused: that is how doubled effects are seen. Except on what
 * was erased: its effect ids went, and stay away. */
static u32 record_refused_effect(struct core *c, const struct seen *seen, slice effect_id) {
    if (seen->settle && seen->settle->erased) return 0;
    slice history = seen->settle ? seen->settle->history : SL("");
    if (seen->message) {
        const struct message *m = message_at(c, seen->at.message);
        history = slice_of(m->history.p, m->history.len);
    }
    u32 count;
    if (history_has_effect(history, effect_id, &count) || count >= HISTORY_EFFECTS_KEPT) return 0;
    struct record r = {.type = REC_EFFECT, .about = seen->at.message};
    if (seen->message) {
        r.effect = (struct rec_effect){.ref = seen->message->ref, .effect_id = effect_id};
        u64 size = record_size(&r);
        if (core_memory_short(c) || !room_for(c, c->sink->cost(size) + history_room(size))) return 0;
        core_emit(c, &r);
        return count + 1;
    }
    CHECK(seen->settle);
    struct history *h = scratch_history(c, history);
    note_effect(h, effect_id);
    r.type = REC_SETTLE;
    r.settle = *seen->settle;
    r.settle.carried = true;
    r.settle.from_pos = seen->at.pos;
    r.settle.history = slice_of(h->p, h->len);
    if (!room_for(c, c->sink->cost(record_size(&r)))) return 0;
    core_emit(c, &r);
    return count + 1;
}

enum settle_verdict core_settle(struct core *c, struct core_now now, const struct settle_in *in,
                                const struct seen *seen, struct settle_out *out) {
    c->now = now;
    *out = (struct settle_out){0};
    enum settle_verdict v = seen->settle ? settle_settled(c, in, seen, out) : settle_live(c, in, seen, out);
    if (v != SETTLE_OK && in->verb == VERB_ACK && in->effect_id.n)
        out->effects = record_refused_effect(c, seen, in->effect_id);
    return v;
}
