/* A disk that fails on purpose. It stands in front of the journal room's simulated disk and lets single operations fail
 * there. Only operations that change something are counted and hit: a broker that cannot read back what it stored ends
 * itself on the spot, which is right and leaves nothing to simulate. */
#include "sim.h"

#include <errno.h>

struct faults {
    struct disk port;
    struct disk *inner;
    enum fault_kind kind;
    u32 left;
    bool armed, fired;
};

static struct faults *of(struct disk *d) {
    return (struct faults *)d;
}

/* True if this operation must do nothing at all. */
static bool hit(struct faults *f, enum fault_kind kind) {
    if (f->fired) return f->kind == FAULT_DIE;
    if (!f->armed) return false;
    if (f->left > 0) {
        f->left--;
        return false;
    }
    if (f->kind != FAULT_DIE && f->kind != kind) return false;
    f->fired = true;
    if (f->kind == FAULT_DIE) return true;
    disk_sim_fail_at(f->inner, disk_sim_ops(f->inner), DISK_SIM_EIO, false);
    return false;
}

static int do_open(struct disk *d, const char *name, unsigned flags, struct disk_file **out) {
    struct faults *f = of(d);
    if ((flags & DISK_CREATE) && hit(f, FAULT_NONE)) return -EIO;
    return f->inner->ops->open(f->inner, name, flags, out);
}

static void do_close(struct disk *d, struct disk_file *file) {
    of(d)->inner->ops->close(of(d)->inner, file);
}

static i64 do_pread(struct disk *d, struct disk_file *file, void *p, size_t n, u64 offset) {
    return of(d)->inner->ops->pread(of(d)->inner, file, p, n, offset);
}

static i64 do_pwrite(struct disk *d, struct disk_file *file, const void *p, size_t n, u64 offset) {
    struct faults *f = of(d);
    if (hit(f, FAULT_WRITE)) return -EIO;
    return f->inner->ops->pwrite(f->inner, file, p, n, offset);
}

static int do_sync(struct disk *d, struct disk_file *file) {
    struct faults *f = of(d);
    if (hit(f, FAULT_SYNC)) return -EIO;
    return f->inner->ops->sync(f->inner, file);
}

static int do_allocate(struct disk *d, struct disk_file *file, u64 bytes) {
    struct faults *f = of(d);
    if (hit(f, FAULT_NONE)) return -EIO;
    return f->inner->ops->allocate(f->inner, file, bytes);
}

static int do_rename(struct disk *d, const char *from, const char *to) {
    struct faults *f = of(d);
    if (hit(f, FAULT_WRITE)) return -EIO;
    return f->inner->ops->rename(f->inner, from, to);
}

static int do_unlink(struct disk *d, const char *name) {
    struct faults *f = of(d);
    if (hit(f, FAULT_WRITE)) return -EIO;
    return f->inner->ops->unlink(f->inner, name);
}

static int do_list(struct disk *d, disk_each each, void *ctx) {
    return of(d)->inner->ops->list(of(d)->inner, each, ctx);
}

static int do_sync_dir(struct disk *d) {
    struct faults *f = of(d);
    if (hit(f, FAULT_SYNC)) return -EIO;
    return f->inner->ops->sync_dir(f->inner);
}

static u64 do_free_bytes(struct disk *d) {
    return of(d)->inner->ops->free_bytes(of(d)->inner);
}

static int do_lock(struct disk *d, bool on, i64 *holder) {
    return of(d)->inner->ops->lock(of(d)->inner, on, holder);
}

static void do_random(struct disk *d, void *p, size_t n) {
    of(d)->inner->ops->random(of(d)->inner, p, n);
}

static void do_destroy(struct disk *d) {
    disk_close(of(d)->inner);
    mem_free(of(d));
}

static const struct disk_ops ops = {
    .open = do_open,
    .close = do_close,
    .pread = do_pread,
    .pwrite = do_pwrite,
    .sync = do_sync,
    .allocate = do_allocate,
    .rename = do_rename,
    .unlink = do_unlink,
    .list = do_list,
    .sync_dir = do_sync_dir,
    .free_bytes = do_free_bytes,
    .lock = do_lock,
    .random = do_random,
    .destroy = do_destroy,
};

struct disk *faulty_disk_new(struct disk *inner, struct faults **out) {
    struct faults *f = mem_zalloc(sizeof *f);
    f->port = (struct disk){.ops = &ops, .where = "sim"};
    f->inner = inner;
    *out = f;
    return &f->port;
}

void fault_arm(struct faults *f, enum fault_kind kind, u32 after) {
    f->kind = kind;
    f->left = after;
    f->armed = true;
    f->fired = false;
}

bool fault_fired(const struct faults *f) {
    return f->fired;
}

void fault_clear(struct faults *f) {
    f->armed = f->fired = false;
    f->kind = FAULT_NONE;
}
