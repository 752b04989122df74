/* A page of a mapped segment that the disk does not hand out arrives as SIGBUS. It is a failed read like any other (P7): file
 * and offset are said, nothing is answered any more, the process ends.
 *
 * Whose page it was stands in /proc/self/maps; a table of our own could be half written at that moment. Everything here may
 * be called from a signal handler: the buffers are on the stack and large enough, so that nothing allocates. Any other
 * SIGBUS is not ours and ends the process as ever. */
#include "journal/disk.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "base/log.h"

#define MAPS_BYTES 8192u /* a line of /proc/self/maps: numbers, and a path of at most 4096 bytes */

static u64 take_hex(slice *s) {
    u64 n = 0;
    for (; s->n; s->p++, s->n--) {
        char c = *s->p;
        u64 digit = c >= '0' && c <= '9' ? (u64)(c - '0') : c >= 'a' && c <= 'f' ? (u64)(c - 'a') + 10 : 16;
        if (digit == 16) break;
        n = n << 4 | digit;
    }
    return n;
}

/* "start-end perms offset device inode path" */
static bool line_has(slice line, u64 address, slice *path, u64 *offset) {
    u64 start = take_hex(&line);
    if (line.n == 0 || *line.p != '-') return false;
    line = slice_of(line.p + 1, line.n - 1);
    u64 end = take_hex(&line);
    if (address < start || address >= end || line.n < 6) return false;
    line = slice_of(line.p + 6, line.n - 6); /* " r--s " */
    *offset = take_hex(&line) + (address - start);
    while (line.n && *line.p != '/') line = slice_of(line.p + 1, line.n - 1);
    *path = line;
    return line.n > 0;
}

/* *path points into `text`. */
static bool find_mapping(u64 address, char text[MAPS_BYTES], slice *path, u64 *offset) {
    int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    size_t len = 0;
    for (ssize_t n; fd >= 0 && (n = read(fd, text + len, MAPS_BYTES - len)) > 0;) {
        slice line, rest = slice_of(text, len + (size_t)n);
        while (memchr(rest.p, '\n', rest.n)) {
            slice_cut(rest, '\n', &line, &rest);
            if (!line_has(line, address, path, offset)) continue;
            close(fd);
            return true;
        }
        len = rest.n;
        memmove(text, rest.p, len);
    }
    if (fd >= 0) close(fd);
    return false;
}

static bool is_segment(slice path) {
    return path.n > 4 && memcmp(path.p + path.n - 4, ".seg", 4) == 0;
}

static void on_bus(int number, siginfo_t *info, void *context) {
    (void)context;
    char text[MAPS_BYTES];
    slice path;
    u64 offset;
    bool ours = info->si_code > 0 && find_mapping((u64)(uintptr_t)info->si_addr, text, &path, &offset);
    if (!ours || !is_segment(path)) { /* happens again on return, and ends it */
        signal(number, SIG_DFL);
        return;
    }
    log_last_words("read_failed",
                   "a page of the journal cannot be read: the disk does not hand it out. Nothing is answered any more; "
                   "everything answered so far is on disk. Fix the disk, then start again: requests without an answer "
                   "are to be repeated with their keys.",
                   log_number("offset", (i64)offset), log_text("file", path));
    _exit(1);
}

void disk_posix_watch_maps(void) {
    struct sigaction action = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO};
    sigemptyset(&action.sa_mask);
    CHECK(sigaction(SIGBUS, &action, NULL) == 0);
}
