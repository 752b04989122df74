#include "base/base_priv.h"
#include "base/json.h"

/* The high bit of each byte that cannot stand in a string as it is; of several, of the first at least. Bytes of longer
 * UTF-8 sequences can. */
static inline u64 unsafe(u64 w) {
    u64 quote = (w ^ bytes_of('"')) - bytes_of(1), backslash = (w ^ bytes_of('\\')) - bytes_of(1);
    return ((w - bytes_of(0x20)) | quote | backslash) & ~w & HIGH_BITS;
}

static inline const char *skip_safe(const char *from, const char *end) {
    const char *p = from;
    for (; end - p >= 8; p += 8) {
        u64 hits = unsafe(get_u64(p));
        if (hits) return p + __builtin_ctzll(hits) / 8;
    }
    if (end - from >= 8 && !unsafe(get_u64(end - 8))) return end; /* reaches back over safe bytes */
    while (p < end && (u8)*p >= 0x20 && *p != '"' && *p != '\\') p++;
    return p;
}

static void put_escape(struct buf *b, char c) {
    static const char letters[0x5D] = {
        ['"'] = '"', ['\\'] = '\\', ['\b'] = 'b', ['\f'] = 'f', ['\n'] = 'n', ['\r'] = 'r', ['\t'] = 't'};
    char letter = letters[(u8)c];
    if (letter) {
        buf_add(b, (char[]){'\\', letter}, 2);
    } else {
        buf_lit(b, "\\u00");
        buf_hex(b, slice_of(&c, 1));
    }
}

void json_put_string(struct buf *b, slice utf8) {
    buf_grow(b, utf8.n + 2);
    buf_char(b, '"');
    const char *p = utf8.p, *end = utf8.n ? p + utf8.n : p;
    while (p < end) {
        const char *run_end = skip_safe(p, end);
        buf_add(b, p, (size_t)(run_end - p));
        p = run_end;
        if (p < end) put_escape(b, *p++);
    }
    buf_char(b, '"');
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
