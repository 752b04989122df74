#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "base/json.h"

/* The text is copied to memory of its exact size, so that a sanitizer build notices a read behind it. */
struct reader {
    struct json j;
    char *copy;
};

static struct json *open_text(struct reader *r, slice text) {
    r->copy = mem_alloc(text.n);
    if (text.n) memcpy(r->copy, text.p, text.n);
    json_init(&r->j, slice_of(r->copy, text.n));
    return &r->j;
}

static void close_text(struct reader *r) {
    json_free(&r->j);
    mem_free(r->copy);
}

/* Enters every container, so that member names are checked for repetition too. */
static bool walk(struct json *j) {
    slice text;
    switch (json_peek(j)) {
    case JSON_OBJECT:
        json_object(j);
        while (json_member(j, &text)) walk(j);
        return !j->error;
    case JSON_ARRAY:
        json_array(j);
        while (json_element(j)) walk(j);
        return !j->error;
    case JSON_STRING:
        return json_string(j, &text);
    default:
        return json_skip(j);
    }
}

static bool walks(slice text) {
    struct reader r;
    struct json *j = open_text(&r, text);
    bool ok = walk(j) && json_end(j);
    close_text(&r);
    return ok;
}

static bool skips(slice text) {
    struct reader r;
    struct json *j = open_text(&r, text);
    bool ok = json_skip(j) && json_end(j);
    close_text(&r);
    return ok;
}

static void assert_error(slice text, bool (*reader)(struct json *), const char *expected) {
    struct reader r;
    struct buf b = {0};
    struct json *j = open_text(&r, text);
    assert_false(reader(j) && json_end(j));
    json_error(j, &b);
    buf_char(&b, '\0');
    assert_string_equal(b.p, expected);
    buf_free(&b);
    close_text(&r);
}

static const char *const good_texts[] = {
    "null",
    "true",
    "false",
    "0",
    "-0",
    "-1",
    "10",
    "1.5",
    "1e5",
    "1E+5",
    "1e-05",
    "0.0e0",
    "-0.1e99999",
    "123456789012345678901234567890",
    "\"\"",
    "\"a\"",
    "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"",
    "\"\\u0000\\uffff\\ud834\\udd1e\\uDBFF\\uDFFF\"",
    "\"\x7f \xC3\xA9 \xE2\x82\xAC \xF0\x9D\x84\x9E\"",
    "[]",
    "{}",
    " [ ] ",
    "\t{\r\n} ",
    "[1,2,3]",
    "[[],[[]],{}]",
    "{\"a\":1,\"b\":[true,{\"a\":null}],\"\":\"\"}",
    " { \"a\" : [ 1 , 2 ] , \"b\" : { } } ",
    "\"exactly8\"",
    "\"1234567\\n\"",
};

static const char *const bad_texts[] = {
    "",
    " ",
    "nul",
    "nulll",
    "True",
    "truefalse",
    "tru",
    "f",
    "NaN",
    "Infinity",
    "-",
    "+1",
    "01",
    "-01",
    "1.",
    ".5",
    "1.e5",
    "1e",
    "1e+",
    "0x1",
    "1 2",
    "--1",
    "1.5.5",
    "'a'",
    "\"",
    "\"a",
    "\"\\\"",
    "\"\\",
    "\"\\x\"",
    "\"\\u\"",
    "\"\\u123\"",
    "\"\\u123g\"",
    "\"\\u 123\"",
    "\"\\ud800\"",
    "\"\\ud800x\"",
    "\"\\ud800\\n\"",
    "\"\\ud800\\u0041\"",
    "\"\\udc00\"",
    "\"\\ud800\\ud800\"",
    "\"\\ud800\\u",
    "\"\n\"",
    "\"\x1f\"",
    "\"1234567890\t\"",
    "\"\x80\"",
    "\"\xC0\x80\"",
    "\"\xED\xA0\x80\"",
    "\"\xF4\x90\x80\x80\"",
    "\"\xC3\"",
    "[",
    "]",
    "[1",
    "[1,",
    "[1,]",
    "[,1]",
    "[,]",
    "[1 2]",
    "[1}",
    "{]",
    "{",
    "}",
    "{\"a\"",
    "{\"a\":",
    "{\"a\":1",
    "{\"a\":1,",
    "{\"a\":1,}",
    "{,}",
    "{\"a\",1}",
    "{\"a\" 1}",
    "{\"a\"::1}",
    "{a:1}",
    "{1:1}",
    "{\"a\":1 \"b\":2}",
    "{\"a\":}",
    "[]]",
    "{}}",
    "[][]",
    "{} x",
    "/**/1",
    "1//",
    "\xEF\xBB\xBF"
    "1",
    "\v1",
    "\f1",
    "\xC2\xA0"
    "1",
    "[\"a\":1]",
    "\"\\u00e\xC3\xA9\"",
};

static void everything_rfc_8259_allows_is_accepted(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof good_texts / sizeof *good_texts; i++) {
        if (!walks(slice_str(good_texts[i]))) fail_msg("walk refused %s", good_texts[i]);
        if (!skips(slice_str(good_texts[i]))) fail_msg("skip refused %s", good_texts[i]);
    }
}

static void everything_else_is_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof bad_texts / sizeof *bad_texts; i++) {
        if (walks(slice_str(bad_texts[i]))) fail_msg("walk accepted %s", bad_texts[i]);
        if (skips(slice_str(bad_texts[i]))) fail_msg("skip accepted %s", bad_texts[i]);
    }
    assert_false(skips(SL("1\0")));
    assert_false(skips(SL("\"\0\"")));
    assert_false(skips(SL("\"\\\0\"")));
    assert_false(skips(SL("\0")));
}

static void no_beginning_of_a_container_or_string_is_accepted(void **state) {
    (void)state;
    slice text =
        SL("{\"a\\u00e9\":[1,-2.5e3,\"x\\ud834\\udd1ey\",{\"b\":null,\"c\":[true,false]}],\"d\":\"12345678\"}");
    assert_true(walks(text) && skips(text));
    for (size_t n = 0; n < text.n; n++) {
        assert_false(walks(slice_of(text.p, n)));
        assert_false(skips(slice_of(text.p, n)));
    }
}

static void nesting_is_limited_however_it_is_read(void **state) {
    (void)state;
    struct buf b = {0};
    for (int depth = JSON_DEPTH_MAX - 1; depth <= JSON_DEPTH_MAX + 2; depth++) {
        for (int kind = 0; kind < 3; kind++) {
            buf_reset(&b);
            for (int i = 0; i < depth; i++) {
                bool object = kind == 2 ? i % 2 : kind;
                buf_slice_add(&b, object ? SL("{\"a\":") : SL("["));
            }
            buf_lit(&b, "1");
            for (int i = depth - 1; i >= 0; i--) buf_char(&b, (kind == 2 ? i % 2 : kind) ? '}' : ']');
            assert_int_equal(walks(buf_slice(&b)), depth <= JSON_DEPTH_MAX);
            assert_int_equal(skips(buf_slice(&b)), depth <= JSON_DEPTH_MAX);
        }
    }
    buf_reset(&b);
    for (int i = 0; i < 1000000; i++) buf_char(&b, '[');
    assert_false(skips(buf_slice(&b)));
    assert_false(walks(buf_slice(&b)));
    buf_free(&b);
}

/* Enters all but the innermost of `depth` arrays and skips that. */
static bool skip_innermost(int depth) {
    struct buf b = {0};
    for (int i = 0; i < depth; i++) buf_char(&b, '[');
    for (int i = 0; i < depth; i++) buf_char(&b, ']');
    struct reader r;
    struct json *j = open_text(&r, buf_slice(&b));
    for (int i = 0; i < depth - 1; i++) assert_true(json_array(j) && json_element(j));
    json_skip(j);
    for (int i = 0; i < depth - 1; i++) assert_false(json_element(j));
    bool ok = json_end(j);
    close_text(&r);
    buf_free(&b);
    return ok;
}

static void a_skipped_value_counts_the_levels_around_it(void **state) {
    (void)state;
    assert_true(skip_innermost(JSON_DEPTH_MAX));
    assert_false(skip_innermost(JSON_DEPTH_MAX + 1));
}

static void a_raw_control_character_is_refused_wherever_it_stands(void **state) {
    (void)state;
    char text[24];
    for (int c = 0; c < 0x20; c++) {
        for (size_t at = 1; at < sizeof text - 1; at++) {
            memset(text, 'x', sizeof text);
            text[0] = text[sizeof text - 1] = '"';
            assert_true(skips(slice_of(text, sizeof text)));
            text[at] = (char)c;
            assert_false(skips(slice_of(text, sizeof text)));
        }
    }
}

static void an_object_is_read_member_by_member(void **state) {
    (void)state;
    struct reader r;
    struct json *j = open_text(&r, SL(" {\"t\\u006fken\" : \"a\\nb\", \"n\":-5, \"on\":true, \"none\":null, "
                                      "\"list\":[1, 2], \"any\": {\"x\":[ 1]} } "));
    slice name, text, raw;
    i64 n;
    bool on;
    enum json_type type;
    assert_int_equal(json_peek(j), JSON_OBJECT);
    assert_true(json_object(j));
    assert_true(json_member(j, &name) && slice_eq(name, SL("token")));
    assert_int_equal(json_peek(j), JSON_STRING);
    assert_true(json_string(j, &text) && slice_eq(text, SL("a\nb")));
    assert_true(json_member(j, &name) && slice_eq(name, SL("n")));
    assert_int_equal(json_peek(j), JSON_NUMBER);
    assert_true(json_i64(j, &n) && n == -5);
    assert_true(json_member(j, &name) && slice_eq(name, SL("on")));
    assert_int_equal(json_peek(j), JSON_BOOL);
    assert_true(json_bool(j, &on) && on);
    assert_true(json_member(j, &name) && slice_eq(name, SL("none")));
    assert_int_equal(json_peek(j), JSON_NULL);
    assert_true(json_null(j));
    assert_true(json_member(j, &name) && slice_eq(name, SL("list")));
    assert_int_equal(json_peek(j), JSON_ARRAY);
    assert_true(json_array(j));
    assert_true(json_element(j) && json_i64(j, &n) && n == 1);
    assert_true(json_element(j) && json_i64(j, &n) && n == 2);
    assert_false(json_element(j));
    assert_true(json_member(j, &name) && slice_eq(name, SL("any")));
    assert_true(json_value(j, &type, &raw));
    assert_true(type == JSON_OBJECT && slice_eq(raw, SL("{\"x\":[ 1]}")));
    assert_false(json_member(j, &name));
    assert_int_equal(json_peek(j), JSON_NONE);
    assert_true(json_end(j));
    assert_true(slice_eq(text, SL("a\nb")));
    close_text(&r);
}

/* One byte of each kind, at each place of strings of each length, between bytes that stand as they are. */
static void a_string_that_is_written_reads_as_it_was_whatever_stands_where(void **state) {
    (void)state;
    static const char kinds[] = "\"\\\x01\x1f\n\x7f #\x21[]";
    struct buf b = {0};
    char text[80];
    for (size_t n = 0; n <= 70; n++) {
        for (size_t at = 0; at < n; at++) {
            for (const char *kind = kinds; *kind; kind++) {
                memset(text, 'a', sizeof text);
                text[at] = *kind;
                if (n - at > 20) text[at + 20] = '"';
                buf_free(&b); /* none has room to spare */
                buf_char(&b, '[');
                json_put_string(&b, slice_of(text, n));
                buf_char(&b, ']');
                struct reader r;
                slice back;
                struct json *j = open_text(&r, buf_slice(&b));
                assert_true(json_array(j) && json_element(j) && json_string(j, &back));
                assert_true(slice_eq(back, slice_of(text, n)));
                close_text(&r);
            }
        }
    }
    buf_free(&b);
}

static void a_string_without_escapes_is_a_view_of_the_text(void **state) {
    (void)state;
    struct reader r;
    struct json *j = open_text(&r, SL("[\"plain caf\xC3\xA9\"]"));
    slice s;
    assert_true(json_array(j) && json_element(j) && json_string(j, &s));
    assert_ptr_equal(s.p, r.copy + 2);
    assert_null(j->scratch);
    close_text(&r);
}

static void escapes_become_the_characters_they_stand_for(void **state) {
    (void)state;
    struct reader r;
    struct json *j = open_text(
        &r, SL("\"\\\"\\\\\\/\\b\\f\\n\\r\\tx\\u0041\\u00e9\\u20AC\\uD834\\uDD1E\\u0000\\u07ff\\u0800\\uffff\""));
    slice s;
    assert_true(json_string(j, &s) && json_end(j));
    assert_true(
        slice_eq(s, SL("\"\\/\b\f\n\r\txA\xC3\xA9\xE2\x82\xAC\xF0\x9D\x84\x9E\0\xDF\xBF\xE0\xA0\x80\xEF\xBF\xBF")));
    assert_true(utf8_valid(s));
    close_text(&r);
}

static void unescaped_strings_stay_until_the_cursor_is_freed(void **state) {
    (void)state;
    enum { STRINGS = 2000 };
    struct buf b = {0};
    static slice strings[STRINGS];
    buf_char(&b, '[');
    for (int i = 0; i < STRINGS; i++) {
        buf_printf(&b, "%s\"\\n%0*d\"", i ? "," : "", 1 + i % 3000, i);
    }
    buf_char(&b, ']');
    struct reader r;
    struct json *j = open_text(&r, buf_slice(&b));
    assert_true(json_array(j));
    for (int i = 0; i < STRINGS; i++) assert_true(json_element(j) && json_string(j, &strings[i]));
    assert_false(json_element(j));
    for (int i = 0; i < STRINGS; i++) {
        buf_reset(&b);
        buf_printf(&b, "\n%0*d", 1 + i % 3000, i);
        assert_true(slice_eq(buf_slice(&b), strings[i]));
    }
    close_text(&r);
    buf_free(&b);
}

static void integers_are_exact_or_refused(void **state) {
    (void)state;
    const struct {
        const char *text;
        i64 value;
    } good[] = {
        {"0", 0}, {"-0", 0}, {"42", 42}, {"9223372036854775807", INT64_MAX}, {"-9223372036854775808", INT64_MIN}};
    const char *bad[] = {"1.0",
                         "1e2",
                         "9223372036854775808",
                         "-9223372036854775809",
                         "18446744073709551616",
                         "1000000000000000000000000",
                         "\"1\"",
                         "true",
                         "null",
                         "-",
                         ""};
    struct reader r;
    i64 v;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct json *j = open_text(&r, slice_str(good[i].text));
        assert_true(json_i64(j, &v) && json_end(j));
        assert_int_equal(v, good[i].value);
        close_text(&r);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        v = 77;
        struct json *j = open_text(&r, slice_str(bad[i]));
        assert_false(json_i64(j, &v));
        assert_int_equal(v, 77);
        close_text(&r);
    }
}

static void a_value_is_handed_out_as_the_exact_text_the_sender_wrote(void **state) {
    (void)state;
    struct reader r;
    struct json *j = open_text(&r, SL("[ 1.50 ,\t{ \"b\" : 1, \"b\":2 } , \"\\u0041\" ,null,  [ ]]"));
    const char *raws[] = {"1.50", "{ \"b\" : 1, \"b\":2 }", "\"\\u0041\"", "null", "[ ]"};
    enum json_type types[] = {JSON_NUMBER, JSON_OBJECT, JSON_STRING, JSON_NULL, JSON_ARRAY}, type;
    slice raw;
    assert_true(json_array(j));
    for (int i = 0; i < 5; i++) {
        assert_true(json_element(j) && json_value(j, &type, &raw));
        assert_true(type == types[i] && slice_eq(raw, slice_str(raws[i])));
    }
    assert_false(json_element(j));
    assert_true(json_end(j));
    close_text(&r);
}

static void a_repeated_member_name_is_refused_however_it_is_spelled(void **state) {
    (void)state;
    assert_false(walks(SL("{\"a\":1,\"a\":2}")));
    assert_false(walks(SL("{\"a\":1,\"b\":1,\"\\u0061\":2}")));
    assert_false(walks(SL("{\"\\u0061\":1,\"b\":1,\"a\":2}")));
    assert_false(walks(SL("{\"\\u0061\":1,\"\\u0061\":2}")));
    assert_false(walks(SL("{\"\":1,\"\":2}")));
    assert_false(walks(SL("[{\"x\":{\"a\":1},\"a\":{\"x\":1,\"x\":2}}]")));
    assert_false(walks(SL("{\"a\":{\"a\":{\"a\":1}},\"b\":{\"a\":1},\"a\":1}")));
    assert_true(walks(SL("{\"a\":{\"a\":{\"a\":1}},\"b\":{\"a\":1},\"c\":[{\"a\":1},{\"a\":1}]}")));
    assert_true(walks(SL("{\"a\":1,\"ab\":2,\"\":3,\"A\":4}")));
    /* The unescaped name reads like the text from the first name on. */
    assert_true(walks(SL("{\"a\":1,\"a\\\":1,\":2}")));
}

/* Names n0 n1 ..., one of them perhaps escaped, the last perhaps the same as an earlier one. */
static void put_object(struct buf *b, int members, int escaped, int repeated) {
    buf_char(b, '{');
    for (int i = 0; i < members; i++) {
        int name = i == members - 1 && repeated >= 0 ? repeated : i;
        buf_printf(b, "%s\"%s%d\":%d", i ? "," : "", i == escaped ? "\\u006e" : "n", name, i);
    }
    buf_char(b, '}');
}

static void repetition_is_found_in_objects_of_every_size(void **state) {
    (void)state;
    struct buf b = {0};
    for (int members = 2; members < 300; members += members < 40 ? 1 : 13) {
        for (int escaped = -1; escaped < members; escaped += 1 + members / 5) {
            buf_reset(&b);
            put_object(&b, members, escaped, -1);
            assert_true(walks(buf_slice(&b)));
            for (int repeated = 0; repeated < members - 1; repeated += 1 + members / 7) {
                buf_reset(&b);
                put_object(&b, members, escaped, repeated);
                assert_false(walks(buf_slice(&b)));
                assert_true(skips(buf_slice(&b)));
            }
        }
    }
    buf_free(&b);
}

/* More names are open at once than the cursor itself has room for. */
static void repetition_is_found_at_every_level_of_deep_objects(void **state) {
    (void)state;
    struct buf b = {0};
    for (int wrong = -1; wrong < 60; wrong++) {
        buf_reset(&b);
        for (int i = 0; i < 60; i++) buf_lit(&b, "{\"a\":1,\"b\":2,\"c\":");
        buf_lit(&b, "0");
        for (int i = 59; i >= 0; i--) buf_slice_add(&b, i == wrong ? SL(",\"b\":3}") : SL(",\"d\":3}"));
        assert_int_equal(walks(buf_slice(&b)), wrong < 0);
    }
    buf_free(&b);
}

static void large_objects_do_not_disturb_their_siblings(void **state) {
    (void)state;
    struct buf b = {0};
    buf_char(&b, '[');
    for (int i = 0; i < 50; i++) {
        if (i) buf_char(&b, ',');
        put_object(&b, i % 3 ? 20 : 1000, -1, -1);
    }
    buf_char(&b, ']');
    assert_true(walks(buf_slice(&b)));
    b.len--;
    buf_char(&b, ',');
    put_object(&b, 20, -1, 3);
    buf_char(&b, ']');
    assert_false(walks(buf_slice(&b)));
    buf_free(&b);
}

/* Processor time, and a margin of a hundred: comparing each name with all others would take 10^12 steps. */
static void a_million_members_are_read_in_linear_time(void **state) {
    (void)state;
    struct buf b = {0};
    put_object(&b, 1000000, -1, -1);
    clock_t start = clock();
    assert_true(walks(buf_slice(&b)));
    assert_true((clock() - start) / CLOCKS_PER_SEC < 30);
    buf_reset(&b);
    put_object(&b, 1000000, -1, 0);
    assert_false(walks(buf_slice(&b)));
    buf_free(&b);
}

static bool as_string(struct json *j) {
    slice s;
    return json_string(j, &s);
}

static bool fail_on_own_account(struct json *j) {
    json_skip(j);
    return json_fail(j, "lease: not a duration");
}

static void errors_say_what_was_expected_and_where(void **state) {
    (void)state;
    assert_error(SL("{\"a\":1 \"b\":2}"), walk, "expected ',' or '}' at byte 7");
    assert_error(SL("{\"a\":1 \"b\":2}"), json_skip, "expected ',' or '}' at byte 7");
    assert_error(SL("[1;2]"), walk, "expected ',' or ']' at byte 2");
    assert_error(SL("[1;2]"), json_skip, "expected ',' or ']' at byte 2");
    assert_error(SL("{\"a\":1,\"a\":2}"), walk, "repeated member name at byte 7");
    assert_error(SL("{\"a\" 1}"), walk, "expected ':' at byte 5");
    assert_error(SL("  5"), as_string, "expected a string at byte 2");
    assert_error(SL("\"abc"), as_string, "the text ends inside a string at byte 4");
    assert_error(SL("\"ab\xFF\""), as_string, "invalid UTF-8 at byte 3");
    assert_error(SL("\"\\ud800\""), as_string, "lone surrogate in a string at byte 1");
    assert_error(SL("1 x"), json_skip, "unexpected bytes after the value at byte 2");
    assert_error(SL("[1"), walk, "the text ends inside a value at byte 2");
    assert_error(SL("\"5x\" "), fail_on_own_account, "lease: not a duration at byte 4");
}

static void after_the_first_error_every_call_fails_and_the_error_stays(void **state) {
    (void)state;
    struct reader r;
    struct json *j = open_text(&r, SL("[1,\"x\"]"));
    slice s;
    i64 v;
    bool on;
    enum json_type type;
    assert_true(json_array(j) && json_element(j));
    assert_false(json_string(j, &s));
    assert_false(json_fail(j, "later"));
    assert_int_equal(json_peek(j), JSON_NONE);
    assert_false(json_i64(j, &v) || json_string(j, &s) || json_bool(j, &on) || json_null(j) || json_skip(j));
    assert_false(json_object(j) || json_array(j) || json_element(j) || json_member(j, &s));
    assert_false(json_value(j, &type, &s) || json_end(j));
    struct buf b = {0};
    json_error(j, &b);
    assert_true(slice_eq(buf_slice(&b), SL("expected a string at byte 1")));
    buf_free(&b);
    close_text(&r);
}

static void a_value_that_was_read_in_part_can_be_read_again_as_a_whole(void **state) {
    (void)state;
    struct buf large = {0};
    buf_lit(&large, "[7 , {\"a\":{");
    for (int i = 0; i < 40; i++)
        buf_printf(&large, "%s\"n%d\":{\"x\\u0041\":1,\"y\":2}", i ? "," : "", i); /* names in sets, too */
    buf_lit(&large, "}, \"b\":[1,[2]]} ,\"end\"]");
    slice all = buf_slice(&large), raw, name, end;
    enum json_type type;
    i64 seven;
    for (int deep = 0; deep < 5; deep++) {
        struct json j;
        json_init(&j, all);
        assert_true(json_array(&j) && json_element(&j) && json_i64(&j, &seven) && json_element(&j));
        struct json_mark begin = json_mark(&j);
        if (deep > 0) assert_true(json_object(&j) && json_member(&j, &name) && json_object(&j));
        for (int i = 0; deep > 1 && i < 8 * deep; i++) assert_true(json_member(&j, &name) && json_skip(&j));
        if (deep > 2) assert_true(json_member(&j, &name) && json_object(&j) && json_member(&j, &name));
        if (deep > 3) assert_false(json_fail(&j, "not wanted"));
        json_back(&j, begin);
        assert_true(json_value(&j, &type, &raw));
        assert_int_equal(type, JSON_OBJECT);
        assert_true(raw.p[0] == '{' && raw.p[raw.n - 1] == '}' && slice_starts(raw, SL("{\"a\":")));
        assert_true(json_element(&j) && json_string(&j, &end) && !json_element(&j) && json_end(&j));
        assert_true(slice_eq(end, SL("end")));
        json_free(&j);
    }
    buf_free(&large);
}

static void a_good_text_has_no_error_to_tell(void **state) {
    (void)state;
    struct json j;
    struct buf b = {0};
    json_init(&j, SL("[]"));
    assert_true(json_skip(&j) && json_end(&j));
    json_error(&j, &b);
    assert_int_equal(b.len, 0);
    json_free(&j);
    json_free(&j);
    json_init(&j, slice_of(NULL, 0));
    assert_false(json_skip(&j));
    json_free(&j);
    json_init(&j, SL("[]"));
    assert_true(json_array(&j));
    assert_false(json_end(&j));
    json_free(&j);
}

static void members_are_written_with_commas_between_them(void **state) {
    (void)state;
    struct buf b = {0};
    buf_char(&b, '{');
    json_put_member(&b, "id", SL("a\"b\\c\n\x01\x1f\x7f/\xC3\xA9"));
    json_put_member_i64(&b, "n", INT64_MIN);
    json_put_member_bool(&b, "yes", true);
    json_put_member_bool(&b, "no", false);
    json_put_member_time(&b, "at", 0);
    json_put_member_raw(&b, "raw", SL("{\"x\": 1}"));
    json_put_name(&b, "sub");
    buf_char(&b, '{');
    json_put_member(&b, "empty", slice_of(NULL, 0));
    buf_lit(&b, "}}");
    slice expected =
        SL("{\"id\":\"a\\\"b\\\\c\\n\\u0001\\u001f\x7f/\xC3\xA9\",\"n\":-9223372036854775808,\"yes\":true,"
           "\"no\":false,\"at\":\"1970-01-01T00:00:00.000Z\",\"raw\":{\"x\": 1},\"sub\":{\"empty\":\"\"}}");
    assert_true(slice_eq(buf_slice(&b), expected));
    assert_true(walks(buf_slice(&b)));
    buf_free(&b);
}

static void every_character_survives_being_written_and_read(void **state) {
    (void)state;
    struct buf in = {0}, out = {0};
    for (int c = 0; c < 0x80; c++) {
        for (size_t before = 0; before < 12; before++) {
            buf_reset(&in);
            buf_reset(&out);
            for (size_t i = 0; i < before; i++) buf_char(&in, 'x');
            buf_char(&in, (char)c);
            if (before % 2) buf_lit(&in, "\xF0\x9D\x84\x9E tail");
            json_put_string(&out, buf_slice(&in));
            struct reader r;
            slice back;
            struct json *j = open_text(&r, buf_slice(&out));
            assert_true(json_string(j, &back) && json_end(j));
            assert_true(slice_eq(back, buf_slice(&in)));
            close_text(&r);
        }
    }
    buf_free(&in);
    buf_free(&out);
}

/* Two bytes of every kind anywhere among plain ones: written as it would be if it were known to be UTF-8, or refused. */
static void bytes_that_are_no_text_are_refused_and_leave_nothing_behind(void **state) {
    (void)state;
    static const char kinds[] = "a\"\\\n\x7f\x80\xbf\xc2\xc3\xe2\xf0";
    struct buf expected = {0}, b = {0};
    for (size_t n = 1; n <= 34; n++) {
        for (u32 place = 0; place < n * n; place++) {
            for (u32 kind = 0; kind < (sizeof kinds - 1) * (sizeof kinds - 1); kind++) {
                char *text = malloc(n); /* what is read beyond its end is seen by a sanitizer */
                memset(text, 'a', n);
                text[place / n] = kinds[kind / (sizeof kinds - 1)];
                text[place % n] = kinds[kind % (sizeof kinds - 1)];
                buf_reset(&expected), buf_reset(&b);
                buf_lit(&expected, "before"), buf_lit(&b, "before");
                bool is_text = utf8_valid(slice_of(text, n));
                if (is_text) json_put_string(&expected, slice_of(text, n));
                assert_int_equal(json_put_text(&b, slice_of(text, n)), is_text);
                assert_true(slice_eq(buf_slice(&b), buf_slice(&expected)));
                free(text);
            }
        }
    }
    buf_free(&expected);
    buf_free(&b);
}

static void text_in_other_scripts_is_written_as_it_is(void **state) {
    (void)state;
    static const char *const texts[] = {"", "caf\xC3\xA9", "\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E \"\xE2\x82\xAC\"",
                                        "0123456789abcde\xF0\x9F\x98\x80\xF0\x9F\x98\x80 and more of it\n"};
    struct buf expected = {0}, b = {0};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        slice text = slice_str(texts[i]);
        buf_reset(&expected);
        buf_free(&b); /* no room to spare */
        json_put_string(&expected, text);
        assert_true(json_put_text(&b, text));
        assert_true(slice_eq(buf_slice(&b), buf_slice(&expected)));
        assert_true(walks(buf_slice(&b)));
        for (size_t n = 1; n < text.n; n++) {
            buf_reset(&b);
            assert_int_equal(json_put_text(&b, slice_of(text.p, n)), utf8_valid(slice_of(text.p, n)));
        }
    }
    buf_free(&expected);
    buf_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_rfc_8259_allows_is_accepted),
        cmocka_unit_test(everything_else_is_refused),
        cmocka_unit_test(no_beginning_of_a_container_or_string_is_accepted),
        cmocka_unit_test(nesting_is_limited_however_it_is_read),
        cmocka_unit_test(a_skipped_value_counts_the_levels_around_it),
        cmocka_unit_test(a_raw_control_character_is_refused_wherever_it_stands),
        cmocka_unit_test(an_object_is_read_member_by_member),
        cmocka_unit_test(a_string_that_is_written_reads_as_it_was_whatever_stands_where),
        cmocka_unit_test(a_string_without_escapes_is_a_view_of_the_text),
        cmocka_unit_test(escapes_become_the_characters_they_stand_for),
        cmocka_unit_test(unescaped_strings_stay_until_the_cursor_is_freed),
        cmocka_unit_test(integers_are_exact_or_refused),
        cmocka_unit_test(a_value_is_handed_out_as_the_exact_text_the_sender_wrote),
        cmocka_unit_test(a_repeated_member_name_is_refused_however_it_is_spelled),
        cmocka_unit_test(repetition_is_found_in_objects_of_every_size),
        cmocka_unit_test(repetition_is_found_at_every_level_of_deep_objects),
        cmocka_unit_test(large_objects_do_not_disturb_their_siblings),
        cmocka_unit_test(a_million_members_are_read_in_linear_time),
        cmocka_unit_test(errors_say_what_was_expected_and_where),
        cmocka_unit_test(after_the_first_error_every_call_fails_and_the_error_stays),
        cmocka_unit_test(a_value_that_was_read_in_part_can_be_read_again_as_a_whole),
        cmocka_unit_test(a_good_text_has_no_error_to_tell),
        cmocka_unit_test(members_are_written_with_commas_between_them),
        cmocka_unit_test(every_character_survives_being_written_and_read),
        cmocka_unit_test(bytes_that_are_no_text_are_refused_and_leave_nothing_behind),
        cmocka_unit_test(text_in_other_scripts_is_written_as_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
