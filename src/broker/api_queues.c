/* Queues: listing them, looking at one, giving it rules, deleting, pausing and resuming it. */
#include "base/json.h"
#include "broker/access.h"
#include "broker/api.h"
#include "broker/broker_priv.h"
#include "broker/call.h"
#include "broker/consumers.h"
#include "broker/named.h"
#include "broker/operator.h"
#include "broker/page.h"
#include "broker/queue_page.h"
#include "broker/queue_rules.h"
#include "broker/room.h"
#include "broker/scope.h"
#include "broker/tasks.h"
#include "broker/tenants.h"
#include "broker/waits.h"

#define PAGE_LEAST 100u /* queues looked at however slow the machine is */

/* By their numbers, which a queue keeps while it is there; the cursor is the number of the last one shown. */
void api_queues(struct call *c) {
    struct broker *b = c->b;
    struct buf *body = &b->scratch->body;
    struct page p;
    u64 limit, after;
    bool live;
    if (!param_bool(c, "live", &live) || !param_u64(c, "limit", 1, LIST_LIMIT_MAX, 100, &limit) ||
        !param_u64(c, "cursor", 0, QUEUES_MAX, 0, &after))
        return reply_failure(c);
    u32 count = core_queue_count(b->core), n = (u32)after + 1;
    buf_reset(body);
    page_begin(&p, b, body, limit, PAGE_LEAST);
    for (; n <= count && !page_full(&p); n++) {
        slice name = core_queue_name(b->core, (u16)n);
        if (name.n == 0 || !caller_may(c->who, RIGHT_OBSERVE, name)) continue;
        page_item(&p);
        put_queue_page(b, body, (u16)n, live);
        if (!page_keeps(&p)) break;
    }
    buf_lit(body, "],\"next_cursor\":");
    if (n <= count)
        buf_printf(body, "\"%u\"}", n - 1);
    else
        buf_lit(body, "null}");
    reply_json(c, 200, buf_slice(body));
}

static void reply_queue(struct call *c, u16 status, u16 queue) {
    struct broker *b = c->b;
    struct buf *body = &b->scratch->body, *fields = &b->scratch->fields;
    char tag[ETAG_TEXT + 1];
    queue_etag(b, queue, tag);
    buf_reset(body);
    buf_reset(fields);
    put_queue_page(b, body, queue, true);
    buf_printf(fields, "ETag: %s\r\n" NOT_KEPT, tag);
    reply_with(b, c->conn, status, SL("application/json"), buf_slice(fields), buf_slice(body), 0);
}

void api_queue(struct call *c) {
    u16 queue;
    if (!queue_of_call(c, false, &queue)) return reply_failure(c);
    reply_queue(c, 200, queue);
}

/* ---- which version of its rules is meant */

static bool tag_listed(slice field, const char *tag) {
    slice one;
    while (field.n) {
        slice_cut(field, ',', &one, &field);
        one = slice_trim(one);
        if (slice_eq(one, SL("*")) || slice_eq(one, slice_str(tag))) return true;
    }
    return false;
}

/* queue 0: it does not exist. */
static bool preconditions_hold(struct call *c, u16 queue) {
    char tag[ETAG_TEXT + 1] = "";
    slice match, none;
    bool has_match = http_field_get(c->req, SL("if-match"), &match) > 0;
    bool has_none = http_field_get(c->req, SL("if-none-match"), &none) > 0;
    if (!has_match && !has_none) return true;
    if (queue) queue_etag(c->b, queue, tag);
    if (has_match && !(queue && tag_listed(match, tag)))
        return fail(c, PROBLEM_precondition_failed, "If-Match: its rules have the tag %s now",
                    queue ? tag : "of nothing");
    if (has_none && queue && tag_listed(none, tag))
        return fail(c, PROBLEM_precondition_failed, "If-None-Match: it exists, and its rules have the tag %s", tag);
    return true;
}

/* ---- giving it rules */

static bool not_from_file(struct call *c, u16 queue) {
    struct queue_info q;
    const struct queue_config *config = queue_rules_of(c->b, queue)->config;
    core_queue_info(c->b->core, c->b->now, queue, &q);
    if (q.origin != ORIGIN_FILE) return true;
    return fail(c, PROBLEM_defined_in_file, "it is defined in %s:%u: change it there and reload", config->file.p,
                config->at.line);
}

/* The first mistake in words, all of them in a list. */
static void tell_mistakes(struct call *c, slice lines) {
    struct buf *more = &c->failure.more;
    slice line;
    u32 count = 0;
    slice_cut(lines, '\n', &line, &lines);
    fail(c, PROBLEM_config_invalid, "%.*s%s", (int)line.n, line.p, lines.n ? "; and more, in errors" : "");
    buf_reset(more);
    json_put_name(more, "errors");
    buf_char(more, '[');
    do {
        if (count++) buf_char(more, ',');
        json_put_string(more, line);
    } while (slice_cut(lines, '\n', &line, &lines));
    buf_char(more, ']');
}

static bool read_rules(struct call *c, struct queue_config **out) {
    struct buf errors = {0};
    *out = NULL;
    if (slice_trim(c->req->body).n == 0) { /* a script whose file came out empty must not reset a queue */
        fail(c, PROBLEM_config_invalid, "the body is empty; {} gives a queue the default rules");
        return false;
    }
    if (config_queue_from_json(c->arg[0], c->req->body, SECRETS_REFUSED, out, &errors) == ST_OK) return true;
    tell_mistakes(c, buf_slice(&errors));
    buf_free(&errors);
    return false;
}

/* Whoever chooses what the broker calls reaches what it reaches: other machines in its name, and with allow_private this one and
 * those behind it, which no tenant's administrator may. */
static bool may_have_called(struct call *c, const struct queue_config *q) {
    bool private = (q->deliver && q->deliver->allow_private) || (q->reconcile && q->reconcile->allow_private);
    return private ? may_everywhere(c, RIGHT_ADMIN) : may(c, RIGHT_ADMIN, c->arg[0]);
}

/* What rules say of calls, as text: the same for the same, however it was written. */
static void put_calls(struct buf *out, slice rules) {
    struct json j;
    enum json_type type;
    slice name, raw;
    json_init(&j, rules);
    if (json_object(&j))
        while (json_member(&j, &name) && json_value(&j, &type, &raw))
            if ((slice_eq(name, SL("deliver")) || slice_eq(name, SL("reconcile"))) && type == JSON_OBJECT) {
                buf_slice_add(out, name);
                buf_slice_add(out, raw);
            }
    json_free(&j);
}

static void put_calls_of(struct buf *out, const struct queue_config *q) {
    struct buf rules = {0};
    config_queue_to_json(q, &rules);
    put_calls(out, buf_slice(&rules));
    buf_free(&rules);
}

static void put_calls_in_force(struct broker *b, struct buf *out, u16 queue) {
    const struct queue_config *known = queue_rules_of(b, queue)->config;
    struct queue_info q;
    core_queue_info(b->core, b->now, queue, &q);
    if (known)
        put_calls_of(out, known);
    else
        put_calls(out, q.config); /* of another version, which this one cannot read */
}

/* Who may not have anybody called may not change that, or end it: what waits would go nowhere. Rules that repeat what is there are
 * everybody's who may operate. config: NULL, the queue is to go. */
static bool may_change_calls(struct call *c, u16 queue, const struct queue_config *config) {
    struct buf before = {0}, after = {0};
    if (queue) put_calls_in_force(c->b, &before, queue);
    if (config) put_calls_of(&after, config);
    bool same = slice_eq(buf_slice(&before), buf_slice(&after)), ends = after.len == 0;
    buf_free(&before);
    buf_free(&after);
    if (same) return true;
    return ends ? may(c, RIGHT_ADMIN, c->arg[0]) : may_have_called(c, config);
}

static bool no_room_for_queue(struct call *c) {
    if (core_queues_left(c->b->core) == 0)
        return fail(c, PROBLEM_queue_limit, "%u queues are the most one broker has", QUEUES_MAX);
    return fail(c, PROBLEM_storage_full, "no room to write the queue's rules down");
}

/* Takes *config if it is set. */
static bool put_rules_down(struct call *c, const struct deed *d, u16 *queue, struct queue_config **config) {
    struct broker *b = c->b;
    CHECK(*config);
    struct queue_spec spec = {.rules = (*config)->rules, .origin = ORIGIN_API, .config = (*config)->json};
    struct queue_info q;
    if (*queue) core_queue_info(b->core, b->now, *queue, &q);
    if (*queue && q.origin == ORIGIN_API && slice_eq(q.config, spec.config)) return true;
    struct errbuf why;
    if (*queue && !scope_may_change(b, *queue, *config, &why)) return fail(c, PROBLEM_keys_known, "%s", why.text);
    if (!*queue && core_queues_left(b->core) == 0) return no_room_for_queue(c);
    if (!*queue && !tenants_take_queue(b, c->arg[0], &c->failure)) return false;
    struct audit_in audit = deed_named(d, DEED_QUEUE_PUT, spec.config);
    room_prepare(b, 2 * spec.config.n);
    if (!core_queue_set(b->core, b->now, c->arg[0], &spec, &audit, queue)) return no_room_for_queue(c);
    queue_rules_take(b, *queue, *config);
    *config = NULL;
    return true;
}

void api_queue_put(struct call *c) {
    struct broker *b = c->b;
    struct deed d;
    struct queue_config *config = NULL;
    u16 queue = 0;
    bool known = core_queue_find(b->core, c->arg[0], &queue);
    if (!known) queue = 0;
    bool ok = deed_read(c, &d, NULL) && queue_name_ok(c, c->arg[0]) && (!known || not_from_file(c, queue)) &&
              not_of_a_proxy(c) && preconditions_hold(c, queue) && read_rules(c, &config) &&
              may_change_calls(c, queue, config) && put_rules_down(c, &d, &queue, &config);
    config_queue_free(config);
    deed_free(&d);
    if (!ok) return reply_failure(c);
    reply_queue(c, known ? 200 : 201, queue);
}

/* Whoever polls it is told that there is nothing; what tasks do with it is over. */
static void leave_queue(struct broker *b, u16 queue) {
    waits_end_of_queue(b, queue);
    consumers_end_of_queue(b, queue);
    tasks_end_of_queue(b, queue);
    last_queue_forget(b);
}

static bool delete_queue(struct call *c, const struct deed *d, u16 queue) {
    struct broker *b = c->b;
    struct audit_in audit = deed_named(d, DEED_QUEUE_DELETE, SL(""));
    struct queue_info q;
    core_queue_info(b->core, b->now, queue, &q);
    if (q.unsettled == 0 && !waits_tell_outcomes(b, queue))
        return fail(c, PROBLEM_overloaded, "many wait for results of this queue and are being answered");
    room_prepare(b, 0);
    switch (core_queue_delete(b->core, b->now, queue, &audit)) {
    case DELETE_OK:
        return true;
    case DELETE_UNSETTLED:
        return fail(c, PROBLEM_queue_not_empty, "%llu message%s not settled: consume or purge them",
                    (unsigned long long)q.unsettled, q.unsettled == 1 ? " is" : "s are");
    case DELETE_FULL:
        break;
    }
    return deed_no_room(c);
}

void api_queue_delete(struct call *c) {
    struct broker *b = c->b;
    struct deed d;
    u16 queue;
    bool ok = deed_read(c, &d, "") && queue_of_call(c, false, &queue) && not_from_file(c, queue) &&
              preconditions_hold(c, queue) && may_change_calls(c, queue, NULL) && delete_queue(c, &d, queue);
    deed_free(&d);
    if (!ok) return reply_failure(c);
    leave_queue(b, queue);
    queue_rules_drop(b, queue);
    reply_with(b, c->conn, 204, SL(""), SL(""), SL(""), 0);
}

/* ---- pausing */

static void set_paused(struct call *c, bool paused) {
    u16 queue;
    struct deed d;
    bool ok = deed_read(c, &d, "") && queue_of_call(c, paused, &queue); /* to pause it before it is there has a use */
    if (ok) {
        struct audit_in audit = deed_named(&d, paused ? DEED_PAUSE : DEED_RESUME, SL(""));
        room_prepare(c->b, 0);
        ok = core_queue_pause(c->b->core, c->b->now, queue, paused, &audit) != PAUSE_FULL || deed_no_room(c);
    }
    if (ok)
        reply_queue(c, 200, queue);
    else
        reply_failure(c);
    deed_free(&d);
}

void api_pause(struct call *c) {
    set_paused(c, true);
}

void api_resume(struct call *c) {
    set_paused(c, false);
}
