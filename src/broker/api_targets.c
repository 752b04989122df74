/* Targets as operators see and steer them. */
#include "broker/access.h"
#include "broker/api.h"
#include "broker/broker_priv.h"
#include "broker/call.h"
#include "broker/limits.h"
#include "broker/named.h"
#include "broker/operator.h"
#include "broker/page.h"
#include "broker/parse.h"
#include "broker/room.h"
#include "broker/target.h"
#include "broker/target_page.h"
#include "broker/target_reach.h"

#define PAGE_LEAST 256u /* queues looked at however slow the machine is */

/* ---- the list */

static bool has_target(struct call *c, u16 queue) {
    slice name = core_queue_name(c->b->core, queue);
    return target_of(c->b, queue) ||
           fail(c, PROBLEM_no_such_target, "queue '%.*s' delivers to nobody: its rules have no `deliver`", (int)name.n,
                name.p);
}

static bool put_one(struct call *c, slice name) {
    u16 queue;
    if (!may(c, RIGHT_OBSERVE, name)) return false;
    if (!core_queue_find(c->b->core, name, &queue))
        return fail(c, PROBLEM_no_such_queue, "queue '%.*s' does not exist", (int)name.n, name.p);
    if (!has_target(c, queue)) return false;
    buf_lit(&c->b->scratch->body, "{\"items\":[");
    put_target_page(c->b, &c->b->scratch->body, queue);
    return true;
}

/* 0: that was all. */
static u32 put_some(struct call *c, u32 after, u64 limit) {
    struct broker *b = c->b;
    struct buf *body = &b->scratch->body;
    struct page p;
    u32 end = targets_end(b), n = after + 1;
    page_begin(&p, b, body, limit, PAGE_LEAST);
    for (; n < end && !page_full(&p); n++) {
        if (!target_of(b, (u16)n) || !caller_may(c->who, RIGHT_OBSERVE, core_queue_name(b->core, (u16)n))) continue;
        page_item(&p);
        put_target_page(b, body, (u16)n);
        if (!page_keeps(&p)) break;
    }
    return n < end ? n - 1 : 0;
}

void api_targets(struct call *c) {
    struct buf *body = &c->b->scratch->body, store = {0};
    slice queue;
    u64 limit, after;
    u32 next = 0;
    buf_reset(body);
    bool ok = param_text(c, "queue", &store, &queue) && param_u64(c, "limit", 1, LIST_LIMIT_MAX, 100, &limit) &&
              param_u64(c, "cursor", 0, QUEUES_MAX, 0, &after) && (queue.n == 0 || put_one(c, queue));
    if (ok && queue.n == 0) next = put_some(c, (u32)after, limit);
    buf_free(&store);
    if (!ok) return reply_failure(c);
    buf_lit(body, "],\"next_cursor\":");
    if (next)
        buf_printf(body, "\"%u\"}", next);
    else
        buf_lit(body, "null}");
    reply_json(c, 200, buf_slice(body));
}

/* ---- one of them */

static bool target_of_call(struct call *c, u16 *queue) {
    return queue_of_call(c, false, queue) && has_target(c, *queue);
}

static void reply_target(struct call *c, u16 queue) {
    struct buf *body = &c->b->scratch->body;
    buf_reset(body);
    put_target_page(c->b, body, queue);
    reply_json(c, 200, buf_slice(body));
}

/* A pause is named in the trail by what changes it. To let a target be called before its time is a deed too, and changes nothing that is
 * journaled. */
static bool name_the_try(struct call *c, const struct deed *d, u16 queue) {
    struct target_view v;
    target_look(target_of(c->b, queue), c->b->time.mono_ms, &v);
    return v.paused || !(v.down_ms || v.wait_ms) || deed_audit(c, d, DEED_PUSH_RESUME, queue, SL(""));
}

static void set_paused(struct call *c, bool paused) {
    u16 queue;
    struct deed d;
    bool ok = deed_read(c, &d, "") && target_of_call(c, &queue) && (paused || name_the_try(c, &d, queue));
    if (ok) {
        struct audit_in audit = deed_named(&d, paused ? DEED_PUSH_PAUSE : DEED_PUSH_RESUME, SL(""));
        room_prepare(c->b, 0);
        ok = targets_pause(c->b, queue, paused, &audit) != PAUSE_FULL || deed_no_room(c);
    }
    if (ok)
        reply_target(c, queue);
    else
        reply_failure(c);
    deed_free(&d);
}

void api_target_pause(struct call *c) {
    set_paused(c, true);
}

void api_target_resume(struct call *c) {
    set_paused(c, false);
}

void api_target_test(struct call *c) {
    u16 queue;
    struct deed d;
    bool ok = deed_read(c, &d, "") && target_of_call(c, &queue) && target_test_room(c) &&
              deed_audit(c, &d, DEED_PUSH_TEST, queue, SL("")) && target_test_start(c, queue);
    deed_free(&d);
    if (!ok) reply_failure(c);
}
