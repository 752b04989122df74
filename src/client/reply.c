/* Replies, strictly: what a proxy or a stranger on the port might say is refused rather than guessed at, because a
 * reply misread is an acknowledgement invented. A body needs a length or chunks; "until the connection closes" is
 * refused: it cannot be told from a broken connection. */
#include "client/client_priv.h"

void reply_free(struct reply *r) {
    buf_free(&r->body);
    *r = (struct reply){0};
}

size_t reply_head_length(slice bytes) {
    const char *p = bytes.n ? memmem(bytes.p, bytes.n, "\r\n\r\n", 4) : NULL;
    return p ? (size_t)(p - bytes.p) + 4 : 0;
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool status_line(slice line, struct reply *out) {
    const slice version = SL("HTTP/1.1 ");
    if (!slice_starts(line, version) || line.n < version.n + 3) return false;
    const char *d = line.p + version.n;
    if (!is_digit(d[0]) || !is_digit(d[1]) || !is_digit(d[2])) return false;
    if (line.n > version.n + 3 && d[3] != ' ') return false;
    out->status = (d[0] - '0') * 100 + (d[1] - '0') * 10 + (d[2] - '0');
    return out->status >= 100 && out->status <= 599;
}

static bool name_ok(slice name) {
    if (name.n == 0) return false;
    for (size_t i = 0; i < name.n; i++)
        if ((u8)name.p[i] <= ' ' || (u8)name.p[i] >= 0x7f || name.p[i] == ':') return false;
    return true;
}

static bool copy_value(char *to, size_t size, slice value) {
    if (value.n >= size) return false;
    if (value.n) memcpy(to, value.p, value.n);
    to[value.n] = '\0';
    return true;
}

static bool field(slice name, slice value, struct reply *out) {
    if (slice_eq_nocase(name, SL("content-length"))) {
        if (out->has_length) return false;
        out->has_length = true;
        return slice_u64(value, &out->length);
    }
    if (slice_eq_nocase(name, SL("transfer-encoding"))) {
        if (out->chunked) return false;
        out->chunked = true;
        return slice_eq_nocase(value, SL("chunked"));
    }
    if (slice_eq_nocase(name, SL("connection"))) {
        if (slice_eq_nocase(value, SL("close"))) out->close = true;
        return true;
    }
    if (slice_eq_nocase(name, SL("content-type")))
        return copy_value(out->content_type, sizeof(out->content_type), value);
    if (slice_eq_nocase(name, SL("etag"))) return copy_value(out->etag, sizeof(out->etag), value);
    if (slice_eq_nocase(name, SL("hapax-state"))) return copy_value(out->state, sizeof(out->state), value);
    if (slice_eq_nocase(name, SL("retry-after"))) {
        u64 seconds;
        /* The date form is legal but not worth a parser: the caller's own backoff serves. */
        if (slice_u64(value, &seconds) && seconds < 86400) out->retry_after_ms = (i64)seconds * 1000;
    }
    return true;
}

static bool header_line(slice line, struct reply *out) {
    slice name, value;
    if (!slice_cut(line, ':', &name, &value) || !name_ok(name)) return false;
    value = slice_trim(value);
    for (size_t i = 0; i < value.n; i++)
        if (((u8)value.p[i] < ' ' && value.p[i] != '\t') || value.p[i] == 0x7f) return false;
    return field(name, value, out);
}

/* Up to CRLF. A bare CR or LF inside is left in the line, where the checks above refuse it. */
static slice next_line(slice *rest) {
    const char *end = memmem(rest->p, rest->n, "\r\n", 2);
    size_t n = end ? (size_t)(end - rest->p) : rest->n;
    slice line = slice_of(rest->p, n);
    size_t skip = end ? n + 2 : n;
    *rest = slice_of(rest->p + skip, rest->n - skip);
    return line;
}

bool reply_head_parse(slice head, struct reply *out, struct errbuf *err) {
    struct buf body = out->body;
    *out = (struct reply){.body = body};
    slice rest = slice_of(head.p, head.n - 2); /* without the empty line */
    if (!status_line(next_line(&rest), out)) return err_set(err, ST_INVALID, "the answer is not HTTP/1.1"), false;
    while (rest.n)
        if (!header_line(next_line(&rest), out))
            return err_set(err, ST_INVALID, "the answer has a malformed header"), false;
    if (out->chunked && out->has_length) return err_set(err, ST_INVALID, "the answer has two lengths"), false;
    bool no_body = out->status < 200 || out->status == 204 || out->status == 304;
    if (no_body) {
        if (out->chunked || out->length) return err_set(err, ST_INVALID, "a %d answer has a body", out->status), false;
        out->has_length = true;
    }
    if (!out->has_length && !out->chunked)
        return err_set(err, ST_INVALID, "the answer does not say how long it is"), false;
    return true;
}

enum { AT_SIZE, AT_EXTENSION, AT_SIZE_LF, AT_DATA, AT_DATA_CR, AT_DATA_LF, AT_TRAILER, AT_TRAILER_LF, AT_END_LF };
enum { CHUNK_LINE_MAX = 4096 };

static int hex_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

static bool size_byte(struct chunks *c, char ch) {
    int v = hex_value(ch);
    if (v >= 0) {
        if (c->line >= 15) return false;
        c->left = c->left * 16 + (u64)v;
        c->line++;
        return true;
    }
    if (c->line == 0) return false;
    if (ch == '\r')
        c->state = AT_SIZE_LF;
    else if (ch == ';')
        c->state = AT_EXTENSION;
    else
        return false;
    return true;
}

/* A byte of framing: everything but chunk data. false: refused. */
static bool frame_byte(struct chunks *c, char ch, bool *done) {
    switch (c->state) {
    case AT_SIZE:
        return size_byte(c, ch);
    case AT_EXTENSION:
        if (ch == '\r') c->state = AT_SIZE_LF;
        return ch != '\n' && ++c->line < CHUNK_LINE_MAX;
    case AT_SIZE_LF:
        c->state = c->left ? AT_DATA : AT_TRAILER;
        c->line = 0;
        return ch == '\n';
    case AT_DATA_CR:
        c->state = AT_DATA_LF;
        return ch == '\r';
    case AT_DATA_LF:
        c->state = AT_SIZE;
        return ch == '\n';
    case AT_TRAILER:
        if (ch == '\r') c->state = c->line ? AT_TRAILER_LF : AT_END_LF;
        return ch != '\n' && ++c->line < CHUNK_LINE_MAX;
    case AT_TRAILER_LF:
        c->state = AT_TRAILER;
        c->line = 0;
        return ch == '\n';
    default:
        *done = true;
        return ch == '\n';
    }
}

enum chunks_result chunks_feed(struct chunks *c, slice *in, struct buf *out, size_t body_max) {
    bool done = false;
    while (in->n && !done) {
        if (c->state == AT_DATA) {
            size_t n = c->left < in->n ? (size_t)c->left : in->n;
            if (n > body_max - out->len) return CHUNKS_BAD;
            buf_add(out, in->p, n);
            *in = slice_of(in->p + n, in->n - n);
            c->left -= n;
            if (c->left == 0) c->state = AT_DATA_CR;
            continue;
        }
        if (!frame_byte(c, in->p[0], &done)) return CHUNKS_BAD;
        *in = slice_of(in->p + 1, in->n - 1);
    }
    return done ? CHUNKS_DONE : CHUNKS_MORE;
}
