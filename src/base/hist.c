#include "base/hist.h"

const u64 hist_us[HIST_BOUNDS] = {100, 250, 500, 1000, 2500, 5000, 10000, 50000, 100000, 500000, 5000000};
const u64 hist_bytes[HIST_BOUNDS] = {256, 1024, 4096, 16384, 65536, 131072, 262144, 1048576, 2097152, 4194304, 8388608};

u64 hist_quantile(const struct hist *h, const u64 bounds[HIST_BOUNDS], u32 percent) {
    u64 total = hist_total(h), below = 0;
    u64 rank = (total * percent + 99) / 100;
    for (u32 i = 0; total && i < HIST_BOUNDS; i++) {
        u64 from = i ? bounds[i - 1] : 0;
        if (below + h->count[i] >= rank) return from + (bounds[i] - from) * (rank - below) / h->count[i];
        below += h->count[i];
    }
    return total ? bounds[HIST_BOUNDS - 1] : 0;
}
