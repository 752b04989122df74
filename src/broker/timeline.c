/* One list of what happened to a key. Each event is {"at","what","text",…}; `text` says it in words, for whoever shows it.
 *
 * Steps and effect ids are kept without their times: they come with the time of the hand-out they were recorded under, and say so. */
#include "base/json.h"
#include "broker/access.h"
#include "broker/answer.h"
#include "broker/broker_priv.h"
#include "broker/budget.h"
#include "broker/diff.h"
#include "broker/lookup.h"
#include "broker/operator.h"
#include "broker/render.h"
#include "broker/scope.h"
#include "broker/story.h"

#define TOLD_MAX       256u
#define STEPS_TOLD     64u
#define AUDIT_SEARCHED 1000u /* of the trail, newest first, for deeds that name the key */
#define AUDIT_US       2000u
#define AUDIT_BETWEEN  16u
#define DEEDS_TOLD     32u
#define COMPARED_HERE  (COMPARED_IN_TURN / 4) /* the page compares them once more, with what they say */

struct told {
    i64 at_ms;
    u32 from, len;
    bool deed; /* it tells of something an operator did */
};

struct timeline {
    struct broker *b;
    const struct seen *s;
    struct buf text, words; /* the events, one after the other; the words of the one being told */
    struct buf lost;        /* what is not kept: strings of a JSON array */
    struct told told[TOLD_MAX];
    u32 count, beyond;
    bool payloads; /* whoever asks may see them */
};

/* An event begins: its own members go into t->text, its words into t->words. false: there are too many. */
static bool begin(struct timeline *t, i64 at_ms, const char *what) {
    if (t->count == TOLD_MAX) {
        t->beyond++;
        return false;
    }
    t->told[t->count] = (struct told){.at_ms = at_ms, .from = (u32)t->text.len};
    buf_char(&t->text, '{');
    json_put_member_time(&t->text, "at", at_ms);
    json_put_member(&t->text, "what", slice_str(what));
    buf_reset(&t->words);
    buf_slice_add(&t->words, slice_str(what));
    return true;
}

static void end(struct timeline *t, bool deed) {
    struct told *e = &t->told[t->count++];
    json_put_member(&t->text, "text", buf_slice(&t->words));
    buf_char(&t->text, '}');
    e->len = (u32)(t->text.len - e->from);
    e->deed = deed;
}

static void put_reason(struct timeline *t, slice reason) {
    reason = answer_reason(reason, t->payloads);
    if (reason.n) json_put_member(&t->text, "reason", reason);
    put_quoted(&t->words, ": ", reason);
}

static void lose(struct timeline *t, u64 n, const char *what) {
    if (n == 0) return;
    if (t->lost.len) buf_char(&t->lost, ',');
    buf_printf(&t->lost, "\"%llu %s\"", (unsigned long long)n, what);
}

/* ---- arrivals */

static const char *arrival_words(enum arrival_kind kind) {
    switch (kind) {
    case ARRIVAL_NEW:
        return "new intent";
    case ARRIVAL_REPLAY:
        return "expected replay";
    case ARRIVAL_LATE:
        return "late replay";
    default:
        return "conflict";
    }
}

static bool begin_arrival(struct timeline *t, i64 at_ms, i64 first_ms, enum arrival_kind kind, slice request_id) {
    if (!begin(t, at_ms, "arrived")) return false;
    json_put_member(&t->text, "kind", slice_str(arrival_words(kind)));
    json_put_member_i64(&t->text, "age_ms", at_ms - first_ms);
    if (request_id.n) json_put_member(&t->text, "request_id", request_id);
    buf_printf(&t->words, ": %s", arrival_words(kind));
    put_quoted(&t->words, ", request ", request_id);
    return true;
}

/* A held conflict arrived under another's key: in which fields it differs, where that can be told. */
static void put_conflict_of(struct timeline *t, const struct rec_message *m) {
    const struct seen *s = lookup_id(t->b, t->b->other, m->origin_hash, m->origin_seq);
    if (!s) return;
    slice key = key_as_sent(t->b, s->at.queue, seen_key(s));
    json_put_member(&t->text, "conflict_with", key);
    put_quoted(&t->words, " with ", key);
    slice before = s->message                                            ? s->message->payload
                   : core_payload_kept(t->b->core, t->b->now, s->settle) ? s->settle->kept.payload
                                                                         : SL("");
    u64 left = COMPARED_HERE;
    if (before.n) put_changed(t->b, &t->text, m->ref.queue, before, m->payload, false, &left);
}

static void tell_first(struct timeline *t, const struct message_view *v) {
    const struct rec_message *m = t->s->message;
    const struct rec_settle *s = t->s->settle;
    i64 first_ms = seen_first_ms(t->s);
    if (s ? s->generation && !s->restored : m->generation != 0)
        return; /* it was replayed: a decision, and listed as one */
    bool conflict = m && v->conflict;
    if (!begin_arrival(t, first_ms, first_ms, conflict ? ARRIVAL_CONFLICT : ARRIVAL_NEW,
                       s ? s->request_id : m->request_id))
        return;
    if (conflict) put_conflict_of(t, m);
    if (m && m->refused) buf_lit(&t->words, ", refused: it failed the schema");
    if (m && m->replaces) {
        json_put_member_bool(&t->text, "known_before", true);
        buf_lit(&t->words, ", though its key was known before: past its window");
    }
    end(t, false);
}

static void tell_repeats(struct timeline *t) {
    struct arrivals a;
    i64 first_ms = seen_first_ms(t->s);
    core_arrivals_view(t->b->core, t->s, &a);
    for (u32 i = 0; i < a.count; i++) {
        const struct arrival *x = &a.last[i];
        if (!begin_arrival(t, x->at_ms, first_ms, (enum arrival_kind)x->kind, x->request_id)) return;
        buf_lit(&t->words, ", ");
        put_span(&t->words, x->at_ms - first_ms);
        buf_lit(&t->words, " after the first");
        end(t, false);
    }
    lose(t, a.total - a.count, "earlier repeats are only counted");
}

/* ---- attempts, steps, effects, decisions */

static const char *delivery_of(const struct history_item *item) {
    if (item->lookup) return delivery_text(DELIVERY_RECONCILE);
    return delivery_text(item->attempt > 1 ? DELIVERY_RETRY : DELIVERY_FIRST);
}

static void tell_hand_out(struct timeline *t, const struct history_item *item) {
    if (!begin(t, item->at_ms, "handed out")) return;
    json_put_member(&t->text, "consumer", item->consumer);
    json_put_member_i64(&t->text, "attempt", item->attempt);
    json_put_member(&t->text, "delivery", slice_str(delivery_of(item)));
    put_quoted(&t->words, " to ", item->consumer);
    buf_printf(&t->words, ", attempt %u", item->attempt);
    if (item->lookup) buf_lit(&t->words, ", to look up what became of it");
    end(t, false);
}

static const char *end_words(const struct history_item *item) {
    if (item->ended == ENDED_EXPIRED) return "lease ran out";
    if (item->ended == ENDED_REVOKED) return "lease revoked";
    return item->lookup ? "looked up" : "attempt ended";
}

static const char *lookup_answer(const struct history_item *item) {
    if (item->ended == ENDED_ACKED || item->failure_class == CLASS_REJECTED) return "found";
    return item->failure_class == CLASS_ABSENT ? "absent" : "none";
}

static void tell_end(struct timeline *t, const struct history_item *item) {
    bool settles = item->ended == ENDED_ACKED || item->failure_class == CLASS_REJECTED; /* its own event says it */
    if (item->ended == ENDED_OPEN || item->ended == ENDED_HANDED_OUT || (settles && !item->lookup)) return;
    if (!begin(t, item->ended_ms, end_words(item))) return;
    json_put_member_i64(&t->text, "attempt", item->attempt);
    json_put_member(&t->text, "ended", slice_str(ended_text((enum ended)item->ended)));
    if (item->lookup && (item->ended == ENDED_NACKED || settles)) {
        json_put_member(&t->text, "answer", slice_str(lookup_answer(item)));
        buf_printf(&t->words, ": %s", lookup_answer(item));
    } else if (item->ended == ENDED_NACKED || item->ended == ENDED_CANCELLED) {
        bool nacked = item->ended == ENDED_NACKED;
        buf_reset(&t->words);
        buf_printf(&t->words, "attempt %u %s", item->attempt, nacked ? "failed: " : "ended: its message was cancelled");
        if (nacked) buf_slice_add(&t->words, slice_str(class_text((enum failure_class)item->failure_class)));
    } else {
        buf_printf(&t->words, ", attempt %u", item->attempt);
    }
    if (item->failure_class != CLASS_NONE)
        json_put_member(&t->text, "class", slice_str(class_text((enum failure_class)item->failure_class)));
    put_reason(t, item->reason);
    end(t, item->ended == ENDED_REVOKED || item->ended == ENDED_CANCELLED);
}

static void tell_unsaid_when(struct timeline *t, i64 at_ms, const char *what, const char *member, slice name,
                             u16 attempt) {
    if (!begin(t, at_ms, what)) return;
    json_put_member(&t->text, member, name);
    if (attempt) json_put_member_i64(&t->text, "attempt", attempt);
    json_put_member_bool(&t->text, "time_known", false);
    put_quoted(&t->words, ": ", name);
    end(t, false);
}

static const char *decision_words(enum decision d) {
    switch (d) {
    case DECISION_REDRIVE:
        return "redriven";
    case DECISION_REPLAY:
        return "replayed";
    case DECISION_REFUSED:
        return "refused";
    case DECISION_ERASED:
        return "erased";
    case DECISION_CANCELLED:
        return "replay cancelled";
    case DECISION_HELD:
        return "held";
    default:
        return "resolved";
    }
}

static void tell_decision(struct timeline *t, const struct history_item *item) {
    const char *what = decision_words((enum decision)item->what);
    bool resolved = item->what >= DECISION_DONE && item->what <= DECISION_DUPLICATE;
    if (!begin(t, item->at_ms, what)) return;
    if (resolved) {
        json_put_member(&t->text, "as", slice_str(decision_text((enum decision)item->what)));
        buf_printf(&t->words, " as %s", decision_text((enum decision)item->what));
    }
    if (item->consumer.n) json_put_member(&t->text, "by", item->consumer);
    if (item->reason.n) json_put_member(&t->text, "why", item->reason);
    put_quoted(&t->words, " by ", item->consumer);
    put_quoted(&t->words, ": ", item->reason);
    end(t, item->what != DECISION_REFUSED && item->what != DECISION_HELD);
}

/* harm: a second effect is one too many. */
static void tell_history(struct timeline *t, slice history, i64 from_ms, bool harm) {
    struct history_item item;
    u32 steps = 0, effects = 0, pass = 0, missing = 0;
    u16 attempt = 0;
    for (u32 at = 0; history_next(history, &at, &item);) steps += item.kind == HISTORY_STEP;
    if (steps > STEPS_TOLD) pass = steps - STEPS_TOLD;
    lose(t, pass, "earlier steps are listed under steps alone");
    for (u32 at = 0; history_next(history, &at, &item);) {
        if (item.kind == HISTORY_ATTEMPT) {
            if (item.attempt > attempt + 1)
                missing += item.attempt - attempt - 1u; /* the first is kept, and the last ones */
            from_ms = item.at_ms;
            attempt = item.attempt;
            tell_hand_out(t, &item);
            tell_end(t, &item);
        } else if (item.kind == HISTORY_STEP) {
            if (pass == 0) tell_unsaid_when(t, from_ms, "step", "name", item.name, attempt);
            pass -= pass > 0;
        } else if (item.kind == HISTORY_EFFECT) {
            bool harmful = effects++ && harm;
            tell_unsaid_when(t, from_ms, harmful ? "harmful duplicate" : "effect", "effect_id", item.name, 0);
        } else {
            tell_decision(t, &item);
        }
    }
    lose(t, missing, "earlier attempts are not kept");
}

/* ---- outcomes */

static void tell_settled(struct timeline *t, const struct rec_settle *s) {
    struct history_item last;
    if (!begin(t, s->settled_ms, "settled")) return;
    json_put_member(&t->text, "state", slice_str(state_text((enum state)s->state)));
    buf_printf(&t->words, ": %s", state_text((enum state)s->state));
    if (s->by_token && history_last_attempt(s->history, &last) && last.consumer.n) {
        json_put_member(&t->text, "consumer", last.consumer);
        put_quoted(&t->words, " by ", last.consumer);
    }
    put_reason(t, s->reason);
    end(t, s->state == STATE_CANCELLED || s->ended == ENDED_DECIDED);
}

/* Of a replay: what it was before. */
static void tell_former(struct timeline *t, const struct rec_message *m) {
    struct rec_settle was;
    if (m->former.n == 0 || !former_decode(m->former, &was)) return;
    if (was.generation == 0 && begin_arrival(t, was.first_seen_ms, was.first_seen_ms, ARRIVAL_NEW, was.request_id))
        end(t, false);
    tell_history(t, was.history, was.first_seen_ms, true);
    tell_settled(t, &was);
}

/* ---- the audit trail */

/* Deeds that the records tell of themselves carry the same moment. */
static bool told_already(const struct timeline *t, i64 at_ms) {
    for (u32 i = 0; i < t->count; i++)
        if (t->told[i].deed && t->told[i].at_ms == at_ms) return true;
    return false;
}

static void tell_deed(struct timeline *t, const struct rec_audit *a) {
    if (told_already(t, a->at_ms) || !begin(t, a->at_ms, "operator")) return;
    json_put_member(&t->text, "deed", a->what);
    json_put_member(&t->text, "by", a->who);
    if (a->why.n) json_put_member(&t->text, "why", a->why);
    buf_reset(&t->words);
    buf_slice_add(&t->words, a->what);
    put_quoted(&t->words, " by ", a->who);
    put_quoted(&t->words, ": ", a->why);
    end(t, true);
}

/* What is older is of another queue, which had its number. */
static bool ends_former(const struct rec_audit *a) {
    return slice_eq(a->what, deed_text(DEED_QUEUE_DELETE));
}

static bool names_it(const struct timeline *t, const struct rec_audit *a, slice id) {
    slice key = seen_key(t->s);
    return key.n ? slice_eq(a->key, key) : slice_eq(a->id, id);
}

static void search_audit(struct timeline *t) {
    char text[ID_TEXT + 1];
    struct buf id = {.p = text, .cap = sizeof text};
    struct budget g = budget_of(t->b, AUDIT_US);
    struct audit_at at = {0};
    u32 searched = 0, found = 0;
    bool more;
    core_id_text(seen_ref(t->s), &id);
    while ((more = core_audit_prev(t->b->core, at.number, &at)) && searched < AUDIT_SEARCHED && found < DEEDS_TOLD) {
        if (searched++ % AUDIT_BETWEEN == 0 && budget_spent(&g)) break;
        const struct record *r = lookup_record(t->b, t->b->other, at.pos, at.size_hint);
        CHECK(r->type == REC_AUDIT);
        if (r->audit.queue != t->s->at.queue) continue;
        if (ends_former(&r->audit)) return;
        if (!names_it(t, &r->audit, buf_slice(&id))) continue;
        tell_deed(t, &r->audit);
        found++;
    }
    if (!more) return;
    if (t->lost.len) buf_char(&t->lost, ',');
    buf_printf(&t->lost, "\"of the audit trail the last %u entries were searched\"", searched);
}

/* ---- in order */

/* What has the same time stays as it was told. Mostly it is in order already. */
static void sort(struct timeline *t) {
    for (u32 i = 1; i < t->count; i++) {
        struct told e = t->told[i];
        u32 k = i;
        for (; k > 0 && t->told[k - 1].at_ms > e.at_ms; k--) t->told[k] = t->told[k - 1];
        t->told[k] = e;
    }
}

static void put_events(const struct timeline *t, struct buf *b) {
    json_put_name(b, "timeline");
    buf_char(b, '[');
    for (u32 i = 0; i < t->count; i++) {
        if (i) buf_char(b, ',');
        buf_slice_add(b, slice_of(t->text.p + t->told[i].from, t->told[i].len));
    }
    buf_char(b, ']');
    if (t->lost.len == 0) return;
    json_put_name(b, "not_kept");
    buf_char(b, '[');
    buf_slice_add(b, buf_slice(&t->lost));
    buf_char(b, ']');
}

void put_timeline(struct broker *br, struct buf *b, const struct seen *s, const struct message_view *v) {
    struct timeline *t = mem_zalloc(sizeof *t);
    t->b = br;
    t->s = s;
    t->payloads = shows_payload(br, core_queue_name(br->core, s->at.queue));
    tell_first(t, v);
    if (s->message) tell_former(t, s->message);
    tell_history(t, s->settle ? s->settle->history : v->history, seen_first_ms(s), !(s->settle && s->settle->restored));
    if (s->settle) tell_settled(t, s->settle); /* before repeats of the same millisecond, which it answered */
    tell_repeats(t);
    search_audit(t);
    lose(t, t->beyond, "further events are not listed");
    sort(t);
    put_events(t, b);
    buf_free(&t->text);
    buf_free(&t->words);
    buf_free(&t->lost);
    mem_free(t);
}
