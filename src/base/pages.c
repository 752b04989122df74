#include "base/pages.h"

#include <pthread.h>
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

static void *map_huge(size_t bytes) {
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

/* ---- ahead of need
 *
 * The first touch of a huge page has the system zero two megabytes, and under a hypervisor find them first: 4 ms were seen, a
 * sixth of the loop's time while it took in new messages, and a turn that everybody waits for. Tables grow by pieces of few
 * sizes, so one piece of each is kept ready: the sizes are those that were asked for. */
#define SIZES     2u
#define PIECE_MAX ((size_t)4 << 20) /* larger ones are filled from their start on, over a long time */
#define ASKED_FEW 2u                /* a broker that has little to keep does not grow */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t wanted;
    bool running;
    struct piece {
        size_t bytes; /* 0: no such size yet */
        u32 asked;    /* how often, up to ASKED_FEW */
        void *ready;  /* NULL: to be made */
    } pieces[SIZES];
} ahead = {.lock = PTHREAD_MUTEX_INITIALIZER, .wanted = PTHREAD_COND_INITIALIZER};

/* Under the lock. NULL: it is one size too many. */
static struct piece *piece_of(size_t bytes) {
    for (u32 i = 0; i < SIZES; i++) {
        struct piece *p = &ahead.pieces[i];
        if (p->bytes == 0) p->bytes = bytes;
        if (p->bytes == bytes) return p;
    }
    return NULL;
}

static void *take_ready(size_t bytes) {
    pthread_mutex_lock(&ahead.lock);
    struct piece *p = ahead.running ? piece_of(bytes) : NULL;
    void *ready = p ? p->ready : NULL;
    if (p) p->ready = NULL;
    if (p && p->asked < ASKED_FEW) p->asked++;
    if (p && p->asked == ASKED_FEW) pthread_cond_signal(&ahead.wanted);
    pthread_mutex_unlock(&ahead.lock);
    return ready;
}

/* Under the lock. */
static struct piece *missing(void) {
    for (u32 i = 0; i < SIZES; i++)
        if (ahead.pieces[i].asked == ASKED_FEW && !ahead.pieces[i].ready) return &ahead.pieces[i];
    return NULL;
}

static void *keep_ready(void *unused) {
    pthread_mutex_lock(&ahead.lock);
    for (;;) {
        struct piece *p = missing();
        if (!p) {
            pthread_cond_wait(&ahead.wanted, &ahead.lock);
            continue;
        }
        size_t bytes = p->bytes;
        pthread_mutex_unlock(&ahead.lock);
        char *made = map_huge(bytes);
        for (size_t at = 0; at < bytes; at += 4096) *(volatile char *)(made + at) = 0;
        pthread_mutex_lock(&ahead.lock);
        p->ready = made;
    }
    return unused;
}

void pages_ahead(void) {
    pthread_t thread;
    pthread_mutex_lock(&ahead.lock);
    bool first = !ahead.running;
    ahead.running = true;
    pthread_mutex_unlock(&ahead.lock);
    if (!first) return;
    CHECK(pthread_create(&thread, NULL, keep_ready, NULL) == 0);
    pthread_detach(thread);
}

void *pages_map(size_t bytes) {
    if (bytes < HUGE_PAGE) return map(bytes);
    void *ready = bytes <= PIECE_MAX ? take_ready(bytes) : NULL;
    return ready ? ready : map_huge(bytes);
}
