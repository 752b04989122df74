/* Needed: which records of the journal compaction may have to carry. A bit for every 32 bytes, set when such a record is written that
 * begins there, taken away when nothing points at it any more. What has no bit is passed over unread.
 *
 * A bit too many costs a look-up; a bit too few would lose a key. So it is set by the record's type alone, whatever becomes of the
 * record, and taken away only for the very place an entry is moved off; no two records begin in the same 32 bytes. What a key's
 * entry stands for may be dropped before the entry is freed: a forgotten key is not carried. It is counted until then, so that the
 * count is never below what is in memory. It is made anew at every start, from the records replayed; 0.4 % of the journal's size,
 * which GET /v1/stats has as needed_bytes of the memory. */
#ifndef HAPAX_CORE_NEEDED_H
#define HAPAX_CORE_NEEDED_H

#include "core/core.h"

#define NEEDED_STRETCH    CARRY_STRETCH /* bytes */
#define NEEDED_NONE       UINT64_MAX
#define NEEDED_PIECE_BITS 16u
#define NEEDED_WORDS      ((1u << NEEDED_PIECE_BITS) / NEEDED_STRETCH / 64)

struct needed {
    u64 **pieces;      /* of 64 KiB each, a ring by number; NULL: nothing is needed in it */
    u64 first, beyond; /* numbers of the pieces there are */
    u64 cap;           /* a power of two */
    u64 count;         /* of those counted, what was noted and is not over, also of what is dropped */
    u64 bytes;         /* of memory */
};

void needed_free(struct needed *n);
void needed_note(struct needed *n, u64 pos, bool counted); /* counted: it is said when it is over */
void needed_over(struct needed *n, u64 pos);
void needed_near(const struct needed *n, u64 pos); /* it will be over in a moment */
/* The next stretch at or behind `from` and before `upto` that has a bit, NEEDED_NONE: there is none. What lies behind is not walked:
 * after a purge that may be hundreds of segments without any. */
u64 needed_next(const struct needed *n, u64 from, u64 upto);
/* The journal begins there now. */
void needed_drop(struct needed *n, u64 before);

#endif
