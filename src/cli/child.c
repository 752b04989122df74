/* A shell command of the user's: bytes into its standard input, its standard output gathered, its standard error handed on,
 * all at once so that no side waits for another. It gets a process group of its own, so that a Ctrl-C meant for hapax
 * does not end what it has begun, and so that all it started can be ended with it. */
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

enum { LINE_MAX_BYTES = 4096, PIECE_BYTES = 16384, PIPE_PIECES = 4 };

/* One under way: our ends of its pipes (-1: closed), and what of its standard error is no whole line yet. */
struct running {
    struct child *child;
    pid_t pid;
    int in, out, err, pidfd;
    size_t fed;
    i64 deadline; /* 0: none */
    char line[LINE_MAX_BYTES];
    size_t line_bytes;
    bool line_goes_on; /* its beginning has left already */
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

/* ---- starting it */

static bool pipes_make(int pipes[3][2]) {
    int made = 0;
    while (made < 3 && pipe2(pipes[made], O_CLOEXEC) == 0) made++;
    if (made == 3) return true;
    while (made--) {
        close(pipes[made][0]);
        close(pipes[made][1]);
    }
    return false;
}

/* posix_spawn, because other threads are running: nothing may happen between fork and exec. */
static int spawn_shell(const char *command, char **env, const int ends[3], pid_t *pid) {
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none, defaults;
    sigemptyset(&none);
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE);
    posix_spawn_file_actions_init(&files);
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) posix_spawn_file_actions_adddup2(&files, ends[fd], fd);
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

static void close_end(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static bool start(struct running *r) {
    int pipes[3][2];
    if (!pipes_make(pipes)) return false;
    struct buf env = {0};
    size_t own;
    env_make(&env, r->child->vars, r->child->var_count, &own);
    const int ends[3] = {pipes[0][0], pipes[1][1], pipes[2][1]};
    int rc = spawn_shell(r->child->command, (char **)(void *)env.p, ends, &r->pid);
    env_free(&env, own);
    for (int i = 0; i < 3; i++) close(ends[i]);
    r->in = pipes[0][1];
    r->out = pipes[1][0];
    r->err = pipes[2][0];
    r->pidfd = rc == 0 ? pidfd_open(r->pid, 0) : -1;
    if (rc == 0) return true;
    close_end(&r->in);
    close_end(&r->out);
    close_end(&r->err);
    return false;
}

/* ---- the conversation */

/* A piece of the input. A command that does not read it is no error. */
static void feed(struct running *r) {
    hx_bytes input = r->child->input;
    ssize_t n = write(r->in, (const char *)input.data + r->fed, input.size - r->fed);
    if (n > 0) r->fed += (size_t)n;
    if (r->fed == input.size || (n < 0 && errno != EAGAIN && errno != EINTR)) close_end(&r->in);
}

/* Up to PIECE_BYTES from one of its pipes; 0: nothing now. At its end the pipe is closed. */
static size_t read_piece(int *fd, char *piece) {
    ssize_t n = read(*fd, piece, PIECE_BYTES);
    if (n > 0) return (size_t)n;
    if (n == 0 || (errno != EAGAIN && errno != EINTR)) close_end(fd);
    return 0;
}

/* What is beyond CHILD_OUTPUT_MAX is read and dropped; `cut` says so. */
static void gather_output(struct running *r) {
    char piece[PIECE_BYTES];
    struct child *c = r->child;
    size_t n = read_piece(&r->out, piece), room = CHILD_OUTPUT_MAX - c->output.len;
    if (n > room) c->cut = true;
    buf_add(&c->output, piece, n < room ? n : room);
}

/* A line of its standard error, or LINE_MAX_BYTES of one: handed on at once. The last one that says anything is kept. */
static void line_out(struct running *r, bool whole) {
    struct buf shown = {0};
    slice line = slice_of(r->line, r->line_bytes);
    if (line.n && line.p[line.n - 1] == '\r') line.n--;
    print_for(&shown, line, STDERR_FILENO);
    if (whole) buf_char(&shown, '\n');
    fwrite(shown.p, 1, shown.len, stderr);
    buf_free(&shown);
    if (!r->line_goes_on && slice_trim(line).n) {
        buf_reset(&r->child->last_words);
        print_clean(&r->child->last_words, slice_trim(line), false);
    }
    r->line_bytes = 0;
    r->line_goes_on = !whole;
}

static void gather_errors(struct running *r) {
    char piece[PIECE_BYTES];
    size_t n = read_piece(&r->err, piece);
    for (size_t i = 0; i < n; i++) {
        if (r->line_bytes == sizeof(r->line)) line_out(r, false);
        if (piece[i] == '\n')
            line_out(r, true);
        else
            r->line[r->line_bytes++] = piece[i];
    }
}

static int time_left(i64 deadline) {
    if (!deadline) return -1;
    i64 left = deadline - clock_mono_ms();
    return left < 0 ? 0 : left > 60000 ? 60000 : (int)left;
}

/* Until it has ended and its output too; false: its time is up, or nobody wants to wait any longer. What it started may
 * hold its standard error open for ever, so nothing is waited for there. */
static bool converse(struct running *r) {
    bool exited = false;
    while (r->out >= 0 || !exited) {
        r->child->late = r->deadline && clock_mono_ms() >= r->deadline;
        if (r->child->late) return false;
        struct pollfd p[] = {{.fd = r->out, .events = POLLIN},
                             {.fd = r->err, .events = POLLIN},
                             {.fd = r->in, .events = POLLOUT},
                             {.fd = exited ? -1 : r->pidfd, .events = POLLIN},
                             {.fd = r->child->stop_fd, .events = POLLIN}};
        int ready = poll(p, sizeof(p) / sizeof(p[0]), time_left(r->deadline));
        if (ready <= 0) continue;
        if (p[0].revents) gather_output(r);
        if (p[1].revents) gather_errors(r);
        if (p[2].revents) feed(r);
        exited = exited || p[3].revents;
        if (p[4].revents) return false;
    }
    return true;
}

int child_run(struct child *c) {
    struct running r = {.child = c};
    if (!start(&r)) return CHILD_NOT_EXECUTABLE;
    r.deadline = c->timeout_ms ? clock_mono_ms() + c->timeout_ms : 0;
    fcntl(r.in, F_SETFL, O_NONBLOCK);
    fcntl(r.err, F_SETFL, O_NONBLOCK);
    if (c->input.size == 0) close_end(&r.in);
    c->ended = r.pidfd < 0 || !converse(&r); /* without a descriptor it cannot be watched */
    if (c->ended) kill(-r.pid, SIGKILL);
    int status = 0;
    while (waitpid(r.pid, &status, 0) < 0 && errno == EINTR) continue;
    for (int i = 0; i < PIPE_PIECES && r.err >= 0; i++) gather_errors(&r); /* what the pipe still holds */
    if (r.line_bytes || r.line_goes_on) line_out(&r, true);
    close_end(&r.in);
    close_end(&r.out);
    close_end(&r.err);
    close_end(&r.pidfd);
    return WIFEXITED(status) ? WEXITSTATUS(status) : CHILD_SIGNALLED + WTERMSIG(status);
}

void child_free(struct child *c) {
    buf_free(&c->output);
    buf_free(&c->last_words);
}
