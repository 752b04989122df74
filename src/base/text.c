#include "base/base_priv.h"

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

bool utf8_valid(slice s) {
    const char *p = s.p;
    size_t left = s.n;
    while (left) {
        if (left >= 32 && !((get_u64(p) | get_u64(p + 8) | get_u64(p + 16) | get_u64(p + 24)) & HIGH_BITS)) {
            p += 32;
            left -= 32;
            continue;
        }
        if (left >= 8 && !(get_u64(p) & HIGH_BITS)) {
            p += 8;
            left -= 8;
            continue;
        }
        if (left < 8 && s.n >= 8 && !(get_u64(p + left - 8) & HIGH_BITS)) break; /* reaches back over plain bytes */
        size_t n = utf8_sequence(p, left);
        if (n == 0) return false;
        p += n;
        left -= n;
    }
    return true;
}

/* Plain: every byte from 0x20 to 0x7e. */
static bool eight_plain(u64 w) {
    return !((w & HIGH_BITS) | bytes_below(w, 0x20) | bytes_equal(w, 0x7f));
}

bool has_control(slice s) {
    for (size_t i = 0; i < s.n; i++) {
        while (s.n - i >= 8 && eight_plain(get_u64(s.p + i))) i += 8;
        if (i == s.n) break;
        if (s.n >= 8 && s.n - i < 8 && eight_plain(get_u64(s.p + s.n - 8))) break; /* reaches back over plain bytes */
        u8 ch = (u8)s.p[i], next = i + 1 < s.n ? (u8)s.p[i + 1] : 0;
        if (ch < 0x20 || ch == 0x7f || (ch == 0xc2 && next >= 0x80 && next < 0xa0)) return true;
    }
    return false;
}

static const char hex_lower[] = "0123456789abcdef";
static const char hex_upper[] = "0123456789ABCDEF";

/* Four bytes as eight digits: their nibbles are spread over the bytes of a word, high one first, and those from ten on go
 * up to the letters. */
static u64 eight_digits(u32 bytes) {
    u64 v = bytes;
    v = (v | v << 16) & UINT64_C(0x0000ffff0000ffff);
    v = (v | v << 8) & UINT64_C(0x00ff00ff00ff00ff);
    v = (v >> 4 & bytes_of(0x0f)) | (v << 8 & UINT64_C(0x0f000f000f000f00));
    u64 letters = (v + bytes_of(6)) >> 4 & bytes_of(1);
    return v + bytes_of('0') + letters * ('a' - '0' - 10);
}

void buf_hex(struct buf *b, slice s) {
    buf_grow(b, s.n * 2);
    char *out = b->p + b->len;
    size_t i = 0;
    for (; i + 4 <= s.n; i += 4, out += 8) put_u64(out, eight_digits(get_u32(s.p + i)));
    for (; i < s.n; i++) {
        u8 byte = (u8)s.p[i];
        *out++ = hex_lower[byte >> 4];
        *out++ = hex_lower[byte & 15];
    }
    b->len += s.n * 2;
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
