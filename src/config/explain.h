/* A queue's rules in plain words, for the person on call. */
#ifndef HAPAX_CONFIG_EXPLAIN_H
#define HAPAX_CONFIG_EXPLAIN_H

#include "config/config.h"

/* Paragraphs of text: what a repeat looks like there, what the broker does at each failure, what the operator should
 * do. Names come from the config and are not cleaned for a terminal. */
void explain_queue(const struct queue_config *q, struct buf *out);

/* What came of one of its event types, since the broker was started. */
struct type_counts {
    slice type;
    u64 accepted, duplicates, conflicts;
};
/* The same as Markdown, the operators' page of the queue: its owner, its event types, and what to do for each alert. */
void explain_runbook(const struct queue_config *q, const struct type_counts *types, size_t count, struct buf *out);

#endif
