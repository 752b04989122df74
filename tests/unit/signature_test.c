/* What is signed with a source's secret, over these bytes and lately, is taken; nothing else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "broker/signature.h"
#include "net/webhook.h"

#define NOW_S 1614265330

static struct http_request request(struct http_field *fields, size_t count, slice body) {
    return (struct http_request){.method = HTTP_POST, .fields = fields, .field_count = count, .body = body};
}

static struct source_config source(enum scheme scheme, slice *secrets, u32 count) {
    return (struct source_config){
        .name = SL("s"), .scheme = (u8)scheme, .tolerance_ms = 300000, .secrets = {.at = secrets, .count = count}};
}

static bool good_at(const struct source_config *s, const struct http_request *req, i64 now_s) {
    return signature_wrong(s, req, now_s * 1000) == NULL;
}

/* ---- the published vectors */

static struct buf standard_key(void) {
    struct buf key = {0};
    assert_true(buf_base64_decode(&key, SL("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")));
    return key;
}

static struct http_field standard[] = {
    {SL("webhook-id"), SL("msg_p5jXN8AQM9LWM0D4loKWxJek")},
    {SL("webhook-timestamp"), SL("1614265330")},
    {SL("webhook-signature"), SL("v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=")},
};

static void the_vector_of_standard_webhooks_is_taken_for_five_minutes_either_way(void **state) {
    (void)state;
    struct buf key = standard_key();
    slice secret = buf_slice(&key);
    struct source_config s = source(SCHEME_STANDARD, &secret, 1);
    struct http_request req = request(standard, 3, SL("{\"test\": 2432232314}"));
    static const struct {
        i64 off;
        bool good;
    } times[] = {{0, true},     {300, true},          {-300, true},   {301, false},
                 {-301, false}, {86400 * 365, false}, {-NOW_S, false}};
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        assert_int_equal(good_at(&s, &req, NOW_S + times[i].off), times[i].good);
    buf_free(&key);
}

static void the_vector_of_github_is_taken(void **state) {
    (void)state;
    slice secret = SL("It's a Secret to Everybody");
    struct source_config s = source(SCHEME_GITHUB, &secret, 1);
    struct http_field fields[] = {
        {SL("X-Hub-Signature-256"), SL("sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17")}};
    struct http_request req = request(fields, 1, SL("Hello, World!"));
    assert_true(good_at(&s, &req, 0));
    fields[0].value.n--;
    assert_false(good_at(&s, &req, 0));
}

static void put_hex_mac(struct buf *out, slice key, const slice *parts, u32 count) {
    u8 mac[WEBHOOK_MAC_BYTES];
    webhook_mac(key, parts, count, mac);
    buf_hex(out, slice_of(mac, sizeof mac));
}

static void stripe_signs_with_the_whole_secret_and_one_of_several_signatures_is_enough(void **state) {
    (void)state;
    slice secret = SL("whsec_notdecoded"), body = SL("{\"id\":\"evt_1\"}");
    struct source_config s = source(SCHEME_STRIPE, &secret, 1);
    struct buf value = {0};
    buf_printf(&value, "t=%d,v0=00,v1=%064d, v1=", NOW_S, 0);
    put_hex_mac(&value, secret, (slice[]){SL("1614265330"), SL("."), body}, 3);
    struct http_field fields[] = {{SL("Stripe-Signature"), buf_slice(&value)}};
    struct http_request req = request(fields, 1, body);
    assert_true(good_at(&s, &req, NOW_S));
    assert_false(good_at(&s, &req, NOW_S + 301));
    buf_lit(&value, ",t=9999999999"); /* a second time could be the one that is signed, or the one that is looked at */
    fields[0].value = buf_slice(&value);
    assert_false(good_at(&s, &req, NOW_S));
    buf_free(&value);
}

static void a_source_of_its_own_kind_says_where_the_signature_is(void **state) {
    (void)state;
    slice secret = SL("secret"), body = SL("body");
    struct source_config s = source(SCHEME_HMAC, &secret, 1);
    u8 mac[WEBHOOK_MAC_BYTES];
    s.header = SL("x-sign");
    s.prefix = SL("mac ");
    for (u32 base64 = 0; base64 < 2; base64++) {
        struct buf value = {0};
        s.encoding = base64 ? ENCODING_BASE64 : ENCODING_HEX;
        webhook_mac(secret, &body, 1, mac);
        buf_lit(&value, "mac ");
        (base64 ? buf_base64 : buf_hex)(&value, slice_of(mac, sizeof mac));
        struct http_field fields[] = {{SL("X-Sign"), buf_slice(&value)}, {SL("X-Sign"), buf_slice(&value)}};
        struct http_request req = request(fields, 1, body);
        assert_true(good_at(&s, &req, 0));
        req.field_count = 2; /* which of the two somebody else looks at is not known */
        assert_false(good_at(&s, &req, 0));
        req.field_count = 1;
        fields[0].value.p++, fields[0].value.n--;
        assert_false(good_at(&s, &req, 0));
        buf_free(&value);
    }
}

/* ---- what is not taken */

static void every_byte_of_a_signed_request_counts(void **state) {
    (void)state;
    struct buf key = standard_key();
    slice secret = buf_slice(&key);
    struct source_config s = source(SCHEME_STANDARD, &secret, 1);
    slice body = SL("{\"test\": 2432232314}");
    slice *parts[] = {&standard[0].value, &standard[1].value, &standard[2].value, &body};
    struct http_request req = request(standard, 3, body);
    for (size_t k = 0; k < 4; k++) {
        slice whole = *parts[k];
        char *copy = test_malloc(whole.n);
        for (size_t i = 0; i < whole.n; i++) {
            memcpy(copy, whole.p, whole.n);
            copy[i] = (char)(copy[i] ^ 1);
            *parts[k] = slice_of(copy, whole.n);
            req.body = body;
            assert_false(good_at(&s, &req, NOW_S));
        }
        *parts[k] = whole;
        req.body = body;
        test_free(copy);
    }
    assert_true(good_at(&s, &req, NOW_S));
    buf_free(&key);
}

static void a_secret_can_be_changed_while_both_are_in_use(void **state) {
    (void)state;
    struct buf key = standard_key();
    slice old_and_new[] = {SL("another-secret-of-many-bytes"), buf_slice(&key)};
    struct source_config s = source(SCHEME_STANDARD, old_and_new, 2);
    struct http_request req = request(standard, 3, SL("{\"test\": 2432232314}"));
    assert_true(good_at(&s, &req, NOW_S));
    s.secrets.count = 1;
    assert_false(good_at(&s, &req, NOW_S));
    buf_free(&key);
}

static void a_list_of_hundreds_of_signatures_is_looked_through(void **state) {
    (void)state;
    struct buf key = standard_key(), list = {0};
    slice secret = buf_slice(&key);
    struct source_config s = source(SCHEME_STANDARD, &secret, 1);
    for (int i = 0; i < 300; i++) buf_printf(&list, "v1,%043d= v2,x v1a,%d  ", i, i);
    struct http_field fields[] = {standard[0], standard[1], {SL("webhook-signature"), buf_slice(&list)}};
    struct http_request req = request(fields, 3, SL("{\"test\": 2432232314}"));
    assert_false(good_at(&s, &req, NOW_S));
    buf_slice_add(&list, standard[2].value);
    fields[2].value = buf_slice(&list);
    assert_true(good_at(&s, &req, NOW_S));
    buf_free(&key);
    buf_free(&list);
}

static void what_is_malformed_is_not_taken(void **state) {
    (void)state;
    struct buf key = standard_key();
    slice secret = buf_slice(&key);
    struct source_config s = source(SCHEME_STANDARD, &secret, 1);
    static const char *const times[] = {
        "", " ", "-1614265330", "1614265330.0", "+1614265330", "0x6", "99999999999999999999", "1e9"};
    static const char *const lists[] = {"",
                                        "v1,",
                                        "v1",
                                        "g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
                                        "v1,====",
                                        "v1,g0hM",
                                        "V1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
                                        ",",
                                        " , ,",
                                        "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=="};
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        struct http_field fields[] = {standard[0], {SL("webhook-timestamp"), slice_str(times[i])}, standard[2]};
        struct http_request req = request(fields, 3, SL("{\"test\": 2432232314}"));
        assert_false(good_at(&s, &req, NOW_S));
    }
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        struct http_field fields[] = {standard[0], standard[1], {SL("webhook-signature"), slice_str(lists[i])}};
        struct http_request req = request(fields, 3, SL("{\"test\": 2432232314}"));
        assert_false(good_at(&s, &req, NOW_S));
    }
    for (size_t missing = 0; missing < 3; missing++) {
        struct http_field fields[] = {standard[0], standard[1], standard[2]};
        fields[missing] = fields[2];
        struct http_request req = request(fields, 2, SL("{\"test\": 2432232314}"));
        assert_false(good_at(&s, &req, NOW_S));
    }
    buf_free(&key);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_vector_of_standard_webhooks_is_taken_for_five_minutes_either_way),
        cmocka_unit_test(the_vector_of_github_is_taken),
        cmocka_unit_test(stripe_signs_with_the_whole_secret_and_one_of_several_signatures_is_enough),
        cmocka_unit_test(a_source_of_its_own_kind_says_where_the_signature_is),
        cmocka_unit_test(every_byte_of_a_signed_request_counts),
        cmocka_unit_test(a_secret_can_be_changed_while_both_are_in_use),
        cmocka_unit_test(a_list_of_hundreds_of_signatures_is_looked_through),
        cmocka_unit_test(what_is_malformed_is_not_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
