#include "broker/target.h"

#include <stdio.h>

#include "broker/parse.h"
#include "broker/target_priv.h"

/* The bucket counts sixtieths of a call by the second: so many a minute are so many of them a second. */
#define CALL 60u

struct target_rules target_rules_default(void) {
    return (struct target_rules){.circuit = {.ratio_ppm = 500000, .of = 10, .within_ms = 60000, .open_ms = 30000},
                                 .concurrency = 32};
}

struct target *target_new(const struct target_rules *r, u64 seed, i64 mono_ms) {
    struct target *t = mem_zalloc(sizeof *t);
    CHECK(r->concurrency > 0);
    t->rules = *r;
    circuit_init(&t->circuit, seed, mono_ms);
    return t;
}

void target_free(struct target *t) {
    t->let_go = true;
    if (t->in_flight == 0) mem_free(t);
}

void target_rule(struct target *t, i64 mono_ms, const struct target_rules *r, bool moved) {
    CHECK(r->concurrency > 0);
    t->rules = *r;
    if (!moved) return;
    circuit_reset(&t->circuit, mono_ms);
    t->wait_ms = 0;
}

/* ---- deciding */

static struct bucket_rule rate_of(const struct target *t) {
    u32 at_once = t->rules.rate_per_min / 10;
    return (struct bucket_rule){.per_s = t->rules.rate_per_min, .at_once = at_once > CALL ? at_once : CALL};
}

bool target_may_send(struct target *t, i64 mono_ms, bool *probe, i64 *again_ms) {
    *probe = false;
    *again_ms = INT64_MAX;
    if (t->paused || t->let_go) return false;
    if (t->wait_ms > mono_ms) {
        *again_ms = t->wait_ms;
        return false;
    }
    if (!circuit_may(&t->circuit, t->in_flight, mono_ms, probe, again_ms)) return false;
    *again_ms = INT64_MAX;
    if (t->in_flight >= t->rules.concurrency) return false;
    i64 wait_ms = t->rules.rate_per_min ? bucket_wait_ms(&t->rate, rate_of(t), CALL, mono_ms) : 0;
    if (wait_ms > 0) *again_ms = mono_ms + wait_ms;
    return wait_ms == 0;
}

bool target_is_down(const struct target *t) {
    return t->circuit.state != CIRCUIT_CLOSED;
}

void target_sent(struct target *t, i64 mono_ms, bool probe) {
    t->in_flight++;
    if (t->rules.rate_per_min) bucket_take(&t->rate, rate_of(t), CALL, mono_ms);
    if (probe) circuit_probed(&t->circuit, mono_ms);
}

static void learn(struct target *t, i64 mono_ms, bool failed, bool probe, u64 took_us) {
    const struct circuit_rules *r = &t->rules.circuit;
    if (probe)
        circuit_probe_ended(&t->circuit, r, t->rules.concurrency, mono_ms, failed);
    else
        circuit_ended(&t->circuit, r, t->rules.concurrency, mono_ms - (i64)(took_us / 1000), mono_ms, failed);
}

void target_ended(struct target *t, i64 mono_ms, enum target_outcome outcome, bool probe, u64 took_us) {
    CHECK(t->in_flight > 0);
    t->in_flight--;
    if (t->let_go) {
        if (t->in_flight == 0) mem_free(t);
        return;
    }
    if (outcome != TARGET_NEITHER || took_us > 0) hist_add(&t->took_us, hist_us, took_us);
    if (outcome != TARGET_NEITHER)
        learn(t, mono_ms, outcome == TARGET_FAILED, probe, took_us);
    else if (probe)
        circuit_probe_void(&t->circuit, mono_ms);
}

void target_wait(struct target *t, i64 mono_ms, i64 ms) {
    if (ms > TARGET_WAIT_MS_MAX) ms = TARGET_WAIT_MS_MAX;
    if (mono_ms + ms > t->wait_ms) t->wait_ms = mono_ms + ms;
}

void target_pause(struct target *t, i64 wall_ms, bool paused, slice who, slice why) {
    t->paused = paused;
    t->paused_ms = wall_ms;
    t->gone_ms = 0;
    snprintf(t->paused_why, sizeof t->paused_why, "%.*s%s%.*s", (int)who.n, who.p, why.n ? ": " : "", (int)why.n,
             why.p);
    t->paused_why[cut_text(slice_str(t->paused_why), TARGET_ERROR_BYTES - 3).n] = 0; /* not inside a character */
}

void target_gone(struct target *t, i64 mono_ms) {
    CHECK(t->paused);
    t->gone_ms = mono_ms;
}

void target_try(struct target *t, i64 mono_ms) {
    t->wait_ms = 0;
    circuit_try(&t->circuit, mono_ms);
}

/* ---- showing */

void target_answered(struct target *t, i64 wall_ms, const struct target_answer *a) {
    if (a->lookup)
        t->lookups++;
    else
        t->pushes[a->failure_class]++;
    if (a->failure_class == CLASS_NONE || a->failure_class == CLASS_ABSENT) return;
    slice why = cut_text(a->why, TARGET_ERROR_BYTES);
    t->error = (struct target_error){
        .wall_ms = wall_ms, .lookup = a->lookup, .failure_class = a->failure_class, .status = a->status};
    memcpy(t->error.why, why.p, why.n);
}

void target_look(const struct target *t, i64 mono_ms, struct target_view *v) {
    const struct circuit *c = &t->circuit;
    *v = (struct target_view){.circuit = c->state,
                              .paused = t->paused,
                              .paused_ms = t->paused_ms,
                              .paused_why = t->paused_why,
                              .gone_ms = t->gone_ms,
                              .since_ms = c->since_ms,
                              .down_ms = c->state == CIRCUIT_CLOSED ? 0 : c->failed_ms,
                              .probe_ms = c->state == CIRCUIT_OPEN ? c->probe_ms : 0,
                              .wait_ms = t->wait_ms > mono_ms ? t->wait_ms : 0,
                              .in_flight = t->in_flight,
                              .window = c->window,
                              .rules = t->rules,
                              .lookups = t->lookups,
                              .took_us = &t->took_us,
                              .error = &t->error};
    memcpy(v->pushes, t->pushes, sizeof v->pushes);
}
