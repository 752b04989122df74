#include "base/base.h"

static char lower(char c) {
    return c >= 'A' && c <= 'Z' ? (char)(c + ('a' - 'A')) : c;
}

/* lower() of eight bytes at once: a byte from 'A' to 'Z' carries into its top bit in one sum and not in the other. */
static u64 lower8(const char *p) {
    u64 v = get_u64(p), seven = v & ~HIGH_BITS;
    u64 letters = (seven + bytes_of(0x80 - 'A')) & ~(seven + bytes_of(0x80 - 'Z' - 1)) & ~v & HIGH_BITS;
    return v | letters >> 2;
}

bool slice_eq_nocase(slice a, slice b) {
    if (a.n != b.n) return false;
    size_t i = 0;
    for (; i + 8 <= a.n; i += 8)
        if (lower8(a.p + i) != lower8(b.p + i)) return false;
    if (a.n >= 8) return lower8(a.p + a.n - 8) == lower8(b.p + a.n - 8); /* reaches back into what was compared */
    for (; i < a.n; i++)
        if (lower(a.p[i]) != lower(b.p[i])) return false;
    return true;
}

bool slice_spells(slice s, slice lower_case) {
    if (s.n != lower_case.n) return false;
    size_t i = 0;
    for (; i + 8 <= s.n; i += 8)
        if (lower8(s.p + i) != get_u64(lower_case.p + i)) return false;
    if (s.n >= 8) return lower8(s.p + s.n - 8) == get_u64(lower_case.p + s.n - 8);
    for (; i < s.n; i++)
        if (lower(s.p[i]) != lower_case.p[i]) return false;
    return true;
}

bool slice_starts(slice s, slice prefix) {
    return s.n >= prefix.n && slice_eq(slice_of(s.p, prefix.n), prefix);
}

static bool is_blank(char c) {
    return c == ' ' || c == '\t';
}

slice slice_trim(slice s) {
    while (s.n && is_blank(s.p[0])) s = slice_of(s.p + 1, s.n - 1);
    while (s.n && is_blank(s.p[s.n - 1])) s.n--;
    return s;
}

bool slice_cut(slice s, char c, slice *head, slice *tail) {
    const char *at = s.n ? memchr(s.p, c, s.n) : NULL;
    if (!at) {
        *head = s;
        *tail = slice_of(s.n ? s.p + s.n : s.p, 0);
        return false;
    }
    size_t before = (size_t)(at - s.p);
    *head = slice_of(s.p, before);
    *tail = slice_of(at + 1, s.n - before - 1);
    return true;
}

bool slice_u64(slice s, u64 *out) {
    if (s.n == 0) return false;
    u64 v = 0;
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] < '0' || s.p[i] > '9') return false;
        u64 digit = (u64)(s.p[i] - '0');
        if (__builtin_mul_overflow(v, 10u, &v) || __builtin_add_overflow(v, digit, &v)) return false;
    }
    *out = v;
    return true;
}
