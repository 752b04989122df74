/* A test must have no effect, whatever the target does with requests it does not know. So it does not go where deliveries go: it is
 * OPTIONS for "/" at the target's host, without a body, a key or any of the configured headers. It shows that the name resolves to
 * addresses that are allowed, that something listens there and proves its name where TLS is spoken, and that it answers HTTP; not
 * that a delivery would be taken. The circuit learns nothing from it, and it goes out whatever the circuit says. */
#include "broker/target_reach.h"

#include "base/json.h"
#include "broker/broker_priv.h"
#include "broker/call.h"
#include "broker/fetch.h"
#include "broker/queue_rules.h"
#include "broker/waits.h"
#include "config/call_template.h"

#define TEST_MS      10000 /* of connecting and answering */
#define TEST_LATE_MS 5000  /* beyond that whoever asked is answered anyway */

struct target_tests {
    struct target_test {
        bool under_way;    /* until the answer is here, whoever still waits for it */
        struct wait *wait; /* NULL: nobody does */
        struct buf queue, url;
    } at[TARGET_TESTS];
};

struct target_tests *target_tests_new(void) {
    return mem_zalloc(sizeof(struct target_tests));
}

void target_tests_free(struct target_tests *t) {
    if (!t) return;
    for (u32 i = 0; i < TARGET_TESTS; i++) {
        buf_free(&t->at[i].queue);
        buf_free(&t->at[i].url);
    }
    mem_free(t);
}

static struct target_test *free_one(const struct broker *b) {
    for (u32 i = 0; i < TARGET_TESTS; i++)
        if (!b->tests->at[i].under_way) return &b->tests->at[i];
    return NULL;
}

bool target_test_room(struct call *c) {
    return free_one(c->b) || fail(c, PROBLEM_overloaded, "%u targets are being tested already", TARGET_TESTS);
}

/* ---- its answer */

static void reply_test(struct broker *b, void *conn, const struct target_test *t, const struct outbound_answer *a) {
    struct buf *body = &b->scratch->body;
    bool reached = a->end == OUTBOUND_ANSWERED;
    buf_reset(body);
    buf_char(body, '{');
    json_put_member(body, "queue", buf_slice(&t->queue));
    json_put_member(body, "sent", SL("OPTIONS"));
    json_put_member(body, "url", slice_of(t->url.p, t->url.len - 1));
    json_put_member_bool(body, "reached", reached);
    if (reached) json_put_member_i64(body, "status", a->status);
    if (!reached) json_put_member(body, "why", slice_str(a->why));
    json_put_member_i64(body, "took_ms", (i64)(a->took_us / 1000));
    buf_char(body, '}');
    reply_with(b, conn, 200, SL("application/json"), SL(NOT_KEPT), buf_slice(body), 0);
}

/* The broker is about to end, or the answer does not come. */
static void answer_late(struct broker *b, struct wait *w, bool over) {
    (void)over;
    void *conn = w->conn;
    wait_end(b, w);
    reply_late_failure(b, conn, b->draining ? PROBLEM_shutting_down : PROBLEM_overloaded,
                       "nothing is known of the target yet: test it again");
}

static void tested(struct broker *b, u64 arg, const struct outbound_answer *a) {
    struct target_test *t = &b->tests->at[arg];
    t->under_way = false;
    if (!t->wait) return;
    void *conn = t->wait->conn;
    wait_end(b, t->wait);
    reply_test(b, conn, t, a);
}

/* ---- asking */

bool target_test_start(struct call *c, u16 queue) {
    const struct queue_config *q = queue_rules_of(c->b, queue)->config;
    struct target_test *t = free_one(c->b);
    slice origin = call_template_origin(q->deliver ? q->deliver->url : q->reconcile->url);
    buf_reset(&t->queue);
    buf_reset(&t->url);
    buf_slice_add(&t->queue, c->arg[0]);
    buf_printf(&t->url, "%.*s/", (int)origin.n, origin.p);
    buf_char(&t->url, 0);
    struct outbound_request r = {.method = "OPTIONS",
                                 .url = t->url.p,
                                 .connect_ms = TEST_MS,
                                 .total_ms = TEST_MS,
                                 .allow_private = q->deliver ? q->deliver->allow_private : q->reconcile->allow_private};
    if (!fetch(c->b, &r, tested, (u64)(t - c->b->tests->at)))
        return fail(c, PROBLEM_overloaded, "as many requests are under way as there may be");
    t->under_way = true;
    t->wait = wait_new(c->b, c->conn, c->user, TEST_MS + TEST_LATE_MS, answer_late);
    t->wait->owner = &t->wait;
    return true;
}
