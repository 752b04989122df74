#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/cli.h"

/* From --dsn, HAPAX_DSN, or neither: then libpq's own environment. On the command line everybody on the machine can read
 * a password: it is blanked as soon as it is copied. */
const char *cli_dsn(struct cli *cli) {
    const char *given = args_get(cli, "dsn");
    if (cli->dsn) return cli->dsn;
    if (!given) return getenv("HAPAX_DSN");
    size_t n = strlen(given);
    cli->dsn = mem_alloc(n + 1);
    memcpy(cli->dsn, given, n + 1);
    cli_blank(given);
    return cli->dsn;
}

int cli_database_failed(struct cli *cli, hx_st st, const struct errbuf *err, bool connected) {
    static const struct {
        hx_st st;
        const char *code;
    } codes[] = {{ST_CLOSED, "database_unreachable"}, {ST_TIMEOUT, "stopped"},        {ST_IO, "not_all_sent"},
                 {ST_DENIED, "rights_missing"},       {ST_VERSION, "schema_version"}, {ST_NOT_FOUND, "not_installed"}};
    hx_error e = {.status = HX_REFUSED, .code = "database_refused"};
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++)
        if (codes[i].st == st) snprintf(e.code, sizeof(e.code), "%s", codes[i].code);
    snprintf(e.detail, sizeof(e.detail), "%s", err->text);
    bool lost = st == ST_CLOSED || st == ST_TIMEOUT || st == ST_IO;
    e.retryable = lost;
    if (lost && connected) e.applied = HX_APPLIED_UNKNOWN;
    cli_failed(cli, &e, (hx_bytes){0});
    return lost ? EXIT_UNREACHABLE : EXIT_REFUSED;
}

struct pg *cli_database(struct cli *cli, int stop_fd, int *rc) {
    struct pg *pg;
    struct errbuf err;
    hx_st st = pg_open(&(struct pg_options){.dsn = cli_dsn(cli), .stop_fd = stop_fd}, &pg, &err);
    if (st == ST_OK) return pg;
    *rc = st == ST_INVALID ? args_wrong(cli, "%s", err.text) : cli_database_failed(cli, st, &err, false);
    return NULL;
}

/* ---- again and again */

bool cli_stopped(int stop_fd, i64 wait_ms) {
    struct pollfd p = {.fd = stop_fd, .events = POLLIN};
    return poll(&p, 1, (int)wait_ms) > 0;
}

/* Long enough for what waits for a lock or drops a large batch. */
enum { SILENCE_MS = 300000 };

static struct pg_options rounds_options(const struct cli_rounds *r) {
    return (struct pg_options){
        .dsn = cli_dsn(r->cli), .stop_fd = r->stop_fd, .silence_ms = SILENCE_MS, .writable = true};
}

/* *midway: the connection was lost after it had been used. */
static hx_st one_round(const struct cli_rounds *r, struct pg **pg, bool *midway) {
    struct pg_options o = rounds_options(r);
    hx_st st = *pg ? ST_OK : pg_open(&o, pg, r->err);
    *midway = *pg;
    if (!st) st = r->round(r->ctx, *pg);
    if (st && !pg_usable(*pg)) {
        pg_close(*pg);
        *pg = NULL;
    }
    return st;
}

static int rounds(const struct cli_rounds *r, struct pg **pg) {
    for (;;) {
        bool midway;
        hx_st st = one_round(r, pg, &midway);
        if (st && cli_stopped(r->stop_fd, 0)) return EXIT_DONE;
        bool passes = st == ST_CLOSED || st == ST_INVALID;
        if (st && (!r->every_ms || !passes)) return cli_database_failed(r->cli, st, r->err, midway);
        if (st) say("%s", r->err->text);
        if (!r->every_ms || (r->enough && r->enough(r->ctx))) return EXIT_DONE;
        if (cli_stopped(r->stop_fd, r->every_ms)) return EXIT_DONE;
    }
}

int cli_database_rounds(const struct cli_rounds *r) {
    struct pg *pg = NULL;
    struct pg_options o = rounds_options(r);
    hx_st st = pg_open(&o, &pg, r->err); /* what cannot be reached at the start is told, not waited for */
    if (st == ST_INVALID) return args_wrong(r->cli, "%s", r->err->text);
    if (st) return cli_database_failed(r->cli, st, r->err, false);
    int rc = rounds(r, &pg);
    pg_close(pg);
    return rc;
}
