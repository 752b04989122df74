#include "net/parse.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "http_corpus.h"

/* What reading a stream of requests comes to: how many were whole, then MORE (an end in the middle or exactly behind
 * the last one) or a refusal. */
struct verdict {
    enum http_parse got;
    u16 status;
    size_t requests, used;
    u64 digest; /* of everything the requests said */
};

static const struct siphash_key digest_key = {1, 2};

static void digest_add(struct verdict *v, slice s) {
    v->digest = v->digest * 31 + siphash(&digest_key, s.p, s.n);
}

static void digest_request(struct verdict *v, const struct http_head *head, slice body) {
    digest_add(v, head->req.path);
    digest_add(v, head->req.query);
    for (size_t i = 0; i < head->req.field_count; i++) {
        digest_add(v, head->fields[i].name);
        digest_add(v, head->fields[i].value);
    }
    digest_add(v, body);
    v->digest = v->digest * 31 + (u64)head->req.method * 8 + head->keep_alive * 4u + head->expect_continue * 2u;
}

static enum http_parse read_body(slice in, struct http_head *head, struct buf *body, size_t *used,
                                 struct http_parse_error *error) {
    if (head->chunked) {
        struct http_chunked c;
        http_chunked_init(&c);
        return http_chunked_feed(&c, in, used, HTTP_CORPUS_LIMIT, body, error);
    }
    if (head->length > HTTP_CORPUS_LIMIT) {
        error->status = 413;
        return HTTP_PARSE_BAD;
    }
    if (in.n < head->length) return HTTP_PARSE_MORE;
    *used = (size_t)head->length;
    buf_add(body, in.p, *used);
    return HTTP_PARSE_OK;
}

static struct verdict read_all(slice in) {
    struct verdict v = {.got = HTTP_PARSE_OK};
    struct http_head head;
    struct buf body = {0};
    while (v.got == HTTP_PARSE_OK && v.used < in.n) {
        struct http_parse_error error = {0};
        size_t body_used = 0;
        buf_reset(&body);
        slice rest = slice_of(in.p + v.used, in.n - v.used);
        v.got = http_parse_head(rest, &head, &error);
        if (v.got == HTTP_PARSE_OK)
            v.got = read_body(slice_of(rest.p + head.head_bytes, rest.n - head.head_bytes), &head, &body, &body_used,
                              &error);
        v.status = error.status;
        if (v.got != HTTP_PARSE_OK) break;
        digest_request(&v, &head, buf_slice(&body));
        v.requests++;
        v.used += head.head_bytes + body_used;
    }
    buf_free(&body);
    return v;
}

static void every_case_of_the_framing_corpus_is_judged_as_written(void **state) {
    (void)state;
    size_t wrong = 0;
    for (size_t i = 0; i < HTTP_CORPUS_COUNT; i++) {
        const struct http_case *c = &http_corpus[i];
        struct verdict v = read_all(c->bytes);
        bool right = c->status ? v.got == HTTP_PARSE_BAD && v.status == c->status
                               : v.got == HTTP_PARSE_OK && v.requests && v.used == c->bytes.n;
        if (right) continue;
        print_error("%s: wanted %d, got verdict %d status %u\n", c->name, c->status, (int)v.got, v.status);
        wrong++;
    }
    assert_int_equal(wrong, 0);
    assert_true(HTTP_CORPUS_COUNT >= 150);
}

/* A prefix either wants more or already says what the whole says; so no cut of the stream can change the verdict. */
static void every_prefix_wants_more_or_gives_the_verdict_of_the_whole(void **state) {
    (void)state;
    for (size_t i = 0; i < HTTP_CORPUS_COUNT; i++) {
        const struct http_case *c = &http_corpus[i];
        for (size_t n = 0; n < c->bytes.n; n++) {
            char *copy = mem_alloc(n + 1); /* its own allocation: reading past the end is seen by the sanitizer */
            memcpy(copy, c->bytes.p, n);
            struct verdict v = read_all(slice_of(copy, n));
            if (v.got == HTTP_PARSE_BAD && v.status != c->status)
                fail_msg("%s: %zu bytes give %u instead of %d", c->name, n, v.status, c->status);
            mem_free(copy);
        }
    }
}

/* ---- heads that begin alike */

static bool same_slice(slice a, slice b) {
    return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}

static bool within(slice s, slice in) {
    return s.n == 0 || (s.p >= in.p && s.p + s.n <= in.p + in.n) || slice_eq(s, SL("/")) || slice_eq(s, SL("null")) ||
           slice_eq(s, SL("cross-site")) || slice_eq(s, SL("no-cors"));
}

static void assert_same_head(slice in, const struct http_head *a, const struct http_head *b) {
    const struct http_request *x = &a->req, *y = &b->req;
    const slice own[] = {x->path, x->query, x->host, x->origin, x->fetch_site, x->fetch_mode, x->authorization},
                other[] = {y->path, y->query, y->host, y->origin, y->fetch_site, y->fetch_mode, y->authorization};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        assert_true(same_slice(own[i], other[i]) && within(own[i], in));
    assert_int_equal(x->method, y->method);
    assert_int_equal(x->field_count, y->field_count);
    for (size_t i = 0; i < x->field_count; i++) {
        assert_true(same_slice(a->fields[i].name, b->fields[i].name) && within(a->fields[i].name, in));
        assert_true(same_slice(a->fields[i].value, b->fields[i].value) && within(a->fields[i].value, in));
    }
    assert_true(x->chunked == y->chunked && x->body_length == y->body_length);
    assert_true(a->head_bytes == b->head_bytes && a->fields_at == b->fields_at && a->absolute == b->absolute);
    assert_true(a->said.length == b->said.length && a->length == b->length && a->chunked == b->chunked);
    assert_true(a->keep_alive == b->keep_alive && a->expect_continue == b->expect_continue && a->http11 == b->http11);
}

/* True if it was read after `former`, which was read by itself. */
static bool judge_after(slice former, slice in) {
    static struct http_head first, alone, next;
    struct http_parse_error error = {0}, other = {0};
    if (http_parse_head(former, &first, &error) != HTTP_PARSE_OK) return false;
    enum http_parse want = http_parse_head(in, &alone, &error);
    error = want == HTTP_PARSE_BAD ? error : (struct http_parse_error){0};
    assert_int_equal(http_parse_next(in, former.p, &first, &next, &other), want);
    assert_int_equal(other.status, error.status);
    if (want == HTTP_PARSE_OK) assert_same_head(in, &next, &alone);
    return true;
}

static void a_head_is_judged_the_same_whatever_was_read_before_it(void **state) {
    (void)state;
    size_t judged = 0;
    for (size_t i = 0; i < HTTP_CORPUS_COUNT; i++)
        for (size_t j = 0; j < HTTP_CORPUS_COUNT; j++)
            judged += judge_after(http_corpus[i].bytes, http_corpus[j].bytes);
    assert_true(judged > 1000);
}

/* Each byte of it is another one, is missing or is the last: a head like the one before, up to there. */
static void a_head_that_begins_like_the_one_before_is_judged_by_its_own_bytes(void **state) {
    (void)state;
    static const slice heads[] = {
        SL("POST /v1/queues/o/messages?a=b HTTP/1.1\r\nHost: a:1\r\nContent-Type: text/plain\r\nOrigin: http://a:1\r\n"
           "Content-Length: 4\r\nIdempotency-Key:  k-1 \r\nSec-Fetch-Site: same-origin\r\nAuthorization: Bearer "
           "x\r\n\r\n"),
        SL("\r\nPUT http://a/b HTTP/1.0\r\nConnection: close, x\r\nX:\r\nTransfer-Encodin: chunked\r\n\r\n"),
        SL("GET / HTTP/1.1\r\nIdempotency-Key: k\r\nHost: b\r\nTransfer-Encoding: chunked\r\nExpect: "
           "100-continue\r\n\r\n"),
    };
    static const char others[] = "\r\n :aZ9,\x01\xff";
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        slice h = heads[i];
        for (size_t at = 0; at < h.n; at++) {
            char *copy = mem_alloc(h.n); /* its own allocation: reading past the end is seen by the sanitizer */
            memcpy(copy, h.p, h.n);
            for (size_t k = 0; k < sizeof others; k++) {
                copy[at] = others[k];
                assert_true(judge_after(h, slice_of(copy, h.n)));
            }
            memcpy(copy, h.p, at);
            memcpy(copy + at, h.p + at + 1, h.n - at - 1);
            assert_true(judge_after(h, slice_of(copy, h.n - 1)));
            mem_free(copy);
            char *cut = mem_alloc(at + 1);
            memcpy(cut, h.p, at);
            assert_true(judge_after(h, slice_of(cut, at)));
            mem_free(cut);
        }
        assert_true(judge_after(h, h));
    }
}

/* Lines of the head before at their places, and beside them one that makes something else of the whole. */
static void what_a_repeated_line_says_counts_as_if_it_were_new(void **state) {
    (void)state;
    static const slice former = SL("POST /a HTTP/1.1\r\nHost: a\r\nX: 1\r\nContent-Length: 4\r\nOrigin: b\r\n\r\n");
    static const struct {
        slice in;
        u16 status; /* 0: it is taken */
    } heads[] = {
        {SL("POST /b?c HTTP/1.1\r\nHost: a\r\nX: 2\r\nContent-Length: 4\r\nOrigin: b\r\n\r\n"), 0},
        {SL("POST /a HTTP/1.1\r\nHost: a\r\nY: 12345678\r\nContent-Length: 4\r\nOrigin: \r\n\r\n"), 0},
        {SL("POST /a HTTP/1.0\r\nX: 1\r\nX: 1\r\nContent-Length: 44\r\n\r\n"), 0},
        {SL("POST /a HTTP/1.1\r\nHost: a\r\nOrigin: c\r\nContent-Length: 4\r\nOrigin: b\r\n\r\n"), 0},
        {SL("POST /a HTTP/1.1\r\nHost: a\r\nHost: a\r\nContent-Length: 4\r\n\r\n"), 400},
        {SL("POST /a HTTP/1.1\r\nX: 1\r\nX: 1\r\nContent-Length: 4\r\n\r\n"), 400},
        {SL("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 4\r\n\r\n"), 400},
        {SL("POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n"), 400},
        {SL("POST /a HTTP/1.1\r\nHost: a\r\nX: 1\r\nContent-Length: 4x\r\nOrigin: b\r\n\r\n"), 400},
        {SL("POST /a HTTP/1.1\r\nHost: a\r\nX: 1\r\nContent-Length : 4\r\nOrigin: b\r\n\r\n"), 400},
        {SL("POST /a HTTP/1.1\r\nHost: a\r\nX: 1\r\nContent-Length: 4\r\nOrigin: b\n\r\n\r\n"), 400},
    };
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        static struct http_head alone;
        struct http_parse_error error = {0};
        enum http_parse got = http_parse_head(heads[i].in, &alone, &error);
        assert_int_equal(got == HTTP_PARSE_BAD ? error.status : 0, heads[i].status);
        assert_true(judge_after(former, heads[i].in));
    }
}

static void chunks_cut_anywhere_decode_to_the_same_bytes(void **state) {
    (void)state;
    static const slice in = SL("5\r\nhello\r\n1;x=\"y\"\r\n \r\n00005\r\nworld\r\n0\r\nA: b\r\nC:\r\n\r\nNEXT");
    size_t whole = in.n - 4;
    for (size_t a = 0; a <= whole; a++) {
        for (size_t b = a; b <= whole; b++) {
            struct http_chunked c;
            struct buf out = {0};
            struct http_parse_error error;
            size_t cuts[] = {0, a, b, in.n}, total = 0;
            enum http_parse got = HTTP_PARSE_MORE;
            http_chunked_init(&c);
            for (int i = 0; i < 3 && got == HTTP_PARSE_MORE; i++) {
                size_t used = 0;
                got = http_chunked_feed(&c, slice_of(in.p + cuts[i], cuts[i + 1] - cuts[i]), &used, 100, &out, &error);
                total += used;
            }
            assert_int_equal(got, HTTP_PARSE_OK);
            assert_int_equal(total, whole);
            assert_true(slice_eq(buf_slice(&out), SL("hello world")));
            buf_free(&out);
        }
    }
}

static void a_chunked_body_may_be_exactly_as_large_as_the_limit(void **state) {
    (void)state;
    for (u64 limit = 9; limit <= 11; limit++) {
        struct http_chunked c;
        struct buf out = {0};
        struct http_parse_error error = {0};
        size_t used;
        http_chunked_init(&c);
        enum http_parse got =
            http_chunked_feed(&c, SL("5\r\nhello\r\n5\r\nworld\r\n0\r\n\r\n"), &used, limit, &out, &error);
        assert_int_equal(got, limit < 10 ? HTTP_PARSE_BAD : HTTP_PARSE_OK);
        if (limit < 10) assert_int_equal(error.status, 413);
        buf_free(&out);
    }
}

static void a_request_is_taken_apart_into_its_pieces(void **state) {
    (void)state;
    struct http_head h;
    struct http_parse_error error;
    slice in = SL("PUT /v1/queues/q%2F1/x?max=3&wait=2s HTTP/1.1\r\nHost: a\r\nX-One: 1\r\nx-one: \t two words \t\r\n"
                  "Content-Length: 3\r\n\r\nabc");
    assert_int_equal(http_parse_head(in, &h, &error), HTTP_PARSE_OK);
    assert_int_equal(h.req.method, HTTP_PUT);
    assert_true(slice_eq(h.req.path, SL("/v1/queues/q%2F1/x")));
    assert_true(slice_eq(h.req.query, SL("max=3&wait=2s")));
    assert_int_equal(h.req.field_count, 4);
    assert_true(slice_eq(h.fields[2].name, SL("x-one")));
    assert_true(slice_eq(h.fields[2].value, SL("two words")));
    assert_true(h.said.length && !h.chunked && h.keep_alive && !h.expect_continue && h.http11);
    assert_int_equal(h.length, 3);
    assert_int_equal(h.req.body_length, 3);
    assert_int_equal(h.head_bytes, in.n - 3);
    slice value;
    assert_int_equal(http_field_get(&h.req, SL("X-ONE"), &value), 2);
    assert_true(slice_eq(value, SL("1")));
    assert_int_equal(http_field_get(&h.req, SL("X-Two"), &value), 0);
}

static void a_control_byte_in_a_value_is_refused_wherever_it_stands(void **state) {
    (void)state;
    static struct http_head head;
    struct http_parse_error error;
    char text[128];
    for (unsigned byte = 0; byte < 256; byte++) {
        for (int n = 1; n <= 36; n++) {
            for (int at = 0; at < n; at++) {
                int start = snprintf(text, sizeof text, "GET / HTTP/1.1\r\nHost: h\r\nX:");
                memset(text + start, 'v', (size_t)n);
                text[start + at] = (char)byte;
                memcpy(text + start + n, "\r\n\r\n", 4);
                bool allowed = (byte >= 0x20 && byte != 0x7f) || byte == '\t';
                enum http_parse got = http_parse_head(slice_of(text, (size_t)start + (size_t)n + 4), &head, &error);
                assert_int_equal(got, allowed ? HTTP_PARSE_OK : HTTP_PARSE_BAD);
            }
        }
    }
}

static void every_method_is_recognised_and_others_are_other(void **state) {
    (void)state;
    static const struct {
        const char *text;
        enum http_method method;
    } methods[] = {{"GET", HTTP_GET},       {"HEAD", HTTP_HEAD},   {"POST", HTTP_POST},       {"PUT", HTTP_PUT},
                   {"DELETE", HTTP_DELETE}, {"PATCH", HTTP_PATCH}, {"OPTIONS", HTTP_OPTIONS}, {"TRACE", HTTP_OTHER},
                   {"get", HTTP_OTHER},     {"GETS", HTTP_OTHER},  {"PUTT", HTTP_OTHER},      {"DELETES", HTTP_OTHER},
                   {"DELETD", HTTP_OTHER},  {"GE", HTTP_OTHER},    {"PAT", HTTP_OTHER}};
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        struct buf b = {0};
        struct http_head h;
        struct http_parse_error error;
        buf_printf(&b, "%s / HTTP/1.1\r\nHost: a\r\n\r\n", methods[i].text);
        assert_int_equal(http_parse_head(buf_slice(&b), &h, &error), HTTP_PARSE_OK);
        assert_int_equal(h.req.method, methods[i].method);
        buf_free(&b);
    }
}

static void the_connection_stays_or_closes_as_version_and_field_say(void **state) {
    (void)state;
    static const struct {
        slice head;
        bool keep;
    } cases[] = {
        {SL("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), true},
        {SL("GET / HTTP/1.0\r\n\r\n"), false},
        {SL("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n"), true},
        {SL("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"), false},
        {SL("GET / HTTP/1.1\r\nHost: a\r\nConnection: x , CLOSE\r\n\r\n"), false},
        {SL("GET / HTTP/1.1\r\nHost: a\r\nConnection: x\r\nConnection: close\r\n\r\n"), false},
        {SL("GET / HTTP/1.1\r\nHost: a\r\nConnection: closed\r\n\r\n"), true},
        {SL("GET / HTTP/1.0\r\nConnection: keep-alive, close\r\n\r\n"), false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct http_head h;
        struct http_parse_error error;
        assert_int_equal(http_parse_head(cases[i].head, &h, &error), HTTP_PARSE_OK);
        assert_int_equal(h.keep_alive, cases[i].keep);
    }
}

static void http_1_0_clients_are_never_told_to_continue(void **state) {
    (void)state;
    struct http_head h;
    struct http_parse_error error;
    slice in = SL("POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n");
    assert_int_equal(http_parse_head(in, &h, &error), HTTP_PARSE_OK);
    assert_false(h.expect_continue);
}

static void an_absolute_target_gives_its_path(void **state) {
    (void)state;
    struct http_head h;
    struct http_parse_error error;
    assert_int_equal(http_parse_head(SL("GET http://a?x=1 HTTP/1.1\r\nHost: a\r\n\r\n"), &h, &error), HTTP_PARSE_OK);
    assert_true(slice_eq(h.req.path, SL("/")));
    assert_true(slice_eq(h.req.query, SL("x=1")));
    assert_int_equal(http_parse_head(SL("GET http://a/b/c HTTP/1.1\r\nHost: a\r\n\r\n"), &h, &error), HTTP_PARSE_OK);
    assert_true(slice_eq(h.req.path, SL("/b/c")));
}

/* A request line of exactly `line` bytes, then fields that make the section exactly `section` bytes long. */
static struct verdict sized(size_t line, size_t section, size_t extra_fields) {
    struct buf b = {0};
    buf_lit(&b, "GET /");
    while (b.len < line - 9) buf_char(&b, 'a');
    buf_lit(&b, " HTTP/1.1\r\nHost: a\r\n");
    size_t at = b.len - 9;
    for (size_t i = 0; i < extra_fields; i++) buf_lit(&b, "x:\r\n");
    if (section) {
        buf_lit(&b, "X: ");
        while (b.len - at < section - 4) buf_char(&b, 'v');
        buf_lit(&b, "\r\n");
    }
    buf_lit(&b, "\r\n");
    struct verdict v = read_all(buf_slice(&b));
    buf_free(&b);
    return v;
}

static void limits_of_line_section_and_field_count_are_exact(void **state) {
    (void)state;
    assert_int_equal(sized(8192, 0, 0).got, HTTP_PARSE_OK);
    assert_int_equal(sized(8193, 0, 0).status, 414);
    assert_int_equal(sized(9000, 0, 0).status, 414);
    assert_int_equal(sized(100, 16384, 0).got, HTTP_PARSE_OK);
    assert_int_equal(sized(100, 16385, 0).status, 431);
    assert_int_equal(sized(8192, 16384, 0).got, HTTP_PARSE_OK);
    assert_int_equal(sized(100, 0, 99).got, HTTP_PARSE_OK);
    assert_int_equal(sized(100, 0, 100).status, 431);
}

static void an_endless_line_is_refused_without_waiting_for_its_end(void **state) {
    (void)state;
    struct buf b = {0};
    buf_lit(&b, "GET /");
    while (b.len < 8194) buf_char(&b, 'a');
    assert_int_equal(read_all(buf_slice(&b)).got, HTTP_PARSE_MORE);
    buf_char(&b, 'a');
    assert_int_equal(read_all(buf_slice(&b)).status, 414);
    buf_reset(&b);
    buf_lit(&b, "GET / HTTP/1.1\r\nX: ");
    while (b.len < 16 + 16384) buf_char(&b, 'a');
    assert_int_equal(read_all(buf_slice(&b)).got, HTTP_PARSE_MORE);
    buf_char(&b, 'a');
    assert_int_equal(read_all(buf_slice(&b)).status, 431);
    buf_free(&b);
}

static void endless_extensions_and_trailers_are_refused(void **state) {
    (void)state;
    for (int trailer = 0; trailer < 2; trailer++) {
        struct http_chunked c;
        struct buf out = {0};
        struct http_parse_error error = {0};
        size_t used, fed = 0;
        enum http_parse got;
        http_chunked_init(&c);
        got = http_chunked_feed(&c, trailer ? SL("0\r\nX: ") : SL("5;"), &used, 100, &out, &error);
        for (; got == HTTP_PARSE_MORE && fed < 100000; fed++)
            got = http_chunked_feed(&c, SL("a"), &used, 100, &out, &error);
        assert_int_equal(got, HTTP_PARSE_BAD);
        assert_int_equal(error.status, trailer ? 431 : 400);
        assert_true(fed <= (trailer ? HTTP_HEAD_MAX : 256u));
        buf_free(&out);
    }
}

static void query_parameters_are_found_decoded_and_doubted(void **state) {
    (void)state;
    struct http_request req = {.query = SL("max=3&key=a%2Fb%20c&flag&empty=&ma%78two=1&dup=1&dup=2&bad=%zz&plus=a+b")};
    struct buf scratch = {0};
    slice v;
    bool bad = false;
    assert_true(http_query_get(&req, SL("max"), &scratch, &v, &bad));
    assert_true(slice_eq(v, SL("3")));
    assert_true(http_query_get(&req, SL("key"), &scratch, &v, &bad));
    assert_true(slice_eq(v, SL("a/b c")));
    assert_true(http_query_get(&req, SL("flag"), &scratch, &v, &bad) && v.n == 0);
    assert_true(http_query_get(&req, SL("empty"), &scratch, &v, &bad) && v.n == 0);
    assert_true(http_query_get(&req, SL("maxtwo"), &scratch, &v, &bad));
    assert_true(http_query_get(&req, SL("plus"), &scratch, &v, &bad));
    assert_true(slice_eq(v, SL("a+b")));
    assert_false(http_query_get(&req, SL("ma"), &scratch, &v, &bad));
    assert_false(http_query_get(&req, SL("maxx"), &scratch, &v, &bad));
    assert_false(bad);
    assert_true(http_query_get(&req, SL("dup"), &scratch, &v, &bad));
    assert_true(bad);
    bad = false;
    assert_true(http_query_get(&req, SL("bad"), &scratch, &v, &bad));
    assert_true(bad);
    buf_free(&scratch);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_case_of_the_framing_corpus_is_judged_as_written),
        cmocka_unit_test(every_prefix_wants_more_or_gives_the_verdict_of_the_whole),
        cmocka_unit_test(a_head_is_judged_the_same_whatever_was_read_before_it),
        cmocka_unit_test(a_head_that_begins_like_the_one_before_is_judged_by_its_own_bytes),
        cmocka_unit_test(what_a_repeated_line_says_counts_as_if_it_were_new),
        cmocka_unit_test(chunks_cut_anywhere_decode_to_the_same_bytes),
        cmocka_unit_test(a_chunked_body_may_be_exactly_as_large_as_the_limit),
        cmocka_unit_test(a_request_is_taken_apart_into_its_pieces),
        cmocka_unit_test(a_control_byte_in_a_value_is_refused_wherever_it_stands),
        cmocka_unit_test(every_method_is_recognised_and_others_are_other),
        cmocka_unit_test(the_connection_stays_or_closes_as_version_and_field_say),
        cmocka_unit_test(http_1_0_clients_are_never_told_to_continue),
        cmocka_unit_test(an_absolute_target_gives_its_path),
        cmocka_unit_test(limits_of_line_section_and_field_count_are_exact),
        cmocka_unit_test(an_endless_line_is_refused_without_waiting_for_its_end),
        cmocka_unit_test(endless_extensions_and_trailers_are_refused),
        cmocka_unit_test(query_parameters_are_found_decoded_and_doubted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
