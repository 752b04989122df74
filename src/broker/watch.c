#include "broker/watch.h"

#include "broker/alerts.h"
#include "broker/broker_priv.h"
#include "broker/consumers.h"
#include "broker/events.h"
#include "broker/operator.h"
#include "broker/parse.h"
#include "broker/report.h"
#include "broker/series.h"

const u64 replay_age_bounds_ms[HIST_BOUNDS] = {
    1000, 10000, 60000, 300000, 3600000, 21600000, 86400000, 259200000, 604800000, 2592000000, 7776000000,
};
const u64 work_bounds_ms[HIST_BOUNDS] = {1, 10, 50, 100, 500, 1000, 5000, 30000, 120000, 600000, 3600000};

struct watched {
    struct queue_watch counted;
    struct counters before; /* the journaled ones when this process began */
    struct queue_types *types;
};

struct watch {
    struct watched **at; /* by queue; NULL: nothing yet */
    u32 cap;
    u64 *expired;     /* by the hash's low bits; NULL: there are none */
    u64 audit_number; /* of the last one: what has no higher is being carried */
};

const char *happening_text(enum happening_kind k) {
    static const char *const texts[] = {
#define HAPPENING_TEXT(name, text) text,
        HAPPENING_LIST(HAPPENING_TEXT)
#undef HAPPENING_TEXT
    };
    return texts[k];
}

struct watch *watch_new(void) {
    return mem_zalloc(sizeof(struct watch));
}

static void watched_free(struct watched *q) {
    for (u32 i = 0; q && q->types && i < q->types->count; i++) mem_free((char *)(uintptr_t)q->types->at[i].name.p);
    if (q) mem_free(q->types);
    mem_free(q);
}

void watch_free(struct watch *w) {
    for (u32 i = 0; i < w->cap; i++) watched_free(w->at[i]);
    mem_free(w->at);
    mem_free(w->expired);
    mem_free(w);
}

static struct watched *watched_make(struct watch *w, u16 queue) {
    if (queue >= w->cap) {
        u32 cap = w->cap ? w->cap : 16;
        while (cap <= queue) cap *= 2;
        w->at = mem_realloc(w->at, cap * sizeof *w->at);
        memset(w->at + w->cap, 0, (cap - w->cap) * sizeof *w->at);
        w->cap = cap;
    }
    if (!w->at[queue]) w->at[queue] = mem_zalloc(sizeof **w->at);
    return w->at[queue];
}

static inline struct queue_watch *watched(struct watch *w, u16 queue) {
    return queue < w->cap && w->at[queue] ? &w->at[queue]->counted : &watched_make(w, queue)->counted;
}

const struct queue_watch *queue_watch(const struct broker *b, u16 queue) {
    const struct watch *w = b->watch;
    return queue < w->cap && w->at[queue] ? &w->at[queue]->counted : NULL;
}

const struct queue_types *queue_types(const struct broker *b, u16 queue) {
    const struct watch *w = b->watch;
    return queue < w->cap && w->at[queue] ? w->at[queue]->types : NULL;
}

void watch_type(struct broker *b, u16 queue, slice type, enum arrival_kind kind) {
    struct watched *q = watched_make(b->watch, queue);
    if (!q->types) q->types = mem_zalloc(sizeof *q->types);
    struct queue_types *t = q->types;
    u32 i = 0;
    if (slice_eq(type, SL("other"))) return; /* that is what is left when the named ones are counted */
    while (i < t->count && !slice_eq(t->at[i].name, type)) i++;
    if (i == t->count && i < TYPES_MAX) {
        char *copy = mem_alloc(type.n + 1);
        memcpy(copy, type.p, type.n);
        t->at[t->count++].name = slice_of(copy, type.n);
    }
    if (i < TYPES_MAX) t->at[i].arrivals[kind]++;
}

void watch_started(struct broker *b) {
    struct audit_at last;
    for (u32 id = 1; id <= core_queue_count(b->core); id++) {
        struct queue_info q;
        core_queue_info(b->core, b->now, (u16)id, &q);
        if (!q.deleted) watched_make(b->watch, (u16)id)->before = q.counters;
    }
    if (core_audit_prev(b->core, 0, &last)) b->watch->audit_number = last.number;
}

struct counters since_start(const struct broker *b, const struct queue_info *q) {
    const struct watch *w = b->watch;
    struct counters c = q->counters;
    if (q->queue >= w->cap || !w->at[q->queue]) return c;
    const struct counters *before = &w->at[q->queue]->before;
#define COUNTER_SINCE(name) c.name -= before->name;
    COUNTER_LIST(COUNTER_SINCE)
#undef COUNTER_SINCE
    return c;
}

/* ---- what happens */

static u64 clamped(i64 ms) {
    return ms > 0 ? (u64)ms : 0;
}

static void count(struct watch *w, const struct happening *h) {
    struct queue_watch *q;
    switch (h->kind) {
    case HAPPENING_DUPLICATE:
        q = watched(w, h->queue);
        q->late += h->detail == ARRIVAL_LATE;
        q->drilled += h->drill;
        hist_add(&q->replay_age, replay_age_bounds_ms, clamped(h->age_ms));
        break;
    case HAPPENING_AGAIN:
        q = watched(w, h->queue);
        q->again++;
        hist_add(&q->replay_age, replay_age_bounds_ms, clamped(h->age_ms));
        break;
    case HAPPENING_DELIVERED:
        q = watched(w, h->queue);
        q->deliveries[h->detail]++;
        hist_add(&q->wait, work_bounds_ms, clamped(h->age_ms));
        break;
    case HAPPENING_SETTLED:
        q = watched(w, h->queue);
        q->settled[h->detail]++;
        if (h->age_ms >= 0) hist_add(&q->work, work_bounds_ms, (u64)h->age_ms);
        break;
    case HAPPENING_FAILED:
        watched(w, h->queue)->failures[h->detail]++;
        break;
    case HAPPENING_EXPIRED:
        watched(w, h->queue)->failures[FAILURE_CRASH]++;
        break;
    case HAPPENING_FENCED:
        watched(w, h->queue)->fenced++;
        break;
    case HAPPENING_DOUBLED:
        q = watched(w, h->queue);
        q->doubled++;
        q->last_doubled = h->ref;
        break;
    default:
        break;
    }
}

void watch_happened(struct broker *b, const struct happening *h) {
    count(b->watch, h);
    if (h->kind == HAPPENING_DUPLICATE || h->kind == HAPPENING_CONFLICT || h->kind == HAPPENING_AGAIN)
        report_repeat(b, h);
    events_note(b, h);
}

/* ---- keys past their windows */

/* A queue that was given the number of a deleted one gives its keys the same hashes. */
static u64 expired_mark(const struct broker *b, u16 queue, u64 hash) {
    return hash ^ core_queue_since(b->core, queue) * 0x9e3779b97f4a7c15ull;
}

void watch_expired(struct broker *b, u16 queue, u64 hash) {
    struct watch *w = b->watch;
    if (!w->expired) w->expired = mem_zalloc(EXPIRED_KEPT * sizeof *w->expired);
    w->expired[hash % EXPIRED_KEPT] = expired_mark(b, queue, hash);
}

static void came_too_late(struct broker *b, const struct rec_message *m) {
    u64 *slot = b->watch->expired ? &b->watch->expired[m->ref.hash % EXPIRED_KEPT] : NULL;
    if (!slot || *slot != expired_mark(b, m->ref.queue, m->ref.hash) || m->refused || m->generation) return;
    const struct rules *rules = core_queue_rules(b->core, m->ref.queue);
    *slot = 0;
    if (rules->semantics == SEMANTICS_AT_LEAST_ONCE) return; /* keys may come again there */
    watch_happened(b, &(struct happening){.kind = HAPPENING_AGAIN,
                                          .queue = m->ref.queue,
                                          .ref = m->ref,
                                          .age_ms = rules->window_ms}); /* it is at least so old */
}

/* ---- by what the core wrote down */

static void message_written(struct broker *b, const struct rec_message *m) {
    struct happening h = {
        .kind = HAPPENING_ACCEPTED,
        .queue = m->ref.queue,
        .ref = m->ref,
        .key = m->key,
        .request_id = m->request_id,
        .traceparent = m->traceparent,
    };
    if (m->refused) {
        h.kind = HAPPENING_DEAD;
        watched(b->watch, h.queue)->refused++;
    } else if (m->generation) {
        h.kind = HAPPENING_RESOLVED;
        h.detail = DECISION_REPLAY;
    }
    watch_happened(b, &h);
    came_too_late(b, m);
    if (m->state != STATE_HELD) return;
    h.kind = HAPPENING_HELD;
    watch_happened(b, &h);
}

static void moved(struct broker *b, struct happening *h, u8 state) {
    if (state == STATE_DEAD)
        h->kind = HAPPENING_DEAD;
    else if (state == STATE_HELD)
        h->kind = HAPPENING_HELD;
    else
        return;
    watch_happened(b, h);
}

/* Did its last delivery ask what became of an earlier one? */
static bool was_lookup(const struct broker *b, const struct ref *ref) {
    struct message_view v;
    u32 no = core_message_find(b->core, ref->hash, ref->seq);
    if (no == MESSAGE_NONE) return false;
    core_message_view(b->core, b->now, no, &v);
    return v.lookup;
}

static void return_written(struct broker *b, const struct rec_return *r) {
    struct happening h = {.queue = r->ref.queue, .ref = r->ref};
    bool ran_out = r->ended == ENDED_EXPIRED, failed = r->ended == ENDED_NACKED;
    if (failed && was_lookup(b, &r->ref))
        watched(b->watch, r->ref.queue)->answers[r->failure_class == CLASS_ABSENT ? ANSWER_ABSENT : ANSWER_UNKNOWN]++;
    if (ran_out || failed) {
        h.kind = ran_out ? HAPPENING_EXPIRED : HAPPENING_FAILED;
        h.detail = r->failure_class;
        watch_happened(b, &h);
    }
    moved(b, &h, r->state);
}

static void settle_written(struct broker *b, const struct rec_settle *s) {
    struct history_item last;
    struct happening h = {
        .kind = HAPPENING_SETTLED,
        .queue = s->ref.queue,
        .ref = s->ref,
        .detail = s->state,
        .age_ms = -1,
        .key = s->key,
        .request_id = s->request_id,
    };
    if (s->by_token && history_last_attempt(s->history, &last)) {
        h.age_ms = (i64)clamped(b->now.wall_ms - last.at_ms);
        consumer_spoke(b, s->ref.queue, last.consumer);
        if (last.lookup) watched(b->watch, s->ref.queue)->answers[ANSWER_FOUND]++;
        if (s->state == STATE_REJECTED) watched(b->watch, s->ref.queue)->failures[CLASS_REJECTED]++;
    }
    watch_happened(b, &h);
    if (s->ended != ENDED_DECIDED) return;
    h.kind = HAPPENING_RESOLVED;
    h.detail = s->state == STATE_DONE ? DECISION_DONE : DECISION_REJECTED;
    watch_happened(b, &h);
}

static void decide_written(struct broker *b, const struct rec_decide *d) {
    struct happening h = {.kind = HAPPENING_RESOLVED, .queue = d->ref.queue, .ref = d->ref, .detail = d->what};
    watch_happened(b, &h);
    if (d->state == STATE_DEAD) moved(b, &h, d->state);
}

static bool changes_config(slice what) {
    return slice_eq(what, deed_text(DEED_QUEUE_PUT)) || slice_eq(what, deed_text(DEED_QUEUE_DELETE)) ||
           slice_eq(what, deed_text(DEED_CONFIG_RELOAD));
}

static void audit_written(struct broker *b, const struct rec_audit *a) {
    struct happening h = {.kind = HAPPENING_AUDIT, .queue = a->queue, .number = a->number, .key = a->key};
    if (a->number <= b->watch->audit_number) return;
    b->watch->audit_number = a->number;
    watch_happened(b, &h);
    h.kind = HAPPENING_CONFIG;
    if (changes_config(a->what)) watch_happened(b, &h);
    report_deed(b, a);
}

/* Its number may be another's next time. */
static void queue_written(struct broker *b, const struct rec_queue *r) {
    struct watch *w = b->watch;
    if (!r->deleted) return;
    events_end_of_queue(b, r->queue);
    series_forget(b, r->queue);
    alerts_forget(b, r->queue);
    if (r->queue >= w->cap) return;
    watched_free(w->at[r->queue]);
    w->at[r->queue] = NULL;
}

void watch_delivered(struct broker *b, const struct rec_message *m, const struct lease_out *lease) {
    watch_happened(b, &(struct happening){
                          .kind = HAPPENING_DELIVERED,
                          .queue = m->ref.queue,
                          .ref = m->ref,
                          .detail = (u8)lease->delivery,
                          .age_ms = b->now.wall_ms - m->first_seen_ms,
                          .key = m->key,
                          .request_id = m->request_id,
                          .traceparent = m->traceparent,
                      });
}

void watch_record(struct broker *b, const struct record *r) {
    switch (r->type) {
    case REC_MESSAGE:
        if (!r->message.carried) message_written(b, &r->message);
        break;
    case REC_RETURN:
        return_written(b, &r->ret);
        break;
    case REC_SETTLE:
        if (!r->settle.carried) settle_written(b, &r->settle);
        break;
    case REC_DECIDE:
        decide_written(b, &r->decide);
        break;
    case REC_AUDIT:
        audit_written(b, &r->audit);
        break;
    case REC_QUEUE:
        queue_written(b, &r->queue);
        break;
    default:
        break;
    }
}
