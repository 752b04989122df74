#include "broker/budget.h"

#include "broker/broker_priv.h"

static u64 now_us(const struct broker *b) {
    return b->options.port.now_us(b->options.port.ctx);
}

struct budget budget_of(const struct broker *b, u32 us) {
    return (struct budget){.b = b, .until_us = b->options.port.now_us ? now_us(b) + us : UINT64_MAX};
}

void turn_begins(struct broker *b) {
    if (b->options.port.now_us) b->turn_us = now_us(b);
}

bool turn_is_long(const struct broker *b) {
    return b->turn_us && now_us(b) - b->turn_us > LONG_US;
}

i64 budget_left_us(const struct budget *g) {
    return g->until_us == UINT64_MAX ? INT64_MAX : (i64)(g->until_us - now_us(g->b));
}

void budget_charge(struct budget *g, u64 us) {
    if (g->until_us != UINT64_MAX) g->until_us -= us < g->until_us ? us : g->until_us;
}

bool budget_spent(struct budget *g) {
    bool begun = g->begun;
    g->begun = true;
    return begun && g->until_us != UINT64_MAX && now_us(g->b) >= g->until_us;
}
