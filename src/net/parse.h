/* Strict HTTP/1.1 message parsing, free of I/O so that it can be fuzzed and tested byte by byte. */
#ifndef HAPAX_NET_PARSE_H
#define HAPAX_NET_PARSE_H

#include "net/http.h"

struct http_line { /* of a field, for whoever meets the same bytes again */
    u16 bytes;     /* with its end */
    u8 says;       /* parse.c: which of the fields it is that matter there */
};

struct http_said { /* by the fields of a head */
    bool host, authorization, length, coding, expect, close, keep;
    bool page; /* what a browser says of it */
};

/* What the head says about framing and connection handling. */
struct http_head {
    struct http_request req; /* slices point into the input */
    size_t head_bytes;       /* up to and including the empty line */
    size_t fields_at;        /* behind the request line */
    u64 length;
    bool chunked, keep_alive, expect_continue, http11;
    bool absolute; /* its target is a whole URL */
    struct http_said said;
    u16 told, told_bytes; /* its lines up to the last of those that said it */
    struct http_line lines[HTTP_FIELDS_MAX];
    struct http_field fields[HTTP_FIELDS_MAX];
};

enum http_parse { HTTP_PARSE_OK, HTTP_PARSE_MORE, HTTP_PARSE_BAD };

struct http_parse_error {
    u16 status;         /* 400, 414, 417, 431, 501, 505 */
    const char *detail; /* static text */
};

/* Parse a request head at the start of `in`. Any framing doubt is BAD; the caller answers and closes. */
enum http_parse http_parse_head(slice in, struct http_head *out, struct http_parse_error *error);
/* The same verdict and the same head, sooner where it has lines of a head that was parsed before: `former`, whose bytes, still there,
 * start at `from`. NULL: of none. */
enum http_parse http_parse_next(slice in, const char *from, const struct http_head *former, struct http_head *out,
                                struct http_parse_error *error);

/* Incremental chunked decoding. */
struct http_chunked {
    int state;
    u64 left, total;
    u32 line_bytes;
    char name[18]; /* start of the trailer field's name being read: enough to tell every forbidden one */
    u8 name_bytes;
};
void http_chunked_init(struct http_chunked *c);
/* Consumes from `in`, appends data to `out` (refuses beyond limit: 413). *used says how many bytes were consumed.
 * OK: the last chunk and its trailer section have been read. */
enum http_parse http_chunked_feed(struct http_chunked *c, slice in, size_t *used, u64 limit, struct buf *out,
                                  struct http_parse_error *error);

#endif
