#include "broker/circuit.h"

#define PPM 1000000u

const char *circuit_text(enum circuit_state s) {
#define CIRCUIT_TEXT(name, text) [CIRCUIT_##name] = (text),
    static const char *const texts[] = {CIRCUIT_LIST(CIRCUIT_TEXT)};
#undef CIRCUIT_TEXT
    return texts[s];
}

void circuit_init(struct circuit *c, u64 seed, i64 now_ms) {
    *c = (struct circuit){.since_ms = now_ms};
    rng_seed(&c->jitter, seed);
}

static void forget_calls(struct circuit *c) {
    memset(c->slots, 0, sizeof c->slots);
}

void circuit_reset(struct circuit *c, i64 now_ms) {
    if (c->state != CIRCUIT_CLOSED) c->since_ms = now_ms;
    c->state = CIRCUIT_CLOSED;
    c->open_ms = 0;
    c->window = 0;
    forget_calls(c);
}

void circuit_try(struct circuit *c, i64 now_ms) {
    if (c->state == CIRCUIT_OPEN && c->probe_ms > now_ms) c->probe_ms = now_ms;
}

/* ---- asking */

bool circuit_may(const struct circuit *c, u32 under_way, i64 now_ms, bool *probe, i64 *again_ms) {
    *probe = c->state == CIRCUIT_OPEN;
    *again_ms = INT64_MAX;
    switch (c->state) {
    case CIRCUIT_OPEN:
        *again_ms = c->probe_ms;
        return now_ms >= c->probe_ms;
    case CIRCUIT_CLOSED:
        return c->window == 0 || under_way < c->window;
    case CIRCUIT_HALF_OPEN:
    case CIRCUIT_STATES:
        break;
    }
    return false;
}

/* ---- learning */

static void enter(struct circuit *c, enum circuit_state to, i64 now_ms) {
    c->state = to;
    c->since_ms = now_ms;
}

static void open_it(struct circuit *c, const struct circuit_rules *r, i64 now_ms) {
    bool recovered = c->open_ms == 0;
    i64 open_ms = recovered ? r->open_ms : c->open_ms * 2;
    if (open_ms > CIRCUIT_OPEN_MS_MAX) open_ms = r->open_ms > CIRCUIT_OPEN_MS_MAX ? r->open_ms : CIRCUIT_OPEN_MS_MAX;
    c->open_ms = open_ms;
    c->probe_ms = now_ms + open_ms + (i64)rng_below(&c->jitter, (u64)open_ms / 10 + 1);
    if (c->state == CIRCUIT_CLOSED && (recovered || now_ms - c->since_ms > r->within_ms)) c->failed_ms = now_ms;
    enter(c, CIRCUIT_OPEN, now_ms);
}

void circuit_probed(struct circuit *c, i64 now_ms) {
    CHECK(c->state == CIRCUIT_OPEN);
    enter(c, CIRCUIT_HALF_OPEN, now_ms);
}

/* The part of the time that is now. When within_ms changes so do the numbers: what was counted by others is then too old, or not yet. */
static i64 slot_number(const struct circuit_rules *r, i64 now_ms) {
    i64 slot_ms = r->within_ms / CIRCUIT_SLOTS;
    return now_ms / (slot_ms > 0 ? slot_ms : 1);
}

static void count(struct circuit *c, const struct circuit_rules *r, i64 now_ms, bool failed) {
    i64 number = slot_number(r, now_ms);
    u32 at = (u32)(number % CIRCUIT_SLOTS);
    if (c->slots[at].number != number) c->slots[at].calls = c->slots[at].failed = 0;
    c->slots[at].number = number;
    c->slots[at].calls++;
    c->slots[at].failed += failed;
}

static bool fails_too_often(const struct circuit *c, const struct circuit_rules *r, i64 now_ms) {
    i64 number = slot_number(r, now_ms);
    u64 calls = 0, failed = 0;
    for (u32 i = 0; i < CIRCUIT_SLOTS; i++) {
        i64 age = number - c->slots[i].number;
        if (age < 0 || age >= CIRCUIT_SLOTS) continue;
        calls += c->slots[i].calls;
        failed += c->slots[i].failed;
    }
    return failed > 0 && calls >= r->of && failed * PPM >= calls * r->ratio_ppm;
}

/* So many may be under way from here on. */
static void let(struct circuit *c, u32 window, u32 most) {
    c->window = window < most ? window : 0;
    if (c->window == 0) c->open_ms = 0; /* it has recovered */
}

static void pace(struct circuit *c, u32 most, bool failed) {
    if (c->window == 0) return;
    u32 less = c->window > 1 ? c->window / 2 : 1;
    let(c, failed ? less : c->window + 1, most);
}

void circuit_ended(struct circuit *c, const struct circuit_rules *r, u32 most, i64 began_ms, i64 now_ms, bool failed) {
    if (c->state != CIRCUIT_CLOSED || began_ms < c->since_ms) return;
    count(c, r, now_ms, failed);
    if (failed && fails_too_often(c, r, now_ms))
        open_it(c, r, now_ms);
    else
        pace(c, most, failed);
}

void circuit_probe_ended(struct circuit *c, const struct circuit_rules *r, u32 most, i64 now_ms, bool failed) {
    if (c->state != CIRCUIT_HALF_OPEN) return; /* the address has changed meanwhile */
    if (failed) return open_it(c, r, now_ms);
    enter(c, CIRCUIT_CLOSED, now_ms);
    forget_calls(c);
    let(c, 1, most);
}

void circuit_probe_void(struct circuit *c, i64 now_ms) {
    if (c->state != CIRCUIT_HALF_OPEN) return;
    enter(c, CIRCUIT_OPEN, now_ms);
    c->probe_ms = now_ms;
}
