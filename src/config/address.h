/* Where the broker listens. */
#ifndef HAPAX_CONFIG_ADDRESS_H
#define HAPAX_CONFIG_ADDRESS_H

#include "base/base.h"

struct address {
    char host[64]; /* numeric, without brackets */
    u16 port;
};

/* HOST:PORT or [HOST]:PORT, the host a numeric address or localhost. */
bool address_parse(slice text, struct address *out);
/* Is it reached from this machine alone? */
bool address_is_local(const struct address *a);

#define ADDRESS_BYTES 16u
/* A numeric address without brackets, as IPv6 has it (::ffff:1.2.3.4). false: it is a name. */
bool address_bytes(slice host, u8 out[ADDRESS_BYTES]);
bool address_bytes_local(const u8 address[ADDRESS_BYTES]);

/* What is said of one that is not, unless that was asked for. */
#define ADDRESS_IS_OPEN                                                                                                \
    "%s is not a loopback address: it needs %s, or others could read what passes, or send and settle anything. Give "  \
    "--insecure-listen (in the file: insecure_listen: true) if that is what you want."

#endif
