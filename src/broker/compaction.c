#include "broker/compaction.h"

#include "broker/broker_priv.h"
#include "broker/budget.h"
#include "broker/report.h"
#include "broker/room.h"

/* It is paced by what falls away, not by what is appended: a send makes no garbage, and need not wait behind anybody's. At the
 * threshold 1.4 of 2.4 bytes read are dead, so reading 1.75 bytes for each that falls away gains on them. Where much falls away
 * while little is appended (a purge, the keys of a window, acks of large messages), that is a debt, paid off over a minute and by
 * those who append, half a byte for each of theirs; two, once it is large beside what is alive. Beside that it goes slowly: whoever
 * sends one message at a time should not wait behind compaction's syncs; faster only while nobody asks. */
#define SLICE_PER_4_FALLEN   7u
#define SLICE_PER_APPENDED   3u /* at most; the rest is debt */
#define DEBT_MS              60000u
#define DEBT_SEGMENTS        4u
#define SLICE_PER_MS         16384u
#define SLICE_PER_MS_PRESSED 262144u
#define SLICE_MIN            65536u
#define QUIET_MS             100            /* since the last request: nobody asks */
#define QUIET_SLICE          (256u << 10)   /* a turn, some 60 MB/s */
#define SLICE_PART           (256u << 10)   /* between two looks at the clock */
#define OWED_MAX             (256ull << 20) /* what a busy time leaves for a quieter one */
#define SLACK_SEGMENTS       3u
#define LOOK_MS              10000
#define DEAD_LOOK_MS         10 /* between two looks whether the oldest segment is dead altogether */
#define DEAD_AT_ONCE         8u /* segments */

/* What was erased leaves the disk with the segments it lies in: everything up to there is compacted, whether that gains room
 * or not. A round takes in what was erased until it began; the next one waits, so that a stream of erasures does not
 * rewrite the journal over and over. */
#define ERASE_ROUND_MS ((i64)3600 * 1000)

struct compaction {
    u64 cursor, until; /* until == 0: no segment is being read */
    u64 owed;          /* bytes that should have been read by now, for what fell away and the time that passed */
    u64 debt;          /* bytes that may be read later, */
    u64 debt_slack;    /* small as long as it is below that and what is alive */
    bool idle;         /* nothing was worth it when that was last looked at */
    u64 appended;      /* what had been appended in all when that was last reckoned, */
    u64 live;          /* what was alive, */
    i64 mono_ms;       /* and when that was */
    i64 dead_looked_ms;
    bool pressed;      /* room is short */
    u64 segments;      /* dropped since start */
    u64 erased_before; /* everything before it is compacted because something was erased there; 0: nothing */
    i64 erase_began_ms;
    struct buf bodies; /* of the records collected */
    u64 used_before;   /* by the journal, at the last look at whether this keeps up */
    i64 looked_run_ms;
    struct spell behind;
};

struct compaction *compaction_new(void) {
    struct compaction *c = mem_zalloc(sizeof(struct compaction));
    c->idle = true;
    return c;
}

void compaction_free(struct compaction *c) {
    if (!c) return;
    buf_free(&c->bodies);
    mem_free(c);
}

bool compaction_under_way(const struct broker *b) {
    return b->compaction->until != 0;
}

u64 compaction_segments(const struct broker *b) {
    return b->compaction->segments;
}

static bool erases(struct broker *b, const struct journal_stats *s) {
    struct compaction *c = b->compaction;
    if (s->first < c->erased_before) return true;
    u64 upto = core_erase_upto(b->core);
    bool waits = c->erased_before && b->now.run_ms - c->erase_began_ms < ERASE_ROUND_MS;
    if (s->first >= upto || waits) return false;
    c->erased_before = upto;
    c->erase_began_ms = b->now.run_ms;
    return true;
}

static u64 worth_from(struct broker *b, const struct journal_stats *s) {
    return core_live_bytes(b->core) * 12 / 5 + SLACK_SEGMENTS * s->segment_bytes;
}

/* What there is beyond the threshold. */
static u64 excess(struct broker *b, const struct journal_stats *s) {
    u64 bound = worth_from(b, s);
    return s->used_bytes > bound ? s->used_bytes - bound : 0;
}

/* No room for new work, but something to gain. */
static bool pressed(struct broker *b, const struct journal_stats *s) {
    u64 live = core_live_bytes(b->core);
    u64 wanted = room_promised(b) + s->segment_bytes;
    return journal_room(b->journal) < wanted && s->used_bytes > live + live / 8 + 2 * s->segment_bytes;
}

static hx_st carry_one(struct broker *b, const struct journal_record *rec, struct errbuf *err) {
    struct record r;
    hx_st st = record_decode(rec->type, rec->version, rec->body, &r, err);
    if (st == ST_OK) core_carry(b->core, b->now, &r, rec->pos);
    return st;
}

/* Finding what a record belongs to is a look-up in cold memory. So they are taken some at a time, and the waits overlap. Their
 * bodies are copied: the scan's memory moves on, and carrying appends. */
#define TOGETHER 32u
struct collected {
    struct broker *b;
    u32 count, keyed;
    u64 hashes[TOGETHER];
    struct journal_record at[TOGETHER];
    size_t from[TOGETHER]; /* of the body, in compaction.bodies */
};

static hx_st carry_collected(struct collected *c, struct errbuf *err) {
    hx_st st = ST_OK;
    struct ahead unread; /* the records themselves are in `at` already */
    core_prefetch(c->b->core, c->hashes, c->keyed, &unread);
    for (u32 i = 0; i < c->count && st == ST_OK; i++) {
        c->at[i].body.p = c->b->compaction->bodies.p + c->from[i];
        st = carry_one(c->b, &c->at[i], err);
    }
    c->count = c->keyed = 0;
    buf_reset(&c->b->compaction->bodies);
    return st;
}

/* What other records did is in the message's own by now, or the message is settled. */
static hx_st collect(void *ctx, const struct journal_record *rec, struct errbuf *err) {
    struct collected *c = ctx;
    bool keyed = record_of_key((enum record_type)rec->type);
    if (keyed && rec->body.n < 8) return err_set(err, ST_DAMAGED, "a %s record without a hash", record_name(rec->type));
    if (keyed) c->hashes[c->keyed++] = get_u64(rec->body.p);
    c->from[c->count] = c->b->compaction->bodies.len;
    c->at[c->count++] = *rec;
    buf_slice_add(&c->b->compaction->bodies, rec->body);
    return c->count == TOGETHER ? carry_collected(c, err) : ST_OK;
}

static u64 next_needed(void *ctx, u64 from) {
    const struct collected *c = ctx;
    return core_carry_next(c->b->core, from, c->b->compaction->until);
}

static u64 called_for(u64 fallen) {
    return fallen / 4 * SLICE_PER_4_FALLEN;
}

static void look_again(struct broker *b) {
    b->compaction->appended = room_appended(b);
    b->compaction->live = core_live_bytes(b->core);
}

static u64 pay_off(struct compaction *c, u64 appended, u64 passed_ms) {
    bool large = c->debt > c->live + c->debt_slack;
    u64 part = (large ? appended * 2 : appended / 2) + c->debt / DEBT_MS * passed_ms;
    if (part > c->debt) part = c->debt;
    c->debt -= part;
    return part;
}

/* As much as what fell away calls for, and a little for the time that passed, so that it ends also when nothing does. */
static void reckon(struct broker *b) {
    struct compaction *c = b->compaction;
    u64 passed = b->time.mono_ms > c->mono_ms ? (u64)(b->time.mono_ms - c->mono_ms) : 0;
    u64 appended = room_appended(b) - c->appended;
    i64 fallen = (i64)(appended + c->live - core_live_bytes(b->core));
    u64 all = called_for(fallen > 0 ? (u64)fallen : 0), most = appended * SLICE_PER_APPENDED;
    u64 now = all < most ? all : most;
    look_again(b);
    c->mono_ms = b->time.mono_ms;
    c->debt += all - now;
    c->owed += now + pay_off(c, appended, passed) + passed * (c->pressed ? SLICE_PER_MS_PRESSED : SLICE_PER_MS);
    if (c->owed > OWED_MAX) c->owed = OWED_MAX;
}

/* Is there a segment to begin with? */
static bool begin(struct broker *b) {
    struct compaction *c = b->compaction;
    struct journal_stats s;
    journal_stats_get(b->journal, &s);
    u64 end = journal_oldest_end(b->journal);
    u64 beyond = excess(b, &s);
    c->pressed = end != 0 && pressed(b, &s);
    bool idle = c->idle;
    c->idle = end == 0 || (beyond == 0 && !c->pressed && !erases(b, &s));
    if (c->idle) return false;
    c->debt_slack = DEBT_SEGMENTS * s.segment_bytes;
    reckon(b);
    if (idle) { /* nothing for the time before */
        c->owed = 0;
        c->debt = called_for(beyond);
    }
    c->cursor = s.first;
    c->until = end;
    return true;
}

static void read_part(struct broker *b, u64 bytes) {
    struct compaction *c = b->compaction;
    struct errbuf err = {{0}};
    struct collected collected = {.b = b};
    u64 from = c->cursor;
    buf_reset(&c->bodies);
    const struct journal_wanted wanted = {
        .next = next_needed, .stretch = CARRY_STRETCH, .each = collect, .ctx = &collected};
    hx_st st = journal_scan(b->journal, &c->cursor, c->until, bytes, &wanted, &err);
    if (st == ST_OK) st = carry_collected(&collected, &err);
    if (st != ST_OK) {
        report(b, LOG_ERROR, "read_failed", "compaction cannot read the journal",
               log_text("status", slice_str(status_text(st))), log_text("detail", slice_str(err.text)));
        check_failed(__FILE__, __LINE__, "journal_scan", "stored data cannot be read");
    }
    u64 read = c->cursor - from;
    c->owed -= read < c->owed ? read : c->owed;
}

/* What is dead stays behind by as much again as is left on purpose, and the journal grows all the same. After a purge or an
 * expiry there may be as much, but then it shrinks. */
static bool falls_behind(struct broker *b, const struct journal_stats *s) {
    struct compaction *c = b->compaction;
    bool grows = s->used_bytes > c->used_before;
    c->used_before = s->used_bytes;
    return grows && s->used_bytes > 2 * worth_from(b, s);
}

static void tell_behind(struct broker *b) {
    struct compaction *c = b->compaction;
    struct journal_stats s;
    if (b->now.run_ms - c->looked_run_ms < LOOK_MS) return;
    c->looked_run_ms = b->now.run_ms;
    journal_stats_get(b->journal, &s);
    enum spell_change change = spell_look(&c->behind, falls_behind(b, &s), b->now.run_ms);
    if (change == SPELL_SAME) return;
    struct log_field used = log_number("used_bytes", (i64)s.used_bytes),
                     live = log_number("live_bytes", (i64)core_live_bytes(b->core));
    if (change == SPELL_BEGINS)
        report(b, LOG_WARN, "compaction_behind", "compaction cannot keep up with what is written: the journal grows",
               used, live);
    else
        report(b, LOG_INFO, "compaction_keeps_up", "compaction keeps up again", used, live);
}

/* While nobody asks it goes faster than it owes, so that whoever comes next finds it done and pays for nobody's garbage. */
static u64 quiet_extra(const struct broker *b) {
    u64 owed = b->compaction->owed;
    bool quiet = b->time.mono_ms - b->asked_mono_ms >= QUIET_MS;
    return quiet && owed < QUIET_SLICE ? QUIET_SLICE - owed : 0;
}

static void read_owed(struct broker *b) {
    struct compaction *c = b->compaction;
    struct budget g = budget_of(b, COMPACT_US);
    u64 extra = quiet_extra(b);
    c->owed += extra;
    while (c->owed >= SLICE_MIN && c->cursor < c->until && !budget_spent(&g))
        read_part(b, c->owed < SLICE_PART ? c->owed : SLICE_PART);
    u64 unused = extra < c->owed ? extra : c->owed, paid = extra - unused;
    c->owed -= unused;
    c->debt -= paid < c->debt ? paid : c->debt;
}

static void drop_segment(struct broker *b, u64 end) {
    core_carry_end(b->core, b->now, end);
    journal_drop(b->journal, end);
    b->compaction->segments++;
}

/* Segments in which nothing is needed any more go as they are, whatever is owed: nothing of them is read. */
static void drop_dead(struct broker *b) {
    struct compaction *c = b->compaction;
    if (b->time.mono_ms - c->dead_looked_ms < DEAD_LOOK_MS) return;
    c->dead_looked_ms = b->time.mono_ms;
    for (u32 i = 0; i < DEAD_AT_ONCE; i++) {
        struct journal_stats s;
        journal_stats_get(b->journal, &s);
        u64 end = journal_oldest_end(b->journal);
        if (end == 0 || core_carry_next(b->core, s.first, end) < end) return;
        drop_segment(b, end);
    }
}

/* What is carried is appended too, and not owed for: it would never end. */
void compaction_run(struct broker *b) {
    struct compaction *c = b->compaction;
    tell_behind(b);
    if (c->until == 0) drop_dead(b);
    if (c->until == 0 && !begin(b)) return;
    reckon(b);
    read_owed(b);
    look_again(b);
    if (c->cursor < c->until) return;
    drop_segment(b, c->until);
    c->until = 0;
}
