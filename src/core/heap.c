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

/* Both put the item where it belongs, from a place that is free; what is in its way moves there. */
static void heap_up(struct core *c, struct heap *h, u32 at, struct heap_item item) {
    for (u32 above; at > 0 && item.when_ms < h->at[above = (at - 1) / 4].when_ms; at = above)
        heap_set(c, h, at, h->at[above]);
    heap_set(c, h, at, item);
}

static void heap_down(struct core *c, struct heap *h, u32 at, struct heap_item item) {
    for (u32 first; (first = at * 4 + 1) < h->count;) {
        u32 least = first, behind = first + 4 < h->count ? first + 4 : h->count;
        for (u32 i = first + 1; i < behind; i++)
            if (h->at[i].when_ms < h->at[least].when_ms) least = i;
        if (h->at[least].when_ms >= item.when_ms) break;
        heap_set(c, h, at, h->at[least]);
        at = least;
    }
    heap_set(c, h, at, item);
}

void heap_push(struct core *c, struct heap *h, u32 no, i64 when_ms) {
    if (h->count == h->cap) {
        h->cap = h->cap ? h->cap * 2 : 4; /* there may be as many of them as there are groups, with one item each */
        h->at = mem_realloc(h->at, h->cap * sizeof *h->at);
    }
    if (h->count == h->top) h->top++;
    heap_up(c, h, h->count++, (struct heap_item){.when_ms = when_ms, .message = no});
}

void heap_remove(struct core *c, struct heap *h, u32 no) {
    u32 at = *place_in(c, h, no);
    CHECK(at < h->count && h->at[at].message == no);
    struct heap_item last = h->at[--h->count];
    if (last.message == no) return;
    if (at > 0 && last.when_ms < h->at[(at - 1) / 4].when_ms)
        heap_up(c, h, at, last);
    else
        heap_down(c, h, at, last);
}
