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
};

enum node_kind { NODE_NULL, NODE_SCALAR, NODE_MAP, NODE_SEQ };

/* Lives as long as its tree. */
struct node {
    enum node_kind kind;
    bool quoted;      /* scalars: written as a string, so never a number or true */
    u32 line, column; /* from 1; the column counts characters */
    slice text;       /* scalars: what they say, NUL-terminated; for NODE_NULL its spelling */
    u32 count;        /* children of a map or list */
    struct node *first, *next;
    const struct node *name; /* a map's children: the key, a scalar; else NULL */
    const struct node *parent;
    const char *file; /* NULL: a text without a name, whose errors carry no position */
};

struct tree {
    struct node *root;
    struct arena *arena;
};

/* Read `text` whole; nothing of it is needed afterwards. `file` is for messages. On failure *out holds nothing and err
 * has one line. tree_free ends a successful tree. */
hx_st tree_from_yaml(slice text, const char *file, struct tree *out, struct errbuf *err);
hx_st tree_from_json(slice text, const char *file, struct tree *out, struct errbuf *err);
void tree_free(struct tree *t);

const struct node *node_get(const struct node *map, slice name); /* NULL: not there, or no map */
/* "a map", "a list", "nothing", "text", for messages. */
const char *node_kind_text(const struct node *n);
/* One line "FILE:LINE:COL: queue payments: retry.unknown: MESSAGE" about this node. Returns ST_INVALID. */
hx_st node_error(const struct node *at, struct errbuf *err, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* As one line of JSON; what is not quoted and reads as a number, true or false is one. */
void node_put_json(const struct node *n, struct buf *out);
/* "queue payments: retry.unknown: "; empty at the root. */
void node_path(const struct node *at, struct buf *out);

#endif
