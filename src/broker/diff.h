/* Which fields of a JSON payload changed: for the person who has to tell a duplicate from a new intent. */
#ifndef HAPAX_BROKER_DIFF_H
#define HAPAX_BROKER_DIFF_H

#include "base/base.h"

struct broker;

/* ,"changed":[...] with the fields in which two payloads of the queue differ; with_values: what they say, too. Nothing if
 * one of them is no JSON, or comparing them would take long. */
void put_changed(struct broker *br, struct buf *b, u16 queue, slice before, slice after, bool with_values);

#endif
