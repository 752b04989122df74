#include "base/pages.h"

#include <sys/mman.h>

#include "base/base.h"

/* Tables are walked at random: with small pages every look-up would miss the TLB too, which under a hypervisor costs more
 * than the cache miss itself. Whole huge pages need an aligned start. */
#define HUGE_PAGE ((size_t)2 << 20)

static void *map(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) check_failed(__FILE__, __LINE__, "mmap", "out of memory");
    return p;
}

void *pages_map(size_t bytes) {
    if (bytes < HUGE_PAGE) return map(bytes);
    char *p = map(bytes + HUGE_PAGE);
    size_t before = (HUGE_PAGE - (uintptr_t)p % HUGE_PAGE) % HUGE_PAGE;
    if (before) pages_unmap(p, before);
    pages_unmap(p + before + bytes, HUGE_PAGE - before);
    madvise(p + before, bytes, MADV_HUGEPAGE); /* only a wish */
    return p + before;
}

void pages_unmap(void *p, size_t bytes) {
    CHECK(munmap(p, bytes) == 0);
}

void pages_give_back(void *p, size_t bytes) {
    CHECK(madvise(p, bytes, MADV_DONTNEED) == 0);
}
