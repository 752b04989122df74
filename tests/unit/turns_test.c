/* What one turn does is bounded, and so is a reply: pages of lists, deliveries, parts of long requests, payloads that are compared, a
 * file that comes into force. Work is counted, and time is what looks at the clock cost. */
#include "unit/broker_world.h"

#include "broker/broker_priv.h"
#include "broker/queue_rules.h"

#undef fail                   /* cmocka's */
#define respond reply_respond /* the world has its own */
#include "broker/call.h"
#undef respond

enum { REPLY_MOST = 16 << 20, MANY = 12 };

static u32 times_said(const char *part) {
    u32 n = 0;
    for (const char *at = w.body.p; (at = strstr(at, part)); at++) n++;
    return n;
}

/* Messages whose payloads are all `c`. */
static void send_large(const char *queue, char c, size_t bytes, u32 count) {
    struct buf payload = {0};
    char line[64], key[16];
    snprintf(line, sizeof line, "POST /v1/queues/%s/messages", queue);
    while (payload.len < bytes) buf_char(&payload, c);
    for (u32 i = 0; i < count; i++) {
        snprintf(key, sizeof key, "k%u", i);
        assert_int_equal(request(line, key, buf_slice(&payload), NULL), 202);
    }
    buf_free(&payload);
}

struct pages {
    u32 count, shown, most; /* most: items of the longest */
};

/* All of a list, with the cursor of each page's end; each item once says `each`. */
static struct pages read_pages(const char *path, const char *each) {
    struct pages p = {0};
    char line[256];
    snprintf(line, sizeof line, "GET %s", path);
    for (bool more = true; more; p.count++) {
        assert_true(p.count < 1000);
        assert_int_equal(submit(line, NULL, SL(""), NULL), 200);
        assert_true(w.body.len <= REPLY_MOST);
        u32 here = times_said(each);
        p.shown += here;
        if (here > p.most) p.most = here;
        const char *next = strstr(w.body.p, "\"next_cursor\":\"");
        more = next != NULL;
        if (!more) continue;
        next += sizeof "\"next_cursor\":\"" - 1;
        snprintf(line, sizeof line, "GET %s&cursor=%.*s", path, (int)strcspn(next, "\""), next);
    }
    return p;
}

/* ---- pages */

static void a_page_of_large_messages_ends_with_its_time_and_loses_none(void **state) {
    (void)state;
    send_large("q", '"', 300000, MANY);
    w.us_a_look = 1500; /* three looks, of a page's 4 ms */
    struct pages p = read_pages("/v1/queues/q/messages?state=pending&limit=1000", "\"id\":");
    assert_int_equal(p.shown, MANY);
    assert_in_range(p.most, 1, 4);
    p = read_pages("/v1/queues/q/messages?accepted_since=1h&limit=1000", "\"id\":");
    assert_int_equal(p.shown, MANY);
    assert_in_range(p.most, 1, 4);
    w.us_a_look = 0;
    p = read_pages("/v1/queues/q/messages?state=pending&limit=1000", "\"id\":");
    assert_int_equal(p.count, 1);
}

static void a_short_list_comes_whole_however_slow_the_machine_is(void **state) {
    (void)state;
    send_many("q", "k", 20);
    w.us_a_look = 10000;
    assert_int_equal(read_pages("/v1/queues/q/messages?state=pending", "\"id\":").count, 1);
    assert_int_equal(read_pages("/v1/queues?limit=100", "\"created_at\"").count, 1);
    assert_int_equal(call("POST /v1/queues/q/receive?max=20", ""), 200);
    assert_int_equal(times_said("\"token\""), 20);
}

static void no_page_is_longer_than_a_reply_may_be(void **state) {
    (void)state;
    send_large("q", 1, 480000, 8); /* six bytes each in a JSON text: 23 MB */
    struct pages p = read_pages("/v1/queues/q/messages?state=pending&limit=1000", "\"id\":");
    assert_int_equal(p.shown, 8);
    assert_int_equal(p.most, 5);
    p = read_pages("/v1/queues/q/messages?accepted_since=1h&limit=1000", "\"id\":");
    assert_int_equal(p.shown, 8);
    assert_int_equal(p.most, 5);
    assert_int_equal(call("PUT /v1/queues/r", "{\"semantics\":\"at_least_once\"}"), 201);
    struct buf payload = {0};
    while (payload.len < 480000) buf_char(&payload, 1);
    for (u32 i = 0; i < 8; i++)
        assert_int_equal(request("POST /v1/queues/r/messages", "k", buf_slice(&payload), NULL), 202);
    buf_free(&payload);
    p = read_pages("/v1/queues/r/keys?key=k", "\"id\":");
    assert_int_equal(p.shown, 8);
    assert_int_equal(p.most, 5);
}

static void queues_with_long_rules_are_listed_in_several_pages(void **state) {
    (void)state;
    struct buf rules = {0};
    char line[64];
    enum { QUEUES = 500 };
    buf_lit(&rules, "{\"schema\":{\"enum\":{");
    for (u32 i = 0; i < 60; i++) {
        buf_printf(&rules, "%s\"f%u\":[", i ? "," : "", i);
        for (u32 j = 0; j < 14; j++) buf_printf(&rules, "%s\"v%u-%020u\"", j ? "," : "", j, j);
        buf_char(&rules, ']');
    }
    buf_lit(&rules, "}}}");
    for (u32 i = 0; i < QUEUES; i++) {
        snprintf(line, sizeof line, "PUT /v1/queues/q%u", i);
        assert_int_equal(submit(line, NULL, buf_slice(&rules), NULL), 201);
        if (i % 50 == 0) work();
    }
    buf_free(&rules);
    work();
    struct pages p = read_pages("/v1/queues?limit=1000", "\"created_at\"");
    assert_int_equal(p.shown, QUEUES);
    assert_true(p.count > 1);
    w.us_a_look = 500;
    p = read_pages("/v1/queues?limit=1000", "\"created_at\"");
    assert_int_equal(p.shown, QUEUES);
    assert_in_range(p.most, 1, 20);
}

/* ---- deliveries */

static void a_receive_of_large_messages_ends_with_its_time_and_leases_no_more_than_it_gives(void **state) {
    (void)state;
    u32 got = 0, replies = 0;
    send_large("q", '"', 300000, MANY);
    for (w.us_a_look = 4500; got < MANY; replies++) {
        assert_int_equal(call("POST /v1/queues/q/receive?max=1000", ""), 200);
        assert_in_range(times_said("\"token\""), 1, 4);
        got += times_said("\"token\"");
    }
    assert_true(replies >= 3);
    assert_int_equal(call("GET /v1/queues/q", ""), 200);
    assert_said("\"leased\":12");
}

static void no_receive_is_longer_than_a_reply_may_be(void **state) {
    (void)state;
    u32 got = 0;
    for (send_large("q", 1, 480000, 8); got < 8; got += times_said("\"token\"")) {
        assert_int_equal(call("POST /v1/queues/q/receive?max=1000", ""), 200);
        assert_true(w.body.len <= REPLY_MOST);
        assert_true(times_said("\"token\"") > 0);
    }
    assert_int_equal(got, 8);
}

static void results_that_repeat_do_not_make_a_batch_longer_than_a_reply_may_be(void **state) {
    (void)state;
    struct buf text = {0};
    assert_int_equal(send("q", "k", "x"), 202);
    assert_int_equal(call("POST /v1/queues/q/receive", ""), 200);
    buf_printf(&text, "{\"token\":\"%s\",\"result\":\"", w.token);
    for (u32 i = 0; i < 480000; i++) buf_lit(&text, "\\u0001");
    buf_lit(&text, "\"}");
    assert_int_equal(request("POST /v1/ack", NULL, buf_slice(&text), NULL), 200);
    buf_reset(&text);
    for (u32 i = 0; i < 8; i++) buf_lit(&text, "{\"key\":\"k\",\"payload\":\"x\"}\n");
    assert_int_equal(request("POST /v1/queues/q/batch", NULL, buf_slice(&text), NULL), 200);
    assert_true(w.body.len <= REPLY_MOST);
    assert_int_equal(times_said("\"outcome\":\"duplicate\""), 8);
    assert_int_equal(times_said("\"result_omitted\":true"), 3);
    buf_free(&text);
}

/* ---- parts of long requests */

static void assert_pending(u32 count) {
    struct queue_info q;
    u16 queue;
    assert_true(core_queue_find(w.broker->core, SL("q"), &queue));
    core_queue_info(w.broker->core, w.broker->now, queue, &q);
    assert_int_equal(q.ready, count);
}

static void a_turn_whose_requests_took_long_leaves_the_rest_of_a_batch_to_the_next(void **state) {
    (void)state;
    struct buf lines = {0};
    for (u32 i = 0; i < 4; i++) buf_printf(&lines, "{\"key\":\"k%u\",\"payload\":\"x\"}\n", i);
    w.us_a_look = 15000; /* each line takes all that a turn has time for */
    u32 answers = w.answers;
    assert_int_equal(submit("POST /v1/queues/q/batch", NULL, buf_slice(&lines), NULL), 0);
    assert_pending(1);
    work();
    assert_pending(1);
    /* Who was passed over comes before who is new. */
    assert_int_equal(submit("POST /v1/queues/q/batch", NULL, buf_slice(&lines), NULL), 0);
    assert_pending(1);
    work();
    assert_pending(2);
    for (u32 i = 0; w.answers < answers + 2; i++) {
        assert_true(i < 20);
        work();
    }
    assert_pending(4);
    buf_free(&lines);
}

/* ---- what is compared */

static void put_members(struct buf *out, u32 count, u32 value, bool backwards) {
    buf_reset(out);
    buf_char(out, '{');
    for (u32 i = 0; i < count; i++)
        buf_printf(out, "%s\"member-%u\":%u", i ? "," : "", backwards ? count - 1 - i : i, value);
    buf_char(out, '}');
}

static void a_large_payload_is_not_read_again_for_each_that_is_in_conflict_with_it(void **state) {
    (void)state;
    enum { MEMBERS = 6000 };
    struct buf payload = {0};
    const struct payload_view *before = &w.broker->scratch->other_view;
    assert_int_equal(call("PUT /v1/queues/q", "{\"fingerprint\":\"json\"}"), 201);
    put_members(&payload, MEMBERS, 1, false);
    assert_true(payload.len > 65536);
    assert_int_equal(request("POST /v1/queues/q/messages", "k", buf_slice(&payload), NULL), 202);
    put_members(&payload, MEMBERS, 2, false);
    assert_int_equal(request("POST /v1/queues/q/messages", "k", buf_slice(&payload), NULL), 422);
    assert_int_equal(before->work, MEMBERS);
    assert_int_equal(request("POST /v1/queues/q/messages", "k", buf_slice(&payload), NULL), 422);
    assert_int_equal(before->work, 0);
    assert_said("member-5");
    /* Other rules say something else of it. */
    assert_int_equal(call("PUT /v1/queues/q", "{\"fingerprint\":{\"only\":[\"none\"]}}"), 200);
    assert_int_equal(request("POST /v1/queues/q/messages", "k", buf_slice(&payload), NULL), 202);
    assert_said("\"outcome\":\"duplicate\"");
    assert_int_equal(call("PUT /v1/queues/q", "{\"fingerprint\":\"json\"}"), 200);
    assert_int_equal(request("POST /v1/queues/q/messages", "k", buf_slice(&payload), NULL), 422);
    put_members(&payload, MEMBERS, 1, true);
    assert_int_equal(request("POST /v1/queues/q/messages", "k", buf_slice(&payload), NULL), 202);
    assert_said("\"outcome\":\"duplicate\"");
    buf_free(&payload);
}

/* ---- a file */

static const struct queue_config *rules_of_queue(const char *name) {
    u16 queue;
    assert_true(core_queue_find(w.broker->core, slice_str(name), &queue));
    return queue_rules_of(w.broker, queue)->config;
}

static void rules_of_queues_a_file_lets_go_are_not_read_anew(void **state) {
    (void)state;
    reload("queues: {a: {window: 2h, key: 'o:${id}'}, b: {deliver: {url: 'https://there.example/'}}, "
           "c: {deliver: {url: 'https://there.example/', sign: {secrets: "
           "['whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz']}}}}\n");
    const struct queue_config *a = rules_of_queue("a"), *b = rules_of_queue("b"), *c = rules_of_queue("c");
    reload("auto_create: true\n");
    assert_ptr_equal(rules_of_queue("a"), a);
    assert_ptr_equal(rules_of_queue("b"), b);
    assert_ptr_not_equal(rules_of_queue("c"), c); /* the file had its secret, and has it no more */
    assert_int_equal(send("a", NULL, "{\"id\":1}"), 202);
    assert_int_equal(call("GET /v1/queues/a", ""), 200);
    assert_said("\"window\":\"2h\"");
    assert_said("\"origin\":\"auto\"");
    assert_null(strstr(w.body.p, "defined_at"));
    reload("queues: {a: {window: 3h}}\n");
    reload("auto_create: true\n");
    assert_int_equal(call("DELETE /v1/queues/b", ""), 204);
    restart();
    assert_int_equal(call("GET /v1/queues/a", ""), 200);
    assert_said("\"window\":\"3h\"");
}

static void what_a_file_changes_in_a_queue_is_compared_before_it_comes_into_force(void **state) {
    (void)state;
    struct config *config;
    struct errbuf err = {{0}};
    struct buf errors = {0};
    reload("queues: {a: {window: 1h}, b: {window: 1h}, c: {}}\n");
    assert_int_equal(config_parse(SL("queues: {a: {window: 2h}, b: {window: 1h}, c: {}, d: {}}\n"), "hapax.yaml",
                                  &(struct config_use){0}, &config, &errors),
                     ST_OK);
    config_queues_compare(broker_config(w.broker), config);
    struct queue_config *a = config->queues.at[0];
    assert_ptr_equal(a->former, rules_of_queue("a"));
    assert_true(slice_eq(a->differences, SL("window: 1h -> 2h\n")));
    assert_null(config->queues.at[1]->former);
    assert_null(config->queues.at[3]->former);
    a->differences = SL("as it was compared");
    assert_int_equal(broker_configure(w.broker, w.t, config, "test", SL(""), &err), ST_OK);
    work();
    assert_int_equal(call("GET /v1/audit?what=queue_put", ""), 200);
    assert_said("\"changes\":\"as it was compared\"");
}

#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        T(a_page_of_large_messages_ends_with_its_time_and_loses_none),
        T(a_short_list_comes_whole_however_slow_the_machine_is),
        T(no_page_is_longer_than_a_reply_may_be),
        T(queues_with_long_rules_are_listed_in_several_pages),
        T(a_receive_of_large_messages_ends_with_its_time_and_leases_no_more_than_it_gives),
        T(no_receive_is_longer_than_a_reply_may_be),
        T(results_that_repeat_do_not_make_a_batch_longer_than_a_reply_may_be),
        T(a_turn_whose_requests_took_long_leaves_the_rest_of_a_batch_to_the_next),
        T(a_large_payload_is_not_read_again_for_each_that_is_in_conflict_with_it),
        T(rules_of_queues_a_file_lets_go_are_not_read_anew),
        T(what_a_file_changes_in_a_queue_is_compared_before_it_comes_into_force),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
