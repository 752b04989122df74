/* Alerts: what calls for somebody now, and the same as rules for Prometheus. */
#include <ctype.h>

#include "cli/cli.h"
#include "config/alert_names.h"

const struct flag flags_alerts[] = {
    {"all", NULL, "those that are pending, and those that were resolved within a day, too"},
    {"prometheus", NULL, "write alerting rules for Prometheus instead, one for each alert; asks no broker"},
    {0},
};
const char about_alerts[] = "The broker judges its alerts itself, every ten seconds. Exit code 1: something fires.\n"
                            "With --prometheus, rules over the metric hapax_alerts, which is 1 while the broker says "
                            "that an alert fires: so the two\n"
                            "never disagree, and thresholds have one place, the broker's config.";

static void column_since(struct buf *b, slice item) {
    print_time(b, item, "since");
}

static void show_alerts(slice json) {
    static const struct column columns[] = {{"name", NULL, false},          {"queue", NULL, false},
                                            {"key", column_key, false},     {"state", NULL, false},
                                            {"since", column_since, false}, {"owner", NULL, false},
                                            {"count_1h", NULL, false},      {"runbook", NULL, false},
                                            {"summary", NULL, true},        {0}};
    if (slice_eq(member_raw(json, "judged"), SL("false")))
        say("not judged yet: the broker has begun anew and has not looked so far");
    print_list(json, columns);
}

/* dead_letters: HapaxDeadLetters */
static void put_rule_name(struct buf *b, const char *name) {
    bool up = true;
    buf_lit(b, "Hapax");
    for (; *name; name++) {
        if (*name != '_') buf_char(b, up ? (char)toupper((unsigned char)*name) : *name);
        up = *name == '_';
    }
}

static void put_rule(struct buf *b, const char *name, const char *runbook, const char *sentence) {
    buf_lit(b, "  - alert: ");
    put_rule_name(b, name);
    buf_printf(b,
               "\n    expr: hapax_alerts{name=\"%s\"} == 1\n"
               "    annotations:\n"
               "      summary: '%s {{ $labels.queue }}: %s'\n"
               "      runbook: docs/runbooks/%s\n",
               name, name, sentence, runbook);
}

static int print_rules(void) {
    static const char *const names[] = {
#define ALERT_NAME(ident, text) [ALERT_##ident] = (text),
        ALERT_LIST(ALERT_NAME)
#undef ALERT_NAME
    };
    struct buf b = {0};
    buf_lit(&b, "groups:\n- name: hapax\n  rules:\n");
#define ALERT(ident, unit, runbook, sentence) put_rule(&b, names[ALERT_##ident], runbook, sentence);
#include "config/alerts.def"
    print_buf(&b);
    return EXIT_DONE;
}

int cmd_alerts(struct cli *cli) {
    static const char firing[] = "\"state\":\"firing\"";
    hx_request request = {.method = "GET", .target = args_has(cli, "all") ? "/v1/alerts?all=true" : "/v1/alerts"};
    hx_reply reply;
    int rc;
    if (args_has(cli, "prometheus")) return print_rules();
    if (cli_ask(cli, &request, &reply, &rc)) {
        cli_show(cli, &reply, show_alerts);
        if (memmem(reply.body.data, reply.body.size, firing, sizeof firing - 1)) rc = EXIT_REFUSED;
    }
    hx_reply_free(&reply);
    return rc;
}
