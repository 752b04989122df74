#include "broker/cloudevent.h"

#include "base/json.h"
#include "broker/parse.h"

#define PREFIX "ce-"

static slice attr(const struct attrs *attrs, slice name) {
    slice known, value;
    for (size_t at = 0; attrs_next(buf_slice(&attrs->bytes), &at, &known, &value);)
        if (slice_eq(known, name)) return value;
    return (slice){0};
}

static slice without_parameters(slice type) {
    slice head, tail;
    slice_cut(type, ';', &head, &tail);
    return slice_trim(head);
}

static bool ends(slice s, slice suffix) {
    return s.n >= suffix.n && slice_eq_nocase(slice_of(s.p + s.n - suffix.n, suffix.n), suffix);
}

static bool is_json(slice type) {
    type = without_parameters(type);
    return ends(type, SL("/json")) || ends(type, SL("+json"));
}

enum event_mode event_mode(const struct http_request *req, slice content_type) {
    slice type = without_parameters(content_type), family = SL("application/cloudevents"), version;
    if (slice_eq_nocase(type, SL("application/cloudevents+json"))) return EVENT_STRUCTURED;
    if (slice_eq_nocase(type, SL("application/cloudevents-batch+json"))) return EVENT_BATCH;
    if (type.n >= family.n && slice_eq_nocase(slice_of(type.p, family.n), family)) return EVENT_FOREIGN;
    return http_field_get(req, SL("ce-specversion"), &version) ? EVENT_BINARY : EVENT_NONE;
}

/* ---- attributes, from either side */

static bool name_ok(slice name) {
    for (size_t i = 0; i < name.n; i++)
        if (!((name.p[i] >= 'a' && name.p[i] <= 'z') || (name.p[i] >= '0' && name.p[i] <= '9'))) return false;
    return name.n > 0 && name.n <= 64;
}

static bool add_attr(struct attrs *attrs, slice name, slice value, struct failure *f) {
    char full[sizeof PREFIX + 64];
    bool too_large;
    if (!name_ok(name))
        return failure_set(f, PROBLEM_event_invalid,
                           "a CloudEvent's attribute has 1 to 64 small letters and digits, not '%.*s'",
                           (int)(name.n > 64 ? 64 : name.n), name.p);
    memcpy(full, PREFIX, sizeof PREFIX - 1);
    memcpy(full + sizeof PREFIX - 1, name.p, name.n);
    const char *why = attrs_add(attrs, slice_of(full, sizeof PREFIX - 1 + name.n), value, &too_large);
    return !why || failure_set(f, too_large ? PROBLEM_too_large : PROBLEM_event_invalid, "ce attributes: %s", why);
}

static bool complete(const struct attrs *attrs, struct cloudevent *e, struct failure *f) {
    static const char *const wanted[] = {"ce-id", "ce-source", "ce-type"};
    if (!slice_eq(attr(attrs, SL("ce-specversion")), SL("1.0")))
        return failure_set(f, PROBLEM_event_invalid, "a CloudEvent of specversion 1.0 is expected");
    for (u32 i = 0; i < 3; i++)
        if (attr(attrs, slice_str(wanted[i])).n == 0)
            return failure_set(f, PROBLEM_event_invalid, "the CloudEvent has no %s", wanted[i] + sizeof PREFIX - 1);
    e->traceparent = attr(attrs, SL("ce-traceparent"));
    e->tracestate = attr(attrs, SL("ce-tracestate"));
    e->partition = attr(attrs, SL("ce-partitionkey"));
    e->said = true;
    return true;
}

/* ---- binary mode */

/* A quoted string stands for what is in it; then %XX is a byte. */
static bool header_text(slice value, struct buf *out) {
    struct buf bare = {0};
    value = slice_trim(value);
    bool quoted = value.n >= 2 && value.p[0] == '"' && value.p[value.n - 1] == '"';
    for (size_t i = quoted; i < value.n - quoted; i++) {
        if (quoted && value.p[i] == '\\' && i + 1 < value.n - 1) i++;
        buf_char(&bare, value.p[i]);
    }
    buf_reset(out);
    bool good = buf_percent_decode(out, buf_slice(&bare));
    buf_free(&bare);
    return good;
}

bool event_from_headers(const struct http_request *req, struct attrs *attrs, struct buf *store, struct cloudevent *e,
                        struct failure *f) {
    const slice prefix = SL(PREFIX);
    *e = (struct cloudevent){.data = req->body};
    http_field_get(req, SL("content-type"), &e->content_type);
    for (size_t i = 0; i < req->field_count; i++) {
        slice name = req->fields[i].name;
        char lower[64];
        if (name.n <= prefix.n || name.n - prefix.n > sizeof lower || !slice_spells(slice_of(name.p, prefix.n), prefix))
            continue;
        name = slice_of(name.p + prefix.n, name.n - prefix.n);
        for (size_t k = 0; k < name.n; k++)
            lower[k] = name.p[k] >= 'A' && name.p[k] <= 'Z' ? (char)(name.p[k] + 32) : name.p[k];
        if (!header_text(req->fields[i].value, store))
            return failure_set(f, PROBLEM_event_invalid, "a ce- header has a bad %%XX escape");
        if (!add_attr(attrs, slice_of(lower, name.n), buf_slice(store), f)) return false;
    }
    return complete(attrs, e, f);
}

/* ---- structured mode */

struct reading {
    slice raw; /* `data` as it is written */
    enum json_type type;
    bool data, base64;
};

static bool read_member(struct json *j, slice name, struct reading *r, struct attrs *attrs, struct buf *store,
                        struct failure *f) {
    slice text;
    enum json_type type = json_peek(j);
    if (slice_eq(name, SL("data"))) return r->data = true, json_value(j, &r->type, &r->raw);
    if (type == JSON_NULL) return json_null(j); /* as if it were not there */
    if (slice_eq(name, SL("data_base64"))) {
        r->base64 = true;
        return json_string(j, &text) && (buf_base64_decode(store, text) || json_fail(j, "data_base64: not base64"));
    }
    if (type == JSON_STRING ? !json_string(j, &text) : !json_value(j, &type, &text)) return false;
    if (type == JSON_OBJECT || type == JSON_ARRAY)
        return json_fail(j, "an attribute is a string, a number or a boolean");
    return add_attr(attrs, name, text, f) || json_fail(j, "an attribute");
}

/* Text of another kind than JSON stands in a JSON string, and is meant without its quotes. */
static void unquote(slice raw, struct buf *store) {
    struct json j;
    slice text = {0};
    json_init(&j, raw);
    if (json_string(&j, &text)) buf_slice_add(store, text);
    json_free(&j);
}

static void take_data(const struct reading *r, const struct attrs *attrs, struct buf *store, struct cloudevent *e) {
    e->content_type = attr(attrs, SL("ce-datacontenttype"));
    if (e->content_type.n == 0 && r->data) e->content_type = SL("application/json");
    bool quoted = r->data && r->type == JSON_STRING && !is_json(e->content_type);
    if (quoted) unquote(r->raw, store);
    e->data = quoted || r->base64 ? buf_slice(store) : r->raw;
}

static bool read_event(struct json *j, struct reading *r, struct attrs *attrs, struct buf *store, struct failure *f) {
    slice name;
    f->detail.len = 0;
    if (json_object(j))
        while (json_member(j, &name))
            if (!read_member(j, name, r, attrs, store, f)) break;
    if (json_end(j)) return true;
    if (f->detail.len) return false; /* an attribute's own complaint */
    fail_json(f, j);
    f->problem = PROBLEM_event_invalid;
    return false;
}

bool event_from_json(slice text, struct attrs *attrs, struct buf *store, struct cloudevent *e, struct failure *f) {
    struct json j;
    struct reading r = {0};
    *e = (struct cloudevent){0};
    buf_reset(store);
    json_init(&j, text);
    bool good = read_event(&j, &r, attrs, store, f);
    json_free(&j);
    if (!good || !complete(attrs, e, f)) return false;
    if (r.data && r.base64)
        return failure_set(f, PROBLEM_event_invalid, "a CloudEvent has data or data_base64, not both");
    take_data(&r, attrs, store, e);
    return true;
}
