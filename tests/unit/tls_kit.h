/* Certificates that are made for a test and gone with it, and the client's side of TLS. */
#ifndef HAPAX_TESTS_TLS_KIT_H
#define HAPAX_TESTS_TLS_KIT_H

#include "base/base.h"
#include "net/tls.h"

#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

struct tls_kit {
    char folder[64], cert[96], key[96];
    struct tls *tls;
    SSL_CTX *client;
};

static inline EVP_PKEY *kit_key(void) {
    EVP_PKEY *key = EVP_EC_gen("P-256");
    CHECK(key);
    return key;
}

/* Valid from `from_s` to `until_s`, seconds from now; its own issuer. */
static inline X509 *kit_certificate(EVP_PKEY *key, long from_s, long until_s) {
    X509 *x = X509_new();
    X509_NAME *name = X509_get_subject_name(x);
    CHECK(X509_set_version(x, 2) && ASN1_INTEGER_set(X509_get_serialNumber(x), 1));
    CHECK(X509_gmtime_adj(X509_getm_notBefore(x), from_s) && X509_gmtime_adj(X509_getm_notAfter(x), until_s));
    CHECK(X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const u8 *)"localhost", -1, -1, 0));
    CHECK(X509_set_issuer_name(x, name) && X509_set_pubkey(x, key) && X509_sign(x, key, EVP_sha256()));
    return x;
}

static inline void kit_write(const char *path, X509 *cert, EVP_PKEY *key) {
    FILE *f = fopen(path, "w");
    CHECK(f);
    if (cert) CHECK(PEM_write_X509(f, cert));
    if (key) CHECK(PEM_write_PrivateKey(f, key, NULL, NULL, 0, NULL, NULL));
    CHECK(fclose(f) == 0 && chmod(path, 0600) == 0);
}

/* A certificate and its key, in files. */
static inline void kit_files(struct tls_kit *k, long from_s, long until_s) {
    EVP_PKEY *key = kit_key();
    X509 *cert = kit_certificate(key, from_s, until_s);
    kit_write(k->cert, cert, NULL);
    kit_write(k->key, NULL, key);
    X509_free(cert);
    EVP_PKEY_free(key);
}

static inline void kit_load(struct tls_kit *k) {
    struct errbuf err = {{0}};
    struct tls_files files = {.cert = k->cert, .key = k->key};
    if (tls_load(&files, &k->tls, &err) == ST_OK) return;
    fprintf(stderr, "%s\n", err.text);
    abort();
}

/* The files go as soon as they are read. */
static inline void kit_open(struct tls_kit *k) {
    *k = (struct tls_kit){.folder = "/var/tmp/hapax-tls-XXXXXX"};
    CHECK(mkdtemp(k->folder));
    snprintf(k->cert, sizeof k->cert, "%s/cert.pem", k->folder);
    snprintf(k->key, sizeof k->key, "%s/key.pem", k->folder);
    kit_files(k, -60, 3600);
    kit_load(k);
    CHECK(unlink(k->cert) == 0 && unlink(k->key) == 0 && rmdir(k->folder) == 0);
    k->client = SSL_CTX_new(TLS_client_method());
    CHECK(k->client);
    SSL_CTX_set_mode(k->client,
                     SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
}

static inline void kit_close(struct tls_kit *k) {
    tls_release(k->tls);
    SSL_CTX_free(k->client);
    *k = (struct tls_kit){0};
}

#endif
