/* The broker as the consumer of its own queues: what leaves, when, and what becomes of it. */
#include "broker_world.h"

#include "broker/broker_priv.h"
#include "broker/room.h"

#define DELIVER(more) "{\"retry\":{\"transient\":{\"attempts\":3,\"backoff\":\"1ms\",\"max\":\"1ms\"}}," more "}"
#define TO            "\"downstream\":{\"idempotency\":\"key\"},\"deliver\":{\"url\":\"https://t.example/x\""

static void begin(void) {
    struct errbuf err;
    assert_int_equal(broker_configure(w.broker, w.t, config_default(), NULL, SL(""), &err), ST_OK);
    work();
}

static int set_up_push(void **state) {
    set_up(state);
    begin();
    return 0;
}

static void rule(const char *queue, const char *json) {
    char line[64];
    snprintf(line, sizeof line, "PUT /v1/queues/%s", queue);
    u16 status = call(line, json);
    if (status != 201 && status != 200) print_error("%s\n", w.body.p);
    assert_true(status == 201 || status == 200);
}

static void answer(u32 number, u32 status, const char *body) {
    struct outbound_answer a = {.end = OUTBOUND_ANSWERED, .status = status, .body = slice_str(body), .why = ""};
    broker_fetched(w.broker, w.t, w.fetches[number], &a);
    work();
}

static void end(u32 number, enum outbound_end how) {
    struct outbound_answer a = {.end = how, .why = "cut"};
    broker_fetched(w.broker, w.t, w.fetches[number], &a);
    work();
}

static void assert_key(const char *queue, const char *key, const char *part) {
    char line[128];
    snprintf(line, sizeof line, "GET /v1/queues/%s/keys/%s", queue, key);
    assert_int_equal(call(line, ""), 200);
    assert_said(part);
}

static void nothing_is_sent_before_its_lease_is_durable(void **state) {
    (void)state;
    rule("q", DELIVER(TO "}"));
    assert_int_equal(submit("POST /v1/queues/q/messages", "k", SL("x"), NULL), 202);
    broker_turn_end(w.broker, w.t); /* leased; the disk has not synced yet */
    assert_int_equal(broker_fetches(w.broker), 1);
    assert_int_equal(w.fetch_count, 0);
    work();
    assert_int_equal(w.fetch_count, 1);
    assert_key("q", "k", "\"state\":\"leased\"");
    answer(0, 200, "fine");
    assert_key("q", "k", "\"state\":\"done\"");
}

static void nothing_is_sent_by_rules_of_before_the_config_in_force(void **state) {
    (void)state;
    rule("q", DELIVER(TO "}"));
    w.fetch_room = 0; /* the world takes none: not sent */
    send("q", "k", "x");
    restart();
    w.fetch_room = 64;
    w.fetch_count = 0;
    pass(60000);
    assert_int_equal(w.fetch_count, 0);
    begin();
    pass(1000);
    assert_int_equal(w.fetch_count, 1);
    answer(0, 200, "");
}

static void nothing_new_is_leased_while_it_drains(void **state) {
    (void)state;
    rule("q", DELIVER(TO ",\"concurrency\":1}"));
    send("q", "k1", "x");
    send("q", "k2", "x");
    assert_int_equal(w.fetch_count, 1);
    broker_drain(w.broker, w.t);
    answer(0, 200, "");
    pass(1000);
    assert_int_equal(w.fetch_count, 1);
    assert_int_equal(broker_fetches(w.broker), 0);
}

static void a_failed_probe_costs_no_attempt(void **state) {
    (void)state;
    rule("q", DELIVER(TO ",\"circuit\":{\"ratio\":\"50%\",\"of\":2,\"within\":\"1m\",\"open\":\"10s\"}}"));
    send("q", "k1", "x");
    send("q", "k2", "x");
    end(0, OUTBOUND_NOT_SENT);
    end(1, OUTBOUND_NOT_SENT); /* open now */
    pass(100);
    assert_int_equal(w.fetch_count, 2);
    for (u32 probe = 0; probe < 6; probe++) { /* more than attempts there are */
        u32 before = w.fetch_count;
        for (u32 i = 0; i < 400 && w.fetch_count == before; i++) pass(1000);
        assert_int_equal(w.fetch_count, before + 1);
        answer(before, 503, "");
    }
    assert_key("q", "k1", "\"state\":\"pending\"");
    assert_key("q", "k2", "\"state\":\"pending\"");
    for (u32 i = 0; i < 400 && w.fetch_count == 8; i++) pass(1000);
    answer(8, 200, "");
    for (u32 i = 0; i < 100 && w.fetch_count == 9; i++) pass(1000);
    answer(9, 200, "");
    assert_key("q", "k1", "\"state\":\"done\"");
    assert_key("q", "k2", "\"state\":\"done\"");
}

/* What answers 500 may have done it: it costs no attempt, but it was begun, and no time to live makes that undone. */
static void a_probe_that_may_have_been_done_is_not_cancelled_as_never_begun(void **state) {
    (void)state;
    rule("q", "{\"downstream\":{\"idempotency\":\"key\"},\"retry\":{\"transient\":{\"attempts\":2,\"backoff\":\"1h\","
              "\"max\":\"1h\"}},"
              "\"deliver\":{\"url\":\"https://t.example/"
              "x\",\"circuit\":{\"ratio\":\"50%\",\"of\":1,\"within\":\"1m\",\"open\":\"1s\"}}}");
    send("q", "k1", "x");
    end(0, OUTBOUND_NOT_SENT); /* open now */
    assert_int_equal(call("POST /v1/queues/q/batch", "{\"key\":\"k2\",\"payload\":\"x\",\"ttl\":\"60s\"}\n"), 200);
    for (u32 i = 0; i < 30 && w.fetch_count == 1; i++) pass(1000);
    assert_int_equal(w.fetch_count, 2);
    answer(1, 500, "");
    pass(100000);
    assert_key("q", "k2", "\"state\":\"pending\"");
    assert_key("q", "k2", "\"failures\":0");
    assert_key("q", "k2", "answered 500");
}

static void a_probe_of_unknown_outcome_is_unknown(void **state) {
    (void)state;
    rule("q", DELIVER("\"deliver\":{\"url\":\"https://t.example/x\",\"circuit\":{\"ratio\":\"50%\",\"of\":1,\"within\":"
                      "\"1m\",\"open\":\"1s\"}}"));
    send("q", "k", "x");
    end(0, OUTBOUND_NOT_SENT);
    for (u32 i = 0; i < 100 && w.fetch_count == 1; i++) pass(1000);
    end(1, OUTBOUND_BROKEN);
    assert_key("q", "k", "\"state\":\"held\"");
}

static void questions_that_nobody_answers_keep_no_delivery_back(void **state) {
    (void)state;
    rule("q",
         DELIVER(TO ",\"concurrency\":1,\"circuit\":{\"ratio\":\"50%\",\"of\":2,\"within\":\"1m\",\"open\":\"10s\"}},"
                    "\"reconcile\":{\"url\":\"https://l.example/${hapax.key}\",\"after\":\"1s\",\"every\":\"1s\","
                    "\"attempts\":5}"));
    send_many("q", "k", 6);
    end(0, OUTBOUND_BROKEN);
    end(1, OUTBOUND_BROKEN); /* open now, and two to be looked up */
    u32 answered = 2;
    for (u32 s = 0; s < 60; s++) {
        pass(1000);
        for (; answered < w.fetch_count; answered++) answer(answered, strstr(w.fetched.p, "POST ") ? 200 : 500, "");
    }
    for (u32 i = 2; i < 6; i++) {
        char key[8];
        snprintf(key, sizeof key, "k%u", i);
        assert_key("q", key, "\"state\":\"done\"");
    }
    assert_key("q", "k0", "\"state\":\"held\"");
    assert_key("q", "k1", "\"state\":\"held\"");
}

static void a_target_that_does_not_answer_leaves_room_for_others(void **state) {
    (void)state;
    close_broker();
    w.fetches_max = 16;
    open_broker();
    begin();
    rule("slow", DELIVER(TO ",\"concurrency\":100}"));
    rule("also", DELIVER(TO ",\"concurrency\":100}"));
    rule("fast", DELIVER(TO "}"));
    send_many("slow", "s", 50);
    assert_int_equal(w.fetch_count, 8);
    send_many("also", "a", 50);
    assert_int_equal(w.fetch_count, 12);
    send("fast", "k", "x");
    assert_int_equal(w.fetch_count, 13);
    answer(12, 200, "");
    assert_key("fast", "k", "\"state\":\"done\"");
    for (u32 i = 0; i < 8; i++) answer(i, 200, ""); /* it goes on with what is its share now */
    assert_true(w.fetch_count > 16);
    assert_true(broker_fetches(w.broker) < 16);
}

static void targets_take_turns(void **state) {
    (void)state;
    close_broker();
    w.fetches_max = 64;
    open_broker();
    begin();
    assert_int_equal(call("POST /v1/queues/a/pause", ""), 200);
    assert_int_equal(call("POST /v1/queues/b/pause", ""), 200);
    rule("a", DELIVER(TO ",\"concurrency\":100}"));
    rule("b", DELIVER("\"downstream\":{\"idempotency\":\"key\"},\"deliver\":{\"url\":\"https://b.example/x\"}"));
    send_many("a", "a", 100);
    send_many("b", "b", 4);
    w.us_a_look = 10000; /* a turn's share is used up at once */
    assert_int_equal(submit("POST /v1/queues/a/resume", NULL, SL(""), NULL), 200);
    assert_int_equal(submit("POST /v1/queues/b/resume", NULL, SL(""), NULL), 200);
    work();
    work();
    assert_non_null(strstr(w.fetched.p, "https://b.example"));
}

/* So many bytes of the disk are somebody else's. */
static void fill(void) {
    char payload[8192];
    char key[32];
    memset(payload, 'x', sizeof payload - 1);
    payload[sizeof payload - 1] = 0;
    for (u32 i = 0; i < 100000; i++) {
        snprintf(key, sizeof key, "f%u", i);
        if (send("filler", key, payload) == 507) return;
    }
    fail();
}

static int set_up_small(void **state) {
    set_up(state);
    close_broker();
    disk_close(w.disk);
    w.disk = disk_sim_new(1, 12u << 20);
    open_broker();
    begin();
    return 0;
}

#define BODY_BYTES 65536u
static const char *large_body(void) {
    static char body[BODY_BYTES + 1];
    memset(body, 'r', BODY_BYTES);
    return body;
}

static void whatever_fills_the_disk_what_is_under_way_can_be_stored(void **state) {
    (void)state;
    rule("q", DELIVER(TO ",\"concurrency\":20,\"keep\":{\"body\":\"64KiB\",\"headers\":[\"location\"]}}"));
    send_many("q", "k", 20);
    assert_int_equal(w.fetch_count, 20);
    fill();
    char key[32], line[64];
    for (u32 i = 0; i < 20; i++) answer(i, 200, large_body());
    for (u32 i = 0; i < 20; i++) {
        snprintf(key, sizeof key, "k%u", i);
        assert_key("q", key, "\"state\":\"done\"");
        snprintf(line, sizeof line, "GET /v1/queues/q/keys/%s/result", key);
        assert_int_equal(call(line, ""), 200);
        assert_int_equal(w.body.len, BODY_BYTES + 1);
    }
    assert_int_equal(heard("push_not_stored"), 0);
}

static void a_disk_without_room_for_an_answer_sends_nothing(void **state) {
    (void)state;
    rule("q", DELIVER(TO ",\"keep\":{\"body\":\"512KiB\"}}"));
    assert_int_equal(call("POST /v1/queues/q/pause", ""), 200);
    send_many("q", "k", 3);
    fill();
    assert_int_equal(call("POST /v1/queues/q/resume", ""), 200);
    pass(1000);
    assert_int_equal(w.fetch_count, 0);
    assert_key("q", "k0", "\"attempts\":[]");
    assert_int_equal(heard("disk_short"), 1);
    assert_int_equal(call("POST /v1/queues/filler/purge", ""), 200);
    for (u32 i = 0; i < 2000 && w.fetch_count < 3; i++) pass(10);
    assert_int_equal(w.fetch_count, 3);
    answer(0, 200, large_body());
    assert_key("q", "k0", "\"state\":\"done\"");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_push, tear_down)

/* ---- absent, and time passes before it is sent again */

/* Sent, cut off, looked up and not there; but by then nothing is pushed. */
static void be_absent_while_paused(void) {
    rule("q", "{\"downstream\":{\"idempotency\":\"key\",\"remembers\":\"1h\"},"
              "\"deliver\":{\"url\":\"https://t.example/do\"},"
              "\"reconcile\":{\"url\":\"https://t.example/look\",\"found\":[200],\"absent\":[404]}}");
    send("q", "k", "p");
    assert_int_equal(w.fetch_count, 1);
    end(0, OUTBOUND_BROKEN);
    pass(30000);
    assert_int_equal(w.fetch_count, 2);
    assert_non_null(strstr(w.fetched.p, "GET https://t.example/look "));
    assert_int_equal(call("POST /v1/targets/q/pause", "{}"), 200);
    answer(1, 404, "");
    assert_int_equal(w.fetch_count, 2);
}

static void what_was_absent_is_sent_again_while_the_downstream_knows_its_key(void **state) {
    (void)state;
    be_absent_while_paused();
    pass(60000);
    assert_int_equal(call("POST /v1/targets/q/resume", "{}"), 200);
    work();
    assert_int_equal(w.fetch_count, 3);
    assert_non_null(strstr(w.fetched.p, "POST https://t.example/do "));
    answer(2, 200, "");
}

static void what_was_absent_is_held_if_the_downstream_has_forgotten_its_key_meanwhile(void **state) {
    (void)state;
    be_absent_while_paused();
    pass(2 * 3600000);
    assert_int_equal(call("POST /v1/targets/q/resume", "{}"), 200);
    work();
    assert_int_equal(w.fetch_count, 2);
    assert_key("q", "k", "\"state\":\"held\"");
    assert_key("q", "k", "\"held_because\":\"absent\"");
    assert_int_equal(call("POST /v1/queues/q/keys/k/resolve", "{\"as\":\"retry\",\"by\":\"ann\"}"), 200);
    work();
    assert_int_equal(w.fetch_count, 3); /* a person vouches for it */
    answer(2, 200, "");
}

static void a_clock_that_was_set_back_does_not_make_the_downstream_remember(void **state) {
    (void)state;
    be_absent_while_paused();
    pass(60000);
    w.t.wall_ms -= 3600000;
    assert_int_equal(call("POST /v1/targets/q/resume", "{}"), 200);
    work();
    assert_int_equal(w.fetch_count, 2);
    assert_key("q", "k", "\"state\":\"held\"");
}

/* By the clock it began eleven minutes ago, and really an hour and twenty. */
static void be_set_back(bool restarted) {
    be_absent_while_paused();
    for (u32 i = 0; i < 80; i++) pass(60000);
    w.t.wall_ms -= 70 * 60000;
    pass(60000);
    if (restarted) {
        restart();
        begin();
    }
    assert_int_equal(call("POST /v1/targets/q/resume", "{}"), 200);
    work();
    assert_int_equal(w.fetch_count, 2);
    assert_key("q", "k", "\"state\":\"held\"");
}

static void nor_does_one_that_was_set_back_by_less_than_had_passed(void **state) {
    (void)state;
    be_set_back(false);
}

static void nor_one_that_was_set_back_before_the_last_start(void **state) {
    (void)state;
    be_set_back(true);
}

static void nor_one_that_was_set_back_twice(void **state) {
    (void)state;
    pass(60000);
    w.t.wall_ms -= 3 * 3600000; /* the first time, before it all began, from further ahead */
    for (u32 i = 0; i < 4 * 60; i++) pass(60000);
    be_set_back(false);
}

static void what_was_absent_is_held_after_any_number_of_attempts(void **state) {
    (void)state;
    rule("q", "{\"retry\":{\"transient\":{\"attempts\":99,\"backoff\":\"1s\",\"max\":\"1s\"}},"
              "\"downstream\":{\"idempotency\":\"key\",\"remembers\":\"1h\"},"
              "\"deliver\":{\"url\":\"https://t.example/do\",\"circuit\":{\"of\":1000}},"
              "\"reconcile\":{\"url\":\"https://t.example/look\",\"found\":[200],\"absent\":[404]}}");
    send("q", "k", "p");
    end(0, OUTBOUND_BROKEN);
    pass(30000);
    answer(1, 404, "");
    for (u32 i = 2; i < 12; i++) { /* more than a history keeps */
        assert_int_equal(w.fetch_count, i + 1);
        answer(i, 503, "");
        pass(2000);
    }
    assert_int_equal(w.fetch_count, 13);
    assert_int_equal(call("POST /v1/targets/q/pause", "{}"), 200);
    answer(12, 503, "");
    pass(2 * 3600000);
    assert_int_equal(call("POST /v1/targets/q/resume", "{}"), 200);
    work();
    assert_int_equal(w.fetch_count, 13);
    assert_key("q", "k", "\"state\":\"held\"");
    assert_key("q", "k",
               "\"reason\":\"not sent again: by now the downstream may not know its key any more (remembers)\"");
    assert_key("q", "k", "\"text\":\"held: not sent again: by now");
}

/* ---- unknown, and by the time it would be sent again the downstream does not know its key */

#define KEYED                                                                                                          \
    "{\"downstream\":{\"idempotency\":\"key\",\"remembers\":\"1h\"},\"deliver\":{\"url\":\"https://t.example/do\"}}"
#define KEYLESS "{\"downstream\":{\"idempotency\":\"none\"},\"deliver\":{\"url\":\"https://t.example/do\"}}"

/* Sent and cut off; to be sent again under its key, but nothing is pushed. */
static void be_unknown_while_paused(void) {
    rule("q", KEYED);
    send("q", "k", "p");
    assert_int_equal(w.fetch_count, 1);
    assert_int_equal(call("POST /v1/targets/q/pause", "{}"), 200);
    end(0, OUTBOUND_BROKEN);
    pass(60000);
    assert_int_equal(w.fetch_count, 1);
}

static void resume_and_find_it_held(void) {
    assert_int_equal(call("POST /v1/targets/q/resume", "{}"), 200);
    work();
    assert_int_equal(w.fetch_count, 1);
    assert_key("q", "k", "\"state\":\"held\"");
    assert_key("q", "k", "\"held_because\":\"unknown\"");
    assert_int_equal(call("POST /v1/queues/q/keys/k/resolve", "{\"as\":\"retry\",\"by\":\"ann\"}"), 200);
    work();
    assert_int_equal(w.fetch_count, 2); /* a person vouches for it */
    answer(1, 200, "");
    assert_key("q", "k", "\"state\":\"done\"");
}

static void what_is_unknown_is_sent_again_while_the_downstream_knows_its_key(void **state) {
    (void)state;
    be_unknown_while_paused();
    assert_int_equal(call("POST /v1/targets/q/resume", "{}"), 200);
    work();
    assert_int_equal(w.fetch_count, 2);
    answer(1, 200, "");
}

static void what_is_unknown_is_held_if_the_downstream_has_forgotten_its_key_meanwhile(void **state) {
    (void)state;
    be_unknown_while_paused();
    pass(2 * 3600000);
    resume_and_find_it_held();
}

static void what_is_unknown_is_held_if_by_new_rules_the_downstream_does_not_deduplicate(void **state) {
    (void)state;
    be_unknown_while_paused();
    rule("q", KEYLESS);
    resume_and_find_it_held();
}

static void what_a_consumer_left_unknown_is_not_pushed_where_the_downstream_does_not_deduplicate(void **state) {
    (void)state;
    rule("q", "{}");
    send("q", "k", "p");
    assert_int_equal(call("POST /v1/queues/q/receive?lease=1s", ""), 200);
    pass(2000); /* the consumer has died: to be done again, by these rules */
    assert_int_equal(call("POST /v1/queues/q/pause", "{}"), 200);
    rule("q", KEYLESS);
    assert_int_equal(call("POST /v1/queues/q/resume", "{}"), 200);
    work();
    assert_int_equal(w.fetch_count, 0);
    assert_key("q", "k", "\"state\":\"held\"");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(nothing_is_sent_before_its_lease_is_durable),
        TEST(nothing_is_sent_by_rules_of_before_the_config_in_force),
        TEST(nothing_new_is_leased_while_it_drains),
        TEST(a_failed_probe_costs_no_attempt),
        TEST(a_probe_of_unknown_outcome_is_unknown),
        TEST(a_probe_that_may_have_been_done_is_not_cancelled_as_never_begun),
        TEST(questions_that_nobody_answers_keep_no_delivery_back),
        TEST(a_target_that_does_not_answer_leaves_room_for_others),
        TEST(targets_take_turns),
        TEST(what_was_absent_is_sent_again_while_the_downstream_knows_its_key),
        TEST(what_was_absent_is_held_if_the_downstream_has_forgotten_its_key_meanwhile),
        TEST(a_clock_that_was_set_back_does_not_make_the_downstream_remember),
        TEST(nor_does_one_that_was_set_back_by_less_than_had_passed),
        TEST(nor_one_that_was_set_back_before_the_last_start),
        TEST(nor_one_that_was_set_back_twice),
        TEST(what_was_absent_is_held_after_any_number_of_attempts),
        TEST(what_is_unknown_is_sent_again_while_the_downstream_knows_its_key),
        TEST(what_is_unknown_is_held_if_the_downstream_has_forgotten_its_key_meanwhile),
        TEST(what_is_unknown_is_held_if_by_new_rules_the_downstream_does_not_deduplicate),
        TEST(what_a_consumer_left_unknown_is_not_pushed_where_the_downstream_does_not_deduplicate),
        cmocka_unit_test_setup_teardown(whatever_fills_the_disk_what_is_under_way_can_be_stored, set_up_small,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_disk_without_room_for_an_answer_sends_nothing, set_up_small, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
