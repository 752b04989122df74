/* Bytes by the sixteen, in GCC's vectors: SSE2 or NEON where there is such a thing, words elsewhere. A comparison makes -1 of each
 * byte for which it holds, 0 of the others. Bytes are signed, so that `v < 0x20` holds for control bytes and for all that is not
 * ASCII. */
#ifndef HAPAX_BASE_SIXTEEN_H
#define HAPAX_BASE_SIXTEEN_H

#include "base/base.h"

typedef signed char sixteen __attribute__((vector_size(16)));

static inline sixteen sixteen_at(const char *p) {
    sixteen v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void sixteen_put(char *p, sixteen v) {
    memcpy(p, &v, sizeof v);
}

/* Those below 0x20. */
static inline sixteen sixteen_control(sixteen v) {
    return (v & ~0x1f) == 0;
}

/* A bit for each, the first one's lowest, of bytes that are 0 or -1. */
static inline u32 sixteen_bits(sixteen v) {
#if defined(__SSE2__)
    typedef char bytes __attribute__((vector_size(16)));
    return (u32)__builtin_ia32_pmovmskb128((bytes)v);
#else
    typedef u64 halves __attribute__((vector_size(16)));
    halves top = ((halves)v & bytes_of(1)) * UINT64_C(0x0102040810204080) >> 56;
    return (u32)top[0] | (u32)top[1] << 8;
#endif
}

/* Of 1 to 15 bytes: each of them once at least, and no others. */
static inline sixteen sixteen_of_few(const char *p, size_t n) {
    u64 w[2];
    sixteen v;
    if (n >= 8) {
        w[0] = get_u64(p);
        w[1] = get_u64(p + n - 8);
    } else if (n >= 4) {
        w[0] = w[1] = get_u32(p) | (u64)get_u32(p + n - 4) << 32;
    } else {
        u32 three = (u32)(u8)p[0] | (u32)(u8)p[n / 2] << 8 | (u32)(u8)p[n - 1] << 16;
        w[0] = w[1] = (u64)three | (u64)three << 24 | (u64)three << 48;
    }
    memcpy(&v, w, sizeof v);
    return v;
}

/* And a copy of such. */
static inline void few_copy(char *to, const char *p, size_t n) {
    if (n >= 8) {
        u64 first = get_u64(p), last = get_u64(p + n - 8);
        put_u64(to, first);
        put_u64(to + n - 8, last);
    } else if (n >= 4) {
        u32 first = get_u32(p), last = get_u32(p + n - 4);
        put_u32(to, first);
        put_u32(to + n - 4, last);
    } else {
        char first = p[0], middle = p[n / 2], last = p[n - 1];
        to[0] = first;
        to[n / 2] = middle;
        to[n - 1] = last;
    }
}

/* Does `stops` leave 0 for all of them? Written out where it is asked, so that both become one. */
static inline __attribute__((always_inline)) bool sixteen_all(slice s, sixteen (*stops)(sixteen)) {
    if (s.n < 16) return s.n == 0 || !sixteen_bits(stops(sixteen_of_few(s.p, s.n)));
    const char *last = s.p + s.n - 16;
    for (const char *p = s.p; p < last; p += 16)
        if (sixteen_bits(stops(sixteen_at(p)))) return false;
    return !sixteen_bits(stops(sixteen_at(last))); /* reaches back over what was asked */
}

#endif
