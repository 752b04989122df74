/* What the files of base share with one another and with base's own tests. Other rooms include base.h. */
#ifndef HAPAX_BASE_BASE_PRIV_H
#define HAPAX_BASE_BASE_PRIV_H

#include "base/base.h"

/* Length (1 to 4) of the UTF-8 sequence at p, 0 if there is none that is valid within `left` bytes. */
size_t utf8_sequence(const char *p, size_t left);

/* The value of a hexadecimal digit, -1 if it is none. */
static inline int hex_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* 00 to 99. */
extern const char digit_pairs[];
static inline void put_pair(char to[2], u32 below_100) {
    memcpy(to, &digit_pairs[(size_t)below_100 * 2], 2);
}

/* crc32c by table, the way it is computed where the processor has no instruction for it. */
u32 crc32c_by_table(u32 seed, const void *p, size_t n);

/* How repeats of a log line are held back: a bucket of LOG_BURST lines for each event (or event and queue), which gets one
 * back every LOG_REFILL_MS. A few hundred buckets are shared by all there are; one at rest is given to the next who asks. */
#define LOG_BURST        10
#define LOG_REFILL_MS    INT64_C(1000)
#define LOG_REST_MS      INT64_C(60000)
#define LOG_BUCKETS      256u
#define LOG_BUCKETS_NEAR 16u

struct log_limits {
    struct log_bucket {
        u64 of;      /* 0: nobody's */
        i64 full_ms; /* when all its lines are there again */
        u64 suppressed;
    } at[LOG_BUCKETS];
};

/* May the next line of `of` (not 0) be written? Then *suppressed says how many were not since the last. */
bool log_limit(struct log_limits *l, u64 of, i64 now_ms, u64 *suppressed);

#endif
