/* libFuzzer: bytes from a socket into TLS. The first byte says how: cut into pieces of that size, bit 7: behind a handshake, bit 6:
 * what follows is flipped into records of a client that means well, where the input has ones. Whatever comes, it is opened, waited
 * for or refused once and for all; what is opened is what the client sealed, or nothing; what is answered is bounded. */
#include "unit/tls_kit.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define SAID "GET /fuzz HTTP/1.1\r\nHost: localhost\r\n\r\n"

struct run {
    struct tls_conn *conn;
    SSL *client;
    BIO *in, *out; /* of the client */
    struct buf told, plain;
    enum tls_state state;
};

static struct tls_kit kit;
static char space[TLS_PLAIN_MAX];

static void feed(struct run *r, slice bytes) {
    size_t n = 0, told = r->told.len;
    enum tls_state before = r->state;
    r->state = tls_open(r->conn, bytes, space, &n, &r->told);
    CHECK(n <= bytes.n + (17u << 10) && r->told.len - told <= bytes.n + (64u << 10));
    CHECK(before != TLS_BROKEN || (r->state == TLS_BROKEN && n == 0));
    CHECK(n == 0 || tls_established(r->conn));
    buf_add(&r->plain, space, n);
}

static void feed_cut(struct run *r, slice bytes, size_t piece) {
    while (bytes.n && r->state == TLS_OPEN) {
        size_t n = bytes.n < piece ? bytes.n : piece;
        feed(r, slice_of(bytes.p, n));
        bytes = slice_of(bytes.p + n, bytes.n - n);
    }
}

static void take_told(struct run *r) {
    if (r->told.len) BIO_write(r->in, r->told.p, (int)r->told.len);
    buf_reset(&r->told);
}

static size_t said_by_client(struct run *r, char *out, size_t room) {
    int n = BIO_read(r->out, out, (int)room);
    return n > 0 ? (size_t)n : 0;
}

static void shake_hands(struct run *r) {
    static char bytes[TLS_READ_BYTES];
    r->client = SSL_new(kit.client);
    r->in = BIO_new(BIO_s_mem());
    r->out = BIO_new(BIO_s_mem());
    SSL_set_bio(r->client, r->in, r->out);
    SSL_set_connect_state(r->client);
    for (int i = 0; i < 4 && !tls_established(r->conn); i++) {
        SSL_do_handshake(r->client);
        feed(r, slice_of(bytes, said_by_client(r, bytes, sizeof bytes)));
        take_told(r);
    }
    CHECK(tls_established(r->conn) && r->state == TLS_OPEN);
}

/* A request, with some of its sealed bits the other way round. */
static void feed_flipped(struct run *r, slice flips, size_t piece) {
    static char bytes[TLS_READ_BYTES];
    size_t done;
    bool flipped = false;
    CHECK(SSL_write_ex(r->client, SAID, sizeof SAID - 1, &done) == 1);
    size_t n = said_by_client(r, bytes, sizeof bytes);
    for (size_t i = 0; i < n && i < flips.n; i++) {
        bytes[i] = (char)(bytes[i] ^ flips.p[i]);
        flipped |= flips.p[i] != 0;
    }
    feed_cut(r, slice_of(bytes, n), piece);
    if (!flipped) CHECK(slice_eq(buf_slice(&r->plain), SL(SAID)));
    CHECK(!flipped || r->plain.len == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!kit.tls) kit_open(&kit);
    if (size == 0) return 0;
    slice in = slice_of(data + 1, size - 1);
    size_t piece = (data[0] & 63u) + 1u;
    struct run r = {.conn = tls_accept(kit.tls), .state = TLS_OPEN};
    if (data[0] & 192u) shake_hands(&r);
    if (data[0] & 64u)
        feed_flipped(&r, in, piece);
    else
        feed_cut(&r, in, piece == 64 ? TLS_READ_BYTES : piece);
    CHECK(tls_held(r.conn) <= 64u << 10);
    if (tls_seal(r.conn, SL("HTTP/1.1 200 OK\r\n"), &r.told)) CHECK(r.told.len > 0);
    tls_end(r.conn, &r.told);
    SSL_free(r.client);
    tls_conn_free(r.conn);
    buf_free(&r.told);
    buf_free(&r.plain);
    return 0;
}
