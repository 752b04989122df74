#include "config/path.h"

#include <stdlib.h>

struct parser {
    const char *start, *p, *end;
    bool each_allowed;
    u32 count;
    struct path_step steps[PATH_STEPS_MAX];
    struct errbuf *err;
};

static hx_st wrong(const struct parser *in, const char *message) {
    return err_set(in->err, ST_INVALID, "%s", message);
}

static bool plain(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '@' || (u8)c >= 0x80;
}

static hx_st add_step(struct parser *in, struct path_step step) {
    if (in->count == PATH_STEPS_MAX) return wrong(in, "nested too deeply");
    step.hash = step.kind == STEP_NAME ? json_name_hash(step.name) : 0;
    in->steps[in->count++] = step;
    return ST_OK;
}

static hx_st parse_name(struct parser *in) {
    const char *from = in->p;
    while (in->p < in->end && plain(*in->p)) in->p++;
    slice name = slice_of(from, (size_t)(in->p - from));
    if (name.n) return add_step(in, (struct path_step){STEP_NAME, 0, 0, name});
    return wrong(in, in->p == in->end || *in->p == '.' || *in->p == '['
                         ? "a field name is missing"
                         : "this cannot stand in a field name; write [\"odd name\"]");
}

/* Behind `["`. */
static hx_st parse_quoted(struct parser *in) {
    const char *quote = memchr(in->p, '"', (size_t)(in->end - in->p));
    if (!quote) return wrong(in, "a closing '\"' is missing");
    slice name = slice_of(in->p, (size_t)(quote - in->p));
    in->p = quote + 1;
    return add_step(in, (struct path_step){STEP_NAME, 0, 0, name});
}

static hx_st parse_index(struct parser *in) {
    u64 index;
    const char *from = in->p;
    while (in->p < in->end && *in->p >= '0' && *in->p <= '9') in->p++;
    slice digits = slice_of(from, (size_t)(in->p - from));
    bool good = slice_u64(digits, &index) && index <= PATH_INDEX_MAX && (digits.n == 1 || *from != '0');
    if (good) return add_step(in, (struct path_step){STEP_INDEX, 0, (u32)index, {0}});
    in->p = from;
    return wrong(in, in->each_allowed ? "expected an index from 0 to 1000000, \"name\" or *"
                                      : "expected an index from 0 to 1000000 or \"name\"");
}

/* Behind `[`. */
static hx_st parse_bracket(struct parser *in) {
    hx_st st;
    char c = in->p < in->end ? *in->p : '\0';
    if (c == '*' && in->each_allowed) {
        in->p++;
        st = add_step(in, (struct path_step){.kind = STEP_EACH});
    } else if (c == '"') {
        in->p++;
        st = parse_quoted(in);
    } else {
        st = parse_index(in);
    }
    if (st != ST_OK) return st;
    if (in->p == in->end || *in->p != ']') return wrong(in, "expected ']'");
    in->p++;
    return ST_OK;
}

static hx_st parse(struct parser *in) {
    hx_st st = ST_OK;
    bool first = true;
    if (in->end - in->p >= 2 && memcmp(in->p, "$.", 2) == 0) in->p += 2;
    for (; st == ST_OK && (first || in->p < in->end); first = false) {
        if (in->p < in->end && *in->p == '[') {
            in->p++;
            st = parse_bracket(in);
            continue;
        }
        if (!first) {
            if (*in->p != '.') return wrong(in, "expected '.' or '['");
            in->p++;
        }
        st = parse_name(in);
    }
    return st;
}

hx_st path_compile(slice text, bool each_allowed, struct arena *arena, struct path *out, u32 *column,
                   struct errbuf *err) {
    slice copy = arena_copy(arena, text);
    struct parser in = {.start = copy.p, .p = copy.p, .end = copy.p + copy.n, .each_allowed = each_allowed, .err = err};
    *out = (struct path){.text = copy};
    *column = 1;
    if (!utf8_valid(copy) || has_control(copy)) return wrong(&in, "a field name has characters that cannot be shown");
    hx_st st = parse(&in);
    *column = (u32)(in.p - in.start) + 1;
    out->count = in.count;
    out->steps = arena_alloc(arena, in.count * sizeof *out->steps);
    if (in.count) memcpy(out->steps, in.steps, in.count * sizeof *out->steps);
    return st;
}

bool path_same(const struct path *a, const struct path *b) {
    bool same = a->count == b->count;
    for (u32 i = 0; same && i < a->count; i++) {
        const struct path_step *x = &a->steps[i], *y = &b->steps[i];
        same = x->kind == y->kind && x->index == y->index && slice_eq(x->name, y->name);
    }
    return same;
}

u32 path_find(const struct path *path, const struct json_tape *tape) {
    u32 at = 0;
    for (u32 i = 0; i < path->count; i++) {
        const struct path_step *step = &path->steps[i];
        at = step->kind == STEP_NAME ? json_tape_member(tape, at, step->name, step->hash)
                                     : json_tape_element(tape, at, step->index);
        if (at == 0) return 0;
    }
    return at;
}

/* ---- many at once */

static int by_name(const void *a, const void *b) {
    const struct path_name *x = a, *y = b;
    if (x->hash != y->hash) return x->hash < y->hash ? -1 : 1;
    int order = memcmp(x->name.p, y->name.p, x->name.n < y->name.n ? x->name.n : y->name.n);
    return order ? order : (x->name.n > y->name.n) - (x->name.n < y->name.n);
}

static int by_index(const void *a, const void *b) {
    const struct path_index *x = a, *y = b;
    return (x->index > y->index) - (x->index < y->index);
}

static void add_to_level(struct path_level *level, const struct path_step *step, u64 path) {
    if (step->kind == STEP_EACH) {
        level->each |= path;
    } else if (step->kind == STEP_INDEX) {
        level->indices[level->index_count++] = (struct path_index){step->index, path};
    } else {
        level->names[level->name_count++] = (struct path_name){step->hash, step->name, path};
        level->filter |= UINT64_C(1) << (step->hash >> 26);
        level->named |= path;
    }
}

/* The same name on several paths becomes one entry, the same index likewise. */
static void close_level(struct path_level *level) {
    u32 kept = 0;
    if (level->name_count) qsort(level->names, level->name_count, sizeof *level->names, by_name);
    for (u32 i = 0; i < level->name_count; i++) {
        if (i && by_name(&level->names[kept - 1], &level->names[i]) == 0)
            level->names[kept - 1].paths |= level->names[i].paths;
        else
            level->names[kept++] = level->names[i];
    }
    level->name_count = kept;
    kept = 0;
    if (level->index_count) qsort(level->indices, level->index_count, sizeof *level->indices, by_index);
    for (u32 i = 0; i < level->index_count; i++) {
        if (i && level->indices[kept - 1].index == level->indices[i].index)
            level->indices[kept - 1].paths |= level->indices[i].paths;
        else
            level->indices[kept++] = level->indices[i];
    }
    level->index_count = kept;
}

void path_set_make(const struct path *paths, u32 count, struct arena *arena, struct path_set *out) {
    CHECK(count <= PATHS_MAX);
    *out = (struct path_set){.all = count == PATHS_MAX ? ~UINT64_C(0) : (UINT64_C(1) << count) - 1};
    for (u32 depth = 0; depth <= PATH_STEPS_MAX; depth++) {
        struct path_level *level = &out->levels[depth];
        u32 longer = 0;
        for (u32 i = 0; i < count; i++) longer += paths[i].count > depth;
        level->names = arena_alloc(arena, longer * sizeof *level->names);
        level->indices = arena_alloc(arena, longer * sizeof *level->indices);
        for (u32 i = 0; i < count; i++) {
            if (paths[i].count == depth) level->ends |= UINT64_C(1) << i;
            if (paths[i].count > depth) add_to_level(level, &paths[i].steps[depth], UINT64_C(1) << i);
        }
        close_level(level);
        if (!longer) return;
    }
}

u64 path_level_named(const struct path_level *level, const struct json_item *member) {
    const struct path_name *at = level->names, *end = at + level->name_count;
    for (u32 left = level->name_count; left > 4;) { /* the last few are faster walked over */
        u32 half = left / 2;
        if (at[half - 1].hash < member->name_hash) at += half;
        left -= half;
    }
    while (at < end && at->hash < member->name_hash) at++;
    for (; at < end && at->hash == member->name_hash; at++)
        if (slice_eq(at->name, json_item_name(member))) return at->paths;
    return 0;
}

u64 path_level_indexed(const struct path_level *level, u32 index) {
    u32 low = 0, high = level->index_count;
    while (low < high) {
        u32 middle = (low + high) / 2;
        if (level->indices[middle].index == index) return level->indices[middle].paths;
        if (level->indices[middle].index > index)
            high = middle;
        else
            low = middle + 1;
    }
    return 0;
}

struct walk {
    const struct path_set *set;
    const struct json_item *items;
    path_visitor *each;
    void *ctx;
    u64 work;
};

static bool go_on(struct walk *w, u32 at, u32 depth, u64 paths);

/* Some have led to this value. */
static inline bool visit(struct walk *w, u32 at, u32 depth, u64 paths) {
    u64 here = paths & w->set->levels[depth].ends;
    if (here && !w->each(w->ctx, here, at)) return false;
    paths &= ~here;
    return !paths || go_on(w, at, depth, paths);
}

/* Names come once in an object, so those that were found need not be looked for any more. */
static bool visit_members(struct walk *w, u32 at, u32 depth, u64 paths) {
    const struct path_level *level = &w->set->levels[depth];
    bool more = true;
    paths &= level->named;
    for (u32 i = at + 1; more && paths && i < w->items[at].next; i = w->items[i].next) {
        u64 on = path_level_member(level, paths, &w->items[i]);
        w->work++;
        paths &= ~on;
        if (on) more = visit(w, i, depth + 1, on);
    }
    return more;
}

static bool visit_elements(struct walk *w, u32 at, u32 depth, u64 paths) {
    const struct path_level *level = &w->set->levels[depth];
    bool more = true;
    u32 last = level->index_count ? level->indices[level->index_count - 1].index : 0, index = 0;
    bool to_the_end = paths & level->each;
    for (u32 i = at + 1; more && i < w->items[at].next && (to_the_end || index <= last); i = w->items[i].next) {
        u64 on = path_level_element(level, paths, index++);
        w->work++;
        if (on) more = visit(w, i, depth + 1, on);
    }
    return more;
}

/* As deep as paths are long. */
static bool go_on(struct walk *w, u32 at, u32 depth, u64 paths) {
    if (w->items[at].type == JSON_OBJECT) return visit_members(w, at, depth, paths);
    return w->items[at].type != JSON_ARRAY || visit_elements(w, at, depth, paths);
}

void path_set_visit(const struct path_set *set, const struct json_tape *tape, path_visitor *each, void *ctx,
                    u64 *work) {
    struct walk w = {set, tape->at, each, ctx, *work};
    visit(&w, 0, 0, set->all);
    *work = w.work;
}
