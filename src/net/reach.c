#include "net/reach.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

/* The registries of special addresses (RFC 6890 and what came after it). */
static const struct {
    u32 net;
    u32 bits;
} not_public_v4[] = {
    {0x00000000, 8},  /* 0.0.0.0/8: this machine */
    {0x0a000000, 8},  /* 10.0.0.0/8: private */
    {0x64400000, 10}, /* 100.64.0.0/10: behind a carrier */
    {0x7f000000, 8},  /* 127.0.0.0/8: this machine */
    {0xa9fe0000, 16}, /* 169.254.0.0/16: this link, metadata of clouds */
    {0xac100000, 12}, /* 172.16.0.0/12: private */
    {0xc0000000, 24}, /* 192.0.0.0/24: protocols */
    {0xc0000200, 24}, /* 192.0.2.0/24: documentation */
    {0xc0586300, 24}, /* 192.88.99.0/24: relays of 6to4 */
    {0xc0a80000, 16}, /* 192.168.0.0/16: private */
    {0xc6120000, 15}, /* 198.18.0.0/15: benchmarks */
    {0xc6336400, 24}, /* 198.51.100.0/24: documentation */
    {0xcb007100, 24}, /* 203.0.113.0/24: documentation */
    {0xe0000000, 4},  /* 224.0.0.0/4: multicast */
    {0xf0000000, 4},  /* 240.0.0.0/4: reserved, broadcast */
};

/* Of 2000::/3, the only part that is routed at all: loopback, unique local, link-local, mapped and translated IPv4 lie outside. */
static const struct {
    u8 net[4];
    u32 bits;
} not_public_v6[] = {
    {{0x20, 0x01, 0x00, 0x00}, 23}, /* 2001::/23: protocols, Teredo with an IPv4 address inside */
    {{0x20, 0x01, 0x0d, 0xb8}, 32}, /* 2001:db8::/32: documentation */
    {{0x20, 0x02, 0x00, 0x00}, 16}, /* 2002::/16: 6to4, an IPv4 address inside */
    {{0x3f, 0xff, 0x00, 0x00}, 20}, /* 3fff::/20: documentation */
};

static u32 mask_of(u32 bits) {
    return ~(u32)0 << (32 - bits);
}

static bool is_public_v4(u32 address) {
    for (size_t i = 0; i < sizeof not_public_v4 / sizeof not_public_v4[0]; i++)
        if ((address & mask_of(not_public_v4[i].bits)) == not_public_v4[i].net) return false;
    return true;
}

static u32 first_word(const u8 *p) {
    return (u32)p[0] << 24 | (u32)p[1] << 16 | (u32)p[2] << 8 | p[3];
}

static bool is_public_v6(const u8 *address) {
    u32 word = first_word(address);
    if ((word & mask_of(3)) != 0x20000000) return false;
    for (size_t i = 0; i < sizeof not_public_v6 / sizeof not_public_v6[0]; i++)
        if ((word & mask_of(not_public_v6[i].bits)) == first_word(not_public_v6[i].net)) return false;
    return true;
}

bool reach_is_public(const struct sockaddr *a) {
    if (a->sa_family == AF_INET) return is_public_v4(ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr));
    if (a->sa_family == AF_INET6) return is_public_v6(((const struct sockaddr_in6 *)a)->sin6_addr.s6_addr);
    return false;
}
