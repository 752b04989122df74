/* Compaction: the oldest segment's records that still matter are written anew at the end, then the segment is dropped.
 *
 * Oldest first, always: whatever a record overrides is older still and goes with it or went before, so no tombstone has to
 * be kept for its own sake. It runs in slices at the end of turns, when the journal holds more than 2.4 times what is
 * alive: five parts are then written anew for seven that fall away, 0.7 of a write more per byte. Together with what is
 * preallocated, disk stays below three times the live data. */
#include "broker/broker_priv.h"

/* At the threshold more than half of what is read falls away, so reading twice what was appended gains on it. Beside that it
 * goes slowly: whoever sends one message at a time should not wait behind compaction's syncs. */
#define SLICE_PER_APPENDED   2u
#define SLICE_PER_MS         16384u
#define SLICE_PER_MS_PRESSED 262144u
#define SLICE_MIN            65536u
#define SLICE_MAX            (16ull << 20) /* twice what one request can append */
#define SLACK_SEGMENTS       3u

/* What was erased leaves the disk with the segments it lies in: everything up to there is compacted, whether that gains room
 * or not. A round takes in what was erased until it began; the next one waits, so that a stream of erasures does not
 * rewrite the journal over and over. */
#define ERASE_ROUND_MS ((i64)3600 * 1000)

static bool erases(struct broker *b, const struct journal_stats *s) {
    if (s->first < b->erase_target) return true;
    u64 upto = core_erase_upto(b->core);
    bool waits = b->erase_target && b->now.run_ms - b->erase_began_ms < ERASE_ROUND_MS;
    if (s->first >= upto || waits) return false;
    b->erase_target = upto;
    b->erase_began_ms = b->now.run_ms;
    return true;
}

static bool worth_it(struct broker *b, const struct journal_stats *s) {
    u64 live = core_live_bytes(b->core);
    return s->used_bytes > live * 12 / 5 + SLACK_SEGMENTS * s->segment_bytes;
}

/* No room for new work, but something to gain. */
static bool pressed(struct broker *b, const struct journal_stats *s) {
    u64 live = core_live_bytes(b->core);
    u64 wanted = core_reserved_bytes(b->core) + s->segment_bytes;
    return journal_room(b->journal) < wanted && s->used_bytes > live + live / 8 + 2 * s->segment_bytes;
}

/* A record that belongs to a key: does the key still point at it? */
static bool is_keyed(const struct journal_record *rec) {
    return rec->type == REC_MESSAGE || rec->type == REC_SETTLE || rec->type == REC_ARRIVALS;
}

static hx_st carry_one(struct broker *b, const struct journal_record *rec, struct errbuf *err) {
    struct record r, arrivals;
    if (is_keyed(rec) && !core_points_at(b->core, get_u64(rec->body.p), rec->pos)) return ST_OK;
    hx_st st = record_decode(rec->type, rec->version, rec->body, &r, err);
    if (st != ST_OK) return st;
    bool base = r.type == REC_MESSAGE || r.type == REC_SETTLE;
    u64 arrivals_pos = base ? core_carry_arrivals(b->core, &r, rec->pos) : 0;
    if (arrivals_pos) broker_fetch(b, arrivals_pos, 0, &b->lookup.arrivals_store, &arrivals);
    core_carry(b->core, b->now, &r, rec->pos, arrivals_pos ? &arrivals.arrivals : NULL);
    return ST_OK;
}

/* Most records of an old segment are dead, and finding that out is a look-up in cold memory. So they are taken some at a
 * time, and the waits overlap. Their bodies are copied: the scan's memory moves on, and carrying appends. */
#define TOGETHER 32u
struct collected {
    struct broker *b;
    u32 count, keyed;
    u64 hashes[TOGETHER];
    struct journal_record at[TOGETHER];
    size_t from[TOGETHER]; /* of the body, in b->scratch */
};

static hx_st carry_collected(struct collected *c, struct errbuf *err) {
    hx_st st = ST_OK;
    broker_prefetch(c->b, c->hashes, c->keyed);
    for (u32 i = 0; i < c->count && st == ST_OK; i++) {
        c->at[i].body.p = c->b->scratch.p + c->from[i];
        st = carry_one(c->b, &c->at[i], err);
    }
    c->count = c->keyed = 0;
    buf_reset(&c->b->scratch);
    return st;
}

/* What other records did is in the message's own by now, or the message is settled. */
static hx_st collect(void *ctx, const struct journal_record *rec, struct errbuf *err) {
    struct collected *c = ctx;
    if (is_keyed(rec)) {
        if (rec->body.n < 8) return err_set(err, ST_DAMAGED, "a %s record without a hash", record_name(rec->type));
        c->hashes[c->keyed++] = get_u64(rec->body.p);
    } else if (rec->type != REC_QUEUE && rec->type != REC_AUDIT) {
        return ST_OK;
    }
    c->from[c->count] = c->b->scratch.len;
    c->at[c->count++] = *rec;
    buf_slice_add(&c->b->scratch, rec->body);
    return c->count == TOGETHER ? carry_collected(c, err) : ST_OK;
}

/* As much as was appended calls for, and a little for the time that passed, so that it ends also when nothing is. */
static u64 compaction_due(const struct broker *b) {
    i64 passed = b->time.mono_ms - b->compact_mono_ms;
    u64 pace = b->compact_pressed ? SLICE_PER_MS_PRESSED : SLICE_PER_MS;
    u64 due = (b->appended - b->compact_appended) * SLICE_PER_APPENDED + (passed > 0 ? (u64)passed : 0) * pace;
    return due < SLICE_MAX ? due : SLICE_MAX;
}

void compact_some(struct broker *b) {
    struct journal_stats s;
    if (b->compact_until == 0) {
        journal_stats_get(b->journal, &s);
        u64 end = journal_oldest_end(b->journal);
        b->compact_pressed = end != 0 && pressed(b, &s);
        if (end == 0 || (!worth_it(b, &s) && !b->compact_pressed && !erases(b, &s))) return;
        b->compact_appended = b->appended; /* it owes nothing for the time before */
        b->compact_mono_ms = b->time.mono_ms;
        b->compact_cursor = s.first;
        b->compact_until = end;
    }
    struct errbuf err = {{0}};
    u64 bytes = compaction_due(b);
    if (bytes < SLICE_MIN) return;
    struct collected collected = {.b = b};
    buf_reset(&b->scratch);
    hx_st st = journal_scan(b->journal, &b->compact_cursor, b->compact_until, bytes, collect, &collected, &err);
    if (st == ST_OK) st = carry_collected(&collected, &err);
    b->compact_appended = b->appended;
    b->compact_mono_ms = b->time.mono_ms;
    if (st != ST_OK) {
        log_line(LOG_ERROR, "compaction cannot read the journal: %s: %s", status_text(st), err.text);
        check_failed(__FILE__, __LINE__, "journal_scan", "stored data cannot be read");
    }
    if (b->compact_cursor < b->compact_until) return;
    core_carry_end(b->core, b->now);
    journal_drop(b->journal, b->compact_until);
    b->compact_until = 0;
    b->compacted_segments++;
}
