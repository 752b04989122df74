/* Memory that is freed whole: what hangs together (a result, a parsed document) is carved from one arena. */
#ifndef HAPAX_BASE_ARENA_H
#define HAPAX_BASE_ARENA_H

#include "base/base.h"

/* Zero-initialise to start, arena_clear to end; or arena_new and arena_free. */
struct arena {
    struct arena_block *blocks, *spare;
};

struct arena *arena_new(void);
void arena_free(struct arena *a);                   /* NULL is fine */
void arena_free_wiped(struct arena *a);             /* for what has secrets in it */
void arena_clear(struct arena *a);                  /* all of it goes */
void arena_reset(struct arena *a);                  /* the same, but a block is kept for the next use */
void *arena_alloc(struct arena *a, size_t bytes);   /* zeroed, aligned for anything */
const char *arena_string(struct arena *a, slice s); /* NUL-terminated copy */
slice arena_copy(struct arena *a, slice s);         /* NUL-terminated too */
/* Take the buffer's memory over: *b is emptied, the bytes stay where they are until the arena dies. */
slice arena_adopt(struct arena *a, struct buf *b);

#endif
