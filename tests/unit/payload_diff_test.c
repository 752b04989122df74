/* Which fields two payloads do not agree on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "config/payload_diff.h"

/* "path" for a changed field, "+path" for one only the second has, "-path" for one only the first has. */
static bool note(void *ctx, slice path, const struct json_item *before, const struct json_item *after) {
    struct buf *out = ctx;
    if (out->len) buf_char(out, ' ');
    if (!before) buf_char(out, '+');
    if (!after) buf_char(out, '-');
    buf_slice_add(out, path.n ? path : SL("(all)"));
    return true;
}

static void assert_changes(const char *a, const char *b, const char *expected) {
    struct payload_view before = {0}, after = {0};
    struct buf out = {0};
    payload_view_init(&before, slice_str(a), SL(""), NULL, NULL);
    payload_view_init(&after, slice_str(b), SL(""), NULL, NULL);
    assert_true(payload_diff(&before, &after, note, &out));
    buf_char(&out, '\0');
    assert_string_equal(out.p, expected);
    buf_free(&out);
    payload_view_free(&before);
    payload_view_free(&after);
}

static void changed_fields_are_named_by_path(void **state) {
    (void)state;
    assert_changes("{\"a\":1,\"b\":\"x\"}", "{\"b\":\"\\u0078\",\"a\":1.0}", "");
    assert_changes("{\"a\":1,\"b\":2}", "{\"a\":2,\"c\":2}", "a -b +c");
    assert_changes("{\"a\":{\"b\":{\"c\":1,\"d\":1}}}", "{\"a\":{\"b\":{\"c\":2,\"d\":1}}}", "a.b.c");
    assert_changes("{\"a\":{\"b\":1}}", "{\"a\":[1]}", "a");
    assert_changes("{\"a\":1}", "{\"a\":\"1\"}", "a");
    assert_changes("{\"l\":[1,\"x\"]}", "{\"l\":[1.0,\"\\u0078\"]}", "");
    assert_changes("{\"l\":[1,2]}", "{\"l\":[1,2,3]}", "l");
    assert_changes("{\"l\":[1,2]}", "{\"l\":[2,1]}", "l");
    assert_changes("[1]", "{}", "(all)");
    assert_changes("{\"n\":null}", "{\"n\":null}", "");
}

static bool stop_at_once(void *ctx, slice path, const struct json_item *before, const struct json_item *after) {
    (void)path, (void)before, (void)after;
    ++*(int *)ctx;
    return false;
}

static void the_visitor_can_stop_and_what_is_no_json_is_not_compared(void **state) {
    (void)state;
    struct payload_view before = {0}, after = {0};
    int calls = 0;
    payload_view_init(&before, SL("{\"a\":{\"x\":1,\"y\":1},\"b\":1}"), SL(""), NULL, NULL);
    payload_view_init(&after, SL("{\"c\":1}"), SL(""), NULL, NULL);
    assert_true(payload_diff(&before, &after, stop_at_once, &calls));
    assert_int_equal(calls, 1);
    payload_view_init(&after, SL("text"), SL(""), NULL, NULL);
    assert_false(payload_diff(&before, &after, stop_at_once, &calls));
    payload_view_free(&before);
    payload_view_free(&after);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(changed_fields_are_named_by_path),
        cmocka_unit_test(the_visitor_can_stop_and_what_is_no_json_is_not_compared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
