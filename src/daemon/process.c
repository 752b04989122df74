#include "daemon/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "broker/fetch.h"
#include "daemon/notify.h"
#include "journal/file.h"

/* Descriptors. The journal works with any number of segment files open, from JOURNAL_FILES_MIN on; more make reading quicker. */
#define FILES_MIN      64u
#define FILES_OWN      16u /* standard streams, the loop, the listener, what is opened for a moment */
#define FILES_A_WORKER 4u  /* of a relay */
#define FILES_OUTBOUND                                                                                                 \
    (NOTIFY_AT_ONCE + 4u) /* the first is what requests to others are watched by; a certificate is read */
#define JOURNAL_FILES_MIN 8u
#define JOURNAL_FILES_MAX 256u

/* The memory of a broker has payloads in it, the secret of its directory, keys of certificates. */
void process_lock_down(bool allow_dumps) {
    struct rlimit none = {0};
    umask(S_IRWXG | S_IRWXO);
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    if (allow_dumps) return;
    CHECK(setrlimit(RLIMIT_CORE, &none) == 0);
    CHECK(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0); /* a core pattern with a pipe does not ask for the limit */
}

/* Left to itself, malloc takes what was large and freed once for a size that comes often, and keeps it: after a flood of large
 * replies most of their memory would stay ours. */
void process_return_memory(void) {
    mallopt(M_MMAP_THRESHOLD, 1 << 20);
    mallopt(M_TRIM_THRESHOLD, 16 << 20);
}

#define BUFFERS_MIN (32ull << 20) /* the largest reply, or request, and something beside it */
#define BUFFERS_MAX (256ull << 20)

/* Within what the core leaves (broker.c: core_share). */
u64 process_buffers_max(u64 memory_max) {
    u64 share = memory_max ? memory_max / 5 : BUFFERS_MAX;
    return share < BUFFERS_MIN ? BUFFERS_MIN : share > BUFFERS_MAX ? BUFFERS_MAX : share;
}

static u64 files_allowed(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
    rlim_t before = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max;
    return setrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_max : before;
}

hx_st process_share_files(const struct config *config, struct process_files *out, struct errbuf *err) {
    u64 allowed = files_allowed(), relays = 0;
    for (u32 i = 0; i < config->relays.count; i++) relays += (config->relays.at[i].workers + 1ull) * FILES_A_WORKER;
    if (allowed < FILES_MIN + relays)
        return err_set(err, ST_DENIED,
                       "the limit on open files is %llu, and %llu are needed at least: see ulimit -n, or "
                       "LimitNOFILE= of systemd",
                       (unsigned long long)allowed, (unsigned long long)(FILES_MIN + relays));
    u64 left = allowed - relays - FILES_OWN - FILES_OUTBOUND - JOURNAL_FILES_BESIDE, journal = left / 4, fetches;
    if (journal < JOURNAL_FILES_MIN) journal = JOURNAL_FILES_MIN;
    if (journal > JOURNAL_FILES_MAX) journal = JOURNAL_FILES_MAX;
    left -= journal;
    fetches = left / 4 < FETCHES_MAX ? left / 4 : FETCHES_MAX;
    left -= fetches;
    u32 most = config->limits.connections;
    *out = (struct process_files){
        .journal = (u32)journal, .fetches = (u32)fetches, .connections = left < most ? (u32)left : most};
    return ST_OK;
}

static slice read_some(const char *path, char *text, size_t cap) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, cap);
    if (fd >= 0) close(fd);
    return slice_of(text, n > 0 ? (size_t)n : 0);
}

/* Where the group stands in the tree, "/system.slice/hapaxd.service" say, from the line that begins with 0:: */
static slice control_group(const char *root, char *text, size_t cap) {
    snprintf(text, cap, "%s/proc/self/cgroup", root);
    slice rest = read_some(text, text, cap), line = SL("");
    while (rest.n) {
        slice_cut(rest, '\n', &line, &rest);
        if (slice_starts(line, SL("0::/"))) return slice_of(line.p + 3, line.n - 3);
    }
    return SL("/");
}

/* A group's limit holds for all below it: the least of them, from its own up to the root of what can be seen. */
u64 process_memory_max(const char *root) {
    char lines[4096], path[8192], text[32];
    u64 least = 0, bytes;
    slice group = control_group(root, lines, sizeof lines), line, rest;
    for (bool more = true; more;) {
        snprintf(path, sizeof path, "%s/sys/fs/cgroup%.*s/memory.max", root, (int)group.n, group.p);
        slice_cut(read_some(path, text, sizeof text), '\n', &line, &rest);
        if (slice_u64(line, &bytes) && (!least || bytes < least)) least = bytes; /* "max" is no number */
        more = group.n > 0;
        while (group.n && group.p[group.n - 1] != '/') group.n--;
        if (group.n) group.n--;
    }
    return least;
}

/* The first two fields of statm, in pages. */
void process_memory(u64 *resident, u64 *virtual) {
    char text[128];
    u64 pages[2] = {0};
    slice one, rest = read_some("/proc/self/statm", text, sizeof text);
    for (u32 i = 0; i < 2; i++) {
        slice_cut(rest, ' ', &one, &rest);
        if (!slice_u64(one, &pages[i])) pages[i] = 0;
    }
    *virtual = pages[0] * (u64)sysconf(_SC_PAGESIZE);
    *resident = pages[1] * (u64)sysconf(_SC_PAGESIZE);
}

static u64 open_files(void) {
    u64 count = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (dir && readdir(dir)) count++;
    if (dir) closedir(dir);
    return count > 3 ? count - 3 : 0; /* its two links, and the one it is read by */
}

void process_surroundings(struct surroundings *w, const char *data) {
    struct rusage used;
    struct rlimit files;
    struct statvfs fs;
    w->open_fds = open_files();
    process_memory(&w->resident_bytes, &w->virtual_bytes);
    if (getrusage(RUSAGE_SELF, &used) == 0)
        w->cpu_us = (u64)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000 +
                    (u64)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) w->max_fds = files.rlim_cur;
    if (statvfs(data, &fs) == 0) {
        w->disk_free = (u64)fs.f_bavail * fs.f_frsize;
        w->disk_size = (u64)fs.f_blocks * fs.f_frsize;
    }
}
