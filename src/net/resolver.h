/* Names to addresses, for requests that leave from the loop.
 *
 * getaddrinfo can neither be interrupted nor told a deadline: it runs on threads of the resolver's own, at most RESOLVER_THREADS, which
 * end when there is nothing to look up. So a name server that hangs makes neither the loop wait nor the threads that
 * write the journal, and whoever waits may leave. All who ask for the same name share one look-up. What was found is used for
 * RESOLVER_FOUND_MS and not asked again, what was not found for RESOLVER_MISSED_MS; of RESOLVER_NAMES names at most. */
#ifndef HAPAX_NET_RESOLVER_H
#define HAPAX_NET_RESOLVER_H

#include "base/base.h"

#define RESOLVER_THREADS   16u
#define RESOLVER_NAMES     1024u
#define RESOLVER_FOUND_MS  10000
#define RESOLVER_MISSED_MS 1000
#define RESOLVED_MAX       8u  /* addresses kept of a name */
#define RESOLVED_TEXT      46u /* of one, as inet_ntop writes it */

struct addrinfo;
struct uv_loop_s;

/* An answer. Every address of the name was looked at, those that are not kept too. */
struct resolved {
    u32 count;        /* 0: none was found */
    bool any_private; /* one of them is not public */
    char at[RESOLVED_MAX][RESOLVED_TEXT];
    const char *why; /* count 0: in words */
};

struct resolver;
struct resolver_name;

/* Whoever waits. fn: once, from the loop. */
struct resolver_wait {
    void (*fn)(void *ctx, const struct resolved *answer);
    void *ctx;
    struct resolver_name *of; /* NULL: it does not wait */
    struct resolver_wait *next, **link;
};

/* As getaddrinfo, called from several threads; NULL: that. The list is given back to freeaddrinfo. */
typedef int resolver_fn(const char *host, struct addrinfo **out);

struct resolver *resolver_new(struct uv_loop_s *loop, resolver_fn *lookup);
void resolver_free(struct resolver *r); /* after everybody has left; threads that hang end on their own */

/* The answer, if it is known, valid until the next call into the resolver; else NULL, and w->fn is called when it is. */
const struct resolved *resolver_ask(struct resolver *r, const char *host, struct resolver_wait *w);
void resolver_leave(struct resolver_wait *w);

#endif
