/* Jobs: requests of many parts, an array to settle or a batch of lines. What is not done in a few milliseconds goes on at the
 * ends of later turns, so that nobody else waits for it; the reply is sent when all of it is done. When many come at once, some are only begun there.
 *
 * Other requests are decided in between, as they would be between single requests. A job whose client has hung up is done
 * all the same: the whole request had arrived. Not so one that only looks (`gentle`): it is given up, and only a few of those are
 * worked on at a time. */
#ifndef HAPAX_BROKER_JOBS_H
#define HAPAX_BROKER_JOBS_H

#include "broker/budget.h"
#include "broker/call.h"

struct broker;
struct job;
struct jobs;
struct wait;

struct job_kind {
    size_t size; /* of what begins with the struct job */
    /* Does parts of it, one at least, until all is done (true) or its time is up (false). */
    bool (*run)(struct job *j, struct budget *g);
    void (*answer)(struct job *j);
    void (*free)(struct job *j); /* what it holds; not the reply, not the failure */
    bool gentle;                 /* nobody waits for it with a message in hand: it gets one short slice of a turn */
};

/* First member of what a kind of job needs to know. That may move: it holds no pointers into itself, nor into the text. */
struct job {
    const struct job_kind *kind;
    struct call c;    /* b, conn, who, failure, arg[0] and req->body of the request */
    slice text;       /* its body */
    struct buf reply; /* as far as it is made */
    /* jobs.c's own, once it goes on later */
    struct wait *wait; /* the client's; NULL: it is gone */
    struct buf kept;   /* the request's bytes */
    bool unheard;      /* its client is gone: nobody will read the reply, and what is large of it need not be made */
    u32 round;         /* of jobs_run: the last in which it had its slice */
    struct job *next;
};

struct jobs *jobs_new(void);
void jobs_free(struct broker *b);

/* Does the request, or begins with it. j: filled in by the caller (kind, and what the kind needs), taken. */
void job_start(struct call *c, struct job *j);
/* 200 with the reply, which is handed over rather than copied when it is large. From inside `answer`. */
void job_reply(struct job *j, slice content_type, slice fields);
/* The client of a wait is gone. If that was a job's, its reply is forgotten at once. */
void jobs_gone(struct wait *w);
/* May a request with such a body be taken up? It may have to be kept. false: the failure is set. */
bool jobs_have_room(struct call *c);

void jobs_run(struct broker *b);
void jobs_review(struct broker *b); /* callers are others now: what is done under one goes on under its like */
bool jobs_waiting(const struct broker *b);

#endif
