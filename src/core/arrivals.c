/* Arrivals: how often a key came again, and its last few times.
 *
 * A duplicate needs no record before it is answered. It is tallied in memory, and tallies are written down together, at
 * most a second late, as one ARRIVALS record per key that holds the whole count and the last eight. A conflict is written
 * down at once. What is written is not kept in memory: only its position, for keys that ever came twice.
 *
 * On a full disk nobody's room is taken for this (P8): tallies stay in memory until there is some. If more keys repeat
 * meanwhile than there are tallies, the keys' own counts are given up, and only the queue's goes on. */
#include "base/pages.h"
#include "core/state.h"

#define WRITE_AFTER_MS 1000
#define WRITE_AHEAD    16u
#define WRITE_TOGETHER 64u /* when there is no tally left */

static u32 tally_home(u32 entry) {
    return (entry * 2654435769u) & (TALLY_SLOTS - 1);
}

static u32 slot_entry(u64 slot) {
    return (u32)(slot >> 32);
}

/* The slot of this entry's tally, or the empty one where it would go. */
static u32 tally_slot(const struct core *c, u32 entry) {
    u32 i = tally_home(entry);
    while (c->tally_slots[i] != 0 && slot_entry(c->tally_slots[i]) != entry) i = (i + 1) & (TALLY_SLOTS - 1);
    return i;
}

static struct tally *tally_of(const struct core *c, u32 entry) {
    u32 no = (u32)c->tally_slots[tally_slot(c, entry)];
    return no ? &c->tallies[no - 1] : NULL;
}

const struct tally *tally_find(const struct core *c, u32 entry) {
    return tally_of(c, entry);
}

slice tally_last(const struct tally *t) {
    return slice_of(t->more ? t->more : t->here, t->len);
}

/* Room for so many bytes of arrivals; those there are stay. */
static char *tally_room(struct tally *t, size_t len) {
    if (!t->more && len <= sizeof t->here) return t->here;
    bool moves = !t->more;
    t->more = mem_realloc(t->more, len);
    if (moves) memcpy(t->more, t->here, t->len);
    return t->more;
}

static void drop_oldest(struct tally *t) {
    struct arrival oldest = {0};
    slice last = tally_last(t);
    char *from = t->more ? t->more : t->here;
    arrival_next(&last, &oldest);
    memmove(from, last.p, last.n);
    t->len = (u32)last.n & 0xffffff;
    t->count--;
}

static void tally_push(struct tally *t, const struct arrival *a) {
    if (t->count == ARRIVALS_KEPT) drop_oldest(t);
    size_t size = arrival_size(a);
    arrival_put(a, tally_room(t, t->len + size) + t->len);
    t->len = (u32)(t->len + size) & 0xffffff;
    t->count++;
}

/* Of a settled key the low bits are all there is in memory. */
static u64 seq_of(const struct core *c, const struct entry *e) {
    return e->kind == ENTRY_LIVE ? message_at(c, (u32)e->at)->seq : SEQ_SETTLED | e->seq_low;
}

/* The k-th oldest. */
static struct tally *tally_at(const struct core *c, u32 k) {
    return &c->tallies[(c->tally_first + k) & (TALLIES_MAX - 1)];
}

/* false: no room; it stays as it is. */
static bool tally_write(struct core *c, struct tally *t) {
    if (t->fresh == 0 && t->fresh_conflicts == 0) return true;
    const struct entry *e = index_entry(&c->keys, t->entry);
    if (entry_former(c, e)) return true; /* nothing names its queue again */
    struct record r;                     /* large, and written thousands at a time: only what is used is set */
    r.type = REC_ARRIVALS;
    r.about = t->entry;
    r.arrivals = (struct rec_arrivals){
        .ref = {.hash = e->hash, .seq = t->seq, .queue = e->queue},
        .total = t->total,
        .duplicates = t->duplicates,
        .fresh = t->fresh,
        .fresh_conflicts = t->fresh_conflicts,
        .count = t->count,
        .last = tally_last(t),
    };
    if (!room_for_count(c, c->sink->cost(record_size(&r)))) return false;
    queue_mut(c, e->queue)->unwritten_duplicates -= t->fresh;
    t->fresh = t->fresh_conflicts = 0;
    core_emit(c, &r);
    return true;
}

/* The key's own count will not be written; the queue's is still to be. */
static void tally_give_up(struct core *c, struct tally *t) {
    const struct entry *e = index_entry(&c->keys, t->entry);
    struct queue *q = queue_mut(c, e->queue);
    if (entry_former(c, e)) return;
    q->uncounted.duplicates += t->fresh;
    q->uncounted.conflicts += t->fresh_conflicts;
    q->unwritten_duplicates -= t->fresh;
    t->fresh = t->fresh_conflicts = 0;
    c->uncounted = true;
}

/* Entries of a flush lie anywhere: what the next ones will touch is brought near meanwhile, some at a time so that the waits overlap. */
static void prefetch_writes(const struct core *c, u32 from) {
    for (u32 k = from; k < from + WRITE_AHEAD && k < c->tally_count; k++) {
        u32 entry = tally_at(c, k)->entry;
        near(index_entry(&c->keys, entry));
        tally_prefetch(c, entry, true);
    }
    for (u32 k = from - WRITE_AHEAD; k < from && k < c->tally_count; k++)
        needed_near(&c->needed, arrivals_pos(c, tally_at(c, k)->entry));
}

static void slot_delete(struct core *c, u32 i) {
    for (u32 j = i;;) { /* backward shift */
        c->tally_slots[i] = 0;
        for (;;) {
            j = (j + 1) & (TALLY_SLOTS - 1);
            if (c->tally_slots[j] == 0) return;
            u32 home = tally_home(slot_entry(c->tally_slots[j]));
            if (((j - home) & (TALLY_SLOTS - 1)) >= ((j - i) & (TALLY_SLOTS - 1))) break;
        }
        c->tally_slots[i] = c->tally_slots[j];
        i = j;
    }
}

static void tally_let_go(struct core *c, struct tally *t) {
    slot_delete(c, tally_slot(c, t->entry));
    mem_free(t->more);
    t->more = NULL;
    t->entry = ENTRY_NONE;
    t->fresh = t->fresh_conflicts = 0;
}

static void oldest_let_go(struct core *c) {
    struct tally *t = tally_at(c, 0);
    if (t->entry != ENTRY_NONE) tally_let_go(c, t);
    c->tally_first++;
    c->tally_count--;
}

bool tally_write_due(struct core *c, u32 budget, bool all) {
    if (c->tally_count == 0) return false;
    if (!all && c->now.run_ms - c->tally_oldest_run_ms < WRITE_AFTER_MS && c->tally_count < TALLIES_MAX / 2)
        return false;
    for (u32 n = 0; c->tally_count > 0; n++) {
        if (n == budget) return true;
        if (n == 0) prefetch_writes(c, 0);
        if (n % WRITE_AHEAD == 0) prefetch_writes(c, WRITE_AHEAD);
        struct tally *t = tally_at(c, 0);
        if (!tally_write(c, t)) {
            if (!all) return false; /* no room: they wait */
            tally_give_up(c, t);
        }
        oldest_let_go(c);
    }
    return false;
}

/* All at once would be a stall of many milliseconds, for one request and everybody behind it. */
static void tally_make_room(struct core *c) {
    for (u32 n = 0; n < WRITE_TOGETHER; n++) {
        if (n % WRITE_AHEAD == 0) prefetch_writes(c, WRITE_AHEAD);
        struct tally *t = tally_at(c, 0);
        if (!tally_write(c, t)) tally_give_up(c, t);
        oldest_let_go(c);
    }
}

void tallies_free(struct core *c) {
    for (u32 k = 0; k < c->tally_count; k++) mem_free(tally_at(c, k)->more);
    mem_free(c->tallies);
    mem_free(c->tally_slots);
}

static struct tally *tally_make(struct core *c, u32 entry, const struct rec_arrivals *known) {
    CHECK(c->tallies);
    if (c->tally_count == TALLIES_MAX) tally_make_room(c);
    if (c->tally_count == 0) c->tally_oldest_run_ms = c->now.run_ms;
    u32 slot = tally_slot(c, entry); /* an empty one: the tally is not there yet */
    struct tally *t = tally_at(c, c->tally_count++);
    c->tally_slots[slot] = (u64)entry << 32 | (u32)(t - c->tallies + 1);
    t->seq = seq_of(c, index_entry(&c->keys, entry));
    t->entry = entry;
    t->len = 0;
    t->count = 0; /* `here` is filled as it is counted, and `more` is NULL in whatever is free */
    t->total = t->duplicates = 0;
    if (!known) return t;
    memcpy(tally_room(t, known->last.n), known->last.p, known->last.n);
    t->len = (u32)known->last.n & 0xffffff;
    t->count = known->count & 0xff;
    t->total = known->total;
    t->duplicates = known->duplicates;
    return t;
}

void tally_note(struct core *c, u32 entry, const struct rec_arrivals *known, enum arrival_kind kind, slice request_id) {
    struct tally *t = tally_of(c, entry);
    if (!t) t = tally_make(c, entry, known);
    if (request_id.n > REQUEST_ID_BYTES_MAX) request_id.n = REQUEST_ID_BYTES_MAX;
    tally_push(t, &(struct arrival){.at_ms = c->now.wall_ms, .kind = (u8)kind, .request_id = request_id});
    t->total++;
    if (kind == ARRIVAL_CONFLICT) {
        t->fresh_conflicts++;
        tally_write(c, t);
        return;
    }
    t->duplicates++;
    t->fresh++;
    queue_mut(c, index_entry(&c->keys, entry)->queue)->unwritten_duplicates++;
}

/* ---- what is written: its position, by entry number. Eight bytes a key, in chunks that exist only where a key came twice. */

static u64 *written_slot(const struct core *c, u32 entry) {
    u32 chunk = entry >> ENTRY_CHUNK_BITS;
    if (chunk >= c->written_chunks || !c->written[chunk]) return NULL;
    return &c->written[chunk][entry & (ENTRY_CHUNK - 1)];
}

static u64 *written_slot_make(struct core *c, u32 entry) {
    u32 chunk = entry >> ENTRY_CHUNK_BITS;
    if (chunk >= c->written_chunks) {
        u32 count = chunk + 16;
        c->written = mem_realloc(c->written, count * sizeof *c->written);
        memset(c->written + c->written_chunks, 0, (count - c->written_chunks) * sizeof *c->written);
        c->written_chunks = count;
    }
    if (!c->written[chunk]) {
        c->written[chunk] = pages_map(ENTRY_CHUNK * sizeof(u64));
        c->written_bytes += ENTRY_CHUNK * sizeof(u64);
    }
    return &c->written[chunk][entry & (ENTRY_CHUNK - 1)];
}

void arrivals_free(struct core *c) {
    for (u32 i = 0; i < c->written_chunks; i++)
        if (c->written[i]) pages_unmap(c->written[i], ENTRY_CHUNK * sizeof(u64));
    mem_free(c->written);
}

void tally_prefetch(const struct core *c, u32 entry, bool written) {
    near(&c->tally_slots[tally_home(entry)]);
    const u64 *slot = written ? written_slot(c, entry) : NULL;
    if (slot) near(slot);
}

u64 arrivals_pos(const struct core *c, u32 entry) {
    if (!index_entry(&c->keys, entry)->has_arrivals) return 0;
    return *written_slot(c, entry);
}

void arrivals_apply(struct core *c, u32 entry, u64 pos) {
    struct entry *e = index_entry(&c->keys, entry);
    u64 *slot = written_slot_make(c, entry);
    if (e->has_arrivals) needed_over(&c->needed, *slot);
    *slot = pos;
    if (e->has_arrivals) return;
    e->has_arrivals = 1;
    c->repeated_keys++;
    c->live_bytes += ARRIVALS_BYTES;
}

void arrivals_forget(struct core *c, u32 entry) {
    struct tally *t = tally_of(c, entry);
    if (t) {
        tally_give_up(c, t);
        tally_let_go(c, t);
    }
    struct entry *e = index_entry(&c->keys, entry);
    if (!e->has_arrivals) return;
    needed_over(&c->needed, *written_slot(c, entry));
    e->has_arrivals = 0;
    c->repeated_keys--;
    c->live_bytes -= ARRIVALS_BYTES;
}
