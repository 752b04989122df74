/* How keys.def is read, kept and written. */
#ifndef HAPAX_CONFIG_PRIV_H
#define HAPAX_CONFIG_PRIV_H

#include "config/config.h"
#include "config/tree.h"

#define DURATION_MAX_MS ((i64)36500 * 24 * 3600 * 1000) /* a century; beyond it: forever */

/* What a value is, and how it is called in messages and docs. */
#define TYPE_LIST(X)                                                                                                   \
    X(DURATION, "a duration like 500ms, 30s, 5m or 14d")                                                               \
    X(KEEP, "a duration like 90d, or forever")                                                                         \
    X(COUNT, "a whole number")                                                                                         \
    X(SIZE, "a size like 512, 256KiB or 10MB")                                                                         \
    X(PERCENT, "a percentage like 0.01%")                                                                              \
    X(BOOL, "true or false")                                                                                           \
    X(TEXT, "text")                                                                                                    \
    X(SECRET, "text with ${NAME} from the environment or {secret_file: PATH}")                                         \
    X(SECRETS, "a list of secrets, each text with ${NAME} from the environment or {secret_file: PATH}")                \
    X(SECRET_TEXTS, "a list of secrets as they are, each like those")                                                  \
    X(URL, "an address like https://example.com/alerts, with ${NAME} from the environment")                            \
    X(ADDRESS, "an address like 127.0.0.1:4279")                                                                       \
    X(LISTENERS, "an address like 127.0.0.1:4279, or a list of maps")                                                  \
    X(HOSTS, "a list of host names like queue.example.com, without ports")                                             \
    X(TEXTS, "a list of texts")                                                                                        \
    X(CHOICE, "one word")                                                                                              \
    X(NAMES, "a list")                                                                                                 \
    X(TEMPLATE, "a template like \"capture:${payment_id}\"")                                                           \
    X(FINGERPRINT, "bytes, json, none, {only: [fields]} or {ignore: [fields]}")                                        \
    X(SCHEMA, "a map with required, types and the like")                                                               \
    X(WINDOW, "a duration, forever, or {min: 72h, max: 14d}")                                                          \
    X(UPSTREAMS, "a map of names to durations")                                                                        \
    X(GRANTS, "a list of rights like observe or send:payments")                                                        \
    X(HASHES, "a list of SHA-256 hashes in hexadecimal")                                                               \
    X(DATE, "a date like 2027-01-01, or 2027-01-01T12:00:00Z")                                                         \
    X(TOKENS, "a list of maps")                                                                                        \
    X(RATE, "a rate like 5000/s")                                                                                      \
    X(PACE, "a rate like 100/s or 90/m")                                                                               \
    X(CALL, "an address like https://example.com/slots/${container}")                                                  \
    X(HEADERS, "a map of header names to values")                                                                      \
    X(SECRET_HEADERS,                                                                                                  \
      "a map of header names to secrets, each text with ${NAME} from the environment or {secret_file: PATH}")          \
    X(STATUSES, "a list of statuses like 404 or 5xx")                                                                  \
    X(FIELD, "a field like booking.id or items[0].id")                                                                 \
    X(DELIVER, "a map with url and what else a push needs")                                                            \
    X(RECONCILE, "a map with url and what else a look-up needs")                                                       \
    X(PROXIES, "a map of proxies")                                                                                     \
    X(TENANTS, "a map of tenants")                                                                                     \
    X(RELAYS, "a list of maps")                                                                                        \
    X(SOURCES, "a map of sources")                                                                                     \
    X(QUEUES, "a map of queues")
#define TYPE_ENUM(name, text) TYPE_##name,
enum key_type { TYPE_LIST(TYPE_ENUM) TYPE_COUNT_ALL };
#undef TYPE_ENUM

/* A row of keys.def. */
struct key {
    const char *path;
    enum key_type type;
    size_t offset, size; /* of the field in its struct */
    i64 least, most;
    const char *const *names; /* NULL-ended */
    const char *fallback, *doc;
};

struct key_rows {
    const struct key *at;
    u32 count;
};

extern const struct key_rows config_keys[TABLE_COUNT];

extern const char *const config_class_names[],
    *const config_semantics_names[], *const config_on_unknown_names[],
                                         *const config_on_conflict_names[],
                                             *const config_on_dead_names[],
                                                 *const config_idempotency_names[],
                                                     *const config_key_scope_names[],
                                                         *const config_queue_alert_names[],
                                                             *const config_alert_names[],
                                                                 *const config_scheme_names[],
                                                                     *const config_encoding_names[],
                                                                         *const config_in_progress_names[],
                                                                             *const config_store_names[];

/* One reading of a map into a struct by its table. */
struct binding {
    const struct key_rows *keys;
    void *base;           /* the struct */
    struct said_at *said; /* where each key was said, by its index; may be NULL */
    struct arena *arena;  /* for what the struct points to */
    enum config_secrets secrets;
    struct errbuf *err;
};

/* What `base` is follows from the table: no key of one struct is read into another. */
static inline struct config *binding_config(const struct binding *b) {
    CHECK(b->keys == &config_keys[TABLE_TOP]);
    return b->base;
}
static inline struct queue_config *binding_queue(const struct binding *b) {
    CHECK(b->keys == &config_keys[TABLE_QUEUE]);
    return b->base;
}

const char *key_type_text(enum key_type type);
/* 1 to `most` letters, digits and some others, all of ASCII. */
bool name_made_of(slice name, size_t most, const char *others);

/* ---- bind.c */

hx_st bind_map(const struct binding *b, const struct node *map);
hx_st bind_no_value(const struct node *n, struct errbuf *err);
/* The effective values as nested JSON objects. */
void bind_put_json(const struct key_rows *keys, const void *base, struct buf *out);
/* Lines "PREFIXkey: before -> after" for each key that differs. */
void bind_diff(const struct key_rows *keys, const void *before, const void *after, const char *prefix, struct buf *out);
/* The same of something with a name, which may be added (before is NULL) or gone (after is, and `removed` says what that means). */
void bind_diff_named(const struct key_rows *keys, const char *what, slice name, const void *before, const void *after,
                     const char *removed, struct buf *out);

/* ---- value.c, value_put.c: single values */

enum { PPM_DECIMALS = 4 }; /* of a percentage */

static inline void *value_field(const struct key *k, const void *base) {
    CHECK(base && k->size);
    return (char *)base + k->offset;
}

/* Numbers are in fields of any width; a row's range keeps them inside. */
static inline void value_store(const struct key *k, void *base, u64 v) {
    CHECK(k->size == 8 || v >> (8 * k->size) == 0);
    memcpy(value_field(k, base), &v, k->size);
}

static inline u64 value_load(const struct key *k, const void *base) {
    u64 v = 0;
    memcpy(&v, value_field(k, base), k->size);
    return v;
}

hx_st value_read(const struct binding *b, const struct key *k, const struct node *n);
bool value_is_set(const struct key *k, const void *base);
bool value_is_secret(const struct key *k); /* never shown */
bool value_same_secret(const struct key *k, const void *a, const void *b);
void value_put_json(const struct key *k, const void *base, struct buf *out);
void value_put_number(const struct key *k, u64 v, struct buf *out); /* with the type's units */

/* For sentences: `value_duration_text(ms).p` is good to the end of the full expression. */
struct value_text {
    char p[32];
};
struct value_text value_duration_text(i64 ms);
struct value_text value_size_text(u64 bytes);

/* ---- secret.c */

hx_st secret_read(const struct binding *b, const struct key *k, const struct node *n);
/* Of a list that was read as it is: what whsec_ stands for. */
hx_st secrets_decode(const struct binding *b, const struct node *n, struct secrets *s);
hx_st secrets_read(const struct binding *b, const struct key *k, const struct node *n);
/* One of a map or a list. *lacking becomes true if it was not put in place. The node tells no secret any more. */
hx_st secret_value_read(const struct binding *b, const struct key *k, struct node *n, slice *out, bool *lacking);
hx_st secrets_refused(const struct binding *b, const struct node *n); /* says why */
slice node_json(struct arena *a, const struct node *n);

/* ---- call.c: what calls are made of */

hx_st call_read(const struct binding *b, const struct key *k, const struct node *n);
hx_st field_read(const struct binding *b, const struct key *k, const struct node *n);
/* Both kinds are in one list, so that no name comes twice. */
hx_st headers_read(const struct binding *b, const struct key *k, const struct node *n);
bool headers_said(const struct call_headers *h, bool secret);
void headers_put_json(const struct call_headers *h, bool secret, struct buf *out);
bool headers_lack_secrets(const struct call_headers *h);
bool headers_same_secrets(const struct call_headers *a, const struct call_headers *b);
hx_st statuses_read(const struct binding *b, const struct key *k, const struct node *n);
void statuses_put_json(const struct statuses *s, struct buf *out);
struct status_list {
    struct statuses *list;
    const struct node *at; /* NULL: not said, a default */
    const char *name;
};
/* Lays lists over each other: of[status - STATUS_LEAST] becomes the number of the list that has it, where a single status beats its
 * hundred; or `none`. What is said in two is refused; a default gives way. */
hx_st statuses_lay(const struct binding *b, struct status_list *lists, u32 count, u8 none, u8 of[STATUSES]);

/* ---- deliver.c */

hx_st deliver_read(const struct binding *b, const struct key *k, const struct node *n);
hx_st reconcile_read(const struct binding *b, const struct key *k, const struct node *n);
/* What both say with the rest of the queue, once all of it is read. */
hx_st deliver_check(struct queue_config *q, const struct node *n, struct errbuf *err);
/* Of two that say the same: does it stand for the same? */
bool deliver_same_secrets(const struct queue_config *a, const struct queue_config *b);
void reconcile_rules(const struct reconcile_config *r, struct rules *rules); /* what the core has to know of it */

/* ---- proxy.c */

hx_st proxies_read(const struct binding *b, const struct node *n);
hx_st proxies_add_queues(struct config *c,
                         const struct node *map); /* once the queues are read. map: `proxies`, or NULL */
void proxies_free(struct config *c);
void proxies_diff(const struct config *before, const struct config *after, struct buf *out);

/* ---- queue.c, config.c: the types that are structs of their own */

hx_st queues_read(const struct binding *b, const struct node *n);
/* A queue that is a proxy's is nobody else's: neither its rules nor what comes in. */
hx_st gate_refuse(const struct node *n, slice queue, struct errbuf *err);
hx_st listeners_read(const struct binding *b, const struct node *n);
hx_st relays_read(const struct binding *b, const struct node *n);
hx_st sources_read(const struct binding *b, const struct node *n);
void sources_diff(const struct config *before, const struct config *after, struct buf *out);

/* ---- tokens.c */

hx_st tokens_read(const struct binding *b, const struct node *n);
hx_st hashes_read(const struct binding *b, const struct key *k, const struct node *n);
hx_st grants_read(const struct binding *b, const struct key *k, const struct node *n);
void grants_put_json(const struct grants *g, struct buf *out);
/* Once the whole file is read. list: of `tokens`, or NULL. */
hx_st tokens_check(const struct config *c, const struct node *list);
void tokens_diff(const struct config *before, const struct config *after, struct buf *out);

/* ---- tenants.c, with the same uses */

hx_st tenants_read(const struct binding *b, const struct node *n);
hx_st tenants_check(const struct config *c, const struct node *map);
void tenants_diff(const struct config *before, const struct config *after, struct buf *out);

/* ---- queue.c */

hx_st config_queue_from_node(slice name, const struct node *n, enum config_secrets secrets, struct queue_config **out,
                             struct errbuf *err);

#endif
