/* Tenants: each has the queues whose names begin with its prefix, and limits over all of them together. */
#include <ctype.h>
#include <stdlib.h>

#include "config/config_priv.h"

/* ---- orders */

static int compare(slice x, slice y) {
    int order = memcmp(x.p, y.p, x.n < y.n ? x.n : y.n);
    return order ? order : (x.n > y.n) - (x.n < y.n);
}

static int by_name(const void *a, const void *b) {
    return compare(((const struct tenant_config *)a)->name, ((const struct tenant_config *)b)->name);
}

static int by_prefix(const void *a, const void *b) {
    return compare((*(const struct tenant_config *const *)a)->prefix,
                   (*(const struct tenant_config *const *)b)->prefix);
}

/* ---- reading */

static bool name_ok(slice name) {
    bool ok = name.n > 0 && name.n <= TENANT_NAME_MAX;
    for (size_t i = 0; i < name.n; i++) ok &= isalnum((u8)name.p[i]) || memchr("_-.", name.p[i], 3);
    return ok;
}

static hx_st read_tenant(const struct binding *b, const struct node *n, struct tenant_config *t) {
    struct binding inner = {.keys = &config_keys[TABLE_TENANT], .base = t, .arena = b->arena, .err = b->err};
    struct errbuf why;
    const struct node *prefix = node_get(n, SL("prefix"));
    hx_st st = bind_map(&inner, n);
    t->name = arena_copy(b->arena, n->name->text);
    if (!name_ok(t->name))
        st = node_error(n->name, b->err, "a tenant's name is made of letters, digits and _ - . only, at most %u",
                        TENANT_NAME_MAX);
    if (slice_eq(t->name, SL("none")))
        st = node_error(n->name, b->err, "none is the word for no tenant: take another name");
    if (n->kind != NODE_MAP || st != ST_OK) return st;
    if (!prefix) return node_error(n, b->err, "prefix is missing");
    if (!config_queue_name_ok(t->prefix, &why) || t->prefix.n == QUEUE_NAME_MAX)
        return node_error(prefix, b->err, "queue names begin with it: at most %u letters, digits and _ - . : only",
                          QUEUE_NAME_MAX - 1);
    return ST_OK;
}

/* Where one prefix begins with another the two stand side by side when sorted, or those between them overlap too. */
static hx_st check_overlap(const struct config *c, const struct node *map, struct errbuf *err) {
    hx_st st = ST_OK;
    for (u32 i = 1; i < c->tenants.count; i++) {
        const struct tenant_config *before = c->tenants.by_prefix[i - 1], *t = c->tenants.by_prefix[i];
        if (!slice_starts(t->prefix, before->prefix)) continue;
        const struct node *at = node_get(node_get(map, t->name), SL("prefix"));
        st = node_error(at, err, "overlaps with the prefix \"%s\" of tenant %s: a queue could be both's",
                        before->prefix.p, before->name.p);
    }
    return st;
}

hx_st tenants_read(const struct binding *b, const struct node *n) {
    struct config *c = binding_config(b);
    hx_st st = ST_OK;
    if (n->kind != NODE_MAP) return node_error(n, b->err, "expected a map of tenants, not %s", node_kind_text(n));
    if (n->count > TENANTS_MAX) return node_error(n, b->err, "more than %u tenants", TENANTS_MAX);
    c->tenants.at = arena_alloc(b->arena, n->count * sizeof(*c->tenants.at));
    c->tenants.by_prefix = arena_alloc(b->arena, n->count * sizeof(*c->tenants.by_prefix));
    for (const struct node *t = n->first; t; t = t->next)
        st = both(st, read_tenant(b, t, &c->tenants.at[c->tenants.count++]));
    if (st != ST_OK || c->tenants.count == 0) return st;
    qsort(c->tenants.at, c->tenants.count, sizeof(*c->tenants.at), by_name);
    for (u32 i = 0; i < c->tenants.count; i++) c->tenants.by_prefix[i] = &c->tenants.at[i];
    qsort(c->tenants.by_prefix, c->tenants.count, sizeof(*c->tenants.by_prefix), by_prefix);
    return check_overlap(c, n, b->err);
}

/* ---- looking */

const struct tenant_config *config_tenant(const struct config *c, slice name) {
    struct tenant_config sought = {.name = name};
    return c->tenants.count ? bsearch(&sought, c->tenants.at, c->tenants.count, sizeof(sought), by_name) : NULL;
}

const struct tenant_config *config_tenant_of(const struct config *c, slice queue) {
    u32 from = 0, to = c->tenants.count; /* prefixes before from are not above the name, those from `to` on are */
    while (from < to) {
        u32 at = from + (to - from) / 2;
        if (compare(c->tenants.by_prefix[at]->prefix, queue) <= 0)
            from = at + 1;
        else
            to = at;
    }
    /* The last one not above it: were it another's, the two would overlap. */
    const struct tenant_config *t = from ? c->tenants.by_prefix[from - 1] : NULL;
    return t && slice_starts(queue, t->prefix) ? t : NULL;
}

/* The file itself keeps to what it says. */
hx_st tenants_check(const struct config *c, const struct node *map) {
    hx_st st = ST_OK;
    u64 *queues = mem_zalloc((c->tenants.count + 1) * sizeof(*queues));
    for (u32 i = 0; i < c->queues.count; i++) {
        const struct tenant_config *t = config_tenant_of(c, c->queues.at[i]->name);
        if (t) queues[t - c->tenants.at]++;
    }
    for (u32 i = 0; i < c->tenants.count; i++) {
        const struct tenant_config *t = &c->tenants.at[i];
        if (!t->queues || queues[i] <= t->queues) continue;
        const struct node *at = node_get(node_get(node_get(map, t->name), SL("limits")), SL("queues"));
        st = node_error(at, NULL, "this file alone declares %llu queues under %s", (unsigned long long)queues[i],
                        t->prefix.p);
    }
    mem_free(queues);
    return st;
}

static void diff_tenant(const struct tenant_config *before, const struct tenant_config *after, struct buf *out) {
    bind_diff_named(&config_keys[TABLE_TENANT], "tenant", (before ? before : after)->name, before, after,
                    "removed; its queues stay, without its limits", out);
}

void tenants_diff(const struct config *before, const struct config *after, struct buf *out) {
    for (u32 i = 0; i < before->tenants.count; i++)
        diff_tenant(&before->tenants.at[i], config_tenant(after, before->tenants.at[i].name), out);
    for (u32 i = 0; i < after->tenants.count; i++)
        if (!config_tenant(before, after->tenants.at[i].name)) diff_tenant(NULL, &after->tenants.at[i], out);
}
