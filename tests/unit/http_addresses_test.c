/* Where connections come from: who has most is known at any time, and what is remembered is bounded. */
#include "net/server_priv.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define CONNS     200u
#define ADDRESSES 20u

static struct http_server server;
static struct http_conn conns[CONNS];

static int set_up(void **state) {
    (void)state;
    server.addresses = http_addresses_new(CONNS);
    for (u32 i = 0; i < CONNS; i++) {
        conns[i] = (struct http_conn){.server = &server};
        http_link_init(&conns[i].mine);
    }
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    for (u32 i = 0; i < CONNS; i++) http_address_leave(&conns[i]);
    http_addresses_free(server.addresses);
    return 0;
}

static void join_four(struct http_conn *c, u32 address) {
    u8 bytes[HTTP_ADDRESS_BYTES] = {[10] = 0xFF, [11] = 0xFF};
    put_u32(bytes + 12, address);
    http_address_join(c, bytes);
}

static void the_address_with_most_connections_is_known_at_any_time(void **state) {
    (void)state;
    struct rng rng;
    u32 count[ADDRESSES] = {0}, of[CONNS] = {0};
    rng_seed(&rng, 7);
    for (u32 i = 0; i < 20000; i++) {
        u32 k = (u32)rng_below(&rng, CONNS), most = 0;
        if (conns[k].address) {
            http_address_leave(&conns[k]);
            count[of[k]]--;
        } else {
            of[k] = (u32)rng_below(&rng, 1 + rng_below(&rng, ADDRESSES));
            join_four(&conns[k], of[k]);
            count[of[k]]++;
            assert_int_equal(conns[k].address->count, count[of[k]]);
        }
        for (u32 a = 0; a < ADDRESSES; a++)
            if (count[a] > most) most = count[a];
        const struct http_address *found = http_address_most(server.addresses);
        assert_int_equal(found ? found->count : 0, most);
    }
}

static void addresses_of_one_ipv6_network_are_one_client(void **state) {
    (void)state;
    static const u8 a[HTTP_ADDRESS_BYTES] = {0x20, 1, [7] = 1, [15] = 1},
                    b[HTTP_ADDRESS_BYTES] = {0x20, 1, [7] = 1, [8] = 9},
                    c[HTTP_ADDRESS_BYTES] = {0x20, 1, [7] = 2, [15] = 1};
    char text[HTTP_ADDRESS_TEXT];
    http_address_join(&conns[0], a);
    http_address_join(&conns[1], b);
    http_address_join(&conns[2], c);
    assert_ptr_equal(conns[0].address, conns[1].address);
    assert_ptr_not_equal(conns[0].address, conns[2].address);
    http_address_text(conns[0].address, text);
    assert_string_equal(text, "2001:0:0:1::/64");
    join_four(&conns[3], 0x0100007F);
    join_four(&conns[4], 0x0200007F);
    assert_ptr_not_equal(conns[3].address, conns[4].address);
    http_address_text(conns[3].address, text);
    assert_string_equal(text, "127.0.0.1");
}

static void a_client_that_reconnects_is_the_same_until_many_others_have_come(void **state) {
    (void)state;
    join_four(&conns[0], 1);
    conns[0].address->use.waiting = 42;
    for (u32 i = 0; i < 1000; i++) {
        http_address_leave(&conns[0]);
        join_four(&conns[0], 2 + i);
    }
    http_address_leave(&conns[0]);
    join_four(&conns[0], 1);
    assert_int_equal(conns[0].address->use.waiting, 42);
    http_address_leave(&conns[0]);
    for (u32 i = 0; i < 100000; i++) {
        join_four(&conns[1], 2000 + i);
        http_address_leave(&conns[1]);
    }
    join_four(&conns[0], 1);
    assert_int_equal(conns[0].address->use.waiting, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_address_with_most_connections_is_known_at_any_time, set_up, tear_down),
        cmocka_unit_test_setup_teardown(addresses_of_one_ipv6_network_are_one_client, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_client_that_reconnects_is_the_same_until_many_others_have_come, set_up,
                                        tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
