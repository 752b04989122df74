/* Sending: admitted, known already, in conflict with what is known, or refused by the schema. */
#include "core/core_priv.h"

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
    u32 head = longest_ready(c, q);
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

static bool under_pressure(struct core *c, const struct queue *q, size_t payload) {
    bool pressed = queue_pressed(c, q, c->now.run_ms, payload);
    if (pressed != q->pressed)
        core_derive(c, &(struct derived){.kind = DERIVE_PRESSURE, .queue = q->id, .yes = pressed});
    return pressed;
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
    r->about = MESSAGE_NONE;
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

static enum send_verdict admit(struct core *c, const struct record *r, bool metered, struct send_out *out) {
    const struct rec_message *m = &r->message;
    const struct queue *q = queue_at(c, m->ref.queue);
    enum account_verdict account = metered ? account_has_room(c, q, record_size(r) + RECORD_HEAD_BYTES) : ACCOUNT_OK;
    if (account != ACCOUNT_OK) return account == ACCOUNT_PENDING ? SEND_OVER_PENDING : SEND_OVER_BYTES;
    if (under_pressure(c, q, m->payload.n)) {
        COUNT(c, q, backpressured);
        return SEND_BACKPRESSURE;
    }
    u64 room = c->sink->cost(record_size(r)) + admission_room(c, m->key.n, m->request_id.n);
    if (core_memory_short(c) || !room_for(c, room)) return SEND_FULL;
    core_emit(c, r);
    out->ref = m->ref;
    out->first_seen_ms = m->first_seen_ms;
    out->duplicates = 0;
    out->arrival = ARRIVAL_NEW;
    out->again = false;
    out->age_ms = 0;
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
    const struct queue *q = queue_at(c, in->queue);
    out->ref = seen->settle ? seen->settle->ref : seen->message->ref;
    out->first_seen_ms = seen->settle ? seen->settle->first_seen_ms : seen->message->first_seen_ms;
    enum arrival_kind kind = conflict ? ARRIVAL_CONFLICT : arrival_kind(c, seen);
    out->arrival = kind;
    out->again = false;
    out->age_ms = seen->settle ? c->now.run_ms - seen->settle->settled_run_ms : c->now.wall_ms - out->first_seen_ms;
    core_derive(c, &(struct derived){.kind = DERIVE_ARRIVAL,
                                     .entry = seen->at.entry,
                                     .known = seen->arrivals,
                                     .arrival = kind,
                                     .request_id = in->request_id});
    out->duplicates = tally_find(c, seen->at.entry)->duplicates;
    if (!conflict) {
        if (seen->settle) window_learn(c, q, c->now.run_ms - seen->settle->settled_run_ms);
        return SEND_DUPLICATE;
    }
    return q->rules.on_conflict != ON_CONFLICT_REJECT && core_other_key(c, in, out) ? SEND_ELSEWHERE : SEND_CONFLICT;
}

enum send_verdict core_send(struct core *c, struct core_now now, const struct send_in *in, const struct seen *seen,
                            struct send_out *out) {
    c->now = now;
    const struct queue *q = queue_at(c, in->queue);
    bool repeats = q->rules.semantics == SEMANTICS_AT_LEAST_ONCE || in->key.n == 0;
    bool gone = !repeats && seen && seen->settle && past_window(c, seen->settle);
    if (!repeats && seen && !gone) return send_again(c, in, seen, out);

    struct record r;
    message_record(c, in, &r);
    if (repeats) r.message.ref.hash = repeatable_hash(c, in);
    if (!gone) return admit(c, &r, !in->unmetered, out);
    r.message.replaces = seen->at.pos;
    r.message.replaces_seq = seen->settle->ref.seq;
    enum send_verdict v = admit(c, &r, !in->unmetered, out);
    if (seen->settle->fingerprint != in->fingerprint) return v;
    /* It came back too late for its window: the next one should not. */
    i64 age_ms = now.run_ms - seen->settle->settled_run_ms;
    window_learn(c, q, age_ms);
    out->again = v == SEND_ACCEPTED;
    out->age_ms = age_ms;
    return v;
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
    enum send_verdict v = admit(c, &r, !in->unmetered, out);
    return v == SEND_ACCEPTED && hold ? SEND_HELD : v;
}

/* ---- refused copies */

/* Keys have no control characters: none of them meets this. */
static u64 refused_hash(const struct core *c, const struct send_in *in) {
    char text[9 + KEY_BYTES_MAX] = {1};
    put_u64(text + 1, in->fingerprint);
    if (in->key.n) memcpy(text + 9, in->key.p, in->key.n);
    return core_hash(c, in->queue, slice_of(text, 9 + in->key.n));
}

static bool refused_before(const struct core *c, const struct queue *q, u64 hash, struct ref *out) {
    struct index_cursor cursor = {0};
    for (u32 no; (no = index_find(&c->keys, hash, &cursor)) != ENTRY_NONE;) {
        const struct entry *e = index_entry(&c->keys, no);
        *out = (struct ref){.hash = hash, .queue = e->queue};
        if (e->kind == ENTRY_LIVE) return out->seq = message_at(c, (u32)e->at)->seq, true;
        if (!entry_forgotten(c, e) && window_left_ms(q, (i64)e->settled_run_ms, c->now.run_ms) > 0) return true;
    }
    return false;
}

enum refuse_verdict core_refuse(struct core *c, struct core_now now, const struct send_in *in, slice reason,
                                struct ref *out) {
    c->now = now;
    const struct queue *q = queue_at(c, in->queue);
    struct record r;
    struct history *h = scratch_history(c, SL(""));
    history_add(h, &(struct history_item){
                       .kind = HISTORY_DECISION, .at_ms = now.wall_ms, .what = DECISION_REFUSED, .reason = reason});
    message_record(c, in, &r);
    r.message.ref.hash = refused_hash(c, in);
    r.message.due_ms = r.message.ttl_ms = 0;
    r.message.refused = true;
    r.message.state = STATE_DEAD;
    r.message.history = slice_of(h->p, h->len);
    bool known = refused_before(c, q, r.message.ref.hash, out);
    bool fits = !core_memory_short(c) && account_has_room(c, q, record_size(&r)) != ACCOUNT_BYTES &&
                q->refused_copies < q->rules.refused_kept &&
                q->refused_bytes + in->payload.n <= q->rules.refused_bytes &&
                room_for(c, c->sink->cost(record_size(&r)) + admission_room(c, h->len, in->request_id.n));
    if (known || !fits) {
        COUNT(c, q, refused);
        return known ? REFUSE_KNOWN : REFUSE_BEYOND;
    }
    core_emit(c, &r);
    *out = r.message.ref;
    return REFUSE_KEPT;
}
