/* A server that does what a script says, on a thread; a loop with an outbound that calls it. */
#ifndef HAPAX_TESTS_OUTBOUND_KIT_H
#define HAPAX_TESTS_OUTBOUND_KIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/loop.h"
#include "net/outbound_priv.h"

#define STEPS_MAX 16

/* What is done with a request: answer it with these bytes, then do that with its connection. */
enum then {
    KEEP,
    CLOSE,
    RESET,
    HANG /* until the client goes */,
    RESET_IN_HEAD /* before the request is read to its end */
};
struct step {
    const char *reply;
    enum then then;
    size_t more; /* so many bytes 'x' behind it */
};

struct server {
    int fd;
    u16 port;
    pthread_t thread;
    pthread_mutex_t lock;
    const struct step *steps; /* by the request's number; the last goes on */
    u32 step_count;
    u32 requests, connections; /* under the lock */
    struct buf last, all;      /* requests as they came, under the lock */
};

static inline size_t request_bytes(const struct buf *b) {
    const char *end = b->len ? memmem(b->p, b->len, "\r\n\r\n", 4) : NULL;
    if (!end) return 0;
    const char *said = memmem(b->p, (size_t)(end - b->p), "Content-Length: ", 16);
    return (size_t)(end - b->p) + 4 + (said ? strtoul(said + 16, NULL, 10) : 0);
}

/* false: the client is gone. */
static inline bool read_request(int fd, struct buf *in, bool head_only) {
    char bytes[16384];
    while (request_bytes(in) == 0 || (!head_only && in->len < request_bytes(in))) {
        ssize_t n = read(fd, bytes, sizeof bytes);
        if (n <= 0) return false;
        buf_add(in, bytes, (size_t)n);
    }
    return true;
}

static inline void send_all(int fd, const char *p, size_t n) {
    while (n) {
        ssize_t sent = send(fd, p, n, MSG_NOSIGNAL);
        if (sent <= 0) return;
        p += sent;
        n -= (size_t)sent;
    }
}

static inline void send_more(int fd, size_t n) {
    char bytes[16384];
    memset(bytes, 'x', sizeof bytes);
    for (; n; n -= n < sizeof bytes ? n : sizeof bytes) send_all(fd, bytes, n < sizeof bytes ? n : sizeof bytes);
}

static inline const struct step *next_step(struct server *s) {
    pthread_mutex_lock(&s->lock);
    const struct step *step = &s->steps[s->requests < s->step_count ? s->requests : s->step_count - 1];
    pthread_mutex_unlock(&s->lock);
    return step;
}

static inline const struct step *note_request(struct server *s, const struct buf *in) {
    const struct step *step = next_step(s);
    pthread_mutex_lock(&s->lock);
    s->requests++;
    buf_reset(&s->last);
    buf_add(&s->last, in->p, in->len);
    buf_char(&s->last, 0);
    pthread_mutex_unlock(&s->lock);
    return step;
}

static inline void reset(int fd) {
    struct linger none = {.l_onoff = 1};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
}

static inline void *serve_connection(void *arg) {
    struct server *s = ((void **)arg)[0];
    int fd = (int)(intptr_t)((void **)arg)[1];
    struct buf in = {0};
    mem_free(arg);
    for (bool more = true; more;) {
        buf_reset(&in);
        if (!read_request(fd, &in, next_step(s)->then == RESET_IN_HEAD)) break;
        const struct step *step = note_request(s, &in);
        send_all(fd, step->reply, strlen(step->reply));
        send_more(fd, step->more);
        char c;
        if (step->then == HANG)
            while (read(fd, &c, 1) > 0) {
            }
        if (step->then == RESET || step->then == RESET_IN_HEAD) reset(fd);
        more = step->then == KEEP;
    }
    close(fd);
    buf_free(&in);
    return NULL;
}

static inline void *serve(void *arg) {
    struct server *s = arg;
    pthread_t threads[256];
    u32 count = 0;
    for (int fd; count < 256 && (fd = accept(s->fd, NULL, NULL)) >= 0;) {
        void **both = mem_alloc(2 * sizeof *both);
        both[0] = s;
        both[1] = (void *)(intptr_t)fd;
        pthread_mutex_lock(&s->lock);
        s->connections++;
        pthread_mutex_unlock(&s->lock);
        pthread_create(&threads[count++], NULL, serve_connection, both);
    }
    for (u32 i = 0; i < count; i++) pthread_join(threads[i], NULL);
    return NULL;
}

static inline void server_open(struct server *s, const struct step *steps, u32 count) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t n = sizeof at;
    *s = (struct server){.fd = socket(AF_INET, SOCK_STREAM, 0), .steps = steps, .step_count = count};
    pthread_mutex_init(&s->lock, NULL);
    assert_int_equal(bind(s->fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(s->fd, 256), 0);
    getsockname(s->fd, (struct sockaddr *)&at, &n);
    s->port = ntohs(at.sin_port);
    pthread_create(&s->thread, NULL, serve, s);
}

/* After the client is: its connections end with it. */
static inline void server_close(struct server *s) {
    shutdown(s->fd, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    close(s->fd);
    buf_free(&s->last);
    buf_free(&s->all);
}

/* What a call ended with. */
struct heard {
    u32 count; /* how often it was told */
    enum outbound_end end;
    u32 status;
    bool truncated;
    struct buf head, body, why;
};

static struct kit {
    struct loop *loop;
    struct outbound *out;
    u32 waiting;
} kit;

static inline void on_heard(void *ctx, u64 number, const struct outbound_answer *a) {
    struct heard *h = ctx;
    (void)number;
    h->count++;
    h->end = a->end;
    h->status = a->status;
    h->truncated = a->truncated;
    buf_slice_add(&h->head, a->head);
    buf_slice_add(&h->body, a->body);
    buf_slice_add(&h->why, slice_str(a->why));
    buf_char(&h->head, 0);
    buf_char(&h->body, 0);
    buf_char(&h->why, 0);
    if (--kit.waiting == 0) loop_stop(kit.loop);
}

static inline void heard_free(struct heard *h) {
    buf_free(&h->head);
    buf_free(&h->body);
    buf_free(&h->why);
    *h = (struct heard){0};
}

static inline void kit_open_with(resolver_fn *lookup, const char *authorities) {
    signal(SIGPIPE, SIG_IGN); /* as hapaxd does */
    kit.loop = loop_new();
    kit.out = outbound_new_with(loop_uv(kit.loop), 64, lookup, authorities);
}

static inline int kit_open_world(void **state) {
    (void)state;
    kit_open_with(NULL, "/etc/ssl/certs");
    return 0;
}

static inline int kit_close_world(void **state) {
    (void)state;
    outbound_free(kit.out);
    loop_free(kit.loop);
    return 0;
}

static inline void call_begin(const struct outbound_request *r, struct heard *h) {
    kit.waiting++;
    assert_non_null(outbound_call(kit.out, r, on_heard, h, 7));
}

static inline void call_and_wait(const struct outbound_request *r, struct heard *h) {
    call_begin(r, h);
    assert_int_equal(h->count, 0);
    loop_run(kit.loop);
    assert_int_equal(h->count, 1);
}

static inline struct outbound_request request_to(const struct server *s, const char *method, slice body, char *url) {
    snprintf(url, 64, "http://127.0.0.1:%u/path", s->port);
    return (struct outbound_request){.method = method,
                                     .url = url,
                                     .body = body,
                                     .connect_ms = 10000,
                                     .total_ms = 20000,
                                     .answer_max = 65536,
                                     .allow_private = true};
}

#endif
