#include "broker/push.h"

#include "base/arena.h"
#include "broker/broker_priv.h"
#include "broker/budget.h"
#include "broker/consumers.h"
#include "broker/fetch.h"
#include "broker/lookup.h"
#include "broker/operator.h"
#include "broker/push_priv.h"
#include "broker/queue_rules.h"
#include "broker/report.h"
#include "broker/room.h"
#include "broker/scope.h"
#include "broker/settling.h"
#include "broker/watch.h"
#include "config/call_template.h"

#define PUSH_MAGIC   0x70757368u
#define TOGETHER     8u    /* of one queue, before the next one has its turn */
#define NO_ROOM_MS   250   /* until it is tried again where something was short */
#define PROMISE_MORE 8192u /* of an answer beside its body and head: reason, effect id, type, frames */

struct pushes {
    bool begun;
    struct push *under_way;
    struct lane {
        struct terms *terms; /* of the rules in force; NULL: not needed yet */
        u32 under_way;
        bool listed;
    } * lanes; /* [queue] */
    u32 lanes_cap;
    u16 *list; /* queues that may have something to send, in turn: a ring */
    u32 first, count, cap;
    i64 short_until_ms; /* mono: something was short; nothing is tried before then */
    struct push_request request;
    struct words words;
    struct payload_view view;
};

struct pushes *pushes_new(void) {
    return mem_zalloc(sizeof(struct pushes));
}

static void forget(struct pushes *p, struct push *push) {
    p->lanes[push->ref.queue].under_way--;
    *(push->prev ? &push->prev->next : &p->under_way) = push->next;
    if (push->next) push->next->prev = push->prev;
    terms_drop(push->terms);
    push->magic = 0;
    mem_free(push);
}

void pushes_free(struct pushes *p) {
    while (p->under_way) {
        target_ended(p->under_way->target, 0, TARGET_NEITHER, p->under_way->probe, 0);
        forget(p, p->under_way);
    }
    for (u32 i = 0; i < p->lanes_cap; i++) terms_drop(p->lanes[i].terms);
    push_request_free(&p->request);
    payload_view_free(&p->view);
    payload_view_free(&p->words.body);
    buf_free(&p->words.reason);
    buf_free(&p->words.head);
    mem_free(p->lanes);
    mem_free(p->list);
    mem_free(p);
}

/* ---- terms */

static struct path *copy_path(struct arena *arena, const struct path *path) {
    struct errbuf err;
    u32 column;
    if (!path) return NULL;
    struct path *copy = arena_alloc(arena, sizeof *copy);
    CHECK(path_compile(path->text, false, arena, copy, &column, &err) == ST_OK); /* it was compiled before */
    return copy;
}

static struct texts copy_texts(struct arena *arena, const struct texts *from) {
    struct texts copy = {.at = arena_alloc(arena, (from->count + 1) * sizeof(slice)), .count = from->count};
    for (u32 i = 0; i < from->count; i++) copy.at[i] = arena_copy(arena, from->at[i]);
    return copy;
}

struct terms *terms_new(const struct queue_config *q) {
    struct terms *t = mem_zalloc(sizeof *t);
    const struct deliver_config *deliver = q->deliver;
    const struct reconcile_config *reconcile = q->reconcile;
    t->uses = 1;
    t->arena = arena_new();
    t->keep_body = deliver ? deliver->keep_body : LOOKUP_KEEP_BYTES;
    if (deliver) {
        t->delivers = true;
        t->classify = deliver->classify;
        t->url_plain = call_template_is_plain(deliver->url);
        t->effect_id = copy_path(t->arena, deliver->effect_id);
        t->keep_headers = copy_texts(t->arena, &deliver->keep_headers);
        t->open_ms = deliver->circuit.open_ms;
    }
    if (reconcile) {
        memcpy(t->found, reconcile->found, sizeof t->found);
        memcpy(t->absent, reconcile->absent, sizeof t->absent);
        t->exists = copy_path(t->arena, reconcile->exists);
        t->lookup_effect_id = copy_path(t->arena, reconcile->effect_id);
    }
    t->resend = q->idempotency == IDEMPOTENCY_KEY;
    t->remembers_ms = q->remembers_ms;
    return t;
}

void terms_drop(struct terms *t) {
    if (!t || --t->uses) return;
    arena_free(t->arena);
    mem_free(t);
}

/* ---- the list */

static struct lane *lane_of(struct pushes *p, u16 queue) {
    if (queue >= p->lanes_cap) {
        u32 cap = queue + 64u;
        p->lanes = mem_realloc(p->lanes, cap * sizeof *p->lanes);
        memset(p->lanes + p->lanes_cap, 0, (cap - p->lanes_cap) * sizeof *p->lanes);
        p->lanes_cap = cap;
    }
    return &p->lanes[queue];
}

static void list_add(struct pushes *p, u16 queue) {
    if (p->count == p->cap) {
        u32 cap = p->cap ? p->cap * 2 : 16;
        u16 *list = mem_alloc(cap * sizeof *list);
        for (u32 i = 0; i < p->count; i++) list[i] = p->list[(p->first + i) % p->cap];
        mem_free(p->list);
        p->list = list;
        p->cap = cap;
        p->first = 0;
    }
    p->list[(p->first + p->count++) % p->cap] = queue;
}

void push_wake(struct broker *b, u16 queue) {
    struct pushes *p = b->pushes;
    if (!target_of(b, queue)) return;
    struct lane *lane = lane_of(p, queue);
    if (lane->listed) return;
    lane->listed = true;
    list_add(p, queue);
}

void push_rules_changed(struct broker *b, u16 queue) {
    struct pushes *p = b->pushes;
    if (queue < p->lanes_cap) {
        terms_drop(p->lanes[queue].terms);
        p->lanes[queue].terms = NULL;
    }
    push_wake(b, queue);
}

void pushes_begin(struct broker *b) {
    b->pushes->begun = true;
}

static bool is_short(const struct broker *b, i64 mono_ms) {
    return b->pushes->short_until_ms > mono_ms;
}

static bool may_run(const struct broker *b) {
    return b->pushes->begun && !b->draining && b->options.port.fetch;
}

bool pushes_unfinished(const struct broker *b) {
    return may_run(b) && b->pushes->count && !is_short(b, b->time.mono_ms);
}

i64 pushes_next_ms(const struct broker *b, i64 mono_ms, i64 at_most) {
    if (!may_run(b)) return at_most;
    i64 left = b->pushes->count ? b->pushes->short_until_ms - mono_ms : at_most;
    return targets_next_ms(b, mono_ms, left < at_most ? left : at_most);
}

/* ---- after the answer */

/* Somebody decided meanwhile, or the lease ran out and another one has it. What was answered changes nothing any more; that it was is
 * told, for two may have done the same work. */
static void tell_overtaken(struct broker *b, const struct push *push, const struct outbound_answer *a, slice state) {
    struct buf id = {0};
    core_id_text(&push->ref, &id);
    report_after(b, LOG_WARN, "push_overtaken",
                 "an answer came for work that was decided or handed out otherwise meanwhile",
                 log_text("queue", core_queue_name(b->core, push->ref.queue)), log_text("id", buf_slice(&id)),
                 log_text("state", state), log_number("status", a->end == OUTBOUND_ANSWERED ? (i64)a->status : 0));
    buf_free(&id);
}

static void settle(struct broker *b, const struct push *push, const struct outbound_answer *a,
                   struct verdict *verdict) {
    struct settle_out out;
    struct seen *s = lookup_to_settle(b, b->lookup, push->ref.hash, push->ref.seq);
    verdict->in.fence = push->fence;
    if (!s) return tell_overtaken(b, push, a, SL("gone"));
    enum settle_verdict v = settle_message(b, &verdict->in, s, &out);
    if (v == SETTLE_OK || v == SETTLE_DUPLICATE) return;
    if (v == SETTLE_FENCED || v == SETTLE_SETTLED) return tell_overtaken(b, push, a, slice_str(state_text(out.state)));
    report(b, LOG_ERROR, "push_not_stored",
           "an answer could not be stored; its work is unknown when the lease runs out",
           log_text("queue", core_queue_name(b->core, push->ref.queue)), log_number("verdict", (i64)v));
}

/* The target wants no more of it: nobody is served by asking again, and nothing is lost by waiting for a person. */
static void pause_gone(struct broker *b, const struct push *push) {
    struct audit_in audit = {
        .who = SL(PUSH_CONSUMER), .what = deed_text(DEED_PUSH_PAUSE), .why = SL("the target answered 410 Gone")};
    if (target_queue(push->target) != push->ref.queue) return;
    room_prepare(b, CONFIG_BYTES_MAX);
    if (targets_gone(b, push->ref.queue, &audit) == PAUSE_NO_CHANGE) return;
    report_after(b, LOG_WARN, "push_paused",
                 "the target answered 410 Gone: nothing is pushed there until it is resumed",
                 log_text("queue", core_queue_name(b->core, push->ref.queue)));
}

static void tell_target(struct broker *b, const struct push *push, const struct outbound_answer *a,
                        const struct verdict *verdict) {
    i64 mono_ms = b->time.mono_ms;
    target_answered(push->target, b->now.wall_ms,
                    &(struct target_answer){
                        .lookup = push->lookup,
                        .failure_class = verdict->told,
                        .status = a->end == OUTBOUND_ANSWERED ? a->status : 0,
                        .why = buf_slice(&b->pushes->words.reason),
                    });
    if (verdict->wait_ms) target_wait(push->target, mono_ms, verdict->wait_ms);
    u16 queue = target_queue(push->target);
    target_ended(push->target, mono_ms, verdict->target, push->probe, a->took_us);
    targets_tell(b, queue);
    push_wake(b, queue);
}

static void on_answer(struct broker *b, u64 arg, const struct outbound_answer *a) {
    struct push *push = (struct push *)(uintptr_t)arg;
    struct pushes *p = b->pushes;
    struct verdict verdict;
    CHECK(push->magic == PUSH_MAGIC);
    if (push->lookup)
        lookup_decide(push, a, b->now.wall_ms, &p->words, &verdict);
    else
        delivery_decide(push, a, b->now.wall_ms, &p->words, &verdict);
    room_promise_end(b, push->promised);
    settle(b, push, a, &verdict);
    if (verdict.gone) pause_gone(b, push);
    tell_target(b, push, a, &verdict);
    p->short_until_ms = 0;
    forget(p, push);
}

/* ---- before the request */

enum step {
    STEP_TAKEN,   /* one was sent, or dealt with: there may be another */
    STEP_NOTHING, /* nothing to send, or not now: who can change that wakes the queue */
    STEP_SHORT,   /* room is short, of the disk or of what may be under way */
};

/* One message, and what it is about to become. */
struct errand {
    u16 queue;
    const struct queue_config *q;
    struct target *target;
    u32 no;
    bool lookup, probe;
    struct message_view view;
    const struct rec_message *m;
};

/* Leased and at once said what there is to say of it, without anything being sent. */
static enum step settle_unsent(struct broker *b, const struct errand *e, struct settle_in *in) {
    struct lease_out lease;
    struct settle_out out;
    struct ref ref = e->m->ref;
    struct lease_in how = {.lease_ms = core_queue_rules(b->core, e->queue)->lease_ms,
                           .reserve_only = true,
                           .consumer = e->lookup ? SL(LOOKUP_CONSUMER) : SL(PUSH_CONSUMER)};
    room_prepare(b, core_said_bytes(b->core, e->no));
    enum lease_verdict v = core_lease(b->core, b->now, e->no, e->m, &how, &lease);
    if (v != LEASE_OK) return v == LEASE_FULL ? STEP_SHORT : STEP_TAKEN;
    in->fence = lease.fence;
    struct seen *s = lookup_to_settle(b, b->lookup, ref.hash, ref.seq);
    CHECK(s);
    settle_message(b, in, s, &out);
    return STEP_TAKEN;
}

/* A person lets it out (retry), or asked for it to be run again (replay). That it was sent before under rules that did not ask
 * counts, too. */
static bool awaits_approval(const struct errand *e) {
    struct history_item item;
    if (e->lookup || !e->q->deliver->approve || e->view.attempts) return false;
    for (u32 at = 0; history_next(e->view.history, &at, &item);)
        if (item.kind == HISTORY_DECISION && (item.what == DECISION_RETRY || item.what == DECISION_REPLAY))
            return false;
    return true;
}

/* When the work on it first began; when it came, if that is not known any more. By the clock as it stands now: it may have been set
 * back since, and a downstream forgets all the same. Ahead of the clock: then it is as it was written down, and trusted by nobody. */
static i64 began_ms(struct broker *b, const struct errand *e) {
    struct history_item item;
    i64 began = e->m->first_seen_ms;
    for (u32 at = 0; history_next(e->view.history, &at, &item);) {
        if (item.kind != HISTORY_ATTEMPT || item.lookup) continue;
        began = item.at_ms;
        break;
    }
    return began > b->now.wall_ms ? began : began - core_set_back_ms(b->core, b->now, began);
}

static struct terms *terms_for(struct broker *b, const struct errand *e) {
    struct lane *lane = lane_of(b->pushes, e->queue);
    if (!lane->terms) lane->terms = terms_new(e->q);
    lane->terms->uses++;
    return lane->terms;
}

/* All that is kept of an answer, and the words beside it. */
static u64 promise_bytes(const struct terms *t) {
    return journal_cost(t->keep_body + (t->keep_headers.count ? HTTP_HEAD_BYTES_MAX : 0) + PROMISE_MORE);
}

static struct push *push_new(struct broker *b, const struct errand *e) {
    struct pushes *p = b->pushes;
    struct push *push = mem_zalloc(sizeof *push);
    *push = (struct push){
        .magic = PUSH_MAGIC,
        .next = p->under_way,
        .terms = terms_for(b, e),
        .target = e->target,
        .ref = e->m->ref,
        .lookup = e->lookup,
        .probe = e->probe,
        .began_ms = e->lookup ? began_ms(b, e) : 0,
    };
    if (p->under_way) p->under_way->prev = push;
    p->under_way = push;
    p->lanes[e->queue].under_way++;
    return push;
}

/* The lease, then the request, which waits until the lease is durable. */
static enum step lease_and_send(struct broker *b, const struct errand *e, struct push *push) {
    const struct outbound_request *r = &b->pushes->request.r;
    slice consumer = e->lookup ? SL(LOOKUP_CONSUMER) : SL(PUSH_CONSUMER);
    struct lease_out lease;
    struct lease_in in = {.lease_ms = r->total_ms + PUSH_LEASE_MORE_MS, .consumer = consumer};
    room_prepare(b, core_said_bytes(b->core, e->no));
    enum lease_verdict v = core_lease(b->core, b->now, e->no, e->m, &in, &lease);
    if (v != LEASE_OK) return v == LEASE_FULL ? STEP_SHORT : STEP_TAKEN;
    push->fence = lease.fence;
    CHECK(!lease.settled); /* an at_most_once queue has no `deliver` */
    watch_delivered(b, e->m, &lease);
    consumer_spoke(b, e->queue, consumer);
    target_sent(e->target, b->time.mono_ms, e->probe);
    if (fetch(b, r, on_answer, (u64)(uintptr_t)push)) return STEP_TAKEN;
    core_unlease(b->core, b->now, &push->ref, push->fence);
    target_ended(e->target, b->time.mono_ms, TARGET_NEITHER, e->probe, 0);
    return STEP_SHORT;
}

/* A target that answers slowly keeps what is sent to it under way. It may have as much as is left, so that there is always something
 * left for another: of all that can be under way one takes half, the next a quarter. The end of one of its own wakes it. */
static enum step send_one(struct broker *b, const struct errand *e) {
    u32 left = fetches_left(b, fetch_bytes(&b->pushes->request.r));
    if (left == 0) return STEP_SHORT;
    if (lane_of(b->pushes, e->queue)->under_way >= left) return STEP_NOTHING;
    struct push *push = push_new(b, e);
    push->promised = promise_bytes(push->terms);
    if (!room_promise(b, push->promised)) {
        forget(b->pushes, push);
        return STEP_SHORT;
    }
    enum step step = lease_and_send(b, e, push);
    if (step == STEP_TAKEN && push->fence) return STEP_TAKEN;
    room_promise_end(b, push->promised);
    forget(b->pushes, push);
    return step;
}

/* It may have been done before: an attempt of it ended unknown, or was found absent, which a request that is still on its way makes
 * untrue. Sent again it is done once only if the downstream knows its key, and that may have changed while it waited: the rules are
 * others, or the target was down for long, or the broker was. A person's retry vouches for it, and is what the counters begin anew
 * with; the history alone forgets, when there are many attempts. */
static bool may_double(struct broker *b, const struct errand *e, slice *why) {
    const struct message_view *v = &e->view;
    struct history_item item;
    bool counted = v->doubt || v->unknowns || v->crashes, before = counted;
    if (e->lookup) return false;
    for (u32 at = 0; history_next(v->history, &at, &item);) {
        if (item.kind == HISTORY_ATTEMPT && item.lookup) before |= item.failure_class == CLASS_ABSENT;
        if (item.kind == HISTORY_DECISION && item.what == DECISION_RETRY) before = counted;
    }
    if (!before) return false;
    struct terms *t = terms_for(b, e);
    bool may = !may_resend(t, began_ms(b, e), b->now.wall_ms);
    *why = t->resend ? SL("not sent again: by now the downstream may not know its key any more (remembers)")
                     : SL("not sent again: the downstream does not deduplicate");
    terms_drop(t);
    return may;
}

/* What can be said of it without anybody being called. false: it is to be sent, or looked up. */
static bool take_unsent(struct broker *b, const struct errand *e, enum step *step) {
    struct settle_in in = {.verb = VERB_NACK, .failure_class = CLASS_UNKNOWN};
    if (e->view.reconcile && !e->lookup) {
        in.reason = SL("its outcome is unknown, and the queue has no `reconcile` to look it up by");
    } else if (awaits_approval(e)) {
        in.verb = VERB_HOLD;
        in.reason = SL("a person decides before it is sent (approve)");
    } else if (may_double(b, e, &in.reason)) {
        in.verb = VERB_HOLD;
    } else {
        return false;
    }
    *step = settle_unsent(b, e, &in);
    return true;
}

/* No other try would make a request of this message: poison. A look-up says nothing of the work. */
static enum step take_unfit(struct broker *b, const struct errand *e, slice why) {
    struct settle_in in = {.verb = VERB_NACK, .failure_class = e->lookup ? CLASS_UNKNOWN : CLASS_POISON, .reason = why};
    return settle_unsent(b, e, &in);
}

static enum step take(struct broker *b, const struct errand *e) {
    struct pushes *p = b->pushes;
    struct push_subject s = {
        .m = e->m,
        .generation = e->view.generation,
        .attempt = (u16)(e->view.attempts + 1),
        .wall_ms = b->now.wall_ms,
        .key = shown_key(b, e->queue, e->m->key).key,
        .known_by = key_downstream(b, e->queue, e->m->key),
    };
    bool made = e->lookup ? push_request_lookup(&p->request, e->q, &s, &p->view)
                          : push_request_deliver(&p->request, e->q, &s, &p->view);
    enum step step = made ? send_one(b, e) : take_unfit(b, e, slice_str(p->request.why.text));
    push_request_done(&p->request);
    return step;
}

static u32 next_lookup(struct broker *b, const struct errand *e) {
    const struct reconcile_config *r = e->q->reconcile;
    return r && !r->lacks_secrets ? core_next_lookup(b->core, e->queue) : MESSAGE_NONE;
}

static u32 next_ready(struct broker *b, const struct errand *e) {
    const struct deliver_config *d = e->q->deliver;
    return d && !d->lacks_secrets ? core_next_ready(b->core, e->queue) : MESSAGE_NONE;
}

/* What waits longest for an answer comes first: look-ups. But whether the target takes deliveries again a delivery tells, if there is
 * one: an address that answers no question must not keep closed the one that takes the work. */
static bool find_next(struct broker *b, struct errand *e) {
    e->no = target_is_down(e->target) ? next_ready(b, e) : MESSAGE_NONE;
    if (e->no == MESSAGE_NONE) {
        e->no = next_lookup(b, e);
        e->lookup = e->no != MESSAGE_NONE;
    }
    if (e->no == MESSAGE_NONE) e->no = next_ready(b, e);
    if (e->no == MESSAGE_NONE) return false;
    core_message_view(b->core, b->now, e->no, &e->view);
    const struct record *base = lookup_record(b, b->lookup, e->view.pos, e->view.size_hint);
    CHECK(base->type == REC_MESSAGE);
    e->m = &base->message;
    return true;
}

static enum step step(struct broker *b, u16 queue) {
    struct errand e = {.queue = queue, .q = queue_rules_of(b, queue)->config, .target = target_of(b, queue)};
    i64 again_ms;
    enum step unsent;
    if (!e.q || !e.target || !find_next(b, &e)) return STEP_NOTHING;
    if (take_unsent(b, &e, &unsent)) return unsent;
    if (target_may_send(e.target, b->time.mono_ms, &e.probe, &again_ms)) return take(b, &e);
    target_again(b, e.target, again_ms);
    return STEP_NOTHING;
}

/* A few of one queue, then the next one has its turn. */
static enum step serve(struct broker *b, u16 queue, struct budget *g) {
    enum step s = STEP_TAKEN;
    for (u32 i = 0; i < TOGETHER && s == STEP_TAKEN && (i == 0 || !budget_spent(g)); i++) s = step(b, queue);
    return s;
}

void pushes_run(struct broker *b) {
    struct pushes *p = b->pushes;
    struct target *t;
    if (!may_run(b)) return;
    while ((t = targets_due(b, b->time.mono_ms))) push_wake(b, target_queue(t));
    if (p->count == 0) return;
    struct budget g = budget_of(b, PUSH_US);
    while (p->count && !is_short(b, b->time.mono_ms) && !budget_spent(&g)) {
        u16 queue = p->list[p->first];
        p->first = (p->first + 1) % p->cap;
        p->count--;
        p->lanes[queue].listed = false;
        enum step s = serve(b, queue, &g);
        if (s != STEP_NOTHING) push_wake(b, queue);
        if (s == STEP_SHORT) p->short_until_ms = b->time.mono_ms + NO_ROOM_MS;
    }
}
