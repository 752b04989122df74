/* client: does it run in the user's process? libhapax, on POSIX sockets and pthreads.
 *
 * From the outside in: send.c, sender.c, receive.c, settle.c, wait.c and consume.c are the public calls; each renders a
 * request and reads the reply's JSON. call.c carries one request to an answer: pool, repeats, deadline, problem
 * documents. conn.c moves the bytes of one try; resolve.c finds the address, reply.c reads HTTP. Nothing here knows of the broker's insides.
 *
 * Beside them the gate, which knows no broker: gate.c has its calls, gate_run.c their order, gate_pq.c and gate_sqlite.c
 * one database each, in libraries of their own. gate_consume.c is where the two meet. */
#ifndef HAPAX_CLIENT_PRIV_H
#define HAPAX_CLIENT_PRIV_H

#include <pthread.h>
#include <sys/types.h>

#include "base/arena.h"
#include "base/json.h"
#include "hapax/hapax.h"

/* ---- memory.c: a result and all it points to is one arena */

/* Copied with a NUL behind it, so that text can be read as a C string. */
hx_bytes arena_bytes(struct arena *a, slice s);

/* ---- url.c */

struct url {
    char *host; /* as given to the resolver: no brackets */
    char *port;
    char *authority; /* for the Host field */
    bool https;
    char *prefix; /* "" or "/path" without a slash at its end */
    char *text;   /* for messages */
};

bool url_parse(const char *text, struct url *out, struct errbuf *err);
bool url_is_here(const struct url *u); /* this machine's own, by its name or number */
void url_free(struct url *u);

/* ---- token.c */

/* The header field that carries the token, given as it is or in a file; nothing where there is none. */
bool token_field(const char *token, const char *file, struct buf *out, struct errbuf *err);
void buf_wipe(struct buf *b); /* buf_free, and nothing of it is left in memory */

/* ---- reply.c: the strict reader of HTTP/1.1 replies */

#define REPLY_HEAD_MAX (64u << 10)

struct reply {
    int status;
    char content_type[128];
    char state[16]; /* Hapax-State */
    char etag[80];
    i64 retry_after_ms;
    struct buf body;
    /* framing, for conn.c */
    bool chunked, close, has_length;
    u64 length;
};

void reply_free(struct reply *r);
/* Is the whole header section here? Returns its length with the empty line, 0 if not yet. */
size_t reply_head_length(slice bytes);
bool reply_head_parse(slice head, struct reply *out, struct errbuf *err);

/* Chunked decoding, a piece at a time. */
struct chunks {
    int state;
    u64 left;
    u32 line; /* bytes of the current size or trailer line */
};
enum chunks_result { CHUNKS_MORE, CHUNKS_DONE, CHUNKS_BAD };
/* Reads from *in (moved on), appends content to `out`, never beyond body_max. */
enum chunks_result chunks_feed(struct chunks *c, slice *in, struct buf *out, size_t body_max);

/* ---- resolve.c: names to addresses, within a deadline */

struct addrinfo;
struct lookup;

struct resolver { /* one a client */
    pthread_mutex_t lock;
    struct lookup *under_way;
};

struct addresses {
    const struct addrinfo *list;
    struct addrinfo *own;  /* private */
    struct lookup *shared; /* private */
};

void resolver_init(struct resolver *r);
void resolver_free(struct resolver *r);
/* true: addresses_free ends *out. false: *err says why; also when the deadline came, or cancel_fd became readable. */
bool resolve(struct resolver *r, const struct url *url, i64 deadline, int cancel_fd, struct addresses *out,
             struct errbuf *err);
void addresses_free(struct addresses *a);

/* ---- tls.c: the only file that knows OpenSSL */

struct tls; /* one a client: whom it trusts, what it shows of itself, the session to resume */

struct tls *tls_new(const struct url *url, const hx_options *options, struct errbuf *err); /* NULL: *err says why */
void tls_free(struct tls *t);
i64 tls_expires_ms(struct tls *t); /* the last certificate shown; 0: none yet */

struct tls_conn; /* one connection's, on a socket that does not block */

struct tls_conn *tls_begin(struct tls *t, int fd);
void tls_end(struct tls_conn *c);
/* As calls on the socket: -1 with errno. EAGAIN: wait for tls_wants. EPROTO: tls_why says it. */
int tls_handshake(struct tls_conn *c); /* 0: done */
ssize_t tls_write(struct tls_conn *c, const void *p, size_t n);
ssize_t tls_read(struct tls_conn *c, void *p, size_t n); /* 0: the end */
bool tls_silent(struct tls_conn *c);                     /* open, and nothing of an answer here to read */
void tls_say_end(struct tls_conn *c);                    /* that we shall write no more */
short tls_wants(const struct tls_conn *c);               /* POLLIN or POLLOUT */
u64 tls_written(const struct tls_conn *c);               /* bytes that left */
bool tls_distrusts(const struct tls_conn *c);
bool tls_refused(const struct tls_conn *c); /* before the handshake was whole: nothing we sent was read */
const char *tls_why(const struct tls_conn *c);

/* ---- conn.c: one connection, one request at a time */

struct conn {
    int fd;
    struct tls_conn *tls; /* NULL: plain */
    struct buf out;       /* with TLS: what leaves as one record */
    bool reused;          /* has answered before: the other side may have closed it meanwhile */
    struct buf in;
};

/* Why there is no connection. */
enum unmade {
    UNMADE_UNREACHED,
    UNMADE_NO_TLS,    /* something answered that could not be agreed with */
    UNMADE_UNTRUSTED, /* who answered is not who was asked for, or nobody known */
};

enum xfer {
    XFER_DONE,
    XFER_NOT_SENT,  /* no byte left: certainly nothing applied */
    XFER_LOST,      /* something was written and no whole reply came */
    XFER_BAD,       /* a reply came that is none */
    XFER_CANCELLED, /* cancel_fd became readable and no reply was on its way */
};

/* All times are of the monotonic clock. cancel_fd -1: none. *err says what went wrong. */
struct conn *conn_open(hx_client *client, i64 deadline, int cancel_fd, enum unmade *how, struct errbuf *err);
void conn_close(struct conn *c);
bool conn_alive(struct conn *c); /* idle, still open, nothing unasked-for in it */
enum xfer conn_exchange(struct conn *c, slice head, slice body, i64 deadline, int cancel_fd, size_t body_max,
                        struct reply *out, struct errbuf *err);
/* An answer that goes on, line by line; a line has no more than FOLLOW_LINE_MAX bytes. Of any answer but a chunked 200 the
 * body is read whole. XFER_DONE: it ended, or `line` said that it is enough. */
#define FOLLOW_LINE_MAX (256u << 10)
typedef bool conn_line(void *ctx, slice line); /* without its line feed. false: enough */
struct follow {
    conn_line *line;
    void *ctx;
    i64 silence_ms; /* so long without a byte: lost */
};
enum xfer conn_follow(struct conn *c, slice head, i64 deadline, int cancel_fd, const struct follow *f, size_t body_max,
                      struct reply *out, struct errbuf *err);
/* Wait for ms, or until cancel_fd is readable: then true. */
bool conn_pause(i64 ms, int cancel_fd);
/* Wait until fd is readable: true. Or until the deadline, or until cancel_fd is. */
bool conn_await(int fd, i64 deadline, int cancel_fd);

/* ---- call.c */

struct hx_client {
    struct url url;
    char *token_file; /* read again when the broker does not know the token any more; NULL: none */
    struct resolver resolver;
    struct tls *tls; /* NULL: plain */
    int connections;
    i64 connect_timeout_ms, timeout_ms;
    size_t reply_bytes_max;
    bool patient;
    pthread_mutex_t lock;     /* protects the pool, and: */
    struct buf authorization; /* a whole header line, or nothing */
    u64 token_number;         /* counts what was read */
    struct conn **idle;
    int idle_count;
};

struct call {
    const char *method;
    slice target; /* without the URL's prefix */
    slice fields; /* whole header lines */
    slice content_type;
    slice body;
    i64 timeout_ms; /* 0: the client's */
    i64 wait_ms;
    bool once, patient;
    int cancel_fd; /* -1: none, as CALL has it */
    bool retried;  /* out: there was more than one try */
};
#define CALL(...) ((struct call){.cancel_fd = -1, __VA_ARGS__})

/* Carries the call to an answer. HX_OK for 2xx. *reply (reply_free by the caller, always) has whatever answer came. */
hx_status client_call(hx_client *c, struct call *call, struct reply *reply, hx_error *err);

/* Reads a problem document (or the lack of one) into *err; returns err->status. */
hx_status problem_read(int http_status, slice body, hx_error *err);
/* May the same request succeed a little later, by itself? */
bool problem_passes(const hx_error *err);

hx_status error_set(hx_error *err, hx_status status, hx_applied applied, const char *code, const char *fmt, ...)
    PRINTF_LIKE(5, 6);
hx_status error_ok(hx_error *err);
/* A reply that parses but is not what was asked for. */
hx_status error_protocol(hx_error *err, int http_status, const char *what);

/* Rendering that several calls share. */
void target_queue(struct buf *b, const char *queue, const char *rest); /* /v1/queues/<queue><rest> */
/* "name":"..." or "name_base64":"..." when the bytes are no UTF-8. */
void put_bytes(struct buf *b, const char *name, hx_bytes bytes);
void put_text(struct buf *b, const char *name, const char *text); /* nothing if NULL */
void put_duration(struct buf *b, const char *name, i64 ms);
bool text_ok(const char *text); /* UTF-8 */
bool queue_ok(const char *queue, hx_error *err);

/* Condition variables on the monotonic clock. */
void cond_init(pthread_cond_t *c);
bool cond_wait_until(pthread_cond_t *c, pthread_mutex_t *lock, i64 deadline_ms); /* false: the time has come */

/* ---- reading replies */

/* {"content_type","body","encoding"} under the cursor. */
bool read_result(struct json *j, struct arena *a, hx_bytes *body, const char **content_type);
/* A step's recorded result: null, a string (its bytes), a result object, or any other value (its text). */
bool read_step_result(struct json *j, struct arena *a, hx_bytes *out);
bool read_time(struct json *j, i64 *unix_ms);                        /* null leaves 0 */
bool read_string(struct json *j, struct arena *a, const char **out); /* null leaves NULL */
bool read_bytes(struct arena *a, slice text, bool base64, hx_bytes *out);
hx_state state_of(slice text);
/* One send's reply object; unknown members are skipped. status_out gets the batch line's "status". */
bool receipt_read(slice json, struct arena *a, hx_receipt *out, i64 *status_out);

hx_status draft_check(const hx_draft *draft, bool batch, hx_error *err);
void draft_line(struct buf *b, const hx_draft *draft); /* the batch line, with its newline */

/* ---- settle.c, for the consumer */

/* How long a settling call may take, and what ends it early. */
struct patience {
    i64 timeout_ms; /* 0: the client's */
    int cancel_fd;  /* -1: nothing */
};

/* hx_ack, hx_nack, and hx_start or hx_release, with patience. */
hx_status ack_within(hx_client *c, struct patience p, const char *token, hx_bytes result, const char *content_type,
                     const char *effect_id, hx_settled *out, hx_error *err);
hx_status nack_within(hx_client *c, struct patience p, const char *token, const hx_failure *failure, hx_settled *out,
                      hx_error *err);
hx_status plain_within(hx_client *c, struct patience p, const char *verb, const char *token, hx_settled *out,
                       hx_error *err);

struct settle_item {
    const char *token;
    hx_status status; /* out */
};

/* One POST with an array. lease_ms > 0 adds "lease". On HX_OK each item has its own status. */
hx_status settle_many(hx_client *c, struct patience p, const char *verb, struct settle_item *items, size_t count,
                      i64 lease_ms, hx_error *err);

/* ---- receive.c, for the consumer */

hx_status receive_call(hx_client *c, const char *queue, const hx_receive_options *options, int cancel_fd,
                       hx_received *out, hx_error *err);

#endif
