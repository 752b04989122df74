#include "broker/answer.h"

#include "broker/answer_head.h"
#include "broker/limits.h"
#include "broker/parse.h"
#include "core/core.h"

#define EFFECT_BYTES_MAX 255u

bool answer_next(slice head, size_t *at, slice *name, slice *value) {
    while (*at < head.n) {
        const char *line = head.p + *at, *end = memchr(line, '\n', head.n - *at);
        size_t n = end ? (size_t)(end - line) : head.n - *at;
        *at += n + 1;
        if (n && line[n - 1] == '\r') n--;
        if (!slice_cut(slice_of(line, n), ':', name, value) || name->n == 0) continue;
        *value = slice_trim(*value);
        return true;
    }
    return false;
}

slice answer_field(slice head, slice name) {
    slice known, value;
    for (size_t at = 0; answer_next(head, &at, &known, &value);)
        if (slice_spells(known, name)) return value;
    return SL("");
}

/* A date is told by the answer's own clock, if it shows one: the two need not agree with ours. */
i64 answer_wait_ms(slice head, i64 wall_ms) {
    slice said = answer_field(head, SL("retry-after"));
    u64 seconds;
    i64 until_ms, now_ms;
    if (slice_u64(said, &seconds))
        return seconds < ANSWER_WAIT_MS_MAX / 1000 ? (i64)seconds * 1000 : ANSWER_WAIT_MS_MAX;
    if (!http_date_parse(said, &until_ms)) return 0;
    if (!http_date_parse(answer_field(head, SL("date")), &now_ms)) now_ms = wall_ms;
    i64 wait_ms = until_ms - now_ms;
    return wait_ms < 0 ? 0 : wait_ms < ANSWER_WAIT_MS_MAX ? wait_ms : ANSWER_WAIT_MS_MAX;
}

slice answer_content_type(slice head) {
    slice type = answer_field(head, SL("content-type"));
    return type.n && text_ok(type, TYPE_BYTES_MAX) ? type : SL("application/octet-stream");
}

static bool is_kept(const struct texts *keep, slice name) {
    for (u32 i = 0; i < keep->count; i++)
        if (slice_spells(name, keep->at[i])) return true;
    return false;
}

void answer_put_head(struct buf *out, u32 status, slice head, const struct texts *keep, bool truncated) {
    slice name, value;
    answer_head_begin(out, status, truncated);
    for (size_t at = 0; keep->count && answer_next(head, &at, &name, &value);)
        if (is_kept(keep, name) && text_ok(value, HTTP_HEAD_BYTES_MAX)) answer_head_add(out, name, value);
}

void answer_view(struct payload_view *body, slice bytes, bool truncated) {
    payload_view_init(body, bytes, SL(""), NULL, NULL);
    body->cut = truncated;
}

static const struct json_item *item_at(struct payload_view *body, const struct path *path) {
    u32 at = path && payload_view_json(body) ? path_find(path, &body->tape) : 0;
    return at ? &body->tape.at[at] : NULL;
}

slice answer_value(struct payload_view *body, const struct path *path) {
    const struct json_item *item = item_at(body, path);
    slice text;
    if (!item || !payload_view_scalar(body, item, &text) || !text_ok(text, EFFECT_BYTES_MAX)) return SL("");
    return text;
}

enum answer_says answer_says(struct payload_view *body, const struct path *path) {
    if (!payload_view_json(body)) return ANSWER_SAYS_NOTHING;
    const struct json_item *item = item_at(body, path);
    if (item && item->type != JSON_NULL) return ANSWER_HAS;
    return body->tape.error ? ANSWER_SAYS_NOTHING : ANSWER_HAS_NOT;
}
