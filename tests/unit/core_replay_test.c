/* What becomes of an outcome when its key is run again: it stays until the replay has one of its own, through restarts and
 * compactions, and comes back if the replay ends without. */
#include "unit/core_world.h"

#define HOUR ((i64)3600 * 1000)

static int setup_replay(void **state) {
    struct rules rules = rules_default();
    struct queue_spec spec = {.rules = rules, .origin = ORIGIN_API, .config = SL("{}")};
    spec.rules.keep_payload_ms = HOUR;
    setup(state);
    return core_queue_set(w.core, w.now, SL("q"), &spec, NULL, &w.queue) ? 0 : -1;
}
#define R(name) cmocka_unit_test_setup_teardown(name, setup_replay, teardown)

static void come_back(void) {
    compact();
    restart_after(1000);
}

static struct counters counters(void) {
    struct queue_info q;
    core_queue_info(w.core, w.now, w.queue, &q);
    return q.counters;
}

static enum again_verdict again(const char *key) {
    struct send_out out;
    return core_again(w.core, w.now, find(key), AUDIT("ann", "wanted"), &out);
}

static enum cancel_verdict cancel(const char *key) {
    struct audit_in deed = *AUDIT("bob", "no need");
    deed.relieves = true;
    return core_cancel(w.core, w.now, find(key), SL("cancelled by bob: no need"), &deed);
}

/* Done in its second attempt, with a result and an effect. */
static void do_work(const char *key, const char *result) {
    assert_int_equal(send(key, "pay"), SEND_ACCEPTED);
    struct leased l = receive();
    assert_int_equal(nack(&l, CLASS_TRANSIENT), SETTLE_OK);
    pass(10000);
    l = receive();
    settle_as(&l, (struct settle_in){.verb = VERB_STEP, .name = SL("s"), .result = SL("step")}, NULL);
    struct settle_in in = {.verb = VERB_ACK, .result = slice_str(result), .effect_id = SL("ch_1")};
    assert_int_equal(settle_as(&l, in, NULL), SETTLE_OK);
}

static u32 items_of(slice history, u8 kind) {
    struct history_item item;
    u32 n = 0;
    for (u32 at = 0; history_next(history, &at, &item);) n += item.kind == kind;
    return n;
}

static void assert_outcome(const struct rec_settle *s, const char *result) {
    u32 effects;
    assert_non_null(s);
    assert_int_equal(s->state, STATE_DONE);
    assert_true(slice_eq(s->result, slice_str(result)));
    assert_int_equal(s->reason.n, 0);
    assert_int_equal(s->attempts, 2);
    assert_int_equal(s->failures, 1);
    assert_true(history_has_effect(s->history, SL("ch_1"), &effects));
    assert_true(items_of(s->history, HISTORY_ATTEMPT) >= 2);
}

/* ---- how a replay may end without an outcome */

static void pending(void) {}
static void leased(void) {
    assert_true(receive().ok);
}
static void given_back(void) {
    struct leased l = receive();
    assert_int_equal(verb(&l, VERB_RELEASE), SETTLE_OK);
}
static void failed(void) {
    struct leased l = receive();
    assert_int_equal(nack(&l, CLASS_TRANSIENT), SETTLE_OK);
}
static void dead(void) {
    struct leased l = receive();
    assert_int_equal(nack(&l, CLASS_POISON), SETTLE_OK);
    assert_int_equal(state_of("k"), STATE_DEAD);
}
static void crashed(void) {
    assert_true(receive().ok);
    pass(HOUR / 2);
}

static void a_cancelled_replay_leaves_the_outcome_before_it_wherever_it_stood(void **state) {
    (void)state;
    static void (*const ways[])(void) = {pending, leased, given_back, failed, dead, crashed};
    do_work("k", "charged");
    i64 first_seen = find("k")->settle->first_seen_ms, settled = find("k")->settle->settled_ms;
    for (u32 i = 0; i < 2 * sizeof ways / sizeof ways[0]; i++) {
        bool back = i % 2; /* with a restart and a compaction between the two, or without */
        assert_int_equal(again("k"), AGAIN_OK);
        if (back) come_back();
        ways[i / 2]();
        if (back) come_back();
        assert_int_equal(send("k", "pay"), SEND_DUPLICATE);
        assert_int_equal(cancel("k"), CANCEL_OK);
        if (back) come_back();
        const struct rec_settle *s = find("k")->settle;
        assert_outcome(s, "charged");
        assert_true(s->restored && !s->by_token);
        assert_true(s->first_seen_ms == first_seen && s->settled_ms == settled);
        assert_int_equal(s->generation, i + 1); /* its effect key was used, perhaps: the next one is another */
        assert_int_equal(counters().cancelled, i + 1);
        assert_int_equal(counters().acked, 1);
    }
}

static void a_purged_replay_leaves_the_outcome_before_it(void **state) {
    (void)state;
    do_work("k", "charged");
    assert_int_equal(again("k"), AGAIN_OK);
    assert_int_equal(core_cancel(w.core, w.now, find("k"), SL("purged"), NULL), CANCEL_OK);
    come_back();
    const struct rec_settle *s = find("k")->settle;
    struct history_item last;
    assert_outcome(s, "charged");
    assert_true(history_last_decision(s->history, &last));
    assert_int_equal(last.what, DECISION_CANCELLED);
    assert_true(slice_eq(last.reason, SL("purged")));
}

static void what_happened_under_a_cancelled_replay_is_told_behind_the_outcome(void **state) {
    (void)state;
    u32 effects;
    struct history_item item, decisions[3];
    do_work("k", "charged");
    assert_int_equal(again("k"), AGAIN_OK);
    struct leased first = receive();
    pass(60000); /* it ran out */
    struct leased second = receive();
    struct settle_in late = {.verb = VERB_ACK, .result = SL("late"), .effect_id = SL("ch_2")};
    assert_int_equal(settle_as(&first, late, NULL), SETTLE_FENCED);
    settle_as(&second, (struct settle_in){.verb = VERB_STEP, .name = SL("t"), .result = SL("x")}, NULL);
    assert_int_equal(cancel("k"), CANCEL_OK);
    assert_int_equal(ack(&second, "too late"), SETTLE_SETTLED);
    come_back();
    const struct rec_settle *s = find("k")->settle;
    assert_outcome(s, "charged");
    assert_true(history_has_effect(s->history, SL("ch_2"), &effects));
    assert_int_equal(effects, 2);
    assert_int_equal(items_of(s->history, HISTORY_ATTEMPT), 4);
    assert_int_equal(items_of(s->history, HISTORY_STEP), 0);
    assert_true(history_last_attempt(s->history, &item));
    assert_true(item.fence == second.fence && item.ended == ENDED_CANCELLED);
    u32 n = 0;
    for (u32 at = 0; history_next(s->history, &at, &item);)
        if (item.kind == HISTORY_DECISION && n < 3) decisions[n++] = item;
    assert_int_equal(n, 2);
    assert_int_equal(decisions[0].what, DECISION_REPLAY);
    assert_int_equal(decisions[1].what, DECISION_CANCELLED);
    assert_true(slice_eq(decisions[1].consumer, SL("bob")) && slice_eq(decisions[1].reason, SL("no need")));
}

static void a_replay_with_an_outcome_of_its_own_replaces_the_one_before(void **state) {
    (void)state;
    do_work("k", "secret-first");
    assert_int_equal(again("k"), AGAIN_OK);
    come_back();
    struct leased l = receive();
    assert_int_equal(ack(&l, "second"), SETTLE_OK);
    come_back();
    const struct rec_settle *s = find("k")->settle;
    assert_true(slice_eq(s->result, SL("second")) && !s->restored && s->attempts == 1);
    for (u64 i = w.first; i < w.count; i++) /* nor is it in anybody's way any more */
        assert_null(memmem(w.records[i].body, w.records[i].n, "secret-first", 12));
    assert_int_equal(core_cancel(w.core, w.now, find("k"), SL("x"), NULL), CANCEL_SETTLED);
}

static void a_decided_replay_has_the_outcome_that_was_decided(void **state) {
    (void)state;
    enum state now;
    struct resolve_in in = {.as = DECISION_REJECTED, .result = SL("by hand")};
    do_work("k", "charged");
    assert_int_equal(again("k"), AGAIN_OK);
    dead();
    assert_int_equal(core_resolve(w.core, w.now, find("k"), &in, AUDIT("ann", ""), &now), RESOLVE_OK);
    come_back();
    assert_int_equal(state_of("k"), STATE_REJECTED);
    assert_true(slice_eq(find("k")->settle->result, SL("by hand")));
}

static void an_outcome_comes_back_with_its_window_before_it(void **state) {
    (void)state;
    do_work("k", "charged");
    i64 window = core_queue_rules(w.core, w.queue)->window_ms;
    assert_int_equal(again("k"), AGAIN_OK);
    pass(window + HOUR); /* it would have been forgotten, had it not been replayed */
    assert_int_equal(cancel("k"), CANCEL_OK);
    assert_true(core_key_left_ms(w.core, w.now, find("k")->settle) == window);
    come_back();
    pass(window - HOUR);
    assert_int_equal(send("k", "pay"), SEND_DUPLICATE);
    assert_outcome(find("k")->settle, "charged");
}

/* ---- erase, forget */

static bool journal_holds(const char *text) {
    for (u64 i = w.first; i < w.count; i++)
        if (memmem(w.records[i].body, w.records[i].n, text, strlen(text))) return true;
    return false;
}

static void erasing_a_replay_erases_the_outcome_before_it_too(void **state) {
    (void)state;
    do_work("k", "secret-result");
    assert_int_equal(again("k"), AGAIN_OK);
    come_back();
    assert_true(journal_holds("secret-result") && journal_holds("ch_1"));
    assert_int_equal(core_erase(w.core, w.now, find("k"), AUDIT("ann", "gdpr")), ERASE_OK);
    compact_upto(core_erase_upto(w.core) - 1);
    assert_false(journal_holds("secret-result") || journal_holds("ch_1") || journal_holds("because"));
    restart_after(0);
    const struct rec_settle *s = find("k")->settle;
    assert_true(s->erased && s->state == STATE_DONE && s->result.n == 0 && slice_eq(s->reason, SL("erased")));
    assert_int_equal(items_of(s->history, HISTORY_EFFECT), 0);
    assert_int_equal(items_of(s->history, HISTORY_ATTEMPT), 2); /* how they ended stays */
    assert_int_equal(core_erase(w.core, w.now, find("k"), AUDIT("ann", "gdpr")), ERASE_ALREADY);
    assert_int_equal(again("k"), AGAIN_PAYLOAD_GONE);
}

static void forgetting_a_replay_forgets_the_outcome_before_it_too(void **state) {
    (void)state;
    do_work("k", "secret-result");
    assert_int_equal(again("k"), AGAIN_OK);
    assert_int_equal(core_forget(w.core, w.now, find("k"), AUDIT("ann", "")), FORGET_OK);
    come_back();
    assert_null(find("k"));
    assert_false(journal_holds("secret-result"));
    assert_int_equal(send("k", "other"), SEND_ACCEPTED);
}

/* ---- bounds */

static char large[1u << 20];

static void a_replay_on_a_full_disk_can_be_cancelled(void **state) {
    (void)state;
    memset(large, 'r', sizeof large - 1);
    do_work("k", large);
    set_room(1 << 20); /* the replay itself fits nowhere: nothing is lost */
    assert_int_equal(again("k"), AGAIN_FULL);
    assert_outcome(find("k")->settle, large);
    set_room(8 << 20);
    u64 reserved = core_reserved_bytes(w.core);
    assert_int_equal(again("k"), AGAIN_OK);
    assert_true(core_reserved_bytes(w.core) - reserved > sizeof large);
    come_back();
    assert_true(core_reserved_bytes(w.core) - reserved > sizeof large);
    struct leased l = receive();
    assert_int_equal(nack(&l, CLASS_TRANSIENT), SETTLE_OK);
    w.metered = true;
    core_room_set(w.core, core_reserved_bytes(w.core) + 20000); /* less than the headroom */
    assert_int_equal(send("new", "p"), SEND_FULL);
    assert_int_equal(cancel("k"), CANCEL_OK);
    assert_outcome(find("k")->settle, large);
    assert_int_equal(core_reserved_bytes(w.core), reserved);
}

static void any_number_of_cancelled_replays_takes_no_more_than_one(void **state) {
    (void)state;
    u64 size = 0;
    do_work("k", "charged");
    for (u32 i = 0; i < 100; i++) {
        assert_int_equal(again("k"), AGAIN_OK);
        struct leased l = receive();
        settle_as(&l, (struct settle_in){.verb = VERB_STEP, .name = SL("s"), .result = SL("step")}, NULL);
        assert_int_equal(nack(&l, CLASS_TRANSIENT), SETTLE_OK);
        assert_int_equal(cancel("k"), CANCEL_OK);
        assert_true(items_of(find("k")->settle->history, HISTORY_ATTEMPT) <= 2 * HISTORY_ATTEMPTS_KEPT);
        if (i == 20) size = w.records[w.count - 1].n;
    }
    assert_int_equal(w.records[w.count - 1].n, size);
    assert_outcome(find("k")->settle, "charged");
    assert_int_equal(find("k")->settle->generation, 100);
}

/* ---- what is on disk */

/* The replay's record, and what is in it. */
static struct record replay_record(struct rec_settle *former) {
    struct record r;
    struct errbuf err;
    struct stored *s = &w.records[w.count - 1];
    assert_int_equal(s->type, REC_MESSAGE);
    assert_int_equal(record_decode(s->type, s->version, slice_of(s->body, s->n), &r, &err), ST_OK);
    assert_true(r.message.former.n > 0 && former_decode(r.message.former, former));
    return r;
}

static hx_st read_back(const struct record *r, u8 version) {
    struct record back;
    struct errbuf err;
    size_t n = record_size(r);
    char *p = mem_alloc(n);
    record_encode(r, p);
    hx_st st = record_decode((u8)r->type, version, slice_of(p, n), &back, &err);
    mem_free(p);
    return st;
}

static hx_st read_with(struct record r, const struct rec_settle *former) {
    struct record as = {.type = REC_SETTLE, .settle = *former};
    struct buf b = {0};
    buf_char(&b, (char)RECORD_VERSION);
    buf_grow(&b, record_size(&as));
    b.len += record_encode(&as, b.p + b.len);
    r.message.former = buf_slice(&b);
    hx_st st = read_back(&r, RECORD_VERSION);
    buf_free(&b);
    return st;
}

static void an_outcome_that_is_not_this_keys_is_damage(void **state) {
    (void)state;
    struct rec_settle good, bad;
    struct history h = {0};
    do_work("k", "charged");
    assert_int_equal(again("k"), AGAIN_OK);
    struct record r = replay_record(&good);
    assert_int_equal(read_with(r, &good), ST_OK);
#define REFUSED(change)                                                                                                \
    bad = good;                                                                                                        \
    change;                                                                                                            \
    assert_int_equal(read_with(r, &bad), ST_DAMAGED)
    REFUSED(bad.ref.hash++);
    REFUSED(bad.ref.queue++);
    REFUSED(bad.ref.seq = r.message.ref.seq);
    REFUSED(bad.fingerprint++);
    REFUSED(bad.generation = r.message.generation);
    REFUSED(bad.state = STATE_PENDING);
    REFUSED(bad.state = STATE_COUNT);
    REFUSED(bad.ended = ENDED_COUNT);
    REFUSED(bad.key = SL("k"));
    REFUSED(bad.kept.is = true);
    REFUSED(bad.carried = true);
    REFUSED(bad.erased = true);
    REFUSED(bad.erasing = true);
    REFUSED(bad.restored = true);
    history_add(&h, &(struct history_item){.kind = HISTORY_STEP, .name = SL("s")});
    REFUSED(bad.history = slice_of(h.p, h.len));
    REFUSED(bad.history = slice_of(h.p, h.len - 1));
    history_free(&h);
    r.message.ttl_ms = 5;
    assert_int_equal(read_with(r, &good), ST_DAMAGED);
    r.message.ttl_ms = 0;
    r.message.traits = TRAIT_CONFLICT;
    assert_int_equal(read_with(r, &good), ST_DAMAGED);
    r.message.traits = 0;
    r.message.refused = true;
    assert_int_equal(read_with(r, &good), ST_DAMAGED);
}

static void a_damaged_outcome_is_never_read_past_its_end(void **state) {
    (void)state;
    struct rec_settle good;
    do_work("k", "charged");
    assert_int_equal(again("k"), AGAIN_OK);
    struct record r = replay_record(&good);
    struct buf whole = {0};
    buf_slice_add(&whole, r.message.former);
    for (size_t n = 1; n < whole.len; n++) {
        char *exact = mem_alloc(n); /* of that very size: a sanitizer sees a byte too far */
        memcpy(exact, whole.p, n);
        r.message.former = slice_of(exact, n);
        assert_int_equal(read_back(&r, RECORD_VERSION), ST_DAMAGED);
        mem_free(exact);
    }
    buf_char(&whole, 0);
    r.message.former = buf_slice(&whole);
    assert_int_equal(read_back(&r, RECORD_VERSION), ST_DAMAGED);
    whole.len--;
    for (u32 version = 0; version < 256; version++) {
        whole.p[0] = (char)version;
        r.message.former = buf_slice(&whole);
        bool known = version >= FORMER_VERSION_MIN && version <= RECORD_VERSION;
        assert_int_equal(read_back(&r, RECORD_VERSION), known ? ST_OK : ST_DAMAGED);
    }
    buf_free(&whole);
}

static void a_replay_of_version_2_had_no_outcome_and_is_cancelled_as_it_was_then(void **state) {
    (void)state;
    struct rec_settle former;
    do_work("k", "charged");
    assert_int_equal(again("k"), AGAIN_OK);
    struct record r = replay_record(&former);
    assert_int_equal(read_back(&r, 2), ST_DAMAGED); /* a flag which that version did not have */
    r.message.former = SL("");
    assert_int_equal(read_back(&r, 2), ST_OK);
    struct stored *s = &w.records[w.count - 1], old = *s;
    *s = (struct stored){.type = REC_MESSAGE, .version = 2, .n = record_size(&r)};
    s->body = mem_alloc(s->n);
    record_encode(&r, s->body);
    mem_free(old.body);
    restart_after(0);
    assert_int_equal(cancel("k"), CANCEL_OK);
    assert_int_equal(state_of("k"), STATE_CANCELLED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        R(a_cancelled_replay_leaves_the_outcome_before_it_wherever_it_stood),
        R(a_purged_replay_leaves_the_outcome_before_it),
        R(what_happened_under_a_cancelled_replay_is_told_behind_the_outcome),
        R(a_replay_with_an_outcome_of_its_own_replaces_the_one_before),
        R(a_decided_replay_has_the_outcome_that_was_decided),
        R(an_outcome_comes_back_with_its_window_before_it),
        R(erasing_a_replay_erases_the_outcome_before_it_too),
        R(forgetting_a_replay_forgets_the_outcome_before_it_too),
        R(a_replay_on_a_full_disk_can_be_cancelled),
        R(any_number_of_cancelled_replays_takes_no_more_than_one),
        R(an_outcome_that_is_not_this_keys_is_damage),
        R(a_damaged_outcome_is_never_read_past_its_end),
        R(a_replay_of_version_2_had_no_outcome_and_is_cancelled_as_it_was_then),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
