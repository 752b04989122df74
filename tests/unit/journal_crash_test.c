/* Crashes and I/O errors at every single disk operation of a script, on the simulated disk. Whatever happens, recovery
 * gives a gapless run of what was appended, unaltered, that holds at least everything reported durable; and the journal
 * goes on from there. On a full disk it goes on in place, and the room there was is still there. */
#include "unit/journal_util.h"

#define SEGMENT  (16ull << 10)
#define MOST     5000u
#define CAPACITY (2ull << 20)
#define TURNS    200

#define FULL_CAPACITY (12 * SEGMENT + 16384) /* the script fills this */

struct run {
    struct disk *disk;
    struct journal *journal; /* NULL while closed */
    struct model m;
    struct replayed r;
    struct rng rng;
    struct errbuf err;
    bool full;        /* appends keep to the room there is, and after a crash the disk has no more to give */
    u64 room;         /* full: what must be there after a crash */
    u64 lives, stays; /* full: how often it came up, and how often in place */
};

static struct run *run_new(u64 seed, bool full) {
    struct run *run = mem_zalloc(sizeof *run);
    run->disk = disk_sim_new(seed, full ? FULL_CAPACITY : CAPACITY);
    run->full = full;
    rng_seed(&run->rng, seed);
    run->r.m = &run->m;
    run->r.most = MOST;
    return run;
}

static void run_free(struct run *run) {
    if (run->journal) journal_close(run->journal);
    disk_close(run->disk);
    mem_free(run);
}

static void forget_replay(struct run *run) {
    run->r.any = run->r.wrong = false;
    run->r.last_pos = 0;
}

/* An unclean end must not take room from what was promised. Where it went on in place, the tail is where it was. */
static void note_full_start(struct run *run) {
    if (!run->full) return;
    journal_want(run->journal, 1ull << 30);
    u64 room = journal_room(run->journal);
    bool hurt = disk_sim_failed_ops(run->disk) > 0; /* then a spare may have gone uncounted */
    if (room < run->room && !hurt) fail_msg("room was %d and is %d", (int)run->room, (int)room);
    struct journal_stats stats;
    journal_stats_get(run->journal, &stats);
    run->room = room;
    run->lives++;
    run->stays += run->r.any && stats.tail / SEGMENT == run->m.pos[run->r.next - 1] / SEGMENT;
}

/* Open, replay, check, start. `at_least`: numbers below this must be there. */
static hx_st come_up(struct run *run, u64 at_least) {
    struct journal_file_options o = {.disk = run->disk, .segment_bytes = SEGMENT, .manual = true};
    struct journal *j;
    forget_replay(run);
    hx_st st = journal_file_open(&o, &j, &run->err);
    if (st != ST_OK) return st;
    st = journal_replay(j, replay_one, &run->r, &run->err);
    if (st == ST_OK && !replay_is_right(&run->r, &run->m, at_least))
        fail_msg("replay gave %d..%d, wrong %d; appended %d, acknowledged %d, dropped %d", (int)run->r.first,
                 (int)run->r.next, run->r.wrong, (int)run->m.end, (int)at_least, (int)run->m.dropped);
    if (st == ST_OK) st = journal_start(j, &run->err);
    if (st != ST_OK) {
        journal_close(j);
        return st;
    }
    run->journal = j;
    note_full_start(run);
    model_adopt(&run->m, &run->r);
    run->m.life++;
    return ST_OK;
}

static void check_some_reads(struct run *run) {
    for (u64 i = run->m.end > 6 ? run->m.end - 6 : 0; i < run->m.end; i++) {
        struct journal_record rec;
        if (run->m.pos[i] < run->m.pos[run->m.dropped] || i < run->m.dropped) continue;
        hx_st st = journal_read(run->journal, run->m.pos[i], 0, &rec, &run->err);
        if (st == ST_IO) return;
        if (st != ST_OK) fail_msg("read of %d: %s", (int)i, run->err.text);
        if (body_number(&rec) != i || !body_right_in(&rec, run->m.wrote[i], MOST))
            fail_msg("read of %d gave something else", (int)i);
    }
}

/* False: the disk is full. */
static bool append(struct run *run) {
    u64 cost = journal_cost(body_size(run->m.end, MOST));
    if (run->full && cost > journal_room(run->journal)) return false;
    model_append(&run->m, run->journal, MOST);
    run->room = run->room > cost ? run->room - cost : 0;
    return true;
}

static void turn(struct run *run) {
    struct journal *j = run->journal;
    u64 what = rng_below(&run->rng, 16);
    if (what < 9) {
        for (u64 n = 1 + rng_below(&run->rng, 6); n > 0 && append(run); n--) {
        }
        journal_flush(j);
    } else if (what == 9) {
        model_drop_oldest(&run->m, j);
    } else if (what == 10 && !run->full) {
        journal_want(j, rng_below(&run->rng, 6) * 8000);
    } else if (what == 11) {
        check_some_reads(run);
    }
    for (u64 n = rng_below(&run->rng, 5); n > 0; n--) journal_file_work(j);
    model_note_durable(&run->m, j);
    if (!journal_failed(j)) run->room = journal_room(j);
}

/* The script, until it ends or the journal fails. Now and then it is closed and opened again. */
static void play(struct run *run) {
    for (int i = 0; i < TURNS; i++) {
        if (!run->journal && come_up(run, run->m.acked) != ST_OK) return;
        turn(run);
        if (journal_failed(run->journal)) return;
        if (rng_below(&run->rng, 40) != 0) continue;
        bool all = journal_failed(run->journal) == NULL;
        journal_close(run->journal);
        run->journal = NULL;
        if (all && !disk_sim_stopped(run->disk) && disk_sim_failed_ops(run->disk) == 0) run->m.acked = run->m.end;
    }
}

static void end_process(struct run *run) {
    if (run->journal) model_note_durable(&run->m, run->journal);
    disk_sim_stop_at(run->disk, 0);
    if (run->journal) journal_close(run->journal);
    run->journal = NULL;
}

/* On a full disk somebody else takes what is left, once there is a directory to speak of. */
static void crash(struct run *run, enum disk_sim_crash how) {
    disk_sim_crash(run->disk, how);
    u64 used = FULL_CAPACITY - run->disk->ops->free_bytes(run->disk);
    if (run->full && used > 5 * SEGMENT) disk_sim_set_capacity(run->disk, used);
}

static void must_come_up(struct run *run, const char *when, u64 k) {
    if (come_up(run, run->m.acked) != ST_OK) fail_msg("%s, operation %d: %s", when, (int)k, run->err.text);
}

static void go_on(struct run *run) {
    for (int i = 0; i < 5 && append(run); i++) {
        journal_flush(run->journal);
        work_all(run->journal);
    }
    assert_null(journal_failed(run->journal));
    model_note_durable(&run->m, run->journal);
    assert_int_equal(run->m.acked, run->m.end);
    check_some_reads(run);
}

static const enum disk_sim_crash crashes[] = {DISK_SIM_KILL, DISK_SIM_KEEP, DISK_SIM_DROP, DISK_SIM_TEAR};

static u64 script_operations(u64 seed, bool full) {
    struct run *run = run_new(seed, full);
    play(run);
    assert_non_null(run->journal);
    assert_null(journal_failed(run->journal));
    assert_true(run->m.end > (full ? 100 : 300) && run->m.acked > 100);
    assert_true(run->m.dropped > 0);
    u64 ops = disk_sim_ops(run->disk);
    run_free(run);
    return ops;
}

static u64 sum_lives, sum_stays;

static void crash_at(u64 seed, bool full, u64 k, enum disk_sim_crash how) {
    struct run *run = run_new(seed, full);
    disk_sim_stop_at(run->disk, k);
    play(run);
    end_process(run);
    crash(run, how);
    must_come_up(run, "first recovery", k);
    go_on(run);
    for (int again = 0; again < (full ? 3 : 1); again++) {
        end_process(run);
        crash(run, again ? how : DISK_SIM_DROP);
        must_come_up(run, "later recovery", k);
        assert_int_equal(run->r.next, run->m.end);
    }
    sum_lives += run->lives;
    sum_stays += run->stays;
    run_free(run);
}

static void a_crash_at_any_operation_keeps_everything_acknowledged(void **state) {
    (void)state;
    for (u64 seed = 1; seed <= 2; seed++) {
        u64 ops = script_operations(seed, false);
        for (u64 k = 0; k < ops; k++)
            for (size_t how = 0; how < sizeof crashes / sizeof crashes[0]; how++)
                crash_at(seed, false, k, crashes[how]);
    }
}

static void on_a_full_disk_a_crash_at_any_operation_keeps_everything_and_the_room_promised(void **state) {
    (void)state;
    sum_lives = sum_stays = 0;
    u64 ops = script_operations(5, true);
    for (u64 k = 0; k < ops; k++)
        for (size_t how = 0; how < sizeof crashes / sizeof crashes[0]; how++) crash_at(5, true, k, crashes[how]);
    if (sum_stays < sum_lives / 2) fail_msg("%d of %d starts in place", (int)sum_stays, (int)sum_lives);
}

/* The first crash at k, the second at every operation of the recovery from it. */
static void crash_in_recovery(u64 seed, bool full, u64 k, enum disk_sim_crash first, enum disk_sim_crash second) {
    for (u64 later = 0;; later++) {
        struct run *run = run_new(seed, full);
        disk_sim_stop_at(run->disk, k);
        play(run);
        end_process(run);
        crash(run, first);
        disk_sim_stop_at(run->disk, disk_sim_ops(run->disk) + later);
        u64 acked = run->m.acked, end = run->m.end;
        bool up = come_up(run, acked) == ST_OK && !disk_sim_stopped(run->disk);
        u64 recovered = up ? run->m.end : acked;
        end_process(run);
        run->m.acked = recovered;
        if (!up) run->m.end = end;
        crash(run, second);
        must_come_up(run, "recovery after a crash in recovery", k);
        go_on(run);
        run_free(run);
        if (up) return;
    }
}

static void a_second_crash_during_recovery_loses_nothing_either(void **state) {
    (void)state;
    for (int full = 0; full <= 1; full++) {
        u64 ops = script_operations(3, full);
        for (u64 k = ops / 40; k < ops; k += ops / (full ? 40 : 20)) {
            crash_in_recovery(3, full, k, DISK_SIM_KILL, DISK_SIM_DROP);
            crash_in_recovery(3, full, k, DISK_SIM_KILL, DISK_SIM_TEAR);
            crash_in_recovery(3, full, k, DISK_SIM_TEAR, DISK_SIM_DROP);
            crash_in_recovery(3, full, k, DISK_SIM_TEAR, DISK_SIM_TEAR);
        }
    }
}

/* Killed while it drops a segment, started again, and then the power goes: what the second start read in the mark may
 * have been in the page cache only, and is no reason to remove a file. */
static void drop_and_crash_twice(u64 first, u64 second) {
    struct run *run = run_new(7, false);
    must_come_up(run, "new", first);
    while (run->m.end == 0 || run->m.pos[run->m.end - 1] < 4 * SEGMENT) go_on(run);
    model_drop_oldest(&run->m, run->journal);
    model_append(&run->m, run->journal, MOST);
    journal_flush(run->journal);
    disk_sim_stop_at(run->disk, disk_sim_ops(run->disk) + first);
    work_all(run->journal);
    end_process(run);
    disk_sim_crash(run->disk, DISK_SIM_KILL);
    disk_sim_stop_at(run->disk, disk_sim_ops(run->disk) + second);
    u64 acked = run->m.acked, end = run->m.end;
    bool up = come_up(run, acked) == ST_OK;
    end_process(run);
    run->m.acked = acked;
    if (!up) run->m.end = end;
    disk_sim_crash(run->disk, DISK_SIM_DROP);
    must_come_up(run, "after an interrupted drop", first);
    run_free(run);
}

static void an_interrupted_drop_is_finished_only_when_the_mark_is_durable(void **state) {
    (void)state;
    for (u64 first = 0; first < 12; first++)
        for (u64 second = 0; second < 50; second++) drop_and_crash_twice(first, second);
}

static void many_lives_each_ended_by_a_crash_keep_everything_acknowledged(void **state) {
    (void)state;
    for (u64 seed = 100; seed < 160; seed++) {
        struct run *run = run_new(seed, seed % 2);
        for (int life = 0; life < 30; life++) {
            disk_sim_stop_at(run->disk, disk_sim_ops(run->disk) + 20 + rng_below(&run->rng, 150));
            if (!run->journal) come_up(run, run->m.acked);
            if (run->journal) play(run);
            end_process(run);
            crash(run, crashes[rng_below(&run->rng, 4)]);
        }
        must_come_up(run, "last recovery", seed);
        run_free(run);
    }
}

/* ---- I/O errors */

static void fault_at(u64 seed, bool full, u64 k, enum disk_sim_fault fault, bool persistent, enum disk_sim_crash how) {
    struct run *run = run_new(seed, full);
    disk_sim_fail_at(run->disk, k, fault, persistent);
    play(run);
    if (run->journal && journal_failed(run->journal)) {
        u64 durable = journal_durable(run->journal);
        assert_true(strlen(journal_failed(run->journal)) > 10);
        for (int i = 0; i < 3; i++) {
            model_append(&run->m, run->journal, MOST);
            journal_flush(run->journal);
            work_all(run->journal);
            assert_int_equal(journal_durable(run->journal), durable);
        }
    } else if (!run->journal) {
        assert_true(strlen(run->err.text) > 10);
    }
    end_process(run);
    crash(run, how);
    must_come_up(run, "recovery after an I/O error", k);
    go_on(run);
    run_free(run);
}

static void an_io_error_at_any_operation_never_makes_undurable_things_durable(void **state) {
    (void)state;
    for (int full = 0; full <= 1; full++) {
        u64 ops = script_operations(4, full);
        for (u64 k = 0; k < ops; k++) {
            for (int fault = DISK_SIM_EIO; fault <= DISK_SIM_SHORT; fault++) {
                fault_at(4, full, k, (enum disk_sim_fault)fault, false, DISK_SIM_DROP);
                fault_at(4, full, k, (enum disk_sim_fault)fault, true, k % 2 ? DISK_SIM_KILL : DISK_SIM_TEAR);
            }
        }
    }
}

/* fsync that failed, kernel that calls the lost pages clean, process that restarts, power cut: the records recovered in
 * between were only in the page cache. */
static void records_recovered_from_the_page_cache_after_a_failed_sync_survive_a_power_cut(void **state) {
    (void)state;
    for (u64 seed = 1; seed <= 40; seed++) {
        struct run *run = run_new(seed, seed % 2);
        must_come_up(run, "new", 0);
        go_on(run);
        disk_sim_fail_at(run->disk, disk_sim_ops(run->disk) + 1, DISK_SIM_EIO, false);
        for (int i = 0; i < 8; i++) model_append(&run->m, run->journal, MOST);
        journal_flush(run->journal);
        work_all(run->journal);
        assert_non_null(journal_failed(run->journal));
        end_process(run);
        crash(run, DISK_SIM_KILL);
        must_come_up(run, "restart", seed);
        assert_int_equal(run->stays, run->full);
        assert_int_equal(run->r.next, run->m.end); /* the page cache shows them all, and they have been answered for */
        end_process(run);
        crash(run, DISK_SIM_DROP);
        must_come_up(run, "power cut", seed);
        assert_int_equal(run->r.next, run->m.end);
        run_free(run);
    }
}

/* ---- in place */

/* One batch whose records, but for the first, are a sector each: what a crash keeps of it is whole records. */
static void append_sectors(struct run *run, int life, u64 *from) {
    struct journal_stats stats;
    journal_stats_get(run->journal, &stats);
    *from = stats.tail;
    u64 head = stats.tail + JOURNAL_BATCH_HEAD + JOURNAL_RECORD_HEAD;
    size_t gap = (size_t)(DISK_SIM_SECTOR - head % DISK_SIM_SECTOR) % DISK_SIM_SECTOR;
    for (int i = 0; i < 4; i++) {
        size_t n = i ? DISK_SIM_SECTOR - JOURNAL_RECORD_HEAD : gap;
        memset(journal_reserve(run->journal, n), life, n);
        journal_append(run->journal, (u8)i, (u8)life, n);
    }
    journal_flush(run->journal);
    assert_true(journal_file_work(run->journal)); /* written, not synced */
}

struct sectors {
    u64 from;
    int life[4], count;
};

static hx_st see_sector(void *ctx, const struct journal_record *rec, struct errbuf *err) {
    (void)err;
    struct sectors *s = ctx;
    if (rec->pos < s->from) return ST_OK;
    assert_true(s->count < 4 && rec->type == s->count);
    s->life[s->count++] = rec->version;
    return ST_OK;
}

static void come_up_to(struct run *run, struct sectors *s) {
    struct journal_file_options o = {.disk = run->disk, .manual = true};
    s->count = 0;
    if (journal_file_open(&o, &run->journal, &run->err) != ST_OK) fail_msg("%s", run->err.text);
    if (journal_replay(run->journal, see_sector, s, &run->err) != ST_OK) fail_msg("%s", run->err.text);
    if (journal_start(run->journal, &run->err) != ST_OK) fail_msg("%s", run->err.text);
}

static void a_record_of_a_torn_batch_never_passes_for_one_of_a_later_batch(void **state) {
    (void)state;
    int torn_twice = 0;
    for (u64 seed = 1; seed <= 400; seed++) {
        struct run *run = run_new(seed, true);
        struct sectors s = {0};
        u64 from;
        must_come_up(run, "new", seed);
        go_on(run);
        append_sectors(run, 1, &s.from);
        end_process(run);
        crash(run, DISK_SIM_TEAR);
        come_up_to(run, &s);
        assert_true(s.count == 0 || s.count == 4);
        if (s.count == 0) {
            append_sectors(run, 2, &from);
            assert_int_equal(from, s.from);
            end_process(run);
            crash(run, DISK_SIM_TEAR);
            come_up_to(run, &s);
            assert_true(s.count == 0 || s.count == 4);
            for (int i = 0; i < s.count; i++) assert_int_equal(s.life[i], 2);
            torn_twice += s.count == 0;
        }
        run_free(run);
    }
    assert_true(torn_twice > 50);
}

static void fill(struct run *run) {
    while (append(run)) {
        journal_flush(run->journal);
        work_all(run->journal);
    }
    model_note_durable(&run->m, run->journal);
}

static void twenty_unclean_ends_in_a_row_on_a_full_disk_cost_nothing(void **state) {
    (void)state;
    for (size_t how = 0; how < sizeof crashes / sizeof crashes[0]; how++) {
        struct run *run = run_new(how, true);
        must_come_up(run, "new", 0);
        work_all(run->journal);
        fill(run);
        u64 end = run->m.end, room = journal_room(run->journal);
        for (u64 life = 0; life < 20; life++) {
            end_process(run);
            crash(run, crashes[how]);
            must_come_up(run, "full disk", life);
            assert_int_equal(run->m.end, end);
            assert_true(journal_room(run->journal) >= room);
        }
        assert_int_equal(run->stays, 20);
        check_some_reads(run);
        /* Compaction's two segments are whole: carry something forward, drop, and there is room again. */
        for (int round = 0; round < 3; round++) {
            model_append(&run->m, run->journal, MOST);
            model_drop_oldest(&run->m, run->journal);
            journal_flush(run->journal);
            work_all(run->journal);
        }
        assert_null(journal_failed(run->journal));
        assert_true(journal_room(run->journal) > room + SEGMENT);
        run_free(run);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_crash_at_any_operation_keeps_everything_acknowledged),
        cmocka_unit_test(on_a_full_disk_a_crash_at_any_operation_keeps_everything_and_the_room_promised),
        cmocka_unit_test(a_second_crash_during_recovery_loses_nothing_either),
        cmocka_unit_test(an_interrupted_drop_is_finished_only_when_the_mark_is_durable),
        cmocka_unit_test(many_lives_each_ended_by_a_crash_keep_everything_acknowledged),
        cmocka_unit_test(an_io_error_at_any_operation_never_makes_undurable_things_durable),
        cmocka_unit_test(records_recovered_from_the_page_cache_after_a_failed_sync_survive_a_power_cut),
        cmocka_unit_test(a_record_of_a_torn_batch_never_passes_for_one_of_a_later_batch),
        cmocka_unit_test(twenty_unclean_ends_in_a_row_on_a_full_disk_cost_nothing),
    };
    log_set_level(LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
