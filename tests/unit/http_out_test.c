/* The queue of replies against a plain list of them. */
#include "net/server_priv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define REPLIES_MAX 4000u
#define STREAMS     3u

struct reply {
    u64 start, end, receipt; /* offsets among all bytes */
    struct http_after after;
    bool told;
};

struct model {
    struct reply replies[REPLIES_MAX];
    size_t count;
    u64 length, sent, released[STREAMS];
    bool held[STREAMS];
    u64 gates[HTTP_STREAMS]; /* as the server would keep them */
};

static void set_gate(struct model *m, u64 stream) {
    m->gates[stream] = m->held[stream] ? 0 : m->released[stream];
}

static char byte_at(u64 offset) {
    return (char)('a' + offset * 7 % 26);
}

static void append_body(struct http_out *o, struct model *m, struct rng *rng) {
    struct buf bytes = {0};
    size_t n = 1 + (size_t)rng_below(rng, 20000);
    for (size_t i = 0; i < n; i++) buf_char(&bytes, byte_at(m->length + i));
    struct http_body *body = http_body_take(&bytes);
    http_out_share(o, body);
    http_body_release(body);
    m->length += n;
    m->replies[m->count - 1].end = m->length;
}

/* The last reply's body, in a buffer of its own behind some room. */
static void append_made(struct http_out *o, struct model *m, struct rng *rng) {
    struct buf made = {0};
    size_t room = (size_t)rng_below(rng, 40000), n = 1 + (size_t)rng_below(rng, 20000), unsent = http_out_unsent(o);
    buf_grow(&made, room + n);
    memset(made.p, '-', room);
    made.len = room;
    for (size_t i = 0; i < n; i++) buf_char(&made, byte_at(m->length + i));
    bool taken = http_out_take(o, &made, room);
    assert_int_equal(taken, unsent <= room);
    if (!taken) buf_slice_add(&o->bytes, slice_of(made.p + room, n));
    assert_int_equal(made.len, taken ? 0 : room + n);
    buf_free(&made);
    m->length += n;
    m->replies[m->count - 1].end = m->length;
}

static void append(struct http_out *o, struct model *m, struct rng *rng) {
    size_t n = 1 + (size_t)rng_below(rng, 3000);
    struct http_after after = {.stream = (u16)rng_below(rng, STREAMS)};
    if (rng_below(rng, 5)) after.position = m->released[after.stream] + rng_below(rng, 4);
    u64 receipt = rng_below(rng, 3) ? 0 : m->count + 1;
    for (size_t i = 0; i < n; i++) buf_char(&o->bytes, byte_at(m->length + i));
    m->replies[m->count++] =
        (struct reply){.start = m->length, .end = m->length + n, .after = after, .receipt = receipt};
    m->length += n;
    if (rng_below(rng, 4) == 0) append_made(o, m, rng);
    http_out_span(o, after, receipt);
    if (rng_below(rng, 8) == 0) append_body(o, m, rng);
    http_out_release(o, m->gates);
}

static bool may_leave(const struct model *m, const struct reply *r) {
    struct http_after a = r->after;
    return a.position == 0 || (!m->held[a.stream] && a.position <= m->released[a.stream]);
}

/* How many more bytes may leave? A reply of which some left before its stream was held goes no further either. */
static u64 model_ready(const struct model *m) {
    u64 ready = m->sent;
    for (size_t i = 0; i < m->count; i++) {
        if (m->replies[i].end <= m->sent) continue;
        if (!may_leave(m, &m->replies[i])) break;
        ready = m->replies[i].end;
    }
    return ready - m->sent;
}

static void change_gate(struct http_out *o, struct model *m, struct rng *rng) {
    u64 stream = rng_below(rng, STREAMS);
    if (rng_below(rng, 4) == 0)
        m->held[stream] = !m->held[stream];
    else
        m->released[stream]++;
    set_gate(m, stream);
    if (m->held[stream])
        http_out_hold(o, m->gates);
    else
        http_out_release(o, m->gates);
}

static void send_some(struct http_out *o, struct model *m, struct rng *rng) {
    slice runs[2];
    u32 run_count = http_out_leaving(o, runs);
    size_t n = (size_t)rng_below(rng, http_out_ready(o) + 1), at = 0;
    for (u32 run = 0; run < run_count; run++)
        for (size_t i = 0; i < runs[run].n; i++, at++) assert_int_equal(runs[run].p[i], byte_at(m->sent + at));
    assert_int_equal(at, http_out_ready(o));
    http_out_left(o, n);
    m->sent += n;
    u64 receipt;
    while ((receipt = http_out_receipt(o, o->sent)) != 0) {
        struct reply *r = &m->replies[receipt - 1];
        assert_true(r->receipt == receipt && !r->told && r->start < m->sent);
        r->told = true;
    }
    for (size_t i = 0; i < m->count && m->replies[i].start < m->sent; i++)
        assert_true(m->replies[i].receipt == 0 || m->replies[i].told);
    if (http_out_unsent(o) == 0)
        http_out_reset(o);
    else
        http_out_compact(o);
}

static void any_mix_of_replies_releases_holds_and_writes_keeps_order_and_receipts(void **state) {
    (void)state;
    struct model *m = mem_alloc(sizeof *m);
    for (u64 seed = 1; seed <= 30; seed++) {
        struct rng rng;
        struct http_out *o = http_out_new();
        size_t most = 0;
        rng_seed(&rng, seed);
        memset(m, 0, sizeof *m);
        while (m->count < 300) {
            u64 what = rng_below(&rng, 4);
            if (what == 0)
                change_gate(o, m, &rng);
            else if (what == 1 && m->length - m->sent < 50000 && !o->body)
                append(o, m, &rng);
            else
                send_some(o, m, &rng);
            assert_int_equal(http_out_ready(o), model_ready(m));
            assert_int_equal(http_out_unsent(o), m->length - m->sent);
            if (o->bytes.len > most) most = o->bytes.len;
        }
        assert_true(most < 200000); /* of some 1,200,000 that went through */
        http_out_free(o);
    }
    mem_free(m);
}

static void replies_that_wait_for_nothing_more_share_a_span(void **state) {
    (void)state;
    static const struct http_after in_order[] = {{5, 0}, {5, 0}, {3, 0}, {0, 0}, {0, 1}, {7, 1}, {6, 1}, {6, 0}};
    struct http_out *o = http_out_new();
    for (size_t i = 0; i < sizeof in_order / sizeof *in_order; i++) {
        buf_lit(&o->bytes, "reply");
        http_out_span(o, in_order[i], 0);
    }
    assert_int_equal(o->count, 4); /* nothing in particular is a span of its own: it is never held */
    http_out_free(o);
}

static void receipts_of_a_queue_given_up_come_out_once(void **state) {
    (void)state;
    struct http_out *o = http_out_new();
    for (u64 i = 1; i <= 50; i++) {
        buf_lit(&o->bytes, "reply");
        http_out_span(o, (struct http_after){.position = i}, i);
    }
    for (u64 i = 1; i <= 50; i++) assert_int_equal(http_out_receipt(o, SIZE_MAX), i);
    assert_int_equal(http_out_receipt(o, SIZE_MAX), 0);
    http_out_free(o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_mix_of_replies_releases_holds_and_writes_keeps_order_and_receipts),
        cmocka_unit_test(replies_that_wait_for_nothing_more_share_a_span),
        cmocka_unit_test(receipts_of_a_queue_given_up_come_out_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
