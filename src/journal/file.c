/* The file adapter.
 *
 * A data directory is a few small files and a row of equally long segments:
 *
 *     lock   meta   mark   journal-0000000000000007.seg  journal-0000000000000008.seg  ...  spare-3.seg  spare-4.seg
 *
 * Segment n holds the positions from n * segment_bytes on, so a position is a file and an offset without any table. In
 * it, behind a head with a random salt, lie batches end to end, each a header and its records. A record never crosses a
 * segment; what does not fit goes to the next one, which is always there already, headed and synced.
 *
 * One batch is one write and one fdatasync. The committer does nothing else, and does not begin a batch before the one
 * before is synced: hence at the end of the journal at most one batch can be incomplete, and anything else that does
 * not check is damage. What a crash leaves behind, and how that is told apart, is in recover.c; how the tail is made
 * trustworthy again in start.c.
 *
 * Nothing is ever truncated, extended or overwritten in place except by appending (but for one case, after a crash on a
 * full disk, in start.c): bytes behind the end are remains of the file's former lives, which the salt tells from the
 * living. So a sync touches no metadata, and a recycled segment is exactly as good as a new one, only faster.
 *
 * The mark is written off the commit path: at most once a second, at every new segment, at close. It is never needed to
 * find the end; it is the witness against a journal that lost its end, its beginning, or a whole file.
 *
 * Whatever fails on the way to durability fails for good (file_fail). The one thing that may fail and be tried again is
 * to get more room, because that is asked for before anything is promised. */
#include "journal/file_priv.h"

#include <errno.h>

#include "base/log.h"

#define NO_PIN UINT64_MAX

void file_fail(struct journal_file *j, const char *what, const char *name, u64 offset, int error) {
    pthread_mutex_lock(&j->lock);
    bool first = !file_failed(j);
    if (first) {
        err_set(&j->failure, ST_IO, "cannot %s %s/%s at offset %llu: %s", what, j->disk->where, name,
                (unsigned long long)offset, strerror(-error));
        atomic_store(&j->failed, j->failure.text);
    }
    pthread_cond_broadcast(&j->commit_wake);
    pthread_cond_broadcast(&j->groom_wake);
    pthread_cond_broadcast(&j->loop_wake);
    pthread_mutex_unlock(&j->lock);
    if (first && j->wake && j->started) j->wake(j->wake_ctx);
}

static u64 file_durable(struct journal *port) {
    return atomic_load(&jf(port)->durable);
}

static const char *file_failure(struct journal *port) {
    return atomic_load(&jf(port)->failed);
}

static u64 file_oldest_end(struct journal *port) {
    struct journal_file *j = jf(port);
    if (j->dropped_to >= j->active->number) return 0;
    pthread_mutex_lock(&j->lock);
    u64 end = segment_find(j, j->dropped_to)->end;
    pthread_mutex_unlock(&j->lock);
    return end <= atomic_load(&j->durable) ? segment_base(j, j->dropped_to + 1) : 0;
}

static void file_drop(struct journal *port, u64 upto) {
    struct journal_file *j = jf(port);
    u64 number = segment_of(j, upto);
    if (number > j->active->number) number = j->active->number;
    if (number <= j->dropped_to) return;
    j->dropped_to = number;
    pthread_mutex_lock(&j->lock);
    j->drop_to = number;
    j->drop_after = append_tail(j);
    pthread_cond_signal(&j->groom_wake);
    pthread_mutex_unlock(&j->lock);
}

static void file_want(struct journal *port, u64 bytes) {
    struct journal_file *j = jf(port);
    pthread_mutex_lock(&j->lock);
    u64 before = append_segments_wanted(j);
    j->want = bytes;
    if (append_segments_wanted(j) != before || !j->asked) pthread_cond_signal(&j->groom_wake); /* not every turn */
    j->asked = true;
    if (j->manual) j->no_room = false;
    pthread_mutex_unlock(&j->lock);
    i64 now = clock_mono_ms();
    if (now - j->mapped_look_ms < MAP_LOOK_MS) return;
    j->mapped_look_ms = now;
    map_look(j);
}

static void file_stats(struct journal *port, struct journal_stats *out) {
    struct journal_file *j = jf(port);
    u64 tail = append_tail(j), durable = atomic_load(&j->durable);
    pthread_mutex_lock(&j->lock);
    u64 first = j->started ? j->dropped_to : j->segments.at[0]->number;
    *out = (struct journal_stats){
        .durable = durable,
        .tail = tail,
        .first = segment_start(j, first),
        .segment_bytes = j->segment_bytes,
        .segments = j->segments.count,
        .spares = j->spare_count,
        .dropping = first - j->segments.at[0]->number + j->recycling,
        .disk_bytes = (j->segments.count + j->spare_count) * j->segment_bytes + META_BYTES + 2ull * MARK_SLOT_GAP,
        .batches = j->batches,
        .synced_bytes = j->synced_bytes,
        .sync_us = j->sync_us,
        .batch_bytes = j->batch_bytes,
        .sync_us_max = j->sync_us_max,
    };
    pthread_mutex_unlock(&j->lock);
    out->used_bytes = tail > out->first ? tail - out->first : 0;
    u64 appended = j->closed_bytes + (j->open && j->open->records ? j->open->len : 0);
    out->unsynced_bytes = appended > out->synced_bytes ? appended - out->synced_bytes : 0;
}

/* ---- opening */

static hx_st load_meta(struct journal_file *j, bool *missing, struct errbuf *err) {
    struct disk *d = j->disk;
    struct disk_file *f;
    u8 bytes[META_BYTES];
    int rc = d->ops->open(d, "meta", 0, &f);
    *missing = rc == -ENOENT;
    if (*missing) return ST_OK;
    if (rc) return disk_error(err, d, rc, "open", "meta");
    i64 got = d->ops->pread(d, f, bytes, sizeof bytes, 0);
    d->ops->close(d, f);
    if (got < 0) return disk_error(err, d, (int)got, "read", "meta");
    if (got != META_BYTES || !format_meta_get(bytes, &j->meta))
        return err_set(err, ST_DAMAGED, "%s/meta at offset 0: not a valid meta file", d->where);
    if (j->meta.version > FORMAT_VERSION)
        return err_set(err, ST_VERSION, "%s was written by a newer version (format %u, this one reads up to %u)",
                       d->where, j->meta.version, FORMAT_VERSION);
    return ST_OK;
}

static bool segment_bytes_ok(u64 bytes) {
    return bytes >= 4096 && bytes <= 1ull << 30 && (bytes & (bytes - 1)) == 0;
}

static void set_limits(struct journal_file *j) {
    j->segment_bytes = j->meta.segment_bytes;
    j->record_max = j->segment_bytes >= SEGMENT_BYTES_MIN ? JOURNAL_RECORD_MAX : (size_t)(j->segment_bytes / 2 - 256);
    j->record_slack = journal_cost(j->record_max);
    j->batch_limit = (size_t)(j->segment_bytes / 4 < BATCH_BYTES_MAX ? j->segment_bytes / 4 : BATCH_BYTES_MAX);
}

static hx_st lock_directory(struct journal_file *j, struct errbuf *err) {
    i64 holder;
    int rc = j->disk->ops->lock(j->disk, true, &holder);
    j->locked = rc == 0;
    if (rc == 0) return ST_OK;
    if (rc != -EWOULDBLOCK) return disk_error(err, j->disk, rc, "lock", "lock");
    if (holder == 0) return err_set(err, ST_BUSY, "%s is in use by another process", j->disk->where);
    return err_set(err, ST_BUSY, "%s is in use by process %lld", j->disk->where, (long long)holder);
}

static hx_st open_directory(struct journal_file *j, const struct journal_file_options *o, struct errbuf *err) {
    if (o->segment_bytes && !segment_bytes_ok(o->segment_bytes))
        return err_set(err, ST_INVALID, "segment size %llu is not a power of two from 4 KiB to 1 GiB",
                       (unsigned long long)o->segment_bytes);
    if (!o->read_only) {
        hx_st st = lock_directory(j, err);
        if (st != ST_OK) return st;
    }
    bool missing;
    j->spare_next = 1; /* 0 is a creation's */
    hx_st st = load_meta(j, &missing, err);
    if (st == ST_OK && missing && o->read_only) {
        st = create_refuse_if_used(j, err);
        return st != ST_OK ? st
                           : err_set(err, ST_NOT_FOUND, "%s holds no journal: there is no meta file", j->disk->where);
    }
    if (st == ST_OK && missing)
        st = create_directory(j, o->segment_bytes, err);
    else if (st == ST_OK && !segment_bytes_ok(j->meta.segment_bytes))
        st = err_set(err, ST_DAMAGED, "%s/meta at offset 16: impossible segment size", j->disk->where);
    if (st != ST_OK) return st;
    set_limits(j);
    if (!missing) st = mark_load(j, err);
    return st == ST_OK ? recover_open(j, err) : st;
}

static void free_batches(struct batch_list *list) {
    for (struct batch *b; (b = batch_pop(list)) != NULL;) batch_free(b);
}

static void destroy(struct journal_file *j) {
    free_batches(&j->queue);
    free_batches(&j->idle);
    if (j->in_flight) batch_free(j->in_flight);
    if (j->open) batch_free(j->open);
    if (j->found.unproven) batch_free(j->found.unproven);
    for (size_t i = 0; i < j->segments.count; i++) segment_free(j, j->segments.at[i]);
    if (j->mark_file) j->disk->ops->close(j->disk, j->mark_file);
    if (j->locked) j->disk->ops->lock(j->disk, false, NULL);
    mem_free(j->segments.at);
    mem_free(j->open_segments);
    mem_free(j->spares);
    buf_free(&j->found.leftovers);
    reader_free(&j->reader);
    reader_free(&j->scan_reader);
    pthread_cond_destroy(&j->commit_wake);
    pthread_cond_destroy(&j->groom_wake);
    pthread_cond_destroy(&j->loop_wake);
    pthread_mutex_destroy(&j->lock);
    j->magic = 0;
    mem_free(j);
}

/* The mark of a clean end promises that nothing lies behind it in that file. Where the journal has moved on to another
 * segment without having written there, that cannot be said, and the next start does as after a crash. */
static void mark_clean_end(struct journal_file *j) {
    struct mark m = j->mark;
    m.durable = atomic_load(&j->durable);
    CHECK(m.durable == j->last_end);
    m.clean = segment_of(j, j->last_end) == j->active->number;
    int rc = mark_write(j, &m);
    /* Nothing is lost by that: the next start merely trusts the tail less. */
    if (rc)
        log_line(LOG_WARN, "mark_failed", "journal: cannot write %s/mark at close: %s", j->disk->where, strerror(-rc));
}

static void finish(struct journal_file *j) {
    append_flush(&j->port);
    while (j->manual && commit_step(j)) {
    }
    if (!j->manual) {
        pthread_mutex_lock(&j->lock);
        j->stopping = true;
        pthread_cond_broadcast(&j->commit_wake);
        pthread_cond_broadcast(&j->groom_wake);
        pthread_mutex_unlock(&j->lock);
        pthread_join(j->committer, NULL);
        pthread_join(j->groomer, NULL);
    }
    if (j->open_offered && j->offered != j->open) {
        j->last_end = j->open->pos + j->open->len;
        j->open = NULL;
    }
    if (!file_failed(j)) mark_clean_end(j);
}

static void file_close(struct journal *port) {
    struct journal_file *j = jf(port);
    if (j->started) finish(j);
    destroy(j);
}

static const struct journal_ops file_ops = {
    .replay = recover_replay,
    .start = start_appending,
    .reserve = append_reserve,
    .append = append_record,
    .flush = append_flush,
    .durable = file_durable,
    .failed = file_failure,
    .read = read_record,
    .scan = read_scan,
    .oldest_end = file_oldest_end,
    .drop = file_drop,
    .room = append_room,
    .prefetch = map_prefetch,
    .need = append_need,
    .want = file_want,
    .stats = file_stats,
    .close = file_close,
};

hx_st journal_file_open(const struct journal_file_options *o, struct journal **out, struct errbuf *err) {
    struct journal_file *j = mem_zalloc(sizeof *j);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&j->lock, NULL);
    pthread_cond_init(&j->commit_wake, NULL);
    pthread_cond_init(&j->loop_wake, NULL);
    pthread_cond_init(&j->groom_wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    j->port.ops = &file_ops;
    j->magic = JOURNAL_FILE_MAGIC;
    j->disk = o->disk;
    j->manual = o->manual;
    j->read_only = o->read_only;
    j->files_max = o->files_max ? o->files_max : FILES_DEFAULT;
    CHECK(j->files_max >= FILES_LEAST);
    j->open_segments = mem_zalloc(j->files_max * sizeof(struct segment *));
    j->wake = o->wake;
    j->wake_ctx = o->wake_ctx;
    j->pin = NO_PIN;
    hx_st st = open_directory(j, o, err);
    if (st != ST_OK) {
        destroy(j);
        return st;
    }
    *out = &j->port;
    return ST_OK;
}

bool journal_file_work(struct journal *port) {
    struct journal_file *j = jf(port);
    CHECK(j->manual && j->started);
    return commit_step(j) || groom_step(j);
}

void journal_file_secret(struct journal *port, u8 out[32]) {
    memcpy(out, jf(port)->meta.secret, 32);
}
