/* The journal port's conformance suite on the file adapter: on a real directory with threads, on one without, and on
 * the simulated disk. */
#include "unit/journal_conformance.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define SEGMENT (64ull << 10)

struct said_at {
    char path[256];
    struct disk *disk;
    bool threads;
    pthread_mutex_t lock;
    pthread_cond_t woken;
    u64 wakes;
};

static void on_wake(void *ctx) {
    struct said_at *p = ctx;
    pthread_mutex_lock(&p->lock);
    p->wakes++;
    pthread_cond_broadcast(&p->woken);
    pthread_mutex_unlock(&p->lock);
}

static hx_st place_open(struct world *w, struct journal **out, struct errbuf *err) {
    struct said_at *p = w->ctx;
    struct journal_file_options o = {
        .disk = p->disk, .segment_bytes = SEGMENT, .manual = !p->threads, .wake = on_wake, .wake_ctx = p};
    return journal_file_open(&o, out, err);
}

static void wait_settled(struct world *w, struct journal *j, u64 pos) {
    struct said_at *p = w->ctx;
    if (!p->threads) {
        work_all(j);
        return;
    }
    pthread_mutex_lock(&p->lock);
    while (journal_durable(j) <= pos && !journal_failed(j)) pthread_cond_wait(&p->woken, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

static void wait_calm(struct world *w, struct journal *j, bool (*until)(struct journal *j, void *arg), void *arg) {
    struct said_at *p = w->ctx;
    if (!p->threads) work_all(j);
    while (p->threads && !until(j, arg)) sched_yield();
    assert_true(until(j, arg));
}

static void damage_file(struct world *w, u64 pos, u64 segment_bytes) {
    struct said_at *p = w->ctx;
    char path[400];
    snprintf(path, sizeof path, "%s/journal-%016llx.seg", p->path, (unsigned long long)(pos / segment_bytes));
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    u8 byte;
    assert_int_equal(pread(fd, &byte, 1, (off_t)(pos % segment_bytes)), 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)(pos % segment_bytes)), 1);
    close(fd);
}

static void place_init(struct said_at *p) {
    const char *base = getenv("TMPDIR");
    snprintf(p->path, sizeof p->path, "%s/hapax-journal-XXXXXX", base ? base : "/tmp");
    assert_non_null(mkdtemp(p->path));
    struct errbuf err = {0};
    assert_int_equal(disk_posix_open(p->path, true, &p->disk, &err), ST_OK);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->woken, NULL);
}

static int make_place(void **state, bool threads) {
    struct world *w = mem_zalloc(sizeof *w);
    struct said_at *p = mem_zalloc(sizeof *p);
    p->threads = threads;
    place_init(p);
    *w = (struct world){
        .ctx = p, .most = 6000, .open = place_open, .settle = wait_settled, .calm = wait_calm, .damage = damage_file};
    *state = w;
    return 0;
}

static int real_with_threads(void **state) {
    return make_place(state, true);
}
static int real_without_threads(void **state) {
    return make_place(state, false);
}

static void remove_directory(const char *path) {
    DIR *dir = opendir(path);
    struct dirent *entry;
    while (dir && (entry = readdir(dir)) != NULL) unlinkat(dirfd(dir), entry->d_name, 0);
    if (dir) closedir(dir);
    rmdir(path);
}

static int leave_place(void **state) {
    struct world *w = *state;
    struct said_at *p = w->ctx;
    disk_close(p->disk);
    remove_directory(p->path);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->woken);
    mem_free(p);
    mem_free(w);
    return 0;
}

/* ---- the simulated disk */

static hx_st sim_open(struct world *w, struct journal **out, struct errbuf *err) {
    struct journal_file_options o = {.disk = w->ctx, .segment_bytes = SEGMENT, .manual = true};
    return journal_file_open(&o, out, err);
}

static void sim_settle(struct world *w, struct journal *j, u64 pos) {
    (void)w;
    (void)pos;
    work_all(j);
}

static void sim_calm(struct world *w, struct journal *j, bool (*until)(struct journal *j, void *arg), void *arg) {
    (void)w;
    work_all(j);
    assert_true(until(j, arg));
}

static void sim_power_cut(struct world *w, struct journal *j) {
    disk_sim_stop_at(w->ctx, 0);
    journal_close(j);
    disk_sim_crash(w->ctx, DISK_SIM_DROP);
}

/* A batch is one write and one sync, and nothing else is due between them. */
static void sim_fail_next_sync(struct world *w) {
    disk_sim_fail_at(w->ctx, disk_sim_ops(w->ctx) + 1, DISK_SIM_EIO, false);
}

static void sim_damage(struct world *w, u64 pos, u64 segment_bytes) {
    char name[64];
    snprintf(name, sizeof name, "journal-%016llx.seg", (unsigned long long)(pos / segment_bytes));
    assert_true(disk_sim_flip(w->ctx, name, pos % segment_bytes, 0x10));
}

static int simulated(void **state) {
    struct world *w = mem_zalloc(sizeof *w);
    *w = (struct world){.ctx = disk_sim_new(1, 64ull << 20),
                        .most = 6000,
                        .open = sim_open,
                        .settle = sim_settle,
                        .calm = sim_calm,
                        .power_cut = sim_power_cut,
                        .fail_next_sync = sim_fail_next_sync,
                        .damage = sim_damage};
    *state = w;
    return 0;
}

static int leave_sim(void **state) {
    struct world *w = *state;
    disk_close(w->ctx);
    mem_free(w);
    return 0;
}

/* ---- what only a real directory can show */

static void another_process_is_told_busy_and_a_killed_one_lets_go(void **state) {
    struct world *w = *state;
    struct said_at *p = w->ctx;
    int ready[2], go[2];
    assert_int_equal(pipe(ready), 0);
    assert_int_equal(pipe(go), 0);
    pid_t child = fork();
    if (child == 0) {
        struct disk *d;
        struct journal *j;
        struct journal_file_options o = {.segment_bytes = SEGMENT, .manual = true};
        bool ok = disk_posix_open(p->path, true, &d, NULL) == ST_OK;
        o.disk = d;
        ok = ok && journal_file_open(&o, &j, NULL) == ST_OK && journal_start(j, NULL) == ST_OK;
        char byte = ok ? 'y' : 'n';
        ok = write(ready[1], &byte, 1) == 1 && read(go[0], &byte, 1) == 1;
        _exit(ok ? 0 : 1);
    }
    char byte = 0;
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(byte, 'y');
    struct journal *j;
    struct errbuf err = {0};
    assert_int_equal(place_open(w, &j, &err), ST_BUSY);
    char named[400];
    snprintf(named, sizeof named, "%s is in use by process %d", p->path, (int)child);
    assert_string_equal(err.text, named);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    struct journal *mine = world_open(w);
    assert_int_equal(journal_start(mine, &err), ST_OK);
    journal_close(mine);
    for (int i = 0; i < 2; i++) {
        close(ready[i]);
        close(go[i]);
    }
}

static void files_are_for_the_owner_alone(void **state) {
    struct world *w = *state;
    struct said_at *p = w->ctx;
    struct bench *b = bench_new(w);
    struct journal *j = world_start(w, &b->r);
    DIR *dir = opendir(p->path);
    struct dirent *entry;
    int files = 0;
    while ((entry = readdir(dir)) != NULL) {
        struct stat st;
        assert_int_equal(fstatat(dirfd(dir), entry->d_name, &st, 0), 0);
        if (!S_ISREG(st.st_mode)) continue;
        assert_int_equal(st.st_mode & 07777, 0600);
        files++;
    }
    closedir(dir);
    assert_true(files >= 6);
    journal_close(j);
    mem_free(b);
}

static void a_directory_without_permission_is_denied_by_name(void **state) {
    struct world *w = *state;
    struct said_at *p = w->ctx;
    char path[300];
    snprintf(path, sizeof path, "%s/inner", p->path);
    chmod(p->path, 0500);
    pid_t child = fork();
    if (child == 0) {
        struct disk *d;
        struct errbuf err = {0};
        if (geteuid() == 0 && setuid(65534) != 0) _exit(2);
        hx_st st = disk_posix_open(path, true, &d, &err);
        _exit(st == ST_DENIED && strstr(err.text, path) ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    chmod(p->path, 0700);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void a_missing_directory_is_made_or_reported(void **state) {
    struct world *w = *state;
    struct said_at *p = w->ctx;
    char path[300];
    struct disk *d;
    struct errbuf err = {0};
    snprintf(path, sizeof path, "%s/inner", p->path);
    assert_int_equal(disk_posix_open(path, false, &d, &err), ST_NOT_FOUND);
    assert_int_equal(disk_posix_open(path, true, &d, &err), ST_OK);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    disk_close(d);
    rmdir(path);
}

/* Reads the first record until it is read in its mapping; then the disk loses the file's pages. */
static void read_what_is_lost(struct world *w) {
    struct said_at *p = w->ctx;
    struct bench *b = bench_new(w);
    struct journal *j = world_start(w, &b->r);
    struct journal_record rec;
    char path[400];
    u64 pos = append_number(j, 0, w->most);
    journal_flush(j);
    wait_settled(w, j, pos);
    do {
        if (journal_read(j, pos, 0, &rec, NULL) != ST_OK) _exit(3);
    } while (!rec.lasting);
    snprintf(path, sizeof path, "%s/journal-%016llx.seg", p->path, (unsigned long long)(pos / SEGMENT));
    if (truncate(path, 0) != 0) _exit(4);
    journal_read(j, pos, 0, &rec, NULL);
    _exit(5);
}

static void an_unreadable_page_of_a_mapped_segment_stops_it_with_file_and_offset(void **state) {
    struct world *w = *state;
    struct said_at *p = w->ctx;
    int log[2], status;
    char said[1000] = {0}, named[400];
    assert_int_equal(pipe(log), 0);
    pid_t child = fork();
    if (child == 0) {
        if (dup2(log[1], STDERR_FILENO) < 0) _exit(2);
        disk_posix_watch_maps();
        read_what_is_lost(w);
    }
    close(log[1]);
    waitpid(child, &status, 0);
    assert_true(read(log[0], said, sizeof said - 1) > 0);
    close(log[0]);
    snprintf(named, sizeof named, " file=%s/journal-%016x.seg\n", p->path, 1u);
    if (!strstr(said, named) || !strstr(said, " event=read_failed ") || !strstr(said, " offset=1"))
        fail_msg("%s", said);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
}

static void any_other_bus_error_ends_the_process_as_ever(void **state) {
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        disk_posix_watch_maps();
        FILE *empty = tmpfile();
        const volatile char *p = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fileno(empty), 0);
        _exit(p[0]);
    }
    int status;
    waitpid(child, &status, 0);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGBUS);
}

/* The pages of the first segment, as the kernel sees them. */
struct pages {
    u8 *map;
    int fd;
};

static struct pages pages_of(const struct said_at *p) {
    char path[400];
    snprintf(path, sizeof path, "%s/journal-%016x.seg", p->path, 1u);
    struct pages v = {.fd = open(path, O_RDONLY | O_CLOEXEC)};
    v.map = mmap(NULL, SEGMENT, PROT_READ, MAP_SHARED, v.fd, 0);
    assert_true(v.fd >= 0 && v.map != MAP_FAILED);
    return v;
}

static bool in_memory(const struct pages *v, u64 offset) {
    u8 there = 0;
    assert_int_equal(mincore(v->map + offset / 4096 * 4096, 1, &there), 0);
    return there & 1;
}

static bool drop_pages(const struct pages *v, const u64 *pos, int count) {
    fsync(v->fd); /* those still being written stay */
    posix_fadvise(v->fd, 0, 0, POSIX_FADV_DONTNEED);
    for (int i = 0; i < count; i++)
        if (in_memory(v, pos[i] % SEGMENT)) return false;
    return true;
}

static void records_announced_while_reads_miss_are_brought_from_the_disk_at_once(void **state) {
    struct world *w = *state;
    struct bench *b = bench_new(w);
    struct journal *j = world_start(w, &b->r);
    u64 pos[12];
    u32 bytes[10];
    for (int i = 0; i < 10; i++) bytes[i] = 4000;
    for (u64 i = 0; i < 12; i++) {
        memset(journal_reserve(j, 4000), (int)i, 4000);
        pos[i] = journal_append(j, 1, 1, 4000);
    }
    struct pages v = pages_of(w->ctx);
    const struct said_at *at = w->ctx;
    struct journal_record rec;
    u64 misses;
    bool dropped;
    do { /* a device may bring a page before the read has looked whether it must wait */
        journal_close(j);
        j = world_open(w);
        assert_int_equal(journal_start(j, NULL), ST_OK);
        misses = at->disk->misses;
        dropped = drop_pages(&v, pos, 12); /* not where the file system is memory itself */
        if (dropped) journal_prefetch(j, pos + 2, bytes, 10);
        if (dropped) assert_false(in_memory(&v, pos[11] % SEGMENT)); /* as long as nobody had to wait, nobody asks */
        assert_int_equal(journal_read(j, pos[0], 4000, &rec, NULL), ST_OK);
    } while (dropped && at->disk->misses == misses);
    i64 until = clock_mono_ms() + 60000;
    for (int i = 2; dropped && i < 12; i++)
        while (!in_memory(&v, pos[i] % SEGMENT)) {
            assert_true(clock_mono_ms() < until);
            journal_prefetch(j, pos + 2, bytes, 10); /* a wish, which a busy kernel may not grant at once */
            usleep(1000);
        }
    munmap(v.map, SEGMENT);
    close(v.fd);
    journal_close(j);
    mem_free(b);
    if (!dropped) skip();
}

/* The first record takes a second and more. */
static hx_st take_your_time(void *ctx, const struct journal_record *rec, struct errbuf *err) {
    (void)rec;
    (void)err;
    i64 *until = ctx;
    if (*until == 0) *until = clock_mono_ms() + 1100;
    while (clock_mono_ms() < *until) usleep(10000);
    return ST_OK;
}

static void a_long_replay_says_how_far_it_is(void **state) {
    struct world *w = *state;
    struct bench *b = bench_new(w);
    struct journal *j = world_start(w, &b->r);
    for (u64 i = 0; i < 3; i++) {
        u64 pos = append_number(j, i, w->most);
        journal_flush(j);
        wait_settled(w, j, pos);
    }
    journal_close(j);
    FILE *log = tmpfile();
    int before = dup(STDERR_FILENO);
    assert_true(dup2(fileno(log), STDERR_FILENO) >= 0);
    j = world_open(w);
    i64 until = 0;
    hx_st st = journal_replay(j, take_your_time, &until, NULL);
    journal_close(j);
    dup2(before, STDERR_FILENO);
    close(before);
    char said[500] = {0};
    rewind(log);
    assert_true(fread(said, 1, sizeof said - 1, log) > 0);
    fclose(log);
    assert_int_equal(st, ST_OK);
    assert_non_null(strstr(said, " event=replay "));
    assert_non_null(strstr(said, " mib_per_s=0 "));
    const char *percent = strstr(said, " percent=");
    assert_true(percent && percent[9] >= '1' && percent[9] <= '9');
    mem_free(b);
}

static void work_killed_with_kill_9_recovers_everything_acknowledged(void **state) {
    struct world *w = *state;
    struct said_at *p = w->ctx;
    struct bench *b = bench_new(w);
    for (int life = 0; life < 6; life++) {
        int told[2];
        assert_int_equal(pipe(told), 0);
        pid_t child = fork();
        if (child == 0) {
            struct journal *j = world_start(w, &b->r);
            u64 number = b->r.any ? b->r.next : 0;
            for (;; number++) {
                u64 pos = append_number(j, number, w->most);
                journal_flush(j);
                if (number % 5 == 0) wait_settled(w, j, pos);
                if (number % 5 == 0 && write(told[1], &number, sizeof number) < 0) _exit(1);
            }
        }
        close(told[1]);
        u64 acked = 0, number;
        for (int i = 0; i < 40 && read(told[0], &number, sizeof number) == sizeof number; i++) acked = number;
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        while (read(told[0], &number, sizeof number) == sizeof number) acked = number;
        close(told[0]);
        b->r.any = b->r.wrong = false;
        b->r.last_pos = 0;
        struct journal *j = world_start(w, &b->r);
        assert_false(b->r.wrong);
        assert_true(b->r.any && b->r.first == 0 && b->r.next > acked);
        journal_close(j);
    }
    (void)p;
    mem_free(b);
}

#define ON(f, world, leave) cmocka_unit_test_setup_teardown(f, world, leave)
#define ON_THREADS(f)       ON(f, real_with_threads, leave_place),
#define ON_MANUAL(f)        ON(f, real_without_threads, leave_place),
#define ON_SIM(f)           ON(f, simulated, leave_sim),

int main(void) {
    const struct CMUnitTest threads[] = {CONFORMANCE(ON_THREADS)};
    const struct CMUnitTest manual[] = {CONFORMANCE(ON_MANUAL)};
    const struct CMUnitTest sim[] = {CONFORMANCE(ON_SIM) CONFORMANCE_FAULTS(ON_SIM)};
    const struct CMUnitTest real[] = {
        ON(another_process_is_told_busy_and_a_killed_one_lets_go, real_without_threads, leave_place),
        ON(files_are_for_the_owner_alone, real_with_threads, leave_place),
        ON(a_directory_without_permission_is_denied_by_name, real_without_threads, leave_place),
        ON(a_missing_directory_is_made_or_reported, real_without_threads, leave_place),
        ON(an_unreadable_page_of_a_mapped_segment_stops_it_with_file_and_offset, real_without_threads, leave_place),
        ON(records_announced_while_reads_miss_are_brought_from_the_disk_at_once, real_without_threads, leave_place),
        ON(any_other_bus_error_ends_the_process_as_ever, real_without_threads, leave_place),
        ON(a_long_replay_says_how_far_it_is, real_with_threads, leave_place),
        ON(work_killed_with_kill_9_recovers_everything_acknowledged, real_with_threads, leave_place),
    };
    int failures = cmocka_run_group_tests_name("real directory, threads", threads, NULL, NULL);
    failures += cmocka_run_group_tests_name("real directory, manual", manual, NULL, NULL);
    failures += cmocka_run_group_tests_name("simulated disk", sim, NULL, NULL);
    failures += cmocka_run_group_tests_name("real directory", real, NULL, NULL);
    return failures;
}
