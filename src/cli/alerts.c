/* Alerts: what calls for somebody now, and the same as rules for Prometheus. */
#include <ctype.h>
#include <unistd.h>

#include "base/json.h"
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

/* "dead_letters of orders: 12 (alert at 10). Messages die ...", and the page to open. */
static void put_meaning(struct buf *out, slice item, size_t columns) {
    struct buf text = {0}, clean = {0};
    member_text(item, "name", &text);
    if (member_raw(item, "queue").n) buf_lit(&text, " of ");
    member_text(item, "queue", &text);
    buf_lit(&text, ": ");
    member_text(item, "summary", &text);
    print_clean(&clean, buf_slice(&text), false);
    text_wrap(out, buf_slice(&clean), 0, 2, columns);
    buf_reset(&text);
    buf_reset(&clean);
    member_text(item, "runbook", &text);
    print_clean(&clean, buf_slice(&text), false);
    buf_printf(out, "\n  %.*s\n", (int)clean.len, clean.p);
    buf_free(&text);
    buf_free(&clean);
}

static void show_meanings(slice items, size_t columns) {
    struct json j;
    slice item;
    enum json_type type;
    struct buf out = {0};
    json_init(&j, items);
    if (json_array(&j))
        while (json_element(&j) && json_value(&j, &type, &item))
            if (type == JSON_OBJECT) put_meaning(&out, item, columns);
    json_free(&j);
    print_clean_buf(&out);
}

/* On a terminal what an alert means stands below the table: it is what somebody was woken for, and the table would cut it. */
static void show_alerts(slice json) {
#define ALERT_COLUMNS                                                                                                  \
    {"name", NULL, false}, {"queue", NULL, false}, {"key", column_key, false}, {"state", NULL, false},                 \
        {"since", column_since, false}, {"owner", NULL, false}, {                                                      \
        "count_1h", NULL, false                                                                                        \
    }
    static const struct column narrow[] = {ALERT_COLUMNS, {0}};
    static const struct column wide[] = {ALERT_COLUMNS, {"runbook", NULL, false}, {"summary", NULL, true}, {0}};
    size_t columns = text_columns(STDOUT_FILENO);
    bool terminal = columns != SIZE_MAX;
    if (slice_eq(member_raw(json, "judged"), SL("false")))
        say("not judged yet: the broker has begun anew and has not looked so far");
    print_list(json, terminal ? narrow : wide);
    if (terminal) show_meanings(member_raw(json, "items"), columns);
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
