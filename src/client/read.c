/* Reading the values the broker's replies are made of. */
#include "client/client_priv.h"

bool read_bytes(struct arena *a, slice text, bool base64, hx_bytes *out) {
    if (!base64) {
        *out = arena_bytes(a, text);
        return true;
    }
    struct buf b = {0};
    bool ok = buf_base64_decode(&b, text);
    if (ok) *out = arena_bytes(a, buf_slice(&b));
    buf_free(&b);
    return ok;
}

bool read_string(struct json *j, struct arena *a, const char **out) {
    if (json_peek(j) == JSON_NULL) return json_null(j);
    slice s;
    if (!json_string(j, &s)) return false;
    if (memchr(s.p, '\0', s.n)) return json_fail(j, "a NUL in a name");
    *out = arena_string(a, s);
    return true;
}

bool read_time(struct json *j, i64 *unix_ms) {
    if (json_peek(j) == JSON_NULL) return json_null(j);
    slice s;
    if (!json_string(j, &s)) return false;
    return rfc3339_parse(s, unix_ms) || json_fail(j, "not a time");
}

/* The members of a result object. `known` says whether it had only those. */
struct result_members {
    slice content_type, body;
    bool has_type, has_body, base64, known;
};

static bool read_members(struct json *j, struct result_members *m) {
    slice name, encoding;
    *m = (struct result_members){.known = true};
    if (!json_object(j)) return false;
    while (json_member(j, &name)) {
        if (json_peek(j) != JSON_STRING) {
            m->known = false;
            json_skip(j);
        } else if (slice_eq(name, SL("content_type"))) {
            m->has_type = json_string(j, &m->content_type);
        } else if (slice_eq(name, SL("body"))) {
            m->has_body = json_string(j, &m->body);
        } else if (slice_eq(name, SL("encoding"))) {
            if (json_string(j, &encoding)) m->base64 = slice_eq(encoding, SL("base64"));
        } else {
            m->known = false;
            json_skip(j);
        }
    }
    return j->error == NULL;
}

bool read_result(struct json *j, struct arena *a, hx_bytes *body, const char **content_type) {
    if (json_peek(j) == JSON_NULL) return json_null(j);
    struct result_members m;
    if (!read_members(j, &m)) return false;
    if (!m.has_body) return json_fail(j, "a result without a body");
    if (!read_bytes(a, m.body, m.base64, body)) return json_fail(j, "a result that is not base64");
    if (m.has_type) *content_type = arena_string(a, m.content_type);
    return true;
}

bool read_step_result(struct json *j, struct arena *a, hx_bytes *out) {
    enum json_type type = json_peek(j);
    slice raw;
    if (type == JSON_NULL) return json_null(j);
    if (type == JSON_STRING) {
        if (!json_string(j, &raw)) return false;
        *out = arena_bytes(a, raw);
        return true;
    }
    if (!json_value(j, &type, &raw)) return false;
    struct json object;
    struct result_members m = {0};
    json_init(&object, raw);
    bool ok = true;
    if (type == JSON_OBJECT && read_members(&object, &m) && m.known && m.has_body && m.has_type)
        ok = read_bytes(a, m.body, m.base64, out);
    else
        *out = arena_bytes(a, raw);
    json_free(&object);
    return ok;
}

static hx_outcome outcome_of(slice text) {
    if (slice_eq(text, SL("accepted"))) return HX_ACCEPTED;
    if (slice_eq(text, SL("duplicate"))) return HX_DUPLICATE;
    if (slice_eq(text, SL("held"))) return HX_HELD;
    return HX_OUTCOME_NONE;
}

static bool receipt_text(struct json *j, slice name, hx_receipt *out) {
    slice s;
    if (json_peek(j) != JSON_STRING) return json_skip(j);
    if (!json_string(j, &s)) return false;
    if (slice_eq(name, SL("outcome")))
        out->outcome = outcome_of(s);
    else if (slice_eq(name, SL("state")))
        out->state = state_of(s);
    else if (slice_eq(s, SL("key_reused")))
        out->outcome = HX_KEY_REUSED; /* "code" */
    return true;
}

static bool receipt_member(struct json *j, slice name, struct arena *a, hx_receipt *out, i64 *status) {
    if (slice_eq(name, SL("outcome")) || slice_eq(name, SL("state")) || slice_eq(name, SL("code")))
        return receipt_text(j, name, out);
    if (slice_eq(name, SL("id"))) return read_string(j, a, &out->id);
    if (slice_eq(name, SL("reason"))) return read_string(j, a, &out->reason);
    if (slice_eq(name, SL("result"))) return read_result(j, a, &out->result, &out->content_type);
    if (slice_eq(name, SL("first_seen"))) return read_time(j, &out->first_seen_ms);
    if (slice_eq(name, SL("expires_at"))) return read_time(j, &out->expires_at_ms);
    if (slice_eq(name, SL("age_ms"))) return json_i64(j, &out->age_ms);
    if (slice_eq(name, SL("duplicates"))) return json_i64(j, &out->duplicates);
    if (slice_eq(name, SL("status"))) return json_i64(j, status);
    return json_skip(j);
}

bool receipt_read(slice json, struct arena *a, hx_receipt *out, i64 *status_out) {
    struct json j;
    slice name;
    i64 status = 0;
    json_init(&j, json);
    if (json_object(&j))
        while (json_member(&j, &name) && receipt_member(&j, name, a, out, &status)) continue;
    bool ok = json_end(&j);
    json_free(&j);
    if (!out->id) out->id = "";
    if (status_out) *status_out = status;
    return ok;
}
