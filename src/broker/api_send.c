/* Send: one message, or many. Both go through one function (admit.c). */
#include <stdio.h>

#include "broker/broker_priv.h"

static u16 admission_status(const struct admission *a) {
    return state_is_settled(a->state) ? 200 : 202;
}

/* Without the closing brace: a batch line adds its status. */
static void render_admission(struct broker *b, struct buf *body, const struct admission *a, slice queue) {
    const struct rec_settle *settle = a->seen ? a->seen->settle : NULL;
    if (a->verdict == SEND_ACCEPTED)
        buf_lit(body, "{\"outcome\":\"accepted\",\"duplicate\":false");
    else if (a->verdict == SEND_HELD)
        buf_lit(body, "{\"outcome\":\"held\",\"duplicate\":false");
    else
        buf_lit(body, "{\"outcome\":\"duplicate\",\"duplicate\":true");
    buf_lit(body, ",\"id\":\"");
    core_id_text(&a->out.ref, body);
    buf_lit(body, "\",\"queue\":");
    json_put_string(body, queue);
    put_key(body, a->key);
    buf_lit(body, ",\"state\":\"");
    buf_slice_add(body, slice_str(state_text(a->state)));
    buf_char(body, '"');
    if (a->verdict != SEND_DUPLICATE && !settle) {
        buf_lit(body, ",\"expires_at\":null");
        return;
    }
    if (settle && settle->reason.n) json_put_member(body, "reason", settle->reason);
    if (settle) {
        json_put_name(body, "result");
        put_result(body, settle->content_type, settle->result);
    }
    put_time_member(b, body, "first_seen", a->out.first_seen_ms);
    buf_lit(body, ",\"age_ms\":");
    buf_dec_signed(body, b->now.wall_ms - a->out.first_seen_ms);
    buf_lit(body, ",\"duplicates\":");
    buf_dec(body, a->out.duplicates);
    put_expires(b, body, settle);
}

static void put_wait_applied(struct buf *fields, i64 seconds) {
    buf_lit(fields, "Preference-Applied: wait=");
    buf_dec_signed(fields, seconds);
    buf_lit(fields, "\r\n");
}

static void reply_admission(struct broker *b, void *conn, const struct admission *a, slice queue, i64 waited_s) {
    buf_reset(&b->body);
    buf_reset(&b->fields);
    render_admission(b, &b->body, a, queue);
    buf_char(&b->body, '}');
    if (a->verdict == SEND_DUPLICATE) buf_lit(&b->fields, "Idempotent-Replayed: true\r\n");
    if (waited_s >= 0) put_wait_applied(&b->fields, waited_s);
    reply_with(b, conn, admission_status(a), SL("application/json"), buf_slice(&b->fields), buf_slice(&b->body), 0);
}

/* ---- one message */

struct send_fields {
    slice key;
    u32 keys;
    i64 wait_s; /* -1: no Prefer: wait */
};

static bool field_duration(struct call *c, const char *name, slice text, i64 *out) {
    if (duration_parse(slice_trim(text), out) && *out <= DELAY_MS_MAX) return true;
    return fail(c, PROBLEM_param_invalid, "%s must be a duration up to 366d, such as 500ms, 30s or 5m", name);
}

/* Prefer: a list of preferences; only wait=N concerns us, and a broken one is ignored as RFC 7240 asks. */
static void take_prefer(slice value, struct send_fields *f) {
    slice item;
    while (value.n) {
        slice_cut(value, ',', &item, &value);
        slice name, seconds;
        u64 n;
        if (!slice_cut(slice_trim(item), '=', &name, &seconds)) continue;
        if (!slice_eq_nocase(slice_trim(name), SL("wait")) || !slice_u64(slice_trim(seconds), &n)) continue;
        f->wait_s = n > WAIT_MS_MAX / 1000 ? WAIT_MS_MAX / 1000 : (i64)n;
    }
}

static bool take_attr(struct call *c, struct buf *attrs, slice name, slice value) {
    if (name.n == 0 || name.n > 255) return fail(c, PROBLEM_param_invalid, "an attribute has no or too long a name");
    if (!text_ok(value, ATTRS_BYTES_MAX))
        return fail(c, PROBLEM_param_invalid, "an attribute's value is not plain UTF-8");
    if (!attrs_add(attrs, name, value))
        return fail(c, PROBLEM_param_invalid, "attribute '%.*s' is given twice", (int)name.n, name.p);
    if (attrs->len <= ATTRS_BYTES_MAX) return true;
    return fail(c, PROBLEM_too_large, "attributes take more than %u bytes", ATTRS_BYTES_MAX);
}

static bool take_text(struct call *c, const char *name, slice value, size_t max, slice *out) {
    *out = value;
    if (text_ok(value, max)) return true;
    return fail(c, PROBLEM_param_invalid, "%s must be UTF-8 without control characters, at most %zu bytes", name, max);
}

#define ATTR_PREFIX "hapax-attr-"

static bool take_field(struct call *c, slice name, slice value, struct send_in *in, struct send_fields *f,
                       struct buf *attrs) {
    switch (name.n) { /* most fields are told apart by their length alone */
    case 6:
        if (slice_eq_nocase(name, SL("prefer"))) take_prefer(value, f);
        return true;
    case 9:
        if (!slice_eq_nocase(name, SL("hapax-ttl"))) break;
        if (!field_duration(c, "Hapax-Ttl", value, &in->ttl_ms)) return false;
        return in->ttl_ms > 0 || fail(c, PROBLEM_param_invalid, "Hapax-Ttl must be more than nothing");
    case 10:
        if (slice_eq_nocase(name, SL("tracestate"))) return take_text(c, "tracestate", value, 4096, &in->tracestate);
        return true;
    case 11:
        if (slice_eq_nocase(name, SL("traceparent"))) return take_text(c, "traceparent", value, 255, &in->traceparent);
        if (slice_eq_nocase(name, SL("hapax-group")))
            return take_text(c, "Hapax-Group", value, GROUP_BYTES_MAX, &in->group);
        if (slice_eq_nocase(name, SL("hapax-delay"))) return field_duration(c, "Hapax-Delay", value, &in->delay_ms);
        break;
    case 12:
        if (slice_eq_nocase(name, SL("content-type")))
            return take_text(c, "Content-Type", value, TYPE_BYTES_MAX, &in->content_type);
        if (slice_eq_nocase(name, SL("x-request-id")) && in->request_id.n == 0) in->request_id = value;
        break;
    case 15:
        if (!slice_eq_nocase(name, SL("idempotency-key"))) break;
        f->key = value;
        f->keys++;
        return true;
    case 16:
        if (slice_eq_nocase(name, SL("hapax-request-id"))) in->request_id = value;
        if (slice_eq_nocase(name, SL("content-encoding")) && !slice_eq_nocase(value, SL("identity")))
            return fail(c, PROBLEM_unsupported_media, "Content-Encoding is not accepted: send the payload as it is");
        break;
    default:
        break;
    }
    size_t prefix = sizeof ATTR_PREFIX - 1;
    if (name.n <= prefix || !slice_eq_nocase(slice_of(name.p, prefix), SL(ATTR_PREFIX))) return true;
    return take_attr(c, attrs, slice_of(name.p + prefix, name.n - prefix), value);
}

static bool take_request_id(slice *id) {
    if (id->n > REQUEST_ID_BYTES_MAX || !utf8_valid(*id) || has_control(*id)) *id = SL("");
    return true;
}

static bool parse_send(struct call *c, struct send_in *in, struct send_fields *f, struct buf *attrs,
                       struct buf *key_store) {
    f->wait_s = -1;
    for (size_t i = 0; i < c->req->field_count; i++)
        if (!take_field(c, c->req->fields[i].name, c->req->fields[i].value, in, f, attrs)) return false;
    const char *why;
    if (f->keys > 1) return fail(c, PROBLEM_key_invalid, "Idempotency-Key is given %u times", f->keys);
    if (f->keys && !parse_key_field(f->key, key_store, &in->key, &why)) return fail(c, PROBLEM_key_invalid, "%s", why);
    if (c->req->body.n > PAYLOAD_BYTES_MAX)
        return fail(c, PROBLEM_too_large, "the payload has %zu bytes, the limit is %u", c->req->body.n,
                    PAYLOAD_BYTES_MAX);
    in->attrs = buf_slice(attrs);
    in->payload = c->req->body;
    return take_request_id(&in->request_id);
}

/* A send without a key makes no queue: such a queue would want one. */
static bool queue_of_send(struct call *c, const struct send_fields *f, u16 *queue) {
    if (f->keys || !c->b->config->auto_create || core_queue_find(c->b->core, c->arg[0], queue))
        return queue_of_call(c, true, queue);
    return fail(c, PROBLEM_key_missing,
                "send the key in the Idempotency-Key header: what this message means, the same at every retry");
}

static slice request_header(void *ctx, slice name) {
    slice value = {0};
    http_field_get(ctx, name, &value);
    return value;
}

static bool may_settle(enum state state) {
    return state == STATE_PENDING || state == STATE_LEASED;
}

void api_send(struct call *c) {
    struct broker *b = c->b;
    struct send_in in = {0};
    struct send_fields f = {0};
    struct admission a;
    struct buf attrs = {0}, key_store = {0};
    void *headers = (void *)(uintptr_t)c->req; /* only read */
    if (!parse_send(c, &in, &f, &attrs, &key_store) || !queue_of_send(c, &f, &in.queue) ||
        !admit_message(b, &in, request_header, headers, &a, &c->failure)) {
        reply_failure(c);
    } else if (f.wait_s > 0 && may_settle(a.state)) {
        struct wait *w = wait_new(b, WAIT_SEND, c->conn, c->user, f.wait_s * 1000);
        w->duplicate = a.verdict == SEND_DUPLICATE;
        w->wait_asked_s = f.wait_s;
        wait_for_outcome(b, w, &a.out.ref);
    } else {
        reply_admission(b, c->conn, &a, c->arg[0], f.wait_s);
    }
    buf_free(&attrs);
    buf_free(&key_store);
}

static void answer_forgotten(struct broker *b, struct wait *w) {
    struct call c = {.b = b, .conn = w->conn};
    wait_end(b, w);
    fail(&c, PROBLEM_no_such_key, "it was forgotten meanwhile");
    reply_failure(&c);
    buf_free(&c.failure.detail);
    buf_free(&c.failure.more);
}

/* It settled, or the sender has waited long enough, or an operator had it forgotten. */
void answer_send(struct broker *b, struct wait *w) {
    struct admission a = {.verdict = w->duplicate ? SEND_DUPLICATE : SEND_ACCEPTED};
    struct seen *s = broker_find_id(b, w->ref.hash, w->ref.seq);
    if (!s) return answer_forgotten(b, w);
    struct queue_info q;
    struct rec_arrivals arrivals;
    core_queue_info(b->core, b->now, w->ref.queue, &q);
    core_arrivals_view(b->core, s, &arrivals);
    a.out.ref = w->ref;
    a.out.duplicates = arrivals.duplicates;
    a.out.first_seen_ms = s->settle ? s->settle->first_seen_ms : s->message->first_seen_ms;
    a.seen = s;
    a.key = seen_key(s);
    a.state = seen_state(b, s);
    reply_admission(b, w->conn, &a, q.name, w->wait_asked_s);
    wait_end(b, w);
}

/* ---- many */

/* A line as the sender wrote it. */
struct line {
    struct send_in in;
    slice key, payload_text, payload_base64;
    enum json_type payload_type;
    bool has_key, has_payload, has_base64, has_delay, has_ttl;
    slice delay, ttl;
};

static bool line_attrs(struct json *j, struct buf *attrs) {
    slice name, value;
    if (!json_object(j)) return false;
    while (json_member(j, &name)) {
        if (!json_string(j, &value)) return false;
        if (!text_ok(name, 255) || !text_ok(value, ATTRS_BYTES_MAX))
            return json_fail(j, "attrs: names and values must be plain text");
        if (!attrs_add(attrs, name, value)) return json_fail(j, "attrs: a name is given twice, case aside");
    }
    return attrs->len <= ATTRS_BYTES_MAX || json_fail(j, "attrs: too large");
}

static bool line_member(struct json *j, slice name, struct line *l, struct buf *attrs) {
    if (slice_eq(name, SL("key"))) return l->has_key = true, json_string(j, &l->key);
    if (slice_eq(name, SL("payload"))) {
        l->has_payload = true;
        l->payload_type = json_peek(j);
        if (l->payload_type == JSON_STRING) return json_string(j, &l->payload_text);
        return json_value(j, &l->payload_type, &l->payload_text);
    }
    if (slice_eq(name, SL("payload_base64"))) return l->has_base64 = true, json_string(j, &l->payload_base64);
    if (slice_eq(name, SL("content_type"))) return json_string(j, &l->in.content_type);
    if (slice_eq(name, SL("group"))) return json_string(j, &l->in.group);
    if (slice_eq(name, SL("request_id"))) return json_string(j, &l->in.request_id);
    if (slice_eq(name, SL("delay"))) return l->has_delay = true, json_duration(j, &l->delay);
    if (slice_eq(name, SL("ttl"))) return l->has_ttl = true, json_duration(j, &l->ttl);
    if (slice_eq(name, SL("attrs"))) return line_attrs(j, attrs);
    return json_fail(j, "a member that a batch line does not have");
}

static bool line_parse(struct json *j, struct line *l, struct buf *attrs, struct failure *f) {
    slice name;
    if (json_object(j))
        while (json_member(j, &name))
            if (!line_member(j, name, l, attrs)) break;
    if (json_end(j)) return true;
    struct buf why = {0};
    json_error(j, &why);
    failure_set(f, PROBLEM_json_invalid, "%.*s", (int)why.len, why.p);
    buf_free(&why);
    return false;
}

static bool line_payload(struct line *l, struct buf *decoded, struct failure *f) {
    if (l->has_payload == l->has_base64) {
        failure_set(f, PROBLEM_param_invalid, "a line has either payload or payload_base64");
        return false;
    }
    l->in.payload = l->payload_text;
    if (l->has_base64) {
        if (!buf_base64_decode(decoded, l->payload_base64)) {
            failure_set(f, PROBLEM_param_invalid, "payload_base64 is not base64");
            return false;
        }
        l->in.payload = buf_slice(decoded);
    } else if (l->payload_type != JSON_STRING && l->in.content_type.n == 0) {
        l->in.content_type = SL("application/json");
    }
    if (l->in.payload.n <= PAYLOAD_BYTES_MAX) return true;
    failure_set(f, PROBLEM_too_large, "the payload has %zu bytes, the limit is %u", l->in.payload.n, PAYLOAD_BYTES_MAX);
    return false;
}

static bool line_check(struct line *l, struct failure *f) {
    const char *why;
    if (l->has_key && !key_bytes_valid(l->key, &why)) {
        failure_set(f, PROBLEM_key_invalid, "%s", why);
        return false;
    }
    l->in.key = l->key;
    bool delay_ok = !l->has_delay || (duration_parse(l->delay, &l->in.delay_ms) && l->in.delay_ms <= DELAY_MS_MAX);
    bool ttl_ok =
        !l->has_ttl || (duration_parse(l->ttl, &l->in.ttl_ms) && l->in.ttl_ms > 0 && l->in.ttl_ms <= DELAY_MS_MAX);
    if (!delay_ok || !ttl_ok) {
        failure_set(f, PROBLEM_param_invalid, "%s must be a duration up to 366d, such as 500ms or 30s",
                    delay_ok ? "ttl" : "delay");
        return false;
    }
    if (!text_ok(l->in.group, GROUP_BYTES_MAX) || !text_ok(l->in.content_type, TYPE_BYTES_MAX)) {
        failure_set(f, PROBLEM_param_invalid, "group and content_type must be plain text, at most %u bytes",
                    GROUP_BYTES_MAX);
        return false;
    }
    return take_request_id(&l->in.request_id);
}

/* One line, from text to its line of the reply. A bad one fails alone. */
static void batch_line(struct call *c, u16 queue, slice text, struct buf *attrs, struct buf *decoded,
                       struct buf *body) {
    struct line l = {.in = {.queue = queue}};
    struct admission a;
    struct json j;
    buf_reset(attrs);
    buf_reset(decoded);
    buf_reset(&c->failure.more);
    json_init(&j, text);
    bool ok =
        line_parse(&j, &l, attrs, &c->failure) && line_check(&l, &c->failure) && line_payload(&l, decoded, &c->failure);
    l.in.attrs = buf_slice(attrs);
    if (ok && admit_message(c->b, &l.in, said_header, &l.in, &a, &c->failure)) {
        render_admission(c->b, body, &a, c->arg[0]);
        json_put_member_i64(body, "status", admission_status(&a));
    } else {
        failure_render(&c->failure, body);
    }
    buf_lit(body, "}\n");
    json_free(&j);
}

static bool next_line(slice *rest, slice *line) {
    while (rest->n) {
        slice_cut(*rest, '\n', line, rest);
        if (line->n && line->p[line->n - 1] == '\r') line->n--;
        if (slice_trim(*line).n) return true; /* blank lines, such as one at the end, say nothing */
    }
    return false;
}

void api_batch(struct call *c) {
    slice rest = c->req->body, line, type;
    u16 queue;
    u32 lines = 0;
    while (next_line(&rest, &line)) lines++;
    if (http_field_get(c->req, SL("content-encoding"), &type) && !slice_eq_nocase(type, SL("identity"))) {
        fail(c, PROBLEM_unsupported_media, "Content-Encoding is not accepted: send the lines as they are");
        return reply_failure(c);
    }
    if (lines > BATCH_LINES_MAX) {
        fail(c, PROBLEM_too_large, "a batch has at most %u lines, this one has %u", BATCH_LINES_MAX, lines);
        return reply_failure(c);
    }
    if (!queue_of_call(c, true, &queue)) return reply_failure(c);
    struct buf attrs = {0}, decoded = {0}, *body = &c->b->body;
    buf_reset(body);
    rest = c->req->body;
    while (next_line(&rest, &line)) batch_line(c, queue, line, &attrs, &decoded, body);
    buf_free(&attrs);
    buf_free(&decoded);
    reply_with(c->b, c->conn, 200, SL("application/x-ndjson"), SL(""), buf_slice(body), 0);
}

/* ---- ahead of their turn */

/* The hash a send will ask for, if it is a plain one: same queue as the last request, unquoted key. */
static bool guess_hash(struct broker *b, const struct http_request *req, u64 *hash) {
    static const char before[] = "/v1/queues/", behind[] = "/messages";
    slice name = b->last_queue_name, key;
    size_t start = sizeof before - 1, end = sizeof behind - 1;
    if (req->method != HTTP_POST || req->path.n != start + name.n + end) return false;
    if (memcmp(req->path.p + start, name.p, name.n) != 0 || memcmp(req->path.p + start + name.n, behind, end) != 0)
        return false;
    if (http_field_get(req, SL("idempotency-key"), &key) != 1 || key.n == 0 || key.p[0] == '"') return false;
    *hash = core_hash(b->core, b->last_queue, key);
    return true;
}

void broker_ahead(struct broker *b, const struct http_request *const *reqs, u32 count) {
    u64 hashes[AHEAD_MAX];
    u32 n = 0;
    if (b->last_queue == 0) return;
    for (u32 i = 0; i < count && n < AHEAD_MAX; i++)
        if (guess_hash(b, reqs[i], &hashes[n])) n++;
    if (n) broker_prefetch(b, hashes, n);
}
