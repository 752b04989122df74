#include "broker/why.h"

bool why_last(const struct message_view *v, struct history_item *out) {
    return history_last_attempt(v->history, out) || history_last_decision(v->history, out);
}

void why_text(const struct message_view *v, struct buf *out) {
    struct history_item last;
    if (v->conflict)
        buf_lit(out, "its key was known with another payload");
    else if (!why_last(v, &last))
        buf_lit(out, "no reason is known");
    else if (last.kind == HISTORY_ATTEMPT && last.ended == ENDED_EXPIRED && last.lookup && v->lookups)
        buf_printf(out, "looked up %u time%s without an answer", v->lookups, v->lookups == 1 ? "" : "s");
    else if (last.kind == HISTORY_ATTEMPT && last.ended == ENDED_EXPIRED)
        buf_printf(out, "its lease ran out %u time%s", v->crashes, v->crashes == 1 ? "" : "s");
    else if (last.reason.n)
        buf_slice_add(out, last.reason);
    else if (last.kind == HISTORY_ATTEMPT)
        buf_slice_add(out, slice_str(class_text((enum failure_class)last.failure_class)));
    else
        buf_slice_add(out, slice_str(decision_text((enum decision)last.what)));
}
