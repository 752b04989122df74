#include "broker/event_page.h"

#include "base/json.h"
#include "broker/alerts.h"
#include "broker/answer.h"
#include "broker/broker_priv.h"
#include "broker/lookup.h"
#include "broker/render.h"
#include "broker/scope.h"

slice event_queue_name(const struct broker *b, const struct event *e) {
    return e->queue && event_is_of(b, e, e->queue) ? core_queue_name(b->core, e->queue) : SL("");
}

static void put_text(struct buf *b, const char *name, const char *text) {
    if (*text) json_put_member(b, name, slice_str(text));
}

/* What the ring itself has. */
static void put_detail(struct buf *b, const struct event *e) {
    switch ((enum happening_kind)e->kind) {
    case HAPPENING_DUPLICATE:
        put_text(b, "arrival", arrival_text((enum arrival_kind)e->detail));
        break;
    case HAPPENING_DELIVERED:
        put_text(b, "delivery", delivery_text((enum delivery)e->detail));
        break;
    case HAPPENING_SETTLED:
        put_text(b, "state", state_text((enum state)e->detail));
        break;
    case HAPPENING_FAILED:
        put_text(b, "class", class_text((enum failure_class)e->detail));
        break;
    case HAPPENING_ALERT:
        put_text(b, "name", alert_name((enum alert)e->detail));
        put_text(b, "state", alert_state_text((enum alert_state)e->subject));
        break;
    case HAPPENING_RESOLVED:
        put_text(b, "decision", decision_text((enum decision)e->detail));
        break;
    default:
        break;
    }
    bool aged = e->kind == HAPPENING_DUPLICATE || e->kind == HAPPENING_CONFLICT || e->kind == HAPPENING_DELIVERED ||
                e->kind == HAPPENING_SETTLED;
    if (aged && e->age_ms != EVENT_NO_AGE) json_put_member_i64(b, "age_ms", e->age_ms);
}

/* The first arrival's, or that of the repeat it is about. */
static slice request_id_of(struct broker *br, const struct event *e, const struct seen *s) {
    slice first = s->settle ? s->settle->request_id : s->message->request_id;
    bool repeat = e->kind == HAPPENING_DUPLICATE || e->kind == HAPPENING_CONFLICT;
    struct arrivals a;
    if (!repeat) return first;
    if (e->request_id == 0) return SL("");
    if (event_tag(first) == e->request_id) return first;
    core_arrivals_view(br->core, s, &a);
    for (u32 i = 0; i < a.count; i++)
        if (event_tag(a.last[i].request_id) == e->request_id) return a.last[i].request_id;
    return SL("");
}

/* A repeat's own is not kept. */
static slice trace_id_seen(const struct event *e, const struct seen *s) {
    slice id = trace_id_of(s->message ? s->message->traceparent : s->settle->kept.traceparent);
    return e->trace == 0 || event_tag(id) == e->trace ? id : SL("");
}

static bool ends_attempt(const struct event *e) {
    return e->kind == HAPPENING_FAILED || e->kind == HAPPENING_EXPIRED || e->kind == HAPPENING_SETTLED ||
           e->kind == HAPPENING_DEAD || e->kind == HAPPENING_HELD;
}

/* The attempt or decision that this event is about, by its moment: later ones are no part of it, durable or not. */
static bool item_of(const struct event *e, slice history, struct history_item *out) {
    bool attempt = e->kind == HAPPENING_DELIVERED || ends_attempt(e);
    for (u32 at = 0; history_next(history, &at, out);) {
        if (out->kind == HISTORY_DECISION && !attempt && e->kind == HAPPENING_RESOLVED && out->at_ms == e->at_ms)
            return true;
        if (out->kind != HISTORY_ATTEMPT || !attempt) continue;
        if ((ends_attempt(e) ? out->ended_ms : out->at_ms) == e->at_ms) return true;
    }
    return false;
}

static void put_item(struct buf *b, const struct event *e, slice history) {
    struct history_item item;
    if (!item_of(e, history, &item)) return;
    bool decided = item.kind == HISTORY_DECISION;
    if (item.consumer.n) json_put_member(b, decided ? "by" : "consumer", item.consumer);
    if (item.reason.n && (decided || ends_attempt(e))) json_put_member(b, "reason", answer_reason(item.reason, false));
}

/* The key may be known though the message is not: another generation of it is there. */
static slice key_of(struct broker *br, const struct event *e) {
    struct core_cursor cursor = {0};
    struct found f;
    while (core_find(br->core, e->hash, &cursor, &f))
        if (f.queue == e->queue) return seen_key(lookup_found(br, br->lookup, &f));
    return SL("");
}

static void put_message(struct broker *br, struct buf *b, const struct event *e) {
    struct seen *s = lookup_id(br, br->lookup, e->hash, e->seq);
    struct message_view v;
    struct ref ref = {.hash = e->hash, .seq = e->seq, .queue = e->queue};
    slice key = s ? seen_key(s) : key_of(br, e);
    if (key.n) put_shown_key(br, b, e->queue, key);
    put_id(b, "id", &ref);
    if (!s) return;
    slice request_id = request_id_of(br, e, s), trace = trace_id_seen(e, s);
    if (request_id.n) json_put_member(b, "request_id", request_id);
    if (trace.n) json_put_member(b, "trace_id", trace);
    if (s->message) core_message_view(br->core, br->now, s->at.message, &v);
    put_item(b, e, s->settle ? s->settle->history : v.history);
}

/* Its own words, but not the detail, which may be long: GET /v1/audit has it. */
static void put_deed(struct broker *br, struct buf *b, const struct event *e) {
    struct audit_at at;
    if (!core_audit_prev(br->core, e->subject + 1, &at) || at.number != e->subject) return;
    const struct record *r = lookup_record(br, br->lookup, at.pos, at.size_hint);
    CHECK(r->type == REC_AUDIT);
    json_put_member(b, "who", r->audit.who);
    json_put_member(b, "what", r->audit.what);
    if (r->audit.queue_name.n) json_put_member(b, "queue", r->audit.queue_name);
    if (r->audit.key.n) json_put_member(b, "key", r->audit.key);
    if (r->audit.id.n) json_put_member(b, "id", r->audit.id);
    if (r->audit.why.n) json_put_member(b, "reason", r->audit.why);
}

void put_event(struct broker *br, struct buf *b, const struct event *e) {
    bool deed = e->kind == HAPPENING_AUDIT || e->kind == HAPPENING_CONFIG;
    slice queue = deed ? SL("") : event_queue_name(br, e);
    buf_char(b, '{');
    json_put_member(b, "kind", slice_str(happening_text((enum happening_kind)e->kind)));
    put_time_member(br, b, "at", e->at_ms);
    if (queue.n) json_put_member(b, "queue", queue);
    if (deed) put_deed(br, b, e);
    if (e->seq) put_message(br, b, e);
    put_detail(b, e);
    buf_char(b, '}');
}
