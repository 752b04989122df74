/* relay: does it send what a user's own database holds? The outbox relay: rows committed in the user's transactions become messages, each once. docs/RELAY.md is the guide;
 * the reasons are in relay.c. */
#ifndef HAPAX_RELAY_RELAY_H
#define HAPAX_RELAY_RELAY_H

#include "base/base.h"
#include "hapax/hapax.h"

enum relay_column {
#define RELAY_COLUMN(ident, name, needed, help) RELAY_##ident,
#include "relay/relay_columns.def"
#undef RELAY_COLUMN
    RELAY_COLUMN_COUNT
};

extern const char *const relay_column_names[RELAY_COLUMN_COUNT]; /* "id", "aggregatetype", ... */

/* Which table, and where it departs from the defaults. */
struct relay_table {
    const char *name;                        /* table or schema.table; NULL: outbox */
    const char *columns[RELAY_COLUMN_COUNT]; /* NULL: the default; "": there is none (not for id, payload, refused) */
};

struct relay_lag {
    i64 pending;   /* counted up to RELAY_PENDING_MAX */
    i64 refused;   /* rows parked with a reason */
    i64 oldest_ms; /* age of the oldest pending row; 0: none pending, -1: the table has no time */
};
enum { RELAY_PENDING_MAX = 100000 };

struct relay_report {
    i64 sent, duplicates, refused; /* since the start; `sent` counts every row the broker has, duplicates included */
    i64 per_s;                     /* sent, since the last report */
    bool lag_known;                /* the database could be asked */
    struct relay_lag lag;
};

/* Everything is borrowed until relay_run returns. */
struct relay_options {
    const char *dsn;   /* NULL: libpq's environment */
    hx_options broker; /* how it is reached; connections and time are the relay's */
    const char *queue;
    struct relay_table table;
    bool grouped; /* FIFO by aggregateid: then one batch is under way at a time, over all relays of this table */
    const char *content_type; /* NULL: by the payload's type */
    int workers;              /* batches under way at once, default 2 */
    int batch;                /* most rows in one, default 1000 */
    i64 poll_ms;              /* how soon an idle relay looks again, default 100 */
    i64 timeout_ms;           /* how long the broker may take for a batch, default 5000 */
    bool once;                /* return when nothing is left to send */
    int stop_fd;              /* readable: finish the batches under way and return; -1: none */
    i64 report_ms;            /* 0: none */
    void (*report)(void *ctx, const struct relay_report *report);
    void (*trouble)(void *ctx,
                    const char *text); /* something it goes on after; from any of its threads, one at a time */
    void *ctx;
};

/* Runs until stopped (or with `once` until done) on threads of its own; the caller's waits. A database or a broker that
 * goes away later is waited for; what cannot be found or reached at the start is an error, as pg.h has them. ST_IO: with
 * `once`, something is left that could not be sent. */
hx_st relay_run(const struct relay_options *options, struct errbuf *err);

struct pg;
hx_st relay_lag_read(struct pg *pg, const struct relay_table *table, struct relay_lag *out, struct errbuf *err);
/* The statements that make the table, or add to an existing one what the relay needs. Empty: nothing is missing. */
hx_st relay_init_sql(struct pg *pg, const struct relay_table *table, struct buf *sql, struct errbuf *err);

#endif
