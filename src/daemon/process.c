#include "daemon/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "daemon/notify.h"
#include "journal/file.h"

#define CONNECTIONS_MAX 10000u

/* Descriptors. The journal works with any number of segment files open, from JOURNAL_FILES_MIN on; more make reading quicker. */
#define FILES_MIN         64u
#define FILES_OWN         16u /* standard streams, the loop, the listener, what is opened for a moment */
#define FILES_A_WORKER    4u  /* of a relay */
#define JOURNAL_FILES_MIN 8u
#define JOURNAL_FILES_MAX 256u

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
    u64 left = allowed - relays - FILES_OWN - NOTIFY_FILES - JOURNAL_FILES_BESIDE, journal = left / 4;
    if (journal < JOURNAL_FILES_MIN) journal = JOURNAL_FILES_MIN;
    if (journal > JOURNAL_FILES_MAX) journal = JOURNAL_FILES_MAX;
    left -= journal;
    *out = (struct process_files){.journal = (u32)journal,
                                  .connections = left < CONNECTIONS_MAX ? (u32)left : CONNECTIONS_MAX};
    return ST_OK;
}

u64 process_memory_max(void) {
    u64 bytes = 0;
    char text[32];
    int fd = open("/sys/fs/cgroup/memory.max", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text);
    if (fd >= 0) close(fd);
    return slice_u64(slice_trim(slice_of(text, n > 0 ? (size_t)n : 0)), &bytes) ? bytes : 0; /* "max": none */
}

/* The first two fields of statm, in pages. */
void process_memory(u64 *resident, u64 *virtual) {
    char text[128];
    u64 pages[2] = {0};
    int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text);
    if (fd >= 0) close(fd);
    slice one, rest = slice_of(text, n > 0 ? (size_t)n : 0);
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
