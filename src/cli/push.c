/* Targets: where the broker delivers to, how each fares, and how it is steered. */
#include <stdio.h>

#include "base/json.h"
#include "cli/cli.h"

const struct flag flags_push_status[] = {
    {"limit", "N", "how many at most, 1 to 1000, default 100"},
    {"cursor", "CURSOR", "go on where a list ended: its next_cursor"},
    {0},
};
const char about_push_status[] = "Where the broker delivers to, a line a queue. closed: it is called. open: too many "
                                 "calls failed, and nothing is sent\n"
                                 "until the next probe. half_open: the probe is under way. paused: by an operator, by "
                                 "a 410, or because the target asked\n"
                                 "for time. What waits meanwhile keeps its attempts. failed: transient, unknown or "
                                 "poison, since the broker began. With QUEUE:\n"
                                 "all that is known of one. Exit code 1: one of them is not closed.";

static void column_done(struct buf *b, slice item) {
    buf_printf(b, "%lld", (long long)member_number(member_raw(item, "requests"), "done"));
}

static void column_failed(struct buf *b, slice item) {
    slice requests = member_raw(item, "requests");
    i64 failed =
        member_number(requests, "transient") + member_number(requests, "unknown") + member_number(requests, "poison");
    buf_printf(b, "%lld", (long long)failed);
}

static void column_since(struct buf *b, slice item) {
    print_time(b, item, "since");
}

static void column_next_probe(struct buf *b, slice item) {
    print_time(b, item, "next_probe");
}

static void show_targets(slice json) {
    static const struct column columns[] = {{"queue", NULL, false},
                                            {"state", NULL, false},
                                            {"waiting", NULL, false},
                                            {"in_flight", NULL, false},
                                            {"done", column_done, false},
                                            {"failed", column_failed, false},
                                            {"why", NULL, true},
                                            {"since", column_since, false},
                                            {"next_probe", column_next_probe, false},
                                            {"url", NULL, true},
                                            {0}};
    print_list(json, columns);
}

/* The first of a list; nothing: it is empty. */
static slice first_item(slice json) {
    struct json j;
    enum json_type type;
    slice item = SL("");
    json_init(&j, member_raw(json, "items"));
    bool any = json_array(&j) && json_element(&j) && json_value(&j, &type, &item);
    json_free(&j);
    return any ? item : SL("");
}

static void show_target(slice json) {
    print_page(first_item(json));
}

static bool all_closed(slice json) {
    struct json j;
    enum json_type type;
    slice item;
    bool all = true;
    json_init(&j, member_raw(json, "items"));
    if (json_array(&j))
        while (json_element(&j) && json_value(&j, &type, &item)) all = all && member_is(item, "state", SL("closed"));
    json_free(&j);
    return all;
}

static void list_target(struct cli *cli, struct buf *target) {
    static const char *const filters[] = {"limit", "cursor", NULL};
    const char *queue = args_word(cli, 0);
    buf_lit(target, "/v1/targets");
    if (!queue) return cli_query(cli, target, filters);
    buf_lit(target, "?queue=");
    buf_percent_encode(target, slice_str(queue));
    buf_char(target, 0);
}

int cmd_push_status(struct cli *cli) {
    struct buf target = {0};
    hx_reply reply;
    int rc;
    const char *queue = args_word(cli, 0);
    list_target(cli, &target);
    if (cli_ask(cli, &(hx_request){.method = "GET", .target = target.p}, &reply, &rc)) {
        slice json = slice_of(reply.body.data, reply.body.size);
        cli_show(cli, &reply, queue ? show_target : show_targets);
        rc = all_closed(json) ? EXIT_DONE : EXIT_REFUSED;
    }
    hx_reply_free(&reply);
    buf_free(&target);
    return rc;
}

/* ---- steering */

static void one_target(struct buf *target, const char *queue, const char *tail) {
    buf_lit(target, "/v1/targets/");
    buf_percent_encode(target, slice_str(queue));
    buf_slice_add(target, slice_str(tail));
    buf_char(target, 0);
}

static void show_paused(slice json) {
    struct buf queue = {0}, b = {0};
    bool paused = member_is(json, "state", SL("paused"));
    member_text(json, "queue", &queue);
    print_clean(&b, buf_slice(&queue), false);
    buf_printf(&b, "%s %lld waiting, %lld in flight\n",
               paused ? " is not delivered:" : " is delivered:", (long long)member_number(json, "waiting"),
               (long long)member_number(json, "in_flight"));
    print_clean_buf(&b);
    buf_free(&queue);
}

static int set_paused(struct cli *cli, const char *tail) {
    struct buf target = {0};
    one_target(&target, args_word(cli, 0), tail);
    int rc = cli_decide(cli, &(struct cli_decision){.method = "POST", .target = target.p, .show = show_paused});
    buf_free(&target);
    return rc;
}

const struct flag flags_push_pause[] = {FLAGS_SIGNED, {0}};
const char about_push_pause[] =
    "Nothing more is sent to the queue's target, look-ups neither, until `hapax push resume`; a restart changes "
    "nothing.\n"
    "What is under way ends as it ends. Messages are accepted and wait, and consumers may receive them.";

int cmd_push_pause(struct cli *cli) {
    return set_paused(cli, "/pause");
}

const struct flag flags_push_resume[] = {FLAGS_SIGNED, {0}};
const char about_push_resume[] =
    "Ends a pause, whoever made it. An open circuit is tried at once with one delivery instead of at its next probe.";

int cmd_push_resume(struct cli *cli) {
    return set_paused(cli, "/resume");
}

const struct flag flags_push_test[] = {FLAGS_SIGNED, {0}};
const char about_push_test[] =
    "Sends OPTIONS for / to the target's host: no body, no key, none of the configured headers, so that nothing is "
    "done\n"
    "there. Shows that its name resolves to allowed addresses, that it can be connected to, that its certificate is\n"
    "believed and that it answers HTTP; not that it would take a delivery. Exit code 1: it was not reached.";

static void show_test(slice json) {
    struct buf b = {0}, why = {0}, url = {0};
    bool reached = slice_eq(member_raw(json, "reached"), SL("true"));
    member_text(json, "url", &url);
    member_text(json, "why", &why);
    print_clean(&b, buf_slice(&url), false);
    if (reached)
        buf_printf(&b, " is reached: OPTIONS was answered with %lld after %lld ms",
                   (long long)member_number(json, "status"), (long long)member_number(json, "took_ms"));
    else
        buf_lit(&b, " is not reached: ");
    print_clean(&b, buf_slice(&why), false);
    buf_char(&b, '\n');
    print_clean_buf(&b);
    buf_free(&why);
    buf_free(&url);
}

int cmd_push_test(struct cli *cli) {
    struct buf target = {0};
    hx_reply reply;
    int rc;
    one_target(&target, args_word(cli, 0), "/test");
    if (cli_ask_signed(cli, &(struct cli_decision){.method = "POST", .target = target.p}, &reply, &rc)) {
        slice json = slice_of(reply.body.data, reply.body.size);
        cli_show(cli, &reply, show_test);
        rc = slice_eq(member_raw(json, "reached"), SL("true")) ? EXIT_DONE : EXIT_REFUSED;
    }
    hx_reply_free(&reply);
    buf_free(&target);
    return rc;
}
