#include "base/base.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static _Noreturn void out_of_memory(size_t bytes) {
    dprintf(STDERR_FILENO, "out of memory: %zu bytes could not be allocated\n", bytes);
    abort();
}

/* A size of zero is asked for as one byte, so that NULL always means failure. */
void *mem_alloc(size_t bytes) {
    void *p = malloc(bytes ? bytes : 1);
    if (!p) out_of_memory(bytes);
    return p;
}

void *mem_zalloc(size_t bytes) {
    void *p = calloc(1, bytes ? bytes : 1);
    if (!p) out_of_memory(bytes);
    return p;
}

void *mem_realloc(void *p, size_t bytes) {
    void *q = realloc(p, bytes ? bytes : 1);
    if (!q) out_of_memory(bytes);
    return q;
}

void mem_free(void *p) {
    free(p);
}

void mem_free_wiped(void *p) {
    if (p) explicit_bzero(p, malloc_usable_size(p));
    free(p);
}

void *mem_realloc_wiped(void *p, size_t bytes) {
    void *q = mem_alloc(bytes);
    size_t had = p ? malloc_usable_size(p) : 0;
    if (had) memcpy(q, p, had < bytes ? had : bytes);
    mem_free_wiped(p);
    return q;
}
