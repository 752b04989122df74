/* Receipts: leases handed out in replies that have not left yet. When no byte of such a reply was written, its leases are
 * given back without an attempt. */
#ifndef HAPAX_BROKER_RECEIPTS_H
#define HAPAX_BROKER_RECEIPTS_H

#include "core/core.h"

struct broker;
struct receipt;
struct receipts;

struct receipts *receipts_new(void);
void receipts_free(struct receipts *r);

/* One more lease on the receipt; NULL begins one. Returns the receipt, which may have moved. */
struct receipt *receipt_add(struct receipt *r, const struct ref *ref, u64 fence);
/* Takes the receipt (NULL: none, 0) and says under which number broker_receipt will hear of it. */
u64 receipts_keep(struct broker *b, struct receipt *r);
/* Its reply was written, or never will be. */
void receipts_end(struct broker *b, u64 number, bool written);

#endif
