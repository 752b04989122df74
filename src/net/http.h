/* net: does it move bytes? The HTTP/1.1 server (strict RFC 9112) on libuv.
 *
 * A request is handed over once its whole body has arrived. The handler answers it at once or later, with
 * http_respond(); replies leave in request order, and none before the position it names in its stream (a journal is a
 * stream) is durable (http_release), nor while that stream is held (http_hold). Requests pipelined behind one that is
 * answered at once go on being handed over, so that one turn of the loop fills one batch; behind one that is answered
 * later (a long poll) they wait, buffered within bounds. Everything a turn releases for a connection leaves in one
 * write. */
#ifndef HAPAX_NET_HTTP_H
#define HAPAX_NET_HTTP_H

#include "base/bucket.h"

#define HTTP_LINE_MAX   8192u  /* request line: 414 */
#define HTTP_HEAD_MAX   16384u /* header section: 431 */
#define HTTP_FIELDS_MAX 100u   /* header fields: 431 */
#define HTTP_STREAMS    64u    /* journals whose durability replies may wait for */

enum http_method { HTTP_GET, HTTP_HEAD, HTTP_POST, HTTP_PUT, HTTP_DELETE, HTTP_OPTIONS, HTTP_PATCH, HTTP_OTHER };

struct http_field {
    slice name, value; /* value trimmed */
};

/* What one client has of the server. The network keeps one for each address that connections come from, as long as it has one;
 * what is in it is the handler's, and all zero at first. */
struct http_use {
    struct bucket work, watching; /* requests, and those of operators */
    u32 waiting;                  /* requests that are answered later */
    i64 until_ms;                 /* the sum of the moments when they will be, at the latest */
    i64 told_ms;                  /* when the log last spoke of it */
};
#define HTTP_ADDRESS_TEXT 56u
void http_use_text(const struct http_use *of_an_address, char out[HTTP_ADDRESS_TEXT]);

/* Borrowed: everything in it is valid only during the handler's call. */
struct http_request {
    enum http_method method;
    slice path;  /* raw, as sent, without the query; always starts with '/' */
    slice query; /* raw, without '?' */
    struct http_field *fields;
    size_t field_count;
    slice body;
    u64 body_length; /* declared length when known at head time (body_limit call), else body.n */
    bool chunked;
    bool whole; /* all of its body is here at head time: it costs nothing to let it come */
    slice host; /* it is meant for: NAME or NAME:PORT; empty: HTTP/1.0, and not said */
    slice origin, fetch_site,
        fetch_mode;        /* what a browser says of the page that asks; empty: no browser, or not said */
    slice authorization;   /* empty: not said */
    bool secure;           /* it came over TLS */
    bool inside;           /* it came by the address of http_server_inside */
    struct http_use *from; /* of its address; NULL: not known. Stays while its request is not answered */
    const void *found[2];  /* what the handler's body_limit left here for its on_request; NULL otherwise */
    bool let_in;           /* the same: it was judged, and not refused */
    u64 noted[3];          /* what the handler's on_ahead left here for its on_request; 0 otherwise */
};

/* The value of a field by case-insensitive name. Returns how many such fields there are; *value is the first. */
size_t http_field_get(const struct http_request *req, slice name, slice *value);
/* A query parameter, percent-decoded into `scratch` when needed (then *value points there: use it before scratch grows
 * again). false if absent; *bad is set when it is given twice or badly encoded, and never cleared. */
bool http_query_get(const struct http_request *req, slice name, struct buf *scratch, slice *value, bool *bad);
/* Is every parameter one of `names`, which have blanks between them? *unknown: the first that is not, as it was sent. */
bool http_query_known(const struct http_request *req, slice names, slice *unknown);

/* What a reply has seen, and waits for: everything up to `position` of `stream`. Position 0 is nothing: such a reply
 * leaves at once, even while the stream is held. */
struct http_after {
    u64 position;
    u16 stream;
};

/* Bytes that several replies have in common: there once, however many clients read them, and freed with the last
 * reference. */
struct http_body;
/* The first reference is the caller's. Takes the buffer, which is empty then. */
struct http_body *http_body_take(struct buf *bytes);
slice http_body_bytes(const struct http_body *b);
void http_body_release(struct http_body *b);

/* A large body that is made for one reply need not be copied either, if it is made behind so many bytes: what leaves before it
 * goes there. */
#define HTTP_HEAD_ROOM (16u << 10)

struct http_reply {
    u16 status;
    slice content_type; /* empty: none */
    slice fields;       /* further header lines, each ended by CRLF; empty: none */
    slice body;
    struct http_body *shared; /* not NULL: `body` is its bytes, and need not be copied */
    struct buf *made; /* not NULL: `body` is its bytes behind HTTP_HEAD_ROOM. It may be taken: then it is empty */
    struct http_after after;
    u64 receipt; /* not 0: on_receipt(receipt, written) is called once it is known whether any byte of it was written */
    bool close;  /* close the connection after it */
    bool length_said; /* to a HEAD: its fields say how long the body would be, if anybody knows */
    /* Only the head, `body` is empty: the rest follows with http_feed until http_feed_end. The request counts as not yet
     * answered until then, so that on_gone says when its client has left. To a HEAD it is the whole reply. */
    bool feed;
};

struct http_conn; /* one connection with a request being answered */

#define HTTP_BODY_UNWANTED UINT64_MAX

struct http_handler {
    void *ctx;
    /* The whole request is here. Call http_respond(conn, ...) now or later, exactly once. */
    void (*on_request)(void *ctx, struct http_conn *conn, const struct http_request *req);
    /* These whole requests of one connection come next, unless something goes wrong before. Nothing to answer yet: the
     * handler may have what they need brought nearer, and note something in them. May be NULL. */
    void (*on_ahead)(void *ctx, struct http_request *const *reqs, u32 count);
    /* The head is here: how many body bytes are acceptable (more: 413 before reading them). Only path, method and
     * fields are set. HTTP_BODY_UNWANTED: the head alone decides; on_request gets it at once with an empty body, none of which
     * is read, and the connection closes behind the reply. */
    u64 (*body_limit)(void *ctx, struct http_request *head);
    /* A request not yet answered (http_respond not called) lost its client: it must not be answered any more; `conn`
     * is invalid after this call. */
    void (*on_gone)(void *ctx, struct http_conn *conn);
    void (*on_receipt)(void *ctx, u64 receipt, bool written);
    /* Once at the end of every turn in which something was read or released: flush the journal here. */
    void (*on_turn_end)(void *ctx);
    /* All places are taken. Is it a request that is to be answered all the same? Only the head is there. May be NULL: none is, and
     * no places are kept for such. */
    bool (*urgent)(void *ctx, struct http_request *head);
    /* Others want the place of this connection: answer it now, as if it had waited long enough. false: it is not waiting, but
     * worked on. May be NULL. */
    bool (*hurry)(void *ctx, struct http_conn *conn);
    /* Render the body of an error the server itself answers (400, 408, 413, 414, 417, 431, 501, 503, 505). */
    void (*render_error)(void *ctx, u16 status, const char *code, const char *detail, struct buf *body);
};

/* A pointer the handler may hang on a connection with an unanswered request (its waiting poll, say). */
void http_conn_set_user(struct http_conn *conn, void *user);
void *http_conn_user(struct http_conn *conn);
/* The handler keeps so many bytes for its unanswered request: a reply that is being made. Until the answer they count as what
 * the connection holds, and if that is the most when memory is short it is dropped (on_gone), not from inside this. */
void http_conn_keeps(struct http_conn *conn, size_t bytes);

/* From inside on_request, another connection's on_request, a timer, anywhere on the loop's thread. Everything in
 * `reply` is copied, but a large shared body, of which a reference is kept instead. on_request is never called from inside it. */
void http_respond(struct http_conn *conn, const struct http_reply *reply);

#define HTTP_FEED_UNSENT_MAX (256u << 10) /* of a feed, kept for a client that reads slowly */

/* More of a reply that goes on (http_reply.feed); leaves when `after` is durable. No deadline passes while there is nothing
 * to say. false: its client has left too much unread, and is dropped; `conn` is invalid then, and on_gone is not called. */
bool http_feed(struct http_conn *conn, slice bytes, struct http_after after);
void http_feed_end(struct http_conn *conn);

/* 0 means the default. */
struct http_limits {
    u32 connections_max; /* default 10000; above, one gives way (load.c says which); if none can: accept and close */
    u32 per_address;     /* connections of one address; default: as many as there are */
    u64 buffered_max; /* bytes of unfinished requests and unsent or unfinished replies together; above, whoever holds most is
                             refused or dropped. Default 256 MiB */
    u32 head_ms, idle_ms; /* defaults 10000, 60000 */
    u32 write_ms;         /* a client that takes nothing of its replies for so long is dropped. Default 60000 */
    u32 body_bytes_per_s; /* default 500, measured after the grace */
    u32 body_grace_ms;    /* default 5000 */
    u32 turn_ms;          /* for the requests of a turn, and half as long for its replies; what is left is first in the
                             next one. Default 16 */
};

struct http_server;
struct uv_loop_s;

struct http_server *http_server_new(struct uv_loop_s *loop, const struct http_limits *limits,
                                    const struct http_handler *handler);

#define HTTP_LISTENERS_MAX 17u
struct tls;
/* One more address to serve on: takes it, so that nobody else has it; until http_server_listen whoever connects is
 * refused. host must be a numeric address ("127.0.0.1", "::1"); port 0 picks one. `tls` (net/tls.h), if not NULL, is what
 * is spoken there; a reference is kept. */
hx_st http_server_bind(struct http_server *s, const char *host, u16 port, struct tls *tls, struct errbuf *err);
/* Who comes to the i-th address from now on meets another certificate; who is there already goes on as it began. */
void http_server_secure(struct http_server *s, u32 i, struct tls *tls);
/* Requests by the i-th address are marked (http_request.inside): it is for a part of this process alone. */
void http_server_inside(struct http_server *s, u32 i);
hx_st http_server_listen(struct http_server *s, struct errbuf *err);
/* Of the address that was taken as the i-th, from 0. */
u16 http_server_port(const struct http_server *s, u32 i);
/* Everything of the stream at or below `position` is durable: let the replies waiting for it go (written at the end of
 * this turn). */
void http_release(struct http_server *s, u16 stream, u64 position);
/* While it is on, no reply that names a position of the stream leaves, released or not, nor one queued behind such a
 * reply; what the kernel has not taken yet is kept back too, and a connection whose next bytes cannot be called back
 * is dropped. Lifting it lets go what has been released. */
void http_hold(struct http_server *s, u16 stream, bool on);
/* Stop or resume reading sockets: backpressure while the journal catches up. No deadline of a client passes whose bytes
 * lie unread. */
void http_server_pause_reading(struct http_server *s, bool paused);
/* Stop accepting; connections close as they fall idle; on_closed is called when none is left or after grace_ms. */
void http_server_drain(struct http_server *s, u32 grace_ms, void (*on_closed)(void *ctx), void *ctx);
/* No reply leaves from here on (P7). */
void http_server_silence(struct http_server *s);
/* Close handles, at once and whatever is under way: requests not yet answered are reported gone, receipts not yet told
 * get their fate. Memory is freed when the loop has run once more. */
void http_server_close(struct http_server *s);

/* How many connections one address may have from here on; 0: any number. */
void http_server_per_address(struct http_server *s, u32 connections);

struct http_server_stats {
    u64 connections, accepted, requests, replies, bytes_in, bytes_out, refused, timeouts, evicted;
    u64 no_place, no_memory, per_address; /* why those were refused, or made to go */
    u64 tls_handshakes, tls_resumed;      /* finished; of these, with a ticket */
    u64 tls_failed;                       /* refused or given up, and TLS where there is none or the other way round */
    u64 tls_cut;                          /* connections that ended without saying so */
    u64 buffered;                         /* bytes of unfinished requests and unsent replies, held now */
};
void http_server_stats_get(const struct http_server *s, struct http_server_stats *out);

#endif
