/* The gate on PostgreSQL: each call is one of the SQL functions of sql/postgres/hapax_gate.sql. Results come in binary
 * form. Statements are named only if the caller asked for it: without names there is no session state, and any pooler in
 * transaction mode will do. */
#include <libpq-fe.h>
#include <stdio.h>

#include "client/gate_priv.h"

#define REPLY_COLUMNS "status, result, content_type, first_seen, attempt"

#define STATEMENTS(X)                                                                                                  \
    X(VERSION, "SELECT hapax.require_version($1::int)")                                                                \
    X(CLAIM, "SELECT " REPLY_COLUMNS " FROM hapax.claim($1, $2, $3, $4, $5)")                                          \
    X(RESERVE, "SELECT " REPLY_COLUMNS " FROM hapax.reserve($1, $2, $3, $4, $5, $6::bigint * interval '1 ms')")        \
    X(STATE, "SELECT state::text FROM hapax.entry WHERE scope = $1 AND key = $2")                                      \
    X(SETTLE, "SELECT hapax.commit_outcome($1, $2, $3, $4, $5, $6, $7)")                                               \
    X(RELEASE, "SELECT hapax.release($1, $2, $3)")                                                                     \
    X(STEP, "SELECT status, result FROM hapax.step($1, $2, $3, result => $4, fence => $5)")                            \
    X(STRANDED, "SELECT s.scope, s.key, s.owner, s.attempt, s.since, coalesce(e.fence, 0) "                            \
                "FROM hapax.stranded($1::bigint * interval '1 ms') s "                                                 \
                "JOIN hapax.entry e ON e.scope = s.scope AND e.key = s.key ORDER BY s.since")                          \
    X(SWEEP, "SELECT hapax.sweep($1::int)")

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

static struct pq_gate *self(hx_gate *gate) {
    return (struct pq_gate *)(void *)gate;
}

static PGconn *conn_of(hx_gate *gate) {
    return self(gate)->conn;
}

/* ---- parameters and results */

enum { PARAMS_MAX = 7 };

struct params {
    int count;
    const char *values[PARAMS_MAX];
    int lengths[PARAMS_MAX], formats[PARAMS_MAX];
    char digits[PARAMS_MAX][24];
};

static void add_text(struct params *p, const char *text) {
    p->values[p->count++] = text;
}

static void add_bytes(struct params *p, hx_bytes b) {
    p->formats[p->count] = 1;
    p->lengths[p->count] = (int)b.size;
    p->values[p->count++] = b.data;
}

static void add_number(struct params *p, i64 n) {
    char *digits = p->digits[p->count];
    snprintf(digits, sizeof(p->digits[0]), "%lld", (long long)n);
    p->values[p->count++] = digits;
}

static struct params params_key(const hx_gate_key *key) {
    struct params p = {0};
    add_text(&p, key->scope);
    add_text(&p, key->key);
    return p;
}

/* 0 stands for no fence. */
static void add_fence(struct params *p, i64 fence) {
    if (fence)
        add_number(p, fence);
    else
        add_text(p, NULL);
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
static i64 value_time(const PGresult *r, int row, int column) {
    return (value_i64(r, row, column) + 946684800000000) / 1000;
}

static bool value_is(const PGresult *r, const char *text) {
    return slice_eq(value(r, 0, 0), slice_str(text));
}

#define TEXT(name, text) text,
static const char *const answers[] = {HX_GATE_ANSWER_MAP(TEXT)};

static hx_gate_answer value_answer(const PGresult *r) {
    for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++)
        if (value_is(r, answers[i])) return (hx_gate_answer)i;
    return HX_GATE_NONE;
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

static PGresult *exec_named(struct pq_gate *g, enum statement s, const struct params *p) {
    if (g->backend != PQbackendPID(g->conn)) {
        g->backend = PQbackendPID(g->conn);
        g->prepared = 0;
    }
    char name[48];
    snprintf(name, sizeof(name), "hapax_%016llx_%d", (unsigned long long)g->name, (int)s);
    if (!(g->prepared & 1u << s)) {
        PGresult *r = PQprepare(g->conn, name, statements[s], 0, NULL);
        if (PQresultStatus(r) != PGRES_COMMAND_OK) return r;
        PQclear(r);
        g->prepared |= 1u << s;
    }
    return PQexecPrepared(g->conn, name, p->count, p->values, p->lengths, p->formats, 1);
}

/* One statement that returns rows. *out is the caller's to clear, NULL after a failure. */
static hx_status ask(hx_gate *gate, enum statement s, const struct params *p, bool writes, PGresult **out,
                     hx_error *err) {
    struct pq_gate *g = self(gate);
    bool alone = writes && PQtransactionStatus(g->conn) == PQTRANS_IDLE;
    PGresult *r = g->named ? exec_named(g, s, p)
                           : PQexecParams(g->conn, statements[s], p->count, NULL, p->values, p->lengths, p->formats, 1);
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
    add_number(&p, GATE_SCHEMA_VERSION);
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
static hx_status commit(hx_gate *gate, hx_error *err) {
    PGresult *r = PQexec(conn_of(gate), "COMMIT");
    hx_status st = HX_OK;
    if (PQresultStatus(r) != PGRES_COMMAND_OK)
        st = failure(conn_of(gate), r, true, err);
    else if (strcmp(PQcmdStatus(r), "COMMIT") != 0)
        st =
            error_set(err, HX_REFUSED, HX_APPLIED_NO, "25P02", "the transaction had been aborted; nothing was applied");
    PQclear(r);
    return st;
}

static void rollback(hx_gate *gate) {
    enum gate_state s = state(gate);
    if (s == GATE_OPEN || s == GATE_ABORTED) PQclear(PQexec(conn_of(gate), "ROLLBACK"));
}

/* The functions do not tell how a duplicate was settled. Settled rows never change: a later look sees the same. */
static hx_status read_rejected(hx_gate *gate, const hx_gate_key *key, bool *out, hx_error *err) {
    struct params p = params_key(key);
    PGresult *r;
    hx_status st = ask(gate, S_STATE, &p, false, &r, err);
    *out = st == HX_OK && PQntuples(r) == 1 && value_is(r, "rejected");
    PQclear(r);
    return st;
}

static hx_status admit(hx_gate *gate, const hx_gate_key *key, i64 lease_ms, hx_gate_reply *out, hx_error *err) {
    struct params p = params_key(key);
    add_bytes(&p, key->fingerprint);
    add_fence(&p, key->fence);
    add_text(&p, key->owner);
    if (lease_ms) add_number(&p, lease_ms);
    PGresult *r;
    hx_status st = ask(gate, lease_ms ? S_RESERVE : S_CLAIM, &p, true, &r, err);
    if (st != HX_OK) return st;
    out->answer = value_answer(r);
    out->result = value_bytes(r, 0, 1, out->memory);
    out->content_type = value_text(r, 0, 2, out->memory);
    out->first_seen_ms = value_time(r, 0, 3);
    out->attempt = value_int(r, 0, 4);
    PQclear(r);
    return out->answer == HX_GATE_DUPLICATE ? read_rejected(gate, key, &out->rejected, err) : HX_OK;
}

static hx_status settle(hx_gate *gate, const hx_gate_key *key, const hx_gate_outcome *outcome, hx_gate_answer *out,
                        hx_error *err) {
    struct params p = params_key(key);
    add_bytes(&p, outcome->result);
    add_text(&p, outcome->content_type);
    add_text(&p, outcome->effect_id);
    add_fence(&p, key->fence);
    add_text(&p, outcome->rejected ? "rejected" : "done");
    return ask_answer(gate, S_SETTLE, &p, out, err);
}

static hx_status release(hx_gate *gate, const hx_gate_key *key, hx_gate_answer *out, hx_error *err) {
    struct params p = params_key(key);
    add_fence(&p, key->fence);
    return ask_answer(gate, S_RELEASE, &p, out, err);
}

static hx_status step(hx_gate *gate, const hx_gate_key *key, const char *name, hx_bytes result, hx_gate_reply *out,
                      hx_error *err) {
    struct params p = params_key(key);
    add_text(&p, name);
    add_bytes(&p, result);
    add_fence(&p, key->fence);
    PGresult *r;
    hx_status st = ask(gate, S_STEP, &p, true, &r, err);
    if (st != HX_OK) return st;
    out->answer = value_answer(r);
    out->result = value_bytes(r, 0, 1, out->memory);
    PQclear(r);
    return HX_OK;
}

static hx_status stranded(hx_gate *gate, i64 older_than_ms, struct arena *a, struct buf *list, hx_error *err) {
    struct params p = {0};
    add_number(&p, older_than_ms);
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
    add_number(&p, batch);
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
                                          .stranded = stranded,
                                          .sweep = sweep,
                                          .free = pq_free};

hx_gate *hx_gate_pq(PGconn *conn) {
    CHECK(conn);
    struct pq_gate *g = mem_zalloc(sizeof(*g));
    g->gate.driver = &driver;
    g->conn = conn;
    return &g->gate;
}

hx_gate *hx_gate_pq_named(PGconn *conn) {
    hx_gate *gate = hx_gate_pq(conn);
    self(gate)->named = true;
    random_bytes(&self(gate)->name, sizeof(self(gate)->name));
    return gate;
}
