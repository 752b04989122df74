/* `tokens` and `anonymous`: who may do what. */
#include <ctype.h>
#include <stdlib.h>

#include "config/config_priv.h"

static const char *const right_names[] = {
#define RIGHT_NAME(name, text) text,
    "open", RIGHT_LIST(RIGHT_NAME) NULL
#undef RIGHT_NAME
};

const char *right_text(enum right r) {
    return right_names[r];
}

u8 right_implies(enum right r) {
    if (r == RIGHT_ADMIN) return RIGHTS_ALL;
    return (u8)(right_bit(r) | (r == RIGHT_OPERATE ? right_bit(RIGHT_OBSERVE) : 0));
}

/* A star that fits too little is tried again one character on; of several only the last one needs to be. */
bool grant_fits(slice pattern, slice queue) {
    size_t p = 0, q = 0, star = SIZE_MAX, from = 0;
    while (q < queue.n) {
        if (p < pattern.n && pattern.p[p] == '*') {
            star = p++;
            from = q;
        } else if (p < pattern.n && pattern.p[p] == queue.p[q]) {
            p++;
            q++;
        } else if (star == SIZE_MAX) {
            return false;
        } else {
            p = star + 1;
            q = ++from;
        }
    }
    while (p < pattern.n && pattern.p[p] == '*') p++;
    return p == pattern.n;
}

/* ---- grants */

static const char *right_at(const void *ctx, size_t i) {
    (void)ctx;
    return right_names[i + 1];
}

static hx_st read_right(const struct binding *b, const struct node *n, slice word, enum right *out) {
    for (int r = RIGHT_OPEN + 1; r < RIGHT_COUNT; r++) {
        *out = (enum right)r;
        if (slice_eq(word, slice_str(right_names[r]))) return ST_OK;
    }
    const char *near = nearest_name(word, right_at, NULL);
    return node_error(
        n, b->err, "\"%.*s\" is no right: there are send, receive, result, operate, observe and admin%s%s%s",
        (int)(word.n > 80 ? 80 : word.n), word.p, near ? ". Did you mean " : "", near ? near : "", near ? "?" : "");
}

static hx_st check_pattern(const struct binding *b, const struct node *n, slice pattern) {
    bool ok = pattern.n > 0 && pattern.n <= QUEUE_NAME_MAX;
    for (size_t i = 0; i < pattern.n; i++) ok &= isalnum((u8)pattern.p[i]) || memchr("_-.:*", pattern.p[i], 5);
    if (ok) return ST_OK;
    return node_error(n, b->err,
                      "behind the right stands a queue's name, in which * stands for any characters: letters, "
                      "digits and _ - . : * only, at most %u",
                      QUEUE_NAME_MAX);
}

static hx_st read_grant(const struct binding *b, const struct node *n, struct grant *g) {
    slice word, pattern;
    if (n->kind == NODE_NULL) return bind_no_value(n, b->err);
    if (n->kind != NODE_SCALAR)
        return node_error(n, b->err, "expected a right like observe or send:payments, not %s", node_kind_text(n));
    bool some = slice_cut(n->text, ':', &word, &pattern);
    hx_st st = read_right(b, n, word, &g->right);
    if (st == ST_OK && some) st = check_pattern(b, n, pattern);
    g->everywhere = !some;
    g->queue = arena_copy(b->arena, pattern);
    g->at = (struct said_at){n->line, n->column};
    return st;
}

hx_st grants_read(const struct binding *b, const struct key *k, const struct node *n) {
    struct grants *to = value_field(k, b->base);
    CHECK(k->size == sizeof(*to));
    if (n->kind != NODE_SEQ)
        return node_error(n, b->err, "expected %s, not %s", key_type_text(k->type), node_kind_text(n));
    if (n->count > GRANTS_MAX) return node_error(n, b->err, "more than %d rights", GRANTS_MAX);
    *to = (struct grants){.at = arena_alloc(b->arena, n->count * sizeof(*to->at))};
    hx_st st = ST_OK;
    for (const struct node *c = n->first; c; c = c->next) st = both(st, read_grant(b, c, &to->at[to->count++]));
    return st;
}

void grants_put_json(const struct grants *g, struct buf *out) {
    buf_char(out, '[');
    for (u32 i = 0; i < g->count; i++) /* nothing in them needs an escape */
        buf_printf(out, "%s\"%s%s%.*s\"", i ? "," : "", right_text(g->at[i].right), g->at[i].everywhere ? "" : ":",
                   (int)g->at[i].queue.n, g->at[i].queue.p);
    buf_char(out, ']');
}

/* ---- tokens */

hx_st hashes_read(const struct binding *b, const struct key *k, const struct node *n) {
    struct token_hashes *to = value_field(k, b->base);
    CHECK(k->size == sizeof(*to));
    if (n->kind != NODE_SEQ)
        return node_error(n, b->err, "expected %s, not %s", key_type_text(k->type), node_kind_text(n));
    if (n->count == 0) return node_error(n, b->err, "empty: this token could never be shown");
    if (n->count > TOKEN_HASHES_MAX) return node_error(n, b->err, "more than %d hashes", TOKEN_HASHES_MAX);
    *to = (struct token_hashes){.at = arena_alloc(b->arena, n->count * sizeof(*to->at))};
    hx_st st = ST_OK;
    for (const struct node *c = n->first; c; c = c->next) {
        /* What is wrong is not repeated: somebody may have put the token itself here. */
        if (c->kind != NODE_SCALAR || !hex_decode(c->text, to->at[to->count].bytes, TOKEN_HASH_BYTES))
            st = both(st, node_error(c, b->err,
                                     "not the SHA-256 of a token: 64 hexadecimal digits, as `hapax token new` prints"));
        to->at[to->count++].at = (struct said_at){c->line, c->column};
    }
    return st;
}

static hx_st check_token_name(const struct binding *b, const struct node *n) {
    bool ok = n->text.n <= TOKEN_NAME_MAX;
    for (size_t i = 0; i < n->text.n; i++) ok &= isalnum((u8)n->text.p[i]) || memchr("_-.", n->text.p[i], 3);
    if (!ok)
        return node_error(n, b->err, "a token's name is made of letters, digits and _ - . only, at most %d",
                          TOKEN_NAME_MAX);
    if (slice_eq(n->text, SL("anonymous")))
        return node_error(n, b->err, "anonymous is the name of calls without a token");
    return ST_OK;
}

static hx_st read_token(const struct binding *b, const struct node *n, struct token_config *t) {
    static const char *const required[] = {"name", "sha256", "allow"};
    struct binding inner = {.keys = &config_keys[TABLE_TOKEN], .base = t, .arena = b->arena, .err = b->err};
    hx_st st = bind_map(&inner, n);
    if (n->kind != NODE_MAP) return st;
    t->at = (struct said_at){n->line, n->column};
    for (size_t i = 0; i < 3; i++)
        if (!node_get(n, slice_str(required[i]))) st = both(st, node_error(n, b->err, "%s is missing", required[i]));
    const struct node *name = node_get(n, SL("name"));
    return st == ST_OK ? check_token_name(b, name) : st;
}

/* The i-th entry's hash `h` among those before it, its own included. */
static bool hash_before(const struct config *c, u32 i, u32 h) {
    const u8 *sought = c->tokens.at[i].sha256.at[h].bytes;
    for (u32 t = 0; t <= i; t++)
        for (u32 o = 0; o < (t == i ? h : c->tokens.at[t].sha256.count); o++)
            if (memcmp(c->tokens.at[t].sha256.at[o].bytes, sought, TOKEN_HASH_BYTES) == 0) return true;
    return false;
}

/* Two owners of one token, or two tokens of one name: neither the trail nor a right would mean anything. */
static hx_st check_unique(const struct binding *b, const struct config *c, u32 i, const struct node *n) {
    const struct token_config *t = &c->tokens.at[i];
    const struct node *hash = node_get(n, SL("sha256"))->first;
    hx_st st = ST_OK;
    for (u32 before = 0; before < i; before++)
        if (slice_eq(c->tokens.at[before].name, t->name))
            st = node_error(node_get(n, SL("name")), b->err, "there is a token %s already, in line %u", t->name.p,
                            c->tokens.at[before].at.line);
    for (u32 h = 0; h < t->sha256.count; h++, hash = hash->next)
        if (hash_before(c, i, h)) st = both(st, node_error(hash, b->err, "the same token twice"));
    return st;
}

hx_st tokens_read(const struct binding *b, const struct node *n) {
    struct config *c = binding_config(b);
    hx_st st = ST_OK;
    if (n->kind != NODE_SEQ) return node_error(n, b->err, "expected a list of maps, not %s", node_kind_text(n));
    if (n->count > TOKENS_MAX) return node_error(n, b->err, "more than %d tokens", TOKENS_MAX);
    c->tokens.at = arena_alloc(c->arena, n->count * sizeof(*c->tokens.at));
    for (const struct node *t = n->first; t; t = t->next)
        st = both(st, read_token(b, t, &c->tokens.at[c->tokens.count++]));
    u32 i = 0;
    for (const struct node *t = n->first; st == ST_OK && t; t = t->next) st = check_unique(b, c, i++, t);
    return st;
}

const struct token_config *config_token(const struct config *c, slice name) {
    for (u32 i = 0; i < c->tokens.count; i++)
        if (slice_eq(c->tokens.at[i].name, name)) return &c->tokens.at[i];
    return NULL;
}

hx_st tokens_check(const struct config *c, const struct node *list) {
    hx_st st = ST_OK;
    u32 i = 0;
    for (const struct node *n = list ? list->first : NULL; n; n = n->next) {
        const struct token_config *t = &c->tokens.at[i++];
        if (t->tenant.n && !config_tenant(c, t->tenant))
            st = both(st,
                      node_error(node_get(n, SL("tenant")), NULL, "there is no tenant %s in `tenants`", t->tenant.p));
    }
    return st;
}

/* ---- what a reload changes */

static void diff_token(const struct token_config *before, const struct token_config *after, struct buf *out) {
    bind_diff_named(&config_keys[TABLE_TOKEN], "token", (before ? before : after)->name, before, after, "removed", out);
}

void tokens_diff(const struct config *before, const struct config *after, struct buf *out) {
    for (u32 i = 0; i < before->tokens.count; i++)
        diff_token(&before->tokens.at[i], config_token(after, before->tokens.at[i].name), out);
    for (u32 i = 0; i < after->tokens.count; i++)
        if (!config_token(before, after->tokens.at[i].name)) diff_token(NULL, &after->tokens.at[i], out);
}
