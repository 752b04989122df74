/* Token buckets: so much a second, and so much at once.
 *
 * A bucket is one number, the moment at which it will be full again: nothing has to fill it while nobody looks. All zero is a
 * full one. What it holds and how fast it fills is said at each use, so that new rules take effect at once. */
#ifndef HAPAX_BASE_BUCKET_H
#define HAPAX_BASE_BUCKET_H

#include "base/base.h"

struct bucket {
    i64 full_ns;
};

struct bucket_rule {
    u32 per_s;   /* at least 1 */
    u32 at_once; /* what a full one holds; at least 1 */
};

/* How long until n can be taken; 0: now. More than a full one holds can be taken from a full one: it is owed then. */
i64 bucket_wait_ms(const struct bucket *b, struct bucket_rule r, u32 n, i64 now_ms);
/* Takes n. If they are not there it takes nothing, and returns how long until they are. */
i64 bucket_take(struct bucket *b, struct bucket_rule r, u32 n, i64 now_ms);

#endif
