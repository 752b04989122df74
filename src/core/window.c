/* Windows: how long a settled key is remembered, and how it is forgotten.
 *
 * A key lives for its queue's window from its settlement, counted in running time. Keys that settled in the same stretch
 * of time (a 256th of the window) share a bucket. When a bucket's last key is past its window, one EXPIRE record says
 * so; from then on its keys are unknown. Their entries are freed a few at a time, so that forgetting a million keys stalls
 * nobody. A look-up before that judges by the exact time.
 *
 * A window that is changed may lengthen what a key was promised, never shorten it. When rules bring a shorter one, the queue
 * keeps the old one as a promise to every key settled until then: a key's window is the longest of the present one and the
 * promises made before it settled. Windows of promises fall as their moments rise, so of any two keys the older never ends
 * up with the shorter window. Keys of a shortened window are over while older ones still stand: an EXPIRE record says from
 * when on, too. What is forgotten stays so, whatever the window becomes later. */
#include "core/core_priv.h"

#define LEARN_STEP_MS 1000

i64 window_of(const struct queue *q, i64 settled_run_ms) {
    i64 window = q->rules.window_ms;
    for (u32 i = 0; i < q->promise_count; i++)
        if (settled_run_ms < q->promises[i].until_run_ms && q->promises[i].window_ms > window)
            window = q->promises[i].window_ms;
    return window;
}

i64 window_left_ms(const struct queue *q, i64 settled_run_ms, i64 run_ms) {
    i64 window = window_of(q, settled_run_ms);
    return window == WINDOW_FOREVER ? INT64_MAX : settled_run_ms + window - run_ms;
}

bool entry_forgotten(const struct core *c, const struct entry *e) {
    if (e->kind != ENTRY_SETTLED) return false;
    if (entry_former(c, e)) return true;
    const struct queue *q = queue_at(c, e->queue);
    i64 settled = (i64)e->settled_run_ms;
    for (u32 i = 0; i < q->forgotten_count; i++)
        if (settled >= q->forgotten[i].from_ms && settled < q->forgotten[i].upto_ms) return true;
    return false;
}

/* Keys settled before this are promised forever. */
static i64 forever_until(const struct queue *q) {
    i64 until = 0;
    for (u32 i = 0; i < q->promise_count; i++)
        if (q->promises[i].window_ms == WINDOW_FOREVER) until = q->promises[i].until_run_ms;
    return until;
}

static bool bucket_over(const struct core *c, const struct queue *q, const struct bucket *b) {
    i64 window = window_of(q, b->from_ms); /* of its oldest key: never the shorter one */
    return window != WINDOW_FOREVER && b->to_ms + window <= c->now.run_ms;
}

/* Behind the last bucket no key has settled that could be over: the stretch may as well reach to where it would have to be. */
static i64 nobody_until(const struct core *c, const struct queue *q, i64 upto_ms) {
    if (q->rules.window_ms == WINDOW_FOREVER) return upto_ms;
    i64 over_ms = c->now.run_ms - q->rules.window_ms;
    return over_ms > upto_ms ? over_ms : upto_ms;
}

/* A record for each stretch of time whose keys are over and lie between others that are not. There is one, unless a window
 * was shortened: then the keys of the longer one still stand before those of the shorter. A stretch begins where the last
 * bucket in force ends, not at its own first key, so that later stretches meet it. */
static void decide_queue(struct core *c, const struct queue *q) {
    struct record r = {.type = REC_EXPIRE, .expire = {.queue = q->id, .from_run_ms = forever_until(q)}};
    for (u32 i = 0; i <= q->bucket_count; i++) {
        bool over = i < q->bucket_count && bucket_over(c, q, &q->buckets[i]);
        if (over && q->buckets[i].from_ms >= r.expire.from_run_ms) {
            r.expire.upto_run_ms = q->buckets[i].to_ms;
            r.expire.keys += q->buckets[i].keys;
            continue;
        }
        if (r.expire.upto_run_ms > r.expire.from_run_ms) {
            if (i == q->bucket_count) r.expire.upto_run_ms = nobody_until(c, q, r.expire.upto_run_ms);
            u32 before = q->bucket_count;
            if (!room_for_deed(c, c->sink->cost(record_size(&r)))) return; /* until then the exact time tells */
            core_emit(c, &r);
            i -= before - q->bucket_count; /* they are gone from the list */
        }
        if (i >= q->bucket_count || q->promise_count == 0) return;
        i64 end = q->buckets[i].to_ms;
        r.expire.upto_run_ms = 0;
        r.expire.keys = 0;
        if (end > r.expire.from_run_ms) r.expire.from_run_ms = end;
    }
}

void window_decide(struct core *c) {
    for (u32 id = 1; id <= c->queue_count; id++) decide_queue(c, queue_at(c, (u16)id));
}

/* ---- changes */

static i64 learnt_window(const struct rules *r, i64 oldest_replay_ms) {
    i64 window = oldest_replay_ms * 2;
    window = (window + LEARN_STEP_MS - 1) / LEARN_STEP_MS * LEARN_STEP_MS;
    if (window < r->window_min_ms) window = r->window_min_ms;
    return window < r->window_max_ms ? window : r->window_max_ms;
}

void window_learn(struct core *c, const struct queue *q, i64 age_ms) {
    if (!rules_adaptive(&q->rules) || age_ms <= q->oldest_replay_ms) return;
    i64 window = learnt_window(&q->rules, age_ms);
    if (window <= q->rules.window_ms) return;
    struct record r = {.type = REC_WINDOW};
    r.window =
        (struct rec_window){.queue = q->id, .at_ms = c->now.wall_ms, .window_ms = window, .oldest_replay_ms = age_ms};
    if (room_for_count(c, c->sink->cost(record_size(&r)))) core_emit(c, &r); /* else the next replay teaches it */
}

static void promise_drop(struct rec_queue *r, u32 i) {
    memmove(r->promises + i, r->promises + i + 1, (r->promise_count - i - 1u) * sizeof r->promises[0]);
    r->promise_count--;
}

void window_change(const struct queue *q, i64 run_ms, struct rec_queue *r) {
    if (rules_adaptive(&r->rules)) r->rules.window_ms = learnt_window(&r->rules, r->oldest_replay_ms);
    i64 old = q ? q->rules.window_ms : 0, new = r->rules.window_ms;
    i64 least = old > new ? old : new; /* what the present and the former window cover needs no promise */
    for (u32 i = r->promise_count; i-- > 0;) {
        const struct promise *p = &r->promises[i];
        bool over = p->window_ms != WINDOW_FOREVER && p->until_run_ms + p->window_ms <= run_ms;
        if (over || p->window_ms <= least) promise_drop(r, i);
    }
    if (old <= new) return;
    if (r->promise_count == PROMISES_MAX) { /* the two oldest become one, as long as the longer of both */
        r->promises[0].until_run_ms = r->promises[1].until_run_ms;
        promise_drop(r, 1);
    }
    r->promises[r->promise_count++] = (struct promise){.until_run_ms = run_ms + 1, .window_ms = old};
}

/* Payloads kept for a replay are live bytes of the journal for as long as the rules say. */
u64 kept_bytes(const struct kept *k) {
    if (!k->is) return 0;
    return k->group.n + k->content_type.n + k->attrs.n + k->traceparent.n + k->tracestate.n + k->payload.n;
}
