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

bool address_bytes(slice host, u8 out[ADDRESS_BYTES]) {
    char text[INET6_ADDRSTRLEN];
    if (host.n == 0 || host.n >= sizeof text || memchr(host.p, 0, host.n)) return false;
    memcpy(text, host.p, host.n);
    text[host.n] = 0;
    memset(out, 0, ADDRESS_BYTES);
    if (inet_pton(AF_INET6, text, out) == 1) return true;
    out[10] = out[11] = 0xFF;
    return inet_pton(AF_INET, text, out + 12) == 1;
}

bool address_bytes_local(const u8 address[ADDRESS_BYTES]) {
    static const u8 six[ADDRESS_BYTES] = {[15] = 1}, four[13] = {[10] = 0xFF, [11] = 0xFF, [12] = 127};
    return memcmp(address, six, sizeof six) == 0 || memcmp(address, four, sizeof four) == 0;
}

bool address_is_local(const struct address *a) {
    u8 bytes[ADDRESS_BYTES];
    return address_bytes(slice_str(a->host), bytes) && address_bytes_local(bytes);
}
