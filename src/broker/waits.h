/* Waits: requests that are answered later. A poll waits for messages of its queue, a sender or a reader for the outcome of a
 * message, an operator for the end of a task.
 *
 * A wait is in a heap by its deadline, and in one list: its queue's polls, those who wait for a queue that is not there yet,
 * or the chain of those who wait for the same outcome. What the core announces in the middle of a decision is only marked; the answers are made at the end of the turn. */
#ifndef HAPAX_BROKER_WAITS_H
#define HAPAX_BROKER_WAITS_H

#include "broker/access.h"
#include "broker/rations.h"
#include "broker/traffic.h"
#include "core/core.h"

struct broker;
struct task;
struct wait;
struct waits;

/* Answers, and ends the wait (wait_end) before it does. over: nobody waits any longer, whatever there is is the answer; else
 * it may leave the wait as it is. */
typedef void wait_answer(struct broker *b, struct wait *w, bool over);

struct wait {
    void *conn;
    wait_answer *answer;
    u16 queue; /* a poll's; 0: it is not there yet, and waited for by its name, or not there any more */
    struct buf name;
    struct ref ref; /* whose outcome is waited for */
    struct asked asked;
    struct ration_share share;
    const struct caller *who; /* a poll's, or of whoever waits for an outcome: they may do so */
    enum right right;
    struct wait **owner; /* a pointer to this wait that is to be cleared when it ends; or NULL */

    /* What the answer needs to know; waits.c does not look at it. */
    u32 max, lease_ms; /* poll; lease 0: that of a queue that is not there yet */
    bool reserve_only;
    struct buf consumer;
    bool duplicate; /* a send: how it would have been answered at first, and how long it said it would wait */
    i64 asked_s;
    struct task *task;

    /* waits.c's own. */
    u32 magic; /* it comes back as the void * of an unanswered request */
    enum { WAIT_ALONE, WAIT_QUEUE, WAIT_MESSAGES, WAIT_OUTCOME } list;
    bool due; /* linked into the due list */
    u32 heap_at;
    i64 deadline_ms;          /* monotonic */
    struct wait *prev, *next; /* of its list */
    struct wait *due_prev, *due_next;
};

#define WAIT_NO_DEADLINE INT64_MAX /* ended by its owner alone */

struct waits *waits_new(void);
void waits_free(struct broker *b); /* nobody is answered any more */

/* A wait that ends after wait_ms at the latest. *user is what broker_gone will be told. */
struct wait *wait_new(struct broker *b, void *conn, void **user, i64 wait_ms, wait_answer *answer);
void wait_for_messages(struct broker *b, struct wait *w, u16 queue);
/* For messages of a queue that is not there: it waits for them once there is one of that name. */
void wait_for_queue(struct broker *b, struct wait *w, slice name);
void wait_for_outcome(struct broker *b, struct wait *w, const struct ref *ref);
void wait_end(struct broker *b, struct wait *w); /* takes it off every list and frees it */
struct wait *wait_of_user(void *user);
/* Its time is over now. false: it has no time. */
bool wait_hurry(struct broker *b, struct wait *w);

/* Of who waits for an outcome, and was woken: it is held, and somebody may yet decide it. */
bool wait_goes_on(struct broker *b, const struct wait *w, bool over);
void waits_wake_outcome(struct broker *b, const struct ref *ref);
void waits_wake_queue(struct broker *b, u16 queue);
void waits_queue_made(struct broker *b, u16 queue, slice name);
/* A poll waits though something is ready, for there was no room for its lease: it is looked at again with the clock. */
void waits_starve(struct broker *b);

/* Both take a part of a turn, and leave the rest for the next. */
void waits_run(struct broker *b);     /* answers what can be answered */
void waits_run_due(struct broker *b); /* answers those whose time is over */
/* The queue is about to be deleted: who waits for an outcome that is there hears it while it is known. false: there was no time
 * for all of them; what is left is answered with the next turns. */
bool waits_tell_outcomes(struct broker *b, u16 queue);
void waits_end_of_queue(struct broker *b, u16 queue); /* it was deleted: its polls are told that there is nothing */
/* Callers are others now, or may less: whoever may not ask any more for what they wait for is told so. */
void waits_review(struct broker *b);
void waits_answer_all(struct broker *b); /* as if everybody's time were over */

bool waits_unfinished(const struct broker *b); /* some could be answered, and were left for the next turn */
u32 waits_count(const struct broker *b);
i64 waits_next_ms(const struct broker *b, i64 mono_ms, i64 at_most); /* until somebody's time is over */

#endif
