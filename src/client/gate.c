/* The gate's calls: arguments, transaction and version are checked here, once for all databases. */
#include <stdio.h>

#include "client/gate_priv.h"

enum { NAME_MAX_CHARS = 255, STEP_MAX_CHARS = 128, LEASE_MS = 120000, SWEEP_BATCH = 10000 };
#define LEASE_MS_MAX (3653 * 86400000LL) /* ten years */
#define BYTES_MAX    (512u << 20)        /* what both databases take of one value */

#define TEXT(name, text) text,
static const char *const answers[] = {HX_GATE_ANSWER_MAP(TEXT)};

const char *hx_gate_answer_text(hx_gate_answer answer) {
    return (size_t)answer < sizeof(answers) / sizeof(answers[0]) ? answers[answer] : "";
}

static const struct gate_driver *driver_of(const hx_gate *gate) {
    CHECK(gate && gate->magic == GATE_MAGIC);
    return gate->driver;
}

void hx_gate_free(hx_gate *gate) {
    if (!gate) return;
    const struct gate_driver *driver = driver_of(gate);
    gate->magic = 0;
    driver->free(gate);
}

void hx_gate_reply_free(hx_gate_reply *reply) {
    if (!reply) return;
    arena_free(reply->memory);
    *reply = (hx_gate_reply){0};
}

/* ---- what may be asked */

static size_t characters(slice s) {
    size_t n = 0;
    for (size_t i = 0; i < s.n; i++) n += ((u8)s.p[i] & 0xC0) != 0x80;
    return n;
}

static bool name_ok(const char *what, const char *name, size_t max, hx_error *err) {
    slice s = slice_str(name);
    size_t n = characters(s);
    if (name && n >= 1 && n <= max && utf8_valid(s)) return true;
    char said[32] = "is NULL";
    if (name) snprintf(said, sizeof(said), n >= 1 && n <= max ? "is not UTF-8" : "has %zu", n);
    error_set(err, HX_INVALID, HX_APPLIED_NO, "argument_invalid",
              "gate: %s must have 1 to %zu characters of UTF-8, this one %s", what, max, said);
    return false;
}

static bool key_ok(const hx_gate_key *key, hx_error *err) {
    if (!key) {
        error_set(err, HX_INVALID, HX_APPLIED_NO, "argument_invalid", "gate: no key given");
        return false;
    }
    if (!name_ok("scope", key->scope, NAME_MAX_CHARS, err) || !name_ok("key", key->key, NAME_MAX_CHARS, err))
        return false;
    bool numbers_ok = key->fence >= 0 && key->attempt >= 0 && key->lease_ms >= 0 && key->lease_ms <= LEASE_MS_MAX;
    if (numbers_ok && text_ok(key->owner) && key->fingerprint.size <= BYTES_MAX) return true;
    error_set(
        err, HX_INVALID, HX_APPLIED_NO, "argument_invalid",
        "gate: a negative fence or attempt, a lease of less than nothing or more than ten years, an owner that is not "
        "UTF-8, or a fingerprint above 512 MiB");
    return false;
}

static hx_status refuse_bytes(hx_error *err) {
    return error_set(err, HX_INVALID, HX_APPLIED_NO, "argument_invalid", "gate: a result above 512 MiB");
}

enum need { NEED_ANY, NEED_OPEN, NEED_IDLE };

static hx_status refuse(hx_error *err, const char *code, const char *why) {
    return error_set(err, HX_REFUSED, HX_APPLIED_NO, code, "gate: %s", why);
}

static hx_status state_check(hx_gate *gate, enum need need, hx_error *err) {
    switch (driver_of(gate)->state(gate)) {
    case GATE_LOST:
        return error_set(err, HX_UNREACHABLE, HX_APPLIED_NO, "connection_lost", "gate: the connection is lost");
    case GATE_IN_USE:
        return refuse(err, "connection_busy", "another request is under way on this connection");
    case GATE_ABORTED:
        return refuse(err, "25P02", "the transaction was aborted before the call; roll it back");
    case GATE_IDLE:
        return need == NEED_OPEN ? refuse(err, "no_transaction", "this call needs an open transaction") : HX_OK;
    case GATE_OPEN:
        return need == NEED_IDLE ? refuse(err, "in_transaction", "a transaction is open already") : HX_OK;
    }
    return HX_OK;
}

hx_status gate_idle(hx_gate *gate, hx_error *err) {
    return state_check(gate, NEED_IDLE, err);
}

/* May the database be asked? */
static hx_status ready(hx_gate *gate, enum need need, hx_error *err) {
    hx_status st = state_check(gate, need, err);
    if (st != HX_OK || gate->version_checked) return st;
    st = gate->driver->check_version(gate, err);
    gate->version_checked = st == HX_OK;
    return st;
}

/* ---- transactions */

hx_status hx_gate_begin(hx_gate *gate, hx_error *err) {
    hx_error spare;
    if (!err) err = &spare;
    hx_status st = state_check(gate, NEED_IDLE, err);
    if (st == HX_OK) st = gate->driver->begin(gate, err);
    return st == HX_OK ? error_ok(err) : st;
}

hx_status hx_gate_commit(hx_gate *gate, hx_error *err) {
    hx_error spare;
    if (!err) err = &spare;
    hx_status st = state_check(gate, NEED_OPEN, err);
    if (st == HX_OK) st = gate->driver->commit(gate, err);
    return st == HX_OK ? error_ok(err) : st;
}

void hx_gate_rollback(hx_gate *gate) {
    driver_of(gate)->rollback(gate);
}

/* ---- keys */

static hx_status admit(hx_gate *gate, const hx_gate_key *key, i64 lease_ms, enum need need, hx_gate_reply *out,
                       hx_error *err) {
    hx_error spare_err;
    hx_gate_reply spare_out;
    bool keep = out;
    if (!err) err = &spare_err;
    if (!out) out = &spare_out;
    *out = (hx_gate_reply){0};
    if (!key_ok(key, err)) return HX_INVALID;
    hx_status st = ready(gate, need, err);
    if (st != HX_OK) return st;
    out->memory = arena_new();
    st = gate->driver->admit(gate, key, lease_ms, out, err);
    if (!keep || st != HX_OK) hx_gate_reply_free(out);
    return st == HX_OK ? error_ok(err) : st;
}

hx_status hx_gate_claim(hx_gate *gate, const hx_gate_key *key, hx_gate_reply *out, hx_error *err) {
    return admit(gate, key, 0, NEED_OPEN, out, err);
}

static i64 lease_of(const hx_gate_key *key) {
    return key && key->lease_ms ? key->lease_ms : LEASE_MS;
}

hx_status hx_gate_reserve(hx_gate *gate, const hx_gate_key *key, hx_gate_reply *out, hx_error *err) {
    return admit(gate, key, lease_of(key), NEED_ANY, out, err);
}

hx_status gate_begin_admit(hx_gate *gate, const hx_gate_key *key, bool two_phase, hx_gate_reply *out, hx_error *err) {
    i64 lease_ms = two_phase ? lease_of(key) : 0;
    if (!driver_of(gate)->begin_admit) {
        hx_status st = hx_gate_begin(gate, err);
        return st == HX_OK ? admit(gate, key, lease_ms, NEED_OPEN, out, err) : st;
    }
    *out = (hx_gate_reply){0};
    if (!key_ok(key, err)) return HX_INVALID;
    hx_status st = ready(gate, NEED_IDLE, err);
    if (st != HX_OK) return st;
    out->memory = arena_new();
    st = gate->driver->begin_admit(gate, key, lease_ms, out, err);
    if (st != HX_OK) hx_gate_reply_free(out);
    return st;
}

hx_status gate_end_duplicate(hx_gate *gate, const hx_gate_key *key, bool keep, hx_gate_reply *out, hx_error *err) {
    if (driver_of(gate)->end_duplicate) return gate->driver->end_duplicate(gate, key, keep, out, err);
    if (keep) return hx_gate_commit(gate, err);
    hx_gate_rollback(gate);
    return HX_OK;
}

static hx_status settle_check(hx_gate *gate, const hx_gate_key *key, const hx_gate_outcome *outcome, hx_error *err) {
    if (!key_ok(key, err)) return HX_INVALID;
    if (!text_ok(outcome->content_type) || !text_ok(outcome->effect_id))
        return error_set(err, HX_INVALID, HX_APPLIED_NO, "argument_invalid",
                         "gate: a content type or effect id that is not UTF-8");
    if (outcome->result.size > BYTES_MAX) return refuse_bytes(err);
    return ready(gate, NEED_ANY, err);
}

hx_status hx_gate_commit_outcome(hx_gate *gate, const hx_gate_key *key, const hx_gate_outcome *outcome,
                                 hx_gate_answer *out, hx_error *err) {
    static const hx_gate_outcome nothing;
    hx_error spare_err;
    hx_gate_answer spare_out;
    if (!err) err = &spare_err;
    if (!out) out = &spare_out;
    if (!outcome) outcome = &nothing;
    *out = HX_GATE_NONE;
    hx_status st = settle_check(gate, key, outcome, err);
    if (st == HX_OK) st = gate->driver->settle(gate, key, outcome, out, err);
    return st == HX_OK ? error_ok(err) : st;
}

hx_status gate_settle_commit(hx_gate *gate, const hx_gate_key *key, const hx_gate_outcome *outcome, hx_error *err) {
    if (driver_of(gate)->settle_commit) {
        hx_status st = settle_check(gate, key, outcome, err);
        return st == HX_OK ? gate->driver->settle_commit(gate, key, outcome, err) : st;
    }
    hx_status st = hx_gate_commit_outcome(gate, key, outcome, NULL, err);
    return st == HX_OK ? hx_gate_commit(gate, err) : st;
}

hx_status hx_gate_release(hx_gate *gate, const hx_gate_key *key, hx_gate_answer *out, hx_error *err) {
    hx_error spare_err;
    hx_gate_answer spare_out;
    if (!err) err = &spare_err;
    if (!out) out = &spare_out;
    *out = HX_GATE_NONE;
    if (!key_ok(key, err)) return HX_INVALID;
    hx_status st = ready(gate, NEED_ANY, err);
    if (st == HX_OK) st = gate->driver->release(gate, key, out, err);
    return st == HX_OK ? error_ok(err) : st;
}

/* result NULL: only ask. */
static hx_status step(hx_gate *gate, const hx_gate_key *key, const char *name, const hx_bytes *result,
                      hx_gate_reply *out, hx_error *err) {
    hx_error spare_err;
    hx_gate_reply spare_out;
    bool keep = out;
    if (!err) err = &spare_err;
    if (!out) out = &spare_out;
    *out = (hx_gate_reply){0};
    if (!key_ok(key, err) || !name_ok("step name", name, STEP_MAX_CHARS, err)) return HX_INVALID;
    if (result && result->size > BYTES_MAX) return refuse_bytes(err);
    hx_status st = ready(gate, NEED_OPEN, err);
    if (st != HX_OK) return st;
    out->memory = arena_new();
    st = gate->driver->step(gate, key, name, result, out, err);
    if (!keep || st != HX_OK) hx_gate_reply_free(out);
    return st == HX_OK ? error_ok(err) : st;
}

hx_status hx_gate_step(hx_gate *gate, const hx_gate_key *key, const char *name, hx_bytes result, hx_gate_reply *out,
                       hx_error *err) {
    return step(gate, key, name, &result, out, err);
}

hx_status hx_gate_step_ask(hx_gate *gate, const hx_gate_key *key, const char *name, hx_gate_reply *out, hx_error *err) {
    return step(gate, key, name, NULL, out, err);
}

hx_status hx_gate_expect(i64 rows, hx_gate_answer *out, hx_error *err) {
    hx_error spare_err;
    hx_gate_answer spare_out;
    if (!err) err = &spare_err;
    if (!out) out = &spare_out;
    *out = HX_GATE_NONE;
    if (rows < 0)
        return error_set(err, HX_INVALID, HX_APPLIED_NO, "argument_invalid", "gate: expect needs a row count, not %lld",
                         (long long)rows);
    if (rows > 1)
        return error_set(err, HX_CONFLICT, HX_APPLIED_NO, "HX004",
                         "gate: the conditional update hit %lld rows, at most 1 was expected; roll back",
                         (long long)rows);
    *out = rows ? HX_GATE_APPLIED : HX_GATE_ALREADY;
    return error_ok(err);
}

/* ---- looking after */

hx_status hx_gate_stranded(hx_gate *gate, i64 older_than_ms, hx_gate_orphans *out, hx_error *err) {
    hx_error spare;
    return gate_stranded(gate, older_than_ms, false, out, err ? err : &spare);
}

hx_status gate_stranded(hx_gate *gate, i64 older_than_ms, bool lapsed, hx_gate_orphans *out, hx_error *err) {
    *out = (hx_gate_orphans){0};
    if (older_than_ms < 0)
        return error_set(err, HX_INVALID, HX_APPLIED_NO, "argument_invalid", "gate: stranded needs an age");
    hx_status st = ready(gate, NEED_ANY, err);
    if (st != HX_OK) return st;
    struct arena *a = arena_new();
    struct buf list = {0};
    st = gate->driver->stranded(gate, older_than_ms, lapsed, a, &list, err);
    out->memory = a;
    out->count = list.len / sizeof(hx_gate_orphan);
    out->list = (const hx_gate_orphan *)(const void *)arena_adopt(a, &list).p;
    if (st == HX_OK) return error_ok(err);
    hx_gate_orphans_free(out);
    return st;
}

void hx_gate_orphans_free(hx_gate_orphans *orphans) {
    if (!orphans) return;
    arena_free(orphans->memory);
    *orphans = (hx_gate_orphans){0};
}

hx_status hx_gate_sweep(hx_gate *gate, int batch, i64 *dropped, hx_error *err) {
    hx_error spare_err;
    i64 spare_dropped;
    if (!err) err = &spare_err;
    if (!dropped) dropped = &spare_dropped;
    *dropped = 0;
    if (batch < 0) return error_set(err, HX_INVALID, HX_APPLIED_NO, "argument_invalid", "gate: a negative batch");
    hx_status st = ready(gate, NEED_ANY, err);
    if (st == HX_OK) st = gate->driver->sweep(gate, batch ? batch : SWEEP_BATCH, dropped, err);
    return st == HX_OK ? error_ok(err) : st;
}
