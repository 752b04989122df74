/* Inside the broker: what all its files share. Each object has a header of its own, and keeps its fields to itself. */
#ifndef HAPAX_BROKER_BROKER_PRIV_H
#define HAPAX_BROKER_BROKER_PRIV_H

#include "broker/broker.h"
#include "core/core.h"

struct broker {
    u32 magic; /* the core and the journal hand it back as a void * */
    bool draining;
    struct broker_options options;
    struct journal *journal;
    struct core *core;
    struct core_now now;                                /* the core's clocks, as of the last broker_advance */
    struct broker_time time;                            /* the machine's, as of then */
    i64 started_mono_ms, ticked_mono_ms, asked_mono_ms; /* asked: the last request */
    u64 turn_us;                                        /* when the turn's first request came; 0: none has */
    const struct http_request *request;                 /* being decided; NULL: none */
    const struct caller *caller;                        /* who asks for it */
    u64 after; /* the position behind the last record appended: whatever is decided now may have seen all below it */
    u64 ruled, moved;     /* of those, what may have changed rules; rules or an unsettled message: seen_after */
    u64 awaited, durable; /* the last position that anything waits for; all below this one is */
    u64 left;             /* all below that was when the last turn ended: replies to it have been written */
    u64 handed_over;      /* as far as this the journal was asked to sync */
    u64 read_back;        /* bytes of records that were looked up */
    i64 handed_over_mono_ms;

    struct effects *effects;       /* what waits to leave until it is durable */
    struct fetches *fetches;       /* requests to other servers */
    struct room *room;             /* what the journal can still take */
    struct rulebook *rulebook;     /* the config file, and the queues' rules as they are now */
    struct tenants *tenants;       /* what they may take together */
    struct waits *waits;           /* requests that are answered later */
    struct shared *shared;         /* the answer all get who wait for the same outcome */
    struct receipts *receipts;     /* leases in replies that have not left yet */
    struct consumers *consumers;   /* who was there, and when last */
    struct jobs *jobs;             /* requests of many parts that take several turns */
    struct tasks *tasks;           /* work that takes many turns */
    struct compaction *compaction; /* of the journal */
    struct reports *reports;       /* for the log, until what they tell of is durable */
    struct named_queue *named;     /* the queue of the last request */
    struct time_texts *time_texts; /* seconds that were written as text */
    struct lookup *lookup, *other; /* the key or message a request is about; one it is compared with */
    struct ingest *ingest;         /* webhooks that came in */
    struct gates *gates;           /* calls that go through a proxy */
    struct pushes *pushes;         /* messages that go out as requests, and look-ups */
    struct targets *targets;       /* where deliveries and look-ups go */
    struct target_tests *tests;    /* of whether they are reached */
    struct access *access;         /* who asks, and what they may do */
    struct rations *rations;       /* what one client may have */
    struct browsers *browsers;     /* whose pages may ask */
    struct traffic *traffic;       /* requests and replies, counted */
    struct events *events;         /* the latest of it */
    struct feeds *feeds;           /* those who read them as they come */
    struct watch *watch;           /* what happened, counted */
    struct series *series;         /* and its last hour */
    struct alerts *alerts;         /* what of it calls for somebody */
    struct scratch *scratch;       /* memory reused from request to request */
};

#define BROKER_MAGIC 0x68617061u
static inline struct broker *broker_of(void *ctx) {
    struct broker *b = ctx;
    CHECK(b && b->magic == BROKER_MAGIC);
    return b;
}

/* Something leaves once this position is durable. */
static inline void broker_awaits(struct broker *b, u64 position) {
    if (position > b->awaited) b->awaited = position;
}

/* Time goes on, never back. Every entry point calls it first. */
void broker_advance(struct broker *b, struct broker_time t);
i64 wall_of_delay(const struct broker *b, i64 delay_ms); /* delay clock to wall clock */

#endif
