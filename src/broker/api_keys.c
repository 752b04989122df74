/* One key: everything known of it, and waiting for its result. */
#include "broker/answer_head.h"
#include "broker/api.h"
#include "broker/broker_priv.h"
#include "broker/call.h"
#include "broker/key_page.h"
#include "broker/lookup.h"
#include "broker/named.h"
#include "broker/page.h"
#include "broker/parse.h"
#include "broker/render.h"
#include "broker/scope.h"
#include "broker/shared.h"
#include "broker/waits.h"

#define PAGE_LEAST 20u /* messages looked at however slow the machine is */

/* Under at_least_once a key repeats: all of them, in the index's order, a page at a time. The cursor is how many have been
 * shown. */
static void reply_repeats(struct call *c, u16 queue, slice key) {
    struct broker *b = c->b;
    struct buf *body = &b->scratch->body;
    struct core_cursor cursor = {0};
    struct found f;
    key = key_meant(c, queue, key);
    u64 hash = core_hash(b->core, queue, key), count = 0, shown;
    bool more = false;
    struct page p;
    if (!param_u64(c, "cursor", 0, UINT32_MAX, 0, &shown)) return reply_failure(c);
    buf_reset(body);
    page_begin(&p, b, body, UINT64_MAX, PAGE_LEAST);
    while (core_find(b->core, hash, &cursor, &f)) {
        const struct seen *s = f.queue == queue ? lookup_found(b, b->lookup, &f) : NULL;
        if (!s || !slice_eq(seen_key(s), key) || !seen_in_force(b, s) || count++ < shown) continue;
        more = page_full(&p);
        if (more) break;
        page_item(&p);
        put_key_page(b, body, s, true);
        more = !page_keeps(&p);
        if (more) break;
    }
    buf_lit(body, "],\"next_cursor\":");
    if (more)
        buf_printf(body, "\"%llu\"}", (unsigned long long)(count - 1));
    else
        buf_lit(body, "null}");
    if (count) return reply_json(c, 200, buf_slice(body));
    fail(c, PROBLEM_no_such_key, "never seen here, or past its window");
    reply_failure(c);
}

static void reply_key(struct call *c, slice key) {
    u16 queue;
    const char *why;
    bool found = core_queue_find(c->b->core, c->arg[0], &queue);
    if (found && core_queue_rules(c->b->core, queue)->semantics == SEMANTICS_AT_LEAST_ONCE &&
        key_bytes_valid(key, &why))
        return reply_repeats(c, queue, key);
    reply_key_page(c, seen_of_key(c, key));
}

void api_key(struct call *c) {
    reply_key(c, c->arg[1]);
}

void api_key_query(struct call *c) {
    struct buf store[2] = {{0}};
    slice key, prefix;
    bool bad = false, searches = http_query_get(c->req, SL("prefix"), &store[1], &prefix, &bad);
    bool named = !bad && http_query_get(c->req, SL("key"), &store[0], &key, &bad);
    if (bad || named == searches) {
        fail(c, PROBLEM_param_invalid, "one of the query parameters key and prefix must be given, once");
        reply_failure(c);
    } else if (named) {
        reply_key(c, key);
    } else {
        reply_keys_with(c, prefix);
    }
    buf_free(&store[0]);
    buf_free(&store[1]);
}

/* ---- results */

static slice result_fields(struct broker *b, const struct rec_settle *s) {
    struct buf *fields = &b->scratch->fields;
    buf_reset(fields);
    buf_lit(fields, "Hapax-State: ");
    buf_slice_add(fields, slice_str(state_text((enum state)s->state)));
    buf_lit(fields, "\r\n" NOT_KEPT);
    if (answer_head_truncated(s->http)) buf_lit(fields, "Hapax-Truncated: true\r\n");
    return buf_slice(fields);
}

static void reply_result(struct broker *b, void *conn, const struct rec_settle *s) {
    bool empty = s->result.n == 0;
    reply_with(b, conn, empty ? 204 : 200, empty ? SL("") : s->content_type, result_fields(b, s), s->result, 0);
}

static void reply_not_settled(struct call *c, const struct seen *s) {
    const char *state = state_text(seen_state(c->b, s));
    fail(c, PROBLEM_not_settled, "its state is %s", state);
    json_put_member(&c->failure.more, "state", slice_str(state));
    reply_failure(c);
}

static void reply_result_to_all(struct broker *b, void *conn, const struct ref *ref, const struct rec_settle *s) {
    struct buf bytes = {0};
    buf_slice_add(&bytes, s->result);
    shared_answer(b, conn, ref, 0, 200, s->content_type, result_fields(b, s), &bytes);
}

/* Its message is settled or dead, or the reader has waited long enough. */
static void answer_result(struct broker *b, struct wait *w, bool over) {
    if (wait_goes_on(b, w, over)) return;
    struct call c = {.b = b, .conn = w->conn};
    struct ref ref = w->ref;
    wait_end(b, w);
    if (shared_again(b, c.conn, &ref, 0)) return;
    const struct seen *s = lookup_id(b, b->lookup, ref.hash, ref.seq);
    if (!s)
        reply_late_failure(b, c.conn, PROBLEM_no_such_key, "it was forgotten meanwhile");
    else if (!s->settle)
        reply_not_settled(&c, s);
    else if (s->settle->result.n == 0)
        reply_result(b, c.conn, s->settle);
    else
        reply_result_to_all(b, c.conn, &ref, s->settle);
    failure_free(&c.failure);
}

void api_key_result(struct call *c) {
    struct broker *b = c->b;
    i64 wait_ms;
    const struct seen *s = param_wait(c, &wait_ms) ? seen_of_key(c, c->arg[1]) : NULL;
    if (!s) return reply_failure(c);
    if (s->settle) return reply_result(b, c->conn, s->settle);
    enum state state = seen_state(b, s);
    if (wait_ms == 0 || state == STATE_DEAD || b->draining) return reply_not_settled(c, s);
    if (!ration_to_wait(c)) return reply_failure(c);
    struct wait *w = wait_new(b, c->conn, c->user, wait_ms, answer_result);
    w->right = RIGHT_RESULT;
    wait_for_outcome(b, w, seen_ref(s));
}
