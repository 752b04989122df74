/* Compaction: the oldest segment's records that still matter are written anew at the end, then the segment is dropped.
 *
 * Oldest first, always: whatever a record overrides is older still and goes with it or went before, so no tombstone has to
 * be kept for its own sake. It runs in slices at the end of turns, when the journal holds more than 2.4 times what is
 * alive: five parts are then written anew for seven that fall away, 0.7 of a write more per byte. Where most of what is
 * alive is settled, disk stays below three times the live data, with all that is preallocated; unsettled messages have
 * 2 KB each reserved beside that (docs/STORAGE.md has the sum). */
#ifndef HAPAX_BROKER_COMPACTION_H
#define HAPAX_BROKER_COMPACTION_H

#include "base/base.h"

struct broker;
struct compaction;

struct compaction *compaction_new(void);
void compaction_free(struct compaction *c);

void compaction_run(struct broker *b);             /* a slice, if one is due */
bool compaction_under_way(const struct broker *b); /* a segment is being read */
u64 compaction_segments(const struct broker *b);   /* dropped since start */

#endif
