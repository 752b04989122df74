/* What the journal's bytes mean. The tables with every offset are in docs/STORAGE.md; format.c is the only place that
 * knows them. Everything is little-endian, 8-byte aligned, and covered by a CRC32C that is seeded with the segment's
 * random salt and the position: bytes left over from a file's former life, copied to another place, or shaped like a
 * record by somebody's payload do not pass.
 *
 * Upgrade recipe: a change of any layout raises FORMAT_VERSION (in the meta file and in each segment head); a reader
 * refuses what is newer with ST_VERSION and may keep reading what is older. */
#ifndef HAPAX_JOURNAL_FORMAT_H
#define HAPAX_JOURNAL_FORMAT_H

#include "journal/journal.h"

#define FORMAT_VERSION 1u

#define META_BYTES    128u
#define MARK_BYTES    64u
#define MARK_SLOT_GAP 4096u /* the two slots never share a page */
#define SEGMENT_HEAD  64u
#define BATCH_HEAD    JOURNAL_BATCH_HEAD
#define RECORD_HEAD   JOURNAL_RECORD_HEAD

struct meta {
    u32 version;
    u64 segment_bytes;
    u64 owner; /* random, repeated in every segment: a file from another directory is recognised */
    u8 secret[32];
    i64 created_ms;
};

struct mark {
    u64 sequence; /* the larger of the two slots counts */
    u64 durable;  /* everything below was durable when this was written */
    u64 first;    /* number of the oldest segment that is still needed */
    u64 prepared; /* every segment from first to this one has been headed and named durably: it must be there */
    bool clean;   /* written by close: the journal ends at `durable`, and nothing lies behind it */
};

struct segment_head {
    u32 version;
    u64 number, segment_bytes, owner, salt;
};

struct batch_head {
    u64 number;   /* 1, 2, 3, ... without gaps */
    u64 pos;      /* of this header */
    u64 length;   /* header and records */
    u64 durable;  /* everything below was durable when this was written */
    u64 prev_end; /* where the batch before ended; 0 for the first */
    u32 records;
};

void format_meta_put(u8 out[META_BYTES], const struct meta *m);
bool format_meta_get(const u8 in[META_BYTES], struct meta *m);
void format_mark_put(u8 out[MARK_BYTES], const struct mark *m, u64 owner);
bool format_mark_get(const u8 in[MARK_BYTES], struct mark *m, u64 owner);
void format_segment_put(u8 out[SEGMENT_HEAD], const struct segment_head *h);
bool format_segment_get(const u8 in[SEGMENT_HEAD], struct segment_head *h);

/* The first eight bytes of every batch in a segment with this salt; what a search for batches looks for. */
u64 format_batch_magic(u64 salt);
void format_batch_put(u8 out[BATCH_HEAD], const struct batch_head *h, u64 salt);
/* False if these are not the header of a batch at `pos` in a segment with this salt. */
bool format_batch_get(const u8 in[BATCH_HEAD], struct batch_head *h, u64 salt, u64 pos);

static inline size_t format_record_bytes(size_t body) {
    return RECORD_HEAD + ((body + 7) & ~(size_t)7);
}
static inline size_t format_record_body(const u8 *record) {
    return get_u32(record + 4);
}
/* Head and padding around a body that is in place. The checksum comes later, with format_record_seal. */
void format_record_put(u8 *record, u8 type, u8 version, size_t body, u64 pos);
void format_record_seal(u8 *record, u64 salt, u64 pos);
/* `room` bytes from `record` on may be looked at. The size of the record, or 0 if it is not one. */
size_t format_record_check(const u8 *record, size_t room, u64 salt, u64 pos);
void format_record_view(const u8 *record, u64 pos, struct journal_record *out);

/* Checks all records of a batch in memory. */
bool format_batch_check(const u8 *bytes, const struct batch_head *h, u64 salt);
/* Moves a batch in memory to another position: every record says where it is. Checksums are not touched. */
void format_batch_move(u8 *bytes, const struct batch_head *h, u64 to);

#endif
