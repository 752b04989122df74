/* Replies. */
#include "broker/access.h"
#include "broker/broker_priv.h"
#include "broker/call.h"
#include "broker/traffic.h"

struct scratch *scratch_new(void) {
    return mem_zalloc(sizeof(struct scratch));
}

void scratch_free(struct scratch *s) {
    if (!s) return;
    buf_free(&s->body);
    buf_free(&s->fields);
    payload_view_free(&s->view);
    payload_view_free(&s->other_view);
    buf_free(&s->key);
    buf_free(&s->derived.keys);
    buf_free(&s->scoped);
    buf_free(&s->group);
    buf_free(&s->history);
    mem_free(s);
}

void respond(struct broker *b, void *conn, const struct http_reply *reply) {
    traffic_replied(b, reply->status, reply->after.position);
    broker_awaits(b, reply->after.position);
    b->options.port.respond(b->options.port.ctx, conn, reply);
}

void reply_after(struct broker *b, void *conn, u64 after, u16 status, slice content_type, slice fields, slice body,
                 u64 receipt) {
    struct http_reply reply = {
        .status = status,
        .content_type = content_type,
        .fields = fields,
        .body = body,
        .after = {.position = after},
        .receipt = receipt,
        .close = b->draining,
    };
    respond(b, conn, &reply);
}

void reply_with(struct broker *b, void *conn, u16 status, slice content_type, slice fields, slice body, u64 receipt) {
    reply_after(b, conn, b->after, status, content_type, fields, body, receipt);
}

void reply_made(struct broker *b, void *conn, struct buf *made, u64 receipt) {
    struct http_reply reply = {
        .status = 200,
        .content_type = SL("application/json"),
        .body = slice_of(made->p + HTTP_HEAD_ROOM, made->len - HTTP_HEAD_ROOM),
        .made = made,
        .after = {.position = b->after},
        .receipt = receipt,
        .close = b->draining,
    };
    respond(b, conn, &reply);
}

/* What somebody asked to see is his alone, and old at once: no cache between here and his screen keeps it. */
void reply_json(struct call *c, u16 status, slice body) {
    bool shown = c->req && c->req->method <= HTTP_HEAD;
    reply_with(c->b, c->conn, status, SL("application/json"), shown ? SL(NOT_KEPT) : SL(""), body, 0);
}

/* In whole seconds, and not too early: whoever comes back then is not refused for the same reason. */
static void put_retry_after(struct buf *fields, const struct failure *f) {
    u16 status = failure_status(f);
    i64 retry_ms = f->retry_ms;
    if (status != 429 && status != 503 && status != 507 && f->problem != PROBLEM_in_progress) return;
    buf_printf(fields, "Retry-After: %lld\r\n", retry_ms > 1000 ? (long long)((retry_ms + 999) / 1000) : 1LL);
}

/* A compressed body cannot be read; what is wrong with it is that it is compressed. */
static void name_coding(struct call *c) {
    slice coding;
    bool unread = c->failure.problem == PROBLEM_json_invalid || c->failure.problem == PROBLEM_config_invalid;
    if (!unread || !c->req) return;
    if (!http_field_get(c->req, SL("content-encoding"), &coding) || slice_eq_nocase(coding, SL("identity"))) return;
    fail(c, PROBLEM_unsupported_media, "Content-Encoding is not accepted: send the body as it is");
}

void reply_failure(struct call *c) {
    struct scratch *s = c->b->scratch;
    name_coding(c);
    buf_reset(&s->body);
    failure_render(&c->failure, &s->body);
    buf_char(&s->body, '}');
    buf_reset(&s->fields);
    if (c->failure.allow) buf_printf(&s->fields, "Allow: %s\r\n", c->failure.allow);
    u16 status = failure_status(&c->failure);
    if (status == 401) buf_lit(&s->fields, "WWW-Authenticate: Bearer\r\n");
    if (c->failure.problem == PROBLEM_unauthorized) access_refused(c);
    if (c->failure.problem == PROBLEM_forbidden) access_forbidden(c);
    put_retry_after(&s->fields, &c->failure);
    reply_with(c->b, c->conn, status, SL("application/problem+json"), buf_slice(&s->fields), buf_slice(&s->body), 0);
}

void reply_late_failure(struct broker *b, void *conn, enum problem p, const char *detail) {
    struct call c = {.b = b, .conn = conn};
    fail(&c, p, "%s", detail);
    reply_failure(&c);
    failure_free(&c.failure);
}
