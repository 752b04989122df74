/* What is kept of an answer's head. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "net/answer.h"

/* Lines as libcurl gives them, each with its break. */
static bool read_all(struct answer_head *h, const char *text, u32 max) {
    slice rest = slice_str(text);
    while (rest.n) {
        const char *end = memchr(rest.p, '\n', rest.n);
        size_t n = end ? (size_t)(end - rest.p) + 1 : rest.n;
        if (!answer_head_line(h, slice_of(rest.p, n), max)) return false;
        rest = slice_of(rest.p + n, rest.n - n);
    }
    return true;
}

static const struct {
    const char *text;
    u32 status;
    bool ended;
    const char *kept;
} heads[] = {
    {"HTTP/1.1 200 OK\r\nA: b\r\n\r\n", 200, true, "A: b\r\n"},
    {"HTTP/1.0 404\r\n\r\n", 404, true, ""},
    {"HTTP/1.1 200 OK\nA: b\nC:d\n\n", 200, true, "A: b\r\nC: d\r\n"},
    {"HTTP/1.1 200 OK\r\nA:  b \t\r\nEmpty:\r\n\r\n", 200, true, "A: b\r\nEmpty: \r\n"},
    {"HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\td\r\n\r\n", 200, true, "A: b c d\r\n"},
    {"HTTP/1.1 200 OK\r\n a\r\n\r\n", 200, true, ""},
    {"HTTP/1.1 200 OK\r\nBad: \x01\r\n c\r\nGood: x\r\n\r\n", 200, true, "Good: x\r\n"},
    {"HTTP/1.1 200 OK\r\nA: x\r\n y\rB: z\r\n\r\n", 200, true, "A: x\r\n"},
    {"HTTP/1.1 200 OK\r\nA: b\rSet-Cookie: c\r\n\r\n", 200, true, ""},
    {"HTTP/1.1 200 OK\r\nA : b\r\n: c\r\nno colon\r\nB\x80: c\r\nC: \xc3\xa9\r\n\r\n", 200, true, "C: \xc3\xa9\r\n"},
    {"HTTP/1.1 100 Continue\r\nX: y\r\n\r\nHTTP/1.1 201 Created\r\nA: b\r\n\r\n", 201, true, "A: b\r\n"},
    {"HTTP/1.1 100 Continue\r\n\r\n", 100, false, ""},
    {"HTTP/1.1 200 OK\r\nA: b\r\n\r\nTrailer: t\r\n\r\n", 200, true, "A: b\r\n"},
    {"HTTP/1.1 200 OK\r\nA: b\r\n\r\nHTTP/1.1 500 No\r\n\r\n", 200, true, "A: b\r\n"},
    {"HTTP/1.1 200 OK\r\nA: b\r\n", 200, false, "A: b\r\n"},
};

static void a_head_is_read_as_it_means(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        struct answer_head h = {0};
        assert_true(read_all(&h, heads[i].text, 1000));
        buf_char(&h.lines, 0);
        assert_string_equal(h.lines.p, heads[i].kept);
        assert_int_equal(h.status, heads[i].status);
        assert_int_equal(h.ended, heads[i].ended);
        buf_free(&h.lines);
    }
}

static void what_is_no_head_is_refused(void **state) {
    static const char *const bad[] = {"hello\r\n",
                                      "HTTP/2 200\r\n",
                                      "HTTP/1.1 20\r\n",
                                      "HTTP/1.1 2000 OK\r\n",
                                      "HTTP/1.1  200 OK\r\n",
                                      "HTTP/1.1 099 No\r\n",
                                      "HTTP/1.1 2x0 No\r\n",
                                      "\r\n",
                                      "HTTP/1.1 100 C\r\n\r\nHTTP/1.1 0 x\r\n"};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct answer_head h = {0};
        assert_false(read_all(&h, bad[i], 1000));
        buf_free(&h.lines);
    }
}

static void a_head_has_a_bound_and_lines_that_are_not_kept_count(void **state) {
    struct answer_head h = {0};
    (void)state;
    assert_true(read_all(&h, "HTTP/1.1 200 OK\r\n", 40));
    assert_true(read_all(&h, "no colon at all, but long\n", 43));
    assert_false(read_all(&h, "A", 43));
    buf_free(&h.lines);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_head_is_read_as_it_means),
        cmocka_unit_test(what_is_no_head_is_refused),
        cmocka_unit_test(a_head_has_a_bound_and_lines_that_are_not_kept_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
