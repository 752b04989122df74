/* The promises of src/journal/journal.h, as tests any adapter can be put to. A world makes, cuts off and breaks the
 * adapter under test; one that cannot cut the power or break the disk runs CONFORMANCE without CONFORMANCE_FAULTS. */
#ifndef HAPAX_TESTS_JOURNAL_CONFORMANCE_H
#define HAPAX_TESTS_JOURNAL_CONFORMANCE_H

#include "unit/journal_util.h"

struct world {
    void *ctx;
    size_t most; /* largest body the world's segments take */
    hx_st (*open)(struct world *w, struct journal **out, struct errbuf *err);
    void (*settle)(struct world *w, struct journal *j, u64 pos); /* until pos is durable or the journal has failed */
    void (*calm)(struct world *w, struct journal *j, bool (*until)(struct journal *j, void *arg), void *arg);
    void (*power_cut)(struct world *w, struct journal *j); /* closes j; unsynced bytes are lost */
    void (*fail_next_sync)(struct world *w);
    void (*damage)(struct world *w, u64 pos, u64 segment_bytes);
};

static inline struct journal *world_open(struct world *w) {
    struct journal *j = NULL;
    struct errbuf err = {0};
    hx_st st = w->open(w, &j, &err);
    if (st != ST_OK) fail_msg("open: %s: %s", status_text(st), err.text);
    return j;
}

static inline struct journal *world_start(struct world *w, struct replayed *r) {
    struct journal *j = world_open(w);
    struct errbuf err = {0};
    if (journal_replay(j, replay_one, r, &err) != ST_OK) fail_msg("replay: %s", err.text);
    if (journal_start(j, &err) != ST_OK) fail_msg("start: %s", err.text);
    return j;
}

struct bench {
    struct model m;
    struct replayed r;
};

static inline struct bench *bench_new(struct world *w) {
    struct bench *b = mem_zalloc(sizeof *b);
    b->r.m = &b->m;
    b->r.most = w->most;
    return b;
}

static inline void append_some(struct bench *b, struct journal *j, struct world *w, u64 n) {
    for (u64 i = 0; i < n; i++) model_append(&b->m, j, w->most);
    journal_flush(j);
}

static inline void what_was_appended_comes_back_in_order_and_unaltered(void **state) {
    struct world *w = *state;
    struct bench *b = bench_new(w);
    struct journal *j = world_start(w, &b->r);
    assert_false(b->r.any);
    for (int turn = 0; turn < 50; turn++) append_some(b, j, w, 20);
    journal_close(j);
    j = world_start(w, &b->r);
    assert_true(replay_is_right(&b->r, &b->m, b->m.end));
    assert_int_equal(b->r.first, 0);
    assert_int_equal(b->r.next, 1000);
    for (u64 i = 0; i < b->m.end; i++) assert_int_equal(b->r.pos[i], b->m.pos[i]);
    journal_close(j);
    mem_free(b);
}

static inline void durable_moves_past_a_flushed_record_and_never_past_the_tail(void **state) {
    struct world *w = *state;
    struct bench *b = bench_new(w);
    struct journal *j = world_start(w, &b->r);
    struct journal_stats stats;
    for (int turn = 0; turn < 20; turn++) {
        append_some(b, j, w, 3);
        u64 last = b->m.pos[b->m.end - 1];
        w->settle(w, j, last);
        assert_null(journal_failed(j));
        assert_true(journal_durable(j) > last);
        journal_stats_get(j, &stats);
        assert_true(stats.durable <= stats.tail);
        assert_int_equal(stats.unsynced_bytes, 0);
    }
    journal_close(j);
    mem_free(b);
}

static inline void an_unflushed_record_is_not_durable(void **state) {
    struct world *w = *state;
    struct bench *b = bench_new(w);
    struct journal *j = world_start(w, &b->r);
    append_some(b, j, w, 1);
    w->settle(w, j, b->m.pos[0]);
    model_append(&b->m, j, w->most);
    assert_true(journal_durable(j) <= b->m.pos[1]);
    journal_close(j);
    mem_free(b);
}

static inline void records_are_readable_before_and_after_they_are_durable(void **state) {
    struct world *w = *state;
    struct bench *b = bench_new(w);
    struct journal *j = world_start(w, &b->r);
    struct errbuf err = {0};
    for (int turn = 0; turn < 60; turn++) {
        append_some(b, j, w, 5);
        if (turn % 4 == 0) w->settle(w, j, b->m.pos[b->m.end - 1]);
        for (u64 i = (u64)turn % 7; i < b->m.end; i += 7) {
            struct journal_record rec;
            size_t hint = i % 2 ? body_size(i, w->most) : 0;
            if (journal_read(j, b->m.pos[i], hint, &rec, &err) != ST_OK) fail_msg("record %d: %s", (int)i, err.text);
            assert_int_equal(rec.pos, b->m.pos[i]);
            assert_int_equal(body_number(&rec), i);
            assert_true(body_right(&rec, w->most));
        }
    }
    journal_close(j);
    mem_free(b);
}

static inline void a_power_cut_loses_nothing_that_was_durable(void **state) {
    struct world *w = *state;
    struct bench *b = bench_new(w);
    for (int life = 0; life < 12; life++) {
        b->r.any = false;
        b->r.last_pos = 0;
        struct journal *j = world_start(w, &b->r);
        assert_true(replay_is_right(&b->r, &b->m, b->m.acked));
        model_adopt(&b->m, &b->r);
        append_some(b, j, w, 10);
        w->settle(w, j, b->m.pos[b->m.end - 1]);
        model_note_durable(&b->m, j);
        assert_int_equal(b->m.acked, b->m.end);
        append_some(b, j, w, 10);
        w->power_cut(w, j);
    }
    mem_free(b);
}

static inline void positions_told_by_replay_are_readable_after_start(void **state) {
    struct world *w = *state;
    struct bench *b = bench_new(w);
    struct errbuf err = {0};
    struct journal *j = world_start(w, &b->r);
    append_some(b, j, w, 30);
    w->settle(w, j, b->m.pos[29]);
    w->power_cut(w, j);
    b->r.any = false;
    j = world_start(w, &b->r);
    assert_int_equal(b->r.next, 30);
    for (u64 i = 0; i < 30; i++) {
        struct journal_record rec;
        if (journal_read(j, b->r.pos[i], 0, &rec, &err) != ST_OK) fail_msg("record %d: %s", (int)i, err.text);
        assert_int_equal(body_number(&rec), i);
    }
    assert_true(journal_durable(j) > b->r.pos[29]);
    journal_close(j);
    mem_free(b);
}

static inline void after_a_failed_sync_nothing_becomes_durable_any_more(void **state) {
    struct world *w = *state;
    struct bench *b = bench_new(w);
    struct journal *j = world_start(w, &b->r);
    append_some(b, j, w, 5);
    w->settle(w, j, b->m.pos[4]);
    u64 durable = journal_durable(j);
    w->fail_next_sync(w);
    append_some(b, j, w, 5);
    w->settle(w, j, b->m.pos[9]);
    const char *why = journal_failed(j);
    assert_non_null(why);
    assert_non_null(strstr(why, "sync"));
    assert_non_null(strstr(why, ".seg"));
    for (int turn = 0; turn < 5; turn++) {
        append_some(b, j, w, 5);
        w->settle(w, j, UINT64_MAX);
        assert_int_equal(journal_durable(j), durable);
        assert_string_equal(journal_failed(j), why);
    }
    assert_int_equal(journal_room(j), 0);
    journal_close(j);
    mem_free(b);
}

/* The broker learns of a failure when its turn ends; until then it reads back what it wrote, to decide by it. */
static inline void after_a_failure_each_record_of_the_turn_keeps_its_place(void **state) {
    struct world *w = *state;
    struct bench *b = bench_new(w);
    struct journal *j = world_start(w, &b->r);
    struct errbuf err = {0};
    append_some(b, j, w, 5);
    w->fail_next_sync(w);
    w->settle(w, j, b->m.pos[4]);
    assert_non_null(journal_failed(j));
    for (int i = 0; i < 20; i++) model_append(&b->m, j, w->most);
    for (u64 i = 0; i < b->m.end; i++) {
        struct journal_record rec;
        if (i) assert_true(b->m.pos[i] > b->m.pos[i - 1]);
        if (journal_read(j, b->m.pos[i], 0, &rec, &err) != ST_OK) fail_msg("record %d: %s", (int)i, err.text);
        assert_int_equal(body_number(&rec), i);
        assert_true(body_right(&rec, w->most));
    }
    journal_close(j);
    mem_free(b);
}

struct scanned {
    struct bench *b;
    struct journal *j;
    struct world *w;
    u64 first, next, carried;
    u64 every; /* so manieth is wanted */
    bool append;
};

/* Where the next record begins that is wanted. */
static inline u64 scan_next(void *ctx, u64 from) {
    const struct scanned *s = ctx;
    for (u64 i = s->b->m.dropped; i < s->b->m.end; i++)
        if (i % s->every == 0 && s->b->m.pos[i] >= from) return s->b->m.pos[i];
    return UINT64_MAX;
}

static inline hx_st scan_one(void *ctx, const struct journal_record *rec, struct errbuf *err) {
    (void)err;
    struct scanned *s = ctx;
    u64 number = body_number(rec);
    assert_int_equal(number, s->next);
    assert_int_equal(rec->pos, s->b->m.pos[number]);
    assert_true(body_right(rec, s->w->most));
    s->next++;
    if (!s->append) return ST_OK;
    model_append(&s->b->m, s->j, s->w->most);
    s->carried++;
    return ST_OK;
}

static inline bool is_gone(struct journal *j, void *pos) {
    struct journal_record rec;
    return journal_read(j, *(u64 *)pos, 0, &rec, NULL) == ST_NOT_FOUND;
}

/* Fill until there are `segments` sealed ones. */
static inline void fill_segments(struct bench *b, struct journal *j, struct world *w, u64 segments) {
    struct journal_stats stats;
    journal_stats_get(j, &stats);
    while (b->m.end == 0 ||
           b->m.pos[b->m.end - 1] / stats.segment_bytes < stats.first / stats.segment_bytes + segments) {
        append_some(b, j, w, 4);
        w->settle(w, j, b->m.pos[b->m.end - 1]);
        assert_null(journal_failed(j));
    }
}

static inline void a_scan_sees_every_record_that_is_wanted_once(void **state) {
    struct world *w = *state;
    struct bench *b = bench_new(w);
    struct journal *j = world_start(w, &b->r);
    struct journal_stats stats;
    struct errbuf err = {0};
    journal_want(j, 8ull * w->most);
    fill_segments(b, j, w, 2);
    journal_stats_get(j, &stats);
    u64 cursor = stats.first, until = journal_oldest_end(j), steps = 0, end = b->m.end;
    struct scanned s = {.b = b, .j = j, .w = w, .append = true, .every = 1};
    const struct journal_wanted all = {.next = scan_next, .stretch = 8, .each = scan_one, .ctx = &s};
    for (; cursor < until; steps++)
        if (journal_scan(j, &cursor, until, 700, &all, &err) != ST_OK) fail_msg("scan: %s", err.text);
    assert_true(steps > 3);
    assert_true(s.next > 10 && s.next < end);
    assert_true(b->m.pos[s.next - 1] < until && b->m.pos[s.next] >= until);
    assert_int_equal(s.carried, s.next);
    journal_close(j);
    mem_free(b);
}

static inline hx_st scan_some(void *ctx, const struct journal_record *rec, struct errbuf *err) {
    (void)err;
    struct scanned *s = ctx;
    u64 number = body_number(rec);
    assert_int_equal(rec->pos, s->b->m.pos[number]);
    assert_true(body_right(rec, s->w->most));
    if (number % s->every == 0) assert_int_equal(number / s->every, s->next++);
    s->carried++;
    return ST_OK;
}

/* Found although it is only known to within some bytes where it begins. */
static inline void what_is_not_wanted_is_passed_over(void **state) {
    struct world *w = *state;
    struct bench *b = bench_new(w);
    struct journal *j = world_start(w, &b->r);
    struct errbuf err = {0};
    struct journal_stats stats;
    fill_segments(b, j, w, 2);
    journal_stats_get(j, &stats);
    u64 cursor = stats.first, until = journal_oldest_end(j), end = 0;
    while (b->m.pos[end] < until) end++;
    struct scanned s = {.b = b, .j = j, .w = w, .every = 5};
    const struct journal_wanted some = {.next = scan_next, .stretch = 16, .each = scan_some, .ctx = &s};
    while (cursor < until)
        if (journal_scan(j, &cursor, until, 700, &some, &err) != ST_OK) fail_msg("scan: %s", err.text);
    assert_int_equal(s.next, (end + 4) / 5);
    assert_true(s.next > 2 && s.carried < end / 2);
    journal_close(j);
    mem_free(b);
}

static inline u64 nothing_begins_here(void *ctx, u64 from) {
    u64 at = *(u64 *)ctx;
    return from <= at ? at : UINT64_MAX;
}

static inline void a_record_that_is_wanted_and_not_there_is_damage(void **state) {
    struct world *w = *state;
    struct bench *b = bench_new(w);
    struct journal *j = world_start(w, &b->r);
    struct errbuf err = {0};
    struct journal_stats stats;
    fill_segments(b, j, w, 2);
    journal_stats_get(j, &stats);
    u64 at = b->m.pos[1] + 8, cursor = stats.first;
    const struct journal_wanted none = {.next = nothing_begins_here, .stretch = 8, .each = scan_some, .ctx = &at};
    assert_int_equal(journal_scan(j, &cursor, journal_oldest_end(j), 700, &none, &err), ST_DAMAGED);
    journal_close(j);
    mem_free(b);
}

static inline void only_what_is_sealed_and_durable_is_scanned(void **state) {
    struct world *w = *state;
    struct bench *b = bench_new(w);
    struct journal *j = world_start(w, &b->r);
    struct errbuf err = {0};
    struct journal_stats stats;
    append_some(b, j, w, 3);
    journal_stats_get(j, &stats);
    u64 cursor = stats.first;
    struct scanned s = {.b = b, .j = j, .w = w, .every = 1};
    const struct journal_wanted all = {.next = scan_next, .stretch = 8, .each = scan_one, .ctx = &s};
    assert_int_equal(journal_oldest_end(j), 0);
    assert_int_equal(journal_scan(j, &cursor, stats.first + stats.segment_bytes, 700, &all, &err), ST_INVALID);
    journal_close(j);
    mem_free(b);
}

static inline void dropped_segments_are_gone_and_the_rest_stays(void **state) {
    struct world *w = *state;
    struct bench *b = bench_new(w);
    struct journal *j = world_start(w, &b->r);
    struct journal_stats stats;
    struct errbuf err = {0};
    fill_segments(b, j, w, 3);
    model_drop_oldest(&b->m, j);
    append_some(b, j, w, 1);
    w->settle(w, j, b->m.pos[b->m.end - 1]);
    w->calm(w, j, is_gone, &b->m.pos[0]);
    struct journal_record rec;
    assert_int_equal(journal_read(j, b->m.pos[b->m.dropped], 0, &rec, &err), ST_OK);
    journal_stats_get(j, &stats);
    assert_true(stats.first <= b->m.pos[b->m.dropped] && stats.first > b->m.pos[b->m.dropped - 1]);
    journal_close(j);
    j = world_start(w, &b->r);
    assert_true(replay_is_right(&b->r, &b->m, b->m.end));
    assert_int_equal(b->r.first, b->m.dropped);
    journal_close(j);
    mem_free(b);
}

static inline void a_drop_waits_until_what_was_appended_before_it_is_durable(void **state) {
    struct world *w = *state;
    struct bench *b = bench_new(w);
    struct journal *j = world_start(w, &b->r);
    fill_segments(b, j, w, 3);
    u64 end = b->m.end;
    model_append(&b->m, j, w->most); /* stands for the carried-forward record; never flushed */
    u64 upto = journal_oldest_end(j);
    journal_drop(j, upto);
    w->settle(w, j, b->m.pos[end - 1]);
    w->power_cut(w, j);
    b->r.any = false;
    j = world_start(w, &b->r);
    assert_true(replay_is_right(&b->r, &b->m, end));
    assert_int_equal(b->r.first, 0);
    journal_close(j);
    mem_free(b);
}

static inline void appends_within_room_never_fail(void **state) {
    struct world *w = *state;
    struct bench *b = bench_new(w);
    struct journal *j = world_start(w, &b->r);
    for (int round = 0; round < 3; round++) {
        u64 room = journal_room(j), cost = 0;
        while (b->m.end < MODEL_MAX - 1) {
            cost += journal_cost(body_size(b->m.end, w->most));
            if (cost > room) break;
            append_some(b, j, w, 1);
            if (b->m.end % 3 == 0) w->settle(w, j, b->m.pos[b->m.end - 1]);
            if (journal_failed(j)) fail_msg("failed within room: %s", journal_failed(j));
        }
        w->settle(w, j, b->m.pos[b->m.end - 1]);
        assert_null(journal_failed(j));
    }
    journal_close(j);
    mem_free(b);
}

static inline void needed_room_is_waited_for(void **state) {
    struct world *w = *state;
    struct bench *b = bench_new(w);
    struct journal *j = world_start(w, &b->r);
    for (u64 bytes = 10000; bytes < 2000000; bytes += 30000) {
        assert_true(journal_need(j, bytes));
        assert_true(journal_room(j) >= bytes);
        append_some(b, j, w, 1);
        if (bytes % 8 == 0) journal_want(j, 0);
    }
    journal_close(j);
    mem_free(b);
}

static inline hx_st scan_quietly(void *ctx, const struct journal_record *rec, struct errbuf *err) {
    (void)err;
    struct bench *b = ((struct scanned *)ctx)->b;
    u64 number = body_number(rec);
    assert_true(number < b->m.end && rec->pos == b->m.pos[number]);
    return ST_OK;
}

/* Everything at once, as a broker does it: turns of appends, reads of old and new, compaction in steps, drops. */
static inline void busy_use_agrees_with_the_model(void **state) {
    struct world *w = *state;
    struct bench *b = bench_new(w);
    struct journal *j = world_start(w, &b->r);
    struct journal_stats stats;
    struct errbuf err = {0};
    struct rng rng;
    rng_seed(&rng, 11);
    u64 cursor = 0;
    struct scanned s = {.b = b, .every = 1};
    const struct journal_wanted all = {.next = scan_next, .stretch = 8, .each = scan_quietly, .ctx = &s};
    for (int turn = 0; turn < 1500; turn++) {
        append_some(b, j, w, 1 + rng_below(&rng, 8));
        if (turn % 16 == 0) w->settle(w, j, b->m.pos[b->m.end - 1]);
        u64 pick = b->m.dropped + rng_below(&rng, b->m.end - b->m.dropped);
        struct journal_record rec;
        if (journal_read(j, b->m.pos[pick], 0, &rec, &err) != ST_OK) fail_msg("record %d: %s", (int)pick, err.text);
        assert_true(body_number(&rec) == pick && body_right(&rec, w->most));
        if (turn % 100 == 0) journal_want(j, rng_below(&rng, 5) * 50000);
        journal_stats_get(j, &stats);
        if (stats.used_bytes < 4 * stats.segment_bytes) continue;
        u64 until = journal_oldest_end(j);
        if (until == 0) continue;
        if (cursor < stats.first) cursor = stats.first;
        if (journal_scan(j, &cursor, until, 20000, &all, &err) != ST_OK) fail_msg("scan: %s", err.text);
        if (cursor >= until) model_drop_oldest(&b->m, j);
    }
    assert_null(journal_failed(j));
    assert_true(b->m.dropped > 1000);
    journal_close(j);
    j = world_start(w, &b->r);
    assert_true(replay_is_right(&b->r, &b->m, b->m.end));
    journal_close(j);
    mem_free(b);
}

static inline void damage_in_the_middle_is_refused_with_file_and_offset(void **state) {
    struct world *w = *state;
    struct bench *b = bench_new(w);
    struct journal *j = world_start(w, &b->r);
    struct journal_stats stats;
    for (int turn = 0; turn < 10; turn++) append_some(b, j, w, 5);
    w->settle(w, j, b->m.pos[49]);
    journal_stats_get(j, &stats);
    journal_close(j);
    w->damage(w, b->m.pos[20] + JOURNAL_RECORD_HEAD, stats.segment_bytes);
    struct errbuf err = {0};
    hx_st st = w->open(w, &j, &err);
    if (st == ST_OK) {
        st = journal_replay(j, replay_one, &b->r, &err);
        journal_close(j);
    }
    assert_int_equal(st, ST_DAMAGED);
    assert_non_null(strstr(err.text, "journal-"));
    assert_non_null(strstr(err.text, "offset"));
    assert_false(b->r.wrong);
    mem_free(b);
}

static inline void a_second_opener_is_told_busy(void **state) {
    struct world *w = *state;
    struct errbuf err = {0};
    struct journal *j = world_open(w), *second = NULL;
    assert_int_equal(w->open(w, &second, &err), ST_BUSY);
    assert_true(strlen(err.text) > 0);
    journal_close(j);
    journal_close(world_open(w));
}

static inline void the_secret_stays_the_same(void **state) {
    struct world *w = *state;
    u8 a[32], b[32];
    struct journal *j = world_open(w);
    journal_file_secret(j, a);
    journal_close(j);
    j = world_open(w);
    journal_file_secret(j, b);
    journal_close(j);
    assert_memory_equal(a, b, sizeof a);
    u8 zeros[32] = {0};
    assert_memory_not_equal(a, zeros, sizeof a);
}

#define CONFORMANCE(X)                                                                                                 \
    X(what_was_appended_comes_back_in_order_and_unaltered)                                                             \
    X(durable_moves_past_a_flushed_record_and_never_past_the_tail)                                                     \
    X(an_unflushed_record_is_not_durable)                                                                              \
    X(records_are_readable_before_and_after_they_are_durable)                                                          \
    X(a_scan_sees_every_record_that_is_wanted_once)                                                                    \
    X(what_is_not_wanted_is_passed_over)                                                                               \
    X(a_record_that_is_wanted_and_not_there_is_damage)                                                                 \
    X(only_what_is_sealed_and_durable_is_scanned)                                                                      \
    X(dropped_segments_are_gone_and_the_rest_stays)                                                                    \
    X(appends_within_room_never_fail)                                                                                  \
    X(needed_room_is_waited_for)                                                                                       \
    X(busy_use_agrees_with_the_model)                                                                                  \
    X(damage_in_the_middle_is_refused_with_file_and_offset)                                                            \
    X(a_second_opener_is_told_busy)                                                                                    \
    X(the_secret_stays_the_same)

#define CONFORMANCE_FAULTS(X)                                                                                          \
    X(a_power_cut_loses_nothing_that_was_durable)                                                                      \
    X(positions_told_by_replay_are_readable_after_start)                                                               \
    X(after_a_failed_sync_nothing_becomes_durable_any_more)                                                            \
    X(after_a_failure_each_record_of_the_turn_keeps_its_place)                                                         \
    X(a_drop_waits_until_what_was_appended_before_it_is_durable)

#endif
