/* What the disk can do, in the patterns a journal uses. One JSON line each:
 *   append     4 KiB written at the end of a growing file, fdatasync after each
 *   overwrite  the same inside a file already written: no metadata to commit
 *   stream     256 KiB at the end of a growing file, fdatasync after each
 * Usage: bench_disk append|overwrite|stream DIRECTORY SECONDS */
#include "base/base.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define SMALL_BYTES     4096
#define LARGE_BYTES     (256 * 1024)
#define OVERWRITE_BYTES (16 << 20)
#define SAMPLES_MAX     1000000

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void fill(int fd, const char *block) {
    for (off_t at = 0; at < OVERWRITE_BYTES; at += LARGE_BYTES)
        CHECK(pwrite(fd, block, LARGE_BYTES, at) == LARGE_BYTES);
    CHECK(fsync(fd) == 0);
}

static size_t measure(int fd, const char *block, size_t bytes, off_t wrap, double seconds, double *took) {
    size_t n = 0;
    off_t at = 0;
    for (double start = now(), before = start; n < SAMPLES_MAX && before - start < seconds; n++) {
        CHECK(pwrite(fd, block, bytes, at) == (ssize_t)bytes);
        CHECK(fdatasync(fd) == 0);
        at = (at + (off_t)bytes) % wrap;
        double after = now();
        took[n] = after - before;
        before = after;
    }
    return n;
}

int main(int argc, char **argv) {
    static double took[SAMPLES_MAX];
    if (argc != 4) {
        fprintf(stderr, "usage: bench_disk append|overwrite|stream DIRECTORY SECONDS\n");
        return 2;
    }
    bool overwrite = strcmp(argv[1], "overwrite") == 0, stream = strcmp(argv[1], "stream") == 0;
    size_t bytes = stream ? LARGE_BYTES : SMALL_BYTES;
    char path[4096], *block = mem_alloc(LARGE_BYTES);
    random_bytes(block, LARGE_BYTES);
    snprintf(path, sizeof path, "%s/bench_disk.tmp", argv[2]);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) {
        perror(path);
        return 1;
    }
    if (overwrite) fill(fd, block);
    size_t n = measure(fd, block, bytes, overwrite ? OVERWRITE_BYTES : INT64_MAX, strtod(argv[3], NULL), took);
    double total = 0;
    for (size_t i = 0; i < n; i++) total += took[i];
    qsort(took, n, sizeof *took, by_value);
    printf("{\"system\":\"disk\",\"mode\":\"%s\",\"rate\":%.0f,\"mb_per_s\":%.1f,\"p50_us\":%.1f,\"p99_us\":%.1f}\n",
           argv[1], (double)n / total, (double)n * (double)bytes / total / 1e6, took[n / 2] * 1e6,
           took[n * 99 / 100] * 1e6);
    close(fd);
    unlink(path);
    mem_free(block);
    return 0;
}
