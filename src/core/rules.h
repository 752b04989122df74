/* A queue's rules: what happens to its messages and keys. Plain values; who sets them (defaults, a config file, the API)
 * is the broker's business. They are journaled with the queue, so recovery needs no config.
 *
 * Changing them touches decisions to come, never running work: a live lease keeps its length, a dead message stays dead.
 * One promise outlives a change: a key settled under a longer window keeps that window. */
#ifndef HAPAX_CORE_RULES_H
#define HAPAX_CORE_RULES_H

#include "base/base.h"

#define WINDOW_FOREVER INT64_MAX
#define LOOKUPS_MAX    4095u /* look-ups of one unknown outcome */

/* What a queue promises about a message. */
#define SEMANTICS_LIST(X)                                                                                              \
    X(EXACTLY_ONCE, "exactly_once")                                                                                    \
    X(AT_LEAST_ONCE, "at_least_once") /* every arrival is its own message; keys may repeat or be absent */             \
    X(AT_MOST_ONCE, "at_most_once")   /* handing out settles; a key is optional and dedups when given */
#define SEMANTICS_ENUM(name, text) SEMANTICS_##name,
enum semantics { SEMANTICS_LIST(SEMANTICS_ENUM) SEMANTICS_COUNT };
#undef SEMANTICS_ENUM

/* What follows an attempt whose outcome nobody knows (P5). */
#define ON_UNKNOWN_LIST(X)                                                                                             \
    X(RETRY, "retry")                                                                                                  \
    X(RECONCILE, "reconcile") /* the next delivery asks what became of it; nothing is done again before an answer */   \
    X(HOLD, "hold")           /* a person decides */
#define ON_UNKNOWN_ENUM(name, text) ON_UNKNOWN_##name,
enum on_unknown { ON_UNKNOWN_LIST(ON_UNKNOWN_ENUM) ON_UNKNOWN_COUNT };
#undef ON_UNKNOWN_ENUM

/* What becomes of an arrival under a known key with another payload. */
#define ON_CONFLICT_LIST(X)                                                                                            \
    X(REJECT, "reject")                                                                                                \
    X(HOLD, "hold") /* kept as a held message of its own until a person decides */                                     \
    X(NEW, "new")   /* admitted at once as its own intent, under key~<fingerprint> */
#define ON_CONFLICT_ENUM(name, text) ON_CONFLICT_##name,
enum on_conflict { ON_CONFLICT_LIST(ON_CONFLICT_ENUM) ON_CONFLICT_COUNT };
#undef ON_CONFLICT_ENUM

/* What a group does when its head dies. */
#define ON_DEAD_LIST(X)                                                                                                \
    X(BLOCK, "block")             /* waits behind it */                                                                \
    X(SKIP, "skip")               /* goes on past it, and past a held one */                                           \
    X(GROUP, "dead_letter_group") /* dies with it, later arrivals too, and comes back with it */
#define ON_DEAD_ENUM(name, text) ON_DEAD_##name,
enum on_dead { ON_DEAD_LIST(ON_DEAD_ENUM) ON_DEAD_COUNT };
#undef ON_DEAD_ENUM

/* Failure classes of a nack. */
#define CLASS_LIST(X)                                                                                                  \
    X(NONE, "")                                                                                                        \
    X(TRANSIENT, "transient")                                                                                          \
    X(POISON, "poison")                                                                                                \
    X(REJECTED, "rejected")                                                                                            \
    X(UNKNOWN, "unknown")                                                                                              \
    X(ABSENT, "absent")
#define CLASS_ENUM(name, text) CLASS_##name,
enum failure_class { CLASS_LIST(CLASS_ENUM) CLASS_COUNT };
#undef CLASS_ENUM

struct rules {
    i64 window_ms;                    /* WINDOW_FOREVER, or fixed; adaptive: the present value */
    i64 window_min_ms, window_max_ms; /* adaptive bounds; both 0: fixed */
    i64 keep_payload_ms;              /* payload kept this long after settlement, running time; 0: not */
    u32 lease_ms;
    u16 transient_attempts, unknown_attempts, crash_attempts; /* counting the first one */
    u32 backoff_ms, backoff_max_ms;
    u8 semantics, on_unknown, on_conflict, on_dead; /* the enums above */
    u64 limit_pending, limit_bytes;                 /* 0: none. unsettled messages; their payload bytes */
    i64 limit_lag_ms;                               /* 0: none. age of the oldest ready message */
    u32 refused_kept;                               /* bounds of the dead-lane copies of what failed the schema */
    u64 refused_bytes;
    /* Look-ups by the broker itself (on_unknown is RECONCILE then). The first comes lookup_after_ms after the end of the attempt
     * whose outcome is unknown, the next lookup_every_ms after one without an answer; after lookup_attempts of them it is held.
     * 0: consumers look up, and that counts as unknowns and crashes do. */
    u32 lookup_after_ms, lookup_every_ms;
    u16 lookup_attempts; /* at most LOOKUPS_MAX */
};

/* exactly_once, 24h, lease 30s, retry, reject, block, 6 attempts 1s to 5m, unknown 3, crashes 3, nothing kept, no limits,
 * 1000 refused copies in 16 MiB. */
struct rules rules_default(void);
bool rules_equal(const struct rules *a, const struct rules *b);
static inline bool rules_adaptive(const struct rules *r) {
    return r->window_max_ms != 0;
}

/* How long a failed message waits: backoff doubling with each failure up to the cap, jitter only upwards (up to a
 * quarter), never below floor_ms. failures counts this one. */
i64 rules_backoff_ms(const struct rules *r, u32 failures, i64 floor_ms, struct rng *rng);

const char *semantics_text(enum semantics v);
const char *on_unknown_text(enum on_unknown v);
const char *on_conflict_text(enum on_conflict v);
const char *on_dead_text(enum on_dead v);
bool semantics_parse(slice text, enum semantics *out);
bool on_unknown_parse(slice text, enum on_unknown *out);
bool on_conflict_parse(slice text, enum on_conflict *out);
bool on_dead_parse(slice text, enum on_dead *out);

#endif
