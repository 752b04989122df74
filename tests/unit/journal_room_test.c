/* Room (P8): what was promised can be written, compaction always has its two segments, a full disk is neither failure
 * nor damage, and what becomes free is used again without a restart. */
#include "unit/journal_util.h"

#define SEGMENT (64ull << 10)
#define MOST    20000u

struct bench {
    struct disk *disk;
    struct journal *j;
    struct model m;
    struct replayed r;
    struct errbuf err;
};

static void bring_up(struct bench *b) {
    struct journal_file_options o = {.disk = b->disk, .segment_bytes = SEGMENT, .manual = true};
    b->r.any = b->r.wrong = false;
    b->r.last_pos = 0;
    if (journal_file_open(&o, &b->j, &b->err) != ST_OK) fail_msg("%s", b->err.text);
    if (journal_replay(b->j, replay_one, &b->r, &b->err) != ST_OK) fail_msg("%s", b->err.text);
    if (journal_start(b->j, &b->err) != ST_OK) fail_msg("%s", b->err.text);
}

static int setup(void **state) {
    struct bench *b = mem_zalloc(sizeof *b);
    b->disk = disk_sim_new(7, 14 * SEGMENT);
    b->r.m = &b->m;
    b->r.most = MOST;
    bring_up(b);
    *state = b;
    return 0;
}

static int teardown(void **state) {
    struct bench *b = *state;
    if (b->j) journal_close(b->j);
    disk_close(b->disk);
    mem_free(b);
    return 0;
}

static void append_one(struct bench *b) {
    model_append(&b->m, b->j, MOST);
    journal_flush(b->j);
    work_all(b->j);
    if (journal_failed(b->j)) fail_msg("record %d: %s", (int)b->m.end - 1, journal_failed(b->j));
}

/* Append until room() says no. */
static void fill_up(struct bench *b) {
    for (;;) {
        u64 room = journal_room(b->j);
        journal_want(b->j, 1ull << 30);
        work_all(b->j);
        assert_true(journal_room(b->j) >= room || room == 0);
        if (journal_cost(body_size(b->m.end, MOST)) > journal_room(b->j)) return;
        append_one(b);
    }
}

static void room_grows_with_what_is_wanted_and_shrinks_again(void **state) {
    struct bench *b = *state;
    struct journal_stats before, wide, narrow;
    u64 small = journal_room(b->j);
    assert_true(small > 0);
    journal_stats_get(b->j, &before);
    journal_want(b->j, 5 * SEGMENT);
    work_all(b->j);
    journal_stats_get(b->j, &wide);
    assert_true(journal_room(b->j) >= 3 * SEGMENT && wide.disk_bytes > before.disk_bytes);
    journal_want(b->j, 0);
    work_all(b->j);
    journal_stats_get(b->j, &narrow);
    assert_true(narrow.disk_bytes < wide.disk_bytes);
    assert_true(journal_room(b->j) >= small);
}

static void an_append_takes_no_more_than_its_cost_from_the_room(void **state) {
    struct bench *b = *state;
    journal_want(b->j, 1ull << 30);
    work_all(b->j);
    for (;;) {
        u64 room = journal_room(b->j), cost = journal_cost(body_size(b->m.end, MOST));
        if (cost > room) break;
        append_one(b);
        if (journal_room(b->j) + cost < room)
            fail_msg("record %d: room %d, cost %d, then %d", (int)b->m.end - 1, (int)room, (int)cost,
                     (int)journal_room(b->j));
    }
    assert_true(b->m.end > 100);
}

static void a_full_disk_refuses_in_time_and_leaves_compaction_two_segments(void **state) {
    struct bench *b = *state;
    fill_up(b);
    assert_null(journal_failed(b->j));
    u64 carried = 0;
    while (carried + journal_cost(body_size(b->m.end, MOST)) < 2 * (SEGMENT - 256 - MOST)) {
        carried += journal_cost(body_size(b->m.end, MOST));
        append_one(b);
    }
    assert_true(carried > SEGMENT);
}

static void room_comes_back_after_a_drop_without_reopening(void **state) {
    struct bench *b = *state;
    for (int round = 0; round < 8; round++) {
        fill_up(b);
        u64 end = b->m.end;
        for (int segments = 0; segments < 3; segments++) {
            append_one(b); /* what compaction carries forward */
            model_drop_oldest(&b->m, b->j);
        }
        append_one(b);
        fill_up(b);
        assert_true(b->m.end > end + 30);
    }
    journal_close(b->j);
    bring_up(b);
    assert_true(replay_is_right(&b->r, &b->m, b->m.end));
}

static void room_comes_back_when_the_disk_grows_without_reopening(void **state) {
    struct bench *b = *state;
    fill_up(b);
    u64 end = b->m.end;
    disk_sim_set_capacity(b->disk, 40 * SEGMENT);
    fill_up(b);
    assert_true(b->m.end > end + 100);
}

static void a_full_disk_starts_again_after_a_crash_and_after_a_clean_end(void **state) {
    struct bench *b = *state;
    fill_up(b);
    for (int life = 0; life < 2; life++) {
        model_note_durable(&b->m, b->j);
        if (life == 0) disk_sim_stop_at(b->disk, 0);
        journal_close(b->j);
        disk_sim_crash(b->disk, DISK_SIM_DROP);
        bring_up(b);
        assert_true(replay_is_right(&b->r, &b->m, b->m.acked));
        model_adopt(&b->m, &b->r);
        append_one(b);
    }
}

static void appending_past_everything_there_is_stops_the_journal_and_damages_nothing(void **state) {
    struct bench *b = *state;
    for (int i = 0; i < 3000 && !journal_failed(b->j); i++) {
        model_append(&b->m, b->j, MOST);
        journal_flush(b->j);
        work_all(b->j);
        model_note_durable(&b->m, b->j);
    }
    assert_non_null(journal_failed(b->j));
    assert_non_null(strstr(journal_failed(b->j), "No space left"));
    journal_close(b->j);
    disk_sim_crash(b->disk, DISK_SIM_DROP);
    disk_sim_set_capacity(b->disk, 40 * SEGMENT);
    bring_up(b);
    assert_true(replay_is_right(&b->r, &b->m, b->m.acked));
}

static void needed_room_is_made_at_once_while_the_disk_has_any(void **state) {
    struct bench *b = *state;
    u64 room = journal_room(b->j);
    assert_true(journal_need(b->j, room));
    assert_true(room < 4 * SEGMENT && journal_need(b->j, 4 * SEGMENT));
    assert_true(journal_room(b->j) >= 4 * SEGMENT);
    assert_false(journal_need(b->j, 1ull << 30));
    assert_null(journal_failed(b->j));
    disk_sim_set_capacity(b->disk, 40 * SEGMENT);
    journal_want(b->j, 10 * SEGMENT);
    work_all(b->j);
    assert_true(journal_need(b->j, 10 * SEGMENT));
}

static void churn_does_not_grow_the_disk(void **state) {
    struct bench *b = *state;
    struct journal_stats stats;
    u64 most = 0;
    for (int round = 0; round < 3000; round++) {
        append_one(b);
        journal_stats_get(b->j, &stats);
        if (stats.used_bytes > 4 * SEGMENT) model_drop_oldest(&b->m, b->j);
        if (round > 500 && stats.disk_bytes > most) most = stats.disk_bytes;
    }
    assert_true(stats.tail > 60 * SEGMENT);
    assert_true(most <= 12 * SEGMENT);
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        T(room_grows_with_what_is_wanted_and_shrinks_again),
        T(an_append_takes_no_more_than_its_cost_from_the_room),
        T(a_full_disk_refuses_in_time_and_leaves_compaction_two_segments),
        T(room_comes_back_after_a_drop_without_reopening),
        T(room_comes_back_when_the_disk_grows_without_reopening),
        T(a_full_disk_starts_again_after_a_crash_and_after_a_clean_end),
        T(appending_past_everything_there_is_stops_the_journal_and_damages_nothing),
        T(needed_room_is_made_at_once_while_the_disk_has_any),
        T(churn_does_not_grow_the_disk),
    };
    log_set_level(LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
