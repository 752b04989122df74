/* Admission: everything that becomes a message comes in here. Its queue's rules look at it first (limit, schema, key, group,
 * fingerprint, over one reading of the payload), then its key is looked up, then the core decides. */
#ifndef HAPAX_BROKER_ADMIT_H
#define HAPAX_BROKER_ADMIT_H

#include "broker/problem.h"
#include "config/view.h"
#include "core/core.h"

struct broker;

struct admission {
    enum send_verdict verdict;
    struct send_out out;
    const struct seen *seen; /* the original of a duplicate or conflict; NULL when accepted or held */
    enum state state;
    slice key; /* the one it is known by, as it is stored */
    /* When the key was known with another payload and the queue does not reject that: what the core said of the original.
     * other_key in it is the arrival's own key from then on. */
    struct send_out original;
    bool copied; /* it was not admitted, and its copy is in the dead lane */
    struct ref copy;
};

/* What is known of a message before its turn: what core_hash says of its key, of these very bytes, not of others like them (queue 0: of
 * none), and core_fingerprint of its payload, 0 if it was not asked. */
struct foreknown {
    slice key;
    u64 hash, fingerprint;
    u16 queue;
    bool derived; /* the queue's rules, those in force, made the key, and take the message */
};

/* The queue's rules fill in key, group, fingerprint and hash of *in, whose key is what the sender gave or empty. scope: whose key
 * that is (scope.h). known may be NULL: it saves hashing once more. */
bool admit_message(struct broker *b, struct send_in *in, slice scope, const struct foreknown *known,
                   header_lookup *header, void *header_ctx, struct admission *a, struct failure *f);
/* The same for what comes with its key and fingerprint: the queue's rules for messages are not asked. */
bool admit_made(struct broker *b, struct send_in *in, slice scope, struct admission *a, struct failure *f);
/* A copy of what is not admitted, for the dead lane, with the reason, and the key that it would have had if its sender said one.
 * false: none could be kept. */
bool admit_copy(struct broker *b, const struct send_in *in, slice scope, slice key, slice why, struct ref *copy);
/* The headers of a message as far as it remembers them: attributes, content type, group. ctx: struct send_in. */
slice said_header(void *ctx, slice name);
/* A copy of what failed the schema, tried again: admitted, known already, or as before. */
enum retrial { RETRIAL_ADMITTED, RETRIAL_KNOWN, RETRIAL_AS_BEFORE, RETRIAL_FULL };
enum retrial admit_again(struct broker *b, const struct ref *copy);
enum retrial admit_foresee(struct broker *b, const struct ref *copy); /* what that would say now, but for FULL */

#endif
