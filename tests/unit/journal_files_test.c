/* A journal of many segments in a process of few descriptors: it opens, reads, commits, recycles and starts again,
 * whatever the number of its files. */
#include "unit/journal_util.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#define SEGMENT  (4ull << 10)
#define MOST     700u
#define SEGMENTS 60u
#define FILES    8u /* kept open by the journal */
#define LIMIT    (3 + FILES + JOURNAL_FILES_BESIDE)

struct bench {
    char path[256];
    struct rlimit before;
    struct disk *disk;
    struct model m;
    struct replayed r;
};

static int setup(void **state) {
    struct bench *b = mem_zalloc(sizeof *b);
    const char *base = getenv("TMPDIR");
    snprintf(b->path, sizeof b->path, "%s/hapax-files-XXXXXX", base ? base : "/tmp");
    assert_non_null(mkdtemp(b->path));
    assert_int_equal(disk_posix_open(b->path, true, &b->disk, NULL), ST_OK);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &b->before), 0);
    struct rlimit few = {.rlim_cur = LIMIT, .rlim_max = b->before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    b->r.m = &b->m;
    b->r.most = MOST;
    *state = b;
    return 0;
}

static int teardown(void **state) {
    struct bench *b = *state;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &b->before), 0);
    disk_close(b->disk);
    DIR *dir = opendir(b->path);
    struct dirent *entry;
    while (dir && (entry = readdir(dir)) != NULL) unlinkat(dirfd(dir), entry->d_name, 0);
    if (dir) closedir(dir);
    rmdir(b->path);
    mem_free(b);
    return 0;
}

static struct journal *start(struct bench *b, bool threads) {
    struct journal_file_options o = {.disk = b->disk, .segment_bytes = SEGMENT, .manual = !threads, .files_max = FILES};
    struct errbuf err = {0};
    struct journal *j;
    b->r.any = b->r.wrong = false;
    b->r.last_pos = 0;
    if (journal_file_open(&o, &j, &err) != ST_OK) fail_msg("open: %s", err.text);
    if (journal_replay(j, replay_one, &b->r, &err) != ST_OK) fail_msg("replay: %s", err.text);
    if (journal_start(j, &err) != ST_OK) fail_msg("start: %s", err.text);
    assert_true(replay_is_right(&b->r, &b->m, b->m.acked));
    model_adopt(&b->m, &b->r);
    return j;
}

static void settle(struct bench *b, struct journal *j, bool threads) {
    journal_flush(j);
    if (!threads) work_all(j);
    while (b->m.acked < b->m.end) {
        if (journal_failed(j)) fail_msg("%s", journal_failed(j));
        model_note_durable(&b->m, j);
        sched_yield();
    }
}

static void fill(struct bench *b, struct journal *j, bool threads, u64 segments) {
    struct journal_stats s;
    do {
        assert_true(journal_need(j, journal_cost(MOST)));
        model_append(&b->m, j, MOST);
        if (b->m.end % 20 == 0) settle(b, j, threads);
        journal_stats_get(j, &s);
    } while (s.segments < segments);
    settle(b, j, threads);
}

/* Each twice: through the file, and in its mapping. */
static void read_all(struct bench *b, struct journal *j) {
    for (u64 i = b->m.dropped; i < 2 * b->m.end - b->m.dropped; i++) {
        u64 number = b->m.dropped + (i - b->m.dropped) * 7919 % (b->m.end - b->m.dropped);
        struct journal_record rec;
        struct errbuf err = {0};
        if (journal_read(j, b->m.pos[number], 0, &rec, &err) != ST_OK) fail_msg("read: %s", err.text);
        assert_int_equal(body_number(&rec), number);
        assert_true(body_right(&rec, MOST));
    }
}

static u32 descriptors(void) {
    u32 n = 0;
    for (int fd = 0; fd < (int)LIMIT; fd++) n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static void more_segments_than_descriptors(struct bench *b, bool threads) {
    u32 before = descriptors();
    struct journal *j = start(b, threads);
    fill(b, j, threads, SEGMENTS);
    read_all(b, j);
    assert_true(descriptors() <= before + FILES + JOURNAL_FILES_BESIDE);
    journal_close(j);
    assert_int_equal(descriptors(), before);
    j = start(b, threads);
    read_all(b, j);
    for (u32 i = 0; i < SEGMENTS / 2; i++) model_drop_oldest(&b->m, j);
    fill(b, j, threads, SEGMENTS / 2);
    read_all(b, j);
    journal_close(j);
    journal_close(start(b, threads));
}

static void more_segments_than_descriptors_are_written_read_and_started_again(void **state) {
    more_segments_than_descriptors(*state, true);
}

static void more_segments_than_descriptors_without_threads(void **state) {
    more_segments_than_descriptors(*state, false);
}

static void verify_needs_no_descriptor_a_segment(void **state) {
    struct bench *b = *state;
    struct journal *j = start(b, false);
    fill(b, j, false, SEGMENTS);
    journal_close(j);
    struct buf report = {0};
    struct errbuf err = {0};
    if (journal_file_verify(b->disk, &report, &err) != ST_OK) fail_msg("%s", err.text);
    buf_free(&report);
}

/* Somebody else has taken all there are: what is read needs one, and gives up one of its own. */
static void a_file_is_read_without_a_free_descriptor(void **state) {
    struct bench *b = *state;
    struct journal *j = start(b, false);
    fill(b, j, false, SEGMENTS);
    int taken[LIMIT], n = 0;
    while ((taken[n] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0) n++;
    read_all(b, j);
    while (n > 0) close(taken[--n]);
    journal_close(j);
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        T(more_segments_than_descriptors_are_written_read_and_started_again),
        T(more_segments_than_descriptors_without_threads),
        T(verify_needs_no_descriptor_a_segment),
        T(a_file_is_read_without_a_free_descriptor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
