#include <yaml.h>

#include "config/tree_priv.h"

/* libyaml's own, which it calls by name, so that these come first: what it held of a file, secrets among it, does not outlive it. */
void yaml_free(void *p);
void *yaml_realloc(void *p, size_t bytes);

void yaml_free(void *p) {
    mem_free_wiped(p);
}

void *yaml_realloc(void *p, size_t bytes) {
    return mem_realloc_wiped(p, bytes);
}

struct reader {
    yaml_parser_t parser;
    struct tree_builder *builder;
    slice text;
};

static u32 line_of(yaml_mark_t m) {
    return (u32)m.line + 1;
}

static u32 column_of(yaml_mark_t m) {
    return (u32)m.column + 1;
}

/* libyaml's marks count characters, its reader's errors bytes. */
static hx_st reader_error(struct reader *r) {
    u32 line, column;
    text_position(r->text, r->parser.problem_offset, &line, &column);
    return builder_error(r->builder, line, column, "%s", r->parser.problem);
}

/* The two mistakes everybody makes get plain words. */
static hx_st syntax_error(struct reader *r) {
    yaml_parser_t *p = &r->parser;
    if (p->error == YAML_READER_ERROR) return reader_error(r);
    yaml_mark_t at = p->problem_mark;
    const char *problem = p->problem ? p->problem : "not YAML";
    if (at.index < r->text.n && r->text.p[at.index] == '\t')
        return builder_error(r->builder, line_of(at), column_of(at), "a tab: indent with spaces");
    if (strcmp(problem, "mapping values are not allowed in this context") == 0)
        return builder_error(r->builder, line_of(at), column_of(at),
                             "a ':' where none can be: is the line above indented or quoted wrongly?");
    if (p->context && p->context_mark.line != at.line)
        return builder_error(r->builder, line_of(at), column_of(at), "YAML: %s, %s begun on line %u", problem,
                             p->context, line_of(p->context_mark));
    return builder_error(r->builder, line_of(at), column_of(at), "YAML: %s", problem);
}

static bool is_null(slice s) {
    return s.n == 0 || slice_eq(s, SL("~")) || slice_eq_nocase(s, SL("null"));
}

static bool add_scalar(struct reader *r, const yaml_event_t *e) {
    slice text = slice_of(e->data.scalar.value, e->data.scalar.length);
    bool quoted = e->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    enum node_kind kind = !quoted && is_null(text) ? NODE_NULL : NODE_SCALAR;
    return builder_add(r->builder, kind, text, quoted, line_of(e->start_mark), column_of(e->start_mark));
}

static bool open_container(struct reader *r, const yaml_event_t *e, enum node_kind kind) {
    return builder_add(r->builder, kind, SL(""), false, line_of(e->start_mark), column_of(e->start_mark));
}

struct decoration {
    const yaml_char_t *anchor, *tag;
};

static struct decoration decoration_of(const yaml_event_t *e) {
    switch (e->type) {
    case YAML_SCALAR_EVENT:
        return (struct decoration){e->data.scalar.anchor, e->data.scalar.tag};
    case YAML_MAPPING_START_EVENT:
        return (struct decoration){e->data.mapping_start.anchor, e->data.mapping_start.tag};
    case YAML_SEQUENCE_START_EVENT:
        return (struct decoration){e->data.sequence_start.anchor, e->data.sequence_start.tag};
    default:
        return (struct decoration){0};
    }
}

static hx_st refuse(struct reader *r, const yaml_event_t *e, const char *what) {
    return builder_error(r->builder, line_of(e->start_mark), column_of(e->start_mark), "%s", what);
}

static hx_st check_plain(struct reader *r, const yaml_event_t *e) {
    struct decoration d = decoration_of(e);
    if (d.anchor) return refuse(r, e, "anchors (&name) are not supported: write the value out");
    if (d.tag) return refuse(r, e, "tags (!name) are not supported");
    if (e->type == YAML_ALIAS_EVENT) return refuse(r, e, "aliases (*name) are not supported: write the value out");
    if (e->type == YAML_DOCUMENT_START_EVENT && r->builder->tree.root)
        return refuse(r, e, "a second document: one file is one document");
    return ST_OK;
}

static hx_st take(struct reader *r, const yaml_event_t *e) {
    hx_st st = check_plain(r, e);
    if (st != ST_OK) return st;
    bool ok = true;
    if (e->type == YAML_SCALAR_EVENT) ok = add_scalar(r, e);
    if (e->type == YAML_MAPPING_START_EVENT) ok = open_container(r, e, NODE_MAP);
    if (e->type == YAML_SEQUENCE_START_EVENT) ok = open_container(r, e, NODE_SEQ);
    if (e->type == YAML_MAPPING_END_EVENT || e->type == YAML_SEQUENCE_END_EVENT) builder_close(r->builder);
    return ok ? ST_OK : ST_INVALID;
}

static hx_st read_events(struct reader *r) {
    bool more = true;
    while (more) {
        yaml_event_t event;
        if (!yaml_parser_parse(&r->parser, &event)) return syntax_error(r);
        hx_st st = take(r, &event);
        more = event.type != YAML_STREAM_END_EVENT;
        yaml_event_delete(&event);
        if (st != ST_OK) return st;
    }
    if (r->builder->tree.root) return ST_OK;
    return builder_error(r->builder, 1, 1, "the file is empty");
}

hx_st tree_read_yaml(slice text, struct tree_builder *b) {
    struct reader r = {.builder = b, .text = text};
    CHECK(yaml_parser_initialize(&r.parser)); /* fails only without memory */
    yaml_parser_set_input_string(&r.parser, (const yaml_char_t *)text.p, text.n);
    hx_st st = read_events(&r);
    yaml_parser_delete(&r.parser);
    return st;
}
