#include "broker/admit.h"

#include "broker/alerts.h"
#include "broker/attrs.h"
#include "broker/broker_priv.h"
#include "broker/call.h"
#include "broker/diff.h"
#include "broker/lookup.h"
#include "broker/parse.h"
#include "broker/queue_rules.h"
#include "broker/render.h"
#include "broker/room.h"
#include "broker/scope.h"
#include "broker/series.h"
#include "broker/tenants.h"
#include "broker/watch.h"
#include "config/fingerprint.h"
#include "config/schema.h"
#include "config/template.h"

#define RELIEF_STEPS  6u /* a minute */
#define RELIEF_MS_MAX 30000

/* ---- what the queue's rules make of it */

/* One message being looked at. */
struct candidate {
    struct broker *b;
    const struct queue_config *rules;
    struct send_in *in;
    slice scope;  /* whose its key is, where that matters */
    bool again;   /* it is a copy of what was refused before: no second copy */
    bool foresee; /* and it is only asked what would become of it */
    bool made;    /* key and fingerprint are what they are: no rule makes them */
    bool viewed;  /* the scratch's view is of its payload */
    bool matched; /* and the other one of the payload that is stored under its key */
    struct foreknown known;
    struct admission *a;
    struct failure *f;
};

bool admit_copy(struct broker *b, const struct send_in *said, slice scope, slice key, slice why, struct ref *copy) {
    struct send_in in = *said;
    struct buf *scoped = &b->scratch->scoped;
    in.key = key;
    if (queue_rules_of(b, in.queue)->scoped && (scope_key(scoped, scope, key) || scope_key(scoped, scope, SL(""))))
        in.key = buf_slice(scoped); /* whose it will be when it is let in after all */
    in.fingerprint = core_fingerprint(b->core, in.payload);
    room_prepare(b, in.payload.n + in.attrs.n);
    return core_refuse(b->core, b->now, &in, cut_text(why, REASON_BYTES_MAX), copy) != REFUSE_BEYOND;
}

/* Up to what was found: a reason is shown to those, too, who may not see payloads. */
static slice without_value(const char *why) {
    const char *found = strstr(why, SCHEMA_FOUND);
    return found ? slice_of(why, (size_t)(found - why)) : slice_str(why);
}

/* Not admitted; but whoever looks into the dead lane finds it, with the reason. */
static bool refuse(const struct candidate *k, const char *why) {
    failure_set(k->f, PROBLEM_schema, "%s", why);
    slice key = k->rules->key ? SL("") : k->in->key; /* a rule makes it anew, of what it says then */
    if (!k->again) k->a->copied = admit_copy(k->b, k->in, k->scope, key, without_value(why), &k->a->copy);
    return false;
}

static bool refuse_unmade(const struct candidate *k, const char *what, const struct errbuf *why) {
    struct buf text = {0};
    buf_printf(&text, "no %s can be made of it: %s", what, why->text);
    buf_char(&text, '\0');
    refuse(k, text.p);
    buf_free(&text);
    return false;
}

/* Before anything else is asked of the message: what its key leads to is far away, and comes near meanwhile. */
static bool make_key(struct candidate *k, struct errbuf *why) {
    struct buf *store = &k->b->scratch->key;
    buf_reset(store);
    if (template_eval(k->rules->key, &k->b->scratch->view, store, why) != TEMPLATE_OK) return false;
    k->known.key = buf_slice(store);
    k->known.queue = k->in->queue;
    k->known.hash = core_hash(k->b->core, k->in->queue, k->known.key);
    core_near(k->b->core, k->known.hash);
    return true;
}

static bool take_key(const struct candidate *k) {
    slice key = k->known.key, given = k->in->key;
    k->in->key = key;
    if (given.n == 0 || slice_eq(given, key)) return true;
    failure_set(k->f, PROBLEM_key_mismatch, "this queue makes the key of the message, '%.*s'; the sender says '%.*s'",
                (int)key.n, key.p, (int)given.n, given.p);
    return false;
}

static bool make_group(const struct candidate *k) {
    struct errbuf why;
    struct buf *store = &k->b->scratch->group;
    buf_reset(store);
    if (template_eval(k->rules->order_by, &k->b->scratch->view, store, &why) != TEMPLATE_OK)
        return refuse_unmade(k, "group", &why);
    k->in->group = buf_slice(store);
    return true;
}

/* Keyed apart from the index: an answer shows fingerprints, and they must tell nothing about its hashes. */
static u64 fingerprint_of(const struct candidate *k, struct payload_view *v) {
    struct siphash_key key;
    if (!k->rules || !k->rules->fingerprint) return core_fingerprint(k->b->core, v->payload);
    memcpy(&key, k->b->options.secret + sizeof key, sizeof key);
    return fingerprint_eval(k->rules->fingerprint, v, &key);
}

static bool look_at(struct candidate *k, header_lookup *header, void *header_ctx) {
    const struct queue_config *q = k->rules;
    struct send_in *in = k->in;
    struct errbuf why, unmade;
    if (in->payload.n > q->payload_max)
        return failure_set(k->f, PROBLEM_too_large, "the payload has %zu bytes, the limit of this queue is %llu",
                           in->payload.n, (unsigned long long)q->payload_max);
    if (k->known.derived && k->known.queue == in->queue) return take_key(k);
    payload_view_init(&k->b->scratch->view, in->payload, in->content_type, header, header_ctx);
    k->viewed = true;
    bool keyed = !q->key || make_key(k, &unmade);
    if (q->schema && !schema_check(q->schema, &k->b->scratch->view, &why)) return refuse(k, why.text);
    if (!keyed) return refuse_unmade(k, "key", &unmade);
    if (q->key && !take_key(k)) return false;
    if (q->order_by && !make_group(k)) return false;
    if (q->fingerprint) in->fingerprint = fingerprint_of(k, &k->b->scratch->view);
    return true;
}

static bool put_in_scope(const struct candidate *k) {
    struct buf *store = &k->b->scratch->scoped;
    if (!scope_key(store, k->scope, k->in->key))
        return failure_set(k->f, PROBLEM_key_invalid,
                           "with the name of its sender in front it has %zu bytes, and %u are the most", store->len,
                           KEY_BYTES_MAX);
    k->in->key = buf_slice(store);
    return true;
}

static bool lacks_key(const struct send_in *in, const struct queue_config *q) {
    return in->key.n == 0 && (!q || q->rules.semantics == SEMANTICS_EXACTLY_ONCE);
}

/* A queue whose rules say something about it. */
static bool pass_rules(struct candidate *k, header_lookup *header, void *header_ctx) {
    const struct queue_rules *rules = queue_rules_of(k->b, k->in->queue);
    const struct config *file = config_in_force(k->b);
    k->rules = rules->config;
    if (rules->undeclared && !k->again)
        return failure_set(k->f, PROBLEM_no_such_queue,
                           "%.*s does not declare it; what it still holds can be received and settled",
                           (int)file->file.n, file->file.p);
    if (rules->unreadable)
        return failure_set(
            k->f, PROBLEM_rules_unreadable,
            "what it holds can be received and settled; it takes messages again once it is given rules anew");
    return k->made || !k->rules || look_at(k, header, header_ctx);
}

slice said_header(void *ctx, slice name) {
    const struct send_in *in = ctx;
    static const char prefix[] = "hapax-attr-";
    if (slice_eq(name, SL("content-type"))) return in->content_type;
    if (slice_eq(name, SL("hapax-group"))) return in->group;
    if (slice_eq(name, SL("hapax-request-id"))) return in->request_id;
    if (slice_eq(name, SL("traceparent"))) return in->traceparent;
    if (slice_eq(name, SL("tracestate"))) return in->tracestate;
    if (!slice_starts(name, slice_str(prefix))) return (slice){0};
    slice attr = slice_of(name.p + sizeof prefix - 1, name.n - (sizeof prefix - 1)), known, value;
    for (size_t at = 0; attrs_next(in->attrs, &at, &known, &value);)
        if (slice_eq(known, attr)) return value;
    return (slice){0};
}

/* ---- what the core makes of it */

static bool payload_before(struct broker *b, const struct seen *s, slice *out) {
    if (!s->message && !core_payload_kept(b->core, b->now, s->settle)) return false;
    *out = s->message ? s->message->payload : s->settle->kept.payload;
    return true;
}

#define REPRINT_BYTES 65536u /* below, a payload is read as fast as found */

/* Of a payload that is there, by the present rules. A large one takes longer than all the rest of a request, and its sender, once wrong,
 * is wrong again and again. */
static u64 print_again(struct candidate *k, const struct seen *s, slice payload) {
    struct broker *b = k->b;
    struct reprint *known = &b->scratch->reprints[seen_ref(s)->seq % REPRINTS];
    u32 version = rules_version(b);
    if (known->version == version && known->seq == seen_ref(s)->seq) return known->print;
    payload_view_init(&b->scratch->other_view, payload, SL(""), NULL, NULL);
    k->matched = true;
    u64 print = fingerprint_of(k, &b->scratch->other_view);
    if (payload.n >= REPRINT_BYTES) *known = (struct reprint){seen_ref(s)->seq, print, version};
    return print;
}

/* The fingerprint that is stored may have been made under former rules. Before a repeat is taken for a conflict because of
 * that: the same bytes are the same payload under any rule, and a payload that is still there is looked at by the present
 * one. */
static void agree_with(struct candidate *k, const struct seen *s) {
    struct broker *b = k->b;
    u64 stored = seen_fingerprint(s);
    slice before;
    if (stored == k->in->fingerprint) return;
    bool same = stored == core_fingerprint(b->core, k->in->payload);
    if (!same && payload_before(b, s, &before)) same = print_again(k, s, before) == k->in->fingerprint;
    if (same) k->in->fingerprint = stored;
}

static void conflict_details(const struct candidate *k, const struct admission *a) {
    struct broker *b = k->b;
    struct failure *f = k->f;
    struct payload_view *was = &b->scratch->other_view, *is = &b->scratch->view;
    slice before;
    failure_set(f, PROBLEM_key_reused, "this key came first with another payload; that one stands");
    buf_reset(&f->more);
    put_id(&f->more, "id", &a->out.ref);
    json_put_member_time(&f->more, "first_seen", a->out.first_seen_ms);
    if (!payload_before(b, a->seen, &before)) return;
    if (!k->viewed) payload_view_init(is, k->in->payload, SL(""), NULL, NULL);
    if (!k->matched) payload_view_init(was, before, SL(""), NULL, NULL);
    put_changed_views(b, &f->more, k->in->queue, was, is, false, &f->compare_left);
}

/* Another payload under a known key, in a queue that does not simply reject it: the arrival gets a key of its own,
 * key~<fingerprint>, under which it may be known already. */
static void admit_under_own_key(struct broker *b, const struct send_in *in, struct admission *a) {
    a->original = a->out;
    a->key = slice_of(a->original.other_key, a->original.other_key_len);
    struct seen *own = lookup_key(b, b->other, in->queue, a->original.other_hash, a->key);
    a->verdict = core_send_conflict(b->core, b->now, in, &a->original, own, &a->out);
    if (a->verdict == SEND_CONFLICT)
        a->out = a->original; /* the sender is told about the original */
    else
        a->seen = own;
}

/* Nothing is known under the key, or what was is past its window. In between the same message may have come in as a conflict,
 * and may still be known under its own key, key~<fingerprint>, whose window is another. Then this is a duplicate of that. */
static void look_under_own_key(struct broker *b, struct send_in *in, struct admission *a) {
    if (!core_queue_had_conflicts(b->core, in->queue) || !core_other_key(b->core, in, &a->original)) return;
    slice key = slice_of(a->original.other_key, a->original.other_key_len);
    struct seen *own = lookup_key(b, b->other, in->queue, a->original.other_hash, key);
    if (!own || !seen_in_force(b, own) || seen_fingerprint(own) != in->fingerprint) return;
    a->seen = own;
    in->key = key;
    in->hash = a->original.other_hash;
}

static bool taken_in(enum send_verdict v) {
    return v != SEND_FULL && v != SEND_BACKPRESSURE && v != SEND_OVER_PENDING && v != SEND_OVER_BYTES;
}

/* What it was beside a new message, which the core's record tells. */
static void watch_arrival(struct broker *b, const struct send_in *in, const struct admission *a) {
    if (!taken_in(a->verdict)) return;
    /* In conflict, under a key of its own. */
    bool apart = a->original.other_key_len && a->key.p == a->original.other_key;
    struct happening h = {
        .queue = in->queue,
        .ref = a->out.ref,
        .detail = (u8)a->out.arrival,
        .age_ms = a->out.age_ms,
        .drill = b->scratch->drill,
        .key = a->key,
        .request_id = in->request_id,
        .traceparent = in->traceparent,
    };
    if (a->verdict == SEND_DUPLICATE)
        h.kind = HAPPENING_DUPLICATE;
    else if (a->verdict == SEND_CONFLICT || apart)
        h.kind = HAPPENING_CONFLICT;
    else if (a->verdict == SEND_ACCEPTED && a->out.again)
        h.kind = HAPPENING_AGAIN;
    else
        return;
    watch_happened(b, &h);
}

/* How many messages there are beyond four fifths of a limit. */
static u64 beyond(u64 have, u64 limit) {
    return limit && have * 5 >= limit * 4 ? have - limit * 4 / 5 + 1 : 0;
}

/* When a queue at its limit may take messages again, by what was settled in the last minute; 0: nothing is known. */
static i64 relief_ms(const struct broker *b, u16 queue) {
    struct queue_info q;
    u64 settled = series_sum(b, queue, SERIES_settled, RELIEF_STEPS);
    core_queue_info(b->core, b->now, queue, &q);
    u64 count = q.unsettled - q.refused_copies, bytes = q.unsettled_bytes - q.refused_bytes;
    u64 messages = beyond(count, q.rules.limit_pending), in_bytes = beyond(bytes, q.rules.limit_bytes);
    if (in_bytes && messages < (u64)((double)in_bytes / (double)bytes * (double)count))
        messages = (u64)((double)in_bytes / (double)bytes * (double)count);
    if (settled == 0 || messages == 0) return 0;
    double ms = (double)messages / (double)settled * (RELIEF_STEPS * SERIES_STEP_MS);
    return ms < RELIEF_MS_MAX ? (i64)ms : RELIEF_MS_MAX;
}

static bool admitted(const struct candidate *k, struct admission *a) {
    struct broker *b = k->b;
    const struct send_in *in = k->in;
    struct failure *f = k->f;
    watch_arrival(b, in, a);
    switch (a->verdict) {
    case SEND_ACCEPTED:
    case SEND_HELD:
        a->seen = NULL;
        a->state = a->verdict == SEND_HELD ? STATE_HELD : STATE_PENDING;
        return true;
    case SEND_DUPLICATE:
        a->state = seen_state(b, a->seen);
        return true;
    case SEND_CONFLICT:
        conflict_details(k, a);
        return false;
    case SEND_BACKPRESSURE:
        f->retry_ms = relief_ms(b, in->queue);
        failure_set(f, PROBLEM_backpressure,
                    "a limit of this queue is reached; it takes messages again below 80 %% of it");
        return false;
    case SEND_OVER_PENDING:
    case SEND_OVER_BYTES:
        return tenants_refuse(b, queue_rules_of(b, in->queue)->tenant,
                              a->verdict == SEND_OVER_PENDING ? QUOTA_PENDING : QUOTA_BYTES, f);
    case SEND_ELSEWHERE:
        CHECK(false && "led elsewhere twice");
    case SEND_FULL:
        break;
    }
    failure_set(f, PROBLEM_storage_full,
                "%s for new messages; acknowledging goes on, and sending will once there is room",
                core_memory_short(b->core) ? "the broker's memory limit leaves no room" : "the disk has no room");
    return false;
}

static bool foresee(const struct candidate *k, struct admission *a) {
    bool known = a->seen && seen_in_force(k->b, a->seen),
         same = known && seen_fingerprint(a->seen) == k->in->fingerprint;
    a->verdict = same ? SEND_DUPLICATE : SEND_ACCEPTED;
    return !known || same || core_queue_rules(k->b->core, k->in->queue)->on_conflict != ON_CONFLICT_REJECT;
}

/* The one that is known, if it is of this very key. */
static u64 hash_of(const struct candidate *k) {
    const struct send_in *in = k->in;
    const struct foreknown *known = &k->known;
    if (known->queue == in->queue && known->key.p == in->key.p && known->key.n == in->key.n) return known->hash;
    return in->key.n ? core_hash(k->b->core, in->queue, in->key) : 0;
}

/* What the queue wants to know of every arrival beside what is decided: nothing hangs on it, so what cannot be made is left out. */
static void watch_said(const struct candidate *k, const struct admission *a) {
    struct broker *b = k->b;
    struct buf *store = &b->scratch->group; /* whose text the core has copied by now */
    struct errbuf why;
    bool known = a->verdict == SEND_DUPLICATE;
    if (!taken_in(a->verdict)) return;
    buf_reset(store);
    if (k->rules->event_type &&
        template_eval_plain(k->rules->event_type, &b->scratch->view, store, &why) == TEMPLATE_OK)
        watch_type(b, k->in->queue, buf_slice(store),
                   known                                                       ? a->out.arrival
                   : a->verdict == SEND_ACCEPTED && !a->original.other_key_len ? ARRIVAL_NEW
                                                                               : ARRIVAL_CONFLICT);
    buf_reset(store);
    if (k->rules->origin && template_eval(k->rules->origin, &b->scratch->view, store, &why) == TEMPLATE_OK)
        alerts_origin(b, k->in->queue, core_fingerprint(b->core, buf_slice(store)), k->in->hash);
}

/* The same bytes are the same payload. A retry mostly comes while the message is there to compare with, in a tenth of the time that a
 * hash takes. */
static u64 plain_fingerprint(const struct candidate *k, const struct seen *s) {
    slice payload = k->in->payload;
    if (s && s->message && slice_eq(s->message->payload, payload)) return s->message->fingerprint;
    return k->known.fingerprint ? k->known.fingerprint : core_fingerprint(k->b->core, payload);
}

static bool enter(struct candidate *k, header_lookup *header, void *header_ctx, struct admission *a) {
    struct broker *b = k->b;
    struct send_in *in = k->in;
    const struct queue_rules *rules = queue_rules_of(b, in->queue);
    k->a = a;
    a->copied = false;
    in->unmetered = k->again;
    if (rules->tenant && !k->again && !tenants_take_send(b, rules->tenant, k->f)) return false;
    if (rules->special && !pass_rules(k, header, header_ctx)) return false;
    if (lacks_key(in, k->rules))
        return failure_set(
            k->f, PROBLEM_key_missing,
            "send the key in the Idempotency-Key header (in a batch: key): what this message means, the same "
            "at every retry");
    if (rules->scoped && in->key.n && !put_in_scope(k)) return false;
    a->original.other_key_len = 0;
    bool sought = in->key.n && (!k->rules || k->rules->rules.semantics != SEMANTICS_AT_LEAST_ONCE);
    in->hash = hash_of(k);
    a->seen = sought ? lookup_key(b, b->lookup, in->queue, in->hash, in->key) : NULL;
    if (!k->made && !(k->rules && k->rules->fingerprint)) in->fingerprint = plain_fingerprint(k, a->seen);
    if (sought && !(a->seen && seen_in_force(b, a->seen))) look_under_own_key(b, in, a);
    a->key = in->key;
    if (!a->seen && key_names_replay(in->key)) { /* one that is known came in before this was asked, and is answered */
        failure_set(k->f, PROBLEM_key_invalid,
                    "the key ends in ~g and digits, as the effect keys of replays do: downstreams could not tell the "
                    "two apart");
        return false;
    }
    if (a->seen && !k->made) agree_with(k, a->seen);
    if (k->foresee) return foresee(k, a);
    room_prepare(b, in->payload.n + in->attrs.n);
    a->verdict = core_send(b->core, b->now, in, a->seen, &a->out);
    if (a->verdict == SEND_ELSEWHERE) admit_under_own_key(b, in, a);
    bool ok = admitted(k, a);
    if (k->rules && (k->rules->event_type || k->rules->origin)) watch_said(k, a);
    return ok;
}

bool admit_message(struct broker *b, struct send_in *in, slice scope, const struct foreknown *known,
                   header_lookup *header, void *header_ctx, struct admission *a, struct failure *f) {
    struct candidate k = {.b = b, .in = in, .scope = scope, .f = f};
    if (known) k.known = *known;
    return enter(&k, header, header_ctx, a);
}

bool admit_made(struct broker *b, struct send_in *in, slice scope, struct admission *a, struct failure *f) {
    struct candidate k = {.b = b, .in = in, .scope = scope, .f = f, .made = true};
    return enter(&k, NULL, NULL, a);
}

/* ---- once more */

static enum retrial try_again(struct broker *b, const struct rec_message *m, u16 queue, bool foresee) {
    struct failure f = {0};
    struct admission a = {0};
    const struct queue_config *rules = queue_rules_of(b, queue)->config;
    struct send_in in = {
        .queue = queue,
        .key = rules && rules->key ? SL("") : key_as_sent(b, queue, m->key),
        .group = m->group,
        .content_type = m->content_type,
        .attrs = m->attrs,
        .traceparent = m->traceparent,
        .tracestate = m->tracestate,
        .request_id = m->request_id,
        .payload = m->payload,
    };
    struct candidate k = {
        .b = b, .in = &in, .scope = shown_key(b, queue, m->key).credential, .f = &f, .again = true, .foresee = foresee};
    enum retrial result = RETRIAL_AS_BEFORE;
    if (enter(&k, said_header, &in, &a))
        result = a.verdict == SEND_DUPLICATE ? RETRIAL_KNOWN : RETRIAL_ADMITTED;
    else if (f.problem == PROBLEM_storage_full)
        result = RETRIAL_FULL;
    failure_free(&f);
    return result;
}

enum retrial admit_again(struct broker *b, const struct ref *copy) {
    struct lookup *own = lookup_new(); /* admitting uses the others */
    struct seen *s = lookup_id(b, own, copy->hash, copy->seq);
    CHECK(s && s->message);
    enum retrial result = try_again(b, s->message, copy->queue, false);
    s = lookup_id(b, own, copy->hash, copy->seq);
    if (result == RETRIAL_KNOWN || result == RETRIAL_ADMITTED) core_cancel(b->core, b->now, s, SL("redriven"), NULL);
    lookup_free(own);
    return result;
}

enum retrial admit_foresee(struct broker *b, const struct ref *copy) {
    struct lookup *own = lookup_new();
    const struct seen *s = lookup_id(b, own, copy->hash, copy->seq);
    CHECK(s && s->message);
    enum retrial result = try_again(b, s->message, copy->queue, true);
    lookup_free(own);
    return result;
}
