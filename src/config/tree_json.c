#include "base/json.h"
#include "config/tree_priv.h"

struct reader {
    struct json json;
    struct tree_builder *builder;
    slice text;
    size_t seen; /* line and column are those of this byte */
    u32 line, column;
};

/* The cursor only moves forward, so each byte is counted once. */
static void move_to(struct reader *r, const char *at) {
    size_t to = (size_t)(at - r->json.start);
    u32 lines, columns;
    text_position(slice_of(r->json.start + r->seen, to - r->seen), to - r->seen, &lines, &columns);
    r->column = lines > 1 ? columns : r->column + columns - 1;
    r->line += lines - 1;
    r->seen = to;
}

static struct node *add(struct reader *r, enum node_kind kind, slice text, bool quoted) {
    return builder_add(r->builder, kind, text, quoted, r->line, r->column);
}

static hx_st syntax_error(struct reader *r) {
    u32 line, column;
    text_position(r->text, r->json.error_at, &line, &column);
    return builder_error(r->builder, line, column, "JSON: %s", r->json.error);
}

static hx_st read_value(struct reader *r);

static hx_st read_object(struct reader *r) {
    slice name;
    if (!add(r, NODE_MAP, SL(""), false)) return ST_INVALID;
    json_object(&r->json);
    while (json_member(&r->json, &name)) {
        bool in_text = name.p >= r->json.start && name.p <= r->json.end; /* else it had escapes: near enough */
        if (in_text) move_to(r, name.p - 1);
        if (!add(r, NODE_SCALAR, name, true)) return ST_INVALID;
        hx_st st = read_value(r);
        if (st != ST_OK) return st;
    }
    if (r->json.error) return syntax_error(r);
    builder_close(r->builder);
    return ST_OK;
}

static hx_st read_array(struct reader *r) {
    if (!add(r, NODE_SEQ, SL(""), false)) return ST_INVALID;
    json_array(&r->json);
    while (json_element(&r->json)) {
        hx_st st = read_value(r);
        if (st != ST_OK) return st;
    }
    if (r->json.error) return syntax_error(r);
    builder_close(r->builder);
    return ST_OK;
}

/* At most TREE_DEPTH_MAX deep: the builder refuses to open more. */
static hx_st read_value(struct reader *r) {
    enum json_type type = json_peek(&r->json);
    move_to(r, r->json.p);
    if (type == JSON_OBJECT) return read_object(r);
    if (type == JSON_ARRAY) return read_array(r);
    slice text = SL("");
    bool ok = type == JSON_STRING ? json_string(&r->json, &text) : json_value(&r->json, &type, &text);
    if (!ok) return syntax_error(r);
    return add(r, type == JSON_NULL ? NODE_NULL : NODE_SCALAR, text, type == JSON_STRING) ? ST_OK : ST_INVALID;
}

hx_st tree_read_json(slice text, struct tree_builder *b) {
    struct reader r = {.builder = b, .text = text, .line = 1, .column = 1};
    json_init(&r.json, text);
    hx_st st = read_value(&r);
    if (st == ST_OK && !json_end(&r.json)) st = syntax_error(&r);
    json_free(&r.json);
    return st;
}
