#include "broker/series.h"

#include "base/json.h"
#include "broker/alerts.h"
#include "broker/broker_priv.h"
#include "broker/budget.h"
#include "broker/render.h"

#define LOOK_AT      200u /* messages of each lane */
#define MINUTES      5u   /* of waits that the p95 is of */
#define STEPS_MINUTE 6u
#define RATE_STEPS   6u /* rates are of the last minute */
#define SPARK_STEPS  12u
#define SPARKS       30u

struct queue_series {
    u32 last;   /* the step written last */
    u32 active; /* the last in which something happened */
    u64 before[SERIES_COUNT];
    u32 at[SERIES_STEPS][SERIES_COUNT];
    u32 gauges[SERIES_STEPS][GAUGE_COUNT];
    struct hist waited[MINUTES + 1]; /* as it stood at the end of each of the last minutes */
    struct ref started;              /* of those begun and unsettled the oldest that was seen */
    struct queue_live live;
};

struct series {
    struct queue_series **at; /* by queue; [0] is the whole broker */
    u32 cap, count;
    u32 step;       /* the one being written; 0: none */
    u16 looking_at; /* this queue's step is written, though not all are */
    u32 cursor;     /* the next queue to look at; 0: all have been */
    u64 total[SERIES_COUNT], gauges[GAUGE_COUNT];
};

struct series *series_new(void) {
    return mem_zalloc(sizeof(struct series));
}

void series_free(struct series *s) {
    for (u32 i = 0; i < s->cap; i++) mem_free(s->at[i]);
    mem_free(s->at);
    mem_free(s);
}

static const struct queue_series *series_at(const struct broker *b, u16 queue) {
    const struct series *s = b->series;
    return queue < s->cap ? s->at[queue] : NULL;
}

bool series_known(const struct broker *b, u16 queue) {
    return series_at(b, queue) != NULL;
}

void series_forget(struct broker *b, u16 queue) {
    struct series *s = b->series;
    if (queue >= s->cap || !s->at[queue]) return;
    mem_free(s->at[queue]);
    s->at[queue] = NULL;
    s->count--;
}

static struct queue_series *series_make(struct series *s, u16 queue) {
    if (s->count == SERIES_MAX) return NULL;
    if (queue >= s->cap) {
        u32 cap = s->cap ? s->cap : 16;
        while (cap <= queue) cap *= 2;
        s->at = mem_realloc(s->at, cap * sizeof *s->at);
        memset(s->at + s->cap, 0, (cap - s->cap) * sizeof *s->at);
        s->cap = cap;
    }
    s->count++;
    return s->at[queue] = mem_zalloc(sizeof **s->at);
}

/* ---- looking at a queue */

static void clear_between(struct queue_series *qs, u32 step) {
    u32 from = step - qs->last > SERIES_STEPS ? step - SERIES_STEPS : qs->last;
    for (u32 i = from + 1; i <= step; i++) {
        memset(qs->at[i % SERIES_STEPS], 0, sizeof qs->at[0]);
        memset(qs->gauges[i % SERIES_STEPS], 0, sizeof qs->gauges[0]);
    }
    qs->last = step;
}

static u32 clamp(u64 v) {
    return v < UINT32_MAX ? (u32)v : UINT32_MAX;
}

static void write_step(struct queue_series *qs, u32 step, const u64 *counts, const u64 *gauges) {
    bool active = gauges[GAUGE_ready] || gauges[GAUGE_leased];
    clear_between(qs, step);
    for (u32 i = 0; i < SERIES_COUNT; i++) {
        u64 added = counts[i] > qs->before[i] ? counts[i] - qs->before[i] : 0;
        qs->at[step % SERIES_STEPS][i] = clamp(added);
        qs->before[i] = counts[i];
        active = active || added;
    }
    for (u32 i = 0; i < GAUGE_COUNT; i++) qs->gauges[step % SERIES_STEPS][i] = clamp(gauges[i]);
    if (active) qs->active = step;
}

static void look_at_waits(struct queue_series *qs, u32 step, const struct queue_watch *w) {
    struct hist since = w->wait;
    const struct hist *then = &qs->waited[(step / STEPS_MINUTE + 1) % (MINUTES + 1)];
    for (u32 i = 0; i <= HIST_BOUNDS; i++) since.count[i] -= then->count[i];
    qs->live.waits = hist_total(&since);
    qs->live.wait_p95_ms = hist_quantile(&since, work_bounds_ms, 95);
    qs->waited[step / STEPS_MINUTE % (MINUTES + 1)] = w->wait;
}

/* The oldest that was found stays so through its retries, though it is not leased all the time. */
static void look_at_ages(struct broker *b, struct queue_series *qs, u16 queue) {
    struct queue_ages ages;
    i64 began_ms = INT64_MAX;
    core_queue_ages(b->core, b->now, queue, LOOK_AT, &ages);
    qs->live.oldest_held_ms = ages.oldest_held_ms;
    qs->live.blocked_groups = ages.blocked_groups;
    if (qs->started.seq && !core_started_ms(b->core, &qs->started, &began_ms)) began_ms = INT64_MAX;
    if (ages.started_ms < began_ms) {
        began_ms = ages.started_ms;
        qs->started = ages.started;
    }
    i64 age_ms = began_ms == INT64_MAX ? 0 : b->now.wall_ms - began_ms;
    qs->live.oldest_unsettled_ms = age_ms > 0 ? age_ms : 0;
    qs->live.started = age_ms > 0 ? qs->started : (struct ref){0};
    qs->live.held = ages.held;
    qs->live.blocking = ages.blocking;
}

static void look_at_queue(struct broker *b, u16 queue) {
    static const struct queue_watch nothing;
    struct series *s = b->series;
    struct queue_info info;
    core_queue_info(b->core, b->now, queue, &info);
    if (info.deleted) return;
    struct counters since = since_start(b, &info);
    const struct counters *c = &since;
    const struct queue_info *q = &info;
    const struct queue_watch *w = queue_watch(b, queue) ? queue_watch(b, queue) : &nothing;
#define SERIES_VALUE(name, value) value,
    const u64 counts[SERIES_COUNT] = {SERIES_LIST(SERIES_VALUE)};
#undef SERIES_VALUE
#define GAUGE_VALUE(name, value) value,
    const u64 gauges[GAUGE_COUNT] = {GAUGE_LIST(GAUGE_VALUE)};
#undef GAUGE_VALUE
    u64 any = info.unsettled;
    for (u32 i = 0; i < SERIES_COUNT; i++) {
        s->total[i] += counts[i];
        any |= counts[i];
    }
    for (u32 i = 0; i < GAUGE_COUNT; i++) s->gauges[i] += gauges[i];
    struct queue_series *qs = queue < s->cap ? s->at[queue] : NULL;
    if (!qs && any) qs = series_make(s, queue);
    if (!qs && !alerts_concern(b, &info)) return;
    if (qs) {
        write_step(qs, s->step, counts, gauges);
        look_at_waits(qs, s->step, w);
        look_at_ages(b, qs, queue);
    }
    s->looking_at = queue;
    alerts_judge_queue(b, &info);
    s->looking_at = 0;
    if (qs && s->step - qs->active > SERIES_STEPS && info.unsettled == 0) series_forget(b, queue);
}

/* ---- the walk over all of them */

static void begin_step(struct series *s, u32 step) {
    s->step = step;
    s->cursor = 1;
    memset(s->total, 0, sizeof s->total);
    memset(s->gauges, 0, sizeof s->gauges);
}

static void end_step(struct series *s) {
    struct queue_series *all = s->cap && s->at[0] ? s->at[0] : series_make(s, 0);
    s->cursor = 0;
    if (all) write_step(all, s->step, s->total, s->gauges);
}

void series_run(struct broker *b) {
    struct series *s = b->series;
    struct budget g = budget_of(b, WATCH_US);
    u32 step = (u32)(b->time.mono_ms / SERIES_STEP_MS);
    if (s->cursor == 0 && step == s->step)
        return; /* at a start it is not: what was there before is looked at at once */
    if (s->cursor == 0) begin_step(s, step);
    for (; s->cursor <= core_queue_count(b->core); s->cursor++) {
        if (budget_spent(&g)) return;
        look_at_queue(b, (u16)s->cursor);
    }
    end_step(s);
    alerts_judge_process(b);
}

/* ---- showing them */

static u32 count_at(const struct queue_series *qs, u32 step, enum series_kind kind) {
    return step <= qs->last && qs->last - step < SERIES_STEPS ? qs->at[step % SERIES_STEPS][kind] : 0;
}

/* Of all queues; of the one being looked at the next has been written already. */
static u32 last_step(const struct broker *b, u16 queue) {
    const struct series *s = b->series;
    return s->cursor && !(queue && queue == s->looking_at) ? s->step - 1 : s->step;
}

u64 series_sum(const struct broker *b, u16 queue, enum series_kind kind, u32 steps) {
    const struct queue_series *qs = series_at(b, queue);
    u64 sum = 0;
    for (u32 i = 0; qs && i < steps; i++) sum += count_at(qs, last_step(b, queue) - i, kind);
    return sum;
}

const struct queue_live *queue_live(const struct broker *b, u16 queue) {
    static const struct queue_live nothing;
    const struct queue_series *qs = series_at(b, queue);
    return qs ? &qs->live : &nothing;
}

static void put_counts(const struct queue_series *qs, struct buf *out, enum series_kind kind, u32 first, u32 steps,
                       u32 together) {
    for (u32 i = 0; i < steps; i += together) {
        u64 sum = 0;
        for (u32 k = 0; qs && k < together; k++) sum += count_at(qs, first + i + k, kind);
        if (i) buf_char(out, ',');
        buf_dec(out, sum);
    }
}

static void put_gauge(const struct queue_series *qs, struct buf *out, enum gauge_kind kind, u32 first, u32 steps,
                      u32 together) {
    for (u32 i = 0; i < steps; i += together) {
        u32 at = first + i + together - 1;
        bool known = qs && at <= qs->last && qs->last - at < SERIES_STEPS;
        if (i) buf_char(out, ',');
        buf_dec(out, known ? qs->gauges[at % SERIES_STEPS][kind] : 0);
    }
}

/* A step before the machine was started is below 0. */
static i64 wall_of_step(const struct broker *b, u32 step) {
    return b->time.wall_ms - (b->time.mono_ms - (i64)(int32_t)step * SERIES_STEP_MS);
}

void put_series(const struct broker *b, struct buf *out, u16 queue, u32 steps, u32 together) {
    static const char *const names[] = {
#define SERIES_NAME(name, value) #name,
        SERIES_LIST(SERIES_NAME)
#undef SERIES_NAME
    };
    static const char *const gauge_names[] = {
#define GAUGE_NAME(name, value) #name,
        GAUGE_LIST(GAUGE_NAME)
#undef GAUGE_NAME
    };
    const struct queue_series *qs = series_at(b, queue);
    steps -= steps % together;
    u32 first = last_step(b, queue) - steps + 1;
    json_put_member_time(out, "from", wall_of_step(b, first));
    json_put_member_i64(out, "step_ms", (i64)together * SERIES_STEP_MS);
    json_put_name(out, "series");
    for (u32 i = 0; i < SERIES_COUNT; i++) {
        buf_printf(out, "%s\"%s\":[", i ? "]," : "{", names[i]);
        put_counts(qs, out, (enum series_kind)i, first, steps, together);
    }
    buf_lit(out, "]}");
    if (queue == 0) return; /* no one of them means anything added up */
    json_put_name(out, "gauges");
    for (u32 i = 0; i < GAUGE_COUNT; i++) {
        buf_printf(out, "%s\"%s\":[", i ? "]," : "{", gauge_names[i]);
        put_gauge(qs, out, (enum gauge_kind)i, first, steps, together);
    }
    buf_lit(out, "]}");
}

double duplicate_ratio(const struct broker *b, u16 queue) {
    u64 duplicates = series_sum(b, queue, SERIES_duplicates, SERIES_STEPS);
    u64 arrivals = duplicates + series_sum(b, queue, SERIES_accepted, SERIES_STEPS);
    return arrivals ? (double)duplicates / (double)arrivals : 0;
}

static void put_rate(const struct broker *b, struct buf *out, const char *name, u16 queue, enum series_kind kind) {
    u64 hundredths = series_sum(b, queue, kind, RATE_STEPS) * 100000 / (RATE_STEPS * (u64)SERIES_STEP_MS);
    json_put_name(out, name);
    buf_printf(out, "%llu.%02llu", (unsigned long long)(hundredths / 100), (unsigned long long)(hundredths % 100));
}

void put_live(const struct broker *b, struct buf *out, const struct queue_info *q) {
    const struct queue_live *live = queue_live(b, q->queue);
    json_put_name(out, "live");
    buf_char(out, '{');
    put_rate(b, out, "accepted_per_s", q->queue, SERIES_accepted);
    put_rate(b, out, "duplicates_per_s", q->queue, SERIES_duplicates);
    put_rate(b, out, "settled_per_s", q->queue, SERIES_settled);
    put_rate(b, out, "failed_per_s", q->queue, SERIES_failed);
    json_put_name(out, "duplicate_ratio");
    buf_printf(out, "%.4f", duplicate_ratio(b, q->queue));
    json_put_name(out, "wait_p95_ms");
    if (live->waits)
        buf_dec(out, live->wait_p95_ms);
    else
        buf_lit(out, "null");
    json_put_member_i64(out, "oldest_ready_ms", q->oldest_ready_ms);
    json_put_member_i64(out, "oldest_unsettled_ms", live->oldest_unsettled_ms);
    if (live->started.seq) put_id(out, "oldest_unsettled_id", &live->started);
    json_put_member_i64(out, "oldest_held_ms", live->oldest_held_ms);
    json_put_member_i64(out, "blocked_groups", live->blocked_groups);
    json_put_member_i64(out, "alerts", alerts_firing(b, q->queue));
    buf_lit(out, ",\"spark\":[");
    put_counts(series_at(b, q->queue), out, SERIES_accepted, last_step(b, q->queue) - SPARKS * SPARK_STEPS + 1,
               SPARKS * SPARK_STEPS, SPARK_STEPS);
    buf_lit(out, "]}");
}
