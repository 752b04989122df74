/* Answers to operators: rules, decisions, redrives, purges, replays, erasing, forgetting. */
#include "model_priv.h"

struct deciding {
    const struct op *op;
    u32 status;
    const struct view *view;
    slice reason;
    struct set *formers; /* a replay: the outcomes it may stand in for */
};

static bool problem(const struct deciding *d, const char *code) {
    return d->status == 409 && view_is(d->view, "code", code);
}

static bool refused_as(const struct model *m, const struct message *msg, const struct phase *p,
                       const struct deciding *d, const char *code) {
    return problem(d, code) && model_shows_as(m, msg, p, view_text(d->view, "state"));
}

/* ---- rules */

static bool explain_any(const struct model *m, const struct message *msg, struct phase *next, void *ctx) {
    (void)m, (void)msg, (void)next, (void)ctx;
    return true;
}

/* A changed window may lengthen what a key was promised, never shorten it. */
static bool explain_new_rules(const struct model *m, const struct message *msg, struct phase *next, void *ctx) {
    const struct policy *rules = policy_of(m, msg->queue);
    (void)ctx;
    if (!model_phase_settled(next) || next->at == AT_FORGOTTEN) return true;
    if (rules->window_min > next->window_min) next->window_min = rules->window_min;
    if (rules->window_max > next->window_max) next->window_max = rules->window_max;
    if (rules->keep_ms < next->keep_least) next->keep_least = rules->keep_ms;
    return true;
}

static void move_all(struct model *m, u32 queue, explain_fn explain) {
    for (u32 s = 0; s < m->slot_count; s++) {
        for (struct message *msg = *key_slot(m, queue, s); msg; msg = msg->rival)
            model_move(m, msg, explain, NULL, "new rules");
    }
}

static void answered_put(struct model *m, struct op *op, const struct http_reply *reply, struct arena *scratch) {
    struct queue *q = &m->queues[op->queue];
    if (q->policy != op->policy) {
        move_all(m, op->queue, explain_any); /* what time did so far it did by the old rules */
        q->plain = false;
        q->changed_run = m->run;
        q->changed_slip = m->run_slip;
        if (op->policy->window_max > q->window_most) q->window_most = op->policy->window_max;
        q->policy = op->policy;
        model_queue_rules(m, op->queue);
        move_all(m, op->queue, explain_new_rules);
        op->deed = true;
        tally.rules_changed++;
    }
    model_answered_queue(m, op, reply, scratch);
    model_saw(op, m->moves);
}

/* ---- one message */

static bool explain_cancel(const struct model *m, const struct message *msg, struct phase *next, void *ctx) {
    const struct deciding *d = ctx;
    if (d->status == 404) return model_explain_not_shown(m, msg, next, NULL);
    if (next->at == AT_FORGOTTEN) return false;
    bool again = next->at == AT_CANCELLED || (model_phase_settled(next) && next->restored);
    if (model_phase_settled(next) && !again) return refused_as(m, msg, next, d, "settled");
    if (!again) model_cancel(m, msg, next, d->reason);
    return d->status == 200 && view_is(d->view, "state", model_at_name((enum at)next->at)) &&
           view_true(d->view, "restored") == (next->restored != 0) && view_true(d->view, "duplicate") == again;
}

static bool resolve_to_settled(const struct model *m, const struct message *msg, struct phase *p,
                               const struct deciding *d) {
    const struct op *op = d->op;
    if (op->as == AS_DUPLICATE) {
        model_cancel(m, msg, p, SL("duplicate"));
    } else {
        p->at = op->as == AS_DONE ? AT_DONE : AT_REJECTED;
        p->end = END_DECIDED;
        p->reason = d->reason;
        p->result = op->result;
        p->content_type = op->result.n ? SL("text/plain") : SL("");
        model_stamp(m, msg, p);
    }
    p->conflict = 0;
    return d->status == 200 && view_is(d->view, "state", model_at_name((enum at)p->at));
}

static bool explain_resolve(const struct model *m, const struct message *msg, struct phase *next, void *ctx) {
    const struct deciding *d = ctx;
    enum resolve_as as = d->op->as;
    if (d->status == 404) return model_explain_not_shown(m, msg, next, NULL);
    if (next->at == AT_FORGOTTEN) return false;
    if (model_phase_settled(next)) return refused_as(m, msg, next, d, "settled");
    if (next->at == AT_PENDING && problem(d, "group_dead")) return model_may_be_taken(m, msg);
    if (next->at != AT_HELD && next->at != AT_DEAD) return refused_as(m, msg, next, d, "not_held");
    if ((as == AS_NEW || as == AS_DUPLICATE) != (next->conflict != 0)) return problem(d, "conflict_only");
    if (as == AS_DONE || as == AS_REJECTED || as == AS_DUPLICATE) return resolve_to_settled(m, msg, next, d);
    bool doubt = model_doubt(next);
    next->end = END_DECIDED;
    next->takes = 0;
    next->reconcile = 0;
    if (as == AS_DEAD) {
        next->at = AT_DEAD;
        next->doubt = doubt;
        model_group_fate(m, msg, next);
    } else { /* somebody vouches for it */
        *next = model_redriven(next, m->run);
        next->conflict = next->doubt = next->reconcile = 0;
    }
    return d->status == 200 && view_is(d->view, "state", model_at_name((enum at)next->at));
}

static bool explain_revoke(const struct model *m, const struct message *msg, struct phase *next, void *ctx) {
    const struct deciding *d = ctx;
    if (d->status == 404) return model_explain_not_shown(m, msg, next, NULL);
    if (next->at == AT_FORGOTTEN) return false;
    if (next->at != AT_LEASED) return refused_as(m, msg, next, d, "not_leased");
    *next = model_revoked(m, msg, next);
    return d->status == 200 && model_shows_as(m, msg, next, view_text(d->view, "state"));
}

static bool explain_erase(const struct model *m, const struct message *msg, struct phase *next, void *ctx) {
    const struct deciding *d = ctx;
    if (d->status == 404) return model_explain_not_shown(m, msg, next, NULL);
    if (next->at == AT_FORGOTTEN) return false;
    if (next->at == AT_LEASED) return problem(d, "leased");
    if (!model_phase_settled(next)) model_cancel(m, msg, next, SL("erased"));
    next->reason = SL("erased");
    next->result = next->content_type = SL("");
    next->steps = next->effects = NULL;
    next->erased = 1;
    next->conflict = 0;
    return d->status == 200 && view_true(d->view, "erased") &&
           view_is(d->view, "state", model_at_name((enum at)next->at));
}

static bool explain_forget(const struct model *m, const struct message *msg, struct phase *next, void *ctx) {
    const struct deciding *d = ctx;
    if (d->status == 404) return model_explain_not_shown(m, msg, next, NULL);
    if (next->at == AT_FORGOTTEN) return false;
    if (next->at == AT_LEASED) return problem(d, "leased");
    *next = (struct phase){.at = AT_FORGOTTEN};
    return d->status == 204;
}

/* What of an outcome stays while its key runs again. */
static struct phase outcome_of(const struct message *msg, const struct phase *p) {
    return (struct phase){
        .at = p->at,
        .reason = p->reason,
        .result = p->result,
        .content_type = p->content_type,
        .effects = p->effects,
        .effects_unsure = p->effects_unsure,
        .attempts = p->attempts,
        .failures = p->failures,
        .unknowns = p->unknowns,
        .crashes = p->crashes,
        .born = p->born ? p->born : msg->born_wall,
    };
}

static bool explain_replay(const struct model *m, const struct message *msg, struct phase *next, void *ctx) {
    const struct deciding *d = ctx;
    if (d->status == 404) return model_explain_not_shown(m, msg, next, NULL);
    if (next->at == AT_FORGOTTEN) return false;
    if (!model_phase_settled(next)) return refused_as(m, msg, next, d, "not_settled");
    i64 oldest = m->run - next->settled_min, youngest = m->run - (m->run_slip - next->settled_slip) - next->settled_max;
    bool gone = next->erased || oldest >= next->keep_least || m->tight;
    if (problem(d, "payload_gone")) return gone;
    if (d->status != 202 || next->erased || youngest >= policy_of(m, msg->queue)->keep_ms) return false;
    struct phase former = outcome_of(msg, next);
    model_set_add(d->formers, &former);
    *next = (struct phase){.at = AT_FORGOTTEN, .superseded = 1};
    return true;
}

static void stands_in_for(struct model *m, struct message *msg, const struct set *formers) {
    struct set set = {.count = formers->count};
    const struct set *own = model_set_copy(m, formers);
    for (u32 i = 0; i < set.count; i++) {
        set.at[i] = msg->set->at[0];
        set.at[i].former = &own->at[i];
    }
    msg->versions[0].set = msg->set = model_set_copy(m, &set);
}

static void next_generation(struct model *m, struct op *op, const struct message *old, const struct deciding *d) {
    struct send_item item = {.key = old->key, .variant = old->variant, .group = old->group, .attr = old->has_attr};
    struct phase first = {.at = AT_PENDING};
    struct message *msg = model_message_new(m, op->queue, old->slot, &item, &first);
    msg->name = old->name;
    msg->generation = old->generation + 1;
    stands_in_for(m, msg, d->formers);
    model_check_identity(m, msg, d->view);
    model_saw(op, msg->versions[0].index);
}

static explain_fn explanation(enum op_kind kind) {
    switch (kind) {
    case OP_CANCEL:
        return explain_cancel;
    case OP_RESOLVE:
        return explain_resolve;
    case OP_REVOKE:
        return explain_revoke;
    case OP_ERASE:
        return explain_erase;
    case OP_FORGET:
        return explain_forget;
    default:
        return explain_replay;
    }
}

static void count_deed(const struct op *op, const struct deciding *d) {
    bool ok = d->status < 300, conflict = op->as == AS_NEW || op->as == AS_DUPLICATE;
    tally.cancelled += ok && op->kind == OP_CANCEL;
    tally.replays_cancelled += ok && view_true(d->view, "restored") && !view_true(d->view, "duplicate");
    tally.resolved += ok && op->kind == OP_RESOLVE && !conflict;
    tally.resolved_conflicts += ok && op->kind == OP_RESOLVE && conflict;
    tally.revoked += ok && op->kind == OP_REVOKE;
    tally.erased += ok && op->kind == OP_ERASE;
    tally.forgotten += ok && op->kind == OP_FORGET;
    tally.replayed += ok && op->kind == OP_REPLAY;
    tally.replays_refused += problem(d, "payload_gone");
    tally.group_taken += problem(d, "group_dead");
    tally.decisions_refused += op->kind == OP_RESOLVE && d->status == 409;
}

static void answered_one(struct model *m, struct op *op, const struct deciding *d) {
    struct message *msg = model_target(m, op);
    if (!msg || (msg->slot >= m->key_count && !msg->id_known)) {
        if (d->status != 404) sim_fail("%s of what is not known got status %u", op_name(op->kind), d->status);
        return;
    }
    bool was_erased = msg->set->at[0].erased;
    model_saw(op, model_move_on(m, msg, explanation(op->kind), (void *)d, op_name(op->kind)));
    bool nothing_new = (op->kind == OP_ERASE && was_erased) || view_true(d->view, "duplicate");
    op->deed = d->status < 300 && !nothing_new;
    count_deed(op, d);
    if (op->kind == OP_REPLAY && d->status == 202) next_generation(m, op, msg, d);
}

/* ---- many */

struct sweep {
    slice only; /* a purge: of this state; empty: all but the leased */
    u32 sure, possible;
};

static bool explain_redriven(const struct model *m, const struct message *msg, struct phase *next, void *ctx) {
    (void)msg, (void)ctx;
    if (next->at == AT_DEAD) *next = model_redriven(next, m->run);
    return true;
}

static bool wanted(const struct phase *p, slice only) {
    if (model_phase_settled(p) || p->at == AT_LEASED) return false;
    return only.n == 0 || slice_eq(only, slice_str(model_at_name((enum at)p->at)));
}

static bool explain_purged(const struct model *m, const struct message *msg, struct phase *next, void *ctx) {
    const struct sweep *s = ctx;
    if (wanted(next, s->only)) model_cancel(m, msg, next, SL("purged"));
    if (model_phase_settled(next)) next->conflict = 0;
    return true;
}

static bool explain_purged_taken(const struct model *m, const struct message *msg, struct phase *next, void *ctx) {
    (void)ctx;
    if (next->at == AT_PENDING) model_cancel(m, msg, next, SL("purged"));
    return true;
}

static void count_wanted(const struct model *m, const struct message *msg, struct sweep *s) {
    struct set closed;
    u32 n = 0;
    model_set_close(m, msg, msg->set, &closed);
    for (u32 i = 0; i < closed.count; i++) n += wanted(&closed.at[i], s->only);
    s->sure += n == closed.count;
    s->possible += n > 0;
}

static void check_count(const struct op *op, const struct view *v, const char *name, const struct sweep *s) {
    i64 n = -1;
    if (!view_i64(v, name, &n) || n < s->sure || n > s->possible)
        sim_fail("%s says %lld %s; it must be %u to %u", op_name(op->kind), (long long)n, name, s->sure, s->possible);
}

static void answered_purge(struct model *m, struct op *op, const struct view *v) {
    struct sweep s = {.only = op->state};
    bool pending = slice_eq(op->state, SL("pending")), dead = slice_eq(op->state, SL("dead"));
    struct message **which = arena_alloc(m->arena, (m->live_count + 1) * sizeof *which);
    bool *taken = arena_alloc(m->arena, m->live_count + 1);
    u32 n = 0;
    for (u32 i = 0; i < m->live_count; i++)
        if (m->live[i]->queue == op->queue) which[n++] = m->live[i];
    for (u32 i = 0; i < n; i++) { /* all of them before the first is gone: dead with its head is dead by its head */
        taken[i] = (pending || dead) && model_may_be_taken(m, which[i]);
        count_wanted(m, which[i], &s);
        s.possible += taken[i];
        if (taken[i] && pending && s.sure) s.sure--;
    }
    /* A crash before the answer may leave any of them done: they are written one by one, in an order that is the broker's. */
    for (u32 i = 0; i < n; i++) model_move_maybe(m, which[i], explain_purged, &s);
    for (u32 i = 0; i < n; i++) {
        if (!(taken[i] && pending)) model_move_on(m, which[i], explain_purged, &s, "purged");
        if (taken[i] && dead) model_move_maybe(m, which[i], explain_purged_taken, NULL);
    }
    check_count(op, v, "purged", &s);
    model_saw(op, m->moves);
    op->deed = true;
    tally.purged += n > 0;
}

static void answered_redrive(struct model *m, struct op *op, u32 status, const struct view *v) {
    struct sweep s = {.only = SL("dead")};
    op->deed = !op->dry_run;
    if (status == 202) {
        if (m->queues[op->queue].redriving++ == 0) m->queues[op->queue].redriving_from = m->run;
        if (!slice_u64(view_text(v, "task"), &op->task)) sim_fail("a task without a number");
        tally.redrive_tasks++;
        return;
    }
    for (u32 i = 0; i < m->live_count; i++)
        if (m->live[i]->queue == op->queue) count_wanted(m, m->live[i], &s);
    if (op->max && s.sure > op->max) s.sure = op->max;
    bool all = !op->max || s.possible <= op->max;
    if (op->dry_run) return;
    check_count(op, v, "redriven", &s);
    for (u32 i = m->live_count; i-- > 0;) {
        if (m->live[i]->queue != op->queue) continue;
        if (all)
            model_move(m, m->live[i], explain_redriven, NULL, "redriven");
        else
            model_move_maybe(m, m->live[i], explain_redriven, NULL);
    }
    model_saw(op, m->moves);
    tally.redriven += s.possible > 0;
}

/* The disk was full in the middle: each of them is done, or not. */
static void half_done(struct model *m, const struct op *op) {
    struct sweep s = {.only = op->state};
    if (op->kind != OP_PURGE && op->kind != OP_REDRIVE) sim_fail("%s was done by half", op_name(op->kind));
    for (u32 i = m->live_count; i-- > 0;)
        if (m->live[i]->queue == op->queue)
            model_move_maybe(m, m->live[i], op->kind == OP_PURGE ? explain_purged : explain_redriven, &s);
}

/* Until it is known to have ended, a task may have redriven any dead one. */
static void answered_task(struct model *m, struct op *op, u32 status, const struct view *v) {
    bool running = status == 200 && view_is(v, "state", "running");
    if (status != 200 && status != 404) sim_fail("a task got status %u", status);
    if (running && op->cancels) sim_fail("a cancelled task runs on");
    struct queue *q = &m->queues[op->queue];
    if (running || q->redriving != 1) return;
    move_all(m, op->queue, explain_any);
    q->redriving = 0;
}

bool model_answered_deed(struct model *m, struct op *op, const struct http_reply *reply, struct arena *scratch) {
    struct view v = view_of(scratch, reply->body);
    struct set formers = {.count = 0};
    struct deciding d = {.op = op, .status = reply->status, .view = &v, .formers = &formers};
    if (reply->status == 507 && view_is(&v, "applied", "unknown")) half_done(m, op);
    if (model_refused_by_queue(m, op, reply->status, &v)) return false;
    if (reply->status == 404 && view_is(&v, "code", "no_such_queue")) {
        if (m->queues[op->queue].exists) sim_fail("queue %u is gone", op->queue);
        return false;
    }
    d.reason = arena_printf(m->arena, op->kind == OP_CANCEL ? "cancelled by op: n%u" : "n%u", op->number);
    switch (op->kind) {
    case OP_PUT:
        answered_put(m, op, reply, scratch);
        break;
    case OP_PURGE:
        answered_purge(m, op, &v);
        break;
    case OP_REDRIVE:
        answered_redrive(m, op, reply->status, &v);
        break;
    case OP_TASK:
        answered_task(m, op, reply->status, &v);
        break;
    default:
        answered_one(m, op, &d);
    }
    return true;
}
