/* keys.def as tables. */
#include "config/config_priv.h"

#define NAME(name, text) text,
const char *const config_class_names[] = {PRESET_LIST(NAME) NULL};
const char *const config_semantics_names[] = {SEMANTICS_LIST(NAME) NULL};
const char *const config_on_unknown_names[] = {ON_UNKNOWN_LIST(NAME) NULL};
const char *const config_on_conflict_names[] = {ON_CONFLICT_LIST(NAME) NULL};
const char *const config_on_dead_names[] = {ON_DEAD_LIST(NAME) NULL};
const char *const config_idempotency_names[] = {IDEMPOTENCY_LIST(NAME) NULL};
const char *const config_scheme_names[] = {SCHEME_LIST(NAME) NULL};
const char *const config_encoding_names[] = {ENCODING_LIST(NAME) NULL};
const char *const config_in_progress_names[] = {IN_PROGRESS_LIST(NAME) NULL};
const char *const config_store_names[] = {STORE_LIST(NAME) NULL};
const char *const config_key_scope_names[] = {KEY_SCOPE_LIST(NAME) NULL};
const char *const config_queue_alert_names[] = {QUEUE_ALERT_LIST(NAME) NULL};
const char *const config_alert_names[] = {ALERT_LIST(NAME) NULL};
static const char *const type_texts[] = {TYPE_LIST(NAME)};
#undef NAME

#define ROW(owner, path, type, field, least, most, names, fallback, doc)                                               \
    {path, type, offsetof(owner, field), sizeof(((owner *)NULL)->field), least, most, names, fallback, doc},

#define TOP_KEY(ident, ...) ROW(struct config, __VA_ARGS__)
static const struct key top_keys[] = {
#include "config/keys.def"
};
#define LISTENER_KEY(ident, ...) ROW(struct listener_config, __VA_ARGS__)
static const struct key listener_keys[] = {
#include "config/keys.def"
};
#define RELAY_KEY(ident, ...) ROW(struct relay_config, __VA_ARGS__)
static const struct key relay_keys[] = {
#include "config/keys.def"
};
#define TOKEN_KEY(ident, ...) ROW(struct token_config, __VA_ARGS__)
static const struct key token_keys[] = {
#include "config/keys.def"
};
#define SOURCE_KEY(ident, ...) ROW(struct source_config, __VA_ARGS__)
static const struct key source_keys[] = {
#include "config/keys.def"
};
#define TENANT_KEY(ident, ...) ROW(struct tenant_config, __VA_ARGS__)
static const struct key tenant_keys[] = {
#include "config/keys.def"
};
#define PROXY_KEY(ident, ...) ROW(struct proxy_config, __VA_ARGS__)
static const struct key proxy_keys[] = {
#include "config/keys.def"
};
#define QUEUE_KEY(ident, ...) ROW(struct queue_config, __VA_ARGS__)
static const struct key queue_keys[] = {
#include "config/keys.def"
};
#define DELIVER_KEY(ident, ...) ROW(struct deliver_config, __VA_ARGS__)
static const struct key deliver_keys[] = {
#include "config/keys.def"
};
#define RECONCILE_KEY(ident, ...) ROW(struct reconcile_config, __VA_ARGS__)
static const struct key reconcile_keys[] = {
#include "config/keys.def"
};

#define ROWS(rows)                                                                                                     \
    { rows, sizeof(rows) / sizeof(rows[0]) }
const struct key_rows config_keys[TABLE_COUNT] = {
    [TABLE_TOP] = ROWS(top_keys),         [TABLE_LISTENER] = ROWS(listener_keys),
    [TABLE_RELAY] = ROWS(relay_keys),     [TABLE_TOKEN] = ROWS(token_keys),
    [TABLE_TENANT] = ROWS(tenant_keys),   [TABLE_SOURCE] = ROWS(source_keys),
    [TABLE_PROXY] = ROWS(proxy_keys),     [TABLE_QUEUE] = ROWS(queue_keys),
    [TABLE_DELIVER] = ROWS(deliver_keys), [TABLE_RECONCILE] = ROWS(reconcile_keys)};

const char *key_type_text(enum key_type type) {
    return type_texts[type];
}

bool config_key(enum key_table table, u32 i, struct key_info *out) {
    const struct key_rows *t = &config_keys[table];
    if (i >= t->count) return false;
    const struct key *k = &t->at[i];
    *out = (struct key_info){k->path, type_texts[k->type], k->fallback, k->doc, k->names};
    return true;
}
