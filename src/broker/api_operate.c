/* What operators do to a message or a key: cancel, revoke, resolve, replay, erase, forget. The core decides whether it may be done,
 * and writes it into the audit trail with the deed. */
#include "broker/api.h"
#include "broker/broker_priv.h"
#include "broker/call.h"
#include "broker/jobs.h"
#include "broker/lookup.h"
#include "broker/named.h"
#include "broker/operator.h"
#include "broker/render.h"
#include "broker/scope.h"
#include "config/config.h"

static void reply_state(struct call *c, enum state state, const struct seen *s, bool restored, bool again) {
    struct buf *body = &c->b->scratch->body;
    buf_reset(body);
    buf_char(body, '{');
    json_put_member(body, "state", slice_str(state_text(state)));
    put_id(body, "id", seen_ref(s));
    put_shown_key(c->b, body, s->at.queue, seen_key(s));
    if (restored) json_put_member_bool(body, "restored", true);
    if (again) json_put_member_bool(body, "duplicate", true);
    buf_char(body, '}');
    reply_json(c, 200, buf_slice(body));
}

static bool fail_state(struct call *c, enum problem p, enum state state, const char *what) {
    fail(c, p, "%s; its state is %s", what, state_text(state));
    json_put_member(&c->failure.more, "state", slice_str(state_text(state)));
    return false;
}

/* The one message of a key. Where keys repeat the path must say which. */
static struct seen *seen_of_operated_key(struct call *c) {
    u16 queue;
    struct broker *b = c->b;
    struct seen *s = seen_of_key(c, c->arg[1]);
    if (!s || !core_queue_find(b->core, c->arg[0], &queue)) return s;
    if (core_queue_rules(b->core, queue)->semantics != SEMANTICS_AT_LEAST_ONCE) return s;
    struct core_cursor cursor = {0};
    struct found f;
    u32 count = 0;
    while (core_find(b->core, seen_ref(s)->hash, &cursor, &f)) {
        struct seen *other = f.queue == queue ? lookup_found(b, b->other, &f) : NULL;
        if (other && slice_eq(seen_key(other), seen_key(s))) count++;
    }
    if (count <= 1) return s;
    return fail(c, PROBLEM_key_repeats, "keys repeat in this queue, and %u messages have this one: name one by its id",
                count),
           NULL;
}

/* ---- cancel */

/* "cancelled by NAME: WHY" */
static void put_deed(const struct deed *d, const char *done, struct buf *reason) {
    buf_slice_add(reason, slice_str(done));
    if (d->by.n) buf_printf(reason, " by %.*s", (int)d->by.n, d->by.p);
    if (d->note.n) buf_printf(reason, ": %.*s", (int)d->note.n, d->note.p);
}

static bool cancel(struct call *c, const struct deed *d, struct seen *s) {
    struct buf reason = {0};
    put_deed(d, "cancelled", &reason);
    struct audit_in audit = deed_named(d, DEED_CANCEL, SL(""));
    deed_prepare(c, d, s);
    bool ok = core_cancel(c->b->core, c->b->now, s, buf_slice(&reason), &audit) != CANCEL_FULL || deed_no_room(c);
    buf_free(&reason);
    return ok;
}

void api_cancel(struct call *c) {
    struct deed d;
    struct seen *s = deed_read(c, &d, "") ? seen_of_id(c) : NULL;
    bool again = s && s->settle && (s->settle->state == STATE_CANCELLED || s->settle->restored);
    if (s && s->settle && !again) {
        fail(c, PROBLEM_settled, "it is %s already", state_text((enum state)s->settle->state));
        json_put_member(&c->failure.more, "state", slice_str(state_text((enum state)s->settle->state)));
        s = NULL;
    } else if (s && !again) {
        s = cancel(c, &d, s) ? seen_of_id(c) : NULL; /* a replay is what it was before */
    }
    if (s)
        reply_state(c, (enum state)s->settle->state, s, s->settle->restored, again);
    else
        reply_failure(c);
    deed_free(&d);
}

/* ---- revoke */

static bool revoke(struct call *c, const struct deed *d, struct seen *s, enum state *state) {
    struct buf reason = {0};
    put_deed(d, "revoked", &reason);
    struct audit_in audit = deed_named(d, DEED_REVOKE, SL(""));
    deed_prepare(c, d, s);
    slice why = cut_text(buf_slice(&reason), REASON_BYTES_MAX);
    enum revoke_verdict v = core_revoke(c->b->core, c->b->now, s, why, &audit, state);
    buf_free(&reason);
    if (v == REVOKE_NOT_LEASED) return fail_state(c, PROBLEM_not_leased, *state, "only a lease can be revoked");
    return v == REVOKE_OK || deed_no_room(c);
}

void api_revoke(struct call *c) {
    struct deed d;
    enum state state = STATE_PENDING;
    struct seen *s = deed_read(c, &d, "") ? seen_of_id(c) : NULL;
    if (s && revoke(c, &d, s, &state))
        reply_state(c, state, s, false, false);
    else
        reply_failure(c);
    deed_free(&d);
}

/* ---- resolve */

static bool resolve_refused(struct call *c, enum resolve_verdict v, enum state state) {
    switch (v) {
    case RESOLVE_OK:
        return true;
    case RESOLVE_SETTLED:
        return fail_state(c, PROBLEM_settled, state, "it was settled meanwhile");
    case RESOLVE_NOT_HELD:
        return fail_state(c, PROBLEM_not_held, state, "only what is held or dead is decided");
    case RESOLVE_NOT_CONFLICT:
        return fail(c, PROBLEM_conflict_only, "new and duplicate decide a held conflict, and this is none");
    case RESOLVE_CONFLICT:
        return fail(c, PROBLEM_conflict_only, "a held conflict is decided as new or duplicate");
    case RESOLVE_REFUSED:
        return fail(c, PROBLEM_refused_copy, "it failed the schema: cancel it, or redrive it once the schema takes it");
    case RESOLVE_TAKEN:
        return fail(c, PROBLEM_group_dead, "its group's head took it along, and brings it back");
    case RESOLVE_TOO_LARGE:
        return fail(c, PROBLEM_too_large, "the result is larger than %u bytes", RESULT_BYTES_MAX);
    case RESOLVE_FULL:
        break;
    }
    return fail(c, PROBLEM_storage_full, "the disk has no room for this decision");
}

static bool parse_as(struct call *c, const struct deed *d, enum decision *as) {
    if (decision_parse(d->as, as) && *as >= DECISION_DONE && *as <= DECISION_DUPLICATE) return true;
    return fail(c, PROBLEM_param_invalid, "as must be done, rejected, retry, dead, new or duplicate");
}

static void put_as(struct buf *detail, const struct deed *d) {
    buf_char(detail, '{');
    json_put_member(detail, "as", d->as);
    buf_char(detail, '}');
}

/* In the place of the upstream's: with which status a proxy answers from then on. */
static bool say_status(struct call *c, const struct deed *d, struct resolve_in *in, struct buf *head) {
    if (d->status == 0) return true;
    if (in->as != DECISION_DONE && in->as != DECISION_REJECTED)
        return fail(c, PROBLEM_param_invalid, "status goes with done and rejected");
    if (!slice_starts(c->arg[0], SL(GATE_PREFIX)))
        return fail(c, PROBLEM_param_invalid, "status is for the keys of proxies: nobody is answered with it here");
    if (d->status < 200 || d->status > 599) return fail(c, PROBLEM_param_invalid, "status must be 200 to 599");
    buf_printf(head, "%u\r\n", (unsigned)d->status);
    if (in->content_type.n) buf_printf(head, "Content-Type: %.*s\r\n", (int)in->content_type.n, in->content_type.p);
    in->http = buf_slice(head);
    return true;
}

static bool resolve(struct call *c, const struct deed *d, enum decision as, struct seen *s, enum state *state) {
    struct broker *b = c->b;
    struct buf decoded = {0}, detail = {0}, head = {0};
    struct resolve_in in = {.as = as};
    bool ok =
        result_mean(&d->result, &decoded, &in.content_type, &in.result, &c->failure) && say_status(c, d, &in, &head);
    if (ok) {
        put_as(&detail, d);
        struct audit_in audit = deed_named(d, DEED_RESOLVE, buf_slice(&detail));
        deed_prepare(c, d, s);
        enum resolve_verdict v = core_resolve(b->core, b->now, s, &in, &audit, state);
        ok = resolve_refused(c, v, *state);
    }
    buf_free(&decoded);
    buf_free(&detail);
    buf_free(&head);
    return ok;
}

static void answer_resolve(struct call *c, struct seen *(*find)(struct call *c)) {
    struct deed d;
    enum decision as = DECISION_NONE;
    enum state state = STATE_PENDING;
    bool ok = deed_read(c, &d, "as result result_base64 content_type status") && parse_as(c, &d, &as);
    struct seen *s = ok ? find(c) : NULL;
    if (s && resolve(c, &d, as, s, &state))
        reply_state(c, state, s, false, false);
    else
        reply_failure(c);
    deed_free(&d);
}

void api_resolve(struct call *c) {
    answer_resolve(c, seen_of_id);
}

void api_resolve_key(struct call *c) {
    answer_resolve(c, seen_of_operated_key);
}

/* ---- replay */

static bool replay(struct call *c, const struct deed *d, struct seen *s, struct send_out *out) {
    struct broker *b = c->b;
    struct audit_in audit = deed_named(d, DEED_REPLAY, SL(""));
    deed_prepare(c, d, s);
    switch (core_again(b->core, b->now, s, &audit, out)) {
    case AGAIN_OK:
        return true;
    case AGAIN_NOT_SETTLED:
        return fail_state(c, PROBLEM_not_settled, seen_state(b, s), "only a settled key can run again");
    case AGAIN_PAYLOAD_GONE:
        return fail(c, PROBLEM_payload_gone, "%s",
                    s->settle->erased ? "it was erased, which is for good"
                                      : "it is kept for the queue's keep_payload after the settlement, and that is "
                                        "over: set keep_payload longer for what is settled from then on");
    case AGAIN_FULL:
        break;
    }
    return deed_no_room(c);
}

static void reply_replay(struct call *c, const struct seen *s, const struct send_out *out) {
    struct buf *body = &c->b->scratch->body;
    u32 generation = s->settle->generation + 1;
    buf_reset(body);
    buf_char(body, '{');
    put_id(body, "id", &out->ref);
    put_shown_key(c->b, body, s->at.queue, s->settle->key);
    json_put_member_i64(body, "generation", generation);
    put_effect_key_member(c->b, body, &out->ref, s->settle->key, generation);
    json_put_member(body, "state", slice_str(state_text(STATE_PENDING)));
    buf_char(body, '}');
    reply_json(c, 202, buf_slice(body));
}

void api_replay(struct call *c) {
    struct deed d;
    struct send_out out;
    struct seen *s = deed_read(c, &d, "") ? seen_of_operated_key(c) : NULL;
    if (s && replay(c, &d, s, &out))
        reply_replay(c, s, &out);
    else
        reply_failure(c);
    deed_free(&d);
}

/* ---- erase and forget */

/* Both concern a key. Where keys repeat (at_least_once) that is all messages that have it, and only the first 32 are found by
 * it: the queue is walked through, a part at a time, and each message's key is read. Whoever asks to be erased is erased. */

static bool fail_leased(struct call *c) {
    return fail(c, PROBLEM_leased, "somebody is working on it; ask again when that has ended");
}

static bool erase_one(struct call *c, const struct deed *d, struct seen *s) {
    struct audit_in audit = deed_named(d, DEED_ERASE, SL(""));
    deed_prepare(c, d, s);
    switch (core_erase(c->b->core, c->b->now, s, &audit)) {
    case ERASE_OK:
    case ERASE_ALREADY:
        return true;
    case ERASE_LEASED:
        return fail_leased(c);
    case ERASE_FULL:
        break;
    }
    return deed_no_room(c);
}

static bool forget_one(struct call *c, const struct deed *d, struct seen *s) {
    struct audit_in audit = deed_named(d, DEED_FORGET, SL(""));
    deed_prepare(c, d, s);
    switch (core_forget(c->b->core, c->b->now, s, &audit)) {
    case FORGET_OK:
        return true;
    case FORGET_LEASED:
        return fail_leased(c);
    case FORGET_FULL:
        break;
    }
    return deed_no_room(c);
}

static void reply_erased(struct call *c, u16 queue, slice key, enum state state, u32 messages) {
    struct buf *body = &c->b->scratch->body;
    buf_reset(body);
    buf_char(body, '{');
    put_shown_key(c->b, body, queue, key);
    json_put_member_bool(body, "erased", true);
    json_put_member(body, "state", slice_str(state_text(state)));
    if (messages) json_put_member_i64(body, "messages", messages);
    buf_char(body, '}');
    reply_json(c, 200, buf_slice(body));
}

/* Every message of a key. */
struct key_job {
    struct job job;
    bool erase; /* else forget */
    bool failed;
    u16 queue;
    u64 since; /* by core_queue_since */
    u32 cursor, done;
    enum state state; /* of the last one */
    struct buf key, by, note;
};

#define LOOKS_BETWEEN 64u /* entries of the index, between two looks at the clock */

static void do_one(struct key_job *j, struct seen *s) {
    struct call *c = &j->job.c;
    struct deed d = {.by = buf_slice(&j->by), .note = buf_slice(&j->note)};
    struct ref ref = *seen_ref(s);
    if (!(j->erase ? erase_one : forget_one)(c, &d, s)) {
        j->failed = true; /* the others are done all the same */
        return;
    }
    j->done++;
    s = lookup_id(c->b, c->b->lookup, ref.hash, ref.seq);
    if (s) j->state = seen_state(c->b, s);
}

static bool run_key(struct job *job, struct budget *g) {
    struct key_job *j = (struct key_job *)(void *)job;
    struct broker *b = job->c.b;
    if (core_queue_since(b->core, j->queue) != j->since) return true; /* deleted meanwhile */
    while (!budget_spent(g)) {
        struct found f;
        enum walk_verdict v = core_walk(b->core, j->queue, INT64_MIN, LOOKS_BETWEEN, &j->cursor, &f);
        if (v == WALK_END) return true;
        struct seen *s = v == WALK_FOUND ? lookup_found(b, b->lookup, &f) : NULL;
        if (s && slice_eq(seen_key(s), buf_slice(&j->key))) do_one(j, s);
    }
    return false;
}

static void answer_key(struct job *job) {
    struct key_job *j = (struct key_job *)(void *)job;
    struct call *c = &job->c;
    c->failure.applied_unknown = j->done > 0;
    if (!j->failed && j->done == 0) j->failed = !fail(c, PROBLEM_no_such_key, "no message has this key");
    if (j->failed)
        reply_failure(c);
    else if (j->erase)
        reply_erased(c, j->queue, buf_slice(&j->key), j->state, j->done);
    else
        reply_with(c->b, c->conn, 204, SL(""), SL(""), SL(""), 0);
}

static void free_key(struct job *job) {
    struct key_job *j = (struct key_job *)(void *)job;
    buf_free(&j->key);
    buf_free(&j->by);
    buf_free(&j->note);
}

static const struct job_kind key_kind = {sizeof(struct key_job), run_key, answer_key, free_key, false};

static void do_all_of_key(struct call *c, const struct deed *d, u16 queue, bool erase) {
    struct key_job j = {.job = {.kind = &key_kind}, .erase = erase, .queue = queue};
    if (!jobs_have_room(c)) return reply_failure(c);
    j.since = core_queue_since(c->b->core, queue);
    buf_slice_add(&j.key, key_meant(c, queue, c->arg[1]));
    buf_slice_add(&j.by, d->by);
    buf_slice_add(&j.note, d->note);
    job_start(c, &j.job);
}

static void erase_or_forget(struct call *c, bool erase) {
    struct deed d;
    u16 queue;
    struct seen *s = NULL;
    bool ok = deed_read(c, &d, "") && queue_of_call(c, false, &queue);
    if (ok && core_queue_rules(c->b->core, queue)->semantics == SEMANTICS_AT_LEAST_ONCE) {
        do_all_of_key(c, &d, queue, erase);
        return deed_free(&d);
    }
    ok = ok && (s = seen_of_key(c, c->arg[1])) && (erase ? erase_one : forget_one)(c, &d, s);
    s = ok && erase ? seen_of_key(c, c->arg[1]) : NULL;
    if (!ok)
        reply_failure(c);
    else if (s)
        reply_erased(c, s->at.queue, seen_key(s), seen_state(c->b, s), 0);
    else
        reply_with(c->b, c->conn, 204, SL(""), SL(""), SL(""), 0);
    deed_free(&d);
}

void api_erase(struct call *c) {
    erase_or_forget(c, true);
}

void api_forget(struct call *c) {
    erase_or_forget(c, false);
}
