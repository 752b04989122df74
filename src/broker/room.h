/* Room: how much the journal can still take, and how much of it is kept ready ahead of the load. */
#ifndef HAPAX_BROKER_ROOM_H
#define HAPAX_BROKER_ROOM_H

#include "base/base.h"

struct broker;
struct room;

struct room *room_new(void);
void room_free(struct room *r);

/* Asked for every message, so the journal is not: what it had at the turn's end, less what was appended since. */
u64 room_left(const struct broker *b);
/* A record of that size was appended. */
void room_take(struct broker *b, u64 bytes);
/* Is there room for so many bytes in all? Waits for the journal to preallocate; false: the disk has no more to give. */
bool room_need(struct broker *b, u64 bytes);
/* Can that much be written beside what is promised to accepted messages (P8)? */
bool room_beside_promises(struct broker *b, u64 bytes);
/* At the end of a turn: has room preallocated in the background, as far ahead as the load calls for. */
void room_look_ahead(struct broker *b);
u64 room_appended(const struct broker *b); /* bytes, since start */

#endif
