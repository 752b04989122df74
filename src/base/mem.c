#include "base/base.h"

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
