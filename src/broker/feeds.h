/* Feeds: those who read events as they come (GET /v1/events, server-sent events).
 *
 * A reader has a place in the ring and is handed what lies between that and the newest visible event, together for all of a
 * few milliseconds: one write for many events. Readers take turns, within a budget and within a share of the broker's time;
 * who is so far behind that the ring has gone over him is told so (`event: gap`) and goes on with the newest. What a reader
 * leaves unread is bounded by the port, which then drops him. So neither their number nor their pace slows the broker. */
#ifndef HAPAX_BROKER_FEEDS_H
#define HAPAX_BROKER_FEEDS_H

#include "broker/broker.h"

#define FEEDS_MAX 256u

struct call;
struct feeds;

/* Which events. */
struct feed_filter {
    u32 kinds;             /* bits by enum happening_kind; 0: all */
    struct buf queue, key; /* empty: any. Taken */
    struct buf own;        /* with a key: the reader's own, where keys are their senders' */
};

struct feeds *feeds_new(const struct broker_options *options, struct broker_time t);
void feeds_free(struct broker *b);

/* The call's answer goes on from here. last_id: up to where it has read before, empty: it begins with what comes next.
 * false: there are too many; the failure is set. */
bool feed_open(struct call *c, const struct feed_filter *filter, slice last_id);
/* At the end of a turn. */
void feeds_run(struct broker *b);
i64 feeds_next_ms(const struct broker *b, i64 mono_ms, i64 at_most);
/* Callers are others now, or may less: who may not read on is told no more. */
void feeds_review(struct broker *b);
/* Shutting down: they end, each with what it has been told. */
void feeds_end(struct broker *b);

struct feeds_stats {
    u32 readers;
    u64 dropped; /* too slow to read */
    u64 gaps;    /* told to a reader that its place was gone */
};
void feeds_stats_get(const struct broker *b, struct feeds_stats *out);

#endif
