/* Payment capture: reserve (in_flight), call the gateway, write the ledger and commit the outcome. The queue delivers, the
 * gate in PostgreSQL decides, the gateway is asked first when an attempt was cut short.
 *
 *   cc capture.c -o capture $(pkg-config --cflags --libs hapax-pq libpq)
 *   ./capture QUEUE [--die]      captures what is in the queue, then ends; --die: is killed right after the first charge
 *
 * Needs the SQL gate, and: CREATE TABLE ledger (payment text, cents bigint), CREATE TABLE gateway (id serial, key text,
 * cents bigint). The second stands for the payment provider: it lives on its own connection, commits at once, and does
 * not mind being charged twice for the same key; all the care is on this side. */
#include <hapax/gate.h>
#include <libpq-fe.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct capture {
    PGconn *db, *gateway;
    hx_gate *gate;
    bool die;
};

/* The first value of the answer, or NULL. The caller clears *out. */
static const char *ask(PGconn *conn, const char *sql, const hx_message *m, PGresult **out) {
    char cents[32];
    snprintf(cents, sizeof(cents), "%.*s", (int)m->payload.size, (const char *)m->payload.data);
    const char *values[] = {m->effect_key, cents};
    int n = strstr(sql, "$2") ? 2 : 1;
    *out = PQexecParams(conn, sql, n, NULL, values, NULL, NULL, 0);
    return PQntuples(*out) ? PQgetvalue(*out, 0, 0) : NULL;
}

static void remember(hx_message *m, const char *charge) {
    hx_message_set_result(m, hx_str(charge), "text/plain");
    hx_message_set_effect_id(m, charge);
}

/* After the reservation is committed: the call to the world. The effect key goes with it. */
static hx_verdict charge(void *ctx, hx_message *m) {
    struct capture *c = ctx;
    PGresult *r;
    const char *id = ask(c->gateway, "INSERT INTO gateway (key, cents) VALUES ($1, $2) RETURNING 'ch_' || id", m, &r);
    if (c->die) kill(getpid(), SIGKILL); /* charged, and nobody knows */
    if (id) remember(m, id);
    PQclear(r);
    return id ? HX_DONE : HX_FAIL_UNKNOWN;
}

/* An earlier attempt was cut short: has the gateway heard of it? */
static hx_verdict look_up(void *ctx, hx_message *m) {
    struct capture *c = ctx;
    PGresult *r;
    const char *id = ask(c->gateway, "SELECT 'ch_' || id FROM gateway WHERE key = $1", m, &r);
    bool answered = PQresultStatus(r) == PGRES_TUPLES_OK;
    if (id) {
        printf("%s: found at the gateway, %s\n", m->key, id);
        remember(m, id);
    }
    PQclear(r);
    return id ? HX_DONE : answered ? HX_FAIL_ABSENT : HX_FAIL_UNKNOWN;
}

/* In the transaction that settles the key. */
static hx_verdict write_ledger(void *ctx, hx_message *m) {
    struct capture *c = ctx;
    PGresult *r;
    ask(c->db, "INSERT INTO ledger VALUES ($1, $2)", m, &r);
    bool written = PQresultStatus(r) == PGRES_COMMAND_OK;
    PQclear(r);
    return written ? HX_DONE : HX_FAIL_TRANSIENT;
}

static hx_gate *gate(void *ctx, int worker, hx_error *err) {
    struct capture *c = ctx;
    (void)worker, (void)err;
    if (PQstatus(c->db) != CONNECTION_OK) PQreset(c->db);
    return c->gate;
}

static void trouble(void *ctx, hx_message *m, const hx_error *err) {
    (void)ctx;
    fprintf(stderr, "%s: %s\n", m ? m->key : "poll", err->detail);
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: capture QUEUE [--die]\n");
        return 2;
    }
    struct capture c = {.db = PQconnectdb(""), .gateway = PQconnectdb(""), .die = argc > 2};
    if (PQstatus(c.db) != CONNECTION_OK || PQstatus(c.gateway) != CONNECTION_OK) {
        fprintf(stderr, "capture: %s", PQerrorMessage(c.db));
        return 1;
    }
    c.gate = hx_gate_pq(c.db);
    hx_error err;
    hx_client *client;
    hx_consumer *consumer;
    hx_options options = {.url = getenv("HAPAX_URL"),
                          .api_token_file = getenv("HAPAX_API_TOKEN_FILE"),
                          .ca_file = getenv("HAPAX_CACERT"),
                          .patient = true};
    hx_consume_gate behind = {.gate = gate, .effect = charge, .lookup = look_up};
    hx_consume_options consume = {.queue = argv[1],
                                  .handler = write_ledger,
                                  .gate = &behind,
                                  .ctx = &c,
                                  .on_trouble = trouble,
                                  .lease_ms = 2000,
                                  .idle_ms = 4000};
    if (hx_open(&options, &client, &err) != HX_OK || hx_consume(client, &consume, &consumer, &err) != HX_OK) {
        fprintf(stderr, "capture: %s\n", err.detail);
        return 1;
    }
    hx_consumer_wait(consumer, -1);
    hx_consumer_close(consumer);
    hx_close(client);
    hx_gate_free(c.gate);
    PQfinish(c.db);
    PQfinish(c.gateway);
    return 0;
}
