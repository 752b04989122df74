/* Unsettled messages: where they stand, their groups, their heaps, and the room they have paid for. */
#include "base/pages.h"
#include "core/state.h"

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
    *message_mut(c, no) = (struct message){.place = PLACE_COUNT};
    c->message_count++;
    return no;
}

static void message_free(struct core *c, u32 no) {
    struct message *m = message_mut(c, no);
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
    if (h->of_ttls)
        message_mut(c, item.message)->ttl_at = at + 1;
    else
        message_mut(c, item.message)->heap_at = at;
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

static void heap_push(struct core *c, struct heap *h, u32 no, i64 when_ms) {
    if (h->count == h->cap) {
        h->cap = h->cap ? h->cap * 2 : 256;
        h->at = mem_realloc(h->at, h->cap * sizeof *h->at);
    }
    h->at[h->count] = (struct heap_item){.when_ms = when_ms, .message = no};
    heap_up(c, h, h->count++);
}

static void heap_remove(struct core *c, struct heap *h, u32 at, u32 no) {
    CHECK(at < h->count && h->at[at].message == no);
    struct heap_item last = h->at[--h->count];
    if (last.message == no) return;
    heap_set(c, h, at, last);
    heap_up(c, h, at);
    const struct message *moved = message_at(c, last.message);
    heap_down(c, h, h->of_ttls ? moved->ttl_at - 1 : moved->heap_at);
}

/* Nobody could settle while the broker was down. */
void leases_rearm(struct core *c) {
    u32 count = c->leases.count;
    c->leases.count = 0;
    for (u32 i = 0; i < count; i++) {
        struct message *m = message_mut(c, c->leases.at[i].message);
        m->when_ms = c->now.run_ms + m->lease_ms;
        heap_push(c, &c->leases, c->leases.at[i].message, m->when_ms); /* the heap so far ends before i */
    }
}

/* ---- places */

static struct heap *heap_of(struct core *c, enum place place) {
    if (place == PLACE_DELAYED) return &c->delays;
    if (place == PLACE_LEASED) return &c->leases;
    return NULL;
}

/* What was not started yet has a time to live, if it was given one; under a lease that is decided when it starts. */
static bool awaits_ttl(const struct message *m, enum place place) {
    return m->ttl_ms && m->attempts == 0 && place != PLACE_LEASED;
}

static struct group *group_at(const struct core *c, u32 entry) {
    return (struct group *)(uintptr_t)index_entry(&c->groups, entry)->at;
}

static void announce_ready(struct core *c, struct queue *q) {
    if (!c->sink || q->paused || q->announced) return;
    q->announced = true;
    c->sink->on_ready(c->sink->ctx, q->id);
}

void place_message(struct core *c, u32 no, enum place place, bool front) {
    struct message *m = message_mut(c, no);
    struct queue *q = queue_mut(c, m->queue);
    struct list *l = &q->places[place];
    INVARIANT(1, m->place == PLACE_COUNT);
    m->place = (u8)place;
    m->prev = front ? MESSAGE_NONE : l->tail;
    m->next = front ? l->head : MESSAGE_NONE;
    if (m->prev != MESSAGE_NONE) message_mut(c, m->prev)->next = no;
    if (m->next != MESSAGE_NONE) message_mut(c, m->next)->prev = no;
    if (front || l->head == MESSAGE_NONE) l->head = no;
    if (!front || l->tail == MESSAGE_NONE) l->tail = no;
    l->count++;
    struct heap *h = heap_of(c, place);
    if (h) heap_push(c, h, no, m->when_ms);
    if (awaits_ttl(m, place)) heap_push(c, &c->ttls, no, m->ttl_ms);
    if (place == PLACE_LEASED && m->group != ENTRY_NONE) group_at(c, m->group)->leased = no;
    if (place == PLACE_READY) {
        m->when_ms = c->now.run_ms;
        announce_ready(c, q);
    }
}

void unplace_message(struct core *c, u32 no) {
    struct message *m = message_mut(c, no);
    struct queue *q = queue_mut(c, m->queue);
    INVARIANT(1, m->place < PLACE_COUNT);
    struct list *l = &q->places[m->place];
    struct heap *h = heap_of(c, (enum place)m->place);
    if (h) heap_remove(c, h, m->heap_at, no);
    if (m->ttl_at) heap_remove(c, &c->ttls, m->ttl_at - 1, no);
    m->ttl_at = 0;
    if (m->prev != MESSAGE_NONE)
        message_mut(c, m->prev)->next = m->next;
    else
        l->head = m->next;
    if (m->next != MESSAGE_NONE)
        message_mut(c, m->next)->prev = m->prev;
    else
        l->tail = m->prev;
    l->count--;
    if (m->place == PLACE_LEASED && m->group != ENTRY_NONE && group_at(c, m->group)->leased == no)
        group_at(c, m->group)->leased = MESSAGE_NONE;
    m->place = PLACE_COUNT;
    m->taken = false;
    if (l == &q->places[PLACE_READY] && l->count == 0) q->announced = false;
}

bool is_behind(const struct core *c, u32 no) {
    const struct message *m = message_at(c, no);
    if (m->group == ENTRY_NONE) return false;
    const struct group *g = group_at(c, m->group);
    return g->head != no || (g->leased != MESSAGE_NONE && g->leased != no);
}

static bool is_taken(const struct core *c, u32 no) {
    const struct message *m = message_at(c, no);
    return m->group != ENTRY_NONE && group_at(c, m->group)->took && group_at(c, m->group)->head != no;
}

void place_pending(struct core *c, u32 no, bool front) {
    struct message *m = message_mut(c, no);
    if (is_taken(c, no)) {
        place_message(c, no, PLACE_DEAD, front);
        m->taken = true;
    } else if (is_behind(c, no)) {
        place_message(c, no, PLACE_BEHIND, front);
    } else if (m->due_ms > c->now.delay_ms) {
        m->when_ms = m->due_ms;
        place_message(c, no, PLACE_DELAYED, front);
    } else {
        place_message(c, no, PLACE_READY, front);
    }
}

/* ---- FIFO groups: only the head may be handed out, so one is in flight at most and order holds.
 *
 * A message that is dead or held stays in the list and blocks it, unless it was parked: then it is a member without a
 * place, and comes back to the place its number gives it, before younger ones. If one of those is in flight just then, the
 * head waits for it. A dead head that takes its group along makes the others dead without a record of their own: they are
 * dead as long as their head is that. */

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

static void replace_pending(struct core *c, u32 no) {
    unplace_message(c, no);
    place_pending(c, no, false);
}

/* After its head changed, or what the head is: the others follow, and the head's turn may have come. */
static void group_refresh(struct core *c, struct group *g) {
    const struct message *head = message_at(c, g->head);
    bool takes = g->head != MESSAGE_NONE && head->takes && head->place == PLACE_DEAD;
    if (takes != g->took) {
        g->took = takes;
        for (u32 no = head->group_next; no != MESSAGE_NONE; no = message_at(c, no)->group_next)
            if (takes ? message_at(c, no)->place == PLACE_BEHIND : message_at(c, no)->taken) replace_pending(c, no);
    }
    if (g->head == MESSAGE_NONE) return;
    bool behind = is_behind(c, g->head), offered = head->place == PLACE_READY || head->place == PLACE_DELAYED;
    if (head->taken || (behind ? offered : head->place == PLACE_BEHIND)) replace_pending(c, g->head);
}

/* By admission order, wherever in the journal it stood: a carried message comes after younger ones. */
static void group_link(struct core *c, struct group *g, u32 no) {
    struct message *m = message_mut(c, no);
    u32 after = g->tail, old_head = g->head;
    if (old_head != MESSAGE_NONE && m->seq < message_at(c, old_head)->seq) after = MESSAGE_NONE;
    while (after != MESSAGE_NONE && message_at(c, after)->seq > m->seq) after = message_at(c, after)->group_prev;
    m->group_prev = after;
    m->group_next = after == MESSAGE_NONE ? g->head : message_at(c, after)->group_next;
    if (m->group_prev == MESSAGE_NONE)
        g->head = no;
    else
        message_mut(c, m->group_prev)->group_next = no;
    if (m->group_next == MESSAGE_NONE)
        g->tail = no;
    else
        message_mut(c, m->group_next)->group_prev = no;
    if (old_head == MESSAGE_NONE || g->head == old_head) return;
    const struct message *was = message_at(c, old_head);
    if (was->place == PLACE_READY || was->place == PLACE_DELAYED) replace_pending(c, old_head);
    group_refresh(c, g);
}

static void group_unlink(struct core *c, struct group *g, u32 no) {
    struct message *m = message_mut(c, no);
    if (m->group_prev != MESSAGE_NONE)
        message_mut(c, m->group_prev)->group_next = m->group_next;
    else
        g->head = m->group_next;
    if (m->group_next != MESSAGE_NONE)
        message_mut(c, m->group_next)->group_prev = m->group_prev;
    else
        g->tail = m->group_prev;
    m->group_prev = m->group_next = MESSAGE_NONE;
}

void group_join(struct core *c, u32 no, slice name, bool parked) {
    struct message *m = message_mut(c, no);
    u64 hash = group_hash(c, m->queue, name);
    struct group *g = group_find(c, m->queue, name, hash);
    if (!g) g = group_make(c, m->queue, name, hash);
    m->group = g->entry;
    m->parked = parked;
    g->members++;
    if (!parked) group_link(c, g, no);
}

static void group_leave(struct core *c, u32 no) {
    struct message *m = message_mut(c, no);
    if (m->group == ENTRY_NONE) return;
    struct group *g = group_at(c, m->group);
    if (!m->parked) group_unlink(c, g, no);
    m->group = ENTRY_NONE;
    if (--g->members == 0)
        group_end(c, g);
    else
        group_refresh(c, g);
}

bool is_group_head(const struct message *m) {
    return m->group != ENTRY_NONE && !m->parked && m->group_prev == MESSAGE_NONE;
}

u32 group_waiting(const struct core *c, const struct message *m) {
    u32 n = 0;
    for (u32 next = m->group_next; next != MESSAGE_NONE; next = message_at(c, next)->group_next)
        if (message_at(c, next)->place == PLACE_BEHIND || message_at(c, next)->taken) n++;
    return n;
}

u8 message_traits(const struct message *m) {
    return (u8)((m->doubt ? TRAIT_DOUBT : 0) | (m->reconcile ? TRAIT_RECONCILE : 0) | (m->lookup ? TRAIT_LOOKUP : 0) |
                (m->parked ? TRAIT_PARKED : 0) | (m->takes ? TRAIT_TAKES : 0) | (m->conflict ? TRAIT_CONFLICT : 0));
}

static void park(struct core *c, u32 no, bool parked) {
    struct message *m = message_mut(c, no);
    if (m->group == ENTRY_NONE || m->parked == parked) return;
    m->parked = parked;
    if (parked)
        group_unlink(c, group_at(c, m->group), no);
    else
        group_link(c, group_at(c, m->group), no);
}

static void set_conflict(struct core *c, struct message *m, bool conflict) {
    if (m->conflict == conflict) return;
    m->conflict = conflict;
    struct queue *q = queue_mut(c, m->queue);
    q->conflict_copies += conflict ? 1 : (u64)-1;
}

void place_as(struct core *c, u32 no, enum state state, u8 traits, bool front) {
    struct message *m = message_mut(c, no);
    m->doubt = traits & TRAIT_DOUBT;
    m->reconcile = traits & TRAIT_RECONCILE;
    m->takes = traits & TRAIT_TAKES;
    set_conflict(c, m, traits & TRAIT_CONFLICT);
    park(c, no, traits & TRAIT_PARKED);
    if (state == STATE_PENDING)
        place_pending(c, no, front);
    else
        place_message(c, no,
                      state == STATE_LEASED ? PLACE_LEASED
                      : state == STATE_HELD ? PLACE_HELD
                                            : PLACE_DEAD,
                      false);
    if (m->group != ENTRY_NONE) group_refresh(c, group_at(c, m->group));
}

void message_end(struct core *c, u32 no) {
    struct message *m = message_mut(c, no);
    struct queue *q = queue_mut(c, m->queue);
    reserve_off(c, m);
    unplace_message(c, no);
    group_leave(c, no);
    set_conflict(c, m, false);
    q->unsettled--;
    q->unsettled_bytes -= m->payload_len;
    if (m->refused) {
        q->refused_copies--;
        q->refused_bytes -= m->payload_len;
    }
    message_free(c, no);
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

static bool room_beside(const struct core *c, u64 bytes, u64 headroom) {
    u64 need = c->reserved_bytes + bytes + headroom;
    return c->sink->room(c->sink->ctx) >= need || c->sink->need(c->sink->ctx, need);
}

bool room_for(const struct core *c, u64 bytes) {
    return room_beside(c, bytes, HEADROOM_BYTES);
}

bool room_for_count(const struct core *c, u64 bytes) {
    return room_beside(c, bytes, HEADROOM_BYTES / 2);
}

bool room_for_deed(const struct core *c, u64 bytes) {
    return room_beside(c, bytes, HEADROOM_BYTES / 4);
}
