#include "broker/filter.h"

#include "broker/call.h"
#include "broker/parse.h"
#include "broker/why.h"

static bool set_class(slice text, struct filter *f) {
    if (text.n == 0) return true;
    f->refused = slice_eq(text, SL("refused"));
    f->by_class = !f->refused;
    return f->refused || class_parse(text, &f->failure_class);
}

bool filter_set(struct call *c, slice class_name, slice reason, slice since, struct filter *out) {
    out->since_ms = INT64_MIN;
    buf_slice_add(&out->reason, reason);
    if (!set_class(class_name, out))
        return fail(c, PROBLEM_param_invalid,
                    "class must be transient, poison, rejected, unknown, absent, or refused (by the schema)");
    if (since.n && !parse_since(c->b, since, &out->since_ms))
        return fail(c, PROBLEM_param_invalid, "since must be a time such as 2026-01-31T12:00:00Z, or a duration: 1h");
    return true;
}

void filter_free(struct filter *f) {
    buf_free(&f->reason);
}

static bool is_empty(const struct filter *f) {
    return !f->by_class && !f->refused && f->since_ms == INT64_MIN && f->reason.len == 0;
}

static bool contains_nocase(slice text, slice part) {
    for (size_t i = 0; i + part.n <= text.n; i++)
        if (slice_eq_nocase(slice_of(text.p + i, part.n), part)) return true;
    return false;
}

static bool reason_matches(const struct filter *f, const struct message_view *v) {
    struct buf text = {0};
    why_text(v, &text);
    bool ok = contains_nocase(buf_slice(&text), buf_slice(&f->reason));
    buf_free(&text);
    return ok;
}

bool filter_passes(const struct filter *f, const struct message_view *v) {
    struct history_item last = {0};
    if (is_empty(f)) return true;
    bool known = why_last(v, &last);
    if (f->refused && !v->refused) return false;
    if (f->by_class && !(known && last.kind == HISTORY_ATTEMPT && last.failure_class == f->failure_class)) return false;
    if (f->since_ms != INT64_MIN && (last.ended_ms > last.at_ms ? last.ended_ms : last.at_ms) < f->since_ms)
        return false;
    return f->reason.len == 0 || reason_matches(f, v);
}
