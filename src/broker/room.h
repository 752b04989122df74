/* Room: how much the journal can still take, and how much of it is kept ready ahead of the load. */
#ifndef HAPAX_BROKER_ROOM_H
#define HAPAX_BROKER_ROOM_H

#include "base/base.h"

struct broker;
struct room;

struct room *room_new(void);
void room_free(struct room *r);

/* A record of that size was appended. */
void room_take(struct broker *b, u64 bytes);
/* Before every step of the core: it may write down `said` bytes of what was said, and what frames them. The core is told how
 * much room there is; if that is short, the journal is waited for until it has preallocated more, or the disk has no more to
 * give. The step itself never waits. */
void room_prepare(struct broker *b, u64 said);
/* Can that much be written beside what is promised to accepted messages (P8)? Waits as room_prepare does. */
bool room_beside_promises(struct broker *b, u64 bytes);
/* The same for what can be left undone: that it does not fit refuses nobody, and the log does not hear of it. */
bool room_to_spare(struct broker *b, u64 bytes);
/* Room for something that will have to be written later, and is not known yet: the answer to a request that is about to leave (P8).
 * Until room_promise_end it is there for nobody, then for whoever asks the core first. false: there is none, and nothing is kept. */
bool room_promise(struct broker *b, u64 bytes);
void room_promise_end(struct broker *b, u64 bytes);
u64 room_promised(const struct broker *b); /* to accepted messages, and for answers to come */
u64 room_lacking(const struct broker *b);  /* beside that, the most that was refused since there is none; 0: nothing */
/* Something was refused for want of room on the disk, and it would be still: now, not as of the log's spell, which outlasts it. */
bool room_disk_short(const struct broker *b);
/* At the end of a turn: has room preallocated in the background, as far ahead as the load calls for. */
void room_look_ahead(struct broker *b);
u64 room_appended(const struct broker *b); /* bytes, since start */

#endif
