/* libhapax against a scripted server in this process. Each test hands the server a function that answers (or does not);
 * every request it read is kept, and tests wait for requests to arrive rather than for time to pass. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "hapax/hapax.h"

/* ---- the scripted server */

enum { REQUESTS_MAX = 4096, CONNS_MAX = 256 };

struct request {
    struct buf text; /* head and body, with a NUL behind */
    const char *body;
    size_t body_size;
};

struct server;

/* One request to be answered. */
struct exchange {
    struct server *server;
    int fd;
    size_t number; /* of all requests, from 0 */
    const struct request *request;
};

struct server {
    int listen_fd;
    char url[64];
    void (*script)(struct exchange *x);
    pthread_t acceptor;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct request requests[REQUESTS_MAX];
    size_t request_count;
    int conns[CONNS_MAX];
    pthread_t threads[CONNS_MAX];
    size_t conn_count;
    bool gate; /* scripts may wait for it, see gate_wait */
    bool stopping;
};

struct conn_arg {
    struct server *server;
    size_t index;
};

static void answer_bytes(struct exchange *x, const void *p, size_t n) {
    send(x->fd, p, n, MSG_NOSIGNAL);
}

static void answer(struct exchange *x, int status, const char *fields, const char *body) {
    struct buf b = {0};
    buf_printf(&b, "HTTP/1.1 %d X\r\nContent-Length: %zu\r\n%s\r\n%s", status, strlen(body), fields, body);
    answer_bytes(x, b.p, b.len);
    buf_free(&b);
}

static void hang_up(struct exchange *x) {
    shutdown(x->fd, SHUT_RDWR);
}

/* Length of the whole request at the front of the text, 0 if it is not here yet. */
static size_t request_length(const struct buf *b, size_t *head) {
    const char *end = memmem(b->p, b->len, "\r\n\r\n", 4);
    if (!end) return 0;
    *head = (size_t)(end - b->p) + 4;
    const char *field = memmem(b->p, *head, "Content-Length: ", 16);
    size_t body = field ? strtoul(field + 16, NULL, 10) : 0;
    return b->len >= *head + body ? *head + body : 0;
}

static void *serve_conn(void *p) {
    struct conn_arg arg = *(struct conn_arg *)p;
    free(p);
    struct server *s = arg.server;
    struct buf in = {0};
    int fd = s->conns[arg.index];
    for (;;) {
        size_t head = 0, n = in.p ? request_length(&in, &head) : 0;
        if (n == 0) {
            buf_grow(&in, 65536);
            ssize_t got = recv(fd, in.p + in.len, 65536, 0);
            if (got <= 0) break;
            in.len += (size_t)got;
            continue;
        }
        pthread_mutex_lock(&s->lock);
        assert_true(s->request_count < REQUESTS_MAX);
        struct exchange x = {s, fd, s->request_count, &s->requests[s->request_count]};
        struct request *r = &s->requests[s->request_count];
        buf_add(&r->text, in.p, n);
        buf_char(&r->text, '\0');
        r->body = r->text.p + head;
        r->body_size = n - head;
        s->request_count++;
        pthread_cond_broadcast(&s->changed);
        pthread_mutex_unlock(&s->lock);
        memmove(in.p, in.p + n, in.len - n);
        in.len -= n;
        s->script(&x);
    }
    buf_free(&in);
    return NULL;
}

static void *serve(void *p) {
    struct server *s = p;
    for (;;) {
        int fd = accept(s->listen_fd, NULL, NULL);
        pthread_mutex_lock(&s->lock);
        if (fd < 0 || s->stopping || s->conn_count == CONNS_MAX) {
            pthread_mutex_unlock(&s->lock);
            if (fd >= 0) close(fd);
            return NULL;
        }
        int one = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        struct conn_arg *arg = malloc(sizeof(*arg));
        *arg = (struct conn_arg){s, s->conn_count};
        s->conns[s->conn_count] = fd;
        pthread_create(&s->threads[s->conn_count], NULL, serve_conn, arg);
        s->conn_count++;
        pthread_mutex_unlock(&s->lock);
    }
}

static struct server *server_start(void (*script)(struct exchange *x)) {
    struct server *s = calloc(1, sizeof(*s));
    s->script = script;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    s->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(bind(s->listen_fd, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(listen(s->listen_fd, 128), 0);
    socklen_t n = sizeof(a);
    getsockname(s->listen_fd, (struct sockaddr *)&a, &n);
    snprintf(s->url, sizeof(s->url), "http://127.0.0.1:%d", ntohs(a.sin_port));
    pthread_create(&s->acceptor, NULL, serve, s);
    return s;
}

static void gate_open(struct server *s) {
    pthread_mutex_lock(&s->lock);
    s->gate = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void gate_wait(struct server *s) {
    pthread_mutex_lock(&s->lock);
    while (!s->gate && !s->stopping) pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

static bool request_is_for(const struct request *r, const char *target) {
    const char *space = strchr(r->text.p, ' ');
    return strncmp(space + 1, target, strlen(target)) == 0;
}

static bool target_is(const struct exchange *x, const char *target) {
    return request_is_for(x->request, target);
}

/* The lock is held. */
static size_t count_locked(struct server *s, const char *target) {
    size_t n = 0;
    for (size_t i = 0; i < s->request_count; i++) n += request_is_for(&s->requests[i], target);
    return n;
}

static size_t count_target(struct server *s, const char *target) {
    pthread_mutex_lock(&s->lock);
    size_t n = count_locked(s, target);
    pthread_mutex_unlock(&s->lock);
    return n;
}

static size_t count_all(struct server *s) {
    return count_target(s, "/");
}

/* Until so many requests for this target have arrived. */
static void await_requests(struct server *s, const char *target, size_t count) {
    pthread_mutex_lock(&s->lock);
    while (count_locked(s, target) < count) pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

static const struct request *nth_request(struct server *s, const char *target, size_t n) {
    const struct request *found = NULL;
    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < s->request_count && !found; i++)
        if (request_is_for(&s->requests[i], target) && n-- == 0) found = &s->requests[i];
    pthread_mutex_unlock(&s->lock);
    return found;
}

static void server_stop(struct server *s) {
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    pthread_cond_broadcast(&s->changed);
    for (size_t i = 0; i < s->conn_count; i++) shutdown(s->conns[i], SHUT_RDWR);
    pthread_mutex_unlock(&s->lock);
    shutdown(s->listen_fd, SHUT_RDWR);
    pthread_join(s->acceptor, NULL);
    close(s->listen_fd);
    for (size_t i = 0; i < s->conn_count; i++) {
        pthread_join(s->threads[i], NULL);
        close(s->conns[i]);
    }
    for (size_t i = 0; i < s->request_count; i++) buf_free(&s->requests[i].text);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->changed);
    free(s);
}

static hx_client *client_of(const struct server *s, int64_t timeout_ms) {
    hx_options o = {.url = s->url, .timeout_ms = timeout_ms};
    hx_client *c = NULL;
    hx_error err;
    assert_int_equal(hx_open(&o, &c, &err), HX_OK);
    return c;
}

/* ---- answers */

#define ACCEPTED                                                                                                       \
    "{\"outcome\":\"accepted\",\"duplicate\":false,\"id\":\"m1\",\"queue\":\"q\",\"key\":\"k\",\"state\":\"pending\"," \
    "\"expires_at\":null}"
#define DUPLICATE                                                                                                      \
    "{\"outcome\":\"duplicate\",\"duplicate\":true,\"id\":\"m0\",\"queue\":\"q\",\"key\":\"k\",\"state\":\"done\","    \
    "\"result\":{\"content_type\":\"text/plain\",\"body\":\"paid\",\"encoding\":\"utf8\"},"                            \
    "\"first_seen\":\"2026-01-31T12:00:00.000Z\",\"age_ms\":1500,\"duplicates\":3,"                                    \
    "\"expires_at\":\"2026-02-01T12:00:00.000Z\"}"
#define PROBLEM(status, code, applied)                                                                                 \
    "{\"type\":\"urn:hapax:" code "\",\"title\":\"t\",\"status\":" #status ",\"detail\":\"d\",\"code\":\"" code        \
    "\",\"retryable\":true,\"applied\":\"" applied "\"}"

#define MESSAGE(n)                                                                                                     \
    "{\"id\":\"m" n "\",\"key\":\"k" n "\",\"queue\":\"q\",\"token\":\"t" n "\",\"fence\":\"9007199254740993\","       \
    "\"attempt\":2,\"failures\":1,\"crashes\":0,\"generation\":0,\"effect_key\":\"k" n "\",\"delivery\":\"retry\","    \
    "\"group\":\"g\",\"attrs\":{\"a\":\"1\",\"b\":\"2\"},\"content_type\":\"text/plain\",\"payload\":\"cGF5AA==\","    \
    "\"encoding\":\"base64\",\"first_seen\":\"2026-01-31T12:00:00.000Z\",\"enqueued_at\":\"2026-01-31T12:00:01."       \
    "000Z\","                                                                                                          \
    "\"lease_expires_at\":\"2026-01-31T12:00:31.000Z\",\"steps\":[{\"name\":\"s1\",\"result\":{\"content_type\":"      \
    "\"text/plain\",\"body\":\"r1\",\"encoding\":\"utf8\"}}]}"

static void accept_always(struct exchange *x) {
    answer(x, 202, "", ACCEPTED);
}

static hx_status send_k(hx_client *c, hx_receipt *receipt, hx_error *err) {
    hx_draft d = {.key = "k", .payload = hx_str("hello")};
    return hx_send(c, "q", &d, 0, receipt, err);
}

/* ---- sending one */

static void a_send_carries_everything_and_reads_the_receipt(void **state) {
    (void)state;
    struct server *s = server_start(accept_always);
    hx_client *c = client_of(s, 5000);
    hx_attr attrs[] = {{"color", "blue"}};
    hx_draft d = {.key = "a \"quoted\" \\ key",
                  .payload = hx_bytes_of("\0\1\2", 3),
                  .content_type = "image/png",
                  .group = "g1",
                  .delay_ms = 1500,
                  .ttl_ms = 60000,
                  .attrs = attrs,
                  .attr_count = 1,
                  .request_id = "hop-7",
                  .traceparent = "00-aa-bb-01"};
    hx_receipt r;
    hx_error err;
    assert_int_equal(hx_send(c, "my queue/1", &d, 2500, &r, &err), HX_OK);
    assert_int_equal(r.outcome, HX_ACCEPTED);
    assert_int_equal(r.state, HX_STATE_PENDING);
    assert_string_equal(r.id, "m1");
    assert_false(r.retried);
    assert_null(r.result.data);
    const struct request *q = &s->requests[0];
    assert_non_null(strstr(q->text.p, "POST /v1/queues/my%20queue%2F1/messages HTTP/1.1\r\n"));
    assert_non_null(strstr(q->text.p, "\r\nIdempotency-Key: \"a \\\"quoted\\\" \\\\ key\"\r\n"));
    assert_non_null(strstr(q->text.p, "\r\nContent-Type: image/png\r\n"));
    assert_non_null(strstr(q->text.p, "\r\nHapax-Group: g1\r\n"));
    assert_non_null(strstr(q->text.p, "\r\nHapax-Delay: 1500ms\r\n"));
    assert_non_null(strstr(q->text.p, "\r\nHapax-Ttl: 1m\r\n"));
    assert_non_null(strstr(q->text.p, "\r\nHapax-Attr-color: blue\r\n"));
    assert_non_null(strstr(q->text.p, "\r\nHapax-Request-Id: hop-7\r\n"));
    assert_non_null(strstr(q->text.p, "\r\ntraceparent: 00-aa-bb-01\r\n"));
    assert_non_null(strstr(q->text.p, "\r\nPrefer: wait=3\r\n"));
    assert_int_equal(q->body_size, 3);
    assert_memory_equal(q->body, "\0\1\2", 3);
    hx_receipt_free(&r);
    hx_close(c);
    server_stop(s);
}

static void a_key_beyond_ascii_is_spelled_as_a_display_string(void **state) {
    (void)state;
    struct server *s = server_start(accept_always);
    hx_client *c = client_of(s, 5000);
    hx_draft d = {.key = "h\xc3\xa4pax%\"", .payload = hx_str("x")};
    assert_int_equal(hx_send(c, "q", &d, 0, NULL, NULL), HX_OK);
    assert_non_null(strstr(s->requests[0].text.p, "\r\nIdempotency-Key: %\"h%c3%a4pax%25%22\"\r\n"));
    hx_close(c);
    server_stop(s);
}

static void answer_duplicate(struct exchange *x) {
    answer(x, 200, "Idempotent-Replayed: true\r\n", DUPLICATE);
}

static void a_duplicate_brings_the_originals_state_and_result(void **state) {
    (void)state;
    struct server *s = server_start(answer_duplicate);
    hx_client *c = client_of(s, 5000);
    hx_receipt r;
    hx_error err;
    assert_int_equal(send_k(c, &r, &err), HX_OK);
    assert_int_equal(r.outcome, HX_DUPLICATE);
    assert_int_equal(r.state, HX_STATE_DONE);
    assert_string_equal(r.id, "m0");
    assert_int_equal(r.result.size, 4);
    assert_memory_equal(r.result.data, "paid", 4);
    assert_string_equal(r.content_type, "text/plain");
    assert_int_equal(r.age_ms, 1500);
    assert_int_equal(r.duplicates, 3);
    assert_int_equal(r.first_seen_ms, 1769860800000);
    assert_int_equal(r.expires_at_ms, 1769947200000);
    hx_receipt_free(&r);
    hx_close(c);
    server_stop(s);
}

static void answer_conflict(struct exchange *x) {
    answer(x, 422, "",
           "{\"code\":\"key_reused\",\"status\":422,\"detail\":\"other payload\",\"applied\":\"no\",\"id\":\"m0\","
           "\"first_seen\":\"2026-01-31T12:00:00.000Z\",\"retryable\":false}");
}

static void a_reused_key_is_a_conflict_that_names_the_original(void **state) {
    (void)state;
    struct server *s = server_start(answer_conflict);
    hx_client *c = client_of(s, 5000);
    hx_receipt r;
    hx_error err;
    assert_int_equal(send_k(c, &r, &err), HX_CONFLICT);
    assert_int_equal(err.applied, HX_APPLIED_NO);
    assert_string_equal(err.code, "key_reused");
    assert_int_equal(err.http_status, 422);
    assert_int_equal(r.outcome, HX_KEY_REUSED);
    assert_string_equal(r.id, "m0");
    hx_receipt_free(&r);
    hx_close(c);
    server_stop(s);
}

static void answer_held(struct exchange *x) {
    answer(x, 202, "",
           "{\"outcome\":\"held\",\"duplicate\":false,\"id\":\"m2\",\"queue\":\"q\",\"key\":\"k~0123456789abcdef\","
           "\"state\":\"held\",\"expires_at\":null}");
}

static void a_conflict_the_queue_holds_is_told_apart(void **state) {
    (void)state;
    struct server *s = server_start(answer_held);
    hx_client *c = client_of(s, 5000);
    hx_receipt r;
    hx_error err;
    assert_int_equal(send_k(c, &r, &err), HX_OK);
    assert_int_equal(r.outcome, HX_HELD);
    assert_int_equal(r.state, HX_STATE_HELD);
    assert_string_equal(r.id, "m2");
    hx_receipt_free(&r);
    hx_close(c);
    server_stop(s);
}

static void wrong_drafts_are_refused_before_anything_is_sent(void **state) {
    (void)state;
    struct server *s = server_start(accept_always);
    hx_client *c = client_of(s, 5000);
    char long_key[257];
    memset(long_key, 'k', 256);
    long_key[256] = '\0';
    const char *keys[] = {"", "tab\tkey", "line\nkey", "\xff", long_key};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        hx_draft d = {.key = keys[i], .payload = hx_str("x")};
        hx_error err;
        assert_int_equal(hx_send(c, "q", &d, 0, NULL, &err), HX_INVALID);
        assert_string_equal(err.code, "key_invalid");
        assert_int_equal(err.applied, HX_APPLIED_NO);
    }
    hx_attr smuggled[] = {{"a", "1\r\nIdempotency-Key: other"}};
    hx_draft d = {.key = "k", .payload = hx_str("x"), .attrs = smuggled, .attr_count = 1};
    assert_int_equal(hx_send(c, "q", &d, 0, NULL, NULL), HX_INVALID);
    assert_int_equal(hx_send(c, "", &d, 0, NULL, NULL), HX_INVALID);
    assert_int_equal(count_all(s), 0);
    hx_close(c);
    server_stop(s);
}

/* ---- replies in pieces, and bad ones */

static const char *split_reply;
static size_t split_at;

static void answer_split(struct exchange *x) {
    /* A byte of the second piece only leaves once the first is on its way: TCP_NODELAY, two sends. */
    answer_bytes(x, split_reply, split_at);
    answer_bytes(x, split_reply + split_at, strlen(split_reply) - split_at);
}

static void every_split(const char *reply) {
    split_reply = reply;
    split_at = 0;
    struct server *s = server_start(answer_split);
    hx_client *c = client_of(s, 5000);
    for (split_at = 1; split_at < strlen(reply); split_at++) {
        hx_receipt r;
        hx_error err;
        assert_int_equal(send_k(c, &r, &err), HX_OK);
        assert_int_equal(r.outcome, HX_ACCEPTED);
        assert_string_equal(r.id, "m1");
        assert_false(r.retried);
        hx_receipt_free(&r);
    }
    hx_close(c);
    server_stop(s);
}

static void a_reply_split_at_every_byte_reads_the_same(void **state) {
    (void)state;
    every_split("HTTP/1.1 202 Accepted\r\nContent-Length: 46\r\n\r\n"
                "{\"outcome\":\"accepted\",\"id\":\"m1\",\"state\":null}\n");
    every_split("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 202 Accepted\r\nTransfer-Encoding: chunked\r\n\r\n"
                "1\r\n{\r\n14;ext=1\r\n\"outcome\":\"accepted\"\r\nb\r\n,\"id\":\"m1\"}\r\n0\r\nTrailer: x\r\n\r\n");
}

static const char *bad_reply;

/* A body that would do, so that only what is around it can be at fault. */
#define GOOD "{\"outcome\":\"accepted\",\"id\":\"m1\"}"

static void answer_bad(struct exchange *x) {
    answer_bytes(x, bad_reply, strlen(bad_reply));
}

static void replies_that_are_none_are_protocol_errors_of_unknown_effect(void **state) {
    (void)state;
    const char *replies[] = {
        "HTTP/1.0 202 Accepted\r\nContent-Length: 32\r\n\r\n" GOOD,
        "SSH-2.0-OpenSSH_9.2\r\n\r\n",
        "HTTP/1.1 20 Accepted\r\nContent-Length: 32\r\n\r\n" GOOD,
        "HTTP/1.1 202 Accepted\r\nContent-Length: 32\r\nContent-Length: 32\r\n\r\n" GOOD,
        "HTTP/1.1 202 Accepted\r\nContent-Length: +32\r\n\r\n" GOOD,
        "HTTP/1.1 202 Accepted\r\nContent-Length: 32\r\nTransfer-Encoding: chunked\r\n\r\n20\r\n" GOOD "\r\n0\r\n\r\n",
        "HTTP/1.1 202 Accepted\r\nTransfer-Encoding: gzip, chunked\r\n\r\n20\r\n" GOOD "\r\n0\r\n\r\n",
        "HTTP/1.1 202 Accepted\r\n\r\n" GOOD,
        "HTTP/1.1 202 Accepted\r\nContent-Length : 32\r\n\r\n" GOOD,
        "HTTP/1.1 202 Accepted\r\n folded: 1\r\nContent-Length: 32\r\n\r\n" GOOD,
        "HTTP/1.1 202 Accepted\r\nX: a\nContent-Length: 32\r\n\r\n" GOOD,
        "HTTP/1.1 202 Accepted\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n" GOOD "\r\n0\r\n\r\n",
        "HTTP/1.1 202 Accepted\r\nTransfer-Encoding: chunked\r\n\r\n20\r\n" GOOD "0\r\n\r\n",
        "HTTP/1.1 202 Accepted\r\nTransfer-Encoding: chunked\r\n\r\n20\n" GOOD "\r\n0\r\n\r\n",
        "HTTP/1.1 202 Accepted\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000020\r\n" GOOD "\r\n0\r\n\r\n",
        "HTTP/1.1 204 No Content\r\nContent-Length: 32\r\n\r\n" GOOD,
        "HTTP/1.1 202 Accepted\r\nContent-Length: 99999999999\r\n\r\n" GOOD,
        "HTTP/1.1 202 Accepted\r\nContent-Length: 2\r\n\r\n{]",
        "HTTP/1.1 202 Accepted\r\nContent-Length: 2\r\n\r\n{}",
    };
    struct server *s = server_start(answer_bad);
    for (size_t i = 0; i < sizeof(replies) / sizeof(replies[0]); i++) {
        hx_client *c = client_of(s, 5000);
        bad_reply = replies[i];
        hx_error err;
        hx_receipt r;
        hx_status st = send_k(c, &r, &err);
        if (st != HX_PROTOCOL) print_message("reply %zu: %s\n", i, hx_status_name(st));
        assert_int_equal(st, HX_PROTOCOL);
        assert_int_equal(err.applied, HX_APPLIED_UNKNOWN);
        hx_receipt_free(&r);
        hx_close(c);
    }
    server_stop(s);
}

/* ---- lost answers */

static void lose_first(struct exchange *x) {
    if (x->number == 0)
        hang_up(x);
    else
        answer(x, 202, "", DUPLICATE);
}

static void a_send_whose_answer_was_lost_is_repeated_with_the_same_key(void **state) {
    (void)state;
    struct server *s = server_start(lose_first);
    hx_client *c = client_of(s, 10000);
    hx_receipt r;
    hx_error err;
    assert_int_equal(send_k(c, &r, &err), HX_OK);
    assert_true(r.retried);
    assert_int_equal(count_all(s), 2);
    assert_string_equal(s->requests[0].text.p, s->requests[1].text.p);
    hx_receipt_free(&r);
    hx_close(c);
    server_stop(s);
}

static void lose_half_a_reply(struct exchange *x) {
    if (x->number == 0) {
        const char *half = "HTTP/1.1 202 Accepted\r\nContent-Length: 100\r\n\r\n{\"outcome\"";
        answer_bytes(x, half, strlen(half));
        hang_up(x);
        return;
    }
    answer(x, 202, "", ACCEPTED);
}

static void half_a_reply_is_no_reply(void **state) {
    (void)state;
    struct server *s = server_start(lose_half_a_reply);
    hx_client *c = client_of(s, 10000);
    hx_receipt r;
    assert_int_equal(send_k(c, &r, NULL), HX_OK);
    assert_int_equal(count_all(s), 2);
    hx_receipt_free(&r);
    hx_close(c);
    server_stop(s);
}

static void lose_then_busy_then_answer(struct exchange *x) {
    if (x->number == 0)
        hang_up(x);
    else if (x->number == 1)
        answer(x, 503, "", PROBLEM(503, "shutting_down", "no"));
    else if (x->number == 2)
        answer(x, 500, "", PROBLEM(500, "internal", "unknown"));
    else
        answer(x, 202, "", DUPLICATE);
}

static void after_a_lost_answer_busy_does_not_mean_not_applied(void **state) {
    (void)state;
    struct server *s = server_start(lose_then_busy_then_answer);
    hx_client *c = client_of(s, 10000);
    hx_receipt r;
    assert_int_equal(send_k(c, &r, NULL), HX_OK);
    assert_int_equal(count_all(s), 4);
    hx_receipt_free(&r);
    hx_close(c);
    server_stop(s);
}

static void answer_busy(struct exchange *x) {
    answer(x, 429, "Retry-After: 7\r\n", PROBLEM(429, "backpressure", "no"));
}

static void busy_alone_is_reported_at_once(void **state) {
    (void)state;
    struct server *s = server_start(answer_busy);
    hx_client *c = client_of(s, 10000);
    hx_error err;
    assert_int_equal(send_k(c, NULL, &err), HX_BUSY);
    assert_int_equal(err.applied, HX_APPLIED_NO);
    assert_int_equal(err.retry_after_ms, 7000);
    assert_string_equal(err.code, "backpressure");
    assert_int_equal(count_all(s), 1);
    hx_close(c);
    server_stop(s);
}

static void never_answer(struct exchange *x) {
    gate_wait(x->server);
}

static void a_send_never_answered_is_unknown_when_its_time_is_up(void **state) {
    (void)state;
    struct server *s = server_start(never_answer);
    hx_client *c = client_of(s, 150);
    hx_error err;
    hx_receipt r;
    assert_int_equal(send_k(c, &r, &err), HX_UNKNOWN);
    assert_int_equal(err.applied, HX_APPLIED_UNKNOWN);
    assert_true(err.retryable);
    assert_string_equal(r.id, "");
    hx_receipt_free(&r);
    hx_close(c);
    server_stop(s);
}

static void answer_etag(struct exchange *x) {
    answer(x, 200, "ETag: \"v7\"\r\n", "{}");
}

static void a_replys_etag_is_handed_on(void **state) {
    (void)state;
    struct server *s = server_start(answer_etag);
    hx_client *c = client_of(s, 5000);
    hx_request get = {.method = "GET", .target = "/v1/queues/q"};
    hx_reply reply;
    assert_int_equal(hx_call(c, &get, &reply, NULL), HX_OK);
    assert_string_equal(reply.etag, "\"v7\"");
    hx_reply_free(&reply);
    hx_close(c);
    server_stop(s);
}

static void answer_keyless(struct exchange *x) {
    answer(x, 200, "",
           "{\"messages\":[{\"id\":\"m1\",\"key\":null,\"effect_key\":null,\"queue\":\"q\",\"token\":\"t1\",\"fence\":"
           "\"7\","
           "\"attempt\":1,\"delivery\":\"first\",\"payload\":\"x\",\"encoding\":\"utf8\"}]}");
}

static void a_message_without_a_key_is_read(void **state) {
    (void)state;
    struct server *s = server_start(answer_keyless);
    hx_client *c = client_of(s, 5000);
    hx_received got;
    assert_int_equal(hx_receive(c, "q", NULL, &got, NULL), HX_OK);
    assert_int_equal(got.count, 1);
    assert_string_equal(got.messages[0]->key, "");
    assert_string_equal(got.messages[0]->effect_key, "m1");
    hx_received_free(&got);
    hx_close(c);
    server_stop(s);
}

static void hang_up_always(struct exchange *x) {
    hang_up(x);
}

static void answers_always_lost_end_as_unknown_and_reads_as_unreachable(void **state) {
    (void)state;
    struct server *s = server_start(hang_up_always);
    hx_client *c = client_of(s, 200);
    hx_error err;
    assert_int_equal(send_k(c, NULL, &err), HX_UNKNOWN);
    assert_int_equal(err.applied, HX_APPLIED_UNKNOWN);
    assert_true(count_all(s) > 1);
    hx_request get = {.method = "GET", .target = "/v1/stats"};
    assert_int_equal(hx_call(c, &get, NULL, &err), HX_UNREACHABLE);
    assert_int_equal(err.applied, HX_APPLIED_NO);
    hx_close(c);
    server_stop(s);
}

static void nobody_listening_is_unreachable_at_once_and_nothing_applied(void **state) {
    (void)state;
    struct server *s = server_start(accept_always);
    hx_client *c = client_of(s, 60000);
    server_stop(s);
    hx_error err;
    assert_int_equal(send_k(c, NULL, &err), HX_UNREACHABLE);
    assert_int_equal(err.applied, HX_APPLIED_NO);
    assert_non_null(strstr(err.detail, "cannot reach http://127.0.0.1:"));
    hx_close(c);
}

static void answer_and_close(struct exchange *x) {
    answer(x, 202, "", ACCEPTED); /* without saying so, as after an idle timeout */
    hang_up(x);
}

static void an_idle_connection_closed_by_the_broker_goes_unnoticed(void **state) {
    (void)state;
    struct server *s = server_start(answer_and_close);
    hx_client *c = client_of(s, 10000);
    for (int i = 0; i < 20; i++) assert_int_equal(send_k(c, NULL, NULL), HX_OK);
    hx_close(c);
    server_stop(s);
}

static void connections_are_kept_and_used_again(void **state) {
    (void)state;
    struct server *s = server_start(accept_always);
    hx_client *c = client_of(s, 10000);
    for (int i = 0; i < 20; i++) assert_int_equal(send_k(c, NULL, NULL), HX_OK);
    assert_int_equal(s->conn_count, 1);
    hx_close(c);
    server_stop(s);
}

static void urls_are_checked(void **state) {
    (void)state;
    const char *bad[] = {"",           "127.0.0.1:4279", "ftp://x",      "http://",          "http://:80",
                         "http://h:0", "http://h:65536", "http://h:8x",  "http://h?q=1",     "http://[::1",
                         "http://a b", "http://u@h:1/",  "http://h/a b", "http://h/x\r\ny:1"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        hx_options o = {.url = bad[i]};
        hx_client *c;
        hx_error err;
        if (hx_open(&o, &c, &err) != HX_INVALID) fail_msg("accepted: %s", bad[i]);
        assert_null(c);
    }
    const char *good[] = {"http://h",  "http://[::1]:80", "http://h:1/", "http://h:4279/some/prefix/",
                          "https://h", "https://[::1]/x"};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        hx_options o = {.url = good[i]};
        hx_client *c;
        assert_int_equal(hx_open(&o, &c, NULL), HX_OK);
        hx_close(c);
    }
}

/* ---- settling, receiving, waiting */

static void answer_settled(struct exchange *x) {
    if (x->number == 0)
        hang_up(x);
    else
        answer(x, 200, "", "{\"state\":\"done\",\"id\":\"m1\",\"key\":\"k\",\"duplicate\":true}");
}

static void a_lost_ack_is_repeated_and_the_first_one_stands(void **state) {
    (void)state;
    struct server *s = server_start(answer_settled);
    hx_client *c = client_of(s, 10000);
    hx_settled out;
    assert_int_equal(hx_ack(c, "t1", hx_bytes_of("\xff\xfe", 2), NULL, "tx-9", &out, NULL), HX_OK);
    assert_int_equal(out.state, HX_STATE_DONE);
    assert_true(out.duplicate);
    hx_settled_free(&out);
    assert_string_equal(s->requests[0].body, s->requests[1].body);
    assert_string_equal(s->requests[0].body, "{\"token\":\"t1\",\"result_base64\":\"//4=\",\"content_type\":"
                                             "\"application/octet-stream\",\"effect_id\":\"tx-9\"}");
    hx_close(c);
    server_stop(s);
}

static void answer_fenced(struct exchange *x) {
    answer(x, 409, "", PROBLEM(409, "fenced", "no"));
}

static void every_settling_call_says_fenced_when_it_is(void **state) {
    (void)state;
    struct server *s = server_start(answer_fenced);
    hx_client *c = client_of(s, 10000);
    hx_failure f = {.failure_class = HX_REJECTED, .reason = "no funds", .delay_ms = 90000, .result = hx_str("{}")};
    assert_int_equal(hx_ack(c, "t", (hx_bytes){0}, NULL, NULL, NULL, NULL), HX_FENCED);
    assert_int_equal(hx_nack(c, "t", &f, NULL, NULL), HX_FENCED);
    assert_int_equal(hx_extend(c, "t", 30000, NULL, NULL), HX_FENCED);
    assert_int_equal(hx_start(c, "t", NULL, NULL), HX_FENCED);
    assert_int_equal(hx_release(c, "t", NULL, NULL), HX_FENCED);
    assert_int_equal(hx_step(c, "t", "s", hx_str("r"), NULL, NULL), HX_FENCED);
    assert_string_equal(s->requests[0].body, "{\"token\":\"t\"}");
    assert_string_equal(s->requests[1].body,
                        "{\"token\":\"t\",\"class\":\"rejected\",\"reason\":\"no funds\",\"delay\":"
                        "\"90s\",\"result\":\"{}\"}");
    assert_string_equal(s->requests[2].body, "{\"token\":\"t\",\"lease\":\"30s\"}");
    assert_string_equal(s->requests[5].body, "{\"token\":\"t\",\"name\":\"s\",\"result\":\"r\"}");
    hx_close(c);
    server_stop(s);
}

static void answer_messages(struct exchange *x) {
    answer(x, 200, "", "{\"messages\":[" MESSAGE("1") "," MESSAGE("2") "]}");
}

static void receive_reads_every_field(void **state) {
    (void)state;
    struct server *s = server_start(answer_messages);
    hx_client *c = client_of(s, 10000);
    hx_receive_options o = {.max = 2, .wait_ms = 1500, .lease_ms = 60000, .consumer = "w 1", .explicit_start = true};
    hx_received got;
    assert_int_equal(hx_receive(c, "q", &o, &got, NULL), HX_OK);
    assert_non_null(
        strstr(s->requests[0].text.p,
               "POST /v1/queues/q/receive?max=2&wait=1500ms&lease=1m&consumer=w%201&start=explicit HTTP/1.1"));
    assert_int_equal(got.count, 2);
    const hx_message *m = got.messages[1];
    assert_string_equal(m->id, "m2");
    assert_string_equal(m->key, "k2");
    assert_string_equal(m->token, "t2");
    assert_true(m->fence == 9007199254740993);
    assert_int_equal(m->attempt, 2);
    assert_int_equal(m->failures, 1);
    assert_int_equal(m->delivery, HX_DELIVERY_RETRY);
    assert_string_equal(m->group, "g");
    assert_int_equal(m->attr_count, 2);
    assert_string_equal(m->attrs[1].name, "b");
    assert_string_equal(m->attrs[1].value, "2");
    assert_int_equal(m->payload.size, 4);
    assert_memory_equal(m->payload.data, "pay\0", 4);
    assert_int_equal(m->step_count, 1);
    assert_string_equal(m->steps[0].name, "s1");
    assert_memory_equal(m->steps[0].result.data, "r1", 2);
    assert_true(m->lease_expires_at_ms - m->enqueued_at_ms == 30000);
    assert_false(hx_message_lease_lost(m));
    hx_received_free(&got);
    hx_close(c);
    server_stop(s);
}

static void settle_on_third_look(struct exchange *x) {
    if (x->number == 0)
        answer(x, 409, "", "{\"code\":\"not_settled\",\"status\":409,\"state\":\"dead\"}");
    else if (x->number == 1)
        answer(x, 204, "Hapax-State: done\r\n", "");
    else if (x->number == 2)
        answer(x, 200, "Hapax-State: rejected\r\nContent-Type: text/x\r\n", "no funds");
    else
        answer(x, 404, "", PROBLEM(404, "no_such_key", "no"));
}

static void waiting_tells_state_and_result(void **state) {
    (void)state;
    struct server *s = server_start(settle_on_third_look);
    hx_client *c = client_of(s, 10000);
    hx_result r;
    assert_int_equal(hx_wait(c, "q", "a/b", 30000, &r, NULL), HX_NOT_SETTLED);
    assert_int_equal(r.state, HX_STATE_DEAD);
    assert_non_null(memmem(r.problem.data, r.problem.size, "\"state\":\"dead\"", 14)); /* as it came */
    hx_result_free(&r);
    assert_non_null(strstr(s->requests[0].text.p, "GET /v1/queues/q/keys/a%2Fb/result?wait=20s HTTP/1.1\r\n"));
    assert_int_equal(hx_wait(c, "q", "k", 0, &r, NULL), HX_OK);
    assert_int_equal(r.state, HX_STATE_DONE);
    assert_int_equal(r.body.size, 0);
    hx_result_free(&r);
    assert_int_equal(hx_wait(c, "q", "k", 0, &r, NULL), HX_OK);
    assert_int_equal(r.state, HX_STATE_REJECTED);
    assert_int_equal(r.body.size, 8);
    assert_string_equal(r.content_type, "text/x");
    hx_result_free(&r);
    assert_int_equal(hx_wait(c, "q", "k", 0, &r, NULL), HX_NOT_FOUND);
    hx_result_free(&r);
    hx_close(c);
    server_stop(s);
}

/* ---- the sender */

static size_t lines_of(const struct request *r) {
    size_t n = 0;
    for (size_t i = 0; i < r->body_size; i++) n += r->body[i] == '\n';
    return n;
}

static void answer_lines(struct exchange *x) {
    struct buf b = {0};
    for (size_t i = 0, n = lines_of(x->request); i < n; i++)
        buf_lit(&b, "{\"outcome\":\"accepted\",\"id\":\"m1\",\"state\":\"pending\",\"status\":202}\n");
    buf_char(&b, '\0');
    answer(x, 200, "Content-Type: application/x-ndjson\r\n", b.p);
    buf_free(&b);
}

static void answer_lines_after_gate(struct exchange *x) {
    if (x->number == 0) gate_wait(x->server);
    answer_lines(x);
}

struct sent {
    atomic_int ok, failed, unknown;
};

static void on_sent(void *ctx, hx_status status, const hx_receipt *receipt, const hx_error *error) {
    struct sent *sent = ctx;
    if (status == HX_OK && receipt->outcome == HX_ACCEPTED)
        atomic_fetch_add(&sent->ok, 1);
    else if (error->applied == HX_APPLIED_UNKNOWN)
        atomic_fetch_add(&sent->unknown, 1);
    else
        atomic_fetch_add(&sent->failed, 1);
}

static hx_status send_numbered(hx_sender *sender, int n, struct sent *sent) {
    char key[32];
    snprintf(key, sizeof(key), "k%d", n);
    hx_draft d = {.key = key, .payload = hx_str("p"), .content_type = "text/plain"};
    return hx_send_async(sender, &d, on_sent, sent, NULL);
}

struct many {
    hx_sender *sender;
    struct sent *sent;
    int from, to;
};

static void *send_many(void *p) {
    struct many *m = p;
    for (int i = m->from; i < m->to; i++) assert_int_equal(send_numbered(m->sender, i, m->sent), HX_OK);
    return NULL;
}

static void sends_from_many_threads_gather_while_a_request_is_under_way(void **state) {
    (void)state;
    struct server *s = server_start(answer_lines_after_gate);
    hx_client *c = client_of(s, 10000);
    hx_sender_options o = {.queue = "q"};
    hx_sender *sender;
    struct sent sent = {0};
    assert_int_equal(hx_sender_open(c, &o, &sender, NULL), HX_OK);
    assert_int_equal(send_numbered(sender, 0, &sent), HX_OK);
    await_requests(s, "/v1/queues/q/batch", 1); /* it left at once, alone */
    pthread_t threads[4];
    struct many many[4];
    for (int i = 0; i < 4; i++) {
        many[i] = (struct many){sender, &sent, 1 + i * 100, 1 + (i + 1) * 100};
        pthread_create(&threads[i], NULL, send_many, &many[i]);
    }
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    assert_int_equal(hx_sender_flush(sender, 0), HX_BUSY);
    gate_open(s);
    assert_int_equal(hx_sender_flush(sender, -1), HX_OK);
    assert_int_equal(atomic_load(&sent.ok), 401);
    assert_int_equal(count_all(s), 2);
    assert_int_equal(lines_of(&s->requests[0]), 1);
    assert_int_equal(lines_of(&s->requests[1]), 400);
    assert_string_equal(s->requests[0].body, "{\"key\":\"k0\",\"payload\":\"p\",\"content_type\":\"text/plain\"}\n");
    hx_sender_close(sender);
    hx_close(c);
    server_stop(s);
}

static void lose_two_then_answer_lines(struct exchange *x) {
    if (x->number < 2)
        hang_up(x);
    else
        answer_lines(x);
}

static void a_lost_batch_is_sent_again_as_it_was(void **state) {
    (void)state;
    struct server *s = server_start(lose_two_then_answer_lines);
    hx_client *c = client_of(s, 10000);
    hx_sender_options o = {.queue = "q"};
    hx_sender *sender;
    struct sent sent = {0};
    assert_int_equal(hx_sender_open(c, &o, &sender, NULL), HX_OK);
    assert_int_equal(send_numbered(sender, 7, &sent), HX_OK);
    hx_sender_close(sender);
    assert_int_equal(atomic_load(&sent.ok), 1);
    assert_int_equal(count_all(s), 3);
    assert_string_equal(s->requests[0].body, s->requests[1].body);
    assert_string_equal(s->requests[0].body, s->requests[2].body);
    hx_close(c);
    server_stop(s);
}

static void a_batch_never_answered_is_unknown_only_after_its_time(void **state) {
    (void)state;
    struct server *s = server_start(hang_up_always);
    hx_client *c = client_of(s, 10000);
    hx_sender_options o = {.queue = "q", .timeout_ms = 300};
    hx_sender *sender;
    struct sent sent = {0};
    assert_int_equal(hx_sender_open(c, &o, &sender, NULL), HX_OK);
    assert_int_equal(send_numbered(sender, 1, &sent), HX_OK);
    hx_sender_close(sender);
    assert_int_equal(atomic_load(&sent.unknown), 1);
    assert_true(count_all(s) > 2);
    hx_close(c);
    server_stop(s);
}

/* The first request keeps the lane busy, so that the three of the second go together: of those the second is bad for
 * good, the third refused for a while. */
static void answer_mixed_lines(struct exchange *x) {
    if (x->number == 0) gate_wait(x->server);
    if (x->number != 1) {
        answer_lines(x);
        return;
    }
    answer(x, 200, "",
           "{\"outcome\":\"accepted\",\"id\":\"m1\",\"state\":\"pending\",\"status\":202}\n" PROBLEM(
               400, "key_invalid", "no") "\n" PROBLEM(429, "backpressure", "no") "\n");
}

static void one_bad_line_fails_alone_and_a_refused_one_is_tried_again(void **state) {
    (void)state;
    struct server *s = server_start(answer_mixed_lines);
    hx_client *c = client_of(s, 10000);
    hx_sender_options o = {.queue = "q"};
    hx_sender *sender;
    struct sent sent = {0};
    assert_int_equal(hx_sender_open(c, &o, &sender, NULL), HX_OK);
    assert_int_equal(send_numbered(sender, 0, &sent), HX_OK);
    await_requests(s, "/v1/queues/q/batch", 1);
    for (int i = 1; i <= 3; i++) assert_int_equal(send_numbered(sender, i, &sent), HX_OK);
    gate_open(s);
    hx_sender_close(sender);
    assert_int_equal(atomic_load(&sent.ok), 3);
    assert_int_equal(atomic_load(&sent.failed), 1);
    assert_int_equal(count_all(s), 3);
    assert_int_equal(lines_of(&s->requests[2]), 1);
    assert_non_null(strstr(s->requests[2].body, "\"k3\""));
    hx_close(c);
    server_stop(s);
}

static void answer_another_count(struct exchange *x) {
    answer(x, 200, "", "{\"outcome\":\"accepted\",\"id\":\"m1\",\"status\":202}\n{}\n");
}

static void a_batch_answered_with_another_number_of_lines_confirms_nothing(void **state) {
    (void)state;
    struct server *s = server_start(answer_another_count);
    hx_client *c = client_of(s, 10000);
    hx_sender_options o = {.queue = "q"};
    hx_sender *sender;
    struct sent sent = {0};
    assert_int_equal(hx_sender_open(c, &o, &sender, NULL), HX_OK);
    assert_int_equal(send_numbered(sender, 0, &sent), HX_OK);
    hx_sender_close(sender);
    assert_int_equal(atomic_load(&sent.ok), 0);
    assert_int_equal(atomic_load(&sent.unknown), 1);
    hx_close(c);
    server_stop(s);
}

static void a_full_sender_says_busy_and_takes_more_once_answered(void **state) {
    (void)state;
    struct server *s = server_start(answer_lines_after_gate);
    hx_client *c = client_of(s, 10000);
    hx_sender_options o = {.queue = "q", .memory_max = 4096, .never_block = true};
    hx_sender *sender;
    struct sent sent = {0};
    assert_int_equal(hx_sender_open(c, &o, &sender, NULL), HX_OK);
    int taken = 0;
    while (send_numbered(sender, taken, &sent) == HX_OK) taken++;
    assert_true(taken > 1 && taken < 100);
    assert_int_equal(send_numbered(sender, taken, &sent), HX_BUSY);
    gate_open(s);
    assert_int_equal(hx_sender_flush(sender, -1), HX_OK);
    assert_int_equal(send_numbered(sender, taken, &sent), HX_OK);
    hx_sender_close(sender);
    assert_int_equal(atomic_load(&sent.ok), taken + 1);
    hx_close(c);
    server_stop(s);
}

static void a_future_brings_the_receipt(void **state) {
    (void)state;
    struct server *s = server_start(answer_lines_after_gate);
    hx_client *c = client_of(s, 10000);
    hx_sender_options o = {.queue = "q", .connections = 3};
    hx_sender *sender;
    assert_int_equal(hx_sender_open(c, &o, &sender, NULL), HX_OK);
    hx_draft d = {.key = "k", .payload = hx_bytes_of("\xff", 1), .group = "g", .delay_ms = 1000};
    hx_future *f, *dropped;
    assert_int_equal(hx_send_future(sender, &d, &f, NULL), HX_OK);
    await_requests(s, "/v1/queues/q/batch", 1);
    assert_false(hx_future_wait(f, 0, NULL, NULL, NULL));
    assert_int_equal(hx_send_future(sender, &d, &dropped, NULL), HX_OK);
    hx_future_free(dropped);
    gate_open(s);
    hx_status status;
    hx_receipt r;
    hx_error err;
    assert_true(hx_future_wait(f, -1, &status, &r, &err));
    assert_int_equal(status, HX_OK);
    assert_string_equal(r.id, "m1");
    hx_receipt_free(&r);
    hx_future_free(f);
    hx_sender_close(sender);
    assert_string_equal(s->requests[0].body, "{\"key\":\"k\",\"payload_base64\":\"/w==\",\"content_type\":"
                                             "\"application/octet-stream\",\"group\":\"g\",\"delay\":\"1s\"}\n");
    hx_close(c);
    server_stop(s);
}

/* ---- the consumer */

/* A server with `supply` messages for the first poll; later polls are held until the gate opens or the client goes. */
static const char *supply;
static const char *extend_answer; /* NULL: hang up */

static void answer_consumer(struct exchange *x) {
    if (target_is(x, "/v1/queues/q/receive")) {
        bool first = count_target(x->server, "/v1/queues/q/receive") == 1;
        if (!first) gate_wait(x->server);
        answer(x, 200, "", first ? supply : "{\"messages\":[]}");
    } else if (target_is(x, "/v1/extend")) {
        if (!extend_answer)
            hang_up(x);
        else
            answer(x, 200, "", extend_answer);
    } else if (target_is(x, "/v1/release") && x->request->body[0] == '[') {
        answer(x, 200, "",
               strstr(x->request->body, "},{") ? "[{\"state\":\"pending\"},{\"state\":\"pending\"}]"
                                               : "[{\"state\":\"pending\"}]");
    } else if (target_is(x, "/v1/step")) {
        answer(x, 200, "", "{\"status\":\"new\",\"result\":null}");
    } else {
        answer(x, 200, "", "{\"state\":\"done\",\"id\":\"m\",\"key\":\"k\"}");
    }
}

/* What the handler does, and what it saw. */
struct scene {
    struct server *server;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool let_go, lost_told;
    bool lost_seen;
    atomic_int handled, trouble;
    hx_verdict verdict;
};

static void scene_set(struct scene *sc, bool *flag) {
    pthread_mutex_lock(&sc->lock);
    *flag = true;
    pthread_cond_broadcast(&sc->changed);
    pthread_mutex_unlock(&sc->lock);
}

static void scene_wait(struct scene *sc, const bool *flag) {
    pthread_mutex_lock(&sc->lock);
    while (!*flag) pthread_cond_wait(&sc->changed, &sc->lock);
    pthread_mutex_unlock(&sc->lock);
}

static hx_verdict handle_plainly(void *ctx, hx_message *m) {
    struct scene *sc = ctx;
    atomic_fetch_add(&sc->handled, 1);
    hx_message_set_result(m, hx_str("result"), "text/x");
    hx_message_set_reason(m, "because");
    hx_message_set_effect_id(m, "e1");
    return sc->verdict;
}

static void count_trouble(void *ctx, hx_message *m, const hx_error *error) {
    struct scene *sc = ctx;
    (void)m;
    (void)error;
    atomic_fetch_add(&sc->trouble, 1);
}

static void scene_init(struct scene *sc) {
    *sc = (struct scene){.verdict = HX_DONE};
    pthread_mutex_init(&sc->lock, NULL);
    pthread_cond_init(&sc->changed, NULL);
    sc->server = server_start(answer_consumer);
}

static void consume_to_the_end(hx_client *c, const hx_consume_options *o) {
    hx_consumer *consumer;
    assert_int_equal(hx_consume(c, o, &consumer, NULL), HX_OK);
    assert_true(hx_consumer_wait(consumer, -1));
    hx_consumer_close(consumer);
}

static void scene_end(struct scene *sc) {
    server_stop(sc->server);
    pthread_mutex_destroy(&sc->lock);
    pthread_cond_destroy(&sc->changed);
}

static void a_message_is_reserved_started_handled_and_acked(void **state) {
    (void)state;
    struct scene sc;
    supply = "{\"messages\":[" MESSAGE("1") "]}";
    scene_init(&sc);
    hx_client *c = client_of(sc.server, 10000);
    hx_consume_options o = {.queue = "q", .handler = handle_plainly, .ctx = &sc, .messages_max = 1};
    hx_consumer *consumer;
    assert_int_equal(hx_consume(c, &o, &consumer, NULL), HX_OK);
    assert_true(hx_consumer_wait(consumer, -1));
    hx_consumer_stats stats;
    hx_consumer_stats_get(consumer, &stats);
    assert_int_equal(stats.received, 1);
    assert_int_equal(stats.started, 1);
    assert_int_equal(stats.settled, 1);
    hx_consumer_close(consumer);
    assert_int_equal(count_all(sc.server), 3);
    assert_non_null(strstr(sc.server->requests[0].text.p, "start=explicit"));
    assert_non_null(strstr(sc.server->requests[1].text.p, "POST /v1/start "));
    assert_non_null(strstr(sc.server->requests[2].text.p, "POST /v1/ack "));
    assert_string_equal(sc.server->requests[2].body,
                        "{\"token\":\"t1\",\"result\":\"result\",\"content_type\":\"text/x\","
                        "\"effect_id\":\"e1\"}");
    hx_close(c);
    scene_end(&sc);
}

static void each_verdict_becomes_its_settling_call(void **state) {
    (void)state;
    const struct {
        hx_verdict verdict;
        const char *target, *body;
    } cases[] = {
        {HX_FAIL_TRANSIENT, "/v1/nack ", "{\"token\":\"t1\",\"class\":\"transient\",\"reason\":\"because\"}"},
        {HX_FAIL_POISON, "/v1/nack ", "{\"token\":\"t1\",\"class\":\"poison\",\"reason\":\"because\"}"},
        {HX_FAIL_REJECTED, "/v1/nack ",
         "{\"token\":\"t1\",\"class\":\"rejected\",\"reason\":\"because\",\"result\":\"result\",\"content_type\":"
         "\"text/x\"}"},
        {HX_FAIL_UNKNOWN, "/v1/nack ", "{\"token\":\"t1\",\"class\":\"unknown\",\"reason\":\"because\"}"},
        {HX_FAIL_ABSENT, "/v1/nack ", "{\"token\":\"t1\",\"class\":\"absent\",\"reason\":\"because\"}"},
        {HX_GIVE_BACK, "/v1/release ", "{\"token\":\"t1\"}"},
    };
    supply = "{\"messages\":[" MESSAGE("1") "]}";
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct scene sc;
        scene_init(&sc);
        sc.verdict = cases[i].verdict;
        hx_client *c = client_of(sc.server, 10000);
        hx_consume_options o = {.queue = "q", .handler = handle_plainly, .ctx = &sc, .messages_max = 1};
        hx_consumer *consumer;
        assert_int_equal(hx_consume(c, &o, &consumer, NULL), HX_OK);
        assert_true(hx_consumer_wait(consumer, -1));
        hx_consumer_close(consumer);
        const struct request *r = nth_request(sc.server, cases[i].target, 0);
        assert_non_null(r);
        assert_string_equal(r->body, cases[i].body);
        hx_close(c);
        scene_end(&sc);
    }
}

static hx_verdict handle_until_let_go(void *ctx, hx_message *m) {
    struct scene *sc = ctx;
    (void)m;
    atomic_fetch_add(&sc->handled, 1);
    scene_wait(sc, &sc->let_go);
    return HX_DONE;
}

static void stopping_finishes_what_runs_and_gives_back_what_was_only_reserved(void **state) {
    (void)state;
    struct scene sc;
    supply = "{\"messages\":[" MESSAGE("1") "," MESSAGE("2") "," MESSAGE("3") "]}";
    scene_init(&sc);
    hx_client *c = client_of(sc.server, 10000);
    hx_consume_options o = {.queue = "q", .handler = handle_until_let_go, .ctx = &sc, .prefetch = 3};
    hx_consumer *consumer;
    assert_int_equal(hx_consume(c, &o, &consumer, NULL), HX_OK);
    await_requests(sc.server, "/v1/start", 1);
    await_requests(sc.server, "/v1/queues/q/receive", 2); /* now inside a long poll */
    hx_consumer_stop(consumer);
    assert_false(hx_consumer_wait(consumer, 0));
    scene_set(&sc, &sc.let_go);
    hx_consumer_close(consumer); /* ends the long poll too, or this would hang */
    assert_int_equal(atomic_load(&sc.handled), 1);
    assert_string_equal(nth_request(sc.server, "/v1/ack", 0)->body, "{\"token\":\"t1\"}");
    assert_string_equal(nth_request(sc.server, "/v1/release", 0)->body, "[{\"token\":\"t2\"},{\"token\":\"t3\"}]");
    hx_close(c);
    scene_end(&sc);
}

/* The second poll is answered with a message, but only after the stop. */
static void answer_late(struct exchange *x) {
    bool poll = target_is(x, "/v1/queues/q/receive");
    if (poll && count_target(x->server, "/v1/queues/q/receive") > 1) {
        gate_wait(x->server);
        answer(x, 200, "", "{\"messages\":[" MESSAGE("9") "]}");
        return;
    }
    answer_consumer(x);
}

static void an_answer_on_its_way_when_the_stop_comes_is_read_and_given_back(void **state) {
    (void)state;
    struct scene sc;
    supply = "{\"messages\":[]}";
    scene_init(&sc);
    sc.server->script = answer_late;
    hx_client *c = client_of(sc.server, 10000);
    hx_consume_options o = {.queue = "q", .handler = handle_plainly, .ctx = &sc};
    hx_consumer *consumer;
    assert_int_equal(hx_consume(c, &o, &consumer, NULL), HX_OK);
    await_requests(sc.server, "/v1/queues/q/receive", 2);
    hx_consumer_stop(consumer);
    gate_open(sc.server);
    hx_consumer_close(consumer);
    assert_int_equal(atomic_load(&sc.handled), 0);
    const struct request *release = nth_request(sc.server, "/v1/release", 0);
    assert_non_null(release);
    assert_string_equal(release->body, "[{\"token\":\"t9\"}]");
    hx_close(c);
    scene_end(&sc);
}

static hx_status do_step(void *ctx, hx_message *m, hx_value *result) {
    (void)m;
    ++*(int *)ctx;
    hx_value_set(result, hx_str("made"));
    return HX_OK;
}

static void told_lost(void *ctx, hx_message *m) {
    struct scene *sc = ctx;
    (void)m;
    scene_set(sc, &sc->lost_told);
}

static hx_verdict handle_until_lost(void *ctx, hx_message *m) {
    struct scene *sc = ctx;
    assert_false(hx_message_lease_lost(m));
    scene_wait(sc, &sc->lost_told);
    sc->lost_seen = hx_message_lease_lost(m);
    int runs = 0;
    assert_int_equal(hx_step_once(m, "s9", do_step, &runs, NULL, NULL), HX_FENCED);
    assert_int_equal(runs, 0); /* nothing more is begun without the lease */
    return HX_FAIL_UNKNOWN;
}

static void consume_until_lost(const char *answer_to_extend, size_t extends_at_least) {
    struct scene sc;
    supply = "{\"messages\":[" MESSAGE("1") "]}";
    extend_answer = answer_to_extend;
    scene_init(&sc);
    hx_client *c = client_of(sc.server, 10000);
    hx_consume_options o = {.queue = "q",
                            .handler = handle_until_lost,
                            .on_lease_lost = told_lost,
                            .ctx = &sc,
                            .messages_max = 1,
                            .lease_ms = 1000};
    hx_consumer *consumer;
    assert_int_equal(hx_consume(c, &o, &consumer, NULL), HX_OK);
    assert_true(hx_consumer_wait(consumer, -1));
    hx_consumer_stats stats;
    hx_consumer_stats_get(consumer, &stats);
    hx_consumer_close(consumer);
    assert_true(sc.lost_seen);
    assert_int_equal(stats.leases_lost, 1);
    assert_true(count_target(sc.server, "/v1/extend") >= extends_at_least);
    /* The verdict is reported all the same. */
    assert_non_null(nth_request(sc.server, "/v1/nack", 0));
    hx_close(c);
    scene_end(&sc);
}

static void the_handler_is_told_when_the_broker_says_the_lease_is_gone(void **state) {
    (void)state;
    consume_until_lost("[" PROBLEM(409, "fenced", "no") "]", 1);
}

static void the_handler_is_told_when_the_lease_ended_without_a_word_from_the_broker(void **state) {
    (void)state;
    consume_until_lost(NULL, 2);
}

static hx_verdict handle_until_renewed(void *ctx, hx_message *m) {
    struct scene *sc = ctx;
    i64 began = clock_mono_ms();
    await_requests(sc->server, "/v1/extend", 4); /* longer than the lease itself */
    assert_true(clock_mono_ms() - began < 4000); /* and each well before the lease would have ended */
    sc->lost_seen = hx_message_lease_lost(m);
    return HX_DONE;
}

static void a_lease_is_renewed_as_long_as_the_handler_runs(void **state) {
    (void)state;
    struct scene sc;
    supply = "{\"messages\":[" MESSAGE("1") "]}";
    extend_answer = "[{\"state\":\"leased\"}]";
    scene_init(&sc);
    hx_client *c = client_of(sc.server, 10000);
    hx_consume_options o = {
        .queue = "q", .handler = handle_until_renewed, .ctx = &sc, .messages_max = 1, .lease_ms = 1000};
    consume_to_the_end(c, &o);
    assert_false(sc.lost_seen);
    assert_string_equal(nth_request(sc.server, "/v1/extend", 0)->body, "[{\"token\":\"t1\",\"lease\":\"1s\"}]");
    hx_close(c);
    scene_end(&sc);
}

static hx_status fail_step(void *ctx, hx_message *m, hx_value *result) {
    (void)ctx;
    (void)m;
    (void)result;
    return HX_REFUSED;
}

static hx_verdict handle_steps(void *ctx, hx_message *m) {
    struct scene *sc = ctx;
    int runs = 0;
    hx_bytes out;
    assert_int_equal(hx_step_once(m, "s1", do_step, &runs, &out, NULL), HX_OK);
    assert_int_equal(runs, 0);
    assert_memory_equal(out.data, "r1", 2);
    assert_int_equal(hx_step_once(m, "s2", do_step, &runs, &out, NULL), HX_OK);
    assert_int_equal(runs, 1);
    assert_memory_equal(out.data, "made", 4);
    assert_int_equal(hx_step_once(m, "s3", fail_step, NULL, &out, NULL), HX_REFUSED);
    atomic_fetch_add(&sc->handled, 1);
    return HX_DONE;
}

static void a_finished_step_is_not_done_again_and_a_new_one_is_recorded(void **state) {
    (void)state;
    struct scene sc;
    supply = "{\"messages\":[" MESSAGE("1") "]}";
    scene_init(&sc);
    hx_client *c = client_of(sc.server, 10000);
    hx_consume_options o = {.queue = "q", .handler = handle_steps, .ctx = &sc, .messages_max = 1};
    consume_to_the_end(c, &o);
    assert_int_equal(atomic_load(&sc.handled), 1);
    assert_int_equal(count_target(sc.server, "/v1/step"), 1);
    assert_string_equal(nth_request(sc.server, "/v1/step", 0)->body,
                        "{\"token\":\"t1\",\"name\":\"s2\",\"result\":\"made\"}");
    hx_close(c);
    scene_end(&sc);
}

static void refuse_start(struct exchange *x) {
    if (target_is(x, "/v1/start"))
        answer(x, 409, "", PROBLEM(409, "fenced", "no"));
    else
        answer_consumer(x);
}

static void a_reservation_that_cannot_be_started_never_reaches_the_handler(void **state) {
    (void)state;
    struct scene sc;
    supply = "{\"messages\":[" MESSAGE("1") "]}";
    scene_init(&sc);
    sc.server->script = refuse_start;
    gate_open(sc.server);
    hx_client *c = client_of(sc.server, 10000);
    hx_consume_options o = {.queue = "q", .handler = handle_plainly, .ctx = &sc, .idle_ms = -1, .wait_ms = -1};
    consume_to_the_end(c, &o);
    assert_int_equal(atomic_load(&sc.handled), 0);
    assert_int_equal(count_target(sc.server, "/v1/ack"), 0);
    hx_close(c);
    scene_end(&sc);
}

static void refuse_polls(struct exchange *x) {
    answer(x, 400, "", PROBLEM(400, "param_invalid", "no"));
}

static void a_poll_that_can_never_work_stops_the_consumer(void **state) {
    (void)state;
    struct scene sc;
    scene_init(&sc);
    sc.server->script = refuse_polls;
    hx_client *c = client_of(sc.server, 10000);
    hx_consume_options o = {.queue = "q", .handler = handle_plainly, .ctx = &sc, .on_trouble = count_trouble};
    consume_to_the_end(c, &o);
    assert_int_equal(atomic_load(&sc.trouble), 1);
    hx_close(c);
    scene_end(&sc);
}

static struct scene *full_scene;

/* A broker without room for the result, until the consumer has told of it once: that is, for longer than a lease. */
static void ack_when_there_is_room(struct exchange *x) {
    if (target_is(x, "/v1/ack") && atomic_load(&full_scene->trouble) == 0)
        answer(x, 507, "", PROBLEM(507, "storage_full", "no"));
    else
        answer_consumer(x);
}

static void done_work_is_not_let_go_of_while_the_broker_has_no_room_for_its_result(void **state) {
    (void)state;
    struct scene sc;
    supply = "{\"messages\":[" MESSAGE("1") "]}";
    scene_init(&sc);
    full_scene = &sc;
    sc.server->script = ack_when_there_is_room;
    gate_open(sc.server);
    hx_client *c = client_of(sc.server, 10000);
    hx_consume_options o = {.queue = "q",
                            .handler = handle_plainly,
                            .ctx = &sc,
                            .on_trouble = count_trouble,
                            .messages_max = 1,
                            .lease_ms = 1000};
    hx_consumer *consumer;
    assert_int_equal(hx_consume(c, &o, &consumer, NULL), HX_OK);
    assert_true(hx_consumer_wait(consumer, -1));
    hx_consumer_stats stats;
    hx_consumer_stats_get(consumer, &stats);
    hx_consumer_close(consumer);
    assert_int_equal(stats.settled, 1);
    assert_int_equal(atomic_load(&sc.handled), 1);
    assert_true(count_target(sc.server, "/v1/extend") > 0);
    hx_close(c);
    scene_end(&sc);
}

static void never_room(struct exchange *x) {
    if (target_is(x, "/v1/ack"))
        answer(x, 507, "", PROBLEM(507, "storage_full", "no"));
    else
        answer_consumer(x);
}

static hx_consumer *stopped_by_trouble;

static void stop_at_trouble(void *ctx, hx_message *m, const hx_error *error) {
    count_trouble(ctx, m, error);
    if (stopped_by_trouble) hx_consumer_stop(stopped_by_trouble);
}

static void a_stop_ends_the_repeating_of_a_settling_call_after_a_lease(void **state) {
    (void)state;
    struct scene sc;
    supply = "{\"messages\":[" MESSAGE("1") "]}";
    scene_init(&sc);
    sc.server->script = never_room;
    gate_open(sc.server);
    hx_client *c = client_of(sc.server, 10000);
    hx_consume_options o = {
        .queue = "q", .handler = handle_plainly, .ctx = &sc, .on_trouble = stop_at_trouble, .lease_ms = 1000};
    assert_int_equal(hx_consume(c, &o, &stopped_by_trouble, NULL), HX_OK);
    assert_true(hx_consumer_wait(stopped_by_trouble, -1));
    hx_consumer_stats stats;
    hx_consumer_stats_get(stopped_by_trouble, &stats);
    hx_consumer_close(stopped_by_trouble);
    assert_int_equal(stats.settled, 0);
    hx_close(c);
    scene_end(&sc);
}

static atomic_int given_up;

static void note_giving_up(void *ctx, hx_message *m, const hx_error *error) {
    count_trouble(ctx, m, error);
    if (m && error->status == HX_CANCELLED) atomic_fetch_add(&given_up, 1);
}

static void a_hurry_ends_the_repeating_of_a_settling_call_after_one_more_try(void **state) {
    (void)state;
    struct scene sc;
    supply = "{\"messages\":[" MESSAGE("1") "]}";
    scene_init(&sc);
    sc.server->script = never_room;
    gate_open(sc.server);
    hx_client *c = client_of(sc.server, 10000);
    hx_consume_options o = {
        .queue = "q", .handler = handle_plainly, .ctx = &sc, .on_trouble = note_giving_up, .lease_ms = 3600000};
    hx_consumer *consumer;
    assert_int_equal(hx_consume(c, &o, &consumer, NULL), HX_OK);
    await_requests(sc.server, "/v1/ack", 2);
    hx_consumer_hurry(consumer);
    assert_true(hx_consumer_wait(consumer, -1));
    hx_consumer_close(consumer);
    assert_int_equal(atomic_load(&given_up), 1);
    assert_true(count_target(sc.server, "/v1/ack") >= 3);
    hx_close(c);
    scene_end(&sc);
}

static void every_status_has_a_text(void **state) {
    (void)state;
    for (int i = 0; i <= HX_CLOSED; i++) assert_true(strlen(hx_status_text((hx_status)i)) > 2);
    assert_string_equal(hx_status_name(HX_UNKNOWN), "UNKNOWN");
    assert_string_equal(hx_state_text(HX_STATE_CANCELLED), "cancelled");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_send_carries_everything_and_reads_the_receipt),
        cmocka_unit_test(a_key_beyond_ascii_is_spelled_as_a_display_string),
        cmocka_unit_test(a_duplicate_brings_the_originals_state_and_result),
        cmocka_unit_test(a_reused_key_is_a_conflict_that_names_the_original),
        cmocka_unit_test(a_conflict_the_queue_holds_is_told_apart),
        cmocka_unit_test(wrong_drafts_are_refused_before_anything_is_sent),
        cmocka_unit_test(a_reply_split_at_every_byte_reads_the_same),
        cmocka_unit_test(replies_that_are_none_are_protocol_errors_of_unknown_effect),
        cmocka_unit_test(a_send_whose_answer_was_lost_is_repeated_with_the_same_key),
        cmocka_unit_test(half_a_reply_is_no_reply),
        cmocka_unit_test(after_a_lost_answer_busy_does_not_mean_not_applied),
        cmocka_unit_test(busy_alone_is_reported_at_once),
        cmocka_unit_test(a_send_never_answered_is_unknown_when_its_time_is_up),
        cmocka_unit_test(a_replys_etag_is_handed_on),
        cmocka_unit_test(a_message_without_a_key_is_read),
        cmocka_unit_test(answers_always_lost_end_as_unknown_and_reads_as_unreachable),
        cmocka_unit_test(nobody_listening_is_unreachable_at_once_and_nothing_applied),
        cmocka_unit_test(an_idle_connection_closed_by_the_broker_goes_unnoticed),
        cmocka_unit_test(connections_are_kept_and_used_again),
        cmocka_unit_test(urls_are_checked),
        cmocka_unit_test(a_lost_ack_is_repeated_and_the_first_one_stands),
        cmocka_unit_test(every_settling_call_says_fenced_when_it_is),
        cmocka_unit_test(receive_reads_every_field),
        cmocka_unit_test(waiting_tells_state_and_result),
        cmocka_unit_test(sends_from_many_threads_gather_while_a_request_is_under_way),
        cmocka_unit_test(a_lost_batch_is_sent_again_as_it_was),
        cmocka_unit_test(a_batch_never_answered_is_unknown_only_after_its_time),
        cmocka_unit_test(one_bad_line_fails_alone_and_a_refused_one_is_tried_again),
        cmocka_unit_test(a_batch_answered_with_another_number_of_lines_confirms_nothing),
        cmocka_unit_test(a_full_sender_says_busy_and_takes_more_once_answered),
        cmocka_unit_test(a_future_brings_the_receipt),
        cmocka_unit_test(a_message_is_reserved_started_handled_and_acked),
        cmocka_unit_test(each_verdict_becomes_its_settling_call),
        cmocka_unit_test(stopping_finishes_what_runs_and_gives_back_what_was_only_reserved),
        cmocka_unit_test(an_answer_on_its_way_when_the_stop_comes_is_read_and_given_back),
        cmocka_unit_test(the_handler_is_told_when_the_broker_says_the_lease_is_gone),
        cmocka_unit_test(the_handler_is_told_when_the_lease_ended_without_a_word_from_the_broker),
        cmocka_unit_test(a_lease_is_renewed_as_long_as_the_handler_runs),
        cmocka_unit_test(a_finished_step_is_not_done_again_and_a_new_one_is_recorded),
        cmocka_unit_test(a_reservation_that_cannot_be_started_never_reaches_the_handler),
        cmocka_unit_test(a_poll_that_can_never_work_stops_the_consumer),
        cmocka_unit_test(done_work_is_not_let_go_of_while_the_broker_has_no_room_for_its_result),
        cmocka_unit_test(a_stop_ends_the_repeating_of_a_settling_call_after_a_lease),
        cmocka_unit_test(a_hurry_ends_the_repeating_of_a_settling_call_after_one_more_try),
        cmocka_unit_test(every_status_has_a_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
