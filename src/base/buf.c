#include "base/base.h"

#include <stdarg.h>
#include <stdio.h>

enum { BUF_FIRST = 64, DIGITS_MAX = 20 };

void buf_free(struct buf *b) {
    mem_free(b->p);
    *b = (struct buf){0};
}

void buf_free_wiped(struct buf *b) {
    mem_free_wiped(b->p);
    *b = (struct buf){0};
}

/* Doubling keeps a buffer filled byte by byte linear. */
void buf_grow(struct buf *b, size_t more) {
    if (b->cap - b->len >= more) return;
    CHECK(more <= SIZE_MAX / 4 && b->len <= SIZE_MAX / 4);
    size_t cap = b->cap ? b->cap * 2 : BUF_FIRST;
    if (cap < b->len + more) cap = b->len + more;
    b->p = mem_realloc(b->p, cap);
    b->cap = cap;
}

void buf_printf(struct buf *b, const char *fmt, ...) {
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    size_t room = b->cap - b->len;
    int n = vsnprintf(room ? b->p + b->len : NULL, room, fmt, args);
    CHECK(n >= 0);
    if ((size_t)n >= room) {
        buf_grow(b, (size_t)n + 1); /* vsnprintf wants a place for its NUL */
        vsnprintf(b->p + b->len, (size_t)n + 1, fmt, again);
    }
    b->len += (size_t)n;
    va_end(again);
    va_end(args);
}

static const char digit_pairs[] = "00010203040506070809"
                                  "10111213141516171819"
                                  "20212223242526272829"
                                  "30313233343536373839"
                                  "40414243444546474849"
                                  "50515253545556575859"
                                  "60616263646566676869"
                                  "70717273747576777879"
                                  "80818283848586878889"
                                  "90919293949596979899";

void buf_dec(struct buf *b, u64 v) {
    char digits[DIGITS_MAX];
    char *p = digits + sizeof digits;
    while (v >= 10) {
        const char *pair = digit_pairs + v % 100 * 2;
        *--p = pair[1];
        *--p = pair[0];
        v /= 100;
    }
    if (v || p == digits + sizeof digits) *--p = (char)('0' + v);
    buf_add(b, p, (size_t)(digits + sizeof digits - p));
}

void buf_dec_signed(struct buf *b, i64 v) {
    if (v < 0) buf_char(b, '-');
    buf_dec(b, v < 0 ? -(u64)v : (u64)v);
}
