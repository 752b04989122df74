#include "broker/effects.h"

#include "broker/broker_priv.h"

struct effects {
    struct effect {
        u64 after;
        effect_fn *run;
        void *ctx;
        u64 arg;
    } * ring; /* in the order they were parked */
    u32 cap;  /* power of two */
    u32 first, count;
    u64 durable; /* everything below this position is */
    bool stopped, running;
};

struct effects *effects_new(void) {
    return mem_zalloc(sizeof(struct effects));
}

void effects_free(struct effects *e) {
    if (e) mem_free(e->ring);
    mem_free(e);
}

static void grow(struct effects *e) {
    u32 cap = e->cap ? e->cap * 2 : 64;
    struct effect *ring = mem_zalloc(cap * sizeof *ring);
    for (u32 i = 0; i < e->count; i++) ring[i] = e->ring[(e->first + i) & (e->cap - 1)];
    mem_free(e->ring);
    e->ring = ring;
    e->cap = cap;
    e->first = 0;
}

/* All that is parked and may run. What an effect parks itself comes behind the others. */
static void run_parked(struct effects *e, struct broker *b) {
    if (e->running) return; /* an effect parked another one: the loop below comes to it */
    e->running = true;
    while (e->count && e->ring[e->first].after <= e->durable && !e->stopped) {
        struct effect one = e->ring[e->first];
        e->first = (e->first + 1) & (e->cap - 1);
        e->count--;
        INVARIANT(9, one.after <= e->durable && !e->stopped);
        one.run(b, one.ctx, one.arg);
    }
    e->running = false;
}

bool effect_after(struct broker *b, u64 position, effect_fn *run, void *ctx, u64 arg) {
    struct effects *e = b->effects;
    if (e->stopped) return true; /* taken, never to be run */
    if (e->count == EFFECTS_MAX) return false;
    if (e->count == e->cap) grow(e);
    e->ring[(e->first + e->count) & (e->cap - 1)] =
        (struct effect){.after = position, .run = run, .ctx = ctx, .arg = arg};
    e->count++;
    broker_awaits(b, position);
    run_parked(e, b);
    return true;
}

bool effects_run(struct broker *b, u64 durable) {
    struct effects *e = b->effects;
    if (e->stopped) return false;
    CHECK(durable >= e->durable);
    e->durable = durable;
    run_parked(e, b);
    return !e->stopped;
}

void effects_stop(struct broker *b) {
    b->effects->stopped = true;
    b->effects->count = 0;
}
