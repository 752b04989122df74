#include "config/rank.h"

#include <stdlib.h>

enum { INSERTED = 32 }; /* up to here insertion is faster than qsort */

static int by_rank(const void *left, const void *right) {
    const struct ranked *a = left, *b = right;
    if (a->hash != b->hash) return a->hash < b->hash ? -1 : 1;
    slice x = json_item_name(a->item), y = json_item_name(b->item);
    int order = memcmp(x.p, y.p, x.n < y.n ? x.n : y.n);
    return order ? order : (x.n > y.n) - (x.n < y.n);
}

void ranked_sort(struct ranked *at, size_t count) {
    if (count > INSERTED) {
        qsort(at, count, sizeof *at, by_rank);
        return;
    }
    for (size_t i = 1; i < count; i++) {
        struct ranked one = at[i];
        size_t to = i;
        for (; to && (at[to - 1].hash > one.hash || (at[to - 1].hash == one.hash && by_rank(&at[to - 1], &one) > 0));
             to--)
            at[to] = at[to - 1];
        at[to] = one;
    }
}

u32 ranked_find(const struct ranked *at, size_t count, const struct json_item *named) {
    struct ranked sought = {named->name_hash, 0, named};
    const struct ranked *found = count ? bsearch(&sought, at, count, sizeof *at, by_rank) : NULL;
    return found ? found->at : 0;
}
