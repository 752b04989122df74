/* What the answer to a delivery means. */
#include "broker/answer.h"
#include "broker/push_priv.h"

/* Only an answer that came whole says anything; and only one of which nothing can have left is certainly undone (P5). */
static enum failure_class class_of(const struct terms *t, const struct outbound_answer *a) {
    if (a->end == OUTBOUND_NOT_SENT) return CLASS_TRANSIENT;
    if (a->end == OUTBOUND_BROKEN || a->status < 200 || a->status > STATUS_MOST) return CLASS_UNKNOWN;
    return (enum failure_class)t->classify.class_of[a->status - STATUS_LEAST];
}

/* 409 and 425 are about the message, not the target; neither is 429 a failure if it says when to come again. */
static enum target_outcome outcome_of(enum failure_class class, const struct outbound_answer *a, i64 wait_ms) {
    if (class != CLASS_TRANSIENT && class != CLASS_UNKNOWN) return TARGET_TAKEN;
    if (a->end != OUTBOUND_ANSWERED) return TARGET_FAILED;
    if (a->status == 409 || a->status == 425) return TARGET_TAKEN;
    return a->status == 429 && wait_ms ? TARGET_NEITHER : TARGET_FAILED;
}

static void keep_result(const struct terms *t, const struct outbound_answer *a, const struct path *effect_id,
                        struct words *w, struct settle_in *in) {
    bool cut = a->truncated || a->body.n > t->keep_body;
    in->result = slice_of(a->body.p, a->body.n < t->keep_body ? a->body.n : t->keep_body);
    in->content_type = answer_content_type(a->head);
    buf_reset(&w->head);
    answer_put_head(&w->head, a->status, a->head, &t->keep_headers, cut);
    in->http = buf_slice(&w->head);
    answer_view(&w->body, a->body, a->truncated);
    in->effect_id = answer_value(&w->body, effect_id);
}

void decide_taken(const struct terms *t, const struct outbound_answer *a, const struct path *effect_id, struct words *w,
                  struct verdict *out) {
    out->in.verb = VERB_ACK;
    out->target = TARGET_TAKEN;
    out->told = CLASS_NONE;
    keep_result(t, a, effect_id, w, &out->in);
}

i64 asked_to_wait_ms(const struct outbound_answer *a, i64 wall_ms) {
    bool may_ask = a->end == OUTBOUND_ANSWERED && (a->status == 429 || a->status == 503);
    return may_ask ? answer_wait_ms(a->head, wall_ms) : 0;
}

/* An answer that does not say that nothing was done, whatever its class. */
static bool may_be_done(const struct outbound_answer *a) {
    return a->end == OUTBOUND_ANSWERED && (a->status == 408 || (a->status >= 500 && a->status != 503));
}

void delivery_decide(const struct push *push, const struct outbound_answer *a, i64 wall_ms, struct words *w,
                     struct verdict *out) {
    const struct terms *t = push->terms;
    enum failure_class class = class_of(t, a);
    *out = (struct verdict){.told = class, .wait_ms = asked_to_wait_ms(a, wall_ms)};
    answer_put_reason(&w->reason, a, "");
    if (class == CLASS_NONE) {
        decide_taken(t, a, t->effect_id, w, out);
    } else {
        out->target = outcome_of(class, a, out->wait_ms);
        out->in = (struct settle_in){
            .verb = VERB_NACK, .failure_class = class, .delay_ms = out->wait_ms, .reason = buf_slice(&w->reason)};
        if (class == CLASS_REJECTED) keep_result(t, a, t->effect_id, w, &out->in);
    }
    out->gone = a->end == OUTBOUND_ANSWERED && a->status == 410 && t->url_plain && class == CLASS_POISON;
    bool failed_probe = push->probe && class == CLASS_TRANSIENT && out->target == TARGET_FAILED;
    if (out->gone || failed_probe) {
        /* Not the message's fault. After a failed probe another one has its turn, should it be this one that cannot be taken. */
        i64 delay_ms = failed_probe && t->open_ms > out->wait_ms ? t->open_ms : out->wait_ms;
        if (failed_probe && may_be_done(a)) { /* that it was begun is not to be forgotten */
            out->in.spares = true;
            out->in.delay_ms = delay_ms;
        } else {
            out->in = (struct settle_in){.verb = VERB_RELEASE, .delay_ms = delay_ms};
        }
    }
}
