/* Strict JSON (RFC 8259): a cursor for reading, append functions for writing.
 *
 * Why our own: a batch line's payload must be kept as the exact text the sender wrote, and a receive reply carries
 * thousands of small objects; a tree of allocated nodes gives neither spans nor speed. (Figures: ARCHITECTURE.md.)
 *
 * Reading. The cursor walks one text. It refuses: anything RFC 8259 refuses, invalid UTF-8, lone surrogates in
 * escapes, nesting deeper than JSON_DEPTH_MAX, a member name repeated in an object walked with json_member
 * (compared after unescaping), trailing bytes (json_end). After the first failure every call fails and
 * json_error() says what and at which byte.
 *
 *   struct json j;  json_init(&j, text);
 *   if (json_object(&j))
 *       while (json_member(&j, &name))               // name is unescaped
 *           if (slice_eq(name, SL("token"))) json_string(&j, &token); else json_skip(&j);
 *   if (!json_end(&j)) ... json_error(&j)
 *
 * Each json_member must be followed by consuming its value: json_string/json_value/json_skip/json_object/json_array.
 * Unescaped strings live in the text itself when there is nothing to unescape, else in the cursor's scratch memory,
 * valid until json_free. */
#ifndef HAPAX_BASE_JSON_H
#define HAPAX_BASE_JSON_H

#include "base/base.h"

#define JSON_DEPTH_MAX 64

enum json_type { JSON_NONE, JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

struct json {
    const char *start, *p, *end;
    const char *error; /* NULL while all is well */
    size_t error_at;
    int depth;
    u32 values_left; /* how many more it may walk over; json_init sets no bound, the reader may */
    /* private: per-level state, member names seen, scratch for unescaped strings */
    struct json_scratch *scratch;
    u8 level[JSON_DEPTH_MAX + 1];
    u32 names_from[JSON_DEPTH_MAX + 1];
};

void json_init(struct json *j, slice text);
void json_free(struct json *j);

enum json_type json_peek(struct json *j);      /* type of the value under the cursor; JSON_NONE on error or end */
bool json_object(struct json *j);              /* enter; false (and an error) if it is no object */
bool json_member(struct json *j, slice *name); /* next member, or leave the object and return false */
bool json_array(struct json *j);
bool json_element(struct json *j); /* is there a next element? else leave the array and return false */
bool json_string(struct json *j, slice *out);
bool json_bool(struct json *j, bool *out);
bool json_i64(struct json *j, i64 *out); /* an integer without fraction or exponent that fits */
bool json_null(struct json *j);
/* Any value, validated; *raw is its exact text. */
bool json_value(struct json *j, enum json_type *type, slice *raw);
bool json_skip(struct json *j);
bool json_end(struct json *j); /* only white space left, no error so far */
/* Before a value is read: where it begins; and back there, to read it once more. Its error, if it had one, is forgotten. */
struct json_mark {
    const char *p;
    int depth;
};
struct json_mark json_mark(struct json *j);
void json_back(struct json *j, struct json_mark to);
/* Record an error of the caller's own ("lease: not a duration") at the current byte. Returns false. */
bool json_fail(struct json *j, const char *message);
/* "expected ',' or '}' at byte 17"; empty when there was none. */
void json_error(const struct json *j, struct buf *out);

/* Writing. No state: the caller places commas. */
void json_put_string(struct buf *b, slice utf8); /* quoted and escaped; the slice must be valid UTF-8 */
/* The same of bytes that may not be UTF-8: then false, and nothing is written. */
bool json_put_text(struct buf *b, slice bytes);
/* Members of an object being written: ,"name":value — the leading comma is left out right after '{'.
 * A name is written as it is: it has nothing to escape. */
void json_put_name(struct buf *b, const char *name);
void json_put_member(struct buf *b, const char *name, slice utf8);
void json_put_member_i64(struct buf *b, const char *name, i64 v);
void json_put_member_bool(struct buf *b, const char *name, bool v);
void json_put_member_time(struct buf *b, const char *name, i64 unix_ms);
void json_put_member_raw(struct buf *b, const char *name, slice json_text);

#endif
