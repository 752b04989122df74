#include "broker/answer.h"
#include "broker/broker_priv.h"
#include "broker/report.h"
#include "broker/target_priv.h"

struct targets {
    struct target **of;   /* [queue] */
    struct target **heap; /* those with a time, the earliest first; as large as `of` */
    u32 cap, waiting;
};

struct targets *targets_new(void) {
    return mem_zalloc(sizeof(struct targets));
}

void targets_free(struct targets *ts) {
    if (!ts) return;
    for (u32 queue = 0; queue < ts->cap; queue++)
        if (ts->of[queue]) target_free(ts->of[queue]);
    mem_free(ts->of);
    mem_free(ts->heap);
    mem_free(ts);
}

struct target *target_of(const struct broker *b, u16 queue) {
    return queue < b->targets->cap ? b->targets->of[queue] : NULL;
}

u16 target_queue(const struct target *t) {
    return t->let_go ? 0 : t->queue;
}

u32 targets_end(const struct broker *b) {
    return b->targets->cap;
}

/* ---- their times */

static void put(struct targets *ts, u32 at, struct target *t) {
    ts->heap[at] = t;
    t->heap_at = at + 1;
}

static void rise(struct targets *ts, u32 at, struct target *t) {
    for (; at > 0 && t->again_ms < ts->heap[(at - 1) / 2]->again_ms; at = (at - 1) / 2)
        put(ts, at, ts->heap[(at - 1) / 2]);
    put(ts, at, t);
}

static void sink_down(struct targets *ts, u32 at, struct target *t) {
    for (;;) {
        u32 child = at * 2 + 1;
        if (child + 1 < ts->waiting && ts->heap[child + 1]->again_ms < ts->heap[child]->again_ms) child++;
        if (child >= ts->waiting || ts->heap[child]->again_ms >= t->again_ms) break;
        put(ts, at, ts->heap[child]);
        at = child;
    }
    put(ts, at, t);
}

static void take_out(struct targets *ts, struct target *t) {
    if (t->heap_at == 0) return;
    u32 at = t->heap_at - 1;
    struct target *last = ts->heap[--ts->waiting];
    t->heap_at = 0;
    if (last == t) return;
    rise(ts, at, last);
    sink_down(ts, last->heap_at - 1, last);
}

void target_again(struct broker *b, struct target *t, i64 at_ms) {
    struct targets *ts = b->targets;
    if (t->let_go || at_ms == INT64_MAX || (t->heap_at && t->again_ms <= at_ms)) return;
    take_out(ts, t);
    t->again_ms = at_ms;
    rise(ts, ts->waiting++, t);
}

struct target *targets_due(struct broker *b, i64 mono_ms) {
    struct targets *ts = b->targets;
    if (ts->waiting == 0 || ts->heap[0]->again_ms > mono_ms) return NULL;
    struct target *t = ts->heap[0];
    take_out(ts, t);
    return t;
}

i64 targets_next_ms(const struct broker *b, i64 mono_ms, i64 next_ms) {
    const struct targets *ts = b->targets;
    if (ts->waiting == 0) return next_ms;
    i64 left_ms = ts->heap[0]->again_ms - mono_ms;
    if (left_ms < 0) left_ms = 0;
    return left_ms < next_ms ? left_ms : next_ms;
}

/* ---- pausing */

enum pause_verdict targets_pause(struct broker *b, u16 queue, bool paused, const struct audit_in *audit) {
    struct target *t = target_of(b, queue);
    enum pause_verdict v = core_push_pause(b->core, b->now, queue, paused, audit);
    if (v == PAUSE_FULL) return v;
    if (v == PAUSE_OK) target_pause(t, b->now.wall_ms, paused, audit->who, audit->why);
    if (!paused) target_try(t, b->time.mono_ms);
    if (!paused) target_again(b, t, b->time.mono_ms);
    return v;
}

enum pause_verdict targets_gone(struct broker *b, u16 queue, const struct audit_in *audit) {
    struct target *t = target_of(b, queue);
    enum pause_verdict v = core_push_gone(b->core, b->now, queue, audit);
    if (v == PAUSE_NO_CHANGE) return v;
    target_pause(t, b->now.wall_ms, true, audit->who, audit->why); /* without room for it too: as long as we run */
    target_gone(t, b->time.mono_ms);
    return v;
}

void targets_stay_paused(struct broker *b, u16 queue, bool gone) {
    struct target *t = target_of(b, queue);
    if (t->paused) return;
    target_pause(t, 0, true, SL(""), SL(""));
    if (gone) target_gone(t, b->time.mono_ms);
}

void targets_tell(struct broker *b, u16 queue) {
    struct target *t = target_of(b, queue);
    if (!t) return;
    const struct circuit *c = &t->circuit;
    bool down = c->state != CIRCUIT_CLOSED;
    if (down == t->told_down) return;
    t->told_down = down;
    if (down)
        report(b, LOG_WARN, "target_down", "too many calls failed: nothing is sent to this queue's target but probes",
               log_text("queue", core_queue_name(b->core, queue)),
               log_text("detail", answer_reason(slice_str(t->error.why), false)),
               log_number("probe_in_ms", c->probe_ms - b->time.mono_ms));
    else
        report(b, LOG_INFO, "target_back", "this queue's target answers again",
               log_text("queue", core_queue_name(b->core, queue)), log_number("down_ms", c->since_ms - c->failed_ms));
}

/* ---- as the rules are */

static void grow(struct targets *ts, u16 queue) {
    if (queue < ts->cap) return;
    u32 cap = queue + 64u;
    ts->of = mem_realloc(ts->of, cap * sizeof *ts->of);
    ts->heap = mem_realloc(ts->heap, cap * sizeof *ts->heap);
    memset(ts->of + ts->cap, 0, (cap - ts->cap) * sizeof *ts->of);
    ts->cap = cap;
}

static void let_go(struct targets *ts, u16 queue) {
    struct target *t = ts->of[queue];
    ts->of[queue] = NULL;
    take_out(ts, t);
    target_free(t);
}

void targets_bind(struct broker *b, u16 queue, const struct target_rules *r, u64 place) {
    struct targets *ts = b->targets;
    i64 now_ms = b->time.mono_ms;
    struct target *t = target_of(b, queue);
    if (!r) {
        if (t) let_go(ts, queue);
        return;
    }
    grow(ts, queue);
    if (t) {
        target_rule(t, now_ms, r, t->place != place);
        circuit_try(&t->circuit, now_ms);
    } else {
        t = ts->of[queue] = target_new(r, b->options.seed ^ queue, now_ms);
        t->queue = queue;
    }
    t->place = place;
    target_again(b, t, now_ms); /* what was kept back by the rules before may go by these */
}
