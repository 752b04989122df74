/* Between tls.c (connections) and tls_load.c (certificates). */
#ifndef HAPAX_NET_TLS_PRIV_H
#define HAPAX_NET_TLS_PRIV_H

#include <openssl/ssl.h>

#include "net/digest.h"
#include "net/tls.h"

#define TICKET_NAME_BYTES 16u

struct ticket_key {
    u8 name[TICKET_NAME_BYTES], cipher[32], mac[32];
    i64 made_ms; /* monotonic */
};

struct tls {
    u32 refs;
    SSL_CTX *ctx;
    BIO_METHOD *bio;
    struct ticket_key tickets[2]; /* the one in use, and the one before it */
    u8 digest[DIGEST_BYTES];      /* of the files */
    i64 expires_ms;
};

/* How every connection behaves. */
bool tls_configure(struct tls *t);
void tls_ticket_keys(struct tls *t, i64 now_ms);

#endif
