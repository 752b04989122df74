/* The table of routes, for those who count by route. */
#ifndef HAPAX_BROKER_ROUTE_H
#define HAPAX_BROKER_ROUTE_H

#include "base/base.h"

u32 route_count(void);
/* "POST /v1/queues/ * /messages" without the blanks; of route_count() itself: "other". */
void route_label(u32 i, struct buf *out);

#endif
