/* What the broker may answer. An independent account of keys, leases and outcomes, written from the contract; it shares no
 * code with the core.
 *
 * Requests reach the broker one after another, so their order is known and most answers can be told in advance. What cannot
 * be told is kept as a set: every message has the set of states it may be in. A lease may have run out and been noticed, or
 * not yet; a time to live likewise. An answer keeps those states that explain it, each moved on by the request, and when none
 * is left the broker is wrong.
 *
 * A crash is a cut through the list of moves: journal replay yields a prefix, so there must be one cut, not before the
 * last move any delivered reply told of (P1), that explains what every key is afterwards. After each restart all keys are
 * asked for (the census), and the cuts that fit are found.
 *
 * Clocks: `run` is the sum of the charges (at most 1 s a turn); a crash may put the broker's own clock back by what was not
 * yet written down, never forward. `delay` is run time plus all of a stop, plus the time down as far as the wall clock tells.
 * Both are upper bounds; `slip` says by how much the broker's clock may have fallen behind since. */
#ifndef HAPAX_SIM_MODEL_H
#define HAPAX_SIM_MODEL_H

#include "sim.h"

struct model;

struct model *model_new(struct arena *arena, u32 queues, u32 keys);
/* Time moves: to a new turn, or within it. tight: the disk has so little room that the broker may refuse what it otherwise must not. */
void model_time(struct model *m, i64 mono_ms, i64 wall_ms);
void model_later(struct model *m, i64 mono_ms, i64 wall_ms);
void model_tight(struct model *m, bool tight);
void model_all_durable(struct model *m); /* nothing appended is still unsynced */

/* The broker took the request and did not answer it yet. */
void model_parked(struct model *m, struct op *op);
/* The broker answered. Checks the answer and moves on; notes in op what the client will know. */
void model_answered(struct model *m, struct op *op, const struct http_reply *reply, struct arena *scratch);
/* The client of an unanswered request is gone. */
void model_gone(struct model *m, struct op *op);
/* The reply reached its client: what it told of must survive everything. */
void model_delivered(struct model *m, const struct op *op);
/* The reply with these leases was never written. */
void model_unwritten(struct model *m, const struct op *op);
/* The end of a turn: nobody waits who could be answered. */
void model_turn_end(struct model *m);

/* A life of the broker ends; clean: nothing may be lost. Then boot, census of every key and queue, and the cut. */
void model_life_ends(struct model *m, bool clean);
void model_boot(struct model *m, i64 mono_ms, i64 wall_ms);
u32 model_slots(const struct model *m);
/* Makes the question about what is in this slot; false: nothing worth asking for. */
bool model_census_ask(const struct model *m, u32 queue, u32 slot, struct op *op);
void model_census_key(struct model *m, u32 queue, u32 slot, const struct http_reply *reply, struct arena *scratch);
void model_census_queue(struct model *m, u32 queue, const struct http_reply *reply, struct arena *scratch);
void model_census_end(struct model *m);

/* For clients: some message to ask about or cancel, NULL if there is none; the id as far as it is known. */
struct message *model_pick(struct model *m, struct rng *rng, u32 queue);
slice model_id(const struct message *msg);
slice model_name(const struct model *m, const struct message *msg); /* of its key; empty: it has none, or shares it */
bool model_takes_arrivals(const struct model *m, u32 queue);        /* room for more that no key leads to */
bool model_may_be_held(const struct model *m, const struct message *msg);
/* What operators did and were told of, against the audit trail: its items, then the end. */
void model_audit_item(struct model *m, slice why);
void model_audit_end(struct model *m);
/* The last phase. */
u32 model_unsettled(const struct model *m);
u32 model_live(const struct model *m); /* at least as many */
struct message *model_some_live(const struct model *m, struct rng *rng);
void model_key_of(const struct message *msg, u32 *queue, u32 *key);
struct message *model_some_leased(const struct model *m, u32 queue);
struct message *model_some_stuck(const struct model *m, u32 queue); /* it may be held or dead */
bool model_keeps_payloads(const struct model *m, u32 queue);
struct message *model_some_replay(const struct model *m, struct rng *rng); /* perhaps unsettled */
struct message *model_some_taken(const struct model *m, u32 queue);        /* it may be dead with its group's head */
void model_describe_unsettled(const struct model *m, struct buf *out);

#endif
