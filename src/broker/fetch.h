/* Fetches: the only way out of the broker for requests to other servers (pushes, look-ups, proxied calls).
 *
 * A request is parked under the position behind everything that was decided before it (b->after), and leaves through the
 * port when all of that is durable: P1 holds without anybody thinking of it. If the journal fails, it never leaves (P7).
 * One that has waited for the disk as long as the whole call may take does not leave any more: whoever asked has given it up by then, and
 * a lease it was made under is over. It ends NOT_SENT.
 *
 * Bounded: FETCHES_MAX under way, fewer where the process may open fewer files (broker_options.fetches_max), and fetch_bytes_max of
 * memory for all of them together: bodies, and as much as each answer may take, from the moment it is asked for. */
#ifndef HAPAX_BROKER_FETCH_H
#define HAPAX_BROKER_FETCH_H

#include "net/outbound.h"

#define FETCHES_MAX     4096u
#define FETCH_BYTES_MAX (512ull << 20) /* an eighth of memory_max, if that is less */

struct broker;

/* arg: a number by which the caller finds what it is about. `a` is valid until this returns. */
typedef void fetch_done(struct broker *b, u64 arg, const struct outbound_answer *a);

struct fetches;

struct fetches *fetches_new(u64 memory_max, u32 fetches_max);
void fetches_free(struct fetches *f); /* none of those under way is told */

/* What a request takes of the bound, about: body and answer_max, and the rest. */
u64 fetch_bytes(const struct outbound_request *r);
/* One of so many bytes (fetch_bytes) would be taken now. */
bool fetch_room(const struct broker *b, u64 bytes);
/* So many of them would. */
u32 fetches_left(const struct broker *b, u64 bytes);
/* `r` is copied. `done` is called once, never from within this. false: there is no room, or nothing can be called at all. */
bool fetch(struct broker *b, const struct outbound_request *r, fetch_done *done, u64 arg);

/* The world did not take them (it has no room either): they end NOT_SENT. For the end of a turn. */
void fetches_run(struct broker *b);

#endif
