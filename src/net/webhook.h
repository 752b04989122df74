/* Signatures after Standard Webhooks 1.0: HMAC-SHA256 over the id, the time of the attempt and the body. */
#ifndef HAPAX_NET_WEBHOOK_H
#define HAPAX_NET_WEBHOOK_H

#include "base/base.h"

#define WEBHOOK_MAC_BYTES 32u

/* HMAC-SHA256 over the parts, one behind the other. */
void webhook_mac(slice key, const slice *parts, u32 count, u8 mac[WEBHOOK_MAC_BYTES]);

/* Appends "v1,BASE64". key: the secret's bytes, what follows whsec_ in base64. */
void webhook_sign(struct buf *out, slice key, slice id, i64 time_s, slice body);

/* Appends the id as it may stand in the header and in what is signed: a dot would end it there. Different ones stay different. */
void webhook_put_id(struct buf *out, slice id);

#endif
