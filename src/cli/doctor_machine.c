/* The machine the broker runs on, as far as /proc and /sys tell. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "cli/doctor.h"

#define BACKLOG_MIN 128

/* The beginning of a file, without its last line feed. Empty: it is not there. */
static slice read_some(const char *root, const char *path, char *out, size_t bytes) {
    char name[512];
    snprintf(name, sizeof name, "%s%s", root, path);
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    size_t len = 0;
    for (ssize_t n; fd >= 0 && len < bytes && (n = read(fd, out + len, bytes - len)) > 0;) len += (size_t)n;
    if (fd >= 0) close(fd);
    while (len && out[len - 1] == '\n') len--;
    return slice_of(out, len);
}

/* ---- the kernel */

static void look_at_kernel(struct doctor *d, const char *root) {
    char text[256];
    u64 backlog;
    if (slice_eq(read_some(root, "/proc/sys/vm/overcommit_memory", text, sizeof text), SL("2")))
        doctor_found(d, FOUND_overcommit_strict, "The kernel counts memory strictly (vm.overcommit_memory is 2).");
    slice defrag = read_some(root, "/sys/kernel/mm/transparent_hugepage/defrag", text, sizeof text);
    if (slice_starts(defrag, SL("[always]")))
        doctor_found(d, FOUND_hugepages_defrag,
                     "The kernel makes huge pages at once (transparent_hugepage/defrag is always).");
    slice most = read_some(root, "/proc/sys/net/core/somaxconn", text, sizeof text);
    if (slice_u64(most, &backlog) && backlog < BACKLOG_MIN)
        doctor_found(d, FOUND_backlog_small,
                     "The kernel lets %llu connections wait to be accepted (net.core.somaxconn).",
                     (unsigned long long)backlog);
}

/* ---- where the data is */

/* The directory of the journal's lock, which a broker always has open. */
static bool find_data(const char *root, i64 pid, struct buf *out) {
    char path[512], target[4096];
    snprintf(path, sizeof path, "%s/proc/%lld/fd", root, (long long)pid);
    DIR *dir = opendir(path);
    bool found = false;
    for (struct dirent *e; dir && !found && (e = readdir(dir));) {
        ssize_t n = readlinkat(dirfd(dir), e->d_name, target, sizeof target);
        found = n > 5 && memcmp(target + n - 5, "/lock", 5) == 0;
        if (found) buf_add(out, target, (size_t)n - 5);
    }
    if (dir) closedir(dir);
    return found;
}

static bool holds(slice mount, slice path) {
    if (slice_eq(mount, SL("/"))) return true;
    return slice_starts(path, mount) && (path.n == mount.n || path.p[mount.n] == '/');
}

/* The type of the file system a path is on: of the mounts that hold it, the longest, and of those the last. */
static slice type_of(slice mounts, slice path) {
    slice line, type = SL(""), longest = SL("");
    while (mounts.n) {
        slice device, mount, kind;
        slice_cut(mounts, '\n', &line, &mounts);
        slice_cut(line, ' ', &device, &line);
        slice_cut(line, ' ', &mount, &line);
        slice_cut(line, ' ', &kind, &line);
        if (!holds(mount, path) || mount.n < longest.n) continue;
        longest = mount;
        type = kind;
    }
    return type;
}

static bool is_one_of(slice word, const char *list) {
    slice rest = slice_str(list), one;
    while (rest.n) {
        slice_cut(rest, ' ', &one, &rest);
        if (slice_eq(one, word)) return true;
    }
    return false;
}

static void look_at_data(struct doctor *d, const char *root, i64 pid) {
    static char mounts[256u << 10];
    char path[64];
    struct buf data = {0};
    if (!find_data(root, pid, &data)) {
        doctor_found(d, FOUND_elsewhere, "The broker's files cannot be seen from here.");
        return;
    }
    snprintf(path, sizeof path, "/proc/%lld/mounts", (long long)pid);
    slice type = type_of(read_some(root, path, mounts, sizeof mounts), buf_slice(&data));
    enum finding what = is_one_of(type, "tmpfs ramfs overlay")                     ? FOUND_data_in_memory
                        : is_one_of(type, "nfs nfs4 cifs smb3 9p fuse.sshfs ceph") ? FOUND_data_on_network
                        : is_one_of(type, "btrfs zfs")                             ? FOUND_data_copy_on_write
                                                                                   : FINDING_COUNT;
    if (what != FINDING_COUNT)
        doctor_found(d, what, "The data directory %.*s is on %.*s.", (int)data.len, data.p, (int)type.n, type.p);
    buf_free(&data);
}

/* Is the process that the broker says it is, on this machine, a broker? */
static bool is_here(const char *root, i64 pid) {
    char path[64], name[64];
    snprintf(path, sizeof path, "/proc/%lld/comm", (long long)pid);
    return pid > 0 && slice_eq(read_some(root, path, name, sizeof name), SL("hapaxd"));
}

static bool has_proc(const char *root) {
    struct buf path = {0};
    buf_printf(&path, "%s/proc/", root);
    buf_char(&path, 0);
    bool has = access(path.p, X_OK) == 0;
    buf_free(&path);
    return has;
}

void doctor_machine(struct doctor *d, const char *root, i64 pid) {
    if (!has_proc(root)) {
        doctor_found(d, FOUND_elsewhere, "There is no %s/proc: nothing of the broker's machine can be seen there.",
                     root);
        return;
    }
    if (!is_here(root, pid)) {
        doctor_found(d, FOUND_elsewhere,
                     pid ? "The broker runs on another machine."
                         : "The broker does not tell this caller where it runs.");
        return;
    }
    look_at_kernel(d, root);
    look_at_data(d, root, pid);
}
