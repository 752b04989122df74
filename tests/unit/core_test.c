/* What each verb of the core promises, and that a restart or a compaction changes nothing a user could see. */
#include "unit/core_world.h"

/* ---- admission */

static void a_key_is_admitted_once_and_repeats_get_the_original(void **state) {
    (void)state;
    struct send_out first, again;
    assert_int_equal(send_full("k", "pay", NULL, 0, 0, &first), SEND_ACCEPTED);
    assert_int_equal(send_full("k", "pay", NULL, 0, 0, &again), SEND_DUPLICATE);
    assert_int_equal(first.ref.seq, again.ref.seq);
    struct leased l = receive();
    assert_true(l.ok);
    assert_false(receive().ok);
    assert_int_equal(send("k", "pay"), SEND_DUPLICATE);
    assert_int_equal(ack(&l, "done!"), SETTLE_OK);
    assert_int_equal(send_full("k", "pay", NULL, 0, 0, &again), SEND_DUPLICATE);
    assert_int_equal(again.duplicates, 3);
    assert_true(slice_eq(find("k")->settle->result, SL("done!")));
    assert_false(receive().ok);
}

static void a_changed_payload_under_a_known_key_is_a_conflict_before_and_after_settlement(void **state) {
    (void)state;
    send("k", "pay");
    assert_int_equal(send("k", "other"), SEND_CONFLICT);
    struct leased l = receive();
    ack(&l, "r");
    assert_int_equal(send("k", "other"), SEND_CONFLICT);
    restart_after(1000);
    assert_int_equal(send("k", "other"), SEND_CONFLICT);
    assert_int_equal(send("k", "pay"), SEND_DUPLICATE);
}

static void the_same_key_in_another_queue_is_another_key(void **state) {
    (void)state;
    send("k", "pay");
    struct rules rules = rules_default();
    assert_true(core_queue_ensure(w.core, w.now, SL("other"), &rules, &w.queue));
    assert_int_equal(send("k", "pay"), SEND_ACCEPTED);
}

static void a_key_is_remembered_for_its_window_of_running_time_and_then_new(void **state) {
    (void)state;
    send("k", "pay");
    struct leased l = receive();
    ack(&l, "r");
    i64 window = rules_default().window_ms;
    pass(window - 1000);
    assert_int_equal(send("k", "pay"), SEND_DUPLICATE);
    restart_after(10 * window); /* downtime does not count */
    assert_int_equal(send("k", "pay"), SEND_DUPLICATE);
    pass(2001);
    assert_int_equal(send("k", "pay"), SEND_ACCEPTED);
    restart_after(0);
    assert_int_equal(send("k", "pay"), SEND_DUPLICATE);
}

static void keys_past_their_window_are_forgotten_and_their_memory_freed(void **state) {
    (void)state;
    for (int i = 0; i < 500; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        send(key, "p");
        struct leased l = receive();
        ack(&l, "r");
    }
    u64 live = core_live_bytes(w.core);
    pass(rules_default().window_ms * 2);
    struct core_memory m;
    core_memory(w.core, &m);
    assert_int_equal(m.settled_keys, 0);
    assert_true(core_live_bytes(w.core) < live / 10);
    struct queue_info q;
    core_queue_info(w.core, w.now, w.queue, &q);
    assert_int_equal(q.settled_keys, 0);
    assert_int_equal(q.counters.keys_expired, 500);
}

static void an_unsettled_key_never_expires(void **state) {
    (void)state;
    send("k", "pay");
    pass(rules_default().window_ms * 3);
    assert_int_equal(send("k", "pay"), SEND_DUPLICATE);
}

static void full_means_no_new_message_but_lease_and_settlement_of_the_accepted_ones(void **state) {
    (void)state;
    assert_int_equal(send("k", "pay"), SEND_ACCEPTED);
    set_room(core_reserved_bytes(w.core));
    assert_int_equal(send("k2", "pay"), SEND_FULL);
    assert_int_equal(send("k", "pay"), SEND_DUPLICATE);
    struct leased l = receive();
    assert_true(l.ok);
    char result[RESULT_ALWAYS_FITS + 1] = {0};
    memset(result, 'x', RESULT_ALWAYS_FITS);
    assert_int_equal(ack(&l, result), SETTLE_OK);
    set_room(1u << 30);
    assert_int_equal(send("k2", "pay"), SEND_ACCEPTED);
}

static void a_larger_result_is_refused_when_full_and_accepted_once_there_is_room(void **state) {
    (void)state;
    send("k", "pay");
    struct leased l = receive();
    static char result[5000];
    memset(result, 'x', sizeof result - 1);
    set_room(core_reserved_bytes(w.core));
    assert_int_equal(ack(&l, result), SETTLE_FULL);
    set_room(1u << 30);
    assert_int_equal(ack(&l, result), SETTLE_OK);
}

static void what_is_promised_is_given_back_when_everything_is_settled(void **state) {
    (void)state;
    u64 before = core_reserved_bytes(w.core);
    for (int i = 0; i < 20; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        send(key, "p");
    }
    assert_true(core_reserved_bytes(w.core) > before + 20 * RESULT_ALWAYS_FITS);
    for (struct leased l; (l = receive()).ok;) {
        if (l.fence % 3 == 0) {
            settle_as(&l, (struct settle_in){.verb = VERB_STEP, .name = SL("s"), .result = SL("step result")}, NULL);
            nack(&l, CLASS_TRANSIENT);
            pass(10000);
        } else {
            ack(&l, "r");
        }
    }
    assert_int_equal(core_reserved_bytes(w.core), before);
}

/* A start writes nothing, but what was said with it must not be lost with the next kill. */
static void a_downtime_that_was_said_need_not_be_said_again(void **state) {
    (void)state;
    const i64 month = (i64)30 * 24 * 3600 * 1000;
    send_full("k", "p", NULL, 3600000, 0, NULL);
    w.downtime_said = true;
    restart_after(month);
    pass(0);
    w.downtime_said = false;
    restart_after(1000);
    assert_int_equal(core_downtime(w.core).charged_ms, 1000);
    pass(0);
    assert_false(receive().ok);
}

/* What is left is for those who make room: neither starting nor standing by may take it. */
static void starts_and_idling_on_a_full_disk_leave_the_room_for_a_purge(void **state) {
    (void)state;
    char key[16];
    for (int i = 0; i < 100; i++) {
        snprintf(key, sizeof key, "k%d", i);
        assert_int_equal(send(key, "pay"), SEND_ACCEPTED);
    }
    for (set_room(core_reserved_bytes(w.core) + 65536); w.count < 5000;) { /* the clock has its share, and no more */
        u64 before = w.count;
        pass(10000);
        if (w.count == before) break;
    }
    u64 room = core_room(w.core), count = w.count;
    assert_in_range(room, core_reserved_bytes(w.core) + 16384, core_reserved_bytes(w.core) + 40000);
    for (int life = 0; life < 400; life++) {
        set_room(room);
        restart_after(1000);
        pass(20000);
        if (life % 2) core_stop(w.core, w.now);
        assert_int_equal(w.count, count);
    }
    w.metered = true;
    for (int i = 0; i < 100; i++) {
        snprintf(key, sizeof key, "k%d", i);
        struct seen *s = find(key);
        struct audit_in *why = i % 10 ? NULL : AUDIT("ops", "room is needed");
        assert_int_equal(core_cancel(w.core, w.now, s, SL("purged"), why), CANCEL_OK);
    }
    assert_true(w.records[count].type == REC_CLOCK); /* the first record of a run says where it began */
}

/* The key is carried past what is written of its arrivals, and then that past the key. */
static void how_often_a_key_came_again_survives_being_carried_apart_from_it(void **state) {
    (void)state;
    struct send_out out;
    assert_int_equal(send("k", "pay"), SEND_ACCEPTED);
    assert_int_equal(send("open", "pay"), SEND_ACCEPTED);
    struct leased l = receive();
    assert_int_equal(ack(&l, "r"), SETTLE_OK);
    u64 bases = w.count;
    for (u64 n = 1; n <= 4; n++) {
        send_full("k", "pay", NULL, 0, 0, &out);
        assert_int_equal(out.duplicates, n);
        send_full("open", "pay", NULL, 0, 0, &out);
        assert_int_equal(out.duplicates, n);
        pass(2000);
        if (n == 1) compact_upto(bases);
        if (n == 2) compact();
        if (n == 3) compact_upto(w.count - 1);
        restart_after(0);
    }
}

/* Each has far more history than record: what is carried of a segment is a multiple of the segment. */
static void carrying_messages_with_long_histories_takes_no_room_that_was_promised(void **state) {
    (void)state;
    static char step[20000], result[RESULT_ALWAYS_FITS + 1];
    memset(step, 's', sizeof step - 1);
    memset(result, 'r', RESULT_ALWAYS_FITS);
    struct leased leased[50];
    for (int i = 0; i < 50; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        assert_int_equal(send(key, "p"), SEND_ACCEPTED);
        leased[i] = receive_as(3600000, false);
        struct settle_in in = {.verb = VERB_STEP, .name = SL("s"), .result = slice_str(step)};
        assert_int_equal(settle_as(&leased[i], in, NULL), SETTLE_OK);
    }
    send("delayed", "p");
    struct leased l = receive();
    for (u32 round = 0; round < 3; round++) {
        u64 replaced = 0; /* what compaction's own segments are for */
        for (u64 i = w.first; i < w.count; i++)
            if (w.records[i].type == REC_MESSAGE || w.records[i].type == REC_QUEUE)
                replaced += sink_cost(w.records[i].n);
        set_room(core_reserved_bytes(w.core) + replaced + 1000); /* and a clock */
        w.metered = true;
        compact();
        assert_true(core_room(w.core) >= core_reserved_bytes(w.core));
        w.metered = false;
        set_room(1u << 30);
        if (round == 0) nack(&l, CLASS_TRANSIENT); /* from here on it has a time */
        if (round == 1) restart_after(0);
    }
    set_room(core_reserved_bytes(w.core));
    w.metered = true;
    for (int i = 0; i < 50; i++) assert_int_equal(ack(&leased[i], result), SETTLE_OK);
}

/* A full disk must not take the work from those who do it: somebody else would do it again. */
static void on_a_full_disk_work_is_leased_begun_renewed_and_settled(void **state) {
    (void)state;
    struct leased leased[50];
    char key[16];
    for (int i = 0; i < 50; i++) {
        snprintf(key, sizeof key, "k%d", i);
        assert_int_equal(send(key, "pay"), SEND_ACCEPTED);
    }
    set_room(core_reserved_bytes(w.core));
    w.metered = true;
    for (int i = 0; i < 50; i++) {
        leased[i] = receive_as(30000, true);
        assert_true(leased[i].ok);
    }
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 50; i++) {
            enum settle_verdict begun = verb(&leased[i], VERB_START);
            assert_int_equal(begun, round ? SETTLE_DUPLICATE : SETTLE_OK);
            assert_int_equal(verb(&leased[i], VERB_EXTEND), SETTLE_OK);
        }
        pass(20000);
        assert_int_equal(state_of("k7"), STATE_LEASED);
        assert_false(receive().ok);
    }
    static char result[RESULT_ALWAYS_FITS], effect[255];
    memset(result, 'r', sizeof result);
    memset(effect, 'e', sizeof effect);
    struct settle_in in = {.verb = VERB_ACK,
                           .content_type = SL("application/vnd.example.booking+json; charset=utf-8"),
                           .result = slice_of(result, sizeof result),
                           .effect_id = slice_of(effect, sizeof effect)};
    for (int i = 0; i < 50; i++) assert_int_equal(settle_as(&leased[i], in, NULL), SETTLE_OK);
}

/* What is not written of it need not be: a restart gives a lease that is open its whole length. */
static void a_renewed_lease_is_renewed_after_a_restart_too(void **state) {
    (void)state;
    send("k", "pay");
    struct leased l = receive_as(30000, false);
    pass(20000);
    assert_int_equal(verb(&l, VERB_EXTEND), SETTLE_OK);
    pass(20000);
    assert_int_equal(state_of("k"), STATE_LEASED);
    assert_int_equal(verb(&l, VERB_EXTEND), SETTLE_OK);
    restart_after(1000);
    pass(29000);
    assert_int_equal(state_of("k"), STATE_LEASED);
    assert_int_equal(ack(&l, "r"), SETTLE_OK);
}

static void the_days_of_a_queue_outlive_restarts_and_compaction(void **state) {
    (void)state;
    struct rec_day days[DAYS_KEPT];
    for (u32 day = 20000; day < 20020; day++) assert_true(core_day_end(w.core, w.now, w.queue, day, day, day - 20000));
    assert_int_equal(core_days(w.core, w.queue, 20020, days), DAYS_KEPT);
    compact();
    restart_after(1000);
    assert_int_equal(core_days(w.core, w.queue, 20020, days), DAYS_KEPT);
    u64 duplicates = 0;
    for (u32 i = 0; i < DAYS_KEPT; i++) {
        assert_int_equal(days[i].accepted, days[i].day);
        duplicates += days[i].duplicates;
    }
    assert_int_equal(duplicates, 6 + 7 + 8 + 9 + 10 + 11 + 12 + 13 + 14 + 15 + 16 + 17 + 18 + 19);
    assert_int_equal(core_days(w.core, w.queue, 20030, days), 4); /* those of the last fourteen */
}

/* Whatever else operators have done by then: a queue that stays paused is never worked off. */
static void on_a_full_disk_the_last_room_is_for_deeds_that_make_some(void **state) {
    (void)state;
    char key[16];
    for (int i = 0; i < 50; i++) {
        snprintf(key, sizeof key, "k%d", i);
        assert_int_equal(send(key, "pay"), SEND_ACCEPTED);
    }
    set_room(core_reserved_bytes(w.core) + 65536);
    w.metered = true;
    struct audit_in deed = {.who = SL("ann"), .what = SL("pause"), .why = SL("the disk is full")}, relief = deed;
    relief.relieves = true;
    assert_int_equal(core_queue_pause(w.core, w.now, w.queue, true, &deed), PAUSE_OK);
    int deeds = 0;
    while (core_audit(w.core, w.now, w.queue, &deed)) assert_in_range(++deeds, 1, 2000);
    assert_int_equal(core_queue_pause(w.core, w.now, w.queue, false, &deed), PAUSE_FULL);
    assert_int_equal(core_queue_pause(w.core, w.now, w.queue, false, &relief), PAUSE_OK);
    assert_int_equal(core_queue_pause(w.core, w.now, w.queue, true, &deed), PAUSE_FULL);
    assert_true(core_audit(w.core, w.now, w.queue, &relief));
    for (int i = 0; i < 50; i++) {
        snprintf(key, sizeof key, "k%d", i);
        assert_int_equal(core_cancel(w.core, w.now, find(key), SL("purged"), i ? NULL : &relief), CANCEL_OK);
    }
}

static void a_paused_queue_has_paid_for_its_resumption_however_long_its_rules_are(void **state) {
    (void)state;
    static char config[30000];
    memset(config, ' ', sizeof config);
    struct queue_spec spec = {.rules = rules_default(), .config = slice_of(config, sizeof config)};
    struct audit_in deed = {.who = SL("ann"), .what = SL("pause")}, relief = deed;
    relief.relieves = true;
    assert_true(core_queue_set(w.core, w.now, SL("long"), &spec, &deed, &w.queue));
    u64 reserved = core_reserved_bytes(w.core);
    assert_int_equal(core_queue_pause(w.core, w.now, w.queue, true, &deed), PAUSE_OK);
    assert_true(core_reserved_bytes(w.core) - reserved > sizeof config);
    restart_after(0);
    assert_true(core_reserved_bytes(w.core) - reserved > sizeof config);
    set_room(core_reserved_bytes(w.core) + 65536);
    w.metered = true;
    spec.config.n -= 1000;
    assert_true(core_queue_set(w.core, w.now, SL("long"), &spec, &deed, &w.queue));
    int deeds = 0;
    while (core_audit(w.core, w.now, w.queue, &deed)) assert_in_range(++deeds, 1, 2000);
    spec.config.n += 1000; /* its resumption would be longer too */
    assert_false(core_queue_set(w.core, w.now, SL("long"), &spec, &deed, &w.queue));
    assert_int_equal(core_queue_pause(w.core, w.now, w.queue, false, &relief), PAUSE_OK);
    assert_int_equal(core_reserved_bytes(w.core), reserved);
}

/* Windows of many queues end while the disk is full: what is said of that takes no room that was promised. */
static void windows_that_end_on_a_full_disk_take_no_room_of_accepted_work(void **state) {
    (void)state;
    struct rules rules = rules_default();
    rules.window_ms = 60000;
    for (int i = 0; i < 1000; i++) {
        char name[16];
        snprintf(name, sizeof name, "q%d", i);
        assert_true(core_queue_ensure(w.core, w.now, slice_str(name), &rules, &w.queue));
        send("k", "pay");
        struct leased l = receive();
        assert_int_equal(ack(&l, "r"), SETTLE_OK);
    }
    assert_int_equal(send("kept", "pay"), SEND_ACCEPTED);
    set_room(core_reserved_bytes(w.core) + 65536);
    for (int i = 0; i < 100; i++) pass(1000);
    assert_true(core_room(w.core) >= core_reserved_bytes(w.core) + 16384);
    assert_int_equal(send("k", "pay"), SEND_FULL); /* new, not known: the exact time tells */
    set_room(1u << 30);
    pass(1000);
    assert_int_equal(send("k", "pay"), SEND_ACCEPTED);
}

/* The end of a window is written down in room that clocks do not get. A crash then takes running time back: what settles from
 * there on did not settle in the stretch that is forgotten. */
static void what_settles_after_a_crash_is_remembered_though_clocks_had_no_room_before(void **state) {
    (void)state;
    struct rules rules = rules_default();
    rules.window_ms = 60000;
    assert_true(core_queue_ensure(w.core, w.now, SL("short"), &rules, &w.queue));
    send("early", "pay");
    struct leased l = receive();
    assert_int_equal(ack(&l, "r"), SETTLE_OK);
    send("late", "pay");
    set_room(core_reserved_bytes(w.core) + 28000);
    for (int i = 0; i < 200; i++) pass(1000);
    restart_after(0);
    assert_null(find("early"));
    l = receive();
    assert_int_equal(ack(&l, "r"), SETTLE_OK);
    set_room(1u << 30);
    assert_int_equal(send("late", "pay"), SEND_DUPLICATE);
}

/* ---- leases */

static void a_message_has_one_live_lease(void **state) {
    (void)state;
    send("k", "pay");
    assert_true(receive().ok);
    assert_false(receive().ok);
}

static void fences_grow_over_leases_restarts_and_clock_steps(void **state) {
    (void)state;
    send("k", "pay");
    u64 last = 0;
    for (int i = 0; i < 10; i++) {
        struct leased l = receive();
        assert_true(l.ok && l.fence > last);
        last = l.fence;
        verb(&l, VERB_RELEASE);
        restart_after(i % 2 ? 100 : -3600000);
    }
    assert_true(last < (u64)INT64_MAX);
}

static void a_lease_that_runs_out_counts_a_crash_and_three_make_it_dead(void **state) {
    (void)state;
    send("k", "pay");
    for (int i = 0; i < 3; i++) {
        struct leased l = receive_as(1000, false);
        assert_true(l.ok);
        assert_int_equal(l.attempt, i + 1);
        assert_int_equal(l.delivery, i > 0 ? DELIVERY_RETRY : DELIVERY_FIRST);
        pass(999);
        assert_int_equal(state_of("k"), STATE_LEASED);
        pass(1);
    }
    assert_int_equal(state_of("k"), STATE_DEAD);
    assert_int_equal(w.outcomes, 1);
    struct message_view v;
    core_message_view(w.core, w.now, find("k")->at.message, &v);
    assert_int_equal(v.crashes, 3);
    assert_int_equal(v.failures, 0);
}

static void a_reservation_that_was_never_started_costs_nothing_when_it_runs_out(void **state) {
    (void)state;
    send("k", "pay");
    for (int i = 0; i < 10; i++) {
        struct leased l = receive_as(1000, true);
        assert_int_equal(l.attempt, 1);
        assert_int_equal(l.delivery, DELIVERY_FIRST);
        pass(1000);
    }
    struct message_view v;
    core_message_view(w.core, w.now, find("k")->at.message, &v);
    assert_int_equal(v.crashes, 0);
    assert_int_equal(v.attempts, 0);
    struct leased l = receive_as(1000, true);
    assert_int_equal(verb(&l, VERB_START), SETTLE_OK);
    assert_int_equal(verb(&l, VERB_START), SETTLE_DUPLICATE);
    pass(1000);
    core_message_view(w.core, w.now, find("k")->at.message, &v);
    assert_int_equal(v.crashes, 1);
}

static void a_live_lease_gets_its_full_length_again_after_a_restart(void **state) {
    (void)state;
    send("k", "pay");
    struct leased l = receive_as(10000, false);
    pass(9000);
    restart_after(60000);
    pass(9999);
    assert_int_equal(state_of("k"), STATE_LEASED);
    assert_int_equal(ack(&l, "r"), SETTLE_OK);
}

static void a_released_message_comes_back_at_once_with_no_attempt_spent(void **state) {
    (void)state;
    send("a", "p");
    send("b", "p");
    struct leased l = receive();
    assert_int_equal(verb(&l, VERB_RELEASE), SETTLE_OK);
    assert_int_equal(verb(&l, VERB_RELEASE), SETTLE_DUPLICATE);
    assert_int_equal(ack(&l, "r"), SETTLE_SETTLED);
    struct leased again = receive();
    assert_string_equal(again.key, l.key);
    assert_int_equal(again.attempt, 1);
    assert_int_equal(again.delivery, DELIVERY_FIRST);
}

static void a_lease_whose_reply_never_left_is_undone_without_an_attempt(void **state) {
    (void)state;
    send("k", "p");
    struct leased l = receive();
    core_unlease(w.core, w.now, &l.ref, l.fence);
    struct leased again = receive();
    assert_true(again.ok && again.fence > l.fence);
    assert_int_equal(again.attempt, 1);
    core_unlease(w.core, w.now, &l.ref, l.fence); /* too late: another lease by now */
    assert_int_equal(state_of("k"), STATE_LEASED);
}

static void extend_keeps_the_lease_and_revives_one_that_ran_out_unless_it_was_taken(void **state) {
    (void)state;
    send("k", "p");
    struct leased l = receive_as(1000, false);
    pass(900);
    assert_int_equal(settle_as(&l, (struct settle_in){.verb = VERB_EXTEND, .lease_ms = 5000}, NULL), SETTLE_OK);
    pass(4999);
    assert_int_equal(state_of("k"), STATE_LEASED);
    pass(1);
    assert_int_equal(state_of("k"), STATE_PENDING);
    assert_int_equal(verb(&l, VERB_EXTEND), SETTLE_OK);
    assert_int_equal(state_of("k"), STATE_LEASED);
    assert_false(receive().ok);
    pass(5000);
    assert_true(receive().ok);
    assert_int_equal(verb(&l, VERB_EXTEND), SETTLE_FENCED);
}

/* ---- settling, in CONTRACT.md's order */

static void repeating_the_settling_call_gets_the_stored_answer(void **state) {
    (void)state;
    struct settle_out out;
    send("k", "p");
    struct leased l = receive();
    assert_int_equal(ack(&l, "first"), SETTLE_OK);
    assert_int_equal(settle_as(&l, (struct settle_in){.verb = VERB_ACK, .result = SL("second")}, &out),
                     SETTLE_DUPLICATE);
    assert_int_equal(out.state, STATE_DONE);
    assert_true(slice_eq(find("k")->settle->result, SL("first")));
    assert_int_equal(nack(&l, CLASS_TRANSIENT), SETTLE_SETTLED);
    restart_after(10);
    assert_int_equal(ack(&l, "third"), SETTLE_DUPLICATE);
}

static void a_superseded_token_can_neither_settle_nor_step_nor_extend(void **state) {
    (void)state;
    send("k", "p");
    struct leased old = receive_as(1000, false);
    pass(1000);
    struct leased new = receive();
    assert_true(new.ok);
    for (int round = 0; round < 3; round++) {
        assert_int_equal(ack(&old, "zombie"), SETTLE_FENCED);
        assert_int_equal(nack(&old, CLASS_POISON), SETTLE_FENCED);
        assert_int_equal(verb(&old, VERB_EXTEND), SETTLE_FENCED);
        assert_int_equal(verb(&old, VERB_RELEASE), SETTLE_FENCED);
        assert_int_equal(verb(&old, VERB_START), SETTLE_FENCED);
        assert_int_equal(settle_as(&old, (struct settle_in){.verb = VERB_STEP, .name = SL("s")}, NULL), SETTLE_FENCED);
        if (round == 0) restart_after(5);
        if (round == 1) assert_int_equal(ack(&new, "good"), SETTLE_OK);
    }
    assert_true(slice_eq(find("k")->settle->result, SL("good")));
}

static void an_expired_but_newest_token_still_settles_from_pending_and_from_dead(void **state) {
    (void)state;
    send("k", "p");
    struct leased l = receive_as(1000, false);
    pass(1000);
    assert_int_equal(state_of("k"), STATE_PENDING);
    assert_int_equal(ack(&l, "late"), SETTLE_OK);
    assert_int_equal(state_of("k"), STATE_DONE);
    send("k2", "p");
    for (int i = 0; i < 3; i++) {
        l = receive_as(1000, false);
        pass(1000);
    }
    assert_int_equal(state_of("k2"), STATE_DEAD);
    assert_int_equal(verb(&l, VERB_EXTEND), SETTLE_EXPIRED);
    assert_int_equal(ack(&l, "later"), SETTLE_OK);
    assert_int_equal(state_of("k2"), STATE_DONE);
}

static void effect_ids_are_recorded_even_from_a_refused_ack(void **state) {
    (void)state;
    send("k", "p");
    struct leased old = receive_as(1000, false);
    pass(1000);
    struct leased new = receive();
    settle_as(&old, (struct settle_in){.verb = VERB_ACK, .effect_id = SL("one")}, NULL);
    settle_as(&new, (struct settle_in){.verb = VERB_ACK, .effect_id = SL("two")}, NULL);
    settle_as(&old, (struct settle_in){.verb = VERB_ACK, .effect_id = SL("three")}, NULL);
    settle_as(&new, (struct settle_in){.verb = VERB_ACK, .effect_id = SL("two")}, NULL);
    restart_after(0);
    u32 count;
    assert_true(history_has_effect(find("k")->settle->history, SL("three"), &count));
    assert_int_equal(count, 3);
}

/* ---- retries */

static void transient_failures_back_off_and_the_sixth_is_the_last(void **state) {
    (void)state;
    send("k", "p");
    i64 least = 1000;
    for (int i = 1; i <= 6; i++) {
        struct leased l = receive();
        assert_true(l.ok);
        assert_int_equal(nack(&l, CLASS_TRANSIENT), SETTLE_OK);
        assert_int_equal(nack(&l, CLASS_TRANSIENT), SETTLE_DUPLICATE);
        if (i == 6) break;
        pass(least - 1);
        assert_false(receive().ok); /* jitter only upwards */
        pass(least / 4 + 2);
        least *= 2;
    }
    assert_int_equal(state_of("k"), STATE_DEAD);
}

static void the_delay_of_a_nack_is_a_floor_and_the_cap_holds(void **state) {
    (void)state;
    send("k", "p");
    struct leased l = receive();
    struct settle_in in = {.verb = VERB_NACK, .failure_class = CLASS_TRANSIENT, .delay_ms = 60000};
    assert_int_equal(settle_as(&l, in, NULL), SETTLE_OK);
    pass(59999);
    assert_false(receive().ok);
    pass(1);
    assert_true(receive().ok);
    struct rules r = rules_default();
    struct rng rng;
    rng_seed(&rng, 1);
    for (u32 n = 1; n < 40; n++) assert_in_range(rules_backoff_ms(&r, n, 0, &rng), 1000, 375000);
}

static void unknown_is_tried_three_times_poison_once_and_rejected_is_an_outcome(void **state) {
    (void)state;
    send("u", "p");
    for (int i = 0; i < 3; i++) {
        struct leased l = receive();
        assert_true(l.ok);
        nack(&l, CLASS_UNKNOWN);
        pass(10000);
    }
    assert_int_equal(state_of("u"), STATE_DEAD);
    send("p", "p");
    struct leased l = receive();
    nack(&l, CLASS_POISON);
    assert_int_equal(state_of("p"), STATE_DEAD);
    send("r", "p");
    l = receive();
    assert_int_equal(nack(&l, CLASS_ABSENT), SETTLE_NOT_RECONCILE);
    struct settle_in in = {.verb = VERB_NACK, .failure_class = CLASS_REJECTED, .result = SL("no funds")};
    assert_int_equal(settle_as(&l, in, NULL), SETTLE_OK);
    assert_int_equal(state_of("r"), STATE_REJECTED);
    assert_true(slice_eq(find("r")->settle->result, SL("no funds")));
    assert_int_equal(settle_as(&l, in, NULL), SETTLE_DUPLICATE);
}

static void steps_are_recorded_once_and_survive_attempts_and_restarts(void **state) {
    (void)state;
    struct settle_out out;
    send("k", "p");
    struct leased l = receive();
    struct settle_in step = {
        .verb = VERB_STEP, .name = SL("charge"), .result = SL("ch_1"), .content_type = SL("text/plain")};
    assert_int_equal(settle_as(&l, step, &out), SETTLE_OK);
    step.result = SL("ch_2");
    assert_int_equal(settle_as(&l, step, &out), SETTLE_DUPLICATE);
    assert_true(slice_eq(out.step_result, SL("ch_1")));
    nack(&l, CLASS_TRANSIENT);
    restart_after(10000);
    pass(1);
    l = receive();
    assert_int_equal(settle_as(&l, step, &out), SETTLE_DUPLICATE);
    assert_true(slice_eq(out.step_result, SL("ch_1")));
}

/* ---- time */

static void a_delayed_message_waits_and_downtime_counts(void **state) {
    (void)state;
    send_full("k", "p", NULL, 10000, 0, NULL);
    assert_false(receive().ok);
    pass(4000);
    assert_false(receive().ok);
    restart_after(6000);
    pass(1);
    assert_true(receive().ok);
}

static void a_message_out_of_its_ttl_is_cancelled_unless_it_was_started(void **state) {
    (void)state;
    send_full("k", "p", NULL, 0, 5000, NULL);
    send_full("s", "p", NULL, 0, 5000, NULL);
    struct leased l = receive(); /* k starts in time */
    pass(5000);
    u32 no = core_ttl_due(w.core, w.now);
    assert_true(no != MESSAGE_NONE);
    struct seen *s = find("s");
    assert_int_equal(s->at.message, no);
    assert_int_equal(core_cancel(w.core, w.now, s, SL("ttl"), NULL), CANCEL_OK);
    assert_int_equal(core_ttl_due(w.core, w.now), MESSAGE_NONE);
    assert_int_equal(state_of("s"), STATE_CANCELLED);
    assert_true(slice_eq(find("s")->settle->reason, SL("ttl")));
    assert_int_equal(ack(&l, "r"), SETTLE_OK);
}

static void receiving_past_the_ttl_cancels_instead_of_delivering(void **state) {
    (void)state;
    send_full("k", "p", NULL, 0, 5000, NULL);
    w.now.delay_ms += 6000; /* the tick that would have found it has not come yet */
    assert_false(receive().ok);
    assert_int_equal(state_of("k"), STATE_CANCELLED);
}

/* ---- groups */

static void a_group_is_handed_out_in_order_one_at_a_time_and_groups_are_independent(void **state) {
    (void)state;
    send_full("a1", "p", "A", 0, 0, NULL);
    send_full("a2", "p", "A", 0, 0, NULL);
    send_full("b1", "p", "B", 0, 0, NULL);
    struct leased a1 = receive(), b1 = receive();
    assert_string_equal(a1.key, "a1");
    assert_string_equal(b1.key, "b1");
    assert_false(receive().ok);
    nack(&a1, CLASS_TRANSIENT);
    assert_false(receive().ok); /* the retrying head holds its group back */
    pass(2000);
    a1 = receive();
    assert_string_equal(a1.key, "a1");
    ack(&a1, "r");
    struct leased a2 = receive();
    assert_string_equal(a2.key, "a2");
    ack(&a2, "r");
    ack(&b1, "r");
    struct core_memory m;
    core_memory(w.core, &m);
    assert_int_equal(m.groups, 0);
}

static void a_dead_head_blocks_its_group_until_it_is_cancelled(void **state) {
    (void)state;
    send_full("a1", "p", "A", 0, 0, NULL);
    send_full("a2", "p", "A", 0, 0, NULL);
    struct leased l = receive();
    nack(&l, CLASS_POISON);
    assert_false(receive().ok);
    assert_int_equal(core_cancel(w.core, w.now, find("a1"), SL("skipped"), NULL), CANCEL_OK);
    assert_string_equal(receive().key, "a2");
}

static void group_order_survives_restart_and_compaction(void **state) {
    (void)state;
    for (int i = 0; i < 20; i++) {
        char key[16];
        snprintf(key, sizeof key, "g%02d", i);
        send_full(key, "p", "G", 0, 0, NULL);
        if (i == 9) compact(); /* the first ten are carried behind ... nothing yet */
    }
    compact();
    for (int i = 20; i < 30; i++) {
        char key[16];
        snprintf(key, sizeof key, "g%02d", i);
        send_full(key, "p", "G", 0, 0, NULL);
    }
    compact();
    restart_after(0);
    for (int i = 0; i < 30; i++) {
        char key[16];
        snprintf(key, sizeof key, "g%02d", i);
        struct leased l = receive();
        assert_string_equal(l.key, key);
        assert_false(receive().ok);
        ack(&l, "r");
        if (i == 15) restart_after(0);
    }
}

/* ---- restart and compaction */

static void arrivals_are_counted_exactly_and_the_last_eight_are_kept(void **state) {
    (void)state;
    send("k", "p");
    for (int i = 0; i < 20; i++) {
        pass(2000); /* each is written down on its own */
        assert_int_equal(send("k", "p"), SEND_DUPLICATE);
    }
    send("k", "conflict");
    pass(2000);
    compact();
    restart_after(0);
    struct arrivals a;
    core_arrivals_view(w.core, find("k"), &a);
    assert_int_equal(a.duplicates, 20);
    assert_int_equal(a.total, 21);
    assert_int_equal(a.count, 8);
    assert_int_equal(a.last[7].kind, ARRIVAL_CONFLICT);
    struct queue_info q;
    core_queue_info(w.core, w.now, w.queue, &q);
    assert_int_equal(q.counters.duplicates, 20);
    assert_int_equal(q.counters.conflicts, 1);
}

static enum send_verdict send_from(const char *key, const char *payload, slice request_id) {
    struct send_in in = sending(key, payload);
    in.request_id = request_id;
    struct send_out out;
    return core_send(w.core, w.now, &in, find(key), &out);
}

/* Some have none, some a long one; now and then all is written down, or read back from what was. */
static void the_last_eight_arrivals_keep_their_times_kinds_and_request_ids(void **state) {
    (void)state;
    char ids[100][REQUEST_ID_BYTES_MAX];
    size_t lens[100];
    i64 times[100];
    send("k", "p");
    for (u32 i = 0; i < 100; i++) {
        pass(i % 7 == 3 ? 2000 : 10);
        if (i % 31 == 30) core_stop(w.core, w.now);
        if (i % 31 == 30) restart_after(0);
        lens[i] = i % 3 == 0 || (i > 40 && i < 60) ? 0 : (i * 37) % (REQUEST_ID_BYTES_MAX + 1);
        memset(ids[i], 'a' + (int)(i % 26), sizeof ids[i]);
        times[i] = w.now.wall_ms;
        assert_int_equal(send_from("k", i % 5 ? "p" : "another", slice_of(ids[i], lens[i])),
                         i % 5 ? SEND_DUPLICATE : SEND_CONFLICT);
        struct arrivals a;
        core_arrivals_view(w.core, find("k"), &a);
        assert_int_equal(a.total, i + 1);
        assert_int_equal(a.duplicates, i + 1 - (i / 5 + 1));
        assert_int_equal(a.count, i < 8 ? i + 1 : 8);
        for (u32 k = 0, from = i + 1 - a.count; k < a.count; k++) {
            assert_int_equal(a.last[k].at_ms, times[from + k]);
            assert_int_equal(a.last[k].kind, (from + k) % 5 ? ARRIVAL_REPLAY : ARRIVAL_CONFLICT);
            assert_true(slice_eq(a.last[k].request_id, slice_of(ids[from + k], lens[from + k])));
        }
    }
}

/* More than there are tallies. */
static void however_many_keys_repeat_no_duplicate_writes_down_all_the_others_and_each_is_counted(void **state) {
    (void)state;
    const u32 keys = 20000;
    char key[16];
    u64 most = 0;
    for (u32 i = 0; i < 3 * keys; i++) {
        snprintf(key, sizeof key, "k%u", i % keys);
        u64 before = w.count;
        assert_int_equal(send(key, "p"), i < keys ? SEND_ACCEPTED : SEND_DUPLICATE);
        if (i >= keys && w.count - before > most) most = w.count - before;
    }
    assert_in_range(most, 1, 100);
    core_stop(w.core, w.now);
    restart_after(0);
    for (u32 i = 0; i < keys; i++) {
        struct arrivals a;
        snprintf(key, sizeof key, "k%u", i);
        core_arrivals_view(w.core, find(key), &a);
        assert_int_equal(a.duplicates, 2);
    }
    struct queue_info q;
    core_queue_info(w.core, w.now, w.queue, &q);
    assert_int_equal(q.counters.duplicates, 2 * keys);
}

static void arrivals_follow_a_settled_key_through_compaction(void **state) {
    (void)state;
    send("k", "p");
    struct leased l = receive();
    ack(&l, "r");
    send("k", "p");
    pass(2000);
    compact();
    send("k", "p");
    pass(2000);
    compact();
    compact();
    restart_after(0);
    struct arrivals a;
    core_arrivals_view(w.core, find("k"), &a);
    assert_int_equal(a.duplicates, 2);
    assert_true(slice_eq(find("k")->settle->result, SL("r")));
}

static void arrivals_written_before_the_outcome_survive_the_drop_of_the_message(void **state) {
    (void)state;
    send("k", "p");
    u64 behind_message = w.count;
    send("k", "p");
    pass(2000);
    struct leased l = receive();
    ack(&l, "r");
    compact_upto(behind_message); /* the outcome is newer: nothing of the message is carried */
    restart_after(0);
    struct arrivals a;
    core_arrivals_view(w.core, find("k"), &a);
    assert_int_equal(a.duplicates, 1);
}

/* Recovery moves the last batch of the journal: its records are replayed at other positions than they were written. */
static void an_amended_outcome_replaces_the_first_also_when_both_were_moved(void **state) {
    (void)state;
    send("k", "p");
    struct leased l = receive();
    u64 before = w.count;
    ack(&l, "r");
    settle_as(&l, (struct settle_in){.verb = VERB_ACK, .effect_id = SL("twice")}, NULL);
    assert_int_equal(w.count, before + 2);
    struct core_options options = {.hash_key = {11, 22}};
    struct core *c = core_new(&options);
    struct errbuf err;
    for (u64 i = 0; i < w.count; i++) {
        const struct stored *s = &w.records[i];
        u64 pos = pos_of(i < before ? i : i + 1000);
        assert_int_equal(core_replay(c, pos, s->type, s->version, slice_of(s->body, s->n), &err), ST_OK);
    }
    struct core_memory m;
    core_memory(c, &m);
    assert_int_equal(m.settled_keys, 1);
    struct core_cursor cursor = {0};
    struct found f;
    assert_true(core_find(c, l.ref.hash, &cursor, &f));
    assert_int_equal(f.pos, pos_of(before + 1001));
    core_free(c);
}

static void a_revived_lease_is_the_attempt_it_was(void **state) {
    (void)state;
    struct message_view v;
    send("k", "p");
    struct leased l = receive_as(1000, false);
    pass(1000);
    verb(&l, VERB_EXTEND);
    core_message_view(w.core, w.now, find("k")->at.message, &v);
    assert_int_equal(v.crashes, 0);
    assert_int_equal(v.attempts, 1);
    assert_true(v.started);
    assert_int_equal(verb(&l, VERB_START), SETTLE_DUPLICATE);
    pass(1000);
    core_message_view(w.core, w.now, find("k")->at.message, &v);
    assert_int_equal(v.crashes, 1);
    assert_int_equal(verb(&l, VERB_RELEASE), SETTLE_OK);
    core_message_view(w.core, w.now, find("k")->at.message, &v);
    assert_int_equal(v.crashes, 0);
    assert_int_equal(v.attempts, 0);
}

static void a_reservation_that_lapsed_and_is_settled_late_was_an_attempt(void **state) {
    (void)state;
    send("k", "p");
    struct leased l = receive_as(1000, true);
    pass(1000);
    assert_int_equal(ack(&l, "late"), SETTLE_OK);
    const struct rec_settle *s = find("k")->settle;
    assert_int_equal(s->attempts, 1);
    assert_int_equal(s->crashes, 0);
    struct history_item item;
    u32 at = 0;
    assert_true(history_next(s->history, &at, &item));
    assert_int_equal(item.ended, ENDED_ACKED);
}

static void compaction_and_restart_change_nothing_that_can_be_seen(void **state) {
    (void)state;
    for (int i = 0; i < 60; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        send_full(key, "p", i % 4 == 0 ? "G" : NULL, i % 7 == 0 ? 5000 : 0, 0, NULL);
    }
    struct leased kept[60] = {0};
    u32 leases = 0;
    for (struct leased l; (l = receive_as(60000, false)).ok;) {
        if (leases % 5 == 0) ack(&l, "r");
        if (leases % 5 == 1) nack(&l, CLASS_TRANSIENT);
        if (leases % 5 == 2) nack(&l, CLASS_POISON);
        if (leases % 5 == 3)
            settle_as(&l, (struct settle_in){.verb = VERB_STEP, .name = SL("s"), .result = SL("x")}, NULL);
        kept[leases++] = l;
    }
    core_queue_pause(w.core, w.now, w.queue, true, NULL);
    struct queue_info before, after;
    enum state states[60];
    core_queue_info(w.core, w.now, w.queue, &before);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 60; i++) {
            char key[16];
            snprintf(key, sizeof key, "k%d", i);
            states[i] = state_of(key);
        }
        u64 live = core_live_bytes(w.core);
        compact();
        if (round == 1) compact();
        restart_after(0);
        core_queue_info(w.core, w.now, w.queue, &after);
        assert_memory_equal(&before.counters, &after.counters, sizeof before.counters);
        assert_true(after.paused);
        assert_int_equal(before.ready, after.ready);
        assert_int_equal(before.delayed, after.delayed);
        assert_int_equal(before.behind, after.behind);
        assert_int_equal(before.leased, after.leased);
        assert_int_equal(before.dead, after.dead);
        assert_int_equal(before.settled_keys, after.settled_keys);
        for (int i = 0; i < 60; i++) {
            char key[16];
            snprintf(key, sizeof key, "k%d", i);
            assert_int_equal(states[i], state_of(key));
        }
        u64 now_live = core_live_bytes(w.core); /* carried copies are a little larger */
        assert_true(now_live < live * 2 && live < now_live * 2);
    }
    for (u32 i = 0; i < leases; i++)
        if (i % 5 == 4) assert_int_equal(ack(&kept[i], "late but newest"), SETTLE_OK);
}

static void an_id_never_comes_back_after_everything_was_forgotten(void **state) {
    (void)state;
    struct send_out first, second;
    send_full("k", "p", NULL, 0, 0, &first);
    struct leased l = receive();
    ack(&l, "r");
    pass(rules_default().window_ms * 2);
    compact();
    compact();
    restart_after(0);
    assert_int_equal(send_full("k", "p", NULL, 0, 0, &second), SEND_ACCEPTED);
    assert_true(second.ref.seq > first.ref.seq);
}

static void a_record_naming_a_message_the_journal_lost_is_damage(void **state) {
    (void)state;
    send("a", "p");
    send("b", "p");
    u64 lost = w.count - 1; /* b's record is passed over; a is there to tell that b should be */
    struct leased a = receive(), b = receive();
    ack(&a, "r");
    nack(&b, CLASS_TRANSIENT);
    struct core_options options = {.hash_key = {11, 22}};
    struct core *c = core_new(&options);
    hx_st st = ST_OK;
    struct errbuf err;
    for (u64 i = 0; i < w.count && st == ST_OK; i++) {
        const struct stored *s = &w.records[i];
        if (i != lost) st = core_replay(c, i + 1, s->type, s->version, slice_of(s->body, s->n), &err);
    }
    assert_int_equal(st, ST_DAMAGED);
    core_free(c);
}

/* ---- ids and tokens */

static void tokens_made_side_by_side_are_those_made_one_by_one(void **state) {
    (void)state;
    struct token tokens[TOKENS_TOGETHER], read;
    const struct token *at[TOKENS_TOGETHER];
    u64 codes[TOKENS_TOGETHER], said;
    char together[TOKEN_TEXT];
    struct buf alone = {0};
    for (u32 i = 0; i < TOKENS_TOGETHER; i++) {
        tokens[i] = (struct token){.hash = i * 0x9e3779b97f4a7c15ull, .seq = i + 7, .fence = ~(u64)i};
        at[i] = &tokens[i];
    }
    for (u32 count = 1; count <= TOKENS_TOGETHER; count++) {
        core_token_codes(w.core, at, count, codes);
        for (u32 i = 0; i < count; i++) {
            buf_reset(&alone);
            core_token_text(w.core, &(struct ref){.hash = tokens[i].hash, .seq = tokens[i].seq}, tokens[i].fence,
                            &alone);
            core_token_put(at[i], codes[i], together);
            assert_int_equal(alone.len, TOKEN_TEXT);
            assert_memory_equal(together, alone.p, TOKEN_TEXT);
            assert_true(core_token_split(buf_slice(&alone), &read, &said));
            assert_memory_equal(&read, at[i], sizeof read);
            assert_true(said == codes[i]);
        }
    }
    buf_free(&alone);
}

static void tokens_are_told_apart_garbled_foreign_and_good(void **state) {
    (void)state;
    struct ref ref = {.hash = 0x1234567890abcdef, .seq = 77, .queue = 1};
    struct buf text = {0};
    struct token t;
    core_token_text(w.core, &ref, 99, &text);
    assert_int_equal(text.len, TOKEN_TEXT);
    assert_int_equal(core_token_parse(w.core, buf_slice(&text), &t), TOKEN_OK);
    assert_true(t.hash == ref.hash && t.seq == 77 && t.fence == 99);
    assert_int_equal(core_token_parse(w.core, slice_of(text.p, text.len - 1), &t), TOKEN_INVALID);
    assert_int_equal(core_token_parse(w.core, SL(""), &t), TOKEN_INVALID);
    for (size_t i = 0; i < text.len; i++) {
        char was = text.p[i];
        text.p[i] = was == 'A' ? 'B' : 'A';
        assert_int_equal(core_token_parse(w.core, buf_slice(&text), &t), TOKEN_INVALID);
        text.p[i] = was;
    }
    struct core_options other = {.hash_key = {1, 2}};
    struct core *c = core_new(&other);
    assert_int_equal(core_token_parse(c, buf_slice(&text), &t), TOKEN_FOREIGN);
    core_free(c);
    buf_free(&text);
}

static void ids_name_their_shard_and_those_of_shard_0_are_as_they_ever_were(void **state) {
    (void)state;
    struct send_out first;
    struct errbuf err;
    assert_int_equal(send_full("k", "v", NULL, 0, 0, &first), SEND_ACCEPTED);
    assert_int_equal(first.ref.seq, 1);
    assert_int_equal(seq_shard(first.ref.seq), 0);

    /* The journal of one shard is not another's. */
    struct core_options options = {.hash_key = {11, 22}, .shard = 5};
    struct core *c = core_new(&options);
    struct stored *boot = &w.records[0];
    assert_int_equal(core_replay(c, 1, boot->type, boot->version, slice_of(boot->body, boot->n), &err), ST_DAMAGED);
    assert_non_null(strstr(err.text, "shard 0"));
    core_free(c);

    core_free(w.core);
    for (u64 i = 0; i < w.count; i++) mem_free(w.records[i].body);
    w.count = w.first = 0;
    w.shard = 2047;
    start_core();
    struct rules rules = rules_default();
    assert_true(core_queue_ensure(w.core, w.now, SL("q"), &rules, &w.queue));
    struct send_out there;
    assert_int_equal(send_full("k", "v", NULL, 0, 0, &there), SEND_ACCEPTED);
    assert_int_equal(seq_shard(there.ref.seq), 2047);
    struct leased l = receive();
    struct buf id = {0}, text = {0};
    u64 seq, hash;
    struct token t;
    core_id_text(&there.ref, &id);
    assert_true(core_id_parse(buf_slice(&id), &seq, &hash));
    assert_int_equal(seq_shard(seq), 2047);
    core_token_text(w.core, &l.ref, l.fence, &text);
    assert_int_equal(core_token_parse(w.core, buf_slice(&text), &t), TOKEN_OK);
    assert_int_equal(seq_shard(t.seq), 2047);
    restart_after(0);
    compact();
    restart_after(0);
    assert_int_equal(ack(&l, "done"), SETTLE_OK);
    assert_int_equal(send("k", "v"), SEND_DUPLICATE);
    buf_free(&id);
    buf_free(&text);
}

static void a_record_that_no_message_in_that_state_can_have_is_damage(void **state) {
    (void)state;
    struct send_out out;
    struct errbuf err;
    assert_int_equal(send_full("k", "v", NULL, 0, 0, &out), SEND_ACCEPTED);
    struct record r = {.type = REC_START, .start = {.ref = out.ref, .attempts = 1}};
    char body[64];
    size_t n = record_encode(&r, body);
    struct core *c = replayed_core();
    assert_int_equal(core_replay(c, w.count + 1, REC_START, RECORD_VERSION, slice_of(body, n), &err), ST_DAMAGED);
    assert_non_null(strstr(err.text, "start record"));
    core_free(c);
}

static void however_often_the_clock_is_set_back_what_is_old_stays_old(void **state) {
    (void)state;
    const i64 hour = 3600000;
    i64 began = w.now.wall_ms, passed = 0;
    pass(1000);
    for (int i = 0; i < 40; i++) {
        w.now.wall_ms -= hour;
        pass(60000);
        passed += 60000;
    }
    i64 old = w.now.wall_ms - began + core_set_back_ms(w.core, w.now, began);
    if (old < passed) fail_msg("%lld ms old after %lld", (long long)old, (long long)passed);
}

/* What was begun before it was set back is older than the clock says, also where no record of that time is left. */
static void that_the_clock_was_set_back_outlives_compaction_and_restarts(void **state) {
    (void)state;
    const i64 hour = 3600000;
    i64 began[3];
    for (int i = 0; i < 3; i++) {
        began[i] = w.now.wall_ms;
        pass(2 * hour);
        w.now.wall_ms -= hour;
        pass(3 * hour / 2); /* it shows what it did not show before */
    }
    for (int lives = 0; lives < 3; lives++) {
        for (int i = 0; i < 3; i++) {
            i64 back = core_set_back_ms(w.core, w.now, began[i]);
            if (back < (3 - i) * hour || back > (3 - i) * hour + 5000)
                fail_msg("%d: set back by %lld ms", i, (long long)back);
        }
        compact();
        restart_after(0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        T(a_record_that_no_message_in_that_state_can_have_is_damage),
        T(ids_name_their_shard_and_those_of_shard_0_are_as_they_ever_were),
        T(a_key_is_admitted_once_and_repeats_get_the_original),
        T(a_changed_payload_under_a_known_key_is_a_conflict_before_and_after_settlement),
        T(the_same_key_in_another_queue_is_another_key),
        T(a_key_is_remembered_for_its_window_of_running_time_and_then_new),
        T(keys_past_their_window_are_forgotten_and_their_memory_freed),
        T(an_unsettled_key_never_expires),
        T(full_means_no_new_message_but_lease_and_settlement_of_the_accepted_ones),
        T(a_larger_result_is_refused_when_full_and_accepted_once_there_is_room),
        T(what_is_promised_is_given_back_when_everything_is_settled),
        T(a_downtime_that_was_said_need_not_be_said_again),
        T(starts_and_idling_on_a_full_disk_leave_the_room_for_a_purge),
        T(how_often_a_key_came_again_survives_being_carried_apart_from_it),
        T(carrying_messages_with_long_histories_takes_no_room_that_was_promised),
        T(windows_that_end_on_a_full_disk_take_no_room_of_accepted_work),
        T(what_settles_after_a_crash_is_remembered_though_clocks_had_no_room_before),
        T(on_a_full_disk_work_is_leased_begun_renewed_and_settled),
        T(a_renewed_lease_is_renewed_after_a_restart_too),
        T(the_days_of_a_queue_outlive_restarts_and_compaction),
        T(on_a_full_disk_the_last_room_is_for_deeds_that_make_some),
        T(a_paused_queue_has_paid_for_its_resumption_however_long_its_rules_are),
        T(a_message_has_one_live_lease),
        T(fences_grow_over_leases_restarts_and_clock_steps),
        T(a_lease_that_runs_out_counts_a_crash_and_three_make_it_dead),
        T(a_reservation_that_was_never_started_costs_nothing_when_it_runs_out),
        T(a_live_lease_gets_its_full_length_again_after_a_restart),
        T(a_released_message_comes_back_at_once_with_no_attempt_spent),
        T(a_lease_whose_reply_never_left_is_undone_without_an_attempt),
        T(extend_keeps_the_lease_and_revives_one_that_ran_out_unless_it_was_taken),
        T(repeating_the_settling_call_gets_the_stored_answer),
        T(a_superseded_token_can_neither_settle_nor_step_nor_extend),
        T(an_expired_but_newest_token_still_settles_from_pending_and_from_dead),
        T(effect_ids_are_recorded_even_from_a_refused_ack),
        T(transient_failures_back_off_and_the_sixth_is_the_last),
        T(the_delay_of_a_nack_is_a_floor_and_the_cap_holds),
        T(unknown_is_tried_three_times_poison_once_and_rejected_is_an_outcome),
        T(steps_are_recorded_once_and_survive_attempts_and_restarts),
        T(a_delayed_message_waits_and_downtime_counts),
        T(a_message_out_of_its_ttl_is_cancelled_unless_it_was_started),
        T(receiving_past_the_ttl_cancels_instead_of_delivering),
        T(a_group_is_handed_out_in_order_one_at_a_time_and_groups_are_independent),
        T(a_dead_head_blocks_its_group_until_it_is_cancelled),
        T(group_order_survives_restart_and_compaction),
        T(arrivals_are_counted_exactly_and_the_last_eight_are_kept),
        T(the_last_eight_arrivals_keep_their_times_kinds_and_request_ids),
        T(however_many_keys_repeat_no_duplicate_writes_down_all_the_others_and_each_is_counted),
        T(arrivals_follow_a_settled_key_through_compaction),
        T(arrivals_written_before_the_outcome_survive_the_drop_of_the_message),
        T(an_amended_outcome_replaces_the_first_also_when_both_were_moved),
        T(a_revived_lease_is_the_attempt_it_was),
        T(a_reservation_that_lapsed_and_is_settled_late_was_an_attempt),
        T(compaction_and_restart_change_nothing_that_can_be_seen),
        T(an_id_never_comes_back_after_everything_was_forgotten),
        T(a_record_naming_a_message_the_journal_lost_is_damage),
        T(tokens_made_side_by_side_are_those_made_one_by_one),
        T(tokens_are_told_apart_garbled_foreign_and_good),
        T(however_often_the_clock_is_set_back_what_is_old_stays_old),
        T(that_the_clock_was_set_back_outlives_compaction_and_restarts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
