#include "net/webhook.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

void webhook_sign(struct buf *out, slice key, slice id, i64 time_s, slice body) {
    struct buf signed_text = {0};
    u8 mac[EVP_MAX_MD_SIZE];
    unsigned length = 0;
    buf_printf(&signed_text, "%.*s.%lld.", (int)id.n, id.p, (long long)time_s);
    buf_slice_add(&signed_text, body);
    CHECK(HMAC(EVP_sha256(), key.p, (int)key.n, (const u8 *)signed_text.p, signed_text.len, mac, &length));
    buf_lit(out, "v1,");
    buf_base64(out, slice_of((const char *)mac, length));
    buf_free(&signed_text);
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
