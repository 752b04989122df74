/* What an answer means: only a whole one says anything, and only what certainly did not leave is certainly undone (P5). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "broker/answer.h"
#include "broker/push_priv.h"

#define WALL_MS INT64_C(784111777000) /* Sun, 06 Nov 1994 08:49:37 GMT */

static struct queue_config *rules(const char *json) {
    struct queue_config *q;
    struct buf errors = {0};
    hx_st st = config_queue_from_json(SL("q"), slice_str(json), SECRETS_REFUSED, &q, &errors);
    if (st != ST_OK) print_message("%.*s\n", (int)errors.len, errors.p);
    assert_int_equal(st, ST_OK);
    buf_free(&errors);
    return q;
}

static struct terms *terms(const char *json) {
    struct queue_config *q = rules(json);
    struct terms *t = terms_new(q);
    config_queue_free(q); /* terms outlive the rules they were made of */
    return t;
}

static struct outbound_answer answered(u32 status, const char *head, const char *body) {
    return (struct outbound_answer){
        .end = OUTBOUND_ANSWERED, .status = status, .head = slice_str(head), .body = slice_str(body), .why = ""};
}

static struct words words;

static struct verdict decide(struct terms *t, const struct outbound_answer *a, bool probe) {
    struct verdict v;
    delivery_decide(&(struct push){.terms = t, .probe = probe}, a, WALL_MS, &words, &v);
    return v;
}

static struct verdict look_up(struct terms *t, const struct outbound_answer *a, i64 began_ms) {
    struct verdict v;
    lookup_decide(&(struct push){.terms = t, .lookup = true, .began_ms = began_ms}, a, WALL_MS, &words, &v);
    return v;
}

/* ---- heads */

static void a_wait_is_told_in_seconds_or_as_a_date_and_is_an_hour_at_most(void **state) {
    (void)state;
    static const struct {
        const char *head;
        i64 wait_ms;
    } cases[] = {
        {"retry-after: 7\r\n", 7000},
        {"x: y\r\nRetry-After:  120 \r\n", 120000},
        {"Retry-After: 0\r\n", 0},
        {"Retry-After: 3600\r\n", 3600000},
        {"Retry-After: 99999999999\r\n", 3600000},
        {"Retry-After: 99999999999999999999999\r\n", 0},
        {"Retry-After: -5\r\n", 0},
        {"Retry-After: soon\r\n", 0},
        {"Retry-After: 1.5\r\n", 0},
        {"Retry-After:\r\n", 0},
        {"", 0},
        {"Retry-After: Sun, 06 Nov 1994 08:50:37 GMT\r\n", 60000},
        {"Retry-After: Sun, 06 Nov 1994 08:48:37 GMT\r\n", 0},
        {"Retry-After: Mon, 07 Nov 1994 08:48:37 GMT\r\n", 3600000},
        /* its clock is an hour behind ours: the date is told by it */
        {"Date: Sun, 06 Nov 1994 07:49:37 GMT\r\nRetry-After: Sun, 06 Nov 1994 07:49:47 GMT\r\n", 10000},
        {"Retry-After: Sun, 32 Nov 1994 08:50:37 GMT\r\n", 0},
        {"Retry-After: Sun, 06 Nix 1994 08:50:37 GMT\r\n", 0},
        {"Retry-After: Sun, 06 Nov 1994 08:50:37 CET\r\n", 0},
        {"Retry-After: Sun, 06 Nov 1994 24:50:37 GMT\r\n", 0},
        {"Retry-After: Sun\r\n", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        i64 wait_ms = answer_wait_ms(slice_str(cases[i].head), WALL_MS);
        if (wait_ms != cases[i].wait_ms) print_message("%s", cases[i].head);
        assert_int_equal(wait_ms, cases[i].wait_ms);
    }
}

static void a_kept_head_has_the_named_fields_and_is_bounded(void **state) {
    (void)state;
    slice names[] = {SL("location"), SL("x-big")};
    struct texts keep = {.at = names, .count = 2};
    struct buf head = {0}, out = {0};
    buf_lit(&head, "Location: /b/7\r\nSet-Cookie: secret\r\nno colon\r\n: nameless\r\nLOCATION:  /b/8 \r\n");
    buf_lit(&head, "X-Big: bell\a\r\nX-Big: ");
    for (u32 i = 0; i < HTTP_HEAD_BYTES_MAX; i++) buf_char(&head, 'x');
    buf_lit(&head, "\r\nx-big: small\r\n");
    answer_put_head(&out, 201, buf_slice(&head), &keep, true);
    static const char want[] = "201\r\nhapax-truncated: true\r\nlocation: /b/7\r\nlocation: /b/8\r\nx-big: small\r\n";
    assert_int_equal(out.len, sizeof want - 1);
    assert_memory_equal(out.p, want, out.len);
    buf_free(&head);
    buf_free(&out);
}

/* ---- deliveries */

#define TO "\"deliver\":{\"url\":\"https://t.example/x\""

static void each_status_has_its_class(void **state) {
    (void)state;
    struct terms *t = terms("{\"downstream\":{\"idempotency\":\"key\"}," TO "}}");
    static const struct {
        u32 status;
        enum failure_class class;
    } cases[] = {{200, CLASS_NONE},      {204, CLASS_NONE},      {299, CLASS_NONE},      {301, CLASS_POISON},
                 {308, CLASS_POISON},    {400, CLASS_POISON},    {401, CLASS_TRANSIENT}, {402, CLASS_REJECTED},
                 {403, CLASS_TRANSIENT}, {404, CLASS_POISON},    {408, CLASS_TRANSIENT}, {409, CLASS_TRANSIENT},
                 {418, CLASS_POISON},    {422, CLASS_REJECTED},  {425, CLASS_TRANSIENT}, {429, CLASS_TRANSIENT},
                 {500, CLASS_TRANSIENT}, {503, CLASS_TRANSIENT}, {599, CLASS_TRANSIENT}, {0, CLASS_UNKNOWN},
                 {101, CLASS_UNKNOWN},   {600, CLASS_UNKNOWN},   {999, CLASS_UNKNOWN}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct outbound_answer a = answered(cases[i].status, "", "");
        struct verdict v = decide(t, &a, false);
        assert_int_equal(v.told, cases[i].class);
        assert_int_equal(v.in.verb, cases[i].class == CLASS_NONE ? VERB_ACK : VERB_NACK);
        assert_int_equal(v.in.failure_class, cases[i].class);
    }
    terms_drop(t);
}

static void a_redirect_says_where_to_and_that_it_is_not_followed(void **state) {
    (void)state;
    struct terms *t = terms("{" TO "}}");
    struct outbound_answer a = answered(302, "location: https://t.example/login\r\n", "<html>moved</html>");
    struct verdict v = decide(t, &a, false);
    assert_int_equal(v.in.failure_class, CLASS_POISON);
    assert_true(slice_eq(v.in.reason, SL("answered 302, a redirect that is not followed: https://t.example/login")));
    a = answered(304, "", "");
    v = decide(t, &a, false);
    assert_true(slice_eq(v.in.reason, SL("answered 304")));
    terms_drop(t);
}

static void what_may_have_left_without_an_answer_is_unknown_and_what_did_not_leave_transient(void **state) {
    (void)state;
    struct terms *t = terms("{\"downstream\":{\"idempotency\":\"key\"}," TO "}}");
    struct outbound_answer a = {.end = OUTBOUND_BROKEN, .status = 200, .why = "cut"};
    struct verdict v = decide(t, &a, false);
    assert_int_equal(v.in.failure_class, CLASS_UNKNOWN);
    assert_int_equal(v.target, TARGET_FAILED);
    assert_true(slice_eq(v.in.reason, SL("no whole answer: cut")));
    a.end = OUTBOUND_NOT_SENT;
    v = decide(t, &a, false);
    assert_int_equal(v.in.failure_class, CLASS_TRANSIENT);
    assert_int_equal(v.target, TARGET_FAILED);
    terms_drop(t);
}

static void a_failed_probe_costs_no_attempt_unless_its_outcome_is_unknown(void **state) {
    (void)state;
    struct terms *t = terms("{\"downstream\":{\"idempotency\":\"key\"}," TO ",\"circuit\":{\"open\":\"7s\"}}}");
    struct outbound_answer a = answered(503, "Retry-After: 2\r\n", "");
    struct verdict v = decide(t, &a, true);
    assert_int_equal(v.in.verb, VERB_RELEASE);
    assert_int_equal(v.in.delay_ms, 7000);
    assert_int_equal(v.target, TARGET_FAILED);
    assert_int_equal(v.wait_ms, 2000);
    a = (struct outbound_answer){.end = OUTBOUND_NOT_SENT, .why = "refused"};
    assert_int_equal(decide(t, &a, true).in.verb, VERB_RELEASE);
    a = answered(502, "", ""); /* it may have been done: nobody vouches that it was not */
    v = decide(t, &a, true);
    assert_int_equal(v.in.verb, VERB_NACK);
    assert_int_equal(v.in.failure_class, CLASS_TRANSIENT);
    assert_true(v.in.spares);
    assert_int_equal(v.in.delay_ms, 7000);
    a.end = OUTBOUND_BROKEN;
    v = decide(t, &a, true);
    assert_int_equal(v.in.verb, VERB_NACK);
    assert_int_equal(v.in.failure_class, CLASS_UNKNOWN);
    a = answered(404, "", "");
    assert_int_equal(decide(t, &a, true).in.failure_class, CLASS_POISON);
    a = answered(409, "", "");
    v = decide(t, &a, true);
    assert_int_equal(v.in.verb, VERB_NACK);
    assert_int_equal(v.target, TARGET_TAKEN);
    terms_drop(t);
}

static void gone_pauses_only_where_the_address_is_everybodys(void **state) {
    (void)state;
    struct outbound_answer a = answered(410, "", "");
    struct terms *t = terms("{" TO "}}");
    struct verdict v = decide(t, &a, false);
    assert_true(v.gone);
    assert_int_equal(v.in.verb, VERB_RELEASE);
    terms_drop(t);
    t = terms("{\"deliver\":{\"url\":\"https://t.example/${x}\"}}");
    v = decide(t, &a, false);
    assert_false(v.gone);
    assert_int_equal(v.in.failure_class, CLASS_POISON);
    terms_drop(t);
    t = terms("{" TO ",\"classify\":{\"rejected\":[410]}}}");
    assert_false(decide(t, &a, false).gone);
    terms_drop(t);
}

static void a_result_is_the_answer_as_far_as_it_is_kept(void **state) {
    (void)state;
    struct terms *t = terms("{" TO ",\"effect_id\":\"b.id\",\"keep\":{\"body\":10,\"headers\":[\"ETag\"]}}}");
    struct outbound_answer a = answered(200, "content-type: text/x\r\netag: \"1\"\r\n", "{\"b\":{\"id\":77}}");
    struct verdict v = decide(t, &a, false);
    assert_int_equal(v.in.verb, VERB_ACK);
    assert_true(slice_eq(v.in.result, SL("{\"b\":{\"id\"")));
    assert_true(slice_eq(v.in.content_type, SL("text/x")));
    assert_true(slice_eq(v.in.http, SL("200\r\nhapax-truncated: true\r\netag: \"1\"\r\n")));
    assert_true(slice_eq(v.in.effect_id, SL("77")));
    a = answered(422, "", "no");
    v = decide(t, &a, false);
    assert_int_equal(v.in.failure_class, CLASS_REJECTED);
    assert_true(slice_eq(v.in.result, SL("no")));
    assert_true(slice_eq(v.in.http, SL("422\r\n")));
    assert_true(slice_eq(v.in.reason, SL("answered 422: no")));
    a = answered(200, "", "{\"b\":{\"id\":\"a\\u0007b\"}}"); /* no plain text: no effect id */
    assert_int_equal(decide(t, &a, false).in.effect_id.n, 0);
    terms_drop(t);
}

static void an_effect_id_is_found_in_what_was_read_of_a_longer_answer(void **state) {
    (void)state;
    struct terms *t = terms("{" TO ",\"effect_id\":\"a[0].id\",\"keep\":{\"body\":10}}}");
    struct outbound_answer a =
        answered(200, "content-type: application/json\r\n", "{\"a\":[{\"id\":\"e1\"}],\"b\":\"xxx");
    assert_int_equal(decide(t, &a, false).in.effect_id.n, 0); /* it came whole, and is no JSON */
    a.truncated = true;
    struct verdict v = decide(t, &a, false);
    assert_true(slice_eq(v.in.effect_id, SL("e1")));
    assert_true(slice_eq(v.in.result, SL("{\"a\":[{\"id")));
    a.body = SL("{\"a\":[{\"id\":12"); /* of the number there may be more */
    assert_int_equal(decide(t, &a, false).in.effect_id.n, 0);
    terms_drop(t);
}

/* ---- look-ups */

#define AT "\"reconcile\":{\"url\":\"https://t.example/s\",\"exists\":\"items[0].id\",\"effect_id\":\"items[0].id\"}"

static void found_is_settled_absent_is_sent_again_and_anything_else_is_no_answer(void **state) {
    (void)state;
    struct terms *t = terms("{\"downstream\":{\"idempotency\":\"key\"}," TO "}," AT "}");
    struct outbound_answer a = answered(200, "", "{\"items\":[{\"id\":\"e1\"}]}");
    struct verdict v = look_up(t, &a, WALL_MS);
    assert_int_equal(v.in.verb, VERB_ACK);
    assert_true(slice_eq(v.in.effect_id, SL("e1")));
    static const struct {
        u32 status;
        const char *body;
        enum failure_class class;
    } cases[] = {{200, "{\"items\":[]}", CLASS_ABSENT},
                 {200, "{\"items\":[{\"id\":null}]}", CLASS_ABSENT},
                 {404, "whatever", CLASS_ABSENT},
                 {200, "<html>", CLASS_UNKNOWN},
                 {200, "", CLASS_UNKNOWN},
                 {200, "{\"items\":[{\"id\":", CLASS_UNKNOWN},
                 {204, "", CLASS_UNKNOWN},
                 {302, "", CLASS_UNKNOWN},
                 {403, "", CLASS_UNKNOWN},
                 {410, "", CLASS_UNKNOWN},
                 {500, "", CLASS_UNKNOWN}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        a = answered(cases[i].status, "", cases[i].body);
        v = look_up(t, &a, WALL_MS);
        assert_int_equal(v.in.verb, VERB_NACK);
        assert_int_equal(v.in.failure_class, cases[i].class);
        assert_false(v.in.hold);
    }
    for (enum outbound_end end = OUTBOUND_NOT_SENT; end <= OUTBOUND_BROKEN; end++) {
        a = (struct outbound_answer){.end = end, .status = 404, .why = "cut"};
        assert_int_equal(look_up(t, &a, WALL_MS).in.failure_class, CLASS_UNKNOWN);
    }
    terms_drop(t);
}

static void a_field_that_may_lie_behind_the_cut_of_an_answer_is_not_known_to_be_absent(void **state) {
    (void)state;
    struct terms *t = terms("{\"downstream\":{\"idempotency\":\"key\"}," TO "}," AT "}");
    struct outbound_answer a = answered(200, "", "{\"items\":[{\"id\":\"e1\",\"b\":\"xxx");
    a.truncated = true;
    struct verdict v = look_up(t, &a, WALL_MS);
    assert_int_equal(v.in.verb, VERB_ACK);
    assert_true(slice_eq(v.in.effect_id, SL("e1")));
    static const char *const silent[] = {"{\"other\":[1,2,3", "{\"items\":[{\"id\":\"e", "{\"items\":[{\"b\":1", "{",
                                         "<html>"};
    for (size_t i = 0; i < sizeof silent / sizeof *silent; i++) {
        a.body = slice_str(silent[i]);
        v = look_up(t, &a, WALL_MS);
        assert_int_equal(v.in.verb, VERB_NACK);
        assert_int_equal(v.in.failure_class, CLASS_UNKNOWN);
    }
    terms_drop(t);
}

static void absent_is_held_where_sending_again_could_do_it_twice(void **state) {
    (void)state;
    struct outbound_answer a = answered(404, "", "");
    struct terms *t = terms("{\"downstream\":{\"idempotency\":\"none\"}," TO "}," AT "}");
    assert_true(look_up(t, &a, WALL_MS).in.hold);
    terms_drop(t);
    t = terms("{" TO "}," AT "}");
    assert_true(look_up(t, &a, WALL_MS).in.hold);
    terms_drop(t);
    t = terms("{\"downstream\":{\"idempotency\":\"key\",\"remembers\":\"1h\"}," TO "}," AT "}");
    assert_false(look_up(t, &a, WALL_MS - 3599999).in.hold);
    assert_true(look_up(t, &a, WALL_MS - 3600000).in.hold);
    terms_drop(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wait_is_told_in_seconds_or_as_a_date_and_is_an_hour_at_most),
        cmocka_unit_test(a_kept_head_has_the_named_fields_and_is_bounded),
        cmocka_unit_test(each_status_has_its_class),
        cmocka_unit_test(a_redirect_says_where_to_and_that_it_is_not_followed),
        cmocka_unit_test(what_may_have_left_without_an_answer_is_unknown_and_what_did_not_leave_transient),
        cmocka_unit_test(a_failed_probe_costs_no_attempt_unless_its_outcome_is_unknown),
        cmocka_unit_test(gone_pauses_only_where_the_address_is_everybodys),
        cmocka_unit_test(a_result_is_the_answer_as_far_as_it_is_kept),
        cmocka_unit_test(an_effect_id_is_found_in_what_was_read_of_a_longer_answer),
        cmocka_unit_test(found_is_settled_absent_is_sent_again_and_anything_else_is_no_answer),
        cmocka_unit_test(a_field_that_may_lie_behind_the_cut_of_an_answer_is_not_known_to_be_absent),
        cmocka_unit_test(absent_is_held_where_sending_again_could_do_it_twice),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    buf_free(&words.reason);
    buf_free(&words.head);
    payload_view_free(&words.body);
    return failed;
}
