/* Outbound: requests to other servers, on the loop and without ever making it wait. libcurl speaks HTTP and TLS, libuv tells it
 * when there is something to read or write, a name is looked up by a thread of net/resolver.
 *
 * A request leaves at most once. libcurl would send one again by itself when a connection that it used before dies under it.
 * It asks before it opens a connection and before the first byte of a request, and a second time both are refused. A body that
 * cannot be rewound would not do: of a request whose head has left, and nothing of the body, libcurl has nothing to rewind.
 * Beside that, requests without a body get a connection of their own, and large bodies come by a function that reads once.
 *
 * How a call ends says what may have happened:
 *   OUTBOUND_ANSWERED  a whole answer came, of status 200 to 599
 *   OUTBOUND_NOT_SENT  no byte of the request can have left: no address, one that is not allowed, refused, no TLS with whom the
 *                      certificate says, or no time left before it was connected
 *   OUTBOUND_BROKEN    anything else: something may have left, and no whole answer came. When in doubt it is this
 *
 * What an operator did not ask for does not happen: no redirect is followed, no proxy of the environment is used, no protocol
 * but HTTP/1.1 and HTTPS (from TLS 1.2 on) is spoken, nothing is decompressed, certificates are checked: chain, name, time. A name is looked up
 * once, every address of it must be allowed (net/reach.h), and one of those that were looked at is connected to.
 *
 * Bounds: OUTBOUND_HEAD_BYTES of an answer's head (more: BROKEN), `answer_max` of its body are kept. What comes beyond is read
 * and thrown away, so that the framing's end is seen; after OUTBOUND_EXCESS_BYTES of that the connection is closed, and the
 * answer counts as it is. In one turn calls begin and end for a few milliseconds, then the rest waits for the next one. */
#ifndef HAPAX_NET_OUTBOUND_H
#define HAPAX_NET_OUTBOUND_H

#include "base/base.h"

#define OUTBOUND_HEAD_BYTES   32768u
#define OUTBOUND_EXCESS_BYTES (4u << 20)
#define OUTBOUND_CALL_BYTES   49152u /* what a call takes beside its body and its answer, about */

struct outbound;
struct outbound_call;
struct uv_loop_s;

/* All of it is copied. Host and Content-Length are made from url and body; a header of theirs, Transfer-Encoding, Expect and
 * Connection are left out if they are given. A header whose value is empty is sent with an empty value. */
struct outbound_request {
    const char *method, *url;
    const char *const *headers; /* "Name: value", NULL-ended; may be NULL */
    slice body;
    u32 connect_ms, total_ms;
    u32 answer_max;     /* bytes of the body that are kept */
    bool allow_private; /* addresses that are not public, too */
    bool verbatim_head; /* the given headers, and none that is made up: no User-Agent, no Accept */
};

enum outbound_end { OUTBOUND_ANSWERED, OUTBOUND_NOT_SENT, OUTBOUND_BROKEN };

/* Valid while it is handed over. */
struct outbound_answer {
    enum outbound_end end;
    u32 status; /* ANSWERED: 200 to 599 */
    slice
        head; /* "name: value\r\n" each, as they came; without lines that hold control characters, folded ones joined */
    slice body;      /* the first answer_max bytes */
    bool truncated;  /* there was more of it */
    const char *why; /* not ANSWERED: in words that hold nothing of the request, else "" */
    u64 took_us;     /* from the call to here */
};

typedef void (*outbound_fn)(void *ctx, u64 number, const struct outbound_answer *a);

/* At most `calls` at any time, with as many connections. */
struct outbound *outbound_new(struct uv_loop_s *loop, u32 calls);
void outbound_free(struct outbound *o); /* calls under way are cancelled. NULL is fine */
/* After some calls have ended in a turn: `fn` once for all of them. */
void outbound_on_ended(struct outbound *o, void (*fn)(void *ctx), void *ctx);

/* `done` is called once, from the loop and never from within this. NULL: there are as many calls as there may be. */
struct outbound_call *outbound_call(struct outbound *o, const struct outbound_request *r, outbound_fn done, void *ctx,
                                    u64 number);
void outbound_cancel(struct outbound_call *c); /* done is not called any more */
/* What is kept from call to call may hold the URL of the last one, in which an operator may have put a secret: none of it is kept any
 * more, of calls under way neither. After a reload. */
void outbound_forget(struct outbound *o);

#endif
