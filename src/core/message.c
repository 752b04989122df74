/* Unsettled messages: where they stand, their groups, their heaps, and the room they have paid for. */
#include "base/pages.h"
#include "core/core_priv.h"

/* ---- storage: chunks that never move, numbers that are reused */

u32 message_new(struct core *c) {
    u32 no = c->message_free;
    if (no != MESSAGE_NONE) {
        c->message_free = message_at(c, no)->next;
    } else {
        no = c->messages_top++;
        u32 chunk = no >> MESSAGE_CHUNK_BITS;
        if (chunk == c->message_chunk_cap) {
            c->message_chunk_cap = c->message_chunk_cap ? c->message_chunk_cap * 2 : 64;
            c->message_chunks = mem_realloc(c->message_chunks, c->message_chunk_cap * sizeof *c->message_chunks);
        }
        if (chunk == c->message_chunk_count)
            c->message_chunks[c->message_chunk_count++] = pages_map(MESSAGE_CHUNK * sizeof(struct message));
    }
    *message_at(c, no) = (struct message){.place = PLACE_COUNT};
    c->message_count++;
    return no;
}

void message_free(struct core *c, u32 no) {
    struct message *m = message_at(c, no);
    CHECK(m->place == PLACE_COUNT);
    history_free(&m->history);
    *m = (struct message){.place = PLACE_COUNT, .next = c->message_free};
    c->message_free = no;
    c->message_count--;
}

struct ref message_ref(const struct core *c, const struct message *m) {
    return (struct ref){.hash = entry_of(c, m)->hash, .seq = m->seq, .queue = m->queue};
}

/* ---- heaps by when_ms, four children a node */

static void heap_set(struct core *c, struct heap *h, u32 at, struct heap_item item) {
    h->at[at] = item;
    message_at(c, item.message)->heap_at = at;
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

void heap_push(struct core *c, struct heap *h, u32 no) {
    if (h->count == h->cap) {
        h->cap = h->cap ? h->cap * 2 : 256;
        h->at = mem_realloc(h->at, h->cap * sizeof *h->at);
    }
    h->at[h->count] = (struct heap_item){.when_ms = message_at(c, no)->when_ms, .message = no};
    heap_up(c, h, h->count++);
}

void heap_remove(struct core *c, struct heap *h, u32 no) {
    u32 at = message_at(c, no)->heap_at;
    CHECK(at < h->count && h->at[at].message == no);
    struct heap_item last = h->at[--h->count];
    if (last.message == no) return;
    heap_set(c, h, at, last);
    heap_up(c, h, at);
    heap_down(c, h, message_at(c, last.message)->heap_at);
}

/* TTLs are rare: their heap holds copies, checked when they come up. */
void ttl_push(struct core *c, u32 no) {
    struct ttl_heap *h = &c->ttls;
    struct message *m = message_at(c, no);
    if (h->count == h->cap) {
        h->cap = h->cap ? h->cap * 2 : 64;
        h->at = mem_realloc(h->at, h->cap * sizeof *h->at);
    }
    u32 at = h->count++;
    while (at > 0 && m->ttl_ms < h->at[(at - 1) / 2].ttl_ms) {
        h->at[at] = h->at[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    h->at[at] = (struct ttl_item){.ttl_ms = m->ttl_ms, .seq = m->seq, .message = no};
}

bool ttl_pop_due(struct core *c, i64 delay_ms, struct ttl_item *out) {
    struct ttl_heap *h = &c->ttls;
    if (h->count == 0 || h->at[0].ttl_ms > delay_ms) return false;
    *out = h->at[0];
    struct ttl_item last = h->at[--h->count];
    u32 at = 0;
    for (;;) {
        u32 child = at * 2 + 1;
        if (child >= h->count) break;
        if (child + 1 < h->count && h->at[child + 1].ttl_ms < h->at[child].ttl_ms) child++;
        if (h->at[child].ttl_ms >= last.ttl_ms) break;
        h->at[at] = h->at[child];
        at = child;
    }
    if (h->count) h->at[at] = last;
    return true;
}

/* ---- places */

static struct heap *heap_of(struct core *c, enum place place) {
    if (place == PLACE_DELAYED) return &c->delays;
    if (place == PLACE_LEASED) return &c->leases;
    return NULL;
}

static void announce_ready(struct core *c, struct queue *q) {
    if (!c->sink || q->paused || q->announced) return;
    q->announced = true;
    c->sink->on_ready(c->sink->ctx, q->id);
}

void place_message(struct core *c, u32 no, enum place place, bool front) {
    struct message *m = message_at(c, no);
    struct queue *q = queue_at(c, m->queue);
    struct list *l = &q->places[place];
    INVARIANT(1, m->place == PLACE_COUNT);
    m->place = (u8)place;
    m->prev = front ? MESSAGE_NONE : l->tail;
    m->next = front ? l->head : MESSAGE_NONE;
    if (m->prev != MESSAGE_NONE) message_at(c, m->prev)->next = no;
    if (m->next != MESSAGE_NONE) message_at(c, m->next)->prev = no;
    if (front || l->head == MESSAGE_NONE) l->head = no;
    if (!front || l->tail == MESSAGE_NONE) l->tail = no;
    l->count++;
    struct heap *h = heap_of(c, place);
    if (h) heap_push(c, h, no);
    if (place == PLACE_READY) {
        m->when_ms = c->now.run_ms;
        announce_ready(c, q);
    }
}

void unplace_message(struct core *c, u32 no) {
    struct message *m = message_at(c, no);
    struct queue *q = queue_at(c, m->queue);
    INVARIANT(1, m->place < PLACE_COUNT);
    struct list *l = &q->places[m->place];
    struct heap *h = heap_of(c, (enum place)m->place);
    if (h) heap_remove(c, h, no);
    if (m->prev != MESSAGE_NONE)
        message_at(c, m->prev)->next = m->next;
    else
        l->head = m->next;
    if (m->next != MESSAGE_NONE)
        message_at(c, m->next)->prev = m->prev;
    else
        l->tail = m->prev;
    l->count--;
    m->place = PLACE_COUNT;
    if (l == &q->places[PLACE_READY] && l->count == 0) q->announced = false;
}

static struct group *group_at(const struct core *c, u32 entry) {
    return (struct group *)(uintptr_t)index_entry(&c->groups, entry)->at;
}

bool is_behind(const struct core *c, u32 no) {
    const struct message *m = message_at(c, no);
    return m->group != ENTRY_NONE && group_at(c, m->group)->head != no;
}

void place_pending(struct core *c, u32 no, bool front) {
    struct message *m = message_at(c, no);
    if (is_behind(c, no)) {
        place_message(c, no, PLACE_BEHIND, front);
    } else if (m->due_ms > c->now.delay_ms) {
        m->when_ms = m->due_ms;
        place_message(c, no, PLACE_DELAYED, front);
    } else {
        place_message(c, no, PLACE_READY, front);
    }
}

/* ---- FIFO groups: only the head may be handed out, so one is in flight at most and order holds */

static u64 group_hash(const struct core *c, u16 queue, slice name) {
    struct siphash_key key = c->options.hash_key;
    key.k0 ^= 0x67726f7570ull ^ ((u64)queue << 40);
    return siphash(&key, name.p, name.n);
}

static struct group *group_find(const struct core *c, u16 queue, slice name, u64 hash) {
    struct index_cursor cursor = {0};
    for (u32 e; (e = index_find(&c->groups, hash, &cursor)) != ENTRY_NONE;) {
        struct group *g = group_at(c, e);
        if (g->queue == queue && slice_eq(slice_of(g->name, g->name_len), name)) return g;
    }
    return NULL;
}

static struct group *group_make(struct core *c, u16 queue, slice name, u64 hash) {
    struct group *g = mem_alloc(sizeof *g + name.n);
    *g = (struct group){.hash = hash, .queue = queue, .name_len = (u16)name.n};
    memcpy(g->name, name.p, name.n);
    g->entry = index_insert(&c->groups, hash);
    index_entry(&c->groups, g->entry)->at = (u64)(uintptr_t)g;
    c->group_bytes += sizeof *g + name.n;
    c->group_count++;
    return g;
}

static void group_end(struct core *c, struct group *g) {
    c->group_bytes -= sizeof *g + g->name_len;
    c->group_count--;
    index_remove(&c->groups, g->entry);
    index_release(&c->groups, g->entry);
    mem_free(g);
}

/* By admission order, wherever in the journal it stood: a carried message comes after younger ones. */
void group_join(struct core *c, u32 no, slice name) {
    struct message *m = message_at(c, no);
    u64 hash = group_hash(c, m->queue, name);
    struct group *g = group_find(c, m->queue, name, hash);
    if (!g) g = group_make(c, m->queue, name, hash);
    m->group = g->entry;
    u32 after = g->tail;
    while (after != MESSAGE_NONE && message_at(c, after)->seq > m->seq) after = message_at(c, after)->group_prev;
    m->group_prev = after;
    m->group_next = after == MESSAGE_NONE ? g->head : message_at(c, after)->group_next;
    u32 old_head = g->head;
    if (m->group_prev == MESSAGE_NONE)
        g->head = no;
    else
        message_at(c, m->group_prev)->group_next = no;
    if (m->group_next == MESSAGE_NONE)
        g->tail = no;
    else
        message_at(c, m->group_next)->group_prev = no;
    if (old_head == MESSAGE_NONE || g->head == old_head) return;
    struct message *was = message_at(c, old_head);
    if (was->place != PLACE_READY && was->place != PLACE_DELAYED) return;
    unplace_message(c, old_head);
    place_pending(c, old_head, false);
}

void group_leave(struct core *c, u32 no) {
    struct message *m = message_at(c, no);
    if (m->group == ENTRY_NONE) return;
    struct group *g = group_at(c, m->group);
    bool was_head = g->head == no;
    if (m->group_prev != MESSAGE_NONE)
        message_at(c, m->group_prev)->group_next = m->group_next;
    else
        g->head = m->group_next;
    if (m->group_next != MESSAGE_NONE)
        message_at(c, m->group_next)->group_prev = m->group_prev;
    else
        g->tail = m->group_prev;
    m->group = ENTRY_NONE;
    u32 head = g->head;
    if (head == MESSAGE_NONE) {
        group_end(c, g);
        return;
    }
    if (!was_head || message_at(c, head)->place != PLACE_BEHIND) return;
    unplace_message(c, head);
    place_pending(c, head, false);
}

/* ---- P8: room paid for in advance */

#define ATTEMPT_BYTES  (48u + CONSUMER_BYTES_MAX)        /* what an attempt adds to the history */
#define LEASE_BYTES    (64u + CONSUMER_BYTES_MAX)        /* a lease record's body */
#define SETTLE_BYTES   (160u + 64u + RESULT_ALWAYS_FITS) /* a settle record's body beside key, request id and history */
#define HEADROOM_BYTES 65536u                            /* clocks, queues, expiries: written without asking */

u64 lease_room(const struct core *c) {
    return c->sink->cost(LEASE_BYTES) + ATTEMPT_BYTES;
}

u64 settlement_room(const struct core *c, const struct message *m) {
    return c->sink->cost(SETTLE_BYTES + m->key_len + m->request_id_len + m->history.len);
}

u64 admission_room(const struct core *c, size_t key, size_t request_id) {
    return lease_room(c) + c->sink->cost(SETTLE_BYTES + key + request_id);
}

void reserve_off(struct core *c, const struct message *m) {
    c->history_bytes -= m->history.cap;
    if (!c->sink) return;
    c->reserved_bytes -= settlement_room(c, m) + (m->lease_paid ? lease_room(c) : 0);
}

void reserve_on(struct core *c, const struct message *m) {
    c->history_bytes += m->history.cap;
    if (!c->sink) return;
    c->reserved_bytes += settlement_room(c, m) + (m->lease_paid ? lease_room(c) : 0);
}

bool room_for(const struct core *c, u64 bytes) {
    u64 need = c->reserved_bytes + bytes + HEADROOM_BYTES;
    return c->sink->room(c->sink->ctx) >= need || c->sink->need(c->sink->ctx, need);
}
