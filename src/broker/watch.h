/* Watching: what happened, counted and shown. Nothing here decides anything, and no promise hangs on it.
 *
 * Whatever is decided is said here once, with watch_happened: what the core wrote down (watch_record, by the core's sink), and
 * what needs no record or is known only where it was asked for: repeats, deliveries, refused tokens. From there it goes into
 * the counts below and into the events (events.h), which others may see once it is durable.
 *
 * The core's journaled counters are most of what is counted per queue. They are shown since this process began, because a
 * scraper takes a counter that steps back after a kill for a restart (`since_start`). Kept here is what they do not tell:
 * kinds, classes and histograms, about 1 KiB a queue, from the first time there is something to count. */
#ifndef HAPAX_BROKER_WATCH_H
#define HAPAX_BROKER_WATCH_H

#include "base/hist.h"
#include "core/core.h"

struct broker;
struct watch;

#define HAPPENING_LIST(X)                                                                                              \
    X(ACCEPTED, "accepted")                                                                                            \
    X(DUPLICATE, "duplicate") /* detail: enum arrival_kind; age_ms: since it was first seen */                         \
    X(CONFLICT, "conflict")                                                                                            \
    X(DELIVERED, "delivered") /* detail: enum delivery; age_ms: since it was accepted */                               \
    X(SETTLED, "settled")     /* detail: enum state; age_ms: since it was handed out, -1: it was not */                \
    X(FAILED, "failed")       /* detail: enum failure_class */                                                         \
    X(DEAD, "dead")                                                                                                    \
    X(HELD, "held")                                                                                                    \
    X(RESOLVED, "resolved") /* detail: enum decision */                                                                \
    X(EXPIRED, "expired")   /* a lease ran out */                                                                      \
    X(ALERT, "alert")       /* detail: enum alert */                                                                   \
    X(AUDIT, "audit")                                                                                                  \
    X(CONFIG, "config")                                                                                                \
    X(FENCED, "")  /* a token that a newer lease has overtaken. No event: nothing came of it */                        \
    X(DOUBLED, "") /* a second effect id for one key; what it came with is an event of its own */                      \
    X(AGAIN, "")   /* accepted, but known before: it came after its window. age_ms: since it settled, running time */
#define HAPPENING_ENUM(name, text) HAPPENING_##name,
enum happening_kind { HAPPENING_LIST(HAPPENING_ENUM) HAPPENING_COUNT };
#undef HAPPENING_ENUM
const char *happening_text(enum happening_kind k); /* empty: no event */

/* Slices are borrowed, and empty where there is nothing to say. */
struct happening {
    enum happening_kind kind;
    u16 queue;      /* 0: of none */
    struct ref ref; /* seq 0: of no message */
    u8 detail;
    i64 age_ms;
    bool drill; /* DUPLICATE: somebody tries whether repeats are known */
    u64 number; /* AUDIT, CONFIG: of the audit record; ALERT: enum alert_state */
    slice key, request_id, traceparent;
};

struct watch *watch_new(void);
void watch_free(struct watch *w);
void watch_started(struct broker *b); /* after recovery: what was counted before does not count */

void watch_happened(struct broker *b, const struct happening *h);
/* A message was handed out, to a consumer or to the broker itself. */
void watch_delivered(struct broker *b, const struct rec_message *m, const struct lease_out *lease);
/* A record was appended and applied. */
void watch_record(struct broker *b, const struct record *r);

/* A settled key is not remembered any more. The last EXPIRED_KEPT hashes of such keys are, about: enough to say that one came
 * again too late and was done again, which nobody would notice otherwise. */
#define EXPIRED_KEPT 65536u
void watch_expired(struct broker *b, u16 queue, u64 hash);

/* ---- what was counted */

#define FAILURE_CRASH CLASS_COUNT /* a lease that ran out, beside the classes */

#define ANSWER_LIST(X)                                                                                                 \
    X(FOUND, "found")   /* it had been done, or was rejected: settled with that */                                     \
    X(ABSENT, "absent") /* it had not been done */                                                                     \
    X(UNKNOWN, "unknown")
#define ANSWER_ENUM(name, text) ANSWER_##name,
enum lookup_answer { ANSWER_LIST(ANSWER_ENUM) ANSWER_COUNT };
#undef ANSWER_ENUM

/* Beside the journaled counters, of one queue since this process began. */
struct queue_watch {
    u64 late;    /* of the duplicates: past half the window */
    u64 again;   /* accepted though known before, past the window */
    u64 drilled; /* of the duplicates: somebody tried whether repeats are known */
    u64 fenced, doubled;
    struct ref last_doubled; /* the key it was */
    u64 refused;             /* copies of what failed the schema that went into the dead lane */
    u64 deliveries[DELIVERY_COUNT], settled[STATE_COUNT];
    u64 failures[CLASS_COUNT + 1];
    u64 answers[ANSWER_COUNT];
    struct hist replay_age, wait, work; /* milliseconds */
};
extern const u64 replay_age_bounds_ms[HIST_BOUNDS], work_bounds_ms[HIST_BOUNDS];

/* By what the queue's event_type makes of it: the first TYPES_MAX values, the rest together. */
#define TYPES_MAX 50u
struct queue_types {
    u32 count;
    struct type_watch {
        slice name; /* owned; UTF-8 of any characters, at most TEMPLATE_RESULT_MAX bytes */
        u64 arrivals[ARRIVAL_COUNT];
    } at[TYPES_MAX];
};
void watch_type(struct broker *b, u16 queue, slice type, enum arrival_kind kind);
const struct queue_types *queue_types(const struct broker *b, u16 queue); /* NULL: none */

/* NULL: nothing has happened there that is counted here. */
const struct queue_watch *queue_watch(const struct broker *b, u16 queue);
/* The journaled counters of a queue, of this process's time. */
struct counters since_start(const struct broker *b, const struct queue_info *q);

#endif
