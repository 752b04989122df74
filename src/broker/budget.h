/* Budgets: how long a piece of a turn may take, so that nobody waits long for what somebody else asked for. Work that is not
 * done when its time is up goes on in a later turn.
 *
 * Measured by the world's clock (broker_port.now_us). A world without one has no end of time, and is bound by counts alone. */
#ifndef HAPAX_BROKER_BUDGET_H
#define HAPAX_BROKER_BUDGET_H

#include "base/base.h"

/* The network hands over requests for 16 ms of a turn, and writes for 8. The turn's end comes on top: together they stay below
 * 50 ms. */
#define LONG_US    20000u /* a turn's requests: more than the network hands over, unless the last of them was long */
#define REQUEST_US 4000u  /* the first part of a long request, a page of a list */
#define RECEIVE_US 12000u /* a thousand messages, or some large ones, come together where that is possible at all */
#define ANSWERS_US                                                                                                     \
    2000u /* waits that can be answered, at the end of a turn: outcomes, polls, those whose time is over */
#define JOBS_US    4000u /* further parts of long requests */
#define TASKS_US   3000u
#define TTLS_US    2000u
#define COMPACT_US 8000u
#define WATCH_US   1000u /* looking at the queues every ten seconds */
#define PUSH_US    3000u /* leasing and making of what is pushed */
#define EVENTS_US  80u   /* what readers of events may take of a turn; see feeds.c for what they may take of a second */

struct broker;

struct budget {
    const struct broker *b;
    u64 until_us;
    bool begun;
};

struct budget budget_of(const struct broker *b, u32 us);
/* Asked before each piece of the work. Not so the first time: however little time there is, something gets done. */
bool budget_spent(struct budget *g);
/* What was begun will take so much more, after the turn's own work: its writes. */
void budget_charge(struct budget *g, u64 us);
/* Of the requests of a turn: its first has come; and is it long already, because one that cannot be cut took long? */
void turn_begins(struct broker *b);
bool turn_is_long(const struct broker *b);
/* Negative when it took longer; INT64_MAX in a world without a clock. */
i64 budget_left_us(const struct budget *g);

#endif
