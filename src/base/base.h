/* base: bytes, containers, checks, status codes, logging. Sees libc only.
 *
 * Conventions every room follows:
 *  - a `slice` is a borrowed view: valid as long as the memory it points into; never freed through.
 *  - allocation never returns NULL: running out of memory ends the process with a message (everything that was
 *    answered is on disk, so this is a crash like any other, and crashes are what Hapax is built to survive).
 *  - expected failures are `hx_status` values with detail in an `errbuf`; programmer errors are CHECK failures. */
#ifndef HAPAX_BASE_BASE_H
#define HAPAX_BASE_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef int64_t i64;
typedef uint64_t u64;
typedef uint32_t u32;
typedef uint16_t u16;
typedef uint8_t u8;

/* Status codes: one table makes the enum and the text. */
#define STATUS_LIST(X)                                                                                                 \
    X(OK, "ok")                                                                                                        \
    X(INVALID, "invalid argument or input")                                                                            \
    X(NOT_FOUND, "not found")                                                                                          \
    X(IO, "input/output error")                                                                                        \
    X(DAMAGED, "stored data is damaged")                                                                               \
    X(NO_SPACE, "no space left")                                                                                       \
    X(BUSY, "in use by another process")                                                                               \
    X(VERSION, "written by an unsupported version")                                                                    \
    X(DENIED, "permission denied")                                                                                     \
    X(CLOSED, "closed")                                                                                                \
    X(TIMEOUT, "timed out")

#define STATUS_ENUM(name, text) ST_##name,
typedef enum { STATUS_LIST(STATUS_ENUM) } hx_st;
#undef STATUS_ENUM

const char *status_text(hx_st st);

/* Where a failing function says what went wrong; wrapped on the way up ("data dir: journal: ..."). */
struct errbuf {
    char text[512];
};

#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))

/* Set the text. Returns st, so that `return err_set(err, ST_IO, ...)` reads well. err may be NULL. */
hx_st err_set(struct errbuf *err, hx_st st, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Put "prefix: " before what is there. */
hx_st err_wrap(struct errbuf *err, hx_st st, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* Checks stay on in production. On failure: file, line, expression and message on stderr, then abort. */
#define CHECK(cond)                                                                                                    \
    do {                                                                                                               \
        if (__builtin_expect(!(cond), 0)) check_failed(__FILE__, __LINE__, #cond, NULL);                               \
    } while (0)
/* An invariant of docs/LIFECYCLE.md, by its number: INVARIANT(3, lease->fence > last). */
#define INVARIANT(number, cond)                                                                                        \
    do {                                                                                                               \
        if (__builtin_expect(!(cond), 0)) check_failed(__FILE__, __LINE__, #cond, "invariant " #number);               \
    } while (0)
_Noreturn void check_failed(const char *file, int line, const char *expr, const char *what);

/* Memory. */
void *mem_alloc(size_t bytes) __attribute__((malloc, returns_nonnull));
void *mem_zalloc(size_t bytes) __attribute__((malloc, returns_nonnull));
void *mem_realloc(void *p, size_t bytes) __attribute__((returns_nonnull));
void mem_free(void *p);
/* For what is secret: the bytes are gone before the memory is anybody else's. Of whatever malloc gave, as much as it gave. */
void mem_free_wiped(void *p);
void *mem_realloc_wiped(void *p, size_t bytes) __attribute__((returns_nonnull));

/* Slices: borrowed views of bytes. */
typedef struct {
    const char *p;
    size_t n;
} slice;

#define SL(lit) ((slice){("" lit), sizeof(lit) - 1})
static inline slice slice_of(const void *p, size_t n) {
    return (slice){(const char *)p, n};
}
static inline slice slice_str(const char *s) {
    return (slice){s, s ? strlen(s) : 0};
}
static inline bool slice_eq(slice a, slice b) {
    return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}
bool slice_eq_nocase(slice a, slice b); /* ASCII only */
bool slice_starts(slice s, slice prefix);
static inline bool is_blank(char c) {
    return c == ' ' || c == '\t';
}
slice slice_trim_blanks(slice s);
/* Spaces and tabs at both ends: mostly there are none. */
static inline slice slice_trim(slice s) {
    return s.n && (is_blank(s.p[0]) || is_blank(s.p[s.n - 1])) ? slice_trim_blanks(s) : s;
}
/* Cut at the first `c`: *head gets what is before it, the rest is returned through *tail; false if c is absent
 * (then *head is all of s and *tail is empty). */
bool slice_cut(slice s, char c, slice *head, slice *tail);
/* For "did you mean": the name in a list nearest to a mistyped one, or NULL if none is near. name_at returns NULL past
 * the end of the list. */
const char *nearest_name(slice typed, const char *(*name_at)(const void *ctx, size_t i), const void *ctx);
/* Digits only, no sign, no blanks, no overflow. */
bool slice_u64(slice s, u64 *out);

/* A growable byte buffer. Zero-initialise to start; buf_free to end. */
struct buf {
    char *p;
    size_t len, cap;
};

void buf_free(struct buf *b);
void buf_free_wiped(struct buf *b); /* growing leaves copies behind: make room for all of a secret at once */
void buf_enlarge(struct buf *b, size_t more);
/* Make room for `more` bytes beyond len. */
static inline void buf_grow(struct buf *b, size_t more) {
    if (b->cap - b->len < more) buf_enlarge(b, more);
}
static inline void buf_reset(struct buf *b) {
    b->len = 0;
}
static inline slice buf_slice(const struct buf *b) {
    return (slice){b->p, b->len};
}
static inline void buf_add(struct buf *b, const void *p, size_t n) {
    buf_grow(b, n);
    if (n) memcpy(b->p + b->len, p, n);
    b->len += n;
}
static inline void buf_slice_add(struct buf *b, slice s) {
    buf_add(b, s.p, s.n);
}
static inline void buf_char(struct buf *b, char c) {
    buf_add(b, &c, 1);
}
#define buf_lit(b, lit) buf_add((b), "" lit, sizeof(lit) - 1)
void buf_printf(struct buf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* For pages that are written often: what has its room already goes to a place, and each returns where the next begins. */
#define write_lit(to, lit) ((char *)memcpy((to), "" lit, sizeof(lit) - 1) + (sizeof(lit) - 1))
static inline char *write_slice(char *to, slice s) {
    if (s.n) memcpy(to, s.p, s.n);
    return to + s.n;
}
#define DEC_BYTES_MAX 20u
char *write_dec(char *to, u64 v);
char *write_hex(char *to, slice s); /* two for each byte, lower case */
static inline char *buf_end(const struct buf *b) {
    return b->p + b->len;
}
static inline void buf_end_at(struct buf *b, const char *end) {
    b->len = (size_t)(end - b->p);
}
void buf_dec(struct buf *b, u64 v); /* decimal */
void buf_dec_signed(struct buf *b, i64 v);

/* Text forms. */
bool utf8_valid(slice s);
void utf8_trim(char *text); /* drop the character a limit has cut in two at the end, if one is */
bool text_plain(slice s);   /* every byte from 0x20 to 0x7e: then it is valid, without control characters */
bool has_control(slice s);  /* a control character: C0, DEL, or C1 in UTF-8 */
void buf_base64(struct buf *b, slice s);
bool buf_base64_decode(struct buf *b, slice text); /* strict, padded, standard alphabet; false leaves b unchanged */
void buf_base64url(struct buf *b, slice s);        /* unpadded */
bool buf_base64url_decode(struct buf *b, slice text);
void buf_hex(struct buf *b, slice s);                   /* lower case */
bool hex_decode(slice text, void *out, size_t out_len); /* exactly 2 * out_len lower- or upper-case digits */
bool buf_percent_decode(struct buf *b, slice s);        /* %XX only ('+' stays '+'); false on a bad escape */
void buf_percent_encode(struct buf *b, slice s);        /* everything but unreserved characters of RFC 3986 */
/* `500ms`, `30s`, `5m`, `2h`, `14d`, bare number = seconds; non-negative; fractions are refused; no overflow. */
bool duration_parse(slice text, i64 *ms_out);
void buf_duration(struct buf *b, i64 ms); /* shortest exact form: "1500ms", "30s", "14d" */
/* `256KiB`, `1GiB`, `10MB`, `512B`, bare number = bytes; fractions are refused; no overflow. */
bool size_parse(slice text, u64 *bytes_out);
void buf_size(struct buf *b, u64 bytes);      /* shortest exact form */
void buf_rfc3339(struct buf *b, i64 unix_ms); /* 2026-01-31T12:00:00.000Z; any value from year 0001 to 9999 */
#define RFC3339_BYTES 24u
void rfc3339_text(char out[RFC3339_BYTES], i64 unix_ms); /* the same, without a closing 0 */
bool rfc3339_parse(slice text, i64 *unix_ms_out);
bool http_date_parse(slice text,
                     i64 *unix_ms_out); /* Sun, 06 Nov 1994 08:49:37 GMT; the two obsolete forms are not taken */

/* Bring the cache line of p near; p need not be readable. The empty asm is what keeps it: the compiler takes a function that
 * does nothing but prefetch for one that does nothing, and drops the calls. */
static inline void near(const void *p) {
    __builtin_prefetch(p);
    __asm__ volatile("" : : "r"(p));
}

/* Hashes and checksums. */
u32 crc32c(u32 seed, const void *p, size_t n); /* Castagnoli; SSE4.2 where there is, else a table */
struct siphash_key {
    u64 k0, k1;
};
u64 siphash(const struct siphash_key *key, const void *p, size_t n);                 /* SipHash-2-4, 64 bits */
void siphash128(const struct siphash_key *key, const void *p, size_t n, u64 out[2]); /* SipHash-2-4, 128 bits */
void siphash_each(const struct siphash_key *key, const slice *texts, size_t count, u64 *out); /* several at once */

/* A seeded generator (splitmix64 / xoshiro256**): the only randomness the core may use. */
struct rng {
    u64 s[4];
};
void rng_seed(struct rng *r, u64 seed);
u64 rng_next(struct rng *r);
u64 rng_below(struct rng *r, u64 bound); /* uniform in [0, bound); bound > 0 */
void random_bytes(void *p, size_t n);    /* from the kernel; a failure is fatal. Not for core. */

/* Little-endian loads and stores for encoded records. */
static inline void put_u16(void *p, u16 v) {
    memcpy(p, &v, 2);
}
static inline void put_u32(void *p, u32 v) {
    memcpy(p, &v, 4);
}
static inline void put_u64(void *p, u64 v) {
    memcpy(p, &v, 8);
}
static inline u16 get_u16(const void *p) {
    u16 v;
    memcpy(&v, p, 2);
    return v;
}
static inline u32 get_u32(const void *p) {
    u32 v;
    memcpy(&v, p, 4);
    return v;
}
static inline u64 get_u64(const void *p) {
    u64 v;
    memcpy(&v, p, 8);
    return v;
}
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "records are stored little-endian");

/* Eight bytes at a time: a word with every byte equal to b, and the high bit of every byte. */
static inline u64 bytes_of(u8 b) {
    return b * UINT64_C(0x0101010101010101);
}
#define HIGH_BITS UINT64_C(0x8080808080808080)
/* Not 0 if a byte of w is below n, which is at most 0x80; if one equals b. The lowest bit that is set tells the first. */
static inline u64 bytes_below(u64 w, u8 n) {
    return (w - bytes_of(n)) & ~w & HIGH_BITS;
}
static inline u64 bytes_equal(u64 w, u8 b) {
    return bytes_below(w ^ bytes_of(b), 1);
}
/* Eight bytes, of which 'A' to 'Z' in lower case: such a byte carries into its top bit in one sum and not in the other. */
static inline u64 lower8(const char *p) {
    u64 v = get_u64(p), seven = v & ~HIGH_BITS;
    u64 letters = (seven + bytes_of(0x80 - 'A')) & ~(seven + bytes_of(0x80 - 'Z' - 1)) & ~v & HIGH_BITS;
    return v | letters >> 2;
}
/* The bit that makes a small letter of a capital one, in each byte that is a small letter. */
static inline u64 letter_bits(u64 w) {
    u64 seven = w & ~HIGH_BITS;
    return ((seven + bytes_of(0x80 - 'a')) & ~(seven + bytes_of(0x80 - 'z' - 1)) & ~w & HIGH_BITS) >> 2;
}
/* As slice_eq_nocase, of a word that is given in lower case. Here, because a literal and the bits of its letters are known where it is
 * asked for: that leaves a load, an `or` and a comparison for eight bytes. */
static inline bool slice_spells(slice s, slice lower_case) {
    const char *p = s.p, *w = lower_case.p;
    size_t n = lower_case.n, i = 0;
    if (s.n != n) return false;
    for (; i + 8 <= n; i += 8)
        if ((get_u64(p + i) | letter_bits(get_u64(w + i))) != get_u64(w + i)) return false;
    if (i == n) return true;
    if (n >= 8) return (get_u64(p + n - 8) | letter_bits(get_u64(w + n - 8))) == get_u64(w + n - 8);
    if (n >= 4)
        return (get_u32(p) | letter_bits(get_u32(w))) == get_u32(w) &&
               (get_u32(p + n - 4) | letter_bits(get_u32(w + n - 4))) == get_u32(w + n - 4);
    for (; i < n; i++)
        if (((u8)p[i] | letter_bits((u8)w[i])) != (u8)w[i]) return false;
    return true;
}

/* Clocks (not for core). */
i64 clock_wall_us(void);
i64 clock_wall_ms(void);
i64 clock_mono_ms(void);
i64 clock_mono_us(void);

/* Takes the numbers of those that were closed when the process started, so that no socket or file of ours gets one and is
 * then written to as if it were standard output. Reading and writing them fails, as before. First thing in main. */
void streams_hold(void);

#endif
