/* What the two readers of documents share. */
#ifndef HAPAX_CONFIG_TREE_PRIV_H
#define HAPAX_CONFIG_TREE_PRIV_H

#include "config/tree.h"

/* A tree being built. `open` takes the next node; a map takes name and value in turn. */
struct tree_builder {
    struct tree tree;
    const char *file;
    struct node *open, *last;             /* last: the open one's latest child */
    struct node *last_of[TREE_DEPTH_MAX]; /* and those of the containers around it */
    struct node *name;                    /* read, its value still to come */
    u32 nodes, depth;
    struct errbuf *err;
};

void builder_init(struct tree_builder *b, const char *file, struct errbuf *err);
/* Add a node to what is open. NULL: err is set. A map or list is open until builder_close, which finds
 * names given twice. */
struct node *builder_add(struct tree_builder *b, enum node_kind kind, slice text, bool quoted, u32 line, u32 column);
hx_st builder_close(struct tree_builder *b);
/* Hand the tree over, or free it if st is not ST_OK. */
hx_st builder_end(struct tree_builder *b, hx_st st, struct tree *out);
/* "FILE:LINE:COL: MESSAGE" about a place that has no node. Returns ST_INVALID. */
hx_st builder_error(const struct tree_builder *b, u32 line, u32 column, const char *fmt, ...) PRINTF_LIKE(4, 5);
/* Where in the text a byte is. */
void text_position(slice text, size_t at, u32 *line, u32 *column);
/* Size, UTF-8, NUL: what no document may violate. */
hx_st text_check(const struct tree_builder *b, slice text);

#endif
