/* The committer: takes one batch, seals it (checksums are computed here, to keep them off the loop), writes it, syncs
 * it, announces it. The next one is not written before. A failure ends it for good: after a failed sync nobody knows
 * what is on the disk, and asking again would be answered with a lie (P7). */
#include "journal/file_priv.h"

struct batch *batch_new(void) {
    return mem_zalloc(sizeof(struct batch));
}

void batch_free(struct batch *b) {
    mem_free(b->bytes);
    mem_free(b);
}

void batch_room(struct batch *b, size_t more) {
    if (b->cap - b->len >= more && b->cap > 0) return;
    size_t cap = b->cap ? b->cap : 64u << 10;
    while (cap < b->len + more) cap *= 2;
    b->bytes = mem_realloc(b->bytes, cap);
    b->cap = cap;
}

void batch_push(struct batch_list *list, struct batch *b) {
    b->next = NULL;
    if (list->count == 0) list->end = &list->head;
    *list->end = b;
    list->end = &b->next;
    list->count++;
}

struct batch *batch_pop(struct batch_list *list) {
    struct batch *b = list->head;
    if (!b) return NULL;
    list->head = b->next;
    list->count--;
    b->next = NULL;
    return b;
}

/* Under the lock. Closed batches come before the offered one. */
static struct batch *take(struct journal_file *j) {
    if (atomic_load(&j->failed)) return NULL;
    struct batch *b = batch_pop(&j->queue);
    if (!b) {
        b = j->offered;
        j->offered = NULL;
    }
    j->in_flight = b;
    return b;
}

static void seal(struct journal_file *j, struct batch *b) {
    u64 salt = b->segment->salt;
    for (size_t at = BATCH_HEAD; at < b->len;) {
        format_record_seal(b->bytes + at, salt, b->pos + at);
        at += format_record_bytes(format_record_body(b->bytes + at));
    }
    struct batch_head head = {
        .number = b->number,
        .pos = b->pos,
        .length = b->len,
        .durable = atomic_load(&j->durable),
        .prev_end = b->prev_end,
        .records = b->records,
    };
    format_batch_put(b->bytes, &head, salt);
}

static bool write_batch(struct journal_file *j, struct batch *b) {
    CHECK(segment_of(j, b->pos + b->len) == b->segment->number && segment_of(j, b->pos) == b->segment->number);
    seal(j, b);
    u64 offset = offset_of(j, b->pos);
    int rc = file_take(j, b->segment, &b->file);
    if (rc) file_fail(j, "open", b->segment->name, offset, rc);
    if (rc) return false;
    rc = disk_write_all(j->disk, b->file, b->bytes, b->len, offset);
    if (rc) file_fail(j, "write", b->segment->name, offset, rc);
    return rc == 0;
}

static bool sync_batch(struct journal_file *j, struct batch *b, u64 *took_us) {
    i64 before = clock_mono_us();
    int rc = j->disk->ops->sync(j->disk, b->file);
    *took_us = (u64)(clock_mono_us() - before);
    file_give(j, b->segment);
    if (rc) file_fail(j, "sync", b->segment->name, offset_of(j, b->pos), rc);
    return rc == 0;
}

static void announce(struct journal_file *j, struct batch *b, u64 took_us) {
    u64 end = b->pos + b->len;
    atomic_store(&j->last_commit_ms, clock_mono_ms());
    pthread_mutex_lock(&j->lock);
    j->in_flight = NULL;
    batch_push(&j->idle, b);
    if (file_failed(j)) { /* the groomer met a failure meanwhile: nothing moves any more, not even this */
        pthread_mutex_unlock(&j->lock);
        return;
    }
    atomic_store(&j->durable, end);
    j->batches++;
    j->synced_bytes += b->len;
    hist_add(&j->sync_us, hist_us, took_us);
    hist_add(&j->batch_bytes, hist_bytes, b->len);
    if (took_us > j->sync_us_max) j->sync_us_max = took_us;
    if (offset_of(j, b->pos) == SEGMENT_HEAD) j->seal_mark = true;
    bool drop_ready = j->drop_to > j->segments.at[0]->number && end >= j->drop_after;
    if (j->groom_asleep || j->seal_mark || drop_ready) pthread_cond_signal(&j->groom_wake);
    pthread_mutex_unlock(&j->lock);
    if (j->wake && j->started) j->wake(j->wake_ctx);
}

bool commit_step(struct journal_file *j) {
    u64 took_us;
    if (file_failed(j)) return false;
    if (j->in_flight && j->written) {
        j->written = false;
        if (sync_batch(j, j->in_flight, &took_us)) announce(j, j->in_flight, took_us);
        return true;
    }
    pthread_mutex_lock(&j->lock);
    struct batch *b = take(j);
    pthread_mutex_unlock(&j->lock);
    if (!b) return false;
    j->written = write_batch(j, b);
    return true;
}

void *commit_thread(void *journal) {
    struct journal_file *j = jf(journal);
    for (;;) {
        u64 took_us;
        pthread_mutex_lock(&j->lock);
        struct batch *b = take(j);
        while (!b && !j->stopping && !file_failed(j)) {
            pthread_cond_wait(&j->commit_wake, &j->lock);
            b = take(j);
        }
        pthread_mutex_unlock(&j->lock);
        if (!b || !write_batch(j, b) || !sync_batch(j, b, &took_us)) return NULL;
        announce(j, b, took_us);
    }
}
