#include "net/answer.h"

static bool is_token_char(u8 c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

static bool is_token(slice s) {
    for (size_t i = 0; i < s.n; i++)
        if (!is_token_char((u8)s.p[i])) return false;
    return s.n > 0;
}

/* Of a value: a tab is none. */
static bool has_controls(slice s) {
    for (size_t i = 0; i < s.n; i++)
        if (((u8)s.p[i] < 0x20 && s.p[i] != '\t') || s.p[i] == 0x7f) return true;
    return false;
}

static slice without_break(slice line) {
    if (line.n && line.p[line.n - 1] == '\n') line.n--;
    if (line.n && line.p[line.n - 1] == '\r') line.n--;
    return line;
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* "HTTP/1.1 204 No Content"; 0: it is none. */
static u32 status_of(slice line) {
    const char *p = line.p;
    if (line.n < 12 || !slice_starts(line, SL("HTTP/1.")) || !is_digit(p[7]) || p[8] != ' ') return 0;
    if (!is_digit(p[9]) || !is_digit(p[10]) || !is_digit(p[11]) || (line.n > 12 && p[12] != ' ')) return 0;
    return (u32)(p[9] - '0') * 100 + (u32)(p[10] - '0') * 10 + (u32)(p[11] - '0');
}

static bool begin(struct answer_head *h, slice line) {
    h->status = status_of(line);
    h->kept = false;
    buf_reset(&h->lines);
    return h->status >= 100;
}

static void keep(struct answer_head *h, slice name, slice value) {
    buf_slice_add(&h->lines, name);
    buf_lit(&h->lines, ": ");
    buf_slice_add(&h->lines, value);
    buf_lit(&h->lines, "\r\n");
}

/* The line before goes on: one field, its parts with a space between. */
static void unfold(struct answer_head *h, slice more) {
    if (!h->kept) return;
    if (has_controls(more)) {
        h->kept = false;
        return;
    }
    h->lines.len -= 2;
    buf_char(&h->lines, ' ');
    buf_slice_add(&h->lines, more);
    buf_lit(&h->lines, "\r\n");
}

bool answer_head_line(struct answer_head *h, slice line, u32 max) {
    slice name, value;
    if (line.n > max - h->bytes) return false;
    h->bytes += (u32)line.n;
    line = without_break(line);
    if (h->ended) return true;
    if (!h->status || (h->status < 200 && slice_starts(line, SL("HTTP/")))) return begin(h, line);
    if (line.n == 0) {
        h->ended = h->status >= 200;
        return true;
    }
    if (line.p[0] == ' ' || line.p[0] == '\t') {
        unfold(h, slice_trim(line));
        return true;
    }
    bool field = slice_cut(line, ':', &name, &value);
    value = slice_trim(value);
    h->kept = field && is_token(name) && !has_controls(value);
    if (h->kept) keep(h, name, value);
    return true;
}
