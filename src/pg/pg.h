/* pg: does it speak to PostgreSQL? A connection and its answers; the only room that knows libpq (the gate's driver for
 * users' own connections, src/client/gate_pq.c, apart). What is said over it is the business of who uses it: the relay,
 * the gate's administration, a journal adapter.
 *
 * libpq is loaded when the first connection is opened, not linked: it brings twenty libraries along, which neither
 * `hapax send` in a loop nor a broker without a relay should pay for, and a machine without it lacks nothing but these
 * verbs.
 *
 * No message made here contains the connection string: it may hold a password. */
#ifndef HAPAX_PG_PG_H
#define HAPAX_PG_PG_H

#include "base/base.h"

struct pg;
struct pg_rows;

/* How calls fail: ST_CLOSED the server cannot be reached, the connection is lost or has been silent for too long, so what
 * was under way may or may not have happened; ST_TIMEOUT a stop was asked for meanwhile, same uncertainty; ST_NOT_FOUND no such table, schema or
 * function; ST_DENIED the server refuses this user; ST_VERSION another version of the gate is installed; ST_INVALID any
 * other SQL error. After all but the first two the connection may be used again; a transaction is rolled back. */

struct pg_options {
    const char *dsn; /* a URL or a keyword/value string; NULL or "": libpq's own environment (PGHOST, ...) */
    int stop_fd;     /* readable means give up waiting; -1: none */
    i64 silence_ms;  /* how long the server may take for an answer; 0: as long as it likes */
    bool writable;   /* not a standby: of several hosts the one that is not, of one a failure until it is promoted */
};

/* The caller owns *out: pg_close. One thread at a time. */
hx_st pg_open(const struct pg_options *options, struct pg **out, struct errbuf *err);
void pg_close(struct pg *pg); /* NULL is fine; an open transaction is rolled back by the server */
bool pg_usable(const struct pg *pg);
const char *pg_sqlstate(const struct pg *pg); /* of the last failure; "" if it has none */

/* Statements without answers, one or many, in one transaction unless the text has its own BEGIN and COMMIT. */
hx_st pg_run(struct pg *pg, const char *sql, struct errbuf *err);
/* One statement with $1..$n; an argument with p == NULL is NULL. The caller owns *out (NULL: not wanted). */
hx_st pg_query(struct pg *pg, const char *sql, const slice *args, size_t arg_count, struct pg_rows **out,
               struct errbuf *err);

/* Cells are text, borrowed until pg_rows_free; p == NULL is NULL. */
size_t pg_row_count(const struct pg_rows *rows);
slice pg_cell(const struct pg_rows *rows, size_t row, int column);
void pg_rows_free(struct pg_rows *rows); /* NULL is fine */

/* "name" with quotes doubled; a table may be schema.table. */
void pg_put_name(struct buf *b, slice name);
void pg_put_table(struct buf *b, slice table);
/* An element of an array in its text form: '{' and '}' and commas are the caller's. */
void pg_put_element(struct buf *b, slice text);

#endif
