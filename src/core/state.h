/* What changes state. For apply.c and derive.c, and the files that keep a part of it for them: message.c, forget.c, arrivals.c,
 * audit.c, account.c, and core.c, which makes and frees it all. A decision sees core_priv.h alone, where everything is there to be looked
 * at: `make lint` keeps it so. */
#ifndef HAPAX_CORE_STATE_H
#define HAPAX_CORE_STATE_H

#include "core/core_priv.h"

static inline struct message *message_mut(struct core *c, u32 no) {
    return &c->message_chunks[no >> MESSAGE_CHUNK_BITS][no & (MESSAGE_CHUNK - 1)];
}
static inline struct queue *queue_mut(struct core *c, u16 id) {
    return c->queues[id];
}
static inline struct entry *entry_mut(struct core *c, const struct message *m) {
    return index_entry(&c->keys, m->entry);
}
static inline struct account_sums *account_of(struct core *c, const struct queue *q) {
    return &c->accounts[q->account].sums;
}

/* Bytes of records that are needed for a queue's messages and keys. */
static inline void live_on(struct core *c, u16 queue, u64 bytes) {
    struct queue *q = queue_mut(c, queue);
    c->live_bytes += bytes;
    q->bytes += bytes;
    account_of(c, q)->bytes += bytes;
}
static inline void live_off(struct core *c, u16 queue, u64 bytes) {
    live_on(c, queue, 0 - bytes);
}

/* account.c: it is about to be deleted */
void account_leave(struct core *c, struct queue *q);

/* message.c */
u32 message_new(struct core *c);
void place_message(struct core *c, u32 no, enum place place, bool front);
/* There is something ready in that place: whoever waits is told, unless he was. */
void announce_ready(struct core *c, struct queue *q, enum place place);
void unplace_message(struct core *c, u32 no);
/* It is ready, and has been waiting since that moment of running time, wherever in its list it stands. */
void ready_since(struct core *c, u32 no, i64 run_ms);
/* Pending: where does it belong? Behind its group's head, delayed, or ready: to be looked up, or to be done. */
void place_pending(struct core *c, u32 no, bool front);
/* In this state with these traits; it was unplaced before. Its group moves on, waits, or goes along as they say. */
void place_as(struct core *c, u32 no, enum state state, u8 traits, bool front);
/* Settled or forgotten: out of its place, its group, its queue's sums, and freed. */
void message_end(struct core *c, u32 no);
/* Live leases get their full length again. */
void leases_rearm(struct core *c);

/* room.c: what a message has paid for in advance, taken off before a change to it, put back after it */
void reserve_off(struct core *c, const struct message *m);
void reserve_on(struct core *c, const struct message *m);

/* purge.c: a message came into its list, or is about to leave it */
void purges_placed(struct core *c, const struct message *m, enum place place, bool front);
void purges_unplaced(struct core *c, const struct message *m, u32 no);

/* heap.c */
void heap_push(struct core *c, struct heap *h, u32 no, i64 when_ms);
void heap_remove(struct core *c, struct heap *h, u32 no);

/* group.c */
void group_join(struct core *c, u32 no, slice name, bool parked);
void group_leave(struct core *c, u32 no);
/* Parked, its group goes on without it; else it is back where its number belongs. */
void group_park(struct core *c, u32 no, bool parked);
/* What it is has changed: its group waits, moves on, or goes along. */
void group_follow(struct core *c, u32 no);
/* It was put behind the head, or with it among the dead; or is about to be taken from there. */
void group_placed(struct core *c, const struct message *m, bool placed);
bool groups_follow(struct core *c, u32 *budget);                    /* true if more is left */
void group_leased(struct core *c, const struct message *m, u32 no); /* no: the one in flight now, or MESSAGE_NONE */

/* apply.c: the number of a deleted queue may be given again */
void vacant_add(struct core *c, struct queue *q);

/* forget.c */
void window_add(struct core *c, u32 entry, i64 settled_run_ms);
/* The window changes: keys that settle from now on get buckets of their own. Not in recovery, where later ones may be known. */
void window_cut(struct queue *q, i64 run_ms);
void window_forget(struct core *c, struct queue *q, i64 from_run_ms, i64 upto_run_ms);
void window_remove(struct core *c, u32 entry);  /* replaced or forgotten before its time */
bool window_reap(struct core *c, u32 *budget);  /* true if more is left */
void window_sweep_begin(struct core *c);        /* a queue was deleted that has entries in no bucket */
void window_sweep(struct core *c, u32 *budget); /* frees those */
void kept_add(struct core *c, struct queue *q, i64 settled_run_ms, u64 bytes);
void kept_expire(struct core *c);

/* arrivals.c */
void tally_note(struct core *c, u32 entry, const struct rec_arrivals *known, enum arrival_kind kind, slice request_id);
void arrivals_apply(struct core *c, u32 entry, u64 pos);
void arrivals_forget(struct core *c, u32 entry);
void arrivals_free(struct core *c);

/* audit.c */
void audit_apply(struct core *c, const struct rec_audit *r, u64 pos, u64 size);
void audit_sort(struct core *c); /* at the end of recovery */
void audit_expire(struct core *c);
void audit_free(struct core *c);

#endif
