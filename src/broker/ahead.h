/* What is found out about requests before their turn (broker_ahead). */
#ifndef HAPAX_BROKER_AHEAD_H
#define HAPAX_BROKER_AHEAD_H

#include "broker/admit.h"
#include "net/http.h"

/* Keys that queues' rules made of requests' payloads, each of which passes the rules. */
struct derived {
    const struct http_request *of[AHEAD_MAX];
    slice key[AHEAD_MAX]; /* in `keys` */
    u32 count;
    struct buf keys;
};

/* What is known of a request that sends. key: what its header says, or empty. */
struct foreknown ahead_known(const struct broker *b, const struct http_request *req, slice key);
/* The rules of a queue change: what they made of requests is none of the new ones' making. */
void ahead_forget(struct broker *b);

#endif
