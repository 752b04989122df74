/* Unsettled messages: their memory, and where they stand. */
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
    history_retire(&m->history, &c->spares);
    m->seq = 0; /* nobody's; the rest is cleared when it is taken again */
    m->place = PLACE_COUNT;
    m->next = c->message_free;
    c->message_free = no;
    c->message_count--;
}

struct ref message_ref(const struct core *c, const struct message *m) {
    return (struct ref){.hash = entry_of(c, m)->hash, .seq = m->seq, .queue = m->queue};
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

void announce_ready(struct core *c, struct queue *q, enum place place) {
    if (!c->sink || q->paused || q->announced[place]) return;
    q->announced[place] = true;
    c->sink->on_ready(c->sink->ctx, q->id);
}

void place_message(struct core *c, u32 no, enum place place, bool front) {
    struct message *m = message_mut(c, no);
    struct queue *q = queue_mut(c, m->queue);
    struct list *l = &q->places[place];
    INVARIANT(1, m->place == PLACE_COUNT);
    m->place = (u8)place & 15u;
    m->prev = front ? MESSAGE_NONE : l->tail;
    m->next = front ? l->head : MESSAGE_NONE;
    if (m->prev != MESSAGE_NONE) message_mut(c, m->prev)->next = no;
    if (m->next != MESSAGE_NONE) message_mut(c, m->next)->prev = no;
    if (front || l->head == MESSAGE_NONE) l->head = no;
    if (!front || l->tail == MESSAGE_NONE) l->tail = no;
    l->count++;
    if (c->purges) purges_placed(c, m, place, front);
    struct heap *h = heap_of(c, place);
    if (h) heap_push(c, h, no, m->when_ms);
    if (awaits_ttl(m, place)) heap_push(c, &c->ttls, no, m->ttl_ms);
    if (place == PLACE_LEASED) group_leased(c, m, no);
    if (place == PLACE_BEHIND) group_placed(c, m, true);
    if (place == PLACE_HELD || place == PLACE_DEAD) m->when_ms = c->now.run_ms;
    if (is_ready(place)) {
        m->when_ms = c->now.run_ms;
        m->heap_at = HEAP_NONE;
        announce_ready(c, q, place);
    }
}

void ready_since(struct core *c, u32 no, i64 run_ms) {
    struct message *m = message_mut(c, no);
    CHECK(is_ready(m->place) && m->heap_at == HEAP_NONE);
    m->when_ms = run_ms;
    heap_push(c, &queue_mut(c, m->queue)->waited, no, run_ms);
}

void unplace_message(struct core *c, u32 no) {
    struct message *m = message_mut(c, no);
    struct queue *q = queue_mut(c, m->queue);
    INVARIANT(1, m->place < PLACE_COUNT);
    if (c->purges) purges_unplaced(c, m, no);
    struct list *l = &q->places[m->place];
    struct heap *h = heap_of(c, (enum place)m->place);
    if (h) heap_remove(c, h, no);
    if (is_ready(m->place) && m->heap_at != HEAP_NONE) heap_remove(c, &q->waited, no);
    if (awaits_ttl(m, (enum place)m->place)) heap_remove(c, &c->ttls, no);
    if (m->prev != MESSAGE_NONE)
        message_mut(c, m->prev)->next = m->next;
    else
        l->head = m->next;
    if (m->next != MESSAGE_NONE)
        message_mut(c, m->next)->prev = m->prev;
    else
        l->tail = m->prev;
    l->count--;
    if (m->place == PLACE_LEASED) group_leased(c, m, MESSAGE_NONE);
    if (m->place == PLACE_BEHIND || m->taken) group_placed(c, m, false);
    if (is_ready(m->place) && l->count == 0) q->announced[m->place] = false;
    m->place = PLACE_COUNT;
    m->taken = false;
}

void place_pending(struct core *c, u32 no, bool front) {
    struct message *m = message_mut(c, no);
    if (is_taken(c, no)) {
        place_message(c, no, PLACE_DEAD, front);
        m->taken = true;
        group_placed(c, m, true);
    } else if (is_behind(c, no)) {
        place_message(c, no, PLACE_BEHIND, front);
    } else if (m->due_ms > c->now.delay_ms) {
        m->when_ms = m->due_ms;
        place_message(c, no, PLACE_DELAYED, front);
    } else {
        place_message(c, no, m->reconcile ? PLACE_LOOKUP : PLACE_READY, front);
    }
}

u8 message_traits(const struct message *m) {
    return (u8)((m->doubt ? TRAIT_DOUBT : 0) | (m->reconcile ? TRAIT_RECONCILE : 0) | (m->lookup ? TRAIT_LOOKUP : 0) |
                (m->parked ? TRAIT_PARKED : 0) | (m->takes ? TRAIT_TAKES : 0) | (m->conflict ? TRAIT_CONFLICT : 0));
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
    group_park(c, no, traits & TRAIT_PARKED);
    if (state == STATE_PENDING)
        place_pending(c, no, front);
    else
        place_message(c, no,
                      state == STATE_LEASED ? PLACE_LEASED
                      : state == STATE_HELD ? PLACE_HELD
                                            : PLACE_DEAD,
                      false);
    group_follow(c, no);
}

void message_end(struct core *c, u32 no) {
    struct message *m = message_mut(c, no);
    struct queue *q = queue_mut(c, m->queue);
    reserve_off(c, m);
    needed_over(&c->needed, m->pos);
    unplace_message(c, no);
    group_leave(c, no);
    set_conflict(c, m, false);
    q->unsettled--;
    q->unsettled_bytes -= m->payload_len;
    if (m->refused) {
        q->refused_copies--;
        q->refused_bytes -= m->payload_len;
    } else {
        account_of(c, q)->pending--;
    }
    message_free(c, no);
}
