/* Finding: keys of a queue by how they begin; messages of all queues by request id, trace id, id or key. Bounded searches, as
 * jobs; the answer says when it is not complete. */
#include "broker/access.h"
#include "broker/api.h"
#include "broker/broker_priv.h"
#include "broker/call.h"
#include "broker/event_page.h"
#include "broker/jobs.h"
#include "broker/key_page.h"
#include "broker/limits.h"
#include "broker/lookup.h"
#include "broker/named.h"
#include "broker/parse.h"
#include "broker/queue_rules.h"
#include "broker/render.h"
#include "broker/scope.h"

/* ---- GET /v1/queues/{queue}/keys?prefix= */

#define KEYS_READ_MAX    200000u   /* records read for one answer; the index does not have the keys themselves */
#define INDEX_LOOKED_MAX 20000000u /* entries of the index, most of them other queues' */
#define LOOKS_BETWEEN    256u

struct prefix_job {
    struct job job;
    u16 queue;
    u64 since; /* by core_queue_since */
    u32 cursor, limit, found, read;
    bool cut;
    struct buf prefix;
};

static void put_found_key(struct prefix_job *j, const struct seen *s) {
    struct buf *body = &j->job.reply;
    buf_slice_add(body, j->found++ ? SL(",{") : SL("{"));
    put_shown_key(j->job.c.b, body, s->at.queue, seen_key(s));
    json_put_member(body, "state", slice_str(state_text(seen_state(j->job.c.b, s))));
    put_id(body, "id", seen_ref(s));
    json_put_member_time(body, "at", seen_first_ms(s));
    buf_char(body, '}');
}

static bool run_prefix(struct job *job, struct budget *g) {
    struct prefix_job *j = (struct prefix_job *)(void *)job;
    struct broker *b = job->c.b;
    slice prefix = buf_slice(&j->prefix);
    if (core_queue_since(b->core, j->queue) != j->since) return true; /* deleted meanwhile */
    while (!budget_spent(g)) {
        struct found f;
        enum walk_verdict v = core_walk(b->core, j->queue, INT64_MIN, LOOKS_BETWEEN, &j->cursor, &f);
        if (v == WALK_END) return true;
        j->cut = j->found == j->limit || j->read == KEYS_READ_MAX || j->cursor > INDEX_LOOKED_MAX;
        if (j->cut) return true;
        if (v == WALK_MORE) continue;
        const struct seen *s = lookup_found(b, b->lookup, &f);
        struct shown_key key = shown_key(b, j->queue, seen_key(s));
        j->read++;
        bool fits = slice_starts(key.key, prefix) || slice_starts(seen_key(s), prefix);
        if (key.key.n && fits && seen_in_force(b, s)) put_found_key(j, s);
    }
    return false;
}

static void answer_items(struct job *job, slice items, bool complete) {
    struct buf body = {0};
    buf_lit(&body, "{\"items\":[");
    buf_slice_add(&body, items);
    buf_slice_add(&body, complete ? SL("],\"complete\":true}") : SL("],\"complete\":false}"));
    reply_json(&job->c, 200, buf_slice(&body));
    buf_free(&body);
}

static void answer_prefix(struct job *job) {
    answer_items(job, buf_slice(&job->reply), !((struct prefix_job *)(void *)job)->cut);
}

static void free_prefix(struct job *job) {
    buf_free(&((struct prefix_job *)(void *)job)->prefix);
}

static const struct job_kind prefix_kind = {sizeof(struct prefix_job), run_prefix, answer_prefix, free_prefix, true};

void reply_keys_with(struct call *c, slice prefix) {
    struct prefix_job j = {.job = {.kind = &prefix_kind}};
    u64 limit;
    bool ok = param_u64(c, "limit", 1, LIST_LIMIT_MAX, 100, &limit) && queue_of_call(c, false, &j.queue);
    if (ok && prefix.n > KEY_BYTES_MAX) ok = fail(c, PROBLEM_param_invalid, "no key begins with so much");
    if (!ok || !jobs_have_room(c)) return reply_failure(c);
    j.limit = (u32)limit;
    j.since = core_queue_since(c->b->core, j.queue);
    buf_slice_add(&j.prefix, prefix);
    job_start(c, &j.job);
}

/* ---- GET /v1/find
 *
 * First which messages it is about: an id and a key lead to them; a request id and a trace id are looked for among the latest events,
 * newest first, and compared with the records. Then everything the events tell of these, whichever queue it was in: a flow over
 * several hops is one list. */

#define FLOW_MAX     64u   /* messages of one answer */
#define ITEMS_MAX    1000u /* events of it */
#define EVENTS_AHEAD 4096u /* looked at between two looks at the clock */
#define READ_COST    256u  /* what reading a record counts as, against that */
#define QUEUES_AHEAD 32u

enum find_by { BY_REQUEST_ID, BY_TRACE_ID, BY_ID, BY_KEY, BY_COUNT };
static const char *const find_names[BY_COUNT] = {"request_id", "trace_id", "id", "key"};

struct flow_message {
    struct ref ref;
    bool told; /* the events have its beginning */
};

struct item {
    i64 at_ms;
    u32 from, len; /* in the reply */
};

struct find_job {
    struct job job;
    enum find_by by;
    struct buf text;
    struct buf own; /* of a key: the asker's own, where keys are their senders' */
    u32 tag;
    u64 at; /* of the events: the last one looked at; of the queues: the next */
    bool gathered, cut;
    struct flow_message flow[FLOW_MAX];
    u32 flow_count;
    struct item *items; /* [ITEMS_MAX + FLOW_MAX] */
    u32 count;
};

static struct flow_message *in_flow(struct find_job *j, u64 hash, u64 seq) {
    for (u32 i = 0; i < j->flow_count; i++)
        if (j->flow[i].ref.seq == seq && j->flow[i].ref.hash == hash) return &j->flow[i];
    return NULL;
}

static bool may_see(const struct find_job *j, u16 queue) {
    const struct call *c = &j->job.c;
    return caller_may(c->who, RIGHT_OBSERVE, core_queue_name(c->b->core, queue));
}

static void add_to_flow(struct find_job *j, const struct ref *ref) {
    if (!may_see(j, ref->queue)) return;
    if (in_flow(j, ref->hash, ref->seq)) return;
    if (j->flow_count == FLOW_MAX)
        j->cut = true;
    else
        j->flow[j->flow_count++] = (struct flow_message){.ref = *ref};
}

/* Is the request id this event was tagged with the one that is looked for? Of repeats only the last are kept: for what is not there any more
 * the tag alone must do. */
static bool request_matches(const struct find_job *j, const struct event *e, const struct seen *s) {
    slice text = buf_slice(&j->text);
    struct arrivals a;
    if (slice_eq(s->settle ? s->settle->request_id : s->message->request_id, text)) return true;
    if (e->kind != HAPPENING_DUPLICATE && e->kind != HAPPENING_CONFLICT) return false;
    core_arrivals_view(j->job.c.b->core, s, &a);
    for (u32 i = 0; i < a.count; i++)
        if (slice_eq(a.last[i].request_id, text)) return true;
    return a.total > a.count;
}

/* The same of a trace id, which a repeat does not leave, nor a settled key whose payload is not kept. */
static bool trace_matches(const struct find_job *j, const struct event *e, const struct seen *s) {
    slice trace = trace_id_of(s->message ? s->message->traceparent : s->settle->kept.traceparent);
    return trace.n == 0 || e->kind != HAPPENING_ACCEPTED || slice_eq(trace, buf_slice(&j->text));
}

static void gather_event(struct find_job *j, const struct event *e) {
    struct broker *b = j->job.c.b;
    if (in_flow(j, e->hash, e->seq)) return;
    const struct seen *s = lookup_id(b, b->lookup, e->hash, e->seq);
    if (s && (j->by == BY_REQUEST_ID ? request_matches : trace_matches)(j, e, s)) add_to_flow(j, seen_ref(s));
}

/* Newest first. true: that was all. */
static bool gather_events(struct find_job *j) {
    const struct broker *b = j->job.c.b;
    const struct event *e;
    for (u32 looked = 0; looked < EVENTS_AHEAD; looked++) {
        if (!(e = event_before(b, j->at))) return true;
        j->at = e->number;
        if (e->seq == 0 || (j->by == BY_REQUEST_ID ? e->request_id : e->trace) != j->tag) continue;
        gather_event(j, e);
        looked += READ_COST;
    }
    return false;
}

static void gather_key_of(struct find_job *j, u16 queue, slice key) {
    struct broker *b = j->job.c.b;
    struct core_cursor cursor = {0};
    struct found f;
    u64 hash = core_hash(b->core, queue, key);
    if (!may_see(j, queue)) return;
    for (u32 n = 0; n < KEY_REPEATS_FOUND && core_find(b->core, hash, &cursor, &f); n++) {
        const struct seen *s = f.queue == queue ? lookup_found(b, b->lookup, &f) : NULL;
        if (s && slice_eq(seen_key(s), key) && seen_in_force(b, s)) add_to_flow(j, seen_ref(s));
    }
}

static bool gather_keys(struct find_job *j) {
    u32 last = core_queue_count(j->job.c.b->core);
    for (u32 n = 0; n < QUEUES_AHEAD && j->at <= last; n++, j->at++) {
        gather_key_of(j, (u16)j->at, buf_slice(&j->text));
        if (j->own.len && queue_rules_of(j->job.c.b, (u16)j->at)->scoped)
            gather_key_of(j, (u16)j->at, buf_slice(&j->own));
    }
    return j->at > last;
}

static bool gather_id(struct find_job *j) {
    struct broker *b = j->job.c.b;
    u64 seq, hash;
    const struct seen *s = core_id_parse(buf_slice(&j->text), &seq, &hash) ? lookup_id(b, b->lookup, hash, seq) : NULL;
    if (s && seen_in_force(b, s)) add_to_flow(j, seen_ref(s));
    return true;
}

static bool gather(struct find_job *j) {
    if (j->by == BY_ID) return gather_id(j);
    return j->by == BY_KEY ? gather_keys(j) : gather_events(j);
}

static void begin_item(struct find_job *j, i64 at_ms) {
    j->items[j->count] = (struct item){.at_ms = at_ms, .from = (u32)j->job.reply.len};
}

static void end_item(struct find_job *j) {
    struct item *i = &j->items[j->count++];
    i->len = (u32)j->job.reply.len - i->from;
}

/* From the oldest on. true: that was all. */
static bool list_events(struct find_job *j) {
    struct broker *b = j->job.c.b;
    u64 oldest = events_oldest(b);
    if (j->at < oldest) j->at = oldest;
    for (u32 looked = 0; looked < EVENTS_AHEAD; looked++) {
        const struct event *newest = event_before(b, 0);
        if (!newest || j->at > newest->number) return true;
        const struct event *e = event_at(b, j->at++);
        struct flow_message *m = e->seq ? in_flow(j, e->hash, e->seq) : NULL;
        if (!m) continue;
        if (j->count == ITEMS_MAX) return j->cut = true;
        if (e->kind == HAPPENING_ACCEPTED) m->told = true;
        begin_item(j, e->at_ms);
        put_event(b, &j->job.reply, e);
        end_item(j);
        looked += READ_COST;
    }
    return false;
}

static void put_bare(struct find_job *j, const struct seen *s, const char *kind, i64 at_ms) {
    struct buf *body = &j->job.reply;
    struct queue_info q;
    core_queue_info(j->job.c.b->core, j->job.c.b->now, s->at.queue, &q);
    begin_item(j, at_ms);
    buf_char(body, '{');
    json_put_member(body, "kind", slice_str(kind));
    json_put_member_time(body, "at", at_ms);
    json_put_member(body, "queue", q.name);
    if (seen_key(s).n) put_shown_key(j->job.c.b, body, s->at.queue, seen_key(s));
    put_id(body, "id", seen_ref(s));
    slice request_id = s->settle ? s->settle->request_id : s->message->request_id;
    slice trace = trace_id_of(s->message ? s->message->traceparent : s->settle->kept.traceparent);
    if (request_id.n) json_put_member(body, "request_id", request_id);
    if (trace.n) json_put_member(body, "trace_id", trace);
    buf_char(body, '}');
    end_item(j);
}

/* What is older than the events: its beginning, from its record. */
static void list_older(struct find_job *j) {
    struct broker *b = j->job.c.b;
    for (u32 i = 0; i < j->flow_count; i++) {
        const struct ref *ref = &j->flow[i].ref;
        const struct seen *s = j->flow[i].told ? NULL : lookup_id(b, b->lookup, ref->hash, ref->seq);
        if (s) put_bare(j, s, happening_text(HAPPENING_ACCEPTED), seen_first_ms(s));
    }
}

static bool run_find(struct job *job, struct budget *g) {
    struct find_job *j = (struct find_job *)(void *)job;
    while (!j->gathered) {
        if (budget_spent(g)) return false;
        j->gathered = gather(j);
        if (j->gathered) j->at = 0;
    }
    while (j->flow_count && !budget_spent(g))
        if (list_events(j)) return true;
    return j->flow_count == 0;
}

/* Did everything that was accepted leave an event that is still there? Not what came before this process. */
#define QUEUES_ASKED 1000u
static bool events_have_all(const struct broker *b) {
    u32 queues = core_queue_count(b->core);
    if (events_oldest(b) > 1 || queues > QUEUES_ASKED) return false;
    for (u32 id = 1; id <= queues; id++) {
        struct queue_info q;
        core_queue_info(b->core, b->now, (u16)id, &q);
        if (!q.deleted && since_start(b, &q).accepted != q.counters.accepted) return false;
    }
    return true;
}

static void sort_items(struct find_job *j) {
    for (u32 i = 1; i < j->count; i++) {
        struct item x = j->items[i];
        u32 k = i;
        for (; k > 0 && j->items[k - 1].at_ms > x.at_ms; k--) j->items[k] = j->items[k - 1];
        j->items[k] = x;
    }
}

static void answer_find(struct job *job) {
    struct find_job *j = (struct find_job *)(void *)job;
    struct buf items = {0};
    bool by_events = j->by == BY_REQUEST_ID || j->by == BY_TRACE_ID;
    list_older(j);
    sort_items(j);
    for (u32 i = 0; i < j->count; i++) {
        if (i) buf_char(&items, ',');
        buf_slice_add(&items, slice_of(job->reply.p + j->items[i].from, j->items[i].len));
    }
    answer_items(job, buf_slice(&items), !j->cut && (!by_events || events_have_all(job->c.b)));
    buf_free(&items);
}

static void free_find(struct job *job) {
    struct find_job *j = (struct find_job *)(void *)job;
    buf_free(&j->text);
    buf_free(&j->own);
    mem_free(j->items);
}

static const struct job_kind find_kind = {sizeof(struct find_job), run_find, answer_find, free_find, true};

/* A whole traceparent is as good as the trace id in it. */
static void start_find(struct call *c, enum find_by by, slice text) {
    struct find_job j = {.job = {.kind = &find_kind}, .by = by, .at = by == BY_KEY};
    if (by == BY_TRACE_ID && trace_id_of(text).n) text = trace_id_of(text);
    j.tag = event_tag(text);
    j.items = mem_alloc((ITEMS_MAX + FLOW_MAX) * sizeof *j.items);
    buf_slice_add(&j.text, text);
    if (by == BY_KEY && !scope_key(&j.own, c->who->name, text)) buf_reset(&j.own);
    job_start(c, &j.job);
}

void api_find(struct call *c) {
    struct buf store[BY_COUNT] = {{0}};
    slice text[BY_COUNT];
    u32 given = 0, by = 0;
    bool ok = true;
    for (u32 i = 0; ok && i < BY_COUNT; i++) {
        ok = param_text(c, find_names[i], &store[i], &text[i]);
        if (!ok || text[i].n == 0) continue;
        given++;
        by = i;
    }
    if (ok && (given != 1 || text[by].n > KEY_BYTES_MAX))
        ok = fail(c, PROBLEM_param_invalid, "one of request_id, trace_id, id and key must be given, up to %u bytes",
                  KEY_BYTES_MAX);
    ok = ok && jobs_have_room(c);
    if (ok) start_find(c, (enum find_by)by, text[by]);
    for (u32 i = 0; i < BY_COUNT; i++) buf_free(&store[i]);
    if (!ok) reply_failure(c);
}
