/* The disk as the file adapter sees it: one flat directory of files. Two of them exist: the real one (disk_posix.c)
 * and a simulated one (disk_sim.c) that tears, loses and fails by a seed. Faults reach the adapter only through here.
 *
 * Every operation returns 0 (or a byte count) or a negative errno. What a power cut keeps is what POSIX promises and
 * no more: a file's bytes after `sync`, a name (created, renamed, unlinked) after `sync_dir`. */
#ifndef HAPAX_JOURNAL_DISK_H
#define HAPAX_JOURNAL_DISK_H

#include "base/base.h"

struct disk;
struct disk_file; /* an open file; each disk has its own kind */

#define DISK_CREATE 1u /* make the file if it is missing, for this user alone */
#define DISK_WRITE  2u

typedef void (*disk_each)(void *ctx, const char *name, u64 bytes);

struct disk_ops {
    int (*open)(struct disk *d, const char *name, unsigned flags, struct disk_file **out);
    void (*close)(struct disk *d, struct disk_file *f);
    i64 (*pread)(struct disk *d, struct disk_file *f, void *p, size_t n, u64 offset);        /* short only at the end */
    i64 (*pwrite)(struct disk *d, struct disk_file *f, const void *p, size_t n, u64 offset); /* may be short */
    int (*sync)(struct disk *d, struct disk_file *f);
    int (*allocate)(struct disk *d, struct disk_file *f, u64 bytes); /* the file is that long, and room is taken */
    int (*rename)(struct disk *d, const char *from, const char *to); /* replaces `to` in one step */
    int (*unlink)(struct disk *d, const char *name);
    int (*list)(struct disk *d, disk_each each, void *ctx);
    int (*sync_dir)(struct disk *d);
    u64 (*free_bytes)(struct disk *d);
    /* -EWOULDBLOCK: another process has it; *holder is its number, 0 if that is not known. */
    int (*lock)(struct disk *d, bool on, i64 *holder);
    /* The whole file as memory, kept in step with what is written; may be NULL: then reads go through pread. forget:
     * the pages need not stay resident. An unreadable page is SIGBUS: see disk_posix_watch_maps. */
    const u8 *(*map)(struct disk *d, struct disk_file *f, u64 bytes); /* NULL: not this time */
    void (*forget)(struct disk *d, const u8 *map, u64 bytes);
    void (*bring)(struct disk *d, const u8 *map, u64 bytes); /* read soon: begin to bring them, do not wait */
    void (*unmap)(struct disk *d, const u8 *map, u64 bytes);
    void (*random)(struct disk *d, void *p, size_t n); /* salts and secrets: the kernel's, or by the seed */
    void (*destroy)(struct disk *d);
};

struct disk {
    const struct disk_ops *ops;
    const char *where; /* the directory, for messages */
    u64 misses;        /* small reads that had to wait for the device, as far as that is known; the loop's */
};

static inline void disk_close(struct disk *d) {
    d->ops->destroy(d);
}

/* Opens a directory. create: for a journal that will be written to; made (0700) if it is missing, and refused if it is
 * somebody else's or others may write to it. Else it is only read, and ST_NOT_FOUND if it is missing. The caller owns
 * *out: disk_close(), after the journal on it is closed. */
hx_st disk_posix_open(const char *path, bool create, struct disk **out, struct errbuf *err);

/* True while another process has the directory locked: *holder is its number, 0 if that is not known. For whoever only
 * reads, and keeps no lock that a broker starting meanwhile would run into. */
bool disk_posix_in_use(struct disk *d, i64 *holder);

/* From here on an unreadable page of a mapped segment ends the process with its file and offset named, as a failed read
 * would. For the whole process, so for a program to call, not for the journal. */
void disk_posix_watch_maps(void);

/* The whole range or an error: a short write goes on where it stopped, and one that makes no progress is -EIO. */
int disk_write_all(struct disk *d, struct disk_file *f, const void *p, size_t n, u64 offset);

/* Turns a negative errno into a status and the sentence "cannot <what> <where>/<name>: <reason>". */
hx_st disk_error(struct errbuf *err, const struct disk *d, int error, const char *what, const char *name);

/* True for errors that mean "not now, there is no room", as opposed to "this disk is broken". */
bool disk_is_full(int error);

#endif
