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
 * Where the broker looks up itself (rules.lookup_attempts) look-ups have a count and times of their own, and an outcome that is
 * unknown is looked up even if that attempt was the last one allowed: asking costs nothing. Only when it is absent the number tells.
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
        .lookups = m->lookup ? (u16)m->lookups : 0,
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
static bool count_one(const struct rules *rules, const struct message *m, struct rec_return *r, bool as_unknown,
                      u16 *count) {
    bool crash = r->ended == ENDED_EXPIRED, asked = m->lookup && rules->lookup_attempts;
    u16 *counter = asked ? &r->lookups : crash ? &r->crashes : as_unknown ? &r->unknowns : &r->failures;
    u16 limit = asked        ? rules->lookup_attempts
                : crash      ? rules->crash_attempts
                : as_unknown ? rules->unknown_attempts
                             : rules->transient_attempts;
    u16 most = asked ? LOOKUPS_MAX : UINT16_MAX;
    if (*counter < most) ++*counter;
    *count = *counter;
    return *counter >= limit || (asked && *counter == most);
}

/* Looked up, and not there. Done again, if a person need not say so and there are attempts left. */
static void end_absent(const struct rules *rules, struct rec_return *r, bool hold) {
    bool used_up = r->unknowns >= rules->unknown_attempts || r->crashes >= rules->crash_attempts;
    r->traits = 0; /* it did not happen */
    r->lookups = 0;
    if (rules->lookup_attempts && used_up) r->state = STATE_DEAD;
    if (hold) r->state = STATE_HELD;
}

/* Failed, or nobody knows. */
static void end_unfinished(struct core *c, const struct message *m, const struct rules *rules, struct rec_return *r,
                           bool spares, i64 *wait_ms) {
    bool unsaid = ended_unsaid(r->ended), unknown = r->failure_class == CLASS_UNKNOWN;
    bool lookup = m->lookup || (unknown && rules->on_unknown == ON_UNKNOWN_RECONCILE);
    bool asks = lookup && rules->lookup_attempts; /* the broker will */
    u16 count = 1;
    bool last = r->ended != ENDED_REVOKED && !spares && count_one(rules, m, r, unknown || lookup, &count);
    if (asks && !m->lookup) last = false; /* to be asked first; that it was the last one counts if the answer is no */
    if (unknown && !unsaid) r->traits |= TRAIT_DOUBT; /* else how the lease ended is the doubt */
    if (lookup) r->traits |= TRAIT_RECONCILE;
    if (last) r->state = lookup ? STATE_HELD : STATE_DEAD;
    if (unknown && rules->on_unknown == ON_UNKNOWN_HOLD) r->state = STATE_HELD;
    if (r->failure_class == CLASS_POISON) r->state = STATE_DEAD;
    i64 asked_ms = m->lookup ? rules->lookup_every_ms : rules->lookup_after_ms;
    if (asks)
        *wait_ms = asked_ms > *wait_ms ? asked_ms : *wait_ms;
    else if (!unsaid)
        *wait_ms = rules_backoff_ms(rules, count, *wait_ms, &c->rng);
}

void lease_end_decide(struct core *c, const struct message *m, struct rec_return *r, const struct settle_in *in,
                      i64 *wait_ms) {
    const struct rules *rules = &queue_at(c, m->queue)->rules;
    *wait_ms = in->delay_ms;
    r->failure_class = (u8)in->failure_class;
    if (in->failure_class == CLASS_ABSENT)
        end_absent(rules, r, in->hold);
    else
        end_unfinished(c, m, rules, r, in->spares, wait_ms);
    if (r->state != STATE_PENDING)
        r->traits = lease_end_traits(c, m, (enum state)r->state, r->traits, &r->taken);
    else if (*wait_ms > 0)
        r->due_ms = c->now.delay_ms + *wait_ms;
}

struct record lease_over_record(struct core *c, const struct message *m, enum ended started) {
    struct record r = {.type = REC_RETURN, .about = message_no(c, m)};
    i64 wait_ms; /* none: the lease was the wait, unless the broker looks it up */
    r.ret = return_record(c, m, m->started ? started : ENDED_LAPSED);
    if (m->started) lease_end_decide(c, m, &r.ret, &(struct settle_in){.failure_class = CLASS_UNKNOWN}, &wait_ms);
    return r;
}
