/* Tokens and rights: who is not allowed gets nothing done and nothing told. */
#include "broker_world.h"
#include "net/digest.h"
#include "net/parse.h"

/* Tokens are hx_NAME here. */
static void put_token(struct buf *yaml, const char *name, const char *rest) {
    u8 hash[DIGEST_BYTES];
    char text[64];
    snprintf(text, sizeof text, "hx_%s", name);
    digest_sha256(slice_str(text), hash);
    buf_printf(yaml, "  - {name: %s, sha256: [", name);
    buf_hex(yaml, slice_of(hash, sizeof hash));
    buf_printf(yaml, "], %s}\n", rest);
}

/* tokens: NAME, "allow: [...]" in turn, NULL-ended. */
static void serve(const char *more, const char *const *tokens) {
    struct buf yaml = {0};
    buf_printf(&yaml, "%stokens:\n", more);
    for (; *tokens; tokens += 2) put_token(&yaml, tokens[0], tokens[1]);
    buf_char(&yaml, 0);
    reload(yaml.p);
    buf_free(&yaml);
}

static u16 ask(const char *authorization, const char *line) {
    w.authorization = authorization;
    u16 status = request(line, "k", SL("{}"), NULL);
    w.authorization = NULL;
    return status;
}

#define QUEUES "auto_create: true\nqueues: {payments: {}, orders: {}}\n"

static void without_tokens_nobody_is_asked(void **state) {
    (void)state;
    reload(QUEUES);
    assert_int_equal(ask(NULL, "POST /v1/queues/payments/messages"), 202);
    assert_int_equal(ask("Bearer hx_whatever", "GET /v1/queues/payments"), 200);
}

static void a_token_opens_what_it_allows_and_nothing_else(void **state) {
    (void)state;
    serve(QUEUES, (const char *[]){"shop", "allow: ['send:payments']", NULL});
    assert_int_equal(ask("Bearer hx_shop", "POST /v1/queues/payments/messages"), 202);
    assert_int_equal(ask("bearer   hx_shop", "POST /v1/queues/payments/messages"), 202);
    assert_int_equal(ask("Bearer hx_shop", "GET /v1/queues/payments"), 403);
    assert_said("\"code\":\"forbidden\"");
    assert_said("observe:payments");
    assert_int_equal(ask("Bearer hx_shop", "POST /v1/queues/orders/messages"), 404);
    assert_said("\"code\":\"no_such_queue\"");
    static const char *const wrong[] = {NULL,      "Bearer hx_shoq", "Bearer",        "Basic hx_shop",
                                        "hx_shop", "Bearerhx_shop",  "Bearer hx_sho", "Bearer hx_shop x"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(ask(wrong[i], "POST /v1/queues/payments/messages"), 401);
        assert_said("\"code\":\"unauthorized\"");
        assert_non_null(strstr(w.fields.p, "WWW-Authenticate: Bearer\r\n"));
        assert_int_equal(ask(wrong[i], "GET /healthz"), 200);
    }
}

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(without_tokens_nobody_is_asked),
        T(a_token_opens_what_it_allows_and_nothing_else),
    };
#undef T
    return cmocka_run_group_tests(tests, NULL, NULL);
}
