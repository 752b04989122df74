#include "base/pages.h"

#include <sys/mman.h>

#include "base/base.h"

#define HUGE_MIN ((size_t)8 << 20)

void *pages_map(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) check_failed(__FILE__, __LINE__, "mmap", "out of memory");
    /* Tables are walked at random: with small pages every look-up would miss the TLB too. Only a wish. */
    if (bytes >= HUGE_MIN) madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

void pages_unmap(void *p, size_t bytes) {
    CHECK(munmap(p, bytes) == 0);
}

void pages_give_back(void *p, size_t bytes) {
    CHECK(madvise(p, bytes, MADV_DONTNEED) == 0);
}
