#include "core/rules.h"

struct rules rules_default(void) {
    return (struct rules){
        .window_ms = (i64)24 * 3600 * 1000,
        .lease_ms = 30 * 1000,
        .transient_attempts = 6,
        .unknown_attempts = 3,
        .crash_attempts = 3,
        .backoff_ms = 1000,
        .backoff_max_ms = 5 * 60 * 1000,
    };
}

i64 rules_backoff_ms(const struct rules *r, u32 failures, i64 floor_ms, struct rng *rng) {
    i64 wait = r->backoff_ms;
    for (u32 i = 1; i < failures && wait < r->backoff_max_ms; i++) wait *= 2;
    if (wait > r->backoff_max_ms) wait = r->backoff_max_ms;
    if (wait > 0) wait += (i64)rng_below(rng, (u64)wait / 4 + 1);
    return wait > floor_ms ? wait : floor_ms;
}
