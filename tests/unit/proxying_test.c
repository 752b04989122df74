/* Calls through a proxy: what leaves, when, and what is kept of it, by a clock and a network of the test's own. */
#include "broker_world.h"

#include "broker/broker_priv.h"
#include "broker/room.h"

#define YAML "proxies: {pay: {upstream: 'https://up.example/v1', timeout: 10s}}\nqueues: {q: {}}\n"

static int set_up_proxy(void **state) {
    set_up(state);
    reload(YAML);
    return 0;
}

static u16 post(const char *key, void **user) {
    return request("POST /gate/pay/x", key, SL("{}"), user);
}

static void answer(u32 number, u32 status, const char *head, const char *body) {
    struct outbound_answer a = {
        .end = OUTBOUND_ANSWERED, .status = status, .head = slice_str(head), .body = slice_str(body), .why = ""};
    broker_fetched(w.broker, w.t, w.fetches[number], &a);
}

static void end(u32 number, enum outbound_end how) {
    struct outbound_answer a = {.end = how, .why = "cut"};
    broker_fetched(w.broker, w.t, w.fetches[number], &a);
    work();
}

static void assert_state(const char *key, const char *part) {
    char line[128];
    snprintf(line, sizeof line, "GET /v1/queues/gate:pay/keys/%s", key);
    assert_int_equal(call(line, ""), 200);
    assert_said(part);
}

static void nothing_is_sent_before_it_is_remembered(void **state) {
    (void)state;
    assert_int_equal(submit("POST /gate/pay/x", "k", SL("{}"), NULL), 0);
    broker_turn_end(w.broker, w.t); /* leased; the disk has not synced yet */
    assert_int_equal(broker_fetches(w.broker), 1);
    assert_int_equal(w.fetch_count, 0);
    work();
    assert_int_equal(w.fetch_count, 1);
    assert_non_null(strstr(w.fetched.p, "POST https://up.example/v1/x Idempotency-Key: k"));
    assert_state("k", "\"state\":\"leased\"");
}

static void no_answer_leaves_before_it_is_stored(void **state) {
    (void)state;
    assert_int_equal(post("k", NULL), 0);
    u64 before = w.released;
    answer(0, 201, "A: 1\r\n", "made");
    assert_int_equal(w.status, 201);
    assert_true(w.after > before && w.after == w.broker->after); /* and the network keeps it until then */
    work();
    assert_true(w.released >= w.after);
    assert_int_equal(post("k", NULL), 201);
    assert_string_equal(w.body.p, "made");
    assert_string_equal(w.fields.p, "A: 1\r\nIdempotent-Replayed: true\r\n");
    assert_int_equal(w.fetch_count, 1);
}

static void a_freed_key_leaves_nothing_behind(void **state) {
    (void)state;
    struct queue_info q;
    u16 queue;
    assert_true(core_queue_find(w.broker->core, SL("gate:pay"), &queue));
    for (u32 i = 0; i < 20; i++) {
        assert_int_equal(post("k", NULL), 0);
        if (i % 2)
            end(i, OUTBOUND_NOT_SENT);
        else
            answer(i, 429, "", ""), work();
        assert_int_equal(w.status, i % 2 ? 502 : 429);
        core_queue_info(w.broker->core, w.broker->now, queue, &q);
        assert_int_equal(q.unsettled + q.settled_keys, 0);
    }
    assert_int_equal(w.fetch_count, 20);
}

static void what_was_under_way_when_the_broker_ended_is_never_sent_again(void **state) {
    (void)state;
    assert_int_equal(post("k", NULL), 0);
    assert_int_equal(post("l", NULL), 0);
    assert_int_equal(w.fetch_count, 2);
    restart_with(YAML);
    assert_int_equal(post("k", NULL), 409);
    assert_said("outcome_unknown");
    assert_state("k", "\"state\":\"held\"");
    for (u32 i = 0; i < 20; i++) pass(1000); /* nobody asks for the other */
    assert_state("l", "\"state\":\"held\"");
    assert_int_equal(post("l", NULL), 409);
    assert_int_equal(w.fetch_count, 2);
}

/* A disk that is slow keeps the request back, and the lease with it: nobody looks up what is still on its way. */
static void a_call_outlives_any_lease(void **state) {
    (void)state;
    assert_int_equal(post("k", NULL), 0);
    for (u32 i = 0; i < 120; i++) pass(1000);
    assert_state("k", "\"state\":\"leased\"");
    answer(0, 200, "", "late");
    work();
    assert_state("k", "\"state\":\"done\"");
}

static void whoever_leaves_cancels_nothing(void **state) {
    (void)state;
    void *user;
    assert_int_equal(post("k", &user), 0);
    broker_gone(w.broker, w.t, user);
    u32 told = w.answers;
    answer(0, 200, "", "made");
    work();
    assert_int_equal(w.answers, told);
    assert_int_equal(post("k", NULL), 200);
    assert_string_equal(w.body.p, "made");
}

static void repeats_wait_sixty_seconds_and_hear_that_it_is_under_way(void **state) {
    (void)state;
    assert_int_equal(post("k", NULL), 0);
    assert_int_equal(post("k", NULL), 0);
    u32 told = w.answers;
    for (u32 i = 0; i < 59; i++) pass(1000);
    assert_int_equal(w.answers, told);
    pass(2000);
    assert_int_equal(w.status, 409);
    assert_said("in_progress");
    assert_non_null(strstr(w.fields.p, "Retry-After: "));
    answer(0, 200, "", "made");
    work();
    assert_int_equal(post("k", NULL), 200);
    assert_int_equal(w.fetch_count, 1);
}

static void an_answer_that_cannot_be_stored_any_more_is_unknown_to_all(void **state) {
    (void)state;
    assert_int_equal(post("k", NULL), 0);
    assert_state("k", "\"state\":\"leased\"");
    char line[128];
    snprintf(line, sizeof line, "POST /v1/queues/gate:pay/messages/%s/cancel", w.id);
    assert_int_equal(call(line, "{\"by\":\"ann\"}"), 200);
    answer(0, 200, "", "made");
    work();
    assert_int_equal(w.status, 504);
    assert_int_equal(post("k", NULL), 409);
    assert_said("\"code\":\"settled\"");
    assert_int_equal(w.fetch_count, 1);
}

static void what_no_call_can_be_made_for_is_refused_and_its_key_is_free(void **state) {
    (void)state;
    w.fetch_room = 0; /* the world takes none */
    post("k", NULL);
    work();
    assert_int_equal(w.status, 502);
    assert_said("\"applied\":\"no\"");
    assert_int_equal(call("GET /v1/queues/gate:pay/keys/k", ""), 404);
    w.fetch_room = 64;
    assert_int_equal(post("k", NULL), 0);
    assert_int_equal(w.fetch_count, 1);
}

static void a_retry_sends_nothing_by_itself(void **state) {
    (void)state;
    assert_int_equal(post("k", NULL), 0);
    end(0, OUTBOUND_BROKEN);
    assert_int_equal(w.status, 504);
    assert_int_equal(call("POST /v1/queues/gate:pay/keys/k/resolve", "{\"as\":\"retry\",\"by\":\"ann\"}"), 200);
    for (u32 i = 0; i < 10; i++) pass(1000);
    assert_int_equal(w.fetch_count, 1);
    assert_int_equal(call("GET /v1/queues/gate:pay/keys/k", ""), 404);
    assert_int_equal(post("k", NULL), 0); /* and may be another call */
    assert_int_equal(w.fetch_count, 2);
}

static void dead_work_that_comes_back_is_for_a_person(void **state) {
    (void)state;
    assert_int_equal(post("k", NULL), 0);
    end(0, OUTBOUND_BROKEN);
    assert_int_equal(call("POST /v1/queues/gate:pay/keys/k/resolve", "{\"as\":\"dead\",\"by\":\"ann\"}"), 200);
    assert_int_equal(post("k", NULL), 409);
    assert_int_equal(call("POST /v1/queues/gate:pay/redrive", "{\"by\":\"ann\"}"), 200);
    pass(1000);
    assert_state("k", "\"state\":\"held\"");
    assert_int_equal(post("k", NULL), 409);
    assert_said("outcome_unknown");
    assert_int_equal(w.fetch_count, 1);
}

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, set_up_proxy, tear_down)
    const struct CMUnitTest tests[] = {
        T(nothing_is_sent_before_it_is_remembered),
        T(no_answer_leaves_before_it_is_stored),
        T(a_freed_key_leaves_nothing_behind),
        T(what_was_under_way_when_the_broker_ended_is_never_sent_again),
        T(a_call_outlives_any_lease),
        T(whoever_leaves_cancels_nothing),
        T(repeats_wait_sixty_seconds_and_hear_that_it_is_under_way),
        T(an_answer_that_cannot_be_stored_any_more_is_unknown_to_all),
        T(what_no_call_can_be_made_for_is_refused_and_its_key_is_free),
        T(a_retry_sends_nothing_by_itself),
        T(dead_work_that_comes_back_is_for_a_person),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
