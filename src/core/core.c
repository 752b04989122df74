/* The core's frame: birth, recovery's end, time, queues, and looking things up. */
#include "base/pages.h"
#include "core/core_priv.h"

#define CLOCK_BUSY_MS 1000  /* how often the clocks are written down while there is other work ... */
#define CLOCK_IDLE_MS 10000 /* ... and while there is none */
#define EXPIRY_MS     1000
#define AUDIT_KEEP_MS ((i64)90 * 24 * 3600 * 1000)

struct core *core_new(const struct core_options *options) {
    struct core *c = mem_zalloc(sizeof *c);
    c->options = *options;
    if (c->options.audit_keep_ms == 0) c->options.audit_keep_ms = AUDIT_KEEP_MS;
    rng_seed(&c->rng, options->seed);
    index_init(&c->keys);
    index_init(&c->groups);
    index_init(&c->queue_names);
    index_init(&c->orphans);
    c->messages_top = 1;
    c->next_seq = 1;
    c->tallies = mem_zalloc(TALLIES_MAX * sizeof *c->tallies);
    c->tally_slots = mem_zalloc((size_t)TALLY_SLOTS * sizeof *c->tally_slots);
    return c;
}

static void free_messages(struct core *c, struct queue *q) {
    for (u32 p = 0; p < PLACE_COUNT; p++)
        for (u32 no = q->places[p].head; no != MESSAGE_NONE; no = message_at(c, no)->next)
            history_free(&message_at(c, no)->history);
}

static void free_groups(struct core *c) {
    for (u32 no = 1; no < c->groups.entries_top; no++) {
        struct entry *e = index_entry(&c->groups, no);
        if (e->kind != ENTRY_FREE) mem_free((void *)(uintptr_t)e->at);
    }
}

void core_free(struct core *c) {
    for (u32 id = 1; id <= c->queue_count; id++) {
        struct queue *q = c->queues[id];
        if (!q) continue;
        free_messages(c, q);
        mem_free((void *)(uintptr_t)q->name.p);
        mem_free((void *)(uintptr_t)q->config.p);
        mem_free(q->buckets);
        mem_free(q->forgotten);
        mem_free(q->kept);
        mem_free(q);
    }
    free_groups(c);
    for (u32 i = 0; i < c->tally_count; i++)
        for (u32 k = 0; k < c->tallies[i].count; k++) mem_free(c->tallies[i].last[k].request_id);
    for (u32 i = 0; i < c->message_chunk_count; i++)
        pages_unmap(c->message_chunks[i], MESSAGE_CHUNK * sizeof(struct message));
    mem_free(c->message_chunks);
    mem_free(c->queues);
    mem_free(c->tallies);
    mem_free(c->tally_slots);
    mem_free(c->delays.at);
    mem_free(c->leases.at);
    mem_free(c->ttls.at);
    mem_free(c->reaping);
    history_free(&c->scratch);
    audit_free(c);
    index_free(&c->keys);
    index_free(&c->groups);
    arrivals_free(c);
    index_free(&c->queue_names);
    if (!c->sink) index_free(&c->orphans);
    mem_free(c);
}

/* ---- recovery's end */

static hx_st check_queues(const struct core *c, struct errbuf *err) {
    for (u32 id = 1; id <= c->queue_count; id++)
        if (!c->queues[id] || !c->queues[id]->known)
            return err_set(err, ST_DAMAGED, "the journal holds messages of queue number %u but not the queue", id);
    return ST_OK;
}

/* A live lease gets its full length again: nobody could settle while the broker was down. */
static void rearm_leases(struct core *c) {
    u32 count = c->leases.count;
    c->leases.count = 0;
    for (u32 i = 0; i < count; i++) {
        u32 no = c->leases.at[i].message;
        message_at(c, no)->when_ms = c->now.run_ms + message_at(c, no)->lease_ms;
        heap_push(c, &c->leases, no); /* the heap so far ends before i */
    }
}

static void sum_reserves(struct core *c) {
    c->reserved_bytes = 0;
    c->history_bytes = 0;
    for (u32 id = 1; id <= c->queue_count; id++)
        for (u32 p = 0; p < PLACE_COUNT; p++)
            for (u32 no = c->queues[id]->places[p].head; no != MESSAGE_NONE; no = message_at(c, no)->next)
                reserve_on(c, message_at(c, no));
}

static void write_clock(struct core *c, bool boot) {
    struct record r = {.type = REC_CLOCK};
    r.clock = (struct rec_clock){
        .next_seq = c->next_seq,
        .fence = c->fence,
        .wall_ms = c->now.wall_ms,
        .run_ms = c->now.run_ms,
        .delay_ms = c->now.delay_ms,
        .boot = boot,
    };
    core_emit(c, &r);
}

hx_st core_start(struct core *c, const struct core_sink *sink, i64 wall_ms, struct core_now *now, struct errbuf *err) {
    CHECK(!c->sink);
    hx_st st = check_queues(c, err);
    if (st != ST_OK) return st;
    i64 down_ms = c->now.wall_ms != 0 && wall_ms > c->now.wall_ms ? wall_ms - c->now.wall_ms : 0;
    c->now.wall_ms = wall_ms;
    c->now.delay_ms += down_ms;
    /* P3: above everything handed out, and above anything a lost later life could have handed out. */
    u64 from_clock = (u64)wall_ms << 20;
    if (from_clock > c->fence) c->fence = from_clock;
    c->sink_copy = *sink;
    c->sink = &c->sink_copy;
    index_free(&c->orphans);
    rearm_leases(c);
    sum_reserves(c);
    write_clock(c, true);
    *now = c->now;
    return ST_OK;
}

/* Counts that no record implies. Losing the last second's in a crash is allowed. Without room they wait in memory. */
static void write_counts(struct core *c) {
    if (!c->uncounted) return;
    c->uncounted = false;
    for (u32 id = 1; id <= c->queue_count; id++) {
        const struct queue *q = queue_at(c, (u16)id);
        static const struct counters none;
        if (memcmp(&q->uncounted, &none, sizeof none) == 0) continue;
        struct record r = {.type = REC_COUNTS, .counts = {.queue = (u16)id, .add = q->uncounted}};
        if (!room_for_count(c, c->sink->cost(record_size_max(&r)))) {
            c->uncounted = true;
            return;
        }
        core_emit(c, &r);
    }
}

void core_stop(struct core *c, struct core_now now) {
    c->now = now;
    tally_write_due(c, TALLIES_MAX, true);
    write_counts(c);
    write_clock(c, false);
}

void core_carry_end(struct core *c, struct core_now now) {
    c->now = now;
    write_clock(c, false);
}

/* ---- time */

/* A lease ran out. Started work may have taken effect: a crash, counted as such. A reservation is simply given back. */
static bool decide_expiry(struct core *c, u32 no) {
    const struct message *m = message_at(c, no);
    struct record r = {.type = REC_RETURN, .ret = return_record(c, m, m->started ? ENDED_EXPIRED : ENDED_LAPSED)};
    if (!room_for(c, c->sink->cost(record_size_max(&r)))) return false;
    i64 wait_ms; /* none: the lease was the wait */
    if (m->started) lease_end_decide(c, m, &r.ret, CLASS_UNKNOWN, 0, &wait_ms);
    core_emit(c, &r);
    struct message *after = message_at(c, no);
    if (after->ttl_ms && after->attempts == 0) ttl_push(c, no);
    return true;
}

static bool due_leases(struct core *c, u32 *budget) {
    while (c->leases.count && c->leases.at[0].when_ms <= c->now.run_ms) {
        if ((*budget)-- == 0) return true;
        if (!decide_expiry(c, c->leases.at[0].message)) return false; /* no room: it waits, still leased */
    }
    return false;
}

/* Not a decision: that a delay is over follows from its record and the clock. */
static bool due_delays(struct core *c, u32 *budget) {
    while (c->delays.count && c->delays.at[0].when_ms <= c->now.delay_ms) {
        if ((*budget)-- == 0) return true;
        u32 no = c->delays.at[0].message;
        unplace_message(c, no);
        place_pending(c, no, false);
    }
    return false;
}

static void due_clock(struct core *c) {
    i64 since = c->now.run_ms - c->clock_written_run_ms;
    if (since >= (c->wrote_since_clock ? CLOCK_BUSY_MS : CLOCK_IDLE_MS)) write_clock(c, false);
}

bool core_tick(struct core *c, struct core_now now, u32 budget) {
    c->now = now;
    bool more = due_leases(c, &budget);
    more |= due_delays(c, &budget);
    if (now.run_ms - c->expiry_checked_run_ms >= EXPIRY_MS) {
        c->expiry_checked_run_ms = now.run_ms;
        window_decide(c);
        kept_expire(c);
        audit_expire(c);
        write_counts(c);
    }
    more |= window_reap(c, budget);
    window_sweep(c, budget);
    more |= tally_write_due(c, budget, false);
    due_clock(c);
    return more;
}

u32 core_ttl_due(struct core *c, struct core_now now) {
    c->now = now;
    struct ttl_item item;
    while (ttl_pop_due(c, now.delay_ms, &item)) {
        const struct message *m = message_at(c, item.message);
        if (m->place == PLACE_COUNT || m->seq != item.seq) continue; /* settled meanwhile */
        if (m->attempts > 0 || m->place == PLACE_LEASED) continue;   /* started in time, or about to be */
        return item.message;
    }
    return MESSAGE_NONE;
}

static i64 least(i64 a, i64 b) {
    return a < b ? a : b;
}

i64 core_next_ms(const struct core *c, struct core_now now, i64 at_most) {
    i64 next = at_most;
    if (c->leases.count) next = least(next, c->leases.at[0].when_ms - now.run_ms);
    if (c->delays.count) next = least(next, c->delays.at[0].when_ms - now.delay_ms);
    if (c->ttls.count) next = least(next, c->ttls.at[0].ttl_ms - now.delay_ms);
    return next > 0 ? next : 0;
}

/* ---- queues */

bool core_queue_find(const struct core *c, slice name, u16 *queue) {
    struct index_cursor cursor = {0};
    u64 hash = siphash(&c->options.hash_key, name.p, name.n);
    for (u32 e; (e = index_find(&c->queue_names, hash, &cursor)) != ENTRY_NONE;) {
        u16 id = (u16)index_entry(&c->queue_names, e)->at;
        if (!slice_eq(queue_at(c, id)->name, name)) continue;
        *queue = id;
        return true;
    }
    return false;
}

static struct rec_queue queue_record(const struct queue *q) {
    struct rec_queue r = {
        .queue = q->id,
        .paused = q->paused,
        .deleted = q->deleted,
        .origin = q->origin,
        .created_ms = q->created_ms,
        .rules = q->rules,
        .oldest_replay_ms = q->oldest_replay_ms,
        .window_changed_ms = q->window_changed_ms,
        .promise_count = (u8)q->promise_count,
        .counters = q->counters,
        .name = q->name,
        .config = q->config,
    };
    memcpy(r.promises, q->promises, sizeof r.promises);
    return r;
}

static void write_queue(struct core *c, const struct rec_queue *q) {
    core_emit(c, &(struct record){.type = REC_QUEUE, .queue = *q});
}

static bool queue_make(struct core *c, slice name, const struct queue_spec *spec, u16 *queue) {
    struct record r = {.type = REC_QUEUE};
    r.queue = (struct rec_queue){
        .created_ms = c->now.wall_ms,
        .rules = spec->rules,
        .origin = (u8)spec->origin,
        .name = name,
        .config = spec->config,
    };
    window_change(NULL, c->now.run_ms, &r.queue);
    if (c->queue_count >= QUEUES_MAX || !room_for(c, c->sink->cost(record_size_max(&r)))) return false;
    r.queue.queue = *queue = (u16)(c->queue_count + 1);
    core_emit(c, &r);
    return true;
}

bool core_queue_ensure(struct core *c, struct core_now now, slice name, const struct rules *rules, u16 *queue) {
    if (core_queue_find(c, name, queue)) return true;
    c->now = now;
    return queue_make(c, name, &(struct queue_spec){.rules = *rules, .origin = ORIGIN_AUTO}, queue);
}

bool core_queue_set(struct core *c, struct core_now now, slice name, const struct queue_spec *spec, u16 *queue) {
    c->now = now;
    CHECK(spec->config.n <= CONFIG_BYTES_MAX);
    if (!core_queue_find(c, name, queue)) return queue_make(c, name, spec, queue);
    const struct queue *q = queue_at(c, *queue);
    struct record r = {.type = REC_QUEUE, .queue = queue_record(q)};
    r.queue.rules = spec->rules;
    r.queue.origin = (u8)spec->origin;
    r.queue.config = spec->config;
    window_change(q, now.run_ms, &r.queue);
    if (r.queue.rules.window_ms != q->rules.window_ms) r.queue.window_changed_ms = now.wall_ms;
    bool same =
        rules_equal(&r.queue.rules, &q->rules) && r.queue.origin == q->origin && slice_eq(r.queue.config, q->config);
    if (same) return true;
    if (!room_for_deed(c, c->sink->cost(record_size_max(&r)))) return false;
    core_emit(c, &r);
    return true;
}

enum delete_verdict core_queue_delete(struct core *c, struct core_now now, u16 queue) {
    c->now = now;
    const struct queue *q = queue_at(c, queue);
    if (q->unsettled) return DELETE_UNSETTLED;
    struct rec_queue r = queue_record(q);
    r.deleted = true;
    r.paused = false;
    r.config = SL("");
    write_queue(c, &r);
    return DELETE_OK;
}

void core_queue_pause(struct core *c, u16 queue, bool paused) {
    struct rec_queue r = queue_record(queue_at(c, queue));
    if (r.paused == paused) return;
    r.paused = paused;
    write_queue(c, &r);
}

void core_queue_write(struct core *c, u16 queue) {
    struct rec_queue r = queue_record(queue_at(c, queue));
    write_queue(c, &r);
}

u32 core_queue_count(const struct core *c) {
    return c->queue_count;
}

u64 core_next_seq(const struct core *c) {
    return c->next_seq;
}

const struct rules *core_queue_rules(const struct core *c, u16 queue) {
    return &queue_at(c, queue)->rules;
}

bool core_queue_had_conflicts(const struct core *c, u16 queue) {
    const struct counters *n = &queue_at(c, queue)->counters;
    return n->conflicts_admitted || n->conflicts_held;
}

void core_queue_info(const struct core *c, struct core_now now, u16 queue, struct queue_info *out) {
    const struct queue *q = queue_at(c, queue);
    *out = (struct queue_info){
        .queue = queue,
        .name = q->name,
        .config = q->config,
        .origin = (enum origin)q->origin,
        .paused = q->paused,
        .deleted = q->deleted,
        .pressed = queue_pressed(c, q, now.run_ms, 0),
        .created_ms = q->created_ms,
        .rules = q->rules,
        .oldest_replay_ms = q->oldest_replay_ms,
        .window_changed_ms = q->window_changed_ms,
        .promised_window_ms = q->promise_count ? q->promises[0].window_ms : 0,
        .counters = q->counters,
        .unsettled = q->unsettled,
        .unsettled_bytes = q->unsettled_bytes,
        .conflict_copies = q->conflict_copies,
        .refused_copies = q->refused_copies,
        .refused_bytes = q->refused_bytes,
        .ready = q->places[PLACE_READY].count,
        .delayed = q->places[PLACE_DELAYED].count,
        .behind = q->places[PLACE_BEHIND].count,
        .leased = q->places[PLACE_LEASED].count,
        .held = q->places[PLACE_HELD].count,
        .dead = q->places[PLACE_DEAD].count,
        .settled_keys = q->settled_keys,
    };
#define COUNTER_ADD(name) out->counters.name += q->uncounted.name;
    COUNTER_LIST(COUNTER_ADD)
#undef COUNTER_ADD
    out->counters.duplicates += q->unwritten_duplicates;
    u32 head = q->places[PLACE_READY].head;
    if (head != MESSAGE_NONE) out->oldest_ready_ms = now.run_ms - message_at(c, head)->when_ms;
}

/* ---- looking up */

u64 core_hash(const struct core *c, u16 queue, slice key) {
    struct siphash_key k = c->options.hash_key;
    k.k1 ^= (u64)queue << 48;
    return siphash(&k, key.p, key.n);
}

u64 core_fingerprint(const struct core *c, slice payload) {
    struct siphash_key k = c->options.hash_key;
    k.k0 ^= 0x7061796c6f6164ull;
    return siphash(&k, payload.p, payload.n);
}

void core_prefetch(const struct core *c, const u64 *hashes, u32 count, struct ahead *out) {
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
        tally_prefetch(c, entries[i], e->has_arrivals);
        if (e->kind != ENTRY_LIVE) continue;
        const char *m = (const char *)message_at(c, (u32)e->at);
        near(m);
        near(m + 64);
    }
    for (u32 i = 0; i < count; i++) {
        out[i] = (struct ahead){0};
        if (entries[i] == ENTRY_NONE) continue;
        const struct entry *e = index_entry(&c->keys, entries[i]);
        out[i].pos = e->kind == ENTRY_LIVE ? message_at(c, (u32)e->at)->pos : e->at;
        out[i].bytes = (u32)entry_size(e);
        if (!tally_find(c, entries[i])) out[i].arrivals_pos = arrivals_pos(c, entries[i]);
    }
}

static void found_entry(const struct core *c, u32 no, struct found *out) {
    const struct entry *e = index_entry(&c->keys, no);
    *out = (struct found){.entry = no, .queue = e->queue, .size_hint = (u32)entry_size(e)};
    out->message = e->kind == ENTRY_LIVE ? (u32)e->at : MESSAGE_NONE;
    out->pos = e->kind == ENTRY_LIVE ? message_at(c, (u32)e->at)->pos : e->at;
    out->arrivals_pos = arrivals_pos(c, no);
}

bool core_find(const struct core *c, u64 hash, struct core_cursor *cursor, struct found *out) {
    struct index_cursor at = {.slot = cursor->slot, .phase = cursor->phase};
    u32 no;
    while ((no = index_find(&c->keys, hash, &at)) != ENTRY_NONE) {
        if (entry_forgotten(c, index_entry(&c->keys, no))) continue;
        found_entry(c, no, out);
        break;
    }
    cursor->slot = at.slot;
    cursor->phase = at.phase;
    return no != ENTRY_NONE;
}

enum walk_verdict core_walk(const struct core *c, u16 queue, i64 since_run_ms, u32 look_at, u32 *cursor,
                            struct found *out) {
    for (; look_at > 0; look_at--) {
        if (++*cursor >= c->keys.entries_top) return WALK_END;
        const struct entry *e = index_entry(&c->keys, *cursor);
        if (e->queue != queue || (e->kind != ENTRY_LIVE && e->kind != ENTRY_SETTLED)) continue;
        if (entry_forgotten(c, e) || (e->kind == ENTRY_SETTLED && (i64)e->settled_run_ms < since_run_ms)) continue;
        found_entry(c, *cursor, out);
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
        .fence = m->fence,
        .due_ms = m->due_ms,
        .lease_left_ms = m->place == PLACE_LEASED ? m->when_ms - now.run_ms : 0,
        .pos = m->pos,
        .size_hint = (u32)entry_size(entry_of(c, m)),
        .history = slice_of(m->history.p, m->history.len),
    };
}

bool core_arrivals_in_memory(const struct core *c, u32 entry) {
    return tally_find(c, entry) != NULL;
}

void core_arrivals_view(const struct core *c, const struct seen *seen, struct rec_arrivals *out) {
    const struct tally *t = tally_find(c, seen->at.entry);
    *out = (struct rec_arrivals){0};
    if (t)
        tally_view(t, out);
    else if (seen->arrivals)
        *out = *seen->arrivals;
}

i64 core_key_left_ms(const struct core *c, struct core_now now, const struct rec_settle *settle) {
    return window_left_ms(queue_at(c, settle->ref.queue), settle->settled_run_ms, now.run_ms);
}

u32 core_ready_positions(const struct core *c, u16 queue, u32 max, u64 *positions) {
    u32 n = 0;
    for (u32 no = core_next_ready(c, queue); no != MESSAGE_NONE && n < max; no = message_at(c, no)->next)
        positions[n++] = message_at(c, no)->pos;
    return n;
}

u32 core_list(const struct core *c, u16 queue, enum state state, u32 after) {
    const struct queue *q = queue_at(c, queue);
    u32 place = after == MESSAGE_NONE ? PLACE_READY : message_at(c, after)->place;
    u32 no = after == MESSAGE_NONE ? q->places[place].head : message_at(c, after)->next;
    for (;; no = q->places[place].head) {
        if (no != MESSAGE_NONE && state_at((enum place)place) == state) return no;
        if (++place == PLACE_COUNT) return MESSAGE_NONE;
    }
}

void core_memory(const struct core *c, struct core_memory *out) {
    *out = (struct core_memory){
        .index_bytes = index_bytes(&c->keys),
        .arrivals_bytes = c->written_bytes,
        .message_bytes = (u64)c->message_chunk_count * MESSAGE_CHUNK * sizeof(struct message) + c->history_bytes +
                         ((u64)c->leases.cap + c->delays.cap) * sizeof(struct heap_item) +
                         (u64)c->ttls.cap * sizeof(struct ttl_item),
        .group_bytes = c->group_bytes + index_bytes(&c->groups),
        .messages = c->message_count,
        .groups = c->group_count,
        .repeated_keys = c->repeated_keys,
    };
    out->settled_keys = c->keys.live_entries - c->message_count;
}

u64 core_live_bytes(const struct core *c) {
    return c->live_bytes;
}

u64 core_reserved_bytes(const struct core *c) {
    return c->reserved_bytes;
}
