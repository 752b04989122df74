#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/base_priv.h"
#include "base/bucket.h"

static void assert_text(struct buf *b, const char *expected) {
    assert_int_equal(b->len, strlen(expected));
    assert_memory_equal(b->p ? b->p : "", expected, b->len);
    buf_reset(b);
}

/* Runs fn in a child and returns its exit status; what it wrote to stderr is in `out`. */
static int in_child(void (*fn)(void), struct buf *out) {
    int pipe_ends[2];
    assert_int_equal(pipe(pipe_ends), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        signal(SIGABRT, SIG_DFL);
        dup2(pipe_ends[1], STDERR_FILENO);
        fn();
        _exit(0);
    }
    close(pipe_ends[1]);
    char chunk[4096];
    for (ssize_t n; (n = read(pipe_ends[0], chunk, sizeof chunk)) > 0;) buf_add(out, chunk, (size_t)n);
    close(pipe_ends[0]);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    buf_char(out, '\0');
    return status;
}

static void every_status_has_a_text(void **state) {
    (void)state;
    assert_string_equal(status_text(ST_OK), "ok");
    assert_string_equal(status_text(ST_DAMAGED), "stored data is damaged");
    for (int st = ST_OK; st <= ST_TIMEOUT; st++) assert_true(strlen(status_text((hx_st)st)) > 0);
    assert_string_equal(status_text((hx_st)999), "unknown status");
}

static void errors_are_wrapped_from_the_inside_out(void **state) {
    (void)state;
    struct errbuf err;
    assert_int_equal(err_set(&err, ST_IO, "write %d bytes", 7), ST_IO);
    assert_int_equal(err_wrap(&err, ST_IO, "journal"), ST_IO);
    assert_int_equal(err_wrap(&err, ST_DAMAGED, "data dir %s", "x"), ST_DAMAGED);
    assert_string_equal(err.text, "data dir x: journal: write 7 bytes");
    assert_int_equal(err_set(&err, ST_IO, "again: %s", err.text), ST_IO);
    assert_string_equal(err.text, "again: data dir x: journal: write 7 bytes");
    assert_int_equal(err_set(NULL, ST_BUSY, "nobody listens"), ST_BUSY);
    assert_int_equal(err_wrap(NULL, ST_BUSY, "nobody listens"), ST_BUSY);
}

static void an_error_longer_than_its_buffer_is_cut_not_overrun(void **state) {
    (void)state;
    struct {
        struct errbuf err;
        char guard[8];
    } e = {.guard = "guarded"};
    char xs[1000], ys[1000];
    memset(xs, 'x', sizeof xs);
    memset(ys, 'y', sizeof ys);
    xs[999] = ys[999] = '\0';
    err_set(&e.err, ST_IO, "%s", xs);
    assert_int_equal(strlen(e.err.text), sizeof e.err.text - 1);
    err_wrap(&e.err, ST_IO, "short");
    assert_int_equal(strlen(e.err.text), sizeof e.err.text - 1);
    assert_memory_equal(e.err.text, "short: xxx", 10);
    err_wrap(&e.err, ST_IO, "%s", ys);
    assert_int_equal(strlen(e.err.text), sizeof e.err.text - 1);
    assert_string_equal(e.err.text + sizeof e.err.text - 4, "y: ");
    assert_string_equal(e.guard, "guarded");
}

static int zero;
static void fail_a_check(void) {
    CHECK(zero == 1);
}
static void break_an_invariant(void) {
    INVARIANT(3, zero > 1);
}

static void a_failed_check_says_where_and_what_and_aborts(void **state) {
    (void)state;
    struct buf out = {0};
    int status = in_child(fail_a_check, &out);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    assert_non_null(strstr(out.p, "base_test.c:"));
    assert_non_null(strstr(out.p, "zero == 1"));
    buf_reset(&out);
    status = in_child(break_an_invariant, &out);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    assert_non_null(strstr(out.p, "zero > 1 (invariant 3)"));
    buf_free(&out);
}

#ifdef __has_feature
#define CLANG_SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define CLANG_SANITIZED 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || CLANG_SANITIZED
#define SANITIZED 1 /* the allocator is then not ours to exhaust */
#else
#define SANITIZED 0
#endif

static void ask_for_too_much(void) {
    volatile size_t bytes = SIZE_MAX / 2;
    mem_free(mem_alloc(bytes));
}

static void running_out_of_memory_aborts_with_a_message(void **state) {
    (void)state;
    if (SANITIZED) skip();
    struct buf out = {0};
    int status = in_child(ask_for_too_much, &out);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    assert_non_null(strstr(out.p, "out of memory"));
    buf_free(&out);
}

static void memory_of_any_size_can_be_had_zeroed_and_resized(void **state) {
    (void)state;
    char *p = mem_zalloc(100);
    for (int i = 0; i < 100; i++) assert_int_equal(p[i], 0);
    p[99] = 'x';
    p = mem_realloc(p, 10000);
    assert_int_equal(p[99], 'x');
    mem_free(p);
    mem_free(mem_alloc(0));
    mem_free(mem_realloc(NULL, 0));
    mem_free(NULL);
}

static void slices_compare_and_trim(void **state) {
    (void)state;
    assert_true(slice_eq(SL(""), slice_of(NULL, 0)));
    assert_false(slice_eq(SL("a"), SL("b")));
    assert_true(slice_eq_nocase(SL("Content-TYPE"), SL("content-type")));
    assert_false(slice_eq_nocase(SL("[a"), SL("{a")));
    assert_false(slice_eq_nocase(SL("a"), SL("ab")));
    assert_true(slice_starts(SL("abc"), SL("ab")));
    assert_true(slice_starts(SL("abc"), SL("")));
    assert_false(slice_starts(SL("a"), SL("ab")));
    assert_true(slice_eq(slice_trim(SL(" \t a b \t")), SL("a b")));
    assert_int_equal(slice_trim(SL(" \t ")).n, 0);
    assert_int_equal(slice_trim(slice_of(NULL, 0)).n, 0);
    assert_true(slice_eq(slice_trim(SL("\na")), SL("\na")));
}

static void a_slice_is_cut_at_the_first_separator(void **state) {
    (void)state;
    slice head, tail;
    assert_true(slice_cut(SL("a=b=c"), '=', &head, &tail));
    assert_true(slice_eq(head, SL("a")) && slice_eq(tail, SL("b=c")));
    assert_true(slice_cut(SL("="), '=', &head, &tail));
    assert_true(head.n == 0 && tail.n == 0);
    assert_false(slice_cut(SL("abc"), '=', &head, &tail));
    assert_true(slice_eq(head, SL("abc")) && tail.n == 0);
    assert_false(slice_cut(slice_of(NULL, 0), '=', &head, &tail));
    assert_true(head.n == 0 && tail.n == 0);
}

static void numbers_are_digits_only_and_never_overflow(void **state) {
    (void)state;
    u64 v = 7;
    assert_true(slice_u64(SL("0"), &v) && v == 0);
    assert_true(slice_u64(SL("007"), &v) && v == 7);
    assert_true(slice_u64(SL("18446744073709551615"), &v) && v == UINT64_MAX);
    const char *bad[] = {"", "-1", "+1", " 1", "1 ", "1x", "0x10", "18446744073709551616", "99999999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(slice_u64(slice_str(bad[i]), &v));
}

static void a_buffer_keeps_what_is_added_while_it_grows(void **state) {
    (void)state;
    struct buf b = {0};
    buf_add(&b, NULL, 0);
    assert_int_equal(b.len, 0);
    for (int i = 0; i < 100000; i++) buf_char(&b, (char)('a' + i % 26));
    for (int i = 0; i < 100000; i++) assert_int_equal(b.p[i], 'a' + i % 26);
    buf_reset(&b);
    buf_lit(&b, "x=");
    buf_printf(&b, "%d %s", 5, "five");
    assert_text(&b, "x=5 five");
    buf_free(&b);
    assert_null(b.p);
    buf_printf(&b, "%0300d", 1); /* longer than the first allocation */
    assert_int_equal(b.len, 300);
    buf_printf(&b, "%s", "");
    assert_int_equal(b.len, 300);
    buf_free(&b);
}

static void assert_prints(struct buf *b, u64 v) {
    char expected[32];
    buf_dec(b, v);
    snprintf(expected, sizeof expected, "%llu", (unsigned long long)v);
    assert_text(b, expected);
    buf_dec_signed(b, (i64)v);
    snprintf(expected, sizeof expected, "%lld", (long long)v);
    assert_text(b, expected);
}

static void numbers_print_as_printf_would(void **state) {
    (void)state;
    struct buf b = {0};
    struct rng r;
    rng_seed(&r, 7);
    for (u64 v = 0; v < 20000; v++) assert_prints(&b, v);
    for (u64 power = 10; power < UINT64_MAX / 10; power *= 10)
        for (int off = -2; off <= 2; off++) assert_prints(&b, power + (u64)off);
    for (u32 bit = 0; bit < 64; bit++) {
        for (int off = -2; off <= 2; off++) assert_prints(&b, (UINT64_C(1) << bit) + (u64)off);
        for (int i = 0; i < 100; i++) assert_prints(&b, rng_next(&r) >> bit);
    }
    assert_prints(&b, 10000000000000000000ull);
    assert_prints(&b, 9999999999999999999ull);
    buf_dec_signed(&b, INT64_MIN);
    assert_text(&b, "-9223372036854775808");
    buf_free(&b);
}

static void utf8_is_valid_only_in_its_one_shortest_form(void **state) {
    (void)state;
    const char *good[] = {"",
                          "ascii only, longer than eight",
                          "\xC2\x80",
                          "\xDF\xBF",
                          "\xE0\xA0\x80",
                          "\xED\x9F\xBF",
                          "\xEE\x80\x80",
                          "\xEF\xBF\xBF",
                          "\xF0\x90\x80\x80",
                          "\xF4\x8F\xBF\xBF",
                          "1234567\xC3\xA9z",
                          "12345678\xC3\xA9"};
    const char *bad[] = {"\x80",
                         "\xBF",
                         "\xC0\x80",
                         "\xC1\xBF",
                         "\xC2",
                         "\xC2\x41",
                         "\xE0\x9F\xBF",
                         "\xED\xA0\x80",
                         "\xED\xBF\xBF",
                         "\xE2\x82",
                         "\xE2\x82\x41",
                         "\xF0\x8F\xBF\xBF",
                         "\xF4\x90\x80\x80",
                         "\xF5\x80\x80\x80",
                         "\xFF",
                         "1234567\xC3",
                         "12345678\xFE",
                         "\xF0\x9F\x98",
                         "\xF0\x9F\x98\x41"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) assert_true(utf8_valid(slice_str(good[i])));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(utf8_valid(slice_str(bad[i])));
    assert_true(utf8_valid(slice_of("a\0b", 3)));
}

static void a_bad_byte_is_found_wherever_it_stands(void **state) {
    (void)state;
    char text[40];
    for (size_t n = 1; n <= sizeof text; n++) {
        for (size_t at = 0; at < n; at++) {
            memset(text, 'a', sizeof text);
            assert_true(utf8_valid(slice_of(text, n)));
            text[at] = (char)0xFF;
            assert_false(utf8_valid(slice_of(text, n)));
        }
    }
}

static void control_characters_are_noticed(void **state) {
    (void)state;
    assert_false(has_control(SL("plain text \xC3\xA9 ~")));
    assert_true(has_control(SL("a\nb")));
    assert_true(has_control(SL("a\x7f")));
    assert_true(has_control(slice_of("a\0", 2)));
    assert_false(has_control(SL("")));
}

/* What is done sixteen bytes at a time must agree with a byte at a time, for every byte, at every place, in every length. */
static void every_byte_counts_the_same_wherever_it_stands(void **state) {
    (void)state;
    char text[40], other[40];
    for (size_t n = 1; n <= sizeof text; n++) {
        for (size_t at = 0; at < n; at++) {
            for (unsigned byte = 0; byte < 256; byte++) {
                memset(text, 'x', sizeof text);
                memset(other, 'X', sizeof other);
                text[at] = (char)byte;
                assert_int_equal(has_control(slice_of(text, n)), byte < 0x20 || byte == 0x7f);
                assert_int_equal(text_plain(slice_of(text, n)), byte >= 0x20 && byte < 0x7f);
                assert_int_equal(utf8_valid(slice_of(text, n)), byte < 0x80);
                bool same = byte == 'x' || byte == 'X';
                assert_int_equal(slice_eq_nocase(slice_of(text, n), slice_of(other, n)), same);
                assert_int_equal(slice_eq_nocase(slice_of(other, n), slice_of(text, n)), same);
            }
        }
    }
}

/* Each byte, at each place of a word of small letters and signs that are 0x20 away from others. */
static void a_word_is_spelled_alike_in_small_and_capital_letters_and_no_other_way(void **state) {
    (void)state;
    static const char word[] = "az-`{@[_5~hapax-request-id";
    char text[sizeof word];
    for (size_t n = 0; n < sizeof word; n++) {
        assert_true(slice_spells(slice_of(word, n), slice_of(word, n)));
        assert_false(slice_spells(slice_of(word, n + 1), slice_of(word, n)));
        for (size_t at = 0; at < n; at++) {
            for (unsigned byte = 0; byte < 256; byte++) {
                memcpy(text, word, sizeof text);
                text[at] = (char)byte;
                bool capital = word[at] >= 'a' && word[at] <= 'z' && (char)byte == word[at] - 32;
                assert_int_equal(slice_spells(slice_of(text, n), slice_of(word, n)), (char)byte == word[at] || capital);
            }
        }
    }
}

static void a_c1_control_is_noticed_wherever_it_stands(void **state) {
    (void)state;
    char text[40];
    for (size_t n = 2; n <= sizeof text; n++) {
        for (size_t at = 0; at + 1 < n; at++) {
            memset(text, 'x', sizeof text);
            memcpy(text + at, "\xC2\x85", 2);
            assert_true(has_control(slice_of(text, n)));
            assert_false(text_plain(slice_of(text, n)));
            assert_true(utf8_valid(slice_of(text, n)));
        }
    }
}

static void hex_is_what_printf_would_write(void **state) {
    (void)state;
    struct buf b = {0};
    char bytes[37], expected[80];
    for (unsigned byte = 0; byte < 256; byte++) {
        for (size_t n = 0; n <= sizeof bytes; n++) {
            for (size_t i = 0; i < n; i++) {
                bytes[i] = (char)(byte + i * 37);
                snprintf(expected + 2 * i, 3, "%02x", (u8)bytes[i]);
            }
            buf_reset(&b);
            buf_hex(&b, slice_of(bytes, n));
            assert_true(slice_eq(buf_slice(&b), slice_of(expected, 2 * n)));
        }
    }
    buf_free(&b);
}

static void base64_matches_rfc_4648(void **state) {
    (void)state;
    const char *pairs[][3] = {{"", "", ""},
                              {"f", "Zg==", "Zg"},
                              {"fo", "Zm8=", "Zm8"},
                              {"foo", "Zm9v", "Zm9v"},
                              {"foob", "Zm9vYg==", "Zm9vYg"},
                              {"fooba", "Zm9vYmE=", "Zm9vYmE"},
                              {"foobar", "Zm9vYmFy", "Zm9vYmFy"},
                              {"\xfb\xff\xfe", "+//+", "-__-"}};
    struct buf b = {0};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        buf_base64(&b, slice_str(pairs[i][0]));
        assert_text(&b, pairs[i][1]);
        buf_base64url(&b, slice_str(pairs[i][0]));
        assert_text(&b, pairs[i][2]);
        assert_true(buf_base64_decode(&b, slice_str(pairs[i][1])));
        assert_text(&b, pairs[i][0]);
        assert_true(buf_base64url_decode(&b, slice_str(pairs[i][2])));
        assert_text(&b, pairs[i][0]);
    }
    buf_free(&b);
}

static void base64_refuses_every_other_spelling_and_leaves_the_buffer(void **state) {
    (void)state;
    const char *bad[] = {"Z",    "Zg",   "Zg=",  "Zh==",  "Zm9=", "Zg===",  "=",    "==",        "===",
                         "====", "Z===", "Zg=a", "Zm9v=", "Zm 9", "Zm9v\n", "-__-", "Zm9vZm9v!", "A=AA"};
    const char *bad_url[] = {"Z", "Zg==", "Zh", "Zm9", "+//+", "Zm9vZ", "Zm9v Zm9v"};
    struct buf b = {0};
    buf_lit(&b, "kept");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(buf_base64_decode(&b, slice_str(bad[i])));
    for (size_t i = 0; i < sizeof bad_url / sizeof *bad_url; i++)
        assert_false(buf_base64url_decode(&b, slice_str(bad_url[i])));
    assert_text(&b, "kept");
    buf_free(&b);
}

/* The definition: six bits after the other, each as its digit. */
static void plain_base64(struct buf *b, slice s, const char *digits) {
    u32 bits = 0, held = 0;
    for (size_t i = 0; i < s.n; i++) {
        bits = bits << 8 | (u8)s.p[i];
        for (held += 8; held >= 6; held -= 6) buf_char(b, digits[bits >> (held - 6) & 63]);
    }
    if (held) buf_char(b, digits[bits << (6 - held) & 63]);
}

static const char base64url_digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

static void base64_of_any_length_is_spelled_as_it_is_defined(void **state) {
    (void)state;
    struct buf want = {0}, got = {0}, back = {0};
    char bytes[80];
    for (u32 n = 0; n <= sizeof bytes; n++)
        for (u32 step = 0; step < 256; step++) { /* every digit comes to every place */
            for (u32 i = 0; i < n; i++) bytes[i] = (char)(i * 37 + step);
            plain_base64(&want, slice_of(bytes, n), base64url_digits);
            buf_base64url(&got, slice_of(bytes, n));
            assert_true(slice_eq(buf_slice(&got), buf_slice(&want)));
            assert_true(buf_base64url_decode(&back, buf_slice(&got)));
            assert_true(slice_eq(buf_slice(&back), slice_of(bytes, n)));
            buf_reset(&want), buf_reset(&got), buf_reset(&back);
        }
    buf_free(&want), buf_free(&got), buf_free(&back);
}

static void base64_with_a_byte_that_is_no_digit_is_refused_wherever_it_is(void **state) {
    (void)state;
    struct buf b = {0};
    char text[49];
    for (u32 at = 0; at < 48; at++)
        for (u32 byte = 0; byte < 256; byte++) {
            memset(text, 'x', 48);
            text[at] = (char)byte;
            bool url = byte && strchr(base64url_digits, (int)byte);
            bool standard = byte == '+' || byte == '/' || (url && byte != '-' && byte != '_');
            if (byte == '=' && at == 47) continue; /* padding: of its bits, told elsewhere */
            assert_int_equal(buf_base64url_decode(&b, slice_of(text, 48)), url);
            assert_int_equal(buf_base64_decode(&b, slice_of(text, 48)), standard);
            buf_reset(&b);
        }
    buf_free(&b);
}

static void bytes_survive_base64_hex_and_percent_encoding(void **state) {
    (void)state;
    struct rng r;
    rng_seed(&r, 1);
    struct buf text = {0}, back = {0};
    char bytes[300], hex_back[300];
    for (size_t n = 0; n < sizeof bytes; n++) {
        for (size_t i = 0; i < n; i++) bytes[i] = (char)rng_next(&r);
        slice s = slice_of(bytes, n);
        buf_base64(&text, s);
        assert_true(buf_base64_decode(&back, buf_slice(&text)));
        assert_true(slice_eq(buf_slice(&back), s));
        buf_reset(&text), buf_reset(&back);
        buf_base64url(&text, s);
        assert_true(buf_base64url_decode(&back, buf_slice(&text)));
        assert_true(slice_eq(buf_slice(&back), s));
        buf_reset(&text), buf_reset(&back);
        buf_percent_encode(&text, s);
        assert_true(buf_percent_decode(&back, buf_slice(&text)));
        assert_true(slice_eq(buf_slice(&back), s));
        buf_reset(&text), buf_reset(&back);
        buf_hex(&text, s);
        assert_true(hex_decode(buf_slice(&text), hex_back, n));
        assert_memory_equal(hex_back, bytes, n);
        buf_reset(&text);
    }
    buf_free(&text);
    buf_free(&back);
}

static void hex_has_exactly_the_digits_asked_for(void **state) {
    (void)state;
    struct buf b = {0};
    u8 out[2];
    buf_hex(&b, SL("\x00\xaf"));
    assert_text(&b, "00af");
    assert_true(hex_decode(SL("aBF0"), out, 2) && out[0] == 0xab && out[1] == 0xf0);
    assert_false(hex_decode(SL("abf"), out, 2));
    assert_false(hex_decode(SL("abf01"), out, 2));
    assert_false(hex_decode(SL("abf012"), out, 2));
    assert_false(hex_decode(SL("abg0"), out, 2));
    buf_free(&b);
}

static void percent_decoding_leaves_plus_and_refuses_bad_escapes(void **state) {
    (void)state;
    struct buf b = {0};
    assert_true(buf_percent_decode(&b, SL("a+b%20c%2F%2f")));
    assert_text(&b, "a+b c//");
    buf_lit(&b, "kept");
    assert_false(buf_percent_decode(&b, SL("abc%")));
    assert_false(buf_percent_decode(&b, SL("%2")));
    assert_false(buf_percent_decode(&b, SL("%g0")));
    assert_false(buf_percent_decode(&b, SL("%%41")));
    assert_text(&b, "kept");
    buf_percent_encode(&b, SL("aZ09-._~ /:%\xC3\xA9+"));
    assert_text(&b, "aZ09-._~%20%2F%3A%25%C3%A9%2B");
    buf_free(&b);
}

static void durations_have_units_and_no_fractions(void **state) {
    (void)state;
    const struct {
        const char *text;
        i64 ms;
    } good[] = {{"500ms", 500},
                {"30s", 30000},
                {"5m", 300000},
                {"2h", 7200000},
                {"14d", 1209600000},
                {"7", 7000},
                {"0", 0},
                {"0ms", 0},
                {"9223372036854775807ms", INT64_MAX},
                {"106751991167d", 106751991167 * 86400000}};
    i64 ms;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_true(duration_parse(slice_str(good[i].text), &ms));
        assert_int_equal(ms, good[i].ms);
    }
    const char *bad[] = {"",
                         "s",
                         "-5s",
                         "+5s",
                         "1.5s",
                         "5 s",
                         " 5s",
                         "5s ",
                         "5w",
                         "5S",
                         "5mss",
                         "1h30m",
                         "9223372036854775808ms",
                         "106751991168d",
                         "18446744073709551616"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(duration_parse(slice_str(bad[i]), &ms));
}

static void durations_print_in_their_shortest_exact_form(void **state) {
    (void)state;
    const struct {
        i64 ms;
        const char *text;
    } cases[] = {{0, "0s"},        {1, "1ms"},          {1500, "1500ms"},   {30000, "30s"},
                 {60000, "1m"},    {90000, "90s"},      {3600000, "1h"},    {5400000, "90m"},
                 {86400000, "1d"}, {1209600000, "14d"}, {-1500, "-1500ms"}, {-60000, "-1m"}};
    struct buf b = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        buf_duration(&b, cases[i].ms);
        assert_text(&b, cases[i].text);
    }
    struct rng r;
    rng_seed(&r, 2);
    for (int i = 0; i < 1000; i++) {
        i64 ms = (i64)(rng_next(&r) >> (1 + rng_below(&r, 62))), back;
        buf_duration(&b, ms);
        assert_true(duration_parse(buf_slice(&b), &back));
        assert_int_equal(back, ms);
        buf_reset(&b);
    }
    buf_free(&b);
}

static void times_print_as_the_c_library_would(void **state) {
    (void)state;
    struct rng r;
    rng_seed(&r, 3);
    struct buf b = {0};
    const i64 first = -62135596800, last = 253402300799;
    for (int i = 0; i < 20000; i++) {
        i64 seconds = first + (i64)rng_below(&r, (u64)(last - first + 1));
        int ms = (int)rng_below(&r, 1000);
        time_t t = (time_t)seconds;
        struct tm tm;
        gmtime_r(&t, &tm);
        char expected[80];
        snprintf(expected, sizeof expected, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", tm.tm_year + 1900, tm.tm_mon + 1,
                 tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec, ms);
        buf_rfc3339(&b, seconds * 1000 + ms);
        i64 back;
        assert_true(rfc3339_parse(buf_slice(&b), &back));
        assert_int_equal(back, seconds * 1000 + ms);
        assert_text(&b, expected);
    }
    buf_free(&b);
}

static void every_day_of_the_calendar_survives_the_round_trip(void **state) {
    (void)state;
    struct buf b = {0};
    for (i64 day = -719162; day < 2932897; day += 1) {
        i64 back;
        buf_reset(&b);
        buf_rfc3339(&b, day * 86400000);
        if (!rfc3339_parse(buf_slice(&b), &back) || back != day * 86400000) fail_msg("day %lld", (long long)day);
    }
    buf_free(&b);
}

static void times_beyond_the_calendar_print_as_its_ends(void **state) {
    (void)state;
    struct buf b = {0};
    buf_rfc3339(&b, INT64_MIN);
    assert_text(&b, "0001-01-01T00:00:00.000Z");
    buf_rfc3339(&b, INT64_MAX);
    assert_text(&b, "9999-12-31T23:59:59.999Z");
    buf_rfc3339(&b, -1);
    assert_text(&b, "1969-12-31T23:59:59.999Z");
    buf_free(&b);
}

static void times_parse_with_offsets_and_fractions(void **state) {
    (void)state;
    const struct {
        const char *text;
        i64 ms;
    } good[] = {{"1970-01-01T00:00:00Z", 0},
                {"1970-01-01t00:00:00.5z", 500},
                {"1970-01-01T00:00:00.123456789Z", 123},
                {"1970-01-01T01:00:00+01:00", 0},
                {"1969-12-31T19:30:00-04:30", 0},
                {"1970-01-01T00:00:00-00:00", 0},
                {"2026-01-31T12:00:00.000Z", 1769860800000},
                {"2000-02-29T00:00:00Z", 951782400000}};
    i64 ms;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_true(rfc3339_parse(slice_str(good[i].text), &ms));
        assert_int_equal(ms, good[i].ms);
    }
    const char *bad[] = {"",
                         "1970-01-01",
                         "1970-01-01T00:00:00",
                         "1970-01-01 00:00:00Z",
                         "1970-01-01T00:00Z",
                         "1970-01-01T00:00:00.Z",
                         "1970-13-01T00:00:00Z",
                         "1970-00-01T00:00:00Z",
                         "1970-01-00T00:00:00Z",
                         "1970-01-32T00:00:00Z",
                         "1900-02-29T00:00:00Z",
                         "2023-02-29T00:00:00Z",
                         "2023-04-31T00:00:00Z",
                         "1970-01-01T24:00:00Z",
                         "1970-01-01T00:60:00Z",
                         "1970-01-01T23:59:60Z",
                         "1970-01-01T00:00:00+24:00",
                         "1970-01-01T00:00:00+00:60",
                         "1970-01-01T00:00:00+0000",
                         "1970-01-01T00:00:00Zx",
                         "0000-01-01T00:00:00Z",
                         "0001-01-01T00:00:00+00:01",
                         "9999-12-31T23:59:59-00:01",
                         "+970-01-01T00:00:00Z",
                         "1970-01-01T00:00:00,5Z"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(rfc3339_parse(slice_str(bad[i]), &ms));
}

static void crc32c_matches_the_published_vectors(void **state) {
    (void)state;
    u8 bytes[32] = {0};
    assert_int_equal(crc32c(0, "123456789", 9), 0xE3069283u);
    assert_int_equal(crc32c(0, bytes, 32), 0x8A9136AAu); /* RFC 3720, B.4 */
    memset(bytes, 0xff, 32);
    assert_int_equal(crc32c(0, bytes, 32), 0x62A8AB43u);
    for (u8 i = 0; i < 32; i++) bytes[i] = i;
    assert_int_equal(crc32c(0, bytes, 32), 0x46DD794Eu);
    assert_int_equal(crc32c(0, NULL, 0), 0);
    assert_int_equal(crc32c_by_table(0, "123456789", 9), 0xE3069283u);
}

static void crc32c_is_the_same_by_table_in_parts_and_at_any_alignment(void **state) {
    (void)state;
    static u8 bytes[5000];
    struct rng r;
    rng_seed(&r, 4);
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (u8)rng_next(&r);
    for (int i = 0; i < 5000; i++) {
        size_t from = rng_below(&r, 64), n = rng_below(&r, sizeof bytes - 64), cut = rng_below(&r, n + 1);
        u32 seed = (u32)rng_next(&r);
        u32 whole = crc32c(seed, bytes + from, n);
        assert_int_equal(whole, crc32c_by_table(seed, bytes + from, n));
        assert_int_equal(whole, crc32c(crc32c(seed, bytes + from, cut), bytes + from + cut, n - cut));
    }
}

/* Inputs are 00 01 02 ... of every length below 64 under the key 00..0f; the last figure is the hash of all hashes. */
static void siphash_matches_the_reference_vectors(void **state) {
    (void)state;
    const struct siphash_key key = {0x0706050403020100, 0x0f0e0d0c0b0a0908};
    u8 in[64];
    u64 all[64], all128[64][2], out[2];
    for (u8 i = 0; i < 64; i++) in[i] = i;
    for (size_t n = 0; n < 64; n++) {
        all[n] = siphash(&key, in, n);
        siphash128(&key, in, n, all128[n]);
    }
    assert_true(all[0] == 0x726fdb47dd0e0e31 && all[1] == 0x74f839c593dc67fd && all[15] == 0xa129ca6149be45e5);
    assert_true(all[63] == 0x958a324ceb064572);
    assert_true(siphash(&key, all, sizeof all) == 0x505c706bd37f0119);
    assert_true(all128[0][0] == 0xe6a825ba047f81a3 && all128[0][1] == 0x930255c71472f66d);
    assert_true(all128[1][0] == 0x44af996bd8c187da && all128[1][1] == 0x45fc229b11597634);
    siphash128(&key, all128, sizeof all128, out);
    assert_true(out[0] == 0xf988b98f34d72075 && out[1] == 0x552711ffb35c6229);
}

/* Of any lengths, so that lanes end together and apart, at any alignment, and up to the last byte of what may be read. */
static void several_siphashes_at_once_are_those_of_one_after_the_other(void **state) {
    (void)state;
    const struct siphash_key key = {1, 2};
    struct rng r;
    rng_seed(&r, 7);
    for (int turn = 0; turn < 2000; turn++) {
        slice texts[11];
        char *bytes[11];
        u64 out[11];
        size_t count = rng_below(&r, 12), like = rng_below(&r, 300);
        for (size_t i = 0; i < count; i++) {
            size_t n = turn % 3 == 0 ? like : turn % 3 == 1 ? like / 8 * 8 + rng_below(&r, 8) : rng_below(&r, 300);
            bytes[i] = mem_alloc(n ? n : 1);
            for (size_t k = 0; k < n; k++) bytes[i][k] = (char)rng_next(&r);
            texts[i] = slice_of(bytes[i], n);
        }
        siphash_each(&key, texts, count, out);
        for (size_t i = 0; i < count; i++) {
            assert_true(out[i] == siphash(&key, texts[i].p, texts[i].n));
            mem_free(bytes[i]);
        }
    }
}

static void a_seed_always_gives_the_same_numbers(void **state) {
    (void)state;
    struct rng a, b;
    rng_seed(&a, 0);
    assert_true(a.s[0] == 0xe220a8397b1dcdaf && a.s[1] == 0x6e789e6aa1b965f4); /* splitmix64's published output */
    rng_seed(&b, 0);
    for (int i = 0; i < 1000; i++) assert_true(rng_next(&a) == rng_next(&b));
    a = (struct rng){{1, 2, 3, 4}};
    u64 expected[] = {11520, 0, 1509978240, 1215971899390074240}; /* xoshiro256**'s published output */
    for (int i = 0; i < 4; i++) assert_true(rng_next(&a) == expected[i]);
}

static void bounded_numbers_stay_below_and_reach_everything(void **state) {
    (void)state;
    struct rng r;
    rng_seed(&r, 5);
    int seen[7] = {0};
    for (int i = 0; i < 7000; i++) seen[rng_below(&r, 7)]++;
    for (int i = 0; i < 7; i++) assert_in_range(seen[i], 800, 1200);
    for (int i = 0; i < 100; i++) assert_true(rng_below(&r, 1) == 0);
    int low = 0;
    for (int i = 0; i < 3000; i++) low += rng_below(&r, 3ull << 62) < 1ull << 62;
    assert_in_range(low, 850, 1150); /* a plain remainder would give 1500 */
}

static void kernel_randomness_fills_the_whole_buffer(void **state) {
    (void)state;
    u8 a[1000] = {0}, zeros[1000] = {0};
    random_bytes(a, sizeof a);
    assert_memory_not_equal(a, zeros, sizeof a);
    assert_memory_not_equal(a + 968, zeros, 32);
}

static void clocks_agree_with_the_system_and_do_not_go_back(void **state) {
    (void)state;
    i64 now = (i64)time(NULL);
    assert_in_range(clock_wall_ms() / 1000 - now + 1, 0, 11);
    i64 us = clock_mono_us();
    assert_true(clock_mono_us() >= us);
    assert_true(clock_mono_ms() >= us / 1000);
}

static void sizes_have_units(void **state) {
    (void)state;
    static const struct {
        const char *text;
        u64 bytes;
        const char *shortest;
    } good[] = {
        {"0", 0, "0B"},
        {"512", 512, "512B"},
        {"512B", 512, "512B"},
        {"1KiB", 1024, "1KiB"},
        {"2048", 2048, "2KiB"},
        {"256KiB", 256 << 10, "256KiB"},
        {"1kB", 1000, "1kB"},
        {"10MB", 10000000, "10MB"},
        {"1GiB", (u64)1 << 30, "1GiB"},
        {"3TiB", (u64)3 << 40, "3TiB"},
        {"18446744073709551615", UINT64_MAX, "18446744073709551615B"},
    };
    static const char *const bad[] = {"",    "KiB",  "1 KiB",          "1.5GiB",
                                      "-1",  "+1",   "1kib",           "1Kb",
                                      "1e3", "0x10", "99999999999TiB", "18446744073709551616"};
    u64 bytes;
    struct buf b = {0};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_true(size_parse(slice_str(good[i].text), &bytes));
        assert_true(bytes == good[i].bytes);
        buf_size(&b, bytes);
        assert_text(&b, good[i].shortest);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(size_parse(slice_str(bad[i]), &bytes));
    buf_free(&b);
}

static const char *fruit_at(const void *ctx, size_t i) {
    static const char *const fruits[] = {"apple", "pear", "fig"};
    (void)ctx;
    return i < 3 ? fruits[i] : NULL;
}

static void the_nearest_name_is_at_most_two_slips_away(void **state) {
    (void)state;
    assert_string_equal(nearest_name(SL("aple"), fruit_at, NULL), "apple");
    assert_string_equal(nearest_name(SL("appel"), fruit_at, NULL), "apple");
    assert_string_equal(nearest_name(SL("bear"), fruit_at, NULL), "pear");
    assert_string_equal(nearest_name(SL("fog"), fruit_at, NULL), "fig");
    assert_null(nearest_name(SL("zzz"), fruit_at, NULL));
    assert_null(nearest_name(SL(""), fruit_at, NULL));
    assert_null(nearest_name(SL("a word that is longer than any name there could ever be in a list"), fruit_at, NULL));
}

static void a_text_cut_in_a_character_loses_that_character(void **state) {
    (void)state;
    static const char *const cases[][2] = {{"", ""},
                                           {"abc", "abc"},
                                           {"a\xC3\xBC", "a\xC3\xBC"},
                                           {"a\xC3", "a"},
                                           {"a\xE2\x82", "a"},
                                           {"a\xE2\x82\xAC", "a\xE2\x82\xAC"},
                                           {"\xF0\x9F\x98", ""},
                                           {"\xF0\x9F\x98\x80", "\xF0\x9F\x98\x80"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[16];
        snprintf(text, sizeof text, "%s", cases[i][0]);
        utf8_trim(text);
        assert_string_equal(text, cases[i][1]);
    }
    struct errbuf err;
    char many[600];
    for (size_t i = 0; i + 1 < sizeof many; i++) many[i] = i % 2 ? '\xBC' : '\xC3';
    many[sizeof many - 1] = '\0';
    err_set(&err, ST_IO, "x%s", many);
    assert_true(utf8_valid(slice_str(err.text)));
    err_wrap(&err, ST_IO, "y");
    assert_true(utf8_valid(slice_str(err.text)));
}

static void an_arena_keeps_what_it_gave_until_it_goes(void **state) {
    (void)state;
    struct arena a = {0};
    struct buf b = {0};
    for (int round = 0; round < 3; round++) {
        slice first = arena_copy(&a, SL("first"));
        buf_lit(&b, "adopted");
        slice adopted = arena_adopt(&a, &b);
        for (size_t n = 1; n < 200000; n = n * 3 + 1) {
            u8 *p = arena_alloc(&a, n);
            assert_int_equal((uintptr_t)p % _Alignof(max_align_t), 0);
            for (size_t i = 0; i < n; i++) assert_int_equal(p[i], 0);
            memset(p, 0xEE, n);
        }
        assert_string_equal(first.p, "first");
        assert_string_equal(adopted.p, "adopted");
        arena_reset(&a);
    }
    arena_clear(&a);
}

static void a_bucket_gives_so_much_at_once_and_then_so_much_a_second(void **state) {
    (void)state;
    struct bucket b = {0};
    struct bucket_rule r = {.per_s = 10, .at_once = 3};
    for (u32 i = 0; i < 3; i++) assert_int_equal(bucket_take(&b, r, 1, 5000), 0);
    assert_int_equal(bucket_take(&b, r, 1, 5000), 100); /* the next one comes in a tenth of a second, and not before */
    assert_int_equal(bucket_take(&b, r, 1, 5099), 1);
    assert_int_equal(bucket_take(&b, r, 1, 5100), 0);
    assert_int_equal(bucket_take(&b, r, 2, 5100), 200);
    assert_int_equal(bucket_take(&b, r, 2, 5300), 0);
    u32 taken = 0;
    for (i64 ms = 5300; ms < 15300; ms++) taken += bucket_take(&b, r, 1, ms) == 0;
    assert_int_equal(taken, 99);
    assert_int_equal(bucket_take(&b, r, 3, 100000), 0); /* however long nobody came, it holds no more than that */
    assert_int_equal(bucket_take(&b, r, 1, 100000), 100);
}

static void more_than_a_bucket_holds_is_taken_from_a_full_one_and_owed(void **state) {
    (void)state;
    struct bucket b = {0};
    struct bucket_rule r = {.per_s = 10, .at_once = 10};
    assert_int_equal(bucket_take(&b, r, 1, 0), 0);
    assert_int_equal(bucket_take(&b, r, 1000, 0), 100);
    assert_int_equal(bucket_take(&b, r, 1000, 100), 0);
    assert_int_equal(bucket_take(&b, r, 1, 100), 99100);
    assert_int_equal(bucket_wait_ms(&b, r, 10, 100), 100000);
    assert_int_equal(bucket_take(&b, r, 1, 99200), 0);
    assert_int_equal(bucket_take(&b, (struct bucket_rule){.per_s = 1, .at_once = UINT32_MAX}, UINT32_MAX, 200000), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_has_a_text),
        cmocka_unit_test(errors_are_wrapped_from_the_inside_out),
        cmocka_unit_test(an_error_longer_than_its_buffer_is_cut_not_overrun),
        cmocka_unit_test(a_failed_check_says_where_and_what_and_aborts),
        cmocka_unit_test(running_out_of_memory_aborts_with_a_message),
        cmocka_unit_test(memory_of_any_size_can_be_had_zeroed_and_resized),
        cmocka_unit_test(slices_compare_and_trim),
        cmocka_unit_test(a_slice_is_cut_at_the_first_separator),
        cmocka_unit_test(numbers_are_digits_only_and_never_overflow),
        cmocka_unit_test(a_buffer_keeps_what_is_added_while_it_grows),
        cmocka_unit_test(numbers_print_as_printf_would),
        cmocka_unit_test(sizes_have_units),
        cmocka_unit_test(the_nearest_name_is_at_most_two_slips_away),
        cmocka_unit_test(a_text_cut_in_a_character_loses_that_character),
        cmocka_unit_test(an_arena_keeps_what_it_gave_until_it_goes),
        cmocka_unit_test(utf8_is_valid_only_in_its_one_shortest_form),
        cmocka_unit_test(a_bad_byte_is_found_wherever_it_stands),
        cmocka_unit_test(control_characters_are_noticed),
        cmocka_unit_test(every_byte_counts_the_same_wherever_it_stands),
        cmocka_unit_test(a_word_is_spelled_alike_in_small_and_capital_letters_and_no_other_way),
        cmocka_unit_test(a_c1_control_is_noticed_wherever_it_stands),
        cmocka_unit_test(hex_is_what_printf_would_write),
        cmocka_unit_test(base64_matches_rfc_4648),
        cmocka_unit_test(base64_refuses_every_other_spelling_and_leaves_the_buffer),
        cmocka_unit_test(base64_of_any_length_is_spelled_as_it_is_defined),
        cmocka_unit_test(base64_with_a_byte_that_is_no_digit_is_refused_wherever_it_is),
        cmocka_unit_test(bytes_survive_base64_hex_and_percent_encoding),
        cmocka_unit_test(hex_has_exactly_the_digits_asked_for),
        cmocka_unit_test(percent_decoding_leaves_plus_and_refuses_bad_escapes),
        cmocka_unit_test(durations_have_units_and_no_fractions),
        cmocka_unit_test(durations_print_in_their_shortest_exact_form),
        cmocka_unit_test(times_print_as_the_c_library_would),
        cmocka_unit_test(every_day_of_the_calendar_survives_the_round_trip),
        cmocka_unit_test(times_beyond_the_calendar_print_as_its_ends),
        cmocka_unit_test(times_parse_with_offsets_and_fractions),
        cmocka_unit_test(crc32c_matches_the_published_vectors),
        cmocka_unit_test(crc32c_is_the_same_by_table_in_parts_and_at_any_alignment),
        cmocka_unit_test(siphash_matches_the_reference_vectors),
        cmocka_unit_test(several_siphashes_at_once_are_those_of_one_after_the_other),
        cmocka_unit_test(a_seed_always_gives_the_same_numbers),
        cmocka_unit_test(bounded_numbers_stay_below_and_reach_everything),
        cmocka_unit_test(a_bucket_gives_so_much_at_once_and_then_so_much_a_second),
        cmocka_unit_test(more_than_a_bucket_holds_is_taken_from_a_full_one_and_owed),
        cmocka_unit_test(kernel_randomness_fills_the_whole_buffer),
        cmocka_unit_test(clocks_agree_with_the_system_and_do_not_go_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
