#include "broker/answer.h"

#include "broker/answer_head.h"
#include "broker/limits.h"
#include "broker/parse.h"
#include "core/core.h"

#define EFFECT_BYTES_MAX 255u
#define SHOWN_BODY_BYTES 160u /* of an answer that says why not, in the reason */
#define ANSWERED         "answered "
#define THEIR_WORDS      ": " /* follow; there is none in ours before */

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

/* ---- reasons */

/* Whoever reads it finds a login page or a new address there. */
static bool redirects(const struct outbound_answer *a, slice *to) {
    *to = a->status / 100 == 3 ? answer_field(a->head, SL("location")) : SL("");
    return to->n && text_ok(*to, SHOWN_BODY_BYTES);
}

void answer_put_reason(struct buf *out, const struct outbound_answer *a, const char *ours) {
    slice theirs;
    buf_reset(out);
    if (a->end != OUTBOUND_ANSWERED) {
        buf_slice_add(out, a->end == OUTBOUND_NOT_SENT ? SL("not sent: ") : SL("no whole answer: "));
        return buf_slice_add(out, slice_str(a->why));
    }
    bool away = redirects(a, &theirs);
    if (!away) theirs = slice_trim(cut_text(a->body, SHOWN_BODY_BYTES));
    buf_printf(out, ANSWERED "%u%s%s", a->status, away ? ", a redirect that is not followed" : "", ours);
    if (theirs.n == 0 || !text_ok(theirs, SHOWN_BODY_BYTES)) return;
    buf_lit(out, THEIR_WORDS);
    buf_slice_add(out, theirs);
}

slice answer_reason(slice reason, bool payloads) {
    const char *theirs = payloads || !slice_starts(reason, SL(ANSWERED))
                             ? NULL
                             : memmem(reason.p, reason.n, THEIR_WORDS, sizeof THEIR_WORDS - 1);
    return theirs ? slice_of(reason.p, (size_t)(theirs - reason.p)) : reason;
}

/* ---- bodies */

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
