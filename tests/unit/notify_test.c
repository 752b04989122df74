/* What waits to be told is bounded, and of each alert it is the newest. Nothing is sent here: the loop does not run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/log.h"
#include "daemon/notify.h"

static slice secret = {"0123456789abcdef01234567", 24};
static const struct top_alerts somebody = {.notify_url = {"http://127.0.0.1:1/", 19},
                                           .notify_secrets = {.at = &secret, .count = 1}},
                               nobody = {0};

struct world {
    struct loop *loop;
    struct outbound *outbound;
    struct notify *notify;
};

static int open_world(void **state) {
    struct world *w = mem_zalloc(sizeof *w);
    log_set_level(LOG_ERROR);
    w->loop = loop_new();
    w->outbound = outbound_new(loop_uv(w->loop), NOTIFY_AT_ONCE);
    w->notify = notify_new(w->loop, w->outbound);
    notify_configure(w->notify, &somebody);
    *state = w;
    return 0;
}

static int close_world(void **state) {
    struct world *w = *state;
    notify_free(w->notify);
    outbound_free(w->outbound);
    loop_free(w->loop);
    mem_free(w);
    return 0;
}

static void tell(struct world *w, const char *alert, u32 queue, u32 since) {
    char id[64];
    int n = snprintf(id, sizeof id, "%s:q:%u:%u", alert, queue, since);
    notify_tell(w->notify, slice_of(id, (size_t)n), SL("{}"));
}

static void assert_stats(const struct world *w, u32 waiting, u32 dropped) {
    char expected[128];
    struct buf b = {0};
    snprintf(expected, sizeof expected, ",\"notify\":{\"sent\":0,\"failed\":0,\"waiting\":%u,\"dropped\":%u}", waiting,
             dropped);
    notify_stats(w->notify, &b);
    buf_char(&b, '\0');
    assert_string_equal(b.p, expected);
    buf_free(&b);
}

static void a_newer_state_takes_the_place_of_an_older_one(void **state) {
    struct world *w = *state;
    for (u32 since = 1; since <= 5; since++) tell(w, "lag", 1, since);
    assert_stats(w, 1, 0);
    tell(w, "lag", 2, 1);
    tell(w, "held_waiting", 1, 1);
    assert_stats(w, 3, 0);
}

static void beyond_its_bound_the_oldest_is_dropped(void **state) {
    struct world *w = *state;
    for (u32 queue = 0; queue < NOTIFY_WAITING_MAX + 10; queue++) tell(w, "lag", queue, 1);
    assert_stats(w, NOTIFY_WAITING_MAX, 10);
    tell(w, "lag", NOTIFY_WAITING_MAX + 9, 2); /* is there */
    assert_stats(w, NOTIFY_WAITING_MAX, 10);
    tell(w, "lag", 0, 2); /* is not */
    assert_stats(w, NOTIFY_WAITING_MAX, 11);
}

static void nothing_waits_for_nobody(void **state) {
    struct world *w = *state;
    tell(w, "lag", 1, 1);
    notify_configure(w->notify, &somebody);
    assert_stats(w, 1, 0);
    notify_configure(w->notify, &nobody);
    assert_stats(w, 0, 1);
    tell(w, "lag", 1, 2);
    assert_stats(w, 0, 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_world, close_world)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_newer_state_takes_the_place_of_an_older_one),
        TEST(beyond_its_bound_the_oldest_is_dropped),
        TEST(nothing_waits_for_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
