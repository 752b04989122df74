#include "core/state.h"

/* That a delay is over follows from its record and the clock. */
static bool due_delays(struct core *c, u32 *budget) {
    while (c->delays.count && c->delays.at[0].when_ms <= c->now.delay_ms) {
        if (*budget == 0) return true;
        --*budget;
        u32 no = c->delays.at[0].message;
        unplace_message(c, no);
        place_pending(c, no, false);
    }
    return false;
}

static bool passage(struct core *c, u32 budget) {
    bool more = due_delays(c, &budget);
    more |= groups_follow(c, &budget);
    kept_expire(c);
    audit_expire(c);
    more |= window_reap(c, &budget);
    window_sweep(c, &budget);
    return more;
}

/* It only goes behind the others: no news for whoever waits. */
static void passed_over(struct core *c, u32 no) {
    enum place place = (enum place)message_at(c, no)->place;
    i64 since_ms = message_at(c, no)->when_ms;
    unplace_message(c, no);
    queue_mut(c, message_at(c, no)->queue)->announced[place] = true;
    place_message(c, no, place, false);
    ready_since(c, no, since_ms);
}

static void renewed(struct core *c, u32 no) {
    struct message *m = message_mut(c, no);
    unplace_message(c, no);
    m->when_ms = c->now.run_ms + m->lease_ms;
    place_message(c, no, PLACE_LEASED, false);
}

bool core_derive(struct core *c, const struct derived *d) {
    switch (d->kind) {
    case DERIVE_RENEWED:
        renewed(c, d->message);
        break;
    case DERIVE_PASSAGE:
        return passage(c, d->budget);
    case DERIVE_PASSED_OVER:
        passed_over(c, d->message);
        break;
    case DERIVE_PRESSURE:
        queue_mut(c, d->queue)->pressed = d->yes;
        break;
    case DERIVE_COUNT:
        c->uncounted = true;
        ++*(u64 *)(void *)((char *)&queue_mut(c, d->queue)->uncounted + d->counter);
        break;
    case DERIVE_DROPPED:
        needed_drop(&c->needed, d->pos);
        break;
    case DERIVE_ARRIVAL:
        tally_note(c, d->entry, d->known, d->arrival, d->request_id);
        break;
    }
    return false;
}
