/* CRC-32C: the checksum of everything stored.
 *
 * By table: slicing by eight, tables[k][b] being the effect of byte b followed by k zero bytes.
 *
 * By instruction: crc32 takes 3 cycles but a new one can start every cycle, so long input is cut into three lanes that are
 * summed side by side: long ones for large payloads, short ones for records as most are. A CRC is linear: the sum of lanes A
 * B C is A moved past |B| + |C| zero bytes, xor B moved past |C|, xor C; past[k][b] is byte k of a sum, being b, moved past
 * a lane of zero bytes. */
#include "base/base_priv.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

static const size_t LONG_LANE = 256, SHORT_LANE = 96;

static u32 tables[8][256];
static u32 past_long[4][256], past_short[4][256];
#if defined(__x86_64__)
static bool have_instruction;
#endif

static u32 past_zero_bytes(u32 crc, size_t n) {
    while (n--) crc = crc >> 8 ^ tables[0][crc & 0xff];
    return crc;
}

static void fill_tables(void) {
    const u32 polynomial_reversed = 0x82f63b78;
    for (u32 b = 0; b < 256; b++) {
        u32 crc = b;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ polynomial_reversed : crc >> 1;
        tables[0][b] = crc;
    }
    for (size_t k = 1; k < 8; k++) {
        for (u32 b = 0; b < 256; b++) tables[k][b] = past_zero_bytes(tables[k - 1][b], 1);
    }
}

/* Linear again: the entries of single bits give all others by xor. */
static void fill_past(u32 past[4][256], size_t lane) {
    for (u32 bit = 0; bit < 32; bit++) past[bit / 8][1u << bit % 8] = past_zero_bytes(1u << bit, lane);
    for (size_t k = 0; k < 4; k++) {
        for (u32 b = 1; b < 256; b++) past[k][b] = past[k][b & (b - 1)] ^ past[k][b & -b];
    }
}

/* Before main, so that no call has to ask whether the tables are there. */
__attribute__((constructor)) static void prepare(void) {
    fill_tables();
    fill_past(past_long, LONG_LANE);
    fill_past(past_short, SHORT_LANE);
#if defined(__x86_64__)
    __builtin_cpu_init();
    have_instruction = __builtin_cpu_supports("sse4.2");
#endif
}

u32 crc32c_by_table(u32 seed, const void *p, size_t n) {
    const u8 *in = p;
    u32 crc = ~seed;
    for (; n >= 8; in += 8, n -= 8) {
        u32 low = get_u32(in) ^ crc, high = get_u32(in + 4);
        crc = tables[7][low & 0xff] ^ tables[6][low >> 8 & 0xff] ^ tables[5][low >> 16 & 0xff] ^ tables[4][low >> 24] ^
              tables[3][high & 0xff] ^ tables[2][high >> 8 & 0xff] ^ tables[1][high >> 16 & 0xff] ^
              tables[0][high >> 24];
    }
    for (; n; in++, n--) crc = crc >> 8 ^ tables[0][(crc ^ *in) & 0xff];
    return ~crc;
}

#if defined(__x86_64__)
static u32 move(u32 crc, const u32 past[4][256]) {
    return past[0][crc & 0xff] ^ past[1][crc >> 8 & 0xff] ^ past[2][crc >> 16 & 0xff] ^ past[3][crc >> 24];
}

__attribute__((target("sse4.2"))) static inline u32 three_lanes(u32 crc, const u8 *in, size_t lane,
                                                                const u32 past[4][256]) {
    u64 a = crc, b = 0, c = 0;
    for (size_t i = 0; i < lane; i += 8) {
        a = _mm_crc32_u64(a, get_u64(in + i));
        b = _mm_crc32_u64(b, get_u64(in + lane + i));
        c = _mm_crc32_u64(c, get_u64(in + 2 * lane + i));
    }
    return move(move((u32)a, past) ^ (u32)b, past) ^ (u32)c;
}

__attribute__((target("sse4.2"))) static u32 by_instruction(u32 seed, const void *p, size_t n) {
    const u8 *in = p;
    u32 crc = ~seed;
    for (; n >= 3 * LONG_LANE; in += 3 * LONG_LANE, n -= 3 * LONG_LANE)
        crc = three_lanes(crc, in, LONG_LANE, past_long);
    for (; n >= 3 * SHORT_LANE; in += 3 * SHORT_LANE, n -= 3 * SHORT_LANE)
        crc = three_lanes(crc, in, SHORT_LANE, past_short);
    for (; n >= 8; in += 8, n -= 8) crc = (u32)_mm_crc32_u64(crc, get_u64(in));
    if (n >= 4) { /* as records have it */
        crc = _mm_crc32_u32(crc, get_u32(in));
        in += 4;
        n -= 4;
    }
    for (; n; in++, n--) crc = _mm_crc32_u8(crc, *in);
    return ~crc;
}
#endif

u32 crc32c(u32 seed, const void *p, size_t n) {
#if defined(__x86_64__)
    if (have_instruction) return by_instruction(seed, p, n);
#endif
    return crc32c_by_table(seed, p, n);
}
