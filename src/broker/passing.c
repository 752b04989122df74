#include "broker/passing.h"

#define DECODED_TIMES  4u    /* nobody encodes a path more often and means well */
#define HOPS_BYTES_MAX 1024u /* of what an answer says to be of this hop alone */

/* ---- paths */

static int hex(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Once, in place; what is no escape stays. Returns how many there were. */
static u32 decode(struct buf *b, bool *bad) {
    size_t to = 0;
    u32 escapes = 0;
    for (size_t i = 0; i < b->len; i++, to++) {
        b->p[to] = b->p[i];
        if (b->p[i] != '%') continue;
        int high = i + 2 < b->len ? hex(b->p[i + 1]) : -1, low = high < 0 ? -1 : hex(b->p[i + 2]);
        *bad |= low < 0;
        if (low < 0) continue;
        b->p[to] = (char)(high * 16 + low);
        i += 2;
        escapes++;
    }
    b->len = to;
    return escapes;
}

static bool goes_on(slice s, size_t i) {
    return i < s.n && ((u8)s.p[i] & 0xc0) == 0x80;
}

/* Two or three bytes that old servers took for one of these, for they spell it in UTF-8 with bytes too many. */
static char overlong(slice s, size_t i, size_t *bytes) {
    u8 first = (u8)s.p[i];
    bool three = first == 0xe0 && goes_on(s, i + 1) && (u8)s.p[i + 1] < 0x82;
    size_t long_by = three ? 2 : first == 0xc0 || first == 0xc1;
    if (!long_by || !goes_on(s, i + long_by)) return 0;
    *bytes = long_by;
    return (char)(((u8)s.p[i + long_by - 1] & 1) << 6 | ((u8)s.p[i + long_by] & 0x3f));
}

/* ".." between two slashes of either kind. What follows a ';' is a parameter to some servers, and no part of the name; what follows a
 * '?' or '#' that was encoded is none to those who decode first. Blanks and controls are left out by some. */
static bool leads_up(slice path) {
    u32 dots = 0;
    bool named = false, over = false;
    for (size_t i = 0; i <= path.n; i++) {
        size_t more = 0;
        char c = i < path.n ? path.p[i] : '/', wide = i < path.n ? overlong(path, i, &more) : 0;
        if (wide) c = wide;
        i += more;
        if (c == '/' || c == '\\') {
            if (dots == 2 && !named) return true;
            dots = 0;
            named = over = false;
        } else if (c == ';' || c == '?' || c == '#') {
            over = true;
        } else if (!over && (u8)c > ' ') {
            dots += c == '.';
            named |= c != '.';
        }
    }
    return false;
}

static bool has_nul(slice s) {
    for (size_t i = 0; i < s.n; i++)
        if (s.p[i] == 0) return true;
    return false;
}

static const char *spelled_wrong(struct buf *path) {
    for (u32 times = 0; times <= DECODED_TIMES; times++) {
        if (has_nul(buf_slice(path))) return "the path has a NUL";
        if (leads_up(buf_slice(path))) return "the path leads upwards: .. is not passed on, in no spelling";
        bool bad = false;
        u32 escapes = decode(path, &bad);
        if (bad && times == 0) return "the path has a bad %XX escape";
        if (escapes == 0) return NULL;
    }
    return "the path is encoded too many times over";
}

const char *path_wrong(slice path) {
    if (path.n == 0) return NULL;
    if (memchr(path.p, '#', path.n)) return "the path has a #";
    struct buf plain = {0};
    buf_slice_add(&plain, path);
    const char *wrong = spelled_wrong(&plain);
    buf_free(&plain);
    return wrong;
}

/* ---- fields */

static bool is_one_of(slice name, const char *const *names) {
    for (; *names; names++)
        if (slice_eq_nocase(name, slice_str(*names))) return true;
    return false;
}

static bool starts_nocase(slice s, slice prefix) {
    return s.n >= prefix.n && slice_eq_nocase(slice_of(s.p, prefix.n), prefix);
}

/* Of one hop alone (RFC 9110, 7.6.1), in either direction. */
static bool is_of_a_hop(slice name) {
    static const char *const names[] = {"connection",        "keep-alive", "te", "trailer",
                                        "transfer-encoding", "upgrade",    NULL};
    return is_one_of(name, names) || starts_nocase(name, SL("proxy-"));
}

/* Is this name in the list of a Connection field? */
static bool is_named(slice list, slice name) {
    slice item;
    while (list.n) {
        slice_cut(list, ',', &item, &list);
        if (slice_eq_nocase(slice_trim(item), name)) return true;
    }
    return false;
}

static bool is_hop_of_request(const struct http_request *req, slice name) {
    for (size_t i = 0; i < req->field_count; i++)
        if (slice_eq_nocase(req->fields[i].name, SL("connection")) && is_named(req->fields[i].value, name)) return true;
    return false;
}

/* The key passes whatever else is said: an upstream that dedups by it must get it. */
static bool passes_on(const struct http_request *req, slice name) {
    static const char *const ours[] = {"host",     "content-length",  "expect",         "range",
                                       "if-range", "accept-encoding", "http2-settings", NULL};
    if (slice_eq_nocase(name, SL("idempotency-key"))) return true;
    if (is_of_a_hop(name) || is_one_of(name, ours) || starts_nocase(name, SL("hapax-"))) return false;
    return !is_hop_of_request(req, name);
}

void request_passes(const struct http_request *req, struct buf *text, const char *lines[PASSED_FIELDS]) {
    size_t at[PASSED_FIELDS], count = 0;
    buf_reset(text);
    for (size_t i = 0; i < req->field_count && count < HTTP_FIELDS_MAX; i++) {
        const struct http_field *f = &req->fields[i];
        if (!passes_on(req, f->name)) continue;
        at[count++] = text->len;
        buf_slice_add(text, f->name);
        buf_lit(text, ": ");
        buf_slice_add(text, f->value);
        buf_char(text, 0);
    }
    at[count++] = text->len;
    buf_lit(text, "Accept-Encoding: identity\0");
    for (size_t i = 0; i < count; i++) lines[i] = text->p + at[i];
    lines[count] = NULL;
}

/* ---- heads of answers */

static bool is_token_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

/* What is no well-formed line could write lines of its own, or end the head. */
static bool line_ok(slice line, slice *name, slice *value) {
    if (!slice_cut(line, ':', name, value) || name->n == 0) return false;
    for (size_t i = 0; i < name->n; i++)
        if (!is_token_char(name->p[i])) return false;
    for (size_t i = 0; i < value->n; i++)
        if (((u8)value->p[i] < 0x20 && value->p[i] != '\t') || value->p[i] == 0x7f) return false;
    return true;
}

/* The next line of a head, without its end. */
static bool next_line(slice *head, slice *line) {
    if (head->n == 0) return false;
    slice_cut(*head, '\n', line, head);
    if (line->n && line->p[line->n - 1] == '\r') line->n--;
    return true;
}

/* What its Connection fields name, with commas between. */
static bool hops_of_answer(slice head, struct buf *hops) {
    slice line, name, value;
    while (next_line(&head, &line)) {
        if (!line_ok(line, &name, &value) || !slice_eq_nocase(name, SL("connection"))) continue;
        buf_slice_add(hops, value);
        buf_char(hops, ',');
        if (hops->len > HOPS_BYTES_MAX) return false;
    }
    return true;
}

static void pass_lines(slice head, slice hops, bool lengths, struct buf *kept, struct buf *once) {
    slice line, name, value;
    while (next_line(&head, &line)) {
        if (!line_ok(line, &name, &value) || is_of_a_hop(name) || is_named(hops, name)) continue;
        if (slice_eq_nocase(name, SL("content-length")) && !lengths) continue;
        struct buf *to = slice_eq_nocase(name, SL("set-cookie")) ? once : kept;
        buf_slice_add(to, line);
        buf_lit(to, "\r\n");
    }
}

bool answer_passes(u32 status, slice head, bool lengths, struct buf *kept, struct buf *once) {
    struct buf hops = {0};
    buf_reset(kept);
    buf_reset(once);
    buf_printf(kept, "%u\r\n", status);
    bool good = status >= 200 && status <= 599 && head.n <= HTTP_HEAD_BYTES_MAX && hops_of_answer(head, &hops);
    if (good) pass_lines(head, buf_slice(&hops), lengths, kept, once);
    buf_free(&hops);
    return good && kept->len <= HTTP_HEAD_BYTES_MAX;
}

bool kept_head(slice kept, u16 *status, slice *lines) {
    slice first;
    u64 n;
    if (!next_line(&kept, &first) || !slice_u64(first, &n) || n < 200 || n > 599) return false;
    *status = (u16)n;
    *lines = kept;
    return true;
}

bool lines_name(slice lines, slice name) {
    slice line, head, value;
    while (next_line(&lines, &line))
        if (slice_cut(line, ':', &head, &value) && slice_eq_nocase(head, name)) return true;
    return false;
}
