#include "base/arena.h"

/* Blocks of growing size; adopted buffers hang on the same list. */
struct arena_block {
    struct arena_block *next;
    size_t used, cap;
    char *p;
    _Alignas(max_align_t) char bytes[];
};

enum { BLOCK_MIN = 1024, BLOCK_MAX = 1 << 20, SPARE_MAX = 1 << 16, ALIGN = _Alignof(max_align_t) };

struct arena *arena_new(void) {
    return mem_zalloc(sizeof(struct arena));
}

static void block_free(struct arena_block *b) {
    if (b->p != b->bytes) mem_free(b->p);
    mem_free(b);
}

/* The largest ordinary block is kept. */
void arena_reset(struct arena *a) {
    while (a->blocks) {
        struct arena_block *b = a->blocks;
        a->blocks = b->next;
        bool ordinary = b->p == b->bytes && b->cap <= SPARE_MAX;
        if (ordinary && (!a->spare || a->spare->cap < b->cap)) {
            mem_free(a->spare);
            a->spare = b;
        } else {
            block_free(b);
        }
    }
}

void arena_clear(struct arena *a) {
    arena_reset(a);
    mem_free(a->spare);
    a->spare = NULL;
}

void arena_free(struct arena *a) {
    if (!a) return;
    arena_clear(a);
    mem_free(a);
}

void arena_free_wiped(struct arena *a) {
    if (!a) return;
    while (a->blocks) {
        struct arena_block *b = a->blocks;
        a->blocks = b->next;
        if (b->p != b->bytes) mem_free_wiped(b->p);
        mem_free_wiped(b);
    }
    mem_free_wiped(a->spare);
    mem_free(a);
}

static struct arena_block *block_new(size_t cap) {
    struct arena_block *b = mem_alloc(sizeof(*b) + cap);
    *b = (struct arena_block){.cap = cap, .p = b->bytes};
    return b;
}

static struct arena_block *block_with(struct arena *a, size_t need) {
    struct arena_block *b = a->blocks;
    if (b && b->cap - b->used >= need) return b;
    size_t cap = b && b->cap > BLOCK_MIN ? b->cap * 2 : BLOCK_MIN;
    if (cap > BLOCK_MAX) cap = BLOCK_MAX;
    if (a->spare && a->spare->cap >= need) {
        b = a->spare;
        a->spare = NULL;
        b->used = 0;
    } else {
        b = block_new(cap < need ? need : cap);
    }
    b->next = a->blocks;
    a->blocks = b;
    return b;
}

void *arena_alloc(struct arena *a, size_t bytes) {
    size_t need = (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    struct arena_block *b = block_with(a, need);
    void *p = b->p + b->used;
    b->used += need;
    return memset(p, 0, need);
}

slice arena_copy(struct arena *a, slice s) {
    char *p = arena_alloc(a, s.n + 1);
    if (s.n) memcpy(p, s.p, s.n);
    return slice_of(p, s.n);
}

const char *arena_string(struct arena *a, slice s) {
    return arena_copy(a, s).p;
}

slice arena_adopt(struct arena *a, struct buf *b) {
    buf_char(b, '\0');
    slice s = slice_of(b->p, b->len - 1);
    struct arena_block *blk = mem_zalloc(sizeof(*blk));
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
