/* Looking things up: by hash, by number, in a queue's order, or all there is. Changes nothing. */
#include "core/core_priv.h"

void core_hashes(const struct core *c, u16 queue, const slice *keys, size_t count, u64 *out) {
    struct siphash_key k = c->options.hash_key;
    k.k1 ^= (u64)queue << 48;
    siphash_each(&k, keys, count, out);
}

void core_fingerprints(const struct core *c, const slice *payloads, size_t count, u64 *out) {
    struct siphash_key k = c->options.hash_key;
    k.k0 ^= 0x7061796c6f6164ull;
    siphash_each(&k, payloads, count, out);
}

u64 core_hash(const struct core *c, u16 queue, slice key) {
    u64 hash;
    core_hashes(c, queue, &key, 1, &hash);
    return hash;
}

u64 core_fingerprint(const struct core *c, slice payload) {
    u64 print;
    core_fingerprints(c, &payload, 1, &print);
    return print;
}

void core_near(const struct core *c, u64 hash) {
    index_prefetch(&c->keys, hash);
}

static inline u32 prefetch(const struct core *c, const u64 *hashes, u32 count, bool arrivals, struct ahead *out) {
    u32 entries[AHEAD_MAX];
    CHECK(count <= AHEAD_MAX);
    for (u32 i = 0; i < count; i++) index_prefetch(&c->keys, hashes[i]);
    for (u32 i = 0; i < count; i++) {
        entries[i] = index_guess(&c->keys, hashes[i]);
        if (entries[i] != ENTRY_NONE) near(index_entry(&c->keys, entries[i]));
    }
    for (u32 i = 0; i < count; i++) {
        if (entries[i] == ENTRY_NONE) continue;
        const struct entry *e = index_entry(&c->keys, entries[i]);
        if (arrivals) tally_prefetch(c, entries[i], e->has_arrivals);
        if (e->kind != ENTRY_LIVE) continue;
        const char *m = (const char *)message_at(c, (u32)e->at);
        near(m);
        near(m + 64);
    }
    u32 n = 0;
    for (u32 i = 0; i < count; i++) {
        out->settled[i] = true;
        if (entries[i] == ENTRY_NONE) continue;
        const struct entry *e = index_entry(&c->keys, entries[i]);
        out->settled[i] = e->kind != ENTRY_LIVE;
        out->pos[n] = e->kind == ENTRY_LIVE ? message_at(c, (u32)e->at)->pos : e->at;
        out->bytes[n++] = (u32)entry_size(e);
        if (!arrivals || !e->has_arrivals || tally_find(c, entries[i])) continue;
        out->pos[n] = arrivals_pos(c, entries[i]);
        out->bytes[n++] = ARRIVALS_BYTES;
    }
    return n;
}

u32 core_prefetch(const struct core *c, const u64 *hashes, u32 count, struct ahead *out) {
    return prefetch(c, hashes, count, true, out);
}

u32 core_prefetch_to_settle(const struct core *c, const u64 *hashes, u32 count, struct ahead *out) {
    return prefetch(c, hashes, count, false, out);
}

static inline void found_entry(const struct core *c, u32 no, bool arrivals, struct found *out) {
    const struct entry *e = index_entry(&c->keys, no);
    *out = (struct found){.entry = no, .queue = e->queue, .size_hint = (u32)entry_size(e)};
    out->message = e->kind == ENTRY_LIVE ? (u32)e->at : MESSAGE_NONE;
    out->pos = e->kind == ENTRY_LIVE ? message_at(c, (u32)e->at)->pos : e->at;
    if (arrivals) out->arrivals_pos = arrivals_pos(c, no);
}

static inline bool find(const struct core *c, u64 hash, struct core_cursor *cursor, bool arrivals, struct found *out) {
    struct index_cursor at = {.slot = cursor->slot, .phase = cursor->phase};
    u32 no;
    while ((no = index_find(&c->keys, hash, &at)) != ENTRY_NONE) {
        if (entry_forgotten(c, index_entry(&c->keys, no))) continue;
        found_entry(c, no, arrivals, out);
        break;
    }
    cursor->slot = at.slot;
    cursor->phase = at.phase;
    return no != ENTRY_NONE;
}

bool core_find(const struct core *c, u64 hash, struct core_cursor *cursor, struct found *out) {
    return find(c, hash, cursor, true, out);
}

bool core_find_to_settle(const struct core *c, u64 hash, struct core_cursor *cursor, struct found *out) {
    return find(c, hash, cursor, false, out);
}

enum walk_verdict core_walk(const struct core *c, u16 queue, i64 since_run_ms, u32 look_at, u32 *cursor,
                            struct found *out) {
    for (; look_at > 0; look_at--) {
        if (++*cursor >= c->keys.entries_top) return WALK_END;
        const struct entry *e = index_entry(&c->keys, *cursor);
        if (e->queue != queue || (e->kind != ENTRY_LIVE && e->kind != ENTRY_SETTLED)) continue;
        if (entry_forgotten(c, e) || (e->kind == ENTRY_SETTLED && (i64)e->settled_run_ms < since_run_ms)) continue;
        found_entry(c, *cursor, true, out);
        return WALK_FOUND;
    }
    return WALK_MORE;
}

u32 core_message_find(const struct core *c, u64 hash, u64 seq) {
    struct index_cursor cursor = {0};
    for (u32 no; (no = index_find(&c->keys, hash, &cursor)) != ENTRY_NONE;) {
        const struct entry *e = index_entry(&c->keys, no);
        if (e->kind == ENTRY_LIVE && message_at(c, (u32)e->at)->seq == seq) return (u32)e->at;
    }
    return MESSAGE_NONE;
}

enum state state_at(enum place place) {
    switch (place) {
    case PLACE_LEASED:
        return STATE_LEASED;
    case PLACE_HELD:
        return STATE_HELD;
    case PLACE_DEAD:
        return STATE_DEAD;
    default:
        return STATE_PENDING;
    }
}

enum state message_state(const struct message *m) {
    return state_at((enum place)m->place);
}

void core_message_view(const struct core *c, struct core_now now, u32 message, struct message_view *out) {
    const struct message *m = message_at(c, message);
    *out = (struct message_view){
        .ref = message_ref(c, m),
        .state = message_state(m),
        .ended = m->ended,
        .started = m->started,
        .delayed = m->place == PLACE_DELAYED,
        .behind = m->place == PLACE_BEHIND,
        .doubt = message_doubt(m),
        .reconcile = m->reconcile,
        .lookup = m->lookup,
        .parked = m->parked,
        .takes = m->takes,
        .taken = m->taken,
        .conflict = m->conflict,
        .refused = m->refused,
        .generation = m->generation,
        .lease_ms = m->lease_ms,
        .attempts = m->attempts,
        .failures = m->failures,
        .unknowns = m->unknowns,
        .crashes = m->crashes,
        .lookups = (u16)m->lookups,
        .fence = m->fence,
        .due_ms = m->due_ms,
        .lease_left_ms = m->place == PLACE_LEASED ? m->when_ms - now.run_ms : 0,
        .pos = m->pos,
        .size_hint = (u32)entry_size(entry_of(c, m)),
        .history = slice_of(m->history.p, m->history.len),
    };
}

enum state core_message_state(const struct core *c, u32 message) {
    return message_state(message_at(c, message));
}

bool core_arrivals_in_memory(const struct core *c, u32 entry) {
    return tally_find(c, entry) != NULL;
}

void core_arrivals_view(const struct core *c, const struct seen *seen, struct arrivals *out) {
    const struct tally *t = tally_find(c, seen->at.entry);
    const struct rec_arrivals *written = seen->arrivals;
    *out = (struct arrivals){0};
    if (!t && !written) return;
    out->total = t ? t->total : written->total;
    out->duplicates = t ? t->duplicates : written->duplicates;
    slice last = t ? tally_last(t) : written->last;
    while (out->count < ARRIVALS_KEPT && arrival_next(&last, &out->last[out->count])) out->count++;
}

i64 core_key_left_ms(const struct core *c, struct core_now now, const struct rec_settle *settle) {
    return window_left_ms(queue_at(c, settle->ref.queue), settle->settled_run_ms, now.run_ms);
}

u32 core_ready_positions(const struct core *c, u16 queue, u32 max, u64 *positions) {
    u32 n = 0, no = core_next_ready(c, queue);
    while (no != MESSAGE_NONE && n < max) {
        const struct message *m = message_at(c, no);
        near((const char *)m + 64); /* leasing it will touch all of it, and its entry */
        near(index_entry(&c->keys, m->entry));
        positions[n++] = m->pos;
        no = m->next == MESSAGE_NONE && m->place == PLACE_LOOKUP ? queue_at(c, queue)->places[PLACE_READY].head
                                                                 : m->next;
    }
    return n;
}

u32 core_list(const struct core *c, u16 queue, enum state state, u32 after) {
    const struct queue *q = queue_at(c, queue);
    u32 place = after == MESSAGE_NONE ? PLACE_LOOKUP : message_at(c, after)->place;
    u32 no = after == MESSAGE_NONE ? q->places[place].head : message_at(c, after)->next;
    for (;; no = q->places[place].head) {
        if (no != MESSAGE_NONE && state_at((enum place)place) == state) return no;
        if (++place == PLACE_COUNT) return MESSAGE_NONE;
    }
}
