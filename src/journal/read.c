#include "journal/file_priv.h"

#define FIRST_READ 1024u
#define SCAN_STEP  (1u << 20)
#define NO_PIN     UINT64_MAX

/* Only the loop sets the pin, and a read inside a scan nests. */
static u64 pin(struct journal_file *j, u64 number) {
    pthread_mutex_lock(&j->lock);
    u64 before = j->pin;
    if (number < j->pin) j->pin = number;
    pthread_mutex_unlock(&j->lock);
    return before;
}

static void unpin(struct journal_file *j, u64 before) {
    pthread_mutex_lock(&j->lock);
    j->pin = before;
    if (before == NO_PIN && j->drop_to > j->segments.at[0]->number) pthread_cond_signal(&j->groom_wake);
    pthread_mutex_unlock(&j->lock);
}

static bool holds(const struct batch *b, u64 pos) {
    return b && pos >= b->pos + BATCH_HEAD && pos < b->pos + b->len;
}

static struct batch *in_list(const struct batch_list *list, u64 pos) {
    for (struct batch *b = list->head; b; b = b->next)
        if (holds(b, pos)) return b;
    return NULL;
}

/* A batch with this position, while it is in memory. Only the loop reuses buffers, so it stays until the next append.
 */
static struct batch *in_memory(struct journal_file *j, u64 pos) {
    if (holds(j->open, pos)) return j->open;
    if (holds(j->found.unproven, pos)) return j->found.unproven;
    pthread_mutex_lock(&j->lock);
    struct batch *b = in_list(&j->queue, pos);
    if (!b && holds(j->in_flight, pos)) b = j->in_flight;
    if (!b) b = in_list(&j->idle, pos);
    pthread_mutex_unlock(&j->lock);
    return b;
}

static hx_st read_from_disk(struct journal_file *j, struct segment *s, u64 pos, size_t size_hint,
                            struct journal_record *out, struct errbuf *err) {
    u64 offset = offset_of(j, pos);
    size_t room = (size_t)(j->segment_bytes - offset);
    size_t first = size_hint ? format_record_bytes(size_hint) : FIRST_READ;
    if (first < RECORD_HEAD) first = RECORD_HEAD;
    if (first > room) first = room;
    const u8 *record = NULL;
    j->reader.segment = NULL; /* what it holds may have been written over since */
    hx_st st = first < RECORD_HEAD ? ST_OK : reader_get(j, &j->reader, s, offset, first, &record, err);
    if (st != ST_OK) return st;
    size_t bytes = record ? format_record_bytes(format_record_body(record)) : 0;
    if (bytes > first && bytes <= room) st = reader_get(j, &j->reader, s, offset, bytes, &record, err);
    if (st != ST_OK) return st;
    if (!record || !format_record_check(record, bytes > room ? 0 : bytes, s->salt, pos))
        return recover_damage(j, pos, err, "no valid record here");
    format_record_view(record, pos, out);
    return ST_OK;
}

/* The quick way. Whatever is not as it should be is left to the other one, which can say what is wrong. */
static bool read_mapped(struct journal_file *j, u64 pos, struct journal_record *out) {
    struct segment *s;
    u64 room;
    const u8 *record = map_record(j, pos, &s, &room);
    if (!record || room < RECORD_HEAD) return false;
    size_t bytes = format_record_bytes(format_record_body(record));
    if (bytes > room || !format_record_check(record, bytes, s->salt, pos)) return false;
    format_record_view(record, pos, out);
    out->lasting = true;
    return true;
}

hx_st read_record(struct journal *port, u64 pos, size_t size_hint, struct journal_record *out, struct errbuf *err) {
    struct journal_file *j = jf(port);
    bool durable = pos < atomic_load(&j->durable);
    if (durable && read_mapped(j, pos, out)) return ST_OK;
    struct batch *b = in_memory(j, pos);
    if (b) {
        const u8 *record = b->bytes + (pos - b->pos);
        if (get_u32(record + 12) != (u32)pos)
            return err_set(err, ST_INVALID, "position %llu is not a record's", (unsigned long long)pos);
        format_record_view(record, pos, out);
        return ST_OK;
    }
    u64 number = segment_of(j, pos), before = pin(j, number);
    pthread_mutex_lock(&j->lock);
    struct segment *s = segment_find(j, number);
    pthread_mutex_unlock(&j->lock);
    hx_st st = s && offset_of(j, pos) >= SEGMENT_HEAD
                   ? read_from_disk(j, s, pos, size_hint, out, err)
                   : err_set(err, ST_NOT_FOUND, "position %llu is not kept", (unsigned long long)pos);
    unpin(j, before);
    return st;
}

/* ---- scanning */

/* A batch that is closed but not yet on disk is copied: the committer may be done with it before `each` is. */
static bool copy_from_memory(struct journal_file *j, u64 pos) {
    bool found = false;
    pthread_mutex_lock(&j->lock);
    struct batch *b = in_list(&j->queue, pos + BATCH_HEAD);
    if (!b && holds(j->in_flight, pos + BATCH_HEAD)) b = j->in_flight;
    if (b && b->pos == pos) {
        buf_reset(&j->scan.copy);
        buf_add(&j->scan.copy, b->bytes, b->len);
        found = true;
    }
    pthread_mutex_unlock(&j->lock);
    return found;
}

static hx_st enter_batch(struct journal_file *j, struct segment *s, u64 pos, struct errbuf *err) {
    j->scan.batch_pos = pos;
    j->scan.copied = copy_from_memory(j, pos);
    if (j->scan.copied) {
        j->scan.batch_end = pos + j->scan.copy.len;
    } else {
        const u8 *bytes;
        struct batch_head head;
        if (pos >= j->scan.safe) { /* the window may be older than the batch */
            j->scan_reader.segment = NULL;
            j->scan.safe = atomic_load(&j->durable);
        }
        hx_st st = reader_get(j, &j->scan_reader, s, offset_of(j, pos), BATCH_HEAD, &bytes, err);
        if (st != ST_OK) return st;
        if (!bytes || !format_batch_get(bytes, &head, s->salt, pos) || head.length > s->end - pos)
            return recover_damage(j, pos, err, "no valid batch here");
        j->scan.batch_end = pos + head.length;
    }
    j->scan.next = pos + BATCH_HEAD;
    return ST_OK;
}

static hx_st scanned_record(struct journal_file *j, struct segment *s, struct journal_record *rec, size_t *bytes,
                            struct errbuf *err) {
    u64 pos = j->scan.next;
    size_t room = (size_t)(j->scan.batch_end - pos);
    const u8 *record;
    if (j->scan.copied) {
        record = (const u8 *)j->scan.copy.p + (pos - j->scan.batch_pos);
        *bytes = format_record_bytes(format_record_body(record));
    } else {
        hx_st st = reader_get(j, &j->scan_reader, s, offset_of(j, pos), RECORD_HEAD, &record, err);
        if (st != ST_OK) return st;
        size_t need = record ? format_record_bytes(format_record_body(record)) : 0;
        if (need && need <= room) st = reader_get(j, &j->scan_reader, s, offset_of(j, pos), need, &record, err);
        if (st != ST_OK) return st;
        *bytes = record && need <= room ? format_record_check(record, need, s->salt, pos) : 0;
        if (*bytes == 0) return recover_damage(j, pos, err, "no valid record here");
    }
    format_record_view(record, pos, rec);
    return ST_OK;
}

/* One segment, from the cursor to its end or until the budget is used up. */
static hx_st scan_segment(struct journal_file *j, struct segment *s, u64 *cursor, u64 until, size_t *budget,
                          journal_each each, void *ctx, struct errbuf *err) {
    hx_st st = ST_OK;
    while (st == ST_OK && *cursor < s->end && *cursor<until && * budget> 0) {
        bool inside = *cursor == j->scan.next && j->scan.next < j->scan.batch_end;
        if (!inside) st = enter_batch(j, s, *cursor, err);
        struct journal_record rec;
        size_t bytes = 0;
        if (st == ST_OK) st = scanned_record(j, s, &rec, &bytes, err);
        if (st == ST_OK) st = each(ctx, &rec, err);
        if (st != ST_OK) return st;
        j->scan.next += bytes;
        *cursor = j->scan.next;
        *budget -= bytes < *budget ? bytes : *budget;
    }
    if (*cursor >= s->end) *cursor = segment_base(j, s->number + 1);
    return st;
}

hx_st read_scan(struct journal *port, u64 *cursor, u64 until, size_t max_bytes, journal_each each, void *ctx,
                struct errbuf *err) {
    struct journal_file *j = jf(port);
    u64 sealed = segment_base(j, j->active->number);
    if (until > sealed) return err_set(err, ST_INVALID, "only sealed segments can be scanned");
    u64 before = pin(j, segment_of(j, *cursor));
    size_t budget = max_bytes ? max_bytes : 1;
    hx_st st = ST_OK;
    j->scan_reader.step = SCAN_STEP;
    if (*cursor != j->scan.next) { /* not where the last one stopped: what it read may be of a segment that is gone */
        j->scan_reader.segment = NULL;
        j->scan.safe = atomic_load(&j->durable);
    }
    while (st == ST_OK && *cursor < until && budget > 0) {
        if (offset_of(j, *cursor) == 0) *cursor += SEGMENT_HEAD;
        pthread_mutex_lock(&j->lock);
        struct segment *s = segment_find(j, segment_of(j, *cursor));
        pthread_mutex_unlock(&j->lock);
        if (!s)
            st = err_set(err, ST_NOT_FOUND, "position %llu is not kept", (unsigned long long)*cursor);
        else
            st = scan_segment(j, s, cursor, until, &budget, each, ctx, err);
    }
    unpin(j, before);
    return st;
}
