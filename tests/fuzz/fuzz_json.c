/* The JSON cursor on arbitrary bytes. Besides surviving them it must agree with itself:
 *  - what json_value hands out is a whole value: read again on its own it is the same value, of the same type;
 *  - walking a text member by member refuses what skipping refuses, and refuses more only for a repeated name;
 *  - a string that was read is valid UTF-8, and comes back the same after being written;
 *  - an error names a byte of the text or its end. */
#include "base/json.h"

int LLVMFuzzerTestOneInput(const u8 *data, size_t size);

static void check_error(const struct json *j) {
    struct buf b = {0};
    json_error(j, &b);
    CHECK((b.len > 0) == (j->error != NULL));
    CHECK(j->error_at <= (size_t)(j->end - j->start));
    buf_free(&b);
}

static bool skips(slice text) {
    struct json j;
    json_init(&j, text);
    bool ok = json_skip(&j) && json_end(&j);
    CHECK(ok == (j.error == NULL));
    check_error(&j);
    json_free(&j);
    return ok;
}

static void check_string(slice s) {
    CHECK(utf8_valid(s));
    struct buf written = {0};
    json_put_string(&written, s);
    struct json j;
    json_init(&j, buf_slice(&written));
    slice back;
    CHECK(json_string(&j, &back) && json_end(&j));
    CHECK(slice_eq(s, back));
    json_free(&j);
    buf_free(&written);
}

static void check_number(struct json *j) {
    struct json copy = *j; /* numbers need no scratch memory, so the copy owns nothing */
    i64 v;
    if (!json_i64(&copy, &v)) return;
    struct buf b = {0};
    buf_dec_signed(&b, v);
    slice text = slice_of(j->p, (size_t)(copy.p - j->p));
    CHECK(slice_eq(buf_slice(&b), text) || slice_eq(text, SL("-0")));
    buf_free(&b);
}

static void walk(struct json *j) {
    slice s;
    bool b;
    switch (json_peek(j)) {
    case JSON_OBJECT:
        if (!json_object(j)) return;
        while (json_member(j, &s)) {
            check_string(s);
            walk(j);
        }
        return;
    case JSON_ARRAY:
        if (!json_array(j)) return;
        while (json_element(j)) walk(j);
        return;
    case JSON_STRING:
        if (json_string(j, &s)) check_string(s);
        return;
    case JSON_BOOL:
        json_bool(j, &b);
        return;
    case JSON_NULL:
        json_null(j);
        return;
    case JSON_NUMBER:
        check_number(j);
        json_skip(j);
        return;
    default:
        json_skip(j);
        CHECK(j->error);
    }
}

static bool value_again(slice text) {
    struct json j;
    json_init(&j, text);
    enum json_type type, type_again;
    slice raw, raw_again;
    bool ok = json_value(&j, &type, &raw);
    if (ok) {
        struct json again;
        json_init(&again, raw);
        CHECK(json_value(&again, &type_again, &raw_again) && json_end(&again));
        CHECK(type_again == type && slice_eq(raw_again, raw));
        json_free(&again);
    }
    ok = ok && json_end(&j);
    json_free(&j);
    return ok;
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t size) {
    slice text = slice_of(data, size);
    bool skipped = skips(text);
    CHECK(value_again(text) == skipped);
    struct json j;
    json_init(&j, text);
    walk(&j);
    bool walked = json_end(&j);
    check_error(&j);
    CHECK(skipped || !walked);
    CHECK(walked || !skipped || slice_eq(slice_str(j.error), SL("repeated member name")));
    json_free(&j);
    return 0;
}
