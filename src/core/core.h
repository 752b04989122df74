/* core: could it be replayed from a journal? The pure state machine of keys, messages, leases and outcomes.
 *
 * Every verb below decides against the state, writes records through the sink, and applies each of them; nothing else
 * changes state. Recovery feeds the same records to core_replay, which only applies. No I/O, no clock, no globals, no
 * randomness but the seeded generator: given the same calls the core makes the same records.
 *
 * Fetch, then decide. The core keeps in memory what decisions need, not what was said: key bytes, payloads and results
 * stay in the journal. core_find() names the positions; the caller reads them back, and hands them in as `seen`.
 *
 * docs/LIFECYCLE.md has the states, the moves and the numbered invariants asserted here. */
#ifndef HAPAX_CORE_CORE_H
#define HAPAX_CORE_CORE_H

#include "base/base.h"
#include "core/record.h"

#define KEY_BYTES_MAX         255u
#define CONSUMER_BYTES_MAX    128u
#define REASON_BYTES_MAX      1024u
#define REQUEST_ID_BYTES_MAX  128u
#define STEP_NAME_BYTES_MAX   255u
#define RESULT_BYTES_MAX      (1u << 20)
#define HTTP_HEAD_BYTES_MAX   (16u << 10) /* of the HTTP answer a result came with */
#define QUEUES_MAX            65000u
#define MESSAGE_NONE          0u
#define ACTOR_BYTES_MAX       255u
#define KEY_REPEATS_FOUND     32u   /* at_least_once: how many messages of one key can be found by it; all can by id */
#define CONFLICTS_HELD_MAX    1000u /* of a queue; beyond, a conflict is refused as under on_conflict: reject */
#define AUDIT_TRAIL_BYTES_MAX (128ull << 20) /* of the audit trail in the journal; beyond, its oldest records go */
#define RESULT_ALWAYS_FITS                                                                                             \
    1024u /* P8: a settlement with a result (and HTTP head) up to this is never refused for lack of room, */
#define WORDS_ALWAYS_FIT 384u /* with an effect id and content type (together, and a reason twice) up to that */

struct core;

/* Three clocks, in milliseconds. Windows and leases count `run`: the broker's own running time, which neither steps
 * nor grows while it is down or stopped. Delays count `delay`: run plus the wall-clock time it was down. */
struct core_now {
    i64 wall_ms, run_ms, delay_ms;
};

/* Where records go. reserve/append as in the journal port. Nothing here waits: how much may still be appended is said before
 * a step (core_room_set), and a step that would need more is refused. */
struct core_sink {
    void *ctx;
    void *(*reserve)(void *ctx, size_t body);
    u64 (*append)(void *ctx, u8 type, u8 version, size_t body);
    u64 (*cost)(size_t body); /* bytes of room a record with such a body takes */
    /* A message left the ranks of the unsettled, or became dead or held: whoever waits for its result may look. */
    void (*on_outcome)(void *ctx, const struct ref *ref);
    /* A queue has something to hand out or to look up that had nothing of it before, or its pushing goes on. */
    void (*on_ready)(void *ctx, u16 queue);
    /* A record was appended and applied, for whoever counts. Its slices are gone when this returns. May be NULL. */
    void (*on_record)(void *ctx, const struct record *r);
    /* A settled key's window is over, and its memory was freed. For whoever wants to know if it comes once more. May be NULL. */
    void (*on_expired)(void *ctx, u16 queue, u64 hash);
};

struct core_options {
    struct siphash_key hash_key; /* of this data directory, so that nobody can craft collisions */
    u64 seed;                    /* for jitter */
    u16 shard;                   /* which one this is: in every id and token, from bit 52 on; 0 where there is one */
    u64 memory_max;              /* what it may take; above that nothing new is taken in. 0: no bound */
    i64 audit_keep_ms;           /* how long audit records are kept, running time; 0: 90 days */
    bool downtime_said;          /* the downtime before this start is downtime_ms, whatever the wall clock says */
    i64 downtime_ms;
};

struct core *core_new(const struct core_options *options);
void core_free(struct core *c);

/* ---- recovery: every record of the journal, in order; then core_start, once. */
hx_st core_replay(struct core *c, u64 pos, u8 type, u8 version, slice body, struct errbuf *err);
/* The end of the journal: checks that it is whole, gives live leases their full length again, raises the fence. Writes
 * nothing: the boot record comes right before the first other one, so that a start takes no room. *now is where the clocks go
 * on from. */
hx_st core_start(struct core *c, const struct core_sink *sink, i64 wall_ms, struct core_now *now, struct errbuf *err);
/* The time before this start when nothing ran. Delays and times to live are charged for it; windows and leases are not. */
struct core_downtime {
    i64 by_clock_ms; /* since the clocks were last written down, by the wall clock: negative if that was set back */
    i64 charged_ms;
};
struct core_downtime core_downtime(const struct core *c);
/* By how much the wall clock was set back since it showed that, as far as is known: from the oldest clock in the journal on. What follows
 * from how long ago something was takes it into account; too much of it, never too little, where the clock had run ahead. */
i64 core_set_back_ms(const struct core *c, struct core_now now, i64 since_wall_ms);
/* A clean end: writes where the clocks stand and the arrivals that were not written yet. */
void core_stop(struct core *c, struct core_now now);

/* ---- room: what may still be appended, in bytes as sink->cost counts them. Every record written takes from it. */
void core_room_set(struct core *c, u64 bytes);
u64 core_room(const struct core *c);
/* At most so much of what was said of an unsettled message before goes into its settlement: its history, and what its queue
 * keeps of it for a replay. */
u64 core_said_bytes(const struct core *c, u32 message);
/* At most so much is written by a tick with this budget. */
u64 core_tick_bytes(const struct core *c, u32 budget);

/* ---- time */
/* Does what is due: leases that ran out, TTLs, delays, windows, arrivals to write down; at most `budget` moves.
 * Returns true if more is waiting. */
bool core_tick(struct core *c, struct core_now now, u32 budget);
/* The next message whose time to live ended before it was started, MESSAGE_NONE if there is none: read its record and
 * core_cancel it. */
u32 core_ttl_due(const struct core *c, struct core_now now);
/* Milliseconds until the next tick has something to do, at most `at_most`. */
i64 core_next_ms(const struct core *c, struct core_now now, i64 at_most);

/* ---- queues */
struct queue_info {
    u16 queue;
    slice name;
    slice config; /* what was said about it, as given to core_queue_set; empty: nothing */
    enum origin origin;
    bool paused;
    bool push_paused; /* pulled, but not pushed: core_push_pause */
    bool push_gone;   /* so because its target is gone: core_push_gone */
    bool deleted;     /* its number is all that is left: pass it over */
    bool pressed;     /* over a limit, and not yet below 80 % of all of them: new messages are refused */
    i64 created_ms;
    struct rules rules;                      /* rules.window_ms: the present one, adaptive or not */
    i64 oldest_replay_ms, window_changed_ms; /* adaptive windows: what was seen, when the window last grew (wall) */
    i64 promised_window_ms;                  /* the longest window of former rules some keys still keep; 0: none */
    struct counters counters;
    u64 ready, delayed, behind, leased, held, dead, settled_keys;
    u64 lookups;                                        /* of the ready ones: to be looked up */
    u64 unsettled, unsettled_bytes;                     /* messages; their payloads */
    u64 bytes;                                          /* of the records that hold its messages and keys */
    u64 conflict_copies, refused_copies, refused_bytes; /* in the held and the dead lane */
    i64 oldest_ready_ms; /* how long the oldest ready message has been waiting to be handed out; 0 if none */
};
bool core_queue_find(const struct core *c, slice name, u16 *queue);
slice core_queue_name(const struct core *c, u16 queue); /* empty: it was deleted */
/* Makes it with these rules if it is not there (origin auto). false: no room for another (ST_NO_SPACE's counterpart). */
bool core_queue_ensure(struct core *c, struct core_now now, slice name, const struct rules *rules, u16 *queue);
/* Makes it, or gives it these rules, this origin and this text from here on; writes nothing if all are as they were.
 * Running work is unaffected. A shorter window counts for keys settled from now on: those settled before keep the one they
 * were promised. An adaptive window keeps what it has learnt, within the new bounds. false: no room. */
struct queue_spec {
    struct rules rules;
    enum origin origin;
    slice config; /* at most CONFIG_BYTES_MAX; kept as it is */
};
struct audit_in;
bool core_queue_set(struct core *c, struct core_now now, slice name, const struct queue_spec *spec,
                    const struct audit_in *audit, u16 *queue);
/* The queue and all its settled keys are forgotten at once; their memory is freed little by little. Its number is free
 * for another; docs/STORAGE.md says why the two are never taken for each other. */
enum delete_verdict {
    DELETE_OK,
    DELETE_UNSETTLED, /* it has messages that are not settled: purge it first */
    DELETE_FULL,
};
enum delete_verdict core_queue_delete(struct core *c, struct core_now now, u16 queue, const struct audit_in *audit);
enum pause_verdict { PAUSE_OK, PAUSE_NO_CHANGE /* nothing is written */, PAUSE_FULL };
enum pause_verdict core_queue_pause(struct core *c, struct core_now now, u16 queue, bool paused,
                                    const struct audit_in *audit);
/* Says that nothing is to be pushed there, over restarts; whoever pushes asks queue_info. Consumers receive as before. */
enum pause_verdict core_push_pause(struct core *c, struct core_now now, u16 queue, bool paused,
                                   const struct audit_in *audit);
/* Paused for the target's own word that it is gone, until somebody decides: resumes it, or pauses it himself. Of what is paused:
 * NO_CHANGE. */
enum pause_verdict core_push_gone(struct core *c, struct core_now now, u16 queue, const struct audit_in *audit);
void core_queue_info(const struct core *c, struct core_now now, u16 queue, struct queue_info *out);
/* How long things have been waiting there. Looks at up to look_at messages of each lane, those first that came there first. */
struct queue_ages {
    i64 oldest_held_ms;  /* running time; 0: nothing is held */
    struct ref held;     /* that one */
    u32 blocked_groups;  /* with a dead or held head that others wait behind */
    struct ref blocking; /* one such head */
    i64 started_ms; /* wall clock: when the work on `started`, of those begun and unsettled, first began; INT64_MAX: of none */
    struct ref started;
};
void core_queue_ages(const struct core *c, struct core_now now, u16 queue, u32 look_at, struct queue_ages *out);
/* Is it unsettled, begun, and neither held nor dead? When did the work on it first begin, by the wall clock? */
bool core_started_ms(const struct core *c, const struct ref *ref, i64 *wall_ms);
/* What arrived there on a day that is over (UTC, since 1970), for DAYS_KEPT days. false: no room. */
bool core_day_end(struct core *c, struct core_now now, u16 queue, u32 day, u64 accepted, u64 duplicates);
/* Those before `today`, in any order; how many. */
u32 core_days(const struct core *c, u16 queue, u32 today, struct rec_day out[DAYS_KEPT]);
/* What recovery found: the last key of the queue that has two effect ids, and when (wall clock) it had them at the earliest. */
bool core_doubled(const struct core *c, u16 queue, struct ref *key, i64 *since_ms);
u32 core_queues_left(const struct core *c); /* so many more can be made */
u32 core_queue_count(const struct core *c); /* queues are numbered 1..count, deleted ones included */
/* Whoever keeps a queue's number beyond a turn keeps this beside it: another value, and the queue was deleted since. */
u64 core_queue_since(const struct core *c, u16 queue);
const struct rules *core_queue_rules(const struct core *c, u16 queue);

/* ---- accounts: queues that share one bound. What they are is the caller's: said at every start and whenever it changes, in no
 * record. Limits keep new messages out; what is there may be redriven, replayed and settled whatever they say. */
#define ACCOUNT_NONE 0u
struct account_limits {
    u64 pending,
        bytes; /* 0: none. unsettled messages, without copies of what failed the schema; records of messages and keys */
};
struct account_sums {
    u64 queues, pending, bytes;
};
/* There are these, numbered from 1, with no queue in any. */
void core_accounts_set(struct core *c, const struct account_limits *limits, u16 count);
void core_queue_account(struct core *c, u16 queue, u16 account); /* until it is deleted, or said otherwise */
struct account_sums core_account_sums(const struct core *c, u16 account);

/* ---- looking up */
u64 core_hash(const struct core *c, u16 queue, slice key);
u64 core_fingerprint(const struct core *c, slice payload);
/* Several at once, which takes less time than one after the other. */
void core_hashes(const struct core *c, u16 queue, const slice *keys, size_t count, u64 *out);
void core_fingerprints(const struct core *c, const slice *payloads, size_t count, u64 *out);

/* One key will be looked up in a moment. */
void core_near(const struct core *c, u64 hash);
/* Ahead of look-ups of these hashes: what they will touch is brought near, step by step for all of them, so that the waits
 * overlap. Says where their records seem to be, at most two for each, and returns how many: bring those near next. */
#define AHEAD_MAX 64u
struct ahead {
    u64 pos[2 * AHEAD_MAX];
    u32 bytes[2 * AHEAD_MAX]; /* of the record there, about; 0: not known */
    bool settled[AHEAD_MAX];  /* of the hashes, not of their records: it is, or nothing is known */
};
#define ARRIVALS_BYTES 128u /* what an ARRIVALS record takes in the journal, about: their sizes are not kept */
u32 core_prefetch(const struct core *c, const u64 *hashes, u32 count, struct ahead *out);
u32 core_prefetch_to_settle(const struct core *c, const u64 *hashes, u32 count, struct ahead *out); /* no arrivals */

/* Something known under a hash. */
struct found {
    u32 entry;
    u32 message; /* MESSAGE_NONE if settled */
    u64 pos;     /* its MESSAGE or SETTLE record */
    u32 size_hint;
    u16 queue;
    u64 arrivals_pos; /* 0: never written; else its ARRIVALS record */
};
/* Candidates under this hash, expired ones too (decisions look at the clock themselves). Zero the cursor to start. */
struct core_cursor {
    u64 slot;
    u8 phase;
};
bool core_find(const struct core *c, u64 hash, struct core_cursor *cursor, struct found *out);
/* Without a look at where its arrivals are, which core_settle does not ask for. */
bool core_find_to_settle(const struct core *c, u64 hash, struct core_cursor *cursor, struct found *out);

/* A found entry with its records read back. Borrowed by the call that gets it. */
struct seen {
    struct found at;
    const struct rec_message *message; /* unsettled: its base record */
    const struct rec_settle *settle;   /* settled */
    const struct rec_arrivals
        *arrivals; /* if at.arrivals_pos != 0 and they are not in memory; core_settle does not ask */
};

/* The mutable side of an unsettled message. */
struct message_view {
    struct ref ref;
    enum state state;
    u8 ended;
    bool started, delayed, behind;
    bool doubt;     /* some attempt ended unknown, and nobody has said since what came of it */
    bool reconcile; /* its next delivery asks what became of it */
    bool lookup;    /* its present (or last) delivery does */
    bool parked;    /* dead or held, and its group goes on without it */
    bool takes;     /* dead, and its group with it */
    bool taken;     /* dead only because its group's head is: it comes back with that one */
    bool conflict;  /* held: its key (the part before ~) was known with another payload */
    bool refused;   /* dead: a copy of what failed the schema; its history's decision says why */
    u32 generation, lease_ms;
    u16 attempts, failures, unknowns, crashes;
    u16 lookups; /* by the broker, without an answer so far */
    u64 fence;
    i64 due_ms;        /* delay clock */
    i64 lease_left_ms; /* while leased */
    u64 pos;
    u32 size_hint;
    slice history;
};
void core_message_view(const struct core *c, struct core_now now, u32 message, struct message_view *out);
enum state core_message_state(const struct core *c, u32 message); /* of all that only this */
/* The one of its group that keeps a message back, MESSAGE_NONE if none does. */
u32 core_group_ahead(const struct core *c, u32 message);

/* Its arrivals need not be read back: what is in memory is newer. */
bool core_arrivals_in_memory(const struct core *c, u32 entry);
/* How often and when it came again, written down or not. Slices point into the seen record and the core. */
struct arrivals {
    u64 total, duplicates;
    u32 count;
    struct arrival last[ARRIVALS_KEPT]; /* oldest first */
};
void core_arrivals_view(const struct core *c, const struct seen *seen, struct arrivals *out);
/* Milliseconds until a settled key is forgotten; <= 0: past; INT64_MAX: never. */
i64 core_key_left_ms(const struct core *c, struct core_now now, const struct rec_settle *settle);
/* Unsettled messages of a queue in a state, in the order the broker would come to them. Start with MESSAGE_NONE; the
 * cursor message must still be the one it was (compare seq), else start over. MESSAGE_NONE: no more. */
u32 core_list(const struct core *c, u16 queue, enum state state, u32 after);
/* The unsettled message of this id, MESSAGE_NONE if there is none. */
u32 core_message_find(const struct core *c, u64 hash, u64 seq);
/* Everything known in a queue, unsettled and settled, a bounded part at a time: looks at up to `look_at` entries of the
 * whole index and yields the next of this queue in *out. Settled ones that settled before `since_run_ms` (running time)
 * are passed over. *cursor starts at 0. WALK_MORE: call again; nothing is yielded. What comes or goes while it walks may or
 * may not be seen. */
enum walk_verdict { WALK_FOUND, WALK_MORE, WALK_END };
enum walk_verdict core_walk(const struct core *c, u16 queue, i64 since_run_ms, u32 look_at, u32 *cursor,
                            struct found *out);

/* ---- send
 *
 * exactly_once and at_most_once with a key: look the key up, hand in what was found. at_least_once, or no key: seen is NULL,
 * nothing need be looked up (key may be empty, hash is then ignored).
 *
 * A conflict under on_conflict hold or new takes two steps, for the arrival gets a key of its own: core_send answers
 * SEND_ELSEWHERE with that key, key~<16 hex digits of the fingerprint>; look it up, and call core_send_conflict. */
struct send_in {
    u16 queue;
    u64 hash, fingerprint;
    slice key, group, content_type, attrs, traceparent, tracestate, request_id, payload;
    i64 delay_ms, ttl_ms; /* 0: none */
    bool unmetered;       /* it was there before, and an operator lets it in: no account's limit keeps it out */
};
enum send_verdict {
    SEND_ACCEPTED,
    SEND_DUPLICATE,
    SEND_CONFLICT,
    SEND_FULL,
    SEND_BACKPRESSURE, /* a limit of the queue is reached; nothing was applied */
    SEND_OVER_PENDING, /* the queue's account has its number of unsettled messages */
    SEND_OVER_BYTES,   /* or its bytes */
    SEND_ELSEWHERE,    /* look up out->other_key, call core_send_conflict */
    SEND_HELD,         /* core_send_conflict: stored as a held message; out->ref is its own */
};
#define OTHER_KEY_TAIL 17u /* ~ and the fingerprint */
struct send_out {
    struct ref ref; /* of the message it is, or of the original */
    u64 duplicates; /* this one included */
    i64 first_seen_ms;
    enum arrival_kind arrival; /* of a duplicate: REPLAY or LATE */
    bool again;                /* accepted, but the same came before, and its window is over: it is done again */
    i64 age_ms; /* of a duplicate, or if `again`: since it settled, in running time; since it was first seen if it has not */
    u64 other_hash;
    u8 other_key_len;
    char other_key[KEY_BYTES_MAX];
};
/* seen: what core_find yielded whose key bytes equal in->key, or NULL. Prefer an unsettled one to a settled one. */
enum send_verdict core_send(struct core *c, struct core_now now, const struct send_in *in, const struct seen *seen,
                            struct send_out *out);
/* The key a conflicting arrival has for itself, into out->other_key and _hash. false: it would be too long. */
bool core_other_key(const struct core *c, const struct send_in *in, struct send_out *out);
/* Has this queue ever given an arrival such a key? Then look that up too before a message comes in under a key that is not
 * known, or not any more: it may have come in before, while its key was another's. */
bool core_queue_had_conflicts(const struct core *c, u16 queue);
/* The second step. in: as before (its own key and hash); first: what core_send answered; other: what is known under
 * first->other_key, or NULL. ACCEPTED (on_conflict new), HELD (hold), DUPLICATE of such an arrival (out->ref is its),
 * CONFLICT (too many are held, or that key is taken by something else), FULL, BACKPRESSURE. */
enum send_verdict core_send_conflict(struct core *c, struct core_now now, const struct send_in *in,
                                     const struct send_out *first, const struct seen *other, struct send_out *out);

/* What failed the schema: a copy goes to the dead lane, once per distinct payload, within the queue's bounds. in: queue and
 * everything that was said; its key is kept with the copy, and finds nothing; fingerprint: of the raw bytes. reason: at most
 * REASON_BYTES_MAX. out: the copy, also of one that is KNOWN; its seq is 0 where it was cancelled. */
enum refuse_verdict {
    REFUSE_KEPT,
    REFUSE_KNOWN,  /* this payload has its copy, or had one that was cancelled not a window ago */
    REFUSE_BEYOND, /* the bounds are reached, or there is no room: counted only */
};
enum refuse_verdict core_refuse(struct core *c, struct core_now now, const struct send_in *in, slice reason,
                                struct ref *out);

/* ---- receive: look at the next message, read its record, lease it */
/* What a consumer gets next: a look-up if there is one, else one to be done; MESSAGE_NONE: nothing, or paused. No look-ups where
 * the broker makes them itself (rules.lookup_attempts): those are core_next_lookup's. */
u32 core_next_ready(const struct core *c, u16 queue);
u32 core_next_lookup(const struct core *c, u16 queue); /* the next one due, whoever makes it; MESSAGE_NONE as above */
/* Where the records of the next ones are, at most `max`: to have them brought near. */
u32 core_ready_positions(const struct core *c, u16 queue, u32 max, u64 *positions);
struct lease_in {
    u32 lease_ms;
    bool reserve_only; /* start=explicit */
    slice consumer;
};
#define DELIVERY_LIST(X)                                                                                               \
    X(FIRST, "first")                                                                                                  \
    X(RETRY, "retry")                                                                                                  \
    X(RECONCILE, "reconcile") /* do not do it: find out whether it was done; ack with what was found, or nack absent */
#define DELIVERY_ENUM(name, text) DELIVERY_##name,
enum delivery { DELIVERY_LIST(DELIVERY_ENUM) DELIVERY_COUNT };
#undef DELIVERY_ENUM
const char *delivery_text(enum delivery d);
struct lease_out {
    u64 fence;
    u16 attempt;
    enum delivery delivery;
    bool settled; /* at_most_once: it is done with this delivery; the message number is gone */
};
enum lease_verdict {
    LEASE_OK,
    LEASE_TTL_OVER, /* it was out of its time to live, and is cancelled now: look again */
    LEASE_FULL,     /* no room to write the lease of a retry; it goes behind the others */
};
enum lease_verdict core_lease(struct core *c, struct core_now now, u32 message, const struct rec_message *base,
                              const struct lease_in *in, struct lease_out *out);
/* The reply that would have handed it out never left: give it back without an attempt. Under at_most_once it was settled
 * before the reply could leave, and is counted as lost. */
void core_unlease(struct core *c, struct core_now now, const struct ref *ref, u64 fence);

/* ---- settle. The order of checks is CONTRACT.md's: the same settling call again; a newer lease; settled otherwise;
 * expired but newest still settles. */
enum verb { VERB_ACK, VERB_NACK, VERB_EXTEND, VERB_STEP, VERB_START, VERB_RELEASE, VERB_HOLD };
enum settle_verdict {
    SETTLE_OK,
    SETTLE_DUPLICATE,     /* the stored answer */
    SETTLE_FENCED,        /* a newer lease exists */
    SETTLE_SETTLED,       /* settled otherwise, or decided by an operator; out->state says how */
    SETTLE_EXPIRED,       /* extend or start of a lease that ran out and left the message dead or held */
    SETTLE_NOT_RECONCILE, /* nack absent, but the delivery was none to reconcile */
    SETTLE_TOO_LARGE,     /* steps or result beyond the limits */
    SETTLE_FULL,          /* no room */
};
struct settle_in {
    enum verb verb;
    u64 fence;
    enum failure_class failure_class;
    i64 delay_ms; /* nack: floor; release: until it comes again */
    u32 lease_ms; /* extend; 0: as before */
    bool hold;    /* nack absent: it did not happen, but a person decides whether it is done again: held */
    bool spares;  /* nack: it is no fault of the message, and does not count against the attempts it is allowed */
    slice reason, name, content_type, result, effect_id;
    slice http; /* ack, nack rejected: as rec_settle.http; at most HTTP_HEAD_BYTES_MAX */
};
struct settle_out {
    enum state state;
    i64 due_ms;                           /* nack, release: until it is handed out again, from now; 0 at once */
    u32 effects;                          /* this call added an effect id: so many the key has now; else 0 */
    slice step_result, step_content_type; /* step: the recorded one; valid until the next call */
};
/* Of a key that was replayed: did this call make the outcome that was there before, and stands until the replay has its own?
 * *was: that outcome. */
bool core_settled_before(const struct seen *seen, enum verb verb, u64 fence, struct rec_settle *was);

/* seen: the message or settled key of the token's id.
 *
 * Tokens of at_most_once deliveries: an ack is a DUPLICATE (it was done when it was handed out; no result is stored), and
 * so are start and extend (it is the consumer's for good); a nack is OK once, keeps its reason and counts as lost (state done:
 * it does not come again); everything else is SETTLED.
 *
 * VERB_HOLD is for leases that were not started: a person decides before the work is done for the first time. Held, and its history
 * says why (DECISION_HELD, reason); resolve as `retry` lets it out.
 *
 * nack absent where the broker looks up: pending again, unless the failed attempts allowed are used up; then dead. */
enum settle_verdict core_settle(struct core *c, struct core_now now, const struct settle_in *in,
                                const struct seen *seen, struct settle_out *out);

/* ---- operator
 *
 * A deed writes itself into the audit trail: its AUDIT record comes right before its own, and both are written or none. What
 * is refused is not in the trail, and nothing is done unnamed. `audit` NULL: no person's deed, or one of many that were
 * named together (core_audit). */
struct audit_in {
    slice who, what, why, detail; /* detail: JSON or empty. who and why also go into the message's history */
    bool relieves; /* it gives back more room than it takes, or lets others: it may take the last of it */
};
enum cancel_verdict { CANCEL_OK, CANCEL_SETTLED, CANCEL_FULL };
enum cancel_verdict core_cancel(struct core *c, struct core_now now, const struct seen *seen, slice reason,
                                const struct audit_in *audit);
/* Purging: the messages of a queue in the state `only` (PENDING, HELD, DEAD; STATE_COUNT: any of them) that were admitted
 * before the purge began, one after the other, each to be read and cancelled. Leased ones are left alone. Whatever comes
 * meanwhile is passed over once, so a purge ends however much is sent. Between begin and end the core keeps a pointer to it. */
struct core_purge {
    u16 queue;
    enum state only;
    u64 before_seq;
    u32 passed[7]; /* of each place: the last message passed over; those before it need not be looked at again */
    struct core_purge *next;
};
void core_purge_begin(struct core *c, struct core_purge *p);
void core_purge_end(struct core *c, struct core_purge *p);
/* Looks at up to look_at messages. WALK_MORE: call again; none was found yet. */
enum walk_verdict core_purge_next(const struct core *c, struct core_purge *p, u32 look_at, u32 *message);

/* Everywhere below: who at most ACTOR_BYTES_MAX, why at most REASON_BYTES_MAX. */

/* The lease is over as if it had run out now, but no crash is counted: its holder is not to blame. Until it is handed out
 * again its token still settles it. reason: at most REASON_BYTES_MAX, for the attempt. *state: what it is (afterwards). */
enum revoke_verdict { REVOKE_OK, REVOKE_NOT_LEASED, REVOKE_FULL };
enum revoke_verdict core_revoke(struct core *c, struct core_now now, const struct seen *seen, slice reason,
                                const struct audit_in *audit, enum state *state);

/* Held or dead work, decided by somebody. Kills the token; who and why go into the history. `done`, `rejected`: settled with
 * the result. `retry`: to be done again, without a look-up first, all attempts anew. `dead`. `new`, `duplicate`: for held
 * conflicts only, which take nothing else. */
enum resolve_verdict {
    RESOLVE_OK,
    RESOLVE_NOT_HELD,     /* neither held nor dead: out->state says what */
    RESOLVE_SETTLED,      /* settled meanwhile: out->state */
    RESOLVE_NOT_CONFLICT, /* new or duplicate, but it is no held conflict */
    RESOLVE_CONFLICT,     /* it is one, and takes only new or duplicate */
    RESOLVE_REFUSED,      /* a copy of what failed the schema: it can only be cancelled, or sent anew */
    RESOLVE_TAKEN,        /* dead with its group's head: decide that one */
    RESOLVE_TOO_LARGE,
    RESOLVE_FULL,
};
struct resolve_in {
    enum decision as; /* DONE REJECTED RETRY DEAD NEW DUPLICATE */
    slice result, content_type;
    slice http; /* as rec_settle.http; empty: none */
};
enum resolve_verdict core_resolve(struct core *c, struct core_now now, const struct seen *seen,
                                  const struct resolve_in *in, const struct audit_in *audit, enum state *state);

/* Dead work gets its attempts again. Key, effect key, steps and history stay; failures, unknowns and crashes start anew; a
 * message with doubt left comes back as reconcile. A head that took its group along brings it back: *count says how many
 * came back in all. Filters are the caller's: core_list, core_message_view, history_last_attempt. */
enum redrive_verdict {
    REDRIVE_OK,
    REDRIVE_NO_OP,   /* settled, or not dead any more (counted) */
    REDRIVE_TAKEN,   /* dead with its group's head: redrive that one */
    REDRIVE_REFUSED, /* a copy of what failed the schema: check it again and send it through the door, then cancel this */
    REDRIVE_FULL,
};
enum redrive_verdict core_redrive(struct core *c, struct core_now now, const struct ref *ref, slice by, slice note,
                                  u32 *count);
/* What core_redrive would say now, but for FULL; nothing is done or counted. *doubt: it would come back as reconcile. */
enum redrive_verdict core_redrive_foresee(const struct core *c, const struct ref *ref, bool *doubt, u32 *count);

/* A settled key runs again as the next generation, under its own key and the effect key key~gN; steps are gone. */
enum again_verdict {
    AGAIN_OK,
    AGAIN_NOT_SETTLED,
    AGAIN_PAYLOAD_GONE, /* not kept, not any more, or erased */
    AGAIN_FULL,
};
enum again_verdict core_again(struct core *c, struct core_now now, const struct seen *seen,
                              const struct audit_in *audit, struct send_out *out);
/* Is the payload of a settled key still kept? */
bool core_payload_kept(const struct core *c, struct core_now now, const struct rec_settle *settle);

/* Payload, result, steps and reasons go, the key stays: its answers say erased. An unsettled message is cancelled with it.
 * The bytes leave the disk when everything before core_erase_upto has been compacted. */
enum erase_verdict { ERASE_OK, ERASE_LEASED, ERASE_ALREADY, ERASE_FULL };
enum erase_verdict core_erase(struct core *c, struct core_now now, const struct seen *seen,
                              const struct audit_in *audit);
/* Erased bytes may lie before this journal position; 0: nothing was erased. Compact at least that far, in good time. */
u64 core_erase_upto(const struct core *c);

/* The key is new again at once. */
enum forget_verdict { FORGET_OK, FORGET_LEASED, FORGET_FULL };
enum forget_verdict core_forget(struct core *c, struct core_now now, const struct seen *seen,
                                const struct audit_in *audit);

/* ---- audit: who did what, and why. Append-only; each record is kept audit_keep_ms of running time, so that neither a clock
 * step nor downtime loses one early; but of all no more than AUDIT_TRAIL_BYTES_MAX. */
/* What is done in many steps, or by nobody in the core, named once; queue 0: of none. false: no room, nothing is written. */
bool core_audit(struct core *c, struct core_now now, u16 queue, const struct audit_in *in);
void core_audit_keep(struct core *c, i64 keep_ms);
/* Newest first: the record before number `before` (0: the newest). false: no more. Read it back at *pos. */
struct audit_at {
    u64 number, pos;
    u32 size_hint;
};
bool core_audit_prev(const struct core *c, u64 before, struct audit_at *out);

/* ---- compaction. Segments are cleaned oldest first, so whatever a record overrides is older and goes with it. */
/* Where to look: the next CARRY_STRETCH bytes at or behind `from` and before `upto` in which a record begins that may be needed,
 * UINT64_MAX: there are none. What lies between need not be read. */
#define CARRY_STRETCH 32u
u64 core_carry_next(const struct core *c, u64 from, u64 upto);
/* A record of the oldest segment: write it anew if it is still needed. */
void core_carry(struct core *c, struct core_now now, const struct record *r, u64 pos);
/* Before the segment is dropped that ends at `upto`: the clocks and counters it may have held. */
void core_carry_end(struct core *c, struct core_now now, u64 upto);
u64 core_live_bytes(const struct core *c);     /* of journal records still needed */
u64 core_reserved_bytes(const struct core *c); /* room promised to accepted messages (P8) */

struct core_memory {
    u64 index_bytes, arrivals_bytes, needed_bytes, message_bytes, group_bytes;
    u64 reserved_bytes; /* more that accepted messages may come to take */
    u64 settled_keys, messages, groups, repeated_keys;
};
void core_memory(const struct core *c, struct core_memory *out);
/* What is taken and reserved is over memory_max: sends, replays and steps are refused as if the disk were full, and of names and
 * reasons the beginning is kept. What was accepted can be leased and settled. */
bool core_memory_short(const struct core *c);

/* ---- tokens and ids, opaque to users: what they carry is checked, never trusted */
#define ID_TEXT    32u
#define TOKEN_TEXT 48u
void core_id_text(const struct ref *ref, struct buf *out);
char *core_id_write(const struct ref *ref, char *to); /* the same, where there is room; its end */
bool core_id_parse(slice text, u64 *seq, u64 *hash);
struct token {
    u64 hash, seq, fence;
};
enum token_verdict { TOKEN_OK, TOKEN_INVALID, TOKEN_FOREIGN };
void core_token_text(const struct core *c, const struct ref *ref, u64 fence, struct buf *out);
enum token_verdict core_token_parse(const struct core *c, slice text, struct token *out);
/* The same in parts, for many at once: the codes by which those of this broker are known, how a token with its code is spelled, and what
 * a text says that is a token of some broker. */
#define TOKENS_TOGETHER 32u
void core_token_codes(const struct core *c, const struct token **tokens, u32 count, u64 *codes);
void core_token_put(const struct token *t, u64 code, char out[TOKEN_TEXT]);
bool core_token_split(slice text, struct token *out, u64 *code);

#endif
