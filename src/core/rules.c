#include "core/rules.h"

#define NAME(name, text) text,
static const char *const semantics_names[] = {SEMANTICS_LIST(NAME)};
static const char *const on_unknown_names[] = {ON_UNKNOWN_LIST(NAME)};
static const char *const on_conflict_names[] = {ON_CONFLICT_LIST(NAME)};
static const char *const on_dead_names[] = {ON_DEAD_LIST(NAME)};
#undef NAME

static bool name_find(const char *const *names, u32 count, slice text, u32 *out) {
    for (*out = 0; *out < count; ++*out)
        if (slice_eq(text, slice_str(names[*out]))) return true;
    return false;
}

#define NAMED(type, COUNT)                                                                                             \
    const char *type##_text(enum type v) {                                                                             \
        CHECK(v < COUNT);                                                                                              \
        return type##_names[v];                                                                                        \
    }                                                                                                                  \
    bool type##_parse(slice text, enum type *out) {                                                                    \
        u32 v;                                                                                                         \
        if (!name_find(type##_names, COUNT, text, &v)) return false;                                                   \
        *out = (enum type)v;                                                                                           \
        return true;                                                                                                   \
    }
NAMED(semantics, SEMANTICS_COUNT)
NAMED(on_unknown, ON_UNKNOWN_COUNT)
NAMED(on_conflict, ON_CONFLICT_COUNT)
NAMED(on_dead, ON_DEAD_COUNT)
#undef NAMED

struct rules rules_default(void) {
    return (struct rules){
        .window_ms = (i64)24 * 3600 * 1000,
        .lease_ms = 30 * 1000,
        .transient_attempts = 6,
        .unknown_attempts = 3,
        .crash_attempts = 3,
        .backoff_ms = 1000,
        .backoff_max_ms = 5 * 60 * 1000,
        .refused_kept = 1000,
        .refused_bytes = 16u << 20,
    };
}

bool rules_equal(const struct rules *a, const struct rules *b) {
    return a->window_ms == b->window_ms && a->window_min_ms == b->window_min_ms &&
           a->window_max_ms == b->window_max_ms && a->keep_payload_ms == b->keep_payload_ms &&
           a->lease_ms == b->lease_ms && a->transient_attempts == b->transient_attempts &&
           a->unknown_attempts == b->unknown_attempts && a->crash_attempts == b->crash_attempts &&
           a->backoff_ms == b->backoff_ms && a->backoff_max_ms == b->backoff_max_ms && a->semantics == b->semantics &&
           a->on_unknown == b->on_unknown && a->on_conflict == b->on_conflict && a->on_dead == b->on_dead &&
           a->limit_pending == b->limit_pending && a->limit_bytes == b->limit_bytes &&
           a->limit_lag_ms == b->limit_lag_ms && a->refused_kept == b->refused_kept &&
           a->refused_bytes == b->refused_bytes && a->lookup_after_ms == b->lookup_after_ms &&
           a->lookup_every_ms == b->lookup_every_ms && a->lookup_attempts == b->lookup_attempts;
}

i64 rules_backoff_ms(const struct rules *r, u32 failures, i64 floor_ms, struct rng *rng) {
    i64 wait = r->backoff_ms;
    for (u32 i = 1; i < failures && wait < r->backoff_max_ms; i++) wait *= 2;
    if (wait > r->backoff_max_ms) wait = r->backoff_max_ms;
    if (wait > 0) wait += (i64)rng_below(rng, (u64)wait / 4 + 1);
    return wait > floor_ms ? wait : floor_ms;
}
