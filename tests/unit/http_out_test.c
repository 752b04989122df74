/* The queue of replies against a plain list of them. */
#include "net/server_priv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define REPLIES_MAX 4000u

struct reply {
    u64 start, end, after, receipt; /* offsets in the whole stream */
    bool told;
};

struct model {
    struct reply replies[REPLIES_MAX];
    size_t count;
    u64 length, sent, released;
};

static char byte_at(u64 offset) {
    return (char)('a' + offset * 7 % 26);
}

static void append(struct http_out *o, struct model *m, struct rng *rng) {
    size_t n = 1 + (size_t)rng_below(rng, 3000);
    u64 after = m->released + rng_below(rng, 4), receipt = rng_below(rng, 3) ? 0 : m->count + 1;
    for (size_t i = 0; i < n; i++) buf_char(&o->bytes, byte_at(m->length + i));
    m->replies[m->count++] =
        (struct reply){.start = m->length, .end = m->length + n, .after = after, .receipt = receipt};
    m->length += n;
    http_out_span(o, after, receipt);
    http_out_release(o, m->released);
}

/* Up to where may bytes leave? */
static u64 model_ready(const struct model *m) {
    u64 ready = 0;
    for (size_t i = 0; i < m->count && m->replies[i].after <= m->released; i++) ready = m->replies[i].end;
    return ready;
}

static void send_some(struct http_out *o, struct model *m, struct rng *rng) {
    size_t n = (size_t)rng_below(rng, o->ready - o->sent + 1);
    for (size_t i = 0; i < n; i++) assert_int_equal(o->bytes.p[o->sent + i], byte_at(m->sent + i));
    o->sent += n;
    m->sent += n;
    u64 receipt;
    while ((receipt = http_out_receipt(o, o->sent)) != 0) {
        struct reply *r = &m->replies[receipt - 1];
        assert_true(r->receipt == receipt && !r->told && r->start < m->sent);
        r->told = true;
    }
    for (size_t i = 0; i < m->count && m->replies[i].start < m->sent; i++)
        assert_true(m->replies[i].receipt == 0 || m->replies[i].told);
    http_out_compact(o);
}

static void any_mix_of_replies_releases_and_writes_keeps_order_and_receipts(void **state) {
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
                http_out_release(o, ++m->released);
            else if (what == 1 && m->length - m->sent < 50000)
                append(o, m, &rng);
            else
                send_some(o, m, &rng);
            assert_int_equal(o->ready - o->sent, model_ready(m) - m->sent);
            assert_int_equal(http_out_unsent(o), m->length - m->sent);
            if (o->bytes.len > most) most = o->bytes.len;
        }
        assert_true(most < 200000); /* of some 450,000 that went through */
        http_out_free(o);
    }
    mem_free(m);
}

static void receipts_of_a_queue_given_up_come_out_once(void **state) {
    (void)state;
    struct http_out *o = http_out_new();
    for (u64 i = 1; i <= 50; i++) {
        buf_lit(&o->bytes, "reply");
        http_out_span(o, i, i);
    }
    for (u64 i = 1; i <= 50; i++) assert_int_equal(http_out_receipt(o, SIZE_MAX), i);
    assert_int_equal(http_out_receipt(o, SIZE_MAX), 0);
    http_out_free(o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_mix_of_replies_releases_and_writes_keeps_order_and_receipts),
        cmocka_unit_test(receipts_of_a_queue_given_up_come_out_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
