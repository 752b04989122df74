#include "broker/waits.h"

#include "broker/broker_priv.h"

#define OUTCOME_CHAINS 4096u
#define WAIT_MAGIC     0x77616974u

struct poll_list {
    struct wait *head, *tail;
};

struct waits {
    struct poll_list *polls; /* [queue] */
    u32 polls_cap;
    u16 *woken; /* queues that became ready */
    u32 woken_count, woken_cap;
    bool starved;
    struct wait *outcomes[OUTCOME_CHAINS];
    u32 outcome_waits;
    struct wait *due; /* their outcome is there */
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
    w->deadline_ms = b->time.mono_ms + wait_ms;
    heap_add(b->waits, w);
    *user = w;
    return w;
}

struct wait *wait_of_user(void *user) {
    struct wait *w = user;
    CHECK(w && w->magic == WAIT_MAGIC);
    return w;
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

void wait_for_messages(struct broker *b, struct wait *w, u16 queue) {
    struct poll_list *l = polls_of(b->waits, queue);
    w->list = WAIT_MESSAGES;
    w->queue = queue;
    w->prev = l->tail;
    if (l->tail)
        l->tail->next = w;
    else
        l->head = w;
    l->tail = w;
}

static void unlink_due(struct waits *ws, struct wait *w) {
    if (!w->due) return;
    struct wait **at = &ws->due;
    while (*at != w) at = &(*at)->due_next;
    *at = w->due_next;
}

static void unlink_list(struct waits *ws, struct wait *w) {
    if (w->prev) w->prev->next = w->next;
    if (w->next) w->next->prev = w->prev;
    if (w->list == WAIT_MESSAGES) {
        struct poll_list *l = &ws->polls[w->queue];
        if (l->head == w) l->head = w->next;
        if (l->tail == w) l->tail = w->prev;
    } else if (w->list == WAIT_OUTCOME) {
        struct wait **chain = outcome_chain(ws, &w->ref);
        if (*chain == w) *chain = w->next;
        ws->outcome_waits--;
    }
}

void wait_end(struct broker *b, struct wait *w) {
    CHECK(w->magic == WAIT_MAGIC);
    heap_drop(b->waits, w);
    unlink_due(b->waits, w);
    unlink_list(b->waits, w);
    if (w->owner) *w->owner = NULL;
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
        w->due = true;
        w->due_next = ws->due;
        ws->due = w;
    }
}

void waits_wake_queue(struct broker *b, u16 queue) {
    struct waits *ws = b->waits;
    if (ws->woken_count == ws->woken_cap) {
        ws->woken_cap = ws->woken_cap ? ws->woken_cap * 2 : 16;
        ws->woken = mem_realloc(ws->woken, ws->woken_cap * sizeof *ws->woken);
    }
    ws->woken[ws->woken_count++] = queue;
}

void waits_starve(struct broker *b) {
    b->waits->starved = true;
}

static void serve_queue(struct broker *b, u16 queue) {
    if (queue >= b->waits->polls_cap) return;
    const struct poll_list *l = &b->waits->polls[queue];
    while (l->head && core_next_ready(b->core, queue) != MESSAGE_NONE) {
        struct wait *w = l->head;
        w->answer(b, w, false);
        if (l->head == w) return waits_starve(b);
    }
}

static void answer_due(struct broker *b) {
    struct waits *ws = b->waits;
    while (ws->due) ws->due->answer(b, ws->due, true);
}

void waits_run(struct broker *b) {
    struct waits *ws = b->waits;
    answer_due(b);
    /* Serving may wake further queues: the count is looked at anew each time. */
    for (u32 i = 0; i < ws->woken_count; i++) serve_queue(b, ws->woken[i]);
    ws->woken_count = 0;
    answer_due(b); /* at_most_once: what was handed out is an outcome */
}

void waits_run_due(struct broker *b) {
    struct waits *ws = b->waits;
    for (u32 queue = 1; ws->starved && queue < ws->polls_cap; queue++)
        if (ws->polls[queue].head) waits_wake_queue(b, (u16)queue);
    ws->starved = false;
    while (ws->heap_count && ws->heap[0]->deadline_ms <= b->time.mono_ms) ws->heap[0]->answer(b, ws->heap[0], true);
}

void waits_end_of_queue(struct broker *b, u16 queue) {
    waits_run(b);
    if (queue >= b->waits->polls_cap) return;
    const struct poll_list *l = &b->waits->polls[queue];
    while (l->head) l->head->answer(b, l->head, true);
}

void waits_answer_all(struct broker *b) {
    struct waits *ws = b->waits;
    while (ws->heap_count) ws->heap[0]->answer(b, ws->heap[0], true);
}
