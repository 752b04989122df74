/* From recovered to running.
 *
 * After a clean close the journal goes on where it ended. After anything else it goes on in the next segment, with a
 * fresh salt, so that no torn byte of the former life can ever pass for a byte of the new one; and the last batch, if
 * it is not proven durable, is written there first. The order of steps is such that a crash between any two leaves a
 * directory that recovers to the same records:
 *
 *   1. the mark forgets the segments behind the end (they hold nothing that counts)
 *   2. those become spares, the last one first, so that never one is missing in the middle
 *   3. the next segment is headed and named; the mark knows it
 *   4. the unproven batch is written there and synced. Until this is whole, the old copy is the one that counts. */
#include "journal/file_priv.h"

#include <errno.h>

static hx_st failure(struct journal_file *j, hx_st st, struct errbuf *err) {
    const char *why = atomic_load(&j->failed);
    return err_set(err, st, "%s", why ? why : "the journal could not be started");
}

/* What interrupted drops and allocations left. Nothing in there is needed any more. */
static hx_st remove_leftovers(struct journal_file *j, struct errbuf *err) {
    const struct buf *names = &j->found.leftovers;
    for (size_t at = 0; at < names->len; at += strlen(names->p + at) + 1) {
        int rc = j->disk->ops->unlink(j->disk, names->p + at);
        if (rc) return disk_error(err, j->disk, rc, "remove", names->p + at);
    }
    int rc = names->len ? j->disk->ops->sync_dir(j->disk) : 0;
    return rc ? disk_error(err, j->disk, rc, "sync the directory", ".") : ST_OK;
}

/* Both slots: a mark that says "clean" must not outlive the first batch, not even if the newer slot is lost. */
static hx_st mark_running(struct journal_file *j, u64 prepared, struct errbuf *err) {
    struct mark m = j->mark;
    m.prepared = prepared;
    m.clean = false;
    int rc = mark_write(j, &m);
    if (rc == 0) rc = mark_write(j, &m);
    return rc ? disk_error(err, j->disk, rc, "write", "mark") : ST_OK;
}

static hx_st continue_in_place(struct journal_file *j, struct errbuf *err) {
    j->active = j->found.last;
    j->next_pos = j->last_end = j->found.end;
    atomic_store(&j->durable, j->found.end);
    return mark_running(j, j->segments.at[j->segments.count - 1]->number, err);
}

static hx_st retire_segments_behind(struct journal_file *j, u64 last, struct errbuf *err) {
    struct segment_list *list = &j->segments;
    while (list->at[list->count - 1]->number > last) {
        struct segment *s = list->at[list->count - 1];
        u32 id = j->spare_next;
        char name[NAME_BYTES];
        spare_name(name, id);
        int rc = j->disk->ops->rename(j->disk, s->name, name);
        if (rc == 0) rc = j->disk->ops->sync_dir(j->disk);
        if (rc) return disk_error(err, j->disk, rc, "rename", s->name);
        spare_add(j, id, j->segment_bytes);
        list->count--;
        segment_free(j, s);
    }
    return ST_OK;
}

static hx_st write_moved_batch(struct journal_file *j, struct errbuf *err) {
    struct batch *b = j->found.moved;
    j->found.moved = NULL;
    b->segment = j->active;
    batch_push(&j->queue, b);
    j->next_pos = j->last_end = b->pos + b->len;
    while (commit_step(j)) {
    }
    return file_failed(j) ? failure(j, ST_IO, err) : ST_OK;
}

static hx_st continue_afresh(struct journal_file *j, struct errbuf *err) {
    u64 last = j->found.last->number;
    atomic_store(&j->durable, j->mark.durable);
    hx_st st = mark_running(j, last, err);
    if (st == ST_OK) st = retire_segments_behind(j, last, err);
    if (st != ST_OK) return st;
    if (!groom_prepare(j)) {
        if (file_failed(j)) return failure(j, ST_IO, err);
        return err_set(err, ST_NO_SPACE, "%s: no room for another segment of %llu bytes", j->disk->where,
                       (unsigned long long)j->segment_bytes);
    }
    j->active = segment_find(j, last + 1);
    j->next_pos = segment_start(j, last + 1);
    j->last_end = j->found.end;
    if (j->found.moved) return write_moved_batch(j, err);
    atomic_store(&j->durable, j->found.end);
    return ST_OK;
}

static hx_st start_threads(struct journal_file *j, struct errbuf *err) {
    int rc = pthread_create(&j->committer, NULL, commit_thread, j);
    if (rc) return err_set(err, ST_IO, "cannot start the committer thread: %s", strerror(rc));
    rc = pthread_create(&j->groomer, NULL, groom_thread, j);
    if (rc == 0) return ST_OK;
    pthread_mutex_lock(&j->lock);
    j->stopping = true;
    pthread_cond_broadcast(&j->commit_wake);
    pthread_mutex_unlock(&j->lock);
    pthread_join(j->committer, NULL);
    return err_set(err, ST_IO, "cannot start the groomer thread: %s", strerror(rc));
}

hx_st start_appending(struct journal *port, struct errbuf *err) {
    struct journal_file *j = jf(port);
    CHECK(!j->started && !j->read_only);
    hx_st st = remove_leftovers(j, err);
    if (st == ST_OK) st = j->found.clean ? continue_in_place(j, err) : continue_afresh(j, err);
    if (st != ST_OK) return st;
    j->next_number = j->found.next_number;
    j->closed_bytes = j->synced_bytes;
    j->dropped_to = j->drop_to = j->segments.at[0]->number;
    j->mark_ms = clock_mono_ms();
    while (groom_step(j)) {
    }
    if (file_failed(j)) return failure(j, ST_IO, err);
    j->started = true;
    if (!j->manual) st = start_threads(j, err);
    if (st != ST_OK) j->started = false;
    return st;
}
