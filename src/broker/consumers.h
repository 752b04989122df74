/* Consumers: the names by which messages are received, and when each of them last spoke. Who holds which lease is in the core,
 * and counted when somebody asks; what is kept here is only what no record has: that somebody was there.
 *
 * At most CONSUMERS_MAX names in all, each of one queue; beyond that the one that was silent longest is forgotten. A restart
 * forgets them all: whoever holds a lease is found by that, the others when they next speak. */
#ifndef HAPAX_BROKER_CONSUMERS_H
#define HAPAX_BROKER_CONSUMERS_H

#include "core/core.h"

struct broker;
struct consumers;

#define CONSUMERS_MAX 4096u

struct consumers *consumers_new(void);
void consumers_free(struct consumers *c);

/* A consumer of this name received from the queue, or settled what it got from it. Empty: nobody who has a name. */
void consumer_spoke(struct broker *b, u16 queue, slice name);
/* The holder of that lease spoke; nobody did if it is not the newest of the message. */
void consumer_spoke_of(struct broker *b, u32 message, u64 fence);
/* The queue was deleted: its number may become another's. */
void consumers_end_of_queue(struct broker *b, u16 queue);

#endif
