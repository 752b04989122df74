/* The parts replies are made of. */
#include "broker/broker_priv.h"

void put_id(struct buf *b, const char *name, const struct ref *ref) {
    json_put_name(b, name);
    buf_char(b, '"');
    core_id_text(ref, b);
    buf_char(b, '"');
}

void put_time(struct broker *br, struct buf *b, slice prefix, i64 unix_ms) {
    i64 second = unix_ms / 1000;
    struct time_memo *memo =
        &br->memos[second & 3]; /* when it was sent, now, when the lease ends: seconds of their own */
    if (unix_ms < 0 || second != memo->second) {
        struct buf text = {.p = memo->text, .cap = sizeof memo->text};
        buf_rfc3339(&text, unix_ms);
        CHECK(text.p == memo->text && text.len == 24);
        memo->second = second;
    }
    u32 ms = (u32)(unix_ms - second * 1000);
    char *digits = memo->text + 20;
    digits[0] = (char)('0' + ms / 100);
    digits[1] = (char)('0' + ms / 10 % 10);
    digits[2] = (char)('0' + ms % 10);
    buf_slice_add(b, prefix);
    buf_add(b, memo->text, 24);
    buf_char(b, '"');
}

void put_bytes_members(struct buf *b, const char *body_name, slice bytes) {
    json_put_name(b, body_name);
    if (utf8_valid(bytes)) {
        json_put_string(b, bytes);
        buf_lit(b, ",\"encoding\":\"utf8\"");
        return;
    }
    buf_char(b, '"');
    buf_base64(b, bytes);
    buf_lit(b, "\",\"encoding\":\"base64\"");
}

/* A few kilobytes of lines that repeat one key with a large result must not make a reply of gigabytes: beyond the limit
 * the rest is left out, and says so. */
void put_result(struct buf *b, slice content_type, slice result) {
    if (b->len > REPLY_BYTES_MAX && result.n) {
        buf_lit(b, "null,\"result_omitted\":true");
        return;
    }
    buf_char(b, '{');
    json_put_member(b, "content_type", content_type);
    put_bytes_members(b, "body", result);
    buf_char(b, '}');
}

void put_expires(struct broker *br, struct buf *b, const struct rec_settle *settle) {
    i64 left = settle ? core_key_left_ms(br->core, br->now, settle) : INT64_MAX;
    if (left == INT64_MAX)
        json_put_member_raw(b, "expires_at", SL("null"));
    else
        put_time_member(br, b, "expires_at", br->now.wall_ms + left);
}

void put_steps(struct buf *b, slice history) {
    json_put_name(b, "steps");
    buf_char(b, '[');
    u32 at = 0;
    struct history_item item;
    for (bool first = true; history_next(history, &at, &item);) {
        if (item.kind != HISTORY_STEP) continue;
        if (!first) buf_char(b, ',');
        first = false;
        buf_char(b, '{');
        json_put_member(b, "name", item.name);
        json_put_name(b, "result");
        put_result(b, item.content_type, item.result);
        buf_char(b, '}');
    }
    buf_char(b, ']');
}

void put_attrs(struct buf *b, slice attrs) {
    json_put_name(b, "attrs");
    buf_char(b, '{');
    size_t at = 0;
    slice name, value;
    while (attrs_next(attrs, &at, &name, &value)) {
        if (b->p[b->len - 1] != '{') buf_char(b, ',');
        json_put_string(b, name);
        buf_char(b, ':');
        json_put_string(b, value);
    }
    buf_char(b, '}');
}

static void put_attempt(struct buf *b, const struct history_item *item) {
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
    if (item->reason.n) json_put_member(b, "reason", item->reason);
    buf_char(b, '}');
}

static void put_attempts(struct buf *b, slice history) {
    json_put_name(b, "attempts");
    buf_char(b, '[');
    u32 at = 0;
    struct history_item item;
    while (history_next(history, &at, &item)) {
        if (item.kind != HISTORY_ATTEMPT) continue;
        if (b->p[b->len - 1] != '[') buf_char(b, ',');
        put_attempt(b, &item);
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
    struct rec_arrivals a;
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

/* Why it is where it is: said by whoever settled it, or by the attempt that made it dead. */
static void put_reason(struct buf *b, const struct seen *s, const struct message_view *v) {
    if (s->settle) {
        if (s->settle->reason.n) json_put_member(b, "reason", s->settle->reason);
        return;
    }
    if (v->state != STATE_DEAD && v->state != STATE_HELD) return;
    struct history_item item, last = {0};
    for (u32 at = 0; history_next(v->history, &at, &item);)
        if (item.kind == HISTORY_ATTEMPT) last = item;
    struct buf text = {0};
    if (last.ended == ENDED_EXPIRED)
        buf_printf(&text, "its lease ran out %u times", v->crashes);
    else if (last.reason.n)
        buf_slice_add(&text, last.reason);
    else
        buf_printf(&text, "%s", class_text((enum failure_class)last.failure_class));
    json_put_member(b, "reason", buf_slice(&text));
    buf_free(&text);
}

static void put_live(struct broker *br, struct buf *b, const struct message_view *v) {
    json_put_member_i64(b, "attempt", v->attempts);
    json_put_member_i64(b, "failures", v->failures + v->unknowns);
    json_put_member_i64(b, "crashes", v->crashes);
    if (v->state == STATE_LEASED) json_put_member_time(b, "lease_expires_at", br->now.wall_ms + v->lease_left_ms);
    if (v->delayed) json_put_member_time(b, "not_before", wall_of_delay(br, v->due_ms));
    if (v->behind) json_put_member_bool(b, "behind_group", true);
}

static void put_settled(struct broker *br, struct buf *b, const struct rec_settle *s) {
    json_put_member_i64(b, "attempt", s->attempts);
    json_put_member_i64(b, "failures", s->failures + s->unknowns);
    json_put_member_i64(b, "crashes", s->crashes);
    json_put_member_time(b, "settled_at", s->settled_ms);
    put_expires(br, b, s);
    json_put_name(b, "result");
    put_result(b, s->content_type, s->result);
}

void render_key_view(struct broker *br, struct buf *b, const struct seen *s, bool with_payload) {
    struct message_view v = {0};
    CHECK(s->settle || s->message);
    if (s->message) core_message_view(br->core, br->now, s->at.message, &v);
    struct queue_info q;
    core_queue_info(br->core, br->now, s->at.queue, &q);
    slice history = s->settle ? s->settle->history : v.history;
    i64 first_seen_ms = s->settle ? s->settle->first_seen_ms : s->message->first_seen_ms;
    u64 fingerprint = s->settle ? s->settle->fingerprint : s->message->fingerprint;
    buf_char(b, '{');
    put_id(b, "id", seen_ref(s));
    json_put_member(b, "key", s->settle ? s->settle->key : s->message->key);
    json_put_member(b, "queue", q.name);
    json_put_member(b, "state", slice_str(state_text(s->settle ? (enum state)s->settle->state : v.state)));
    put_reason(b, s, &v);
    json_put_member_i64(b, "generation", s->settle ? s->settle->generation : v.generation);
    json_put_name(b, "fingerprint");
    buf_printf(b, "\"%016llx\"", (unsigned long long)fingerprint);
    json_put_member_time(b, "first_seen", first_seen_ms);
    if (s->settle)
        put_settled(br, b, s->settle);
    else
        put_live(br, b, &v);
    put_attempts(b, history);
    put_steps(b, history);
    put_effects(b, history);
    put_arrivals(br, b, s, first_seen_ms);
    if (with_payload && s->message) {
        const struct rec_message *m = s->message;
        if (m->group.n) json_put_member(b, "group", m->group);
        put_attrs(b, m->attrs);
        json_put_member(b, "content_type", m->content_type);
        put_bytes_members(b, "payload", m->payload);
    }
    buf_char(b, '}');
}
