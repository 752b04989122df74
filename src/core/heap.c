/* Heaps of messages, least first, four children a node. A message knows where in each of them it is. */
#include "core/state.h"

static u32 *place_in(struct core *c, const struct heap *h, u32 no) {
    struct message *m = message_mut(c, no);
    switch (h->kind) {
    case HEAP_TTL:
        return &m->ttl_at;
    case HEAP_LATE:
        return &m->group_prev;
    case HEAP_DUE:
        break;
    }
    return &m->heap_at;
}

static void heap_set(struct core *c, struct heap *h, u32 at, struct heap_item item) {
    h->at[at] = item;
    *place_in(c, h, item.message) = at;
}

static void heap_up(struct core *c, struct heap *h, u32 at) {
    struct heap_item item = h->at[at];
    while (at > 0 && item.when_ms < h->at[(at - 1) / 4].when_ms) {
        heap_set(c, h, at, h->at[(at - 1) / 4]);
        at = (at - 1) / 4;
    }
    heap_set(c, h, at, item);
}

static void heap_down(struct core *c, struct heap *h, u32 at) {
    struct heap_item item = h->at[at];
    for (;;) {
        u32 first = at * 4 + 1;
        if (first >= h->count) break;
        u32 least = first;
        for (u32 i = first + 1; i < first + 4 && i < h->count; i++)
            if (h->at[i].when_ms < h->at[least].when_ms) least = i;
        if (h->at[least].when_ms >= item.when_ms) break;
        heap_set(c, h, at, h->at[least]);
        at = least;
    }
    heap_set(c, h, at, item);
}

void heap_push(struct core *c, struct heap *h, u32 no, i64 when_ms) {
    if (h->count == h->cap) {
        h->cap = h->cap ? h->cap * 2 : 256;
        h->at = mem_realloc(h->at, h->cap * sizeof *h->at);
    }
    h->at[h->count] = (struct heap_item){.when_ms = when_ms, .message = no};
    heap_up(c, h, h->count++);
}

void heap_remove(struct core *c, struct heap *h, u32 no) {
    u32 at = *place_in(c, h, no);
    CHECK(at < h->count && h->at[at].message == no);
    struct heap_item last = h->at[--h->count];
    if (last.message == no) return;
    heap_set(c, h, at, last);
    heap_up(c, h, at);
    heap_down(c, h, *place_in(c, h, last.message));
}
