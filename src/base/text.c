#include "base/base_priv.h"
#include "base/sixteen.h"

static bool is_tail(char c) {
    return ((u8)c & 0xC0) == 0x80;
}

/* The second byte's range is narrower after some first bytes: that is where overlong forms (E0, F0), surrogates (ED)
 * and values beyond U+10FFFF (F4) would hide. */
size_t utf8_sequence(const char *p, size_t left) {
    if (left == 0) return 0;
    u8 first = (u8)p[0];
    if (first < 0x80) return 1;
    size_t n = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (first < 0xC2 || first > 0xF4 || left < n) return 0;
    u8 second = (u8)p[1];
    u8 low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    u8 high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    if (second < low || second > high) return 0;
    for (size_t i = 2; i < n; i++) {
        if (!is_tail(p[i])) return 0;
    }
    return n;
}

void utf8_trim(char *text) {
    size_t n = strlen(text), from = n;
    while (from > 0 && n - from < 3 && is_tail(text[from - 1])) from--;
    if (from > 0 && (u8)text[from - 1] >= 0xC0 && utf8_sequence(text + from - 1, n - from + 1) == 0)
        text[from - 1] = '\0';
}

static sixteen not_ascii(sixteen v) {
    return v < 0;
}

bool utf8_valid(slice s) {
    if (sixteen_all(s, not_ascii)) return true;
    for (size_t i = 0, n; i < s.n; i += n) {
        n = s.n - i >= 8 && !(get_u64(s.p + i) & HIGH_BITS) ? 8 : utf8_sequence(s.p + i, s.n - i);
        if (n == 0) return false;
    }
    return true;
}

/* Plain: every byte from 0x20 to 0x7e. */
static sixteen not_plain(sixteen v) {
    return (v < 0x20) | (v == 0x7f);
}

bool text_plain(slice s) {
    return sixteen_all(s, not_plain);
}

bool has_control(slice s) {
    if (text_plain(s)) return false;
    for (size_t i = 0; i < s.n; i++) {
        u8 ch = (u8)s.p[i], next = i + 1 < s.n ? (u8)s.p[i + 1] : 0;
        if (ch < 0x20 || ch == 0x7f || (ch == 0xc2 && next >= 0x80 && next < 0xa0)) return true;
    }
    return false;
}

static const char hex_lower[] = "0123456789abcdef";
static const char hex_upper[] = "0123456789ABCDEF";

static sixteen digits_of(sixteen nibbles) {
    return nibbles + '0' + ((nibbles > 9) & ('a' - '0' - 10));
}

static void hex_16(char out[32], const char *p) {
    sixteen v = sixteen_at(p), low = v & 15, high = (v >> 4) & 15;
    sixteen_put(out,
                digits_of(__builtin_shufflevector(high, low, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)));
    sixteen_put(out + 16, digits_of(__builtin_shufflevector(high, low, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14,
                                                            30, 15, 31)));
}

char *write_hex(char *to, slice s) {
    size_t i = 0;
    for (; i + 16 <= s.n; i += 16, to += 32) hex_16(to, s.p + i);
    for (; i < s.n; i++) {
        u8 byte = (u8)s.p[i];
        *to++ = hex_lower[byte >> 4];
        *to++ = hex_lower[byte & 15];
    }
    return to;
}

void buf_hex(struct buf *b, slice s) {
    buf_grow(b, s.n * 2);
    buf_end_at(b, write_hex(buf_end(b), s));
}

bool hex_decode(slice text, void *out, size_t out_len) {
    if (text.n % 2 || text.n / 2 != out_len) return false;
    u8 *to = out;
    for (size_t i = 0; i < out_len; i++) {
        int high = hex_value(text.p[2 * i]), low = hex_value(text.p[2 * i + 1]);
        if (high < 0 || low < 0) return false;
        to[i] = (u8)(high << 4 | low);
    }
    return true;
}

bool buf_percent_decode(struct buf *b, slice s) {
    size_t start = b->len;
    buf_grow(b, s.n);
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] != '%') {
            b->p[b->len++] = s.p[i];
            continue;
        }
        u8 byte;
        if (s.n - i < 3 || !hex_decode(slice_of(s.p + i + 1, 2), &byte, 1)) {
            b->len = start;
            return false;
        }
        b->p[b->len++] = (char)byte;
        i += 2;
    }
    return true;
}

static bool is_unreserved(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
           c == '_' || c == '~';
}

void buf_percent_encode(struct buf *b, slice s) {
    for (size_t i = 0; i < s.n; i++) {
        if (is_unreserved(s.p[i])) {
            buf_char(b, s.p[i]);
            continue;
        }
        u8 byte = (u8)s.p[i];
        char escape[3] = {'%', hex_upper[byte >> 4], hex_upper[byte & 15]};
        buf_add(b, escape, sizeof escape);
    }
}
