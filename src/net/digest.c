#include "net/digest.h"

#include <openssl/sha.h>

void digest_sha256(slice text, u8 out[DIGEST_BYTES]) {
    CHECK(SHA256((const u8 *)text.p, text.n, out));
}
