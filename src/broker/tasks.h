/* Tasks: work that is too long for one turn. Purging a queue, redriving the dead. A task does a slice at every tick, so that
 * requests go on in between.
 *
 * A redrive first collects what matches, then works it off: what was settled or decided meanwhile is not dead any more by
 * then, and counts as a no-op. Tasks live in memory. A restart ends them; what they did stays, and the same call again goes
 * on where it ended. */
#ifndef HAPAX_BROKER_TASKS_H
#define HAPAX_BROKER_TASKS_H

#include "broker/filter.h"
#include "core/core.h"

struct broker;
struct tasks;
struct wait;

#define TASKS_RUNNING_MAX 16u
#define TASKS_KEPT        100u /* of those that have ended, to be looked at */

#define TASK_STATE_LIST(X)                                                                                             \
    X(RUNNING, "running")                                                                                              \
    X(DONE, "done")                                                                                                    \
    X(CANCELLED, "cancelled")                                                                                          \
    X(FAILED, "failed")
#define TASK_STATE_ENUM(name, text) TASK_##name,
enum task_state { TASK_STATE_LIST(TASK_STATE_ENUM) };
#undef TASK_STATE_ENUM
const char *task_state_text(enum task_state s);

/* Made with task_new, filled in by who starts it, run by tasks.c, read by who answers for it. */
struct task {
    u32 magic;
    struct task *next;
    u64 id;
    bool purge; /* else a redrive */
    enum task_state state;
    u16 queue;
    struct buf queue_name, by, note;
    i64 started_ms, ended_ms; /* wall clock */
    struct wait *wait;        /* who waits for its end; NULL: nobody */
    /* purge */
    struct core_purge purging; /* the core knows it from the start of the task to its end */
    u64 purged;
    /* redrive */
    struct filter filter;
    u64 max, rate; /* 0: none */
    bool dry_run, collecting;
    i64 began_mono_ms;
    u32 cursor;            /* the last message of the dead lane that was looked at, and its name */
    struct ref cursor_ref; /* to see whether it is still the same message */
    struct ref *refs;      /* what matches */
    u32 count, cap, at;    /* at: how many of them have been worked off */
    u64 redriven, no_op, still_refused;
    u64 with_group; /* came back with their group's head */
    /* a dry run: what would become of them. It is no task to anybody but who waits for it */
    u64 would_run, would_reconcile, would_refuse;
};

struct tasks *tasks_new(u64 first_id);
void tasks_free(struct tasks *t);

/* Running, with nothing to do yet. by, note: copied. NULL: TASKS_RUNNING_MAX are running. */
struct task *task_new(struct broker *b, u16 queue, slice queue_name, slice by, slice note);
void task_run_slice(struct broker *b, struct task *t, u32 us);
/* It has ended, or it will take longer than anybody should wait for. */
bool task_can_be_answered(const struct task *t);
/* Ends it where it is. Whoever waits for it is answered. */
void task_cancel(struct broker *b, struct task *t);

void tasks_run(struct broker *b);                     /* a slice of each */
void tasks_end_of_queue(struct broker *b, u16 queue); /* it is about to be deleted */
i64 tasks_next_ms(const struct broker *b, i64 at_most);
u32 tasks_running(const struct broker *b);

struct task *tasks_find(const struct broker *b, u64 id); /* NULL: there is none */
const struct task *tasks_newest(const struct broker *b); /* the first of a list by `next` */

#endif
