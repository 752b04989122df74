#include "config/payload_diff.h"

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

/* Members of a, with their counterparts in b or without; then those b alone has. */
static bool compare_objects(struct comparison *c, u32 a, u32 b) {
    struct json_tape *x = &c->before->tape, *y = &c->after->tape;
    bool more = true;
    for (u32 i = a + 1; more && i < x->at[a].next; i = x->at[i].next) {
        size_t from = descend(c, &x->at[i]);
        u32 other = json_tape_member(y, b, json_item_name(&x->at[i]), x->at[i].name_hash);
        more = other ? compare(c, i, other) : report(c, &x->at[i], NULL);
        c->path.len = from;
    }
    for (u32 i = b + 1; more && i < y->at[b].next; i = y->at[i].next) {
        if (json_tape_member(x, a, json_item_name(&y->at[i]), y->at[i].name_hash)) continue;
        size_t from = descend(c, &y->at[i]);
        more = report(c, NULL, &y->at[i]);
        c->path.len = from;
    }
    return more;
}

/* Recursion ends with the depth a payload may have, JSON_DEPTH_MAX. */
static bool compare(struct comparison *c, u32 a, u32 b) {
    const struct json_item *x = &c->before->tape.at[a], *y = &c->after->tape.at[b];
    if (x->type == JSON_OBJECT && y->type == JSON_OBJECT) return compare_objects(c, a, b);
    bool same = x->type == JSON_ARRAY && y->type == JSON_ARRAY ? same_list(c, a, b) : same_scalar(c, x, y);
    return same || report(c, x, y);
}

bool payload_diff(struct payload_view *before, struct payload_view *after, change_visitor *each, void *ctx) {
    struct comparison c = {before, after, {0}, each, ctx};
    if (!payload_view_json(before) || !payload_view_json(after)) return false;
    compare(&c, 0, 0);
    buf_free(&c.path);
    return true;
}
