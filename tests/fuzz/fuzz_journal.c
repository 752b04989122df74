/* Hostile bytes as a data directory, on the simulated disk. The input is a list of edits to a small sound journal: raw
 * bytes anywhere in any file, and new checksums over them, so that not only the checksums are tried but everything they
 * guard. Whatever it is, opening, replaying, starting and verifying it must end in an answer, and a journal that starts
 * must take a record and give it back. */
#include "base/log.h"
#include "journal/disk_sim.h"
#include "journal/file.h"
#include "journal/format.h"

#define SEGMENT   4096u
#define CAPACITY  (1u << 20)
#define FILES_MAX 16

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct {
    char name[48];
    struct buf bytes;
} files[FILES_MAX];
static size_t file_count;

static hx_st ignore(void *ctx, const struct journal_record *rec, struct errbuf *err) {
    (void)err;
    *(u64 *)ctx += rec->body.n ? (u8)rec->body.p[rec->body.n - 1] : 1;
    return ST_OK;
}

static void append(struct journal *j, size_t n) {
    memset(journal_reserve(j, n), 'x', n);
    journal_append(j, 1, 1, n);
    journal_flush(j);
    while (journal_file_work(j)) {
    }
}

static void copy_file(void *ctx, const char *name, u64 bytes) {
    (void)bytes;
    CHECK(file_count < FILES_MAX && strlen(name) < sizeof files[0].name);
    memcpy(files[file_count].name, name, strlen(name) + 1);
    CHECK(disk_sim_get(ctx, name, &files[file_count++].bytes));
}

static void make_sound_journal(void) {
    struct disk *d = disk_sim_new(1, CAPACITY);
    struct journal *j;
    struct journal_file_options o = {.disk = d, .segment_bytes = SEGMENT, .manual = true};
    CHECK(journal_file_open(&o, &j, NULL) == ST_OK && journal_start(j, NULL) == ST_OK);
    for (size_t i = 0; i < 12; i++) append(j, 40 * i + 8);
    journal_close(j);
    disk_sim_each(d, copy_file, d);
    disk_close(d);
}

static u64 salt_of(const struct buf *b) {
    struct segment_head h;
    return b->len == SEGMENT && format_segment_get((const u8 *)b->p, &h) ? h.salt : 0;
}

static u64 base_of(const struct buf *b) {
    struct segment_head h;
    return b->len == SEGMENT && format_segment_get((const u8 *)b->p, &h) ? h.number * SEGMENT : 0;
}

/* Valid checksums over whatever is there now. */
static void seal(struct buf *b, size_t at, bool batch) {
    u64 salt = salt_of(b), pos = base_of(b) + at;
    u8 *p = (u8 *)b->p + at;
    if (batch && b->len - at >= BATCH_HEAD) {
        struct batch_head h = {.records = get_u32(p + 12),
                               .number = get_u64(p + 16),
                               .pos = pos,
                               .length = get_u64(p + 32),
                               .durable = get_u64(p + 40),
                               .prev_end = get_u64(p + 48)};
        format_batch_put(p, &h, salt);
    } else if (!batch && b->len - at >= RECORD_HEAD && format_record_bytes(format_record_body(p)) <= b->len - at) {
        put_u32(p + 12, (u32)pos);
        format_record_seal(p, salt, pos);
    }
}

/* An edit: file, what, offset (2), count, bytes. */
static void edit(struct buf now[FILES_MAX], const uint8_t *data, size_t size) {
    while (size >= 5) {
        struct buf *b = &now[data[0] % file_count];
        size_t at = b->len ? (size_t)get_u16(data + 2) % b->len & ~(size_t)(data[1] & 4 ? 7 : 0) : 0, n = data[4];
        u8 what = data[1] % 4;
        data += 5;
        size -= 5;
        if (n > size) n = size;
        if (what != 3 && n <= b->len - at) memcpy(b->p + at, data, n);
        if (what == 1 || what == 2) seal(b, at & ~(size_t)7, what == 1);
        if (what == 3) b->len = at;
        data += n;
        size -= n;
    }
}

static void exercise(struct disk *d) {
    struct errbuf err = {{0}};
    struct buf report = {0};
    struct journal *j;
    u64 sum = 0;
    journal_file_verify(d, &report, &err);
    buf_free(&report);
    struct journal_file_options o = {.disk = d, .manual = true};
    if (journal_file_open(&o, &j, &err) != ST_OK) {
        CHECK(err.text[0]);
        return;
    }
    if (journal_replay(j, ignore, &sum, &err) == ST_OK && journal_start(j, &err) == ST_OK) {
        struct journal_record rec;
        memset(journal_reserve(j, 100), 'y', 100);
        u64 pos = journal_append(j, 7, 1, 100);
        journal_flush(j);
        while (journal_file_work(j)) {
        }
        if (!journal_failed(j)) CHECK(journal_durable(j) > pos && journal_read(j, pos, 0, &rec, &err) == ST_OK);
    }
    journal_close(j);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (file_count == 0) make_sound_journal();
    log_set_level(LOG_ERROR);
    struct buf now[FILES_MAX] = {{0}};
    for (size_t i = 0; i < file_count; i++) buf_slice_add(&now[i], buf_slice(&files[i].bytes));
    edit(now, data, size);
    struct disk *d = disk_sim_new(2, CAPACITY);
    for (size_t i = 0; i < file_count; i++) disk_sim_put(d, files[i].name, buf_slice(&now[i]));
    exercise(d);
    disk_close(d);
    for (size_t i = 0; i < file_count; i++) buf_free(&now[i]);
    return 0;
}
