/* For tests: names that a test makes up, authorities of its own. */
#ifndef HAPAX_NET_OUTBOUND_PRIV_H
#define HAPAX_NET_OUTBOUND_PRIV_H

#include "net/outbound.h"
#include "net/resolver.h"

/* As outbound_new. lookup: as resolver_new; authorities: a directory as OpenSSL's rehash makes it, instead of the system's. */
struct outbound *outbound_new_with(struct uv_loop_s *loop, u32 calls, resolver_fn *lookup, const char *authorities);

#endif
