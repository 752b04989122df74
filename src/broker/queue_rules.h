/* The queues' rules as they are now. What was said about a queue is in three places: the config file (of the queues it
 * declares), the core, which journals it as text with the rules it decides by, and here, compiled, for who is admitted.
 *
 * A queue has an origin: `file`, `api` (PUT), or `auto`: made on first use, or declared by a file once and not any more. The
 * latter keeps its rules, for forgetting a payment's window because a line is missing would be worse than keeping it; and if
 * only declared queues take messages, it takes none. */
#ifndef HAPAX_BROKER_QUEUE_RULES_H
#define HAPAX_BROKER_QUEUE_RULES_H

#include "config/config.h"

struct broker;
struct rulebook;

/* What a queue's rules mean to the broker. The core has its own copy of those it decides by. */
struct queue_rules {
    struct queue_config *config; /* NULL: nothing was said, the default rules */
    bool owned;                  /* else the config belongs to the file's */
    bool made_on_use;            /* nobody declared it, nor asked for it by PUT */
    bool undeclared;             /* only declared queues take messages, and this one is not declared */
    bool unreadable;             /* another version took its rules; config is NULL, and it takes no messages either */
    bool scoped;                 /* its keys are their senders' (scope.h) */
    u16 tenant;                  /* whose queue it is (tenants.h) */
    bool special; /* a message must be looked at (key, group, fingerprint, schema, limit, semantics) before
                                  * its key can be looked up; else the key is in the header, and that is all */
};

struct rulebook *rulebook_new(void); /* with the default config */
void rulebook_free(struct rulebook *r);
void rulebook_load(struct broker *b); /* at start: every queue of the journal */

const struct queue_rules *queue_rules_of(const struct broker *b, u16 queue);
/* Another one whenever a queue's rules may have changed; never 0. */
u32 rules_version(const struct broker *b);
/* How many queues were made on use. */
u32 queues_made_on_use(const struct broker *b);
/* After core_queue_set or _ensure: what the core has stored of this queue. config: taken, or NULL. */
void queue_rules_take(struct broker *b, u16 queue, struct queue_config *config);
void queue_rules_drop(struct broker *b, u16 queue); /* before core_queue_delete */
/* The file in force, or what stands for one. */
const struct config *config_in_force(const struct broker *b);

#endif
