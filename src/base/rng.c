#include "base/base.h"

#include <errno.h>
#include <sys/random.h>

static u64 rotate(u64 x, int by) {
    return x << by | x >> (64 - by);
}

/* splitmix64 spreads one word over the state, which must not be all zero and should not look like the seed. */
void rng_seed(struct rng *r, u64 seed) {
    for (int i = 0; i < 4; i++) {
        seed += UINT64_C(0x9e3779b97f4a7c15);
        u64 z = seed;
        z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
        r->s[i] = z ^ z >> 31;
    }
}

/* xoshiro256** */
u64 rng_next(struct rng *r) {
    u64 *s = r->s;
    u64 result = rotate(s[1] * 5, 7) * 9;
    u64 shifted = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= shifted;
    s[3] = rotate(s[3], 45);
    return result;
}

/* Values below 2^64 mod bound are drawn again: every remainder is then equally likely. */
u64 rng_below(struct rng *r, u64 bound) {
    CHECK(bound > 0);
    u64 uneven = -bound % bound;
    u64 v = rng_next(r);
    while (v < uneven) v = rng_next(r);
    return v % bound;
}

void random_bytes(void *p, size_t n) {
    char *to = p;
    while (n) {
        ssize_t got = getrandom(to, n, 0);
        if (got < 0 && errno == EINTR) continue;
        CHECK(got > 0);
        to += got;
        n -= (size_t)got;
    }
}
