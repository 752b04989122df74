/* A server on a real socket, and its clients. Both share one thread: pump() sleeps until either side has something to
 * do, runs the loop once without blocking and reads what the clients got; a test waits for a condition, never for a
 * time. With OVER_TLS they speak TLS to each other, and the tests do not know. */
#ifndef HAPAX_TESTS_HTTP_HARNESS_H
#define HAPAX_TESTS_HTTP_HARNESS_H

#include "net/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

#include <cmocka.h>

#ifdef OVER_TLS
#include "unit/tls_kit.h"
static struct tls_kit kit;
#define SEALED_MOST TLS_SLICE
#define IDLE_BYTES  60000u /* of both sides */
#else
#define SEALED_MOST 0u
#define IDLE_BYTES  1400u
#define SSL         void /* there is none */
#endif

#define CLIENTS_MAX  1100
#define PATIENCE_MS  60000 /* under a sanitizer, on a machine that does other things too */
#define RECEIPTS_MAX 65536u
#define FATED_AFTER  5u /* what the replies of /fated wait for */
#define OTHER_STREAM 63u
#define BODY_LIMIT   ((u64)1 << 20)

struct client {
    int fd;
    bool eof, deaf; /* deaf: does not read */
    struct buf got;
    SSL *ssl;
};

static uv_loop_t loop;
static struct http_server *server;
static struct client clients[CLIENTS_MAX];
static size_t client_count;

/* What the handler saw. */
static struct buf seen; /* "METHOD-NUMBER PATH[body length];" for every request */
static struct http_conn *waiting[64];
static size_t waiting_count, gone_count, turns, fates_true, fates_false, closed_calls;
static u8 fate_told[RECEIPTS_MAX];
static int handler_depth, deepest;
static u64 bytes_out_at_turn_end;
static bool close_in_handler, respond_to_waiting, receipts_take_time;
static bool at_work;           /* what waits is being worked on, and cannot be hurried */
static void (*in_stall)(void); /* what the others do meanwhile */

static inline void reply_to(struct http_conn *conn, u16 status, slice body, u64 after, u64 receipt) {
    struct http_reply reply = {.status = status,
                               .content_type = SL("text/plain"),
                               .body = body,
                               .after = {.position = after},
                               .receipt = receipt};
    http_respond(conn, &reply);
}

static inline u64 number_in(slice query) {
    u64 n = 0;
    slice_u64(query, &n);
    return n;
}

static inline void reply_big(struct http_conn *conn, u64 n, u64 after) {
    char *body = mem_alloc((size_t)n + 1);
    memset(body, 'b', (size_t)n);
    reply_to(conn, 200, slice_of(body, (size_t)n), after, 0);
    mem_free(body);
}

/* By the clock that turns go by, which moves some milliseconds at a time. */
static inline void take_time(i64 ms) {
    struct timespec t;
    i64 began = 0, now = 0;
    do {
        clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
        now = (i64)t.tv_sec * 1000 + t.tv_nsec / 1000000;
        if (began == 0) began = now;
    } while (now - began < ms);
}

static inline void answer(struct http_conn *conn, const struct http_request *req) {
    u64 n = number_in(req->query);
    if (slice_eq(req->path, SL("/later"))) {
        http_conn_set_user(conn, &waiting[waiting_count]);
        waiting[waiting_count++] = conn;
    } else if (slice_eq(req->path, SL("/feed"))) {
        http_conn_set_user(conn, &waiting[waiting_count]);
        if (req->method != HTTP_HEAD) waiting[waiting_count++] = conn;
        http_respond(conn, &(struct http_reply){.status = 200, .content_type = SL("text/plain"), .feed = true});
    } else if (slice_eq(req->path, SL("/park"))) {
        reply_to(conn, 200, req->query, n, 0);
    } else if (slice_eq(req->path, SL("/other"))) {
        http_respond(conn, &(struct http_reply){.status = 200, .body = req->query, .after = {n, OTHER_STREAM}});
    } else if (slice_eq(req->path, SL("/big-parked"))) {
        reply_big(conn, n, 1);
    } else if (slice_eq(req->path, SL("/receipt"))) {
        reply_to(conn, 200, req->query, n, n);
    } else if (slice_eq(req->path, SL("/fated"))) {
        reply_to(conn, 200, req->query, FATED_AFTER, n);
    } else if (slice_eq(req->path, SL("/fat"))) {
        static const char kilobyte[1024];
        reply_to(conn, 200, slice_of(kilobyte, sizeof kilobyte), 0, n);
    } else if (slice_starts(req->path, SL("/slow"))) {
        take_time(1);
        reply_to(conn, 200, req->path, 0, 0);
    } else if (slice_eq(req->path, SL("/stall"))) {
        if (in_stall) in_stall();
        take_time((i64)n);
        reply_to(conn, 200, req->path, 0, 0);
    } else if (slice_eq(req->path, SL("/big"))) {
        reply_big(conn, n, 0);
    } else if (slice_eq(req->path, SL("/status"))) {
        reply_to(conn, (u16)n, SL("text"), 0, 0);
    } else if (slice_eq(req->path, SL("/close"))) {
        http_respond(conn, &(struct http_reply){.status = 200, .close = true, .body = SL("bye")});
    } else if (slice_eq(req->path, SL("/inject"))) {
        http_respond(conn, &(struct http_reply){.status = 200, .content_type = SL("a\r\nEvil: 1"), .body = SL("x")});
    } else {
        reply_to(conn, 200, req->body.n ? req->body : req->path, 0, 0);
    }
}

static inline void on_request(void *ctx, struct http_conn *conn, const struct http_request *req) {
    (void)ctx;
    if (++handler_depth > deepest) deepest = handler_depth;
    buf_printf(&seen, "%d %.*s[%zu];", (int)req->method, (int)req->path.n, req->path.p, req->body.n);
    if (respond_to_waiting && waiting_count) {
        respond_to_waiting = false;
        reply_to(waiting[--waiting_count], 200, SL("late"), 0, 0);
    }
    if (close_in_handler) http_server_close(server);
    answer(conn, req);
    handler_depth--;
}

static inline u64 body_limit(void *ctx, struct http_request *head) {
    (void)ctx;
    return slice_eq(head->path, SL("/unwanted")) ? HTTP_BODY_UNWANTED : BODY_LIMIT;
}

static inline void on_gone(void *ctx, struct http_conn *conn) {
    (void)ctx;
    gone_count++;
    struct http_conn **slot = http_conn_user(conn);
    if (!slot) return;
    *slot = waiting[--waiting_count];
    http_conn_set_user(*slot, slot);
}

static inline bool urgent(void *ctx, struct http_request *head) {
    (void)ctx;
    return slice_eq(head->path, SL("/urgent"));
}

static inline bool hurry(void *ctx, struct http_conn *conn) {
    struct http_conn **slot = http_conn_user(conn);
    (void)ctx;
    if (!slot || at_work) return false;
    *slot = waiting[--waiting_count];
    http_conn_set_user(*slot, slot);
    reply_to(conn, 200, SL("hurried"), 0, 0);
    return true;
}

static inline void on_receipt(void *ctx, u64 receipt, bool written) {
    (void)ctx;
    assert_int_equal(fate_told[receipt]++, 0);
    if (receipts_take_time) take_time(1);
    if (written)
        fates_true++;
    else
        fates_false++;
}

static inline void on_turn_end(void *ctx) {
    (void)ctx;
    struct http_server_stats stats;
    http_server_stats_get(server, &stats);
    bytes_out_at_turn_end = stats.bytes_out;
    turns++;
}

static inline void render_error(void *ctx, u16 status, const char *code, const char *detail, struct buf *body) {
    (void)ctx;
    buf_printf(body, "{\"status\":%u,\"code\":\"%s\",\"detail\":\"%s\"}", (unsigned)status, code, detail);
}

static const struct http_handler handler = {.on_request = on_request,
                                            .body_limit = body_limit,
                                            .on_gone = on_gone,
                                            .on_receipt = on_receipt,
                                            .on_turn_end = on_turn_end,
                                            .urgent = urgent,
                                            .hurry = hurry,
                                            .render_error = render_error};

/* ---- clients */

static inline void start(const struct http_limits *limits) {
    struct errbuf err;
    struct tls *tls = NULL;
#ifdef OVER_TLS
    signal(SIGPIPE, SIG_IGN); /* OpenSSL writes without MSG_NOSIGNAL */
    if (!kit.tls) kit_open(&kit);
    tls = kit.tls;
#endif
    assert_int_equal(uv_loop_init(&loop), 0);
    server = http_server_new(&loop, limits, &handler);
    assert_int_equal(http_server_bind(server, "127.0.0.1", 0, tls, &err), ST_OK);
    assert_int_equal(http_server_listen(server, &err), ST_OK);
}

static inline void pump(void);
static i64 patience_over;
static inline void be_patient(void) {
    patience_over = clock_mono_ms() + PATIENCE_MS;
}
static inline bool still_patient(const char *what, int line) {
    if (clock_mono_ms() > patience_over) fail_msg("line %d: in vain waited for %s", line, what);
    return true;
}

#ifdef OVER_TLS
static inline ssize_t tls_result(struct client *c, bool done, const size_t *n) {
    if (done) return (ssize_t)*n;
    int why = SSL_get_error(c->ssl, 0);
    ERR_clear_error(); /* it is this client's, and would be taken for the next one's */
    errno = why == SSL_ERROR_WANT_WRITE || why == SSL_ERROR_WANT_READ ? EAGAIN : EPIPE;
    return why == SSL_ERROR_ZERO_RETURN ? 0 : -1;
}
#endif

/* As recv and send do. */
static inline ssize_t client_recv(struct client *c, void *p, size_t n) {
#ifdef OVER_TLS
    size_t got = 0;
    if (c->ssl) return tls_result(c, SSL_read_ex(c->ssl, p, n, &got) == 1, &got);
#endif
    return recv(c->fd, p, n, 0);
}

static inline ssize_t client_send(struct client *c, const void *p, size_t n) {
#ifdef OVER_TLS
    size_t sent = 0;
    if (c->ssl) return tls_result(c, SSL_write_ex(c->ssl, p, n, &sent) == 1, &sent);
#endif
    return send(c->fd, p, n, MSG_NOSIGNAL);
}

/* It has said all it had to say. */
static inline void end(struct client *c) {
#ifdef OVER_TLS
    SSL_shutdown(c->ssl);
#endif
    shutdown(c->fd, SHUT_WR);
}

static inline void greet(struct client *c) {
#ifdef OVER_TLS
    c->ssl = SSL_new(kit.client);
    SSL_set_fd(c->ssl, c->fd);
    SSL_set_connect_state(c->ssl);
    be_patient();
    while (SSL_do_handshake(c->ssl) != 1 && SSL_get_error(c->ssl, -1) == SSL_ERROR_WANT_READ &&
           still_patient("a handshake", __LINE__))
        pump();
#else
    (void)c;
#endif
}

static inline void forget(struct client *c) {
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
#ifdef OVER_TLS
    SSL_free(c->ssl);
#endif
    buf_free(&c->got);
}

/* From an address of this machine: all of 127.0.0.0/8 are. */
static inline int dial_port_from(u16 port, u32 from) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(from)}};
    if (from) assert_int_equal(bind(fd, (struct sockaddr *)&own, sizeof own), 0);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

static inline int dial_port(u16 port) {
    return dial_port_from(port, 0);
}

static inline struct client *dial_from(u32 from) {
    assert_true(client_count < CLIENTS_MAX);
    struct client *c = &clients[client_count++];
    *c = (struct client){.fd = dial_port_from(http_server_port(server, 0), from)};
    greet(c);
    return c;
}

static inline struct client *dial(void) {
    return dial_from(0);
}

static inline void hang_up(struct client *c, bool reset) {
    struct linger hard = {.l_onoff = 1, .l_linger = 0};
    if (reset) setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    close(c->fd);
    c->fd = -1;
}

static inline void listen_to(struct client *c) {
    char space[65536];
    while (c->fd >= 0 && !c->eof && !c->deaf) {
        ssize_t n = client_recv(c, space, sizeof space);
        if (n < 0 && errno == EAGAIN) return;
        if (n <= 0)
            c->eof = true;
        else
            buf_add(&c->got, space, (size_t)n);
    }
}

static inline void pump(void) {
    static struct pollfd fds[CLIENTS_MAX + 1];
    size_t n = 0;
    uv_update_time(&loop);
    fds[n++] = (struct pollfd){.fd = uv_backend_fd(&loop), .events = POLLIN};
    for (size_t i = 0; i < client_count; i++)
        if (clients[i].fd >= 0 && !clients[i].eof && !clients[i].deaf)
            fds[n++] = (struct pollfd){.fd = clients[i].fd, .events = POLLIN};
    int timeout = uv_backend_timeout(&loop);
    poll(fds, n, timeout < 0 || timeout > 10 ? 10 : timeout);
    uv_run(&loop, UV_RUN_NOWAIT);
    for (size_t i = 0; i < client_count; i++) listen_to(&clients[i]);
}

#define WAIT_FOR(cond)                                                                                                 \
    do {                                                                                                               \
        be_patient();                                                                                                  \
        while (!(cond) && still_patient(#cond, __LINE__)) pump();                                                      \
    } while (0)

/* Until nothing leaves any more: those who do not read have full sockets. */
static inline void fill_sockets(void) {
    struct http_server_stats now;
    u64 out = 0;
    for (int quiet = 0; quiet < 20;) {
        pump();
        http_server_stats_get(server, &now);
        quiet = now.bytes_out == out ? quiet + 1 : 0;
        out = now.bytes_out;
    }
}

/* Everything that is under way has arrived: another connection has asked and been answered since, twice. */
static inline void quiesce(void) {
    for (int i = 0; i < 2; i++) {
        struct client *c = dial();
        assert_int_equal(client_send(c, "GET /ping HTTP/1.0\r\n\r\n", 22), 22);
        WAIT_FOR(c->eof);
        forget(c);
        client_count--;
    }
}

static inline void say(struct client *c, slice text) {
    be_patient();
    while (text.n && still_patient("room to send", __LINE__)) {
        ssize_t n = client_send(c, text.p, text.n);
        if (n < 0) {
            if (errno != EAGAIN) return; /* the server hung up: the test will see */
            pump();
            continue;
        }
        text = slice_of(text.p + n, text.n - (size_t)n);
    }
}

static inline void get(struct client *c, const char *target) {
    struct buf b = {0};
    buf_printf(&b, "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", target);
    say(c, buf_slice(&b));
    buf_free(&b);
}

static inline bool has(struct client *c, const char *text) {
    return c->got.len && memmem(c->got.p, c->got.len, text, strlen(text));
}

static inline size_t count_of(const struct buf *b, const char *text) {
    size_t n = 0, len = strlen(text);
    for (const char *p = b->p, *end = b->p + b->len; b->len && (p = memmem(p, (size_t)(end - p), text, len)); p += len)
        n++;
    return n;
}

static inline size_t replies(struct client *c) {
    return count_of(&c->got, "HTTP/1.1 ");
}

static inline bool saw(const char *text) {
    return seen.len && memmem(seen.p, seen.len, text, strlen(text));
}

static inline struct http_server_stats stats(void) {
    struct http_server_stats s;
    http_server_stats_get(server, &s);
    return s;
}

static inline int set_up(void **state) {
    (void)state;
    client_count = waiting_count = gone_count = turns = fates_true = fates_false = closed_calls = 0;
    bytes_out_at_turn_end = 0;
    memset(fate_told, 0, sizeof fate_told);
    handler_depth = deepest = 0;
    close_in_handler = respond_to_waiting = receipts_take_time = at_work = false;
    in_stall = NULL;
    return 0;
}

static inline int tear_down(void **state) {
    (void)state;
    if (server) http_server_close(server);
    server = NULL;
    for (size_t i = 0; i < client_count; i++) forget(&clients[i]);
    client_count = 0;
    uv_run(&loop, UV_RUN_DEFAULT);
    int left = uv_loop_close(&loop);
    buf_free(&seen);
    return left;
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
/* One that is about what happens before a handshake is over, or where there is none. */
#ifdef OVER_TLS
static inline void say_nothing(void **state) {
    (void)state;
    skip();
}
#define PLAIN_TEST(f)                                                                                                  \
    { .name = #f, .test_func = ((void)f, say_nothing) }
#else
#define PLAIN_TEST(f) TEST(f)
#endif

#endif
