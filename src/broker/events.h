/* Events: the latest of what happened (watch.h), in memory that does not grow: a ring of EVENTS_KEPT, 4 MiB.
 *
 * An event names what it is about and copies nothing: key, request id, consumer and reason are read back when somebody asks
 * (event_page.h), as everywhere else. Noting one writes one line of memory.
 *
 * Numbers count from 1 since this process began. An event is visible, to readers outside, once everything up to its position
 * is durable (P1). Nobody is told of that, and no sync is asked for: whoever reads looks how far it has come. */
#ifndef HAPAX_BROKER_EVENTS_H
#define HAPAX_BROKER_EVENTS_H

#include "broker/watch.h"

#define EVENTS_KEPT 65536u /* power of two */

struct broker;
struct events;

struct event {
    u64 number;
    u64 after;             /* the journal position behind which it happened */
    i64 at_ms;             /* wall clock */
    u64 hash;              /* of the key or message it is about; 0: of none */
    u64 seq;               /* of the message; 0: of none */
    u64 subject;           /* AUDIT, CONFIG: number of the audit record; ALERT: enum alert_state */
    u32 age_ms;            /* EVENT_NO_AGE: none */
    u32 request_id, trace; /* event_tag of the request id and of the trace id */
    u16 queue;             /* 0: of none */
    u8 kind, detail;       /* as of struct happening */
};
_Static_assert(sizeof(struct event) == 64, "one line of memory");
#define EVENT_NO_AGE UINT32_MAX

struct events *events_new(void);
void events_free(struct events *e);

/* For watch.c. What is no event to others (FENCED, …) is left out. */
void events_note(struct broker *b, const struct happening *h);
/* For watch.c: it was deleted, and its number may be another's from here on. */
void events_end_of_queue(struct broker *b, u16 queue);

u64 events_visible(const struct broker *b); /* number of the newest visible one; 0: none */
u64 events_oldest(const struct broker *b);  /* of those kept; above the newest if there are none */
/* By its number, which is between those two. */
const struct event *event_at(const struct broker *b, u64 number);
/* Newest first, visible or not: whoever answers with them waits for what he saw. The one before number `before`, 0: the
 * newest. NULL: no more are kept. How many are looked at is the caller's to bound. */
const struct event *event_before(const struct broker *b, u64 before);

/* Is it of this queue, and not of a deleted one that had its number? */
bool event_is_of(const struct broker *b, const struct event *e, u16 queue);

/* A word of 32 bits for a text that is not kept: what has another tag is another text, what has the same is read back and
 * compared. 0: no text. */
u32 event_tag(slice text);
/* The trace id inside a traceparent; empty if it is none. */
slice trace_id_of(slice traceparent);

#endif
