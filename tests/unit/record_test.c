/* Records: what the encoder measures is what it writes, for every type and every string, long and short. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/record.h"

static char text[70000];

/* A record of this type whose every string has n bytes. */
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
        for (u32 i = 0; i < ARRIVALS_KEPT; i++) r.arrivals.last[i].request_id = s;
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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_size_of_a_record_is_what_its_encoder_writes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
