/* An event as users see it: what the ring has of it, and what is read back of the message it is about. */
#ifndef HAPAX_BROKER_EVENT_PAGE_H
#define HAPAX_BROKER_EVENT_PAGE_H

#include "broker/events.h"

/* One JSON object, no payload in it. What is not kept any more (a key that was forgotten) is left out. */
void put_event(struct broker *br, struct buf *b, const struct event *e);
/* The name of its queue. Empty: of none, or of one that is gone. */
slice event_queue_name(const struct broker *b, const struct event *e);

#endif
