/* The gate on SQLite: the same answers as sql/postgres/hapax_gate.sql gives, in the same order.
 *
 * SQLite lets one connection write at a time, and that is what decides races here: every call first takes the write
 * lock (BEGIN IMMEDIATE has it already; in a transaction begun otherwise a statement that writes nothing gets it), then
 * looks at the row, decides, writes. A rival's claim is over before ours can look. The time is taken under the lock.
 *
 * Is a row from this very transaction? SQLite numbers no transactions. But the number that SQLITE_FCNTL_DATA_VERSION
 * reads changes with every commit, ours or another's, and not between; and what was rolled back is not there to be
 * asked about. So a row with this gate's random name and the present data version was written by the transaction that is
 * open. Were that number ever to change in mid-transaction, a claim asked for again would be called a duplicate: work
 * refused, never work done twice.
 *
 * A call is all or nothing: one statement, a transaction of its own, or under a savepoint. PostgreSQL aborts the caller's
 * transaction when a superseded consumer settles; here it is rolled back, so that its business write cannot be
 * committed by a caller that does not look.
 *
 * What a transaction costs here is the pages it writes. So the table is its key (WITHOUT ROWID: no index beside it), and
 * the first claim of a key is not counted: its row is its count, until it is dropped and its trigger adds it to hapax_total,
 * where every other answer is counted at once.
 *
 * Every name has its schema: a TEMP table of the caller's would hide ours. (Within a view or trigger of the main schema a
 * bare name means that schema's.) */
#include <sqlite3.h>
#include <stdio.h>

#include "client/gate_priv.h"

static const char schema[] =
    "CREATE TABLE IF NOT EXISTS main.hapax_schema (version INTEGER PRIMARY KEY, installed_at_ms INTEGER NOT NULL);"
    "CREATE TABLE IF NOT EXISTS main.hapax_scope ("
    "  scope TEXT PRIMARY KEY NOT NULL CHECK (length(scope) BETWEEN 1 AND 255), keep_ms INTEGER CHECK (keep_ms >= 0));"
    "CREATE TABLE main.hapax_entry ("
    "  scope TEXT NOT NULL, key TEXT NOT NULL, state TEXT NOT NULL, unsure INTEGER NOT NULL DEFAULT 0,"
    "  attempt INTEGER NOT NULL DEFAULT 1, fence INTEGER, gate INTEGER NOT NULL, data_version INTEGER NOT NULL,"
    "  first_seen_ms INTEGER NOT NULL, since_ms INTEGER NOT NULL, lease_until_ms INTEGER, owner TEXT, fingerprint BLOB,"
    "  effect_id TEXT, content_type TEXT, result BLOB, PRIMARY KEY (scope, key)) WITHOUT ROWID;"
    "CREATE INDEX main.hapax_entry_since ON hapax_entry (scope, since_ms);"
    "CREATE INDEX main.hapax_entry_in_flight ON hapax_entry (since_ms) WHERE lease_until_ms IS NOT NULL;"
    "CREATE TABLE IF NOT EXISTS main.hapax_steps ("
    "  scope TEXT NOT NULL, key TEXT NOT NULL, name TEXT NOT NULL, result BLOB, finished_at_ms INTEGER NOT NULL,"
    "  PRIMARY KEY (scope, key, name));"
    "CREATE TABLE IF NOT EXISTS main.hapax_extra_effect ("
    "  scope TEXT NOT NULL, key TEXT NOT NULL, effect_id TEXT NOT NULL, seen_at_ms INTEGER NOT NULL,"
    "  PRIMARY KEY (scope, key, effect_id));"
    "CREATE TABLE IF NOT EXISTS main.hapax_total ("
    "  scope TEXT NOT NULL, answer TEXT NOT NULL, n INTEGER NOT NULL, PRIMARY KEY (scope, answer));"
    "CREATE TRIGGER main.hapax_entry_gone AFTER DELETE ON hapax_entry BEGIN"
    "  DELETE FROM hapax_steps WHERE scope = old.scope AND key = old.key;"
    "  DELETE FROM hapax_extra_effect WHERE scope = old.scope AND key = old.key;"
    "  INSERT INTO hapax_total VALUES (old.scope, 'new', 1) ON CONFLICT DO UPDATE SET n = n + 1;"
    " END;"
    "CREATE VIEW main.hapax_keys AS"
    " SELECT e.scope, e.key, CASE e.state WHEN 'claimed' THEN 'done' ELSE e.state END AS state, e.attempt, e.fence,"
    "  e.owner, e.fingerprint, e.first_seen_ms, CASE WHEN e.state = 'in_flight' THEN e.since_ms END AS reserved_at_ms,"
    "  e.lease_until_ms, e.unsure,"
    "  CASE WHEN e.state IN ('claimed', 'done', 'rejected') THEN e.since_ms END AS settled_at_ms,"
    "  CASE WHEN e.lease_until_ms IS NULL THEN e.since_ms + c.keep_ms END AS expires_at_ms, e.result, e.content_type,"
    "  e.effect_id, (SELECT count(*) FROM hapax_extra_effect x WHERE x.scope = e.scope AND x.key = e.key)"
    "   AS extra_effects, (SELECT group_concat(s.name, ' ') FROM hapax_steps s"
    "   WHERE s.scope = e.scope AND s.key = e.key) AS steps"
    " FROM hapax_entry e LEFT JOIN hapax_scope c ON c.scope = e.scope;"
    "CREATE VIEW main.hapax_signals AS"
    " WITH counted AS (SELECT scope, answer, n FROM hapax_total"
    "   UNION ALL SELECT scope, 'new', count(*) FROM hapax_entry GROUP BY scope),"
    "  answers AS (SELECT scope, sum(n) AS claims, sum(n) FILTER (WHERE answer = 'duplicate') AS duplicates,"
    "   sum(n) FILTER (WHERE answer = 'conflict') AS conflicts, sum(n) FILTER (WHERE answer = 'stale') AS stale,"
    "   sum(n) FILTER (WHERE answer = 'unknown') AS unknown FROM counted GROUP BY scope),"
    "  flying AS (SELECT scope, count(*) AS in_flight, min(since_ms) AS since_ms FROM hapax_entry"
    "   WHERE lease_until_ms IS NOT NULL GROUP BY scope),"
    "  doubled AS (SELECT x.scope, count(*) AS keys FROM (SELECT scope, key, count(*) AS n FROM hapax_extra_effect"
    "   GROUP BY scope, key) x JOIN hapax_entry e ON e.scope = x.scope AND e.key = x.key"
    "   WHERE x.n + (e.effect_id IS NOT NULL) > 1 GROUP BY x.scope),"
    "  scopes AS (SELECT scope FROM hapax_scope UNION SELECT scope FROM answers)"
    " SELECT s.scope, coalesce(a.claims, 0) AS claims, coalesce(a.duplicates, 0) AS duplicates,"
    "  round(coalesce(1.0 * a.duplicates / a.claims, 0), 4) AS duplicate_ratio, coalesce(f.in_flight, 0) AS in_flight,"
    "  CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) - f.since_ms AS oldest_in_flight_age_ms,"
    "  coalesce(d.keys, 0) AS keys_with_several_effects, coalesce(a.conflicts, 0) AS conflicts,"
    "  coalesce(a.stale, 0) AS stale, coalesce(a.unknown, 0) AS unknown"
    " FROM scopes s LEFT JOIN answers a ON a.scope = s.scope LEFT JOIN flying f ON f.scope = s.scope"
    "  LEFT JOIN doubled d ON d.scope = s.scope;";

/* Version 1 had rows beside the key's index and counted every claim. Run before `schema`, with the rows put aside, and
 * after it, to put them back. Not by renaming: that would look into every view of the user's. */
static const char upgrade_before[] =
    "DROP VIEW IF EXISTS main.hapax_signals; DROP VIEW IF EXISTS main.hapax_keys;"
    "CREATE TEMP TABLE hapax_upgrade AS SELECT * FROM main.hapax_entry;"
    "UPDATE main.hapax_total SET n = max(0, n - (SELECT count(*) FROM main.hapax_entry e"
    "  WHERE e.scope = hapax_total.scope)) WHERE answer = 'new';"
    "DROP TABLE main.hapax_entry;";
static const char upgrade_after[] =
    "INSERT INTO main.hapax_entry SELECT * FROM temp.hapax_upgrade; DROP TABLE temp.hapax_upgrade;";

/* Prepared when first used, kept with the gate. Parameters of all that name a key: 1 scope, 2 key. */
#define STATEMENTS(X)                                                                                                  \
    X(BEGIN, "BEGIN IMMEDIATE")                                                                                        \
    X(COMMIT, "COMMIT")                                                                                                \
    X(ROLLBACK, "ROLLBACK")                                                                                            \
    X(SAVE, "SAVEPOINT hapax_call")                                                                                    \
    X(KEEP, "RELEASE hapax_call")                                                                                      \
    X(UNDO, "ROLLBACK TO hapax_call")                                                                                  \
    X(LOCK, "UPDATE main.hapax_schema SET version = version WHERE 0")                                                  \
    X(FIND, "SELECT state, unsure, attempt, fence, first_seen_ms, lease_until_ms, gate = ?3 AND data_version = ?4, "   \
            "coalesce(fingerprint <> ?5, 0), fence IS ?6 AND owner IS ?7 AND coalesce(?6, ?7) IS NOT NULL, "           \
            "coalesce(?8 IS NOT NULL AND effect_id IS NOT ?8, 0), content_type, result "                               \
            "FROM main.hapax_entry WHERE scope = ?1 AND key = ?2")                                                     \
    X(INSERT, "INSERT INTO main.hapax_entry (scope, key, state, gate, data_version, first_seen_ms, since_ms, "         \
              "lease_until_ms, fence, owner, fingerprint) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6, ?7, ?8, ?9, ?10) "       \
              "ON CONFLICT DO NOTHING")                                                                                \
    X(TAKE, "UPDATE main.hapax_entry SET state = ?3, gate = ?4, data_version = ?5, since_ms = ?6, "                    \
            "lease_until_ms = ?7, fence = max(coalesce(fence, ?8), coalesce(?8, fence)), owner = ?9, "                 \
            "fingerprint = coalesce(fingerprint, ?10), unsure = ?11, attempt = ?12 WHERE scope = ?1 AND key = ?2")     \
    X(SETTLE_OURS, "UPDATE main.hapax_entry SET state = ?3, "                                                          \
                   "fence = max(coalesce(fence, ?7), coalesce(?7, fence)), result = ?8, content_type = ?9, "           \
                   "effect_id = ?10 WHERE scope = ?1 AND key = ?2 AND state = 'claimed' AND gate = ?4 "                \
                   "AND data_version = ?5 AND coalesce(?7 >= fence, 1)")                                               \
    X(SETTLE, "UPDATE main.hapax_entry SET state = ?3, gate = ?4, data_version = ?5, since_ms = ?6, "                  \
              "lease_until_ms = NULL, fence = max(coalesce(fence, ?7), coalesce(?7, fence)), unsure = 0, "             \
              "result = ?8, content_type = ?9, effect_id = ?10 WHERE scope = ?1 AND key = ?2")                         \
    X(EXTRA, "INSERT INTO main.hapax_extra_effect VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING")                     \
    X(RELEASE, "UPDATE main.hapax_entry SET state = 'released', gate = ?3, data_version = ?4, since_ms = ?5, "         \
               "lease_until_ms = NULL, fence = max(coalesce(fence, ?6), coalesce(?6, fence)), unsure = 0, "            \
               "owner = NULL, fingerprint = NULL WHERE scope = ?1 AND key = ?2")                                       \
    X(FENCE, "UPDATE main.hapax_entry SET fence = max(coalesce(fence, ?3), coalesce(?3, fence)) "                      \
             "WHERE scope = ?1 AND key = ?2")                                                                          \
    X(STEP_FIND, "SELECT result FROM main.hapax_steps WHERE scope = ?1 AND key = ?2 AND name = ?3")                    \
    X(STEP_ADD, "INSERT INTO main.hapax_steps VALUES (?1, ?2, ?3, ?4, ?5)")                                            \
    X(COUNT, "INSERT INTO main.hapax_total VALUES (?1, ?2, 1) ON CONFLICT DO UPDATE SET n = n + 1")                    \
    X(STRANDED, "SELECT scope, key, owner, attempt, since_ms, fence FROM main.hapax_entry "                            \
                "WHERE lease_until_ms IS NOT NULL AND since_ms <= ?1 AND lease_until_ms <= ?2 "                        \
                "ORDER BY since_ms LIMIT ?3")                                                                          \
    X(SWEEP, "DELETE FROM main.hapax_entry WHERE (scope, key) IN ("                                                    \
             "SELECT e.scope, e.key FROM main.hapax_scope c JOIN main.hapax_entry e ON e.scope = c.scope "             \
             "WHERE e.lease_until_ms IS NULL AND e.since_ms <= ?1 - c.keep_ms LIMIT ?2)")

#define STATEMENT_ENUM(name, sql) S_##name,
enum statement { STATEMENTS(STATEMENT_ENUM) S_COUNT_OF };
#define STATEMENT_TEXT(name, sql) sql,
static const char *const statements[] = {STATEMENTS(STATEMENT_TEXT)};

struct sqlite_gate {
    hx_gate gate;
    sqlite3 *db;
    i64 name; /* random: no other gate has it */
    sqlite3_stmt *prepared[S_COUNT_OF];
};

static const struct gate_driver driver;

static struct sqlite_gate *self(hx_gate *gate) {
    CHECK(gate->driver == &driver);
    return (struct sqlite_gate *)(void *)gate;
}

static i64 data_version(struct sqlite_gate *g) {
    unsigned int v = 0;
    sqlite3_file_control(g->db, "main", SQLITE_FCNTL_DATA_VERSION, &v);
    return v;
}

/* ---- failures */

static const struct {
    int code;
    hx_status status;
    const char *name;
} by_code[] = {
    {SQLITE_BUSY, HX_BUSY, "sqlite_busy"},
    {SQLITE_LOCKED, HX_BUSY, "sqlite_locked"},
    {SQLITE_READONLY, HX_UNAVAILABLE, "sqlite_readonly"},
    {SQLITE_AUTH, HX_UNAVAILABLE, "sqlite_auth"},
    {SQLITE_PERM, HX_UNAVAILABLE, "sqlite_perm"},
    {SQLITE_CANTOPEN, HX_UNAVAILABLE, "sqlite_cantopen"},
    {SQLITE_NOTADB, HX_UNAVAILABLE, "sqlite_notadb"},
    {SQLITE_CORRUPT, HX_UNAVAILABLE, "sqlite_corrupt"},
    {SQLITE_FULL, HX_REFUSED, "sqlite_full"},
    {SQLITE_IOERR, HX_REFUSED, "sqlite_ioerr"},
    {SQLITE_CONSTRAINT, HX_REFUSED, "sqlite_constraint"},
    {SQLITE_INTERRUPT, HX_REFUSED, "sqlite_interrupt"},
};

static hx_status failure(sqlite3 *db, int rc, hx_error *err) {
    for (size_t i = 0; i < sizeof(by_code) / sizeof(by_code[0]); i++)
        if (by_code[i].code == (rc & 0xFF))
            return error_set(err, by_code[i].status, HX_APPLIED_NO, by_code[i].name, "%s", sqlite3_errmsg(db));
    return error_set(err, HX_REFUSED, HX_APPLIED_NO, "sqlite_error", "%s", sqlite3_errmsg(db));
}

/* An I/O error while committing may come before or after the point of no return. */
static hx_status commit_failure(sqlite3 *db, int rc, hx_error *err) {
    hx_status st = failure(db, rc, err);
    if ((rc & 0xFF) != SQLITE_IOERR) return st;
    return error_set(err, HX_UNKNOWN, HX_APPLIED_UNKNOWN, "sqlite_ioerr", "not known whether committed: %s",
                     sqlite3_errmsg(db));
}

/* ---- statements */

/* Ready to be bound; NULL if it cannot be prepared, and running it reports why. */
static sqlite3_stmt *statement(struct sqlite_gate *g, enum statement s) {
    if (!g->prepared[s]) sqlite3_prepare_v3(g->db, statements[s], -1, SQLITE_PREPARE_PERSISTENT, &g->prepared[s], NULL);
    return g->prepared[s];
}

static sqlite3_stmt *statement_key(struct sqlite_gate *g, enum statement s, const hx_gate_key *key) {
    sqlite3_stmt *q = statement(g, s);
    sqlite3_bind_text(q, 1, key->scope, -1, SQLITE_STATIC);
    sqlite3_bind_text(q, 2, key->key, -1, SQLITE_STATIC);
    return q;
}

static void bind_text(sqlite3_stmt *q, int at, const char *text) {
    sqlite3_bind_text(q, at, text, -1, SQLITE_STATIC);
}

static void bind_bytes(sqlite3_stmt *q, int at, hx_bytes b) {
    if (b.data)
        sqlite3_bind_blob64(q, at, b.data, b.size, SQLITE_STATIC);
    else
        sqlite3_bind_null(q, at);
}

/* 0 stands for none. */
static void bind_some(sqlite3_stmt *q, int at, i64 n) {
    if (n)
        sqlite3_bind_int64(q, at, n);
    else
        sqlite3_bind_null(q, at);
}

static void done(sqlite3_stmt *q) {
    sqlite3_reset(q);
    sqlite3_clear_bindings(q);
}

/* Runs what returns no rows; q is done afterwards. */
static int finish(sqlite3_stmt *q) {
    if (!q) return SQLITE_ERROR;
    int rc = sqlite3_step(q);
    done(q);
    return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

static hx_status run(struct sqlite_gate *g, sqlite3_stmt *q, hx_error *err) {
    int rc = finish(q);
    return rc == SQLITE_OK ? HX_OK : failure(g->db, rc, err);
}

static hx_bytes column_bytes(sqlite3_stmt *q, int at, struct arena *a) {
    if (sqlite3_column_type(q, at) == SQLITE_NULL) return (hx_bytes){0};
    const void *p = sqlite3_column_blob(q, at);
    return arena_bytes(a, slice_of(p, (size_t)sqlite3_column_bytes(q, at)));
}

static const char *column_text(sqlite3_stmt *q, int at, struct arena *a) {
    const char *text = (const char *)sqlite3_column_text(q, at);
    return text ? arena_string(a, slice_str(text)) : NULL;
}

/* ---- a call is all or nothing */

struct span {
    bool alone; /* in a transaction of its own */
    bool saved; /* under a savepoint, for more than one statement that writes */
};

/* With the write lock: nobody else changes anything from here on. */
static hx_status call_begin(struct sqlite_gate *g, struct span *c, hx_error *err) {
    *c = (struct span){.alone = sqlite3_get_autocommit(g->db)};
    if (c->alone) return run(g, statement(g, S_BEGIN), err);
    if (sqlite3_txn_state(g->db, "main") == SQLITE_TXN_WRITE) return HX_OK;
    return run(g, statement(g, S_LOCK), err);
}

static hx_status call_save(struct sqlite_gate *g, struct span *c, hx_error *err) {
    if (c->alone) return HX_OK;
    hx_status st = run(g, statement(g, S_SAVE), err);
    c->saved = st == HX_OK;
    return st;
}

static bool forbids_commit(hx_status st) {
    return st == HX_FENCED || st == HX_NOT_FOUND || st == HX_SETTLED;
}

static hx_status call_end(struct sqlite_gate *g, const struct span *c, hx_status st, hx_error *err) {
    if (st == HX_OK && c->alone) {
        int rc = finish(statement(g, S_COMMIT));
        if (rc == SQLITE_OK) return HX_OK;
        st = commit_failure(g->db, rc, err);
    } else if (st == HX_OK) {
        return c->saved ? run(g, statement(g, S_KEEP), err) : HX_OK;
    }
    if (c->alone || forbids_commit(st)) {
        if (!sqlite3_get_autocommit(g->db)) finish(statement(g, S_ROLLBACK));
    } else if (c->saved) {
        finish(statement(g, S_UNDO));
        finish(statement(g, S_KEEP));
    }
    return st;
}

/* A value above the connection's limit is not bound, and NULL would be stored in its place. */
static hx_status fits(struct sqlite_gate *g, hx_bytes bytes, const char *a, const char *b, hx_error *err) {
    size_t most = (size_t)sqlite3_limit(g->db, SQLITE_LIMIT_LENGTH, -1);
    if (bytes.size <= most && slice_str(a).n <= most && slice_str(b).n <= most) return HX_OK;
    return error_set(err, HX_INVALID, HX_APPLIED_NO, "sqlite_toobig", "gate: this connection takes %zu bytes at most",
                     most);
}

/* ---- rows */

enum state { CLAIMED, IN_FLIGHT, DONE, REJECTED, RELEASED };
static const char *const state_names[] = {"claimed", "in_flight", "done", "rejected", "released"};

struct entry {
    bool found, unsure, ours, differs, same_claimant, other_effect;
    enum state state;
    int attempt;
    i64 fence, first_seen_ms, lease_until_ms; /* 0: none */
};

static enum state state_named(const char *name) {
    for (int i = 0; i <= RELEASED; i++)
        if (name && strcmp(name, state_names[i]) == 0) return (enum state)i;
    return DONE; /* written by somebody else's hand: what is not understood is not done again */
}

static bool settled(const struct entry *e) {
    return e->state == DONE || e->state == REJECTED || (e->state == CLAIMED && !e->ours);
}

/* Result and content type of a settled row go to *reply, if there is one. */
static hx_status find(struct sqlite_gate *g, const hx_gate_key *key, const char *effect_id, struct entry *e,
                      hx_gate_reply *reply, hx_error *err) {
    *e = (struct entry){0};
    sqlite3_stmt *q = statement_key(g, S_FIND, key);
    sqlite3_bind_int64(q, 3, g->name);
    sqlite3_bind_int64(q, 4, data_version(g));
    bind_bytes(q, 5, key->fingerprint);
    bind_some(q, 6, key->fence);
    bind_text(q, 7, key->owner);
    bind_text(q, 8, effect_id);
    int rc = q ? sqlite3_step(q) : SQLITE_ERROR;
    hx_status st = rc == SQLITE_ROW || rc == SQLITE_DONE ? HX_OK : failure(g->db, rc, err);
    if (rc == SQLITE_ROW) {
        *e = (struct entry){.found = true,
                            .state = state_named((const char *)sqlite3_column_text(q, 0)),
                            .unsure = sqlite3_column_int(q, 1),
                            .attempt = sqlite3_column_int(q, 2),
                            .fence = sqlite3_column_int64(q, 3),
                            .first_seen_ms = sqlite3_column_int64(q, 4),
                            .lease_until_ms = sqlite3_column_int64(q, 5),
                            .ours = sqlite3_column_int(q, 6),
                            .differs = sqlite3_column_int(q, 7),
                            .same_claimant = sqlite3_column_int(q, 8),
                            .other_effect = sqlite3_column_int(q, 9)};
        if (reply && settled(e)) {
            reply->content_type = column_text(q, 10, reply->memory);
            reply->result = column_bytes(q, 11, reply->memory);
        }
    }
    done(q);
    return st;
}

/* The decision table of hapax.verdict: what a claimant is told about a row that is there. */
static hx_gate_answer verdict(const struct entry *e, i64 fence, i64 now) {
    hx_gate_answer mine = e->unsure ? HX_GATE_UNKNOWN : HX_GATE_NEW;
    if (e->differs) return HX_GATE_CONFLICT;
    if (settled(e)) return HX_GATE_DUPLICATE;
    if (fence && fence < e->fence) return HX_GATE_STALE;
    if (e->state == RELEASED) return HX_GATE_NEW;
    if (e->ours) return mine;
    if (e->lease_until_ms <= now) return HX_GATE_UNKNOWN;
    if (e->same_claimant) return mine;
    return e->fence && fence > e->fence ? HX_GATE_UNKNOWN : HX_GATE_IN_FLIGHT;
}

/* What S_INSERT and S_TAKE have in common. */
static sqlite3_stmt *statement_claim(struct sqlite_gate *g, enum statement s, const hx_gate_key *key, i64 lease_ms,
                                     i64 now) {
    sqlite3_stmt *q = statement_key(g, s, key);
    bind_text(q, 3, state_names[lease_ms ? IN_FLIGHT : CLAIMED]);
    sqlite3_bind_int64(q, 4, g->name);
    sqlite3_bind_int64(q, 5, data_version(g));
    sqlite3_bind_int64(q, 6, now);
    bind_some(q, 7, lease_ms ? now + lease_ms : 0);
    bind_some(q, 8, key->fence);
    bind_text(q, 9, key->owner);
    bind_bytes(q, 10, key->fingerprint);
    return q;
}

static hx_status count(struct sqlite_gate *g, const hx_gate_key *key, hx_gate_answer answer, hx_error *err) {
#define TEXT(name, text) text,
    static const char *const texts[] = {HX_GATE_ANSWER_MAP(TEXT)};
    sqlite3_stmt *q = statement(g, S_COUNT);
    bind_text(q, 1, key->scope);
    bind_text(q, 2, texts[answer]);
    return run(g, q, err);
}

enum { UNKNOWN_LEASE_MS = 120000 };

/* The row becomes the caller's. What is unknown stays a reservation even for claim: it ends by settling or releasing. */
static hx_status take(struct sqlite_gate *g, const hx_gate_key *key, i64 lease_ms, i64 now, hx_gate_reply *out,
                      hx_error *err) {
    bool unsure = out->answer == HX_GATE_UNKNOWN;
    sqlite3_stmt *q = statement_claim(g, S_TAKE, key, unsure && !lease_ms ? UNKNOWN_LEASE_MS : lease_ms, now);
    sqlite3_bind_int(q, 11, unsure);
    sqlite3_bind_int(q, 12, out->attempt);
    return run(g, q, err);
}

/* What most claims meet, a key nobody has used: one statement. false: it is there already, or *st says what is wrong. */
static bool insert(struct sqlite_gate *g, const hx_gate_key *key, i64 lease_ms, i64 now, hx_gate_reply *out,
                   hx_status *st, hx_error *err) {
    *st = run(g, statement_claim(g, S_INSERT, key, lease_ms, now), err);
    if (*st != HX_OK || sqlite3_changes(g->db) == 0) return false;
    out->answer = HX_GATE_NEW;
    out->first_seen_ms = now;
    out->attempt = 1;
    return true;
}

static hx_status admit_known(struct sqlite_gate *g, const hx_gate_key *key, i64 lease_ms, i64 now, hx_gate_reply *out,
                             hx_error *err) {
    struct entry e;
    hx_status st = find(g, key, NULL, &e, out, err);
    if (st != HX_OK) return st;
    out->answer = verdict(&e, key->fence, now);
    out->first_seen_ms = e.first_seen_ms;
    out->attempt = e.attempt;
    out->rejected = e.state == REJECTED;
    bool again = false; /* asking again for what one has is not another claim */
    if (out->answer == HX_GATE_NEW || out->answer == HX_GATE_UNKNOWN) {
        again = e.state != RELEASED && (e.ours || (e.lease_until_ms > now && e.same_claimant));
        if (!again) out->attempt++;
        st = take(g, key, lease_ms, now, out, err);
    }
    if (out->answer != HX_GATE_DUPLICATE) {
        out->result = (hx_bytes){0};
        out->content_type = NULL;
    }
    return st == HX_OK && !again ? count(g, key, out->answer, err) : st;
}

/* The claim's row, for whoever has it: refuses the superseded and the absent. */
static hx_status hold(struct sqlite_gate *g, const char *verb, const hx_gate_key *key, const char *effect_id,
                      bool released_too, struct entry *e, hx_error *err) {
    hx_status st = find(g, key, effect_id, e, NULL, err);
    if (st != HX_OK) return st;
    if (key->fence && key->fence < e->fence)
        return error_set(err, HX_FENCED, HX_APPLIED_NO, "HX001",
                         "%s of %s/%s: fence %lld is below %lld, which was seen; nothing was applied", verb, key->scope,
                         key->key, (long long)key->fence, (long long)e->fence);
    if (!e->found || (e->state == RELEASED && !released_too))
        return error_set(err, HX_NOT_FOUND, HX_APPLIED_NO, "HX002", "%s of %s/%s: no such claim; nothing was applied",
                         verb, key->scope, key->key);
    if (e->state == IN_FLIGHT && key->attempt && key->attempt != e->attempt)
        return error_set(err, HX_FENCED, HX_APPLIED_NO, "HX001",
                         "%s of %s/%s: attempt %d has the reservation, not %d; nothing was applied", verb, key->scope,
                         key->key, e->attempt, key->attempt);
    return HX_OK;
}

/* What S_SETTLE_OURS and S_SETTLE have in common. */
static sqlite3_stmt *statement_settle(struct sqlite_gate *g, enum statement s, const hx_gate_key *key,
                                      const hx_gate_outcome *outcome) {
    sqlite3_stmt *q = statement_key(g, s, key);
    bind_text(q, 3, state_names[outcome->rejected ? REJECTED : DONE]);
    sqlite3_bind_int64(q, 4, g->name);
    sqlite3_bind_int64(q, 5, data_version(g));
    bind_some(q, 7, key->fence);
    bind_bytes(q, 8, outcome->result);
    bind_text(q, 9, outcome->content_type);
    bind_text(q, 10, outcome->effect_id);
    return q;
}

static hx_status settle_locked(struct sqlite_gate *g, const hx_gate_key *key, const hx_gate_outcome *outcome,
                               hx_gate_answer *out, hx_error *err) {
    struct entry e;
    *out = HX_GATE_COMMITTED;
    hx_status st = run(g, statement_settle(g, S_SETTLE_OURS, key, outcome), err);
    if (st != HX_OK || sqlite3_changes(g->db)) return st;
    st = hold(g, "commit_outcome", key, outcome->effect_id, false, &e, err);
    if (st != HX_OK) return st;
    i64 now = clock_wall_ms();
    if (settled(&e)) {
        *out = HX_GATE_DUPLICATE;
        if (!e.other_effect) return HX_OK;
        sqlite3_stmt *q = statement_key(g, S_EXTRA, key);
        bind_text(q, 3, outcome->effect_id);
        sqlite3_bind_int64(q, 4, now);
        return run(g, q, err);
    }
    sqlite3_stmt *q = statement_settle(g, S_SETTLE, key, outcome);
    sqlite3_bind_int64(q, 6, now);
    return run(g, q, err);
}

static hx_status release_locked(struct sqlite_gate *g, const hx_gate_key *key, hx_gate_answer *out, hx_error *err) {
    struct entry e;
    hx_status st = hold(g, "release", key, NULL, true, &e, err);
    if (st != HX_OK) return st;
    *out = settled(&e) ? HX_GATE_DUPLICATE : HX_GATE_RELEASED;
    if (settled(&e) || e.state == RELEASED) return HX_OK;
    sqlite3_stmt *q = statement_key(g, S_RELEASE, key);
    sqlite3_bind_int64(q, 3, g->name);
    sqlite3_bind_int64(q, 4, data_version(g));
    sqlite3_bind_int64(q, 5, clock_wall_ms());
    bind_some(q, 6, key->fence);
    return run(g, q, err);
}

static hx_status step_find(struct sqlite_gate *g, const hx_gate_key *key, const char *name, hx_gate_reply *out,
                           hx_error *err) {
    sqlite3_stmt *q = statement_key(g, S_STEP_FIND, key);
    bind_text(q, 3, name);
    int rc = q ? sqlite3_step(q) : SQLITE_ERROR;
    hx_status st = rc == SQLITE_ROW || rc == SQLITE_DONE ? HX_OK : failure(g->db, rc, err);
    out->answer = rc == SQLITE_ROW ? HX_GATE_DUPLICATE : HX_GATE_NEW;
    if (rc == SQLITE_ROW) out->result = column_bytes(q, 0, out->memory);
    done(q);
    return st;
}

static hx_status step_locked(struct sqlite_gate *g, const hx_gate_key *key, const char *name, const hx_bytes *result,
                             hx_gate_reply *out, hx_error *err) {
    struct entry e;
    hx_status st = hold(g, "step", key, NULL, false, &e, err);
    if (st == HX_OK) st = step_find(g, key, name, out, err);
    if (st != HX_OK || out->answer == HX_GATE_DUPLICATE) return st;
    if (settled(&e))
        return error_set(err, HX_SETTLED, HX_APPLIED_NO, "HX005",
                         "step %s of %s/%s: the key is settled already; nothing was applied", name, key->scope,
                         key->key);
    if (!result) return HX_OK;
    out->result = result->data ? arena_bytes(out->memory, slice_of(result->data, result->size)) : (hx_bytes){0};
    sqlite3_stmt *q = statement_key(g, S_FENCE, key);
    bind_some(q, 3, key->fence);
    st = run(g, q, err);
    if (st != HX_OK) return st;
    q = statement_key(g, S_STEP_ADD, key);
    bind_text(q, 3, name);
    bind_bytes(q, 4, *result);
    sqlite3_bind_int64(q, 5, clock_wall_ms());
    return run(g, q, err);
}

/* ---- the driver */

static enum gate_state state(hx_gate *gate) {
    return sqlite3_get_autocommit(self(gate)->db) ? GATE_IDLE : GATE_OPEN;
}

/* The version that is installed: 0 none, -1 not readable (*err says why). */
static int version_read(sqlite3 *db, hx_error *err) {
    static const char present[] = "SELECT count(*) FROM main.sqlite_master WHERE name = 'hapax_schema'";
    sqlite3_stmt *q = NULL;
    int version = -1;
    int rc = sqlite3_prepare_v2(db, present, -1, &q, NULL);
    if (rc == SQLITE_OK) rc = sqlite3_step(q);
    if (rc == SQLITE_ROW && sqlite3_column_int(q, 0) == 0) version = 0;
    if (rc == SQLITE_ROW && version != 0) {
        sqlite3_finalize(q);
        rc = sqlite3_prepare_v2(db, "SELECT coalesce(max(version), 0) FROM main.hapax_schema", -1, &q, NULL);
        if (rc == SQLITE_OK) rc = sqlite3_step(q);
        if (rc == SQLITE_ROW) version = sqlite3_column_int(q, 0);
    }
    if (version < 0) failure(db, rc, err);
    sqlite3_finalize(q);
    return version;
}

static hx_status check_version(hx_gate *gate, hx_error *err) {
    int version = version_read(self(gate)->db, err);
    if (version < 0) return err->status;
    if (version == GATE_SCHEMA_VERSION) return HX_OK;
    return error_set(err, HX_UNAVAILABLE, HX_APPLIED_NO, version ? "HX006" : "not_installed",
                     "gate: schema version %d is installed, %d is needed: hx_gate_sqlite_install makes it; nothing was "
                     "applied",
                     version, GATE_SCHEMA_VERSION);
}

static hx_status begin(hx_gate *gate, hx_error *err) {
    return run(self(gate), statement(self(gate), S_BEGIN), err);
}

static hx_status commit(hx_gate *gate, hx_error *err) {
    int rc = finish(statement(self(gate), S_COMMIT));
    return rc == SQLITE_OK ? HX_OK : commit_failure(self(gate)->db, rc, err);
}

static void rollback(hx_gate *gate) {
    if (state(gate) == GATE_OPEN) finish(statement(self(gate), S_ROLLBACK));
}

static hx_status admit(hx_gate *gate, const hx_gate_key *key, i64 lease_ms, hx_gate_reply *out, hx_error *err) {
    struct sqlite_gate *g = self(gate);
    struct span c;
    hx_status st = fits(g, key->fingerprint, key->owner, NULL, err);
    if (st == HX_OK) st = call_begin(g, &c, err);
    if (st != HX_OK) return st;
    i64 now = clock_wall_ms();
    if (!insert(g, key, lease_ms, now, out, &st, err) && st == HX_OK) {
        st = call_save(g, &c, err);
        if (st == HX_OK) st = admit_known(g, key, lease_ms, now, out, err);
    }
    return call_end(g, &c, st, err);
}

static hx_status settle(hx_gate *gate, const hx_gate_key *key, const hx_gate_outcome *outcome, hx_gate_answer *out,
                        hx_error *err) {
    struct sqlite_gate *g = self(gate);
    struct span c;
    hx_status st = fits(g, outcome->result, outcome->content_type, outcome->effect_id, err);
    if (st == HX_OK) st = call_begin(g, &c, err);
    return st == HX_OK ? call_end(g, &c, settle_locked(g, key, outcome, out, err), err) : st;
}

static hx_status release(hx_gate *gate, const hx_gate_key *key, hx_gate_answer *out, hx_error *err) {
    struct sqlite_gate *g = self(gate);
    struct span c;
    hx_status st = call_begin(g, &c, err);
    return st == HX_OK ? call_end(g, &c, release_locked(g, key, out, err), err) : st;
}

static hx_status step(hx_gate *gate, const hx_gate_key *key, const char *name, const hx_bytes *result,
                      hx_gate_reply *out, hx_error *err) {
    struct sqlite_gate *g = self(gate);
    struct span c;
    hx_status st = fits(g, result ? *result : (hx_bytes){0}, NULL, NULL, err);
    if (st == HX_OK) st = call_begin(g, &c, err);
    if (st != HX_OK) return st;
    st = call_save(g, &c, err);
    if (st == HX_OK) st = step_locked(g, key, name, result, out, err);
    return call_end(g, &c, st, err);
}

static hx_status stranded(hx_gate *gate, i64 older_than_ms, bool lapsed, struct arena *a, struct buf *list,
                          hx_error *err) {
    sqlite3_stmt *q = statement(self(gate), S_STRANDED);
    i64 now = clock_wall_ms();
    sqlite3_bind_int64(q, 1, now - older_than_ms);
    sqlite3_bind_int64(q, 2, lapsed ? now : INT64_MAX);
    sqlite3_bind_int(q, 3, GATE_ORPHANS_MAX);
    int rc;
    while ((rc = q ? sqlite3_step(q) : SQLITE_ERROR) == SQLITE_ROW) {
        hx_gate_orphan o = {.scope = column_text(q, 0, a),
                            .key = column_text(q, 1, a),
                            .owner = column_text(q, 2, a),
                            .attempt = sqlite3_column_int(q, 3),
                            .since_ms = sqlite3_column_int64(q, 4),
                            .fence = sqlite3_column_int64(q, 5)};
        buf_add(list, &o, sizeof(o));
    }
    hx_status st = rc == SQLITE_DONE ? HX_OK : failure(self(gate)->db, rc, err);
    done(q);
    return st;
}

static hx_status sweep(hx_gate *gate, int batch, i64 *dropped, hx_error *err) {
    struct sqlite_gate *g = self(gate);
    struct span c;
    hx_status st = call_begin(g, &c, err);
    if (st != HX_OK) return st;
    sqlite3_stmt *q = statement(g, S_SWEEP);
    sqlite3_bind_int64(q, 1, clock_wall_ms());
    sqlite3_bind_int(q, 2, batch);
    st = run(g, q, err);
    if (st == HX_OK) *dropped = sqlite3_changes(g->db);
    return call_end(g, &c, st, err);
}

static void sqlite_free(hx_gate *gate) {
    for (int i = 0; i < S_COUNT_OF; i++) sqlite3_finalize(self(gate)->prepared[i]);
    mem_free(gate);
}

static const struct gate_driver driver = {.state = state,
                                          .check_version = check_version,
                                          .begin = begin,
                                          .commit = commit,
                                          .rollback = rollback,
                                          .admit = admit,
                                          .settle = settle,
                                          .release = release,
                                          .step = step,
                                          .stranded = stranded,
                                          .sweep = sweep,
                                          .free = sqlite_free};

hx_gate *hx_gate_sqlite(sqlite3 *db) {
    CHECK(db);
    struct sqlite_gate *g = mem_zalloc(sizeof(*g));
    gate_init(&g->gate, &driver);
    g->db = db;
    random_bytes(&g->name, sizeof(g->name));
    return &g->gate;
}

/* ---- installing */

static hx_status install(sqlite3 *db, hx_error *err) {
    int present = version_read(db, err);
    if (present < 0) return err->status;
    if (present > GATE_SCHEMA_VERSION)
        return error_set(err, HX_UNAVAILABLE, HX_APPLIED_NO, "HX006",
                         "gate: schema version %d is installed, this library has %d; nothing was applied", present,
                         GATE_SCHEMA_VERSION);
    if (present == GATE_SCHEMA_VERSION) return HX_OK;
    int rc = present ? sqlite3_exec(db, upgrade_before, NULL, NULL, NULL) : SQLITE_OK;
    if (rc == SQLITE_OK) rc = sqlite3_exec(db, schema, NULL, NULL, NULL);
    if (rc == SQLITE_OK && present) rc = sqlite3_exec(db, upgrade_after, NULL, NULL, NULL);
    char sql[128];
    snprintf(sql, sizeof(sql), "INSERT INTO main.hapax_schema VALUES (%d, %lld)", GATE_SCHEMA_VERSION,
             (long long)clock_wall_ms());
    if (rc == SQLITE_OK) rc = sqlite3_exec(db, sql, NULL, NULL, NULL);
    return rc == SQLITE_OK ? HX_OK : failure(db, rc, err);
}

hx_status hx_gate_sqlite_install(sqlite3 *db, hx_error *err) {
    hx_error spare;
    if (!err) err = &spare;
    bool alone = sqlite3_get_autocommit(db);
    int rc = sqlite3_exec(db, alone ? "BEGIN IMMEDIATE" : "SAVEPOINT hapax_install", NULL, NULL, NULL);
    if (rc != SQLITE_OK) return failure(db, rc, err);
    hx_status st = install(db, err);
    if (st == HX_OK) {
        rc = sqlite3_exec(db, alone ? "COMMIT" : "RELEASE hapax_install", NULL, NULL, NULL);
        if (rc == SQLITE_OK) return error_ok(err);
        st = commit_failure(db, rc, err);
    }
    if (alone)
        sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
    else
        sqlite3_exec(db, "ROLLBACK TO hapax_install; RELEASE hapax_install", NULL, NULL, NULL);
    return st;
}
