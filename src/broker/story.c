#include "broker/story.h"

#include "base/json.h"
#include "broker/access.h"
#include "broker/answer.h"
#include "broker/broker_priv.h"
#include "broker/lookup.h"
#include "broker/target.h"
#include "broker/why.h"

void put_when(struct buf *b, i64 unix_ms) {
    char text[RFC3339_BYTES];
    rfc3339_text(text, unix_ms);
    buf_printf(b, "%.10s %.8s UTC", text, text + 11);
}

void put_span(struct buf *b, i64 ms) {
    static const struct {
        i64 ms, most;
        const char *unit;
    } units[] = {
        {1, 2000, "ms"}, {1000, 120, "s"}, {60000, 120, "min"}, {3600000, 48, "h"}, {86400000, INT64_MAX, "d"}};
    u32 i = 0;
    if (ms < 0) ms = 0;
    while (ms / units[i].ms >= units[i].most) i++;
    buf_printf(b, "%lld %s", (long long)(ms / units[i].ms), units[i].unit);
}

void put_quoted(struct buf *b, const char *before, slice text) {
    if (text.n == 0) return;
    buf_slice_add(b, slice_str(before));
    buf_slice_add(b, text);
}

u32 count_effects(slice history) {
    struct history_item item;
    u32 n = 0;
    for (u32 at = 0; history_next(history, &at, &item);) n += item.kind == HISTORY_EFFECT;
    return n;
}

/* ---- the sentence */

struct telling {
    struct broker *b;
    const struct seen *s;
    const struct message_view *v;
    struct queue_info q;
    struct arrivals arrivals;
    slice history;
    bool payloads; /* whoever asks may see them */
    struct buf *out;
};

static u32 generation_of(const struct telling *t) {
    if (t->s->settle) return t->s->settle->restored ? 0 : t->s->settle->generation;
    return t->v->generation;
}

static void put_beginning(const struct telling *t) {
    const struct rec_message *m = t->s->message;
    u32 generation = generation_of(t);
    if (m && m->refused)
        buf_lit(t->out, "Failed the schema on ");
    else if (m && t->v->conflict)
        buf_lit(t->out, "Came under a key that was known with another payload on ");
    else if (generation)
        buf_printf(t->out, "Run again on purpose, as generation %u, on ", generation);
    else if (m && m->replaces)
        buf_lit(t->out, "Accepted again, for its key was known before but past its window, on ");
    else
        buf_slice_add(t->out,
                      t->q.rules.semantics == SEMANTICS_AT_LEAST_ONCE ? SL("Accepted on ") : SL("Accepted once on "));
    put_when(t->out, seen_first_ms(t->s));
}

static void put_outcome(const struct telling *t) {
    const struct rec_settle *s = t->s->settle;
    if (s->ended == ENDED_HANDED_OUT)
        buf_lit(t->out, " and handed out, which is all this queue promises, on ");
    else
        buf_printf(t->out, " and %s on ", state_text((enum state)s->state));
    put_when(t->out, s->settled_ms);
    if (!s->erased) put_quoted(t->out, ": ", answer_reason(s->reason, t->payloads));
    if (s->restored) buf_lit(t->out, "; a replay since was cancelled");
    if (s->erased) buf_lit(t->out, "; erased since");
}

static void put_last_failure(const struct telling *t) {
    struct history_item last;
    if (!history_last_attempt(t->v->history, &last) || last.ended == ENDED_OPEN) return;
    if (last.ended == ENDED_NACKED)
        buf_printf(t->out, " after attempt %u ended %s", last.attempt,
                   class_text((enum failure_class)last.failure_class));
    else
        buf_printf(t->out, " after the lease of attempt %u %s", last.attempt,
                   last.ended == ENDED_REVOKED ? "was revoked" : "ran out");
    put_quoted(t->out, ": ", answer_reason(last.reason, t->payloads));
}

/* Where the broker delivers it, or looks it up: what keeps it from that. NULL: nothing. */
static const char *kept_back(const struct telling *t) {
    const struct target *target = target_of(t->b, t->q.queue);
    struct target_view v = {0};
    if (target) target_look(target, t->b->time.mono_ms, &v);
    return v.paused ? "paused" : v.wait_ms ? "not to be called yet" : v.down_ms ? "down" : NULL;
}

/* By its id, for its key would have to be read first. Whoever asks why a message does not move wants to go there. */
static void put_ahead(const struct telling *t) {
    const struct core *c = t->b->core;
    u32 no = core_message_find(c, t->v->ref.hash, t->v->ref.seq);
    u32 ahead = no == MESSAGE_NONE ? MESSAGE_NONE : core_group_ahead(c, no);
    struct message_view v;
    if (ahead == MESSAGE_NONE) return buf_lit(t->out, "; it waits for others of its group");
    core_message_view(c, t->b->now, ahead, &v);
    buf_lit(t->out, "; it waits behind message ");
    core_id_text(&v.ref, t->out);
    buf_printf(t->out, " of its group, which is %s", state_text(v.state));
}

static void put_waiting(const struct telling *t) {
    const char *kept = kept_back(t);
    if (t->v->delayed) {
        buf_lit(t->out, "; it waits until ");
        put_when(t->out, wall_of_delay(t->b, t->v->due_ms));
    } else if (t->v->behind) {
        put_ahead(t);
    } else if (t->q.paused) {
        buf_lit(t->out, "; it waits because its queue is paused");
    } else if (kept) {
        buf_printf(t->out, "; it waits to be %s, and its target is %s", t->v->reconcile ? "looked up" : "delivered",
                   kept);
    } else {
        buf_slice_add(t->out, t->v->reconcile ? SL("; it waits to be looked up") : SL("; it waits to be handed out"));
    }
    put_last_failure(t);
}

static void put_leased(const struct telling *t) {
    struct history_item last;
    if (!history_last_attempt(t->v->history, &last)) return;
    buf_lit(t->out, "; ");
    buf_slice_add(t->out, last.consumer.n ? last.consumer : SL("a consumer without a name"));
    buf_slice_add(t->out, t->v->lookup ? SL(" looks up what became of it since ") : SL(" has it since "));
    put_when(t->out, last.at_ms);
    buf_printf(t->out, ", attempt %u, for another ", last.attempt);
    put_span(t->out, t->v->lease_left_ms);
}

static void put_standing(const struct telling *t) {
    switch (t->v->state) {
    case STATE_LEASED:
        put_leased(t);
        break;
    case STATE_HELD:
    case STATE_DEAD:
        if (t->v->taken) {
            buf_lit(t->out, "; dead with the head of its group");
            break;
        }
        buf_printf(t->out, "; %s: ", t->v->state == STATE_HELD ? "held for somebody to decide" : "dead");
        why_text(t->v, t->payloads, t->out);
        break;
    default:
        put_waiting(t);
    }
    if (t->s->message->former.n) buf_lit(t->out, "; the outcome before it stands until it has one of its own");
}

/* When the last repeat came, against its settlement and window. */
static void put_last_repeat(const struct telling *t) {
    const struct rec_settle *s = t->s->settle;
    const struct arrival *last = NULL;
    for (u32 i = 0; i < t->arrivals.count; i++)
        if (t->arrivals.last[i].kind != ARRIVAL_CONFLICT) last = &t->arrivals.last[i];
    if (!last) return;
    bool after = s && last->at_ms >= s->settled_ms;
    buf_lit(t->out, "; the last came ");
    put_span(t->out, last->at_ms - (after ? s->settled_ms : seen_first_ms(t->s)));
    if (!after) {
        buf_slice_add(t->out, s ? SL(" after the first, before it was settled") : SL(" after the first"));
        return;
    }
    i64 left = core_key_left_ms(t->b->core, t->b->now, s);
    buf_lit(t->out, " after it settled, ");
    buf_slice_add(t->out, last->kind == ARRIVAL_LATE ? SL("late in its window") : SL("inside its window"));
    if (left == INT64_MAX) {
        buf_lit(t->out, ", which has no end");
    } else {
        buf_lit(t->out, " of ");
        buf_duration(t->out, left + t->b->now.run_ms - s->settled_run_ms);
    }
}

static void put_repeats(const struct telling *t) {
    u64 repeats = t->arrivals.duplicates, conflicts = t->arrivals.total - repeats;
    if (repeats) {
        buf_printf(t->out, "; %llu repeat%s since %s ", (unsigned long long)repeats, repeats == 1 ? "" : "s",
                   repeats == 1 ? "was" : "were");
        buf_slice_add(t->out, t->s->settle ? SL("answered with its outcome") : SL("told how it stands"));
        put_last_repeat(t);
    }
    if (conflicts)
        buf_printf(t->out, "; %llu more came with another payload and %s not taken for it",
                   (unsigned long long)conflicts, conflicts == 1 ? "was" : "were");
    bool alone = t->q.rules.semantics == SEMANTICS_AT_LEAST_ONCE || (t->s->message && t->s->message->refused);
    if (t->arrivals.total == 0 && !alone && generation_of(t) == 0) buf_lit(t->out, "; it came once");
    buf_char(t->out, '.');
}

static void put_harm(const struct telling *t) {
    struct history_item item;
    u32 n = 0;
    if (count_effects(t->history) < 2 || (t->s->settle && t->s->settle->restored)) return;
    buf_lit(t->out, " Harmful duplicate: it took effect more than once, as ");
    for (u32 at = 0; history_next(t->history, &at, &item);) {
        if (item.kind != HISTORY_EFFECT) continue;
        if (n++) buf_lit(t->out, ", ");
        buf_slice_add(t->out, item.name);
    }
    buf_char(t->out, '.');
}

static void put_why(struct telling *t) {
    put_beginning(t);
    if (t->s->settle)
        put_outcome(t);
    else
        put_standing(t);
    put_repeats(t);
    put_harm(t);
}

void put_story(struct broker *br, struct buf *b, const struct seen *s, const struct message_view *v) {
    struct buf words = {0};
    struct telling t = {.b = br, .s = s, .v = v, .history = s->settle ? s->settle->history : v->history, .out = &words};
    core_queue_info(br->core, br->now, s->at.queue, &t.q);
    t.payloads = shows_payload(br, t.q.name);
    core_arrivals_view(br->core, s, &t.arrivals);
    put_why(&t);
    json_put_member(b, "why", buf_slice(&words));
    buf_free(&words);
    put_timeline(br, b, s, v);
}
