/* Targets and their circuits, by a clock of the test's own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/hist.h"
#include "broker/broker_priv.h"
#include "broker/target.h"

#define OPEN_MS 30000
#define SLOT_MS 6000 /* a minute, in CIRCUIT_SLOTS parts */

static struct target *t;
static i64 now;

static int fresh(void **state) {
    (void)state;
    struct target_rules r = target_rules_default();
    now = 1000000;
    t = target_new(&r, 1, now);
    return 0;
}

static int done(void **state) {
    (void)state;
    struct target_view v;
    for (target_look(t, now, &v); v.in_flight > 0; v.in_flight--) target_ended(t, now, TARGET_NEITHER, false, 0);
    target_free(t);
    return 0;
}

static void rule(struct target_rules r) {
    target_rule(t, now, &r, false);
}

static struct target_view look(void) {
    struct target_view v;
    target_look(t, now, &v);
    return v;
}

static bool may(bool *probe) {
    i64 again_ms;
    return target_may_send(t, now, probe, &again_ms);
}

static i64 asked_again(void) {
    bool probe;
    i64 again_ms;
    assert_false(target_may_send(t, now, &probe, &again_ms));
    return again_ms;
}

/* One call goes out; returns whether it is the probe. */
static bool send_one(void) {
    bool probe;
    assert_true(may(&probe));
    target_sent(t, now, probe);
    return probe;
}

static void call(enum target_outcome outcome) {
    bool probe = send_one();
    target_ended(t, now, outcome, probe, 0);
}

static void calls(u32 n, enum target_outcome outcome) {
    for (u32 i = 0; i < n; i++) call(outcome);
}

/* As many as may be under way; returns how many that were. None of them is a probe. */
static u32 fill(void) {
    bool probe;
    u32 n = 0;
    for (; may(&probe); n++) {
        assert_false(probe);
        target_sent(t, now, false);
    }
    return n;
}

static void open_it(void) {
    calls(10, TARGET_FAILED);
    assert_int_equal(look().circuit, CIRCUIT_OPEN);
}

static void wait_for_probe(void) {
    now = look().probe_ms;
}

/* ---- opening */

static void a_circuit_opens_at_the_ratio_of_enough_calls(void **state) {
    (void)state;
    calls(9, TARGET_FAILED);
    assert_int_equal(look().circuit, CIRCUIT_CLOSED);
    call(TARGET_FAILED);
    assert_int_equal(look().circuit, CIRCUIT_OPEN);
    assert_int_equal(look().down_ms, now);
}

static void below_the_ratio_it_stays_closed(void **state) {
    (void)state;
    calls(6, TARGET_TAKEN);
    calls(5, TARGET_FAILED);
    assert_int_equal(look().circuit, CIRCUIT_CLOSED);
    call(TARGET_FAILED);
    assert_int_equal(look().circuit, CIRCUIT_OPEN);
}

static void an_answer_alone_never_opens_it(void **state) {
    (void)state;
    calls(9, TARGET_FAILED);
    calls(5, TARGET_TAKEN);
    assert_int_equal(look().circuit, CIRCUIT_CLOSED);
}

static void failures_older_than_within_do_not_count(void **state) {
    (void)state;
    calls(9, TARGET_FAILED);
    now += CIRCUIT_SLOTS * SLOT_MS;
    calls(9, TARGET_FAILED);
    assert_int_equal(look().circuit, CIRCUIT_CLOSED);
    now += (CIRCUIT_SLOTS - 1) * SLOT_MS;
    call(TARGET_FAILED);
    assert_int_equal(look().circuit, CIRCUIT_OPEN);
}

static void what_was_not_sent_after_all_tells_nothing(void **state) {
    (void)state;
    calls(1000, TARGET_NEITHER);
    calls(9, TARGET_FAILED);
    assert_int_equal(look().circuit, CIRCUIT_CLOSED);
    call(TARGET_FAILED);
    assert_int_equal(look().circuit, CIRCUIT_OPEN);
}

static void a_new_within_counts_anew(void **state) {
    (void)state;
    struct target_rules r = target_rules_default();
    calls(9, TARGET_FAILED);
    r.circuit.within_ms = 10000;
    rule(r);
    call(TARGET_FAILED);
    assert_int_equal(look().circuit, CIRCUIT_CLOSED);
}

/* ---- open, and the probe */

static void while_open_nothing_is_sent(void **state) {
    (void)state;
    open_it();
    i64 probe_ms = look().probe_ms;
    assert_in_range(probe_ms - now, OPEN_MS, OPEN_MS + OPEN_MS / 10);
    assert_int_equal(asked_again(), probe_ms);
    now = probe_ms - 1;
    assert_int_equal(asked_again(), probe_ms);
}

static void half_open_lets_exactly_one_probe_out(void **state) {
    (void)state;
    open_it();
    wait_for_probe();
    assert_true(send_one());
    assert_int_equal(look().circuit, CIRCUIT_HALF_OPEN);
    now += 3600000;
    assert_int_equal(asked_again(), INT64_MAX);
}

static void a_failed_probe_doubles_the_time_up_to_five_minutes(void **state) {
    (void)state;
    open_it();
    i64 down_ms = look().down_ms, open_ms = OPEN_MS;
    for (u32 i = 0; i < 10; i++) {
        wait_for_probe();
        call(TARGET_FAILED);
        open_ms = open_ms * 2 < CIRCUIT_OPEN_MS_MAX ? open_ms * 2 : CIRCUIT_OPEN_MS_MAX;
        assert_int_equal(look().circuit, CIRCUIT_OPEN);
        assert_in_range(look().probe_ms - now, open_ms, open_ms + open_ms / 10);
        assert_int_equal(look().down_ms, down_ms);
    }
}

static void targets_that_fail_together_do_not_probe_together(void **state) {
    (void)state;
    struct target_rules r = target_rules_default();
    i64 times[20];
    u32 same = 0;
    for (u64 seed = 0; seed < 20; seed++) {
        target_free(t);
        t = target_new(&r, seed, now);
        open_it();
        times[seed] = look().probe_ms;
        for (u64 i = 0; i < seed; i++) same += times[i] == times[seed];
    }
    assert_true(same < 4);
}

static void a_probe_that_told_nothing_is_followed_by_another(void **state) {
    (void)state;
    open_it();
    wait_for_probe();
    call(TARGET_NEITHER);
    assert_true(send_one());
}

static void calls_of_before_the_outage_change_nothing(void **state) {
    (void)state;
    bool probe;
    for (u32 i = 0; i < 20; i++) target_sent(t, now, false);
    i64 began = now;
    calls(10, TARGET_FAILED);
    target_ended(t, now, TARGET_TAKEN, false, 0);
    assert_int_equal(look().circuit, CIRCUIT_OPEN);
    wait_for_probe();
    call(TARGET_TAKEN);
    assert_int_equal(look().circuit, CIRCUIT_CLOSED);
    now += 10;
    for (u32 i = 0; i < 19; i++) target_ended(t, now, TARGET_FAILED, false, (u64)(now - began) * 1000);
    assert_int_equal(look().circuit, CIRCUIT_CLOSED);
    assert_int_equal(look().window, 1);
    assert_true(may(&probe));
}

static void somebody_who_knows_it_is_back_need_not_wait(void **state) {
    (void)state;
    open_it();
    target_wait(t, now, 60000);
    target_try(t, now);
    assert_true(send_one());
}

static void another_place_has_another_circuit(void **state) {
    (void)state;
    struct target_rules r = target_rules_default();
    open_it();
    target_wait(t, now, 60000);
    target_rule(t, now, &r, true);
    assert_int_equal(look().circuit, CIRCUIT_CLOSED);
    assert_int_equal(fill(), r.concurrency);
    for (u32 i = 0; i < r.concurrency; i++) target_ended(t, now, TARGET_TAKEN, false, 0);
}

/* ---- recovery */

static void recovery_begins_with_one_call_and_doubles_every_round_trip(void **state) {
    (void)state;
    open_it();
    wait_for_probe();
    call(TARGET_TAKEN);
    for (u32 round = 1; round <= 32; round *= 2) {
        assert_int_equal(fill(), round);
        now += 10;
        for (u32 i = 0; i < round; i++) target_ended(t, now, TARGET_TAKEN, false, 1000);
    }
    assert_int_equal(look().window, 0);
}

static void a_failure_halves_what_a_recovering_target_gets(void **state) {
    (void)state;
    open_it();
    wait_for_probe();
    call(TARGET_TAKEN);
    calls(7, TARGET_TAKEN);
    assert_int_equal(look().window, 8);
    call(TARGET_FAILED);
    assert_int_equal(look().window, 4);
    assert_int_equal(look().circuit, CIRCUIT_CLOSED);
}

static void an_outage_before_it_has_recovered_lasts_longer(void **state) {
    (void)state;
    open_it();
    wait_for_probe();
    call(TARGET_TAKEN);
    open_it();
    assert_true(look().probe_ms - now >= 2 * OPEN_MS);
    wait_for_probe();
    call(TARGET_TAKEN);
    calls(40, TARGET_TAKEN);
    now += 60000;
    open_it();
    assert_in_range(look().probe_ms - now, OPEN_MS, OPEN_MS + OPEN_MS / 10);
}

/* One that answers its probes and nothing else would else be down for a minute, then for two, and never long enough to be told. */
static void a_target_that_fails_again_at_once_was_down_all_the_time(void **state) {
    (void)state;
    open_it();
    i64 down_ms = now;
    for (u32 i = 0; i < 3; i++) {
        wait_for_probe();
        call(TARGET_TAKEN);
        now += 1000;
        open_it();
        assert_int_equal(look().down_ms, down_ms);
    }
    wait_for_probe();
    call(TARGET_TAKEN);
    now += 61000; /* it was asked nothing for longer than failures count: what comes now is another outage */
    open_it();
    assert_int_equal(look().down_ms, now);
    wait_for_probe();
    call(TARGET_TAKEN);
    calls(40, TARGET_TAKEN);
    now += 1000;
    calls(40, TARGET_FAILED);
    assert_int_equal(look().down_ms, now);
}

/* ---- the rest that keeps calls back */

static void no_more_are_under_way_than_the_rules_say(void **state) {
    (void)state;
    assert_int_equal(fill(), 32);
    assert_int_equal(asked_again(), INT64_MAX);
    target_ended(t, now, TARGET_TAKEN, false, 0);
    assert_int_equal(fill(), 1);
    for (u32 i = 0; i < 32; i++) target_ended(t, now, TARGET_TAKEN, false, 0);
}

/* Sends whenever it may, and looks at no other time. */
static u32 sent_within(i64 ms) {
    bool probe;
    i64 again_ms, end = now + ms;
    u32 n = 0;
    while (now < end) {
        if (!target_may_send(t, now, &probe, &again_ms)) {
            assert_true(again_ms > now && again_ms != INT64_MAX);
            now = again_ms;
            continue;
        }
        target_sent(t, now, probe);
        target_ended(t, now, TARGET_TAKEN, probe, 0);
        n++;
    }
    return n;
}

static void the_rate_holds_over_a_second_and_over_a_minute(void **state) {
    (void)state;
    struct target_rules r = target_rules_default();
    r.rate_per_min = 6000;
    rule(r);
    assert_in_range(sent_within(1000), 100, 110);
    assert_in_range(sent_within(10000), 995, 1005);
    r.rate_per_min = 3;
    rule(r);
    now += 60000;
    assert_int_equal(sent_within(60000), 3);
}

static void a_target_that_asks_for_time_gets_it_but_no_more_than_an_hour(void **state) {
    (void)state;
    target_wait(t, now, 5000);
    target_wait(t, now, 1000);
    assert_int_equal(asked_again(), now + 5000);
    target_wait(t, now, INT64_C(1) << 40);
    assert_int_equal(asked_again(), now + 3600000);
    now += 3600000;
    assert_int_equal(look().wait_ms, 0);
    call(TARGET_TAKEN);
}

static void a_paused_target_gets_nothing_until_it_is_resumed(void **state) {
    (void)state;
    target_pause(t, 0, true, SL(""), SL(""));
    now += 1000000000;
    assert_int_equal(asked_again(), INT64_MAX);
    target_pause(t, 0, false, SL(""), SL(""));
    call(TARGET_TAKEN);
}

static void one_that_fails_leaves_others_alone(void **state) {
    (void)state;
    struct target_rules r = target_rules_default();
    struct target *failing = t, *other = target_new(&r, 2, now);
    open_it();
    t = other;
    assert_int_equal(fill(), 32);
    for (u32 i = 0; i < 32; i++) target_ended(t, now, TARGET_TAKEN, false, 0);
    target_free(other);
    t = failing;
}

/* ---- showing */

static void answers_are_counted_by_class_and_the_last_error_is_kept(void **state) {
    (void)state;
    char long_text[1000];
    memset(long_text, 'x', sizeof long_text);
    struct target_answer taken = {.status = 200},
                         failed = {.failure_class = CLASS_TRANSIENT, .status = 503, .why = SL("503")},
                         looked = {.lookup = true,
                                   .failure_class = CLASS_UNKNOWN,
                                   .why = {.p = long_text, .n = sizeof long_text}},
                         absent = {.lookup = true, .failure_class = CLASS_ABSENT, .status = 404};
    target_answered(t, 1, &taken);
    assert_int_equal(look().error->wall_ms, 0);
    target_answered(t, 2, &failed);
    target_answered(t, 3, &taken);
    assert_int_equal(look().pushes[CLASS_NONE], 2);
    assert_int_equal(look().pushes[CLASS_TRANSIENT], 1);
    assert_int_equal(look().error->wall_ms, 2);
    assert_string_equal(look().error->why, "503");
    target_answered(t, 4, &looked);
    target_answered(t, 5, &absent);
    assert_int_equal(look().lookups, 2);
    assert_int_equal(look().pushes[CLASS_UNKNOWN], 0);
    assert_true(look().error->lookup && look().error->wall_ms == 4);
    assert_int_equal(strlen(look().error->why), TARGET_ERROR_BYTES);
}

/* ---- a broker's */

static void targets_are_due_in_the_order_of_their_times(void **state) {
    (void)state;
    struct target_rules r = target_rules_default();
    struct broker b = {.targets = targets_new(), .time = {.mono_ms = now}};
    struct rng rng;
    i64 last = 0;
    u32 n = 0;
    rng_seed(&rng, 7);
    for (u16 queue = 1; queue <= 300; queue++) targets_bind(&b, queue, &r, 1);
    while (targets_due(&b, now)) n++; /* each is looked at when its rules come */
    assert_int_equal(n, 300);
    assert_int_equal(targets_next_ms(&b, now, 250), 250);
    for (u32 i = 0; i < 2000; i++)
        target_again(&b, target_of(&b, (u16)(1 + rng_below(&rng, 300))), now + 1 + (i64)rng_below(&rng, 1000));
    for (u16 queue = 1; queue <= 300; queue += 3) targets_bind(&b, queue, NULL, 0);
    for (n = 0; targets_next_ms(&b, now, 5000) < 5000; n++) {
        i64 at = now + targets_next_ms(&b, now, 5000);
        assert_true(at >= last);
        struct target *due = targets_due(&b, at);
        assert_non_null(due);
        assert_ptr_equal(target_of(&b, target_queue(due)), due);
        last = at;
    }
    assert_int_equal(n, 200);
    targets_free(b.targets);
}

static void a_target_lives_until_its_last_call_has_ended(void **state) {
    (void)state;
    struct target_rules r = target_rules_default();
    struct broker b = {.targets = targets_new(), .time = {.mono_ms = now}};
    targets_bind(&b, 5, &r, 1);
    struct target *old = target_of(&b, 5);
    target_sent(old, now, false);
    targets_bind(&b, 5, NULL, 0);
    assert_null(target_of(&b, 5));
    assert_int_equal(target_queue(old), 0);
    targets_bind(&b, 5, &r, 1);
    assert_ptr_not_equal(target_of(&b, 5), old);
    target_ended(old, now, TARGET_FAILED, false, 0);
    targets_free(b.targets);
}

static void a_reload_keeps_what_is_known_of_a_target(void **state) {
    (void)state;
    struct target_rules r = target_rules_default();
    struct target *mine = t;
    struct broker b = {.targets = targets_new(), .time = {.mono_ms = now}};
    targets_bind(&b, 5, &r, 1);
    t = target_of(&b, 5);
    open_it();
    targets_bind(&b, 5, &r, 1);
    assert_ptr_equal(target_of(&b, 5), t);
    assert_int_equal(look().circuit, CIRCUIT_OPEN);
    assert_true(send_one()); /* what failed may have been the rules: one call tells */
    target_ended(t, now, TARGET_FAILED, true, 0);
    assert_int_equal(look().circuit, CIRCUIT_OPEN);
    targets_bind(&b, 5, &r, 2);
    assert_int_equal(look().circuit, CIRCUIT_CLOSED);
    t = mine;
    targets_free(b.targets);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fresh, done)
int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_circuit_opens_at_the_ratio_of_enough_calls),
        TEST(below_the_ratio_it_stays_closed),
        TEST(an_answer_alone_never_opens_it),
        TEST(failures_older_than_within_do_not_count),
        TEST(what_was_not_sent_after_all_tells_nothing),
        TEST(a_new_within_counts_anew),
        TEST(while_open_nothing_is_sent),
        TEST(half_open_lets_exactly_one_probe_out),
        TEST(a_failed_probe_doubles_the_time_up_to_five_minutes),
        TEST(targets_that_fail_together_do_not_probe_together),
        TEST(a_probe_that_told_nothing_is_followed_by_another),
        TEST(calls_of_before_the_outage_change_nothing),
        TEST(somebody_who_knows_it_is_back_need_not_wait),
        TEST(another_place_has_another_circuit),
        TEST(recovery_begins_with_one_call_and_doubles_every_round_trip),
        TEST(a_failure_halves_what_a_recovering_target_gets),
        TEST(an_outage_before_it_has_recovered_lasts_longer),
        TEST(a_target_that_fails_again_at_once_was_down_all_the_time),
        TEST(no_more_are_under_way_than_the_rules_say),
        TEST(the_rate_holds_over_a_second_and_over_a_minute),
        TEST(a_target_that_asks_for_time_gets_it_but_no_more_than_an_hour),
        TEST(a_paused_target_gets_nothing_until_it_is_resumed),
        TEST(one_that_fails_leaves_others_alone),
        TEST(answers_are_counted_by_class_and_the_last_error_is_kept),
        TEST(targets_are_due_in_the_order_of_their_times),
        TEST(a_target_lives_until_its_last_call_has_ended),
        TEST(a_reload_keeps_what_is_known_of_a_target),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
