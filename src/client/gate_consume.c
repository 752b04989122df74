/* A message put through the gate: the table in hapax/gate.h, executed. The handler's functions and hx_gate_run's differ
 * in what they return; the verdict the handler gave is kept beside, it is what the broker is told. */
#include "client/gate_priv.h"

enum { GATES_MAX = 3 };

struct passage {
    const hx_consume_options *options;
    hx_message *message;
    hx_verdict said; /* by the last of the caller's functions */
    bool acted;      /* the effect was begun */
};

/* What the handler has set belongs to the message; the gate stores the same. */
static void outcome_of_message(struct passage *p, hx_gate_turn *turn) {
    hx_gate_outcome o;
    message_outcome(p->message, &o);
    hx_gate_set_result(turn, o.result, o.content_type);
    hx_gate_set_effect_id(turn, o.effect_id);
}

static hx_verdict call(struct passage *p, hx_handler_fn fn, hx_gate_turn *turn) {
    p->said = fn(p->options->ctx, p->message);
    outcome_of_message(p, turn);
    return p->said;
}

static hx_gate_verdict record(void *ctx, hx_gate_turn *turn) {
    struct passage *p = ctx;
    switch (call(p, p->options->handler, turn)) {
    case HX_DONE:
        return HX_GATE_DO;
    case HX_FAIL_REJECTED:
        return HX_GATE_REJECT;
    default:
        return HX_GATE_UNDO;
    }
}

static hx_gate_verdict effect(void *ctx, hx_gate_turn *turn) {
    struct passage *p = ctx;
    p->acted = true;
    switch (call(p, p->options->gate->effect, turn)) {
    case HX_DONE:
        return HX_GATE_DO;
    case HX_FAIL_REJECTED:
        return HX_GATE_REJECT;
    case HX_FAIL_UNKNOWN:
        return HX_GATE_LEAVE;
    default:
        return HX_GATE_UNDO;
    }
}

static hx_gate_verdict lookup(void *ctx, hx_gate_turn *turn) {
    struct passage *p = ctx;
    switch (call(p, p->options->gate->lookup, turn)) {
    case HX_DONE:
        return HX_GATE_DO;
    case HX_FAIL_REJECTED:
        return HX_GATE_REJECT;
    case HX_FAIL_ABSENT:
        return HX_GATE_UNDO;
    default:
        return HX_GATE_LEAVE;
    }
}

static hx_verdict because(hx_message *m, hx_verdict verdict, const char *reason) {
    hx_message_set_reason(m, reason);
    return verdict;
}

static hx_verdict verdict_of_answer(struct passage *p, const hx_gate_reply *told) {
    hx_message *m = p->message;
    switch (told->answer) {
    case HX_GATE_NEW:
        return told->rejected ? HX_FAIL_REJECTED : HX_DONE;
    case HX_GATE_DUPLICATE:
        hx_message_set_result(m, told->result, told->content_type);
        return told->rejected ? HX_FAIL_REJECTED : HX_DONE;
    case HX_GATE_RELEASED:
        return p->said;
    case HX_GATE_CONFLICT:
        return because(m, HX_FAIL_POISON, "gate: the key was used with another fingerprint");
    case HX_GATE_STALE:
        return because(m, HX_FAIL_TRANSIENT, "gate: a higher fence was seen, another consumer has the work");
    case HX_GATE_IN_FLIGHT:
        return because(m, HX_FAIL_TRANSIENT, "gate: reserved by another, whose lease still runs");
    default:
        return because(m, HX_FAIL_UNKNOWN, "gate: an attempt was begun and not finished");
    }
}

static hx_verdict verdict_of_error(struct passage *p, const hx_error *err) {
    hx_message *m = p->message;
    if (err->status == HX_INVALID) return because(m, HX_FAIL_POISON, err->detail);
    if (err->status == HX_UNAVAILABLE) return because(m, HX_GIVE_BACK_AND_STOP, err->detail);
    /* In one transaction nothing is in doubt for long: the next delivery's claim tells. */
    return because(m, p->acted ? HX_FAIL_UNKNOWN : HX_FAIL_TRANSIENT, err->detail);
}

/* The answer was lost: ask again on a new connection. Not after the effect has begun: the reservation would take us for
 * itself, before its call. The next delivery has a higher fence and looks it up. */
static bool ask_again(const struct passage *p, hx_status st) {
    return (st == HX_UNREACHABLE || st == HX_UNKNOWN) && !p->acted;
}

hx_verdict gate_handle(const hx_consume_options *options, int worker, hx_message *m, hx_error *err) {
    const hx_consume_gate *o = options->gate;
    struct passage p = {.options = options, .message = m};
    hx_gate_work work = {.record = record, .ctx = &p};
    if (o->effect) work.effect = effect;
    if (o->lookup) work.lookup = lookup;
    hx_gate_key key = {.scope = o->scope,
                       .key = m->effect_key,
                       .fence = m->fence,
                       .owner = options->consumer,
                       .lease_ms = o->lease_ms};
    hx_gate_reply told = {0};
    hx_status st = HX_UNREACHABLE;
    for (int i = 0; i < GATES_MAX && ask_again(&p, st); i++) {
        hx_gate *gate = o->gate(options->ctx, worker, err);
        if (!gate) return because(m, HX_FAIL_TRANSIENT, "gate: no connection to the database");
        st = hx_gate_run(gate, &key, &work, &told, err);
    }
    if (st != HX_OK) return verdict_of_error(&p, err);
    hx_verdict verdict = verdict_of_answer(&p, &told);
    hx_gate_reply_free(&told);
    return verdict;
}
