/* What the core writes down. A record holds every value a policy or a clock produced, so that applying it again needs
 * neither. docs/LIFECYCLE.md says which record makes which move.
 *
 * Encoding: fixed fields little-endian in the order of the struct, then byte strings with their lengths. A record type's
 * version is in the journal's head; this build writes RECORD_VERSION and reads up to it. To change a layout: raise the
 * version, decode the older one beside it (record_decode gets the version), never reorder.
 *
 * Version 2 came with rules: QUEUE holds all of them, MESSAGE and SETTLE pack their yes-or-no fields into one byte, RETURN
 * says what the next delivery is for, and DECIDE, FORGET, WINDOW, COUNTS and AUDIT are new.
 *
 * Version 3: a replay's MESSAGE holds the outcome it stands in for, SETTLE says whether it only brings that back.
 *
 * Version 4: a lease may have been revoked, which an older build would take for damage. DAY is new. Otherwise the layout is
 * version 3's.
 *
 * Version 5: QUEUE holds the rules for look-ups and whether its pushing is paused, and by whom; RETURN and a carried MESSAGE say how many
 * look-ups there were; SETTLE may hold the head of the HTTP answer its result came with. A record that has none of this is
 * as long as version 4's, so that compaction after an upgrade needs no more room than before it. */
#ifndef HAPAX_CORE_RECORD_H
#define HAPAX_CORE_RECORD_H

#include "base/base.h"
#include "core/rules.h"

#define RECORD_VERSION 5

#define RECORD_LIST(X)                                                                                                 \
    X(CLOCK,                                                                                                           \
      "clock") /* where the clocks and counters stand; first of a run, now and then, before a segment is dropped */    \
    X(QUEUE, "queue")       /* a queue: name, rules, pause, counters; the last one counts */                           \
    X(MESSAGE, "message")   /* admitted (fresh), or carried forward by compaction with all its state */                \
    X(LEASE, "lease")       /* handed out under a fence */                                                             \
    X(START, "start")       /* a reservation became an attempt */                                                      \
    X(EXTEND, "extend")     /* the lease runs anew from here */                                                        \
    X(RETURN, "return")     /* the lease ended without an outcome: pending again, held or dead */                      \
    X(STEP, "step")         /* a finished step of the work, with its result */                                         \
    X(EFFECT, "effect")     /* an effect id reported for it */                                                         \
    X(SETTLE, "settle")     /* the outcome: all that is kept of a key from here on */                                  \
    X(ARRIVALS, "arrivals") /* how often and when the key came again */                                                \
    X(EXPIRE, "expire")     /* a queue forgets what settled before a moment */                                         \
    X(DECIDE, "decide")     /* an operator moved an unsettled message: redriven, retried, made dead, admitted */       \
    X(FORGET, "forget")     /* an operator had a key forgotten */                                                      \
    X(WINDOW, "window")     /* an adaptive window has grown */                                                         \
    X(COUNTS, "counts")     /* additions to a queue's counters that no other record implies */                         \
    X(AUDIT, "audit")       /* who did what, and why */                                                                \
    X(DAY, "day")           /* what arrived in a queue on one day, for those who watch */

#define RECORD_ENUM(name, text) REC_##name,
enum record_type { REC_NONE, RECORD_LIST(RECORD_ENUM) REC_COUNT };
#undef RECORD_ENUM

const char *record_name(u8 type);
/* What is kept of a key, or of a message that is not settled yet: the index points at it, and its body begins with the hash. */
static inline bool record_of_key(enum record_type type) {
    return type == REC_MESSAGE || type == REC_SETTLE || type == REC_ARRIVALS;
}

/* States as users see them (CONTRACT.md). */
#define STATE_LIST(X)                                                                                                  \
    X(PENDING, "pending")                                                                                              \
    X(LEASED, "leased")                                                                                                \
    X(HELD, "held")                                                                                                    \
    X(DEAD, "dead")                                                                                                    \
    X(DONE, "done")                                                                                                    \
    X(REJECTED, "rejected")                                                                                            \
    X(CANCELLED, "cancelled")
#define STATE_ENUM(name, text) STATE_##name,
enum state { STATE_LIST(STATE_ENUM) STATE_COUNT };
#undef STATE_ENUM
const char *state_text(enum state s);
static inline bool state_is_settled(enum state s) {
    return s >= STATE_DONE;
}

/* How a lease ended. */
#define ENDED_LIST(X)                                                                                                  \
    X(OPEN, "")                                                                                                        \
    X(ACKED, "acked")                                                                                                  \
    X(NACKED, "nacked")                                                                                                \
    X(EXPIRED, "expired") /* started, and ran out: a crash */                                                          \
    X(LAPSED, "lapsed")   /* ran out before it was started: no attempt */                                              \
    X(RELEASED, "released")                                                                                            \
    X(UNDONE, "undone") /* its reply never left: the client was gone */                                                \
    X(CANCELLED, "cancelled")                                                                                          \
    X(HANDED_OUT, "handed_out") /* at most once: handing out was the settlement */                                     \
    X(DECIDED, "decided")       /* an operator's decision: the token is dead */                                        \
    X(REVOKED, "revoked")       /* an operator took the lease back: as if it had run out, but no crash */
#define ENDED_ENUM(name, text) ENDED_##name,
enum ended { ENDED_LIST(ENDED_ENUM) ENDED_COUNT };
#undef ENDED_ENUM
const char *ended_text(enum ended e);

/* enum failure_class is in core/rules.h. */
const char *class_text(enum failure_class c);
bool class_parse(slice text, enum failure_class *out);

/* Kinds of arrivals of a key. */
#define ARRIVAL_LIST(X)                                                                                                \
    X(NEW, "new")                                                                                                      \
    X(REPLAY, "replay")                                                                                                \
    X(LATE, "late") /* more than half the window after settlement: a window half as long would have missed it */       \
    X(CONFLICT, "conflict")
#define ARRIVAL_ENUM(name, text) ARRIVAL_##name,
enum arrival_kind { ARRIVAL_LIST(ARRIVAL_ENUM) ARRIVAL_COUNT };
#undef ARRIVAL_ENUM
const char *arrival_text(enum arrival_kind k);

/* What operators decide about a message; kept in its history with who and why. */
#define DECISION_LIST(X)                                                                                               \
    X(NONE, "")                                                                                                        \
    X(DONE, "done")         /* settled with a result */                                                                \
    X(REJECTED, "rejected") /* settled */                                                                              \
    X(RETRY, "retry")       /* to be done again: somebody vouches for it, so no look-up comes first */                 \
    X(DEAD, "dead")                                                                                                    \
    X(NEW, "new")             /* a held conflict: admitted under its own key */                                        \
    X(DUPLICATE, "duplicate") /* a held conflict: dropped */                                                           \
    X(REDRIVE, "redrive")     /* dead: all its attempts again; with doubt left, a look-up comes first */               \
    X(REPLAY, "replay")       /* a settled key runs again as the next generation */                                    \
    X(REFUSED, "refused")     /* no decision of a person: the schema's, with its reason */                             \
    X(ERASED, "erased")                                                                                                \
    X(CANCELLED, "cancelled") /* a replay: the outcome before it stands */                                             \
    X(HELD, "held")           /* no decision of a person, but that there must be one: before the first send */
#define DECISION_ENUM(name, text) DECISION_##name,
enum decision { DECISION_LIST(DECISION_ENUM) DECISION_COUNT };
#undef DECISION_ENUM
const char *decision_text(enum decision d);
bool decision_parse(slice text, enum decision *out);

/* Where a queue comes from: first use, PUT, or the config file. */
#define ORIGIN_LIST(X)                                                                                                 \
    X(AUTO, "auto")                                                                                                    \
    X(API, "api")                                                                                                      \
    X(FILE, "file")
#define ORIGIN_ENUM(name, text) ORIGIN_##name,
enum origin { ORIGIN_LIST(ORIGIN_ENUM) ORIGIN_COUNT };
#undef ORIGIN_ENUM
const char *origin_text(enum origin o);

/* An admission number: which shard admitted it, and the how-manieth it was there. Bit 63 stays free: ARRIVALS records say
 * with it that only the low bits of a number are known. 2^52 admissions are 140 years at a million a second. */
#define SEQ_NUMBER_BITS 52u
#define SEQ_SHARD_BITS  11u
#define SHARDS_MAX      (1u << SEQ_SHARD_BITS)
_Static_assert(SEQ_NUMBER_BITS + SEQ_SHARD_BITS == 63, "bit 63 is the arrivals' own");
static inline u64 seq_make(u16 shard, u64 number) {
    return (u64)shard << SEQ_NUMBER_BITS | number;
}
static inline u16 seq_shard(u64 seq) {
    return (u16)(seq >> SEQ_NUMBER_BITS & (SHARDS_MAX - 1));
}

/* Which message: enough to find it and to prove that it is the one. */
struct ref {
    u64 hash; /* keyed hash of (queue, key) */
    u64 seq;  /* admission number, never reused */
    u16 queue;
};

enum clock_kind {
    CLOCK_RUNNING,
    CLOCK_BOOT, /* the first of a run */
    CLOCK_PAST, /* what the wall clock showed last before it was set back, and the delay clock then; the others are of now */
    CLOCK_KINDS
};

struct rec_clock {
    u64 next_seq, fence; /* fence: the last one handed out */
    i64 wall_ms, run_ms, delay_ms;
    u8 kind;
};

/* Counters that survive restarts, per queue. */
#define COUNTER_LIST(X)                                                                                                \
    X(accepted)                                                                                                        \
    X(duplicates)                                                                                                      \
    X(conflicts)                                                                                                       \
    X(delivered)                                                                                                       \
    X(redelivered)                                                                                                     \
    X(acked)                                                                                                           \
    X(nacked)                                                                                                          \
    X(rejected)                                                                                                        \
    X(cancelled)                                                                                                       \
    X(dead_lettered)                                                                                                   \
    X(leases_expired)                                                                                                  \
    X(released)                                                                                                        \
    X(keys_expired)                                                                                                    \
    X(held)               /* moves to the held lane */                                                                 \
    X(conflicts_held)     /* of them, conflicting arrivals */                                                          \
    X(conflicts_admitted) /* admitted under key~<fingerprint>, by rule or by decision */                               \
    X(reconciled)         /* deliveries that asked what became of an earlier one */                                    \
    X(resolved)                                                                                                        \
    X(redriven)                                                                                                        \
    X(no_op)   /* asked to be redriven, but not dead any more */                                                       \
    X(refused) /* sends that failed the schema, kept or not */                                                         \
    X(handed_out)                                                                                                      \
    X(lost) /* handed out under at_most_once, and known not to have been worked on */                                  \
    X(backpressured)                                                                                                   \
    X(erased)                                                                                                          \
    X(forgotten)                                                                                                       \
    X(replayed)
/* Version 1 ends with keys_expired. Later ones are only ever added at the end: a record says how many it has. */
#define COUNTERS_V1 13u
struct counters {
#define COUNTER_FIELD(name) u64 name;
    COUNTER_LIST(COUNTER_FIELD)
#undef COUNTER_FIELD
};

/* A longer window of former rules: keys settled before that moment keep it. */
struct promise {
    i64 until_run_ms, window_ms;
};
#define PROMISES_MAX     8u
#define CONFIG_BYTES_MAX 32768u

struct rec_queue {
    u16 queue;
    bool paused, push_paused, push_gone, deleted;
    u8 origin;
    i64 created_ms;
    struct rules rules;
    i64 oldest_replay_ms;  /* adaptive: the oldest replay seen, its age from settlement in running time */
    i64 window_changed_ms; /* wall clock; 0: as made */
    u8 promise_count;
    struct promise promises[PROMISES_MAX]; /* moments ascending, windows descending */
    struct counters counters;
    slice name, config; /* config: what was said about it, canonical JSON, opaque here */
};

struct rec_message {
    struct ref ref;
    u64 fingerprint;
    i64 first_seen_ms;           /* wall clock */
    i64 due_ms, ttl_ms;          /* delay clock; 0: at once, none */
    u64 replaces, replaces_seq;  /* position and seq of the settle record of the same key, past its window; 0: none */
    u64 origin_hash, origin_seq; /* of the message whose key this arrival reused with another payload; 0: none */
    slice key, group, content_type, attrs, traceparent, tracestate, request_id, payload;
    u32 generation; /* above 0: a settled key's replay */
    bool carried;   /* else fresh: of the rest only state and history count, and only in a replay, a held conflict or a
                       refused copy */
    bool refused;   /* a copy of what failed the schema: it has no key */
    u8 state;       /* PENDING, LEASED, HELD, DEAD */
    u8 ended;       /* how the last lease ended */
    u8 traits;
    bool started;
    u32 lease_ms;
    u16 attempts, failures, unknowns, crashes; /* failures: transient ones */
    u16 lookups;                               /* by the broker, without an answer, of the present doubt */
    u64 fence;                                 /* of its last lease, 0: never leased */
    slice history;
    slice former; /* of a replay: the outcome before it, as former_encode makes it. Empty: none */
};

/* What else is to be remembered of an unsettled message. */
enum trait {
    TRAIT_DOUBT = 1,     /* an attempt before the last lease ended unknown, and nobody has said since what came of it */
    TRAIT_RECONCILE = 2, /* its next delivery asks what became of it */
    TRAIT_LOOKUP = 4,    /* its last delivery did */
    TRAIT_PARKED = 8,    /* dead or held, and its group goes on without it */
    TRAIT_TAKES = 16,    /* dead, and its group with it */
    TRAIT_CONFLICT = 32, /* held because its key was known with another payload: outside its group until decided */
    TRAIT_ALL = 63,
};

struct rec_lease {
    struct ref ref;
    u64 fence;
    i64 at_ms; /* wall clock */
    u32 lease_ms;
    u16 attempts;        /* after it */
    bool started, again; /* again: not its first delivery */
    bool lookup;         /* it only asks what became of an earlier one */
    slice consumer;
};

struct rec_start {
    struct ref ref;
    u64 fence;
    u16 attempts;
};

struct rec_extend {
    struct ref ref;
    u64 fence;
    i64 at_ms;
    u32 lease_ms;
    u16 crashes; /* after it: a consumer that comes back has not crashed */
};

struct rec_return {
    struct ref ref;
    u64 fence;
    i64 at_ms;
    i64 due_ms; /* delay clock; 0: at once */
    u8 ended, failure_class, state;
    u8 traits;                                 /* after it; LOOKUP stays as it is */
    u32 taken;                                 /* messages of its group that die with it */
    u16 attempts, failures, unknowns, crashes; /* after it */
    u16 lookups;                               /* after it; 0 without TRAIT_RECONCILE */
    slice reason;
};

struct rec_step {
    struct ref ref;
    slice name, content_type, result;
};

struct rec_effect {
    struct ref ref;
    slice effect_id;
};

/* What was said in a send, kept with the settled key for a replay. */
struct kept {
    bool is;
    slice group, content_type, attrs, traceparent, tracestate, payload;
};

struct rec_settle {
    struct ref ref;
    u64 fingerprint, fence; /* fence of the last lease; it settled if by_token */
    i64 first_seen_ms, settled_ms, settled_run_ms;
    u8 state;
    u8 ended; /* how the last lease ended: ACKED, NACKED (rejected), or as it was before a cancel */
    bool by_token;
    bool carried; /* the same key's settle record moved or was amended; from_pos says which it replaces */
    u64 from_pos;
    bool erased;   /* payload and result were taken out */
    bool erasing;  /* this very record took them out: what lies before it in the journal may still hold them */
    bool restored; /* a replay was cancelled: state, result and history are the former generation's again */
    u32 generation;
    u16 attempts, failures, unknowns, crashes;
    slice key, request_id, reason, content_type, result, history;
    slice
        http; /* head of the answer the result was the body of: "STATUS\r\n", then lines "name: value\r\n"; opaque here. Empty: none */
    struct kept kept;
};

struct arrival {
    i64 at_ms;
    u8 kind;
    slice request_id;
};
#define ARRIVALS_KEPT       8u
#define ARRIVAL_BYTES_LEAST 10u /* encoded, without a request id */
struct rec_arrivals {
    struct ref ref;             /* seq: of a settled key only bit 63 and the low 12 bits; in version 1 nothing */
    u64 total;                  /* duplicates and conflicts so far, beside the first arrival */
    u64 duplicates;             /* the part that counts as duplicates */
    u32 fresh, fresh_conflicts; /* how many of them this record adds to the queue's counters */
    u32 count;                  /* of the last, at most ARRIVALS_KEPT */
    slice last;                 /* oldest first, as arrival_put has them: mostly they are only handed on */
};

struct rec_expire {
    u16 queue;
    i64 from_run_ms, upto_run_ms; /* keys settled from the one to before the other are forgotten */
    u64 keys;
};

struct rec_decide {
    struct ref ref;
    i64 at_ms, due_ms;
    u8 what, state, traits;          /* enum decision; both after it */
    u32 taken;                       /* messages of its group that die with it */
    u16 failures, unknowns, crashes; /* after it */
    slice group;                     /* a conflict that joins its group now; else empty */
    slice by, note;
};

struct rec_forget {
    struct ref ref;
    u64 from_pos; /* settled: of its settle record; 0: it was unsettled */
};

struct rec_window {
    u16 queue;
    i64 at_ms, window_ms, oldest_replay_ms;
};

struct rec_counts {
    u16 queue;
    struct counters add;
};

struct rec_audit {
    u64 number; /* 1, 2, 3, ... */
    i64 at_ms, run_ms;
    u16 queue;                                         /* 0: of no queue, or of one that is gone */
    slice who, what, queue_name, key, id, why, detail; /* id: as users see it; detail: JSON or empty */
};

#define DAYS_KEPT 14u
struct rec_day {
    u16 queue;
    u32 day; /* since 1970, UTC */
    u64 accepted, duplicates;
};

struct record {
    enum record_type type;
    /* Not written down: the message, or the key's entry, that the decision was about, so that applying need not look it up
     * again. 0: not known. Checked before it is believed. */
    u32 about;
    union {
        struct rec_clock clock;
        struct rec_queue queue;
        struct rec_message message;
        struct rec_lease lease;
        struct rec_start start;
        struct rec_extend extend;
        struct rec_return ret;
        struct rec_step step;
        struct rec_effect effect;
        struct rec_settle settle;
        struct rec_arrivals arrivals;
        struct rec_expire expire;
        struct rec_decide decide;
        struct rec_forget forget;
        struct rec_window window;
        struct rec_counts counts;
        struct rec_audit audit;
        struct rec_day day;
    };
};

/* What it takes encoded, found by the encoder itself. */
size_t record_size(const struct record *r);
/* Encodes into p (record_size bytes are there); returns the size. */
size_t record_encode(const struct record *r, char *p);
/* Slices in *out point into body. ST_VERSION: written by a newer build; ST_DAMAGED: lengths or values impossible. */
hx_st record_decode(u8 type, u8 version, slice body, struct record *out, struct errbuf *err);

/* One of an ARRIVALS record's last: what it takes encoded; that written to p; and the first of `last`, which then begins behind it, false
 * if there is none. */
size_t arrival_size(const struct arrival *a);
void arrival_put(const struct arrival *a, char *p);
bool arrival_next(slice *last, struct arrival *out);

/* ---- the outcome a replay stands in for: a version, then a SETTLE body without key, steps and kept payload. It stays with
 * the message until that is settled, and is carried byte for byte. */
#define FORMER_VERSION_MIN 3u
#define FORMER_BYTES_MAX   ((1u << 20) + (64u << 10)) /* a result, and what its history may hold beside */
void former_encode(const struct rec_settle *s, slice history, struct buf *out);
/* false: nonsense. record_decode has looked at it already: what a decoded MESSAGE holds can be decoded. */
bool former_decode(slice former, struct rec_settle *out);

/* ---- history: the attempts, steps and effect ids of a message, in one encoded run of bytes that is kept in memory and
 * copied verbatim into MESSAGE (carried) and SETTLE records. Oldest first. */
#define HISTORY_ATTEMPTS_KEPT  9u /* the first, and the last eight */
#define HISTORY_EFFECTS_KEPT   16u
#define HISTORY_DECISIONS_KEPT 8u
#define HISTORY_BYTES_MAX      (1u << 20)

enum history_kind { HISTORY_ATTEMPT = 1, HISTORY_STEP = 2, HISTORY_EFFECT = 3, HISTORY_DECISION = 4 };

struct history_item {
    u8 kind;
    /* attempt; decision: at_ms, what, consumer (who), reason (why) */
    u64 fence;
    i64 at_ms, ended_ms;
    u16 attempt;
    u8 ended, failure_class;
    bool lookup; /* attempt: it only asked what became of an earlier one */
    u8 what;     /* decision: enum decision */
    slice consumer, reason;
    /* step: name, content_type, result; effect: name */
    slice name, content_type, result;
};

struct history {
    char *p;
    u32 len;
    u32 written; /* so much of a message's is in its MESSAGE record */
};

void history_reserve(struct history *h, u32 len);
u64 history_block(const struct history *h); /* the memory it takes */

/* The memory of small histories that ended is for those that begin: a lease begins one, and most settlements end one. malloc keeps
 * only a few at hand, and a consumer leases and settles by the hundred. */
#define HISTORY_SPARES      1024u
#define HISTORY_SPARE_BYTES 240u /* at most, each */
struct history_spares {
    u32 count;
    char *at[HISTORY_SPARES];
};
void history_begin(struct history *h, struct history_spares *s); /* nothing, unless it is empty */
void history_retire(struct history *h, struct history_spares *s);
void history_spares_free(struct history_spares *s);

/* Drops the oldest decision beyond the limit, or the oldest attempt but the first: when the work began stays known, however often
 * it was looked up since. */
void history_add(struct history *h, const struct history_item *item);
/* Drops nothing. */
void history_append(struct history *h, const struct history_item *item);
/* End the attempt of this fence that way: ended_ms, ended, failure_class and reason, and attempt unless that is 0. One that was struck out because nothing was done
 * under it comes back as what `lookup` says it was. */
void history_end(struct history *h, const struct history_item *how);
/* Memory is short: an attempt that was cut ends in this, and gives way to the next. */
#define HISTORY_CUT "[cut]"
/* Drops the attempts that were cut, but the first of the work and the last look-up that found nothing: what is decided by (when the
 * work began, that it was once absent) stays known. */
void history_yield(struct history *h);
void history_set_attempt(struct history *h, u64 fence, u16 attempt);
void history_remove_attempt(struct history *h, u64 fence);
void history_free(struct history *h);
/* Walk: start with *at = 0; false at the end (or on nonsense, which record_decode has excluded). */
bool history_next(slice history, u32 *at, struct history_item *out);
bool history_valid(slice history);
/* The last attempt, as a list of the dead shows it: class, reason, time. false: there was none. */
bool history_last_attempt(slice history, struct history_item *out);
/* The last decision; false: there was none. DECISION_HELD is none of a person's. */
bool history_last_decision(slice history, struct history_item *out);
bool history_find_step(slice history, slice name, struct history_item *out);
bool history_has_effect(slice history, slice effect_id, u32 *count);
size_t history_item_size(const struct history_item *item);

#endif
