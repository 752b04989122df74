/* Sixteen digits, twelve bytes, at a time: their bits are spread and gathered in words, what they are spelled as is told by comparing
 * all of them with the few ranges there are. Tables, one digit after the other, for what is left. */
#include "base/base.h"

#define COMMON_DIGITS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
/* Each spelling gets its own code, with its last two digits as numbers in it. */
#define INLINED inline __attribute__((always_inline))

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

/* Sixteen bytes seen in five ways. Compared, a lane of digits becomes 0 or -1; what is added may pass 127 on its way, as bytes. */
typedef signed char digits16 __attribute__((vector_size(16)));
typedef u8 bytes16 __attribute__((vector_size(16)));
typedef u16 pairs8 __attribute__((vector_size(16)));
typedef u32 fours4 __attribute__((vector_size(16)));
typedef u64 words2 __attribute__((vector_size(16)));

#define LOW24 UINT64_C(0xFFFFFF)

/* The 48 low bits of each word as eight times six, the first in the lowest byte; and back. */
static inline digits16 spread(words2 bits) {
    fours4 fours = (fours4)((bits >> 24 & LOW24) | (bits & LOW24) << 32);
    pairs8 pairs = (pairs8)(fours >> 12 | (fours & 0xFFF) << 16);
    return (digits16)(pairs >> 6 | (pairs & 0x3F) << 8);
}

static inline words2 gather(digits16 sixes) {
    pairs8 pairs = (pairs8)sixes;
    fours4 fours = (fours4)((pairs & 0x3F) << 6 | pairs >> 8);
    words2 words = (words2)((fours & 0xFFF) << 12 | fours >> 16);
    return (words & LOW24) << 24 | words >> 32;
}

static inline void encode12(const u8 *in, char *out, signed char digit62, signed char digit63) {
    digits16 v = spread((words2){__builtin_bswap64(get_u64(in)) >> 16, __builtin_bswap64(get_u64(in + 4))});
    bytes16 text = (bytes16)v + 'A' + (bytes16)((v > 25) & ('a' - 'Z' - 1)) + (bytes16)((v > 51) & ('0' - 'z' - 1));
    text += (bytes16)((v == 62) & (signed char)(digit62 - '9' - 1)) +
            (bytes16)((v == 63) & (signed char)(digit63 - '9' - 2));
    memcpy(out, &text, sizeof text);
}

/* Writes twelve bytes, and two that are not meant. *known stays all ones as long as all are digits. */
static inline void decode16(const u8 *in, char *out, signed char digit62, signed char digit63, digits16 *known) {
    digits16 c;
    memcpy(&c, in, sizeof c);
    digits16 low = c | ('a' - 'A'), letter = (low > 'a' - 1) & (low < 'z' + 1);
    digits16 number = (c > '0' - 1) & (c < '9' + 1), is62 = c == digit62, is63 = c == digit63;
    *known &= letter | number | is62 | is63;
    digits16 of_letter = (digits16)((bytes16)low - 'a' + (bytes16)((c > 'Z') & 26));
    digits16 of_number = (digits16)((bytes16)c + (52 - '0'));
    words2 bits = gather((letter & of_letter) | (number & of_number) | (is62 & 62) | (is63 & 63));
    put_u64(out, __builtin_bswap64(bits[0] << 16));
    put_u64(out + 6, __builtin_bswap64(bits[1] << 16));
}

static inline bool all_known(digits16 known) {
    words2 words = (words2)known;
    return (words[0] & words[1]) == UINT64_MAX;
}

static INLINED void encode(struct buf *b, slice s, const char *digits, bool padded) {
    buf_grow(b, s.n / 3 * 4 + 4);
    const u8 *in = (const u8 *)s.p;
    char *out = b->p + b->len;
    size_t left = s.n;
    for (; left >= 12; in += 12, left -= 12, out += 16) encode12(in, out, digits[62], digits[63]);
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

static INLINED bool decode(struct buf *b, slice text, const u8 *values, char digit62, char digit63) {
    size_t start = b->len;
    buf_grow(b, text.n / 4 * 3 + 4);
    const u8 *in = (const u8 *)text.p;
    char *out = b->p + start;
    size_t left = text.n;
    digits16 known = (digits16)(words2){UINT64_MAX, UINT64_MAX};
    for (; left >= 16; in += 16, left -= 16, out += 12) decode16(in, out, digit62, digit63, &known);
    for (; left >= 4; in += 4, left -= 4) {
        /* What is no digit comes to -1, whose top bits stay whatever it is shifted by. */
        u32 bits =
            (values[in[0]] - 1u) << 18 | (values[in[1]] - 1u) << 12 | (values[in[2]] - 1u) << 6 | (values[in[3]] - 1u);
        if (bits >> 24) break;
        put_u32(out, __builtin_bswap32(bits << 8)); /* one byte too many: there is room */
        out += 3;
    }
    b->len = (size_t)(out - b->p);
    if (all_known(known) && (left == 0 || (left < 4 && decode_tail(b, in, left, values)))) return true;
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
    return decode(b, text, standard_values, '+', '/');
}

bool buf_base64url_decode(struct buf *b, slice text) {
    return decode(b, text, url_values, '-', '_');
}
