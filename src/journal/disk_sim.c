/* The simulated disk.
 *
 * An inode has two contents: `now`, what a reader sees, and `kept`, what a power cut would leave. Between them stands
 * the list of its unsynced changes (writes and growth), oldest first; a sync applies and forgets them. The directory
 * has the same: names now, names kept, and the list of unsynced changes of names.
 *
 * A power cut builds the next `now` from `kept` and a choice of the pending changes: all, none, or by the seed each
 * sector and each name for itself. Real file systems keep more order than that; code that survives this survives them.
 *
 * A failed sync is modelled after what Linux does: part of the dirty pages reached the disk, all are called clean.
 * The bytes stay visible to readers and are gone after the next power cut, unless somebody writes them again. */
#include "journal/disk_sim.h"

#include <errno.h>
#include <stdlib.h>

#define NAME_BYTES 48
#define NEVER      UINT64_MAX
#define NAMES_MAX  1024

struct change { /* a write, or growth when data is NULL */
    struct change *next;
    u64 offset, bytes;
    u8 *data;
};

struct inode {
    u8 *now, *kept;
    u64 now_len, kept_len, cap; /* both arrays have cap bytes, zero past their length */
    struct change *pending, **pending_end;
    u32 refs; /* names, pending name changes and handles */
};

struct name {
    char text[NAME_BYTES];
    struct inode *inode;
};

struct names {
    struct name at[NAMES_MAX];
    size_t count;
};

struct name_change { /* `inode` gets the name `to` (if any) and loses the name `from` (if any) */
    struct name_change *next;
    char from[NAME_BYTES], to[NAME_BYTES];
    struct inode *inode;
};

struct disk_file {
    struct inode *inode;
    u64 life; /* handles of a process that crashed do nothing */
};

#define SIM_DISK_MAGIC 0x73696d64u

struct sim {
    struct disk port;
    u32 magic;
    struct rng rng, salts; /* what a crash keeps; what the journal asks for */
    u64 capacity, life, ops, stop_at, fail_at, failed_ops;
    enum disk_sim_fault fault;
    bool persistent, locked;
    struct names now, kept;
    struct name_change *pending, **pending_end;
};

static struct sim *of(struct disk *d) {
    struct sim *s = (struct sim *)d;
    CHECK(s && s->magic == SIM_DISK_MAGIC);
    return s;
}

static struct name *find(struct names *names, const char *text) {
    for (size_t i = 0; i < names->count; i++)
        if (strcmp(names->at[i].text, text) == 0) return &names->at[i];
    return NULL;
}

static void drop_changes(struct inode *inode) {
    while (inode->pending) {
        struct change *c = inode->pending;
        inode->pending = c->next;
        mem_free(c->data);
        mem_free(c);
    }
    inode->pending_end = &inode->pending;
}

static void unref(struct inode *inode) {
    if (--inode->refs > 0) return;
    drop_changes(inode);
    mem_free(inode->now);
    mem_free(inode->kept);
    mem_free(inode);
}

static void set_text(char out[NAME_BYTES], const char *text) {
    size_t n = strlen(text);
    CHECK(n < NAME_BYTES);
    memset(out, 0, NAME_BYTES);
    memcpy(out, text, n);
}

static void name_remove(struct names *names, const char *text, const struct inode *only) {
    struct name *n = find(names, text);
    if (!n || (only && n->inode != only)) return;
    unref(n->inode);
    *n = names->at[--names->count];
}

static void name_set(struct names *names, const char *text, struct inode *inode) {
    inode->refs++;
    name_remove(names, text, NULL);
    CHECK(names->count < NAMES_MAX);
    struct name *n = &names->at[names->count++];
    set_text(n->text, text);
    n->inode = inode;
}

static struct inode *inode_new(void) {
    struct inode *inode = mem_zalloc(sizeof *inode);
    inode->pending_end = &inode->pending;
    return inode;
}

static void make_cap(struct inode *inode, u64 bytes) {
    if (bytes <= inode->cap) return;
    inode->now = mem_realloc(inode->now, (size_t)bytes);
    inode->kept = mem_realloc(inode->kept, (size_t)bytes);
    memset(inode->now + inode->cap, 0, (size_t)(bytes - inode->cap));
    memset(inode->kept + inode->cap, 0, (size_t)(bytes - inode->cap));
    inode->cap = bytes;
}

static void pend(struct inode *inode, u64 offset, const void *data, u64 bytes) {
    struct change *c = mem_zalloc(sizeof *c);
    c->offset = offset;
    c->bytes = bytes;
    if (data) {
        c->data = mem_alloc((size_t)bytes);
        memcpy(c->data, data, (size_t)bytes);
    }
    *inode->pending_end = c;
    inode->pending_end = &c->next;
}

static void pend_name(struct sim *s, const char *from, const char *to, struct inode *inode) {
    struct name_change *c = mem_zalloc(sizeof *c);
    set_text(c->from, from);
    set_text(c->to, to);
    c->inode = inode;
    inode->refs++;
    *s->pending_end = c;
    s->pending_end = &c->next;
}

/* Keep `bytes` of a change from `offset` on. */
static void keep(struct inode *inode, const struct change *c, u64 offset, u64 bytes) {
    if (c->data) memcpy(inode->kept + offset, c->data + (offset - c->offset), (size_t)bytes);
    if (offset + bytes > inode->kept_len) inode->kept_len = offset + bytes;
}

static void keep_torn(struct sim *s, struct inode *inode, const struct change *c) {
    u64 mood = rng_below(&s->rng, 4); /* whole writes survive or vanish as often as they tear */
    u64 end = c->offset + c->bytes;
    for (u64 at = c->offset; at < end;) {
        u64 next = (at / DISK_SIM_SECTOR + 1) * DISK_SIM_SECTOR;
        if (next > end || !c->data) next = end;
        bool survives = mood == 0 ? false : mood == 1 ? true : rng_below(&s->rng, 2) == 0;
        if (survives) keep(inode, c, at, next - at);
        at = next;
    }
}

static void settle(struct sim *s, struct inode *inode, enum disk_sim_crash how) {
    for (struct change *c = inode->pending; c; c = c->next) {
        if (how == DISK_SIM_KEEP) keep(inode, c, c->offset, c->bytes);
        if (how == DISK_SIM_TEAR) keep_torn(s, inode, c);
    }
    drop_changes(inode);
}

/* A rename is atomic, and one that survives takes its file along from wherever a lost one had left it: there are no links here,
 * so a file never has two names. */
static void only_name(struct names *names, const char *text, struct inode *inode) {
    inode->refs++;
    for (size_t i = names->count; i-- > 0;)
        if (names->at[i].inode == inode) name_remove(names, names->at[i].text, inode);
    name_set(names, text, inode);
    unref(inode);
}

static void settle_names(struct sim *s, enum disk_sim_crash how) {
    while (s->pending) {
        struct name_change *c = s->pending;
        s->pending = c->next;
        bool survives = how == DISK_SIM_KEEP || (how == DISK_SIM_TEAR && rng_below(&s->rng, 2) == 0);
        if (survives && c->from[0]) name_remove(&s->kept, c->from, c->inode);
        if (survives && c->to[0]) only_name(&s->kept, c->to, c->inode);
        unref(c->inode);
        mem_free(c);
    }
    s->pending_end = &s->pending;
}

/* Counts an operation. 0: go on; else the error to return, with *half set if it is to be done by half instead. */
static int admit(struct sim *s, bool *half) {
    u64 op = s->ops++;
    if (op >= s->stop_at) return -EIO;
    if (op < s->fail_at || (op > s->fail_at && !s->persistent)) return 0;
    s->failed_ops++;
    if (s->fault == DISK_SIM_ENOSPC) return -ENOSPC;
    if (s->fault == DISK_SIM_EIO || !half) return -EIO;
    *half = true;
    return 0;
}

static u64 used(struct sim *s) {
    u64 sum = 0;
    for (size_t i = 0; i < s->now.count; i++) sum += s->now.at[i].inode->now_len;
    return sum;
}

static bool fits(struct sim *s, const struct inode *inode, u64 bytes) {
    return bytes <= inode->now_len || used(s) + (bytes - inode->now_len) <= s->capacity;
}

static int sim_open(struct disk *d, const char *name, unsigned flags, struct disk_file **out) {
    struct sim *s = of(d);
    int rc = admit(s, NULL);
    if (rc) return rc;
    struct name *n = find(&s->now, name);
    if (!n && !(flags & DISK_CREATE)) return -ENOENT;
    struct inode *inode = n ? n->inode : inode_new();
    if (!n) {
        name_set(&s->now, name, inode);
        pend_name(s, "", name, inode);
    }
    struct disk_file *f = mem_alloc(sizeof *f);
    *f = (struct disk_file){.inode = inode, .life = s->life};
    inode->refs++;
    *out = f;
    return 0;
}

static void sim_close(struct disk *d, struct disk_file *f) {
    (void)d;
    unref(f->inode);
    mem_free(f);
}

static i64 sim_pread(struct disk *d, struct disk_file *f, void *p, size_t n, u64 offset) {
    bool half = false;
    int rc = f->life == of(d)->life ? admit(of(d), &half) : -EIO;
    if (rc) return rc;
    if (half) return -EIO; /* the port promises short reads at the end of a file only */
    const struct inode *inode = f->inode;
    if (offset >= inode->now_len) return 0;
    if (n > inode->now_len - offset) n = (size_t)(inode->now_len - offset);
    memcpy(p, inode->now + offset, n);
    return (i64)n;
}

static i64 sim_pwrite(struct disk *d, struct disk_file *f, const void *p, size_t n, u64 offset) {
    bool half = false;
    int rc = f->life == of(d)->life ? admit(of(d), &half) : -EIO;
    if (rc) return rc;
    if (half) n /= 2;
    struct inode *inode = f->inode;
    if (!fits(of(d), inode, offset + n)) return -ENOSPC;
    make_cap(inode, offset + n);
    memcpy(inode->now + offset, p, n);
    if (offset + n > inode->now_len) inode->now_len = offset + n;
    if (n > 0) pend(inode, offset, p, n);
    return (i64)n;
}

static int sim_sync(struct disk *d, struct disk_file *f) {
    int rc = f->life == of(d)->life ? admit(of(d), NULL) : -EIO;
    if (rc && (f->life != of(d)->life || disk_sim_stopped(d))) return rc;
    settle(of(d), f->inode, rc ? DISK_SIM_TEAR : DISK_SIM_KEEP);
    return rc;
}

static int sim_allocate(struct disk *d, struct disk_file *f, u64 bytes) {
    int rc = f->life == of(d)->life ? admit(of(d), NULL) : -EIO;
    if (rc) return rc;
    struct inode *inode = f->inode;
    if (bytes <= inode->now_len) return 0;
    if (!fits(of(d), inode, bytes)) return -ENOSPC;
    make_cap(inode, bytes);
    pend(inode, inode->now_len, NULL, bytes - inode->now_len);
    inode->now_len = bytes;
    return 0;
}

static int sim_rename(struct disk *d, const char *from, const char *to) {
    struct sim *s = of(d);
    int rc = admit(s, NULL);
    if (rc) return rc;
    struct name *n = find(&s->now, from);
    if (!n) return -ENOENT;
    struct inode *inode = n->inode;
    pend_name(s, from, to, inode);
    name_set(&s->now, to, inode);
    name_remove(&s->now, from, inode);
    return 0;
}

static int sim_unlink(struct disk *d, const char *name) {
    struct sim *s = of(d);
    int rc = admit(s, NULL);
    if (rc) return rc;
    struct name *n = find(&s->now, name);
    if (!n) return -ENOENT;
    pend_name(s, name, "", n->inode);
    name_remove(&s->now, name, NULL);
    return 0;
}

static int by_text(const void *a, const void *b) {
    return strcmp(((const struct name *)a)->text, ((const struct name *)b)->text);
}

void disk_sim_each(struct disk *d, disk_each each, void *ctx) {
    struct names *names = &of(d)->now;
    qsort(names->at, names->count, sizeof names->at[0], by_text);
    for (size_t i = 0; i < names->count; i++) each(ctx, names->at[i].text, names->at[i].inode->now_len);
}

static int sim_list(struct disk *d, disk_each each, void *ctx) {
    int rc = admit(of(d), NULL);
    if (rc == 0) disk_sim_each(d, each, ctx);
    return rc;
}

static int sim_sync_dir(struct disk *d) {
    int rc = admit(of(d), NULL);
    if (rc && disk_sim_stopped(d)) return rc;
    settle_names(of(d), rc ? DISK_SIM_TEAR : DISK_SIM_KEEP);
    return rc;
}

static u64 sim_free_bytes(struct disk *d) {
    u64 taken = used(of(d));
    return taken < of(d)->capacity ? of(d)->capacity - taken : 0;
}

static int sim_lock(struct disk *d, bool on, i64 *holder) {
    struct sim *s = of(d);
    if (!on) {
        s->locked = false;
        return 0;
    }
    int rc = admit(s, NULL);
    if (rc) return rc;
    if (s->locked) {
        *holder = 0;
        return -EWOULDBLOCK;
    }
    s->locked = true;
    return 0;
}

static void sim_random(struct disk *d, void *p, size_t n) {
    for (size_t i = 0; i < n; i++) ((u8 *)p)[i] = (u8)rng_next(&of(d)->salts);
}

static void clear_names(struct names *names) {
    while (names->count > 0) unref(names->at[--names->count].inode);
}

static void sim_destroy(struct disk *d) {
    struct sim *s = of(d);
    settle_names(s, DISK_SIM_DROP);
    clear_names(&s->now);
    clear_names(&s->kept);
    s->magic = 0;
    mem_free(s);
}

static const struct disk_ops sim_ops = {
    .open = sim_open,
    .close = sim_close,
    .pread = sim_pread,
    .pwrite = sim_pwrite,
    .sync = sim_sync,
    .allocate = sim_allocate,
    .rename = sim_rename,
    .unlink = sim_unlink,
    .list = sim_list,
    .sync_dir = sim_sync_dir,
    .free_bytes = sim_free_bytes,
    .lock = sim_lock,
    .random = sim_random,
    .destroy = sim_destroy,
};

struct disk *disk_sim_new(u64 seed, u64 capacity_bytes) {
    struct sim *s = mem_zalloc(sizeof *s);
    s->port = (struct disk){.ops = &sim_ops, .where = "sim"};
    s->magic = SIM_DISK_MAGIC;
    rng_seed(&s->rng, seed);
    rng_seed(&s->salts, ~seed);
    s->capacity = capacity_bytes;
    s->stop_at = s->fail_at = NEVER;
    s->pending_end = &s->pending;
    return &s->port;
}

static void back_to_kept(struct inode *inode) {
    if (inode->cap > 0) memcpy(inode->now, inode->kept, (size_t)inode->cap);
    inode->now_len = inode->kept_len;
}

static void power_cut(struct sim *s, enum disk_sim_crash how) {
    for (size_t i = 0; i < s->now.count; i++) settle(s, s->now.at[i].inode, how);
    for (size_t i = 0; i < s->kept.count; i++) settle(s, s->kept.at[i].inode, how);
    settle_names(s, how);
    clear_names(&s->now);
    for (size_t i = 0; i < s->kept.count; i++) {
        settle(s, s->kept.at[i].inode, how);
        back_to_kept(s->kept.at[i].inode);
        name_set(&s->now, s->kept.at[i].text, s->kept.at[i].inode);
    }
}

void disk_sim_crash(struct disk *d, enum disk_sim_crash how) {
    struct sim *s = of(d);
    s->life++;
    s->locked = false;
    s->persistent = false;
    s->stop_at = s->fail_at = NEVER;
    if (how != DISK_SIM_KILL) power_cut(s, how);
}

u64 disk_sim_ops(struct disk *d) {
    return of(d)->ops;
}
void disk_sim_stop_at(struct disk *d, u64 op) {
    of(d)->stop_at = op;
}
bool disk_sim_stopped(struct disk *d) {
    return of(d)->ops > of(d)->stop_at;
}
u64 disk_sim_failed_ops(struct disk *d) {
    return of(d)->failed_ops;
}
void disk_sim_set_capacity(struct disk *d, u64 capacity_bytes) {
    of(d)->capacity = capacity_bytes;
}

void disk_sim_fail_at(struct disk *d, u64 op, enum disk_sim_fault fault, bool persistent) {
    struct sim *s = of(d);
    s->fail_at = op;
    s->fault = fault;
    s->persistent = persistent;
    s->failed_ops = 0;
}

bool disk_sim_get(struct disk *d, const char *name, struct buf *out) {
    struct name *n = find(&of(d)->now, name);
    if (!n) return false;
    buf_reset(out);
    buf_add(out, n->inode->now, (size_t)n->inode->now_len);
    return true;
}

void disk_sim_put(struct disk *d, const char *name, slice bytes) {
    struct sim *s = of(d);
    struct inode *inode = inode_new();
    make_cap(inode, bytes.n);
    if (bytes.n) memcpy(inode->now, bytes.p, bytes.n);
    if (bytes.n) memcpy(inode->kept, bytes.p, bytes.n);
    inode->now_len = inode->kept_len = bytes.n;
    name_set(&s->now, name, inode);
    name_set(&s->kept, name, inode);
}

void disk_sim_remove(struct disk *d, const char *name) {
    name_remove(&of(d)->now, name, NULL);
    name_remove(&of(d)->kept, name, NULL);
}

bool disk_sim_flip(struct disk *d, const char *name, u64 offset, u8 mask) {
    struct name *n = find(&of(d)->now, name);
    if (!n || offset >= n->inode->now_len) return false;
    n->inode->now[offset] ^= mask;
    n->inode->kept[offset] ^= mask;
    return true;
}
