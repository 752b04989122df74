/* Purging: a walk through a queue's lists while others put messages in and take them out.
 *
 * Each list is walked from the side where nothing new comes in, and what is passed over (newer than the purge) stays passed:
 * the walk goes on behind it. If that very message leaves its list the walk steps back by one; if a message the purge is
 * after comes in on the side that was passed, the list is walked anew. */
#include "core/state.h"

_Static_assert(sizeof((struct core_purge){0}.passed) == PLACE_COUNT * sizeof(u32), "one for each place");

/* Whatever would let others out goes last: the ready before those behind them, a dead head before those it took along
 * (which follow it in their list, hence backwards). */
static const u8 order[] = {PLACE_BEHIND, PLACE_DELAYED, PLACE_HELD, PLACE_DEAD, PLACE_LOOKUP, PLACE_READY};

static bool backwards(enum place place) {
    return place == PLACE_DEAD;
}

void core_purge_begin(struct core *c, struct core_purge *p) {
    memset(p->passed, 0, sizeof p->passed);
    p->before_seq = c->next_seq;
    p->next = c->purges;
    c->purges = p;
}

void core_purge_end(struct core *c, struct core_purge *p) {
    struct core_purge **at = &c->purges;
    while (*at && *at != p) at = &(*at)->next;
    if (*at) *at = p->next;
}

static u32 step(const struct message *m, enum place place) {
    return backwards(place) ? m->prev : m->next;
}

enum walk_verdict core_purge_next(const struct core *c, struct core_purge *p, u32 look_at, u32 *message) {
    const struct queue *q = queue_at(c, p->queue);
    if (c->moving_count) return WALK_MORE; /* a dead head is not let go before all it takes along are in its list */
    for (u32 i = 0; i < sizeof order; i++) {
        enum place place = (enum place)order[i];
        if (p->only != STATE_COUNT && state_at(place) != p->only) continue;
        u32 *passed = &p->passed[place];
        for (;;) {
            u32 first = backwards(place) ? q->places[place].tail : q->places[place].head;
            u32 no = *passed == MESSAGE_NONE ? first : step(message_at(c, *passed), place);
            if (no == MESSAGE_NONE) break;
            if (look_at-- == 0) return WALK_MORE;
            if (message_at(c, no)->seq < p->before_seq) {
                *message = no;
                return WALK_FOUND;
            }
            *passed = no;
        }
    }
    return WALK_END;
}

void purges_placed(struct core *c, const struct message *m, enum place place, bool front) {
    for (struct core_purge *p = c->purges; p; p = p->next)
        if (p->queue == m->queue && m->seq < p->before_seq && front != backwards(place))
            p->passed[place] = MESSAGE_NONE;
}

void purges_unplaced(struct core *c, const struct message *m, u32 no) {
    for (struct core_purge *p = c->purges; p; p = p->next)
        if (p->passed[m->place] == no) p->passed[m->place] = backwards((enum place)m->place) ? m->next : m->prev;
}
