#include "config/explain.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/json.h"
#include "config/call_template.h"
#include "config/config_priv.h"
#include "config/path.h"
#include "config/template.h"

static void line(struct buf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);

static void line(struct buf *b, const char *fmt, ...) {
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    buf_printf(b, "  %s\n", text);
}

static void heading(struct buf *b, const char *text) {
    buf_printf(b, "\n%s\n", text);
}

static const char *owner_of(const struct queue_config *q) {
    return q->dead_owner.n ? q->dead_owner.p : "nobody (no dead.owner is set)";
}

static void promise(const struct queue_config *q, struct buf *b) {
    static const char *const words[] = {
        [SEMANTICS_EXACTLY_ONCE] =
            "Exactly once: a key is admitted once, and its outcome is remembered for whoever asks again.",
        [SEMANTICS_AT_LEAST_ONCE] =
            "At least once: every arrival is its own message; nothing is deduplicated, nothing dropped.",
        [SEMANTICS_AT_MOST_ONCE] = "At most once: handing a message out settles it. What a worker drops is lost.",
    };
    buf_printf(b, "Queue %s", q->name.p);
    if (q->preset) buf_printf(b, ", class %s", config_class_text((enum preset)q->preset));
    if (q->file.n)
        buf_printf(b, " (%s:%u)\n", q->file.p, q->at.line);
    else
        buf_lit(b, "\n");
    line(b, "%s", words[q->rules.semantics]);
    if (slice_starts(q->name, SL(GATE_PREFIX)))
        line(b, "These are the keys of the proxy %s (/gate/%s/...): nobody sends or receives here.",
             q->name.p + strlen(GATE_PREFIX), q->name.p + strlen(GATE_PREFIX));
    if (q->loss_ppm) line(b, "Accepted loss: %g %% of the messages.", (double)q->loss_ppm / 10000);
}

/* ---- repeats */

static void key_words(const struct queue_config *q, struct buf *b) {
    if (!q->key) {
        line(b, "The key is what the sender gives in Idempotency-Key%s.",
             q->rules.semantics == SEMANTICS_EXACTLY_ONCE ? "; without one it is refused (400)" : ", if it gives one");
        return;
    }
    slice text = template_text(q->key);
    line(b, "The key is made from the message: %.*s", (int)text.n, text.p);
    line(b, "A message that lacks one of these fields is refused: it would have no identity.");
}

/* The fields of {"only":[...]} or {"ignore":[...]}, as "a, b.c". */
static void fingerprint_fields(slice rule, bool *only, struct buf *fields) {
    struct json j;
    slice name, field;
    json_init(&j, rule);
    if (json_object(&j)) {
        while (json_member(&j, &name) && json_array(&j)) {
            *only = slice_eq(name, SL("only"));
            while (json_element(&j) && json_string(&j, &field))
                buf_printf(fields, "%s%.*s", fields->len ? ", " : "", (int)field.n, field.p);
        }
    }
    json_free(&j);
    buf_char(fields, '\0');
}

static void same_words(const struct queue_config *q, struct buf *b) {
    slice rule = q->fingerprint_json;
    if (rule.n == 0 || slice_eq(rule, SL("\"bytes\""))) {
        line(b, "Two payloads are the same if their bytes are.");
    } else if (slice_eq(rule, SL("\"json\""))) {
        line(b, "Two payloads are the same if they say the same as JSON: order, spaces and spelling do not matter.");
    } else {
        bool only = false;
        struct buf fields = {0};
        fingerprint_fields(rule, &only, &fields);
        line(b, "Two payloads are the same if they agree in %s %s.", only ? "these fields:" : "all fields but",
             fields.p);
        buf_free(&fields);
    }
}

static void conflict_words(const struct queue_config *q, struct buf *b) {
    static const char *const words[] = {
        [ON_CONFLICT_REJECT] = "is refused (422 key_reused) with the changed fields",
        [ON_CONFLICT_HOLD] = "is held (202) until a person decides",
        [ON_CONFLICT_NEW] = "is admitted as work of its own, under key~<fingerprint>",
    };
    if (slice_eq(q->fingerprint_json, SL("\"none\""))) {
        line(b, "Payloads are not compared: a known key is a repeat whatever it carries.");
        return;
    }
    same_words(q, b);
    line(b, "A known key with another payload %s.", words[q->rules.on_conflict]);
}

static void window_words(const struct queue_config *q, struct buf *b) {
    const struct rules *r = &q->rules;
    i64 replay = config_longest_replay_ms(q);
    if (r->window_max_ms)
        line(b, "A settled key is remembered for twice the oldest replay seen, from %s to %s.",
             value_duration_text(r->window_min_ms).p, value_duration_text(r->window_max_ms).p);
    else if (r->window_ms == WINDOW_FOREVER)
        line(b, "A settled key is remembered forever.");
    else
        line(b, "A settled key is remembered for %s; a repeat after that is new work.",
             value_duration_text(r->window_ms).p);
    if (replay)
        line(b, "Upstreams repeat themselves up to %s late: that much is normal.", value_duration_text(replay).p);
}

static void repeats(const struct queue_config *q, struct buf *b) {
    heading(b, "What repeats look like");
    key_words(q, b);
    if (q->rules.semantics == SEMANTICS_AT_LEAST_ONCE) {
        line(b, "A repeated key is a second message. That is what this queue is for.");
        return;
    }
    line(b, "A repeat is answered with the state or the result of the first one, and is not done again.");
    conflict_words(q, b);
    window_words(q, b);
    if (q->log_duplicates) line(b, "Each repeat is a line in the log, with its key (log_duplicates).");
}

/* ---- calls */

/* "401, 403 and 5xx"; nothing: "none". */
static const char *statuses_text(const struct statuses *s, struct buf *b) {
    buf_reset(b);
    for (u32 i = 0; i < s->count; i++)
        buf_printf(b, s->at[i] < STATUS_LEAST ? "%s%uxx" : "%s%u", i ? ", " : "", s->at[i]);
    buf_slice_add(b, s->count ? SL("") : SL("none"));
    buf_char(b, '\0');
    return b->p;
}

static void send_words(const struct deliver_config *d, struct buf *b) {
    slice url = call_template_text(d->url);
    line(b, "Each message goes to %.*s (%s), with its effect key as Idempotency-Key.", (int)url.n, url.p, d->method.p);
    if (d->approve) line(b, "Before the first call it is held: a person resolves it as retry, or it is not sent.");
    if (d->rate_per_min)
        line(b, "At most %u calls are under way at a time, and %u are made in a minute, look-ups among them.",
             d->concurrency, d->rate_per_min);
    else
        line(b, "At most %u calls are under way at a time.", d->concurrency);
    line(b, "%s%s", d->sign.count ? "They are signed (webhook-signature). " : "",
         d->allow_private ? "Addresses of private networks and of this machine may be called."
                          : "An address of a private network or of this machine is refused.");
}

static void answer_words(const struct queue_config *q, struct buf *b) {
    const struct deliver_config *d = q->deliver;
    struct buf list = {0};
    line(b, "2xx: done; the answer is the result, the first %s of it.", value_size_text(d->keep_body).p);
    line(b, "%s: transient.", statuses_text(&d->said.transient, &list));
    line(b, "%s: rejected.", statuses_text(&d->said.rejected, &list));
    line(b, "%s: poison. A single status beats its hundred.", statuses_text(&d->said.poison, &list));
    line(b, "Refused before anything was sent: transient. Cut, or not answered within %s: unknown.",
         value_duration_text(d->timeout_ms).p);
    if (q->idempotency != IDEMPOTENCY_KEY)
        line(b, "So are 408 and 5xx but 503: the downstream does not deduplicate, and it may have been done.");
    line(b, "When %g %% of %u calls or more within %s fail, nothing is sent but a probe, the first after %s.",
         (double)d->circuit.ratio_ppm / 10000, d->circuit.of, value_duration_text(d->circuit.within_ms).p,
         value_duration_text(d->circuit.open_ms).p);
    buf_free(&list);
}

static void lookup_words(const struct queue_config *q, struct buf *b) {
    const struct reconcile_config *r = q->reconcile;
    struct buf found = {0}, absent = {0};
    slice url = call_template_text(r->url), field = r->exists ? r->exists->text : SL("");
    line(b, "What is unknown is looked up: GET %.*s", (int)url.n, url.p);
    line(b, "  %s after the attempt's end, then every %s, %u times at most; then it is held.",
         value_duration_text(r->after_ms).p, value_duration_text(r->every_ms).p, r->attempts);
    line(b, "%s%s%.*s: found. It is settled with that answer, and nothing is sent.",
         statuses_text(&r->found_said, &found), r->exists ? " with the field " : "", (int)field.n, field.p);
    line(b, "%s%s: absent. %s", statuses_text(&r->absent_said, &absent),
         r->exists ? ", or found without that field" : "",
         q->idempotency == IDEMPOTENCY_KEY
             ? "It is done again, under the same key."
             : "It is held: the downstream does not deduplicate (downstream.idempotency).");
    if (q->idempotency == IDEMPOTENCY_KEY && q->remembers_ms)
        line(b, "  If its first attempt is older than %s it is held: the downstream may have forgotten the key.",
             value_duration_text(q->remembers_ms).p);
    line(b, "Any other answer is none: it is asked again.");
    buf_free(&found);
    buf_free(&absent);
}

static void call_words(const struct queue_config *q, struct buf *b) {
    if (!q->deliver && !q->reconcile) return;
    heading(b, "What the broker calls");
    if (q->deliver) send_words(q->deliver, b);
    if (q->deliver) answer_words(q, b);
    if (q->reconcile) lookup_words(q, b);
}

/* ---- failures */

static const char *many(u32 n) {
    return n == 1 ? "" : "s";
}

static void unknown_words(const struct queue_config *q, struct buf *b) {
    const struct rules *r = &q->rules;
    if (q->reconcile) {
        line(b, "Unknown: the broker looks it up, as above; nothing is done before the answer.");
        return;
    }
    switch ((enum on_unknown)r->on_unknown) {
    case ON_UNKNOWN_RETRY:
        line(
            b,
            "Unknown (the worker cannot tell, or its lease of %s ran out): done again; dead after %u unknown outcome%s "
            "or %u",
            value_duration_text(r->lease_ms).p, r->unknown_attempts, many(r->unknown_attempts), r->crash_attempts);
        line(b, "  crash%s. %s", r->crash_attempts == 1 ? "" : "es",
             q->idempotency == IDEMPOTENCY_KEY ? "The downstream deduplicates by the effect key, so this is safe."
             : q->idempotency == IDEMPOTENCY_NONE
                 ? "The downstream does not deduplicate: THE EFFECT MAY HAPPEN TWICE."
                 : "This is safe only if the downstream deduplicates by the effect key.");
        break;
    case ON_UNKNOWN_RECONCILE:
        line(b,
             "Unknown (the worker cannot tell, or its lease of %s ran out): the next delivery says reconcile and asks "
             "what",
             value_duration_text(r->lease_ms).p);
        line(b, "  became of it; nothing is done before the answer. Held after %u unknown outcome%s or %u crash%s.",
             r->unknown_attempts, many(r->unknown_attempts), r->crash_attempts, r->crash_attempts == 1 ? "" : "es");
        break;
    case ON_UNKNOWN_HOLD:
    case ON_UNKNOWN_COUNT:
        line(b, "Unknown (the worker cannot tell, or its lease of %s ran out): held at once, a person decides.",
             value_duration_text(r->lease_ms).p);
    }
}

/* Messages that cannot have a key or a group are refused as those of a wrong shape are. */
static bool refuses(const struct queue_config *q) {
    return q->schema || q->key || q->order_by;
}

static void refused_words(const struct queue_config *q, struct buf *b) {
    if (!refuses(q)) return;
    line(b, "Wrong shape (%s): not admitted (422). A copy goes to the dead lane, up to %u of them or %s.",
         q->schema ? "schema" : "a field of its template is missing", q->rules.refused_kept,
         value_size_text(q->rules.refused_bytes).p);
}

static void failures(const struct queue_config *q, struct buf *b) {
    const struct rules *r = &q->rules;
    heading(b, "What happens at a failure");
    refused_words(q, b);
    if (r->semantics == SEMANTICS_AT_MOST_ONCE) {
        line(b, "Nothing: it was settled when it was handed out.");
        return;
    }
    if (r->transient_attempts == 1)
        line(b, "Transient: not tried again. Dead at once.");
    else
        line(b, "Transient: tried %u times in all, waiting %s and then twice as long each time, up to %s. Then dead.",
             r->transient_attempts, value_duration_text(r->backoff_ms).p, value_duration_text(r->backoff_max_ms).p);
    unknown_words(q, b);
    line(b, "Poison: dead at once, with the reason.");
    line(b, "Rejected: settled; the refusal is the outcome, and repeats get it too.");
}

static void order_words(const struct queue_config *q, struct buf *b) {
    static const char *const words[] = {
        [ON_DEAD_BLOCK] = "waits until somebody decides about it",
        [ON_DEAD_SKIP] = "goes on without it",
        [ON_DEAD_GROUP] = "dies with it and comes back with it",
    };
    heading(b, "Order");
    if (q->order_by) {
        slice text = template_text(q->order_by);
        line(b, "Messages with the same %.*s are delivered one after the other.", (int)text.n, text.p);
    } else {
        line(b, "Only messages with the same Hapax-Group header are delivered one after the other.");
    }
    if (q->rules.semantics != SEMANTICS_AT_MOST_ONCE)
        line(b, "When the first of a group is dead, the group %s.", words[q->rules.on_dead]);
}

static void limit_words(const struct queue_config *q, struct buf *b) {
    const struct rules *r = &q->rules;
    heading(b, "When it gets too much");
    line(b, "A payload above %s is refused (413).", value_size_text(q->payload_max).p);
    if (r->limit_pending) line(b, "With %llu messages unsettled, sends get 429.", (unsigned long long)r->limit_pending);
    if (r->limit_bytes) line(b, "With %s of payloads unsettled, sends get 429.", value_size_text(r->limit_bytes).p);
    if (r->limit_lag_ms)
        line(b, "When the oldest ready message is %s old, sends get 429.", value_duration_text(r->limit_lag_ms).p);
    if (r->limit_pending || r->limit_bytes || r->limit_lag_ms)
        line(b, "They flow again below 80 %% of that. A 429 promises that nothing was applied.");
    else
        line(b, "No limit holds producers back; only the disk does.");
}

/* ---- the operator */

static void alert_words(const struct queue_config *q, struct buf *b) {
    if (q->dead_alert_count)
        line(b, "- %llu dead within %s: look for a common reason before any redrive.",
             (unsigned long long)q->dead_alert_count, value_duration_text(q->dead_alert_within_ms).p);
    if (q->lag_alert_ms)
        line(b,
             "- Lag above %s%s%s: are workers running, is a head failing? A second time within the hour: roll back the "
             "last deploy.",
             value_duration_text(q->lag_alert_ms).p, q->lag_for_ms ? " for " : "",
             q->lag_for_ms ? value_duration_text(q->lag_for_ms).p : "");
}

static bool watched(const struct queue_config *q, enum alert a) {
    return !(q->alerts.off >> a & 1);
}

/* What is watched without being asked for. */
static void watch_words(const struct queue_config *q, bool holds, struct buf *b) {
    const struct queue_alerts *a = &q->alerts;
    bool dedups = q->rules.semantics == SEMANTICS_EXACTLY_ONCE;
    if (dedups && watched(q, ALERT_DUPLICATES_HIGH))
        line(b, "- %g %% of 100 messages or more in 15m are repeats: an upstream misbehaves.",
             (double)a->duplicates_high_ppm / 10000);
    if (dedups && q->rules.window_ms != WINDOW_FOREVER && watched(q, ALERT_LATE_REPLAYS))
        line(b, "- %u repeats within 1h past half the window, or one past all of it: lengthen the window.",
             a->late_replays);
    if (watched(q, ALERT_OLDEST_UNSETTLED))
        line(b, "- Started %s ago and not settled: is its worker stuck?",
             value_duration_text(a->oldest_unsettled_ms).p);
    if (holds && watched(q, ALERT_HELD_WAITING))
        line(b, "- Held for %s: somebody has to decide.", value_duration_text(a->held_waiting_ms).p);
    if (watched(q, ALERT_GROUP_BLOCKED))
        line(b, "- A group blocked for %s by its first message: decide about that one.",
             value_duration_text(a->group_blocked_ms).p);
}

static void operator_words(const struct queue_config *q, struct buf *b) {
    const struct rules *r = &q->rules;
    const char *name = q->name.p;
    heading(b, "What to do");
    if (r->semantics != SEMANTICS_AT_MOST_ONCE || refuses(q))
        line(b, "Owner of dead and held messages: %s.", owner_of(q));
    if (r->semantics != SEMANTICS_AT_MOST_ONCE) {
        line(b,
             "- Dead: `hapax dead list %s`, mend the cause, `hapax dead redrive %s --dry-run`, then without it. Keys, "
             "steps and",
             name, name);
        line(b, "  history stay; what was settled meanwhile is not run again.");
    }
    bool holds =
        r->on_unknown != ON_UNKNOWN_RETRY || r->on_conflict == ON_CONFLICT_HOLD || (q->deliver && q->deliver->approve);
    if (holds && r->semantics != SEMANTICS_AT_MOST_ONCE) {
        line(b, "- Held: `hapax held list %s`. Look the effect up downstream by its effect key, then", name);
        line(b, "  `hapax held resolve` as done, rejected, retry or dead%s.",
             r->on_conflict == ON_CONFLICT_HOLD ? "; a conflict as new or duplicate" : "");
    }
    if (q->deliver)
        line(b,
             "- Pushing: `hapax push status` says how its target does; `hapax push pause %s` stops it, `resume` goes "
             "on.",
             name);
    alert_words(q, b);
    if (r->semantics != SEMANTICS_AT_MOST_ONCE) watch_words(q, holds, b);
    line(b, "- \"Why was this ignored?\": `hapax key show %s KEY` lists every arrival of the key.", name);
    if (r->keep_payload_ms)
        line(b, "- A drill: `hapax replay %s --since %s --dry-run` should find nothing new.", name,
             value_duration_text(r->keep_payload_ms).p);
    else
        line(b, "- Settled payloads are not kept (keep_payload): a replay needs the sender's own copy.");
}

void explain_queue(const struct queue_config *q, struct buf *out) {
    promise(q, out);
    repeats(q, out);
    call_words(q, out);
    failures(q, out);
    order_words(q, out);
    limit_words(q, out);
    operator_words(q, out);
}
