/* Every interleaving of three workers on one key of a SQLite database, executed for real.
 *
 * A worker is a short program; each step is one call. The explorer runs three of them on three connections of one
 * thread, with no busy timeout: a step that would wait is refused, and its worker cannot be chosen again before some
 * transaction has ended. Where more than one worker could go next it takes the first; when all have finished it starts
 * over on a fresh key and takes the next way at the deepest fork, until no fork is left (stateless search, depth
 * first). So the schedules are exactly those SQLite admits. tests/gate/interleavings_test.py does the same on PostgreSQL.
 *
 * Two things are checked: at every answer, that it is the one allowed at this moment; at the end, that the key's effect
 * is there once if anybody committed it, and its stored result is the winner's. */
#include <setjmp.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "hapax/gate.h"

enum { WORKERS = 3, DEPTH_MAX = 64 };

enum form {
    IMMEDIATE, /* BEGIN IMMEDIATE | claim | write and settle | end */
    DEFERRED,  /* BEGIN | claim takes the lock | ... */
    READER,    /* BEGIN, SELECT | claim wants to write on what it has read | ... ; when refused it starts over */
    TWO_PHASE  /* reserve | begin | write and settle | commit, with fences 1, 2, 3 */
};

struct cast {
    const char *name;
    enum form form;
    bool long_form;            /* only with CRASHES set */
    const char *ends[WORKERS]; /* C commit, R roll back; two letters: again after the first */
};

struct worker {
    sqlite3 *db;
    hx_gate *gate;
    char name[8];
    int64_t fence;
    const char *ends;
    int step;
    bool finished;
    int blocked_at; /* x->ended, for a COMMIT x->gone, when it was refused; -1: not blocked */
};

struct world {
    char directory[64], path[96];
    struct worker workers[WORKERS];
    const struct cast *cast;
    char key[32];
    int holder, done_by;   /* -1: nobody. The model */
    int64_t highest_fence; /* the model, two-phase */
    int ended;             /* transactions */
    int gone;              /* those, and readers that gave up */
    int runs;
};

/* ---- SQL */

static int try_sql(struct worker *w, const char *sql) {
    return sqlite3_exec(w->db, sql, NULL, NULL, NULL);
}

static void sql(struct worker *w, const char *text) {
    if (try_sql(w, text) != SQLITE_OK) fail_msg("%s: %s", text, sqlite3_errmsg(w->db));
}

static void read_text(struct worker *w, const char *text, char *out, size_t size) {
    sqlite3_stmt *q = NULL;
    assert_int_equal(sqlite3_prepare_v2(w->db, text, -1, &q, NULL), SQLITE_OK);
    out[0] = '\0';
    if (sqlite3_step(q) == SQLITE_ROW && sqlite3_column_text(q, 0))
        snprintf(out, size, "%s", (const char *)sqlite3_column_text(q, 0));
    sqlite3_finalize(q);
}

static void write_effect(struct world *x, struct worker *w) {
    char text[128];
    snprintf(text, sizeof(text), "INSERT INTO effects VALUES ('%s', '%s')", x->key, w->name);
    sql(w, text);
}

/* ---- steps: true when done, false when refused because another is in the way */

static hx_gate_key key_of(struct world *x, const struct worker *w) {
    return (hx_gate_key){.scope = "s", .key = x->key, .fence = w->fence, .owner = w->name};
}

static bool busy(hx_status st) {
    assert_true(st == HX_OK || st == HX_BUSY);
    return st == HX_BUSY;
}

static void transaction_ended(struct world *x) {
    x->ended++;
    x->gone++;
}

static void finish_round(struct world *x, struct worker *w) {
    transaction_ended(x);
    w->step = 0;
    if (*++w->ends == '\0') w->finished = true;
}

static bool begin(struct world *x, struct worker *w) {
    if (x->cast->form == IMMEDIATE || x->cast->form == TWO_PHASE) return !busy(hx_gate_begin(w->gate, NULL));
    sql(w, "BEGIN");
    if (x->cast->form == DEFERRED) return true;
    int rc = try_sql(w, "SELECT count(*) FROM effects");
    if (rc == SQLITE_OK) return true;
    assert_int_equal(rc, SQLITE_BUSY); /* a writer is about to commit, without WAL */
    sql(w, "ROLLBACK");
    return false;
}

/* A reader's snapshot cannot be written on any more: it gives it up. If nobody is at work it may try again at once. */
static bool claim_refused(struct world *x, struct worker *w) {
    if (x->cast->form != READER) return false;
    sql(w, "ROLLBACK");
    x->gone++;
    w->step = 0;
    return x->holder < 0;
}

static bool claim(struct world *x, struct worker *w, int me) {
    hx_gate_key key = key_of(x, w);
    key.fence = 0;
    hx_gate_reply r;
    if (busy(hx_gate_claim(w->gate, &key, &r, NULL))) return claim_refused(x, w);
    if (x->holder >= 0) fail_msg("%s was answered while %d holds the key", w->name, x->holder);
    if (x->done_by >= 0) {
        assert_int_equal(r.answer, HX_GATE_DUPLICATE);
        assert_string_equal(r.result.data, x->workers[x->done_by].name);
        hx_gate_reply_free(&r);
        sql(w, "ROLLBACK");
        transaction_ended(x);
        w->finished = true;
        return true;
    }
    assert_int_equal(r.answer, HX_GATE_NEW);
    hx_gate_reply_free(&r);
    x->holder = me;
    w->step++;
    return true;
}

static void settle(struct world *x, struct worker *w) {
    hx_gate_key key = key_of(x, w);
    key.fence = 0;
    hx_gate_answer a;
    hx_gate_outcome o = {.result = hx_str(w->name)};
    write_effect(x, w);
    assert_int_equal(hx_gate_commit_outcome(w->gate, &key, &o, &a, NULL), HX_OK);
    assert_int_equal(a, HX_GATE_COMMITTED);
    w->step++;
}

/* Without WAL a COMMIT may be refused by a reader; it stays open. */
static bool end(struct world *x, struct worker *w, int me) {
    bool commits = *w->ends == 'C';
    if (commits && busy(hx_gate_commit(w->gate, NULL))) return false;
    if (!commits) hx_gate_rollback(w->gate);
    x->holder = -1;
    if (commits) x->done_by = me;
    finish_round(x, w);
    if (commits) w->finished = true;
    return true;
}

static bool step_one_transaction(struct world *x, struct worker *w, int me) {
    switch (w->step) {
    case 0:
        if (!begin(x, w)) return false;
        w->step++;
        return true;
    case 1:
        return claim(x, w, me);
    case 2:
        settle(x, w);
        return true;
    default:
        return end(x, w, me);
    }
}

static bool reserve(struct world *x, struct worker *w) {
    hx_gate_key key = key_of(x, w);
    hx_gate_reply r;
    if (busy(hx_gate_reserve(w->gate, &key, &r, NULL))) return false;
    hx_gate_answer wanted = x->done_by >= 0               ? HX_GATE_DUPLICATE
                            : w->fence < x->highest_fence ? HX_GATE_STALE
                            : x->highest_fence            ? HX_GATE_UNKNOWN
                                                          : HX_GATE_NEW;
    assert_string_equal(hx_gate_answer_text(r.answer), hx_gate_answer_text(wanted));
    hx_gate_reply_free(&r);
    if (w->fence > x->highest_fence) x->highest_fence = w->fence;
    transaction_ended(x);
    w->step++;
    w->finished = wanted == HX_GATE_DUPLICATE || wanted == HX_GATE_STALE;
    return true;
}

/* A zombie's write must not be committed: the gate has rolled it back. */
static bool settle_fenced(struct world *x, struct worker *w) {
    hx_gate_key key = key_of(x, w);
    hx_gate_answer a;
    hx_gate_outcome o = {.result = hx_str(w->name)};
    write_effect(x, w);
    hx_status st = hx_gate_commit_outcome(w->gate, &key, &o, &a, NULL);
    if (w->fence < x->highest_fence) {
        assert_int_equal(st, HX_FENCED);
        assert_true(sqlite3_get_autocommit(w->db));
        transaction_ended(x);
        w->finished = true;
        return true;
    }
    assert_int_equal(st, HX_OK);
    assert_int_equal(a, HX_GATE_COMMITTED);
    w->step++;
    return true;
}

static bool step_two_phase(struct world *x, struct worker *w, int me) {
    switch (w->step) {
    case 0:
        return reserve(x, w);
    case 1:
        if (!begin(x, w)) return false;
        w->step++;
        return true;
    case 2:
        return settle_fenced(x, w);
    default:
        return end(x, w, me);
    }
}

/* ---- the explorer */

enum { STEP_END = 3 };

static int waits_for(const struct world *x, const struct worker *w) {
    return w->step == STEP_END ? x->gone : x->ended;
}

static unsigned choices(const struct world *x) {
    unsigned mask = 0;
    for (int i = 0; i < WORKERS; i++) {
        const struct worker *w = &x->workers[i];
        if (!w->finished && w->blocked_at != waits_for(x, w)) mask |= 1u << i;
    }
    return mask;
}

static void advance(struct world *x, int me) {
    struct worker *w = &x->workers[me];
    bool went = x->cast->form == TWO_PHASE ? step_two_phase(x, w, me) : step_one_transaction(x, w, me);
    w->blocked_at = went ? -1 : waits_for(x, w);
}

static void begin_run(struct world *x) {
    snprintf(x->key, sizeof(x->key), "%s %d", x->cast->name, ++x->runs);
    x->holder = x->done_by = -1;
    x->highest_fence = 0;
    for (int i = 0; i < WORKERS; i++) {
        struct worker *w = &x->workers[i];
        w->ends = x->cast->ends[i];
        w->fence = i + 1;
        w->step = 0;
        w->finished = false;
        w->blocked_at = -1;
    }
}

static void check_run(struct world *x) {
    char text[160], who[32], stored[32];
    bool commits = false;
    for (int i = 0; i < WORKERS; i++) commits |= strchr(x->cast->ends[i], 'C') != NULL;
    assert_int_equal(x->done_by >= 0, commits);
    const char *winner = x->done_by >= 0 ? x->workers[x->done_by].name : "";
    snprintf(text, sizeof(text), "SELECT group_concat(who) FROM effects WHERE key = '%s'", x->key);
    read_text(&x->workers[0], text, who, sizeof(who));
    snprintf(text, sizeof(text), "SELECT CAST(result AS TEXT) FROM hapax_keys WHERE key = '%s'", x->key);
    read_text(&x->workers[0], text, stored, sizeof(stored));
    assert_string_equal(who, winner);
    assert_string_equal(stored, winner);
}

/* One schedule: as `taken` says, then always the first. Returns its length. */
static int run_once(struct world *x, int taken[DEPTH_MAX], unsigned open[DEPTH_MAX], int prefix) {
    begin_run(x);
    int depth = 0;
    for (unsigned mask; (mask = choices(x)) != 0; depth++) {
        assert_true(depth < DEPTH_MAX);
        if (depth >= prefix) {
            taken[depth] = __builtin_ctz(mask);
            open[depth] = mask & ~(1u << taken[depth]);
        }
        advance(x, taken[depth]);
    }
    for (int i = 0; i < WORKERS; i++) assert_true(x->workers[i].finished); /* nobody waits for ever */
    check_run(x);
    return depth;
}

static void exhaust(struct world *x) {
    int taken[DEPTH_MAX], prefix = 0;
    unsigned open[DEPTH_MAX];
    do {
        int depth = run_once(x, taken, open, prefix);
        while (depth > 0 && !open[depth - 1]) depth--;
        prefix = depth;
        if (depth == 0) break;
        taken[depth - 1] = __builtin_ctz(open[depth - 1]);
        open[depth - 1] &= open[depth - 1] - 1;
    } while (prefix > 0);
}

/* ---- databases */

static void world_open(struct world *x, bool wal) {
    snprintf(x->directory, sizeof(x->directory), "%s/hapax-races.XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    assert_non_null(mkdtemp(x->directory));
    snprintf(x->path, sizeof(x->path), "%s/db", x->directory);
    for (int i = 0; i < WORKERS; i++) {
        struct worker *w = &x->workers[i];
        snprintf(w->name, sizeof(w->name), "w%d", i);
        assert_int_equal(sqlite3_open(x->path, &w->db), SQLITE_OK);
        sql(w, wal ? "PRAGMA journal_mode = wal" : "PRAGMA journal_mode = delete");
        sql(w, "PRAGMA synchronous = off");
        if (i == 0) {
            assert_int_equal(hx_gate_sqlite_install(w->db, NULL), HX_OK);
            sql(w, "CREATE TABLE effects (key TEXT, who TEXT); CREATE INDEX effects_key ON effects (key)");
        }
        w->gate = hx_gate_sqlite(w->db);
    }
}

static void world_close(struct world *x) {
    for (int i = 0; i < WORKERS; i++) {
        hx_gate_free(x->workers[i].gate);
        assert_int_equal(sqlite3_close(x->workers[i].db), SQLITE_OK);
    }
    unlink(x->path);
    assert_int_equal(rmdir(x->directory), 0);
}

static const struct cast casts[] = {
    {"immediate CCC", IMMEDIATE, false, {"C", "C", "C"}}, {"immediate CRR", IMMEDIATE, false, {"C", "R", "R"}},
    {"immediate RRR", IMMEDIATE, false, {"R", "R", "R"}}, {"immediate CCRC", IMMEDIATE, true, {"C", "C", "RC"}},
    {"deferred CCC", DEFERRED, false, {"C", "C", "C"}},   {"deferred CRR", DEFERRED, true, {"C", "R", "R"}},
    {"reader CCR", READER, true, {"C", "C", "R"}},        {"two-phase", TWO_PHASE, false, {"C", "C", "C"}},
};

static void explore(bool wal) {
    struct world *x = test_calloc(1, sizeof(*x));
    world_open(x, wal);
    for (size_t i = 0; i < sizeof(casts) / sizeof(casts[0]); i++) {
        if (casts[i].long_form && !getenv("CRASHES")) continue;
        x->cast = &casts[i];
        x->runs = 0;
        exhaust(x);
        print_message("# %s, %s: %d schedules\n", casts[i].name, wal ? "WAL" : "rollback journal", x->runs);
        assert_true(x->runs >= 6);
    }
    world_close(x);
    test_free(x);
}

static void every_interleaving_has_one_effect_with_a_rollback_journal(void **state) {
    (void)state;
    explore(false);
}

static void every_interleaving_has_one_effect_with_wal(void **state) {
    (void)state;
    explore(true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_interleaving_has_one_effect_with_a_rollback_journal),
        cmocka_unit_test(every_interleaving_has_one_effect_with_wal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
