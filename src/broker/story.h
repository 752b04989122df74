/* The story of a key: one sentence that answers "why was it ignored, what happened?", and everything that is still known to have
 * happened to it, in the order of time. Told from what is kept anyway: arrivals, attempts and decisions in its records, and
 * the audit trail. Nothing is recorded for its sake; what is not kept any more is said. */
#ifndef HAPAX_BROKER_STORY_H
#define HAPAX_BROKER_STORY_H

#include "core/core.h"

struct broker;

/* Members "why", "timeline", and where something is missing "not_kept". v: of an unsettled one. */
void put_story(struct broker *br, struct buf *b, const struct seen *s, const struct message_view *v);

/* story.c's words, for timeline.c. */
void put_when(struct buf *b, i64 unix_ms);                      /* 2026-01-31 12:00:00 UTC */
void put_span(struct buf *b, i64 ms);                           /* 2 h */
void put_quoted(struct buf *b, const char *before, slice text); /* what somebody said; nothing if it is empty */
u32 count_effects(slice history);

/* timeline.c */
void put_timeline(struct broker *br, struct buf *b, const struct seen *s, const struct message_view *v);

#endif
