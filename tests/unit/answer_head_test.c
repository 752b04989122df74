/* The head of an HTTP answer that is kept with a result: made, read back, and shown wherever that result is. */
#include "unit/broker_world.h"

#include "broker/answer_head.h"
#include "broker/broker_priv.h"
#include "broker/lookup.h"
#include "broker/settling.h"

static struct buf shown_of(slice head) {
    struct buf out = {0};
    buf_lit(&out, "{\"result\":1");
    put_answer_head(&out, head);
    buf_lit(&out, "}");
    buf_char(&out, 0);
    return out;
}

static void assert_shown(slice head, const char *json) {
    struct buf out = shown_of(head);
    assert_string_equal(out.p, json);
    buf_free(&out);
}

static void what_is_put_into_a_head_is_read_back(void **state) {
    (void)state;
    struct buf head = {0};
    slice name, value;
    size_t at = 0;
    answer_head_begin(&head, 201, true);
    assert_true(answer_head_add(&head, SL("Location"), SL("/slots/7: the best")));
    assert_true(answer_head_add(&head, SL("empty"), SL("")));
    slice h = buf_slice(&head);
    assert_int_equal(answer_head_status(h), 201);
    assert_true(answer_head_truncated(h));
    assert_true(answer_head_next(h, &at, &name, &value));
    assert_true(slice_eq(name, SL("location")) && slice_eq(value, SL("/slots/7: the best")));
    assert_true(answer_head_next(h, &at, &name, &value));
    assert_true(slice_eq(name, SL("empty")) && value.n == 0);
    assert_false(answer_head_next(h, &at, &name, &value));
    buf_free(&head);
}

static void a_field_cannot_break_the_lines_nor_speak_for_us(void **state) {
    (void)state;
    struct buf head = {0};
    answer_head_begin(&head, 200, false);
    assert_false(answer_head_add(&head, SL("a\r\nb"), SL("x")));
    assert_false(answer_head_add(&head, SL("a"), SL("x\nhapax-truncated: true")));
    assert_false(answer_head_add(&head, SL("a"), slice_of("x\0y", 3)));
    assert_false(answer_head_add(&head, SL("a:b"), SL("x")));
    assert_false(answer_head_add(&head, SL(""), SL("x")));
    assert_false(answer_head_add(&head, SL("Hapax-Truncated"), SL("true")));
    assert_true(slice_eq(buf_slice(&head), SL("200\r\n")));
    static char text[HTTP_HEAD_BYTES_MAX];
    memset(text, 'x', sizeof text);
    assert_false(answer_head_add(&head, SL("a"), slice_of(text, HTTP_HEAD_BYTES_MAX - 9)));
    assert_true(answer_head_add(&head, SL("a"), slice_of(text, HTTP_HEAD_BYTES_MAX - 10)));
    assert_int_equal(head.len, HTTP_HEAD_BYTES_MAX);
    buf_free(&head);
}

static void a_head_is_shown_as_json_whatever_its_bytes(void **state) {
    (void)state;
    assert_shown(SL(""), "{\"result\":1}");
    assert_shown(SL("204\r\n"), "{\"result\":1,\"http\":{\"status\":204,\"headers\":{}}}");
    assert_shown(SL("200\r\nhapax-truncated: true\r\nlink: <a>\r\nX: \"1\"\r\nLink: <b>\r\n"),
                 "{\"result\":1,\"http\":{\"status\":200,\"headers\":{\"link\":\"<a>, <b>\",\"X\":\"\\\"1\\\"\"}},"
                 "\"truncated\":true}");
    assert_shown(
        SL("200\r\nname: caf\xe9\r\nutf: \xc3\xa9\r\n"),
        "{\"result\":1,\"http\":{\"status\":200,\"headers\":{\"name\":\"caf\xc3\xa9\",\"utf\":\"\xc3\xa9\"}}}");
    assert_shown(SL("nonsense"), "{\"result\":1,\"http\":{\"status\":0,\"headers\":{}}}");
}

/* 16 KiB have thousands of lines, and each is compared with the others. */
static void of_very_many_fields_the_first_are_shown_and_it_says_so(void **state) {
    (void)state;
    struct buf head = {0};
    answer_head_begin(&head, 200, false);
    for (u32 i = 0; i < ANSWER_FIELDS_SHOWN; i++) assert_true(answer_head_add(&head, SL("a"), SL("")));
    struct buf out = shown_of(buf_slice(&head));
    assert_null(strstr(out.p, "headers_omitted"));
    buf_free(&out);
    assert_true(answer_head_add(&head, SL("last"), SL("x")));
    out = shown_of(buf_slice(&head));
    assert_non_null(strstr(out.p, "\"headers_omitted\":true"));
    assert_null(strstr(out.p, "last"));
    buf_free(&out);
    buf_free(&head);
}

static void push_takes(const char *http) {
    struct token token;
    assert_int_equal(core_token_parse(w.broker->core, slice_of(w.token, TOKEN_TEXT), &token), TOKEN_OK);
    struct seen *s = lookup_id(w.broker, w.broker->lookup, token.hash, token.seq);
    struct settle_in in = {.verb = VERB_ACK,
                           .fence = token.fence,
                           .result = SL("booked"),
                           .content_type = SL("text/plain"),
                           .http = slice_str(http)};
    struct settle_out out;
    assert_int_equal(settle_message(w.broker, &in, s, &out), SETTLE_OK);
    work();
}

#define SHOWN                                                                                                          \
    "\"result\":{\"content_type\":\"text/plain\",\"body\":\"booked\",\"encoding\":\"utf8\"},"                          \
    "\"http\":{\"status\":201,\"headers\":{\"location\":\"/7\"}},\"truncated\":true"

static void an_answer_is_shown_with_its_status_wherever_its_result_is(void **state) {
    (void)state;
    assert_int_equal(call("PUT /v1/queues/q", "{\"keep_payload\":\"1h\"}"), 201);
    send("q", "k", "p");
    assert_int_equal(call("POST /v1/queues/q/receive", ""), 200);
    push_takes("201\r\nhapax-truncated: true\r\nlocation: /7\r\n");
    restart();
    assert_int_equal(send("q", "k", "p"), 200); /* a duplicate's answer */
    assert_said(SHOWN);
    assert_int_equal(settle("ack", ""), 200); /* the same settling call again */
    assert_said(SHOWN);
    assert_int_equal(call("GET /v1/queues/q/keys/k", ""), 200);
    assert_said(SHOWN);
    assert_int_equal(call("GET /v1/queues/q/keys/k/result", ""), 200);
    assert_string_equal(w.body.p, "booked");
    assert_non_null(strstr(w.fields.p, "Hapax-Truncated: true\r\n"));
    assert_int_equal(call("POST /v1/queues/q/keys/k/replay", "{\"by\":\"ann\"}"), 202);
    assert_int_equal(send("q", "k", "p"), 202);
    assert_said("\"previous\":{");
    assert_said(SHOWN);
    assert_int_equal(call("POST /v1/queues/q/keys/k/erase", "{\"by\":\"ann\"}"), 200);
    call("GET /v1/queues/q/keys/k", "");
    assert_null(strstr(w.body.p, "/7"));
}

static void what_is_held_before_its_first_send_says_so(void **state) {
    (void)state;
    send("q", "k", "p");
    assert_int_equal(call("POST /v1/queues/q/receive?start=explicit", ""), 200);
    struct token token;
    core_token_parse(w.broker->core, slice_of(w.token, TOKEN_TEXT), &token);
    struct seen *s = lookup_id(w.broker, w.broker->lookup, token.hash, token.seq);
    struct settle_in in = {.verb = VERB_HOLD, .fence = token.fence, .reason = SL("approve: true")};
    struct settle_out out;
    assert_int_equal(settle_message(w.broker, &in, s, &out), SETTLE_OK);
    work();
    call("GET /v1/queues/q/keys/k", "");
    assert_said("\"state\":\"held\",\"reason\":\"approve: true\"");
    assert_said("\"held_because\":\"approval\"");
    assert_said("\"text\":\"held: approve: true\"");
    assert_int_equal(call("POST /v1/queues/q/keys/k/resolve", "{\"as\":\"retry\",\"by\":\"ann\"}"), 200);
    assert_int_equal(call("POST /v1/queues/q/receive", ""), 200);
    assert_said("\"delivery\":\"first\"");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_put_into_a_head_is_read_back),
        cmocka_unit_test(a_field_cannot_break_the_lines_nor_speak_for_us),
        cmocka_unit_test(a_head_is_shown_as_json_whatever_its_bytes),
        cmocka_unit_test(of_very_many_fields_the_first_are_shown_and_it_says_so),
        cmocka_unit_test_setup_teardown(an_answer_is_shown_with_its_status_wherever_its_result_is, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_is_held_before_its_first_send_says_so, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
