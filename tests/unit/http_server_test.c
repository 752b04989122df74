/* What a client of the server sees: order, framing, errors, deadlines, endings. */
#include "http_harness.h"

#include <malloc.h>
#include <sys/resource.h>

#include "http_corpus.h"

_Static_assert(BODY_LIMIT == HTTP_CORPUS_LIMIT, "the corpus counts on it");

/* ---- order and release */

static void pipelined_requests_are_answered_in_order_on_one_connection(void **state) {
    (void)state;
    start(NULL);
    struct client *c = dial();
    struct buf all = {0};
    for (int i = 0; i < 500; i++) buf_printf(&all, "POST /e HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n=%04d", i);
    say(c, buf_slice(&all));
    WAIT_FOR(replies(c) == 500 && has(c, "=0499"));
    const char *at = c->got.p;
    for (int i = 0; i < 500; i++) {
        char text[16];
        snprintf(text, sizeof text, "=%04d", i);
        at = memmem(at, (size_t)(c->got.p + c->got.len - at), text, 5);
        assert_non_null(at);
    }
    assert_int_equal(stats().requests, 500);
    buf_free(&all);
}

static void requests_cut_anywhere_are_answered_the_same(void **state) {
    (void)state;
    start(NULL);
    static const slice two =
        SL("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nfirst"
           "POST /b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nsec\r\n3\r\nond\r\n0\r\n\r\n"
           "GET /third HTTP/1.1\r\nHost: a\r\n\r\n");
    struct client *c = dial();
    for (size_t cut = 0; cut <= two.n; cut++) {
        size_t before = replies(c);
        say(c, slice_of(two.p, cut));
        WAIT_FOR(stats().bytes_in == cut * two.n + cut);
        say(c, slice_of(two.p + cut, two.n - cut));
        WAIT_FOR(replies(c) == before + 3 && c->got.len >= 6 && memcmp(c->got.p + c->got.len - 6, "/third", 6) == 0);
        assert_int_equal(count_of(&c->got, "\r\n\r\nfirstHTTP"), cut + 1);
        assert_int_equal(count_of(&c->got, "\r\n\r\nsecondHTTP"), cut + 1);
    }
    assert_int_equal(stats().requests, 3 * (two.n + 1));
}

static void a_reply_waits_for_its_position_and_holds_back_those_behind_it(void **state) {
    (void)state;
    start(NULL);
    struct client *c = dial(), *other = dial();
    get(c, "/first");
    get(c, "/park?10");
    get(c, "/park?20");
    get(c, "/last");
    get(other, "/park?15");
    WAIT_FOR(has(c, "/first") && saw("/last") && count_of(&seen, "/park") == 3);
    quiesce();
    assert_int_equal(replies(c), 1);
    http_release(server, 0, 9);
    quiesce();
    assert_int_equal(replies(c), 1);
    http_release(server, 0, 10);
    WAIT_FOR(replies(c) == 2);
    quiesce();
    assert_int_equal(replies(c), 2);
    assert_int_equal(replies(other), 0);
    http_release(server, 0, 20);
    WAIT_FOR(replies(c) == 4 && replies(other) == 1 && has(c, "/last"));
    get(c, "/park?20"); /* already durable */
    WAIT_FOR(replies(c) == 5);
}

static void replies_of_several_streams_wait_each_for_its_own_and_leave_in_request_order(void **state) {
    (void)state;
    start(NULL);
    struct client *c = dial(), *d = dial();
    get(c, "/park?10");
    get(c, "/other?10");
    get(c, "/park?20");
    get(d, "/other?10");
    WAIT_FOR(count_of(&seen, "/park") == 2 && count_of(&seen, "/other") == 2);
    http_release(server, OTHER_STREAM, 10);
    WAIT_FOR(replies(d) == 1);
    quiesce();
    assert_int_equal(replies(c), 0);
    http_release(server, 0, 10);
    WAIT_FOR(replies(c) == 2);
    quiesce();
    assert_int_equal(replies(c), 2);
    http_release(server, 0, 20);
    WAIT_FOR(replies(c) == 3);
}

static void a_held_stream_keeps_its_replies_back_until_the_hold_is_lifted(void **state) {
    (void)state;
    start(NULL);
    struct client *c = dial(), *behind = dial(), *other = dial(), *health = dial();
    get(c, "/park?10");
    get(behind, "/other?5");
    get(behind, "/park?5");
    get(behind, "/plain");
    WAIT_FOR(saw("/plain") && count_of(&seen, "/park") == 2);
    http_hold(server, 0, true);
    http_release(server, 0, 10);
    http_release(server, OTHER_STREAM, 5);
    get(other, "/other?5");
    get(health, "/healthz");
    WAIT_FOR(replies(behind) == 1 && replies(other) == 1 && replies(health) == 1);
    get(health, "/park?1"); /* durable long ago, and held all the same */
    WAIT_FOR(count_of(&seen, "/park") == 3);
    quiesce();
    assert_int_equal(replies(c) + replies(behind) + replies(health), 2);
    http_hold(server, 0, false);
    WAIT_FOR(replies(c) == 1 && replies(behind) == 3 && replies(health) == 2);
    http_hold(server, 0, true);
    get(c, "/park?20");
    http_release(server, 0, 20);
    WAIT_FOR(count_of(&seen, "/park") == 4);
    quiesce();
    assert_int_equal(replies(c), 1);
    http_hold(server, 0, false);
    WAIT_FOR(replies(c) == 2);
}

/* Released in the same turn, but not yet written when the hold comes. */
static void a_hold_calls_back_replies_released_but_not_written(void **state) {
    (void)state;
    start(NULL);
    struct client *c = dial();
    get(c, "/park?10");
    WAIT_FOR(saw("/park"));
    http_release(server, 0, 10);
    http_hold(server, 0, true);
    quiesce();
    assert_int_equal(c->got.len, 0);
    http_hold(server, 0, false);
    WAIT_FOR(replies(c) == 1);
}

static void a_hold_drops_a_connection_whose_reply_waits_in_a_full_socket(void **state) {
    (void)state;
    start(NULL);
    struct client *stuck = dial(), *slow = dial();
    stuck->deaf = slow->deaf = true;
    http_release(server, 0, 1);
    get(stuck, "/big-parked?30000000");
    get(slow, "/big?30000000");
    WAIT_FOR(saw("/big[") && saw("/big-parked"));
    fill_sockets();
    http_hold(server, 0, true);
    stuck->deaf = slow->deaf = false;
    WAIT_FOR(stuck->eof && slow->got.len > 30000000);
    assert_true(stuck->got.len < 30000000);
}

static void the_handler_ends_its_turn_before_any_of_its_replies_leaves(void **state) {
    (void)state;
    start(NULL);
    struct client *c = dial();
    get(c, "/one");
    WAIT_FOR(replies(c) == 1);
    assert_true(turns >= 1);
    assert_int_equal(bytes_out_at_turn_end, 0);
}

/* ---- answering later */

static void requests_behind_one_answered_later_wait_for_it(void **state) {
    (void)state;
    start(NULL);
    struct client *c = dial();
    get(c, "/before");
    get(c, "/later");
    get(c, "/after");
    get(c, "/later");
    get(c, "/end");
    WAIT_FOR(waiting_count == 1 && has(c, "/before"));
    quiesce();
    assert_false(saw("/after"));
    reply_to(waiting[--waiting_count], 200, SL("late-one"), 0, 0);
    WAIT_FOR(has(c, "late-one") && has(c, "/after") && waiting_count == 1);
    assert_false(saw("/end"));
    reply_to(waiting[--waiting_count], 200, SL("late-two"), 0, 0);
    WAIT_FOR(has(c, "/end"));
    assert_int_equal(replies(c), 5);
    assert_int_equal(gone_count, 0);
}

static void answering_one_connection_from_anothers_request_never_reenters_the_handler(void **state) {
    (void)state;
    start(NULL);
    struct client *a = dial(), *b = dial();
    get(a, "/later");
    get(a, "/next");
    WAIT_FOR(waiting_count == 1);
    respond_to_waiting = true;
    get(b, "/trigger");
    WAIT_FOR(has(a, "late") && has(a, "/next") && has(b, "/trigger"));
    assert_int_equal(deepest, 1);
}

/* The answer and the end of input come in one turn: the requests read before it still count. */
static void requests_behind_a_late_answer_survive_the_end_of_input(void **state) {
    (void)state;
    start(NULL);
    struct client *a = dial(), *b = dial();
    get(a, "/later");
    get(a, "/next");
    get(a, "/later");
    WAIT_FOR(waiting_count == 1);
    quiesce();
    respond_to_waiting = true;
    get(b, "/trigger");
    end(a);
    WAIT_FOR(a->eof);
    assert_true(has(a, "late") && has(a, "/next"));
    assert_int_equal(gone_count, 1); /* the second one, which nobody will wait for */
}

static bool probed;

static void answer_timer(uv_timer_t *t) {
    reply_to(waiting[--waiting_count], 200, SL("from a timer"), 0, 0);
    uv_close((uv_handle_t *)t, NULL);
}

/* Runs right after polling, before the server's own handle: handles started later run first. */
static void probe_written(uv_check_t *h) {
    if (waiting_count) return;
    probed = true;
    bytes_out_at_turn_end = stats().bytes_out;
    uv_close((uv_handle_t *)h, NULL);
}

static void a_reply_made_in_a_timer_leaves_before_the_loop_sleeps(void **state) {
    (void)state;
    start(NULL);
    struct client *c = dial();
    get(c, "/later");
    WAIT_FOR(waiting_count == 1);
    static uv_timer_t timer;
    static uv_check_t probe;
    probed = false;
    uv_timer_init(&loop, &timer);
    uv_timer_start(&timer, answer_timer, 1, 0);
    uv_check_init(&loop, &probe);
    uv_check_start(&probe, probe_written);
    WAIT_FOR(probed);
    assert_true(bytes_out_at_turn_end > 0);
    WAIT_FOR(has(c, "from a timer"));
}

/* Send until nothing more is taken, or `most` bytes. */
static size_t stuff(struct client *c, size_t most) {
    char *junk = mem_alloc(65536);
    memset(junk, 'x', 65536);
    size_t sent = 0;
    for (int idle = 0; idle < 20 && sent < most;) {
        ssize_t n = client_send(c, junk, most - sent < 65536 ? most - sent : 65536);
        idle = n > 0 ? 0 : idle + 1;
        if (n > 0) sent += (size_t)n;
        pump();
    }
    mem_free(junk);
    return sent;
}

static void input_behind_a_waiting_request_is_bounded_and_its_client_still_watched(void **state) {
    (void)state;
    start(&(struct http_limits){.head_ms = 40});
    for (int reset = 0; reset < 2; reset++) {
        struct client *c = dial();
        u64 before = stats().bytes_in;
        get(c, "/later");
        WAIT_FOR(waiting_count == 1);
        size_t sent =
            stuff(c, reset ? 64 << 20 : 128 << 10); /* an end of input is seen only where it fits the window */
        assert_true(reset ? sent < 64 << 20 : sent == 128 << 10);
        quiesce();
        assert_true(stats().bytes_in - before < (66 << 10)); /* the rest waits in the kernel */
        assert_int_equal(gone_count, reset);
        hang_up(c, reset);
        WAIT_FOR(gone_count == (size_t)reset + 1 && stats().connections == 0);
    }
}

/* ---- clients that leave */

static void a_waiting_request_whose_client_leaves_is_gone(void **state) {
    (void)state;
    start(NULL);
    for (int reset = 0; reset < 2; reset++) {
        struct client *c = dial();
        get(c, "/later");
        get(c, "/never");
        WAIT_FOR(waiting_count == 1);
        hang_up(c, reset);
        WAIT_FOR(gone_count == (size_t)reset + 1 && stats().connections == 0);
        assert_int_equal(waiting_count, 0);
    }
    assert_false(saw("/never"));
}

static void whole_requests_before_the_end_of_input_are_answered_and_the_rest_is_forgotten(void **state) {
    (void)state;
    start(NULL);
    struct client *c = dial();
    say(c, SL("GET /one HTTP/1.1\r\nHost: a\r\n\r\nPOST /two HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhell"));
    end(c);
    WAIT_FOR(c->eof);
    assert_true(has(c, "/one"));
    assert_int_equal(replies(c), 1);
    assert_false(saw("/two"));

    c = dial();
    say(c, SL("POST /three HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n"));
    end(c);
    WAIT_FOR(c->eof);
    assert_int_equal(c->got.len, 0);
    assert_false(saw("/three"));
    WAIT_FOR(stats().connections == 0);
}

static void parked_replies_still_leave_after_the_client_closed_its_side(void **state) {
    (void)state;
    start(NULL);
    struct client *c = dial();
    get(c, "/park?5");
    get(c, "/behind");
    end(c);
    WAIT_FOR(saw("/behind"));
    quiesce();
    assert_false(c->eof);
    http_release(server, 0, 5);
    WAIT_FOR(c->eof);
    assert_int_equal(replies(c), 2);
}

static void a_receipt_is_told_once_whether_its_reply_was_written(void **state) {
    (void)state;
    start(NULL);
    struct client *c = dial();
    get(c, "/receipt?1");
    get(c, "/receipt?2");
    get(c, "/plain");
    get(c, "/receipt?3");
    WAIT_FOR(count_of(&seen, "/receipt") == 3);
    assert_int_equal(fates_true + fates_false, 0);
    http_release(server, 0, 2);
    WAIT_FOR(replies(c) == 3);
    assert_int_equal(fates_true, 2);
    assert_int_equal(fates_false, 0);
    hang_up(c, true);
    WAIT_FOR(stats().connections == 0);
    assert_int_equal(fates_false, 1);
    http_release(server, 0, 100);
    quiesce();
    assert_int_equal(fates_true + fates_false, 3);
}

static void receipts_under_one_position_are_told_each(void **state) {
    (void)state;
    start(NULL);
    struct client *c = dial();
    for (int i = 1; i <= 40; i++) {
        char target[32];
        snprintf(target, sizeof target, "/fated?%d", i);
        get(c, target);
    }
    WAIT_FOR(count_of(&seen, "/fated") == 40);
    http_release(server, 0, FATED_AFTER);
    WAIT_FOR(replies(c) == 40);
    assert_int_equal(fates_true, 40);
}

/* Replies of one size, each with a receipt, to a client that does not read, until the socket is full. The server gives
 * up; what the client then finds in its socket tells which replies were begun, and the receipts must say the same. What is
 * sealed counts as begun: it cannot be taken back. */
static void a_reply_stuck_behind_a_full_socket_is_not_written(void **state) {
    (void)state;
    start(&(struct http_limits){.write_ms = 200});
    struct client *c = dial();
    get(c, "/fat?1");
    WAIT_FOR(replies(c) == 1 && c->got.len > 1024);
    size_t size = c->got.len, sent = 1;
    c->deaf = true;
    while (stats().bytes_out == sent * size) {
        for (int i = 0; i < 100; i++) {
            char target[32];
            snprintf(target, sizeof target, "/fat?%zu", ++sent);
            get(c, target);
        }
        WAIT_FOR(stats().requests == sent);
        for (int i = 0; i < 3; i++) pump();
        assert_true(sent < RECEIPTS_MAX - 100);
    }
    WAIT_FOR(stats().connections == 0);
    c->deaf = false;
    WAIT_FOR(c->eof);
    size_t begun = (c->got.len + size - 1) / size, sealed = SEALED_MOST / size + 1;
    assert_true(fates_true >= begun && fates_true <= begun + (SEALED_MOST ? sealed : 0));
    assert_int_equal(fates_true + fates_false, sent);
}

/* Requests that were read but not yet handled, because the replies before them wait for the client, count as received.
 */
static void requests_held_back_by_unread_replies_survive_the_end_of_input(void **state) {
    (void)state;
    start(NULL);
    struct client *c = dial();
    c->deaf = true;
    struct buf many = {0};
    for (int i = 0; i < 60; i++) buf_lit(&many, "GET /big?300000 HTTP/1.1\r\nHost: a\r\n\r\n");
    say(c, buf_slice(&many));
    end(c);
    WAIT_FOR(stats().bytes_in == many.len);
    quiesce();
    assert_true(count_of(&seen, "/big") < 60);
    c->deaf = false;
    WAIT_FOR(c->eof);
    assert_int_equal(count_of(&c->got, "HTTP/1.1 200 "), 60);
    buf_free(&many);
}

/* ---- forms of replies */

static void head_is_answered_like_get_without_the_body(void **state) {
    (void)state;
    start(NULL);
    struct client *c = dial();
    say(c, SL("HEAD /path HTTP/1.1\r\nHost: a\r\n\r\nGET /path HTTP/1.1\r\nHost: a\r\n\r\n"));
    WAIT_FOR(has(c, "\r\n\r\n/path"));
    size_t n = c->got.len - 5;
    assert_int_equal(n % 2, 0);
    assert_memory_equal(c->got.p, c->got.p + n / 2, n / 2);
    assert_true(has(c, "Content-Length: 5\r\n"));
}

static void replies_without_content_carry_no_length(void **state) {
    (void)state;
    start(NULL);
    struct client *c = dial();
    get(c, "/status?204");
    get(c, "/status?304");
    get(c, "/end");
    WAIT_FOR(has(c, "/end"));
    assert_int_equal(count_of(&c->got, "Content-Length"), 1);
    assert_false(has(c, "\r\n\r\ntext"));
}

static void http_1_0_closes_unless_asked_to_stay(void **state) {
    (void)state;
    start(NULL);
    struct client *c = dial();
    say(c, SL("GET /stay HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
    WAIT_FOR(has(c, "/stay"));
    assert_true(has(c, "Connection: keep-alive\r\n"));
    say(c, SL("GET /go HTTP/1.0\r\n\r\nGET /never HTTP/1.0\r\n\r\n"));
    WAIT_FOR(c->eof);
    assert_true(has(c, "Connection: close\r\n"));
    assert_false(saw("/never"));
}

static void nothing_is_answered_after_a_reply_that_closes(void **state) {
    (void)state;
    start(NULL);
    struct client *c = dial(), *d = dial();
    get(c, "/close");
    get(c, "/never");
    say(d, SL("GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\nGET /never HTTP/1.1\r\nHost: a\r\n\r\n"));
    WAIT_FOR(c->eof && d->eof);
    assert_int_equal(replies(c) + replies(d), 2);
    assert_true(has(c, "Connection: close\r\n") && has(d, "Connection: close\r\n"));
    assert_false(saw("/never"));
}

static void a_content_type_cannot_write_header_lines(void **state) {
    (void)state;
    start(NULL);
    struct client *c = dial();
    get(c, "/inject");
    WAIT_FOR(replies(c) == 1);
    assert_false(has(c, "Evil"));
}

/* ---- 100-continue */

static void continue_is_said_only_when_the_body_is_wanted_and_missing(void **state) {
    (void)state;
    start(NULL);
    struct client *c = dial();
    say(c, SL("POST /x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"));
    WAIT_FOR(has(c, "HTTP/1.1 100 Continue\r\n\r\n"));
    say(c, SL("hello"));
    WAIT_FOR(has(c, "\r\n\r\nhello"));

    c = dial();
    say(c, SL("POST /x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello"));
    WAIT_FOR(has(c, "\r\n\r\nhello"));
    say(c, SL("POST /x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n"));
    WAIT_FOR(has(c, "100 Continue"));
    say(c, SL("2\r\nyo\r\n0\r\n\r\n"));
    WAIT_FOR(has(c, "\r\n\r\nyo"));
    say(c, SL("POST /x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 0\r\n\r\n"));
    WAIT_FOR(replies(c) == 4);
    u64 in = stats().bytes_in;
    slice begun = SL("POST /x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nbe");
    say(c, begun);
    WAIT_FOR(stats().bytes_in == in + begun.n);
    say(c, SL("gunPOST /x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n5\r"));
    WAIT_FOR(has(c, "\r\n\r\nbegun"));
    say(c, SL("\nagain\r\n0\r\n\r\n"));
    WAIT_FOR(has(c, "\r\n\r\nagain"));
    assert_int_equal(count_of(&c->got, "100 Continue"), 1);

    c = dial();
    say(c, SL("POST /x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1048577\r\n\r\n"));
    WAIT_FOR(c->eof);
    assert_true(has(c, "HTTP/1.1 413 "));
    assert_int_equal(replies(c), 1);
}

static slice smuggled = SL("GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n");

static void an_unwanted_body_is_not_read_and_its_request_answered_from_the_head(void **state) {
    (void)state;
    start(NULL);
    static const char *const bodies[] = {"Content-Length: 500000\r\n\r\n", "Content-Length: 5\r\n\r\nhello",
                                         "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n",
                                         "Transfer-Encoding: chunked\r\n\r\nffff\r\nhel"};
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        struct client *c = dial();
        get(c, "/before");
        say(c, SL("POST /unwanted HTTP/1.1\r\nHost: a\r\n"));
        say(c, slice_str(bodies[i]));
        say(c, smuggled);
        WAIT_FOR(c->eof);
        assert_int_equal(replies(c), 2);
        assert_true(has(c, "Connection: close\r\n"));
        assert_false(has(c, "100 Continue"));
    }
    assert_false(saw("/smuggled"));
    struct client *c = dial();
    say(c, SL("POST /unwanted HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"));
    get(c, "/after");
    WAIT_FOR(replies(c) == 2);
}

static void continue_does_not_overtake_an_earlier_reply(void **state) {
    (void)state;
    start(NULL);
    struct client *c = dial();
    get(c, "/park?7");
    say(c, SL("POST /x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"));
    WAIT_FOR(saw("/park"));
    quiesce();
    assert_int_equal(c->got.len, 0);
    http_release(server, 0, 7);
    WAIT_FOR(has(c, "HTTP/1.1 100 Continue\r\n\r\n"));
    assert_memory_equal(c->got.p, "HTTP/1.1 200 OK", 15);
    say(c, SL("hello"));
    WAIT_FOR(has(c, "\r\n\r\nhello"));
}

/* ---- refusals */

static void expect_refusal(const struct http_case *t, struct client *c) {
    char line[32];
    snprintf(line, sizeof line, "HTTP/1.1 %d ", t->status);
    if (!has(c, line) || !has(c, "Connection: close\r\n")) fail_msg("%s: no refusal with %d", t->name, t->status);
    if (count_of(&c->got, "HTTP/1.1 ") - count_of(&c->got, "HTTP/1.1 200 ") != 1)
        fail_msg("%s: answered twice", t->name);
    if (saw("/smuggled")) fail_msg("%s: a request got through behind it", t->name);
    const char *refusal = memmem(c->got.p, c->got.len, line, strlen(line));
    slice rest = slice_of(refusal + 1, (size_t)(c->got.p + c->got.len - refusal - 1));
    if (memmem(rest.p, rest.n, "HTTP/1.1 ", 9)) fail_msg("%s: something was said after the refusal", t->name);
}

static void run_corpus(bool byte_by_byte) {
    for (size_t i = 0; i < HTTP_CORPUS_COUNT; i++) {
        const struct http_case *t = &http_corpus[i];
        client_count = 0;
        struct client *c = dial();
        for (size_t at = 0; byte_by_byte && at < t->bytes.n && !c->eof; at++) {
            say(c, slice_of(t->bytes.p + at, 1));
            pump();
        }
        if (!byte_by_byte) say(c, t->bytes);
        if (t->status)
            say(c, smuggled);
        else
            end(c);
        WAIT_FOR(c->eof);
        if (t->status)
            expect_refusal(t, c);
        else if (count_of(&c->got, "HTTP/1.1 200 ") == 0 || replies(c) > 2)
            fail_msg("%s: not answered", t->name);
        forget(c);
    }
    client_count = 0;
    WAIT_FOR(stats().connections == 0);
}

static void every_framing_doubt_is_refused_once_and_ends_the_connection(void **state) {
    (void)state;
    start(NULL);
    run_corpus(false);
}

static void every_framing_doubt_is_refused_however_slowly_it_comes(void **state) {
    (void)state;
    start(NULL);
    run_corpus(true);
}

static void a_refusal_stands_in_line_behind_earlier_replies(void **state) {
    (void)state;
    start(NULL);
    struct client *c = dial();
    get(c, "/park?3");
    say(c, SL("nonsense\r\n\r\n"));
    WAIT_FOR(saw("/park"));
    quiesce();
    assert_int_equal(c->got.len, 0);
    http_release(server, 0, 3);
    WAIT_FOR(c->eof);
    assert_int_equal(replies(c), 2);
    assert_memory_equal(c->got.p, "HTTP/1.1 200 ", 13);
    assert_true(has(c, "HTTP/1.1 400 "));
}

/* A reset would destroy the refusal on its way to a client that has not read it yet. */
static void a_client_still_sending_is_refused_without_a_reset(void **state) {
    (void)state;
    start(NULL);
    struct client *c = dial();
    say(c, SL("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3145728\r\n\r\n"));
    WAIT_FOR(has(c, "too_large"));
    assert_true(has(c, "HTTP/1.1 413 "));
    assert_int_equal(stuff(c, 3 << 20), 3 << 20);
    end(c);
    WAIT_FOR(c->eof && stats().connections == 0);
    assert_int_equal(replies(c), 1);
}

static void too_long_lines_and_sections_get_their_own_status(void **state) {
    (void)state;
    start(NULL);
    struct buf b = {0};
    struct client *c = dial(), *d = dial();
    buf_lit(&b, "GET /");
    while (b.len < 9000) buf_char(&b, 'a');
    say(c, buf_slice(&b));
    WAIT_FOR(c->eof);
    assert_true(has(c, "HTTP/1.1 414 "));
    buf_reset(&b);
    buf_lit(&b, "GET / HTTP/1.1\r\nHost: a\r\n");
    while (b.len < 17000) buf_lit(&b, "X-Filler: 0123456789012345678901234567890123456789\r\n");
    buf_add(&b, "Y: ", 3);
    say(d, buf_slice(&b));
    WAIT_FOR(d->eof);
    assert_true(has(d, "HTTP/1.1 431 "));
    buf_free(&b);
}

static void close_inside(slice path) {
    struct client *a = dial(), *b = dial();
    get(b, "/later");
    WAIT_FOR(waiting_count == 1);
    u64 before = stats().bytes_in;
    struct buf head = {0};
    buf_printf(&head, "POST %.*s HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhel", (int)path.n, path.p);
    say(a, buf_slice(&head));
    WAIT_FOR(stats().bytes_in == before + head.len);
    close_in_handler = true;
    say(a, SL("lo"));
    WAIT_FOR(a->eof && b->eof);
    server = NULL;
    buf_free(&head);
}

/* ---- replies that go on */

static void feed_on(struct http_conn *conn, const char *text, u64 after) {
    assert_true(http_feed(conn, slice_str(text), (struct http_after){.position = after}));
}

static void a_feed_goes_on_until_it_ends_and_the_next_request_is_answered_then(void **state) {
    (void)state;
    start(&(struct http_limits){.idle_ms = 50, .write_ms = 50});
    struct client *c = dial(), *idle = dial();
    get(c, "/feed");
    get(c, "/next");
    WAIT_FOR(waiting_count == 1 && has(c, "\r\n\r\n"));
    assert_true(has(c, "Transfer-Encoding: chunked\r\n"));
    assert_false(has(c, "Content-Length") || has(c, "Connection: "));
    WAIT_FOR(idle->eof); /* the idle deadline has passed meanwhile */
    assert_false(c->eof);
    feed_on(waiting[0], "one", 0);
    WAIT_FOR(has(c, "3\r\none\r\n"));
    feed_on(waiting[0], "", 0); /* which says nothing, and ends nothing */
    feed_on(waiting[0], "two two two two ", 0);
    WAIT_FOR(has(c, "10\r\ntwo two two two \r\n"));
    assert_false(saw("/next"));
    http_feed_end(waiting[--waiting_count]);
    WAIT_FOR(has(c, "\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n") && has(c, "/next"));
    assert_int_equal(gone_count, 0);
}

static void a_feed_to_an_old_client_ends_with_its_connection(void **state) {
    (void)state;
    start(NULL);
    struct client *c = dial();
    say(c, SL("GET /feed HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
    WAIT_FOR(waiting_count == 1 && has(c, "\r\n\r\n"));
    assert_true(has(c, "Connection: close\r\n"));
    assert_false(has(c, "chunked"));
    feed_on(waiting[0], "plain", 0);
    WAIT_FOR(has(c, "\r\n\r\nplain"));
    assert_false(c->eof);
    http_feed_end(waiting[--waiting_count]);
    WAIT_FOR(c->eof);
    assert_true(c->got.len > 5 && memcmp(c->got.p + c->got.len - 5, "plain", 5) == 0);
}

static void a_feed_asked_for_by_head_is_only_its_head(void **state) {
    (void)state;
    start(NULL);
    struct client *c = dial();
    say(c, SL("HEAD /feed HTTP/1.1\r\nHost: a\r\n\r\n"));
    get(c, "/next");
    WAIT_FOR(has(c, "/next"));
    assert_int_equal(replies(c), 2);
    assert_true(has(c, "chunked\r\n\r\nHTTP/1.1 200"));
}

static void what_a_feed_says_waits_for_its_position(void **state) {
    (void)state;
    start(NULL);
    struct client *c = dial();
    get(c, "/feed");
    WAIT_FOR(waiting_count == 1);
    feed_on(waiting[0], "settled", 3);
    feed_on(waiting[0], "not yet", 4);
    quiesce();
    assert_false(has(c, "settled"));
    http_release(server, 0, 3);
    WAIT_FOR(has(c, "settled"));
    quiesce();
    assert_false(has(c, "not yet"));
    http_release(server, 0, 4);
    WAIT_FOR(has(c, "not yet"));
    hang_up(c, false);
    WAIT_FOR(gone_count == 1 && waiting_count == 0);
}

static void a_client_that_does_not_read_its_feed_is_dropped_within_a_bound(void **state) {
    (void)state;
    start(NULL);
    struct client *slow = dial(), *quick = dial();
    static char piece[16384];
    memset(piece, 'e', sizeof piece);
    slow->deaf = true;
    get(slow, "/feed");
    WAIT_FOR(waiting_count == 1);
    be_patient();
    u64 most = 0;
    while (http_feed(waiting[0], slice_of(piece, sizeof piece), (struct http_after){0}) &&
           still_patient("the drop", __LINE__)) {
        if (stats().buffered > most) most = stats().buffered;
        get(quick, "/quick");
        size_t answered = replies(quick);
        WAIT_FOR(replies(quick) > answered);
    }
    waiting_count--;
    assert_true(most <= HTTP_FEED_UNSENT_MAX + 1024);
    WAIT_FOR(stats().connections == 1);
    assert_int_equal(gone_count, 0); /* it was told by the answer already */
    assert_int_equal(stats().timeouts, 1);
    slow->deaf = false;
    WAIT_FOR(slow->eof);
}

static void a_server_closed_inside_a_request_tells_its_feed(void **state) {
    (void)state;
    start(NULL);
    close_inside(SL("/feed"));
    assert_int_equal(gone_count, 2);
}

/* ---- limits */

static void a_slow_reader_neither_blocks_others_nor_makes_the_server_hoard(void **state) {
    (void)state;
    start(NULL);
    struct client *slow = dial(), *quick = dial();
    slow->deaf = true;
    struct buf many = {0};
    for (int i = 0; i < 100; i++) buf_lit(&many, "GET /big?300000 HTTP/1.1\r\nHost: a\r\n\r\n");
    say(slow, buf_slice(&many)); /* at once: what has been read already must wait too */
    buf_free(&many);
    WAIT_FOR(saw("/big"));
    for (int i = 0; i < 50; i++) {
        get(quick, "/quick");
        WAIT_FOR(replies(quick) == (size_t)i + 1);
    }
    assert_true(count_of(&seen, "/big") < 60); /* what the kernel buffers, and 1 MiB */
    slow->deaf = false;
    WAIT_FOR(replies(slow) == 100 && slow->got.len > 30000000);
    get(slow, "/more");
    WAIT_FOR(has(slow, "/more"));
}

static void a_client_that_takes_nothing_is_dropped(void **state) {
    (void)state;
    start(&(struct http_limits){.write_ms = 60});
    struct client *c = dial();
    c->deaf = true;
    get(c, "/big?30000000");
    WAIT_FOR(stats().connections == 1);
    WAIT_FOR(stats().connections == 0);
    assert_int_equal(stats().timeouts, 1);
}

static void an_unfinished_head_times_out_with_408(void **state) {
    (void)state;
    start(&(struct http_limits){.head_ms = 50});
    struct client *c = dial();
    get(c, "/one");
    say(c, SL("GET /two HTT"));
    WAIT_FOR(c->eof);
    assert_true(has(c, "/one"));
    assert_true(has(c, "HTTP/1.1 408 "));
    assert_int_equal(stats().timeouts, 1);
}

/* Its clock starts with the head's first byte, so bytes that go on trickling in do not help. */
static void a_trickled_head_times_out_all_the_same(void **state) {
    (void)state;
    start(&(struct http_limits){.head_ms = 50});
    struct client *c = dial();
    say(c, SL("GET / HTTP/1.1\r\nX: "));
    u64 last = 0;
    be_patient();
    while (!c->eof && still_patient("the timeout", __LINE__)) {
        if (uv_now(&loop) != last) say(c, SL("y")); /* once a millisecond: too few to reach the limit of size */
        last = uv_now(&loop);
        pump();
    }
    assert_true(has(c, "HTTP/1.1 408 "));
}

static void a_body_slower_than_the_limit_times_out_with_408(void **state) {
    (void)state;
    start(&(struct http_limits){.body_grace_ms = 50, .body_bytes_per_s = 1000000});
    static const slice heads[] = {SL("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n1234"),
                                  SL("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel")};
    for (size_t i = 0; i < 2; i++) {
        struct client *c = dial();
        say(c, heads[i]);
        WAIT_FOR(c->eof);
        assert_true(has(c, "HTTP/1.1 408 "));
    }
    assert_int_equal(stats().requests, 0);
}

static void idle_connections_close_and_waiting_ones_stay(void **state) {
    (void)state;
    start(&(struct http_limits){.idle_ms = 50});
    struct client *idle = dial(), *used = dial(), *poll_client = dial(), *parked = dial();
    get(poll_client, "/later");
    get(parked, "/park?9");
    get(used, "/used");
    WAIT_FOR(idle->eof && used->eof && waiting_count == 1);
    assert_int_equal(idle->got.len, 0);
    assert_int_equal(replies(used), 1);
    assert_false(poll_client->eof || parked->eof);
    http_release(server, 0, 9);
    reply_to(waiting[--waiting_count], 200, SL("late"), 0, 0);
    WAIT_FOR(has(poll_client, "late") && replies(parked) == 1);
    WAIT_FOR(poll_client->eof && parked->eof);
}

static void a_thousand_idle_connections_are_cheap(void **state) {
    (void)state;
    start(NULL);
    struct client *first = dial();
    get(first, "/warm");
    WAIT_FOR(replies(first) == 1);
    size_t before = mallinfo2().uordblks;
    for (int i = 0; i < 1000; i++) {
        struct client *c = dial();
        buf_grow(&c->got, 512); /* so that what the client keeps can be told apart from the server's share */
        get(c, "/x");
    }
    size_t clients_share = 1000 * 512;
    WAIT_FOR(stats().replies == 1001);
    for (size_t i = 0; i < client_count; i++) WAIT_FOR(replies(&clients[i]) == 1);
    size_t after = mallinfo2().uordblks;
    assert_true(after < before + clients_share + 1000 * IDLE_BYTES);
    get(first, "/still");
    WAIT_FOR(has(first, "/still"));
}

static void out_of_descriptors_nobody_spins_and_service_resumes(void **state) {
    (void)state;
    start(NULL);
    struct client *a = dial();
    get(a, "/a");
    WAIT_FOR(has(a, "/a"));
    struct client *late = dial(); /* connected, not accepted yet; the next descriptor is one too many */
    struct rlimit old, low;
    getrlimit(RLIMIT_NOFILE, &old);
    low = old;
    low.rlim_cur = (rlim_t)late->fd + 1;
    setrlimit(RLIMIT_NOFILE, &low);
    size_t rounds = 0;
    for (i64 until = clock_mono_ms() + 100; clock_mono_ms() < until; rounds++) pump();
    bool turned_away = late->eof;
    get(a, "/b");
    for (int i = 0; i < 10; i++) pump();
    setrlimit(RLIMIT_NOFILE, &old);
    assert_true(turned_away);
    assert_true(rounds < 50);
    WAIT_FOR(has(a, "/b"));
    struct client *c = dial();
    get(c, "/c");
    WAIT_FOR(has(c, "/c"));
}

/* ---- the server's own life */

static void paused_reading_leaves_requests_in_the_kernel(void **state) {
    (void)state;
    start(&(struct http_limits){.idle_ms = 800, .head_ms = 800}); /* and a tick every 201 ms */
    struct client *c = dial(), *d = dial();
    get(c, "/one");
    say(d, SL("GET /par"));
    WAIT_FOR(replies(c) == 1);
    http_server_pause_reading(server, true);
    get(c, "/two");
    say(d, SL("tial HTTP/1.1\r\nHost: a\r\n\r\n"));
    for (i64 until = clock_mono_ms() + 1100; clock_mono_ms() < until;) pump();
    assert_false(saw("/two") || saw("/partial"));
    assert_false(c->eof || d->eof); /* nor do their deadlines run */
    http_server_pause_reading(server, false);
    for (i64 until = clock_mono_ms() + 210; clock_mono_ms() < until;) continue; /* the tick comes before the bytes */
    WAIT_FOR(replies(c) == 2 && replies(d) == 1);
}

static void count_closed(void *ctx) {
    (void)ctx;
    closed_calls++;
}

static void draining_closes_idle_connections_and_lets_the_others_finish(void **state) {
    (void)state;
    start(NULL);
    struct client *idle = dial(), *waits = dial(), *parked = dial(), *half = dial();
    get(idle, "/x");
    get(waits, "/later");
    get(waits, "/never");
    get(parked, "/park?4");
    say(half, SL("POST /half HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhe"));
    WAIT_FOR(replies(idle) == 1 && waiting_count == 1 && saw("/park") && stats().connections == 4);
    quiesce();
    http_server_drain(server, 60000, count_closed, NULL);
    pump();
    assert_int_equal(stats().connections, 3);
    assert_int_equal(closed_calls, 0);
    WAIT_FOR(idle->eof);
    say(half, SL("llo"));
    http_release(server, 0, 4);
    reply_to(waiting[--waiting_count], 200, SL("late"), 0, 0);
    WAIT_FOR(waits->eof && parked->eof && half->eof);
    assert_true(has(waits, "Connection: close\r\n") && has(waits, "late"));
    assert_int_equal(replies(parked), 1);
    assert_true(has(half, "hello"));
    assert_false(saw("/never"));
    for (size_t i = 0; i < client_count; i++) hang_up(&clients[i], false);
    WAIT_FOR(closed_calls == 1);
    assert_int_equal(stats().connections, 0);
}

static void draining_gives_up_after_its_grace(void **state) {
    (void)state;
    start(NULL);
    struct client *waits = dial();
    get(waits, "/later");
    WAIT_FOR(waiting_count == 1);
    http_server_drain(server, 20, count_closed, NULL);
    WAIT_FOR(closed_calls == 1);
    assert_int_equal(gone_count, 1);
    WAIT_FOR(waits->eof);
}

static void nothing_leaves_after_silence(void **state) {
    (void)state;
    start(NULL);
    struct client *parked = dial(), *waits = dial(), *stuck = dial(), *fresh = dial();
    stuck->deaf = true;
    get(parked, "/park?4");
    get(waits, "/later");
    get(stuck, "/big?30000000");
    WAIT_FOR(saw("/park") && waiting_count == 1 && saw("/big"));
    fill_sockets();
    http_server_silence(server);
    u64 out = stats().bytes_out;
    stuck->deaf = false;
    get(fresh, "/fresh");
    http_release(server, 0, 4);
    reply_to(waiting[--waiting_count], 200, SL("late"), 0, 0);
    say(parked, SL("nonsense\r\n\r\n"));
    WAIT_FOR(saw("/fresh") && stuck->eof);
    for (int i = 0; i < 20; i++) pump();
    assert_int_equal(stats().bytes_out, out);
    assert_int_equal(parked->got.len + waits->got.len + fresh->got.len, 0);
}

static void the_server_may_be_closed_from_inside_a_request_that_is_answered(void **state) {
    (void)state;
    start(NULL);
    close_inside(SL("/x"));
    assert_int_equal(gone_count, 1);
}

static void the_server_may_be_closed_from_inside_a_request_that_is_not(void **state) {
    (void)state;
    start(NULL);
    close_inside(SL("/later"));
    assert_int_equal(gone_count, 2);
}

static void a_busy_port_or_a_bad_address_is_an_error_with_words(void **state) {
    (void)state;
    start(NULL);
    struct http_server *second = http_server_new(&loop, NULL, &handler);
    struct errbuf err;
    assert_int_equal(http_server_bind(second, "127.0.0.1", http_server_port(server, 0), NULL, &err), ST_BUSY);
    assert_non_null(strstr(err.text, "127.0.0.1"));
    assert_int_equal(http_server_bind(second, "localhost", 0, NULL, &err), ST_INVALID);
    http_server_close(second);
}

static void several_addresses_are_served_by_one_server(void **state) {
    (void)state;
    struct errbuf err;
    assert_int_equal(uv_loop_init(&loop), 0);
    server = http_server_new(&loop, NULL, &handler);
    for (u32 i = 0; i < 3; i++) assert_int_equal(http_server_bind(server, "127.0.0.1", 0, NULL, &err), ST_OK);
    assert_int_equal(http_server_listen(server, &err), ST_OK);
    for (u32 i = 0; i < 3; i++) {
        struct client *c = &clients[client_count++];
        *c = (struct client){.fd = dial_port(http_server_port(server, i))};
        get(c, "/one-of-them");
        WAIT_FOR(has(c, "/one-of-them"));
    }
    assert_int_equal(stats().connections, 3);
    http_server_drain(server, PATIENCE_MS, count_closed, NULL);
    WAIT_FOR(closed_calls == 1);
}

static void ipv6_is_served_too(void **state) {
    (void)state;
    struct errbuf err;
    assert_int_equal(uv_loop_init(&loop), 0);
    server = http_server_new(&loop, NULL, &handler);
    if (http_server_bind(server, "::1", 0, NULL, &err) != ST_OK) skip(); /* no IPv6 here */
    assert_int_equal(http_server_listen(server, &err), ST_OK);
    struct client *c = &clients[client_count++];
    *c = (struct client){.fd = socket(AF_INET6, SOCK_STREAM, 0)};
    struct sockaddr_in6 to = {
        .sin6_family = AF_INET6, .sin6_port = htons(http_server_port(server, 0)), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    assert_int_equal(connect(c->fd, (struct sockaddr *)&to, sizeof to), 0);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    get(c, "/six");
    WAIT_FOR(has(c, "/six"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(pipelined_requests_are_answered_in_order_on_one_connection),
        TEST(requests_cut_anywhere_are_answered_the_same),
        TEST(a_reply_waits_for_its_position_and_holds_back_those_behind_it),
        TEST(replies_of_several_streams_wait_each_for_its_own_and_leave_in_request_order),
        TEST(a_held_stream_keeps_its_replies_back_until_the_hold_is_lifted),
        TEST(a_hold_calls_back_replies_released_but_not_written),
        TEST(a_hold_drops_a_connection_whose_reply_waits_in_a_full_socket),
        TEST(the_handler_ends_its_turn_before_any_of_its_replies_leaves),
        TEST(requests_behind_one_answered_later_wait_for_it),
        TEST(answering_one_connection_from_anothers_request_never_reenters_the_handler),
        TEST(requests_behind_a_late_answer_survive_the_end_of_input),
        TEST(a_reply_made_in_a_timer_leaves_before_the_loop_sleeps),
        TEST(input_behind_a_waiting_request_is_bounded_and_its_client_still_watched),
        TEST(a_waiting_request_whose_client_leaves_is_gone),
        TEST(whole_requests_before_the_end_of_input_are_answered_and_the_rest_is_forgotten),
        TEST(parked_replies_still_leave_after_the_client_closed_its_side),
        TEST(a_receipt_is_told_once_whether_its_reply_was_written),
        TEST(receipts_under_one_position_are_told_each),
        TEST(a_reply_stuck_behind_a_full_socket_is_not_written),
        TEST(requests_held_back_by_unread_replies_survive_the_end_of_input),
        TEST(head_is_answered_like_get_without_the_body),
        TEST(replies_without_content_carry_no_length),
        TEST(http_1_0_closes_unless_asked_to_stay),
        TEST(nothing_is_answered_after_a_reply_that_closes),
        TEST(a_content_type_cannot_write_header_lines),
        TEST(continue_is_said_only_when_the_body_is_wanted_and_missing),
        TEST(an_unwanted_body_is_not_read_and_its_request_answered_from_the_head),
        TEST(continue_does_not_overtake_an_earlier_reply),
        TEST(every_framing_doubt_is_refused_once_and_ends_the_connection),
        TEST(every_framing_doubt_is_refused_however_slowly_it_comes),
        TEST(a_refusal_stands_in_line_behind_earlier_replies),
        TEST(a_client_still_sending_is_refused_without_a_reset),
        TEST(too_long_lines_and_sections_get_their_own_status),
        TEST(a_feed_goes_on_until_it_ends_and_the_next_request_is_answered_then),
        TEST(a_feed_to_an_old_client_ends_with_its_connection),
        TEST(a_feed_asked_for_by_head_is_only_its_head),
        TEST(what_a_feed_says_waits_for_its_position),
        TEST(a_client_that_does_not_read_its_feed_is_dropped_within_a_bound),
        TEST(a_server_closed_inside_a_request_tells_its_feed),
        TEST(a_slow_reader_neither_blocks_others_nor_makes_the_server_hoard),
        TEST(a_client_that_takes_nothing_is_dropped),
        TEST(an_unfinished_head_times_out_with_408),
        TEST(a_trickled_head_times_out_all_the_same),
        TEST(a_body_slower_than_the_limit_times_out_with_408),
        TEST(idle_connections_close_and_waiting_ones_stay),
        TEST(a_thousand_idle_connections_are_cheap),
        PLAIN_TEST(out_of_descriptors_nobody_spins_and_service_resumes),
        TEST(paused_reading_leaves_requests_in_the_kernel),
        TEST(draining_closes_idle_connections_and_lets_the_others_finish),
        TEST(draining_gives_up_after_its_grace),
        TEST(nothing_leaves_after_silence),
        TEST(the_server_may_be_closed_from_inside_a_request_that_is_answered),
        TEST(the_server_may_be_closed_from_inside_a_request_that_is_not),
        TEST(a_busy_port_or_a_bad_address_is_an_error_with_words),
        TEST(several_addresses_are_served_by_one_server),
        TEST(ipv6_is_served_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
