/* apply: the only function that changes state, live and in recovery alike.
 *
 * Live, a record was decided a moment ago, and what does not fit the state is a bug: CHECK. In recovery the journal may
 * begin in the middle of a message's life: compaction drops the oldest segment once everything still needed from it has
 * been written anew further on. A message admitted in a dropped segment is therefore first seen through its later
 * records, or only through the carried copy. Those orphans are passed over; the carried copy (or the self-contained
 * settle record) brings the whole state. An orphan that was admitted in what is left of the journal is damage. */
#include "core/core_priv.h"

static void entry_move(struct core *c, struct entry *e, u64 size) {
    c->live_bytes -= entry_size(e);
    entry_set_size(e, size);
    c->live_bytes += entry_size(e);
}

/* During replay a queue's messages may come before its own record, which was carried: a nameless one stands in. */
static struct queue *queue_touch(struct core *c, u16 id) {
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

/* Live, it is nearly always the message the decision was about. */
static u32 live_find(const struct core *c, const struct ref *ref) {
    if (c->likely != MESSAGE_NONE && message_at(c, c->likely)->seq == ref->seq) return c->likely;
    return core_message_find(c, ref->hash, ref->seq);
}

static hx_st orphan(struct core *c, const char *what, const struct ref *ref, struct errbuf *err) {
    CHECK(!c->sink);
    if (c->first_fresh_seq == 0 || ref->seq < c->first_fresh_seq) return ST_OK;
    return err_set(err, ST_DAMAGED, "a %s record names message %llu, which the journal should hold but does not", what,
                   (unsigned long long)ref->seq);
}

static hx_st apply_clock(struct core *c, const struct rec_clock *r) {
    if (r->next_seq > c->next_seq) c->next_seq = r->next_seq;
    if (r->fence > c->fence) c->fence = r->fence;
    if (!c->sink) {
        c->now.wall_ms = r->wall_ms;
        if (r->run_ms > c->now.run_ms) c->now.run_ms = r->run_ms;
        if (r->delay_ms > c->now.delay_ms) c->now.delay_ms = r->delay_ms;
    }
    c->clock_written_run_ms = r->run_ms;
    c->wrote_since_clock = false;
    return ST_OK;
}

static hx_st apply_queue(struct core *c, const struct rec_queue *r, u64 pos, u64 size) {
    struct queue *q = queue_touch(c, r->queue);
    if (!q->known) {
        char *name = mem_alloc(r->name.n ? r->name.n : 1);
        memcpy(name, r->name.p, r->name.n);
        q->name = slice_of(name, r->name.n);
        u64 hash = siphash(&c->options.hash_key, name, r->name.n);
        index_entry(&c->queue_names, index_insert(&c->queue_names, hash))->at = r->queue;
        q->known = true;
    }
    q->paused = r->paused;
    q->created_ms = r->created_ms;
    q->rules = r->rules;
    q->counters = r->counters;
    c->live_bytes += size - q->size;
    q->pos = pos;
    q->size = size;
    if (q->paused)
        q->announced = false;
    else if (c->sink && q->places[PLACE_READY].count && !q->announced) {
        q->announced = true;
        c->sink->on_ready(c->sink->ctx, q->id);
    }
    return ST_OK;
}

/* The settled entry whose record is at this position. In recovery the journal may have moved its last batch, and a record
 * in it that names another one of the same batch names the old place: then the admission number tells. */
static u32 settled_at(const struct core *c, u64 hash, u64 pos, u64 seq) {
    struct index_cursor cursor = {0};
    u32 like = ENTRY_NONE;
    for (u32 no; (no = index_find(&c->keys, hash, &cursor)) != ENTRY_NONE;) {
        const struct entry *e = index_entry(&c->keys, no);
        if (e->kind != ENTRY_SETTLED || entry_forgotten(c, e)) continue;
        if (e->at == pos) return no;
        if (e->seq_low == (seq & SEQ_LOW_MASK)) like = no;
    }
    return c->sink ? ENTRY_NONE : like;
}

/* The same key settled long ago, and this message takes its place. */
static void replace_settled(struct core *c, u64 hash, u64 pos, u64 seq) {
    u32 no = settled_at(c, hash, pos, seq);
    if (no == ENTRY_NONE) return;
    c->live_bytes -= entry_size(index_entry(&c->keys, no));
    arrivals_forget(c, no);
    window_remove(c, no);
}

static void message_load_state(struct core *c, struct message *m, const struct rec_message *r) {
    m->ended = r->ended;
    m->started = r->started;
    m->generation = r->generation;
    m->lease_ms = r->lease_ms;
    m->attempts = r->attempts;
    m->failures = r->failures;
    m->unknowns = r->unknowns;
    m->crashes = r->crashes;
    m->fence = r->fence;
    if (r->fence > c->fence) c->fence = r->fence;
    if (r->history.n == 0) return;
    m->history.p = mem_alloc(r->history.n);
    m->history.len = m->history.cap = (u32)r->history.n;
    memcpy(m->history.p, r->history.p, r->history.n);
}

/* ---- recovery: arrivals that come before the record which brings their key back */

static void orphan_arrivals_keep(struct core *c, const struct ref *ref, u64 pos) {
    struct index_cursor cursor = {0};
    u32 no = index_find(&c->orphans, ref->hash, &cursor);
    if (no == ENTRY_NONE) no = index_insert(&c->orphans, ref->hash);
    struct entry *e = index_entry(&c->orphans, no);
    e->at = pos;
    e->queue = ref->queue;
}

static void orphan_arrivals_attach(struct core *c, u32 entry) {
    struct entry *e = index_entry(&c->keys, entry);
    struct index_cursor cursor = {0};
    u32 no = c->sink ? ENTRY_NONE : index_find(&c->orphans, e->hash, &cursor);
    if (no == ENTRY_NONE || index_entry(&c->orphans, no)->queue != e->queue) return;
    struct entry *o = index_entry(&c->orphans, no);
    arrivals_apply(c, entry, o->at);
    index_remove(&c->orphans, no);
    index_release(&c->orphans, no);
}

static hx_st apply_message(struct core *c, const struct rec_message *r, u64 pos, u64 size) {
    if (r->ref.seq >= c->next_seq) c->next_seq = r->ref.seq + 1;
    u32 no = r->carried ? live_find(c, &r->ref) : MESSAGE_NONE;
    if (no != MESSAGE_NONE) { /* carried while its first record is still there: only its place in the journal is new */
        entry_move(c, entry_of(c, message_at(c, no)), size);
        message_at(c, no)->pos = pos;
        return ST_OK;
    }
    struct queue *q = queue_touch(c, r->ref.queue);
    if (!r->carried) {
        INVARIANT(8, r->ref.seq + 1 == c->next_seq);
        q->counters.accepted++;
        if (!c->sink && c->first_fresh_seq == 0) c->first_fresh_seq = r->ref.seq;
        if (r->replaces) replace_settled(c, r->ref.hash, r->replaces, r->replaces_seq);
    }
    no = message_new(c);
    struct message *m = message_at(c, no);
    m->seq = r->ref.seq;
    m->pos = pos;
    m->queue = r->ref.queue;
    m->due_ms = r->due_ms;
    m->ttl_ms = r->ttl_ms;
    m->key_len = (u8)r->key.n;
    m->request_id_len = (u8)r->request_id.n;
    m->lease_paid = !r->carried || r->state == STATE_PENDING;
    m->entry = index_insert(&c->keys, r->ref.hash);
    struct entry *e = entry_of(c, m);
    e->at = no;
    e->queue = r->ref.queue;
    entry_move(c, e, size);
    if (r->carried) {
        message_load_state(c, m, r);
        orphan_arrivals_attach(c, m->entry);
    }
    reserve_on(c, m);
    if (r->group.n) group_join(c, no, r->group);
    if (m->ttl_ms) ttl_push(c, no);
    enum state state = r->carried ? (enum state)r->state : STATE_PENDING;
    if (state == STATE_PENDING) {
        place_pending(c, no, false);
        return ST_OK;
    }
    m->when_ms = c->now.run_ms + m->lease_ms;
    place_message(c, no, state == STATE_LEASED ? PLACE_LEASED : state == STATE_HELD ? PLACE_HELD : PLACE_DEAD, false);
    return ST_OK;
}

static hx_st apply_lease(struct core *c, const struct rec_lease *r, struct errbuf *err) {
    struct queue *q = queue_touch(c, r->ref.queue);
    q->counters.delivered++;
    if (r->again) q->counters.redelivered++;
    INVARIANT(3, !c->sink || r->fence > c->fence);
    if (r->fence > c->fence) c->fence = r->fence;
    u32 no = live_find(c, &r->ref);
    if (no == MESSAGE_NONE) return orphan(c, "lease", &r->ref, err);
    struct message *m = message_at(c, no);
    INVARIANT(2, m->place != PLACE_LEASED);
    INVARIANT(3, r->fence > m->fence);
    reserve_off(c, m);
    unplace_message(c, no);
    m->fence = r->fence;
    m->lease_ms = r->lease_ms;
    m->started = r->started;
    m->attempts = r->attempts;
    m->ended = ENDED_OPEN;
    m->lease_paid = false;
    history_add(&m->history, &(struct history_item){
                                 .kind = HISTORY_ATTEMPT,
                                 .fence = r->fence,
                                 .at_ms = r->at_ms,
                                 .attempt = r->started ? r->attempts : (u16)(r->attempts + 1),
                                 .consumer = r->consumer,
                             });
    m->when_ms = c->now.run_ms + r->lease_ms;
    place_message(c, no, PLACE_LEASED, false);
    reserve_on(c, m);
    return ST_OK;
}

static hx_st apply_start(struct core *c, const struct rec_start *r, struct errbuf *err) {
    u32 no = live_find(c, &r->ref);
    if (no == MESSAGE_NONE) return orphan(c, "start", &r->ref, err);
    struct message *m = message_at(c, no);
    INVARIANT(4, r->fence == m->fence);
    m->started = true;
    m->attempts = r->attempts;
    history_set_attempt(&m->history, r->fence, r->attempts);
    return ST_OK;
}

/* The lease runs anew, also one that had run out while nobody else took the message. */
static hx_st apply_extend(struct core *c, const struct rec_extend *r, struct errbuf *err) {
    u32 no = live_find(c, &r->ref);
    if (no == MESSAGE_NONE) return orphan(c, "extend", &r->ref, err);
    struct message *m = message_at(c, no);
    INVARIANT(4, r->fence == m->fence);
    reserve_off(c, m);
    bool revived = m->place != PLACE_LEASED;
    unplace_message(c, no);
    m->lease_ms = r->lease_ms;
    m->crashes = r->crashes;
    m->when_ms = c->now.run_ms + r->lease_ms;
    place_message(c, no, PLACE_LEASED, false);
    if (revived) {
        m->started = m->ended == ENDED_EXPIRED; /* else it lapsed */
        m->ended = ENDED_OPEN;
        history_end(&m->history, r->fence, r->at_ms, ENDED_OPEN, CLASS_NONE, SL(""));
    }
    reserve_on(c, m);
    return ST_OK;
}

static void count_return(struct queue *q, const struct rec_return *r) {
    if (r->ended == ENDED_NACKED) q->counters.nacked++;
    if (r->ended == ENDED_EXPIRED) q->counters.leases_expired++;
    if (r->ended == ENDED_RELEASED) q->counters.released++;
    if (r->state == STATE_DEAD) q->counters.dead_lettered++;
}

static hx_st apply_return(struct core *c, const struct rec_return *r, struct errbuf *err) {
    count_return(queue_touch(c, r->ref.queue), r);
    u32 no = live_find(c, &r->ref);
    if (no == MESSAGE_NONE) return orphan(c, "return", &r->ref, err);
    struct message *m = message_at(c, no);
    INVARIANT(4, r->fence == m->fence);
    bool given_back = r->ended == ENDED_RELEASED || r->ended == ENDED_UNDONE;
    bool attempted = !given_back && r->ended != ENDED_LAPSED;
    reserve_off(c, m);
    unplace_message(c, no);
    if (attempted) {
        history_end(&m->history, r->fence, r->at_ms, r->ended, r->failure_class, r->reason);
        history_set_attempt(&m->history, r->fence, r->attempts);
    } else {
        history_remove_attempt(&m->history, r->fence); /* nothing was done under it */
    }
    m->ended = r->ended;
    m->started = false;
    m->attempts = r->attempts;
    m->failures = r->failures;
    m->unknowns = r->unknowns;
    m->crashes = r->crashes;
    m->due_ms = r->due_ms;
    if (r->state == STATE_PENDING)
        place_pending(c, no, given_back);
    else
        place_message(c, no, r->state == STATE_HELD ? PLACE_HELD : PLACE_DEAD, false);
    reserve_on(c, m);
    if (r->state != STATE_PENDING && c->sink) c->sink->on_outcome(c->sink->ctx, &r->ref);
    return ST_OK;
}

static hx_st apply_history(struct core *c, const char *what, const struct ref *ref, const struct history_item *item,
                           struct errbuf *err) {
    u32 no = live_find(c, ref);
    if (no == MESSAGE_NONE) return orphan(c, what, ref, err);
    struct message *m = message_at(c, no);
    reserve_off(c, m);
    history_add(&m->history, item);
    reserve_on(c, m);
    return ST_OK;
}

static void count_settle(struct queue *q, const struct rec_settle *r) {
    if (r->state == STATE_DONE) q->counters.acked++;
    if (r->state == STATE_REJECTED) q->counters.rejected++;
    if (r->state == STATE_CANCELLED) q->counters.cancelled++;
}

static hx_st apply_settle(struct core *c, const struct rec_settle *r, u64 pos, u64 size) {
    struct queue *q = queue_touch(c, r->ref.queue);
    if (r->ref.seq >= c->next_seq) c->next_seq = r->ref.seq + 1;
    if (r->fence > c->fence) c->fence = r->fence;
    if (!r->carried) count_settle(q, r);
    u32 entry = r->carried ? settled_at(c, r->ref.hash, r->from_pos, r->ref.seq) : ENTRY_NONE;
    if (entry != ENTRY_NONE) {
        entry_move(c, index_entry(&c->keys, entry), size);
        index_entry(&c->keys, entry)->at = pos;
        return ST_OK;
    }
    u32 no = live_find(c, &r->ref);
    if (no != MESSAGE_NONE) {
        struct message *m = message_at(c, no);
        INVARIANT(4, r->fence == m->fence);
        entry = m->entry;
        reserve_off(c, m);
        unplace_message(c, no);
        group_leave(c, no);
        message_free(c, no);
    } else {
        INVARIANT(5, !c->sink); /* live, only what is unsettled can settle */
        entry = index_insert(&c->keys, r->ref.hash);
        index_entry(&c->keys, entry)->queue = r->ref.queue;
        orphan_arrivals_attach(c, entry);
    }
    struct entry *e = index_entry(&c->keys, entry);
    e->kind = ENTRY_SETTLED;
    e->at = pos;
    e->queue = r->ref.queue;
    e->seq_low = r->ref.seq & SEQ_LOW_MASK;
    e->settled_run_ms = (u64)r->settled_run_ms & (((u64)1 << 48) - 1);
    entry_move(c, e, size);
    window_add(c, entry);
    if (c->sink) c->sink->on_outcome(c->sink->ctx, &r->ref);
    return ST_OK;
}

/* In recovery: unsettled by seq; a settled key has none in memory and is taken by its hash. */
static u32 known_entry(const struct core *c, const struct ref *ref) {
    if (c->sink) { /* live, the decision knows */
        const struct entry *e = index_entry(&c->keys, c->likely_entry);
        CHECK(e->hash == ref->hash);
        return c->likely_entry;
    }
    struct index_cursor cursor = {0};
    for (u32 no; (no = index_find(&c->keys, ref->hash, &cursor)) != ENTRY_NONE;) {
        const struct entry *e = index_entry(&c->keys, no);
        if (e->kind == ENTRY_LIVE && message_at(c, (u32)e->at)->seq == ref->seq) return no;
        if (e->kind == ENTRY_SETTLED && !entry_forgotten(c, e)) return no;
    }
    return ENTRY_NONE;
}

static hx_st apply_arrivals(struct core *c, const struct rec_arrivals *r, u64 pos) {
    struct queue *q = queue_touch(c, r->ref.queue);
    q->counters.duplicates += r->fresh;
    q->counters.conflicts += r->fresh_conflicts;
    u32 entry = known_entry(c, &r->ref);
    if (entry != ENTRY_NONE)
        arrivals_apply(c, entry, pos);
    else
        orphan_arrivals_keep(c, &r->ref, pos); /* its key was carried, or settled, further on */
    return ST_OK;
}

static hx_st apply_expire(struct core *c, const struct rec_expire *r) {
    struct queue *q = queue_touch(c, r->queue);
    q->counters.keys_expired += r->keys;
    window_forget(c, q, r->upto_run_ms);
    return ST_OK;
}

hx_st core_apply(struct core *c, const struct record *r, u64 pos, u64 size, struct errbuf *err) {
    switch (r->type) {
    case REC_CLOCK:
        return apply_clock(c, &r->clock);
    case REC_QUEUE:
        return apply_queue(c, &r->queue, pos, size);
    case REC_MESSAGE:
        return apply_message(c, &r->message, pos, size);
    case REC_LEASE:
        return apply_lease(c, &r->lease, err);
    case REC_START:
        return apply_start(c, &r->start, err);
    case REC_EXTEND:
        return apply_extend(c, &r->extend, err);
    case REC_RETURN:
        return apply_return(c, &r->ret, err);
    case REC_STEP:
        return apply_history(c, "step", &r->step.ref,
                             &(struct history_item){.kind = HISTORY_STEP,
                                                    .name = r->step.name,
                                                    .content_type = r->step.content_type,
                                                    .result = r->step.result},
                             err);
    case REC_EFFECT:
        return apply_history(c, "effect", &r->effect.ref,
                             &(struct history_item){.kind = HISTORY_EFFECT, .name = r->effect.effect_id}, err);
    case REC_SETTLE:
        return apply_settle(c, &r->settle, pos, size);
    case REC_ARRIVALS:
        return apply_arrivals(c, &r->arrivals, pos);
    case REC_EXPIRE:
        return apply_expire(c, &r->expire);
    case REC_NONE:
    case REC_COUNT:
        break;
    }
    return err_set(err, ST_DAMAGED, "a record without a type");
}

u64 core_emit(struct core *c, const struct record *r) {
    const struct core_sink *s = c->sink;
    char *p = s->reserve(s->ctx, record_size_max(r));
    size_t n = record_encode(r, p);
    u64 pos = s->append(s->ctx, r->type, RECORD_VERSION, n);
    c->wrote_since_clock = true;
    struct errbuf err;
    CHECK(core_apply(c, r, pos, n + RECORD_HEAD_BYTES, &err) == ST_OK);
    return pos;
}

hx_st core_replay(struct core *c, u64 pos, u8 type, u8 version, slice body, struct errbuf *err) {
    struct record r;
    hx_st st = record_decode(type, version, body, &r, err);
    return st == ST_OK ? core_apply(c, &r, pos, body.n + RECORD_HEAD_BYTES, err) : st;
}
