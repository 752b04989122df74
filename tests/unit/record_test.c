/* Records: what the encoder measures is what it writes, for every type and every string, long and short. And the histories in them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/record.h"

static char text[70000];

/* A record of this type whose every string has n bytes. */
/* Eight that are all alike but for their times. */
static slice arrivals_with(slice request_id) {
    static struct buf out;
    struct arrival a = {.kind = ARRIVAL_LATE, .request_id = request_id};
    buf_reset(&out);
    for (a.at_ms = 0; a.at_ms < ARRIVALS_KEPT; a.at_ms++) {
        buf_grow(&out, arrival_size(&a));
        arrival_put(&a, out.p + out.len);
        out.len += arrival_size(&a);
    }
    return buf_slice(&out);
}

static struct record filled(enum record_type type, size_t n) {
    struct record r;
    slice s = slice_of(text, n), key = slice_of(text, n < 255 ? n : 255);
    memset(&r, 0, sizeof r);
    r.type = type;
    switch (type) {
    case REC_QUEUE:
        r.queue = (struct rec_queue){.name = s, .config = s, .promise_count = PROMISES_MAX};
        break;
    case REC_MESSAGE:
        r.message = (struct rec_message){.key = key,
                                         .group = s,
                                         .content_type = s,
                                         .attrs = s,
                                         .traceparent = s,
                                         .tracestate = s,
                                         .request_id = key,
                                         .payload = s,
                                         .due_ms = 1,
                                         .origin_seq = 1,
                                         .carried = n % 2 == 0};
        break;
    case REC_LEASE:
        r.lease.consumer = s;
        break;
    case REC_RETURN:
        r.ret = (struct rec_return){.reason = s, .traits = TRAIT_TAKES | TRAIT_RECONCILE};
        break;
    case REC_STEP:
        r.step = (struct rec_step){.name = s, .content_type = s, .result = s};
        break;
    case REC_EFFECT:
        r.effect.effect_id = s;
        break;
    case REC_SETTLE:
        r.settle = (struct rec_settle){.state = STATE_DONE,
                                       .carried = true,
                                       .key = s,
                                       .request_id = s,
                                       .reason = s,
                                       .content_type = s,
                                       .result = s,
                                       .http = s};
        r.settle.kept = (struct kept){true, s, s, s, s, s, s};
        break;
    case REC_ARRIVALS:
        r.arrivals.count = ARRIVALS_KEPT;
        r.arrivals.last = arrivals_with(s);
        break;
    case REC_DECIDE:
        r.decide = (struct rec_decide){.group = s, .by = s, .note = s};
        break;
    case REC_COUNTS:
        memset(&r.counts.add, 1, sizeof r.counts.add);
        break;
    case REC_AUDIT:
        r.audit = (struct rec_audit){
            .number = 1, .who = s, .what = s, .queue_name = s, .key = s, .id = s, .why = s, .detail = s};
        break;
    default:
        break;
    }
    return r;
}

static void the_size_of_a_record_is_what_its_encoder_writes(void **state) {
    (void)state;
    static const size_t lengths[] = {0, 1, 36, 254, 255, 256, 4096, 65535};
    for (u32 type = REC_NONE + 1; type < REC_COUNT; type++)
        for (u32 i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
            struct record r = filled((enum record_type)type, lengths[i]), back;
            size_t size = record_size(&r);
            char *p = mem_alloc(size + 8);
            struct errbuf err;
            memset(p + size, 0x5a, 8);
            assert_int_equal(record_encode(&r, p), size);
            for (u32 k = 0; k < 8; k++) assert_int_equal(p[size + k], 0x5a);
            assert_int_equal(record_decode((u8)type, RECORD_VERSION, slice_of(p, size), &back, &err), ST_OK);
            mem_free(p);
        }
}

/* They stand in the record as the record of every version has them: a time, a kind, and an id with its length. */
static void arrivals_are_read_as_they_were_written_and_no_further(void **state) {
    (void)state;
    static const size_t lengths[] = {0, 1, 36, 128, 254, 255, 65535};
    for (u32 i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        struct record r = filled(REC_ARRIVALS, lengths[i]), back;
        size_t size = record_size(&r), each = 8 + 1 + (lengths[i] < 255 ? 1u : 3u) + lengths[i];
        assert_int_equal(size, 18 + 8 + 8 + 4 + 4 + 4 + ARRIVALS_KEPT * each);
        char *p = mem_alloc(size);
        struct errbuf err;
        record_encode(&r, p);
        for (u32 version = 1; version <= RECORD_VERSION; version++) {
            assert_int_equal(record_decode(REC_ARRIVALS, (u8)version, slice_of(p, size), &back, &err), ST_OK);
            struct arrival a;
            slice last = back.arrivals.last;
            for (u32 k = 0; k < ARRIVALS_KEPT; k++) {
                assert_true(arrival_next(&last, &a));
                assert_int_equal(a.at_ms, k);
                assert_int_equal(a.kind, ARRIVAL_LATE);
                assert_int_equal(a.request_id.n, lengths[i]);
            }
            assert_false(arrival_next(&last, &a));
        }
        for (size_t cut = size - each; cut < size; cut++)
            assert_int_equal(record_decode(REC_ARRIVALS, RECORD_VERSION, slice_of(p, cut), &back, &err), ST_DAMAGED);
        p[46 + 8] = ARRIVAL_COUNT; /* the first one's kind */
        assert_int_equal(record_decode(REC_ARRIVALS, RECORD_VERSION, slice_of(p, size), &back, &err), ST_DAMAGED);
        mem_free(p);
    }
}

/* Three attempts with steps, effects and decisions between them. */
static void live_through(struct history *h) {
    for (u32 i = 1; i <= 3; i++) {
        history_add(h, &(struct history_item){.kind = HISTORY_ATTEMPT,
                                              .fence = i,
                                              .at_ms = (i64)i * 10,
                                              .attempt = (u16)i,
                                              .lookup = i == 2,
                                              .consumer = slice_of("consumer", i * 2)});
        history_add(h, &(struct history_item){.kind = HISTORY_STEP, .name = SL("step"), .result = SL("r")});
        history_add(h, &(struct history_item){.kind = HISTORY_EFFECT, .name = SL("effect")});
        history_add(h, &(struct history_item){.kind = HISTORY_DECISION, .what = DECISION_HELD, .reason = SL("why")});
    }
}

static void ending_an_attempt_changes_it_and_nothing_else(void **state) {
    (void)state;
    const char *reasons[] = {"", "it broke", "", "otherwise"}; /* one after the other: longer, gone again, another */
    for (u64 fence = 1; fence <= 4; fence++) {
        struct history was = {0}, h = {0};
        live_through(&was);
        live_through(&h);
        for (u32 round = 0; round < 4; round++) {
            u16 attempt = round % 2 ? 0 : (u16)(7 + round); /* 0: as it is */
            history_end(&h, &(struct history_item){.fence = fence,
                                                   .ended_ms = 100 + round,
                                                   .ended = ENDED_NACKED,
                                                   .failure_class = CLASS_POISON,
                                                   .attempt = attempt,
                                                   .reason = slice_str(reasons[round])});
            u32 at = 0, was_at = 0, ended = 0;
            struct history_item item, before;
            while (history_next(slice_of(h.p, h.len), &at, &item)) {
                bool fresh = !history_next(slice_of(was.p, was.len), &was_at, &before);
                assert_true(fresh == (fence == 4 && at == h.len)); /* one that was struck out comes back */
                assert_true(fresh || item.kind == before.kind);
                if (item.kind != HISTORY_ATTEMPT || item.fence != fence) {
                    assert_true(slice_eq(item.name, before.name) && slice_eq(item.result, before.result));
                    assert_true(slice_eq(item.reason, before.reason) && slice_eq(item.consumer, before.consumer));
                    assert_true(item.ended_ms == before.ended_ms && item.attempt == before.attempt);
                    continue;
                }
                ended++;
                assert_int_equal(item.ended_ms, 100 + round);
                assert_int_equal(item.ended, ENDED_NACKED);
                assert_int_equal(item.failure_class, CLASS_POISON);
                assert_int_equal(item.attempt, round < 2 ? 7 : 9);
                assert_true(slice_eq(item.reason, slice_str(reasons[round])));
                if (!fresh) assert_true(item.lookup == before.lookup && item.at_ms == before.at_ms);
                if (!fresh) assert_true(slice_eq(item.consumer, before.consumer));
            }
            assert_int_equal(at, h.len);
            assert_int_equal(ended, 1);
        }
        history_free(&was);
        history_free(&h);
    }
}

static void memory_of_histories_that_ended_is_kept_for_others_within_bounds(void **state) {
    (void)state;
    static struct history_spares spares;
    static struct history many[HISTORY_SPARES + 2];
    for (u32 i = 0; i < HISTORY_SPARES + 2; i++) {
        history_begin(&many[i], &spares);
        history_add(&many[i], &(struct history_item){.kind = HISTORY_ATTEMPT, .fence = i});
    }
    struct history large = {0};
    history_add(&large, &(struct history_item){.kind = HISTORY_STEP, .result = slice_of(text, HISTORY_SPARE_BYTES)});
    history_retire(&large, &spares);
    assert_int_equal(spares.count, 0);
    for (u32 i = 0; i < HISTORY_SPARES + 2; i++) history_retire(&many[i], &spares);
    assert_int_equal(spares.count, HISTORY_SPARES);
    struct history_item item;
    u32 at = 0;
    history_begin(&many[0], &spares);
    assert_int_equal(many[0].len, 0);
    history_add(&many[0], &(struct history_item){.kind = HISTORY_ATTEMPT, .fence = 5, .consumer = slice_of(text, 200)});
    assert_true(history_next(slice_of(many[0].p, many[0].len), &at, &item));
    assert_true(item.fence == 5 && item.consumer.n == 200);
    history_begin(&many[0], &spares); /* it has some */
    assert_int_equal(spares.count, HISTORY_SPARES - 1);
    history_free(&many[0]);
    history_spares_free(&spares);
    assert_int_equal(spares.count, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_size_of_a_record_is_what_its_encoder_writes),
        cmocka_unit_test(ending_an_attempt_changes_it_and_nothing_else),
        cmocka_unit_test(memory_of_histories_that_ended_is_kept_for_others_within_bounds),
        cmocka_unit_test(arrivals_are_read_as_they_were_written_and_no_further),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
