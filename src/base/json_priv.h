/* What the two readers of JSON share, the cursor (json.c) and the tape (json_tape.c): how strings and numbers are
 * spelled, and the memory for what a text does not contain as it reads. */
#ifndef HAPAX_BASE_JSON_PRIV_H
#define HAPAX_BASE_JSON_PRIV_H

#include "base/base_priv.h"
#include "base/json.h"
#include "base/sixteen.h"

/* ---- json_lex.c: spelling */

static inline const char *json_skip_space(const char *p, const char *end) {
    while (p < end && (u8)*p <= ' ' && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')) p++;
    return p;
}

/* What is not plain: a quote, a backslash, a control character, a byte of a longer UTF-8 sequence. */
static inline sixteen json_unplain(sixteen v) {
    return (v < 0x20) | (v == '"') | (v == '\\');
}

/* The first byte that is not plain. Eight at a time: in each byte below 0x80 the subtractions set the high bit exactly for those;
 * borrows only reach bytes behind a hit. */
static inline const char *json_skip_plain(const char *p, const char *end) {
    for (; end - p >= 16; p += 16) {
        u32 hits = sixteen_bits(json_unplain(sixteen_at(p)));
        if (hits) return p + __builtin_ctz(hits);
    }
    for (; end - p >= 8; p += 8) {
        u64 w = get_u64(p);
        u64 quote = (w ^ bytes_of('"')) - bytes_of(1), backslash = (w ^ bytes_of('\\')) - bytes_of(1);
        u64 hits = ((w - bytes_of(0x20)) | quote | backslash | w) & HIGH_BITS;
        if (hits) return p + __builtin_ctzll(hits) / 8;
    }
    while (p < end && (u8)*p >= 0x20 && (u8)*p < 0x80 && *p != '"' && *p != '\\') p++;
    return p;
}

/* Length of the escape or the UTF-8 sequence at p, where a plain byte is not; 0 if there is none: *message says why. */
size_t json_lex_special(const char *p, const char *end, const char **message);

/* Validates a string. *p stands behind its opening quote, then behind its closing one; on failure at the wrong byte. */
static inline bool json_lex_string(const char **p, const char *end, bool *escaped, const char **message) {
    const char *at = json_skip_plain(*p, end);
    *escaped = false;
    while (at == end || *at != '"') {
        size_t n = json_lex_special(at, end, message);
        *p = at;
        if (n == 0) return false;
        *escaped |= *at == '\\';
        at = json_skip_plain(at + n, end);
    }
    *p = at + 1;
    return true;
}

/* Of a validated string's inside. Needs room for raw.n bytes: six bytes of escape make at most three, twelve make
 * four. Returns how many it made. */
size_t json_lex_unescape(char *to, slice raw);

/* *p stands at a digit or a minus, then behind the number; on failure where a digit should be. */
bool json_lex_number(const char **p, const char *end, bool *integer);

/* ---- json_tape.c: for each block of 64 bytes, one bit for each that is not plain. By what the processor has; and without. */

void json_stops(const char *p, size_t blocks, u64 *stops);
void json_stops_plainly(const char *p, size_t blocks, u64 *stops);

/* ---- json_scratch.c: unescaped strings, and the member names of objects too large to be compared one by one.
 * Allocated on first need, owned by the reader. */

struct json_scratch *json_scratch_new(void);
void json_scratch_free(struct json_scratch *s);

/* At least n bytes that stay where they are until json_scratch_free. The caller writes the first `used` of them and
 * then says so with json_scratch_keep; without that the next reservation gets the same bytes. */
char *json_scratch_reserve(struct json_scratch *s, size_t n);
void json_scratch_keep(struct json_scratch *s, size_t used);
/* Nothing kept is needed any more: for the next text with the same scratch. The sets of names must be clear. */
void json_scratch_rewind(struct json_scratch *s);

/* One set of names for each nesting level. Add returns false if the name is there already; the name is borrowed. */
bool json_names_add(struct json_scratch *s, int level, slice name);
void json_names_clear(struct json_scratch *s, int level);

#endif
