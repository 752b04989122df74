#include "base/base.h"

static char lower(char c) {
    return c >= 'A' && c <= 'Z' ? (char)(c + ('a' - 'A')) : c;
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

bool slice_starts(slice s, slice prefix) {
    return s.n >= prefix.n && slice_eq(slice_of(s.p, prefix.n), prefix);
}

slice slice_trim_blanks(slice s) {
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
