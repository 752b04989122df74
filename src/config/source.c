/* Where webhooks come from: the entries of `sources`. */
#include <ctype.h>
#include <stdlib.h>

#include "config/config_priv.h"

enum { NAME_BYTES_MAX = 64, SOURCES_MAX = 1000 };

/* ---- what goes together */

static const struct node *verify_at(const struct node *n, const char *key) {
    const struct node *verify = node_get(n, SL("verify")), *at = verify ? node_get(verify, slice_str(key)) : NULL;
    return at ? at : verify ? verify : n;
}

/* Header names are compared as they come in: in small letters. */
static void lower_header(const struct binding *b, struct source_config *s) {
    char *copy = arena_alloc(b->arena, s->header.n + 1);
    for (size_t i = 0; i < s->header.n; i++) copy[i] = (char)tolower((u8)s->header.p[i]);
    s->header = slice_of(copy, s->header.n);
}

static hx_st check_scheme(const struct binding *b, const struct node *n, const struct source_config *s) {
    bool own = s->scheme == SCHEME_HMAC, none = s->scheme == SCHEME_NONE;
    if (!none && s->secrets.count == 0)
        return node_error(verify_at(n, "scheme"), b->err, "needs verify.secrets beside it");
    if (none && s->secrets.count) return node_error(verify_at(n, "secrets"), b->err, "the scheme none has no secrets");
    if (own && s->header.n == 0)
        return node_error(verify_at(n, "scheme"), b->err, "hmac needs verify.header beside it");
    if (!own && (s->header.n || s->prefix.n || s->encoding))
        return node_error(verify_at(n, s->header.n   ? "header"
                                       : s->prefix.n ? "prefix"
                                                     : "encoding"),
                          b->err, "is for the scheme hmac; the others say themselves where the signature is");
    return ST_OK;
}

static hx_st check_source(const struct binding *b, const struct node *n, struct source_config *s) {
    struct errbuf why;
    const struct node *queue = node_get(n, SL("queue"));
    if (!queue) return node_error(n, b->err, "queue is missing");
    if (!verify_at(n, "scheme") || !node_get(n, SL("verify")) || !node_get(node_get(n, SL("verify")), SL("scheme")))
        return node_error(verify_at(n, "scheme"), b->err,
                          "verify.scheme is missing: who may send here? none takes what a token may send");
    s->queue_at = (struct said_at){queue->line, queue->column};
    if (!config_queue_name_ok(s->queue, &why)) return node_error(queue, b->err, "%s", why.text);
    if (gate_refuse(queue, s->queue, b->err) != ST_OK) return ST_INVALID;
    lower_header(b, s);
    hx_st st = check_scheme(b, n, s);
    if (st != ST_OK || s->scheme != SCHEME_STANDARD) return st;
    return secrets_decode(b, verify_at(n, "secrets"), &s->secrets);
}

/* ---- reading */

static hx_st read_source(const struct binding *b, const struct node *n, struct source_config *s) {
    struct binding inner = {
        .keys = &config_keys[TABLE_SOURCE], .base = s, .arena = b->arena, .secrets = b->secrets, .err = b->err};
    *s = (struct source_config){
        .name = arena_copy(b->arena, n->name->text), .tolerance_ms = 300000, .at = {n->name->line, n->name->column}};
    if (!name_made_of(s->name, NAME_BYTES_MAX, "-_."))
        return node_error(n->name, b->err, "a source's name has 1 to %d letters, digits and - _ .", NAME_BYTES_MAX);
    if (n->kind != NODE_MAP)
        return node_error(n, b->err, "expected a map with queue and verify, not %s", node_kind_text(n));
    hx_st st = bind_map(&inner, n);
    return st == ST_OK ? check_source(b, n, s) : st;
}

static int by_name(const void *a, const void *b) {
    slice x = ((const struct source_config *)a)->name, y = ((const struct source_config *)b)->name;
    int order = memcmp(x.p, y.p, x.n < y.n ? x.n : y.n);
    return order ? order : (x.n > y.n) - (x.n < y.n);
}

hx_st sources_read(const struct binding *b, const struct node *n) {
    struct config *c = binding_config(b);
    hx_st st = ST_OK;
    if (n->kind != NODE_MAP) return node_error(n, b->err, "expected a map of sources, not %s", node_kind_text(n));
    if (n->count > SOURCES_MAX) return node_error(n, b->err, "more than %d sources", SOURCES_MAX);
    c->sources.at = arena_alloc(b->arena, n->count * sizeof(*c->sources.at));
    for (const struct node *s = n->first; s; s = s->next)
        st = both(st, read_source(b, s, &c->sources.at[c->sources.count++]));
    if (st == ST_OK && c->sources.count) qsort(c->sources.at, c->sources.count, sizeof(*c->sources.at), by_name);
    return st;
}

const struct source_config *config_source(const struct config *c, slice name) {
    struct source_config sought = {.name = name};
    if (c->sources.count == 0 || name.n > NAME_BYTES_MAX) return NULL;
    return bsearch(&sought, c->sources.at, c->sources.count, sizeof(sought), by_name);
}

/* ---- what a reload changes */

static void diff_source(const struct source_config *before, const struct source_config *after, struct buf *out) {
    bind_diff_named(&config_keys[TABLE_SOURCE], "source", (before ? before : after)->name, before, after,
                    "removed; what it sends gets 404", out);
}

void sources_diff(const struct config *before, const struct config *after, struct buf *out) {
    for (u32 i = 0; i < before->sources.count; i++)
        diff_source(&before->sources.at[i], config_source(after, before->sources.at[i].name), out);
    for (u32 i = 0; i < after->sources.count; i++)
        if (!config_source(before, after->sources.at[i].name)) diff_source(NULL, &after->sources.at[i], out);
}
