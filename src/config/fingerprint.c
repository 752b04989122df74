/* The hash of a JSON value by its meaning: the value is written anew in canonical spelling, members of an object in a
 * fixed order, and that text is hashed at once.
 *
 * The order is that of the names' hashes, which the tape has anyway, and of the names only where hashes are equal.
 * Canonical spelling is what the compact writers of most senders produce: then a member is copied from the payload
 * as it stands. (One hash for each member, added up, would need no order; SipHash on many short texts costs twice as
 * much as all of this.) */
#include "config/fingerprint.h"

#include <stdlib.h>

#include "config/path.h"

enum kind { KIND_JSON, KIND_ONLY, KIND_IGNORE, KIND_NONE };

struct fingerprint {
    enum kind kind;
    struct arena arena;
    u32 count;
    struct path *paths;
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
    for (const struct node *said = list->first; said; said = said->next) {
        hx_st st = read_path(said, f, &f->paths[f->count++], err);
        if (st != ST_OK) return st;
    }
    qsort(f->paths, f->count, sizeof *f->paths, by_text);
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

/* A member in the order of its object. Of two with the same hash the names decide, which are different. */
struct ranked {
    u32 hash, at;
    const struct json_item *item;
};

static int by_rank(const void *left, const void *right) {
    const struct ranked *a = left, *b = right;
    if (a->hash != b->hash) return a->hash < b->hash ? -1 : 1;
    slice x = json_item_name(a->item), y = json_item_name(b->item);
    int order = memcmp(x.p, y.p, x.n < y.n ? x.n : y.n);
    return order ? order : (x.n > y.n) - (x.n < y.n);
}

static void sort_ranked(struct ranked *at, size_t count) {
    if (count > 32) {
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

static void put_item(struct payload_view *v, u32 at, struct buf *out);

static void put_member(struct payload_view *v, u32 at, struct buf *out) {
    const struct json_item *item = &v->tape.at[at];
    bool container = item->type == JSON_OBJECT || item->type == JSON_ARRAY;
    if (!stands_compact(item)) {
        json_put_string(out, json_item_name(item));
        buf_char(out, ':');
        put_item(v, at, out);
        return;
    }
    /* From the name's quote to the value, and with it where it is canonical. */
    slice value = spelled(item);
    bool whole = !container && is_canonical(item);
    buf_add(out, item->name - 1, item->name_len + 3 + (whole ? value.n : 0));
    if (!whole) put_item(v, at, out);
}

/* The ranking of an object inside is put behind this one's, and gone again when it is done. */
static void put_object(struct payload_view *v, u32 at, struct buf *out) {
    const struct json_item *items = v->tape.at;
    size_t from = v->ranking.len;
    for (u32 i = at + 1; i < items[at].next; i = items[i].next) {
        struct ranked one = {items[i].name_hash, i, &items[i]};
        if (!items[i].marked) buf_add(&v->ranking, &one, sizeof one);
    }
    size_t count = (v->ranking.len - from) / sizeof(struct ranked);
    sort_ranked((struct ranked *)(void *)(v->ranking.p + from), count);
    buf_char(out, '{');
    for (size_t i = 0; i < count; i++) {
        const struct ranked *one = (const struct ranked *)(void *)(v->ranking.p + from) + i;
        put_member(v, one->at, out);
        buf_char(out, ',');
    }
    buf_char(out, '}');
    v->ranking.len = from;
}

static void put_list(struct payload_view *v, u32 at, struct buf *out) {
    const struct json_item *items = v->tape.at;
    buf_char(out, '[');
    for (u32 i = at + 1; i < items[at].next; i = items[i].next) {
        if (items[i].marked) continue;
        put_item(v, i, out);
        buf_char(out, ',');
    }
    buf_char(out, ']');
}

/* Without its name. Recursion ends with the depth a payload may have, JSON_DEPTH_MAX. */
static void put_item(struct payload_view *v, u32 at, struct buf *out) {
    const struct json_item *item = &v->tape.at[at];
    if (item->type == JSON_OBJECT)
        put_object(v, at, out);
    else if (item->type == JSON_ARRAY)
        put_list(v, at, out);
    else
        put_scalar(v, item, out);
}

/* ---- fields */

typedef void visitor(void *ctx, u32 at);

/* Everything a path leads to, from its step `step` on. */
static void visit(const struct path *path, u32 step, struct json_tape *tape, u32 at, visitor *each, void *ctx) {
    for (; step < path->count; step++) {
        const struct path_step *s = &path->steps[step];
        if (s->kind == STEP_EACH) {
            if (tape->at[at].type != JSON_ARRAY) return;
            for (u32 i = at + 1; i < tape->at[at].next; i = tape->at[i].next) visit(path, step + 1, tape, i, each, ctx);
            return;
        }
        at =
            s->kind == STEP_NAME ? json_tape_member(tape, at, s->name, s->hash) : json_tape_element(tape, at, s->index);
        if (at == 0) return;
    }
    each(ctx, at);
}

static void visit_all(const struct fingerprint *f, struct payload_view *v, visitor *each) {
    for (u32 i = 0; i < f->count; i++) visit(&f->paths[i], 0, &v->tape, 0, each, &v->tape);
}

static void mark(void *ctx, u32 at) {
    ((struct json_tape *)ctx)->at[at].marked = true;
}

static void unmark(void *ctx, u32 at) {
    ((struct json_tape *)ctx)->at[at].marked = false;
}

static void put_found(void *ctx, u32 at) {
    struct payload_view *v = ctx;
    put_item(v, at, &v->spelling);
    buf_char(&v->spelling, ',');
}

/* Each path with what it leads to. Paths are kept in the order of their text: that of the config does not matter. */
static void put_fields(const struct fingerprint *f, struct payload_view *v) {
    for (u32 i = 0; i < f->count; i++) {
        json_put_string(&v->spelling, f->paths[i].text);
        buf_char(&v->spelling, ':');
        visit(&f->paths[i], 0, &v->tape, 0, put_found, v);
    }
}

/* No canonical JSON begins with what a payload of another kind gets in front. */
static void put_what_counts(const struct fingerprint *f, struct payload_view *v) {
    struct buf *out = &v->spelling;
    if (!payload_view_json(v)) {
        buf_lit(out, "bytes:");
        buf_slice_add(out, v->payload);
    } else if (f->kind == KIND_ONLY) {
        buf_lit(out, "only:");
        put_fields(f, v);
    } else {
        visit_all(f, v, mark);
        put_item(v, 0, out);
        visit_all(f, v, unmark);
    }
}

u64 fingerprint_eval(const struct fingerprint *f, struct payload_view *v, const struct siphash_key *key) {
    if (!f) return siphash(key, v->payload.p, v->payload.n);
    if (f->kind == KIND_NONE) return 0;
    buf_reset(&v->spelling);
    put_what_counts(f, v);
    return siphash(key, v->spelling.p, v->spelling.len);
}
