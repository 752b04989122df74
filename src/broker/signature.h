/* Signatures of what comes in: was it sent by somebody who has one of the secrets, over these very bytes, and lately?
 *
 *   standard  webhook-id, webhook-timestamp, webhook-signature (Standard Webhooks 1.0): one of the list's `v1,` fits
 *   stripe    stripe-signature: t=TIME,v1=HEX[,v1=HEX]: over TIME.BODY
 *   github    x-hub-signature-256: sha256=HEX, over the body; it has no time, so nothing is too old
 *   hmac      a header of the source's own: its prefix, and hex or base64, over the body
 *
 * Each secret's signature is compared with each that was given, in constant time. What is not understood in a list is
 * passed over, so that senders can add kinds. */
#ifndef HAPAX_BROKER_SIGNATURE_H
#define HAPAX_BROKER_SIGNATURE_H

#include "config/config.h"
#include "net/http.h"

/* NULL: it is good. Else what is wrong with it, as a sentence for the sender that says nothing about any secret. */
const char *signature_wrong(const struct source_config *source, const struct http_request *req, i64 wall_ms);

#endif
