#include "broker/answer_head.h"

#include "base/json.h"
#include "broker/answer.h"
#include "broker/limits.h"
#include "core/core.h"

#define TRUNCATED_LINE "hapax-truncated: true\r\n"

void answer_head_begin(struct buf *head, u32 status, bool truncated) {
    buf_reset(head);
    buf_dec(head, status);
    buf_lit(head, "\r\n");
    if (truncated) buf_lit(head, TRUNCATED_LINE);
}

static bool one_line(slice s) {
    for (size_t i = 0; i < s.n; i++)
        if (s.p[i] == '\r' || s.p[i] == '\n' || s.p[i] == '\0') return false;
    return true;
}

bool answer_head_add(struct buf *head, slice name, slice value) {
    bool ours = slice_eq_nocase(name, SL("hapax-truncated"));
    if (ours || name.n == 0 || memchr(name.p, ':', name.n) || !one_line(name) || !one_line(value)) return false;
    if (head->len + name.n + value.n + 4 > HTTP_HEAD_BYTES_MAX) return false;
    for (size_t i = 0; i < name.n; i++)
        buf_char(head, name.p[i] >= 'A' && name.p[i] <= 'Z' ? (char)(name.p[i] + ('a' - 'A')) : name.p[i]);
    buf_lit(head, ": ");
    buf_slice_add(head, value);
    buf_lit(head, "\r\n");
    return true;
}

/* What stands behind the first line. */
static slice fields_of(slice head) {
    slice status, fields = SL("");
    slice_cut(head, '\n', &status, &fields);
    return fields;
}

u32 answer_head_status(slice head) {
    u64 status;
    bool whole = head.n >= 5 && head.p[3] == '\r' && head.p[4] == '\n' && slice_u64(slice_of(head.p, 3), &status);
    return whole ? (u32)status : 0;
}

/* Ours comes right behind the status, and no other is taken for it. */
bool answer_head_truncated(slice head) {
    slice fields = fields_of(head), ours = SL(TRUNCATED_LINE);
    return fields.n >= ours.n && memcmp(fields.p, ours.p, ours.n) == 0;
}

bool answer_head_next(slice head, size_t *at, slice *name, slice *value) {
    if (*at == 0 && answer_head_truncated(head)) *at = SL(TRUNCATED_LINE).n;
    return answer_next(fields_of(head), at, name, value);
}

/* ---- shown */

/* What is not UTF-8 is what such fields were before there was any: Latin-1. */
static void add_text(struct buf *out, slice s) {
    if (utf8_valid(s)) {
        buf_slice_add(out, s);
        return;
    }
    for (size_t i = 0; i < s.n; i++) {
        unsigned char c = (unsigned char)s.p[i];
        if (c >= 0x80) buf_char(out, (char)(0xc0 | c >> 6));
        buf_char(out, (char)(c >= 0x80 ? 0x80 | (c & 0x3f) : c));
    }
}

struct shown {
    slice name, value;
    bool told;
};

static void put_field(struct buf *b, struct shown *fields, u32 count, u32 first, struct buf *text) {
    buf_reset(text);
    add_text(text, fields[first].name);
    if (b->p[b->len - 1] != '{') buf_char(b, ',');
    json_put_string(b, buf_slice(text));
    buf_char(b, ':');
    buf_reset(text);
    for (u32 i = first; i < count; i++) {
        if (fields[i].told || !slice_eq_nocase(fields[i].name, fields[first].name)) continue;
        if (i > first) buf_lit(text, ", ");
        add_text(text, fields[i].value);
        fields[i].told = true;
    }
    json_put_string(b, buf_slice(text));
}

void put_answer_head(struct buf *b, slice head) {
    struct shown fields[ANSWER_FIELDS_SHOWN];
    struct buf text = {0};
    u32 count = 0;
    size_t at = 0;
    if (head.n == 0) return;
    if (b->len > REPLY_BYTES_MAX) {
        buf_lit(b, ",\"http\":null");
        return;
    }
    buf_grow(&text, head.n);
    while (count < ANSWER_FIELDS_SHOWN && answer_head_next(head, &at, &fields[count].name, &fields[count].value))
        fields[count++].told = false;
    buf_lit(b, ",\"http\":{\"status\":");
    buf_dec(b, answer_head_status(head));
    buf_lit(b, ",\"headers\":{");
    for (u32 i = 0; i < count; i++)
        if (!fields[i].told) put_field(b, fields, count, i, &text);
    buf_char(b, '}');
    if (count == ANSWER_FIELDS_SHOWN && at < fields_of(head).n) buf_lit(b, ",\"headers_omitted\":true");
    buf_char(b, '}');
    if (answer_head_truncated(head)) buf_lit(b, ",\"truncated\":true");
    buf_free(&text);
}
