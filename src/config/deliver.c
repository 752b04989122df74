/* What the broker calls for a queue: `deliver`, and `reconcile`, which a proxy may have too. */
#include <ctype.h>

#include "config/call_template.h"
#include "config/config_priv.h"

enum { KEEP_HEADERS_MAX = 32 };

static const struct node *find(const struct node *n, const char *map, const char *key) {
    const struct node *inner = map ? node_get(n, slice_str(map)) : n;
    return inner ? node_get(inner, slice_str(key)) : NULL;
}

static struct binding inner_of(const struct binding *b, enum key_table table, void *base) {
    return (struct binding){
        .keys = &config_keys[table], .base = base, .arena = b->arena, .secrets = b->secrets, .err = b->err};
}

static hx_st expect_map(const struct binding *b, const struct key *k, const struct node *n) {
    if (n->kind == NODE_MAP) return ST_OK;
    return node_error(n, b->err, "expected %s, not %s", key_type_text(k->type), node_kind_text(n));
}

/* ---- deliver */

static u16 transient_default[] = {401, 403, 408, 409, 425, 429, 5}, rejected_default[] = {402, 422},
           poison_default[] = {3, 4};
#define STATUSES_OF(list)                                                                                              \
    { list, sizeof(list) / sizeof *(list) }

static struct deliver_config *deliver_new(struct arena *arena) {
    static slice location[] = {{"location", 8}};
    struct deliver_config *d = arena_alloc(arena, sizeof *d);
    *d = (struct deliver_config){
        .method = SL("POST"),
        .timeout_ms = 10000,
        .concurrency = 32,
        .said = {STATUSES_OF(transient_default), STATUSES_OF(rejected_default), STATUSES_OF(poison_default)},
        .keep_body = 65536,
        .keep_headers = {location, 1},
        .circuit = {.ratio_ppm = 500000, .of = 10, .within_ms = 60000, .open_ms = 30000}};
    return d;
}

static hx_st check_method(const struct binding *b, const struct deliver_config *d, const struct node *n) {
#define METHOD(name, text) text,
    static const char *const methods[] = {METHOD_LIST(METHOD)};
#undef METHOD
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (slice_eq(d->method, slice_str(methods[i]))) return ST_OK;
    return node_error(find(n, NULL, "method"), b->err, "\"%s\" is none of POST, PUT, PATCH, DELETE, GET", d->method.p);
}

static hx_st check_kept(const struct binding *b, struct deliver_config *d, const struct node *n) {
    const struct node *said = find(n, "keep", "headers");
    if (!said) return ST_OK;
    if (d->keep_headers.count > KEEP_HEADERS_MAX) return node_error(said, b->err, "more than %d", KEEP_HEADERS_MAX);
    for (u32 i = 0; i < d->keep_headers.count; i++) {
        slice name = d->keep_headers.at[i];
        char *copy = arena_alloc(b->arena, name.n + 1);
        if (!name_made_of(name, name.n, "-_.")) return node_error(said, b->err, "\"%s\" is no header's name", name.p);
        for (size_t k = 0; k < name.n; k++) copy[k] = (char)tolower((u8)name.p[k]);
        d->keep_headers.at[i] = slice_of(copy, name.n);
    }
    return ST_OK;
}

/* 2xx is taken and 1xx no answer: neither is a failure to be classified. */
static hx_st check_failures(const struct binding *b, const struct statuses *s, const struct node *n) {
    const struct node *at = n ? n->first : NULL;
    for (u32 i = 0; at && i < s->count; i++, at = at->next) {
        u32 hundred = s->at[i] < STATUS_LEAST ? s->at[i] : s->at[i] / 100u;
        if (hundred < 3) return node_error(at, b->err, "%s is no failure: 2xx means that it was taken", at->text.p);
    }
    return ST_OK;
}

/* A status no list has keeps what the defaults make of it. */
static u8 default_class(u32 status) {
    static const struct statuses lists[] = {STATUSES_OF(transient_default), STATUSES_OF(rejected_default),
                                            STATUSES_OF(poison_default)};
    static const u8 classes[] = {CLASS_TRANSIENT, CLASS_REJECTED, CLASS_POISON};
    u8 class = status < 300 ? CLASS_NONE : CLASS_POISON;
    for (u32 single = 0; single <= 1; single++)
        for (u32 l = 0; l < 3; l++)
            for (u32 i = 0; i < lists[l].count; i++)
                if (lists[l].at[i] == (single ? status : status / 100)) class = classes[l];
    return class;
}

static hx_st classify(const struct binding *b, struct deliver_config *d, const struct node *n) {
    static const u8 classes[] = {CLASS_TRANSIENT, CLASS_REJECTED, CLASS_POISON};
    const u8 none = 255;
    struct status_list lists[] = {{&d->said.transient, find(n, "classify", "transient"), "transient"},
                                  {&d->said.rejected, find(n, "classify", "rejected"), "rejected"},
                                  {&d->said.poison, find(n, "classify", "poison"), "poison"}};
    u8 of[STATUSES];
    hx_st st = ST_OK;
    for (u32 l = 0; l < 3; l++) st = both(st, check_failures(b, lists[l].list, lists[l].at));
    if (st == ST_OK) st = statuses_lay(b, lists, 3, none, of);
    for (u32 s = STATUS_LEAST; st == ST_OK && s <= STATUS_MOST; s++) {
        u8 list = of[s - STATUS_LEAST];
        d->classify.class_of[s - STATUS_LEAST] = list == none ? default_class(s) : classes[list];
    }
    return st;
}

hx_st deliver_read(const struct binding *b, const struct key *k, const struct node *n) {
    struct deliver_config *d = deliver_new(b->arena);
    struct binding inner = inner_of(b, TABLE_DELIVER, d);
    hx_st st = expect_map(b, k, n);
    if (st != ST_OK) return st;
    st = bind_map(&inner, n);
    if (st == ST_OK && !d->url) st = node_error(n, b->err, "url is missing: where should the messages go?");
    if (st != ST_OK) return st;
    st = both(check_method(b, d, n), check_kept(b, d, n));
    st = both(st, classify(b, d, n));
    d->lacks_secrets = headers_lack_secrets(&d->headers) || d->sign.lacking;
    *(const struct deliver_config **)value_field(k, b->base) = d;
    return st;
}

/* ---- reconcile */

static struct reconcile_config *reconcile_new(struct arena *arena) {
    static u16 ok[] = {200}, not_found[] = {404};
    struct reconcile_config *r = arena_alloc(arena, sizeof *r);
    *r = (struct reconcile_config){.found_said = STATUSES_OF(ok),
                                   .absent_said = STATUSES_OF(not_found),
                                   .after_ms = 30000,
                                   .every_ms = 30000,
                                   .timeout_ms = 10000,
                                   .attempts = 10};
    return r;
}

static hx_st read_answers(const struct binding *b, struct reconcile_config *r, const struct node *n) {
    const u8 none = 255;
    u8 of[STATUSES];
    struct status_list lists[] = {{&r->found_said, find(n, NULL, "found"), "found"},
                                  {&r->absent_said, find(n, NULL, "absent"), "absent"}};
    hx_st st = statuses_lay(b, lists, 2, none, of);
    for (u32 s = 0; s < STATUSES; s++) {
        r->found[s] = of[s] == 0;
        r->absent[s] = of[s] == 1;
    }
    if (st == ST_OK && r->found_said.count == 0)
        st = node_error(lists[0].at ? lists[0].at : n, b->err,
                        "found is empty: no answer would ever say that it was done");
    return st;
}

hx_st reconcile_read(const struct binding *b, const struct key *k, const struct node *n) {
    struct reconcile_config *r = reconcile_new(b->arena);
    struct binding inner = inner_of(b, TABLE_RECONCILE, r);
    hx_st st = expect_map(b, k, n);
    if (st != ST_OK) return st;
    st = bind_map(&inner, n);
    if (st == ST_OK && !r->url) st = node_error(n, b->err, "url is missing: what should be asked?");
    if (st != ST_OK) return st;
    r->lacks_secrets = headers_lack_secrets(&r->headers);
    *(const struct reconcile_config **)value_field(k, b->base) = r;
    return read_answers(b, r, n);
}

void reconcile_rules(const struct reconcile_config *r, struct rules *rules) {
    rules->on_unknown = ON_UNKNOWN_RECONCILE;
    rules->lookup_after_ms = (u32)r->after_ms;
    rules->lookup_every_ms = (u32)r->every_ms;
    rules->lookup_attempts = (u16)r->attempts;
}

/* ---- what goes together */

/* The same party is asked as was told: what opens its door for one opens it for the other. */
static void complete(struct reconcile_config *r, const struct deliver_config *d, const struct node *n) {
    if (!find(n, NULL, "allow_private")) r->allow_private = d->allow_private;
    bool said = find(n, NULL, "headers") || find(n, NULL, "secret_headers");
    if (said || !slice_eq(call_template_origin(r->url), call_template_origin(d->url))) return;
    r->headers = d->headers;
    r->lacks_secrets = headers_lack_secrets(&r->headers);
}

static bool same_sign(const struct secrets *a, const struct secrets *b) {
    bool same = a->count == b->count;
    for (u32 i = 0; same && i < a->count; i++) same = slice_eq(a->at[i], b->at[i]);
    return same;
}

bool deliver_same_secrets(const struct queue_config *a, const struct queue_config *b) {
    bool deliver = !a->deliver || (headers_same_secrets(&a->deliver->headers, &b->deliver->headers) &&
                                   same_sign(&a->deliver->sign, &b->deliver->sign));
    return deliver && (!a->reconcile || headers_same_secrets(&a->reconcile->headers, &b->reconcile->headers));
}

/* What may have been done is not sent again to who would do it again. */
static void doubt_answers(struct deliver_config *d) {
    for (u32 s = 408; s <= STATUS_MOST; s = s < 500 ? 500 : s + 1) {
        u8 *class = &d->classify.class_of[s - STATUS_LEAST];
        if (s != 503 && *class == CLASS_TRANSIENT) *class = CLASS_UNKNOWN;
    }
}

static hx_st check_semantics(const struct queue_config *q, const struct node *n, struct errbuf *err) {
    const struct node *deliver = find(n, NULL, "deliver"), *reconcile = find(n, NULL, "reconcile");
    if (q->rules.semantics == SEMANTICS_AT_MOST_ONCE)
        return node_error(
            deliver ? deliver : reconcile, err,
            "an at_most_once queue settles what it hands out: nobody would look at the answer. Use exactly_once");
    if (reconcile && q->rules.semantics == SEMANTICS_AT_LEAST_ONCE)
        return node_error(
            reconcile, err,
            "on an at_least_once queue keys repeat: what is found may be another message's. Use exactly_once");
    return ST_OK;
}

static hx_st check_unknown(struct queue_config *q, const struct node *n, struct errbuf *err) {
    const struct node *said = find(n, NULL, "on_unknown");
    u8 *on_unknown = &q->rules.on_unknown;
    bool again = q->idempotency == IDEMPOTENCY_KEY;
    if (q->reconcile) {
        if (said && *on_unknown != ON_UNKNOWN_RECONCILE)
            return node_error(said, err, "reconcile is given, and it means on_unknown: reconcile; leave this out");
        reconcile_rules(q->reconcile, &q->rules);
        return ST_OK;
    }
    if (!said && (*on_unknown == ON_UNKNOWN_RECONCILE || !again)) *on_unknown = ON_UNKNOWN_HOLD;
    if (*on_unknown == ON_UNKNOWN_RECONCILE)
        return node_error(said, err, "needs reconcile beside deliver: where should the broker look it up?");
    if (*on_unknown == ON_UNKNOWN_RETRY && !again)
        return node_error(
            said, err,
            "what may have been done would be sent again, and downstream.idempotency is not key. Say hold, or "
            "give reconcile");
    return ST_OK;
}

hx_st deliver_check(struct queue_config *q, const struct node *n, struct errbuf *err) {
    if (!q->deliver && !q->reconcile) return ST_OK;
    hx_st st = check_semantics(q, n, err);
    if (q->deliver && q->reconcile)
        complete((struct reconcile_config *)q->reconcile, q->deliver, find(n, NULL, "reconcile"));
    if (q->deliver && q->idempotency != IDEMPOTENCY_KEY) doubt_answers((struct deliver_config *)q->deliver);
    return st == ST_OK ? check_unknown(q, n, err) : st;
}
