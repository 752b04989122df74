#include "base/bucket.h"

#define NS_A_MS INT64_C(1000000)

/* How long filling n takes. 2^32 of them at one a second are 2^62 ns. */
static i64 fill_ns(struct bucket_rule r, u32 n) {
    CHECK(r.per_s > 0 && r.at_once > 0);
    return (i64)n * (1000 * NS_A_MS) / r.per_s;
}

i64 bucket_wait_ms(const struct bucket *b, struct bucket_rule r, u32 n, i64 now_ms) {
    u32 least = n < r.at_once ? n : r.at_once;
    i64 wait_ns = b->full_ns - now_ms * NS_A_MS - fill_ns(r, r.at_once - least);
    return wait_ns > 0 ? (wait_ns + NS_A_MS - 1) / NS_A_MS : 0;
}

i64 bucket_take(struct bucket *b, struct bucket_rule r, u32 n, i64 now_ms) {
    i64 wait_ms = bucket_wait_ms(b, r, n, now_ms);
    if (wait_ms > 0) return wait_ms;
    if (b->full_ns < now_ms * NS_A_MS) b->full_ns = now_ms * NS_A_MS;
    b->full_ns += fill_ns(r, n);
    return 0;
}
