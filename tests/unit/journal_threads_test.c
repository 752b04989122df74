/* The loop against the groomer, with real threads on a real directory whose room a test can take away and give back.
 * Nothing here may hang: an alarm ends the program if it does. */
#include "unit/journal_util.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#define SEGMENT             (64ull << 10)
#define MOST                6000u
#define CERTAIN             (SEGMENT / 2) /* less than this no segment gives */
#define HANG_AFTER          120
#define LARGE_SEGMENT       (16ull << 20)
#define GIVEN_BACK_APART_MS 60 /* but for the first few */
#define AT_ONCE             4u

/* The real disk, except that preallocation can be made to find it full. */
struct tap {
    struct disk port;
    struct disk *real;
    char path[256];
    _Atomic bool full;
    _Atomic u64 allocations, refusals, directory_syncs, removals;
    i64 first_removal_ms, last_removal_ms; /* the groomer's */
};

static struct tap *of(struct disk *d) {
    return (struct tap *)d;
}
static int tap_open(struct disk *d, const char *name, unsigned flags, struct disk_file **out) {
    return of(d)->real->ops->open(of(d)->real, name, flags, out);
}
static void tap_close(struct disk *d, struct disk_file *f) {
    of(d)->real->ops->close(of(d)->real, f);
}
static i64 tap_pread(struct disk *d, struct disk_file *f, void *p, size_t n, u64 offset) {
    return of(d)->real->ops->pread(of(d)->real, f, p, n, offset);
}
static i64 tap_pwrite(struct disk *d, struct disk_file *f, const void *p, size_t n, u64 offset) {
    return of(d)->real->ops->pwrite(of(d)->real, f, p, n, offset);
}
static int tap_sync(struct disk *d, struct disk_file *f) {
    return of(d)->real->ops->sync(of(d)->real, f);
}
static int tap_allocate(struct disk *d, struct disk_file *f, u64 bytes) {
    if (atomic_load(&of(d)->full)) {
        atomic_fetch_add(&of(d)->refusals, 1);
        return -ENOSPC;
    }
    atomic_fetch_add(&of(d)->allocations, 1);
    return of(d)->real->ops->allocate(of(d)->real, f, bytes);
}
static int tap_rename(struct disk *d, const char *from, const char *to) {
    return of(d)->real->ops->rename(of(d)->real, from, to);
}
static int tap_unlink(struct disk *d, const char *name) {
    struct tap *t = of(d);
    if (atomic_fetch_add(&t->removals, 1) == 0) t->first_removal_ms = clock_mono_ms();
    t->last_removal_ms = clock_mono_ms();
    return of(d)->real->ops->unlink(of(d)->real, name);
}
static int tap_list(struct disk *d, disk_each each, void *ctx) {
    return of(d)->real->ops->list(of(d)->real, each, ctx);
}
static int tap_sync_dir(struct disk *d) {
    atomic_fetch_add(&of(d)->directory_syncs, 1);
    return of(d)->real->ops->sync_dir(of(d)->real);
}
static u64 tap_free_bytes(struct disk *d) {
    return of(d)->real->ops->free_bytes(of(d)->real);
}
static int tap_lock(struct disk *d, bool on, i64 *holder) {
    return of(d)->real->ops->lock(of(d)->real, on, holder);
}
static void tap_random(struct disk *d, void *p, size_t n) {
    of(d)->real->ops->random(of(d)->real, p, n);
}

static const struct disk_ops tap_ops = {
    .open = tap_open,
    .close = tap_close,
    .pread = tap_pread,
    .pwrite = tap_pwrite,
    .sync = tap_sync,
    .allocate = tap_allocate,
    .rename = tap_rename,
    .unlink = tap_unlink,
    .list = tap_list,
    .sync_dir = tap_sync_dir,
    .free_bytes = tap_free_bytes,
    .lock = tap_lock,
    .random = tap_random,
};

static int setup(void **state) {
    struct tap *t = mem_zalloc(sizeof *t);
    const char *base = getenv("TMPDIR");
    snprintf(t->path, sizeof t->path, "%s/hapax-threads-XXXXXX", base ? base : "/tmp");
    assert_non_null(mkdtemp(t->path));
    assert_int_equal(disk_posix_open(t->path, true, &t->real, NULL), ST_OK);
    t->port = (struct disk){.ops = &tap_ops, .where = t->path};
    *state = t;
    alarm(HANG_AFTER);
    return 0;
}

static int teardown(void **state) {
    struct tap *t = *state;
    alarm(0);
    DIR *dir = opendir(t->path);
    struct dirent *entry;
    while (dir && (entry = readdir(dir)) != NULL) unlinkat(dirfd(dir), entry->d_name, 0);
    if (dir) closedir(dir);
    rmdir(t->path);
    disk_close(t->real);
    mem_free(t);
    return 0;
}

static hx_st pass_over(void *ctx, const struct journal_record *rec, struct errbuf *err) {
    (void)ctx;
    (void)rec;
    (void)err;
    return ST_OK;
}

static struct journal *start_with(struct tap *t, u64 segment_bytes) {
    struct journal_file_options o = {.disk = &t->port, .segment_bytes = segment_bytes};
    struct errbuf err = {0};
    struct journal *j;
    if (journal_file_open(&o, &j, &err) != ST_OK) fail_msg("open: %s", err.text);
    if (journal_replay(j, pass_over, NULL, &err) != ST_OK) fail_msg("replay: %s", err.text);
    if (journal_start(j, &err) != ST_OK) fail_msg("start: %s", err.text);
    return j;
}

static struct journal *start(struct tap *t) {
    return start_with(t, SEGMENT);
}

static void refused_then_served(struct tap *t, struct journal *j, u64 bytes) {
    atomic_store(&t->full, true);
    assert_false(journal_need(j, bytes));
    assert_null(journal_failed(j));
    atomic_store(&t->full, false);
    while (!journal_need(j, bytes)) sched_yield();
    assert_true(journal_room(j) >= bytes);
}

static void needed_room_is_refused_by_a_full_disk_and_had_once_it_has_some(void **state) {
    struct tap *t = *state;
    struct journal *j = start(t);
    for (u64 n = 1; n < 5; n++) refused_then_served(t, j, n * 12 * SEGMENT);
    journal_close(j);
}

/* The groomer has nothing left to do after the wish is gone, and must be woken by the next one. */
static void a_refusal_that_is_over_is_not_remembered(void **state) {
    struct tap *t = *state;
    struct journal *j = start(t);
    atomic_store(&t->full, true);
    for (int round = 0; round < 4; round++) {
        assert_false(journal_need(j, 40 * SEGMENT));
        u64 before = atomic_load(&t->refusals);
        while (atomic_load(&t->refusals) == before) sched_yield(); /* tried again on its own */
        journal_want(j, 0);
        atomic_store(&t->full, false);
        while (!journal_need(j, (u64)(round + 1) * 8 * SEGMENT)) sched_yield();
        atomic_store(&t->full, true);
    }
    journal_close(j);
}

static void a_disk_that_has_room_again_is_noticed_without_being_asked(void **state) {
    struct tap *t = *state;
    struct journal *j = start(t);
    atomic_store(&t->full, true);
    journal_want(j, 20 * SEGMENT);
    while (atomic_load(&t->refusals) < 3) sched_yield();
    assert_true(journal_room(j) < 10 * SEGMENT);
    atomic_store(&t->full, false);
    while (journal_room(j) < 10 * SEGMENT) sched_yield();
    journal_close(j);
}

static void many_spares_cost_few_syncs_of_the_directory(void **state) {
    struct tap *t = *state;
    struct journal *j = start(t);
    u64 syncs = atomic_load(&t->directory_syncs), files = atomic_load(&t->allocations);
    assert_true(journal_need(j, 64 * CERTAIN));
    files = atomic_load(&t->allocations) - files;
    syncs = atomic_load(&t->directory_syncs) - syncs;
    assert_true(files >= 30);
    if (syncs > files / 8 + 3) fail_msg("%d syncs of the directory for %d files", (int)syncs, (int)files);
    journal_close(j);
}

static void surplus_spares_are_given_back_one_by_one(void **state) {
    struct tap *t = *state;
    struct journal *j = start_with(t, LARGE_SEGMENT);
    assert_true(journal_need(j, 12 * LARGE_SEGMENT));
    atomic_store(&t->removals, 0);
    journal_want(j, 0);
    while (atomic_load(&t->removals) < AT_ONCE + 4) sched_yield();
    journal_close(j);
    i64 took = t->last_removal_ms - t->first_removal_ms;
    if (took < 4 * GIVEN_BACK_APART_MS) fail_msg("%d within %d ms", (int)AT_ONCE + 4, (int)took);
}

/* ---- everything at once */

struct chaos {
    struct tap *tap;
    _Atomic bool stop;
};

static void *take_and_give(void *arg) {
    struct chaos *c = arg;
    struct rng rng;
    rng_seed(&rng, 3);
    while (!atomic_load(&c->stop)) {
        atomic_store(&c->tap->full, rng_below(&rng, 2));
        usleep((useconds_t)rng_below(&rng, 4000));
    }
    return NULL;
}

static void busy_turn(struct model *m, struct journal *j, struct rng *rng) {
    u64 bytes = 0, records = 1 + rng_below(rng, 20);
    for (u64 i = 0; i < records; i++) bytes += journal_cost(body_size(m->end + i, MOST));
    if (journal_need(j, bytes))
        for (u64 i = 0; i < records; i++) model_append(m, j, MOST);
    journal_flush(j);
    if (rng_below(rng, 3) == 0) journal_want(j, rng_below(rng, 24) * SEGMENT);
    struct journal_stats stats;
    journal_stats_get(j, &stats);
    if (stats.used_bytes > 6 * SEGMENT) model_drop_oldest(m, j);
    model_note_durable(m, j);
    if (journal_failed(j)) fail_msg("%s", journal_failed(j));
}

static void a_loop_that_keeps_to_its_room_never_waits_for_ever_and_never_fails(void **state) {
    struct chaos c = {.tap = *state};
    struct journal *j = start(c.tap);
    struct model *m = mem_zalloc(sizeof *m);
    struct rng rng;
    rng_seed(&rng, 17);
    pthread_t other;
    assert_int_equal(pthread_create(&other, NULL, take_and_give, &c), 0);
    /* Most turns may find the disk full: it goes on until something was dropped, however long that takes. */
    for (int turn = 0; (turn < 3000 || m->dropped == 0) && m->end < MODEL_MAX - 30; turn++) busy_turn(m, j, &rng);
    atomic_store(&c.stop, true);
    pthread_join(other, NULL);
    assert_true(m->dropped > 0);
    journal_close(j);
    mem_free(m);
}

static void closing_at_any_moment_ends(void **state) {
    struct chaos c = {.tap = *state};
    journal_close(start(c.tap));
    struct rng rng;
    rng_seed(&rng, 23);
    pthread_t other;
    assert_int_equal(pthread_create(&other, NULL, take_and_give, &c), 0);
    for (u64 life = 0; life < 60; life++) {
        struct journal *j = start(c.tap);
        journal_want(j, rng_below(&rng, 16) * SEGMENT);
        for (u64 i = rng_below(&rng, 5); i > 0; i--) {
            if (!journal_need(j, journal_cost(MOST))) continue;
            append_number(j, life * 8 + i, MOST);
            journal_flush(j);
        }
        if (rng_below(&rng, 2)) usleep((useconds_t)rng_below(&rng, 2000));
        assert_null(journal_failed(j));
        journal_close(j);
    }
    atomic_store(&c.stop, true);
    pthread_join(other, NULL);
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        T(needed_room_is_refused_by_a_full_disk_and_had_once_it_has_some),
        T(a_refusal_that_is_over_is_not_remembered),
        T(a_disk_that_has_room_again_is_noticed_without_being_asked),
        T(many_spares_cost_few_syncs_of_the_directory),
        T(surplus_spares_are_given_back_one_by_one),
        T(a_loop_that_keeps_to_its_room_never_waits_for_ever_and_never_fails),
        T(closing_at_any_moment_ends),
    };
    log_set_level(LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
