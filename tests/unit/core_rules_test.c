/* What a queue's rules and an operator's verbs promise. Restarts and compactions are thrown in where a promise must outlive
 * them; core_random_test does so everywhere. */
#include <time.h>

#include "unit/core_world.h"

#define HOUR ((i64)3600 * 1000)

static struct rules rules;

static int setup_rules(void **state) {
    rules = rules_default();
    return setup(state);
}
#define R(name) cmocka_unit_test_setup_teardown(name, setup_rules, teardown)

static void use_rules(void) {
    struct queue_spec spec = {.rules = rules, .origin = ORIGIN_API, .config = SL("{}")};
    assert_true(core_queue_set(w.core, w.now, SL("q"), &spec, NULL, &w.queue));
}

static void come_back(void) {
    compact();
    restart_after(1000);
}

static struct queue_info info(void) {
    struct queue_info q;
    core_queue_info(w.core, w.now, w.queue, &q);
    return q;
}

static struct message_view view_of(const char *key) {
    struct message_view v;
    struct seen *s = find(key);
    assert_true(s && s->message);
    core_message_view(w.core, w.now, s->at.message, &v);
    return v;
}

static enum resolve_verdict resolve(const char *key, enum decision as) {
    enum state state;
    struct resolve_in in = {.as = as, .result = SL("by hand")};
    return core_resolve(w.core, w.now, find(key), &in, AUDIT("ann", "looked it up"), &state);
}

static enum redrive_verdict redrive(const char *key) {
    u32 count;
    struct seen *s = find(key);
    struct ref ref = s->settle ? s->settle->ref : s->message->ref;
    return core_redrive(w.core, w.now, &ref, SL("ann"), SL("fixed"), &count);
}

/* The whole door: a conflict that goes elsewhere is sent there. */
static enum send_verdict send_door(const char *key, const char *payload, char *under) {
    struct send_out first, out;
    enum send_verdict v = send_full(key, payload, NULL, 0, 0, &first);
    if (v != SEND_ELSEWHERE) return v;
    char other[KEY_BYTES_MAX + 1] = {0};
    memcpy(other, first.other_key, first.other_key_len);
    if (under) memcpy(under, other, sizeof other);
    struct send_in in = sending(key, payload);
    return core_send_conflict(w.core, w.now, &in, &first, find(other), &out);
}

static void fail_until(const char *key, enum failure_class c, enum state state) {
    for (int i = 0; i < 20 && state_of(key) != state; i++) {
        struct leased l = receive();
        assert_true(l.ok);
        assert_string_equal(l.key, key);
        nack(&l, c);
        if (state_of(key) == STATE_PENDING) pass(10 * 60 * 1000);
    }
    assert_int_equal(state_of(key), state);
}

/* ---- semantics */

static void at_least_once_drops_nothing_whatever_the_key(void **state) {
    (void)state;
    rules.semantics = SEMANTICS_AT_LEAST_ONCE;
    use_rules();
    for (u32 i = 0; i < 3 * KEY_REPEATS_FOUND; i++) assert_int_equal(send("same", "p"), SEND_ACCEPTED);
    for (u32 i = 0; i < 1000; i++) assert_int_equal(send("", "p"), SEND_ACCEPTED);
    come_back();
    assert_int_equal(info().unsettled, 1000 + 3 * KEY_REPEATS_FOUND);
    u32 seen = 0;
    for (struct leased l; (l = receive()).ok; seen++) assert_int_equal(ack(&l, "r"), SETTLE_OK);
    assert_int_equal(seen, 1000 + 3 * KEY_REPEATS_FOUND);
    assert_int_equal(send("same", "p"), SEND_ACCEPTED);
    come_back();
    assert_int_equal(info().unsettled, 1);
    assert_int_equal(info().settled_keys, 1000 + 3 * KEY_REPEATS_FOUND);
    struct core_cursor cursor = {0};
    struct found f;
    u32 under_one_hash = 0;
    while (core_find(w.core, core_hash(w.core, w.queue, SL("same")), &cursor, &f)) under_one_hash++;
    assert_int_equal(under_one_hash, KEY_REPEATS_FOUND);
}

static void at_most_once_is_settled_by_the_hand_out_and_never_comes_again(void **state) {
    (void)state;
    rules.semantics = SEMANTICS_AT_MOST_ONCE;
    use_rules();
    assert_int_equal(send("k", "p"), SEND_ACCEPTED);
    assert_int_equal(send("k", "p"), SEND_DUPLICATE);
    assert_int_equal(send("", "p"), SEND_ACCEPTED);
    struct leased keyed = receive(), bare = receive();
    assert_true(keyed.ok && bare.ok && bare.fence > keyed.fence);
    assert_false(receive().ok);
    assert_int_equal(state_of("k"), STATE_DONE);
    come_back();
    assert_false(receive().ok);
    assert_int_equal(send("k", "p"), SEND_DUPLICATE);
    assert_int_equal(info().counters.handed_out, 2);
    assert_int_equal(info().counters.delivered, 2);
}

static void a_token_of_at_most_once_may_ack_but_changes_nothing_and_its_nack_is_a_counted_loss(void **state) {
    (void)state;
    rules.semantics = SEMANTICS_AT_MOST_ONCE;
    use_rules();
    send("a", "p");
    send("b", "p");
    send("c", "p");
    struct leased a = receive(), b = receive(), c = receive();
    assert_int_equal(ack(&a, "ignored"), SETTLE_DUPLICATE);
    assert_int_equal(find("a")->settle->result.n, 0);
    assert_int_equal(verb(&a, VERB_EXTEND), SETTLE_DUPLICATE);
    assert_int_equal(verb(&a, VERB_START), SETTLE_DUPLICATE);
    assert_int_equal(verb(&a, VERB_RELEASE), SETTLE_SETTLED);
    assert_int_equal(verb(&a, VERB_RELEASE), SETTLE_SETTLED);
    assert_int_equal(nack(&b, CLASS_TRANSIENT), SETTLE_OK);
    assert_int_equal(nack(&b, CLASS_TRANSIENT), SETTLE_DUPLICATE);
    assert_int_equal(info().counters.lost, 1);
    core_unlease(w.core, w.now, &c.ref, c.fence); /* its reply never left */
    pass(2000);
    come_back();
    assert_int_equal(info().counters.lost, 2);
    assert_false(receive().ok);
}

/* ---- unknown outcomes */

static void reconcile_asks_before_anything_is_done_again(void **state) {
    (void)state;
    rules.on_unknown = ON_UNKNOWN_RECONCILE;
    use_rules();
    send("k", "p");
    struct leased l = receive_as(1000, false);
    assert_int_equal(l.delivery, DELIVERY_FIRST);
    pass(1000); /* a crash */
    come_back();
    l = receive();
    assert_int_equal(l.delivery, DELIVERY_RECONCILE);
    assert_int_equal(nack(&l, CLASS_TRANSIENT), SETTLE_OK);
    pass(10000);
    l = receive();
    assert_int_equal(l.delivery, DELIVERY_RECONCILE);
    assert_int_equal(verb(&l, VERB_RELEASE), SETTLE_OK);
    l = receive();
    assert_int_equal(l.delivery, DELIVERY_RECONCILE);
    assert_int_equal(ack(&l, "it was done"), SETTLE_OK);
    assert_true(slice_eq(find("k")->settle->result, SL("it was done")));
    assert_int_equal(info().counters.reconciled, 3);
}

static void absent_answers_a_look_up_and_lets_the_work_be_done(void **state) {
    (void)state;
    rules.on_unknown = ON_UNKNOWN_RECONCILE;
    use_rules();
    send("k", "p");
    struct leased l = receive();
    assert_int_equal(nack(&l, CLASS_ABSENT), SETTLE_NOT_RECONCILE);
    nack(&l, CLASS_UNKNOWN);
    assert_true(view_of("k").doubt);
    pass(10000);
    l = receive();
    assert_int_equal(nack(&l, CLASS_ABSENT), SETTLE_OK);
    assert_false(view_of("k").doubt);
    come_back();
    l = receive();
    assert_int_equal(l.delivery, DELIVERY_RETRY);
    assert_int_equal(nack(&l, CLASS_ABSENT), SETTLE_NOT_RECONCILE);
    assert_int_equal(ack(&l, "r"), SETTLE_OK);
}

static void look_ups_are_limited_by_the_unknown_attempts_and_then_held(void **state) {
    (void)state;
    rules.on_unknown = ON_UNKNOWN_RECONCILE;
    use_rules();
    send("k", "p");
    struct leased l = receive();
    nack(&l, CLASS_UNKNOWN);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(state_of("k"), STATE_PENDING);
        pass(10000);
        l = receive();
        assert_int_equal(l.delivery, DELIVERY_RECONCILE);
        nack(&l, CLASS_TRANSIENT);
    }
    assert_int_equal(state_of("k"), STATE_HELD);
    assert_int_equal(info().counters.held, 1);
}

static void look_ups_that_crash_are_limited_by_the_crash_attempts_and_then_held(void **state) {
    (void)state;
    rules.on_unknown = ON_UNKNOWN_RECONCILE;
    use_rules();
    send("k", "p");
    for (int i = 0; i < 3; i++) {
        struct leased l = receive_as(1000, false);
        assert_int_equal(l.delivery, i ? DELIVERY_RECONCILE : DELIVERY_FIRST);
        pass(1000);
        come_back();
        pass(0);
    }
    assert_int_equal(state_of("k"), STATE_HELD);
    assert_false(receive().ok);
}

static void hold_sets_unknown_work_aside_at_once_and_its_token_can_still_say_what_happened(void **state) {
    (void)state;
    rules.on_unknown = ON_UNKNOWN_HOLD;
    use_rules();
    send("a", "p");
    send("b", "p");
    struct leased a = receive_as(1000, false), b = receive();
    nack(&b, CLASS_UNKNOWN);
    assert_int_equal(state_of("b"), STATE_HELD);
    pass(1000);
    assert_int_equal(state_of("a"), STATE_HELD);
    come_back();
    assert_false(receive().ok);
    assert_int_equal(verb(&a, VERB_EXTEND), SETTLE_EXPIRED);
    assert_int_equal(ack(&a, "late"), SETTLE_OK);
    assert_int_equal(nack(&b, CLASS_UNKNOWN), SETTLE_DUPLICATE);
}

static void transient_failures_are_retried_under_every_on_unknown(void **state) {
    (void)state;
    for (u8 v = 0; v < ON_UNKNOWN_COUNT; v++) {
        rules.on_unknown = v;
        use_rules();
        const char *key = on_unknown_text((enum on_unknown)v);
        send(key, "p");
        struct leased l = receive();
        nack(&l, CLASS_TRANSIENT);
        pass(10000);
        l = receive();
        assert_int_equal(l.delivery, DELIVERY_RETRY);
        ack(&l, "r");
    }
}

static void who_takes_back_a_crash_by_speaking_up_leaves_no_doubt(void **state) {
    (void)state;
    rules.on_unknown = ON_UNKNOWN_RECONCILE;
    use_rules();
    send("k", "p");
    struct leased l = receive_as(1000, false);
    pass(1000);
    assert_true(view_of("k").doubt);
    assert_int_equal(verb(&l, VERB_RELEASE), SETTLE_OK); /* vouches that nothing was done */
    assert_false(view_of("k").doubt);
    assert_int_equal(receive().delivery, DELIVERY_FIRST);
}

static void work_that_ended_unknown_comes_back_from_the_dead_as_reconcile_whatever_the_rule(void **state) {
    (void)state;
    send("unknown", "p");
    fail_until("unknown", CLASS_UNKNOWN, STATE_DEAD);
    send("failed", "p");
    fail_until("failed", CLASS_TRANSIENT, STATE_DEAD);
    send("crashed", "p");
    for (int i = 0; i < 3; i++) {
        receive_as(1000, false);
        pass(1000);
    }
    assert_int_equal(state_of("crashed"), STATE_DEAD);
    send("crashed, then failed", "p");
    receive_as(1000, false);
    pass(1000);
    fail_until("crashed, then failed", CLASS_TRANSIENT, STATE_DEAD);
    come_back();
    const char *keys[] = {"unknown", "failed", "crashed", "crashed, then failed"};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(redrive(keys[i]), REDRIVE_OK);
        come_back();
        struct leased l = receive();
        assert_string_equal(l.key, keys[i]);
        assert_int_equal(l.delivery, i == 1 ? DELIVERY_RETRY : DELIVERY_RECONCILE);
        if (i != 1) {
            assert_int_equal(nack(&l, CLASS_ABSENT), SETTLE_OK);
            l = receive();
            assert_int_equal(l.delivery, DELIVERY_RETRY);
        }
        ack(&l, "r");
    }
}

/* ---- decisions */

static void a_crash_leaves_doubt_also_when_its_attempt_is_no_longer_kept(void **state) {
    (void)state;
    rules.transient_attempts = HISTORY_ATTEMPTS_KEPT + 2;
    use_rules();
    send("k", "p");
    struct leased first = receive(); /* which is kept */
    nack(&first, CLASS_TRANSIENT);
    pass(10 * 60 * 1000);
    receive_as(1000, false);
    pass(1000);
    fail_until("k", CLASS_TRANSIENT, STATE_DEAD);
    come_back();
    assert_int_equal(redrive("k"), REDRIVE_OK);
    assert_int_equal(receive().delivery, DELIVERY_RECONCILE);
}

static void a_decision_settles_held_and_dead_work_and_kills_the_token(void **state) {
    (void)state;
    rules.on_unknown = ON_UNKNOWN_HOLD;
    use_rules();
    send("k", "p");
    struct leased l = receive_as(1000, false);
    assert_int_equal(resolve("k", DECISION_DONE), RESOLVE_NOT_HELD);
    pass(1000);
    assert_int_equal(resolve("k", DECISION_NEW), RESOLVE_NOT_CONFLICT);
    assert_int_equal(resolve("k", DECISION_DONE), RESOLVE_OK);
    come_back();
    const struct rec_settle *s = find("k")->settle;
    assert_int_equal(s->state, STATE_DONE);
    assert_true(slice_eq(s->result, SL("by hand")));
    struct history_item item;
    assert_true(history_last_decision(s->history, &item));
    assert_int_equal(item.what, DECISION_DONE);
    assert_true(slice_eq(item.consumer, SL("ann")) && slice_eq(item.reason, SL("looked it up")));
    assert_int_equal(ack(&l, "mine"), SETTLE_SETTLED);
    assert_int_equal(resolve("k", DECISION_REJECTED), RESOLVE_SETTLED);
    assert_int_equal(info().counters.resolved, 1);
    assert_int_equal(info().counters.acked, 0);
}

static void retry_by_decision_is_done_again_without_a_look_up_and_with_all_attempts(void **state) {
    (void)state;
    send("k", "p");
    fail_until("k", CLASS_UNKNOWN, STATE_DEAD);
    struct message_view before = view_of("k");
    assert_int_equal(resolve("k", DECISION_RETRY), RESOLVE_OK);
    come_back();
    struct message_view v = view_of("k");
    assert_false(v.doubt);
    assert_int_equal(v.unknowns, 0);
    assert_int_equal(v.attempts, before.attempts);
    assert_int_equal(receive().delivery, DELIVERY_RETRY);
}

static void a_token_is_dead_after_a_decision_also_when_the_work_goes_on(void **state) {
    (void)state;
    rules.on_unknown = ON_UNKNOWN_HOLD;
    use_rules();
    send("k", "p");
    struct leased l = receive_as(1000, false);
    pass(1000);
    assert_int_equal(resolve("k", DECISION_DEAD), RESOLVE_OK);
    come_back();
    assert_int_equal(state_of("k"), STATE_DEAD);
    assert_true(view_of("k").doubt);
    assert_int_equal(ack(&l, "late"), SETTLE_SETTLED);
    assert_int_equal(redrive("k"), REDRIVE_OK);
    assert_int_equal(receive().delivery, DELIVERY_RECONCILE);
}

/* ---- conflicts */

static void a_conflict_is_held_with_its_payload_and_its_repeats_are_its_duplicates(void **state) {
    (void)state;
    rules.on_conflict = ON_CONFLICT_HOLD;
    use_rules();
    char other[KEY_BYTES_MAX + 1];
    send("k", "one");
    assert_int_equal(send_door("k", "two", other), SEND_HELD);
    assert_int_equal(send_door("k", "two", NULL), SEND_DUPLICATE);
    assert_int_equal(send_door("k", "three", NULL), SEND_HELD);
    assert_int_equal(send("k", "one"), SEND_DUPLICATE);
    come_back();
    assert_int_equal(send_door("k", "two", NULL), SEND_DUPLICATE);
    assert_int_equal(info().held, 2);
    assert_int_equal(info().conflict_copies, 2);
    struct seen *s = find(other);
    assert_true(slice_eq(s->message->payload, SL("two")));
    u64 origin = s->message->origin_seq;
    assert_int_equal(find("k")->message->ref.seq, origin);
    struct leased l = receive();
    assert_string_equal(l.key, "k");
    assert_false(receive().ok);
}

static void a_held_conflict_is_decided_as_new_or_as_duplicate_and_as_nothing_else(void **state) {
    (void)state;
    rules.on_conflict = ON_CONFLICT_HOLD;
    use_rules();
    char two[KEY_BYTES_MAX + 1], three[KEY_BYTES_MAX + 1];
    send("k", "one");
    send_door("k", "two", two);
    send_door("k", "three", three);
    assert_int_equal(resolve(two, DECISION_DONE), RESOLVE_CONFLICT);
    assert_int_equal(resolve(two, DECISION_NEW), RESOLVE_OK);
    assert_int_equal(resolve(three, DECISION_DUPLICATE), RESOLVE_OK);
    come_back();
    assert_int_equal(state_of(three), STATE_CANCELLED);
    assert_int_equal(info().conflict_copies, 0);
    receive();
    struct leased l = receive();
    assert_string_equal(l.key, two);
    assert_int_equal(l.delivery, DELIVERY_FIRST);
    assert_int_equal(send_door("k", "three", NULL), SEND_DUPLICATE);
    assert_int_equal(info().counters.conflicts_admitted, 1);
}

static void a_conflict_decided_as_new_takes_its_place_in_its_group(void **state) {
    (void)state;
    rules.on_conflict = ON_CONFLICT_HOLD;
    use_rules();
    send_full("k", "one", "G", 0, 0, NULL);
    struct send_out first, out;
    assert_int_equal(send_full("k", "two", "G", 0, 0, &first), SEND_ELSEWHERE);
    struct send_in in = {.queue = w.queue,
                         .fingerprint = core_fingerprint(w.core, SL("two")),
                         .key = SL("k"),
                         .payload = SL("two"),
                         .group = SL("G")};
    assert_int_equal(core_send_conflict(w.core, w.now, &in, &first, NULL, &out), SEND_HELD);
    send_full("later", "p", "G", 0, 0, NULL);
    char other[KEY_BYTES_MAX + 1] = {0};
    memcpy(other, first.other_key, first.other_key_len);
    come_back();
    struct leased l = receive();
    ack(&l, "r");
    l = receive();
    assert_string_equal(l.key, "later"); /* held, it does not block */
    resolve(other, DECISION_NEW);
    assert_false(receive().ok); /* one of a group at a time */
    ack(&l, "r");
    assert_string_equal(receive().key, other);
}

static void on_conflict_new_admits_at_once_under_a_key_of_its_own(void **state) {
    (void)state;
    rules.on_conflict = ON_CONFLICT_NEW;
    use_rules();
    char other[KEY_BYTES_MAX + 1];
    send("k", "one");
    assert_int_equal(send_door("k", "two", other), SEND_ACCEPTED);
    assert_int_equal(send_door("k", "two", NULL), SEND_DUPLICATE);
    assert_string_equal(receive().key, "k");
    assert_string_equal(receive().key, other);
}

static void a_key_too_long_for_another_is_refused_as_a_conflict(void **state) {
    (void)state;
    rules.on_conflict = ON_CONFLICT_NEW;
    use_rules();
    char key[KEY_BYTES_MAX + 1] = {0};
    memset(key, 'k', KEY_BYTES_MAX - OTHER_KEY_TAIL + 1);
    send(key, "one");
    assert_int_equal(send_door(key, "two", NULL), SEND_CONFLICT);
    key[KEY_BYTES_MAX - OTHER_KEY_TAIL] = 0;
    send(key, "one");
    assert_int_equal(send_door(key, "two", NULL), SEND_ACCEPTED);
}

static void held_conflicts_are_bounded(void **state) {
    (void)state;
    rules.on_conflict = ON_CONFLICT_HOLD;
    use_rules();
    send("k", "one");
    for (u32 i = 0; i <= CONFLICTS_HELD_MAX; i++) {
        char payload[16];
        snprintf(payload, sizeof payload, "p%u", i);
        assert_int_equal(send_door("k", payload, NULL), i < CONFLICTS_HELD_MAX ? SEND_HELD : SEND_CONFLICT);
    }
}

/* ---- dead letters */

static void a_redrive_keeps_key_steps_and_history_and_gives_the_attempts_back(void **state) {
    (void)state;
    send("k", "p");
    struct leased l = receive();
    settle_as(&l, (struct settle_in){.verb = VERB_STEP, .name = SL("s"), .result = SL("x")}, NULL);
    nack(&l, CLASS_POISON);
    assert_int_equal(redrive("k"), REDRIVE_OK);
    assert_int_equal(redrive("k"), REDRIVE_NO_OP);
    pass(2000);
    come_back();
    struct message_view v = view_of("k");
    struct history_item item;
    assert_int_equal(v.failures, 0);
    assert_true(history_find_step(v.history, SL("s"), &item));
    assert_true(history_last_attempt(v.history, &item) && item.failure_class == CLASS_POISON);
    fail_until("k", CLASS_TRANSIENT, STATE_DEAD);
    assert_int_equal(view_of("k").failures, rules.transient_attempts);
    redrive("k");
    l = receive();
    ack(&l, "r");
    assert_int_equal(redrive("k"), REDRIVE_NO_OP);
    assert_int_equal(info().counters.redriven, 2);
    assert_int_equal(info().counters.no_op, 2);
}

/* ---- order */

static void send_group(const char *group, int from, int to) {
    for (int i = from; i <= to; i++) {
        char key[16];
        snprintf(key, sizeof key, "%s%d", group, i);
        assert_int_equal(send_full(key, "p", group, 0, 0, NULL), SEND_ACCEPTED);
    }
}

static void skip_lets_a_group_go_on_past_its_dead_and_a_redriven_one_comes_before_the_younger(void **state) {
    (void)state;
    rules.on_dead = ON_DEAD_SKIP;
    use_rules();
    send_group("g", 1, 4);
    struct leased l = receive();
    nack(&l, CLASS_POISON);
    l = receive();
    assert_string_equal(l.key, "g2");
    assert_int_equal(redrive("g1"), REDRIVE_OK);
    assert_false(receive().ok); /* g2 is in flight */
    come_back();
    assert_false(receive().ok);
    ack(&l, "r");
    l = receive();
    assert_string_equal(l.key, "g1");
    assert_false(receive().ok);
    ack(&l, "r");
    l = receive();
    assert_string_equal(l.key, "g3");
}

static void a_lease_that_ran_out_behind_a_redriven_head_cannot_be_revived_beside_it(void **state) {
    (void)state;
    rules.on_dead = ON_DEAD_SKIP;
    use_rules();
    send_group("g", 1, 2);
    struct leased l = receive();
    nack(&l, CLASS_POISON);
    struct leased second = receive_as(1000, false);
    redrive("g1");
    pass(1000);
    assert_string_equal(receive().key, "g1");
    assert_int_equal(verb(&second, VERB_EXTEND), SETTLE_EXPIRED);
    assert_int_equal(ack(&second, "still counts"), SETTLE_OK);
}

static void skip_goes_past_held_heads_and_block_does_not(void **state) {
    (void)state;
    rules.on_unknown = ON_UNKNOWN_HOLD;
    use_rules();
    send_group("block", 1, 2);
    struct leased l = receive();
    nack(&l, CLASS_UNKNOWN);
    come_back();
    assert_false(receive().ok);
    rules.on_dead = ON_DEAD_SKIP;
    use_rules();
    send_group("skip", 1, 2);
    l = receive();
    nack(&l, CLASS_UNKNOWN);
    come_back();
    assert_string_equal(receive().key, "skip2");
    assert_false(receive().ok); /* a rule counts from its change on */
}

static void a_dead_head_takes_its_group_and_later_arrivals_and_brings_them_back_in_order(void **state) {
    (void)state;
    rules.on_dead = ON_DEAD_GROUP;
    use_rules();
    send_group("g", 1, 3);
    send_group("h", 1, 1);
    struct leased l = receive();
    nack(&l, CLASS_POISON);
    assert_int_equal(state_of("g2"), STATE_DEAD);
    assert_true(view_of("g3").taken);
    send_group("g", 4, 4);
    assert_int_equal(state_of("g4"), STATE_DEAD);
    assert_int_equal(info().counters.dead_lettered, 3);
    come_back();
    assert_int_equal(info().dead, 4);
    assert_int_equal(redrive("g2"), REDRIVE_TAKEN);
    assert_int_equal(resolve("g2", DECISION_RETRY), RESOLVE_TAKEN);
    assert_string_equal(receive().key, "h1");
    assert_false(receive().ok);
    u32 count;
    struct ref ref = find("g1")->message->ref;
    assert_int_equal(core_redrive(w.core, w.now, &ref, SL("ann"), SL(""), &count), REDRIVE_OK);
    assert_int_equal(count, 4);
    come_back();
    for (int i = 1; i <= 4; i++) {
        char key[16];
        snprintf(key, sizeof key, "g%d", i);
        l = receive();
        assert_string_equal(l.key, key);
        assert_false(receive().ok);
        ack(&l, "r");
    }
}

static void a_group_comes_back_when_its_dead_head_is_cancelled_or_settled(void **state) {
    (void)state;
    rules.on_dead = ON_DEAD_GROUP;
    use_rules();
    send_group("g", 1, 3);
    struct leased l = receive();
    nack(&l, CLASS_POISON);
    assert_int_equal(core_cancel(w.core, w.now, find("g1"), SL("no"), NULL), CANCEL_OK);
    come_back();
    l = receive();
    assert_string_equal(l.key, "g2");
    nack(&l, CLASS_POISON);
    assert_int_equal(state_of("g3"), STATE_DEAD);
    assert_int_equal(resolve("g2", DECISION_DONE), RESOLVE_OK);
    assert_string_equal(receive().key, "g3");
}

/* Ticks with a small budget until all have followed. No tick moves more than its budget. */
static u32 ticks_until_followed(u64 dead) {
    for (u32 ticks = 0;; ticks++) {
        u64 before = info().dead;
        if (before == dead) return ticks;
        bool more = core_tick(w.core, w.now, 500);
        u64 after = info().dead;
        assert_int_equal(more, after != dead);
        assert_in_range(after > before ? after - before : before - after, 1, 500);
        assert_int_equal(core_next_ms(w.core, w.now, 1000), after == dead ? 1000 : 0);
    }
}

static void a_large_group_dies_and_comes_back_a_few_members_at_a_time(void **state) {
    (void)state;
    enum { MEMBERS = 6000 };
    rules.on_dead = ON_DEAD_GROUP;
    use_rules();
    send_group("g", 1, MEMBERS);
    compact_upto(w.count / 2); /* half of them come late, after the others */
    come_back();
    struct leased l = receive();
    nack(&l, CLASS_POISON);
    assert_int_equal(info().counters.dead_lettered, MEMBERS);
    assert_in_range(info().dead, 2, 1100);
    assert_false(receive().ok);
    restart_after(0);
    assert_false(receive().ok);
    assert_true(ticks_until_followed(MEMBERS) >= 9);
    assert_int_equal(info().counters.dead_lettered, MEMBERS);

    u32 count; /* back, and dead again before they all were */
    struct ref ref = find("g1")->message->ref;
    assert_int_equal(core_redrive(w.core, w.now, &ref, SL("ann"), SL(""), &count), REDRIVE_OK);
    assert_int_equal(count, MEMBERS);
    core_tick(w.core, w.now, 500);
    l = receive();
    assert_string_equal(l.key, "g1");
    nack(&l, CLASS_POISON);
    assert_int_equal(core_redrive(w.core, w.now, &ref, SL("ann"), SL(""), &count), REDRIVE_OK);
    assert_int_equal(count, MEMBERS);
    core_tick(w.core, w.now, 500);
    come_back(); /* a restart finds the same */
    ticks_until_followed(0);
    assert_int_equal(info().behind, MEMBERS - 1);
    for (int i = 1; i <= 20; i++) {
        char key[16];
        snprintf(key, sizeof key, "g%d", i);
        l = receive();
        assert_string_equal(l.key, key);
        ack(&l, "r");
    }
}

/* Members come and go while the others follow; a purge of the dead lets none of them escape. */
static void a_purge_of_the_dead_takes_all_of_a_group_that_is_still_dying(void **state) {
    (void)state;
    rules.on_dead = ON_DEAD_GROUP;
    use_rules();
    send_group("g", 1, 4000);
    struct leased l = receive();
    nack(&l, CLASS_POISON);
    for (int i = 1002; i < 1100; i++) {
        char key[16];
        snprintf(key, sizeof key, "g%d", i);
        assert_int_equal(core_cancel(w.core, w.now, find(key), SL("no"), NULL), CANCEL_OK);
    }
    struct core_purge purge = {.queue = w.queue, .only = STATE_DEAD};
    core_purge_begin(w.core, &purge);
    u32 no, purged = 0;
    for (enum walk_verdict v; (v = core_purge_next(w.core, &purge, 1000, &no)) != WALK_END;) {
        if (v == WALK_MORE) {
            core_tick(w.core, w.now, 300);
            continue;
        }
        struct message_view view;
        struct core_cursor cursor = {0};
        struct found f;
        core_message_view(w.core, w.now, no, &view);
        while (core_find(w.core, view.ref.hash, &cursor, &f) && f.message != no) {
        }
        assert_int_equal(core_cancel(w.core, w.now, load(&f), SL("purged"), NULL), CANCEL_OK);
        purged++;
    }
    core_purge_end(w.core, &purge);
    assert_int_equal(purged, 4000 - 98);
    assert_int_equal(info().unsettled, 0);
}

/* ---- windows */

static void settle_key(const char *key) {
    assert_int_equal(send(key, "p"), SEND_ACCEPTED);
    struct leased l = receive();
    assert_string_equal(l.key, key);
    assert_int_equal(ack(&l, "r"), SETTLE_OK);
}

static void a_shortened_window_keeps_what_was_promised(void **state) {
    (void)state;
    settle_key("old");
    pass(1000);
    rules.window_ms = HOUR;
    use_rules();
    pass(1); /* in the very millisecond of the change the longer one still counts */
    settle_key("young");
    come_back();
    pass(HOUR);
    assert_int_equal(send("young", "p"), SEND_ACCEPTED);
    assert_int_equal(send("old", "p"), SEND_DUPLICATE);
    come_back();
    pass(22 * HOUR);
    assert_int_equal(send("old", "p"), SEND_DUPLICATE);
    assert_int_equal(info().promised_window_ms, 24 * HOUR);
    pass(2 * HOUR);
    assert_int_equal(send("old", "p"), SEND_ACCEPTED);
}

static void a_widened_window_extends_what_is_known(void **state) {
    (void)state;
    settle_key("k");
    rules.window_ms = 48 * HOUR;
    use_rules();
    come_back();
    pass(47 * HOUR);
    assert_int_equal(send("k", "p"), SEND_DUPLICATE);
    pass(2 * HOUR);
    assert_int_equal(send("k", "p"), SEND_ACCEPTED);
}

static void a_key_once_promised_forever_stays_when_the_window_ends_for_others(void **state) {
    (void)state;
    settle_key("a"); /* 24 h, then forever with the rest */
    rules.window_ms = WINDOW_FOREVER;
    use_rules();
    settle_key("b");
    pass(1);
    rules.window_ms = HOUR;
    use_rules();
    pass(1);
    settle_key("c");
    for (int i = 0; i < 4; i++) {
        pass(24 * HOUR);
        if (i % 2) come_back();
    }
    struct core_memory m;
    core_memory(w.core, &m);
    assert_int_equal(m.settled_keys, 2);
    assert_int_equal(send("a", "p"), SEND_DUPLICATE);
    assert_int_equal(send("b", "p"), SEND_DUPLICATE);
    assert_int_equal(send("c", "p"), SEND_ACCEPTED);
}

static void what_is_forgotten_stays_so_when_the_window_becomes_forever(void **state) {
    (void)state;
    settle_key("k");
    w.now.run_ms += 30 * HOUR;
    core_tick(w.core, w.now, 0); /* forgotten, but its memory is not yet freed */
    assert_null(find("k"));
    rules.window_ms = WINDOW_FOREVER;
    use_rules();
    assert_null(find("k"));
    restart_after(0);
    assert_null(find("k"));
    pass(1000);
}

static u32 find_count(u32 round) {
    u32 found = 0;
    for (u32 n = 0; n < 300; n++) {
        char key[16];
        snprintf(key, sizeof key, "%u.%u", round, n);
        found += find(key) != NULL;
    }
    return found;
}

/* A queue deleted or a window over makes more unknown at once than a tick frees. Nothing of them is carried. */
static void compaction_may_meet_keys_that_are_forgotten_and_not_yet_freed(void **state) {
    (void)state;
    static const i64 windows[] = {HOUR, WINDOW_FOREVER};
    for (u32 i = 0; i < 4; i++) {
        rules.window_ms = windows[i & 1];
        use_rules();
        for (u32 n = 0; n < 300; n++) {
            char key[16];
            snprintf(key, sizeof key, "%u.%u", i, n);
            settle_key(key);
            assert_int_equal(send(key, "p"), SEND_DUPLICATE);
        }
        pass(2000); /* the repeats are written down */
        w.now.run_ms += 30 * HOUR;
        if (i & 2) assert_int_equal(core_queue_delete(w.core, w.now, w.queue, NULL), DELETE_OK);
        core_tick(w.core, w.now, 10);
        compact();
        core_tick(w.core, w.now, 100);
        compact();
        assert_int_equal(find_count(i), i == 1 ? 300 : 0);
        pass(2000);
        compact();
        restart_after(0);
        assert_int_equal(find_count(i), i == 1 ? 300 : 0);
        compact();
    }
}

static void any_number_of_changes_never_shortens_a_promise(void **state) {
    (void)state;
    i64 until[40];
    struct rng rng;
    rng_seed(&rng, 7);
    for (int i = 0; i < 40; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        rules.window_ms = (i64)(1 + rng_below(&rng, 40)) * HOUR;
        use_rules();
        settle_key(key);
        until[i] = w.now.run_ms + rules.window_ms;
        for (int k = 0; k < i; k++) /* what is shown is promised */
            if (until[k] > w.now.run_ms) {
                snprintf(key, sizeof key, "k%d", k);
                struct seen *s = find(key);
                assert_non_null(s);
                i64 end = w.now.run_ms + core_key_left_ms(w.core, w.now, s->settle);
                assert_true(end >= until[k]);
                until[k] = end;
            }
        pass((i64)rng_below(&rng, 3) * HOUR);
        if (i % 5 == 0) come_back();
    }
}

static void an_adaptive_window_grows_to_twice_the_oldest_replay_within_its_bounds(void **state) {
    (void)state;
    rules.window_min_ms = HOUR;
    rules.window_max_ms = 10 * HOUR;
    use_rules();
    assert_int_equal(info().rules.window_ms, HOUR);
    settle_key("k");
    pass(HOUR / 4);
    send("k", "p");
    assert_int_equal(info().rules.window_ms, HOUR);
    pass(HOUR / 2);
    send("k", "p");
    assert_int_equal(info().rules.window_ms, HOUR / 2 * 3);
    come_back();
    assert_int_equal(info().rules.window_ms, HOUR / 2 * 3);
    assert_int_equal(info().oldest_replay_ms, HOUR / 4 * 3);
    use_rules(); /* the same rules again forget nothing that was learnt */
    assert_int_equal(info().rules.window_ms, HOUR / 2 * 3);
    settle_key("late");
    pass(HOUR / 2 * 3); /* just too late: admitted, and learnt from */
    assert_int_equal(send("late", "p"), SEND_ACCEPTED);
    assert_int_equal(info().rules.window_ms, 3 * HOUR);
    struct leased l = receive();
    ack(&l, "r");
    settle_key("very late");
    rules.window_max_ms = 2 * HOUR;
    use_rules();
    assert_int_equal(info().rules.window_ms, 2 * HOUR);
    pass(HOUR / 2 * 5);
    assert_int_equal(send("very late", "p"), SEND_DUPLICATE); /* it was promised three */
}

/* ---- backpressure */

static void a_full_queue_refuses_new_work_until_it_is_a_fifth_below_its_limit(void **state) {
    (void)state;
    rules.limit_pending = 10;
    use_rules();
    char key[16];
    for (int i = 0; i < 10; i++) {
        snprintf(key, sizeof key, "k%d", i);
        assert_int_equal(send(key, "p"), SEND_ACCEPTED);
    }
    assert_int_equal(send("more", "p"), SEND_BACKPRESSURE);
    assert_int_equal(send("k3", "p"), SEND_DUPLICATE);
    assert_int_equal(send("k3", "other"), SEND_CONFLICT);
    for (int i = 0; i < 2; i++) {
        struct leased l = receive();
        ack(&l, "r");
        assert_int_equal(send("more", "p"), SEND_BACKPRESSURE);
        assert_true(info().pressed);
    }
    struct leased l = receive();
    ack(&l, "r");
    assert_int_equal(send("more", "p"), SEND_ACCEPTED);
    pass(2000);
    restart_after(0);
    assert_int_equal(info().counters.backpressured, 3);
}

static void bytes_and_lag_are_limits_too(void **state) {
    (void)state;
    rules.limit_bytes = 100;
    use_rules();
    char payload[64] = {0};
    memset(payload, 'x', 60);
    assert_int_equal(send("a", payload), SEND_ACCEPTED);
    assert_int_equal(send("b", payload), SEND_BACKPRESSURE);
    come_back();
    assert_int_equal(send("b", payload), SEND_BACKPRESSURE);
    struct leased l = receive();
    ack(&l, "r");
    assert_int_equal(info().unsettled_bytes, 0);
    assert_int_equal(send("b", payload), SEND_ACCEPTED);
    rules.limit_bytes = 0;
    rules.limit_lag_ms = 5000;
    use_rules();
    pass(4999);
    assert_int_equal(send("c", "p"), SEND_ACCEPTED);
    pass(1);
    assert_int_equal(send("d", "p"), SEND_BACKPRESSURE);
    receive();
    assert_int_equal(send("d", "p"), SEND_ACCEPTED);
    pass(4100); /* c has waited for more than four fifths of it, d has not */
    assert_int_equal(send("e", "p"), SEND_ACCEPTED);
    pass(1000);
    assert_int_equal(send("f", "p"), SEND_BACKPRESSURE);
    receive();
    assert_int_equal(send("f", "p"), SEND_BACKPRESSURE);
    receive();
    assert_int_equal(send("f", "p"), SEND_ACCEPTED);
}

/* ---- replay */

static enum again_verdict again(const char *key) {
    struct send_out out;
    return core_again(w.core, w.now, find(key), AUDIT("ann", "wanted"), &out);
}

static void a_settled_key_runs_again_as_the_next_generation_while_its_payload_is_kept(void **state) {
    (void)state;
    rules.keep_payload_ms = HOUR;
    use_rules();
    send_full("k", "pay", "G", 0, 0, NULL);
    assert_int_equal(again("k"), AGAIN_NOT_SETTLED);
    struct leased l = receive();
    settle_as(&l, (struct settle_in){.verb = VERB_STEP, .name = SL("s"), .result = SL("x")}, NULL);
    ack(&l, "first");
    come_back();
    for (u32 generation = 1; generation <= 2; generation++) {
        assert_int_equal(again("k"), AGAIN_OK);
        come_back();
        struct message_view v = view_of("k");
        struct history_item item;
        assert_int_equal(v.generation, generation);
        assert_false(history_find_step(v.history, SL("s"), &item));
        assert_true(history_last_decision(v.history, &item) && item.what == DECISION_REPLAY);
        assert_true(slice_eq(find("k")->message->payload, SL("pay")));
        assert_true(slice_eq(find("k")->message->group, SL("G")));
        assert_int_equal(send("k", "pay"), SEND_DUPLICATE);
        assert_int_equal(send("k", "other"), SEND_CONFLICT);
        struct leased next = receive();
        assert_int_equal(next.delivery, DELIVERY_FIRST);
        assert_int_equal(settle_as(&next, (struct settle_in){.verb = VERB_ACK, .result = SL("again")}, NULL),
                         SETTLE_OK);
        come_back();
    }
    assert_int_equal(find("k")->settle->generation, 2);
    assert_int_equal(info().counters.replayed, 2);
    assert_int_equal(info().counters.accepted, 1);
    pass(HOUR);
    assert_int_equal(again("k"), AGAIN_PAYLOAD_GONE);
    assert_int_equal(send("k", "pay"), SEND_DUPLICATE);
}

static void use_account(u64 pending, u64 bytes) {
    struct account_limits limits = {.pending = pending, .bytes = bytes};
    core_accounts_set(w.core, &limits, 1);
    for (u32 queue = 1; queue <= core_queue_count(w.core); queue++) core_queue_account(w.core, (u16)queue, 1);
}

static void queues_of_one_account_share_its_limit(void **state) {
    (void)state;
    u16 first = w.queue;
    assert_true(core_queue_ensure(w.core, w.now, SL("second"), &rules, &w.queue));
    use_account(2, 0);
    assert_int_equal(send("a", "p"), SEND_ACCEPTED);
    w.queue = first;
    assert_int_equal(send("a", "p"), SEND_ACCEPTED);
    u64 written = w.count;
    assert_int_equal(send("b", "p"), SEND_OVER_PENDING);
    assert_int_equal(w.count, written);
    assert_int_equal(send("a", "p"), SEND_DUPLICATE); /* whoever asks what became of it is told */
    assert_int_equal(core_account_sums(w.core, 1).pending, 2);
    restart_after(0);
    use_account(2, 0);
    assert_int_equal(send("b", "p"), SEND_OVER_PENDING);
    struct leased l = receive();
    assert_int_equal(send("b", "p"), SEND_OVER_PENDING);
    ack(&l, "r");
    assert_int_equal(send("b", "p"), SEND_ACCEPTED);
    assert_int_equal(core_account_sums(w.core, 1).queues, 2);
}

static void what_settled_keys_take_counts_in_an_accounts_bytes_until_they_are_forgotten(void **state) {
    (void)state;
    rules.window_ms = HOUR;
    use_rules();
    pass(1); /* what settles from now on */
    static char payload[3001];
    memset(payload, 'x', 3000);
    use_account(0, 4096);
    assert_int_equal(send("a", payload), SEND_ACCEPTED);
    assert_int_equal(send("b", payload), SEND_OVER_BYTES);
    struct leased l = receive();
    ack(&l, payload); /* what was taken in can be settled, with a result as large as it likes */
    assert_int_equal(send("b", payload), SEND_OVER_BYTES);
    restart_after(0);
    use_account(0, 4096);
    assert_int_equal(send("b", payload), SEND_OVER_BYTES);
    pass(2 * HOUR);
    pass(60000); /* forgotten then, freed now */
    assert_int_equal(core_account_sums(w.core, 1).bytes, 0);
    assert_int_equal(send("b", payload), SEND_ACCEPTED);
}

static void a_deleted_queue_leaves_its_account_at_once(void **state) {
    (void)state;
    use_account(0, 0);
    send("a", "p");
    struct leased l = receive();
    ack(&l, "r");
    assert_true(core_account_sums(w.core, 1).bytes > 0);
    assert_int_equal(core_queue_delete(w.core, w.now, w.queue, NULL), DELETE_OK);
    struct account_sums none = {0}, sums = core_account_sums(w.core, 1);
    assert_memory_equal(&sums, &none, sizeof none);
    pass(1000); /* its keys are freed meanwhile */
    sums = core_account_sums(w.core, 1);
    assert_memory_equal(&sums, &none, sizeof none);
}

static void an_operator_replays_over_the_limit(void **state) {
    (void)state;
    rules.keep_payload_ms = HOUR;
    use_rules();
    use_account(1, 0);
    send("a", "p");
    struct leased l = receive();
    ack(&l, "r");
    assert_int_equal(send("b", "p"), SEND_ACCEPTED);
    assert_int_equal(again("a"), AGAIN_OK);
    assert_int_equal(core_account_sums(w.core, 1).pending, 2);
    assert_int_equal(send("c", "p"), SEND_OVER_PENDING);
}

static void a_payload_past_its_keep_leaves_the_journal_with_the_next_compaction(void **state) {
    (void)state;
    rules.keep_payload_ms = HOUR;
    use_rules();
    static char payload[10001];
    memset(payload, 'x', 10000);
    send("k", payload);
    struct leased l = receive();
    ack(&l, "r");
    compact();
    assert_true(core_live_bytes(w.core) > 10000);
    assert_true(find("k")->settle->kept.is);
    pass(HOUR + 20 * 60 * 1000);
    assert_true(core_live_bytes(w.core) < 5000);
    compact();
    restart_after(0);
    assert_false(find("k")->settle->kept.is);
    assert_true(core_live_bytes(w.core) < 5000);
}

static void a_settlement_without_room_for_the_payload_goes_without_it(void **state) {
    (void)state;
    rules.keep_payload_ms = HOUR;
    use_rules();
    static char payload[200001];
    memset(payload, 'x', 200000);
    send("k", payload);
    set_room(core_reserved_bytes(w.core) + 70000);
    struct leased l = receive();
    assert_int_equal(ack(&l, "r"), SETTLE_OK);
    assert_false(find("k")->settle->kept.is);
}

static void a_walk_meets_everything_of_its_queue_a_bounded_part_at_a_time(void **state) {
    (void)state;
    u16 mine = w.queue;
    struct rules other = rules_default();
    for (int i = 0; i < 50; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        assert_true(core_queue_ensure(w.core, w.now, i % 2 ? SL("other") : SL("q"), &other, &w.queue));
        send(key, "p");
        if (i % 4 == 0) {
            struct leased l = receive();
            ack(&l, "r");
        }
        if (i == 25) pass(1000);
    }
    u32 cursor = 0, seen = 0, recent = 0, calls = 0;
    struct found f;
    for (enum walk_verdict v; (v = core_walk(w.core, mine, 0, 1, &cursor, &f)) != WALK_END; calls++)
        if (v == WALK_FOUND) seen++;
    assert_int_equal(seen, 25);
    assert_int_equal(calls, 50);
    cursor = 0;
    for (enum walk_verdict v; (v = core_walk(w.core, mine, 500, 7, &cursor, &f)) != WALK_END;)
        if (v == WALK_FOUND) recent++;
    assert_in_range(recent, 12, 19); /* the unsettled, and what settled in the second half */
}

/* ---- erase, forget, purge */

static bool journal_holds(const char *text) {
    for (u64 i = w.first; i < w.count; i++)
        if (memmem(w.records[i].body, w.records[i].n, text, strlen(text))) return true;
    return false;
}

static void erased_words_leave_the_journal_and_the_key_stays(void **state) {
    (void)state;
    rules.keep_payload_ms = HOUR;
    use_rules();
    send("k", "secret-payload");
    struct leased l = receive();
    settle_as(&l, (struct settle_in){.verb = VERB_STEP, .name = SL("s"), .result = SL("secret-step")}, NULL);
    assert_int_equal(core_erase(w.core, w.now, find("k"), AUDIT("ann", "gdpr")), ERASE_LEASED);
    ack(&l, "secret-result");
    come_back();
    assert_true(journal_holds("secret-payload") && journal_holds("secret-result") && journal_holds("secret-step"));
    u64 before = w.count;
    assert_int_equal(core_erase(w.core, w.now, find("k"), AUDIT("ann", "gdpr")), ERASE_OK);
    assert_int_equal(core_erase(w.core, w.now, find("k"), AUDIT("ann", "gdpr")), ERASE_ALREADY);
    assert_true(core_erase_upto(w.core) > before);
    restart_after(0);
    assert_true(core_erase_upto(w.core) > before);
    compact_upto(core_erase_upto(w.core) - 1);
    assert_false(journal_holds("secret"));
    restart_after(0);
    const struct rec_settle *s = find("k")->settle;
    assert_true(s->erased && s->state == STATE_DONE && s->result.n == 0);
    assert_int_equal(send("k", "secret-payload"), SEND_DUPLICATE);
    assert_int_equal(again("k"), AGAIN_PAYLOAD_GONE);
    assert_int_equal(ack(&l, "x"), SETTLE_DUPLICATE);
    assert_int_equal(info().counters.erased, 1);
}

static void erasing_unsettled_work_cancels_it(void **state) {
    (void)state;
    send("k", "secret");
    assert_int_equal(core_erase(w.core, w.now, find("k"), AUDIT("ann", "gdpr")), ERASE_OK);
    compact();
    assert_false(journal_holds("secret"));
    restart_after(0);
    assert_int_equal(state_of("k"), STATE_CANCELLED);
    assert_false(receive().ok);
    assert_int_equal(send("k", "secret"), SEND_DUPLICATE);
}

static void a_key_forgotten_before_its_repeats_are_written_down_leaves_those_of_others_alone(void **state) {
    (void)state;
    static const char *const keys[] = {"a", "b", "c"};
    for (u32 round = 0; round < 3; round++)
        for (u32 i = 0; i < 3; i++) send(keys[i], "p");
    assert_int_equal(core_forget(w.core, w.now, find("b"), AUDIT("ann", "")), FORGET_OK);
    assert_int_equal(send("b", "p"), SEND_ACCEPTED);
    assert_int_equal(send("b", "p"), SEND_DUPLICATE);
    pass(2000);
    restart_after(0);
    for (u32 i = 0; i < 3; i++) {
        struct arrivals a;
        core_arrivals_view(w.core, find(keys[i]), &a);
        assert_int_equal(a.duplicates, i == 1 ? 1 : 2);
    }
    struct queue_info q;
    core_queue_info(w.core, w.now, w.queue, &q);
    assert_int_equal(q.counters.duplicates, 7); /* the queue's count goes on */
}

static void a_forgotten_key_is_new_again_settled_or_not_but_not_while_leased(void **state) {
    (void)state;
    struct core_memory m;
    send_full("k", "p", "G", 0, 0, NULL);
    send("k", "p");
    struct leased l = receive();
    assert_int_equal(core_forget(w.core, w.now, find("k"), AUDIT("ann", "")), FORGET_LEASED);
    verb(&l, VERB_RELEASE);
    assert_int_equal(core_forget(w.core, w.now, find("k"), AUDIT("ann", "")), FORGET_OK);
    assert_null(find("k"));
    restart_after(0);
    assert_null(find("k"));
    settle_key("k");
    pass(2000);
    assert_int_equal(core_forget(w.core, w.now, find("k"), AUDIT("ann", "")), FORGET_OK);
    restart_after(0);
    assert_null(find("k"));
    compact();
    restart_after(0);
    assert_null(find("k"));
    core_memory(w.core, &m);
    assert_int_equal(m.messages, 0);
    assert_int_equal(m.groups, 0);
    assert_int_equal(info().counters.forgotten, 2);
    assert_int_equal(send("k", "different"), SEND_ACCEPTED);
}

static void a_purge_cancels_what_was_there_and_lets_nobody_out_on_the_way(void **state) {
    (void)state;
    rules.on_dead = ON_DEAD_GROUP;
    use_rules();
    send_group("g", 1, 5);
    struct leased l = receive();
    nack(&l, CLASS_POISON);
    send_group("h", 1, 5);
    send_full("late", "p", NULL, 60000, 0, NULL);
    send("leased", "p");
    receive(); /* h1 */
    struct core_purge purge = {.queue = w.queue, .only = STATE_COUNT};
    core_purge_begin(w.core, &purge);
    u32 readies = w.readies;
    u32 cancelled = 0;
    send("new", "p");
    for (u32 no; core_purge_next(w.core, &purge, 100, &no) == WALK_FOUND; cancelled++) {
        struct message_view v;
        core_message_view(w.core, w.now, no, &v);
        struct core_cursor cursor = {0};
        struct found f;
        while (core_find(w.core, v.ref.hash, &cursor, &f) && f.message != no) {
        }
        assert_int_equal(core_cancel(w.core, w.now, load(&f), SL("purged"), NULL), CANCEL_OK);
    }
    core_purge_end(w.core, &purge);
    assert_int_equal(cancelled, 11);
    assert_int_equal(w.readies, readies);
    come_back();
    assert_int_equal(state_of("g3"), STATE_CANCELLED);
    assert_int_equal(info().unsettled, 2);
    assert_string_equal(receive().key, "new");
}

/* ---- refused copies */

static enum refuse_verdict refuse(const char *payload) {
    struct ref ref;
    struct send_in in = {
        .queue = w.queue, .fingerprint = core_fingerprint(w.core, slice_str(payload)), .payload = slice_str(payload)};
    return core_refuse(w.core, w.now, &in, SL("amount: not an integer"), &ref);
}

static void what_is_refused_has_one_copy_per_payload_in_the_dead_lane_within_its_bounds(void **state) {
    (void)state;
    rules.refused_kept = 3;
    rules.refused_bytes = 100;
    use_rules();
    assert_int_equal(refuse("one"), REFUSE_KEPT);
    assert_int_equal(refuse("one"), REFUSE_KNOWN);
    assert_int_equal(refuse("two"), REFUSE_KEPT);
    pass(2000);
    come_back();
    assert_int_equal(refuse("one"), REFUSE_KNOWN);
    char large[101] = {0};
    memset(large, 'x', 100);
    assert_int_equal(refuse(large), REFUSE_BEYOND);
    assert_int_equal(refuse("three"), REFUSE_KEPT);
    assert_int_equal(refuse("four"), REFUSE_BEYOND);
    assert_false(receive().ok);
    u32 no = core_list(w.core, w.queue, STATE_DEAD, MESSAGE_NONE);
    struct message_view v;
    struct history_item item;
    core_message_view(w.core, w.now, no, &v);
    assert_true(v.refused && history_last_decision(v.history, &item));
    assert_true(slice_eq(item.reason, SL("amount: not an integer")));
    u32 count;
    assert_int_equal(core_redrive(w.core, w.now, &v.ref, SL(""), SL(""), &count), REDRIVE_REFUSED);
    struct core_cursor cursor = {0};
    struct found f;
    assert_true(core_find(w.core, v.ref.hash, &cursor, &f));
    assert_int_equal(core_cancel(w.core, w.now, load(&f), SL("seen"), NULL), CANCEL_OK);
    assert_int_equal(refuse("four"), REFUSE_KEPT);
    assert_int_equal(refuse("one"), REFUSE_KNOWN); /* cancelled, but not a window ago */
    pass(2000);
    come_back();
    assert_int_equal(info().counters.refused, 9);
    assert_int_equal(info().refused_copies, 3);
}

/* ---- queues and the trail */

static void rules_origin_and_text_of_a_queue_outlive_restarts(void **state) {
    (void)state;
    rules.on_unknown = ON_UNKNOWN_RECONCILE;
    rules.semantics = SEMANTICS_AT_MOST_ONCE;
    rules.limit_lag_ms = 77;
    rules.keep_payload_ms = 5;
    u64 before = w.count;
    struct queue_spec spec = {.rules = rules, .origin = ORIGIN_FILE, .config = SL("{\"window\":\"24h\"}")};
    assert_true(core_queue_set(w.core, w.now, SL("q"), &spec, NULL, &w.queue));
    assert_int_equal(w.count, before + 1);
    assert_true(core_queue_set(w.core, w.now, SL("q"), &spec, NULL, &w.queue));
    assert_int_equal(w.count, before + 1); /* nothing new is nothing to write */
    come_back();
    struct queue_info q = info();
    assert_true(rules_equal(&q.rules, &rules));
    assert_int_equal(q.origin, ORIGIN_FILE);
    assert_true(slice_eq(q.config, SL("{\"window\":\"24h\"}")));
}

static void a_deleted_queue_takes_its_keys_along_and_its_name_is_free(void **state) {
    (void)state;
    rules.window_ms = WINDOW_FOREVER;
    use_rules();
    settle_key("a");
    rules.window_ms = HOUR;
    use_rules();
    settle_key("b");
    send("c", "p");
    assert_int_equal(core_queue_delete(w.core, w.now, w.queue, NULL), DELETE_UNSETTLED);
    core_cancel(w.core, w.now, find("c"), SL("purged"), NULL);
    assert_int_equal(core_queue_delete(w.core, w.now, w.queue, NULL), DELETE_OK);
    u16 old = w.queue;
    assert_null(find("a"));
    assert_false(core_queue_find(w.core, SL("q"), &w.queue));
    struct rules fresh = rules_default();
    assert_true(core_queue_ensure(w.core, w.now, SL("q"), &fresh, &w.queue));
    assert_int_equal(w.queue, old); /* so is its number */
    assert_null(find("a"));
    assert_null(find("b"));
    restart_after(0);
    pass(2000);
    struct core_memory m;
    core_memory(w.core, &m);
    assert_int_equal(m.settled_keys, 0);
    come_back();
    assert_true(core_queue_find(w.core, SL("q"), &w.queue));
    assert_int_equal(send("a", "p"), SEND_ACCEPTED);
}

/* Of a message of a queue that is gone, by what a client still holds. */
static bool known_by_token(const struct leased *l) {
    struct core_cursor cursor = {0};
    struct found f;
    while (core_find(w.core, l->ref.hash, &cursor, &f)) {
        const struct seen *s = load(&f);
        if ((s->settle ? s->settle->ref.seq : s->message->ref.seq) == l->ref.seq) return true;
    }
    return false;
}

static void make_anew(i64 window_ms) {
    u16 old = w.queue;
    assert_int_equal(core_queue_delete(w.core, w.now, w.queue, NULL), DELETE_OK);
    struct rules fresh = rules_default();
    fresh.window_ms = window_ms;
    assert_true(core_queue_ensure(w.core, w.now, SL("another"), &fresh, &w.queue));
    assert_int_equal(w.queue, old);
}

static void assert_only_the_new_one(const struct leased *former) {
    assert_int_equal(state_of("k"), STATE_DONE);
    assert_int_equal(find("k")->settle->ref.seq > former->ref.seq, 1);
    assert_null(find("old"));
    assert_false(known_by_token(former));
    assert_int_equal(info().settled_keys, 1);
    assert_int_equal(info().counters.accepted, 1);
    assert_int_equal(info().counters.duplicates, 1); /* its own, and none of those that were yet to be counted */
    assert_int_equal(info().counters.conflicts, 0);
}

/* Whatever of the former queue is still in memory or in the journal, and wherever a restart or compaction falls. */
static void a_queue_with_the_number_of_a_deleted_one_is_never_taken_for_it(void **state) {
    (void)state;
    static const i64 windows[] = {WINDOW_FOREVER, HOUR};
    for (u32 i = 0; i < 2 * 2 * 8; i++) {
        rules.window_ms = windows[i & 1];
        use_rules();
        settle_key("old");
        send("k", "of the former");
        struct leased former = receive();
        assert_int_equal(ack(&former, "done"), SETTLE_OK);
        for (u32 n = 0; n < 5; n++) assert_int_equal(send("k", "of the former"), SEND_DUPLICATE);
        u64 middle = w.count;
        make_anew(windows[i >> 1 & 1]);
        assert_int_equal(info().settled_keys, 0);
        assert_int_equal(send("k", "of the new"), SEND_ACCEPTED);
        if (i & 4) {
            core_stop(w.core, w.now); /* what is yet to be counted is written down */
            restart_after(0);
        }
        struct leased l = receive();
        assert_int_equal(ack(&l, "new"), SETTLE_OK);
        assert_int_equal(send("k", "of the new"), SEND_DUPLICATE);
        if (i & 8) pass(2000);
        assert_only_the_new_one(&former);
        if (i & 16) compact_upto(middle);
        restart_after(0);
        pass(2000);
        if (i & 8) { /* else the repeat was not written down yet when it ended */
            compact();
            come_back();
            assert_only_the_new_one(&former);
        }
        struct core_memory m;
        core_memory(w.core, &m);
        assert_int_equal(m.settled_keys, 1);
        assert_int_equal(core_queue_delete(w.core, w.now, w.queue, NULL), DELETE_OK);
    }
}

/* Also of those that remembered their keys for ever. */
static void a_start_takes_the_memory_of_the_queues_there_were_at_a_time_not_of_all_there_ever_were(void **state) {
    (void)state;
    rules.window_ms = WINDOW_FOREVER;
    use_rules();
    for (u32 life = 0; life < 50; life++) {
        for (u32 i = 0; i < 100; i++) {
            char key[16];
            snprintf(key, sizeof key, "k%u", i);
            settle_key(key);
        }
        make_anew(WINDOW_FOREVER);
    }
    settle_key("k0");
    restart_after(0);
    struct core_memory m;
    core_memory(w.core, &m);
    assert_in_range(m.settled_keys, 1, 300);
    pass(2000);
    core_memory(w.core, &m);
    assert_int_equal(m.settled_keys, 1);
    assert_int_equal(state_of("k0"), STATE_DONE);
}

static void a_journal_that_deletes_a_queue_with_unsettled_messages_is_damaged(void **state) {
    (void)state;
    u16 queue;
    struct errbuf err;
    struct rules plain = rules_default();
    u64 before = w.count;
    assert_true(core_queue_ensure(w.core, w.now, SL("x"), &plain, &queue));
    assert_int_equal(core_queue_delete(w.core, w.now, queue, NULL), DELETE_OK);
    struct stored deletion = w.records[w.count - 1];
    assert_int_equal(deletion.type, REC_QUEUE);
    w.count = before + 1; /* cut off behind the queue's making */
    restart_after(0);
    w.queue = queue;
    assert_int_equal(send("k", "v"), SEND_ACCEPTED);
    struct core *c = replayed_core();
    hx_st st = core_replay(c, w.count + 1, deletion.type, deletion.version, slice_of(deletion.body, deletion.n), &err);
    assert_int_equal(st, ST_DAMAGED);
    core_free(c);
    mem_free(deletion.body);
}

static void the_audit_trail_is_kept_its_time_and_read_newest_first(void **state) {
    (void)state;
    for (int i = 0; i < 300; i++) {
        char what[24];
        snprintf(what, sizeof what, "deed %d", i);
        struct audit_in in = {.who = SL("ann"), .what = slice_str(what), .why = SL("because")};
        assert_true(core_audit(w.core, w.now, w.queue, &in));
        pass(HOUR);
        if (i % 70 == 0) come_back();
        if (i % 90 == 0) compact_upto(w.first + (w.count - w.first) / 2);
    }
    core_audit_keep(w.core, 100 * HOUR);
    pass(1000);
    u64 before = 0;
    u32 seen = 0;
    for (struct audit_at at; core_audit_prev(w.core, before, &at); before = at.number, seen++) {
        struct record r;
        struct errbuf err;
        const struct stored *s = &w.records[index_at(at.pos)];
        assert_int_equal(record_decode(s->type, s->version, slice_of(s->body, s->n), &r, &err), ST_OK);
        char what[24];
        snprintf(what, sizeof what, "deed %u", 299 - seen);
        assert_true(slice_eq(r.audit.what, slice_str(what)));
    }
    assert_int_equal(seen, 99);
}

static void the_audit_trail_has_a_bound_beyond_which_its_oldest_records_go(void **state) {
    (void)state;
    struct buf why = {0};
    while (why.len < 1000) buf_lit(&why, "because ");
    struct audit_in in = {.who = SL("ann"), .what = SL("pause"), .why = buf_slice(&why)};
    u32 deeds = (u32)(AUDIT_TRAIL_BYTES_MAX / why.len) + 1000, seen = 0;
    u64 live = core_live_bytes(w.core);
    for (u32 i = 0; i < deeds; i++) assert_true(core_audit(w.core, w.now, w.queue, &in));
    pass(1000);
    assert_true(core_live_bytes(w.core) - live <= AUDIT_TRAIL_BYTES_MAX);
    struct audit_at at = {0};
    while (core_audit_prev(w.core, at.number, &at)) assert_int_equal(at.number, deeds - seen++);
    assert_in_range(seen, deeds * 3 / 4, deeds - 1000);
    buf_free(&why);
}

/* ---- records of the first version */

/* Byte by byte as version 1 wrote them. */
static size_t v1_bytes(char *p, u64 v, size_t n) {
    memcpy(p, &v, n);
    return n;
}

static void a_queue_and_a_message_of_version_1_are_read_with_the_rules_of_their_time(void **state) {
    (void)state;
    char body[512];
    size_t n = 0;
    n += v1_bytes(body + n, 9, 2); /* queue */
    n += v1_bytes(body + n, 1, 1); /* paused */
    n += v1_bytes(body + n, 5000, 8);
    n += v1_bytes(body + n, (u64)HOUR, 8);
    n += v1_bytes(body + n, 30000, 4);
    n += v1_bytes(body + n, 6, 2);
    n += v1_bytes(body + n, 3, 2);
    n += v1_bytes(body + n, 2, 2);
    n += v1_bytes(body + n, 1000, 4);
    n += v1_bytes(body + n, 300000, 4);
    for (u64 i = 1; i <= COUNTERS_V1; i++) n += v1_bytes(body + n, i, 8);
    n += v1_bytes(body + n, 1, 1);
    body[n++] = 'x';
    struct record r;
    struct errbuf err;
    assert_int_equal(record_decode(REC_QUEUE, 1, slice_of(body, n), &r, &err), ST_OK);
    assert_int_equal(r.queue.rules.window_ms, HOUR);
    assert_int_equal(r.queue.rules.crash_attempts, 2);
    assert_int_equal(r.queue.rules.refused_kept, rules_default().refused_kept);
    assert_int_equal(r.queue.counters.keys_expired, COUNTERS_V1);
    assert_int_equal(r.queue.counters.held, 0);
    assert_true(r.queue.paused && slice_eq(r.queue.name, SL("x")));
    n = 0;
    n += v1_bytes(body + n, 77, 8);
    n += v1_bytes(body + n, 3, 8);
    n += v1_bytes(body + n, 9, 2);
    n += v1_bytes(body + n, 1234, 8);
    n += v1_bytes(body + n, 5000, 8);
    n += v1_bytes(body + n, 0, 1); /* not carried */
    n += v1_bytes(body + n, 1, 1); /* timed */
    n += v1_bytes(body + n, 42, 8);
    for (int i = 0; i < 3; i++) n += v1_bytes(body + n, 0, 8); /* ttl, replaces, its seq */
    n += v1_bytes(body + n, 1, 1);
    body[n++] = 'k';
    memset(body + n, 0, 6); /* group, content type, attrs, traceparent, tracestate, request id */
    n += 6;
    n += v1_bytes(body + n, 2, 4);
    body[n++] = 'h';
    body[n++] = 'i';
    assert_int_equal(record_decode(REC_MESSAGE, 1, slice_of(body, n), &r, &err), ST_OK);
    assert_int_equal(r.message.due_ms, 42);
    assert_int_equal(r.message.state, STATE_PENDING);
    assert_true(slice_eq(r.message.key, SL("k")) && slice_eq(r.message.payload, SL("hi")));
}

static void what_was_erased_gets_no_new_words(void **state) {
    (void)state;
    rules.semantics = SEMANTICS_AT_MOST_ONCE;
    use_rules();
    send("k", "secret");
    struct leased l = receive();
    assert_int_equal(core_erase(w.core, w.now, find("k"), AUDIT("ann", "gdpr")), ERASE_OK);
    struct settle_in late = {.verb = VERB_NACK, .failure_class = CLASS_POISON, .reason = SL("card 4111 declined")};
    assert_int_equal(settle_as(&l, late, NULL), SETTLE_OK);
    late = (struct settle_in){.verb = VERB_ACK, .effect_id = SL("charge-of-jane")};
    settle_as(&l, late, NULL);
    come_back();
    const struct seen *s = find("k");
    assert_true(slice_eq(s->settle->reason, SL("erased")));
    for (u64 at = w.first; at < w.count; at++) {
        assert_null(memmem(w.records[at].body, w.records[at].n, "4111", 4));
        assert_null(memmem(w.records[at].body, w.records[at].n, "jane", 4));
    }
}

static void bytes_kept_for_a_replay_are_live_no_longer_than_their_key(void **state) {
    (void)state;
    rules.window_ms = HOUR;
    rules.keep_payload_ms = 30 * 24 * HOUR;
    use_rules();
    pass(10); /* what settles at the very moment of the change has the longer window yet */
    u64 before = core_live_bytes(w.core);
    char payload[4097], key[16];
    memset(payload, 'x', 4096);
    payload[4096] = 0;
    for (u32 i = 0; i < 20; i++) {
        snprintf(key, sizeof key, "k%u", i);
        send(key, payload);
        struct leased l = receive();
        assert_int_equal(ack(&l, ""), SETTLE_OK);
    }
    assert_true(core_live_bytes(w.core) > before + 20 * 4096);
    pass(2 * HOUR);
    pass(1000);
    assert_null(find("k0"));
    assert_true(core_live_bytes(w.core) < before + 4096);
}

static void bytes_kept_with_forgotten_keys_go_though_nothing_else_is_forgotten_later(void **state) {
    (void)state;
    rules.window_ms = 3000;
    rules.keep_payload_ms = 24 * HOUR;
    use_rules();
    pass(10);
    u64 before = core_live_bytes(w.core);
    char payload[4097], key[16];
    memset(payload, 'x', 4096);
    payload[4096] = 0;
    for (u32 i = 0; i < 20; i++) { /* the first are forgotten before the last settle */
        snprintf(key, sizeof key, "k%u", i);
        send(key, payload);
        struct leased l = receive();
        assert_int_equal(ack(&l, ""), SETTLE_OK);
        pass(300);
    }
    assert_true(core_live_bytes(w.core) > before + 10 * 4096);
    for (u32 i = 0; i < 10; i++) pass(1000); /* nothing settles, nothing more is forgotten */
    assert_int_equal(info().settled_keys, 0);
    assert_true(core_live_bytes(w.core) < before + 4096);
    restart_after(0);
    pass(1000);
    assert_true(core_live_bytes(w.core) < before + 4096);
}

static void keys_of_a_shortened_window_are_let_go_while_older_promises_stand(void **state) {
    (void)state;
    rules.window_ms = 24 * HOUR;
    use_rules();
    send("old", "v");
    struct leased l = receive();
    ack(&l, "");
    pass(HOUR);
    rules.window_ms = HOUR;
    use_rules();
    pass(10);
    char key[16];
    for (u32 i = 0; i < 50; i++) {
        snprintf(key, sizeof key, "new-%u", i);
        send(key, "v");
        l = receive();
        ack(&l, "");
        pass(60000);
    }
    pass(3 * HOUR);
    pass(1000);
    assert_int_equal(info().settled_keys, 1);
    assert_int_equal(send("old", "v"), SEND_DUPLICATE);
    restart_after(0);
    pass(1000);
    assert_int_equal(info().settled_keys, 1);
    assert_int_equal(send("old", "v"), SEND_DUPLICATE);
    assert_int_equal(send("new-49", "v"), SEND_ACCEPTED);
    pass(24 * HOUR);
    assert_int_equal(send("old", "v"), SEND_ACCEPTED);
}

static void a_release_does_not_make_an_old_message_young(void **state) {
    (void)state;
    rules.limit_lag_ms = 60000;
    use_rules();
    send("k", "v");
    pass(50000);
    for (u32 i = 0; i < 3; i++) {
        struct leased l = receive();
        pass(1000);
        assert_int_equal(verb(&l, VERB_RELEASE), SETTLE_OK);
    }
    assert_true(info().oldest_ready_ms >= 50000);
    pass(10000);
    assert_int_equal(send("another", "v"), SEND_BACKPRESSURE);
}

static void a_reservation_that_ran_out_does_not_make_an_old_message_young(void **state) {
    (void)state;
    rules.limit_lag_ms = 60000;
    use_rules();
    send("k", "v");
    pass(50000);
    for (u32 i = 0; i < 3; i++) {
        assert_true(receive_as(1000, true).ok);
        pass(1001);
        assert_true(info().oldest_ready_ms >= 50000);
    }
    restart_after(0);
    assert_true(receive_as(1000, true).ok);
    pass(1001);
    pass(60000);
    assert_int_equal(send("another", "v"), SEND_BACKPRESSURE);
    struct leased l = receive();
    assert_int_equal(ack(&l, ""), SETTLE_OK);
    assert_int_equal(info().oldest_ready_ms, 0);
    assert_int_equal(send("another", "v"), SEND_ACCEPTED);
}

static void the_longest_wait_is_known_wherever_in_the_line_its_message_stands(void **state) {
    (void)state;
    send("old", "v");
    pass(50000);
    send("young", "v");
    assert_true(receive_as(1000, true).ok);
    pass(1001); /* it ran out: behind the young one */
    assert_true(info().oldest_ready_ms >= 50000);
    struct leased young = receive(), old = receive();
    assert_string_equal(old.key, "old");
    assert_int_equal(info().oldest_ready_ms, 0);
    assert_int_equal(verb(&old, VERB_RELEASE), SETTLE_OK);
    assert_int_equal(verb(&young, VERB_RELEASE), SETTLE_OK); /* before the old one */
    assert_true(info().oldest_ready_ms >= 50000);
    young = receive();
    assert_string_equal(young.key, "young");
    core_unlease(w.core, w.now, &young.ref, young.fence);
    assert_true(info().oldest_ready_ms >= 50000);
    young = receive();
    old = receive();
    assert_int_equal(ack(&old, ""), SETTLE_OK);
    core_unlease(w.core, w.now, &young.ref, young.fence);
    assert_in_range(info().oldest_ready_ms, 1, 49999);
}

static void an_undone_delivery_does_not_make_an_old_message_young(void **state) {
    (void)state;
    send("k", "v");
    pass(50000);
    struct leased l = receive();
    pass(1000);
    core_unlease(w.core, w.now, &l.ref, l.fence);
    assert_true(info().oldest_ready_ms >= 50000);
}

static void an_idle_hour_on_a_full_disk_leaves_room_for_those_who_make_more(void **state) {
    (void)state;
    send("k", "v");
    w.metered = true;
    set_room(core_reserved_bytes(w.core) + 65536);
    for (u32 i = 0; i < 24 * 3600; i++) pass(1000);
    struct audit_in in = {.who = SL("ann"), .what = SL("purge")};
    assert_true(core_audit(w.core, w.now, w.queue, &in));
    assert_int_equal(core_cancel(w.core, w.now, find("k"), SL("purged"), NULL), CANCEL_OK);
    w.metered = false;
}

static void a_directory_is_not_worn_out_by_queues_that_come_and_go(void **state) {
    (void)state;
    u16 queue = 0;
    for (u32 i = 0; i < 500; i++) {
        struct rules plain = rules_default();
        char name[16];
        snprintf(name, sizeof name, "q-%u", i);
        assert_true(core_queue_ensure(w.core, w.now, slice_str(name), &plain, &queue));
        assert_int_equal(queue, 2);
        w.queue = queue;
        assert_int_equal(send("k", "v"), SEND_ACCEPTED); /* its number had this key before */
        struct leased l = receive();
        assert_int_equal(ack(&l, ""), SETTLE_OK);
        assert_int_equal(send("k", "v"), SEND_DUPLICATE);
        assert_int_equal(core_queue_delete(w.core, w.now, queue, NULL), DELETE_OK);
        pass(1000);
        if (i % 3 == 0) restart_after(0);
        if (i % 2 == 0) compact();
        if (i % 5 == 0) restart_after(0);
    }
    compact();
    restart_after(0);
    w.queue = 1;
    assert_int_equal(info().unsettled, 0);
}

static void short_of_memory_new_work_is_refused_and_the_accepted_can_be_settled(void **state) {
    (void)state;
    w.memory_max = 24u << 20;
    restart_after(0);
    char key[32];
    u32 accepted = 0;
    for (enum send_verdict v = SEND_ACCEPTED; v == SEND_ACCEPTED; accepted++) {
        snprintf(key, sizeof key, "m-%u", accepted);
        v = send(key, "");
        assert_true(v == SEND_ACCEPTED || v == SEND_FULL);
        assert_true(accepted < 1000000);
    }
    assert_true(accepted > 10000);
    assert_true(core_memory_short(w.core));
    restart_after(0); /* what was accepted fits a start */
    assert_int_equal(send("m-0", ""), SEND_DUPLICATE);
    struct leased l = receive();
    struct settle_in step = {.verb = VERB_STEP, .name = SL("small"), .result = SL("r")};
    assert_int_equal(settle_as(&l, step, NULL), SETTLE_FULL);
    assert_int_equal(ack(&l, "done"), SETTLE_OK);
}

/* ---- what grows must not walk. A walk along these takes minutes, a step or two each takes well below a second: the
 * bound of ten seconds of processor time lies far from both, on any machine. */

static void more_queues_come_and_go_than_there_are_numbers_and_nothing_is_left_of_them(void **state) {
    (void)state;
    struct rules plain = rules_default();
    plain.window_ms = WINDOW_FOREVER;
    rules.window_ms = WINDOW_FOREVER;
    use_rules();
    u16 kept = w.queue;
    char text[16];
    for (u32 i = 0; i < 20000; i++) { /* what a walk for each would walk over */
        snprintf(text, sizeof text, "k-%u", i);
        settle_key(text);
    }
    pass(1000);
    u64 live = core_live_bytes(w.core);
    clock_t began = clock();
    for (u32 i = 0; i < 70000; i++) {
        snprintf(text, sizeof text, "q-%u", i);
        assert_true(core_queue_ensure(w.core, w.now, slice_str(text), &plain, &w.queue));
        assert_true(w.queue <= kept + 2);
        if (i % 8 == 0) settle_key("k-1");
        if (i % 1000 == 0) pass(10);
        if (i % 7 == 0) continue; /* deleted with the next one: two are there at a time */
        if (i % 7 == 1) {
            u16 before;
            snprintf(text, sizeof text, "q-%u", i - 1);
            assert_true(core_queue_find(w.core, slice_str(text), &before));
            assert_int_equal(core_queue_delete(w.core, w.now, before, NULL), DELETE_OK);
        }
        assert_int_equal(core_queue_delete(w.core, w.now, w.queue, NULL), DELETE_OK);
    }
    for (u32 i = 0; i < 500; i++) pass(1); /* freed little by little */
    assert_int_equal(core_live_bytes(w.core), live);
    restart_after(0);
    for (u32 i = 0; i < 500; i++) pass(1);
    assert_int_equal(core_live_bytes(w.core), live);
    assert_true(core_queue_count(w.core) <= kept + 2u);
    assert_true(clock() - began < 10 * CLOCKS_PER_SEC);
    compact();
    assert_true(w.count - w.first < 20100);
    struct core_memory m;
    core_memory(w.core, &m);
    assert_int_equal(m.settled_keys, 20000);
}

#define HOT 200000u

static double cpu_seconds(void) {
    return (double)clock() / CLOCKS_PER_SEC;
}

static void fill_group(u32 count) {
    char key[32];
    for (u32 i = 0; i < count; i++) {
        snprintf(key, sizeof key, "hot-%u", i);
        assert_int_equal(send_full(key, "v", "g", 0, 0, NULL), SEND_ACCEPTED);
    }
}

static void a_hot_group_of_carried_messages_is_recovered_without_a_walk_for_each(void **state) {
    (void)state;
    u64 before = w.count;
    fill_group(HOT);
    compact_upto(before + HOT / 2); /* the older half comes behind the younger one */
    double began = cpu_seconds();
    restart_after(0);
    assert_true(cpu_seconds() - began < 10);
    for (u32 i = 0; i < 3; i++) {
        struct leased l = receive();
        char key[32];
        snprintf(key, sizeof key, "hot-%u", i);
        assert_string_equal(l.key, key);
        assert_false(receive().ok);
        assert_int_equal(ack(&l, ""), SETTLE_OK);
    }
}

static void redriving_into_a_hot_group_does_not_walk_along_it(void **state) {
    (void)state;
    rules.on_dead = ON_DEAD_SKIP;
    use_rules();
    fill_group(HOT);
    enum { DEAD = 3000 };
    static struct ref dead[DEAD];
    for (u32 i = 0; i < DEAD; i++) {
        struct leased l = receive();
        dead[i] = l.ref;
        assert_int_equal(nack(&l, CLASS_POISON), SETTLE_OK);
    }
    double began = cpu_seconds();
    for (u32 i = 0; i < DEAD; i++) { /* first one in the middle, then one after the other from both sides */
        u32 at = i % 2 ? DEAD / 2 - (i + 1) / 2 : DEAD / 2 + i / 2, count;
        assert_int_equal(core_redrive(w.core, w.now, &dead[at], SL("me"), SL(""), &count), REDRIVE_OK);
    }
    assert_true(cpu_seconds() - began < 10);
    for (u32 i = 0; i < DEAD + 3; i++) {
        struct leased l = receive();
        char key[32];
        snprintf(key, sizeof key, "hot-%u", i);
        assert_string_equal(l.key, key);
        assert_int_equal(ack(&l, ""), SETTLE_OK);
    }
}

/* Sends with a delay go on all the while, and what was sent comes due: each message is passed over a few times at most. */
static void a_purge_ends_however_much_is_sent_meanwhile(void **state) {
    (void)state;
    char key[32];
    enum { OLD = 3000, PER_STEP = 20 };
    for (u32 i = 0; i < OLD; i++) {
        snprintf(key, sizeof key, "old-%u", i);
        send_full(key, "v", NULL, 3600000, 0, NULL);
    }
    struct core_purge purge = {.queue = w.queue, .only = STATE_COUNT};
    core_purge_begin(w.core, &purge);
    u32 no, purged = 0, steps = 0, sent = 0;
    for (enum walk_verdict v; (v = core_purge_next(w.core, &purge, 64, &no)) != WALK_END; steps++) {
        assert_true(steps < 2 * OLD);
        for (u32 i = 0; i < PER_STEP; i++) {
            snprintf(key, sizeof key, "new-%u", sent++);
            send_full(key, "v", NULL, 1000 + i, 0, NULL);
        }
        pass(10);
        if (v != WALK_FOUND) continue;
        struct message_view view;
        core_message_view(w.core, w.now, no, &view);
        struct core_cursor cursor = {0};
        struct found f;
        while (core_find(w.core, view.ref.hash, &cursor, &f) && f.message != no) {
        }
        assert_int_equal(core_cancel(w.core, w.now, load(&f), SL("purged"), NULL), CANCEL_OK);
        purged++;
    }
    core_purge_end(w.core, &purge);
    assert_int_equal(purged, OLD);
    assert_int_equal(info().unsettled, sent);
}

static void a_long_audit_trail_is_recovered_in_order_and_once_each(void **state) {
    (void)state;
    struct audit_in in = {.who = SL("me"), .what = SL("pause")};
    u64 before = w.count;
    for (u32 i = 0; i < HOT; i++) assert_true(core_audit(w.core, w.now, w.queue, &in));
    compact_upto(before + HOT / 2);
    u64 live = core_live_bytes(w.core);
    double began = cpu_seconds();
    restart_after(0);
    assert_true(cpu_seconds() - began < 10);
    assert_int_equal(core_live_bytes(w.core), live);
    struct audit_at at = {0};
    for (u32 i = HOT; i > 0; i--) {
        assert_true(core_audit_prev(w.core, at.number, &at));
        assert_int_equal(at.number, i);
        assert_true(index_at(at.pos) >= w.first);
    }
    assert_false(core_audit_prev(w.core, at.number, &at));
}

static void a_message_that_is_settled_leaves_nothing_behind_of_its_time_to_live(void **state) {
    (void)state;
    struct core_memory m;
    for (u32 i = 0; i < 20000; i++) {
        assert_int_equal(send_full("k", "v", NULL, 0, 3600000, NULL), i ? SEND_DUPLICATE : SEND_ACCEPTED);
        if (i) continue;
        struct leased l = receive();
        assert_int_equal(ack(&l, ""), SETTLE_OK);
    }
    core_memory(w.core, &m);
    u64 held = m.message_bytes;
    char key[32];
    for (u32 i = 0; i < 20000; i++) {
        snprintf(key, sizeof key, "ttl-%u", i);
        assert_int_equal(send_full(key, "v", NULL, 0, 3600000, NULL), SEND_ACCEPTED);
        struct leased l = receive();
        assert_int_equal(ack(&l, ""), SETTLE_OK);
    }
    core_memory(w.core, &m);
    assert_int_equal(m.message_bytes, held);
    assert_int_equal(core_next_ms(w.core, w.now, 250), 250); /* nothing is due */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        R(what_was_erased_gets_no_new_words),
        R(bytes_kept_for_a_replay_are_live_no_longer_than_their_key),
        R(bytes_kept_with_forgotten_keys_go_though_nothing_else_is_forgotten_later),
        R(keys_of_a_shortened_window_are_let_go_while_older_promises_stand),
        R(a_release_does_not_make_an_old_message_young),
        R(a_reservation_that_ran_out_does_not_make_an_old_message_young),
        R(the_longest_wait_is_known_wherever_in_the_line_its_message_stands),
        R(an_undone_delivery_does_not_make_an_old_message_young),
        R(an_idle_hour_on_a_full_disk_leaves_room_for_those_who_make_more),
        R(short_of_memory_new_work_is_refused_and_the_accepted_can_be_settled),
        R(a_directory_is_not_worn_out_by_queues_that_come_and_go),
        R(more_queues_come_and_go_than_there_are_numbers_and_nothing_is_left_of_them),
        R(a_queue_with_the_number_of_a_deleted_one_is_never_taken_for_it),
        R(a_start_takes_the_memory_of_the_queues_there_were_at_a_time_not_of_all_there_ever_were),
        R(a_journal_that_deletes_a_queue_with_unsettled_messages_is_damaged),
        R(a_hot_group_of_carried_messages_is_recovered_without_a_walk_for_each),
        R(redriving_into_a_hot_group_does_not_walk_along_it),
        R(a_purge_ends_however_much_is_sent_meanwhile),
        R(a_long_audit_trail_is_recovered_in_order_and_once_each),
        R(a_message_that_is_settled_leaves_nothing_behind_of_its_time_to_live),
        R(at_least_once_drops_nothing_whatever_the_key),
        R(at_most_once_is_settled_by_the_hand_out_and_never_comes_again),
        R(a_token_of_at_most_once_may_ack_but_changes_nothing_and_its_nack_is_a_counted_loss),
        R(reconcile_asks_before_anything_is_done_again),
        R(absent_answers_a_look_up_and_lets_the_work_be_done),
        R(look_ups_are_limited_by_the_unknown_attempts_and_then_held),
        R(look_ups_that_crash_are_limited_by_the_crash_attempts_and_then_held),
        R(hold_sets_unknown_work_aside_at_once_and_its_token_can_still_say_what_happened),
        R(transient_failures_are_retried_under_every_on_unknown),
        R(who_takes_back_a_crash_by_speaking_up_leaves_no_doubt),
        R(work_that_ended_unknown_comes_back_from_the_dead_as_reconcile_whatever_the_rule),
        R(a_crash_leaves_doubt_also_when_its_attempt_is_no_longer_kept),
        R(a_decision_settles_held_and_dead_work_and_kills_the_token),
        R(retry_by_decision_is_done_again_without_a_look_up_and_with_all_attempts),
        R(a_token_is_dead_after_a_decision_also_when_the_work_goes_on),
        R(a_conflict_is_held_with_its_payload_and_its_repeats_are_its_duplicates),
        R(a_held_conflict_is_decided_as_new_or_as_duplicate_and_as_nothing_else),
        R(a_conflict_decided_as_new_takes_its_place_in_its_group),
        R(on_conflict_new_admits_at_once_under_a_key_of_its_own),
        R(a_key_too_long_for_another_is_refused_as_a_conflict),
        R(held_conflicts_are_bounded),
        R(a_redrive_keeps_key_steps_and_history_and_gives_the_attempts_back),
        R(skip_lets_a_group_go_on_past_its_dead_and_a_redriven_one_comes_before_the_younger),
        R(a_lease_that_ran_out_behind_a_redriven_head_cannot_be_revived_beside_it),
        R(skip_goes_past_held_heads_and_block_does_not),
        R(a_dead_head_takes_its_group_and_later_arrivals_and_brings_them_back_in_order),
        R(a_group_comes_back_when_its_dead_head_is_cancelled_or_settled),
        R(a_large_group_dies_and_comes_back_a_few_members_at_a_time),
        R(a_purge_of_the_dead_takes_all_of_a_group_that_is_still_dying),
        R(a_shortened_window_keeps_what_was_promised),
        R(a_widened_window_extends_what_is_known),
        R(a_key_once_promised_forever_stays_when_the_window_ends_for_others),
        R(what_is_forgotten_stays_so_when_the_window_becomes_forever),
        R(compaction_may_meet_keys_that_are_forgotten_and_not_yet_freed),
        R(any_number_of_changes_never_shortens_a_promise),
        R(an_adaptive_window_grows_to_twice_the_oldest_replay_within_its_bounds),
        R(a_full_queue_refuses_new_work_until_it_is_a_fifth_below_its_limit),
        R(bytes_and_lag_are_limits_too),
        R(queues_of_one_account_share_its_limit),
        R(what_settled_keys_take_counts_in_an_accounts_bytes_until_they_are_forgotten),
        R(a_deleted_queue_leaves_its_account_at_once),
        R(an_operator_replays_over_the_limit),
        R(a_settled_key_runs_again_as_the_next_generation_while_its_payload_is_kept),
        R(a_payload_past_its_keep_leaves_the_journal_with_the_next_compaction),
        R(a_settlement_without_room_for_the_payload_goes_without_it),
        R(a_walk_meets_everything_of_its_queue_a_bounded_part_at_a_time),
        R(erased_words_leave_the_journal_and_the_key_stays),
        R(erasing_unsettled_work_cancels_it),
        R(a_key_forgotten_before_its_repeats_are_written_down_leaves_those_of_others_alone),
        R(a_forgotten_key_is_new_again_settled_or_not_but_not_while_leased),
        R(a_purge_cancels_what_was_there_and_lets_nobody_out_on_the_way),
        R(what_is_refused_has_one_copy_per_payload_in_the_dead_lane_within_its_bounds),
        R(rules_origin_and_text_of_a_queue_outlive_restarts),
        R(a_deleted_queue_takes_its_keys_along_and_its_name_is_free),
        R(the_audit_trail_is_kept_its_time_and_read_newest_first),
        R(the_audit_trail_has_a_bound_beyond_which_its_oldest_records_go),
        R(a_queue_and_a_message_of_version_1_are_read_with_the_rules_of_their_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
