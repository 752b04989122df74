/* The key index: every key that is admitted and not forgotten, pending or settled, by a keyed 64-bit hash.
 *
 * Two parts. `entry` records are dense, 32 bytes, in chunks that never move, so an entry number (u32) is a stable name
 * for a key while it is known. Slots are 8 bytes (upper half of the hash, entry number) in an open-addressing table
 * with linear probing. A slot's home is the upper bits of the hash, which the slot itself holds, so probing, deletion
 * (backward shift) and growth never touch the entries.
 *
 * Growth is incremental: a table twice the size is mapped (zero pages, no memset) and every insertion moves a few dozen
 * slots from the old one, whose pages are given back behind the moving edge. No turn of the loop pays for a rehash,
 * neither in time nor by touching or freeing half a gigabyte at once.
 *
 * Equal hashes are not equal keys: index_find yields every candidate, and the caller compares the key's own bytes. */
#ifndef HAPAX_CORE_INDEX_H
#define HAPAX_CORE_INDEX_H

#include "base/base.h"

#define ENTRY_NONE 0u /* entry numbers start at 1 */

enum entry_kind {
    ENTRY_FREE,
    ENTRY_LIVE,    /* unsettled: `at` is the message number */
    ENTRY_SETTLED, /* `at` is the journal position of its settle record */
    ENTRY_GONE,    /* forgotten or replaced, out of the table; freed when its window bucket is swept */
};

/* In memory only; what survives is in the journal. Size matters: tens of millions of these are hot. */
struct entry {
    u64 hash;
    u64 at;
    u64 settled_run_ms : 48; /* settled: running time of the settlement; the window counts from here */
    u64 kind : 2;
    u64 has_arrivals : 1; /* the arrivals table knows more about this key */
    u64 bucketed : 1;     /* linked into a window bucket */
    u64 seq_low : 12;     /* settled: low bits of the admission number */
    u16 queue;
    u16 size32; /* size of the record at `at` in 32-byte units, saturating: for accounting and to read it in one go */
    u32 next;   /* free list, or the window bucket's list */
};
_Static_assert(sizeof(struct entry) == 32, "an entry is 32 bytes: DESIGN.md budget");

static inline u64 entry_size(const struct entry *e) {
    return (u64)e->size32 * 32;
}
static inline void entry_set_size(struct entry *e, u64 size) {
    u64 units = (size + 31) / 32;
    e->size32 = units > UINT16_MAX ? UINT16_MAX : (u16)units;
}

#define ENTRY_CHUNK_BITS 16u
#define ENTRY_CHUNK      (1u << ENTRY_CHUNK_BITS)

struct index_table {
    u64 *slots; /* mmap'ed; 0 = empty; else (hash >> 32) << 32 | entry number */
    u32 bits;   /* capacity = 1 << bits */
    u64 used;
};

struct index {
    struct index_table now, old; /* old.slots != NULL while growing */
    u64 move_at, freed_at;       /* in old: next slot to move; bytes already given back */
    struct entry **chunks;
    u32 chunk_count, chunk_cap, entries_top; /* entries_top: highest number handed out + 1 */
    u32 free_head;
    u64 live_entries; /* handed out, not freed */
};

void index_init(struct index *ix);
void index_free(struct index *ix);

static inline struct entry *index_entry(const struct index *ix, u32 no) {
    return &ix->chunks[no >> ENTRY_CHUNK_BITS][no & (ENTRY_CHUNK - 1)];
}

/* Entries in the table. */
static inline u64 index_count(const struct index *ix) {
    return ix->now.used + (ix->old.slots ? ix->old.used : 0);
}

/* A new entry under this hash, kind LIVE, in the table. */
u32 index_insert(struct index *ix, u64 hash);
/* Take it out of the table; the entry itself stays until index_release. */
void index_remove(struct index *ix, u32 no);
void index_release(struct index *ix, u32 no);

/* Iterate over the entries with exactly this hash: start with a zeroed cursor; ENTRY_NONE ends. Nothing may be inserted
 * or removed in between. */
struct index_cursor {
    u64 slot;
    u8 phase;
};
u32 index_find(const struct index *ix, u64 hash, struct index_cursor *cursor);

/* Ahead of look-ups: bring the slots near; then, some look-ups later, name the entry they lead to (the first that fits, or
 * ENTRY_NONE) so that the caller can go on from there. */
static inline void index_prefetch(const struct index *ix, u64 hash) {
    near(&ix->now.slots[hash >> (64 - ix->now.bits)]);
    if (ix->old.slots) near(&ix->old.slots[hash >> (64 - ix->old.bits)]);
}
u32 index_guess(const struct index *ix, u64 hash);

/* Bytes held: table(s) and chunks. */
u64 index_bytes(const struct index *ix);

#endif
