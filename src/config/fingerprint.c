/* The hash of a JSON value by its meaning: the value is written anew in canonical spelling, members of an object in a
 * fixed order (rank.h), and that text is hashed at once. Fields to leave out or to take are followed on the way, all of them
 * together (path.h), so their number does not matter.
 *
 * Canonical spelling is what the compact writers of most senders produce: then a member is copied from the payload
 * as it stands. (One hash for each member, added up, would need no order; SipHash on many short texts costs twice as
 * much as all of this.) */
#include "config/fingerprint.h"

#include <stdlib.h>

#include "config/path.h"
#include "config/rank.h"

/* Numbers grow when they are written out, 1e40 most: beyond ten times a payload its parts must have been written several
 * times, by paths that lead to the same places. */
enum { SPELLING_GROWS = 10, SPELLING_SPARE = 65536 };

enum kind { KIND_JSON, KIND_ONLY, KIND_IGNORE, KIND_NONE };

struct fingerprint {
    enum kind kind;
    struct arena arena;
    u32 count;
    struct path *paths;
    struct path_set set;
};

/* ---- what was said */

static hx_st read_path(const struct node *said, struct fingerprint *f, struct path *out, struct errbuf *err) {
    struct errbuf why;
    u32 column;
    if (said->kind != NODE_SCALAR) return node_error(said, err, "expected a field, found %s", node_kind_text(said));
    if (path_compile(said->text, true, &f->arena, out, &column, &why) == ST_OK) return ST_OK;
    return node_error(said, err, "\"%s\": %s (at its byte %u)", said->text.p, why.text, column);
}

static int by_text(const void *a, const void *b) {
    return strcmp(((const struct path *)a)->text.p, ((const struct path *)b)->text.p);
}

static hx_st read_paths(const struct node *list, struct fingerprint *f, struct errbuf *err) {
    if (list->kind != NODE_SEQ || list->count == 0)
        return node_error(list, err, "expected a list of fields, as in [sent_at, meta.retry]");
    if (list->count > FINGERPRINT_PATHS_MAX) return node_error(list, err, "more than %d fields", FINGERPRINT_PATHS_MAX);
    f->paths = arena_alloc(&f->arena, list->count * sizeof *f->paths);
    hx_st st = ST_OK;
    for (const struct node *said = list->first; said; said = said->next)
        st = both(st, read_path(said, f, &f->paths[f->count++], err));
    if (st != ST_OK) return st;
    qsort(f->paths, f->count, sizeof *f->paths, by_text);
    path_set_make(f->paths, f->count, &f->arena, &f->set);
    return ST_OK;
}

static hx_st read_map(const struct node *said, struct fingerprint *f, struct errbuf *err) {
    const struct node *list = said->first;
    if (said->count != 1) return node_error(said, err, "expected either only: [...] or ignore: [...]");
    slice name = list->name->text;
    if (!slice_eq(name, SL("only")) && !slice_eq(name, SL("ignore")))
        return node_error(list->name, err, "expected only or ignore, found %s", name.p);
    f->kind = slice_eq(name, SL("only")) ? KIND_ONLY : KIND_IGNORE;
    return read_paths(list, f, err);
}

static hx_st read_said(const struct node *said, struct fingerprint *f, struct errbuf *err) {
    if (said->kind == NODE_MAP) return read_map(said, f, err);
    f->kind = slice_eq(said->text, SL("json")) ? KIND_JSON : KIND_NONE;
    if (said->kind == NODE_SCALAR && (f->kind == KIND_JSON || slice_eq(said->text, SL("none")))) return ST_OK;
    return node_error(said, err, "expected bytes, json, none, {only: [...]} or {ignore: [...]}");
}

hx_st fingerprint_from_tree(const struct node *said, struct fingerprint **out, struct errbuf *err) {
    *out = NULL;
    if (said->kind == NODE_SCALAR && slice_eq(said->text, SL("bytes"))) return ST_OK;
    struct fingerprint *f = mem_zalloc(sizeof *f);
    hx_st st = read_said(said, f, err);
    if (st == ST_OK)
        *out = f;
    else
        fingerprint_free(f);
    return st;
}

void fingerprint_free(struct fingerprint *f) {
    if (!f) return;
    arena_clear(&f->arena);
    mem_free(f);
}

/* Is `path` the same as `outer`, or something within it? */
static bool within(slice path, slice outer) {
    return slice_starts(path, outer) && (path.n == outer.n || path.p[outer.n] == '.' || path.p[outer.n] == '[');
}

bool fingerprint_looks_at(const struct fingerprint *f, slice path) {
    if (!f || f->kind == KIND_JSON) return true;
    for (u32 i = 0; i < f->count; i++) {
        slice named = f->paths[i].text;
        if (f->kind == KIND_IGNORE && within(path, named)) return false;
        if (f->kind == KIND_ONLY && (within(path, named) || within(named, path))) return true;
    }
    return f->kind == KIND_IGNORE;
}

/* ---- canonical text */

/* A scalar spelled as the canonical form spells it. */
static bool is_canonical(const struct json_item *item) {
    switch (item->type) {
    case JSON_STRING:
        return !item->escaped;
    case JSON_NUMBER:
        return number_is_plain(json_item_text(item));
    default:
        return true;
    }
}

static slice spelled(const struct json_item *item) {
    u32 quote = item->type == JSON_STRING;
    return slice_of(item->text - quote, item->text_len + 2 * quote);
}

static void put_scalar(struct payload_view *v, const struct json_item *item, struct buf *out) {
    slice text = spelled(item);
    if (is_canonical(item)) {
        buf_slice_add(out, text);
    } else if (item->type == JSON_STRING) {
        CHECK(payload_view_scalar(v, item, &text));
        json_put_string(out, text);
    } else if (!number_canonical(text, out)) {
        buf_slice_add(out, text); /* beyond all bounds: only the same spelling is the same number */
    }
}

/* Does `"name":` stand right before the value, spelled so? An unescaped name is not in the text at all. */
static bool stands_compact(const struct json_item *item) {
    return item->name + item->name_len + 2 == spelled(item).p;
}

/* A value being written down, and what is left out of it. */
struct writing {
    struct payload_view *v;
    struct buf *out;
    const struct path_level *ignored; /* the levels of a set; not looked at without paths */
};

static void put_item(const struct writing *w, u32 at, u32 depth, u64 paths);

/* `paths` lead to the object around it. */
static void put_member(const struct writing *w, u32 at, u32 depth, u64 paths) {
    const struct json_item *item = &w->v->tape.at[at];
    bool container = item->type == JSON_OBJECT || item->type == JSON_ARRAY;
    u64 on = container && paths ? path_level_member(&w->ignored[depth], paths, item) : 0;
    if (!stands_compact(item)) {
        json_put_string(w->out, json_item_name(item));
        buf_char(w->out, ':');
        put_item(w, at, depth + 1, on);
        return;
    }
    /* From the name's quote to the value, and with it where it is canonical. */
    slice value = spelled(item);
    bool whole = !container && is_canonical(item);
    buf_add(w->out, item->name - 1, item->name_len + 3 + (whole ? value.n : 0));
    if (!whole) put_item(w, at, depth + 1, on);
}

static bool is_ignored_member(const struct writing *w, u32 depth, u64 paths, const struct json_item *item) {
    return paths && path_level_member(&w->ignored[depth], paths, item) & w->ignored[depth + 1].ends;
}

/* The ranking of an object inside is put behind this one's, and gone again when it is done. */
static void put_object(const struct writing *w, u32 at, u32 depth, u64 paths) {
    struct payload_view *v = w->v;
    const struct json_item *items = v->tape.at;
    size_t from = v->ranking.len;
    for (u32 i = at + 1; i < items[at].next; i = items[i].next) {
        v->work++;
        if (!is_ignored_member(w, depth, paths, &items[i])) ranked_add(v, i);
    }
    size_t count = ranked_count(v, from);
    ranked_sort(ranked_at(v, from), count);
    buf_char(w->out, '{');
    for (size_t i = 0; i < count; i++) {
        ranked_near(ranked_at(v, from), i, count);
        put_member(w, ranked_at(v, from)[i].at, depth, paths);
        buf_char(w->out, ',');
    }
    buf_char(w->out, '}');
    v->ranking.len = from;
}

static void put_list(const struct writing *w, u32 at, u32 depth, u64 paths) {
    const struct json_item *items = w->v->tape.at;
    u32 index = 0;
    buf_char(w->out, '[');
    for (u32 i = at + 1; i < items[at].next; i = items[i].next) {
        u64 on = paths ? path_level_element(&w->ignored[depth], paths, index++) : 0;
        w->v->work++;
        if (on && on & w->ignored[depth + 1].ends) continue;
        put_item(w, i, depth + 1, on);
        buf_char(w->out, ',');
    }
    buf_char(w->out, ']');
}

/* Without its name. Recursion ends with the depth a payload may have, JSON_DEPTH_MAX. */
static void put_item(const struct writing *w, u32 at, u32 depth, u64 paths) {
    const struct json_item *item = &w->v->tape.at[at];
    if (item->type == JSON_OBJECT)
        put_object(w, at, depth, paths);
    else if (item->type == JSON_ARRAY)
        put_list(w, at, depth, paths);
    else
        put_scalar(w->v, item, w->out);
}

/* ---- fields alone */

/* What each path leads to: a list for each, in the order of the payload. */
struct finds {
    struct payload_view *v; /* its ranking holds them */
    size_t most;
    u32 first[PATHS_MAX], last[PATHS_MAX]; /* numbers of finds, from 1; 0: none */
};

struct find {
    u32 at, next;
};

static struct find *find_number(const struct payload_view *v, u32 number) {
    return (struct find *)(void *)v->ranking.p + number - 1;
}

static bool add_find(void *ctx, u64 paths, u32 at) {
    struct finds *f = ctx;
    for (; paths; paths &= paths - 1) {
        u32 path = (u32)__builtin_ctzll(paths);
        struct find one = {at, 0};
        buf_add(&f->v->ranking, &one, sizeof one);
        u32 number = (u32)(f->v->ranking.len / sizeof one);
        if (f->last[path])
            find_number(f->v, f->last[path])->next = number;
        else
            f->first[path] = number;
        f->last[path] = number;
    }
    return f->v->ranking.len <= f->most * sizeof(struct find);
}

static bool put_finds(const struct fingerprint *f, const struct finds *finds, size_t most) {
    struct payload_view *v = finds->v;
    struct writing w = {.v = v, .out = &v->spelling};
    for (u32 i = 0; i < f->count; i++) {
        json_put_string(w.out, f->paths[i].text);
        buf_char(w.out, ':');
        for (u32 number = finds->first[i]; number; number = find_number(v, number)->next) {
            put_item(&w, find_number(v, number)->at, 0, 0);
            buf_char(w.out, ',');
            if (w.out->len > most) return false;
        }
    }
    return true;
}

/* Each path with what it leads to. Paths are kept in the order of their text: that of the config does not matter. False: the
 * same parts would be written again and again. */
static bool put_fields(const struct fingerprint *f, struct payload_view *v) {
    size_t most = v->payload.n * SPELLING_GROWS + SPELLING_SPARE;
    struct finds finds = {.v = v, .most = most / 2}; /* each takes two bytes at least */
    buf_reset(&v->ranking);
    path_set_visit(&f->set, &v->tape, add_find, &finds, &v->work);
    bool whole = v->ranking.len <= finds.most * sizeof(struct find) && put_finds(f, &finds, most);
    buf_reset(&v->ranking);
    return whole;
}

static void put_bytes(struct payload_view *v) {
    buf_reset(&v->spelling);
    buf_lit(&v->spelling, "bytes:");
    buf_slice_add(&v->spelling, v->payload);
}

/* No canonical JSON begins with what a payload of another kind gets in front. */
static void put_what_counts(const struct fingerprint *f, struct payload_view *v) {
    struct buf *out = &v->spelling;
    struct writing w = {.v = v, .out = out, .ignored = f->set.levels};
    if (!payload_view_json(v)) {
        put_bytes(v);
    } else if (f->kind == KIND_ONLY) {
        buf_lit(out, "only:");
        if (!put_fields(f, v)) put_bytes(v);
    } else {
        put_item(&w, 0, 0, f->set.all);
    }
}

u64 fingerprint_eval(const struct fingerprint *f, struct payload_view *v, const struct siphash_key *key) {
    if (!f) return siphash(key, v->payload.p, v->payload.n);
    if (f->kind == KIND_NONE) return 0;
    buf_reset(&v->spelling);
    put_what_counts(f, v);
    return siphash(key, v->spelling.p, v->spelling.len);
}
