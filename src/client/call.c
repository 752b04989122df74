/* One request carried to an answer.
 *
 * A try ends in one of three ways: answered, certainly not applied, or unknown. Unknown is repeated, with the same key
 * or token, until the deadline: the broker answers the repeat from what it remembers. Once a try was unknown, an answer
 * like "busy" to a later one no longer means that nothing was applied, so it is repeated as well; only an answer
 * that settles the matter ends the loop. */
#include <stdio.h>

#include "client/client_priv.h"

enum { BACKOFF_MS = 20, BACKOFF_MS_MAX = 1000 };

/* Who we are to the broker. A token that others on the way can read is as good as theirs. */
static hx_status identify(hx_client *c, const hx_options *o, hx_error *err) {
    struct errbuf why;
    if (c->url.https && !(c->tls = tls_new(&c->url, o, &why)))
        return error_set(err, HX_INVALID, HX_APPLIED_NO, "tls_unusable", "%s", why.text);
    if (!token_field(o->api_token, o->api_token_file, &c->authorization, &why))
        return error_set(err, HX_INVALID, HX_APPLIED_NO, "token_unusable", "%s", why.text);
    if (!o->api_token && o->api_token_file) {
        size_t n = strlen(o->api_token_file) + 1;
        c->token_file = memcpy(mem_alloc(n), o->api_token_file, n);
    }
    if (c->authorization.len && !c->tls && !o->insecure_token && !url_is_here(&c->url))
        return error_set(err, HX_INVALID, HX_APPLIED_NO, "token_exposed",
                         "%s is not encrypted, and the token would be readable on the way: use https://", c->url.text);
    return HX_OK;
}

hx_status hx_open(const hx_options *options, hx_client **out, hx_error *err) {
    static const hx_options defaults;
    hx_error spare;
    if (!err) err = &spare;
    if (!options) options = &defaults;
    *out = NULL;
    struct url url = {0};
    struct errbuf why;
    if (!url_parse(options->url ? options->url : HX_DEFAULT_URL, &url, &why))
        return error_set(err, HX_INVALID, HX_APPLIED_NO, "url_invalid", "%s", why.text);
    hx_client *c = mem_zalloc(sizeof(*c));
    c->url = url;
    pthread_mutex_init(&c->lock, NULL);
    resolver_init(&c->resolver);
    hx_status st = identify(c, options, err);
    if (st != HX_OK) {
        hx_close(c);
        return st;
    }
    c->connections = options->connections > 0 ? options->connections : 8;
    c->connect_timeout_ms = options->connect_timeout_ms > 0 ? options->connect_timeout_ms : 3000;
    c->timeout_ms = options->timeout_ms > 0 ? options->timeout_ms : 15000;
    c->reply_bytes_max = options->reply_bytes_max ? options->reply_bytes_max : (size_t)256 << 20;
    c->patient = options->patient;
    c->idle = mem_zalloc((size_t)c->connections * sizeof(struct conn *));
    *out = c;
    return error_ok(err);
}

void hx_close(hx_client *c) {
    if (!c) return;
    for (int i = 0; i < c->idle_count; i++) conn_close(c->idle[i]);
    mem_free(c->idle);
    pthread_mutex_destroy(&c->lock);
    resolver_free(&c->resolver);
    url_free(&c->url);
    buf_wipe(&c->authorization);
    mem_free(c->token_file);
    tls_free(c->tls);
    mem_free(c);
}

/* A connection that was idle and is still good, or NULL. */
static struct conn *pool_take(hx_client *c) {
    for (;;) {
        struct conn *conn = NULL;
        pthread_mutex_lock(&c->lock);
        if (c->idle_count) conn = c->idle[--c->idle_count];
        pthread_mutex_unlock(&c->lock);
        if (!conn || conn_alive(conn)) return conn;
        conn_close(conn);
    }
}

static void pool_give(hx_client *c, struct conn *conn) {
    pthread_mutex_lock(&c->lock);
    bool room = c->idle_count < c->connections;
    if (room) c->idle[c->idle_count++] = conn;
    pthread_mutex_unlock(&c->lock);
    if (!room) conn_close(conn);
}

/* Returns the number of the token in it. */
static u64 render_head(hx_client *c, const struct call *call, struct buf *b) {
    buf_printf(b, "%s %s", call->method, c->url.prefix);
    buf_slice_add(b, call->target);
    buf_printf(b, " HTTP/1.1\r\nHost: %s\r\n", c->url.authority);
    bool body = call->body.n || strcmp(call->method, "GET") != 0;
    if (call->content_type.n && body) {
        buf_lit(b, "Content-Type: ");
        buf_slice_add(b, call->content_type);
        buf_lit(b, "\r\n");
    }
    if (body) buf_printf(b, "Content-Length: %zu\r\n", call->body.n);
    buf_slice_add(b, call->fields);
    pthread_mutex_lock(&c->lock);
    u64 number = c->token_number;
    buf_grow(b, c->authorization.len + 2); /* moved before the token is in it */
    buf_slice_add(b, buf_slice(&c->authorization));
    pthread_mutex_unlock(&c->lock);
    buf_lit(b, "\r\n");
    return number;
}

/* The broker does not know token `number`. true: there is another one by now. Tokens are replaced by writing the next one into the
 * file, and no program should have to be started again for that. */
static bool token_renew(hx_client *c, u64 number) {
    struct buf fresh = {0};
    bool read = c->token_file && token_field(NULL, c->token_file, &fresh, NULL);
    pthread_mutex_lock(&c->lock);
    if (read && c->token_number == number && !slice_eq(buf_slice(&fresh), buf_slice(&c->authorization))) {
        struct buf old = c->authorization;
        c->authorization = fresh;
        c->token_number++;
        fresh = old;
    }
    bool another = c->token_number != number;
    pthread_mutex_unlock(&c->lock);
    buf_wipe(&fresh);
    return another;
}

/* The state of one call over its tries. */
struct carry {
    hx_client *client;
    struct call *call;
    struct buf head;
    i64 deadline, backoff;
    u64 token;    /* the number of the one shown */
    bool renewed; /* another one was shown before */
    bool reads;   /* changes nothing: never unknown */
    bool unknown; /* some try may have been applied */
    enum unmade unmade;
    struct errbuf why;
};

/* The same call with the token that is in the file by now, once. */
static bool show_another(struct carry *t) {
    if (t->renewed || !token_renew(t->client, t->token)) return false;
    t->renewed = true;
    explicit_bzero(t->head.p, t->head.cap);
    buf_reset(&t->head);
    t->token = render_head(t->client, t->call, &t->head);
    t->backoff = 0;
    err_set(&t->why, ST_TIMEOUT, "the time was up when the token had been replaced");
    return true;
}

static enum xfer try_once(struct carry *t, struct reply *reply) {
    hx_client *c = t->client;
    reply_free(reply);
    struct conn *conn = pool_take(c);
    if (!conn) {
        i64 until = clock_mono_ms() + c->connect_timeout_ms;
        i64 deadline = until < t->deadline ? until : t->deadline;
        conn = conn_open(c, deadline, t->call->cancel_fd, &t->unmade, &t->why);
        if (!conn) return XFER_NOT_SENT;
    }
    bool reused = conn->reused;
    t->unmade = UNMADE_UNREACHED;
    enum xfer x = conn_exchange(conn, buf_slice(&t->head), t->call->body, t->deadline, t->call->cancel_fd,
                                c->reply_bytes_max, reply, &t->why);
    if (conn->tls && tls_refused(conn->tls)) t->unmade = UNMADE_NO_TLS;
    if (x == XFER_DONE && !reply->close)
        pool_give(c, conn);
    else
        conn_close(conn);
    /* An idle connection closed under our hands says nothing about the broker: the next try goes out at once. */
    if (reused && (x == XFER_LOST || x == XFER_NOT_SENT)) t->backoff = 0;
    return x;
}

static hx_status unreached(hx_client *c, enum unmade how, const struct errbuf *why, hx_error *err) {
    static const char *const codes[] = {"unreachable", "tls_failed", "untrusted"};
    return error_set(err, HX_UNREACHABLE, HX_APPLIED_NO, codes[how], "cannot reach %s: %s", c->url.text, why->text);
}

static hx_status give_up(struct carry *t, hx_error *err) {
    if (t->unknown && !t->reads)
        return error_set(err, HX_UNKNOWN, HX_APPLIED_UNKNOWN, "unknown", "%s: no answer: %s", t->client->url.text,
                         t->why.text);
    return unreached(t->client, t->unmade, &t->why, err);
}

/* true: wait was done, try again. false: time is up or a stop was asked for. */
static bool back_off(struct carry *t, bool *cancelled) {
    i64 now = clock_mono_ms();
    if (now >= t->deadline) return false;
    i64 ms = t->backoff;
    t->backoff = ms == 0 ? BACKOFF_MS : ms * 2 > BACKOFF_MS_MAX ? BACKOFF_MS_MAX : ms * 2;
    if (ms) ms += clock_mono_us() % (ms / 2 + 1); /* apart from others that lost the same broker */
    if (ms > t->deadline - now) ms = t->deadline - now;
    *cancelled = conn_pause(ms, t->call->cancel_fd);
    return !*cancelled;
}

/* "You may not" says nothing of a try before it that may have been applied: the token may have been taken away since. */
static bool says_nothing(const hx_error *err) {
    return err->status == HX_DENIED || strcmp(err->code, "no_such_queue") == 0;
}

/* An answer came. true: it settles the matter. */
static bool answered(struct carry *t, struct reply *reply, hx_error *err) {
    if (reply->status < 300) {
        error_ok(err);
        err->http_status = reply->status;
        return true;
    }
    if (reply->status == 401 && show_another(t)) return false;
    problem_read(reply->status, buf_slice(&reply->body), err);
    err->retry_after_ms = reply->retry_after_ms;
    if (t->reads && err->applied == HX_APPLIED_UNKNOWN) {
        err->applied = HX_APPLIED_NO;
        err->status = HX_UNAVAILABLE;
    }
    if (t->reads || t->call->once) return true;
    if (err->applied == HX_APPLIED_UNKNOWN) t->unknown = true;
    if (t->unknown && says_nothing(err)) {
        hx_error last = *err;
        error_set(err, HX_UNKNOWN, HX_APPLIED_UNKNOWN, "unknown", "no answer at first, then: %s", last.detail);
        err->http_status = last.http_status;
        buf_reset(&reply->body); /* it says that nothing was applied */
        return true;
    }
    if (!t->unknown || !problem_passes(err)) return true;
    err_set(&t->why, ST_IO, "%s", err->detail);
    return false;
}

static hx_status carry(struct carry *t, struct reply *reply, hx_error *err) {
    for (bool cancelled = false;; t->call->retried = true) {
        switch (try_once(t, reply)) {
        case XFER_DONE:
            if (answered(t, reply, err)) return err->status;
            break;
        case XFER_BAD:
            error_set(err, HX_PROTOCOL, t->reads ? HX_APPLIED_NO : HX_APPLIED_UNKNOWN, "protocol", "%s: %s",
                      t->client->url.text, t->why.text);
            return HX_PROTOCOL;
        case XFER_CANCELLED:
            cancelled = true;
            break;
        case XFER_LOST:
            t->unknown = true;
            if (t->call->once) return give_up(t, err);
            break;
        case XFER_NOT_SENT:
            if (!t->unknown && !t->call->patient && !t->client->patient && t->backoff) return give_up(t, err);
            break;
        }
        if (!cancelled && back_off(t, &cancelled)) continue;
        if (!cancelled) return give_up(t, err);
        return error_set(err, HX_CANCELLED, t->reads ? HX_APPLIED_NO : HX_APPLIED_UNKNOWN, "cancelled",
                         "stopped before the broker answered");
    }
}

hx_status client_call(hx_client *c, struct call *call, struct reply *reply, hx_error *err) {
    struct carry t = {.client = c, .call = call, .backoff = BACKOFF_MS};
    i64 timeout = call->timeout_ms > 0 ? call->timeout_ms : c->timeout_ms;
    t.deadline = clock_mono_ms() + timeout + call->wait_ms;
    t.reads = strcmp(call->method, "GET") == 0;
    t.token = render_head(c, call, &t.head);
    hx_status st = carry(&t, reply, err);
    buf_wipe(&t.head);
    return st;
}

/* ---- rendering that several calls share */

void target_queue(struct buf *b, const char *queue, const char *rest) {
    buf_lit(b, "/v1/queues/");
    buf_percent_encode(b, slice_str(queue));
    buf_slice_add(b, slice_str(rest));
}

void put_bytes(struct buf *b, const char *name, hx_bytes bytes) {
    if (!bytes.data) return;
    slice s = slice_of(bytes.data, bytes.size);
    if (utf8_valid(s)) {
        json_put_member(b, name, s);
        return;
    }
    struct buf full = {0};
    buf_printf(&full, "%s_base64", name);
    buf_char(&full, '\0');
    json_put_name(b, full.p);
    buf_free(&full);
    buf_char(b, '"');
    buf_base64(b, s);
    buf_char(b, '"');
}

void put_text(struct buf *b, const char *name, const char *text) {
    if (text) json_put_member(b, name, slice_str(text));
}

void put_duration(struct buf *b, const char *name, i64 ms) {
    json_put_name(b, name);
    buf_char(b, '"');
    buf_duration(b, ms);
    buf_char(b, '"');
}

bool text_ok(const char *text) {
    return !text || utf8_valid(slice_str(text));
}

bool queue_ok(const char *queue, hx_error *err) {
    if (queue && *queue && text_ok(queue)) return true;
    error_set(err, HX_INVALID, HX_APPLIED_NO, "queue_invalid", "no queue named");
    return false;
}

/* ---- anything else */

static bool request_ok(const hx_request *r) {
    slice target = slice_str(r->target);
    return target.n && target.p[0] == '/' && !has_control(target) && !memchr(target.p, ' ', target.n);
}

static bool fields_render(const hx_request *r, struct buf *out) {
    for (size_t i = 0; i < r->field_count; i++) {
        slice name = slice_str(r->fields[i].name), value = slice_str(r->fields[i].value);
        if (name.n == 0 || has_control(name) || has_control(value)) return false;
        buf_slice_add(out, name);
        buf_lit(out, ": ");
        buf_slice_add(out, value);
        buf_lit(out, "\r\n");
    }
    return true;
}

hx_status hx_call(hx_client *c, const hx_request *request, hx_reply *out, hx_error *err) {
    hx_error spare;
    if (!err) err = &spare;
    if (out) *out = (hx_reply){0};
    slice target = slice_str(request->target);
    struct buf fields = {0};
    if (!request_ok(request) || !fields_render(request, &fields)) {
        buf_free(&fields);
        return error_set(err, HX_INVALID, HX_APPLIED_NO, "request_invalid", "malformed target or header field");
    }
    struct call call =
        CALL(.method = request->method, .target = target, .fields = buf_slice(&fields),
             .content_type = slice_str(request->content_type), .body = slice_of(request->body.data, request->body.size),
             .wait_ms = request->wait_ms, .once = request->once);
    struct reply reply = {0};
    hx_status st = client_call(c, &call, &reply, err);
    if (out && reply.status) {
        struct arena *a = arena_new();
        out->memory = a;
        out->http_status = reply.status;
        out->content_type = arena_string(a, slice_str(reply.content_type));
        out->etag = arena_string(a, slice_str(reply.etag));
        slice body = arena_adopt(a, &reply.body);
        out->body = hx_bytes_of(body.p, body.n);
    }
    reply_free(&reply);
    buf_free(&fields);
    return st;
}

void hx_reply_free(hx_reply *reply) {
    arena_free(reply->memory);
    *reply = (hx_reply){0};
}

/* ---- an answer that goes on */

struct lines {
    hx_line_fn line;
    void *ctx;
};

static bool hand_over(void *ctx, slice line) {
    const struct lines *l = ctx;
    return l->line(l->ctx, hx_bytes_of(line.p, line.n));
}

static hx_status followed(hx_client *c, enum xfer x, enum unmade how, const struct reply *reply,
                          const struct errbuf *why, hx_error *err) {
    if (x == XFER_CANCELLED) return error_set(err, HX_CANCELLED, HX_APPLIED_NO, "cancelled", "stopped");
    if (x == XFER_BAD) return error_set(err, HX_PROTOCOL, HX_APPLIED_NO, "protocol", "%s: %s", c->url.text, why->text);
    if (x != XFER_DONE) return unreached(c, how, why, err);
    if (reply->status >= 300) return problem_read(reply->status, buf_slice(&reply->body), err);
    error_ok(err);
    err->http_status = reply->status;
    return HX_OK;
}

hx_status hx_follow(hx_client *c, const hx_request *request, int64_t silence_ms, int stop_fd, hx_line_fn line,
                    void *ctx, hx_error *err) {
    hx_error spare;
    if (!err) err = &spare;
    struct buf fields = {0}, head = {0};
    struct errbuf why = {{0}};
    struct reply reply = {0};
    struct lines lines = {line, ctx};
    struct follow f = {.line = hand_over, .ctx = &lines, .silence_ms = silence_ms};
    if (!request_ok(request) || !fields_render(request, &fields)) {
        buf_free(&fields);
        return error_set(err, HX_INVALID, HX_APPLIED_NO, "request_invalid", "malformed target or header field");
    }
    struct call call =
        CALL(.method = request->method, .target = slice_str(request->target), .fields = buf_slice(&fields));
    render_head(c, &call, &head);
    i64 now = clock_mono_ms();
    enum unmade how = UNMADE_UNREACHED;
    struct conn *conn = conn_open(c, now + c->connect_timeout_ms, stop_fd, &how, &why);
    enum xfer x = XFER_NOT_SENT;
    if (conn)
        x = conn_follow(conn, buf_slice(&head), now + c->timeout_ms, stop_fd, &f, c->reply_bytes_max, &reply, &why);
    hx_status st = followed(c, x, how, &reply, &why, err);
    conn_close(conn);
    reply_free(&reply);
    buf_wipe(&head);
    buf_free(&fields);
    return st;
}

void hx_security_get(hx_client *c, hx_security *out) {
    *out = (hx_security){.encrypted = c->tls != NULL, .local = url_is_here(&c->url)};
    if (c->tls) out->certificate_expires_at_ms = tls_expires_ms(c->tls);
}
