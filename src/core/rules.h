/* A queue's rules: what happens to its messages and keys. Plain values; who sets them (defaults now, a config file or
 * the API later) is the broker's business. They are journaled with the queue. */
#ifndef HAPAX_CORE_RULES_H
#define HAPAX_CORE_RULES_H

#include "base/base.h"

#define WINDOW_FOREVER INT64_MAX

struct rules {
    i64 window_ms;
    u32 lease_ms;
    u16 transient_attempts, unknown_attempts, crash_attempts; /* counting the first one */
    u32 backoff_ms, backoff_max_ms;
};

struct rules rules_default(void);

/* How long a failed message waits: backoff doubling with each failure up to the cap, jitter only upwards (up to a
 * quarter), never below floor_ms. failures counts this one. */
i64 rules_backoff_ms(const struct rules *r, u32 failures, i64 floor_ms, struct rng *rng);

#endif
