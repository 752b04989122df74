/* Inside the core: the state itself. */
#ifndef HAPAX_CORE_CORE_PRIV_H
#define HAPAX_CORE_CORE_PRIV_H

#include "core/core.h"
#include "core/index.h"

/* Where an unsettled message stands. Each is a list of its queue; a message is in exactly one. */
enum place { PLACE_READY, PLACE_DELAYED, PLACE_BEHIND, PLACE_LEASED, PLACE_HELD, PLACE_DEAD, PLACE_COUNT };

/* An unsettled message. What was said (key, payload, attributes) is in the journal at the entry's position. */
struct message {
    u64 seq;
    u64 pos;     /* its MESSAGE record */
    u64 fence;   /* of the last lease, 0: never leased */
    i64 when_ms; /* delayed: due (delay clock); leased: end (run clock); ready: since (run clock) */
    i64 due_ms;  /* delay clock; 0: at once. Kept while behind its group */
    i64 ttl_ms;  /* delay clock, 0: none */
    u32 entry;
    u32 prev, next; /* in its place's list */
    u32 group, group_prev, group_next;
    u32 heap_at;
    u32 lease_ms;
    u32 generation;
    u16 attempts, failures, unknowns, crashes;
    u16 queue;
    u8 place, ended;
    bool started;
    bool lease_paid;            /* the room for its next lease is reserved */
    u8 key_len, request_id_len; /* for the room its settlement takes */
    struct history history;
};

struct list {
    u32 head, tail;
    u64 count;
};

struct group {
    u64 hash;
    u32 head, tail; /* messages, by seq; only the head may be handed out */
    u32 entry;      /* in the groups index */
    u16 queue;
    u16 name_len;
    char name[];
};

/* Keys that settled in one stretch of running time; forgotten together. */
struct bucket {
    i64 number; /* settled_run / width */
    u32 head;
    u64 keys;
};

struct queue {
    u16 id;
    bool known; /* its QUEUE record was read; false only during replay */
    bool paused;
    bool announced; /* on_ready was called and it has been ready since */
    slice name;     /* owned */
    i64 created_ms;
    struct rules rules;
    struct counters counters;
    u64 unwritten_duplicates;
    struct list places[PLACE_COUNT];
    u64 pos, size; /* of its QUEUE record */
    struct bucket *buckets;
    u32 bucket_count, bucket_cap;
    i64 forgotten_run_ms; /* keys settled before this are gone */
    u64 settled_keys;
};

struct heap_item {
    i64 when_ms; /* the message's, so that comparing need not touch it */
    u32 message;
};
struct heap {
    struct heap_item *at; /* least when_ms first */
    u32 count, cap;
};

struct ttl_item {
    i64 ttl_ms;
    u64 seq;
    u32 message;
};
struct ttl_heap {
    struct ttl_item *at;
    u32 count, cap;
};

#define MESSAGE_CHUNK_BITS 15u
#define MESSAGE_CHUNK      (1u << MESSAGE_CHUNK_BITS)

/* Arrivals not yet written down, of keys touched in the last second. */
#define TALLIES_MAX 16384u
#define TALLY_SLOTS (TALLIES_MAX * 2)
struct tally {
    struct ref ref; /* taken down while the key was near */
    u32 entry;
    u32 count; /* in last */
    u64 total, duplicates;
    u32 fresh, fresh_conflicts;
    struct tally_arrival {
        i64 at_ms;
        char *request_id; /* owned, NULL: none */
        u8 request_id_len;
        u8 kind;
    } last[ARRIVALS_KEPT];
};

struct core {
    struct core_options options;
    const struct core_sink *sink; /* NULL during replay */
    struct core_sink sink_copy;
    struct rng rng;
    struct core_now now;

    struct index keys;
    struct index groups; /* hash of (queue, name) -> struct group * in `at` */
    u64 **written;       /* entry number -> position of its ARRIVALS record, in chunks */
    u32 written_chunks;
    u64 written_bytes, repeated_keys;

    struct index orphans; /* replay only: arrivals whose key has not come yet */

    struct queue **queues; /* [1..queue_count] */
    u32 queue_count, queue_cap;
    struct index queue_names; /* hash of the name -> id in `at` */

    struct message **message_chunks;
    u32 message_chunk_count, message_chunk_cap, messages_top, message_free;
    u64 message_count, history_bytes, group_bytes, group_count;

    struct heap delays, leases;
    struct ttl_heap ttls;

    struct tally *tallies;
    u32 tally_count;
    u64 *tally_slots; /* by hash of the entry: entry number << 32 | tally number + 1; 0: empty */
    i64 tally_oldest_run_ms;

    struct bucket *reaping; /* forgotten buckets whose entries are being freed little by little */
    u32 reaping_count, reaping_cap;

    u64 next_seq, fence;
    u64 live_bytes, reserved_bytes;
    i64 clock_written_run_ms, expiry_checked_run_ms;
    bool wrote_since_clock;
    u64 first_fresh_seq;    /* replay: the first message admitted in what is left of the journal */
    u32 likely_entry;       /* the key a decision is about; its hash is compared before it is believed */
    u32 likely;             /* the message a decision is about; its seq is compared before it is believed */
    struct history scratch; /* a message's history as the record being decided will have it */
};

#define SEQ_LOW_MASK 0xfffu

static inline struct message *message_at(const struct core *c, u32 no) {
    return &c->message_chunks[no >> MESSAGE_CHUNK_BITS][no & (MESSAGE_CHUNK - 1)];
}
static inline struct queue *queue_at(const struct core *c, u16 id) {
    return c->queues[id];
}
static inline struct entry *entry_of(const struct core *c, const struct message *m) {
    return index_entry(&c->keys, m->entry);
}
struct ref message_ref(const struct core *c, const struct message *m);
enum state message_state(const struct message *m);
/* A lease's end as it would stand if nothing else changed: pending again, all counts as they are. */
struct record return_record(const struct core *c, const struct message *m, enum ended ended);
void core_queue_write(struct core *c, u16 queue);

#define RECORD_HEAD_BYTES 16u /* what a record takes in the journal beside its body, about */

/* apply.c: the only function that changes state. pos and size are the record's own in the journal. */
hx_st core_apply(struct core *c, const struct record *r, u64 pos, u64 size, struct errbuf *err);
/* Write a record and apply it. */
u64 core_emit(struct core *c, const struct record *r);

/* message.c */
u32 message_new(struct core *c);
void message_free(struct core *c, u32 no);
void place_message(struct core *c, u32 no, enum place place, bool front);
void unplace_message(struct core *c, u32 no);
/* Pending: where does it belong? Behind its group's head, delayed, or ready. */
void place_pending(struct core *c, u32 no, bool front);
void group_join(struct core *c, u32 no, slice name);
bool is_behind(const struct core *c, u32 no); /* not the head of its group */
void group_leave(struct core *c, u32 no);     /* the next head, if any, is placed */
void heap_push(struct core *c, struct heap *h, u32 no);
void heap_remove(struct core *c, struct heap *h, u32 no);
void ttl_push(struct core *c, u32 no);
bool ttl_pop_due(struct core *c, i64 delay_ms, struct ttl_item *out);
/* P8, the room it has paid for in advance. Taken off before a change to the message, put back after it. */
void reserve_off(struct core *c, const struct message *m);
void reserve_on(struct core *c, const struct message *m);
u64 settlement_room(const struct core *c, const struct message *m);
u64 lease_room(const struct core *c);
u64 admission_room(const struct core *c, size_t key, size_t request_id);
bool room_for(const struct core *c, u64 bytes); /* beyond everything promised */

/* window.c */
void window_add(struct core *c, u32 entry);
void window_forget(struct core *c, struct queue *q, i64 upto_run_ms);
bool window_reap(struct core *c, u32 budget);  /* true if more is left */
void window_decide(struct core *c);            /* writes the EXPIRE records that are due */
void window_remove(struct core *c, u32 entry); /* replaced or forgotten before its time */
bool entry_forgotten(const struct core *c, const struct entry *e);
i64 window_width_ms(const struct queue *q);
i64 window_left_ms(const struct queue *q, i64 settled_run_ms, i64 run_ms);

/* arrivals.c */
void tally_prefetch(const struct core *c, u32 entry, bool written);
struct tally *tally_find(const struct core *c, u32 entry);
void tally_note(struct core *c, u32 entry, const struct rec_arrivals *known, enum arrival_kind kind, slice request_id);
void tally_write(struct core *c, struct tally *t);
void tally_view(const struct tally *t, struct rec_arrivals *out);
bool tally_write_due(struct core *c, u32 budget, bool all);
void arrivals_apply(struct core *c, u32 entry, u64 pos);
void arrivals_free(struct core *c);
u64 arrivals_pos(const struct core *c, u32 entry);
void arrivals_forget(struct core *c, u32 entry);

#endif
