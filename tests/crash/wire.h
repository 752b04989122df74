/* wire: growable bytes, base64, and just enough JSON to find members and read strings, for test programs that must not
 * share a line with what they test. Views borrow from the text they were found in. */
#ifndef HAPAX_TESTS_WIRE_H
#define HAPAX_TESTS_WIRE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline _Noreturn void wire_fatal(const char *why) {
    fprintf(stderr, "%s\n", why);
    exit(2);
}

struct text {
    const char *p;
    size_t n;
};

struct bytes {
    char *p;
    size_t n, cap;
};

static inline void bytes_add(struct bytes *b, const void *p, size_t n) {
    if (b->cap - b->n < n) {
        b->cap = (b->n + n) * 2 + 256;
        b->p = realloc(b->p, b->cap);
        if (!b->p) wire_fatal("out of memory");
    }
    if (n) memcpy(b->p + b->n, p, n);
    b->n += n;
}

static inline void bytes_text(struct bytes *b, const char *s) {
    bytes_add(b, s, strlen(s));
}

static inline void bytes_format(struct bytes *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static inline void bytes_format(struct bytes *b, const char *fmt, ...) {
    char line[1024];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    if (n < 0 || (size_t)n >= sizeof line) wire_fatal("line too long");
    bytes_add(b, line, (size_t)n);
}

static inline void base64_add(struct bytes *b, struct text t) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < t.n; i += 3) {
        uint32_t left = (uint32_t)(t.n - i), v = (uint32_t)(unsigned char)t.p[i] << 16;
        if (left > 1) v |= (uint32_t)(unsigned char)t.p[i + 1] << 8;
        if (left > 2) v |= (uint32_t)(unsigned char)t.p[i + 2];
        char out[4] = {digits[v >> 18], digits[v >> 12 & 63], left > 1 ? digits[v >> 6 & 63] : '=',
                       left > 2 ? digits[v & 63] : '='};
        bytes_add(b, out, 4);
    }
}

static inline int base64_digit(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

static inline bool base64_read(struct bytes *b, struct text t) {
    uint32_t v = 0, bits = 0;
    for (size_t i = 0; i < t.n && t.p[i] != '='; i++) {
        int d = base64_digit(t.p[i]);
        if (d < 0) return false;
        v = v << 6 | (uint32_t)d;
        bits += 6;
        if (bits < 8) continue;
        bits -= 8;
        char c = (char)(v >> bits & 0xff);
        bytes_add(b, &c, 1);
    }
    return true;
}

static const char *json_space(const char *p, const char *end) {
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')) p++;
    return p;
}

static const char *json_string_end(const char *p, const char *end) {
    for (p++; p < end && *p != '"'; p++)
        if (*p == '\\') p++;
    return p < end ? p + 1 : NULL;
}

/* The end of the value at p, NULL if it is cut. Brackets are counted, not matched: the broker's JSON is not on trial.
 */
static const char *json_end(const char *p, const char *end) {
    int depth = 0;
    do {
        if (p >= end) return NULL;
        if (*p == '"') {
            p = json_string_end(p, end);
            if (!p) return NULL;
            continue;
        }
        if (*p == '{' || *p == '[') {
            depth++;
        } else if (*p == '}' || *p == ']') {
            depth--;
        } else if (depth == 0) {
            while (p < end && !strchr(",]} \r\n\t", *p)) p++;
            return p;
        }
        p++;
    } while (depth > 0);
    return p;
}

static inline struct text json_member(struct text object, const char *name) {
    const char *p = json_space(object.p, object.p + object.n), *end = object.p + object.n;
    size_t name_n = strlen(name);
    if (p >= end || *p != '{') return (struct text){NULL, 0};
    p = json_space(p + 1, end);
    while (p < end && *p == '"') {
        const char *after = json_string_end(p, end);
        if (!after) break;
        bool match = (size_t)(after - p) == name_n + 2 && memcmp(p + 1, name, name_n) == 0;
        p = json_space(after, end);
        if (p >= end || *p != ':') break;
        p = json_space(p + 1, end);
        const char *value_end = json_end(p, end);
        if (!value_end) break;
        if (match) return (struct text){p, (size_t)(value_end - p)};
        p = json_space(value_end, end);
        if (p < end && *p == ',') p = json_space(p + 1, end);
    }
    return (struct text){NULL, 0};
}

/* Walk an array: *rest starts as the array's text; each call yields one element. */
static inline bool json_next(struct text *rest, struct text *element) {
    const char *end = rest->p + rest->n, *p = json_space(rest->p, end);
    if (p < end && (*p == '[' || *p == ',')) p = json_space(p + 1, end);
    if (p >= end || *p == ']') return false;
    const char *after = json_end(p, end);
    if (!after) return false;
    *element = (struct text){p, (size_t)(after - p)};
    *rest = (struct text){after, (size_t)(end - after)};
    return true;
}

static inline uint32_t json_hex4(const char *p) {
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) {
        char c = p[i];
        v = v << 4 | (uint32_t)(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
    }
    return v;
}

static inline void utf8_add(struct bytes *b, uint32_t c) {
    unsigned char u[4];
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = n; i-- > 1; c >>= 6) u[i] = (unsigned char)(0x80 | (c & 0x3f));
    u[0] = (unsigned char)(lead[n] | c);
    bytes_add(b, u, n);
}

static inline void json_escape_read(struct bytes *b, struct text t, size_t *at) {
    static const char from[] = "bfnrt", to[] = "\b\f\n\r\t";
    char c = t.p[++*at];
    if (c == 'u' && *at + 4 < t.n) {
        uint32_t u = json_hex4(t.p + *at + 1);
        *at += 4;
        if (u >= 0xd800 && u < 0xdc00 && *at + 6 < t.n) {
            u = 0x10000 + ((u - 0xd800) << 10) + (json_hex4(t.p + *at + 3) - 0xdc00);
            *at += 6;
        }
        utf8_add(b, u);
        return;
    }
    const char *known = strchr(from, c);
    bytes_add(b, known ? &to[known - from] : &t.p[*at], 1);
}

static inline bool json_string(struct text raw, struct bytes *out) {
    if (raw.n < 2 || raw.p[0] != '"') return false;
    for (size_t i = 1; i + 1 < raw.n; i++) {
        if (raw.p[i] == '\\')
            json_escape_read(out, raw, &i);
        else
            bytes_add(out, &raw.p[i], 1);
    }
    return true;
}

static inline void json_quote(struct bytes *b, struct text t) {
    bytes_text(b, "\"");
    for (size_t i = 0; i < t.n; i++) {
        unsigned char c = (unsigned char)t.p[i];
        if (c == '"' || c == '\\') bytes_text(b, "\\");
        if (c < 0x20)
            bytes_format(b, "\\u%04x", c);
        else
            bytes_add(b, &c, 1);
    }
    bytes_text(b, "\"");
}

/* A string member as C text; false if absent or too long. */
static inline bool json_copy(struct text object, const char *name, char *out, size_t cap) {
    struct bytes b = {0};
    bool ok = json_string(json_member(object, name), &b) && b.n < cap;
    if (ok && b.n) memcpy(out, b.p, b.n);
    out[ok ? b.n : 0] = '\0';
    free(b.p);
    return ok;
}

static inline uint64_t json_number(struct text object, const char *name) {
    struct text t = json_member(object, name);
    uint64_t v = 0;
    for (size_t i = 0; i < t.n && t.p[i] >= '0' && t.p[i] <= '9'; i++) v = v * 10 + (uint64_t)(t.p[i] - '0');
    return v;
}

static inline bool json_is(struct text object, const char *name, const char *raw) {
    struct text t = json_member(object, name);
    return t.p && t.n == strlen(raw) && memcmp(t.p, raw, t.n) == 0;
}

/* Strict RFC 8259, for judging what a broker says: where the value at p ends, or NULL if it is not one. */
static inline const char *json_strict_value(const char *p, const char *end, int depth);

static inline const char *json_strict_string(const char *p, const char *end) {
    if (p >= end || *p != '"') return NULL;
    for (p++; p < end && *p != '"'; p++) {
        if ((unsigned char)*p < 0x20) return NULL;
        if (*p != '\\') continue;
        if (++p >= end || !strchr("\"\\/bfnrtu", *p)) return NULL;
        if (*p == 'u' && (end - p < 5 || strspn(p + 1, "0123456789abcdefABCDEF") < 4)) return NULL;
    }
    return p < end ? p + 1 : NULL;
}

static inline const char *json_strict_number(const char *p, const char *end) {
    const char *digits;
    if (p < end && *p == '-') p++;
    digits = p;
    while (p < end && *p >= '0' && *p <= '9') p++;
    if (p == digits || (*digits == '0' && p > digits + 1)) return NULL;
    if (p < end && *p == '.') {
        digits = ++p;
        while (p < end && *p >= '0' && *p <= '9') p++;
        if (p == digits) return NULL;
    }
    return p;
}

static inline const char *json_strict_many(const char *p, const char *end, int depth) {
    bool object = *p == '{';
    char close = object ? '}' : ']';
    p = json_space(p + 1, end);
    if (p < end && *p == close) return p + 1;
    for (;;) {
        if (object) {
            p = json_strict_string(p, end);
            if (!p) return NULL;
            p = json_space(p, end);
            if (p >= end || *p != ':') return NULL;
            p = json_space(p + 1, end);
        }
        p = json_strict_value(p, end, depth + 1);
        if (!p) return NULL;
        p = json_space(p, end);
        if (p < end && *p == close) return p + 1;
        if (p >= end || *p != ',') return NULL;
        p = json_space(p + 1, end);
    }
}

static inline const char *json_strict_value(const char *p, const char *end, int depth) {
    static const char *const words[] = {"true", "false", "null"};
    if (p >= end || depth > 64) return NULL;
    if (*p == '{' || *p == '[') return json_strict_many(p, end, depth);
    if (*p == '"') return json_strict_string(p, end);
    for (size_t i = 0; i < 3; i++) {
        size_t n = strlen(words[i]);
        if ((size_t)(end - p) >= n && memcmp(p, words[i], n) == 0) return p + n;
    }
    return json_strict_number(p, end);
}

static inline bool json_valid(struct text t) {
    const char *end = t.p + t.n, *p = json_strict_value(json_space(t.p, end), end, 0);
    return p && json_space(p, end) == end;
}

#endif
