/* What is signed is what receivers that follow Standard Webhooks check. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "net/webhook.h"

static void the_published_vector_has_its_published_signature(void **state) {
    (void)state;
    struct buf key = {0}, out = {0};
    assert_true(buf_base64_decode(&key, SL("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")));
    webhook_sign(&out, buf_slice(&key), SL("msg_p5jXN8AQM9LWM0D4loKWxJek"), 1614265330, SL("{\"test\": 2432232314}"));
    assert_true(slice_eq(buf_slice(&out), SL("v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=")));
    buf_free(&key);
    buf_free(&out);
}

/* A dot ends the id in what is signed, and a line break would end the header. */
static void an_id_keeps_what_may_stand_there_and_stays_different(void **state) {
    (void)state;
    static const struct {
        const char *id, *put;
    } cases[] = {
        {"lag:payments:1700000000000", "lag:payments:1700000000000"},
        {"lag:a.b:1", "lag:a%2Eb:1"},
        {"lag:a%2Eb:1", "lag:a%252Eb:1"},
        {"a b\r\n\x7F\xC3\xA9", "a%20b%0D%0A%7F%C3%A9"},
        {"", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf out = {0};
        webhook_put_id(&out, slice_str(cases[i].id));
        assert_true(slice_eq(buf_slice(&out), slice_str(cases[i].put)));
        buf_free(&out);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_published_vector_has_its_published_signature),
        cmocka_unit_test(an_id_keeps_what_may_stand_there_and_stays_different),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
