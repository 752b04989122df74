/* From recovered to running.
 *
 * After a clean close the journal goes on where it ended. After anything else it goes on in the next segment, with a
 * fresh salt, so that no torn byte of the former life can ever pass for a byte of the new one; and the last batch, if
 * it is not proven durable, is written there first. The order of steps is such that a crash between any two leaves a
 * directory that recovers to the same records:
 *
 *   0. room for one more segment is taken (before replay, which must know the positions): start.seg
 *   1. the mark forgets the segments behind the end (they hold nothing that counts)
 *   2. those become spares, the last one first, so that never one is missing in the middle; so does start.seg
 *   3. the next segment is headed and named; the mark knows it
 *   4. the unproven batch is written there and synced. Until this is whole, the old copy is the one that counts.
 *
 * A fresh segment costs the rest of the old one. All the room there was may be promised: to compaction, and to the
 * settlements of what was accepted (P8). So it is paid for with room nobody has counted yet, never with a spare: room
 * does not shrink by an unclean end, nor by any number of them. start.seg has a name of its own so that starts that
 * crash in their turn find it again instead of taking one more each.
 *
 * If the disk has no such room, the journal goes on in place, in the segment it ended in, with nothing but overwrites:
 *
 *   1. and 2. as above
 *   3. the unproven batch is written again, the same bytes at the same place
 *   4. zeros are written over everything behind it, to the segment's end
 *   5. the segment is synced. Only then the journal starts, and appends right behind the batch.
 *
 * Why that is safe, step by step. The disk writes sectors whole; what is in a sector after a power cut is what it held
 * before or what was being written.
 *
 *   Cut during 3: every sector of the batch holds the batch's bytes or what it held before. If the batch was durable,
 *   and perhaps answered for, these are the same: it stays whole. If it was not, it may turn out torn now and be cut by
 *   the next recovery; nobody was told of it, neither by the former life, which was still waiting for its sync, nor by
 *   this one, which has not started.
 *   Cut during 4: behind the batch lies the one the crash tore, if any, and now some of its sectors are zeros. Mostly
 *   it is still torn. Where just those sectors were missing whose content is zeros, it may have become whole; then the
 *   next recovery has it as its last batch, unproven. That is a record appended once and answered for by nobody: it may
 *   be there. It cannot be mixed with anything newer, because nothing newer has been written.
 *   Failed sync, in the former life or in 5: the kernel calls pages clean that never reached the disk, and shows bytes
 *   the disk does not have. Hence nothing is compared or skipped: everything from the unproven batch to the end of the
 *   segment is written, which makes it dirty again, and synced. If that fails, the start fails, and the next one does
 *   the same. (Everything before was synced with success, or the unproven batch would not have been begun.)
 *   Why zeros: the salt stays, and records are checked one by one. Left as it is, a record of the torn batch would be
 *   valid at its place; and if a later batch were torn by the next crash just there, and put a record of that length at
 *   that place, recovery would take the old record for the new one. After 5 there is nothing in the segment behind its
 *   end that could pass for anything.
 *
 * A crash after 5 and before the first append finds the same end again, and does the same again, as often as it
 * happens. Between lives of the two kinds the segments behind the end may hold a torn first batch or a torn copy of the
 * last one; being retired before anything is appended, they never come back with the same salt. */
#include "journal/file_priv.h"

#include <errno.h>
#include <stdio.h>

static const char *const start_name = "start.seg";

hx_st start_find_room(struct journal_file *j, struct errbuf *err) {
    char name[NAME_BYTES];
    size_t made;
    snprintf(name, sizeof name, "%s", start_name);
    int rc = spares_make(j, &name, 1, &made);
    if (rc && !disk_is_full(rc)) return disk_error(err, j->disk, rc, "preallocate", name);
    j->found.in_place = rc != 0;
    return ST_OK;
}

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

/* Spares were found by name and length. The process that made them may have died before it synced either, or the
 * directory been copied by something that leaves out zeros: they are made sure of, or not counted. */
static hx_st confirm_spares(struct journal_file *j, struct errbuf *err) {
    size_t kept = 0;
    for (size_t i = 0; i < j->spare_count; i++) {
        int rc = spare_confirm(j, j->spares[i].id);
        if (rc && !disk_is_full(rc)) return disk_error(err, j->disk, rc, "preallocate", "a spare segment");
        if (rc == 0) j->spares[kept++] = j->spares[i];
    }
    j->spare_count = kept;
    int rc = kept ? j->disk->ops->sync_dir(j->disk) : 0;
    return rc ? disk_error(err, j->disk, rc, "sync the directory", ".") : ST_OK;
}

/* Both slots: a mark that says "clean" must not outlive the first batch, not even if the newer slot is lost. And before
 * anything else: the mark that was read may be only in the page cache, and files it does not ask for are about to go. */
static hx_st mark_running(struct journal_file *j, struct errbuf *err) {
    struct mark m = j->mark;
    m.prepared = j->found.clean ? j->segments.at[j->segments.count - 1]->number : j->found.last->number;
    m.clean = false;
    int rc = mark_write(j, &m);
    if (rc == 0) rc = mark_write(j, &m);
    return rc ? disk_error(err, j->disk, rc, "write", "mark") : ST_OK;
}

static void go_on_at_end(struct journal_file *j) {
    j->active = j->found.last;
    j->active->end = j->next_pos = j->last_end = j->found.end;
    atomic_store(&j->durable, j->found.end);
}

static hx_st make_spare_of(struct journal_file *j, const char *from, u64 zeroed, struct errbuf *err) {
    char name[NAME_BYTES];
    spare_name(name, j->spare_next);
    int rc = j->disk->ops->rename(j->disk, from, name);
    if (rc == 0) rc = j->disk->ops->sync_dir(j->disk);
    if (rc) return disk_error(err, j->disk, rc, "rename", from);
    spare_add(j, j->spare_next, zeroed);
    return ST_OK;
}

static hx_st retire_segments_behind(struct journal_file *j, u64 last, struct errbuf *err) {
    struct segment_list *list = &j->segments;
    while (list->at[list->count - 1]->number > last) {
        struct segment *s = list->at[list->count - 1];
        hx_st st = make_spare_of(j, s->name, j->segment_bytes, err);
        if (st != ST_OK) return st;
        list->count--;
        segment_free(j, s);
    }
    return ST_OK;
}

static hx_st continue_in_place(struct journal_file *j, struct errbuf *err) {
    struct segment *last = j->found.last;
    struct batch *b = j->found.unproven;
    hx_st st = retire_segments_behind(j, last->number, err);
    if (st != ST_OK) return st;
    struct disk_file *f;
    int rc = file_take(j, last, &f);
    if (rc) return disk_error(err, j->disk, rc, "open", last->name);
    if (b) rc = disk_write_all(j->disk, f, b->bytes, b->len, offset_of(j, b->pos));
    if (rc == 0) rc = segment_zero(j, f, offset_of(j, j->found.end), j->segment_bytes);
    file_give(j, last);
    if (rc) return disk_error(err, j->disk, rc, "write and sync the end of", last->name);
    if (b) batch_free(b);
    j->found.unproven = NULL;
    go_on_at_end(j);
    return ST_OK;
}

static hx_st write_moved_batch(struct journal_file *j, struct errbuf *err) {
    struct batch *b = j->found.unproven;
    j->found.unproven = NULL;
    b->segment = j->active;
    batch_push(&j->queue, b);
    j->next_pos = j->last_end = b->pos + b->len;
    while (commit_step(j)) {
    }
    return file_failed(j) ? failure(j, ST_IO, err) : ST_OK;
}

static hx_st continue_afresh(struct journal_file *j, struct errbuf *err) {
    u64 last = j->found.last->number;
    hx_st st = retire_segments_behind(j, last, err);
    if (st == ST_OK) st = make_spare_of(j, start_name, 0, err);
    if (st != ST_OK) return st;
    if (!groom_prepare(j)) return failure(j, ST_IO, err);
    j->active = segment_find(j, last + 1);
    j->next_pos = segment_start(j, last + 1);
    j->last_end = j->found.end;
    if (j->found.unproven) return write_moved_batch(j, err);
    atomic_store(&j->durable, j->found.end);
    return ST_OK;
}

static hx_st go_on(struct journal_file *j, struct errbuf *err) {
    atomic_store(&j->durable, j->mark.durable);
    if (!j->found.clean) return j->found.in_place ? continue_in_place(j, err) : continue_afresh(j, err);
    go_on_at_end(j);
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
    hx_st st = mark_running(j, err);
    if (st == ST_OK) st = remove_leftovers(j, err);
    if (st == ST_OK) st = confirm_spares(j, err);
    if (st == ST_OK) st = go_on(j, err);
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
