/* What clients do. The wild ones know no order: they send, take, settle, repeat and give up at random, with what tokens they
 * have ever been given, so that every sequence comes up sooner or later. The tame ones of the last phase take and ack. */
#include "model.h"

#define ACTOR_WILD 0u
#define ACTOR_TAME 1u
#define FAT_BYTES  950u /* with its content type and effect id just below 1 KiB */

struct op *op_new(struct world *w, enum op_kind kind) {
    struct op *op = arena_alloc(&w->arena, sizeof *op);
    op->kind = kind;
    op->queue = (u32)rng_below(&w->rng, w->profile.queues);
    return op;
}

/* ---- producers */

static struct send_item random_send(struct world *w, u32 queue) {
    const struct profile *p = &w->profile;
    struct send_item s = {.key = (u32)rng_below(&w->rng, p->keys)};
    s.variant = chance(w, p->conflict);
    s.attr = s.key % 4 == 1;
    if (chance(w, p->group)) s.group = 1 + (u32)rng_below(&w->rng, p->groups);
    if (chance(w, p->delay)) s.delay_ms = between(w, 1, 20000);
    if (chance(w, p->ttl)) s.ttl_ms = between(w, 1, 30000);
    s.keyless = queue >= 2 && chance(w, 1000) && model_takes_arrivals(w->model, queue);
    return s;
}

static struct op *send_op(struct world *w) {
    bool batch = chance(w, w->profile.batch);
    struct op *op = op_new(w, batch ? OP_BATCH : OP_SEND);
    if (op->queue == QUEUES_MOST - 1 && !model_takes_arrivals(w->model, op->queue)) op->queue = 0;
    op->count = batch ? (u32)between(w, 1, 12) : 1;
    op->sends = arena_alloc(&w->arena, op->count * sizeof *op->sends);
    for (u32 i = 0; i < op->count; i++) op->sends[i] = random_send(w, op->queue);
    if (!batch && op->queue == 0 && chance(w, w->profile.prefer_wait)) op->wait_ms = 1000 * between(w, 1, 20);
    return op;
}

/* ---- consumers */

static struct op *receive_op(struct world *w) {
    struct op *op = op_new(w, OP_RECEIVE);
    op->max = (u32)between(w, 1, chance(w, 3000) ? 8 : 2);
    if (chance(w, 5000)) op->wait_ms = between(w, 1, 20000);
    if (chance(w, 8000)) op->lease_ms = between(w, 1000, 15000);
    op->explicit_start = chance(w, w->profile.explicit_start);
    return op;
}

static void move_to_stale(struct world *w, u32 i) {
    struct lease *lease = w->held[i];
    w->held[i] = w->held[--w->held_count];
    u32 at = w->stale_count < HELD_MAX ? w->stale_count++ : (u32)rng_below(&w->rng, HELD_MAX);
    w->stale[at] = lease;
}

static struct lease *pick_lease(struct world *w) {
    bool stale = w->stale_count && (w->held_count == 0 || chance(w, w->profile.stale));
    if (stale) return w->stale[rng_below(&w->rng, w->stale_count)];
    if (w->held_count == 0) return NULL;
    u32 i = (u32)rng_below(&w->rng, w->held_count);
    struct lease *lease = w->held[i];
    if (chance(w, 2500)) move_to_stale(w, i);
    return lease;
}

static enum verb_kind random_verb(struct world *w, const struct lease *lease) {
    if (chance(w, w->profile.nack)) return DO_NACK;
    if (lease->explicit_start && chance(w, 4000)) return DO_START;
    u64 n = rng_below(&w->rng, 100);
    return n < 50 ? DO_ACK : n < 65 ? DO_EXTEND : n < 80 ? DO_STEP : n < 85 ? DO_START : n < 92 ? DO_RELEASE : DO_NACK;
}

static slice random_result(struct world *w, bool *json) {
    *json = chance(w, 3000);
    if (chance(w, 1500)) return SL("");
    if (*json) return arena_printf(&w->arena, "{\"n\":%u}", (u32)rng_below(&w->rng, 1000));
    u64 size = chance(w, w->profile.big_result) ? 1500 + rng_below(&w->rng, 1000) : 4 + rng_below(&w->rng, 40);
    if (chance(w, w->profile.fat_result)) size = FAT_BYTES;
    char *p = arena_alloc(&w->arena, size);
    for (u64 i = 0; i < size; i++) p[i] = (char)('a' + rng_below(&w->rng, 26));
    return slice_of(p, size);
}

static struct settle_item random_settle(struct world *w, const struct lease *lease, enum verb_kind verb) {
    struct settle_item s = {.lease = lease, .garbled = chance(w, 200)};
    u64 n = rng_below(&w->rng, 100);
    s.class = n < 50   ? NACK_TRANSIENT
              : n < 75 ? NACK_UNKNOWN
              : n < 84 ? NACK_POISON
              : n < 92 ? NACK_REJECTED
                       : NACK_ABSENT;
    if (chance(w, 2000)) s.delay_ms = between(w, 1, 30000);
    if (chance(w, 8000)) s.lease_ms = between(w, 1000, 15000);
    if (chance(w, 1000)) s.effect_id = arena_printf(&w->arena, "fx%u", (u32)rng_below(&w->rng, 20));
    s.name = arena_printf(&w->arena, "step%u", (u32)rng_below(&w->rng, 3));
    if (verb == DO_ACK || verb == DO_NACK) s.result = random_result(w, &s.result_json);
    if (verb == DO_NACK && s.class != NACK_REJECTED) s.result = SL("");
    if (verb == DO_STEP) s.result = arena_printf(&w->arena, "r%u", (u32)rng_below(&w->rng, 100));
    return s;
}

static struct op *settle_op(struct world *w) {
    struct lease *lease = pick_lease(w);
    if (!lease) return receive_op(w);
    struct op *op = op_new(w, OP_SETTLE);
    op->verb = random_verb(w, lease);
    op->array = chance(w, 2000);
    op->count = op->array ? (u32)between(w, 1, 4) : 1;
    op->settles = arena_alloc(&w->arena, op->count * sizeof *op->settles);
    for (u32 i = 0; i < op->count; i++) {
        op->settles[i] = random_settle(w, lease, op->verb);
        struct lease *next = pick_lease(w);
        if (next) lease = next;
    }
    return op;
}

/* ---- onlookers */

static struct op *look_op(struct world *w) {
    static const char *const states[] = {"pending", "leased", "held", "dead"};
    static const enum op_kind kinds[] = {OP_KEY, OP_KEY, OP_RESULT, OP_LIST, OP_QUEUE};
    struct op *op = op_new(w, kinds[rng_below(&w->rng, 5)]);
    if (op->queue == QUEUES_MOST - 1 && op->kind <= OP_RESULT) op->queue = 0; /* keys repeat there */
    op->sends = arena_alloc(&w->arena, sizeof *op->sends);
    op->sends[0].key = (u32)rng_below(&w->rng, w->profile.keys);
    op->state = slice_str(states[rng_below(&w->rng, 4)]);
    op->max = (u32)between(w, 1, 60);
    if (op->kind == OP_RESULT && chance(w, 5000)) op->wait_ms = between(w, 1, 10000);
    return op;
}

void clients_act(struct world *w) {
    u32 most = w->profile.producers + w->profile.consumers;
    while (w->calls_live < most && w->calls_live + 2 < CALLS_MAX) {
        u64 n = rng_below(&w->rng, 1000);
        u64 sends = 1000ull * w->profile.producers / (most + 1);
        struct op *op = n < sends                            ? send_op(w)
                        : n < 850                            ? (chance(w, 3500) ? receive_op(w) : settle_op(w))
                        : n < 975 - w->profile.operate / 100 ? look_op(w)
                                                             : operator_op(w);
        if (!op) op = look_op(w);
        net_send(w, op, ACTOR_WILD, false);
        if (chance(w, 5000)) return;
    }
}

static void keep_lease(struct world *w, struct lease *lease) {
    if (w->held_count == HELD_MAX) move_to_stale(w, (u32)rng_below(&w->rng, w->held_count));
    w->held[w->held_count++] = lease;
}

/* P8: as large as it may be and never refused. */
static slice fat_result(struct world *w) {
    char *p = arena_alloc(&w->arena, FAT_BYTES);
    memset(p, 'x', FAT_BYTES);
    return slice_of(p, FAT_BYTES);
}

static void ack_at_once(struct world *w, const struct op *received) {
    slice result = w->profile.fat_result ? fat_result(w) : SL("fine");
    struct op *op = op_new(w, OP_SETTLE);
    op->verb = DO_ACK;
    op->array = true;
    op->count = received->lease_count;
    op->settles = arena_alloc(&w->arena, op->count * sizeof *op->settles);
    for (u32 i = 0; i < op->count; i++)
        op->settles[i] = (struct settle_item){.lease = received->leases[i], .result = result};
    net_send(w, op, ACTOR_TAME, true);
}

void clients_delivered(struct world *w, const struct op *op, u32 actor) {
    if (op->kind == OP_REDRIVE && op->task) w->tasks[op->queue] = op->task;
    if (op->kind != OP_RECEIVE || op->lease_count == 0) return;
    if (actor == ACTOR_TAME) {
        ack_at_once(w, op);
        return;
    }
    for (u32 i = 0; i < op->lease_count; i++) keep_lease(w, op->leases[i]);
}

static void send_tame(struct world *w, enum op_kind kind, u32 queue) {
    struct op *op = op_new(w, kind);
    op->queue = queue;
    op->max = 8;
    net_send(w, op, ACTOR_TAME, true);
}

void clients_fill(struct world *w, u32 from, u32 count) {
    for (u32 q = 0; q < w->profile.queues; q++) {
        struct op *op = op_new(w, OP_BATCH);
        op->queue = q;
        op->count = count;
        op->sends = arena_alloc(&w->arena, count * sizeof *op->sends);
        for (u32 i = 0; i < count; i++) op->sends[i].key = from + i;
        net_send(w, op, ACTOR_TAME, true);
    }
}

void clients_take(struct world *w) {
    for (u32 q = 0; q < w->profile.queues; q++) send_tame(w, OP_RECEIVE, q);
}

static void look_at_one(struct world *w) {
    struct message *msg = model_some_live(w->model, &w->rng);
    u32 key;
    if (!msg) return;
    struct op *op = op_new(w, model_id(msg).n ? OP_MESSAGE : OP_KEY);
    model_key_of(msg, &op->queue, &key);
    op->target = msg;
    op->id = arena_copy(&w->arena, model_id(msg));
    op->key = model_name(w->model, msg);
    net_send(w, op, ACTOR_TAME, true);
}

void clients_drain(struct world *w) {
    look_at_one(w);
    for (u32 q = 0; q < w->profile.queues && w->calls_live < 64; q++) {
        send_tame(w, OP_RESUME, q);
        send_tame(w, OP_RECEIVE, q);
        operator_drains(w, q);
    }
}
