/* Effects: what leaves the broker waits here until everything it depends on is durable (P1, INVARIANT 9).
 *
 * Whoever wants something to happen outside because of what was decided (a push, an event, an alert, a forwarded request)
 * does not do it: it parks the doing under the journal position behind the last record it saw. broker_durable, and nothing
 * else, runs what is parked, oldest first. So no effect has to think of durability, and none can forget to.
 *
 * Replies are effects too. Their bytes wait in the network's buffers, ordered by connection, each under its position; that
 * they may go is said here, after every effect parked at or below the same position has run.
 *
 * When the journal has failed, nothing parked here ever runs (P7). */
#ifndef HAPAX_BROKER_EFFECTS_H
#define HAPAX_BROKER_EFFECTS_H

#include "base/base.h"

struct broker;

#define EFFECTS_MAX 65536u

/* arg: a number by which ctx finds what it is about. An effect outlives the request that parked it: name by arg what may be
 * gone by then, and let ctx be something that lives as long as the broker. */
typedef void effect_fn(struct broker *b, void *ctx, u64 arg);

struct effects;

struct effects *effects_new(void);
void effects_free(struct effects *e);

/* Runs `run` once everything below `position` is durable, and after everything parked before it; at once, before this
 * returns, if that is the case already. false: EFFECTS_MAX are waiting, and this one was not taken. */
bool effect_after(struct broker *b, u64 position, effect_fn *run, void *ctx, u64 arg);

/* For broker_durable: runs all that has been waiting for no more than this. false: they were stopped, now or before. */
bool effects_run(struct broker *b, u64 durable);
/* The journal failed: nothing parked, now or later, runs any more. */
void effects_stop(struct broker *b);

#endif
