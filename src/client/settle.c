#include "client/client_priv.h"

static const struct patience plain_patience = {.cancel_fd = -1};

static void body_token(struct buf *b, const char *token) {
    buf_char(b, '{');
    put_text(b, "token", token);
}

static void put_result(struct buf *b, hx_bytes result, const char *content_type) {
    if (!result.data) return;
    put_bytes(b, "result", result);
    if (!content_type && !utf8_valid(slice_of(result.data, result.size))) content_type = "application/octet-stream";
    put_text(b, "content_type", content_type);
}

static void body_ack(struct buf *b, const char *token, hx_bytes result, const char *content_type,
                     const char *effect_id) {
    body_token(b, token);
    put_result(b, result, content_type);
    put_text(b, "effect_id", effect_id);
    buf_char(b, '}');
}

static void body_nack(struct buf *b, const char *token, const hx_failure *f) {
    body_token(b, token);
    put_text(b, "class", hx_class_text(f->failure_class));
    put_text(b, "reason", f->reason);
    if (f->delay_ms > 0) put_duration(b, "delay", f->delay_ms);
    put_result(b, f->result, f->content_type);
    buf_char(b, '}');
}

static bool settled_read(slice json, hx_settled *out) {
    struct json j;
    slice name, s;
    json_init(&j, json);
    if (json_object(&j)) {
        while (json_member(&j, &name)) {
            if (slice_eq(name, SL("state")) && json_peek(&j) == JSON_STRING) {
                if (json_string(&j, &s)) out->state = state_of(s);
            } else if (slice_eq(name, SL("duplicate")) && json_peek(&j) == JSON_BOOL) {
                json_bool(&j, &out->duplicate);
            } else {
                json_skip(&j);
            }
        }
    }
    bool ok = json_end(&j);
    json_free(&j);
    return ok;
}

static bool token_ok(const char *token, hx_error *err) {
    if (token && *token && text_ok(token)) return true;
    error_set(err, HX_INVALID, HX_APPLIED_NO, "token_invalid", "no token given");
    return false;
}

static hx_status post(hx_client *c, struct patience p, const char *verb, slice body, struct reply *reply,
                      hx_error *err) {
    struct buf target = {0};
    buf_printf(&target, "/v1/%s", verb);
    struct call call = CALL(.method = "POST", .target = buf_slice(&target), .content_type = SL("application/json"),
                            .body = body, .timeout_ms = p.timeout_ms);
    call.cancel_fd = p.cancel_fd;
    hx_status st = client_call(c, &call, reply, err);
    buf_free(&target);
    return st;
}

/* One settling call. `body` is freed. */
static hx_status settle(hx_client *c, struct patience p, const char *verb, struct buf *body, hx_settled *out,
                        hx_error *err) {
    struct reply reply = {0};
    hx_status st = post(c, p, verb, buf_slice(body), &reply, err);
    hx_settled got = {0};
    if (reply.status) {
        struct arena *a = arena_new();
        slice text = arena_adopt(a, &reply.body);
        got = (hx_settled){.memory = a, .json = hx_bytes_of(text.p, text.n)};
        if (!settled_read(text, &got) && st == HX_OK)
            st = error_protocol(err, reply.status, "not the answer to a settling call");
    }
    if (out)
        *out = got;
    else
        hx_settled_free(&got);
    reply_free(&reply);
    buf_free(body);
    return st;
}

void hx_settled_free(hx_settled *settled) {
    arena_free(settled->memory);
    *settled = (hx_settled){0};
}

/* The common beginning of the calls below: defaults for out and err, and a usable token. */
static bool begin(const char *token, hx_settled *out, hx_error *err) {
    if (out) *out = (hx_settled){0};
    return token_ok(token, err);
}

hx_status ack_within(hx_client *c, struct patience p, const char *token, hx_bytes result, const char *content_type,
                     const char *effect_id, hx_settled *out, hx_error *err) {
    hx_error spare;
    if (!err) err = &spare;
    if (!begin(token, out, err)) return HX_INVALID;
    if (!text_ok(content_type) || !text_ok(effect_id))
        return error_set(err, HX_INVALID, HX_APPLIED_NO, "field_invalid", "content type or effect id is not UTF-8");
    struct buf body = {0};
    body_ack(&body, token, result, content_type, effect_id);
    return settle(c, p, "ack", &body, out, err);
}

hx_status hx_ack(hx_client *c, const char *token, hx_bytes result, const char *content_type, const char *effect_id,
                 hx_settled *out, hx_error *err) {
    return ack_within(c, plain_patience, token, result, content_type, effect_id, out, err);
}

hx_status nack_within(hx_client *c, struct patience p, const char *token, const hx_failure *failure, hx_settled *out,
                      hx_error *err) {
    hx_error spare;
    if (!err) err = &spare;
    if (!begin(token, out, err)) return HX_INVALID;
    if (!text_ok(failure->reason) || !text_ok(failure->content_type))
        return error_set(err, HX_INVALID, HX_APPLIED_NO, "field_invalid", "reason or content type is not UTF-8");
    struct buf body = {0};
    body_nack(&body, token, failure);
    return settle(c, p, "nack", &body, out, err);
}

hx_status hx_nack(hx_client *c, const char *token, const hx_failure *failure, hx_settled *out, hx_error *err) {
    return nack_within(c, plain_patience, token, failure, out, err);
}

hx_status hx_extend(hx_client *c, const char *token, i64 lease_ms, hx_settled *out, hx_error *err) {
    hx_error spare;
    if (!err) err = &spare;
    if (!begin(token, out, err)) return HX_INVALID;
    struct buf body = {0};
    body_token(&body, token);
    put_duration(&body, "lease", lease_ms);
    buf_char(&body, '}');
    return settle(c, plain_patience, "extend", &body, out, err);
}

hx_status plain_within(hx_client *c, struct patience p, const char *verb, const char *token, hx_settled *out,
                       hx_error *err) {
    hx_error spare;
    if (!err) err = &spare;
    if (!begin(token, out, err)) return HX_INVALID;
    struct buf body = {0};
    body_token(&body, token);
    buf_char(&body, '}');
    return settle(c, p, verb, &body, out, err);
}

hx_status hx_start(hx_client *c, const char *token, hx_settled *out, hx_error *err) {
    return plain_within(c, plain_patience, "start", token, out, err);
}

hx_status hx_release(hx_client *c, const char *token, hx_settled *out, hx_error *err) {
    return plain_within(c, plain_patience, "release", token, out, err);
}

/* ---- steps */

static bool step_read(slice json, struct arena *a, hx_step_answer *out) {
    struct json j;
    slice name, s;
    bool has_status = false;
    json_init(&j, json);
    if (json_object(&j)) {
        while (json_member(&j, &name)) {
            if (slice_eq(name, SL("status")) && json_peek(&j) == JSON_STRING) {
                has_status = json_string(&j, &s);
                out->recorded_before = has_status && slice_eq(s, SL("duplicate"));
            } else if (slice_eq(name, SL("result"))) {
                read_step_result(&j, a, &out->result);
            } else {
                json_skip(&j);
            }
        }
    }
    bool ok = json_end(&j) && has_status;
    json_free(&j);
    return ok;
}

static hx_status step_record(hx_client *c, const char *token, const char *name, hx_bytes result, hx_step_answer *out,
                             hx_error *err) {
    struct buf body = {0};
    body_token(&body, token);
    put_text(&body, "name", name);
    put_bytes(&body, "result", result);
    buf_char(&body, '}');
    struct reply reply = {0};
    hx_status st = post(c, plain_patience, "step", buf_slice(&body), &reply, err);
    if (reply.status) {
        struct arena *a = arena_new();
        slice text = arena_adopt(a, &reply.body);
        *out = (hx_step_answer){.memory = a, .json = hx_bytes_of(text.p, text.n)};
        if (st == HX_OK && !step_read(text, a, out)) st = error_protocol(err, reply.status, "not the answer to a step");
    }
    reply_free(&reply);
    buf_free(&body);
    return st;
}

hx_status hx_step(hx_client *c, const char *token, const char *name, hx_bytes result, hx_step_answer *out,
                  hx_error *err) {
    hx_error spare_err;
    hx_step_answer spare_out;
    if (!err) err = &spare_err;
    hx_step_answer *answer = out ? out : &spare_out;
    *answer = (hx_step_answer){0};
    if (!token_ok(token, err)) return HX_INVALID;
    if (!name || !*name || !text_ok(name))
        return error_set(err, HX_INVALID, HX_APPLIED_NO, "step_invalid", "a step needs a name");
    hx_status st = step_record(c, token, name, result, answer, err);
    if (!out) hx_step_answer_free(&spare_out);
    return st;
}

void hx_step_answer_free(hx_step_answer *answer) {
    arena_free(answer->memory);
    *answer = (hx_step_answer){0};
}

/* ---- many at once */

/* One element of the reply array: a problem has a numeric "status" of 400 or more and a code. */
static hx_status item_status(slice object) {
    i64 status = 0;
    struct json j;
    slice name;
    json_init(&j, object);
    if (json_object(&j)) {
        while (json_member(&j, &name)) {
            if (slice_eq(name, SL("status")) && json_peek(&j) == JSON_NUMBER)
                json_i64(&j, &status);
            else
                json_skip(&j);
        }
    }
    bool ok = json_end(&j);
    json_free(&j);
    hx_error err;
    if (!ok) return HX_PROTOCOL;
    return status >= 400 && status < 600 ? problem_read((int)status, object, &err) : HX_OK;
}

static bool items_read(slice json, struct settle_item *items, size_t count) {
    struct json j;
    size_t n = 0;
    json_init(&j, json);
    if (json_array(&j)) {
        while (json_element(&j)) {
            enum json_type type;
            slice raw;
            if (!json_value(&j, &type, &raw)) break;
            if (n < count) items[n].status = item_status(raw);
            n++;
        }
    }
    bool ok = json_end(&j) && n == count;
    json_free(&j);
    return ok;
}

hx_status settle_many(hx_client *c, struct patience p, const char *verb, struct settle_item *items, size_t count,
                      i64 lease_ms, hx_error *err) {
    struct buf body = {0};
    buf_char(&body, '[');
    for (size_t i = 0; i < count; i++) {
        if (i) buf_char(&body, ',');
        body_token(&body, items[i].token);
        if (lease_ms > 0) put_duration(&body, "lease", lease_ms);
        buf_char(&body, '}');
    }
    buf_char(&body, ']');
    struct reply reply = {0};
    hx_status st = post(c, p, verb, buf_slice(&body), &reply, err);
    if (st == HX_OK && !items_read(buf_slice(&reply.body), items, count))
        st = error_protocol(err, reply.status, "not an array of as many answers");
    reply_free(&reply);
    buf_free(&body);
    return st;
}
