#include "journal/disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#define READ_AHEAD_MIN (256u << 10) /* reads this large are part of a walk: the next stretch is wanted soon */
#define ZERO_CHUNK     (1u << 20)
#define LOCK_BYTES     12u /* always as many: what is overwritten needs no room */

struct disk_file {
    int fd;
};

#define POSIX_DISK_MAGIC 0x6469736bu

struct posix_disk {
    struct disk port;
    u32 magic;
    int dir;
    int lock; /* -1: not held */
    char *path;
};

static struct posix_disk *of(struct disk *d) {
    struct posix_disk *p = (struct posix_disk *)d;
    CHECK(p && p->magic == POSIX_DISK_MAGIC);
    return p;
}

static int posix_open_file(struct disk *d, const char *name, unsigned flags, struct disk_file **out) {
    int mode = (flags & DISK_WRITE ? O_RDWR : O_RDONLY) | (flags & DISK_CREATE ? O_CREAT : 0) | O_CLOEXEC | O_NOFOLLOW;
    int fd = openat(of(d)->dir, name, mode, 0600);
    if (fd < 0) return -errno;
    struct disk_file *f = mem_alloc(sizeof *f);
    f->fd = fd;
    *out = f;
    return 0;
}

static void posix_close_file(struct disk *d, struct disk_file *f) {
    (void)d;
    close(f->fd);
    mem_free(f);
}

/* What is in memory already. Less than asked for: the device has to bring the rest; or nobody can tell. */
static size_t read_cached(struct disk *d, struct disk_file *f, void *p, size_t n, u64 offset) {
    struct iovec where = {.iov_base = p, .iov_len = n};
    ssize_t got = preadv2(f->fd, &where, 1, (off_t)offset, RWF_NOWAIT);
    if (got < (ssize_t)n && (got >= 0 || errno == EAGAIN)) d->misses++;
    return got > 0 ? (size_t)got : 0;
}

static i64 posix_pread(struct disk *d, struct disk_file *f, void *p, size_t n, u64 offset) {
    size_t done = 0;
    if (n >= READ_AHEAD_MIN)
        posix_fadvise(f->fd, (off_t)(offset + n), (off_t)n, POSIX_FADV_WILLNEED);
    else
        done = read_cached(d, f, p, n, offset);
    while (done < n) {
        ssize_t got = pread(f->fd, (char *)p + done, n - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -errno;
        if (got == 0) break;
        done += (size_t)got;
    }
    return (i64)done;
}

static i64 posix_pwrite(struct disk *d, struct disk_file *f, const void *p, size_t n, u64 offset) {
    (void)d;
    ssize_t done;
    do done = pwrite(f->fd, p, n, (off_t)offset);
    while (done < 0 && errno == EINTR);
    return done < 0 ? -errno : done;
}

static int posix_sync(struct disk *d, struct disk_file *f) {
    (void)d;
    return fdatasync(f->fd) == 0 ? 0 : -errno;
}

/* For file systems without fallocate: writing takes the room just as well. Only ever used on files nobody needs yet. */
static int fill_with_zeros(struct disk *d, struct disk_file *f, u64 bytes) {
    char *zeros = mem_zalloc(ZERO_CHUNK);
    int rc = 0;
    for (u64 at = 0; rc == 0 && at < bytes; at += ZERO_CHUNK)
        rc = disk_write_all(d, f, zeros, bytes - at < ZERO_CHUNK ? (size_t)(bytes - at) : ZERO_CHUNK, at);
    mem_free(zeros);
    return rc;
}

static int posix_allocate(struct disk *d, struct disk_file *f, u64 bytes) {
    int rc;
    do rc = fallocate(f->fd, 0, 0, (off_t)bytes);
    while (rc < 0 && errno == EINTR);
    if (rc == 0) return 0;
    return errno == EOPNOTSUPP ? fill_with_zeros(d, f, bytes) : -errno;
}

static int posix_rename(struct disk *d, const char *from, const char *to) {
    return renameat(of(d)->dir, from, of(d)->dir, to) == 0 ? 0 : -errno;
}

static int posix_unlink(struct disk *d, const char *name) {
    return unlinkat(of(d)->dir, name, 0) == 0 ? 0 : -errno;
}

static int posix_list(struct disk *d, disk_each each, void *ctx) {
    int fd = openat(of(d)->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return -errno;
    DIR *dir = fdopendir(fd);
    if (!dir) {
        int error = errno;
        close(fd);
        return -error;
    }
    struct dirent *entry;
    errno = 0;
    while ((entry = readdir(dir)) != NULL) {
        struct stat st;
        if (fstatat(of(d)->dir, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode))
            each(ctx, entry->d_name, (u64)st.st_size);
        errno = 0;
    }
    int error = errno;
    closedir(dir);
    return -error;
}

static int posix_sync_dir(struct disk *d) {
    return fsync(of(d)->dir) == 0 ? 0 : -errno;
}

static u64 posix_free_bytes(struct disk *d) {
    struct statvfs vfs;
    if (fstatvfs(of(d)->dir, &vfs) != 0) return 0;
    return (u64)vfs.f_bavail * (u64)vfs.f_frsize;
}

/* The file says who holds it, for whoever does not get it. */
static void lock_sign(int fd) {
    char text[LOCK_BYTES + 1];
    snprintf(text, sizeof text, "%-*ld\n", (int)LOCK_BYTES - 1, (long)getpid());
    ssize_t n = pwrite(fd, text, LOCK_BYTES, 0);
    (void)n; /* on a full disk: then nobody is named */
}

static i64 lock_holder(int fd) {
    char text[LOCK_BYTES];
    u64 pid;
    ssize_t n = pread(fd, text, sizeof text, 0);
    slice number, rest;
    slice_cut(slice_of(text, n > 0 ? (size_t)n : 0), ' ', &number, &rest);
    return slice_u64(number, &pid) ? (i64)pid : 0;
}

static int posix_lock(struct disk *d, bool on, i64 *holder) {
    struct posix_disk *p = of(d);
    if (!on) {
        if (p->lock >= 0) close(p->lock);
        p->lock = -1;
        return 0;
    }
    int fd = openat(p->dir, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return -errno;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        int error = errno;
        *holder = lock_holder(fd);
        close(fd);
        return -error;
    }
    lock_sign(fd);
    p->lock = fd;
    return 0;
}

bool disk_posix_in_use(struct disk *d, i64 *holder) {
    int fd = openat(of(d)->dir, "lock", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    bool used = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (used) *holder = lock_holder(fd);
    if (fd >= 0) close(fd);
    return used;
}

/* Random: a fault brings its own page, not a megabyte around it. Whoever wants more says so with bring. */
static const u8 *posix_map(struct disk *d, struct disk_file *f, u64 bytes) {
    (void)d;
    void *p = mmap(NULL, (size_t)bytes, PROT_READ, MAP_SHARED, f->fd, 0);
    if (p == MAP_FAILED) return NULL;
    CHECK(madvise(p, (size_t)bytes, MADV_RANDOM) == 0);
    return p;
}

static void posix_bring(struct disk *d, const u8 *map, u64 bytes) {
    (void)d;
    uintptr_t in_page = (uintptr_t)map % (uintptr_t)sysconf(_SC_PAGESIZE);
    madvise((void *)((uintptr_t)map - in_page), (size_t)(bytes + in_page), MADV_WILLNEED); /* only a wish */
}

static void posix_forget(struct disk *d, const u8 *map, u64 bytes) {
    (void)d;
    CHECK(madvise((void *)(uintptr_t)map, (size_t)bytes, MADV_DONTNEED) == 0);
}

static void posix_unmap(struct disk *d, const u8 *map, u64 bytes) {
    (void)d;
    CHECK(munmap((void *)(uintptr_t)map, (size_t)bytes) == 0);
}

static void posix_random(struct disk *d, void *p, size_t n) {
    (void)d;
    random_bytes(p, n);
}

static void posix_destroy(struct disk *d) {
    struct posix_disk *p = of(d);
    posix_lock(d, false, NULL);
    if (p->dir >= 0) close(p->dir);
    mem_free(p->path);
    p->magic = 0;
    mem_free(p);
}

static const struct disk_ops posix_ops = {
    .open = posix_open_file,
    .close = posix_close_file,
    .pread = posix_pread,
    .pwrite = posix_pwrite,
    .sync = posix_sync,
    .allocate = posix_allocate,
    .rename = posix_rename,
    .unlink = posix_unlink,
    .list = posix_list,
    .sync_dir = posix_sync_dir,
    .free_bytes = posix_free_bytes,
    .lock = posix_lock,
    .map = posix_map,
    .forget = posix_forget,
    .bring = posix_bring,
    .unmap = posix_unmap,
    .random = posix_random,
    .destroy = posix_destroy,
};

/* A directory made just now must itself survive a power cut, or everything in it is lost with its name. */
static int sync_parent(int dir) {
    int parent = openat(dir, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (parent < 0) return errno == EACCES ? 0 : -errno;
    int rc = fsync(parent) == 0 ? 0 : -errno;
    close(parent);
    return rc;
}

static hx_st path_error(struct errbuf *err, const char *what, const char *path, int error) {
    hx_st st = error == EACCES || error == EPERM || error == EROFS ? ST_DENIED
               : error == ENOSPC || error == EDQUOT                ? ST_NO_SPACE
               : error == ENOENT                                   ? ST_NOT_FOUND
                                                                   : ST_IO;
    return err_set(err, st, "cannot %s the data directory %s: %s", what, path, strerror(error));
}

/* Whoever may write here can replace the journal, or read the secret that tokens hang on. */
static hx_st refuse_if_shared(const char *path, int dir, struct errbuf *err) {
    struct stat st;
    unsigned me = geteuid();
    if (fstat(dir, &st) != 0) return path_error(err, "look at", path, errno);
    if (st.st_uid != me)
        return err_set(err, ST_DENIED,
                       "%s belongs to user %u, and this process runs as user %u. Run it as the owner, or hand over the "
                       "directory with all that is in it: chown -R %u %s",
                       path, st.st_uid, me, me, path);
    if (st.st_mode & (S_IWGRP | S_IWOTH))
        return err_set(err, ST_DENIED, "others than its owner may write to %s (its mode is %04o): chmod go-w %s", path,
                       (unsigned)st.st_mode & 07777u, path);
    return ST_OK;
}

hx_st disk_posix_open(const char *path, bool create, struct disk **out, struct errbuf *err) {
    bool made = create && mkdir(path, 0700) == 0;
    if (create && !made && errno != EEXIST) return path_error(err, "create", path, errno);
    int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0) return path_error(err, "open", path, errno);
    int rc = made ? sync_parent(dir) : 0;
    hx_st st = rc ? path_error(err, "create", path, -rc) : create && !made ? refuse_if_shared(path, dir, err) : ST_OK;
    if (st != ST_OK) {
        close(dir);
        return st;
    }
    struct posix_disk *p = mem_zalloc(sizeof *p);
    size_t n = strlen(path) + 1;
    p->path = mem_alloc(n);
    memcpy(p->path, path, n);
    p->port = (struct disk){.ops = &posix_ops, .where = p->path};
    p->magic = POSIX_DISK_MAGIC;
    p->dir = dir;
    p->lock = -1;
    *out = &p->port;
    return ST_OK;
}
