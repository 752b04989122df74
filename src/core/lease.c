/* Handing out: a message that is ready goes to a consumer under a fence, or comes back because its reply never left. */
#include "core/core_priv.h"

u32 core_next_ready(const struct core *c, u16 queue) {
    const struct queue *q = queue_at(c, queue);
    if (q->paused) return MESSAGE_NONE;
    u32 lookup = q->rules.lookup_attempts ? MESSAGE_NONE : q->places[PLACE_LOOKUP].head;
    return lookup != MESSAGE_NONE ? lookup : q->places[PLACE_READY].head;
}

u32 core_next_lookup(const struct core *c, u16 queue) {
    const struct queue *q = queue_at(c, queue);
    return q->paused ? MESSAGE_NONE : q->places[PLACE_LOOKUP].head;
}

static u32 longer_ready(const struct core *c, u32 a, u32 b) {
    if (a == MESSAGE_NONE || b == MESSAGE_NONE) return a == MESSAGE_NONE ? b : a;
    return message_at(c, b)->when_ms < message_at(c, a)->when_ms ? b : a;
}

u32 longest_ready(const struct core *c, const struct queue *q) {
    u32 longest = longer_ready(c, q->places[PLACE_READY].head, q->places[PLACE_LOOKUP].head);
    return longer_ready(c, longest, q->waited.count ? q->waited.at[0].message : MESSAGE_NONE);
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
    const struct message *m = message_at(c, message);
    INVARIANT(2, is_ready(m->place));
    INVARIANT(6, !is_behind(c, message));
    if (out_of_time(c, m)) {
        struct seen seen = {.at = {.message = message}, .message = base};
        core_cancel(c, now, &seen, SL("ttl"), NULL);
        return LEASE_TTL_OVER;
    }
    *out = (struct lease_out){
        .fence = c->fence + 1, .attempt = (u16)(m->attempts + 1), .delivery = delivery_of(m), .settled = false};
    if (queue_at(c, m->queue)->rules.semantics == SEMANTICS_AT_MOST_ONCE && !m->reconcile) {
        hand_out(c, m, base, in->consumer, out);
        return LEASE_OK;
    }
    if (!m->lease_paid && !room_for(c, lease_room(c))) {
        core_derive(c, &(struct derived){.kind = DERIVE_PASSED_OVER, .message = message});
        return LEASE_FULL;
    }
    struct record r;
    r.type = REC_LEASE;
    r.about = message;
    r.lease = (struct rec_lease){
        .ref = message_ref(c, m),
        .fence = out->fence,
        .at_ms = now.wall_ms,
        .lease_ms = in->lease_ms,
        .attempts = (u16)(m->attempts + (in->reserve_only || m->attempts == UINT16_MAX ? 0 : 1)),
        .started = !in->reserve_only,
        .again = m->fence != 0,
        .lookup = m->reconcile,
        .consumer = brief_name(c, in->consumer),
    };
    core_emit(c, &r);
    return LEASE_OK;
}

void core_unlease(struct core *c, struct core_now now, const struct ref *ref, u64 fence) {
    c->now = now;
    u32 no = core_message_find(c, ref->hash, ref->seq);
    const struct queue *q = queue_at(c, ref->queue);
    if (no == MESSAGE_NONE && q->rules.semantics == SEMANTICS_AT_MOST_ONCE) COUNT(c, q, lost);
    if (no == MESSAGE_NONE) return;
    const struct message *m = message_at(c, no);
    if (m->fence != fence || m->place != PLACE_LEASED) return;
    struct record r = {.type = REC_RETURN, .about = no, .ret = return_record(c, m, ENDED_UNDONE)};
    give_back(&r, m);
    if (!room_for(c, c->sink->cost(record_size(&r)))) return; /* then it runs out by itself */
    core_emit(c, &r);
}
