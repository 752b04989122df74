/* The gate on PostgreSQL: each call is one of the SQL functions of sql/postgres/hapax_gate.sql. Results come in binary
 * form. Statements are named only if the caller asked for it: without names there is no session state, and any pooler in
 * transaction mode will do. BEGIN goes with the claim, and COMMIT with the outcome or with the question how a duplicate was
 * settled, in one round trip (libpq's pipeline mode, entered and left within a call): what the functions cost more than
 * an INSERT by hand is about what that saves. */
#include <libpq-fe.h>
#include <stdio.h>

#include "client/gate_priv.h"

/* The caller's search_path is not ours: what is not a keyword has its schema, operators included. claim and reserve are
 * asked for their row as one value: taken apart in FROM it would cost a fifth more of the server's time. */
#define STATEMENTS(X)                                                                                                  \
    X(BEGIN, "BEGIN")                                                                                                  \
    X(COMMIT, "COMMIT")                                                                                                \
    X(ROLLBACK, "ROLLBACK")                                                                                            \
    X(VERSION, "SELECT hapax.require_version($1)")                                                                     \
    X(CLAIM, "SELECT hapax.claim($1, $2, $3, $4, $5)")                                                                 \
    X(RESERVE, "SELECT hapax.reserve($1, $2, $3, $4, $5, $6)")                                                         \
    X(SETTLED_AS, "SELECT hapax.settled_as($1, $2)")                                                                   \
    X(SETTLE, "SELECT hapax.commit_outcome($1, $2, $3, $4, $5, $6, $7, $8)")                                           \
    X(RELEASE, "SELECT hapax.release($1, $2, $3, $4)")                                                                 \
    X(STEP, "SELECT s.status, s.result FROM hapax.step($1, $2, $3, $4, $5, $6, $7) s")                                 \
    X(STRANDED, "SELECT s.scope, s.key, s.owner, s.attempt, s.since, coalesce(k.fence, 0) "                            \
                "FROM hapax.stranded($1) s "                                                                           \
                "JOIN hapax.keys k ON k.scope OPERATOR(pg_catalog.=) s.scope AND k.key OPERATOR(pg_catalog.=) s.key "  \
                "WHERE NOT $2 OR k.lease_until OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp() "                  \
                "ORDER BY s.since LIMIT $3")                                                                           \
    X(SWEEP, "SELECT hapax.sweep($1)")

#define STATEMENT_ENUM(name, sql) S_##name,
enum statement { STATEMENTS(STATEMENT_ENUM) };
#define STATEMENT_TEXT(name, sql) sql,
static const char *const statements[] = {STATEMENTS(STATEMENT_TEXT)};

struct pq_gate {
    hx_gate gate;
    PGconn *conn;
    bool named;   /* statements are prepared once */
    u64 name;     /* random: no other gate's statements on this connection have it */
    int backend;  /* where they are prepared: another after a PQreset */
    u32 prepared; /* a bit for each */
};

static const struct gate_driver driver;

static struct pq_gate *self(hx_gate *gate) {
    CHECK(gate->driver == &driver);
    return (struct pq_gate *)(void *)gate;
}

static PGconn *conn_of(hx_gate *gate) {
    return self(gate)->conn;
}

/* ---- parameters and results */

enum { PARAMS_MAX = 8 };

/* Of the server's own types: with them it need not guess, and commit_outcome is the one for bytes. */
enum type { TYPE_BOOL = 16, TYPE_BYTES = 17, TYPE_INT8 = 20, TYPE_INT4 = 23, TYPE_TEXT = 25, TYPE_INTERVAL = 1186 };

/* Stays where it is: values point into digits. */
struct params {
    int count;
    Oid types[PARAMS_MAX];
    const char *values[PARAMS_MAX];
    int lengths[PARAMS_MAX], formats[PARAMS_MAX];
    char digits[PARAMS_MAX][32];
};

static void add(struct params *p, enum type type, const char *value) {
    p->types[p->count] = type;
    p->values[p->count++] = value;
}

static void add_text(struct params *p, const char *text) {
    add(p, TYPE_TEXT, text);
}

static void add_bytes(struct params *p, hx_bytes b) {
    p->formats[p->count] = 1;
    p->lengths[p->count] = (int)b.size;
    add(p, TYPE_BYTES, b.data);
}

static void add_bool(struct params *p, bool yes) {
    add(p, TYPE_BOOL, yes ? "t" : "f");
}

static void add_number(struct params *p, enum type type, i64 n) {
    char *digits = p->digits[p->count];
    snprintf(digits, sizeof(p->digits[0]), "%lld", (long long)n);
    add(p, type, digits);
}

/* 0 stands for none: a fence, an attempt. */
static void add_some(struct params *p, enum type type, i64 n) {
    if (n)
        add_number(p, type, n);
    else
        add(p, type, NULL);
}

static void add_duration(struct params *p, i64 ms) {
    char *text = p->digits[p->count];
    snprintf(text, sizeof(p->digits[0]), "%lld ms", (long long)ms);
    add(p, TYPE_INTERVAL, text);
}

static struct params params_key(const hx_gate_key *key) {
    struct params p = {0};
    add_text(&p, key->scope);
    add_text(&p, key->key);
    return p;
}

static slice value(const PGresult *r, int row, int column) {
    return slice_of(PQgetvalue(r, row, column), (size_t)PQgetlength(r, row, column));
}

static const char *value_text(const PGresult *r, int row, int column, struct arena *a) {
    return PQgetisnull(r, row, column) ? NULL : arena_string(a, value(r, row, column));
}

static hx_bytes value_bytes(const PGresult *r, int row, int column, struct arena *a) {
    return PQgetisnull(r, row, column) ? (hx_bytes){0} : arena_bytes(a, value(r, row, column));
}

/* Numbers travel big-endian. */
static i64 value_i64(const PGresult *r, int row, int column) {
    return (i64)__builtin_bswap64(get_u64(PQgetvalue(r, row, column)));
}

static int value_int(const PGresult *r, int row, int column) {
    return (int)__builtin_bswap32(get_u32(PQgetvalue(r, row, column)));
}

/* A timestamptz: microseconds since 2000. */
static i64 time_of(const char *p) {
    return ((i64)__builtin_bswap64(get_u64(p)) + 946684800000000) / 1000;
}

static i64 value_time(const PGresult *r, int row, int column) {
    return time_of(PQgetvalue(r, row, column));
}

static bool value_is(const PGresult *r, const char *text) {
    return slice_eq(value(r, 0, 0), slice_str(text));
}

#define TEXT(name, text) text,
static const char *const answers[] = {HX_GATE_ANSWER_MAP(TEXT)};

static hx_gate_answer answer_named(slice name) {
    for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++)
        if (slice_eq(name, slice_str(answers[i]))) return (hx_gate_answer)i;
    return HX_GATE_NONE;
}

static hx_gate_answer value_answer(const PGresult *r) {
    return answer_named(value(r, 0, 0));
}

/* ---- failures */

/* Somebody said DEALLOCATE or DISCARD. */
#define NO_SUCH_STATEMENT "26000"

/* The first that matches counts; a class is its first two characters. */
static const struct {
    const char *state;
    hx_status status;
} by_state[] = {
    {"HX001", HX_FENCED},      {"HX002", HX_NOT_FOUND},   {"HX003", HX_INVALID},
    {"HX004", HX_CONFLICT},    {"HX005", HX_SETTLED},     {"HX006", HX_UNAVAILABLE},
    {"40", HX_BUSY},           {"55P03", HX_BUSY},        {"57014", HX_BUSY},
    {"53", HX_BUSY},           {"42501", HX_UNAVAILABLE}, {"42883", HX_UNAVAILABLE},
    {"42P01", HX_UNAVAILABLE}, {"3F000", HX_UNAVAILABLE}, {NO_SUCH_STATEMENT, HX_BUSY},
};

static hx_status status_of_state(const char *state) {
    for (size_t i = 0; i < sizeof(by_state) / sizeof(by_state[0]); i++)
        if (strncmp(state, by_state[i].state, strlen(by_state[i].state)) == 0) return by_state[i].status;
    return HX_REFUSED;
}

/* The server is going away, or somebody between us and it says that the answer is not to be had. */
static bool answer_lost(PGconn *conn, const char *state) {
    if (PQstatus(conn) == CONNECTION_BAD) return true;
    return state && (strncmp(state, "57P0", 4) == 0 || strncmp(state, "08", 2) == 0 || strcmp(state, "40003") == 0);
}

/* `alone`: the request was a transaction of its own, or the end of one. If its answer is lost, nobody can say. */
static hx_status failure(PGconn *conn, const PGresult *r, bool alone, hx_error *err) {
    const char *state = r ? PQresultErrorField(r, PG_DIAG_SQLSTATE) : NULL;
    const char *text = r ? PQresultErrorField(r, PG_DIAG_MESSAGE_PRIMARY) : NULL;
    if (!text) text = PQerrorMessage(conn);
    if (answer_lost(conn, state))
        return error_set(err, alone ? HX_UNKNOWN : HX_UNREACHABLE, alone ? HX_APPLIED_UNKNOWN : HX_APPLIED_NO,
                         "connection_lost", "%s: %s",
                         alone ? "the answer was lost: not known whether applied" : "nothing was applied", text);
    return error_set(err, state ? status_of_state(state) : HX_REFUSED, HX_APPLIED_NO, state ? state : "libpq", "%s",
                     text);
}

static void statement_name(const struct pq_gate *g, enum statement s, char out[48]) {
    snprintf(out, 48, "hapax_%016llx_%d", (unsigned long long)g->name, (int)s);
}

/* Prepares it, if it is to be and is not. NULL, or what went wrong. */
static PGresult *prepare(struct pq_gate *g, enum statement s, const struct params *p) {
    if (!g->named) return NULL;
    if (g->backend != PQbackendPID(g->conn)) {
        g->backend = PQbackendPID(g->conn);
        g->prepared = 0;
    }
    if (g->prepared & 1u << s) return NULL;
    char name[48];
    statement_name(g, s, name);
    PGresult *r = PQprepare(g->conn, name, statements[s], p->count, p->types);
    if (PQresultStatus(r) != PGRES_COMMAND_OK) return r;
    PQclear(r);
    g->prepared |= 1u << s;
    return NULL;
}

static PGresult *exec(struct pq_gate *g, enum statement s, const struct params *p) {
    PGresult *trouble = prepare(g, s, p);
    if (trouble) return trouble;
    if (!g->named)
        return PQexecParams(g->conn, statements[s], p->count, p->types, p->values, p->lengths, p->formats, 1);
    char name[48];
    statement_name(g, s, name);
    return PQexecPrepared(g->conn, name, p->count, p->values, p->lengths, p->formats, 1);
}

static bool send(struct pq_gate *g, enum statement s, const struct params *p) {
    if (!g->named)
        return PQsendQueryParams(g->conn, statements[s], p->count, p->types, p->values, p->lengths, p->formats, 1);
    char name[48];
    statement_name(g, s, name);
    return PQsendQueryPrepared(g->conn, name, p->count, p->values, p->lengths, p->formats, 1);
}

/* The answer to one of several statements under way; behind it there is a NULL. */
static PGresult *next_answer(PGconn *conn) {
    PGresult *r = PQgetResult(conn);
    if (r) PQclear(PQgetResult(conn));
    return r;
}

/* Whatever is left, up to the sync's own answer: with anything uncollected the connection would stay in pipeline mode. */
static void drain(PGconn *conn) {
    int silent = 0;
    while (silent < 2 && PQstatus(conn) == CONNECTION_OK) {
        PGresult *r = PQgetResult(conn);
        silent = r ? 0 : silent + 1;
        bool last = PQresultStatus(r) == PGRES_PIPELINE_SYNC;
        PQclear(r);
        if (last) break;
    }
}

/* Two statements in one round trip; the second is not run if the first fails. out[0] and out[1] are the caller's to
 * clear; NULL: there is no answer. */
static void exec_both(struct pq_gate *g, const enum statement which[2], const struct params *const params[2],
                      PGresult *out[2]) {
    out[0] = out[1] = NULL;
    for (int i = 0; i < 2 && !out[0]; i++) out[0] = prepare(g, which[i], params[i]);
    if (out[0] || !PQenterPipelineMode(g->conn)) return;
    bool sent = send(g, which[0], params[0]) && send(g, which[1], params[1]);
    sent = PQpipelineSync(g->conn) && sent;
    for (int i = 0; i < 2 && sent; i++) out[i] = next_answer(g->conn);
    drain(g->conn);
    PQexitPipelineMode(g->conn);
}

/* What became of them: HX_OK if both were good. `alone` as in failure(). */
static hx_status check_both(struct pq_gate *g, PGresult *const r[2], bool alone, hx_error *err) {
    for (int i = 0; i < 2; i++) {
        ExecStatusType kind = PQresultStatus(r[i]);
        if (kind == PGRES_TUPLES_OK || kind == PGRES_COMMAND_OK) continue;
        hx_status st = failure(g->conn, r[i], alone, err);
        if (strcmp(err->code, NO_SUCH_STATEMENT) == 0) g->prepared = 0;
        return st;
    }
    return HX_OK;
}

/* One statement that returns rows. *out is the caller's to clear, NULL after a failure. */
static hx_status ask(hx_gate *gate, enum statement s, const struct params *p, bool writes, PGresult **out,
                     hx_error *err) {
    struct pq_gate *g = self(gate);
    bool alone = writes && PQtransactionStatus(g->conn) == PQTRANS_IDLE;
    PGresult *r = exec(g, s, p);
    *out = NULL;
    if (PQresultStatus(r) == PGRES_TUPLES_OK) {
        *out = r;
        return HX_OK;
    }
    hx_status st = failure(g->conn, r, alone, err);
    if (strcmp(err->code, NO_SUCH_STATEMENT) == 0) g->prepared = 0;
    PQclear(r);
    return st;
}

static hx_status ask_answer(hx_gate *gate, enum statement s, const struct params *p, hx_gate_answer *out,
                            hx_error *err) {
    PGresult *r;
    hx_status st = ask(gate, s, p, true, &r, err);
    if (st == HX_OK) *out = value_answer(r);
    PQclear(r);
    return st;
}

/* ---- the driver */

static enum gate_state state(hx_gate *gate) {
    if (PQstatus(conn_of(gate)) == CONNECTION_BAD) return GATE_LOST;
    if (PQpipelineStatus(conn_of(gate)) != PQ_PIPELINE_OFF) return GATE_IN_USE;
    switch (PQtransactionStatus(conn_of(gate))) {
    case PQTRANS_IDLE:
        return GATE_IDLE;
    case PQTRANS_INTRANS:
        return GATE_OPEN;
    case PQTRANS_INERROR:
        return GATE_ABORTED;
    case PQTRANS_ACTIVE:
        return GATE_IN_USE;
    case PQTRANS_UNKNOWN:
        break;
    }
    return GATE_LOST;
}

static hx_status check_version(hx_gate *gate, hx_error *err) {
    struct params p = {0};
    add_number(&p, TYPE_INT4, GATE_SCHEMA_VERSION);
    PGresult *r;
    hx_status st = ask(gate, S_VERSION, &p, false, &r, err);
    PQclear(r);
    return st;
}

static hx_status begin(hx_gate *gate, hx_error *err) {
    PGresult *r = PQexec(conn_of(gate), "BEGIN");
    hx_status st = PQresultStatus(r) == PGRES_COMMAND_OK ? HX_OK : failure(conn_of(gate), r, false, err);
    PQclear(r);
    return st;
}

/* COMMIT of an aborted transaction is answered with ROLLBACK, and no error. */
static hx_status check_committed(PGresult *r, hx_error *err) {
    if (strcmp(PQcmdStatus(r), "COMMIT") == 0) return HX_OK;
    return error_set(err, HX_REFUSED, HX_APPLIED_NO, "25P02", "the transaction had been aborted; nothing was applied");
}

static hx_status commit(hx_gate *gate, hx_error *err) {
    PGresult *r = PQexec(conn_of(gate), "COMMIT");
    hx_status st =
        PQresultStatus(r) == PGRES_COMMAND_OK ? check_committed(r, err) : failure(conn_of(gate), r, true, err);
    PQclear(r);
    return st;
}

static void rollback(hx_gate *gate) {
    enum gate_state s = state(gate);
    if (s == GATE_OPEN || s == GATE_ABORTED) PQclear(PQexec(conn_of(gate), "ROLLBACK"));
}

static void add_admit(struct params *p, const hx_gate_key *key, i64 lease_ms) {
    add_bytes(p, key->fingerprint);
    add_some(p, TYPE_INT8, key->fence);
    add_text(p, key->owner);
    if (lease_ms) add_duration(p, lease_ms);
}

/* A row as one value: how many columns, then of each its type, its length (-1: NULL) and its bytes. */
struct row {
    const char *p;
    size_t n;
};

static u32 row_u32(struct row *r) {
    if (r->n < 4) return 0;
    u32 v = __builtin_bswap32(get_u32(r->p));
    r->p += 4;
    r->n -= 4;
    return v;
}

/* The next column; p == NULL: NULL, or there is none. */
static slice row_next(struct row *r) {
    row_u32(r);
    u32 n = row_u32(r);
    if (n > r->n) return (slice){0};
    slice s = slice_of(r->p, n);
    r->p += n;
    r->n -= n;
    return s;
}

static hx_status read_admitted(const PGresult *result, hx_gate_reply *out, hx_error *err) {
    struct row r = {PQgetvalue(result, 0, 0), (size_t)PQgetlength(result, 0, 0)};
    u32 columns = row_u32(&r);
    slice status = row_next(&r), body = row_next(&r), type = row_next(&r), seen = row_next(&r), attempt = row_next(&r);
    out->answer = answer_named(status);
    if (columns != 5 || seen.n != 8 || attempt.n != 4 || out->answer == HX_GATE_NONE)
        return error_set(err, HX_UNAVAILABLE, HX_APPLIED_NO, "HX006",
                         "gate: an answer of another shape than this library's");
    if (body.p) out->result = arena_bytes(out->memory, body);
    if (type.p) out->content_type = arena_string(out->memory, type);
    out->first_seen_ms = time_of(seen.p);
    out->attempt = (int)__builtin_bswap32(get_u32(attempt.p));
    return HX_OK;
}

/* The answer does not tell how a duplicate was settled. Settled rows never change: a later look sees the same. */
static hx_status read_rejected(hx_gate *gate, const hx_gate_key *key, hx_gate_reply *out, hx_error *err) {
    if (out->answer != HX_GATE_DUPLICATE) return HX_OK;
    struct params p = params_key(key);
    PGresult *r;
    hx_status st = ask(gate, S_SETTLED_AS, &p, false, &r, err);
    out->rejected = st == HX_OK && value_is(r, "rejected");
    PQclear(r);
    return st;
}

static hx_status admit(hx_gate *gate, const hx_gate_key *key, i64 lease_ms, hx_gate_reply *out, hx_error *err) {
    struct params p = params_key(key);
    add_admit(&p, key, lease_ms);
    PGresult *r;
    hx_status st = ask(gate, lease_ms ? S_RESERVE : S_CLAIM, &p, true, &r, err);
    if (st == HX_OK) st = read_admitted(r, out, err);
    PQclear(r);
    return st == HX_OK ? read_rejected(gate, key, out, err) : st;
}

static hx_status begin_admit(hx_gate *gate, const hx_gate_key *key, i64 lease_ms, hx_gate_reply *out, hx_error *err) {
    struct params none = {0}, p = params_key(key);
    add_admit(&p, key, lease_ms);
    PGresult *r[2];
    exec_both(self(gate), (enum statement[]){S_BEGIN, lease_ms ? S_RESERVE : S_CLAIM},
              (const struct params *const[]){&none, &p}, r);
    hx_status st = check_both(self(gate), r, false, err);
    if (st == HX_OK) st = read_admitted(r[1], out, err);
    PQclear(r[0]);
    PQclear(r[1]);
    return st;
}

static hx_status end_duplicate(hx_gate *gate, const hx_gate_key *key, bool keep, hx_gate_reply *out, hx_error *err) {
    struct params p = params_key(key), none = {0};
    PGresult *r[2];
    exec_both(self(gate), (enum statement[]){S_SETTLED_AS, keep ? S_COMMIT : S_ROLLBACK},
              (const struct params *const[]){&p, &none}, r);
    hx_status st = check_both(self(gate), r, keep, err);
    if (st == HX_OK && keep) st = check_committed(r[1], err);
    out->rejected = st == HX_OK && value_is(r[0], "rejected");
    PQclear(r[0]);
    PQclear(r[1]);
    return st;
}

static void add_settle(struct params *p, const hx_gate_key *key, const hx_gate_outcome *outcome) {
    add_bytes(p, outcome->result);
    add_text(p, outcome->content_type);
    add_text(p, outcome->effect_id);
    add_some(p, TYPE_INT8, key->fence);
    add_text(p, outcome->rejected ? "rejected" : "done");
    add_some(p, TYPE_INT4, key->attempt);
}

static hx_status settle(hx_gate *gate, const hx_gate_key *key, const hx_gate_outcome *outcome, hx_gate_answer *out,
                        hx_error *err) {
    struct params p = params_key(key);
    add_settle(&p, key, outcome);
    return ask_answer(gate, S_SETTLE, &p, out, err);
}

static hx_status settle_commit(hx_gate *gate, const hx_gate_key *key, const hx_gate_outcome *outcome, hx_error *err) {
    struct params p = params_key(key), none = {0};
    add_settle(&p, key, outcome);
    PGresult *r[2];
    exec_both(self(gate), (enum statement[]){S_SETTLE, S_COMMIT}, (const struct params *const[]){&p, &none}, r);
    hx_status st = check_both(self(gate), r, true, err);
    if (st == HX_OK) st = check_committed(r[1], err);
    PQclear(r[0]);
    PQclear(r[1]);
    return st;
}

static hx_status release(hx_gate *gate, const hx_gate_key *key, hx_gate_answer *out, hx_error *err) {
    struct params p = params_key(key);
    add_some(&p, TYPE_INT8, key->fence);
    add_some(&p, TYPE_INT4, key->attempt);
    return ask_answer(gate, S_RELEASE, &p, out, err);
}

static hx_status step(hx_gate *gate, const hx_gate_key *key, const char *name, const hx_bytes *result,
                      hx_gate_reply *out, hx_error *err) {
    struct params p = params_key(key);
    add_text(&p, name);
    add_bytes(&p, result ? *result : (hx_bytes){0});
    add_some(&p, TYPE_INT8, key->fence);
    add_some(&p, TYPE_INT4, key->attempt);
    add_bool(&p, result);
    PGresult *r;
    hx_status st = ask(gate, S_STEP, &p, true, &r, err);
    if (st != HX_OK) return st;
    out->answer = value_answer(r);
    out->result = value_bytes(r, 0, 1, out->memory);
    PQclear(r);
    return HX_OK;
}

static hx_status stranded(hx_gate *gate, i64 older_than_ms, bool lapsed, struct arena *a, struct buf *list,
                          hx_error *err) {
    struct params p = {0};
    add_duration(&p, older_than_ms);
    add_bool(&p, lapsed);
    add_number(&p, TYPE_INT8, GATE_ORPHANS_MAX);
    PGresult *r;
    hx_status st = ask(gate, S_STRANDED, &p, false, &r, err);
    for (int row = 0; row < PQntuples(r); row++) {
        hx_gate_orphan o = {.scope = value_text(r, row, 0, a),
                            .key = value_text(r, row, 1, a),
                            .owner = value_text(r, row, 2, a),
                            .attempt = value_int(r, row, 3),
                            .since_ms = value_time(r, row, 4),
                            .fence = value_i64(r, row, 5)};
        buf_add(list, &o, sizeof(o));
    }
    PQclear(r);
    return st;
}

static hx_status sweep(hx_gate *gate, int batch, i64 *dropped, hx_error *err) {
    struct params p = {0};
    add_number(&p, TYPE_INT4, batch);
    PGresult *r;
    hx_status st = ask(gate, S_SWEEP, &p, true, &r, err);
    if (st == HX_OK) *dropped = value_i64(r, 0, 0);
    PQclear(r);
    return st;
}

static void pq_free(hx_gate *gate) {
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
                                          .begin_admit = begin_admit,
                                          .settle_commit = settle_commit,
                                          .end_duplicate = end_duplicate,
                                          .stranded = stranded,
                                          .sweep = sweep,
                                          .free = pq_free};

hx_gate *hx_gate_pq(PGconn *conn) {
    CHECK(conn);
    struct pq_gate *g = mem_zalloc(sizeof(*g));
    gate_init(&g->gate, &driver);
    g->conn = conn;
    return &g->gate;
}

hx_gate *hx_gate_pq_named(PGconn *conn) {
    hx_gate *gate = hx_gate_pq(conn);
    self(gate)->named = true;
    random_bytes(&self(gate)->name, sizeof(self(gate)->name));
    return gate;
}
