#include "net/server_priv.h"

#include <stdio.h>

#define STATUS_LINES(X)                                                                                                \
    X(200, "OK")                                                                                                       \
    X(201, "Created")                                                                                                  \
    X(202, "Accepted")                                                                                                 \
    X(203, "Non-Authoritative Information")                                                                            \
    X(204, "No Content")                                                                                               \
    X(206, "Partial Content")                                                                                          \
    X(300, "Multiple Choices")                                                                                         \
    X(301, "Moved Permanently")                                                                                        \
    X(302, "Found")                                                                                                    \
    X(303, "See Other")                                                                                                \
    X(304, "Not Modified")                                                                                             \
    X(307, "Temporary Redirect")                                                                                       \
    X(308, "Permanent Redirect")                                                                                       \
    X(400, "Bad Request")                                                                                              \
    X(401, "Unauthorized")                                                                                             \
    X(402, "Payment Required")                                                                                         \
    X(403, "Forbidden")                                                                                                \
    X(404, "Not Found")                                                                                                \
    X(405, "Method Not Allowed")                                                                                       \
    X(406, "Not Acceptable")                                                                                           \
    X(408, "Request Timeout")                                                                                          \
    X(409, "Conflict")                                                                                                 \
    X(410, "Gone")                                                                                                     \
    X(411, "Length Required")                                                                                          \
    X(412, "Precondition Failed")                                                                                      \
    X(413, "Content Too Large")                                                                                        \
    X(414, "URI Too Long")                                                                                             \
    X(415, "Unsupported Media Type")                                                                                   \
    X(417, "Expectation Failed")                                                                                       \
    X(421, "Misdirected Request")                                                                                      \
    X(422, "Unprocessable Content")                                                                                    \
    X(425, "Too Early")                                                                                                \
    X(428, "Precondition Required")                                                                                    \
    X(429, "Too Many Requests")                                                                                        \
    X(431, "Request Header Fields Too Large")                                                                          \
    X(500, "Internal Server Error")                                                                                    \
    X(501, "Not Implemented")                                                                                          \
    X(502, "Bad Gateway")                                                                                              \
    X(503, "Service Unavailable")                                                                                      \
    X(504, "Gateway Timeout")                                                                                          \
    X(505, "HTTP Version Not Supported")                                                                               \
    X(507, "Insufficient Storage")

#define STATUS_SLICE(number, text) [number - 200] = SL("HTTP/1.1 " #number " " text "\r\n"),
static const slice status_lines[400] = {STATUS_LINES(STATUS_SLICE)};
#undef STATUS_SLICE

#define HEAD_BYTES 192u /* of a reply's head at most, beside its content type and its further fields */

static inline char *put(char *to, slice s) {
    if (s.n) memcpy(to, s.p, s.n);
    return to + s.n;
}

static char *put_status(char *to, u16 status) {
    CHECK(status >= 200 && status < 600);
    slice line = status_lines[status - 200];
    return line.n ? put(to, line) : to + snprintf(to, 32, "HTTP/1.1 %u Other\r\n", (unsigned)status);
}

/* A stored content type comes from a user: it must not be able to write header lines of its own. */
static char *put_content_type(char *to, slice type) {
    if (slice_eq(type, SL("application/json"))) return put(to, SL("Content-Type: application/json\r\n")); /* mostly */
    if (type.n == 0) return to;
    if (has_control(type)) type = SL("application/octet-stream");
    to = put(to, SL("Content-Type: "));
    to = put(to, type);
    return put(to, SL("\r\n"));
}

bool http_reply_bodiless(const struct http_reply *reply) {
    return reply->status == 204 || reply->status == 304;
}

/* At the end of `b`, where there is room for all of it and `more` then. Returns where it ends. */
static char *put_head(struct buf *b, const struct http_reply *reply, slice connection, size_t more) {
    buf_grow(b, HEAD_BYTES + reply->content_type.n + reply->fields.n + more);
    char *to = put_status(b->p + b->len, reply->status);
    to = put_content_type(to, reply->content_type);
    to = put(to, reply->fields);
    return put(to, connection);
}

static char *put_length(struct buf *b, char *to, u64 length) {
    b->len = (size_t)(put(to, SL("Content-Length: ")) - b->p);
    buf_dec(b, length);
    return put(b->p + b->len, SL("\r\n"));
}

void http_reply_put(struct buf *b, const struct http_reply *reply, slice connection, bool with_body) {
    bool bodiless = http_reply_bodiless(reply);
    slice body = with_body && !bodiless ? reply->body : SL("");
    char *to = put_head(b, reply, connection, body.n);
    if (!bodiless && !(reply->length_said && !with_body)) to = put_length(b, to, reply->body.n);
    to = put(put(to, SL("\r\n")), body);
    b->len = (size_t)(to - b->p);
}

void http_reply_put_feed(struct buf *b, const struct http_reply *reply, slice connection, bool chunked) {
    CHECK(!http_reply_bodiless(reply) && reply->body.n == 0);
    char *to = put_head(b, reply, connection, 0);
    if (chunked) to = put(to, SL("Transfer-Encoding: chunked\r\n"));
    b->len = (size_t)(put(to, SL("\r\n")) - b->p);
}

static const char *error_code(u16 status) {
    switch (status) {
    case 408:
        return "timeout";
    case 413:
        return "too_large";
    case 414:
        return "target_too_long";
    case 417:
        return "expectation_failed";
    case 429:
        return "rate_limited";
    case 431:
        return "head_too_large";
    case 501:
        return "not_implemented";
    case 503:
        return "overloaded";
    case 505:
        return "version_not_supported";
    default:
        return "bad_request";
    }
}

struct http_reply http_reply_error(struct http_server *s, u16 status, const char *detail) {
    buf_reset(&s->error_body);
    s->handler.render_error(s->handler.ctx, status, error_code(status), detail, &s->error_body);
    slice retry = {0};
    if (status == 429 || status == 503)
        retry = slice_of(s->retry_line,
                         (size_t)snprintf(s->retry_line, sizeof s->retry_line, "Retry-After: %u\r\n", http_retry_s(s)));
    return (struct http_reply){.status = status,
                               .content_type = SL("application/problem+json"),
                               .fields = retry,
                               .body = buf_slice(&s->error_body),
                               .close = true};
}
