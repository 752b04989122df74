/* Which fields of a JSON payload changed: for the person who has to tell a duplicate from a new intent. */
#include <stdlib.h>

#include "broker/broker_priv.h"

#define CHANGES_MAX 32u

struct member {
    slice name, raw;
};

struct members {
    struct member *at;
    size_t count, cap;
    struct json json; /* keeps unescaped names alive */
};

static int by_name(const void *a, const void *b) {
    slice x = ((const struct member *)a)->name, y = ((const struct member *)b)->name;
    int order = memcmp(x.p, y.p, x.n < y.n ? x.n : y.n);
    return order ? order : (x.n > y.n) - (x.n < y.n);
}

static bool load(struct members *m, slice text) {
    enum json_type type;
    struct member one;
    json_init(&m->json, text);
    if (json_object(&m->json))
        while (json_member(&m->json, &one.name) && json_value(&m->json, &type, &one.raw)) {
            if (m->count == m->cap) {
                m->cap = m->cap ? m->cap * 2 : 16;
                m->at = mem_realloc(m->at, m->cap * sizeof *m->at);
            }
            m->at[m->count++] = one;
        }
    if (m->count) qsort(m->at, m->count, sizeof *m->at, by_name);
    return json_end(&m->json);
}

static void unload(struct members *m) {
    json_free(&m->json);
    mem_free(m->at);
}

static void put_name(struct buf *out, u32 *count, slice name) {
    if (*count >= CHANGES_MAX) return;
    if ((*count)++) buf_char(out, ',');
    json_put_string(out, name);
}

/* Two sorted lists, side by side: what only one has, and what both have but differently. */
static void compare(const struct members *a, const struct members *b, struct buf *out) {
    size_t i = 0, j = 0;
    u32 count = 0;
    while (i < a->count || j < b->count) {
        int order = i == a->count ? 1 : j == b->count ? -1 : by_name(&a->at[i], &b->at[j]);
        if (order < 0) {
            put_name(out, &count, a->at[i++].name);
        } else if (order > 0) {
            put_name(out, &count, b->at[j++].name);
        } else {
            if (!slice_eq(a->at[i].raw, b->at[j].raw)) put_name(out, &count, a->at[i].name);
            i++;
            j++;
        }
    }
}

bool json_changed_fields(slice before, slice after, struct buf *out) {
    struct members a = {0}, b = {0};
    bool ok = load(&a, before);
    ok = load(&b, after) && ok;
    if (ok) {
        buf_char(out, '[');
        compare(&a, &b, out);
        buf_char(out, ']');
    }
    unload(&a);
    unload(&b);
    return ok;
}
