/* The tape agrees with the cursor on what JSON is, and lists every value where it stands. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/json_priv.h"
#include "base/json_tape.h"

/* Memory of the text's exact size, so that a sanitizer build notices a read behind it. */
static char *exact(slice text) {
    char *copy = mem_alloc(text.n ? text.n : 1);
    if (text.n) memcpy(copy, text.p, text.n);
    return copy;
}

static void walk(struct json *j) {
    slice name;
    switch (json_peek(j)) {
    case JSON_OBJECT:
        json_object(j);
        while (json_member(j, &name)) walk(j);
        return;
    case JSON_ARRAY:
        json_array(j);
        while (json_element(j)) walk(j);
        return;
    default:
        json_skip(j);
    }
}

/* Both readers accept it, or both refuse it with the same words at the same byte. */
static void assert_agree(struct json_tape *t, slice text) {
    char *copy = exact(text);
    struct json j;
    json_init(&j, slice_of(copy, text.n));
    walk(&j);
    bool expected = json_end(&j), found = json_tape_read(t, slice_of(copy, text.n));
    if (expected != found || (!found && (strcmp(j.error, t->error) != 0 || j.error_at != t->error_at)))
        fail_msg("%.*s: cursor says %s, tape says %s", (int)text.n, text.p, expected ? "yes" : j.error,
                 found ? "yes" : t->error);
    json_free(&j);
    mem_free(copy);
}

static void the_tape_accepts_and_refuses_what_the_cursor_does(void **state) {
    (void)state;
    static const char *const texts[] = {"",
                                        " ",
                                        "1",
                                        " -0.5e+7 ",
                                        "01",
                                        "-",
                                        "1.",
                                        "1e",
                                        "true",
                                        "tru",
                                        "nul",
                                        "null ",
                                        "\"\"",
                                        "\"a",
                                        "\"\\u00\"",
                                        "\"\\ud800\"",
                                        "\"\\ud83d\\ude00\"",
                                        "\"\\x\"",
                                        "\"\t\"",
                                        "\"\xff\"",
                                        "\"\xc3\xa9\"",
                                        "[]",
                                        "[ ]",
                                        "[1,]",
                                        "[1 2]",
                                        "[",
                                        "{",
                                        "{}",
                                        "{ }",
                                        "{\"a\":1}",
                                        "{\"a\" : 1 , \"b\":[{},[],\"x\"]}",
                                        "{\"a\":1,}",
                                        "{\"a\"}",
                                        "{a:1}",
                                        "{\"a\":1 \"b\":2}",
                                        "[1]]",
                                        "{\"a\":}",
                                        "{\"a\":1,\"a\":2}",
                                        "{\"a\":1,\"\\u0061\":2}",
                                        "{\"\\u0061\":1,\"a\":2}",
                                        "{\"a\":{\"a\":1},\"b\":{\"a\":1}}",
                                        "{\"\":1,\"\":2}",
                                        "[{\"x\":1},{\"x\":1}]",
                                        "{\"a\":1}x",
                                        "]",
                                        "}",
                                        ",",
                                        "{\"aaaaaaaa1bbbbbbbb\":1,\"aaaaaaaa2bbbbbbbb\":2}",
                                        "{\"aaaaaaaa1bbbbbbbb\":1,\"aaaaaaaa1bbbbbbbb\":2}"};
    struct json_tape t = {0};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) assert_agree(&t, slice_str(texts[i]));
    json_tape_free(&t);
}

/* ---- after another text */

static const char *const names[] = {
    "a", "b", "ab", "\\u0061", "", "sixteen_bytes_no", "a_name_of_thirty_one_bytes_or_so", "x"};

static void put_random(struct buf *b, struct rng *r, int depth) {
    u64 kind = rng_below(r, depth > 4 ? 4 : 8);
    if (kind < 4) {
        static const char *const scalars[] = {"1", "\"v\"", "true", "\"e\\n\""};
        buf_printf(b, "%s", scalars[kind]);
        return;
    }
    bool object = kind < 7;
    buf_char(b, object ? '{' : '[');
    for (u64 i = 0, n = rng_below(r, 6); i < n; i++) {
        buf_printf(b, "%s", i ? "," : "");
        /* Mostly another name each, so that most texts are read to the end. */
        u64 name = rng_below(r, 12) ? i : rng_below(r, sizeof names / sizeof names[0]);
        if (object) buf_printf(b, "\"%s\"%s:%s", names[name], rng_below(r, 9) ? "" : " ", rng_below(r, 9) ? "" : " ");
        put_random(b, r, depth + 1);
    }
    buf_char(b, object ? '}' : ']');
}

/* A byte more, less, or another. */
static void spoil(struct buf *b, struct rng *r) {
    static const char signs[] = "{}[],:\"\\ a1";
    size_t at = rng_below(r, b->len);
    char sign = signs[rng_below(r, sizeof signs - 1)];
    u64 how = rng_below(r, 3);
    if (how == 0) {
        b->p[at] = sign;
    } else if (how == 1) {
        memmove(b->p + at, b->p + at + 1, b->len - at - 1);
        b->len--;
    } else {
        buf_char(b, ' ');
        memmove(b->p + at + 1, b->p + at, b->len - at - 1);
        b->p[at] = sign;
    }
    if (b->len == 0) buf_char(b, sign);
}

static void assert_same_tape(const struct json_tape *a, const struct json_tape *b, slice text) {
    bool same = a->count == b->count;
    for (u32 i = 0; same && i < a->count; i++) {
        const struct json_item *x = &a->at[i], *y = &b->at[i];
        same = x->text - a->copy == y->text - b->copy && x->text_len == y->text_len && !x->name == !y->name &&
               slice_eq(json_item_name(x), json_item_name(y)) && x->name_hash == y->name_hash && x->next == y->next &&
               x->type == y->type && x->escaped == y->escaped && x->integer == y->integer && !x->marked;
    }
    if (!same) fail_msg("read otherwise after the text before: %.*s", (int)text.n, text.p);
}

/* The same text again, one of its shape, one a byte off, another. Most bytes off make a repeated name, another depth, no JSON. */
static void a_text_is_read_alike_whatever_text_was_read_before(void **state) {
    (void)state;
    struct json_tape t = {0};
    struct buf b = {0};
    struct rng r;
    u32 read = 0;
    rng_seed(&r, 11);
    for (int i = 0; i < 60000; i++) {
        if (b.len == 0 || rng_below(&r, 8) == 0) {
            buf_reset(&b);
            put_random(&b, &r, 0);
        } else if (rng_below(&r, 4)) {
            spoil(&b, &r);
        }
        struct json_tape alone = {0};
        bool ok = json_tape_read(&alone, buf_slice(&b));
        assert_int_equal(json_tape_read(&t, buf_slice(&b)), ok);
        if (ok)
            assert_same_tape(&t, &alone, buf_slice(&b));
        else
            assert_true(strcmp(t.error, alone.error) == 0 && t.error_at == alone.error_at);
        read += ok;
        json_tape_free(&alone);
    }
    assert_in_range(read, 10000, 60000);
    buf_free(&b);
    json_tape_free(&t);
}

/* The same names in the same order, of other objects. */
static void a_name_that_moves_up_a_level_may_be_there_already(void **state) {
    (void)state;
    struct json_tape t = {0};
    assert_agree(&t, SL("{\"x\":{\"b\":1,\"x\":2}}"));
    assert_agree(&t, SL("{\"x\":{\"b\":1},\"x\":2}"));
    assert_string_equal(t.error, "repeated member name");
    assert_agree(&t, SL("{\"x\":{\"b\":1,\"x\":2}}"));
    assert_agree(&t, SL("{\"x\":{\"b\":1,\"x\":2},\"x\":3}"));
    assert_string_equal(t.error, "repeated member name");
    json_tape_free(&t);
}

/* Objects of many members have another way to know their names, and get there out of step too. */
static void a_name_repeated_behind_many_is_found_after_a_text_that_ends_there(void **state) {
    (void)state;
    struct json_tape t = {0};
    struct buf b = {0};
    for (u32 size = 1; size < 120; size++) {
        for (u32 repeated = 0; repeated <= size; repeated += size / 3 + 1) {
            buf_reset(&b);
            for (u32 i = 0; i < size; i++) buf_printf(&b, "%s\"n%u\":[{}]", i ? "," : "{", i);
            buf_char(&b, '}');
            assert_true(json_tape_read(&t, buf_slice(&b)));
            b.len--;
            buf_printf(&b, ",\"n%u\":1}", repeated);
            assert_agree(&t, buf_slice(&b));
        }
    }
    buf_free(&b);
    json_tape_free(&t);
}

static void put_nested(struct buf *b, int depth) {
    buf_reset(b);
    for (int i = 0; i < depth; i++) buf_char(b, '[');
    for (int i = 0; i < depth; i++) buf_char(b, ']');
}

static void nesting_has_the_cursors_limit(void **state) {
    (void)state;
    struct json_tape t = {0};
    struct buf b = {0};
    put_nested(&b, JSON_DEPTH_MAX);
    assert_true(json_tape_read(&t, buf_slice(&b)));
    put_nested(&b, JSON_DEPTH_MAX + 1);
    assert_false(json_tape_read(&t, buf_slice(&b)));
    assert_string_equal(t.error, "nested too deeply");
    buf_free(&b);
    json_tape_free(&t);
}

/* Objects of many sizes with one name twice, at random places; escaped at times. Names that share their ends, hence
 * their hash. */
static void a_repeated_name_is_found_in_objects_of_every_size(void **state) {
    (void)state;
    struct json_tape t = {0};
    struct buf b = {0};
    struct rng r;
    rng_seed(&r, 7);
    for (u32 size = 1; size < 400; size = size < 60 ? size + 1 : size * 2) {
        for (int repeated = 0; repeated < 2; repeated++) {
            u64 second = size - 1, first = repeated ? rng_below(&r, size) : second;
            buf_reset(&b);
            for (u32 i = 0; i < size; i++) {
                u64 number = i == second ? first : i;
                buf_printf(&b, "%s\"%sommon-head-%llu-common-tail\":{\"x\":%u}", i ? "," : "{",
                           rng_below(&r, 4) ? "c" : "\\u0063", (unsigned long long)number, i);
            }
            buf_char(&b, '}');
            assert_agree(&t, buf_slice(&b));
            assert_int_equal(json_tape_read(&t, buf_slice(&b)), first == second);
        }
    }
    buf_free(&b);
    json_tape_free(&t);
}

static void every_length_and_place_of_a_string_is_read(void **state) {
    (void)state;
    struct json_tape t = {0};
    struct buf b = {0};
    for (int before = 0; before < 70; before++) {
        for (int length = 0; length < 140; length += 1 + length / 8) {
            buf_reset(&b);
            buf_printf(&b, "%*s[\"%*s\",\"z\\\"\xc3\xa9\"]", before, "", length, "");
            assert_agree(&t, buf_slice(&b));
            assert_int_equal(t.count, 3);
            assert_int_equal(t.at[1].text_len, length);
            assert_true(t.at[2].escaped);
            for (size_t cut = (size_t)before; cut < b.len; cut++) assert_agree(&t, slice_of(b.p, cut));
        }
    }
    buf_free(&b);
    json_tape_free(&t);
}

static void every_byte_is_told_at_every_place_whatever_the_processor_has(void **state) {
    (void)state;
    char text[3 * 64 + 1];
    u64 best[3], plainly[3];
    for (int byte = 0; byte < 256; byte++) {
        bool stop = byte == '"' || byte == '\\' || byte < 0x20 || byte >= 0x80;
        for (size_t at = 0; at < sizeof text - 1; at++) {
            memset(text, 'x', sizeof text);
            text[at + 1] = (char)byte;
            json_stops(text + 1, 3, best);
            json_stops_plainly(text + 1, 3, plainly);
            for (size_t i = 0; i < 3; i++) {
                u64 want = stop && at / 64 == i ? UINT64_C(1) << at % 64 : 0;
                assert_true(best[i] == want && plainly[i] == want);
            }
        }
    }
}

static void values_are_found_by_name_and_index(void **state) {
    (void)state;
    struct json_tape t = {0};
    struct buf b = {0};
    slice text = SL("{\"a\":[10,{\"b\":\"x\\ny\"},null],\"l\\u006fng\":true,\"n\":-1.5}");
    assert_true(json_tape_read(&t, text));
    u32 a = json_tape_member(&t, 0, SL("a"), json_name_hash(SL("a")));
    assert_int_equal(t.at[a].type, JSON_ARRAY);
    assert_int_equal(t.at[json_tape_element(&t, a, 2)].type, JSON_NULL);
    assert_int_equal(json_tape_element(&t, a, 3), 0);
    assert_int_equal(json_tape_element(&t, 0, 0), 0);
    u32 inner = json_tape_member(&t, json_tape_element(&t, a, 1), SL("b"), json_name_hash(SL("b")));
    json_item_string(&t.at[inner], &b);
    assert_true(slice_eq(buf_slice(&b), SL("x\ny")));
    u32 named = json_tape_member(&t, 0, SL("long"), json_name_hash(SL("long")));
    assert_int_equal(t.at[named].type, JSON_BOOL);
    assert_int_equal(json_tape_member(&t, a, SL("a"), json_name_hash(SL("a"))), 0);
    assert_true(slice_eq(json_item_text(&t.at[a]), SL("[10,{\"b\":\"x\\ny\"},null]")));
    buf_free(&b);
    json_tape_free(&t);
}

/* Each value of the part stands where the whole has it: whole itself, or open up to the cut. */
static void assert_part(const struct json_tape *part, const struct json_tape *whole) {
    assert_true(part->count <= whole->count);
    for (u32 i = 0; i < part->count; i++) {
        const struct json_item *a = &part->at[i], *b = &whole->at[i];
        assert_int_equal(a->type, b->type);
        assert_true(slice_eq(json_item_name(a), json_item_name(b)));
        bool open = a->next < b->next || a->text_len < b->text_len;
        assert_true(!open || ((a->type == JSON_OBJECT || a->type == JSON_ARRAY) && a->next == part->count));
        assert_true(open || slice_eq(json_item_text(a), json_item_text(b)));
    }
}

static void of_a_text_that_was_cut_what_came_before_the_cut_is_read(void **state) {
    (void)state;
    struct json_tape whole = {0}, part = {0};
    struct buf many = {0};
    buf_lit(&many, "{\"l\\u006fng\":[-10.5e1,{\"\\ud83d\\ude00\":\"x\\ny\xc3\xa4\"},null , true],\"o\":{");
    for (int i = 0; i < 60; i++)
        buf_printf(&many, "%s\"n\\u0061%d\":%d", i ? "," : "", i, i); /* past the names that are compared */
    buf_lit(&many, "}} ");
    slice text = buf_slice(&many);
    assert_true(json_tape_read(&whole, text));
    for (size_t n = 0; n <= text.n; n++) {
        char *copy = exact(slice_of(text.p, n));
        assert_int_equal(json_tape_read_cut(&part, slice_of(copy, n)), n > 0);
        assert_int_equal(part.error != NULL, n < text.n - 1);
        if (n) assert_part(&part, &whole);
        mem_free(copy);
    }
    assert_int_equal(part.count, whole.count);
    assert_true(json_tape_read_cut(&part, slice_of(text.p, text.n - 10)));
    u32 first = json_tape_member(&part, 0, SL("long"), json_name_hash(SL("long")));
    assert_true(slice_eq(json_item_text(&part.at[json_tape_element(&part, first, 0)]), SL("-10.5e1")));
    buf_free(&many);
    json_tape_free(&whole);
    json_tape_free(&part);
}

static void what_is_wrong_before_the_cut_is_wrong(void **state) {
    (void)state;
    struct json_tape t = {0};
    static const char *const texts[] = {"<html><body>hello",
                                        "{\"a\":1 \"b\":2,\"c\":\"far behind it",
                                        "{\"a\":1,\"a\":2,\"c\":\"far behind it",
                                        "{\"a\":\"\\x\",\"c\":\"far behind it",
                                        "{\"a\":1} {\"b\":2}",
                                        ""};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) assert_false(json_tape_read_cut(&t, slice_str(texts[i])));
    json_tape_free(&t);
}

static void names_of_an_object_are_not_those_of_another_however_many_there_were(void **state) {
    (void)state;
    struct json_scratch *s = json_scratch_new();
    char name[16];
    for (u32 i = 0; i < 200000; i++) { /* more than a generation's number can tell apart */
        assert_true(json_names_add(s, 1, SL("a")));
        assert_false(json_names_add(s, 1, SL("a")));
        json_names_clear(s, 1);
    }
    char *texts = mem_alloc((size_t)100000 * 8);
    for (u32 i = 0; i < 100000; i++) {
        snprintf(name, sizeof name, "%u", i);
        size_t n = strlen(name);
        memcpy(texts + (size_t)i * 8, name, n);
        assert_true(json_names_add(s, 1, slice_of(texts + (size_t)i * 8, n)));
    }
    for (u32 i = 0; i < 100000; i++) {
        snprintf(name, sizeof name, "%u", i);
        assert_false(json_names_add(s, 1, slice_str(name)));
    }
    mem_free(texts);
    json_scratch_free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_tape_accepts_and_refuses_what_the_cursor_does),
        cmocka_unit_test(a_text_is_read_alike_whatever_text_was_read_before),
        cmocka_unit_test(a_name_that_moves_up_a_level_may_be_there_already),
        cmocka_unit_test(a_name_repeated_behind_many_is_found_after_a_text_that_ends_there),
        cmocka_unit_test(nesting_has_the_cursors_limit),
        cmocka_unit_test(a_repeated_name_is_found_in_objects_of_every_size),
        cmocka_unit_test(every_length_and_place_of_a_string_is_read),
        cmocka_unit_test(every_byte_is_told_at_every_place_whatever_the_processor_has),
        cmocka_unit_test(values_are_found_by_name_and_index),
        cmocka_unit_test(of_a_text_that_was_cut_what_came_before_the_cut_is_read),
        cmocka_unit_test(what_is_wrong_before_the_cut_is_wrong),
        cmocka_unit_test(names_of_an_object_are_not_those_of_another_however_many_there_were),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
