#include "broker/events.h"

#include "broker/broker_priv.h"

struct events {
    u64 newest, visible; /* numbers; visible: when somebody asked last */
    u64 *of_former;      /* [queue]: up to this number they are of a deleted queue that had its number */
    u32 formers_cap;
    struct event *ring; /* [number % EVENTS_KEPT] */
    void *memory;       /* that the ring lies in, from the first whole line of it on */
};

struct events *events_new(void) {
    struct events *e = mem_zalloc(sizeof *e);
    e->memory = mem_zalloc((EVENTS_KEPT + 1) * sizeof *e->ring);
    e->ring = (struct event *)(((uintptr_t)e->memory + sizeof *e->ring - 1) & ~(sizeof *e->ring - 1));
    return e;
}

void events_free(struct events *e) {
    mem_free(e->of_former);
    mem_free(e->memory);
    mem_free(e);
}

void events_end_of_queue(struct broker *b, u16 queue) {
    struct events *e = b->events;
    if (queue >= e->formers_cap) {
        u32 cap = e->formers_cap ? e->formers_cap : 64;
        while (cap <= queue) cap *= 2;
        e->of_former = mem_realloc(e->of_former, cap * sizeof *e->of_former);
        memset(e->of_former + e->formers_cap, 0, (cap - e->formers_cap) * sizeof *e->of_former);
        e->formers_cap = cap;
    }
    e->of_former[queue] = e->newest;
}

bool event_is_of(const struct broker *b, const struct event *e, u16 queue) {
    const struct events *es = b->events;
    return e->queue == queue && (queue >= es->formers_cap || e->number > es->of_former[queue]);
}

u32 event_tag(slice text) {
    if (text.n == 0) return 0;
    u32 tag = crc32c(0, text.p, text.n);
    return tag ? tag : 1;
}

#define TRACE_AT 3u /* 00-<trace id>-<span id>-<flags> */
#define TRACE_N  32u

slice trace_id_of(slice traceparent) {
    if (traceparent.n < TRACE_AT + TRACE_N + 1 || traceparent.p[TRACE_AT + TRACE_N] != '-') return SL("");
    return slice_of(traceparent.p + TRACE_AT, TRACE_N);
}

static u32 age_of(i64 ms) {
    if (ms < 0) return EVENT_NO_AGE;
    return ms < EVENT_NO_AGE ? (u32)ms : EVENT_NO_AGE - 1;
}

void events_note(struct broker *b, const struct happening *h) {
    struct events *e = b->events;
    if (*happening_text(h->kind) == 0) return;
    u64 number = ++e->newest;
    struct event *at =
        &e->ring[number % EVENTS_KEPT]; /* written there: a whole one would be made first, and then copied */
    at->number = number;
    at->after = b->after;
    at->at_ms = b->now.wall_ms;
    at->hash = h->ref.seq || h->key.n == 0 ? h->ref.hash : core_hash(b->core, h->queue, h->key);
    at->seq = h->ref.seq;
    at->subject = h->number;
    at->age_ms = age_of(h->age_ms);
    at->request_id = event_tag(h->request_id);
    at->trace = event_tag(trace_id_of(h->traceparent));
    at->queue = h->queue;
    at->kind = (u8)h->kind;
    at->detail = h->detail;
}

u64 events_oldest(const struct broker *b) {
    u64 newest = b->events->newest;
    return newest < EVENTS_KEPT ? 1 : newest - EVENTS_KEPT + 1;
}

/* Positions only grow from event to event. What is no longer kept is as good as visible: it cannot be told. */
u64 events_visible(const struct broker *b) {
    struct events *e = b->events;
    u64 low = events_oldest(b) - 1, high = e->newest;
    if (low < e->visible) low = e->visible;
    while (low < high) {
        u64 middle = high - (high - low) / 2;
        if (e->ring[middle % EVENTS_KEPT].after <= b->durable)
            low = middle;
        else
            high = middle - 1;
    }
    return e->visible = low;
}

const struct event *event_at(const struct broker *b, u64 number) {
    const struct event *e = &b->events->ring[number % EVENTS_KEPT];
    CHECK(e->number == number);
    return e;
}

const struct event *event_before(const struct broker *b, u64 before) {
    u64 number = before ? before - 1 : b->events->newest;
    return number && number >= events_oldest(b) ? event_at(b, number) : NULL;
}
