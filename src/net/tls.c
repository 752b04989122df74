#include <openssl/core_names.h>
#include <openssl/err.h>

#include "net/tls_priv.h"

#define HANDSHAKE_BYTES  (64u << 10) /* about what OpenSSL holds while one is under way */
#define RECORD_BYTES     (17u << 10) /* and for a record that is not whole */
#define QUIET_READS_MAX  128u        /* two for each record; of one call, without a byte for us */
#define CERTIFICATES_MAX (32u << 10) /* bytes of a client's */
#define TICKET_MS        ((i64)3600 * 1000)

struct tls_conn {
    struct tls *tls;
    SSL *ssl;
    slice in;        /* what OpenSSL may still take, during a call */
    struct buf *out; /* where it puts what it has to say, during a call */
    u32 quiet_reads; /* since a byte of a request came */
    bool established, broken;
};

/* ---- memory instead of a socket */

/* Records that bring nothing (key updates, empty ones) cost work, and a client can send thousands in one read. */
static int bio_read(BIO *b, char *p, int n) {
    struct tls_conn *c = BIO_get_data(b);
    BIO_clear_retry_flags(b);
    if (c->in.n == 0) {
        BIO_set_retry_read(b);
        return -1;
    }
    if (n <= 0 || ++c->quiet_reads > QUIET_READS_MAX) return -1;
    size_t take = c->in.n < (size_t)n ? c->in.n : (size_t)n;
    memcpy(p, c->in.p, take);
    c->in = slice_of(c->in.p + take, c->in.n - take);
    return (int)take;
}

static int bio_write(BIO *b, const char *p, int n) {
    struct tls_conn *c = BIO_get_data(b);
    BIO_clear_retry_flags(b);
    CHECK(c->out && n >= 0);
    buf_add(c->out, p, (size_t)n);
    return n;
}

static long bio_ctrl(BIO *b, int what, long number, void *p) {
    (void)b;
    (void)number;
    (void)p;
    return what == BIO_CTRL_FLUSH;
}

static bool make_bio(struct tls *t) {
    t->bio = BIO_meth_new(BIO_TYPE_MEM, "turn");
    return t->bio && BIO_meth_set_read(t->bio, bio_read) && BIO_meth_set_write(t->bio, bio_write) &&
           BIO_meth_set_ctrl(t->bio, bio_ctrl);
}

/* ---- tickets */

static void make_ticket_key(struct ticket_key *k, i64 now_ms) {
    random_bytes(k, sizeof *k);
    k->made_ms = now_ms;
}

void tls_ticket_keys(struct tls *t, i64 now_ms) {
    i64 age_ms = now_ms - t->tickets[0].made_ms;
    if (t->tickets[0].made_ms && age_ms < TICKET_MS) return;
    t->tickets[1] = t->tickets[0];
    if (!t->tickets[0].made_ms || age_ms >= 2 * TICKET_MS) make_ticket_key(&t->tickets[1], now_ms);
    make_ticket_key(&t->tickets[0], now_ms);
}

static bool use_ticket_key(struct ticket_key *k, const u8 *iv, EVP_CIPHER_CTX *cipher, EVP_MAC_CTX *mac, bool seal) {
    char sha256[] = "SHA256";
    OSSL_PARAM params[] = {OSSL_PARAM_construct_octet_string(OSSL_MAC_PARAM_KEY, k->mac, sizeof k->mac),
                           OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, sha256, 0),
                           OSSL_PARAM_construct_end()};
    return EVP_CipherInit_ex(cipher, EVP_aes_256_cbc(), NULL, k->cipher, iv, seal) == 1 &&
           EVP_MAC_CTX_set_params(mac, params) == 1;
}

/* 0: a ticket of nobody we remember: a whole handshake then. 2: good, but due to be renewed. */
static int on_ticket(SSL *ssl, u8 *name, u8 *iv, EVP_CIPHER_CTX *cipher, EVP_MAC_CTX *mac, int seal) {
    struct tls *t = ((struct tls_conn *)SSL_get_app_data(ssl))->tls;
    tls_ticket_keys(t, clock_mono_ms());
    if (seal) {
        random_bytes(iv, (size_t)EVP_CIPHER_get_iv_length(EVP_aes_256_cbc()));
        memcpy(name, t->tickets[0].name, TICKET_NAME_BYTES);
        return use_ticket_key(&t->tickets[0], iv, cipher, mac, true) ? 1 : -1;
    }
    for (int i = 0; i < 2; i++) {
        if (memcmp(name, t->tickets[i].name, TICKET_NAME_BYTES) != 0) continue;
        return use_ticket_key(&t->tickets[i], iv, cipher, mac, false) ? 1 + i : -1;
    }
    return 0;
}

/* ---- every connection */

/* A client that offers protocols, and HTTP/1.1 is not among them, would not understand us. */
static int on_protocols(SSL *ssl, const u8 **out, u8 *out_bytes, const u8 *in, unsigned in_bytes, void *ctx) {
    static const u8 http[] = "\x08http/1.1";
    (void)ssl;
    (void)ctx;
    u8 *chosen;
    if (SSL_select_next_proto(&chosen, out_bytes, http, sizeof http - 1, in, in_bytes) != OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

static bool set_suites(SSL_CTX *ctx) {
    static const char twelve[] = "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:"
                                 "ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384:"
                                 "ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305";
    static const char thirteen[] = "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";
    static const char signatures[] = "ed25519:ecdsa_secp256r1_sha256:ecdsa_secp384r1_sha384:ecdsa_secp521r1_sha512:"
                                     "rsa_pss_rsae_sha256:rsa_pss_rsae_sha384:rsa_pss_rsae_sha512:"
                                     "rsa_pss_pss_sha256:rsa_pss_pss_sha384:rsa_pss_pss_sha512:"
                                     "rsa_pkcs1_sha256:rsa_pkcs1_sha384:rsa_pkcs1_sha512";
    return SSL_CTX_set_cipher_list(ctx, twelve) && SSL_CTX_set_ciphersuites(ctx, thirteen) &&
           SSL_CTX_set1_groups_list(ctx, "X25519:P-256:P-384") && SSL_CTX_set1_sigalgs_list(ctx, signatures);
}

/* An idle connection keeps no buffers (SSL_MODE_RELEASE_BUFFERS); what is sealed may be sealed from elsewhere the next time. */
bool tls_configure(struct tls *t) {
    static const u8 context[] = "hapax";
    SSL_CTX *ctx = t->ctx;
    SSL_CTX_set_security_level(ctx, 2);
    SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE |
                                 SSL_OP_PRIORITIZE_CHACHA);
    SSL_CTX_set_mode(ctx,
                     SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_timeout(ctx, 2 * TICKET_MS / 1000);
    SSL_CTX_set_num_tickets(ctx, 1);
    SSL_CTX_set_max_cert_list(ctx, CERTIFICATES_MAX);
    SSL_CTX_set_alpn_select_cb(ctx, on_protocols, NULL);
    tls_ticket_keys(t, clock_mono_ms());
    return make_bio(t) && SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION) && set_suites(ctx) &&
           SSL_CTX_set_session_id_context(ctx, context, sizeof context - 1) &&
           SSL_CTX_set_tlsext_ticket_key_evp_cb(ctx, on_ticket);
}

struct tls *tls_retain(struct tls *t) {
    t->refs++;
    return t;
}

void tls_release(struct tls *t) {
    if (!t || --t->refs) return;
    SSL_CTX_free(t->ctx);
    BIO_meth_free(t->bio);
    OPENSSL_cleanse(t->tickets, sizeof t->tickets);
    mem_free(t);
}

/* ---- one connection */

struct tls_conn *tls_accept(struct tls *t) {
    struct tls_conn *c = mem_zalloc(sizeof *c);
    c->tls = tls_retain(t);
    c->ssl = SSL_new(t->ctx);
    BIO *bio = c->ssl ? BIO_new(t->bio) : NULL;
    if (!bio) {
        tls_conn_free(c);
        return NULL;
    }
    BIO_set_data(bio, c);
    BIO_set_init(bio, 1);
    SSL_set_bio(c->ssl, bio, bio);
    SSL_set_app_data(c->ssl, c);
    SSL_set_accept_state(c->ssl);
    return c;
}

void tls_conn_free(struct tls_conn *c) {
    if (!c) return;
    SSL_free(c->ssl);
    tls_release(c->tls);
    mem_free(c);
}

static void begin_call(struct tls_conn *c, slice in, struct buf *out) {
    ERR_clear_error();
    c->in = in;
    c->out = out;
    c->quiet_reads = 0;
}

static void end_call(struct tls_conn *c) {
    c->in = (slice){0};
    c->out = NULL;
}

/* Reading drives the handshake, too. */
static enum tls_state open_all(struct tls_conn *c, char *plain, size_t *n) {
    for (;;) {
        size_t got = 0;
        CHECK(*n < TLS_PLAIN_MAX);
        if (SSL_read_ex(c->ssl, plain + *n, TLS_PLAIN_MAX - *n, &got) != 1) break;
        *n += got;
        c->quiet_reads = 0;
    }
    int why = SSL_get_error(c->ssl, 0);
    if (why == SSL_ERROR_WANT_READ) return TLS_OPEN;
    return why == SSL_ERROR_ZERO_RETURN ? TLS_ENDED : TLS_BROKEN;
}

enum tls_state tls_open(struct tls_conn *c, slice sealed, char *plain, size_t *n, struct buf *out) {
    *n = 0;
    CHECK(sealed.n <= TLS_READ_BYTES);
    if (c->broken) return TLS_BROKEN;
    begin_call(c, sealed, out);
    enum tls_state state = open_all(c, plain, n);
    end_call(c);
    c->broken = state == TLS_BROKEN;
    c->established |= SSL_is_init_finished(c->ssl) && !c->broken;
    return state;
}

bool tls_seal(struct tls_conn *c, slice plain, struct buf *out) {
    if (c->broken || !c->established) return false;
    begin_call(c, (slice){0}, out);
    while (plain.n && !c->broken) {
        size_t done = 0;
        c->broken = SSL_write_ex(c->ssl, plain.p, plain.n, &done) != 1;
        plain = slice_of(plain.p + done, plain.n - done);
    }
    end_call(c);
    return !c->broken;
}

void tls_end(struct tls_conn *c, struct buf *out) {
    if (c->broken || !c->established) return;
    begin_call(c, (slice){0}, out);
    SSL_shutdown(c->ssl);
    end_call(c);
}

bool tls_established(const struct tls_conn *c) {
    return c->established;
}

bool tls_resumed(const struct tls_conn *c) {
    return SSL_session_reused(c->ssl);
}

size_t tls_held(const struct tls_conn *c) {
    if (!c->established) return HANDSHAKE_BYTES;
    return SSL_has_pending(c->ssl) ? RECORD_BYTES : 0;
}
