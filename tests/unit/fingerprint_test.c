/* Fingerprints: what is the same message, and what is another one under the same key. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "config/fingerprint.h"
#include "config/rank.h"

static const struct siphash_key key = {0x0706050403020100, 0x0f0e0d0c0b0a0908};

static struct fingerprint *said(const char *yaml) {
    struct tree tree;
    struct fingerprint *f;
    struct errbuf err = {0};
    if (tree_from_yaml(slice_str(yaml), "f", &tree, &err) != ST_OK) fail_msg("%s: %s", yaml, err.text);
    if (fingerprint_from_tree(tree.root, &f, &err) != ST_OK) fail_msg("%s: %s", yaml, err.text);
    tree_free(&tree);
    return f;
}

static u64 of(const char *yaml, const char *payload) {
    struct fingerprint *f = said(yaml);
    struct payload_view v = {0};
    payload_view_init(&v, slice_str(payload), SL(""), NULL, NULL);
    u64 first = fingerprint_eval(f, &v, &key), again = fingerprint_eval(f, &v, &key);
    assert_int_equal(first, again);
    payload_view_free(&v);
    fingerprint_free(f);
    return first;
}

static void assert_same(const char *yaml, const char *a, const char *b) {
    if (of(yaml, a) != of(yaml, b)) fail_msg("%s: %s and %s differ", yaml, a, b);
}

static void assert_other(const char *yaml, const char *a, const char *b) {
    if (of(yaml, a) == of(yaml, b)) fail_msg("%s: %s and %s are the same", yaml, a, b);
}

static void bytes_are_the_payload_as_it_is(void **state) {
    (void)state;
    assert_null(said("bytes"));
    assert_int_equal(of("bytes", "{\"a\":1}"), siphash(&key, "{\"a\":1}", 7));
    assert_other("bytes", "{\"a\":1}", "{\"a\": 1}");
    assert_other("bytes", "", "x");
}

static void json_is_what_the_payload_means(void **state) {
    (void)state;
    assert_same("json", "{\"a\":1,\"b\":[true,null]}", " { \"b\" : [ true , null ] , \"a\" : 1.0 } ");
    assert_same("json", "{\"a\":{\"x\":1,\"y\":2},\"b\":3}", "{\"b\":3,\"a\":{\"y\":2,\"x\":1}}");
    assert_same("json", "{\"\\u0061\":\"\\u0062\"}", "{\"a\":\"b\"}");
    assert_same("json", "[1e2,-0]", "[100,0]");
    assert_same("json", "{\"q\":\"\\\"\\u000a\\/\"}", "{\"q\":\"\\\"\\n/\"}");
    assert_same("json", "{\"n\":1e99999999999}", "{ \"n\":1e99999999999}");
    assert_other("json", "{\"a\":1}", "{\"a\":\"1\"}");
    assert_other("json", "{\"a\":1}", "{\"b\":1}");
    assert_other("json", "{\"a\":1}", "{\"a\":1,\"b\":null}");
    assert_other("json", "[1,2]", "[2,1]");
    assert_other("json", "[[1],2]", "[[1,2]]");
    assert_other("json", "{}", "[]");
    assert_other("json", "{\"a\":\"x\\\",\\\"b\\\":\\\"y\"}", "{\"a\":\"x\",\"b\":\"y\"}");
    assert_other("json", "[\"true\"]", "[true]");
}

static void ignored_fields_do_not_count(void **state) {
    (void)state;
    const char *ignore = "{ignore: [sent_at, meta.retry, 'items[*].at', 'list[0]']}";
    assert_same(ignore, "{\"id\":1,\"sent_at\":\"x\"}", "{\"sent_at\":{\"deep\":[1]},\"id\":1}");
    assert_same(ignore, "{\"id\":1,\"sent_at\":\"x\"}", "{\"id\":1}");
    assert_same(ignore, "{\"meta\":{\"retry\":1,\"k\":2}}", "{\"meta\":{\"k\":2,\"retry\":7}}");
    assert_same(ignore, "{\"items\":[{\"at\":1,\"n\":1},{\"n\":2}]}", "{\"items\":[{\"n\":1},{\"n\":2,\"at\":9}]}");
    assert_same(ignore, "{\"list\":[1,2]}", "{\"list\":[3,2]}");
    assert_other(ignore, "{\"id\":1,\"sent_at\":\"x\"}", "{\"id\":2,\"sent_at\":\"x\"}");
    assert_other(ignore, "{\"x\":{\"sent_at\":1}}", "{\"x\":{\"sent_at\":2}}");
    assert_other(ignore, "{\"list\":[1,2]}", "{\"list\":[1,3]}");
}

static void only_the_named_fields_count(void **state) {
    (void)state;
    const char *only = "{only: [id, a.b, 'items[*].n']}";
    assert_same(only, "{\"id\":1,\"x\":1}", "{\"id\":1.0,\"x\":2}");
    assert_same(only, "{\"id\":1,\"items\":[{\"n\":1,\"m\":1},{\"n\":2}]}",
                "{\"items\":[{\"n\":1},{\"n\":2,\"m\":5}],\"id\":1}");
    assert_other(only, "{\"id\":1}", "{\"id\":2}");
    assert_other(only, "{\"id\":1}", "{}");
    assert_other(only, "{\"id\":null}", "{}");
    assert_other(only, "{\"id\":1,\"a\":{\"b\":1}}", "{\"id\":1,\"a\":{\"b\":{}}}");
    assert_other(only, "{\"items\":[{\"n\":1},{\"n\":2}]}", "{\"items\":[{\"n\":2},{\"n\":1}]}");
    assert_int_equal(of("{only: [a, b]}", "{\"a\":1,\"b\":2}"), of("{only: [b, a]}", "{\"a\":1,\"b\":2}"));
}

static void none_makes_every_payload_the_same(void **state) {
    (void)state;
    assert_same("none", "{\"a\":1}", "something else");
}

static void a_payload_that_is_no_json_counts_by_its_bytes(void **state) {
    (void)state;
    static const char *const kinds[] = {"json", "{only: [a]}", "{ignore: [a]}"};
    for (size_t i = 0; i < 3; i++) {
        assert_same(kinds[i], "no json", "no json");
        assert_other(kinds[i], "no json", "no  json");
        assert_other(kinds[i], "{\"a\":1", "{\"a\":1}");
        assert_other(kinds[i], "", "\"\"");
    }
}

static bool looks_at(const char *yaml, const char *path) {
    struct fingerprint *f = said(yaml);
    bool yes = fingerprint_looks_at(f, slice_str(path));
    fingerprint_free(f);
    return yes;
}

static void it_is_known_which_fields_count(void **state) {
    (void)state;
    assert_true(looks_at("bytes", "a") && looks_at("json", "a"));
    assert_false(looks_at("none", "a"));
    assert_false(looks_at("{ignore: [a.b]}", "a.b") || looks_at("{ignore: [a.b]}", "a.b.c"));
    assert_true(looks_at("{ignore: [a.b]}", "a") && looks_at("{ignore: [a.b]}", "a.bc"));
    assert_true(looks_at("{only: [a.b]}", "a.b.c") && looks_at("{only: [a.b]}", "a"));
    assert_true(looks_at("{only: ['a[*].x']}", "a"));
    assert_false(looks_at("{only: [a.b]}", "b"));
}

/* Members in random order, spelled in random ways, in objects small and large: sorting and spelling change nothing. */
static void order_and_spelling_never_matter(void **state) {
    (void)state;
    struct rng r;
    struct buf b = {0};
    rng_seed(&r, 5);
    for (u32 size = 1; size < 120; size += 1 + size / 4) {
        u64 expected = 0;
        for (int round = 0; round < 8; round++) {
            u32 order[128];
            for (u32 i = 0; i < size; i++) {
                u32 j = (u32)rng_below(&r, i + 1);
                order[i] = order[j];
                order[j] = i;
            }
            buf_reset(&b);
            for (u32 i = 0; i < size; i++) {
                buf_printf(&b, "%s%s\"same-head-%u-same-tail\"%s:", i ? "," : "{", rng_below(&r, 2) ? " " : "",
                           order[i], rng_below(&r, 2) ? "\n" : "");
                buf_printf(&b, rng_below(&r, 2) ? "{\"x\":%u}" : "{ \"\\u0078\" :%u.0}", order[i]);
            }
            buf_lit(&b, "}");
            buf_char(&b, '\0');
            u64 found = of("json", b.p);
            if (round == 0) expected = found;
            assert_int_equal(found, expected);
        }
    }
    buf_free(&b);
}

static int by_hash_then_name(const void *left, const void *right) {
    const struct ranked *a = left, *b = right;
    slice x = json_item_name(a->item), y = json_item_name(b->item);
    int order = memcmp(x.p, y.p, x.n < y.n ? x.n : y.n);
    if (a->hash != b->hash) return a->hash < b->hash ? -1 : 1;
    return order ? order : (x.n > y.n) - (x.n < y.n);
}

/* An object of so many members; of each kind the names in the middle have one hash for all, or one for each. */
static void put_members(struct buf *b, u32 size, u32 kind) {
    buf_reset(b);
    for (u32 i = 0; i < size; i++) {
        u32 number = i * 2654435769u % 100000;
        bool alike = kind == 2 || (kind == 1 && i % 3 == 0);
        buf_printf(b, alike ? "%c\"one-head-%05u-one-tail\":%u" : "%c\"%u\":%u", i ? ',' : '{', number, i);
    }
    buf_lit(b, "}");
}

/* What is stored was made in this order: another one would take every repeat for a conflict. */
static void members_are_in_the_order_of_hashes_then_of_names(void **state) {
    (void)state;
    struct buf b = {0}, expected = {0};
    struct payload_view v = {0};
    for (u32 size = 1; size < 6000; size += 1 + size / 3) {
        for (u32 kind = 0; kind < 3; kind++) {
            put_members(&b, size, kind);
            payload_view_init(&v, buf_slice(&b), SL(""), NULL, NULL);
            assert_true(payload_view_json(&v));
            buf_reset(&v.ranking);
            for (u32 i = 1; i < v.tape.at[0].next; i = v.tape.at[i].next) ranked_add(&v, i);
            assert_int_equal(ranked_count(&v, 0), size);
            buf_reset(&expected);
            buf_slice_add(&expected, buf_slice(&v.ranking));
            qsort(expected.p, size, sizeof(struct ranked), by_hash_then_name);
            ranked_sort(ranked_at(&v, 0), size);
            assert_memory_equal(v.ranking.p, expected.p, expected.len);
        }
    }
    payload_view_free(&v);
    buf_free(&expected);
    buf_free(&b);
}

static void a_wrong_fingerprint_is_told_where(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"sha256", "f:1:1: expected bytes, json, none, {only: [...]} or {ignore: [...]}"},
        {"[a]", "f:1:1: expected bytes, json, none, {only: [...]} or {ignore: [...]}"},
        {"{except: [a]}", "f:1:2: expected only or ignore, found except"},
        {"{only: [a], ignore: [b]}", "f:1:1: expected either only: [...] or ignore: [...]"},
        {"{ignore: a}", "f:1:10: ignore: expected a list of fields, as in [sent_at, meta.retry]"},
        {"{ignore: []}", "f:1:10: ignore: expected a list of fields, as in [sent_at, meta.retry]"},
        {"{ignore: [a, {b: c}]}", "f:1:14: ignore[1]: expected a field, found a map"},
        {"{ignore: [a..b]}", "f:1:11: ignore[0]: \"a..b\": a field name is missing (at its byte 3)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tree tree;
        struct fingerprint *f;
        struct errbuf err = {0};
        assert_int_equal(tree_from_yaml(slice_str(cases[i][0]), "f", &tree, &err), ST_OK);
        assert_int_equal(fingerprint_from_tree(tree.root, &f, &err), ST_INVALID);
        assert_null(f);
        assert_string_equal(err.text, cases[i][1]);
        tree_free(&tree);
    }
}

/* ---- what it costs */

enum { MEMBERS = 20000, PATHS = 64 };

/* Names that agree in length, beginning and end have the same hash: whoever writes the payload may choose them so. */
static void put_name(struct buf *b, bool hostile, u32 number) {
    buf_printf(b, hostile ? "same-beginning-%06u-same-end" : "m%u", number);
}

static void put_payload(struct buf *b, bool hostile) {
    for (u32 i = 0; i < MEMBERS; i++) {
        buf_slice_add(b, i ? SL(",\"") : SL("{\""));
        put_name(b, hostile, i);
        buf_lit(b, "\":1");
    }
    buf_char(b, '}');
}

static u64 work_of(const char *kind, bool hostile, u32 paths, slice payload, u64 *value) {
    struct buf yaml = {0};
    struct payload_view v = {0};
    buf_printf(&yaml, "%s: [", kind);
    for (u32 i = 0; i < paths; i++) {
        if (i) buf_lit(&yaml, ", ");
        put_name(&yaml, hostile, MEMBERS - 1 - i * 100);
    }
    buf_char(&yaml, ']');
    buf_char(&yaml, '\0');
    struct fingerprint *f = said(yaml.p);
    payload_view_init(&v, payload, SL(""), NULL, NULL);
    *value = fingerprint_eval(f, &v, &key);
    u64 work = v.work;
    payload_view_free(&v);
    fingerprint_free(f);
    buf_free(&yaml);
    return work;
}

static void many_fields_cost_no_more_than_one(void **state) {
    (void)state;
    for (int hostile = 0; hostile < 2; hostile++) {
        struct buf payload = {0};
        u64 one, all;
        put_payload(&payload, hostile);
        assert_true(work_of("ignore", hostile, 1, buf_slice(&payload), &one) <= MEMBERS);
        assert_true(work_of("ignore", hostile, PATHS, buf_slice(&payload), &all) <= MEMBERS);
        assert_true(one != all);
        assert_true(work_of("only", hostile, PATHS, buf_slice(&payload), &all) <= MEMBERS);
        buf_free(&payload);
    }
}

static void many_fields_of_many_elements_cost_one_walk(void **state) {
    (void)state;
    struct buf payload = {0}, yaml = {0};
    struct payload_view v = {0};
    buf_lit(&payload, "{\"l\":[");
    for (int i = 0; i < MEMBERS; i++) buf_slice_add(&payload, i ? SL(",{\"a\":[1]}") : SL("{\"a\":[1]}"));
    buf_lit(&payload, "]}");
    for (int i = 0; i < PATHS / 2; i++) buf_printf(&yaml, "%s'l[*].x%d', 'l[%d].a[*]'", i ? ", " : "ignore: [", i, i);
    buf_char(&yaml, ']');
    buf_char(&yaml, '\0');
    struct fingerprint *f = said(yaml.p);
    payload_view_init(&v, buf_slice(&payload), SL(""), NULL, NULL);
    fingerprint_eval(f, &v, &key);
    assert_true(v.work <= 3 * MEMBERS + 1);
    payload_view_free(&v);
    fingerprint_free(f);
    buf_free(&payload);
    buf_free(&yaml);
}

static u64 thread_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (u64)t.tv_sec * 1000000000 + (u64)t.tv_nsec;
}

/* What a member costs where a payload is all objects of so many, whose names have one hash: the least of several tries. */
static double member_ns(u32 size) {
    struct buf payload = {0};
    struct payload_view v = {0};
    struct fingerprint *f = said("json");
    u64 least = UINT64_MAX;
    u32 objects = MEMBERS / size;
    for (u32 i = 0; i < objects * size; i++) {
        buf_slice_add(&payload, i == 0 ? SL("[{\"") : i % size ? SL(",\"") : SL("},{\""));
        put_name(&payload, true, i % size);
        buf_lit(&payload, "\":1");
    }
    buf_lit(&payload, "}]");
    payload_view_init(&v, buf_slice(&payload), SL(""), NULL, NULL);
    assert_true(payload_view_json(&v));
    for (u32 i = 0; i < 20; i++) {
        u64 began = thread_ns();
        fingerprint_eval(f, &v, &key);
        u64 took = thread_ns() - began;
        least = took < least ? took : least;
    }
    payload_view_free(&v);
    fingerprint_free(f);
    buf_free(&payload);
    return (double)least / (objects * size);
}

/* A payload may be thousands of objects, each just large enough for another way of sorting. Those cost ten times as much once, and
 * one send held everybody up for two hundred milliseconds. */
static void no_size_of_object_is_the_one_to_attack_with(void **state) {
    (void)state;
    double small = member_ns(32);
    for (u32 size = 33; size < 700; size += size / 3) assert_true(member_ns(size) < 5 * small);
}

/* Sixty-four ways to the same element: [0] and [*], six times. */
static void parts_named_over_and_over_are_taken_by_their_bytes(void **state) {
    (void)state;
    struct buf payload = {0}, yaml = {0};
    struct payload_view v = {0};
    for (u32 i = 0; i < PATHS; i++) {
        buf_slice_add(&yaml, i ? SL(", '") : SL("only: ['"));
        for (u32 step = 0; step < 6; step++) buf_slice_add(&yaml, i >> step & 1 ? SL("[*]") : SL("[0]"));
        buf_char(&yaml, '\'');
    }
    buf_char(&yaml, ']');
    buf_char(&yaml, '\0');
    struct fingerprint *f = said(yaml.p);
    for (size_t bytes = 100; bytes <= 200000; bytes += 199900) {
        buf_reset(&payload);
        buf_lit(&payload, "[[[[[[\"");
        for (size_t i = 0; i < bytes; i++) buf_char(&payload, 'x');
        buf_lit(&payload, "\"]]]]]]");
        payload_view_init(&v, buf_slice(&payload), SL(""), NULL, NULL);
        u64 compact = fingerprint_eval(f, &v, &key);
        buf_char(&payload, ' ');
        payload_view_init(&v, buf_slice(&payload), SL(""), NULL, NULL);
        u64 spaced = fingerprint_eval(f, &v, &key);
        assert_true((compact == spaced) == (bytes == 100)); /* by its meaning as long as that is cheap */
        assert_true(v.spelling.len <= 12 * payload.len + 65536);
    }
    payload_view_free(&v);
    fingerprint_free(f);
    buf_free(&payload);
    buf_free(&yaml);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_the_payload_as_it_is),
        cmocka_unit_test(json_is_what_the_payload_means),
        cmocka_unit_test(ignored_fields_do_not_count),
        cmocka_unit_test(only_the_named_fields_count),
        cmocka_unit_test(none_makes_every_payload_the_same),
        cmocka_unit_test(a_payload_that_is_no_json_counts_by_its_bytes),
        cmocka_unit_test(it_is_known_which_fields_count),
        cmocka_unit_test(order_and_spelling_never_matter),
        cmocka_unit_test(members_are_in_the_order_of_hashes_then_of_names),
        cmocka_unit_test(a_wrong_fingerprint_is_told_where),
        cmocka_unit_test(many_fields_cost_no_more_than_one),
        cmocka_unit_test(many_fields_of_many_elements_cost_one_walk),
        cmocka_unit_test(no_size_of_object_is_the_one_to_attack_with),
        cmocka_unit_test(parts_named_over_and_over_are_taken_by_their_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
