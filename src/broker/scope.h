/* Scopes of keys. Where a queue's key_scope is `credential`, equal keys of two senders are two keys: each is stored, looked up and
 * handed to downstreams as SCOPE/KEY, by the name of the token it came with (`anonymous` without one). The core knows such a key as
 * the bytes it is; what people see is the key they sent, and beside it the credential.
 *
 * A scope has no '/', a key may: the first one ends the scope. A queue's keys are scoped all or none: its key_scope does not change
 * while it knows any (scope_may_change). */
#ifndef HAPAX_BROKER_SCOPE_H
#define HAPAX_BROKER_SCOPE_H

#include "core/core.h"

struct broker;
struct call;
struct queue_config;

/* The key as it is stored, in `store`. false: it is longer than a key can be. */
bool scope_key(struct buf *store, slice scope, slice key);

/* A stored key as it is shown. */
struct shown_key {
    slice credential; /* empty: the queue's keys are everybody's, or it has none */
    slice key;        /* as it was sent */
};
struct shown_key shown_key(const struct broker *b, u16 queue, slice stored);
slice key_as_sent(const struct broker *b, u16 queue, slice stored);                    /* of these its key */
void put_shown_key(const struct broker *b, struct buf *body, u16 queue, slice stored); /* ,"key":..,"credential":.. */

/* The effect key: what a downstream knows the effect by. A deliberate replay is a new effect: key~gN. Without a key (known_by is
 * empty) every message is an effect of its own. */
void put_effect_key(struct buf *out, const struct ref *ref, slice known_by, u32 generation);
/* A stored key as the downstream gets it: the upstream of a proxy got it as it came. */
slice key_downstream(const struct broker *b, u16 queue, slice stored);
/* ,"effect_key":".." of a message with that stored key. */
void put_effect_key_member(const struct broker *b, struct buf *body, const struct ref *ref, slice stored,
                           u32 generation);

/* The stored key that is meant by one in a path or parameter: the caller's own. To those who may observe the queue, where they have
 * none of that name, the one of anybody, as SCOPE/KEY. In a buffer of the scratch, good until the next one. */
slice key_meant(struct call *c, u16 queue, slice key);
/* May the caller know of it? */
bool caller_sees_key(const struct call *c, u16 queue, slice stored);

/* What the text of a queue's rules says, readable to this version or not. */
bool scope_said(slice config);
/* Rules for a queue that is there: its keys stay known under what they are. */
bool scope_may_change(const struct broker *b, u16 queue, const struct queue_config *to, struct errbuf *err);

#endif
