/* journal: does it make bytes durable? The port the broker writes to; adapters implement it.
 *
 * A journal is an endless sequence of records. A record has a position (u64, grows forever, never reused), a type, a
 * version and a body; what they mean is the core's business. Records are appended to the open batch in memory; a batch
 * is written and synced whole, and becomes durable whole. Everything below is called from one thread (the loop);
 * the adapter's own threads are its private matter and speak to the loop only through `wake`.
 *
 * The promises (the conformance suite in tests/unit/journal_conformance.h tests each on every adapter):
 *  J1  journal_durable(j) covers only what survives a power cut.
 *  J2  Replay yields a prefix of what was appended, in order, unaltered, and at least everything ever covered by
 *      journal_durable.
 *  J3  After a failed write or sync nothing becomes durable any more: journal_failed() says so for good (P7). What is
 *      appended before the caller asks has a position and can be read back all the same.
 *  J4  A record appended within journal_room() bytes never fails for lack of space (P8).
 *  J5  Damage that is not a torn tail makes open/replay fail with ST_DAMAGED, file and offset named. Nothing is
 *      repaired silently.
 *  J6  A dropped segment's records are gone only after everything appended before the drop is durable.
 *  J7  A second process on the same journal gets ST_BUSY. */
#ifndef HAPAX_JOURNAL_JOURNAL_H
#define HAPAX_JOURNAL_JOURNAL_H

#include "base/base.h"
#include "base/hist.h"

#define JOURNAL_RECORD_MAX  (4u << 20) /* body bytes; the largest legal record (message + steps + result) fits */
#define JOURNAL_RECORD_HEAD 16u        /* bytes a record takes beside its body (body is padded to 8) */
#define JOURNAL_BATCH_HEAD  64u        /* bytes a batch takes beside its records */

/* The most one append can take from journal_room(): the record, and a batch of its own. */
static inline u64 journal_cost(size_t body) {
    return JOURNAL_BATCH_HEAD + JOURNAL_RECORD_HEAD + ((body + 7) & ~(u64)7);
}

struct journal; /* first member of every adapter: { const struct journal_ops *ops; } */

/* One record as read back. `body` is borrowed: valid until the next append, read or scan on this journal; or, if
 * lasting, until its segment is dropped. */
struct journal_record {
    u64 pos;
    u8 type, version;
    bool lasting;
    slice body;
};

/* Called for each record. A status other than ST_OK stops the walk and is returned from it. */
typedef hx_st (*journal_each)(void *ctx, const struct journal_record *rec, struct errbuf *err);

struct journal_stats {
    u64 durable, tail; /* positions: everything below is durable / appended */
    u64 first;         /* position of the oldest record kept */
    u64 disk_bytes;    /* all files, spares included */
    u64 used_bytes;    /* first..tail: what compaction can shrink */
    u64 segment_bytes, segments, spares;
    u64 dropping;              /* segments that are dropped, and not room again yet */
    u64 batches, synced_bytes; /* since start */
    struct hist sync_us, batch_bytes;
    u64 sync_us_max;
    u64 unsynced_bytes; /* appended, not yet durable: the broker stops reading sockets when this is large */
};

/* Where there are records to be read: `next` names the first `stretch` bytes at or behind a position in which one begins, UINT64_MAX:
 * nowhere; not to find one there is damage. `each` gets every record that begins in them, and may append. */
struct journal_wanted {
    u64 (*next)(void *ctx, u64 from);
    u32 stretch;
    journal_each each;
    void *ctx;
};

struct journal_ops {
    hx_st (*replay)(struct journal *j, journal_each each, void *ctx, struct errbuf *err);
    hx_st (*start)(struct journal *j, struct errbuf *err);
    void *(*reserve)(struct journal *j, size_t body_max);
    u64 (*append)(struct journal *j, u8 type, u8 version, size_t body);
    void (*flush)(struct journal *j);
    u64 (*durable)(struct journal *j);
    const char *(*failed)(struct journal *j);
    hx_st (*read)(struct journal *j, u64 pos, size_t size_hint, struct journal_record *out, struct errbuf *err);
    void (*prefetch)(struct journal *j, const u64 *pos, const u32 *bytes, u32 count);
    hx_st (*scan)(struct journal *j, u64 *cursor, u64 until, size_t max_bytes, const struct journal_wanted *wanted,
                  struct errbuf *err);
    u64 (*oldest_end)(struct journal *j);
    void (*drop)(struct journal *j, u64 upto);
    u64 (*room)(struct journal *j);
    bool (*need)(struct journal *j, u64 bytes);
    void (*want)(struct journal *j, u64 bytes);
    void (*stats)(struct journal *j, struct journal_stats *out);
    void (*close)(struct journal *j);
};

struct journal {
    const struct journal_ops *ops;
};

/* Walk everything from the oldest kept record to the end. Called once, after open, before start. */
static inline hx_st journal_replay(struct journal *j, journal_each each, void *ctx, struct errbuf *err) {
    return j->ops->replay(j, each, ctx, err);
}
/* Make the tail trustworthy (rewritten and synced where it was not proven durable) and open for appending. When it
 * returns ST_OK, everything replayed is durable, and an unclean end has cost none of the room there was. */
static inline hx_st journal_start(struct journal *j, struct errbuf *err) {
    return j->ops->start(j, err);
}

/* Two steps, so that a record is encoded straight into the batch: reserve room for at most body_max bytes (never
 * NULL), fill it, then append with the size really used; the position is returned. No other call may come between. */
static inline void *journal_reserve(struct journal *j, size_t body_max) {
    return j->ops->reserve(j, body_max);
}
static inline u64 journal_append(struct journal *j, u8 type, u8 version, size_t body) {
    return j->ops->append(j, type, version, body);
}
/* End of a turn: if no batch is being synced, hand the open one over; else it goes when that sync ends. Cheap. */
static inline void journal_flush(struct journal *j) {
    j->ops->flush(j);
}
/* Every record at a position below this survives anything but the loss of the disk. */
static inline u64 journal_durable(struct journal *j) {
    return j->ops->durable(j);
}
/* NULL, or why nothing will become durable any more. The caller must let nothing out and exit. */
static inline const char *journal_failed(struct journal *j) {
    return j->ops->failed(j);
}
/* Read one record back, appended but undurable ones too. size_hint: bytes of the record, 0 if unknown. */
static inline hx_st journal_read(struct journal *j, u64 pos, size_t size_hint, struct journal_record *out,
                                 struct errbuf *err) {
    return j->ops->read(j, pos, size_hint, out, err);
}
/* These records, of about those sizes, will be read in a moment: what is in memory of them is brought near. Only a wish. */
static inline void journal_prefetch(struct journal *j, const u64 *pos, const u32 *bytes, u32 count) {
    j->ops->prefetch(j, pos, bytes, count);
}
/* Compaction reads what it wants of the oldest segment in steps: from *cursor (start with stats.first) towards `until`, about
 * max_bytes at a time; *cursor moves on. Done when *cursor >= until. */
static inline hx_st journal_scan(struct journal *j, u64 *cursor, u64 until, size_t max_bytes,
                                 const struct journal_wanted *wanted, struct errbuf *err) {
    return j->ops->scan(j, cursor, until, max_bytes, wanted, err);
}
/* End position of the oldest sealed segment that is durable to its end, 0 if there is none. */
static inline u64 journal_oldest_end(struct journal *j) {
    return j->ops->oldest_end(j);
}
/* Everything below `upto` (a segment's end) is no longer needed. Recycled once what was appended so far is durable. */
static inline void journal_drop(struct journal *j, u64 upto) {
    j->ops->drop(j, upto);
}
/* Bytes (record heads included) that can still be appended into preallocated space, compaction's two reserve
 * segments not counted. */
static inline u64 journal_room(struct journal *j) {
    return j->ops->room(j);
}
/* Is there that much room, or can it be had now? Waits while segments are being preallocated; false once the disk has
 * no more to give. Asked before new work is refused: being faster than the groomer is not being full. */
static inline bool journal_need(struct journal *j, u64 bytes) {
    return j->ops->need(j, bytes);
}
/* How much room the caller would like to see: spares are preallocated in the background until there is that much, or
 * the disk is full (then room() simply stays lower and it is tried again now and then); surplus spares are given back.
 */
static inline void journal_want(struct journal *j, u64 bytes) {
    j->ops->want(j, bytes);
}
static inline void journal_stats_get(struct journal *j, struct journal_stats *out) {
    j->ops->stats(j, out);
}
/* Sync what is there, write the mark, free everything. */
static inline void journal_close(struct journal *j) {
    j->ops->close(j);
}

#endif
