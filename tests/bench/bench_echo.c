/* The ceiling of any server on this machine: loopback, one thread that reads requests of the size Hapax gets and
 * answers each with as many bytes as Hapax does, without looking at either. The server is a child of the client. */
#include "bench/client.h"

#include <signal.h>
#include <sys/prctl.h>

#define REQUEST_BYTES 340
#define REPLY_BYTES   280
#define CLIENTS_MAX   64
#define CHUNK_BYTES   (256 * 1024)

static void issue(struct load *l, struct load_conn *c) {
    static const char request[REQUEST_BYTES];
    buf_add(&c->out, request, sizeof request);
    load_sent(l, c, 0, load_take(l, 1), 1);
}

static size_t reply(struct load *l, struct load_conn *c, slice in) {
    if (in.n < REPLY_BYTES) return 0;
    load_done(l, c, 1);
    load_slot_free(c);
    return REPLY_BYTES;
}

/* Returns false when the client is gone. *pending is what remains of a request not wholly read. */
static bool answer(int fd, size_t *pending) {
    static char in[CHUNK_BYTES], out[(CHUNK_BYTES / REQUEST_BYTES + 1) * REPLY_BYTES];
    ssize_t n = read(fd, in, sizeof in);
    if (n <= 0) return false;
    *pending += (size_t)n;
    size_t bytes = *pending / REQUEST_BYTES * REPLY_BYTES;
    *pending %= REQUEST_BYTES;
    for (size_t at = 0; at < bytes;) {
        ssize_t w = write(fd, out + at, bytes - at);
        if (w <= 0) return false;
        at += (size_t)w;
    }
    return true;
}

_Noreturn static void serve(int listener) {
    static size_t pending[1024];
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event e = {.events = EPOLLIN, .data.fd = listener}, event[CLIENTS_MAX];
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &e);
    for (;;) {
        int n = epoll_wait(epoll, event, CLIENTS_MAX, -1);
        for (int i = 0; i < n; i++) {
            int fd = event[i].data.fd;
            if (fd != listener) {
                if (!answer(fd, &pending[fd])) close(fd);
                continue;
            }
            int one = 1;
            e.data.fd = accept(listener, NULL, NULL);
            if (e.data.fd < 0 || e.data.fd >= 1024) _exit(1);
            setsockopt(e.data.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            epoll_ctl(epoll, EPOLL_CTL_ADD, e.data.fd, &e);
        }
    }
}

/* Starts the child; returns its port. */
static int start_server(void) {
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t size = sizeof at;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, CLIENTS_MAX) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&at, &size) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        serve(listener);
    }
    close(listener);
    return ntohs(at.sin_port);
}

int main(int argc, char **argv) {
    static const struct load_protocol echo = {"echo", NULL, issue, reply};
    char port[16], *with_port[32] = {argv[0], "--port", port};
    CHECK(argc < 28);
    for (int i = 1; i < argc; i++) with_port[i + 2] = argv[i];
    snprintf(port, sizeof port, "%d", start_server());
    return bench_main(&echo, argc + 2, with_port);
}
