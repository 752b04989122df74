/* SHA-256, as tokens are kept. */
#ifndef HAPAX_NET_DIGEST_H
#define HAPAX_NET_DIGEST_H

#include "base/base.h"

#define DIGEST_BYTES 32u

void digest_sha256(slice text, u8 out[DIGEST_BYTES]);

#endif
