/* Send one message. */
#include "broker/access.h"
#include "broker/admission_page.h"
#include "broker/admit.h"
#include "broker/ahead.h"
#include "broker/api.h"
#include "broker/attrs.h"
#include "broker/broker_priv.h"
#include "broker/call.h"
#include "broker/lookup.h"
#include "broker/named.h"
#include "broker/parse.h"
#include "broker/queue_rules.h"
#include "broker/shared.h"
#include "broker/waits.h"

#define REPLAYED "Idempotent-Replayed: true\r\n"

static slice admission_fields(struct broker *b, const struct admission *a, i64 waited_s) {
    struct buf *fields = &b->scratch->fields;
    bool replayed = a->verdict == SEND_DUPLICATE;
    if (waited_s < 0) return replayed ? SL(REPLAYED) : SL("");
    buf_reset(fields);
    if (replayed) buf_lit(fields, REPLAYED);
    buf_lit(fields, "Preference-Applied: wait=");
    buf_dec_signed(fields, waited_s);
    buf_lit(fields, "\r\n");
    return buf_slice(fields);
}

/* Into the scratch. */
static slice admission_body(struct broker *b, const struct admission *a, slice queue) {
    struct buf *body = &b->scratch->body;
    buf_reset(body);
    put_admission(b, body, a, queue);
    buf_char(body, '}');
    return buf_slice(body);
}

/* A repeat is told of its original, and waits with that; not for what others repeated meanwhile, which is written down lazily. */
static u64 admission_after(const struct broker *b, const struct admission *a) {
    bool plain = a->verdict == SEND_DUPLICATE && a->original.other_key_len == 0;
    return plain ? seen_after(b, a->seen) : b->after;
}

static void reply_admission(struct call *c, const struct admission *a, i64 waited_s) {
    slice body = admission_body(c->b, a, c->arg[0]);
    reply_after(c->b, c->conn, admission_after(c->b, a), admission_status(a), SL("application/json"),
                admission_fields(c->b, a, waited_s), body, 0);
}

struct send_fields {
    slice key;
    u32 keys;
    i64 wait_s; /* -1: no Prefer: wait */
    struct foreknown known;
};

static bool field_duration(struct call *c, const char *name, slice text, i64 *out) {
    if (duration_parse(slice_trim(text), out) && *out <= DELAY_MS_MAX) return true;
    return fail(c, PROBLEM_param_invalid, "%s must be a duration up to 366d, such as 500ms, 30s or 5m", name);
}

/* Prefer: a list of preferences; only wait=N concerns us, and a broken one is ignored as RFC 7240 asks. */
static void take_prefer(slice value, struct send_fields *f) {
    slice item;
    while (value.n) {
        slice_cut(value, ',', &item, &value);
        slice name, seconds, parameters;
        u64 n;
        slice_cut(item, ';', &item, &parameters);
        if (!slice_cut(slice_trim(item), '=', &name, &seconds)) continue;
        seconds = slice_trim(seconds);
        if (seconds.n > 2 && seconds.p[0] == '"' && seconds.p[seconds.n - 1] == '"')
            seconds = slice_of(seconds.p + 1, seconds.n - 2);
        if (!slice_eq_nocase(slice_trim(name), SL("wait")) || !slice_u64(seconds, &n)) continue;
        f->wait_s = n > WAIT_MS_MAX / 1000 ? WAIT_MS_MAX / 1000 : (i64)n;
    }
}

static bool take_attr(struct call *c, struct attrs *attrs, slice name, slice value) {
    bool too_large;
    const char *why = attrs_add(attrs, name, value, &too_large);
    return !why || fail(c, too_large ? PROBLEM_too_large : PROBLEM_param_invalid, "attributes: %s", why);
}

static bool take_text(struct call *c, const char *name, slice value, size_t max, slice *out) {
    *out = value;
    if (text_ok(value, max)) return true;
    return fail(c, PROBLEM_param_invalid, "%s must be UTF-8 without control characters, at most %zu bytes", name, max);
}

#define ATTR_PREFIX "hapax-attr-"

static bool take_field(struct call *c, slice name, slice value, struct send_in *in, struct send_fields *f,
                       struct attrs *attrs) {
    switch (name.n) { /* most fields are told apart by their length alone */
    case 6:
        if (slice_spells(name, SL("prefer"))) take_prefer(value, f);
        return true;
    case 9:
        if (!slice_spells(name, SL("hapax-ttl"))) break;
        if (!field_duration(c, "Hapax-Ttl", value, &in->ttl_ms)) return false;
        return in->ttl_ms > 0 || fail(c, PROBLEM_param_invalid, "Hapax-Ttl must be more than nothing");
    case 10:
        if (slice_spells(name, SL("tracestate"))) return take_text(c, "tracestate", value, 4096, &in->tracestate);
        return true;
    case 11:
        if (slice_spells(name, SL("traceparent"))) return take_text(c, "traceparent", value, 255, &in->traceparent);
        if (slice_spells(name, SL("hapax-group")))
            return take_text(c, "Hapax-Group", value, GROUP_BYTES_MAX, &in->group);
        if (slice_spells(name, SL("hapax-delay"))) return field_duration(c, "Hapax-Delay", value, &in->delay_ms);
        break;
    case 12:
        if (slice_spells(name, SL("content-type")))
            return take_text(c, "Content-Type", value, TYPE_BYTES_MAX, &in->content_type);
        if (slice_spells(name, SL("x-request-id")) && in->request_id.n == 0) in->request_id = value;
        break;
    case 15:
        if (!slice_spells(name, SL("idempotency-key"))) break;
        f->key = value;
        f->keys++;
        return true;
    case 16:
        if (slice_spells(name, SL("hapax-request-id"))) in->request_id = value;
        if (slice_spells(name, SL("content-encoding")) && !slice_spells(value, SL("identity")))
            return fail(c, PROBLEM_unsupported_media, "Content-Encoding is not accepted: send the payload as it is");
        break;
    default:
        break;
    }
    size_t prefix = sizeof ATTR_PREFIX - 1;
    if (name.n <= prefix || !slice_spells(slice_of(name.p, prefix), SL(ATTR_PREFIX))) return true;
    return take_attr(c, attrs, slice_of(name.p + prefix, name.n - prefix), value);
}

static bool parse_send(struct call *c, struct send_in *in, struct send_fields *f, struct attrs *attrs,
                       struct buf *key_store) {
    f->wait_s = -1;
    for (size_t i = 0; i < c->req->field_count; i++)
        if (!take_field(c, c->req->fields[i].name, c->req->fields[i].value, in, f, attrs)) return false;
    const char *why;
    if (f->keys > 1) return fail(c, PROBLEM_key_invalid, "Idempotency-Key is given %u times", f->keys);
    if (f->keys && !parse_key_field(f->key, key_store, &in->key, &why)) return fail(c, PROBLEM_key_invalid, "%s", why);
    if (c->req->body.n > PAYLOAD_BYTES_MAX)
        return fail(c, PROBLEM_too_large, "the payload has %zu bytes, the limit is %u", c->req->body.n,
                    PAYLOAD_BYTES_MAX);
    in->attrs = buf_slice(&attrs->bytes);
    in->payload = c->req->body;
    f->known = ahead_known(c->b, c->req, f->key);
    request_id_or_none(&in->request_id);
    return true;
}

/* A send without a key makes no queue: such a queue would want one. */
static bool queue_of_send(struct call *c, const struct send_fields *f, u16 *queue) {
    if (f->keys || !config_in_force(c->b)->auto_create || queue_known(c, queue))
        return queue_to_send(c, c->req->body.n, queue);
    return fail(c, PROBLEM_key_missing,
                "send the key in the Idempotency-Key header: what this message means, the same at every retry");
}

/* A conflict that is held is answered with what it is. */
static bool may_settle(const struct admission *a) {
    return a->verdict != SEND_HELD && !state_is_settled(a->state) && a->state != STATE_DEAD;
}

/* As the sender would be answered if the message came in now. */
static bool admission_of_wait(struct broker *b, const struct ref *ref, bool duplicate, struct admission *a) {
    struct arrivals arrivals;
    const struct seen *s = lookup_id(b, b->lookup, ref->hash, ref->seq);
    if (!s) return false;
    core_arrivals_view(b->core, s, &arrivals);
    *a = (struct admission){.verdict = duplicate ? SEND_DUPLICATE : SEND_ACCEPTED, .seen = s};
    a->out.ref = *ref;
    a->out.duplicates = arrivals.duplicates;
    a->out.first_seen_ms = seen_first_ms(s);
    a->key = seen_key(s);
    a->state = seen_state(b, s);
    return true;
}

/* It settled or died, or the sender has waited long enough, or an operator had it forgotten. */
static void answer_send(struct broker *b, struct wait *w, bool over) {
    if (wait_goes_on(b, w, over)) return;
    void *conn = w->conn;
    struct ref ref = w->ref;
    i64 asked_s = w->asked_s;
    bool duplicate = w->duplicate;
    u64 form = (u64)asked_s * 2 + duplicate + 1; /* 0: the bare result */
    struct admission a;
    struct queue_info q;
    wait_end(b, w);
    if (shared_again(b, conn, &ref, form)) return;
    if (!admission_of_wait(b, &ref, duplicate, &a))
        return reply_late_failure(b, conn, PROBLEM_no_such_key, "it was forgotten meanwhile");
    core_queue_info(b->core, b->now, ref.queue, &q);
    slice body = admission_body(b, &a, q.name), fields = admission_fields(b, &a, asked_s);
    if (!state_is_settled(a.state)) /* it may be settled before the next one's time is over */
        return reply_with(b, conn, admission_status(&a), SL("application/json"), fields, body, 0);
    shared_answer(b, conn, &ref, form, admission_status(&a), SL("application/json"), fields, &b->scratch->body);
}

void api_send(struct call *c) {
    struct broker *b = c->b;
    struct send_in in = {0};
    struct send_fields f = {0};
    struct admission a;
    struct attrs attrs = {0};
    struct buf key_store = {0};
    void *headers = (void *)(uintptr_t)c->req; /* only read */
    if (!parse_send(c, &in, &f, &attrs, &key_store) || !queue_of_send(c, &f, &in.queue) ||
        !admit_message(b, &in, c->who->name, &f.known, request_header, headers, &a, &c->failure)) {
        reply_failure(c);
    } else if (f.wait_s > 0 && may_settle(&a) && ration_has_room(c)) {
        struct wait *w = wait_new(b, c->conn, c->user, f.wait_s * 1000, answer_send);
        w->right = RIGHT_SEND;
        w->duplicate = a.verdict == SEND_DUPLICATE;
        w->asked_s = f.wait_s;
        wait_for_outcome(b, w, &a.out.ref);
    } else {
        reply_admission(c, &a, f.wait_s);
    }
    attrs_free(&attrs);
    buf_free(&key_store);
}
