/* The loop's side: records go straight into the open batch, at positions known from the first byte on.
 *
 * At the end of a turn the open batch is offered. An idle committer takes it at once; a busy one takes it when its sync
 * ends, unless the loop has come back for it first, to add the next turn's records: then it is offered again. So
 * batches grow just as long as the disk is busy, and no timer decides anything. */
#include "journal/file_priv.h"

#include <errno.h>

#define IDLE_KEPT 3u /* synced batches that stay readable in memory */
#define IDLE_MAX  6u
#define TAIL_GAP  8u /* a batch never ends at a segment's very end: that position would name the next segment */

u64 append_tail(const struct journal_file *j) {
    return j->open && j->open->records ? j->open->pos + j->open->len : j->last_end;
}

static struct batch *take_buffer(struct journal_file *j) {
    struct batch *b = NULL, *surplus = NULL;
    pthread_mutex_lock(&j->lock);
    if (j->idle.count > IDLE_KEPT) b = batch_pop(&j->idle);
    if (j->idle.count > IDLE_MAX) surplus = batch_pop(&j->idle);
    pthread_mutex_unlock(&j->lock);
    if (surplus) batch_free(surplus);
    return b ? b : batch_new();
}

static void begin_batch(struct journal_file *j) {
    struct batch *b = take_buffer(j);
    b->number = j->next_number++;
    b->pos = j->next_pos;
    b->prev_end = b->number == 1 ? 0 : j->last_end;
    b->segment = j->active;
    b->records = 0;
    b->len = BATCH_HEAD;
    j->open = b;
}

static void note_closed(struct journal_file *j) {
    j->last_end = j->next_pos = j->open->pos + j->open->len;
    j->closed_bytes += j->open->len;
    j->open = NULL;
}

/* After a flush: the batch is ours again, or the committer has it. */
static void take_back(struct journal_file *j) {
    if (!j->open_offered) return;
    pthread_mutex_lock(&j->lock);
    bool ours = j->offered == j->open;
    j->offered = NULL;
    pthread_mutex_unlock(&j->lock);
    j->open_offered = false;
    if (!ours) note_closed(j);
}

static void close_open(struct journal_file *j) {
    pthread_mutex_lock(&j->lock);
    batch_push(&j->queue, j->open);
    pthread_mutex_unlock(&j->lock);
    pthread_cond_signal(&j->commit_wake);
    note_closed(j);
}

/* The segment after the active one; waits for the groomer where the loop has outrun it. NULL: there is none to be had.
 */
static struct segment *next_segment(struct journal_file *j) {
    struct segment *next;
    pthread_mutex_lock(&j->lock);
    j->starved = false;
    while (!(next = segment_find(j, j->active->number + 1)) && !j->starved && !file_failed(j)) {
        j->loop_waits = true;
        if (j->manual) {
            pthread_mutex_unlock(&j->lock);
            bool made = groom_prepare(j);
            pthread_mutex_lock(&j->lock);
            if (!made) break;
        } else {
            pthread_cond_signal(&j->groom_wake);
            pthread_cond_wait(&j->loop_wake, &j->lock);
        }
    }
    j->loop_waits = false;
    pthread_mutex_unlock(&j->lock);
    return next;
}

static bool leave_segment(struct journal_file *j) {
    if (j->open->records) close_open(j);
    struct segment *next = next_segment(j);
    if (!next) {
        file_fail(j, "append behind", j->active->name, offset_of(j, j->next_pos), -ENOSPC);
        return false;
    }
    pthread_mutex_lock(&j->lock);
    if (segment_of(j, j->last_end) == j->active->number) j->active->end = j->last_end;
    j->active = next;
    pthread_cond_signal(&j->groom_wake);
    pthread_mutex_unlock(&j->lock);
    j->next_pos = segment_start(j, next->number);
    if (j->open) {
        j->open->pos = j->next_pos;
        j->open->segment = next;
    }
    return true;
}

static bool fits_segment(const struct journal_file *j, size_t need) {
    return offset_of(j, j->open->pos) + j->open->len + need + TAIL_GAP <= j->segment_bytes;
}

/* Make the open batch one that `need` bytes can go into. False once the journal has failed. */
static bool place(struct journal_file *j, size_t need) {
    for (;;) {
        if (file_failed(j)) return false;
        if (!j->open) begin_batch(j);
        if (!fits_segment(j, need)) {
            if (!leave_segment(j)) return false;
        } else if (j->open->records && j->open->len + need > j->batch_limit) {
            close_open(j);
        } else {
            return true;
        }
    }
}

/* The journal has failed, and the caller learns it when his turn ends. Until then he decides by what he appended: each
 * record keeps a place of its own and can be read back, though none of it goes to disk any more. */
static void doom(struct journal_file *j) {
    if (!j->open) begin_batch(j);
}

void *append_reserve(struct journal *port, size_t body_max) {
    struct journal_file *j = jf(port);
    CHECK(j->started && body_max <= j->record_max);
    size_t need = format_record_bytes(body_max);
    take_back(j);
    if (!place(j, need)) doom(j);
    batch_room(j->open, need);
    j->reserved = body_max;
    return j->open->bytes + j->open->len + RECORD_HEAD;
}

u64 append_record(struct journal *port, u8 type, u8 version, size_t body) {
    struct journal_file *j = jf(port);
    struct batch *b = j->open;
    CHECK(b && !j->open_offered && body <= j->reserved);
    u64 pos = b->pos + b->len;
    format_record_put(b->bytes + b->len, type, version, body, pos);
    b->len += format_record_bytes(body);
    b->records++;
    j->reserved = 0;
    return pos;
}

void append_flush(struct journal *port) {
    struct journal_file *j = jf(port);
    if (!j->open || j->open->records == 0 || j->open_offered || file_failed(j)) return;
    pthread_mutex_lock(&j->lock);
    j->offered = j->open;
    pthread_mutex_unlock(&j->lock);
    pthread_cond_signal(&j->commit_wake); /* behind the lock, or whoever wakes finds it taken and sleeps once more */
    j->open_offered = true;
}

/* What a segment takes for certain, whatever the sizes of the records: all but its head and a tail too short for the
 * largest one. */
static u64 certain_bytes(const struct journal_file *j) {
    return j->segment_bytes - SEGMENT_HEAD - TAIL_GAP - j->record_slack;
}

u64 append_segments_wanted(const struct journal_file *j) {
    u64 each = certain_bytes(j), n = (j->want + each - 1) / each;
    return n ? n : 1;
}

/* Counts only what grooming will leave alone: spares beyond what is wanted may be given back at any moment. Under the
 * lock. */
static u64 room_now(const struct journal_file *j) {
    u64 at = j->open ? offset_of(j, j->open->pos) + j->open->len : offset_of(j, j->next_pos);
    u64 left = j->segment_bytes - TAIL_GAP - at;
    u64 newest = j->segments.at[j->segments.count - 1]->number;
    u64 ahead = newest - j->active->number + j->spare_count;
    u64 counted = append_segments_wanted(j) + SEGMENTS_SURPLUS;
    if (ahead < SEGMENTS_RESERVED) return 0;
    if (counted > ahead - SEGMENTS_RESERVED) counted = ahead - SEGMENTS_RESERVED;
    return counted * certain_bytes(j) + (left > j->record_slack ? left - j->record_slack : 0);
}

u64 append_room(struct journal *port) {
    struct journal_file *j = jf(port);
    if (!j->started || file_failed(j)) return 0;
    pthread_mutex_lock(&j->lock);
    u64 room = room_now(j);
    pthread_mutex_unlock(&j->lock);
    return room;
}

/* Too little room means that fewer segments are ahead than the wish asks for, whoever raised it. So unless the disk was
 * full a moment ago, the groomer has something to do, and ends it with a word to loop_wake: more room, or none to be
 * had. Looked at under the lock, or it could be done, and silent, between the look and the wait. */
bool append_need(struct journal *port, u64 bytes) {
    struct journal_file *j = jf(port);
    bool there = false, hope = j->started;
    pthread_mutex_lock(&j->lock);
    if (j->want < bytes) j->want = bytes; /* spares beyond the old wish count at once */
    while (hope && !file_failed(j) && !(there = room_now(j) >= bytes)) {
        hope = !groom_full_for_now(j);
        if (hope && j->manual) {
            pthread_mutex_unlock(&j->lock);
            hope = groom_step(j);
            pthread_mutex_lock(&j->lock);
        } else if (hope) {
            pthread_cond_signal(&j->groom_wake);
            pthread_cond_wait(&j->loop_wake, &j->lock);
        }
    }
    pthread_mutex_unlock(&j->lock);
    return there;
}
