#include "net/webhook.h"

#include <openssl/evp.h>
#include <openssl/params.h>
#include <stdio.h>

void webhook_mac(slice key, const slice *parts, u32 count, u8 mac[WEBHOOK_MAC_BYTES]) {
    static EVP_MAC *hmac; /* there is one for the process, as for its algorithms */
    char digest[] = "SHA256";
    OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string("digest", digest, 0), OSSL_PARAM_construct_end()};
    size_t length = 0;
    if (!hmac) CHECK((hmac = EVP_MAC_fetch(NULL, "HMAC", NULL)));
    EVP_MAC_CTX *ctx = EVP_MAC_CTX_new(hmac);
    CHECK(ctx && EVP_MAC_init(ctx, (const u8 *)key.p, key.n, params));
    for (u32 i = 0; i < count; i++) CHECK(EVP_MAC_update(ctx, (const u8 *)parts[i].p, parts[i].n));
    CHECK(EVP_MAC_final(ctx, mac, &length, WEBHOOK_MAC_BYTES) && length == WEBHOOK_MAC_BYTES);
    EVP_MAC_CTX_free(ctx);
}

void webhook_sign(struct buf *out, slice key, slice id, i64 time_s, slice body) {
    u8 mac[WEBHOOK_MAC_BYTES];
    char time[32];
    int n = snprintf(time, sizeof time, ".%lld.", (long long)time_s);
    webhook_mac(key, (slice[]){id, slice_of(time, (size_t)n), body}, 3, mac);
    buf_lit(out, "v1,");
    buf_base64(out, slice_of(mac, sizeof mac));
}

void webhook_put_id(struct buf *out, slice id) {
    for (size_t i = 0; i < id.n; i++) {
        u8 c = (u8)id.p[i];
        if (c > ' ' && c < 0x7F && c != '.' && c != '%')
            buf_char(out, (char)c);
        else
            buf_printf(out, "%%%02X", c);
    }
}
