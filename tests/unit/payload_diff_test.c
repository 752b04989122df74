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
    assert_true(payload_diff(&before, &after, UINT32_MAX, note, &out));
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
    assert_true(payload_diff(&before, &after, UINT32_MAX, stop_at_once, &calls));
    assert_int_equal(calls, 1);
    payload_view_init(&after, SL("text"), SL(""), NULL, NULL);
    assert_false(payload_diff(&before, &after, UINT32_MAX, stop_at_once, &calls));
    payload_view_free(&before);
    payload_view_free(&after);
}

enum { MEMBERS = 20000 };

static bool count_changes(void *ctx, slice path, const struct json_item *before, const struct json_item *after) {
    (void)path, (void)before, (void)after;
    ++*(u64 *)ctx;
    return true;
}

/* An object whose members begin with number `first`, with names that all have the same hash. */
static void put_members(struct buf *b, u32 first, bool backwards) {
    for (u32 i = 0; i < MEMBERS; i++) {
        u32 number = first + (backwards ? MEMBERS - 1 - i : i);
        buf_printf(b, "%s\"same-beginning-%06u-same-end\":%u", i ? "," : "{", number, number);
    }
    buf_char(b, '}');
}

/* The same members in the same order, in another order, and other members. */
static void large_payloads_are_compared_in_one_walk(void **state) {
    (void)state;
    static const struct {
        u32 first;
        bool backwards;
        u64 changes, work;
    } cases[] = {{0, false, 0, 2 * MEMBERS}, {0, true, 0, 3 * MEMBERS}, {MEMBERS, false, 2 * MEMBERS, 3 * MEMBERS}};
    struct buf a = {0}, b = {0};
    put_members(&a, 0, false);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct payload_view before = {0}, after = {0};
        u64 changes = 0;
        buf_reset(&b);
        put_members(&b, cases[i].first, cases[i].backwards);
        payload_view_init(&before, buf_slice(&a), SL(""), NULL, NULL);
        payload_view_init(&after, buf_slice(&b), SL(""), NULL, NULL);
        assert_true(payload_diff(&before, &after, UINT32_MAX, count_changes, &changes));
        assert_int_equal(changes, cases[i].changes);
        assert_true(after.work <= cases[i].work);
        payload_view_free(&before);
        payload_view_free(&after);
    }
    buf_free(&a);
    buf_free(&b);
}

/* Objects within objects, members in random order: what differs is what was changed. */
static void put_nested(struct buf *b, struct rng *r, u32 depth, u32 odd) {
    u32 order[6], count = 6;
    for (u32 i = 0; i < count; i++) {
        u32 j = (u32)rng_below(r, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    buf_char(b, '{');
    for (u32 i = 0; i < count; i++) {
        buf_printf(b, "%s\"n%u\":", i ? "," : "", order[i]);
        if (depth && order[i] % 2)
            put_nested(b, r, depth - 1, order[i] == 3 ? odd : 0);
        else
            buf_printf(b, "%u", order[i] + (order[i] == 4 ? odd : 0));
    }
    buf_char(b, '}');
}

static void order_of_members_never_matters(void **state) {
    (void)state;
    struct rng r;
    rng_seed(&r, 7);
    for (int round = 0; round < 200; round++) {
        struct buf a = {0}, b = {0};
        put_nested(&a, &r, 3, 0);
        put_nested(&b, &r, 3, round % 2 ? 9 : 0);
        buf_char(&a, '\0');
        buf_char(&b, '\0');
        if (round % 2) {
            struct payload_view before = {0}, after = {0};
            u64 changes = 0;
            payload_view_init(&before, slice_str(a.p), SL(""), NULL, NULL);
            payload_view_init(&after, slice_str(b.p), SL(""), NULL, NULL);
            assert_true(payload_diff(&before, &after, UINT32_MAX, count_changes, &changes));
            assert_int_equal(changes, 4); /* n4, n3.n4, n3.n3.n4, n3.n3.n3.n4 */
            payload_view_free(&before);
            payload_view_free(&after);
        } else {
            assert_changes(a.p, b.p, "");
        }
        buf_free(&a);
        buf_free(&b);
    }
}

static void payloads_of_more_values_than_wanted_are_not_compared_nor_read_in_vain(void **state) {
    (void)state;
    struct payload_view before = {0}, after = {0};
    struct buf out = {0};
    slice four = SL("{\"a\":[1,2]}"), five = SL("{\"a\":[1,2,3]}");
    payload_view_init(&before, four, SL(""), NULL, NULL);
    payload_view_init(&after, five, SL(""), NULL, NULL);
    assert_false(payload_diff(&before, &after, 4, note, &out));
    assert_int_equal(before.state, VIEW_UNREAD);
    assert_false(payload_diff(&before, &after, 8, note, &out));
    assert_int_equal(out.len, 0);
    assert_true(payload_diff(&before, &after, 9, note, &out));
    assert_true(slice_eq(buf_slice(&out), SL("a")));
    buf_free(&out);
    payload_view_free(&before);
    payload_view_free(&after);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(changed_fields_are_named_by_path),
        cmocka_unit_test(the_visitor_can_stop_and_what_is_no_json_is_not_compared),
        cmocka_unit_test(large_payloads_are_compared_in_one_walk),
        cmocka_unit_test(payloads_of_more_values_than_wanted_are_not_compared_nor_read_in_vain),
        cmocka_unit_test(order_of_members_never_matters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
