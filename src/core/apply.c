/* apply: what records make of the state, live and in recovery alike. (What no record holds is derive.c's.)
 *
 * Live, a record was decided a moment ago, and what does not fit the state is a bug: CHECK. In recovery the journal may
 * begin in the middle of a message's life: compaction drops the oldest segment once everything still needed from it has
 * been written anew further on. A message admitted in a dropped segment is therefore first seen through its later
 * records, or only through the carried copy. Those orphans are passed over; the carried copy (or the self-contained
 * settle record) brings the whole state. An orphan that was admitted in what is left of the journal is damage. */
#include "core/state.h"

/* Where a message or key stands in its life: a state, or before it, after it, or settled whichever way. */
enum stage {
#define STAGE(name, text) STAGE_##name = STATE_##name,
    STATE_LIST(STAGE)
#undef STAGE
        STAGE_NONE,
    STAGE_SETTLED,
    STAGE_FORGOTTEN,
};

#define MOVE_CODE(from, by, to) ((u32)(from) << 16 | (u32)(by) << 8 | (u32)(to))
static bool move_allowed(enum stage from, enum record_type by, enum stage to) {
    switch (MOVE_CODE(from, by, to)) {
#define MOVE(from, record, to) case MOVE_CODE(STAGE_##from, REC_##record, STAGE_##to):
#include "core/moves.def"
#undef MOVE
        return true;
    default:
        return false;
    }
}

/* Live, a move that is not in the table is a bug. In recovery it is a journal that cannot have been written. */
static hx_st check_move(const struct core *c, enum stage from, enum record_type by, enum stage to, struct errbuf *err) {
    if (move_allowed(from, by, to)) return ST_OK;
    INVARIANT(18, !c->sink);
    return err_set(err, ST_DAMAGED, "a %s record that no message in that state can have", record_name((u8)by));
}

static enum stage stage_of(const struct message *m) {
    return (enum stage)message_state(m);
}

static void entry_move(struct core *c, struct entry *e, u64 size) {
    live_off(c, e->queue, entry_size(e));
    entry_set_size(e, size);
    live_on(c, e->queue, entry_size(e));
}

static struct queue *queue_make(struct core *c, u16 id) {
    if (id >= c->queue_cap) {
        u32 cap = c->queue_cap ? c->queue_cap * 2 : 16;
        while (cap <= id) cap *= 2;
        c->queues = mem_realloc(c->queues, cap * sizeof *c->queues);
        memset(c->queues + c->queue_cap, 0, (cap - c->queue_cap) * sizeof *c->queues);
        c->queue_cap = cap;
    }
    if (!c->queues[id]) {
        c->queues[id] = mem_zalloc(sizeof **c->queues);
        c->queues[id]->id = id;
        c->queues[id]->rules = rules_default();
    }
    if (id > c->queue_count) c->queue_count = id;
    return c->queues[id];
}

/* During replay a queue's messages may come before its own record, which was carried: a nameless one stands in. */
static inline struct queue *queue_touch(struct core *c, u16 id) {
    struct queue *q = id < c->queue_cap ? c->queues[id] : NULL;
    return q ? q : queue_make(c, id);
}

/* The unsettled message of this name; live, it is nearly always the one the decision was about. */
static u32 live_find(const struct core *c, const struct ref *ref, u32 about) {
    if (about != MESSAGE_NONE && message_at(c, about)->seq == ref->seq) return about;
    return core_message_find(c, ref->hash, ref->seq);
}

static hx_st orphan(struct core *c, const char *what, const struct ref *ref, struct errbuf *err) {
    CHECK(!c->sink);
    if (c->first_fresh_seq == 0 || ref->seq < c->first_fresh_seq) return ST_OK;
    return err_set(err, ST_DAMAGED, "a %s record names message %llu, which the journal should hold but does not", what,
                   (unsigned long long)ref->seq);
}

/* In recovery: the clock is written once a second, if there is room; it was running until the last thing that names its time. */
static void clock_reached(struct core *c, i64 run_ms) {
    if (!c->sink && run_ms > c->now.run_ms) c->now.run_ms = run_ms;
}

/* The next number is above every one that was ever handed out here. Those of another shard are not ours to go on from. */
static hx_st number_reached(struct core *c, u64 next_seq, struct errbuf *err) {
    if (seq_shard(next_seq) != c->options.shard)
        return err_set(err, ST_DAMAGED, "an admission number of shard %u in the journal of shard %u",
                       seq_shard(next_seq), c->options.shard);
    if (next_seq > c->next_seq) c->next_seq = next_seq;
    return ST_OK;
}

static hx_st apply_clock(struct core *c, const struct rec_clock *r, struct errbuf *err) {
    hx_st st = number_reached(c, r->next_seq, err);
    if (st != ST_OK) return st;
    if (r->fence > c->fence) c->fence = r->fence;
    if (r->kind == CLOCK_PAST) {
        if (!c->sink) past_clock_seen(c, r->wall_ms, r->delay_ms);
        return ST_OK;
    }
    if (!c->sink) {
        c->now.wall_ms = r->wall_ms;
        clock_reached(c, r->run_ms);
        if (r->delay_ms > c->now.delay_ms) c->now.delay_ms = r->delay_ms;
        clock_seen(c, r->wall_ms, r->delay_ms);
    }
    c->clock_written_run_ms = r->run_ms;
    c->wrote_since_clock = false;
    return ST_OK;
}

static slice own_text(slice s) {
    char *copy = mem_alloc(s.n ? s.n : 1);
    if (s.n) memcpy(copy, s.p, s.n);
    return slice_of(copy, s.n);
}

static void queue_name(struct core *c, struct queue *q, slice name) {
    q->name = own_text(name);
    u64 hash = siphash(&c->options.hash_key, name.p, name.n);
    index_entry(&c->queue_names, index_insert(&c->queue_names, hash))->at = q->id;
    q->known = true;
}

/* What of the journal was needed for it. */
static void queue_drop_bytes(struct core *c, struct queue *q) {
    c->live_bytes -= q->size;
    for (u32 i = 0; i < q->kept_count; i++) c->live_bytes -= q->kept[i].bytes;
    for (u32 i = 0; i < DAYS_KEPT; i++) c->live_bytes -= q->days[i].size;
    q->size = 0;
    q->kept_count = 0;
    memset(q->days, 0, sizeof q->days);
}

void vacant_add(struct core *c, struct queue *q) {
    *(c->vacant_last ? &queue_mut(c, c->vacant_last)->vacant_next : &c->vacant_first) = q->id;
    c->vacant_last = q->id;
    c->queues_vacant++;
}

static void vacant_take(struct core *c, const struct queue *q) {
    INVARIANT(15, c->vacant_first == q->id);
    c->vacant_first = q->vacant_next;
    if (c->vacant_first == 0) c->vacant_last = 0;
    c->queues_vacant--;
}

/* In recovery, of a deleted queue, which remembered so many for ever. Those are in no bucket, and a sweep walks all there is:
 * it is worth that when half of it is former queues'. What the journal has of many that came and went is never in memory
 * together. */
static void former_free(struct core *c, u64 forever) {
    u32 all = UINT32_MAX;
    window_reap(c, &all);
    c->former_keys += forever;
    if (c->former_keys < c->keys.entries_top / 2) return;
    all = UINT32_MAX;
    c->former_keys = 0;
    c->sweep_again = false;
    window_sweep(c, &all);
}

/* The name is free again, and so is the number. The settled keys are unknown from here on, by where their records lie, and freed
 * little by little; nothing of the queue is written behind this. */
static void queue_delete(struct core *c, struct queue *q, u64 pos) {
    struct index_cursor cursor = {0};
    u64 hash = siphash(&c->options.hash_key, q->name.p, q->name.n);
    for (u32 e; (e = index_find(&c->queue_names, hash, &cursor)) != ENTRY_NONE;) {
        if (index_entry(&c->queue_names, e)->at != q->id) continue;
        index_remove(&c->queue_names, e);
        index_release(&c->queue_names, e);
        break;
    }
    account_leave(c, q);
    q->bytes = 0; /* what is left of its keys is nobody's */
    q->deleted = true;
    q->since = pos;
    window_forget(c, q, 0, INT64_MAX);
    u64 forever = q->settled_keys;
    if (forever) window_sweep_begin(c);
    q->settled_keys = 0;
    queue_drop_bytes(c, q);
    if (c->sink)
        vacant_add(c, q);
    else
        former_free(c, forever);
}

static void queue_load_window(struct core *c, struct queue *q, const struct rec_queue *r) {
    i64 before = window_left_ms(q, c->now.run_ms, 0);
    if (c->sink && q->rules.window_ms != r->rules.window_ms) window_cut(q, c->now.run_ms);
    q->rules = r->rules;
    q->oldest_replay_ms = r->oldest_replay_ms;
    q->window_changed_ms = r->window_changed_ms;
    q->promise_count = r->promise_count;
    memcpy(q->promises, r->promises, sizeof q->promises);
    INVARIANT(14, !c->sink || q->pos == 0 || window_left_ms(q, c->now.run_ms, 0) >= before);
}

/* Its number is another queue's from here on. */
static void queue_clear(struct core *c, struct queue *q) {
    if (c->sink) vacant_take(c, q);
    mem_free((void *)(uintptr_t)q->name.p);
    mem_free((void *)(uintptr_t)q->config.p);
    mem_free(q->buckets);
    mem_free(q->forgotten);
    mem_free(q->kept);
    mem_free(q->waited.at);
    *q = (struct queue){.id = q->id, .since = q->since, .rules = rules_default()};
}

static hx_st apply_queue(struct core *c, const struct rec_queue *r, u64 pos, u64 size, struct errbuf *err) {
    struct queue *q = queue_touch(c, r->queue);
    if ((q->deleted || r->deleted) && q->unsettled) {
        INVARIANT(15, !c->sink);
        return err_set(err, ST_DAMAGED, "queue number %u was deleted with unsettled messages", q->id);
    }
    if (q->deleted && r->deleted) return ST_OK; /* other builds carried it */
    if (q->deleted) queue_clear(c, q);
    c->reserved_bytes -= resume_room(c, q);
    if (!q->known) queue_name(c, q, r->name);
    bool push_goes_on = q->push_paused && !r->push_paused;
    q->paused = r->paused;
    q->push_paused = r->push_paused;
    q->push_gone = r->push_gone;
    q->created_ms = r->created_ms;
    q->origin = r->origin;
    queue_load_window(c, q, r);
    q->counters = r->counters;
    if (!slice_eq(q->config, r->config)) {
        mem_free((void *)(uintptr_t)q->config.p);
        q->config = own_text(r->config);
    }
    c->live_bytes += size - q->size;
    q->pos = pos;
    q->size = size;
    c->reserved_bytes += resume_room(c, q);
    if (r->deleted) queue_delete(c, q, pos);
    if (q->paused || push_goes_on) q->announced[PLACE_LOOKUP] = q->announced[PLACE_READY] = false;
    if (q->places[PLACE_LOOKUP].count) announce_ready(c, q, PLACE_LOOKUP);
    if (q->places[PLACE_READY].count) announce_ready(c, q, PLACE_READY);
    return ST_OK;
}

static hx_st apply_window(struct core *c, const struct rec_window *r) {
    struct queue *q = queue_touch(c, r->queue);
    INVARIANT(14, !c->sink || r->window_ms >= q->rules.window_ms);
    q->rules.window_ms = r->window_ms;
    q->oldest_replay_ms = r->oldest_replay_ms;
    q->window_changed_ms = r->at_ms;
    return ST_OK;
}

/* In the place of the same day, or of the oldest. */
static hx_st apply_day(struct core *c, const struct rec_day *r, u64 pos, u64 size) {
    struct queue *q = queue_touch(c, r->queue);
    struct queue_day *at = &q->days[0];
    for (u32 i = 1; i < DAYS_KEPT && at->day != r->day; i++)
        if (q->days[i].day == r->day || q->days[i].day < at->day) at = &q->days[i];
    if (r->day < at->day) return ST_OK; /* younger ones have taken all the places */
    c->live_bytes += size - at->size;
    *at = (struct queue_day){
        .day = r->day, .size = (u32)size, .pos = pos, .accepted = r->accepted, .duplicates = r->duplicates};
    return ST_OK;
}

/* Live, the counts were shown already, as yet to be written. */
static hx_st apply_counts(struct core *c, const struct rec_counts *r) {
    struct queue *q = queue_touch(c, r->queue);
#define COUNTER_ADD(name) q->counters.name += r->add.name;
    COUNTER_LIST(COUNTER_ADD)
#undef COUNTER_ADD
    if (c->sink) q->uncounted = (struct counters){0};
    return ST_OK;
}

/* The settled entry whose record is at this position. In recovery the journal may have moved its last batch, and a record
 * in it that names another one of the same batch names the old place: then the admission number tells, and the time of the
 * settlement where it is known (-1: not). */
static u32 settled_at(const struct core *c, u64 hash, u64 pos, u64 seq, i64 settled_run_ms) {
    struct index_cursor cursor = {0};
    u32 like = ENTRY_NONE;
    for (u32 no; (no = index_find(&c->keys, hash, &cursor)) != ENTRY_NONE;) {
        const struct entry *e = index_entry(&c->keys, no);
        if (e->kind != ENTRY_SETTLED || entry_forgotten(c, e)) continue;
        if (e->at == pos) return no;
        bool same_time = settled_run_ms < 0 || (i64)e->settled_run_ms == settled_run_ms;
        if (e->seq_low == (seq & SEQ_LOW_MASK) && same_time) like = no;
    }
    return c->sink ? ENTRY_NONE : like;
}

/* The same key settled long ago, and this message takes its place. */
static void replace_settled(struct core *c, u64 hash, u64 pos, u64 seq) {
    u32 no = settled_at(c, hash, pos, seq, -1);
    if (no != ENTRY_NONE) window_remove(c, no);
}

static void message_load_history(struct message *m, slice history) {
    if (history.n == 0) return;
    history_reserve(&m->history, (u32)history.n);
    m->history.len = m->history.written = (u32)history.n;
    memcpy(m->history.p, history.p, history.n);
}

static void message_load_state(struct core *c, struct message *m, const struct rec_message *r) {
    m->ended = r->ended & 15u;
    m->started = r->started;
    m->lookup = r->traits & TRAIT_LOOKUP;
    m->lookups = r->lookups & LOOKUPS_MAX;
    m->lease_ms = r->lease_ms;
    m->attempts = r->attempts;
    m->failures = r->failures;
    m->unknowns = r->unknowns;
    m->crashes = r->crashes;
    m->fence = r->fence;
    if (r->fence > c->fence) c->fence = r->fence;
}

/* ---- recovery: arrivals that come before the record which brings their key back. A key has one of these, but on queues
 * where keys repeat several messages have the same hash: the number's low bits tell them apart, where they are known. */

static u32 orphan_arrivals_find(const struct core *c, u64 hash, u64 seq) {
    struct index_cursor cursor = {0};
    for (u32 no; (no = index_find(&c->orphans, hash, &cursor)) != ENTRY_NONE;) {
        const struct entry *e = index_entry(&c->orphans, no);
        if (e->settled_run_ms == 0 || seq == 0 || e->seq_low == (seq & SEQ_LOW_MASK)) return no;
    }
    return ENTRY_NONE;
}

static void orphan_arrivals_keep(struct core *c, const struct ref *ref, u64 pos) {
    u32 no = orphan_arrivals_find(c, ref->hash, ref->seq);
    if (no == ENTRY_NONE) no = index_insert(&c->orphans, ref->hash);
    struct entry *e = index_entry(&c->orphans, no);
    e->at = pos;
    e->queue = ref->queue;
    e->seq_low = ref->seq & SEQ_LOW_MASK;
    e->settled_run_ms = ref->seq != 0; /* the low bits are known */
}

static void orphan_arrivals_drop(struct core *c, const struct ref *ref) {
    u32 no = c->sink ? ENTRY_NONE : orphan_arrivals_find(c, ref->hash, ref->seq);
    if (no == ENTRY_NONE) return;
    index_remove(&c->orphans, no);
    index_release(&c->orphans, no);
}

static void orphan_arrivals_attach(struct core *c, u32 entry, const struct ref *ref) {
    u32 no = c->sink ? ENTRY_NONE : orphan_arrivals_find(c, ref->hash, ref->seq);
    if (no == ENTRY_NONE || index_entry(&c->orphans, no)->queue != ref->queue) return;
    arrivals_apply(c, entry, index_entry(&c->orphans, no)->at);
    orphan_arrivals_drop(c, ref);
}

static void count_admission(struct core *c, struct queue *q, const struct rec_message *r) {
    INVARIANT(8, r->ref.seq + 1 == c->next_seq);
    if (!c->sink && c->first_fresh_seq == 0) c->first_fresh_seq = r->ref.seq;
    if (r->refused)
        q->counters.refused++;
    else if (r->generation)
        q->counters.replayed++;
    else
        q->counters.accepted++;
    if (r->origin_seq && r->state == STATE_PENDING) q->counters.conflicts_admitted++;
    if (r->origin_seq && r->state == STATE_HELD) q->counters.conflicts_held++;
    if (r->replaces) replace_settled(c, r->ref.hash, r->replaces, r->replaces_seq);
}

static void message_load(struct core *c, u32 no, const struct rec_message *r, u64 pos, u64 size) {
    struct message *m = message_mut(c, no);
    struct queue *q = queue_mut(c, r->ref.queue);
    m->seq = r->ref.seq;
    m->pos = pos;
    m->queue = r->ref.queue;
    m->due_ms = r->due_ms;
    m->ttl_ms = r->ttl_ms;
    if (r->former.n) m->former_len = (u32)r->former.n; /* such a one has no time to live: record_decode saw to it */
    m->key_len = (u8)r->key.n;
    m->request_id_len = (u8)r->request_id.n;
    m->payload_len = (u32)r->payload.n;
    m->generation = r->generation;
    m->refused = r->refused;
    m->carried = r->carried;
    m->lease_paid = r->state == STATE_PENDING;
    m->entry = index_insert(&c->keys, r->ref.hash);
    struct entry *e = entry_mut(c, m);
    e->at = no;
    e->queue = r->ref.queue;
    entry_move(c, e, size);
    q->unsettled++;
    q->unsettled_bytes += m->payload_len;
    if (!m->refused) {
        account_of(c, q)->pending++;
        return;
    }
    q->refused_copies++;
    q->refused_bytes += m->payload_len;
}

static hx_st apply_message(struct core *c, const struct rec_message *r, u32 about, u64 pos, u64 size,
                           struct errbuf *err) {
    hx_st st = number_reached(c, r->ref.seq + 1, err);
    if (st != ST_OK) return st;
    u32 no = r->carried ? live_find(c, &r->ref, about) : MESSAGE_NONE;
    if (no != MESSAGE_NONE) { /* carried while its first record is still there: only its place in the journal is new */
        struct message *known = message_mut(c, no);
        entry_move(c, entry_mut(c, known), size);
        reserve_off(c, known);
        needed_over(&c->needed, known->pos);
        known->pos = pos;
        known->carried = true;
        known->history.written = (u32)r->history.n;
        reserve_on(c, known);
        return ST_OK;
    }
    struct queue *q = queue_touch(c, r->ref.queue);
    if (!r->carried)
        st = check_move(c, r->replaces ? STAGE_SETTLED : STAGE_NONE, REC_MESSAGE, (enum stage)r->state, err);
    if (st != ST_OK) return st;
    if (!r->carried) count_admission(c, q, r);
    no = message_new(c);
    message_load(c, no, r, pos, size);
    struct message *m = message_mut(c, no);
    message_load_history(m, r->history);
    if (r->carried) {
        message_load_state(c, m, r);
        orphan_arrivals_attach(c, m->entry, &r->ref);
    }
    reserve_on(c, m);
    if (r->group.n && !r->refused && !(r->traits & TRAIT_CONFLICT))
        group_join(c, no, r->group, r->traits & TRAIT_PARKED);
    m->when_ms = c->now.run_ms + m->lease_ms;
    place_as(c, no, (enum state)r->state, r->traits, false);
    return ST_OK;
}

static hx_st apply_lease(struct core *c, const struct rec_lease *r, u32 about, struct errbuf *err) {
    struct queue *q = queue_touch(c, r->ref.queue);
    q->counters.delivered++;
    if (r->again) q->counters.redelivered++;
    if (r->lookup) q->counters.reconciled++;
    /* In recovery the delay clock is as it was last written: not later, so that no less is known to have been set back. */
    clock_seen(c, r->at_ms, c->now.delay_ms);
    INVARIANT(3, !c->sink || r->fence > c->fence);
    if (r->fence > c->fence) c->fence = r->fence;
    u32 no = live_find(c, &r->ref, about);
    if (no == MESSAGE_NONE) return orphan(c, "lease", &r->ref, err);
    struct message *m = message_mut(c, no);
    hx_st st = check_move(c, stage_of(m), REC_LEASE, STAGE_LEASED, err);
    if (st != ST_OK) return st;
    INVARIANT(2, m->place != PLACE_LEASED);
    INVARIANT(3, r->fence > m->fence);
    INVARIANT(11, !m->reconcile || r->lookup);
    INVARIANT(13, !m->conflict && !m->refused);
    reserve_off(c, m);
    i64 waited_ms = is_ready(m->place) ? c->now.run_ms - m->when_ms : 0;
    m->waited_ms = waited_ms < UINT32_MAX ? (u32)waited_ms : UINT32_MAX;
    unplace_message(c, no);
    m->doubt = message_doubt(m);
    m->lookup = r->lookup;
    m->fence = r->fence;
    m->lease_ms = r->lease_ms;
    m->started = r->started;
    m->attempts = r->attempts;
    m->ended = ENDED_OPEN;
    m->lease_paid = false;
    history_begin(&m->history, &c->spares);
    history_yield(&m->history);
    history_reserve(&m->history, history_first_bytes(c));
    history_add(&m->history, &(struct history_item){
                                 .kind = HISTORY_ATTEMPT,
                                 .fence = r->fence,
                                 .at_ms = r->at_ms,
                                 .attempt = r->started ? r->attempts : (u16)(r->attempts + 1),
                                 .lookup = r->lookup,
                                 .consumer = r->consumer,
                             });
    m->when_ms = c->now.run_ms + r->lease_ms;
    place_message(c, no, PLACE_LEASED, false);
    reserve_on(c, m);
    return ST_OK;
}

static hx_st apply_start(struct core *c, const struct rec_start *r, u32 about, struct errbuf *err) {
    u32 no = live_find(c, &r->ref, about);
    if (no == MESSAGE_NONE) return orphan(c, "start", &r->ref, err);
    struct message *m = message_mut(c, no);
    INVARIANT(4, r->fence == m->fence);
    hx_st st = check_move(c, stage_of(m), REC_START, STAGE_LEASED, err);
    if (st != ST_OK) return st;
    reserve_off(c, m);
    m->started = true;
    m->attempts = r->attempts;
    history_set_attempt(&m->history, r->fence, r->attempts);
    reserve_on(c, m);
    return ST_OK;
}

/* The lease runs anew, also one that had run out while nobody else took the message. */
static hx_st apply_extend(struct core *c, const struct rec_extend *r, u32 about, struct errbuf *err) {
    u32 no = live_find(c, &r->ref, about);
    if (no == MESSAGE_NONE) return orphan(c, "extend", &r->ref, err);
    struct message *m = message_mut(c, no);
    INVARIANT(4, r->fence == m->fence);
    hx_st st = check_move(c, stage_of(m), REC_EXTEND, STAGE_LEASED, err);
    if (st != ST_OK) return st;
    reserve_off(c, m);
    bool revived = m->place != PLACE_LEASED;
    unplace_message(c, no);
    m->lease_ms = r->lease_ms;
    m->when_ms = c->now.run_ms + r->lease_ms;
    place_message(c, no, PLACE_LEASED, false);
    if (revived) {
        bool crashed = r->crashes != m->crashes; /* else what is taken back was counted as a look-up */
        if (m->ended == ENDED_EXPIRED && m->lookup && m->lookups > 0 && !crashed) m->lookups--;
        m->started = ended_unsaid(m->ended); /* else it lapsed */
        m->ended = ENDED_OPEN;
        history_end(&m->history, &(struct history_item){.fence = r->fence, .ended_ms = r->at_ms, .lookup = m->lookup});
    }
    m->crashes = r->crashes;
    reserve_on(c, m);
    return ST_OK;
}

/* How long it has been ready, in all. A lease that comes to nothing does not end that. */
static i64 waiting_ms(const struct core *c, const struct message *m) {
    i64 since_ms = is_ready(m->place) ? c->now.run_ms - m->when_ms : 0;
    return since_ms > m->waited_ms ? since_ms : m->waited_ms;
}

static void count_return(struct queue *q, const struct rec_return *r) {
    if (r->ended == ENDED_NACKED) q->counters.nacked++;
    if (r->ended == ENDED_EXPIRED) q->counters.leases_expired++;
    if (r->ended == ENDED_RELEASED && r->state == STATE_PENDING) q->counters.released++;
    if (r->state == STATE_DEAD) q->counters.dead_lettered += 1 + r->taken;
    if (r->state == STATE_HELD) q->counters.held++;
}

static hx_st apply_return(struct core *c, const struct rec_return *r, u32 about, struct errbuf *err) {
    count_return(queue_touch(c, r->ref.queue), r);
    u32 no = live_find(c, &r->ref, about);
    if (no == MESSAGE_NONE) return orphan(c, "return", &r->ref, err);
    struct message *m = message_mut(c, no);
    INVARIANT(4, r->fence == m->fence);
    INVARIANT(11, !m->lookup || r->state != STATE_PENDING || r->failure_class == CLASS_ABSENT ||
                      (r->traits & TRAIT_RECONCILE));
    hx_st st = check_move(c, stage_of(m), REC_RETURN, (enum stage)r->state, err);
    if (st != ST_OK) return st;
    bool given_back = r->ended == ENDED_RELEASED || r->ended == ENDED_UNDONE,
         held = given_back && r->state == STATE_HELD;
    bool attempted = !given_back && r->ended != ENDED_LAPSED;
    i64 waited_ms = attempted ? 0 : waiting_ms(c, m);
    reserve_off(c, m);
    unplace_message(c, no);
    if (attempted) {
        history_end(&m->history, &(struct history_item){.fence = r->fence,
                                                        .ended_ms = r->at_ms,
                                                        .ended = r->ended,
                                                        .failure_class = r->failure_class,
                                                        .attempt = r->attempts,
                                                        .lookup = m->lookup,
                                                        .reason = r->reason});
    } else {
        history_remove_attempt(&m->history, r->fence); /* nothing was done under it */
    }
    if (held)
        history_add(&m->history,
                    &(struct history_item){
                        .kind = HISTORY_DECISION, .at_ms = r->at_ms, .what = DECISION_HELD, .reason = r->reason});
    m->ended = r->ended & 15u;
    m->lookups = r->lookups & LOOKUPS_MAX;
    m->started = false;
    m->attempts = r->attempts;
    m->failures = r->failures;
    m->unknowns = r->unknowns;
    m->crashes = r->crashes;
    m->due_ms = r->due_ms;
    place_as(c, no, (enum state)r->state, r->traits, given_back);
    if (waited_ms && is_ready(m->place)) ready_since(c, no, c->now.run_ms - waited_ms);
    reserve_on(c, m);
    if (r->state != STATE_PENDING && c->sink) c->sink->on_outcome(c->sink->ctx, &r->ref);
    return ST_OK;
}

static void count_decision(struct queue *q, const struct rec_decide *r) {
    if (r->what == DECISION_REDRIVE)
        q->counters.redriven += 1 + r->taken;
    else
        q->counters.resolved++;
    if (r->what == DECISION_NEW) q->counters.conflicts_admitted++;
    if (r->state == STATE_DEAD) q->counters.dead_lettered += 1 + r->taken;
}

static hx_st apply_decide(struct core *c, const struct rec_decide *r, u32 about, struct errbuf *err) {
    count_decision(queue_touch(c, r->ref.queue), r);
    u32 no = live_find(c, &r->ref, about);
    if (no == MESSAGE_NONE) return orphan(c, "decide", &r->ref, err);
    struct message *m = message_mut(c, no);
    INVARIANT(12, m->place == PLACE_DEAD || m->place == PLACE_HELD || !c->sink);
    hx_st st = check_move(c, stage_of(m), REC_DECIDE, (enum stage)r->state, err);
    if (st != ST_OK) return st;
    reserve_off(c, m);
    unplace_message(c, no);
    history_add(
        &m->history,
        &(struct history_item){
            .kind = HISTORY_DECISION, .at_ms = r->at_ms, .what = r->what, .consumer = r->by, .reason = r->note});
    m->ended = ENDED_DECIDED;
    m->lookups = 0;
    m->failures = r->failures;
    m->unknowns = r->unknowns;
    m->crashes = r->crashes;
    m->due_ms = r->due_ms;
    if (r->group.n && m->group == ENTRY_NONE) group_join(c, no, r->group, false);
    place_as(c, no, (enum state)r->state, r->traits, false);
    reserve_on(c, m);
    if (r->state != STATE_PENDING && c->sink) c->sink->on_outcome(c->sink->ctx, &r->ref);
    return ST_OK;
}

static hx_st apply_history(struct core *c, const char *what, const struct ref *ref, u32 about,
                           const struct history_item *item, struct errbuf *err) {
    u32 no = live_find(c, ref, about);
    if (no == MESSAGE_NONE) return orphan(c, what, ref, err);
    struct message *m = message_mut(c, no);
    reserve_off(c, m);
    history_add(&m->history, item);
    reserve_on(c, m);
    return ST_OK;
}

static void count_settle(struct queue *q, const struct rec_settle *r) {
    if (r->erasing) q->counters.erased++;
    if (r->carried) return;
    if (r->restored) {
        q->counters.cancelled++;
        return;
    }
    if (r->ended == ENDED_HANDED_OUT) {
        q->counters.delivered++;
        q->counters.handed_out++;
    } else if (r->ended == ENDED_DECIDED) {
        q->counters.resolved++;
    } else if (r->state == STATE_DONE) {
        q->counters.acked++;
    }
    if (r->state == STATE_REJECTED) q->counters.rejected++;
    if (r->state == STATE_CANCELLED) q->counters.cancelled++;
}

/* Its record moved, or was amended. */
static void settled_move(struct core *c, u32 entry, const struct rec_settle *r, u64 pos, u64 size) {
    entry_move(c, index_entry(&c->keys, entry), size - kept_bytes(&r->kept));
    index_entry(&c->keys, entry)->at = pos;
}

/* The entry it gets: the unsettled message's, or in recovery a new one. */
static u32 settle_entry(struct core *c, const struct rec_settle *r, u32 no) {
    if (no != MESSAGE_NONE) {
        const struct message *m = message_at(c, no);
        u32 entry = m->entry;
        if (r->ended == ENDED_HANDED_OUT)
            INVARIANT(16, r->fence > m->fence && (!c->sink || m->place == PLACE_READY));
        else
            INVARIANT(4, r->fence == m->fence);
        bool cancelled = r->restored || r->state == STATE_CANCELLED;
        INVARIANT(20, !c->sink || r->restored == (cancelled && message_former(m) != 0));
        message_end(c, no);
        return entry;
    }
    INVARIANT(5, !c->sink); /* live, only what is unsettled can settle */
    u32 entry = index_insert(&c->keys, r->ref.hash);
    index_entry(&c->keys, entry)->queue = r->ref.queue;
    orphan_arrivals_attach(c, entry, &r->ref);
    return entry;
}

static hx_st apply_settle(struct core *c, const struct rec_settle *r, u32 about, u64 pos, u64 size,
                          struct errbuf *err) {
    hx_st st = number_reached(c, r->ref.seq + 1, err);
    if (st != ST_OK) return st;
    struct queue *q = queue_touch(c, r->ref.queue);
    if (r->fence > c->fence) c->fence = r->fence;
    clock_reached(c, r->settled_run_ms);
    count_settle(q, r);
    if (r->erasing) c->erase_upto = pos;
    u32 entry = r->carried ? settled_at(c, r->ref.hash, r->from_pos, r->ref.seq, r->settled_run_ms) : ENTRY_NONE;
    if (entry != ENTRY_NONE) {
        needed_over(&c->needed, index_entry(&c->keys, entry)->at);
        settled_move(c, entry, r, pos, size);
        return check_move(c, STAGE_SETTLED, REC_SETTLE, STAGE_SETTLED, err);
    }
    u32 no = live_find(c, &r->ref, about);
    if (no != MESSAGE_NONE) st = check_move(c, stage_of(message_at(c, no)), REC_SETTLE, (enum stage)r->state, err);
    if (st != ST_OK) return st;
    entry = settle_entry(c, r, no);
    struct entry *e = index_entry(&c->keys, entry);
    /* The widest of the fields that share a word is set first, and not read back: that would wait for the narrower ones. */
    const u64 all = ((u64)1 << 48) - 1;
    e->settled_run_ms = (u64)r->settled_run_ms & all;
    e->kind = ENTRY_SETTLED;
    e->seq_low = r->ref.seq & SEQ_LOW_MASK;
    e->queue = r->ref.queue;
    settled_move(c, entry, r, pos, size);
    if (r->kept.is) kept_add(c, q, r->settled_run_ms, kept_bytes(&r->kept));
    window_add(c, entry, r->settled_run_ms & (i64)all);
    if (c->sink) c->sink->on_outcome(c->sink->ctx, &r->ref);
    return ST_OK;
}

/* Where nothing is known of the key it was forgotten with an older record that is not there any more. */
static hx_st apply_forget(struct core *c, const struct rec_forget *r, u32 about, struct errbuf *err) {
    queue_touch(c, r->ref.queue)->counters.forgotten++;
    orphan_arrivals_drop(c, &r->ref);
    if (r->from_pos) {
        replace_settled(c, r->ref.hash, r->from_pos, r->ref.seq);
        return ST_OK;
    }
    u32 no = live_find(c, &r->ref, about);
    if (no == MESSAGE_NONE) return ST_OK;
    INVARIANT(17, message_at(c, no)->place != PLACE_LEASED || !c->sink);
    hx_st st = check_move(c, stage_of(message_at(c, no)), REC_FORGET, STAGE_FORGOTTEN, err);
    if (st != ST_OK) return st;
    u32 entry = message_at(c, no)->entry;
    message_end(c, no);
    live_off(c, r->ref.queue, entry_size(index_entry(&c->keys, entry)));
    arrivals_forget(c, entry);
    index_remove(&c->keys, entry);
    index_release(&c->keys, entry);
    if (c->sink) c->sink->on_outcome(c->sink->ctx, &r->ref);
    return ST_OK;
}

/* In recovery: the unsettled one of that number, else a settled one as far as its number is known. */
static u32 known_entry(const struct core *c, const struct ref *ref, u32 about) {
    if (c->sink) { /* live, the decision knows */
        CHECK(index_entry(&c->keys, about)->hash == ref->hash);
        return about;
    }
    struct index_cursor cursor = {0};
    u32 settled = ENTRY_NONE;
    for (u32 no; (no = index_find(&c->keys, ref->hash, &cursor)) != ENTRY_NONE;) {
        const struct entry *e = index_entry(&c->keys, no);
        if (e->kind == ENTRY_LIVE && message_at(c, (u32)e->at)->seq == ref->seq) return no;
        if (e->kind != ENTRY_SETTLED || entry_forgotten(c, e)) continue;
        if (ref->seq == 0 || e->seq_low == (ref->seq & SEQ_LOW_MASK)) settled = no;
    }
    return settled;
}

static hx_st apply_arrivals(struct core *c, const struct rec_arrivals *r, u32 about, u64 pos) {
    struct queue *q = queue_touch(c, r->ref.queue);
    q->counters.duplicates += r->fresh;
    q->counters.conflicts += r->fresh_conflicts;
    u32 entry = known_entry(c, &r->ref, about);
    if (entry != ENTRY_NONE)
        arrivals_apply(c, entry, pos);
    else
        orphan_arrivals_keep(c, &r->ref, pos); /* its key was carried, or settled, further on */
    return ST_OK;
}

static hx_st apply_expire(struct core *c, const struct rec_expire *r) {
    struct queue *q = queue_touch(c, r->queue);
    q->counters.keys_expired += r->keys;
    clock_reached(c, r->upto_run_ms); /* else what settles next could be among them */
    window_forget(c, q, r->from_run_ms, r->upto_run_ms);
    return ST_OK;
}

/* By its type alone, whatever is made of it. */
static bool may_be_carried(enum record_type type) {
    return record_of_key(type) || type == REC_QUEUE || type == REC_AUDIT || type == REC_DAY;
}

hx_st core_apply(struct core *c, const struct record *r, u64 pos, u64 size, struct errbuf *err) {
    if (may_be_carried(r->type)) {
        CHECK(size >= NEEDED_STRETCH);
        needed_note(&c->needed, pos, record_of_key(r->type));
    }
    switch (r->type) {
    case REC_CLOCK:
        return apply_clock(c, &r->clock, err);
    case REC_QUEUE:
        return apply_queue(c, &r->queue, pos, size, err);
    case REC_MESSAGE:
        return apply_message(c, &r->message, r->about, pos, size, err);
    case REC_LEASE:
        return apply_lease(c, &r->lease, r->about, err);
    case REC_START:
        return apply_start(c, &r->start, r->about, err);
    case REC_EXTEND:
        return apply_extend(c, &r->extend, r->about, err);
    case REC_RETURN:
        return apply_return(c, &r->ret, r->about, err);
    case REC_STEP:
        return apply_history(c, "step", &r->step.ref, r->about,
                             &(struct history_item){.kind = HISTORY_STEP,
                                                    .name = r->step.name,
                                                    .content_type = r->step.content_type,
                                                    .result = r->step.result},
                             err);
    case REC_EFFECT:
        return apply_history(c, "effect", &r->effect.ref, r->about,
                             &(struct history_item){.kind = HISTORY_EFFECT, .name = r->effect.effect_id}, err);
    case REC_SETTLE:
        return apply_settle(c, &r->settle, r->about, pos, size, err);
    case REC_ARRIVALS:
        return apply_arrivals(c, &r->arrivals, r->about, pos);
    case REC_EXPIRE:
        return apply_expire(c, &r->expire);
    case REC_DECIDE:
        return apply_decide(c, &r->decide, r->about, err);
    case REC_FORGET:
        return apply_forget(c, &r->forget, r->about, err);
    case REC_WINDOW:
        return apply_window(c, &r->window);
    case REC_COUNTS:
        return apply_counts(c, &r->counts);
    case REC_AUDIT:
        clock_reached(c, r->audit.run_ms);
        audit_apply(c, &r->audit, pos, size);
        return ST_OK;
    case REC_DAY:
        return apply_day(c, &r->day, pos, size);
    case REC_NONE:
    case REC_COUNT:
        break;
    }
    return err_set(err, ST_DAMAGED, "a record without a type");
}

u64 core_emit(struct core *c, const struct record *r) {
    const struct core_sink *s = c->sink;
    if (c->boot_due && r->type != REC_CLOCK) write_clock(c);
    char *p = s->reserve(s->ctx, record_size(r));
    size_t n = record_encode(r, p);
    u64 pos = s->append(s->ctx, (u8)r->type, RECORD_VERSION, n), cost = s->cost(n);
    c->room = c->room > cost ? c->room - cost : 0;
    c->wrote_since_clock = true;
    struct errbuf err;
    CHECK(core_apply(c, r, pos, n + RECORD_HEAD_BYTES, &err) == ST_OK);
    if (s->on_record) s->on_record(s->ctx, r);
    return pos;
}

/* Of a key that took effect twice somebody was told, and is still to be told after a restart. No record says when the second effect was
 * reported: not before the last moment that its history, or its settlement, has. */
static void recover_doubled(struct core *c, const struct ref *ref, slice history, i64 since_ms) {
    struct history_item item;
    u32 effects = 0;
    for (u32 at = 0; history_next(history, &at, &item);) {
        effects += item.kind == HISTORY_EFFECT;
        if (item.kind == HISTORY_ATTEMPT && item.at_ms > since_ms) since_ms = item.at_ms;
        if (item.kind == HISTORY_ATTEMPT && item.ended_ms > since_ms) since_ms = item.ended_ms;
    }
    struct queue *q = queue_touch(c, ref->queue);
    if (effects < 2 || (q->doubled.seq && q->doubled_ms > since_ms)) return;
    q->doubled = *ref;
    q->doubled_ms = since_ms;
}

static void recover_effects(struct core *c, const struct record *r) {
    u32 no = r->type == REC_EFFECT ? live_find(c, &r->effect.ref, r->about) : MESSAGE_NONE;
    if (no != MESSAGE_NONE) {
        const struct message *m = message_at(c, no);
        recover_doubled(c, &r->effect.ref, slice_of(m->history.p, m->history.len), 0);
    }
    if (r->type == REC_MESSAGE && r->message.carried) recover_doubled(c, &r->message.ref, r->message.history, 0);
    /* With the outcome that was restored stand the effects of the replay that was cancelled: they were on purpose. */
    if (r->type == REC_SETTLE && !r->settle.restored)
        recover_doubled(c, &r->settle.ref, r->settle.history, r->settle.settled_ms);
}

hx_st core_replay(struct core *c, u64 pos, u8 type, u8 version, slice body, struct errbuf *err) {
    struct record r;
    hx_st st = record_decode(type, version, body, &r, err);
    if (st == ST_OK) st = core_apply(c, &r, pos, body.n + RECORD_HEAD_BYTES, err);
    if (st == ST_OK) recover_effects(c, &r);
    return st;
}
