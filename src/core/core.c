/* The core's frame: birth, the end of recovery, and the end. */
#include "base/pages.h"
#include "core/state.h"

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
    c->ttls.kind = HEAP_TTL;
    c->messages_top = 1;
    c->accounts = mem_zalloc(sizeof *c->accounts);
    CHECK(options->shard < SHARDS_MAX);
    c->next_seq = seq_make(options->shard, 1);
    c->tallies = mem_zalloc(TALLIES_MAX * sizeof *c->tallies);
    c->tally_slots = mem_zalloc((size_t)TALLY_SLOTS * sizeof *c->tally_slots);
    return c;
}

static void free_messages(struct core *c, struct queue *q) {
    for (u32 p = 0; p < PLACE_COUNT; p++)
        for (u32 no = q->places[p].head; no != MESSAGE_NONE; no = message_at(c, no)->next)
            history_free(&message_mut(c, no)->history);
}

static void free_groups(struct core *c) {
    for (u32 no = 1; no < c->groups.entries_top; no++) {
        struct entry *e = index_entry(&c->groups, no);
        if (e->kind == ENTRY_FREE) continue;
        struct group *g = (struct group *)(uintptr_t)e->at;
        mem_free(g->late.at);
        mem_free(g);
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
        mem_free(q->waited.at);
        mem_free(q);
    }
    free_groups(c);
    for (u32 i = 0; i < c->message_chunk_count; i++)
        pages_unmap(c->message_chunks[i], MESSAGE_CHUNK * sizeof(struct message));
    mem_free(c->message_chunks);
    mem_free(c->queues);
    mem_free(c->accounts);
    tallies_free(c);
    mem_free(c->moving);
    mem_free(c->delays.at);
    mem_free(c->leases.at);
    mem_free(c->ttls.at);
    mem_free(c->reaping);
    history_free(&c->scratch);
    history_spares_free(&c->spares);
    audit_free(c);
    index_free(&c->keys);
    index_free(&c->groups);
    arrivals_free(c);
    needed_free(&c->needed);
    index_free(&c->queue_names);
    if (!c->sink) index_free(&c->orphans);
    mem_free(c);
}

/* ---- recovery's end */

/* A number that nothing names any more was a deleted queue's. */
static struct queue *former_queue(u16 id) {
    struct queue *q = mem_zalloc(sizeof *q);
    *q = (struct queue){.id = id, .known = true, .deleted = true, .rules = rules_default()};
    return q;
}

static hx_st check_queues(struct core *c, struct errbuf *err) {
    for (u32 id = 1; id <= c->queue_count; id++) {
        if (!c->queues[id]) c->queues[id] = former_queue((u16)id);
        if (!c->queues[id]->known)
            return err_set(err, ST_DAMAGED, "the journal holds messages of queue number %u but not the queue", id);
        if (c->queues[id]->deleted) vacant_add(c, c->queues[id]);
    }
    return ST_OK;
}

static void sum_reserves(struct core *c) {
    c->reserved_bytes = 0;
    for (u32 id = 1; id <= c->queue_count; id++) c->reserved_bytes += resume_room(c, queue_at(c, (u16)id));
    c->history_bytes = c->history_counted = 0;
    for (u32 id = 1; id <= c->queue_count; id++)
        for (u32 p = 0; p < PLACE_COUNT; p++)
            for (u32 no = c->queues[id]->places[p].head; no != MESSAGE_NONE; no = message_at(c, no)->next)
                reserve_on(c, message_at(c, no));
}

/* By the wall clock, which may be wrong, unless somebody said how long it was. */
static void charge_downtime(struct core *c, i64 wall_ms) {
    struct core_downtime *down = &c->downtime;
    if (c->now.wall_ms != 0) down->by_clock_ms = wall_ms - c->now.wall_ms;
    down->charged_ms = c->options.downtime_said ? c->options.downtime_ms : down->by_clock_ms;
    if (c->now.wall_ms == 0 || down->charged_ms < 0) down->charged_ms = 0;
    c->now.wall_ms = wall_ms;
    c->now.delay_ms += down->charged_ms;
}

struct core_downtime core_downtime(const struct core *c) {
    return c->downtime;
}

hx_st core_start(struct core *c, const struct core_sink *sink, i64 wall_ms, struct core_now *now, struct errbuf *err) {
    CHECK(!c->sink);
    hx_st st = check_queues(c, err);
    if (st != ST_OK) return st;
    charge_downtime(c, wall_ms);
    /* P3: above everything handed out, and above anything a lost later life could have handed out. */
    u64 from_clock = (u64)wall_ms << 20;
    if (from_clock > c->fence) c->fence = from_clock;
    c->sink_copy = *sink;
    c->sink = &c->sink_copy;
    index_free(&c->orphans);
    audit_sort(c);
    leases_rearm(c);
    sum_reserves(c);
    c->boot_due = true;
    *now = c->now;
    return ST_OK;
}

void core_stop(struct core *c, struct core_now now) {
    c->now = now;
    tally_write_due(c, TALLIES_MAX, true);
    write_counts(c);
    note_clock(c);
}

u64 core_live_bytes(const struct core *c) {
    return c->live_bytes;
}

u64 core_reserved_bytes(const struct core *c) {
    return c->reserved_bytes;
}

void core_room_set(struct core *c, u64 bytes) {
    c->room = bytes;
}

u64 core_room(const struct core *c) {
    return c->room;
}

u64 core_said_bytes(const struct core *c, u32 message) {
    const struct message *m = message_at(c, message);
    bool keeps = queue_at(c, m->queue)->rules.keep_payload_ms != 0;
    return m->history.len + (keeps ? entry_size(entry_of(c, m)) : 0);
}

u64 core_tick_bytes(const struct core *c, u32 budget) {
    u64 moves = (u64)c->leases.count + c->tally_count;
    return (moves < budget ? moves : budget) * 2 * ARRIVALS_BYTES;
}
