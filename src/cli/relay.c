#include "relay/relay.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "base/json.h"
#include "cli/cli.h"
#include "config/config.h"

#define FLAG_DSN                                                                                                       \
    { "dsn", "DSN", "the database, URL or keywords; default $HAPAX_DSN, then PGHOST and its kin" }
#define FLAG_TABLE                                                                                                     \
    { "table", "TABLE", "the outbox, TABLE or SCHEMA.TABLE; default outbox" }
#define FLAG_COLUMN                                                                                                    \
    {                                                                                                                  \
        "column", "WHAT=NAME",                                                                                         \
            "WHAT of id, aggregatetype, aggregateid, type, payload, refused, order, created, sent; repeated"           \
    }

const struct flag flags_relay[] = {
    FLAG_DSN,
    {"queue", "QUEUE", "where the rows go (required)"},
    FLAG_TABLE,
    FLAG_COLUMN,
    {"group", NULL, "keep the order of each aggregateid, which becomes the message's group; needs an order column"},
    {"content-type", "TYPE",
     "default: application/json, text/plain or application/octet-stream, by the payload's type"},
    {"workers", "N", "batches under way at once, default 2"},
    {"batch", "N", "most rows in one, default 1000"},
    {"poll", "DURATION", "how soon to look again when there was nothing, default 100ms"},
    {"timeout", "DURATION",
     "how long the broker may take for a batch, default 5s; the database may take three times as long"},
    {"report", "DURATION", "a line about progress and lag this often, default 10s; 0 for none"},
    {"once", NULL, "stop when nothing is left to send"},
    {0},
};
const struct flag flags_relay_init[] = {
    FLAG_DSN, FLAG_TABLE, FLAG_COLUMN, {"dry-run", NULL, "print the SQL that would be run, change nothing"}, {0}};
const struct flag flags_relay_status[] = {FLAG_DSN, FLAG_TABLE, FLAG_COLUMN, {0}};

const char about_relay[] =
    "Your transactions insert rows into the outbox; what commits is sent, with the row's id as the key, and the row "
    "is\n"
    "deleted once the broker has it on disk. Any number of relays may run beside each other, and each may die at any\n"
    "moment: what is sent twice is a duplicate to the broker. A row it will never take (its key was used with another\n"
    "payload, it is too large) or that cannot be read gets the reason into column refused and is passed over; clear "
    "the\n"
    "column to try again. The queue must know a row that comes again: one with a key of its own or at_least_once is "
    "refused.\n"
    "\n"
    "--column WHAT=NAME departs from the default names (order: seq, created: created_at), --column WHAT= says there "
    "is\n"
    "none; with --column sent=NAME rows are marked with the time instead of being deleted. docs/RELAY.md has the "
    "rest.\n"
    "Exit code 3 with --once: something could not be reached, run it again.";
const char about_relay_init[] =
    "Makes the table if there is none, under Debezium's column names; to one of yours it adds the column refused.";
const char about_relay_status[] =
    "Rows pending (counted up to 100000), the age of the oldest, and rows the broker refused for good.";

/* ---- arguments */

static int column_of(slice what) {
    for (int i = 0; i < RELAY_COLUMN_COUNT; i++)
        if (slice_eq(what, slice_str(relay_column_names[i]))) return i;
    return -1;
}

static bool table_read(struct cli *cli, struct relay_table *t) {
    t->name = args_get(cli, "table");
    const char *given;
    for (size_t at = 0; (given = args_next(cli, "column", &at));) {
        slice what, name;
        int i = slice_cut(slice_str(given), '=', &what, &name) ? column_of(what) : -1;
        if (i < 0)
            return args_wrong(cli, "--column \"%s\" is not WHAT=NAME with a WHAT of `hapax help relay`", given), false;
        t->columns[i] = name.p;
    }
    return true;
}

/* ---- running */

static void on_trouble(void *ctx, const char *text) {
    (void)ctx;
    say("%s", text);
}

static void put_lag_json(struct buf *b, const struct relay_lag *lag) {
    json_put_member_i64(b, "pending", lag->pending);
    if (lag->oldest_ms < 0)
        json_put_member_raw(b, "oldest_ms", SL("null"));
    else
        json_put_member_i64(b, "oldest_ms", lag->oldest_ms);
    json_put_member_i64(b, "refused_rows", lag->refused);
}

static void put_lag_text(struct buf *b, const struct relay_lag *lag) {
    buf_printf(b, "pending %" PRId64 "%s", lag->pending, lag->pending >= RELAY_PENDING_MAX ? " or more" : "");
    if (lag->oldest_ms >= 0) {
        buf_lit(b, ", oldest ");
        buf_duration(b, lag->oldest_ms);
    }
    buf_printf(b, ", refused rows %" PRId64, lag->refused);
}

static void on_report(void *ctx, const struct relay_report *r) {
    struct cli *cli = ctx;
    struct buf b = {0};
    if (cli->json) {
        buf_char(&b, '{');
        json_put_member_i64(&b, "sent", r->sent);
        json_put_member_i64(&b, "duplicates", r->duplicates);
        json_put_member_i64(&b, "refused", r->refused);
        json_put_member_i64(&b, "per_s", r->per_s);
        if (r->lag_known) put_lag_json(&b, &r->lag);
        buf_char(&b, '}');
    } else {
        buf_printf(&b, "sent %" PRId64 " (%" PRId64 "/s), duplicates %" PRId64 ", ", r->sent, r->per_s, r->duplicates);
        if (r->lag_known)
            put_lag_text(&b, &r->lag);
        else
            buf_lit(&b, "lag not known");
    }
    buf_char(&b, '\n');
    print_buf(&b);
    print_flush();
}

static bool options_read(struct cli *cli, struct relay_options *o) {
    i64 workers = 0, batch = 0;
    o->report_ms = 10000;
    if (!table_read(cli, &o->table) || !args_number(cli, "workers", 1, 64, &workers) ||
        !args_number(cli, "batch", 1, 10000, &batch) || !args_duration(cli, "poll", &o->poll_ms) ||
        !args_duration(cli, "timeout", &o->timeout_ms) || !args_duration(cli, "report", &o->report_ms))
        return false;
    if (o->poll_ms > INT32_MAX || o->timeout_ms > INT32_MAX / 4 || o->report_ms > INT32_MAX)
        return args_wrong(cli, "--poll, --timeout and --report are days at most"), false;
    o->workers = (int)workers;
    o->batch = (int)batch;
    return true;
}

int cmd_relay(struct cli *cli) {
    struct relay_options o = {.broker = *cli_connect(cli),
                              .queue = args_get(cli, "queue"),
                              .grouped = args_has(cli, "group"),
                              .content_type = args_get(cli, "content-type"),
                              .once = args_has(cli, "once"),
                              .report = on_report,
                              .trouble = on_trouble,
                              .ctx = cli};
    if (!o.queue) return args_wrong(cli, "--queue is missing: where the rows go");
    struct errbuf err = {0};
    if (!config_queue_name_ok(slice_str(o.queue), &err)) return args_wrong(cli, "--queue: %s", err.text);
    if (!options_read(cli, &o)) return EXIT_USAGE;
    o.dsn = cli_dsn(cli);
    o.stop_fd = cli_stop_fd();
    hx_st st = relay_run(&o, &err);
    close(o.stop_fd);
    if (st == ST_INVALID) return args_wrong(cli, "%s", err.text);
    return st ? cli_database_failed(cli, st, &err, false) : EXIT_DONE;
}

/* ---- looking and preparing */

static hx_st print_lag(struct cli *cli, struct pg *pg, const struct relay_table *t, struct errbuf *err) {
    struct relay_lag lag;
    hx_st st = relay_lag_read(pg, t, &lag, err);
    if (st) return st;
    struct buf b = {0};
    if (cli->json) {
        buf_char(&b, '{');
        put_lag_json(&b, &lag);
        buf_char(&b, '}');
    } else {
        put_lag_text(&b, &lag);
    }
    buf_char(&b, '\n');
    print_buf(&b);
    return ST_OK;
}

static hx_st init_table(struct cli *cli, struct pg *pg, const struct relay_table *t, struct errbuf *err) {
    struct buf sql = {0};
    hx_st st = relay_init_sql(pg, t, &sql, err);
    bool dry = args_has(cli, "dry-run"), changes = sql.len > 0;
    buf_char(&sql, '\0');
    if (!st && dry) fputs(sql.p, stdout);
    if (!st && !dry && changes) st = pg_run(pg, sql.p, err);
    if (!st && !dry && cli->json) printf("{\"changed\":%s}\n", changes ? "true" : "false");
    if (!st && !dry && !cli->json) puts(changes ? "the outbox is ready" : "the outbox was ready");
    buf_free(&sql);
    return st;
}

static int with_table(struct cli *cli,
                      hx_st (*act)(struct cli *, struct pg *, const struct relay_table *, struct errbuf *),
                      bool changes) {
    struct relay_table table = {0};
    int rc;
    if (!table_read(cli, &table)) return EXIT_USAGE;
    struct pg *pg = cli_database(cli, -1, &rc);
    if (!pg) return rc;
    struct errbuf err;
    hx_st st = act(cli, pg, &table, &err);
    pg_close(pg);
    return st ? cli_database_failed(cli, st, &err, changes) : EXIT_DONE;
}

int cmd_relay_init(struct cli *cli) {
    return with_table(cli, init_table, true);
}

int cmd_relay_status(struct cli *cli) {
    return with_table(cli, print_lag, false);
}
