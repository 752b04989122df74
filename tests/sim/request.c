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

static const char *const op_names[] = {
#define OP_TEXT(name, text) text,
    OP_LIST_OF(OP_TEXT)
#undef OP_TEXT
};
const char *op_name(enum op_kind kind) {
    return op_names[kind];
}

static const char *const as_names[] = {"done", "rejected", "retry", "dead", "new", "duplicate"};
const char *as_name(enum resolve_as as) {
    return as_names[as];
}

slice queue_text(u32 queue) {
    static const char *const names[QUEUES_MOST] = {"orders", "mail.out", "clicks", "ledger"};
    return slice_str(names[queue]);
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
    if (!s->keyless) field(r, "Idempotency-Key", key_field(a, s->key));
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
    if (!s->keyless) json_put_member(b, "key", key_text(a, s->key));
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
    buf_percent_encode(&b, op->key.n ? op->key : key_text(a, op->sends[0].key));
    buf_printf(&b, "%s", tail);
    r->http.path = arena_copy(a, buf_slice(&b));
    if (op->wait_ms) r->http.query = arena_printf(a, "wait=%lldms", (long long)op->wait_ms);
    buf_free(&b);
}

static void build_queue(struct arena *a, const struct op *op, struct request *r, const char *tail) {
    r->http.path = arena_printf(a, "/v1/queues/%s%s", queue_text(op->queue).p, tail);
}

static void build_message(struct arena *a, const struct op *op, struct request *r, const char *tail) {
    r->http.path = arena_printf(a, "/v1/queues/%s/messages/%s%s", queue_text(op->queue).p, op->id.p, tail);
}

/* Who and why: the number of the call, so that it is found again in the audit trail. */
static void sign(struct arena *a, const struct op *op, struct request *r) {
    field(r, "Hapax-Actor", SL("op"));
    field(r, "Hapax-Reason", arena_printf(a, "n%u", op->number));
}

static void take_body(struct arena *a, struct request *r, struct buf *b) {
    field(r, "Content-Type", SL("application/json"));
    r->http.body = arena_copy(a, buf_slice(b));
    buf_free(b);
}

static void build_resolve(struct arena *a, const struct op *op, struct request *r) {
    struct buf b = {0};
    buf_char(&b, '{');
    json_put_member(&b, "as", slice_str(as_name(op->as)));
    if (op->result.n) json_put_member(&b, "result", op->result);
    buf_char(&b, '}');
    build_message(a, op, r, "/resolve");
    take_body(a, r, &b);
}

static void build_redrive(struct arena *a, const struct op *op, struct request *r) {
    struct buf b = {0};
    buf_char(&b, '{');
    if (op->rate) json_put_member_i64(&b, "rate", op->rate);
    if (op->max) json_put_member_i64(&b, "max", op->max);
    if (op->dry_run) json_put_member_bool(&b, "dry_run", true);
    buf_char(&b, '}');
    build_queue(a, op, r, "/redrive");
    take_body(a, r, &b);
}

static void build_put(struct arena *a, const struct op *op, struct request *r) {
    struct buf b = {0};
    policy_text(op->policy, &b);
    build_queue(a, op, r, "");
    r->http.method = HTTP_PUT;
    take_body(a, r, &b);
}

static void build_purge(struct arena *a, const struct op *op, struct request *r) {
    struct buf b = {0};
    buf_char(&b, '{');
    if (op->state.n) json_put_member(&b, "state", op->state);
    buf_char(&b, '}');
    build_queue(a, op, r, "/purge");
    take_body(a, r, &b);
}

static void build_deed(struct arena *a, const struct op *op, struct request *r) {
    sign(a, op, r);
    switch (op->kind) {
    case OP_PUT:
        build_put(a, op, r);
        break;
    case OP_PAUSE:
        build_queue(a, op, r, "/pause");
        break;
    case OP_RESUME:
        build_queue(a, op, r, "/resume");
        break;
    case OP_CANCEL:
        build_message(a, op, r, "/cancel");
        break;
    case OP_REVOKE:
        build_message(a, op, r, "/revoke");
        break;
    case OP_RESOLVE:
        build_resolve(a, op, r);
        break;
    case OP_REDRIVE:
        build_redrive(a, op, r);
        break;
    case OP_PURGE:
        build_purge(a, op, r);
        break;
    case OP_REPLAY:
        build_key(a, op, r, "/replay");
        break;
    case OP_ERASE:
        build_key(a, op, r, "/erase");
        break;
    case OP_FORGET:
        build_key(a, op, r, "");
        r->http.method = HTTP_DELETE;
        break;
    default:
        CHECK(!"a deed");
    }
}

static void build_look(struct arena *a, const struct op *op, struct request *r) {
    r->http.method = HTTP_GET;
    switch (op->kind) {
    case OP_KEY:
        build_key(a, op, r, "");
        break;
    case OP_RESULT:
        build_key(a, op, r, "/result");
        break;
    case OP_MESSAGE:
        build_message(a, op, r, "");
        break;
    case OP_LIST:
        build_queue(a, op, r, "/messages");
        r->http.query = arena_printf(a, "state=%s&limit=%u", op->state.p, op->max);
        break;
    case OP_QUEUE:
        build_queue(a, op, r, "");
        break;
    case OP_TASK:
        r->http.path = arena_printf(a, "/v1/tasks/%llu", (unsigned long long)op->task);
        if (op->cancels) r->http.method = HTTP_DELETE;
        break;
    case OP_AUDIT:
        r->http.path = SL("/v1/audit");
        r->http.query = op->id.n ? arena_printf(a, "limit=1000&cursor=%s", op->id.p) : SL("limit=1000");
        break;
    case OP_STATS:
        r->http.path = SL("/v1/stats");
        break;
    default:
        CHECK(!"a look");
    }
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
    case OP_MESSAGE:
    case OP_RESULT:
    case OP_LIST:
    case OP_QUEUE:
    case OP_TASK:
    case OP_AUDIT:
    case OP_STATS:
        build_look(a, op, r);
        break;
    default:
        build_deed(a, op, r);
    }
    r->http.body_length = r->http.body.n;
}
