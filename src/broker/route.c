/* From a request to its handler. */
#include "broker/route.h"
#include "broker/access.h"
#include "broker/api.h"
#include "broker/broker_priv.h"
#include "broker/browsers.h"
#include "broker/budget.h"
#include "broker/call.h"
#include "broker/diff.h"
#include "broker/ingest.h"
#include "broker/limits.h"
#include "broker/parse.h"
#include "broker/proxy.h"
#include "broker/rations.h"
#include "broker/traffic.h"

struct route {
    enum http_method method;
    const char *path;
    void (*handler)(struct call *c);
    enum right right;
    const char *params; /* with blanks between them */
    u64 body_max;
    bool names_queue; /* its first argument is one */
};

#define HTTP_ANY             HTTP_OTHER
#define BEGINS(path, prefix) (__builtin_strncmp(path, prefix, sizeof(prefix) - 1) == 0)

static const struct route routes[] = {
#define ROUTE(method, path, handler, right, params, body_max)                                                          \
    {method, path, handler, right, params, body_max, BEGINS(path, "v1/queues/") || BEGINS(path, "v1/targets/")},
#include "broker/route.def"
#undef ROUTE
};
#define HOST_SHOWN 253u /* bytes of a name in a complaint */
#define ROUTES     (sizeof routes / sizeof routes[0])

static const char *const method_names[] = {
    [HTTP_GET] = "GET", [HTTP_HEAD] = "HEAD",     [HTTP_POST] = "POST",
    [HTTP_PUT] = "PUT", [HTTP_DELETE] = "DELETE", [HTTP_ANY] = "ANY",
};

u32 route_count(void) {
    return ROUTES;
}

void route_label(u32 i, struct buf *out) {
    if (i < ROUTES)
        buf_printf(out, "%s /%s", method_names[routes[i].method], routes[i].path);
    else
        buf_lit(out, "other");
}

static bool matches(const char *pattern, slice path, slice args[2]) {
    const char *p = path.p, *end = p + path.n;
    u32 n = 0;
    for (; *pattern; pattern++) {
        if (*pattern == '/' && strcmp(pattern, "/...") == 0) return p == end || *p == '/';
        if (*pattern != '*') {
            if (p == end || *p++ != *pattern) return false;
            continue;
        }
        const char *start = p;
        while (p < end && *p != '/') p++;
        if (p == start) return false;
        args[n++] = slice_of(start, (size_t)(p - start));
    }
    return p == end;
}

static enum http_method effective(enum http_method m) {
    return m == HTTP_HEAD ? HTTP_GET : m;
}

/* The route, or NULL; *allow lists the methods of a path that exists. */
static const struct route *find_route(const struct http_request *req, slice args[2], struct buf *allow) {
    slice path = slice_of(req->path.p + 1, req->path.n - 1);
    for (u32 i = 0; i < ROUTES; i++) {
        if (!matches(routes[i].path, path, args)) continue;
        if (routes[i].method == effective(req->method) || routes[i].method == HTTP_ANY) return &routes[i];
        if (allow) buf_printf(allow, "%s%s", allow->len ? ", " : "", method_names[routes[i].method]);
        if (allow && routes[i].method == HTTP_GET) buf_lit(allow, ", HEAD");
    }
    return NULL;
}

static bool is_last(const struct last_route *l, const struct http_request *req) {
    return l->route && l->route->method == req->method && slice_eq(req->path, slice_of(l->path, l->path_bytes));
}

static slice moved(slice s, const char *from, const char *to) {
    return s.n ? slice_of(to + (s.p - from), s.n) : s;
}

/* find_route, and what it finds is remembered, unless there is something to decode in it. */
static const struct route *route_of(struct call *c, struct buf *allow) {
    struct last_route *l = &c->b->scratch->last;
    slice path = c->req->path;
    bool again = is_last(l, c->req);
    const struct route *r = again ? l->route : find_route(c->req, c->arg, allow);
    for (u32 i = 0; i < 2 && again; i++) c->arg[i] = moved(l->args[i], l->path, path.p);
    c->plain = again;
    if (again || !r || path.n > sizeof l->path || memchr(path.p, '%', path.n)) return r;
    *l = (struct last_route){.route = r, .path_bytes = path.n};
    memcpy(l->path, path.p, path.n);
    for (u32 i = 0; i < 2; i++) l->args[i] = moved(c->arg[i], path.p, l->path);
    return r;
}

/* Most arguments have nothing to decode and are used as they stand. */
static bool decode_args(struct call *c) {
    size_t ends[2] = {0};
    bool encoded[2];
    for (u32 i = 0; i < 2; i++) {
        encoded[i] = c->arg[i].n && memchr(c->arg[i].p, '%', c->arg[i].n) != NULL;
        if (encoded[i] && !buf_percent_decode(&c->args, c->arg[i]))
            return fail(c, PROBLEM_bad_request, "the path has a bad %%XX escape");
        ends[i] = c->args.len;
    }
    if (encoded[0]) c->arg[0] = slice_of(c->args.p, ends[0]);
    if (encoded[1]) c->arg[1] = slice_of(c->args.p + ends[0], ends[1] - ends[0]);
    return true;
}

/* ---- who may */

static bool allowed(struct call *c, const struct route *r) {
    if (r->right == RIGHT_OPEN) return true;
    return r->names_queue ? may(c, r->right, c->arg[0]) : may_somewhere(c, r->right);
}

/* To a proxy Authorization is what the upstream is shown; our own token has a field of its own there. */
static const struct caller *caller_of(struct broker *b, const struct http_request *req) {
    slice prefix = SL("/gate/"), token = {0};
    if (!slice_starts(req->path, prefix)) return access_caller(b, req->authorization);
    http_field_get(req, SL("hapax-token"), &token);
    return access_by_token(b, token);
}

/* The head alone decides who may not: none of their body is read. What it found is not looked for again. */
static bool welcome(struct broker *b, struct http_request *head, const struct route *r, slice args[2]) {
    struct call c = {.b = b, .req = head, .who = caller_of(b, head), .arg = {args[0], args[1]}};
    head->found[0] = c.who;
    bool ok = !r || !decode_args(&c) || allowed(&c, r);
    if (ok) head->found[1] = r;
    buf_free(&c.args);
    failure_free(&c.failure);
    return ok;
}

/* An address that is there for a part of this process alone, and somebody else: no certificate, and maybe no token, was asked
 * for on the way here. */
static bool is_stranger(struct broker *b, const struct http_request *head) {
    return head->inside && !access_own(b, head->authorization);
}

bool route_may_send(struct broker *b, const struct http_request *head, slice queue) {
    return browser_verdict(b, head) == BROWSER_WELCOME && !is_stranger(b, head) &&
           caller_may(access_caller(b, head->authorization), RIGHT_SEND, queue);
}

u64 broker_body_limit(struct broker *b, struct http_request *head) {
    if (browser_verdict(b, head) != BROWSER_WELCOME || is_stranger(b, head)) return HTTP_BODY_UNWANTED;
    head->let_in = true;
    bool small = !head->chunked && head->body_length <= SMALL_BODY_MAX;  /* fits everywhere */
    if (small && (head->whole || access_open(b))) return SMALL_BODY_MAX; /* then it is judged where it is answered */
    slice args[2] = {0};
    const struct route *r = find_route(head, args, NULL);
    if (!access_open(b) && !welcome(b, head, r, args)) return HTTP_BODY_UNWANTED;
    if (r && r->handler == api_in) return ingest_body_limit(b, head, args[0]);
    if (r && r->handler == api_gate) return proxy_body_limit(b, head, args[0]);
    return r ? r->body_max : SMALL_BODY_MAX;
}

/* What tells whether the broker is well, and what is done about it. */
static bool is_watching(const struct route *r) {
    if (!r || r->right == RIGHT_OPEN) return r && r->method == HTTP_GET;
    return r->right != RIGHT_SEND && r->right != RIGHT_RECEIVE && r->right != RIGHT_RESULT;
}

static bool is_health(const struct route *r) {
    return r && (r->handler == api_health || r->handler == api_ready);
}

bool broker_urgent(struct broker *b, struct http_request *head) {
    slice args[2] = {0};
    const struct route *r = find_route(head, args, NULL);
    return is_watching(r) && browser_verdict(b, head) == BROWSER_WELCOME && welcome(b, head, r, args);
}

/* Before anything is looked at: whatever the path, nothing is applied and nothing told. */
static bool turned_away(struct call *c) {
    if (c->req->let_in) return false;
    slice host = c->req->host, origin = c->req->origin.n ? c->req->origin : SL("another site");
    enum browser_verdict verdict = browser_verdict(c->b, c->req);
    bool stranger = is_stranger(c->b, c->req);
    if (verdict == BROWSER_WELCOME && !stranger) return false;
    if (stranger)
        fail(c, PROBLEM_unauthorized, "this address is for the broker's own relays");
    else if (verdict == BROWSER_MISDIRECTED)
        fail(c, PROBLEM_misdirected,
             "this broker does not answer to %.*s: only to its own address, localhost, and the names in `hosts` of the "
             "config file",
             (int)(host.n < HOST_SHOWN ? host.n : HOST_SHOWN), host.p);
    else
        fail(c, PROBLEM_foreign_origin,
             "a page of %.*s asks, and only pages of this broker may: no other origin is let in",
             (int)(origin.n < HOST_SHOWN ? origin.n : HOST_SHOWN), origin.p);
    traffic_asked(c->b, ROUTES);
    reply_failure(c);
    return true;
}

static void dispatch(struct call *c) {
    struct buf allow = {0};
    if (turned_away(c)) return;
    const struct route *r = route_of(c, &allow);
    traffic_asked(c->b, r ? (u32)(r - routes) : ROUTES);
    if (!is_health(r) && !ration_of_address(c, is_watching(r))) {
        reply_failure(c);
        buf_free(&allow);
        return;
    }
    if (r && (c->plain || decode_args(c)) && (c->req->found[1] || allowed(c, r)) &&
        (is_health(r) || ration_of_token(c, is_watching(r))) &&
        (c->req->query.n == 0 || *r->params == '*' || params_known(c, r->params))) {
        if (!c->b->draining || r->method == HTTP_GET || r->handler == api_ack) {
            r->handler(c);
            buf_free(&allow);
            return;
        }
        fail(c, PROBLEM_shutting_down, "this broker is about to exit; try again in a moment, with the same key");
    } else if (!r && allow.len) {
        buf_char(&allow, 0);
        c->failure.allow = allow.p;
        fail(c, PROBLEM_method_not_allowed, "there is %s here", allow.p);
    } else if (!r) {
        fail(c, PROBLEM_not_found, "no such path");
    }
    reply_failure(c);
    buf_free(&allow);
}

void broker_request(struct broker *b, struct broker_time t, void *conn, void **user, const struct http_request *req) {
    broker_advance(b, t);
    struct call c = {.b = b, .conn = conn, .user = user, .req = req, .failure = {.compare_left = COMPARED_IN_TURN}};
    c.who = req->found[0] ? req->found[0] : caller_of(b, req);
    b->scratch->compare_left = COMPARED_IN_TURN;
    b->asked_mono_ms = t.mono_ms;
    if (b->turn_us == 0) turn_begins(b);
    b->request = req;
    b->caller = c.who;
    dispatch(&c);
    b->request = NULL;
    b->caller = NULL;
    buf_free(&c.args);
    failure_free(&c.failure);
}
