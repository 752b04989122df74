/* Rations: how much of the broker one client may have, if the config says so: requests in a second, and requests that wait to be
 * answered. A client is a token, or the address a request comes from; whoever shows a token counts as both.
 *
 * Those who look after the broker have a bucket of their own at each address, so that what clients ask there takes nothing
 * from them. Nobody is refused a look at the broker's health. */
#ifndef HAPAX_BROKER_RATIONS_H
#define HAPAX_BROKER_RATIONS_H

#include "broker/call.h"

struct broker;
struct config;
struct rations;
struct token_use;

struct rations *rations_new(void);
void rations_free(struct rations *r);
/* A config is in force: tokens of the same name go on as they were. */
void rations_configure(struct broker *b, const struct config *config);

/* May it ask, by its address; by its token? Else the failure is set. watching: the call of somebody who looks after the broker. */
bool ration_of_address(struct call *c, bool watching);
bool ration_of_token(struct call *c, bool watching);
/* May one more of its requests wait? */
bool ration_has_room(const struct call *c);
/* The same, and the failure is set if not. */
bool ration_to_wait(struct call *c);

/* The part of a wait that is counted. */
struct ration_share {
    struct http_use *address;
    struct token_use *token;
    i64 until_ms;
};
/* The request being decided begins to wait. until_ms: at the latest, if that is known. */
void ration_waits(struct broker *b, struct ration_share *s, i64 until_ms);
void ration_waited(struct ration_share *s);

struct rations_refused {
    u64 by_address, by_token;
};
struct rations_refused rations_refused(const struct broker *b);

#endif
