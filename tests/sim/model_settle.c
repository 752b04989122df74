/* Settling calls, in the order of checks the contract gives. */
#include "model_priv.h"

struct settling {
    struct model *model;
    struct arena *scratch;
    enum verb_kind verb;
    const struct settle_item *item;
    u32 status;
    struct view view;
    slice code;
};

void note_add(const struct model *m, const struct note **list, slice name, slice content_type, slice result) {
    struct note *n = arena_alloc(m->arena, sizeof *n);
    *n = (struct note){.older = *list, .name = name, .content_type = content_type, .result = result};
    *list = n;
}

static const struct note *note_find(const struct note *list, slice name) {
    while (list && !slice_eq(list->name, name)) list = list->older;
    return list;
}

static u32 note_count(const struct note *list) {
    u32 n = 0;
    for (; list; list = list->older) n++;
    return n;
}

void note_effect(const struct model *m, const struct note **effects, slice id) {
    if (note_find(*effects, id) || note_count(*effects) >= EFFECTS_KEPT) return;
    note_add(m, effects, id, SL(""), SL(""));
}

static void effect_add(const struct settling *s, struct phase *p) {
    slice id = s->item->effect_id;
    if (p->erased) return; /* its effect ids went, and stay away */
    if (s->verb == DO_ACK && id.n) note_effect(s->model, &p->effects, id);
}

/* Reported by an ack that is refused: kept, unless there is no room. */
static void effect_of_refused(const struct settling *s, struct phase *p) {
    if (s->verb == DO_ACK && s->item->effect_id.n && s->model->tight) p->effects_unsure = 1;
    effect_add(s, p);
}

static bool problem(const struct settling *s, u32 status, const char *code) {
    return s->status == status && slice_eq(s->code, slice_str(code));
}

static bool refused(const struct settling *s, struct phase *p, u32 status, const char *code) {
    if (!problem(s, status, code)) return false;
    if (!model_shows_as(s->model, s->item->lease->message, p, view_text(&s->view, "state"))) return false;
    effect_of_refused(s, p);
    return true;
}

static bool ok_with(const struct settling *s, enum at state, bool duplicate) {
    return s->status == 200 && view_is(&s->view, "state", model_at_name(state)) &&
           view_true(&s->view, "duplicate") == duplicate;
}

static bool ok_again(const struct settling *s, const struct phase *p) {
    return s->status == 200 && view_true(&s->view, "duplicate") &&
           model_shows_as(s->model, s->item->lease->message, p, view_text(&s->view, "state"));
}

static slice result_type(const struct settle_item *item) {
    if (item->result.n == 0) return SL("");
    return item->result_json ? SL("application/json") : SL("text/plain");
}

/* Run out and taken for a crash, but its consumer has spoken since. */
static void no_crash_after_all(struct phase *p) {
    if (p->started && p->end == END_EXPIRED) p->crashes--;
}

static void settle_now(const struct settling *s, struct phase *p, enum at state, enum end end) {
    bool open_reservation = !p->started && (p->at == AT_LEASED || p->end == END_EXPIRED);
    if (open_reservation) p->attempts++;
    no_crash_after_all(p);
    p->at = state;
    p->end = end;
    p->by_token = 1;
    p->result = s->item->result;
    p->content_type = result_type(s->item);
    p->reason = SL("");
    model_stamp(s->model, s->item->lease->message, p);
    effect_add(s, p);
}

static i64 backoff_ms(const struct policy *rules, u32 failures) {
    i64 wait = rules->backoff_ms;
    for (u32 i = 1; i < failures && wait < rules->backoff_max_ms; i++) wait *= 2;
    return wait < rules->backoff_max_ms ? wait : rules->backoff_max_ms;
}

/* count 0: nothing but the delay that was asked for. */
static bool nack_delayed(const struct settling *s, struct phase *p, u32 count) {
    const struct policy *rules = policy_of(s->model, s->item->lease->message->queue);
    i64 at = s->model->wall, floor = s->item->delay_ms, base = count ? backoff_ms(rules, count) : 0;
    if (view_get(&s->view, "not_before") && !view_time(&s->view, "not_before", &at)) return false;
    i64 wait = at - s->model->wall, low = base > floor ? base : floor, high = base + base / 4;
    if (high < low) high = low;
    if (wait < low || wait > high) return false;
    p->due = p->due_max = s->model->delay + wait;
    p->due_slip = s->model->delay_slip;
    return true;
}

/* Looked up: it did not happen. */
static bool nack_absent(const struct settling *s, struct phase *p) {
    if (!p->lookup) return problem(s, 400, "class_invalid");
    p->at = AT_PENDING;
    p->doubt = p->reconcile = p->parked = p->takes = 0;
    p->end = END_NACKED;
    return ok_with(s, AT_PENDING, false) && nack_delayed(s, p, 0);
}

static bool nack(const struct settling *s, struct phase *p) {
    const struct message *msg = s->item->lease->message;
    const struct policy *rules = policy_of(s->model, msg->queue);
    enum nack_class class = s->item->class;
    if (class == NACK_ABSENT && !p->lookup) return problem(s, 400, "class_invalid");
    if (class == NACK_REJECTED) {
        settle_now(s, p, AT_REJECTED, END_NACKED);
        return ok_with(s, AT_REJECTED, false);
    }
    bool reservation = !p->started && (p->at == AT_LEASED || p->end == END_EXPIRED);
    bool unknown = class == NACK_UNKNOWN;
    if (reservation) p->attempts++;
    no_crash_after_all(p);
    p->due = p->due_max = 0;
    if (class == NACK_ABSENT) return nack_absent(s, p);
    p->reconcile = p->lookup || (unknown && rules->on_unknown == UNKNOWN_RECONCILE);
    bool as_unknown = unknown || p->reconcile;
    u32 *count = as_unknown ? &p->unknowns : &p->failures, limit = as_unknown ? rules->unknown : rules->transient;
    ++*count;
    p->end = END_NACKED;
    p->doubt |= unknown;
    p->at = *count < limit ? AT_PENDING : p->reconcile ? AT_HELD : AT_DEAD;
    if (unknown && rules->on_unknown == UNKNOWN_HOLD) p->at = AT_HELD;
    if (class == NACK_POISON) p->at = AT_DEAD;
    p->takes = 0;
    if (p->at == AT_PENDING) p->parked = 0;
    model_group_fate(s->model, msg, p);
    if (!ok_with(s, (enum at)p->at, false)) return false;
    return p->at != AT_PENDING || nack_delayed(s, p, *count);
}

/* Not what was set aside, and not beside another of its group. */
static bool revive(const struct settling *s, struct phase *p, i64 lease_ms) {
    if (p->at == AT_DEAD || p->at == AT_HELD) return false;
    if (problem(s, 409, "lease_expired") && p->at == AT_PENDING && model_may_wait(s->model, s->item->lease->message))
        return false;
    no_crash_after_all(p);
    p->at = AT_LEASED;
    p->end = END_OPEN;
    if (lease_ms) p->lease_ms = lease_ms;
    p->lease_from = s->model->run;
    p->due = p->due_max = 0;
    return true;
}

static bool extend(const struct settling *s, struct phase *p) {
    if (!revive(s, p, s->item->lease_ms)) return refused(s, p, 409, "lease_expired");
    return ok_with(s, AT_LEASED, false) && model_lease_matches(s->model, &s->view, p);
}

/* Not at all unless started by then. */
static bool start_too_late(const struct settling *s, struct phase *p) {
    const struct message *msg = s->item->lease->message;
    if (p->started || !model_ttl_may_be_over(s->model, msg, p)) return false;
    if (!problem(s, 409, "settled") || !view_is(&s->view, "state", "cancelled")) return false;
    model_cancel(s->model, msg, p, SL("ttl"));
    return true;
}

static bool start(const struct settling *s, struct phase *p) {
    const struct message *msg = s->item->lease->message;
    if (start_too_late(s, p)) return true;
    if (!p->started && model_ttl_may_be_over(s->model, msg, p) && model_ttl_late_ms(s->model, msg) >= 0) return false;
    if (ended_unsaid(p) && !revive(s, p, 0)) return refused(s, p, 409, "lease_expired");
    if (!model_lease_matches(s->model, &s->view, p)) return false;
    if (p->started) return ok_with(s, AT_LEASED, true);
    p->started = 1;
    p->attempts++;
    return ok_with(s, AT_LEASED, false);
}

static bool step(const struct settling *s, struct phase *p) {
    const struct note *known = note_find(p->steps, s->item->name);
    if (!ok_with(s, (enum at)p->at, known != NULL)) return false;
    if (!view_is(&s->view, "status", known ? "duplicate" : "new")) return false;
    struct phase as_result = {.result = s->item->result, .content_type = result_type(s->item)};
    if (known) as_result = (struct phase){.result = known->result, .content_type = known->content_type};
    if (!known) note_add(s->model, &p->steps, s->item->name, as_result.content_type, as_result.result);
    return model_result_matches(s->scratch, &s->view, &as_result);
}

static bool release(const struct settling *s, struct phase *p) {
    no_crash_after_all(p);
    if (p->started) p->attempts--; /* the caller vouches that nothing was done */
    p->reconcile = p->lookup;
    p->parked = p->takes = 0;
    p->at = AT_PENDING;
    p->end = END_RELEASED;
    p->since = s->model->run;
    p->due = p->due_max = 0;
    p->hidden = 1;
    return ok_with(s, AT_PENDING, false);
}

/* P8: an ack with a small result goes through on a full disk. */
/* A lease is renewed and its work begun whatever the disk says. */
static bool always_fits(const struct settling *s, const struct phase *p) {
    if (p->at != AT_LEASED) return false;
    return s->verb == DO_START || (s->verb == DO_EXTEND && (!s->item->lease_ms || s->item->lease_ms == p->lease_ms));
}

static bool no_room(const struct settling *s, const struct phase *p) {
    if (always_fits(s, p)) return false;
    bool settles = s->verb == DO_ACK || (s->verb == DO_NACK && s->item->class == NACK_REJECTED);
    if (!problem(s, 507, "storage_full")) return false;
    if (settles && s->item->result.n <= 1024) return false;
    return s->model->tight;
}

static bool settle_live(const struct settling *s, struct phase *p) {
    if (s->item->lease->fence != p->fence) return refused(s, p, 409, "fenced");
    if (s->verb == DO_NACK && p->end == END_NACKED) return ok_again(s, p);
    if (s->verb == DO_RELEASE && p->end == END_RELEASED) return ok_again(s, p);
    if (p->end != END_OPEN && !ended_unsaid(p)) return refused(s, p, 409, "settled");
    if (no_room(s, p)) {
        effect_of_refused(s, p);
        return true;
    }
    switch (s->verb) {
    case DO_ACK:
        settle_now(s, p, AT_DONE, END_ACKED);
        return ok_with(s, AT_DONE, false);
    case DO_NACK:
        return nack(s, p);
    case DO_EXTEND:
        return extend(s, p);
    case DO_STEP:
        return step(s, p);
    case DO_START:
        return start(s, p);
    case DO_RELEASE:
        return release(s, p);
    }
    return false;
}

/* at_most_once: handed out, and so done. A nack is a loss; everything else changes nothing. */
static bool settle_handed_out(const struct settling *s, struct phase *p) {
    bool told_done = s->status == 200 && view_is(&s->view, "state", "done");
    if (s->verb == DO_ACK) {
        effect_of_refused(s, p);
        return ok_with(s, AT_DONE, true);
    }
    if (s->verb != DO_NACK) return told_done || refused(s, p, 409, "settled");
    if (problem(s, 507, "storage_full")) return s->model->tight;
    if (problem(s, 400, "class_invalid")) return s->item->class == NACK_ABSENT;
    p->by_token = 1;
    p->end = END_NACKED;
    if (!p->erased) p->reason = SL(""); /* what was erased gets no new words */
    return told_done;
}

static bool settle_settled(const struct settling *s, struct phase *p) {
    if (p->end == END_HANDED_OUT && s->item->lease->fence == p->fence) return settle_handed_out(s, p);
    bool same = (s->verb == DO_ACK && p->end == END_ACKED) || (s->verb == DO_NACK && p->end == END_NACKED);
    if (p->by_token && same && s->item->lease->fence == p->fence) {
        effect_of_refused(s, p);
        return ok_with(s, (enum at)p->at, true) && model_result_matches(s->scratch, &s->view, p);
    }
    return refused(s, p, 409, s->item->lease->fence < p->fence ? "fenced" : "settled");
}

/* Its key has run again since: which of the older ones the token is of is not remembered. */
static bool later_generation(const struct model *m, const struct message *msg) {
    const struct message *now = *key_slot(m, msg->queue, msg->slot);
    return now && now != msg && now->generation > 0;
}

static bool explain_settling(const struct model *m, const struct message *msg, struct phase *next, void *ctx) {
    const struct settling *s = ctx;
    bool unknown = problem(s, 404, "no_such_message");
    if (next->superseded) /* its key runs as a later generation: an old token moves nothing */
        return unknown || s->status == 409 || (s->status == 200 && view_true(&s->view, "duplicate"));
    if (next->at == AT_FORGOTTEN) return unknown || (later_generation(m, msg) && problem(s, 409, "fenced"));
    if (unknown) return false;
    return model_phase_settled(next) ? settle_settled(s, next) : settle_live(s, next);
}

static void count_refusal(const struct settling *s) {
    tally.fenced += slice_eq(s->code, SL("fenced"));
    tally.settled_otherwise += slice_eq(s->code, SL("settled"));
    tally.token_unknown += slice_eq(s->code, SL("no_such_message"));
    tally.refused_full += s->status == 507;
    tally.nack_absent += slice_eq(s->code, SL("class_invalid"));
}

static void count_success(const struct settling *s, const struct phase *before, const struct phase *after) {
    bool again = view_true(&s->view, "duplicate"), late = before->at != AT_LEASED && ended_unsaid(before);
    static const size_t classes[] = {offsetof(struct tally, nack_transient), offsetof(struct tally, nack_unknown),
                                     offsetof(struct tally, nack_poison), offsetof(struct tally, nack_rejected),
                                     offsetof(struct tally, nack_absent)};
    tally.revoked_settled += before->end == END_REVOKED && model_phase_settled(after);
    if (after->at == AT_DEAD && before->at != AT_DEAD) tally.dead++;
    if (after->at == AT_HELD && before->at != AT_HELD) tally.held++;
    tally.lookups_answered += before->lookup && s->verb == DO_ACK && !again;
    tally.held_settled_late += before->at == AT_HELD && model_phase_settled(after);
    tally.losses += before->end == END_HANDED_OUT && after->end == END_NACKED;
    if (s->verb == DO_ACK) ++*(again ? &tally.ack_repeated : late ? &tally.ack_late : &tally.acked);
    if (s->verb == DO_ACK && s->model->tight) tally.acks_when_full++;
    if (s->verb == DO_NACK && again) tally.nack_repeated++;
    if (s->verb == DO_NACK && !again) ++*(u64 *)((char *)&tally + classes[s->item->class]);
    if (s->verb == DO_EXTEND) ++*(late ? &tally.revived : &tally.extended);
    if (s->verb == DO_STEP) ++*(again ? &tally.steps_repeated : &tally.steps);
    if (s->verb == DO_START) tally.started++;
    if (s->verb == DO_RELEASE) tally.released++;
}

static void settle_answer(struct model *m, struct op *op, const struct settle_item *item, struct settling *s) {
    if (item->garbled) {
        if (!problem(s, 400, "token_invalid")) sim_fail("a garbled token got status %u", s->status);
        tally.token_garbled++;
        return;
    }
    struct message *msg = item->lease->message;
    if (s->status == 200) model_learn_id(m, msg, view_text(&s->view, "id"));
    struct phase before = msg->set->at[0];
    char what[160];
    slice text = s->status == 200 ? view_text(&s->view, "state") : s->code;
    struct buf said = {.p = what, .cap = sizeof what};
    buf_printf(&said, "%s under fence %llu got %u %.*s", verb_name(op->verb), (unsigned long long)item->lease->fence,
               s->status, (int)(text.n < 40 ? text.n : 40), text.p);
    buf_char(&said, 0);
    u64 saw = model_move(m, msg, explain_settling, s, what);
    if (saw > op->saw) op->saw = saw;
    if (s->status == 200)
        count_success(s, &before, &msg->set->at[0]);
    else
        count_refusal(s);
}

void model_answered_settle(struct model *m, struct op *op, const struct http_reply *reply, struct arena *scratch) {
    struct view list = {0};
    if (op->array) {
        list = view_of(scratch, reply->body);
        if (reply->status != 200 || !list.is_array || list.count != op->count)
            sim_fail("an array of %u settlements got status %u and %u answers", op->count, reply->status, list.count);
    }
    for (u32 i = 0; i < op->count; i++) {
        struct settling s = {.model = m, .scratch = scratch, .verb = op->verb, .item = &op->settles[i]};
        i64 status;
        s.view = view_of(scratch, op->array ? list.at[i].raw : reply->body);
        s.status = reply->status;
        s.code = view_text(&s.view, "code");
        if (op->array && s.code.n && view_i64(&s.view, "status", &status)) s.status = (u32)status;
        if (s.code.n && !view_is(&s.view, "applied", "no")) sim_fail("a refused settlement does not say applied: no");
        settle_answer(m, op, &op->settles[i], &s);
    }
}
