/* receive --exec: one shell command a message.
 *
 * The library's consumer does the leases; a handler here runs the command and turns its exit code into a verdict. A
 * Ctrl-C stops hapax from taking more, while a command that has begun may finish, or its outcome would be unknown; a second
 * one ends it. One that comes while no command runs ends the waiting for a broker that does not answer.
 *
 * A `reconcile` delivery asks whether the work was done, it does not ask for the work. The command that does it is never
 * run for one: --reconcile names the command that looks it up, and without one the answer is that nobody knows. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/json.h"
#include "cli/cli.h"

enum { EXIT_POISON = 65, EXIT_TRANSIENT = 75, EXIT_REJECTED = 100 };

struct runner {
    struct cli *cli;
    const struct exec_commands *commands;
    hx_consumer *consumer;
    int end_fd;           /* readable: end what runs */
    pthread_mutex_t lock; /* for printing */
    atomic_bool cannot_run;
    atomic_int worst; /* exit code for what went wrong on the way to the broker */
    atomic_int late;  /* and of a settling call that is being repeated: counts if it never gets through */
    atomic_int running;
    atomic_llong begun, handled;
};

/* ---- running the command */

static const char *delivery_name(hx_delivery d) {
    return d == HX_DELIVERY_FIRST ? "first" : d == HX_DELIVERY_RETRY ? "retry" : "reconcile";
}

static int command_run(struct runner *r, const char *command, const hx_message *m, struct child *c) {
    char fence[24], attempt[24];
    snprintf(fence, sizeof(fence), "%lld", (long long)m->fence);
    snprintf(attempt, sizeof(attempt), "%lld", (long long)m->attempt);
    const struct child_var vars[] = {{"HAPAX_KEY", m->key},
                                     {"HAPAX_EFFECT_KEY", m->effect_key},
                                     {"HAPAX_TOKEN", m->token},
                                     {"HAPAX_FENCE", fence},
                                     {"HAPAX_ATTEMPT", attempt},
                                     {"HAPAX_DELIVERY", delivery_name(m->delivery)},
                                     {"HAPAX_QUEUE", m->queue},
                                     {"HAPAX_ID", m->id},
                                     {"HAPAX_CONTENT_TYPE", m->content_type},
                                     {"HAPAX_GROUP", m->group},
                                     {"HAPAX_URL", r->cli->url}};
    *c = (struct child){.command = command,
                        .vars = vars,
                        .var_count = sizeof(vars) / sizeof(vars[0]),
                        .input = m->payload,
                        .timeout_ms = r->commands->timeout_ms,
                        .stop_fd = r->end_fd};
    atomic_fetch_add(&r->running, 1);
    int code = child_run(c);
    atomic_fetch_sub(&r->running, 1);
    buf_grow(&c->output, 1);
    return code;
}

/* ---- the verdict */

/* For people: the key, or the id of a message that has none. */
static const char *name_of(const hx_message *m) {
    return m->key[0] ? m->key : m->id;
}

/* Its own last words, or what can be said of its end. */
static void put_reason(const struct runner *r, hx_message *m, int code, const struct child *c) {
    struct buf b = {0};
    bool spoke = c->last_words.len;
    if (c->ended && c->late) {
        buf_lit(&b, "the command took longer than ");
        buf_duration(&b, r->commands->timeout_ms);
        buf_lit(&b, " and was ended");
    } else if (c->ended) {
        buf_lit(&b, "the command was ended by a second signal to hapax");
    } else if (spoke) {
        buf_slice_add(&b, buf_slice(&c->last_words));
    } else if (code > CHILD_SIGNALLED) {
        buf_printf(&b, "command ended by signal %d", code - CHILD_SIGNALLED);
    } else {
        buf_printf(&b, "command exited with %d", code);
    }
    if (c->ended && spoke) { /* last, so that what is cut of a long reason is cut here */
        buf_lit(&b, "; its last line: ");
        buf_slice_add(&b, buf_slice(&c->last_words));
    }
    buf_char(&b, '\0');
    hx_message_set_reason(m, b.p);
    buf_free(&b);
}

static void put_result(hx_message *m, struct child *c) {
    if (c->cut) { /* The work is done, so the message is settled; half a result would be a wrong one. */
        say("%s: the command's output is larger than %d bytes: settled without a result", name_of(m), CHILD_OUTPUT_MAX);
        return;
    }
    hx_message_set_result(m, hx_bytes_of(c->output.p, c->output.len), NULL);
}

static bool is_no_command(int code) {
    return code == CHILD_NOT_EXECUTABLE || code == CHILD_NO_COMMAND;
}

static void say_cannot_run(struct runner *r, const char *command, int code, const char *became) {
    atomic_store(&r->cannot_run, true);
    say("%s: cannot be run (exit code %d): %s, and hapax stops", command, code, became);
}

static hx_verdict work_verdict(struct runner *r, hx_message *m, int code, struct child *c) {
    switch (code) {
    case 0:
        put_result(m, c);
        return HX_DONE;
    case EXIT_REJECTED:
        put_result(m, c);
        return HX_FAIL_REJECTED;
    case EXIT_TRANSIENT:
        return HX_FAIL_TRANSIENT;
    case EXIT_POISON:
        return HX_FAIL_POISON;
    case CHILD_NOT_EXECUTABLE:
    case CHILD_NO_COMMAND:
        say_cannot_run(r, c->command, code, "the message is given back");
        return HX_GIVE_BACK_AND_STOP;
    case CHILD_ABSENT:
        say("%s: 101 (absent) answers a look-up, and this was none: its outcome counts as unknown", name_of(m));
        return HX_FAIL_UNKNOWN;
    default:
        return HX_FAIL_UNKNOWN;
    }
}

/* A look-up that could not be made leaves the doubt as it was. */
static hx_verdict lookup_verdict(struct runner *r, hx_message *m, int code, struct child *c) {
    if (code == 0) {
        put_result(m, c);
        return HX_DONE;
    }
    if (code == CHILD_ABSENT) return HX_FAIL_ABSENT;
    if (is_no_command(code)) {
        say_cannot_run(r, c->command, code, "the outcome stays unknown");
        hx_consumer_stop(r->consumer);
    }
    return HX_FAIL_UNKNOWN;
}

static hx_verdict nobody_can_tell(hx_message *m) {
    say("%s: an earlier attempt's outcome is unknown, and there is no --reconcile to look it up: not run, still "
        "unknown",
        name_of(m));
    hx_message_set_reason(m, "to be looked up, and the consumer has no --reconcile command");
    return HX_FAIL_UNKNOWN;
}

static hx_verdict handle(void *ctx, hx_message *m) {
    struct runner *r = ctx;
    bool lookup = m->delivery == HX_DELIVERY_RECONCILE;
    const char *command = lookup ? r->commands->lookup : r->commands->work;
    atomic_fetch_add(&r->begun, 1);
    if (!command) return nobody_can_tell(m);
    struct child c;
    int code = command_run(r, command, m, &c);
    put_reason(r, m, code, &c);
    hx_verdict verdict = c.ended  ? HX_FAIL_UNKNOWN
                         : lookup ? lookup_verdict(r, m, code, &c)
                                  : work_verdict(r, m, code, &c);
    child_free(&c);
    return verdict;
}

static const char *verdict_name(hx_verdict v) {
    static const char *const names[] = {"done",    "transient", "poison",     "rejected",
                                        "unknown", "absent",    "given back", "given back"};
    return names[v];
}

static void on_settled(void *ctx, hx_message *m, hx_verdict verdict, const hx_settled *settled) {
    struct runner *r = ctx;
    struct buf b = {0};
    atomic_fetch_add(&r->handled, 1);
    if (r->cli->json) {
        buf_char(&b, '{');
        json_put_member(&b, "key", slice_str(m->key));
        json_put_member(&b, "id", slice_str(m->id));
        json_put_member_i64(&b, "attempt", m->attempt);
        json_put_member(&b, "delivery", slice_str(delivery_name(m->delivery)));
        json_put_member(&b, "verdict", slice_str(verdict_name(verdict)));
        json_put_member(&b, "state", slice_str(hx_state_text(settled->state)));
        buf_lit(&b, "}\n");
    } else {
        print_clean(&b, slice_str(name_of(m)), false);
        buf_printf(&b, "  %s", verdict_name(verdict));
        if (settled->state != HX_STATE_NONE && verdict != HX_DONE)
            buf_printf(&b, "  now %s", hx_state_text(settled->state));
        buf_char(&b, '\n');
    }
    pthread_mutex_lock(&r->lock);
    print_buf(&b);
    print_flush();
    pthread_mutex_unlock(&r->lock);
}

static void on_lease_lost(void *ctx, hx_message *m) {
    (void)ctx;
    say("%s: the lease is lost while its command runs: another consumer may be handed the message", name_of(m));
}

static void raise_to(atomic_int *worst, int code) {
    if (code > atomic_load(worst)) atomic_store(worst, code);
}

/* Told to stop while the broker did not answer: the last that is heard of this message here. */
static void say_left(const hx_message *m, const hx_error *err) {
    const char *kind = m->key[0] ? "key" : "messages";
    say_wrong(
        "%s: %s. It is not known whether it is settled: `hapax %s show %s %s` tells once the broker answers. If it "
        "is not, its outcome counts as unknown when its lease ends: look up what was done before it is done again",
        name_of(m), err->detail, kind, m->queue, name_of(m));
}

static void on_trouble(void *ctx, hx_message *m, const hx_error *err) {
    struct runner *r = ctx;
    bool forever = args_has(r->cli, "forever");
    int code = cli_exit_code(err);
    if (m && err->status == HX_CANCELLED) {
        say_left(m, err);
        raise_to(&r->worst, code);
        return;
    }
    if (m && err->retryable) {
        say("%s: not settled yet, and tried again: %s: %s", name_of(m), err->code, err->detail);
        raise_to(&r->late, code);
        return;
    }
    if (m) {
        say("%s: %s: %s", name_of(m), err->code, err->detail);
    } else {
        pthread_mutex_lock(&r->lock);
        cli_failed(r->cli, err, (hx_bytes){0});
        pthread_mutex_unlock(&r->lock);
    }
    if (forever && !m && code == EXIT_UNREACHABLE) return; /* it may come back */
    raise_to(&r->worst, code);
    if (!m && (!forever || err->status == HX_DENIED)) hx_consumer_stop(r->consumer);
}

/* ---- stopping by a signal */

static void wanted_signals(sigset_t *set) {
    sigemptyset(set);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGUSR1);
}

static void *signal_run(void *arg) {
    struct runner *r = arg;
    sigset_t set;
    wanted_signals(&set);
    for (int heard = 0, number;;) {
        sigwait(&set, &number);
        if (number == SIGUSR1) return NULL; /* all is over */
        if (!atomic_load(&r->running)) {
            hx_consumer_hurry(r->consumer); /* only the broker is waited for */
        } else if (heard++) {
            eventfd_write(r->end_fd, 1);
        } else {
            hx_consumer_stop(r->consumer);
            say("no more is taken; what runs may finish. A second signal ends it, and its outcome is unknown");
        }
    }
}

static void signals_block(void) {
    sigset_t set;
    wanted_signals(&set);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN); /* a command may leave its input unread */
}

static int consume(struct runner *r, hx_consume_options *options) {
    hx_error err;
    pthread_t signals;
    if (hx_consume(r->cli->client, options, &r->consumer, &err) != HX_OK)
        return cli_failed(r->cli, &err, (hx_bytes){0});
    bool listening = pthread_create(&signals, NULL, signal_run, r) == 0;
    hx_consumer_wait(r->consumer, -1);
    if (listening) {
        pthread_kill(signals, SIGUSR1);
        pthread_join(signals, NULL);
    }
    hx_consumer_close(r->consumer);
    if (atomic_load(&r->begun) > atomic_load(&r->handled)) raise_to(&r->worst, atomic_load(&r->late));
    if (atomic_load(&r->worst)) return atomic_load(&r->worst);
    if (atomic_load(&r->cannot_run)) return EXIT_REFUSED;
    if (atomic_load(&r->handled) || args_has(r->cli, "forever")) return EXIT_DONE;
    cli_say_nothing_received(r->cli);
    return EXIT_REFUSED;
}

int cli_receive_exec(struct cli *cli, const struct exec_commands *commands, hx_consume_options *options) {
    struct runner r = {.cli = cli, .commands = commands, .end_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    pthread_mutex_init(&r.lock, NULL);
    options->handler = handle;
    options->ctx = &r;
    options->on_settled = on_settled;
    options->on_lease_lost = on_lease_lost;
    options->on_trouble = on_trouble;
    signals_block();
    int rc = consume(&r, options);
    pthread_mutex_destroy(&r.lock);
    close(r.end_fd);
    return rc;
}
