/* Alerts: each fires for its real cause, says so everywhere, and resolves when the cause is gone; a day of ordinary traffic
 * fires none. The clock is the test's, so days pass in milliseconds. */
#include "unit/broker_world.h"

#include "broker/broker_priv.h"
#include "broker/target.h"

#define MINUTE ((i64)60 * 1000)
#define HOUR   (60 * MINUTE)
#define DAY    (24 * HOUR)

/* In steps: the broker's running time grows by a second a turn at most. Where that does not matter, days pass faster. */
static void elapse(i64 ms) {
    i64 step = ms > 2 * HOUR ? 5000 : 1000;
    for (; ms > 0; ms -= step) pass(ms < step ? ms : step);
}

/* "firing" or whatever the alert is of this queue (NULL: of the process); "ok" if it is not listed. */
static const char *alert(const char *name, const char *queue) {
    static char state[16];
    char want[256];
    assert_int_equal(call("GET /v1/alerts?all=true", ""), 200);
    if (queue)
        snprintf(want, sizeof want, "{\"name\":\"%s\",\"queue\":\"%s\",\"state\":\"", name, queue);
    else
        snprintf(want, sizeof want, "{\"name\":\"%s\",\"state\":\"", name);
    const char *at = strstr(w.body.p, want);
    if (!at) return "ok";
    at += strlen(want);
    snprintf(state, sizeof state, "%.*s", (int)strcspn(at, "\""), at);
    return state;
}

static void assert_alert(const char *name, const char *queue, const char *state) {
    const char *is = alert(name, queue);
    if (strcmp(is, state) != 0) print_error("%s is %s, not %s: %s\n", name, is, state, w.body.p);
    assert_string_equal(is, state);
}

/* It fires now, and the log, the notice and the metric say the same. */
static void assert_fires(const char *name, const char *queue) {
    char text[256];
    assert_alert(name, queue, "firing");
    snprintf(text, sizeof text, "alert alert=%s state=firing", name);
    assert_true(heard(text) >= 1);
    snprintf(text, sizeof text, "%s:%s:", name, queue ? queue : "");
    assert_non_null(w.notices.p);
    assert_non_null(strstr(w.notices.p, text));
    assert_int_equal(call("GET /metrics", ""), 200);
    for (int i = 0; i < 50 && w.status == 0; i++) pass(1);
    if (queue)
        snprintf(text, sizeof text, "hapax_alerts{name=\"%s\",queue=\"%s\"} 1\n", name, queue);
    else
        snprintf(text, sizeof text, "hapax_alerts{name=\"%s\"} 1\n", name);
    assert_said(text);
}

static void assert_names_the_key(const char *name) {
    assert_alert(name, "q", "firing");
    assert_said("\"key\":\"k\"}");
}

static void work_off(const char *queue, const char *verb, const char *more) {
    char path[64];
    snprintf(path, sizeof path, "POST /v1/queues/%s/receive", queue);
    for (;;) {
        assert_int_equal(call(path, ""), 200);
        if (strstr(w.body.p, "\"messages\":[]")) return;
        assert_int_equal(settle(verb, more), 200);
    }
}

static void dead_letters_fire_at_ten_in_a_quarter_of_an_hour_and_resolve_when_no_more_come(void **state) {
    (void)state;
    make_dead("q", 9);
    elapse(20000);
    assert_alert("dead_letters", "q", "ok");
    assert_int_equal(
        call("PUT /v1/queues/r", "{\"dead\":{\"owner\":\"ann\",\"alert\":{\"count\":3,\"within\":\"1m\"}}}"), 201);
    make_dead("r", 3);
    elapse(20000);
    assert_fires("dead_letters", "r");
    assert_int_equal(call("GET /v1/alerts", ""), 200);
    assert_said("\"value\":3,\"threshold\":3");
    assert_said("\"runbook\":\"docs/runbooks/dlq-filling.md\",\"owner\":\"ann\",\"count_1h\":1");
    elapse(3 * MINUTE);
    assert_alert("dead_letters", "r", "resolved");
    assert_int_equal(call("GET /v1/alerts", ""), 200);
    assert_string_equal(w.body.p, "{\"items\":[],\"judged\":true}");
    assert_true(heard("alert alert=dead_letters state=resolved") == 1);
    assert_string_equal(w.last_sentence, "what this alert is about is over");
    elapse(25 * HOUR);
    assert_alert("dead_letters", "r", "ok");
}

static void deaths_over_days_are_counted_too(void **state) {
    (void)state;
    assert_int_equal(call("PUT /v1/queues/r", "{\"dead\":{\"alert\":{\"count\":4,\"within\":\"2d\"}}}"), 201);
    for (int i = 0; i < 4; i++) {
        char key[32];
        assert_alert("dead_letters", "r", "ok");
        snprintf(key, sizeof key, "k%d", i);
        send("r", key, "x");
        work_off("r", "nack", ",\"class\":\"poison\"");
        elapse(5 * HOUR);
    }
    assert_fires("dead_letters", "r");
}

static void a_killed_consumer_leaves_work_that_nobody_settles(void **state) {
    (void)state;
    send("q", "k", "x");
    assert_int_equal(call("POST /v1/queues/q/receive?lease=5m", ""), 200);
    elapse(9 * MINUTE);
    assert_alert("oldest_unsettled", "q", "ok");
    elapse(2 * MINUTE); /* its lease ran out meanwhile, and it waits for its next try */
    assert_fires("oldest_unsettled", "q");
    assert_names_the_key("oldest_unsettled");
    restart();
    elapse(1000); /* at once: what was there before is looked at first */
    assert_alert("oldest_unsettled", "q", "firing");
    work_off("q", "ack", "");
    elapse(MINUTE);
    assert_alert("oldest_unsettled", "q", "resolved");
}

static void two_effect_ids_for_one_key_are_a_doubled_effect_for_a_day(void **state) {
    (void)state;
    send("q", "k", "x");
    call("POST /v1/queues/q/receive", "");
    assert_int_equal(settle("ack", ",\"effect_id\":\"e1\""), 200);
    elapse(20000);
    assert_alert("doubled_effect", "q", "ok");
    settle("ack", ",\"effect_id\":\"e2\"");
    elapse(20000);
    assert_fires("doubled_effect", "q");
    assert_names_the_key("doubled_effect");
    elapse(23 * HOUR);
    assert_alert("doubled_effect", "q", "firing");
    elapse(2 * HOUR);
    assert_alert("doubled_effect", "q", "resolved");
}

static void a_doubled_effect_is_told_for_its_day_whatever_restarts(void **state) {
    (void)state;
    send("q", "k", "x");
    call("POST /v1/queues/q/receive", "");
    assert_int_equal(settle("ack", ",\"effect_id\":\"e1\""), 200);
    settle("ack", ",\"effect_id\":\"e2\"");
    elapse(20000);
    assert_fires("doubled_effect", "q");
    elapse(HOUR);
    restart();
    elapse(20000);
    assert_fires("doubled_effect", "q");
    assert_names_the_key("doubled_effect");
    assert_int_equal(call("GET /metrics", ""), 200);
    for (int i = 0; i < 50 && w.status == 0; i++) pass(1);
    assert_said("hapax_doubled_effects_total{queue=\"q\"} 0\n"); /* counters begin with the process */
    elapse(22 * HOUR);
    restart();
    elapse(20000);
    assert_alert("doubled_effect", "q", "firing");
    elapse(2 * HOUR);
    assert_alert("doubled_effect", "q", "resolved");
    restart();
    elapse(20000);
    assert_alert("doubled_effect", "q", "ok");
}

static void a_repeat_after_its_window_is_told(void **state) {
    (void)state;
    assert_int_equal(call("PUT /v1/queues/q", "{\"window\":\"10m\"}"), 201);
    send("q", "k", "x");
    work_off("q", "ack", "");
    elapse(9 * MINUTE);
    send("q", "k", "x"); /* late, but known */
    elapse(2 * MINUTE);
    assert_alert("late_replays", "q", "ok");
    send("q", "k", "x");
    assert_said("\"duplicate\":false");
    elapse(20000);
    assert_fires("late_replays", "q");
}

static void a_source_whose_webhooks_are_refused_is_told_until_they_are_taken(void **state) {
    (void)state;
    reload("sources:\n"
           "  good: {queue: q, verify: {scheme: none}}\n"
           "  bad: {queue: q, verify: {scheme: github, secrets: [changed-on-one-side]}}\n"
           "queues: {q: {key: '${id}'}}\n");
    for (int i = 0; i < 19; i++) assert_int_equal(call("POST /in/bad", "{}"), 401);
    elapse(MINUTE);
    assert_alert("ingest_refused", "q", "ok");
    for (int i = 0; i < 2; i++) assert_int_equal(call("POST /in/bad", "{}"), 401);
    for (int i = 0; i < 100; i++) call("POST /in/good", "{\"id\":1}");
    elapse(MINUTE);
    assert_fires("ingest_refused", "q");
    elapse(11 * MINUTE);
    assert_alert("ingest_refused", "q", "resolved");
}

static void a_source_whose_secret_was_wrong_from_the_first_day_is_told(void **state) {
    (void)state;
    reload("sources:\n"
           "  bad: {queue: q, verify: {scheme: github, secrets: [wrong-from-day-one]}}\n"
           "  lost: {queue: nobody-made-it, verify: {scheme: github, secrets: [wrong-from-day-one]}}\n"
           "queues: {q: {key: '${id}'}}\n");
    for (int i = 0; i < 30; i++) assert_int_equal(call("POST /in/bad", "{}"), 401);
    elapse(MINUTE);
    assert_fires("ingest_refused", "q");
    for (int i = 0; i < 30; i++) assert_int_equal(call("POST /in/lost", "{}"), 401);
    elapse(MINUTE);
    assert_alert("ingest_refused", NULL, "firing");
    elapse(11 * MINUTE);
    assert_alert("ingest_refused", "q", "resolved");
    assert_alert("ingest_refused", NULL, "resolved");
}

static void keys_may_come_again_where_that_is_the_rule(void **state) {
    (void)state;
    assert_int_equal(call("PUT /v1/queues/q", "{\"semantics\":\"at_least_once\",\"window\":\"10m\"}"), 201);
    for (int i = 0; i < 3; i++) {
        send("q", "k", "x");
        work_off("q", "ack", "");
        elapse(12 * MINUTE);
    }
    assert_alert("late_replays", "q", "ok");
}

static void many_repeats_fire_unless_they_are_a_drill(void **state) {
    (void)state;
    struct buf body = {0};
    send_many("q", "k", 100);
    send_many("d", "k", 100);
    for (u32 i = 0; i < 100; i++) buf_printf(&body, "{\"key\":\"k%u\",\"payload\":\"x\"}\n", i);
    assert_int_equal(request("POST /v1/queues/d/batch?drill=true", NULL, buf_slice(&body), NULL), 200);
    buf_free(&body);
    send_many("q", "k", 30);
    elapse(20000);
    assert_alert("duplicates_high", "d", "ok");
    assert_fires("duplicates_high", "q");
    elapse(16 * MINUTE);
    assert_alert("duplicates_high", "q", "resolved");
}

/* Days of a producer that repeats every tenth message. */
static void ordinary_days(u32 days) {
    char prefix[32];
    for (u32 i = 0; i < days * 24; i++) {
        snprintf(prefix, sizeof prefix, "%lld-", (long long)w.t.mono_ms);
        send_many("q", prefix, 20);
        send_many("q", prefix, 2);
        work_off("q", "ack", "");
        for (int k = 0; k < 720; k++) pass(5000);
    }
}

/* Much that is done with at once: all of the journal is compacted on the way. */
static void journal_is_written_anew(void) {
    struct buf payload = {0};
    char key[32];
    buf_grow(&payload, 256u << 10);
    memset(payload.p, 'x', (256u << 10) - 1);
    payload.p[(256u << 10) - 1] = 0;
    for (u32 i = 0; i < 160; i++) {
        snprintf(key, sizeof key, "bulk-%u", i);
        assert_int_equal(send("bulk", key, payload.p), 202);
        work_off("bulk", "ack", "");
        pass(1000);
    }
    buf_free(&payload);
}

static void repeats_that_stop_coming_are_missed_over_restarts_and_compaction_too(void **state) {
    (void)state;
    char prefix[32];
    ordinary_days(7);
    assert_alert("duplicates_vanished", "q", "ok");
    journal_is_written_anew();
    restart();
    for (int i = 0; i < 8; i++) { /* the key holds the event id now */
        snprintf(prefix, sizeof prefix, "new-%d-", i);
        send_many("q", prefix, 22);
        work_off("q", "ack", "");
        elapse(HOUR);
    }
    assert_fires("duplicates_vanished", "q");
    send_many("q", prefix, 1);
    elapse(2 * MINUTE);
    assert_alert("duplicates_vanished", "q", "resolved");
}

static void a_day_of_ordinary_traffic_fires_nothing(void **state) {
    (void)state;
    w.around = (struct surroundings){.disk_free = 60, .disk_size = 100, .resident_bytes = 100u << 20};
    ordinary_days(8);
    assert_int_equal(call("GET /v1/alerts?all=true", ""), 200);
    assert_string_equal(w.body.p, "{\"items\":[],\"judged\":true}");
    assert_int_equal(heard("alert alert="), 0);
    assert_int_equal(w.notices.len, 0);
}

static void a_held_message_waits_an_hour_for_a_person(void **state) {
    (void)state;
    assert_int_equal(call("PUT /v1/queues/q", "{\"on_unknown\":\"hold\"}"), 201);
    send("q", "k", "x");
    work_off("q", "nack", ",\"class\":\"unknown\"");
    elapse(59 * MINUTE);
    assert_alert("held_waiting", "q", "ok");
    elapse(2 * MINUTE);
    assert_fires("held_waiting", "q");
    assert_names_the_key("held_waiting");
}

static void lag_fires_when_it_has_lasted_and_says_how_often_it_did(void **state) {
    (void)state;
    assert_int_equal(call("PUT /v1/queues/q", "{\"lag\":{\"alert\":\"1m\",\"for\":\"2m\"}}"), 201);
    send("q", "k", "x");
    elapse(90000);
    assert_alert("lag", "q", "pending");
    elapse(2 * MINUTE);
    assert_fires("lag", "q");
    work_off("q", "ack", "");
    elapse(MINUTE);
    assert_alert("lag", "q", "resolved");
    send("q", "l", "x");
    elapse(4 * MINUTE);
    assert_alert("lag", "q", "firing");
    assert_said("\"count_1h\":2");
}

static void a_slow_hand_out_breaks_its_slo(void **state) {
    (void)state;
    assert_int_equal(call("PUT /v1/queues/q", "{\"lag\":{\"p95\":\"1s\",\"alert\":\"1h\",\"for\":\"0s\"}}"), 201);
    send_many("q", "k", 40);
    elapse(8000);
    work_off("q", "ack", "");
    elapse(20000);
    assert_fires("lag", "q");
}

static void a_dead_head_with_others_behind_it_blocks_its_group(void **state) {
    (void)state;
    assert_int_equal(call("PUT /v1/queues/q", "{\"order_by\":\"${g}\"}"), 201);
    send("q", "a", "{\"g\":\"1\"}");
    send("q", "b", "{\"g\":\"1\"}");
    call("POST /v1/queues/q/receive", "");
    assert_int_equal(settle("nack", ",\"class\":\"poison\""), 200);
    elapse(MINUTE);
    assert_alert("group_blocked", "q", "pending");
    elapse(15 * MINUTE);
    assert_fires("group_blocked", "q");
    assert_alert("group_blocked", "q", "firing");
    assert_said("\"key\":\"a\"}"); /* the head */
    assert_int_equal(call("POST /v1/queues/q/purge", "{\"state\":\"dead\"}"), 200);
    elapse(MINUTE);
    assert_alert("group_blocked", "q", "resolved");
}

static void loss_beyond_what_was_accepted_is_told(void **state) {
    (void)state;
    assert_int_equal(call("PUT /v1/queues/q", "{\"semantics\":\"at_most_once\",\"loss\":\"1%\"}"), 201);
    send_many("q", "k", 120);
    for (int i = 0; i < 120; i++) {
        call("POST /v1/queues/q/receive", "");
        if (i < 5) assert_int_equal(settle("nack", ",\"class\":\"transient\""), 200);
    }
    elapse(20000);
    assert_fires("loss_rate", "q");
}

static void an_origin_that_comes_under_several_keys_is_a_hop_that_makes_new_ones(void **state) {
    (void)state;
    char key[32], payload[64];
    assert_int_equal(call("PUT /v1/queues/q", "{\"origin\":\"${client}\"}"), 201);
    for (int i = 0; i < 6; i++) {
        snprintf(payload, sizeof payload, "{\"client\":\"c%d\"}", i);
        for (int k = 0; k < 2; k++) {
            snprintf(key, sizeof key, "k%d-%d", i, i < 4 ? 0 : k);
            send("q", key, payload);
        }
    }
    elapse(20000);
    assert_alert("key_skew", "q", "ok");
    for (int i = 0; i < 4; i++) {
        snprintf(payload, sizeof payload, "{\"client\":\"c%d\"}", i);
        snprintf(key, sizeof key, "other%d", i);
        send("q", key, payload);
    }
    elapse(20000);
    assert_fires("key_skew", "q");
}

static void a_disk_that_runs_full_is_told_before_it_is(void **state) {
    (void)state;
    w.around = (struct surroundings){.disk_free = 11, .disk_size = 100};
    elapse(20000);
    assert_alert("disk_low", NULL, "ok");
    w.around.disk_free = 9;
    elapse(20000);
    assert_fires("disk_low", NULL);
    w.around.disk_free = 50;
    elapse(MINUTE);
    assert_alert("disk_low", NULL, "resolved");
}

/* Sends until there is no room. The key and the payload that were refused. */
static void fill_disk(u64 capacity, char key[16], struct buf *large) {
    for (u32 i = 0; i < 200000; i++) buf_char(large, 'x');
    buf_char(large, 0);
    w.around = (struct surroundings){.disk_free = 50, .disk_size = 100}; /* too little for a segment, say */
    disk_sim_set_capacity(w.disk, capacity);
    for (u32 i = 0;; i++) {
        snprintf(key, 16, "k%u", i);
        if (send("q", key, large->p) == 507) return;
    }
}

static void a_full_disk_is_told_until_it_has_room_though_nobody_asks_any_more(void **state) {
    (void)state;
    struct buf large = {0};
    char key[16];
    fill_disk(12u << 20, key, &large);
    elapse(20000);
    assert_fires("disk_low", NULL);
    elapse(HOUR);
    assert_alert("disk_low", NULL, "firing");
    assert_int_equal(heard("alert=disk_low"), 1);
    assert_int_equal(send("q", key, large.p), 507);
    disk_sim_set_capacity(w.disk, 64u << 20);
    elapse(2 * MINUTE);
    assert_alert("disk_low", NULL, "resolved");
    assert_int_equal(send("q", key, large.p), 202);
    buf_free(&large);
}

static void a_disk_that_has_room_again_before_it_is_looked_at_is_no_alert(void **state) {
    (void)state;
    struct buf large = {0};
    char key[16];
    elapse(26000 - w.t.mono_ms); /* the next look is in four seconds, the journal has grown in two */
    fill_disk(12u << 20, key, &large);
    disk_sim_set_capacity(w.disk, 64u << 20);
    elapse(MINUTE);
    assert_int_equal(heard("alert=disk_low"), 0);
    assert_int_equal(send("q", key, large.p), 202);
    buf_free(&large);
}

static void memory_near_its_limit_is_told(void **state) {
    (void)state;
    close_broker();
    w.memory_max = (u64)1 << 30;
    open_broker();
    w.around = (struct surroundings){.resident_bytes = (u64)950 << 20, .disk_free = 1, .disk_size = 1};
    elapse(20000);
    assert_fires("memory_high", NULL);
}

/* The journal as it is, but for how long its disk took. */
static struct hist syncs;
static void (*own_stats)(struct journal *j, struct journal_stats *out);
static void stats_with_syncs(struct journal *j, struct journal_stats *out) {
    own_stats(j, out);
    out->sync_us = syncs;
}

static void sync_for(i64 ms, u64 us) {
    for (; ms > 0; ms -= 10000) {
        for (int i = 0; i < 50; i++) hist_add(&syncs, hist_us, us);
        elapse(10000);
    }
}

static void a_disk_that_syncs_ten_times_slower_than_usual_is_told(void **state) {
    (void)state;
    const struct journal_ops *own = w.journal->ops;
    struct journal_ops ops = *own;
    syncs = (struct hist){0};
    own_stats = ops.stats;
    ops.stats = stats_with_syncs;
    w.journal->ops = &ops;
    sync_for(2 * HOUR, 400);
    sync_for(5 * MINUTE, 2000); /* slower, but not by that much */
    assert_alert("sync_slow", NULL, "ok");
    sync_for(2 * MINUTE, 40000);
    assert_fires("sync_slow", NULL);
    sync_for(10 * MINUTE, 400);
    assert_alert("sync_slow", NULL, "resolved");
    w.journal->ops = own;
}

static void rows_that_wait_to_be_relayed_are_told(void **state) {
    (void)state;
    send("q", "k", "x");
    w.relay_oldest_ms = 61000;
    elapse(20000);
    assert_fires("relay_lag", "q");
}

/* Calls the queue's target if it may be called. */
static void call_target(struct target *t, enum target_outcome outcome) {
    bool probe;
    i64 again_ms;
    if (!target_may_send(t, w.t.mono_ms, &probe, &again_ms)) return;
    target_sent(t, w.t.mono_ms, probe);
    target_ended(t, w.t.mono_ms, outcome, probe, 0);
}

static void call_for(struct target *t, i64 ms, enum target_outcome outcome) {
    for (; ms > 0; ms -= 1000) {
        call_target(t, outcome);
        pass(1000);
    }
}

static void a_target_that_fails_for_five_minutes_is_told_until_it_is_back(void **state) {
    (void)state;
    struct target_rules r = target_rules_default();
    u16 queue;
    send("q", "k", "x");
    assert_true(core_queue_find(w.broker->core, SL("q"), &queue));
    targets_bind(w.broker, queue, &r, 1);
    struct target *t = target_of(w.broker, queue);
    call_for(t, 4 * MINUTE, TARGET_FAILED); /* probes too */
    assert_alert("push_down", "q", "ok");
    call_for(t, 2 * MINUTE, TARGET_FAILED);
    assert_fires("push_down", "q");
    assert_int_equal(call("GET /v1/alerts", ""), 200);
    assert_said("\"threshold\":300,");
    assert_said("\"runbook\":\"docs/runbooks/push-down.md\"");
    call_for(t, 10 * MINUTE, TARGET_TAKEN);
    assert_alert("push_down", "q", "resolved");
}

static void who_paused_a_target_is_not_told_that_it_is_down(void **state) {
    (void)state;
    struct target_rules r = target_rules_default();
    u16 queue;
    send("q", "k", "x");
    assert_true(core_queue_find(w.broker->core, SL("q"), &queue));
    targets_bind(w.broker, queue, &r, 1);
    struct target *t = target_of(w.broker, queue);
    call_for(t, MINUTE, TARGET_FAILED);
    target_pause(t, 0, true, SL(""), SL(""));
    elapse(10 * MINUTE);
    assert_alert("push_down", "q", "ok");
    target_pause(t, 0, false, SL(""), SL(""));
    elapse(MINUTE);
    assert_alert("push_down", "q", "firing");
}

static void a_target_that_is_gone_is_told_until_somebody_decides(void **state) {
    (void)state;
    struct audit_in audit = {.who = SL("hapax"), .what = SL("push_pause")};
    assert_int_equal(call("PUT /v1/queues/q", "{\"deliver\":{\"url\":\"https://h.example/\"}}"), 201);
    u16 queue;
    assert_true(core_queue_find(w.broker->core, SL("q"), &queue));
    assert_int_equal(targets_gone(w.broker, queue, &audit), PAUSE_OK);
    send("q", "k", "x");
    elapse(4 * MINUTE);
    assert_alert("push_down", "q", "ok");
    elapse(2 * MINUTE);
    assert_fires("push_down", "q");
    restart_with("auto_create: true\n");
    elapse(6 * MINUTE);
    assert_alert("push_down", "q", "firing");
    assert_int_equal(call("POST /v1/targets/q/pause", "{\"by\":\"ann\"}"), 200); /* and now somebody knows */
    elapse(MINUTE);
    assert_alert("push_down", "q", "resolved");
}

static void what_is_off_does_not_fire(void **state) {
    (void)state;
    assert_int_equal(call("PUT /v1/queues/q", "{\"alerts\":{\"off\":[\"dead_letters\"]}}"), 201);
    make_dead("q", 20);
    elapse(20000);
    assert_alert("dead_letters", "q", "ok");
}

static void a_queue_made_anew_has_no_alerts_of_the_former(void **state) {
    (void)state;
    make_dead("q", 20);
    elapse(20000);
    assert_fires("dead_letters", "q");
    assert_int_equal(call("POST /v1/queues/q/purge", "{}"), 200);
    elapse(1000);
    assert_int_equal(call("DELETE /v1/queues/q", ""), 204);
    send("q", "k", "x");
    elapse(20000);
    assert_alert("dead_letters", "q", "ok");
}

static void types_are_counted_apart_the_first_fifty_of_them(void **state) {
    (void)state;
    char key[32], payload[64];
    assert_int_equal(call("PUT /v1/queues/q", "{\"event_type\":\"${type}\"}"), 201);
    for (int i = 0; i < 60; i++) {
        snprintf(key, sizeof key, "k%d", i);
        snprintf(payload, sizeof payload, "{\"type\":\"t%d\\\"\\\\n\"}", i);
        send("q", key, payload);
    }
    send("q", "k0", "{\"type\":\"t0\\\"\\\\n\"}");
    call("GET /metrics", "");
    for (int i = 0; i < 50 && w.status == 0; i++) pass(1);
    assert_said("hapax_accepted_total{queue=\"q\",type=\"t0\\\"\\\\n\"} 1\n");
    assert_said("hapax_accepted_total{queue=\"q\",type=\"other\"} 10\n");
    assert_said("hapax_duplicates_total{queue=\"q\",kind=\"replay\",type=\"t0\\\"\\\\n\"} 1\n");
}

static void the_last_hour_is_kept_in_steps_of_ten_seconds(void **state) {
    (void)state;
    elapse(10000);
    send_many("q", "k", 7);
    elapse(20000);
    send_many("q", "l", 2);
    elapse(10000);
    assert_int_equal(call("GET /v1/history?queue=q&since=1m", ""), 200);
    assert_said("\"step_ms\":10000");
    assert_said("\"accepted\":[0,0,0,7,0,2]");
    assert_int_equal(call("GET /v1/history?since=500ms", ""), 400);
    assert_said("from 10s to 1h\""); /* and no example outside of it */
    assert_int_equal(call("GET /v1/history?since=1m&step=30s", ""), 200);
    assert_said("\"accepted\":[0,9]");
    call("GET /v1/history?queue=q&since=1h", ""); /* longer than the machine runs */
    assert_said("\"from\":\"2027-01-15T07:00:");
    elapse(2 * HOUR);
    assert_int_equal(call("GET /v1/history?queue=q&since=1m", ""), 200);
    assert_said("\"accepted\":[0,0,0,0,0,0]");
}

#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
int main(void) {
    const struct CMUnitTest tests[] = {
        T(dead_letters_fire_at_ten_in_a_quarter_of_an_hour_and_resolve_when_no_more_come),
        T(deaths_over_days_are_counted_too),
        T(a_killed_consumer_leaves_work_that_nobody_settles),
        T(two_effect_ids_for_one_key_are_a_doubled_effect_for_a_day),
        T(a_doubled_effect_is_told_for_its_day_whatever_restarts),
        T(a_repeat_after_its_window_is_told),
        T(a_source_whose_webhooks_are_refused_is_told_until_they_are_taken),
        T(a_source_whose_secret_was_wrong_from_the_first_day_is_told),
        T(keys_may_come_again_where_that_is_the_rule),
        T(many_repeats_fire_unless_they_are_a_drill),
        T(repeats_that_stop_coming_are_missed_over_restarts_and_compaction_too),
        T(a_day_of_ordinary_traffic_fires_nothing),
        T(a_held_message_waits_an_hour_for_a_person),
        T(lag_fires_when_it_has_lasted_and_says_how_often_it_did),
        T(a_slow_hand_out_breaks_its_slo),
        T(a_dead_head_with_others_behind_it_blocks_its_group),
        T(loss_beyond_what_was_accepted_is_told),
        T(an_origin_that_comes_under_several_keys_is_a_hop_that_makes_new_ones),
        T(a_disk_that_runs_full_is_told_before_it_is),
        T(a_full_disk_is_told_until_it_has_room_though_nobody_asks_any_more),
        T(a_disk_that_has_room_again_before_it_is_looked_at_is_no_alert),
        T(memory_near_its_limit_is_told),
        T(a_disk_that_syncs_ten_times_slower_than_usual_is_told),
        T(rows_that_wait_to_be_relayed_are_told),
        T(a_target_that_fails_for_five_minutes_is_told_until_it_is_back),
        T(who_paused_a_target_is_not_told_that_it_is_down),
        T(a_target_that_is_gone_is_told_until_somebody_decides),
        T(what_is_off_does_not_fire),
        T(a_queue_made_anew_has_no_alerts_of_the_former),
        T(types_are_counted_apart_the_first_fifty_of_them),
        T(the_last_hour_is_kept_in_steps_of_ten_seconds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
