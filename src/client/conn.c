/* One connection, one request at a time, all of it bounded by a deadline: not only each wait, for a peer that always has
 * one more byte to give is never waited for.
 *
 * What matters is which failures are certain. Until the first byte is written nothing can have been applied
 * (XFER_NOT_SENT). From then on only a whole reply tells; everything else is XFER_LOST, and the caller repeats the
 * request with the same key or token. The broker applies a request only once its whole body has arrived, but that a
 * body did not arrive is nothing this side can know. */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "client/client_priv.h"

enum { LEAVE_MS = 1000 };        /* how long an answer may still take after a stop */
enum { RECORD_MAX = 12 * 1024 }; /* of a body that goes out with its head */

enum ready { READY, READY_TIMEOUT, READY_CANCELLED };

static int poll_ms(i64 deadline) {
    i64 left = deadline - clock_mono_ms();
    if (left < 0) left = 0;
    return left > 3600000 ? 3600000 : (int)left;
}

/* Wait for events on fd (-1: just wait), or the deadline, or cancel_fd. *got has the events. */
static enum ready wait_ready(int fd, short events, i64 deadline, int cancel_fd, short *got) {
    struct pollfd p[2] = {{.fd = fd, .events = events}, {.fd = cancel_fd, .events = POLLIN}};
    for (;;) {
        int n = poll(p, 2, poll_ms(deadline));
        if (n < 0 && errno != EINTR) return READY_TIMEOUT;
        if (n > 0 && p[0].revents) {
            if (got) *got = p[0].revents;
            return READY;
        }
        if (n > 0 && p[1].revents) return READY_CANCELLED;
        if (clock_mono_ms() >= deadline) return READY_TIMEOUT;
    }
}

bool conn_pause(i64 ms, int cancel_fd) {
    return wait_ready(-1, 0, clock_mono_ms() + ms, cancel_fd, NULL) == READY_CANCELLED;
}

bool conn_await(int fd, i64 deadline, int cancel_fd) {
    return wait_ready(fd, POLLIN, deadline, cancel_fd, NULL) == READY;
}

static int connect_one(const struct addrinfo *ai, i64 deadline, int cancel_fd, int *error) {
    int fd = socket(ai->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return *error = errno, -1;
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (connect(fd, ai->ai_addr, ai->ai_addrlen) == 0) return fd;
    *error = errno;
    if (*error == EINPROGRESS) {
        enum ready r = wait_ready(fd, POLLOUT, deadline, cancel_fd, NULL);
        socklen_t n = sizeof(*error);
        if (r == READY_TIMEOUT)
            *error = ETIMEDOUT;
        else if (r == READY_CANCELLED)
            *error = ECANCELED;
        else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, error, &n) != 0)
            *error = errno;
        if (*error == 0) return fd;
    }
    close(fd);
    return -1;
}

static bool unmade(enum unmade *how, enum unmade what, struct errbuf *err, const char *why) {
    *how = what;
    err_set(err, ST_IO, "%s", why ? why : "unknown error");
    return false;
}

/* Until both sides have agreed: nothing of a request has left by then, so no failure here leaves anything open. */
static bool secure(struct conn *c, i64 deadline, int cancel_fd, enum unmade *how, struct errbuf *err) {
    while (tls_handshake(c->tls) != 0) {
        if (tls_distrusts(c->tls)) return unmade(how, UNMADE_UNTRUSTED, err, tls_why(c->tls));
        if (errno == EPROTO) return unmade(how, UNMADE_NO_TLS, err, tls_why(c->tls));
        if (errno == ECONNRESET) return unmade(how, UNMADE_UNREACHED, err, "closed during the TLS handshake");
        if (errno != EAGAIN) return unmade(how, UNMADE_UNREACHED, err, strerrordesc_np(errno));
        bool late = clock_mono_ms() >= deadline; /* a byte at a time is no excuse */
        enum ready r = late ? READY_TIMEOUT : wait_ready(c->fd, tls_wants(c->tls), deadline, cancel_fd, NULL);
        if (r == READY_TIMEOUT) return unmade(how, UNMADE_UNREACHED, err, "timed out in the TLS handshake");
        if (r == READY_CANCELLED) return unmade(how, UNMADE_UNREACHED, err, "stopped");
    }
    return true;
}

struct conn *conn_open(hx_client *client, i64 deadline, int cancel_fd, enum unmade *how, struct errbuf *err) {
    struct addresses found;
    *how = UNMADE_UNREACHED;
    if (!resolve(&client->resolver, &client->url, deadline, cancel_fd, &found, err)) return NULL;
    int fd = -1, error = 0;
    for (const struct addrinfo *ai = found.list; ai && fd < 0 && error != ECANCELED; ai = ai->ai_next)
        fd = connect_one(ai, deadline, cancel_fd, &error);
    addresses_free(&found);
    if (fd < 0) return unmade(how, UNMADE_UNREACHED, err, strerrordesc_np(error)), NULL;
    struct conn *c = mem_zalloc(sizeof(*c));
    c->fd = fd;
    if (!client->tls) return c;
    c->tls = tls_begin(client->tls, fd);
    if (secure(c, deadline, cancel_fd, how, err)) return c;
    conn_close(c);
    return NULL;
}

void conn_close(struct conn *c) {
    if (!c) return;
    tls_end(c->tls);
    close(c->fd);
    buf_free(&c->in);
    buf_wipe(&c->out);
    mem_free(c);
}

bool conn_alive(struct conn *c) {
    char byte;
    if (c->tls) return tls_silent(c->tls);
    ssize_t n = recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

struct io {
    struct conn *conn;
    i64 deadline;
    int cancel_fd;
    struct errbuf *err;
    bool leaving; /* a stop was asked for while the answer was awaited, see leave() */
};

static enum xfer lost(struct io *io, bool sent, const char *why) {
    err_set(io->err, ST_IO, "%s", why);
    return sent ? XFER_LOST : XFER_NOT_SENT;
}

static const char *why_failed(const struct conn *c) {
    const char *text = errno == EPROTO && c->tls ? tls_why(c->tls) : strerrordesc_np(errno);
    return text ? text : "unknown error";
}

/* Its last words may lie in the receive buffer. */
static const char *why_closed(struct conn *c) {
    bool told = c->tls && !tls_silent(c->tls) && tls_why(c->tls)[0];
    return told ? tls_why(c->tls) : "connection closed by the broker";
}

/* As much of head and body from `at` on as goes now; a small request leaves as one record. */
static ssize_t put_secure(struct conn *c, slice head, slice body, size_t at) {
    slice rest =
        at < head.n ? slice_of(head.p + at, head.n - at) : slice_of(body.p + (at - head.n), body.n - (at - head.n));
    if (at >= head.n || body.n > RECORD_MAX) return tls_write(c->tls, rest.p, rest.n);
    buf_reset(&c->out);
    buf_grow(&c->out, rest.n + body.n); /* moved before the token is in it */
    buf_slice_add(&c->out, rest);
    buf_slice_add(&c->out, body);
    return tls_write(c->tls, c->out.p, c->out.len);
}

static ssize_t put(struct conn *c, slice head, slice body, size_t at) {
    if (c->tls) return put_secure(c, head, body, at);
    bool in_head = at < head.n;
    slice parts[2] = {in_head ? slice_of(head.p + at, head.n - at) : SL(""), body};
    if (!in_head) parts[1] = slice_of(body.p + (at - head.n), body.n - (at - head.n));
    struct iovec iov[2] = {{(void *)(uintptr_t)parts[0].p, parts[0].n}, {(void *)(uintptr_t)parts[1].p, parts[1].n}};
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};
    return sendmsg(c->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Writing has to wait. XFER_DONE: go on, or *early. `sent`: some of it has left. */
static enum xfer write_wait(struct io *io, bool sent, bool *early) {
    struct conn *c = io->conn;
    short got = 0, wants = c->tls ? tls_wants(c->tls) : POLLOUT;
    enum ready r = wait_ready(c->fd, POLLIN | wants, io->deadline, io->cancel_fd, &got);
    if (r == READY_TIMEOUT) return lost(io, sent, "timed out while sending the request");
    if (r == READY_CANCELLED) return sent ? lost(io, true, "stopped while sending") : XFER_CANCELLED;
    /* What TLS has to say for itself is no answer. */
    if ((got & POLLIN) && !(got & POLLOUT)) *early = !c->tls || !tls_silent(c->tls);
    return XFER_DONE;
}

/* Writes head and body. An answer that begins before everything is written (a refusal of the body) ends the writing:
 * *early is set and the answer is read as usual. */
static enum xfer write_all(struct io *io, slice head, slice body, bool *early) {
    struct conn *c = io->conn;
    u64 before = c->tls ? tls_written(c->tls) : 0;
    for (size_t at = 0; at < head.n + body.n && !*early;) {
        ssize_t n = put(c, head, body, at);
        bool sent = c->tls ? tls_written(c->tls) != before : at > 0;
        if (n >= 0) {
            at += (size_t)n;
            continue;
        }
        if (errno == EINTR) continue;
        if (errno == EPIPE || errno == ECONNRESET) {
            *early = sent; /* a refusal may lie in the receive buffer */
            return sent ? XFER_DONE : lost(io, false, why_closed(c));
        }
        if (errno != EAGAIN && errno != EWOULDBLOCK) return lost(io, sent, why_failed(c));
        enum xfer x = write_wait(io, sent, early);
        if (x != XFER_DONE) return x;
    }
    return XFER_DONE;
}

/* A stop while an answer is awaited. Hanging up at once could lose one that is already on its way, and with it leases
 * that nobody would then give back. So only our half is closed: the broker ends a waiting poll when it sees that, and
 * what it had answered before still arrives. */
static void leave(struct io *io) {
    i64 until = clock_mono_ms() + LEAVE_MS;
    if (io->conn->tls) tls_say_end(io->conn->tls);
    shutdown(io->conn->fd, SHUT_WR);
    io->leaving = true;
    io->cancel_fd = -1;
    if (until < io->deadline) io->deadline = until;
}

static enum xfer gone(struct io *io, bool began, const char *why) {
    if (io->conn->tls && tls_refused(io->conn->tls)) return lost(io, false, why);
    return io->leaving && !began ? XFER_CANCELLED : lost(io, true, why);
}

static ssize_t get(struct conn *c, void *p, size_t n) {
    return c->tls ? tls_read(c->tls, p, n) : recv(c->fd, p, n, MSG_DONTWAIT);
}

/* More bytes into conn->in. */
static enum xfer fill(struct io *io, bool began) {
    struct buf *in = &io->conn->in;
    for (;;) {
        if (clock_mono_ms() >= io->deadline) return gone(io, began, "timed out waiting for the answer");
        buf_grow(in, 16384);
        ssize_t n = get(io->conn, in->p + in->len, in->cap - in->len);
        if (n > 0) {
            in->len += (size_t)n;
            return XFER_DONE;
        }
        if (n == 0) return gone(io, began, "the connection was closed before the answer was complete");
        if (errno == EINTR) continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK) return gone(io, began, why_failed(io->conn));
        enum ready r = wait_ready(io->conn->fd, io->conn->tls ? tls_wants(io->conn->tls) : POLLIN, io->deadline,
                                  io->cancel_fd, NULL);
        if (r == READY_TIMEOUT) return gone(io, began, "timed out waiting for the answer");
        if (r == READY_CANCELLED) leave(io);
    }
}

static void consume(struct buf *in, size_t n) {
    if (n == 0) return;
    memmove(in->p, in->p + n, in->len - n);
    in->len -= n;
}

static enum xfer read_head(struct io *io, struct reply *out) {
    struct buf *in = &io->conn->in;
    for (;;) {
        size_t n = reply_head_length(buf_slice(in));
        if (n) {
            if (!reply_head_parse(slice_of(in->p, n), out, io->err)) return XFER_BAD;
            consume(in, n);
            if (out->status >= 200) return XFER_DONE;
            continue; /* an interim answer (100) */
        }
        if (in->len > REPLY_HEAD_MAX) return err_set(io->err, ST_INVALID, "the answer's header is too long"), XFER_BAD;
        enum xfer x = fill(io, in->len > 0);
        if (x != XFER_DONE) return x;
    }
}

static enum xfer read_chunks(struct io *io, size_t body_max, struct reply *out) {
    struct chunks chunks = {0};
    for (;;) {
        slice rest = buf_slice(&io->conn->in);
        enum chunks_result r = chunks_feed(&chunks, &rest, &out->body, body_max);
        if (r == CHUNKS_BAD)
            return err_set(io->err, ST_INVALID, "the answer's chunks are malformed or too many"), XFER_BAD;
        consume(&io->conn->in, io->conn->in.len - rest.n);
        if (r == CHUNKS_DONE) return XFER_DONE;
        enum xfer x = fill(io, true);
        if (x != XFER_DONE) return x;
    }
}

static enum xfer read_sized(struct io *io, size_t body_max, struct reply *out) {
    if (out->length > body_max)
        return err_set(io->err, ST_INVALID, "the answer is larger than %zu bytes", body_max), XFER_BAD;
    size_t want = (size_t)out->length;
    struct buf *in = &io->conn->in;
    for (;;) {
        size_t n = in->len < want - out->body.len ? in->len : want - out->body.len;
        buf_add(&out->body, in->p, n);
        consume(in, n);
        if (out->body.len == want) return XFER_DONE;
        enum xfer x = fill(io, true);
        if (x != XFER_DONE) return x;
    }
}

enum xfer conn_exchange(struct conn *c, slice head, slice body, i64 deadline, int cancel_fd, size_t body_max,
                        struct reply *out, struct errbuf *err) {
    struct io io = {.conn = c, .deadline = deadline, .cancel_fd = cancel_fd, .err = err};
    bool early = false;
    enum xfer x = write_all(&io, head, body, &early);
    if (x == XFER_DONE) x = read_head(&io, out);
    if (x == XFER_DONE) x = out->chunked ? read_chunks(&io, body_max, out) : read_sized(&io, body_max, out);
    /* Bytes after the answer were not asked for; whatever they are, this connection is done. */
    if (early || io.leaving || c->in.len) out->close = true;
    c->reused = true;
    return x;
}

/* ---- an answer that goes on */

/* Hands over the whole lines of `body` and keeps the rest. false: enough. */
static bool take_lines(struct buf *body, conn_line *line, void *ctx) {
    size_t at = 0;
    bool more = true;
    while (more && at < body->len) {
        const char *end = memchr(body->p + at, '\n', body->len - at);
        if (!end) break;
        size_t n = (size_t)(end - (body->p + at));
        more = line(ctx, slice_of(body->p + at, n));
        at += n + 1;
    }
    consume(body, at);
    return more;
}

static enum xfer follow_body(struct io *io, struct reply *out, const struct follow *f) {
    struct chunks chunks = {0};
    for (;;) {
        slice rest = buf_slice(&io->conn->in);
        enum chunks_result r = chunks_feed(&chunks, &rest, &out->body, FOLLOW_LINE_MAX + io->conn->in.len);
        if (r == CHUNKS_BAD) return err_set(io->err, ST_INVALID, "the answer's chunks are malformed"), XFER_BAD;
        consume(&io->conn->in, io->conn->in.len - rest.n);
        if (!take_lines(&out->body, f->line, f->ctx) || r == CHUNKS_DONE) return XFER_DONE;
        if (out->body.len > FOLLOW_LINE_MAX) return err_set(io->err, ST_INVALID, "a line is too long"), XFER_BAD;
        io->deadline = clock_mono_ms() + f->silence_ms;
        enum xfer x = fill(io, true);
        if (io->leaving) return XFER_CANCELLED;
        if (x != XFER_DONE) return x;
    }
}

enum xfer conn_follow(struct conn *c, slice head, i64 deadline, int cancel_fd, const struct follow *f, size_t body_max,
                      struct reply *out, struct errbuf *err) {
    struct io io = {.conn = c, .deadline = deadline, .cancel_fd = cancel_fd, .err = err};
    bool early = false;
    enum xfer x = write_all(&io, head, SL(""), &early);
    if (x == XFER_DONE) x = read_head(&io, out);
    if (x != XFER_DONE) return x;
    if (out->status == 200 && out->chunked) return follow_body(&io, out, f);
    return out->chunked ? read_chunks(&io, body_max, out) : read_sized(&io, body_max, out);
}
