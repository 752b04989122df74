/* Attributes as a record holds them: u16 length and bytes of the name, then of the value, one after the other. */
#ifndef HAPAX_BROKER_ATTRS_H
#define HAPAX_BROKER_ATTRS_H

#include "base/base.h"

/* Names are lower-cased; false if the name is there already. */
bool attrs_add(struct buf *attrs, slice name, slice value);
/* From *at == 0 on. false: no more. */
bool attrs_next(slice attrs, size_t *at, slice *name, slice *value);

#endif
