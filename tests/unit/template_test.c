/* Keys from business fields: the same intent gives the same key, different intents never do, and what names no intent
 * gets a sentence instead of a key. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "config/template.h"

static struct template *compiled(const char *text) {
    struct template *t;
    struct errbuf err = {0};
    u32 column;
    if (template_compile(slice_str(text), &t, &column, &err) != ST_OK) fail_msg("%s: %u: %s", text, column, err.text);
    return t;
}

/* Headers for tests: "name=value" strings, NULL-ended. */
static slice header_of(void *ctx, slice name) {
    for (const char **h = ctx; h && *h; h++) {
        slice known, value;
        slice_cut(slice_str(*h), '=', &known, &value);
        if (slice_eq(known, name)) return value;
    }
    return (slice){0};
}

struct result {
    enum template_verdict verdict;
    char text[600]; /* the key, or why there is none */
};

static struct result eval_with(const char *template, slice payload, const char *content_type, const char **headers) {
    struct template *t = compiled(template);
    struct payload_view v = {0};
    struct buf out = {0};
    struct errbuf why = {0};
    struct result r;
    buf_lit(&out, "kept");
    payload_view_init(&v, payload, slice_str(content_type), header_of, headers);
    r.verdict = template_eval(t, &v, &out, &why);
    if (r.verdict == TEMPLATE_OK)
        snprintf(r.text, sizeof r.text, "%.*s", (int)out.len - 4, out.p + 4);
    else
        snprintf(r.text, sizeof r.text, "%s", why.text);
    assert_true(out.len >= 4 && memcmp(out.p, "kept", 4) == 0 && (r.verdict == TEMPLATE_OK || out.len == 4));
    buf_free(&out);
    payload_view_free(&v);
    template_free(t);
    return r;
}

static struct result eval(const char *template, const char *payload) {
    return eval_with(template, slice_str(payload), "", NULL);
}

static void assert_key(const char *template, const char *payload, const char *key) {
    struct result r = eval(template, payload);
    if (r.verdict != TEMPLATE_OK) fail_msg("%s with %s: %s", template, payload, r.text);
    assert_string_equal(r.text, key);
}

static void assert_refused(const char *template, const char *payload, enum template_verdict verdict, const char *why) {
    struct result r = eval(template, payload);
    assert_int_equal(r.verdict, verdict);
    assert_string_equal(r.text, why);
}

static void fields_are_found_by_path(void **state) {
    (void)state;
    const char *payload =
        "{\"a\":{\"b\":[\"x\",{\"c-d\":7}]},\"odd.name\":true,\"header\":{\"x\":\"h\"},\"\xc3\xa9\":\"e\"}";
    assert_key("k:${a.b[0]}", payload, "k:x");
    assert_key("${a.b[1].c-d}", payload, "7");
    assert_key("${a[\"b\"][0]}!", payload, "x!");
    assert_key("${[\"odd.name\"]}", payload, "true");
    assert_key("${$.header.x}", payload, "h");
    assert_key("${\xc3\xa9}", payload, "e");
    assert_key("$$5:${a.b[0]}", payload, "$5:x");
    assert_key("${[0]}:${[1].z}", "[1,{\"z\":2}]", "1:2");
}

static void every_spelling_of_a_value_gives_one_key(void **state) {
    (void)state;
    static const char *const cases[][2] = {{"1", "1"},
                                           {"1.0", "1"},
                                           {"1e0", "1"},
                                           {"10E-1", "1"},
                                           {"0.1e+1", "1"},
                                           {"-0", "0"},
                                           {"-0.0e5", "0"},
                                           {"0e999999999999", "0"},
                                           {"100", "100"},
                                           {"1e2", "100"},
                                           {"1.50", "1.5"},
                                           {"1.5", "1.5"},
                                           {"-0.25", "-0.25"},
                                           {"-0.0", "0"},
                                           {"10.0", "10"},
                                           {"15e-1", "1.5"},
                                           {"-2.5e3", "-2500"},
                                           {"0.001", "0.001"},
                                           {"1e-3", "0.001"},
                                           {"12345678901234567890123", "12345678901234567890123"},
                                           {"9007199254740993", "9007199254740993"},
                                           {"9007199254740993.0", "9007199254740993"},
                                           {"1e400", "1e400"},
                                           {"0.1e401", "1e400"},
                                           {"12e399", "1.2e400"},
                                           {"1e-400", "1e-400"},
                                           {"\"42\"", "42"},
                                           {"42", "42"},
                                           {"\"1.0\"", "1.0"},
                                           {"true", "true"},
                                           {"\"true\"", "true"},
                                           {"false", "false"},
                                           {"\"A\\u0042\\/\"", "AB/"},
                                           {"\"\\u00e9\"", "\xc3\xa9"},
                                           {"\"e\\u0301\"", "e\xcc\x81"},
                                           {"\"\\ud83d\\ude00\"", "\xf0\x9f\x98\x80"},
                                           {"\"a:b%c\"", "a%3Ab%25c"},
                                           {"\"\\u0000\\n\\u007f\"", "%00%0A%7F"},
                                           {"\"\\u0085\\u00a0\"", "%C2%85\xc2\xa0"},
                                           {"\"a b/c-d\"", "a b/c-d"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char payload[128];
        snprintf(payload, sizeof payload, "{\"v\":%s}", cases[i][0]);
        assert_key("${v}", payload, cases[i][1]);
    }
}

static void long_integers_with_many_zeros_have_one_form(void **state) {
    (void)state;
    char plain[100] = "{\"v\":1", expected[] = "1e60";
    for (int i = 0; i < 60; i++) plain[6 + i] = '0';
    plain[66] = '}';
    assert_key("${v}", plain, expected);
    assert_key("${v}", "{\"v\":1e60}", expected);
}

static void what_names_no_intent_makes_no_key(void **state) {
    (void)state;
    assert_refused("${a}", "{}", TEMPLATE_MISSING, "field a is missing");
    assert_refused("${a.b}", "{\"a\":1}", TEMPLATE_MISSING, "field a.b is missing");
    assert_refused("${a}", "{\"a\":null}", TEMPLATE_MISSING, "field a is null");
    assert_refused("${a}", "{\"a\":\"\"}", TEMPLATE_MISSING, "field a is empty: it names nothing");
    assert_refused("${a}", "{\"a\":{}}", TEMPLATE_NOT_SCALAR,
                   "field a is an object; a key needs text, a number, true or false");
    assert_refused("${a}", "{\"a\":[1]}", TEMPLATE_NOT_SCALAR,
                   "field a is a list; a key needs text, a number, true or false");
    assert_refused("${a}", "{\"a\":1e9999999999}", TEMPLATE_BAD_VALUE, "field a is a number out of all bounds");
    assert_refused("${a}", "{\"a\":1", TEMPLATE_NOT_JSON,
                   "the payload is not JSON: the text ends inside a value at byte 6");
    assert_refused("${a}", "{\"a\":1,\"a\":2}", TEMPLATE_NOT_JSON,
                   "the payload is not JSON: repeated member name at byte 7");
    assert_refused("${a}", "", TEMPLATE_NOT_JSON,
                   "the payload is not JSON: the text ends where a value should be at byte 0");
    assert_refused("${header.x}", "", TEMPLATE_MISSING, "header x is missing");
}

static void a_key_has_at_most_255_bytes(void **state) {
    (void)state;
    char payload[400];
    snprintf(payload, sizeof payload, "{\"a\":\"%0253d\"}", 1);
    assert_int_equal(eval("k:${a}", payload).verdict, TEMPLATE_OK);
    assert_refused("k::${a}", payload, TEMPLATE_TOO_LONG, "the key is longer than 255 bytes");
}

static void headers_are_any_the_request_had(void **state) {
    (void)state;
    const char *headers[] = {"x-shop=a:b", "hapax-attr-region=eu", "empty=", "latin=\xe9", NULL};
    struct result r = eval_with("${header.X-Shop}:${header.hapax-attr-region}", SL("not json"), "", headers);
    assert_string_equal(r.text, "a%3Ab:eu");
    r = eval_with("${header.empty}", SL(""), "", headers);
    assert_int_equal(r.verdict, TEMPLATE_MISSING);
    r = eval_with("${header.latin}", SL(""), "", headers);
    assert_int_equal(r.verdict, TEMPLATE_BAD_VALUE);
}

static void a_cloudevent_has_one_key_in_both_modes(void **state) {
    (void)state;
    const char *headers[] = {"ce-source=/a:b/%C3%A9", "ce-id=1%2541", NULL};
    struct result binary = eval_with("ev:${cloudevent}", SL("anything"), "text/plain", headers);
    struct result structured = eval_with("ev:${cloudevent}", SL("{\"source\":\"/a:b/\xc3\xa9\",\"id\":\"1%41\"}"),
                                         "application/cloudevents+json; charset=utf-8", NULL);
    assert_string_equal(binary.text, "ev:/a%3Ab/\xc3\xa9:1%2541");
    assert_string_equal(structured.text, binary.text);
    const char *half[] = {"ce-id=1", NULL};
    assert_string_equal(eval_with("${cloudevent}", SL("{}"), "", half).text, "header ce-source is missing");
    assert_string_equal(eval_with("${cloudevent}", SL("{\"source\":\"s\"}"), "", NULL).text, "field id is missing");
}

static void a_template_says_what_it_looks_at(void **state) {
    (void)state;
    struct template *t = compiled("a:${x.y[0]}:${header.Date}-${cloudevent}");
    assert_int_equal(template_field_count(t), 3);
    assert_true(slice_eq(template_field_at(t, 0).name, SL("x.y[0]")));
    assert_int_equal(template_field_at(t, 1).source, TEMPLATE_HEADER);
    assert_true(slice_eq(template_field_at(t, 1).name, SL("date")));
    assert_int_equal(template_field_at(t, 1).column, 13);
    assert_int_equal(template_field_at(t, 2).source, TEMPLATE_CLOUDEVENT);
    assert_true(slice_eq(template_text(t), SL("a:${x.y[0]}:${header.Date}-${cloudevent}")));
    template_free(t);
}

static void a_wrong_template_is_told_where(void **state) {
    (void)state;
    static const struct {
        const char *text;
        u32 column;
        const char *message;
    } cases[] = {
        {"", 1, "the template is empty"},
        {"order", 1, "no field in it: it would be the same for every message"},
        {"a:${b", 3, "the brace opened here is not closed"},
        {"a:${b[\"x}", 3, "the brace opened here is not closed"},
        {"a:${}", 5, "a field name is missing between the braces"},
        {"a:${.b}", 5, "a field name is missing"},
        {"a:${b.}", 7, "a field name is missing"},
        {"a:${b..c}", 7, "a field name is missing"},
        {"a:${b[}", 7, "expected an index from 0 to 1000000 or \"name\""},
        {"a:${b[-1]}", 7, "expected an index from 0 to 1000000 or \"name\""},
        {"a:${b[01]}", 7, "expected an index from 0 to 1000000 or \"name\""},
        {"a:${b[*]}", 7, "expected an index from 0 to 1000000 or \"name\""},
        {"a:${b[1000001]}", 7, "expected an index from 0 to 1000000 or \"name\""},
        {"a:${b[1}", 8, "expected ']'"},
        {"a:${b[1]c}", 9, "expected '.' or '['"},
        {"a:${b c}", 6, "expected '.' or '['"},
        {"a:${ b}", 5, "this cannot stand in a field name; write [\"odd name\"]"},
        {"a:${upper(b)}", 5, "unknown function: templates have none"},
        {"a:${body:b}", 5, "unknown namespace: there are fields, ${header.NAME} and ${cloudevent}"},
        {"a:${header.}", 12, "a header name is missing"},
        {"a:${header.x y}", 13, "this cannot stand in a header name"},
        {"a$b:${c}", 2, "a field is written ${name}, a dollar sign $$"},
        {"${a}$", 5, "a field is written ${name}, a dollar sign $$"},
        {"${a}${b}", 5, "two fields need text between them, best ':'; else different intents could meet in one key"},
        {"${a}0A%${b}", 5, "this text does not tell where the field before it ends; put a ':' into it"},
        {"${a}:x~g12", 5, "a key cannot end in ~g and digits: so end the effect keys of replays"},
        {"a\n${b}", 1, "has characters a key cannot have"},
        {"\xff${b}", 1, "has characters a key cannot have"},
        {"${a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a}", 36, "nested too deeply"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct template *t;
        struct errbuf err = {0};
        u32 column;
        if (template_compile(slice_str(cases[i].text), &t, &column, &err) == ST_OK)
            fail_msg("%s compiled", cases[i].text);
        assert_null(t);
        if (column != cases[i].column || strcmp(err.text, cases[i].message) != 0)
            fail_msg("%s: %u: %s", cases[i].text, column, err.text);
    }
}

static void a_replays_effect_key_is_known_by_its_end(void **state) {
    (void)state;
    static const char *const reserved[] = {"k~g1", "~g1", "k~g01", "k~g4294967295", "k~g1~g2", "k~x~g9"};
    static const char *const free[] = {
        "", "k", "1", "g1", "kg1", "~g", "k~g", "k~g1x", "k~1g1", "k~G1", "k~g-1", "g~1g", "k~0123456789abcdef"};
    for (size_t i = 0; i < sizeof reserved / sizeof reserved[0]; i++)
        assert_true(key_names_replay(slice_str(reserved[i])));
    for (size_t i = 0; i < sizeof free / sizeof free[0]; i++) assert_false(key_names_replay(slice_str(free[i])));
}

static void templates_have_bounds(void **state) {
    (void)state;
    struct template *t;
    struct errbuf err = {0};
    struct buf b = {0};
    u32 column;
    for (int i = 0; i < TEMPLATE_FIELDS_MAX + 1; i++) buf_lit(&b, "${a}:");
    assert_int_equal(template_compile(buf_slice(&b), &t, &column, &err), ST_INVALID);
    assert_string_equal(err.text, "more than 16 fields");
    assert_int_equal(template_compile(slice_of(b.p, b.len - 5), &t, &column, &err), ST_OK);
    template_free(t);
    while (b.len <= TEMPLATE_BYTES_MAX) buf_char(&b, 'x');
    assert_int_equal(template_compile(buf_slice(&b), &t, &column, &err), ST_INVALID);
    assert_string_equal(err.text, "longer than 1024 bytes");
    buf_free(&b);
}

/* ---- different intents never meet */

enum { VALUE_MAX = 3, LETTERS = 3, PAIRS = 120 };

struct pair {
    char a[VALUE_MAX + 1], b[VALUE_MAX + 1];
    struct result key;
};

static void random_value(struct rng *r, const char *letters, char *out) {
    size_t n = 1 + rng_below(r, VALUE_MAX);
    for (size_t i = 0; i < n; i++) out[i] = letters[rng_below(r, LETTERS)];
    out[n] = '\0';
}

static void fill(struct pair *p, const char *template, struct rng *r, const char *letters) {
    char payload[64];
    random_value(r, letters, p->a);
    random_value(r, letters, p->b);
    snprintf(payload, sizeof payload, "{\"a\":\"%.*s\",\"b\":\"%.*s\"}", VALUE_MAX, p->a, VALUE_MAX, p->b);
    p->key = eval(template, payload);
}

static void assert_injective(const char *template, const struct pair *pairs) {
    for (int i = 0; i < PAIRS; i++) {
        for (int j = 0; j < i; j++) {
            const struct pair *x = &pairs[i], *y = &pairs[j];
            bool same = strcmp(x->a, y->a) == 0 && strcmp(x->b, y->b) == 0;
            if (same != (strcmp(x->key.text, y->key.text) == 0))
                fail_msg("%s: (%s, %s) and (%s, %s): %s", template, x->a, x->b, y->a, y->b, x->key.text);
        }
    }
}

/* Short values of three characters at a time, which look like pieces of one another, of the text between them and of
 * encodings: the values of a template that does not guard against it meet at once. */
static void different_values_never_meet_in_one_key(void **state) {
    (void)state;
    static const char *const templates[] = {"${a}:${b}",    "${a}-${b}:",   "x${a}/-${b}", "${a}%x%${b}",
                                            "${a}3:A${b}%", "${a}D-3${b}x", "${a}--${b}",  "${a}xx${b}"};
    static const char alphabet[] = "%:-/x23AD5";
    static struct pair pairs[PAIRS];
    struct rng r;
    rng_seed(&r, 11);
    for (size_t t = 0; t < sizeof templates / sizeof templates[0]; t++) {
        for (int round = 0; round < 60; round++) {
            char letters[LETTERS];
            for (int i = 0; i < LETTERS; i++) letters[i] = alphabet[rng_below(&r, sizeof alphabet - 1)];
            for (int i = 0; i < PAIRS; i++) fill(&pairs[i], templates[t], &r, letters);
            assert_injective(templates[t], pairs);
        }
    }
}

/* What is written as it is, is told eight bytes at a time: at every place of a value each character must be what it is alone. */
static void a_character_is_encoded_at_every_place_as_it_is_alone(void **state) {
    (void)state;
    static const char *const templates[][2] = {{"${a}", ""}, {"${a}-${b}", "-1"}};
    static const char x[] = "aaaaaaaaaaaaaaaaaaaa", z[] = "zzzzzzzzzzzzzzzzzzzz";
    char payload[128], letter[8], want[128];
    for (u32 c = 1; c < 0x300; c++) {
        snprintf(letter, sizeof letter, "\\u%04x", c % 0x180);
        if (c >= 0x180 + 0x80)
            snprintf(letter, sizeof letter, "%c%c", (int)(0xC0 | (c - 0x180) >> 6), 0x80 | (c & 0x3F));
        if (c % 0x180 == 0) continue;
        for (size_t t = 0; t < 2; t++) {
            const char *tail = templates[t][1];
            snprintf(payload, sizeof payload, "{\"a\":\"%s\",\"b\":1}", letter);
            struct result alone = eval(templates[t][0], payload);
            assert_int_equal(alone.verdict, TEMPLATE_OK);
            for (int before = 0; before < 20; before++) {
                snprintf(payload, sizeof payload, "{\"a\":\"%.*s%s%.*s\",\"b\":1}", before, x, letter, 20 - before, z);
                snprintf(want, sizeof want, "%.*s%.*s%.*s%s", before, x, (int)(strlen(alone.text) - strlen(tail)),
                         alone.text, 20 - before, z, tail);
                assert_key(templates[t][0], payload, want);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fields_are_found_by_path),
        cmocka_unit_test(every_spelling_of_a_value_gives_one_key),
        cmocka_unit_test(long_integers_with_many_zeros_have_one_form),
        cmocka_unit_test(what_names_no_intent_makes_no_key),
        cmocka_unit_test(a_key_has_at_most_255_bytes),
        cmocka_unit_test(headers_are_any_the_request_had),
        cmocka_unit_test(a_cloudevent_has_one_key_in_both_modes),
        cmocka_unit_test(a_template_says_what_it_looks_at),
        cmocka_unit_test(a_wrong_template_is_told_where),
        cmocka_unit_test(a_replays_effect_key_is_known_by_its_end),
        cmocka_unit_test(templates_have_bounds),
        cmocka_unit_test(different_values_never_meet_in_one_key),
        cmocka_unit_test(a_character_is_encoded_at_every_place_as_it_is_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
