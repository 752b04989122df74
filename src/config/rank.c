#include "config/rank.h"

#include <stdlib.h>

/* Up to here insertion is fastest; up to there comparing costs less than the tables by which members are dealt out, and a payload may
 * be thousands of such objects. */
enum { INSERTED = 32, COMPARED = 256 };

static int by_rank(const void *left, const void *right) {
    const struct ranked *a = left, *b = right;
    if (a->hash != b->hash) return a->hash < b->hash ? -1 : 1;
    slice x = json_item_name(a->item), y = json_item_name(b->item);
    int order = memcmp(x.p, y.p, x.n < y.n ? x.n : y.n);
    return order ? order : (x.n > y.n) - (x.n < y.n);
}

static void insert_each(struct ranked *at, size_t count) {
    for (size_t i = 1; i < count; i++) {
        struct ranked one = at[i];
        size_t to = i;
        for (; to && (at[to - 1].hash > one.hash || (at[to - 1].hash == one.hash && by_rank(&at[to - 1], &one) > 0));
             to--)
            at[to] = at[to - 1];
        at[to] = one;
    }
}

/* By a byte of the hash, each to its place: where it stands is given up for whatever belongs there. ends: where the places of each
 * byte end. */
static void deal_out(struct ranked *at, size_t count, u32 shift, size_t ends[256]) {
    size_t next[256], sum = 0;
    for (u32 byte = 0; byte < 256; byte++) ends[byte] = 0;
    for (size_t i = 0; i < count; i++) ends[at[i].hash >> shift & 255]++;
    for (u32 byte = 0; byte < 256; byte++) {
        next[byte] = sum;
        ends[byte] = sum += ends[byte];
    }
    for (u32 byte = 0; byte < 256; byte++) {
        while (next[byte] < ends[byte]) {
            struct ranked one = at[next[byte]];
            for (u32 to; (to = one.hash >> shift & 255) != byte;) {
                struct ranked *place = &at[next[to]++], other = *place;
                *place = one;
                one = other;
            }
            at[next[byte]++] = one;
        }
    }
}

static void sort_by(struct ranked *at, size_t count, u32 bits);

static void sort_dealt(struct ranked *at, size_t count, u32 bits) {
    size_t ends[256], from = 0;
    deal_out(at, count, bits - 8, ends);
    for (u32 byte = 0; byte < 256; from = ends[byte++]) sort_by(at + from, ends[byte] - from, bits - 8);
}

/* Of a hundred thousand members each would be compared with seventeen others: a payload that is all members would take longer than
 * anybody else should wait. The hash's bytes, the highest first, need no comparing; only names whose hashes are the same do, and
 * those of few. */
static void sort_by(struct ranked *at, size_t count, u32 bits) {
    if (count <= INSERTED)
        insert_each(at, count);
    else if (count <= COMPARED || bits == 0)
        qsort(at, count, sizeof *at, by_rank);
    else
        sort_dealt(at, count, bits);
}

void ranked_sort(struct ranked *at, size_t count) {
    sort_by(at, count, 32);
}

u32 ranked_find(const struct ranked *at, size_t count, const struct json_item *named) {
    struct ranked sought = {named->name_hash, 0, named};
    const struct ranked *found = count ? bsearch(&sought, at, count, sizeof *at, by_rank) : NULL;
    return found ? found->at : 0;
}
