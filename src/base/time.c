/* Durations and RFC 3339 times. Dates are counted with the civil calendar's own arithmetic (400 years are always
 * 146097 days), so that neither the locale nor the time zone of the process can have a say. */
#include "base/base_priv.h"

enum { SECOND_MS = 1000, MINUTE_MS = 60 * SECOND_MS, HOUR_MS = 60 * MINUTE_MS, DAY_MS = 24 * HOUR_MS };

static const struct {
    slice suffix;
    i64 ms;
} units[] = {
    {{"d", 1}, DAY_MS}, {{"h", 1}, HOUR_MS}, {{"m", 1}, MINUTE_MS}, {{"s", 1}, SECOND_MS}, {{"ms", 2}, 1},
};
enum { UNITS = sizeof units / sizeof *units };

static i64 unit_ms(slice suffix) {
    if (suffix.n == 0) return SECOND_MS;
    for (size_t i = 0; i < UNITS; i++) {
        if (slice_eq(suffix, units[i].suffix)) return units[i].ms;
    }
    return 0;
}

bool duration_parse(slice text, i64 *ms_out) {
    size_t digits = 0;
    while (digits < text.n && text.p[digits] >= '0' && text.p[digits] <= '9') digits++;
    u64 count;
    if (!slice_u64(slice_of(text.p, digits), &count)) return false;
    i64 unit = unit_ms(slice_of(text.p + digits, text.n - digits));
    i64 ms;
    if (unit == 0 || __builtin_mul_overflow(count, unit, &ms)) return false;
    *ms_out = ms;
    return true;
}

void buf_duration(struct buf *b, i64 ms) {
    size_t i = 0;
    if (ms == 0) {
        buf_lit(b, "0s");
        return;
    }
    while (ms % units[i].ms) i++;
    buf_dec_signed(b, ms / units[i].ms);
    buf_slice_add(b, units[i].suffix);
}

/* Years counted from March have their leap day last; eras of 400 years all look alike. The day numbers below are
 * those of 1970-01-01 (epoch), 0001-01-01 and 10000-01-01 relative to the epoch. */
enum { ERA_DAYS = 146097, EPOCH_FROM_0000_03_01 = 719468, DAYS_0001 = -719162, DAYS_10000 = 2932897 };

struct date {
    int year, month, day;
};

static i64 days_of(struct date d) {
    int year = d.month <= 2 ? d.year - 1 : d.year; /* never below 0: year 0001 is the first */
    int era = year / 400, of_era = year % 400;
    int month = (d.month + 9) % 12; /* March is 0 */
    int day_of_year = (153 * month + 2) / 5 + d.day - 1;
    int day_of_era = of_era * 365 + of_era / 4 - of_era / 100 + day_of_year;
    return (i64)era * ERA_DAYS + day_of_era - EPOCH_FROM_0000_03_01;
}

/* Of a day since 0000-03-01. The year of an era and the day of a year are the quotient and the rest of one multiplication each: see
 * Neri and Schneider, "Euclidean affine functions and their application to calendar algorithms". */
static struct date date_of(u32 from_march) {
    u32 quarters = 4 * from_march + 3, century = quarters / ERA_DAYS;
    u64 years = ((quarters % ERA_DAYS) | 3) * UINT64_C(2939745);
    u32 day_of_year = (u32)years / 2939745 / 4, months = 2141 * day_of_year + 197913;
    bool next = day_of_year >= 306; /* January and February are the next year's */
    return (struct date){.year = (int)(100 * century + (u32)(years >> 32) + next),
                         .month = (int)(months >> 16) - (next ? 12 : 0),
                         .day = (int)((months & 0xffff) / 2141 + 1)};
}

static i64 clamp_to_four_digit_years(i64 unix_ms) {
    const i64 first = (i64)DAYS_0001 * DAY_MS, last = (i64)DAYS_10000 * DAY_MS - 1;
    return unix_ms < first ? first : unix_ms > last ? last : unix_ms;
}

/* A time outside the years the format can say becomes the nearest it can: a deadline that is "never" prints as the
 * end of 9999 instead of stopping the broker. */
void rfc3339_text(char out[RFC3339_BYTES], i64 unix_ms) {
    u64 ms = (u64)(clamp_to_four_digit_years(unix_ms) + (i64)EPOCH_FROM_0000_03_01 * DAY_MS);
    struct date d = date_of((u32)(ms / DAY_MS));
    u32 of_day = (u32)(ms % DAY_MS), second = of_day / SECOND_MS, fraction = of_day % SECOND_MS;
    memcpy(out, "YYYY-MM-DDThh:mm:ss.mmmZ", RFC3339_BYTES);
    put_pair(out, (u32)d.year / 100);
    put_pair(out + 2, (u32)d.year % 100);
    put_pair(out + 5, (u32)d.month);
    put_pair(out + 8, (u32)d.day);
    put_pair(out + 11, second / 3600);
    put_pair(out + 14, second / 60 % 60);
    put_pair(out + 17, second % 60);
    put_pair(out + 20, fraction / 10);
    out[22] = (char)('0' + fraction % 10);
}

void buf_rfc3339(struct buf *b, i64 unix_ms) {
    char text[RFC3339_BYTES];
    rfc3339_text(text, unix_ms);
    buf_add(b, text, sizeof text);
}

/* Takes `width` digits off the front. */
static bool take_digits(slice *s, size_t width, int *out) {
    u64 v;
    if (s->n < width || !slice_u64(slice_of(s->p, width), &v)) return false;
    *out = (int)v;
    *s = slice_of(s->p + width, s->n - width);
    return true;
}

static bool take_char(slice *s, const char *any_of) {
    if (s->n == 0 || s->p[0] == '\0' || !strchr(any_of, s->p[0])) return false;
    *s = slice_of(s->p + 1, s->n - 1);
    return true;
}

static int days_in_month(int year, int month) {
    static const u8 days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    bool leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    return month == 2 && leap ? 29 : days[month - 1];
}

static bool take_date(slice *s, i64 *days) {
    struct date d;
    if (!take_digits(s, 4, &d.year) || !take_char(s, "-") || !take_digits(s, 2, &d.month) || !take_char(s, "-") ||
        !take_digits(s, 2, &d.day))
        return false;
    if (d.year < 1 || d.month < 1 || d.month > 12 || d.day < 1 || d.day > days_in_month(d.year, d.month)) return false;
    *days = days_of(d);
    return true;
}

/* A fraction may have any number of digits; what is finer than a millisecond is cut off. */
static bool take_fraction(slice *s, int *ms) {
    *ms = 0;
    if (!take_char(s, ".")) return true;
    size_t digits = 0;
    for (int unit = 100; digits < s->n && s->p[digits] >= '0' && s->p[digits] <= '9'; digits++, unit /= 10)
        *ms += unit * (s->p[digits] - '0');
    *s = slice_of(s->p + digits, s->n - digits);
    return digits > 0;
}

static bool take_time(slice *s, i64 *ms) {
    int hour, minute, second, fraction;
    if (!take_digits(s, 2, &hour) || !take_char(s, ":") || !take_digits(s, 2, &minute) || !take_char(s, ":") ||
        !take_digits(s, 2, &second) || !take_fraction(s, &fraction))
        return false;
    if (hour > 23 || minute > 59 || second > 59) return false;
    *ms = (hour * 60 + minute) * (i64)MINUTE_MS + second * (i64)SECOND_MS + fraction;
    return true;
}

static bool take_offset(slice *s, i64 *ms) {
    *ms = 0;
    if (take_char(s, "Zz")) return true;
    i64 sign = s->n && s->p[0] == '-' ? -1 : 1;
    int hours, minutes;
    if (!take_char(s, "+-") || !take_digits(s, 2, &hours) || !take_char(s, ":") || !take_digits(s, 2, &minutes))
        return false;
    if (hours > 23 || minutes > 59) return false;
    *ms = sign * (hours * 60 + minutes) * MINUTE_MS;
    return true;
}

/* Leap seconds (:60) are refused: Unix time has no place for them. */
bool rfc3339_parse(slice text, i64 *unix_ms_out) {
    i64 days, of_day, offset;
    if (!take_date(&text, &days) || !take_char(&text, "Tt") || !take_time(&text, &of_day) ||
        !take_offset(&text, &offset) || text.n)
        return false;
    i64 ms = days * DAY_MS + of_day - offset;
    if (ms != clamp_to_four_digit_years(ms)) return false;
    *unix_ms_out = ms;
    return true;
}

static bool take_month(slice *s, int *month) {
    static const char names[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    for (*month = 1; *month <= 12; ++*month) {
        if (!slice_starts(*s, slice_of(&names[(size_t)(*month - 1) * 3], 3))) continue;
        *s = slice_of(s->p + 3, s->n - 3);
        return true;
    }
    return false;
}

bool http_date_parse(slice text, i64 *unix_ms_out) {
    struct date d;
    i64 of_day;
    if (text.n < 5 || text.p[3] != ',') return false; /* which day of the week it was is not asked */
    text = slice_of(text.p + 4, text.n - 4);
    if (!take_char(&text, " ") || !take_digits(&text, 2, &d.day) || !take_char(&text, " ") ||
        !take_month(&text, &d.month) || !take_char(&text, " ") || !take_digits(&text, 4, &d.year) ||
        !take_char(&text, " ") || !take_time(&text, &of_day) || !slice_eq(text, SL(" GMT")))
        return false;
    if (d.year < 1 || d.day < 1 || d.day > days_in_month(d.year, d.month)) return false;
    *unix_ms_out = days_of(d) * DAY_MS + of_day;
    return true;
}
