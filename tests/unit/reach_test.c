/* Where requests may go: nothing that is not public is reached unless it was allowed, however it is written, and whatever a
 * name says at whatever time. */
#include "outbound_kit.h"

#include <netdb.h>
#include <stdatomic.h>

#include "net/reach.h"

/* ---- names a test makes up */

static const struct {
    const char *host, *addresses; /* by commas */
} names[] = {
    {"localhost", "127.0.0.1"},
    {"localhost.", "127.0.0.1"},
    {"LOCALHOST", "::1"},
    {"app.localhost", "127.0.0.1"},
    {"127.0.0.1.", "127.0.0.1"},
    {"127.0.0.1.nip.example", "127.0.0.1"},
    {"metadata.google.internal", "169.254.169.254"},
    {"private.example", "10.1.2.3"},
    {"six.example", "fd00::1"},
    {"mixed.example", "93.184.216.34,127.0.0.1"},
    {"mixed-first.example", "127.0.0.1,93.184.216.34"},
    {"mixed-six.example", "93.184.216.34,::1"},
    {"mixed-late.example", "1.1.1.1,1.1.1.2,1.1.1.3,1.1.1.4,1.1.1.5,1.1.1.6,1.1.1.7,1.1.1.8,1.1.1.9,10.0.0.1"},
    {"mapped.example", "::ffff:127.0.0.1"},
    {"nat64.example", "64:ff9b::7f00:1"},
    {"xn--lcalhost-n4e.example", "127.0.0.1"},
    {"two.example", "127.0.0.9,127.0.0.1"}, /* nobody listens on the first */
    {"here.example", "127.0.0.1"},
};

static atomic_uint lookups;

static struct addrinfo *address_of(const char *text, size_t n) {
    char one[64];
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST},
                    *list = NULL;
    snprintf(one, sizeof one, "%.*s", (int)n, text);
    assert_int_equal(getaddrinfo(one, NULL, &hints, &list), 0);
    return list;
}

static int find_name(const char *host, struct addrinfo **out) {
    lookups++;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(names[i].host, host) != 0) continue;
        for (const char *at = names[i].addresses; *at;) {
            size_t n = strcspn(at, ",");
            *out = address_of(at, n);
            out = &(*out)->ai_next;
            at += n + (at[n] == ',');
        }
        return 0;
    }
    return EAI_NONAME;
}

static int open_world(void **state) {
    (void)state;
    lookups = 0;
    kit_open_with(find_name, "/etc/ssl/certs");
    return 0;
}

/* ---- what is not reached */

/* P is where somebody listens on this machine. */
static const char *const blocked[] = {
    /* IPv4: first, last and something between of each range */
    "http://127.0.0.1:P/",
    "http://127.0.0.2:P/",
    "http://127.255.255.255:P/",
    "http://127.1.2.3:P/",
    "http://0.0.0.0:P/",
    "http://0.0.0.1:P/",
    "http://0.255.255.255/",
    "http://10.0.0.0/",
    "http://10.0.0.1/",
    "http://10.255.255.255/",
    "https://10.20.30.40/",
    "http://172.16.0.0/",
    "http://172.16.0.1/",
    "http://172.31.255.255/",
    "http://172.20.1.1:8080/",
    "http://192.168.0.0/",
    "http://192.168.1.1/",
    "http://192.168.255.255/",
    "http://169.254.0.0/",
    "http://169.254.169.254/",
    "http://169.254.169.254/latest/meta-data/iam/",
    "http://169.254.170.2/v2/",
    "http://169.254.255.255/",
    "http://100.64.0.0/",
    "http://100.64.0.1/",
    "http://100.100.100.200/",
    "http://100.127.255.255/",
    "http://192.0.0.0/",
    "http://192.0.0.1/",
    "http://192.0.0.170/",
    "http://192.0.0.255/",
    "http://192.0.2.1/",
    "http://198.51.100.7/",
    "http://203.0.113.9/",
    "http://192.88.99.1/",
    "http://198.18.0.0/",
    "http://198.18.0.1/",
    "http://198.19.255.255/",
    "http://224.0.0.0/",
    "http://224.0.0.1/",
    "http://239.255.255.255/",
    "http://240.0.0.0/",
    "http://250.1.2.3/",
    "http://255.255.255.254/",
    "http://255.255.255.255/",
    /* the same, written otherwise */
    "http://2130706433:P/",
    "http://0x7f000001:P/",
    "http://0x7F.0x0.0x0.0x1:P/",
    "http://0177.0.0.1:P/",
    "http://017700000001:P/",
    "http://127.1:P/",
    "http://127.0.1:P/",
    "http://0x7f.1:P/",
    "http://0177.1:P/",
    "http://127.0x1:P/",
    "http://0:P/",
    "http://0x0:P/",
    "http://00:P/",
    "http://0300.0250.1.1/",
    "http://0xc0a80101/",
    "http://3232235777/",
    "http://192.168.257/",
    "http://192.11010305/",
    "http://0xa000001/",
    "http://10.1/",
    "http://012.1/",
    "http://2852039166/latest/",
    "http://0xa9fea9fe/",
    "http://0xa9.0xfe.0xa9.0xfe/",
    "http://0251.0376.0251.0376/",
    "http://169.16689662/",
    "http://4294967295/",
    "http://127.0.0.1.:P/",
    "http://%31%32%37.0.0.1:P/",
    "http://127.0.0.1%00:P/",
    "http://127%2e0%2e0%2e1:P/",
    /* IPv6 */
    "http://[::1]:P/",
    "http://[0:0:0:0:0:0:0:1]:P/",
    "http://[0000:0000:0000:0000:0000:0000:0000:0001]:P/",
    "http://[::]:P/",
    "http://[0::0]:P/",
    "http://[fc00::]/",
    "http://[fc00::1]/",
    "http://[fd12:3456:789a::1]/",
    "http://[fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]/",
    "http://[fd00:ec2::254]/",
    "http://[fe80::]/",
    "http://[fe80::1]/",
    "http://[fe80::1%25lo]:P/",
    "http://[fe80::1%25eth0]/",
    "http://[febf::1]/",
    "http://[fec0::1]/",
    "http://[::ffff:0:0]/",
    "http://[::ffff:127.0.0.1]:P/",
    "http://[::ffff:7f00:1]:P/",
    "http://[::ffff:10.0.0.1]/",
    "http://[::ffff:169.254.169.254]/",
    "http://[::ffff:8.8.8.8]/",
    "http://[::127.0.0.1]:P/",
    "http://[::7f00:1]:P/",
    "http://[::ffff:0:127.0.0.1]/",
    "http://[64:ff9b::7f00:1]/",
    "http://[64:ff9b::127.0.0.1]/",
    "http://[64:ff9b::a9fe:a9fe]/",
    "http://[64:ff9b::808:808]/",
    "http://[64:ff9b:1::1]/",
    "http://[2002:7f00:1::]/",
    "http://[2002:a9fe:a9fe::1]/",
    "http://[2002:c0a8:101::1]/",
    "http://[2002:808:808::1]/",
    "http://[2001::1]/",
    "http://[2001:0:4136:e378:8000:63bf:3fff:fdd2]/",
    "http://[2001:db8::1]/",
    "http://[3fff::1]/",
    "http://[2001:10::1]/",
    "http://[ff02::1]/",
    "http://[ff0e::1]/",
    "http://[100::1]/",
    "http://[5f00::1]/",
    "http://[::2]/",
    /* names */
    "http://localhost:P/",
    "http://localhost.:P/",
    "http://LOCALHOST:P/",
    "http://app.localhost:P/",
    "http://127.0.0.1.nip.example:P/",
    "http://metadata.google.internal/computeMetadata/v1/",
    "http://private.example/",
    "http://six.example/",
    "http://mixed.example:P/",
    "http://mixed-first.example:P/",
    "http://mixed-six.example:P/",
    "http://mixed-late.example/",
    "http://mapped.example:P/",
    "http://nat64.example/",
    "http://xn--lcalhost-n4e.example:P/",
    "http://nowhere.example/",
    /* users, and what looks like a host and is none */
    "http://public.example@127.0.0.1:P/",
    "http://user:pass@127.0.0.1:P/",
    "http://user@8.8.8.8/",
    "http://@127.0.0.1:P/",
    "http://:@127.0.0.1:P/",
    "http://a:b@c:d@127.0.0.1:P/",
    "http://127.0.0.1:P#@public.example/",
    "http://127.0.0.1:P?@public.example/",
    "http://127.0.0.1:P/@public.example/",
    "http://public.example#@127.0.0.1:P/",
    "http://public.example\\@127.0.0.1:P/",
    "http://127.0.0.1\\@public.example/",
    "http://public.example%40127.0.0.1:P/",
    "http://127.0.0.1:P\\.public.example/",
    "http://127.0.0.1 .public.example/",
    "http://127.0.0.1\t/",
    "http://127.0.0.1\n.public.example/",
    "http://127.0.0.1\r\nHost: x/",
    "http:// 127.0.0.1/",
    /* letters that look like others */
    "http://\xe2\x93\x9bocalhost:P/",
    "http://127\xe3\x80\x82"
    "0\xe3\x80\x82"
    "0\xe3\x80\x82"
    "1:P/",
    "http://\xe2\x91\xa0\xe2\x91\xa1\xe2\x91\xa6.\xe2\x93\xaa.\xe2\x93\xaa.\xe2\x91\xa0:P/",
    "http://loc\xd0\xb0lhost:P/",
    "http://\xef\xbc\x91\xef\xbc\x92\xef\xbc\x97.0.0.1:P/",
    "http://b\xc3\xbc"
    "cher.example/",
    "http://\xff\xfe/",
    /* ports */
    "http://127.0.0.1:0/",
    "http://private.example:0/",
    "http://8.8.8.8:0/",
    "http://8.8.8.8:00/",
    "http://8.8.8.8:65536/",
    "http://8.8.8.8:99999/",
    "http://8.8.8.8:-1/",
    "http://8.8.8.8:80:80/",
    "http://8.8.8.8:http/",
    "http://8.8.8.8:0x50/",
    "http://8.8.8.8:8 0/",
    "http://127.0.0.1:22/",
    "http://127.0.0.1:6379/",
    "http://[::1]:25/",
    /* other protocols, and none */
    "file:///etc/passwd",
    "file://localhost/etc/passwd",
    "ftp://127.0.0.1:P/",
    "ftps://127.0.0.1/",
    "gopher://127.0.0.1:P/_x",
    "dict://127.0.0.1:P/d",
    "ldap://127.0.0.1/",
    "smb://127.0.0.1/x",
    "telnet://127.0.0.1:P",
    "scp://127.0.0.1/x",
    "sftp://127.0.0.1/x",
    "tftp://127.0.0.1/x",
    "imap://127.0.0.1/",
    "smtp://127.0.0.1/",
    "rtsp://127.0.0.1:P/",
    "mqtt://127.0.0.1/",
    "ws://127.0.0.1:P/",
    "javascript:alert(1)",
    "data:text/plain,x",
    "jar:http://127.0.0.1/",
    "unix:/run/docker.sock",
    "http+unix://%2Frun%2Fdocker.sock/",
    "127.0.0.1:P/",
    "//127.0.0.1:P/",
    "/path",
    "",
    "http",
    "http:",
    "http://",
    "http:///",
    "http://?",
    "http://#",
    "http:///etc/passwd",
    "http://[",
    "http://]",
    "http://[]/",
    "http://[::1/",
    "http://[::1]x/",
    "http://[127.0.0.1]/",
    "http://[::ffff:999.0.0.1]/",
    "http://..../",
    "http://./",
};

static void write_port(const char *url, u16 port, char *out, size_t cap) {
    const char *p = strstr(url, ":P");
    if (p)
        snprintf(out, cap, "%.*s:%u%s", (int)(p - url), url, port, p + 2);
    else
        snprintf(out, cap, "%s", url);
}

/* Words of an end that comes before anything is connected to. */
static bool before_connecting(const char *why) {
    return strstr(why, "not public") || strstr(why, "URL") || strstr(why, "Name or service not known") ||
           strstr(why, "no address");
}

static void what_is_not_public_is_not_reached(void **state) {
    static const struct step ok[] = {{"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", KEEP, 0}};
    struct server trap;
    size_t count = sizeof blocked / sizeof blocked[0];
    (void)state;
    assert_true(count >= 120);
    server_open(&trap, ok, 1);
    for (size_t i = 0; i < count; i++) {
        char url[256];
        struct heard h = {0};
        write_port(blocked[i], trap.port, url, sizeof url);
        struct outbound_request r = {
            .method = "POST", .url = url, .body = SL("x"), .connect_ms = 5000, .total_ms = 5000};
        call_and_wait(&r, &h);
        if (h.end != OUTBOUND_NOT_SENT || !before_connecting(h.why.p)) fail_msg("%s: %d, %s", url, h.end, h.why.p);
        heard_free(&h);
    }
    kit_close_world(NULL);
    server_close(&trap);
    open_world(NULL);
    assert_int_equal(trap.connections, 0);
}

static void public_addresses_are(void **state) {
    static const char *const public[] = {"1.1.1.1",
                                         "8.8.8.8",
                                         "9.255.255.255",
                                         "11.0.0.0",
                                         "93.184.216.34",
                                         "100.63.255.255",
                                         "100.128.0.0",
                                         "126.255.255.255",
                                         "128.0.0.0",
                                         "169.253.255.255",
                                         "169.255.0.0",
                                         "172.15.255.255",
                                         "172.32.0.0",
                                         "191.255.255.255",
                                         "192.0.1.0",
                                         "192.0.3.0",
                                         "192.167.255.255",
                                         "192.169.0.0",
                                         "198.17.255.255",
                                         "198.20.0.0",
                                         "223.255.255.255",
                                         "2606:4700:4700::1111",
                                         "2001:4860:4860::8888",
                                         "2a00:1450:4001:80b::200e",
                                         "2001:200::1",
                                         "2003::1",
                                         "2001:db7::1",
                                         "2001:db9::1",
                                         "3fef::1",
                                         NULL};
    (void)state;
    for (u32 i = 0; public[i]; i++) {
        struct addrinfo *a = address_of(public[i], strlen(public[i]));
        if (!reach_is_public(a->ai_addr)) fail_msg("%s", public[i]);
        freeaddrinfo(a);
    }
    struct sockaddr other = {.sa_family = AF_UNIX};
    assert_false(reach_is_public(&other));
}

/* ---- what is allowed, and where it goes */

static struct outbound_request to_name(const char *host, u16 port, char url[128]) {
    snprintf(url, 128, "http://%s:%u/", host, port);
    return (struct outbound_request){
        .method = "POST", .url = url, .body = SL("x"), .connect_ms = 10000, .total_ms = 10000, .allow_private = true};
}

static const struct step taken[] = {{"HTTP/1.1 204 No Content\r\n\r\n", KEEP, 0}};

static void who_allows_private_addresses_reaches_them_by_any_name(void **state) {
    static const char *const hosts[] = {"127.0.0.1", "127.1", "2130706433", "localhost", "here.example", "two.example"};
    struct server s;
    (void)state;
    server_open(&s, taken, 1);
    for (u32 i = 0; i < sizeof hosts / sizeof hosts[0]; i++) {
        char url[128], host[64];
        struct heard h = {0};
        struct outbound_request r = to_name(hosts[i], s.port, url);
        call_and_wait(&r, &h);
        if (h.end != OUTBOUND_ANSWERED) fail_msg("%s: %s", url, h.why.p);
        snprintf(host, sizeof host, "\r\nHost: %s:%u\r\n", i > 2 ? hosts[i] : "127.0.0.1", s.port);
        assert_non_null(strstr(s.last.p, host));
        heard_free(&h);
    }
    kit_close_world(NULL);
    server_close(&s);
    open_world(NULL);
}

/* ---- a name that says something else each time */

static int rebind(const char *host, struct addrinfo **out) {
    (void)host;
    *out = address_of(lookups++ == 0 ? "127.0.0.1" : "127.0.0.9", 9);
    return 0;
}

static void a_name_is_asked_once_and_what_it_said_is_connected_to(void **state) {
    struct server s;
    struct heard h = {0};
    char url[128];
    (void)state;
    kit_close_world(NULL);
    lookups = 0;
    kit_open_with(rebind, "/etc/ssl/certs");
    server_open(&s, taken, 1);
    struct outbound_request r = to_name("rebinds.example", s.port, url);
    for (u32 i = 0; i < 3; i++) { /* once more while the answer is known, and on a connection that is open */
        call_and_wait(&r, &h);
        assert_int_equal(h.end, OUTBOUND_ANSWERED);
        heard_free(&h);
    }
    assert_int_equal(lookups, 1);
    kit_close_world(NULL);
    server_close(&s);
    open_world(NULL);
}

/* The one of a name is open already: who may not go there does not get it either. */
static void an_open_connection_is_no_way_around(void **state) {
    struct server s;
    struct heard h = {0};
    char url[128];
    (void)state;
    server_open(&s, taken, 1);
    struct outbound_request r = to_name("here.example", s.port, url);
    call_and_wait(&r, &h);
    assert_int_equal(h.end, OUTBOUND_ANSWERED);
    heard_free(&h);
    r.allow_private = false;
    call_and_wait(&r, &h);
    assert_int_equal(h.end, OUTBOUND_NOT_SENT);
    heard_free(&h);
    kit_close_world(NULL);
    server_close(&s);
    open_world(NULL);
    assert_int_equal(s.requests, 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_world, kit_close_world)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(what_is_not_public_is_not_reached),
        cmocka_unit_test(public_addresses_are),
        TEST(who_allows_private_addresses_reaches_them_by_any_name),
        TEST(a_name_is_asked_once_and_what_it_said_is_connected_to),
        TEST(an_open_connection_is_no_way_around),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
