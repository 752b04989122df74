/* The sockets, and the turn.
 *
 * A turn is one pass of the loop: those who had to wait in the one before come first; the poll phase reads what the
 * sockets have and hands requests over, for as long as there is time (load.c); then, before the loop polls again,
 * end_turn() resumes connections whose answer came late, lets the handler flush its journal, and
 * writes each connection's releasable replies with one system call. It runs from a check handle (after polling) and
 * from a prepare handle (before polling), so that a reply made in a timer or a close callback does not wait for the
 * next event. What end_turn() itself stirs up is left to the next pass, which an idle handle keeps from sleeping: one
 * pass is bounded by the input it began with.
 *
 * A socket that is full gets one small piece through uv_write, only to learn when there is room again; the rest stays
 * in the connection's own buffer, where new replies can still be appended. */
#include "net/server_priv.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <uv.h>

#define BACKLOG        1024
#define TICK_MS        500u
#define KEEPALIVE_S    60
#define SERVER_HANDLES 5 /* beside the listeners */

struct sockets;

struct listener {
    uv_tcp_t tcp;
    struct sockets *sockets;
    u16 port;
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
    u32 handles; /* open ones of the server itself */
    bool listening, closing;
    void (*on_closed)(void *ctx);
    void *on_closed_ctx;
};

struct peer {
    struct http_conn conn;
    uv_tcp_t tcp;
    uv_shutdown_t shutdown;
};

struct piece {
    uv_write_t req;
    struct peer *peer;
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
    mem_free(s->read_space);
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

static void flush_all(struct sockets *s) {
    struct http_link now;
    http_link_move(&s->core.dirty, &now);
    i64 began = http_clock_ms(), most = (s->core.limits.turn_ms + 1) / 2; /* the rest leaves with the next turns */
    while (!http_link_alone(&now) && http_clock_ms() - began < most) {
        struct http_conn *c = HTTP_LINK_OF(now.next, struct http_conn, dirty);
        http_link_remove(&c->dirty);
        http_conn_flush(c);
    }
    http_link_prepend(&s->core.dirty, &now);
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
    return !http_link_alone(&core->resume) || !http_link_alone(&core->dirty);
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

/* ---- reading */

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf) {
    (void)suggested;
    struct peer *p = peer_in(h->data);
    struct sockets *s = sockets_of(p->conn.server);
    size_t room = http_late_must(&p->conn) ? 0 : http_conn_read_room(&p->conn);
    *buf = uv_buf_init(s->read_space + HTTP_HEADROOM, (unsigned)room);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf) {
    struct peer *p = peer_in(stream->data);
    struct http_conn *c = &p->conn;
    struct http_server *core = c->server;
    core->now_ms = (i64)uv_now(stream->loop);
    if (n > 0)
        http_conn_input(c, buf->base, (size_t)n, (size_t)n == buf->len);
    else if (n == UV_ENOBUFS)
        http_late_add(c); /* paused or late: found out when the socket had something */
    else if (n == UV_EOF)
        http_conn_eof(c);
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
    size_t room = http_conn_read_room(c);
    ssize_t n = recv(fd_of(c), space, room, MSG_DONTWAIT);
    if (n > 0)
        http_conn_input(c, space, (size_t)n, (size_t)n == room);
    else if (n == 0)
        http_conn_eof(c);
    else if (errno != EAGAIN && errno != EINTR)
        http_conn_drop(c);
    return n < (ssize_t)room;
}

/* ---- writing */

i64 http_socket_write(struct http_conn *c, const slice *runs, u32 count) {
    uv_buf_t bufs[2];
    CHECK(count <= 2);
    for (u32 i = 0; i < count; i++) bufs[i] = (uv_buf_t){.base = (char *)(uintptr_t)runs[i].p, .len = runs[i].n};
    int wrote = uv_try_write(stream_of(c), bufs, count);
    if (wrote == UV_EAGAIN) return 0;
    return wrote < 0 ? -1 : wrote;
}

static void on_piece_done(uv_write_t *req, int status) {
    struct piece *piece = HTTP_LINK_OF(req, struct piece, req);
    struct http_conn *c = &peer_in(piece->peer)->conn;
    mem_free(piece);
    c->server->now_ms = (i64)uv_now(sockets_of(c->server)->loop);
    http_conn_piece_done(c, status == 0);
}

bool http_socket_send(struct http_conn *c, const char *p, size_t n) {
    struct piece *piece = mem_alloc(sizeof *piece + n);
    piece->peer = peer_of(c);
    memcpy(piece->bytes, p, n);
    uv_buf_t buf = uv_buf_init(piece->bytes, (unsigned)n);
    if (uv_write(&piece->req, stream_of(c), &buf, 1, on_piece_done) == 0) return true;
    mem_free(piece);
    return false;
}

size_t http_socket_pending(const struct http_conn *c) {
    return uv_stream_get_write_queue_size(stream_of(c));
}

static void on_shutdown(uv_shutdown_t *req, int status) {
    (void)req;
    (void)status; /* a broken connection is found out by reading it */
}

void http_socket_shutdown(struct http_conn *c) {
    if (c->server->silent) return;
    uv_shutdown(&peer_of(c)->shutdown, stream_of(c), on_shutdown);
}

void http_socket_close(struct http_conn *c) {
    c->reading = false;
    uv_close((uv_handle_t *)&peer_of(c)->tcp, peer_closed);
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

static void refuse_peer(uv_handle_t *h, struct sockets *s, u16 status, const char *detail) {
    struct buf text = {0};
    s->core.stats.refused++;
    if (!s->core.silent) {
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
    http_conn_init(&p->conn, core);
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
        refuse_peer((uv_handle_t *)&p->tcp, s, status, detail);
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

hx_st http_server_bind(struct http_server *core, const char *host, u16 port, struct errbuf *err) {
    struct sockets *s = sockets_of(core);
    CHECK(s->listening && s->listener_count < HTTP_LISTENERS_MAX);
    struct listener *l = &s->listeners[s->listener_count++];
    l->sockets = s;
    CHECK(uv_tcp_init(s->loop, &l->tcp) == 0);
    l->tcp.data = l;
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
