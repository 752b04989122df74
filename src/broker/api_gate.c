/* ANY /gate/{proxy}/...: what a request means to a proxy, and what of it the upstream gets. */
#include "broker/access.h"
#include "broker/api.h"
#include "broker/attrs.h"
#include "broker/broker_priv.h"
#include "broker/limits.h"
#include "broker/parse.h"
#include "broker/passing.h"
#include "broker/proxy_priv.h"
#include "config/template.h"

#define CONNECT_MS_MAX  10000
#define SCOPE_BYTES_MAX 64u

static const char *const method_names[] = {
    [HTTP_GET] = "GET",       [HTTP_HEAD] = "HEAD",       [HTTP_POST] = "POST",   [HTTP_PUT] = "PUT",
    [HTTP_DELETE] = "DELETE", [HTTP_OPTIONS] = "OPTIONS", [HTTP_PATCH] = "PATCH",
};
#define METHODS "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"

/* A request being taken apart, and the memory for what is made of it. */
struct passage {
    struct call *c;
    struct gate gate;
    slice path; /* behind the proxy's name */
    slice key;  /* as it is known; empty: none */
    struct buf url, fields, key_store, scope;
    struct attrs attrs;
    const char *lines[PASSED_FIELDS];
};

static void passage_free(struct passage *p) {
    buf_free(&p->url);
    buf_free(&p->fields);
    buf_free(&p->key_store);
    buf_free(&p->scope);
    attrs_free(&p->attrs);
}

/* ---- may it? */

/* To whom nothing of its queue is shown a proxy is not there. */
static bool may_pass(struct call *c, slice name) {
    struct buf queue = {0};
    slice token;
    bool shown = http_field_get(c->req, SL("hapax-token"), &token) == 1;
    buf_printf(&queue, GATE_PREFIX "%.*s", (int)name.n, name.p);
    bool ok = may(c, RIGHT_SEND, buf_slice(&queue));
    buf_free(&queue);
    if (!ok && c->failure.problem == PROBLEM_no_such_queue) fail(c, PROBLEM_not_found, "there is no such proxy");
    if (!ok && !shown && c->failure.problem == PROBLEM_unauthorized)
        fail(c, PROBLEM_unauthorized, "this needs a token of the broker's own: Hapax-Token: hx_...");
    return ok;
}

u64 proxy_body_limit(struct broker *b, struct http_request *head, slice name) {
    struct gate g;
    if (memchr(name.p, '%', name.n)) return PAYLOAD_BYTES_MAX; /* not decoded yet */
    if (!gate_find(b, name, &g)) return HTTP_BODY_UNWANTED;
    struct call c = {.b = b, .req = head, .who = head->found[0]};
    bool ok = !c.who || may_pass(&c, name); /* not asked yet: nobody has to be */
    failure_free(&c.failure);
    return ok ? PAYLOAD_BYTES_MAX : HTTP_BODY_UNWANTED;
}

/* A token of this broker in the field that is passed on, behind whatever scheme: the upstream must not get it. */
static bool token_is_ours(struct call *c) {
    slice shown = c->req->authorization;
    for (size_t i = 0; i + 3 < shown.n; i++)
        if (memcmp(shown.p + i, "hx_", 3) == 0 && (i == 0 || shown.p[i - 1] == ' ' || shown.p[i - 1] == '\t'))
            return access_by_token(c->b, slice_of(shown.p + i, shown.n - i))->number != 0;
    return false;
}

/* Behind "/gate/NAME". */
static slice path_behind(slice path) {
    const char *p = path.p + sizeof "/gate/" - 1, *end = path.p + path.n;
    while (p < end && *p != '/') p++;
    return slice_of(p, (size_t)(end - p));
}

static bool can_pass(struct passage *p) {
    struct call *c = p->c;
    const char *wrong = path_wrong(p->path);
    if (c->req->method == HTTP_OTHER) {
        c->failure.allow = METHODS;
        return fail(c, PROBLEM_method_not_allowed, "a proxy passes " METHODS);
    }
    if (!wrong && c->req->query.n && memchr(c->req->query.p, '#', c->req->query.n)) wrong = "the query has a #";
    if (wrong) return fail(c, PROBLEM_bad_request, "%s", wrong);
    return !token_is_ours(c) ||
           fail(c, PROBLEM_unauthorized,
                "Authorization is passed to the upstream, and this is a token of the broker: show it as "
                "Hapax-Token: hx_...");
}

/* ---- its key */

static bool changes_nothing(enum http_method m) {
    return m == HTTP_GET || m == HTTP_HEAD || m == HTTP_OPTIONS;
}

static bool wants_key(const struct proxy_config *p, slice method) {
    for (u32 i = 0; i < p->require_key.count; i++)
        if (slice_eq_nocase(p->require_key.at[i], method)) return true;
    return false;
}

static bool read_key(struct passage *p) {
    struct call *c = p->c;
    slice said, method = slice_str(method_names[c->req->method]);
    const char *why;
    if (changes_nothing(c->req->method)) return true;
    size_t times = http_field_get(c->req, SL("idempotency-key"), &said);
    if (times > 1) return fail(c, PROBLEM_key_invalid, "Idempotency-Key is given %zu times", times);
    if (times == 1)
        return parse_key_field(said, &p->key_store, &p->key, &why) || fail(c, PROBLEM_key_invalid, "%s", why);
    return !wants_key(p->gate.config, method) ||
           fail(c, PROBLEM_key_missing,
                "send the key in the Idempotency-Key header: what this call means, the same at every retry");
}

struct scope_fields {
    const struct http_request *req;
    bool twice; /* one of them is there more than once */
};

static slice header(void *ctx, slice name) {
    struct scope_fields *f = ctx;
    slice value = {0};
    f->twice |= http_field_get(f->req, name, &value) > 1;
    return value;
}

static void put_hash(struct passage *p, const char *kind, slice of) {
    u64 hash[2];
    struct siphash_key key;
    memcpy(&key, p->c->b->options.secret + sizeof key, sizeof key);
    siphash128(&key, of.p, of.n, hash);
    buf_slice_add(&p->scope, slice_str(kind));
    buf_hex(&p->scope, slice_of(hash, sizeof hash));
}

/* Of what the config says; else the token's name; else a hash of Authorization, behind a sign that no token's name has. A scope ends
 * at the first slash: it has none of its own. A long one would leave no room for the key. */
static bool make_scope(struct passage *p) {
    struct call *c = p->c;
    const struct template *t = p->gate.config->scope;
    struct payload_view *view = &c->b->scratch->view;
    struct errbuf why;
    if (!t && (c->who->number || c->req->authorization.n == 0)) return buf_slice_add(&p->scope, c->who->name), true;
    if (!t) return put_hash(p, "auth:", c->req->authorization), true;
    struct buf value = {0};
    slice type = {0};
    http_field_get(c->req, SL("content-type"), &type);
    struct scope_fields fields = {.req = c->req};
    payload_view_init(view, c->req->body, type, header, &fields);
    bool ok = template_eval(t, view, &value, &why) == TEMPLATE_OK;
    if (fields.twice) { /* the upstream may believe the other */
        err_set(&why, ST_INVALID, "a header that says so is given more than once");
        ok = false;
    }
    if (ok) buf_percent_encode(&p->scope, buf_slice(&value));
    if (ok && p->scope.len > SCOPE_BYTES_MAX) {
        buf_reset(&p->scope);
        put_hash(p, "scope:", buf_slice(&value));
    }
    buf_free(&value);
    return ok || fail(c, PROBLEM_key_invalid, "it is not known whose key this is: %s", why.text);
}

/* ---- what the upstream gets */

static struct outbound_request request_of(struct passage *p) {
    const struct http_request *req = p->c->req;
    const struct proxy_config *config = p->gate.config;
    buf_slice_add(&p->url, config->upstream);
    buf_slice_add(&p->url, p->path);
    if (req->query.n) buf_char(&p->url, '?');
    buf_slice_add(&p->url, req->query);
    buf_char(&p->url, 0);
    request_passes(req, &p->fields, p->lines);
    return (struct outbound_request){
        .method = method_names[req->method],
        .url = p->url.p,
        .headers = p->lines,
        .body = req->body,
        .connect_ms = (u32)(config->timeout_ms < CONNECT_MS_MAX ? config->timeout_ms : CONNECT_MS_MAX),
        .total_ms = (u32)config->timeout_ms,
        .answer_max = (u32)config->max_response,
        .allow_private = config->allow_private,
        .verbatim_head = true,
    };
}

/* Method, path, query, content type and body. The body first, by itself: it may be large, and is hashed where it lies. */
static u64 fingerprint_of(const struct passage *p, slice type) {
    const struct http_request *req = p->c->req;
    const struct core *core = p->c->b->core;
    u64 body = core_fingerprint(core, req->body);
    struct buf all = {0};
    buf_printf(&all, "%s\n", method_names[req->method]);
    buf_slice_add(&all, p->path);
    buf_char(&all, '\n');
    buf_slice_add(&all, req->query);
    buf_char(&all, '\n');
    buf_slice_add(&all, type);
    buf_char(&all, '\n');
    buf_add(&all, &body, sizeof body);
    u64 print = core_fingerprint(core, buf_slice(&all));
    buf_free(&all);
    return print;
}

static void note(struct passage *p, const char *name, slice value) {
    bool too_large;
    attrs_add(&p->attrs, slice_str(name), value, &too_large); /* for people: what cannot be noted is left out */
}

static struct send_in message_of(struct passage *p) {
    const struct http_request *req = p->c->req;
    struct send_in in = {.queue = p->gate.queue, .key = p->key, .payload = req->body};
    slice type = {0}, target = p->path;
    if (req->query.n) target.n = (size_t)(req->query.p + req->query.n - p->path.p);
    note(p, "method", slice_str(method_names[req->method]));
    note(p, "path", target);
    http_field_get(req, SL("content-type"), &type);
    if (text_ok(type, TYPE_BYTES_MAX)) in.content_type = type;
    in.fingerprint = fingerprint_of(p, type);
    in.attrs = buf_slice(&p->attrs.bytes);
    http_field_get(req, SL("traceparent"), &in.traceparent);
    http_field_get(req, SL("tracestate"), &in.tracestate);
    if (!text_ok(in.traceparent, 255)) in.traceparent = SL("");
    if (!text_ok(in.tracestate, 4096)) in.tracestate = SL("");
    if (!http_field_get(req, SL("hapax-request-id"), &in.request_id))
        http_field_get(req, SL("x-request-id"), &in.request_id);
    request_id_or_none(&in.request_id);
    return in;
}

/* ---- the request */

static bool pass(struct passage *p) {
    if (!can_pass(p) || !read_key(p)) return false;
    struct outbound_request r = request_of(p);
    if (p->key.n == 0) return gate_pass(p->c, &p->gate, &r);
    if (!make_scope(p)) return false;
    struct send_in in = message_of(p);
    return gate_run(p->c, &p->gate, &in, buf_slice(&p->scope), &r);
}

void api_gate(struct call *c) {
    struct passage p = {.c = c, .path = path_behind(c->req->path)};
    bool known = gate_find(c->b, c->arg[0], &p.gate);
    bool good = may_pass(c, c->arg[0]) && (known || fail(c, PROBLEM_not_found, "there is no such proxy")) && pass(&p);
    if (!good && known)
        gate_happened(c->b, p.gate.counts, c->failure.problem == PROBLEM_key_reused ? GATE_CONFLICT : GATE_REFUSED);
    if (!good) reply_failure(c);
    passage_free(&p);
}
