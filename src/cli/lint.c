/* A config file looked at before it can hurt: hapax lint, hapax queues explain. */
#include <stdio.h>
#include <unistd.h>

#include "base/json.h"
#include "cli/cli.h"
#include "cli/types.h"
#include "config/lint.h"
#include "config/tree.h"

const struct flag flags_lint[] = {
    {"format", "FORMAT", "text (default) or json"},
    {"explain", "CODE", "say what a rule or a config key is about"},
    {0},
};
const char about_lint[] =
    "Checks a config file: errors that keep hapaxd from starting, and what a valid file should not say.\n"
    "Every finding has its file, line and rule; --explain tells more about a rule. Advice is printed, but is no "
    "failure.\n"
    "Secrets are not needed: ${NAME} stays as it is. Exit code 1: errors or warnings were found.";

/* ---- --explain */

static void explain_rule(const struct lint_rule *rule, struct buf *b) {
    buf_printf(b, "%s (%s): %s\n\n%s\n", rule->code, lint_severity_text(rule->severity), rule->title,
               rule->explanation);
}

static void put_key(const struct key_info *k, const char *where, struct buf *b) {
    buf_printf(b, "%s, a key %s: %s", k->path, where, k->type);
    for (size_t i = 0; k->names && k->names[i]; i++) buf_printf(b, "%s%s", i ? ", " : " of ", k->names[i]);
    buf_printf(b, ". Default: %s\n\n%s\n", k->fallback, k->doc);
}

static bool explain_key(const char *path, struct buf *b) {
    static const char *const where[] = {[TABLE_TOP] = "of the file",
                                        [TABLE_LISTENER] = "of an entry of listen",
                                        [TABLE_RELAY] = "of an entry of relay",
                                        [TABLE_TOKEN] = "of an entry of tokens",
                                        [TABLE_SOURCE] = "of an entry of sources",
                                        [TABLE_TENANT] = "of a tenant",
                                        [TABLE_PROXY] = "of an entry of proxies",
                                        [TABLE_QUEUE] = "of a queue",
                                        [TABLE_DELIVER] = "of a queue's deliver",
                                        [TABLE_RECONCILE] = "of a queue's or a proxy's reconcile"};
    static const char *const inside[TABLE_COUNT] = {[TABLE_DELIVER] = "deliver.", [TABLE_RECONCILE] = "reconcile."};
    struct key_info k;
    for (int scope = 0; scope < TABLE_COUNT; scope++) {
        const char *prefix = inside[scope] ? inside[scope] : "";
        const char *name = strncmp(path, prefix, strlen(prefix)) == 0 ? path + strlen(prefix) : path;
        for (u32 i = 0; config_key((enum key_table)scope, i, &k); i++)
            if (strcmp(k.path, name) == 0) put_key(&k, where[scope], b);
    }
    return b->len > 0;
}

static int explain(struct cli *cli, const char *code) {
    const struct lint_rule *rule = lint_rule_find(slice_str(code));
    struct buf b = {0};
    if (rule) explain_rule(rule, &b);
    if (rule || explain_key(code, &b)) {
        print_buf(&b);
        return EXIT_DONE;
    }
    const char *near = nearest_name(slice_str(code), lint_rule_code_at, NULL);
    if (near) return args_wrong(cli, "no rule \"%s\"; did you mean %s?", code, near);
    buf_printf(&b, "no rule or config key \"%s\". The rules:", code);
    for (u32 i = 0; i < lint_rule_count; i++) buf_printf(&b, " %s", lint_rules[i].code);
    buf_char(&b, '\0');
    args_wrong(cli, "%s", b.p);
    buf_free(&b);
    return EXIT_USAGE;
}

/* ---- findings */

/* A finding for printing; a file that does not load has one, without a rule. */
struct shown {
    const char *code, *severity;
    slice queue;
    struct said_at at;
    slice text;
};

/* "FILE:LINE:COL: TEXT" apart; what has no place (the file cannot be read) keeps its text. */
static struct shown config_error(const char *file, slice text) {
    struct shown s = {.code = "config", .severity = "error", .text = text};
    slice rest = s.text, line, column;
    u64 l, c;
    size_t prefix = strlen(file);
    if (!slice_starts(rest, slice_str(file)) || rest.n <= prefix || rest.p[prefix] != ':') return s;
    rest = slice_of(rest.p + prefix + 1, rest.n - prefix - 1);
    if (!slice_cut(rest, ':', &line, &rest) || !slice_u64(line, &l)) return s;
    if (!slice_cut(rest, ':', &column, &rest) || !slice_u64(column, &c)) return s;
    s.at = (struct said_at){(u32)l, (u32)c};
    s.text = slice_trim(rest);
    return s;
}

static void put_text(struct buf *b, const char *file, const struct shown *s) {
    struct buf raw = {0};
    if (s->at.line) buf_printf(&raw, "%s:%u:%u: ", file, s->at.line, s->at.column);
    buf_printf(&raw, "%s: ", s->severity);
    if (s->queue.n) buf_printf(&raw, "queue %.*s: ", (int)s->queue.n, s->queue.p);
    buf_printf(&raw, "%.*s [%s]", (int)s->text.n, s->text.p, s->code);
    print_clean(b, buf_slice(&raw), false);
    buf_char(b, '\n');
    buf_free(&raw);
}

static void put_json(struct buf *b, const char *file, const struct shown *s) {
    buf_char(b, '{');
    json_put_member(b, "code", slice_str(s->code));
    json_put_member(b, "severity", slice_str(s->severity));
    json_put_member(b, "file", utf8_valid(slice_str(file)) ? slice_str(file) : SL(""));
    json_put_member_i64(b, "line", s->at.line);
    json_put_member_i64(b, "column", s->at.column);
    if (s->queue.n) json_put_member(b, "queue", s->queue);
    json_put_member(b, "message", utf8_valid(s->text) ? s->text : SL(""));
    buf_char(b, '}');
}

static void print_findings(const char *file, const struct shown *all, u32 count, bool ok, bool json) {
    struct buf b = {0};
    if (json) buf_printf(&b, "{\"ok\":%s,\"findings\":[", ok ? "true" : "false");
    for (u32 i = 0; i < count; i++) {
        if (json && i) buf_char(&b, ',');
        if (json)
            put_json(&b, file, &all[i]);
        else
            put_text(&b, file, &all[i]);
    }
    if (json) buf_lit(&b, "]}\n");
    if (b.len) print_buf(&b);
}

static int lint_config(const char *file, const struct config *c, bool json) {
    struct lint_report report = {0};
    lint_run(c, &report);
    bool ok = lint_is_content(&report);
    struct shown *all = mem_alloc(report.count * sizeof(*all));
    for (u32 i = 0; i < report.count; i++) {
        const struct lint_finding *f = &report.at[i];
        all[i] =
            (struct shown){f->rule->code, lint_severity_text(f->rule->severity), f->queue, f->at, slice_str(f->text)};
    }
    print_findings(file, all, report.count, ok, json);
    if (!json) say(report.count ? "`hapax lint --explain CODE` says more about each" : "%s: nothing found", file);
    mem_free(all);
    lint_free(&report);
    return ok ? EXIT_DONE : EXIT_REFUSED;
}

static int show_errors(const char *file, slice lines, bool json) {
    struct shown all[TREE_MISTAKES_MAX + 1];
    slice line;
    u32 count = 0;
    while (count < TREE_MISTAKES_MAX + 1 && slice_cut(lines, '\n', &line, &lines))
        all[count++] = config_error(file, line);
    print_findings(file, all, count, false, json);
    return EXIT_REFUSED;
}

int cmd_lint(struct cli *cli) {
    const char *file = args_word(cli, 0), *format = args_get(cli, "format"), *code = args_get(cli, "explain");
    if (code) return explain(cli, code);
    if (!file) return args_wrong(cli, "expected FILE, or --explain CODE");
    bool json = cli->json || (format && strcmp(format, "json") == 0);
    if (format && !json && strcmp(format, "text") != 0)
        return args_wrong(cli, "--format is text or json, not \"%s\"", format);
    struct config *c;
    struct buf errors = {0};
    bool valid = config_load(file, &(struct config_use){0}, &c, &errors) == ST_OK;
    int rc = valid ? lint_config(file, c, json) : show_errors(file, buf_slice(&errors), json);
    buf_free(&errors);
    config_free(c);
    return rc;
}

/* ---- queues explain */

const struct flag flags_queues_explain[] = {
    {"config", "FILE", "explain the queue as this file declares it, without a broker"},
    {"runbook", NULL, "as Markdown, the operators' page: owner, event types, and what to do for each alert"},
    {0},
};
const char about_queues_explain[] =
    "A queue's rules in plain words: what repeats look like there, what the broker does at each failure, what the\n"
    "operator should do. Without --config the running broker is asked.\n"
    "--runbook writes it as Markdown, to be kept where the people on call look: `hapax queues explain payments "
    "--runbook >\n"
    "payments.md`.";

/* For a terminal. explain_queue indents what it says by two, and what goes on with it by four. */
static void put_sentences(struct buf *out, slice clean, size_t columns) {
    struct buf sentence = {0};
    slice line;
    while (clean.n) {
        slice_cut(clean, '\n', &line, &clean);
        buf_slice_add(&sentence, line);
        if (slice_starts(clean, SL("    "))) continue;
        size_t indent = slice_starts(buf_slice(&sentence), SL("  ")) ? 2 : 0;
        buf_printf(out, "%*s", (int)indent, "");
        text_wrap(out, buf_slice(&sentence), indent, 4, columns);
        buf_char(out, '\n');
        buf_reset(&sentence);
    }
    buf_free(&sentence);
}

static void print_sentences(const struct queue_config *q) {
    struct buf raw = {0}, clean = {0}, wrapped = {0};
    size_t columns = text_columns(STDOUT_FILENO);
    explain_queue(q, &raw);
    print_clean(&clean, buf_slice(&raw), true);
    if (columns == SIZE_MAX)
        buf_slice_add(&wrapped, buf_slice(&clean));
    else
        put_sentences(&wrapped, buf_slice(&clean), columns);
    print_clean_buf(&wrapped);
    buf_free(&raw);
    buf_free(&clean);
}

/* With --json the effective rules under the config's key names. metrics: the broker's, if one was asked. */
static void print_explanation(const struct cli *cli, const struct queue_config *q, slice metrics) {
    struct buf raw = {0}, clean = {0};
    struct types types;
    types_read(&types, q->name, metrics);
    if (cli->json) {
        config_queue_to_json(q, &raw);
        print_json(hx_bytes_of(raw.p, raw.len));
    } else if (args_has(cli, "runbook")) {
        explain_runbook(q, types.at, types.count, &raw);
        print_clean(&clean, buf_slice(&raw), true);
        print_buf(&clean);
    } else {
        print_sentences(q);
    }
    buf_free(&raw);
    types_free(&types);
}

static int explain_from_file(const struct cli *cli, const char *file, slice queue) {
    struct config *c;
    struct buf errors = {0};
    if (config_load(file, &(struct config_use){.listen_elsewhere = true}, &c, &errors) != ST_OK) {
        slice rest = buf_slice(&errors), line;
        while (slice_cut(rest, '\n', &line, &rest)) say("%.*s", (int)line.n, line.p);
        buf_free(&errors);
        return EXIT_REFUSED;
    }
    const struct queue_config *q = config_find(c, queue);
    if (q)
        print_explanation(cli, q, SL(""));
    else
        say("%s declares no queue %.*s", file, (int)queue.n, queue.p);
    config_free(c);
    return q ? EXIT_DONE : EXIT_REFUSED;
}

/* A broker that has no metrics, or takes its time, is explained without. */
static void print_with_metrics(struct cli *cli, const struct queue_config *q) {
    hx_request request = {.method = "GET", .target = "/metrics"};
    hx_reply reply = {0};
    hx_error err;
    bool told = q->event_type && args_has(cli, "runbook") && hx_call(cli->client, &request, &reply, &err) == HX_OK;
    print_explanation(cli, q, told ? slice_of(reply.body.data, reply.body.size) : SL(""));
    hx_reply_free(&reply);
}

static int explain_reply(struct cli *cli, slice queue, slice reply) {
    struct buf errors = {0};
    struct queue_config *q = NULL;
    slice rules = member_raw(reply, "config"), why = SL("it does not show its rules"), rest;
    if (rules.n && config_queue_from_json(queue, rules, SECRETS_AS_WRITTEN, &q, &errors) != ST_OK)
        slice_cut(buf_slice(&errors), '\n', &why, &rest);
    if (q)
        print_with_metrics(cli, q);
    else
        say("the broker speaks another version than this command: %.*s", (int)why.n, why.p);
    config_queue_free(q);
    buf_free(&errors);
    return q ? EXIT_DONE : EXIT_REFUSED;
}

static int explain_from_broker(struct cli *cli, slice queue) {
    struct buf target = {0};
    cli_queue_target(&target, queue.p, "", NULL, "");
    hx_request request = {.method = "GET", .target = target.p};
    hx_reply reply;
    int rc;
    if (cli_ask(cli, &request, &reply, &rc)) rc = explain_reply(cli, queue, slice_of(reply.body.data, reply.body.size));
    hx_reply_free(&reply);
    buf_free(&target);
    return rc;
}

int cmd_queues_explain(struct cli *cli) {
    slice queue = slice_str(args_word(cli, 0));
    const char *file = args_get(cli, "config");
    return file ? explain_from_file(cli, file, queue) : explain_from_broker(cli, queue);
}
