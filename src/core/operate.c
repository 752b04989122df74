/* Operators' decisions: held and dead work, revoked leases, replays, erasing, forgetting. A decision kills the token of the last
 * lease, who decided knew more than who worked; revoking does not, it decides nothing about the work. */
#include "core/core_priv.h"

static bool waits_for_somebody(const struct message *m) {
    return m->place == PLACE_HELD || m->place == PLACE_DEAD;
}

static slice history_of(const struct message *m) {
    return slice_of(m->history.p, m->history.len);
}

static struct history_item decision_item(const struct core *c, enum decision what, slice by, slice note) {
    return (struct history_item){
        .kind = HISTORY_DECISION, .at_ms = c->now.wall_ms, .what = (u8)what, .consumer = by, .reason = note};
}

/* An unsettled message stays so: all its attempts again, unless it is to be dead. */
static struct record decide_record(const struct core *c, const struct message *m, enum decision what, slice by,
                                   slice note, char brief[BRIEF_REASON_BYTES]) {
    struct record r = {.type = REC_DECIDE, .about = message_no(c, m)};
    r.decide = (struct rec_decide){
        .ref = message_ref(c, m),
        .at_ms = c->now.wall_ms,
        .what = (u8)what,
        .state = STATE_PENDING,
        .by = brief_name(c, by),
        .note = brief_reason(c, note, brief),
    };
    return r;
}

/* Itself, its part of the history, and the next lease. */
static u64 decide_room(const struct core *c, const struct record *r) {
    u64 size = record_size(r);
    return c->sink->cost(size) + history_room(size) + lease_room(c);
}

/* ---- resolve */

static enum resolve_verdict resolve_settled(struct core *c, const struct seen *seen, const struct resolve_in *in,
                                            const struct audit_in *audit, enum state state) {
    const struct message *m = message_at(c, seen->at.message);
    if (in->result.n > RESULT_BYTES_MAX) return RESOLVE_TOO_LARGE;
    struct record r;
    settle_record(c, m, seen->message, state, &r);
    struct history *h = scratch_history(c, history_of(m));
    struct history_item item = decision_item(c, in->as, audit->who, audit->why);
    history_add(h, &item);
    if (state != STATE_CANCELLED) r.settle.ended = ENDED_DECIDED;
    r.settle.reason = state == STATE_CANCELLED ? SL("duplicate") : audit->why;
    r.settle.content_type = in->content_type;
    r.settle.result = in->result;
    r.settle.http = in->http;
    r.settle.history = slice_of(h->p, h->len);
    u64 said = in->result.n + in->http.n + in->content_type.n + r.settle.reason.n + history_item_size(&item);
    u64 beyond = said > RESULT_ALWAYS_FITS ? said - RESULT_ALWAYS_FITS : 0;
    if (!audit_deed(c, audit, m->queue, &r.settle.ref, r.settle.key, beyond)) return RESOLVE_FULL;
    settle_emit(c, &r);
    return RESOLVE_OK;
}

static enum resolve_verdict resolve_unsettled(struct core *c, const struct seen *seen, const struct resolve_in *in,
                                              const struct audit_in *audit, enum state *state) {
    const struct message *m = message_at(c, seen->at.message);
    char brief[BRIEF_REASON_BYTES];
    struct record r = decide_record(c, m, in->as, audit->who, audit->why, brief);
    if (in->as == DECISION_NEW) r.decide.group = seen->message->group;
    if (in->as == DECISION_DEAD) {
        u8 doubt = message_doubt(m) ? TRAIT_DOUBT : 0;
        r.decide.state = STATE_DEAD;
        r.decide.traits = lease_end_traits(c, m, STATE_DEAD, doubt, &r.decide.taken);
        r.decide.failures = m->failures;
        r.decide.unknowns = m->unknowns;
        r.decide.crashes = m->crashes;
    }
    if (!audit_deed(c, audit, m->queue, &r.decide.ref, seen->message->key, decide_room(c, &r))) return RESOLVE_FULL;
    core_emit(c, &r);
    *state = (enum state)r.decide.state;
    return RESOLVE_OK;
}

static enum resolve_verdict resolvable(const struct message *m, enum decision as) {
    bool about_conflict = as == DECISION_NEW || as == DECISION_DUPLICATE;
    if (!waits_for_somebody(m)) return RESOLVE_NOT_HELD;
    if (m->refused) return RESOLVE_REFUSED;
    if (m->taken) return RESOLVE_TAKEN;
    if (about_conflict && !m->conflict) return RESOLVE_NOT_CONFLICT;
    return !about_conflict && m->conflict ? RESOLVE_CONFLICT : RESOLVE_OK;
}

enum resolve_verdict core_resolve(struct core *c, struct core_now now, const struct seen *seen,
                                  const struct resolve_in *in, const struct audit_in *audit, enum state *state) {
    c->now = now;
    if (seen->settle) {
        *state = (enum state)seen->settle->state;
        return RESOLVE_SETTLED;
    }
    const struct message *m = message_at(c, seen->at.message);
    *state = message_state(m);
    enum resolve_verdict v = resolvable(m, in->as);
    if (v != RESOLVE_OK) return v;
    switch (in->as) {
    case DECISION_DONE:
        *state = STATE_DONE;
        break;
    case DECISION_REJECTED:
        *state = STATE_REJECTED;
        break;
    case DECISION_DUPLICATE:
        *state = STATE_CANCELLED;
        break;
    default:
        return resolve_unsettled(c, seen, in, audit, state);
    }
    return resolve_settled(c, seen, in, audit, *state);
}

/* ---- revoke */

enum revoke_verdict core_revoke(struct core *c, struct core_now now, const struct seen *seen, slice reason,
                                const struct audit_in *audit, enum state *state) {
    c->now = now;
    if (seen->settle) {
        *state = (enum state)seen->settle->state;
        return REVOKE_NOT_LEASED;
    }
    const struct message *m = message_at(c, seen->at.message);
    *state = message_state(m);
    if (m->place != PLACE_LEASED) return REVOKE_NOT_LEASED;
    struct record r = lease_over_record(c, m, ENDED_REVOKED);
    char brief[BRIEF_REASON_BYTES];
    r.ret.reason = brief_reason(c, reason, brief);
    /* Itself, the reason once more in the history, and the next lease. */
    u64 room = c->sink->cost(record_size(&r)) + history_room(r.ret.reason.n) + lease_room(c);
    if (!audit_deed(c, audit, m->queue, &r.ret.ref, seen->message->key, room)) return REVOKE_FULL;
    core_emit(c, &r);
    *state = (enum state)r.ret.state;
    return REVOKE_OK;
}

/* ---- redrive */

/* Records of version 1 do not say that there is doubt; the attempts that are kept do. Where the trait is written they agree. */
static bool doubt_in_history(slice history) {
    bool doubt = false;
    struct history_item item;
    for (u32 at = 0; history_next(history, &at, &item);) {
        if (item.kind == HISTORY_DECISION && item.what == DECISION_RETRY) doubt = false;
        if (item.kind != HISTORY_ATTEMPT) continue;
        if (item.ended == ENDED_EXPIRED || item.failure_class == CLASS_UNKNOWN) doubt = true;
        if (item.failure_class == CLASS_ABSENT) doubt = false;
    }
    return doubt;
}

enum redrive_verdict core_redrive_foresee(const struct core *c, const struct ref *ref, bool *doubt, u32 *count) {
    *doubt = false;
    *count = 0;
    u32 no = core_message_find(c, ref->hash, ref->seq);
    const struct message *m = no == MESSAGE_NONE ? NULL : message_at(c, no);
    if (!m || m->place != PLACE_DEAD) return REDRIVE_NO_OP;
    if (m->taken) return REDRIVE_TAKEN;
    if (m->refused) return REDRIVE_REFUSED;
    *doubt = message_doubt(m) || doubt_in_history(history_of(m));
    *count = 1 + (m->takes && is_group_head(c, no) ? group_waiting(c, no) : 0);
    return REDRIVE_OK;
}

enum redrive_verdict core_redrive(struct core *c, struct core_now now, const struct ref *ref, slice by, slice note,
                                  u32 *count) {
    bool doubt;
    c->now = now;
    enum redrive_verdict v = core_redrive_foresee(c, ref, &doubt, count);
    if (v == REDRIVE_NO_OP) COUNT(c, queue_at(c, ref->queue), no_op);
    if (v != REDRIVE_OK) return v;
    const struct message *m = message_at(c, core_message_find(c, ref->hash, ref->seq));
    char brief[BRIEF_REASON_BYTES];
    struct record r = decide_record(c, m, DECISION_REDRIVE, by, note, brief);
    if (doubt) r.decide.traits = TRAIT_DOUBT | TRAIT_RECONCILE;
    r.decide.taken = *count - 1;
    if (!room_for_deed(c, decide_room(c, &r))) {
        *count = 0;
        return REDRIVE_FULL;
    }
    core_emit(c, &r);
    return REDRIVE_OK;
}

/* ---- replay */

bool core_payload_kept(const struct core *c, struct core_now now, const struct rec_settle *settle) {
    const struct rules *rules = &queue_at(c, settle->ref.queue)->rules;
    return settle->kept.is && now.run_ms - settle->settled_run_ms < rules->keep_payload_ms;
}

/* The outcome stays with the message until that has one of its own. Of its attempts those that led to it: the first, where
 * those of replays that were cancelled are listed behind them. */
static void put_former(struct core *c, const struct rec_settle *s, struct buf *out) {
    struct history *h = scratch_history(c, SL(""));
    struct history_item item;
    u32 attempts = 0;
    for (u32 at = 0; history_next(s->history, &at, &item);) {
        if (item.kind == HISTORY_STEP) continue;
        if (item.kind == HISTORY_ATTEMPT && attempts++ >= HISTORY_ATTEMPTS_KEPT) continue;
        history_append(h, &item);
    }
    former_encode(s, slice_of(h->p, h->len), out);
    CHECK(out->len <= FORMER_BYTES_MAX);
}

static struct record again_record(struct core *c, const struct seen *seen, const struct audit_in *audit, slice former) {
    const struct rec_settle *s = seen->settle;
    struct history *h = scratch_history(c, SL(""));
    struct history_item item = decision_item(c, DECISION_REPLAY, audit->who, audit->why);
    history_add(h, &item);
    struct record r = {.type = REC_MESSAGE};
    r.message = (struct rec_message){
        .ref = {.hash = s->ref.hash, .seq = c->next_seq, .queue = s->ref.queue},
        .fingerprint = s->fingerprint,
        .first_seen_ms = c->now.wall_ms,
        .replaces = seen->at.pos,
        .replaces_seq = s->ref.seq,
        .key = s->key,
        .group = s->kept.group,
        .content_type = s->kept.content_type,
        .attrs = s->kept.attrs,
        .traceparent = s->kept.traceparent,
        .tracestate = s->kept.tracestate,
        .payload = s->kept.payload,
        .generation = s->generation + 1,
        .history = slice_of(h->p, h->len),
        .former = former,
    };
    return r;
}

enum again_verdict core_again(struct core *c, struct core_now now, const struct seen *seen,
                              const struct audit_in *audit, struct send_out *out) {
    c->now = now;
    const struct rec_settle *s = seen->settle;
    if (!s) return AGAIN_NOT_SETTLED;
    if (!core_payload_kept(c, now, s)) return AGAIN_PAYLOAD_GONE;
    if (core_memory_short(c)) return AGAIN_FULL;
    struct buf former = {0};
    put_former(c, s, &former);
    struct record r = again_record(c, seen, audit, buf_slice(&former));
    u64 room = c->sink->cost(record_size(&r)) + admission_room(c, s->key.n + r.message.history.n + former.len, 0);
    bool fits = audit_deed(c, audit, s->ref.queue, &s->ref, s->key, room);
    if (fits) core_emit(c, &r);
    buf_free(&former);
    *out = (struct send_out){.ref = r.message.ref, .first_seen_ms = now.wall_ms};
    return fits ? AGAIN_OK : AGAIN_FULL;
}

/* ---- erase and forget */

/* What people wrote goes, steps and reasons included; that there were attempts stays, and how they ended. */
static void add_bare(struct history *h, slice full) {
    struct history_item item;
    for (u32 at = 0; history_next(full, &at, &item);) {
        if (item.kind != HISTORY_ATTEMPT) continue;
        item.reason = SL("");
        history_append(h, &item);
    }
}

/* Something was said after it was erased, and written down by a build that did so. */
static bool has_words(const struct rec_settle *s) {
    struct history_item item;
    if (!slice_eq(s->reason, SL("erased"))) return true;
    for (u32 at = 0; history_next(s->history, &at, &item);) {
        if (item.kind == HISTORY_EFFECT || item.kind == HISTORY_STEP) return true;
        if (item.kind == HISTORY_ATTEMPT && item.reason.n) return true;
    }
    return false;
}

enum erase_verdict core_erase(struct core *c, struct core_now now, const struct seen *seen,
                              const struct audit_in *audit) {
    c->now = now;
    struct record r = {.type = REC_SETTLE};
    slice former = SL("");
    const struct message *m = seen->settle ? NULL : message_at(c, seen->at.message);
    if (m && m->place == PLACE_LEASED) return ERASE_LEASED;
    if (m) {
        cancel_record(c, m, seen->message, &r, &former);
    } else {
        CHECK(seen->settle);
        if (seen->settle->erased && !has_words(seen->settle)) return ERASE_ALREADY;
        r.settle = *seen->settle;
        r.settle.carried = true;
        r.settle.from_pos = seen->at.pos;
    }
    struct history *h = scratch_history(c, SL(""));
    struct history_item item = decision_item(c, DECISION_ERASED, audit->who, audit->why);
    add_bare(h, former);
    add_bare(h, m ? history_of(m) : seen->settle->history);
    history_add(h, &item);
    r.settle.erased = r.settle.erasing = true;
    r.settle.kept = (struct kept){0};
    r.settle.result = r.settle.content_type = r.settle.http = SL("");
    r.settle.reason = SL("erased");
    r.settle.history = slice_of(h->p, h->len);
    if (!audit_deed(c, audit, r.settle.ref.queue, &r.settle.ref, r.settle.key, c->sink->cost(record_size(&r))))
        return ERASE_FULL;
    core_emit(c, &r);
    return ERASE_OK;
}

u64 core_erase_upto(const struct core *c) {
    return c->erase_upto;
}

enum forget_verdict core_forget(struct core *c, struct core_now now, const struct seen *seen,
                                const struct audit_in *audit) {
    c->now = now;
    CHECK(seen->settle || seen->message);
    if (seen->message && message_at(c, seen->at.message)->place == PLACE_LEASED) return FORGET_LEASED;
    struct record r = {.type = REC_FORGET, .about = seen->at.message};
    r.forget.ref = seen->settle ? seen->settle->ref : seen->message->ref;
    r.forget.from_pos = seen->settle ? seen->at.pos : 0;
    slice key = seen->settle ? seen->settle->key : seen->message->key;
    if (!audit_deed(c, audit, r.forget.ref.queue, &r.forget.ref, key, c->sink->cost(record_size(&r))))
        return FORGET_FULL;
    core_emit(c, &r);
    return FORGET_OK;
}
