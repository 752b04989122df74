/* TLS for the load generator: a handshake on a socket that still blocks, then records without blocking. Like the rest of it, it
 * shares nothing with the library it measures. */
#include <arpa/inet.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include "cli/load.h"

enum { AHEAD_BYTES = 64 << 10 };

struct load_tls {
    SSL_CTX *ctx;
    const char *host;
    SSL_SESSION *session; /* all connections but the first resume it */
};

static const char *reason(void) {
    const char *text = ERR_reason_error_string(ERR_peek_error());
    return text ? text : "the connection broke";
}

struct load_tls *load_tls_new(const struct load_tls_options *o, struct errbuf *err) {
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    CHECK(ctx);
    SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, NULL);
    X509_VERIFY_PARAM_set_flags(SSL_CTX_get0_param(ctx), X509_V_FLAG_PARTIAL_CHAIN);
    SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_read_ahead(ctx, 1);
    SSL_CTX_set_default_read_buffer_len(ctx, AHEAD_BYTES);
    bool ok = o->ca_file ? SSL_CTX_load_verify_file(ctx, o->ca_file) : SSL_CTX_set_default_verify_paths(ctx);
    const char *key = o->key_file ? o->key_file : o->cert_file;
    if (ok && o->cert_file)
        ok = SSL_CTX_use_certificate_chain_file(ctx, o->cert_file) == 1 &&
             SSL_CTX_use_PrivateKey_file(ctx, key, SSL_FILETYPE_PEM) == 1;
    if (!ok) {
        err_set(err, ST_INVALID, "TLS: %s", reason());
        SSL_CTX_free(ctx);
        return NULL;
    }
    struct load_tls *t = mem_zalloc(sizeof *t);
    *t = (struct load_tls){.ctx = ctx, .host = o->host};
    return t;
}

void load_tls_free(struct load_tls *t) {
    if (!t) return;
    SSL_SESSION_free(t->session);
    SSL_CTX_free(t->ctx);
    mem_free(t);
}

static bool name_peer(SSL *ssl, const char *host) {
    struct in6_addr any;
    if (inet_pton(AF_INET, host, &any) == 1 || inet_pton(AF_INET6, host, &any) == 1)
        return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host) == 1;
    return SSL_set1_host(ssl, host) == 1 && SSL_set_tlsext_host_name(ssl, host) == 1;
}

void *load_tls_begin(struct load_tls *t, int fd, struct errbuf *err) {
    SSL *ssl = SSL_new(t->ctx);
    CHECK(ssl && name_peer(ssl, t->host) && SSL_set_fd(ssl, fd) == 1);
    if (t->session) SSL_set_session(ssl, t->session);
    ERR_clear_error();
    if (SSL_connect(ssl) == 1) return ssl;
    long verdict = SSL_get_verify_result(ssl);
    err_set(err, ST_IO, "TLS: %s", verdict == X509_V_OK ? reason() : X509_verify_cert_error_string(verdict));
    SSL_free(ssl);
    return NULL;
}

void load_tls_end(struct load_tls *t, void *secure) {
    SSL *ssl = secure;
    if (ssl && !t->session) t->session = SSL_get1_session(ssl);
    SSL_free(ssl);
}

static ssize_t moved(SSL *ssl, int rc, const size_t *n) {
    if (rc == 1) return (ssize_t)*n;
    int what = SSL_get_error(ssl, rc);
    if (what == SSL_ERROR_ZERO_RETURN) return 0;
    errno = what == SSL_ERROR_WANT_READ || what == SSL_ERROR_WANT_WRITE ? EAGAIN : EPROTO;
    return -1;
}

ssize_t load_tls_send(void *secure, const void *p, size_t n) {
    size_t done = 0;
    ERR_clear_error();
    return moved(secure, SSL_write_ex(secure, p, n, &done), &done);
}

ssize_t load_tls_recv(void *secure, void *p, size_t n) {
    size_t done = 0;
    ERR_clear_error();
    return moved(secure, SSL_read_ex(secure, p, n, &done), &done);
}
