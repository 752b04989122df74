/* The relay's family: relay_table.c knows the table and its SQL, relay_send.c the broker, relay.c brings them together. */
#ifndef HAPAX_RELAY_RELAY_PRIV_H
#define HAPAX_RELAY_RELAY_PRIV_H

#include "hapax/hapax.h"
#include "pg/pg.h"
#include "relay/relay.h"

/* The table as it was found, and the statements for it. */
struct relay_layout {
    struct buf claim;  /* $1 rows, $2 bytes at most: takes rows out (or marks them), returns ROW_* columns in order */
    struct buf settle; /* $1 ids of accepted rows */
    struct buf park;   /* $1 ids, $2 reasons */
    struct buf lag;    /* returns pending, refused, oldest_ms */
    struct buf lock;   /* returns t if this transaction is now the only sender of this table */
    bool base64;       /* the payload comes in base64 */
    bool json;         /* it is JSON */
};

enum { ROW_ID, ROW_AGGREGATETYPE, ROW_AGGREGATEID, ROW_TYPE, ROW_PAYLOAD };

hx_st relay_layout_read(struct pg *pg, const struct relay_table *table, struct relay_layout *out, struct errbuf *err);
void relay_layout_free(struct relay_layout *l);

/* What became of a row. LATER: not known, or not now; it stays. */
enum row_verdict { ROW_VERDICT_LATER, ROW_VERDICT_SENT, ROW_VERDICT_REFUSED };

struct outcome {
    enum row_verdict verdict;
    u32 reason_at, reason_n; /* in batch.reasons */
};

/* Rows on their way. Zero-initialise; relay_batch_free. */
struct batch {
    struct pg_rows *rows;
    size_t count;
    struct outcome *outcomes;
    struct buf reasons;
    size_t sent, duplicates, refused;
    hx_error trouble; /* why rows are ROW_VERDICT_LATER */
    /* memory kept from batch to batch */
    struct buf body;
    size_t *row_of_line;
    size_t capacity;
};

void relay_batch_begin(struct batch *b, struct pg_rows *take_rows);
void relay_batch_free(struct batch *b);

struct relay_sender {
    hx_client *client;
    struct buf target; /* with a NUL */
    const char *content_type;
    bool grouped, base64;
    i64 timeout_ms; /* for a whole batch */
};

/* Sends what it can and notes what became of each row. */
void relay_send(const struct relay_sender *s, struct batch *b);
/* Is the broker there and willing? */
bool relay_probe(const struct relay_sender *s, hx_error *err);

#endif
