/* From what a client means to what it says. */
#include "sim.h"

#include "base/json.h"

static const char *const verb_names[] = {"ack", "nack", "extend", "step", "start", "release"};
static const char *const class_names[] = {"transient", "unknown", "poison", "rejected", "absent"};

const char *verb_name(enum verb_kind v) {
    return verb_names[v];
}
const char *nack_name(enum nack_class c) {
    return class_names[c];
}

slice queue_text(u32 queue) {
    return queue == 0 ? SL("orders") : SL("mail.out");
}

/* A third of the keys need all the quoting there is. */
slice key_text(struct arena *a, u32 key) {
    if (key % 3 != 0) return arena_printf(a, "key-%u", key);
    return arena_printf(a, "k\303\266/%u \"%%\"", key);
}

slice group_text(struct arena *a, u32 group) {
    return arena_printf(a, "group-%u", group);
}

slice payload_text(struct arena *a, u32 queue, u32 key, u32 variant) {
    u32 size = 8 + (key * 37 + queue * 11) % 150;
    if (key % 7 == 3) size += 1500;
    char *p = arena_alloc(a, size);
    struct rng rng;
    rng_seed(&rng, ((u64)queue << 40) + ((u64)key << 8) + variant);
    for (u32 i = 0; i < size; i++) p[i] = key % 5 == 1 ? (char)rng_next(&rng) : (char)('a' + rng_below(&rng, 26));
    p[0] = (char)('A' + variant);
    return slice_of(p, size);
}

static void field(struct request *r, const char *name, slice value) {
    r->fields[r->http.field_count++] = (struct http_field){.name = slice_str(name), .value = value};
}

/* As a display string, so that every key can be said. */
static slice key_field(struct arena *a, u32 key) {
    slice text = key_text(a, key);
    struct buf b = {0};
    if (key % 3 != 0) return text;
    buf_lit(&b, "%\"");
    for (size_t i = 0; i < text.n; i++) {
        unsigned char c = (unsigned char)text.p[i];
        if (c < 0x20 || c > 0x7e || c == '%' || c == '"')
            buf_printf(&b, "%%%02x", c);
        else
            buf_char(&b, (char)c);
    }
    buf_char(&b, '"');
    slice out = arena_copy(a, buf_slice(&b));
    buf_free(&b);
    return out;
}

static slice ms_text(struct arena *a, i64 ms) {
    return arena_printf(a, "%lldms", (long long)ms);
}

static void build_send(struct arena *a, const struct op *op, struct request *r) {
    const struct send_item *s = &op->sends[0];
    field(r, "Idempotency-Key", key_field(a, s->key));
    field(r, "Content-Type", SL("text/plain"));
    if (s->group) field(r, "Hapax-Group", group_text(a, s->group));
    if (s->delay_ms) field(r, "Hapax-Delay", ms_text(a, s->delay_ms));
    if (s->ttl_ms) field(r, "Hapax-Ttl", ms_text(a, s->ttl_ms));
    if (s->attr) field(r, "Hapax-Attr-Color", SL("green"));
    if (op->wait_ms) field(r, "Prefer", arena_printf(a, "wait=%lld", (long long)(op->wait_ms / 1000)));
    r->http.path = arena_printf(a, "/v1/queues/%s/messages", queue_text(op->queue).p);
    r->http.body = payload_text(a, op->queue, s->key, s->variant);
}

static void batch_line(struct arena *a, const struct op *op, const struct send_item *s, struct buf *b) {
    slice payload = payload_text(a, op->queue, s->key, s->variant);
    buf_char(b, '{');
    json_put_member(b, "key", key_text(a, s->key));
    json_put_member(b, "content_type", SL("text/plain"));
    if (utf8_valid(payload)) {
        json_put_member(b, "payload", payload);
    } else {
        buf_lit(b, ",\"payload_base64\":\"");
        buf_base64(b, payload);
        buf_char(b, '"');
    }
    if (s->group) json_put_member(b, "group", group_text(a, s->group));
    if (s->delay_ms) json_put_member(b, "delay", ms_text(a, s->delay_ms));
    if (s->ttl_ms) json_put_member(b, "ttl", ms_text(a, s->ttl_ms));
    if (s->attr) buf_lit(b, ",\"attrs\":{\"color\":\"green\"}");
    buf_lit(b, "}\n");
}

static void build_batch(struct arena *a, const struct op *op, struct request *r) {
    struct buf b = {0};
    for (u32 i = 0; i < op->count; i++) batch_line(a, op, &op->sends[i], &b);
    field(r, "Content-Type", SL("application/x-ndjson"));
    r->http.path = arena_printf(a, "/v1/queues/%s/batch", queue_text(op->queue).p);
    r->http.body = arena_copy(a, buf_slice(&b));
    buf_free(&b);
}

static void build_receive(struct arena *a, const struct op *op, struct request *r) {
    slice lease = op->lease_ms ? arena_printf(a, "&lease=%lldms", (long long)op->lease_ms) : SL("");
    r->http.path = arena_printf(a, "/v1/queues/%s/receive", queue_text(op->queue).p);
    r->http.query = arena_printf(a, "max=%u&wait=%lldms&consumer=c%u%s%s", op->max, (long long)op->wait_ms,
                                 op->number % 5, op->explicit_start ? "&start=explicit" : "", lease.p);
}

static void put_token(const struct settle_item *s, struct buf *b) {
    char token[64];
    size_t n = s->lease->token.n < sizeof token ? s->lease->token.n : sizeof token;
    memcpy(token, s->lease->token.p, n);
    if (s->garbled) token[n / 2] = token[n / 2] == 'A' ? 'B' : 'A';
    json_put_member(b, "token", slice_of(token, n));
}

static void settle_item(struct arena *a, const struct op *op, const struct settle_item *s, struct buf *b) {
    buf_char(b, '{');
    put_token(s, b);
    if (op->verb == DO_NACK) json_put_member(b, "class", slice_str(nack_name(s->class)));
    if (op->verb == DO_NACK && s->delay_ms) json_put_member(b, "delay", ms_text(a, s->delay_ms));
    if (op->verb == DO_EXTEND && s->lease_ms) json_put_member(b, "lease", ms_text(a, s->lease_ms));
    if (op->verb == DO_STEP) json_put_member(b, "name", s->name);
    if (s->result.n && s->result_json) json_put_member_raw(b, "result", s->result);
    if (s->result.n && !s->result_json) json_put_member(b, "result", s->result);
    if (op->verb == DO_ACK && s->effect_id.n) json_put_member(b, "effect_id", s->effect_id);
    buf_char(b, '}');
}

static void build_settle(struct arena *a, const struct op *op, struct request *r) {
    struct buf b = {0};
    if (op->array) buf_char(&b, '[');
    for (u32 i = 0; i < op->count; i++) {
        if (i) buf_char(&b, ',');
        settle_item(a, op, &op->settles[i], &b);
    }
    if (op->array) buf_char(&b, ']');
    field(r, "Content-Type", SL("application/json"));
    r->http.path = arena_printf(a, "/v1/%s", verb_name(op->verb));
    r->http.body = arena_copy(a, buf_slice(&b));
    buf_free(&b);
}

static void build_key(struct arena *a, const struct op *op, struct request *r, const char *tail) {
    struct buf b = {0};
    buf_printf(&b, "/v1/queues/%s/keys/", queue_text(op->queue).p);
    buf_percent_encode(&b, key_text(a, op->sends[0].key));
    buf_printf(&b, "%s", tail);
    r->http.method = HTTP_GET;
    r->http.path = arena_copy(a, buf_slice(&b));
    if (op->wait_ms) r->http.query = arena_printf(a, "wait=%lldms", (long long)op->wait_ms);
    buf_free(&b);
}

static void build_queue(struct arena *a, const struct op *op, struct request *r, const char *tail) {
    r->http.path = arena_printf(a, "/v1/queues/%s%s", queue_text(op->queue).p, tail);
}

void request_build(struct arena *a, const struct op *op, struct request *r) {
    *r = (struct request){.http = {.method = HTTP_POST}};
    r->http.fields = r->fields;
    switch (op->kind) {
    case OP_SEND:
        build_send(a, op, r);
        break;
    case OP_BATCH:
        build_batch(a, op, r);
        break;
    case OP_RECEIVE:
        build_receive(a, op, r);
        break;
    case OP_SETTLE:
        build_settle(a, op, r);
        break;
    case OP_KEY:
        build_key(a, op, r, "");
        break;
    case OP_RESULT:
        build_key(a, op, r, "/result");
        break;
    case OP_LIST:
        build_queue(a, op, r, "/messages");
        r->http.method = HTTP_GET;
        r->http.query = arena_printf(a, "state=%s&limit=%u", op->state.p, op->max);
        break;
    case OP_QUEUE:
        build_queue(a, op, r, "");
        r->http.method = HTTP_GET;
        break;
    case OP_STATS:
        r->http.path = SL("/v1/stats");
        r->http.method = HTTP_GET;
        break;
    case OP_PAUSE:
        build_queue(a, op, r, "/pause");
        break;
    case OP_RESUME:
        build_queue(a, op, r, "/resume");
        break;
    case OP_CANCEL:
        r->http.path = arena_printf(a, "/v1/queues/%s/messages/%s/cancel", queue_text(op->queue).p, op->id.p);
        field(r, "Hapax-Actor", SL("op"));
        break;
    }
    r->http.body_length = r->http.body.n;
}
