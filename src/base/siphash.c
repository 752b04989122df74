/* SipHash-2-4 (Aumasson, Bernstein): a keyed hash whose collisions cannot be made without the key.
 *
 * A round is one long chain: each step waits for the one before, and most of the processor waits with it. Several texts are
 * therefore hashed side by side, a lane each, where there are instructions for four words at once: 2 to 4 times as many in
 * the same time. Without them (AVX2) one after the other is faster. */
#include "base/base.h"

struct sip {
    u64 v0, v1, v2, v3;
};

#define ROTATE(x, by) ((x) << (by) | (x) >> (64 - (by)))

/* Of one text, or of several. */
#define SIP_ROUND(s)                                                                                                   \
    do {                                                                                                               \
        (s)->v0 += (s)->v1;                                                                                            \
        (s)->v1 = ROTATE((s)->v1, 13) ^ (s)->v0;                                                                       \
        (s)->v0 = ROTATE((s)->v0, 32);                                                                                 \
        (s)->v2 += (s)->v3;                                                                                            \
        (s)->v3 = ROTATE((s)->v3, 16) ^ (s)->v2;                                                                       \
        (s)->v0 += (s)->v3;                                                                                            \
        (s)->v3 = ROTATE((s)->v3, 21) ^ (s)->v0;                                                                       \
        (s)->v2 += (s)->v1;                                                                                            \
        (s)->v1 = ROTATE((s)->v1, 17) ^ (s)->v2;                                                                       \
        (s)->v2 = ROTATE((s)->v2, 32);                                                                                 \
    } while (0)

static inline void absorb(struct sip *s, u64 word) {
    s->v3 ^= word;
    SIP_ROUND(s);
    SIP_ROUND(s);
    s->v0 ^= word;
}

static inline u64 squeeze(struct sip *s) {
    for (int i = 0; i < 4; i++) SIP_ROUND(s);
    return s->v0 ^ s->v1 ^ s->v2 ^ s->v3;
}

static inline struct sip start(const struct siphash_key *key) {
    return (struct sip){key->k0 ^ UINT64_C(0x736f6d6570736575), key->k1 ^ UINT64_C(0x646f72616e646f6d),
                        key->k0 ^ UINT64_C(0x6c7967656e657261), key->k1 ^ UINT64_C(0x7465646279746573)};
}

/* The last word carries the bytes that are left over and, on top, the length. */
static inline u64 last_word(const u8 *p, size_t n) {
    u64 last = (u64)n << 56;
    size_t left = n % 8;
    if (left && n >= 8)
        last |= get_u64(p + n - 8) >> (64 - 8 * left); /* reaches back into bytes already taken, and drops them */
    else
        for (size_t i = 0; i < left; i++) last |= (u64)p[i] << (8 * i);
    return last;
}

/* From word `at` on. */
static inline void absorb_all(struct sip *s, const u8 *p, size_t n, size_t at) {
    for (at *= 8; at + 8 <= n; at += 8) absorb(s, get_u64(p + at));
    absorb(s, last_word(p, n));
}

u64 siphash(const struct siphash_key *key, const void *p, size_t n) {
    struct sip s = start(key);
    absorb_all(&s, p, n, 0);
    s.v2 ^= 0xff;
    return squeeze(&s);
}

void siphash128(const struct siphash_key *key, const void *p, size_t n, u64 out[2]) {
    struct sip s = start(key);
    s.v1 ^= 0xee;
    absorb_all(&s, p, n, 0);
    s.v2 ^= 0xee;
    out[0] = squeeze(&s);
    s.v1 ^= 0xdd;
    out[1] = squeeze(&s);
}

/* ---- side by side */

#if defined(__x86_64__)
enum { LANES = 4 };
typedef u64 lanes __attribute__((vector_size(LANES * sizeof(u64))));

struct sip_lanes {
    lanes v0, v1, v2, v3;
};

#define INLINE static inline __attribute__((always_inline)) /* for each set of instructions anew */

INLINE void absorb_lanes(struct sip_lanes *s, u64 a, u64 b, u64 c, u64 d) {
    lanes word = {a, b, c, d};
    s->v3 ^= word;
    SIP_ROUND(s);
    SIP_ROUND(s);
    s->v0 ^= word;
}

/* As far as the shortest goes all four keep step; beyond that each goes on alone, unless all end there. */
INLINE void hash_four(const struct siphash_key *key, const slice *t, u64 *out) {
    struct sip one = start(key);
    lanes none = {0};
    struct sip_lanes s = {none + one.v0, none + one.v1, none + one.v2, none + one.v3};
    const u8 *p[LANES];
    size_t least = SIZE_MAX, most = 0; /* whole words */
    for (int i = 0; i < LANES; i++) {
        p[i] = (const u8 *)t[i].p;
        least = t[i].n / 8 < least ? t[i].n / 8 : least;
        most = t[i].n / 8 > most ? t[i].n / 8 : most;
    }
    for (size_t at = 0; at < least * 8; at += 8)
        absorb_lanes(&s, get_u64(p[0] + at), get_u64(p[1] + at), get_u64(p[2] + at), get_u64(p[3] + at));
    if (least == most) {
        absorb_lanes(&s, last_word(p[0], t[0].n), last_word(p[1], t[1].n), last_word(p[2], t[2].n),
                     last_word(p[3], t[3].n));
        s.v2 ^= 0xff;
        for (int i = 0; i < 4; i++) SIP_ROUND(&s);
        lanes all = s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
        memcpy(out, &all, sizeof all);
        return;
    }
    for (int i = 0; i < LANES; i++) {
        one = (struct sip){s.v0[i], s.v1[i], s.v2[i], s.v3[i]};
        absorb_all(&one, p[i], t[i].n, least);
        one.v2 ^= 0xff;
        out[i] = squeeze(&one);
    }
}

__attribute__((target("avx2"))) static void four_by_avx2(const struct siphash_key *key, const slice *t, u64 *out) {
    hash_four(key, t, out);
}
/* Which can rotate. */
__attribute__((target("avx512f,avx512vl"))) static void four_by_avx512(const struct siphash_key *key, const slice *t,
                                                                       u64 *out) {
    hash_four(key, t, out);
}

static void (*four)(const struct siphash_key *key, const slice *t, u64 *out);

__attribute__((constructor)) static void prepare(void) {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512vl"))
        four = four_by_avx512;
    else if (__builtin_cpu_supports("avx2"))
        four = four_by_avx2;
}

static size_t by_fours(const struct siphash_key *key, const slice *texts, size_t count, u64 *out) {
    size_t done = 0;
    for (; four && done + LANES <= count; done += LANES) four(key, texts + done, out + done);
    return done;
}
#else
static size_t by_fours(const struct siphash_key *key, const slice *texts, size_t count, u64 *out) {
    return (void)key, (void)texts, (void)count, (void)out, 0;
}
#endif

void siphash_each(const struct siphash_key *key, const slice *texts, size_t count, u64 *out) {
    for (size_t i = by_fours(key, texts, count, out); i < count; i++) out[i] = siphash(key, texts[i].p, texts[i].n);
}
