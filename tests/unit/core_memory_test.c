/* Memory is bounded: what an accepted message may come to take was counted when it was accepted (core/memory.c). */
#include "unit/core_world.h"

#define CHUNK_BYTES (4u << 20) /* messages' memory is taken in steps of this */
#define LIMIT_BYTES (16u << 20)

static char longest_reason[REASON_BYTES_MAX], longest_name[CONSUMER_BYTES_MAX];

static u64 taken(void) {
    struct core_memory m;
    core_memory(w.core, &m);
    return m.index_bytes + m.arrivals_bytes + m.needed_bytes + m.message_bytes + m.group_bytes;
}

static void set_limit(u64 bytes) {
    w.memory_max = bytes;
    restart_after(0);
}

static void use(void (*change)(struct rules *)) {
    struct queue_spec spec = {.rules = rules_default()};
    spec.rules.transient_attempts = spec.rules.unknown_attempts = spec.rules.crash_attempts = 1000;
    if (change) change(&spec.rules);
    assert_true(core_queue_set(w.core, w.now, SL("q"), &spec, NULL, &w.queue));
}

static int prepare(void **state) {
    setup(state);
    memset(longest_reason, 'r', sizeof longest_reason);
    memset(longest_name, 'c', sizeof longest_name);
    set_room(16ull << 30);
    use(NULL);
    return 0;
}

static u32 fill(u32 most) {
    char key[16];
    for (u32 i = 0; i < most; i++) {
        snprintf(key, sizeof key, "m-%u", i);
        if (send(key, "") == SEND_FULL) return i;
    }
    return most;
}

static struct leased take(void) {
    struct leased l = receive_by(slice_of(longest_name, sizeof longest_name), 60000, false);
    assert_true(l.ok);
    return l;
}

static enum settle_verdict fail_as(const struct leased *l, enum failure_class class) {
    struct settle_in in = {
        .verb = VERB_NACK, .failure_class = class, .reason = slice_of(longest_reason, sizeof longest_reason)};
    return settle_as(l, in, NULL);
}

static enum settle_verdict step_of(const struct leased *l, slice result) {
    return settle_as(l, (struct settle_in){.verb = VERB_STEP, .name = SL("s"), .result = result}, NULL);
}

static void settle_all(u32 count) {
    for (u32 i = 0; i < count; i++) {
        struct leased l = take();
        assert_int_equal(ack(&l, "done"), SETTLE_OK);
    }
    assert_int_equal(core_next_ready(w.core, w.queue), MESSAGE_NONE);
}

/* Whatever became of the attempts: nacked, run out, found by a restart. */
static void what_becomes_of_accepted_messages_was_counted_when_they_were_accepted(void **state) {
    (void)state;
    set_limit(LIMIT_BYTES);
    u32 count = fill(1000000);
    assert_in_range(count, 10000, 100000);
    for (u32 round = 0; round < 6; round++) {
        for (u32 i = 0; i < count; i++) {
            struct leased l = take();
            if (round == 0) assert_int_equal(step_of(&l, SL("r")), SETTLE_FULL);
            if (round % 3 != 2) assert_int_equal(fail_as(&l, CLASS_TRANSIENT), SETTLE_OK);
        }
        assert_in_range(taken(), 1, LIMIT_BYTES + CHUNK_BYTES);
        if (round == 1) restart_after(0);
        if (round == 3) compact();
        pass(24 * 3600 * 1000);
        assert_in_range(taken(), 1, LIMIT_BYTES + CHUNK_BYTES);
    }
    assert_int_equal(send("another", ""), SEND_FULL);
    restart_after(0);
    assert_in_range(taken(), 1, LIMIT_BYTES + CHUNK_BYTES);
    settle_all(count);
    assert_in_range(taken(), 1, LIMIT_BYTES + CHUNK_BYTES);
    assert_int_equal(send("another", ""), SEND_ACCEPTED); /* there is memory for others now */
}

/* A few messages with much to say about them use up what is there as well as many. */
static void histories_are_kept_in_full_until_memory_is_short(void **state) {
    (void)state;
    set_limit(LIMIT_BYTES);
    u32 count = fill(4000), steps = 0;
    assert_int_equal(count, 4000);
    char result[3000];
    memset(result, 'x', sizeof result);
    for (u32 round = 0; round < 12; round++) {
        for (u32 i = 0; i < count; i++) {
            struct leased l = take();
            if (round == 1 && step_of(&l, slice_of(result, sizeof result)) == SETTLE_OK) steps++;
            assert_int_equal(fail_as(&l, i % 2 ? CLASS_TRANSIENT : CLASS_UNKNOWN), SETTLE_OK);
        }
        assert_in_range(taken(), 1, LIMIT_BYTES + CHUNK_BYTES);
        pass(24 * 3600 * 1000);
    }
    assert_in_range(steps, 1, count - 1);
    assert_true(core_memory_short(w.core));
    restart_after(0);
    pass(1000);
    assert_in_range(taken(), 1, LIMIT_BYTES + CHUNK_BYTES);
    struct message_view v;
    core_message_view(w.core, w.now, core_next_ready(w.core, w.queue), &v);
    struct history_item first, last;
    u32 at = 0;
    assert_true(history_next(v.history, &at, &first));
    assert_int_equal(first.attempt, 1);
    assert_int_equal(first.reason.n, sizeof longest_reason);
    assert_int_equal(first.consumer.n, sizeof longest_name);
    assert_true(history_last_attempt(v.history, &last));
    assert_int_equal(last.attempt, 12);
    assert_true(slice_eq(last.reason, SL("rrrrrrrrrrrrrrrrrrr" HISTORY_CUT)));
    assert_int_equal(last.consumer.n, 16);
    settle_all(count);
    assert_false(core_memory_short(w.core));
}

/* ---- what is decided by stays known */

static u32 attempts_of(const char *key, u32 *lookups, u16 *first) {
    struct message_view v;
    struct history_item item;
    u32 count = 0;
    *lookups = *first = 0;
    core_message_view(w.core, w.now, find(key)->at.message, &v);
    for (u32 at = 0; history_next(v.history, &at, &item);) {
        if (item.kind != HISTORY_ATTEMPT) continue;
        if (count++ == 0) *first = item.attempt;
        *lookups += item.lookup && item.failure_class == CLASS_ABSENT;
    }
    return count;
}

static void to_be_looked_up(struct rules *r) {
    r->on_unknown = ON_UNKNOWN_RECONCILE;
}

static void cut_attempts_give_way_but_not_the_first_nor_the_last_that_found_nothing(void **state) {
    (void)state;
    use(to_be_looked_up);
    send("k", "v");
    set_limit(1); /* nothing is left */
    u32 lookups;
    u16 first;
    for (u32 round = 0; round < 5; round++) {
        struct leased work = take();
        assert_int_equal(fail_as(&work, CLASS_UNKNOWN), SETTLE_OK);
        pass(24 * 3600 * 1000);
        for (u32 i = 0; i < 2; i++) {
            struct leased asked = take();
            assert_int_equal(asked.delivery, DELIVERY_RECONCILE);
            assert_int_equal(fail_as(&asked, i ? CLASS_ABSENT : CLASS_UNKNOWN), SETTLE_OK);
            pass(24 * 3600 * 1000);
        }
        assert_in_range(attempts_of("k", &lookups, &first), 2, 3);
        assert_in_range(lookups, 1, 2); /* the one before goes with the next lease */
        assert_int_equal(first, 1);
        if (round == 2) restart_after(0);
        if (round == 3) compact();
    }
}

static void a_text_is_cut_between_characters(void **state) {
    (void)state;
    send("k", "v");
    set_limit(1);
    struct leased l = receive_by(SL("123456789012345\xc3\xbc"), 60000, false);
    struct settle_in in = {
        .verb = VERB_NACK, .failure_class = CLASS_TRANSIENT, .reason = SL("123456789012345678\xe2\x82\xac")};
    assert_int_equal(settle_as(&l, in, NULL), SETTLE_OK);
    struct message_view v;
    struct history_item last;
    core_message_view(w.core, w.now, find("k")->at.message, &v);
    assert_true(history_last_attempt(v.history, &last));
    assert_true(slice_eq(last.consumer, SL("123456789012345")));
    assert_true(slice_eq(last.reason, SL("123456789012345678" HISTORY_CUT)));
}

static void an_operator_may_decide_while_memory_is_short(void **state) {
    (void)state;
    set_limit(LIMIT_BYTES);
    u32 count = fill(1000000), redriven;
    u64 after_first = 0;
    for (u32 round = 0; round < 12; round++) {
        for (u32 i = 0; i < count; i++) {
            struct leased l = take();
            assert_int_equal(fail_as(&l, CLASS_POISON), SETTLE_OK);
            assert_int_equal(core_redrive(w.core, w.now, &l.ref, slice_of(longest_name, sizeof longest_name),
                                          slice_of(longest_reason, 512), &redriven),
                             REDRIVE_OK);
        }
        if (round == 0) after_first = taken();
    }
    assert_in_range(taken(), 1, after_first + (u64)count * 64 * (HISTORY_DECISIONS_KEPT + 1));
    settle_all(count);
}

static void effects_of_refused_acks_are_not_kept_while_memory_is_short(void **state) {
    (void)state;
    send("k", "v");
    set_limit(1);
    struct leased l = receive(), again;
    assert_int_equal(verb(&l, VERB_RELEASE), SETTLE_OK);
    again = receive();
    struct settle_out out;
    struct settle_in in = {.verb = VERB_ACK, .effect_id = SL("effect")};
    assert_int_equal(settle_as(&l, in, &out), SETTLE_FENCED);
    assert_int_equal(out.effects, 0);
    assert_int_equal(settle_as(&again, in, &out), SETTLE_OK);
    assert_int_equal(out.effects, 1);
}

static void a_group_with_one_that_came_late_takes_little(void **state) {
    (void)state;
    struct queue_spec spec = {.rules = rules_default()};
    spec.rules.on_dead = ON_DEAD_SKIP;
    assert_true(core_queue_set(w.core, w.now, SL("q"), &spec, NULL, &w.queue));
    char key[32], group[16];
    struct ref dead[1000][2];
    u32 redriven;
    for (u32 i = 0; i < 1000; i++) {
        snprintf(group, sizeof group, "g-%u", i);
        for (u32 member = 0; member < 4; member++) {
            snprintf(key, sizeof key, "k-%u-%u", i, member);
            assert_int_equal(send_full(key, "", group, 0, 0, NULL), SEND_ACCEPTED);
        }
        for (u32 member = 0; member < 3; member++) {
            struct leased l = receive();
            if (member < 2) assert_int_equal(nack(&l, CLASS_POISON), SETTLE_OK);
            if (member < 2) dead[i][member] = l.ref;
        }
    }
    struct core_memory before, after;
    core_memory(w.core, &before);
    for (u32 i = 0; i < 1000; i++)
        for (u32 member = 0; member < 2; member++)
            assert_int_equal(core_redrive(w.core, w.now, &dead[i][member], SL("me"), SL(""), &redriven), REDRIVE_OK);
    core_memory(w.core, &after);
    assert_int_equal(after.groups, 1000);
    assert_in_range(after.group_bytes - before.group_bytes, 1000, 1000 * 64); /* it is counted, too */
}

int main(void) {
#define M(name) cmocka_unit_test_setup_teardown(name, prepare, teardown)
    const struct CMUnitTest tests[] = {
        M(what_becomes_of_accepted_messages_was_counted_when_they_were_accepted),
        M(histories_are_kept_in_full_until_memory_is_short),
        M(cut_attempts_give_way_but_not_the_first_nor_the_last_that_found_nothing),
        M(a_text_is_cut_between_characters),
        M(an_operator_may_decide_while_memory_is_short),
        M(effects_of_refused_acks_are_not_kept_while_memory_is_short),
        M(a_group_with_one_that_came_late_takes_little),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
