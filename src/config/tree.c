#include "config/tree.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/json.h"
#include "config/tree_priv.h"

/* ---- positions and messages */

void text_position(slice text, size_t at, u32 *line, u32 *column) {
    *line = *column = 1;
    for (size_t i = 0; i < at && i < text.n; i++) {
        if (text.p[i] == '\n') {
            ++*line;
            *column = 1;
        } else if (((u8)text.p[i] & 0xC0) != 0x80) {
            ++*column;
        }
    }
}

static bool is_text(slice s, const char *text) {
    return slice_eq(s, slice_str(text));
}

static u32 index_of(const struct node *child) {
    u32 i = 0;
    for (const struct node *n = child->parent->first; n != child; n = n->next) i++;
    return i;
}

static void path_of(const struct node *at, struct buf *out) {
    const struct node *parent = at->parent;
    if (!parent) return;
    path_of(parent, out);
    if (!at->name) {
        if (parent->kind == NODE_SEQ) buf_printf(out, "[%u]", index_of(at));
        return;
    }
    bool queue = parent->name && is_text(parent->name->text, "queues") && !parent->parent->parent;
    if (queue) {
        buf_reset(out);
        buf_lit(out, "queue ");
    } else if (out->len && out->p[out->len - 1] != ' ') {
        buf_char(out, '.');
    }
    buf_slice_add(out, at->name->text);
    if (queue) buf_lit(out, ": ");
}

void node_path(const struct node *at, struct buf *out) {
    struct buf path = {0};
    path_of(at, &path);
    if (path.len && path.p[path.len - 1] != ' ') buf_lit(&path, ": ");
    buf_slice_add(out, buf_slice(&path));
    buf_free(&path);
}

/* Names come from the file: a control character in one must not reach a terminal, nor break the one line. */
static void clean_line(struct buf *b) {
    for (size_t i = 0; i < b->len; i++)
        if ((u8)b->p[i] < 0x20 || b->p[i] == 0x7F) b->p[i] = ' ';
}

/* What one mistake makes wrong in two places is told once. */
static void add_mistake(struct document *d, u32 line, u32 column, slice text) {
    for (u32 i = 0; i < d->count; i++)
        if (slice_eq(d->mistakes[i].text, text)) return;
    if (d->count < TREE_MISTAKES_MAX)
        d->mistakes[d->count++] = (struct mistake){line, column, arena_copy(d->arena, text)};
    d->found++;
}

/* `at` NULL: about a place that has no node. */
static hx_st mistake(struct document *d, u32 line, u32 column, const struct node *at, const char *message) {
    struct errbuf cut; /* no line is longer than this one holds */
    struct buf b = {0};
    if (d->file) buf_printf(&b, "%s:%u:%u: ", d->file, line, column);
    if (at) node_path(at, &b);
    buf_slice_add(&b, slice_str(message));
    clean_line(&b);
    err_set(&cut, ST_INVALID, "%.*s", (int)b.len, b.p);
    add_mistake(d, line, column, slice_str(cut.text));
    buf_free(&b);
    return ST_INVALID;
}

hx_st node_error(const struct node *at, struct errbuf *err, const char *fmt, ...) {
    char message[sizeof(err->text)];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof(message), fmt, args);
    va_end(args);
    mistake(at->document, at->line, at->column, at, message);
    return err_set(err, ST_INVALID, "%s", at->document->mistakes[0].text.p);
}

hx_st builder_error(const struct tree_builder *builder, u32 line, u32 column, const char *fmt, ...) {
    char message[sizeof(struct errbuf)];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof(message), fmt, args);
    va_end(args);
    return mistake(builder->tree.document, line, column, NULL, message);
}

static int by_place(const void *a, const void *b) {
    const struct mistake *x = *(const struct mistake *const *)a, *y = *(const struct mistake *const *)b;
    if (x->line != y->line) return x->line < y->line ? -1 : 1;
    if (x->column != y->column) return x->column < y->column ? -1 : 1;
    return (x > y) - (x < y); /* in the order they were found */
}

void tree_put_mistakes(const struct tree *t, struct buf *out) {
    const struct document *d = t->document;
    const struct mistake *ordered[TREE_MISTAKES_MAX];
    for (u32 i = 0; i < d->count; i++) ordered[i] = &d->mistakes[i];
    qsort(ordered, d->count, sizeof ordered[0], by_place);
    for (u32 i = 0; i < d->count; i++) {
        buf_slice_add(out, ordered[i]->text);
        buf_char(out, '\n');
    }
    if (d->found > d->count) buf_printf(out, "and %u more\n", d->found - d->count);
}

const char *node_kind_text(const struct node *n) {
    static const char *const texts[] = {
        [NODE_NULL] = "nothing", [NODE_SCALAR] = "text", [NODE_MAP] = "a map", [NODE_SEQ] = "a list"};
    return texts[n->kind];
}

const struct node *node_get(const struct node *map, slice name) {
    if (!map || map->kind != NODE_MAP) return NULL;
    for (const struct node *n = map->first; n; n = n->next)
        if (slice_eq(n->name->text, name)) return n;
    return NULL;
}

static bool is_json_word(slice text) {
    struct json j;
    enum json_type type;
    slice raw;
    json_init(&j, text);
    bool ok = json_value(&j, &type, &raw) && json_end(&j) && (type == JSON_NUMBER || type == JSON_BOOL);
    json_free(&j);
    return ok;
}

static void put_scalar(const struct node *n, struct buf *out) {
    if (n->kind == NODE_NULL)
        buf_lit(out, "null");
    else if (!n->quoted && is_json_word(n->text))
        buf_slice_add(out, slice_trim(n->text));
    else
        json_put_string(out, n->text);
}

void node_put_json(const struct node *n, struct buf *out) {
    if (n->kind != NODE_MAP && n->kind != NODE_SEQ) {
        if (n->withheld)
            buf_lit(out, "\"" NODE_WITHHELD "\"");
        else
            put_scalar(n, out);
        return;
    }
    buf_char(out, n->kind == NODE_MAP ? '{' : '[');
    for (const struct node *c = n->first; c; c = c->next) {
        if (c != n->first) buf_char(out, ',');
        if (c->name) {
            json_put_string(out, c->name->text);
            buf_char(out, ':');
        }
        node_put_json(c, out);
    }
    buf_char(out, n->kind == NODE_MAP ? '}' : ']');
}

/* ---- building */

static hx_st check_limits(struct tree_builder *b, enum node_kind kind, u32 line, u32 column) {
    bool container = kind == NODE_MAP || kind == NODE_SEQ;
    if (container && b->depth == TREE_DEPTH_MAX)
        return builder_error(b, line, column, "nested deeper than %d levels", TREE_DEPTH_MAX);
    if (++b->nodes > TREE_NODES_MAX) return builder_error(b, line, column, "more than %d values", TREE_NODES_MAX);
    if (b->open && b->open->count == TREE_ENTRIES_MAX)
        return builder_error(b, line, column, "more than %d entries in one %s", TREE_ENTRIES_MAX,
                             b->open->kind == NODE_MAP ? "map" : "list");
    return ST_OK;
}

static hx_st check_name(const struct node *name) {
    if (name->kind != NODE_SCALAR && name->kind != NODE_NULL) return node_error(name, NULL, "a key must be a name");
    if (name->text.n == 0) return node_error(name, NULL, "a key is missing before ':'");
    if (!name->quoted && is_text(name->text, "<<")) return node_error(name, NULL, "merge keys (<<) are not supported");
    return ST_OK;
}

/* Put the node where it belongs: as the root, as the name of the next value, or as a child. */
static hx_st place(struct tree_builder *b, struct node *n) {
    struct node *open = b->open;
    if (!open) {
        b->tree.root = n;
        return ST_OK;
    }
    if (open->kind == NODE_MAP && !b->name) {
        hx_st st = check_name(n);
        b->name = n;
        return st;
    }
    n->name = b->name;
    b->name = NULL;
    if (b->last)
        b->last->next = n;
    else
        open->first = n;
    b->last = n;
    open->count++;
    return ST_OK;
}

struct node *builder_add(struct tree_builder *b, enum node_kind kind, slice text, bool quoted, u32 line, u32 column) {
    if (check_limits(b, kind, line, column) != ST_OK) return NULL;
    struct node *n = arena_alloc(b->tree.arena, sizeof(*n));
    *n = (struct node){.kind = kind,
                       .quoted = quoted,
                       .line = line,
                       .column = column,
                       .parent = b->open,
                       .document = b->tree.document};
    n->text = arena_copy(b->tree.arena, text);
    if (place(b, n) != ST_OK) return NULL;
    if (kind == NODE_MAP || kind == NODE_SEQ) {
        b->last_of[b->depth++] = b->last;
        b->open = n;
        b->last = NULL;
    }
    return n;
}

static int by_name(const void *a, const void *b) {
    const struct node *x = (*(const struct node *const *)a)->name, *y = (*(const struct node *const *)b)->name;
    int order = memcmp(x->text.p, y->text.p, (x->text.n < y->text.n ? x->text.n : y->text.n));
    if (order == 0) order = (x->text.n > y->text.n) - (x->text.n < y->text.n);
    if (order == 0) order = (x->line > y->line) - (x->line < y->line);
    return order ? order : (x->column > y->column) - (x->column < y->column);
}

static void take_out_repeated(struct node *map) {
    struct node **link = &map->first;
    for (struct node *n = map->first; n; n = n->next) {
        if (n->repeated) {
            map->count--;
            continue;
        }
        *link = n;
        link = &n->next;
    }
    *link = NULL;
}

/* By sorting, so that a map of thousands of keys is no work for minutes. */
static void check_no_name_twice(struct node *map) {
    struct node **sorted = mem_alloc(map->count * sizeof(*sorted)), **end = sorted;
    bool repeated = false;
    for (struct node *n = map->first; n; n = n->next) *end++ = n;
    if (map->count) qsort(sorted, map->count, sizeof(*sorted), by_name);
    for (u32 i = 1; i < map->count; i++) {
        const struct node *name = sorted[i]->name, *before = sorted[i - 1]->name;
        if (!slice_eq(name->text, before->text)) continue;
        node_error(name, NULL, "%.*s is given twice; first on line %u", (int)name->text.n, name->text.p, before->line);
        sorted[i]->repeated = repeated = true;
    }
    if (repeated) take_out_repeated(map);
    mem_free(sorted);
}

void builder_close(struct tree_builder *b) {
    struct node *closed = b->open;
    b->last = b->last_of[--b->depth];
    b->open = (struct node *)closed->parent;
    if (closed->kind == NODE_MAP) check_no_name_twice(closed);
}

void tree_free(struct tree *t) {
    arena_free_wiped(t->arena);
    *t = (struct tree){0};
}

/* ---- what every document must be */

/* How far the text is UTF-8: character by character, each as long as its first byte says. */
static size_t utf8_prefix(slice text) {
    size_t at = 0;
    while (at < text.n) {
        u8 first = (u8)text.p[at];
        size_t n = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
        if (n > text.n - at || !utf8_valid(slice_of(text.p + at, n))) break;
        at += n;
    }
    return at;
}

static hx_st text_check(const struct tree_builder *b, slice text) {
    u32 line, column;
    if (text.n > TREE_BYTES_MAX)
        return builder_error(b, 1, 1, "%zu bytes are too many: the limit is %d", text.n, TREE_BYTES_MAX);
    const char *nul = text.n ? memchr(text.p, '\0', text.n) : NULL;
    if (nul) {
        text_position(text, (size_t)(nul - text.p), &line, &column);
        return builder_error(b, line, column, "a NUL byte");
    }
    if (utf8_valid(text)) return ST_OK;
    text_position(text, utf8_prefix(text), &line, &column);
    return builder_error(b, line, column, "not UTF-8");
}

hx_st tree_read(enum tree_format format, slice text, const char *file, struct tree *out) {
    struct tree_builder b = {0};
    struct tree *t = &b.tree;
    t->arena = arena_new();
    t->document = arena_alloc(t->arena, sizeof(*t->document));
    t->document->arena = t->arena;
    t->document->file = file ? arena_string(t->arena, slice_str(file)) : NULL;
    hx_st st = text_check(&b, text);
    if (st == ST_OK) st = format == TREE_YAML ? tree_read_yaml(text, &b) : tree_read_json(text, &b);
    if (st != ST_OK) t->root = NULL;
    *out = *t;
    return t->document->found ? ST_INVALID : st;
}

static hx_st first_mistake(enum tree_format format, slice text, const char *file, struct tree *out,
                           struct errbuf *err) {
    hx_st st = tree_read(format, text, file, out);
    if (st == ST_OK) return st;
    err_set(err, st, "%s", out->document->mistakes[0].text.p);
    tree_free(out);
    return st;
}

hx_st tree_from_yaml(slice text, const char *file, struct tree *out, struct errbuf *err) {
    return first_mistake(TREE_YAML, text, file, out, err);
}

hx_st tree_from_json(slice text, const char *file, struct tree *out, struct errbuf *err) {
    return first_mistake(TREE_JSON, text, file, out, err);
}
