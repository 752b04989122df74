#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "cli/cli.h"

const struct flag flags_receive[] = {
    {"exec", "COMMAND", "run this shell command for each message, and settle by its exit code"},
    {"reconcile", "COMMAND", "with --exec: for a message whose outcome is unknown run this one, which looks it up"},
    {"timeout", "DURATION", "with --exec: end a command that takes longer; default: no limit"},
    {"max", "N", "messages to take at once, default 1"},
    {"wait", "DURATION", "wait for the first one, at most this long; default: do not wait"},
    {"lease", "DURATION", "how long a message is yours, default: the queue's"},
    {"count", "N", "go on until this many were received"},
    {"forever", NULL, "go on until stopped by SIGINT or SIGTERM"},
    {"concurrency", "N", "with --exec: commands at once, default 1"},
    {"consumer", "NAME", "a name for the inspector, default HOST:PID"},
    {"explicit", NULL, "without --exec: only reserve; `hapax start` begins"},
    {"ack", NULL, "without --exec: ack each message once it is printed"},
    {0},
};

const char about_receive[] =
    "Without --exec, messages are printed with their tokens; settle them with `hapax ack` or another settling verb.\n"
    "What cannot be written to standard output is neither acked nor kept: it goes back to the queue, exit code 1.\n"
    "\n"
    "With --exec, the payload is the command's standard input, and HAPAX_KEY, HAPAX_EFFECT_KEY, HAPAX_TOKEN, "
    "HAPAX_FENCE,\n"
    "HAPAX_ATTEMPT, HAPAX_DELIVERY, HAPAX_QUEUE, HAPAX_ID, HAPAX_CONTENT_TYPE and HAPAX_GROUP are in its environment. "
    "Its\n"
    "lease is renewed while it runs. Exit code 0 acks with its standard output as the result; 75 is transient, 65 "
    "poison,\n"
    "100 rejected with the output as the result; 126 and 127 (cannot run) give the message back and stop; anything "
    "else is\n"
    "unknown. The last line of its standard error becomes the reason. Of more than 1 MiB of output nothing is kept: "
    "the\n"
    "message is settled, for the work is done, without a result.\n"
    "\n"
    "What a command came to is told to the broker until it answers, however long it is away. A signal while a command "
    "runs\n"
    "lets it finish, a second one ends it; one that comes while only the broker is waited for ends hapax within "
    "seconds,\n"
    "exit code 3, and it says of which message it is not known whether it is settled.\n"
    "\n"
    "A message whose outcome is unknown (HAPAX_DELIVERY is reconcile) never runs --exec: --reconcile finds out whether "
    "it\n"
    "was done. Exit code 0: it was, the output is the result; 101: it was not, it is delivered to be done; anything "
    "else:\n"
    "still unknown. Without --reconcile it stays unknown.\n"
    "\n"
    "Exit code 1: nothing was received (or, with --exec, the command could not be run).";

static void line(struct buf *b, const char *label, const char *value) {
    buf_printf(b, "%-12s", label);
    print_clean(b, slice_str(value), false);
    buf_char(b, '\n');
}

static const char *delivery_text(hx_delivery d) {
    return d == HX_DELIVERY_FIRST   ? "first"
           : d == HX_DELIVERY_RETRY ? "retry"
                                    : "reconcile: look it up before doing it";
}

static void show_message(const hx_message *m) {
    struct buf b = {0};
    if (m->key[0]) line(&b, "key", m->key);
    line(&b, "id", m->id);
    line(&b, "token", m->token);
    buf_printf(&b, "%-12s%lld\n", "fence", (long long)m->fence);
    buf_printf(&b, "%-12s%lld (%s)\n", "attempt", (long long)m->attempt, delivery_text(m->delivery));
    if (m->group) line(&b, "group", m->group);
    for (size_t i = 0; i < m->attr_count; i++) {
        buf_lit(&b, "attr        ");
        print_clean(&b, slice_str(m->attrs[i].name), false);
        buf_char(&b, '=');
        print_clean(&b, slice_str(m->attrs[i].value), false);
        buf_char(&b, '\n');
    }
    for (size_t i = 0; i < m->step_count; i++) line(&b, "step done", m->steps[i].name);
    if (m->lease_expires_at_ms) {
        buf_printf(&b, "%-12s", "lease until");
        buf_rfc3339(&b, m->lease_expires_at_ms);
        buf_char(&b, '\n');
    }
    if (m->content_type[0]) line(&b, "type", m->content_type);
    buf_char(&b, '\n');
    print_buf(&b);
    print_body(m->payload);
    buf_char(&b, '\n');
    print_buf(&b);
}

/* How many of them are out: those the user has. A message is printed whole or was not handed over; JSON is one document. */
static size_t print_messages(const struct cli *cli, const hx_received *got) {
    if (cli->json) {
        print_json(got->json);
        return print_flush() ? got->count : 0;
    }
    size_t out = 0;
    for (; out < got->count; out++) {
        show_message(got->messages[out]);
        if (!print_flush()) break;
    }
    return out;
}

static int ack_printed(struct cli *cli, const hx_received *got, size_t printed) {
    int rc = EXIT_DONE;
    for (size_t i = 0; i < printed && rc == EXIT_DONE; i++) {
        hx_settled settled;
        hx_error err;
        if (hx_ack(cli->client, got->messages[i]->token, (hx_bytes){0}, NULL, NULL, &settled, &err) != HX_OK)
            rc = cli_failed(cli, &err, settled.json);
        hx_settled_free(&settled);
    }
    return rc;
}

/* What could not be printed, from the `next` on: nobody has seen it, so nothing was done. */
static int give_back(struct cli *cli, const hx_received *got, size_t next) {
    size_t given = 0;
    hx_error err = {0};
    while (next < got->count && hx_release(cli->client, got->messages[next]->token, NULL, &err) == HX_OK)
        next++, given++;
    if (given) say("%zu message%s could not be printed and went back to the queue", given, text_plural(given));
    if (next == got->count) return EXIT_REFUSED;
    const hx_message *m = got->messages[next];
    say_wrong("%zu message%s could be neither printed nor given back, the first is %s", got->count - next,
              text_plural(got->count - next), m->key[0] ? m->key : m->id);
    return cli_failed(cli, &err, (hx_bytes){0});
}

/* One poll, printed. *received grows by what came. */
static int receive_once(struct cli *cli, const hx_receive_options *options, i64 *received) {
    hx_received got;
    hx_error err;
    if (hx_receive(cli->client, args_word(cli, 0), options, &got, &err) != HX_OK) {
        int rc = cli_failed(cli, &err, got.json);
        hx_received_free(&got);
        return rc;
    }
    size_t printed = print_messages(cli, &got);
    *received += (i64)printed;
    int rc = args_has(cli, "ack") ? ack_printed(cli, &got, printed) : EXIT_DONE;
    if (!print_flush()) {
        int lost = give_back(cli, &got, printed);
        if (lost > rc) rc = lost;
    }
    hx_received_free(&got);
    return rc;
}

/* ---- why nothing came */

/* The queue as it is now; false: it could not be seen, or is not there (*missing). */
static bool look_at(struct cli *cli, hx_reply *reply, bool *missing) {
    struct buf target = {0};
    hx_error err;
    cli_queue_target(&target, args_word(cli, 0), "", NULL, "");
    hx_request request = {.method = "GET", .target = target.p};
    bool ok = hx_call(cli->client, &request, reply, &err) == HX_OK;
    *missing = !ok && err.http_status == 404;
    buf_free(&target);
    return ok;
}

static void say_counts(const char *name, slice queue) {
    static const char *const members[] = {"delayed", "behind", "leased", "held", "dead"};
    static const char *const words[] = {"delayed", "behind their group's head", "leased", "held", "dead"};
    struct buf b = {0};
    for (size_t i = 0; i < sizeof(members) / sizeof(members[0]); i++) {
        long long n = (long long)member_number(queue, members[i]);
        if (n) buf_printf(&b, "%s%lld %s", b.len ? ", " : "", n, words[i]);
    }
    buf_char(&b, '\0');
    say(b.len > 1 ? "nothing received: of %s none is ready, %s" : "nothing received: %s is empty", name, b.p);
    buf_free(&b);
}

void cli_say_nothing_received(struct cli *cli) {
    const char *name = args_word(cli, 0);
    hx_reply reply = {0};
    bool missing;
    if (cli->json) return;
    bool seen = look_at(cli, &reply, &missing);
    slice queue = slice_of(reply.body.data, reply.body.size);
    if (missing)
        say("nothing received: there is no queue %s yet", name);
    else if (!seen)
        say("nothing received");
    else if (slice_eq(member_raw(queue, "paused"), SL("true")))
        say("nothing received: %s is paused. `hapax queues resume %s` goes on.", name, name);
    else
        say_counts(name, queue);
    hx_reply_free(&reply);
}

/* Before a wait without end, which would not say it. */
static void say_if_paused(struct cli *cli) {
    hx_reply reply = {0};
    bool missing;
    bool seen = look_at(cli, &reply, &missing);
    if (seen && slice_eq(member_raw(slice_of(reply.body.data, reply.body.size), "paused"), SL("true")))
        say("%s is paused: nothing comes until `hapax queues resume %s`", args_word(cli, 0), args_word(cli, 0));
    hx_reply_free(&reply);
}

enum { FOREVER_WAIT_MS = 20000, LEASE_MS_MAX = 43200000 };

/* What the queue says at this moment: whoever renews must know how long a lease lasts. 0, the consumer's own default: there is
 * no such queue yet, or nobody answers. */
static i64 lease_of_queue(struct cli *cli) {
    hx_reply reply = {0};
    bool missing;
    i64 lease = 0;
    if (look_at(cli, &reply, &missing))
        lease = member_number(member_raw(slice_of(reply.body.data, reply.body.size), "rules"), "lease_ms");
    hx_reply_free(&reply);
    return lease >= 1000 && lease <= LEASE_MS_MAX ? lease : 0;
}

static int receive_print(struct cli *cli, hx_receive_options *options, i64 count, bool forever) {
    i64 received = 0, most = options->max;
    signal(SIGPIPE, SIG_IGN); /* a reader that has gone leaves messages to give back */
    for (;;) {
        i64 before = received;
        if (count && count - received < most) options->max = (int)(count - received);
        int rc = receive_once(cli, options, &received);
        if (rc != EXIT_DONE) return rc;
        bool enough = count ? received >= count : !forever;
        if (enough || (received == before && !forever)) break;
    }
    if (received) return count && received < count ? EXIT_REFUSED : EXIT_DONE;
    cli_say_nothing_received(cli);
    return EXIT_REFUSED;
}

struct receive_flags {
    i64 max, wait, lease, count, concurrency, timeout;
    bool forever;
};

/* A shell takes an empty command for a success, and each message would be acked undone. */
static bool command_ok(const struct cli *cli, const char *name) {
    const char *command = args_get(cli, name);
    if (!command || slice_trim(slice_str(command)).n) return true;
    args_wrong(cli, "--%s has no command in it", name);
    return false;
}

static bool flags_read(struct cli *cli, struct receive_flags *f) {
    *f = (struct receive_flags){.max = 1, .concurrency = 1, .forever = args_has(cli, "forever")};
    if (!args_number(cli, "max", 1, 1000, &f->max) || !args_duration(cli, "wait", &f->wait) ||
        !args_duration(cli, "lease", &f->lease) || !args_number(cli, "count", 1, INT64_MAX, &f->count) ||
        !args_number(cli, "concurrency", 1, 500, &f->concurrency) || !args_duration(cli, "timeout", &f->timeout))
        return false;
    if (f->wait > 60000) return args_wrong(cli, "--wait is at most 60s"), false;
    if (args_has(cli, "lease") && (f->lease < 1000 || f->lease > LEASE_MS_MAX))
        return args_wrong(cli, "--lease is from 1s to 12h"), false;
    if (f->count && f->forever) return args_wrong(cli, "--count or --forever, not both"), false;
    bool exec = args_has(cli, "exec");
    if (!command_ok(cli, "exec") || !command_ok(cli, "reconcile")) return false;
    if (args_has(cli, "timeout") && f->timeout < 1) return args_wrong(cli, "--timeout is at least 1ms"), false;
    if (!exec && (args_has(cli, "reconcile") || args_has(cli, "timeout")))
        return args_wrong(cli, "--reconcile and --timeout go with --exec"), false;
    if (exec && (args_has(cli, "explicit") || args_has(cli, "ack")))
        return args_wrong(cli, "--exec starts and settles by itself: no --explicit or --ack with it"), false;
    if (!exec && args_has(cli, "concurrency")) return args_wrong(cli, "--concurrency goes with --exec"), false;
    return true;
}

int cmd_receive(struct cli *cli) {
    struct receive_flags f;
    char name[320], host[256] = "";
    if (!flags_read(cli, &f) || !cli_client(cli, 0)) return EXIT_USAGE;
    gethostname(host, sizeof(host) - 1);
    snprintf(name, sizeof(name), "%s:%ld", host, (long)getpid());
    const char *consumer = args_get(cli, "consumer") ? args_get(cli, "consumer") : name;
    if (f.forever) say_if_paused(cli);
    if (!args_has(cli, "exec")) {
        hx_receive_options options = {.max = (int)f.max,
                                      .wait_ms = f.forever && !f.wait ? FOREVER_WAIT_MS : f.wait,
                                      .lease_ms = f.lease,
                                      .consumer = consumer,
                                      .explicit_start = args_has(cli, "explicit")};
        return receive_print(cli, &options, f.count, f.forever);
    }
    i64 in_all = f.max > f.concurrency ? f.max : f.concurrency;
    hx_consume_options options = {.queue = args_word(cli, 0),
                                  .workers = (int)f.concurrency,
                                  .prefetch = in_all > f.concurrency ? (int)(in_all - f.concurrency) : -1,
                                  .lease_ms = f.lease ? f.lease : lease_of_queue(cli),
                                  .wait_ms = f.forever ? f.wait
                                             : f.wait  ? f.wait
                                                       : -1,
                                  .messages_max = f.forever ? 0
                                                  : f.count ? f.count
                                                            : f.max,
                                  .idle_ms = f.forever ? 0 : -1,
                                  .consumer = consumer};
    const struct exec_commands commands = {args_get(cli, "exec"), args_get(cli, "reconcile"), f.timeout};
    return cli_receive_exec(cli, &commands, &options);
}
