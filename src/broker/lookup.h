/* Look-ups: keys and messages with their records read back from the journal, before anything is decided about them. */
#ifndef HAPAX_BROKER_LOOKUP_H
#define HAPAX_BROKER_LOOKUP_H

#include "core/core.h"

struct broker;
struct lookup; /* the memory behind a struct seen: valid until the next look-up with the same one */

struct lookup *lookup_new(void);
void lookup_free(struct lookup *l);

/* A key by its bytes, a message or settled key by its id, or what core_find and core_walk yielded. NULL: not known. */
struct seen *lookup_key(struct broker *b, struct lookup *l, u16 queue, u64 hash, slice key);
struct seen *lookup_id(struct broker *b, struct lookup *l, u64 hash, u64 seq);
struct seen *lookup_found(struct broker *b, struct lookup *l, const struct found *f);
/* By its id, for core_settle, which does not ask how often its key came: that record lies where the repeats came, far from this one. */
struct seen *lookup_to_settle(struct broker *b, struct lookup *l, u64 hash, u64 seq);
/* One record. P7: a record that cannot be read back ends the process; it was acknowledged, and going on would be guessing. */
const struct record *lookup_record(struct broker *b, struct lookup *l, u64 pos, u32 size_hint);
/* These will be looked up in a moment: bring near what that will touch. At most AHEAD_MAX. unsettled: which of them seem to be
 * messages that are still there to compare with. */
void lookup_ahead(struct broker *b, const u64 *hashes, u32 count, bool *unsettled);
void lookup_ahead_to_settle(struct broker *b, const u64 *hashes, u32 count);

const struct ref *seen_ref(const struct seen *s);
slice seen_key(const struct seen *s);
u64 seen_fingerprint(const struct seen *s);
i64 seen_first_ms(const struct seen *s);                    /* when it first came, wall clock */
bool seen_in_force(struct broker *b, const struct seen *s); /* unsettled, or not past its window */
enum state seen_state(struct broker *b, const struct seen *s);
/* The position behind all that an answer about it shows, but for how often it came, which is written down lazily: its own record, whatever
 * moved an unsettled message since (which one is not known here), and the rules that say how long it is remembered. */
u64 seen_after(const struct broker *b, const struct seen *s);

#endif
