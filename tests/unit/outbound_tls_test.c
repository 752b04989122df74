/* Who cannot show a certificate of the one that was called, from somebody who is trusted, for this day, is sent nothing. */
#include "outbound_kit.h"

#include <netdb.h>

#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

struct signer {
    EVP_PKEY *key;
    X509 *cert;
};

static struct signer trusted, stranger;
static char authorities[64], authority_file[96];

static void put_name(X509_NAME *name, const char *text) {
    CHECK(X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const u8 *)text, -1, -1, 0));
}

static void put_extension(X509 *cert, int nid, const char *text) {
    X509_EXTENSION *e = X509V3_EXT_conf_nid(NULL, NULL, nid, text);
    CHECK(e && X509_add_ext(cert, e, -1));
    X509_EXTENSION_free(e);
}

/* by NULL: its own issuer. */
static struct signer make_signed(const struct signer *by, const char *common, const char *names, long from_s,
                                 long until_s) {
    static long serial = 1;
    struct signer s = {EVP_EC_gen("P-256"), X509_new()};
    CHECK(s.key && X509_set_version(s.cert, 2) && ASN1_INTEGER_set(X509_get_serialNumber(s.cert), serial++));
    CHECK(X509_gmtime_adj(X509_getm_notBefore(s.cert), from_s) && X509_gmtime_adj(X509_getm_notAfter(s.cert), until_s));
    put_name(X509_get_subject_name(s.cert), common);
    CHECK(X509_set_issuer_name(s.cert, X509_get_subject_name(by ? by->cert : s.cert)) &&
          X509_set_pubkey(s.cert, s.key));
    if (names) put_extension(s.cert, NID_subject_alt_name, names);
    put_extension(s.cert, NID_basic_constraints, by ? "CA:FALSE" : "critical,CA:TRUE");
    CHECK(X509_sign(s.cert, by ? by->key : s.key, EVP_sha256()));
    return s;
}

static void free_signer(struct signer *s) {
    X509_free(s->cert);
    EVP_PKEY_free(s->key);
}

static int make_authorities(void **state) {
    (void)state;
    trusted = make_signed(NULL, "trusted", NULL, -3600, 3600);
    stranger = make_signed(NULL, "stranger", NULL, -3600, 3600);
    snprintf(authorities, sizeof authorities, "/var/tmp/hapax-authorities-XXXXXX");
    CHECK(mkdtemp(authorities));
    snprintf(authority_file, sizeof authority_file, "%s/%08lx.0", authorities, X509_subject_name_hash(trusted.cert));
    FILE *f = fopen(authority_file, "w");
    CHECK(f && PEM_write_X509(f, trusted.cert) && fclose(f) == 0);
    return 0;
}

static int drop_authorities(void **state) {
    (void)state;
    unlink(authority_file);
    rmdir(authorities);
    free_signer(&trusted);
    free_signer(&stranger);
    return 0;
}

static int look_up(const char *host, struct addrinfo **out) {
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
    (void)host;
    return getaddrinfo("127.0.0.1", NULL, &hints, out);
}

/* ---- a server of one connection */

struct tls_server {
    int fd;
    u16 port;
    pthread_t thread;
    SSL_CTX *tls; /* NULL: it goes away in the middle of the handshake */
    size_t bytes; /* of what it was sent in confidence */
};

static void *serve_tls(void *arg) {
    struct tls_server *s = arg;
    static const char reply[] = "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n";
    char bytes[4096];
    int fd = accept(s->fd, NULL, NULL), n;
    if (fd < 0) return NULL;
    if (!s->tls) {
        (void)!read(fd, bytes, 1);
        close(fd);
        return NULL;
    }
    SSL *ssl = SSL_new(s->tls);
    SSL_set_fd(ssl, fd);
    if (SSL_accept(ssl) == 1 && (n = SSL_read(ssl, bytes, sizeof bytes)) > 0) {
        while (s->bytes += (size_t)n,
               !memmem(bytes, (size_t)n, "body", 4) && (n = SSL_read(ssl, bytes, sizeof bytes)) > 0) {
        }
        SSL_write(ssl, reply, sizeof reply - 1);
        SSL_shutdown(ssl);
    }
    SSL_free(ssl);
    close(fd);
    ERR_clear_error();
    return NULL;
}

static void open_tls(struct tls_server *s, const struct signer *who, int version_max) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t n = sizeof at;
    *s = (struct tls_server){.fd = socket(AF_INET, SOCK_STREAM, 0)};
    if (who) {
        s->tls = SSL_CTX_new(TLS_server_method());
        SSL_CTX_set_security_level(s->tls, 0);
        SSL_CTX_set_max_proto_version(s->tls, version_max);
        CHECK(SSL_CTX_use_certificate(s->tls, who->cert) == 1 && SSL_CTX_use_PrivateKey(s->tls, who->key) == 1);
    }
    CHECK(bind(s->fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(s->fd, 1) == 0);
    getsockname(s->fd, (struct sockaddr *)&at, &n);
    s->port = ntohs(at.sin_port);
    pthread_create(&s->thread, NULL, serve_tls, s);
}

static void close_tls(struct tls_server *s) {
    shutdown(s->fd, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    close(s->fd);
    SSL_CTX_free(s->tls);
}

static enum outbound_end call_tls(const struct signer *who, int version_max, const char *host, size_t *bytes) {
    struct tls_server s;
    struct heard h = {0};
    char url[128];
    open_tls(&s, who, version_max);
    kit_open_with(look_up, authorities);
    snprintf(url, sizeof url, "https://%s:%u/", host, s.port);
    struct outbound_request r = {.method = "POST",
                                 .url = url,
                                 .body = SL("body"),
                                 .connect_ms = 10000,
                                 .total_ms = 10000,
                                 .allow_private = true};
    call_and_wait(&r, &h);
    enum outbound_end end = h.end;
    heard_free(&h);
    kit_close_world(NULL);
    close_tls(&s);
    *bytes = s.bytes;
    return end;
}

static const char names[] = "DNS:terminal.example,DNS:*.wild.example,IP:127.0.0.1";

static void who_can_be_trusted_is_called(void **state) {
    static const char *const hosts[] = {"terminal.example", "TERMINAL.example", "a.wild.example", "127.0.0.1"};
    struct signer good = make_signed(&trusted, "anything", names, -60, 3600);
    size_t bytes;
    (void)state;
    for (u32 i = 0; i < 4; i++) {
        assert_int_equal(call_tls(&good, TLS1_3_VERSION, hosts[i], &bytes), OUTBOUND_ANSWERED);
        assert_true(bytes > 0);
    }
    assert_int_equal(call_tls(&good, TLS1_2_VERSION, "terminal.example", &bytes), OUTBOUND_ANSWERED);
    free_signer(&good);
}

static void assert_refused(struct signer who, int version_max, const char *host) {
    size_t bytes;
    if (call_tls(who.key ? &who : NULL, version_max, host, &bytes) != OUTBOUND_NOT_SENT || bytes)
        fail_msg("%s was told %zu bytes", host, bytes);
    free_signer(&who);
}

static void who_cannot_be_trusted_is_sent_nothing(void **state) {
    (void)state;
    assert_refused(make_signed(&stranger, "chain", names, -60, 3600), TLS1_3_VERSION, "terminal.example");
    assert_refused(make_signed(NULL, "self", names, -60, 3600), TLS1_3_VERSION, "terminal.example");
    assert_refused(make_signed(&trusted, "expired", names, -3600, -60), TLS1_3_VERSION, "terminal.example");
    assert_refused(make_signed(&trusted, "not yet", names, 600, 3600), TLS1_3_VERSION, "terminal.example");
    assert_refused(make_signed(&trusted, "name", names, -60, 3600), TLS1_3_VERSION, "other.example");
    assert_refused(make_signed(&trusted, "name", names, -60, 3600), TLS1_3_VERSION, "a.b.wild.example");
    assert_refused(make_signed(&trusted, "terminal.example", "DNS:other.example", -60, 3600), TLS1_3_VERSION,
                   "terminal.example");
    assert_refused(make_signed(&trusted, "address", "DNS:terminal.example", -60, 3600), TLS1_3_VERSION, "127.0.0.1");
    assert_refused(make_signed(&trusted, "old", names, -60, 3600), TLS1_1_VERSION, "terminal.example");
    assert_refused((struct signer){0}, 0, "terminal.example");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_can_be_trusted_is_called),
        cmocka_unit_test(who_cannot_be_trusted_is_sent_nothing),
    };
    return cmocka_run_group_tests(tests, make_authorities, drop_authorities);
}
