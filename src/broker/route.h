/* The table of routes, for those who count by route. */
#ifndef HAPAX_BROKER_ROUTE_H
#define HAPAX_BROKER_ROUTE_H

#include "base/base.h"

struct broker;
struct http_request;

u32 route_count(void);
/* "POST /v1/queues/ * /messages" without the blanks; of route_count() itself: "other". */
void route_label(u32 i, struct buf *out);

/* May who asks send to that queue, as far as a head tells? Nothing is charged for it, nor counted, nor told. */
bool route_may_send(struct broker *b, const struct http_request *head, slice queue);

#endif
