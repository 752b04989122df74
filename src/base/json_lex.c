#include "base/json_priv.h"

/* The four digits of a \u escape; -1 if they are not there. */
static int hex4(const char *p, const char *end) {
    if (end - p < 4) return -1;
    int v = 0;
    for (int i = 0; i < 4; i++) {
        int digit = hex_value(p[i]);
        if (digit < 0) return -1;
        v = v << 4 | digit;
    }
    return v;
}

static bool is_high_surrogate(int unit) {
    return unit >= 0xD800 && unit < 0xDC00;
}

static bool is_low_surrogate(int unit) {
    return unit >= 0xDC00 && unit < 0xE000;
}

/* Length of the escape at p, which stands at its backslash; 0 if it is wrong. */
static size_t escape_length(const char *p, const char *end, const char **message) {
    size_t left = (size_t)(end - p);
    if (left >= 2 && p[1] != '\0' && strchr("\"\\/bfnrt", p[1])) return 2;
    int unit = left >= 2 && p[1] == 'u' ? hex4(p + 2, end) : -1;
    *message = unit < 0 ? "bad escape in a string" : "lone surrogate in a string";
    if (unit < 0 || is_low_surrogate(unit)) return 0;
    if (!is_high_surrogate(unit)) return 6;
    return left >= 12 && p[6] == '\\' && p[7] == 'u' && is_low_surrogate(hex4(p + 8, end)) ? 12 : 0;
}

size_t json_lex_special(const char *p, const char *end, const char **message) {
    *message = "the text ends inside a string";
    if (p == end) return 0;
    if (*p == '\\') return escape_length(p, end, message);
    *message = (u8)*p < 0x20 ? "control character in a string" : "invalid UTF-8";
    return (u8)*p < 0x20 ? 0 : utf8_sequence(p, (size_t)(end - p));
}

static char *put_utf8(char *to, u32 c) {
    if (c < 0x80) {
        *to++ = (char)c;
        return to;
    }
    if (c < 0x800) {
        *to++ = (char)(0xC0 | c >> 6);
    } else if (c < 0x10000) {
        *to++ = (char)(0xE0 | c >> 12);
        *to++ = (char)(0x80 | (c >> 6 & 0x3F));
    } else {
        *to++ = (char)(0xF0 | c >> 18);
        *to++ = (char)(0x80 | (c >> 12 & 0x3F));
        *to++ = (char)(0x80 | (c >> 6 & 0x3F));
    }
    *to++ = (char)(0x80 | (c & 0x3F));
    return to;
}

/* One escape that escape_length has accepted: *p is behind the backslash, and behind the escape afterwards. */
static char *unescape_one(char *to, const char **p, const char *end) {
    static const char meaning[256] = {
        ['"'] = '"', ['\\'] = '\\', ['/'] = '/', ['b'] = '\b', ['f'] = '\f', ['n'] = '\n', ['r'] = '\r', ['t'] = '\t'};
    if (**p != 'u') {
        *to++ = meaning[(u8) * *p];
        ++*p;
        return to;
    }
    u32 c = (u32)hex4(*p + 1, end);
    *p += 5;
    if (is_high_surrogate((int)c)) {
        c = 0x10000 + ((c - 0xD800) << 10) + ((u32)hex4(*p + 2, end) - 0xDC00);
        *p += 6;
    }
    return put_utf8(to, c);
}

size_t json_lex_unescape(char *out, slice raw) {
    char *to = out;
    const char *p = raw.p, *end = raw.p + raw.n;
    while (p < end) {
        const char *backslash = memchr(p, '\\', (size_t)(end - p));
        size_t run = (size_t)((backslash ? backslash : end) - p);
        memcpy(to, p, run);
        to += run;
        p += run;
        if (!backslash) break;
        p++;
        to = unescape_one(to, &p, end);
    }
    return (size_t)(to - out);
}

/* At least one digit; *p moves behind them. */
static bool digits(const char **p, const char *end) {
    const char *from = *p;
    while (*p < end && **p >= '0' && **p <= '9') ++*p;
    return *p > from;
}

bool json_lex_number(const char **p, const char *end, bool *integer) {
    *integer = true;
    if (**p == '-') ++*p;
    if (*p < end && **p == '0')
        ++*p;
    else if (!digits(p, end))
        return false;
    if (*p < end && **p == '.') {
        *integer = false;
        ++*p;
        if (!digits(p, end)) return false;
    }
    if (*p < end && (**p == 'e' || **p == 'E')) {
        *integer = false;
        ++*p;
        if (*p < end && (**p == '+' || **p == '-')) ++*p;
        if (!digits(p, end)) return false;
    }
    return true;
}
