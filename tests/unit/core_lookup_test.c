/* What the broker does itself about unknown outcomes: look-ups in a lane of their own, with times and a number of their own; held
 * work before a first send; what of an HTTP answer is kept; and that all of it is written down. */
#include "core_world.h"

#define AFTER_MS 30000
#define EVERY_MS 7000
#define ATTEMPTS 4

static struct rules rules;

static void use_rules(void) {
    u16 queue;
    struct queue_spec spec = {.rules = rules, .origin = ORIGIN_API};
    assert_true(core_queue_set(w.core, w.now, SL("q"), &spec, NULL, &queue));
}

static int setup_looking(void **state) {
    setup(state);
    rules = rules_default();
    rules.on_unknown = ON_UNKNOWN_RECONCILE;
    rules.lookup_after_ms = AFTER_MS;
    rules.lookup_every_ms = EVERY_MS;
    rules.lookup_attempts = ATTEMPTS;
    use_rules();
    return 0;
}

static struct message_view view_of(const char *key) {
    struct message_view v;
    struct seen *s = find(key);
    assert_non_null(s);
    assert_non_null(s->message);
    core_message_view(w.core, w.now, s->at.message, &v);
    return v;
}

static struct leased look_up_as(bool reserve_only) {
    struct leased l = {0};
    u32 no = core_next_lookup(w.core, w.queue);
    if (no == MESSAGE_NONE) return l;
    struct message_view v;
    core_message_view(w.core, w.now, no, &v);
    load(&(struct found){.message = no, .pos = v.pos});
    struct lease_in in = {.lease_ms = 1000, .reserve_only = reserve_only, .consumer = SL("hapax:reconcile")};
    struct lease_out out;
    assert_int_equal(core_lease(w.core, w.now, no, &w.base.message, &in, &out), LEASE_OK);
    assert_int_equal(out.delivery, DELIVERY_RECONCILE);
    return (struct leased){.ok = true, .fence = out.fence, .ref = v.ref, .delivery = out.delivery};
}
static struct leased look_up(void) {
    return look_up_as(false);
}

/* Sent, handed out, and nobody knows what came of it. */
static void become_unknown(const char *key) {
    send(key, "p");
    struct leased l = receive();
    assert_int_equal(l.delivery, DELIVERY_FIRST);
    assert_int_equal(nack(&l, CLASS_UNKNOWN), SETTLE_OK);
}

static void nothing_is_due_until(i64 ms) {
    pass(ms - 1);
    assert_false(look_up().ok);
    assert_false(receive().ok);
    pass(1);
}

static void an_unknown_outcome_is_looked_up_after_its_time_and_then_at_intervals(void **state) {
    (void)state;
    become_unknown("k");
    nothing_is_due_until(AFTER_MS);
    struct settle_out out;
    for (u32 i = 1; i < ATTEMPTS; i++) {
        struct leased l = look_up();
        assert_true(l.ok);
        struct settle_in none = {.verb = VERB_NACK, .failure_class = CLASS_TRANSIENT, .reason = SL("status 500")};
        assert_int_equal(settle_as(&l, none, &out), SETTLE_OK);
        assert_int_equal(out.state, STATE_PENDING);
        assert_int_equal(out.due_ms, EVERY_MS);
        nothing_is_due_until(EVERY_MS);
    }
    struct message_view v = view_of("k");
    assert_int_equal(v.lookups, ATTEMPTS - 1);
    assert_int_equal(v.unknowns, 1); /* of the attempt; look-ups are none */
    assert_int_equal(v.failures, 0);
    struct leased l = look_up();
    assert_int_equal(settle_as(&l, (struct settle_in){.verb = VERB_NACK, .failure_class = CLASS_UNKNOWN}, &out),
                     SETTLE_OK);
    assert_int_equal(out.state, STATE_HELD);
    assert_true(view_of("k").doubt);
    struct history_item last;
    assert_true(history_last_attempt(view_of("k").history, &last) && last.lookup);
}

static void the_time_before_a_look_up_counts_from_the_end_of_the_attempt(void **state) {
    (void)state;
    send("ran out", "p");
    receive_as(5000, false);
    pass(5000);
    assert_int_equal(view_of("ran out").ended, ENDED_EXPIRED);
    nothing_is_due_until(AFTER_MS);
    struct leased l = look_up();
    assert_true(l.ok);
    pass(1000); /* the look-up runs out too: it counts as one, and as no crash */
    struct message_view v = view_of("ran out");
    assert_int_equal(v.lookups, 1);
    assert_int_equal(v.crashes, 1);
    nothing_is_due_until(EVERY_MS);
    assert_true(look_up().ok);
}

/* One attempt that crashed, and a look-up that ran out: counted as one, until its late word comes. */
static struct leased look_up_that_ran_out(const char *key) {
    send(key, "p");
    receive_as(5000, false);
    pass(5000);
    pass(AFTER_MS);
    struct leased l = look_up();
    assert_true(l.ok);
    pass(1000);
    assert_int_equal(view_of(key).lookups, 1);
    return l;
}

static void a_look_up_that_ran_out_and_speaks_up_late_counts_once_and_is_no_crash_taken_back(void **state) {
    (void)state;
    static const struct {
        const char *key;
        struct settle_in word;
        u32 lookups;
    } late[] = {
        {"no answer", {.verb = VERB_NACK, .failure_class = CLASS_TRANSIENT}, 1},
        {"nobody knows", {.verb = VERB_NACK, .failure_class = CLASS_UNKNOWN}, 1},
        {"given back", {.verb = VERB_RELEASE}, 0},
        {"goes on", {.verb = VERB_EXTEND, .lease_ms = 2000}, 0},
        {"absent", {.verb = VERB_NACK, .failure_class = CLASS_ABSENT}, 0},
    };
    for (u32 i = 0; i < sizeof late / sizeof *late; i++) {
        struct leased l = look_up_that_ran_out(late[i].key);
        assert_int_equal(settle_as(&l, late[i].word, NULL), SETTLE_OK);
        assert_int_equal(view_of(late[i].key).lookups, late[i].lookups);
        assert_int_equal(view_of(late[i].key).crashes, 1); /* of the attempt: its consumer has not spoken up */
        restart_after(0);
        assert_int_equal(view_of(late[i].key).lookups, late[i].lookups);
        core_cancel(w.core, w.now, find(late[i].key), SL("enough"), NULL);
    }
}

static void no_more_look_ups_are_made_than_allowed_though_the_last_is_given_back_late(void **state) {
    (void)state;
    become_unknown("k");
    pass(AFTER_MS);
    struct leased l = {0};
    for (u32 i = 0; i < ATTEMPTS; i++) {
        l = look_up();
        assert_true(l.ok);
        pass(1000);
        pass(EVERY_MS);
    }
    assert_int_equal(state_of("k"), STATE_HELD);
    assert_int_equal(settle_as(&l, (struct settle_in){.verb = VERB_RELEASE}, NULL), SETTLE_OK);
    assert_int_equal(view_of("k").lookups, ATTEMPTS - 1); /* it cost nothing: the last one is still to be made */
    l = look_up();
    assert_int_equal(nack(&l, CLASS_TRANSIENT), SETTLE_OK);
    assert_int_equal(state_of("k"), STATE_HELD);
    assert_int_equal(view_of("k").lookups, ATTEMPTS);
}

static void a_longer_delay_asked_for_counts(void **state) {
    (void)state;
    become_unknown("k");
    pass(AFTER_MS);
    struct leased l = look_up();
    settle_as(&l, (struct settle_in){.verb = VERB_NACK, .failure_class = CLASS_TRANSIENT, .delay_ms = 10 * EVERY_MS},
              NULL);
    nothing_is_due_until(10 * EVERY_MS);
    assert_true(look_up().ok);
}

static void found_settles_and_absent_sends_again_with_all_look_ups_anew(void **state) {
    (void)state;
    become_unknown("found");
    pass(AFTER_MS);
    struct leased l = look_up();
    assert_int_equal(ack(&l, "it was booked"), SETTLE_OK);
    assert_true(slice_eq(find("found")->settle->result, SL("it was booked")));
    become_unknown("absent");
    pass(AFTER_MS);
    for (u32 i = 0; i + 1 < ATTEMPTS; i++) {
        l = look_up();
        nack(&l, CLASS_TRANSIENT);
        pass(EVERY_MS);
    }
    l = look_up();
    assert_int_equal(nack(&l, CLASS_ABSENT), SETTLE_OK);
    assert_int_equal(view_of("absent").lookups, 0);
    assert_false(view_of("absent").doubt);
    assert_false(look_up().ok);
    l = receive();
    assert_int_equal(l.delivery, DELIVERY_RETRY);
    nack(&l, CLASS_UNKNOWN);
    pass(AFTER_MS);
    l = look_up();
    nack(&l, CLASS_TRANSIENT);
    assert_int_equal(state_of("absent"), STATE_PENDING);
    assert_int_equal(view_of("absent").lookups, 1);
}

static void the_last_allowed_unknown_is_looked_up_before_it_counts(void **state) {
    (void)state;
    for (u32 round = 0; round < 2; round++) {
        const char *key = round ? "absent" : "found";
        send(key, "p");
        for (u32 i = 0; i < rules.unknown_attempts; i++) {
            struct leased l = receive();
            assert_true(l.ok);
            nack(&l, CLASS_UNKNOWN);
            assert_int_equal(state_of(key), STATE_PENDING);
            pass(AFTER_MS);
            l = look_up();
            if (i + 1 < rules.unknown_attempts || round)
                assert_int_equal(nack(&l, CLASS_ABSENT), SETTLE_OK);
            else
                assert_int_equal(ack(&l, "there"), SETTLE_OK);
        }
    }
    assert_int_equal(state_of("found"), STATE_DONE);
    assert_int_equal(state_of("absent"), STATE_DEAD); /* it did not happen, and is not tried for ever */
    assert_false(view_of("absent").doubt);
}

static void absent_may_be_held_for_a_person(void **state) {
    (void)state;
    become_unknown("k");
    pass(AFTER_MS);
    struct leased l = look_up();
    struct settle_in in = {
        .verb = VERB_NACK, .failure_class = CLASS_ABSENT, .hold = true, .reason = SL("the target forgets keys")};
    struct settle_out out;
    assert_int_equal(settle_as(&l, in, &out), SETTLE_OK);
    assert_int_equal(out.state, STATE_HELD);
    pass(1000 * EVERY_MS);
    assert_false(receive().ok || look_up().ok);
    assert_int_equal(settle_as(&l, in, &out), SETTLE_DUPLICATE);
    enum state now;
    struct resolve_in retry = {.as = DECISION_RETRY};
    assert_int_equal(core_resolve(w.core, w.now, find("k"), &retry, AUDIT("ann", "sent by hand? no"), &now),
                     RESOLVE_OK);
    assert_true(receive().ok);
}

static void consumers_get_no_look_ups_that_the_broker_makes_but_all_others_first(void **state) {
    (void)state;
    become_unknown("looked up");
    pass(AFTER_MS);
    send("fresh", "p");
    u64 positions[4];
    assert_int_equal(core_ready_positions(w.core, w.queue, 4, positions), 1);
    struct queue_info q;
    core_queue_info(w.core, w.now, w.queue, &q);
    assert_int_equal(q.ready, 2);
    assert_int_equal(q.lookups, 1);
    rules.lookup_attempts = 0;
    use_rules();
    assert_int_equal(core_ready_positions(w.core, w.queue, 4, positions), 2);
    struct leased l = receive();
    assert_string_equal(l.key, "looked up");
    assert_int_equal(l.delivery, DELIVERY_RECONCILE);
    l = receive();
    assert_string_equal(l.key, "fresh");
    assert_false(receive().ok);
}

static void whoever_waits_is_told_of_look_ups_and_of_work_each(void **state) {
    (void)state;
    become_unknown("k");
    send("fresh", "p"); /* stays */
    u32 before = w.readies;
    pass(AFTER_MS);
    assert_int_equal(w.readies, before + 1);
    send("another", "p");
    assert_int_equal(w.readies, before + 1);
}

static void a_paused_queue_gives_no_look_ups(void **state) {
    (void)state;
    become_unknown("k");
    pass(AFTER_MS);
    assert_int_equal(core_queue_pause(w.core, w.now, w.queue, true, NULL), PAUSE_OK);
    assert_false(look_up().ok);
    u32 before = w.readies;
    assert_int_equal(core_queue_pause(w.core, w.now, w.queue, false, NULL), PAUSE_OK);
    assert_int_equal(w.readies, before + 1);
    assert_true(look_up().ok);
}

static void look_ups_and_their_count_survive_restarts_and_compaction(void **state) {
    (void)state;
    become_unknown("k");
    pass(AFTER_MS);
    for (u32 i = 1; i <= 2; i++) {
        struct leased l = look_up();
        nack(&l, CLASS_TRANSIENT);
        restart_after(0);
        assert_int_equal(view_of("k").lookups, i);
        compact();
        restart_after(0);
        assert_int_equal(view_of("k").lookups, i);
        assert_true(view_of("k").reconcile);
        nothing_is_due_until(EVERY_MS);
    }
    compact(); /* while it is due */
    restart_after(0);
    assert_false(receive().ok);
    assert_true(look_up().ok);
    compact(); /* while it is being looked up */
    restart_after(0);
    pass(1000);
    assert_int_equal(view_of("k").lookups, 3);
}

static void a_look_up_under_way_when_the_broker_dies_is_asked_again(void **state) {
    (void)state;
    become_unknown("k");
    pass(AFTER_MS);
    struct leased l = look_up();
    restart_after(60000);
    pass(1000); /* its lease, in full */
    pass(EVERY_MS);
    assert_int_equal(nack(&l, CLASS_ABSENT), SETTLE_OK); /* late, and no newer look-up: it counts */
    assert_int_equal(receive().delivery, DELIVERY_RETRY);
}

static void a_look_up_lane_keeps_the_order_of_groups(void **state) {
    (void)state;
    send_full("first", "p", "g", 0, 0, NULL);
    send_full("second", "p", "g", 0, 0, NULL);
    struct leased l = receive();
    nack(&l, CLASS_UNKNOWN);
    assert_false(receive().ok);
    pass(AFTER_MS);
    assert_false(receive().ok);
    l = look_up();
    assert_false(receive().ok);
    ack(&l, "");
    assert_string_equal(receive().key, "second");
}

static void what_waits_to_be_looked_up_can_be_cancelled_and_purged(void **state) {
    (void)state;
    become_unknown("cancelled");
    become_unknown("purged");
    pass(AFTER_MS);
    assert_int_equal(core_cancel(w.core, w.now, find("cancelled"), SL("no more"), AUDIT("ann", "")), CANCEL_OK);
    struct core_purge p = {.queue = w.queue, .only = STATE_PENDING};
    core_purge_begin(w.core, &p);
    u32 no;
    assert_int_equal(core_purge_next(w.core, &p, 100, &no), WALK_FOUND);
    assert_int_equal(core_cancel(w.core, w.now, find("purged"), SL("purged"), NULL), CANCEL_OK);
    assert_int_equal(core_purge_next(w.core, &p, 100, &no), WALK_END);
    core_purge_end(w.core, &p);
    assert_false(look_up().ok);
}

static void look_ups_that_wait_count_as_waiting(void **state) {
    (void)state;
    become_unknown("k");
    rules.limit_lag_ms = 60000;
    use_rules();
    pass(AFTER_MS);
    pass(5000);
    send("fresh", "p");
    struct queue_info q;
    core_queue_info(w.core, w.now, w.queue, &q);
    assert_int_equal(q.oldest_ready_ms, 5000);
    pass(55000);
    assert_int_equal(send("one more", "p"), SEND_BACKPRESSURE);
    assert_int_equal(core_list(w.core, w.queue, STATE_PENDING, MESSAGE_NONE), core_next_lookup(w.core, w.queue));
}

static void the_first_attempt_stays_known_however_often_it_was_looked_up(void **state) {
    (void)state;
    rules.lookup_attempts = 100;
    use_rules();
    i64 began = w.now.wall_ms, at;
    become_unknown("k");
    pass(AFTER_MS);
    for (u32 i = 0; i < 3 * HISTORY_ATTEMPTS_KEPT; i++) {
        struct leased l = look_up();
        nack(&l, CLASS_TRANSIENT);
        pass(EVERY_MS);
    }
    struct ref ref = view_of("k").ref;
    assert_true(core_started_ms(w.core, &ref, &at));
    assert_int_equal(at, began);
    u32 n = 0, from = 0;
    struct history_item item;
    while (history_next(view_of("k").history, &from, &item)) assert_int_equal(item.lookup, n++ > 0);
    assert_int_equal(n, HISTORY_ATTEMPTS_KEPT);
    assert_int_equal(item.attempt, 1 + 3 * HISTORY_ATTEMPTS_KEPT);
}

/* ---- held before it is begun, given back for later */

static void what_is_held_before_its_first_send_waits_for_a_person(void **state) {
    (void)state;
    send("k", "p");
    struct leased l = receive_as(30000, true);
    struct settle_in in = {.verb = VERB_HOLD, .reason = SL("approve: a person decides")};
    struct settle_out out;
    assert_int_equal(settle_as(&l, in, &out), SETTLE_OK);
    assert_int_equal(out.state, STATE_HELD);
    assert_int_equal(settle_as(&l, in, &out), SETTLE_DUPLICATE);
    assert_int_equal(verb(&l, VERB_RELEASE), SETTLE_SETTLED);
    restart_after(0);
    compact();
    restart_after(0);
    struct message_view v = view_of("k");
    struct history_item item;
    assert_int_equal(v.state, STATE_HELD);
    assert_int_equal(v.attempts, 0);
    assert_false(v.doubt || history_last_attempt(v.history, &item));
    assert_true(history_last_decision(v.history, &item) && item.what == DECISION_HELD);
    assert_true(slice_eq(item.reason, in.reason));
    enum state now;
    struct resolve_in retry = {.as = DECISION_RETRY};
    assert_int_equal(core_resolve(w.core, w.now, find("k"), &retry, AUDIT("ann", "yes"), &now), RESOLVE_OK);
    l = receive();
    assert_int_equal(l.delivery, DELIVERY_FIRST);
    assert_true(history_last_decision(view_of("k").history, &item) && item.what == DECISION_RETRY);
}

static void what_is_given_back_may_wait(void **state) {
    (void)state;
    send("k", "p");
    struct leased l = receive();
    struct settle_out out;
    struct settle_in in = {.verb = VERB_RELEASE, .delay_ms = 5000};
    assert_int_equal(settle_as(&l, in, &out), SETTLE_OK);
    assert_int_equal(out.due_ms, 5000);
    assert_int_equal(view_of("k").attempts, 0);
    restart_after(0);
    nothing_is_due_until(5000);
    assert_int_equal(receive().delivery, DELIVERY_FIRST);
}

static void a_look_up_given_back_is_none(void **state) {
    (void)state;
    become_unknown("k");
    pass(AFTER_MS);
    struct leased l = look_up();
    assert_int_equal(settle_as(&l, (struct settle_in){.verb = VERB_RELEASE, .delay_ms = 2000}, NULL), SETTLE_OK);
    assert_int_equal(view_of("k").lookups, 0);
    nothing_is_due_until(2000);
    l = look_up_as(true);
    pass(1000); /* lapsed: it was never asked */
    assert_int_equal(view_of("k").lookups, 0);
    assert_true(look_up().ok);
}

static void the_late_word_of_a_look_up_is_listed_as_that_of_a_look_up(void **state) {
    (void)state;
    become_unknown("k");
    pass(AFTER_MS);
    struct leased l = look_up_as(true);
    pass(1000); /* lapsed, and struck out of the history */
    assert_int_equal(nack(&l, CLASS_ABSENT), SETTLE_OK);
    struct history_item last;
    assert_true(history_last_attempt(view_of("k").history, &last));
    assert_true(last.lookup && last.failure_class == CLASS_ABSENT);
}

/* ---- pushing is paused */

static void that_a_target_is_gone_survives_restarts_until_somebody_decides(void **state) {
    (void)state;
    struct queue_info q;
    assert_int_equal(core_push_gone(w.core, w.now, w.queue, AUDIT("hapax", "410")), PAUSE_OK);
    assert_int_equal(core_push_gone(w.core, w.now, w.queue, AUDIT("hapax", "410")), PAUSE_NO_CHANGE);
    restart_after(0);
    compact();
    restart_after(0);
    core_queue_info(w.core, w.now, w.queue, &q);
    assert_true(q.push_paused && q.push_gone);
    assert_int_equal(core_push_pause(w.core, w.now, w.queue, true, AUDIT("ann", "we know")), PAUSE_OK);
    assert_int_equal(core_push_gone(w.core, w.now, w.queue, AUDIT("hapax", "410")), PAUSE_NO_CHANGE);
    restart_after(0);
    core_queue_info(w.core, w.now, w.queue, &q);
    assert_true(q.push_paused && !q.push_gone);
    assert_int_equal(core_push_pause(w.core, w.now, w.queue, false, NULL), PAUSE_OK);
    assert_int_equal(core_push_gone(w.core, w.now, w.queue, AUDIT("hapax", "410")), PAUSE_OK);
    assert_int_equal(core_push_pause(w.core, w.now, w.queue, false, NULL), PAUSE_OK);
    core_queue_info(w.core, w.now, w.queue, &q);
    assert_true(!q.push_paused && !q.push_gone);
}

static void that_pushing_is_paused_survives_restarts_and_can_be_ended_on_a_full_disk(void **state) {
    (void)state;
    struct queue_info q;
    assert_int_equal(core_push_pause(w.core, w.now, w.queue, false, NULL), PAUSE_NO_CHANGE);
    assert_int_equal(core_push_pause(w.core, w.now, w.queue, true, AUDIT("ann", "410")), PAUSE_OK);
    assert_int_equal(core_queue_pause(w.core, w.now, w.queue, true, NULL), PAUSE_OK);
    restart_after(0);
    compact();
    restart_after(0);
    core_queue_info(w.core, w.now, w.queue, &q);
    assert_true(q.push_paused && q.paused);
    struct audit_in go_on = {.who = SL("ann"), .what = SL("push.resume"), .relieves = true};
    set_room(core_reserved_bytes(w.core) + 65536 / 4 + 1024);
    w.metered = true;
    assert_int_equal(core_push_pause(w.core, w.now, w.queue, false, &go_on), PAUSE_OK);
    assert_int_equal(core_queue_pause(w.core, w.now, w.queue, false, &go_on), PAUSE_OK);
    w.metered = false;
    set_room(1u << 30);
    send("k", "p");
    core_push_pause(w.core, w.now, w.queue, true, NULL);
    u32 before = w.readies;
    assert_true(receive().ok); /* consumers receive as before */
    send("l", "p");
    before = w.readies;
    core_push_pause(w.core, w.now, w.queue, false, NULL);
    assert_int_equal(w.readies, before + 1);
}

/* ---- the head of an answer */

#define HEAD "201\r\nlocation: /slots/7\r\n"

static void the_head_of_an_answer_is_kept_with_the_result(void **state) {
    (void)state;
    rules.keep_payload_ms = 1000000;
    use_rules();
    send("k", "p");
    struct leased l = receive();
    struct settle_in in = {.verb = VERB_ACK, .result = SL("body"), .content_type = SL("text/plain"), .http = SL(HEAD)};
    assert_int_equal(settle_as(&l, in, NULL), SETTLE_OK);
    compact();
    restart_after(0);
    assert_true(slice_eq(find("k")->settle->http, SL(HEAD)));
    struct send_out out;
    assert_int_equal(core_again(w.core, w.now, find("k"), AUDIT("ann", "again"), &out), AGAIN_OK);
    compact();
    restart_after(0);
    struct rec_settle was;
    assert_true(former_decode(find("k")->message->former, &was));
    assert_true(slice_eq(was.http, SL(HEAD)));
    assert_int_equal(core_cancel(w.core, w.now, find("k"), SL(""), AUDIT("ann", "")), CANCEL_OK);
    assert_true(slice_eq(find("k")->settle->http, SL(HEAD)));
    assert_int_equal(core_erase(w.core, w.now, find("k"), AUDIT("ann", "gdpr")), ERASE_OK);
    assert_int_equal(find("k")->settle->http.n, 0);
}

static void a_rejection_keeps_its_answer_too(void **state) {
    (void)state;
    send("k", "p");
    struct leased l = receive();
    struct settle_in in = {
        .verb = VERB_NACK, .failure_class = CLASS_REJECTED, .result = SL("no"), .http = SL("422\r\n")};
    assert_int_equal(settle_as(&l, in, NULL), SETTLE_OK);
    assert_true(slice_eq(find("k")->settle->http, SL("422\r\n")));
}

/* A result and a head that take more than was reserved for every message need room of their own. */
static void a_head_counts_as_part_of_the_result(void **state) {
    (void)state;
    static char text[HTTP_HEAD_BYTES_MAX + 1];
    memset(text, 'x', sizeof text);
    send("k", "p");
    struct leased l = receive();
    w.metered = true;
    set_room(core_reserved_bytes(w.core) + 65536);
    struct settle_in in = {.verb = VERB_ACK, .result = slice_of(text, 1024), .http = slice_of(text, 1)};
    assert_int_equal(settle_as(&l, in, NULL), SETTLE_FULL);
    in.result.n = 0;
    in.http.n = HTTP_HEAD_BYTES_MAX + 1;
    assert_int_equal(settle_as(&l, in, NULL), SETTLE_TOO_LARGE);
    in.result.n = in.http.n = 512;
    assert_int_equal(settle_as(&l, in, NULL), SETTLE_OK);
}

/* ---- records of version 4 */

static size_t put(char *p, u64 v, size_t n) {
    memcpy(p, &v, n);
    return n;
}

/* Byte by byte as version 4 wrote them. */
static void records_of_version_4_are_read_and_what_came_later_is_nonsense_in_them(void **state) {
    (void)state;
    char p[600];
    size_t n = 0;
    struct record r;
    struct errbuf err;
    n += put(p + n, 77, 8); /* a carried message */
    n += put(p + n, 3, 8);
    n += put(p + n, 1, 2);
    n += put(p + n, 1234, 8);
    n += put(p + n, 5000, 8);
    n += put(p + n, 1 | 2, 1); /* carried, timed */
    for (int i = 0; i < 4; i++) n += put(p + n, i == 0 ? 42 : 0, 8);
    n += put(p + n, 'k' << 8 | 1, 2);
    n += put(p + n, 0, 6); /* group, content type, attrs, traceparent, tracestate, request id */
    n += put(p + n, 2, 4);
    n += put(p + n, 'h' | 'i' << 8, 2);
    size_t stand = n;
    n += put(p + n, STATE_HELD, 1);
    n += put(p + n, ENDED_REVOKED, 1);
    n += put(p + n, TRAIT_DOUBT | TRAIT_RECONCILE | TRAIT_LOOKUP, 1);
    n += put(p + n, 0, 1);
    n += put(p + n, 2, 4);
    n += put(p + n, 30000, 4);
    for (u64 i = 1; i <= 4; i++) n += put(p + n, i, 2);
    n += put(p + n, 99, 8);
    n += put(p + n, 0, 4);
    assert_int_equal(record_decode(REC_MESSAGE, 4, slice_of(p, n), &r, &err), ST_OK);
    assert_int_equal(r.message.state, STATE_HELD);
    assert_int_equal(r.message.ended, ENDED_REVOKED);
    assert_int_equal(r.message.crashes, 4);
    assert_int_equal(r.message.fence, 99);
    assert_int_equal(r.message.lookups, 0);
    assert_int_equal(record_size(&r), n); /* a copy of it takes no more room than it did */
    p[stand + 3] = 7;
    assert_int_equal(record_decode(REC_MESSAGE, 4, slice_of(p, n), &r, &err), ST_DAMAGED);

    n = put(p, 77, 8); /* a return to be looked up */
    n += put(p + n, 3, 8);
    n += put(p + n, 1, 2);
    for (u64 i = 5; i <= 7; i++) n += put(p + n, i, 8); /* fence, at, due */
    n += put(p + n, ENDED_EXPIRED, 1);
    n += put(p + n, CLASS_UNKNOWN, 1);
    n += put(p + n, STATE_PENDING, 1);
    n += put(p + n, TRAIT_RECONCILE, 1);
    for (u64 i = 1; i <= 4; i++) n += put(p + n, i, 2);
    n += put(p + n, 0, 1);
    assert_int_equal(record_decode(REC_RETURN, 4, slice_of(p, n), &r, &err), ST_OK);
    assert_int_equal(r.ret.due_ms, 7);
    assert_int_equal(r.ret.crashes, 4);
    assert_int_equal(r.ret.lookups, 0);
    assert_int_equal(record_decode(REC_RETURN, 5, slice_of(p, n), &r, &err), ST_DAMAGED);

    struct record settle = {.type = REC_SETTLE, .settle = {.state = STATE_DONE, .key = SL("k")}};
    n = record_encode(&settle, p); /* without a head: as version 4 wrote it */
    assert_int_equal(record_decode(REC_SETTLE, 4, slice_of(p, n), &r, &err), ST_OK);
    settle.settle.http = SL(HEAD);
    n = record_encode(&settle, p);
    assert_int_equal(record_decode(REC_SETTLE, 4, slice_of(p, n), &r, &err), ST_DAMAGED);
    assert_int_equal(record_decode(REC_SETTLE, 5, slice_of(p, n), &r, &err), ST_OK);
    assert_true(slice_eq(r.settle.http, SL(HEAD)));

    struct record queue = {.type = REC_QUEUE, .queue = {.queue = 1, .rules = rules_default(), .name = SL("q")}};
    n = record_encode(&queue, p); /* as version 4 wrote it */
    assert_int_equal(record_decode(REC_QUEUE, 4, slice_of(p, n), &r, &err), ST_OK);
    assert_true(rules_equal(&r.queue.rules, &queue.queue.rules));
    queue.queue.push_paused = true;
    n = record_encode(&queue, p);
    assert_int_equal(record_decode(REC_QUEUE, 4, slice_of(p, n), &r, &err), ST_DAMAGED);
    queue.queue.push_paused = false;
    queue.queue.rules = rules;
    n = record_encode(&queue, p);
    assert_int_equal(record_decode(REC_QUEUE, 4, slice_of(p, n), &r, &err), ST_DAMAGED);
    assert_int_equal(record_decode(REC_QUEUE, 5, slice_of(p, n), &r, &err), ST_OK);
    assert_true(rules_equal(&r.queue.rules, &rules));
}

#define L(name) cmocka_unit_test_setup_teardown(name, setup_looking, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        L(an_unknown_outcome_is_looked_up_after_its_time_and_then_at_intervals),
        L(the_time_before_a_look_up_counts_from_the_end_of_the_attempt),
        L(a_look_up_that_ran_out_and_speaks_up_late_counts_once_and_is_no_crash_taken_back),
        L(no_more_look_ups_are_made_than_allowed_though_the_last_is_given_back_late),
        L(a_longer_delay_asked_for_counts),
        L(found_settles_and_absent_sends_again_with_all_look_ups_anew),
        L(the_last_allowed_unknown_is_looked_up_before_it_counts),
        L(absent_may_be_held_for_a_person),
        L(consumers_get_no_look_ups_that_the_broker_makes_but_all_others_first),
        L(whoever_waits_is_told_of_look_ups_and_of_work_each),
        L(a_paused_queue_gives_no_look_ups),
        L(look_ups_and_their_count_survive_restarts_and_compaction),
        L(a_look_up_under_way_when_the_broker_dies_is_asked_again),
        L(a_look_up_lane_keeps_the_order_of_groups),
        L(what_waits_to_be_looked_up_can_be_cancelled_and_purged),
        L(look_ups_that_wait_count_as_waiting),
        L(the_first_attempt_stays_known_however_often_it_was_looked_up),
        L(what_is_held_before_its_first_send_waits_for_a_person),
        L(what_is_given_back_may_wait),
        L(a_look_up_given_back_is_none),
        L(the_late_word_of_a_look_up_is_listed_as_that_of_a_look_up),
        L(that_pushing_is_paused_survives_restarts_and_can_be_ended_on_a_full_disk),
        L(that_a_target_is_gone_survives_restarts_until_somebody_decides),
        L(the_head_of_an_answer_is_kept_with_the_result),
        L(a_rejection_keeps_its_answer_too),
        L(a_head_counts_as_part_of_the_result),
        L(records_of_version_4_are_read_and_what_came_later_is_nonsense_in_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
