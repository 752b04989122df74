/* Redrives, and the tasks that long ones become. A task runs in the broker: leaving its progress line does not end it. */
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

#include "base/json.h"
#include "cli/cli.h"

enum { POLL_MS = 250 };

/* ---- one task */

static void task_target(struct buf *b, slice id) {
    buf_lit(b, "/v1/tasks/");
    buf_percent_encode(b, id);
    buf_char(b, '\0');
}

static void show_progress(slice task) {
    if (!isatty(STDERR_FILENO)) return;
    fprintf(stderr, "\r\033[Kredriving: %lld of %lld, %lld no-op", (long long)member_number(task, "redriven"),
            (long long)member_number(task, "matched"), (long long)member_number(task, "no_op"));
    fflush(stderr);
}

static void end_progress(void) {
    if (isatty(STDERR_FILENO)) fputs("\r\033[K", stderr);
}

/* Ended: as printed. The exit code tells whether it reached its end. */
static int show_ended(struct cli *cli, const hx_reply *reply) {
    slice task = slice_of(reply->body.data, reply->body.size);
    cli_show(cli, reply, NULL);
    return member_is(task, "state", SL("done")) ? EXIT_DONE : EXIT_REFUSED;
}

/* A little while; true: somebody asked us to leave. */
static bool wait_or_leave(int stop_fd) {
    struct pollfd p = {.fd = stop_fd, .events = POLLIN};
    return poll(&p, 1, POLL_MS) > 0;
}

static int left_running(slice id) {
    end_progress();
    say("the task goes on: `hapax tasks show %.*s` looks at it, `hapax tasks cancel %.*s` ends it", (int)id.n, id.p,
        (int)id.n, id.p);
    return EXIT_UNREACHABLE;
}

/* stop_fd: taken before the task was asked for, so that no Ctrl-C falls in between. */
static int follow(struct cli *cli, slice id, int stop_fd) {
    struct buf target = {0};
    task_target(&target, id);
    hx_request request = {.method = "GET", .target = target.p};
    hx_reply reply = {0};
    int rc = EXIT_DONE;
    bool running = true;
    while (running && cli_ask(cli, &request, &reply, &rc)) {
        slice task = slice_of(reply.body.data, reply.body.size);
        running = member_is(task, "state", SL("running"));
        if (running) {
            show_progress(task);
        } else {
            end_progress();
            rc = show_ended(cli, &reply);
        }
        hx_reply_free(&reply);
        if (!running || !wait_or_leave(stop_fd)) continue;
        rc = left_running(id);
        break;
    }
    buf_free(&target);
    return rc;
}

const struct flag flags_tasks_list[] = {{0}};
const char about_tasks_list[] = "Long redrives, running and ended since the broker started.";

static void show_tasks(slice json) {
    static const struct column columns[] = {{"id", NULL, false},
                                            {"kind", NULL, false},
                                            {"queue", NULL, false},
                                            {"state", NULL, false},
                                            {"matched", NULL, false},
                                            {"redriven", NULL, false},
                                            {"no_op", NULL, false},
                                            {"by", NULL, false},
                                            {"started_at", NULL, false},
                                            {"ended_at", NULL, false},
                                            {0}};
    print_list(json, columns);
}

int cmd_tasks_list(struct cli *cli) {
    return cli_request(cli, "GET", "/v1/tasks", SL(""), show_tasks);
}

const struct flag flags_tasks_show[] = {{"follow", NULL, "until it has ended"}, {0}};
const char about_tasks_show[] = "";

int cmd_tasks_show(struct cli *cli) {
    slice id = slice_str(args_word(cli, 0));
    struct buf target = {0};
    int rc;
    task_target(&target, id);
    if (args_has(cli, "follow")) {
        int stop_fd = cli_stop_fd();
        rc = follow(cli, id, stop_fd);
        close(stop_fd);
    } else {
        rc = cli_request(cli, "GET", target.p, SL(""), NULL);
    }
    buf_free(&target);
    return rc;
}

const struct flag flags_tasks_cancel[] = {FLAGS_SIGNED, {0}};
const char about_tasks_cancel[] = "What it did stays done; the same redrive later goes on where this one ended.";

int cmd_tasks_cancel(struct cli *cli) {
    struct buf target = {0};
    task_target(&target, slice_str(args_word(cli, 0)));
    int rc = cli_decide(cli, &(struct cli_decision){.method = "DELETE", .target = target.p});
    buf_free(&target);
    return rc;
}

/* ---- redrive */

const struct flag flags_dead_redrive[] = {
    {"class", "CLASS", "only those whose last attempt ended so: transient, unknown, poison, ..."},
    {"reason", "TEXT", "only those whose last attempt's reason has this text in it"},
    {"since", "WHEN", "only those that died in the last 1h, 7d, ..., or since a time like 2026-01-31T12:00:00Z"},
    {"max", "N", "at most this many"},
    {"rate", "N", "at most this many a second; runs as a task, which is followed"},
    {"dry-run", NULL, "do nothing: say how many would run, be looked up first, or be refused again"},
    {"detach", NULL, "do not follow the task: print its id and leave"},
    FLAGS_SIGNED,
    {0},
};
const char about_dead_redrive[] =
    "Runs dead letters again, with their keys, effect keys, steps and history. What was settled meanwhile counts as\n"
    "no_op and is not run; what any attempt left unknown comes back as a reconcile delivery. Without filters: all.\n"
    "Ctrl-C leaves a followed task running and says how to cancel it; the exit code is then 3.";

static bool redrive_body(struct cli *cli, struct buf *body) {
    static const char *const texts[] = {"class", "reason", "since"};
    i64 most = 0, rate = 0;
    if (!args_number(cli, "max", 1, INT64_MAX, &most) || !args_number(cli, "rate", 1, 1000000, &rate)) return false;
    buf_char(body, '{');
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        slice value = slice_str(args_get(cli, texts[i]));
        if (!utf8_valid(value)) return args_wrong(cli, "--%s is not UTF-8", texts[i]), false;
        if (value.p) json_put_member(body, texts[i], value);
    }
    if (most) json_put_member_i64(body, "max", most);
    if (rate) json_put_member_i64(body, "rate", rate);
    if (args_has(cli, "dry-run")) json_put_member_bool(body, "dry_run", true);
    buf_char(body, '}');
    return true;
}

static void show_foreseen(slice json) {
    static const struct {
        const char *member, *text;
    } lines[] = {{"would_run", "would run again"},
                 {"would_reconcile", "would be looked up first: an attempt's outcome is unknown"},
                 {"would_refuse", "would fail the schema once more"},
                 {"with_group", "more would come back with their group's head"},
                 {"no_op", "are settled or decided by now: no-op"}};
    printf("%lld match. Nothing was done.\n", (long long)member_number(json, "matched"));
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        long long n = (long long)member_number(json, lines[i].member);
        if (n || i == 0) printf("%6lld %s\n", n, lines[i].text);
    }
}

static int redrive_answered(struct cli *cli, const hx_reply *reply, int stop_fd) {
    struct buf id = {0};
    int rc = EXIT_DONE;
    bool task = member_text(slice_of(reply->body.data, reply->body.size), "task", &id);
    if (task && !args_has(cli, "detach"))
        rc = follow(cli, buf_slice(&id), stop_fd);
    else
        cli_show(cli, reply, args_has(cli, "dry-run") ? show_foreseen : NULL);
    buf_free(&id);
    return rc;
}

int cmd_dead_redrive(struct cli *cli) {
    struct buf target = {0}, body = {0};
    hx_reply reply;
    int rc = EXIT_USAGE;
    cli_queue_target(&target, args_word(cli, 0), "", NULL, "/redrive");
    if (redrive_body(cli, &body)) {
        struct cli_decision d = {.method = "POST", .target = target.p, .body = buf_slice(&body)};
        int stop_fd = cli_stop_fd();
        if (cli_ask_signed(cli, &d, &reply, &rc)) rc = redrive_answered(cli, &reply, stop_fd);
        close(stop_fd);
        hx_reply_free(&reply);
    }
    buf_free(&target);
    buf_free(&body);
    return rc;
}
