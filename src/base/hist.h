/* Histograms of twelve buckets: adding is a few comparisons and two additions, no system call, no lock. */
#ifndef HAPAX_BASE_HIST_H
#define HAPAX_BASE_HIST_H

#include "base/base.h"

#define HIST_BOUNDS 11u /* between them */

struct hist {
    u64 count[HIST_BOUNDS + 1]; /* of values at or below each bound and above the one before; the last: above all */
    u64 sum;
};

static inline void hist_add(struct hist *h, const u64 bounds[HIST_BOUNDS], u64 v) {
    u32 i = 0;
    while (i < HIST_BOUNDS && v > bounds[i]) i++;
    h->count[i]++;
    h->sum += v;
}

/* Bounds for what is measured in microseconds, and for sizes. */
extern const u64 hist_us[HIST_BOUNDS], hist_bytes[HIST_BOUNDS];
/* About the value that so many percent of all are at or below, by straight lines between the bounds; 0: there are none. */
u64 hist_quantile(const struct hist *h, const u64 bounds[HIST_BOUNDS], u32 percent);

static inline u64 hist_total(const struct hist *h) {
    u64 n = 0;
    for (u32 i = 0; i <= HIST_BOUNDS; i++) n += h->count[i];
    return n;
}

#endif
