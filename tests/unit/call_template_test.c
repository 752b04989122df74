/* What the broker calls: a message decides what stands in an address or a header, never whom it is sent to. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "config/call_template.h"

static const struct call_vars vars = {
    .key = {"slot:T1:x/y", 11}, .effect_key = {"slot:T1:x/y~g2", 14}, .id = {"01ABC", 5}};

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
    char text[1024]; /* what it makes, or why it makes nothing */
};

static struct result eval(enum call_kind kind, const char *template, slice payload) {
    static const char *headers[] = {"x-a=b c", "x-empty=", "x-bytes=\xff", "x-break=a\r\nevil: b", NULL};
    struct arena arena = {0};
    struct call_template *t;
    struct payload_view v = {0};
    struct buf out = {0};
    struct errbuf why = {0};
    struct result r;
    u32 column;
    if (call_template_compile(slice_str(template), kind, &arena, &t, &column, &why) != ST_OK)
        fail_msg("%s: %u: %s", template, column, why.text);
    buf_lit(&out, "kept");
    payload_view_init(&v, payload, SL(""), header_of, headers);
    r.verdict = call_template_eval(t, &v, &vars, &out, &why);
    bool made = r.verdict == TEMPLATE_OK;
    snprintf(r.text, sizeof r.text, "%.*s", made ? (int)out.len - 4 : (int)sizeof why.text,
             made ? out.p + 4 : why.text);
    assert_true(out.len >= 4 && memcmp(out.p, "kept", 4) == 0 && (made || out.len == 4));
    buf_free(&out);
    payload_view_free(&v);
    arena_clear(&arena);
    return r;
}

struct made {
    const char *template, *payload, *text;
};

struct refused {
    const char *template, *payload;
    enum template_verdict verdict;
    const char *why;
};

static void assert_made(enum call_kind kind, const struct made *m) {
    struct result r = eval(kind, m->template, slice_str(m->payload));
    if (r.verdict != TEMPLATE_OK) fail_msg("%s with %s: %s", m->template, m->payload, r.text);
    assert_string_equal(r.text, m->text);
}

static void assert_refused(enum call_kind kind, const struct refused *f) {
    struct result r = eval(kind, f->template, slice_str(f->payload));
    if (r.verdict != f->verdict || strcmp(r.text, f->why) != 0)
        fail_msg("%s with %s: %d %s", f->template, f->payload, r.verdict, r.text);
}

#define EACH(i, cases) for (size_t i = 0; i < sizeof(cases) / sizeof *(cases); i++)

static void a_value_can_leave_neither_its_segment_nor_its_parameter(void **state) {
    (void)state;
    static const struct made cases[] = {
        {"https://h/slots/${a}", "{\"a\":\"MSCU 1\"}", "https://h/slots/MSCU%201"},
        {"https://h/slots/${a}/x", "{\"a\":\"../../admin\"}", "https://h/slots/..%2F..%2Fadmin/x"},
        {"https://h/s?k=${a}&v=1", "{\"a\":\"x&v=2#f\"}", "https://h/s?k=x%26v%3D2%23f&v=1"},
        {"https://h/${a}", "{\"a\":\"%2fx\"}", "https://h/%252fx"},
        {"https://h/${a}", "{\"a\":\"a?b=c\"}", "https://h/a%3Fb%3Dc"},
        {"https://h/${a}", "{\"a\":\"a\\\\..\\\\b\\u0000\\r\\n\"}", "https://h/a%5C..%5Cb%00%0D%0A"},
        {"https://h/${a}", "{\"a\":\"@evil.example/\"}", "https://h/%40evil.example%2F"},
        {"https://h/${a}", "{\"a\":\"\xc3\xa9~-._\"}", "https://h/%C3%A9~-._"},
        {"https://h/${a}${b}", "{\"a\":\"a.\",\"b\":1.50}", "https://h/a.1.5"},
        {"https://h:8443/${hapax.key}?e=${hapax.effect_key}&i=${hapax.id}", "",
         "https://h:8443/slot%3AT1%3Ax%2Fy?e=slot%3AT1%3Ax%2Fy~g2&i=01ABC"},
        {"http://[::1]:80/${header.X-A}/$$", "", "http://[::1]:80/b%20c/$"},
        {"https://h?a=${$.hapax.key}", "{\"hapax\":{\"key\":true}}", "https://h?a=true"},
        {"https://h/x/.${b}", "{\"b\":\".x\"}", "https://h/x/..x"},
        {"https://h/x?a=/${b}/..", "{\"b\":\"c\"}", "https://h/x?a=/c/.."},
        {"https://h/a%2Fb;v=1,2:3@4!*'()", "", "https://h/a%2Fb;v=1,2:3@4!*'()"},
    };
    EACH(i, cases) assert_made(CALL_URL, &cases[i]);
}

static void a_value_that_makes_nonsense_of_an_address_makes_none(void **state) {
    (void)state;
    static const struct refused cases[] = {
        {"https://h/${a}", "{}", TEMPLATE_MISSING, "the url's a is missing"},
        {"https://h/${a}", "{\"a\":null}", TEMPLATE_MISSING, "the url's a is null"},
        {"https://h/${a}/b", "{\"a\":\"\"}", TEMPLATE_MISSING, "the url's a is empty"},
        {"https://h/${a}/b", "{\"a\":\".\"}", TEMPLATE_BAD_VALUE, "the url's a is . or .., which names nothing"},
        {"https://h/x/${a}", "{\"a\":\"..\"}", TEMPLATE_BAD_VALUE, "the url's a is . or .., which names nothing"},
        {"https://h/x?a=${a}", "{\"a\":\"..\"}", TEMPLATE_BAD_VALUE, "the url's a is . or .., which names nothing"},
        {"https://h/x/.${a}", "{\"a\":\".\"}", TEMPLATE_BAD_VALUE, "the url's a is . or .., which names nothing"},
        {"https://h/x/${a}", "{\"a\":\"%2e%2E\"}", TEMPLATE_BAD_VALUE, "the url's a is . or .., which names nothing"},
        {"https://h/x/${b}${a}", "{\"b\":\"c\",\"a\":\".\"}", TEMPLATE_BAD_VALUE,
         "the url's a is . or .., which names nothing"},
        {"https://h/x/%2e${a}", "{\"a\":\".\"}", TEMPLATE_BAD_VALUE, "the url's a is . or .., which names nothing"},
        {"https://h/x/${a}", "{\"a\":{\"b\":1}}", TEMPLATE_NOT_SCALAR,
         "the url's a is an object; it needs text, a number, true or false"},
        {"https://h/x/${a}", "{\"a\":[1]}", TEMPLATE_NOT_SCALAR,
         "the url's a is a list; it needs text, a number, true or false"},
        {"https://h/x/${a}", "{\"a\":1e9999999999}", TEMPLATE_BAD_VALUE, "the url's a is a number out of all bounds"},
        {"https://h/x/${a}", "not json", TEMPLATE_NOT_JSON, "the payload is not JSON: expected a value at byte 0"},
        {"https://h/x/${header.x-b}", "", TEMPLATE_MISSING, "the url's x-b was not sent with the message"},
        {"https://h/x/${header.x-empty}", "", TEMPLATE_MISSING, "the url's x-empty was not sent with the message"},
        {"https://h/x/${header.x-bytes}", "", TEMPLATE_BAD_VALUE, "the url's x-bytes is not UTF-8"},
    };
    EACH(i, cases) assert_refused(CALL_URL, &cases[i]);
}

static void what_a_call_is_made_of_is_bounded(void **state) {
    (void)state;
    struct buf payload = {0};
    buf_lit(&payload, "{\"a\":\"");
    for (int i = 0; i < 3000; i++) buf_lit(&payload, "/");
    buf_lit(&payload, "\"}");
    struct result r = eval(CALL_URL, "https://h/${a}", buf_slice(&payload));
    assert_int_equal(r.verdict, TEMPLATE_TOO_LONG);
    assert_string_equal(r.text, "the url is longer than 8192 bytes");
    r = eval(CALL_HEADER, "${a}${a}", buf_slice(&payload));
    assert_int_equal(r.verdict, TEMPLATE_TOO_LONG);
    assert_string_equal(r.text, "the header is longer than 4096 bytes");
    buf_reset(&payload);
    buf_lit(&payload, "{\"a\":\"");
    for (int i = 0; i < 100000; i++) buf_lit(&payload, "x");
    buf_lit(&payload, "\"}");
    assert_int_equal(eval(CALL_URL, "https://h/${a}", buf_slice(&payload)).verdict, TEMPLATE_TOO_LONG);
    buf_free(&payload);
}

static void no_value_ends_a_header(void **state) {
    (void)state;
    static const struct made made[] = {{"Bearer ${a}", "{\"a\":\"x y\"}", "Bearer x y"},
                                       {"${hapax.id}/${header.x-a}", "", "01ABC/b c"},
                                       {"\"${a}\" \xc3\xa9 {}", "{\"a\":1}", "\"1\" \xc3\xa9 {}"},
                                       {"plain", "", "plain"}};
    EACH(i, made) assert_made(CALL_HEADER, &made[i]);
    static const struct refused refused[] = {
        {"a${a}", "{\"a\":\"x\\r\\nevil: 1\"}", TEMPLATE_BAD_VALUE, "the header's a has a control character"},
        {"a${a}", "{\"a\":\"x\\u0000\"}", TEMPLATE_BAD_VALUE, "the header's a has a control character"},
        {"a${a}", "{\"a\":\"x\\u0085\"}", TEMPLATE_BAD_VALUE, "the header's a has a control character"},
        {"a${header.x-break}", "", TEMPLATE_BAD_VALUE, "the header's x-break has a control character"},
        {"a${a}", "{}", TEMPLATE_MISSING, "the header's a is missing"},
        {"a${header.x-b}", "", TEMPLATE_NO_HEADER, "the header's x-b was not sent with the message"},
    };
    EACH(i, refused) assert_refused(CALL_HEADER, &refused[i]);
}

static void what_cannot_be_an_address_is_told_with_its_place(void **state) {
    (void)state;
    static const struct {
        const char *text;
        u32 column;
        const char *why;
    } cases[] = {
        {"", 1, "empty"},
        {"ftp://h/", 1, "does not begin with https:// or http://"},
        {"HTTPS://h/", 1, "does not begin with https:// or http://"},
        {"//h/", 1, "does not begin with https:// or http://"},
        {"${a}", 1, "does not begin with https:// or http://"},
        {"${scheme}://h/", 1, "does not begin with https:// or http://"},
        {"https:///x", 9, "has no host"},
        {"https://:80/", 9, "has no host"},
        {"https://${host}/x", 9,
         "a value may stand in the path and the query only: no message decides whom the broker calls"},
        {"https://h${a}/x", 10,
         "a value may stand in the path and the query only: no message decides whom the broker calls"},
        {"https://h:${port}/", 11,
         "a value may stand in the path and the query only: no message decides whom the broker calls"},
        {"https://u:p@h/", 9, "has a user name or password before the host"},
        {"https://h@/x", 9, "has a user name or password before the host"},
        {"https://h:0/", 11, "a port is a number from 1 to 65535"},
        {"https://h:65536/", 11, "a port is a number from 1 to 65535"},
        {"https://h:/", 11, "a port is a number from 1 to 65535"},
        {"https://h:8 0/", 11, "a port is a number from 1 to 65535"},
        {"https://a b/", 10, "this cannot stand in a host name"},
        {"https://h$$/", 10, "this cannot stand in a host name"},
        {"https://h\\x/", 10, "this cannot stand in a host name"},
        {"https://[::1/", 9, "the bracket opened here is not closed"},
        {"https://[::1%lo]/", 13, "this cannot stand in an address between brackets"},
        {"https://[::1]80/", 14, "expected : and a port behind the bracket"},
        {"https://h/#${a}", 11, "a fragment is never sent: leave it out"},
        {"https://h#a", 10, "a fragment is never sent: leave it out"},
        {"https://h/a b", 12, "this cannot stand in an address: percent-encode it"},
        {"https://h/a\\b", 12, "this cannot stand in an address: percent-encode it"},
        {"https://h/\xc3\xa9", 11, "this cannot stand in an address: percent-encode it"},
        {"https://h/a{b}", 12, "this cannot stand in an address: percent-encode it"},
        {"https://h/%${a}", 11, "a percent sign without two hexadecimal digits"},
        {"https://h/%2${a}", 11, "a percent sign without two hexadecimal digits"},
        {"https://h/100%", 14, "a percent sign without two hexadecimal digits"},
        {"https://h/a/../b", 10, "has . or .. in its path: write where it leads"},
        {"https://h/a/%2e%2E/b", 10, "has . or .. in its path: write where it leads"},
        {"https://h/.?x", 10, "has . or .. in its path: write where it leads"},
        {"https://h/${a", 11, "the brace opened here is not closed"},
        {"https://h/${}", 13, "a field name is missing between the braces"},
        {"https://h/${a..b}", 15, "a field name is missing"},
        {"https://h/${header.}", 20, "a header name is missing"},
        {"https://h/${header.a b}", 21, "this cannot stand in a header name"},
        {"https://h/${hapax.token}", 13,
         "there are ${hapax.key}, ${hapax.effect_key} and ${hapax.id}; a field of that name is ${$.hapax...}"},
        {"https://h/$a", 11, "a field is written ${name}, a dollar sign $$"},
        {"https://h/\x01", 1, "a control character, or not UTF-8"},
        {"https://h/${a}${a}${a}${a}${a}${a}${a}${a}${a}${a}${a}${a}${a}${a}${a}${a}${a}", 75, "more than 16 fields"},
    };
    EACH(i, cases) {
        struct arena arena = {0};
        struct call_template *t;
        struct errbuf why = {0};
        u32 column;
        hx_st st = call_template_compile(slice_str(cases[i].text), CALL_URL, &arena, &t, &column, &why);
        if (st == ST_OK || t || column != cases[i].column || strcmp(why.text, cases[i].why) != 0)
            fail_msg("%s: %u: %s", cases[i].text, column, why.text);
        arena_clear(&arena);
    }
}

static void a_secret_is_sent_as_it_is(void **state) {
    (void)state;
    struct arena arena = {0};
    struct payload_view v = {0};
    struct buf out = {0};
    struct errbuf why;
    struct call_template *t = call_template_verbatim(SL("a${b}$$c"), &arena);
    payload_view_init(&v, SL("{}"), SL(""), NULL, NULL);
    assert_int_equal(call_template_eval(t, &v, &vars, &out, &why), TEMPLATE_OK);
    assert_true(slice_eq(buf_slice(&out), SL("a${b}$$c")) && call_template_is_plain(t));
    buf_free(&out);
    payload_view_free(&v);
    arena_clear(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_value_can_leave_neither_its_segment_nor_its_parameter),
        cmocka_unit_test(a_value_that_makes_nonsense_of_an_address_makes_none),
        cmocka_unit_test(what_a_call_is_made_of_is_bounded),
        cmocka_unit_test(no_value_ends_a_header),
        cmocka_unit_test(what_cannot_be_an_address_is_told_with_its_place),
        cmocka_unit_test(a_secret_is_sent_as_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
