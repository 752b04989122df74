/* gate install, upgrade, status, uninstall.
 *
 * The SQL is embedded (cli/gate_sql.h): migrations in order, the whole of the current version, its removal. Each file is
 * one transaction that takes the schema's lock and checks the version for itself, or one statement that allows no
 * transaction and may be repeated. So nothing here need be atomic over files: an upgrade that was interrupted is simply
 * run again. */
#include <stdio.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "cli/gate_sql.h"

#define FLAG_DSN                                                                                                       \
    { "dsn", "DSN", "the database, URL or keywords; default $HAPAX_DSN, then PGHOST and its kin" }
#define FLAG_DRY_RUN                                                                                                   \
    { "dry-run", NULL, "print the SQL that would be run, change nothing" }

#define FLAG_OWNER                                                                                                     \
    { "owner", "ROLE", "become this role first: it owns the gate, and the functions run with its rights" }

const struct flag flags_gate_install[] = {FLAG_DSN, FLAG_OWNER, FLAG_DRY_RUN, {0}};
const struct flag flags_gate_upgrade[] = {FLAG_DSN, FLAG_OWNER, FLAG_DRY_RUN, {0}};
const struct flag flags_gate_status[] = {FLAG_DSN, {0}};
const struct flag flags_gate_uninstall[] = {
    FLAG_DSN,
    FLAG_OWNER,
    FLAG_DRY_RUN,
    {"yes", NULL, "yes, forget every key: whatever was deduplicated may happen again"},
    {"force", NULL, "even while reservations are in flight, whose outcome is known nowhere else"},
    {0},
};

const char about_gate_install[] =
    "Makes schema hapax with its functions and tables (docs/GATE.md). Safe to repeat: a gate of this version gets its\n"
    "functions again and keeps its keys. An older one is left to `hapax gate upgrade`, a newer one is refused, and so "
    "is a\n"
    "schema hapax of somebody else's. The user, or --owner, needs CREATE on the database, nothing more, and had better "
    "be\n"
    "no superuser.";
const char about_gate_upgrade[] =
    "Runs the migrations above the installed version in order, then replaces the functions. Each step is done wholly\n"
    "or not at all; interrupted, it is run again. A newer gate is refused.";
const char about_gate_status[] = "Exit code 1: it is not installed, or not of this version.";
const char about_gate_uninstall[] = "Without --yes it only says what would be lost. Refused while reservations are in "
                                    "flight, unless --force is given,\n"
                                    "and while anything of yours (a view, a function) uses the gate.";

/* ---- the embedded files */

static const struct gate_file *gate_file(const char *name) {
    const struct gate_file *f = gate_files;
    while (f->name && strcmp(f->name, name) != 0) f++;
    CHECK(f->name);
    return f;
}

/* 0 for a file that is no migration. */
static long migration_number(const struct gate_file *f) {
    return strtol(f->name, NULL, 10);
}

static long newest_version(void) {
    long newest = 0;
    for (const struct gate_file *f = gate_files; f->name; f++)
        if (migration_number(f) > newest) newest = migration_number(f);
    return newest;
}

/* ---- what is there */

/* Reads, whatever the user's search_path has in it. */
static hx_st look(struct pg *pg, const char *sql, const slice *args, size_t count, struct pg_rows **rows,
                  struct errbuf *err) {
    hx_st st = pg_run(pg, "BEGIN; SET LOCAL search_path = pg_catalog, pg_temp", err);
    if (st) return st;
    st = pg_query(pg, sql, args, count, rows, err);
    if (!st) st = pg_run(pg, "ROLLBACK", err);
    return st;
}

/* *version: 0 when there is no gate. */
static hx_st installed_version(struct pg *pg, long *version, struct errbuf *err) {
    struct pg_rows *rows;
    *version = 0;
    hx_st st = look(pg, "SELECT to_regclass('hapax.schema_version') IS NOT NULL", NULL, 0, &rows, err);
    if (st) return st;
    bool there = pg_cell(rows, 0, 0).p[0] == 't';
    pg_rows_free(rows);
    if (!there) return ST_OK;
    st = look(pg, "SELECT coalesce(max(version), 0) FROM hapax.schema_version", NULL, 0, &rows, err);
    if (st) return st;
    *version = strtol(pg_cell(rows, 0, 0).p, NULL, 10);
    pg_rows_free(rows);
    return ST_OK;
}

/* What install or upgrade cannot start from. EXIT_DONE: nothing. */
static int wrong_start(struct cli *cli, bool upgrade, long version) {
    long newest = newest_version();
    struct errbuf err;
    if (version > newest)
        err_set(&err, ST_VERSION, "version %ld is installed, this hapax brings %ld: use a newer hapax", version,
                newest);
    else if (upgrade && !version)
        err_set(&err, ST_NOT_FOUND, "no gate is installed here: `hapax gate install` does that");
    else if (!upgrade && version && version < newest)
        err_set(&err, ST_VERSION, "version %ld is installed: `hapax gate upgrade` brings it to %ld", version, newest);
    else
        return EXIT_DONE;
    return cli_database_failed(cli, version ? ST_VERSION : ST_NOT_FOUND, &err, false);
}

/* ---- changing it */

/* Making or dropping an index while others work: in no transaction. */
static bool stands_alone(const struct gate_file *f) {
    return strstr(f->sql, "INDEX CONCURRENTLY");
}

/* Each file is one transaction; what goes before it is in it, too, and so stays behind on no pooled connection. A file that
 * stands alone has nothing before it: an index belongs to its table's owner whoever makes it, and whoever may become the
 * owner may make it. */
static hx_st apply_file(struct cli *cli, struct pg *pg, const struct gate_file *f, struct errbuf *err) {
    const char *owner = stands_alone(f) ? NULL : args_get(cli, "owner");
    struct buf sql = {0};
    if (owner || args_has(cli, "force")) buf_lit(&sql, "BEGIN;\n");
    if (owner) {
        buf_lit(&sql, "SET LOCAL ROLE ");
        pg_put_name(&sql, slice_str(owner));
        buf_lit(&sql, ";\n");
    }
    if (args_has(cli, "force")) buf_lit(&sql, "SET LOCAL hapax.uninstall = 'force';\n");
    buf_add(&sql, f->sql, strlen(f->sql) + 1);
    hx_st st = ST_OK;
    if (args_has(cli, "dry-run"))
        printf("-- %s\n%s", f->name, sql.p);
    else
        st = pg_run(pg, sql.p, err);
    buf_free(&sql);
    return st ? err_wrap(err, st, "%s", f->name) : ST_OK;
}

static hx_st apply_all(struct cli *cli, struct pg *pg, long version, struct errbuf *err) {
    hx_st st = ST_OK;
    for (const struct gate_file *f = gate_files; f->name && !st && version; f++)
        if (migration_number(f) > version) st = apply_file(cli, pg, f, err);
    return st ? st : apply_file(cli, pg, gate_file("hapax_gate.sql"), err);
}

static int say_installed(struct cli *cli, long before) {
    long now = newest_version();
    if (args_has(cli, "dry-run")) return EXIT_DONE;
    if (cli->json)
        printf("{\"version\":%ld,\"version_before\":%ld}\n", now, before);
    else if (!before)
        printf("gate version %ld installed\n", now);
    else if (before == now)
        printf("gate version %ld was installed; its functions are replaced, its keys kept\n", now);
    else
        printf("gate upgraded from version %ld to %ld\n", before, now);
    return EXIT_DONE;
}

static int bring(struct cli *cli, bool upgrade) {
    int rc;
    struct pg *pg = cli_database(cli, -1, &rc);
    if (!pg) return rc;
    struct errbuf err;
    long version;
    hx_st st = installed_version(pg, &version, &err);
    rc = st ? EXIT_DONE : wrong_start(cli, upgrade, version);
    if (!st && rc == EXIT_DONE) st = apply_all(cli, pg, version, &err);
    pg_close(pg);
    if (st) return cli_database_failed(cli, st, &err, true);
    return rc == EXIT_DONE ? say_installed(cli, version) : rc;
}

int cmd_gate_install(struct cli *cli) {
    return bring(cli, false);
}

int cmd_gate_upgrade(struct cli *cli) {
    return bring(cli, true);
}

/* ---- looking at it */

static const char status_sql[] =
    "SELECT json_build_object('installed', true, 'version', (SELECT max(version) FROM hapax.schema_version),"
    " 'needed', $1::int, 'owner', (SELECT pg_get_userbyid(n.nspowner) FROM pg_namespace n WHERE n.nspname = 'hapax'),"
    " 'owner_is_superuser', (SELECT r.rolsuper FROM pg_namespace n JOIN pg_roles r ON r.oid = n.nspowner"
    "  WHERE n.nspname = 'hapax'), 'stranded', (SELECT count(*) FROM hapax.stranded('2 minutes')),"
    " 'scopes', coalesce((SELECT json_agg(json_build_object('scope', s.scope, 'claims', s.claims, 'duplicates', "
    "s.duplicates,"
    "  'duplicate_ratio', s.duplicate_ratio, 'in_flight', s.in_flight,"
    "  'oldest_in_flight_ms', (extract(epoch FROM s.oldest_in_flight_age) * 1000)::bigint,"
    "  'several_effects', s.keys_with_several_effects, 'conflicts', s.conflicts, 'stale', s.stale, 'unknown', "
    "s.unknown)"
    "  ORDER BY s.scope) FROM hapax.signals s), '[]'))::text";

static void print_status(struct cli *cli, slice json) {
    if (cli->json)
        print_json(hx_bytes_of(json.p, json.n));
    else
        print_page(json);
}

static hx_st show_status(struct cli *cli, struct pg *pg, long version, struct errbuf *err) {
    char needed[24];
    snprintf(needed, sizeof(needed), "%ld", newest_version());
    struct buf b = {0};
    struct pg_rows *rows = NULL;
    hx_st st = ST_OK;
    if (version != newest_version()) {
        buf_printf(&b, "{\"installed\":%s,\"version\":%ld,\"needed\":%s}", version ? "true" : "false", version, needed);
        print_status(cli, buf_slice(&b));
    } else {
        st = look(pg, status_sql, &(slice){needed, strlen(needed)}, 1, &rows, err);
        if (!st) print_status(cli, pg_cell(rows, 0, 0));
    }
    pg_rows_free(rows);
    buf_free(&b);
    return st;
}

int cmd_gate_status(struct cli *cli) {
    int rc;
    struct pg *pg = cli_database(cli, -1, &rc);
    if (!pg) return rc;
    struct errbuf err;
    long version;
    hx_st st = installed_version(pg, &version, &err);
    if (!st) st = show_status(cli, pg, version, &err);
    pg_close(pg);
    if (st) return cli_database_failed(cli, st, &err, false);
    return version == newest_version() ? EXIT_DONE : EXIT_REFUSED;
}

/* ---- removing it */

static const char loss_sql[] = "SELECT json_build_object('keys', count(*), 'in_flight', count(lease_until),"
                               " 'scopes', count(DISTINCT scope))::text FROM hapax.entry";

/* Says what would go, and asks for --yes. */
static hx_st say_loss(struct cli *cli, struct pg *pg, struct errbuf *err) {
    struct pg_rows *rows;
    hx_st st = look(pg, loss_sql, NULL, 0, &rows, err);
    if (st) return st;
    print_status(cli, pg_cell(rows, 0, 0));
    pg_rows_free(rows);
    say("these keys would be forgotten, with their stored results: whatever they kept from happening twice may happen "
        "again. Add --yes to do it.");
    return ST_OK;
}

static hx_st remove_gate(struct cli *cli, struct pg *pg, struct errbuf *err) {
    hx_st st = apply_file(cli, pg, gate_file("uninstall.sql"), err);
    if (!st && !args_has(cli, "dry-run")) puts(cli->json ? "{\"removed\":true}" : "gate removed");
    return st;
}

int cmd_gate_uninstall(struct cli *cli) {
    int rc;
    struct pg *pg = cli_database(cli, -1, &rc);
    if (!pg) return rc;
    struct errbuf err;
    long version;
    hx_st st = installed_version(pg, &version, &err);
    bool asked = args_has(cli, "yes") || args_has(cli, "dry-run");
    rc = asked ? EXIT_DONE : EXIT_REFUSED;
    if (!st && !version) st = err_set(&err, ST_NOT_FOUND, "no gate is installed here");
    if (!st) st = asked ? remove_gate(cli, pg, &err) : say_loss(cli, pg, &err);
    pg_close(pg);
    return st ? cli_database_failed(cli, st, &err, true) : rc;
}
