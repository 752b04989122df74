/* Events as their readers get them, on a disk in memory whose syncs and a clock whose time only the test moves. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "broker/broker.h"
#include "broker/events.h"
#include "broker/feeds.h"
#include "journal/disk_sim.h"
#include "journal/file.h"

struct reader {
    bool open, deaf;
    void *user;
    struct buf got;
};

static struct world {
    struct disk *disk;
    struct journal *journal;
    struct broker *broker;
    struct broker_time t;
    u16 status;
    u64 clock_us, us_a_look;
    u64 released;
    u64 latest; /* of what was fed: the position it must not leave before */
    u32 feeds;
    bool disk_works; /* when something was fed last, and somebody looks */
    bool look_at_disk;
    struct reader readers[FEEDS_MAX + 1];
} w;

static void respond(void *ctx, void *conn, const struct http_reply *reply) {
    (void)ctx;
    struct reader *r = conn;
    w.status = reply->status;
    if (r) r->open = reply->feed;
}

static bool feed(void *ctx, void *conn, slice bytes, u64 after) {
    (void)ctx;
    struct reader *r = conn;
    assert_true(r->open && bytes.n);
    if (r->deaf) return r->open = false;
    w.feeds++;
    if (w.look_at_disk) w.disk_works = journal_file_work(w.journal);
    if (after > w.latest) w.latest = after;
    buf_slice_add(&r->got, bytes);
    return true;
}

static void feed_end(void *ctx, void *conn) {
    (void)ctx;
    ((struct reader *)conn)->open = false;
}

static void release(void *ctx, u64 position) {
    (void)ctx;
    w.released = position;
}

static u64 now_us(void *ctx) {
    (void)ctx;
    return w.clock_us += w.us_a_look;
}

static void open_broker(void) {
    struct errbuf err;
    struct journal_file_options jo = {.disk = w.disk, .segment_bytes = 1u << 20, .manual = true};
    assert_int_equal(journal_file_open(&jo, &w.journal, &err), ST_OK);
    struct broker_options bo = {
        .journal = w.journal,
        .port = {.respond = respond, .release = release, .feed = feed, .feed_end = feed_end, .now_us = now_us}};
    journal_file_secret(w.journal, bo.secret);
    assert_int_equal(broker_open(&bo, w.t, &w.broker, &err), ST_OK);
}

/* A turn ends; nothing of it is on disk yet. */
static void turn(void) {
    w.t.mono_ms += 100;
    w.t.wall_ms += 100;
    w.clock_us += 100000;
    broker_turn_end(w.broker, w.t);
}

/* The disk has answered. */
static void synced(void) {
    while (journal_file_work(w.journal)) {
    }
    broker_durable(w.broker, w.t, journal_durable(w.journal));
    assert_true(w.latest <= w.released);
}

static void pass(i64 ms) {
    w.t.mono_ms += ms;
    w.t.wall_ms += ms;
    broker_turn_end(w.broker, w.t);
    synced();
}

/* Everything so far is on disk and has been told. */
static void settle_down(void) {
    for (int i = 0; i < 3; i++) {
        turn();
        synced();
    }
}

static void close_broker(void) {
    broker_stop(w.broker, w.t);
    broker_turn_end(w.broker, w.t);
    while (journal_file_work(w.journal)) {
    }
    broker_free(w.broker);
    journal_close(w.journal);
}

static int set_up(void **state) {
    (void)state;
    memset(&w, 0, sizeof w);
    w.disk = disk_sim_new(1, 256u << 20);
    w.t = (struct broker_time){.mono_ms = 1000, .wall_ms = 1800000000000};
    open_broker();
    settle_down();
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    close_broker();
    disk_close(w.disk);
    for (u32 i = 0; i <= FEEDS_MAX; i++) buf_free(&w.readers[i].got);
    return 0;
}

static u16 ask(enum http_method method, const char *path, const char *query, const char *name, const char *value,
               void *conn, void **user) {
    void *waits = NULL;
    struct http_field fields[] = {{slice_str(name ? name : ""), slice_str(value ? value : "")}};
    struct http_request req = {.method = method,
                               .path = slice_str(path),
                               .query = slice_str(query),
                               .fields = fields,
                               .field_count = name ? 1 : 0,
                               .body = SL("x"),
                               .body_length = 1};
    broker_request(w.broker, w.t, conn, &waits, &req);
    if (user) *user = waits;
    return w.status;
}

static void send(const char *queue, const char *key) {
    char path[64];
    snprintf(path, sizeof path, "/v1/queues/%s/messages", queue);
    u16 status = ask(HTTP_POST, path, "", "Idempotency-Key", key, NULL, NULL);
    assert_true(status == 202);
}

static struct reader *read_events(u32 i, const char *query, const char *last_id) {
    struct reader *r = &w.readers[i];
    buf_reset(&r->got);
    assert_int_equal(ask(HTTP_GET, "/v1/events", query, last_id ? "Last-Event-ID" : NULL, last_id, r, &r->user), 200);
    assert_true(r->open);
    return r;
}

static u32 count_of(const struct reader *r, const char *text) {
    u32 n = 0;
    size_t len = strlen(text);
    for (size_t i = 0; i + len <= r->got.len; i++) /* not by memmem: a sanitizer looks at all the rest each time */
        if (r->got.p[i] == text[0] && memcmp(r->got.p + i, text, len) == 0) n++;
    return n;
}

/* The last id it was told, which lives until it is read again. */
static const char *last_id(const struct reader *r) {
    static char text[64];
    const char *at = NULL, *end = r->got.p + r->got.len;
    for (const char *p = r->got.p; (p = memmem(p, (size_t)(end - p), "id: ", 4)); p += 4) at = p + 4;
    assert_non_null(at);
    size_t n = (size_t)((const char *)memchr(at, '\n', (size_t)(end - at)) - at);
    memcpy(text, at, n);
    text[n] = 0;
    return text;
}

/* ---- */

static void no_event_is_told_before_it_is_durable(void **state) {
    (void)state;
    struct reader *r = read_events(0, "", NULL);
    send("q", "k1");
    for (int i = 0; i < 5; i++) turn();
    assert_int_equal(count_of(r, "event: "), 0);
    synced();
    send("q", "k2"); /* of the next batch: it must not leave with the first */
    turn();
    assert_int_equal(count_of(r, "event: accepted"), 1);
    assert_int_equal(count_of(r, "\"key\":\"k1\""), 1);
    settle_down();
    assert_int_equal(count_of(r, "event: accepted"), 2);
}

static void readers_are_served_while_the_disk_works_and_after_replies_that_may_leave(void **state) {
    (void)state;
    struct reader *r = read_events(0, "", NULL);
    settle_down();
    send("q", "k1");
    turn();
    synced();
    turn(); /* its reply leaves with this turn, and its sender sends the next */
    assert_int_equal(count_of(r, "event: "), 0);
    send("q", "k2");
    w.look_at_disk = true;
    turn();
    assert_int_equal(count_of(r, "\"key\":\"k1\""), 1);
    assert_true(w.disk_works);
    synced();
    turn();
    assert_int_equal(count_of(r, "\"key\":\"k2\""), 0);
    assert_int_equal(broker_next_ms(w.broker, w.t), 2); /* nobody sends: they are not put off for long */
    turn();
    assert_int_equal(count_of(r, "\"key\":\"k2\""), 1);
}

static void an_event_asks_for_no_sync_and_is_told_with_the_next(void **state) {
    (void)state;
    struct reader *r = read_events(0, "", NULL);
    send("q", "k1");
    settle_down();
    send("q", "k1"); /* that it came twice is written down about a second later, and nobody waits for it */
    pass(995);
    send("q", "k2");
    pass(0);
    w.t.mono_ms += 8;
    broker_tick(w.broker, w.t);
    send("q", "k2");
    broker_turn_end(w.broker, w.t);
    assert_false(journal_file_work(w.journal));
    settle_down();
    assert_int_equal(count_of(r, "event: duplicate"), 2);
}

static void events_of_a_failed_journal_are_never_told(void **state) {
    (void)state;
    struct reader *r = read_events(0, "", NULL);
    send("q", "k1");
    turn();
    disk_sim_fail_at(w.disk, disk_sim_ops(w.disk), DISK_SIM_EIO, true);
    while (journal_file_work(w.journal)) {
    }
    assert_non_null(journal_failed(w.journal));
    broker_durable(w.broker, w.t, journal_durable(w.journal));
    for (int i = 0; i < 5; i++) turn();
    assert_int_equal(count_of(r, "event: "), 0);
}

static void a_reader_resumes_after_the_id_it_was_told_last(void **state) {
    (void)state;
    struct reader *r = read_events(0, "", NULL);
    send("q", "k1");
    settle_down();
    broker_gone(w.broker, w.t, r->user);
    send("q", "k2");
    send("q", "k3");
    settle_down();
    struct reader *again = read_events(1, "", last_id(r));
    settle_down();
    assert_int_equal(count_of(again, "event: accepted"), 2);
    assert_int_equal(count_of(again, "k1") + count_of(again, "event: gap"), 0);
    struct reader *same = read_events(2, "", last_id(again));
    settle_down();
    assert_int_equal(count_of(same, "event: "), 0);
}

static void an_id_from_before_a_restart_or_out_of_nowhere_is_a_gap(void **state) {
    (void)state;
    struct reader *r = read_events(0, "", NULL);
    send("q", "k1");
    settle_down();
    char old[64];
    snprintf(old, sizeof old, "%s", last_id(r));
    close_broker();
    w.released = w.latest = 0;
    w.t.wall_ms += 5;
    open_broker();
    settle_down();
    send("q", "k2");
    settle_down();
    struct reader *back = read_events(1, "", old);
    settle_down();
    assert_int_equal(count_of(back, "event: gap"), 1);
    assert_int_equal(count_of(back, "event: accepted"), 1); /* all there is since the restart */
    assert_true(memmem(back->got.p, back->got.len, "k2", 2) > memmem(back->got.p, back->got.len, "event: gap", 10));
    struct reader *next = read_events(2, "", last_id(back));
    settle_down();
    assert_int_equal(count_of(next, "event: "), 0);
    static const char *const nonsense[] = {"7", "x", "-", "000000000000-1", "999999999999999999999999-1"};
    for (size_t i = 0; i < sizeof nonsense / sizeof nonsense[0]; i++)
        assert_int_equal(count_of(read_events(3 + (u32)i, "", nonsense[i]), "event: gap"), 1);
}

static void note_many(u32 count) {
    for (u32 i = 0; i < count; i++) events_note(w.broker, &(struct happening){.kind = HAPPENING_ALERT, .age_ms = -1});
}

static void what_the_history_no_longer_has_is_a_gap(void **state) {
    (void)state;
    struct reader *r = read_events(0, "", NULL);
    char old[64];
    snprintf(old, sizeof old, "%s", last_id(r));
    note_many(EVENTS_KEPT + 10);
    settle_down();
    assert_int_equal(count_of(r, "event: gap"), 1);
    assert_int_equal(count_of(r, "\"missed\":65546"), 1);
    struct reader *again = read_events(1, "kind=audit", old);
    assert_int_equal(count_of(again, "event: gap"), 1);
    assert_int_equal(count_of(again, "\"missed\":10"), 1);
    send("q", "k1"); /* both go on */
    settle_down();
    assert_int_equal(count_of(r, "event: accepted"), 1);
}

static void a_filter_lets_through_what_it_names(void **state) {
    (void)state;
    struct reader *queue = read_events(0, "queue=a", NULL), *key = read_events(1, "key=k2", NULL);
    struct reader *kind = read_events(2, "kind=duplicate,audit", NULL);
    struct reader *all = read_events(3, "queue=b&key=k2&kind=accepted", NULL);
    send("a", "k1"); /* a queue that came after its reader */
    send("a", "k2");
    send("b", "k2");
    settle_down();
    assert_int_equal(ask(HTTP_POST, "/v1/queues/b/messages", "", "Idempotency-Key", "k2", NULL, NULL), 202);
    settle_down();
    assert_int_equal(count_of(queue, "event: accepted"), 2);
    assert_int_equal(count_of(key, "event: accepted"), 2);
    assert_int_equal(count_of(key, "event: duplicate"), 1);
    assert_int_equal(count_of(kind, "event: "), 1);
    assert_int_equal(count_of(all, "event: "), 1);
    struct reader unread = {0};
    assert_int_equal(ask(HTTP_GET, "/v1/events", "kind=accepted,nonsense", NULL, NULL, &unread, NULL), 400);
    assert_int_equal(ask(HTTP_GET, "/v1/events", "kind=gap", NULL, NULL, &unread, NULL), 400);
    assert_int_equal(ask(HTTP_GET, "/v1/events", "queue=..%2F", NULL, NULL, &unread, NULL), 400);
    assert_int_equal(ask(HTTP_GET, "/v1/events", "key=%00", NULL, NULL, &unread, NULL), 400);
}

static void a_silent_reader_hears_that_it_is_alive_and_where_to_resume(void **state) {
    (void)state;
    struct reader *r = read_events(0, "kind=audit", NULL);
    send("q", "k1");
    settle_down();
    assert_int_equal(count_of(r, ": keep-alive"), 0);
    for (int i = 0; i < 160; i++) turn();
    assert_int_equal(count_of(r, ": keep-alive\n"), 1);
    struct reader *again = read_events(1, "", last_id(r));
    settle_down();
    assert_int_equal(count_of(again, "event: "), 0); /* what it did not want is behind it */
}

static void readers_are_bounded_and_a_place_is_free_again_when_one_leaves(void **state) {
    (void)state;
    for (u32 i = 0; i < FEEDS_MAX; i++) read_events(i, "", NULL);
    struct reader *r = &w.readers[FEEDS_MAX];
    assert_int_equal(ask(HTTP_GET, "/v1/events", "", NULL, NULL, r, NULL), 503);
    broker_gone(w.broker, w.t, w.readers[7].user);
    w.readers[7].open = false;
    assert_int_equal(ask(HTTP_GET, "/v1/events", "", NULL, NULL, r, NULL), 200);
    w.readers[9].deaf = true;
    send("q", "k1");
    for (u32 i = 0; i < 16; i++) settle_down(); /* some are served in a turn, whose writes come after it */
    struct feeds_stats s;
    feeds_stats_get(w.broker, &s);
    assert_int_equal(s.readers, FEEDS_MAX - 1);
    assert_int_equal(s.dropped, 1);
    for (u32 i = 0; i <= FEEDS_MAX; i++)
        assert_int_equal(count_of(&w.readers[i], "event: accepted"), i == 7 || i == 9 ? 0 : 1);
    broker_drain(w.broker, w.t);
    for (u32 i = 0; i <= FEEDS_MAX; i++) assert_false(w.readers[i].open);
    struct reader late = {0};
    assert_int_equal(ask(HTTP_GET, "/v1/events", "", NULL, NULL, &late, NULL), 503);
}

static u32 who_heard(const char *what) {
    u32 heard = 0;
    for (u32 i = 0; i < FEEDS_MAX; i++) heard += count_of(&w.readers[i], what) > 0;
    return heard;
}

static void a_turn_writes_to_few_readers_and_all_are_told_soon(void **state) {
    (void)state;
    u32 before = 0, turns = 0;
    for (u32 i = 0; i < FEEDS_MAX; i++) read_events(i, "", NULL);
    send("q", "k1");
    for (u32 heard = 0; heard < FEEDS_MAX && turns < 1000; turns++) {
        turn();
        synced();
        heard = who_heard("event: accepted");
        assert_in_range(heard - before, 0,
                        40); /* a fifth of a millisecond of writes, to be done after the turn's work */
        before = heard;
    }
    assert_in_range(turns, FEEDS_MAX / 40, FEEDS_MAX / 8);
}

static void many_readers_share_a_bounded_part_of_every_turn(void **state) {
    (void)state;
    for (u32 i = 0; i < FEEDS_MAX; i++) read_events(i, "", NULL);
    note_many(2000);
    turn();
    synced();
    w.us_a_look = 10;
    u32 turns = 0, done = 0;
    for (; done < FEEDS_MAX && turns < 100000; turns++) {
        u64 before = w.clock_us;
        turn();
        assert_true(w.clock_us - before < 100000 + 10000);
        while (done < FEEDS_MAX && turns % 16 == 0 && count_of(&w.readers[done], "event: alert") == 2000) done++;
        if (turns == 400) /* nobody waits until others have all */
            for (u32 i = 0; i < FEEDS_MAX; i++) assert_true(count_of(&w.readers[i], "event: alert") > 0);
    }
    assert_int_equal(done, FEEDS_MAX);
    assert_true(turns > 100);
}

static void head_tells_the_head_and_holds_no_place(void **state) {
    (void)state;
    struct reader r = {0};
    for (u32 i = 0; i < FEEDS_MAX * 2; i++) {
        void *user = NULL;
        assert_int_equal(ask(HTTP_HEAD, "/v1/events", "queue=q&key=k", NULL, NULL, &r, &user), 200);
        assert_null(user);
    }
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(no_event_is_told_before_it_is_durable),
        TEST(readers_are_served_while_the_disk_works_and_after_replies_that_may_leave),
        TEST(an_event_asks_for_no_sync_and_is_told_with_the_next),
        TEST(events_of_a_failed_journal_are_never_told),
        TEST(a_reader_resumes_after_the_id_it_was_told_last),
        TEST(an_id_from_before_a_restart_or_out_of_nowhere_is_a_gap),
        TEST(what_the_history_no_longer_has_is_a_gap),
        TEST(a_filter_lets_through_what_it_names),
        TEST(a_silent_reader_hears_that_it_is_alive_and_where_to_resume),
        TEST(readers_are_bounded_and_a_place_is_free_again_when_one_leaves),
        TEST(a_turn_writes_to_few_readers_and_all_are_told_soon),
        TEST(many_readers_share_a_bounded_part_of_every_turn),
        TEST(head_tells_the_head_and_holds_no_place),
    };
#undef TEST
    return cmocka_run_group_tests(tests, NULL, NULL);
}
