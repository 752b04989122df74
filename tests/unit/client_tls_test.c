/* libhapax over TLS: the promises of the plain connection hold, against a server that is made here and misbehaves. What concerns
 * certificates is in tests/e2e/connect_test.py. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
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

enum { TIMEOUT_MS = 400, PATIENCE_MS = 60000, CONNS_MAX = 512 };

/* ---- a certificate for 127.0.0.1, made once */

static X509 *certificate;
static EVP_PKEY *key;
static char ca_file[] = "client_tls_test.XXXXXX";

static int make_certificate(void **state) {
    (void)state;
    signal(SIGPIPE, SIG_DFL); /* as a program has it that knows nothing of us */
    key = EVP_EC_gen("P-256");
    certificate = X509_new();
    X509_set_version(certificate, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 86400);
    X509_set_pubkey(certificate, key);
    X509_EXTENSION *names = X509V3_EXT_conf_nid(NULL, NULL, NID_subject_alt_name, "IP:127.0.0.1");
    X509_add_ext(certificate, names, -1);
    X509_EXTENSION_free(names);
    assert_true(X509_sign(certificate, key, EVP_sha256()) > 0);
    FILE *f = fdopen(mkstemp(ca_file), "w");
    assert_non_null(f);
    assert_int_equal(PEM_write_X509(f, certificate), 1);
    fclose(f);
    return 0;
}

static int drop_certificate(void **state) {
    (void)state;
    unlink(ca_file);
    X509_free(certificate);
    EVP_PKEY_free(key);
    return 0;
}

/* ---- a server: a thread for each connection */

struct server {
    int listen_fd;
    char url[64];
    SSL_CTX *ctx;
    void (*behave)(struct server *s, SSL *ssl, int number);
    pthread_t thread, conns[CONNS_MAX];
    atomic_int count, resumed, requests, ends, over;
};

struct one {
    struct server *server;
    int fd, number;
};

static void *serve_one(void *arg) {
    struct one o = *(struct one *)arg;
    sigset_t pipe_only; /* this side's OpenSSL writes as it does by itself; whom the signal may end is the client */
    free(arg);
    sigemptyset(&pipe_only);
    sigaddset(&pipe_only, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_only, NULL);
    SSL *ssl = SSL_new(o.server->ctx);
    SSL_set_fd(ssl, o.fd);
    if (SSL_accept(ssl) == 1) {
        if (SSL_session_reused(ssl)) atomic_fetch_add(&o.server->resumed, 1);
        o.server->behave(o.server, ssl, o.number);
    }
    SSL_free(ssl);
    close(o.fd);
    return NULL;
}

static void *serve(void *arg) {
    struct server *s = arg;
    for (int fd; (fd = accept(s->listen_fd, NULL, NULL)) >= 0;) {
        struct one *o = malloc(sizeof *o);
        int number = atomic_load(&s->count);
        assert_true(number < CONNS_MAX);
        *o = (struct one){s, fd, number};
        pthread_create(&s->conns[number], NULL, serve_one, o);
        atomic_store(&s->count, number + 1);
    }
    return NULL;
}

static struct server *server_start(void (*behave)(struct server *s, SSL *ssl, int number)) {
    struct server *s = calloc(1, sizeof *s);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int small = 4096; /* a request cannot hide in the kernel */
    s->behave = behave;
    s->ctx = SSL_CTX_new(TLS_server_method());
    SSL_CTX_use_certificate(s->ctx, certificate);
    SSL_CTX_use_PrivateKey(s->ctx, key);
    s->listen_fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(s->listen_fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    assert_int_equal(bind(s->listen_fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(s->listen_fd, 64), 0);
    getsockname(s->listen_fd, (struct sockaddr *)&a, &n);
    snprintf(s->url, sizeof s->url, "https://127.0.0.1:%d", ntohs(a.sin_port));
    pthread_create(&s->thread, NULL, serve, s);
    return s;
}

static void server_stop(struct server *s) {
    atomic_store(&s->over, 1);
    shutdown(s->listen_fd, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    for (int i = 0; i < atomic_load(&s->count); i++) pthread_join(s->conns[i], NULL);
    close(s->listen_fd);
    SSL_CTX_free(s->ctx);
    free(s);
}

static hx_client *client_of(const struct server *s, i64 timeout_ms) {
    hx_options o = {.url = s->url, .timeout_ms = timeout_ms, .connect_timeout_ms = PATIENCE_MS, .ca_file = ca_file};
    hx_client *c = NULL;
    hx_error err;
    if (hx_open(&o, &c, &err) != HX_OK) fail_msg("%s", err.detail);
    return c;
}

static hx_status send_one(hx_client *c, size_t bytes, hx_receipt *out, hx_error *err) {
    char *payload = calloc(1, bytes + 1);
    memset(payload, 'p', bytes);
    hx_draft draft = {.key = "k", .payload = hx_bytes_of(payload, bytes)};
    hx_status st = hx_send(c, "q", &draft, 0, out, err);
    free(payload);
    return st;
}

/* The head of a request, and its body. false: the client has left. */
static bool take_request(struct server *s, SSL *ssl, size_t *lines) {
    char head[65536];
    size_t n = 0, body = 0, got;
    *lines = 0;
    for (char *end = NULL; !end;) {
        if (n == sizeof head - 1 || SSL_read_ex(ssl, head + n, 1, &got) != 1) return false;
        head[++n] = '\0';
        if (n >= 4 && memcmp(head + n - 4, "\r\n\r\n", 4) == 0) end = head + n;
    }
    const char *length = strstr(head, "Content-Length: ");
    if (length) body = strtoul(length + 16, NULL, 10);
    for (char some[16384]; body; body -= got) {
        if (SSL_read_ex(ssl, some, body < sizeof some ? body : sizeof some, &got) != 1) return false;
        for (size_t i = 0; i < got; i++) *lines += some[i] == '\n';
    }
    atomic_fetch_add(&s->requests, 1);
    return true;
}

static bool say(SSL *ssl, const char *text, size_t n) {
    size_t done;
    return SSL_write_ex(ssl, text, n, &done) == 1;
}

static void answer(SSL *ssl, const char *status, const char *body) {
    char text[65536];
    int n =
        snprintf(text, sizeof text, "HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                 status, strlen(body), body);
    say(ssl, text, (size_t)n);
}

static const char accepted[] =
    "{\"outcome\":\"accepted\",\"duplicate\":false,\"id\":\"1\",\"queue\":\"q\",\"key\":\"k\","
    "\"state\":\"pending\",\"status\":202}\n";

static void accept_all(struct server *s, SSL *ssl, int number) {
    (void)number;
    for (size_t lines; take_request(s, ssl, &lines);) {
        struct buf b = {0};
        for (size_t i = 0; i < (lines ? lines : 1); i++) buf_add(&b, accepted, sizeof accepted - 1);
        buf_char(&b, 0);
        answer(ssl, lines ? "200 OK" : "202 Accepted", b.p);
        buf_free(&b);
    }
}

static void accept_one_and_close(struct server *s, SSL *ssl, int number) {
    (void)number;
    size_t lines;
    if (take_request(s, ssl, &lines)) answer(ssl, "202 Accepted", accepted);
}

/* ---- tests */

static void small_and_large_requests_are_answered(void **state) {
    (void)state;
    struct server *s = server_start(accept_all);
    hx_client *c = client_of(s, PATIENCE_MS);
    const size_t sizes[] = {0, 1, 12000, 12289, 16384, 100000, 4 << 20};
    hx_error err;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (send_one(c, sizes[i], NULL, &err) != HX_OK) fail_msg("%zu bytes: %s", sizes[i], err.detail);
    assert_int_equal(s->count, 1); /* tickets that came meanwhile are no reason to connect again */
    hx_security seen;
    hx_security_get(c, &seen);
    assert_true(seen.encrypted && seen.local && seen.certificate_expires_at_ms > clock_wall_ms());
    hx_close(c);
    server_stop(s);
}

static void a_sender_and_its_batches_go_over_it(void **state) {
    (void)state;
    enum { MESSAGES = 500 };
    struct server *s = server_start(accept_all);
    hx_client *c = client_of(s, PATIENCE_MS);
    hx_sender *sender;
    hx_future *futures[MESSAGES];
    assert_int_equal(hx_sender_open(c, &(hx_sender_options){.queue = "q", .connections = 3}, &sender, NULL), HX_OK);
    for (int i = 0; i < MESSAGES; i++) {
        hx_draft draft = {.key = "k", .payload = hx_str("p")};
        assert_int_equal(hx_send_future(sender, &draft, &futures[i], NULL), HX_OK);
    }
    for (int i = 0; i < MESSAGES; i++) {
        hx_status st;
        assert_true(hx_future_wait(futures[i], -1, &st, NULL, NULL));
        assert_int_equal(st, HX_OK);
        hx_future_free(futures[i]);
    }
    hx_sender_close(sender);
    hx_close(c);
    server_stop(s);
}

static void *send_some(void *arg) {
    for (int i = 0; i < 20; i++) {
        hx_error err;
        if (send_one(arg, 10, NULL, &err) != HX_OK) return strdup(err.detail);
    }
    return NULL;
}

static void threads_share_a_client_and_resume_its_session(void **state) {
    (void)state;
    pthread_t threads[8];
    struct server *s = server_start(accept_one_and_close);
    hx_client *c = client_of(s, PATIENCE_MS);
    for (int i = 0; i < 8; i++) pthread_create(&threads[i], NULL, send_some, c);
    for (int i = 0; i < 8; i++) {
        void *wrong;
        pthread_join(threads[i], &wrong);
        if (wrong) fail_msg("%s", (char *)wrong);
    }
    hx_close(c);
    /* All but those that were made before the first had one to give. */
    assert_true(s->resumed >= s->count - 8 && s->count > 8);
    server_stop(s);
}

static void cut_first(struct server *s, SSL *ssl, int number) {
    size_t lines;
    if (number == 0)
        take_request(s, ssl, &lines);
    else
        accept_all(s, ssl, number);
}

static void an_answer_that_was_cut_is_asked_for_again(void **state) {
    (void)state;
    struct server *s = server_start(cut_first);
    hx_client *c = client_of(s, PATIENCE_MS);
    hx_receipt receipt;
    assert_int_equal(send_one(c, 10, &receipt, NULL), HX_OK);
    assert_true(receipt.retried);
    assert_int_equal(s->requests, 2);
    hx_receipt_free(&receipt);
    hx_close(c);
    server_stop(s);
}

static void cut_all(struct server *s, SSL *ssl, int number) {
    size_t lines;
    (void)number;
    take_request(s, ssl, &lines);
}

/* One byte of the answer after the other, for as long as anybody listens. */
static void drip(struct server *s, SSL *ssl, int number) {
    size_t lines;
    (void)number;
    if (!take_request(s, ssl, &lines) || !say(ssl, "HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n", 44)) return;
    while (!atomic_load(&s->over) && say(ssl, "x", 1)) poll(NULL, 0, 1);
}

/* Tickets and nothing else, so fast that there is always one more to read. */
static void only_tickets(struct server *s, SSL *ssl, int number) {
    size_t lines;
    (void)number;
    if (!take_request(s, ssl, &lines)) return;
    while (!atomic_load(&s->over) && SSL_new_session_ticket(ssl) == 1 && SSL_do_handshake(ssl) == 1) {
    }
}

static void take_nothing(struct server *s, SSL *ssl, int number) {
    (void)ssl, (void)number;
    while (!atomic_load(&s->over)) poll(NULL, 0, 5);
}

static void what_has_no_end_ends_when_the_time_is_up(void **state) {
    (void)state;
    void (*const all[])(struct server *, SSL *, int) = {cut_all, drip, only_tickets, take_nothing};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct server *s = server_start(all[i]);
        hx_client *c = client_of(s, TIMEOUT_MS);
        hx_error err;
        assert_int_equal(send_one(c, 4 << 20, NULL, &err), HX_UNKNOWN);
        assert_int_equal(err.applied, HX_APPLIED_UNKNOWN);
        hx_close(c);
        server_stop(s);
    }
}

static void refuse_early(struct server *s, SSL *ssl, int number) {
    char some[1024];
    size_t got;
    (void)s, (void)number;
    if (SSL_read_ex(ssl, some, sizeof some, &got) != 1) return;
    answer(
        ssl, "413 Content Too Large",
        "{\"type\":\"urn:hapax:too_large\",\"title\":\"no\",\"status\":413,\"code\":\"too_large\",\"retryable\":false,"
        "\"applied\":\"no\"}");
    shutdown(SSL_get_fd(ssl), SHUT_WR);
    while (recv(SSL_get_fd(ssl), some, sizeof some, 0) > 0) {
    }
}

static void a_refusal_before_the_body_was_taken_is_heard(void **state) {
    (void)state;
    struct server *s = server_start(refuse_early);
    hx_client *c = client_of(s, PATIENCE_MS);
    hx_error err;
    assert_int_equal(send_one(c, 8 << 20, NULL, &err), HX_TOO_LARGE);
    assert_int_equal(err.applied, HX_APPLIED_NO);
    hx_close(c);
    server_stop(s);
}

/* While the request is stuck, TLS has something to say of its own. */
static void tickets_first(struct server *s, SSL *ssl, int number) {
    for (int i = 0; i < 50; i++) {
        SSL_new_session_ticket(ssl);
        SSL_do_handshake(ssl);
        poll(NULL, 0, 1);
    }
    accept_all(s, ssl, number);
}

static void tickets_are_not_taken_for_an_answer(void **state) {
    (void)state;
    struct server *s = server_start(tickets_first);
    hx_client *c = client_of(s, PATIENCE_MS);
    hx_error err;
    if (send_one(c, 8 << 20, NULL, &err) != HX_OK) fail_msg("%s", err.detail);
    assert_int_equal(s->count, 1);
    hx_close(c);
    server_stop(s);
}

static void hold_the_poll(struct server *s, SSL *ssl, int number) {
    size_t lines, got;
    char byte;
    (void)number;
    if (!take_request(s, ssl, &lines)) return;
    if (SSL_read_ex(ssl, &byte, 1, &got) != 1 && SSL_get_error(ssl, 0) == SSL_ERROR_ZERO_RETURN)
        atomic_fetch_add(&s->ends, 1);
}

static hx_verdict never(void *ctx, hx_message *m) {
    (void)ctx, (void)m;
    return HX_GIVE_BACK;
}

static void a_consumer_that_stops_says_so_and_does_not_wait_for_its_poll(void **state) {
    (void)state;
    struct server *s = server_start(hold_the_poll);
    hx_client *c = client_of(s, PATIENCE_MS);
    hx_consumer *consumer;
    hx_consume_options o = {.queue = "q", .handler = never, .wait_ms = PATIENCE_MS};
    assert_int_equal(hx_consume(c, &o, &consumer, NULL), HX_OK);
    while (atomic_load(&s->requests) == 0) poll(NULL, 0, 1);
    hx_consumer_close(consumer);
    hx_close(c);
    while (atomic_load(&s->ends) == 0) poll(NULL, 0, 1); /* a half of it was closed, in the words of TLS */
    server_stop(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_and_large_requests_are_answered),
        cmocka_unit_test(a_sender_and_its_batches_go_over_it),
        cmocka_unit_test(threads_share_a_client_and_resume_its_session),
        cmocka_unit_test(an_answer_that_was_cut_is_asked_for_again),
        cmocka_unit_test(what_has_no_end_ends_when_the_time_is_up),
        cmocka_unit_test(a_refusal_before_the_body_was_taken_is_heard),
        cmocka_unit_test(tickets_are_not_taken_for_an_answer),
        cmocka_unit_test(a_consumer_that_stops_says_so_and_does_not_wait_for_its_poll),
    };
    return cmocka_run_group_tests(tests, make_certificate, drop_certificate);
}
