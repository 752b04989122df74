/* A shell command of the user's: bytes into its standard input, its standard output gathered, both at once so that
 * neither side waits for the other. It gets a process group of its own, so that a Ctrl-C meant for hapax does not end
 * what it has begun. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/cli.h"

extern char **environ;

struct child {
    pid_t pid;
    int in, out; /* our ends */
};

/* ---- its environment */

static bool is_given(const char *entry, const struct child_var *vars, size_t count) {
    for (size_t i = 0; i < count; i++) {
        size_t n = strlen(vars[i].name);
        if (strncmp(entry, vars[i].name, n) == 0 && entry[n] == '=') return true;
    }
    return false;
}

/* A NULL-ended vector in `list`; its first *own entries are to be freed. */
static void env_make(struct buf *list, const struct child_var *vars, size_t count, size_t *own) {
    for (size_t i = 0; i < count; i++) {
        if (!vars[i].value) continue;
        size_t n = strlen(vars[i].name) + strlen(vars[i].value) + 2;
        char *entry = mem_alloc(n);
        snprintf(entry, n, "%s=%s", vars[i].name, vars[i].value);
        buf_add(list, &entry, sizeof(entry));
    }
    *own = list->len / sizeof(char *);
    for (char **e = environ; *e; e++)
        if (!is_given(*e, vars, count)) buf_add(list, e, sizeof(*e));
    char *end = NULL;
    buf_add(list, &end, sizeof(end));
}

static void env_free(struct buf *list, size_t own) {
    char **entries = (char **)(void *)list->p;
    for (size_t i = 0; i < own; i++) mem_free(entries[i]);
    buf_free(list);
}

/* ---- running it */

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

static bool child_start(const char *command, const struct child_var *vars, size_t var_count, struct child *out) {
    int in[2], from[2];
    if (!pipes_make(in, from)) return false;
    struct buf env = {0};
    size_t own;
    env_make(&env, vars, var_count, &own);
    int rc = spawn_shell(command, (char **)(void *)env.p, in[0], from[1], &out->pid);
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

/* A piece of its output. What is beyond CHILD_OUTPUT_MAX is read and dropped; *cut says so. */
static void gather(struct child *c, struct buf *output, bool *cut) {
    char piece[16384];
    ssize_t n = read(c->out, piece, sizeof(piece));
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
        close(c->out);
        c->out = -1;
        return;
    }
    size_t room = CHILD_OUTPUT_MAX - output->len;
    if ((size_t)n > room) *cut = true;
    buf_add(output, piece, (size_t)n < room ? (size_t)n : room);
}

static int time_left(i64 deadline) {
    if (!deadline) return -1;
    i64 left = deadline - clock_mono_ms();
    return left < 0 ? 0 : left > 60000 ? 60000 : (int)left;
}

/* Feeds and gathers until its output ends or its time is up. */
static void converse(struct child *c, hx_bytes input, i64 deadline, struct buf *output, bool *cut) {
    size_t at = 0;
    fcntl(c->in, F_SETFL, O_NONBLOCK);
    if (input.size == 0) feed(c, input, &at);
    while (c->out >= 0) {
        struct pollfd p[2] = {{.fd = c->out, .events = POLLIN}, {.fd = c->in, .events = POLLOUT}};
        int ready = poll(p, 2, time_left(deadline));
        if (ready == 0 && deadline && clock_mono_ms() >= deadline) break;
        if (ready <= 0) continue;
        if (p[0].revents) gather(c, output, cut);
        if (c->in >= 0 && p[1].revents) feed(c, input, &at);
    }
    if (c->out >= 0) close(c->out);
    if (c->in >= 0) close(c->in);
}

/* It may go on after it has closed its output. When its time is up it goes, with all it started. */
static void await_end(const struct child *c, i64 deadline) {
    if (!deadline) return;
    struct pollfd p = {.fd = pidfd_open(c->pid, 0), .events = POLLIN};
    while (p.fd >= 0 && poll(&p, 1, time_left(deadline)) <= 0 && clock_mono_ms() < deadline) continue;
    if (!p.revents) kill(-c->pid, SIGKILL);
    if (p.fd >= 0) close(p.fd);
}

int child_shell(const char *command, const struct child_var *vars, size_t var_count, hx_bytes input, i64 timeout_ms,
                struct buf *output, bool *cut) {
    struct child c;
    if (!child_start(command, vars, var_count, &c)) return CHILD_NOT_EXECUTABLE;
    i64 deadline = timeout_ms ? clock_mono_ms() + timeout_ms : 0;
    converse(&c, input, deadline, output, cut);
    await_end(&c, deadline);
    int status = 0;
    while (waitpid(c.pid, &status, 0) < 0 && errno == EINTR) continue;
    return WIFEXITED(status) ? WEXITSTATUS(status) : CHILD_SIGNALLED + WTERMSIG(status);
}
