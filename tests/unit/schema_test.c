/* Schemas: upstream drift is named before it changes a key. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "config/schema.h"

/* Passes for `why` NULL; else fails with that sentence. */
static void assert_checked(const char *yaml, slice payload, const char *why) {
    struct tree tree;
    struct schema *s;
    struct errbuf err = {0};
    struct payload_view v = {0};
    if (tree_from_yaml(slice_str(yaml), "f", &tree, &err) != ST_OK) fail_msg("%s: %s", yaml, err.text);
    if (schema_from_tree(tree.root, &s, &err) != ST_OK) fail_msg("%s: %s", yaml, err.text);
    payload_view_init(&v, payload, SL(""), NULL, NULL);
    bool passed = schema_check(s, &v, &err);
    if (passed != !why || (why && strcmp(err.text, why) != 0))
        fail_msg("%s with %.*s: %s", yaml, (int)payload.n, payload.p, passed ? "passes" : err.text);
    payload_view_free(&v);
    schema_free(s);
    tree_free(&tree);
}

static void payloads_are_checked_field_by_field(void **state) {
    (void)state;
    static const struct {
        const char *schema, *payload, *why;
    } cases[] = {
        {"required: [id, a.b]", "{\"id\":1,\"a\":{\"b\":false}}", NULL},
        {"required: [id, a.b]", "{\"id\":1,\"a\":{}}", "field a.b is missing"},
        {"required: [id]", "{\"id\":null}", "field id is null"},
        {"{required: [id], types: {id: [string, 'null']}}", "{\"id\":null}", NULL},
        {"{required: [id], types: {id: [string, null]}}", "{\"id\":null}", NULL},
        {"required: [id]", "[1]", "field id is missing"},
        {"required: [id]", "no json", "the payload is not JSON: expected a value at byte 0"},
        {"types: {n: integer}", "{}", NULL},
        {"types: {n: integer}", "{\"n\":5.0}", NULL},
        {"types: {n: integer}", "{\"n\":-12e3}", NULL},
        {"types: {n: integer}", "{\"n\":12.5}", "field n: expected integer, found number 12.5"},
        {"types: {n: integer}", "{\"n\":1e-1}", "field n: expected integer, found number 1e-1"},
        {"types: {n: integer}", "{\"n\":\"5\"}", "field n: expected integer, found text \"5\""},
        {"types: {n: number}", "{\"n\":12.5}", NULL},
        {"types: {n: string}", "{\"n\":{}}", "field n: expected string, found an object"},
        {"types: {n: boolean}", "{\"n\":true}", NULL},
        {"types: {n: boolean}", "{\"n\":[]}", "field n: expected boolean, found a list"},
        {"types: {n: object}", "{\"n\":{}}", NULL},
        {"types: {n: array}", "{\"n\":[]}", NULL},
        {"types: {n: [string, integer]}", "{\"n\":null}", "field n: expected string or integer, found null"},
        {"types: {'a[1].b': string}", "{\"a\":[0,{\"b\":false}]}", "field a[1].b: expected string, found false"},
        {"enum: {c: [EUR, USD]}", "{\"c\":\"\\u0045UR\"}", NULL},
        {"enum: {c: [EUR, USD]}", "{\"c\":\"GBP\"}", "field c: expected one of EUR, USD, found text \"GBP\""},
        {"enum: {c: [1, '2', true, null]}", "{\"c\":1.0}", NULL},
        {"enum: {c: [1, '2', true, null]}", "{\"c\":\"2\"}", NULL},
        {"enum: {c: [1, '2', true, null]}", "{\"c\":null}", NULL},
        {"enum: {c: [1, '2', true, null]}", "{\"c\":2}", "field c: expected one of 1, 2, true, null, found number 2"},
        {"enum: {c: [1, '2', true, null]}", "{\"c\":\"true\"}",
         "field c: expected one of 1, 2, true, null, found text \"true\""},
        {"enum: {c: [a]}", "{\"c\":[\"a\"]}", "field c: expected text, a number, true or false, found a list"},
        {"pattern: {id: '^pi_[a-z0-9]+$'}", "{\"id\":\"pi_12ab\"}", NULL},
        {"pattern: {id: '^pi_[a-z0-9]+$'}", "{\"id\":\"pi_12AB\"}",
         "field id: expected a match of ^pi_[a-z0-9]+$, found text \"pi_12AB\""},
        {"pattern: {id: '^a$'}", "{\"id\":\"a\\u0000\"}", "field id: expected a match of ^a$, found text \"a\\u0000\""},
        {"pattern: {id: '^[0-9]{4}$'}", "{\"id\":1234}", NULL},
        {"pattern: {id: '^.{3}$'}", "{\"id\":\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"}", NULL},
        {"pattern: {id: '^\\d+$'}", "{\"id\":\"d\"}", "field id: expected a match of ^\\d+$, found text \"d\""},
        {"max_length: {id: 3}", "{\"id\":\"\xc3\xa9\xc3\xa9\xc3\xa9\"}", NULL},
        {"max_length: {id: 3}", "{\"id\":\"abcd\"}", "field id: expected at most 3 characters, found text \"abcd\""},
        {"max_length: {id: 3}", "{\"id\":\"0123456789012345678901234567890123456789x\"}",
         "field id: expected at most 3 characters, found text \"0123456789012345678901234567890123456789...\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_checked(cases[i].schema, slice_str(cases[i].payload), cases[i].why);
}

static void a_shortened_value_keeps_its_characters_whole(void **state) {
    (void)state;
    assert_checked(
        "max_length: {id: 3}", SL("{\"id\":\"012345678901234567890123456789012345678\xf0\x9f\x98\x80y\"}"),
        "field id: expected at most 3 characters, found text \"012345678901234567890123456789012345678...\"");
}

static void a_text_too_long_to_match_fails_its_pattern(void **state) {
    (void)state;
    struct buf b = {0};
    buf_printf(&b, "{\"id\":\"%0*d\"}", SCHEMA_MATCHED_MAX + 1, 0);
    assert_checked("pattern: {id: '^0*$'}", buf_slice(&b),
                   "field id: expected a match of ^0*$, found text \"0000000000000000000000000000000000000000...\"");
    buf_free(&b);
}

static void a_wrong_schema_is_told_where(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"[id]", "f:1:1: expected a map, as in {required: [id]}"},
        {"requird: [id]", "f:1:1: unknown key requird; a schema has required, types, enum, pattern and max_length"},
        {"required: id", "f:1:11: required: expected a list of fields, as in [id, amount]"},
        {"required: [[id]]", "f:1:12: required[0]: expected a field, found a list"},
        {"required: ['a[']",
         "f:1:12: required[0]: \"a[\": expected an index from 0 to 1000000 or \"name\" (at its byte 3)"},
        {"types: [a]", "f:1:8: types: expected a map from fields, as in {amount: ...}"},
        {"types: {a: int}",
         "f:1:12: types.a: expected string, integer, number, boolean, object, array or null, found int"},
        {"types: {a: []}", "f:1:12: types.a: no type in the list"},
        {"enum: {a: x}", "f:1:11: enum.a: expected a list of values, as in [EUR, USD]"},
        {"enum: {a: [[x]]}", "f:1:12: enum.a[0]: expected a value, found a list"},
        {"pattern: {a: '('}", "f:1:14: pattern.a: the group opened here is not closed (at its byte 1)"},
        {"pattern: {a: '(x)\\1'}",
         "f:1:14: pattern.a: back-references can take forever; not supported (at its byte 4)"},
        {"pattern: {a: [x]}", "f:1:14: pattern.a: expected a regular expression"},
        {"pattern: {a: '((x{100}){100}){9}'}",
         "f:1:14: pattern.a: too large: with all repetitions written out it takes more "
         "than 2048 steps (at its byte 10)"},
        {"pattern: {a: 'x{2,5000}'}", "f:1:14: pattern.a: more than 1000 repetitions (at its byte 2)"},
        {"types: {a: string, $.a: integer}", "f:1:20: types: $.a is the field a, of which it is said already"},
        {"max_length: {a: 0}", "f:1:17: max_length.a: expected a number of characters, from 1"},
        {"max_length: {a: -3}", "f:1:17: max_length.a: expected a number of characters, from 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tree tree;
        struct schema *s;
        struct errbuf err = {0};
        assert_int_equal(tree_from_yaml(slice_str(cases[i][0]), "f", &tree, &err), ST_OK);
        assert_int_equal(schema_from_tree(tree.root, &s, &err), ST_INVALID);
        assert_null(s);
        assert_string_equal(err.text, cases[i][1]);
        tree_free(&tree);
    }
}

/* Sixty-four fields, each with a pattern and a text as bad as can be had for what a schema may take. */
static void no_message_costs_more_than_a_schema_may(void **state) {
    (void)state;
    struct buf yaml = {0}, payload = {0};
    buf_lit(&yaml, "pattern: {");
    for (int i = 0; i < SCHEMA_FIELDS_MAX; i++) {
        buf_printf(&yaml, "%sf%d: '(a|b)*a(a|b){14}y'", i ? ", " : "", i);
        buf_printf(&payload, "%s\"f%d\":\"", i ? "," : "{", i);
        for (int k = 0; k < 1000; k++) buf_char(&payload, (k * k + k / 7) % 3 ? 'a' : 'b');
        buf_lit(&payload, "y\"");
    }
    buf_lit(&yaml, "}");
    buf_lit(&payload, "}");
    struct tree tree;
    struct schema *s;
    struct errbuf err = {0};
    struct payload_view v = {0};
    assert_int_equal(tree_from_yaml(buf_slice(&yaml), "f", &tree, &err), ST_OK);
    assert_int_equal(schema_from_tree(tree.root, &s, &err), ST_INVALID); /* not all of them fit */
    assert_non_null(strstr(err.text, "too large"));
    tree_free(&tree);
    char *last = memmem(yaml.p, yaml.len, ", f56", 5);
    yaml.len = (size_t)(last - yaml.p);
    buf_lit(&yaml, "}");
    assert_int_equal(tree_from_yaml(buf_slice(&yaml), "f", &tree, &err), ST_OK);
    if (schema_from_tree(tree.root, &s, &err) != ST_OK) fail_msg("%s", err.text);
    payload_view_init(&v, buf_slice(&payload), SL(""), NULL, NULL);
    schema_check(s, &v, &err);
    if (v.work > 2 * 4096 * 1024) fail_msg("%llu", (unsigned long long)v.work);
    payload_view_free(&v);
    schema_free(s);
    tree_free(&tree);
    buf_free(&yaml);
    buf_free(&payload);
}

static void many_fields_of_a_large_payload_cost_one_walk(void **state) {
    (void)state;
    struct buf yaml = {0}, payload = {0};
    struct tree tree;
    struct schema *s;
    struct errbuf err = {0};
    struct payload_view v = {0};
    enum { MEMBERS = 20000 };
    for (int i = 0; i < SCHEMA_FIELDS_MAX; i++)
        buf_printf(&yaml, "%ssame-beginning-%06d-same-end", i ? ", " : "required: [", MEMBERS - 1 - i * 100);
    buf_char(&yaml, ']');
    for (int i = 0; i < MEMBERS; i++) buf_printf(&payload, "%s\"same-beginning-%06d-same-end\":1", i ? "," : "{", i);
    buf_char(&payload, '}');
    assert_int_equal(tree_from_yaml(buf_slice(&yaml), "f", &tree, &err), ST_OK);
    assert_int_equal(schema_from_tree(tree.root, &s, &err), ST_OK);
    payload_view_init(&v, buf_slice(&payload), SL(""), NULL, NULL);
    assert_true(schema_check(s, &v, &err));
    assert_true(v.work <= MEMBERS);
    payload_view_free(&v);
    schema_free(s);
    tree_free(&tree);
    buf_free(&yaml);
    buf_free(&payload);
}

/* However it is written, a field is one field; and an enum of thousands is no list to walk. */
static void spellings_of_a_field_are_one_field(void **state) {
    (void)state;
    const char *schema = "{required: [a.b], types: {'$.a.b': integer}, enum: {'a[\"b\"]': [1, 2]}}";
    assert_checked(schema, SL("{\"a\":{\"b\":2}}"), NULL);
    assert_checked(schema, SL("{\"a\":{}}"), "field a.b is missing");
    assert_checked(schema, SL("{\"a\":{\"b\":\"2\"}}"), "field a.b: expected integer, found text \"2\"");
    assert_checked(schema, SL("{\"a\":{\"b\":3}}"), "field a.b: expected one of 1, 2, found number 3");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(payloads_are_checked_field_by_field),
        cmocka_unit_test(a_shortened_value_keeps_its_characters_whole),
        cmocka_unit_test(a_text_too_long_to_match_fails_its_pattern),
        cmocka_unit_test(a_wrong_schema_is_told_where),
        cmocka_unit_test(many_fields_of_a_large_payload_cost_one_walk),
        cmocka_unit_test(spellings_of_a_field_are_one_field),
        cmocka_unit_test(no_message_costs_more_than_a_schema_may),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
