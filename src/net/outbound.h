/* Outbound: requests to other servers, on the loop and without ever making it wait. libcurl speaks HTTP and TLS, libuv tells it
 * when there is something to read or write.
 *
 * What an operator did not ask for does not happen: no redirect is followed, no proxy of the environment is used, no protocol
 * but HTTP and HTTPS is spoken, and certificates are checked. Of an answer the status counts; the rest is read and thrown away
 * up to OUTBOUND_ANSWER_BYTES, then the connection is closed. */
#ifndef HAPAX_NET_OUTBOUND_H
#define HAPAX_NET_OUTBOUND_H

#include "base/base.h"

#define OUTBOUND_ANSWER_BYTES 65536u

struct outbound;
struct outbound_call;
struct uv_loop_s;

struct outbound_post {
    const char *url;
    const char *const *headers; /* "Name: value", NULL-ended */
    slice body;                 /* all of this is copied */
    u32 connect_ms, total_ms;
};

/* status 0: there was no answer, and `why` says so in words that hold nothing of the request. */
typedef void (*outbound_fn)(void *ctx, u32 status, const char *why);

/* At most `connections` are open at any time; calls beyond that wait, on their own time. */
struct outbound *outbound_new(struct uv_loop_s *loop, u32 connections);
void outbound_free(struct outbound *o); /* calls under way are cancelled */

/* `done` is called once, from the loop and never from within this. */
struct outbound_call *outbound_post(struct outbound *o, const struct outbound_post *p, outbound_fn done, void *ctx);
void outbound_cancel(struct outbound_call *c); /* done is not called any more */

#endif
