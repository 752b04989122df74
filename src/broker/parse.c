#include "broker/parse.h"

#include "base/sixteen.h"
#include "broker/broker_priv.h"
#include "broker/call.h"

#define PARAM_SHOWN_MAX 64u /* bytes of a name that is unknown */

bool key_bytes_valid(slice key, const char **why) {
    *why = NULL;
    if (key.n == 0)
        *why = "the key is empty";
    else if (key.n > KEY_BYTES_MAX)
        *why = "the key is longer than 255 bytes";
    else if (has_control(key))
        *why = "the key has a control character";
    else if (!utf8_valid(key))
        *why = "the key is not valid UTF-8";
    return *why == NULL;
}

/* Only parameters may follow a quoted item, and they say nothing here. */
static bool parameters_only(slice rest) {
    rest = slice_trim(rest);
    return rest.n == 0 || rest.p[0] == ';';
}

/* "..." of RFC 9651: printable ASCII, \" and \\ the only escapes. */
static bool parse_quoted(slice value, struct buf *store, slice *key, const char **why) {
    buf_reset(store);
    for (size_t i = 1; i < value.n; i++) {
        char ch = value.p[i];
        if (ch == '"') {
            *key = buf_slice(store);
            *why = "something follows the quoted key";
            return parameters_only(slice_of(value.p + i + 1, value.n - i - 1));
        }
        if (ch == '\\') {
            if (++i == value.n || (value.p[i] != '"' && value.p[i] != '\\')) break;
            ch = value.p[i];
        } else if ((unsigned char)ch < 0x20 || (unsigned char)ch >= 0x7f) {
            *why = "a quoted key holds printable ASCII only; use %\"...\" for more";
            return false;
        }
        buf_char(store, ch);
    }
    *why = "the quoted key is not closed, or escapes something other than \\\" and \\\\";
    return false;
}

static int hex_digit(char ch) {
    if (ch >= '0' && ch <= '9') return ch - '0';
    if (ch >= 'a' && ch <= 'f') return ch - 'a' + 10;
    return -1;
}

/* %"..." of RFC 9651: as above, other bytes as %xx in lower case. */
static bool parse_display(slice value, struct buf *store, slice *key, const char **why) {
    buf_reset(store);
    for (size_t i = 2; i < value.n; i++) {
        char ch = value.p[i];
        if (ch == '"') {
            *key = buf_slice(store);
            *why = "something follows the quoted key";
            return parameters_only(slice_of(value.p + i + 1, value.n - i - 1));
        }
        if (ch == '%') {
            int high = i + 2 < value.n ? hex_digit(value.p[i + 1]) : -1;
            int low = high >= 0 ? hex_digit(value.p[i + 2]) : -1;
            if (low < 0) break;
            ch = (char)(high * 16 + low);
            i += 2;
        } else if ((unsigned char)ch < 0x20 || (unsigned char)ch >= 0x7f) {
            break;
        }
        buf_char(store, ch);
    }
    *why = "the display string is not closed, or has a bad %xx";
    return false;
}

/* Every byte from 0x21 to 0x7e, but no quote and no comma. */
static sixteen not_bare(sixteen v) {
    return (v < 0x21) | (v == 0x7f) | (v == '"') | (v == ',');
}

static __attribute__((noinline)) bool parse_string(slice value, struct buf *store, slice *key, const char **why) {
    bool ok = value.p[0] == '"' ? parse_quoted(value, store, key, why) : parse_display(value, store, key, why);
    return ok && key_bytes_valid(*key, why);
}

bool parse_key_field(slice value, struct buf *store, slice *key, const char **why) {
    value = slice_trim(value);
    *why = "the key is empty";
    if (value.n == 0) return false;
    if (value.p[0] == '"' || (value.n > 1 && value.p[0] == '%' && value.p[1] == '"'))
        return parse_string(value, store, key, why);
    *key = value;
    *why = "an unquoted key holds no spaces, quotes, commas or non-ASCII bytes; quote it as \"...\" or %\"...\"";
    if (!sixteen_all(value, not_bare)) return false;
    *why = "the key is longer than 255 bytes";
    return value.n <= KEY_BYTES_MAX;
}

slice request_header(void *request, slice name) {
    slice value = {0};
    http_field_get(request, name, &value);
    return value;
}

void request_id_or_none(slice *id) {
    if (!text_ok(*id, REQUEST_ID_BYTES_MAX)) *id = SL("");
}

/* ---- query parameters */

/* Of names that end in a NUL each, the last one in two. */
static const char *name_at(const void *names, size_t i) {
    const char *name = names;
    while (*name && i--) name += strlen(name) + 1;
    return *name ? name : NULL;
}

static bool refuse_param(struct call *c, slice sent, const char *names) {
    struct buf decoded = {0}, list = {0};
    slice name = buf_percent_decode(&decoded, sent) && utf8_valid(buf_slice(&decoded)) ? buf_slice(&decoded) : sent;
    for (const char *p = names; *p; p++) buf_char(&list, *p == ' ' ? '\0' : *p);
    buf_add(&list, "\0", 2);
    const char *near = nearest_name(name, name_at, list.p);
    name = cut_text(name, PARAM_SHOWN_MAX);
    fail(c, PROBLEM_param_invalid, "this call has no parameter \"%.*s\"; it has%s%s%s%s%s", (int)name.n, name.p,
         *names ? ": " : " none", names, near ? ". Did you mean " : "", near ? near : "", near ? "?" : "");
    buf_free(&decoded);
    buf_free(&list);
    return false;
}

bool params_known(struct call *c, const char *names) {
    slice unknown;
    return http_query_known(c->req, slice_str(names), &unknown) || refuse_param(c, unknown, names);
}

static bool param(struct call *c, const char *name, struct buf *store, slice *value, bool *given) {
    bool bad = false;
    *given = http_query_get(c->req, slice_str(name), store, value, &bad);
    if (bad) return fail(c, PROBLEM_param_invalid, "%s is given twice or badly encoded", name);
    return true;
}

bool param_text(struct call *c, const char *name, struct buf *store, slice *out) {
    bool given;
    *out = SL("");
    return param(c, name, store, out, &given);
}

bool param_bool(struct call *c, const char *name, bool *out) {
    struct buf store = {0};
    slice said;
    bool ok = param_text(c, name, &store, &said);
    *out = slice_eq(said, SL("true"));
    if (ok && said.n && !*out && !slice_eq(said, SL("false")))
        ok = fail(c, PROBLEM_param_invalid, "%s must be true or false", name);
    buf_free(&store);
    return ok;
}

bool param_u64(struct call *c, const char *name, u64 low, u64 high, u64 fallback, u64 *out) {
    slice text;
    bool given;
    struct buf store = {0};
    bool ok = param(c, name, &store, &text, &given);
    *out = fallback;
    if (ok && given && (!slice_u64(text, out) || *out < low || *out > high))
        ok = fail(c, PROBLEM_param_invalid, "%s must be a whole number from %llu to %llu", name,
                  (unsigned long long)low, (unsigned long long)high);
    buf_free(&store);
    return ok;
}

bool param_duration(struct call *c, const char *name, i64 low, i64 high, i64 fallback, i64 *out) {
    slice text;
    bool given;
    struct buf store = {0}, range = {0};
    bool ok = param(c, name, &store, &text, &given);
    *out = fallback;
    if (ok && given && (!duration_parse(text, out) || *out < low || *out > high)) {
        buf_duration(&range, low);
        buf_lit(&range, " to ");
        buf_duration(&range, high);
        ok = fail(c, PROBLEM_param_invalid, "%s must be a duration with its unit (ms, s, m, h or d), from %.*s", name,
                  (int)range.len, range.p);
    }
    buf_free(&store);
    buf_free(&range);
    return ok;
}

bool param_wait(struct call *c, i64 *wait_ms) {
    return param_duration(c, "wait", 0, WAIT_MS_MAX, 0, wait_ms);
}

bool json_duration(struct json *j, slice *out) {
    enum json_type type = json_peek(j);
    if (type == JSON_STRING) return json_string(j, out);
    return json_value(j, &type, out) &&
           (type == JSON_NUMBER || json_fail(j, "a duration is a string with a unit, or seconds"));
}

bool fail_json(struct failure *f, const struct json *j) {
    struct buf why = {0};
    json_error(j, &why);
    failure_set(f, PROBLEM_json_invalid, "%.*s", (int)why.len, why.p);
    buf_free(&why);
    return false;
}

bool text_ok(slice s, size_t max) {
    return s.n <= max && (text_plain(s) || (utf8_valid(s) && !has_control(s)));
}

slice cut_text(slice s, size_t max) {
    if (s.n <= max) return s;
    s.n = max;
    while (s.n && ((unsigned char)s.p[s.n] & 0xc0) == 0x80) s.n--;
    return s;
}

bool parse_since(const struct broker *b, slice text, i64 *wall_ms) {
    i64 ago;
    if (rfc3339_parse(text, wall_ms)) return true;
    if (!duration_parse(text, &ago)) return false;
    *wall_ms = b->now.wall_ms > ago ? b->now.wall_ms - ago : 0;
    return true;
}

/* ---- results */

static bool take_result(struct json *j, struct result_said *r) {
    r->given = true;
    r->type = json_peek(j);
    if (r->type == JSON_STRING) return json_string(j, &r->text);
    return json_value(j, &r->type, &r->text);
}

bool result_member(struct json *j, slice name, struct result_said *r, bool *taken) {
    *taken = true;
    if (slice_eq(name, SL("result"))) return take_result(j, r);
    if (slice_eq(name, SL("result_base64"))) return r->base64_given = true, json_string(j, &r->base64);
    if (slice_eq(name, SL("content_type"))) return json_string(j, &r->content_type);
    *taken = false;
    return true;
}

bool result_mean(const struct result_said *r, struct buf *decoded, slice *content_type, slice *result,
                 struct failure *f) {
    if (r->given && r->base64_given)
        return failure_set(f, PROBLEM_param_invalid, "give result or result_base64, not both");
    if (r->content_type.n > TYPE_BYTES_MAX || has_control(r->content_type))
        return failure_set(f, PROBLEM_param_invalid, "content_type must be plain text, at most %u bytes",
                           TYPE_BYTES_MAX);
    *content_type = r->content_type;
    if (r->base64_given) {
        if (!buf_base64_decode(decoded, r->base64))
            return failure_set(f, PROBLEM_param_invalid, "result_base64 is not base64");
        *result = buf_slice(decoded);
        if (content_type->n == 0) *content_type = SL("application/octet-stream");
    } else if (r->given) {
        *result = r->text;
        if (content_type->n == 0) *content_type = r->type == JSON_STRING ? SL("text/plain") : SL("application/json");
    }
    if (result->n <= RESULT_BYTES_MAX) return true;
    return failure_set(f, PROBLEM_too_large, "the result has %zu bytes, the limit is %u", result->n, RESULT_BYTES_MAX);
}
