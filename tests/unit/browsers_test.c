/* Pages of other origins: whatever they ask for, nothing is applied and nothing told. */
#include "broker_world.h"
#include "net/parse.h"

/* A request as it came over the wire: its line and fields, without the last empty line. */
static u16 ask(const char *head, slice body) {
    struct http_head h;
    struct http_parse_error error;
    struct buf in = {0};
    buf_printf(&in, "%s\r\n", head);
    assert_int_equal(http_parse_head(buf_slice(&in), &h, &error), HTTP_PARSE_OK);
    h.req.body = body;
    void *user = NULL;
    bool wanted = broker_body_limit(w.broker, &h.req) != HTTP_BODY_UNWANTED;
    broker_request(w.broker, w.t, &w, &user, &h.req);
    work();
    buf_free(&in);
    assert_true(wanted == (w.status != 421 && w.status != 403));
    return w.status;
}

static u16 get(const char *path, const char *fields) {
    char head[1024];
    snprintf(head, sizeof head, "GET %s HTTP/1.1\r\n%s", path, fields);
    return ask(head, SL(""));
}

static u16 post(const char *key, const char *fields) {
    char head[1024];
    snprintf(head, sizeof head, "POST /v1/queues/q/messages HTTP/1.1\r\nIdempotency-Key: %s\r\nContent-Length: 1\r\n%s",
             key, fields);
    return ask(head, SL("x"));
}

static u16 host(const char *name) {
    char fields[512];
    snprintf(fields, sizeof fields, "Host: %s\r\n", name);
    return get("/v1/queues", fields);
}

static void serve_at(const char *address) {
    w.address = address;
    restart();
}

static void check_hosts(const char *const *names, u16 status) {
    for (; *names; names++)
        if (host(*names) != status) fail_msg("%s: %u, not %u", *names, w.status, status);
}

static void only_its_own_hosts_are_answered_to(void **state) {
    (void)state;
    static const char *const local[] = {"localhost",   "localhost:4279", "LocalHost:1", "127.0.0.1", "127.0.0.1:4279",
                                        "127.9.8.7:1", "[::1]:4279",     "[::1]",       NULL};
    static const char *const foreign[] = {"evil.example",
                                          "evil.example:4279",
                                          "localhost.evil.example",
                                          "127.0.0.1.evil.example",
                                          "localhost.",
                                          "localhos",
                                          "127.1",
                                          "2130706433",
                                          "0.0.0.0:4279",
                                          "[::]",
                                          "128.0.0.1",
                                          "[::2]",
                                          NULL};
    static const char *const numeric[] = {"10.0.0.5:4279", "[2001:db8::5]", "0.0.0.0", NULL};
    static const char *const every[] = {NULL, "127.0.0.1", "::1", "10.0.0.5", "0.0.0.0", "::"};
    for (u32 i = 0; i < sizeof every / sizeof every[0]; i++) {
        serve_at(every[i]);
        check_hosts(local, 200);
        assert_int_equal(host("evil.example"), 421);
    }
    serve_at("127.0.0.1");
    check_hosts(foreign, 421);
    assert_said("\"code\":\"misdirected\"");
    assert_said("\"applied\":\"no\"");
    assert_said("[::2]");
    check_hosts(numeric, 421);
    serve_at("10.0.0.5");
    assert_int_equal(host("10.0.0.5:4279"), 200);
    assert_int_equal(host("10.0.0.6:4279"), 421);
    serve_at("2001:db8::5");
    assert_int_equal(host("[2001:DB8:0::5]:1"), 200);
    serve_at("0.0.0.0");
    check_hosts(numeric, 200); /* a page cannot give an address to another machine */
    serve_at("::");
    check_hosts(numeric, 200);
}

static void names_in_the_file_are_known_from_the_reload_on(void **state) {
    (void)state;
    static const char *const listed[] = {"queue.example.com", "QUEUE.example.com:443", "10.1.2.3", "[2001:db8::7]:80",
                                         NULL};
    check_hosts(listed, 421);
    reload("auto_create: true\nhosts: [queue.example.com, 10.1.2.3, '2001:DB8:0::7']\n");
    check_hosts(listed, 200);
    assert_int_equal(host("localhost"), 200);
    assert_int_equal(host("x.queue.example.com"), 421);
    assert_int_equal(host("queue.example.com"), 200);
    reload("auto_create: true\n");
    assert_int_equal(host("queue.example.com"), 421); /* though it was the last one known */
    reload("auto_create: true\nhosts: ['*']\n");
    assert_int_equal(host("evil.example"), 200);
    assert_int_equal(get("/v1/queues", "Host: a.example\r\nOrigin: http://evil.example\r\n"), 403);
    reload("auto_create: true\n");
    assert_int_equal(host("evil.example"), 421);
}

#define HERE "Host: localhost:4279\r\n"

static void a_page_of_another_origin_gets_nothing_done(void **state) {
    (void)state;
    static const char *const foreign[] = {
        HERE "Origin: http://evil.example\r\n",
        HERE "Origin: null\r\n",
        HERE "Origin:\r\n",
        HERE "Origin: http://localhost\r\n",
        HERE "Origin: http://localhost:3000\r\n",
        HERE "Origin: https://localhost:4279\r\n",
        HERE "Origin: http://127.0.0.1:4279\r\n",
        HERE "Origin: http://localhost:4279.evil.example\r\n",
        HERE "Origin: http://localhost:4279/\r\n",
        HERE "Origin: http://localhost:4279\r\nOrigin: http://localhost:4279\r\n",
        HERE "Origin: ftp://localhost:4279\r\n",
        HERE "Origin: localhost:4279\r\n",
        HERE "Sec-Fetch-Site: cross-site\r\n",
        HERE "Sec-Fetch-Site: same-site\r\n",
        HERE "Sec-Fetch-Site: of-tomorrow\r\n",
        HERE "Sec-Fetch-Site:\r\n",
        HERE "Sec-Fetch-Site: none\r\nSec-Fetch-Site: none\r\n",
        HERE "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n",
        HERE "Sec-Fetch-Site: cross-site\r\nOrigin: http://localhost:4279\r\n",
        HERE "Sec-Fetch-Site: same-origin\r\nOrigin: http://evil.example\r\n",
        HERE "sec-fetch-site: cross-site\r\norigin: http://evil.example\r\n",
        NULL,
    };
    for (const char *const *f = foreign; *f; f++) {
        if (post("k", *f) != 403) fail_msg("POST with %s: %u", *f, w.status);
        assert_said("\"code\":\"foreign_origin\"");
        assert_null(strstr(w.fields.p, "Access-Control"));
        if (get("/v1/queues/q", *f) != 403) fail_msg("GET with %s: %u", *f, w.status);
        if (get("/none", *f) != 403) fail_msg("GET of nothing with %s: %u", *f, w.status);
    }
    assert_int_equal(post("k", "Host: evil.example\r\nOrigin: http://evil.example\r\n"), 421);
    assert_int_equal(get("/v1/queues/q", HERE), 404); /* nobody made it */
}

static void its_own_pages_and_clients_that_are_no_browser_go_on_as_ever(void **state) {
    (void)state;
    static const char *const own[] = {
        HERE,
        HERE "Origin: http://localhost:4279\r\nSec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: cors\r\n",
        HERE "Sec-Fetch-Site: same-origin\r\n",
        HERE "Sec-Fetch-Site: none\r\n",
        HERE "Origin: http://localhost:4279\r\nSec-Fetch-Site: same-site\r\n",
        "Host: localhost\r\nOrigin: http://localhost\r\n",
        "Host: localhost:80\r\nOrigin: http://localhost\r\n",
        "Host: [::1]:4279\r\nOrigin: http://[::1]:4279\r\n",
        NULL,
    };
    for (const char *const *f = own; *f; f++) {
        char key[8];
        snprintf(key, sizeof key, "k%d", (int)(f - own));
        if (post(key, *f) != 202) fail_msg("POST with %s: %u", *f, w.status);
        if (get("/v1/queues/q", *f) != 200) fail_msg("GET with %s: %u", *f, w.status);
    }
    assert_int_equal(ask("GET /v1/queues/q HTTP/1.0\r\n", SL("")), 200);
    assert_int_equal(ask("GET /v1/queues/q HTTP/1.0\r\nOrigin: http://localhost\r\n", SL("")), 403);
    assert_int_equal(ask("GET http://evil.example/v1/queues/q HTTP/1.0\r\n", SL("")), 421);
}

/* A proxy that speaks https and passes the Host on. */
static void a_listed_name_may_be_that_of_a_proxy_with_https(void **state) {
    (void)state;
    reload("auto_create: true\nhosts: [queue.example.com]\n");
    assert_int_equal(post("a", "Host: queue.example.com\r\nOrigin: https://queue.example.com\r\n"), 202);
    assert_int_equal(post("b", "Host: queue.example.com:443\r\nOrigin: https://queue.example.com\r\n"), 202);
    assert_int_equal(post("c", "Host: queue.example.com\r\nOrigin: https://queue.example.com:8443\r\n"), 403);
    assert_int_equal(post("d", "Host: queue.example.com\r\nOrigin: https://other.example.com\r\n"), 403);
    assert_int_equal(post("e", "Host: localhost\r\nOrigin: https://localhost\r\n"), 403);
}

static void a_link_to_the_dashboard_can_be_followed_and_nothing_else(void **state) {
    (void)state;
    static const char link[] = HERE "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n";
    static const char embedded[] = HERE "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\n";
    assert_int_equal(get("/", link), 200);
    assert_int_equal(get("/ui/app.js", link), 200);
    assert_int_equal(get("/", embedded), 403);
    assert_int_equal(get("/ui/app.js", embedded), 403);
    assert_int_equal(get("/v1/queues", link), 403);
    assert_int_equal(get("/metrics", link), 403);
    assert_int_equal(get("/healthz", link), 403);
    assert_int_equal(
        ask("POST / HTTP/1.1\r\n" HERE "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n", SL("")), 403);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(only_its_own_hosts_are_answered_to, set_up, tear_down),
        cmocka_unit_test_setup_teardown(names_in_the_file_are_known_from_the_reload_on, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_page_of_another_origin_gets_nothing_done, set_up, tear_down),
        cmocka_unit_test_setup_teardown(its_own_pages_and_clients_that_are_no_browser_go_on_as_ever, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_listed_name_may_be_that_of_a_proxy_with_https, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_link_to_the_dashboard_can_be_followed_and_nothing_else, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
