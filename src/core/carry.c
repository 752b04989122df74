/* Carrying: what compaction writes anew of the oldest segment, because it is still needed. */
#include "core/core_priv.h"

u64 core_carry_next(const struct core *c, u64 from, u64 upto) {
    return needed_next(&c->needed, from, upto);
}

static void carry_message(struct core *c, const struct rec_message *old, u64 pos) {
    u32 no = core_message_find(c, old->ref.hash, old->ref.seq);
    if (no == MESSAGE_NONE || message_at(c, no)->pos != pos) return;
    const struct message *m = message_at(c, no);
    const struct record was = {.type = REC_MESSAGE, .message = *old};
    struct record r = {.type = REC_MESSAGE, .about = no, .message = *old};
    r.message.carried = true;
    r.message.replaces = r.message.replaces_seq = 0;
    r.message.due_ms = m->due_ms;
    r.message.state = m->taken ? STATE_PENDING : (u8)message_state(m); /* taken: that follows from its head */
    r.message.traits = message_traits(m);
    r.message.ended = m->ended;
    r.message.started = m->started;
    r.message.generation = m->generation;
    r.message.lease_ms = m->lease_ms;
    r.message.attempts = m->attempts;
    r.message.failures = m->failures;
    r.message.unknowns = m->unknowns;
    r.message.crashes = m->crashes;
    r.message.lookups = (u16)m->lookups;
    r.message.fence = m->fence;
    r.message.history = slice_of(m->history.p, m->history.len);
    INVARIANT(19, record_size(&r) <= record_size(&was) + carry_room(m));
    core_emit(c, &r);
}

static void carry_settle(struct core *c, const struct rec_settle *old, u64 pos) {
    struct core_cursor cursor = {0};
    struct found f;
    while (core_find(c, old->ref.hash, &cursor, &f)) {
        if (f.message != MESSAGE_NONE || f.pos != pos) continue;
        struct record r = {.type = REC_SETTLE, .settle = *old};
        r.settle.carried = true;
        r.settle.from_pos = pos;
        r.settle.erasing = false;
        if (!core_payload_kept(c, c->now, old)) r.settle.kept = (struct kept){0};
        core_emit(c, &r);
        return;
    }
}

/* Its key may have been carried before it, past it: recovery keeps it until that comes. Its counts are in the queue's counters
 * already: the copy adds none. */
static void carry_arrivals(struct core *c, const struct rec_arrivals *old, u64 pos) {
    struct core_cursor cursor = {0};
    struct found f;
    while (core_find(c, old->ref.hash, &cursor, &f)) {
        if (f.arrivals_pos != pos) continue;
        struct record r = {.type = REC_ARRIVALS, .about = f.entry, .arrivals = *old};
        r.arrivals.fresh = r.arrivals.fresh_conflicts = 0;
        core_emit(c, &r);
        return;
    }
}

/* That a queue was deleted is written for the sake of older records. There are none left in front of it, and behind it none was
 * written. */
static void carry_queue(struct core *c, u16 queue, u64 pos) {
    const struct queue *q = queue_at(c, queue);
    if (q->pos == pos && !q->deleted) core_queue_write(c, queue);
}

static void carry_day(struct core *c, const struct record *r, u64 pos) {
    const struct queue *q = queue_at(c, r->day.queue);
    for (u32 i = 0; i < DAYS_KEPT; i++)
        if (q->days[i].pos == pos) {
            core_emit(c, r);
            return;
        }
}

void core_carry(struct core *c, struct core_now now, const struct record *r, u64 pos) {
    c->now = now;
    if (r->type == REC_MESSAGE) carry_message(c, &r->message, pos);
    if (r->type == REC_SETTLE) carry_settle(c, &r->settle, pos);
    if (r->type == REC_ARRIVALS) carry_arrivals(c, &r->arrivals, pos);
    if (r->type == REC_AUDIT) audit_carry(c, &r->audit, pos);
    if (r->type == REC_DAY) carry_day(c, r, pos);
    if (r->type == REC_QUEUE) carry_queue(c, r->queue.queue, pos);
}

/* A key without a place to carry it from would be gone with the segment. */
void core_carry_end(struct core *c, struct core_now now, u64 upto) {
    c->now = now;
    write_past_clocks(c);
    write_clock(c);
    core_derive(c, &(struct derived){.kind = DERIVE_DROPPED, .pos = upto});
    INVARIANT(21, c->needed.count >= index_count(&c->keys) + c->repeated_keys);
}
