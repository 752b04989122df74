/* The family side of the HTTP server. The files, split by what they know:
 *
 *   parse.c   one message (parse.h)
 *   reply.c   how a reply is spelled
 *   out.c     a connection's replies: bytes in order, and up to where they may leave
 *   conn.c    a connection's protocol: bytes in, requests out, replies in, when to close
 *   addresses.c  where connections come from
 *   load.c    what all connections together may take: a turn's time, places, memory
 *   tls.c     what is opened and sealed between a socket and its connection (tls.h)
 *   server.c  the sockets: libuv, the turn, the clock tick. Nothing else sees libuv
 *
 * conn.c reaches the socket through the http_socket_* functions, server.c reports what happened to it through the
 * http_conn_* ones. */
#ifndef HAPAX_NET_SERVER_PRIV_H
#define HAPAX_NET_SERVER_PRIV_H

#include "net/parse.h"

#define HTTP_READ_BYTES    (256u << 10) /* the one read buffer all connections share */
#define HTTP_HEADROOM      (32u << 10)  /* room in front of it for an unfinished head */
#define HTTP_WAITING_BYTES (64u << 10)  /* input taken in behind a request that is answered later */
#define HTTP_UNSENT_PAUSE  (1u << 20)   /* unsent replies at which a connection's requests are left unread */
#define HTTP_LATE_BYTES    (4u << 10)   /* read at least, when many wait for their turn */
#define HTTP_AHEAD         32u          /* requests announced to the handler before they are handed over */
#define HTTP_PIECE_BYTES   (4u << 10)   /* what waits inside libuv for a full socket to drain */
#define HTTP_SHARED_BYTES  (16u << 10)  /* shared bodies of this size and above are not copied */
#define HTTP_BULK_BYTES    (16u << 10) /* what is ready and more than that leaves behind the small replies of others ... */
#define HTTP_SHARE_BYTES   (256u << 10) /* ... and so much of it at a time */
#define HTTP_PATIENCE_MS   1000         /* how long a head may take to come while others wait for a place */

/* Intrusive lists. A link outside any list points to itself. */
struct http_link {
    struct http_link *prev, *next;
};

static inline void http_link_init(struct http_link *l) {
    l->prev = l->next = l;
}
static inline bool http_link_alone(const struct http_link *l) {
    return l->next == l;
}
static inline void http_link_remove(struct http_link *l) {
    l->prev->next = l->next;
    l->next->prev = l->prev;
    http_link_init(l);
}
/* At the end of `list`, unless it is in some list already. */
static inline void http_link_add(struct http_link *list, struct http_link *l) {
    if (!http_link_alone(l)) return;
    l->prev = list->prev;
    l->next = list;
    list->prev->next = l;
    list->prev = l;
}
/* Everything in `from` comes before what is in `list`. */
static inline void http_link_prepend(struct http_link *list, struct http_link *from) {
    if (http_link_alone(from)) return;
    from->prev->next = list->next;
    list->next->prev = from->prev;
    from->next->prev = list;
    list->next = from->next;
    http_link_init(from);
}
/* Everything in `from` moves to the empty list `to`. */
static inline void http_link_move(struct http_link *from, struct http_link *to) {
    http_link_init(to);
    if (http_link_alone(from)) return;
    *to = *from;
    to->next->prev = to->prev->next = to;
    http_link_init(from);
}
#define HTTP_LINK_OF(link, type, member) ((type *)(void *)((char *)(link)-offsetof(type, member)))

/* ---- out.c: replies on their way
 *
 * Bytes [0, sent) are with the kernel, [sent, ready) may leave, [ready, bytes.len) wait for a journal. A span covers
 * the bytes from the previous span's end to its own: they wait for `after`, and `receipt` (0: none, or told) belongs to
 * the first of them. Replies that wait for nothing more than their predecessor, and whose fate nobody asked for, share
 * its span.
 *
 * A shared body stands behind all bytes and belongs to the last span. While it is there nothing is appended: the
 * connection's further requests wait until it has left.
 *
 * A stream's gate is the position up to which its replies may leave: what has been released of it, or 0 while it is
 * held. Gates are given as an array with one for each stream. */

struct http_body {
    u32 refs, queued; /* all references; those of replies on their way */
    struct buf bytes;
};

struct http_span {
    size_t end;
    u64 receipt;
    struct http_after after;
};

struct http_out {
    struct http_out *next_spare;
    struct buf bytes;
    size_t sent, ready;
    struct http_body *body;
    size_t body_sent;
    struct http_span *spans; /* [first, count) are in use; [first, held) may leave */
    size_t first, held, count, cap;
    size_t first_start; /* where the bytes of spans[first] begin */
};

struct http_out *http_out_new(void);
void http_out_free(struct http_out *o);
/* Everything written and told: ready to serve another connection. */
void http_out_reset(struct http_out *o);
/* The bytes appended since the last span are one reply. */
void http_out_span(struct http_out *o, struct http_after after, u64 receipt);
/* Gates have opened: more may leave. */
void http_out_release(struct http_out *o, const u64 *gates);
/* A gate has closed: less may leave. */
void http_out_hold(struct http_out *o, const u64 *gates);
/* A reply's head was appended, and this is its body, made behind `room` bytes. If what is not sent yet fits in there it is moved
 * before the body, and the two exchange their memory: `made` is empty then, with room perhaps. Only when everything sent has been told. */
bool http_out_take(struct http_out *o, struct buf *made, size_t room);
/* Put `body` behind everything, as part of the last span. Takes a reference of its own. */
void http_out_share(struct http_out *o, struct http_body *body);
/* What may leave, in order: none, one or two runs of bytes. Returns how many. */
u32 http_out_leaving(const struct http_out *o, slice runs[2]);
/* So many bytes of it have left. */
void http_out_left(struct http_out *o, size_t n);
/* The next receipt whose reply begins before byte `upto`, or 0. Each is returned once. Spans passed on the way are
 * done with: call it until it returns 0 after every write. */
u64 http_out_receipt(struct http_out *o, size_t upto);
/* A connection that is never quite drained must not drag along what it sent an hour ago. Only when everything sent has
 * been told. */
void http_out_compact(struct http_out *o);
static inline bool http_out_parked(const struct http_out *o) {
    return o->held < o->count;
}
/* The stream it waits for, when it is parked. */
static inline u16 http_out_stream(const struct http_out *o) {
    return o->spans[o->held].after.stream;
}
static inline size_t http_out_body_unsent(const struct http_out *o) {
    return o->body ? o->body->bytes.len - o->body_sent : 0;
}
static inline size_t http_out_unsent(const struct http_out *o) {
    return o->bytes.len - o->sent + http_out_body_unsent(o);
}
/* How much may leave. */
static inline size_t http_out_ready(const struct http_out *o) {
    return o->ready - o->sent + (o->held == o->count ? http_out_body_unsent(o) : 0);
}

/* ---- conn.c */

enum http_phase { HTTP_PHASE_HEAD, HTTP_PHASE_BODY, HTTP_PHASE_CHUNKS };

#define HTTP_CONN_MAGIC   0x636f6e6eu
#define HTTP_SERVER_MAGIC 0x68747470u

struct http_conn {
    u32 magic; /* handlers carry it as a void *, libuv too */
    struct http_server *server;
    void *user;
    struct http_link all, parked, dirty, resume, late, idle;
    struct http_address *address; /* it comes from; NULL: not known yet */
    struct http_link mine;        /* among its connections */
    struct http_link reserve;     /* not alone: it has a place of the reserve */
    bool urgent;                  /* and what it asked last has a right to one */
    bool placed;                  /* a place was found for it */

    /* Input. `in` from `in_at` on holds what has arrived of the request under way (of a chunked one: its head), or,
     * while parsing must wait, everything that has arrived. Freed when empty: an idle connection owns no buffer. */
    enum http_phase phase;
    struct buf in, body;
    size_t in_at, head_bytes;
    u64 length, limit;
    struct http_chunked chunked;

    /* The request being answered. */
    bool awaiting, in_handler, head_only, keep_alive, http11;
    bool feeding; /* its head is out, or on its way */
    size_t kept;  /* what the handler keeps for it */
    bool unread;  /* a feed whose client does not read: nothing of it is owed any more */

    struct http_out *out; /* NULL when nothing is unsent */
    size_t piece;         /* the first bytes of `out` not sent yet: a copy of them is with http_socket_send */

    bool secure, handshaking; /* over TLS; and not agreed on it yet */
    bool inside;              /* http_server_inside */
    size_t unopened;          /* what TLS holds of it, unfinished */

    size_t counted; /* its share of the server's `buffered` */
    bool wants_reading, reading;
    bool talkative; /* the last read did not bring all there was */
    bool cut;       /* whole requests may be waiting in `in`, for want of time */
    bool eof, closing, lingering, dead;
    u64 discarded, body_received;
    i64 since_ms;    /* when what is under way began: idling, the head, the body, lingering */
    i64 late_ms;     /* when it came into the line of those late */
    i64 progress_ms; /* when the client last took a byte of what is ready for it */
};

/* How fast places come free, and how many are asked for in vain: of these seconds, and of those before. */
struct http_pace {
    i64 since_ms;
    u32 freed, refused, freed_before, refused_before;
};

struct http_server {
    u32 magic;
    struct http_handler handler;
    struct http_limits limits;
    struct http_server_stats stats;
    struct http_link conns;   /* all */
    struct http_link dirty;   /* with bytes that may leave */
    struct http_link bulk;    /* with many such; by their link `dirty`, too */
    struct http_link resume;  /* to be looked at again at the end of the turn */
    struct http_link late[2]; /* in line, with bytes to be read or requests to be handed over; [1] those
                                              that are talkative */
    u32 late_count;
    bool late_next;        /* the line that was served last */
    struct http_link idle; /* with nothing under way but a head at most; the longest idle first */
    struct http_addresses *addresses;
    struct http_link reserve; /* in a place of the reserve, the longest first */
    u32 live, reserved;       /* those in the reserve are live too */
    struct http_pace pace;
    struct http_link parked[HTTP_STREAMS]; /* by the stream whose gate stops their first waiting reply */
    u64 released[HTTP_STREAMS], gates[HTTP_STREAMS];
    bool held[HTTP_STREAMS];
    u64 buffered; /* bytes of unfinished requests and replies, shared bodies once */
    i64 now_ms;
    i64 turn_began_ms; /* by http_clock_ms; 0: it has not */
    bool turn;         /* something happened that on_turn_end must hear of */
    bool paused, silent, draining;
    struct http_head *head;             /* the head being looked at: one of those below */
    struct http_head parsed;            /* too large for the stack of every call */
    struct http_head ahead[HTTP_AHEAD]; /* of whole requests that wait in the input being consumed */
    u32 ahead_at, ahead_count;
    struct buf chunk_body, error_body;
    char retry_line[40]; /* of an error */
    struct http_out *spare;
    u32 spare_count;
};

void http_core_init(struct http_server *s, const struct http_limits *limits, const struct http_handler *handler);
void http_core_free(struct http_server *s);

/* The pointer comes back from outside: is it what it says? */
static inline void http_conn_check(const struct http_conn *c) {
    CHECK(c && c->magic == HTTP_CONN_MAGIC);
}
static inline void http_server_check(const struct http_server *s) {
    CHECK(s && s->magic == HTTP_SERVER_MAGIC);
}

void http_conn_init(struct http_conn *c, struct http_server *s);
/* Its socket is there. */
void http_conn_start(struct http_conn *c);
void http_conn_free(struct http_conn *c);
/* `p` is preceded by HTTP_HEADROOM writable bytes. `more`: there may be more to read. */
void http_conn_input(struct http_conn *c, char *p, size_t n, bool more);
void http_conn_eof(struct http_conn *c);
/* TLS took something in, before http_conn_input gets what came out of it: it holds `unopened` bytes now. `agreed`: the
 * handshake is over. */
void http_conn_opened(struct http_conn *c, size_t unopened, bool agreed, bool more);
/* What it says is not understood: it is answered with 400, in the clear. */
void http_conn_misunderstood(struct http_conn *c, const char *detail);
/* It has been told why, and hears no more; what it says is thrown away until it has heard. */
void http_conn_stop(struct http_conn *c);
/* Give up the connection at once: reset by the peer, stalled, or the server closes. */
void http_conn_drop(struct http_conn *c);
void http_conn_resume(struct http_conn *c);
/* There is time for what had to wait; it has left the line. */
void http_conn_serve(struct http_conn *c);
/* Writes what may leave; of much, a share. */
void http_conn_flush(struct http_conn *c);
/* A gate it waits for has opened. */
void http_conn_release(struct http_conn *c);
/* A gate has closed. */
void http_conn_hold(struct http_conn *c);
/* The piece given to http_socket_send has left (or not: the connection is broken). */
void http_conn_piece_done(struct http_conn *c, bool ok);
/* Look at the clock. */
void http_conn_tick(struct http_conn *c);
/* The server is going down: close now if idle, else after the replies under way. */
void http_conn_drain(struct http_conn *c);
/* How many bytes the next read may bring. */
size_t http_conn_read_room(const struct http_conn *c);

/* Too much is held in memory, and most of it here: what is still arriving is answered with 503, a client that does not
 * take its replies is dropped. */
void http_conn_pay(struct http_conn *c);

/* It is to go, for others want its place: its request is answered as far as that can be done at once. false: it cannot be
 * spared, it works, or has been arriving for less than patience_ms. */
bool http_conn_dismiss(struct http_conn *c, i64 patience_ms);
/* It has a place of the reserve, and asks for nothing urgent. */
void http_conn_refuse(struct http_conn *c);
/* Does it only wait for its client to say something, or to finish the head of a request? */
bool http_conn_idle(const struct http_conn *c);
/* Enters it with those who are, if it is. */
void http_conn_note_idle(struct http_conn *c);

/* ---- addresses.c */

#define HTTP_ADDRESS_BYTES 16u /* as IPv6 has it (::ffff:1.2.3.4) */

/* An IPv4 address, or the network of 2^64 that an IPv6 one belongs to. */
struct http_address {
    struct http_use use; /* the handler's */
    u8 bytes[HTTP_ADDRESS_BYTES];
    u32 count;              /* of its connections */
    struct http_link conns; /* those, in no order that means anything */
    struct http_link rank;  /* among addresses with equally many */
    struct http_address *chain;
    u64 burden;  /* for http_relieve */
    i64 told_ms; /* when the log last spoke of its connections */
};
struct http_addresses;

struct http_addresses *http_addresses_new(u32 connections_max);
void http_addresses_free(struct http_addresses *a);
void http_address_join(struct http_conn *c, const u8 address[HTTP_ADDRESS_BYTES]);
void http_address_leave(struct http_conn *c);
/* The one with most connections, or NULL. */
struct http_address *http_address_most(const struct http_addresses *a);
void http_address_text(const struct http_address *a, char out[HTTP_ADDRESS_TEXT]);

/* ---- load.c */

/* Cheap enough to be asked for every request; some milliseconds coarse. */
i64 http_clock_ms(void);
/* Has the turn had its time? It begins when this is first asked. */
bool http_turn_spent(struct http_server *s);
/* It has something to read: is it to wait in line? */
bool http_late_must(struct http_conn *c);
/* How much is read at a time of a client that sends requests. */
size_t http_late_share(const struct http_server *s);
void http_late_add(struct http_conn *c);
void http_late_remove(struct http_conn *c);
/* A newcomer: is there a place for it, or can one be made? Else the status and the words to refuse it with. */
bool http_place_find(struct http_conn *c, u16 *status, const char **detail);
/* A connection has gone: its place is another's. */
void http_place_free(struct http_conn *c);
/* Has it one of the reserve? */
static inline bool http_place_lent(const struct http_conn *c) {
    return !http_link_alone(&c->reserve);
}
/* When whoever is refused may come back. */
u32 http_retry_s(struct http_server *s);
/* Serve those who are late, for half of the turn's time or for all that is left of it. */
void http_late_serve(struct http_server *s, bool all_the_time);

/* Whoever holds most pays, until what all hold is within the limit. Not from inside a handler: requests and receipts
 * are told their end. */
void http_relieve(struct http_server *s);

/* ---- reply.c */

bool http_reply_bodiless(const struct http_reply *reply);
/* `connection` is the Connection header line, or empty. */
void http_reply_put(struct buf *b, const struct http_reply *reply, slice connection, bool with_body);
/* The head of a reply whose body follows piece by piece; chunked, or up to the connection's end. */
void http_reply_put_feed(struct buf *b, const struct http_reply *reply, slice connection, bool chunked);
/* An error of the server's own. Its body is valid until the next one is made. */
struct http_reply http_reply_error(struct http_server *s, u16 status, const char *detail);

/* ---- server.c */

void http_socket_reading(struct http_conn *c, bool on);
/* Bytes that have left (0: full), or -1 when the connection is broken. Over TLS a slice of it is sealed and has left when
 * the kernel has taken all of that; until then it is a piece (c->piece) and http_conn_piece_done follows. */
i64 http_socket_write(struct http_conn *c, const slice *runs, u32 count);
/* Send a copy as soon as the socket has room; http_conn_piece_done follows. One at a time. false: broken. */
bool http_socket_send(struct http_conn *c, const char *p, size_t n);
/* Of the piece being sent: bytes that have certainly not left. What is sealed cannot be called back: none of it. */
size_t http_socket_pending(const struct http_conn *c);
void http_socket_shutdown(struct http_conn *c);
/* Read now, into http_conn_input or http_conn_eof. Returns whether that was all there is. */
bool http_socket_read(struct http_conn *c);
/* Are there bytes to read, or an end? */
bool http_socket_readable(struct http_conn *c);
bool http_socket_writable(struct http_conn *c);
/* Has the peer closed its side? For connections that are not being read. */
bool http_socket_peer_closed(struct http_conn *c);
void http_socket_close(struct http_conn *c);

#endif
