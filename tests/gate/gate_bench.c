/* Whole transactions through the C library beside the same written by hand: a dedup key and one business UPDATE.
 *
 *   gate_bench pg|pg-named|FILE [ROUNDS [TRANSACTIONS]]      pg-named: with prepared statements on both sides
 *
 * By hand: BEGIN, INSERT ... ON CONFLICT DO NOTHING, UPDATE, COMMIT. With the gate: hx_gate_run whose function does that
 * UPDATE; once without and once with a stored result. Rounds are interleaved and ratios taken round by round, so that
 * a noisy machine hurts all alike. Prints medians; exit 1 if the gate takes more than 1.3 times as long. */
#include <libpq-fe.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "hapax/gate.h"

enum { ROUNDS_MAX = 1000, ACCOUNTS = 10000 };
enum way { BY_HAND, GATE, GATE_WITH_RESULT, WAYS };

static PGconn *pg;
static sqlite3 *lite;
static hx_gate *gate;
static struct rng rng;
static bool named;

#define UPDATE_PG "UPDATE account SET balance = balance + 1 WHERE id = $1::int"
#define INSERT_PG "INSERT INTO seen (scope, key) VALUES ('pay', $1) ON CONFLICT DO NOTHING"

_Noreturn static void fatal(const char *what) {
    fprintf(stderr, "gate_bench: %s: %s\n", what, pg ? PQerrorMessage(pg) : sqlite3_errmsg(lite));
    exit(1);
}

static void script(const char *sql) {
    if (lite && sqlite3_exec(lite, sql, NULL, NULL, NULL) != SQLITE_OK) fatal(sql);
    if (!pg) return;
    PGresult *r = PQexec(pg, sql);
    if (PQresultStatus(r) == PGRES_FATAL_ERROR) fatal(sql);
    PQclear(r);
}

/* Prepared once where the gate's statements are, too. */
static void statement(int which, const char *sql_pg, const char *sql_lite, const char *value) {
    static sqlite3_stmt *prepared[2];
    if (pg) {
        PGresult *r = named ? PQexecPrepared(pg, which ? "by_hand_1" : "by_hand_0", 1, &value, NULL, NULL, 0)
                            : PQexecParams(pg, sql_pg, 1, NULL, &value, NULL, NULL, 0);
        if (PQresultStatus(r) == PGRES_FATAL_ERROR) fatal(sql_pg);
        PQclear(r);
        return;
    }
    if (!prepared[which] && sqlite3_prepare_v2(lite, sql_lite, -1, &prepared[which], NULL) != SQLITE_OK)
        fatal(sql_lite);
    sqlite3_bind_text(prepared[which], 1, value, -1, SQLITE_STATIC);
    if (sqlite3_step(prepared[which]) != SQLITE_DONE) fatal(sql_lite);
    sqlite3_reset(prepared[which]);
}

static void update(void) {
    char id[16];
    snprintf(id, sizeof(id), "%u", (unsigned)rng_below(&rng, ACCOUNTS));
    statement(0, UPDATE_PG, "UPDATE account SET balance = balance + 1 WHERE id = CAST(?1 AS INTEGER)", id);
}

static void by_hand(const char *key) {
    script(pg ? "BEGIN" : "BEGIN IMMEDIATE");
    statement(1, INSERT_PG, "INSERT INTO seen (scope, key) VALUES ('pay', ?1) ON CONFLICT DO NOTHING", key);
    update();
    script("COMMIT");
}

static hx_gate_verdict record(void *ctx, hx_gate_turn *turn) {
    update();
    if (*(const enum way *)ctx == GATE_WITH_RESULT) hx_gate_set_result(turn, hx_str("captured"), "text/plain");
    return HX_GATE_DO;
}

static void by_gate(const char *name, enum way way) {
    hx_gate_key key = {.scope = "pay", .key = name};
    hx_gate_work work = {.record = record, .ctx = &way};
    hx_gate_reply told;
    hx_error err;
    if (hx_gate_run(gate, &key, &work, &told, &err) != HX_OK || told.answer != HX_GATE_NEW) {
        fprintf(stderr, "gate_bench: %s\n", err.detail);
        exit(1);
    }
    hx_gate_reply_free(&told);
}

/* Microseconds of one transaction, averaged over a round. */
static double one_round(enum way way, int transactions) {
    i64 began = clock_mono_us();
    for (int i = 0; i < transactions; i++) {
        char key[64];
        snprintf(key, sizeof(key), "capture:%016llx%016llx", (unsigned long long)rng_next(&rng),
                 (unsigned long long)rng_next(&rng));
        if (way == BY_HAND)
            by_hand(key);
        else
            by_gate(key, way);
    }
    return (double)(clock_mono_us() - began) / transactions;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *values, int n) {
    double sorted[ROUNDS_MAX];
    memcpy(sorted, values, (size_t)n * sizeof(double));
    qsort(sorted, (size_t)n, sizeof(double), compare);
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

static void prepare(const char *database) {
    hx_error err;
    named = strcmp(database, "pg-named") == 0;
    if (named || strcmp(database, "pg") == 0) {
        pg = PQconnectdb("");
        if (PQstatus(pg) != CONNECTION_OK) fatal("connect");
        gate = named ? hx_gate_pq_named(pg) : hx_gate_pq(pg);
        script("CREATE TABLE account (id int PRIMARY KEY, balance bigint NOT NULL) WITH (fillfactor = 50)");
        script("INSERT INTO account SELECT i, 0 FROM generate_series(0, 9999) i");
        script("CREATE TABLE seen (scope text, key text, created_at timestamptz NOT NULL DEFAULT now(),"
               " PRIMARY KEY (scope, key))");
        if (named) script("PREPARE by_hand_0 (text) AS " UPDATE_PG);
        if (named) script("PREPARE by_hand_1 (text) AS " INSERT_PG);
        return;
    }
    if (sqlite3_open(database, &lite) != SQLITE_OK) fatal(database);
    script("PRAGMA journal_mode = wal; PRAGMA synchronous = full");
    if (hx_gate_sqlite_install(lite, &err) != HX_OK) fatal(err.detail);
    gate = hx_gate_sqlite(lite);
    script("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL);"
           "CREATE TABLE seen (scope TEXT, key TEXT, created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,"
           " PRIMARY KEY (scope, key));"
           "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 9999)"
           " INSERT INTO account SELECT i, 0 FROM n");
}

int main(int argc, char **argv) {
    static const char *const names[] = {"by hand", "gate", "gate, with a result"};
    if (argc < 2) return fprintf(stderr, "usage: gate_bench pg|pg-named|FILE [ROUNDS [TRANSACTIONS]]\n"), 2;
    int rounds = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 21, each = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 300;
    if (rounds < 1 || rounds > ROUNDS_MAX || each < 1) return 2;
    static double took[WAYS][ROUNDS_MAX], ratio[WAYS][ROUNDS_MAX];
    rng_seed(&rng, (u64)clock_wall_ms());
    prepare(argv[1]);
    for (int w = 0; w < WAYS; w++) one_round((enum way)w, each); /* warm */
    for (int r = 0; r < rounds; r++) {
        for (int i = 0; i < WAYS; i++) { /* each comes first in turn */
            int w = (r + i) % WAYS;
            took[w][r] = one_round((enum way)w, each);
        }
        for (int w = 0; w < WAYS; w++) ratio[w][r] = took[w][r] / took[BY_HAND][r];
    }
    for (int w = 0; w < WAYS; w++)
        printf("%-22s %8.0f us  %5.2f x\n", names[w], median(took[w], rounds), median(ratio[w], rounds));
    double worst = median(ratio[GATE], rounds);
    printf("%s - C library on %s beside a hand-written table: %.2f (at most 1.30)\n", worst <= 1.3 ? "ok" : "not ok",
           named ? "PostgreSQL, prepared"
           : pg  ? "PostgreSQL"
                 : "SQLite",
           worst);
    hx_gate_free(gate);
    if (pg) PQfinish(pg);
    return worst <= 1.3 ? 0 : 1;
}
