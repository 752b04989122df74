/* Heads and chunks, read once from left to right.
 *
 * Two readers that disagree about where a message ends are how requests are smuggled. So there is one rule: every byte
 * is either what RFC 9112 says must stand there, or the message is refused and its connection closed. Nothing is
 * repaired, folded, trimmed from the middle or guessed.
 *
 * The verdict must not depend on how the network cut the bytes. Therefore errors are found in byte order: each scan is
 * bounded by the window its limit allows (end of input or limit, whichever is nearer) and running into the window's end
 * means MORE, or "too long" when it was the limit that ended it. A prefix of a message then gives MORE or the very
 * error the whole message gives. */
#include "net/parse.h"

#include "base/sixteen.h"

enum {
    TOKEN = 1,  /* tchar: methods, field names, codings */
    TARGET = 2, /* VCHAR but '#', which starts a fragment and never travels */
    VALUE = 4,  /* field content: VCHAR, obs-text, space, tab */
    HOST = 8,   /* registered names and IPv4: unreserved, sub-delims, '%' */
    DIGIT = 16,
    HEX = 32,
    PRINT = TARGET | VALUE,
    ANY = TOKEN | PRINT | HOST,
};

static const u8 classes[256] = {
    ['\t'] = VALUE,       [' '] = VALUE,         ['!'] = ANY,
    ['"'] = PRINT,        ['#'] = TOKEN | VALUE, ['$' ... '\''] = ANY,
    ['('] = PRINT | HOST, [')'] = PRINT | HOST,  ['*'] = ANY,
    ['+'] = ANY,          [','] = PRINT | HOST,  ['-'] = ANY,
    ['.'] = ANY,          ['/'] = PRINT,         ['0' ... '9'] = ANY | DIGIT | HEX,
    [':'] = PRINT,        [';'] = PRINT | HOST,  ['<'] = PRINT,
    ['='] = PRINT | HOST, ['>' ... '@'] = PRINT, ['A' ... 'F'] = ANY | HEX,
    ['G' ... 'Z'] = ANY,  ['[' ... ']'] = PRINT, ['^'] = TOKEN | PRINT,
    ['_'] = ANY,          ['`'] = TOKEN | PRINT, ['a' ... 'f'] = ANY | HEX,
    ['g' ... 'z'] = ANY,  ['{'] = PRINT,         ['|'] = TOKEN | PRINT,
    ['}'] = PRINT,        ['~'] = ANY,           [128 ... 255] = VALUE,
};

static bool is(char c, int class) {
    return (classes[(u8)c] & class) != 0;
}

static bool all(slice s, int class) {
    for (size_t i = 0; i < s.n; i++)
        if (!is(s.p[i], class)) return false;
    return true;
}

/* Past the bytes of a field's value, sixteen at a time. Of the control bytes the tab alone is one of them. */
static const char *skip_value(const char *p, const char *end) {
    while (end - p >= 16) {
        sixteen v = sixteen_at(p);
        u32 hits = sixteen_bits(sixteen_control(v) | (v == 0x7f));
        if (!hits) {
            p += 16;
            continue;
        }
        p += __builtin_ctz(hits);
        if (*p != '\t') return p;
        p++;
    }
    while (p < end && is(*p, VALUE)) p++;
    return p;
}

/* The same bytes: of a few dozen, where a call would cost as much as it compares. */
static inline bool alike(const char *a, const char *b, size_t n) {
    if (n < 8) return memcmp(a, b, n) == 0;
    for (size_t i = 0; i + 8 < n; i += 8)
        if (get_u64(a + i) != get_u64(b + i)) return false;
    return get_u64(a + n - 8) == get_u64(b + n - 8); /* reaches back into what was compared */
}

/* A head being read. `end` bounds the part under way; `limited` says that a limit set it, not the input. */
struct reader {
    const char *p, *end;
    bool limited;
    bool again; /* the line under way is one of the head before, and was found right there */
    bool http11;
    slice authority; /* of an absolute-form target */
    struct http_head *head;
    const struct http_head *prior; /* the one before; NULL: none */
    struct http_parse_error *error;
};

static enum http_parse bad(struct http_parse_error *error, u16 status, const char *detail) {
    error->status = status;
    error->detail = detail;
    return HTTP_PARSE_BAD;
}

static enum http_parse refuse(struct reader *r, const char *detail) {
    return bad(r->error, 400, detail);
}

static void open_window(struct reader *r, slice in, size_t max) {
    const char *input_end = in.p + in.n;
    r->limited = (size_t)(input_end - r->p) > max;
    r->end = r->limited ? r->p + max : input_end;
}

/* ---- the request line */

static enum http_parse line_ran_out(struct reader *r) {
    return r->limited ? bad(r->error, 414, "the request line is longer than 8192 bytes") : HTTP_PARSE_MORE;
}

/* RFC 9112 2.2 asks to overlook an empty line before a request. One, not any number. */
static enum http_parse skip_empty_line(struct reader *r) {
    if (r->p == r->end) return HTTP_PARSE_MORE;
    if (*r->p != '\r') return HTTP_PARSE_OK;
    if (r->p + 1 == r->end) return HTTP_PARSE_MORE;
    if (r->p[1] != '\n') return refuse(r, "a carriage return stands alone");
    r->p += 2;
    return HTTP_PARSE_OK;
}

static enum http_method method_of(slice s) {
    switch (s.n) {
    case 3:
        if (memcmp(s.p, "GET", 3) == 0) return HTTP_GET;
        return memcmp(s.p, "PUT", 3) == 0 ? HTTP_PUT : HTTP_OTHER;
    case 4:
        if (memcmp(s.p, "POST", 4) == 0) return HTTP_POST;
        return memcmp(s.p, "HEAD", 4) == 0 ? HTTP_HEAD : HTTP_OTHER;
    case 5:
        return memcmp(s.p, "PATCH", 5) == 0 ? HTTP_PATCH : HTTP_OTHER;
    case 6:
        return memcmp(s.p, "DELETE", 6) == 0 ? HTTP_DELETE : HTTP_OTHER;
    case 7:
        return memcmp(s.p, "OPTIONS", 7) == 0 ? HTTP_OPTIONS : HTTP_OTHER;
    default:
        return HTTP_OTHER;
    }
}

/* One word of the request line and the single space behind it. */
static enum http_parse word(struct reader *r, int class, slice *out, const char *complaint) {
    const char *start = r->p, *p = start;
    while (p < r->end && is(*p, class)) p++;
    r->p = p;
    if (r->p == r->end) return line_ran_out(r);
    if (*r->p != ' ' || r->p == start) return refuse(r, complaint);
    *out = slice_of(start, (size_t)(r->p - start));
    r->p++;
    return HTTP_PARSE_OK;
}

static enum http_parse version(struct reader *r) {
    static const char pattern[] = "HTTP/d.d\r\n", usual[] = "HTTP/1.1\r\n";
    const char *start = r->p;
    if (r->end - start >= 10 && memcmp(start, usual, 10) == 0) {
        r->http11 = true;
        r->p += 10;
        return HTTP_PARSE_OK;
    }
    for (const char *want = pattern; *want; want++, r->p++) {
        if (r->p == r->end) return line_ran_out(r);
        if (*want == 'd' ? !is(*r->p, DIGIT) : *r->p != *want)
            return refuse(r, "the request line does not end in an HTTP version");
    }
    if (start[5] != '1' || start[7] > '1')
        return bad(r->error, 505, "of HTTP only the versions 1.1 and 1.0 are spoken here");
    r->http11 = start[7] == '1';
    return HTTP_PARSE_OK;
}

/* Cut an absolute-form target into authority and the rest; an empty path means "/". */
static bool absolute_form(struct reader *r, slice *target) {
    static const slice scheme = SL("http://");
    if (target->n < scheme.n || !slice_eq_nocase(slice_of(target->p, scheme.n), scheme)) return false;
    const char *p = target->p + scheme.n, *end = target->p + target->n, *start = p;
    while (p < end && *p != '/' && *p != '?') p++;
    r->authority = slice_of(start, (size_t)(p - start));
    *target = slice_of(p, (size_t)(end - p));
    return r->authority.n > 0;
}

static enum http_parse request_line(struct reader *r) {
    slice method, target;
    enum http_parse got = word(r, TOKEN, &method, "the request line does not start with a method and one space");
    if (got != HTTP_PARSE_OK) return got;
    got = word(r, TARGET, &target, "the request target is malformed");
    if (got != HTTP_PARSE_OK) return got;
    got = version(r);
    if (got != HTTP_PARSE_OK) return got;

    if (target.p[0] != '/' && !absolute_form(r, &target))
        return refuse(r, "the request target is neither a path nor an http URL");
    struct http_request *req = &r->head->req;
    r->head->absolute = r->authority.n > 0;
    req->method = method_of(method);
    slice_cut(target, '?', &req->path, &req->query);
    if (req->path.n == 0) req->path = SL("/");
    return HTTP_PARSE_OK;
}

/* ---- fields */

/* uri-host [ ":" port ], RFC 9110 7.2. An http URL without a host has no meaning, so neither has an empty one. */
static bool host_valid(slice s) {
    size_t i = 0;
    if (s.n && s.p[0] == '[') {
        for (i = 1; i < s.n && (is(s.p[i], HEX) || s.p[i] == ':' || s.p[i] == '.'); i++) {
        }
        if (i < 3 || i == s.n || s.p[i] != ']') return false;
        i++;
    } else {
        while (i < s.n && is(s.p[i], HOST)) i++;
        if (i == 0) return false;
    }
    if (i == s.n) return true;
    slice port = slice_of(s.p + i + 1, s.n - i - 1);
    u64 number = 0;
    return s.p[i] == ':' && (port.n == 0 || (slice_u64(port, &number) && number <= 65535));
}

static enum http_parse host_field(struct reader *r, slice value) {
    struct http_said *said = &r->head->said;
    if (said->host) return refuse(r, "more than one Host field");
    if (!r->again && !host_valid(value)) return refuse(r, "the Host field is malformed");
    said->host = true;
    r->head->req.host = value;
    return HTTP_PARSE_OK;
}

static enum http_parse authorization_field(struct reader *r, slice value) {
    if (r->head->said.authorization) return refuse(r, "more than one Authorization field");
    r->head->said.authorization = true;
    r->head->req.authorization = value;
    return HTTP_PARSE_OK;
}

static enum http_parse length_field(struct reader *r, slice value) {
    if (r->head->said.length) return refuse(r, "more than one Content-Length field");
    if (r->again)
        r->head->length = r->prior->length;
    else if (!slice_u64(value, &r->head->length))
        return refuse(r, "the Content-Length field is not one decimal number");
    r->head->said.length = true;
    return HTTP_PARSE_OK;
}

static enum http_parse coding_field(struct reader *r, slice value) {
    if (r->head->said.coding) return refuse(r, "more than one Transfer-Encoding field");
    r->head->said.coding = true;
    if (slice_eq_nocase(value, SL("chunked"))) return HTTP_PARSE_OK;
    if (value.n && all(value, TOKEN)) return bad(r->error, 501, "the only transfer coding understood is chunked");
    return refuse(r, "the Transfer-Encoding field is not exactly chunked");
}

static enum http_parse expect_field(struct reader *r, slice value) {
    if (r->head->said.expect || !slice_eq_nocase(value, SL("100-continue")))
        return bad(r->error, 417, "the only expectation met is 100-continue");
    r->head->said.expect = true;
    return HTTP_PARSE_OK;
}

/* Said twice it is no browser's word: it counts as the worst there is to say. */
static enum http_parse browser_field(struct reader *r, slice *to, slice value, slice worst) {
    r->head->said.page = true;
    *to = to->n || value.n == 0 ? worst : value;
    return HTTP_PARSE_OK;
}

static enum http_parse origin_field(struct reader *r, slice value) {
    return browser_field(r, &r->head->req.origin, value, SL("null"));
}

static enum http_parse site_field(struct reader *r, slice value) {
    return browser_field(r, &r->head->req.fetch_site, value, SL("cross-site"));
}

static enum http_parse mode_field(struct reader *r, slice value) {
    return browser_field(r, &r->head->req.fetch_mode, value, SL("no-cors"));
}

static enum http_parse connection_field(struct reader *r, slice value) {
    bool more = true;
    while (more) {
        slice option;
        more = slice_cut(value, ',', &option, &value);
        option = slice_trim(option);
        if (slice_eq_nocase(option, SL("close"))) r->head->said.close = true;
        if (slice_eq_nocase(option, SL("keep-alive"))) r->head->said.keep = true;
    }
    return HTTP_PARSE_OK;
}

/* The few fields that say where the message ends, what becomes of the connection, and who asks. */
enum said { NOTHING, HOST_NAME, EXPECT, ORIGIN, CONNECTION, AUTHORIZATION, LENGTH, FETCH_SITE, FETCH_MODE, CODING };

static enum http_parse (*const readers[])(struct reader *r, slice value) = {
    [HOST_NAME] = host_field,        [EXPECT] = expect_field,   [ORIGIN] = origin_field,
    [CONNECTION] = connection_field, [LENGTH] = length_field,   [AUTHORIZATION] = authorization_field,
    [FETCH_SITE] = site_field,       [FETCH_MODE] = mode_field, [CODING] = coding_field,
};

static u8 said_by(slice name) {
    switch (name.n) {
    case 4:
        return slice_spells(name, SL("host")) ? HOST_NAME : NOTHING;
    case 6:
        if (slice_spells(name, SL("expect"))) return EXPECT;
        return slice_spells(name, SL("origin")) ? ORIGIN : NOTHING;
    case 10:
        return slice_spells(name, SL("connection")) ? CONNECTION : NOTHING;
    case 13:
        return slice_spells(name, SL("authorization")) ? AUTHORIZATION : NOTHING;
    case 14:
        if (slice_spells(name, SL("content-length"))) return LENGTH;
        if (slice_spells(name, SL("sec-fetch-site"))) return FETCH_SITE;
        return slice_spells(name, SL("sec-fetch-mode")) ? FETCH_MODE : NOTHING;
    case 17:
        return slice_spells(name, SL("transfer-encoding")) ? CODING : NOTHING;
    default:
        return NOTHING;
    }
}

static enum http_parse fields_ran_out(struct reader *r) {
    return r->limited ? bad(r->error, 431, "the header section is longer than 16384 bytes") : HTTP_PARSE_MORE;
}

static enum http_parse odd_line_end(struct reader *r) {
    if (*r->p != '\r')
        return refuse(r, *r->p == '\n' ? "a line ends in a bare line feed" : "a control byte in a header field");
    return r->p + 1 == r->end ? fields_ran_out(r) : refuse(r, "a carriage return stands alone");
}

static inline enum http_parse line_end(struct reader *r) {
    if (r->end - r->p < 2 || r->p[0] != '\r' || r->p[1] != '\n') return odd_line_end(r);
    r->p += 2;
    return HTTP_PARSE_OK;
}

static enum http_parse field_name(struct reader *r, struct http_field *f, struct http_line *line) {
    const char *start = r->p, *p = start;
    while (p < r->end && is(*p, TOKEN)) p++;
    r->p = p;
    if (r->p == r->end) return fields_ran_out(r);
    if (*r->p != ':' || r->p == start) return refuse(r, "a header line is not a field name followed by a colon");
    f->name = slice_of(start, (size_t)(r->p - start));
    line->says = said_by(f->name);
    r->p++;
    return HTTP_PARSE_OK;
}

static enum http_parse field_value(struct reader *r, struct http_field *f) {
    const char *start = r->p;
    if (start < r->end && *start == ' ') start++; /* mostly all there is to trim */
    r->p = skip_value(start, r->end);
    if (r->p == r->end) return fields_ran_out(r);
    f->value = slice_trim(slice_of(start, (size_t)(r->p - start)));
    return line_end(r);
}

/* Whoever pipelines repeats most of its lines. One that stood, to its last byte, at the same place of the head before needs no
 * reading, nor does the name of one that did so up to its colon. */
static bool line_again(struct reader *r, size_t i) {
    const struct http_line *line = &r->prior->lines[i];
    const struct http_field *g = &r->prior->fields[i];
    struct http_field *f = &r->head->fields[i];
    if ((size_t)(r->end - r->p) < line->bytes || !alike(r->p, g->name.p, line->bytes)) return false;
    f->name = slice_of(r->p, g->name.n);
    f->value = slice_of(r->p + (g->value.p - g->name.p), g->value.n);
    r->head->lines[i] = *line;
    r->p += line->bytes;
    return true;
}

static bool name_again(struct reader *r, size_t i) {
    const struct http_field *g = &r->prior->fields[i];
    size_t n = g->name.n + 1;
    if ((size_t)(r->end - r->p) < n || !alike(r->p, g->name.p, n)) return false;
    r->head->fields[i].name = slice_of(r->p, g->name.n);
    r->head->lines[i].says = r->prior->lines[i].says;
    r->p += n;
    return true;
}

/* What a line says is noted in any case, so that nothing is taken from one that is not here. */
static enum http_parse field_line(struct reader *r, size_t i) {
    struct http_field *f = &r->head->fields[i];
    struct http_line *line = &r->head->lines[i];
    const char *start = r->p;
    bool had = r->prior && i < r->prior->req.field_count;
    r->again = had && line_again(r, i);
    if (!r->again) {
        enum http_parse got = had && name_again(r, i) ? HTTP_PARSE_OK : field_name(r, f, line);
        if (got == HTTP_PARSE_OK) got = field_value(r, f);
        if (got != HTTP_PARSE_OK) return got;
        line->bytes = (u16)(r->p - start);
    }
    if (line->says == NOTHING) return HTTP_PARSE_OK;
    r->head->told = (u16)(i + 1);
    r->head->told_bytes = (u16)(r->p - r->head->fields[0].name.p);
    return readers[line->says](r, f->value);
}

static slice moved(slice s, const char *from, const char *to) {
    return slice_of(to + (s.p - from), s.n);
}

/* All lines up to the last that says something, where they are those of the head before: together they say what they said there, and
 * the lines behind them said nothing. A browser's words are kept elsewhere: such a head is read line by line. Returns how many. */
static size_t lines_again(struct reader *r) {
    const struct http_head *g = r->prior;
    struct http_head *head = r->head;
    if (!g || g->said.page || (size_t)(r->end - r->p) < g->told_bytes) return 0;
    const char *from = g->fields[0].name.p, *to = r->p;
    if (g->told == 0 || memcmp(to, from, g->told_bytes) != 0) return 0;
    for (size_t i = 0; i < g->told; i++) {
        head->fields[i].name = moved(g->fields[i].name, from, to);
        head->fields[i].value = moved(g->fields[i].value, from, to);
        head->lines[i] = g->lines[i];
    }
    head->said = g->said;
    head->length = g->length;
    head->told = g->told;
    head->told_bytes = g->told_bytes;
    head->req.field_count = g->told;
    if (g->said.host) head->req.host = moved(g->req.host, from, to);
    if (g->said.authorization) head->req.authorization = moved(g->req.authorization, from, to);
    r->p += g->told_bytes;
    return g->told;
}

static enum http_parse field_section(struct reader *r) {
    for (size_t i = lines_again(r);; i++) {
        if (r->p == r->end) return fields_ran_out(r);
        if (*r->p == '\r') return line_end(r);
        if (i == HTTP_FIELDS_MAX) return bad(r->error, 431, "more than 100 header fields");
        r->head->req.field_count = i + 1;
        enum http_parse got = field_line(r, i);
        if (got != HTTP_PARSE_OK) return got;
    }
}

/* What only the whole head can tell. */
static enum http_parse judge(struct reader *r) {
    struct http_head *head = r->head;
    const struct http_said *said = &head->said;
    if (r->http11 && !said->host) return refuse(r, "the Host field is missing");
    if (r->authority.n) {
        if (!host_valid(r->authority)) return refuse(r, "the request target's authority is malformed");
        if (said->host && !slice_eq_nocase(head->req.host, r->authority))
            return refuse(r, "the request target and the Host field name different hosts");
    }
    if (said->coding && said->length) return refuse(r, "both Transfer-Encoding and Content-Length");
    if (said->coding && !r->http11) return refuse(r, "Transfer-Encoding in an HTTP/1.0 request");
    head->chunked = head->req.chunked = said->coding;
    head->req.body_length = head->length;
    if (!said->host) head->req.host = r->authority;
    head->keep_alive = !said->close && (r->http11 || said->keep);
    head->http11 = r->http11;
    head->expect_continue = said->expect && r->http11;
    return HTTP_PARSE_OK;
}

static enum http_parse first_line(struct reader *r, slice in) {
    enum http_parse got = skip_empty_line(r);
    if (got != HTTP_PARSE_OK) return got;
    open_window(r, in, HTTP_LINE_MAX + 2);
    return request_line(r);
}

/* Is it the line that the head before began with, at `from`? */
static bool first_line_again(struct reader *r, slice in, const char *from) {
    const struct http_head *former = r->prior;
    if (!former || former->absolute || in.n < former->fields_at || memcmp(in.p, from, former->fields_at) != 0)
        return false;
    struct http_request *req = &r->head->req;
    r->p += former->fields_at;
    r->http11 = former->http11;
    r->head->absolute = false;
    req->method = former->req.method;
    req->path = moved(former->req.path, from, in.p);
    req->query = moved(former->req.query, from, in.p);
    return true;
}

enum http_parse http_parse_next(slice in, const char *from, const struct http_head *former, struct http_head *out,
                                struct http_parse_error *error) {
    struct reader r = {.p = in.p, .end = in.p + in.n, .head = out, .prior = former, .error = error};
    out->req = (struct http_request){.fields = out->fields};
    out->said = (struct http_said){0};
    out->length = out->told = out->told_bytes = 0;
    enum http_parse got = first_line_again(&r, in, from) ? HTTP_PARSE_OK : first_line(&r, in);
    if (got != HTTP_PARSE_OK) return got;
    out->fields_at = (size_t)(r.p - in.p);
    open_window(&r, in, HTTP_HEAD_MAX);
    got = field_section(&r);
    if (got != HTTP_PARSE_OK) return got;
    out->head_bytes = (size_t)(r.p - in.p);
    return judge(&r);
}

enum http_parse http_parse_head(slice in, struct http_head *out, struct http_parse_error *error) {
    return http_parse_next(in, NULL, NULL, out, error);
}

/* ---- chunks */

#define CHUNK_LINE_MAX 256u /* a size line with its extensions, which nobody needs and some use to exhaust a server */

enum chunk_state {
    SIZE_FIRST,
    SIZE,
    EXTENSION,
    SIZE_LF,
    DATA,
    DATA_CR,
    DATA_LF,
    TRAILER_FIRST,
    TRAILER_NAME,
    TRAILER_VALUE,
    TRAILER_LF,
    LAST_LF,
    DONE,
};

void http_chunked_init(struct http_chunked *c) {
    *c = (struct http_chunked){.state = SIZE_FIRST};
}

static int hex_value(char c) {
    if (c <= '9') return c - '0';
    return (c | 0x20) - 'a' + 10;
}

static enum http_parse size_byte(struct http_chunked *c, char b, struct http_parse_error *error) {
    if (is(b, HEX)) {
        if (c->left >> 60) return bad(error, 400, "a chunk size is too large to be true");
        c->left = c->left << 4 | (u64)hex_value(b);
        c->state = SIZE;
        return HTTP_PARSE_OK;
    }
    if (c->state == SIZE_FIRST) return bad(error, 400, "a chunk does not start with its size");
    if (b == ';') {
        c->state = EXTENSION;
    } else if (b == '\r') {
        c->state = SIZE_LF;
    } else {
        return bad(error, 400, "a chunk size is followed by neither an extension nor a line end");
    }
    return HTTP_PARSE_OK;
}

static enum http_parse size_done(struct http_chunked *c, u64 limit, struct http_parse_error *error) {
    c->line_bytes = 0;
    if (c->left == 0) {
        c->state = TRAILER_FIRST;
        return HTTP_PARSE_OK;
    }
    if (c->left > limit || c->total > limit - c->left)
        return bad(error, 413, "the body is larger than is accepted here");
    c->total += c->left;
    c->state = DATA;
    return HTTP_PARSE_OK;
}

/* Trailer fields are checked and dropped; one that would have changed the framing is an attack, not a trailer. */
static bool trailer_forbidden(const struct http_chunked *c) {
    slice name = slice_of(c->name, c->name_bytes);
    return slice_eq_nocase(name, SL("content-length")) || slice_eq_nocase(name, SL("transfer-encoding")) ||
           slice_eq_nocase(name, SL("host"));
}

static enum http_parse trailer_byte(struct http_chunked *c, char b, struct http_parse_error *error) {
    bool in_name = c->state != TRAILER_VALUE;
    if (c->state == TRAILER_FIRST && b == '\r') {
        c->state = LAST_LF;
    } else if (in_name && is(b, TOKEN)) {
        if (c->state == TRAILER_FIRST) c->name_bytes = 0;
        if (c->name_bytes < sizeof c->name) c->name[c->name_bytes++] = b;
        c->state = TRAILER_NAME;
    } else if (c->state == TRAILER_NAME && b == ':') {
        if (trailer_forbidden(c)) return bad(error, 400, "a framing field in the trailer section");
        c->state = TRAILER_VALUE;
    } else if (!in_name && b == '\r') {
        c->state = TRAILER_LF;
    } else if (in_name || !is(b, VALUE)) {
        return bad(error, 400, "the trailer section is malformed");
    }
    return HTTP_PARSE_OK;
}

/* One byte of anything but chunk data. */
static enum http_parse control_byte(struct http_chunked *c, char b, u64 limit, struct http_parse_error *error) {
    bool trailer = c->state >= TRAILER_FIRST;
    if (++c->line_bytes > (trailer ? HTTP_HEAD_MAX : CHUNK_LINE_MAX))
        return trailer ? bad(error, 431, "the trailer section is longer than 16384 bytes")
                       : bad(error, 400, "a chunk's size line is longer than 256 bytes");
    switch ((enum chunk_state)c->state) {
    case SIZE_FIRST:
    case SIZE:
        return size_byte(c, b, error);
    case EXTENSION:
        if (b == '\r')
            c->state = SIZE_LF;
        else if (!is(b, VALUE))
            return bad(error, 400, "a control byte in a chunk extension");
        return HTTP_PARSE_OK;
    case SIZE_LF:
        return b == '\n' ? size_done(c, limit, error) : bad(error, 400, "a carriage return stands alone");
    case DATA_CR:
        c->state = DATA_LF;
        return b == '\r' ? HTTP_PARSE_OK : bad(error, 400, "a chunk is longer than its size says");
    case DATA_LF:
        c->state = SIZE_FIRST;
        c->line_bytes = 0;
        return b == '\n' ? HTTP_PARSE_OK : bad(error, 400, "a carriage return stands alone");
    case TRAILER_LF:
        c->state = TRAILER_FIRST;
        return b == '\n' ? HTTP_PARSE_OK : bad(error, 400, "a carriage return stands alone");
    case LAST_LF:
        c->state = DONE;
        return b == '\n' ? HTTP_PARSE_OK : bad(error, 400, "a carriage return stands alone");
    default:
        return trailer_byte(c, b, error);
    }
}

enum http_parse http_chunked_feed(struct http_chunked *c, slice in, size_t *used, u64 limit, struct buf *out,
                                  struct http_parse_error *error) {
    size_t i = 0;
    enum http_parse got = HTTP_PARSE_OK;
    while (i < in.n && c->state != DONE && got == HTTP_PARSE_OK) {
        if (c->state != DATA) {
            got = control_byte(c, in.p[i++], limit, error);
            continue;
        }
        size_t n = in.n - i < c->left ? in.n - i : (size_t)c->left;
        buf_add(out, in.p + i, n);
        i += n;
        c->left -= n;
        if (c->left == 0) c->state = DATA_CR;
    }
    *used = i;
    if (got != HTTP_PARSE_OK) return got;
    return c->state == DONE ? HTTP_PARSE_OK : HTTP_PARSE_MORE;
}

/* ---- looking things up */

size_t http_field_get(const struct http_request *req, slice name, slice *value) {
    size_t found = 0;
    for (size_t i = 0; i < req->field_count; i++) {
        const struct http_field *f = &req->fields[i];
        if (f->name.n != name.n || !slice_eq_nocase(f->name, name)) continue;
        if (found++ == 0) *value = f->value;
    }
    return found;
}

/* Does an encoded parameter name spell `name`? */
static bool name_spells(slice encoded, slice name) {
    size_t at = 0;
    for (size_t i = 0; i < encoded.n; i++, at++) {
        char c = encoded.p[i];
        if (c == '%') {
            if (encoded.n - i < 3 || !hex_decode(slice_of(encoded.p + i + 1, 2), &c, 1)) return false;
            i += 2;
        }
        if (at == name.n || name.p[at] != c) return false;
    }
    return at == name.n;
}

static bool spells_one_of(slice encoded, slice names) {
    while (names.n) {
        slice name;
        slice_cut(names, ' ', &name, &names);
        if (name_spells(encoded, name)) return true;
    }
    return false;
}

bool http_query_known(const struct http_request *req, slice names, slice *unknown) {
    slice rest = req->query;
    while (rest.n) {
        slice pair, value;
        slice_cut(rest, '&', &pair, &rest);
        slice_cut(pair, '=', unknown, &value);
        if (pair.n && !spells_one_of(*unknown, names)) return false;
    }
    return true;
}

bool http_query_get(const struct http_request *req, slice name, struct buf *scratch, slice *value, bool *bad_out) {
    slice rest = req->query, raw = {0};
    size_t found = 0;
    while (rest.n) {
        slice pair, key, text;
        slice_cut(rest, '&', &pair, &rest);
        slice_cut(pair, '=', &key, &text);
        if (name_spells(key, name) && found++ == 0) raw = text;
    }
    if (found == 0) return false;
    if (found > 1) *bad_out = true;
    *value = raw;
    if (raw.n == 0 || memchr(raw.p, '%', raw.n) == NULL) return true;
    size_t start = scratch->len;
    if (!buf_percent_decode(scratch, raw)) *bad_out = true;
    *value = slice_of(scratch->p + start, scratch->len - start);
    return true;
}
