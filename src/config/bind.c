/* A map read into a struct, and back, by a table of keys. The tables are flat ("retry.transient.max"); the nesting of the
 * document is found in their paths: a level is a prefix, and its names are what the paths have next. */
#include "config/config_priv.h"

#include <stdio.h>

#include "base/json.h"

enum { PATH_BYTES_MAX = 128 };

struct level {
    const struct key_rows *keys;
    slice prefix; /* "" or "retry.transient." */
};

static bool in_level(const struct level *l, const struct key *k) {
    return slice_starts(slice_str(k->path), l->prefix);
}

/* What the key is called in this level; *leaf: it is a value there, not a map. */
static slice name_in(const struct level *l, const struct key *k, bool *leaf) {
    slice path = slice_str(k->path), head, tail;
    *leaf = !slice_cut(slice_of(path.p + l->prefix.n, path.n - l->prefix.n), '.', &head, &tail);
    return head;
}

/* The next name of the level from key *i on, or false. Keys of one map stand together in the table. */
static bool next_name(const struct level *l, u32 *i, slice *name, const struct key **leaf) {
    slice before = *name;
    for (; *i < l->keys->count; ++*i) {
        const struct key *k = &l->keys->at[*i];
        bool is_leaf;
        if (!in_level(l, k)) continue;
        *name = name_in(l, k, &is_leaf);
        if (slice_eq(*name, before)) continue;
        *leaf = is_leaf ? k : NULL;
        ++*i;
        return true;
    }
    return false;
}

/* ---- reading */

/* Names are parts of paths and so not NUL-terminated: "did you mean" gets copies. */
struct names {
    char at[64][64];
    size_t count;
};

static const char *name_at(const void *ctx, size_t i) {
    const struct names *names = ctx;
    return i < names->count ? names->at[i] : NULL;
}

static void names_of(const struct level *l, struct names *out) {
    slice name = SL("");
    const struct key *leaf;
    out->count = 0;
    for (u32 i = 0; next_name(l, &i, &name, &leaf);) {
        CHECK(out->count < sizeof(out->at) / sizeof(out->at[0]));
        snprintf(out->at[out->count++], sizeof(out->at[0]), "%.*s", (int)name.n, name.p);
    }
}

/* What other systems call it. */
static const char *foreign_name(slice name) {
    static const char *const words[][2] = {
        {"visibility_timeout", "lease"},
        {"ack_timeout", "lease"},
        {"ttl", "window"},
        {"dedup_window", "window"},
        {"dedup_ttl", "window"},
        {"retries", "retry.transient.attempts"},
        {"max_attempts", "retry.transient.attempts"},
        {"dlq", "dead"},
        {"dead_letter", "dead"},
        {"group_by", "order_by"},
        {"idempotency_key", "key"},
        {"push", "deliver"},
        {"webhook", "deliver"},
    };
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (slice_eq(name, slice_str(words[i][0]))) return words[i][1];
    return NULL;
}

static hx_st unknown_name(const struct binding *b, const struct level *l, const struct node *name) {
    struct names names;
    struct buf known = {0};
    names_of(l, &names);
    const char *near = nearest_name(name->text, name_at, &names);
    if (!near) near = foreign_name(name->text);
    if (near)
        buf_printf(&known, ". Did you mean %s?", near);
    else if (names.count <= 16)
        for (size_t i = 0; i < names.count; i++) buf_printf(&known, "%s%s", i ? ", " : ": known are ", names.at[i]);
    hx_st st = node_error(name, b->err, "no key \"%.*s\"%.*s", (int)(name->text.n > 64 ? 64 : name->text.n),
                          name->text.p, (int)known.len, known.p ? known.p : "");
    buf_free(&known);
    return st;
}

hx_st bind_no_value(const struct node *n, struct errbuf *err) {
    return node_error(n, err, "nothing is given; leave the line out for the default");
}

static hx_st not_a_map(const struct binding *b, const struct level *l, const struct node *n) {
    struct names names;
    struct buf known = {0};
    names_of(l, &names);
    for (size_t i = 0; i < names.count && names.count <= 8; i++)
        buf_printf(&known, "%s%s", i ? ", " : " with ", names.at[i]);
    hx_st st =
        node_error(n, b->err, "expected a map%.*s, not %s", (int)known.len, known.p ? known.p : "", node_kind_text(n));
    buf_free(&known);
    return st;
}

static hx_st bind_level(const struct binding *b, const struct level *l, const struct node *map);

static hx_st bind_entry(const struct binding *b, const struct level *l, const struct node *entry) {
    slice name = SL("");
    const struct key *leaf = NULL;
    u32 i = 0;
    while (next_name(l, &i, &name, &leaf))
        if (slice_eq(name, entry->name->text)) break;
    if (!slice_eq(name, entry->name->text)) return unknown_name(b, l, entry->name);
    if (leaf) {
        if (b->said) b->said[leaf - b->keys->at] = (struct said_at){entry->name->line, entry->name->column};
        return value_read(b, leaf, entry);
    }
    char path[PATH_BYTES_MAX];
    snprintf(path, sizeof(path), "%.*s%.*s.", (int)l->prefix.n, l->prefix.p, (int)name.n, name.p);
    struct level inner = {l->keys, slice_str(path)};
    return bind_level(b, &inner, entry);
}

static hx_st bind_level(const struct binding *b, const struct level *l, const struct node *map) {
    if (map->kind == NODE_NULL) return bind_no_value(map, b->err);
    if (map->kind != NODE_MAP) return not_a_map(b, l, map);
    hx_st st = ST_OK;
    for (const struct node *entry = map->first; entry; entry = entry->next) st = both(st, bind_entry(b, l, entry));
    return st;
}

hx_st bind_map(const struct binding *b, const struct node *map) {
    struct level top = {b->keys, SL("")};
    return bind_level(b, &top, map);
}

/* ---- writing */

static void put_level(const struct level *l, const void *base, struct buf *out) {
    slice name = SL("");
    const struct key *leaf;
    buf_char(out, '{');
    size_t empty = out->len;
    for (u32 i = 0; next_name(l, &i, &name, &leaf);) {
        size_t before = out->len;
        if (leaf && !value_is_set(leaf, base)) continue;
        if (out->len > empty) buf_char(out, ',');
        json_put_string(out, name);
        buf_char(out, ':');
        if (leaf) {
            value_put_json(leaf, base, out);
            continue;
        }
        char path[PATH_BYTES_MAX];
        snprintf(path, sizeof(path), "%.*s%.*s.", (int)l->prefix.n, l->prefix.p, (int)name.n, name.p);
        struct level inner = {l->keys, slice_str(path)};
        size_t start = out->len;
        put_level(&inner, base, out);
        if (out->len == start + 2) out->len = before; /* nothing set inside */
    }
    buf_char(out, '}');
}

void bind_put_json(const struct key_rows *keys, const void *base, struct buf *out) {
    struct level top = {keys, SL("")};
    put_level(&top, base, out);
}

/* For people: without the quotes of a string. */
static void put_value(const struct key *k, const void *base, struct buf *out) {
    if (!value_is_set(k, base)) {
        buf_lit(out, "none");
        return;
    }
    size_t from = out->len;
    if (k->type == TYPE_DELIVER || k->type == TYPE_RECONCILE) { /* the whole of it would be a page */
        const void *inner = *(void **)value_field(k, base);
        k = &config_keys[k->type == TYPE_DELIVER ? TABLE_DELIVER : TABLE_RECONCILE].at[0];
        base = inner;
    }
    value_put_json(k, base, out);
    bool word = out->p[from] == '"' && !memchr(out->p + from, '\\', out->len - from);
    if (!word) return;
    memmove(out->p + from, out->p + from + 1, out->len - from - 2);
    out->len -= 2;
}

/* What has a table of its own is told key by key, if it was there before and is there now. */
static bool diff_inner(const struct key *k, const void *before, const void *after, const char *prefix,
                       struct buf *out) {
    enum key_table table = k->type == TYPE_DELIVER ? TABLE_DELIVER : TABLE_RECONCILE;
    if (k->type != TYPE_DELIVER && k->type != TYPE_RECONCILE) return false;
    if (!value_is_set(k, before) || !value_is_set(k, after)) return false;
    struct buf inner = {0};
    buf_printf(&inner, "%s%s.", prefix, k->path);
    buf_char(&inner, '\0');
    bind_diff(&config_keys[table], *(void **)value_field(k, before), *(void **)value_field(k, after), inner.p, out);
    buf_free(&inner);
    return true;
}

void bind_diff(const struct key_rows *keys, const void *before, const void *after, const char *prefix,
               struct buf *out) {
    struct buf old = {0}, new = {0};
    for (u32 i = 0; i < keys->count; i++) {
        if (diff_inner(&keys->at[i], before, after, prefix, out)) continue;
        if (value_is_secret(&keys->at[i])) {
            bool same = value_same_secret(&keys->at[i], before, after);
            if (!same) buf_printf(out, "%s%s: changed\n", prefix, keys->at[i].path);
            continue;
        }
        buf_reset(&old);
        buf_reset(&new);
        put_value(&keys->at[i], before, &old);
        put_value(&keys->at[i], after, &new);
        if (slice_eq(buf_slice(&old), buf_slice(&new))) continue;
        buf_printf(out, "%s%s: %.*s -> %.*s\n", prefix, keys->at[i].path, (int)old.len, old.p, (int)new.len, new.p);
    }
    buf_free(&old);
    buf_free(&new);
}

void bind_diff_named(const struct key_rows *keys, const char *what, slice name, const void *before, const void *after,
                     const char *removed, struct buf *out) {
    struct buf prefix = {0};
    buf_printf(&prefix, "%s %.*s: ", what, (int)name.n, name.p);
    buf_char(&prefix, '\0');
    if (before && after)
        bind_diff(keys, before, after, prefix.p, out);
    else
        buf_printf(out, "%s%s\n", prefix.p, after ? "added" : removed);
    buf_free(&prefix);
}
