/* Requests to other servers leave when what they depend on is durable, once, and in bounds. */
#include "broker_world.h"

#include "broker/broker_priv.h"
#include "broker/fetch.h"

static struct told {
    u32 count;
    u64 arg;
    enum outbound_end end;
    u32 status;
    bool again; /* ask for another one while being told */
} told;

static const char *const headers[] = {"X-One: a", "X-Two: b", NULL};
static const struct outbound_request one = {.method = "POST",
                                            .url = "https://terminal.example/slots",
                                            .headers = headers,
                                            .body = {"{}", 2},
                                            .answer_max = 1000};

static void on_done(struct broker *b, u64 arg, const struct outbound_answer *a) {
    told.count++;
    told.arg = arg;
    told.end = a->end;
    told.status = a->status;
    if (told.again) assert_true(fetch(b, &one, on_done, arg + 1));
}

static int set_up_fetch(void **state) {
    told = (struct told){0};
    return set_up(state);
}

static void send_one(const char *key) {
    assert_int_equal(submit("POST /v1/queues/q/messages", key, SL("{}"), NULL), 202);
}

static void nothing_leaves_before_what_it_depends_on_is_durable(void **state) {
    (void)state;
    send_one("k1"); /* appended, not durable */
    assert_true(fetch(w.broker, &one, on_done, 5));
    assert_int_equal(w.fetch_count, 0);
    assert_int_equal(broker_fetches(w.broker), 1);
    work();
    assert_int_equal(w.fetch_count, 1);
    assert_string_equal(w.fetched.p, "POST https://terminal.example/slots X-One: a X-Two: b {}\n");
    assert_int_equal(told.count, 0);
    struct outbound_answer a = {.end = OUTBOUND_ANSWERED, .status = 201, .why = ""};
    broker_fetched(w.broker, w.t, w.fetches[0], &a);
    assert_int_equal(told.count, 1);
    assert_int_equal(told.arg, 5);
    assert_int_equal(told.status, 201);
    assert_int_equal(broker_fetches(w.broker), 0);
}

/* Its lease is over by then, and somebody else may be at work on the same. */
static void what_waited_for_the_disk_for_too_long_does_not_leave(void **state) {
    (void)state;
    struct outbound_request bounded = one;
    bounded.total_ms = 4000;
    send_one("k1");
    assert_true(fetch(w.broker, &bounded, on_done, 5));
    broker_turn_end(w.broker, w.t);
    w.t.mono_ms += 4000;
    w.t.wall_ms += 4000;
    work();
    work();
    assert_int_equal(w.fetch_count, 0);
    assert_int_equal(told.count, 1);
    assert_int_equal(told.end, OUTBOUND_NOT_SENT);
    assert_int_equal(broker_fetches(w.broker), 0);
}

static void what_depends_on_nothing_new_leaves_at_once_and_is_told_later(void **state) {
    (void)state;
    work();
    w.fetch_room = 0;
    assert_true(fetch(w.broker, &one, on_done, 1));
    assert_int_equal(told.count, 0); /* never from within */
    work();
    assert_int_equal(told.count, 1);
    assert_int_equal(told.end, OUTBOUND_NOT_SENT);
    assert_int_equal(broker_fetches(w.broker), 0);
}

static void whoever_is_told_may_ask_for_the_next(void **state) {
    (void)state;
    told.again = true;
    work();
    assert_true(fetch(w.broker, &one, on_done, 1));
    struct outbound_answer a = {.end = OUTBOUND_BROKEN, .why = "cut"};
    for (u32 i = 0; i < 10; i++) broker_fetched(w.broker, w.t, w.fetches[i], &a);
    assert_int_equal(told.count, 10);
    assert_int_equal(told.arg, 10);
    assert_int_equal(broker_fetches(w.broker), 1);
    assert_true(w.fetches[0] != w.fetches[1]); /* the place is the same, the number is not */
}

static void they_are_bounded_in_number(void **state) {
    u32 taken = 0;
    (void)state;
    close_broker();
    w.fetches_max = 40;
    open_broker();
    while (taken < 1000 && fetch(w.broker, &one, on_done, taken)) taken++;
    assert_int_equal(taken, 40);
    assert_false(fetch_room(w.broker, 1));
    struct outbound_answer a = {.end = OUTBOUND_BROKEN, .why = "cut"};
    broker_fetched(w.broker, w.t, w.fetches[7], &a);
    assert_true(fetch_room(w.broker, 1));
    assert_true(fetch(w.broker, &one, on_done, 0));
    assert_false(fetch(w.broker, &one, on_done, 0));
}

static void they_are_bounded_in_bytes_and_answers_count_before_they_come(void **state) {
    struct outbound_request large = one;
    u32 taken = 0;
    (void)state;
    close_broker();
    w.memory_max = 1u << 30;
    open_broker();
    large.answer_max = 32u << 20;
    while (taken < 1000 && fetch(w.broker, &large, on_done, taken)) taken++;
    assert_int_equal(taken, 3); /* of 128 MiB */
    assert_true(fetch_room(w.broker, fetch_bytes(&one)));
    struct outbound_answer a = {.end = OUTBOUND_BROKEN, .why = "cut"};
    broker_fetched(w.broker, w.t, w.fetches[0], &a);
    assert_true(fetch(w.broker, &large, on_done, 0));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_fetch, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(nothing_leaves_before_what_it_depends_on_is_durable),
        TEST(what_waited_for_the_disk_for_too_long_does_not_leave),
        TEST(what_depends_on_nothing_new_leaves_at_once_and_is_told_later),
        TEST(whoever_is_told_may_ask_for_the_next),
        TEST(they_are_bounded_in_number),
        TEST(they_are_bounded_in_bytes_and_answers_count_before_they_come),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
