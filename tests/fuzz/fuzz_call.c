/* Call templates on arbitrary bytes: the first line is an address or a header as a config says it, the rest a payload.
 *  - an error of a template names a byte of it or its end;
 *  - what an address is made of begins with the template's own scheme, host and port, and has as many of each character that
 *    means something there as the template's own text has: no value can end its segment, its parameter or the path;
 *  - its path has no segment `.` or `..`, spelled out or escaped;
 *  - a header has no control character, so no value ends it. */
#include "config/call_template.h"

int LLVMFuzzerTestOneInput(const u8 *data, size_t size);

/* Any header there is a wish for, from the payload's bytes. */
static slice header(void *ctx, slice name) {
    const slice *payload = ctx;
    return name.n % 2 ? *payload : (slice){0};
}

/* What the template says itself, without its values. */
static void put_own_text(slice t, struct buf *out) {
    for (size_t i = 0; i < t.n; i++) {
        bool value = t.p[i] == '$' && i + 1 < t.n && t.p[i + 1] == '{', quoted = false;
        if (!value) {
            buf_char(out, t.p[i]);
            i += t.p[i] == '$'; /* of $$ the second goes */
            continue;
        }
        for (i += 2; i < t.n && (quoted || t.p[i] != '}'); i++) quoted ^= t.p[i] == '"';
    }
}

static size_t count_of(slice s, char c) {
    size_t n = 0;
    for (size_t i = 0; i < s.n; i++) n += s.p[i] == c;
    return n;
}

static void check_segments(slice path) {
    slice segment, rest, query;
    struct buf plain = {0};
    slice_cut(path, '?', &rest, &query);
    for (bool more = true; more;) {
        more = slice_cut(rest, '/', &segment, &rest);
        buf_reset(&plain);
        CHECK(buf_percent_decode(&plain, segment));
        CHECK(!slice_eq(buf_slice(&plain), SL(".")) && !slice_eq(buf_slice(&plain), SL("..")));
    }
    buf_free(&plain);
}

static void check_url(const struct call_template *t, slice made) {
    slice origin = call_template_origin(t);
    struct buf own = {0};
    CHECK(made.n <= CALL_URL_BYTES_MAX && slice_starts(made, origin));
    put_own_text(call_template_text(t), &own);
    for (const char *c = "/?#&=;:@+,!*'()[]"; *c; c++) CHECK(count_of(made, *c) == count_of(buf_slice(&own), *c));
    for (size_t i = 0; i < made.n; i++) CHECK(made.p[i] > ' ' && made.p[i] <= '~');
    check_segments(slice_of(made.p + origin.n, made.n - origin.n));
    buf_free(&own);
}

static void check(enum call_kind kind, slice said, slice payload) {
    struct arena arena = {0};
    struct payload_view v = {0};
    struct buf made = {0};
    struct errbuf err = {0};
    struct call_template *t;
    struct call_vars vars = {payload, payload, SL("01")};
    u32 column;
    payload_view_init(&v, payload, SL(""), header, &payload);
    if (call_template_compile(said, kind, &arena, &t, &column, &err) != ST_OK) {
        CHECK(!t && err.text[0] && column >= 1 && column <= said.n + 1);
    } else if (call_template_eval(t, &v, &vars, &made, &err) != TEMPLATE_OK) {
        CHECK(err.text[0] && made.len == 0);
    } else if (kind == CALL_URL) {
        check_url(t, buf_slice(&made));
    } else {
        CHECK(made.len <= CALL_HEADER_BYTES_MAX && utf8_valid(buf_slice(&made)) && !has_control(buf_slice(&made)));
    }
    buf_free(&made);
    payload_view_free(&v);
    arena_clear(&arena);
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t size) {
    slice said, payload;
    slice_cut(slice_of(data, size), '\n', &said, &payload);
    check(CALL_URL, said, payload);
    check(CALL_HEADER, said, payload);
    return 0;
}
