/* CRC-32C: the checksum of everything stored.
 *
 * By table: slicing by eight, tables[k][b] being the effect of byte b followed by k zero bytes.
 *
 * By instruction: crc32 takes 3 cycles but a new one can start every cycle, so long input is cut into three lanes of
 * LANE bytes that are summed side by side. A CRC is linear: the sum of lanes A B C is A moved past |B| + |C| zero
 * bytes, xor B moved past |C|, xor C; past_lane[k][b] is byte k of a sum, being b, moved past LANE zero bytes. */
#include "base/base_priv.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

static const size_t LANE = 256;

static u32 tables[8][256];
static u32 past_lane[4][256];
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
static void fill_past_lane(void) {
    for (u32 bit = 0; bit < 32; bit++) past_lane[bit / 8][1u << bit % 8] = past_zero_bytes(1u << bit, LANE);
    for (size_t k = 0; k < 4; k++) {
        for (u32 b = 1; b < 256; b++) past_lane[k][b] = past_lane[k][b & (b - 1)] ^ past_lane[k][b & -b];
    }
}

/* Before main, so that no call has to ask whether the tables are there. */
__attribute__((constructor)) static void prepare(void) {
    fill_tables();
    fill_past_lane();
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
static u32 move_past_lane(u32 crc) {
    return past_lane[0][crc & 0xff] ^ past_lane[1][crc >> 8 & 0xff] ^ past_lane[2][crc >> 16 & 0xff] ^
           past_lane[3][crc >> 24];
}

__attribute__((target("sse4.2"))) static u32 three_lanes(u32 crc, const u8 *in) {
    u64 a = crc, b = 0, c = 0;
    for (size_t i = 0; i < LANE; i += 8) {
        a = _mm_crc32_u64(a, get_u64(in + i));
        b = _mm_crc32_u64(b, get_u64(in + LANE + i));
        c = _mm_crc32_u64(c, get_u64(in + 2 * LANE + i));
    }
    return move_past_lane(move_past_lane((u32)a) ^ (u32)b) ^ (u32)c;
}

__attribute__((target("sse4.2"))) static u32 by_instruction(u32 seed, const void *p, size_t n) {
    const u8 *in = p;
    u32 crc = ~seed;
    for (; n >= 3 * LANE; in += 3 * LANE, n -= 3 * LANE) crc = three_lanes(crc, in);
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
