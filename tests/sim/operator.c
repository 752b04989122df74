/* What operators do: give queues their rules and change them, decide what is held or dead, redrive, purge, cancel, replay,
 * erase, forget. They know as little of the right moment as everybody else here. */
#include "model.h"

#define ACTOR_WILD 0u
#define ACTOR_TAME 1u

static struct op *aimed_at(struct world *w, struct op *op, struct message *target) {
    u32 key;
    if (!target) return NULL;
    model_key_of(target, &op->queue, &key);
    op->target = target;
    if (op->kind == OP_CANCEL || op->kind == OP_REVOKE || op->kind == OP_RESOLVE || op->kind == OP_MESSAGE)
        op->id = arena_copy(&w->arena, model_id(target));
    else
        op->key = model_name(w->model, target);
    return op->id.n || op->key.n ? op : NULL;
}

static struct op *put_op(struct world *w) {
    struct op *op = op_new(w, OP_PUT);
    op->policy = policy_random(w, op->queue);
    return op;
}

static struct op *resolve_op(struct world *w) {
    struct op *op = op_new(w, OP_RESOLVE);
    struct message *stuck = chance(w, 6000) ? model_some_stuck(w->model, op->queue) : NULL;
    if (!stuck && chance(w, 5000)) stuck = model_some_taken(w->model, op->queue);
    op->as = (enum resolve_as)rng_below(&w->rng, AS_COUNT);
    if (op->as <= AS_REJECTED) op->result = arena_printf(&w->arena, "found %u", (u32)rng_below(&w->rng, 100));
    return aimed_at(w, op, stuck ? stuck : model_pick(w->model, &w->rng, op->queue));
}

static struct op *redrive_op(struct world *w) {
    struct op *op = op_new(w, OP_REDRIVE);
    if (chance(w, 2000)) op->max = (u32)between(w, 1, 3);
    if (chance(w, 1500)) op->rate = (u32)between(w, 1, 20);
    op->dry_run = !op->rate && chance(w, 1000);
    return op;
}

static struct op *task_op(struct world *w) {
    struct op *op = op_new(w, OP_TASK);
    op->task = w->tasks[op->queue];
    op->cancels = chance(w, 3000);
    return op->task ? op : NULL;
}

static struct op *purge_op(struct world *w) {
    static const char *const states[] = {"", "pending", "held", "dead"};
    struct op *op = op_new(w, OP_PURGE);
    op->state = slice_str(states[rng_below(&w->rng, 4)]);
    return op;
}

static struct op *key_op(struct world *w, enum op_kind kind) {
    struct op *op = op_new(w, kind);
    return aimed_at(w, op, model_pick(w->model, &w->rng, op->queue));
}

/* Mostly where payloads are kept: elsewhere it is only refused. */
static struct op *again_op(struct world *w) {
    struct op *op = op_new(w, OP_REPLAY);
    for (u32 q = 0; q < w->profile.queues && !model_keeps_payloads(w->model, op->queue); q++)
        op->queue = (u32)rng_below(&w->rng, w->profile.queues);
    return aimed_at(w, op, model_pick(w->model, &w->rng, op->queue));
}

/* A replay that may not be settled yet: cancelled, looked at, erased. */
static struct op *replay_op(struct world *w) {
    static const enum op_kind kinds[] = {OP_CANCEL, OP_CANCEL, OP_MESSAGE, OP_ERASE};
    struct message *replay = model_some_replay(w->model, &w->rng);
    if (!replay) return key_op(w, OP_CANCEL);
    return aimed_at(w, op_new(w, kinds[rng_below(&w->rng, 4)]), replay);
}

/* Mostly of what somebody has. */
static struct op *revoke_op(struct world *w) {
    struct op *op = op_new(w, OP_REVOKE);
    struct message *leased = chance(w, 8000) ? model_some_leased(w->model, op->queue) : NULL;
    return aimed_at(w, op, leased ? leased : model_pick(w->model, &w->rng, op->queue));
}

static struct op *plain_op(struct world *w) {
    u64 n = rng_below(&w->rng, 100);
    if (n < 15) return op_new(w, OP_PAUSE);
    if (n < 60) return op_new(w, OP_RESUME);
    return n < 80 ? replay_op(w) : key_op(w, OP_CANCEL);
}

struct op *operator_op(struct world *w) {
    if (!chance(w, w->profile.operate)) return chance(w, w->profile.rules) ? put_op(w) : plain_op(w);
    u64 n = rng_below(&w->rng, 100);
    if (n < 30) return resolve_op(w);
    if (n < 42) return redrive_op(w);
    if (n < 52) return task_op(w);
    if (n < 55) return purge_op(w);
    if (n < 70) return again_op(w);
    if (n < 78) return key_op(w, OP_ERASE);
    if (n < 85) return key_op(w, OP_FORGET);
    if (n < 90) return revoke_op(w);
    return n < 95 ? replay_op(w) : key_op(w, OP_MESSAGE);
}

void operator_starts(struct world *w) {
    for (u32 q = 0; w->profile.rules && q < w->profile.queues; q++) {
        if (q < 2 && chance(w, 3000)) continue;
        struct op *op = put_op(w);
        op->queue = q;
        op->policy = policy_random(w, q);
        net_send(w, op, ACTOR_TAME, true);
    }
}

static struct op *decide_somehow(struct world *w, u32 queue, struct message *stuck) {
    static const enum resolve_as ways[] = {AS_DONE, AS_RETRY, AS_NEW, AS_DUPLICATE, AS_REJECTED};
    u64 n = rng_below(&w->rng, 8);
    if (n == 0) {
        struct op *op = op_new(w, OP_REDRIVE);
        op->queue = queue;
        return op;
    }
    struct op *op = op_new(w, n < 3 ? OP_CANCEL : OP_RESOLVE);
    if (op->kind == OP_RESOLVE) op->as = ways[n - 3];
    return aimed_at(w, op, stuck);
}

void operator_drains(struct world *w, u32 queue) {
    struct message *stuck = model_some_stuck(w->model, queue);
    struct op *op = stuck ? decide_somehow(w, queue, stuck) : NULL;
    if (op) net_send(w, op, ACTOR_TAME, true);
    if (!w->tasks[queue] || !chance(w, 2000)) return;
    op = op_new(w, OP_TASK);
    op->queue = queue;
    op->task = w->tasks[queue];
    net_send(w, op, ACTOR_TAME, true);
}

/* Every deed that somebody was told of is written down. */
void operator_checks_audit(struct world *w) {
    struct op op = {.kind = OP_AUDIT};
    for (;;) {
        struct http_reply reply;
        net_ask(w, &op, &reply);
        struct view v = view_of(&w->scratch, reply.body);
        struct view items = view_of(&w->scratch, view_text(&v, "items"));
        const struct member *cursor = view_get(&v, "next_cursor");
        if (reply.status != 200 || !cursor) sim_fail("the audit trail got status %u", reply.status);
        for (u32 i = 0; i < items.count; i++) {
            struct view item = view_of(&w->scratch, items.at[i].raw);
            model_audit_item(w->model, view_text(&item, "why"));
            tally.audited++;
        }
        if (cursor->is_null) break;
        op.id = arena_copy(&w->arena, cursor->text);
        arena_reset(&w->scratch);
    }
    arena_reset(&w->scratch);
    model_audit_end(w->model);
}
