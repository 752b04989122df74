/* One connection: bytes in, requests out, replies in, and when to close.
 *
 * Input. Requests are parsed where they lie: in the server's shared read buffer, or in the connection's own `in` when
 * part of them came with an earlier read. Whatever is left unfinished is kept in `in`. A request whose body is still
 * arriving keeps its head there, unparsed, and parses it once more when the body is complete: the head's slices point
 * into memory that may have moved, and remembering 100 fields for each connection would cost more than it saves.
 *
 * One request at a time is being answered (`awaiting`). Answered inside on_request, the loop goes on with the next one;
 * answered later, the loop stops, and http_respond puts the connection on the server's `resume` list, because calling
 * on_request from inside http_respond would re-enter a handler in the middle of its work.
 *
 * Closing goes one way: `closing` (nothing is parsed any more, what is queued still leaves) -> `lingering` (our side is
 * shut down, input is thrown away until the peer closes too, so that no reset destroys the last reply on its way) ->
 * `dead` (the handle is closing, every promise about receipts and waiting requests has been kept). */
#include "net/server_priv.h"

#define LINGER_MS        2000
#define LINGER_BYTES     (8u << 20)
#define SPARE_MAX        64u          /* emptied output buffers kept for the next connection */
#define SPARE_BYTES      (256u << 10) /* larger ones are given back */
#define SCRATCH_BYTES    (1u << 20)
#define HEAD_RETRY_BYTES 4096u

static size_t pending(const struct http_conn *c) {
    return c->in.len - c->in_at;
}

static size_t unsent(const struct http_conn *c) {
    return c->out ? http_out_unsent(c->out) : 0;
}

/* It is the client's turn to read, or the journal's to sync: nothing more is answered before. */
static bool full(const struct http_conn *c) {
    return c->out && (c->out->body || http_out_unsent(c->out) >= HTTP_UNSENT_PAUSE);
}

static bool may_parse(const struct http_conn *c) {
    return c->phase == HTTP_PHASE_HEAD && !c->awaiting && !c->closing && !c->dead && !full(c);
}

/* ---- the server's share */

static u32 or_default(u32 value, u32 fallback) {
    return value ? value : fallback;
}

void http_core_init(struct http_server *s, const struct http_limits *limits, const struct http_handler *handler) {
    s->magic = HTTP_SERVER_MAGIC;
    s->handler = *handler;
    if (limits) s->limits = *limits;
    s->limits.connections_max = or_default(s->limits.connections_max, 10000);
    if (s->limits.buffered_max == 0) s->limits.buffered_max = (u64)256 << 20;
    s->limits.head_ms = or_default(s->limits.head_ms, 10000);
    s->limits.idle_ms = or_default(s->limits.idle_ms, 60000);
    s->limits.write_ms = or_default(s->limits.write_ms, 60000);
    s->limits.body_bytes_per_s = or_default(s->limits.body_bytes_per_s, 500);
    s->limits.body_grace_ms = or_default(s->limits.body_grace_ms, 5000);
    s->limits.turn_ms = or_default(s->limits.turn_ms, 16);
    http_link_init(&s->conns);
    for (u32 i = 0; i < HTTP_STREAMS; i++) http_link_init(&s->parked[i]);
    http_link_init(&s->dirty);
    http_link_init(&s->bulk);
    http_link_init(&s->resume);
    for (u32 i = 0; i < 2; i++) http_link_init(&s->late[i]);
    http_link_init(&s->idle);
    http_link_init(&s->reserve);
    s->addresses = http_addresses_new(s->limits.connections_max);
}

void http_core_free(struct http_server *s) {
    CHECK(http_link_alone(&s->conns) && s->live == 0 &&
          s->buffered == 0); /* else somebody's bytes were counted wrong */
    s->magic = 0;
    while (s->spare) {
        struct http_out *o = s->spare;
        s->spare = o->next_spare;
        http_out_free(o);
    }
    http_addresses_free(s->addresses);
    buf_free(&s->chunk_body);
    buf_free(&s->error_body);
}

static struct http_out *take_out(struct http_server *s) {
    struct http_out *o = s->spare;
    if (!o) return http_out_new();
    s->spare = o->next_spare;
    s->spare_count--;
    return o;
}

static void give_back_out(struct http_server *s, struct http_out *o) {
    if (s->spare_count >= SPARE_MAX || o->bytes.cap > SPARE_BYTES) {
        http_out_free(o);
        return;
    }
    http_out_reset(o);
    o->next_spare = s->spare;
    s->spare = o;
    s->spare_count++;
}

/* ---- a connection's life */

void http_conn_init(struct http_conn *c, struct http_server *s) {
    *c = (struct http_conn){.magic = HTTP_CONN_MAGIC, .server = s, .since_ms = s->now_ms, .progress_ms = s->now_ms};
    http_link_init(&c->all);
    http_link_init(&c->parked);
    http_link_init(&c->dirty);
    http_link_init(&c->resume);
    http_link_init(&c->late);
    http_link_init(&c->idle);
    http_link_init(&c->mine);
    http_link_init(&c->reserve);
    http_link_add(&s->conns, &c->all);
    s->stats.connections++;
    s->live++;
}

void http_conn_free(struct http_conn *c) {
    http_conn_check(c);
    CHECK(c->dead && c->server->stats.connections > 0);
    c->magic = 0;
    c->server->stats.connections--;
    buf_free(&c->in);
    buf_free(&c->body);
    CHECK(!c->out && c->counted == 0);
}

/* Keep the server's sum true. A piece is a copy, and there twice. A shared body is counted with the first reply that waits to send it, and until none does. */
static void account(struct http_conn *c) {
    struct http_server *s = c->server;
    size_t own = c->in.len + c->body.len + c->unopened + c->kept, held = c->dead ? 0 : own;
    if (!c->dead && c->out) held += c->out->bytes.len - c->out->sent + c->piece;
    CHECK(s->buffered >= c->counted);
    s->buffered += held - c->counted;
    c->counted = held;
}

static void share_body(struct http_conn *c, struct http_body *body) {
    http_out_share(c->out, body);
    if (body->queued == 1) c->server->buffered += body->bytes.len;
}

/* The output is empty, or given up. */
static void end_out(struct http_conn *c) {
    struct http_server *s = c->server;
    struct http_out *o = c->out;
    if (o->body && o->body->queued == 1) s->buffered -= o->body->bytes.len;
    c->out = NULL;
    if (c->dead)
        http_out_free(o);
    else
        give_back_out(s, o);
}

static void clear_input(struct http_conn *c) {
    buf_free(&c->in);
    buf_free(&c->body);
    c->in_at = 0;
}

static void tell_receipts(struct http_conn *c, size_t upto, bool written) {
    struct http_server *s = c->server;
    u64 receipt;
    while (c->out && (receipt = http_out_receipt(c->out, upto)) != 0) {
        s->handler.on_receipt(s->handler.ctx, receipt, written);
        if (!written) s->turn = true;
    }
}

static void tell_gone(struct http_conn *c) {
    struct http_server *s = c->server;
    c->awaiting = c->feeding = false;
    s->turn = true;
    s->handler.on_gone(s->handler.ctx, c);
}

/* Memory stays until the handle is closed: a handler further up the stack may still be looking at it. */
void http_conn_drop(struct http_conn *c) {
    if (c->dead) return;
    size_t taken = c->piece - (c->piece ? http_socket_pending(c) : 0);
    c->piece = 0;
    c->dead = true;
    http_link_remove(&c->all);
    http_link_remove(&c->parked);
    http_link_remove(&c->dirty);
    http_link_remove(&c->resume);
    http_late_remove(c);
    http_link_remove(&c->idle);
    CHECK(c->server->live > 0);
    c->server->live--;
    http_place_free(c);
    http_socket_close(c);
    if (c->out) {
        http_out_left(c->out, taken);
        tell_receipts(c, c->out->sent, true);
        tell_receipts(c, SIZE_MAX, false);
        end_out(c);
    }
    account(c);
    if (c->awaiting && !c->in_handler) tell_gone(c);
    http_address_leave(c);
}

/* Everything has been said: shut down our side and wait a little for the peer to do the same. */
static void finish(struct http_conn *c) {
    if (c->eof) {
        http_conn_drop(c);
        return;
    }
    if (c->lingering) return;
    c->lingering = true;
    c->since_ms = c->server->now_ms;
    http_socket_shutdown(c);
}

/* At the end of input: whole requests that still wait for their turn are answered, an unfinished one is forgotten. */
static bool nothing_to_parse(const struct http_conn *c) {
    if (c->phase != HTTP_PHASE_HEAD) return true;
    return may_parse(c) && http_link_alone(&c->resume) && !c->cut;
}

bool http_conn_idle(const struct http_conn *c) {
    if (c->phase != HTTP_PHASE_HEAD || c->awaiting || c->out || c->closing || c->eof || c->cut) return false;
    return http_link_alone(&c->late) && http_link_alone(&c->resume);
}

/* Who stays idle keeps its place; the next request gives it another. What is in the reserve gives no place to anybody. */
void http_conn_note_idle(struct http_conn *c) {
    if (http_conn_idle(c) && !http_place_lent(c))
        http_link_add(&c->server->idle, &c->idle);
    else
        http_link_remove(&c->idle);
}

/* After anything that happened: is it time to close, and is there a reason to read or not to? */
static void review(struct http_conn *c) {
    if (c->dead) return;
    if (c->eof && nothing_to_parse(c)) c->closing = true;
    if (c->closing && !c->in_handler) {
        clear_input(c);
        if (!c->awaiting && unsent(c) == 0) {
            finish(c);
            if (c->dead) return;
        }
    }
    bool want = !c->eof;
    if (c->closing)
        want = want && c->discarded < LINGER_BYTES;
    else if (c->awaiting)
        want = want && pending(c) < HTTP_WAITING_BYTES;
    else
        want = want && (!full(c) || c->phase != HTTP_PHASE_HEAD);
    http_socket_reading(c, want);
    account(c);
    http_conn_note_idle(c);
}

void http_conn_start(struct http_conn *c) {
    review(c);
}

void http_conn_opened(struct http_conn *c, size_t unopened, bool agreed, bool more) {
    if (c->handshaking && agreed) c->since_ms = c->server->now_ms;
    c->handshaking = !agreed;
    c->talkative = more;
    c->unopened = unopened;
    account(c);
}

void http_conn_stop(struct http_conn *c) {
    c->closing = true;
    review(c);
}

/* ---- replies */

/* Begin appending to the connection's output; end with queue_end. */
static struct buf *queue_begin(struct http_conn *c) {
    if (!c->out) {
        c->out = take_out(c->server);
        c->progress_ms = c->server->now_ms;
    }
    return &c->out->bytes;
}

static bool owed(const struct http_conn *c) {
    return c->out && (c->piece || http_out_ready(c->out));
}

/* What is ready leaves at the end of the turn; what is not waits in the list of the stream that it waits for first. */
static void arrange_out(struct http_conn *c) {
    struct http_server *s = c->server;
    struct http_out *o = c->out;
    if (http_out_parked(o)) http_link_add(&s->parked[http_out_stream(o)], &c->parked);
    if (http_out_ready(o)) http_link_add(&s->dirty, &c->dirty);
}

static void queue_end(struct http_conn *c, struct http_after after, u64 receipt, struct http_body *shared) {
    struct http_server *s = c->server;
    bool was_owed = owed(c);
    http_out_span(c->out, after, receipt);
    if (shared) share_body(c, shared);
    http_out_release(c->out, s->gates);
    arrange_out(c);
    if (!was_owed) c->progress_ms = s->now_ms;
    s->turn = true;
}

void http_conn_release(struct http_conn *c) {
    bool was_owed = owed(c);
    http_out_release(c->out, c->server->gates);
    if (!was_owed) c->progress_ms = c->server->now_ms;
    http_link_remove(&c->parked);
    arrange_out(c);
}

/* What libuv holds for a full socket cannot be called back, but closing the handle cancels it: better no reply than one
 * that should not have left. */
void http_conn_hold(struct http_conn *c) {
    if (!c->out) return;
    http_out_hold(c->out, c->server->gates);
    if (c->piece > http_out_ready(c->out)) {
        http_conn_drop(c);
        return;
    }
    http_link_remove(&c->parked);
    arrange_out(c);
}

/* The body to refer to instead of copying it. */
static struct http_body *shared_body(const struct http_conn *c, const struct http_reply *reply) {
    if (!reply->shared || reply->body.n < HTTP_SHARED_BYTES || c->head_only || http_reply_bodiless(reply)) return NULL;
    CHECK(reply->body.p == reply->shared->bytes.p && reply->body.n == reply->shared->bytes.len);
    return reply->shared;
}

/* A buffer that was made for the body can become the connection's, as long as it is little more than the bytes accounted for. */
static bool may_take(const struct http_conn *c, const struct http_reply *reply) {
    const struct buf *made = reply->made;
    if (!made || reply->body.n / 2 < HTTP_HEAD_ROOM || c->head_only || http_reply_bodiless(reply)) return false;
    CHECK(reply->body.p == made->p + HTTP_HEAD_ROOM && reply->body.n == made->len - HTTP_HEAD_ROOM);
    return made->cap <= SPARE_BYTES && made->cap / 4 <= reply->body.n;
}

static void queue_reply(struct http_conn *c, const struct http_reply *reply) {
    static const slice none = {0}, close = SL("Connection: close\r\n"), keep = SL("Connection: keep-alive\r\n");
    struct http_server *s = c->server;
    bool last = reply->close || !c->keep_alive || s->draining, made = may_take(c, reply);
    struct http_body *shared = shared_body(c, reply);
    struct buf *b = queue_begin(c);
    if (reply->feed && !c->http11) last = true; /* its end is the connection's */
    slice connection = last ? close : c->http11 ? none : keep;
    if (reply->feed)
        http_reply_put_feed(b, reply, connection, c->http11);
    else
        http_reply_put(b, reply, connection, !c->head_only && !shared && !made);
    if (made && !http_out_take(c->out, reply->made, HTTP_HEAD_ROOM)) buf_slice_add(b, reply->body);
    queue_end(c, reply->after, reply->receipt, shared);
    s->stats.replies++;
    if (!last) return;
    c->keep_alive = false;
    if (!c->feeding) c->closing = true;
}

/* The next request's turn. */
static void answered(struct http_conn *c) {
    c->awaiting = c->feeding = false;
    c->since_ms = c->server->now_ms;
    if (c->kept) http_conn_keeps(c, 0);
    if (!c->in_handler) http_link_add(&c->server->resume, &c->resume);
}

void http_respond(struct http_conn *c, const struct http_reply *reply) {
    http_conn_check(c);
    if (c->dead) {
        c->awaiting = c->awaiting && reply->feed; /* whoever means to go on hears that it is gone */
        return;
    }
    CHECK(c->awaiting && !c->feeding);
    c->feeding = reply->feed && !c->head_only;
    queue_reply(c, reply);
    if (!c->feeding) answered(c);
}

bool http_feed(struct http_conn *c, slice bytes, struct http_after after) {
    http_conn_check(c);
    CHECK(c->dead || c->feeding);
    if (bytes.n == 0 && !c->dead) return true; /* an empty chunk would be the end */
    if (c->dead || unsent(c) + bytes.n > HTTP_FEED_UNSENT_MAX) {
        c->awaiting = c->feeding = false;
        c->unread = true;
        c->server->stats.timeouts += !c->dead;
        http_conn_drop(c);
        return false;
    }
    struct buf *b = queue_begin(c);
    if (c->http11) buf_printf(b, "%zx\r\n", bytes.n);
    buf_slice_add(b, bytes);
    if (c->http11) buf_lit(b, "\r\n");
    queue_end(c, after, 0, NULL);
    account(c);
    return true;
}

void http_feed_end(struct http_conn *c) {
    http_conn_check(c);
    CHECK(c->dead || c->feeding);
    if (!c->dead && c->http11) {
        buf_lit(queue_begin(c), "0\r\n\r\n");
        queue_end(c, (struct http_after){0}, 0, NULL);
    }
    if (!c->keep_alive || c->server->draining) c->closing = true;
    answered(c);
}

void http_conn_set_user(struct http_conn *c, void *user) {
    http_conn_check(c);
    c->user = user;
}

void *http_conn_user(struct http_conn *c) {
    http_conn_check(c);
    return c->user;
}

void http_conn_keeps(struct http_conn *c, size_t bytes) {
    http_conn_check(c);
    c->kept = bytes;
    account(c);
}

/* Answer an error of framing, size or time, after which this connection's bytes mean nothing any more. */
static void fail(struct http_conn *c, u16 status, const char *detail) {
    struct http_reply reply = http_reply_error(c->server, status, detail);
    queue_reply(c, &reply);
}

static struct http_use *use_of(const struct http_conn *c) {
    return c->address ? &c->address->use : NULL;
}

void http_conn_misunderstood(struct http_conn *c, const char *detail) {
    c->secure = c->handshaking = c->inside = c->keep_alive = false;
    fail(c, 400, detail);
    review(c);
}

/* ---- requests */

/* Keep what could not be handled yet. */
static void keep_input(struct http_conn *c, slice rest) {
    if (rest.n == 0 || c->closing || c->dead) return;
    if (c->in_at > 0) {
        memmove(c->in.p, c->in.p + c->in_at, pending(c));
        c->in.len -= c->in_at;
        c->in_at = 0;
    }
    buf_slice_add(&c->in, rest);
}

/* Hand the request in s->head over. */
static void deliver(struct http_conn *c, slice body) {
    struct http_server *s = c->server;
    struct http_request *req = &s->head->req;
    req->body = body;
    req->body_length = body.n;
    req->from = use_of(c);
    s->stats.requests++;
    c->user = NULL;
    c->phase = HTTP_PHASE_HEAD;
    c->awaiting = c->in_handler = true;
    s->handler.on_request(s->handler.ctx, c, req);
    c->in_handler = false;
    c->since_ms = s->now_ms;
    if (c->awaiting && (c->eof || c->dead)) {
        tell_gone(c);
        c->closing = true;
    }
}

static void note_head(struct http_conn *c, const struct http_head *head) {
    c->head_only = head->req.method == HTTP_HEAD;
    c->keep_alive = head->keep_alive;
    c->http11 = head->http11;
    c->head_bytes = head->head_bytes;
    c->length = head->length;
}

/* May this body come? What can never be buffered is refused like what the handler does not want. */
static bool body_accepted(struct http_conn *c, struct http_head *head) {
    struct http_server *s = c->server;
    head->req.from = use_of(c);
    c->limit = s->handler.body_limit(s->handler.ctx, &head->req);
    if (c->limit == HTTP_BODY_UNWANTED && !c->dead) {
        c->keep_alive = false; /* where the next request would begin is not looked for */
        deliver(c, (slice){0});
        return false;
    }
    if (c->limit > s->limits.buffered_max) c->limit = s->limits.buffered_max;
    if (c->dead || head->length <= c->limit) return !c->dead;
    fail(c, 413, "the body is larger than is accepted here");
    return false;
}

void http_conn_refuse(struct http_conn *c) {
    struct http_server *s = c->server;
    if (c->closing || c->dead) return;
    s->stats.refused++;
    s->stats.no_place++;
    if (c->handshaking) { /* before the handshake is over there are no words */
        http_conn_drop(c);
        return;
    }
    c->head_only = c->keep_alive = false;
    fail(c, 503, "the server has as many connections as it may, and the last places are for operators");
}

/* In a place of the reserve: only what is urgent is answered. */
static bool place_earned(struct http_conn *c, struct http_request *req) {
    struct http_server *s = c->server;
    req->from = use_of(c);
    c->urgent = s->handler.urgent(s->handler.ctx, req);
    if (!c->urgent) http_conn_refuse(c);
    return c->urgent;
}

/* The body is not all here. Queued behind the replies before it, "100 Continue" cannot overtake one of them. */
static void await_body(struct http_conn *c, enum http_phase phase, bool invite) {
    c->phase = phase;
    c->since_ms = c->server->now_ms;
    if (!invite) return;
    buf_lit(queue_begin(c), "HTTP/1.1 100 Continue\r\n\r\n");
    queue_end(c, (struct http_after){0}, 0, NULL);
}

static slice after(slice s, size_t n) {
    return slice_of(s.p + n, s.n - n);
}

static void trim_scratch(struct buf *b) {
    if (b->cap > SCRATCH_BYTES) buf_free(b);
}

/* A chunked request: its body is decoded into the shared scratch buffer and moves into the connection only when the
 * rest of it has to be waited for. Returns what follows, or what must be kept. */
static slice begin_chunked(struct http_conn *c, slice in) {
    struct http_server *s = c->server;
    struct http_parse_error error;
    slice rest = after(in, c->head_bytes);
    size_t used = 0;
    bool invite = s->head->expect_continue && rest.n == 0;
    http_chunked_init(&c->chunked);
    buf_reset(&s->chunk_body);
    switch (http_chunked_feed(&c->chunked, rest, &used, c->limit, &s->chunk_body, &error)) {
    case HTTP_PARSE_OK:
        deliver(c, buf_slice(&s->chunk_body));
        trim_scratch(&s->chunk_body);
        return after(rest, used);
    case HTTP_PARSE_BAD:
        fail(c, error.status, error.detail);
        return (slice){0};
    case HTTP_PARSE_MORE:
        break;
    }
    c->body = s->chunk_body;
    s->chunk_body = (struct buf){0};
    c->body_received = rest.n;
    await_body(c, HTTP_PHASE_CHUNKS, invite);
    return slice_of(in.p, c->head_bytes);
}

/* The head in s->head stands at the start of `in`. Returns what follows the request, or what must be kept of it. */
static slice begin_request(struct http_conn *c, slice in) {
    struct http_head *head = c->server->head;
    note_head(c, head);
    head->req.secure = c->secure;
    head->req.inside = c->inside;
    head->req.whole = !head->chunked && in.n - head->head_bytes >= head->length;
    if (http_place_lent(c) && !place_earned(c, &head->req)) return (slice){0};
    if ((head->chunked || head->length) && !body_accepted(c, head)) return (slice){0};
    if (head->chunked) return begin_chunked(c, in);
    slice rest = after(in, head->head_bytes);
    if (rest.n < head->length) {
        c->body_received = rest.n;
        await_body(c, HTTP_PHASE_BODY, head->expect_continue && rest.n == 0);
        return in;
    }
    size_t length = (size_t)head->length;
    deliver(c, slice_of(rest.p, length));
    return after(rest, length);
}

/* Pipelined requests are parsed some ahead of their turn, so that the handler can have the memory they will need brought
 * near while their predecessors are at work. Only whole ones: what is odd or unfinished is dealt with in its turn. */
static void look_ahead(struct http_conn *c, slice in) {
    struct http_server *s = c->server;
    struct http_parse_error error;
    const char *from = NULL; /* of the one before */
    s->ahead_at = s->ahead_count = 0;
    while (in.n && s->ahead_count < HTTP_AHEAD) {
        struct http_head *h = &s->ahead[s->ahead_count];
        enum http_parse got = http_parse_next(in, from, from ? h - 1 : NULL, h, &error);
        if (got != HTTP_PARSE_OK || h->chunked) break;
        from = in.p;
        slice rest = after(in, h->head_bytes);
        if (rest.n < h->length) break;
        h->req.body = slice_of(rest.p, (size_t)h->length);
        h->req.inside = c->inside;
        in = after(rest, (size_t)h->length);
        s->ahead_count++;
    }
    if (s->ahead_count < 2 || !s->handler.on_ahead) return;
    struct http_request *requests[HTTP_AHEAD];
    for (u32 i = 0; i < s->ahead_count; i++) requests[i] = &s->ahead[i].req;
    s->handler.on_ahead(s->handler.ctx, requests, s->ahead_count);
}

static enum http_parse next_head(struct http_conn *c, slice in, struct http_parse_error *error) {
    struct http_server *s = c->server;
    if (s->ahead_at == s->ahead_count) look_ahead(c, in);
    if (s->ahead_at < s->ahead_count) {
        s->head = &s->ahead[s->ahead_at++];
        return HTTP_PARSE_OK;
    }
    s->head = &s->parsed;
    return http_parse_head(in, s->head, error);
}

/* The turn is over: the rest is handed over in the next one. */
static void cut_short(struct http_conn *c) {
    c->cut = c->talkative = true;
    http_late_add(c);
}

/* Take requests from the front of `in` for as long as they are whole and nothing stands in the way. Returns what must
 * be kept. */
static slice consume(struct http_conn *c, slice in) {
    struct http_server *s = c->server;
    s->ahead_at = s->ahead_count = 0;
    for (bool first = true; in.n && may_parse(c); first = false) {
        struct http_parse_error error;
        if (!first && http_turn_spent(s)) {
            cut_short(c);
            break;
        }
        enum http_parse got = next_head(c, in, &error);
        if (got == HTTP_PARSE_MORE) break;
        if (got == HTTP_PARSE_OK) {
            in = begin_request(c, in);
            continue;
        }
        c->head_only = c->keep_alive = false;
        fail(c, error.status, error.detail);
    }
    return in;
}

/* The same from the connection's own buffer. */
static void consume_own(struct http_conn *c) {
    slice keep = consume(c, slice_of(c->in.p + c->in_at, pending(c)));
    if (c->closing || c->dead) return;
    if (keep.n == 0) {
        buf_free(&c->in);
        c->in_at = 0;
        return;
    }
    c->in_at = (size_t)(keep.p - c->in.p);
    c->in.len = c->in_at + keep.n;
}

/* The body of the request in `in` is complete: parse its head again, now where it will stay, and hand it over. */
static void deliver_own(struct http_conn *c, slice body) {
    struct http_parse_error error;
    slice head = slice_of(c->in.p + c->in_at, c->head_bytes);
    c->server->head = &c->server->parsed;
    CHECK(http_parse_head(head, c->server->head, &error) == HTTP_PARSE_OK);
    c->server->head->req.secure = c->secure;
    c->server->head->req.inside = c->inside;
    deliver(c, body);
    if (!c->dead) clear_input(c);
}

/* Doubling, but never beyond what the request needs: a large body costs its own size, not twice. */
static void grow_input(struct http_conn *c, size_t more, size_t total) {
    size_t need = c->in.len + more;
    if (need <= c->in.cap) return;
    size_t cap = need > c->in.cap * 2 ? need : c->in.cap * 2;
    if (cap > total) cap = total;
    c->in.p = mem_realloc(c->in.p, cap);
    c->in.cap = cap;
}

/* How long a body may take by what has come of it: every 500 bytes buy another second. */
static i64 body_allowance_ms(const struct http_conn *c) {
    const struct http_limits *l = &c->server->limits;
    return (i64)(l->body_grace_ms + c->body_received * 1000 / l->body_bytes_per_s);
}

/* Speed now buys patience later, but no more of it than an idle connection gets. */
static void body_progress(struct http_conn *c, size_t n) {
    c->body_received += n;
    i64 latest = c->server->now_ms + c->server->limits.idle_ms;
    i64 allowed = body_allowance_ms(c);
    if (c->since_ms + allowed > latest) c->since_ms = latest - allowed;
}

static slice more_body(struct http_conn *c, slice in) {
    size_t total = c->in_at + c->head_bytes + (size_t)c->length;
    size_t need = total - c->in.len;
    size_t n = in.n < need ? in.n : need;
    grow_input(c, n, total);
    buf_add(&c->in, in.p, n);
    body_progress(c, n);
    if (n == need) deliver_own(c, slice_of(c->in.p + c->in_at + c->head_bytes, (size_t)c->length));
    return after(in, n);
}

static slice more_chunks(struct http_conn *c, slice in) {
    struct http_parse_error error;
    size_t used = 0;
    enum http_parse got = http_chunked_feed(&c->chunked, in, &used, c->limit, &c->body, &error);
    body_progress(c, used);
    if (got == HTTP_PARSE_OK)
        deliver_own(c, buf_slice(&c->body));
    else if (got == HTTP_PARSE_BAD)
        fail(c, error.status, error.detail);
    return after(in, used);
}

/* An unfinished head is parsed again only when a line end or a good deal more has come: somebody who sends a byte at a
 * time must not make us read the same kilobytes each time. */
static bool head_worth_another_look(const struct http_conn *c, slice in) {
    return (pending(c) + in.n) / HEAD_RETRY_BYTES != pending(c) / HEAD_RETRY_BYTES || memchr(in.p, '\n', in.n);
}

static void input_head(struct http_conn *c, char *p, size_t n) {
    size_t had = pending(c);
    if (had == 0) c->since_ms = c->server->now_ms;
    bool look = may_parse(c) && http_link_alone(&c->resume) && !c->cut &&
                (had == 0 || head_worth_another_look(c, slice_of(p, n)));
    if (!look || had > HTTP_HEADROOM) {
        keep_input(c, slice_of(p, n));
        if (look && !c->closing) consume_own(c);
        return;
    }
    if (had) {
        memcpy(p - had, c->in.p + c->in_at, had);
        p -= had;
        n += had;
        clear_input(c);
    }
    keep_input(c, consume(c, slice_of(p, n)));
}

void http_conn_input(struct http_conn *c, char *p, size_t n, bool more) {
    struct http_server *s = c->server;
    c->talkative = more;
    s->stats.bytes_in += n;
    s->turn = true;
    slice rest = slice_of(p, n);
    if (c->closing) {
        c->discarded += n;
        if (c->lingering && c->discarded >= LINGER_BYTES)
            http_conn_drop(c);
        else
            review(c);
        return;
    }
    if (c->phase == HTTP_PHASE_BODY)
        rest = more_body(c, rest);
    else if (c->phase == HTTP_PHASE_CHUNKS)
        rest = more_chunks(c, rest);
    if (rest.n && !c->closing && !c->dead) input_head(c, p + (n - rest.n), rest.n);
    review(c);
}

void http_conn_eof(struct http_conn *c) {
    c->eof = true;
    if (c->awaiting && !c->in_handler) {
        tell_gone(c);
        c->closing = true;
    }
    review(c);
}

void http_conn_resume(struct http_conn *c) {
    if (pending(c) && may_parse(c)) {
        c->since_ms = c->server->now_ms; /* until now it was us, not the client */
        if (http_turn_spent(c->server))
            cut_short(c);
        else
            consume_own(c);
    }
    review(c);
}

static void time_out(struct http_conn *c, const char *detail) {
    c->server->stats.timeouts++;
    c->head_only = c->keep_alive = false;
    fail(c, 408, detail);
    review(c);
}

static void drop_stalled(struct http_conn *c) {
    c->server->stats.timeouts++;
    http_conn_drop(c);
}

/* Has the client taken longer with its request, or to think of the next one, than it may? */
static bool late_input(const struct http_conn *c) {
    const struct http_limits *l = &c->server->limits;
    i64 spent = c->server->now_ms - c->since_ms;
    if (c->dead || c->awaiting || c->closing || c->cut || full(c)) return false;
    if (c->handshaking) return spent > l->head_ms;
    if (c->phase != HTTP_PHASE_HEAD) return spent > body_allowance_ms(c);
    return pending(c) ? spent > l->head_ms : !c->out && spent > l->idle_ms;
}

static void judge_input(struct http_conn *c) {
    if (!late_input(c)) return;
    if (c->phase != HTTP_PHASE_HEAD)
        time_out(c, "the body came too slowly");
    else if (pending(c))
        time_out(c, "the request head did not come in time");
    else
        drop_stalled(c);
}

void http_conn_serve(struct http_conn *c) {
    if (c->cut) {
        c->cut = false;
        http_conn_resume(c);
    } else {
        review(c);
    }
    if (c->dead || !c->wants_reading || !http_link_alone(&c->late)) return;
    if (http_socket_read(c)) judge_input(c);
}

size_t http_conn_read_room(const struct http_conn *c) {
    if (c->phase != HTTP_PHASE_HEAD) return HTTP_READ_BYTES;
    size_t share = http_late_share(c->server);
    if (!c->awaiting || pending(c) >= HTTP_WAITING_BYTES) return share;
    size_t room = HTTP_WAITING_BYTES - pending(c);
    return room < share ? room : share;
}

void http_conn_drain(struct http_conn *c) {
    bool midway = c->awaiting || c->phase != HTTP_PHASE_HEAD || pending(c);
    if (!midway && unsent(c) == 0 && !c->lingering) {
        http_conn_drop(c);
        return;
    }
    if (!midway) c->closing = true;
    review(c);
}

void http_conn_pay(struct http_conn *c) {
    c->server->stats.refused++;
    c->server->stats.no_memory++;
    size_t arriving = c->in.len + c->body.len;
    if (c->awaiting || c->closing || full(c) || arriving < c->counted - arriving) {
        http_conn_drop(c);
        return;
    }
    c->head_only = c->keep_alive = false;
    fail(c, 503, "the server holds as many unfinished requests as it may, and this is the largest");
    review(c);
}

/* Its client neither reads what there is for it nor says what it began to say. */
static bool stuck(struct http_conn *c, i64 patience_ms) {
    i64 for_ms = c->server->now_ms - (c->out ? c->progress_ms : c->since_ms);
    return for_ms >= (c->out ? HTTP_PATIENCE_MS : patience_ms) && !http_socket_readable(c);
}

/* It waits: for a message, an outcome, something to tell. */
static bool hurried(struct http_conn *c) {
    struct http_server *s = c->server;
    bool keep_alive = c->keep_alive;
    c->keep_alive = false;
    if (!c->out && s->handler.hurry && s->handler.hurry(s->handler.ctx, c)) return true;
    c->keep_alive = keep_alive;
    return false;
}

bool http_conn_dismiss(struct http_conn *c, i64 patience_ms) {
    struct http_server *s = c->server;
    if (c->cut || !http_link_alone(&c->late) || !http_link_alone(&c->resume)) return false;
    if (!(c->awaiting && hurried(c))) {
        if (!stuck(c, patience_ms) || (c->awaiting && !c->out)) return false;
        if (c->phase != HTTP_PHASE_HEAD) http_conn_refuse(c);
    }
    s->stats.evicted++;
    http_conn_flush(c);
    http_conn_drop(c);
    return true;
}

/* ---- writing */

/* Some bytes are out: tell whose they were, and put the buffer away when it is empty. */
static void wrote(struct http_conn *c, size_t n) {
    struct http_server *s = c->server;
    http_out_left(c->out, n);
    s->stats.bytes_out += n;
    c->progress_ms = s->now_ms;
    tell_receipts(c, c->out->sent, true);
    if (c->dead) return;
    if (unsent(c) == 0) {
        end_out(c);
        c->since_ms = s->now_ms;
        http_conn_note_idle(c);
    } else {
        http_out_compact(c->out);
    }
    account(c);
}

/* The socket is full: leave it a piece, to learn when it has room again. */
static bool leave_piece(struct http_conn *c, slice run) {
    size_t n = run.n < HTTP_PIECE_BYTES ? run.n : HTTP_PIECE_BYTES;
    if (!http_socket_send(c, run.p, n)) return false;
    c->piece = n;
    return true;
}

/* The first bytes of what may leave. Returns how many. */
static size_t cut_share(slice runs[2], u32 *count) {
    size_t left = HTTP_SHARE_BYTES;
    for (u32 i = 0; i < *count; i++) {
        if (runs[i].n > left) runs[i].n = left;
        left -= runs[i].n;
        if (left == 0) *count = i + 1;
    }
    return HTTP_SHARE_BYTES - left;
}

/* What may leave and has not. Where the socket has room the next share is for later, behind those of others: in this turn, or,
 * over TLS, in the next. */
static bool leave_rest(struct http_conn *c, bool has_room) {
    struct http_server *s = c->server;
    slice runs[2];
    if (c->piece || !owed(c) || http_out_leaving(c->out, runs) == 0) return true;
    if (!has_room && !c->secure) return leave_piece(c, runs[0]);
    http_link_add(c->secure ? &s->dirty : &s->bulk, &c->dirty);
    return true;
}

void http_conn_flush(struct http_conn *c) {
    struct http_server *s = c->server;
    slice runs[2];
    if (c->dead || s->silent || c->piece || !owed(c)) return;
    bool was_full = full(c);
    u32 count = http_out_leaving(c->out, runs);
    size_t share = cut_share(runs, &count);
    i64 n = http_socket_write(c, runs, count);
    if (n > 0) wrote(c, (size_t)n);
    if (c->dead) return;
    if (n < 0 || !leave_rest(c, n == (i64)share)) {
        http_conn_drop(c);
        return;
    }
    if (was_full && !full(c)) http_link_add(&s->resume, &c->resume);
    if (c->piece) account(c);
    if (c->closing) review(c);
}

void http_conn_piece_done(struct http_conn *c, bool ok) {
    struct http_server *s = c->server;
    if (c->dead) return;
    if (!ok) {
        http_conn_drop(c);
        return;
    }
    size_t n = c->piece;
    c->piece = 0;
    wrote(c, n);
    if (c->dead) return;
    if (owed(c)) http_link_add(&s->dirty, &c->dirty);
    http_link_add(&s->resume, &c->resume);
}

/* ---- the clock */

/* A socket with bytes for us is not slow, we are: they are read before the client is judged (http_conn_serve). And one
 * that has room for our bytes is not stalled. */
void http_conn_tick(struct http_conn *c) {
    i64 now = c->server->now_ms;
    if (owed(c) && now - c->progress_ms > c->server->limits.write_ms && !http_socket_writable(c)) {
        drop_stalled(c);
    } else if (c->lingering) {
        if (now - c->since_ms > LINGER_MS) http_conn_drop(c);
    } else if (c->awaiting) {
        if (!c->reading && !c->eof && http_socket_peer_closed(c)) http_conn_eof(c);
    } else if (http_place_lent(c) && !c->urgent && now - c->since_ms > HTTP_PATIENCE_MS) {
        http_conn_refuse(c);
        review(c);
    } else if (http_link_alone(&c->late) && late_input(c)) {
        if (http_socket_readable(c))
            http_late_add(c);
        else
            judge_input(c);
    }
}
