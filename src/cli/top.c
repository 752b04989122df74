/* top: the broker on a screen, made anew every two seconds. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include "cli/top.h"

enum { EVERY_MS = 2000, TIMEOUT_MS = 5000 };

const struct flag flags_top[] = {
    {"once", NULL, "one frame, and end; also what a pipe gets"},
    {"sort", "KEY", "r rate (default), l lag, u duplicates, d dead, h held, b blocked, a alerts, c consumers, n name"},
    {0},
};
const char about_top[] =
    "The queues on a screen, made anew every two seconds: messages in and out a second (of the last minute), the part\n"
    "of the last hour's arrivals that were duplicates, the lag (how long 95 % of what was handed out in the last five\n"
    "minutes had waited, or how long the oldest ready message waits, if that is longer), what is ready, leased, dead\n"
    "and held, blocked groups, consumers that hold leases. An exclamation mark is an alert that fires, gravest first.\n"
    "The keys that sort are on the screen's last line; q ends it.";

struct top {
    struct cli *cli;
    struct top_view view;
    const struct top_sort *sort;
    char trouble[256]; /* empty: none */
    int stop_fd, size_fd;
    bool raw, at_end;
    struct termios before;
};

static bool load(struct top *t, hx_error *err) {
    bool ok = view_load(&t->view, t->cli, err);
    t->trouble[0] = 0;
    if (ok) return true;
    struct buf clean = {0};
    print_clean(&clean, slice_str(err->detail), false);
    snprintf(t->trouble, sizeof t->trouble, "%.*s; trying again%s", (int)(clean.len < 160 ? clean.len : 160), clean.p,
             t->view.stats.len ? ". These are the last figures" : "");
    buf_free(&clean);
    return false;
}

/* ---- the terminal */

/* To the alternate screen, without a cursor; keys come one by one. Ctrl-C still ends it, Ctrl-Z would leave a mess. */
static void enter(struct top *t) {
    t->raw = isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &t->before) == 0;
    if (t->raw) {
        struct termios raw = t->before;
        raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        raw.c_cc[VMIN] = 1;
        raw.c_cc[VTIME] = 0;
        raw.c_cc[VSUSP] = raw.c_cc[VQUIT] = _POSIX_VDISABLE;
        tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    }
    fputs("\033[?1049h\033[?25l", stdout);
    fflush(stdout);
}

static void leave(const struct top *t) {
    fputs("\033[?25h\033[?1049l", stdout);
    fflush(stdout);
    if (t->raw) tcsetattr(STDIN_FILENO, TCSANOW, &t->before);
}

static struct winsize screen_size(void) {
    struct winsize size = {0};
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0)
        size = (struct winsize){.ws_col = 80, .ws_row = 24};
    return size;
}

/* Over the old frame, line by line: nothing flickers. What is there is erased before a line and not behind it, for that would
 * take the last character of a full one. The last line ends without a line feed, which would scroll. */
static void draw(struct top *t) {
    struct buf text = {0}, out = {0};
    struct winsize size = screen_size();
    struct top_frame f = {.sort = t->sort,
                          .columns = size.ws_col,
                          .lines = size.ws_row,
                          .trouble = t->trouble[0] ? t->trouble : NULL,
                          .help = true};
    view_put(&t->view, t->cli, &f, &text);
    buf_lit(&out, "\033[H");
    slice rest = buf_slice(&text), line;
    for (u32 n = 0; rest.n && n < size.ws_row; n++) {
        slice_cut(rest, '\n', &line, &rest);
        if (n) buf_lit(&out, "\r\n");
        buf_slice_add(&out, rest.n ? SL("\033[K") : SL("\033[J"));
        buf_slice_add(&out, line);
    }
    buf_free(&text);
    print_clean_buf(&out);
    if (!print_flush()) t->at_end = true;
}

static int size_fd(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGWINCH);
    sigprocmask(SIG_BLOCK, &set, NULL);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

static void take_keys(struct top *t) {
    char keys[64];
    ssize_t n = read(STDIN_FILENO, keys, sizeof keys);
    if (n <= 0) t->at_end = true; /* nobody sits there any more */
    for (ssize_t i = 0; i < n; i++) {
        const struct top_sort *sort = top_sort_of(keys[i]);
        if (keys[i] == 'q' || keys[i] == 'Q') t->at_end = true;
        if (sort) t->sort = sort;
    }
}

/* Keys, sizes and an end, until it is time for the next frame. */
static void pause_for_keys(struct top *t, i64 until) {
    while (!t->at_end) {
        struct pollfd p[3] = {{.fd = t->stop_fd, .events = POLLIN},
                              {.fd = t->size_fd, .events = POLLIN},
                              {.fd = t->raw ? STDIN_FILENO : -1, .events = POLLIN}};
        i64 left = until - clock_mono_ms();
        if (left <= 0 || poll(p, 3, (int)left) < 0) return;
        struct signalfd_siginfo info;
        if (p[0].revents) t->at_end = true;
        if (p[1].revents) (void)!read(t->size_fd, &info, sizeof info);
        if (p[2].revents) take_keys(t);
        if (!t->at_end && (p[1].revents || p[2].revents)) draw(t);
    }
}

static int watch(struct top *t) {
    t->stop_fd = cli_stop_fd();
    t->size_fd = size_fd();
    enter(t);
    while (!t->at_end) {
        hx_error err;
        i64 next = clock_mono_ms() + EVERY_MS;
        load(t, &err);
        draw(t);
        pause_for_keys(t, next);
    }
    leave(t);
    close(t->stop_fd);
    close(t->size_fd);
    return EXIT_DONE;
}

static int print_once(struct top *t) {
    struct buf out = {0};
    hx_error err;
    if (!load(t, &err)) return cli_failed(t->cli, &err, (hx_bytes){0});
    struct top_frame f = {.sort = t->sort, .columns = text_columns(STDOUT_FILENO), .lines = SIZE_MAX};
    view_put(&t->view, t->cli, &f, &out);
    print_clean_buf(&out);
    return EXIT_DONE;
}

int cmd_top(struct cli *cli) {
    const char *sort = args_get(cli, "sort");
    struct top t = {.cli = cli, .sort = top_sort_of(sort && sort[0] && !sort[1] ? sort[0] : sort ? 0 : 'r')};
    if (!t.sort) return args_wrong(cli, "--sort is one of r, l, u, d, h, b, a, c, n");
    if (!cli_client(cli, TIMEOUT_MS)) return EXIT_USAGE;
    if (cli->json) return cli_request(cli, "GET", "/v1/queues?live=true&limit=1000", SL(""), NULL);
    bool once = args_has(cli, "once") || !isatty(STDOUT_FILENO);
    int rc = once ? print_once(&t) : watch(&t);
    view_free(&t.view);
    return rc;
}
