/* gate reconcile: reservations nobody came back for are looked up by a command of the user's.
 *
 * Taking one over is a reservation like any other (hapax.reserve), committed before the command runs: from then on the
 * row names this reconciler, has a live lease and a fence one above the vanished consumer's. So no transaction is open
 * while the command runs, a second reconciler is told `in_flight`, the vanished consumer, should it wake, is fenced off,
 * and a reconciler that dies leaves one more abandoned reservation for the next. The command is killed before the
 * lease ends. Settling names the attempt: without fences that is all that keeps one which was frozen past its lease from
 * releasing what another has meanwhile taken.
 *
 * A reservation whose own lease still runs is left alone, however old: its consumer may be in the middle of its call. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/json.h"
#include "cli/cli.h"

const struct flag flags_gate_reconcile[] = {
    {"dsn", "DSN", "the database, URL or keywords; default $HAPAX_DSN, then PGHOST and its kin"},
    {"exec", "COMMAND", "the shell command that looks one up (required)"},
    {"scope", "SCOPE", "only reservations of this scope"},
    {"every", "DURATION", "how often to look, default 1m"},
    {"older-than", "DURATION", "how long a reservation must have been left, default 2m"},
    {"timeout", "DURATION", "kill a command that takes longer, default 1m"},
    {"once", NULL, "look once, then exit"},
    {0},
};

const char about_gate_reconcile[] =
    "A consumer that dies between its reservation and its outcome leaves a key whose effect may have happened. The\n"
    "command finds out: HAPAX_SCOPE, HAPAX_KEY, HAPAX_ATTEMPT and HAPAX_OWNER (who reserved it) are in its "
    "environment.\n"
    "Exit code 0: it happened, standard output is committed as the outcome; 101: it did not, the key is released and "
    "new\n"
    "again; anything else, or nothing within --timeout: left, and handed out again after --older-than. 126 and 127\n"
    "(cannot run) stop the reconciler.\n"
    "\n"
    "Any number may run beside each other; one reservation is handed to one command at a time. Exit codes with --once: "
    "1\n"
    "when something was left, 3 when the database could not be reached.";

/* ---- one run's settings and tallies */

struct reconciler {
    struct cli *cli;
    const char *command, *scope;
    i64 older_ms, timeout_ms;
    int stop_fd;
    struct pg *pg;
    struct errbuf err;
    u64 left;
    bool cannot_run;
};

/* A reservation in our hands. Slices into `rows`. */
struct stray {
    slice scope, key, owner, attempt, fence;
    struct pg_rows *rows;
};

enum { LEASE_SLACK_MS = 30000 };

/* ---- the database's side. Whatever schemas the user's search_path has, these statements use none of them. */

/* The fence is read from a snapshot; reserve decides under the row's lock. Whoever changed the row in between has made
 * it in_flight, stale or duplicate for us, or, by releasing it, new. */
static const char take_sql[] =
    "SELECT k.scope, k.key, o.owner, r.attempt, n.fence, r.status FROM hapax.keys k,"
    " LATERAL (SELECT pg_catalog.regexp_replace(coalesce(k.owner, ''), '^reconcile/[0-9a-f]+:', '') AS owner) o,"
    " LATERAL (SELECT CASE WHEN k.fence OPERATOR(pg_catalog.<) 9223372036854775807"
    "  THEN k.fence OPERATOR(pg_catalog.+) 1 ELSE k.fence END AS fence) n,"
    " LATERAL hapax.reserve(k.scope, k.key, fence => n.fence, owner => pg_catalog.concat($3::pg_catalog.text, o.owner),"
    "  lease => $4::pg_catalog.interval) r"
    " WHERE k.scope OPERATOR(pg_catalog.=) $1 AND k.key OPERATOR(pg_catalog.=) $2"
    " AND k.lease_until OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp()";

/* Those whose lease still runs would only be in the way. */
static const char list_sql[] =
    "SELECT s.scope, s.key FROM hapax.stranded($1::pg_catalog.interval) s"
    " JOIN hapax.keys k ON k.scope OPERATOR(pg_catalog.=) s.scope AND k.key OPERATOR(pg_catalog.=) s.key"
    " WHERE (s.scope OPERATOR(pg_catalog.=) $2::pg_catalog.text OR $2 IS NULL)"
    " AND k.lease_until OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp() ORDER BY s.since LIMIT 10000";

static const char commit_sql[] = "SELECT hapax.commit_outcome($1, $2, $3::pg_catalog.bytea, $4,"
                                 " fence => $5::pg_catalog.int8, attempt => $6::pg_catalog.int4)";
static const char release_sql[] = "SELECT hapax.release($1, $2, $3::pg_catalog.int8, $4::pg_catalog.int4)";

static void duration_text(char *out, size_t size, i64 ms) {
    snprintf(out, size, "%lld ms", (long long)ms);
}

/* Another has it (HX001), or it was ended without us (HX002). */
static bool is_lost(const struct pg *pg) {
    return strcmp(pg_sqlstate(pg), "HX001") == 0 || strcmp(pg_sqlstate(pg), "HX002") == 0;
}

/* What the row became: "committed", "released", "duplicate"; "lost" when it is ours no longer. */
static hx_st settle(struct reconciler *r, const struct stray *s, bool happened, slice output, const char **became) {
    struct buf hex = {0};
    buf_lit(&hex, "\\x");
    buf_hex(&hex, output);
    slice type = utf8_valid(output) ? SL("text/plain") : SL("application/octet-stream");
    slice commit_args[] = {s->scope, s->key, buf_slice(&hex), type, s->fence, s->attempt};
    slice release_args[] = {s->scope, s->key, s->fence, s->attempt};
    struct pg_rows *rows = NULL;
    hx_st st = happened ? pg_query(r->pg, commit_sql, commit_args, 6, &rows, &r->err)
                        : pg_query(r->pg, release_sql, release_args, 4, &rows, &r->err);
    buf_free(&hex);
    *became = "lost";
    if (st) return is_lost(r->pg) ? ST_OK : st;
    *became = slice_eq(pg_cell(rows, 0, 0), SL("duplicate")) ? "duplicate" : happened ? "committed" : "released";
    pg_rows_free(rows);
    return ST_OK;
}

/* false: somebody else has it, or it is settled or free meanwhile, or trouble (*st). */
static bool take(struct reconciler *r, slice scope, slice key, struct stray *s, hx_st *st) {
    char lease[32], name[64];
    u64 nonce; /* no other reconciler's name is this one, or it would be taken for us */
    random_bytes(&nonce, sizeof(nonce));
    *s = (struct stray){0};
    snprintf(name, sizeof(name), "reconcile/%016llx:", (unsigned long long)nonce);
    duration_text(lease, sizeof(lease), r->timeout_ms + LEASE_SLACK_MS);
    slice args[] = {scope, key, slice_str(name), slice_str(lease)};
    *st = pg_query(r->pg, take_sql, args, 4, &s->rows, &r->err);
    if (*st) return false;
    slice status = {0}, *fields[] = {&s->scope, &s->key, &s->owner, &s->attempt, &s->fence, &status};
    for (int i = 0; i < 6 && pg_row_count(s->rows); i++) *fields[i] = pg_cell(s->rows, 0, i);
    if (slice_eq(status, SL("unknown"))) return true;
    const char *became;
    if (slice_eq(status, SL("new"))) *st = settle(r, s, false, SL(""), &became); /* reserved for nobody: give it back */
    pg_rows_free(s->rows);
    return false;
}

/* ---- one reservation */

static void tell(struct reconciler *r, const struct stray *s, const char *became, int code) {
    struct buf b = {0};
    if (r->cli->json) {
        buf_char(&b, '{');
        json_put_member(&b, "scope", s->scope);
        json_put_member(&b, "key", s->key);
        json_put_member(&b, "owner", s->owner);
        json_put_member_raw(&b, "attempt", s->attempt);
        json_put_member(&b, "outcome", slice_str(became));
        json_put_member_i64(&b, "exit_code", code);
        buf_lit(&b, "}\n");
    } else {
        print_clean(&b, s->scope, false);
        buf_lit(&b, "  ");
        print_clean(&b, s->key, false);
        buf_printf(&b, "  %s", became);
        if (code && code != CHILD_ABSENT) buf_printf(&b, " (exit code %d)", code);
        buf_char(&b, '\n');
    }
    print_buf(&b);
    print_flush();
}

static hx_st reconcile_one(struct reconciler *r, const struct stray *s) {
    const struct child_var vars[] = {{"HAPAX_SCOPE", s->scope.p},
                                     {"HAPAX_KEY", s->key.p},
                                     {"HAPAX_ATTEMPT", s->attempt.p},
                                     {"HAPAX_OWNER", s->owner.p}};
    struct child c = {.command = r->command,
                      .vars = vars,
                      .var_count = sizeof(vars) / sizeof(vars[0]),
                      .timeout_ms = r->timeout_ms,
                      .stop_fd = -1};
    int code = child_run(&c);
    const char *became = "left";
    hx_st st = ST_OK;
    buf_grow(&c.output, 1);
    if (c.cut && code == 0)
        say("%s: the command's output is larger than %d bytes: left", s->key.p, CHILD_OUTPUT_MAX);
    else if (!c.ended && (code == 0 || code == CHILD_ABSENT))
        st = settle(r, s, code == 0, buf_slice(&c.output), &became);
    r->cannot_run = code == CHILD_NOT_EXECUTABLE || code == CHILD_NO_COMMAND;
    if (strcmp(became, "left") == 0) r->left++;
    if (!st) tell(r, s, became, code);
    child_free(&c);
    return st;
}

/* ---- rounds */

static hx_st one_round(void *ctx, struct pg *pg) {
    struct reconciler *r = ctx;
    char older[32];
    duration_text(older, sizeof(older), r->older_ms);
    slice args[] = {slice_str(older), slice_str(r->scope)};
    struct pg_rows *list = NULL;
    r->pg = pg;
    hx_st st = pg_query(pg, list_sql, args, 2, &list, &r->err);
    for (size_t i = 0; !st && i < pg_row_count(list) && !r->cannot_run && !cli_stopped(r->stop_fd, 0); i++) {
        struct stray s;
        if (take(r, pg_cell(list, i, 0), pg_cell(list, i, 1), &s, &st)) {
            st = reconcile_one(r, &s);
            pg_rows_free(s.rows);
        }
        /* A row that cannot be worked with must not stand in the way of those behind it. */
        if (st != ST_INVALID) continue;
        say("%s: %s: left", pg_cell(list, i, 1).p, r->err.text);
        r->left++;
        st = ST_OK;
    }
    pg_rows_free(list);
    return st;
}

static bool is_enough(void *ctx) {
    const struct reconciler *r = ctx;
    return r->cannot_run;
}

int cmd_gate_reconcile(struct cli *cli) {
    struct reconciler r = {.cli = cli,
                           .command = args_get(cli, "exec"),
                           .scope = args_get(cli, "scope"),
                           .older_ms = 120000,
                           .timeout_ms = 60000};
    i64 every_ms = 60000;
    if (!r.command) return args_wrong(cli, "--exec is missing: the command that looks an effect up");
    if (!args_duration(cli, "every", &every_ms) || !args_duration(cli, "older-than", &r.older_ms) ||
        !args_duration(cli, "timeout", &r.timeout_ms))
        return EXIT_USAGE;
    if (every_ms < 1 || every_ms > INT32_MAX || r.timeout_ms < 1)
        return args_wrong(cli, "--every and --timeout must be longer than nothing, --every at most 24d");
    struct cli_rounds rounds = {.cli = cli,
                                .every_ms = args_has(cli, "once") ? 0 : every_ms,
                                .round = one_round,
                                .enough = is_enough,
                                .ctx = &r,
                                .err = &r.err};
    r.stop_fd = rounds.stop_fd = cli_stop_fd();
    int rc = cli_database_rounds(&rounds);
    close(r.stop_fd);
    if (r.cannot_run) say("%s: cannot be run", r.command);
    return r.cannot_run || (rc == EXIT_DONE && args_has(cli, "once") && r.left) ? EXIT_REFUSED : rc;
}
