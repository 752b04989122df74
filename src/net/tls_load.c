/* Certificates and keys, from files. What is refused here would otherwise be found out by clients, one by one. */
#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "net/tls_priv.h"

#define FILE_BYTES_MAX  (1u << 20)
#define CERTIFICATE_MAX 256u /* in a file */

/* One of the three files. */
struct source {
    const char *name, *path;
    struct buf bytes;
};

static const char *reason(void) {
    const char *text = ERR_reason_error_string(ERR_peek_last_error());
    return text ? text : "no reason given";
}

static hx_st wrong(const struct source *s, struct errbuf *err, const char *what) {
    return err_set(err, ST_INVALID, "%s %s: %s", s->name, s->path, what);
}

/* ---- files */

static hx_st cannot_read(const struct source *s, int error, struct errbuf *err) {
    hx_st st = error == ENOENT ? ST_NOT_FOUND : error == EACCES ? ST_DENIED : ST_IO;
    return err_set(err, st, "%s %s: %s", s->name, s->path, strerrordesc_np(error));
}

/* Others on this machine must not be able to be us. The key's group may read it: that is how Debian's ssl-cert and systemd
 * hand keys to a service. */
static hx_st check_mode(const struct source *s, const struct stat *info, struct errbuf *err) {
    if (!S_ISREG(info->st_mode)) return wrong(s, err, "not a regular file");
    if (info->st_size > FILE_BYTES_MAX) return wrong(s, err, "larger than 1 MiB");
    unsigned mode = info->st_mode & 0777u;
    if (strcmp(s->name, "key") != 0 || (mode & 027u) == 0) return ST_OK;
    return err_set(err, ST_DENIED, "%s %s: its mode is %04o: others may read it, or change it. chmod 600 %s", s->name,
                   s->path, mode, s->path);
}

static hx_st read_source(struct source *s, struct errbuf *err) {
    int fd = open(s->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return cannot_read(s, errno, err);
    struct stat info;
    hx_st st = fstat(fd, &info) == 0 ? check_mode(s, &info, err) : cannot_read(s, errno, err);
    ssize_t n = 1;
    if (st == ST_OK) buf_grow(&s->bytes, FILE_BYTES_MAX + 1);
    while (st == ST_OK && n > 0 && s->bytes.len <= FILE_BYTES_MAX) {
        n = read(fd, s->bytes.p + s->bytes.len, FILE_BYTES_MAX + 1 - s->bytes.len);
        if (n > 0) s->bytes.len += (size_t)n;
    }
    if (n < 0) st = cannot_read(s, errno, err);
    close(fd);
    return st == ST_OK && s->bytes.len > FILE_BYTES_MAX ? wrong(s, err, "larger than 1 MiB") : st;
}

static void forget_source(struct source *s) {
    if (s->bytes.p) OPENSSL_cleanse(s->bytes.p, s->bytes.cap);
    buf_free(&s->bytes);
}

static BIO *bio_of(const struct source *s) {
    BIO *bio = BIO_new_mem_buf(s->bytes.p, (int)s->bytes.len);
    CHECK(bio);
    return bio;
}

/* ---- certificates */

static int no_passphrase(char *buf, int size, int writing, void *asked) {
    (void)buf;
    (void)size;
    (void)writing;
    *(bool *)asked = true;
    return -1;
}

/* All of a file's, in order. At its end OpenSSL finds no further beginning; any other reason is damage. */
static hx_st read_certificates(const struct source *s, STACK_OF(X509) * into, struct errbuf *err) {
    BIO *bio = bio_of(s);
    bool asked = false;
    X509 *one;
    ERR_clear_error();
    while (sk_X509_num(into) < (int)CERTIFICATE_MAX && (one = PEM_read_bio_X509(bio, NULL, no_passphrase, &asked)))
        CHECK(sk_X509_push(into, one) > 0);
    unsigned long last = ERR_peek_last_error();
    bool at_end = ERR_GET_LIB(last) == ERR_LIB_PEM && ERR_GET_REASON(last) == PEM_R_NO_START_LINE;
    BIO_free(bio);
    if (sk_X509_num(into) == (int)CERTIFICATE_MAX) return wrong(s, err, "more than 255 certificates");
    if (!at_end)
        return err_set(err, ST_INVALID, "%s %s: a certificate in it is damaged or cut short (%s)", s->name, s->path,
                       reason());
    return sk_X509_num(into) ? ST_OK : wrong(s, err, "no certificate in it; it must be PEM");
}

static i64 time_ms(const ASN1_TIME *t) {
    struct tm tm;
    return ASN1_TIME_to_tm(t, &tm) == 1 ? (i64)timegm(&tm) * 1000 : 0;
}

static hx_st check_time(const struct source *s, X509 *cert, struct errbuf *err) {
    i64 from = time_ms(X509_get0_notBefore(cert)), until = time_ms(X509_get0_notAfter(cert)), now = clock_wall_ms();
    struct buf when = {0};
    if (now >= from && now <= until) return ST_OK;
    buf_rfc3339(&when, now > until ? until : from);
    err_set(err, ST_INVALID, "%s %s: the certificate %s %.*s", s->name, s->path,
            now > until ? "expired on" : "is not valid before", (int)when.len, when.p);
    buf_free(&when);
    return ST_INVALID;
}

static hx_st use_certificate(struct tls *t, const struct source *s, bool known, struct errbuf *err) {
    STACK_OF(X509) *all = sk_X509_new_null();
    CHECK(all);
    hx_st st = read_certificates(s, all, err);
    X509 *own = st == ST_OK ? sk_X509_shift(all) : NULL;
    if (st == ST_OK && !known) st = check_time(s, own, err);
    if (st == ST_OK && (SSL_CTX_use_certificate(t->ctx, own) != 1 || SSL_CTX_set1_chain(t->ctx, all) != 1))
        st = err_set(err, ST_INVALID, "%s %s: %s", s->name, s->path, reason());
    if (st == ST_OK) t->expires_ms = time_ms(X509_get0_notAfter(own));
    X509_free(own);
    sk_X509_pop_free(all, X509_free);
    return st;
}

static hx_st use_key(struct tls *t, const struct source *s, const struct source *cert, struct errbuf *err) {
    BIO *bio = bio_of(s);
    bool asked = false;
    ERR_clear_error();
    EVP_PKEY *key = PEM_read_bio_PrivateKey(bio, NULL, no_passphrase, &asked);
    BIO_free(bio);
    if (!key)
        return wrong(s, err,
                     asked ? "it has a passphrase, and nobody is there to be asked for it"
                           : "no whole private key in it; it must be PEM");
    bool fits = X509_check_private_key(SSL_CTX_get0_certificate(t->ctx), key) == 1;
    bool taken = fits && SSL_CTX_use_PrivateKey(t->ctx, key) == 1;
    EVP_PKEY_free(key);
    if (!fits)
        return err_set(err, ST_INVALID, "%s %s: it is not the key of the certificate in %s", s->name, s->path,
                       cert->path);
    return taken ? ST_OK : err_set(err, ST_INVALID, "%s %s: %s", s->name, s->path, reason());
}

/* From here on a client without a certificate of theirs is refused. */
static hx_st use_client_ca(struct tls *t, const struct source *s, struct errbuf *err) {
    STACK_OF(X509) *all = sk_X509_new_null();
    CHECK(all);
    hx_st st = read_certificates(s, all, err);
    for (int i = 0; st == ST_OK && i < sk_X509_num(all); i++) {
        X509 *ca = sk_X509_value(all, i);
        if (X509_STORE_add_cert(SSL_CTX_get_cert_store(t->ctx), ca) != 1 || SSL_CTX_add_client_CA(t->ctx, ca) != 1)
            st = err_set(err, ST_INVALID, "%s %s: %s", s->name, s->path, reason());
    }
    sk_X509_pop_free(all, X509_free);
    SSL_CTX_set_verify(t->ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    return st;
}

/* ---- together */

enum { CERT, KEY, CLIENT_CA, SOURCES };

static void take_digest(struct tls *t, const struct source *sources) {
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    CHECK(md && EVP_DigestInit_ex(md, EVP_sha256(), NULL) == 1);
    for (int i = 0; i < SOURCES; i++) {
        u64 n = sources[i].bytes.len;
        CHECK(EVP_DigestUpdate(md, &n, sizeof n) == 1 && EVP_DigestUpdate(md, sources[i].bytes.p, (size_t)n) == 1);
    }
    CHECK(EVP_DigestFinal_ex(md, t->digest, NULL) == 1);
    EVP_MD_CTX_free(md);
}

static hx_st use_sources(struct tls *t, const struct source *s, bool known, struct errbuf *err) {
    hx_st st = use_certificate(t, &s[CERT], known, err);
    if (st == ST_OK) st = use_key(t, &s[KEY], &s[CERT], err);
    if (st == ST_OK && s[CLIENT_CA].path) st = use_client_ca(t, &s[CLIENT_CA], err);
    return st;
}

hx_st tls_load(const struct tls_files *files, struct tls **out, struct errbuf *err) {
    struct source sources[SOURCES] = {[CERT] = {.name = "cert", .path = files->cert},
                                      [KEY] = {.name = "key", .path = files->key},
                                      [CLIENT_CA] = {.name = "client_ca", .path = files->client_ca}};
    struct tls *t = mem_zalloc(sizeof *t);
    hx_st st = ST_OK;
    *out = NULL;
    t->refs = 1;
    for (int i = 0; i < SOURCES && st == ST_OK; i++)
        if (sources[i].path) st = read_source(&sources[i], err);
    if (st == ST_OK) {
        t->ctx = SSL_CTX_new(TLS_server_method());
        bool able = t->ctx && tls_configure(t);
        take_digest(t, sources);
        bool known = files->in_force && tls_same(t, files->in_force);
        st = able ? use_sources(t, sources, known, err)
                  : err_set(err, ST_IO, "OpenSSL cannot do what is needed: %s", reason());
    }
    for (int i = 0; i < SOURCES; i++) forget_source(&sources[i]);
    ERR_clear_error();
    if (st == ST_OK)
        *out = t;
    else
        tls_release(t);
    return st;
}

bool tls_same(const struct tls *a, const struct tls *b) {
    return memcmp(a->digest, b->digest, DIGEST_BYTES) == 0;
}

i64 tls_expires_ms(const struct tls *t) {
    return t->expires_ms;
}
