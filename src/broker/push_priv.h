/* Inside pushing: what its files share. push.c runs the engine, push_request.c makes what leaves, deliveries.c and lookups.c say what
 * an answer means. */
#ifndef HAPAX_BROKER_PUSH_PRIV_H
#define HAPAX_BROKER_PUSH_PRIV_H

#include "broker/push.h"
#include "broker/target.h"
#include "config/config.h"
#include "config/path.h"
#include "config/view.h"
#include "net/outbound.h"

#define PUSH_CONSUMER      "push" /* who holds the lease, in the timeline */
#define LOOKUP_CONSUMER    "reconcile"
#define PUSH_LEASE_MORE_MS 5000        /* what a lease outlasts the request by */
#define LOOKUP_KEEP_BYTES  (64u << 10) /* kept of what a look-up found, where no `deliver` says how much */
#define ANSWER_READ_BYTES  (64u << 10) /* read of an answer at least, where something is looked for in it */

/* What the queue's rules say about answers, kept for as long as a delivery that began under them is under way. */
struct terms {
    u32 uses;
    struct arena *arena;
    bool delivers;
    struct status_set classify;
    bool url_plain;
    struct path *effect_id; /* NULL: none */
    u32 keep_body;
    struct texts keep_headers;
    i64 open_ms; /* of the circuit */
    /* reconcile */
    bool found[STATUSES], absent[STATUSES];
    struct path *exists, *lookup_effect_id;
    bool resend;      /* the downstream deduplicates by the effect key, */
    i64 remembers_ms; /* for so long; 0: for ever */
};
struct terms *terms_new(const struct queue_config *q);
void terms_drop(struct terms *t); /* one use less; NULL is fine */
/* What was looked up and is absent: may it be done again under the same key? Only if the downstream would know it. Where it does not
 * deduplicate, or may have forgotten the first attempt, a request that is still on its way would be done beside the new one. A clock
 * that was set back says nothing of how long ago that was. */
static inline bool may_resend(const struct terms *t, i64 began_ms, i64 wall_ms) {
    i64 age_ms = wall_ms - began_ms;
    return t->resend && (t->remembers_ms == 0 || (age_ms >= 0 && age_ms < t->remembers_ms));
}

/* A request under way, and the lease it was made under. */
struct push {
    u32 magic;
    struct push *next, *prev;
    struct terms *terms;
    struct target *target;
    struct ref ref;
    u64 fence;
    u64 promised; /* room for its answer */
    u64 sent_us;
    i64 began_ms; /* a look-up: when the work on it first began, wall clock; never later than that */
    bool lookup;  /* else it is delivered */
    bool probe;   /* it shows whether the target is back */
};

/* What an answer comes to. Slices point into the answer and the words. */
struct verdict {
    struct settle_in in;
    enum target_outcome target; /* what it tells of the target */
    enum failure_class told;    /* as target_answer.failure_class */
    i64 wait_ms;                /* the target asks not to be called for so long; 0: it does not */
    bool gone;                  /* the target asks not to be called any more */
};
struct words { /* memory a verdict is made in, reused */
    struct buf reason, head;
    struct payload_view body;
};
void delivery_decide(const struct push *push, const struct outbound_answer *a, i64 wall_ms, struct words *w,
                     struct verdict *out);
void lookup_decide(const struct push *push, const struct outbound_answer *a, i64 wall_ms, struct words *w,
                   struct verdict *out);
/* Of both: settled with that answer; how long it asks not to be called. */
void decide_taken(const struct terms *t, const struct outbound_answer *a, const struct path *effect_id, struct words *w,
                  struct verdict *out);
i64 asked_to_wait_ms(const struct outbound_answer *a, i64 wall_ms);

/* A request as it will leave, in memory that is reused. */
#define PUSH_HEADERS_MAX (CALL_HEADERS_MAX + 16u)
struct push_request {
    struct outbound_request r;
    struct buf url, fields; /* the lines, each with a 0 */
    size_t at[PUSH_HEADERS_MAX];
    const char *lines[PUSH_HEADERS_MAX + 1];
    u32 count;
    bool secret; /* there is a secret in the lines */
    struct errbuf why;
};
/* What is known of the message that is to be sent or looked up. */
struct push_subject {
    const struct rec_message *m;
    u32 generation;
    u16 attempt;
    i64 wall_ms;
    slice key;      /* as it was sent */
    slice known_by; /* by the downstream; empty: the message has no key */
};
/* false: it cannot be made of this message; r->why says why. */
bool push_request_deliver(struct push_request *r, const struct queue_config *q, const struct push_subject *s,
                          struct payload_view *view);
bool push_request_lookup(struct push_request *r, const struct queue_config *q, const struct push_subject *s,
                         struct payload_view *view);
void push_request_done(struct push_request *r); /* it was copied: secrets go */
void push_request_free(struct push_request *r);

#endif
