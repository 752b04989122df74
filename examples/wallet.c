/* A wallet behind the gate: five transactions, 30 % of all deliveries duplicates, in any order.
 *
 *   cc wallet.c -o wallet $(pkg-config --cflags --libs hapax-pq hapax-sqlite libpq sqlite3)
 *   ./wallet sqlite wallet.db          or, with libpq's environment set and the SQL gate installed:  ./wallet pg
 *
 * Ends with "wallet: ok". Only what stands between the marks would differ in a program of yours, and of that one half:
 * nobody needs both databases. */
#include <hapax/gate.h>
#include <libpq-fe.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct delivery {
    const char *key; /* the business intent, not the delivery */
    int cents;
};

struct wallet {
    PGconn *pg;
    sqlite3 *lite;
    hx_gate *gate;
    const struct delivery *now;
};

/* ---- the database at hand */

static void die(const char *what, const char *why) {
    fprintf(stderr, "wallet: %s: %s\n", what, why);
    exit(1);
}

/* Runs SQL; returns the number in its first row, 0 without one. */
static int sql(struct wallet *w, const char *text) {
    int number = 0;
    if (w->pg) {
        PGresult *r = PQexec(w->pg, text);
        if (PQresultStatus(r) != PGRES_TUPLES_OK && PQresultStatus(r) != PGRES_COMMAND_OK)
            die(text, PQerrorMessage(w->pg));
        if (PQntuples(r)) number = (int)strtol(PQgetvalue(r, 0, 0), NULL, 10);
        PQclear(r);
        return number;
    }
    sqlite3_stmt *q;
    if (sqlite3_prepare_v2(w->lite, text, -1, &q, NULL) != SQLITE_OK) die(text, sqlite3_errmsg(w->lite));
    int rc = sqlite3_step(q);
    if (rc == SQLITE_ROW) number = sqlite3_column_int(q, 0);
    if (rc != SQLITE_ROW && rc != SQLITE_DONE) die(text, sqlite3_errmsg(w->lite));
    sqlite3_finalize(q);
    return number;
}

static void open_database(struct wallet *w, int argc, char **argv) {
    hx_error err;
    if (argc == 2 && strcmp(argv[1], "pg") == 0) {
        w->pg = PQconnectdb("");
        if (PQstatus(w->pg) != CONNECTION_OK) die("connect", PQerrorMessage(w->pg));
        w->gate = hx_gate_pq(w->pg);
    } else if (argc == 3 && strcmp(argv[1], "sqlite") == 0) {
        if (sqlite3_open(argv[2], &w->lite) != SQLITE_OK) die(argv[2], sqlite3_errmsg(w->lite));
        if (hx_gate_sqlite_install(w->lite, &err) != HX_OK) die("install", err.detail);
        w->gate = hx_gate_sqlite(w->lite);
    } else {
        fprintf(stderr, "usage: wallet pg | wallet sqlite FILE\n");
        exit(2);
    }
}

/* ---- the work: in the transaction of the claim, so done with it or not at all */

static hx_gate_verdict book(void *ctx, hx_gate_turn *turn) {
    struct wallet *w = ctx;
    char text[128];
    snprintf(text, sizeof(text), "UPDATE wallet_c SET cents = cents + %d, bookings = bookings + 1", w->now->cents);
    sql(w, text);
    int n = snprintf(text, sizeof(text), "%d", sql(w, "SELECT cents FROM wallet_c"));
    hx_gate_set_result(turn, hx_bytes_of(text, (size_t)n), "text/plain");
    return HX_GATE_DO;
}

static hx_gate_answer deliver(struct wallet *w, const char *scope, const struct delivery *d) {
    hx_gate_key key = {.scope = scope, .key = d->key, .fingerprint = hx_bytes_of(&d->cents, sizeof(d->cents))};
    hx_gate_work work = {.record = book, .ctx = w};
    hx_gate_reply told;
    hx_error err;
    w->now = d;
    if (hx_gate_run(w->gate, &key, &work, &told, &err) != HX_OK) die(d->key, err.detail);
    hx_gate_answer answer = told.answer;
    printf("  %-12s %6d  %-9s balance then %s\n", d->key, d->cents, hx_gate_answer_text(answer),
           told.result.data ? (const char *)told.result.data : "-");
    hx_gate_reply_free(&told);
    return answer;
}

/* ---- the wire: five intents, two of them once more. Two of seven are 29 %. */

int main(int argc, char **argv) {
    static const struct delivery wire[] = {{"wallet:1:1", 10000}, {"wallet:1:2", -3000}, {"wallet:1:1", 10000},
                                           {"wallet:1:3", 5000},  {"wallet:1:4", -2500}, {"wallet:1:2", -3000},
                                           {"wallet:1:5", 725}};
    static const struct delivery forged = {"wallet:1:1", 999999};
    struct wallet w = {0};
    open_database(&w, argc, argv);
    sql(&w, "DROP TABLE IF EXISTS wallet_c");
    sql(&w, "CREATE TABLE wallet_c (cents int NOT NULL, bookings int NOT NULL)");
    sql(&w, "INSERT INTO wallet_c VALUES (0, 0)");
    char scope[64]; /* of this run, so that it can be repeated */
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(scope, sizeof(scope), "wallet %lld.%09ld", (long long)now.tv_sec, now.tv_nsec);
    int done = 0, duplicates = 0;
    for (size_t i = 0; i < sizeof(wire) / sizeof(wire[0]); i++) {
        hx_gate_answer answer = deliver(&w, scope, &wire[i]);
        done += answer == HX_GATE_NEW;
        duplicates += answer == HX_GATE_DUPLICATE;
    }
    bool refused =
        deliver(&w, scope, &forged) == HX_GATE_CONFLICT; /* the same key with another amount is no duplicate */
    int cents = sql(&w, "SELECT cents FROM wallet_c"), bookings = sql(&w, "SELECT bookings FROM wallet_c");
    bool ok = cents == 10225 && bookings == 5 && done == 5 && duplicates == 2 && refused;
    printf("wallet: %s (%d cents, %d bookings, %d duplicates)\n", ok ? "ok" : "WRONG", cents, bookings, duplicates);
    sql(&w, "DROP TABLE wallet_c");
    hx_gate_free(w.gate);
    if (w.pg) PQfinish(w.pg);
    sqlite3_close(w.lite);
    return ok ? 0 : 1;
}
