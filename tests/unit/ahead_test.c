/* What is found out about requests before their turn: nobody can tell that it was. */
#include "unit/broker_world.h"

#define KEYED  "{\"key\":\"pay:${id}\",\"schema\":{\"required\":[\"id\",\"amount\"],\"types\":{\"amount\":\"integer\"}}}"
#define OTHER  "{\"key\":\"other:${amount}\"}"
#define SENDS  64
#define A_PATH "/v1/queues/q/messages"

static struct batch {
    struct http_request req[SENDS], *at[SENDS];
    struct http_field fields[SENDS][3];
    u32 n;
} batch;

static int empty_batch(void **state) {
    batch.n = 0;
    return set_up(state);
}

static struct http_request *add(const char *payload, const char *key, const char *type, const char *tenant) {
    struct http_request *req = &batch.req[batch.n];
    struct http_field *f = batch.fields[batch.n];
    *req = (struct http_request){.method = HTTP_POST,
                                 .path = SL(A_PATH),
                                 .fields = f,
                                 .body = slice_str(payload),
                                 .body_length = strlen(payload),
                                 .authorization = slice_str(w.authorization)};
    if (key) f[req->field_count++] = (struct http_field){SL("Idempotency-Key"), slice_str(key)};
    if (type) f[req->field_count++] = (struct http_field){SL("Content-Type"), slice_str(type)};
    if (tenant) f[req->field_count++] = (struct http_field){SL("Tenant"), slice_str(tenant)};
    return batch.at[batch.n++] = req;
}

/* What it is answered, without the id, and the queue's name twice. */
static void put_answer(struct http_request *req, struct buf *out) {
    void *user = NULL;
    broker_request(w.broker, w.t, &w, &user, req);
    assert_null(user);
    char *id = strstr(w.body.p, "\"id\":\"");
    if (id) memset(id + 6, '.', ID_TEXT);
    buf_printf(out, "%u %s %s\n", w.status, w.fields.p, w.body.p);
}

/* Every one in its turn; `at_once`: they are looked at before, all of them. */
static void answer_all(bool at_once, struct buf *out) {
    if (at_once) broker_ahead(w.broker, batch.at, batch.n);
    for (u32 i = 0; i < batch.n; i++) put_answer(batch.at[i], out);
    work();
    batch.n = 0;
}

static void fill(u32 round) {
    static char large[6000], long_key[600];
    static const char *const payloads[] = {
        "{\"id\":\"a\",\"amount\":1}",
        "{\"id\":\"a\",\"amount\":1}",
        "{\"id\":\"a\",\"amount\":2}",
        "{\"amount\":1,\"id\":\"b:%\\u00eb\"}",
        "{\"id\":1.0,\"amount\":1e2}",
        " { \"id\" : true , \"amount\" : 3 } ",
        "{\"id\":\"c\",\"amount\":1,\"source\":\"s\",\"specversion\":\"1.0\"}",
        "{\"id\":null,\"amount\":1}",
        "{\"id\":[],\"amount\":1}",
        "{\"id\":\"\",\"amount\":1}",
        "{\"amount\":1}",
        "{\"id\":\"d\",\"amount\":1.5}",
        "{\"id\":\"e\"}",
        "{\"id\":\"f\",\"id\":\"g\",\"amount\":1}",
        "{\"id\":\"h\",\"amount\":1",
        "no JSON",
        "",
        "{\"id\":\"x~g1\",\"amount\":1}",
        large,
        long_key,
    };
    enum { PAYLOADS = sizeof payloads / sizeof payloads[0] };
    snprintf(large, sizeof large, "{\"id\":\"large\",\"amount\":1,\"note\":\"%05000d\"}", 0);
    snprintf(long_key, sizeof long_key, "{\"id\":\"%0500d\",\"amount\":1}", 0);
    /* Each kind comes first once: the first that fails ends what is looked at ahead. */
    for (u32 i = 0; i < 2 * PAYLOADS; i++) {
        const char *payload = payloads[(i + round) % PAYLOADS];
        add(payload,
            i % 5 == 3   ? "pay:a"
            : i % 7 == 3 ? "pay:z"
                         : NULL,
            i % 2   ? "application/cloudevents+json"
            : i % 3 ? "text/plain"
                    : NULL,
            i % 4 ? "t1" : NULL);
    }
}

static void answers_to(const char *rules, bool at_once, struct buf *out) {
    set_up(NULL);
    assert_int_equal(call("PUT /v1/queues/q", rules), 201);
    for (u32 round = 0; round < 20; round++) {
        fill(round);
        answer_all(at_once, out);
        call("POST /v1/queues/q/receive?max=3", "");
    }
    tear_down(NULL);
}

static void what_is_derived_ahead_is_answered_as_what_is_derived_in_its_turn(void **state) {
    (void)state;
    static const char *const rules[] = {
        KEYED,
        "{\"key\":\"${id}\"}",
        "{\"key\":\"${header.tenant}:${id}\"}",
        "{\"key\":\"${cloudevent}\"}",
        "{\"key\":\"pay:${id}\",\"limits\":{\"payload\":\"30B\"}}",
        "{\"key\":\"pay:${id}\",\"on_conflict\":\"hold\"}",
        "{\"key\":\"pay:${id}\",\"order_by\":\"${id}\",\"fingerprint\":{\"ignore\":[\"amount\"]}}",
        "{\"schema\":{\"required\":[\"id\"]}}",
        "{}",
    };
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        struct buf plain = {0}, ahead = {0};
        answers_to(rules[i], false, &plain);
        answers_to(rules[i], true, &ahead);
        buf_char(&plain, 0);
        buf_char(&ahead, 0);
        assert_string_equal(plain.p, ahead.p);
        buf_free(&plain);
        buf_free(&ahead);
    }
}

/* It was looked at ahead under KEYED, and is answered now. */
static void expect_key(struct http_request *req, const char *key) {
    struct buf out = {0};
    assert_int_not_equal(req->noted[0], 0);
    put_answer(req, &out);
    work();
    assert_int_equal(w.status, 202);
    assert_said(key);
    buf_free(&out);
}

static struct http_request *look_at_one(void) {
    assert_int_equal(call("GET /v1/queues/q", ""), 200);
    batch.n = 0;
    add("{\"id\":\"i\",\"amount\":7}", NULL, NULL, NULL);
    broker_ahead(w.broker, batch.at, batch.n);
    return batch.at[0];
}

static void rules_that_come_into_force_meanwhile_make_the_key(void **state) {
    (void)state;
    assert_int_equal(call("PUT /v1/queues/q", KEYED), 201);
    struct http_request *req = look_at_one();
    expect_key(req, "\"key\":\"pay:i\"");
    req = look_at_one();
    assert_int_equal(call("PUT /v1/queues/q", OTHER), 200);
    expect_key(req, "\"key\":\"other:7\"");
}

static void a_queue_deleted_meanwhile_and_made_anew_makes_its_own_keys(void **state) {
    (void)state;
    assert_int_equal(call("PUT /v1/queues/q", KEYED), 201);
    struct http_request *req = look_at_one();
    assert_int_equal(call("DELETE /v1/queues/q", ""), 204);
    assert_int_equal(call("PUT /v1/queues/q", OTHER), 201);
    expect_key(req, "\"key\":\"other:7\"");
}

static void a_file_that_is_read_again_meanwhile_makes_the_key(void **state) {
    (void)state;
    reload("queues: {q: {key: '${id}'}}");
    struct http_request *req = look_at_one();
    reload("queues: {q: {key: 'file:${id}'}}");
    expect_key(req, "\"key\":\"file:i\"");
}

static u32 noted_in_batch(void) {
    u32 n = 0;
    broker_ahead(w.broker, batch.at, batch.n);
    for (u32 i = 0; i < batch.n; i++) n += batch.req[i].noted[0] != 0;
    batch.n = 0;
    return n;
}

static void of_whoever_may_not_send_no_payload_is_read_ahead(void **state) {
    (void)state;
    /* The tokens' texts are "sender", "reader". */
    reload("queues: {q: {key: '${id}'}}\n"
           "tokens:\n"
           "- name: s\n"
           "  allow: [send]\n"
           "  sha256: [0a367b92cf0b037dfd89960ee832d56f7fc151681bb41e53690e776f5786998a]\n"
           "- name: r\n"
           "  allow: [receive]\n"
           "  sha256: [3d0941964aa3ebdcb00ccef58b1bb399f9f898465e9886d5aec7f31090a0fb30]\n");
    w.authorization = "Bearer reader";
    assert_int_equal(call("POST /v1/queues/q/receive", ""), 200); /* the queue is the last one asked for */
    add("{\"id\":1}", NULL, NULL, NULL);
    assert_int_equal(noted_in_batch(), 0);
    w.authorization = NULL;
    add("{\"id\":1}", NULL, NULL, NULL);
    assert_int_equal(noted_in_batch(), 0);
    w.authorization = "Bearer sender";
    add("{\"id\":1}", NULL, NULL, NULL);
    assert_int_equal(noted_in_batch(), 1);
}

static void what_fails_the_rules_ends_what_is_read_ahead(void **state) {
    (void)state;
    assert_int_equal(call("PUT /v1/queues/q", KEYED), 201);
    assert_int_equal(call("GET /v1/queues/q", ""), 200);
    for (int i = 0; i < 9; i++) add(i == 4 ? "{}" : "{\"id\":1,\"amount\":1}", NULL, NULL, NULL);
    assert_int_equal(noted_in_batch(), 4);
}

/* A pattern that is no automaton takes thousands of steps for a text. */
static void rules_that_take_long_are_left_to_the_turn(void **state) {
    (void)state;
    char payload[1100];
    assert_int_equal(
        call("PUT /v1/queues/q", "{\"key\":\"${id}\",\"schema\":{\"pattern\":{\"text\":\"(a|b)*a(a|b){12}$\"}}}"), 201);
    assert_int_equal(call("GET /v1/queues/q", ""), 200);
    snprintf(payload, sizeof payload, "{\"id\":1,\"text\":\"%01000d\"}", 0);
    for (char *p = strchr(payload, '0'); *p == '0'; p++) *p = 'a';
    for (int i = 0; i < 32; i++) add(payload, NULL, NULL, NULL);
    u32 noted = noted_in_batch();
    assert_in_range(noted, 1, 8);
}

int main(void) {
#define WORLD_TEST(name) cmocka_unit_test_setup_teardown(name, empty_batch, tear_down)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_derived_ahead_is_answered_as_what_is_derived_in_its_turn),
        WORLD_TEST(rules_that_come_into_force_meanwhile_make_the_key),
        WORLD_TEST(a_queue_deleted_meanwhile_and_made_anew_makes_its_own_keys),
        WORLD_TEST(a_file_that_is_read_again_meanwhile_makes_the_key),
        WORLD_TEST(of_whoever_may_not_send_no_payload_is_read_ahead),
        WORLD_TEST(what_fails_the_rules_ends_what_is_read_ahead),
        WORLD_TEST(rules_that_take_long_are_left_to_the_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
