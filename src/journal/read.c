#include "journal/file_priv.h"

#define FIRST_READ 1024u
#define SCAN_STEP  (256u << 10)
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

/* The record that begins there, NULL: none does. Its own head says where it is, under a checksum nobody outside can make. */
static hx_st record_at(struct journal_file *j, struct segment *s, u64 pos, const u8 **record, size_t *bytes,
                       struct errbuf *err) {
    u64 offset = offset_of(j, pos);
    size_t room = (size_t)(s->end > pos ? s->end - pos : 0);
    *record = NULL;
    if (offset < SEGMENT_HEAD || room < RECORD_HEAD) return ST_OK;
    const u8 *head;
    j->scan_reader.step =
        room < SCAN_STEP ? room : SCAN_STEP; /* what was never written is not in memory, and looks cold */
    hx_st st = reader_get(j, &j->scan_reader, s, offset, RECORD_HEAD, &head, err);
    if (st != ST_OK || !head || get_u32(head + 12) != (u32)pos) return st;
    *bytes = format_record_bytes(format_record_body(head));
    if (*bytes > room) return ST_OK;
    st = reader_get(j, &j->scan_reader, s, offset, *bytes, &head, err);
    if (st == ST_OK && head && format_record_check(head, *bytes, s->salt, pos)) *record = head;
    return st;
}

/* All that begin in one stretch. */
static hx_st scan_stretch(struct journal_file *j, struct segment *s, u64 from, const struct journal_wanted *wanted,
                          struct errbuf *err) {
    bool found = false;
    for (u64 pos = from; pos < from + wanted->stretch; pos += 8) {
        const u8 *record;
        size_t bytes;
        hx_st st = record_at(j, s, pos, &record, &bytes, err);
        if (st == ST_OK && record) {
            struct journal_record rec;
            format_record_view(record, pos, &rec);
            found = true;
            st = wanted->each(wanted->ctx, &rec, err);
        }
        if (st != ST_OK) return st;
    }
    return found ? ST_OK : recover_damage(j, from, err, "no valid record here");
}

static hx_st scan_wanted(struct journal_file *j, u64 *cursor, u64 until, size_t max_bytes,
                         const struct journal_wanted *wanted, struct errbuf *err) {
    hx_st st = ST_OK;
    for (u64 began = *cursor; st == ST_OK && *cursor < until && *cursor - began < max_bytes;) {
        u64 from = wanted->next(wanted->ctx, *cursor);
        if (from >= until) {
            *cursor = until;
            break;
        }
        pthread_mutex_lock(&j->lock);
        struct segment *s = segment_find(j, segment_of(j, from));
        pthread_mutex_unlock(&j->lock);
        st = s ? scan_stretch(j, s, from, wanted, err)
               : err_set(err, ST_NOT_FOUND, "position %llu is not kept", (unsigned long long)from);
        *cursor = from + wanted->stretch;
    }
    return st;
}

hx_st read_scan(struct journal *port, u64 *cursor, u64 until, size_t max_bytes, const struct journal_wanted *wanted,
                struct errbuf *err) {
    struct journal_file *j = jf(port);
    if (until > journal_oldest_end(port))
        return err_set(err, ST_INVALID, "only the oldest sealed segment can be scanned");
    u64 before = pin(j, segment_of(j, *cursor));
    bool goes_on = *cursor == j->scanned_to && offset_of(j, *cursor) != 0;
    if (!goes_on) j->scan_reader.segment = NULL; /* the segment it read may be gone */
    hx_st st = scan_wanted(j, cursor, until, max_bytes ? max_bytes : 1, wanted, err);
    j->scanned_to = *cursor;
    unpin(j, before);
    return st;
}
