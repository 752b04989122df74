/* What the answer to a look-up means: that the work was done, that it was not, or nothing. */
#include "broker/answer.h"
#include "broker/push_priv.h"

static bool listed(const bool statuses[STATUSES], const struct outbound_answer *a) {
    return a->end == OUTBOUND_ANSWERED && a->status >= STATUS_LEAST && a->status <= STATUS_MOST &&
           statuses[a->status - STATUS_LEAST];
}

static void decide_absent(const struct push *push, const struct outbound_answer *a, i64 wall_ms, struct words *w,
                          struct verdict *out) {
    out->target = TARGET_TAKEN;
    out->told = CLASS_ABSENT;
    out->in = (struct settle_in){
        .verb = VERB_NACK, .failure_class = CLASS_ABSENT, .hold = !may_resend(push->terms, push->began_ms, wall_ms)};
    if (out->in.hold)
        answer_put_reason(&w->reason, a,
                          push->terms->resend ? ", not sent again (the downstream may not remember the first attempt)"
                                              : ", not sent again (the downstream does not deduplicate)");
    out->in.reason = buf_slice(&w->reason);
}

void lookup_decide(const struct push *push, const struct outbound_answer *a, i64 wall_ms, struct words *w,
                   struct verdict *out) {
    const struct terms *t = push->terms;
    *out = (struct verdict){.told = CLASS_UNKNOWN, .wait_ms = asked_to_wait_ms(a, wall_ms)};
    answer_put_reason(&w->reason, a, "");
    bool found = listed(t->found, a), absent = listed(t->absent, a);
    if (found && t->exists) {
        answer_view(&w->body, a->body, a->truncated);
        enum answer_says says = answer_says(&w->body, t->exists);
        found = says == ANSWER_HAS;
        absent = says == ANSWER_HAS_NOT;
    }
    if (found) return decide_taken(t, a, t->lookup_effect_id, w, out);
    if (absent) return decide_absent(push, a, wall_ms, w, out);
    bool lives = a->end == OUTBOUND_ANSWERED && a->status < 500 && a->status != 408 && a->status != 429;
    /* That a question is not answered says little of deliveries, which have their own answers. */
    out->target = lives ? TARGET_TAKEN : t->delivers && !push->probe ? TARGET_NEITHER : TARGET_FAILED;
    out->in = (struct settle_in){
        .verb = VERB_NACK, .failure_class = CLASS_UNKNOWN, .delay_ms = out->wait_ms, .reason = buf_slice(&w->reason)};
}
