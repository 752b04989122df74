/* Which addresses requests may go to without being told so: public ones. Whoever may write a URL could otherwise reach what
 * listens on this machine and in its network, and the metadata of a cloud. */
#ifndef HAPAX_NET_REACH_H
#define HAPAX_NET_REACH_H

#include "base/base.h"

struct sockaddr;

/* IPv4 and IPv6; whatever else, or holds an IPv4 address inside an IPv6 one, is not public. */
bool reach_is_public(const struct sockaddr *a);

#endif
