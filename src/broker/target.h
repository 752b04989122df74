/* Targets: where a queue's deliveries and look-ups go, and whether one more may go there now.
 *
 * One a queue that has `deliver` or `reconcile`. What keeps a call back, in this order: an operator's pause (or a 410, which only an
 * operator ends), a pause the target asked for (Retry-After), the circuit (circuit.h), `concurrency`, `rate`. Deliveries and look-ups
 * count alike. Each decision is about the target as a whole: while it is down no message is looked at, leased or charged an
 * attempt for it.
 *
 * For whoever calls (push.c, lookups.c), in this order:
 *     target_may_send   before a lease. false: target_again, if it says when; else the end of a call under way wakes it
 *     target_sent       with the call. The pointer stays good until target_ended of that call, whatever becomes of the queue
 *     target_answered   what it was answered, for those who look
 *     target_ended      once each; then others of the queue may go
 * Nothing here knows the time, or a message: both are told. */
#ifndef HAPAX_BROKER_TARGET_H
#define HAPAX_BROKER_TARGET_H

#include "broker/circuit.h"
#include "core/core.h"

struct broker;
struct target;
struct targets;

#define TARGET_WAIT_MS_MAX 3600000 /* of a Retry-After */
#define TARGET_ERROR_BYTES 160u    /* of the last error's text */

struct target_rules {
    struct circuit_rules circuit;
    u32 concurrency;  /* at least 1 */
    u32 rate_per_min; /* 0: any. A tenth of a second's worth may go at once */
};
struct target_rules target_rules_default(void); /* where only look-ups go */

struct target *target_new(const struct target_rules *r, u64 seed, i64 mono_ms);
/* At once, or when the last call under way has ended. */
void target_free(struct target *t);
/* New rules hold at once. moved: they lead to another place, of which nothing is known. */
void target_rule(struct target *t, i64 mono_ms, const struct target_rules *r, bool moved);

/* ---- deciding */

/* *probe: this one tells whether the target is back; pass it on. false: *again_ms is when to ask again, INT64_MAX: when a call has
 * ended, or the pause. */
bool target_may_send(struct target *t, i64 mono_ms, bool *probe, i64 *again_ms);
bool target_is_down(const struct target *t); /* the next call is a probe */
void target_sent(struct target *t, i64 mono_ms, bool probe);

enum target_outcome {
    TARGET_TAKEN,  /* it lives: whatever it answered but a failure, `rejected` and `poison` included */
    TARGET_FAILED, /* transient or unknown: no answer, or one that says to come again */
    TARGET_NEITHER /* nothing was learned: it was not called after all, or asked for what says nothing of deliveries */
};
void target_ended(struct target *t, i64 mono_ms, enum target_outcome outcome, bool probe, u64 took_us);
/* It asks not to be called for so long. */
void target_wait(struct target *t, i64 mono_ms, i64 ms);
/* As the core has it (queue_info.push_paused); targets_pause is for those who decide it. wall_ms 0: it was so before this process began.
 * who, why: in words. */
void target_pause(struct target *t, i64 wall_ms, bool paused, slice who, slice why);
void target_gone(struct target *t, i64 mono_ms); /* the pause is its own word (410), and nobody has decided yet */
/* Somebody says it is back: no wait, and the next call may be the probe. */
void target_try(struct target *t, i64 mono_ms);

/* ---- showing */

struct target_answer {
    bool lookup;
    enum failure_class
        failure_class; /* CLASS_NONE: taken; of a look-up: found. Then CLASS_ABSENT: absent, CLASS_UNKNOWN: no answer */
    u32 status;        /* 0: none came */
    slice why;         /* in words where it failed; without secrets */
};
void target_answered(struct target *t, i64 wall_ms, const struct target_answer *a);

struct target_error {
    i64 wall_ms; /* 0: there was none */
    bool lookup;
    enum failure_class failure_class;
    u32 status;
    char why[TARGET_ERROR_BYTES + 1];
};
struct target_view {
    enum circuit_state circuit;
    bool paused;
    i64 paused_ms;          /* wall; 0: before this process began */
    const char *paused_why; /* who did it, and why, if that is known; else "" */
    i64 gone_ms;   /* mono: since when it is paused because it is gone, as far as this process knows; 0: it is not */
    i64 since_ms;  /* mono: in this state of the circuit */
    i64 down_ms;   /* mono: since when it is not closed; 0: it is */
    i64 probe_ms;  /* mono: of an open one, when it is tried */
    i64 wait_ms;   /* mono: until when the target asked not to be called; 0: it does not, or no more */
    u32 in_flight; /* deliveries and look-ups */
    u32 window;    /* recovering: how many may be; 0: as many as the rules say */
    struct target_rules rules;
    u64 pushes[CLASS_COUNT], lookups; /* since the process began. pushes[CLASS_NONE]: taken */
    const struct hist *took_us;       /* of calls that ended, taken or failed */
    const struct target_error *error;
};
void target_look(const struct target *t, i64 mono_ms, struct target_view *v);

/* ---- a broker's (targets.c) */

struct targets *targets_new(void);
void targets_free(struct targets *ts); /* after target_ended of all that was under way */
/* NULL: the queue neither delivers nor looks up. */
struct target *target_of(const struct broker *b, u16 queue);
u16 target_queue(const struct target *t); /* 0: it is no queue's any more */
u32 targets_end(const struct broker *b);  /* no queue from this number on has one */
/* As the queue's rules are now: it is made, kept with what is known of it, or (r is NULL) let go. place: tells whether they lead
 * where they led before. If they do, an open circuit is tried at once: what failed may have been the rules, or a secret. By
 * queue_rules.c alone. */
void targets_bind(struct broker *b, u16 queue, const struct target_rules *r, u64 place);
void targets_stay_paused(struct broker *b, u16 queue, bool gone); /* as the core has it from before */

/* Stops its pushing for all to see, over restarts, or lets it go on: then it is tried at once, whatever the circuit or a Retry-After
 * says. The audit names who; NO_CHANGE: it was so. By operators. */
enum pause_verdict targets_pause(struct broker *b, u16 queue, bool paused, const struct audit_in *audit);
/* It is gone (410): stopped in the same way, until an operator decides. NO_CHANGE: it was paused. */
enum pause_verdict targets_gone(struct broker *b, u16 queue, const struct audit_in *audit);

/* After target_ended: a line of the log if the queue's target has gone down with it, or is back. */
void targets_tell(struct broker *b, u16 queue);

/* The engine wants to look at it again then; the earlier of two times counts. */
void target_again(struct broker *b, struct target *t, i64 at_ms);
/* One whose time has come, which is then forgotten; NULL: none. */
struct target *targets_due(struct broker *b, i64 mono_ms);
/* How long until one's time has come, at most next_ms. */
i64 targets_next_ms(const struct broker *b, i64 mono_ms, i64 next_ms);

#endif
