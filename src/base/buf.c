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

static u32 digits_of(u64 v) {
    u32 n = 1;
    for (; v >= 10000; v /= 10000) n += 4;
    return n + (v >= 10) + (v >= 100) + (v >= 1000);
}

void buf_dec(struct buf *b, u64 v) {
    if (v < 10) return buf_char(b, (char)('0' + v));
    buf_grow(b, DIGITS_MAX);
    b->len += digits_of(v);
    char *p = b->p + b->len;
    for (; v >= 10; v /= 100) {
        p -= 2;
        memcpy(p, digit_pairs + v % 100 * 2, 2);
    }
    if (v) *--p = (char)('0' + v);
}

void buf_dec_signed(struct buf *b, i64 v) {
    if (v < 0) buf_char(b, '-');
    buf_dec(b, v < 0 ? -(u64)v : (u64)v);
}
