#include "broker/compaction.h"

#include "broker/broker_priv.h"
#include "broker/budget.h"
#include "broker/report.h"
#include "broker/room.h"

/* It is paced by what it carries: what is dead costs nothing (core/needed.h), and how much is to be carried before a dead stretch is
 * reached nobody knows. Those who append pay a sixteenth of what they append. Once the journal has grown by a slope beyond the
 * threshold they pay more, after another slope a byte and a half for each, which gains on whatever they do: at the threshold five
 * bytes are carried for seven that fall away. What falls away at once (a purge, the keys of a window) is nobody's debt, for the journal
 * is no larger than before: it has a minute to leave in, and presses only when that was too short. Beside that it goes slowly: whoever
 * sends one message at a time should not wait behind compaction's syncs; faster only while nobody asks. */
#define SIXTEENTHS_MOST      24u /* of what is appended */
#define CARRY_PER_MS         4096u
#define CARRY_PER_MS_PRESSED 131072u
#define CARRY_MIN            65536
#define SLOPE_SEGMENTS       2u /* and three tenths of what is alive */
#define LEAVE_MS             60000u
#define LEAVE_PER_MS         32768u          /* at most */
#define QUIET_MS             100             /* since the last request: nobody asks */
#define QUIET_CARRY          (128 << 10)     /* a turn */
#define PART                 (256 << 10)     /* between two looks at the clock */
#define OWED_MAX             ((i64)64 << 20) /* what a busy time leaves for a quieter one */
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
    i64 owed;          /* bytes that should have been carried by now; below 0: too many were */
    u64 allowed;       /* so large may the journal be without anybody being pressed */
    u64 least;         /* that was alive since this began, */
    u64 grown;         /* and by so much it is more now */
    bool idle;         /* nothing was worth it when that was last looked at */
    u64 appended;      /* what had been appended in all when that was last reckoned, */
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

/* No room for new work, or not for what was refused, but something to gain: what is dead in the segment that is written cannot be had,
 * and it is no longer than one. */
static bool pressed(struct broker *b, const struct journal_stats *s) {
    u64 live = core_live_bytes(b->core), lacking = room_lacking(b);
    u64 wanted = room_promised(b) + (lacking > s->segment_bytes ? lacking : s->segment_bytes);
    return journal_room(b->journal) < wanted && s->used_bytes > live + live / 8 + s->segment_bytes;
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

/* The threshold and its slope, or what the journal had grown to while more was alive, as long as there is time to leave that; and what
 * came since and is alive comes on top: it is nobody's garbage. */
static void allow(struct broker *b, const struct journal_stats *s, u64 slope, u64 passed_ms) {
    struct compaction *c = b->compaction;
    u64 live = core_live_bytes(b->core), always = worth_from(b, s) + slope;
    if (live < c->least) c->least = live;
    c->allowed += live - c->least;
    c->allowed -= c->grown < c->allowed ? c->grown : c->allowed;
    c->grown = live - c->least;
    u64 over = c->allowed > always ? c->allowed - always : 0;
    u64 leave = over / LEAVE_MS * passed_ms, most = LEAVE_PER_MS * passed_ms;
    if (leave > most) leave = most;
    c->allowed = always + over - leave;
}

/* What those who appended pay. */
static u64 share_of(const struct compaction *c, u64 appended, u64 used, u64 slope) {
    u64 over = used > c->allowed ? used - c->allowed : 0;
    u64 sixteenths = 1 + SIXTEENTHS_MOST * (over < slope ? over : slope) / (slope + 1);
    return appended / 16 * sixteenths;
}

/* And a little for the time that passed, so that it ends also when nobody appends. */
static void reckon(struct broker *b) {
    struct compaction *c = b->compaction;
    struct journal_stats s;
    u64 passed = b->time.mono_ms > c->mono_ms ? (u64)(b->time.mono_ms - c->mono_ms) : 0;
    u64 appended = room_appended(b) - c->appended;
    if (passed == 0 && appended < CARRY_MIN) return;
    journal_stats_get(b->journal, &s);
    u64 slope = core_live_bytes(b->core) / 10 * 3 + SLOPE_SEGMENTS * s.segment_bytes;
    c->appended = room_appended(b);
    c->mono_ms = b->time.mono_ms;
    allow(b, &s, slope, passed);
    c->owed +=
        (i64)(share_of(c, appended, s.used_bytes, slope) + passed * (c->pressed ? CARRY_PER_MS_PRESSED : CARRY_PER_MS));
    if (c->owed > OWED_MAX) c->owed = OWED_MAX;
}

/* Is there a segment to begin with? */
static bool begin(struct broker *b) {
    struct compaction *c = b->compaction;
    struct journal_stats s;
    journal_stats_get(b->journal, &s);
    u64 end = journal_oldest_end(b->journal);
    bool worth = s.used_bytes > worth_from(b, &s);
    c->pressed = end != 0 && pressed(b, &s);
    bool idle = c->idle;
    c->idle = end == 0 || (!worth && !c->pressed && !erases(b, &s));
    if (c->idle) return false;
    if (idle) { /* nothing for the time before */
        c->allowed = s.used_bytes;
        c->least = core_live_bytes(b->core);
        c->grown = 0;
        c->appended = room_appended(b);
        c->mono_ms = b->time.mono_ms;
        c->owed = 0;
    }
    c->cursor = s.first;
    c->until = end;
    return true;
}

static void read_part(struct broker *b, u64 bytes) {
    struct compaction *c = b->compaction;
    struct errbuf err = {{0}};
    struct collected collected = {.b = b};
    u64 appended = room_appended(b);
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
    c->owed -= (i64)(room_appended(b) - appended);
    c->appended += room_appended(b) - appended; /* is not owed for: it would never end */
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
static i64 due(const struct broker *b) {
    bool quiet = b->time.mono_ms - b->asked_mono_ms >= QUIET_MS;
    i64 owed = b->compaction->owed;
    return quiet && owed < QUIET_CARRY ? QUIET_CARRY : owed;
}

/* What is carried is a part of what is passed: a part passes as much as may be carried at most. */
static void carry_due(struct broker *b) {
    struct compaction *c = b->compaction;
    struct budget g = budget_of(b, COMPACT_US);
    i64 extra = due(b) - c->owed;
    c->owed += extra;
    while (c->owed >= CARRY_MIN && c->cursor < c->until && !budget_spent(&g))
        read_part(b, (u64)(c->owed < PART ? c->owed : PART));
    i64 unused = c->owed < extra ? c->owed : extra;
    if (unused > 0) c->owed -= unused;
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

/* On a full disk it has two segments of its own, which are enough for what one holds. A segment it dropped is room only when the copies
 * are durable; a disk that takes long for that must not make the next ones' copies take what is promised to others. */
static bool outruns(struct broker *b) {
    struct journal_stats s;
    if (journal_room(b->journal) >= room_promised(b)) return false;
    journal_stats_get(b->journal, &s);
    return s.dropping > 0 && b->compaction->cursor == s.first; /* a segment that is begun is finished */
}

void compaction_run(struct broker *b) {
    struct compaction *c = b->compaction;
    tell_behind(b);
    if (c->until == 0) drop_dead(b);
    if (c->until == 0 && !begin(b)) return;
    if (outruns(b)) return;
    reckon(b);
    carry_due(b);
    if (c->cursor < c->until) return;
    drop_segment(b, c->until);
    c->until = 0;
}
