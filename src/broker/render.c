#include "broker/render.h"

#include "broker/answer.h"
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

static __attribute__((noinline)) void learn_second(struct time_text *t, u64 second) {
    rfc3339_text(t->text, (i64)second * 1000);
    t->second = second;
}

/* Before 1970 there is nothing to keep. */
static __attribute__((noinline)) char *write_early_time(char *to, i64 unix_ms) {
    rfc3339_text(to, unix_ms);
    return to + RFC3339_BYTES;
}

char *write_time(struct broker *br, char *to, i64 unix_ms) {
    if (unix_ms < 0) return write_early_time(to, unix_ms);
    u64 second = (u64)unix_ms / 1000;
    u32 ms = (u32)((u64)unix_ms - second * 1000), hundredths = ms / 10;
    struct time_text *known = text_of(br->time_texts, second);
    if (second != known->second) learn_second(known, second);
    memcpy(to, known->text, RFC3339_BYTES);
    to[20] = (char)('0' + hundredths / 10);
    to[21] = (char)('0' + hundredths % 10);
    to[22] = (char)('0' + ms % 10);
    return to + RFC3339_BYTES;
}

void put_time(struct broker *br, struct buf *b, i64 unix_ms) {
    buf_grow(b, RFC3339_BYTES + 1);
    char *p = write_time(br, buf_end(b), unix_ms);
    *p++ = '"';
    buf_end_at(b, p);
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

#define NO_RESULT "{\"content_type\":\"\",\"body\":\"\",\"encoding\":\"utf8\"}"

/* A few kilobytes of lines that repeat one key with a large result must not make a reply of gigabytes: what may not
 * fit within the limit is left out, and says so. A message's payload, steps and result fit together. */
void put_result(struct buf *b, slice content_type, slice result) {
    if (result.n && b->len + (u64)result.n * ESCAPED_GROWS > REPLY_BYTES_MAX) {
        buf_lit(b, "null,\"result_omitted\":true");
        return;
    }
    if (content_type.n == 0 && result.n == 0) {
        buf_lit(b, NO_RESULT);
        return;
    }
    buf_char(b, '{');
    json_put_member(b, "content_type", content_type);
    put_bytes_members(b, "body", result);
    buf_char(b, '}');
}

void put_result_member(struct buf *b, bool shown, slice content_type, slice result) {
    if (!shown) return buf_lit(b, ",\"result\":null,\"result_hidden\":true");
    if (content_type.n == 0 && result.n == 0) return buf_lit(b, ",\"result\":" NO_RESULT);
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

bool put_previous(struct buf *b, bool payloads, bool shown, const struct rec_message *m, struct rec_settle *s) {
    if (m->former.n == 0 || !former_decode(m->former, s)) return false;
    json_put_name(b, "previous");
    buf_char(b, '{');
    put_id(b, "id", &s->ref);
    json_put_member(b, "state", slice_str(state_text((enum state)s->state)));
    if (s->reason.n) json_put_member(b, "reason", answer_reason(s->reason, payloads));
    json_put_member_i64(b, "generation", s->generation);
    json_put_member_time(b, "first_seen", s->first_seen_ms);
    json_put_member_time(b, "settled_at", s->settled_ms);
    put_settled_result(b, shown, s);
    return true;
}

void put_steps(struct buf *b, bool shown, slice history) {
    if (history.n == 0) return buf_lit(b, ",\"steps\":[]");
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
    if (attrs.n == 0) return buf_lit(b, ",\"attrs\":{}");
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

void put_key_text(struct buf *b, slice key) {
    if (key.n)
        json_put_string(b, key);
    else
        buf_lit(b, "null");
}

void put_key(struct buf *b, slice key) {
    buf_slice_add(b, b->p[b->len - 1] == '{' ? SL("\"key\":") : SL(",\"key\":"));
    put_key_text(b, key);
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
