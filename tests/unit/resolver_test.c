/* Names are looked up beside the loop: one that hangs keeps neither the others nor the loop waiting. */
#include "outbound_kit.h"

#include <netdb.h>

/* Names that begin with "slow" wait for the test. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    u32 asked, hanging;
    bool go;
} dns = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static int look_up(const char *host, struct addrinfo **out) {
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
    pthread_mutex_lock(&dns.lock);
    dns.asked++;
    bool slow = strncmp(host, "slow", 4) == 0;
    if (slow) dns.hanging++;
    pthread_cond_broadcast(&dns.changed);
    while (slow && !dns.go) pthread_cond_wait(&dns.changed, &dns.lock);
    if (slow) dns.hanging--;
    pthread_cond_broadcast(&dns.changed);
    pthread_mutex_unlock(&dns.lock);
    return strstr(host, "none") ? EAI_NONAME : getaddrinfo("127.0.0.1", NULL, &hints, out);
}

static void await_hanging(u32 count) {
    pthread_mutex_lock(&dns.lock);
    while (dns.hanging != count) pthread_cond_wait(&dns.changed, &dns.lock);
    pthread_mutex_unlock(&dns.lock);
}

static void let_go(void) {
    pthread_mutex_lock(&dns.lock);
    dns.go = true;
    pthread_cond_broadcast(&dns.changed);
    pthread_mutex_unlock(&dns.lock);
}

static int open_world(void **state) {
    (void)state;
    dns.asked = 0;
    dns.go = false;
    kit_open_with(look_up, "/etc/ssl/certs");
    return 0;
}

static int close_world(void **state) {
    let_go();
    kit_close_world(state);
    await_hanging(0);
    return 0;
}

static const struct step taken[] = {{"HTTP/1.1 204 No Content\r\n\r\n", KEEP, 0}};

static struct outbound_request to_name(const char *host, u16 port, char url[128]) {
    snprintf(url, 128, "http://%s:%u/", host, port);
    return (struct outbound_request){
        .method = "POST", .url = url, .body = SL("x"), .connect_ms = 30000, .total_ms = 30000, .allow_private = true};
}

static void a_name_that_hangs_keeps_nobody_else_waiting(void **state) {
    struct server s;
    struct heard slow = {0}, h = {0};
    char url[128];
    (void)state;
    server_open(&s, taken, 1);
    struct outbound_request r = to_name("slow.example", s.port, url);
    call_begin(&r, &slow);
    r = to_name("quick.example", s.port, url);
    kit.waiting = 0;
    call_and_wait(&r, &h);
    assert_int_equal(h.end, OUTBOUND_ANSWERED);
    assert_int_equal(slow.count, 0);
    await_hanging(1);
    kit.waiting = 1;
    let_go();
    loop_run(kit.loop);
    assert_int_equal(slow.end, OUTBOUND_ANSWERED);
    heard_free(&slow);
    heard_free(&h);
    kit_close_world(NULL);
    server_close(&s);
    open_world(NULL);
}

static void whoever_waits_for_a_name_has_a_deadline(void **state) {
    struct heard h = {0};
    char url[128];
    (void)state;
    struct outbound_request r = to_name("slow.example", 1, url);
    r.connect_ms = 100;
    call_and_wait(&r, &h);
    assert_int_equal(h.end, OUTBOUND_NOT_SENT);
    assert_string_equal(h.why.p, "the name was not found in time");
    heard_free(&h);
}

static void all_who_ask_for_a_name_share_one_look_up(void **state) {
    struct server s;
    struct heard h[50] = {{0}};
    char url[128];
    (void)state;
    server_open(&s, taken, 1);
    struct outbound_request r = to_name("slow.example", s.port, url);
    for (u32 i = 0; i < 50; i++) call_begin(&r, &h[i]);
    struct outbound_call *leaves = outbound_call(kit.out, &r, on_heard, NULL, 0);
    struct heard other = {0};
    struct outbound_request quick = to_name("quick.example", s.port, url);
    kit.waiting = 0;
    call_and_wait(&quick, &other); /* by now all of them wait */
    await_hanging(1);
    outbound_cancel(leaves);
    kit.waiting = 50;
    let_go();
    loop_run(kit.loop);
    for (u32 i = 0; i < 50; i++) {
        assert_int_equal(h[i].end, OUTBOUND_ANSWERED);
        heard_free(&h[i]);
    }
    assert_int_equal(dns.asked, 2);
    heard_free(&other);
    kit_close_world(NULL);
    server_close(&s);
    open_world(NULL);
}

static void threads_are_bounded_however_many_names_hang(void **state) {
    struct heard h[40] = {{0}};
    char url[128], host[32];
    (void)state;
    for (u32 i = 0; i < 40; i++) {
        snprintf(host, sizeof host, "slow-none-%u", i);
        struct outbound_request r = to_name(host, 1, url);
        call_begin(&r, &h[i]);
    }
    struct heard in_time = {0};
    struct outbound_request r = to_name("quick.example", 1, url);
    r.connect_ms = 200;
    kit.waiting = 0;
    call_and_wait(&r, &in_time); /* no thread is left for it: it waits on its own time */
    assert_int_equal(in_time.end, OUTBOUND_NOT_SENT);
    heard_free(&in_time);
    await_hanging(RESOLVER_THREADS);
    assert_int_equal(dns.asked, RESOLVER_THREADS);
    kit.waiting = 40;
    let_go();
    loop_run(kit.loop);
    for (u32 i = 0; i < 40; i++) {
        assert_int_equal(h[i].end, OUTBOUND_NOT_SENT);
        heard_free(&h[i]);
    }
}

static void a_name_there_is_not_is_not_asked_for_by_each(void **state) {
    char url[128];
    (void)state;
    for (u32 i = 0; i < 20; i++) {
        struct heard h = {0};
        struct outbound_request r = to_name("none.example", 1, url);
        call_and_wait(&r, &h);
        assert_int_equal(h.end, OUTBOUND_NOT_SENT);
        heard_free(&h);
    }
    assert_true(dns.asked < 20);
}

static void names_that_are_known_are_bounded(void **state) {
    char url[128], host[32];
    (void)state;
    for (u32 i = 0; i < RESOLVER_NAMES + 100; i++) {
        struct heard h = {0};
        snprintf(host, sizeof host, "none-%u", i);
        struct outbound_request r = to_name(host, 1, url);
        call_and_wait(&r, &h);
        heard_free(&h);
    }
    assert_int_equal(dns.asked, RESOLVER_NAMES + 100);
}

static void an_end_does_not_wait_for_a_name_that_hangs(void **state) {
    struct heard h = {0}, quick = {0};
    char url[128];
    (void)state;
    struct outbound_request r = to_name("slow.example", 1, url);
    call_begin(&r, &h);
    r = to_name("none.example", 1, url);
    kit.waiting = 0;
    call_and_wait(&r, &quick);
    await_hanging(1);
    kit_close_world(NULL);
    assert_int_equal(dns.hanging, 1);
    assert_int_equal(h.count, 0);
    heard_free(&quick);
    let_go();
    await_hanging(0);
    open_world(NULL);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_world, close_world)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_name_that_hangs_keeps_nobody_else_waiting),  TEST(whoever_waits_for_a_name_has_a_deadline),
        TEST(all_who_ask_for_a_name_share_one_look_up),     TEST(threads_are_bounded_however_many_names_hang),
        TEST(a_name_there_is_not_is_not_asked_for_by_each), TEST(names_that_are_known_are_bounded),
        TEST(an_end_does_not_wait_for_a_name_that_hangs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
