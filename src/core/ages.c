/* How long things have been waiting for somebody: looked up now and then, a bounded number of messages at a time. */
#include "core/core_priv.h"

static i64 first_attempt_ms(const struct message *m) {
    struct history_item item;
    slice history = slice_of(m->history.p, m->history.len);
    for (u32 at = 0; history_next(history, &at, &item);)
        if (item.kind == HISTORY_ATTEMPT) return item.at_ms;
    return INT64_MAX;
}

static void look_for_blocked(const struct core *c, const struct list *l, u32 look_at, struct queue_ages *out) {
    for (u32 no = l->head; no != MESSAGE_NONE && look_at; no = message_at(c, no)->next, look_at--)
        if (is_group_head(c, no) && group_waiting(c, no) && out->blocked_groups++ == 0)
            out->blocking = message_ref(c, message_at(c, no));
}

/* Leased now, or waiting for its next try. */
static void look_for_begun(const struct core *c, const struct list *l, u32 look_at, struct queue_ages *out) {
    for (u32 no = l->head; no != MESSAGE_NONE && look_at; no = message_at(c, no)->next, look_at--) {
        const struct message *m = message_at(c, no);
        i64 at_ms = m->attempts ? first_attempt_ms(m) : INT64_MAX;
        if (at_ms >= out->started_ms) continue;
        out->started_ms = at_ms;
        out->started = message_ref(c, m);
    }
}

bool core_started_ms(const struct core *c, const struct ref *ref, i64 *wall_ms) {
    u32 no = core_message_find(c, ref->hash, ref->seq);
    if (no == MESSAGE_NONE) return false;
    const struct message *m = message_at(c, no);
    *wall_ms = first_attempt_ms(m);
    return m->place != PLACE_HELD && m->place != PLACE_DEAD && *wall_ms != INT64_MAX;
}

void core_queue_ages(const struct core *c, struct core_now now, u16 queue, u32 look_at, struct queue_ages *out) {
    const struct queue *q = queue_at(c, queue);
    const struct list *held = &q->places[PLACE_HELD];
    *out = (struct queue_ages){.started_ms = INT64_MAX};
    if (held->head != MESSAGE_NONE) {
        const struct message *m = message_at(c, held->head);
        out->oldest_held_ms = now.run_ms - m->when_ms;
        out->held = message_ref(c, m);
    }
    look_for_blocked(c, held, look_at, out);
    look_for_blocked(c, &q->places[PLACE_DEAD], look_at, out);
    look_for_begun(c, &q->places[PLACE_LEASED], look_at, out);
    look_for_begun(c, &q->places[PLACE_LOOKUP], look_at, out);
    look_for_begun(c, &q->places[PLACE_READY], look_at, out);
    look_for_begun(c, &q->places[PLACE_DELAYED], look_at, out);
}

/* ---- days */

bool core_day_end(struct core *c, struct core_now now, u16 queue, u32 day, u64 accepted, u64 duplicates) {
    struct record r = {.type = REC_DAY,
                       .day = {.queue = queue, .day = day, .accepted = accepted, .duplicates = duplicates}};
    c->now = now;
    if (!room_for_count(c, c->sink->cost(record_size(&r)))) return false;
    core_emit(c, &r);
    return true;
}

bool core_doubled(const struct core *c, u16 queue, struct ref *key, i64 *since_ms) {
    const struct queue *q = queue_at(c, queue);
    *key = q->doubled;
    *since_ms = q->doubled_ms;
    return q->doubled.seq && !q->deleted;
}

u32 core_days(const struct core *c, u16 queue, u32 today, struct rec_day out[DAYS_KEPT]) {
    const struct queue *q = queue_at(c, queue);
    u32 count = 0;
    for (u32 i = 0; i < DAYS_KEPT; i++) {
        const struct queue_day *d = &q->days[i];
        if (d->day == 0 || d->day >= today || today - d->day > DAYS_KEPT) continue;
        out[count++] =
            (struct rec_day){.queue = queue, .day = d->day, .accepted = d->accepted, .duplicates = d->duplicates};
    }
    return count;
}
