#include "broker/ingest.h"

#include "broker/access.h"
#include "broker/admit.h"
#include "broker/api.h"
#include "broker/attrs.h"
#include "broker/broker_priv.h"
#include "broker/call.h"
#include "broker/cloudevent.h"
#include "broker/jobs.h"
#include "broker/limits.h"
#include "broker/named.h"
#include "broker/parse.h"
#include "broker/queue_rules.h"
#include "broker/render.h"
#include "broker/scope.h"
#include "broker/signature.h"
#include "config/template.h"

#define EVENTS_MAX      1000u      /* in a batch */
#define EVENT_BYTES     (3u << 19) /* of one in it: the largest payload in base64, and its attributes */
#define EVENTS_BYTES    (4u << 20) /* of a batch: its signature is made in one turn, once for each secret */
#define SOURCES_COUNTED 1000u      /* the others together, as the last */

struct ingest {
    struct template *event_key, *body_id;
    struct ingest_counts *counts;
    u32 count, cap;
    u32 *of_source; /* by its place in the config in force */
};

const char *ingest_outcome_text(enum ingest_outcome o) {
    static const char *const texts[] = {
#define TEXT(name, text) text,
        INGEST_LIST(TEXT)
#undef TEXT
    };
    return texts[o];
}

static struct template *compiled(slice text) {
    struct template *t = NULL;
    struct errbuf err;
    u32 column;
    CHECK(template_compile(text, &t, &column, &err) == ST_OK);
    return t;
}

struct ingest *ingest_new(void) {
    struct ingest *g = mem_zalloc(sizeof *g);
    g->event_key = compiled(SL("${cloudevent}"));
    g->body_id = compiled(SL("${id}"));
    return g;
}

void ingest_free(struct ingest *g) {
    if (!g) return;
    template_free(g->event_key);
    template_free(g->body_id);
    for (u32 i = 0; i < g->count; i++) mem_free((char *)(uintptr_t)g->counts[i].name.p);
    mem_free(g->counts);
    mem_free(g->of_source);
    mem_free(g);
}

/* ---- counting */

u32 ingest_count(const struct broker *b) {
    return b->ingest->count;
}

const struct ingest_counts *ingest_counts_at(const struct broker *b, u32 i) {
    CHECK(i < b->ingest->count);
    return &b->ingest->counts[i];
}

static u32 add_counts(struct ingest *g, slice name) {
    char *copy = mem_alloc(name.n + 1);
    memcpy(copy, name.p, name.n);
    if (g->count == g->cap) {
        g->cap = g->cap ? 2 * g->cap : 8;
        g->counts = mem_realloc(g->counts, g->cap * sizeof *g->counts);
    }
    g->counts[g->count] = (struct ingest_counts){.name = slice_of(copy, name.n)};
    return g->count++;
}

/* Counts outlive the config that has their source. */
static u32 counts_named(struct ingest *g, slice name) {
    for (u32 i = 0; i < g->count; i++)
        if (slice_eq(g->counts[i].name, name)) return i;
    if (g->count == SOURCES_COUNTED) return SOURCES_COUNTED - 1;
    return add_counts(g, g->count == SOURCES_COUNTED - 1 ? SL("other") : name);
}

void ingest_configure(struct broker *b, const struct config *config) {
    struct ingest *g = b->ingest;
    g->of_source = mem_realloc(g->of_source, (config->sources.count + 1) * sizeof *g->of_source);
    for (u32 i = 0; i < config->sources.count; i++) g->of_source[i] = counts_named(g, config->sources.at[i].name);
}

static u32 counts_of(const struct broker *b, const struct source_config *source) {
    return b->ingest->of_source[source - config_in_force(b)->sources.at];
}

static void count(struct broker *b, u32 counts, enum ingest_outcome o) {
    b->ingest->counts[counts].at[o]++;
}

#define REFUSED_LEAST 20u /* arrivals, to say anything of their share */

bool ingest_look(struct broker *b, u32 i, slice *queue, double *refused) {
    const struct config *config = config_in_force(b);
    if (i >= config->sources.count) return false;
    struct ingest_counts *n = &b->ingest->counts[b->ingest->of_source[i]];
    u64 all = 0, bad = 0;
    for (u32 k = 0; k < INGEST_OUTCOMES; k++) {
        all += n->at[k];
        if (k >= INGEST_CONFLICT && k != INGEST_PUT_OFF) bad += n->at[k];
    }
    u32 now = n->looks++ % INGEST_LOOKS, first = n->looks >= INGEST_LOOKS ? n->looks % INGEST_LOOKS : 0;
    n->before[now].all = all;
    n->before[now].refused = bad;
    u64 sent = all - (n->looks >= INGEST_LOOKS ? n->before[first].all : 0);
    u64 lately = bad - (n->looks >= INGEST_LOOKS ? n->before[first].refused : 0);
    *queue = config->sources.at[i].queue;
    *refused = sent >= REFUSED_LEAST ? (double)lately / (double)sent : 0;
    return true;
}

/* ---- one of them */

struct webhook {
    const struct source_config *source; /* NULL in a batch, whose events name themselves */
    const struct http_request *req;     /* NULL in a batch */
    struct send_in in;
    struct cloudevent event;
    struct attrs attrs;
    struct buf store, key, header;
    struct buf scope; /* whose its key is, where that matters */
};

static void webhook_free(struct webhook *a) {
    attrs_free(&a->attrs);
    buf_free(&a->store);
    buf_free(&a->key);
    buf_free(&a->header);
    buf_free(&a->scope);
}

static slice attr(const struct webhook *a, slice name) {
    slice known, value;
    for (size_t at = 0; attrs_next(buf_slice(&a->attrs.bytes), &at, &known, &value);)
        if (slice_eq(known, name)) return value;
    return (slice){0};
}

/* What templates see. A CloudEvent's attributes are headers in every mode, spelled as in binary mode: good until the next one is
 * asked for. */
static slice header(void *ctx, slice name) {
    struct webhook *a = ctx;
    slice value = {0};
    if (a->event.said && slice_starts(name, SL("ce-"))) {
        slice known = attr(a, name);
        if (!known.p) return known;
        buf_reset(&a->header);
        buf_percent_encode(&a->header, known);
        return buf_slice(&a->header);
    }
    if (slice_eq(name, SL("content-type"))) return a->in.content_type;
    if (a->req) http_field_get(a->req, name, &value);
    return value;
}

/* Of a plain webhook these are kept with the message: what it is called, and what kind of event it is. */
static bool keep_headers(struct call *c, struct webhook *a) {
    static const char *const kept[] = {"webhook-id", "x-github-delivery", "x-github-event"};
    for (u32 i = 0; i < sizeof kept / sizeof kept[0]; i++) {
        slice value;
        bool too_large;
        if (!http_field_get(c->req, slice_str(kept[i]), &value)) continue;
        const char *why = attrs_add(&a->attrs, slice_str(kept[i]), value, &too_large);
        if (why) return fail(c, too_large ? PROBLEM_too_large : PROBLEM_event_invalid, "%s: %s", kept[i], why);
    }
    return true;
}

/* The headers are kept first: what is said of the event points into the attributes, and must be the last to make them grow. */
static bool read_webhook(struct call *c, struct webhook *a, enum event_mode mode, slice type) {
    bool good = true;
    if (!keep_headers(c, a)) return false;
    if (mode == EVENT_BINARY)
        good = event_from_headers(c->req, &a->attrs, &a->store, &a->event, &c->failure);
    else if (mode == EVENT_STRUCTURED)
        good = event_from_json(c->req->body, &a->attrs, &a->store, &a->event, &c->failure);
    else
        a->event = (struct cloudevent){.data = c->req->body, .content_type = type};
    if (!good) return false;
    if (!a->event.traceparent.n) http_field_get(c->req, SL("traceparent"), &a->event.traceparent);
    if (!a->event.tracestate.n) http_field_get(c->req, SL("tracestate"), &a->event.tracestate);
    if (!http_field_get(c->req, SL("hapax-request-id"), &a->in.request_id))
        http_field_get(c->req, SL("x-request-id"), &a->in.request_id);
    return true;
}

static void fill(struct webhook *a) {
    struct send_in *in = &a->in;
    in->payload = a->event.data;
    in->content_type = text_ok(a->event.content_type, TYPE_BYTES_MAX) ? a->event.content_type : SL("");
    in->group = a->event.partition;
    in->traceparent = text_ok(a->event.traceparent, 255) ? a->event.traceparent : SL("");
    in->tracestate = text_ok(a->event.tracestate, 4096) ? a->event.tracestate : SL("");
    in->attrs = buf_slice(&a->attrs.bytes);
    request_id_or_none(&in->request_id);
}

/* ---- its key */

static bool key_by(struct call *c, struct webhook *a, const struct template *t) {
    struct payload_view *view = &c->b->scratch->view;
    struct errbuf why;
    payload_view_init(view, a->in.payload, a->in.content_type, header, a);
    if (template_eval(t, view, &a->key, &why) == TEMPLATE_OK) return true;
    return fail(c, PROBLEM_key_missing, "no key can be made of it: %s", why.text);
}

/* What senders call an event. The scheme's own name is looked for first: the id in Stripe's body was signed with it, while a header, but for
 * Standard Webhooks', is anybody's on the way who can add one. The others are for senders that sign in one way and name in another: with
 * any of them a delivery has a key. */
enum { NAMED_BY_HEADER, NAMED_BY_BODY, NAMED_BY_GITHUB, NAMES };

static u32 own_name(const struct source_config *source) {
    if (source->scheme == SCHEME_STRIPE) return NAMED_BY_BODY;
    return source->scheme == SCHEME_GITHUB ? NAMED_BY_GITHUB : NAMED_BY_HEADER;
}

/* Behind what is in the key already. False: it is not there. */
static bool put_name(struct call *c, struct webhook *a, u32 name) {
    struct payload_view *view = &c->b->scratch->view;
    struct errbuf why;
    slice id;
    if (name == NAMED_BY_BODY) {
        payload_view_init(view, a->in.payload, a->in.content_type, header, a);
        return template_eval(c->b->ingest->body_id, view, &a->key, &why) == TEMPLATE_OK;
    }
    slice field = name == NAMED_BY_GITHUB ? SL("x-github-delivery") : SL("webhook-id");
    if (http_field_get(a->req, field, &id) != 1 || id.n == 0) return false;
    buf_slice_add(&a->key, id);
    return true;
}

static bool key_by_name(struct call *c, struct webhook *a) {
    const char *why;
    buf_slice_add(&a->key, a->source->name);
    buf_char(&a->key, ':');
    bool named = put_name(c, a, own_name(a->source));
    for (u32 i = 0; !named && i < NAMES; i++) named = put_name(c, a, i);
    if (!named)
        return fail(c, PROBLEM_key_missing,
                    "queue %.*s has no `key`, and there is not one webhook-id, id in the body or x-github-delivery to "
                    "make it of",
                    (int)a->source->queue.n, a->source->queue.p);
    return key_bytes_valid(buf_slice(&a->key), &why) ||
           fail(c, PROBLEM_key_invalid, "what the sender calls it: %s", why);
}

static bool make_key(struct call *c, struct webhook *a) {
    const struct queue_config *rules = queue_rules_of(c->b, a->in.queue)->config;
    if (rules && rules->key) return true; /* made of it later, as of every message */
    buf_reset(&a->key);
    bool good = a->event.said ? key_by(c, a, c->b->ingest->event_key) : key_by_name(c, a);
    if (good) a->in.key = buf_slice(&a->key);
    return good;
}

/* ---- what becomes of it */

static enum ingest_outcome outcome_of(const struct failure *f) {
    if (problem_retryable(f->problem)) return INGEST_PUT_OFF;
    switch (f->problem) {
    case PROBLEM_too_large:
        return INGEST_TOO_LARGE;
    case PROBLEM_signature_invalid:
        return INGEST_SIGNATURE;
    case PROBLEM_unsupported_media:
        return INGEST_MEDIA;
    case PROBLEM_schema:
    case PROBLEM_key_reused:
        return INGEST_LOST;
    default:
        return INGEST_MALFORMED;
    }
}

struct taken {
    enum ingest_outcome outcome;
    u16 status;
    struct ref ref;
};

/* Its key stands for something else, in a queue that keeps no conflicts: a copy goes where somebody looks. */
static bool keep_conflict(struct broker *b, const struct webhook *a, struct ref *copy) {
    struct buf why = {0};
    slice key = shown_key(b, a->in.queue, a->in.key).key;
    buf_printf(&why, "the key %.*s came first with another payload; that one stands", (int)key.n, key.p);
    bool kept = admit_copy(b, &a->in, buf_slice(&a->scope), SL(""), buf_slice(&why), copy);
    buf_free(&why);
    return kept;
}

static bool take(struct call *c, struct webhook *a, struct taken *t) {
    struct admission admission;
    if (a->event.data.n > PAYLOAD_BYTES_MAX) /* in a batch, which may be larger than that */
        return fail(c, PROBLEM_too_large, "the data has %zu bytes, the limit is %u", a->event.data.n,
                    PAYLOAD_BYTES_MAX);
    if (!text_ok(a->event.partition, GROUP_BYTES_MAX)) /* without its group it would overtake the others */
        return fail(c, PROBLEM_event_invalid, "partitionkey must be plain text, at most %u bytes", GROUP_BYTES_MAX);
    fill(a);
    if (!make_key(c, a)) return false;
    if (admit_message(c->b, &a->in, buf_slice(&a->scope), NULL, header, a, &admission, &c->failure)) {
        t->ref = admission.out.ref;
        t->outcome = admission.verdict == SEND_ACCEPTED ? INGEST_ACCEPTED
                     : admission.verdict == SEND_HELD   ? INGEST_HELD
                                                        : INGEST_DUPLICATE;
        t->status = t->outcome == INGEST_ACCEPTED ? 202 : 200;
        return true;
    }
    t->status = 200;
    t->ref = admission.copy;
    t->outcome = INGEST_REFUSED;
    if (c->failure.problem != PROBLEM_key_reused) return admission.copied;
    t->outcome = INGEST_CONFLICT;
    return keep_conflict(c->b, a, &t->ref);
}

static void put_taken(struct buf *out, const struct taken *t) {
    buf_lit(out, "{\"outcome\":\"");
    buf_slice_add(out, slice_str(ingest_outcome_text(t->outcome)));
    buf_char(out, '"');
    if (t->ref.seq == 0) return; /* a copy that was cancelled, and is known still */
    buf_lit(out, ",\"id\":\"");
    core_id_text(&t->ref, out);
    buf_char(out, '"');
}

/* ---- a batch of CloudEvents, as a job: first all of it is looked at, then it is done */

struct events_job {
    struct job job;
    size_t at;  /* in the text: before what comes next */
    u32 number; /* of events before it */
    bool checked;
    u32 counts;
    bool failed;        /* one was not taken, or it is no such array */
    struct failure why; /* of the worst of them */
    struct webhook webhook;
};

static size_t after_blanks(slice text, size_t at) {
    while (at < text.n && strchr(" \t\r\n", text.p[at]) && text.p[at]) at++;
    return at;
}

/* The next event of the array, or an empty one at its end. false: it is no array. */
static bool next_event(slice text, size_t *at, slice *event, struct failure *f) {
    struct json j;
    enum json_type type;
    size_t p = after_blanks(text, *at);
    bool first = *at == 0;
    *event = SL("");
    if (p == text.n || text.p[p] != (first ? '[' : text.p[p] == ']' ? ']' : ','))
        return failure_set(f, PROBLEM_event_invalid, "a batch is a JSON array of CloudEvents");
    bool end = !first && text.p[p] == ']';
    p = after_blanks(text, p + 1);
    if (first && p < text.n && text.p[p] == ']') end = true, p = after_blanks(text, p + 1);
    *at = p;
    if (end) return p == text.n || failure_set(f, PROBLEM_event_invalid, "something follows the array");
    bool cut = text.n - p > EVENT_BYTES; /* no more is read at once */
    json_init(&j, slice_of(text.p + p, cut ? EVENT_BYTES : text.n - p));
    bool good = json_value(&j, &type, event);
    if (!good && cut)
        failure_set(f, PROBLEM_event_invalid, "an event has more than %u bytes, or is not JSON: %s", EVENT_BYTES,
                    j.error);
    else if (!good)
        fail_json(f, &j);
    if (!good) f->problem = PROBLEM_event_invalid;
    *at = p + (size_t)(j.p - j.start);
    json_free(&j);
    return good;
}

static bool look_at(struct events_job *e, slice event) {
    struct webhook *a = &e->webhook;
    attrs_reset(&a->attrs);
    if (e->number >= EVENTS_MAX)
        return failure_set(&e->why, PROBLEM_event_invalid, "a batch has at most %u events", EVENTS_MAX);
    return event_from_json(event, &a->attrs, &a->store, &a->event, &e->why);
}

static void worse(struct events_job *e, const struct failure *f) {
    if (e->failed && problem_status(f->problem) <= problem_status(e->why.problem)) return;
    e->failed = true;
    e->why.retry_ms = f->retry_ms;
    failure_set(&e->why, f->problem, "%.*s", (int)f->detail.len, f->detail.p);
}

static void do_event(struct events_job *e, slice event, bool there, u16 queue) {
    struct call *c = &e->job.c;
    struct webhook *a = &e->webhook;
    struct taken t = {0};
    attrs_reset(&a->attrs);
    a->in = (struct send_in){.queue = queue};
    buf_reset(&c->failure.more);
    if (e->job.reply.len) buf_char(&e->job.reply, ',');
    bool good = there && event_from_json(event, &a->attrs, &a->store, &a->event, &c->failure) && take(c, a, &t);
    if (good) {
        put_taken(&e->job.reply, &t);
        json_put_member_i64(&e->job.reply, "status", t.status);
    } else {
        t.outcome = outcome_of(&c->failure);
        worse(e, &c->failure);
        failure_render(&c->failure, &e->job.reply);
    }
    buf_char(&e->job.reply, '}');
    count(c->b, e->counts, t.outcome);
}

static bool run_events(struct job *job, struct budget *g) {
    struct events_job *e = (struct events_job *)(void *)job;
    slice event = {0};
    u16 queue = 0;
    bool there = e->checked && queue_to_send(&job->c, 0, &queue);
    for (; !budget_spent(g); e->number++) {
        bool good = next_event(job->text, &e->at, &event, &e->why);
        if (good && event.n && !e->checked) good = look_at(e, event);
        if (!good) return e->failed = true;
        if (event.n == 0 && e->checked) return true;
        if (event.n && e->checked) do_event(e, event, there, queue);
        if (event.n) continue;
        e->checked = true; /* and now from the beginning */
        e->at = 0;
        e->number = (u32)-1;
        there = queue_to_send(&job->c, 0, &queue);
    }
    return false;
}

static void answer_events(struct job *job) {
    struct events_job *e = (struct events_job *)(void *)job;
    struct buf items = {0};
    if (!e->checked) count(job->c.b, e->counts, outcome_of(&e->why));
    if (e->checked) {
        buf_lit(&items, "\"items\":[");
        buf_slice_add(&items, buf_slice(&job->reply));
        buf_char(&items, ']');
    }
    if (e->failed) {
        failure_free(&job->c.failure);
        job->c.failure = e->why;
        job->c.failure.more = items;
        job->c.failure.applied_unknown = e->checked;
        e->why = (struct failure){0};
        return reply_failure(&job->c);
    }
    struct buf body = {0};
    buf_lit(&body, "{\"outcome\":\"batch\",");
    buf_slice_add(&body, buf_slice(&items));
    buf_char(&body, '}');
    reply_json(&job->c, 200, buf_slice(&body));
    buf_free(&items);
    buf_free(&body);
}

static void free_events(struct job *job) {
    struct events_job *e = (struct events_job *)(void *)job;
    failure_free(&e->why);
    webhook_free(&e->webhook);
}

static const struct job_kind events_kind = {sizeof(struct events_job), run_events, answer_events, free_events, false};

/* ---- the request */

static const struct source_config *source_of(const struct broker *b, slice name) {
    return config_source(config_in_force(b), name);
}

u64 ingest_body_limit(struct broker *b, const struct http_request *head, slice name) {
    const struct source_config *source = source_of(b, name);
    slice type = {0};
    if (!source) return memchr(name.p, '%', name.n) ? PAYLOAD_BYTES_MAX : HTTP_BODY_UNWANTED; /* not decoded yet */
    http_field_get(head, SL("content-type"), &type);
    u64 limit = event_mode(head, type) == EVENT_BATCH ? EVENTS_BYTES : PAYLOAD_BYTES_MAX;
    if (!head->chunked && head->body_length > limit) count(b, counts_of(b, source), INGEST_TOO_LARGE);
    return limit;
}

/* What no message of its queue could be is not worth a signature. Of a CloudEvent in its envelope the data counts, which is not known yet. */
static bool small_enough(struct call *c, const struct source_config *source, enum event_mode mode) {
    u16 queue;
    if (mode == EVENT_STRUCTURED || mode == EVENT_BATCH || !core_queue_find(c->b->core, source->queue, &queue))
        return true;
    const struct queue_config *rules = queue_rules_of(c->b, queue)->config;
    u64 most = rules ? rules->payload_max : PAYLOAD_BYTES_MAX;
    return c->req->body.n <= most ||
           fail(c, PROBLEM_too_large, "the payload has %zu bytes, the limit of this queue is %llu", c->req->body.n,
                (unsigned long long)most);
}

/* With a signature, or with a token that may send. */
static bool verified(struct call *c, const struct source_config *source) {
    const char *wrong = signature_wrong(source, c->req, c->b->now.wall_ms);
    if (wrong) return fail(c, PROBLEM_signature_invalid, "%s", wrong);
    return source->scheme != SCHEME_NONE || may(c, RIGHT_SEND, source->queue);
}

static bool type_taken(struct call *c, const struct source_config *source, slice type, enum event_mode mode) {
    slice coding, head, tail;
    slice_cut(type, ';', &head, &tail);
    head = slice_trim(head);
    if (http_field_get(c->req, SL("content-encoding"), &coding) && !slice_eq_nocase(coding, SL("identity")))
        return fail(c, PROBLEM_unsupported_media, "Content-Encoding is not accepted: send the event as it is");
    if (mode == EVENT_FOREIGN)
        return fail(c, PROBLEM_unsupported_media, "CloudEvents are read in JSON only, or in binary mode");
    bool taken = source->content_types.count == 0;
    for (u32 i = 0; i < source->content_types.count; i++) taken |= slice_eq_nocase(source->content_types.at[i], head);
    return taken || fail(c, PROBLEM_unsupported_media, "this source does not take %.*s",
                         (int)(head.n > 80 ? 80 : head.n), head.n ? head.p : "what has no Content-Type");
}

static void reply_taken(struct call *c, const struct taken *t) {
    struct buf *body = &c->b->scratch->body;
    buf_reset(body);
    put_taken(body, t);
    buf_char(body, '}');
    reply_with(c->b, c->conn, t->status, SL("application/json"), SL(""), buf_slice(body), 0);
}

/* A token's, or the source's own: no token is called so. */
static void name_scope(const struct call *c, const struct source_config *source, struct buf *scope) {
    if (source->scheme == SCHEME_NONE)
        buf_slice_add(scope, c->who->name);
    else
        buf_printf(scope, "in:%.*s", (int)source->name.n, source->name.p);
}

static void take_one(struct call *c, const struct source_config *source, u32 counts, enum event_mode mode, slice type) {
    struct webhook a = {.source = source, .req = c->req};
    struct taken t = {0};
    name_scope(c, source, &a.scope);
    bool good = queue_to_send(c, c->req->body.n, &a.in.queue) && read_webhook(c, &a, mode, type) && take(c, &a, &t);
    count(c->b, counts, good ? t.outcome : outcome_of(&c->failure));
    if (good)
        reply_taken(c, &t);
    else
        reply_failure(c);
    webhook_free(&a);
}

/* To a token that sees nothing of its queue a source that asks for tokens is not there: an answer about the queue would name it. */
static bool hidden_from(const struct call *c, const struct source_config *source) {
    return source->scheme == SCHEME_NONE && c->who->number && !caller_sees(c->who, source->queue);
}

void api_in(struct call *c) {
    const struct source_config *source = source_of(c->b, c->arg[0]);
    slice type = {0};
    if (!source || hidden_from(c, source)) {
        fail(c, PROBLEM_not_found, "there is no such source");
        return reply_failure(c);
    }
    u32 counts = counts_of(c->b, source);
    c->arg[0] = source->queue;
    http_field_get(c->req, SL("content-type"), &type);
    enum event_mode mode = event_mode(c->req, type);
    if (!small_enough(c, source, mode) || !verified(c, source) || !type_taken(c, source, type, mode) ||
        (mode == EVENT_BATCH && !jobs_have_room(c))) {
        count(c->b, counts, outcome_of(&c->failure));
        return reply_failure(c);
    }
    if (mode != EVENT_BATCH) return take_one(c, source, counts, mode, type);
    struct events_job job = {.job = {.kind = &events_kind}, .counts = counts};
    name_scope(c, source, &job.webhook.scope);
    job_start(c, &job.job);
}
