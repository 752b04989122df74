#include "config/payload_diff.h"

#include "config/rank.h"

struct comparison {
    struct payload_view *before, *after;
    struct buf path;
    change_visitor *each;
    void *ctx;
};

static bool report(struct comparison *c, const struct json_item *before, const struct json_item *after) {
    return c->each(c->ctx, buf_slice(&c->path), before, after);
}

/* Two canonical texts at once: each view has its own memory for them. */
static bool same_scalar(struct comparison *c, const struct json_item *a, const struct json_item *b) {
    slice x, y;
    if (a->type != b->type) return false;
    if (!payload_view_scalar(c->before, a, &x) || !payload_view_scalar(c->after, b, &y))
        return slice_eq(json_item_text(a), json_item_text(b));
    return slice_eq(x, y);
}

/* Lists of the same length whose elements agree; what is not a scalar in them must be spelled the same. */
static bool same_list(struct comparison *c, u32 a, u32 b) {
    const struct json_item *x = c->before->tape.at, *y = c->after->tape.at;
    u32 i = a + 1, j = b + 1;
    for (; i < x[a].next && j < y[b].next; i = x[i].next, j = y[j].next) {
        if (!same_scalar(c, &x[i], &y[j])) return false;
    }
    return i == x[a].next && j == y[b].next;
}

static size_t descend(struct comparison *c, const struct json_item *member) {
    size_t from = c->path.len;
    if (from) buf_char(&c->path, '.');
    buf_slice_add(&c->path, json_item_name(member));
    return from;
}

static bool compare(struct comparison *c, u32 a, u32 b);

/* Where the member of an object is that is called so. Payloads of one sender have their members in the same order: then it
 * is the one at *next. If not, the object's members are ranked, once, behind `from` of its view's ranking. */
static u32 counterpart(struct payload_view *v, u32 object, const struct json_item *named, u32 *next, size_t from) {
    const struct json_item *items = v->tape.at;
    u32 found = *next < items[object].next ? *next : 0;
    v->work++;
    if (!found || !slice_eq(json_item_name(&items[found]), json_item_name(named))) {
        if (v->ranking.len == from) {
            for (u32 i = object + 1; i < items[object].next; i = items[i].next) ranked_add(v, i);
            v->work += ranked_count(v, from);
            ranked_sort(ranked_at(v, from), ranked_count(v, from));
        }
        found = ranked_find(ranked_at(v, from), ranked_count(v, from), named);
    }
    if (found) *next = items[found].next;
    return found;
}

/* Members of a, with their counterparts in b or without; then those b alone has. */
static bool compare_objects(struct comparison *c, u32 a, u32 b) {
    struct json_item *x = c->before->tape.at, *y = c->after->tape.at;
    size_t from = c->after->ranking.len;
    u32 next = b + 1;
    bool more = true;
    for (u32 i = a + 1; more && i < x[a].next; i = x[i].next) {
        size_t path = descend(c, &x[i]);
        u32 other = counterpart(c->after, b, &x[i], &next, from);
        y[other].marked = other != 0;
        size_t ranked = c->after->ranking.len; /* of the object inside, which puts its own behind */
        more = other ? compare(c, i, other) : report(c, &x[i], NULL);
        CHECK(c->after->ranking.len == ranked);
        c->path.len = path;
    }
    for (u32 i = b + 1; i < y[b].next; i = y[i].next) {
        bool known = y[i].marked;
        y[i].marked = false;
        if (known || !more) continue;
        size_t path = descend(c, &y[i]);
        more = report(c, NULL, &y[i]);
        c->path.len = path;
    }
    c->after->ranking.len = from;
    return more;
}

/* Recursion ends with the depth a payload may have, JSON_DEPTH_MAX. */
static bool compare(struct comparison *c, u32 a, u32 b) {
    const struct json_item *x = &c->before->tape.at[a], *y = &c->after->tape.at[b];
    if (x->type == JSON_OBJECT && y->type == JSON_OBJECT) return compare_objects(c, a, b);
    bool same = x->type == JSON_ARRAY && y->type == JSON_ARRAY ? same_list(c, a, b) : same_scalar(c, x, y);
    return same || report(c, x, y);
}

bool payload_diff(struct payload_view *before, struct payload_view *after, u32 most, change_visitor *each, void *ctx) {
    struct comparison c = {before, after, {0}, each, ctx};
    if (!payload_view_json(after) || after->tape.count > most) return false;
    if (!payload_view_json(before) || before->tape.count > most - after->tape.count) return false;
    compare(&c, 0, 0);
    buf_free(&c.path);
    return true;
}
