/* The mark: a small file that remembers, off the commit path, how far the journal was durable and which segments it
 * needs. Two slots take turns, so that a torn write leaves the other one. */
#include "journal/file_priv.h"

#include <errno.h>

static const char *const mark_name = "mark";

int mark_write(struct journal_file *j, const struct mark *m) {
    struct mark next = *m;
    next.sequence = j->mark.sequence + 1;
    CHECK(next.durable >= j->mark.durable && next.first >= j->mark.first);
    u8 slot[MARK_BYTES];
    format_mark_put(slot, &next, j->meta.owner);
    u64 offset = next.sequence % 2 * MARK_SLOT_GAP;
    int rc = disk_write_all(j->disk, j->mark_file, slot, sizeof slot, offset);
    if (rc == 0) rc = j->disk->ops->sync(j->disk, j->mark_file);
    if (rc == 0) j->mark = next;
    return rc;
}

hx_st mark_load(struct journal_file *j, struct errbuf *err) {
    struct disk *d = j->disk;
    int rc = d->ops->open(d, mark_name, j->read_only ? 0 : DISK_WRITE, &j->mark_file);
    if (rc == -ENOENT) return err_set(err, ST_DAMAGED, "%s/%s is missing", d->where, mark_name);
    if (rc) return disk_error(err, d, rc, "open", mark_name);
    bool any = false;
    for (u64 slot = 0; slot < 2; slot++) {
        u8 bytes[MARK_BYTES];
        struct mark m;
        i64 got = d->ops->pread(d, j->mark_file, bytes, sizeof bytes, slot * MARK_SLOT_GAP);
        if (got < 0) return disk_error(err, d, (int)got, "read", mark_name);
        if (got != MARK_BYTES || !format_mark_get(bytes, &m, j->meta.owner)) continue;
        if (!any || m.sequence > j->mark.sequence) j->mark = m;
        any = true;
    }
    if (any) return ST_OK;
    return err_set(err, ST_DAMAGED, "%s/%s at offset 0: neither of its two slots is valid", d->where, mark_name);
}

int mark_create(struct journal_file *j, const struct mark *m) {
    struct disk *d = j->disk;
    u8 zeros[MARK_SLOT_GAP] = {0};
    int rc = d->ops->open(d, mark_name, DISK_CREATE | DISK_WRITE, &j->mark_file);
    if (rc == 0) rc = disk_write_all(d, j->mark_file, zeros, sizeof zeros, 0);
    if (rc == 0) rc = disk_write_all(d, j->mark_file, zeros, sizeof zeros, MARK_SLOT_GAP);
    if (rc == 0) rc = mark_write(j, m);
    if (rc == 0) rc = mark_write(j, m);
    return rc ? rc : d->ops->sync_dir(d);
}
