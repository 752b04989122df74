/* A document as a tree with positions, whatever it was written in: a config file is YAML, the body of
 * PUT /v1/queues/{q} is JSON, and one reader serves both.
 *
 * Of YAML only what a config needs is let in: one document of maps, lists and scalars. Anchors, aliases, tags and merge
 * keys are refused, so is a key given twice: a file means what its lines say, and no file can grow when read. */
#ifndef HAPAX_CONFIG_TREE_H
#define HAPAX_CONFIG_TREE_H

#include "base/arena.h"
#include "base/base.h"

enum {
    TREE_BYTES_MAX = 1 << 20,
    TREE_DEPTH_MAX = 32,
    TREE_NODES_MAX = 100000,
    TREE_ENTRIES_MAX = 10000, /* of one map or list */
    TREE_MISTAKES_MAX = 50,   /* that are told */
};

enum node_kind { NODE_NULL, NODE_SCALAR, NODE_MAP, NODE_SEQ };

/* Lives as long as its tree. */
struct node {
    enum node_kind kind;
    bool quoted;      /* scalars: written as a string, so never a number or true */
    bool withheld;    /* scalars: a secret that stands in the text itself; node_put_json does not tell it */
    bool repeated;    /* its name stood in the map before: a mistake, and it is taken out */
    u32 line, column; /* from 1; the column counts characters */
    slice text;       /* scalars: what they say, NUL-terminated; for NODE_NULL its spelling */
    u32 count;        /* children of a map or list */
    struct node *first, *next;
    const struct node *name; /* a map's children: the key, a scalar; else NULL */
    const struct node *parent;
    struct document *document;
};

/* What was read, and what was found wrong with it so far: reading goes on, so that one look tells all of it. */
struct document {
    const char *file; /* NULL: a text without a name, whose errors carry no position */
    u32 found, count; /* mistakes; those that are kept */
    struct mistake {
        u32 line, column;
        slice text; /* "FILE:LINE:COL: queue payments: retry.unknown: ..." */
    } mistakes[TREE_MISTAKES_MAX];
    struct arena *arena;
};

struct tree {
    struct node *root;
    struct document *document;
    struct arena *arena;
};

enum tree_format { TREE_YAML, TREE_JSON };

/* Read `text` whole; nothing of it is needed afterwards. `file` is for messages. On failure the document tells why, and root
 * is NULL unless the tree is whole and can be looked at for further mistakes. tree_free ends it either way. */
hx_st tree_read(enum tree_format format, slice text, const char *file, struct tree *out);
void tree_free(struct tree *t);
/* A line for each mistake, in the order of the text, and one for those that are too many. */
void tree_put_mistakes(const struct tree *t, struct buf *out);

/* The same for who wants the first mistake only: err has it, and after a failure there is nothing to free. */
hx_st tree_from_yaml(slice text, const char *file, struct tree *out, struct errbuf *err);
hx_st tree_from_json(slice text, const char *file, struct tree *out, struct errbuf *err);

const struct node *node_get(const struct node *map, slice name); /* NULL: not there, or no map */
/* "a map", "a list", "nothing", "text", for messages. */
const char *node_kind_text(const struct node *n);
/* Reading goes on behind a mistake; the first failure stands. */
static inline hx_st both(hx_st a, hx_st b) {
    return a != ST_OK ? a : b;
}
/* "FILE:LINE:COL: queue payments: retry.unknown: MESSAGE" about this node: one more of its document's mistakes. err gets the
 * first of them. Returns ST_INVALID; who reads a list or a map goes on with the next entry. */
hx_st node_error(const struct node *at, struct errbuf *err, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* As one line of JSON; what is not quoted and reads as a number, true or false is one, and what is withheld is NODE_WITHHELD. */
#define NODE_WITHHELD "(secret)"
void node_put_json(const struct node *n, struct buf *out);
/* "queue payments: retry.unknown: "; empty at the root. */
void node_path(const struct node *at, struct buf *out);

#endif
