/* The event loop as the rest of Hapax sees it: run, timers, signals, and a wake-up from another thread. */
#ifndef HAPAX_NET_LOOP_H
#define HAPAX_NET_LOOP_H

#include "base/base.h"
#include "base/hist.h"

struct loop;
struct uv_loop_s;

typedef void (*loop_fn)(void *ctx);

struct loop *loop_new(void);
struct uv_loop_s *loop_uv(struct loop *l);
void loop_run(struct loop *l); /* until loop_stop */
void loop_stop(struct loop *l);
void loop_free(struct loop *l); /* closes every handle it made and lets the loop run out */

/* One timer: (re)arming replaces what was set before. */
void loop_timer(struct loop *l, u64 in_ms, loop_fn fn, void *ctx);
/* How long this turn has taken so far. */
u64 loop_turn_us(const struct loop *l);
/* More of them, for who wants one of his own. Setting one again replaces what was set; it may be freed from its own fn. */
struct loop_alarm;
struct loop_alarm *loop_alarm_new(struct loop *l, loop_fn fn, void *ctx);
void loop_alarm_set(struct loop_alarm *a, u64 in_ms);
void loop_alarm_free(struct loop_alarm *a); /* before loop_free; NULL is fine */
/* Up to 4 signals. */
void loop_signal(struct loop *l, int signum, loop_fn fn, void *ctx);
/* loop_wake may be called from any thread; fn then runs on the loop, once for any number of calls. */
void loop_on_wake(struct loop *l, loop_fn fn, void *ctx);
void loop_wake(struct loop *l);

/* Turns: how long each kept the loop from looking at its sockets again, in microseconds. */
struct loop_stats {
    u64 turns, turn_us_max;
    struct hist turn_us;
};
void loop_stats_get(const struct loop *l, struct loop_stats *out);

#endif
