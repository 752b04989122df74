/* What a reply shows of a message, held against a state it may be in. */
#include "model_priv.h"

bool model_result_matches(struct arena *scratch, const struct view *v, const struct phase *p) {
    const struct member *result = view_get(v, "result");
    if (!result) return false;
    struct view r = view_of(scratch, result->raw);
    slice bytes;
    return view_bytes(scratch, &r, "body", &bytes) && slice_eq(bytes, p->result) &&
           slice_eq(view_text(&r, "content_type"), p->content_type);
}

bool model_steps_match(struct arena *scratch, const struct view *v, const struct note *steps) {
    const struct member *list = view_get(v, "steps");
    if (!list) return false;
    struct view items = view_of(scratch, list->raw);
    if (!items.ok || !items.is_array) return false;
    const struct note *s = steps;
    for (u32 i = items.count; i-- > 0; s = s->older) { /* shown oldest first, kept newest first */
        struct view item = view_of(scratch, items.at[i].raw);
        if (!s || !slice_eq(view_text(&item, "name"), s->name)) return false;
        struct phase as_result = {.result = s->result, .content_type = s->content_type};
        if (!model_result_matches(scratch, &item, &as_result)) return false;
    }
    return s == NULL;
}

static bool effects_match(struct arena *scratch, const struct view *v, const struct note *effects) {
    const struct member *list = view_get(v, "effect_ids");
    if (!list) return false;
    struct view items = view_of(scratch, list->raw);
    const struct note *e = effects;
    for (u32 i = items.count; i-- > 0; e = e->older)
        if (!e || !slice_eq(items.at[i].text, e->name)) return false;
    return e == NULL;
}

/* The newest lease is the last attempt listed, unless it left no trace. */
static bool attempts_match(struct arena *scratch, const struct view *v, const struct phase *p) {
    static const char *const ended[] = {"", "",          "acked",      "nacked", "expired", "",
                                        "", "cancelled", "handed_out", "",       "revoked"};
    const struct member *list = view_get(v, "attempts");
    if (!list) return false;
    if (p->hidden || p->end == END_NEVER || p->end == END_RELEASED || p->end == END_UNDONE || p->end == END_DECIDED)
        return true;
    struct view items = view_of(scratch, list->raw);
    if (items.count == 0) return false;
    struct view last = view_of(scratch, items.at[items.count - 1].raw);
    u64 fence;
    if (!slice_u64(view_text(&last, "fence"), &fence) || fence != p->fence) return false;
    const struct member *end = view_get(&last, "ended");
    if (p->end == END_OPEN) return end && end->is_null;
    return end && end->is_string && slice_eq(end->text, slice_str(ended[p->end]));
}

static bool counts_match(const struct view *v, const struct phase *p) {
    i64 attempt, failures, crashes;
    return view_i64(v, "attempt", &attempt) && view_i64(v, "failures", &failures) && view_i64(v, "crashes", &crashes) &&
           attempt == p->attempts && failures == p->failures + p->unknowns && crashes == p->crashes;
}

/* What is promised must be what is kept: by the model's bounds of the time that has passed since. */
static bool expiry_matches(const struct model *m, const struct view *v, const struct phase *p) {
    i64 at;
    const struct member *shown = view_get(v, "expires_at");
    if (p->window_max == FOREVER && shown && shown->is_null) return true;
    if (p->window_min == FOREVER) return false;
    if (!view_time(v, "expires_at", &at)) return false;
    i64 passed_max = m->run - p->settled_min;
    i64 passed_min = m->run - (m->run_slip - p->settled_slip) - p->settled_max;
    i64 left = at - m->wall;
    return left >= p->window_min - passed_max && (p->window_max == FOREVER || left <= p->window_max - passed_min);
}

/* What a client was told of a window never becomes less. */
void model_promise(const struct model *m, struct op *op, struct message *msg, const struct view *v) {
    i64 at, until = FOREVER;
    if (!model_phase_settled(&msg->set->at[0]) || !view_get(v, "expires_at")) return;
    if (view_time(v, "expires_at", &at)) until = m->run + at - m->wall;
    if (until < msg->promised_until)
        sim_fail("q%u/k%u was promised to be remembered for %lld ms more, and now only for %lld", msg->queue, msg->key,
                 (long long)(msg->promised_until - m->run), (long long)(until - m->run));
    op->promised = msg;
    op->promised_until = until;
}

/* Exact: lease time is running time, and a restart gives a lease its full length again. */
bool model_lease_matches(const struct model *m, const struct view *v, const struct phase *p) {
    i64 at;
    return view_time(v, "lease_expires_at", &at) && at - m->wall == p->lease_ms - (m->run - p->lease_from);
}

/* While a replay is not settled, the outcome before it is shown beside its state. */
static bool previous_matches(const struct shown *shown, const struct phase *p) {
    const struct member *previous = view_get(&shown->view, "previous");
    if (!p->former || !previous) return !p->former && !previous;
    struct view v = view_of(shown->scratch, previous->raw);
    if (!view_is(&v, "state", model_at_name((enum at)p->former->at))) return false;
    if (!model_result_matches(shown->scratch, &v, p->former)) return false;
    if (!slice_eq(view_text(&v, "reason"), p->former->reason)) return false;
    if (!shown->full) return true;
    return counts_match(&v, p->former) &&
           (p->former->effects_unsure || effects_match(shown->scratch, &v, p->former->effects));
}

static bool first_seen_matches(const struct message *msg, const struct view *v, const struct phase *p) {
    i64 at;
    if (!view_get(v, "first_seen")) return true;
    return view_time(v, "first_seen", &at) && at == (p->restored ? p->born : msg->born_wall);
}

bool model_explain_shown(const struct model *m, const struct message *msg, struct phase *next, void *ctx) {
    const struct shown *shown = ctx;
    if (!model_shows_as(m, msg, next, shown->state)) return false;
    bool settled = model_phase_settled(next);
    if (!previous_matches(shown, next) || !first_seen_matches(msg, &shown->view, next)) return false;
    if (settled && !model_result_matches(shown->scratch, &shown->view, next)) return false;
    if (settled && !slice_eq(view_text(&shown->view, "reason"), next->reason)) return false;
    if (settled && !expiry_matches(m, &shown->view, next)) return false;
    if (!shown->full) return true;
    if (view_true(&shown->view, "erased") != (next->erased != 0)) return false;
    if (view_true(&shown->view, "restored") != (next->restored != 0)) return false;
    if (next->at == AT_HELD && !view_is(&shown->view, "held_because", next->conflict ? "conflict" : "unknown"))
        return false;
    if (next->at == AT_LEASED && !model_lease_matches(m, &shown->view, next)) return false;
    return counts_match(&shown->view, next) && model_steps_match(shown->scratch, &shown->view, next->steps) &&
           (next->effects_unsure || effects_match(shown->scratch, &shown->view, next->effects)) &&
           attempts_match(shown->scratch, &shown->view, next);
}

/* Its own time, or that of the outcome it has again. */
static bool may_be_born(const struct message *msg, i64 wall) {
    for (u32 i = 0; i < msg->set->count; i++) {
        const struct phase *p = &msg->set->at[i];
        if ((p->restored && p->born == wall) || (p->former && p->former->born == wall)) return true;
    }
    return msg->born_wall == wall;
}

void model_check_identity(struct model *m, struct message *msg, const struct view *v) {
    i64 first_seen;
    model_learn_id(m, msg, view_text(v, "id"));
    const struct member *key = view_get(v, "key"), *generation = view_get(v, "generation");
    i64 number = -1;
    if (msg->keyless ? key && !key->is_null : msg->name.n && key && !slice_eq(key->text, msg->name))
        sim_fail("q%u/k%u is called by another key", msg->queue, msg->key);
    if (generation && (!view_i64(v, "generation", &number) || number != msg->generation))
        sim_fail("q%u/k%u: generation %lld, not %u", msg->queue, msg->key, (long long)number, msg->generation);
    if (view_get(v, "first_seen") && (!view_time(v, "first_seen", &first_seen) || !may_be_born(msg, first_seen)))
        sim_fail("q%u/k%u came first at %lld, not at %.*s", msg->queue, msg->key, (long long)msg->born_wall,
                 (int)view_text(v, "first_seen").n, view_text(v, "first_seen").p);
}

void model_check_duplicates(struct message *msg, i64 shown) {
    if ((u64)shown < msg->dups_min || (u64)shown > msg->dups)
        sim_fail("q%u/k%u has had %llu to %llu duplicates, not %lld", msg->queue, msg->key,
                 (unsigned long long)msg->dups_min, (unsigned long long)msg->dups, (long long)shown);
    msg->dups = msg->dups_min = (u64)shown;
    if (msg->dups_safe > msg->dups) msg->dups_safe = msg->dups;
}
