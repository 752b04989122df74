/* Requests leave once, and how a call ended says what may have happened. */
#include "outbound_kit.h"

#define OK_REPLY "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-One: a\r\n\r\nhi"

/* ---- once */

/* The issue with libcurl: a connection that was used before dies under the second request, and it sends it again by itself. */
static void is_seen_once(const char *method, slice body, const struct step *steps, u32 count) {
    struct server s;
    struct heard first = {0}, second = {0};
    char url[64];
    kit_open_world(NULL);
    server_open(&s, steps, count);
    struct outbound_request warm = request_to(&s, "POST", SL("warm"), url), r = request_to(&s, method, body, url);
    call_and_wait(&warm, &first);
    assert_int_equal(first.end, OUTBOUND_ANSWERED);
    call_and_wait(&r, &second);
    assert_int_equal(second.end, OUTBOUND_BROKEN);
    kit_close_world(NULL);
    server_close(&s);
    assert_int_equal(s.requests, 2);
    heard_free(&first);
    heard_free(&second);
}

static void is_seen_once_however_it_dies(const char *method, slice body) {
    static const struct step closes[] = {{OK_REPLY, KEEP, 0}, {"", CLOSE, 0}},
                             resets[] = {{OK_REPLY, KEEP, 0}, {"", RESET, 0}};
    is_seen_once(method, body, closes, 2);
    is_seen_once(method, body, resets, 2);
}

static void a_get_on_a_connection_that_dies_is_sent_once(void **state) {
    (void)state;
    is_seen_once_however_it_dies("GET", SL(""));
}

static void a_post_with_a_body_on_a_connection_that_dies_is_sent_once(void **state) {
    (void)state;
    is_seen_once_however_it_dies("POST", SL("{\"slot\":1}"));
    is_seen_once_however_it_dies("PUT", SL("{\"slot\":1}"));
}

/* Of which nothing may have been read yet when it dies: then libcurl has nothing to rewind. */
static void a_large_body_on_a_connection_that_dies_is_sent_once(void **state) {
    static const struct step in_body[] = {{OK_REPLY, KEEP, 0}, {"", RESET_IN_HEAD, 0}};
    slice large = slice_of(mem_zalloc(1u << 20), 1u << 20);
    (void)state;
    is_seen_once_however_it_dies("POST", large);
    is_seen_once("POST", large, in_body, 2);
    mem_free((void *)(uintptr_t)large.p);
}

static void a_post_without_a_body_on_a_connection_that_dies_is_sent_once(void **state) {
    (void)state;
    is_seen_once_however_it_dies("POST", SL(""));
    is_seen_once_however_it_dies("DELETE", SL(""));
}

/* Else none of the above would have shown anything. */
static void bodies_use_a_connection_again_and_requests_without_one_do_not(void **state) {
    static const struct step ok[] = {{OK_REPLY, KEEP, 0}};
    struct server s;
    struct heard h = {0};
    char url[64];
    (void)state;
    server_open(&s, ok, 1);
    struct outbound_request r = request_to(&s, "POST", SL("body"), url), bare = request_to(&s, "POST", SL(""), url);
    for (u32 i = 0; i < 3; i++) {
        call_and_wait(&r, &h);
        heard_free(&h);
    }
    assert_int_equal(s.connections, 1);
    call_and_wait(&bare, &h);
    heard_free(&h);
    assert_int_equal(s.connections, 2);
    assert_int_equal(s.requests, 4);
    kit_close_world(NULL);
    server_close(&s);
    kit_open_world(NULL);
}

/* ---- how it ends */

struct ending {
    const char *what;
    struct step step;
    enum outbound_end end;
    u32 status;
};

#define LONG_LINE                                                                                                      \
    "X-Long: "                                                                                                         \
    "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"                 \
    "\r\n"
#define TEN(x) x x x x x x x x x x

static const struct ending endings[] = {
    {"a whole answer", {OK_REPLY, KEEP, 0}, OUTBOUND_ANSWERED, 200},
    {"no body", {"HTTP/1.1 204 No Content\r\n\r\n", KEEP, 0}, OUTBOUND_ANSWERED, 204},
    {"an answer that ends with its connection", {"HTTP/1.1 200 OK\r\n\r\nhi", CLOSE, 0}, OUTBOUND_ANSWERED, 200},
    {"of HTTP/1.0", {"HTTP/1.0 201 Created\r\n\r\nhi", CLOSE, 0}, OUTBOUND_ANSWERED, 201},
    {"in chunks",
     {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", KEEP, 0},
     OUTBOUND_ANSWERED,
     200},
    {"an error", {"HTTP/1.1 503 Busy\r\nRetry-After: 3\r\nContent-Length: 0\r\n\r\n", KEEP, 0}, OUTBOUND_ANSWERED, 503},
    {"a redirect is not followed",
     {"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", KEEP, 0},
     OUTBOUND_ANSWERED,
     302},
    {"401 is not answered",
     {"HTTP/1.1 401 No\r\nWWW-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n", KEEP, 0},
     OUTBOUND_ANSWERED,
     401},
    {"417 is not tried again", {"HTTP/1.1 417 No\r\nContent-Length: 0\r\n\r\n", KEEP, 0}, OUTBOUND_ANSWERED, 417},
    {"interim answers do not count",
     {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nX: y\r\n\r\n" OK_REPLY, KEEP, 0},
     OUTBOUND_ANSWERED,
     200},
    {"more than it said", {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi there", KEEP, 0}, OUTBOUND_ANSWERED, 200},
    {"closed before a byte", {"", CLOSE, 0}, OUTBOUND_BROKEN, 0},
    {"reset before a byte", {"", RESET, 0}, OUTBOUND_BROKEN, 0},
    {"reset while it is sent", {"", RESET_IN_HEAD, 0}, OUTBOUND_BROKEN, 0},
    {"cut in the status line", {"HTTP/1.1 20", CLOSE, 0}, OUTBOUND_BROKEN, 0},
    {"cut in the head", {"HTTP/1.1 200 OK\r\nContent-Le", CLOSE, 0}, OUTBOUND_BROKEN, 0},
    {"cut behind a line of the head", {"HTTP/1.1 200 OK\r\nX: y\r\n", CLOSE, 0}, OUTBOUND_BROKEN, 0},
    {"reset in the head", {"HTTP/1.1 200 OK\r\nX: y\r\n", RESET, 0}, OUTBOUND_BROKEN, 0},
    {"less than it said", {"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nhi", CLOSE, 0}, OUTBOUND_BROKEN, 0},
    {"none of what it said", {"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n", CLOSE, 0}, OUTBOUND_BROKEN, 0},
    {"cut in a chunk", {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n20\r\nhi", CLOSE, 0}, OUTBOUND_BROKEN, 0},
    {"cut before the last chunk",
     {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n", CLOSE, 0},
     OUTBOUND_BROKEN,
     0},
    {"chunks that are none",
     {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhi", CLOSE, 0},
     OUTBOUND_BROKEN,
     0},
    {"an interim answer alone", {"HTTP/1.1 100 Continue\r\n\r\n", CLOSE, 0}, OUTBOUND_BROKEN, 0},
    {"another protocol after all", {"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\nhi", CLOSE, 0}, OUTBOUND_BROKEN, 0},
    {"a status there is not", {"HTTP/1.1 700 Odd\r\nContent-Length: 0\r\n\r\n", KEEP, 0}, OUTBOUND_BROKEN, 0},
    {"a length there is not", {"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\nhi", CLOSE, 0}, OUTBOUND_BROKEN, 0},
    {"garbage", {"SSH-2.0-OpenSSH_9.2\r\n", CLOSE, 0}, OUTBOUND_BROKEN, 0},
    {"no head at all", {"hello\r\n\r\n", CLOSE, 0}, OUTBOUND_BROKEN, 0},
    {"a head that is too large",
     {"HTTP/1.1 200 OK\r\n" TEN(TEN(LONG_LINE)) TEN(TEN(LONG_LINE)) TEN(TEN(LONG_LINE)) TEN(TEN(LONG_LINE)) "\r\n",
      CLOSE, 0},
     OUTBOUND_BROKEN,
     0},
    {"a line without an end", {"HTTP/1.1 200 OK\r\nX: ", CLOSE, 200000}, OUTBOUND_BROKEN, 0},
};

static void how_a_call_ends(void **state) {
    char url[64];
    (void)state;
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        const struct ending *e = &endings[i];
        struct server s;
        struct heard h = {0};
        kit_open_world(NULL);
        server_open(&s, &e->step, 1);
        struct outbound_request r = request_to(&s, "POST", SL("body"), url);
        call_and_wait(&r, &h);
        kit_close_world(NULL);
        server_close(&s);
        if (h.end != e->end || h.status != e->status || s.requests != 1)
            fail_msg("%s: end %d, status %u, seen %u times: %s", e->what, h.end, h.status, s.requests, h.why.p);
        heard_free(&h);
    }
}

static void an_answer_that_does_not_come_in_time_is_broken(void **state) {
    static const struct step hangs[] = {{"", HANG, 0}},
                             drips[] = {{"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhi", HANG, 0}};
    char url[64];
    const struct step *both[] = {hangs, drips};
    (void)state;
    for (u32 i = 0; i < 2; i++) {
        struct server s;
        struct heard h = {0};
        kit_open_world(NULL);
        server_open(&s, both[i], 1);
        struct outbound_request r = request_to(&s, "POST", SL("body"), url);
        r.total_ms = 300;
        call_and_wait(&r, &h);
        assert_int_equal(h.end, OUTBOUND_BROKEN);
        kit_close_world(NULL);
        server_close(&s);
        assert_int_equal(s.requests, 1);
        heard_free(&h);
    }
}

static void whoever_refuses_was_sent_nothing(void **state) {
    struct heard h = {0};
    struct server s;
    char url[64];
    (void)state;
    static const struct step ok[] = {{OK_REPLY, KEEP, 0}};
    server_open(&s, ok, 1);
    struct outbound_request r = request_to(&s, "POST", SL("body"), url);
    server_close(&s); /* the port is free */
    call_and_wait(&r, &h);
    assert_int_equal(h.end, OUTBOUND_NOT_SENT);
    assert_true(h.why.len > 1);
    heard_free(&h);
}

/* A listener whose queue is full takes no more: what waits to connect has sent nothing. */
static void no_time_left_to_connect_is_not_sent(void **state) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t n = sizeof at;
    int full = socket(AF_INET, SOCK_STREAM, 0), taken[4];
    struct heard h = {0};
    char url[64];
    (void)state;
    assert_int_equal(bind(full, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(full, 0), 0);
    getsockname(full, (struct sockaddr *)&at, &n);
    for (u32 i = 0; i < 4; i++) {
        taken[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        (void)connect(taken[i], (struct sockaddr *)&at, sizeof at);
    }
    struct server s = {.port = ntohs(at.sin_port)};
    struct outbound_request r = request_to(&s, "POST", SL("body"), url);
    r.connect_ms = 300;
    call_and_wait(&r, &h);
    assert_int_equal(h.end, OUTBOUND_NOT_SENT);
    heard_free(&h);
    for (u32 i = 0; i < 4; i++) close(taken[i]);
    close(full);
}

/* ---- what is said, and what is kept */

static void a_request_says_what_it_was_given(void **state) {
    static const struct step ok[] = {{OK_REPLY, KEEP, 0}};
    const char *headers[] = {"Idempotency-Key: k1",
                             "X-Empty: ",
                             "Content-Type: application/json",
                             "Content-Length: 9",
                             "Expect: 100-continue",
                             "Transfer-Encoding: chunked",
                             NULL};
    struct server s;
    struct heard h = {0};
    char url[64];
    (void)state;
    setenv("http_proxy", "http://127.0.0.1:1", 1);
    setenv("ALL_PROXY", "http://127.0.0.1:1", 1);
    server_open(&s, ok, 1);
    struct outbound_request r = request_to(&s, "PATCH", SL("{}"), url);
    r.headers = headers;
    call_and_wait(&r, &h);
    assert_int_equal(h.end, OUTBOUND_ANSWERED);
    char host[64];
    snprintf(host, sizeof host, "PATCH /path HTTP/1.1\r\nHost: 127.0.0.1:%u\r\n", s.port);
    assert_true(strncmp(s.last.p, host, strlen(host)) == 0);
    assert_non_null(strstr(s.last.p, "\r\nIdempotency-Key: k1\r\n"));
    assert_non_null(strstr(s.last.p, "\r\nX-Empty:\r\n"));
    assert_non_null(strstr(s.last.p, "\r\nContent-Length: 2\r\n"));
    assert_non_null(strstr(s.last.p, "\r\nUser-Agent: hapax/"));
    assert_null(strstr(s.last.p, "Expect"));
    assert_null(strstr(s.last.p, "Transfer-Encoding"));
    assert_null(strstr(s.last.p, "Accept-Encoding"));
    assert_non_null(strstr(s.last.p, "\r\n\r\n{}"));
    heard_free(&h);
    r = request_to(&s, "POST", SL(""), url);
    r.verbatim_head = true;
    call_and_wait(&r, &h);
    char all[128];
    snprintf(all, sizeof all, "POST /path HTTP/1.1\r\nHost: 127.0.0.1:%u\r\nContent-Length: 0\r\n\r\n", s.port);
    assert_string_equal(s.last.p, all);
    heard_free(&h);
    kit_close_world(NULL);
    server_close(&s);
    kit_open_world(NULL);
    unsetenv("http_proxy");
    unsetenv("ALL_PROXY");
}

static void a_large_body_arrives_whole_and_without_asking_first(void **state) {
    static const struct step ok[] = {{OK_REPLY, KEEP, 0}};
    struct server s;
    struct heard h = {0};
    char url[64], *body = mem_alloc(3u << 20);
    (void)state;
    memset(body, 'b', 3u << 20);
    server_open(&s, ok, 1);
    struct outbound_request r = request_to(&s, "POST", slice_of(body, 3u << 20), url);
    call_and_wait(&r, &h);
    assert_int_equal(h.end, OUTBOUND_ANSWERED);
    assert_null(strstr(s.last.p, "Expect"));
    assert_true(s.last.len > 3u << 20);
    assert_memory_equal(s.last.p + s.last.len - 1 - (3u << 20), body, 3u << 20);
    kit_close_world(NULL);
    server_close(&s);
    kit_open_world(NULL);
    heard_free(&h);
    mem_free(body);
}

static void of_an_answer_head_and_body_are_kept_up_to_their_bounds(void **state) {
    static const struct step steps[] = {
        {"HTTP/1.1 200 OK\r\nX-One: a\r\nX-Folded: b\r\n  c\r\nX-Bad: \x01\r\nContent-Encoding: "
         "gzip\r\nContent-Length: 100000\r\n\r\n",
         KEEP, 100000},
        {OK_REPLY, KEEP, 0},
        {"HTTP/1.1 200 OK\r\n\r\n", CLOSE, 20u << 20},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nX-Trailer: t\r\n\r\n", KEEP, 0},
    };
    struct server s;
    struct heard h = {0};
    char url[64];
    (void)state;
    server_open(&s, steps, 4);
    struct outbound_request r = request_to(&s, "POST", SL("body"), url);
    r.answer_max = 1000;
    call_and_wait(&r, &h);
    assert_int_equal(h.end, OUTBOUND_ANSWERED);
    assert_true(h.truncated);
    assert_int_equal(h.body.len, 1001);
    assert_string_equal(h.head.p, "X-One: a\r\nX-Folded: b c\r\nContent-Encoding: gzip\r\nContent-Length: 100000\r\n");
    heard_free(&h);
    r.answer_max = 2;
    call_and_wait(&r, &h);
    assert_false(h.truncated);
    assert_string_equal(h.body.p, "hi");
    assert_int_equal(s.connections, 1); /* what was too long was read to its end */
    heard_free(&h);
    call_and_wait(&r, &h); /* one that does not stop */
    assert_int_equal(h.end, OUTBOUND_ANSWERED);
    assert_int_equal(h.status, 200);
    assert_true(h.truncated);
    heard_free(&h);
    call_and_wait(&r, &h);
    assert_string_equal(h.head.p, "Transfer-Encoding: chunked\r\n");
    heard_free(&h);
    kit_close_world(NULL);
    server_close(&s);
    kit_open_world(NULL);
}

static void what_would_be_a_header_too_many_is_refused(void **state) {
    static const struct step ok[] = {{OK_REPLY, KEEP, 0}};
    static const char *const bad[] = {"X: a\r\nY: b", "X: a\nY: b", "X: \x7f", "no colon", ": none", NULL};
    struct server s;
    char url[64];
    (void)state;
    server_open(&s, ok, 1);
    for (u32 i = 0; bad[i]; i++) {
        const char *headers[] = {bad[i], NULL};
        struct heard h = {0};
        struct outbound_request r = request_to(&s, "POST", SL("x"), url);
        r.headers = headers;
        call_and_wait(&r, &h);
        assert_int_equal(h.end, OUTBOUND_NOT_SENT);
        heard_free(&h);
    }
    struct heard h = {0};
    struct outbound_request r = request_to(&s, "GET / HTTP/1.1\r\nX:", SL(""), url);
    call_and_wait(&r, &h);
    assert_int_equal(h.end, OUTBOUND_NOT_SENT);
    heard_free(&h);
    kit_close_world(NULL);
    server_close(&s);
    kit_open_world(NULL);
    assert_int_equal(s.requests, 0);
}

static void calls_are_bounded_and_one_that_ends_makes_room_for_the_next(void **state) {
    static const struct step ok[] = {{OK_REPLY, KEEP, 0}};
    struct server s;
    struct heard h[65] = {{0}};
    char url[64];
    (void)state;
    server_open(&s, ok, 1);
    struct outbound_request r = request_to(&s, "POST", SL("x"), url);
    for (u32 i = 0; i < 64; i++) call_begin(&r, &h[i]);
    assert_null(outbound_call(kit.out, &r, on_heard, &h[64], 0));
    loop_run(kit.loop);
    for (u32 i = 0; i < 64; i++) {
        assert_int_equal(h[i].end, OUTBOUND_ANSWERED);
        heard_free(&h[i]);
    }
    call_and_wait(&r, &h[64]);
    heard_free(&h[64]);
    kit_close_world(NULL);
    server_close(&s);
    kit_open_world(NULL);
    assert_int_equal(s.requests, 65);
}

/* One that was begun, and one that waits for its answer, `later` than anything happened to it. */
static void cancel_two(i64 later_us) {
    static const struct step hangs[] = {{"", HANG, 0}};
    struct server s;
    struct heard gone = {0}, h = {0};
    char url[64];
    server_open(&s, hangs, 1);
    struct outbound_request r = request_to(&s, "POST", SL("x"), url);
    outbound_cancel(outbound_call(kit.out, &r, on_heard, &gone, 0));
    struct outbound_call *c = outbound_call(kit.out, &r, on_heard, &gone, 0);
    r.total_ms = 200;
    call_and_wait(&r, &h);
    for (i64 since = clock_mono_us(); clock_mono_us() - since < later_us;) {
    }
    outbound_cancel(c);
    assert_int_equal(gone.count, 0);
    heard_free(&h);
    kit_close_world(NULL);
    server_close(&s);
    kit_open_world(NULL);
}

static void a_call_that_is_cancelled_is_not_told(void **state) {
    (void)state;
    cancel_two(0);
}

/* As a broker that stops, or is told other rules, does with what has not been answered: outside of any turn of libcurl's, which asks
 * once more all the same whether it may go on. */
static void a_call_that_waits_for_its_answer_is_cancelled_at_any_time(void **state) {
    (void)state;
    cancel_two(20000);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, kit_open_world, kit_close_world)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_get_on_a_connection_that_dies_is_sent_once),
        cmocka_unit_test(a_post_with_a_body_on_a_connection_that_dies_is_sent_once),
        cmocka_unit_test(a_large_body_on_a_connection_that_dies_is_sent_once),
        cmocka_unit_test(a_post_without_a_body_on_a_connection_that_dies_is_sent_once),
        TEST(bodies_use_a_connection_again_and_requests_without_one_do_not),
        cmocka_unit_test(how_a_call_ends),
        cmocka_unit_test(an_answer_that_does_not_come_in_time_is_broken),
        TEST(whoever_refuses_was_sent_nothing),
        TEST(no_time_left_to_connect_is_not_sent),
        TEST(a_request_says_what_it_was_given),
        TEST(a_large_body_arrives_whole_and_without_asking_first),
        TEST(of_an_answer_head_and_body_are_kept_up_to_their_bounds),
        TEST(what_would_be_a_header_too_many_is_refused),
        TEST(calls_are_bounded_and_one_that_ends_makes_room_for_the_next),
        TEST(a_call_that_is_cancelled_is_not_told),
        TEST(a_call_that_waits_for_its_answer_is_cancelled_at_any_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
