/* Tenants: what their queues may take together, whoever sends. The core keeps the sums (accounts), and refuses what is above
 * them; how many sends a second there may be, and how many queues, is kept here. */
#ifndef HAPAX_BROKER_TENANTS_H
#define HAPAX_BROKER_TENANTS_H

#include "base/base.h"

struct broker;
struct buf;
struct config;
struct failure;
struct tenants;

#define QUOTA_LIST(X)                                                                                                  \
    X(QUEUES, "queues")                                                                                                \
    X(PENDING, "pending")                                                                                              \
    X(BYTES, "bytes")                                                                                                  \
    X(RATE, "rate")
#define QUOTA_ENUM(name, text) QUOTA_##name,
enum quota { QUOTA_LIST(QUOTA_ENUM) QUOTA_COUNT };
#undef QUOTA_ENUM
const char *quota_text(enum quota q);

/* Tenants are numbered from 1 as the config in force has them; 0 is none. A queue's number is in its rules (queue_rules.h). */
#define TENANT_NONE 0u

struct tenants *tenants_new(void);
void tenants_free(struct tenants *t);
/* A config comes into force: every queue's tenant must be said anew after this. What is left of a second's sends goes along. */
void tenants_configure(struct broker *b, const struct config *before, const struct config *after);
/* Whose queue is called so. */
u16 tenant_of_queue(const struct config *c, slice name);

/* One send more, whatever becomes of it. false: the failure is set. */
bool tenants_take_send(struct broker *b, u16 tenant, struct failure *f);
/* May a queue of this name be made? false: the failure is set. */
bool tenants_take_queue(struct broker *b, slice name, struct failure *f);
/* The first send to a queue of this name, with so large a payload: is there room for it, so that the queue is made? false: the
 * failure is set. */
bool tenants_take_first(struct broker *b, slice name, size_t payload, struct failure *f);
/* It is over that limit; returns false. */
bool tenants_refuse(struct broker *b, u16 tenant, enum quota q, struct failure *f);

/* What it uses and what it may, and how often it was refused. */
struct quota_use {
    u64 used, limit, refused; /* limit 0: none. of the rate nothing is used */
};
void tenant_use(const struct broker *b, u16 tenant, struct quota_use out[QUOTA_COUNT]);
/* "tenants":[...] for /v1/stats; own: the one of this name alone, or empty for all. */
void put_tenants(const struct broker *b, slice own, struct buf *body);

#endif
