/* What passes through a proxy: paths, the fields of a request, the head of an answer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

#include "broker/passing.h"

static void a_path_that_leads_upwards_is_wrong_however_it_is_spelled(void **state) {
    (void)state;
    static const char *const parts[] = {".", "%2e", "%2E", "%252e", "%25252e", "%c0%ae"};
    static const char *const ends[] = {"/", "%2f", "%2F", "\\", "%5c", "%255c", "%c0%af", ";a/", "%3b/", ""};
    static const char *const begins[] = {"/", "%2f", "\\", "%5C", "%252F"};
    char path[128];
    for (size_t a = 0; a < 6; a++)
        for (size_t b = 0; b < 6; b++)
            for (size_t e = 0; e < 10; e++)
                for (size_t s = 0; s < 5; s++) {
                    snprintf(path, sizeof path, "/x%s%s%s%s%s", begins[s], parts[a], parts[b], ends[e],
                             *ends[e] ? "y" : "");
                    if (!path_wrong(slice_str(path))) fail_msg("%s passes", path);
                }
}

static void a_path_that_does_not_lead_upwards_is_fine(void **state) {
    (void)state;
    static const char *const fine[] = {"",     "/",       "/.",         "/./a",   "/...", "/a..",
                                       "/..a", "/a../b",  "/a/.../b",   "/a%2fb", "/%25", "/%2525",
                                       "/;..", "/a;../b", "/%e2%82%ac", "/%ff",   "//",   "/a.%2e.b"};
    static const char *const bad[] = {"/%", "/%1", "/%zz", "/%00", "/a%2500b", "/a#b", "/%2525252525252e"};
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++)
        if (path_wrong(slice_str(fine[i]))) fail_msg("%s: %s", fine[i], path_wrong(slice_str(fine[i])));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (!path_wrong(slice_str(bad[i]))) fail_msg("%s passes", bad[i]);
}

/* A path of a whole request line, encoded as deep as that goes. */
static void the_longest_path_is_judged_in_no_time(void **state) {
    (void)state;
    struct buf path = {0};
    buf_char(&path, '/');
    buf_char(&path, '%');
    while (path.len < HTTP_LINE_MAX - 2) buf_lit(&path, "25");
    buf_lit(&path, "2e");
    assert_string_equal(path_wrong(buf_slice(&path)), "the path is encoded too many times over");
    buf_free(&path);
}

static void of_a_request_the_key_passes_whatever_its_connection_says(void **state) {
    (void)state;
    struct http_field fields[] = {{SL("Connection"), SL("Idempotency-Key, a")},
                                  {SL("A"), SL("1")},
                                  {SL("IDEMPOTENCY-KEY"), SL("k")},
                                  {SL("connection"), SL("b")},
                                  {SL("B"), SL("2")},
                                  {SL("C"), SL("")},
                                  {SL("Hapax-X"), SL("1")},
                                  {SL("Hapaxes"), SL("1")}};
    struct http_request req = {.fields = fields, .field_count = sizeof fields / sizeof *fields};
    const char *lines[PASSED_FIELDS];
    struct buf text = {0};
    request_passes(&req, &text, lines);
    assert_string_equal(lines[0], "IDEMPOTENCY-KEY: k");
    assert_string_equal(lines[1], "C: ");
    assert_string_equal(lines[2], "Hapaxes: 1");
    assert_string_equal(lines[3], "Accept-Encoding: identity");
    assert_null(lines[4]);
    buf_free(&text);
}

static void every_field_of_the_largest_head_has_its_place(void **state) {
    (void)state;
    struct http_field fields[HTTP_FIELDS_MAX];
    for (u32 i = 0; i < HTTP_FIELDS_MAX; i++) fields[i] = (struct http_field){SL("X"), SL("1")};
    struct http_request req = {.fields = fields, .field_count = HTTP_FIELDS_MAX};
    const char *lines[PASSED_FIELDS];
    struct buf text = {0};
    request_passes(&req, &text, lines);
    assert_string_equal(lines[HTTP_FIELDS_MAX], "Accept-Encoding: identity");
    assert_null(lines[HTTP_FIELDS_MAX + 1]);
    buf_free(&text);
}

static void of_an_answer_no_line_writes_another(void **state) {
    (void)state;
    struct buf kept = {0}, once = {0};
    slice head =
        SL("A: 1\r\nB: x\ry\r\nno line\r\n: empty\r\nBad Name: 1\r\nC: \x01\r\nSET-COOKIE: s\r\nContent-Length: 5\r\n"
           "Connection: d\r\nD: 1\r\nE:2\n\r\nF: \xc3\xa9\r\n");
    assert_true(answer_passes(201, head, false, &kept, &once));
    buf_char(&kept, 0);
    assert_string_equal(kept.p, "201\r\nA: 1\r\nE:2\r\nF: \xc3\xa9\r\n");
    buf_char(&once, 0);
    assert_string_equal(once.p, "SET-COOKIE: s\r\n");
    assert_true(answer_passes(201, SL("Content-Length: 5\r\n"), true, &kept, &once));
    assert_int_equal(kept.len, sizeof "201\r\nContent-Length: 5\r\n" - 1);
    buf_free(&kept);
    buf_free(&once);
}

static void an_answer_that_is_none_or_cannot_be_kept_is_said_so(void **state) {
    (void)state;
    struct buf kept = {0}, once = {0}, head = {0};
    static const u32 none[] = {0, 99, 100, 199, 600, 999};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        assert_false(answer_passes(none[i], SL(""), false, &kept, &once));
    buf_lit(&head, "Connection: ");
    while (head.len < 4000) buf_lit(&head, "a,");
    buf_lit(&head, "b\r\n");
    assert_false(answer_passes(200, buf_slice(&head), false, &kept, &once));
    buf_reset(&head);
    while (head.len <= HTTP_HEAD_BYTES_MAX) buf_lit(&head, "a: b\r\n");
    assert_false(answer_passes(200, buf_slice(&head), false, &kept, &once));
    buf_free(&kept);
    buf_free(&once);
    buf_free(&head);
}

static void a_kept_head_is_read_as_it_was_written(void **state) {
    (void)state;
    u16 status = 0;
    slice lines;
    assert_true(kept_head(SL("204\r\nA: 1\r\nb: 2\r\n"), &status, &lines));
    assert_int_equal(status, 204);
    assert_true(slice_eq(lines, SL("A: 1\r\nb: 2\r\n")));
    assert_true(lines_name(lines, SL("a")) && lines_name(lines, SL("b")) && !lines_name(lines, SL("1")));
    assert_true(kept_head(SL("200\r\n"), &status, &lines) && lines.n == 0);
    assert_false(kept_head(SL(""), &status, &lines));
    assert_false(kept_head(SL("20x\r\n"), &status, &lines));
    assert_false(kept_head(SL("100\r\n"), &status, &lines));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_path_that_leads_upwards_is_wrong_however_it_is_spelled),
        cmocka_unit_test(a_path_that_does_not_lead_upwards_is_fine),
        cmocka_unit_test(the_longest_path_is_judged_in_no_time),
        cmocka_unit_test(of_a_request_the_key_passes_whatever_its_connection_says),
        cmocka_unit_test(every_field_of_the_largest_head_has_its_place),
        cmocka_unit_test(of_an_answer_no_line_writes_another),
        cmocka_unit_test(an_answer_that_is_none_or_cannot_be_kept_is_said_so),
        cmocka_unit_test(a_kept_head_is_read_as_it_was_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
