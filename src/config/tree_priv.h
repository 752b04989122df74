/* What the two readers of documents share. */
#ifndef HAPAX_CONFIG_TREE_PRIV_H
#define HAPAX_CONFIG_TREE_PRIV_H

#include "config/tree.h"

/* A tree being built. `open` takes the next node; a map takes name and value in turn. */
struct tree_builder {
    struct tree tree;
    struct node *open, *last;             /* last: the open one's latest child */
    struct node *last_of[TREE_DEPTH_MAX]; /* and those of the containers around it */
    struct node *name;                    /* read, its value still to come */
    u32 nodes, depth;
};

/* Add a node to what is open. NULL: it cannot be. A map or list is open until builder_close, which finds names given
 * twice; that is a mistake with which reading can go on. */
struct node *builder_add(struct tree_builder *b, enum node_kind kind, slice text, bool quoted, u32 line, u32 column);
void builder_close(struct tree_builder *b);
/* "FILE:LINE:COL: MESSAGE" about a place that has no node. Returns ST_INVALID. */
hx_st builder_error(const struct tree_builder *b, u32 line, u32 column, const char *fmt, ...) PRINTF_LIKE(4, 5);
/* Where in the text a byte is. */
void text_position(slice text, size_t at, u32 *line, u32 *column);

/* ---- the two of them: into what tree_read has begun */

hx_st tree_read_yaml(slice text, struct tree_builder *b);
hx_st tree_read_json(slice text, struct tree_builder *b);

#endif
