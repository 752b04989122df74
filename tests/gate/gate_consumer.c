/* A consumer behind a gate that can be made to die at any step between receiving a message and having it acked.
 *
 *   gate_consumer --url URL --queue NAME --db pg|FILE [--two-phase] [--die N [--while]] [--messages N] [--idle-ms N]
 *
 * The business write is a row of `effects` in the gate's database. With --two-phase there is a call to the outside
 * first: a row of `calls`, on a connection of its own (FILE-world for SQLite); nothing there is unique, so doubled
 * effects show. The message's payload says what the handler returns: done, reject, fail, poison, unknown; or that the
 * connection to PostgreSQL is lost while it runs, the first time: lost.
 *
 * Steps are requests to the database and bytes to and from the broker, counted on the worker's thread from the moment
 * it asks for its gate. --die N kills this process (SIGKILL) before the Nth; with --while, after the request has left
 * and before its answer is read. At the end the number of steps is printed. The linker puts the counting in between
 * (--wrap), so that the libraries under test are as they are. */
#include <getopt.h>
#include <libpq-fe.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "hapax/gate.h"

/* ---- dying */

static long die_at;
static bool die_while;
static _Thread_local bool counting;
static long steps;

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

/* true: this is the step, and it is to be left unanswered. */
static bool step(bool can_wait) {
    if (!counting || ++steps != die_at) return false;
    if (!die_while || !can_wait) die();
    return true;
}

static void flush_and_die(PGconn *conn) {
    PQflush(conn);
    die();
}

PGresult *__real_PQexec(PGconn *conn, const char *sql);
PGresult *__wrap_PQexec(PGconn *conn, const char *sql);
PGresult *__wrap_PQexec(PGconn *conn, const char *sql) {
    if (step(true) && PQsendQuery(conn, sql)) flush_and_die(conn);
    return __real_PQexec(conn, sql);
}

PGresult *__real_PQexecParams(PGconn *conn, const char *sql, int n, const Oid *types, const char *const *values,
                              const int *lengths, const int *formats, int format);
PGresult *__wrap_PQexecParams(PGconn *conn, const char *sql, int n, const Oid *types, const char *const *values,
                              const int *lengths, const int *formats, int format);
PGresult *__wrap_PQexecParams(PGconn *conn, const char *sql, int n, const Oid *types, const char *const *values,
                              const int *lengths, const int *formats, int format) {
    if (step(true) && PQsendQueryParams(conn, sql, n, types, values, lengths, formats, format)) flush_and_die(conn);
    return __real_PQexecParams(conn, sql, n, types, values, lengths, formats, format);
}

/* Several statements in one request: it leaves with the sync. */
int __real_PQpipelineSync(PGconn *conn);
int __wrap_PQpipelineSync(PGconn *conn);
int __wrap_PQpipelineSync(PGconn *conn) {
    bool last = step(true);
    int sent = __real_PQpipelineSync(conn);
    if (last) flush_and_die(conn);
    return sent;
}

int __real_sqlite3_step(sqlite3_stmt *q);
int __wrap_sqlite3_step(sqlite3_stmt *q);
int __wrap_sqlite3_step(sqlite3_stmt *q) {
    step(false);
    return __real_sqlite3_step(q);
}

ssize_t __real_sendmsg(int fd, const struct msghdr *msg, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *msg, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *msg, int flags) {
    bool last = step(true);
    ssize_t n = __real_sendmsg(fd, msg, flags);
    if (last) die();
    return n;
}

ssize_t __real_recv(int fd, void *p, size_t n, int flags);
ssize_t __wrap_recv(int fd, void *p, size_t n, int flags);
ssize_t __wrap_recv(int fd, void *p, size_t n, int flags) {
    step(false);
    return __real_recv(fd, p, n, flags);
}

/* ---- the databases: one connection for the gate, one for the world outside */

static const char *database;
static PGconn *pg, *pg_world;
static sqlite3 *lite, *lite_world;
static hx_gate *gate;
static bool two_phase;

_Noreturn static void fatal(const char *what, const char *why) {
    fprintf(stderr, "gate_consumer: %s: %s\n", what, why);
    exit(1);
}

static void connect_pg(void) {
    pg = PQconnectdb("");
    pg_world = PQconnectdb("");
    if (PQstatus(pg) != CONNECTION_OK || PQstatus(pg_world) != CONNECTION_OK) fatal("connect", PQerrorMessage(pg));
    gate = hx_gate_pq(pg);
}

static sqlite3 *open_lite(const char *path) {
    sqlite3 *db;
    if (sqlite3_open(path, &db) != SQLITE_OK) fatal(path, sqlite3_errmsg(db));
    sqlite3_busy_timeout(db, 20000);
    sqlite3_exec(db, "PRAGMA journal_mode = wal; PRAGMA synchronous = normal", NULL, NULL, NULL);
    return db;
}

static void connect_sqlite(void) {
    char world[512];
    snprintf(world, sizeof(world), "%s-world", database);
    lite = open_lite(database);
    lite_world = open_lite(world);
    hx_error err;
    if (hx_gate_sqlite_install(lite, &err) != HX_OK) fatal("install", err.detail);
    if (sqlite3_exec(lite, "CREATE TABLE IF NOT EXISTS effects (key TEXT)", NULL, NULL, NULL) != SQLITE_OK)
        fatal("effects", sqlite3_errmsg(lite));
    if (sqlite3_exec(lite_world, "CREATE TABLE IF NOT EXISTS calls (key TEXT)", NULL, NULL, NULL) != SQLITE_OK)
        fatal("calls", sqlite3_errmsg(lite_world));
    gate = hx_gate_sqlite(lite);
}

/* One statement about one key; the number in its first row, 0 without one, -1 if it failed. */
static long ask(bool world, const char *sql, const char *key) {
    if (pg) {
        PGresult *r = PQexecParams(world ? pg_world : pg, sql, 1, NULL, &key, NULL, NULL, 0);
        long n = PQresultStatus(r) == PGRES_TUPLES_OK    ? strtol(PQgetvalue(r, 0, 0), NULL, 10)
                 : PQresultStatus(r) == PGRES_COMMAND_OK ? 0
                                                         : -1;
        PQclear(r);
        return n;
    }
    sqlite3_stmt *q = NULL;
    if (sqlite3_prepare_v2(world ? lite_world : lite, sql, -1, &q, NULL) != SQLITE_OK) return -1;
    sqlite3_bind_text(q, 1, key, -1, SQLITE_STATIC);
    int rc = sqlite3_step(q);
    long n = rc == SQLITE_ROW ? sqlite3_column_int(q, 0) : rc == SQLITE_DONE ? 0 : -1;
    sqlite3_finalize(q);
    return n;
}

/* ---- the consumer's functions */

static hx_gate *own_gate(void *ctx, int worker, hx_error *err) {
    (void)ctx, (void)worker, (void)err;
    counting = true;
    if (pg && PQstatus(pg) != CONNECTION_OK) PQreset(pg);
    return gate;
}

static void set_result(hx_message *m) {
    char text[300];
    int n = snprintf(text, sizeof(text), "result of %s", m->effect_key);
    hx_message_set_result(m, hx_bytes_of(text, (size_t)n), "text/plain");
}

static bool payload_is(const hx_message *m, const char *text) {
    return m->payload.size == strlen(text) && memcmp(m->payload.data, text, m->payload.size) == 0;
}

static hx_verdict wanted(const hx_message *m) {
    static const struct {
        const char *text;
        hx_verdict verdict;
    } words[] = {{"reject", HX_FAIL_REJECTED},
                 {"fail", HX_FAIL_TRANSIENT},
                 {"poison", HX_FAIL_POISON},
                 {"unknown", HX_FAIL_UNKNOWN}};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (payload_is(m, words[i].text)) return words[i].verdict;
    return HX_DONE;
}

static hx_verdict record(void *ctx, hx_message *m) {
    (void)ctx;
    if (ask(false, pg ? "INSERT INTO effects VALUES ($1)" : "INSERT INTO effects VALUES (?1)", m->effect_key) < 0)
        return HX_FAIL_TRANSIENT;
    static bool lost;
    if (pg && !lost && payload_is(m, "lost")) {
        lost = true;
        PQclear(PQexec(pg, "SELECT pg_terminate_backend(pg_backend_pid())"));
    }
    set_result(m);
    return two_phase ? HX_DONE : wanted(m);
}

static hx_verdict effect(void *ctx, hx_message *m) {
    (void)ctx;
    if (ask(true, pg ? "INSERT INTO calls VALUES ($1)" : "INSERT INTO calls VALUES (?1)", m->effect_key) < 0)
        return HX_FAIL_UNKNOWN;
    return wanted(m);
}

static hx_verdict lookup(void *ctx, hx_message *m) {
    (void)ctx;
    long n = ask(true, pg ? "SELECT count(*) FROM calls WHERE key = $1" : "SELECT count(*) FROM calls WHERE key = ?1",
                 m->effect_key);
    return n < 0 ? HX_FAIL_UNKNOWN : n > 0 ? HX_DONE : HX_FAIL_ABSENT;
}

static void trouble(void *ctx, hx_message *m, const hx_error *err) {
    (void)ctx;
    fprintf(stderr, "%s: %s: %s\n", m ? m->key : "poll", err->code, err->detail);
}

int main(int argc, char **argv) {
    static const struct option names[] = {
        {"url", 1, NULL, 'u'},       {"queue", 1, NULL, 'q'},   {"db", 1, NULL, 'd'},
        {"two-phase", 0, NULL, '2'}, {"die", 1, NULL, 'n'},     {"while", 0, NULL, 'w'},
        {"messages", 1, NULL, 'm'},  {"idle-ms", 1, NULL, 'i'}, {0}};
    hx_options options = {.patient = true};
    hx_consume_gate behind = {.gate = own_gate, .scope = "crash", .lookup = lookup};
    hx_consume_options o = {.handler = record,
                            .on_trouble = trouble,
                            .gate = &behind,
                            .prefetch = -1,
                            .lease_ms = 4000,
                            .consumer = "gate_consumer",
                            .wait_ms = 500,
                            .idle_ms = 5000};
    for (int c; (c = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        if (c == 'u') options.url = optarg;
        if (c == 'q') o.queue = optarg;
        if (c == 'd') database = optarg;
        if (c == '2') two_phase = true;
        if (c == 'n') die_at = strtol(optarg, NULL, 10);
        if (c == 'w') die_while = true;
        if (c == 'm') o.messages_max = strtol(optarg, NULL, 10);
        if (c == 'i') o.idle_ms = strtol(optarg, NULL, 10);
        if (c == '?') return 2;
    }
    if (two_phase) behind.effect = effect;
    if (!database || !o.queue) fatal("usage", "--queue and --db are needed");
    if (strcmp(database, "pg") == 0)
        connect_pg();
    else
        connect_sqlite();
    hx_error err;
    hx_client *client;
    hx_consumer *consumer;
    if (hx_open(&options, &client, &err) != HX_OK || hx_consume(client, &o, &consumer, &err) != HX_OK)
        fatal("consume", err.detail);
    hx_consumer_wait(consumer, -1);
    hx_consumer_close(consumer);
    hx_close(client);
    hx_gate_free(gate);
    if (pg) PQfinish(pg);
    if (pg_world) PQfinish(pg_world);
    sqlite3_close(lite);
    sqlite3_close(lite_world);
    printf("%ld steps\n", steps);
    return 0;
}
