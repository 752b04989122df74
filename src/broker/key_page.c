#include "broker/key_page.h"

#include "broker/access.h"
#include "broker/answer.h"
#include "broker/broker_priv.h"
#include "broker/call.h"
#include "broker/diff.h"
#include "broker/lookup.h"
#include "broker/render.h"
#include "broker/scope.h"
#include "broker/story.h"
#include "broker/why.h"

static void put_attempt(struct buf *b, bool payloads, const struct history_item *item) {
    buf_char(b, '{');
    json_put_member_i64(b, "attempt", item->attempt);
    json_put_name(b, "fence");
    buf_char(b, '"');
    buf_dec(b, item->fence);
    buf_char(b, '"');
    json_put_member(b, "consumer", item->consumer);
    json_put_member_time(b, "at", item->at_ms);
    if (item->ended == ENDED_OPEN) {
        json_put_member_raw(b, "ended", SL("null"));
    } else {
        json_put_member(b, "ended", slice_str(ended_text((enum ended)item->ended)));
        json_put_member_time(b, "ended_at", item->ended_ms);
    }
    if (item->failure_class != CLASS_NONE)
        json_put_member(b, "class", slice_str(class_text((enum failure_class)item->failure_class)));
    if (item->reason.n) json_put_member(b, "reason", answer_reason(item->reason, payloads));
    if (item->lookup) json_put_member(b, "delivery", slice_str(delivery_text(DELIVERY_RECONCILE)));
    buf_char(b, '}');
}

static void put_attempts(struct buf *b, bool payloads, slice history) {
    json_put_name(b, "attempts");
    buf_char(b, '[');
    u32 at = 0;
    struct history_item item;
    while (history_next(history, &at, &item)) {
        if (item.kind != HISTORY_ATTEMPT) continue;
        if (b->p[b->len - 1] != '[') buf_char(b, ',');
        put_attempt(b, payloads, &item);
    }
    buf_char(b, ']');
}

static void put_effects(struct buf *b, slice history) {
    json_put_name(b, "effect_ids");
    buf_char(b, '[');
    u32 at = 0;
    struct history_item item;
    while (history_next(history, &at, &item)) {
        if (item.kind != HISTORY_EFFECT) continue;
        if (b->p[b->len - 1] != '[') buf_char(b, ',');
        json_put_string(b, item.name);
    }
    buf_char(b, ']');
}

static void put_arrival(struct buf *b, i64 at_ms, i64 first_seen_ms, const char *kind, slice request_id) {
    if (b->p[b->len - 1] != '[') buf_char(b, ',');
    buf_char(b, '{');
    json_put_member_time(b, "at", at_ms);
    json_put_member_i64(b, "age_ms", at_ms - first_seen_ms);
    json_put_member(b, "kind", slice_str(kind));
    if (request_id.n) json_put_member(b, "request_id", request_id);
    buf_char(b, '}');
}

static void put_arrivals(struct broker *br, struct buf *b, const struct seen *s, i64 first_seen_ms) {
    struct arrivals a;
    core_arrivals_view(br->core, s, &a);
    json_put_member_i64(b, "duplicates", (i64)a.duplicates);
    json_put_member_i64(b, "conflicts", (i64)(a.total - a.duplicates));
    json_put_name(b, "arrivals");
    buf_char(b, '[');
    slice request_id = s->settle ? s->settle->request_id : s->message->request_id;
    put_arrival(b, first_seen_ms, first_seen_ms, arrival_text(ARRIVAL_NEW), request_id);
    for (u32 i = 0; i < a.count; i++)
        put_arrival(b, a.last[i].at_ms, first_seen_ms, arrival_text((enum arrival_kind)a.last[i].kind),
                    a.last[i].request_id);
    buf_char(b, ']');
}

static void put_decision(struct buf *b, const struct history_item *item) {
    buf_char(b, '{');
    json_put_member_time(b, "at", item->at_ms);
    json_put_member(b, "what", slice_str(decision_text((enum decision)item->what)));
    if (item->consumer.n) json_put_member(b, "by", item->consumer);
    if (item->reason.n) json_put_member(b, "why", item->reason);
    buf_char(b, '}');
}

static void put_decisions(struct buf *b, slice history) {
    struct history_item item;
    if (!history_last_decision(history, &item)) return;
    json_put_name(b, "decisions");
    buf_char(b, '[');
    for (u32 at = 0; history_next(history, &at, &item);) {
        if (item.kind != HISTORY_DECISION) continue;
        if (b->p[b->len - 1] != '[') buf_char(b, ',');
        put_decision(b, &item);
    }
    buf_char(b, ']');
}

static slice held_because(const struct message_view *v) {
    struct history_item last;
    if (v->conflict) return SL("conflict");
    if (history_last_attempt(v->history, &last))
        return last.failure_class == CLASS_ABSENT ? SL("absent") : SL("unknown");
    bool unbegun = history_last_decision(v->history, &last) && last.what == DECISION_HELD;
    return unbegun ? SL("approval") : SL("unknown");
}

/* Why it is where it is: said by whoever settled it, or by what made it dead or held. */
static void put_reason(struct buf *b, bool payloads, const struct seen *s, const struct message_view *v) {
    if (s->settle) {
        if (s->settle->reason.n) json_put_member(b, "reason", answer_reason(s->settle->reason, payloads));
        return;
    }
    if (v->state != STATE_DEAD && v->state != STATE_HELD) return;
    struct buf text = {0};
    struct history_item last;
    why_text(v, payloads, &text);
    json_put_member(b, "reason", buf_slice(&text));
    buf_free(&text);
    if (history_last_attempt(v->history, &last) && last.failure_class != CLASS_NONE)
        json_put_member(b, "class", slice_str(class_text((enum failure_class)last.failure_class)));
    if (v->state == STATE_HELD) json_put_member(b, "held_because", held_because(v));
    if (v->refused) json_put_member_bool(b, "refused", true);
    if (v->taken) json_put_member_bool(b, "dead_with_group", true);
}

/* A held conflict: whose key it reused, and in what it differs. */
static void put_conflict(struct broker *br, struct buf *b, bool shown, const struct rec_message *m) {
    const struct seen *s = lookup_id(br, br->other, m->origin_hash, m->origin_seq);
    if (!s) return;
    buf_lit(b, ",\"conflict_with\":{");
    put_id(b, "id", seen_ref(s));
    put_shown_key(br, b, s->at.queue, seen_key(s));
    json_put_member(b, "state", slice_str(state_text(seen_state(br, s))));
    buf_char(b, '}');
    if (s->message)
        put_changed(br, b, m->ref.queue, s->message->payload, m->payload, shown, &br->scratch->compare_left);
    else if (core_payload_kept(br->core, br->now, s->settle))
        put_changed(br, b, m->ref.queue, s->settle->kept.payload, m->payload, shown, &br->scratch->compare_left);
}

static void put_live(struct broker *br, struct buf *b, const struct message_view *v) {
    json_put_member_i64(b, "attempt", v->attempts);
    json_put_member_i64(b, "failures", v->failures + v->unknowns);
    json_put_member_i64(b, "crashes", v->crashes);
    if (v->state == STATE_LEASED) json_put_member_time(b, "lease_expires_at", br->now.wall_ms + v->lease_left_ms);
    if (v->delayed) json_put_member_time(b, "not_before", wall_of_delay(br, v->due_ms));
    if (v->behind) json_put_member_bool(b, "behind_group", true);
    if (v->lookups) json_put_member_i64(b, "lookups", v->lookups);
    if (v->reconcile) json_put_member(b, "next_delivery", slice_str(delivery_text(DELIVERY_RECONCILE)));
}

static void put_settled(struct broker *br, struct buf *b, bool shown, const struct rec_settle *s) {
    json_put_member_i64(b, "attempt", s->attempts);
    json_put_member_i64(b, "failures", s->failures + s->unknowns);
    json_put_member_i64(b, "crashes", s->crashes);
    json_put_member_time(b, "settled_at", s->settled_ms);
    put_expires(br, b, s);
    put_settled_result(b, shown, s);
    if (s->restored) json_put_member_bool(b, "restored", true);
    if (s->erased) json_put_member_bool(b, "erased", true);
    if (s->kept.is) json_put_member_bool(b, "payload_kept", core_payload_kept(br->core, br->now, s));
}

/* What it was before it was replayed, and will be again if the replay is cancelled. */
static void put_former(struct buf *b, bool payloads, bool shown, const struct rec_message *m) {
    struct rec_settle was;
    if (!put_previous(b, payloads, shown, m, &was)) return;
    json_put_member_i64(b, "attempt", was.attempts);
    json_put_member_i64(b, "failures", was.failures + was.unknowns);
    json_put_member_i64(b, "crashes", was.crashes);
    put_attempts(b, payloads, was.history);
    put_effects(b, was.history);
    put_decisions(b, was.history);
    buf_char(b, '}');
}

void put_key_page(struct broker *br, struct buf *b, const struct seen *s, bool story) {
    struct message_view v = {0};
    CHECK(s->settle || s->message);
    if (s->message) core_message_view(br->core, br->now, s->at.message, &v);
    struct queue_info q;
    core_queue_info(br->core, br->now, s->at.queue, &q);
    slice history = s->settle ? s->settle->history : v.history;
    i64 first_seen_ms = seen_first_ms(s);
    bool payload = shows_payload(br, q.name), result = shows_result(br, q.name);
    buf_char(b, '{');
    put_id(b, "id", seen_ref(s));
    put_shown_key(br, b, s->at.queue, seen_key(s));
    json_put_member(b, "queue", q.name);
    json_put_member(b, "state", slice_str(state_text(s->settle ? (enum state)s->settle->state : v.state)));
    put_reason(b, payload, s, &v);
    if (story) put_story(br, b, s, &v);
    u32 generation = s->settle ? s->settle->generation : v.generation;
    json_put_member_i64(b, "generation", generation);
    put_effect_key_member(br, b, seen_ref(s), seen_key(s), generation);
    json_put_name(b, "fingerprint");
    buf_printf(b, "\"%016llx\"", (unsigned long long)seen_fingerprint(s));
    json_put_member_time(b, "first_seen", first_seen_ms);
    if (s->settle)
        put_settled(br, b, result, s->settle);
    else
        put_live(br, b, &v);
    put_attempts(b, payload, history);
    put_steps(b, payload, history);
    put_effects(b, history);
    put_decisions(b, history);
    put_arrivals(br, b, s, first_seen_ms);
    if (s->message) put_former(b, payload, result, s->message);
    if (s->message)
        put_said(b, payload, s->message->group, s->message->attrs, s->message->content_type, s->message->payload);
    if (v.conflict) put_conflict(br, b, payload, s->message);
    buf_char(b, '}');
}

void reply_key_page(struct call *c, const struct seen *s) {
    struct buf *body = &c->b->scratch->body;
    if (!s) return reply_failure(c);
    buf_reset(body);
    put_key_page(c->b, body, s, true);
    reply_json(c, 200, buf_slice(body));
}
