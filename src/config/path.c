#include "config/path.h"

struct parser {
    const char *start, *p, *end;
    bool each_allowed;
    struct arena *arena;
    struct path *path;
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
    struct path *path = in->path;
    if (path->count == PATH_STEPS_MAX) return wrong(in, "nested too deeply");
    step.hash = step.kind == STEP_NAME ? json_name_hash(step.name) : 0;
    path->steps[path->count++] = step;
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
    *out = (struct path){.text = copy, .steps = arena_alloc(arena, PATH_STEPS_MAX * sizeof(struct path_step))};
    struct parser in = {copy.p, copy.p, copy.p + copy.n, each_allowed, arena, out, err};
    *column = 1;
    if (!utf8_valid(copy) || has_control(copy)) return wrong(&in, "a field name has characters that cannot be shown");
    hx_st st = parse(&in);
    *column = (u32)(in.p - in.start) + 1;
    return st;
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
