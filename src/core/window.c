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
 * up with the shorter window, and keys of a shortened window may stay in memory (though not in force) until the older ones'
 * promises have run out. Only a promise of forever is passed over: its keys stay and hold nobody back, so an EXPIRE record
 * says from when on, too. What is forgotten stays so, whatever the window becomes later. */
#include "core/core_priv.h"

#define BUCKETS_PER_WINDOW 256
#define WIDTH_MIN_MS       1000
#define LEARN_STEP_MS      1000
#define KEPT_STRETCH_MS    600000

static i64 window_of(const struct queue *q, i64 settled_run_ms) {
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

/* The first bucket that ends after this moment. */
static u32 bucket_lower(const struct queue *q, i64 run_ms) {
    u32 low = 0, high = q->bucket_count;
    while (low < high) {
        u32 mid = (low + high) / 2;
        if (q->buckets[mid].to_ms <= run_ms)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static struct bucket bucket_around(const struct queue *q, i64 run_ms, u32 at) {
    i64 width = q->rules.window_ms / BUCKETS_PER_WINDOW;
    if (width < WIDTH_MIN_MS) width = WIDTH_MIN_MS;
    struct bucket b = {.from_ms = run_ms / width * width};
    b.to_ms = b.from_ms + width;
    for (u32 i = 0; i < q->promise_count; i++) /* keys before and after such a moment have windows of their own */
        if (q->promises[i].until_run_ms <= run_ms && q->promises[i].until_run_ms > b.from_ms)
            b.from_ms = q->promises[i].until_run_ms;
    if (at > 0 && q->buckets[at - 1].to_ms > b.from_ms) b.from_ms = q->buckets[at - 1].to_ms;
    if (at < q->bucket_count && q->buckets[at].from_ms < b.to_ms) b.to_ms = q->buckets[at].from_ms;
    return b;
}

static struct bucket *bucket_for(struct queue *q, i64 run_ms) {
    u32 at = q->bucket_count;
    if (at > 0 && q->buckets[at - 1].to_ms > run_ms) { /* else the common case: a new one behind the last */
        if (q->buckets[at - 1].from_ms <= run_ms) return &q->buckets[at - 1];
        at = bucket_lower(q, run_ms);
        if (q->buckets[at].from_ms <= run_ms) return &q->buckets[at];
    }
    struct bucket b = bucket_around(q, run_ms, at);
    if (q->bucket_count == q->bucket_cap) {
        q->bucket_cap = q->bucket_cap ? q->bucket_cap * 2 : 16;
        q->buckets = mem_realloc(q->buckets, q->bucket_cap * sizeof *q->buckets);
    }
    if (at < q->bucket_count)
        memmove(q->buckets + at + 1, q->buckets + at, (q->bucket_count - at) * sizeof *q->buckets);
    q->bucket_count++;
    q->buckets[at] = b;
    return &q->buckets[at];
}

void window_cut(struct queue *q, i64 run_ms) {
    if (q->bucket_count == 0) return;
    struct bucket *last = &q->buckets[q->bucket_count - 1];
    if (last->from_ms <= run_ms && last->to_ms > run_ms + 1) last->to_ms = run_ms + 1;
}

void window_add(struct core *c, u32 entry) {
    struct entry *e = index_entry(&c->keys, entry);
    struct queue *q = queue_at(c, e->queue);
    q->settled_keys++;
    if (window_of(q, (i64)e->settled_run_ms) == WINDOW_FOREVER) return;
    struct bucket *b = bucket_for(q, (i64)e->settled_run_ms);
    e->next = b->head;
    e->bucketed = 1;
    b->head = entry;
    b->keys++;
}

void window_remove(struct core *c, u32 entry) {
    struct entry *e = index_entry(&c->keys, entry);
    struct queue *q = queue_at(c, e->queue);
    q->settled_keys--;
    index_remove(&c->keys, entry);
    if (!e->bucketed) {
        index_release(&c->keys, entry);
        return;
    }
    bucket_for(q, (i64)e->settled_run_ms)->keys--;
    e->kind = ENTRY_GONE; /* still linked: freed with its bucket */
}

static void bucket_to_reap(struct core *c, struct queue *q, const struct bucket *b) {
    q->settled_keys -= b->keys;
    if (c->reaping_count == c->reaping_cap) {
        c->reaping_cap = c->reaping_cap ? c->reaping_cap * 2 : 16;
        c->reaping = mem_realloc(c->reaping, c->reaping_cap * sizeof *c->reaping);
    }
    c->reaping[c->reaping_count++] = *b;
}

/* A range for each time the window came back from forever; nearly always one. */
static void forgotten_note(struct queue *q, i64 from_run_ms, i64 upto_run_ms) {
    u32 i = 0;
    while (i < q->forgotten_count && q->forgotten[i].from_ms != from_run_ms) i++;
    if (i == q->forgotten_count) {
        q->forgotten = mem_realloc(q->forgotten, (i + 1) * sizeof *q->forgotten);
        q->forgotten[q->forgotten_count++] = (struct forgotten_range){.from_ms = from_run_ms};
    }
    if (upto_run_ms > q->forgotten[i].upto_ms) q->forgotten[i].upto_ms = upto_run_ms;
}

void window_forget(struct core *c, struct queue *q, i64 from_run_ms, i64 upto_run_ms) {
    forgotten_note(q, from_run_ms, upto_run_ms);
    u32 kept = 0;
    for (u32 i = 0; i < q->bucket_count; i++) {
        const struct bucket *b = &q->buckets[i];
        if (b->from_ms >= from_run_ms && b->to_ms <= upto_run_ms)
            bucket_to_reap(c, q, b);
        else
            q->buckets[kept++] = *b;
    }
    q->bucket_count = kept;
}

static void reap(struct core *c, u32 entry) {
    struct entry *e = index_entry(&c->keys, entry);
    if (e->kind == ENTRY_SETTLED) {
        INVARIANT(7, entry_forgotten(c, e));
        c->live_bytes -= entry_size(e);
        arrivals_forget(c, entry);
        index_remove(&c->keys, entry);
    }
    index_release(&c->keys, entry);
}

bool window_reap(struct core *c, u32 budget) {
    while (c->reaping_count > 0) {
        struct bucket *b = &c->reaping[c->reaping_count - 1];
        while (b->head != ENTRY_NONE) {
            if (budget-- == 0) return true;
            u32 entry = b->head;
            b->head = index_entry(&c->keys, entry)->next;
            reap(c, entry);
        }
        c->reaping_count--;
    }
    return false;
}

/* Older keys never have the shorter window: the first bucket still in force ends the search. */
static void decide_queue(struct core *c, struct queue *q) {
    if (q->rules.window_ms == WINDOW_FOREVER) return;
    struct record r = {.type = REC_EXPIRE};
    r.expire = (struct rec_expire){.queue = q->id, .from_run_ms = forever_until(q)};
    bool any = false;
    for (u32 i = 0; i < q->bucket_count; i++) {
        const struct bucket *b = &q->buckets[i];
        if (b->to_ms <= r.expire.from_run_ms) continue;
        bool whole = b->from_ms >= r.expire.from_run_ms; /* else its older keys stay for ever, and it with them */
        if (b->to_ms + window_of(q, whole ? b->from_ms : r.expire.from_run_ms) > c->now.run_ms) break;
        r.expire.upto_run_ms = b->to_ms;
        r.expire.keys += whole ? b->keys : 0;
        any |= whole;
    }
    if (any) core_emit(c, &r);
}

void window_decide(struct core *c) {
    for (u32 id = 1; id <= c->queue_count; id++) decide_queue(c, queue_at(c, (u16)id));
}

void window_sweep(struct core *c, u32 budget) {
    if (c->sweep_at == 0) return;
    for (; budget > 0 && c->sweep_at < c->keys.entries_top; budget--, c->sweep_at++) {
        const struct entry *e = index_entry(&c->keys, c->sweep_at);
        if (e->kind != ENTRY_SETTLED || e->bucketed || !queue_at(c, e->queue)->deleted) continue;
        c->live_bytes -= entry_size(e);
        arrivals_forget(c, c->sweep_at);
        window_remove(c, c->sweep_at);
    }
    if (c->sweep_at >= c->keys.entries_top) c->sweep_at = 0;
}

/* ---- changes */

static i64 learnt_window(const struct rules *r, i64 oldest_replay_ms) {
    i64 window = oldest_replay_ms * 2;
    window = (window + LEARN_STEP_MS - 1) / LEARN_STEP_MS * LEARN_STEP_MS;
    if (window < r->window_min_ms) window = r->window_min_ms;
    return window < r->window_max_ms ? window : r->window_max_ms;
}

void window_learn(struct core *c, struct queue *q, i64 age_ms) {
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

/* ---- payloads kept for a replay: live bytes of the journal for as long as the rules say */

u64 kept_bytes(const struct kept *k) {
    if (!k->is) return 0;
    return k->group.n + k->content_type.n + k->attrs.n + k->traceparent.n + k->tracestate.n + k->payload.n;
}

void kept_add(struct core *c, struct queue *q, i64 settled_run_ms, u64 bytes) {
    i64 number = settled_run_ms / KEPT_STRETCH_MS;
    u32 at = q->kept_count;
    while (at > 0 && q->kept[at - 1].number > number) at--;
    c->live_bytes += bytes;
    if (at > 0 && q->kept[at - 1].number == number) {
        q->kept[at - 1].bytes += bytes;
        return;
    }
    if (q->kept_count == q->kept_cap) {
        q->kept_cap = q->kept_cap ? q->kept_cap * 2 : 16;
        q->kept = mem_realloc(q->kept, q->kept_cap * sizeof *q->kept);
    }
    memmove(q->kept + at + 1, q->kept + at, (q->kept_count - at) * sizeof *q->kept);
    q->kept[at] = (struct kept_stretch){.number = number, .bytes = bytes};
    q->kept_count++;
}

void kept_expire(struct core *c) {
    for (u32 id = 1; id <= c->queue_count; id++) {
        struct queue *q = queue_at(c, (u16)id);
        u32 over = 0;
        for (; over < q->kept_count; over++) {
            i64 end = (q->kept[over].number + 1) * KEPT_STRETCH_MS;
            if (!q->deleted && end + q->rules.keep_payload_ms > c->now.run_ms) break;
            c->live_bytes -= q->kept[over].bytes;
        }
        if (over == 0) continue;
        q->kept_count -= over;
        memmove(q->kept, q->kept + over, q->kept_count * sizeof *q->kept);
    }
}
