#include "broker/jobs.h"
#include "broker/access.h"

#include "broker/broker_priv.h"
#include "broker/diff.h"
#include "broker/limits.h"
#include "broker/waits.h"

#define JOBS_MAX       4096u
#define JOBS_BYTES_MAX (64ull << 20) /* of requests that are kept */
#define GENTLE_MAX                                                                                                     \
    16u /* looking at much, which may hold a long reply; whoever works with messages is not kept waiting for it */
#define JOB_SLICE_US 1000u
#define BEGUN_US     2000u      /* of a turn's requests, for beginning with long ones */
#define CROWD        16u        /* of long requests under way: those that come now begin behind them */
#define LENT_BYTES   (1u << 20) /* of a reply's memory, from request to request; larger ones go back */

struct jobs {
    struct job *first, *last; /* they take turns */
    u32 count;
    u64 bytes;
    u32 round;
    u32 gentle;   /* of them */
    bool passed;  /* over, in a turn that was long without them */
    u64 begun_us; /* what beginning with others has taken of this turn */
};

struct jobs *jobs_new(void) {
    return mem_zalloc(sizeof(struct jobs));
}

bool jobs_waiting(const struct broker *b) {
    return b->jobs->first != NULL;
}

/* When it is half full, a client with many requests that wait leaves the rest to others. */
static bool takes_too_much(const struct call *c) {
    const struct jobs *js = c->b->jobs;
    const struct http_use *from = c->req->from;
    return from && from->waiting >= JOBS_MAX / 4 && (js->count >= JOBS_MAX / 2 || js->bytes >= JOBS_BYTES_MAX / 2);
}

bool jobs_have_room(struct call *c) {
    const struct jobs *js = c->b->jobs;
    if (js->count < JOBS_MAX && js->bytes + c->req->body.n <= JOBS_BYTES_MAX && !takes_too_much(c)) return true;
    c->failure.retry_ms = (i64)js->count * JOB_SLICE_US / 1000; /* each of them will have had another slice */
    return fail(c, PROBLEM_overloaded, "%u long requests are being worked on already", js->count);
}

static void link_last(struct jobs *js, struct job *j) {
    j->next = NULL;
    if (js->last)
        js->last->next = j;
    else
        js->first = j;
    js->last = j;
}

static struct job *unlink_first(struct jobs *js) {
    struct job *j = js->first;
    js->first = j->next;
    if (!js->first) js->last = NULL;
    return j;
}

static void release(struct job *j) {
    j->kind->free(j);
    failure_free(&j->c.failure);
    buf_free(&j->reply);
    buf_free(&j->kept);
}

static void answer_wait(struct broker *b, struct wait *w, bool over) {
    (void)b, (void)w, (void)over; /* it has no deadline: jobs_run answers it */
}

/* The client answers for what is kept for it: whoever has most made for him is the first to go when memory is short. */
static void tell_kept(struct broker *b, const struct job *j) {
    if (j->wait && b->options.port.keeps)
        b->options.port.keeps(b->options.port.ctx, j->wait->conn, j->reply.len + j->kept.len);
}

void jobs_gone(struct wait *w) {
    if (w->answer != answer_wait) return;
    struct job *j = (struct job *)(void *)((char *)w->owner - offsetof(struct job, wait));
    CHECK(j->wait == w);
    j->unheard = true;
    buf_free(&j->reply);
}

/* It goes on later: what it points at is kept. */
static void park(struct call *c, struct job *small) {
    struct broker *b = c->b;
    struct job *j = mem_alloc(small->kind->size);
    memcpy(j, small, small->kind->size);
    buf_slice_add(&j->kept, c->arg[0]);
    buf_slice_add(&j->kept, j->text);
    j->c.arg[0] = slice_of(j->kept.p, c->arg[0].n);
    j->text = slice_of(j->kept.p + c->arg[0].n, j->text.n);
    j->c.req = NULL;
    j->c.user = NULL;
    j->wait = wait_new(b, c->conn, c->user, WAIT_NO_DEADLINE, answer_wait);
    j->wait->owner = &j->wait;
    link_last(b->jobs, j);
    b->jobs->count++;
    b->jobs->gentle += j->kind->gentle;
    b->jobs->bytes += j->kept.len;
    tell_kept(b, j);
}

/* The reply's memory is lent from request to request. */
static void borrow(struct broker *b, struct job *j) {
    if (b->scratch->body.cap > LENT_BYTES) buf_free(&b->scratch->body);
    j->reply = b->scratch->body;
    b->scratch->body = (struct buf){0};
    buf_reset(&j->reply);
}

static void give_back(struct broker *b, struct job *j) {
    if (j->reply.cap > LENT_BYTES) return;
    buf_free(&b->scratch->body);
    b->scratch->body = j->reply;
    j->reply = (struct buf){0};
}

/* Hundreds of long requests that come together would each have their first milliseconds before whatever came behind them is so much
 * as read. When some have had their part of the turn, or many are under way, the others begin at the turn's end, among those that go
 * on. Not so many of them that others would be refused for it. */
static bool begins_later(const struct jobs *js, const struct job *j) {
    bool busy = js->passed || js->begun_us >= BEGUN_US || js->count >= CROWD;
    return busy && !j->kind->gentle && js->count < JOBS_MAX / 4 - 1;
}

static bool begin(struct jobs *js, struct job *j, u32 us) {
    struct budget g = budget_of(j->c.b, us);
    bool done = j->kind->run(j, &g);
    i64 left_us = budget_left_us(&g);
    if (left_us < us) js->begun_us += (u64)(us - left_us);
    return done;
}

void job_start(struct call *c, struct job *j) {
    j->c = (struct call){
        .b = c->b, .conn = c->conn, .who = c->who, .arg = {c->arg[0]}, .failure = {.compare_left = COMPARED_IN_JOB}};
    j->text = c->req->body;
    if (begins_later(c->b->jobs, j)) return park(c, j);
    borrow(c->b, j);
    bool done = !c->b->jobs->passed && begin(c->b->jobs, j, j->kind->gentle ? JOB_SLICE_US : REQUEST_US),
         crowded = j->kind->gentle && c->b->jobs->gentle >= GENTLE_MAX;
    if (!done && !crowded) return park(c, j);
    if (done) {
        j->kind->answer(j);
    } else {
        fail(c, PROBLEM_overloaded, "%u such requests are being worked on already", GENTLE_MAX);
        reply_failure(c);
    }
    give_back(c->b, j);
    release(j);
}

/* Done, whether or not anybody still waits for the answer; or given up, because nobody waits for what only looks. */
static void end_job(struct broker *b, struct job *j) {
    b->jobs->count--;
    b->jobs->gentle -= j->kind->gentle;
    b->jobs->bytes -= j->kept.len;
    if (j->wait) {
        wait_end(b, j->wait);
        j->kind->answer(j);
    }
    release(j);
    mem_free(j);
}

/* One part may be all that a turn has time for: a line with a megabyte to compare. Where the turn's requests had such a one, those who
 * wait come in the next turn, and there before any that is new. */
static bool passes_over(struct broker *b) {
    struct jobs *js = b->jobs;
    js->passed = js->first && !js->passed && turn_is_long(b);
    return js->passed;
}

void jobs_run(struct broker *b) {
    struct jobs *js = b->jobs;
    js->begun_us = 0;
    if (passes_over(b)) return;
    struct budget all = budget_of(b, JOBS_US);
    u32 had = 0; /* gentle ones in a row that have had their slice */
    js->round++;
    while (js->first && had < js->count && !budget_spent(&all)) {
        struct budget own = budget_of(b, JOB_SLICE_US);
        struct job *j = unlink_first(js);
        if (j->kind->gentle && j->round == js->round) {
            link_last(js, j);
            had++;
            continue;
        }
        j->round = js->round;
        had = 0;
        bool given_up = j->kind->gentle && !j->wait;
        if (given_up || j->kind->run(j, &own)) {
            end_job(b, j);
            continue;
        }
        if (j->unheard) buf_free(&j->reply);
        tell_kept(b, j);
        link_last(js, j);
    }
}

/* Behind as much a connection takes no further request before it has left: it may as well be the body itself. */
#define HANDED_OVER_BYTES (1u << 20)

void job_reply(struct job *j, slice content_type, slice fields) {
    struct broker *b = j->c.b;
    if (j->reply.len < HANDED_OVER_BYTES)
        return reply_with(b, j->c.conn, 200, content_type, fields, buf_slice(&j->reply), 0);
    struct http_body *body = http_body_take(&j->reply);
    struct http_reply reply = {
        .status = 200,
        .content_type = content_type,
        .fields = fields,
        .body = http_body_bytes(body),
        .shared = body,
        .after = {.position = b->after},
        .close = b->draining,
    };
    respond(b, j->c.conn, &reply);
    http_body_release(body);
}

void jobs_review(struct broker *b) {
    for (struct job *j = b->jobs->first; j; j = j->next) j->c.who = access_again(b, j->c.who);
}

void jobs_free(struct broker *b) {
    while (b->jobs && b->jobs->first) {
        struct job *j = unlink_first(b->jobs);
        if (j->wait) wait_end(b, j->wait);
        release(j);
        mem_free(j);
    }
    mem_free(b->jobs);
}
