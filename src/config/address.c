#include "config/address.h"

#include <arpa/inet.h>

bool address_parse(slice text, struct address *out) {
    size_t colon = text.n;
    u64 port;
    while (colon > 0 && text.p[colon - 1] != ':') colon--;
    if (colon < 2 || !slice_u64(slice_of(text.p + colon, text.n - colon), &port) || port > 65535) return false;
    slice host = slice_of(text.p, colon - 1);
    bool bracketed = host.p[0] == '[' && host.p[host.n - 1] == ']';
    if (bracketed) host = slice_of(host.p + 1, host.n - 2);
    if (slice_eq(host, SL("localhost"))) host = SL("127.0.0.1");
    *out = (struct address){.port = (u16)port};
    if (host.n == 0 || host.n >= sizeof out->host) return false;
    memcpy(out->host, host.p, host.n);
    char unused[16];
    bool six = strchr(out->host, ':') != NULL;
    return six == bracketed && inet_pton(six ? AF_INET6 : AF_INET, out->host, unused) == 1;
}

bool address_is_local(const struct address *a) {
    struct in6_addr six;
    if (strncmp(a->host, "127.", 4) == 0) return true;
    return inet_pton(AF_INET6, a->host, &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
}
