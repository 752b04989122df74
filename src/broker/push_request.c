/* What leaves: the address and the headers of a delivery or a look-up, made of a message and its queue's rules. */
#include "broker/admit.h"
#include "broker/push_priv.h"
#include "broker/scope.h"
#include "config/call_template.h"
#include "net/webhook.h"

/* ---- lines */

static void begin(struct push_request *r, const struct call_headers *own) {
    size_t most = 4096;
    r->count = 0;
    r->secret = false;
    r->why.text[0] = 0;
    buf_reset(&r->url);
    buf_reset(&r->fields);
    for (u32 i = 0; i < own->count; i++) {
        most += own->at[i].name.n + CALL_HEADER_BYTES_MAX + 8;
        r->secret |= own->at[i].secret;
    }
    if (r->secret) buf_grow(&r->fields, most); /* at once: growing leaves a copy behind */
}

/* Its value goes behind what this has put there. */
static struct buf *line(struct push_request *r, const char *name) {
    CHECK(r->count < PUSH_HEADERS_MAX);
    r->at[r->count++] = r->fields.len;
    buf_slice_add(&r->fields, slice_str(name));
    buf_lit(&r->fields, ": ");
    return &r->fields;
}

static void end_line(struct push_request *r) {
    buf_char(&r->fields, '\0');
}

static void add_line(struct push_request *r, const char *name, slice value) {
    buf_slice_add(line(r, name), value);
    end_line(r);
}

static void drop_line(struct push_request *r) {
    r->fields.len = r->at[--r->count];
}

static void finish(struct push_request *r) {
    buf_char(&r->url, '\0');
    for (u32 i = 0; i < r->count; i++) r->lines[i] = r->fields.p + r->at[i];
    r->lines[r->count] = NULL;
    r->r.url = r->url.p;
    r->r.headers = r->lines;
}

void push_request_done(struct push_request *r) {
    if (r->secret) buf_free_wiped(&r->fields);
}

void push_request_free(struct push_request *r) {
    buf_free(&r->url);
    buf_free_wiped(&r->fields);
}

/* ---- what is said of the message */

enum spelling { SPELLING_BARE, SPELLING_QUOTED, SPELLING_DISPLAY };

/* Bare, as most servers expect it, where a reader of structured fields finds the same: a semicolon would begin a parameter. */
static enum spelling spelling_of(slice key) {
    enum spelling spelling = SPELLING_BARE;
    for (size_t i = 0; i < key.n; i++) {
        u8 c = (u8)key.p[i];
        if (c < 0x20 || c > 0x7e) return SPELLING_DISPLAY;
        if (c == ' ' || c == '"' || c == ',' || c == ';' || c == '\\') spelling = SPELLING_QUOTED;
    }
    return spelling;
}

/* As an item of RFC 9651: parse_key_field reads each of them back. */
static void put_key_field(struct buf *out, slice key) {
    enum spelling spelling = spelling_of(key);
    if (spelling == SPELLING_BARE) return buf_slice_add(out, key);
    buf_slice_add(out, spelling == SPELLING_DISPLAY ? SL("%\"") : SL("\""));
    for (size_t i = 0; i < key.n; i++) {
        u8 c = (u8)key.p[i];
        if (spelling == SPELLING_DISPLAY && (c < 0x20 || c > 0x7e || c == '%' || c == '"'))
            buf_printf(out, "%%%02x", c);
        else if (spelling == SPELLING_QUOTED && (c == '"' || c == '\\'))
            buf_printf(out, "\\%c", c);
        else
            buf_char(out, (char)c);
    }
    buf_char(out, '"');
}

/* Whoever was sent without a trace begins one here, which is the message's: its id, and who called last. */
struct said {
    struct send_in in;
    char trace[64];
};

static void say(const struct push_subject *s, struct said *said) {
    const struct rec_message *m = s->m;
    said->in = (struct send_in){
        .group = m->group,
        .content_type = m->content_type,
        .attrs = m->attrs,
        .traceparent = m->traceparent,
        .tracestate = m->tracestate,
        .request_id = m->request_id,
    };
    if (m->traceparent.n) return;
    struct buf text = {.p = said->trace, .cap = sizeof said->trace};
    buf_lit(&text, "00-");
    core_id_text(&m->ref, &text);
    buf_printf(&text, "-%016llx-00", (unsigned long long)s->attempt + 1);
    CHECK(text.p == said->trace);
    said->in.traceparent = buf_slice(&text);
}

static bool fail(struct push_request *r, const char *what, slice name, const struct errbuf *why) {
    err_set(&r->why, ST_INVALID, "%s%.*s%s: %s", what, (int)name.n, name.p, name.n ? " header" : "", why->text);
    return false;
}

/* The address, and the headers that the rules ask for. */
static bool evaluate(struct push_request *r, const struct call_template *url, const struct call_headers *own,
                     const struct push_subject *s, const struct said *said, struct payload_view *view) {
    struct buf effect_key = {0}, id = {0};
    struct errbuf why = {{0}};
    payload_view_init(view, s->m->payload, s->m->content_type, said_header, (void *)(uintptr_t)&said->in);
    put_effect_key(&effect_key, &s->m->ref, s->known_by, s->generation);
    core_id_text(&s->m->ref, &id);
    struct call_vars vars = {.key = s->key, .effect_key = buf_slice(&effect_key), .id = buf_slice(&id)};
    bool ok = call_template_eval(url, view, &vars, &r->url, &why) == TEMPLATE_OK || fail(r, "url", SL(""), &why);
    for (u32 i = 0; ok && i < own->count; i++) {
        const struct call_header *h = &own->at[i];
        enum template_verdict v = call_template_eval(h->value, view, &vars, line(r, h->name.p), &why);
        if (v == TEMPLATE_OK)
            end_line(r);
        else
            drop_line(r);
        ok = v == TEMPLATE_OK || v == TEMPLATE_NO_HEADER || fail(r, "the ", h->name, &why);
    }
    buf_free(&effect_key);
    buf_free(&id);
    return ok;
}

static void add_key(struct push_request *r, const struct push_subject *s) {
    struct buf key = {0};
    put_effect_key(&key, &s->m->ref, s->known_by, s->generation);
    put_key_field(line(r, "Idempotency-Key"), buf_slice(&key));
    end_line(r);
    buf_free(&key);
}

/* Standard Webhooks: the id is the same over all attempts, the time this one's. */
static void add_signature(struct push_request *r, const struct secrets *sign, const struct push_subject *s) {
    char text[ID_TEXT + 32];
    struct buf id = {.p = text, .cap = sizeof text};
    i64 time_s = s->wall_ms / 1000;
    core_id_text(&s->m->ref, &id);
    add_line(r, "webhook-id", buf_slice(&id));
    buf_dec_signed(line(r, "webhook-timestamp"), time_s);
    end_line(r);
    if (sign->count == 0) return;
    line(r, "webhook-signature");
    for (u32 i = 0; i < sign->count; i++) {
        if (i) buf_char(&r->fields, ' ');
        webhook_sign(&r->fields, sign->at[i], buf_slice(&id), time_s, r->r.body);
    }
    end_line(r);
}

static void add_trace(struct push_request *r, const struct said *said) {
    add_line(r, "traceparent", said->in.traceparent);
    if (said->in.tracestate.n) add_line(r, "tracestate", said->in.tracestate);
}

bool push_request_deliver(struct push_request *r, const struct queue_config *q, const struct push_subject *s,
                          struct payload_view *view) {
    const struct deliver_config *deliver = q->deliver;
    u32 looked_at = deliver->effect_id ? ANSWER_READ_BYTES : 0;
    struct said said;
    say(s, &said);
    begin(r, &deliver->headers);
    bool bodyless = slice_eq(deliver->method, SL("GET"));
    r->r = (struct outbound_request){
        .method = deliver->method.p,
        .body = bodyless ? SL("") : s->m->payload,
        .connect_ms = (u32)deliver->timeout_ms,
        .total_ms = (u32)deliver->timeout_ms,
        .answer_max = deliver->keep_body > looked_at ? deliver->keep_body : looked_at,
        .allow_private = deliver->allow_private,
    };
    if (!evaluate(r, deliver->url, &deliver->headers, s, &said, view)) return false;
    add_key(r, s);
    add_signature(r, &deliver->sign, s);
    buf_dec(line(r, "Hapax-Attempt"), s->attempt);
    end_line(r);
    add_trace(r, &said);
    if (!bodyless)
        add_line(r, "Content-Type", s->m->content_type.n ? s->m->content_type : SL("application/octet-stream"));
    finish(r);
    return true;
}

bool push_request_lookup(struct push_request *r, const struct queue_config *q, const struct push_subject *s,
                         struct payload_view *view) {
    const struct reconcile_config *reconcile = q->reconcile;
    u32 keep = q->deliver ? q->deliver->keep_body : LOOKUP_KEEP_BYTES;
    u32 looked_at = reconcile->effect_id || reconcile->exists ? ANSWER_READ_BYTES : 0;
    struct said said;
    say(s, &said);
    begin(r, &reconcile->headers);
    r->r = (struct outbound_request){
        .method = "GET",
        .connect_ms = (u32)reconcile->timeout_ms,
        .total_ms = (u32)reconcile->timeout_ms,
        .answer_max = keep > looked_at ? keep : looked_at,
        .allow_private = reconcile->allow_private,
    };
    if (!evaluate(r, reconcile->url, &reconcile->headers, s, &said, view)) return false;
    add_trace(r, &said);
    finish(r);
    return true;
}
