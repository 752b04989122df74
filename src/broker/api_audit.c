/* The audit trail: looking at it, newest first, and the entry of a drill. */
#include "broker/access.h"
#include "broker/api.h"
#include "broker/broker_priv.h"
#include "broker/call.h"
#include "broker/lookup.h"
#include "broker/named.h"
#include "broker/operator.h"
#include "broker/page.h"
#include "broker/parse.h"

struct audit_query {
    struct buf store[4];
    slice queue, who, what, since;
    i64 since_ms;
    u64 limit, before;
};

static bool is_deed(slice text) {
    for (u32 i = 0; i < DEED_COUNT; i++)
        if (slice_eq(text, deed_text((enum deed_kind)i))) return true;
    return false;
}

static bool read_query(struct call *c, struct audit_query *q) {
    bool ok = param_text(c, "queue", &q->store[0], &q->queue) && param_text(c, "who", &q->store[1], &q->who) &&
              param_text(c, "what", &q->store[2], &q->what) && param_text(c, "since", &q->store[3], &q->since) &&
              param_u64(c, "limit", 1, LIST_LIMIT_MAX, 100, &q->limit) &&
              param_u64(c, "cursor", 1, UINT64_MAX, 0, &q->before);
    q->since_ms = INT64_MIN;
    if (ok && q->what.n && !is_deed(q->what))
        return fail(c, PROBLEM_param_invalid,
                    "what must be a verb of the audit trail, such as pause, purge or resolve");
    if (!ok || q->since.n == 0 || parse_since(c->b, q->since, &q->since_ms)) return ok;
    return fail(c, PROBLEM_param_invalid, "since must be a time such as 2026-01-31T12:00:00Z, or a duration: 1h");
}

/* A token's entries, whoever said to be using it. */
static bool is_by(slice who, slice asked) {
    return slice_eq(who, asked) || (who.n > asked.n && slice_starts(who, asked) && who.p[asked.n] == '/');
}

/* What concerns no queue concerns the whole process. */
static bool may_see(const struct caller *who, const struct rec_audit *r) {
    return r->queue_name.n ? caller_may(who, RIGHT_OBSERVE, r->queue_name) : caller_may_everywhere(who, RIGHT_OBSERVE);
}

static bool wanted(const struct audit_query *q, const struct rec_audit *r) {
    return (q->queue.n == 0 || slice_eq(q->queue, r->queue_name)) && (q->who.n == 0 || is_by(r->who, q->who)) &&
           (q->what.n == 0 || slice_eq(q->what, r->what)) && r->at_ms >= q->since_ms;
}

static void put_audit(struct buf *b, const struct rec_audit *r) {
    buf_char(b, '{');
    json_put_member_time(b, "at", r->at_ms);
    json_put_member(b, "who", r->who);
    json_put_member(b, "what", r->what);
    if (r->queue_name.n) json_put_member(b, "queue", r->queue_name);
    if (r->key.n) json_put_member(b, "key", r->key);
    if (r->id.n) json_put_member(b, "id", r->id);
    if (r->why.n) json_put_member(b, "why", r->why);
    if (r->detail.n) json_put_member_raw(b, "detail", r->detail);
    buf_char(b, '}');
}

/* A page ends early when it has looked at many that were not wanted. */
#define AUDIT_LOOKED_AT_MAX 10000u
#define PAGE_LEAST          256u /* entries looked at however slow the machine is */

static void put_trail(struct call *c, struct audit_query *q, struct buf *body) {
    struct broker *b = c->b;
    struct audit_at at;
    struct page p;
    page_begin(&p, b, body, q->limit, PAGE_LEAST);
    while (!page_full(&p) && p.looked <= AUDIT_LOOKED_AT_MAX && core_audit_prev(b->core, q->before, &at)) {
        const struct record *r = lookup_record(b, b->lookup, at.pos, at.size_hint);
        CHECK(r->type == REC_AUDIT);
        if (wanted(q, &r->audit) && may_see(c->who, &r->audit)) {
            page_item(&p);
            put_audit(body, &r->audit);
            if (!page_keeps(&p)) break;
        }
        q->before = at.number;
    }
    bool more = core_audit_prev(b->core, q->before, &at);
    buf_lit(body, "],\"next_cursor\":");
    if (more)
        buf_printf(body, "\"%llu\"}", (unsigned long long)q->before);
    else
        buf_lit(body, "null}");
}

void api_audit(struct call *c) {
    struct audit_query q = {0};
    struct buf *body = &c->b->scratch->body;
    bool ok = read_query(c, &q);
    buf_reset(body);
    if (ok) put_trail(c, &q, body);
    for (u32 i = 0; i < 4; i++) buf_free(&q.store[i]);
    if (!ok) return reply_failure(c);
    reply_json(c, 200, buf_slice(body));
}

/* ---- a drill */

static bool audit_drill(struct call *c, const struct deed *d, u16 queue) {
    struct buf detail = {0};
    i64 since_ms;
    if (d->since.n && !parse_since(c->b, d->since, &since_ms))
        return fail(c, PROBLEM_param_invalid, "since must be a time such as 2026-01-31T12:00:00Z, or a duration: 1h");
    buf_char(&detail, '{');
    if (d->since.n) json_put_member(&detail, "since", d->since);
    if (d->max) json_put_member_i64(&detail, "messages", (i64)d->max);
    buf_char(&detail, '}');
    bool ok = deed_audit(c, d, DEED_DRILL, queue, buf_slice(&detail));
    buf_free(&detail);
    return ok;
}

/* The sends of a replay drill come through the normal door and look like any others: this is its only trace. */
void api_drill(struct call *c) {
    struct deed d;
    u16 queue;
    bool ok = deed_read(c, &d, "since messages") && queue_of_call(c, false, &queue) && audit_drill(c, &d, queue);
    if (ok)
        reply_json(c, 200, SL("{\"ok\":true}"));
    else
        reply_failure(c);
    deed_free(&d);
}
