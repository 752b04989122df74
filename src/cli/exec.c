/* receive --exec: one shell command a message.
 *
 * The library's consumer does the leases; a handler here runs the command: payload into its standard input, its
 * standard output gathered, both at once so that neither side waits for the other. The command gets its own process
 * group: a Ctrl-C stops hapax from taking more, while a command that has begun may finish, or its outcome would be
 * unknown. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/json.h"
#include "cli/cli.h"

extern char **environ;

enum { OUTPUT_MAX = 1 << 20, EXIT_POISON = 65, EXIT_TRANSIENT = 75, EXIT_REJECTED = 100, EXIT_ABSENT = 101 };
enum { EXIT_NOT_EXECUTABLE = 126, EXIT_NO_COMMAND = 127, EXIT_SIGNALLED = 128 };

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

static void env_add(struct buf *list, const char *name, const char *value) {
    size_t n = strlen(name) + strlen(value) + 2;
    char *entry = mem_alloc(n);
    snprintf(entry, n, "%s=%s", name, value);
    buf_add(list, &entry, sizeof(entry));
}

static const char *delivery_name(hx_delivery d) {
    return d == HX_DELIVERY_FIRST ? "first" : d == HX_DELIVERY_RETRY ? "retry" : "reconcile";
}

static const char *const env_names[] = {"HAPAX_KEY",          "HAPAX_EFFECT_KEY", "HAPAX_TOKEN", "HAPAX_FENCE",
                                        "HAPAX_ATTEMPT",      "HAPAX_DELIVERY",   "HAPAX_QUEUE", "HAPAX_ID",
                                        "HAPAX_CONTENT_TYPE", "HAPAX_GROUP",      "HAPAX_URL"};

static bool is_ours(const char *entry) {
    for (size_t i = 0; i < sizeof(env_names) / sizeof(env_names[0]); i++) {
        size_t n = strlen(env_names[i]);
        if (strncmp(entry, env_names[i], n) == 0 && entry[n] == '=') return true;
    }
    return false;
}

/* A NULL-ended vector in `list`; the first *own entries are to be freed. */
static void env_make(struct buf *list, const struct runner *r, const hx_message *m, size_t *own) {
    char fence[24], attempt[24];
    snprintf(fence, sizeof(fence), "%lld", (long long)m->fence);
    snprintf(attempt, sizeof(attempt), "%lld", (long long)m->attempt);
    env_add(list, "HAPAX_KEY", m->key);
    env_add(list, "HAPAX_EFFECT_KEY", m->effect_key);
    env_add(list, "HAPAX_TOKEN", m->token);
    env_add(list, "HAPAX_FENCE", fence);
    env_add(list, "HAPAX_ATTEMPT", attempt);
    env_add(list, "HAPAX_DELIVERY", delivery_name(m->delivery));
    env_add(list, "HAPAX_QUEUE", m->queue);
    env_add(list, "HAPAX_ID", m->id);
    env_add(list, "HAPAX_CONTENT_TYPE", m->content_type);
    if (m->group) env_add(list, "HAPAX_GROUP", m->group);
    env_add(list, "HAPAX_URL", r->cli->url);
    *own = list->len / sizeof(char *);
    for (char **e = environ; *e; e++)
        if (!is_ours(*e)) buf_add(list, e, sizeof(*e));
    char *end = NULL;
    buf_add(list, &end, sizeof(end));
}

static void env_free(struct buf *list, size_t own) {
    char **entries = (char **)(void *)list->p;
    for (size_t i = 0; i < own; i++) mem_free(entries[i]);
    buf_free(list);
}

/* ---- running it */

struct child {
    pid_t pid;
    int in, out; /* our ends */
};

static bool pipes_make(int in[2], int out[2]) {
    if (pipe2(in, O_CLOEXEC) != 0) return false;
    if (pipe2(out, O_CLOEXEC) == 0) return true;
    close(in[0]);
    close(in[1]);
    return false;
}

/* posix_spawn, because other threads are running: nothing may happen between fork and exec. */
static int spawn_shell(const char *command, char **env, int in, int out, pid_t *pid) {
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none, defaults;
    sigemptyset(&none);
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, in, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&files, out, STDOUT_FILENO);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &defaults);
    posix_spawnattr_setpgroup(&attr, 0);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    char sh[] = "sh", c[] = "-c";
    char *argv[] = {sh, c, (char *)(uintptr_t)command, NULL};
    int rc = posix_spawn(pid, "/bin/sh", &files, &attr, argv, env);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attr);
    return rc;
}

static bool child_start(const struct runner *r, const hx_message *m, struct child *out) {
    int in[2], from[2];
    if (!pipes_make(in, from)) return false;
    struct buf env = {0};
    size_t own;
    env_make(&env, r, m, &own);
    int rc = spawn_shell(r->command, (char **)(void *)env.p, in[0], from[1], &out->pid);
    env_free(&env, own);
    close(in[0]);
    close(from[1]);
    out->in = in[1];
    out->out = from[0];
    if (rc == 0) return true;
    close(in[1]);
    close(from[0]);
    return false;
}

/* A piece of the payload into the command. A command that does not read it is no error. */
static void feed(struct child *c, hx_bytes payload, size_t *at) {
    ssize_t n = write(c->in, (const char *)payload.data + *at, payload.size - *at);
    if (n > 0) *at += (size_t)n;
    bool over = *at == payload.size || (n < 0 && errno != EAGAIN && errno != EINTR);
    if (!over) return;
    close(c->in);
    c->in = -1;
}

/* A piece of its output. What is beyond OUTPUT_MAX is read and dropped; *cut says so. */
static void gather(struct child *c, struct buf *output, bool *cut) {
    char piece[16384];
    ssize_t n = read(c->out, piece, sizeof(piece));
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
        close(c->out);
        c->out = -1;
        return;
    }
    size_t room = OUTPUT_MAX - output->len;
    if ((size_t)n > room) *cut = true;
    buf_add(output, piece, (size_t)n < room ? (size_t)n : room);
}

/* Until it is gone. Returns its exit code as a shell would tell it. */
static int child_run(struct child *c, hx_bytes payload, struct buf *output, bool *cut) {
    size_t at = 0;
    fcntl(c->in, F_SETFL, O_NONBLOCK);
    if (payload.size == 0) feed(c, payload, &at);
    while (c->out >= 0) {
        struct pollfd p[2] = {{.fd = c->out, .events = POLLIN}, {.fd = c->in, .events = POLLOUT}};
        if (poll(p, 2, -1) < 0) continue;
        if (p[0].revents) gather(c, output, cut);
        if (c->in >= 0 && p[1].revents) feed(c, payload, &at);
    }
    if (c->in >= 0) close(c->in);
    int status = 0;
    while (waitpid(c->pid, &status, 0) < 0 && errno == EINTR) continue;
    return WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_SIGNALLED + WTERMSIG(status);
}

/* ---- the handler */

static hx_verdict verdict_of(struct runner *r, hx_message *m, int code, struct buf *output, bool cut) {
    char reason[64];
    snprintf(reason, sizeof(reason), code > EXIT_SIGNALLED ? "command ended by signal %d" : "command exited with %d",
             code > EXIT_SIGNALLED ? code - EXIT_SIGNALLED : code);
    buf_grow(output, 1);
    if (cut && (code == 0 || code == EXIT_REJECTED)) {
        /* The work is done, so the message is settled; half a result would be a wrong one. */
        say("%s: the command's output is larger than %d bytes: settled without a result", m->key, OUTPUT_MAX);
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
    case EXIT_ABSENT:
        return HX_FAIL_ABSENT;
    case EXIT_NOT_EXECUTABLE:
    case EXIT_NO_COMMAND:
        atomic_store(&r->cannot_run, true);
        say("%s: %s: the message is given back", r->command, reason);
        return HX_GIVE_BACK_AND_STOP;
    default:
        return HX_FAIL_UNKNOWN;
    }
}

static hx_verdict handle(void *ctx, hx_message *m) {
    struct runner *r = ctx;
    struct child child;
    struct buf output = {0};
    bool cut = false;
    int code = EXIT_NOT_EXECUTABLE;
    if (child_start(r, m, &child)) code = child_run(&child, m->payload, &output, &cut);
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
        print_clean(&b, slice_str(m->key), false);
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
    say("%s: the lease is lost while its command runs: another consumer may be handed the message", m->key);
}

static void on_trouble(void *ctx, hx_message *m, const hx_error *err) {
    struct runner *r = ctx;
    bool forever = args_has(r->cli, "forever");
    int code = cli_exit_code(err);
    if (m) {
        say("%s: %s: %s", m->key, err->code, err->detail);
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
