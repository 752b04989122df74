/* A new data directory. The meta file comes last, renamed into place when everything else is durable: a directory
 * with a meta file must have all the rest, and one without has never held a batch. What an interrupted creation left
 * is therefore replaced; a directory that lost its meta file is refused, and so is a copy that was cut short before the
 * meta file: served as a new one it would call every key new. */
#include "journal/file_priv.h"

#include <errno.h>

struct survey {
    bool
        stranger; /* what no creation leaves, a segment or a spare other than the first: this directory has been in use */
    bool first, mark;
};

static void look_at(void *ctx, const char *name, u64 bytes) {
    (void)bytes;
    struct survey *v = ctx;
    u64 number;
    u32 spare;
    if (segment_name_parse(name, &number)) {
        v->first = v->first || number == 1;
        v->stranger = v->stranger || number != 1;
    }
    if (spare_name_parse(name, &spare) && spare != 0) v->stranger = true;
    if (strcmp(name, "start.seg") == 0) v->stranger = true;
    if (strcmp(name, "mark") == 0) v->mark = true;
}

/* Does the first segment begin with a batch? Its head alone tells how to read it. */
static int holds_batch(struct journal_file *j, bool *yes) {
    struct disk *d = j->disk;
    struct disk_file *f;
    char name[NAME_BYTES];
    segment_name(name, 1);
    int rc = d->ops->open(d, name, 0, &f);
    if (rc) return rc;
    u8 bytes[SEGMENT_HEAD + BATCH_HEAD];
    i64 got = d->ops->pread(d, f, bytes, sizeof bytes, 0);
    d->ops->close(d, f);
    struct segment_head head;
    struct batch_head batch;
    *yes = got == (i64)sizeof bytes && format_segment_get(bytes, &head) &&
           format_batch_get(bytes + SEGMENT_HEAD, &batch, head.salt, head.segment_bytes + SEGMENT_HEAD);
    return got < 0 ? (int)got : 0;
}

hx_st create_refuse_if_used(struct journal_file *j, struct errbuf *err) {
    struct survey v = {0};
    int rc = j->disk->ops->list(j->disk, look_at, &v);
    bool used = v.stranger || (v.mark && !v.first); /* a creation makes the segment before the mark */
    if (rc == 0 && v.first && !used) rc = holds_batch(j, &used);
    if (rc) return disk_error(err, j->disk, rc, "look into", ".");
    if (!used) return ST_OK;
    return err_set(err, ST_DAMAGED,
                   "%s/meta is missing, but other files of a journal are there: it was lost, or a copy was cut short. "
                   "Put the whole directory back",
                   j->disk->where);
}

static u64 choose_segment_bytes(struct journal_file *j) {
    u64 want = j->disk->ops->free_bytes(j->disk) / 16, bytes = SEGMENT_BYTES_MIN;
    while (bytes * 2 <= want && bytes < SEGMENT_BYTES_MAX) bytes *= 2;
    return bytes;
}

static int write_meta(struct journal_file *j) {
    struct disk *d = j->disk;
    struct disk_file *f;
    u8 bytes[META_BYTES];
    format_meta_put(bytes, &j->meta);
    int rc = d->ops->open(d, "meta.new", DISK_CREATE | DISK_WRITE, &f);
    if (rc) return rc;
    rc = disk_write_all(d, f, bytes, sizeof bytes, 0);
    if (rc == 0) rc = d->ops->sync(d, f);
    d->ops->close(d, f);
    if (rc == 0) rc = d->ops->sync_dir(d);
    if (rc == 0) rc = d->ops->rename(d, "meta.new", "meta");
    return rc ? rc : d->ops->sync_dir(d);
}

/* The first segment is written over once, so that its syncs are overwrites from the first batch on. */
static hx_st make_first_segment(struct journal_file *j, struct errbuf *err) {
    char name[NAME_BYTES];
    const char *what = "zero-fill";
    struct segment *s;
    size_t made;
    spare_name(name, 0);
    int rc = j->disk->ops->unlink(j->disk, name); /* an interrupted creation may have left one of another size */
    if (rc == 0 || rc == -ENOENT) rc = spares_make(j, &name, 1, &made);
    if (rc) return disk_error(err, j->disk, rc, "preallocate", name);
    rc = spare_zero(j, 0, 0, j->segment_bytes);
    if (rc == 0) rc = segment_make(j, name, 1, &s, &what);
    if (rc) return disk_error(err, j->disk, rc, what, name);
    segment_free(j, s);
    return ST_OK;
}

hx_st create_directory(struct journal_file *j, u64 segment_bytes, struct errbuf *err) {
    hx_st st = create_refuse_if_used(j, err);
    if (st != ST_OK) return st;
    j->meta = (struct meta){.version = FORMAT_VERSION, .created_ms = clock_wall_ms()};
    j->meta.segment_bytes = j->segment_bytes = segment_bytes ? segment_bytes : choose_segment_bytes(j);
    j->disk->ops->random(j->disk, &j->meta.owner, sizeof j->meta.owner);
    j->disk->ops->random(j->disk, j->meta.secret, sizeof j->meta.secret);

    st = make_first_segment(j, err);
    if (st != ST_OK) return st;
    struct mark m = {.durable = segment_start(j, 1), .first = 1, .prepared = 1, .clean = true};
    int rc = mark_create(j, &m);
    if (rc) return disk_error(err, j->disk, rc, "create", "mark");
    rc = write_meta(j);
    return rc ? disk_error(err, j->disk, rc, "create", "meta") : ST_OK;
}
