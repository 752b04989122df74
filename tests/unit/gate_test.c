/* The gate's promises, each kept by every database: SQLite with a rollback journal and with WAL; PostgreSQL instead when
 * libpq's environment names a server with the gate installed and HAPAX_TEST_PG says to use it (tests/gate/consumers_test.py does so).
 *
 * A test gets a struct db: two connections with a gate each, and a table `effects` that counts business writes. */
#include <libpq-fe.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "hapax/gate.h"

enum kind { SQLITE_JOURNAL, SQLITE_WAL, POSTGRES, KINDS };

/* Of what is tried until a lease of a millisecond has ended; a failure ends there instead of never. */
enum { ROUNDS_MAX = 20000 };

struct side {
    PGconn *pg;
    sqlite3 *lite;
    hx_gate *gate;
};

struct db {
    enum kind kind;
    const char *scope; /* of this test */
    char directory[64], path[96];
    struct side a, b;
    hx_error err;
};

/* ---- databases */

static void fail_with(const char *what, const char *why) {
    fail_msg("%s: %s", what, why);
}

/* The first column of the first row, NULL without one; until the next call. */
static const char *query(struct side *s, const char *sql) {
    static char text[256];
    bool some = false;
    if (s->pg) {
        PGresult *r = PQexec(s->pg, sql);
        ExecStatusType st = PQresultStatus(r);
        if (st != PGRES_TUPLES_OK && st != PGRES_COMMAND_OK) fail_with(sql, PQerrorMessage(s->pg));
        some = st == PGRES_TUPLES_OK && PQntuples(r) && !PQgetisnull(r, 0, 0);
        if (some) snprintf(text, sizeof(text), "%s", PQgetvalue(r, 0, 0));
        PQclear(r);
        return some ? text : NULL;
    }
    sqlite3_stmt *q = NULL;
    if (sqlite3_prepare_v2(s->lite, sql, -1, &q, NULL) != SQLITE_OK) fail_with(sql, sqlite3_errmsg(s->lite));
    int rc = sqlite3_step(q);
    if (rc != SQLITE_ROW && rc != SQLITE_DONE) fail_with(sql, sqlite3_errmsg(s->lite));
    some = rc == SQLITE_ROW && sqlite3_column_type(q, 0) != SQLITE_NULL;
    if (some) snprintf(text, sizeof(text), "%s", (const char *)sqlite3_column_text(q, 0));
    sqlite3_finalize(q);
    return some ? text : NULL;
}

/* SQL with %s twice for the gate's prefix and the test's scope. */
static const char *query_gate(struct db *d, const char *format) {
    char sql[512];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(sql, sizeof(sql), format, d->kind == POSTGRES ? "hapax." : "hapax_", d->scope);
#pragma GCC diagnostic pop
    return query(&d->b, sql);
}

static void write_effect(struct db *d, const char *key) {
    char sql[512];
    snprintf(sql, sizeof(sql), "INSERT INTO effects VALUES ('%s/%s')", d->scope, key);
    query(&d->a, sql);
}

static int effects(struct db *d, const char *key) {
    char sql[512];
    snprintf(sql, sizeof(sql), "SELECT count(*) FROM effects WHERE key = '%s/%s'", d->scope, key);
    return (int)strtol(query(&d->b, sql), NULL, 10);
}

static void side_open(struct db *d, struct side *s) {
    if (d->kind == POSTGRES) {
        s->pg = PQconnectdb("");
        if (PQstatus(s->pg) != CONNECTION_OK) fail_with("connect", PQerrorMessage(s->pg));
        bool named = strcmp(getenv("HAPAX_TEST_PG"), "named") == 0;
        s->gate = named ? hx_gate_pq_named(s->pg) : hx_gate_pq(s->pg);
        return;
    }
    assert_int_equal(sqlite3_open(d->path, &s->lite), SQLITE_OK);
    query(s, d->kind == SQLITE_WAL ? "PRAGMA journal_mode = wal" : "PRAGMA journal_mode = delete");
    query(s, "PRAGMA synchronous = off");
    s->gate = hx_gate_sqlite(s->lite);
}

static void side_close(struct side *s) {
    hx_gate_free(s->gate);
    if (s->pg) PQfinish(s->pg);
    if (s->lite) assert_int_equal(sqlite3_close(s->lite), SQLITE_OK);
    *s = (struct side){0};
}

static struct db *db_open(enum kind kind, const char *scope) {
    struct db *d = test_calloc(1, sizeof(*d));
    d->kind = kind;
    d->scope = scope;
    if (kind != POSTGRES) {
        snprintf(d->directory, sizeof(d->directory), "%s/hapax-gate.XXXXXX",
                 getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
        assert_non_null(mkdtemp(d->directory));
        snprintf(d->path, sizeof(d->path), "%s/db", d->directory);
    }
    side_open(d, &d->a);
    if (kind != POSTGRES) {
        assert_int_equal(hx_gate_sqlite_install(d->a.lite, &d->err), HX_OK);
        assert_int_equal(hx_gate_sqlite_install(d->a.lite, &d->err), HX_OK); /* again: harmless */
    } else {
        query(&d->a, "SET client_min_messages = warning");
    }
    query(&d->a, "CREATE TABLE IF NOT EXISTS effects (key text)");
    side_open(d, &d->b);
    return d;
}

static void db_close(struct db *d) {
    side_close(&d->a);
    side_close(&d->b);
    static const char *const leftovers[] = {"", "-wal", "-shm", "-journal"};
    for (size_t i = 0; d->directory[0] && i < 4; i++) {
        char path[128];
        snprintf(path, sizeof(path), "%s%s", d->path, leftovers[i]);
        unlink(path);
    }
    if (d->directory[0]) assert_int_equal(rmdir(d->directory), 0);
    test_free(d);
}

/* ---- short words for the tests */

static hx_gate_key key_of(struct db *d, const char *key) {
    return (hx_gate_key){.scope = d->scope, .key = key};
}

static hx_gate_key fenced(struct db *d, const char *key, int64_t fence) {
    return (hx_gate_key){.scope = d->scope, .key = key, .fence = fence, .owner = "w"};
}

#define assert_status(d, call, status_wanted)                                                                          \
    do {                                                                                                               \
        hx_status status_got = (call);                                                                                 \
        if (status_got != (status_wanted))                                                                             \
            fail_msg("%s: %s, not %s (%s: %s)", #call, hx_status_name(status_got), hx_status_name(status_wanted),      \
                     (d)->err.code, (d)->err.detail);                                                                  \
    } while (0)
#define assert_ok(d, call) assert_status(d, call, HX_OK)

/* A refusal: status, code, and that nothing was applied. */
#define assert_refused(d, call, status_wanted, code_wanted)                                                            \
    do {                                                                                                               \
        assert_status(d, call, status_wanted);                                                                         \
        assert_string_equal((d)->err.code, code_wanted);                                                               \
        assert_int_equal((d)->err.applied, HX_APPLIED_NO);                                                             \
    } while (0)

typedef hx_status (*admit_fn)(hx_gate *, const hx_gate_key *, hx_gate_reply *, hx_error *);

static void expect_answer(struct db *d, struct side *s, admit_fn fn, hx_gate_key key, hx_gate_answer wanted) {
    hx_gate_reply r;
    assert_ok(d, fn(s->gate, &key, &r, &d->err));
    assert_string_equal(hx_gate_answer_text(r.answer), hx_gate_answer_text(wanted));
    assert_true(r.first_seen_ms > 1600000000000);
    assert_true(r.attempt >= 1);
    hx_gate_reply_free(&r);
}

static void begin(struct db *d, struct side *s) {
    assert_ok(d, hx_gate_begin(s->gate, &d->err));
}

static void commit(struct db *d, struct side *s) {
    assert_ok(d, hx_gate_commit(s->gate, &d->err));
}

static void expect_claim(struct db *d, hx_gate_key key, hx_gate_answer wanted) {
    begin(d, &d->a);
    expect_answer(d, &d->a, hx_gate_claim, key, wanted);
    commit(d, &d->a);
}

static void expect_reserve(struct db *d, hx_gate_key key, hx_gate_answer wanted) {
    expect_answer(d, &d->a, hx_gate_reserve, key, wanted);
}

static void expect_settle(struct db *d, hx_gate_key key, const char *result, hx_gate_answer wanted) {
    hx_gate_answer got;
    hx_gate_outcome o = {.result = hx_str(result), .content_type = "text/plain"};
    assert_ok(d, hx_gate_commit_outcome(d->a.gate, &key, &o, &got, &d->err));
    assert_string_equal(hx_gate_answer_text(got), hx_gate_answer_text(wanted));
}

static void expect_release(struct db *d, hx_gate_key key, hx_gate_answer wanted) {
    hx_gate_answer got;
    assert_ok(d, hx_gate_release(d->a.gate, &key, &got, &d->err));
    assert_string_equal(hx_gate_answer_text(got), hx_gate_answer_text(wanted));
}

static void expect_stored(struct db *d, hx_gate_key key, const char *result, bool rejected) {
    hx_gate_reply r;
    begin(d, &d->a);
    assert_ok(d, hx_gate_claim(d->a.gate, &key, &r, &d->err));
    commit(d, &d->a);
    assert_int_equal(r.answer, HX_GATE_DUPLICATE);
    assert_int_equal(r.rejected, rejected);
    if (result)
        assert_string_equal(r.result.data, result);
    else
        assert_null(r.result.data);
    hx_gate_reply_free(&r);
}

/* ---- one transaction */

static void a_duplicate_gets_the_stored_answer(struct db *d) {
    hx_gate_key key = key_of(d, "k");
    begin(d, &d->a);
    expect_answer(d, &d->a, hx_gate_claim, key, HX_GATE_NEW);
    write_effect(d, "k");
    expect_settle(d, key, "captured", HX_GATE_COMMITTED);
    commit(d, &d->a);
    hx_gate_reply r;
    begin(d, &d->b);
    assert_ok(d, hx_gate_claim(d->b.gate, &key, &r, &d->err));
    commit(d, &d->b);
    assert_int_equal(r.answer, HX_GATE_DUPLICATE);
    assert_memory_equal(r.result.data, "captured", r.result.size);
    assert_string_equal(r.content_type, "text/plain");
    assert_int_equal(r.attempt, 1);
    hx_gate_reply_free(&r);
    assert_int_equal(effects(d, "k"), 1);
}

static void results_are_bytes(struct db *d) {
    static const char bytes[] = {0, 1, (char)0xFF, 0, '\''};
    hx_gate_key key = key_of(d, "k"), empty = key_of(d, "empty"), none = key_of(d, "none");
    hx_gate_reply r;
    begin(d, &d->a);
    expect_answer(d, &d->a, hx_gate_claim, key, HX_GATE_NEW);
    expect_answer(d, &d->a, hx_gate_claim, empty, HX_GATE_NEW);
    expect_answer(d, &d->a, hx_gate_claim, none, HX_GATE_NEW);
    hx_gate_outcome o = {.result = hx_bytes_of(bytes, sizeof(bytes))};
    assert_ok(d, hx_gate_commit_outcome(d->a.gate, &key, &o, NULL, &d->err));
    o.result = hx_str("");
    assert_ok(d, hx_gate_commit_outcome(d->a.gate, &empty, &o, NULL, &d->err));
    assert_ok(d, hx_gate_commit_outcome(d->a.gate, &none, NULL, NULL, &d->err));
    commit(d, &d->a);
    begin(d, &d->a);
    assert_ok(d, hx_gate_claim(d->a.gate, &key, &r, &d->err));
    assert_int_equal(r.result.size, sizeof(bytes));
    assert_memory_equal(r.result.data, bytes, sizeof(bytes));
    assert_null(r.content_type);
    hx_gate_reply_free(&r);
    assert_ok(d, hx_gate_claim(d->a.gate, &empty, &r, &d->err));
    assert_non_null(r.result.data);
    assert_int_equal(r.result.size, 0);
    hx_gate_reply_free(&r);
    assert_ok(d, hx_gate_claim(d->a.gate, &none, &r, &d->err));
    assert_null(r.result.data);
    hx_gate_reply_free(&r);
    commit(d, &d->a);
}

static void a_rolled_back_claim_leaves_no_trace(struct db *d) {
    begin(d, &d->a);
    expect_answer(d, &d->a, hx_gate_claim, key_of(d, "k"), HX_GATE_NEW);
    write_effect(d, "k");
    hx_gate_rollback(d->a.gate);
    hx_gate_rollback(d->a.gate); /* what is not open needs none */
    assert_int_equal(effects(d, "k"), 0);
    assert_string_equal(query_gate(d, "SELECT count(*) FROM %skeys WHERE scope = '%s'"), "0");
    expect_claim(d, key_of(d, "k"), HX_GATE_NEW);
}

static void asking_again_in_the_same_transaction_is_new_until_it_is_settled(struct db *d) {
    hx_gate_key key = key_of(d, "k");
    begin(d, &d->a);
    expect_answer(d, &d->a, hx_gate_claim, key, HX_GATE_NEW);
    query(&d->a, "SAVEPOINT deeper");
    expect_answer(d, &d->a, hx_gate_claim, key, HX_GATE_NEW);
    query(&d->a, "ROLLBACK TO SAVEPOINT deeper");
    write_effect(d, "k");
    expect_answer(d, &d->a, hx_gate_claim, key, HX_GATE_NEW);
    expect_settle(d, key, "first", HX_GATE_COMMITTED);
    expect_answer(d, &d->a, hx_gate_claim, key, HX_GATE_DUPLICATE);
    expect_settle(d, key, "second", HX_GATE_DUPLICATE);
    commit(d, &d->a);
    expect_stored(d, key, "first", false);
    assert_string_equal(query_gate(d, "SELECT claims FROM %ssignals WHERE scope = '%s'"), "3");
}

/* The caller may begin as it likes; in SQLite also without the write lock. */
static void a_transaction_begun_by_the_caller_will_do(struct db *d) {
    query(&d->a, "BEGIN");
    expect_answer(d, &d->a, hx_gate_claim, key_of(d, "k"), HX_GATE_NEW);
    write_effect(d, "k");
    query(&d->a, "COMMIT");
    query(&d->a, "BEGIN");
    expect_answer(d, &d->a, hx_gate_claim, key_of(d, "k"), HX_GATE_DUPLICATE);
    query(&d->a, "ROLLBACK");
    assert_int_equal(effects(d, "k"), 1);
}

static void a_claim_is_done_by_its_commit_alone(struct db *d) {
    expect_claim(d, key_of(d, "k"), HX_GATE_NEW);
    expect_stored(d, key_of(d, "k"), NULL, false);
    expect_settle(d, key_of(d, "k"), "late", HX_GATE_DUPLICATE);
    expect_release(d, key_of(d, "k"), HX_GATE_DUPLICATE);
    expect_stored(d, key_of(d, "k"), NULL, false);
}

static void a_claim_released_in_its_transaction_is_new_for_the_next(struct db *d) {
    begin(d, &d->a);
    expect_answer(d, &d->a, hx_gate_claim, key_of(d, "k"), HX_GATE_NEW);
    expect_release(d, key_of(d, "k"), HX_GATE_RELEASED);
    commit(d, &d->a);
    expect_claim(d, key_of(d, "k"), HX_GATE_NEW);
    expect_claim(d, key_of(d, "k"), HX_GATE_DUPLICATE);
}

static void another_fingerprint_is_a_conflict_and_not_a_duplicate(struct db *d) {
    hx_gate_key key = key_of(d, "k"), other = key, none = key;
    key.fingerprint = hx_str("100 EUR");
    other.fingerprint = hx_str("999 EUR");
    expect_claim(d, key, HX_GATE_NEW);
    expect_claim(d, other, HX_GATE_CONFLICT);
    expect_claim(d, key, HX_GATE_DUPLICATE);
    expect_claim(d, none, HX_GATE_DUPLICATE);
    assert_string_equal(query_gate(d, "SELECT conflicts FROM %ssignals WHERE scope = '%s'"), "1");
}

static void answers_come_in_the_order_of_the_contract(struct db *d) {
    hx_gate_key first = fenced(d, "k", 5), other = fenced(d, "k", 4);
    first.fingerprint = hx_str("a");
    other.fingerprint = hx_str("b");
    expect_reserve(d, first, HX_GATE_NEW);
    expect_reserve(d, other, HX_GATE_CONFLICT); /* before stale */
    other.fingerprint = hx_str("a");
    expect_reserve(d, other, HX_GATE_STALE); /* before in_flight */
    other.fence = 0;
    expect_reserve(d, other, HX_GATE_IN_FLIGHT);
    expect_settle(d, first, "r", HX_GATE_COMMITTED);
    other.fence = 4;
    expect_reserve(d, other, HX_GATE_DUPLICATE); /* before stale */
    other.fingerprint = hx_str("b");
    expect_reserve(d, other, HX_GATE_CONFLICT); /* before duplicate */
}

/* ---- fences */

static void a_zombie_cannot_write_after_its_successor(struct db *d) {
    expect_reserve(d, fenced(d, "k", 1), HX_GATE_NEW);
    expect_reserve(d, fenced(d, "k", 2), HX_GATE_UNKNOWN);
    hx_gate_key zombie = fenced(d, "k", 1);
    begin(d, &d->a);
    write_effect(d, "k");
    assert_refused(d, hx_gate_commit_outcome(d->a.gate, &zombie, NULL, NULL, &d->err), HX_FENCED, "HX001");
    hx_status st = hx_gate_commit(d->a.gate, &d->err); /* one that does not look commits nothing */
    assert_int_equal(st, HX_REFUSED);
    assert_int_equal(d->err.applied, HX_APPLIED_NO);
    hx_gate_rollback(d->a.gate);
    assert_int_equal(effects(d, "k"), 0);
    assert_refused(d, hx_gate_release(d->a.gate, &zombie, NULL, &d->err), HX_FENCED, "HX001");
    expect_reserve(d, zombie, HX_GATE_STALE);
    expect_settle(d, fenced(d, "k", 2), "r", HX_GATE_COMMITTED);
}

static void the_highest_fence_outlives_a_release(struct db *d) {
    expect_reserve(d, fenced(d, "k", 7), HX_GATE_NEW);
    expect_release(d, fenced(d, "k", 7), HX_GATE_RELEASED);
    expect_release(d, fenced(d, "k", 7), HX_GATE_RELEASED);
    expect_reserve(d, fenced(d, "k", 6), HX_GATE_STALE);
    expect_reserve(d, fenced(d, "k", 8), HX_GATE_NEW);
}

/* ---- two phases */

static void a_reservation_is_its_owners_until_the_lease_ends(struct db *d) {
    hx_gate_key mine = key_of(d, "k"), theirs = key_of(d, "k"), nobody = key_of(d, "k");
    mine.owner = "a/1";
    theirs.owner = "b/1";
    expect_reserve(d, mine, HX_GATE_NEW);
    expect_reserve(d, theirs, HX_GATE_IN_FLIGHT);
    expect_reserve(d, nobody, HX_GATE_IN_FLIGHT);
    expect_claim(d, theirs, HX_GATE_IN_FLIGHT);
    expect_reserve(d, mine, HX_GATE_NEW); /* a lost COMMIT reply */
    expect_settle(d, mine, "r", HX_GATE_COMMITTED);
    expect_stored(d, theirs, "r", false);
}

static void an_abandoned_reservation_is_unknown_and_stays_so(struct db *d) {
    hx_gate_key mine = key_of(d, "k"), theirs = key_of(d, "k");
    mine.lease_ms = 1;
    mine.owner = "a/1";
    theirs.owner = "b/1";
    expect_reserve(d, mine, HX_GATE_NEW);
    hx_gate_reply r = {0};
    for (int i = 0; i < ROUNDS_MAX && r.answer <= HX_GATE_IN_FLIGHT; i++) { /* its lease is a millisecond */
        hx_gate_reply_free(&r);
        assert_ok(d, hx_gate_reserve(d->a.gate, &theirs, &r, &d->err));
    }
    assert_int_equal(r.answer, HX_GATE_UNKNOWN);
    assert_int_equal(r.attempt, 2);
    hx_gate_reply_free(&r);
    expect_reserve(d, theirs, HX_GATE_UNKNOWN); /* the answer survives a lost reply */
    expect_release(d, theirs, HX_GATE_RELEASED);
    expect_reserve(d, theirs, HX_GATE_NEW);
}

static void claim_finds_an_abandoned_reservation_unknown_until_it_is_ended(struct db *d) {
    expect_reserve(d, fenced(d, "k", 1), HX_GATE_NEW);
    expect_claim(d, fenced(d, "k", 2), HX_GATE_UNKNOWN);
    expect_claim(d, fenced(d, "k", 2), HX_GATE_UNKNOWN);
    begin(d, &d->a);
    expect_release(d, fenced(d, "k", 2), HX_GATE_RELEASED);
    expect_answer(d, &d->a, hx_gate_claim, fenced(d, "k", 2), HX_GATE_NEW);
    commit(d, &d->a);
    expect_claim(d, fenced(d, "k", 3), HX_GATE_DUPLICATE);
}

static void a_refusal_is_remembered_as_one(struct db *d) {
    hx_gate_key key = fenced(d, "k", 1);
    expect_reserve(d, key, HX_GATE_NEW);
    hx_gate_outcome o = {.result = hx_str("no funds"), .rejected = true};
    assert_ok(d, hx_gate_commit_outcome(d->a.gate, &key, &o, NULL, &d->err));
    expect_stored(d, key, "no funds", true);
}

static void a_second_effect_id_is_evidence(struct db *d) {
    hx_gate_key key = fenced(d, "k", 1);
    expect_reserve(d, key, HX_GATE_NEW);
    hx_gate_outcome o = {.effect_id = "ch_1"};
    assert_ok(d, hx_gate_commit_outcome(d->a.gate, &key, &o, NULL, &d->err));
    assert_ok(d, hx_gate_commit_outcome(d->a.gate, &key, &o, NULL, &d->err));
    assert_string_equal(query_gate(d, "SELECT keys_with_several_effects FROM %ssignals WHERE scope = '%s'"), "0");
    o.effect_id = "ch_2";
    assert_ok(d, hx_gate_commit_outcome(d->a.gate, &key, &o, NULL, &d->err));
    assert_string_equal(query_gate(d, "SELECT keys_with_several_effects FROM %ssignals WHERE scope = '%s'"), "1");
}

static void a_step_is_recorded_once(struct db *d) {
    hx_gate_key key = fenced(d, "k", 1), lower = fenced(d, "k", 1);
    hx_gate_reply r;
    expect_reserve(d, key, HX_GATE_NEW);
    key.fence = 2; /* a step raises the fence, too */
    begin(d, &d->a);
    assert_ok(d, hx_gate_step(d->a.gate, &key, "charge", hx_str("ch_1"), &r, &d->err));
    assert_int_equal(r.answer, HX_GATE_NEW);
    hx_gate_reply_free(&r);
    commit(d, &d->a);
    begin(d, &d->a);
    assert_ok(d, hx_gate_step(d->a.gate, &key, "charge", hx_str("ch_2"), &r, &d->err));
    assert_int_equal(r.answer, HX_GATE_DUPLICATE);
    assert_string_equal(r.result.data, "ch_1");
    hx_gate_reply_free(&r);
    assert_refused(d, hx_gate_step(d->a.gate, &lower, "tell", hx_str(NULL), NULL, &d->err), HX_FENCED, "HX001");
    hx_gate_rollback(d->a.gate);
    expect_settle(d, key, "r", HX_GATE_COMMITTED);
    begin(d, &d->a);
    assert_refused(d, hx_gate_step(d->a.gate, &key, "tell", hx_str(NULL), NULL, &d->err), HX_SETTLED, "HX005");
    hx_gate_rollback(d->a.gate);
}

/* ---- who waits for whom */

static void a_step_can_be_asked_for_without_recording_it(struct db *d) {
    hx_gate_key key = fenced(d, "k", 1), zombie = fenced(d, "k", 0);
    hx_gate_reply r;
    expect_reserve(d, key, HX_GATE_NEW);
    for (int i = 0; i < 2; i++) {
        begin(d, &d->a);
        assert_ok(d, hx_gate_step_ask(d->a.gate, &key, "debit", &r, &d->err));
        commit(d, &d->a);
        assert_int_equal(r.answer, HX_GATE_NEW);
        assert_null(r.result.data);
        hx_gate_reply_free(&r);
    }
    begin(d, &d->a);
    assert_ok(d, hx_gate_step(d->a.gate, &key, "debit", hx_str("r1"), NULL, &d->err));
    assert_ok(d, hx_gate_step_ask(d->a.gate, &key, "debit", &r, &d->err));
    commit(d, &d->a);
    assert_int_equal(r.answer, HX_GATE_DUPLICATE);
    assert_string_equal(r.result.data, "r1");
    hx_gate_reply_free(&r);
    zombie.attempt = 2;
    begin(d, &d->a);
    assert_refused(d, hx_gate_step_ask(d->a.gate, &zombie, "credit", NULL, &d->err), HX_FENCED, "HX001");
    hx_gate_rollback(d->a.gate);
}

static void a_rival_at_work_is_waited_for(struct db *d) {
    begin(d, &d->a);
    expect_answer(d, &d->a, hx_gate_claim, key_of(d, "k"), HX_GATE_NEW);
    hx_gate_key key = key_of(d, "k");
    if (d->kind == POSTGRES) {
        query(&d->b, "SET lock_timeout = '20ms'");
        begin(d, &d->b);
        assert_refused(d, hx_gate_claim(d->b.gate, &key, NULL, &d->err), HX_BUSY, "55P03");
        hx_gate_rollback(d->b.gate);
    } else {
        sqlite3_busy_timeout(d->b.lite, 20);
        assert_refused(d, hx_gate_begin(d->b.gate, &d->err), HX_BUSY, "sqlite_busy");
        assert_refused(d, hx_gate_reserve(d->b.gate, &key, NULL, &d->err), HX_BUSY, "sqlite_busy");
        query(&d->b, "BEGIN");
        assert_refused(d, hx_gate_claim(d->b.gate, &key, NULL, &d->err), HX_BUSY, "sqlite_busy");
        query(&d->b, "ROLLBACK");
    }
    assert_true(d->err.retryable);
    hx_gate_rollback(d->a.gate);
    begin(d, &d->b);
    expect_answer(d, &d->b, hx_gate_claim, key, HX_GATE_NEW);
    commit(d, &d->b);
}

/* ---- windows */

static void a_key_is_forgotten_after_its_window_and_not_before(struct db *d) {
    expect_claim(d, key_of(d, "old"), HX_GATE_NEW);
    expect_reserve(d, fenced(d, "flying", 1), HX_GATE_NEW);
    i64 dropped = -1;
    query_gate(d, d->kind == POSTGRES ? "INSERT INTO %sscope VALUES ('%s', '1 day')"
                                      : "INSERT INTO %sscope VALUES ('%s', 86400000)");
    assert_ok(d, hx_gate_sweep(d->a.gate, 0, &dropped, &d->err));
    assert_int_equal(dropped, 0);
    expect_claim(d, key_of(d, "old"), HX_GATE_DUPLICATE);
    query_gate(d, d->kind == POSTGRES ? "UPDATE %sscope SET keep = '0' WHERE scope = '%s'"
                                      : "UPDATE %sscope SET keep_ms = 0 WHERE scope = '%s'");
    assert_ok(d, hx_gate_sweep(d->a.gate, 10, &dropped, &d->err));
    assert_int_equal(dropped, 1);
    expect_claim(d, key_of(d, "old"), HX_GATE_NEW);
    expect_settle(d, fenced(d, "flying", 1), "r", HX_GATE_COMMITTED);
}

/* ---- bad input: each refused with a status that says that nothing was applied */

static void impossible_arguments_are_refused_before_the_database_is_asked(struct db *d) {
    char long_name[301] = "", most[256 * 2] = "";
    memset(long_name, 'k', 300);
    for (int i = 0; i < 255; i++) memcpy(most + 2 * i, "\xC3\xA4", 2);
    begin(d, &d->a);
    const hx_gate_key bad[] = {
        {.scope = d->scope},
        {.key = "k"},
        {.scope = "", .key = "k"},
        {.scope = d->scope, .key = ""},
        {.scope = d->scope, .key = long_name},
        {.scope = long_name, .key = "k"},
        {.scope = d->scope, .key = "\xFF"},
        {.scope = d->scope, .key = "k", .fence = -1},
        {.scope = d->scope, .key = "k", .lease_ms = -1},
        {.scope = d->scope, .key = "k", .lease_ms = INT64_MAX},
        {.scope = d->scope, .key = "k", .attempt = -1},
        {.scope = d->scope, .key = "k", .owner = "\xFF"},
    };
    for (size_t i = 0; i <= sizeof(bad) / sizeof(bad[0]); i++) {
        const hx_gate_key *key = i < sizeof(bad) / sizeof(bad[0]) ? &bad[i] : NULL;
        assert_refused(d, hx_gate_claim(d->a.gate, key, NULL, &d->err), HX_INVALID, "argument_invalid");
        assert_refused(d, hx_gate_reserve(d->a.gate, key, NULL, &d->err), HX_INVALID, "argument_invalid");
        assert_refused(d, hx_gate_commit_outcome(d->a.gate, key, NULL, NULL, &d->err), HX_INVALID, "argument_invalid");
        assert_refused(d, hx_gate_release(d->a.gate, key, NULL, &d->err), HX_INVALID, "argument_invalid");
        assert_refused(d, hx_gate_step(d->a.gate, key, "s", hx_str("r"), NULL, &d->err), HX_INVALID,
                       "argument_invalid");
    }
    hx_gate_key good = key_of(d, most);
    long_name[129] = '\0';
    assert_refused(d, hx_gate_step(d->a.gate, &good, NULL, hx_str("r"), NULL, &d->err), HX_INVALID, "argument_invalid");
    assert_refused(d, hx_gate_step(d->a.gate, &good, long_name, hx_str("r"), NULL, &d->err), HX_INVALID,
                   "argument_invalid");
    assert_refused(d, hx_gate_sweep(d->a.gate, -1, NULL, &d->err), HX_INVALID, "argument_invalid");
    hx_gate_orphans none;
    assert_refused(d, hx_gate_stranded(d->a.gate, -1, &none, &d->err), HX_INVALID, "argument_invalid");
    /* The transaction is none the worse, and 255 characters of two bytes each are fine. */
    expect_answer(d, &d->a, hx_gate_claim, good, HX_GATE_NEW);
    commit(d, &d->a);
    expect_claim(d, good, HX_GATE_DUPLICATE);
}

/* What would be cut, or stored as nothing, is refused. */
static void a_result_that_does_not_fit_is_refused(struct db *d) {
    hx_gate_key key = key_of(d, "k");
    hx_gate_outcome huge = {.result = hx_bytes_of("", (size_t)1 << 31)};
    begin(d, &d->a);
    expect_answer(d, &d->a, hx_gate_claim, key, HX_GATE_NEW);
    assert_refused(d, hx_gate_commit_outcome(d->a.gate, &key, &huge, NULL, &d->err), HX_INVALID, "argument_invalid");
    assert_refused(d, hx_gate_step(d->a.gate, &key, "s", huge.result, NULL, &d->err), HX_INVALID, "argument_invalid");
    if (d->kind != POSTGRES) {
        int before = sqlite3_limit(d->a.lite, SQLITE_LIMIT_LENGTH, 100);
        char text[200] = "";
        memset(text, 'r', sizeof(text) - 1);
        hx_gate_outcome large = {.result = hx_str(text)}, long_id = {.effect_id = text};
        assert_refused(d, hx_gate_commit_outcome(d->a.gate, &key, &large, NULL, &d->err), HX_INVALID, "sqlite_toobig");
        assert_refused(d, hx_gate_commit_outcome(d->a.gate, &key, &long_id, NULL, &d->err), HX_INVALID,
                       "sqlite_toobig");
        sqlite3_limit(d->a.lite, SQLITE_LIMIT_LENGTH, before);
    }
    expect_settle(d, key, "small", HX_GATE_COMMITTED);
    commit(d, &d->a);
    expect_stored(d, key, "small", false);
}

static void expect_counts_rows(struct db *d) {
    hx_gate_answer a;
    assert_ok(d, hx_gate_expect(1, &a, &d->err));
    assert_int_equal(a, HX_GATE_APPLIED);
    assert_ok(d, hx_gate_expect(0, &a, &d->err));
    assert_int_equal(a, HX_GATE_ALREADY);
    assert_refused(d, hx_gate_expect(2, &a, &d->err), HX_CONFLICT, "HX004");
    assert_refused(d, hx_gate_expect(-1, &a, &d->err), HX_INVALID, "argument_invalid");
}

static void what_was_never_claimed_cannot_be_settled(struct db *d) {
    hx_gate_key key = key_of(d, "k");
    begin(d, &d->a);
    assert_refused(d, hx_gate_commit_outcome(d->a.gate, &key, NULL, NULL, &d->err), HX_NOT_FOUND, "HX002");
    hx_gate_rollback(d->a.gate);
    assert_refused(d, hx_gate_release(d->a.gate, &key, NULL, &d->err), HX_NOT_FOUND, "HX002");
    begin(d, &d->a);
    assert_refused(d, hx_gate_step(d->a.gate, &key, "s", hx_str("r"), NULL, &d->err), HX_NOT_FOUND, "HX002");
    hx_gate_rollback(d->a.gate);
}

static void a_caller_outside_a_transaction_is_told_so(struct db *d) {
    hx_gate_key key = key_of(d, "k");
    assert_refused(d, hx_gate_claim(d->a.gate, &key, NULL, &d->err), HX_REFUSED, "no_transaction");
    assert_refused(d, hx_gate_step(d->a.gate, &key, "s", hx_str("r"), NULL, &d->err), HX_REFUSED, "no_transaction");
    assert_refused(d, hx_gate_commit(d->a.gate, &d->err), HX_REFUSED, "no_transaction");
    expect_claim(d, key, HX_GATE_NEW); /* nothing was claimed by any of that */
    begin(d, &d->a);
    assert_refused(d, hx_gate_begin(d->a.gate, &d->err), HX_REFUSED, "in_transaction");
    hx_gate_rollback(d->a.gate);
}

static void an_aborted_transaction_is_told_so(struct db *d) {
    if (d->kind != POSTGRES) return; /* SQLite has no such state */
    hx_gate_key key = key_of(d, "k");
    begin(d, &d->a);
    PQclear(PQexec(d->a.pg, "SELECT 1 / 0"));
    assert_refused(d, hx_gate_claim(d->a.gate, &key, NULL, &d->err), HX_REFUSED, "25P02");
    assert_refused(d, hx_gate_reserve(d->a.gate, &key, NULL, &d->err), HX_REFUSED, "25P02");
    assert_refused(d, hx_gate_commit_outcome(d->a.gate, &key, NULL, NULL, &d->err), HX_REFUSED, "25P02");
    assert_refused(d, hx_gate_release(d->a.gate, &key, NULL, &d->err), HX_REFUSED, "25P02");
    assert_refused(d, hx_gate_step(d->a.gate, &key, "s", hx_str("r"), NULL, &d->err), HX_REFUSED, "25P02");
    assert_refused(d, hx_gate_commit(d->a.gate, &d->err), HX_REFUSED, "25P02");
    hx_gate_rollback(d->a.gate);
    expect_claim(d, key, HX_GATE_NEW);
}

enum call {
    CALL_BEGIN,
    CALL_CLAIM,
    CALL_RESERVE,
    CALL_SETTLE,
    CALL_RELEASE,
    CALL_STEP,
    CALL_STRANDED,
    CALL_SWEEP,
    CALL_COMMIT,
    CALLS
};

static hx_status make_call(struct db *d, enum call call, const hx_gate_key *key) {
    hx_gate *g = d->a.gate;
    hx_gate_orphans orphans;
    switch (call) {
    case CALL_BEGIN:
        return hx_gate_begin(g, &d->err);
    case CALL_CLAIM:
        return hx_gate_claim(g, key, NULL, &d->err);
    case CALL_RESERVE:
        return hx_gate_reserve(g, key, NULL, &d->err);
    case CALL_SETTLE:
        return hx_gate_commit_outcome(g, key, NULL, NULL, &d->err);
    case CALL_RELEASE:
        return hx_gate_release(g, key, NULL, &d->err);
    case CALL_STEP:
        return hx_gate_step(g, key, "s", hx_str("r"), NULL, &d->err);
    case CALL_STRANDED:
        return hx_gate_stranded(g, 0, &orphans, &d->err);
    case CALL_SWEEP:
        return hx_gate_sweep(g, 0, NULL, &d->err);
    default:
        return hx_gate_commit(g, &d->err);
    }
}

static void terminate(struct db *d) {
    char sql[96];
    snprintf(sql, sizeof(sql), "SELECT pg_terminate_backend(%d, 60000)", PQbackendPID(d->a.pg));
    query(&d->b, sql);
}

/* In a transaction nothing is in doubt: it died with its connection. On its own, or in COMMIT, everything is. */
static void a_connection_lost_at_any_call_says_what_is_in_doubt(struct db *d) {
    if (d->kind != POSTGRES) return; /* nothing to lose */
    expect_claim(d, key_of(d, "before"), HX_GATE_NEW);
    for (int open = 0; open <= 1; open++) {
        for (int call = 0; call < CALLS; call++) {
            if (open == (call == CALL_BEGIN) ||
                (!open && (call == CALL_CLAIM || call == CALL_STEP || call == CALL_COMMIT)))
                continue;
            hx_gate_key key = key_of(d, "k");
            if (open) begin(d, &d->a);
            terminate(d);
            bool doubt = open ? call == CALL_COMMIT : call != CALL_BEGIN && call != CALL_STRANDED;
            hx_status st = make_call(d, (enum call)call, &key);
            assert_int_equal(st, doubt ? HX_UNKNOWN : HX_UNREACHABLE);
            assert_int_equal(d->err.applied, doubt ? HX_APPLIED_UNKNOWN : HX_APPLIED_NO);
            assert_string_equal(d->err.code, "connection_lost");
            /* What comes after is refused without asking, until somebody reconnects. */
            assert_refused(d, hx_gate_release(d->a.gate, &key, NULL, &d->err), HX_UNREACHABLE, "connection_lost");
            hx_gate_rollback(d->a.gate);
            PQreset(d->a.pg);
            expect_claim(d, key_of(d, "before"), HX_GATE_DUPLICATE);
        }
    }
    assert_string_equal(query_gate(d, "SELECT count(*) FROM %skeys WHERE scope = '%s'"), "1");
}

/* The limit on file sizes stands for a disk that fails. Nobody can say; asking again tells. */
static void a_commit_that_fails_on_the_disk_is_in_doubt(struct db *d) {
    if (d->kind == POSTGRES) return;
    begin(d, &d->a);
    expect_answer(d, &d->a, hx_gate_claim, key_of(d, "k"), HX_GATE_NEW);
    write_effect(d, "k");
    struct rlimit before, none;
    getrlimit(RLIMIT_FSIZE, &before);
    none = before;
    none.rlim_cur = 0;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &none);
    hx_status st = hx_gate_commit(d->a.gate, &d->err);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_status(d, st, HX_UNKNOWN);
    assert_int_equal(d->err.applied, HX_APPLIED_UNKNOWN);
    hx_gate_rollback(d->a.gate);
    hx_gate_key key = key_of(d, "k");
    hx_gate_reply r;
    begin(d, &d->a);
    assert_ok(d, hx_gate_claim(d->a.gate, &key, &r, &d->err));
    hx_gate_rollback(d->a.gate);
    assert_int_equal(r.answer == HX_GATE_DUPLICATE, effects(d, "k"));
    hx_gate_reply_free(&r);
}

static void another_schema_version_is_refused(struct db *d) {
    const char *table = d->kind == POSTGRES ? "hapax.schema_version" : "hapax_schema";
    char sql[128];
    hx_gate_key key = key_of(d, "k");
    snprintf(sql, sizeof(sql), "INSERT INTO %s VALUES (99, %s)", table, d->kind == POSTGRES ? "now()" : "0");
    query(&d->b, sql);
    begin(d, &d->a);
    hx_status st = hx_gate_claim(d->a.gate, &key, NULL, &d->err);
    hx_error err = d->err;
    hx_gate_rollback(d->a.gate);
    hx_status installed = d->kind == POSTGRES ? HX_UNAVAILABLE : hx_gate_sqlite_install(d->a.lite, &d->err);
    snprintf(sql, sizeof(sql), "DELETE FROM %s WHERE version = 99", table);
    query(&d->b, sql);
    assert_int_equal(st, HX_UNAVAILABLE);
    assert_string_equal(err.code, "HX006");
    assert_int_equal(err.applied, HX_APPLIED_NO);
    assert_int_equal(installed, HX_UNAVAILABLE);
    expect_claim(d, key, HX_GATE_NEW);
}

static void a_database_without_the_gate_or_without_rights_is_unavailable(struct db *d) {
    hx_gate_key key = key_of(d, "k");
    if (d->kind == POSTGRES) {
        query(&d->b, "DROP ROLE IF EXISTS gate_nobody");
        query(&d->b, "CREATE ROLE gate_nobody");
        query(&d->a, "SET ROLE gate_nobody");
        assert_refused(d, hx_gate_reserve(d->a.gate, &key, NULL, &d->err), HX_UNAVAILABLE, "42501");
        query(&d->a, "RESET ROLE");
        query(&d->b, "DROP ROLE gate_nobody");
        query(&d->b, "DROP DATABASE IF EXISTS gate_none");
        query(&d->b, "CREATE DATABASE gate_none");
        side_close(&d->a);
        d->a.pg = PQconnectdb("dbname=gate_none");
        d->a.gate = hx_gate_pq(d->a.pg);
        assert_refused(d, hx_gate_reserve(d->a.gate, &key, NULL, &d->err), HX_UNAVAILABLE, "3F000");
        side_close(&d->a);
        query(&d->b, "DROP DATABASE gate_none");
        side_open(d, &d->a);
    } else {
        sqlite3 *other;
        assert_int_equal(sqlite3_open(":memory:", &other), SQLITE_OK);
        hx_gate *gate = hx_gate_sqlite(other);
        assert_refused(d, hx_gate_reserve(gate, &key, NULL, &d->err), HX_UNAVAILABLE, "not_installed");
        hx_gate_free(gate);
        sqlite3_close(other);
        assert_int_equal(sqlite3_open_v2(d->path, &other, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
        gate = hx_gate_sqlite(other);
        assert_refused(d, hx_gate_reserve(gate, &key, NULL, &d->err), HX_UNAVAILABLE, "sqlite_readonly");
        hx_gate_free(gate);
        sqlite3_close(other);
    }
    expect_reserve(d, key, HX_GATE_NEW);
}

static void installing_touches_nothing_of_the_users(struct db *d) {
    if (d->kind == POSTGRES) return; /* tests/gate/functions_test.py has it */
    sqlite3 *db;
    assert_int_equal(sqlite3_open(":memory:", &db), SQLITE_OK);
    struct side s = {.lite = db};
    query(&s, "PRAGMA user_version = 42");
    query(&s, "BEGIN"); /* in the caller's transaction: its rollback undoes it */
    assert_ok(d, hx_gate_sqlite_install(db, &d->err));
    query(&s, "ROLLBACK");
    assert_string_equal(query(&s, "SELECT count(*) FROM sqlite_master"), "0");
    assert_ok(d, hx_gate_sqlite_install(db, &d->err));
    assert_string_equal(query(&s, "PRAGMA user_version"), "42");
    assert_string_equal(query(&s, "SELECT count(*) FROM sqlite_master WHERE name NOT LIKE '%hapax\\_%' ESCAPE '\\'"),
                        "0");
    sqlite3_close(db);
}

/* A gate of version 1, with a key of every kind. */
static const char version_1[] =
    "CREATE TABLE hapax_schema (version INTEGER PRIMARY KEY, installed_at_ms INTEGER NOT NULL);"
    "INSERT INTO hapax_schema VALUES (1, 1);"
    "CREATE TABLE hapax_scope (scope TEXT PRIMARY KEY NOT NULL, keep_ms INTEGER);"
    "CREATE TABLE hapax_entry (scope TEXT NOT NULL, key TEXT NOT NULL, state TEXT NOT NULL, unsure INTEGER NOT NULL "
    "DEFAULT 0,"
    "  attempt INTEGER NOT NULL DEFAULT 1, fence INTEGER, gate INTEGER NOT NULL, data_version INTEGER NOT NULL,"
    "  first_seen_ms INTEGER NOT NULL, since_ms INTEGER NOT NULL, lease_until_ms INTEGER, owner TEXT, fingerprint BLOB,"
    "  effect_id TEXT, content_type TEXT, result BLOB, PRIMARY KEY (scope, key));"
    "CREATE INDEX hapax_entry_since ON hapax_entry (scope, since_ms);"
    "CREATE INDEX hapax_entry_in_flight ON hapax_entry (since_ms) WHERE lease_until_ms IS NOT NULL;"
    "CREATE TABLE hapax_steps (scope TEXT NOT NULL, key TEXT NOT NULL, name TEXT NOT NULL, result BLOB,"
    "  finished_at_ms INTEGER NOT NULL, PRIMARY KEY (scope, key, name));"
    "CREATE TABLE hapax_extra_effect (scope TEXT NOT NULL, key TEXT NOT NULL, effect_id TEXT NOT NULL,"
    "  seen_at_ms INTEGER NOT NULL, PRIMARY KEY (scope, key, effect_id));"
    "CREATE TABLE hapax_total (scope TEXT NOT NULL, answer TEXT NOT NULL, n INTEGER NOT NULL, PRIMARY KEY (scope, "
    "answer));"
    "CREATE TRIGGER hapax_entry_gone AFTER DELETE ON hapax_entry BEGIN"
    "  DELETE FROM hapax_steps WHERE scope = old.scope AND key = old.key; END;"
    "CREATE VIEW hapax_keys AS SELECT * FROM hapax_entry; CREATE VIEW hapax_signals AS SELECT * FROM hapax_total;"
    "CREATE VIEW of_the_user AS SELECT count(*) AS n FROM hapax_entry;"
    "INSERT INTO hapax_entry (scope, key, state, fence, gate, data_version, first_seen_ms, since_ms, lease_until_ms, "
    "owner,"
    "  content_type, result) VALUES ('v1', 'done', 'done', 5, 1, 1, 1700000000000, 1700000000000, NULL, 'w', "
    "'text/plain', 'r'),"
    "  ('v1', 'no', 'rejected', 5, 1, 1, 1700000000000, 1700000000000, NULL, 'w', NULL, NULL),"
    "  ('v1', 'flying', 'in_flight', 5, 1, 1, 1700000000000, 1700000000000, 1, 'w', NULL, NULL);"
    "INSERT INTO hapax_steps VALUES ('v1', 'flying', 'one', 'first', 1);"
    "INSERT INTO hapax_total VALUES ('v1', 'new', 3), ('v1', 'duplicate', 4);";

static void a_gate_of_version_1_is_brought_to_this_one_keys_and_all(struct db *d) {
    if (d->kind == POSTGRES) return; /* tests/gate/upgrade_test.py has it */
    struct side s = {0};
    assert_int_equal(sqlite3_open(":memory:", &s.lite), SQLITE_OK);
    assert_int_equal(sqlite3_exec(s.lite, version_1, NULL, NULL, NULL), SQLITE_OK);
    hx_gate *gate = hx_gate_sqlite(s.lite);
    hx_gate_key done = {.scope = "v1", .key = "done"}, no = {.scope = "v1", .key = "no"},
                flying = {.scope = "v1", .key = "flying", .fence = 6, .owner = "x"};
    assert_refused(d, hx_gate_reserve(gate, &done, NULL, &d->err), HX_UNAVAILABLE, "HX006");
    assert_ok(d, hx_gate_sqlite_install(s.lite, &d->err));
    hx_gate_reply r;
    assert_ok(d, hx_gate_reserve(gate, &done, &r, &d->err));
    assert_int_equal(r.answer, HX_GATE_DUPLICATE);
    assert_string_equal(r.result.data, "r");
    hx_gate_reply_free(&r);
    assert_ok(d, hx_gate_reserve(gate, &no, &r, &d->err));
    assert_true(r.rejected);
    hx_gate_reply_free(&r);
    assert_ok(d, hx_gate_reserve(gate, &flying, &r, &d->err));
    assert_int_equal(r.answer, HX_GATE_UNKNOWN);
    hx_gate_reply_free(&r);
    assert_string_equal(query(&s, "SELECT steps FROM hapax_keys WHERE key = 'flying'"), "one");
    /* 3 new and 4 duplicates before; 2 duplicates and an unknown now. */
    assert_string_equal(query(&s, "SELECT claims || ' ' || duplicates FROM hapax_signals"), "10 6");
    query(&s, "DELETE FROM hapax_entry WHERE key = 'done'");
    assert_string_equal(query(&s, "SELECT claims || ' ' || duplicates FROM hapax_signals"), "10 6");
    assert_string_equal(query(&s, "SELECT n FROM of_the_user"), "2");
    hx_gate_free(gate);
    sqlite3_close(s.lite);
}

static void a_temporary_table_of_the_same_name_hides_nothing(struct db *d) {
    if (d->kind == POSTGRES) return; /* names have their schema there */
    expect_claim(d, key_of(d, "k"), HX_GATE_NEW);
    static const char *const names[] = {"entry",  "steps",        "total", "scope",
                                        "schema", "extra_effect", "keys",  "signals"};
    char sql[64];
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(sql, sizeof(sql), "CREATE TEMP TABLE hapax_%s (scope, key)", names[i]);
        query(&d->a, sql);
    }
    assert_ok(d, hx_gate_sqlite_install(d->a.lite, &d->err));
    hx_gate_free(d->a.gate);
    d->a.gate = hx_gate_sqlite(d->a.lite);
    expect_claim(d, key_of(d, "k"), HX_GATE_DUPLICATE);
    expect_reserve(d, fenced(d, "r", 1), HX_GATE_NEW);
    expect_settle(d, fenced(d, "r", 1), "r", HX_GATE_COMMITTED);
    query(&d->b, "INSERT INTO hapax_scope SELECT DISTINCT scope, 0 FROM hapax_entry");
    i64 dropped;
    assert_ok(d, hx_gate_sweep(d->a.gate, 0, &dropped, &d->err));
    assert_int_equal(dropped, 2);
    assert_string_equal(query(&d->a, "SELECT claims FROM main.hapax_signals"), "3");
}

/* ---- hx_gate_run */

struct job {
    struct db *d;
    const char *key;
    hx_gate_verdict record, effect, lookup; /* what to say */
    int again;                              /* say AGAIN this often first */
    int recorded, acted, looked;            /* calls */
};

static hx_gate_verdict job_record(void *ctx, hx_gate_turn *turn) {
    struct job *j = ctx;
    j->recorded++;
    write_effect(j->d, j->key);
    if (j->again-- > 0) return HX_GATE_AGAIN;
    if (!turn->outcome.result.data) hx_gate_set_result(turn, hx_str("recorded"), "text/plain");
    return j->record;
}

static hx_gate_verdict job_effect(void *ctx, hx_gate_turn *turn) {
    struct job *j = ctx;
    hx_gate_key other = key_of(j->d, j->key);
    hx_gate_reply r;
    j->acted++;
    /* Others can see that it has begun: the reservation is committed. */
    assert_ok(j->d, hx_gate_reserve(j->d->b.gate, &other, &r, &j->d->err));
    assert_int_equal(r.answer, HX_GATE_IN_FLIGHT);
    hx_gate_reply_free(&r);
    hx_gate_set_result(turn, hx_str("ch_1"), NULL);
    hx_gate_set_effect_id(turn, "ch_1");
    return j->effect;
}

static hx_gate_verdict job_lookup(void *ctx, hx_gate_turn *turn) {
    struct job *j = ctx;
    j->looked++;
    if (j->lookup == HX_GATE_DO) hx_gate_set_result(turn, hx_str("found"), NULL);
    return j->lookup;
}

/* Runs it under this fence; the result told must be `result` (NULL: none). */
static void expect_run(struct job *j, bool two_phase, int64_t fence, hx_gate_answer answer, const char *result) {
    hx_gate_key key = fenced(j->d, j->key, fence);
    hx_gate_work work = {.record = job_record, .effect = two_phase ? job_effect : NULL, .lookup = job_lookup, .ctx = j};
    hx_gate_reply r;
    assert_ok(j->d, hx_gate_run(j->d->a.gate, &key, &work, &r, &j->d->err));
    assert_string_equal(hx_gate_answer_text(r.answer), hx_gate_answer_text(answer));
    if (result)
        assert_string_equal(r.result.data, result);
    else
        assert_null(r.result.data);
    hx_gate_reply_free(&r);
    assert_refused(j->d, hx_gate_commit(j->d->a.gate, &j->d->err), HX_REFUSED, "no_transaction"); /* left as it was */
}

static void run_does_the_work_once_and_tells_the_duplicate(struct db *d) {
    struct job j = {.d = d, .key = "k"};
    expect_run(&j, false, 1, HX_GATE_NEW, "recorded");
    expect_run(&j, false, 2, HX_GATE_DUPLICATE, "recorded");
    assert_int_equal(j.recorded, 1);
    assert_int_equal(effects(d, "k"), 1);
}

static void run_undoes_what_the_function_does_not_want(struct db *d) {
    struct job j = {.d = d, .key = "k", .record = HX_GATE_UNDO};
    expect_run(&j, false, 1, HX_GATE_RELEASED, NULL);
    assert_int_equal(effects(d, "k"), 0);
    j.record = HX_GATE_REJECT;
    expect_run(&j, false, 2, HX_GATE_NEW, "recorded");
    expect_stored(d, fenced(d, "k", 2), "recorded", true);
    assert_int_equal(effects(d, "k"), 1);
}

static void run_repeats_a_lost_race_within_its_bound(struct db *d) {
    struct job j = {.d = d, .key = "k", .again = 3};
    expect_run(&j, false, 1, HX_GATE_NEW, "recorded");
    assert_int_equal(j.recorded, 4);
    assert_int_equal(effects(d, "k"), 1);
    struct job never = {.d = d, .key = "n", .again = 100};
    hx_gate_key key = fenced(d, "n", 1);
    hx_gate_work work = {.record = job_record, .ctx = &never, .tries_max = 3};
    assert_refused(d, hx_gate_run(d->a.gate, &key, &work, NULL, &d->err), HX_BUSY, "again");
    assert_int_equal(never.recorded, 3);
    assert_int_equal(effects(d, "n"), 0);
}

static void run_in_two_phases_reserves_acts_and_records(struct db *d) {
    struct job j = {.d = d, .key = "k"};
    expect_run(&j, true, 1, HX_GATE_NEW, "ch_1");
    expect_run(&j, true, 2, HX_GATE_DUPLICATE, "ch_1");
    assert_int_equal(j.acted, 1);
    assert_int_equal(j.recorded, 1);
    struct job refused = {.d = d, .key = "r", .effect = HX_GATE_REJECT};
    expect_run(&refused, true, 1, HX_GATE_NEW, "ch_1");
    assert_int_equal(refused.recorded, 0);
    expect_stored(d, fenced(d, "r", 2), "ch_1", true);
    struct job undone = {.d = d, .key = "u", .effect = HX_GATE_UNDO};
    expect_run(&undone, true, 1, HX_GATE_RELEASED, NULL);
    expect_reserve(d, fenced(d, "u", 2), HX_GATE_NEW);
}

static void run_looks_up_what_an_earlier_attempt_left_unknown(struct db *d) {
    struct job j = {.d = d, .key = "k", .effect = HX_GATE_LEAVE, .lookup = HX_GATE_LEAVE};
    expect_run(&j, true, 1, HX_GATE_UNKNOWN, NULL);
    expect_run(&j, true, 2, HX_GATE_UNKNOWN, NULL); /* and still */
    assert_int_equal(j.acted, 1);
    j.lookup = HX_GATE_DO;
    expect_run(&j, true, 3, HX_GATE_NEW, "found");
    assert_int_equal(j.acted, 1);
    assert_int_equal(effects(d, "k"), 1);
    struct job absent = {.d = d, .key = "a", .effect = HX_GATE_LEAVE, .lookup = HX_GATE_UNDO};
    expect_run(&absent, true, 1, HX_GATE_UNKNOWN, NULL);
    absent.effect = HX_GATE_DO;
    expect_run(&absent, true, 2, HX_GATE_NEW, "ch_1");
    assert_int_equal(absent.acted, 2);
    assert_int_equal(effects(d, "a"), 1);
    /* The one-transaction form finds reservations, too. */
    expect_reserve(d, fenced(d, "mixed", 1), HX_GATE_NEW);
    struct job mixed = {.d = d, .key = "mixed", .lookup = HX_GATE_UNDO};
    expect_run(&mixed, false, 2, HX_GATE_NEW, "recorded");
    assert_int_equal(mixed.looked, 1);
    assert_int_equal(effects(d, "mixed"), 1);
}

static void run_keeps_the_reservation_when_the_effect_cannot_be_recorded(struct db *d) {
    struct job j = {.d = d, .key = "k", .record = HX_GATE_UNDO, .lookup = HX_GATE_DO};
    expect_run(&j, true, 1, HX_GATE_UNKNOWN, NULL);
    assert_int_equal(effects(d, "k"), 0);
    j.record = HX_GATE_DO;
    expect_run(&j, true, 2, HX_GATE_NEW, "found");
    assert_int_equal(j.acted, 1);
    assert_int_equal(effects(d, "k"), 1);
}

static void run_refuses_an_open_transaction_and_leaves_it_alone(struct db *d) {
    struct job j = {.d = d, .key = "k"};
    hx_gate_key key = fenced(d, "k", 1);
    hx_gate_work one = {.record = job_record, .ctx = &j}, two = {.record = job_record, .effect = job_effect, .ctx = &j};
    begin(d, &d->a);
    write_effect(d, "callers own");
    assert_refused(d, hx_gate_run(d->a.gate, &key, &one, NULL, &d->err), HX_REFUSED, "in_transaction");
    assert_refused(d, hx_gate_run(d->a.gate, &key, &two, NULL, &d->err), HX_REFUSED, "in_transaction");
    commit(d, &d->a);
    assert_int_equal(j.recorded + j.acted, 0);
    assert_int_equal(effects(d, "callers own"), 1);
    if (d->kind != POSTGRES) return;
    begin(d, &d->a);
    PQclear(PQexec(d->a.pg, "SELECT no_such_thing"));
    assert_refused(d, hx_gate_run(d->a.gate, &key, &one, NULL, &d->err), HX_REFUSED, "25P02");
    hx_gate_rollback(d->a.gate);
}

static void a_verdict_out_of_range_commits_nothing(struct db *d) {
    struct job j = {.d = d, .key = "k", .record = (hx_gate_verdict)99};
    hx_gate_key key = fenced(d, "k", 1);
    hx_gate_work work = {.record = job_record, .ctx = &j},
                 two = {.record = job_record, .effect = job_effect, .ctx = &j};
    assert_refused(d, hx_gate_run(d->a.gate, &key, &work, NULL, &d->err), HX_INVALID, "argument_invalid");
    assert_int_equal(effects(d, "k"), 0);
    assert_status(d, hx_gate_run(d->a.gate, &key, &two, NULL, &d->err), HX_INVALID);
    assert_int_equal(d->err.applied, HX_APPLIED_UNKNOWN); /* the effect has happened */
    assert_int_equal(effects(d, "k"), 0);
    expect_reserve(d, fenced(d, "k", 2), HX_GATE_UNKNOWN);
    struct job e = {.d = d, .key = "e", .effect = (hx_gate_verdict)99, .lookup = (hx_gate_verdict)-1};
    expect_run(&e, true, 1, HX_GATE_UNKNOWN, NULL);
    expect_run(&e, true, 2, HX_GATE_UNKNOWN, NULL);
}

static hx_gate_verdict committing_record(void *ctx, hx_gate_turn *turn) {
    struct job *j = ctx;
    write_effect(j->d, j->key);
    query(&j->d->a, "COMMIT");
    (void)turn;
    return HX_GATE_DO;
}

static void a_record_that_commits_by_itself_is_in_doubt_not_undone(struct db *d) {
    struct job j = {.d = d, .key = "k"};
    hx_gate_key key = fenced(d, "k", 1);
    hx_gate_work work = {.record = committing_record, .ctx = &j};
    assert_status(d, hx_gate_run(d->a.gate, &key, &work, NULL, &d->err), HX_REFUSED);
    assert_int_equal(d->err.applied, HX_APPLIED_UNKNOWN);
    expect_claim(d, key, HX_GATE_DUPLICATE);
    assert_int_equal(effects(d, "k"), 1);
}

/* Without fences, while A looks up what somebody left, its lease ends, and B finds it absent and begins to do it. */
static hx_gate_verdict slow_lookup(void *ctx, hx_gate_turn *turn) {
    struct job *j = ctx;
    j->looked++;
    hx_gate_key successor = {.scope = j->d->scope, .key = turn->key->key, .owner = "B"};
    hx_gate_reply r = {0};
    for (int i = 0; i < ROUNDS_MAX && r.answer != HX_GATE_UNKNOWN; i++) {
        hx_gate_reply_free(&r);
        assert_ok(j->d, hx_gate_reserve(j->d->b.gate, &successor, &r, &j->d->err));
    }
    successor.attempt = r.attempt;
    hx_gate_reply_free(&r);
    assert_ok(j->d, hx_gate_release(j->d->b.gate, &successor, NULL, &j->d->err));
    assert_ok(j->d, hx_gate_reserve(j->d->b.gate, &successor, &r, &j->d->err));
    assert_int_equal(r.answer, HX_GATE_NEW);
    hx_gate_reply_free(&r);
    return j->lookup;
}

static void a_slow_look_up_ends_nobody_elses_reservation(struct db *d) {
    static const hx_gate_verdict said[] = {HX_GATE_UNDO, HX_GATE_DO};
    for (size_t i = 0; i < 2; i++) {
        char name[] = "k0";
        name[1] = (char)('0' + i);
        hx_gate_key dead = {.scope = d->scope, .key = name, .owner = "dead", .lease_ms = 1};
        hx_gate_key a = {.scope = d->scope, .key = name, .owner = "A", .lease_ms = 1};
        expect_reserve(d, dead, HX_GATE_NEW);
        struct job j = {.d = d, .key = name, .lookup = said[i]};
        hx_gate_work work = {.record = job_record, .effect = job_effect, .lookup = slow_lookup, .ctx = &j};
        hx_gate_reply r = {0};
        hx_status st = HX_OK;
        for (int n = 0; n < ROUNDS_MAX && !j.looked && st == HX_OK; n++) {
            hx_gate_reply_free(&r);
            st = hx_gate_run(d->a.gate, &a, &work, &r, &d->err);
        }
        assert_status(d, st, HX_FENCED);
        assert_int_equal(j.acted + j.recorded - (said[i] == HX_GATE_DO), 0); /* what it recorded is rolled back */
        assert_int_equal(effects(d, name), 0);
        hx_gate_key b = {.scope = d->scope, .key = name, .owner = "C"};
        expect_reserve(d, b, HX_GATE_IN_FLIGHT); /* B has it still */
    }
}

/* The effect is done, and somebody who looked it up has settled it before us: his is the answer. */
static hx_gate_verdict overtaken_effect(void *ctx, hx_gate_turn *turn) {
    struct job *j = ctx;
    hx_gate_outcome o = {.result = hx_str("found by another")};
    hx_gate_key other = fenced(j->d, turn->key->key, 1);
    assert_ok(j->d, hx_gate_commit_outcome(j->d->b.gate, &other, &o, NULL, &j->d->err));
    hx_gate_set_result(turn, hx_str("ours"), "text/plain");
    return HX_GATE_DO;
}

static void run_tells_the_answer_of_who_settled_first(struct db *d) {
    struct job j = {.d = d, .key = "k"};
    hx_gate_key key = fenced(d, "k", 1);
    hx_gate_work work = {.record = job_record, .effect = overtaken_effect, .ctx = &j};
    hx_gate_reply r;
    assert_ok(d, hx_gate_run(d->a.gate, &key, &work, &r, &d->err));
    assert_int_equal(r.answer, HX_GATE_DUPLICATE);
    assert_string_equal(r.result.data, "found by another");
    hx_gate_reply_free(&r);
    assert_int_equal(effects(d, "k"), 0); /* the business write is rolled back */
}

/* A race for real: the rival commits between our claim and our update. */
static hx_gate_verdict race_record(void *ctx, hx_gate_turn *turn) {
    struct job *j = ctx;
    (void)turn;
    j->recorded++;
    if (j->recorded == 1) query(&j->d->b, "UPDATE race SET n = n + 1");
    PGresult *r = PQexec(j->d->a.pg, "UPDATE race SET n = n + 1");
    bool lost = PQresultStatus(r) != PGRES_COMMAND_OK;
    PQclear(r);
    return lost ? HX_GATE_AGAIN : HX_GATE_DO;
}

static void run_survives_a_serialization_failure(struct db *d) {
    if (d->kind != POSTGRES) return;
    query(&d->a, "DROP TABLE IF EXISTS race");
    query(&d->a, "CREATE TABLE race AS SELECT 0 AS n");
    query(&d->a, "SET default_transaction_isolation = serializable");
    struct job j = {.d = d, .key = "k"};
    hx_gate_key key = fenced(d, "k", 1);
    hx_gate_work work = {.record = race_record, .ctx = &j};
    hx_gate_reply r;
    assert_ok(d, hx_gate_run(d->a.gate, &key, &work, &r, &d->err));
    assert_int_equal(r.answer, HX_GATE_NEW);
    hx_gate_reply_free(&r);
    assert_int_equal(j.recorded, 2);
    assert_string_equal(query(&d->a, "SELECT n FROM race"), "2");
}

static hx_gate_verdict dying_record(void *ctx, hx_gate_turn *turn) {
    struct job *j = ctx;
    (void)turn;
    terminate(j->d);
    return HX_GATE_DO;
}

static void run_says_unknown_when_the_commit_is_lost(struct db *d) {
    if (d->kind != POSTGRES) return;
    struct job j = {.d = d, .key = "k"};
    hx_gate_key key = fenced(d, "k", 1);
    hx_gate_work work = {.record = dying_record, .ctx = &j};
    assert_status(d, hx_gate_run(d->a.gate, &key, &work, NULL, &d->err), HX_UNKNOWN);
    assert_int_equal(d->err.applied, HX_APPLIED_UNKNOWN);
    PQreset(d->a.pg);
    expect_run(&j, false, 1, HX_GATE_NEW, "recorded"); /* asking again tells */
}

/* ---- reconciling */

static void expect_orphans(struct db *d, size_t wanted) {
    hx_gate_orphans all;
    assert_ok(d, hx_gate_stranded(d->a.gate, 0, &all, &d->err));
    size_t n = 0;
    for (size_t i = 0; i < all.count; i++) n += strcmp(all.list[i].scope, d->scope) == 0;
    hx_gate_orphans_free(&all);
    assert_int_equal(n, wanted);
}

/* Which says what, by the key's first letter. Reservations of other tests are left. */
static hx_gate_verdict reconcile_lookup(void *ctx, hx_gate_turn *turn) {
    struct job *j = ctx;
    if (strcmp(turn->key->scope, j->d->scope) != 0) return HX_GATE_LEAVE;
    j->looked++;
    if (turn->key->key[0] == 'f') hx_gate_set_result(turn, hx_str("found"), NULL);
    return turn->key->key[0] == 'f' ? HX_GATE_DO : turn->key->key[0] == 'a' ? HX_GATE_UNDO : HX_GATE_LEAVE;
}

static hx_gate_verdict reconcile_record(void *ctx, hx_gate_turn *turn) {
    struct job *j = ctx;
    write_effect(j->d, turn->key->key);
    return HX_GATE_DO;
}

static void strand(struct db *d, const char *key, int64_t fence) {
    hx_gate_key k = fenced(d, key, fence);
    k.lease_ms = 1;
    expect_reserve(d, k, HX_GATE_NEW);
}

static void reconciling_settles_what_is_found_and_releases_what_is_not(struct db *d) {
    strand(d, "found", 1);
    strand(d, "absent", 1);
    strand(d, "left", 1);
    hx_gate_key alive = fenced(d, "found but at work", 1);
    expect_reserve(d, alive, HX_GATE_NEW); /* its lease runs */
    expect_orphans(d, 4);
    struct job j = {.d = d};
    hx_gate_reconcile_options o = {
        .lookup = reconcile_lookup, .record = reconcile_record, .ctx = &j, .older_than_ms = 1};
    hx_gate_reconciled sum = {0};
    for (int i = 0; i < ROUNDS_MAX && (sum.found < 1 || sum.absent < 1 || sum.left < 1); i++)
        assert_ok(d, hx_gate_reconcile(d->a.gate, &o, &sum, &d->err));
    assert_int_equal(sum.found, 1);
    assert_int_equal(sum.absent, 1);
    assert_true(sum.left >= 1);
    assert_int_equal(effects(d, "found"), 1);
    assert_int_equal(effects(d, "found but at work"), 0);
    expect_stored(d, fenced(d, "found", 2), "found", false);
    expect_reserve(d, fenced(d, "absent", 2), HX_GATE_NEW);
    expect_settle(d, alive, "r", HX_GATE_COMMITTED);
}

/* While we look it up, a consumer with a higher fence takes it over: releasing it now would free what he is doing. */
static hx_gate_verdict overtaken_lookup(void *ctx, hx_gate_turn *turn) {
    struct job *j = ctx;
    if (strcmp(turn->key->scope, j->d->scope) != 0) return HX_GATE_LEAVE;
    hx_gate_key successor = fenced(j->d, turn->key->key, 2);
    hx_gate_reply r;
    assert_ok(j->d, hx_gate_reserve(j->d->b.gate, &successor, &r, &j->d->err));
    assert_int_equal(r.answer, HX_GATE_UNKNOWN);
    hx_gate_reply_free(&r);
    j->looked++;
    return HX_GATE_UNDO;
}

static void reconciling_leaves_a_reservation_that_was_taken_over(struct db *d) {
    strand(d, "k", 1);
    struct job j = {.d = d};
    hx_gate_reconcile_options o = {.lookup = overtaken_lookup, .ctx = &j, .older_than_ms = 1};
    hx_gate_reconciled sum = {0};
    hx_status st = HX_OK;
    for (int i = 0; i < ROUNDS_MAX && !j.looked && st == HX_OK; i++)
        st = hx_gate_reconcile(d->a.gate, &o, &sum, &d->err);
    assert_int_equal(j.looked, 1);
    assert_int_equal(sum.absent, 0);
    expect_reserve(d, fenced(d, "k", 1), HX_GATE_STALE);
    expect_settle(d, fenced(d, "k", 2), "r", HX_GATE_COMMITTED);
}

static hx_gate_verdict stopping_lookup(void *ctx, hx_gate_turn *turn) {
    struct job *j = ctx;
    if (strcmp(turn->key->scope, j->d->scope) != 0) return HX_GATE_LEAVE;
    eventfd_write(j->looked, 1);
    return HX_GATE_DO;
}

static void the_reconcile_loop_runs_until_it_is_told_to_stop(struct db *d) {
    strand(d, "k", 1);
    int stop = eventfd(0, EFD_CLOEXEC);
    struct job j = {.d = d, .looked = stop};
    hx_gate_reconcile_options o = {
        .lookup = stopping_lookup, .ctx = &j, .older_than_ms = 1, .every_ms = 1, .stop_fd = stop};
    hx_gate_reconciled sum = {0};
    assert_ok(d, hx_gate_reconcile_loop(d->a.gate, &o, &sum, &d->err));
    assert_int_equal(sum.found, 1);
    close(stop);
}

/* ---- every test on every database */

#define TESTS(X)                                                                                                       \
    X(a_duplicate_gets_the_stored_answer)                                                                              \
    X(results_are_bytes)                                                                                               \
    X(a_rolled_back_claim_leaves_no_trace)                                                                             \
    X(asking_again_in_the_same_transaction_is_new_until_it_is_settled)                                                 \
    X(a_transaction_begun_by_the_caller_will_do)                                                                       \
    X(a_claim_is_done_by_its_commit_alone)                                                                             \
    X(a_claim_released_in_its_transaction_is_new_for_the_next)                                                         \
    X(another_fingerprint_is_a_conflict_and_not_a_duplicate)                                                           \
    X(answers_come_in_the_order_of_the_contract)                                                                       \
    X(a_zombie_cannot_write_after_its_successor)                                                                       \
    X(the_highest_fence_outlives_a_release)                                                                            \
    X(a_reservation_is_its_owners_until_the_lease_ends)                                                                \
    X(an_abandoned_reservation_is_unknown_and_stays_so)                                                                \
    X(claim_finds_an_abandoned_reservation_unknown_until_it_is_ended)                                                  \
    X(a_refusal_is_remembered_as_one)                                                                                  \
    X(a_second_effect_id_is_evidence)                                                                                  \
    X(a_step_is_recorded_once)                                                                                         \
    X(a_step_can_be_asked_for_without_recording_it)                                                                    \
    X(a_rival_at_work_is_waited_for)                                                                                   \
    X(a_key_is_forgotten_after_its_window_and_not_before)                                                              \
    X(impossible_arguments_are_refused_before_the_database_is_asked)                                                   \
    X(a_result_that_does_not_fit_is_refused)                                                                           \
    X(expect_counts_rows)                                                                                              \
    X(what_was_never_claimed_cannot_be_settled)                                                                        \
    X(a_caller_outside_a_transaction_is_told_so)                                                                       \
    X(an_aborted_transaction_is_told_so)                                                                               \
    X(a_connection_lost_at_any_call_says_what_is_in_doubt)                                                             \
    X(a_commit_that_fails_on_the_disk_is_in_doubt)                                                                     \
    X(another_schema_version_is_refused)                                                                               \
    X(a_database_without_the_gate_or_without_rights_is_unavailable)                                                    \
    X(installing_touches_nothing_of_the_users)                                                                         \
    X(a_gate_of_version_1_is_brought_to_this_one_keys_and_all)                                                         \
    X(a_temporary_table_of_the_same_name_hides_nothing)                                                                \
    X(run_does_the_work_once_and_tells_the_duplicate)                                                                  \
    X(run_refuses_an_open_transaction_and_leaves_it_alone)                                                             \
    X(a_verdict_out_of_range_commits_nothing)                                                                          \
    X(a_record_that_commits_by_itself_is_in_doubt_not_undone)                                                          \
    X(a_slow_look_up_ends_nobody_elses_reservation)                                                                    \
    X(run_tells_the_answer_of_who_settled_first)                                                                       \
    X(run_undoes_what_the_function_does_not_want)                                                                      \
    X(run_repeats_a_lost_race_within_its_bound)                                                                        \
    X(run_in_two_phases_reserves_acts_and_records)                                                                     \
    X(run_looks_up_what_an_earlier_attempt_left_unknown)                                                               \
    X(run_keeps_the_reservation_when_the_effect_cannot_be_recorded)                                                    \
    X(run_survives_a_serialization_failure)                                                                            \
    X(run_says_unknown_when_the_commit_is_lost)                                                                        \
    X(reconciling_settles_what_is_found_and_releases_what_is_not)                                                      \
    X(reconciling_leaves_a_reservation_that_was_taken_over)                                                            \
    X(the_reconcile_loop_runs_until_it_is_told_to_stop)

struct promise {
    const char *name;
    void (*test)(struct db *d);
};
#define PROMISE(test) {#test, test},
static const struct promise promises[] = {TESTS(PROMISE)};
enum { PROMISES = sizeof(promises) / sizeof(promises[0]) };

struct entry {
    const struct promise *promise;
    enum kind kind;
    struct db *db;
};

static int set_up(void **state) {
    struct entry *e = *state;
    e->db = db_open(e->kind, e->promise->name);
    return 0;
}

static int tear_down(void **state) {
    struct entry *e = *state;
    db_close(e->db);
    return 0;
}

static void keep_promise(void **state) {
    struct entry *e = *state;
    e->promise->test(e->db);
}

int main(void) {
    static const char *const kinds[] = {"rollback journal", "WAL", "PostgreSQL"};
    static char names[KINDS * PROMISES][160];
    static struct entry entries[KINDS * PROMISES];
    static struct CMUnitTest tests[KINDS * PROMISES];
    const char *only_pg = getenv("HAPAX_TEST_PG");
    size_t n = 0;
    for (int kind = only_pg ? POSTGRES : 0; kind < (only_pg ? KINDS : POSTGRES); kind++) {
        for (int i = 0; i < PROMISES; i++, n++) {
            entries[n] = (struct entry){.promise = &promises[i], .kind = (enum kind)kind};
            snprintf(names[n], sizeof(names[n]), "%s: %s", kinds[kind], promises[i].name);
            tests[n] = (struct CMUnitTest){names[n], keep_promise, set_up, tear_down, &entries[n]};
        }
    }
    return _cmocka_run_group_tests("gate", tests, n, NULL, NULL);
}
