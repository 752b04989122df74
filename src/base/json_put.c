#include "base/base_priv.h"
#include "base/json.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* The high bit of each byte that cannot stand in a string as it is; of several, of the first at least. Bytes of longer
 * UTF-8 sequences can. */
static inline u64 unsafe(u64 w) {
    u64 quote = (w ^ bytes_of('"')) - bytes_of(1), backslash = (w ^ bytes_of('\\')) - bytes_of(1);
    return ((w - bytes_of(0x20)) | quote | backslash) & ~w & HIGH_BITS;
}

/* Both copy some bytes whatever they are, and say which of them cannot stand as they are: what is stored from the first of these on
 * is overwritten by what follows. */
static inline u64 copy_8(char *out, const char *p) {
    u64 w = get_u64(p);
    put_u64(out, w);
    return unsafe(w);
}

#if defined(__SSE2__)
#define STRIDE 16
/* A bit for each byte. */
static inline unsigned copy_stride(char *out, const char *p) {
    __m128i w = _mm_loadu_si128((const __m128i *)p);
    __m128i control = _mm_cmpeq_epi8(_mm_min_epu8(w, _mm_set1_epi8(0x1f)), w);
    __m128i quote = _mm_cmpeq_epi8(w, _mm_set1_epi8('"')), backslash = _mm_cmpeq_epi8(w, _mm_set1_epi8('\\'));
    _mm_storeu_si128((__m128i *)out, w);
    return (unsigned)_mm_movemask_epi8(_mm_or_si128(control, _mm_or_si128(quote, backslash)));
}
static inline int first_of(unsigned hits) {
    return __builtin_ctz(hits);
}
#else
#define STRIDE 8
static inline u64 copy_stride(char *out, const char *p) {
    return copy_8(out, p);
}
static inline int first_of(u64 hits) {
    return __builtin_ctzll(hits) / 8;
}
#endif

/* Copies up to the first byte that cannot stand as it is, and returns where that is. There is room in `out` for all of them. */
static const char *copy_safe(char *out, const char *from, const char *end) {
    const char *p = from;
    for (; end - p >= STRIDE; p += STRIDE, out += STRIDE) {
        __auto_type hits = copy_stride(out, p);
        if (hits) return p + first_of(hits);
    }
    if (end - from >= STRIDE && p < end) { /* the rest, reaching back over safe bytes */
        __auto_type hits = copy_stride(out - (STRIDE - (end - p)), end - STRIDE);
        return hits ? end - STRIDE + first_of(hits) : end;
    }
    for (; end - p >= 8; p += 8, out += 8) {
        u64 hits = copy_8(out, p);
        if (hits) return p + __builtin_ctzll(hits) / 8;
    }
    for (; p < end && (u8)*p >= 0x20 && *p != '"' && *p != '\\'; p++) *out++ = *p;
    return p;
}

#define ESCAPE_MAX 6u /* \u001f */

static char *put_escape(char *out, char c) {
    static const char letters[0x5D] = {
        ['"'] = '"', ['\\'] = '\\', ['\b'] = 'b', ['\f'] = 'f', ['\n'] = 'n', ['\r'] = 'r', ['\t'] = 't'};
    static const char digits[] = "0123456789abcdef";
    *out++ = '\\';
    char letter = letters[(u8)c];
    if (letter) {
        *out++ = letter;
        return out;
    }
    memcpy(out, "u00", 3);
    out[3] = digits[(u8)c >> 4];
    out[4] = digits[c & 15];
    return out + 5;
}

void json_put_string(struct buf *b, slice utf8) {
    const char *p = utf8.p, *end = utf8.n ? p + utf8.n : p;
    buf_grow(b, utf8.n + 2 + ESCAPE_MAX);
    char *out = b->p + b->len;
    *out++ = '"';
    while (p < end) {
        const char *run_end = copy_safe(out, p, end);
        out += run_end - p;
        p = run_end;
        if (p == end) break;
        out = put_escape(out, *p++);
        b->len = (size_t)(out - b->p);
        size_t need = (size_t)(end - p) + 1 + ESCAPE_MAX;
        if (b->cap - b->len < need) buf_grow(b, need);
        out = b->p + b->len;
    }
    *out++ = '"';
    b->len = (size_t)(out - b->p);
}

void json_put_name(struct buf *b, const char *name) {
    size_t n = strlen(name);
    buf_grow(b, n + 4);
    char *p = b->p + b->len;
    if (b->len && p[-1] != '{') *p++ = ',';
    *p++ = '"';
    memcpy(p, name, n);
    p += n;
    *p++ = '"';
    *p++ = ':';
    b->len = (size_t)(p - b->p);
}

void json_put_member(struct buf *b, const char *name, slice utf8) {
    json_put_name(b, name);
    json_put_string(b, utf8);
}

void json_put_member_i64(struct buf *b, const char *name, i64 v) {
    json_put_name(b, name);
    buf_dec_signed(b, v);
}

void json_put_member_bool(struct buf *b, const char *name, bool v) {
    json_put_name(b, name);
    buf_slice_add(b, v ? SL("true") : SL("false"));
}

void json_put_member_time(struct buf *b, const char *name, i64 unix_ms) {
    json_put_name(b, name);
    buf_char(b, '"');
    buf_rfc3339(b, unix_ms);
    buf_char(b, '"');
}

void json_put_member_raw(struct buf *b, const char *name, slice json_text) {
    json_put_name(b, name);
    buf_slice_add(b, json_text);
}
