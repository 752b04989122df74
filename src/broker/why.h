/* Why a message is where it is: what lists of the held and the dead show. */
#ifndef HAPAX_BROKER_WHY_H
#define HAPAX_BROKER_WHY_H

#include "core/core.h"

/* payloads: for somebody who may see them (answer_reason). */
void why_text(const struct message_view *v, bool payloads, struct buf *out);
/* Its last attempt, or the decision that put it there. */
bool why_last(const struct message_view *v, struct history_item *out);

#endif
