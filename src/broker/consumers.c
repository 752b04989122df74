#include "broker/consumers.h"

#include "broker/access.h"
#include "broker/api.h"
#include "broker/broker_priv.h"
#include "broker/call.h"
#include "broker/jobs.h"
#include "broker/limits.h"
#include "broker/named.h"
#include "broker/parse.h"

#define BUCKETS         8192u
#define NO_CONSUMER     0u
#define HISTORY_GLANCED 4096u  /* of a message, to see who has it: longer ones are many steps, and not looked through */
#define LEASES_AT_ONCE  10000u /* of a queue are looked at; the others are counted under no name */
#define LEASES_US       3000u
#define LEASES_BETWEEN  64u
#define IDLE_SHOWN_MS   3600000 /* who holds nothing and was silent so long is not listed */
#define ASKED_AT_ONCE   16u

/* By number; 0 is nobody. In a ring from the one that spoke last to the one that was silent longest, which 0 is part of. */
struct consumer {
    u16 queue; /* 0: free */
    u16 next, prev, chain;
    u32 life; /* grows when the place is given to another */
    i64 seen_ms;
    u8 name_len;
    char name[CONSUMER_BYTES_MAX];
};

struct consumers {
    u16 buckets[BUCKETS];
    struct consumer at[CONSUMERS_MAX + 1];
    u32 count; /* known */
    u32 asked; /* requests that are being answered */
};
_Static_assert(CONSUMERS_MAX < UINT16_MAX, "their numbers have 16 bits");

struct consumers *consumers_new(void) {
    struct consumers *cs = mem_zalloc(sizeof *cs);
    for (u32 i = 0; i <= CONSUMERS_MAX; i++) { /* all free, and linked: the last is taken first */
        cs->at[i].next = (u16)(i == CONSUMERS_MAX ? 0 : i + 1);
        cs->at[i].prev = (u16)(i == 0 ? CONSUMERS_MAX : i - 1);
    }
    return cs;
}

void consumers_free(struct consumers *c) {
    mem_free(c);
}

static slice name_of(const struct consumer *c) {
    return slice_of(c->name, c->name_len);
}

static u16 *bucket_of(const struct broker *b, u16 queue, slice name) {
    return &b->consumers->buckets[core_hash(b->core, queue, name) % BUCKETS];
}

static u32 find(const struct broker *b, u16 queue, slice name) {
    const struct consumers *cs = b->consumers;
    u32 no = *bucket_of(b, queue, name);
    while (no != NO_CONSUMER && (cs->at[no].queue != queue || !slice_eq(name_of(&cs->at[no]), name)))
        no = cs->at[no].chain;
    return no;
}

static void forget(struct broker *b, u32 no) {
    struct consumers *cs = b->consumers;
    struct consumer *c = &cs->at[no];
    if (c->queue == 0) return;
    u16 *link = bucket_of(b, c->queue, name_of(c));
    while (*link != no) link = &cs->at[*link].chain;
    *link = c->chain;
    c->queue = 0;
    c->life++;
    cs->count--;
}

static void move_behind(struct consumers *cs, u32 no, u32 before) {
    struct consumer *c = &cs->at[no];
    if (before == no) return;
    cs->at[c->prev].next = c->next;
    cs->at[c->next].prev = c->prev;
    c->prev = (u16)before;
    c->next = cs->at[before].next;
    cs->at[c->next].prev = cs->at[before].next = (u16)no;
}

static void take(struct broker *b, u32 no, u16 queue, slice name) {
    struct consumer *c = &b->consumers->at[no];
    u16 *bucket = bucket_of(b, queue, name);
    forget(b, no);
    b->consumers->count++;
    c->queue = queue;
    c->name_len = (u8)name.n;
    memcpy(c->name, name.p, name.n);
    c->chain = *bucket;
    *bucket = (u16)no;
}

void consumer_spoke(struct broker *b, u16 queue, slice name) {
    struct consumers *cs = b->consumers;
    if (name.n == 0 || name.n > CONSUMER_BYTES_MAX || queue == 0) return;
    u32 no = cs->at[0].next; /* consumers speak many times in a row */
    if (cs->at[no].queue != queue || !slice_eq(name_of(&cs->at[no]), name)) {
        no = find(b, queue, name);
        if (no == NO_CONSUMER) take(b, no = cs->at[0].prev, queue, name);
        move_behind(cs, no, 0);
    }
    cs->at[no].seen_ms = b->now.wall_ms;
}

static bool holder_of(const struct broker *b, u32 message, struct message_view *v, struct history_item *attempt) {
    core_message_view(b->core, b->now, message, v);
    return v->history.n <= HISTORY_GLANCED && history_last_attempt(v->history, attempt) && attempt->fence == v->fence;
}

void consumer_spoke_of(struct broker *b, u32 message, u64 fence) {
    struct message_view v;
    struct history_item attempt;
    if (holder_of(b, message, &v, &attempt) && v.fence == fence) consumer_spoke(b, v.ref.queue, attempt.consumer);
}

void consumers_end_of_queue(struct broker *b, u16 queue) {
    struct consumers *cs = b->consumers;
    for (u32 no = 1; no <= CONSUMERS_MAX && cs->count; no++) {
        if (cs->at[no].queue != queue) continue;
        forget(b, no);
        move_behind(cs, no, cs->at[0].prev);
    }
}

/* ---- GET /v1/consumers */

struct held {
    u32 life, count;
    i64 oldest_ms;
};

struct consumers_job {
    struct job job;
    u16 only;  /* 0: every queue */
    u64 since; /* by core_queue_since; 0 if every queue */
    u32 at;    /* the queue that is next */
    bool cut;
    struct held
        *held; /* by each consumer: [CONSUMERS_MAX + 1]; 0: by nobody with a name, of the queue that is looked at */
};

static void count_lease(struct held *h, i64 since_ms) {
    if (h->count++ == 0 || since_ms < h->oldest_ms) h->oldest_ms = since_ms;
}

/* Whoever holds a lease and is not known has not spoken since the last start: it did when it took the lease. Nobody is forgotten
 * for its sake. */
static u32 holder_no(struct broker *b, u16 queue, const struct history_item *attempt) {
    struct consumers *cs = b->consumers;
    u32 no = attempt->consumer.n ? find(b, queue, attempt->consumer) : NO_CONSUMER, last = cs->at[0].prev;
    if (no != NO_CONSUMER || attempt->consumer.n == 0 || cs->at[last].queue) return no;
    take(b, last, queue, attempt->consumer);
    cs->at[last].seen_ms = attempt->at_ms;
    move_behind(cs, last, 0);
    return last;
}

static void put_consumer(struct consumers_job *j, u16 queue, slice name, const struct held *h, i64 seen_ms) {
    struct buf *body = &j->job.reply;
    struct queue_info q;
    core_queue_info(j->job.c.b->core, j->job.c.b->now, queue, &q);
    buf_slice_add(body, body->len ? SL(",{") : SL("{"));
    json_put_member(body, "name", name);
    json_put_member(body, "queue", q.name);
    json_put_member_i64(body, "count", h->count);
    if (h->count)
        json_put_member_time(body, "oldest", h->oldest_ms);
    else
        json_put_member_raw(body, "oldest", SL("null"));
    if (seen_ms)
        json_put_member_time(body, "last_seen", seen_ms);
    else
        json_put_member_raw(body, "last_seen", SL("null"));
    buf_char(body, '}');
}

static bool may_see(const struct consumers_job *j, u16 queue) {
    const struct call *c = &j->job.c;
    return caller_may(c->who, RIGHT_OBSERVE, core_queue_name(c->b->core, queue));
}

static void look_at_queue(struct consumers_job *j, u16 queue) {
    struct broker *b = j->job.c.b;
    if (!may_see(j, queue)) return;
    struct budget g = budget_of(b, LEASES_US);
    struct held *none = &j->held[NO_CONSUMER];
    struct queue_info q;
    u32 looked = 0, no = core_list(b->core, queue, STATE_LEASED, MESSAGE_NONE);
    *none = (struct held){0};
    for (; no != MESSAGE_NONE && looked < LEASES_AT_ONCE; no = core_list(b->core, queue, STATE_LEASED, no)) {
        if (looked % LEASES_BETWEEN == 0 && budget_spent(&g)) break;
        looked++;
        struct message_view v;
        struct history_item attempt = {0};
        bool known = holder_of(b, no, &v, &attempt);
        u32 who = known ? holder_no(b, queue, &attempt) : NO_CONSUMER;
        struct held *h = &j->held[who];
        if (h->life != b->consumers->at[who].life) *h = (struct held){.life = b->consumers->at[who].life};
        count_lease(h, known ? attempt.at_ms : b->now.wall_ms);
    }
    if (no != MESSAGE_NONE) { /* the list is in the order in which they were handed out: the others are younger */
        core_queue_info(b->core, b->now, queue, &q);
        if (none->count == 0) none->oldest_ms = b->now.wall_ms;
        none->count += q.leased > looked ? (u32)(q.leased - looked) : 0;
        j->cut = true;
    }
    if (none->count) put_consumer(j, queue, SL(""), none, 0);
}

static bool deleted_meanwhile(const struct consumers_job *j) {
    return j->only && core_queue_since(j->job.c.b->core, j->only) != j->since;
}

static bool run_consumers(struct job *job, struct budget *g) {
    struct consumers_job *j = (struct consumers_job *)(void *)job;
    struct broker *b = job->c.b;
    u32 last = j->only ? j->only : core_queue_count(b->core);
    while (j->at <= last && !deleted_meanwhile(j)) {
        if (budget_spent(g)) return false;
        if (job->reply.len >= REPLY_BYTES_MAX) return j->cut = true;
        look_at_queue(j, (u16)j->at++);
    }
    return true;
}

static void answer_consumers(struct job *job) {
    struct consumers_job *j = (struct consumers_job *)(void *)job;
    struct broker *b = job->c.b;
    const struct consumers *cs = b->consumers;
    struct buf *items = &job->reply, body = {0};
    for (u32 no = cs->at[0].next; no != NO_CONSUMER; no = cs->at[no].next) {
        const struct consumer *c = &cs->at[no];
        struct held h = j->held[no].life == c->life ? j->held[no] : (struct held){0};
        bool idle = h.count == 0 && b->now.wall_ms - c->seen_ms > IDLE_SHOWN_MS;
        if (c->queue && !idle && (j->only == 0 || j->only == c->queue) && !deleted_meanwhile(j) && may_see(j, c->queue))
            put_consumer(j, c->queue, name_of(c), &h, c->seen_ms);
    }
    buf_lit(&body, "{\"items\":[");
    buf_slice_add(&body, buf_slice(items));
    buf_slice_add(&body, j->cut ? SL("],\"complete\":false}") : SL("],\"complete\":true}"));
    reply_json(&job->c, 200, buf_slice(&body));
    buf_free(&body);
}

static void free_consumers(struct job *job) {
    struct consumers_job *j = (struct consumers_job *)(void *)job;
    job->c.b->consumers->asked--;
    mem_free(j->held);
}

static const struct job_kind consumers_kind = {sizeof(struct consumers_job), run_consumers, answer_consumers,
                                               free_consumers, true};

static bool ask_consumers(struct call *c, slice queue) {
    struct consumers_job j = {.job = {.kind = &consumers_kind}, .at = 1};
    struct consumers *cs = c->b->consumers;
    if (queue.n && !may(c, RIGHT_OBSERVE, queue)) return false;
    if (queue.n && !core_queue_find(c->b->core, queue, &j.only))
        return fail(c, PROBLEM_no_such_queue, "no queue has this name");
    if (!jobs_have_room(c)) return false;
    if (cs->asked >= ASKED_AT_ONCE) return fail(c, PROBLEM_overloaded, "%u such lists are being made", cs->asked);
    cs->asked++;
    if (j.only) {
        j.at = j.only;
        j.since = core_queue_since(c->b->core, j.only);
    }
    j.held = mem_zalloc((CONSUMERS_MAX + 1) * sizeof *j.held);
    job_start(c, &j.job);
    return true;
}

void api_consumers(struct call *c) {
    struct buf store = {0};
    slice queue;
    bool ok = param_text(c, "queue", &store, &queue) && ask_consumers(c, queue);
    buf_free(&store);
    if (!ok) reply_failure(c);
}
