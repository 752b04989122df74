#include "base/json_priv.h"

/* What cannot stand in a string as it is. Bytes of longer UTF-8 sequences can; in text that may not be UTF-8 all are looked at that are not
 * plain. */
static sixteen unsafe(sixteen v) {
    return sixteen_control(v) | (v == '"') | (v == '\\');
}

#define WRITTEN_OUT static inline __attribute__((always_inline)) /* so that `stops` is, too */

/* Copies up to the first byte that `stops` stops at, and returns how many that are. There is room in `out` for all of them: what is
 * stored from there on is overwritten by what follows. */
WRITTEN_OUT size_t copy_run(char *out, slice s, sixteen (*stops)(sixteen)) {
    size_t i = 0;
    u32 hits;
    for (; s.n - i >= 16; i += 16) {
        sixteen v = sixteen_at(s.p + i);
        sixteen_put(out + i, v);
        if ((hits = sixteen_bits(stops(v)))) return i + (u32)__builtin_ctz(hits);
    }
    if (i == s.n) return i;
    if (i > 0) { /* the rest, reaching back over bytes that may stand */
        i = s.n - 16;
        sixteen v = sixteen_at(s.p + i);
        sixteen_put(out + i, v);
        hits = sixteen_bits(stops(v));
        return hits ? i + (u32)__builtin_ctz(hits) : s.n;
    }
    few_copy(out, s.p, s.n);
    if (!sixteen_bits(stops(sixteen_of_few(s.p, s.n)))) return s.n;
    while (!stops((sixteen){(signed char)s.p[i]})[0]) i++;
    return i;
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

static void close_string(struct buf *b, char *out) {
    *out++ = '"';
    b->len = (size_t)(out - b->p);
}

#define ESCAPED_TOGETHER 64u

/* As many as there are in a row: a text may be nothing else, and to look for runs between them would take most of the time. Returns
 * how many were written. */
static inline size_t put_escapes(struct buf *b, char **out, slice s) {
    size_t i = 0, most = s.n < ESCAPED_TOGETHER ? s.n : ESCAPED_TOGETHER;
    b->len = (size_t)(*out - b->p);
    buf_grow(b, s.n + (size_t)ESCAPED_TOGETHER * ESCAPE_MAX);
    char *p = b->p + b->len;
    do p = put_escape(p, s.p[i]);
    while (++i < most && ((u8)s.p[i] < 0x20 || s.p[i] == '"' || s.p[i] == '\\'));
    *out = p;
    return i;
}

/* From a byte on that `stops` stops at. false: it, or one after it, is not of UTF-8. */
WRITTEN_OUT bool put_rest(struct buf *b, char *out, slice s, sixteen (*stops)(sixteen)) {
    while (s.n) {
        size_t done;
        if ((u8)*s.p >= 0x80) {
            done = utf8_sequence(s.p, s.n);
            if (done == 0) return false;
            for (size_t i = 0; i < done; i++) *out++ = s.p[i];
        } else {
            done = put_escapes(b, &out, s);
        }
        s = slice_of(s.p + done, s.n - done);
        size_t run = copy_run(out, s, stops);
        out += run;
        s = slice_of(s.p + run, s.n - run);
    }
    close_string(b, out);
    return true;
}

static __attribute__((noinline)) bool put_rest_of_utf8(struct buf *b, char *out, slice s) {
    return put_rest(b, out, s, unsafe);
}

static __attribute__((noinline)) bool put_rest_of_bytes(struct buf *b, char *out, slice s) {
    size_t start = b->len;
    if (put_rest(b, out, s, json_unplain)) return true;
    b->len = start;
    return false;
}

/* Mostly there is no such byte: what comes after one is apart, so that nothing is made ready for it here. */
WRITTEN_OUT bool put_string(struct buf *b, slice s, sixteen (*stops)(sixteen),
                            bool (*put_rest_of)(struct buf *, char *, slice)) {
    buf_grow(b, s.n + 2 + ESCAPE_MAX);
    char *out = b->p + b->len;
    *out++ = '"';
    size_t run = copy_run(out, s, stops);
    out += run;
    if (run < s.n) return put_rest_of(b, out, slice_of(s.p + run, s.n - run));
    close_string(b, out);
    return true;
}

void json_put_string(struct buf *b, slice utf8) {
    put_string(b, utf8, unsafe, put_rest_of_utf8);
}

bool json_put_text(struct buf *b, slice bytes) {
    return put_string(b, bytes, json_unplain, put_rest_of_bytes);
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
