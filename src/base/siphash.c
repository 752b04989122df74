/* SipHash-2-4 (Aumasson, Bernstein): a keyed hash whose collisions cannot be made without the key. */
#include "base/base.h"

struct sip {
    u64 v0, v1, v2, v3;
};

static inline u64 rotate(u64 x, int by) {
    return x << by | x >> (64 - by);
}

static inline void sip_round(struct sip *s) {
    s->v0 += s->v1;
    s->v1 = rotate(s->v1, 13) ^ s->v0;
    s->v0 = rotate(s->v0, 32);
    s->v2 += s->v3;
    s->v3 = rotate(s->v3, 16) ^ s->v2;
    s->v0 += s->v3;
    s->v3 = rotate(s->v3, 21) ^ s->v0;
    s->v2 += s->v1;
    s->v1 = rotate(s->v1, 17) ^ s->v2;
    s->v2 = rotate(s->v2, 32);
}

static inline void absorb(struct sip *s, u64 word) {
    s->v3 ^= word;
    sip_round(s);
    sip_round(s);
    s->v0 ^= word;
}

static inline u64 squeeze(struct sip *s) {
    for (int i = 0; i < 4; i++) sip_round(s);
    return s->v0 ^ s->v1 ^ s->v2 ^ s->v3;
}

static inline struct sip start(const struct siphash_key *key) {
    return (struct sip){key->k0 ^ UINT64_C(0x736f6d6570736575), key->k1 ^ UINT64_C(0x646f72616e646f6d),
                        key->k0 ^ UINT64_C(0x6c7967656e657261), key->k1 ^ UINT64_C(0x7465646279746573)};
}

/* The last word carries the bytes that are left over and, on top, the length. */
static inline void absorb_all(struct sip *s, const u8 *p, size_t n) {
    u64 last = (u64)n << 56;
    size_t all = n;
    for (; n >= 8; p += 8, n -= 8) absorb(s, get_u64(p));
    if (n && all >= 8)
        last |= get_u64(p + n - 8) >> (64 - 8 * n); /* reaches back into bytes already taken, and drops them */
    else
        for (size_t i = 0; i < n; i++) last |= (u64)p[i] << (8 * i);
    absorb(s, last);
}

u64 siphash(const struct siphash_key *key, const void *p, size_t n) {
    struct sip s = start(key);
    absorb_all(&s, p, n);
    s.v2 ^= 0xff;
    return squeeze(&s);
}

void siphash128(const struct siphash_key *key, const void *p, size_t n, u64 out[2]) {
    struct sip s = start(key);
    s.v1 ^= 0xee;
    absorb_all(&s, p, n);
    s.v2 ^= 0xee;
    out[0] = squeeze(&s);
    s.v1 ^= 0xdd;
    out[1] = squeeze(&s);
}
