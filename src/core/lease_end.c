/* What a lease's end leads to.
 *
 * Three ends leave the outcome unknown: a nack that says so, a started lease that ran out or was revoked, and any end of a
 * look-up that brought no answer. What follows an unknown outcome is the queue's on_unknown:
 *
 *   retry       handed out again to be done, up to the allowed number, then dead
 *   reconcile   handed out again to be looked up; so it stays, counted like unknowns and crashes, until an ack or `absent`
 *               answers, or the numbers are used up: then held
 *   hold        held at once
 *
 * A message that is being looked up stays on that path whatever the rules become meanwhile: nothing is done again that may
 * have been done (P5). */
#include "core/core_priv.h"

struct rec_return return_record(const struct core *c, const struct message *m, enum ended ended) {
    return (struct rec_return){
        .ref = message_ref(c, m),
        .fence = m->fence,
        .at_ms = c->now.wall_ms,
        .ended = (u8)ended,
        .state = STATE_PENDING,
        .traits = (u8)((m->doubt ? TRAIT_DOUBT : 0) | (m->lookup ? TRAIT_RECONCILE : 0)),
        .attempts = m->attempts,
        .failures = m->failures,
        .unknowns = m->unknowns,
        .crashes = m->crashes,
    };
}

u8 lease_end_traits(const struct core *c, const struct message *m, enum state state, u8 traits, u32 *taken) {
    *taken = 0;
    if (m->group == ENTRY_NONE) return traits;
    u8 on_dead = queue_at(c, m->queue)->rules.on_dead;
    if (on_dead == ON_DEAD_SKIP || m->parked) return traits | TRAIT_PARKED;
    if (on_dead != ON_DEAD_GROUP || state != STATE_DEAD || !is_group_head(c, message_no(c, m))) return traits;
    *taken = group_waiting(c, message_no(c, m));
    return traits | TRAIT_TAKES;
}

/* One more of its kind; true if that was the last one allowed. */
static bool count_one(const struct rules *rules, struct rec_return *r, bool as_unknown, u16 *count) {
    bool crash = r->ended == ENDED_EXPIRED;
    u16 *counter = crash ? &r->crashes : as_unknown ? &r->unknowns : &r->failures;
    u16 limit = crash ? rules->crash_attempts : as_unknown ? rules->unknown_attempts : rules->transient_attempts;
    if (*counter < UINT16_MAX) ++*counter;
    *count = *counter;
    return *counter >= limit;
}

void lease_end_decide(struct core *c, const struct message *m, struct rec_return *r, enum failure_class failure_class,
                      i64 floor_ms, i64 *wait_ms) {
    const struct rules *rules = &queue_at(c, m->queue)->rules;
    bool unsaid = ended_unsaid(r->ended), unknown = failure_class == CLASS_UNKNOWN;
    bool lookup = m->lookup || (unknown && rules->on_unknown == ON_UNKNOWN_RECONCILE);
    u16 count = 1;
    *wait_ms = floor_ms;
    r->failure_class = (u8)failure_class;
    if (failure_class == CLASS_ABSENT) {
        r->traits = 0; /* looked up: it did not happen */
    } else {
        bool last = r->ended != ENDED_REVOKED && count_one(rules, r, unknown || lookup, &count);
        if (unknown && !unsaid) r->traits |= TRAIT_DOUBT; /* else how the lease ended is the doubt */
        if (lookup) r->traits |= TRAIT_RECONCILE;
        if (last) r->state = lookup ? STATE_HELD : STATE_DEAD;
        if (unknown && rules->on_unknown == ON_UNKNOWN_HOLD) r->state = STATE_HELD;
        if (failure_class == CLASS_POISON) r->state = STATE_DEAD;
        if (!unsaid) *wait_ms = rules_backoff_ms(rules, count, floor_ms, &c->rng);
    }
    if (r->state != STATE_PENDING)
        r->traits = lease_end_traits(c, m, (enum state)r->state, r->traits, &r->taken);
    else if (*wait_ms > 0)
        r->due_ms = c->now.delay_ms + *wait_ms;
}

struct record lease_over_record(struct core *c, const struct message *m, enum ended started) {
    struct record r = {.type = REC_RETURN, .about = message_no(c, m)};
    i64 wait_ms; /* none: the lease was the wait */
    r.ret = return_record(c, m, m->started ? started : ENDED_LAPSED);
    if (m->started) lease_end_decide(c, m, &r.ret, CLASS_UNKNOWN, 0, &wait_ms);
    return r;
}
