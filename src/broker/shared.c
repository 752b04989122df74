#include "broker/shared.h"

#include "broker/broker_priv.h"
#include "broker/call.h"

struct shared {
    struct ref ref;
    u64 form;
    u16 status;
    struct buf content_type, fields;
    struct http_body *body; /* NULL: nothing is kept */
};

struct shared *shared_new(void) {
    return mem_zalloc(sizeof(struct shared));
}

static void forget(struct shared *s) {
    if (s->body) http_body_release(s->body);
    s->body = NULL;
}

void shared_free(struct shared *s) {
    if (!s) return;
    forget(s);
    buf_free(&s->content_type);
    buf_free(&s->fields);
    mem_free(s);
}

void shared_drop(struct broker *b) {
    forget(b->shared);
}

static void send(struct broker *b, void *conn) {
    const struct shared *s = b->shared;
    struct http_reply reply = {
        .status = s->status,
        .content_type = buf_slice(&s->content_type),
        .fields = buf_slice(&s->fields),
        .body = http_body_bytes(s->body),
        .shared = s->body,
        .after = {.position = b->after},
        .close = b->draining,
    };
    respond(b, conn, &reply);
}

bool shared_again(struct broker *b, void *conn, const struct ref *ref, u64 form) {
    const struct shared *s = b->shared;
    if (!s->body || s->ref.hash != ref->hash || s->ref.seq != ref->seq || s->form != form) return false;
    send(b, conn);
    return true;
}

void shared_answer(struct broker *b, void *conn, const struct ref *ref, u64 form, u16 status, slice content_type,
                   slice fields, struct buf *body) {
    struct shared *s = b->shared;
    forget(s);
    s->ref = *ref;
    s->form = form;
    s->status = status;
    buf_reset(&s->content_type);
    buf_slice_add(&s->content_type, content_type);
    buf_reset(&s->fields);
    buf_slice_add(&s->fields, fields);
    s->body = http_body_take(body);
    send(b, conn);
}
