/* What a crash left behind.
 *
 * A segment's batches lie end to end from its start. Where they stop being part of the journal is said by the segment
 * that took over: the first batch there carries `prev_end`. What lies behind that in the older segment is a superseded
 * tail: bytes an earlier recovery did not trust and rewrote (start.c). So the journal is a chain, found backwards:
 *
 *      segment 7              segment 8 (empty)     segment 9
 *      [B40][B41][B42][torn   [torn B43             [B42][B43][B44][torn
 *                ^                                   prev_end
 *                +-----------------------------------+
 *
 * 1. The last segment whose first batch is valid altogether ends the chain. Its prev_end names the segment before it
 * and where that one ends, and so on back to the oldest one kept. Segments stepped over are superseded altogether.
 * 2. The last segment of the chain is walked until something is not a batch. That is the end of the journal, P.
 * 3. P must be a torn tail: batch N + 1 is written only after N is synced, so at most one batch is incomplete and
 * nothing follows it. It is damage instead if P lies below the mark, or if the header of any batch of this segment's
 * life stands anywhere behind P (at any 8-byte offset: the salt makes its first 8 bytes unique), or if a later segment
 *    holds a batch other than the one torn off. Headers are proof enough: writing one presumes all before it synced.
 * 4. Replay walks every link to its end exactly. Anything invalid on the way is damage.
 *
 * The last batch is *proven* if the mark reaches its end. Otherwise it may be only in the page cache, or worse, on
 * pages a failed sync has declared clean, and it is rewritten by start: at the beginning of the next segment, or, where
 * the disk has no room for that, in its old place. Since the core remembers positions, replay already reports its
 * records where they are going to be, so which of the two it is has to be settled before (start_find_room). */
#include "journal/file_priv.h"

#include <errno.h>
#include <stdlib.h>

#include "base/log.h"

#define WALK_STEP   (1u << 20)
#define PEEK_STEP   4096u
#define PROGRESS_MS 1000

void reader_free(struct reader *r) {
    mem_free(r->buf);
    *r = (struct reader){0};
}

static hx_st read_failed(struct journal_file *j, int rc, const char *what, const struct segment *s, u64 offset,
                         struct errbuf *err) {
    disk_error(err, j->disk, rc, what, s->name);
    return err_wrap(err, ST_IO, "at offset %llu", (unsigned long long)offset);
}

hx_st reader_get(struct journal_file *j, struct reader *r, struct segment *s, u64 offset, size_t n, const u8 **out,
                 struct errbuf *err) {
    *out = NULL;
    bool inside = r->segment == s && offset >= r->offset && offset + n <= r->offset + r->len;
    if (!inside) {
        size_t want = n > r->step ? n : r->step;
        if (want > j->segment_bytes - offset) want = (size_t)(j->segment_bytes - offset);
        if (r->cap < want) {
            r->buf = mem_realloc(r->buf, want);
            r->cap = want;
        }
        r->segment = NULL;
        struct disk_file *f;
        int rc = file_take(j, s, &f);
        if (rc) return read_failed(j, rc, "open", s, offset, err);
        i64 got = j->disk->ops->pread(j->disk, f, r->buf, want, offset);
        file_give(j, s);
        if (got < 0) return read_failed(j, (int)got, "read", s, offset, err);
        r->segment = s;
        r->offset = offset;
        r->len = (size_t)got;
    }
    *out = offset + n <= r->offset + r->len ? r->buf + (offset - r->offset) : NULL;
    return ST_OK;
}

hx_st recover_batch_at(struct journal_file *j, struct reader *r, struct segment *s, u64 pos, struct found_batch *out,
                       struct errbuf *err) {
    *out = (struct found_batch){0};
    u64 offset = offset_of(j, pos);
    const u8 *bytes;
    if (segment_of(j, pos) != s->number || offset + BATCH_HEAD > j->segment_bytes) return ST_OK;
    hx_st st = reader_get(j, r, s, offset, BATCH_HEAD, &bytes, err);
    if (st != ST_OK || !bytes) return st;
    out->head_ok = format_batch_get(bytes, &out->head, s->salt, pos);
    if (!out->head_ok || out->head.length > j->segment_bytes - offset) return ST_OK;
    st = reader_get(j, r, s, offset, (size_t)out->head.length, &bytes, err);
    if (st != ST_OK || !bytes) return st;
    out->bytes = bytes;
    out->whole = format_batch_check(bytes, &out->head, s->salt);
    return ST_OK;
}

hx_st recover_damage(struct journal_file *j, u64 pos, struct errbuf *err, const char *what) {
    char name[NAME_BYTES];
    segment_name(name, segment_of(j, pos));
    return err_set(err, ST_DAMAGED, "%s/%s at offset %llu: %s", j->disk->where, name,
                   (unsigned long long)offset_of(j, pos), what);
}

/* ---- finding the files */

struct listing {
    struct journal_file *j;
    u64 *numbers, *sizes;
    size_t count, cap;
};

static void leftover(struct journal_file *j, const char *name) {
    buf_add(&j->found.leftovers, name, strlen(name) + 1);
}

static void sort_in(void *ctx, const char *name, u64 bytes) {
    struct listing *l = ctx;
    struct journal_file *j = l->j;
    u64 number;
    u32 id;
    if (spare_name_parse(name, &id)) {
        if (bytes == j->segment_bytes)
            spare_add(j, id, bytes);
        else
            leftover(j, name);
        if (id >= j->spare_next) j->spare_next = id + 1;
    }
    if (!segment_name_parse(name, &number)) return;
    if (number < j->mark.first) {
        leftover(j, name);
        return;
    }
    if (l->count == l->cap) {
        l->cap = l->cap ? l->cap * 2 : 64;
        l->numbers = mem_realloc(l->numbers, l->cap * sizeof(u64));
        l->sizes = mem_realloc(l->sizes, l->cap * sizeof(u64));
    }
    size_t at = l->count++; /* insertion keeps them sorted; listings are nearly so */
    for (; at > 0 && l->numbers[at - 1] > number; at--) {
        l->numbers[at] = l->numbers[at - 1];
        l->sizes[at] = l->sizes[at - 1];
    }
    l->numbers[at] = number;
    l->sizes[at] = bytes;
}

static hx_st check_head(struct journal_file *j, const struct segment *s, const struct segment_head *h,
                        struct errbuf *err) {
    u64 at = segment_base(j, s->number);
    if (h->version > FORMAT_VERSION)
        return err_set(err, ST_VERSION, "%s/%s was written by a newer version (format %u, this one reads up to %u)",
                       j->disk->where, s->name, h->version, FORMAT_VERSION);
    if (h->owner != j->meta.owner) return recover_damage(j, at, err, "this segment belongs to another data directory");
    if (h->number != s->number) return recover_damage(j, at, err, "this file holds another segment than its name says");
    if (h->segment_bytes != j->segment_bytes)
        return recover_damage(j, at, err, "the segment size is not this journal's");
    return ST_OK;
}

/* A segment that was never announced by the mark may be half made: then *usable is false and it is a leftover. */
static hx_st open_segment(struct journal_file *j, struct segment *s, u64 bytes, bool *usable, struct errbuf *err) {
    bool announced = s->number <= j->mark.prepared;
    struct disk_file *f;
    int rc = file_take(j, s, &f);
    if (rc) return disk_error(err, j->disk, rc, "open", s->name);
    u8 bytes_head[SEGMENT_HEAD];
    i64 got = j->disk->ops->pread(j->disk, f, bytes_head, sizeof bytes_head, 0);
    file_give(j, s);
    if (got < 0) return disk_error(err, j->disk, (int)got, "read", s->name);
    struct segment_head head;
    bool valid = got == SEGMENT_HEAD && format_segment_get(bytes_head, &head);
    *usable = valid && bytes == j->segment_bytes;
    if (!*usable && !announced) return ST_OK;
    if (!valid) return recover_damage(j, segment_base(j, s->number), err, "the segment's head is not valid");
    if (bytes != j->segment_bytes)
        return recover_damage(j, segment_base(j, s->number) + (bytes < j->segment_bytes ? bytes : 0), err,
                              "the file does not have the length of a segment: it was cut or extended");
    s->salt = head.salt;
    return check_head(j, s, &head, err);
}

static hx_st add_segment(struct journal_file *j, u64 number, u64 bytes, struct errbuf *err) {
    struct segment *s = mem_zalloc(sizeof *s);
    bool usable = false;
    s->number = number;
    s->end = segment_start(j, number);
    segment_name(s->name, number);
    hx_st st = open_segment(j, s, bytes, &usable, err);
    if (st == ST_OK && usable) {
        segment_add(&j->segments, s);
        return ST_OK;
    }
    if (st == ST_OK) leftover(j, s->name);
    segment_free(j, s);
    return st;
}

static hx_st missing(struct journal_file *j, u64 number, struct errbuf *err) {
    return recover_damage(j, segment_base(j, number), err, "the file is missing, but the journal needs it");
}

static hx_st open_segments(struct journal_file *j, const struct listing *l, struct errbuf *err) {
    u64 next = j->mark.first;
    for (size_t i = 0; i < l->count; i++) {
        if (l->numbers[i] != next) return missing(j, next, err);
        size_t before = j->segments.count;
        hx_st st = add_segment(j, l->numbers[i], l->sizes[i], err);
        if (st != ST_OK) return st;
        if (j->segments.count == before && i + 1 < l->count)
            return recover_damage(j, segment_base(j, next), err, "the segment's head is not valid");
        next++;
    }
    return next <= j->mark.prepared || next == j->mark.first ? missing(j, next, err) : ST_OK;
}

static hx_st find_segments(struct journal_file *j, struct errbuf *err) {
    struct listing l = {.j = j};
    int rc = j->disk->ops->list(j->disk, sort_in, &l);
    hx_st st = rc ? disk_error(err, j->disk, rc, "list", ".") : open_segments(j, &l, err);
    mem_free(l.numbers);
    mem_free(l.sizes);
    return st;
}

/* ---- the chain */

static hx_st peek_first_batches(struct journal_file *j, struct errbuf *err) {
    struct reader r = {.step = PEEK_STEP};
    hx_st st = ST_OK;
    for (size_t i = 0; st == ST_OK && i < j->segments.count; i++) {
        struct segment *s = j->segments.at[i];
        struct found_batch b;
        st = recover_batch_at(j, &r, s, segment_start(j, s->number), &b, err);
        s->first_head = b.head_ok;
        s->first_whole = b.whole;
        s->first = b.head;
    }
    reader_free(&r);
    return st;
}

/* Link backwards from `s`, which is in the chain already. */
static hx_st link_back(struct journal_file *j, struct segment *s, struct errbuf *err) {
    for (;;) {
        s->linked = true;
        u64 start = segment_start(j, s->number), before = s->first.prev_end;
        if (!s->first_head) return recover_damage(j, start, err, "no batch here, but later ones exist");
        if (before == 0 || segment_of(j, before) < j->segments.at[0]->number) return ST_OK;
        struct segment *p = segment_find(j, segment_of(j, before));
        if (!p || p->number >= s->number)
            return recover_damage(j, start, err, "the batch names an impossible predecessor");
        p->end = before;
        s = p;
    }
}

/* ---- the end */

struct end {
    u64 pos, number; /* where the next batch would be, and its number (0: any) */
    u64 last_pos;    /* the last batch, 0 if there is none */
    u64 last_prev_end;
};

/* Walk the last link as far as it is valid. `e` starts at the segment's start. */
static hx_st walk_to_end(struct journal_file *j, struct reader *r, struct segment *s, struct end *e,
                         struct errbuf *err) {
    u64 prev_end = s->first.prev_end;
    for (;;) {
        struct found_batch b;
        hx_st st = recover_batch_at(j, r, s, e->pos, &b, err);
        if (st != ST_OK) return st;
        if (b.head_ok && ((e->number && b.head.number != e->number) || b.head.prev_end != prev_end))
            return recover_damage(j, e->pos, err, "a valid batch, but not the one that belongs here");
        if (!b.whole) {
            j->found.torn_bytes = b.head_ok ? b.head.length : 0;
            return ST_OK;
        }
        e->last_pos = e->pos;
        e->last_prev_end = prev_end;
        e->number = b.head.number + 1;
        e->pos += b.head.length;
        prev_end = e->pos;
    }
}

/* Is there a batch header in `s` at or behind this offset? */
static hx_st find_header(struct journal_file *j, struct reader *r, struct segment *s, u64 offset, u64 *at,
                         struct errbuf *err) {
    u64 magic = format_batch_magic(s->salt);
    *at = 0;
    while (offset + BATCH_HEAD <= j->segment_bytes) {
        size_t n = (size_t)(j->segment_bytes - offset);
        if (n > WALK_STEP) n = WALK_STEP;
        const u8 *bytes;
        hx_st st = reader_get(j, r, s, offset, n, &bytes, err);
        if (st != ST_OK || !bytes) return st;
        for (size_t i = 0; i + BATCH_HEAD <= n; i += 8) {
            struct batch_head h;
            u64 pos = segment_base(j, s->number) + offset + i;
            if (get_u64(bytes + i) != magic || !format_batch_get(bytes + i, &h, s->salt, pos)) continue;
            *at = pos;
            return ST_OK;
        }
        offset += n - BATCH_HEAD + 8; /* a header across two windows is seen whole in the second */
    }
    return ST_OK;
}

/* The one batch a crash may have torn off into a later segment: the next one, or the copy of the last one. */
static bool torn_off(const struct segment *s, const struct end *e) {
    if (e->last_pos == 0) return s->first.prev_end <= e->pos;
    bool next = s->first.number == e->number && s->first.prev_end == e->pos;
    bool copy = s->first.number == e->number - 1 && s->first.prev_end == e->last_prev_end;
    return next || copy;
}

static hx_st check_nothing_follows(struct journal_file *j, struct reader *r, struct segment *last, struct end *e,
                                   struct errbuf *err) {
    u64 at;
    hx_st st = find_header(j, r, last, offset_of(j, e->pos) + 8, &at, err);
    if (st != ST_OK) return st;
    if (at) return recover_damage(j, e->pos, err, "no valid batch here, but a later one follows in the same file");
    for (size_t i = 0; i < j->segments.count; i++) {
        struct segment *s = j->segments.at[i];
        u64 start = segment_start(j, s->number);
        if (s->number <= last->number) continue;
        if (s->first_head && !torn_off(s, e))
            return recover_damage(j, e->pos, err, "no valid batch here, but a later segment goes on");
        st = find_header(j, r, s, SEGMENT_HEAD + 8, &at, err);
        if (st != ST_OK) return st;
        if (at)
            return recover_damage(j, s->first_head ? start : e->pos, err,
                                  "no valid batch here, but a later one exists");
    }
    return ST_OK;
}

/* ---- the unproven last batch */

/* It waits in memory for start, moved to where it is going to be, so that replay can report it there. */
static hx_st take_last_batch(struct journal_file *j, struct reader *r, struct segment *last, const struct end *e,
                             struct errbuf *err) {
    struct found_batch f;
    hx_st st = recover_batch_at(j, r, last, e->last_pos, &f, err);
    if (st != ST_OK) return st;
    if (!f.whole) return recover_damage(j, e->last_pos, err, "the batch reads differently the second time");
    struct batch *b = batch_new();
    b->number = f.head.number;
    b->pos = j->found.in_place ? e->last_pos : segment_start(j, last->number + 1);
    b->prev_end = e->last_prev_end;
    b->records = f.head.records;
    batch_room(b, (size_t)f.head.length);
    memcpy(b->bytes, f.bytes, (size_t)f.head.length);
    b->len = (size_t)f.head.length;
    if (!j->found.in_place) format_batch_move(b->bytes, &f.head, b->pos);
    j->found.unproven = b;
    last->end = e->last_pos;
    return ST_OK;
}

static hx_st find_end(struct journal_file *j, struct reader *r, struct segment *last, struct errbuf *err) {
    struct end e = {.pos = segment_start(j, last->number)};
    hx_st st = walk_to_end(j, r, last, &e, err);
    if (st != ST_OK) return st;
    if (e.pos < j->mark.durable)
        return recover_damage(j, e.pos, err, "the journal ends here, but the mark says that more was durable");
    bool clean = j->mark.clean && e.pos == j->mark.durable;
    if (!clean) st = check_nothing_follows(j, r, last, &e, err);
    if (st != ST_OK) return st;
    last->end = e.pos;
    j->found.last = last;
    j->found.end = e.pos;
    j->found.next_number = e.number ? e.number : 1;
    j->found.clean = clean;
    if (clean || j->read_only) return ST_OK;
    st = start_find_room(j, err);
    bool proven = e.last_pos == 0 || j->mark.durable == e.pos;
    return st != ST_OK || proven ? st : take_last_batch(j, r, last, &e, err);
}

hx_st recover_open(struct journal_file *j, struct errbuf *err) {
    hx_st st = find_segments(j, err);
    if (st == ST_OK) st = peek_first_batches(j, err);
    if (st != ST_OK) return st;
    struct segment *last = NULL;
    for (size_t i = 0; i < j->segments.count; i++)
        if (j->segments.at[i]->first_whole) last = j->segments.at[i];
    if (last) st = link_back(j, last, err);
    if (st != ST_OK) return st;
    struct reader r = {.step = WALK_STEP};
    st = find_end(j, &r, last ? last : j->segments.at[0], err);
    reader_free(&r);
    return st;
}

/* ---- replay */

static hx_st deliver(const u8 *bytes, u64 pos, size_t length, journal_each each, void *ctx, struct errbuf *err) {
    for (size_t at = BATCH_HEAD; at < length;) {
        struct journal_record rec;
        format_record_view(bytes + at, pos + at, &rec);
        hx_st st = each(ctx, &rec, err);
        if (st != ST_OK) return st;
        at += format_record_bytes(rec.body.n);
    }
    return ST_OK;
}

struct walk {
    u64 number;   /* expected; 0: any */
    u64 prev_end; /* expected at a segment's first batch; 0: any */
    u64 bytes, done;
    i64 began_ms, said_ms;
};

static struct walk walk_begin(const struct journal_file *j) {
    struct walk w = {.began_ms = clock_mono_ms()};
    for (size_t i = 0; i < j->segments.count; i++)
        if (j->segments.at[i]->linked) w.bytes += offset_of(j, j->segments.at[i]->end);
    w.said_ms = w.began_ms;
    return w;
}

/* Whoever waits for a start that takes a while wants to know how long. */
static void say_progress(const struct journal_file *j, struct walk *w) {
    i64 now = clock_mono_ms();
    if (j->manual || now - w->said_ms < PROGRESS_MS) return;
    w->said_ms = now;
    u64 passed = (u64)(now - w->began_ms), left = w->bytes - w->done;
    log_event(LOG_INFO, "replay", "the journal is being replayed", LOG_EVERY,
              log_number("percent", (i64)(w->done * 100 / w->bytes)), log_number("bytes", (i64)w->bytes),
              log_number("mib_per_s", (i64)((w->done * 1000 / passed) >> 20)),
              log_number("left_s", (i64)(left / (w->done / passed + 1) / 1000)));
}

static hx_st replay_link(struct journal_file *j, struct reader *r, struct segment *s, struct walk *w, journal_each each,
                         void *ctx, struct errbuf *err) {
    u64 pos = segment_start(j, s->number);
    while (pos < s->end) {
        struct found_batch b;
        hx_st st = recover_batch_at(j, r, s, pos, &b, err);
        if (st != ST_OK) return st;
        if (!b.whole) return recover_damage(j, pos, err, "no valid batch here, but later ones exist");
        if ((w->number && b.head.number != w->number) || (w->prev_end && b.head.prev_end != w->prev_end) ||
            b.head.length > s->end - pos)
            return recover_damage(j, pos, err, "a valid batch, but not the one that belongs here");
        st = deliver(b.bytes, pos, (size_t)b.head.length, each, ctx, err);
        if (st != ST_OK) return st;
        pos += b.head.length;
        j->found.replayed_batches++;
        w->number = b.head.number + 1;
        w->prev_end = pos;
        w->done += b.head.length;
        say_progress(j, w);
    }
    return ST_OK;
}

hx_st recover_replay(struct journal *port, journal_each each, void *ctx, struct errbuf *err) {
    struct journal_file *j = jf(port);
    struct reader r = {.step = WALK_STEP};
    struct walk w = walk_begin(j);
    hx_st st = ST_OK;
    for (size_t i = 0; st == ST_OK && i < j->segments.count; i++)
        if (j->segments.at[i]->linked) st = replay_link(j, &r, j->segments.at[i], &w, each, ctx, err);
    reader_free(&r);
    const struct batch *b = j->found.unproven;
    if (st == ST_OK && b) st = deliver(b->bytes, b->pos, b->len, each, ctx, err);
    return st;
}
