/* Single values: from a node to a field. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

#include "config/address.h"
#include "config/config_priv.h"
#include "config/fingerprint.h"
#include "config/schema.h"
#include "config/template.h"

enum { TEXT_BYTES_MAX = 255, HOST_BYTES_MAX = 253, HOSTS_MAX = 64, TEXTS_MAX = 64 };

static bool is(slice s, const char *text) {
    return slice_eq(s, slice_str(text));
}

bool name_made_of(slice name, size_t most, const char *others) {
    bool good = name.n > 0 && name.n <= most;
    for (size_t i = 0; good && i < name.n; i++)
        good = isalnum((u8)name.p[i]) || (name.p[i] && strchr(others, name.p[i]));
    return good;
}

static hx_st not_a(const struct node *n, const struct key *k, struct errbuf *err) {
    if (n->kind != NODE_SCALAR)
        return node_error(n, err, "expected %s, not %s", key_type_text(k->type), node_kind_text(n));
    return node_error(n, err, "\"%.*s\" is not %s", (int)(n->text.n > 80 ? 80 : n->text.n), n->text.p,
                      key_type_text(k->type));
}

static hx_st check_range(const struct binding *b, const struct key *k, const struct node *n, u64 v) {
    if (v >= (u64)k->least && v <= (u64)k->most) return ST_OK;
    struct buf range = {0};
    value_put_number(k, (u64)k->least, &range);
    buf_lit(&range, " to ");
    value_put_number(k, (u64)k->most, &range);
    hx_st st = node_error(n, b->err, "%.*s is outside %.*s%s", (int)n->text.n, n->text.p, (int)range.len, range.p,
                          v > (u64)k->most && (k->type == TYPE_WINDOW || k->type == TYPE_KEEP) ? "; say forever" : "");
    buf_free(&range);
    return st;
}

/* A number too large for 64 bits is still a number: the message should not call it something else. */
static bool is_overflow(const struct key *k, slice text) {
    char shorter[8] = {0};
    size_t digits = 0;
    while (digits < text.n && text.p[digits] >= '0' && text.p[digits] <= '9') digits++;
    if (digits < 10 || text.n - digits > 3) return false;
    u64 unused;
    i64 unused_ms;
    snprintf(shorter, sizeof(shorter), "1%.*s", (int)(text.n - digits), text.p + digits);
    if (k->type == TYPE_SIZE) return size_parse(slice_str(shorter), &unused);
    return k->type == TYPE_COUNT ? digits == text.n : duration_parse(slice_str(shorter), &unused_ms);
}

static hx_st not_a_number(const struct binding *b, const struct key *k, const struct node *n) {
    if (n->kind == NODE_SCALAR && n->text.n > 1 && n->text.p[0] == '-' && n->text.p[1] >= '0' && n->text.p[1] <= '9')
        return node_error(n, b->err, "%.*s is negative", (int)n->text.n, n->text.p);
    if (n->kind == NODE_SCALAR && is_overflow(k, n->text)) return node_error(n, b->err, "this number is too large");
    return not_a(n, k, b->err);
}

static bool parse_duration(slice text, u64 *out) {
    i64 ms;
    if (!duration_parse(text, &ms)) return false;
    *out = (u64)ms;
    return true;
}

static bool parse_rate(slice text, u64 *out) {
    slice number, unit;
    return slice_cut(text, '/', &number, &unit) && is(unit, "s") && slice_u64(number, out);
}

/* Kept by the minute. */
static bool parse_pace(slice text, u64 *out) {
    slice number, unit;
    bool good = slice_cut(text, '/', &number, &unit) && slice_u64(number, out) && *out <= UINT32_MAX;
    if (good && is(unit, "s")) *out *= 60;
    return good && (is(unit, "s") || is(unit, "m"));
}

static hx_st read_number(const struct binding *b, const struct key *k, const struct node *n, u64 *out) {
    bool ok = n->kind == NODE_SCALAR;
    if (ok && k->type == TYPE_SIZE)
        ok = size_parse(n->text, out);
    else if (ok && k->type == TYPE_COUNT)
        ok = slice_u64(n->text, out);
    else if (ok && k->type == TYPE_RATE)
        ok = parse_rate(n->text, out);
    else if (ok && k->type == TYPE_PACE)
        ok = parse_pace(n->text, out);
    else if (ok)
        ok = parse_duration(n->text, out);
    return ok ? check_range(b, k, n, *out) : not_a_number(b, k, n);
}

static hx_st read_keep(const struct binding *b, const struct key *k, const struct node *n, u64 *out) {
    if (n->kind != NODE_SCALAR || !is(n->text, "forever")) return read_number(b, k, n, out);
    *out = WINDOW_FOREVER;
    return ST_OK;
}

/* Percent to parts per million: up to four decimals. */
static bool parse_percent(slice text, u64 *ppm) {
    if (text.n < 2 || text.p[text.n - 1] != '%') return false;
    slice whole, decimals;
    bool point = slice_cut(slice_of(text.p, text.n - 1), '.', &whole, &decimals);
    if (point && (decimals.n == 0 || decimals.n > PPM_DECIMALS)) return false;
    u64 units, parts = 0;
    if (!slice_u64(whole, &units) || units > 100 || (point && !slice_u64(decimals, &parts))) return false;
    for (size_t i = decimals.n; i < PPM_DECIMALS; i++) parts *= 10;
    *ppm = units * 10000 + parts;
    return true;
}

static hx_st read_percent(const struct binding *b, const struct key *k, const struct node *n, u64 *out) {
    if (n->kind != NODE_SCALAR || !parse_percent(n->text, out)) return not_a(n, k, b->err);
    if (*out < (u64)k->least || *out > (u64)k->most)
        return node_error(n, b->err, "%.*s is outside 0.0001%% to 100%%", (int)n->text.n, n->text.p);
    return ST_OK;
}

static hx_st read_bool(const struct binding *b, const struct key *k, const struct node *n, u64 *out) {
    bool plain = n->kind == NODE_SCALAR && !n->quoted;
    *out = plain && is(n->text, "true");
    return *out || (plain && is(n->text, "false")) ? ST_OK : not_a(n, k, b->err);
}

static const char *choice_at(const void *ctx, size_t i) {
    return ((const char *const *)ctx)[i];
}

static hx_st unknown_choice(const struct binding *b, const struct key *k, const struct node *n) {
    struct buf words = {0};
    for (size_t i = 0; k->names[i]; i++) buf_printf(&words, "%s%s", i ? ", " : "", k->names[i]);
    const char *near = nearest_name(n->text, choice_at, k->names);
    hx_st st =
        node_error(n, b->err, "\"%.*s\" is none of %.*s%s%s%s", (int)(n->text.n > 80 ? 80 : n->text.n), n->text.p,
                   (int)words.len, words.p, near ? ". Did you mean " : "", near ? near : "", near ? "?" : "");
    buf_free(&words);
    return st;
}

static hx_st read_choice(const struct binding *b, const struct key *k, const struct node *n, u64 *out) {
    if (n->kind != NODE_SCALAR) return not_a(n, k, b->err);
    for (*out = 0; k->names[*out]; ++*out)
        if (is(n->text, k->names[*out])) return ST_OK;
    return unknown_choice(b, k, n);
}

static hx_st read_names(const struct binding *b, const struct key *k, const struct node *n) {
    if (n->kind != NODE_SEQ) return not_a(n, k, b->err);
    struct key each = *k;
    each.type = TYPE_CHOICE;
    u64 bits = 0;
    hx_st st = ST_OK;
    for (const struct node *c = n->first; c; c = c->next) {
        u64 bit = 0;
        st = both(st, c->kind == NODE_NULL ? bind_no_value(c, b->err) : read_choice(b, &each, c, &bit));
        bits |= (u64)1 << bit;
    }
    if (st == ST_OK) value_store(k, b->base, bits);
    return st;
}

static hx_st check_text(const struct binding *b, const struct key *k, const struct node *n) {
    if (n->kind != NODE_SCALAR) return not_a(n, k, b->err);
    if (n->text.n == 0) return node_error(n, b->err, "empty");
    if (n->text.n > TEXT_BYTES_MAX) return node_error(n, b->err, "longer than %d bytes", TEXT_BYTES_MAX);
    if (has_control(n->text)) return node_error(n, b->err, "a control character");
    if (strstr(n->text.p, "${")) return node_error(n, b->err, "${...} is for secrets only, and this is none");
    return ST_OK;
}

static hx_st read_text(const struct binding *b, const struct key *k, const struct node *n) {
    hx_st st = check_text(b, k, n);
    CHECK(k->size == sizeof(slice));
    if (st == ST_OK) *(slice *)value_field(k, b->base) = arena_copy(b->arena, n->text);
    return st;
}

static hx_st read_address(const struct binding *b, const struct key *k, const struct node *n) {
    struct address address;
    hx_st st = read_text(b, k, n);
    return st == ST_OK && !address_parse(n->text, &address) ? not_a(n, k, b->err) : st;
}

static hx_st read_host(const struct binding *b, const struct key *k, const struct node *n, struct host_names *hosts) {
    u8 address[ADDRESS_BYTES];
    if (n->kind == NODE_NULL) return bind_no_value(n, b->err);
    hx_st st = check_text(b, k, n);
    if (st != ST_OK) return st;
    hosts->any |= is(n->text, "*");
    bool name = n->text.n <= HOST_BYTES_MAX;
    for (size_t i = 0; i < n->text.n; i++) name &= isalnum((u8)n->text.p[i]) || strchr("-._", n->text.p[i]);
    if (!name && !is(n->text, "*") && !address_bytes(n->text, address))
        return node_error(n, b->err, "\"%.*s\" is neither a host name nor an address, without a port, nor *",
                          (int)(n->text.n > 80 ? 80 : n->text.n), n->text.p);
    hosts->at[hosts->count++] = arena_copy(b->arena, n->text);
    return ST_OK;
}

static hx_st read_hosts(const struct binding *b, const struct key *k, const struct node *n) {
    struct host_names *hosts = value_field(k, b->base);
    CHECK(k->size == sizeof(*hosts));
    if (n->kind != NODE_SEQ) return not_a(n, k, b->err);
    if (n->count > HOSTS_MAX) return node_error(n, b->err, "more than %d names", HOSTS_MAX);
    *hosts = (struct host_names){.at = arena_alloc(b->arena, n->count * sizeof(*hosts->at))};
    hx_st st = ST_OK;
    for (const struct node *c = n->first; c; c = c->next) st = both(st, read_host(b, k, c, hosts));
    return st;
}

/* A date is the first moment of its day. */
static hx_st read_date(const struct binding *b, const struct key *k, const struct node *n) {
    i64 ms;
    char whole[32];
    if (n->kind != NODE_SCALAR || n->text.n > 64) return not_a(n, k, b->err);
    snprintf(whole, sizeof(whole), "%.10sT00:00:00Z", n->text.p);
    if (!rfc3339_parse(n->text.n == 10 ? slice_str(whole) : n->text, &ms) || ms <= 0) return not_a(n, k, b->err);
    value_store(k, b->base, (u64)ms);
    return ST_OK;
}

static hx_st read_texts(const struct binding *b, const struct key *k, const struct node *n) {
    struct texts *texts = value_field(k, b->base);
    CHECK(k->size == sizeof(*texts));
    if (n->kind != NODE_SEQ) return not_a(n, k, b->err);
    if (n->count > TEXTS_MAX) return node_error(n, b->err, "more than %d", TEXTS_MAX);
    *texts = (struct texts){.at = arena_alloc(b->arena, n->count * sizeof(*texts->at))};
    hx_st st = ST_OK;
    for (const struct node *c = n->first; c; c = c->next) {
        st = both(st, c->kind == NODE_NULL ? bind_no_value(c, b->err) : check_text(b, k, c));
        texts->at[texts->count++] = arena_copy(b->arena, c->text);
    }
    return st;
}

static hx_st read_template(const struct binding *b, const struct key *k, const struct node *n) {
    struct errbuf why = {0};
    u32 column = 1;
    if (n->kind != NODE_SCALAR) return not_a(n, k, b->err);
    CHECK(k->size == sizeof(struct template *));
    if (template_compile(n->text, (struct template **)value_field(k, b->base), &column, &why) == ST_OK) return ST_OK;
    struct node at = *n; /* the place inside the text */
    at.column += column - 1 + (n->quoted ? 1 : 0);
    return node_error(&at, b->err, "%s", why.text);
}

static hx_st read_bound(const struct binding *b, const struct key *k, const struct node *n, u64 *min, u64 *max) {
    bool is_min = is(n->name->text, "min");
    if (!is_min && !is(n->name->text, "max"))
        return node_error(n->name, b->err, "no key \"%.*s\": an adaptive window has min and max", (int)n->name->text.n,
                          n->name->text.p);
    return n->kind == NODE_NULL ? bind_no_value(n, b->err) : read_number(b, k, n, is_min ? min : max);
}

static hx_st read_window_bounds(const struct binding *b, const struct key *k, const struct node *n) {
    struct rules *r = &binding_queue(b)->rules;
    struct key bound = *k;
    bound.type = TYPE_DURATION;
    u64 min = 0, max = 0;
    hx_st st = ST_OK;
    for (const struct node *c = n->first; c; c = c->next) st = both(st, read_bound(b, &bound, c, &min, &max));
    if (st != ST_OK) return st;
    if (!min || !max) return node_error(n, b->err, "an adaptive window needs both min and max");
    if (min > max) return node_error(n, b->err, "min is above max");
    r->window_ms = r->window_min_ms = (i64)min;
    r->window_max_ms = (i64)max;
    return ST_OK;
}

static hx_st read_window(const struct binding *b, const struct key *k, const struct node *n) {
    struct rules *r = &binding_queue(b)->rules;
    if (n->kind == NODE_MAP) return read_window_bounds(b, k, n);
    u64 ms = 0;
    hx_st st = read_keep(b, k, n, &ms);
    if (st != ST_OK) return st;
    r->window_ms = (i64)ms;
    r->window_min_ms = r->window_max_ms = 0;
    return ST_OK;
}

static hx_st read_upstreams(const struct binding *b, const struct key *k, const struct node *n) {
    if (n->kind != NODE_MAP) return not_a(n, k, b->err);
    struct upstreams *u = value_field(k, b->base);
    CHECK(k->size == sizeof(*u));
    struct key each = *k;
    each.type = TYPE_DURATION;
    u->at = arena_alloc(b->arena, n->count * sizeof(*u->at));
    u->count = 0;
    hx_st st = ST_OK;
    for (const struct node *c = n->first; c; c = c->next) {
        u64 ms = 0;
        st = both(st, c->kind == NODE_NULL ? bind_no_value(c, b->err) : read_number(b, &each, c, &ms));
        u->at[u->count++] = (struct upstream){arena_copy(b->arena, c->name->text), (i64)ms};
    }
    return st;
}

slice node_json(struct arena *a, const struct node *n) {
    struct buf b = {0};
    node_put_json(n, &b);
    slice json = arena_copy(a, buf_slice(&b));
    buf_free(&b);
    return json;
}

static hx_st read_fingerprint(const struct binding *b, const struct node *n) {
    struct queue_config *q = binding_queue(b);
    q->fingerprint_json = node_json(b->arena, n);
    return fingerprint_from_tree(n, &q->fingerprint, b->err);
}

static hx_st read_schema(const struct binding *b, const struct node *n) {
    struct queue_config *q = binding_queue(b);
    q->schema_json = node_json(b->arena, n);
    return schema_from_tree(n, &q->schema, b->err);
}

static hx_st read_plain(const struct binding *b, const struct key *k, const struct node *n) {
    u64 v = 0;
    hx_st st;
    if (k->type == TYPE_KEEP)
        st = read_keep(b, k, n, &v);
    else if (k->type == TYPE_PERCENT)
        st = read_percent(b, k, n, &v);
    else if (k->type == TYPE_BOOL)
        st = read_bool(b, k, n, &v);
    else if (k->type == TYPE_CHOICE)
        st = read_choice(b, k, n, &v);
    else
        st = read_number(b, k, n, &v);
    if (st == ST_OK) value_store(k, b->base, v);
    return st;
}

/* A key that may be unset can be said to be: then a preset or a template of files does not decide for it. What is required is a name
 * (of a token, a queue): `none` is one like any other there. */
static bool says_none(const struct key *k, const struct node *n) {
    bool named = k->type == TYPE_TEXT && strncmp(k->doc, "Required.", 9) == 0;
    return !named && k->type != TYPE_CHOICE && strcmp(k->fallback, "none") == 0 && n->kind == NODE_SCALAR &&
           is(n->text, "none");
}

hx_st value_read(const struct binding *b, const struct key *k, const struct node *n) {
    if (n->kind == NODE_NULL) return bind_no_value(n, b->err);
    if (says_none(k, n)) return ST_OK; /* what can be unset starts unset */
    switch (k->type) {
    case TYPE_TEXT:
        return read_text(b, k, n);
    case TYPE_SECRET:
    case TYPE_URL:
        return secret_read(b, k, n);
    case TYPE_SECRETS:
        return secrets_read(b, k, n);
    case TYPE_NAMES:
        return read_names(b, k, n);
    case TYPE_HOSTS:
        return read_hosts(b, k, n);
    case TYPE_ADDRESS:
        return read_address(b, k, n);
    case TYPE_TEMPLATE:
        return read_template(b, k, n);
    case TYPE_FINGERPRINT:
        return read_fingerprint(b, n);
    case TYPE_SCHEMA:
        return read_schema(b, n);
    case TYPE_WINDOW:
        return read_window(b, k, n);
    case TYPE_UPSTREAMS:
        return read_upstreams(b, k, n);
    case TYPE_LISTENERS:
        return listeners_read(b, n);
    case TYPE_GRANTS:
        return grants_read(b, k, n);
    case TYPE_HASHES:
        return hashes_read(b, k, n);
    case TYPE_DATE:
        return read_date(b, k, n);
    case TYPE_TOKENS:
        return tokens_read(b, n);
    case TYPE_SECRET_TEXTS:
        return secrets_read(b, k, n);
    case TYPE_TEXTS:
        return read_texts(b, k, n);
    case TYPE_SOURCES:
        return sources_read(b, n);
    case TYPE_CALL:
        return call_read(b, k, n);
    case TYPE_HEADERS:
    case TYPE_SECRET_HEADERS:
        return headers_read(b, k, n);
    case TYPE_STATUSES:
        return statuses_read(b, k, n);
    case TYPE_FIELD:
        return field_read(b, k, n);
    case TYPE_DELIVER:
        return deliver_read(b, k, n);
    case TYPE_RECONCILE:
        return reconcile_read(b, k, n);
    case TYPE_PROXIES:
        return proxies_read(b, n);
    case TYPE_TENANTS:
        return tenants_read(b, n);
    case TYPE_RELAYS:
        return relays_read(b, n);
    case TYPE_QUEUES:
        return queues_read(b, n);
    default:
        return read_plain(b, k, n);
    }
}
