/* Which fields of a JSON payload changed: for the person who has to tell a duplicate from a new intent. */
#ifndef HAPAX_BROKER_DIFF_H
#define HAPAX_BROKER_DIFF_H

#include "base/base.h"

struct broker;
struct payload_view;

/* How many bytes of payloads one request may have compared: of what it answers in one turn, and of a job. */
#define COMPARED_IN_TURN (1u << 20)
#define COMPARED_IN_JOB  (8u << 20)

/* ,"changed":[...] with the fields in which two payloads of the queue differ; with_values: what they say, too. Nothing if
 * one of them is no JSON, or comparing them would take long, or nothing is left of what the request may have compared. */
void put_changed(struct broker *br, struct buf *b, u16 queue, slice before, slice after, bool with_values, u64 *left);
/* The same for payloads that have views, read or not: to read a large one again takes as long as all the rest. */
void put_changed_views(struct broker *br, struct buf *b, u16 queue, struct payload_view *was, struct payload_view *is,
                       bool with_values, u64 *left);

#endif
