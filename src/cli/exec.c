/* receive --exec: one shell command a message.
 *
 * The library's consumer does the leases; a handler here runs the command and turns its exit code into a verdict. A
 * Ctrl-C stops hapax from taking more, while a command that has begun may finish, or its outcome would be unknown. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/json.h"
#include "cli/cli.h"

enum { EXIT_POISON = 65, EXIT_TRANSIENT = 75, EXIT_REJECTED = 100 };

struct runner {
    struct cli *cli;
    const char *command;
    hx_consumer *consumer;
    pthread_mutex_t lock; /* for printing */
    atomic_bool cannot_run;
    atomic_int worst; /* exit code for what went wrong on the way to the broker */
    atomic_llong handled;
};

/* ---- the command's environment */

static const char *delivery_name(hx_delivery d) {
    return d == HX_DELIVERY_FIRST ? "first" : d == HX_DELIVERY_RETRY ? "retry" : "reconcile";
}

static int command_run(const struct runner *r, const hx_message *m, struct buf *output, bool *cut) {
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
    return child_shell(r->command, vars, sizeof(vars) / sizeof(vars[0]), m->payload, 0, output, cut);
}

/* ---- the handler */

/* For people: the key, or the id of a message that has none. */
static const char *name_of(const hx_message *m) {
    return m->key[0] ? m->key : m->id;
}

static hx_verdict verdict_of(struct runner *r, hx_message *m, int code, struct buf *output, bool cut) {
    char reason[64];
    snprintf(reason, sizeof(reason), code > CHILD_SIGNALLED ? "command ended by signal %d" : "command exited with %d",
             code > CHILD_SIGNALLED ? code - CHILD_SIGNALLED : code);
    buf_grow(output, 1);
    if (cut && (code == 0 || code == EXIT_REJECTED)) {
        /* The work is done, so the message is settled; half a result would be a wrong one. */
        say("%s: the command's output is larger than %d bytes: settled without a result", name_of(m), CHILD_OUTPUT_MAX);
        buf_reset(output);
    }
    hx_message_set_reason(m, reason);
    switch (code) {
    case 0:
        hx_message_set_result(m, hx_bytes_of(output->p, output->len), NULL);
        return HX_DONE;
    case EXIT_REJECTED:
        hx_message_set_result(m, hx_bytes_of(output->p, output->len), NULL);
        return HX_FAIL_REJECTED;
    case EXIT_TRANSIENT:
        return HX_FAIL_TRANSIENT;
    case EXIT_POISON:
        return HX_FAIL_POISON;
    case CHILD_ABSENT:
        return HX_FAIL_ABSENT;
    case CHILD_NOT_EXECUTABLE:
    case CHILD_NO_COMMAND:
        atomic_store(&r->cannot_run, true);
        say("%s: %s: the message is given back", r->command, reason);
        return HX_GIVE_BACK_AND_STOP;
    default:
        return HX_FAIL_UNKNOWN;
    }
}

static hx_verdict handle(void *ctx, hx_message *m) {
    struct runner *r = ctx;
    struct buf output = {0};
    bool cut = false;
    int code = command_run(r, m, &output, &cut);
    hx_verdict verdict = verdict_of(r, m, code, &output, cut);
    buf_free(&output);
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
    fflush(stdout);
    pthread_mutex_unlock(&r->lock);
}

static void on_lease_lost(void *ctx, hx_message *m) {
    (void)ctx;
    say("%s: the lease is lost while its command runs: another consumer may be handed the message", name_of(m));
}

static void on_trouble(void *ctx, hx_message *m, const hx_error *err) {
    struct runner *r = ctx;
    bool forever = args_has(r->cli, "forever");
    int code = cli_exit_code(err);
    if (m) {
        say("%s: %s: %s", name_of(m), err->code, err->detail);
    } else {
        pthread_mutex_lock(&r->lock);
        cli_failed(r->cli, err, (hx_bytes){0});
        pthread_mutex_unlock(&r->lock);
    }
    if (forever && !m && code == EXIT_UNREACHABLE) return; /* it may come back */
    if (code > atomic_load(&r->worst)) atomic_store(&r->worst, code);
    if (!m && !forever) hx_consumer_stop(r->consumer);
}

/* ---- stopping by a signal */

static void *signal_run(void *arg) {
    struct runner *r = arg;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGUSR1);
    int signal_number = 0;
    sigwait(&set, &signal_number);
    if (signal_number != SIGUSR1) hx_consumer_stop(r->consumer);
    return NULL;
}

static void signals_block(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN); /* a command may leave its input unread */
}

int cli_receive_exec(struct cli *cli, const char *command, hx_consume_options *options) {
    struct runner r = {.cli = cli, .command = command};
    pthread_mutex_init(&r.lock, NULL);
    options->handler = handle;
    options->ctx = &r;
    options->on_settled = on_settled;
    options->on_lease_lost = on_lease_lost;
    options->on_trouble = on_trouble;
    signals_block();
    hx_error err;
    if (hx_consume(cli->client, options, &r.consumer, &err) != HX_OK) return cli_failed(cli, &err, (hx_bytes){0});
    pthread_t signals;
    bool listening = pthread_create(&signals, NULL, signal_run, &r) == 0;
    hx_consumer_wait(r.consumer, -1);
    if (listening) {
        pthread_kill(signals, SIGUSR1);
        pthread_join(signals, NULL);
    }
    hx_consumer_close(r.consumer);
    pthread_mutex_destroy(&r.lock);
    if (atomic_load(&r.worst)) return atomic_load(&r.worst);
    if (atomic_load(&r.cannot_run)) return EXIT_REFUSED;
    if (atomic_load(&r.handled) || args_has(cli, "forever")) return EXIT_DONE;
    if (!cli->json) say("nothing received");
    return EXIT_REFUSED;
}
