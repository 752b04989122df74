/* What requests say: keys, parameters, durations, results. */
#ifndef HAPAX_BROKER_PARSE_H
#define HAPAX_BROKER_PARSE_H

#include "base/json.h"
#include "broker/limits.h"
#include "broker/problem.h"

struct broker;
struct call;

/* An Idempotency-Key field value in any of its three spellings. Scratch memory in `store`. */
bool parse_key_field(slice value, struct buf *store, slice *key, const char **why);
bool key_bytes_valid(slice key, const char **why);

/* A header_lookup. request: struct http_request. */
slice request_header(void *request, slice name);

/* A caller's hop id is kept if it can be, and never a reason to refuse. */
void request_id_or_none(slice *id);

/* Query parameters. false: the call's failure is set. */
bool params_known(struct call *c, const char *names); /* no other than these, which have blanks between them */
bool param_wait(struct call *c, i64 *wait_ms);
bool param_text(struct call *c, const char *name, struct buf *store, slice *out); /* empty if it is not given */
bool param_bool(struct call *c, const char *name, bool *out);                     /* false if it is not given */
bool param_u64(struct call *c, const char *name, u64 low, u64 high, u64 fallback, u64 *out);
bool param_duration(struct call *c, const char *name, i64 low, i64 high, i64 fallback, i64 *out);

/* A duration in a JSON text: a string with a unit, or a number of seconds. The text is checked by duration_parse. */
bool json_duration(struct json *j, slice *out);
/* The reader's error becomes the failure; returns false. */
bool fail_json(struct failure *f, const struct json *j);

/* A result as a request says it: result or result_base64, content_type. */
struct result_said {
    slice text, base64, content_type;
    enum json_type type;
    bool given, base64_given;
};
/* Takes the member if it is one of these; else *taken is false and nothing was read. */
bool result_member(struct json *j, slice name, struct result_said *r, bool *taken);
bool result_mean(const struct result_said *r, struct buf *decoded, slice *content_type, slice *result,
                 struct failure *f);

/* Cut to at most max bytes, not inside a character. */
slice cut_text(slice s, size_t max);
bool text_ok(slice s, size_t max); /* UTF-8 without control characters, at most that long */
/* A time, or how long ago: RFC 3339 or a duration. Wall clock. */
bool parse_since(const struct broker *b, slice text, i64 *wall_ms);

#endif
