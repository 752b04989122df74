/* Damage of every kind, on the simulated disk. Only two outcomes are allowed: the right records, or a refusal that
 * names the file. Wrong or missing records without a word: never. */
#include "unit/journal_util.h"

#include "journal/format.h"

#define SEGMENT   (16ull << 10)
#define MOST      3000u
#define CAPACITY  (4ull << 20)
#define FILES_MAX 64

struct copy {
    char name[48];
    struct buf bytes;
};

struct files {
    struct copy at[FILES_MAX];
    size_t count;
};

struct bench {
    struct disk *disk;
    struct model m;
    struct replayed r;
    struct errbuf err;
    struct files files;
};

static int setup(void **state) {
    struct bench *b = mem_zalloc(sizeof *b);
    b->disk = disk_sim_new(42, CAPACITY);
    b->r.m = &b->m;
    b->r.most = MOST;
    *state = b;
    return 0;
}

static void files_free(struct files *f) {
    for (size_t i = 0; i < f->count; i++) buf_free(&f->at[i].bytes);
    f->count = 0;
}

static int teardown(void **state) {
    struct bench *b = *state;
    files_free(&b->files);
    disk_close(b->disk);
    mem_free(b);
    return 0;
}

static hx_st bring_up(struct bench *b, bool read_only, struct journal **out) {
    struct journal_file_options o = {.disk = b->disk, .segment_bytes = SEGMENT, .manual = true, .read_only = read_only};
    struct journal *j;
    b->r.any = b->r.wrong = false;
    b->r.last_pos = 0;
    b->err.text[0] = 0;
    hx_st st = journal_file_open(&o, &j, &b->err);
    if (st != ST_OK) return st;
    st = journal_replay(j, replay_one, &b->r, &b->err);
    if (st == ST_OK && !read_only) st = journal_start(j, &b->err);
    if (st != ST_OK)
        journal_close(j);
    else
        *out = j;
    return st;
}

static struct journal *must_bring_up(struct bench *b) {
    struct journal *j;
    if (bring_up(b, false, &j) != ST_OK) fail_msg("%s", b->err.text);
    return j;
}

static void append_synced(struct bench *b, struct journal *j, u64 n) {
    while (n-- > 0) {
        model_append(&b->m, j, MOST);
        if (n % 3 == 0) journal_flush(j);
        if (n % 3 == 0) work_all(j);
    }
    assert_null(journal_failed(j));
    model_note_durable(&b->m, j);
}

static void copy_one(void *ctx, const char *name, u64 bytes) {
    (void)bytes;
    struct bench *b = ctx;
    assert_true(b->files.count < FILES_MAX);
    struct copy *c = &b->files.at[b->files.count++];
    snprintf(c->name, sizeof c->name, "%s", name);
}

static void copy_files(struct bench *b) {
    files_free(&b->files);
    memset(&b->files, 0, sizeof b->files);
    disk_sim_each(b->disk, copy_one, b);
    for (size_t i = 0; i < b->files.count; i++)
        assert_true(disk_sim_get(b->disk, b->files.at[i].name, &b->files.at[i].bytes));
}

static void put_back(struct bench *b, size_t i) {
    disk_sim_put(b->disk, b->files.at[i].name, buf_slice(&b->files.at[i].bytes));
}

/* The verdict on a directory that may be damaged. `at_least`: a run to here or a refusal. */
static void right_or_refused(struct bench *b, u64 at_least, const char *how, const char *name, u64 offset) {
    struct journal *j;
    hx_st st = bring_up(b, true, &j);
    if (st == ST_OK) {
        journal_close(j);
        if (!replay_is_right(&b->r, &b->m, at_least))
            fail_msg("%s %s at %d: silently wrong: %d..%d of %d", how, name, (int)offset, (int)b->r.first,
                     (int)b->r.next, (int)b->m.end);
        return;
    }
    if (b->r.wrong) fail_msg("%s %s at %d: wrong records before the refusal", how, name, (int)offset);
    if (st != ST_DAMAGED && st != ST_VERSION && st != ST_NOT_FOUND)
        fail_msg("%s %s at %d: %s: %s", how, name, (int)offset, status_text(st), b->err.text);
    bool named = strstr(b->err.text, "journal-") || strstr(b->err.text, "mark") || strstr(b->err.text, "meta");
    if (!named) fail_msg("%s %s at %d: refused without a name: %s", how, name, (int)offset, b->err.text);
}

/* Six segments, the first ones dropped, some recycled; closed cleanly. */
static void make_journal(struct bench *b) {
    struct journal *j = must_bring_up(b);
    for (int round = 0; round < 6; round++) {
        append_synced(b, j, 60);
        if (round == 2 || round == 4) model_drop_oldest(&b->m, j);
        work_all(j);
    }
    journal_close(j);
    b->m.acked = b->m.end;
}

static void flip_everywhere(struct bench *b, u64 at_least, u64 every) {
    for (size_t i = 0; i < b->files.count; i++) {
        const struct copy *c = &b->files.at[i];
        for (u64 offset = i % every; offset < c->bytes.len; offset += offset < 300 ? 1 : every) {
            u8 mask = (u8)(1u << offset % 8);
            assert_true(disk_sim_flip(b->disk, c->name, offset, mask));
            right_or_refused(b, at_least, "bit flip in", c->name, offset);
            disk_sim_flip(b->disk, c->name, offset, mask);
        }
    }
}

static void a_flipped_bit_is_harmless_or_refused(void **state) {
    struct bench *b = *state;
    make_journal(b);
    copy_files(b);
    assert_true(b->files.count > 8);
    flip_everywhere(b, b->m.end, 11);
}

/* The position in the newest valid slot of the mark. */
static u64 marked(struct bench *b) {
    struct buf bytes = {0};
    struct meta meta;
    struct mark a = {0}, c = {0};
    assert_true(disk_sim_get(b->disk, "meta", &bytes) && format_meta_get((u8 *)bytes.p, &meta));
    assert_true(disk_sim_get(b->disk, "mark", &bytes));
    format_mark_get((u8 *)bytes.p, &a, meta.owner);
    format_mark_get((u8 *)bytes.p + MARK_SLOT_GAP, &c, meta.owner);
    buf_free(&bytes);
    return a.sequence > c.sequence ? a.durable : c.durable;
}

/* Without the clean close the last batch is not proven: only that one may be cut for a torn tail. */
static void a_flipped_bit_after_a_crash_costs_at_most_the_unproven_batch(void **state) {
    struct bench *b = *state;
    make_journal(b);
    struct journal *j = must_bring_up(b);
    do append_synced(b, j, 3);
    while (marked(b) >= b->m.pos[b->m.end - 19]); /* six batches that only their successors prove */
    u64 proven = b->m.end;
    append_synced(b, j, 3);
    disk_sim_stop_at(b->disk, 0);
    journal_close(j);
    disk_sim_crash(b->disk, DISK_SIM_DROP);
    copy_files(b);
    flip_everywhere(b, proven, 17);
}

static void a_cut_file_is_refused(void **state) {
    struct bench *b = *state;
    make_journal(b);
    copy_files(b);
    for (size_t i = 0; i < b->files.count; i++) {
        const struct copy *c = &b->files.at[i];
        for (u64 len = 0; len < c->bytes.len; len += len < 130 ? 1 : 509) {
            disk_sim_put(b->disk, c->name, slice_of(c->bytes.p, (size_t)len));
            right_or_refused(b, b->m.end, "cut of", c->name, len);
        }
        put_back(b, i);
    }
}

static void a_missing_file_is_refused_or_not_needed(void **state) {
    struct bench *b = *state;
    make_journal(b);
    copy_files(b);
    for (size_t i = 0; i < b->files.count; i++) {
        disk_sim_remove(b->disk, b->files.at[i].name);
        right_or_refused(b, b->m.end, "loss of", b->files.at[i].name, 0);
        put_back(b, i);
    }
}

static void two_swapped_files_are_refused(void **state) {
    struct bench *b = *state;
    make_journal(b);
    copy_files(b);
    for (size_t i = 0; i < b->files.count; i++) {
        for (size_t k = i + 1; k < b->files.count; k++) {
            disk_sim_put(b->disk, b->files.at[i].name, buf_slice(&b->files.at[k].bytes));
            disk_sim_put(b->disk, b->files.at[k].name, buf_slice(&b->files.at[i].bytes));
            right_or_refused(b, b->m.end, "swap of", b->files.at[i].name, 0);
            put_back(b, i);
            put_back(b, k);
        }
    }
}

/* Pieces of 512 bytes exchanged inside a file and between files. */
static void swapped_sectors_are_harmless_or_refused(void **state) {
    struct bench *b = *state;
    make_journal(b);
    copy_files(b);
    struct rng rng;
    rng_seed(&rng, 5);
    for (int round = 0; round < 2000; round++) {
        size_t i = rng_below(&rng, b->files.count), k = rng_below(&rng, b->files.count);
        struct buf *from = &b->files.at[i].bytes, *to = &b->files.at[k].bytes, bytes = {0};
        if (from->len < SEGMENT || to->len < SEGMENT) continue;
        u64 source = rng_below(&rng, from->len / 512) * 512, target = rng_below(&rng, to->len / 512) * 512;
        buf_slice_add(&bytes, buf_slice(to));
        memcpy(bytes.p + target, from->p + source, 512);
        disk_sim_put(b->disk, b->files.at[k].name, buf_slice(&bytes));
        right_or_refused(b, b->m.end, "sector copied into", b->files.at[k].name, target);
        put_back(b, k);
        buf_free(&bytes);
    }
}

/* One file as it was at an earlier time, everything else as it is. */
static void an_old_copy_of_one_file_is_harmless_or_refused(void **state) {
    struct bench *b = *state;
    make_journal(b);
    for (int round = 0; round < 8; round++) {
        copy_files(b);
        struct journal *j = must_bring_up(b);
        append_synced(b, j, 25);
        if (round % 3 == 1) model_drop_oldest(&b->m, j);
        append_synced(b, j, 25);
        journal_close(j);
        b->m.acked = b->m.end;
        for (size_t i = 0; i < b->files.count; i++) {
            struct buf now = {0};
            bool there = disk_sim_get(b->disk, b->files.at[i].name, &now);
            put_back(b, i);
            right_or_refused(b, b->m.end, "old copy of", b->files.at[i].name, 0);
            if (there)
                disk_sim_put(b->disk, b->files.at[i].name, buf_slice(&now));
            else
                disk_sim_remove(b->disk, b->files.at[i].name);
            buf_free(&now);
        }
    }
}

static void a_segment_of_another_directory_is_refused(void **state) {
    struct bench *b = *state, *other = NULL;
    make_journal(b);
    setup((void **)&other);
    disk_close(other->disk);
    other->disk = disk_sim_new(43, CAPACITY);
    make_journal(other);
    copy_files(b);
    copy_files(other);
    for (size_t i = 0; i < b->files.count; i++) {
        struct buf foreign = {0};
        if (strcmp(b->files.at[i].name, "meta") == 0) continue;
        if (!disk_sim_get(other->disk, b->files.at[i].name, &foreign)) continue;
        disk_sim_put(b->disk, b->files.at[i].name, buf_slice(&foreign));
        right_or_refused(b, b->m.end, "foreign", b->files.at[i].name, 0);
        put_back(b, i);
        buf_free(&foreign);
    }
    teardown((void **)&other);
}

static void a_directory_of_a_newer_version_is_refused_in_words(void **state) {
    struct bench *b = *state;
    struct journal *j;
    make_journal(b);
    struct buf bytes = {0};
    struct meta meta;
    assert_true(disk_sim_get(b->disk, "meta", &bytes));
    assert_true(format_meta_get((u8 *)bytes.p, &meta));
    meta.version++;
    format_meta_put((u8 *)bytes.p, &meta);
    disk_sim_put(b->disk, "meta", buf_slice(&bytes));
    assert_int_equal(bring_up(b, false, &j), ST_VERSION);
    assert_non_null(strstr(b->err.text, "newer version"));
    buf_free(&bytes);
}

static void a_lost_meta_file_is_not_taken_for_a_new_directory(void **state) {
    struct bench *b = *state;
    struct journal *j = must_bring_up(b);
    append_synced(b, j, 5);
    journal_close(j);
    disk_sim_remove(b->disk, "meta");
    assert_int_equal(bring_up(b, false, &j), ST_DAMAGED);
    assert_non_null(strstr(b->err.text, "meta"));
}

/* Whichever file a copy began with. The lock alone says nothing: a start makes it first. */
static void a_copy_cut_short_is_not_taken_for_a_new_directory(void **state) {
    struct bench *b = *state;
    make_journal(b);
    copy_files(b);
    u32 others = 0;
    for (size_t i = 0; i < b->files.count; i++) {
        if (strcmp(b->files.at[i].name, "lock") == 0) continue;
        for (size_t k = 0; k < b->files.count; k++) disk_sim_remove(b->disk, b->files.at[k].name);
        put_back(b, i);
        struct journal *j = NULL;
        if (bring_up(b, false, &j) != ST_DAMAGED) fail_msg("%s alone is taken for a new one", b->files.at[i].name);
        others += strncmp(b->files.at[i].name, "journal-", 8) != 0;
    }
    assert_in_range(others, 3, FILES_MAX); /* meta, mark, and spares */
}

/* Equal records make batches of a former life lie exactly where new ones would. */
static void bytes_of_a_recycled_segment_never_pass(void **state) {
    struct bench *b = *state;
    struct journal *j = must_bring_up(b);
    struct errbuf err = {0};
    u64 appended = 0, dropped_to = 0;
    for (int round = 0; round < 2000; round++) {
        u8 *p = journal_reserve(j, 100);
        memset(p, 0, 100);
        put_u64(p, appended++);
        journal_append(j, 1, 1, 100);
        journal_flush(j);
        work_all(j);
        struct journal_stats stats;
        journal_stats_get(j, &stats);
        if (stats.tail - stats.first > 3 * SEGMENT) {
            dropped_to = journal_oldest_end(j);
            journal_drop(j, dropped_to);
        }
    }
    assert_null(journal_failed(j));
    disk_sim_stop_at(b->disk, 0);
    journal_close(j);
    disk_sim_crash(b->disk, DISK_SIM_DROP);
    struct journal_file_options o = {.disk = b->disk, .manual = true};
    assert_int_equal(journal_file_open(&o, &j, &err), ST_OK);
    struct journal_stats stats;
    journal_stats_get(j, &stats);
    struct buf report = {0};
    journal_close(j);
    assert_int_equal(journal_file_verify(b->disk, &report, &err), ST_OK);
    assert_true(stats.segments + stats.spares < 12); /* churn does not grow the disk */
    buf_char(&report, 0);
    char last[64];
    snprintf(last, sizeof last, "last batch %d\n", 2000);
    if (!strstr(report.p, last)) fail_msg("%s", report.p);
    buf_free(&report);
}

struct salts {
    struct bench *b;
    u64 seen[FILES_MAX];
    size_t count;
};

static void note_salt(void *ctx, const char *name, u64 bytes) {
    (void)bytes;
    struct salts *s = ctx;
    struct buf file = {0};
    struct segment_head head;
    if (!slice_starts(slice_str(name), SL("journal-"))) return;
    assert_true(disk_sim_get(s->b->disk, name, &file) && format_segment_get((u8 *)file.p, &head));
    for (size_t i = 0; i < s->count; i++) assert_true(s->seen[i] != head.salt);
    s->seen[s->count++] = head.salt;
    buf_free(&file);
}

static void every_segment_has_a_salt_of_its_own_and_a_new_one_in_its_next_life(void **state) {
    struct bench *b = *state;
    struct salts s = {.b = b};
    struct journal *j = must_bring_up(b);
    append_synced(b, j, 60);
    disk_sim_each(b->disk, note_salt, &s);
    assert_true(s.count > 1);
    struct segment_head before, after;
    struct buf file = {0};
    u64 next = b->m.pos[b->m.end - 1] / SEGMENT + 1;
    char name[48];
    snprintf(name, sizeof name, "journal-%016llx.seg", (unsigned long long)next);
    assert_true(disk_sim_get(b->disk, name, &file) && format_segment_get((u8 *)file.p, &before));
    disk_sim_stop_at(b->disk, 0);
    journal_close(j);
    disk_sim_crash(b->disk, DISK_SIM_DROP);
    j = must_bring_up(b);
    assert_true(disk_sim_get(b->disk, name, &file) && format_segment_get((u8 *)file.p, &after));
    assert_int_equal(before.number, after.number);
    assert_true(before.salt != after.salt);
    journal_close(j);
    buf_free(&file);
}

static void a_checksum_covers_salt_position_head_and_body(void **state) {
    (void)state;
    u8 record[64] = {0};
    memcpy(record + 16, "seventeen letters", 17);
    format_record_put(record, 3, 1, 17, 4096);
    format_record_seal(record, 99, 4096);
    assert_int_equal(format_record_check(record, sizeof record, 99, 4096), 40);
    assert_int_equal(format_record_check(record, sizeof record, 98, 4096), 0);
    assert_int_equal(format_record_check(record, sizeof record, 99, 4104), 0);
    assert_int_equal(format_record_check(record, sizeof record, 99, 4096 + (1ull << 32)), 0);
    assert_int_equal(format_record_check(record, 39, 99, 4096), 0);
    for (size_t i = 0; i < 40 * 8; i++) {
        record[i / 8] ^= (u8)(1u << i % 8);
        assert_int_equal(format_record_check(record, sizeof record, 99, 4096), 0);
        record[i / 8] ^= (u8)(1u << i % 8);
    }
}

static void nothing_is_ever_written_behind_a_torn_tail(void **state) {
    struct bench *b = *state;
    struct journal *j = must_bring_up(b);
    append_synced(b, j, 48); /* sixteen batches: the mark has caught up, and the last one is proven */
    assert_true(marked(b) > b->m.pos[b->m.end - 1]);
    u64 torn_segment = b->m.pos[b->m.end - 1] / SEGMENT;
    disk_sim_stop_at(b->disk, 0);
    journal_close(j);
    disk_sim_crash(b->disk, DISK_SIM_DROP);
    for (int life = 0; life < 3; life++) journal_close(must_bring_up(b)); /* closed cleanly, without a word written */
    j = must_bring_up(b);
    append_synced(b, j, 1);
    assert_true(b->m.pos[b->m.end - 1] / SEGMENT > torn_segment);
    journal_close(j);
}

/* A body that is a copy of a whole segment, salt and all, in a batch that is then torn: neither a record nor a later
 * batch may be found in it. */
static void a_payload_shaped_like_batches_never_passes(void **state) {
    struct bench *b = *state;
    for (u64 cut = 0; cut < 14; cut++) {
        disk_close(b->disk);
        b->disk = disk_sim_new(cut, CAPACITY);
        b->m = (struct model){0};
        struct journal *j = must_bring_up(b);
        append_synced(b, j, 12);
        struct buf bytes = {0};
        struct journal_stats stats;
        journal_stats_get(j, &stats);
        char name[48];
        snprintf(name, sizeof name, "journal-%016llx.seg", (unsigned long long)(stats.tail / SEGMENT));
        assert_true(disk_sim_get(b->disk, name, &bytes));
        size_t n = 7000;
        memcpy(journal_reserve(j, n), bytes.p, n);
        u64 pos = journal_append(j, 1, 1, n);
        journal_flush(j);
        journal_file_work(j);
        disk_sim_stop_at(b->disk, 0);
        journal_close(j);
        disk_sim_crash(b->disk, DISK_SIM_KEEP);
        snprintf(name, sizeof name, "journal-%016llx.seg", (unsigned long long)(pos / SEGMENT));
        assert_true(disk_sim_flip(b->disk, name, pos % SEGMENT - 64 + cut * 500, 1));
        j = must_bring_up(b);
        assert_false(b->r.wrong);
        assert_int_equal(b->r.next, b->m.end);
        journal_close(j);
        buf_free(&bytes);
    }
}

static void verify_tells_a_sound_directory_from_a_damaged_one(void **state) {
    struct bench *b = *state;
    struct buf report = {0};
    assert_int_equal(journal_file_verify(b->disk, &report, &b->err), ST_NOT_FOUND);
    make_journal(b);
    buf_reset(&report);
    assert_int_equal(journal_file_verify(b->disk, &report, &b->err), ST_OK);
    buf_char(&report, 0);
    assert_non_null(strstr(report.p, "nothing is damaged"));
    assert_non_null(strstr(report.p, "closed cleanly"));
    char name[48];
    snprintf(name, sizeof name, "journal-%016llx.seg", (unsigned long long)(b->m.pos[b->m.end - 1] / SEGMENT));
    disk_sim_flip(b->disk, name, b->m.pos[b->m.end - 1] % SEGMENT + 17, 4);
    buf_reset(&report);
    assert_int_equal(journal_file_verify(b->disk, &report, &b->err), ST_DAMAGED);
    buf_char(&report, 0);
    assert_non_null(strstr(report.p, "DAMAGE"));
    assert_non_null(strstr(report.p, name));
    assert_non_null(strstr(report.p, "offset"));
    buf_free(&report);
}

static void verify_reports_a_torn_tail_and_writes_nothing(void **state) {
    struct bench *b = *state;
    struct journal *j = must_bring_up(b);
    append_synced(b, j, 9);
    model_append(&b->m, j, MOST);
    journal_flush(j);
    journal_file_work(j);
    disk_sim_stop_at(b->disk, 0);
    journal_close(j);
    disk_sim_crash(b->disk, DISK_SIM_KEEP);
    char name[48];
    u64 last = b->m.pos[b->m.end - 1];
    snprintf(name, sizeof name, "journal-%016llx.seg", (unsigned long long)(last / SEGMENT));
    disk_sim_flip(b->disk, name, last % SEGMENT + 16, 1);
    copy_files(b);
    struct buf report = {0}, now = {0};
    assert_int_equal(journal_file_verify(b->disk, &report, &b->err), ST_OK);
    buf_char(&report, 0);
    assert_non_null(strstr(report.p, "torn tail"));
    for (size_t i = 0; i < b->files.count; i++) {
        assert_true(disk_sim_get(b->disk, b->files.at[i].name, &now));
        assert_true(slice_eq(buf_slice(&now), buf_slice(&b->files.at[i].bytes)));
    }
    buf_free(&report);
    buf_free(&now);
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        T(a_flipped_bit_is_harmless_or_refused),
        T(a_flipped_bit_after_a_crash_costs_at_most_the_unproven_batch),
        T(a_cut_file_is_refused),
        T(a_missing_file_is_refused_or_not_needed),
        T(two_swapped_files_are_refused),
        T(swapped_sectors_are_harmless_or_refused),
        T(an_old_copy_of_one_file_is_harmless_or_refused),
        T(a_segment_of_another_directory_is_refused),
        T(a_directory_of_a_newer_version_is_refused_in_words),
        T(a_lost_meta_file_is_not_taken_for_a_new_directory),
        T(a_copy_cut_short_is_not_taken_for_a_new_directory),
        T(bytes_of_a_recycled_segment_never_pass),
        T(every_segment_has_a_salt_of_its_own_and_a_new_one_in_its_next_life),
        T(a_checksum_covers_salt_position_head_and_body),
        T(nothing_is_ever_written_behind_a_torn_tail),
        T(a_payload_shaped_like_batches_never_passes),
        T(verify_tells_a_sound_directory_from_a_damaged_one),
        T(verify_reports_a_torn_tail_and_writes_nothing),
    };
    log_set_level(LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
