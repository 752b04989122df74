/* Whole transactions through the C library beside the same written by hand.
 *
 *   gate_bench pg|pg-named|FILE [ROUNDS [TRANSACTIONS]]      pg-named: with prepared statements on both sides
 *
 * By hand is what one would write: a table with the key, the result and its content type, and in one transaction
 *
 *   a new key                     INSERT ... ON CONFLICT DO NOTHING, the business UPDATE
 *   a new key with a result       the same, then UPDATE of the key's row with the result, which is not known before
 *   a duplicate                   INSERT, which finds that the key is there
 *   a duplicate with a result     the same, then SELECT of the stored result
 *
 * each between BEGIN and COMMIT. The gate's is hx_gate_run whose function does that business UPDATE. All of it twice: with
 * the disk waited for at each commit, and without (synchronous_commit = off; SQLite: synchronous = normal), where the
 * processor's work is all there is.
 *
 * A round has each way once, side by side, and ratios are taken round by round, so that a noisy machine hurts both alike.
 * Printed are medians, of the clock's time and of the processor's (this process and its server's backend); exit 1 if a new
 * key takes the gate more than 1.3 times as long. Duplicates are told and not judged: the gate counts them, and by hand
 * nobody does, so that there nothing is written at all. */
#include <libpq-fe.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/base.h"
#include "hapax/gate.h"

enum { ROUNDS_MAX = 1000, ACCOUNTS = 10000, REPEATED = 100, PARAMS = 3 };
enum how { BY_HAND, GATE, HOWS };
enum kind { FRESH, FRESH_RESULT, REPEAT, REPEAT_RESULT, KINDS };

static const struct {
    const char *name;
    bool judged;
} kinds[] = {{"a new key", true},
             {"a new key with a result", true},
             {"a duplicate", false},
             {"a duplicate with a result", false}};

static const double most = 1.3; /* gate / by hand */

static PGconn *pg;
static sqlite3 *lite;
static hx_gate *gate;
static struct rng rng;
static bool named;

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

/* ---- by hand. Prepared once where the gate's statements are, too. */

enum statement { BOOK, REMEMBER, STORE, LOOK, STATEMENTS };

static const struct {
    const char *name;
    int params;
    const char *pg, *lite;
} statements[] = {
    {"by_hand_book", 1, "UPDATE account SET balance = balance + 1 WHERE id = $1::int",
     "UPDATE account SET balance = balance + 1 WHERE id = CAST(?1 AS INTEGER)"},
    {"by_hand_remember", 1, "INSERT INTO seen (scope, key) VALUES ('pay', $1) ON CONFLICT DO NOTHING",
     "INSERT INTO seen (scope, key) VALUES ('pay', ?1) ON CONFLICT DO NOTHING"},
    {"by_hand_store", 3, "UPDATE seen SET result = $2, content_type = $3 WHERE scope = 'pay' AND key = $1",
     "UPDATE seen SET result = ?2, content_type = ?3 WHERE scope = 'pay' AND key = ?1"},
    {"by_hand_look", 1, "SELECT result, content_type FROM seen WHERE scope = 'pay' AND key = $1",
     "SELECT result, content_type FROM seen WHERE scope = 'pay' AND key = ?1"},
};

/* How many rows it changed. */
static int run_lite(enum statement s, const char *const *values) {
    static sqlite3_stmt *prepared[STATEMENTS];
    if (!prepared[s] && sqlite3_prepare_v2(lite, statements[s].lite, -1, &prepared[s], NULL) != SQLITE_OK)
        fatal(statements[s].lite);
    for (int i = 0; i < PARAMS && i < statements[s].params; i++)
        sqlite3_bind_text(prepared[s], i + 1, values[i], -1, SQLITE_STATIC);
    int rc = sqlite3_step(prepared[s]);
    if (rc == SQLITE_ROW && sqlite3_column_bytes(prepared[s], 0) == 0) fatal("no result");
    if (rc != SQLITE_ROW && rc != SQLITE_DONE) fatal(statements[s].lite);
    sqlite3_reset(prepared[s]);
    return sqlite3_changes(lite);
}

static int run_pg(enum statement s, const char *const *values) {
    PGresult *r = named ? PQexecPrepared(pg, statements[s].name, statements[s].params, values, NULL, NULL, 0)
                        : PQexecParams(pg, statements[s].pg, statements[s].params, NULL, values, NULL, NULL, 0);
    if (PQresultStatus(r) == PGRES_FATAL_ERROR) fatal(statements[s].pg);
    if (s == LOOK && PQgetlength(r, 0, 0) == 0) fatal("no result");
    int changed = (int)strtol(PQcmdTuples(r), NULL, 10);
    PQclear(r);
    return changed;
}

static int run(enum statement s, const char *const *values) {
    return pg ? run_pg(s, values) : run_lite(s, values);
}

static void book(void) {
    char id[16];
    snprintf(id, sizeof(id), "%u", (unsigned)rng_below(&rng, ACCOUNTS));
    const char *const values[PARAMS] = {id, NULL, NULL};
    run(BOOK, values);
}

static void by_hand(enum kind kind, const char *key) {
    const char *const values[PARAMS] = {key, "captured", "text/plain"};
    script(pg ? "BEGIN" : "BEGIN IMMEDIATE");
    bool new = run(REMEMBER, values);
    if (new != (kind == FRESH || kind == FRESH_RESULT)) fatal("new or not");
    if (new) book();
    if (kind == FRESH_RESULT) run(STORE, values);
    if (kind == REPEAT_RESULT) run(LOOK, values);
    script("COMMIT");
}

/* ---- by the gate */

static hx_gate_verdict record(void *ctx, hx_gate_turn *turn) {
    book();
    if (*(const enum kind *)ctx == FRESH_RESULT) hx_gate_set_result(turn, hx_str("captured"), "text/plain");
    return HX_GATE_DO;
}

static void by_gate(enum kind kind, const char *name) {
    hx_gate_key key = {.scope = "pay", .key = name};
    hx_gate_work work = {.record = record, .ctx = &kind};
    hx_gate_reply told;
    hx_error err;
    hx_gate_answer expected = kind == FRESH || kind == FRESH_RESULT ? HX_GATE_NEW : HX_GATE_DUPLICATE;
    if (hx_gate_run(gate, &key, &work, &told, &err) != HX_OK || told.answer != expected) {
        fprintf(stderr, "gate_bench: %s\n", err.detail);
        exit(1);
    }
    if (kind == REPEAT_RESULT && told.result.size == 0) fatal("no result");
    hx_gate_reply_free(&told);
}

/* ---- measuring */

struct cost {
    double wall_us, cpu_us;
};

static double process_cpu_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* Of the backend that serves us, as the kernel counts it. */
static double backend_cpu_us(void) {
    if (!pg) return 0;
    char path[64], line[64] = "";
    snprintf(path, sizeof(path), "/proc/%d/schedstat", PQbackendPID(pg));
    FILE *f = fopen(path, "r");
    if (!f || !fgets(line, sizeof(line), f)) line[0] = 0;
    if (f) fclose(f);
    return (double)strtoull(line, NULL, 10) / 1e3;
}

/* Of one transaction, averaged over a round. */
static struct cost one_round(enum how how, enum kind kind, int transactions) {
    double cpu = process_cpu_us() + backend_cpu_us();
    i64 began = clock_mono_us();
    for (int i = 0; i < transactions; i++) {
        char key[64];
        if (kind == REPEAT || kind == REPEAT_RESULT)
            snprintf(key, sizeof(key), "repeated:%d:%d", kind == REPEAT_RESULT, i % REPEATED);
        else
            snprintf(key, sizeof(key), "capture:%016llx%016llx", (unsigned long long)rng_next(&rng),
                     (unsigned long long)rng_next(&rng));
        if (how == BY_HAND)
            by_hand(kind, key);
        else
            by_gate(kind, key);
    }
    double wall = (double)(clock_mono_us() - began);
    cpu = process_cpu_us() + backend_cpu_us() - cpu;
    return (struct cost){wall / transactions, cpu / transactions};
}

/* What is repeated later. */
static void seed(void) {
    for (int i = 0; i < REPEATED; i++)
        for (int result = 0; result < 2; result++) {
            char key[64];
            snprintf(key, sizeof(key), "repeated:%d:%d", result, i);
            by_hand(result ? FRESH_RESULT : FRESH, key);
            by_gate(result ? FRESH_RESULT : FRESH, key);
        }
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n) {
    qsort(values, (size_t)n, sizeof(double), compare);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/* The medians of one kind's rounds; false: the gate took too long. */
static bool report(const char *where, enum kind kind, const struct cost took[HOWS][ROUNDS_MAX], int rounds) {
    static double values[6][ROUNDS_MAX];
    for (int r = 0; r < rounds; r++) {
        for (int how = 0; how < HOWS; how++) {
            values[how][r] = took[how][r].wall_us;
            values[2 + how][r] = took[how][r].cpu_us;
        }
        values[4][r] = took[GATE][r].wall_us / took[BY_HAND][r].wall_us;
        values[5][r] = took[GATE][r].cpu_us / took[BY_HAND][r].cpu_us;
    }
    double m[6];
    for (int i = 0; i < 6; i++) m[i] = median(values[i], rounds);
    bool ok = !kinds[kind].judged || m[4] <= most;
    printf("%s - %s, %s: %.2f", ok ? "ok" : "not ok", where, kinds[kind].name, m[4]);
    if (kinds[kind].judged) printf(" (at most %.2f)", most);
    printf(" # us by hand %.0f, gate %.0f; of the processor %.0f, %.0f, ratio %.2f\n", m[0], m[1], m[2], m[3], m[5]);
    fflush(stdout);
    return ok;
}

static bool compare_all(const char *where, int rounds, int each) {
    static struct cost took[KINDS][HOWS][ROUNDS_MAX];
    for (int r = -1; r < rounds; r++) /* the first is not counted */
        for (int kind = 0; kind < KINDS; kind++)
            for (int i = 0; i < HOWS; i++) {
                enum how how = (enum how)((r + 1 + i) % HOWS); /* each comes first in turn */
                took[kind][how][r < 0 ? 0 : r] = one_round(how, (enum kind)kind, each);
            }
    bool ok = true;
    for (int kind = 0; kind < KINDS; kind++) ok = report(where, (enum kind)kind, took[kind], rounds) && ok;
    return ok;
}

/* ---- the databases */

static void prepare_pg(void) {
    pg = PQconnectdb("");
    if (PQstatus(pg) != CONNECTION_OK) fatal("connect");
    gate = named ? hx_gate_pq_named(pg) : hx_gate_pq(pg);
    script("CREATE TABLE account (id int PRIMARY KEY, balance bigint NOT NULL) WITH (fillfactor = 50)");
    script("INSERT INTO account SELECT i, 0 FROM generate_series(0, 9999) i");
    script("CREATE TABLE seen (scope text, key text, created_at timestamptz NOT NULL DEFAULT now(), result bytea,"
           " content_type text, PRIMARY KEY (scope, key)) WITH (fillfactor = 90)");
    for (int s = 0; s < STATEMENTS && named; s++) PQclear(PQprepare(pg, statements[s].name, statements[s].pg, 0, NULL));
}

static void prepare_lite(const char *file) {
    hx_error err;
    if (sqlite3_open(file, &lite) != SQLITE_OK) fatal(file);
    script("PRAGMA journal_mode = wal");
    if (hx_gate_sqlite_install(lite, &err) != HX_OK) fatal(err.detail);
    gate = hx_gate_sqlite(lite);
    script("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL);"
           "CREATE TABLE seen (scope TEXT, key TEXT, created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP, result BLOB,"
           " content_type TEXT, PRIMARY KEY (scope, key));"
           "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 9999)"
           " INSERT INTO account SELECT i, 0 FROM n");
}

int main(int argc, char **argv) {
    if (argc < 2) return fprintf(stderr, "usage: gate_bench pg|pg-named|FILE [ROUNDS [TRANSACTIONS]]\n"), 2;
    int rounds = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 21, each = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 300;
    if (rounds < 1 || rounds > ROUNDS_MAX || each < 1) return 2;
    rng_seed(&rng, (u64)clock_wall_ms());
    named = strcmp(argv[1], "pg-named") == 0;
    if (named || strcmp(argv[1], "pg") == 0)
        prepare_pg();
    else
        prepare_lite(argv[1]);
    seed();
    const char *where = named ? "PostgreSQL, prepared" : pg ? "PostgreSQL" : "SQLite";
    bool ok = true;
    for (int wait = 1; wait >= 0; wait--) {
        char name[64];
        snprintf(name, sizeof(name), "%s, %s", where, wait ? "sync" : "no sync");
        script(pg     ? wait ? "SET synchronous_commit = on" : "SET synchronous_commit = off"
               : wait ? "PRAGMA synchronous = full"
                      : "PRAGMA synchronous = normal");
        ok = compare_all(name, rounds, each) && ok;
    }
    hx_gate_free(gate);
    if (pg) PQfinish(pg);
    return ok ? 0 : 1;
}
