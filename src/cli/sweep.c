/* gate sweep: hapax.sweep() run by somebody. A key past its window is remembered until a sweep comes by, so nothing is
 * wrong while nobody does; the tables only grow. */
#include <stdio.h>
#include <unistd.h>

#include "cli/cli.h"

const struct flag flags_gate_sweep[] = {
    {"dsn", "DSN", "the database, URL or keywords; default $HAPAX_DSN, then PGHOST and its kin"},
    {"every", "DURATION", "again and again, this often; without it once"},
    {"batch", "N", "keys dropped in one transaction, default 10000; more, up to sixteen times as many, while behind"},
    {0},
};

const char about_gate_sweep[] =
    "Windows are in table hapax.scope (scope, keep); a scope without one keeps its keys for ever. Keys past their "
    "window\n"
    "are dropped, oldest first, and the counts behind hapax.signals are folded. Any number may run beside each other.\n"
    "The user needs EXECUTE on hapax.sweep. With --every a database that is away is waited for.";

enum { BATCH = 10000, BATCH_GROWTH = 16 };

struct sweeper {
    struct cli *cli;
    i64 batch;
    int stop_fd;
    struct errbuf err;
};

/* Dropped rows stay in the index's way while somebody elsewhere holds an old snapshot, and each transaction passes over all
 * of them again: fewer and larger ones, while there is more to do than fits one. */
static hx_st one_round(void *ctx, struct pg *pg) {
    struct sweeper *s = ctx;
    hx_st st = ST_OK;
    i64 all = 0, dropped = s->batch;
    for (i64 batch = s->batch; !st && dropped == batch && !cli_stopped(s->stop_fd, 0);) {
        char text[24];
        if (all) batch = batch * 2 > s->batch * BATCH_GROWTH ? batch : batch * 2;
        snprintf(text, sizeof(text), "%lld", (long long)batch);
        struct pg_rows *rows;
        st = pg_query(pg, "SELECT hapax.sweep($1::pg_catalog.int4)", &(slice){text, strlen(text)}, 1, &rows, &s->err);
        if (st) break;
        u64 n = 0;
        slice_u64(pg_cell(rows, 0, 0), &n);
        pg_rows_free(rows);
        dropped = (i64)n;
        all += dropped;
    }
    if (all || (!st && !args_has(s->cli, "every"))) {
        if (s->cli->json)
            printf("{\"dropped\":%lld}\n", (long long)all);
        else
            printf("dropped %lld key%s\n", (long long)all, text_plural((u64)all));
        print_flush();
    }
    return st;
}

int cmd_gate_sweep(struct cli *cli) {
    struct sweeper s = {.cli = cli, .batch = BATCH};
    i64 every_ms = 0;
    if (!args_duration(cli, "every", &every_ms) || !args_number(cli, "batch", 1, 10000000, &s.batch)) return EXIT_USAGE;
    if (args_has(cli, "every") && (every_ms < 1 || every_ms > INT32_MAX))
        return args_wrong(cli, "--every must be longer than nothing and at most 24d");
    struct cli_rounds rounds = {.cli = cli, .every_ms = every_ms, .round = one_round, .ctx = &s, .err = &s.err};
    s.stop_fd = rounds.stop_fd = cli_stop_fd();
    int rc = cli_database_rounds(&rounds);
    close(s.stop_fd);
    return rc;
}
