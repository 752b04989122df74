#include "base/log.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "base/base_priv.h"

/* Kept for the end of every line: what closes a text, how many were suppressed and lost, that it was cut, the newline. */
#define ENDING_BYTES 112u

static const char *const level_names[] = {"error", "warn", "info", "debug"};
static const char *const format_names[] = {"logfmt", "json"};
static _Atomic int current_level = LOG_INFO;
static _Atomic int current_format = LOG_AS_LOGFMT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of what follows */
static struct log_limits limits;
static u64 lost; /* lines the reader had no room for, since the last one that got through */

void log_set_level(enum log_level level) {
    atomic_store_explicit(&current_level, (int)level, memory_order_relaxed);
}

void log_set_format(enum log_format format) {
    atomic_store_explicit(&current_format, (int)format, memory_order_relaxed);
}

static bool name_parse(slice name, const char *const *names, size_t count, size_t *out) {
    for (*out = 0; *out < count; ++*out)
        if (slice_eq(name, slice_str(names[*out]))) return true;
    return false;
}

bool log_level_parse(slice name, enum log_level *out) {
    size_t i;
    if (!name_parse(name, level_names, sizeof level_names / sizeof *level_names, &i)) return false;
    *out = (enum log_level)i;
    return true;
}

bool log_format_parse(slice name, enum log_format *out) {
    size_t i;
    if (!name_parse(name, format_names, sizeof format_names / sizeof *format_names, &i)) return false;
    *out = (enum log_format)i;
    return true;
}

/* ---- repeats */

static bool at_rest(const struct log_bucket *b, i64 now_ms) {
    return b->of == 0 || now_ms - b->full_ms >= LOG_REST_MS;
}

/* What is at rest gives its bucket away; where all near it are in use, the last one is shared. */
static struct log_bucket *bucket_of(struct log_limits *l, u64 of, i64 now_ms) {
    struct log_bucket *rests = NULL, *b = NULL;
    for (u32 i = 0; i < LOG_BUCKETS_NEAR; i++) {
        b = &l->at[(of + i) % LOG_BUCKETS];
        if (b->of == of) return b;
        if (!rests && at_rest(b, now_ms)) rests = b;
    }
    if (!rests) return b;
    *rests = (struct log_bucket){.of = of, .full_ms = now_ms};
    return rests;
}

/* Ten tokens, one more a second: written as the moment when all ten are there again. */
bool log_limit(struct log_limits *l, u64 of, i64 now_ms, u64 *suppressed) {
    struct log_bucket *b = bucket_of(l, of, now_ms);
    if (b->full_ms < now_ms) b->full_ms = now_ms;
    if (b->full_ms - now_ms > (LOG_BURST - 1) * LOG_REFILL_MS) {
        b->suppressed++;
        return false;
    }
    b->full_ms += LOG_REFILL_MS;
    *suppressed = b->suppressed;
    b->suppressed = 0;
    return true;
}

static u64 limited_by(const char *event, const struct log_field *fields, size_t count) {
    static const struct siphash_key key = {0, 0}; /* who aims for a collision shares another's ten lines, no more */
    u64 of = siphash(&key, event, strlen(event));
    for (size_t i = 0; i < count; i++) {
        if (fields[i].kind == LOG_FIELD_EVERY) return 0;
        if (fields[i].kind == LOG_FIELD_TEXT && fields[i].name && strcmp(fields[i].name, "queue") == 0)
            of ^= siphash(&key, fields[i].text.p, fields[i].text.n) * 3;
    }
    return of | 1;
}

/* ---- a line */

struct line {
    char p[LOG_LINE_BYTES];
    size_t len, max;
    bool json, cut;
};

/* All of it or nothing. */
static bool add(struct line *l, const char *p, size_t n) {
    if (l->cut || n > l->max - l->len) {
        l->cut = true;
        return false;
    }
    memcpy(l->p + l->len, p, n);
    l->len += n;
    return true;
}

static bool add_str(struct line *l, const char *text) {
    return add(l, text, strlen(text));
}

/* C1 control characters are two bytes in UTF-8, and terminals obey them as they obey ESC. */
static size_t printable(slice s) {
    u8 c = (u8)s.p[0];
    if (c < 0x20 || c == 0x7f) return 0;
    if (c == 0xC2 && s.n > 1 && (u8)s.p[1] < 0xA0) return 0;
    return utf8_sequence(s.p, s.n);
}

/* The next character of `s`, as it stands between quotes; returns its bytes. JSON has no way to say a byte that is no
 * character: U+FFFD stands for it. */
static size_t escape(slice s, bool json, char out[8], size_t *out_len) {
    size_t n = printable(s), used = n ? n : 1;
    u8 c = (u8)s.p[0];
    if (n && c != '"' && c != '\\') {
        memcpy(out, s.p, n);
        *out_len = n;
        return used;
    }
    int len;
    if (n || c == '\n')
        len = snprintf(out, 8, "\\%c", c == '\n' ? 'n' : c);
    else if (!json)
        len = snprintf(out, 8, "\\x%02x", c);
    else if (c < 0x80)
        len = snprintf(out, 8, "\\u%04x", c);
    else if (c == 0xC2 && s.n > 1 && utf8_sequence(s.p, s.n) == 2 && (used = 2))
        len = snprintf(out, 8, "\\u%04x", (u8)s.p[1]);
    else
        len = snprintf(out, 8, "\\ufffd");
    *out_len = (size_t)len;
    return used;
}

static bool stands_bare(slice s) {
    for (size_t i = 0; i < s.n; i++)
        if (s.p[i] <= ' ' || s.p[i] >= 0x7f || strchr("\"\\=", s.p[i])) return false;
    return s.n > 0;
}

/* A text that is cut is closed all the same: the line stays readable to programs. */
static void add_text(struct line *l, slice s) {
    if (!l->json && stands_bare(s) && s.n <= l->max - l->len) {
        add(l, s.p, s.n);
        return;
    }
    if (!add(l, "\"", 1)) return;
    while (s.n) {
        char out[8];
        size_t out_len, n = escape(s, l->json, out, &out_len);
        if (!add(l, out, out_len)) break;
        s = slice_of(s.p + n, s.n - n);
    }
    l->p[l->len++] = '"'; /* of the ending's bytes, if need be */
}

/* A name that does not fit with at least a few bytes of its value is left out. */
static bool add_name(struct line *l, const char *name) {
    size_t n = strlen(name);
    if (l->cut || n + 64 > l->max - l->len) {
        l->cut = true;
        return false;
    }
    if (l->json) return add_str(l, l->len > 1 ? ",\"" : "\"") && add(l, name, n) && add_str(l, "\":");
    return (l->len == 0 || add_str(l, " ")) && add(l, name, n) && add_str(l, "=");
}

static void add_number(struct line *l, const char *name, const char *fmt, double real, i64 number) {
    char text[40];
    if (fmt)
        snprintf(text, sizeof text, fmt, real);
    else
        snprintf(text, sizeof text, "%lld", (long long)number);
    if (add_name(l, name)) add_str(l, text);
}

static void add_field(struct line *l, const struct log_field *f) {
    if (!f->name) return;
    if (f->kind == LOG_FIELD_TEXT && add_name(l, f->name)) add_text(l, f->text);
    if (f->kind == LOG_FIELD_NUMBER) add_number(l, f->name, NULL, 0, f->number);
    if (f->kind == LOG_FIELD_REAL) add_number(l, f->name, "%.6g", f->real, 0);
}

static void add_head(struct line *l, enum log_level level, const char *event, const char *msg) {
    char ts[RFC3339_BYTES];
    l->json = atomic_load_explicit(&current_format, memory_order_relaxed) == LOG_AS_JSON;
    l->max = LOG_LINE_BYTES - ENDING_BYTES;
    rfc3339_text(ts, clock_wall_ms());
    if (l->json) add_str(l, "{");
    if (add_name(l, "ts")) add_text(l, slice_of(ts, sizeof ts));
    if (add_name(l, "level")) add_text(l, slice_str(level_names[level]));
    if (add_name(l, "event")) add_text(l, slice_str(event));
    if (add_name(l, "msg")) add_text(l, slice_str(msg));
}

static void add_end(struct line *l, u64 suppressed, u64 missing) {
    bool cut = l->cut;
    l->cut = false;
    l->max = LOG_LINE_BYTES;
    if (suppressed) add_number(l, "suppressed", NULL, 0, (i64)suppressed);
    if (missing) add_number(l, "lost", NULL, 0, (i64)missing);
    if (cut) add_str(l, l->json ? ",\"cut\":true" : " cut=true");
    add_str(l, l->json ? "}\n" : "\n");
}

/* A log that cannot be written must not stop the work it tells of. */
static bool can_write(void) {
    struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
    return poll(&p, 1, 0) == 1 && (p.revents & POLLOUT);
}

static bool put_out(const struct line *l) {
    ssize_t n;
    do {
        n = write(STDERR_FILENO, l->p, l->len);
    } while (n < 0 && errno == EINTR);
    return n >= 0;
}

static void make(struct line *l, enum log_level level, const char *event, const char *msg,
                 const struct log_field *fields, size_t count) {
    l->len = 0;
    l->cut = false;
    add_head(l, level, event, msg);
    for (size_t i = 0; i < count; i++) add_field(l, &fields[i]);
}

void log_fields(enum log_level level, const char *event, const char *msg, const struct log_field *fields,
                size_t count) {
    if ((int)level > atomic_load_explicit(&current_level, memory_order_relaxed)) return;
    int saved_errno = errno;
    u64 of = limited_by(event, fields, count), suppressed = 0;
    pthread_mutex_lock(&lock);
    if (of == 0 || log_limit(&limits, of, clock_mono_ms(), &suppressed)) {
        struct line l;
        make(&l, level, event, msg, fields, count);
        add_end(&l, suppressed, lost);
        lost = can_write() && put_out(&l) ? 0 : lost + 1;
    }
    pthread_mutex_unlock(&lock);
    errno = saved_errno;
}

void log_line(enum log_level level, const char *event, const char *fmt, ...) {
    char message[LOG_LINE_BYTES]; /* longer than any line: what is cut here is cut there, and said */
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    log_event(level, event, n < 0 ? fmt : message, LOG_EVERY);
}

void log_last_words(const char *event, const char *msg, struct log_field first, struct log_field second) {
    struct line l;
    make(&l, LOG_ERROR, event, msg, (const struct log_field[]){first, second}, 2);
    add_end(&l, 0, 0);
    put_out(&l);
}
