/* sim: runs seeds.
 *
 *   sim --seed N [--verbose]                    one seed alone; on failure the last events, with --verbose all of them
 *   sim --seeds A-B [--jobs J] [--stop K] [--tap]
 *
 * A range is split over processes. A seed that fails (or aborts) is run once more with its trace kept, and printed; after K
 * of them (3) the rest is left. At the end the tally of what happened is printed; over 1,000 seeds or more nothing in it may
 * be zero. Exit status: 0 all well, 1 a failure, 2 wrong usage. */
#include "sim.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define TRACE_LINES  300u
#define TRACE_BYTES  1600u
#define JOBS_MAX     64u
#define CHUNK_SEEDS  5u
#define TAP_SEEDS    100u
#define SEED_SECONDS 40u

bool tracing;
static bool trace_all, quiet;
static char (*ring)[TRACE_BYTES];
static u64 ring_next, seed_running;

/* ---- trace and failure */

void trace_open(bool to_stderr) {
    tracing = true;
    trace_all = to_stderr;
    ring = mem_zalloc(TRACE_LINES * TRACE_BYTES);
}

void trace(const char *fmt, ...) {
    if (!tracing) return;
    char *line = ring[ring_next++ % TRACE_LINES];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, TRACE_BYTES, fmt, args);
    va_end(args);
    if (trace_all) fprintf(stderr, "%s\n", line);
}

_Noreturn void sim_fail(const char *fmt, ...) {
    char text[2048];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (tracing && !trace_all)
        for (u64 i = ring_next > TRACE_LINES ? ring_next - TRACE_LINES : 0; i < ring_next; i++)
            fprintf(stderr, "%s\n", ring[i % TRACE_LINES]);
    if (!quiet) fprintf(stderr, "seed %llu FAILED: %s\n", (unsigned long long)seed_running, text);
    fflush(stderr);
    _exit(1);
}

/* ---- one seed, and again if it failed */

static void on_alarm(int sig) {
    (void)sig;
    sim_fail("no end in sight after %u s", SEED_SECONDS);
}

/* A hang is a failure like any other. It is told by the processor's time, which a busy machine does not stretch. */
static void run_seed(u64 seed) {
    struct itimerval bound = {.it_value.tv_sec = SEED_SECONDS}, none = {0};
    seed_running = seed;
    signal(SIGPROF, on_alarm);
    setitimer(ITIMER_PROF, &bound, NULL);
    sim_run(seed);
    setitimer(ITIMER_PROF, &none, NULL);
}

static void run_alone(u64 seed, bool verbose) {
    trace_open(verbose);
    run_seed(seed);
}

static void run_again(u64 seed) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        run_alone(seed, false);
        fprintf(stderr, "seed %llu failed, and passed when run again: it is not deterministic\n",
                (unsigned long long)seed);
        _exit(1);
    }
    waitpid(pid, NULL, 0);
    printf("# replay: build/tests/sim --seed %llu\n", (unsigned long long)seed);
}

/* ---- a range over processes */

struct worker { /* shared memory */
    u64 seed;   /* being run */
    struct tally tally;
};

struct range {
    u64 next, last, failures, stop, done;
    u32 jobs;
    bool tap;
    struct worker *workers;
    pid_t pids[JOBS_MAX];
    u64 until[JOBS_MAX]; /* the chunk's last seed */
    u64 tap_from, tap_failed, tap_lines;
    struct tally sum;
};

static void tally_add(struct tally *sum, const struct tally *t) {
#define TALLY(name) sum->name += t->name;
#include "tally.def"
#undef TALLY
}

static void work_chunk(struct worker *me, u64 from, u64 to) {
    quiet = true;
    if (!freopen("/dev/null", "w", stderr)) _exit(2);
    for (u64 seed = from; seed <= to; seed++) {
        me->seed = seed;
        run_seed(seed);
        me->tally = tally;
    }
    _exit(0);
}

static void start_seeds(struct range *r, u32 job, u64 from, u64 to) {
    r->until[job] = to;
    r->workers[job] = (struct worker){.seed = from};
    fflush(stdout);
    r->pids[job] = fork();
    if (r->pids[job] == 0) work_chunk(&r->workers[job], from, to);
}

static void start_chunk(struct range *r, u32 job) {
    u64 from = r->next, to = from + CHUNK_SEEDS - 1;
    if (to > r->last) to = r->last;
    r->next = to + 1;
    start_seeds(r, job, from, to);
}

static void tap_progress(struct range *r, u64 done) {
    while (r->tap && done >= (r->tap_lines + 1) * TAP_SEEDS) {
        u64 from = r->tap_from + r->tap_lines * TAP_SEEDS;
        r->tap_lines++;
        printf("%sok %llu - seeds %llu to %llu keep every promise\n", r->tap_failed ? "not " : "",
               (unsigned long long)r->tap_lines, (unsigned long long)from, (unsigned long long)(from + TAP_SEEDS - 1));
        r->tap_failed = 0;
    }
}

static void chunk_ended(struct range *r, u32 job, int status) {
    struct worker *me = &r->workers[job];
    tally_add(&r->sum, &me->tally);
    bool failed = !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    r->pids[job] = 0;
    if (failed) {
        u64 seed = me->seed;
        r->failures++;
        r->tap_failed++;
        printf("%sseed %llu failed\n", r->tap ? "# " : "", (unsigned long long)seed);
        run_again(seed);
        if (seed < r->until[job] && r->failures < r->stop) {
            start_seeds(r, job, seed + 1, r->until[job]);
            return;
        }
    }
    r->done += CHUNK_SEEDS;
    tap_progress(r, r->done);
    if (!r->tap && r->done % 500 < CHUNK_SEEDS) {
        printf("%llu seeds done, %llu failed\n", (unsigned long long)r->done, (unsigned long long)r->failures);
        fflush(stdout);
    }
}

static void run_range(struct range *r) {
    r->workers = mmap(NULL, JOBS_MAX * sizeof *r->workers, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(r->workers != MAP_FAILED);
    for (;;) {
        u32 running = 0;
        for (u32 j = 0; j < r->jobs; j++) {
            if (!r->pids[j] && r->next <= r->last && r->failures < r->stop) start_chunk(r, j);
            running += r->pids[j] != 0;
        }
        if (running == 0) break;
        int status;
        pid_t pid = waitpid(-1, &status, 0);
        for (u32 j = 0; j < r->jobs; j++)
            if (pid > 0 && r->pids[j] == pid) chunk_ended(r, j, status);
    }
}

static u32 print_count(const char *name, u64 count, bool tap) {
    printf("%s%-22s %12llu%s\n", tap ? "# " : "", name, (unsigned long long)count, count ? "" : "  <- never");
    return count == 0;
}

static u32 print_tally(const struct tally *t, bool tap) {
    u32 zeroes = 0;
#define TALLY(name) zeroes += print_count(#name, t->name, tap);
#include "tally.def"
#undef TALLY
    return zeroes;
}

static int finish_range(struct range *r, u64 seeds) {
    u32 zeroes = print_tally(&r->sum, r->tap);
    bool covered = zeroes == 0 || seeds < 1000;
    if (r->tap) {
        u64 lines = seeds / TAP_SEEDS;
        for (; r->tap_lines < lines; r->tap_lines++)
            printf("not ok %llu - seeds left after failures\n", (unsigned long long)(r->tap_lines + 1));
        printf("%sok %llu - everything the simulator is for has happened\n", covered ? "" : "not ",
               (unsigned long long)(lines + 1));
    }
    if (!covered) printf("%s%u things never happened\n", r->tap ? "# " : "", zeroes);
    printf("%s%llu seeds, %llu failed\n", r->tap ? "# " : "", (unsigned long long)seeds,
           (unsigned long long)r->failures);
    return r->failures || !covered ? 1 : 0;
}

/* ---- usage */

static int usage(void) {
    fprintf(stderr, "usage: sim --seed N [--verbose] | --seeds A-B [--jobs J] [--stop K] [--tap]\n");
    return 2;
}

static bool number(const char *text, u64 *out) {
    return text && slice_u64(slice_str(text), out);
}

static bool parse_range(const char *text, struct range *r) {
    slice from, to;
    if (!text || !slice_cut(slice_str(text), '-', &from, &to)) return false;
    return slice_u64(from, &r->next) && slice_u64(to, &r->last) && r->next <= r->last;
}

int main(int argc, char **argv) {
    struct range r = {.stop = 3};
    u64 seed = 0, jobs = 2;
    bool one = false, range = false, verbose = false, ok = true;
    for (int i = 1; i < argc && ok; i++) {
        slice arg = slice_str(argv[i]);
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (slice_eq(arg, SL("--verbose")))
            verbose = true;
        else if (slice_eq(arg, SL("--tap")))
            r.tap = true;
        else if (slice_eq(arg, SL("--seed")))
            ok = one = number(value, &seed), i++;
        else if (slice_eq(arg, SL("--seeds")))
            ok = range = parse_range(value, &r), i++;
        else if (slice_eq(arg, SL("--jobs")))
            ok = number(value, &jobs) && jobs >= 1 && jobs <= JOBS_MAX, i++;
        else if (slice_eq(arg, SL("--stop")))
            ok = number(value, &r.stop) && r.stop >= 1, i++;
        else
            ok = false;
    }
    if (!ok || one == range) return usage();
    log_set_level(LOG_ERROR);
    if (one) {
        run_alone(seed, verbose);
        printf("seed %llu: all promises kept\n", (unsigned long long)seed);
        return 0;
    }
    u64 seeds = r.last - r.next + 1;
    r.jobs = (u32)jobs;
    r.tap_from = r.next;
    if (r.tap) printf("1..%llu\n", (unsigned long long)(seeds / TAP_SEEDS + 1));
    run_range(&r);
    return finish_range(&r, seeds);
}
