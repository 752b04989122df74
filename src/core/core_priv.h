/* Inside the core: the state itself. */
#ifndef HAPAX_CORE_CORE_PRIV_H
#define HAPAX_CORE_CORE_PRIV_H

#include "core/core.h"
#include "core/index.h"
#include "core/needed.h"

/* Where an unsettled message stands. Each is a list of its queue; a message is in exactly one. LOOKUP and READY are both ready: to be
 * looked up, and to be done. Apart, because the broker may make the look-ups itself while consumers, or a target that is up again,
 * get the others. */
enum place {
    PLACE_LOOKUP,
    PLACE_READY,
    PLACE_DELAYED,
    PLACE_BEHIND,
    PLACE_LEASED,
    PLACE_HELD,
    PLACE_DEAD,
    PLACE_COUNT
};

/* An unsettled message. What was said (key, payload, attributes) is in the journal at the entry's position. */
struct message {
    u64 seq;
    u64 pos;     /* its MESSAGE record */
    u64 fence;   /* of the last lease, 0: never leased */
    i64 when_ms; /* delayed: due (delay clock); leased: end (run clock); ready, held, dead: since (run clock) */
    i64 due_ms;  /* delay clock; 0: at once. Kept while behind its group */
    i64 ttl_ms;  /* delay clock, 0: none */
    u32 entry;
    u32 prev, next; /* in its place's list */
    u32 group, group_prev, group_next;
    u32 heap_at; /* among the delayed or the leased; ready: among those that waited before, HEAP_NONE if it is none */
    union {
        u32 ttl_at;     /* with a time to live: its place in that heap */
        u32 former_len; /* without one, as replays are: of the outcome before it; message_former() */
    };
    u32 lease_ms;
    u32 generation;
    u16 attempts, failures, unknowns, crashes;
    u8 place : 4, ended : 4;
    bool started : 1;
    bool lease_paid : 1; /* the room for its next lease is reserved */
    bool doubt : 1;      /* TRAIT_DOUBT; message_doubt() says whether there is any */
    bool reconcile : 1;  /* TRAIT_RECONCILE ... */
    bool lookup : 1;
    bool parked : 1;
    bool takes : 1;
    bool conflict : 1;
    bool taken : 1; /* dead because its group's head is; follows from that one's trait, and is not written down */
    bool refused : 1;
    bool carried : 1; /* its MESSAGE record was written by compaction, with its state */
    bool late : 1;    /* in its group's heap; group_prev says where */
    u32 lookups : 12; /* by the broker, without an answer, of the present doubt */
    u16 queue;
    u8 key_len, request_id_len; /* for the room its settlement takes */
    u32 payload_len;
    u32 waited_ms; /* leased: how long it had been ready; given back or lapsed, it goes on waiting from there */
    struct history history;
};
_Static_assert(sizeof(struct message) <= 128, "a message is 128 bytes: DESIGN.md budget");
_Static_assert(PLACE_COUNT < 16 && ENDED_COUNT <= 16 && LOOKUPS_MAX < 1 << 12, "they have so many bits");

struct list {
    u32 head, tail;
    u64 count;
};

struct heap_item {
    i64 when_ms; /* or what else it is ordered by; the message's, so that comparing need not touch it */
    u32 message;
};
enum heap_kind {
    HEAP_DUE,  /* delays, leases, and what waited before, by when_ms: a message is in one of them at most */
    HEAP_TTL,  /* by when they have to be started */
    HEAP_LATE, /* a group's members that came late, by their numbers */
};
struct heap {
    struct heap_item *at; /* least when_ms first */
    u32 count, cap, top;  /* top: the most there ever were, and so what of it is memory in use */
    enum heap_kind kind;
};
#define HEAP_NONE UINT32_MAX

struct group {
    u64 hash;
    u32 first, last;   /* messages that came in the order of their numbers */
    struct heap late;  /* and those that did not. The least of all is the head: it alone may be handed out */
    u32 leased;        /* the one in flight: usually the head, else the one it must wait for */
    u32 members;       /* with the parked ones, which are not in the list */
    bool took;         /* its head is dead and takes the others along */
    u32 behind, taken; /* members in PLACE_BEHIND, and those that are dead with their head */
    u32 at, late_at;   /* following the head, a few at a time: the next in the list, then in the heap */
    u32 moving;        /* in core.moving, from 1; 0: all have followed */
    u32 entry;         /* in the groups index */
    u16 queue;
    u16 name_len;
    char name[];
};

/* As long as the wall clock is not set back: how far it is ahead of the delay clock at most, and what it showed last. */
#define ERAS_MAX 8u
struct era {
    i64 ahead_ms, wall_ms;
};

/* Keys that settled in one stretch of running time; forgotten together. */
struct bucket {
    i64 from_ms, to_ms; /* running time; buckets do not overlap, whatever the window was when they were made */
    u32 head;
    u64 keys;
};

/* Payload bytes kept with keys that settled in one stretch of running time: live until they need not be kept. */
struct kept_stretch {
    i64 number;
    u64 bytes;
};

struct queue {
    u16 id;
    u16 vacant_next; /* deleted: the number that became free after this one; 0: none */
    bool known;      /* its QUEUE record was read; false only during replay */
    bool paused, push_paused, push_gone, deleted;
    bool announced
        [2];      /* of the look-ups and the others, by place: on_ready was called, and some have been there since */
    bool pressed; /* in memory only: after a restart the limits themselves are asked again */
    u8 origin;    /* enum origin */
    slice name, config; /* owned */
    i64 created_ms;
    struct rules rules;
    i64 oldest_replay_ms, window_changed_ms;
    struct promise promises[PROMISES_MAX];
    u32 promise_count;
    struct counters counters;
    struct counters uncounted; /* to be added, by a COUNTS record within a second */
    u64 unwritten_duplicates;
    u64 unsettled, unsettled_bytes;
    u64 bytes;   /* of the records that hold its messages and keys */
    u16 account; /* ACCOUNT_NONE, or the one it counts in */
    u64 conflict_copies, refused_copies, refused_bytes;
    struct kept_stretch *kept; /* by number */
    u32 kept_count, kept_cap;
    struct list places[PLACE_COUNT];
    struct heap waited; /* of the ready those whose time began before they came into their list, the longest first */
    u64 pos, size;      /* of its QUEUE record */
    u64 since; /* what lies before this in the journal is of a former queue with this number; 0: there was none */
    struct bucket *buckets;
    u32 bucket_count, bucket_cap;
    struct forgotten_range {
        i64 from_ms, upto_ms; /* keys settled from the one to before the other are gone */
    } * forgotten;
    u32 forgotten_count;
    u64 settled_keys;
    struct queue_day {
        u32 day, size; /* day 0: none */
        u64 pos, accepted, duplicates;
    } days[DAYS_KEPT];
    struct ref doubled; /* in memory only, from recovery: the last key whose records have two effect ids; seq 0: none */
    i64 doubled_ms;     /* wall clock: when at the earliest */
};

#define MESSAGE_CHUNK_BITS 15u
#define MESSAGE_CHUNK      (1u << MESSAGE_CHUNK_BITS)

/* Arrivals not yet written down, of keys touched in the last second: a ring, the oldest first. */
#define TALLIES_MAX 16384u
#define TALLY_SLOTS (TALLIES_MAX * 2)
struct tally {
    u64 seq; /* of the key's message, taken down while that was near */
    u64 total, duplicates;
    u32 entry; /* ENTRY_NONE: it was let go, and its place in the ring is passed over */
    u32 fresh, fresh_conflicts;
    u32 len : 24, count : 8; /* of the last arrivals */
    char *more;              /* they, as in a record; NULL: they fit in here */
    char here[ARRIVALS_KEPT * ARRIVAL_BYTES_LEAST];
};
_Static_assert(sizeof(struct tally) == 128, "two cache lines, unless its arrivals have request ids");

/* Where the audit records are, by number. */
struct audit_index {
    struct audit_item {
        u64 number, pos;
        i64 run_ms;
        u32 size;
    } * at;
    u32 first, count, cap; /* what is kept: at[first] .. at[first + count - 1] */
    u64 bytes;             /* of them in the journal */
    u64 next_number;
};

/* Queues that share one bound. The first one, ACCOUNT_NONE, has all the others, no bounds, and sums that say nothing. */
struct account {
    struct account_limits limits;
    struct account_sums sums;
};

struct core {
    struct core_options options;
    const struct core_sink *sink; /* NULL during replay */
    struct core_sink sink_copy;
    struct rng rng;
    struct core_now now;
    struct core_downtime downtime; /* before this start */

    struct index keys;
    struct index groups; /* hash of (queue, name) -> struct group * in `at` */
    u64 **written;       /* entry number -> position of its ARRIVALS record, in chunks */
    u32 written_chunks;
    u64 written_bytes, repeated_keys;

    struct index orphans; /* replay only: arrivals whose key has not come yet */

    struct queue **queues; /* [1..queue_count] */
    u32 queue_count, queue_cap;
    u32 queues_vacant; /* deleted ones: their numbers are given again, the one that is free longest first */
    u16 vacant_first, vacant_last;
    struct index queue_names; /* hash of the name -> id in `at` */
    struct account *accounts; /* [0..account_count] */
    u16 account_count;

    struct message **message_chunks;
    u32 message_chunk_count, message_chunk_cap, messages_top, message_free;
    u64 message_count, group_bytes, group_count;
    u64 history_bytes, history_counted; /* what histories take, and what they may come to: memory.c */

    u32 *moving; /* groups, by entry, whose members have not all followed their head yet */
    u32 moving_count, moving_cap;

    struct heap delays, leases;
    struct heap ttls; /* of what was not started yet and is not leased */

    struct tally *tallies;
    u32 tally_first, tally_count; /* in the ring */
    u64 *tally_slots;             /* by hash of the entry: entry number << 32 | tally number + 1; 0: empty */
    i64 tally_oldest_run_ms;

    struct bucket *reaping; /* forgotten buckets whose entries are being freed little by little */
    u32 reaping_count, reaping_cap;

    u64 next_seq, fence;
    u64 erase_upto; /* position of the last record that took something out */
    struct audit_index audits;
    bool uncounted;            /* some queue has such counts */
    struct core_purge *purges; /* under way */
    u32 sweep_at;              /* entries of deleted queues are freed from here on; 0: there are none */
    bool sweep_again;          /* one was deleted since the sweep began */
    u64 former_keys;           /* recovery: what a sweep would free */
    u64 live_bytes, reserved_bytes;
    struct needed needed;
    u64 room; /* what may still be appended */
    i64 clock_written_run_ms, expiry_checked_run_ms;
    struct era eras[ERAS_MAX]; /* the later, the less ahead, and the more the clock showed at last */
    u32 era_count;
    bool wrote_since_clock;
    bool boot_due;          /* nothing was written since this start: the CLOCK that says where it began comes first */
    u64 first_fresh_seq;    /* replay: the first message admitted in what is left of the journal */
    struct history scratch; /* a message's history as the record being decided will have it */
    struct history_spares spares;
};

#define SEQ_LOW_MASK 0xfffu
#define SEQ_SETTLED  ((u64)1 << 63) /* in an ARRIVALS record: of a settled key, with the low bits of its number */

/* To look at. Whoever changes state sees state.h. */
static inline const struct message *message_at(const struct core *c, u32 no) {
    return &c->message_chunks[no >> MESSAGE_CHUNK_BITS][no & (MESSAGE_CHUNK - 1)];
}
static inline const struct queue *queue_at(const struct core *c, u16 id) {
    return c->queues[id];
}
static inline const struct entry *entry_of(const struct core *c, const struct message *m) {
    return index_entry(&c->keys, m->entry);
}
static inline u32 message_no(const struct core *c, const struct message *m) {
    return (u32)entry_of(c, m)->at;
}
struct ref message_ref(const struct core *c, const struct message *m);
enum state state_at(enum place place);
/* send.c: is it at a limit, or not yet well below one, with a payload of that size more? */
bool queue_pressed(const struct core *c, const struct queue *q, i64 run_ms, size_t payload);
enum state message_state(const struct message *m);
static inline bool is_ready(enum place place) {
    return place <= PLACE_READY;
}
_Static_assert(PLACE_LOOKUP == 0 && PLACE_READY == 1, "is_ready, and announced");
/* Of what is ready that which has been so longest; MESSAGE_NONE: nothing is. */
u32 longest_ready(const struct core *c, const struct queue *q);
/* The lease of started work was over before its holder said anything: by itself, or by an operator. Its token still counts. */
static inline bool ended_unsaid(u8 ended) {
    return ended == ENDED_EXPIRED || ended == ENDED_REVOKED;
}
static inline bool message_doubt(const struct message *m) {
    return m->doubt || ended_unsaid(m->ended);
}
/* What of its settlement's room is for the outcome it had before it was replayed. */
static inline u32 message_former(const struct message *m) {
    return m->ttl_ms ? 0 : m->former_len;
}
void core_queue_write(struct core *c, u16 queue);

#define RECORD_HEAD_BYTES 16u /* what a record takes in the journal beside its body, about */

/* apply.c: what a record makes of the state. pos and size are the record's own in the journal. */
hx_st core_apply(struct core *c, const struct record *r, u64 pos, u64 size, struct errbuf *err);
/* Write a record and apply it. */
u64 core_emit(struct core *c, const struct record *r);

/* derive.c: state that no record holds. Some follows from what is written and the clock: that a delay is over, that a queue is
 * over its limits, when a lease of known length began last, what memory forgotten keys still take. Some is written down a little later: counts and arrivals. And of
 * two messages that are both ready it may say which comes first. A restart finds it again or does without; no promise
 * hangs on it. Beside core_apply this is the only function that changes state. */
enum derivation {
    DERIVE_PASSAGE, /* time has passed: up to `budget` delays that are over, members of groups that follow their head, and entries to be freed. true: there is more */
    DERIVE_PASSED_OVER, /* `message` is ready, but there was no room for its lease: it goes behind the others */
    DERIVE_RENEWED,  /* the lease of `message` runs anew, for as long as is written: what a restart gives every lease */
    DERIVE_PRESSURE, /* `queue` is over a limit (`yes`), or well below all of them again */
    DERIVE_COUNT,    /* a counter of `queue` that no record implies: written down within a second */
    DERIVE_ARRIVAL,  /* the key of `entry` came again: written down within a second, a conflict at once */
    DERIVE_DROPPED,  /* of the journal, what lies before `pos` */
};
struct derived {
    enum derivation kind;
    u32 message, entry, budget;
    u16 queue;
    bool yes;
    enum arrival_kind arrival;
    u64 pos;
    size_t counter;                   /* its offset in struct counters */
    const struct rec_arrivals *known; /* arrival: what is written of it so far, NULL: nothing, or it is in memory */
    slice request_id;
};
bool core_derive(struct core *c, const struct derived *d);
#define COUNT(c, q, name)                                                                                              \
    core_derive(c,                                                                                                     \
                &(struct derived){.kind = DERIVE_COUNT, .queue = (q)->id, .counter = offsetof(struct counters, name)})

/* lease_end.c: what a lease's end leads to */
/* As it would stand if nothing else changed: pending again, for the same kind of delivery, all counts as they are. */
struct rec_return return_record(const struct core *c, const struct message *m, enum ended ended);
/* A failure of in->failure_class, or a crash (r->ended EXPIRED): counts it and decides what follows. REVOKED counts as nothing.
 * in: class, delay and hold. *wait_ms: until it is handed out again, at least in->delay_ms. */
void lease_end_decide(struct core *c, const struct message *m, struct rec_return *r, const struct settle_in *in,
                      i64 *wait_ms);
/* Over before its holder said anything; started: how. A reservation has lapsed. */
struct record lease_over_record(struct core *c, const struct message *m, enum ended started);
/* The traits of one that becomes dead or held: whether its group goes on without it, or dies with it. */
u8 lease_end_traits(const struct core *c, const struct message *m, enum state state, u8 traits, u32 *taken);

/* settle.c: all that will be kept of an unsettled message, as it stands; its history is not in it yet. */
void settle_record(struct core *c, const struct message *m, const struct rec_message *base, enum state state,
                   struct record *r);
/* The same of one that ends without an outcome of its own: cancelled, or what it was before it was replayed. *former: the
 * history of that outcome, empty if there is none; what happened since comes after it. */
void cancel_record(struct core *c, const struct message *m, const struct rec_message *base, struct record *r,
                   slice *former);
/* A history copied where it can be amended before the record is written. */
struct history *scratch_history(struct core *c, slice from);
/* Writes it, without the kept payload if there is no room for that. */
void settle_emit(struct core *c, struct record *r);
/* Its time to live ended before the work was started. */
bool out_of_time(const struct core *c, const struct message *m);
/* Given back with the word that nothing was done: the attempt does not count. */
void give_back(struct record *r, const struct message *m);

/* time.c */
void write_clock(struct core *c);
void write_past_clocks(struct core *c); /* what told of them is about to be dropped */
void clock_seen(struct core *c, i64 wall_ms, i64 delay_ms);
void past_clock_seen(struct core *c, i64 wall_ms, i64 delay_ms); /* before it was set back */
void note_clock(struct core *c);                                 /* if there is room */
void write_counts(struct core *c);

/* audit.c */
/* Before a deed that will take `room` bytes beyond what is reserved for it: is there room for it and for its AUDIT record?
 * Then that is written. about, key: the message or key, or NULL and empty. */
bool audit_deed(struct core *c, const struct audit_in *in, u16 queue, const struct ref *about, slice key, u64 room);
void audit_carry(struct core *c, const struct rec_audit *old, u64 pos);

/* group.c */
bool is_behind(const struct core *c, u32 no); /* in a group, and not its turn */
bool is_group_head(const struct core *c, u32 no);
bool is_taken(const struct core *c, u32 no); /* dead because its group's head is */
u32 group_waiting(const struct core *c, u32 head);

/* memory.c */
#define BRIEF_NAME_BYTES   16u
#define BRIEF_REASON_BYTES 24u
/* What the history of an unsettled message is counted as: what it takes, and what is still to come. */
u64 history_counted(const struct history *h);
u32 history_first_bytes(const struct core *c); /* what one should have room for when a lease is added */
/* What of a name, or of a reason, goes into a history: all, unless memory is short. */
slice brief_name(const struct core *c, slice name);
slice brief_reason(const struct core *c, slice reason, char store[BRIEF_REASON_BYTES]);

/* message.c */
u8 message_traits(const struct message *m);

/* room.c */
u64 settlement_room(const struct core *c, const struct message *m);
u64 lease_room(const struct core *c);
u64 admission_room(const struct core *c, size_t key, size_t request_id);
u64 history_room(u64 bytes); /* to make a history so much longer: in its settlement, and when it is carried */
u64 carry_room(const struct message *m); /* how much longer than its record a copy of it is, at most */
u64 resume_room(const struct core *c, const struct queue *q); /* what a paused queue has reserved for that record */
bool room_for(const struct core *c, u64 bytes);               /* beyond everything promised */
/* The same for what is only counted: half the headroom is for that, but nobody's room. */
bool room_for_count(const struct core *c, u64 bytes);
/* The same for an operator, who may use more of the headroom: a full disk is when deciding and forgetting are needed. */
bool room_for_deed(const struct core *c, u64 bytes);
/* And for a deed that gives back more than it takes, or lets others do so: what makes room always has room. */
bool room_for_relief(const struct core *c, u64 bytes);

/* window.c */
i64 window_of(const struct queue *q, i64 settled_run_ms); /* of a key that settled then; WINDOW_FOREVER: no end */
i64 window_left_ms(const struct queue *q, i64 settled_run_ms, i64 run_ms);
/* Is it a key of a deleted queue, whose number may be another's by now? It is unknown, and only its memory is still to be freed. */
static inline bool entry_former(const struct core *c, const struct entry *e) {
    return e->kind == ENTRY_SETTLED && e->at < queue_at(c, e->queue)->since;
}
bool entry_forgotten(const struct core *c, const struct entry *e);
void window_decide(struct core *c); /* writes the EXPIRE records that are due */
/* An adaptive window: a replay this old was seen. */
void window_learn(struct core *c, const struct queue *q, i64 age_ms);
/* The rules in *r replace the queue's: completes them and the promises in *r. */
void window_change(const struct queue *q, i64 run_ms, struct rec_queue *r);
u64 kept_bytes(const struct kept *k);

/* account.c: is there room for one more message with a record of so many bytes? */
enum account_verdict { ACCOUNT_OK, ACCOUNT_PENDING, ACCOUNT_BYTES };
enum account_verdict account_has_room(const struct core *c, const struct queue *q, size_t bytes);

/* arrivals.c */
void tally_prefetch(const struct core *c, u32 entry, bool written);
const struct tally *tally_find(const struct core *c, u32 entry);
slice tally_last(const struct tally *t);
void tallies_free(struct core *c);
bool tally_write_due(struct core *c, u32 budget, bool all); /* true: there is more */
u64 arrivals_pos(const struct core *c, u32 entry);

#endif
