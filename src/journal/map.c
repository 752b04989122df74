/* Durable records through memory.
 *
 * Every duplicate is checked against the original's bytes, every delivery and settlement reads the message back: a
 * system call each would be the largest part of their cost. So segments are mapped, and records that many look at are
 * read in place. The page cache is the cache; a mapping only borrows it.
 *
 * What is borrowed shows up as this process's resident memory, so it is kept to what is in use: a segment is looked at in
 * areas of 64 KiB (what one page fault maps at most). An area's first read goes through pread, its second makes it
 * resident; a few times a second, areas nobody has read since the last look are let go. So a pass over the journal leaves
 * nothing behind, and scattered single reads stay with pread, which is the cheaper way to look at a page once.
 *
 * A page that is not in memory at all costs a read of the disk, a hundred times a look-up, and the loop stands still for it.
 * What can be had is that such waits overlap: while reads miss (`cold`), records announced ahead are asked of it
 * all at once, and areas that are read one after the other are brought whole. While everything is in memory nobody asks. */
#include "journal/file_priv.h"

#define AREA_BITS      16u
#define PREFETCH_BYTES 512u /* at most: what comes after a large payload's start is fetched as it is read */
#define REST_AHEAD     4u   /* records */
#define BRING_MAX      (64u << 10)
#define AREAS_MAX      16384u /* 1 GiB, whatever is in use */

enum area { AREA_UNREAD, AREA_READ_ONCE, AREA_RESIDENT, AREA_IN_USE };

static size_t area_count(const struct journal_file *j) {
    return (size_t)(j->segment_bytes >> AREA_BITS) + 1;
}

/* Dropped segments are never known: the groomer may be freeing them at this moment. */
static struct segment *known_segment(struct journal_file *j, u64 number) {
    struct segment **slot = &j->known[number % SEGMENTS_KNOWN];
    if (number < j->dropped_to) return NULL;
    if (*slot && j->known_number[number % SEGMENTS_KNOWN] == number) return *slot;
    pthread_mutex_lock(&j->lock);
    *slot = segment_find(j, number);
    pthread_mutex_unlock(&j->lock);
    j->known_number[number % SEGMENTS_KNOWN] = number;
    return *slot;
}

static bool map_segment(struct journal_file *j, struct segment *s) {
    if (s->map) return true;
    if (s->areas || !j->disk->ops->map) return false; /* tried before */
    s->areas = mem_zalloc(area_count(j));
    struct disk_file *f;
    if (file_take(j, s, &f) != 0) return false; /* whoever reads it will say why */
    s->map = j->disk->ops->map(j->disk, f, j->segment_bytes);
    file_give(j, s);
    return s->map != NULL;
}

static void forget(struct journal_file *j, struct segment *s, size_t from, size_t to) {
    u64 start = (u64)from << AREA_BITS, end = (u64)to << AREA_BITS;
    if (end > j->segment_bytes) end = j->segment_bytes;
    if (start < end) j->disk->ops->forget(j->disk, s->map + start, end - start);
}

/* Areas below `keep` are let go, run by run; the others grow a step older. */
static void age(struct journal_file *j, struct segment *s, enum area keep) {
    size_t count = area_count(j), from = 0;
    for (size_t i = 0; i <= count; i++) {
        bool kept = i == count || s->areas[i] >= keep || s->areas[i] < AREA_RESIDENT;
        if (kept && from < i) forget(j, s, from, i);
        if (kept) from = i + 1;
        if (i == count) break;
        s->areas[i] = kept && s->areas[i] >= AREA_RESIDENT ? AREA_RESIDENT : AREA_UNREAD;
        j->mapped_areas += s->areas[i] == AREA_RESIDENT;
    }
}

static void age_all(struct journal_file *j, enum area keep) {
    j->mapped_areas = 0;
    pthread_mutex_lock(&j->lock);
    for (size_t i = 0; i < j->segments.count; i++) {
        struct segment *s = j->segments.at[i];
        if (s->map && s->number >= j->dropped_to) age(j, s, keep);
    }
    pthread_mutex_unlock(&j->lock);
}

static bool cold(const struct journal_file *j) {
    return j->disk->misses != j->misses_seen[1];
}

static void bring(struct journal_file *j, const struct segment *s, u64 offset, u64 bytes) {
    if (bytes > BRING_MAX) bytes = BRING_MAX;
    if (bytes > j->segment_bytes - offset) bytes = j->segment_bytes - offset;
    j->disk->ops->bring(j->disk, s->map + offset, bytes);
}

/* The rest of the next record that was announced. */
static void prefetch_rest(struct journal_file *j) {
    if (j->ahead.next == j->ahead.count) return;
    u32 i = j->ahead.next++;
    for (const u8 *p = j->ahead.rest[i]; p < j->ahead.end[i]; p += 64) near(p);
}

const u8 *map_record(struct journal_file *j, u64 pos, struct segment **segment, u64 *room) {
    if (!j->started || !j->disk->ops->map) return NULL;
    u64 number = segment_of(j, pos), offset = pos - segment_base(j, number); /* one division for both */
    struct segment *s = known_segment(j, number);
    if (!s || !map_segment(j, s)) return NULL;
    u8 *area = &s->areas[offset >> AREA_BITS];
    prefetch_rest(j);
    if (*area == AREA_UNREAD) {
        *area = AREA_READ_ONCE;
        return NULL;
    }
    if (*area == AREA_READ_ONCE) {
        if (j->mapped_areas >= AREAS_MAX) age_all(j, AREA_IN_USE + 1);
        j->mapped_areas++;
        if (cold(j) && offset >> AREA_BITS > 0 && area[-1] != AREA_UNREAD) /* somebody reads on and on */
            bring(j, s, offset >> AREA_BITS << AREA_BITS, 1u << AREA_BITS);
    }
    *area = AREA_IN_USE;
    *segment = s;
    *room = j->segment_bytes - offset;
    return s->map + offset;
}

/* Where a record is, if it is in memory. */
static const u8 *in_map(struct journal_file *j, u64 durable, u64 pos, u32 bytes) {
    if (pos >= durable) return NULL;
    u64 number = segment_of(j, pos), offset = pos - segment_base(j, number);
    struct segment *s = known_segment(j, number);
    if (!s || (!s->map && !(cold(j) && map_segment(j, s)))) return NULL;
    if (cold(j)) bring(j, s, offset, format_record_bytes(bytes));
    return s->areas[offset >> AREA_BITS] < AREA_RESIDENT ? NULL : s->map + offset;
}

/* Nearly each record is in a page of its own, whose address the processor has to look up in tables that are far away as well, and a
 * prefetch waits for that: close behind each other, such waits overlap. So their first lines are asked for together. With all the
 * others that would be more than can be on its way at a time, and what is too much is dropped: they follow as records are read. */
void map_prefetch(struct journal *port, const u64 *pos, const u32 *bytes, u32 count) {
    struct journal_file *j = jf(port);
    u64 durable = atomic_load_explicit(&j->durable, memory_order_relaxed);
    if (!j->started || !j->disk->ops->map) return;
    const u8 *first[PREFETCH_MAX];
    u32 n = 0;
    for (u32 i = 0; i < count && n < PREFETCH_MAX; i++) {
        first[n] = in_map(j, durable, pos[i], bytes[i]);
        if (!first[n]) continue;
        j->ahead.rest[n] = first[n] - (uintptr_t)first[n] % 64 + 64;
        j->ahead.end[n] = first[n] + (bytes[i] < PREFETCH_BYTES ? bytes[i] : PREFETCH_BYTES);
        n++;
    }
    for (u32 i = 0; i < n; i++) near(first[i]);
    j->ahead.next = 0;
    j->ahead.count = n;
    for (u32 i = 0; i < REST_AHEAD; i++) prefetch_rest(j);
}

void map_look(struct journal_file *j) {
    if (j->mapped_areas) age_all(j, AREA_IN_USE);
    j->misses_seen[1] = j->misses_seen[0];
    j->misses_seen[0] = j->disk->misses;
}
