#include "base/base.h"

/* Largest first, binary before decimal: the shortest exact form is the first that divides. */
static const struct {
    slice suffix;
    u64 bytes;
} units[] = {
    {{"TiB", 3}, (u64)1 << 40}, {{"GiB", 3}, (u64)1 << 30},
    {{"MiB", 3}, (u64)1 << 20}, {{"KiB", 3}, (u64)1 << 10},
    {{"TB", 2}, 1000000000000}, {{"GB", 2}, 1000000000},
    {{"MB", 2}, 1000000},       {{"kB", 2}, 1000},
    {{"KB", 2}, 1000},          {{"B", 1}, 1},
};
enum { UNITS = sizeof units / sizeof *units };

bool size_parse(slice text, u64 *bytes_out) {
    size_t digits = 0;
    while (digits < text.n && text.p[digits] >= '0' && text.p[digits] <= '9') digits++;
    slice suffix = slice_of(text.p + digits, text.n - digits);
    u64 count;
    if (!slice_u64(slice_of(text.p, digits), &count)) return false;
    if (suffix.n == 0) {
        *bytes_out = count;
        return true;
    }
    for (size_t i = 0; i < UNITS; i++)
        if (slice_eq(suffix, units[i].suffix)) return !__builtin_mul_overflow(count, units[i].bytes, bytes_out);
    return false;
}

void buf_size(struct buf *b, u64 bytes) {
    size_t i = 0;
    while (bytes % units[i].bytes) i++;
    if (bytes == 0) i = UNITS - 1;
    buf_dec(b, bytes / units[i].bytes);
    buf_slice_add(b, units[i].suffix);
}
