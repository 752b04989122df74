/* Upstreams that answer twice the same: the entries of `proxies`, and the queues their keys live in. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

#include "config/call_template.h"
#include "config/config_priv.h"
#include "config/template.h"

enum { PROXIES_MAX = 1000, LEASE_AFTER_MS = 5000, METHODS_MAX = 16 };

/* An address as any that is called, without values, and nothing behind its path. */
static hx_st check_upstream(const struct binding *b, const struct node *n, struct proxy_config *p) {
    const struct node *at = node_get(n, SL("upstream"));
    struct call_template *url;
    struct errbuf why = {0};
    u32 column = 1;
    if (!at) return node_error(n, b->err, "upstream is missing: what should be called?");
    if (call_template_compile(p->upstream, CALL_URL, b->arena, &url, &column, &why) != ST_OK)
        return node_error(at, b->err, "%s", why.text);
    if (memchr(p->upstream.p, '?', p->upstream.n)) return node_error(at, b->err, "a query comes with the request only");
    while (p->upstream.n && p->upstream.p[p->upstream.n - 1] == '/') p->upstream.n--;
    p->upstream = arena_copy(b->arena, p->upstream);
    return ST_OK;
}

static hx_st check_methods(const struct binding *b, const struct node *n, const struct proxy_config *p) {
    static const char *const passing[] = {"GET", "HEAD", "OPTIONS", "TRACE", "CONNECT"};
    const struct node *at = node_get(n, SL("require_key"));
    if (p->require_key.count > METHODS_MAX) return node_error(at, b->err, "more than %d methods", METHODS_MAX);
    for (u32 i = 0; at && i < p->require_key.count; i++) {
        slice method = p->require_key.at[i];
        bool good = true;
        for (size_t k = 0; k < method.n; k++) good &= isupper((u8)method.p[k]) || method.p[k] == '-';
        if (!good) return node_error(at, b->err, "\"%s\" is no method: they are written like POST", method.p);
        for (size_t k = 0; k < sizeof passing / sizeof *passing; k++)
            if (slice_eq(method, slice_str(passing[k])))
                return node_error(at, b->err, "%s never needs a key: it passes through, or is refused", passing[k]);
    }
    return ST_OK;
}

/* Its rules follow from the proxy's: nothing in it is retried by the queue, and what is unknown waits for an answer. */
static struct queue_config *gate_of(const struct proxy_config *p, const struct config *c) {
    char name[sizeof GATE_PREFIX + PROXY_NAME_MAX];
    snprintf(name, sizeof name, GATE_PREFIX "%s", p->name.p);
    struct queue_config *q = config_queue_default(slice_str(name));
    q->rules.window_ms = p->window_ms;
    q->rules.lease_ms = (u32)(p->timeout_ms + LEASE_AFTER_MS);
    q->rules.on_unknown = ON_UNKNOWN_HOLD;
    if (p->reconcile) reconcile_rules(p->reconcile, &q->rules);
    q->key_scope = KEY_SCOPE_CREDENTIAL;
    q->idempotency = p->idempotency;
    q->remembers_ms = p->remembers_ms;
    q->reconcile = p->reconcile;
    q->proxy = p;
    q->file = arena_copy(q->arena, c->file);
    q->at = p->at;
    struct buf json = {0};
    config_queue_to_json(q, &json);
    q->json = arena_copy(q->arena, buf_slice(&json));
    buf_free(&json);
    return q;
}

static hx_st read_proxy(const struct binding *b, const struct node *n, struct proxy_config *p) {
    static slice post[] = {{"POST", 4}};
    struct binding inner = {
        .keys = &config_keys[TABLE_PROXY], .base = p, .arena = b->arena, .secrets = b->secrets, .err = b->err};
    *p = (struct proxy_config){.name = arena_copy(b->arena, n->name->text),
                               .require_key = {post, 1},
                               .window_ms = (i64)24 * 3600 * 1000,
                               .timeout_ms = 30000,
                               .max_response = 1 << 20,
                               .at = {n->name->line, n->name->column}};
    if (!name_made_of(p->name, PROXY_NAME_MAX, "-_."))
        return node_error(n->name, b->err, "a proxy's name has 1 to %u letters, digits and - _ .", PROXY_NAME_MAX);
    if (n->kind != NODE_MAP) return node_error(n, b->err, "expected a map with upstream, not %s", node_kind_text(n));
    hx_st st = bind_map(&inner, n);
    const struct node *reconcile = node_get(n, SL("reconcile"));
    if (st == ST_OK && p->reconcile && !node_get(reconcile, SL("allow_private")))
        ((struct reconcile_config *)p->reconcile)->allow_private = p->allow_private;
    if (st == ST_OK) st = both(check_upstream(b, n, p), check_methods(b, n, p));
    return st;
}

static int by_name(const void *a, const void *b) {
    slice x = ((const struct proxy_config *)a)->name, y = ((const struct proxy_config *)b)->name;
    int order = memcmp(x.p, y.p, x.n < y.n ? x.n : y.n);
    return order ? order : (x.n > y.n) - (x.n < y.n);
}

hx_st proxies_read(const struct binding *b, const struct node *n) {
    struct config *c = binding_config(b);
    hx_st st = ST_OK;
    if (n->kind != NODE_MAP) return node_error(n, b->err, "expected a map of proxies, not %s", node_kind_text(n));
    if (n->count > PROXIES_MAX) return node_error(n, b->err, "more than %d proxies", PROXIES_MAX);
    c->proxies.at = arena_alloc(b->arena, n->count * sizeof(*c->proxies.at));
    for (const struct node *p = n->first; p; p = p->next)
        st = both(st, read_proxy(b, p, &c->proxies.at[c->proxies.count++]));
    if (st == ST_OK && c->proxies.count) qsort(c->proxies.at, c->proxies.count, sizeof(*c->proxies.at), by_name);
    return st;
}

hx_st proxies_add_queues(struct config *c, const struct node *map) {
    struct queue_config **all = arena_alloc(c->arena, (c->queues.count + c->proxies.count) * sizeof *all);
    hx_st st = ST_OK;
    if (c->queues.count) memcpy(all, c->queues.at, c->queues.count * sizeof *all);
    c->queues.at = all;
    for (u32 i = 0; i < c->proxies.count; i++) {
        struct proxy_config *p = &c->proxies.at[i];
        p->queue = gate_of(p, c);
        all[c->queues.count++] = p->queue;
        if (p->queue->json.n > CONFIG_QUEUE_BYTES_MAX)
            st = node_error(node_get(map, p->name), NULL, "its rules take more than %u bytes", CONFIG_QUEUE_BYTES_MAX);
    }
    return st;
}

void proxies_free(struct config *c) {
    for (u32 i = 0; i < c->proxies.count; i++) template_free(c->proxies.at[i].scope);
}

const struct proxy_config *config_proxy(const struct config *c, slice name) {
    struct proxy_config sought = {.name = name};
    if (c->proxies.count == 0 || name.n > PROXY_NAME_MAX) return NULL;
    return bsearch(&sought, c->proxies.at, c->proxies.count, sizeof(sought), by_name);
}

/* ---- what a reload changes */

static void diff_proxy(const struct proxy_config *before, const struct proxy_config *after, struct buf *out) {
    bind_diff_named(&config_keys[TABLE_PROXY], "proxy", (before ? before : after)->name, before, after,
                    "removed; what is sent to it gets 404, its keys stay", out);
}

void proxies_diff(const struct config *before, const struct config *after, struct buf *out) {
    for (u32 i = 0; i < before->proxies.count; i++)
        diff_proxy(&before->proxies.at[i], config_proxy(after, before->proxies.at[i].name), out);
    for (u32 i = 0; i < after->proxies.count; i++)
        if (!config_proxy(before, after->proxies.at[i].name)) diff_proxy(NULL, &after->proxies.at[i], out);
}
