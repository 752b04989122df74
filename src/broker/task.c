/* Work that is too long for one turn: purging a queue, redriving the dead. A task does a slice at every tick, so that
 * requests go on in between.
 *
 * A redrive first collects what matches, then works it off: what was settled or decided meanwhile is not dead any more by
 * then, and counts as a no-op. Tasks live in memory. A restart ends them; what they did stays, and the same call again goes
 * on where it ended.
 *
 * Short ones are answered when they are done. One that turns out long, or that has a rate, is answered with its id. */
#include "broker/broker_priv.h"

#define LOOKS_PER_SLICE   5000u
#define DEEDS_PER_SLICE   1000u
#define INLINE_MAX        1000u    /* more than this is long */
#define COLLECTED_MAX     1000000u /* of one redrive; 24 bytes each */
#define TASKS_RUNNING_MAX 16u
#define TASKS_KEPT        100u
#define TASK_WAIT_MS      ((i64)366 * 24 * 3600 * 1000)

#define TASK_STATE_LIST(X)                                                                                             \
    X(RUNNING, "running")                                                                                              \
    X(DONE, "done")                                                                                                    \
    X(CANCELLED, "cancelled")                                                                                          \
    X(FAILED, "failed")
#define TASK_STATE_ENUM(name, text) TASK_##name,
enum task_state { TASK_STATE_LIST(TASK_STATE_ENUM) };
#undef TASK_STATE_ENUM

struct task {
    struct task *next;
    u64 id;
    bool purge; /* else a redrive */
    enum task_state state;
    u16 queue;
    struct buf queue_name, by, note;
    i64 started_ms, ended_ms; /* wall clock */
    struct wait *wait;        /* who waits for its end; NULL: nobody */
    /* purge */
    enum state only; /* STATE_COUNT: pending, held and dead */
    u64 before_seq, purged;
    /* redrive */
    struct filter filter;
    u64 max, rate; /* 0: none */
    bool dry_run, collecting;
    i64 began_mono_ms;
    u32 cursor; /* the last message looked at, and its name */
    struct ref cursor_ref;
    struct ref *refs;
    u32 count, cap, at;
    u64 redriven, no_op, along, still_refused; /* along: came back with their group's head */
};

static const char *const state_texts[] = {
#define TASK_STATE_TEXT(name, text) text,
    TASK_STATE_LIST(TASK_STATE_TEXT)
#undef TASK_STATE_TEXT
};

static void task_free(struct task *t) {
    filter_free(&t->filter);
    buf_free(&t->queue_name);
    buf_free(&t->by);
    buf_free(&t->note);
    mem_free(t->refs);
    mem_free(t);
}

void task_free_all(struct broker *b) {
    for (struct task *t = b->tasks, *next; t; t = next) {
        next = t->next;
        task_free(t);
    }
    b->tasks = NULL;
}

static void end_task(struct broker *b, struct task *t, enum task_state state) {
    t->state = state;
    t->ended_ms = b->now.wall_ms;
    b->tasks_running--;
    mem_free(t->refs); /* ended tasks are kept to be looked at; a million names are not */
    t->refs = NULL;
}

/* The oldest of those that have ended make room. */
static void forget_old(struct broker *b) {
    u32 kept = 0;
    for (struct task **at = &b->tasks; *at;) {
        struct task *t = *at;
        if (t->state == TASK_RUNNING || t->wait || kept++ < TASKS_KEPT) {
            at = &t->next;
            continue;
        }
        *at = t->next;
        task_free(t);
    }
}

static struct task *task_new(struct call *c, u16 queue, const struct deed *d) {
    struct broker *b = c->b;
    if (b->tasks_running >= TASKS_RUNNING_MAX) {
        fail(c, PROBLEM_overloaded, "%u tasks are running already", TASKS_RUNNING_MAX);
        return NULL;
    }
    forget_old(b);
    struct task *t = mem_zalloc(sizeof *t);
    t->id = b->next_task++;
    t->queue = queue;
    t->started_ms = b->now.wall_ms;
    t->began_mono_ms = b->time.mono_ms;
    buf_slice_add(&t->queue_name, c->arg[0]);
    buf_slice_add(&t->by, d->by.n ? d->by : SL("anonymous"));
    buf_slice_add(&t->note, d->note);
    t->next = b->tasks;
    b->tasks = t;
    b->tasks_running++;
    return t;
}

void task_detach(struct task *t) {
    t->wait = NULL;
}

/* ---- purge */

static void purge_slice(struct broker *b, struct task *t) {
    for (u32 n = 0; n < DEEDS_PER_SLICE; n++) {
        struct message_view v;
        u32 no = core_purge_next(b->core, t->queue, t->only, t->before_seq);
        if (no == MESSAGE_NONE) return end_task(b, t, TASK_DONE);
        core_message_view(b->core, b->now, no, &v);
        struct seen *s = broker_find_id(b, v.ref.hash, v.ref.seq);
        CHECK(s);
        if (core_cancel(b->core, b->now, s, SL("purged")) != CANCEL_OK) return end_task(b, t, TASK_FAILED);
        t->purged++;
    }
}

/* ---- redrive */

static void collect(struct task *t, const struct ref *ref) {
    if (t->count == t->cap) {
        t->cap = t->cap ? t->cap * 2 : 64;
        t->refs = mem_realloc(t->refs, t->cap * sizeof *t->refs);
    }
    t->refs[t->count++] = *ref;
}

/* The message the list was left at may have moved on since: then it is looked through anew. */
static void check_cursor(struct broker *b, struct task *t) {
    struct message_view v;
    if (t->cursor == MESSAGE_NONE) return;
    if (core_message_find(b->core, t->cursor_ref.hash, t->cursor_ref.seq) == t->cursor) {
        core_message_view(b->core, b->now, t->cursor, &v);
        if (v.state == STATE_DEAD) return;
    }
    t->cursor = MESSAGE_NONE;
    t->count = 0;
}

static bool enough(const struct task *t) {
    return t->count >= COLLECTED_MAX || (t->max && t->count >= t->max);
}

static void collect_slice(struct broker *b, struct task *t) {
    check_cursor(b, t);
    for (u32 n = 0; n < LOOKS_PER_SLICE && !enough(t); n++) {
        struct message_view v;
        u32 no = core_list(b->core, t->queue, STATE_DEAD, t->cursor);
        if (no == MESSAGE_NONE) {
            t->collecting = false;
            return;
        }
        core_message_view(b->core, b->now, no, &v);
        t->cursor = no;
        t->cursor_ref = v.ref;
        /* Those that died with their group's head come back with it. */
        if (!v.taken && filter_passes(&t->filter, &v)) collect(t, &v.ref);
    }
    t->collecting = !enough(t);
}

static void retry_refused(struct broker *b, struct task *t, const struct ref *ref) {
    switch (admit_again(b, ref)) {
    case RETRIAL_ADMITTED:
        t->redriven++;
        break;
    case RETRIAL_KNOWN:
        t->no_op++;
        break;
    case RETRIAL_AS_BEFORE:
        t->still_refused++;
        break;
    case RETRIAL_FULL:
        end_task(b, t, TASK_FAILED);
    }
}

static void redrive_one(struct broker *b, struct task *t, const struct ref *ref) {
    u32 came_back;
    switch (core_redrive(b->core, b->now, ref, buf_slice(&t->by), buf_slice(&t->note), &came_back)) {
    case REDRIVE_OK:
        t->redriven++;
        t->along += came_back - 1;
        break;
    case REDRIVE_NO_OP:
    case REDRIVE_TAKEN:
        t->no_op++;
        break;
    case REDRIVE_REFUSED:
        retry_refused(b, t, ref);
        break;
    case REDRIVE_FULL:
        end_task(b, t, TASK_FAILED);
    }
}

/* How many may have been done by now. */
static u64 allowed(const struct broker *b, const struct task *t) {
    if (t->rate == 0) return UINT64_MAX;
    i64 passed = b->time.mono_ms - t->began_mono_ms;
    return 1 + (passed > 0 ? (u64)passed : 0) * t->rate / 1000;
}

static void redrive_slice(struct broker *b, struct task *t) {
    u64 may = allowed(b, t);
    for (u32 n = 0; n < DEEDS_PER_SLICE && t->at < t->count && t->at < may && t->state == TASK_RUNNING; n++)
        redrive_one(b, t, &t->refs[t->at++]);
    if (t->state == TASK_RUNNING && t->at == t->count) end_task(b, t, TASK_DONE);
}

static void run_slice(struct broker *b, struct task *t) {
    if (t->purge) return purge_slice(b, t);
    if (t->collecting) collect_slice(b, t);
    if (t->collecting) return;
    if (t->dry_run) return end_task(b, t, TASK_DONE);
    redrive_slice(b, t);
}

/* ---- answers */

static void put_task(struct buf *b, const struct task *t) {
    buf_lit(b, "{\"id\":\"");
    buf_dec(b, t->id);
    buf_char(b, '"');
    json_put_member(b, "kind", t->purge ? SL("purge") : SL("redrive"));
    json_put_member(b, "queue", buf_slice(&t->queue_name));
    json_put_member(b, "state", slice_str(state_texts[t->state]));
    if (t->purge) {
        json_put_member_i64(b, "purged", (i64)t->purged);
    } else {
        json_put_member_i64(b, "matched", t->count);
        json_put_member_i64(b, "redriven", (i64)t->redriven);
        json_put_member_i64(b, "no_op", (i64)t->no_op);
        json_put_member_i64(b, "with_group", (i64)t->along);
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
        if (t->along) json_put_member_i64(b, "with_group", (i64)t->along);
        if (t->still_refused) json_put_member_i64(b, "still_refused", (i64)t->still_refused);
        if (t->dry_run) json_put_member_bool(b, "dry_run", true);
    }
    if (t->state == TASK_CANCELLED) json_put_member_bool(b, "cancelled", true);
    buf_char(b, '}');
}

static void reply_accepted(struct broker *b, void *conn, const struct task *t) {
    buf_reset(&b->body);
    buf_reset(&b->fields);
    buf_printf(&b->fields, "Location: /v1/tasks/%llu\r\n", (unsigned long long)t->id);
    buf_printf(&b->body, "{\"task\":\"%llu\"}", (unsigned long long)t->id);
    reply_with(b, conn, 202, SL("application/json"), buf_slice(&b->fields), buf_slice(&b->body), 0);
}

static void reply_task(struct broker *b, void *conn, const struct task *t) {
    struct call c = {.b = b, .conn = conn};
    buf_reset(&b->body);
    if (t->state == TASK_FAILED) {
        unsigned long long deeds = t->purged + t->redriven;
        fail(&c, PROBLEM_storage_full, "the disk has no room for more; %llu were done, the others are as they were",
             deeds);
        c.failure.applied_unknown = deeds > 0;
        reply_failure(&c);
    } else if (t->state == TASK_RUNNING && b->draining) {
        fail(&c, PROBLEM_shutting_down, "this broker is about to exit; ask for the rest again");
        c.failure.applied_unknown = true;
        reply_failure(&c);
    } else if (t->state == TASK_RUNNING) {
        reply_accepted(b, conn, t);
    } else {
        put_outcome(&b->body, t);
        reply_json(&c, 200, buf_slice(&b->body));
    }
    buf_free(&c.failure.detail);
    buf_free(&c.failure.more);
}

/* It is over, or it will take longer than anybody should wait. */
static bool can_be_answered(const struct task *t) {
    if (t->state != TASK_RUNNING) return true;
    return !t->purge && !t->dry_run && (t->rate || t->count > INLINE_MAX);
}

/* Its end, its length, or the broker's own end. */
void answer_task(struct broker *b, struct wait *w) {
    struct task *t = w->task;
    void *conn = w->conn;
    wait_end(b, w);
    reply_task(b, conn, t);
}

void task_run_all(struct broker *b) {
    if (b->tasks_running == 0 || broker_wants_pause(b)) return;
    for (struct task *t = b->tasks; t; t = t->next) {
        if (t->state != TASK_RUNNING) continue;
        run_slice(b, t);
        if (t->wait && can_be_answered(t)) answer_task(b, t->wait);
    }
}

i64 task_next_ms(const struct broker *b, i64 at_most) {
    if (b->tasks_running == 0) return at_most;
    for (const struct task *t = b->tasks; t; t = t->next) {
        if (t->state != TASK_RUNNING) continue;
        i64 ms = t->rate && !t->collecting ? (i64)(1000 / t->rate) : 1;
        if (ms < at_most) at_most = ms > 1 ? ms : 1;
    }
    return at_most;
}

void task_end_of_queue(struct broker *b, u16 queue) {
    for (struct task *t = b->tasks; t; t = t->next) {
        if (t->state != TASK_RUNNING || t->queue != queue) continue;
        end_task(b, t, TASK_CANCELLED);
        if (t->wait) answer_task(b, t->wait);
    }
}

/* The first slice is done at once: most are over with it. With a rate nobody waits for it, however short it is. */
static void start_task(struct call *c, struct task *t) {
    run_slice(c->b, t);
    if (t->rate && !t->dry_run) return reply_accepted(c->b, c->conn, t);
    if (can_be_answered(t)) return reply_task(c->b, c->conn, t);
    struct wait *w = wait_new(c->b, WAIT_TASK, c->conn, c->user, TASK_WAIT_MS);
    w->task = t;
    t->wait = w;
}

/* ---- the calls */

static bool parse_purged_state(struct call *c, slice text, enum state *only) {
    *only = STATE_COUNT;
    if (text.n == 0) return true;
    static const enum state some[] = {STATE_PENDING, STATE_HELD, STATE_DEAD};
    for (u32 i = 0; i < 3; i++)
        if (slice_eq(text, slice_str(state_text(some[i])))) *only = some[i];
    return *only != STATE_COUNT || fail(c, PROBLEM_param_invalid, "state must be pending, held or dead");
}

void api_purge(struct call *c) {
    struct deed d;
    u16 queue;
    enum state only;
    struct buf detail = {0};
    struct task *t = NULL;
    bool ok = deed_read(c, &d, "state") && queue_of_call(c, false, &queue) && parse_purged_state(c, d.state, &only) &&
              (t = task_new(c, queue, &d)) != NULL;
    if (ok) {
        buf_char(&detail, '{');
        if (d.state.n) json_put_member(&detail, "state", d.state);
        buf_char(&detail, '}');
        t->purge = true;
        t->only = only;
        t->before_seq = core_next_seq(c->b->core);
        ok = deed_audit(c, &d, DEED_PURGE, queue, NULL, buf_slice(&detail));
        if (!ok) end_task(c->b, t, TASK_CANCELLED);
    }
    if (ok)
        start_task(c, t);
    else
        reply_failure(c);
    buf_free(&detail);
    deed_free(&d);
}

static void put_redrive_detail(struct buf *b, const struct deed *d) {
    buf_char(b, '{');
    if (d->class_name.n) json_put_member(b, "class", d->class_name);
    if (d->reason.n) json_put_member(b, "reason", d->reason);
    if (d->since.n) json_put_member(b, "since", d->since);
    if (d->max) json_put_member_i64(b, "max", (i64)d->max);
    if (d->rate) json_put_member_i64(b, "rate", (i64)d->rate);
    buf_char(b, '}');
}

static bool make_redrive(struct call *c, const struct deed *d, u16 queue, struct task **out) {
    struct task *t = *out = task_new(c, queue, d);
    if (!t) return false;
    t->collecting = true;
    t->max = d->max;
    t->rate = d->rate;
    t->dry_run = d->dry_run;
    struct buf detail = {0};
    put_redrive_detail(&detail, d);
    bool ok = filter_set(c, d->class_name, d->reason, d->since, &t->filter) &&
              (d->dry_run || deed_audit(c, d, DEED_REDRIVE, queue, NULL, buf_slice(&detail)));
    buf_free(&detail);
    if (!ok) end_task(c->b, t, TASK_CANCELLED);
    return ok;
}

void api_redrive(struct call *c) {
    struct deed d;
    u16 queue;
    struct task *t;
    bool ok = deed_read(c, &d, "class reason since max rate dry_run") && queue_of_call(c, false, &queue) &&
              make_redrive(c, &d, queue, &t);
    if (ok)
        start_task(c, t);
    else
        reply_failure(c);
    deed_free(&d);
}

static struct task *task_of_call(struct call *c) {
    u64 id;
    if (slice_u64(c->arg[0], &id))
        for (struct task *t = c->b->tasks; t; t = t->next)
            if (t->id == id) return t;
    fail(c, PROBLEM_no_such_task, "there is no such task; a restart ends them all, and the last %u are kept",
         TASKS_KEPT);
    return NULL;
}

void api_task(struct call *c) {
    const struct task *t = task_of_call(c);
    if (!t) return reply_failure(c);
    buf_reset(&c->b->body);
    put_task(&c->b->body, t);
    reply_json(c, 200, buf_slice(&c->b->body));
}

void api_task_cancel(struct call *c) {
    struct task *t = task_of_call(c);
    if (!t) return reply_failure(c);
    if (t->state == TASK_RUNNING) {
        end_task(c->b, t, TASK_CANCELLED);
        if (t->wait) answer_task(c->b, t->wait);
    }
    api_task(c);
}

void api_tasks(struct call *c) {
    struct buf *body = &c->b->body;
    buf_reset(body);
    buf_lit(body, "{\"items\":[");
    for (const struct task *t = c->b->tasks; t; t = t->next) {
        if (t != c->b->tasks) buf_char(body, ',');
        put_task(body, t);
    }
    buf_lit(body, "],\"next_cursor\":null}");
    reply_json(c, 200, buf_slice(body));
}
