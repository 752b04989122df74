/* Settling: what the holder of a lease says of its message, be that a consumer that shows its token or the broker itself, which
 * has delivered it. One way for both, so that room, events and counts are the same. */
#ifndef HAPAX_BROKER_SETTLING_H
#define HAPAX_BROKER_SETTLING_H

#include "core/core.h"

struct broker;

/* As core_settle, with room made before and what no record tells said afterwards. */
enum settle_verdict settle_message(struct broker *b, const struct settle_in *in, const struct seen *s,
                                   struct settle_out *out);

#endif
