/* What a sender is told: accepted, held, or a duplicate with what became of the original. */
#ifndef HAPAX_BROKER_ADMISSION_PAGE_H
#define HAPAX_BROKER_ADMISSION_PAGE_H

#include "broker/admit.h"

u16 admission_status(const struct admission *a);
/* Without the closing brace: a batch line adds its status. */
void put_admission(struct broker *b, struct buf *body, const struct admission *a, slice queue);

#endif
