/* A queue's config: defaults, presets, what cannot go together. */
#include "config/config_priv.h"
#include "config/fingerprint.h"
#include "config/schema.h"
#include "config/template.h"

/* ---- presets */

static void apply_preset(struct queue_config *q) {
    struct rules *r = &q->rules;
    switch ((enum preset)q->preset) {
    case PRESET_MONEY:
        r->window_ms = WINDOW_FOREVER;
        r->on_unknown = ON_UNKNOWN_RECONCILE;
        break;
    case PRESET_ANALYTICS:
        r->semantics = SEMANTICS_AT_MOST_ONCE;
        break;
    case PRESET_AUDIT:
        r->semantics = SEMANTICS_AT_LEAST_ONCE;
        break;
    case PRESET_NOTIFICATION: /* the defaults are a notification's */
    case PRESET_NONE:
    case PRESET_COUNT:
        break;
    }
}

/* ---- what cannot go together */

static bool said(const struct queue_config *q, enum queue_key k) {
    return q->said[k].line != 0;
}

/* "queue payments: on_unknown: MESSAGE" at the key's place. */
static hx_st wrong(const struct node *n, enum queue_key k, struct errbuf *err, const char *message) {
    slice path = slice_str(config_keys[TABLE_QUEUE].at[k].path), name;
    const struct node *at = n;
    while (at && slice_cut(path, '.', &name, &path)) at = node_get(at, name);
    if (at) at = node_get(at, name);
    return node_error(at ? at : n, err, "%s", message);
}

/* The retry key that was said to be something else than the default, which is what a queue that shows its rules says. */
static bool retries_said(const struct queue_config *q, enum queue_key *which) {
    const struct rules *r = &q->rules, d = rules_default();
    const struct {
        enum queue_key key;
        bool differs;
    } keys[] = {
        {QUEUE_KEY_retry_transient_attempts, r->transient_attempts != d.transient_attempts},
        {QUEUE_KEY_retry_transient_backoff, r->backoff_ms != d.backoff_ms},
        {QUEUE_KEY_retry_transient_max, r->backoff_max_ms != d.backoff_max_ms},
        {QUEUE_KEY_retry_unknown_attempts, r->unknown_attempts != d.unknown_attempts},
        {QUEUE_KEY_retry_crashes_attempts, r->crash_attempts != d.crash_attempts},
    };
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        *which = keys[i].key;
        if (keys[i].differs) return true;
    }
    return false;
}

static hx_st check_at_most_once(struct queue_config *q, const struct node *n, struct errbuf *err) {
    enum queue_key retry;
    hx_st st = ST_OK;
    if (q->rules.semantics != SEMANTICS_AT_MOST_ONCE) {
        if (!q->loss_ppm) return ST_OK;
        return wrong(n, QUEUE_KEY_loss, err, "only an at_most_once queue may lose messages");
    }
    if (!said(q, QUEUE_KEY_on_unknown)) q->rules.on_unknown = ON_UNKNOWN_RETRY; /* whatever the preset said */
    if (q->rules.on_unknown != ON_UNKNOWN_RETRY)
        st = wrong(n, QUEUE_KEY_on_unknown, err,
                   "an at_most_once queue settles what it hands out: no outcome is unknown");
    if (retries_said(q, &retry))
        st = wrong(n, retry, err, "an at_most_once queue settles what it hands out: nothing is retried");
    return st;
}

static hx_st check_conflicts(const struct queue_config *q, const struct node *n, struct errbuf *err) {
    if (q->rules.on_conflict == ON_CONFLICT_REJECT) return ST_OK;
    if (q->rules.semantics == SEMANTICS_AT_LEAST_ONCE)
        return wrong(n, QUEUE_KEY_on_conflict, err, "an at_least_once queue takes every arrival: nothing conflicts");
    if (slice_eq(q->fingerprint_json, SL("\"none\"")))
        return wrong(n, QUEUE_KEY_on_conflict, err,
                     "with fingerprint: none payloads are not compared: nothing conflicts");
    return ST_OK;
}

static hx_st check_alerts(const struct queue_config *q, const struct node *n, struct errbuf *err) {
    hx_st st = ST_OK;
    if (q->dead_alert_count && !q->dead_alert_within_ms)
        st = wrong(n, QUEUE_KEY_dead_alert_count, err, "needs dead.alert.within beside it");
    if (q->dead_alert_within_ms && !q->dead_alert_count)
        st = wrong(n, QUEUE_KEY_dead_alert_within, err, "needs dead.alert.count beside it");
    if (q->lag_for_ms && !q->lag_alert_ms) st = wrong(n, QUEUE_KEY_lag_for, err, "needs lag.alert beside it");
    if (q->lag_alert_ms && q->lag_alert_ms < q->lag_p95_ms)
        st = wrong(n, QUEUE_KEY_lag_alert, err, "is below lag.p95: it would always alert");
    return st;
}

static hx_st check_together(struct queue_config *q, const struct node *n, struct errbuf *err) {
    const struct rules *r = &q->rules;
    hx_st st = ST_OK;
    if (r->backoff_ms > r->backoff_max_ms) {
        enum queue_key k =
            said(q, QUEUE_KEY_retry_transient_max) ? QUEUE_KEY_retry_transient_max : QUEUE_KEY_retry_transient_backoff;
        st = wrong(n, k, err, "retry.transient.backoff is above retry.transient.max");
    }
    if (r->limit_bytes && r->limit_bytes < q->payload_max)
        st = wrong(n, QUEUE_KEY_limits_bytes, err, "is below limits.payload: the largest message would never fit");
    if (q->json.n > CONFIG_QUEUE_BYTES_MAX)
        st = node_error(n, err, "its rules take more than %u bytes", CONFIG_QUEUE_BYTES_MAX);
    st = both(st, deliver_check(q, n, err));
    st = both(st, check_at_most_once(q, n, err));
    st = both(st, check_conflicts(q, n, err));
    return both(st, check_alerts(q, n, err));
}

/* ---- making */

static bool name_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.' || c == ':';
}

bool config_queue_name_ok(slice name, struct errbuf *err) {
    if (name.n == 0 || name.n > QUEUE_NAME_MAX) {
        err_set(err, ST_INVALID, "a queue name has 1 to %u characters, this one has %zu", QUEUE_NAME_MAX, name.n);
        return false;
    }
    for (size_t i = 0; i < name.n; i++)
        if (!name_char(name.p[i])) {
            err_set(err, ST_INVALID, "a queue name is made of letters, digits and _ - . : only");
            return false;
        }
    return true;
}

static struct queue_config *queue_new(slice name) {
    struct arena *arena = arena_new();
    struct queue_config *q = arena_alloc(arena, sizeof(*q));
    q->arena = arena;
    q->name = arena_copy(arena, name);
    q->rules = rules_default();
    q->payload_max = 1 << 20;
    const i64 minute = 60000;
    q->alerts = (struct queue_alerts){.duplicates_high_ppm = 200000,
                                      .late_replays = 10,
                                      .oldest_unsettled_ms = 10 * minute,
                                      .held_waiting_ms = 60 * minute,
                                      .group_blocked_ms = 15 * minute};
    q->json = SL("{}");
    return q;
}

struct queue_config *config_queue_default(slice name) {
    return queue_new(name);
}

void config_queue_free(struct queue_config *q) {
    if (!q) return;
    template_free(q->key);
    template_free(q->order_by);
    template_free(q->event_type);
    template_free(q->origin);
    fingerprint_free(q->fingerprint);
    schema_free(q->schema);
    arena_free_wiped(q->arena);
}

/* The preset comes first, wherever it stands in the map: single keys override it. */
static hx_st read_class(const struct binding *b, struct queue_config *q, const struct node *n) {
    const struct node *class = node_get(n, SL("class"));
    if (!class) return ST_OK;
    hx_st st = value_read(b, &config_keys[TABLE_QUEUE].at[QUEUE_KEY_class], class);
    if (st == ST_OK) apply_preset(q);
    return st;
}

static void remember(struct queue_config *q, const struct node *n) {
    struct buf json = {0};
    node_put_json(n, &json);
    q->json = arena_copy(q->arena, buf_slice(&json));
    buf_free(&json);
    const struct node *at = n->name ? n->name : n;
    q->file = arena_copy(q->arena, slice_str(n->document->file));
    q->at = (struct said_at){at->line, at->column};
}

hx_st config_queue_from_node(slice name, const struct node *n, enum config_secrets secrets, struct queue_config **out,
                             struct errbuf *err) {
    struct queue_config *q = queue_new(name);
    struct binding b = {.keys = &config_keys[TABLE_QUEUE],
                        .base = q,
                        .said = q->said,
                        .arena = q->arena,
                        .secrets = secrets,
                        .err = err};
    hx_st st = read_class(&b, q, n);
    st = both(st, bind_map(&b, n));
    if (st == ST_OK) {
        remember(q, n);
        st = check_together(q, n, err); /* what was misread would only make more noise */
    }
    if (st != ST_OK) config_queue_free(q);
    *out = st == ST_OK ? q : NULL;
    return st;
}

hx_st config_queue_from_json(slice name, slice json, enum config_secrets secrets, struct queue_config **out,
                             struct buf *errors) {
    struct tree tree;
    *out = NULL;
    hx_st st = tree_read(TREE_JSON, json, NULL, &tree);
    if (tree.root) st = both(st, config_queue_from_node(name, tree.root, secrets, out, NULL));
    if (st != ST_OK) {
        config_queue_free(*out);
        *out = NULL;
        tree_put_mistakes(&tree, errors);
    }
    tree_free(&tree);
    return st;
}

/* ---- looking */

void config_queue_to_json(const struct queue_config *q, struct buf *out) {
    bind_put_json(&config_keys[TABLE_QUEUE], q, out);
}

bool config_queue_equal(const struct queue_config *a, const struct queue_config *b) {
    struct buf x = {0}, y = {0};
    config_queue_to_json(a, &x);
    config_queue_to_json(b, &y);
    bool equal = slice_eq(a->name, b->name) && slice_eq(buf_slice(&x), buf_slice(&y));
    buf_free(&x);
    buf_free(&y);
    return equal;
}

bool config_queue_has_secrets(const struct queue_config *q) {
    const struct deliver_config *d = q->deliver;
    const struct reconcile_config *r = q->reconcile;
    return (d && (d->sign.count || headers_said(&d->headers, true))) || (r && headers_said(&r->headers, true));
}

i64 config_longest_replay_ms(const struct queue_config *q) {
    i64 longest = q->upstream_replay_ms;
    for (u32 i = 0; i < q->upstreams.count; i++)
        if (q->upstreams.at[i].ms > longest) longest = q->upstreams.at[i].ms;
    return longest;
}

const char *config_class_text(enum preset c) {
    CHECK(c < PRESET_COUNT);
    return config_class_names[c];
}
