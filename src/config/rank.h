/* The members of an object in an order that does not depend on how it was written: by their names' hashes, which the tape
 * has anyway, and by the names where hashes are equal. */
#ifndef HAPAX_CONFIG_RANK_H
#define HAPAX_CONFIG_RANK_H

#include "config/view.h"

struct ranked {
    u32 hash, at;
    const struct json_item *item;
};

/* Lists of them are put one behind the other into a view's `ranking`; a list begins at a byte of it. */
static inline struct ranked *ranked_at(const struct payload_view *v, size_t from) {
    return (struct ranked *)(void *)(v->ranking.p + from);
}
static inline size_t ranked_count(const struct payload_view *v, size_t from) {
    return (v->ranking.len - from) / sizeof(struct ranked);
}
static inline void ranked_add(struct payload_view *v, u32 at) {
    const struct json_item *item = &v->tape.at[at];
    struct ranked one = {item->name_hash, at, item};
    buf_add(&v->ranking, &one, sizeof one);
}

/* In this order members lie anywhere in a large payload: what is next is brought near while this one is written. */
static inline void ranked_near(const struct ranked *at, size_t i, size_t count) {
    if (i + 16 < count) near(at[i + 16].item);
    if (i + 8 < count) near(at[i + 8].item->name);
}

void ranked_sort(struct ranked *at, size_t count);
/* The member of this name in a sorted list; 0 if there is none. */
u32 ranked_find(const struct ranked *at, size_t count, const struct json_item *named);

#endif
