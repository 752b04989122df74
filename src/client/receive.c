#include "client/client_priv.h"

static bool read_attrs(struct json *j, struct arena *a, hx_message *m) {
    struct buf list = {0};
    slice name, value;
    if (json_peek(j) == JSON_NULL) return json_null(j);
    if (json_object(j)) {
        while (json_member(j, &name)) {
            if (!json_string(j, &value)) break;
            hx_attr attr = {arena_string(a, name), arena_string(a, value)};
            buf_add(&list, &attr, sizeof(attr));
        }
    }
    hx_attr *attrs = arena_alloc(a, list.len);
    if (list.len) memcpy(attrs, list.p, list.len);
    m->attrs = attrs;
    m->attr_count = list.len / sizeof(hx_attr);
    buf_free(&list);
    return j->error == NULL;
}

static bool read_step(struct json *j, struct arena *a, hx_step_record *step) {
    slice name;
    if (!json_object(j)) return false;
    while (json_member(j, &name)) {
        if (slice_eq(name, SL("name")))
            read_string(j, a, &step->name);
        else if (slice_eq(name, SL("result")))
            read_step_result(j, a, &step->result);
        else
            json_skip(j);
    }
    return !j->error && (step->name || json_fail(j, "a step without a name"));
}

static bool read_steps(struct json *j, struct arena *a, hx_message *m) {
    struct buf list = {0};
    if (json_peek(j) == JSON_NULL) return json_null(j);
    if (json_array(j)) {
        while (json_element(j)) {
            hx_step_record step = {0};
            if (!read_step(j, a, &step)) break;
            buf_add(&list, &step, sizeof(step));
        }
    }
    hx_step_record *steps = arena_alloc(a, list.len);
    if (list.len) memcpy(steps, list.p, list.len);
    m->steps = steps;
    m->step_count = list.len / sizeof(hx_step_record);
    buf_free(&list);
    return j->error == NULL;
}

/* Members whose meaning needs another member: put together when the object is at its end. */
struct pending {
    slice payload, encoding, fence, delivery;
};

static bool read_strings(struct json *j, slice name, struct arena *a, hx_message *m, bool *known) {
    const struct {
        const char *name;
        const char **to;
    } strings[] = {
        {"id", &m->id},
        {"key", &m->key},
        {"queue", &m->queue},
        {"token", &m->token},
        {"effect_key", &m->effect_key},
        {"group", &m->group},
        {"content_type", &m->content_type},
        {"traceparent", &m->traceparent},
        {"tracestate", &m->tracestate},
    };
    for (size_t i = 0; i < sizeof(strings) / sizeof(strings[0]); i++)
        if (slice_eq(name, slice_str(strings[i].name))) return *known = true, read_string(j, a, strings[i].to);
    *known = false;
    return true;
}

static bool read_member(struct json *j, slice name, struct arena *a, hx_message *m, struct pending *p) {
    bool known;
    if (!read_strings(j, name, a, m, &known) || known) return j->error == NULL;
    if (slice_eq(name, SL("payload"))) return json_string(j, &p->payload);
    if (slice_eq(name, SL("encoding"))) return json_string(j, &p->encoding);
    if (slice_eq(name, SL("fence"))) return json_string(j, &p->fence);
    if (slice_eq(name, SL("delivery"))) return json_string(j, &p->delivery);
    if (slice_eq(name, SL("attempt"))) return json_i64(j, &m->attempt);
    if (slice_eq(name, SL("failures"))) return json_i64(j, &m->failures);
    if (slice_eq(name, SL("crashes"))) return json_i64(j, &m->crashes);
    if (slice_eq(name, SL("generation"))) return json_i64(j, &m->generation);
    if (slice_eq(name, SL("attrs"))) return read_attrs(j, a, m);
    if (slice_eq(name, SL("steps"))) return read_steps(j, a, m);
    if (slice_eq(name, SL("first_seen"))) return read_time(j, &m->first_seen_ms);
    if (slice_eq(name, SL("enqueued_at"))) return read_time(j, &m->enqueued_at_ms);
    if (slice_eq(name, SL("lease_expires_at"))) return read_time(j, &m->lease_expires_at_ms);
    return json_skip(j);
}

static bool finish(struct json *j, struct arena *a, hx_message *m, const struct pending *p) {
    u64 fence;
    if (!m->id || !m->token) return json_fail(j, "a message without id or token");
    if (!slice_u64(p->fence, &fence) || fence > INT64_MAX) return json_fail(j, "a message without a fence");
    m->fence = (i64)fence;
    if (!read_bytes(a, p->payload, slice_eq(p->encoding, SL("base64")), &m->payload))
        return json_fail(j, "a payload that is not base64");
    if (slice_eq(p->delivery, SL("first")))
        m->delivery = HX_DELIVERY_FIRST;
    else if (slice_eq(p->delivery, SL("retry")))
        m->delivery = HX_DELIVERY_RETRY;
    else if (slice_eq(p->delivery, SL("reconcile")))
        m->delivery = HX_DELIVERY_RECONCILE;
    else
        return json_fail(j, "a message without a delivery");
    if (!m->effect_key) m->effect_key = m->key ? m->key : m->id;
    if (!m->key) m->key = "";
    if (!m->queue) m->queue = "";
    if (!m->content_type) m->content_type = "application/octet-stream";
    return true;
}

static hx_message *read_message(struct json *j, struct arena *a) {
    hx_message *m = arena_alloc(a, sizeof(*m));
    struct pending p = {0};
    slice name;
    if (!json_object(j)) return NULL;
    while (json_member(j, &name))
        if (!read_member(j, name, a, m, &p)) return NULL;
    return !j->error && finish(j, a, m, &p) ? m : NULL;
}

static void read_messages(struct json *j, struct arena *a, hx_received *out) {
    struct buf list = {0};
    if (json_array(j)) {
        while (json_element(j)) {
            hx_message *m = read_message(j, a);
            if (!m) break;
            buf_add(&list, &m, sizeof(m));
        }
    }
    hx_message **messages = arena_alloc(a, list.len);
    if (list.len) memcpy(messages, list.p, list.len);
    out->messages = messages;
    out->count = list.len / sizeof(hx_message *);
    buf_free(&list);
}

/* Fills *out from the reply's body; on a malformed one *why has what is wrong. */
static bool received_read(struct reply *reply, hx_received *out, struct buf *why) {
    struct arena *a = arena_new();
    slice body = arena_adopt(a, &reply->body);
    *out = (hx_received){.memory = a, .json = hx_bytes_of(body.p, body.n)};
    struct json j;
    slice name;
    bool found = false;
    json_init(&j, body);
    if (json_object(&j)) {
        while (json_member(&j, &name)) {
            if (!slice_eq(name, SL("messages"))) {
                json_skip(&j);
                continue;
            }
            found = true;
            read_messages(&j, a, out);
        }
    }
    bool ok = json_end(&j) && found;
    json_error(&j, why);
    json_free(&j);
    return ok;
}

static void render_target(struct buf *b, const char *queue, const hx_receive_options *o) {
    target_queue(b, queue, "/receive");
    buf_printf(b, "?max=%d", o->max > 0 ? o->max : 1);
    if (o->wait_ms > 0) {
        buf_lit(b, "&wait=");
        buf_duration(b, o->wait_ms);
    }
    if (o->lease_ms > 0) {
        buf_lit(b, "&lease=");
        buf_duration(b, o->lease_ms);
    }
    if (o->consumer) {
        buf_lit(b, "&consumer=");
        buf_percent_encode(b, slice_str(o->consumer));
    }
    if (o->explicit_start) buf_lit(b, "&start=explicit");
}

hx_status receive_call(hx_client *c, const char *queue, const hx_receive_options *options, int cancel_fd,
                       hx_received *out, hx_error *err) {
    struct buf target = {0}, why = {0};
    render_target(&target, queue, options);
    struct call call = CALL(.method = "POST", .target = buf_slice(&target), .wait_ms = options->wait_ms);
    call.cancel_fd = cancel_fd;
    struct reply reply = {0};
    hx_status st = client_call(c, &call, &reply, err);
    if (st == HX_OK && !received_read(&reply, out, &why)) {
        buf_char(&why, '\0');
        st = error_protocol(err, reply.status, why.p);
        hx_received_free(out);
    } else if (st != HX_OK && reply.status) {
        struct arena *a = arena_new();
        slice body = arena_adopt(a, &reply.body);
        *out = (hx_received){.memory = a, .json = hx_bytes_of(body.p, body.n)};
    }
    reply_free(&reply);
    buf_free(&target);
    buf_free(&why);
    return st;
}

hx_status hx_receive(hx_client *c, const char *queue, const hx_receive_options *options, hx_received *out,
                     hx_error *err) {
    static const hx_receive_options defaults;
    hx_error spare;
    if (!err) err = &spare;
    *out = (hx_received){0};
    if (!queue_ok(queue, err)) return HX_INVALID;
    if (!options) options = &defaults;
    if (!text_ok(options->consumer))
        return error_set(err, HX_INVALID, HX_APPLIED_NO, "field_invalid", "the consumer's name is not UTF-8");
    return receive_call(c, queue, options, -1, out, err);
}

void hx_received_free(hx_received *received) {
    arena_free(received->memory);
    *received = (hx_received){0};
}
