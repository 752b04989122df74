/* A circuit: does a target answer, and may it be called?
 *
 * closed     calls go out. It opens when of the calls that ended within `within_ms` there were at least `of`, and of these the
 *            share `ratio_ppm` or more failed.
 * open       nothing goes out for `open_ms`, and up to a tenth of it more, so that many targets behind one broken link do not try
 *            again in the same moment.
 * half-open  one call, the probe, tells. If it fails the circuit is open for twice as long as before, at most CIRCUIT_OPEN_MS_MAX;
 *            else it closes, and recovery begins.
 *
 * Recovery: a target that has just come back gets one call at a time, and with each that is answered one more at once: twice as many
 * every round trip. One that fails halves it. When nothing is held back any more the target has recovered, and what `open_ms` had
 * grown to is forgotten; if the circuit opens before, it grows on.
 *
 * Calls that began before the circuit last closed tell of the time before, and change nothing. Kept are counts of CIRCUIT_SLOTS
 * parts of `within_ms`, not calls. */
#ifndef HAPAX_BROKER_CIRCUIT_H
#define HAPAX_BROKER_CIRCUIT_H

#include "base/base.h"

#define CIRCUIT_OPEN_MS_MAX 300000
#define CIRCUIT_SLOTS       10u

struct circuit_rules {
    u32 ratio_ppm, of;
    i64 within_ms, open_ms;
};

#define CIRCUIT_LIST(X)                                                                                                \
    X(CLOSED, "closed")                                                                                                \
    X(OPEN, "open")                                                                                                    \
    X(HALF_OPEN, "half_open")
#define CIRCUIT_ENUM(name, text) CIRCUIT_##name,
enum circuit_state { CIRCUIT_LIST(CIRCUIT_ENUM) CIRCUIT_STATES };
#undef CIRCUIT_ENUM
const char *circuit_text(enum circuit_state s);

struct circuit {
    enum circuit_state state;
    i64 since_ms;  /* in this state */
    i64 failed_ms; /* not closed: when it opened, whatever was tried since; a probe that was answered and nothing after it is no recovery */
    i64 probe_ms;  /* open: when it may be tried */
    i64 open_ms;   /* for how long it was opened last; 0: it has recovered */
    u32 window;    /* recovering: how many calls may be under way; 0: as many as may be */
    struct rng jitter;
    struct {
        i64 number; /* of this part of the time */
        u32 calls, failed;
    } slots[CIRCUIT_SLOTS];
};

void circuit_init(struct circuit *c, u64 seed, i64 now_ms);
/* As if nothing were known of the target: its address has changed. */
void circuit_reset(struct circuit *c, i64 now_ms);
/* Somebody says it is back: it is tried with the next call. */
void circuit_try(struct circuit *c, i64 now_ms);
/* May one more go out beside those under way? *probe: it is the one that tells. false: *again_ms is when to ask again, INT64_MAX:
 * when a call has ended. */
bool circuit_may(const struct circuit *c, u32 under_way, i64 now_ms, bool *probe, i64 *again_ms);
void circuit_probed(struct circuit *c, i64 now_ms); /* the probe has gone out */
/* most: calls that may be under way at once, by the rules. began_ms: when it went out. */
void circuit_ended(struct circuit *c, const struct circuit_rules *r, u32 most, i64 began_ms, i64 now_ms, bool failed);
/* Of the probe. */
void circuit_probe_ended(struct circuit *c, const struct circuit_rules *r, u32 most, i64 now_ms, bool failed);
void circuit_probe_void(struct circuit *c, i64 now_ms); /* it told nothing: the next one tells */

#endif
