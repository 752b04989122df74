#include "broker/broker_priv.h"
#include "broker/budget.h"
#include "broker/fetch.h"
#include "broker/limits.h"
#include "broker/lookup.h"
#include "broker/passing.h"
#include "broker/proxy_priv.h"
#include "broker/queue_rules.h"
#include "broker/room.h"
#include "broker/scope.h"
#include "broker/settling.h"
#include "broker/shared.h"
#include "broker/waits.h"
#include "broker/watch.h"

#define GATES_COUNTED 1000u             /* the others together, as the last */
#define CALLS_MAX     (FETCHES_MAX / 2) /* of one proxy, under way */
#define CHAINS        1024u             /* of calls, by what they are about */
#define ENDED_KEPT    32u               /* answers that are not stored, for those who have waited for them */
#define CALL_MAGIC    0x67617465u
#define CONSUMER      "proxy"
#define RENEW_MS      1000
#define REPLAY_FORM   (UINT64_C(1) << 62) /* shared.h: the stored answer as it is */

/* One request at an upstream, or its answer while somebody is still to be told of it. */
struct gate_call {
    u32 magic;
    bool keyed, head, store_all;
    u32 counts;
    u32 waiting;         /* repeats that began to wait for it */
    struct wait *caller; /* NULL: gone, or answered */
    struct ref ref;
    u64 fence, promised, bytes;
    i64 began_ms, timeout_ms;
    struct gate_call *chained;       /* with the same place in the chains */
    struct gate_call *older, *newer; /* of all under way */
    u16 status;                      /* once it has ended */
    struct buf fields, body;
};

struct gates {
    struct gate_counts *counts;
    u64 *bytes; /* by proxy: what its calls take of the fetches' bound */
    u32 *calls; /* and how many there are */
    u32 count, cap;
    u32 *of_proxy; /* by its place in the config in force: its counts */
    u16 *queues;   /* and its queue */
    u32 queue_count;
    bool is_gate[QUEUES_MAX + 1]; /* by queue: its messages are calls */
    bool sweep;                   /* a message waits in one of them */
    i64 renewed_ms;
    struct gate_call *chains[CHAINS], *oldest, *newest;
    struct gate_call *ended[ENDED_KEPT];
    u32 ended_count;
};

const char *gate_result_text(enum gate_result r) {
    static const char *const texts[] = {
#define TEXT(name, text) text,
        GATE_LIST(TEXT)
#undef TEXT
    };
    return texts[r];
}

struct gates *gates_new(void) {
    return mem_zalloc(sizeof(struct gates));
}

static void call_free(struct gate_call *x) {
    buf_free(&x->fields);
    buf_free(&x->body);
    x->magic = 0;
    mem_free(x);
}

void gates_free(struct broker *b) {
    struct gates *ps = b->gates;
    if (!ps) return;
    for (struct gate_call *x = ps->oldest, *next; x; x = next) {
        next = x->newer;
        if (x->caller) wait_end(b, x->caller);
        call_free(x);
    }
    for (u32 i = 0; i < ps->ended_count; i++) call_free(ps->ended[i]);
    for (u32 i = 0; i < ps->count; i++) mem_free((char *)(uintptr_t)ps->counts[i].name.p);
    mem_free(ps->counts);
    mem_free(ps->bytes);
    mem_free(ps->calls);
    mem_free(ps->of_proxy);
    mem_free(ps->queues);
    mem_free(ps);
}

/* ---- counting */

u32 gate_count(const struct broker *b) {
    return b->gates->count;
}

const struct gate_counts *gate_counts_at(const struct broker *b, u32 i) {
    CHECK(i < b->gates->count);
    return &b->gates->counts[i];
}

void gate_happened(struct broker *b, u32 counts, enum gate_result r) {
    b->gates->counts[counts].at[r]++;
}

static u32 add_counts(struct gates *ps, slice name) {
    char *copy = mem_alloc(name.n + 1);
    memcpy(copy, name.p, name.n);
    if (ps->count == ps->cap) {
        ps->cap = ps->cap ? 2 * ps->cap : 8;
        ps->counts = mem_realloc(ps->counts, ps->cap * sizeof *ps->counts);
        ps->bytes = mem_realloc(ps->bytes, ps->cap * sizeof *ps->bytes);
        ps->calls = mem_realloc(ps->calls, ps->cap * sizeof *ps->calls);
    }
    ps->counts[ps->count] = (struct gate_counts){.name = slice_of(copy, name.n)};
    ps->bytes[ps->count] = 0;
    ps->calls[ps->count] = 0;
    return ps->count++;
}

static u32 counts_named(struct gates *ps, slice name) {
    for (u32 i = 0; i < ps->count; i++)
        if (slice_eq(ps->counts[i].name, name)) return i;
    if (ps->count == GATES_COUNTED) return GATES_COUNTED - 1;
    return add_counts(ps, ps->count == GATES_COUNTED - 1 ? SL("other") : name);
}

/* ---- the proxies there are */

void gates_configure(struct broker *b, const struct config *config) {
    struct gates *ps = b->gates;
    ps->of_proxy = mem_realloc(ps->of_proxy, (config->proxies.count + 1) * sizeof *ps->of_proxy);
    ps->queues = mem_realloc(ps->queues, (config->proxies.count + 1) * sizeof *ps->queues);
    memset(ps->is_gate, 0, sizeof ps->is_gate);
    ps->queue_count = config->proxies.count;
    for (u32 i = 0; i < config->proxies.count; i++) {
        ps->of_proxy[i] = counts_named(ps, config->proxies.at[i].name);
        CHECK(core_queue_find(b->core, config->proxies.at[i].queue->name, &ps->queues[i]));
        ps->is_gate[ps->queues[i]] = true;
    }
    ps->sweep = config->proxies.count != 0;
}

bool gate_find(const struct broker *b, slice name, struct gate *out) {
    const struct config *config = config_in_force(b);
    const struct proxy_config *p = config_proxy(config, name);
    if (!p) return false;
    size_t i = (size_t)(p - config->proxies.at);
    *out = (struct gate){.config = p, .counts = b->gates->of_proxy[i], .queue = b->gates->queues[i]};
    return true;
}

/* ---- calls under way */

static struct gate_call **chain_of(struct gates *ps, const struct ref *ref) {
    return &ps->chains[(ref->hash ^ ref->seq) % CHAINS];
}

static bool is_about(const struct gate_call *x, const struct ref *ref) {
    return x->keyed && x->ref.hash == ref->hash && x->ref.seq == ref->seq;
}

static struct gate_call *call_about(struct broker *b, const struct ref *ref) {
    struct gate_call *x = *chain_of(b->gates, ref);
    while (x && !is_about(x, ref)) x = x->chained;
    return x;
}

static void link_call(struct broker *b, struct gate_call *x) {
    struct gates *ps = b->gates;
    x->older = ps->newest;
    *(ps->newest ? &ps->newest->newer : &ps->oldest) = x;
    ps->newest = x;
    ps->bytes[x->counts] += x->bytes;
    ps->calls[x->counts]++;
    if (!x->keyed) return;
    struct gate_call **chain = chain_of(ps, &x->ref);
    x->chained = *chain;
    *chain = x;
}

static void unlink_call(struct broker *b, struct gate_call *x) {
    struct gates *ps = b->gates;
    *(x->older ? &x->older->newer : &ps->oldest) = x->newer;
    *(x->newer ? &x->newer->older : &ps->newest) = x->older;
    ps->bytes[x->counts] -= x->bytes;
    ps->calls[x->counts]--;
    if (x->promised) room_promise_end(b, x->promised);
    x->promised = 0;
    struct gate_call **at = chain_of(ps, &x->ref);
    while (x->keyed && *at != x) at = &(*at)->chained;
    if (x->keyed) *at = x->chained;
}

/* The answer lives as long as some of those who waited may not have been told yet; of too many the oldest goes. */
static void keep_ended(struct broker *b, struct gate_call *x) {
    struct gates *ps = b->gates;
    if (ps->ended_count == ENDED_KEPT) {
        call_free(ps->ended[0]);
        memmove(ps->ended, ps->ended + 1, (ENDED_KEPT - 1) * sizeof *ps->ended);
        ps->ended_count--;
    }
    ps->ended[ps->ended_count++] = x;
}

static const struct gate_call *ended_about(const struct broker *b, const struct ref *ref) {
    const struct gates *ps = b->gates;
    for (u32 i = 0; i < ps->ended_count; i++)
        if (is_about(ps->ended[i], ref)) return ps->ended[i];
    return NULL;
}

/* A client that has been told, or has gone: nothing is cancelled by that. */
static void never(struct broker *b, struct wait *w, bool over) {
    (void)b, (void)w, (void)over;
    CHECK(false && "a call's client waits as long as the call");
}

static struct gate_call *call_new(struct call *c, const struct gate *g, const struct outbound_request *r) {
    struct gate_call *x = mem_zalloc(sizeof *x);
    x->magic = CALL_MAGIC;
    x->counts = g->counts;
    x->head = c->req->method == HTTP_HEAD;
    x->store_all = g->config->store == STORE_ALL;
    x->bytes = fetch_bytes(r);
    x->began_ms = c->b->time.mono_ms;
    x->timeout_ms = g->config->timeout_ms;
    return x;
}

static void call_waits(struct call *c, struct gate_call *x) {
    link_call(c->b, x);
    x->caller = wait_new(c->b, c->conn, c->user, WAIT_NO_DEADLINE, never);
    x->caller->owner = &x->caller;
}

/* No proxy takes more than it leaves to everybody else: one whose upstream hangs is not felt beyond it. */
bool gate_has_room(struct call *c, const struct gate *g, const struct outbound_request *r) {
    const struct gates *ps = c->b->gates;
    if (!ration_to_wait(c)) return false;
    if (ps->calls[g->counts] < CALLS_MAX && fetch_room(c->b, ps->bytes[g->counts] + fetch_bytes(r))) return true;
    return fail(c, PROBLEM_overloaded, "too many calls are under way at this proxy's upstream; nothing was sent");
}

/* ---- what is told */

static void tell(struct broker *b, void *conn, u64 after, u16 status, slice fields, slice body, bool to_head) {
    struct http_reply reply = {
        .status = status,
        .body = body,
        .fields = fields,
        .after = {.position = after},
        .close = b->draining,
        .length_said = to_head,
    };
    respond(b, conn, &reply);
}

static void tell_problem(struct broker *b, void *conn, enum problem p, u16 status, bool unknown, const char *detail) {
    struct call c = {.b = b, .conn = conn};
    fail(&c, p, "%s", detail);
    c.failure.status = status;
    c.failure.applied_unknown = unknown;
    reply_failure(&c);
    failure_free(&c.failure);
}

static void tell_in_progress(struct broker *b, void *conn) {
    tell_problem(b, conn, PROBLEM_in_progress, 0, true,
                 "the first call with this key has not been answered yet; ask again with the same key");
}

static void tell_unknown(struct broker *b, void *conn) {
    tell_problem(
        b, conn, PROBLEM_outcome_unknown, 409, true,
        "the first call with this key went to the upstream, and whether it was done is not known; it is not sent "
        "again until that was looked up, or an operator has resolved it");
}

/* What is stored, in the scratch: its fields, for everybody but the first. false: there is no answer. */
static bool stored_answer(struct broker *b, const struct rec_settle *s, u16 *status, slice *body) {
    struct buf *fields = &b->scratch->fields;
    slice lines = {0};
    bool by_upstream = kept_head(s->http, status, &lines);
    if (s->state == STATE_CANCELLED || s->erased) return false;
    buf_reset(fields);
    buf_slice_add(fields, lines);
    if (!by_upstream) *status = s->state == STATE_DONE ? 200 : 422;  /* an operator's word */
    if (s->content_type.n && !lines_name(lines, SL("content-type"))) /* nor does a look-up keep fields */
        buf_printf(fields, "Content-Type: %.*s\r\n", (int)s->content_type.n, s->content_type.p);
    if (!lines_name(lines, SL("idempotent-replayed"))) buf_lit(fields, "Idempotent-Replayed: true\r\n");
    *body = s->result;
    return true;
}

static void tell_settled(struct broker *b, void *conn, u32 counts, const struct seen *s) {
    u16 status;
    slice body;
    gate_happened(b, counts, GATE_REPLAYED);
    if (stored_answer(b, s->settle, &status, &body))
        tell(b, conn, seen_after(b, s), status, buf_slice(&b->scratch->fields), body, false);
    else
        tell_problem(b, conn, PROBLEM_settled, 0, false,
                     s->settle->erased ? "its answer was erased" : "an operator has cancelled it, or purged its queue");
}

/* ---- repeats that wait */

static void tell_waited(struct broker *b, void *conn, u32 counts, const struct ref *ref, const struct seen *s) {
    const struct gate_call *ended = s ? NULL : ended_about(b, ref);
    if (ended) {
        gate_happened(b, counts, GATE_JOINED);
        tell(b, conn, b->after, ended->status, buf_slice(&ended->fields), buf_slice(&ended->body), false);
    } else if (!s || call_about(b, ref)) {
        gate_happened(b, counts, GATE_IN_PROGRESS);
        tell_in_progress(b, conn);
    } else {
        gate_happened(b, counts, GATE_STILL_UNKNOWN);
        tell_unknown(b, conn);
    }
}

/* There is an outcome, or it has waited long enough. Thousands may wait for the same one. */
static void answer_repeat(struct broker *b, struct wait *w, bool over) {
    (void)over;
    void *conn = w->conn;
    struct ref ref = w->ref;
    u32 counts = w->max;
    u16 status;
    slice body;
    wait_end(b, w);
    if (shared_again(b, conn, &ref, REPLAY_FORM)) return gate_happened(b, counts, GATE_REPLAYED);
    const struct seen *s = lookup_id(b, b->lookup, ref.hash, ref.seq);
    if (!s || !s->settle) return tell_waited(b, conn, counts, &ref, s);
    if (!stored_answer(b, s->settle, &status, &body)) return tell_settled(b, conn, counts, s);
    struct buf copy = {0};
    buf_slice_add(&copy, body);
    gate_happened(b, counts, GATE_REPLAYED);
    shared_answer(b, conn, &ref, REPLAY_FORM, status, SL(""), buf_slice(&b->scratch->fields), &copy);
}

/* ---- a key */

static void nack_unknown(struct broker *b, const struct seen *s, u64 fence, const char *why) {
    struct settle_out out;
    struct settle_in in = {.verb = VERB_NACK, .fence = fence, .failure_class = CLASS_UNKNOWN, .reason = slice_str(why)};
    settle_message(b, &in, s, &out);
}

static bool forget(struct broker *b, const struct seen *s) {
    room_prepare(b, 0);
    return core_forget(b->core, b->now, s, NULL) == FORGET_OK;
}

/* What a key is to whoever asks. A message that merely waits is nothing: nothing was sent. */
enum standing {
    STANDING_FREE,
    STANDING_STUCK, /* it would be free if the disk had room to say so */
    STANDING_RUNS,
    STANDING_UNKNOWN,
    STANDING_SETTLED,
};

static enum standing standing_of(struct broker *b, const struct seen *s) {
    struct message_view v;
    core_message_view(b->core, b->now, s->at.message, &v);
    if (call_about(b, &v.ref)) return STANDING_RUNS;
    if (v.state == STATE_LEASED && !v.lookup)
        nack_unknown(b, s, v.fence, "the broker ended while the call was under way");
    return v.state == STATE_PENDING && !v.reconcile ? STANDING_FREE : STANDING_UNKNOWN;
}

static enum standing standing_of_key(struct broker *b, u16 queue, slice key) {
    struct seen *s = lookup_key(b, b->lookup, queue, core_hash(b->core, queue, key), key);
    if (!s || !seen_in_force(b, s)) return STANDING_FREE;
    if (s->settle) return STANDING_SETTLED;
    enum standing standing = standing_of(b, s);
    if (standing == STANDING_FREE && !forget(b, s)) return STANDING_STUCK;
    return standing;
}

/* Leased by the broker itself, in the turn it was admitted in. */
static bool lease(struct broker *b, const struct ref *ref, i64 lease_ms, u64 *fence) {
    struct message_view v;
    struct lease_out out;
    u32 no = core_message_find(b->core, ref->hash, ref->seq);
    CHECK(no != MESSAGE_NONE);
    core_message_view(b->core, b->now, no, &v);
    const struct record *base = lookup_record(b, b->lookup, v.pos, v.size_hint);
    struct lease_in in = {.lease_ms = (u32)lease_ms, .consumer = SL(CONSUMER)};
    room_prepare(b, core_said_bytes(b->core, no));
    if (core_lease(b->core, b->now, no, &base->message, &in, &out) != LEASE_OK) return false;
    watch_delivered(b, &base->message, &out);
    *fence = out.fence;
    return true;
}

/* Nothing was sent, or nothing that counts: the key is new again. Where the disk has no room for that the lease runs out. */
static void set_free(struct broker *b, const struct gate_call *x) {
    struct settle_in in = {.verb = VERB_RELEASE, .fence = x->fence};
    struct settle_out out;
    const struct seen *s = lookup_id(b, b->lookup, x->ref.hash, x->ref.seq);
    if (!s || !s->message || settle_message(b, &in, s, &out) != SETTLE_OK) return;
    s = lookup_id(b, b->lookup, x->ref.hash, x->ref.seq);
    if (s && s->message) forget(b, s);
}

/* ---- the answer */

enum fate { FATE_STORED, FATE_FREED, FATE_UNKNOWN };

/* What it will be, and what the first caller alone gets of it. */
struct outcome {
    enum fate fate;
    enum gate_result result;
    struct buf kept, once;
    struct buf problem; /* instead of the body */
    slice body;
    const char *why; /* unknown */
};

static void make_problem(struct outcome *o, enum problem p, bool unknown, const char *detail) {
    struct failure f = {.applied_unknown = unknown};
    failure_set(&f, p, "%s", detail);
    buf_reset(&o->kept);
    buf_reset(&o->once);
    buf_printf(&o->kept, "%u\r\nContent-Type: application/problem+json\r\n", failure_status(&f));
    failure_render(&f, &o->problem);
    buf_char(&o->problem, '}');
    o->body = buf_slice(&o->problem);
    failure_free(&f);
}

/* To be asked again, by whoever got it: it says that nothing was done. */
static bool frees(u32 status) {
    return status == 401 || status == 403 || status == 409 || status == 425 || status == 429 || status == 503;
}

static void be_unknown(struct outcome *o, const char *why) {
    o->fate = FATE_UNKNOWN;
    o->result = GATE_UNKNOWN;
    o->why = why;
    make_problem(o, PROBLEM_outcome_unknown, true, why);
}

static void judge(const struct gate_call *x, const struct outbound_answer *a, struct outcome *o) {
    *o = (struct outcome){.fate = FATE_STORED, .result = x->keyed ? GATE_EXECUTED : GATE_PASSED, .body = a->body};
    if (a->end == OUTBOUND_NOT_SENT) {
        o->fate = FATE_FREED;
        o->result = GATE_UNREACHABLE;
        make_problem(o, PROBLEM_upstream_unreachable, false, a->why);
    } else if (a->end == OUTBOUND_BROKEN) {
        be_unknown(o, a->why);
    } else if (!answer_passes(a->status, a->head, x->head, &o->kept, &o->once) || (a->truncated && !x->head)) {
        o->result = GATE_TOO_LARGE;
        make_problem(o, PROBLEM_response_too_large, true,
                     "the upstream has answered, with more than max_response of the proxy");
    } else if (x->keyed && !x->store_all && frees(a->status)) {
        o->fate = FATE_FREED;
        o->result = GATE_FREED;
    }
}

static slice type_of(slice lines) {
    slice line, name, value;
    while (lines.n) {
        slice_cut(lines, '\n', &line, &lines);
        if (slice_cut(line, ':', &name, &value) && slice_eq_nocase(name, SL("content-type"))) {
            if (value.n && value.p[value.n - 1] == '\r') value.n--;
            value = slice_trim(value);
            return value.n <= TYPE_BYTES_MAX && utf8_valid(value) && !has_control(value) ? value : SL("");
        }
    }
    return SL("");
}

/* false: it could not be stored, or something else stands there by now. */
static bool store(struct broker *b, const struct gate_call *x, const struct outcome *o) {
    struct settle_out out;
    u16 status = 0;
    slice lines = {0};
    const struct seen *s = lookup_id(b, b->lookup, x->ref.hash, x->ref.seq);
    CHECK(kept_head(buf_slice(&o->kept), &status, &lines));
    struct settle_in in = {
        .verb = status < 400 ? VERB_ACK : VERB_NACK,
        .fence = x->fence,
        .failure_class = status < 400 ? CLASS_NONE : CLASS_REJECTED,
        .content_type = type_of(lines),
        .result = o->body,
        .http = buf_slice(&o->kept),
    };
    return s && settle_message(b, &in, s, &out) == SETTLE_OK;
}

static void settle(struct broker *b, const struct gate_call *x, struct outcome *o) {
    const struct seen *s;
    if (o->fate == FATE_FREED) set_free(b, x);
    if (o->fate == FATE_STORED && !store(b, x, o))
        be_unknown(o,
                   "the upstream has answered, and the answer could not be stored"); /* to the first as to all others */
    if (o->fate != FATE_UNKNOWN) return;
    s = lookup_id(b, b->lookup, x->ref.hash, x->ref.seq);
    if (s && s->message) nack_unknown(b, s, x->fence, o->why);
    waits_wake_outcome(b, &x->ref); /* where it is looked up, nothing else says so */
}

static void tell_first(struct broker *b, struct gate_call *x, const struct outcome *o) {
    slice lines;
    struct buf *fields = &x->fields;
    CHECK(kept_head(buf_slice(&o->kept), &x->status, &lines));
    buf_slice_add(fields, lines);
    if (!x->caller) return;
    size_t common = fields->len;
    void *conn = x->caller->conn;
    buf_slice_add(fields, buf_slice(&o->once));
    /* A browser can ask for these by itself: what an upstream gives it is no page of the broker's. */
    if (!x->keyed) buf_lit(fields, "Content-Security-Policy: sandbox\r\n");
    wait_end(b, x->caller);
    tell(b, conn, b->after, x->status, buf_slice(fields), o->body, x->head && o->problem.len == 0);
    fields->len = common;
}

static void on_answer(struct broker *b, u64 arg, const struct outbound_answer *a) {
    struct gate_call *x =
        (struct gate_call *)(uintptr_t)arg; // NOLINT(performance-no-int-to-ptr): told once, and checked
    struct outcome o;
    CHECK(x && x->magic == CALL_MAGIC);
    unlink_call(b, x);
    judge(x, a, &o);
    if (x->keyed) settle(b, x, &o);
    gate_happened(b, x->counts, o.result);
    tell_first(b, x, &o);
    bool awaited = x->waiting && o.fate == FATE_FREED;
    if (awaited) {
        buf_slice_add(&x->body, o.body);
        keep_ended(b, x);
    } else {
        call_free(x);
    }
    buf_free(&o.kept);
    buf_free(&o.once);
    buf_free(&o.problem);
}

/* ---- a request */

bool gate_pass(struct call *c, const struct gate *g, const struct outbound_request *r) {
    if (!gate_has_room(c, g, r)) return false;
    struct gate_call *x = call_new(c, g, r);
    if (fetch(c->b, r, on_answer, (u64)(uintptr_t)x)) return call_waits(c, x), true;
    call_free(x);
    return fail(c, PROBLEM_overloaded, "no more calls can be made at the moment; nothing was sent");
}

static bool promise(struct call *c, struct gate_call *x, const struct outbound_request *r) {
    u64 bytes = (u64)r->answer_max + HTTP_HEAD_BYTES_MAX;
    if (!room_promise(c->b, bytes))
        return fail(c, PROBLEM_storage_full, "the disk has no room for the answer; nothing was sent");
    x->promised = bytes;
    return true;
}

static bool begin(struct call *c, struct gate_call *x, struct send_in *in, slice scope,
                  const struct outbound_request *r) {
    struct admission a;
    struct broker *b = c->b;
    if (!promise(c, x, r) || !admit_made(b, in, scope, &a, &c->failure)) return false;
    CHECK(a.verdict == SEND_ACCEPTED);
    x->ref = a.out.ref;
    x->keyed = true;
    bool leased = lease(b, &x->ref, core_queue_rules(b->core, in->queue)->lease_ms, &x->fence);
    if (leased && fetch(b, r, on_answer, (u64)(uintptr_t)x)) return true;
    if (leased)
        set_free(b, x);
    else
        gates_ready(b, in->queue);
    return fail(c, PROBLEM_overloaded, "no more calls can be made at the moment; nothing was sent");
}

static bool run_first(struct call *c, const struct gate *g, struct send_in *in, slice scope,
                      const struct outbound_request *r) {
    struct queue_info q;
    core_queue_info(c->b->core, c->b->now, g->queue, &q);
    if (q.paused) return fail(c, PROBLEM_paused, "an operator has paused this proxy; nothing was sent");
    if (!gate_has_room(c, g, r)) return false;
    struct gate_call *x = call_new(c, g, r);
    if (begin(c, x, in, scope, r)) return call_waits(c, x), true;
    if (x->promised) room_promise_end(c->b, x->promised);
    call_free(x);
    return false;
}

static void wait_for_first(struct call *c, const struct gate *g, const struct ref *ref) {
    struct gate_call *x = call_about(c->b, ref);
    if (g->config->in_progress != IN_PROGRESS_WAIT || !ration_has_room(c)) {
        gate_happened(c->b, g->counts, GATE_IN_PROGRESS);
        return tell_in_progress(c->b, c->conn);
    }
    struct wait *w = wait_new(c->b, c->conn, c->user, WAIT_MS_MAX, answer_repeat);
    w->right = RIGHT_SEND;
    w->max = g->counts;
    wait_for_outcome(c->b, w, ref);
    x->waiting++;
}

bool gate_run(struct call *c, const struct gate *g, struct send_in *in, slice scope, const struct outbound_request *r) {
    struct broker *b = c->b;
    struct admission a;
    struct buf stored = {0};
    enum standing standing = STANDING_FREE; /* of a key that is too long: admission says so */
    if (scope_key(&stored, scope, in->key)) standing = standing_of_key(b, in->queue, buf_slice(&stored));
    buf_free(&stored);
    if (standing == STANDING_FREE) return run_first(c, g, in, scope, r);
    if (standing == STANDING_STUCK)
        return fail(c, PROBLEM_storage_full, "the disk has no room for new calls; nothing was sent");
    if (!admit_made(b, in, scope, &a, &c->failure)) return false;
    CHECK(a.verdict == SEND_DUPLICATE);
    if (standing == STANDING_SETTLED) {
        tell_settled(b, c->conn, g->counts, a.seen);
    } else if (standing == STANDING_RUNS) {
        wait_for_first(c, g, &a.out.ref);
    } else {
        gate_happened(b, g->counts, GATE_STILL_UNKNOWN);
        tell_unknown(b, c->conn);
    }
    return true;
}

/* ---- with the clock, and at the end of a turn */

void gates_ready(struct broker *b, u16 queue) {
    struct gates *ps = b->gates;
    if (ps->is_gate[queue]) ps->sweep = true;
}

/* A request may leave later than its lease began, if the disk is slow, and must be done with before anybody looks it up. */
void gates_renew(struct broker *b) {
    struct gates *ps = b->gates;
    if (b->time.mono_ms - ps->renewed_ms < RENEW_MS) return;
    ps->renewed_ms = b->time.mono_ms;
    for (const struct gate_call *x = ps->oldest; x && x->began_ms + x->timeout_ms <= b->time.mono_ms; x = x->newer) {
        struct settle_in in = {.verb = VERB_EXTEND, .fence = x->fence};
        struct settle_out out;
        const struct seen *s = x->keyed ? lookup_id(b, b->lookup, x->ref.hash, x->ref.seq) : NULL;
        if (s && s->message) settle_message(b, &in, s, &out);
    }
}

/* A message that waits. One that is to be looked up, where nobody does (the config says so no more), is for a person. */
static void sweep_one(struct broker *b, u32 no) {
    struct message_view v;
    u64 fence;
    core_message_view(b->core, b->now, no, &v);
    const struct seen *s = lookup_id(b, b->lookup, v.ref.hash, v.ref.seq);
    CHECK(s && s->message);
    if (!v.reconcile) {
        forget(b, s);
    } else if (lease(b, &v.ref, core_queue_rules(b->core, v.ref.queue)->lease_ms, &fence)) {
        s = lookup_id(b, b->lookup, v.ref.hash, v.ref.seq);
        nack_unknown(b, s, fence, "the proxy has no `reconcile` to look it up by");
    }
}

static bool sweep_queue(struct broker *b, u16 queue, struct budget *g) {
    u32 no, before = MESSAGE_NONE;
    while ((no = core_next_ready(b->core, queue)) != MESSAGE_NONE && no != before) {
        if (budget_spent(g)) return false;
        sweep_one(b, no);
        before = no;
    }
    return true;
}

static void sweep(struct broker *b) {
    struct gates *ps = b->gates;
    struct budget g = budget_of(b, TTLS_US);
    ps->sweep = false;
    for (u32 i = 0; i < ps->queue_count; i++)
        if (!sweep_queue(b, ps->queues[i], &g)) ps->sweep = true;
}

void gates_run(struct broker *b) {
    struct gates *ps = b->gates;
    if (ps->sweep) sweep(b);
    if (waits_unfinished(b)) return; /* some of those who waited are told in the next turn */
    for (u32 i = 0; i < ps->ended_count; i++) call_free(ps->ended[i]);
    ps->ended_count = 0;
}
