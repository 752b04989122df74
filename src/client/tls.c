/* TLS on a socket that never blocks. OpenSSL sees the socket through a BIO of ours, for two reasons: its own would raise SIGPIPE,
 * which is the program's and not ours to touch; and whether a byte of a request has left is what "applied" hangs on, so it is
 * counted where bytes leave, not where OpenSSL takes them.
 *
 * In TLS 1.3 our side of the handshake is over before the broker has judged our certificate: its refusal arrives instead of
 * the first answer. Such an alert comes from a handshake that was never finished, so nothing of what was sent behind it was read. */
#include <arpa/inet.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <time.h>

#include "client/client_priv.h"

struct tls {
    SSL_CTX *ctx;
    char *host; /* without the dot a name may end with */
    bool by_address;
    pthread_mutex_t lock; /* of what follows */
    SSL_SESSION *session; /* the last one offered; a copy of our own */
    i64 expires_ms;
};

struct tls_conn {
    struct tls *tls;
    SSL *ssl;
    int fd;
    short wants;
    bool eof, heard; /* heard: an answer has begun, so the handshake was whole */
    bool distrusts;  /* we do not trust its certificate... */
    bool refused;    /* ...or it ours */
    int error;       /* of the socket, 0: none */
    u64 written;
    struct errbuf why;
};

/* ---- the socket, as OpenSSL sees it */

static int told(BIO *b, struct tls_conn *c, ssize_t n, bool reading) {
    BIO_clear_retry_flags(b);
    if (n >= 0) return (int)n;
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)
        BIO_set_flags(b, (reading ? BIO_FLAGS_READ : BIO_FLAGS_WRITE) | BIO_FLAGS_SHOULD_RETRY);
    else
        c->error = errno;
    return -1;
}

static int socket_write(BIO *b, const char *p, int n) {
    struct tls_conn *c = BIO_get_data(b);
    ssize_t sent = send(c->fd, p, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) c->written += (u64)sent;
    return told(b, c, sent, false);
}

static int socket_read(BIO *b, char *p, int n) {
    struct tls_conn *c = BIO_get_data(b);
    ssize_t got = recv(c->fd, p, (size_t)n, MSG_DONTWAIT);
    if (got == 0) c->eof = true;
    return told(b, c, got, true);
}

static long socket_control(BIO *b, int what, long number, void *p) {
    (void)b, (void)number, (void)p;
    return what == BIO_CTRL_FLUSH;
}

static BIO_METHOD *socket_method;

static void make_method(void) {
    socket_method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "hapax socket");
    CHECK(socket_method && BIO_meth_set_write(socket_method, socket_write) &&
          BIO_meth_set_read(socket_method, socket_read) && BIO_meth_set_ctrl(socket_method, socket_control));
}

/* ---- what is wrong with a certificate, in words */

static void put_name(struct buf *b, slice name) {
    buf_slice_add(b, b->len ? SL(", ") : SL(""));
    for (size_t i = 0; i < name.n && i < 100; i++) buf_char(b, name.p[i] > ' ' && name.p[i] < 0x7f ? name.p[i] : '?');
}

static void put_address(struct buf *b, const ASN1_OCTET_STRING *ip) {
    char text[INET6_ADDRSTRLEN] = "?";
    int n = ASN1_STRING_length(ip);
    inet_ntop(n == 4 ? AF_INET : AF_INET6, ASN1_STRING_get0_data(ip), text, n == 4 || n == 16 ? sizeof text : 0);
    put_name(b, slice_str(text));
}

/* Whom it is for: a few of its names. */
static void put_names(struct buf *b, X509 *cert) {
    enum { SHOWN = 3 };
    GENERAL_NAMES *names = X509_get_ext_d2i(cert, NID_subject_alt_name, NULL, NULL);
    int count = names ? sk_GENERAL_NAME_num(names) : 0;
    for (int i = 0; i < count && i < SHOWN; i++) {
        const GENERAL_NAME *name = sk_GENERAL_NAME_value(names, i);
        if (name->type == GEN_DNS)
            put_name(b, slice_of(ASN1_STRING_get0_data(name->d.dNSName), (size_t)ASN1_STRING_length(name->d.dNSName)));
        if (name->type == GEN_IPADD) put_address(b, name->d.iPAddress);
    }
    if (count > SHOWN) buf_lit(b, ", ...");
    GENERAL_NAMES_free(names);
    char common[128] = "";
    if (!b->len && X509_NAME_get_text_by_NID(X509_get_subject_name(cert), NID_commonName, common, sizeof common) > 0)
        put_name(b, slice_str(common));
    if (!b->len) buf_lit(b, "nobody");
}

static i64 time_ms(const ASN1_TIME *t) {
    struct tm tm;
    return t && ASN1_TIME_to_tm(t, &tm) ? (i64)timegm(&tm) * 1000 : 0;
}

static void say_when(struct errbuf *why, const char *who, const char *what, const ASN1_TIME *t) {
    struct buf b = {0};
    buf_rfc3339(&b, time_ms(t));
    err_set(why, ST_DENIED, "%s %s %.10s", who, what, b.p);
    buf_free(&b);
}

static void say_names(const struct tls_conn *c, struct errbuf *why, X509 *cert) {
    struct buf names = {0};
    put_names(&names, cert);
    err_set(why, ST_DENIED, "the certificate is for %.*s, not for %s", (int)names.len, names.p, c->tls->host);
    buf_free(&names);
}

static void say_distrust(const struct tls_conn *c, struct errbuf *why, X509_STORE_CTX *x) {
    const char *who =
        X509_STORE_CTX_get_error_depth(x) ? "the certificate of an authority behind it" : "the certificate";
    X509 *cert = X509_STORE_CTX_get_current_cert(x);
    int error = X509_STORE_CTX_get_error(x);
    switch (error) {
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
        say_names(c, why, cert);
        break;
    case X509_V_ERR_CERT_HAS_EXPIRED:
        say_when(why, who, "expired on", X509_get0_notAfter(cert));
        break;
    case X509_V_ERR_CERT_NOT_YET_VALID:
        say_when(why, who, "is not valid before", X509_get0_notBefore(cert));
        break;
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
        err_set(why, ST_DENIED,
                "the certificate is not signed by anyone trusted here: name its authority's (ca_file, --cacert)");
        break;
    default:
        err_set(why, ST_DENIED, "%s cannot be trusted: %s", who, X509_verify_cert_error_string(error));
    }
}

/* Only listens: what OpenSSL holds against a certificate stands. */
static int on_verify(int ok, X509_STORE_CTX *x) {
    SSL *ssl = X509_STORE_CTX_get_ex_data(x, SSL_get_ex_data_X509_STORE_CTX_idx());
    struct tls_conn *c = SSL_get_app_data(ssl);
    c->distrusts = c->distrusts || !ok;
    if (!ok) say_distrust(c, &c->why, x);
    return ok;
}

/* ---- what else can go wrong */

/* Of a certificate of ours, which the broker asked for. */
static bool is_refusal(int reason) {
    switch (reason) {
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
    case SSL_R_TLSV1_ALERT_ACCESS_DENIED:
        return true;
    default:
        return false;
    }
}

static void say_failure(struct tls_conn *c, unsigned long error) {
    int reason = ERR_GET_REASON(error);
    const char *text = ERR_reason_error_string(error);
    c->refused = !c->heard && is_refusal(reason);
    if (c->why.text[0]) return; /* the certificate's trouble is why */
    if (reason == SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED)
        err_set(&c->why, ST_DENIED, "the broker wants a certificate of ours: name one (cert_file, --cert)");
    else if (c->refused)
        err_set(&c->why, ST_DENIED, "the broker does not accept our certificate (%s)", text);
    else if (reason == SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE)
        err_set(&c->why, ST_VERSION, "TLS: the broker ended the handshake: it may want a certificate of ours (--cert)");
    else if (reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_PACKET_LENGTH_TOO_LONG)
        err_set(&c->why, ST_VERSION, "what answers there does not speak TLS; it may be an http:// address");
    else
        err_set(&c->why, ST_VERSION, "TLS: %s", text ? text : "the connection broke");
}

/* What a call came to, as of a socket: n, or 0 at the end, or -1 with errno. */
static ssize_t outcome(struct tls_conn *c, int rc, const size_t *moved) {
    if (rc == 1) return (ssize_t)*moved;
    int what = SSL_get_error(c->ssl, rc);
    if (what == SSL_ERROR_WANT_READ || what == SSL_ERROR_WANT_WRITE) {
        c->wants = what == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT;
        return errno = EAGAIN, -1;
    }
    if (what == SSL_ERROR_ZERO_RETURN || (c->eof && !ERR_peek_error())) return 0;
    if (c->error && !ERR_peek_error()) return errno = c->error, -1;
    say_failure(c, ERR_peek_error());
    return errno = EPROTO, -1;
}

short tls_wants(const struct tls_conn *c) {
    return c->wants;
}

bool tls_distrusts(const struct tls_conn *c) {
    return c->distrusts;
}

bool tls_refused(const struct tls_conn *c) {
    return c->refused;
}

const char *tls_why(const struct tls_conn *c) {
    return c->why.text;
}

u64 tls_written(const struct tls_conn *c) {
    return c->written;
}

/* ---- one connection */

static void begin(struct tls_conn *c) {
    ERR_clear_error();
    c->error = 0;
}

static void resume(struct tls *t, SSL *ssl) {
    pthread_mutex_lock(&t->lock);
    SSL_SESSION *copy = t->session ? SSL_SESSION_dup(t->session) : NULL;
    pthread_mutex_unlock(&t->lock);
    if (!copy) return;
    SSL_set_session(ssl, copy);
    SSL_SESSION_free(copy);
}

struct tls_conn *tls_begin(struct tls *t, int fd) {
    struct tls_conn *c = mem_zalloc(sizeof *c);
    BIO *bio = BIO_new(socket_method);
    *c = (struct tls_conn){.tls = t, .fd = fd, .ssl = SSL_new(t->ctx), .wants = POLLOUT};
    CHECK(bio && c->ssl);
    BIO_set_data(bio, c);
    BIO_set_init(bio, 1);
    SSL_set_bio(c->ssl, bio, bio);
    SSL_set_app_data(c->ssl, c);
    SSL_set_connect_state(c->ssl);
    SSL_set_hostflags(c->ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    if (t->by_address)
        CHECK(X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(c->ssl), t->host));
    else
        CHECK(SSL_set1_host(c->ssl, t->host) && SSL_set_tlsext_host_name(c->ssl, t->host));
    resume(t, c->ssl);
    return c;
}

void tls_end(struct tls_conn *c) {
    if (!c) return;
    SSL_free(c->ssl);
    mem_free(c);
}

int tls_handshake(struct tls_conn *c) {
    size_t done = 1;
    begin(c);
    ssize_t n = outcome(c, SSL_do_handshake(c->ssl), &done);
    if (n == 0) errno = ECONNRESET;
    if (n <= 0) return -1;
    X509 *cert = SSL_get0_peer_certificate(c->ssl);
    if (!cert || SSL_get_verify_result(c->ssl) != X509_V_OK) {
        err_set(&c->why, ST_DENIED, "the certificate was not verified");
        return errno = EPROTO, -1;
    }
    pthread_mutex_lock(&c->tls->lock);
    c->tls->expires_ms = time_ms(X509_get0_notAfter(cert));
    pthread_mutex_unlock(&c->tls->lock);
    return 0;
}

ssize_t tls_write(struct tls_conn *c, const void *p, size_t n) {
    size_t done = 0;
    begin(c);
    ssize_t wrote = outcome(c, SSL_write_ex(c->ssl, p, n, &done), &done);
    if (wrote == 0) return errno = EPIPE, -1;
    return wrote;
}

ssize_t tls_read(struct tls_conn *c, void *p, size_t n) {
    size_t done = 0;
    begin(c);
    ssize_t got = outcome(c, SSL_read_ex(c->ssl, p, n, &done), &done);
    if (got > 0) c->heard = true;
    return got;
}

bool tls_silent(struct tls_conn *c) {
    char byte;
    size_t done;
    begin(c);
    return outcome(c, SSL_peek_ex(c->ssl, &byte, 1, &done), &done) < 0 && errno == EAGAIN;
}

void tls_say_end(struct tls_conn *c) {
    ERR_clear_error();
    SSL_shutdown(c->ssl);
    ERR_clear_error();
}

/* ---- a client's */

/* Copied: nobody but us has it then, whatever other connections do. */
static int on_session(SSL *ssl, SSL_SESSION *session) {
    struct tls *t = ((struct tls_conn *)SSL_get_app_data(ssl))->tls;
    SSL_SESSION *copy = SSL_SESSION_dup(session), *old;
    if (!copy) return 0;
    pthread_mutex_lock(&t->lock);
    old = t->session;
    t->session = copy;
    pthread_mutex_unlock(&t->lock);
    SSL_SESSION_free(old);
    return 0;
}

/* Nobody is to be asked for a passphrase: the terminal is the program's. */
static int no_passphrase(char *out, int size, int writing, void *ctx) {
    (void)out, (void)size, (void)writing, (void)ctx;
    return -1;
}

static bool unusable(const char *path, const char *what, struct errbuf *err) {
    unsigned long error = ERR_peek_error();
    const char *reason =
        ERR_SYSTEM_ERROR(error) ? strerrordesc_np(ERR_GET_REASON(error)) : ERR_reason_error_string(error);
    err_set(err, ST_INVALID, "%s: %s: %s", path, what, reason ? reason : "not usable");
    return false;
}

static bool load_files(SSL_CTX *ctx, const hx_options *o, struct errbuf *err) {
    const char *key = o->key_file ? o->key_file : o->cert_file;
    ERR_clear_error();
    if (o->ca_file && !SSL_CTX_load_verify_file(ctx, o->ca_file))
        return unusable(o->ca_file, "no certificates to trust (PEM)", err);
    if (!o->ca_file) SSL_CTX_set_default_verify_paths(ctx);
    ERR_clear_error();
    if (o->key_file && !o->cert_file)
        return err_set(err, ST_INVALID, "a key without its certificate (cert_file, --cert)"), false;
    if (!o->cert_file) return true;
    if (!SSL_CTX_use_certificate_chain_file(ctx, o->cert_file))
        return unusable(o->cert_file, "no certificate (PEM)", err);
    if (!SSL_CTX_use_PrivateKey_file(ctx, key, SSL_FILETYPE_PEM))
        return unusable(key, "no key without a passphrase (PEM)", err);
    return SSL_CTX_check_private_key(ctx) || unusable(key, "not the certificate's key", err);
}

static SSL_CTX *make_context(void) {
    static const unsigned char http11[] = "\x08http/1.1";
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    if (!ctx) return NULL;
    SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_mode(ctx,
                     SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_clear_mode(ctx, SSL_MODE_AUTO_RETRY); /* records without an answer in them must not outlast a deadline */
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, on_verify);
    X509_VERIFY_PARAM_set_flags(SSL_CTX_get0_param(ctx), X509_V_FLAG_PARTIAL_CHAIN); /* what is named is trusted */
    SSL_CTX_set_alpn_protos(ctx, http11, sizeof http11 - 1);
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
    SSL_CTX_sess_set_new_cb(ctx, on_session);
    SSL_CTX_set_default_passwd_cb(ctx, no_passphrase);
    return ctx;
}

struct tls *tls_new(const struct url *url, const hx_options *o, struct errbuf *err) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_method);
    SSL_CTX *ctx = make_context();
    if (!ctx) return err_set(err, ST_IO, "TLS cannot be used: OpenSSL does not start"), NULL;
    if (!load_files(ctx, o, err)) {
        SSL_CTX_free(ctx);
        return NULL;
    }
    struct tls *t = mem_zalloc(sizeof *t);
    slice host = slice_str(url->host);
    if (host.n > 1 && host.p[host.n - 1] == '.') host.n--;
    *t = (struct tls){.ctx = ctx, .host = mem_zalloc(host.n + 1)};
    memcpy(t->host, host.p, host.n);
    struct in6_addr any;
    t->by_address = inet_pton(AF_INET, t->host, &any) == 1 || inet_pton(AF_INET6, t->host, &any) == 1;
    pthread_mutex_init(&t->lock, NULL);
    return t;
}

void tls_free(struct tls *t) {
    if (!t) return;
    SSL_SESSION_free(t->session);
    SSL_CTX_free(t->ctx);
    pthread_mutex_destroy(&t->lock);
    mem_free(t->host);
    mem_free(t);
}

i64 tls_expires_ms(struct tls *t) {
    pthread_mutex_lock(&t->lock);
    i64 at = t->expires_ms;
    pthread_mutex_unlock(&t->lock);
    return at;
}
