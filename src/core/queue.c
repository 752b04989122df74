/* Queues: made, given rules, paused, deleted, looked at. */
#include "core/core_priv.h"

#define AUDIT_BYTES_MAX 4096u /* of who, what and why together, and what frames them */

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
        .push_paused = q->push_paused,
        .push_gone = q->push_gone,
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

u32 core_queues_left(const struct core *c) {
    return QUEUES_MAX - c->queue_count + c->queues_vacant;
}

static bool queue_make(struct core *c, slice name, const struct queue_spec *spec, const struct audit_in *audit,
                       u16 *queue) {
    struct record r = {.type = REC_QUEUE};
    r.queue = (struct rec_queue){
        .created_ms = c->now.wall_ms,
        .rules = spec->rules,
        .origin = (u8)spec->origin,
        .name = name,
        .config = spec->config,
    };
    window_change(NULL, c->now.run_ms, &r.queue);
    /* The trail names the queue by its number, so here the deed comes first: there must be room for both. */
    u64 room = c->sink->cost(record_size(&r)) + (audit ? AUDIT_BYTES_MAX + audit->detail.n : 0);
    if (core_queues_left(c) == 0 || !room_for(c, room)) return false;
    r.queue.queue = *queue = c->vacant_first ? c->vacant_first : (u16)(c->queue_count + 1);
    core_emit(c, &r);
    if (audit) CHECK(audit_deed(c, audit, *queue, NULL, SL(""), 0));
    return true;
}

bool core_queue_ensure(struct core *c, struct core_now now, slice name, const struct rules *rules, u16 *queue) {
    if (core_queue_find(c, name, queue)) return true;
    c->now = now;
    return queue_make(c, name, &(struct queue_spec){.rules = *rules, .origin = ORIGIN_AUTO}, NULL, queue);
}

/* Itself, and while it is paused, or its pushing is, the resumption of each, beyond what is reserved for that. */
static bool write_named(struct core *c, const struct rec_queue *q, const struct audit_in *audit) {
    struct record r = {.type = REC_QUEUE, .queue = *q};
    u64 size = record_size(&r), paid = resume_room(c, queue_at(c, q->queue));
    u64 room = c->sink->cost(size) + ((u64)q->paused + q->push_paused) * c->sink->cost(size + RECORD_HEAD_BYTES);
    if (!audit_deed(c, audit, q->queue, NULL, SL(""), room > paid ? room - paid : 0)) return false;
    core_emit(c, &r);
    return true;
}

bool core_queue_set(struct core *c, struct core_now now, slice name, const struct queue_spec *spec,
                    const struct audit_in *audit, u16 *queue) {
    c->now = now;
    CHECK(spec->config.n <= CONFIG_BYTES_MAX);
    if (!core_queue_find(c, name, queue)) return queue_make(c, name, spec, audit, queue);
    const struct queue *q = queue_at(c, *queue);
    struct record r = {.type = REC_QUEUE, .queue = queue_record(q)};
    r.queue.rules = spec->rules;
    r.queue.origin = (u8)spec->origin;
    r.queue.config = spec->config;
    window_change(q, now.run_ms, &r.queue);
    if (r.queue.rules.window_ms != q->rules.window_ms) r.queue.window_changed_ms = now.wall_ms;
    bool same =
        rules_equal(&r.queue.rules, &q->rules) && r.queue.origin == q->origin && slice_eq(r.queue.config, q->config);
    return same || write_named(c, &r.queue, audit);
}

enum delete_verdict core_queue_delete(struct core *c, struct core_now now, u16 queue, const struct audit_in *audit) {
    c->now = now;
    const struct queue *q = queue_at(c, queue);
    if (q->unsettled) return DELETE_UNSETTLED;
    struct rec_queue r = queue_record(q);
    r.deleted = true;
    r.paused = r.push_paused = r.push_gone = false;
    r.config = SL("");
    return write_named(c, &r, audit) ? DELETE_OK : DELETE_FULL;
}

enum pause_verdict core_queue_pause(struct core *c, struct core_now now, u16 queue, bool paused,
                                    const struct audit_in *audit) {
    c->now = now;
    struct rec_queue r = queue_record(queue_at(c, queue));
    if (r.paused == paused) return PAUSE_NO_CHANGE;
    r.paused = paused;
    return write_named(c, &r, audit) ? PAUSE_OK : PAUSE_FULL;
}

enum pause_verdict core_push_pause(struct core *c, struct core_now now, u16 queue, bool paused,
                                   const struct audit_in *audit) {
    c->now = now;
    struct rec_queue r = queue_record(queue_at(c, queue));
    if (r.push_paused == paused && !r.push_gone) return PAUSE_NO_CHANGE;
    r.push_paused = paused;
    r.push_gone = false;
    return write_named(c, &r, audit) ? PAUSE_OK : PAUSE_FULL;
}

enum pause_verdict core_push_gone(struct core *c, struct core_now now, u16 queue, const struct audit_in *audit) {
    c->now = now;
    struct rec_queue r = queue_record(queue_at(c, queue));
    if (r.push_paused) return PAUSE_NO_CHANGE;
    r.push_paused = r.push_gone = true;
    return write_named(c, &r, audit) ? PAUSE_OK : PAUSE_FULL;
}

void core_queue_write(struct core *c, u16 queue) {
    struct rec_queue r = queue_record(queue_at(c, queue));
    write_queue(c, &r);
}

u32 core_queue_count(const struct core *c) {
    return c->queue_count;
}

u64 core_queue_since(const struct core *c, u16 queue) {
    return queue_at(c, queue)->since;
}

const struct rules *core_queue_rules(const struct core *c, u16 queue) {
    return &queue_at(c, queue)->rules;
}

bool core_queue_had_conflicts(const struct core *c, u16 queue) {
    const struct counters *n = &queue_at(c, queue)->counters;
    return n->conflicts_admitted || n->conflicts_held;
}

slice core_queue_name(const struct core *c, u16 queue) {
    const struct queue *q = queue_at(c, queue);
    return q->deleted ? SL("") : q->name;
}

void core_queue_info(const struct core *c, struct core_now now, u16 queue, struct queue_info *out) {
    const struct queue *q = queue_at(c, queue);
    *out = (struct queue_info){
        .queue = queue,
        .name = q->name,
        .config = q->config,
        .origin = (enum origin)q->origin,
        .paused = q->paused,
        .push_paused = q->push_paused,
        .push_gone = q->push_gone,
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
        .bytes = q->bytes,
        .conflict_copies = q->conflict_copies,
        .refused_copies = q->refused_copies,
        .refused_bytes = q->refused_bytes,
        .ready = q->places[PLACE_READY].count + q->places[PLACE_LOOKUP].count,
        .lookups = q->places[PLACE_LOOKUP].count,
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
    u32 head = longest_ready(c, q);
    if (head != MESSAGE_NONE) out->oldest_ready_ms = now.run_ms - message_at(c, head)->when_ms;
}
