#include "broker/tasks.h"
#include "broker/room.h"

#include "broker/admit.h"
#include "broker/broker_priv.h"
#include "broker/budget.h"
#include "broker/lookup.h"
#include "broker/waits.h"

#define LOOKS_PER_SLICE 5000u
#define DEEDS_PER_SLICE 1000u
#define FORESEEN_LOOKS  9u       /* what it costs to try a refused copy, in looks */
#define INLINE_MAX      1000u    /* more than this is long */
#define COLLECTED_MAX   1000000u /* of one redrive; 24 bytes each */
#define TASK_MAGIC      0x7461736bu

struct tasks {
    struct task *newest;
    u32 running;
    u64 next_id;
};

static const char *const state_texts[] = {
#define TASK_STATE_TEXT(name, text) text,
    TASK_STATE_LIST(TASK_STATE_TEXT)
#undef TASK_STATE_TEXT
};

const char *task_state_text(enum task_state s) {
    return state_texts[s];
}

struct tasks *tasks_new(u64 first_id) {
    struct tasks *ts = mem_zalloc(sizeof *ts);
    ts->next_id = first_id;
    return ts;
}

static void task_free(struct task *t) {
    CHECK(t->magic == TASK_MAGIC && !t->wait);
    filter_free(&t->filter);
    buf_free(&t->queue_name);
    buf_free(&t->by);
    buf_free(&t->note);
    mem_free(t->refs);
    t->magic = 0;
    mem_free(t);
}

void tasks_free(struct tasks *ts) {
    for (struct task *t = ts ? ts->newest : NULL, *next; t; t = next) {
        next = t->next;
        task_free(t);
    }
    mem_free(ts);
}

u32 tasks_running(const struct broker *b) {
    return b->tasks->running;
}

const struct task *tasks_newest(const struct broker *b) {
    return b->tasks->newest;
}

struct task *tasks_find(const struct broker *b, u64 id) {
    for (struct task *t = b->tasks->newest; t; t = t->next)
        if (t->id == id) return t;
    return NULL;
}

static void end_task(struct broker *b, struct task *t, enum task_state state) {
    CHECK(t->state == TASK_RUNNING && b->tasks->running > 0);
    t->state = state;
    t->ended_ms = b->now.wall_ms;
    b->tasks->running--;
    if (t->purge) core_purge_end(b->core, &t->purging);
    mem_free(t->refs); /* ended tasks are kept to be looked at; a million names are not */
    t->refs = NULL;
}

/* The oldest of those that have ended make room. */
static void forget_old(struct tasks *ts) {
    u32 kept = 0;
    for (struct task **at = &ts->newest; *at;) {
        struct task *t = *at;
        if (t->state == TASK_RUNNING || t->wait || (!t->dry_run && kept++ < TASKS_KEPT)) {
            at = &t->next;
            continue;
        }
        *at = t->next;
        task_free(t);
    }
}

struct task *task_new(struct broker *b, u16 queue, slice queue_name, slice by, slice note) {
    struct tasks *ts = b->tasks;
    if (ts->running >= TASKS_RUNNING_MAX) return NULL;
    forget_old(ts);
    struct task *t = mem_zalloc(sizeof *t);
    t->magic = TASK_MAGIC;
    t->id = ts->next_id++;
    t->queue = queue;
    t->started_ms = b->now.wall_ms;
    t->began_mono_ms = b->time.mono_ms;
    buf_slice_add(&t->queue_name, queue_name);
    buf_slice_add(&t->by, by);
    buf_slice_add(&t->note, note);
    t->next = ts->newest;
    ts->newest = t;
    ts->running++;
    return t;
}

/* ---- purge */

static void purge_slice(struct broker *b, struct task *t, struct budget *g) {
    for (u32 n = 0; n < DEEDS_PER_SLICE && !budget_spent(g); n++) {
        struct message_view v;
        u32 no;
        enum walk_verdict walked = core_purge_next(b->core, &t->purging, LOOKS_PER_SLICE, &no);
        if (walked == WALK_END) return end_task(b, t, TASK_DONE);
        if (walked == WALK_MORE) return;
        core_message_view(b->core, b->now, no, &v);
        struct seen *s = lookup_id(b, b->lookup, v.ref.hash, v.ref.seq);
        CHECK(s);
        room_prepare(b, core_said_bytes(b->core, no));
        if (core_cancel(b->core, b->now, s, SL("purged"), NULL) != CANCEL_OK) return end_task(b, t, TASK_FAILED);
        t->purged++;
    }
}

/* ---- redrive */

static void add_match(struct task *t, const struct ref *ref) {
    if (t->count == t->cap) {
        t->cap = t->cap ? t->cap * 2 : 64;
        t->refs = mem_realloc(t->refs, t->cap * sizeof *t->refs);
    }
    t->refs[t->count++] = *ref;
}

static void foresee_refused(struct broker *b, struct task *t, const struct ref *ref) {
    switch (admit_foresee(b, ref)) {
    case RETRIAL_ADMITTED:
        t->would_run++;
        break;
    case RETRIAL_KNOWN:
        t->no_op++;
        break;
    case RETRIAL_AS_BEFORE:
    case RETRIAL_FULL:
        t->would_refuse++;
    }
}

static void foresee_one(struct broker *b, struct task *t, const struct ref *ref) {
    bool doubt;
    u32 count;
    switch (core_redrive_foresee(b->core, ref, &doubt, &count)) {
    case REDRIVE_OK:
        t->would_reconcile += doubt;
        t->would_run += !doubt;
        t->with_group += count - 1;
        break;
    case REDRIVE_REFUSED:
        foresee_refused(b, t, ref);
        break;
    default:
        t->no_op++;
    }
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
    t->no_op = t->with_group = t->would_run = t->would_reconcile = t->would_refuse = 0;
}

static bool enough(const struct task *t) {
    return t->count >= COLLECTED_MAX || (t->max && t->count >= t->max);
}

static void collect_slice(struct broker *b, struct task *t, struct budget *g) {
    check_cursor(b, t);
    for (u32 n = 0; n < LOOKS_PER_SLICE && !enough(t) && !budget_spent(g); n++) {
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
        if (v.taken || !filter_passes(&t->filter, &v)) continue;
        if (!t->dry_run) {
            add_match(t, &v.ref);
            continue;
        }
        t->count++;
        foresee_one(b, t, &v.ref);
        if (v.refused) n += FORESEEN_LOOKS;
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
    room_prepare(b, 2 * (t->by.len + t->note.len));
    switch (core_redrive(b->core, b->now, ref, buf_slice(&t->by), buf_slice(&t->note), &came_back)) {
    case REDRIVE_OK:
        t->redriven++;
        t->with_group += came_back - 1;
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

static void redrive_slice(struct broker *b, struct task *t, struct budget *g) {
    u64 may = allowed(b, t);
    for (u32 n = 0; n < DEEDS_PER_SLICE && t->at < t->count && t->at < may && !budget_spent(g); n++) {
        redrive_one(b, t, &t->refs[t->at++]);
        if (t->state != TASK_RUNNING) return;
    }
    if (t->at == t->count) end_task(b, t, TASK_DONE);
}

void task_run_slice(struct broker *b, struct task *t, u32 us) {
    struct budget g = budget_of(b, us);
    CHECK(t->magic == TASK_MAGIC && t->state == TASK_RUNNING);
    if (t->purge) return purge_slice(b, t, &g);
    if (t->collecting) collect_slice(b, t, &g);
    if (t->collecting) return;
    if (t->dry_run) return end_task(b, t, TASK_DONE);
    redrive_slice(b, t, &g);
}

/* ---- running */

bool task_can_be_answered(const struct task *t) {
    if (t->state != TASK_RUNNING) return true;
    return !t->purge && !t->dry_run && (t->rate || t->count > INLINE_MAX);
}

void tasks_run(struct broker *b) {
    u32 running = b->tasks->running;
    if (running == 0 || broker_wants_pause(b)) return;
    for (struct task *t = b->tasks->newest; t; t = t->next) {
        if (t->state != TASK_RUNNING) continue;
        task_run_slice(b, t, TASKS_US / running);
        if (t->wait && task_can_be_answered(t)) t->wait->answer(b, t->wait, true);
    }
}

i64 tasks_next_ms(const struct broker *b, i64 at_most) {
    if (b->tasks->running == 0) return at_most;
    for (const struct task *t = b->tasks->newest; t; t = t->next) {
        if (t->state != TASK_RUNNING) continue;
        i64 ms = t->rate && !t->collecting ? (i64)(1000 / t->rate) : 1;
        if (ms < at_most) at_most = ms > 1 ? ms : 1;
    }
    return at_most;
}

void task_cancel(struct broker *b, struct task *t) {
    if (t->state != TASK_RUNNING) return;
    end_task(b, t, TASK_CANCELLED);
    if (t->wait) t->wait->answer(b, t->wait, true);
}

void tasks_end_of_queue(struct broker *b, u16 queue) {
    for (struct task *t = b->tasks->newest; t; t = t->next)
        if (t->queue == queue) task_cancel(b, t);
}
