/* broker: does it join two of these? Requests become decisions of the core, decisions become records of the journal, and
 * replies leave when what they saw is durable.
 *
 * The broker touches neither sockets nor clocks: requests come in parsed, replies go out through `broker_port`, and every
 * entry point is told the time. The daemon (src/daemon) plugs in libuv and the file journal; the simulator plugs in a
 * seeded world. One thread. */
#ifndef HAPAX_BROKER_BROKER_H
#define HAPAX_BROKER_BROKER_H

#include "base/hist.h"
#include "base/log.h"
#include "journal/journal.h"
#include "net/http.h"
#include "net/outbound.h"

struct broker;
struct config;

/* How the process fares, for the metrics. */
struct surroundings {
    u64 connections, bytes_in, bytes_out, buffered_bytes;
    u64 no_place, no_memory, per_address; /* connections refused, or made to go */
    u64 tls_full, tls_resumed, tls_failed;
    struct hist turn_us;
    u64 cpu_us, open_fds, max_fds, resident_bytes, virtual_bytes;
    u64 disk_free, disk_size; /* of the data directory's filesystem */
    i64 started_ms;           /* wall clock */
};

/* The world outside. */
struct broker_port {
    void *ctx;
    /* As http_respond. reply->after names a journal position: whoever implements this keeps the reply back until `release`
     * has named that position or a later one. */
    void (*respond)(void *ctx, void *conn, const struct http_reply *reply);
    /* As http_release: replies whose `after` is at or below this may leave, those still to come included. May be NULL: a
     * world that keeps no reply back. */
    void (*release)(void *ctx, u64 position);
    /* As http_feed and http_feed_end: more of a reply that goes on, behind a journal position. false: its client is dropped;
     * broker_gone is not called then. May be NULL, both: a world without such replies. */
    bool (*feed)(void *ctx, void *conn, slice bytes, u64 after);
    void (*feed_end)(void *ctx, void *conn);
    /* As http_conn_keeps: what is kept for an unanswered request. May be NULL: memory has no end. */
    void (*keeps)(void *ctx, void *conn, size_t bytes);
    /* A clock that counts microseconds, to say when a piece of work has taken long enough of a turn. It decides when things
     * are done, never what. May be NULL: nothing takes any time. */
    u64 (*now_us)(void *ctx);
    /* For /v1/stats: lines of JSON members the world wants to add ("\"http\":{...}"). May be NULL. */
    void (*stats)(void *ctx, struct buf *json);
    /* As log_fields: what operators should hear of. May be NULL: nobody listens. */
    void (*log)(void *ctx, enum log_level level, const char *event, const char *msg, const struct log_field *fields,
                size_t count);
    /* For metrics and alerts. May be NULL: nothing is known of it. */
    void (*surroundings)(void *ctx, struct surroundings *out);
    /* The age of the oldest row that waits to be relayed into this queue; 0: none, or it is not known. May be NULL. */
    i64 (*relay_oldest_ms)(void *ctx, slice queue);
    /* An alert has changed its state, and what it saw is durable. id: of this alert since that moment, the same however often
     * it is told; json: as GET /v1/alerts shows it. May be NULL. */
    void (*notify)(void *ctx, slice id, slice json);
    /* As outbound_call: all of it is copied, and broker_fetched is told the end under this number, once, never from within. For
     * broker/fetch.c alone. false: there is no room. May be NULL: nothing can be called. */
    bool (*fetch)(void *ctx, u64 number, const struct outbound_request *r);
};

struct broker_options {
    struct journal *journal; /* open, not yet replayed; borrowed */
    struct broker_port port;
    const char *const *addresses;   /* numeric, where it is served */
    u32 address_count;              /* 0: beyond this machine nowhere */
    const struct token_config *own; /* of a part of this process, beside those of the config; borrowed. NULL: none */
    u8 secret[32];                  /* of the data directory: keyed hashes and tokens hang on it */
    u64 seed;                       /* for jitter */
    u32 fetches_max;                /* requests to other servers at a time; 0: FETCHES_MAX */
    u64 memory_max;                 /* of the process, in bytes; 0: no bound. Sends are refused before it is reached */
    /* Said: that was the downtime before this start, whatever the wall clock says. Delays and times to live go on by it. */
    bool downtime_said;
    i64 downtime_ms;
};

/* Two clocks of the machine, in milliseconds. mono never steps; wall may. mono_us: the same as mono_ms to the microsecond, to say
 * how long a request took, and nothing else; 0: no such clock. */
struct broker_time {
    i64 mono_ms, wall_ms;
    u64 mono_us;
};

/* Replays the journal, makes its tail trustworthy, and is ready to serve. */
hx_st broker_open(const struct broker_options *options, struct broker_time t, struct broker **out, struct errbuf *err);
/* The time before this start when nothing ran, by the wall clock and as charged; both 0 for a new directory. */
void broker_downtime(const struct broker *b, i64 *by_clock_ms, i64 *charged_ms);
/* The rules of a config file from here on, at start and when it was read again; without a file, config_default(). All of
 * them or none: on failure (no room for them) everything is as it was. `config` is taken on success. by: who asked for it,
 * for the audit trail; NULL at start, which the trail calls "start". changes: a line for each difference to the one before
 * (config_diff), for the trail too.
 *
 * What changes for a queue there was is also an entry of the trail under its name, and at start a line of the log; the log
 * alone where the disk has no room for the entries.
 *
 * A queue that is in the file no more keeps its messages, keys and last rules. */
hx_st broker_configure(struct broker *b, struct broker_time t, struct config *config, const char *by, slice changes,
                       struct errbuf *err);
/* The one in force. Not changed any more, only replaced by broker_configure: until then any thread may read it. */
const struct config *broker_config(const struct broker *b);
/* A clean end: journals what is lazily kept. The journal itself stays open: flush and wait for it. */
void broker_stop(struct broker *b, struct broker_time t);
void broker_free(struct broker *b);

/* How large a body this request may have; none, of whoever may not ask for this. Notes in the head what it found. */
u64 broker_body_limit(struct broker *b, struct http_request *head);
/* A whole request. It is answered through port.respond, now or later (long polls), exactly once. `conn` is opaque; `user`
 * is where the broker may keep one pointer for an unanswered request. */
void broker_request(struct broker *b, struct broker_time t, void *conn, void **user, const struct http_request *req);
/* These requests are about to come: bring near what they will need. Changes nothing. */
void broker_ahead(struct broker *b, struct http_request *const *reqs, u32 count);
/* No connection is free. Is it the call of somebody who looks after the broker, and may it be made? */
bool broker_urgent(struct broker *b, struct http_request *head);
/* The client of an unanswered request is gone. user: the pointer kept for it. */
void broker_gone(struct broker *b, struct broker_time t, void *user);
/* Others want the place of an unanswered request: it is answered as if it had waited long enough. false: it does not wait, it is
 * worked on. */
bool broker_hurry(struct broker *b, struct broker_time t, void *user);
/* A reply with a receipt was (or never will be) written. */
void broker_receipt(struct broker *b, struct broker_time t, u64 receipt, bool written);
/* Time passes: call at least every broker_next_ms(). Returns true if there is more to do right away. */
bool broker_tick(struct broker *b, struct broker_time t);
i64 broker_next_ms(const struct broker *b, struct broker_time t);
/* Work was cut short because it had its share of the turn. broker_next_ms is 0 then. */
bool broker_unfinished(const struct broker *b);
/* A request to another server has ended. The end of the turn is for whoever calls this, once for all that ended in it. */
void broker_fetched(struct broker *b, struct broker_time t, u64 number, const struct outbound_answer *a);
/* How many have not ended; those that wait to become durable are among them. A drain waits for them. */
u32 broker_fetches(const struct broker *b);
/* Everything below this journal position is durable. The one way by which the broker, and through it the world, learns so:
 * what waited for it leaves (broker/effects.h). Not after the journal has failed: nothing leaves any more then (P7). */
void broker_durable(struct broker *b, struct broker_time t, u64 position);
/* The end of a turn: wakes polls that can be answered, does a slice of compaction, flushes the journal. */
void broker_turn_end(struct broker *b, struct broker_time t);
/* Shutting down: new requests get 503, waiting polls are answered empty. */
void broker_drain(struct broker *b, struct broker_time t);
/* True while the journal is so far behind that no more requests should be read. */
bool broker_wants_pause(const struct broker *b);

/* An error body as broker_request makes them, for errors found below it (framing). */
void broker_render_problem(struct buf *body, u16 status, const char *code, const char *detail, bool applied_unknown);

#endif
