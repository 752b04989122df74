/* Time: what is due because it has passed. Leases that ran out, delays and times to live that are over, windows, counts and
 * clocks to write down. */
#include "core/core_priv.h"

#define CLOCK_BUSY_MS 1000  /* how often the clocks are written down while there is other work ... */
#define CLOCK_IDLE_MS 10000 /* ... and while there is none */
#define CLOCK_BYTES   64u
#define CLOCK_SLIP_MS 1000 /* by so much a clock that is kept right goes fast or slow */
#define EXPIRY_MS     1000

static void emit_clock(struct core *c, enum clock_kind kind, i64 wall_ms, i64 delay_ms) {
    struct record r = {.type = REC_CLOCK};
    r.clock = (struct rec_clock){
        .next_seq = c->next_seq,
        .fence = c->fence,
        .wall_ms = wall_ms,
        .run_ms = c->now.run_ms,
        .delay_ms = delay_ms,
        .kind = (u8)kind,
    };
    core_emit(c, &r);
}

void write_clock(struct core *c) {
    enum clock_kind kind = c->boot_due ? CLOCK_BOOT : CLOCK_RUNNING;
    c->boot_due = false;
    emit_clock(c, kind, c->now.wall_ms, c->now.delay_ms);
}

void write_past_clocks(struct core *c) {
    for (u32 i = 0; i + 1 < c->era_count; i++)
        emit_clock(c, CLOCK_PAST, c->eras[i].wall_ms, c->eras[i].wall_ms - c->eras[i].ahead_ms);
}

static u32 two_oldest_as_one(struct era *e, u32 n) {
    e[1].ahead_ms = e[0].ahead_ms;
    memmove(e, e + 1, --n * sizeof *e);
    return n;
}

/* The delay clock goes on whatever is done to the other: where that falls behind it, it was set back, and an era ends. One that was
 * never further ahead than the present one and showed nothing later tells nothing any more. Of too many the two oldest are taken for
 * one that was as far ahead as the first for as long as the second. */
void clock_seen(struct core *c, i64 wall_ms, i64 delay_ms) {
    struct era now = {wall_ms - delay_ms, wall_ms}, *e = c->eras;
    u32 n = c->era_count;
    while (n && e[n - 1].ahead_ms <= now.ahead_ms && e[n - 1].wall_ms <= wall_ms) n--;
    if (n && e[n - 1].ahead_ms - now.ahead_ms <= CLOCK_SLIP_MS) {
        n--;
        if (e[n].ahead_ms > now.ahead_ms) now.ahead_ms = e[n].ahead_ms;
        if (e[n].wall_ms > now.wall_ms) now.wall_ms = e[n].wall_ms;
    }
    if (n > 1 && e[n - 2].wall_ms >= e[n - 1].wall_ms) n--; /* it has ended, and the one before tells as much */
    if (n == ERAS_MAX) n = two_oldest_as_one(e, n);
    e[n] = now;
    c->era_count = n + 1;
}

void past_clock_seen(struct core *c, i64 wall_ms, i64 delay_ms) {
    struct era then = {wall_ms - delay_ms, wall_ms}, all[ERAS_MAX + 1];
    u32 n = 0, i = 0;
    for (; i < c->era_count && c->eras[i].ahead_ms >= then.ahead_ms; i++) all[n++] = c->eras[i];
    if (n && all[n - 1].wall_ms >= then.wall_ms) return; /* that one tells as much */
    all[n++] = then;
    for (; i < c->era_count; i++)
        if (c->eras[i].wall_ms > then.wall_ms) all[n++] = c->eras[i];
    if (n > ERAS_MAX) n = two_oldest_as_one(all, n);
    memcpy(c->eras, all, n * sizeof *all);
    c->era_count = n;
}

i64 core_set_back_ms(const struct core *c, struct core_now now, i64 since_wall_ms) {
    i64 back = 0;
    for (u32 i = 0; i < c->era_count; i++) {
        i64 by = now.delay_ms + c->eras[i].ahead_ms - now.wall_ms;
        if (since_wall_ms <= c->eras[i].wall_ms && by > back) back = by;
    }
    return back;
}

/* Counts that no record implies. Losing the last second's in a crash is allowed. Without room they wait in memory. */
void write_counts(struct core *c) {
    if (!c->uncounted) return;
    c->uncounted = false;
    for (u32 id = 1; id <= c->queue_count; id++) {
        const struct queue *q = queue_at(c, (u16)id);
        static const struct counters none;
        if (q->deleted || memcmp(&q->uncounted, &none, sizeof none) == 0)
            continue; /* deleted: nothing names it again */
        struct record r = {.type = REC_COUNTS, .counts = {.queue = (u16)id, .add = q->uncounted}};
        if (!room_for_count(c, c->sink->cost(record_size(&r)))) {
            c->uncounted = true;
            return;
        }
        core_emit(c, &r);
    }
}

/* A lease ran out. Started work may have taken effect: a crash, counted as such. A reservation is simply given back. */
static bool decide_expiry(struct core *c, u32 no) {
    struct record r = lease_over_record(c, message_at(c, no), ENDED_EXPIRED);
    char brief[BRIEF_REASON_BYTES];
    if (r.ret.ended == ENDED_EXPIRED) r.ret.reason = brief_reason(c, SL(""), brief);
    if (!room_for(c, c->sink->cost(record_size(&r)) + history_room(r.ret.reason.n))) return false;
    core_emit(c, &r);
    return true;
}

static bool due_leases(struct core *c, u32 *budget) {
    while (c->leases.count && c->leases.at[0].when_ms <= c->now.run_ms) {
        if (*budget == 0) return true;
        --*budget;
        if (!decide_expiry(c, c->leases.at[0].message)) return false; /* no room: it waits, still leased */
    }
    return false;
}

/* Without room the clock waits: what a crash takes of it makes windows longer, never shorter, and what is left of the room
 * is for those who make more. */
void note_clock(struct core *c) {
    if (room_for_count(c, c->sink->cost(CLOCK_BYTES))) write_clock(c);
}

static void due_clock(struct core *c) {
    i64 since = c->now.run_ms - c->clock_written_run_ms;
    bool said = c->boot_due && c->options.downtime_said; /* by somebody who will not say it again */
    if (said || since >= (c->wrote_since_clock ? CLOCK_BUSY_MS : CLOCK_IDLE_MS)) note_clock(c);
}

bool core_tick(struct core *c, struct core_now now, u32 budget) {
    c->now = now;
    clock_seen(c, now.wall_ms, now.delay_ms);
    bool more = due_leases(c, &budget);
    if (now.run_ms - c->expiry_checked_run_ms >= EXPIRY_MS) {
        c->expiry_checked_run_ms = now.run_ms;
        window_decide(c);
        write_counts(c);
    }
    more |= core_derive(c, &(struct derived){.kind = DERIVE_PASSAGE, .budget = budget});
    more |= tally_write_due(c, budget, false);
    due_clock(c);
    return more;
}

u32 core_ttl_due(const struct core *c, struct core_now now) {
    if (c->ttls.count == 0 || c->ttls.at[0].when_ms > now.delay_ms) return MESSAGE_NONE;
    return c->ttls.at[0].message;
}

static i64 least(i64 a, i64 b) {
    return a < b ? a : b;
}

i64 core_next_ms(const struct core *c, struct core_now now, i64 at_most) {
    i64 next = c->moving_count ? 0 : at_most;
    if (c->leases.count) next = least(next, c->leases.at[0].when_ms - now.run_ms);
    if (c->delays.count) next = least(next, c->delays.at[0].when_ms - now.delay_ms);
    if (c->ttls.count) next = least(next, c->ttls.at[0].when_ms - now.delay_ms);
    return next > 0 ? next : 0;
}
