/* The relay's family: relay_table.c knows the table and its SQL, relay_send.c the broker, relay.c brings them together. */
#ifndef HAPAX_RELAY_RELAY_PRIV_H
#define HAPAX_RELAY_RELAY_PRIV_H

#include "hapax/hapax.h"
#include "pg/pg.h"
#include "relay/relay.h"

/* Where a claim begins. */
enum relay_from { FROM_START, FROM_MARK, FROM_PLACE, FROM_COUNT };

/* The table as it was found, and the statements for it. */
struct relay_layout {
    /* Locks rows and returns the ROW_* columns in order; $1 rows, $2 bytes at most. FROM_MARK: of the order values from $3
     * on, if they are to keep it up to $4. FROM_PLACE: the row at place $3 of table $4. */
    struct buf claim[FROM_COUNT];
    struct buf end;  /* the last order value there is */
    struct buf head; /* locks the first row and returns its ROW_TABLE and ROW_PLACE, and nothing that could be wrong */
    struct buf settle; /* $1 places, $2 their table: of accepted rows. Returns how many */
    struct buf park;   /* $1, $2 the same, $3 reasons */
    struct buf lag;    /* returns pending, refused, oldest_ms */
    struct buf lock;   /* returns t if this transaction is now the only sender of this table */
    bool base64;       /* the payload comes in base64 */
    bool json;         /* it is JSON */
    bool ordered;      /* there is a column for the order, not only the id */
    bool grouped;      /* there is one for the group */
    bool markable;     /* an order value can be given back as $3 */
};

enum { ROW_TABLE, ROW_PLACE, ROW_ORDER, ROW_FITS, ROW_ID, ROW_AGGREGATETYPE, ROW_AGGREGATEID, ROW_TYPE, ROW_PAYLOAD };

/* keep_order: a claim waits for a row that somebody has locked instead of passing over it. */
hx_st relay_layout_read(struct pg *pg, const struct relay_table *table, bool keep_order, struct relay_layout *out,
                        struct errbuf *err);
void relay_layout_free(struct relay_layout *l);

/* What became of a row. LATER: not known, or not now; it stays. */
enum row_verdict { ROW_VERDICT_LATER, ROW_VERDICT_SENT, ROW_VERDICT_REFUSED };

struct outcome {
    enum row_verdict verdict;
    bool applied;            /* in the table */
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
/* Does the queue tell a row that is sent twice from two rows? NULL: yes, or it is not there yet, or cannot be asked now
 * (*err). Else why not. */
const char *relay_queue_misfit(const struct relay_sender *s, const char *queue, hx_error *err);

#endif
