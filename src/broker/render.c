#include "broker/render.h"

#include "broker/answer_head.h"
#include "broker/attrs.h"
#include "broker/broker_priv.h"
#include "broker/limits.h"

#define TIME_TEXTS_BITS 8
#define TIME_TEXTS      (1u << TIME_TEXTS_BITS) /* seconds: of duplicates that come in any order */

struct time_texts {
    struct time_text {
        u64 second;
        char text[RFC3339_BYTES];
    } of[TIME_TEXTS];
};

struct time_texts *time_texts_new(void) {
    struct time_texts *t = mem_zalloc(sizeof *t);
    for (u32 i = 0; i < TIME_TEXTS; i++) t->of[i].second = UINT64_MAX;
    return t;
}

void time_texts_free(struct time_texts *t) {
    mem_free(t);
}

void put_id(struct buf *b, const char *name, const struct ref *ref) {
    json_put_name(b, name);
    buf_char(b, '"');
    core_id_text(ref, b);
    buf_char(b, '"');
}

/* Spread, so that a second and the one a window later, whose difference has many factors, do not drive each other out. */
static struct time_text *text_of(struct time_texts *t, u64 second) {
    return &t->of[second * UINT64_C(0x9e3779b97f4a7c15) >> (64 - TIME_TEXTS_BITS)];
}

static void put_known_time(struct time_texts *t, char *to, u64 unix_ms) {
    u64 second = unix_ms / 1000;
    u32 ms = (u32)(unix_ms - second * 1000), hundredths = ms / 10;
    struct time_text *known = text_of(t, second);
    if (second != known->second) {
        rfc3339_text(known->text, (i64)unix_ms);
        known->second = second;
    }
    memcpy(to, known->text, RFC3339_BYTES);
    to[20] = (char)('0' + hundredths / 10);
    to[21] = (char)('0' + hundredths % 10);
    to[22] = (char)('0' + ms % 10);
}

void put_time(struct broker *br, struct buf *b, i64 unix_ms) {
    buf_grow(b, RFC3339_BYTES + 1);
    char *p = b->p + b->len;
    if (unix_ms >= 0)
        put_known_time(br->time_texts, p, (u64)unix_ms);
    else
        rfc3339_text(p, unix_ms);
    p[RFC3339_BYTES] = '"';
    b->len += RFC3339_BYTES + 1;
}

void put_bytes_members(struct buf *b, const char *body_name, slice bytes) {
    json_put_name(b, body_name);
    if (json_put_text(b, bytes)) {
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
    if (content_type.n == 0 && result.n == 0) {
        buf_lit(b, "{\"content_type\":\"\",\"body\":\"\",\"encoding\":\"utf8\"}");
        return;
    }
    buf_char(b, '{');
    json_put_member(b, "content_type", content_type);
    put_bytes_members(b, "body", result);
    buf_char(b, '}');
}

void put_result_member(struct buf *b, bool shown, slice content_type, slice result) {
    if (!shown) return buf_lit(b, ",\"result\":null,\"result_hidden\":true");
    buf_lit(b, ",\"result\":");
    put_result(b, content_type, result);
}

void put_settled_result(struct buf *b, bool shown, const struct rec_settle *s) {
    put_result_member(b, shown, s->content_type, s->result);
    if (shown && s->http.n) put_answer_head(b, s->http);
}

void put_expires(struct broker *br, struct buf *b, const struct rec_settle *settle) {
    i64 left = settle ? core_key_left_ms(br->core, br->now, settle) : INT64_MAX;
    if (left == INT64_MAX)
        buf_lit(b, ",\"expires_at\":null");
    else
        put_time_member(br, b, "expires_at", br->now.wall_ms + left);
}

bool put_previous(struct buf *b, bool shown, const struct rec_message *m, struct rec_settle *s) {
    if (m->former.n == 0 || !former_decode(m->former, s)) return false;
    json_put_name(b, "previous");
    buf_char(b, '{');
    put_id(b, "id", &s->ref);
    json_put_member(b, "state", slice_str(state_text((enum state)s->state)));
    if (s->reason.n) json_put_member(b, "reason", s->reason);
    json_put_member_i64(b, "generation", s->generation);
    json_put_member_time(b, "first_seen", s->first_seen_ms);
    json_put_member_time(b, "settled_at", s->settled_ms);
    put_settled_result(b, shown, s);
    return true;
}

void put_steps(struct buf *b, bool shown, slice history) {
    buf_lit(b, ",\"steps\":[");
    u32 at = 0;
    struct history_item item;
    for (bool first = true; history_next(history, &at, &item);) {
        if (item.kind != HISTORY_STEP) continue;
        if (!first) buf_char(b, ',');
        first = false;
        buf_char(b, '{');
        json_put_member(b, "name", item.name);
        put_result_member(b, shown, item.content_type, item.result);
        buf_char(b, '}');
    }
    buf_char(b, ']');
}

void put_attrs(struct buf *b, slice attrs) {
    buf_lit(b, ",\"attrs\":{");
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

void put_key(struct buf *b, slice key) {
    buf_slice_add(b, b->p[b->len - 1] == '{' ? SL("\"key\":") : SL(",\"key\":"));
    if (key.n)
        json_put_string(b, key);
    else
        buf_lit(b, "null");
}

void put_said(struct buf *b, bool shown, slice group, slice attrs, slice content_type, slice payload) {
    if (group.n) json_put_member(b, "group", group);
    if (shown) put_attrs(b, attrs);
    json_put_member(b, "content_type", content_type);
    if (!shown)
        buf_lit(b, ",\"payload\":null,\"payload_hidden\":true");
    else
        put_bytes_members(b, "payload", payload);
}
