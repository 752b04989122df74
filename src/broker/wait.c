/* Requests that are answered later. A wait is in the heap by its deadline, and in one list: its queue's polls, or the
 * chain of those who wait for the same outcome; or it waits for a task. What the core announces in the middle of a decision is only marked; the
 * answers are made at the end of the turn. */
#include "broker/broker_priv.h"

/* ---- heap by deadline */

static void heap_set(struct broker *b, u32 at, struct wait *w) {
    b->heap[at] = w;
    w->heap_at = at;
}

static void heap_sift(struct broker *b, u32 at, struct wait *w) {
    while (at > 0 && w->deadline_ms < b->heap[(at - 1) / 2]->deadline_ms) {
        heap_set(b, at, b->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (u32 child; (child = at * 2 + 1) < b->heap_count; at = child) {
        if (child + 1 < b->heap_count && b->heap[child + 1]->deadline_ms < b->heap[child]->deadline_ms) child++;
        if (w->deadline_ms <= b->heap[child]->deadline_ms) break;
        heap_set(b, at, b->heap[child]);
    }
    heap_set(b, at, w);
}

static void heap_add(struct broker *b, struct wait *w) {
    if (b->heap_count == b->heap_cap) {
        b->heap_cap = b->heap_cap ? b->heap_cap * 2 : 64;
        b->heap = mem_realloc(b->heap, b->heap_cap * sizeof *b->heap);
    }
    b->heap_count++;
    heap_sift(b, b->heap_count - 1, w);
}

static void heap_drop(struct broker *b, struct wait *w) {
    struct wait *last = b->heap[--b->heap_count];
    if (last != w) heap_sift(b, w->heap_at, last);
}

/* ---- lists */

struct wait *wait_new(struct broker *b, enum wait_kind kind, void *conn, void **user, i64 wait_ms) {
    struct wait *w = mem_zalloc(sizeof *w);
    w->kind = kind;
    w->conn = conn;
    w->deadline_ms = b->time.mono_ms + wait_ms;
    heap_add(b, w);
    *user = w;
    return w;
}

static struct wait **outcome_chain(struct broker *b, const struct ref *ref) {
    return &b->outcomes[(ref->hash ^ ref->seq) % OUTCOME_CHAINS];
}

void wait_for_outcome(struct broker *b, struct wait *w, const struct ref *ref) {
    w->ref = *ref;
    struct wait **chain = outcome_chain(b, ref);
    w->next = *chain;
    if (*chain) (*chain)->prev = w;
    *chain = w;
    b->outcome_waits++;
}

void wait_for_messages(struct broker *b, struct wait *w, u16 queue) {
    if (queue >= b->polls_cap) {
        u32 cap = queue + 64u;
        b->polls = mem_realloc(b->polls, cap * sizeof *b->polls);
        memset(b->polls + b->polls_cap, 0, (cap - b->polls_cap) * sizeof *b->polls);
        b->polls_cap = cap;
    }
    struct wait_list *l = &b->polls[queue];
    w->queue = queue;
    w->prev = l->tail;
    if (l->tail)
        l->tail->next = w;
    else
        l->head = w;
    l->tail = w;
}

static void unlink_due(struct broker *b, struct wait *w) {
    if (!w->due) return;
    struct wait **at = &b->due;
    while (*at != w) at = &(*at)->due_next;
    *at = w->due_next;
}

void wait_end(struct broker *b, struct wait *w) {
    heap_drop(b, w);
    unlink_due(b, w);
    if (w->prev) w->prev->next = w->next;
    if (w->next) w->next->prev = w->prev;
    if (w->kind == WAIT_TASK) {
        task_detach(w->task);
    } else if (w->kind == WAIT_POLL) {
        struct wait_list *l = &b->polls[w->queue];
        if (l->head == w) l->head = w->next;
        if (l->tail == w) l->tail = w->prev;
    } else {
        struct wait **chain = outcome_chain(b, &w->ref);
        if (*chain == w) *chain = w->next;
        b->outcome_waits--;
    }
    buf_free(&w->consumer);
    mem_free(w);
}

/* ---- waking */

void wait_wake_outcome(struct broker *b, const struct ref *ref) {
    if (b->outcome_waits == 0) return;
    for (struct wait *w = *outcome_chain(b, ref); w; w = w->next) {
        if (w->due || w->ref.hash != ref->hash || w->ref.seq != ref->seq) continue;
        w->due = true;
        w->due_next = b->due;
        b->due = w;
    }
}

void wait_wake_queue(struct broker *b, u16 queue) {
    if (b->woken_count == b->woken_cap) {
        b->woken_cap = b->woken_cap ? b->woken_cap * 2 : 16;
        b->woken = mem_realloc(b->woken, b->woken_cap * sizeof *b->woken);
    }
    b->woken[b->woken_count++] = queue;
}

static void answer(struct broker *b, struct wait *w) {
    switch (w->kind) {
    case WAIT_POLL:
        answer_poll(b, w, true);
        break;
    case WAIT_SEND:
        answer_send(b, w);
        break;
    case WAIT_RESULT:
        answer_result(b, w);
        break;
    case WAIT_TASK:
        answer_task(b, w);
        break;
    }
}

static void serve_queue(struct broker *b, u16 queue) {
    if (queue >= b->polls_cap) return;
    struct wait_list *l = &b->polls[queue];
    while (l->head && core_next_ready(b->core, queue) != MESSAGE_NONE) {
        struct wait *w = l->head;
        answer_poll(b, w, false);
        if (l->head != w) continue;
        b->starved = true; /* nothing could be leased for lack of room: looked at again with the clock */
        return;
    }
}

void wait_run(struct broker *b) {
    while (b->due) answer(b, b->due);
    /* Serving may wake further queues: the count is looked at anew each time. */
    for (u32 i = 0; i < b->woken_count; i++) serve_queue(b, b->woken[i]);
    b->woken_count = 0;
    while (b->due) answer(b, b->due); /* at_most_once: what was handed out is an outcome */
}

void wait_run_due(struct broker *b) {
    for (u32 queue = 1; b->starved && queue < b->polls_cap; queue++)
        if (b->polls[queue].head) wait_wake_queue(b, (u16)queue);
    b->starved = false;
    while (b->heap_count && b->heap[0]->deadline_ms <= b->time.mono_ms) answer(b, b->heap[0]);
}

void wait_end_all(struct broker *b) {
    while (b->heap_count) answer(b, b->heap[0]);
}
