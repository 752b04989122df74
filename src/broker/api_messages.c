/* One message, and lists of messages: the unsettled ones of a state, and everything that was accepted in a time. */
#include "broker/access.h"
#include "broker/api.h"
#include "broker/broker_priv.h"
#include "broker/call.h"
#include "broker/filter.h"
#include "broker/key_page.h"
#include "broker/lookup.h"
#include "broker/named.h"
#include "broker/page.h"
#include "broker/parse.h"
#include "broker/render.h"
#include "broker/scope.h"

#define LISTED_LOOKED_AT_MAX 10000u /* of a filtered list: a page may be shorter than its limit, but never takes long */
#define PAGE_LEAST           20u    /* looked at however slow the machine is: a short list comes whole */
#define WALK_AT_A_TIME       2000u  /* between two looks at the clock */
#define WALK_LOOKED_AT_MAX   100000u /* of the whole index, for one page of what was accepted */

void api_message(struct call *c) {
    reply_key_page(c, seen_of_id(c));
}

/* ---- a state's */

static bool parse_state(struct call *c, enum state *state) {
    struct buf store = {0};
    slice text;
    bool bad = false, found = false;
    *state = STATE_PENDING;
    if (!http_query_get(c->req, SL("state"), &store, &text, &bad)) {
        found = !bad;
    } else {
        for (u32 s = STATE_PENDING; s <= STATE_DEAD && !found; s++) {
            found = slice_eq(text, slice_str(state_text((enum state)s)));
            if (found) *state = (enum state)s;
        }
    }
    buf_free(&store);
    return (found && !bad) || fail(c, PROBLEM_param_invalid, "state must be pending, leased, held or dead");
}

/* The cursor is the id of the last message shown. If that message has moved on meanwhile the list starts over: a page may
 * repeat items, none is missed. */
static bool parse_cursor(struct call *c, u16 queue, enum state state, u32 *after) {
    struct buf store = {0};
    slice text;
    u64 seq, hash;
    bool bad = false, ok = true;
    *after = MESSAGE_NONE;
    if (http_query_get(c->req, SL("cursor"), &store, &text, &bad)) {
        ok = core_id_parse(text, &seq, &hash);
        u32 no = ok ? core_message_find(c->b->core, hash, seq) : MESSAGE_NONE;
        struct message_view v;
        if (no != MESSAGE_NONE) core_message_view(c->b->core, c->b->now, no, &v);
        if (no != MESSAGE_NONE && v.state == state && v.ref.queue == queue) *after = no;
    }
    buf_free(&store);
    return (ok && !bad) || fail(c, PROBLEM_param_invalid, "cursor must be a next_cursor of an earlier page");
}

/* A state's, as far as they were listed. */
struct listing {
    u16 queue;
    enum state state;
    struct filter filter;
    u64 limit;
    u32 at;          /* the last message looked at */
    struct ref last; /* its name; seq 0: none */
};

static void put_listed(struct broker *b, struct listing *l, struct page *p) {
    u32 no;
    while (!page_full(p) && p->looked <= LISTED_LOOKED_AT_MAX) {
        if ((no = core_list(b->core, l->queue, l->state, l->at)) == MESSAGE_NONE) return;
        struct message_view v;
        core_message_view(b->core, b->now, no, &v);
        if (filter_passes(&l->filter, &v)) {
            page_item(p);
            put_key_page(b, p->body, lookup_id(b, b->lookup, v.ref.hash, v.ref.seq), false);
            if (!page_keeps(p)) return;
        }
        l->at = no;
        l->last = v.ref;
    }
}

static void list_state(struct call *c, struct listing *l) {
    struct broker *b = c->b;
    struct buf *body = &b->scratch->body;
    struct page p;
    buf_reset(body);
    page_begin(&p, b, body, l->limit, PAGE_LEAST);
    put_listed(b, l, &p);
    buf_char(body, ']');
    bool more = l->last.seq && core_list(b->core, l->queue, l->state, l->at) != MESSAGE_NONE;
    if (more)
        put_id(body, "next_cursor", &l->last);
    else
        json_put_member_raw(body, "next_cursor", SL("null"));
    buf_char(body, '}');
    reply_json(c, 200, buf_slice(body));
}

static bool parse_filter(struct call *c, struct filter *f) {
    struct buf store[3] = {{0}};
    slice class_name, reason, since;
    bool ok = param_text(c, "class", &store[0], &class_name) && param_text(c, "reason", &store[1], &reason) &&
              param_text(c, "since", &store[2], &since) && filter_set(c, class_name, reason, since, f);
    for (u32 i = 0; i < 3; i++) buf_free(&store[i]);
    return ok;
}

/* ---- what was accepted, settled or not: what a replay sends again */

static void put_accepted(struct broker *b, struct buf *body, const struct seen *s) {
    const struct rec_settle *settle = s->settle;
    bool shown = shows_payload(b, core_queue_name(b->core, s->at.queue));
    buf_char(body, '{');
    put_id(body, "id", seen_ref(s));
    put_shown_key(b, body, s->at.queue, seen_key(s));
    json_put_member(body, "state", slice_str(state_text(seen_state(b, s))));
    json_put_member_time(body, "first_seen", seen_first_ms(s));
    if (s->message)
        put_said(body, shown, s->message->group, s->message->attrs, s->message->content_type, s->message->payload);
    else if (core_payload_kept(b->core, b->now, settle))
        put_said(body, shown, settle->kept.group, settle->kept.attrs, settle->kept.content_type, settle->kept.payload);
    else
        buf_lit(body, ",\"payload\":null,\"payload_gone\":true");
    buf_char(body, '}');
}

/* Accepted in that time; copies of what was refused never were. */
static bool accepted_since(const struct seen *s, i64 wall_ms) {
    if (s->message) return !s->message->refused && s->message->first_seen_ms >= wall_ms;
    return s->settle->first_seen_ms >= wall_ms;
}

static void list_accepted(struct call *c, u16 queue, i64 since_ms, u64 limit, u32 cursor) {
    struct broker *b = c->b;
    struct buf *body = &b->scratch->body;
    i64 since_run_ms = b->now.run_ms - (b->now.wall_ms - since_ms); /* running time is never ahead of the clock */
    u32 from = cursor, before = cursor;
    enum walk_verdict v = WALK_MORE;
    struct page p;
    buf_reset(body);
    page_begin(&p, b, body, limit, 1);
    while (v != WALK_END && !page_full(&p) && cursor - from < WALK_LOOKED_AT_MAX) {
        struct found f;
        before = cursor;
        v = core_walk(b->core, queue, since_run_ms, WALK_AT_A_TIME, &cursor, &f);
        if (v != WALK_FOUND) continue;
        const struct seen *s = lookup_found(b, b->lookup, &f);
        if (!accepted_since(s, since_ms)) continue;
        page_item(&p);
        put_accepted(b, body, s);
        if (page_keeps(&p)) continue;
        cursor = before;
        break;
    }
    buf_lit(body, "],\"next_cursor\":");
    if (v == WALK_END)
        buf_lit(body, "null}");
    else
        buf_printf(body, "\"%u\"}", cursor);
    reply_json(c, 200, buf_slice(body));
}

/* ---- one path, two lists */

static bool start_accepted(struct call *c, slice text, u16 queue, u64 limit) {
    i64 since_ms;
    u64 cursor;
    slice state = SL("");
    struct buf store = {0};
    bool alone = param_text(c, "state", &store, &state) && state.n == 0;
    buf_free(&store);
    if (!alone) return fail(c, PROBLEM_param_invalid, "accepted_since lists every state: give it or state, not both");
    if (!parse_since(c->b, text, &since_ms))
        return fail(c, PROBLEM_param_invalid,
                    "accepted_since must be a duration such as 24h, or a time such as 2026-01-31T12:00:00Z");
    if (!param_u64(c, "cursor", 0, UINT32_MAX - 1, 0, &cursor)) return false;
    list_accepted(c, queue, since_ms, limit, (u32)cursor);
    return true;
}

static bool start_state(struct call *c, u16 queue, u64 limit) {
    struct listing l = {.queue = queue, .limit = limit};
    l.filter.payloads = shows_payload(c->b, core_queue_name(c->b->core, queue));
    bool ok = parse_state(c, &l.state) && parse_cursor(c, queue, l.state, &l.at) && parse_filter(c, &l.filter);
    if (ok) list_state(c, &l);
    filter_free(&l.filter);
    return ok;
}

void api_messages(struct call *c) {
    u16 queue;
    u64 limit;
    slice since = SL("");
    struct buf store = {0};
    bool ok = queue_of_call(c, false, &queue) && param_u64(c, "limit", 1, LIST_LIMIT_MAX, 100, &limit) &&
              param_text(c, "accepted_since", &store, &since);
    if (ok) ok = since.n ? start_accepted(c, since, queue, limit) : start_state(c, queue, limit);
    buf_free(&store);
    if (!ok) reply_failure(c);
}
