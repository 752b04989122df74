#include "pg/pg.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>

#include <postgresql/libpq-fe.h>

/* What is used of libpq. */
#define PQ_LIST(X)                                                                                                     \
    X(PQconnectdbParams)                                                                                               \
    X(PQconninfoParse)                                                                                                 \
    X(PQconninfoFree)                                                                                                  \
    X(PQfreemem)                                                                                                       \
    X(PQstatus)                                                                                                        \
    X(PQtransactionStatus)                                                                                             \
    X(PQerrorMessage)                                                                                                  \
    X(PQfinish)                                                                                                        \
    X(PQsocket)                                                                                                        \
    X(PQsetnonblocking)                                                                                                \
    X(PQflush)                                                                                                         \
    X(PQsendQuery)                                                                                                     \
    X(PQsendQueryParams)                                                                                               \
    X(PQconsumeInput)                                                                                                  \
    X(PQisBusy)                                                                                                        \
    X(PQgetResult)                                                                                                     \
    X(PQsetNoticeProcessor)                                                                                            \
    X(PQresultStatus)                                                                                                  \
    X(PQresultErrorField)                                                                                              \
    X(PQclear)                                                                                                         \
    X(PQntuples)                                                                                                       \
    X(PQgetvalue)                                                                                                      \
    X(PQgetlength)                                                                                                     \
    X(PQgetisnull)

#define MEMBER(name) __typeof__(name) *name;
static struct { PQ_LIST(MEMBER) } pq;
#undef MEMBER
static pthread_once_t pq_once = PTHREAD_ONCE_INIT;
static char pq_trouble[256];

enum { STOP_GRACE_MS = 2000, PG_MAGIC = 0x70676373 };

struct pg {
    u32 magic;
    PGconn *conn;
    int stop_fd;
    i64 silence_ms, until_ms; /* until_ms: of the answer that is waited for, on the monotonic clock; 0: for ever */
    bool silent;              /* it took too long: whatever it may still say, nobody listens */
    char sqlstate[6];
};

static PGconn *conn_of(const struct pg *pg) {
    CHECK(pg && pg->magic == PG_MAGIC);
    return pg->conn;
}

/* struct pg_rows is a PGresult by another name: no caller sees libpq's. */
static PGresult *result_of(const struct pg_rows *rows) {
    CHECK(rows);
    return (PGresult *)(uintptr_t)rows;
}

static void pq_load(void) {
    void *lib = dlopen("libpq.so.5", RTLD_NOW | RTLD_LOCAL);
    if (!lib) {
        snprintf(pq_trouble, sizeof(pq_trouble), "libpq.so.5 is not installed (Debian: apt install libpq5)");
        return;
    }
#define LOAD(name)                                                                                                     \
    *(void **)(void *)&pq.name = dlsym(lib, #name);                                                                    \
    if (!pq.name) snprintf(pq_trouble, sizeof(pq_trouble), "libpq.so.5 has no " #name);
    PQ_LIST(LOAD)
#undef LOAD
}

/* ---- errors */

/* libpq's messages end in a line feed and may have several lines, indented ones too: they become one. */
static void put_message(struct errbuf *err, const char *message) {
    char flat[sizeof(err->text)];
    size_t n = 0;
    if (!message || !*message) message = "no reason given";
    for (const char *p = message; *p && n + 1 < sizeof(flat); p++) {
        bool white = *p == '\n' || *p == '\t' || *p == ' ';
        if (!white) flat[n++] = *p;
        if (white && n && flat[n - 1] != ' ') flat[n++] = ' ';
    }
    if (n && flat[n - 1] == ' ') n--;
    flat[n] = '\0';
    err_set(err, ST_IO, "%s", flat);
}

static hx_st lost(struct pg *pg, struct errbuf *err) {
    put_message(err, pq.PQerrorMessage(pg->conn));
    return err_wrap(err, ST_CLOSED, "database");
}

static hx_st status_of(const char *sqlstate) {
    static const struct {
        const char *prefix;
        hx_st st;
    } known[] = {{"42P01", ST_NOT_FOUND}, {"3F000", ST_NOT_FOUND}, {"42883", ST_NOT_FOUND}, {"42501", ST_DENIED},
                 {"28", ST_DENIED},       {"HX006", ST_VERSION},   {"57P0", ST_CLOSED},     {"08", ST_CLOSED}};
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strncmp(sqlstate, known[i].prefix, strlen(known[i].prefix)) == 0) return known[i].st;
    return ST_INVALID;
}

static hx_st refused(struct pg *pg, const PGresult *result, struct errbuf *err) {
    const char *code = pq.PQresultErrorField(result, PG_DIAG_SQLSTATE);
    const char *text = pq.PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
    const char *hint = pq.PQresultErrorField(result, PG_DIAG_MESSAGE_HINT);
    if (!code) return lost(pg, err);
    snprintf(pg->sqlstate, sizeof(pg->sqlstate), "%s", code);
    return err_set(err, status_of(code), "database: %s: %s%s%s", code, text ? text : "no message", hint ? ". " : "",
                   hint ? hint : "");
}

/* ---- connecting */

/* A malformed string is caught before libpq's message can quote a part of it. */
static hx_st check_dsn(const char *dsn, struct errbuf *err) {
    char *why = NULL;
    bool url = strstr(dsn, "://") || strchr(dsn, '=');
    if (!url) return ST_OK;
    PQconninfoOption *parsed = pq.PQconninfoParse(dsn, &why);
    pq.PQfreemem(why);
    if (!parsed)
        return err_set(err, ST_INVALID,
                       "database: the connection string cannot be read (not shown: it may hold a password); "
                       "it looks like postgresql://USER@HOST/DATABASE or host=HOST dbname=DATABASE");
    pq.PQconninfoFree(parsed);
    return ST_OK;
}

static void no_notices(void *ctx, const char *message) {
    (void)ctx;
    (void)message;
}

hx_st pg_open(const struct pg_options *o, struct pg **out, struct errbuf *err) {
    const char *dsn = o->dsn ? o->dsn : "";
    *out = NULL;
    pthread_once(&pq_once, pq_load);
    if (pq_trouble[0]) return err_set(err, ST_CLOSED, "%s", pq_trouble);
    hx_st st = check_dsn(dsn, err);
    if (st) return st;
    /* What stands before dbname the string may override. tcp_user_timeout and keepalives: a peer that is gone without a
     * word, while something is to be sent and while nothing is. */
    const char *names[] = {"connect_timeout",      "tcp_user_timeout",
                           "keepalives_idle",      "keepalives_interval",
                           "keepalives_count",     "fallback_application_name",
                           "target_session_attrs", "dbname",
                           "client_encoding",      NULL};
    const char *values[] = {"5", "30000", "10", "5", "3", "hapax", o->writable ? "read-write" : "any",
                            dsn, "UTF8",  NULL};
    struct pg *pg = mem_zalloc(sizeof(*pg));
    pg->magic = PG_MAGIC;
    pg->stop_fd = o->stop_fd;
    pg->silence_ms = o->silence_ms;
    pg->conn = pq.PQconnectdbParams(names, values, 1);
    if (pg->conn && pq.PQstatus(pg->conn) == CONNECTION_OK && pq.PQsetnonblocking(pg->conn, 1) == 0) {
        pq.PQsetNoticeProcessor(pg->conn, no_notices, NULL);
        *out = pg;
        return ST_OK;
    }
    lost(pg, err);
    pg_close(pg);
    return ST_CLOSED;
}

void pg_close(struct pg *pg) {
    if (!pg) return;
    pq.PQfinish(conn_of(pg));
    pg->magic = 0;
    mem_free(pg);
}

bool pg_usable(const struct pg *pg) {
    return pg && !pg->silent && pq.PQstatus(conn_of(pg)) == CONNECTION_OK &&
           pq.PQtransactionStatus(pg->conn) != PQTRANS_ACTIVE;
}

const char *pg_sqlstate(const struct pg *pg) {
    return pg->sqlstate;
}

/* ---- statements */

static hx_st too_silent(struct pg *pg, struct errbuf *err) {
    pg->silent = true;
    return err_set(err, ST_CLOSED, "database: no answer within %lld ms", (long long)pg->silence_ms);
}

/* Until the connection can be read from (or, if something is still to be sent, written to). */
static hx_st wait_for(struct pg *pg, bool sending, struct errbuf *err) {
    struct pollfd p[2] = {{.fd = pq.PQsocket(pg->conn), .events = POLLIN}, {.fd = pg->stop_fd, .events = POLLIN}};
    if (sending) p[0].events |= POLLOUT;
    i64 left = pg->until_ms ? pg->until_ms - clock_mono_ms() : -1;
    if (pg->until_ms && left <= 0) return too_silent(pg, err);
    if (poll(p, 2, left > INT32_MAX ? INT32_MAX : (int)left) < 0)
        return errno == EINTR ? ST_OK : err_set(err, ST_CLOSED, "database: poll failed");
    /* An answer that is on its way is worth a moment: what it says need not be found out again. */
    if (p[1].revents && poll(p, 1, STOP_GRACE_MS) == 0)
        return err_set(err, ST_TIMEOUT, "database: stopped while waiting for an answer");
    return (p[0].revents & ~POLLOUT) && !pq.PQconsumeInput(pg->conn) ? lost(pg, err) : ST_OK;
}

/* Until a result can be taken without blocking. */
static hx_st await(struct pg *pg, struct errbuf *err) {
    hx_st st = ST_OK;
    for (;;) {
        int unsent = pq.PQflush(pg->conn);
        if (unsent < 0) return lost(pg, err);
        if (!unsent && !pq.PQisBusy(pg->conn)) return ST_OK;
        st = wait_for(pg, unsent > 0, err);
        if (st) return st;
    }
}

/* All results of what was sent; the last good one is kept if it is wanted. */
static hx_st collect(struct pg *pg, struct pg_rows **out, struct errbuf *err) {
    hx_st st = ST_OK;
    for (;;) {
        hx_st waited = await(pg, err);
        if (waited) return waited;
        PGresult *result = pq.PQgetResult(pg->conn);
        if (!result) return st;
        ExecStatusType kind = pq.PQresultStatus(result);
        bool good = kind == PGRES_TUPLES_OK || kind == PGRES_COMMAND_OK || kind == PGRES_EMPTY_QUERY;
        if (!good && !st) st = refused(pg, result, err);
        if (good && out) {
            pg_rows_free(*out);
            *out = (struct pg_rows *)result;
        } else {
            pq.PQclear(result);
        }
        if (pq.PQstatus(pg->conn) != CONNECTION_OK) return st ? ST_CLOSED : lost(pg, err);
    }
}

static hx_st finish(struct pg *pg, int sent, struct pg_rows **out, struct errbuf *err) {
    pg->sqlstate[0] = '\0';
    pg->until_ms = pg->silence_ms ? clock_mono_ms() + pg->silence_ms : 0;
    if (!sent) return lost(pg, err);
    struct pg_rows *rows = NULL;
    hx_st st = collect(pg, out ? &rows : NULL, err);
    if (st) {
        pg_rows_free(rows);
        rows = NULL;
    }
    if (st && st != ST_TIMEOUT && !pg->silent && pq.PQtransactionStatus(pg->conn) == PQTRANS_INERROR &&
        pq.PQsendQuery(pg->conn, "ROLLBACK"))
        collect(pg, NULL, NULL);
    if (out) *out = rows;
    return st;
}

hx_st pg_run(struct pg *pg, const char *sql, struct errbuf *err) {
    return finish(pg, pq.PQsendQuery(conn_of(pg), sql), NULL, err);
}

enum { ARGS_MAX = 16 };

hx_st pg_query(struct pg *pg, const char *sql, const slice *args, size_t arg_count, struct pg_rows **out,
               struct errbuf *err) {
    CHECK(arg_count <= ARGS_MAX);
    /* Text arguments end in a NUL, slices do not. */
    struct buf text = {0};
    size_t at[ARGS_MAX];
    for (size_t i = 0; i < arg_count; i++) {
        at[i] = text.len;
        buf_slice_add(&text, args[i]);
        buf_char(&text, '\0');
    }
    const char *values[ARGS_MAX];
    for (size_t i = 0; i < arg_count; i++) values[i] = args[i].p ? text.p + at[i] : NULL;
    int sent = pq.PQsendQueryParams(conn_of(pg), sql, (int)arg_count, NULL, values, NULL, NULL, 0);
    buf_free(&text);
    return finish(pg, sent, out, err);
}

size_t pg_row_count(const struct pg_rows *rows) {
    return (size_t)pq.PQntuples(result_of(rows));
}

slice pg_cell(const struct pg_rows *rows, size_t row, int column) {
    const PGresult *r = result_of(rows);
    if (pq.PQgetisnull(r, (int)row, column)) return (slice){0};
    return slice_of(pq.PQgetvalue(r, (int)row, column), (size_t)pq.PQgetlength(r, (int)row, column));
}

void pg_rows_free(struct pg_rows *rows) {
    if (rows) pq.PQclear(result_of(rows));
}

/* ---- writing SQL */

static void put_quoted(struct buf *b, slice text, const char *escaped, char with) {
    buf_char(b, '"');
    for (size_t i = 0; i < text.n; i++) {
        if (strchr(escaped, text.p[i])) buf_char(b, with);
        buf_char(b, text.p[i]);
    }
    buf_char(b, '"');
}

void pg_put_name(struct buf *b, slice name) {
    put_quoted(b, name, "\"", '"');
}

void pg_put_table(struct buf *b, slice table) {
    slice schema, name;
    if (slice_cut(table, '.', &schema, &name)) {
        pg_put_name(b, schema);
        buf_char(b, '.');
        pg_put_name(b, name);
    } else {
        pg_put_name(b, table);
    }
}

void pg_put_element(struct buf *b, slice text) {
    put_quoted(b, text, "\"\\", '\\');
}
