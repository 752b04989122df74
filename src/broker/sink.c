#include "broker/sink.h"

#include "broker/broker_priv.h"
#include "broker/proxy.h"
#include "broker/push.h"
#include "broker/room.h"
#include "broker/waits.h"
#include "broker/watch.h"

static void *sink_reserve(void *ctx, size_t body) {
    return journal_reserve(broker_of(ctx)->journal, body);
}

static u64 sink_append(void *ctx, u8 type, u8 version, size_t body) {
    struct broker *b = broker_of(ctx);
    u64 pos = journal_append(b->journal, type, version, body);
    b->after = pos + 1;
    room_take(b, journal_cost(body));
    return pos;
}

static void sink_outcome(void *ctx, const struct ref *ref) {
    waits_wake_outcome(broker_of(ctx), ref);
}

static void sink_ready(void *ctx, u16 queue) {
    waits_wake_queue(broker_of(ctx), queue);
    gates_ready(broker_of(ctx), queue);
    push_wake(broker_of(ctx), queue);
}

#define BIT(type) (1u << (type))
/* What a key points at, and how often it came: seen_after knows their place. */
#define POINTED_AT (BIT(REC_MESSAGE) | BIT(REC_SETTLE) | BIT(REC_ARRIVALS))
#define MOVES                                                                                                          \
    (BIT(REC_LEASE) | BIT(REC_START) | BIT(REC_EXTEND) | BIT(REC_RETURN) | BIT(REC_STEP) | BIT(REC_EFFECT) |           \
     BIT(REC_DECIDE))

static void sink_record(void *ctx, const struct record *r) {
    struct broker *b = broker_of(ctx);
    bool settles = r->type == REC_SETTLE && !r->settle.carried; /* a group's head, perhaps: others go on */
    if (settles || !(BIT(r->type) & POINTED_AT)) b->moved = b->after;
    if (!(BIT(r->type) & (POINTED_AT | MOVES))) b->ruled = b->after;
    watch_record(b, r);
}

static void sink_expired(void *ctx, u16 queue, u64 hash) {
    watch_expired(broker_of(ctx), queue, hash);
}

struct core_sink sink_of(struct broker *b) {
    return (struct core_sink){
        .ctx = b,
        .reserve = sink_reserve,
        .append = sink_append,
        .cost = journal_cost,
        .on_outcome = sink_outcome,
        .on_ready = sink_ready,
        .on_record = sink_record,
        .on_expired = sink_expired,
    };
}
