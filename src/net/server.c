/* The sockets, and the turn.
 *
 * A turn is one pass of the loop: those who had to wait in the one before come first; the poll phase reads what the
 * sockets have and hands requests over, for as long as there is time (load.c); then, before the loop polls again,
 * end_turn() resumes connections whose answer came late, lets the handler flush its journal, and
 * writes each connection's releasable replies with one system call, small ones first. It runs from a check handle (after polling) and
 * from a prepare handle (before polling), so that a reply made in a timer or a close callback does not wait for the
 * next event. What end_turn() itself stirs up is left to the next pass, which an idle handle keeps from sleeping: one
 * pass is bounded by the input it began with.
 *
 * A socket that is full gets one small piece through uv_write, only to learn when there is room again; the rest stays
 * in the connection's own buffer, where new replies can still be appended.
 *
 * Over TLS there is one more step each way: what is read is opened before the connection gets it, and what may leave is
 * sealed, one slice a turn. Sealed bytes cannot be taken back or sealed again, so what the kernel did not take of them is
 * the piece then. Handshakes are input like any other: the turn's time is looked at before each. */
#include "net/server_priv.h"
#include "net/tls.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <uv.h>

#define BACKLOG        1024
#define TICK_MS        500u
#define KEEPALIVE_S    60
#define SERVER_HANDLES 5            /* beside the listeners */
#define BULK_LEAST     4u           /* shares of large replies that leave in a turn, whatever else does */
#define CONTROL_BYTES  (256u << 10) /* handshake, tickets, alerts: more than that nobody leaves unread in good faith */

struct sockets;

struct listener {
    uv_tcp_t tcp;
    struct sockets *sockets;
    struct tls *tls; /* NULL: plain */
    u16 port;
    bool inside;
    bool accept_waits; /* libuv holds a connection that the turn had no time to accept */
};

struct sockets {
    struct http_server core;
    uv_loop_t *loop;
    struct listener listeners[HTTP_LISTENERS_MAX];
    u32 listener_count;
    uv_prepare_t before_poll;
    uv_check_t after_poll;
    uv_idle_t awake; /* while active the loop does not sleep */
    uv_timer_t tick, grace;
    char *read_space;
    char *plain_space; /* what TLS makes of it; NULL while nobody speaks it */
    struct buf sealed; /* what is on its way to a socket, during a call */
    u32 handles;       /* open ones of the server itself */
    bool listening, closing;
    void (*on_closed)(void *ctx);
    void *on_closed_ctx;
};

struct peer {
    struct http_conn conn;
    uv_tcp_t tcp;
    uv_shutdown_t shutdown;
    struct listener *listener;
    struct tls_conn *tls; /* from the first byte on, where TLS is spoken */
    bool met;             /* it has said something */
};

struct piece {
    uv_write_t req;
    struct peer *peer;
    bool control; /* no part of a reply */
    char bytes[];
};

static struct sockets *sockets_of(const struct http_server *s) {
    return HTTP_LINK_OF(s, struct sockets, core);
}

static struct peer *peer_of(const struct http_conn *c) {
    return HTTP_LINK_OF(c, struct peer, conn);
}

/* libuv's handles give their owner back as a void *. */
static struct sockets *sockets_in(void *data) {
    struct sockets *s = data;
    http_server_check(&s->core);
    return s;
}

static struct listener *listener_in(void *data) {
    struct listener *l = data;
    sockets_in(l->sockets);
    return l;
}

static struct peer *peer_in(void *data) {
    struct peer *p = data;
    http_conn_check(&p->conn);
    return p;
}

static uv_stream_t *stream_of(const struct http_conn *c) {
    return (uv_stream_t *)&peer_of(c)->tcp;
}

/* ---- the end of everything */

static void free_if_done(struct sockets *s) {
    if (!s->closing || s->handles || s->core.stats.connections) return;
    http_core_free(&s->core);
    for (u32 i = 0; i < s->listener_count; i++) tls_release(s->listeners[i].tls);
    mem_free(s->read_space);
    mem_free(s->plain_space);
    buf_free(&s->sealed);
    mem_free(s);
}

static void server_handle_closed(uv_handle_t *h) {
    struct sockets *s = sockets_in(h->data);
    s->handles--;
    free_if_done(s);
}

static void peer_closed(uv_handle_t *h) {
    struct peer *p = peer_in(h->data);
    struct sockets *s = sockets_of(p->conn.server);
    http_conn_free(&p->conn);
    tls_conn_free(p->tls);
    mem_free(p);
    free_if_done(s);
}

static void drop_all(struct sockets *s) {
    while (!http_link_alone(&s->core.conns)) http_conn_drop(HTTP_LINK_OF(s->core.conns.next, struct http_conn, all));
}

static void listener_closed(uv_handle_t *h) {
    struct sockets *s = listener_in(h->data)->sockets;
    s->handles--;
    free_if_done(s);
}

static void stop_listening(struct sockets *s) {
    if (!s->listening) return;
    s->listening = false;
    for (u32 i = 0; i < s->listener_count; i++) uv_close((uv_handle_t *)&s->listeners[i].tcp, listener_closed);
}

void http_server_close(struct http_server *core) {
    struct sockets *s = sockets_of(core);
    if (s->closing) return;
    s->closing = true;
    stop_listening(s);
    drop_all(s);
    uv_close((uv_handle_t *)&s->before_poll, server_handle_closed);
    uv_close((uv_handle_t *)&s->after_poll, server_handle_closed);
    uv_close((uv_handle_t *)&s->awake, server_handle_closed);
    uv_close((uv_handle_t *)&s->tick, server_handle_closed);
    uv_close((uv_handle_t *)&s->grace, server_handle_closed);
}

/* ---- the turn */

static void accept_one(struct listener *l);

static void stay_awake(uv_idle_t *h) {
    (void)h;
}

static void resume_all(struct sockets *s) {
    struct http_link now;
    http_link_move(&s->core.resume, &now);
    while (!http_link_alone(&now)) {
        struct http_conn *c = HTTP_LINK_OF(now.next, struct http_conn, resume);
        http_link_remove(&c->resume);
        http_conn_resume(c);
    }
}

/* What is small leaves first, whoever else has how much: an ack does not wait for a thousand clients that read megabytes. Those
 * take turns, a share each; however many small replies there are, some of them get theirs. What there is no time for leaves
 * with the next turns. */
static void flush_all(struct sockets *s) {
    struct http_server *core = &s->core;
    struct http_link now;
    i64 began = http_clock_ms(), most = (core->limits.turn_ms + 1) / 2;
    http_link_move(&core->dirty, &now);
    while (!http_link_alone(&now) && http_clock_ms() - began < most) {
        struct http_conn *c = HTTP_LINK_OF(now.next, struct http_conn, dirty);
        http_link_remove(&c->dirty);
        if (c->out && http_out_ready(c->out) > HTTP_BULK_BYTES)
            http_link_add(&core->bulk, &c->dirty);
        else
            http_conn_flush(c);
    }
    http_link_prepend(&core->dirty, &now);
    for (u32 i = 0; !http_link_alone(&core->bulk) && (i < BULK_LEAST || http_clock_ms() - began < most); i++) {
        struct http_conn *c = HTTP_LINK_OF(core->bulk.next, struct http_conn, dirty);
        http_link_remove(&c->dirty);
        http_conn_flush(c);
    }
}

static void tell_closed(struct sockets *s) {
    void (*on_closed)(void *) = s->on_closed;
    if (!on_closed || s->core.stats.connections) return;
    s->on_closed = NULL;
    on_closed(s->on_closed_ctx);
}

static bool somebody_waits(const struct sockets *s) {
    for (u32 i = 0; i < s->listener_count; i++)
        if (s->listeners[i].accept_waits) return true;
    return false;
}

static bool is_busy(const struct sockets *s) {
    const struct http_server *core = &s->core;
    if (core->turn || somebody_waits(s) || (core->late_count && !core->paused)) return true;
    return !http_link_alone(&core->resume) || !http_link_alone(&core->dirty) || !http_link_alone(&core->bulk);
}

static void end_turn(struct sockets *s) {
    struct http_server *core = &s->core;
    core->now_ms = (i64)uv_now(s->loop);
    resume_all(s);
    if (core->turn) {
        core->turn = false;
        core->handler.on_turn_end(core->handler.ctx);
    }
    flush_all(s);
    http_relieve(core);
    tell_closed(s);
    if (s->closing) return;
    if (is_busy(s)) {
        uv_idle_start(&s->awake, stay_awake);
    } else if (uv_is_active((uv_handle_t *)&s->awake)) {
        uv_idle_stop(&s->awake);
    }
}

static void on_prepare(uv_prepare_t *h) {
    struct sockets *s = sockets_in(h->data);
    s->core.now_ms = (i64)uv_now(s->loop);
    s->core.turn_began_ms = 0;
    for (u32 i = 0; i < s->listener_count; i++)
        if (s->listeners[i].accept_waits) accept_one(&s->listeners[i]);
    http_late_serve(&s->core, false);
    end_turn(s);
}

static void on_check(uv_check_t *h) {
    struct sockets *s = sockets_in(h->data);
    http_late_serve(&s->core, true);
    end_turn(s);
}

/* Connections that wait for the stream still, or for another one, find their list again. */
static void open_gate(struct http_server *core, u16 stream) {
    struct http_link now;
    core->gates[stream] = core->released[stream];
    core->turn = true;
    http_link_move(&core->parked[stream], &now);
    while (!http_link_alone(&now)) http_conn_release(HTTP_LINK_OF(now.next, struct http_conn, parked));
}

void http_release(struct http_server *core, u16 stream, u64 position) {
    http_server_check(core);
    CHECK(stream < HTTP_STREAMS);
    if (position <= core->released[stream]) return;
    core->released[stream] = position;
    if (!core->held[stream]) open_gate(core, stream);
}

void http_hold(struct http_server *core, u16 stream, bool on) {
    http_server_check(core);
    CHECK(stream < HTTP_STREAMS);
    if (core->held[stream] == on) return;
    core->held[stream] = on;
    if (!on) {
        open_gate(core, stream);
        return;
    }
    core->gates[stream] = 0;
    struct http_link *next;
    for (struct http_link *l = core->conns.next; l != &core->conns; l = next) {
        next = l->next;
        http_conn_hold(HTTP_LINK_OF(l, struct http_conn, all));
    }
}

/* ---- TLS */

static bool send_piece(struct peer *p, slice bytes, bool control);

/* What the kernel takes of it leaves now. Returns the rest; *broken: nothing more will. */
static slice try_write(struct peer *p, slice bytes, bool *broken) {
    uv_buf_t buf = {.base = (char *)(uintptr_t)bytes.p, .len = bytes.n};
    int n = uv_try_write((uv_stream_t *)&p->tcp, &buf, 1);
    *broken = n < 0 && n != UV_EAGAIN;
    return n > 0 ? slice_of(bytes.p + n, bytes.n - (size_t)n) : bytes;
}

/* What TLS itself has to say leaves at once, or as soon as it can. */
static void send_control(struct peer *p) {
    struct buf *sealed = &sockets_of(p->conn.server)->sealed;
    bool broken = false;
    slice rest = buf_slice(sealed);
    if (rest.n && !p->conn.server->silent) {
        rest = try_write(p, rest, &broken);
        broken |= uv_stream_get_write_queue_size((uv_stream_t *)&p->tcp) > CONTROL_BYTES;
        broken |= rest.n && !broken && !send_piece(p, rest, true);
    }
    buf_reset(sealed);
    if (broken) http_conn_drop(&p->conn);
}

static void count_handshake(struct peer *p, bool was_handshaking, enum tls_state state) {
    struct http_server_stats *stats = &p->conn.server->stats;
    if (!was_handshaking) return;
    bool agreed = tls_established(p->tls);
    stats->tls_handshakes += agreed;
    stats->tls_resumed += agreed && tls_resumed(p->tls);
    stats->tls_failed += !agreed && state != TLS_OPEN;
}

static void open_sealed(struct peer *p, slice sealed, bool more) {
    struct http_conn *c = &p->conn;
    struct sockets *s = sockets_of(c->server);
    char *plain = s->plain_space + HTTP_HEADROOM;
    size_t n;
    bool was_handshaking = c->handshaking;
    enum tls_state state = tls_open(p->tls, sealed, plain, &n, &s->sealed);
    send_control(p);
    if (c->dead) return;
    count_handshake(p, was_handshaking, state);
    http_conn_opened(c, tls_held(p->tls), tls_established(p->tls), more);
    if (n) http_conn_input(c, plain, n, more);
    if (c->dead || state == TLS_OPEN) return;
    if (state == TLS_ENDED)
        http_conn_eof(c);
    else if (tls_established(p->tls))
        http_conn_drop(c);
    else
        http_conn_stop(c); /* let it read why */
}

/* The first byte tells what is spoken. TLS where there is none is counted, and answered like any head that is not one. */
static bool meet(struct peer *p, u8 first) {
    struct http_conn *c = &p->conn;
    bool hello = first == TLS_FIRST_BYTE;
    p->met = true;
    if (hello && c->secure) p->tls = tls_accept(p->listener->tls);
    if (hello == c->secure && (!hello || p->tls)) return true;
    c->server->stats.tls_failed++;
    if (!c->secure) return true;
    if (first >= 'A' && first <= 'Z')
        http_conn_misunderstood(c, "this address speaks TLS: ask for https://");
    else
        http_conn_drop(c);
    return false;
}

static void received(struct peer *p, char *bytes, size_t n, bool more) {
    if (!p->met && !meet(p, (u8)bytes[0])) return;
    if (p->tls && !p->conn.closing)
        open_sealed(p, slice_of(bytes, n), more);
    else
        http_conn_input(&p->conn, bytes, n, more);
}

/* Over TLS an end is said. One that is not may be somebody else's doing: whatever was under way is broken off. */
static void ended(struct peer *p) {
    struct http_conn *c = &p->conn;
    if (!c->secure || c->closing) {
        http_conn_eof(c);
        return;
    }
    c->server->stats.tls_cut += !c->handshaking;
    c->server->stats.tls_failed += c->handshaking && p->met;
    http_conn_drop(c);
}

/* ---- reading */

static size_t read_room(const struct http_conn *c) {
    size_t room = http_conn_read_room(c);
    return c->secure && room > TLS_READ_BYTES ? TLS_READ_BYTES : room;
}

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf) {
    (void)suggested;
    struct peer *p = peer_in(h->data);
    struct sockets *s = sockets_of(p->conn.server);
    size_t room = http_late_must(&p->conn) ? 0 : read_room(&p->conn);
    *buf = uv_buf_init(s->read_space + HTTP_HEADROOM, (unsigned)room);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf) {
    struct peer *p = peer_in(stream->data);
    struct http_conn *c = &p->conn;
    struct http_server *core = c->server;
    core->now_ms = (i64)uv_now(stream->loop);
    if (n > 0)
        received(p, buf->base, (size_t)n, (size_t)n == buf->len);
    else if (n == UV_ENOBUFS)
        http_late_add(c); /* paused or late: found out when the socket had something */
    else if (n == UV_EOF)
        ended(p);
    else if (n < 0)
        http_conn_drop(c);
}

/* Who stands in line is not read meanwhile. */
void http_socket_reading(struct http_conn *c, bool on) {
    c->wants_reading = on;
    on = on && http_link_alone(&c->late);
    if (on == c->reading) return;
    c->reading = on;
    if (on)
        uv_read_start(stream_of(c), on_alloc, on_read);
    else
        uv_read_stop(stream_of(c));
}

void http_server_pause_reading(struct http_server *core, bool paused) {
    core->paused = paused;
}

static int fd_of(const struct http_conn *c) {
    uv_os_fd_t fd;
    return uv_fileno((uv_handle_t *)&peer_of(c)->tcp, &fd) == 0 ? fd : -1;
}

/* An error counts as what was asked for: whoever goes on finds it. */
static bool socket_has(const struct http_conn *c, short events) {
    struct pollfd ask = {.fd = fd_of(c), .events = events};
    return ask.fd < 0 || poll(&ask, 1, 0) > 0;
}

bool http_socket_readable(struct http_conn *c) {
    return socket_has(c, POLLIN);
}

bool http_socket_writable(struct http_conn *c) {
    return socket_has(c, POLLOUT);
}

bool http_socket_peer_closed(struct http_conn *c) {
    return socket_has(c, POLLRDHUP);
}

bool http_socket_read(struct http_conn *c) {
    char *space = sockets_of(c->server)->read_space + HTTP_HEADROOM;
    size_t room = read_room(c);
    ssize_t n = recv(fd_of(c), space, room, MSG_DONTWAIT);
    if (n > 0)
        received(peer_of(c), space, (size_t)n, (size_t)n == room);
    else if (n == 0)
        ended(peer_of(c));
    else if (errno != EAGAIN && errno != EINTR)
        http_conn_drop(c);
    return n < (ssize_t)room;
}

/* ---- writing */

/* All that is sealed leaves, or is the piece. */
static i64 write_sealed(struct peer *p, const slice *runs, u32 count) {
    struct buf *sealed = &sockets_of(p->conn.server)->sealed;
    size_t left = TLS_SLICE;
    bool broken = false;
    for (u32 i = 0; i < count && left && !broken; i++) {
        slice run = slice_of(runs[i].p, runs[i].n < left ? runs[i].n : left);
        broken = !tls_seal(p->tls, run, sealed);
        left -= run.n;
    }
    slice rest = broken ? (slice){0} : try_write(p, buf_slice(sealed), &broken);
    if (rest.n) {
        p->conn.piece = TLS_SLICE - left;
        broken |= !broken && !send_piece(p, rest, false);
    }
    buf_reset(sealed);
    return broken ? -1 : rest.n ? 0 : (i64)(TLS_SLICE - left);
}

i64 http_socket_write(struct http_conn *c, const slice *runs, u32 count) {
    uv_buf_t bufs[2];
    CHECK(count <= 2);
    if (peer_of(c)->tls) return write_sealed(peer_of(c), runs, count);
    for (u32 i = 0; i < count; i++) bufs[i] = (uv_buf_t){.base = (char *)(uintptr_t)runs[i].p, .len = runs[i].n};
    int wrote = uv_try_write(stream_of(c), bufs, count);
    if (wrote == UV_EAGAIN) return 0;
    return wrote < 0 ? -1 : wrote;
}

static void on_piece_done(uv_write_t *req, int status) {
    struct piece *piece = HTTP_LINK_OF(req, struct piece, req);
    struct http_conn *c = &peer_in(piece->peer)->conn;
    bool control = piece->control;
    mem_free(piece);
    c->server->now_ms = (i64)uv_now(sockets_of(c->server)->loop);
    if (!control)
        http_conn_piece_done(c, status == 0);
    else if (status != 0)
        http_conn_drop(c);
}

static bool send_piece(struct peer *p, slice bytes, bool control) {
    struct piece *piece = mem_alloc(sizeof *piece + bytes.n);
    piece->peer = p;
    piece->control = control;
    memcpy(piece->bytes, bytes.p, bytes.n);
    uv_buf_t buf = uv_buf_init(piece->bytes, (unsigned)bytes.n);
    if (uv_write(&piece->req, (uv_stream_t *)&p->tcp, &buf, 1, on_piece_done) == 0) return true;
    mem_free(piece);
    return false;
}

bool http_socket_send(struct http_conn *c, const char *p, size_t n) {
    return send_piece(peer_of(c), slice_of(p, n), false);
}

size_t http_socket_pending(const struct http_conn *c) {
    return peer_of(c)->tls ? 0 : uv_stream_get_write_queue_size(stream_of(c));
}

static void on_shutdown(uv_shutdown_t *req, int status) {
    (void)req;
    (void)status; /* a broken connection is found out by reading it */
}

/* Over TLS the other side is told that this was all. */
static void say_end(struct peer *p) {
    if (!p->tls || p->conn.server->silent) return;
    tls_end(p->tls, &sockets_of(p->conn.server)->sealed);
    send_control(p);
}

void http_socket_shutdown(struct http_conn *c) {
    if (c->server->silent) return;
    say_end(peer_of(c));
    if (!c->dead) uv_shutdown(&peer_of(c)->shutdown, stream_of(c), on_shutdown);
}

/* What breaks off in the middle must not look like an end. A feed that nobody reads is reset: the kernel would keep megabytes of it. */
void http_socket_close(struct http_conn *c) {
    struct peer *p = peer_of(c);
    c->reading = false;
    if (!c->out && !c->awaiting && !c->lingering) say_end(p);
    if (!c->unread || uv_tcp_close_reset(&p->tcp, peer_closed) != 0) uv_close((uv_handle_t *)&p->tcp, peer_closed);
}

/* ---- accepting */

static void address_of(const uv_tcp_t *tcp, u8 out[HTTP_ADDRESS_BYTES]) {
    struct sockaddr_storage peer = {0};
    int size = (int)sizeof peer;
    memset(out, 0, HTTP_ADDRESS_BYTES);
    if (uv_tcp_getpeername(tcp, (struct sockaddr *)&peer, &size) != 0) return;
    if (peer.ss_family == AF_INET6) {
        memcpy(out, &((struct sockaddr_in6 *)&peer)->sin6_addr, HTTP_ADDRESS_BYTES);
        return;
    }
    out[10] = out[11] = 0xFF;
    memcpy(out + 12, &((struct sockaddr_in *)&peer)->sin_addr, 4);
}

static void refuse_peer(uv_handle_t *h, struct sockets *s, bool secure, u16 status, const char *detail) {
    struct buf text = {0};
    s->core.stats.refused++;
    if (!s->core.silent && !secure) { /* before the handshake there are no words */
        struct http_reply reply = http_reply_error(&s->core, status, detail);
        http_reply_put(&text, &reply, SL("Connection: close\r\n"), true);
        uv_buf_t buf = {.base = text.p, .len = text.len};
        uv_try_write((uv_stream_t *)h, &buf, 1);
    }
    buf_free(&text);
}

static void accept_one(struct listener *l) {
    struct sockets *s = l->sockets;
    struct http_server *core = &s->core;
    l->accept_waits = false;
    if (!s->listening) return;
    struct peer *p = mem_zalloc(sizeof *p);
    CHECK(uv_tcp_init(s->loop, &p->tcp) == 0);
    p->tcp.data = p;
    p->listener = l;
    http_conn_init(&p->conn, core);
    p->conn.secure = p->conn.handshaking = l->tls != NULL;
    p->conn.inside = l->inside;
    if (uv_accept((uv_stream_t *)&l->tcp, (uv_stream_t *)&p->tcp) != 0) {
        http_conn_drop(&p->conn);
        return;
    }
    core->stats.accepted++;
    u8 address[HTTP_ADDRESS_BYTES];
    u16 status;
    const char *detail;
    address_of(&p->tcp, address);
    http_address_join(&p->conn, address);
    if (!http_place_find(&p->conn, &status, &detail)) {
        refuse_peer((uv_handle_t *)&p->tcp, s, l->tls != NULL, status, detail);
        http_conn_drop(&p->conn);
        return;
    }
    uv_tcp_nodelay(&p->tcp, 1);
    uv_tcp_keepalive(&p->tcp, 1, KEEPALIVE_S);
    http_conn_start(&p->conn);
}

static void on_connection(uv_stream_t *stream, int status) {
    struct listener *l = listener_in(stream->data);
    struct sockets *s = l->sockets;
    s->core.now_ms = (i64)uv_now(s->loop);
    if (status != 0) /* when descriptors run out libuv itself turns clients away, with a spare one it keeps */
        s->core.stats.refused++;
    else if (http_turn_spent(&s->core))
        l->accept_waits = true; /* libuv accepts no further one until this one is taken */
    else
        accept_one(l);
}

/* ---- the clock */

/* Looking at each connection twice a second costs less than keeping them sorted at every request would. */
static void on_tick(uv_timer_t *t) {
    struct sockets *s = sockets_in(t->data);
    s->core.now_ms = (i64)uv_now(s->loop);
    struct http_link *next;
    for (struct http_link *l = s->core.conns.next; l != &s->core.conns && !s->closing; l = next) {
        next = l->next;
        http_conn_tick(HTTP_LINK_OF(l, struct http_conn, all));
    }
}

static u32 tick_ms(const struct http_limits *l) {
    u32 least = l->head_ms < l->idle_ms ? l->head_ms : l->idle_ms;
    if (l->write_ms < least) least = l->write_ms;
    if (l->body_grace_ms < least) least = l->body_grace_ms;
    u32 ms = least / 4 + 1;
    return ms < TICK_MS ? ms : TICK_MS;
}

static void on_grace_over(uv_timer_t *t) {
    drop_all(sockets_in(t->data));
}

void http_server_drain(struct http_server *core, u32 grace_ms, void (*on_closed)(void *ctx), void *ctx) {
    struct sockets *s = sockets_of(core);
    s->on_closed = on_closed;
    s->on_closed_ctx = ctx;
    if (core->draining) return;
    core->draining = true;
    core->turn = true;
    stop_listening(s);
    struct http_link *next;
    for (struct http_link *l = core->conns.next; l != &core->conns; l = next) {
        next = l->next;
        http_conn_drain(HTTP_LINK_OF(l, struct http_conn, all));
    }
    uv_timer_start(&s->grace, on_grace_over, grace_ms, 0);
}

/* What libuv already holds must not leave either: closing the handle cancels it. */
void http_server_silence(struct http_server *core) {
    core->silent = true;
    struct http_link *next;
    for (struct http_link *l = core->conns.next; l != &core->conns; l = next) {
        next = l->next;
        struct http_conn *c = HTTP_LINK_OF(l, struct http_conn, all);
        if (c->piece) http_conn_drop(c);
    }
}

/* ---- opening */

static hx_st status_of(int rc) {
    return rc == UV_EADDRINUSE ? ST_BUSY : rc == UV_EACCES ? ST_DENIED : ST_IO;
}

/* libuv keeps an address in use to itself until it is asked for the name. */
static hx_st bind_to(struct listener *l, const char *host, u16 port, struct errbuf *err) {
    struct sockaddr_storage address = {0};
    struct sockaddr *where = (struct sockaddr *)&address;
    if (uv_ip4_addr(host, port, (struct sockaddr_in *)where) != 0 &&
        uv_ip6_addr(host, port, (struct sockaddr_in6 *)where) != 0)
        return err_set(err, ST_INVALID, "%s is not a numeric address", host);
    int rc = uv_tcp_bind(&l->tcp, where, 0), size = (int)sizeof address;
    if (rc == 0) rc = uv_tcp_getsockname(&l->tcp, where, &size);
    if (rc != 0)
        return err_set(err, status_of(rc), "cannot listen on %s port %u: %s", host, (unsigned)port, uv_strerror(rc));
    u16 port_be = where->sa_family == AF_INET6 ? ((struct sockaddr_in6 *)where)->sin6_port
                                               : ((struct sockaddr_in *)where)->sin_port;
    l->port = ntohs(port_be);
    return ST_OK;
}

static void start_handles(struct sockets *s) {
    uv_loop_t *loop = s->loop;
    CHECK(uv_prepare_init(loop, &s->before_poll) == 0 && uv_check_init(loop, &s->after_poll) == 0);
    CHECK(uv_idle_init(loop, &s->awake) == 0);
    CHECK(uv_timer_init(loop, &s->tick) == 0 && uv_timer_init(loop, &s->grace) == 0);
    s->before_poll.data = s->after_poll.data = s->awake.data = s->tick.data = s->grace.data = s;
    s->handles = SERVER_HANDLES;
    s->listening = true;
    uv_prepare_start(&s->before_poll, on_prepare);
    uv_check_start(&s->after_poll, on_check);
    u32 ms = tick_ms(&s->core.limits);
    uv_timer_start(&s->tick, on_tick, ms, ms);
}

struct http_server *http_server_new(struct uv_loop_s *loop, const struct http_limits *limits,
                                    const struct http_handler *handler) {
    struct sockets *s = mem_zalloc(sizeof *s);
    http_core_init(&s->core, limits, handler);
    s->loop = loop;
    s->core.now_ms = (i64)uv_now(loop);
    s->read_space = mem_alloc(HTTP_HEADROOM + HTTP_READ_BYTES);
    start_handles(s);
    return &s->core;
}

static void speak_tls(struct listener *l, struct tls *tls) {
    struct sockets *s = l->sockets;
    if (!s->plain_space) s->plain_space = mem_alloc(HTTP_HEADROOM + TLS_PLAIN_MAX);
    l->tls = tls_retain(tls);
}

void http_server_secure(struct http_server *core, u32 i, struct tls *tls) {
    struct sockets *s = sockets_of(core);
    CHECK(i < s->listener_count && s->listeners[i].tls && tls);
    tls_release(s->listeners[i].tls);
    speak_tls(&s->listeners[i], tls);
}

void http_server_inside(struct http_server *core, u32 i) {
    struct sockets *s = sockets_of(core);
    CHECK(i < s->listener_count);
    s->listeners[i].inside = true;
}

hx_st http_server_bind(struct http_server *core, const char *host, u16 port, struct tls *tls, struct errbuf *err) {
    struct sockets *s = sockets_of(core);
    CHECK(s->listening && s->listener_count < HTTP_LISTENERS_MAX);
    struct listener *l = &s->listeners[s->listener_count++];
    l->sockets = s;
    CHECK(uv_tcp_init(s->loop, &l->tcp) == 0);
    l->tcp.data = l;
    if (tls) speak_tls(l, tls);
    s->handles++;
    return bind_to(l, host, port, err);
}

hx_st http_server_listen(struct http_server *core, struct errbuf *err) {
    struct sockets *s = sockets_of(core);
    for (u32 i = 0; i < s->listener_count; i++) {
        struct listener *l = &s->listeners[i];
        int rc = uv_listen((uv_stream_t *)&l->tcp, BACKLOG, on_connection);
        if (rc != 0)
            return err_set(err, status_of(rc), "cannot listen on port %u: %s", (unsigned)l->port, uv_strerror(rc));
    }
    return ST_OK;
}

u16 http_server_port(const struct http_server *core, u32 i) {
    const struct sockets *s = sockets_of(core);
    CHECK(i < s->listener_count);
    return s->listeners[i].port;
}

void http_server_per_address(struct http_server *core, u32 connections) {
    core->limits.per_address = connections;
}

void http_server_stats_get(const struct http_server *core, struct http_server_stats *out) {
    *out = core->stats;
    out->buffered = core->buffered;
}
