#include "base/base_priv.h"

#include <stdarg.h>
#include <stdio.h>

enum { BUF_FIRST = 64 };

void buf_free(struct buf *b) {
    mem_free(b->p);
    *b = (struct buf){0};
}

void buf_free_wiped(struct buf *b) {
    mem_free_wiped(b->p);
    *b = (struct buf){0};
}

/* Doubling keeps a buffer filled byte by byte linear. */
void buf_enlarge(struct buf *b, size_t more) {
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

const char digit_pairs[] = "00010203040506070809"
                           "10111213141516171819"
                           "20212223242526272829"
                           "30313233343536373839"
                           "40414243444546474849"
                           "50515253545556575859"
                           "60616263646566676869"
                           "70717273747576777879"
                           "80818283848586878889"
                           "90919293949596979899";

/* log10(2) is 1233 / 4096, near enough: as many digits as that says, or one more. */
static u32 digits_of(u64 v) {
#define TEN(power) (u64)1e##power
    static const u64 ten_to[DEC_BYTES_MAX] = {TEN(0),  TEN(1),  TEN(2),  TEN(3),  TEN(4),  TEN(5),  TEN(6),
                                              TEN(7),  TEN(8),  TEN(9),  TEN(10), TEN(11), TEN(12), TEN(13),
                                              TEN(14), TEN(15), TEN(16), TEN(17), TEN(18), TEN(19)};
#undef TEN
    u32 n = (64 - (u32)__builtin_clzll(v | 1)) * 1233 >> 12;
    return n + ((v | 1) >= ten_to[n]); /* 0 has a digit, too */
}

char *write_dec(char *to, u64 v) {
    char *end = to + digits_of(v), *p = end;
    for (; v >= 10000; v /= 10000) {
        u32 four = (u32)(v % 10000);
        put_pair(p -= 2, four % 100);
        put_pair(p -= 2, four / 100);
    }
    if (v >= 100) {
        put_pair(p -= 2, (u32)v % 100);
        v = (u32)v / 100;
    }
    if (v >= 10)
        put_pair(p - 2, (u32)v);
    else
        p[-1] = (char)('0' + v);
    return end;
}

void buf_dec(struct buf *b, u64 v) {
    if (v < 10) return buf_char(b, (char)('0' + v));
    buf_grow(b, DEC_BYTES_MAX);
    buf_end_at(b, write_dec(buf_end(b), v));
}

void buf_dec_signed(struct buf *b, i64 v) {
    if (v < 0) buf_char(b, '-');
    buf_dec(b, v < 0 ? -(u64)v : (u64)v);
}
