/* TLS for the server's connections, in memory alone: bytes of a socket in, bytes for a socket out. TLS 1.2 and 1.3, suites
 * with forward secrecy and authenticated encryption only, no renegotiation, no compression, no early data (it could be
 * played back). Nothing else in the server sees OpenSSL.
 *
 * Sessions are resumed by tickets: what the server would have to remember of a client, the client keeps. The keys they are
 * sealed with are made anew every hour and forgotten after another one. */
#ifndef HAPAX_NET_TLS_H
#define HAPAX_NET_TLS_H

#include "base/base.h"

#define TLS_FIRST_BYTE 0x16u                          /* of a client that speaks TLS */
#define TLS_SLICE      (64u << 10)                    /* sealed at a time for one connection */
#define TLS_READ_BYTES (64u << 10)                    /* opened at a time of one connection */
#define TLS_PLAIN_MAX  (TLS_READ_BYTES + (32u << 10)) /* what that may come to, with a record that lay unfinished */

/* ---- what a listener shows */

struct tls;
struct tls_files {
    const char *cert;      /* PEM: the certificate, then those that lead to its root */
    const char *key;       /* PEM, without a passphrase */
    const char *client_ca; /* PEM: whose clients are let in; NULL: no certificate is asked for */
    /* What is shown already; NULL: nothing. If the files are still the same, their time is not looked at again: that it is over keeps
     * nobody from taking back a token. */
    const struct tls *in_force;
};

/* Reads the files: everything in them is whole, fits together and is valid today, or it says what is wrong. ST_NOT_FOUND:
 * one is not there. The caller has the first reference. */
hx_st tls_load(const struct tls_files *files, struct tls **out, struct errbuf *err);
struct tls *tls_retain(struct tls *t);
void tls_release(struct tls *t);                         /* NULL is fine */
bool tls_same(const struct tls *a, const struct tls *b); /* made of the same bytes */
i64 tls_expires_ms(const struct tls *t);                 /* wall clock */

/* ---- one connection */

struct tls_conn;

/* NULL: there is no memory for it. */
struct tls_conn *tls_accept(struct tls *t);
void tls_conn_free(struct tls_conn *c); /* NULL is fine */

enum tls_state {
    TLS_OPEN,
    TLS_ENDED, /* the client has said that it is done */
    TLS_BROKEN /* what came is wrong, or refused: nothing can be opened or sealed any more */
};
/* Opens what came from the socket, all of it (at most TLS_READ_BYTES): *n bytes of it are in `plain`, which has room for
 * TLS_PLAIN_MAX. What the other side must be told (handshake, tickets, alerts) is appended to `out`, whatever is returned. */
enum tls_state tls_open(struct tls_conn *c, slice sealed, char *plain, size_t *n, struct buf *out);
/* Appends it to `out`, sealed. false: it is broken. */
bool tls_seal(struct tls_conn *c, slice plain, struct buf *out);
/* Appends what says that nothing more follows, if the handshake got so far. */
void tls_end(struct tls_conn *c, struct buf *out);
bool tls_established(const struct tls_conn *c);
bool tls_resumed(const struct tls_conn *c);
/* About how many bytes it holds for what is unfinished: a handshake, a record. */
size_t tls_held(const struct tls_conn *c);

#endif
