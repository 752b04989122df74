/* What many clients at once, or greedy ones, may do to the others. */
#include "http_harness.h"

/* ---- places */

static void the_longest_idle_connection_gives_way_to_a_newcomer(void **state) {
    (void)state;
    start(&(struct http_limits){.connections_max = 3});
    struct client *a = dial(), *b = dial(), *c = dial();
    get(a, "/a");
    WAIT_FOR(has(a, "/a"));
    get(b, "/b");
    WAIT_FOR(has(b, "/b"));
    get(c, "/c");
    get(a, "/again");
    WAIT_FOR(has(a, "/again") && has(c, "/c"));
    struct client *d = dial();
    get(d, "/d");
    WAIT_FOR(has(d, "/d") && b->eof);
    get(a, "/still");
    get(c, "/still");
    WAIT_FOR(has(a, "/still") && has(c, "/still"));
    assert_int_equal(stats().evicted, 1);
    assert_int_equal(stats().refused, 0);
}

static void any_number_of_idle_connections_keeps_nobody_out(void **state) {
    (void)state;
    start(&(struct http_limits){.connections_max = 20});
    struct client *busy = dial();
    get(busy, "/later");
    WAIT_FOR(waiting_count == 1);
    for (int i = 0; i < 500; i++) dial();
    struct client *c = dial();
    get(c, "/c");
    WAIT_FOR(has(c, "/c"));
    WAIT_FOR(stats().connections == 20);
    assert_int_equal(stats().refused, 0);
    reply_to(waiting[--waiting_count], 200, SL("late"), 0, 0);
    WAIT_FOR(has(busy, "late"));
}

static void with_all_places_busy_a_newcomer_is_refused(void **state) {
    (void)state;
    start(&(struct http_limits){.connections_max = 4});
    struct client *waits = dial(), *parked = dial(), *half = dial(), *young = dial();
    get(waits, "/later");
    get(parked, "/park?7");
    say(half, SL("POST /half HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhe"));
    say(young, SL("GET /young HTTP/1.1\r\n"));
    WAIT_FOR(waiting_count == 1 && saw("/park") && stats().buffered > 70);
    struct client *c = dial();
    WAIT_FOR(c->eof);
    assert_true(has(c, "HTTP/1.1 503 ") || c->ssl); /* before the handshake there are no words */
    assert_int_equal(stats().refused, 1);
    reply_to(waiting[--waiting_count], 200, SL("late"), 0, 0);
    http_release(server, 0, 7);
    say(half, SL("llo"));
    say(young, SL("Host: a\r\n\r\n"));
    WAIT_FOR(has(waits, "late") && replies(parked) == 1 && has(half, "hello") && has(young, "/young"));
    assert_int_equal(stats().evicted, 0);
}

static void a_connection_whose_request_lies_unread_keeps_its_place(void **state) {
    (void)state;
    start(&(struct http_limits){.connections_max = 2});
    struct client *a = dial(), *b = dial();
    get(a, "/a");
    WAIT_FOR(has(a, "/a"));
    get(b, "/b");
    WAIT_FOR(has(b, "/b"));
    http_server_pause_reading(server, true);
    struct client *c = dial(); /* it is looked at first */
    get(a, "/unread");
    WAIT_FOR(b->eof);
    http_server_pause_reading(server, false);
    get(c, "/c");
    WAIT_FOR(has(a, "/unread") && has(c, "/c"));
}

static void heads_that_never_end_keep_nobody_out(void **state) {
    (void)state;
    start(&(struct http_limits){.connections_max = 2});
    struct client *a = dial(), *b = dial();
    say(a, SL("GET /a HTTP/1.1\r\n"));
    say(b, SL("GET /b HTTP/1.1\r\n"));
    WAIT_FOR(stats().bytes_in == 34);
    i64 until = clock_mono_ms() + 1100; /* longer than an honest head takes */
    WAIT_FOR(clock_mono_ms() > until);
    struct client *c = dial();
    get(c, "/c");
    WAIT_FOR(has(c, "/c") && a->eof);
    assert_false(b->eof);
}

/* ---- places by address */

#define THEM 0x7F000002u /* 127.0.0.2 */
#define US   0x7F000003u

static void all_wait(u32 from, size_t count) {
    size_t before = waiting_count;
    for (size_t i = 0; i < count; i++) get(dial_from(from), "/later");
    WAIT_FOR(waiting_count == before + count);
}

static size_t count_with(const char *text) {
    size_t n = 0;
    for (size_t i = 0; i < client_count; i++) n += has(&clients[i], text);
    return n;
}

static void an_address_that_has_all_places_gives_way_to_another(void **state) {
    (void)state;
    start(&(struct http_limits){.connections_max = 20});
    all_wait(THEM, 20);
    for (int i = 0; i < 5; i++) {
        struct client *c = dial_from(US);
        get(c, "/later");
        WAIT_FOR(count_of(&seen, "/later") == 21 + (size_t)i);
    }
    WAIT_FOR(count_with("hurried") == 5); /* their long polls were answered early, and none of ours */
    assert_int_equal(waiting_count, 20);
    assert_int_equal(stats().refused, 0);
    struct client *more = dial_from(THEM);
    WAIT_FOR(more->eof);
    assert_true(has(more, "HTTP/1.1 503 ") && has(more, "Retry-After: "));
    for (size_t i = 20; i < 25; i++) assert_false(clients[i].eof);
}

static void slow_bodies_of_an_address_with_all_places_give_way(void **state) {
    (void)state;
    start(&(struct http_limits){.connections_max = 4});
    slice part = SL("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nx");
    for (int i = 0; i < 4; i++) say(dial_from(THEM), part);
    WAIT_FOR(stats().bytes_in == 4 * part.n);
    i64 until = clock_mono_ms() + 1100; /* longer than an honest client is silent */
    WAIT_FOR(clock_mono_ms() > until);
    struct client *c = dial_from(US);
    get(c, "/c");
    WAIT_FOR(has(c, "/c") && count_with("HTTP/1.1 503 ") == 1);
}

static void what_is_worked_on_gives_way_to_nobody(void **state) {
    (void)state;
    start(&(struct http_limits){.connections_max = 4});
    at_work = true;
    all_wait(THEM, 4);
    struct client *c = dial_from(US);
    WAIT_FOR(c->eof);
    assert_true(has(c, "HTTP/1.1 503 "));
    assert_int_equal(waiting_count, 4);
    while (waiting_count) reply_to(waiting[--waiting_count], 200, SL("done"), 0, 0);
    WAIT_FOR(count_with("done") == 4);
}

static void newcomers_of_a_crowd_take_no_place_of_another_address(void **state) {
    (void)state;
    start(&(struct http_limits){.connections_max = 8});
    struct client *ours = dial_from(US);
    get(ours, "/ours");
    WAIT_FOR(has(ours, "/ours"));
    all_wait(THEM, 7);
    struct client *more = dial_from(THEM);
    WAIT_FOR(more->eof && has(more, "HTTP/1.1 503 "));
    get(ours, "/still");
    WAIT_FOR(has(ours, "/still"));
    assert_int_equal(stats().evicted, 0);
}

static void the_last_places_are_for_what_is_urgent(void **state) {
    (void)state;
    start(&(struct http_limits){.connections_max = 80}); /* two of them in reserve */
    at_work = true;
    all_wait(THEM, 60);
    for (int i = 0; i < 18; i++) say(dial_from(THEM), SL("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nx"));
    WAIT_FOR(stats().buffered > (u64)18 * 46);
    struct client *mute = dial_from(THEM), *plain = dial_from(THEM), *ops = NULL;
    get(plain, "/plain");
    WAIT_FOR(plain->eof);
    assert_true(has(plain, "HTTP/1.1 503 ") && has(plain, "Retry-After: "));
    for (int i = 0; i < 5; i++) {
        ops = dial_from(THEM);
        get(ops, "/urgent");
        WAIT_FOR(has(ops, "/urgent"));
        get(ops, "/urgent");
        WAIT_FOR(replies(ops) == 2);
    }
    WAIT_FOR(mute->eof);
    assert_true(has(mute, "HTTP/1.1 503 ")); /* whoever says nothing is told why it has to go */
    get(ops, "/plain");
    WAIT_FOR(ops->eof && has(ops, "HTTP/1.1 503 "));
    assert_false(saw("/plain"));
}

static void a_place_that_comes_free_is_for_whoever_is_in_the_reserve(void **state) {
    (void)state;
    start(&(struct http_limits){.connections_max = 40});
    all_wait(THEM, 39);
    at_work = true;
    struct client *next = dial_from(THEM);
    get(next, "/urgent");
    WAIT_FOR(has(next, "/urgent"));
    hang_up(&clients[7], false);
    WAIT_FOR(gone_count == 1);
    get(next, "/plain");
    WAIT_FOR(has(next, "/plain"));
}

static void an_address_has_no_more_connections_than_one_may(void **state) {
    (void)state;
    start(&(struct http_limits){.per_address = 3});
    all_wait(THEM, 2);
    struct client *idle = dial_from(THEM);
    get(idle, "/idle");
    WAIT_FOR(has(idle, "/idle"));
    struct client *c = dial_from(THEM);
    get(c, "/later");
    WAIT_FOR(idle->eof && waiting_count == 3);
    struct client *more = dial_from(THEM), *other = dial_from(US);
    WAIT_FOR(more->eof);
    assert_true(has(more, "HTTP/1.1 429 ") && has(more, "rate_limited") && has(more, "Retry-After: "));
    get(other, "/us");
    WAIT_FOR(has(other, "/us"));
    http_server_per_address(server, 0);
    struct client *now = dial_from(THEM);
    get(now, "/now");
    WAIT_FOR(has(now, "/now"));
}

/* ---- memory */

static void many_small_ones_of_one_address_pay_before_a_large_one_of_another(void **state) {
    (void)state;
    start(&(struct http_limits){.buffered_max = 400000});
    struct buf body = {0};
    buf_grow(&body, 80000);
    memset(body.p, 'x', 80000);
    slice head = SL("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 80000\r\n\r\n");
    struct client *large = dial_from(US);
    say(large, head);
    say(large, slice_of(body.p, 79999));
    WAIT_FOR(stats().buffered > 79999);
    for (int i = 0; i < 20; i++) {
        struct client *c = dial_from(THEM);
        say(c, head);
        say(c, slice_of(body.p, 20000));
    }
    WAIT_FOR(count_with("HTTP/1.1 503 ") > 0);
    quiesce();
    say(large, SL("x"));
    WAIT_FOR(has(large, "HTTP/1.1 200 "));
    buf_free(&body);
}

/* Of a reply of this size a good part stays with the server, whatever the kernel takes. */
#define LARGE 30000000

static void get_large(struct client *c) {
    char target[64];
    snprintf(target, sizeof target, "/big?%d", LARGE);
    get(c, target);
}

static void whoever_reads_nothing_of_the_largest_reply_pays_and_small_requests_are_served(void **state) {
    (void)state;
    start(&(struct http_limits){.buffered_max = LARGE + LARGE / 2});
    struct client *hogs[4], *small = dial();
    for (size_t i = 0; i < 4; i++) {
        hogs[i] = dial();
        hogs[i]->deaf = true;
        get_large(hogs[i]);
        WAIT_FOR(count_of(&seen, "/big") == i + 1);
        get(small, "/healthz");
        WAIT_FOR(count_of(&small->got, "/healthz") == i + 1);
        assert_true(stats().buffered <= LARGE + LARGE / 2);
    }
    assert_int_equal(count_of(&small->got, "HTTP/1.1 200 "), 4);
    assert_int_equal(stats().connections, 2); /* there is room for one of the hogs */
    size_t whole = 0;
    for (size_t i = 0; i < 4; i++) {
        hogs[i]->deaf = false;
        WAIT_FOR(hogs[i]->eof || hogs[i]->got.len > LARGE);
        whole += hogs[i]->got.len > LARGE;
    }
    assert_int_equal(whole, 1);
}

static void a_reply_being_made_counts_for_its_connection_and_the_largest_pays(void **state) {
    (void)state;
    start(&(struct http_limits){.buffered_max = 2000000});
    struct client *large = dial(), *small = dial();
    get(large, "/later");
    WAIT_FOR(waiting_count == 1);
    get(small, "/later");
    WAIT_FOR(waiting_count == 2);
    quiesce();
    u64 before = stats().buffered;
    http_conn_keeps(waiting[0], 1500000);
    http_conn_keeps(waiting[1], 50000);
    quiesce();
    assert_int_equal(stats().buffered, before + 1550000);
    assert_int_equal(gone_count, 0);
    http_conn_keeps(waiting[0], 2100000);
    WAIT_FOR(large->eof && gone_count == 1);
    assert_int_equal(stats().no_memory, 1);
    assert_in_range(stats().buffered, 50000, before + 50000);
    reply_to(waiting[--waiting_count], 200, SL("late"), 0, 0);
    WAIT_FOR(has(small, "late"));
    quiesce();
    assert_int_equal(stats().buffered, 0);
}

static void the_largest_unfinished_request_gets_503_and_the_smaller_ones_go_on(void **state) {
    (void)state;
    start(&(struct http_limits){.buffered_max = 100000});
    struct client *a = dial(), *b = dial(), *small = dial();
    struct buf body = {0};
    buf_grow(&body, 80000);
    memset(body.p, 'x', 80000);
    slice head = SL("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 80000\r\n\r\n");
    say(a, head);
    say(a, slice_of(body.p, 40000));
    say(small, SL("POST /small HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhe"));
    WAIT_FOR(stats().buffered > 2 * head.n + 40000);
    say(b, head);
    say(b, slice_of(body.p, 79999));
    WAIT_FOR(b->eof);
    assert_true(has(b, "HTTP/1.1 503 "));
    assert_true(has(b, "Retry-After: "));
    say(a, slice_of(body.p, 40000));
    say(small, SL("llo"));
    WAIT_FOR(has(a, "HTTP/1.1 200 ") && has(small, "hello"));
    buf_free(&body);
}

/* ---- a body for many */

static struct http_body *body_of(size_t n) {
    struct buf bytes = {0};
    buf_grow(&bytes, n);
    memset(bytes.p, 's', n);
    bytes.len = n;
    return http_body_take(&bytes);
}

static void respond_shared(struct http_conn *conn, struct http_body *body, u64 after) {
    http_respond(conn, &(struct http_reply){
                           .status = 200, .body = http_body_bytes(body), .shared = body, .after = {.position = after}});
}

static bool got(size_t from, size_t to, size_t n) {
    for (size_t i = from; i < to; i++)
        if (clients[i].got.len < n) return false;
    return true;
}

static bool all_got(size_t from, size_t n) {
    return got(from, client_count, n);
}

static void a_large_body_shared_by_many_replies_is_there_once(void **state) {
    (void)state;
    start(NULL);
    enum { WAITERS = 50, SIZE = 8 << 20 };
    for (int i = 0; i < WAITERS; i++) {
        struct client *c = dial();
        c->deaf = true;
        get(c, "/later");
        get(c, "/behind"); /* answered once the large one is out */
    }
    WAIT_FOR(waiting_count == WAITERS);
    quiesce();
    struct http_body *body = body_of(SIZE);
    while (waiting_count) respond_shared(waiting[--waiting_count], body, 0);
    http_body_release(body);
    quiesce();
    assert_in_range(stats().buffered, SIZE,
                    SIZE + WAITERS * (6 * 1024 + SEALED_MOST)); /* heads, and what is with a full socket */
    assert_false(saw("/behind"));
    for (int i = 0; i < WAITERS; i++) clients[i].deaf = false;
    WAIT_FOR(all_got(0, SIZE) && count_of(&seen, "/behind") == WAITERS);
    for (int i = 0; i < WAITERS; i++) {
        WAIT_FOR(has(&clients[i], "/behind"));
        assert_int_equal(replies(&clients[i]), 2);
        assert_true(memmem(clients[i].got.p, clients[i].got.len, "s/behind", 8) == NULL);
    }
    assert_int_equal(stats().buffered, 0);
}

static void a_shared_body_left_behind_by_its_readers_is_forgotten(void **state) {
    (void)state;
    start(NULL);
    struct client *stays = dial(), *leaves = dial();
    stays->deaf = leaves->deaf = true;
    get(stays, "/later");
    get(leaves, "/later");
    WAIT_FOR(waiting_count == 2);
    struct http_body *body = body_of(LARGE);
    while (waiting_count) respond_shared(waiting[--waiting_count], body, 0);
    http_body_release(body);
    quiesce();
    hang_up(leaves, true);
    WAIT_FOR(stats().connections == 1);
    assert_true(stats().buffered >= LARGE);
    hang_up(stays, true);
    WAIT_FOR(stats().connections == 0);
    assert_int_equal(stats().buffered, 0);
}

static void a_shared_body_waits_for_its_position_and_for_a_hold(void **state) {
    (void)state;
    start(NULL);
    struct client *c = dial();
    struct http_body *body = body_of(100000), *small = body_of(10);
    get(c, "/later");
    WAIT_FOR(waiting_count == 1);
    respond_shared(waiting[--waiting_count], body, 7);
    quiesce();
    assert_int_equal(c->got.len, 0);
    http_release(server, 0, 7);
    http_hold(server, 0, true);
    quiesce();
    assert_int_equal(c->got.len, 0);
    http_hold(server, 0, false);
    WAIT_FOR(c->got.len > 100000 && count_of(&c->got, "Content-Length: 100000\r\n") == 1);
    get(c, "/later");
    WAIT_FOR(waiting_count == 1);
    respond_shared(waiting[--waiting_count], small, 7); /* copied: nothing has to wait behind it */
    WAIT_FOR(has(c, "\r\n\r\nssssssssss"));
    say(c, SL("HEAD /later HTTP/1.1\r\nHost: a\r\n\r\n"));
    WAIT_FOR(waiting_count == 1);
    respond_shared(waiting[--waiting_count], body, 0);
    get(c, "/end");
    WAIT_FOR(has(c, "/end"));
    assert_true(c->got.len < 101000);
    http_body_release(body);
    http_body_release(small);
}

/* ---- a body made for one reply */

static struct buf made_of(size_t n, char c) {
    struct buf made = {0};
    buf_grow(&made, HTTP_HEAD_ROOM + n);
    memset(made.p, c, HTTP_HEAD_ROOM + n);
    made.len = HTTP_HEAD_ROOM + n;
    return made;
}

static void respond_made(struct http_conn *conn, struct buf *made, u64 after) {
    http_respond(conn, &(struct http_reply){.status = 200,
                                            .body = slice_of(made->p + HTTP_HEAD_ROOM, made->len - HTTP_HEAD_ROOM),
                                            .made = made,
                                            .after = {.position = after}});
}

/* What came after the head, and nothing else of that letter. */
static void assert_body(const struct client *c, char letter, size_t n) {
    size_t count = 0;
    char text[64] = "\r\n\r\n";
    for (size_t i = 0; i < c->got.len; i++) count += c->got.p[i] == letter;
    assert_int_equal(count, n);
    memset(text + 4, letter, 59);
    assert_non_null(memmem(c->got.p, c->got.len, text, 63));
}

static void a_body_made_for_a_reply_is_taken_with_what_leaves_before_it(void **state) {
    (void)state;
    start(NULL);
    struct client *c = dial();
    struct buf made = made_of(80000, '@');
    const char *memory = made.p;
    get(c, "/park?3"); /* unsent when the next one is answered */
    get(c, "/later");
    WAIT_FOR(waiting_count == 1);
    respond_made(waiting[--waiting_count], &made, 7);
    assert_true(made.p != memory && made.len == 0); /* not copied */
    get(c, "/park?7");
    quiesce();
    assert_int_equal(c->got.len, 0);
    http_release(server, 0, 3);
    WAIT_FOR(replies(c) == 1);
    quiesce();
    assert_null(memchr(c->got.p, '@', c->got.len));
    http_release(server, 0, 7);
    WAIT_FOR(replies(c) == 3);
    assert_body(c, '@', 80000);
    assert_int_equal(count_of(&c->got, "Content-Length: 80000\r\n"), 1);
    assert_int_equal(stats().buffered, 0);
    buf_free(&made);
}

static void a_body_made_for_a_reply_is_copied_where_taking_it_does_not_pay(void **state) {
    (void)state;
    start(NULL);
    struct client *c = dial();
    struct buf small = made_of(1000, '@'), wide = made_of(80000, '#'), kept = made_of(80000, '$');
    const char *memory[] = {small.p, wide.p, kept.p};
    get(c, "/later");
    WAIT_FOR(waiting_count == 1);
    respond_made(waiting[--waiting_count], &small, 0);
    get(c, "/later");
    WAIT_FOR(waiting_count == 1);
    buf_grow(&wide, 4 * 80000); /* it would be held for as long as somebody does not read */
    memory[1] = wide.p;
    respond_made(waiting[--waiting_count], &wide, 0);
    say(c, SL("HEAD /later HTTP/1.1\r\nHost: a\r\n\r\n"));
    WAIT_FOR(waiting_count == 1);
    respond_made(waiting[--waiting_count], &kept, 0);
    get(c, "/end");
    WAIT_FOR(has(c, "/end"));
    assert_true(small.p == memory[0] && wide.p == memory[1] && kept.p == memory[2]);
    assert_body(c, '@', 1000);
    assert_body(c, '#', 80000);
    assert_int_equal(count_of(&c->got, "Content-Length: 80000\r\n"), 2);
    assert_true(c->got.len < 82000);
    buf_free(&small);
    buf_free(&wide);
    buf_free(&kept);
}

/* ---- time: with turn_ms = 1 every slow request takes a turn's time */

static void pipeline(struct client *c, const char *target, int count) {
    struct buf all = {0};
    for (int i = 0; i < count; i++) buf_printf(&all, "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", target);
    say(c, buf_slice(&all));
    buf_free(&all);
}

static void pipelining_connections_take_turns_whatever_they_have_sent(void **state) {
    (void)state;
    start(&(struct http_limits){.turn_ms = 1});
    static const char *const targets[] = {"/slow-a", "/slow-b", "/slow-c"};
    for (int i = 0; i < 3; i++) dial();
    for (int i = 0; i < 3; i++) pipeline(&clients[i], targets[i], 20);
    size_t counts[3] = {0};
    be_patient();
    while (counts[0] + counts[1] + counts[2] < 60 && still_patient("all answers", __LINE__)) {
        size_t turns_before = turns, requests_before = (size_t)stats().requests;
        pump();
        assert_true(stats().requests - requests_before <= turns - turns_before + 1);
        for (int i = 0; i < 3; i++) counts[i] = count_of(&seen, targets[i]);
        for (int i = 0; i < 3; i++) assert_true(counts[i] + 4 >= counts[(i + 1) % 3]); /* nobody runs far ahead */
    }
    for (int i = 0; i < 3; i++) WAIT_FOR(replies(&clients[i]) == 20);
}

static void newcomers_get_their_turn_beside_those_who_pipeline(void **state) {
    (void)state;
    start(&(struct http_limits){.turn_ms = 1});
    pipeline(dial(), "/slow-many", 200);
    WAIT_FOR(saw("/slow-many"));
    for (int i = 0; i < 5; i++) {
        struct client *c = dial();
        size_t before = count_of(&seen, "/slow-many");
        get(c, "/new");
        WAIT_FOR(has(c, "/new"));
        assert_true(count_of(&seen, "/slow-many") - before <= 4);
    }
    assert_true(count_of(&seen, "/slow-many") < 200);
}

static void a_single_request_does_not_wait_for_all_who_pipeline(void **state) {
    (void)state;
    start(&(struct http_limits){.turn_ms = 1});
    struct client *single = dial();
    get(single, "/first");
    WAIT_FOR(has(single, "/first"));
    for (int i = 0; i < 40; i++) pipeline(dial(), "/slow", 20);
    WAIT_FOR(count_of(&seen, "/slow") > 100); /* each of them is known for one that has more to say */
    for (int i = 0; i < 5; i++) {
        size_t before = count_of(&seen, "/slow"), had = replies(single);
        get(single, "/single");
        WAIT_FOR(replies(single) == had + 1);
        assert_true(count_of(&seen, "/slow") - before <= 6);
    }
    assert_true(count_of(&seen, "/slow") < 40 * 20);
}

static void requests_behind_a_late_answer_take_turns_too(void **state) {
    (void)state;
    start(&(struct http_limits){.turn_ms = 1});
    struct client *c = dial(), *d = dial();
    get(c, "/later");
    pipeline(c, "/slow-c", 10);
    get(d, "/later");
    pipeline(d, "/slow-d", 10);
    WAIT_FOR(waiting_count == 2);
    quiesce();
    while (waiting_count) reply_to(waiting[--waiting_count], 200, SL("late"), 0, 0);
    WAIT_FOR(count_of(&seen, "/slow-c") == 5);
    assert_in_range(count_of(&seen, "/slow-d"), 3, 7);
    end(c); /* what waits in the server is answered all the same */
    WAIT_FOR(replies(c) == 11 && replies(d) == 11);
    WAIT_FOR(c->eof);
}

static void replies_too_many_for_one_turn_leave_in_the_next(void **state) {
    (void)state;
    start(&(struct http_limits){.turn_ms = 1});
    for (int i = 1; i <= 10; i++) {
        char target[32];
        snprintf(target, sizeof target, "/fated?%d", i);
        get(dial(), target);
    }
    WAIT_FOR(count_of(&seen, "/fated") == 10);
    receipts_take_time = true;
    http_release(server, 0, FATED_AFTER);
    be_patient();
    while (fates_true < 10 && still_patient("all receipts", __LINE__)) {
        size_t before = fates_true;
        pump();
        assert_true(fates_true - before <= 2); /* before polling, and after */
    }
    for (int i = 0; i < 10; i++) WAIT_FOR(replies(&clients[i]) == 1);
}

/* What the sockets take of these is more than a turn has time to write. The small one came last. */
static void a_small_reply_does_not_wait_for_the_large_ones_before_it(void **state) {
    (void)state;
    start(NULL);
    enum { WAITERS = 60, SIZE = 8 << 20 };
    for (int i = 0; i < WAITERS; i++) {
        struct client *c = dial();
        c->deaf = true;
        get(c, "/later");
    }
    WAIT_FOR(waiting_count == WAITERS);
    struct client *small = dial();
    get(small, "/park?7");
    WAIT_FOR(saw("/park"));
    quiesce();
    struct http_body *body = body_of(SIZE);
    while (waiting_count) respond_shared(waiting[--waiting_count], body, 6);
    http_body_release(body);
    http_release(server, 0, 6);
    http_release(server, 0, 7);
    pump();
    assert_int_equal(replies(small), 1);
    for (int i = 0; i < WAITERS; i++) clients[i].deaf = false;
    be_patient();
    while (!got(0, WAITERS, SIZE) && still_patient("the others", __LINE__)) {
        get(small, "/again"); /* and they are not kept waiting by what is small */
        pump();
    }
}

#define DEADLINE_MS 400

static struct client *half_head, *half_body, *idle;

static void go_on(void) {
    say(half_head, SL("t: a\r\n\r\n"));
    say(half_body, SL("llo"));
    get(idle, "/again");
}

static void begin_slowly(void) {
    start(&(struct http_limits){.head_ms = DEADLINE_MS, .body_grace_ms = DEADLINE_MS, .idle_ms = DEADLINE_MS});
    half_head = dial();
    half_body = dial();
    idle = dial();
    get(idle, "/once");
    WAIT_FOR(replies(idle) == 1);
    u64 before = stats().bytes_in;
    say(half_head, SL("GET /head HTTP/1.1\r\nHos"));
    say(half_body, SL("POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhe"));
    WAIT_FOR(stats().bytes_in == before + 23 + 53);
}

static void no_client_is_timed_out_while_its_bytes_lie_unread(void **state) {
    (void)state;
    begin_slowly();
    in_stall = go_on;
    char target[32];
    snprintf(target, sizeof target, "/stall?%d", 2 * DEADLINE_MS);
    get(dial(), target);
    WAIT_FOR(has(half_head, "/head") && has(half_body, "hello") && has(idle, "/again"));
}

static void no_deadline_runs_while_reading_is_paused(void **state) {
    (void)state;
    begin_slowly();
    http_server_pause_reading(server, true);
    go_on();
    i64 until = clock_mono_ms() + 2 * DEADLINE_MS;
    WAIT_FOR(clock_mono_ms() > until);
    assert_int_equal(stats().timeouts, 0);
    http_server_pause_reading(server, false);
    WAIT_FOR(has(half_head, "/head") && has(half_body, "hello") && has(idle, "/again"));
}

static void a_body_delayed_by_a_pause_has_its_time_afterwards(void **state) {
    (void)state;
    begin_slowly();
    http_server_pause_reading(server, true);
    say(half_body, SL("l"));
    i64 until = clock_mono_ms() + 2 * DEADLINE_MS;
    WAIT_FOR(clock_mono_ms() > until);
    u64 before = stats().bytes_in;
    http_server_pause_reading(server, false);
    WAIT_FOR(stats().bytes_in == before + 1);
    say(half_body, SL("lo"));
    WAIT_FOR(has(half_body, "hello"));
}

static void bytes_that_keep_coming_do_not_put_the_deadline_off(void **state) {
    (void)state;
    begin_slowly();
    i64 said_ms = 0;
    be_patient();
    while (!half_head->eof && still_patient("408", __LINE__)) {
        if (said_ms != clock_mono_ms())
            say(half_head, SL("x")); /* nearly always one is unread when the clock is looked at */
        said_ms = clock_mono_ms();
        pump();
    }
    assert_true(has(half_head, "HTTP/1.1 408 "));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(pipelining_connections_take_turns_whatever_they_have_sent),
        TEST(newcomers_get_their_turn_beside_those_who_pipeline),
        TEST(a_single_request_does_not_wait_for_all_who_pipeline),
        TEST(requests_behind_a_late_answer_take_turns_too),
        TEST(replies_too_many_for_one_turn_leave_in_the_next),
        TEST(a_small_reply_does_not_wait_for_the_large_ones_before_it),
        TEST(no_client_is_timed_out_while_its_bytes_lie_unread),
        TEST(no_deadline_runs_while_reading_is_paused),
        TEST(a_body_delayed_by_a_pause_has_its_time_afterwards),
        TEST(bytes_that_keep_coming_do_not_put_the_deadline_off),
        TEST(the_longest_idle_connection_gives_way_to_a_newcomer),
        TEST(any_number_of_idle_connections_keeps_nobody_out),
        TEST(with_all_places_busy_a_newcomer_is_refused),
        PLAIN_TEST(a_connection_whose_request_lies_unread_keeps_its_place),
        TEST(heads_that_never_end_keep_nobody_out),
        PLAIN_TEST(an_address_that_has_all_places_gives_way_to_another),
        TEST(slow_bodies_of_an_address_with_all_places_give_way),
        PLAIN_TEST(what_is_worked_on_gives_way_to_nobody),
        PLAIN_TEST(newcomers_of_a_crowd_take_no_place_of_another_address),
        TEST(the_last_places_are_for_what_is_urgent),
        TEST(a_place_that_comes_free_is_for_whoever_is_in_the_reserve),
        PLAIN_TEST(an_address_has_no_more_connections_than_one_may),
        PLAIN_TEST(many_small_ones_of_one_address_pay_before_a_large_one_of_another),
        TEST(whoever_reads_nothing_of_the_largest_reply_pays_and_small_requests_are_served),
        TEST(a_reply_being_made_counts_for_its_connection_and_the_largest_pays),
        TEST(the_largest_unfinished_request_gets_503_and_the_smaller_ones_go_on),
        TEST(a_large_body_shared_by_many_replies_is_there_once),
        TEST(a_shared_body_left_behind_by_its_readers_is_forgotten),
        TEST(a_shared_body_waits_for_its_position_and_for_a_hold),
        TEST(a_body_made_for_a_reply_is_taken_with_what_leaves_before_it),
        TEST(a_body_made_for_a_reply_is_copied_where_taking_it_does_not_pay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
