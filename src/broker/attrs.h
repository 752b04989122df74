/* Attributes as a record holds them: u16 length and bytes of the name, then of the value, one after the other. */
#ifndef HAPAX_BROKER_ATTRS_H
#define HAPAX_BROKER_ATTRS_H

#include "base/base.h"

/* Attributes being read, within their bounds at every moment: a request cannot make it hold or compare more. */
struct attrs {
    struct buf bytes;
    u32 count;
};
/* Names are lower-cased. NULL: added; else why not, and nothing was. *too_large says whether it was for the bounds. */
const char *attrs_add(struct attrs *a, slice name, slice value, bool *too_large);
void attrs_reset(struct attrs *a);
void attrs_free(struct attrs *a);
/* From *at == 0 on. false: no more. */
bool attrs_next(slice attrs, size_t *at, slice *name, slice *value);

#endif
