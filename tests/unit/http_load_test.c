/* What many clients at once, or greedy ones, may do to the others. */
#include "http_harness.h"

/* ---- memory */

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

static bool all_got(size_t from, size_t n) {
    for (size_t i = from; i < client_count; i++)
        if (clients[i].got.len < n) return false;
    return true;
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
    assert_in_range(stats().buffered, SIZE, SIZE + WAITERS * 1024);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(whoever_reads_nothing_of_the_largest_reply_pays_and_small_requests_are_served),
        TEST(the_largest_unfinished_request_gets_503_and_the_smaller_ones_go_on),
        TEST(a_large_body_shared_by_many_replies_is_there_once),
        TEST(a_shared_body_left_behind_by_its_readers_is_forgotten),
        TEST(a_shared_body_waits_for_its_position_and_for_a_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
