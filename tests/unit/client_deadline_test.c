/* A call of libhapax ends when its time is up, whatever the other side does: a server that always has one more byte to
 * say, one that takes the request a byte at a time, a resolver that never answers. */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "hapax/hapax.h"

enum { TIMEOUT_MS = 300, FAR_TOO_LATE_MS = 15000 };

/* ---- a server that behaves badly, one connection after the other */

struct server {
    int listen_fd;
    char url[64];
    void (*behave)(int fd);
    pthread_t thread;
};

static void *serve(void *arg) {
    struct server *s = arg;
    for (int fd; (fd = accept(s->listen_fd, NULL, NULL)) >= 0; close(fd)) s->behave(fd);
    return NULL;
}

static struct server *server_start(void (*behave)(int fd), const char *host) {
    struct server *s = calloc(1, sizeof(*s));
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof(a);
    s->behave = behave;
    s->listen_fd = socket(AF_INET, SOCK_STREAM, 0);
    int small = 4096; /* inherited by what it accepts: a request cannot hide in the kernel */
    setsockopt(s->listen_fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    assert_int_equal(bind(s->listen_fd, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(listen(s->listen_fd, 16), 0);
    assert_int_equal(getsockname(s->listen_fd, (struct sockaddr *)&a, &n), 0);
    snprintf(s->url, sizeof(s->url), "http://%s:%d", host, ntohs(a.sin_port));
    pthread_create(&s->thread, NULL, serve, s);
    return s;
}

static void server_stop(struct server *s) {
    shutdown(s->listen_fd, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    close(s->listen_fd);
    free(s);
}

/* Says `beginning`, then `more` for as long as anybody listens, and so fast that there is always some left to read. */
static void say_for_ever(int fd, const char *beginning, const char *more) {
    char request[65536];
    struct buf flood = {0};
    if (recv(fd, request, sizeof(request), 0) <= 0) return;
    send(fd, beginning, strlen(beginning), MSG_NOSIGNAL);
    while (flood.len < 1 << 20) buf_add(&flood, more, strlen(more));
    for (size_t at = 0;; at %= flood.len) {
        ssize_t n = send(fd, flood.p + at, flood.len - at, MSG_NOSIGNAL);
        if (n <= 0) break;
        at += (size_t)n;
    }
    buf_free(&flood);
}

static void interim_for_ever(int fd) {
    say_for_ever(fd, "", "HTTP/1.1 100 Continue\r\n\r\n");
}

static void trailers_for_ever(int fd) {
    say_for_ever(fd, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", "a: b\r\n");
}

static void chunks_for_ever(int fd) {
    say_for_ever(fd, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\nx\r\n");
}

static hx_client *client_of(const char *url) {
    hx_options o = {.url = url, .timeout_ms = TIMEOUT_MS, .reply_bytes_max = SIZE_MAX / 2};
    hx_client *c = NULL;
    assert_int_equal(hx_open(&o, &c, NULL), HX_OK);
    return c;
}

/* A send and a read: neither takes much longer than it may. */
static void both_end_in_time(void (*behave)(int fd)) {
    struct server *s = server_start(behave, "127.0.0.1");
    hx_client *c = client_of(s->url);
    hx_error err;
    i64 began = clock_mono_ms();
    hx_draft draft = {.key = "k", .payload = hx_str("p")};
    assert_int_equal(hx_send(c, "q", &draft, 0, NULL, &err), HX_UNKNOWN);
    assert_int_equal(err.applied, HX_APPLIED_UNKNOWN);
    assert_non_null(strstr(err.detail, "timed out"));
    hx_request look = {.method = "GET", .target = "/v1/stats"};
    assert_int_equal(hx_call(c, &look, NULL, &err), HX_UNREACHABLE);
    assert_true(clock_mono_ms() - began < FAR_TOO_LATE_MS);
    hx_close(c);
    server_stop(s);
}

static void endless_interim_answers_end_when_the_time_is_up(void **state) {
    (void)state;
    both_end_in_time(interim_for_ever);
}

static void endless_trailers_end_when_the_time_is_up(void **state) {
    (void)state;
    both_end_in_time(trailers_for_ever);
}

static void endless_tiny_chunks_end_when_the_time_is_up(void **state) {
    (void)state;
    both_end_in_time(chunks_for_ever);
}

static atomic_long bytes_taken;

static void take_by_the_byte(int fd) {
    char byte;
    while (recv(fd, &byte, 1, 0) == 1) atomic_fetch_add(&bytes_taken, 1);
}

static void a_request_that_is_taken_by_the_byte_ends_when_the_time_is_up(void **state) {
    (void)state;
    enum { BODY = 200 << 20 };
    struct server *s = server_start(take_by_the_byte, "127.0.0.1");
    hx_client *c = client_of(s->url);
    char *payload = calloc(1, BODY);
    hx_error err;
    hx_draft draft = {.key = "k", .payload = hx_bytes_of(payload, BODY)};
    assert_int_equal(hx_send(c, "q", &draft, 0, NULL, &err), HX_UNKNOWN);
    assert_true(atomic_load(&bytes_taken) < BODY);
    free(payload);
    hx_close(c);
    server_stop(s);
}

/* ---- names. The C library's resolver is ours here, and as slow as a test wants. */

static int resolver_gate = -1; /* each answer takes one from it */
static atomic_int resolving, resolved;

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **res) {
    static int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    if (strcmp(node, "slow.test") != 0) return real(node, service, hints, res);
    if (hints->ai_flags & AI_NUMERICHOST) return EAI_NONAME;
    atomic_fetch_add(&resolving, 1);
    eventfd_t n;
    eventfd_read(resolver_gate, &n);
    int rc = real("127.0.0.1", service, hints, res);
    atomic_fetch_add(&resolved, 1);
    return rc;
}

static void answer_plainly(int fd) {
    static const char text[] = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
    char request[65536];
    if (recv(fd, request, sizeof(request), 0) > 0) send(fd, text, sizeof(text) - 1, MSG_NOSIGNAL);
}

static void a_client_is_closed_while_its_name_is_still_looked_up(void **state) {
    (void)state;
    int before = atomic_load(&resolving), done = atomic_load(&resolved);
    hx_client *c = client_of("http://slow.test:1");
    hx_request look = {.method = "GET", .target = "/v1/stats"};
    assert_int_equal(hx_call(c, &look, NULL, NULL), HX_UNREACHABLE);
    hx_close(c);
    assert_int_equal(atomic_load(&resolving), before + 1);
    eventfd_write(resolver_gate, 1);
    while (atomic_load(&resolved) == done) usleep(1000); /* it ends by itself, and frees what is left */
}

static void a_name_that_is_not_resolved_in_time_is_unreachable_and_asked_for_once(void **state) {
    (void)state;
    int before = atomic_load(&resolving), done = atomic_load(&resolved);
    struct server *s = server_start(answer_plainly, "slow.test");
    hx_client *c = client_of(s->url);
    hx_error err;
    hx_request look = {.method = "GET", .target = "/v1/stats"};
    for (int i = 0; i < 5; i++) {
        assert_int_equal(hx_call(c, &look, NULL, &err), HX_UNREACHABLE);
        assert_int_equal(err.applied, HX_APPLIED_NO);
        assert_non_null(strstr(err.detail, "slow.test"));
    }
    assert_int_equal(atomic_load(&resolving), before + 1); /* five calls waited for it, one after the other */
    eventfd_write(resolver_gate, 1);
    while (atomic_load(&resolved) == done) usleep(1000);
    eventfd_write(resolver_gate, 1); /* the first answer may be used or just too old: then it is asked again */
    assert_int_equal(hx_call(c, &look, NULL, &err), HX_OK);
    hx_close(c);
    server_stop(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(endless_interim_answers_end_when_the_time_is_up),
        cmocka_unit_test(endless_trailers_end_when_the_time_is_up),
        cmocka_unit_test(endless_tiny_chunks_end_when_the_time_is_up),
        cmocka_unit_test(a_request_that_is_taken_by_the_byte_ends_when_the_time_is_up),
        cmocka_unit_test(a_client_is_closed_while_its_name_is_still_looked_up),
        cmocka_unit_test(a_name_that_is_not_resolved_in_time_is_unreachable_and_asked_for_once),
    };
    resolver_gate = eventfd(0, EFD_SEMAPHORE);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
