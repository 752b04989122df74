#include "broker/filter.h"

#include <stdlib.h>

#include "base/json.h"
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

static int by_seq(const void *a, const void *b) {
    u64 x = ((const struct filter_id *)a)->seq, y = ((const struct filter_id *)b)->seq;
    return (x > y) - (x < y);
}

static bool take_ids(struct json *j, struct filter *f) {
    slice text;
    if (!json_array(j)) return false;
    while (json_element(j)) {
        struct filter_id *id = &f->ids[f->id_count];
        if (f->id_count == FILTER_IDS_MAX) return json_fail(j, "too many ids");
        if (!json_string(j, &text)) return false;
        if (!core_id_parse(text, &id->seq, &id->hash)) return json_fail(j, "not an id");
        f->id_count++;
    }
    return json_end(j);
}

bool filter_set_ids(struct call *c, slice array, struct filter *f) {
    struct json j;
    f->by_id = true;
    f->ids = mem_alloc(FILTER_IDS_MAX * sizeof *f->ids);
    json_init(&j, array);
    bool ok = take_ids(&j, f);
    json_free(&j);
    qsort(f->ids, f->id_count, sizeof *f->ids, by_seq);
    return ok || fail(c, PROBLEM_param_invalid, "ids must be an array of message ids, at most %u", FILTER_IDS_MAX);
}

void filter_free(struct filter *f) {
    buf_free(&f->reason);
    mem_free(f->ids);
}

static bool is_empty(const struct filter *f) {
    return !f->by_class && !f->refused && !f->by_id && f->since_ms == INT64_MIN && f->reason.len == 0;
}

static bool contains_nocase(slice text, slice part) {
    for (size_t i = 0; i + part.n <= text.n; i++)
        if (slice_eq_nocase(slice_of(text.p + i, part.n), part)) return true;
    return false;
}

static bool reason_matches(const struct filter *f, const struct message_view *v) {
    struct buf text = {0};
    why_text(v, f->payloads, &text);
    bool ok = contains_nocase(buf_slice(&text), buf_slice(&f->reason));
    buf_free(&text);
    return ok;
}

static bool is_named(const struct filter *f, const struct ref *ref) {
    struct filter_id wanted = {.seq = ref->seq};
    const struct filter_id *id = f->id_count ? bsearch(&wanted, f->ids, f->id_count, sizeof *f->ids, by_seq) : NULL;
    return id && id->hash == ref->hash;
}

bool filter_passes(const struct filter *f, const struct message_view *v) {
    struct history_item last = {0};
    if (is_empty(f)) return true;
    if (f->by_id && !is_named(f, &v->ref)) return false;
    bool known = why_last(v, &last);
    if (f->refused && !v->refused) return false;
    if (f->by_class && !(known && last.kind == HISTORY_ATTEMPT && last.failure_class == f->failure_class)) return false;
    if (f->since_ms != INT64_MIN && (last.ended_ms > last.at_ms ? last.ended_ms : last.at_ms) < f->since_ms)
        return false;
    return f->reason.len == 0 || reason_matches(f, v);
}
