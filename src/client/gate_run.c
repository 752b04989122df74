/* hx_gate_run and the reconciler: the order in which claim, effect, lookup, record and commit are done.
 *
 *   admit ── new, one transaction ──────────────────────────────┐
 *     │  └── new, two-phase: commit, effect ── done ── begin ───┤
 *     ├── unknown: commit, lookup ── found ──────── begin ──────┼── record, outcome, commit
 *     │      └── absent: release first, and admit again         │
 *     └── anything else: commit (so that it is counted), tell   ┘
 *
 * A transaction that meets HX_BUSY is run again from its begin; effect and lookup are outside of all transactions and
 * are not repeated by that. `known` is the line between: from there on the effect is a fact and only wants recording. */
#include "client/gate_priv.h"

enum { TRIES_MAX = 10, PAUSE_DOUBLINGS = 6, OLDER_THAN_MS = 120000, EVERY_MS = 60000 };

struct hx_gate_turn_private {
    hx_gate *gate;
    hx_gate_key key; /* with the attempt that was admitted: without fences it alone tells us from who took over */
    const hx_gate_work *work;
    struct arena *memory; /* of the outcome; becomes the reply's */
    hx_gate_turn turn;
    bool known;    /* the effect has happened: record and settle */
    bool absent;   /* looked up, not there: release before admitting again */
    bool undone;   /* the effect certainly did not happen: release, and that is all */
    bool finished; /* *out says how */
    bool two_phase;
    hx_gate_reply *out;
    hx_error *err;
};

typedef struct hx_gate_turn_private flow;

void hx_gate_set_result(hx_gate_turn *turn, hx_bytes result, const char *content_type) {
    struct arena *a = turn->priv->memory;
    turn->outcome.result = result.data ? arena_bytes(a, slice_of(result.data, result.size)) : (hx_bytes){0};
    turn->outcome.content_type = content_type ? arena_string(a, slice_str(content_type)) : NULL;
}

void hx_gate_set_effect_id(hx_gate_turn *turn, const char *effect_id) {
    turn->outcome.effect_id = effect_id ? arena_string(turn->priv->memory, slice_str(effect_id)) : NULL;
}

/* ---- the pieces. Each returns HX_OK and sets finished, or HX_OK to go on, or a failure. */

static hx_status finish(flow *f, hx_gate_answer answer) {
    f->out->answer = answer;
    f->finished = true;
    return HX_OK;
}

static hx_status say_again(flow *f) {
    return error_set(f->err, HX_BUSY, HX_APPLIED_NO, "again", "gate: the transaction is to be run again");
}

/* Done: the reply carries what was stored. */
static hx_status finish_new(flow *f) {
    hx_gate_reply *out = f->out;
    out->result = f->turn.outcome.result;
    out->content_type = f->turn.outcome.content_type;
    out->rejected = f->turn.outcome.rejected;
    return finish(f, HX_GATE_NEW);
}

/* Settled by somebody else in the meantime: what they stored is the answer. */
static hx_status finish_duplicate(flow *f) {
    hx_gate_rollback(f->gate);
    hx_gate_reply_free(f->out);
    hx_status st = gate_begin_admit(f->gate, &f->key, false, f->out, f->err);
    if (st != HX_OK) return st;
    if (f->out->answer != HX_GATE_DUPLICATE) return say_again(f);
    st = gate_end_duplicate(f->gate, &f->key, false, f->out, f->err); /* it was counted when it was admitted */
    return st == HX_OK ? finish(f, HX_GATE_DUPLICATE) : st;
}

/* Stores what is known, if there is anything to tell the duplicates, and commits. */
static hx_status store(flow *f) {
    const hx_gate_outcome *o = &f->turn.outcome;
    hx_gate_answer answer = HX_GATE_COMMITTED;
    hx_status st = HX_OK;
    bool something = o->result.data || o->effect_id || o->content_type || o->rejected;
    /* Only what was reserved can have been settled by another; a claim's row is locked since this transaction made it. */
    if (!f->known && something) return gate_settle_commit(f->gate, &f->key, o, f->err);
    if (f->known) st = hx_gate_commit_outcome(f->gate, &f->key, o, &answer, f->err);
    if (st != HX_OK || answer == HX_GATE_DUPLICATE) return st == HX_OK ? finish_duplicate(f) : st;
    return hx_gate_commit(f->gate, f->err);
}

/* In an open transaction: the business write, its outcome, COMMIT. */
static hx_status record(flow *f) {
    hx_gate_outcome *o = &f->turn.outcome;
    bool rejected = o->rejected;
    hx_gate_verdict v = f->work->record && !rejected ? f->work->record(f->work->ctx, &f->turn) : HX_GATE_DO;
    switch (v) {
    case HX_GATE_DO:
    case HX_GATE_REJECT:
        if (gate_idle(f->gate, f->err) != HX_OK) break;
        return error_set(f->err, HX_REFUSED, HX_APPLIED_UNKNOWN, "no_transaction",
                         "gate: record has ended the transaction it was called in; what it committed is committed");
    case HX_GATE_AGAIN:
        return say_again(f);
    case HX_GATE_UNDO:
    case HX_GATE_LEAVE:
        hx_gate_rollback(f->gate);
        return finish(f, f->known ? HX_GATE_UNKNOWN : HX_GATE_RELEASED);
    default:
        return error_set(f->err, HX_INVALID, HX_APPLIED_NO, "argument_invalid",
                         "gate: record said %d, which is no verdict", (int)v);
    }
    o->rejected = rejected || v == HX_GATE_REJECT;
    hx_status st = store(f);
    if (st != HX_OK) o->rejected = rejected;
    return st == HX_OK && !f->finished ? finish_new(f) : st;
}

static hx_status settle(flow *f) {
    hx_status st = hx_gate_begin(f->gate, f->err);
    return st == HX_OK ? record(f) : st;
}

/* The effect certainly did not happen; the next claimant may have it. */
static hx_status give_back(flow *f) {
    hx_status st = hx_gate_release(f->gate, &f->key, NULL, f->err);
    return st == HX_OK ? finish(f, HX_GATE_RELEASED) : st;
}

/* What the caller's function says of the effect; `no`: what it means that it did not happen. */
static hx_status believe(flow *f, hx_gate_verdict said, bool *no) {
    switch (said) {
    case HX_GATE_REJECT:
        f->turn.outcome.rejected = true;
        f->known = true;
        return HX_OK;
    case HX_GATE_DO:
        f->known = true;
        return HX_OK;
    case HX_GATE_UNDO:
        *no = true;
        return HX_OK;
    case HX_GATE_AGAIN:
    case HX_GATE_LEAVE:
        break;
    }
    return finish(f, HX_GATE_UNKNOWN);
}

static hx_status act(flow *f) {
    return believe(f, f->work->effect(f->work->ctx, &f->turn), &f->undone);
}

static hx_status look_up(flow *f) {
    hx_gate_verdict said = f->work->lookup ? f->work->lookup(f->work->ctx, &f->turn) : HX_GATE_LEAVE;
    return believe(f, said, &f->absent);
}

static hx_status ask(flow *f) {
    hx_gate_reply_free(f->out);
    if (!f->absent) return gate_begin_admit(f->gate, &f->key, f->two_phase, f->out, f->err);
    hx_status st = hx_gate_begin(f->gate, f->err);
    if (st == HX_OK) st = hx_gate_release(f->gate, &f->key, NULL, f->err);
    if (st != HX_OK) return st;
    return f->two_phase ? hx_gate_reserve(f->gate, &f->key, f->out, f->err)
                        : hx_gate_claim(f->gate, &f->key, f->out, f->err);
}

static hx_status admit(flow *f) {
    hx_status st = ask(f);
    if (st != HX_OK) return st;
    hx_gate_answer answer = f->out->answer;
    f->turn.attempt = f->key.attempt = f->out->attempt;
    if (answer == HX_GATE_NEW && !f->two_phase) return record(f);
    st = answer == HX_GATE_DUPLICATE ? gate_end_duplicate(f->gate, &f->key, true, f->out, f->err)
                                     : hx_gate_commit(f->gate, f->err);
    if (st != HX_OK) return st;
    f->absent = false;
    if (answer == HX_GATE_NEW) return act(f);
    if (answer == HX_GATE_UNKNOWN) return look_up(f);
    return finish(f, answer);
}

/* ---- the whole */

/* Longer each time, and not in step with the rival. */
static void pause_after(int try) {
    u64 random;
    random_bytes(&random, sizeof(random));
    conn_pause(1 + (i64)(random % (1u << (try < PAUSE_DOUBLINGS ? try : PAUSE_DOUBLINGS))), -1);
}

static hx_status drive(flow *f) {
    int tries_max = f->work->tries_max > 0 ? f->work->tries_max : TRIES_MAX;
    for (int try = 1; !f->finished;) {
        hx_status st = f->known ? settle(f) : f->undone ? give_back(f) : admit(f);
        if (st == HX_OK) continue;
        hx_gate_rollback(f->gate);
        if (st != HX_BUSY || try >= tries_max) return st;
        pause_after(try++);
    }
    return HX_OK;
}

/* The outcome's strings live in the flow's arena: it goes to the reply, unless that has its own result. */
static void hand_over(flow *f) {
    if (f->out->answer == HX_GATE_NEW) {
        arena_free(f->out->memory);
        f->out->memory = f->memory;
    } else {
        arena_free(f->memory);
    }
}

hx_status hx_gate_run(hx_gate *gate, const hx_gate_key *key, const hx_gate_work *work, hx_gate_reply *out,
                      hx_error *err) {
    hx_error spare_err;
    hx_gate_reply spare_out;
    bool keep = out;
    if (!err) err = &spare_err;
    if (!out) out = &spare_out;
    *out = (hx_gate_reply){0};
    if (!key || !work || (!work->record && !work->effect))
        return error_set(err, HX_INVALID, HX_APPLIED_NO, "argument_invalid", "gate: no key or no work given");
    hx_status st = gate_idle(gate, err); /* before anything: an open transaction is the caller's, and not ours to end */
    if (st != HX_OK) return st;
    flow f = {.gate = gate,
              .key = *key,
              .work = work,
              .memory = arena_new(),
              .two_phase = work->effect,
              .out = out,
              .err = err,
              .turn = {.gate = gate}};
    f.turn.key = &f.key;
    f.turn.priv = &f;
    st = drive(&f);
    if (st != HX_OK) {
        hx_gate_reply_free(out);
        if (f.known) err->applied = HX_APPLIED_UNKNOWN;
    }
    hand_over(&f);
    if (!keep) hx_gate_reply_free(out);
    return st == HX_OK ? error_ok(err) : st;
}

/* ---- reservations nobody came back for */

/* Whoever is found not stranded any more (settled, or taken over by another) is left to them. */
static hx_gate_verdict not_ours(void *ctx, hx_gate_turn *turn) {
    (void)ctx, (void)turn;
    return HX_GATE_UNDO;
}

struct reconcile {
    const hx_gate_reconcile_options *options;
    hx_gate_verdict told; /* by the lookup */
};

static hx_gate_verdict reconcile_lookup(void *ctx, hx_gate_turn *turn) {
    struct reconcile *r = ctx;
    return r->told = r->options->lookup(r->options->ctx, turn);
}

static hx_gate_verdict reconcile_record(void *ctx, hx_gate_turn *turn) {
    struct reconcile *r = ctx;
    return r->options->record ? r->options->record(r->options->ctx, turn) : HX_GATE_DO;
}

/* As hx_gate_run, with an effect that is never begun: what is absent is reserved once more and given back. The fence is
 * the one the reservation was seen with: a consumer that has taken it over since has a higher one, and is left alone. */
static hx_status reconcile_one(hx_gate *gate, const hx_gate_reconcile_options *o, const hx_gate_orphan *orphan,
                               hx_gate_reconciled *sum, hx_error *err) {
    hx_gate_key key = {
        .scope = orphan->scope, .key = orphan->key, .fence = orphan->fence, .owner = o->owner ? o->owner : "reconcile"};
    struct reconcile r = {.options = o, .told = HX_GATE_LEAVE};
    hx_gate_work work = {.effect = not_ours, .record = reconcile_record, .lookup = reconcile_lookup, .ctx = &r};
    hx_gate_reply told;
    hx_status st = hx_gate_run(gate, &key, &work, &told, err);
    if (st == HX_OK && told.answer == HX_GATE_NEW)
        sum->found++;
    else if (st == HX_OK && told.answer == HX_GATE_RELEASED && r.told == HX_GATE_UNDO)
        sum->absent++;
    else if (st == HX_OK)
        sum->left++;
    hx_gate_reply_free(&told);
    return st;
}

hx_status hx_gate_reconcile(hx_gate *gate, const hx_gate_reconcile_options *options, hx_gate_reconciled *out,
                            hx_error *err) {
    hx_error spare_err;
    hx_gate_reconciled spare_out = {0};
    if (!err) err = &spare_err;
    if (!out) out = &spare_out;
    if (!options->lookup)
        return error_set(err, HX_INVALID, HX_APPLIED_NO, "argument_invalid", "gate: reconcile needs a lookup");
    hx_gate_orphans orphans;
    i64 age = options->older_than_ms > 0 ? options->older_than_ms : OLDER_THAN_MS;
    hx_status st = gate_stranded(gate, age, true, &orphans, err);
    for (size_t i = 0; i < orphans.count && st == HX_OK; i++) {
        st = reconcile_one(gate, options, &orphans.list[i], out, err);
        if (st != HX_FENCED && st != HX_NOT_FOUND) continue;
        out->left++; /* somebody has taken it over, or ended it, during the look-up: it is theirs */
        st = HX_OK;
    }
    hx_gate_orphans_free(&orphans);
    return st == HX_OK ? error_ok(err) : st;
}

hx_status hx_gate_reconcile_loop(hx_gate *gate, const hx_gate_reconcile_options *options, hx_gate_reconciled *out,
                                 hx_error *err) {
    for (;;) {
        hx_status st = hx_gate_reconcile(gate, options, out, err);
        if (st != HX_OK && st != HX_BUSY) return st;
        if (conn_pause(options->every_ms > 0 ? options->every_ms : EVERY_MS, options->stop_fd)) break;
    }
    hx_error spare;
    return error_ok(err ? err : &spare);
}
