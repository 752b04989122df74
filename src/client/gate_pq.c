/* The gate on PostgreSQL: each call is one of the SQL functions of sql/postgres/hapax_gate.sql. No named statements, no
 * session state: works behind a pooler in transaction mode. Results come in binary form. */
#include <libpq-fe.h>
#include <stdio.h>

#include "client/gate_priv.h"

struct pq_gate {
    hx_gate gate;
    PGconn *conn;
};

static PGconn *conn_of(hx_gate *gate) {
    return ((struct pq_gate *)(void *)gate)->conn;
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

/* By the longest match; a class is its first two characters. */
static const struct {
    const char *state;
    hx_status status;
} by_state[] = {
    {"HX001", HX_FENCED},      {"HX002", HX_NOT_FOUND},   {"HX003", HX_INVALID},     {"HX004", HX_CONFLICT},
    {"HX005", HX_SETTLED},     {"HX006", HX_UNAVAILABLE}, {"40", HX_BUSY},           {"55P03", HX_BUSY},
    {"57014", HX_BUSY},        {"53", HX_BUSY},           {"42501", HX_UNAVAILABLE}, {"42883", HX_UNAVAILABLE},
    {"42P01", HX_UNAVAILABLE}, {"3F000", HX_UNAVAILABLE},
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

/* One statement that returns rows. *out is the caller's to clear, NULL after a failure. */
static hx_status ask(hx_gate *gate, const char *sql, const struct params *p, bool writes, PGresult **out,
                     hx_error *err) {
    PGconn *conn = conn_of(gate);
    bool alone = writes && PQtransactionStatus(conn) == PQTRANS_IDLE;
    PGresult *r = PQexecParams(conn, sql, p->count, NULL, p->values, p->lengths, p->formats, 1);
    *out = NULL;
    if (PQresultStatus(r) == PGRES_TUPLES_OK) {
        *out = r;
        return HX_OK;
    }
    hx_status st = failure(conn, r, alone, err);
    PQclear(r);
    return st;
}

static hx_status ask_answer(hx_gate *gate, const char *sql, const struct params *p, hx_gate_answer *out,
                            hx_error *err) {
    PGresult *r;
    hx_status st = ask(gate, sql, p, true, &r, err);
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
    hx_status st = ask(gate, "SELECT hapax.require_version($1::int)", &p, false, &r, err);
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
    hx_status st = ask(gate, "SELECT state::text FROM hapax.entry WHERE scope = $1 AND key = $2", &p, false, &r, err);
    *out = st == HX_OK && PQntuples(r) == 1 && value_is(r, "rejected");
    PQclear(r);
    return st;
}

#define REPLY_COLUMNS "status, result, content_type, (extract(epoch FROM first_seen) * 1000)::bigint, attempt"

static hx_status admit(hx_gate *gate, const hx_gate_key *key, i64 lease_ms, hx_gate_reply *out, hx_error *err) {
    struct params p = params_key(key);
    add_bytes(&p, key->fingerprint);
    add_fence(&p, key->fence);
    add_text(&p, key->owner);
    if (lease_ms) add_number(&p, lease_ms);
    const char *sql = lease_ms ? "SELECT " REPLY_COLUMNS
                                 " FROM hapax.reserve($1, $2, $3, $4, $5, $6::bigint * interval '1 ms')"
                               : "SELECT " REPLY_COLUMNS " FROM hapax.claim($1, $2, $3, $4, $5)";
    PGresult *r;
    hx_status st = ask(gate, sql, &p, true, &r, err);
    if (st != HX_OK) return st;
    out->answer = value_answer(r);
    out->result = value_bytes(r, 0, 1, out->memory);
    out->content_type = value_text(r, 0, 2, out->memory);
    out->first_seen_ms = value_i64(r, 0, 3);
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
    return ask_answer(gate, "SELECT hapax.commit_outcome($1, $2, $3, $4, $5, $6, $7)", &p, out, err);
}

static hx_status release(hx_gate *gate, const hx_gate_key *key, hx_gate_answer *out, hx_error *err) {
    struct params p = params_key(key);
    add_fence(&p, key->fence);
    return ask_answer(gate, "SELECT hapax.release($1, $2, $3)", &p, out, err);
}

static hx_status step(hx_gate *gate, const hx_gate_key *key, const char *name, hx_bytes result, hx_gate_reply *out,
                      hx_error *err) {
    struct params p = params_key(key);
    add_text(&p, name);
    add_bytes(&p, result);
    add_fence(&p, key->fence);
    PGresult *r;
    hx_status st =
        ask(gate, "SELECT status, result FROM hapax.step($1, $2, $3, result => $4, fence => $5)", &p, true, &r, err);
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
    hx_status st = ask(gate,
                       "SELECT s.scope, s.key, s.owner, s.attempt, (extract(epoch FROM s.since) * 1000)::bigint,"
                       " coalesce(e.fence, 0) FROM hapax.stranded($1::bigint * interval '1 ms') s"
                       " JOIN hapax.entry e ON e.scope = s.scope AND e.key = s.key ORDER BY s.since",
                       &p, false, &r, err);
    for (int row = 0; row < PQntuples(r); row++) {
        hx_gate_orphan o = {.scope = value_text(r, row, 0, a),
                            .key = value_text(r, row, 1, a),
                            .owner = value_text(r, row, 2, a),
                            .attempt = value_int(r, row, 3),
                            .since_ms = value_i64(r, row, 4),
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
    hx_status st = ask(gate, "SELECT hapax.sweep($1::int)", &p, true, &r, err);
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
