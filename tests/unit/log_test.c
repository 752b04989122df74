/* The log: lines that people and programs can read, whatever is in them, and that nothing can make endless. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base_priv.h"
#include "base/log.h"

/* stderr is a packet pipe while a test looks at it: each write stays apart. */
static int ends[2], real_stderr;

static void listen_to_stderr(void) {
    real_stderr = dup(STDERR_FILENO);
    assert_int_equal(pipe2(ends, O_DIRECT | O_NONBLOCK), 0);
    dup2(ends[1], STDERR_FILENO);
}

static int set_up(void **state) {
    (void)state;
    log_set_level(LOG_INFO);
    log_set_format(LOG_AS_LOGFMT);
    listen_to_stderr();
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    dup2(real_stderr, STDERR_FILENO);
    close(real_stderr);
    close(ends[0]);
    close(ends[1]);
    return 0;
}

/* The next line, from behind its time on; NULL if nothing was written. */
static const char *next(void) {
    static char line[2 * LOG_LINE_BYTES];
    ssize_t n = read(ends[0], line, sizeof line - 1);
    if (n <= 0) return NULL;
    line[n] = 0;
    assert_true((size_t)n <= LOG_LINE_BYTES && line[n - 1] == '\n' && !memchr(line, '\n', (size_t)n - 1));
    i64 at;
    if (line[0] == '{') {
        assert_true(slice_starts(slice_str(line), SL("{\"ts\":\"")) && rfc3339_parse(slice_of(line + 7, 24), &at));
        return line + 33;
    }
    assert_true(slice_starts(slice_str(line), SL("ts=")) && rfc3339_parse(slice_of(line + 3, 24), &at));
    assert_in_range(at, clock_wall_ms() - 60000, clock_wall_ms());
    return line + 28;
}

static void a_line_is_logfmt(void **state) {
    (void)state;
    log_event(LOG_WARN, "disk_short", "no room", LOG_EVERY, log_text("queue", SL("pay ments")), log_number("n", -7),
              log_real("ratio", 0.25), log_text("bare", SL("a/b:c")), log_text("empty", SL("")));
    assert_string_equal(
        next(),
        "level=warn event=disk_short msg=\"no room\" queue=\"pay ments\" n=-7 ratio=0.25 bare=a/b:c empty=\"\"\n");
    log_event(LOG_ERROR, "e", "m");
    assert_string_equal(next(), "level=error event=e msg=m\n");
}

static void with_json_asked_for_a_line_is_an_object(void **state) {
    (void)state;
    log_set_format(LOG_AS_JSON);
    log_event(LOG_INFO, "e", "say \"so\"", LOG_EVERY, log_text("queue", SL("q")), log_number("n", 3),
              log_real("r", 1.5));
    assert_string_equal(
        next(), "\"level\":\"info\",\"event\":\"e\",\"msg\":\"say \\\"so\\\"\",\"queue\":\"q\",\"n\":3,\"r\":1.5}\n");
}

/* A terminal would obey them; a reader by lines would see two; JSON would not be any. */
static void control_characters_and_broken_text_are_escaped(void **state) {
    (void)state;
    const char *text = "a\nb \x1b[31m \"q\" caf\xC3\xA9 \xC2\x9b \xff";
    log_event(LOG_INFO, "escaped", text, LOG_EVERY);
    assert_string_equal(next(), "level=info event=escaped "
                                "msg=\"a\\nb \\x1b[31m \\\"q\\\" caf\xC3\xA9 \\xc2\\x9b \\xff\"\n");
    log_set_format(LOG_AS_JSON);
    log_event(LOG_INFO, "escaped", text, LOG_EVERY);
    assert_string_equal(next(), "\"level\":\"info\",\"event\":\"escaped\","
                                "\"msg\":\"a\\nb \\u001b[31m \\\"q\\\" caf\xC3\xA9 \\u009b \\ufffd\"}\n");
}

static void levels_say_what_is_written(void **state) {
    (void)state;
    enum log_level level;
    log_event(LOG_DEBUG, "a", "hidden");
    assert_null(next());
    assert_true(log_level_parse(SL("debug"), &level));
    log_set_level(level);
    log_event(LOG_DEBUG, "a", "shown");
    assert_string_equal(next(), "level=debug event=a msg=shown\n");
    assert_true(log_level_parse(SL("error"), &level));
    log_set_level(level);
    log_line(LOG_WARN, "a", "hidden %d", 1);
    assert_null(next());
    log_line(LOG_ERROR, "a", "shown %d", 2);
    assert_string_equal(next(), "level=error event=a msg=\"shown 2\"\n");
    assert_false(log_level_parse(SL("loud"), &level));
}

static void a_line_is_one_write_and_leaves_errno(void **state) {
    (void)state;
    errno = ENOSPC;
    log_line(LOG_ERROR, "one", "first");
    log_event(LOG_ERROR, "two", "second");
    assert_int_equal(errno, ENOSPC);
    assert_string_equal(next(), "level=error event=one msg=first\n");
    assert_string_equal(next(), "level=error event=two msg=second\n");
    assert_null(next());
}

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* At every length around the limit: what is cut is still logfmt, still JSON, and says that it was cut. */
static void a_line_has_an_end_however_long_its_texts_are(void **state) {
    (void)state;
    static char text[3 * LOG_LINE_BYTES];
    for (u32 n = LOG_LINE_BYTES - 300; n < LOG_LINE_BYTES + 10; n++) {
        for (u32 i = 0; i < n; i++) text[i] = "\"\n\xC3\xA9"[i % 4];
        text[n] = 0;
        log_event(LOG_INFO, "long", "m", LOG_EVERY, log_text("t", slice_of(text, n / 2)),
                  log_text("u", slice_of(text, n)));
        const char *line = next();
        assert_true(line && ends_with(line, "\" cut=true\n"));
        memset(text, 'x', n);
        log_set_format(LOG_AS_JSON);
        log_line(LOG_INFO, "long", "%s", text);
        line = next();
        assert_true(line && ends_with(line, n + 200 < LOG_LINE_BYTES   ? "xx\"}\n"
                                            : n > LOG_LINE_BYTES - 100 ? "\"cut\":true}\n"
                                                                       : "}\n"));
        log_set_format(LOG_AS_LOGFMT);
    }
}

static void repeats_are_held_back_and_counted(void **state) {
    (void)state;
    u32 written = 0;
    for (u32 i = 0; i < 1000; i++) log_event(LOG_INFO, "flood", "again");
    while (next()) written++;
    assert_in_range(written, LOG_BURST, LOG_BURST + 5); /* a second may pass meanwhile */
    log_event(LOG_INFO, "other", "not held back");
    assert_string_equal(next(), "level=info event=other msg=\"not held back\"\n");
    for (u32 i = 0; i < 100; i++) {
        log_event(LOG_INFO, "flood", "every one of them", LOG_EVERY);
        assert_string_equal(next(), "level=info event=flood msg=\"every one of them\"\n");
    }
}

/* A reader that stands still: the daemon's log is a pipe to a collector that hangs. */
static void a_reader_that_stopped_loses_lines_and_holds_nobody_up(void **state) {
    (void)state;
    u32 read_back = 0, said = 5000;
    dup2(real_stderr, STDERR_FILENO); /* the packet pipe of the others does not wait: this one would */
    close(ends[0]);
    close(ends[1]);
    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    alarm(60); /* a broker that waits here waits for ever */
    for (u32 i = 0; i < said; i++) log_line(LOG_INFO, "n", "%u", i);
    alarm(0);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    char chunk[4096], last[100] = "", wanted[100];
    for (ssize_t n; (n = read(ends[0], chunk, sizeof chunk)) > 0;)
        for (ssize_t i = 0; i < n; i++) read_back += chunk[i] == '\n';
    assert_in_range(read_back, 1, said - 1);
    log_line(LOG_INFO, "n", "again");
    assert_true(read(ends[0], last, sizeof last - 1) > 28);
    snprintf(wanted, sizeof wanted, "level=info event=n msg=again lost=%u\n", said - read_back);
    assert_string_equal(last + 28, wanted);
}

/* ---- the limit itself, at times we choose */

static u32 taken(struct log_limits *l, u64 of, i64 now_ms, u32 tries, u64 *suppressed) {
    u32 n = 0;
    for (u32 i = 0; i < tries; i++) n += log_limit(l, of, now_ms, suppressed);
    return n;
}

static void ten_at_once_then_one_a_second(void **state) {
    (void)state;
    static struct log_limits l;
    u64 suppressed = 0;
    assert_int_equal(taken(&l, 1, 5000, 100, &suppressed), LOG_BURST);
    assert_int_equal(suppressed, 0);
    assert_int_equal(taken(&l, 1, 5999, 10, &suppressed), 0);
    assert_int_equal(taken(&l, 1, 6000, 10, &suppressed), 1);
    assert_int_equal(suppressed, 100); /* 90 and 10; the nine behind it are told next time */
    assert_int_equal(taken(&l, 1, 9000, 10, &suppressed), 3);
    assert_int_equal(taken(&l, 1, 9000 + 20000, 100, &suppressed), LOG_BURST);
}

static void one_that_floods_leaves_the_others_their_lines(void **state) {
    (void)state;
    static struct log_limits l;
    u64 suppressed;
    taken(&l, 1, 1000, 1000, &suppressed);
    assert_int_equal(taken(&l, 1 + LOG_BUCKETS, 1000, 1000, &suppressed), LOG_BURST); /* the same place in the table */
    assert_int_equal(suppressed, 0);
    for (u64 of = 1; of < 100000; of++) taken(&l, of, 2000, 3, &suppressed); /* more of them than there are buckets */
    assert_true(taken(&l, 77, 200000, 3, &suppressed) == 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_line_is_logfmt, set_up, tear_down),
        cmocka_unit_test_setup_teardown(with_json_asked_for_a_line_is_an_object, set_up, tear_down),
        cmocka_unit_test_setup_teardown(control_characters_and_broken_text_are_escaped, set_up, tear_down),
        cmocka_unit_test_setup_teardown(levels_say_what_is_written, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_line_is_one_write_and_leaves_errno, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_line_has_an_end_however_long_its_texts_are, set_up, tear_down),
        cmocka_unit_test_setup_teardown(repeats_are_held_back_and_counted, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_reader_that_stopped_loses_lines_and_holds_nobody_up, set_up, tear_down),
        cmocka_unit_test(ten_at_once_then_one_a_second),
        cmocka_unit_test(one_that_floods_leaves_the_others_their_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
