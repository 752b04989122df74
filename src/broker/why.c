#include "broker/why.h"

#include "broker/answer.h"

bool why_last(const struct message_view *v, struct history_item *out) {
    return history_last_attempt(v->history, out) || history_last_decision(v->history, out);
}

/* What was last: that the broker held it before it was sent, and why. */
static bool held_unsent(slice history, struct history_item *out) {
    struct history_item item;
    bool is = false;
    for (u32 at = 0; history_next(history, &at, &item);) {
        if (item.kind != HISTORY_ATTEMPT && item.kind != HISTORY_DECISION) continue;
        is = item.kind == HISTORY_DECISION && item.what == DECISION_HELD;
        *out = item;
    }
    return is;
}

/* What a question was answered with would else read as what became of the work. */
static bool asked_in_vain(const struct message_view *v, const struct history_item *last) {
    return v->state == STATE_HELD && v->lookups && last->kind == HISTORY_ATTEMPT && last->lookup &&
           last->ended != ENDED_EXPIRED && last->failure_class == CLASS_UNKNOWN;
}

void why_text(const struct message_view *v, bool payloads, struct buf *out) {
    struct history_item last;
    slice said = SL("");
    if (why_last(v, &last)) said = answer_reason(last.reason, payloads);
    if (v->conflict)
        buf_lit(out, "its key was known with another payload");
    else if (v->state == STATE_HELD && held_unsent(v->history, &last))
        buf_slice_add(out, last.reason);
    else if (!why_last(v, &last))
        buf_lit(out, "no reason is known");
    else if (last.kind == HISTORY_ATTEMPT && last.ended == ENDED_EXPIRED && last.lookup && v->lookups)
        buf_printf(out, "looked up %u time%s without an answer", v->lookups, v->lookups == 1 ? "" : "s");
    else if (last.kind == HISTORY_ATTEMPT && last.ended == ENDED_EXPIRED)
        buf_printf(out, "its lease ran out %u time%s", v->crashes, v->crashes == 1 ? "" : "s");
    else if (asked_in_vain(v, &last))
        buf_printf(out, "looked up %u time%s in vain: %.*s", v->lookups, v->lookups == 1 ? "" : "s", (int)said.n,
                   said.p);
    else if (said.n)
        buf_slice_add(out, said);
    else if (last.kind == HISTORY_ATTEMPT)
        buf_slice_add(out, slice_str(class_text((enum failure_class)last.failure_class)));
    else
        buf_slice_add(out, slice_str(decision_text((enum decision)last.what)));
}
