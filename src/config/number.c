/* Numbers in canonical decimal form.
 *
 * A number is taken apart into sign, digits without zeros at either end, and the power of ten that scales 0.DIGITS to
 * its value. That triple is unique, and is written in one way: plainly where the point falls within or near the
 * digits, else with an exponent. Doubles take no part, so a 19-digit id is not rounded to its neighbour. */
#include "config/view.h"

enum {
    EXPONENT_MAX = 999999999,
    ZEROS_MAX = 40, /* written out, before or behind the digits */
};

struct decimal {
    bool negative;
    const char *p, *end; /* from the first to behind the last digit that is not zero; a point may stand among them */
    i64 count;           /* digits */
    i64 scale;           /* the value is 0.DIGITS * 10^scale */
};

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* Behind the e; false: too large. */
static bool read_exponent(const char *p, const char *end, i64 *out) {
    bool negative = *p == '-';
    if (*p == '-' || *p == '+') p++;
    i64 v = 0;
    for (; p < end; p++) {
        v = v * 10 + (*p - '0');
        if (v > EXPONENT_MAX) return false;
    }
    *out = negative ? -v : v;
    return true;
}

/* `text` is a number by RFC 8259. False: its exponent is too large. */
static bool take_apart(slice text, struct decimal *d) {
    const char *p = text.p, *end = text.p + text.n;
    const char *e = memchr(p, 'e', text.n);
    if (!e) e = memchr(p, 'E', text.n);
    const char *digits_end = e ? e : end;
    *d = (struct decimal){.negative = *p == '-'};
    if (d->negative) p++;
    const char *point = memchr(p, '.', (size_t)(digits_end - p));
    const char *whole_end = point ? point : digits_end;
    while (p < digits_end && (*p == '0' || *p == '.')) p++;
    if (p == digits_end) { /* zero, whatever its exponent and sign */
        d->negative = false;
        return true;
    }
    while (digits_end[-1] == '0' || digits_end[-1] == '.') digits_end--;
    d->p = p;
    d->end = digits_end;
    d->count = (i64)(digits_end - p) - (point && point > p && point < digits_end);
    d->scale = p < whole_end ? (i64)(whole_end - p) : -(i64)(p - whole_end - 1);
    i64 exponent = 0;
    if (e && !read_exponent(e + 1, end, &exponent)) return false;
    d->scale += exponent;
    return true;
}

/* Digits from..to of the number; zeros behind the last. */
static void put_digits(struct buf *out, const struct decimal *d, i64 from, i64 to) {
    i64 i = 0;
    for (const char *p = d->p; p < d->end && i < to; p++) {
        if (!is_digit(*p)) continue;
        if (i++ >= from) buf_char(out, *p);
    }
    for (; i < to; i++) buf_char(out, '0');
}

bool number_canonical(slice text, struct buf *out) {
    struct decimal d;
    if (!take_apart(text, &d)) return false;
    if (d.negative) buf_char(out, '-');
    if (d.count == 0) {
        buf_char(out, '0');
    } else if (d.scale > 0 && d.scale <= d.count + ZEROS_MAX) {
        put_digits(out, &d, 0, d.scale);
        if (d.count > d.scale) buf_char(out, '.');
        put_digits(out, &d, d.scale, d.count);
    } else if (d.scale <= 0 && d.scale > -ZEROS_MAX) {
        buf_lit(out, "0.");
        for (i64 i = d.scale; i < 0; i++) buf_char(out, '0');
        put_digits(out, &d, 0, d.count);
    } else {
        put_digits(out, &d, 0, 1);
        if (d.count > 1) buf_char(out, '.');
        put_digits(out, &d, 1, d.count);
        buf_char(out, 'e');
        buf_dec_signed(out, d.scale - 1);
    }
    return true;
}

/* Up to this length everything without an exponent is written out; so only a useless zero or sign can be wrong. */
bool number_is_plain(slice text) {
    if (text.n > ZEROS_MAX || memchr(text.p, 'e', text.n) || memchr(text.p, 'E', text.n)) return false;
    if (memchr(text.p, '.', text.n)) return text.p[text.n - 1] != '0';
    return !slice_eq(text, SL("-0"));
}

bool number_is_integer(slice text) {
    struct decimal d;
    return take_apart(text, &d) && d.scale >= d.count;
}
