/* Series: the last hour of each queue and of the broker, in steps of ten seconds, for those who look without a scraper.
 *
 * Every ten seconds each queue's counters are looked at, a part of them in each turn, and what was added is written down. A
 * queue has 20 KiB of this from the first time something happens there until nothing has for an hour; at most SERIES_MAX
 * queues have any (50 MiB), and the others are shown without. */
#ifndef HAPAX_BROKER_SERIES_H
#define HAPAX_BROKER_SERIES_H

#include "broker/watch.h"

struct broker;
struct series;

#define SERIES_STEP_MS 10000
#define SERIES_STEPS   360u /* an hour */
#define SERIES_MAX     2500u

/* What is counted, and where it comes from: c the journaled counters, w what is kept beside them. */
#define SERIES_LIST(X)                                                                                                 \
    X(accepted, c->accepted)                                                                                           \
    X(duplicates, c->duplicates)                                                                                       \
    X(late, w->late + w->again)                                                                                        \
    X(again, w->again)                                                                                                 \
    X(drilled, w->drilled)                                                                                             \
    X(conflicts, c->conflicts)                                                                                         \
    X(delivered, c->delivered)                                                                                         \
    X(settled, c->acked + c->resolved + c->rejected + c->cancelled + c->handed_out)                                    \
    X(failed, c->nacked + c->leases_expired)                                                                           \
    X(dead, c->dead_lettered + w->refused)                                                                             \
    X(held, c->held)                                                                                                   \
    X(fenced, w->fenced)                                                                                               \
    X(backpressure, c->backpressured)
#define SERIES_ENUM(name, value) SERIES_##name,
enum series_kind { SERIES_LIST(SERIES_ENUM) SERIES_COUNT };
#undef SERIES_ENUM
#define GAUGE_LIST(X)                                                                                                  \
    X(ready, q->ready)                                                                                                 \
    X(leased, q->leased)                                                                                               \
    X(oldest_ready_ms, (u64)q->oldest_ready_ms)
#define GAUGE_ENUM(name, value) GAUGE_##name,
enum gauge_kind { GAUGE_LIST(GAUGE_ENUM) GAUGE_COUNT };
#undef GAUGE_ENUM

struct series *series_new(void);
void series_free(struct series *s);
/* With the clock: goes on with what is due. */
void series_run(struct broker *b);
void series_forget(struct broker *b, u16 queue); /* it was deleted */

bool series_known(const struct broker *b, u16 queue); /* something happened there within an hour */
/* Queue 0: the whole broker. `steps` back from the last whole one; 0 for what nothing is known of. */
u64 series_sum(const struct broker *b, u16 queue, enum series_kind kind, u32 steps);
double duplicate_ratio(const struct broker *b, u16 queue); /* of the last hour's arrivals */
/* {"from":...,"step_ms":...,"series":{...},"gauges":{...}}: the last `steps`, `together` of them in one. */
void put_series(const struct broker *b, struct buf *out, u16 queue, u32 steps, u32 together);
/* ,"live":{...}: the member of a queue's page. */
void put_live(const struct broker *b, struct buf *out, const struct queue_info *q);

/* Of a queue when it was last looked at. */
struct queue_live {
    i64 oldest_held_ms, oldest_unsettled_ms; /* 0: none */
    u32 blocked_groups;
    u64 wait_p95_ms;                    /* of those handed out in the last five minutes */
    struct ref held, started, blocking; /* the oldest held and unsettled one, and a head that blocks; seq 0: none */
    u64 waits;                          /* so many were */
};
const struct queue_live *queue_live(const struct broker *b, u16 queue);

#endif
