/* One connection's TLS, without a socket: what passes between the two sides is in the test's hands. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "net/tls_priv.h"
#include "unit/tls_kit.h"

#define HOUR_MS ((i64)3600 * 1000)

static struct tls_kit kit;

struct pair {
    struct tls_conn *server;
    SSL *client;
    struct buf told, plain; /* what the server said, sealed; what it opened */
    enum tls_state state;
};

static char space[TLS_PLAIN_MAX], wire[TLS_READ_BYTES];

static void open_pair(struct pair *p, SSL_SESSION *session) {
    *p = (struct pair){.server = tls_accept(kit.tls), .client = SSL_new(kit.client)};
    SSL_set_bio(p->client, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
    SSL_set_connect_state(p->client);
    if (session) SSL_set_session(p->client, session);
}

static void close_pair(struct pair *p) {
    tls_conn_free(p->server);
    SSL_set_shutdown(p->client, SSL_SENT_SHUTDOWN | SSL_RECEIVED_SHUTDOWN); /* else it forgets its session */
    SSL_free(p->client);
    buf_free(&p->told);
    buf_free(&p->plain);
}

/* What the client has said reaches the server, `piece` bytes at a time; what that says reaches the client. */
static void carry(struct pair *p, size_t piece) {
    int n;
    while ((n = BIO_read(SSL_get_wbio(p->client), wire, (int)piece)) > 0 && p->state == TLS_OPEN) {
        size_t got = 0;
        p->state = tls_open(p->server, slice_of(wire, (size_t)n), space, &got, &p->told);
        buf_add(&p->plain, space, got);
    }
    if (p->told.len) assert_int_equal(BIO_write(SSL_get_rbio(p->client), p->told.p, (int)p->told.len), p->told.len);
    buf_reset(&p->told);
}

static void shake_hands(struct pair *p, size_t piece) {
    for (int i = 0; i < 4; i++) {
        SSL_do_handshake(p->client);
        carry(p, piece);
    }
    assert_true(tls_established(p->server) && SSL_is_init_finished(p->client));
}

static void say(struct pair *p, const char *text) {
    size_t done;
    assert_int_equal(SSL_write_ex(p->client, text, strlen(text), &done), 1);
}

/* Takes tickets in, too. */
static void expect(struct pair *p, const char *text) {
    char got[256];
    size_t n = 0;
    assert_true(tls_seal(p->server, slice_str(text), &p->told));
    carry(p, sizeof wire);
    assert_int_equal(SSL_read_ex(p->client, got, sizeof got, &n), 1);
    assert_int_equal(n, strlen(text));
    assert_memory_equal(got, text, n);
}

static void bytes_cut_anywhere_are_opened_the_same(void **state) {
    (void)state;
    static const size_t pieces[] = {1, 2, 5, 6, 7, 100, sizeof wire};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        struct pair p;
        open_pair(&p, NULL);
        shake_hands(&p, pieces[i]);
        say(&p, "one ");
        say(&p, "two");
        carry(&p, pieces[i]);
        assert_true(slice_eq(buf_slice(&p.plain), SL("one two")));
        expect(&p, "three");
        assert_int_equal(tls_held(p.server), 0);
        close_pair(&p);
    }
}

static bool resumes(SSL_SESSION *session) {
    struct pair p;
    open_pair(&p, session);
    shake_hands(&p, sizeof wire);
    expect(&p, "x");
    bool resumed = tls_resumed(p.server);
    assert_int_equal(resumed, SSL_session_reused(p.client));
    close_pair(&p);
    return resumed;
}

static void a_ticket_is_good_for_an_hour_or_two_and_then_a_whole_handshake_is_due(void **state) {
    (void)state;
    static const int versions[] = {TLS1_2_VERSION, TLS1_3_VERSION};
    i64 now_ms = clock_mono_ms();
    for (int i = 0; i < 2; i++) {
        struct pair p;
        SSL_CTX_set_max_proto_version(kit.client, versions[i]);
        open_pair(&p, NULL);
        shake_hands(&p, sizeof wire);
        expect(&p, "x");
        assert_false(tls_resumed(p.server));
        SSL_SESSION *session = SSL_get1_session(p.client);
        close_pair(&p);
        assert_true(resumes(session));
        tls_ticket_keys(kit.tls, now_ms += HOUR_MS);
        assert_true(resumes(session)); /* by the key before */
        tls_ticket_keys(kit.tls, now_ms += HOUR_MS);
        assert_false(resumes(session));
        SSL_SESSION_free(session);
    }
    SSL_CTX_set_max_proto_version(kit.client, 0);
    struct ticket_key before = kit.tls->tickets[0];
    tls_ticket_keys(kit.tls, now_ms + HOUR_MS - 1);
    assert_memory_equal(&before, &kit.tls->tickets[0], sizeof before);
    tls_ticket_keys(kit.tls, now_ms + 2 * HOUR_MS); /* nobody came meanwhile: neither may live on */
    assert_memory_not_equal(before.name, kit.tls->tickets[0].name, TICKET_NAME_BYTES);
    assert_memory_not_equal(before.name, kit.tls->tickets[1].name, TICKET_NAME_BYTES);
}

static void records_that_bring_nothing_are_not_taken_without_end(void **state) {
    (void)state;
    for (int many = 0; many < 2; many++) {
        struct pair p;
        open_pair(&p, NULL);
        shake_hands(&p, sizeof wire);
        for (int i = 0; i < (many ? 2000 : 20); i++) {
            assert_int_equal(SSL_key_update(p.client, SSL_KEY_UPDATE_REQUESTED), 1);
            SSL_do_handshake(p.client);
        }
        if (!many) say(&p, "after all");
        carry(&p, sizeof wire);
        assert_int_equal(p.state, many ? TLS_BROKEN : TLS_OPEN);
        assert_int_equal(p.plain.len, many ? 0 : 9);
        if (!many) expect(&p, "understood");
        close_pair(&p);
    }
}

static void an_end_is_said_and_heard(void **state) {
    (void)state;
    struct pair p;
    char got[8];
    size_t n;
    open_pair(&p, NULL);
    tls_end(p.server, &p.told);
    assert_int_equal(p.told.len, 0); /* before the handshake there is nobody to say it to */
    assert_false(tls_seal(p.server, SL("x"), &p.told));
    assert_int_equal(tls_held(p.server), 64 << 10);
    shake_hands(&p, sizeof wire);
    tls_end(p.server, &p.told);
    carry(&p, sizeof wire);
    assert_int_equal(SSL_read_ex(p.client, got, sizeof got, &n), 0);
    assert_int_equal(SSL_get_error(p.client, 0), SSL_ERROR_ZERO_RETURN);
    say(&p, "last");
    SSL_shutdown(p.client);
    carry(&p, sizeof wire);
    assert_int_equal(p.state, TLS_ENDED);
    assert_true(slice_eq(buf_slice(&p.plain), SL("last")));
    close_pair(&p);
}

static void what_is_damaged_on_the_way_is_refused_for_good(void **state) {
    (void)state;
    struct pair p;
    size_t n;
    open_pair(&p, NULL);
    shake_hands(&p, sizeof wire);
    say(&p, "request");
    int bytes = BIO_read(SSL_get_wbio(p.client), wire, sizeof wire);
    wire[bytes - 1] ^= 1;
    assert_int_equal(tls_open(p.server, slice_of(wire, (size_t)bytes), space, &n, &p.told), TLS_BROKEN);
    assert_true(n == 0 && p.told.len > 0); /* an alert */
    wire[bytes - 1] ^= 1;
    assert_int_equal(tls_open(p.server, slice_of(wire, (size_t)bytes), space, &n, &p.told), TLS_BROKEN);
    assert_int_equal(n, 0);
    assert_false(tls_seal(p.server, SL("x"), &p.told));
    close_pair(&p);
}

static int set_up(void **state) {
    (void)state;
    kit_open(&kit);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    kit_close(&kit);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_cut_anywhere_are_opened_the_same),
        cmocka_unit_test(a_ticket_is_good_for_an_hour_or_two_and_then_a_whole_handshake_is_due),
        cmocka_unit_test(records_that_bring_nothing_are_not_taken_without_end),
        cmocka_unit_test(an_end_is_said_and_heard),
        cmocka_unit_test(what_is_damaged_on_the_way_is_refused_for_good),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
