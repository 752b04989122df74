/* What calls are made of: addresses, headers, statuses, fields of answers. */
#include <ctype.h>
#include <stdio.h>

#include "base/json.h"
#include "config/call_template.h"
#include "config/config_priv.h"
#include "config/path.h"

enum { STATUSES_MAX = 64, HEADER_NAME_MAX = 128, HUNDREDS_LEAST = 1, HUNDREDS_MOST = 5 };

static hx_st not_a(const struct binding *b, const struct key *k, const struct node *n) {
    return node_error(n, b->err, "expected %s, not %s", key_type_text(k->type), node_kind_text(n));
}

/* The place inside a text. */
static hx_st wrong_inside(const struct binding *b, const struct node *n, u32 column, const struct errbuf *why) {
    struct node at = *n;
    at.column += column - 1 + (n->quoted ? 1 : 0);
    return node_error(&at, b->err, "%s", why->text);
}

/* ---- addresses and fields */

hx_st call_read(const struct binding *b, const struct key *k, const struct node *n) {
    struct errbuf why = {0};
    u32 column = 1;
    CHECK(k->size == sizeof(struct call_template *));
    if (n->kind != NODE_SCALAR) return not_a(b, k, n);
    hx_st st = call_template_compile(n->text, CALL_URL, b->arena, value_field(k, b->base), &column, &why);
    return st == ST_OK ? ST_OK : wrong_inside(b, n, column, &why);
}

hx_st field_read(const struct binding *b, const struct key *k, const struct node *n) {
    struct errbuf why = {0};
    u32 column = 1;
    struct path *path = arena_alloc(b->arena, sizeof *path);
    CHECK(k->size == sizeof path);
    if (n->kind != NODE_SCALAR) return not_a(b, k, n);
    hx_st st = path_compile(n->text, false, b->arena, path, &column, &why);
    if (st != ST_OK) return wrong_inside(b, n, column, &why);
    *(struct path **)value_field(k, b->base) = path;
    return ST_OK;
}

/* ---- headers */

/* What the broker, or who speaks HTTP for it, says itself. */
static bool is_ours(slice name) {
    static const char *const names[] = {
        "accept-encoding", "connection",        "content-length", "content-type", "expect",      "host",
        "keep-alive",      "idempotency-key",   "range",          "te",           "traceparent", "tracestate",
        "trailer",         "transfer-encoding", "upgrade"};
    static const char *const prefixes[] = {"hapax-", "proxy-", "webhook-"};
    bool ours = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) ours |= slice_eq(name, slice_str(names[i]));
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) ours |= slice_starts(name, slice_str(prefixes[i]));
    return ours;
}

static slice lower(struct arena *a, slice name) {
    char *copy = arena_alloc(a, name.n + 1);
    for (size_t i = 0; i < name.n; i++) copy[i] = (char)tolower((u8)name.p[i]);
    return slice_of(copy, name.n);
}

static hx_st check_header_name(const struct binding *b, const struct node *name, const struct call_headers *h,
                               slice as) {
    if (!name_made_of(name->text, HEADER_NAME_MAX, "!#$%&'*+-.^_`|~"))
        return node_error(name, b->err, "a header name has 1 to %d letters, digits and ! # $ %% & ' * + - . ^ _ ` | ~",
                          HEADER_NAME_MAX);
    if (is_ours(as)) return node_error(name, b->err, "Hapax says %.*s itself", (int)as.n, as.p);
    for (u32 i = 0; i < h->count; i++)
        if (slice_eq(h->at[i].name, as)) return node_error(name, b->err, "%.*s is given twice", (int)as.n, as.p);
    return h->count == CALL_HEADERS_MAX ? node_error(name, b->err, "more than %u headers", CALL_HEADERS_MAX) : ST_OK;
}

static hx_st read_template(const struct binding *b, const struct node *n, struct call_header *h) {
    struct errbuf why = {0};
    u32 column = 1;
    if (n->kind != NODE_SCALAR) return node_error(n, b->err, "expected text, not %s", node_kind_text(n));
    hx_st st = call_template_compile(n->text, CALL_HEADER, b->arena, &h->value, &column, &why);
    return st == ST_OK ? ST_OK : wrong_inside(b, n, column, &why);
}

static hx_st read_secret(const struct binding *b, const struct key *k, struct node *n, struct call_header *h) {
    slice text = SL("");
    struct key each = *k;
    each.type = TYPE_SECRET;
    hx_st st = secret_value_read(b, &each, n, &text, &h->lacking);
    if (st == ST_OK && has_control(text)) st = node_error(n, b->err, "what it stands for has a control character");
    h->value = call_template_verbatim(text, b->arena);
    return st;
}

static hx_st read_header(const struct binding *b, const struct key *k, struct node *n, struct call_headers *all) {
    bool secret = k->type == TYPE_SECRET_HEADERS;
    struct call_header h = {.name = lower(b->arena, n->name->text), .secret = secret};
    hx_st st = check_header_name(b, n->name, all, h.name);
    if (n->kind == NODE_NULL) return bind_no_value(n, b->err);
    st = both(st, secret ? read_secret(b, k, n, &h) : read_template(b, n, &h));
    h.written = node_json(b->arena, n);
    if (st == ST_OK) all->at[all->count++] = h;
    return st;
}

hx_st headers_read(const struct binding *b, const struct key *k, const struct node *n) {
    struct call_headers *all = value_field(k, b->base);
    hx_st st = ST_OK;
    CHECK(k->size == sizeof *all);
    if (k->type == TYPE_SECRET_HEADERS && b->secrets == SECRETS_REFUSED) return secrets_refused(b, n);
    if (n->kind != NODE_MAP) return not_a(b, k, n);
    u32 cap = all->count + n->count < CALL_HEADERS_MAX ? all->count + n->count : CALL_HEADERS_MAX;
    struct call_header *room = arena_alloc(b->arena, cap * sizeof *room);
    if (all->count) memcpy(room, all->at, all->count * sizeof *room);
    all->at = room;
    for (struct node *c = n->first; c; c = c->next) st = both(st, read_header(b, k, c, all));
    return st;
}

bool headers_said(const struct call_headers *h, bool secret) {
    bool said = false;
    for (u32 i = 0; i < h->count; i++) said |= h->at[i].secret == secret;
    return said;
}

bool headers_lack_secrets(const struct call_headers *h) {
    bool lacking = false;
    for (u32 i = 0; i < h->count; i++) lacking |= h->at[i].lacking;
    return lacking;
}

bool headers_same_secrets(const struct call_headers *a, const struct call_headers *b) {
    bool same = a->count == b->count;
    for (u32 i = 0; same && i < a->count; i++)
        same = slice_eq(a->at[i].name, b->at[i].name) && slice_eq(a->at[i].written, b->at[i].written) &&
               (a->at[i].lacking || b->at[i].lacking ||
                slice_eq(call_template_text(a->at[i].value), call_template_text(b->at[i].value)));
    return same;
}

void headers_put_json(const struct call_headers *h, bool secret, struct buf *out) {
    buf_char(out, '{');
    for (u32 i = 0; i < h->count; i++) {
        if (h->at[i].secret != secret) continue;
        if (out->p[out->len - 1] != '{') buf_char(out, ',');
        json_put_string(out, h->at[i].name);
        buf_char(out, ':');
        buf_slice_add(out, h->at[i].written);
    }
    buf_char(out, '}');
}

/* ---- statuses */

/* 404, or 5xx as 5. */
static bool parse_status(slice text, u16 *out) {
    u64 number;
    if (text.n != 3 || text.p[0] < '0' + HUNDREDS_LEAST || text.p[0] > '0' + HUNDREDS_MOST) return false;
    if (slice_eq_nocase(slice_of(text.p + 1, 2), SL("xx"))) return *out = (u16)(text.p[0] - '0'), true;
    if (!slice_u64(text, &number)) return false;
    *out = (u16)number;
    return true;
}

static void put_status(u16 status, struct buf *out) {
    buf_printf(out, status > HUNDREDS_MOST ? "%u" : "%uxx", status);
}

hx_st statuses_read(const struct binding *b, const struct key *k, const struct node *n) {
    struct statuses *s = value_field(k, b->base);
    hx_st st = ST_OK;
    CHECK(k->size == sizeof *s);
    if (n->kind != NODE_SEQ) return not_a(b, k, n);
    if (n->count > STATUSES_MAX) return node_error(n, b->err, "more than %d", STATUSES_MAX);
    *s = (struct statuses){.at = arena_alloc(b->arena, n->count * sizeof *s->at)};
    for (const struct node *c = n->first; c; c = c->next) {
        if (c->kind == NODE_SCALAR && parse_status(c->text, &s->at[s->count]))
            s->count++;
        else
            st = node_error(c, b->err, "\"%.*s\" is no status: they are 100 to 599, or a hundred like 5xx",
                            (int)(c->text.n > 80 ? 80 : c->text.n), c->text.p ? c->text.p : "");
    }
    return st;
}

void statuses_put_json(const struct statuses *s, struct buf *out) {
    buf_char(out, '[');
    for (u32 i = 0; i < s->count; i++) {
        if (i) buf_char(out, ',');
        if (s->at[i] > HUNDREDS_MOST) {
            buf_dec(out, s->at[i]);
            continue;
        }
        buf_char(out, '"');
        put_status(s->at[i], out);
        buf_char(out, '"');
    }
    buf_char(out, ']');
}

static bool listed(const struct statuses *s, u16 status) {
    bool there = false;
    for (u32 i = 0; i < s->count; i++) there |= s->at[i] == status;
    return there;
}

/* What somebody says beats a default. */
static void give_way(struct status_list *lists, u32 count, u32 mine, struct arena *arena) {
    struct statuses *from = lists[mine].list, kept = {.at = arena_alloc(arena, from->count * sizeof *kept.at)};
    for (u32 i = 0; i < from->count; i++) {
        bool said = false;
        for (u32 l = 0; l < count; l++) said |= l != mine && lists[l].at && listed(lists[l].list, from->at[i]);
        if (!said) kept.at[kept.count++] = from->at[i];
    }
    *from = kept;
}

static hx_st twice(const struct binding *b, const struct status_list *l, u32 i, const struct status_list *other) {
    struct buf text = {0};
    const struct node *at = l->at ? l->at->first : other->at;
    for (u32 k = 0; l->at && k < i; k++) at = at->next;
    put_status(l->list->at[i], &text);
    hx_st st = node_error(at, b->err, "%.*s is in %s already", (int)text.len, text.p, other->name);
    buf_free(&text);
    return st;
}

static hx_st lay_one(const struct binding *b, struct status_list *lists, u32 mine, u32 i, u8 of[STATUSES]) {
    u16 status = lists[mine].list->at[i];
    for (u32 l = 0; l < mine; l++)
        if (listed(lists[l].list, status)) return twice(b, &lists[mine], i, &lists[l]);
    u32 from = status > HUNDREDS_MOST ? status : status * 100u, most = status > HUNDREDS_MOST ? status : from + 99u;
    for (u32 s = from; s <= most; s++) of[s - STATUS_LEAST] = (u8)mine;
    return ST_OK;
}

hx_st statuses_lay(const struct binding *b, struct status_list *lists, u32 count, u8 none, u8 of[STATUSES]) {
    hx_st st = ST_OK;
    memset(of, none, STATUSES);
    for (u32 l = 0; l < count; l++)
        if (!lists[l].at) give_way(lists, count, l, b->arena);
    for (int single = 0; single <= 1; single++) /* hundreds first: what is more specific comes over them */
        for (u32 l = 0; l < count; l++)
            for (u32 i = 0; i < lists[l].list->count; i++)
                if ((lists[l].list->at[i] > HUNDREDS_MOST) == single) st = both(st, lay_one(b, lists, l, i, of));
    return st;
}
