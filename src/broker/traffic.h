/* Traffic: which routes were asked for, what was answered, and how long it took until the answer could leave.
 *
 * The time runs from the turn that brought the request to the moment everything its reply has seen is durable; for a poll that
 * waits it holds the waiting. Requests of a turn share its time, so no clock is read for one. */
#ifndef HAPAX_BROKER_TRAFFIC_H
#define HAPAX_BROKER_TRAFFIC_H

#include "base/hist.h"

struct broker;
struct traffic;

#define TRAFFIC_CODES 16u /* different ones of a route */

struct route_traffic {
    struct {
        u16 code;
        u64 count;
    } codes[TRAFFIC_CODES];
    struct hist took_us;
};

/* The request that is being answered. Kept with it if it is answered later. */
struct asked {
    u64 began_us;
    u32 route;
};

struct traffic *traffic_new(u32 routes);
void traffic_free(struct traffic *t);
/* A request came in for this route; the next reply is its own. */
void traffic_asked(struct broker *b, u32 route);
struct asked traffic_now(const struct broker *b);
/* The next reply is to this one. */
void traffic_resumed(struct broker *b, struct asked a);
void traffic_replied(struct broker *b, u16 code, u64 position);
void traffic_durable(struct broker *b, u64 position);
const struct route_traffic *traffic_of(const struct broker *b, u32 route);

#endif
