/* Crashes and I/O errors at every single disk operation of a script, on the simulated disk. Whatever happens, recovery
 * gives a gapless run of what was appended, unaltered, that holds at least everything reported durable; and the journal
 * goes on from there. */
#include "unit/journal_util.h"

#define SEGMENT  (16ull << 10)
#define MOST     5000u
#define CAPACITY (2ull << 20)
#define TURNS    200

struct run {
    struct disk *disk;
    struct journal *journal; /* NULL while closed */
    struct model m;
    struct replayed r;
    struct rng rng;
    struct errbuf err;
};

static struct run *run_new(u64 seed) {
    struct run *run = mem_zalloc(sizeof *run);
    run->disk = disk_sim_new(seed, CAPACITY);
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
    model_adopt(&run->m, &run->r);
    return ST_OK;
}

static void check_some_reads(struct run *run) {
    for (u64 i = run->m.end > 6 ? run->m.end - 6 : 0; i < run->m.end; i++) {
        struct journal_record rec;
        if (run->m.pos[i] < run->m.pos[run->m.dropped] || i < run->m.dropped) continue;
        hx_st st = journal_read(run->journal, run->m.pos[i], 0, &rec, &run->err);
        if (st == ST_IO) return;
        if (st != ST_OK) fail_msg("read of %d: %s", (int)i, run->err.text);
        if (body_number(&rec) != i || !body_right(&rec, MOST)) fail_msg("read of %d gave something else", (int)i);
    }
}

static void turn(struct run *run) {
    struct journal *j = run->journal;
    u64 what = rng_below(&run->rng, 16);
    if (what < 9) {
        for (u64 n = 1 + rng_below(&run->rng, 6); n > 0; n--) model_append(&run->m, j, MOST);
        journal_flush(j);
    } else if (what == 9) {
        model_drop_oldest(&run->m, j);
    } else if (what == 10) {
        journal_want(j, rng_below(&run->rng, 6) * 8000);
    } else if (what == 11) {
        check_some_reads(run);
    }
    for (u64 n = rng_below(&run->rng, 5); n > 0; n--) journal_file_work(j);
    model_note_durable(&run->m, j);
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

static void must_come_up(struct run *run, const char *when, u64 k) {
    if (come_up(run, run->m.acked) != ST_OK) fail_msg("%s, operation %d: %s", when, (int)k, run->err.text);
}

static void go_on(struct run *run) {
    for (int i = 0; i < 5; i++) {
        model_append(&run->m, run->journal, MOST);
        journal_flush(run->journal);
        work_all(run->journal);
    }
    assert_null(journal_failed(run->journal));
    model_note_durable(&run->m, run->journal);
    assert_int_equal(run->m.acked, run->m.end);
    check_some_reads(run);
}

static const enum disk_sim_crash crashes[] = {DISK_SIM_KILL, DISK_SIM_KEEP, DISK_SIM_DROP, DISK_SIM_TEAR};

static u64 script_operations(u64 seed) {
    struct run *run = run_new(seed);
    play(run);
    assert_non_null(run->journal);
    assert_null(journal_failed(run->journal));
    assert_true(run->m.end > 300 && run->m.acked > 100);
    assert_true(run->m.dropped > 0);
    u64 ops = disk_sim_ops(run->disk);
    run_free(run);
    return ops;
}

static void crash_at(u64 seed, u64 k, enum disk_sim_crash how) {
    struct run *run = run_new(seed);
    disk_sim_stop_at(run->disk, k);
    play(run);
    end_process(run);
    disk_sim_crash(run->disk, how);
    must_come_up(run, "first recovery", k);
    go_on(run);
    end_process(run);
    disk_sim_crash(run->disk, DISK_SIM_DROP);
    must_come_up(run, "second recovery", k);
    assert_int_equal(run->r.next, run->m.end);
    run_free(run);
}

static void a_crash_at_any_operation_keeps_everything_acknowledged(void **state) {
    (void)state;
    for (u64 seed = 1; seed <= 2; seed++) {
        u64 ops = script_operations(seed);
        for (u64 k = 0; k < ops; k++)
            for (size_t how = 0; how < sizeof crashes / sizeof crashes[0]; how++) crash_at(seed, k, crashes[how]);
    }
}

/* The first crash at k, the second at every operation of the recovery from it. */
static void crash_in_recovery(u64 seed, u64 k, enum disk_sim_crash first, enum disk_sim_crash second) {
    for (u64 later = 0;; later++) {
        struct run *run = run_new(seed);
        disk_sim_stop_at(run->disk, k);
        play(run);
        end_process(run);
        disk_sim_crash(run->disk, first);
        disk_sim_stop_at(run->disk, disk_sim_ops(run->disk) + later);
        u64 acked = run->m.acked, end = run->m.end;
        bool up = come_up(run, acked) == ST_OK && !disk_sim_stopped(run->disk);
        u64 recovered = up ? run->m.end : acked;
        end_process(run);
        run->m.acked = recovered;
        if (!up) run->m.end = end;
        disk_sim_crash(run->disk, second);
        must_come_up(run, "recovery after a crash in recovery", k);
        go_on(run);
        run_free(run);
        if (up) return;
    }
}

static void a_second_crash_during_recovery_loses_nothing_either(void **state) {
    (void)state;
    u64 ops = script_operations(3);
    for (u64 k = ops / 40; k < ops; k += ops / 20) {
        crash_in_recovery(3, k, DISK_SIM_KILL, DISK_SIM_DROP);
        crash_in_recovery(3, k, DISK_SIM_KILL, DISK_SIM_TEAR);
        crash_in_recovery(3, k, DISK_SIM_TEAR, DISK_SIM_DROP);
        crash_in_recovery(3, k, DISK_SIM_TEAR, DISK_SIM_TEAR);
    }
}

static void many_lives_each_ended_by_a_crash_keep_everything_acknowledged(void **state) {
    (void)state;
    for (u64 seed = 100; seed < 130; seed++) {
        struct run *run = run_new(seed);
        for (int life = 0; life < 30; life++) {
            disk_sim_stop_at(run->disk, disk_sim_ops(run->disk) + 20 + rng_below(&run->rng, 150));
            if (!run->journal) come_up(run, run->m.acked);
            if (run->journal) play(run);
            end_process(run);
            disk_sim_crash(run->disk, crashes[rng_below(&run->rng, 4)]);
        }
        must_come_up(run, "last recovery", seed);
        run_free(run);
    }
}

/* ---- I/O errors */

static void fault_at(u64 seed, u64 k, enum disk_sim_fault fault, bool persistent, enum disk_sim_crash how) {
    struct run *run = run_new(seed);
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
    disk_sim_crash(run->disk, how);
    must_come_up(run, "recovery after an I/O error", k);
    go_on(run);
    run_free(run);
}

static void an_io_error_at_any_operation_never_makes_undurable_things_durable(void **state) {
    (void)state;
    u64 ops = script_operations(4);
    for (u64 k = 0; k < ops; k++) {
        for (int fault = DISK_SIM_EIO; fault <= DISK_SIM_SHORT; fault++) {
            fault_at(4, k, (enum disk_sim_fault)fault, false, DISK_SIM_DROP);
            fault_at(4, k, (enum disk_sim_fault)fault, true, k % 2 ? DISK_SIM_KILL : DISK_SIM_TEAR);
        }
    }
}

/* fsync that failed, kernel that calls the lost pages clean, process that restarts, power cut: the records recovered in
 * between were only in the page cache. */
static void records_recovered_from_the_page_cache_after_a_failed_sync_survive_a_power_cut(void **state) {
    (void)state;
    for (u64 seed = 1; seed <= 40; seed++) {
        struct run *run = run_new(seed);
        must_come_up(run, "new", 0);
        go_on(run);
        disk_sim_fail_at(run->disk, disk_sim_ops(run->disk) + 1, DISK_SIM_EIO, false);
        for (int i = 0; i < 8; i++) model_append(&run->m, run->journal, MOST);
        journal_flush(run->journal);
        work_all(run->journal);
        assert_non_null(journal_failed(run->journal));
        end_process(run);
        disk_sim_crash(run->disk, DISK_SIM_KILL);
        must_come_up(run, "restart", seed);
        assert_int_equal(run->r.next, run->m.end); /* the page cache shows them all, and they have been answered for */
        end_process(run);
        disk_sim_crash(run->disk, DISK_SIM_DROP);
        must_come_up(run, "power cut", seed);
        assert_int_equal(run->r.next, run->m.end);
        run_free(run);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_crash_at_any_operation_keeps_everything_acknowledged),
        cmocka_unit_test(a_second_crash_during_recovery_loses_nothing_either),
        cmocka_unit_test(many_lives_each_ended_by_a_crash_keep_everything_acknowledged),
        cmocka_unit_test(an_io_error_at_any_operation_never_makes_undurable_things_durable),
        cmocka_unit_test(records_recovered_from_the_page_cache_after_a_failed_sync_survive_a_power_cut),
    };
    log_set_level(LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
