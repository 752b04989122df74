#include "broker/waits.h"

#include "broker/broker_priv.h"
#include "broker/budget.h"
#include "broker/call.h"
#include "broker/shared.h"

#define OUTCOME_CHAINS 4096u
#define QUEUE_CHAINS   1024u
#define WAIT_MAGIC     0x77616974u
#define NOT_IN_HEAP    UINT32_MAX

struct poll_list {
    struct wait *head, *tail;
    bool woken; /* in the list of queues that became ready */
};

struct waits {
    struct poll_list absent[QUEUE_CHAINS]; /* of queues that are not there, by name */
    u32 absent_waits;
    struct poll_list *polls; /* [queue] */
    u32 polls_cap;
    u16 *woken; /* queues that became ready while somebody waited, oldest first: a ring */
    u32 woken_first, woken_count, woken_cap;
    bool starved;
    i64 starved_ms; /* when they were last looked at again */
    struct wait *outcomes[OUTCOME_CHAINS];
    u32 outcome_waits;
    struct wait *due_first, *due_last; /* their outcome is there */
    struct wait **heap;
    u32 heap_count, heap_cap;
};

struct waits *waits_new(void) {
    return mem_zalloc(sizeof(struct waits));
}

void waits_free(struct broker *b) {
    struct waits *ws = b->waits;
    if (!ws) return;
    while (ws->heap_count) wait_end(b, ws->heap[0]);
    mem_free(ws->polls);
    mem_free(ws->woken);
    mem_free(ws->heap);
    mem_free(ws);
}

bool waits_unfinished(const struct broker *b) {
    const struct waits *ws = b->waits;
    return ws->due_first || ws->woken_count || (ws->heap_count && ws->heap[0]->deadline_ms <= b->time.mono_ms);
}

u32 waits_count(const struct broker *b) {
    return b->waits->heap_count;
}

i64 waits_next_ms(const struct broker *b, i64 mono_ms, i64 at_most) {
    const struct waits *ws = b->waits;
    if (ws->heap_count == 0) return at_most;
    i64 left = ws->heap[0]->deadline_ms - mono_ms;
    return left < at_most ? left : at_most;
}

/* ---- heap by deadline */

static void heap_set(struct waits *ws, u32 at, struct wait *w) {
    ws->heap[at] = w;
    w->heap_at = at;
}

static void heap_sift(struct waits *ws, u32 at, struct wait *w) {
    while (at > 0 && w->deadline_ms < ws->heap[(at - 1) / 2]->deadline_ms) {
        heap_set(ws, at, ws->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (u32 child; (child = at * 2 + 1) < ws->heap_count; at = child) {
        if (child + 1 < ws->heap_count && ws->heap[child + 1]->deadline_ms < ws->heap[child]->deadline_ms) child++;
        if (w->deadline_ms <= ws->heap[child]->deadline_ms) break;
        heap_set(ws, at, ws->heap[child]);
    }
    heap_set(ws, at, w);
}

static void heap_add(struct waits *ws, struct wait *w) {
    if (ws->heap_count == ws->heap_cap) {
        ws->heap_cap = ws->heap_cap ? ws->heap_cap * 2 : 64;
        ws->heap = mem_realloc(ws->heap, ws->heap_cap * sizeof *ws->heap);
    }
    ws->heap_count++;
    heap_sift(ws, ws->heap_count - 1, w);
}

static void heap_drop(struct waits *ws, struct wait *w) {
    if (w->heap_at == NOT_IN_HEAP) return;
    CHECK(w->heap_at < ws->heap_count && ws->heap[w->heap_at] == w);
    struct wait *last = ws->heap[--ws->heap_count];
    if (last != w) heap_sift(ws, w->heap_at, last);
}

/* ---- lists */

struct wait *wait_new(struct broker *b, void *conn, void **user, i64 wait_ms, wait_answer *answer) {
    struct wait *w = mem_zalloc(sizeof *w);
    w->magic = WAIT_MAGIC;
    w->conn = conn;
    w->answer = answer;
    w->asked = traffic_now(b);
    w->who = b->caller;
    w->heap_at = NOT_IN_HEAP;
    ration_waits(b, &w->share, wait_ms == WAIT_NO_DEADLINE ? INT64_MAX : b->time.mono_ms + wait_ms);
    if (wait_ms != WAIT_NO_DEADLINE) {
        w->deadline_ms = b->time.mono_ms + wait_ms;
        heap_add(b->waits, w);
    }
    *user = w;
    return w;
}

struct wait *wait_of_user(void *user) {
    struct wait *w = user;
    CHECK(w && w->magic == WAIT_MAGIC);
    return w;
}

bool wait_hurry(struct broker *b, struct wait *w) {
    if (w->heap_at == NOT_IN_HEAP) return false;
    w->answer(b, w, true);
    shared_drop(b);
    return true;
}

static struct wait **outcome_chain(struct waits *ws, const struct ref *ref) {
    return &ws->outcomes[(ref->hash ^ ref->seq) % OUTCOME_CHAINS];
}

void wait_for_outcome(struct broker *b, struct wait *w, const struct ref *ref) {
    w->list = WAIT_OUTCOME;
    w->ref = *ref;
    struct wait **chain = outcome_chain(b->waits, ref);
    w->next = *chain;
    if (*chain) (*chain)->prev = w;
    *chain = w;
    b->waits->outcome_waits++;
}

static struct poll_list *polls_of(struct waits *ws, u16 queue) {
    if (queue >= ws->polls_cap) {
        u32 cap = queue + 64u;
        ws->polls = mem_realloc(ws->polls, cap * sizeof *ws->polls);
        memset(ws->polls + ws->polls_cap, 0, (cap - ws->polls_cap) * sizeof *ws->polls);
        ws->polls_cap = cap;
    }
    return &ws->polls[queue];
}

static void link_poll(struct poll_list *l, struct wait *w) {
    w->prev = l->tail;
    w->next = NULL;
    *(l->tail ? &l->tail->next : &l->head) = w;
    l->tail = w;
}

static void unlink_poll(struct poll_list *l, struct wait *w) {
    *(w->prev ? &w->prev->next : &l->head) = w->next;
    *(w->next ? &w->next->prev : &l->tail) = w->prev;
}

void wait_for_messages(struct broker *b, struct wait *w, u16 queue) {
    w->list = WAIT_MESSAGES;
    w->queue = queue;
    link_poll(polls_of(b->waits, queue), w);
}

static struct poll_list *absent_chain(struct broker *b, slice name) {
    return &b->waits->absent[core_hash(b->core, 0, name) % QUEUE_CHAINS];
}

void wait_for_queue(struct broker *b, struct wait *w, slice name) {
    w->list = WAIT_QUEUE;
    buf_slice_add(&w->name, name);
    link_poll(absent_chain(b, name), w);
    b->waits->absent_waits++;
}

void waits_queue_made(struct broker *b, u16 queue, slice name) {
    struct waits *ws = b->waits;
    if (ws->absent_waits == 0) return;
    struct poll_list *chain = absent_chain(b, name);
    for (struct wait *w = chain->head, *next; w; w = next) {
        next = w->next;
        if (!slice_eq(buf_slice(&w->name), name)) continue;
        unlink_poll(chain, w);
        ws->absent_waits--;
        wait_for_messages(b, w, queue);
    }
}

static void link_due(struct waits *ws, struct wait *w) {
    w->due = true;
    w->due_prev = ws->due_last;
    w->due_next = NULL;
    *(ws->due_last ? &ws->due_last->due_next : &ws->due_first) = w;
    ws->due_last = w;
}

static void unlink_due(struct waits *ws, struct wait *w) {
    if (!w->due) return;
    *(w->due_prev ? &w->due_prev->due_next : &ws->due_first) = w->due_next;
    *(w->due_next ? &w->due_next->due_prev : &ws->due_last) = w->due_prev;
    w->due = false;
}

static void unlink_outcome(struct waits *ws, struct wait *w) {
    *(w->prev ? &w->prev->next : outcome_chain(ws, &w->ref)) = w->next;
    if (w->next) w->next->prev = w->prev;
    ws->outcome_waits--;
}

static void unlink_list(struct broker *b, struct wait *w) {
    struct waits *ws = b->waits;
    if (w->list == WAIT_MESSAGES) unlink_poll(&ws->polls[w->queue], w);
    if (w->list == WAIT_OUTCOME) unlink_outcome(ws, w);
    if (w->list != WAIT_QUEUE) return;
    unlink_poll(absent_chain(b, buf_slice(&w->name)), w);
    ws->absent_waits--;
}

void wait_end(struct broker *b, struct wait *w) {
    CHECK(w->magic == WAIT_MAGIC);
    traffic_resumed(b, w->asked); /* what is answered next is this */
    ration_waited(&w->share);
    heap_drop(b->waits, w);
    unlink_due(b->waits, w);
    unlink_list(b, w);
    if (w->owner) *w->owner = NULL;
    buf_free(&w->name);
    buf_free(&w->consumer);
    w->magic = 0;
    mem_free(w);
}

/* ---- waking */

void waits_wake_outcome(struct broker *b, const struct ref *ref) {
    struct waits *ws = b->waits;
    if (ws->outcome_waits == 0) return;
    for (struct wait *w = *outcome_chain(ws, ref); w; w = w->next) {
        if (w->due || w->ref.hash != ref->hash || w->ref.seq != ref->seq) continue;
        link_due(ws, w);
    }
}

bool wait_goes_on(struct broker *b, const struct wait *w, bool over) {
    u32 message = over ? MESSAGE_NONE : core_message_find(b->core, w->ref.hash, w->ref.seq);
    struct message_view v;
    if (message == MESSAGE_NONE) return false;
    core_message_view(b->core, b->now, message, &v);
    return v.state == STATE_HELD;
}

/* A queue nobody waits for needs no waking: whoever comes looks himself. */
void waits_wake_queue(struct broker *b, u16 queue) {
    struct waits *ws = b->waits;
    if (queue >= ws->polls_cap || !ws->polls[queue].head || ws->polls[queue].woken) return;
    if (ws->woken_count == ws->woken_cap) {
        u32 cap = ws->woken_cap ? ws->woken_cap * 2 : 16;
        u16 *woken = mem_alloc(cap * sizeof *woken);
        for (u32 i = 0; i < ws->woken_count; i++) woken[i] = ws->woken[(ws->woken_first + i) % ws->woken_cap];
        mem_free(ws->woken);
        ws->woken = woken;
        ws->woken_cap = cap;
        ws->woken_first = 0;
    }
    ws->woken[(ws->woken_first + ws->woken_count++) % ws->woken_cap] = queue;
    ws->polls[queue].woken = true;
}

void waits_starve(struct broker *b) {
    b->waits->starved = true;
}

/* true: all who wait for this queue have what there is for them. */
static bool serve_queue(struct broker *b, u16 queue, struct budget *g) {
    const struct poll_list *l = &b->waits->polls[queue];
    while (l->head && core_next_ready(b->core, queue) != MESSAGE_NONE) {
        struct wait *w = l->head;
        if (budget_spent(g)) return false;
        w->answer(b, w, false);
        if (l->head == w) {
            waits_starve(b);
            return true;
        }
    }
    return true;
}

static void serve_polls(struct broker *b) {
    struct waits *ws = b->waits;
    struct budget g = budget_of(b, ANSWERS_US);
    while (ws->woken_count) { /* serving may wake further queues */
        u16 queue = ws->woken[ws->woken_first];
        if (!serve_queue(b, queue, &g)) return;
        ws->woken_first = (ws->woken_first + 1) % ws->woken_cap;
        ws->woken_count--;
        ws->polls[queue].woken = false;
    }
}

static void answer_outcomes(struct broker *b) {
    struct waits *ws = b->waits;
    struct budget g = budget_of(b, ANSWERS_US);
    while (ws->due_first && !budget_spent(&g)) {
        struct wait *w = ws->due_first;
        unlink_due(ws, w);
        w->answer(b, w, w->list != WAIT_OUTCOME); /* others wait for what there will never be */
    }
    shared_drop(b);
}

void waits_run(struct broker *b) {
    serve_polls(b);
    answer_outcomes(b); /* at_most_once: what was handed out is an outcome */
}

static void wake_starved(struct broker *b) {
    struct waits *ws = b->waits;
    for (u32 queue = 1; queue < ws->polls_cap; queue++) waits_wake_queue(b, (u16)queue);
    ws->starved = false;
    ws->starved_ms = b->time.mono_ms;
}

void waits_run_due(struct broker *b) {
    struct waits *ws = b->waits;
    struct budget g = budget_of(b, ANSWERS_US);
    if (ws->starved && b->time.mono_ms > ws->starved_ms) wake_starved(b);
    while (ws->heap_count && ws->heap[0]->deadline_ms <= b->time.mono_ms && !budget_spent(&g))
        ws->heap[0]->answer(b, ws->heap[0], true);
    shared_drop(b);
}

bool waits_tell_outcomes(struct broker *b, u16 queue) {
    struct budget g = budget_of(b, REQUEST_US);
    struct asked own = traffic_now(b);
    bool all = true;
    for (struct wait *w = b->waits->due_first, *next; w && all; w = next) {
        next = w->due_next;
        if (w->ref.queue != queue) continue;
        all = !budget_spent(&g);
        if (all) w->answer(b, w, true);
    }
    traffic_resumed(b, own);
    shared_drop(b);
    return all;
}

void waits_end_of_queue(struct broker *b, u16 queue) {
    struct waits *ws = b->waits;
    if (queue >= ws->polls_cap) return;
    for (struct wait *w; (w = ws->polls[queue].head);) {
        unlink_poll(&ws->polls[queue], w);
        w->list = WAIT_ALONE;
        w->queue = 0;
        link_due(ws, w);
    }
}

/* Waits of a task or a job have no right of their own: what was asked for is being done. What was sent is there, and its sender is told
 * no more than that: a refusal would say that nothing was applied. */
static void review(struct broker *b, struct wait *w) {
    if (w->right == RIGHT_OPEN) return;
    slice queue = w->list == WAIT_QUEUE ? buf_slice(&w->name) : SL("");
    if (w->list == WAIT_MESSAGES) queue = core_queue_name(b->core, w->queue);
    if (w->list == WAIT_OUTCOME) queue = core_queue_name(b->core, w->ref.queue);
    w->who = access_again(b, w->who);
    struct call c = {.b = b, .conn = w->conn, .who = w->who};
    if (w->list == WAIT_ALONE || may(&c, w->right, queue)) return;
    if (w->right == RIGHT_SEND) {
        failure_free(&c.failure);
        return w->answer(b, w, true);
    }
    wait_end(b, w);
    reply_failure(&c);
    failure_free(&c.failure);
}

void waits_review(struct broker *b) {
    struct waits *ws = b->waits;
    u32 count = ws->heap_count;
    struct wait **all = mem_alloc((count + 1) * sizeof *all);
    for (u32 i = 0; i < count; i++) all[i] = ws->heap[i]; /* who is told leaves the heap */
    for (u32 i = 0; i < count; i++) review(b, all[i]);
    mem_free(all);
}

void waits_answer_all(struct broker *b) {
    struct waits *ws = b->waits;
    while (ws->heap_count) ws->heap[0]->answer(b, ws->heap[0], true);
    shared_drop(b);
}
