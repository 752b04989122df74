/* config: what may a user say about a queue? Reads hapax.yaml and the bodies of PUT /v1/queues/{q} into plain structs.
 *
 * keys.def is the list of all keys; tree.h is the document they stand in; template.h, fingerprint.h and schema.h compile
 * what a queue says about its payloads. A config is valid or it is refused with a line for each mistake, which names file,
 * line and column. What is valid but unwise is lint's business (lint.h). */
#ifndef HAPAX_CONFIG_CONFIG_H
#define HAPAX_CONFIG_CONFIG_H

#include "base/arena.h"
#include "base/base.h"
#include "config/address.h"
#include "config/alert_names.h"
#include "config/rights.h"
#include "core/rules.h"

#define PRESET_LIST(X)                                                                                                 \
    X(NONE, "none")                                                                                                    \
    X(MONEY, "money")                                                                                                  \
    X(NOTIFICATION, "notification")                                                                                    \
    X(ANALYTICS, "analytics")                                                                                          \
    X(AUDIT, "audit")
#define PRESET_ENUM(name, text) PRESET_##name,
enum preset { PRESET_LIST(PRESET_ENUM) PRESET_COUNT };
#undef PRESET_ENUM

/* Whether what the workers call deduplicates by the effect key. */
#define IDEMPOTENCY_LIST(X)                                                                                            \
    X(UNSAID, "unsaid")                                                                                                \
    X(KEY, "key")                                                                                                      \
    X(NONE, "none")
#define IDEMPOTENCY_ENUM(name, text) IDEMPOTENCY_##name,
enum idempotency { IDEMPOTENCY_LIST(IDEMPOTENCY_ENUM) IDEMPOTENCY_COUNT };
#undef IDEMPOTENCY_ENUM

/* Whose keys are the same key. */
#define KEY_SCOPE_LIST(X)                                                                                              \
    X(QUEUE, "queue")                                                                                                  \
    X(CREDENTIAL, "credential") /* each sender's by themselves, by the name of the token it shows */
#define KEY_SCOPE_ENUM(name, text) KEY_SCOPE_##name,
enum key_scope { KEY_SCOPE_LIST(KEY_SCOPE_ENUM) KEY_SCOPE_COUNT };
#undef KEY_SCOPE_ENUM

/* The keys, for looking up where one was said. */
#define TOP_KEY(ident, ...) TOP_KEY_##ident,
enum top_key {
#include "config/keys.def"
    TOP_KEY_COUNT
};
#define QUEUE_KEY(ident, ...) QUEUE_KEY_##ident,
enum queue_key {
#include "config/keys.def"
    QUEUE_KEY_COUNT
};

#define SECRETS_MAX            4u     /* in use at once: one more than a rotation needs */
#define CONFIG_QUEUE_BYTES_MAX 32768u /* of a queue's rules as one line of JSON */

struct said_at {
    u32 line, column; /* 0: not said */
};

struct upstream {
    slice name;
    i64 ms;
};

struct upstreams {
    struct upstream *at;
    u32 count;
};

/* Thresholds of a queue's alerts, beside dead.alert, lag and loss. */
struct queue_alerts {
    u32 duplicates_high_ppm; /* parts per million */
    u32 late_replays;
    i64 oldest_unsettled_ms, held_waiting_ms, group_blocked_ms;
    u32 off; /* 1 << enum alert */
};

/* Of the process, of relays, and for everybody. */
struct top_alerts {
    u32 disk_low_ppm, memory_high_ppm;
    u32 sync_slow; /* times the median */
    i64 relay_lag_ms;
    u32 off; /* 1 << enum alert, in every queue */
    slice notify_url;
    struct secrets {
        slice *at; /* the bytes; as written where a ${NAME} in it was not put in place */
        u32 count;
        bool plain;    /* one is without any ${NAME}: it is in the file */
        bool lacking;  /* one is not put in place */
        slice written; /* as a list of JSON, for showing: the ${NAME}, never what it stands for */
    } notify_secrets;
};

struct texts {
    slice *at;
    u32 count;
};

/* Everything about one queue. Owns all it points to; nothing in it changes. Numbers are 0 and slices empty where nothing
 * was said and the default is none. */
struct queue_config {
    slice name; /* NUL-terminated, as all slices here */
    u8 preset;  /* enum preset */
    struct rules rules;
    struct template *key, *order_by, *event_type, *origin;
    struct fingerprint *fingerprint; /* NULL: the payload's bytes */
    struct schema *schema;
    slice fingerprint_json, schema_json; /* as said */
    u64 payload_max;
    i64 upstream_replay_ms;
    struct upstreams upstreams;
    u8 idempotency;                           /* enum idempotency */
    u8 key_scope;                             /* enum key_scope */
    i64 remembers_ms;                         /* how long the downstream knows an effect key; 0: for ever */
    const struct deliver_config *deliver;     /* NULL: workers receive, nothing is pushed */
    const struct reconcile_config *reconcile; /* NULL: nothing is looked up by the broker */
    const struct proxy_config *proxy;         /* whose keys live here, while the file has it; NULL: a queue as any */
    i64 downstream_timeout_ms;
    slice dead_owner;
    u64 dead_alert_count;
    i64 dead_alert_within_ms;
    i64 lag_p95_ms, lag_alert_ms, lag_for_ms;
    u32 loss_ppm; /* parts per million */
    struct queue_alerts alerts;
    bool log_duplicates;
    slice file;        /* where it is defined; empty: through the API */
    struct said_at at; /* of its name there */
    struct said_at said[QUEUE_KEY_COUNT];
    slice json; /* what was said, as one line of JSON: config_queue_from_json makes the same queue of it */
    const struct queue_config
        *former;       /* of config_queues_compare: in the file before, if it said something else there */
    slice differences; /* from that one, as config_queue_diff has them */
    struct arena *arena;
};

struct relay_config {
    slice dsn, queue, table;
    bool grouped;
    u32 workers, batch;
    i64 poll_ms, timeout_ms;
    bool dsn_plain; /* without any ${NAME} or secret_file: everything in it is in the file */
    struct said_at at, queue_at;
};

/* How a source's requests are verified, and how a signature of its own kind is written. */
#define SCHEME_LIST(X)                                                                                                 \
    X(STANDARD, "standard")                                                                                            \
    X(STRIPE, "stripe")                                                                                                \
    X(GITHUB, "github")                                                                                                \
    X(HMAC, "hmac")                                                                                                    \
    X(NONE, "none")
#define SCHEME_ENUM(name, text) SCHEME_##name,
enum scheme { SCHEME_LIST(SCHEME_ENUM) SCHEME_COUNT };
#undef SCHEME_ENUM
#define ENCODING_LIST(X)                                                                                               \
    X(HEX, "hex")                                                                                                      \
    X(BASE64, "base64")
#define ENCODING_ENUM(name, text) ENCODING_##name,
enum encoding { ENCODING_LIST(ENCODING_ENUM) ENCODING_COUNT };
#undef ENCODING_ENUM

/* ---- what the broker calls: deliver, reconcile, proxies */

#define METHOD_LIST(X)                                                                                                 \
    X(POST, "POST")                                                                                                    \
    X(PUT, "PUT")                                                                                                      \
    X(PATCH, "PATCH")                                                                                                  \
    X(DELETE, "DELETE")                                                                                                \
    X(GET, "GET")

#define STATUS_LEAST     100u
#define STATUS_MOST      599u
#define STATUSES         (STATUS_MOST - STATUS_LEAST + 1)
#define CALL_HEADERS_MAX 32u

/* As it was written: 1 to 5 is a hundred (5xx), else one status. */
struct statuses {
    u16 *at;
    u32 count;
};

/* enum failure_class by status - STATUS_LEAST; what is taken (2xx) is CLASS_NONE. Where the downstream does not deduplicate, 408 and
 * 5xx but 503 are CLASS_UNKNOWN instead of CLASS_TRANSIENT: it may have been done. */
struct status_set {
    u8 class_of[STATUSES];
};

struct call_header {
    slice name;                  /* in small letters */
    struct call_template *value; /* config/call_template.h */
    slice written;               /* as JSON, for showing; of a secret its ${NAME}, never what that stands for */
    bool secret, lacking;        /* lacking: a secret that was not put in place */
};

struct call_headers {
    struct call_header *at;
    u32 count;
};

/* Where the queue's messages are pushed to. */
struct deliver_config {
    struct call_template *url;
    slice method;
    struct call_headers headers; /* secret ones too */
    i64 timeout_ms;
    u32 concurrency;
    u32 rate_per_min;    /* 0: any */
    struct secrets sign; /* none: no webhook-signature is sent */
    bool approve;
    struct {
        struct statuses transient, rejected, poison; /* none said: the default */
    } said;
    struct status_set classify;
    struct path *effect_id; /* NULL: none */
    u32 keep_body;
    struct texts keep_headers; /* in small letters */
    struct {
        u32 ratio_ppm, of;
        i64 within_ms, open_ms;
    } circuit;
    bool allow_private;
    bool lacks_secrets; /* a ${NAME} was not put in place: nothing may be sent */
};

/* How an unknown outcome is looked up: GET. */
struct reconcile_config {
    struct call_template *url;
    struct call_headers headers; /* none said, and the same scheme, host and port as the deliver's: those */
    struct statuses found_said, absent_said;
    bool found[STATUSES], absent[STATUSES]; /* by status - STATUS_LEAST */
    struct path *exists, *effect_id;        /* NULL: none */
    i64 after_ms, every_ms, timeout_ms;
    u32 attempts;
    bool allow_private; /* not said: the deliver's, or the proxy's */
    bool lacks_secrets;
};

#define IN_PROGRESS_LIST(X)                                                                                            \
    X(WAIT, "wait")                                                                                                    \
    X(REFUSE, "409")
#define IN_PROGRESS_ENUM(name, text) IN_PROGRESS_##name,
enum in_progress { IN_PROGRESS_LIST(IN_PROGRESS_ENUM) IN_PROGRESS_COUNT };
#undef IN_PROGRESS_ENUM
#define STORE_LIST(X)                                                                                                  \
    X(FINAL, "final")                                                                                                  \
    X(ALL, "all")
#define STORE_ENUM(name, text) STORE_##name,
enum store { STORE_LIST(STORE_ENUM) STORE_COUNT };
#undef STORE_ENUM

/* An upstream that answers twice the same: /gate/NAME/... */
struct proxy_config {
    slice name, upstream;     /* without a slash at its end; http:// or https://, a host, perhaps a path */
    struct texts require_key; /* methods */
    u8 in_progress, store;    /* enum in_progress, enum store */
    i64 window_ms, timeout_ms;
    u64 max_response;
    struct template *
        scope; /* NULL: by token, or by a hash of Authorization. Of the caller's request; two of its values never meet */
    u8 idempotency; /* enum idempotency */
    i64 remembers_ms;
    const struct reconcile_config *reconcile;
    bool allow_private;
    struct queue_config *queue; /* gate:NAME, where its keys live; one of the config's queues */
    struct said_at at;
};

#define GATE_PREFIX    "gate:" /* of the proxies' queues: nobody else's may begin so */
#define PROXY_NAME_MAX 64u

/* Where webhooks come from. */
struct source_config {
    slice name, queue;
    u8 scheme, encoding;    /* enum scheme, enum encoding */
    struct secrets secrets; /* what signatures are made with: of `standard` the bytes that whsec_ stands for */
    slice header, prefix;   /* hmac: in small letters; what stands before the signature */
    i64 tolerance_ms;
    struct texts content_types; /* none: all are taken */
    struct said_at at, queue_at;
};

struct host_names {
    slice *at;
    u32 count;
    bool any; /* "*" */
};

#define LISTENERS_MAX 16u

struct listener_config {
    slice address;
    slice tls_cert, tls_key, tls_client_ca; /* files; no cert: plain HTTP */
};

struct listeners {
    struct listener_config *at; /* at least one */
    u32 count;
};

struct grant {
    enum right right;
    bool everywhere; /* bare: on all queues, and on the process as a whole */
    slice queue;     /* else: a pattern (grant_fits) */
    struct said_at at;
};

struct grants {
    struct grant *at;
    u32 count;
};

#define TOKEN_HASH_BYTES 32u
#define TOKEN_NAME_MAX   64u
#define TOKENS_MAX       1000u
#define TOKEN_HASHES_MAX 4u /* of one token: it is rotated by adding the next, then dropping the last */
#define GRANTS_MAX       64u

struct token_config {
    slice name;
    struct token_hashes {
        struct {
            u8 bytes[TOKEN_HASH_BYTES]; /* SHA-256 of the token as it is shown, hx_ and all */
            struct said_at at;
        } * at;
        u32 count;
    } sha256;
    struct grants allow;
    slice tenant;   /* empty: nobody's */
    i64 expires_ms; /* wall clock; 0: never */
    struct said_at at;
};

#define TENANTS_MAX     1000u
#define TENANT_NAME_MAX 64u

struct tenant_config {
    slice name, prefix;         /* of its queues' names */
    u64 queues, pending, bytes; /* limits over all of them; 0: none */
    u32 rate_per_s;
};

/* What one client may have; 0: any number. */
struct client_limits {
    u32 connections, waiting, rate_per_s;
};

struct config {
    struct listeners listen;
    slice data;
    struct host_names hosts; /* answered to beside the listeners' addresses and localhost */
    bool insecure_listen, auto_create;
    i64 audit_keep_ms; /* WINDOW_FOREVER: never dropped */
    struct {
        u32 connections;
        struct client_limits per_address, per_token; /* a token has no connections */
    } limits;
    struct top_alerts alerts;
    struct {
        struct token_config *at;
        u32 count;
    } tokens;
    struct {
        struct tenant_config *at; /* by their names */
        const struct tenant_config **by_prefix;
        u32 count;
    } tenants;
    struct grants
        anonymous; /* of calls without a token; not said: everything while there are no tokens, else nothing */
    struct {
        struct queue_config **at, **ordered; /* as the file has them; by their names */
        u32 count;
    } queues;
    struct {
        struct relay_config *at;
        u32 count;
    } relays;
    struct {
        struct source_config *at; /* by their names */
        u32 count;
    } sources;
    struct {
        struct proxy_config *at; /* by their names */
        u32 count;
    } proxies;
    slice file;
    struct said_at said[TOP_KEY_COUNT]; /* what was not said, the environment or a default decides */
    struct arena *arena;
};

/* With secrets their ${NAME} must be in the environment and are put in place; without (lint, --check-config in CI, rules as they
 * are journaled) they stay as written. Rules that come through the API have none: whoever may set them could else have any variable
 * of the daemon sent to an address of theirs. */
enum config_secrets { SECRETS_AS_WRITTEN, SECRETS_FROM_ENVIRONMENT, SECRETS_REFUSED };

/* What the caller knows beside the file. All zero: what `hapax lint` knows. */
struct config_use {
    enum config_secrets secrets;
    bool listen_elsewhere; /* a flag or the environment says where, so the file's address does not matter */
    bool insecure_listen;  /* a flag allows an address beyond this machine */
};

/* On failure *out is NULL and `errors` has got a line for each mistake, in the order of the file, at most
 * TREE_MISTAKES_MAX and one that counts the others. config_free ends a config. */
hx_st config_load(const char *path, const struct config_use *use, struct config **out, struct buf *errors);
hx_st config_parse(slice yaml, const char *file, const struct config_use *use, struct config **out, struct buf *errors);
struct config *config_default(void); /* no file: auto_create is true */
void config_free(struct config *c);  /* NULL is fine */
const struct queue_config *config_find(const struct config *c, slice queue);
u32 config_declared(const struct config *c); /* how many queues the file names: all but the proxies' */
/* What a listener lacks that an address other machines reach must have, as words for ADDRESS_IS_OPEN; NULL: nothing. */
const char *config_listener_lacks(const struct config *c, const struct address *address, bool tls);
/* For people, on one line: what cannot change while the broker runs. */
void config_listen_text(const struct config *c, struct buf *out);
const struct token_config *config_token(const struct config *c, slice name);   /* NULL: there is none */
const struct tenant_config *config_tenant(const struct config *c, slice name); /* NULL: there is none */
/* The one whose prefix the queue's name begins with. */
const struct tenant_config *config_tenant_of(const struct config *c, slice queue);

const struct source_config *config_source(const struct config *c, slice name); /* NULL: there is none */
const struct proxy_config *config_proxy(const struct config *c, slice name);   /* NULL: there is none */

/* One queue from the config's keys as JSON. Errors name the key: "retry.unknown: ...". */
hx_st config_queue_from_json(slice name, slice json, enum config_secrets secrets, struct queue_config **out,
                             struct buf *errors);
struct queue_config *config_queue_default(slice name);
void config_queue_free(struct queue_config *q); /* NULL is fine */
/* The effective values under the config's key names, unset ones left out; read again it makes the same queue. */
void config_queue_to_json(const struct queue_config *q, struct buf *out);
bool config_queue_equal(const struct queue_config *a, const struct queue_config *b);
/* Some that are called with, beside what the rules say as text. */
bool config_queue_has_secrets(const struct queue_config *q);
/* The longest of upstream_replay and upstreams; 0: nothing said. */
i64 config_longest_replay_ms(const struct queue_config *q);
#define QUEUE_NAME_MAX 128u
/* Is it a queue's name? Else err says what one is made of. */
bool config_queue_name_ok(slice name, struct errbuf *err);
const char *config_class_text(enum preset c);

/* What a reload changes, one line each ("queue payments: window: 24h -> 7d"); nothing if all is the same. */
void config_diff(const struct config *before, const struct config *after, struct buf *out);

/* The same of one queue, without its name ("window: 24h -> 7d"). */
void config_queue_diff(const struct queue_config *before, const struct queue_config *after, struct buf *out);

/* Has every queue of a file that differs from the file before say in what: thousands of them take a while, and whoever puts the file in
 * force has none. `before` is not looked at again, but its queues are known by their addresses. */
void config_queues_compare(const struct config *before, struct config *after);

/* ---- the table of keys, for help and tests */

struct key_info {
    const char *path, *type, *fallback, *doc; /* fallback: the default as a user would write it */
    const char *const *names;                 /* the words it may be, NULL-ended; or NULL */
};
enum key_table {
    TABLE_TOP,
    TABLE_LISTENER,
    TABLE_RELAY,
    TABLE_TOKEN,
    TABLE_TENANT,
    TABLE_SOURCE,
    TABLE_PROXY,
    TABLE_QUEUE,
    TABLE_DELIVER,
    TABLE_RECONCILE,
    TABLE_COUNT
};
/* The i-th key of a table; false past the end. */
bool config_key(enum key_table table, u32 i, struct key_info *out);

#endif
