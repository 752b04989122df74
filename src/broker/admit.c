/* The door: everything that becomes a message comes in here. Its queue's rules look at it first (limit, schema, key, group,
 * fingerprint, over one reading of the payload), then its key is looked up, then the core decides. */
#include "broker/broker_priv.h"
#include "config/fingerprint.h"
#include "config/schema.h"
#include "config/template.h"

/* ---- what the queue's rules make of it */

/* One message being looked at. */
struct candidate {
    struct broker *b;
    const struct queue_config *rules;
    struct send_in *in;
    bool again; /* it is a copy of what was refused before: no second copy */
    struct failure *f;
};

/* Not admitted; but whoever looks into the dead lane finds it, with the reason. */
static bool refuse(const struct candidate *k, const char *why) {
    struct ref copy;
    failure_set(k->f, PROBLEM_schema, "%s", why);
    if (k->again) return false;
    struct send_in in = *k->in;
    in.key = SL("");
    in.fingerprint = core_fingerprint(k->b->core, in.payload);
    core_refuse(k->b->core, k->b->now, &in, cut_text(slice_str(why), REASON_BYTES_MAX), &copy);
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

static bool make_key(const struct candidate *k) {
    struct errbuf why;
    struct buf *store = &k->b->key_store;
    buf_reset(store);
    if (template_eval(k->rules->key, &k->b->view, store, &why) != TEMPLATE_OK) return refuse_unmade(k, "key", &why);
    slice key = buf_slice(store), given = k->in->key;
    k->in->key = key;
    if (given.n == 0 || slice_eq(given, key)) return true;
    failure_set(k->f, PROBLEM_key_mismatch, "this queue makes the key of the message, '%.*s'; the sender says '%.*s'",
                (int)key.n, key.p, (int)given.n, given.p);
    return false;
}

static bool make_group(const struct candidate *k) {
    struct errbuf why;
    struct buf *store = &k->b->group_store;
    buf_reset(store);
    if (template_eval(k->rules->order_by, &k->b->view, store, &why) != TEMPLATE_OK)
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

static bool look_at(const struct candidate *k, header_lookup *header, void *header_ctx) {
    const struct queue_config *q = k->rules;
    struct send_in *in = k->in;
    struct errbuf why;
    if (in->payload.n > q->payload_max) {
        failure_set(k->f, PROBLEM_too_large, "the payload has %zu bytes, the limit of this queue is %llu",
                    in->payload.n, (unsigned long long)q->payload_max);
        return false;
    }
    payload_view_init(&k->b->view, in->payload, in->content_type, header, header_ctx);
    if (q->schema && !schema_check(q->schema, &k->b->view, &why)) return refuse(k, why.text);
    if (q->key && !make_key(k)) return false;
    if (q->order_by && !make_group(k)) return false;
    in->fingerprint = fingerprint_of(k, &k->b->view);
    return true;
}

static bool lacks_key(const struct send_in *in, const struct queue_config *q) {
    return in->key.n == 0 && (!q || q->rules.semantics == SEMANTICS_EXACTLY_ONCE);
}

/* A queue whose rules say something about it. */
static bool pass_rules(struct candidate *k, header_lookup *header, void *header_ctx) {
    const struct queue_rules *bound = queue_rules_of(k->b, k->in->queue);
    k->rules = bound->config;
    if (bound->undeclared && !k->again) {
        failure_set(k->f, PROBLEM_no_such_queue,
                    "%.*s does not declare it; what it still holds can be received and settled",
                    (int)k->b->config->file.n, k->b->config->file.p);
        return false;
    }
    if (bound->unreadable) {
        failure_set(k->f, PROBLEM_rules_unreadable,
                    "what it holds can be received and settled; it takes messages again once it is given rules anew");
        return false;
    }
    if (!k->rules) {
        k->in->fingerprint = core_fingerprint(k->b->core, k->in->payload);
        return true;
    }
    return look_at(k, header, header_ctx);
}

slice said_header(void *ctx, slice name) {
    const struct send_in *in = ctx;
    static const char prefix[] = "hapax-attr-";
    if (slice_eq(name, SL("content-type"))) return in->content_type;
    if (slice_eq(name, SL("hapax-group"))) return in->group;
    if (slice_eq(name, SL("hapax-request-id"))) return in->request_id;
    if (slice_eq(name, SL("traceparent"))) return in->traceparent;
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

/* The fingerprint that is stored may have been made under former rules. Before a repeat is taken for a conflict because of
 * that: the same bytes are the same payload under any rule, and a payload that is still there is looked at by the present
 * one. */
static void agree_with(const struct candidate *k, const struct seen *s) {
    struct broker *b = k->b;
    u64 stored = s->settle ? s->settle->fingerprint : s->message->fingerprint;
    slice before;
    if (stored == k->in->fingerprint) return;
    bool same = stored == core_fingerprint(b->core, k->in->payload);
    if (!same && payload_before(b, s, &before)) {
        payload_view_init(&b->other_view, before, SL(""), NULL, NULL);
        same = fingerprint_of(k, &b->other_view) == k->in->fingerprint;
    }
    if (same) k->in->fingerprint = stored;
}

static void conflict_details(struct broker *b, const struct send_in *in, const struct admission *a, struct failure *f) {
    failure_set(f, PROBLEM_key_reused, "this key came first with another payload; that one stands");
    buf_reset(&f->more);
    put_id(&f->more, "id", &a->out.ref);
    json_put_member_time(&f->more, "first_seen", a->out.first_seen_ms);
    slice before;
    if (payload_before(b, a->seen, &before)) put_changed(b, &f->more, in->queue, before, in->payload, false);
}

/* Another payload under a known key, which the queue does not simply reject: it has a key of its own. */
static void admit_elsewhere(struct broker *b, const struct send_in *in, struct admission *a) {
    a->first = a->out;
    a->key = slice_of(a->first.other_key, a->first.other_key_len);
    struct seen *other = lookup_key(b, &b->other, in->queue, a->first.other_hash, a->key);
    a->verdict = core_send_conflict(b->core, b->now, in, &a->first, other, &a->out);
    if (a->verdict == SEND_CONFLICT)
        a->out = a->first; /* told about the original */
    else
        a->seen = other;
}

/* It came in before under a key of its own, for its key was another's then. That one's window may be over, its own is not:
 * then it is still known by its own. */
static void look_elsewhere(struct broker *b, struct send_in *in, struct admission *a) {
    if (!core_queue_had_conflicts(b->core, in->queue) || !core_other_key(b->core, in, &a->first)) return;
    slice key = slice_of(a->first.other_key, a->first.other_key_len);
    struct seen *other = lookup_key(b, &b->other, in->queue, a->first.other_hash, key);
    if (!other || !seen_in_force(b, other) || seen_fingerprint(other) != in->fingerprint) return;
    a->seen = other;
    in->key = key;
    in->hash = a->first.other_hash;
}

static bool admitted(struct broker *b, const struct send_in *in, struct admission *a, struct failure *f) {
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
        conflict_details(b, in, a, f);
        return false;
    case SEND_BACKPRESSURE:
        failure_set(f, PROBLEM_backpressure,
                    "a limit of this queue is reached; it takes messages again below 80 %% of it");
        return false;
    case SEND_ELSEWHERE:
        CHECK(false && "led elsewhere twice");
    case SEND_FULL:
        break;
    }
    failure_set(f, PROBLEM_storage_full,
                "the disk has no room for new messages; acknowledging goes on, and sending "
                "will once there is room");
    return false;
}

static bool enter(struct candidate *k, header_lookup *header, void *header_ctx, struct admission *a) {
    struct broker *b = k->b;
    struct send_in *in = k->in;
    if (!queue_rules_of(b, in->queue)->special)
        in->fingerprint = core_fingerprint(b->core, in->payload);
    else if (!pass_rules(k, header, header_ctx))
        return false;
    if (lacks_key(in, k->rules)) {
        failure_set(k->f, PROBLEM_key_missing,
                    "send the key in the Idempotency-Key header (in a batch: key): what this message means, the same "
                    "at every retry");
        return false;
    }
    bool sought = in->key.n && (!k->rules || k->rules->rules.semantics != SEMANTICS_AT_LEAST_ONCE);
    in->hash = in->key.n ? core_hash(b->core, in->queue, in->key) : 0;
    a->seen = sought ? broker_find_key(b, in->queue, in->hash, in->key) : NULL;
    if (sought && !(a->seen && seen_in_force(b, a->seen))) look_elsewhere(b, in, a);
    a->key = in->key;
    if (a->seen) agree_with(k, a->seen);
    a->verdict = core_send(b->core, b->now, in, a->seen, &a->out);
    if (a->verdict == SEND_ELSEWHERE) admit_elsewhere(b, in, a);
    return admitted(b, in, a, k->f);
}

bool admit_message(struct broker *b, struct send_in *in, header_lookup *header, void *header_ctx, struct admission *a,
                   struct failure *f) {
    struct candidate k = {.b = b, .in = in, .f = f};
    return enter(&k, header, header_ctx, a);
}

/* ---- once more */

enum retrial admit_again(struct broker *b, const struct ref *copy) {
    struct lookup own = {0}; /* the door uses the others */
    struct failure f = {0};
    struct admission a;
    struct seen *s = lookup_id(b, &own, copy->hash, copy->seq);
    CHECK(s && s->message);
    const struct rec_message *m = s->message;
    struct send_in in = {
        .queue = copy->queue,
        .group = m->group,
        .content_type = m->content_type,
        .attrs = m->attrs,
        .traceparent = m->traceparent,
        .tracestate = m->tracestate,
        .request_id = m->request_id,
        .payload = m->payload,
    };
    struct candidate k = {.b = b, .in = &in, .f = &f, .again = true};
    enum retrial result = RETRIAL_AS_BEFORE;
    if (enter(&k, said_header, &in, &a))
        result = a.verdict == SEND_DUPLICATE ? RETRIAL_KNOWN : RETRIAL_ADMITTED;
    else if (f.problem == PROBLEM_storage_full)
        result = RETRIAL_FULL;
    s = lookup_id(b, &own, copy->hash, copy->seq);
    if (result == RETRIAL_KNOWN || result == RETRIAL_ADMITTED) core_cancel(b->core, b->now, s, SL("redriven"));
    buf_free(&own.base_store);
    buf_free(&own.arrivals_store);
    buf_free(&f.detail);
    buf_free(&f.more);
    return result;
}
