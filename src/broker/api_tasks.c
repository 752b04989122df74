/* Purge, redrive, and the tasks they become.
 *
 * Short ones are answered when they are done. One that turns out long, or that has a rate, is answered with its id. */
#include "broker/access.h"
#include "broker/api.h"
#include "broker/broker_priv.h"
#include "broker/budget.h"
#include "broker/call.h"
#include "broker/named.h"
#include "broker/operator.h"
#include "broker/render.h"
#include "broker/tasks.h"
#include "broker/waits.h"

#define TASK_WAIT_MS ((i64)366 * 24 * 3600 * 1000)

/* ---- answers */

static void put_task(struct buf *b, const struct task *t) {
    buf_lit(b, "{\"id\":\"");
    buf_dec(b, t->id);
    buf_char(b, '"');
    json_put_member(b, "kind", t->purge ? SL("purge") : SL("redrive"));
    json_put_member(b, "queue", buf_slice(&t->queue_name));
    json_put_member(b, "state", slice_str(task_state_text(t->state)));
    if (t->purge) {
        json_put_member_i64(b, "purged", (i64)t->purged);
    } else {
        json_put_member_i64(b, "matched", t->count);
        json_put_member_i64(b, "redriven", (i64)t->redriven);
        json_put_member_i64(b, "no_op", (i64)t->no_op);
        json_put_member_i64(b, "with_group", (i64)t->with_group);
        json_put_member_i64(b, "still_refused", (i64)t->still_refused);
    }
    json_put_member_time(b, "started_at", t->started_ms);
    if (t->state != TASK_RUNNING) json_put_member_time(b, "ended_at", t->ended_ms);
    json_put_member(b, "by", buf_slice(&t->by));
    buf_char(b, '}');
}

static void put_outcome(struct buf *b, const struct task *t) {
    buf_char(b, '{');
    if (t->purge) {
        json_put_member_i64(b, "purged", (i64)t->purged);
    } else {
        json_put_member_i64(b, "matched", t->count);
        json_put_member_i64(b, "redriven", (i64)t->redriven);
        json_put_member_i64(b, "no_op", (i64)t->no_op);
        if (t->with_group) json_put_member_i64(b, "with_group", (i64)t->with_group);
        if (t->still_refused) json_put_member_i64(b, "still_refused", (i64)t->still_refused);
        if (t->dry_run) {
            json_put_member_bool(b, "dry_run", true);
            json_put_member_i64(b, "would_run", (i64)t->would_run);
            json_put_member_i64(b, "would_reconcile", (i64)t->would_reconcile);
            json_put_member_i64(b, "would_refuse", (i64)t->would_refuse);
        }
    }
    if (t->state == TASK_CANCELLED) json_put_member_bool(b, "cancelled", true);
    buf_char(b, '}');
}

static void reply_accepted(struct broker *b, void *conn, const struct task *t) {
    struct scratch *s = b->scratch;
    buf_reset(&s->body);
    buf_reset(&s->fields);
    buf_printf(&s->fields, "Location: /v1/tasks/%llu\r\n", (unsigned long long)t->id);
    buf_printf(&s->body, "{\"task\":\"%llu\"}", (unsigned long long)t->id);
    reply_with(b, conn, 202, SL("application/json"), buf_slice(&s->fields), buf_slice(&s->body), 0);
}

static void reply_failed(struct broker *b, void *conn, const struct task *t) {
    struct call c = {.b = b, .conn = conn};
    unsigned long long deeds = t->purged + t->redriven;
    fail(&c, PROBLEM_storage_full, "the disk has no room for more; %llu were done, the others are as they were", deeds);
    c.failure.applied_unknown = deeds > 0;
    reply_failure(&c);
    failure_free(&c.failure);
}

static void reply_cut_short(struct broker *b, void *conn) {
    struct call c = {.b = b, .conn = conn};
    fail(&c, PROBLEM_shutting_down, "this broker is about to exit; ask for the rest again");
    c.failure.applied_unknown = true;
    reply_failure(&c);
    failure_free(&c.failure);
}

static void reply_task(struct broker *b, void *conn, const struct task *t) {
    if (t->state == TASK_FAILED) return reply_failed(b, conn, t);
    if (t->state == TASK_RUNNING && b->draining) return reply_cut_short(b, conn);
    if (t->state == TASK_RUNNING) return reply_accepted(b, conn, t);
    struct buf *body = &b->scratch->body;
    buf_reset(body);
    put_outcome(body, t);
    reply_with(b, conn, 200, SL("application/json"), SL(""), buf_slice(body), 0);
}

/* The task has ended, or is long, or the broker is about to end. */
static void answer_task(struct broker *b, struct wait *w, bool over) {
    (void)over; /* it is asked for only when there is an answer */
    const struct task *t = w->task;
    void *conn = w->conn;
    wait_end(b, w);
    reply_task(b, conn, t);
}

/* The first slice is done at once: most are over with it. With a rate nobody waits for it, however short it is. */
static void start_task(struct call *c, struct task *t) {
    task_run_slice(c->b, t, REQUEST_US);
    if (t->rate && !t->dry_run) return reply_accepted(c->b, c->conn, t);
    if (task_can_be_answered(t)) return reply_task(c->b, c->conn, t);
    struct wait *w = wait_new(c->b, c->conn, c->user, TASK_WAIT_MS, answer_task);
    w->task = t;
    w->owner = &t->wait;
    t->wait = w;
}

static struct task *new_task(struct call *c, u16 queue, const struct deed *d) {
    struct task *t = task_new(c->b, queue, c->arg[0], deed_who(d), d->note);
    if (!t) fail(c, PROBLEM_overloaded, "%u tasks are running already", TASKS_RUNNING_MAX);
    return t;
}

/* ---- purge */

static bool parse_purged_state(struct call *c, slice text, enum state *only) {
    *only = STATE_COUNT;
    if (text.n == 0) return true;
    static const enum state some[] = {STATE_PENDING, STATE_HELD, STATE_DEAD};
    for (u32 i = 0; i < 3; i++)
        if (slice_eq(text, slice_str(state_text(some[i])))) *only = some[i];
    return *only != STATE_COUNT || fail(c, PROBLEM_param_invalid, "state must be pending, held or dead");
}

static bool make_purge(struct call *c, const struct deed *d, u16 queue, enum state only, struct task **out) {
    struct task *t = *out = new_task(c, queue, d);
    if (!t) return false;
    struct buf detail = {0};
    buf_char(&detail, '{');
    if (d->state.n) json_put_member(&detail, "state", d->state);
    buf_char(&detail, '}');
    t->purge = true;
    t->purging = (struct core_purge){.queue = queue, .only = only};
    core_purge_begin(c->b->core, &t->purging);
    bool ok = deed_audit(c, d, DEED_PURGE, queue, buf_slice(&detail));
    buf_free(&detail);
    if (!ok) task_cancel(c->b, t);
    return ok;
}

void api_purge(struct call *c) {
    struct deed d;
    u16 queue;
    enum state only;
    struct task *t;
    bool ok = deed_read(c, &d, "state") && queue_of_call(c, false, &queue) && parse_purged_state(c, d.state, &only) &&
              make_purge(c, &d, queue, only, &t);
    if (ok)
        start_task(c, t);
    else
        reply_failure(c);
    deed_free(&d);
}

/* ---- redrive */

/* named: how many ids were given; the messages themselves tell who redrove them. */
static void put_redrive_detail(struct buf *b, const struct deed *d, u32 named) {
    buf_char(b, '{');
    if (d->class_name.n) json_put_member(b, "class", d->class_name);
    if (d->reason.n) json_put_member(b, "reason", d->reason);
    if (d->since.n) json_put_member(b, "since", d->since);
    if (named) json_put_member_i64(b, "ids", named);
    if (d->max) json_put_member_i64(b, "max", (i64)d->max);
    if (d->rate) json_put_member_i64(b, "rate", (i64)d->rate);
    buf_char(b, '}');
}

static bool make_redrive(struct call *c, const struct deed *d, u16 queue, struct task **out) {
    struct task *t = *out = new_task(c, queue, d);
    if (!t) return false;
    t->collecting = true;
    t->max = d->max;
    t->rate = d->rate;
    t->dry_run = d->dry_run;
    t->filter.payloads = true; /* whoever may operate may see them */
    bool ok = filter_set(c, d->class_name, d->reason, d->since, &t->filter) &&
              (!d->ids.n || filter_set_ids(c, d->ids, &t->filter));
    struct buf detail = {0};
    put_redrive_detail(&detail, d, t->filter.id_count);
    ok = ok && (d->dry_run || deed_audit(c, d, DEED_REDRIVE, queue, buf_slice(&detail)));
    buf_free(&detail);
    if (!ok) task_cancel(c->b, t);
    return ok;
}

void api_redrive(struct call *c) {
    struct deed d;
    u16 queue;
    struct task *t;
    bool ok = deed_read(c, &d, "class reason since ids max rate dry_run") && queue_of_call(c, false, &queue) &&
              make_redrive(c, &d, queue, &t);
    if (ok)
        start_task(c, t);
    else
        reply_failure(c);
    deed_free(&d);
}

/* ---- looking at tasks */

static struct task *task_of_call(struct call *c) {
    u64 id;
    struct task *t = slice_u64(c->arg[0], &id) ? tasks_find(c->b, id) : NULL;
    if (t && (t->dry_run || !caller_sees(c->who, buf_slice(&t->queue_name)))) t = NULL;
    if (!t)
        fail(c, PROBLEM_no_such_task, "there is no such task; a restart ends them all, and the last %u are kept",
             TASKS_KEPT);
    return t;
}

void api_task(struct call *c) {
    const struct task *t = task_of_call(c);
    struct buf *body = &c->b->scratch->body;
    if (!t || !may(c, RIGHT_OBSERVE, buf_slice(&t->queue_name))) return reply_failure(c);
    buf_reset(body);
    put_task(body, t);
    reply_json(c, 200, buf_slice(body));
}

/* Whoever stops what has ended decides nothing. */
static bool stop_task(struct call *c, const struct deed *d, struct task *t) {
    if (t->state != TASK_RUNNING) return true;
    struct buf detail = {0};
    buf_printf(&detail, "{\"task\":\"%llu\"}", (unsigned long long)t->id);
    bool ok = deed_audit(c, d, DEED_TASK_CANCEL, t->queue, buf_slice(&detail));
    buf_free(&detail);
    if (ok) task_cancel(c->b, t);
    return ok;
}

void api_task_cancel(struct call *c) {
    struct deed d;
    struct task *t = NULL;
    bool ok = deed_read(c, &d, "") && (t = task_of_call(c)) && may(c, RIGHT_OPERATE, buf_slice(&t->queue_name)) &&
              stop_task(c, &d, t);
    if (ok)
        api_task(c);
    else
        reply_failure(c);
    deed_free(&d);
}

void api_tasks(struct call *c) {
    struct buf *body = &c->b->scratch->body;
    buf_reset(body);
    buf_lit(body, "{\"items\":[");
    bool first = true;
    for (const struct task *t = tasks_newest(c->b); t; t = t->next) {
        if (t->dry_run || !caller_may(c->who, RIGHT_OBSERVE, buf_slice(&t->queue_name))) continue;
        if (!first) buf_char(body, ',');
        put_task(body, t);
        first = false;
    }
    buf_lit(body, "],\"next_cursor\":null}");
    reply_json(c, 200, buf_slice(body));
}
