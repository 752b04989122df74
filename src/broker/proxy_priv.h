/* Between the request's side of a proxy (api_gate.c) and the call's (proxy.c). */
#ifndef HAPAX_BROKER_PROXY_PRIV_H
#define HAPAX_BROKER_PROXY_PRIV_H

#include "broker/admit.h"
#include "broker/call.h"
#include "broker/proxy.h"
#include "config/config.h"
#include "net/outbound.h"

/* A proxy of the config in force. */
struct gate {
    const struct proxy_config *config;
    u32 counts;
    u16 queue;
};
/* false: there is none of that name. */
bool gate_find(const struct broker *b, slice name, struct gate *out);
void gate_happened(struct broker *b, u32 counts, enum gate_result r);

/* May another of its calls begin? Else the failure is set. */
bool gate_has_room(struct call *c, const struct gate *g, const struct outbound_request *r);
/* Without a key: it is answered later. */
bool gate_pass(struct call *c, const struct gate *g, const struct outbound_request *r);
/* With one: what is known under it is answered, now or later; if nothing is, the call begins. in: queue, key and fingerprint and what
 * else was said; scope: whose key it is. false: the failure is set. */
bool gate_run(struct call *c, const struct gate *g, struct send_in *in, slice scope, const struct outbound_request *r);

#endif
