#include "client/client_priv.h"

/* Blocks of growing size; adopted buffers hang on the same list. */
struct block {
    struct block *next;
    size_t used, cap;
    char *p;
    _Alignas(max_align_t) char bytes[];
};

struct arena {
    struct block *blocks;
};

enum { BLOCK_MIN = 1024, ALIGN = sizeof(max_align_t) };

struct arena *arena_new(void) {
    return mem_zalloc(sizeof(struct arena));
}

void arena_free(struct arena *a) {
    if (!a) return;
    while (a->blocks) {
        struct block *b = a->blocks;
        a->blocks = b->next;
        if (b->p != b->bytes) mem_free(b->p);
        mem_free(b);
    }
    mem_free(a);
}

static struct block *block_add(struct arena *a, size_t cap) {
    struct block *b = mem_zalloc(sizeof(*b) + cap);
    b->cap = cap;
    b->p = b->bytes;
    b->next = a->blocks;
    a->blocks = b;
    return b;
}

void *arena_alloc(struct arena *a, size_t bytes) {
    size_t need = (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    struct block *b = a->blocks;
    if (!b || b->cap - b->used < need) {
        size_t cap = b && b->cap > BLOCK_MIN ? b->cap * 2 : BLOCK_MIN;
        if (cap > (1u << 20)) cap = 1u << 20;
        b = block_add(a, cap < need ? need : cap);
    }
    void *p = b->p + b->used;
    b->used += need;
    return p;
}

const char *arena_string(struct arena *a, slice s) {
    char *p = arena_alloc(a, s.n + 1);
    if (s.n) memcpy(p, s.p, s.n);
    return p;
}

hx_bytes arena_bytes(struct arena *a, slice s) {
    return hx_bytes_of(arena_string(a, s), s.n);
}

slice arena_adopt(struct arena *a, struct buf *b) {
    buf_char(b, '\0');
    slice s = slice_of(b->p, b->len - 1);
    struct block *blk = mem_zalloc(sizeof(*blk));
    blk->p = b->p;
    /* Full on purpose, and behind the current block: nothing is carved from adopted memory. */
    if (a->blocks) {
        blk->next = a->blocks->next;
        a->blocks->next = blk;
    } else {
        a->blocks = blk;
    }
    *b = (struct buf){0};
    return s;
}
