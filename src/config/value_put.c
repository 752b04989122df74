/* Single values: from a field to JSON, and to text. */
#include <stdio.h>

#include "base/json.h"
#include "config/call_template.h"
#include "config/config_priv.h"
#include "config/path.h"

void value_put_number(const struct key *k, u64 v, struct buf *out) {
    if (k->type == TYPE_SIZE)
        buf_size(out, v);
    else if (k->type == TYPE_COUNT)
        buf_dec(out, v);
    else if (k->type == TYPE_RATE)
        buf_printf(out, "%llu/s", (unsigned long long)v);
    else if (k->type == TYPE_PACE)
        buf_printf(out, "%llu/%s", (unsigned long long)(v % 60 ? v : v / 60), v % 60 ? "m" : "s");
    else
        buf_duration(out, (i64)v);
}

bool value_is_set(const struct key *k, const void *base) {
    bool optional = strcmp(k->fallback, "none") == 0;
    switch (k->type) {
    case TYPE_TEXT:
    case TYPE_ADDRESS:
    case TYPE_SECRET:
    case TYPE_URL:
        return !optional || ((const slice *)value_field(k, base))->n > 0;
    case TYPE_TEMPLATE:
    case TYPE_SCHEMA:
    case TYPE_CALL:
    case TYPE_FIELD:
    case TYPE_DELIVER:
    case TYPE_RECONCILE:
        return *(void **)value_field(k, base) != NULL;
    case TYPE_HEADERS:
    case TYPE_SECRET_HEADERS:
        return headers_said(value_field(k, base), k->type == TYPE_SECRET_HEADERS);
    case TYPE_STATUSES:
        return ((const struct statuses *)value_field(k, base))->count > 0;
    case TYPE_SECRETS:
    case TYPE_SECRET_TEXTS:
        return ((const struct secrets *)value_field(k, base))->count > 0;
    case TYPE_NAMES:
        return value_load(k, base) != 0;
    case TYPE_TEXTS:
        return ((const struct texts *)value_field(k, base))->count > 0;
    case TYPE_HOSTS:
        return ((const struct host_names *)value_field(k, base))->count > 0;
    case TYPE_UPSTREAMS:
        return ((const struct upstreams *)value_field(k, base))->count > 0;
    case TYPE_LISTENERS:
        return true;
    case TYPE_GRANTS:
        return ((const struct grants *)value_field(k, base))->count > 0;
    case TYPE_HASHES:
        return ((const struct token_hashes *)value_field(k, base))->count > 0;
    case TYPE_TOKENS:
    case TYPE_TENANTS:
    case TYPE_RELAYS:
    case TYPE_SOURCES:
    case TYPE_PROXIES:
    case TYPE_QUEUES:
        return false;
    default:
        return !optional || value_load(k, base) != 0;
    }
}

bool value_is_secret(const struct key *k) {
    return k->type == TYPE_SECRET || k->type == TYPE_SECRETS || k->type == TYPE_SECRET_TEXTS || k->type == TYPE_URL ||
           k->type == TYPE_HASHES || k->type == TYPE_SECRET_HEADERS;
}

static bool same_hashes(const struct token_hashes *a, const struct token_hashes *b) {
    bool same = a->count == b->count;
    for (u32 i = 0; same && i < a->count; i++) same = memcmp(a->at[i].bytes, b->at[i].bytes, TOKEN_HASH_BYTES) == 0;
    return same;
}

bool value_same_secret(const struct key *k, const void *a, const void *b) {
    CHECK(value_is_secret(k));
    if (k->type == TYPE_HASHES) return same_hashes(value_field(k, a), value_field(k, b));
    if (k->type == TYPE_SECRET || k->type == TYPE_URL)
        return slice_eq(*(const slice *)value_field(k, a), *(const slice *)value_field(k, b));
    if (k->type == TYPE_SECRET_HEADERS) return headers_same_secrets(value_field(k, a), value_field(k, b));
    const struct secrets *x = value_field(k, a), *y = value_field(k, b);
    bool same = x->count == y->count && slice_eq(x->written, y->written), told = !x->lacking && !y->lacking;
    for (u32 i = 0; same && told && i < x->count; i++) same = slice_eq(x->at[i], y->at[i]);
    return same;
}

static void put_quoted_number(const struct key *k, u64 v, struct buf *out) {
    buf_char(out, '"');
    value_put_number(k, v, out);
    buf_char(out, '"');
}

static void put_keep(const struct key *k, i64 ms, struct buf *out) {
    if (ms == WINDOW_FOREVER)
        buf_lit(out, "\"forever\"");
    else
        put_quoted_number(k, (u64)ms, out);
}

static void put_window(const struct key *k, const struct rules *r, struct buf *out) {
    if (r->window_max_ms == 0) {
        put_keep(k, r->window_ms, out);
        return;
    }
    buf_lit(out, "{\"min\":");
    put_quoted_number(k, (u64)r->window_min_ms, out);
    buf_lit(out, ",\"max\":");
    put_quoted_number(k, (u64)r->window_max_ms, out);
    buf_char(out, '}');
}

static void put_percent(u64 ppm, struct buf *out) {
    u64 parts = ppm % 10000, digits = PPM_DECIMALS;
    buf_printf(out, "\"%llu", (unsigned long long)(ppm / 10000));
    while (parts && parts % 10 == 0) parts /= 10, digits--;
    if (parts) buf_printf(out, ".%0*llu", (int)digits, (unsigned long long)parts);
    buf_lit(out, "%\"");
}

static void put_upstreams(const struct key *k, const struct upstreams *u, struct buf *out) {
    buf_char(out, '{');
    for (u32 i = 0; i < u->count; i++) {
        if (i) buf_char(out, ',');
        json_put_string(out, u->at[i].name);
        buf_char(out, ':');
        put_quoted_number(k, (u64)u->at[i].ms, out);
    }
    buf_char(out, '}');
}

static void put_names(const struct key *k, u64 bits, struct buf *out) {
    buf_char(out, '[');
    for (u32 i = 0; k->names[i]; i++) {
        if (!(bits >> i & 1)) continue;
        if (out->p[out->len - 1] != '[') buf_char(out, ',');
        json_put_string(out, slice_str(k->names[i]));
    }
    buf_char(out, ']');
}

static void put_texts(const slice *at, u32 count, struct buf *out) {
    buf_char(out, '[');
    for (u32 i = 0; i < count; i++) {
        if (i) buf_char(out, ',');
        json_put_string(out, at[i]);
    }
    buf_char(out, ']');
}

/* As it is written shortest. */
static void put_listeners(const struct listeners *l, struct buf *out) {
    if (l->count == 1 && !l->at[0].tls_cert.n) {
        json_put_string(out, l->at[0].address);
        return;
    }
    buf_char(out, '[');
    for (u32 i = 0; i < l->count; i++) {
        if (i) buf_char(out, ',');
        bind_put_json(&config_keys[TABLE_LISTENER], &l->at[i], out);
    }
    buf_char(out, ']');
}

static void put_fingerprint(const struct queue_config *q, struct buf *out) {
    buf_slice_add(out, q->fingerprint_json.n ? q->fingerprint_json : SL("\"bytes\""));
}

void value_put_json(const struct key *k, const void *base, struct buf *out) {
    const struct queue_config *q = base; /* for the types only a queue has */
    switch (k->type) {
    case TYPE_SECRET:
    case TYPE_URL:
    case TYPE_HASHES:
        buf_lit(out, "\"" NODE_WITHHELD "\"");
        break;
    case TYPE_SECRETS:
    case TYPE_SECRET_TEXTS:
        buf_slice_add(out, ((const struct secrets *)value_field(k, base))->written);
        break;
    case TYPE_GRANTS:
        grants_put_json(value_field(k, base), out);
        break;
    case TYPE_DATE:
        buf_char(out, '"');
        buf_rfc3339(out, (i64)value_load(k, base));
        buf_char(out, '"');
        break;
    case TYPE_NAMES:
        put_names(k, value_load(k, base), out);
        break;
    case TYPE_HOSTS:
        put_texts(((const struct host_names *)value_field(k, base))->at,
                  ((const struct host_names *)value_field(k, base))->count, out);
        break;
    case TYPE_TEXTS:
        put_texts(((const struct texts *)value_field(k, base))->at, ((const struct texts *)value_field(k, base))->count,
                  out);
        break;
    case TYPE_LISTENERS:
        put_listeners(value_field(k, base), out);
        break;
    case TYPE_TEXT:
    case TYPE_ADDRESS:
        json_put_string(out, *(const slice *)value_field(k, base));
        break;
    case TYPE_TEMPLATE:
        json_put_string(out, template_text(*(struct template **)value_field(k, base)));
        break;
    case TYPE_CALL:
        json_put_string(out, call_template_text(*(struct call_template **)value_field(k, base)));
        break;
    case TYPE_FIELD:
        json_put_string(out, (*(struct path **)value_field(k, base))->text);
        break;
    case TYPE_HEADERS:
    case TYPE_SECRET_HEADERS:
        headers_put_json(value_field(k, base), k->type == TYPE_SECRET_HEADERS, out);
        break;
    case TYPE_STATUSES:
        statuses_put_json(value_field(k, base), out);
        break;
    case TYPE_DELIVER:
        bind_put_json(&config_keys[TABLE_DELIVER], *(void **)value_field(k, base), out);
        break;
    case TYPE_RECONCILE:
        bind_put_json(&config_keys[TABLE_RECONCILE], *(void **)value_field(k, base), out);
        break;
    case TYPE_FINGERPRINT:
        put_fingerprint(q, out);
        break;
    case TYPE_SCHEMA:
        buf_slice_add(out, q->schema_json);
        break;
    case TYPE_WINDOW:
        put_window(k, &q->rules, out);
        break;
    case TYPE_UPSTREAMS:
        put_upstreams(k, value_field(k, base), out);
        break;
    case TYPE_KEEP:
        put_keep(k, (i64)value_load(k, base), out);
        break;
    case TYPE_PERCENT:
        put_percent(value_load(k, base), out);
        break;
    case TYPE_BOOL:
        buf_slice_add(out, value_load(k, base) ? SL("true") : SL("false"));
        break;
    case TYPE_CHOICE:
        json_put_string(out, slice_str(k->names[value_load(k, base)]));
        break;
    case TYPE_COUNT:
        buf_dec(out, value_load(k, base));
        break;
    default:
        put_quoted_number(k, value_load(k, base), out);
    }
}

static struct value_text text_of(struct buf *b) {
    struct value_text t;
    snprintf(t.p, sizeof(t.p), "%.*s", (int)b->len, b->p);
    buf_free(b);
    return t;
}

struct value_text value_duration_text(i64 ms) {
    struct buf b = {0};
    buf_duration(&b, ms);
    return text_of(&b);
}

struct value_text value_size_text(u64 bytes) {
    struct buf b = {0};
    buf_size(&b, bytes);
    return text_of(&b);
}
