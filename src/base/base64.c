#include "base/base.h"

#define COMMON_DIGITS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

/* Value of each digit plus one, so that what is not listed is recognisable as 0. */
#define COMMON_VALUES                                                                                                  \
    ['A'] = 1, ['B'] = 2, ['C'] = 3, ['D'] = 4, ['E'] = 5, ['F'] = 6, ['G'] = 7, ['H'] = 8, ['I'] = 9, ['J'] = 10,     \
    ['K'] = 11, ['L'] = 12, ['M'] = 13, ['N'] = 14, ['O'] = 15, ['P'] = 16, ['Q'] = 17, ['R'] = 18, ['S'] = 19,        \
    ['T'] = 20, ['U'] = 21, ['V'] = 22, ['W'] = 23, ['X'] = 24, ['Y'] = 25, ['Z'] = 26, ['a'] = 27, ['b'] = 28,        \
    ['c'] = 29, ['d'] = 30, ['e'] = 31, ['f'] = 32, ['g'] = 33, ['h'] = 34, ['i'] = 35, ['j'] = 36, ['k'] = 37,        \
    ['l'] = 38, ['m'] = 39, ['n'] = 40, ['o'] = 41, ['p'] = 42, ['q'] = 43, ['r'] = 44, ['s'] = 45, ['t'] = 46,        \
    ['u'] = 47, ['v'] = 48, ['w'] = 49, ['x'] = 50, ['y'] = 51, ['z'] = 52, ['0'] = 53, ['1'] = 54, ['2'] = 55,        \
    ['3'] = 56, ['4'] = 57, ['5'] = 58, ['6'] = 59, ['7'] = 60, ['8'] = 61, ['9'] = 62

static const u8 standard_values[256] = {COMMON_VALUES, ['+'] = 63, ['/'] = 64};
static const u8 url_values[256] = {COMMON_VALUES, ['-'] = 63, ['_'] = 64};

static void encode(struct buf *b, slice s, const char *digits, bool padded) {
    buf_grow(b, s.n / 3 * 4 + 4);
    const u8 *in = (const u8 *)s.p;
    char *out = b->p + b->len;
    size_t left = s.n;
    for (; left >= 3; in += 3, left -= 3, out += 4) {
        u32 bits = (u32)in[0] << 16 | (u32)in[1] << 8 | in[2];
        put_u32(out, (u32)(u8)digits[bits >> 18] | (u32)(u8)digits[bits >> 12 & 63] << 8 |
                         (u32)(u8)digits[bits >> 6 & 63] << 16 | (u32)(u8)digits[bits & 63] << 24);
    }
    if (left) {
        u8 second = left == 2 ? in[1] : 0;
        *out++ = digits[in[0] >> 2];
        *out++ = digits[(in[0] & 3) << 4 | second >> 4];
        if (left == 2) *out++ = digits[(second & 15) << 2];
        for (size_t i = left; padded && i < 3; i++) *out++ = '=';
    }
    b->len = (size_t)(out - b->p);
}

/* The last two or three digits. Bits that encode nothing must be zero: one value has one text. */
static bool decode_tail(struct buf *b, const u8 *in, size_t n, const u8 *values) {
    if (n == 1) return false;
    unsigned first = values[in[0]], second = values[in[1]], third = n == 3 ? values[in[2]] : 1;
    if (!first || !second || !third) return false;
    unsigned bits = (first - 1) << 12 | (second - 1) << 6 | (third - 1);
    if (n == 2 ? bits & 0x3FF : bits & 3) return false;
    b->p[b->len++] = (char)(bits >> 10);
    if (n == 3) b->p[b->len++] = (char)(bits >> 2);
    return true;
}

static bool decode(struct buf *b, slice text, const u8 *values) {
    size_t start = b->len;
    buf_grow(b, text.n / 4 * 3 + 3);
    const u8 *in = (const u8 *)text.p;
    char *out = b->p + start;
    size_t left = text.n;
    for (; left >= 4; in += 4, left -= 4) {
        /* What is no digit comes to -1, whose top bits stay whatever it is shifted by. */
        u32 bits =
            (values[in[0]] - 1u) << 18 | (values[in[1]] - 1u) << 12 | (values[in[2]] - 1u) << 6 | (values[in[3]] - 1u);
        if (bits >> 24) break;
        put_u32(out, __builtin_bswap32(bits << 8)); /* one byte too many: there is room */
        out += 3;
    }
    b->len = (size_t)(out - b->p);
    if (left == 0 || (left < 4 && decode_tail(b, in, left, values))) return true;
    b->len = start;
    return false;
}

void buf_base64(struct buf *b, slice s) {
    encode(b, s, COMMON_DIGITS "+/", true);
}

void buf_base64url(struct buf *b, slice s) {
    encode(b, s, COMMON_DIGITS "-_", false);
}

bool buf_base64_decode(struct buf *b, slice text) {
    if (text.n % 4) return false;
    for (int pads = 0; pads < 2 && text.n && text.p[text.n - 1] == '='; pads++) text.n--;
    return decode(b, text, standard_values);
}

bool buf_base64url_decode(struct buf *b, slice text) {
    return decode(b, text, url_values);
}
