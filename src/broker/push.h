/* Push: the broker as the consumer of its own queues. Messages of a queue with `deliver` leave as HTTP requests; work whose outcome is
 * unknown is looked up at the queue's `reconcile` address.
 *
 * A delivery is what a careful consumer would do, and nothing more: it leases, sends with the effect key, and settles by what was
 * answered. What it holds to:
 *
 *  - Nothing leaves before its lease is durable (P1). fetch.h sees to that; there is no other way out of here.
 *  - Nothing leaves whose answer could not be stored (P8): room for all that is kept of an answer is promised before the lease, and
 *    the promise ends in the step that settles. A disk without room leases nothing.
 *  - A request of which a byte may have left, and that was not answered whole, is unknown, never transient (P5). What follows is
 *    the queue's on_unknown: where the downstream does not deduplicate it is held, never sent twice.
 *  - What was evaluated, classified and kept is said by the rules the delivery began with, whatever a reload does meanwhile.
 *  - A target that is down, paused or busy costs nothing: its queue is in no list and is looked at again when its time has come
 *    (target.h), however many messages wait. A turn's work is bounded, and targets take turns in it.
 *
 * Queues that may have something to send are in one list, each once. They come in when something becomes ready or due
 * (core_sink.on_ready), when a call of theirs ended, when their target's time has come, and when somebody says so (push_wake). */
#ifndef HAPAX_BROKER_PUSH_H
#define HAPAX_BROKER_PUSH_H

#include "base/base.h"

struct broker;
struct pushes;

struct pushes *pushes_new(void);
void pushes_free(struct pushes *p); /* deliveries under way are forgotten: their leases run out */

/* There may be something to deliver or to look up: the target of this queue may be called again, or the queue has new rules. Cheap, and
 * nothing where it neither delivers nor looks up. */
void push_wake(struct broker *b, u16 queue);
/* Its rules changed, or it was deleted: what is under way ends by those it began with. By queue_rules.c alone. */
void push_rules_changed(struct broker *b, u16 queue);
/* The rules are those of the config in force: from here on something may be sent. */
void pushes_begin(struct broker *b);

/* At the end of a turn: leases and sends what may be sent, as far as the turn's share goes. */
void pushes_run(struct broker *b);
bool pushes_unfinished(const struct broker *b);
i64 pushes_next_ms(const struct broker *b, i64 mono_ms, i64 at_most);

#endif
