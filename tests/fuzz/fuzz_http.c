/* libFuzzer: a stream of requests, judged whole and judged in pieces, must come to the same. The first byte seeds where
 * the stream is cut; the rest is the stream. */
#include "net/parse.h"

#include <stdio.h>
#include <stdlib.h>

#define BODY_LIMIT 4096u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct stream {
    struct buf in, body;
    struct buf former; /* the last head's bytes */
    bool in_body;
    struct http_head head, former_head, next_head;
    struct http_chunked chunked;
    struct http_parse_error error;
    u64 digest;
    size_t requests;
    bool refused;
};

static void note(struct stream *s, slice text) {
    static const struct siphash_key key = {3, 4};
    s->digest = s->digest * 31 + siphash(&key, text.p, text.n);
}

static void note_request(struct stream *s, const struct http_head *h, slice body) {
    note(s, h->req.path);
    note(s, h->req.query);
    for (size_t i = 0; i < h->req.field_count; i++) {
        note(s, h->fields[i].name);
        note(s, h->fields[i].value);
        CHECK(h->fields[i].name.n > 0 && !has_control(h->fields[i].name));
        CHECK(memchr(h->fields[i].value.p, '\n', h->fields[i].value.n) == NULL);
    }
    note(s, body);
    s->digest += (u64)h->req.method * 16 + h->keep_alive * 8u + h->expect_continue * 4u + h->chunked * 2u;
    s->requests++;

    struct buf scratch = {0};
    slice value;
    bool bad = false;
    http_query_get(&h->req, SL("a"), &scratch, &value, &bad);
    buf_free(&scratch);
}

static void drop_front(struct stream *s, size_t n) {
    memmove(s->in.p, s->in.p + n, s->in.len - n);
    s->in.len -= n;
}

static enum http_parse refuse_large(struct stream *s) {
    s->error.status = 413;
    return HTTP_PARSE_BAD;
}

/* The head stays at the front of `in` until its body is whole, as in the server. */
static enum http_parse body_step(struct stream *s) {
    size_t start = s->head.head_bytes, used = 0;
    slice rest = slice_of(s->in.p + start, s->in.len - start);
    enum http_parse got = HTTP_PARSE_OK;
    if (s->head.chunked) {
        got = http_chunked_feed(&s->chunked, rest, &used, BODY_LIMIT, &s->body, &s->error);
        CHECK(s->body.len <= BODY_LIMIT && used <= rest.n);
        if (got == HTTP_PARSE_MORE) s->in.len = start;
    } else if (s->head.length > BODY_LIMIT) {
        got = refuse_large(s);
    } else if (rest.n < s->head.length) {
        got = HTTP_PARSE_MORE;
    } else {
        used = (size_t)s->head.length;
        buf_add(&s->body, rest.p, used);
    }
    if (got != HTTP_PARSE_OK) return got;
    CHECK(http_parse_head(slice_of(s->in.p, start), &s->head, &s->error) == HTTP_PARSE_OK);
    CHECK(s->head.head_bytes == start);
    note_request(s, &s->head, buf_slice(&s->body));
    drop_front(s, start + used);
    s->in_body = false;
    return HTTP_PARSE_OK;
}

/* What came before must not matter. */
static enum http_parse parse_head(struct stream *s) {
    struct http_parse_error error = {0};
    enum http_parse got = http_parse_head(buf_slice(&s->in), &s->head, &s->error);
    if (s->former.len == 0) return got;
    struct http_head *next = &s->next_head;
    CHECK(http_parse_next(buf_slice(&s->in), s->former.p, &s->former_head, next, &error) == got);
    if (got == HTTP_PARSE_BAD) CHECK(error.status == s->error.status);
    if (got != HTTP_PARSE_OK) return got;
    CHECK(next->head_bytes == s->head.head_bytes && next->length == s->head.length && next->chunked == s->head.chunked);
    CHECK(next->keep_alive == s->head.keep_alive && next->req.field_count == s->head.req.field_count);
    CHECK(slice_eq(next->req.path, s->head.req.path) && slice_eq(next->req.host, s->head.req.host));
    CHECK(slice_eq(next->req.authorization, s->head.req.authorization) &&
          slice_eq(next->req.origin, s->head.req.origin) && memcmp(&next->said, &s->head.said, sizeof next->said) == 0);
    for (size_t i = 0; i < next->req.field_count; i++)
        CHECK(slice_eq(next->fields[i].name, s->head.fields[i].name) &&
              slice_eq(next->fields[i].value, s->head.fields[i].value));
    return got;
}

static void keep_former(struct stream *s) {
    buf_reset(&s->former);
    buf_add(&s->former, s->in.p, s->head.head_bytes);
    CHECK(http_parse_head(buf_slice(&s->former), &s->former_head, &s->error) == HTTP_PARSE_OK);
}

static enum http_parse step(struct stream *s) {
    if (s->in_body) return body_step(s);
    if (s->in.len == 0) return HTTP_PARSE_MORE;
    enum http_parse got = parse_head(s);
    if (got != HTTP_PARSE_OK) return got;
    keep_former(s);
    CHECK(s->head.head_bytes <= s->in.len && s->head.head_bytes <= 2 + HTTP_LINE_MAX + 2 + HTTP_HEAD_MAX);
    CHECK(s->head.req.path.n > 0 && s->head.req.path.p[0] == '/');
    s->in_body = true;
    buf_reset(&s->body);
    http_chunked_init(&s->chunked);
    return HTTP_PARSE_OK;
}

static void feed(struct stream *s, slice piece) {
    if (s->refused) return;
    buf_slice_add(&s->in, piece);
    enum http_parse got = HTTP_PARSE_OK;
    while (got == HTTP_PARSE_OK) got = step(s);
    s->refused = got == HTTP_PARSE_BAD;
}

static void finish(struct stream *s) {
    buf_free(&s->in);
    buf_free(&s->former);
    buf_free(&s->body);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct stream whole, pieces;
    if (size == 0) return 0;
    slice in = slice_of(data + 1, size - 1);
    whole = pieces = (struct stream){0};
    feed(&whole, in);

    struct rng rng;
    rng_seed(&rng, data[0]);
    u64 longest = 1 + rng_below(&rng, 64);
    for (size_t at = 0; at < in.n;) {
        size_t n = (size_t)(1 + rng_below(&rng, longest));
        if (n > in.n - at) n = in.n - at;
        feed(&pieces, slice_of(in.p + at, n));
        at += n;
    }
    CHECK(whole.refused == pieces.refused);
    CHECK(whole.requests == pieces.requests);
    CHECK(whole.digest == pieces.digest);
    if (whole.refused) CHECK(whole.error.status == pieces.error.status);
    finish(&whole);
    finish(&pieces);
    return 0;
}
