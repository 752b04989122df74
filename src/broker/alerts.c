#include "broker/alerts.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/json.h"
#include "broker/access.h"
#include "broker/api.h"
#include "broker/broker_priv.h"
#include "broker/call.h"
#include "broker/effects.h"
#include "broker/ingest.h"
#include "broker/limits.h"
#include "broker/lookup.h"
#include "broker/metrics.h"
#include "broker/parse.h"
#include "broker/queue_rules.h"
#include "broker/render.h"
#include "broker/report.h"
#include "broker/room.h"
#include "broker/scope.h"
#include "broker/series.h"
#include "broker/target.h"

#define HOUR_MS             ((i64)3600 * 1000)
#define DAY_MS              (24 * HOUR_MS)
#define CALM_LOOKS          3u /* it has not held for so many looks: resolved */
#define FIRED_KEPT          8u
#define QUARTER_STEPS       90u  /* of the series: 15 minutes */
#define ARRIVALS_LEAST      100u /* below, a ratio says nothing */
#define MISSING_LEAST       10.0 /* repeats that should have come */
#define DAYS_LEAST          5u
#define DEAD_COUNT          10u /* dead.alert, where nothing is said */
#define DEAD_WITHIN_MS      ((i64)15 * 60 * 1000)
#define WAITS_LEAST         20u
#define HANDED_LEAST        100u
#define SYNCS_LEAST         100u
#define INGEST_REFUSED_MOST 0.5 /* of what a source sends */
#define PUSH_DOWN_MS        ((i64)5 * 60 * 1000)
#define ORIGINS             1024u
#define ORIGINS_SKEWED      5u
#define SYNC_MINUTES        5u
#define SYNC_HOURS          24u
#define STEPS_IN_MINUTE     6u
#define STEPS_IN_HOUR       360u

struct alert_one {
    u8 state; /* enum alert_state */
    u8 calm;  /* looks in a row at which it did not hold */
    u8 fired_count;
    i64 holds_mono_ms, ended_mono_ms;
    i64 since_ms; /* wall clock: of this state */
    i64 fired_mono_ms[FIRED_KEPT];
    double value, threshold;
    struct ref about; /* the message or key it is about; seq 0: of no single one */
};

/* Of one queue. */
struct queue_alerting {
    struct alert_one at[ALERT_COUNT];
    u32 day;                          /* UTC, since 1970: the one being counted */
    u64 day_accepted, day_duplicates; /* as they stood when it began */
    u64 duplicates;                   /* as they stood when one was last seen, */
    u64 accepted_then;                /* and what had been accepted by then */
    u64 doubled;
    i64 doubled_mono_ms;
    struct ref doubled_before; /* the key of which recovery told that */
    double ingest_refused;     /* of the worst source that sends here, at that look */
    u32 ingest_look;
    struct { /* deaths in stretches too long for the series */
        i64 began_mono_ms;
        u64 at_begin, before;
    } dead;
    struct origin_seen {
        u64 origin, key;
        i64 mono_ms;
        bool skewed;
    } * origins; /* ORIGINS of them, by their hash; a younger one does not push an older one out for an hour */
};

struct alerts {
    struct queue_alerting **of; /* by queue; [0] is the process */
    u32 cap, count;
    struct queue_config *plain; /* what holds where nothing was said */
    bool judged;                /* all queues once, since the start */
    struct hist sync_minutes[SYNC_MINUTES + 1], sync_hours[SYNC_HOURS + 1];
    u32 looks;
    struct buf json;
};

enum alert_unit { UNIT_COUNT, UNIT_SECONDS, UNIT_RATIO };
static const char *const names[ALERT_COUNT] = {
#define ALERT_NAME(ident, text) [ALERT_##ident] = (text),
    ALERT_LIST(ALERT_NAME)
#undef ALERT_NAME
};
static const struct {
    const char *runbook, *sentence;
    enum alert_unit unit;
} says[ALERT_COUNT] = {
#define ALERT(ident, unit, runbook, sentence) [ALERT_##ident] = {runbook, sentence, UNIT_##unit},
#include "config/alerts.def"
};
static const u8 gravest_first[ALERT_COUNT] = {
#define ALERT(ident, unit, runbook, sentence) ALERT_##ident,
#include "config/alerts.def"
};
const char *alert_state_text(enum alert_state s) {
    static const char *const texts[] = {"ok", "pending", "firing", "resolved"};
    return texts[s];
}

const char *alert_name(enum alert a) {
    return names[a];
}

struct alerts *alerts_new(void) {
    struct alerts *a = mem_zalloc(sizeof *a);
    a->plain = config_queue_default(SL("queue"));
    return a;
}

static void alerting_free(struct queue_alerting *qa) {
    if (qa) mem_free(qa->origins);
    mem_free(qa);
}

void alerts_free(struct alerts *a) {
    for (u32 i = 0; i < a->cap; i++) alerting_free(a->of[i]);
    mem_free(a->of);
    config_queue_free(a->plain);
    buf_free(&a->json);
    mem_free(a);
}

static struct queue_alerting *alerting_at(const struct broker *b, u16 queue) {
    const struct alerts *a = b->alerts;
    return queue < a->cap ? a->of[queue] : NULL;
}

void alerts_forget(struct broker *b, u16 queue) {
    if (!alerting_at(b, queue)) return;
    alerting_free(b->alerts->of[queue]);
    b->alerts->of[queue] = NULL;
    b->alerts->count--;
}

/* NULL: there are too many. */
static struct queue_alerting *alerting_make(struct broker *b, u16 queue) {
    struct alerts *a = b->alerts;
    if (alerting_at(b, queue)) return a->of[queue];
    if (a->count == ALERT_QUEUES_MAX) return NULL;
    if (queue >= a->cap) {
        u32 cap = a->cap ? a->cap : 16;
        while (cap <= queue) cap *= 2;
        a->of = mem_realloc(a->of, cap * sizeof(struct queue_alerting *));
        memset(a->of + a->cap, 0, (cap - a->cap) * sizeof(struct queue_alerting *));
        a->cap = cap;
    }
    a->count++;
    struct queue_alerting *qa = a->of[queue] = mem_zalloc(sizeof *qa);
    qa->day = (u32)(b->now.wall_ms / DAY_MS);
    qa->doubled_mono_ms = INT64_MIN / 2;
    return qa;
}

static const struct queue_config *rules_said(const struct broker *b, u16 queue) {
    const struct queue_config *said = queue ? queue_rules_of(b, queue)->config : NULL;
    return said ? said : b->alerts->plain;
}

/* ---- showing one */

static void put_amount(struct buf *out, enum alert_unit unit, double v) {
    if (unit == UNIT_SECONDS && v >= 1)
        buf_duration(out, (i64)v * 1000);
    else if (unit == UNIT_SECONDS)
        buf_printf(out, "%.3g ms", v * 1000);
    else if (unit == UNIT_RATIO)
        buf_printf(out, "%.3g %%", v * 100);
    else if (v >= 1000)
        buf_printf(out, "%.0f", v); /* a count: a million is not 1e+06 to whoever reads it at night */
    else
        buf_printf(out, "%.6g", v);
}

static u32 fired_within_hour(const struct broker *b, const struct alert_one *one) {
    u32 count = 0;
    for (u32 i = 0; i < FIRED_KEPT && i < one->fired_count; i++)
        count += b->time.mono_ms - one->fired_mono_ms[i] < HOUR_MS;
    return count;
}

static void put_summary(struct buf *out, enum alert a, const struct alert_one *one) {
    struct buf text = {0};
    put_amount(&text, says[a].unit, one->value);
    buf_lit(&text, " (alert at ");
    put_amount(&text, says[a].unit, one->threshold);
    buf_printf(&text, "). %s", says[a].sentence);
    json_put_member(out, "summary", buf_slice(&text));
    buf_free(&text);
}

/* Its id, and its key if it is still known. */
static void put_about(struct broker *b, struct buf *out, const struct ref *ref) {
    const struct seen *s = lookup_id(b, b->other, ref->hash, ref->seq);
    put_id(out, "id", ref);
    if (s && seen_key(s).n) put_shown_key(b, out, s->at.queue, seen_key(s));
}

static void put_item(struct broker *b, struct buf *out, enum alert a, u16 queue) {
    const struct alert_one *one = &alerting_at(b, queue)->at[a];
    slice owner = rules_said(b, queue)->dead_owner;
    struct queue_info q;
    buf_char(out, '{');
    json_put_member(out, "name", slice_str(alert_name(a)));
    if (queue) {
        core_queue_info(b->core, b->now, queue, &q);
        json_put_member(out, "queue", q.name);
    }
    json_put_member(out, "state", slice_str(alert_state_text(one->state)));
    json_put_member_time(out, "since", one->since_ms);
    json_put_name(out, "value");
    buf_printf(out, "%.9g", one->value);
    json_put_name(out, "threshold");
    buf_printf(out, "%.9g", one->threshold);
    put_summary(out, a, one);
    json_put_name(out, "runbook");
    buf_printf(out, "\"docs/runbooks/%s\"", says[a].runbook);
    if (owner.n) json_put_member(out, "owner", owner);
    json_put_member_i64(out, "count_1h", fired_within_hour(b, one));
    if (one->about.seq) put_about(b, out, &one->about);
    buf_char(out, '}');
}

/* ---- changing state */

/* What it is by now is what is told: a state that lasted no longer than the disk took is not. */
static void notify(struct broker *b, void *ctx, u64 arg) {
    struct alerts *all = ctx;
    enum alert a = (enum alert)(arg >> 16);
    u16 queue = (u16)arg;
    char id[400];
    if (!b->options.port.notify || !alerting_at(b, queue)) return;
    if (alerting_at(b, queue)->at[a].state == ALERT_IS_OK) return; /* another queue's, which has its number now */
    struct queue_info q = {0};
    if (queue) core_queue_info(b->core, b->now, queue, &q);
    buf_reset(&all->json);
    put_item(b, &all->json, a, queue);
    int n = snprintf(id, sizeof id, "%s:%.*s:%lld", alert_name(a), (int)q.name.n, q.name.p ? q.name.p : "",
                     (long long)alerting_at(b, queue)->at[a].since_ms);
    b->options.port.notify(b->options.port.ctx, slice_of(id, (size_t)n), buf_slice(&all->json));
}

static void tell(struct broker *b, enum alert a, u16 queue, const struct alert_one *one) {
    struct queue_info q = {0};
    if (queue) core_queue_info(b->core, b->now, queue, &q);
    bool over = one->state == ALERT_IS_RESOLVED;
    report_after(b, one->state == ALERT_IS_FIRING ? LOG_WARN : LOG_INFO, "alert",
                 over ? "what this alert is about is over" : says[a].sentence,
                 log_text("alert", slice_str(alert_name(a))),
                 log_text("state", slice_str(alert_state_text(one->state))),
                 queue ? log_text("queue", q.name) : (struct log_field){0}, log_real("value", one->value),
                 log_real("threshold", one->threshold), log_text("runbook", slice_str(says[a].runbook)), LOG_EVERY);
    watch_happened(b,
                   &(struct happening){
                       .kind = HAPPENING_ALERT, .queue = queue, .detail = (u8)a, .number = one->state, .age_ms = -1});
    effect_after(b, b->after, notify, b->alerts, (u64)a << 16 | queue);
}

static void change(struct broker *b, enum alert a, u16 queue, struct alert_one *one, enum alert_state to) {
    one->state = (u8)to;
    one->since_ms = b->now.wall_ms;
    if (to == ALERT_IS_FIRING) one->fired_mono_ms[one->fired_count++ % FIRED_KEPT] = b->time.mono_ms;
    if (one->fired_count > 2 * FIRED_KEPT) one->fired_count = FIRED_KEPT;
    if (to == ALERT_IS_RESOLVED) one->ended_mono_ms = b->time.mono_ms;
    if (to != ALERT_IS_OK) tell(b, a, queue, one);
}

struct condition {
    bool holds;
    double value, threshold;
    i64 for_ms;
    struct ref about;
};

static struct condition about(struct condition c, struct ref ref) {
    c.about = ref;
    return c;
}

static void does_not_hold(struct broker *b, enum alert a, u16 queue, struct alert_one *one) {
    if (one->state == ALERT_IS_PENDING) change(b, a, queue, one, ALERT_IS_OK);
    if (one->state == ALERT_IS_FIRING && ++one->calm >= CALM_LOOKS) change(b, a, queue, one, ALERT_IS_RESOLVED);
    if (one->state == ALERT_IS_RESOLVED && b->time.mono_ms - one->ended_mono_ms > DAY_MS)
        change(b, a, queue, one, ALERT_IS_OK);
}

static void judge(struct broker *b, enum alert a, u16 queue, struct condition c) {
    struct queue_alerting *qa = alerting_at(b, queue);
    struct alert_one *one = &qa->at[a];
    u32 off = config_in_force(b)->alerts.off | rules_said(b, queue)->alerts.off;
    if (off >> a & 1) c.holds = false;
    if (!c.holds) return does_not_hold(b, a, queue, one);
    one->calm = 0;
    one->value = c.value;
    one->about = c.about;
    one->threshold = c.threshold;
    if (one->state == ALERT_IS_OK || one->state == ALERT_IS_RESOLVED) {
        one->holds_mono_ms = b->time.mono_ms;
        if (c.for_ms > 0) change(b, a, queue, one, ALERT_IS_PENDING);
    }
    if (one->state != ALERT_IS_FIRING && b->time.mono_ms - one->holds_mono_ms >= c.for_ms)
        change(b, a, queue, one, ALERT_IS_FIRING);
}

/* ---- the conditions of a queue */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The lower quartile of the daily ratios; 0: too few days. */
static double usual_ratio(const struct broker *b, u16 queue, u32 today) {
    struct rec_day days[DAYS_KEPT];
    double ratios[DAYS_KEPT];
    u32 n = 0, count = core_days(b->core, queue, today, days);
    for (u32 i = 0; i < count; i++)
        if (days[i].accepted) ratios[n++] = (double)days[i].duplicates / (double)days[i].accepted;
    if (n < DAYS_LEAST) return 0;
    qsort(ratios, n, sizeof ratios[0], by_value);
    return ratios[(n - 1) / 4];
}

static struct condition vanished(struct broker *b, struct queue_alerting *qa, u16 queue, const struct counters *c) {
    u32 today = (u32)(b->now.wall_ms / DAY_MS);
    if (today != qa->day) {
        u64 accepted = c->accepted - qa->day_accepted, duplicates = c->duplicates - qa->day_duplicates;
        if (accepted + duplicates) core_day_end(b->core, b->now, queue, qa->day, accepted, duplicates);
        qa->day = today;
        qa->day_accepted = c->accepted;
        qa->day_duplicates = c->duplicates;
    }
    if (c->duplicates != qa->duplicates) {
        qa->duplicates = c->duplicates;
        qa->accepted_then = c->accepted;
    }
    double missing = usual_ratio(b, queue, today) * (double)(c->accepted - qa->accepted_then);
    return (struct condition){missing >= MISSING_LEAST, missing, MISSING_LEAST, HOUR_MS, {0}};
}

static struct condition many_duplicates(const struct broker *b, u16 queue, const struct queue_config *said) {
    u64 repeats = series_sum(b, queue, SERIES_duplicates, QUARTER_STEPS);
    u64 drilled = series_sum(b, queue, SERIES_drilled, QUARTER_STEPS);
    repeats -= drilled < repeats ? drilled : repeats;
    u64 arrivals = repeats + series_sum(b, queue, SERIES_accepted, QUARTER_STEPS);
    double ratio = arrivals ? (double)repeats / (double)arrivals : 0, most = said->alerts.duplicates_high_ppm / 1e6;
    return (struct condition){arrivals >= ARRIVALS_LEAST && ratio >= most, ratio, most, 0, {0}};
}

static struct condition late(const struct broker *b, u16 queue, const struct queue_config *said) {
    u64 again = series_sum(b, queue, SERIES_again, SERIES_STEPS), n = series_sum(b, queue, SERIES_late, SERIES_STEPS);
    if (again) return (struct condition){true, (double)again, 1, 0, {0}};
    return (struct condition){n >= said->alerts.late_replays, (double)n, said->alerts.late_replays, 0, {0}};
}

static bool doubled_today(const struct broker *b, const struct queue_alerting *qa) {
    return b->time.mono_ms - qa->doubled_mono_ms < DAY_MS;
}

static struct condition doubled(const struct broker *b, struct queue_alerting *qa, u16 queue) {
    const struct queue_watch *w = queue_watch(b, queue);
    u64 now = w ? w->doubled : 0;
    if (now != qa->doubled) {
        qa->doubled = now;
        qa->doubled_mono_ms = b->time.mono_ms;
    }
    /* What was counted before the start is not known, but that it was one at least. */
    return (struct condition){doubled_today(b, qa), now ? (double)now : 1, 1, 0,
                              now ? w->last_doubled : qa->doubled_before};
}

void alerts_started(struct broker *b) {
    for (u32 id = 1; id <= core_queue_count(b->core); id++) {
        struct ref key;
        i64 since_ms;
        if (!core_doubled(b->core, (u16)id, &key, &since_ms)) continue;
        i64 age_ms = b->now.wall_ms - since_ms;
        struct queue_alerting *qa = age_ms < DAY_MS ? alerting_make(b, (u16)id) : NULL;
        if (!qa) continue;
        qa->doubled_mono_ms = b->time.mono_ms - (age_ms > 0 ? age_ms : 0);
        qa->doubled_before = key;
    }
}

/* Within an hour the series tell. Beyond it, what died in this stretch, and the share of the last one that is not over yet. */
static double died_within(struct broker *b, struct queue_alerting *qa, u16 queue, i64 within_ms, u64 died) {
    i64 now = b->time.mono_ms;
    if (within_ms <= HOUR_MS)
        return (double)series_sum(b, queue, SERIES_dead, (u32)((within_ms + SERIES_STEP_MS - 1) / SERIES_STEP_MS));
    if (qa->dead.began_mono_ms == 0 || now - qa->dead.began_mono_ms >= within_ms) {
        bool next = qa->dead.began_mono_ms && now - qa->dead.began_mono_ms < 2 * within_ms;
        qa->dead.before = next ? died - qa->dead.at_begin : 0;
        qa->dead.at_begin = qa->dead.began_mono_ms ? died : 0;
        qa->dead.began_mono_ms = now;
    }
    double left = 1 - (double)(now - qa->dead.began_mono_ms) / (double)within_ms;
    return (double)(died - qa->dead.at_begin) + (double)qa->dead.before * left;
}

static struct condition dead(struct broker *b, struct queue_alerting *qa, u16 queue, const struct queue_config *said,
                             u64 died) {
    u64 most = said->dead_alert_count ? said->dead_alert_count : DEAD_COUNT;
    i64 within_ms = said->dead_alert_within_ms ? said->dead_alert_within_ms : DEAD_WITHIN_MS;
    double n = died_within(b, qa, queue, within_ms, died);
    return (struct condition){n >= (double)most, n, (double)most, 0, {0}};
}

static struct condition aged(i64 age_ms, i64 most_ms, i64 for_ms) {
    return (struct condition){
        most_ms > 0 && age_ms > most_ms, (double)age_ms / 1e3, (double)most_ms / 1e3, for_ms, {0}};
}

static struct condition lagging(const struct queue_info *q, const struct queue_live *live,
                                const struct queue_config *said) {
    struct condition oldest = aged(q->oldest_ready_ms, said->lag_alert_ms, said->lag_for_ms);
    if (oldest.holds || live->waits < WAITS_LEAST) return oldest;
    return aged((i64)live->wait_p95_ms, said->lag_p95_ms, said->lag_for_ms);
}

static struct condition losing(const struct counters *c, const struct queue_config *said) {
    double ratio = c->handed_out ? (double)c->lost / (double)c->handed_out : 0, most = said->loss_ppm / 1e6;
    return (struct condition){said->loss_ppm && c->handed_out >= HANDED_LEAST && ratio > most, ratio, most, 0, {0}};
}

static struct condition skewed(const struct broker *b, const struct queue_alerting *qa) {
    u32 n = 0;
    for (u32 i = 0; qa->origins && i < ORIGINS; i++)
        n += qa->origins[i].skewed && b->time.mono_ms - qa->origins[i].mono_ms < HOUR_MS;
    return (struct condition){n >= ORIGINS_SKEWED, n, ORIGINS_SKEWED, 0, {0}};
}

void alerts_origin(struct broker *b, u16 queue, u64 origin, u64 key) {
    struct queue_alerting *qa = alerting_make(b, queue);
    if (!qa) return;
    if (!qa->origins) qa->origins = mem_zalloc(ORIGINS * sizeof *qa->origins);
    struct origin_seen *o = &qa->origins[origin % ORIGINS];
    bool old = o->origin == 0 || b->time.mono_ms - o->mono_ms >= HOUR_MS;
    if (!old && o->origin != origin) return;
    if (old) *o = (struct origin_seen){.origin = origin, .key = key, .mono_ms = b->time.mono_ms};
    if (o->key == key) return;
    o->skewed = true;
    o->mono_ms = b->time.mono_ms;
}

static struct condition relay_behind(const struct broker *b, const struct queue_info *q) {
    i64 oldest_ms = 0, most_ms = config_in_force(b)->alerts.relay_lag_ms;
    if (b->options.port.relay_oldest_ms) oldest_ms = b->options.port.relay_oldest_ms(b->options.port.ctx, q->name);
    return aged(oldest_ms, most_ms, 0);
}

/* Somebody who paused it knows; of one that is gone nobody does. */
static struct condition target_down(const struct broker *b, u16 queue) {
    const struct target *t = target_of(b, queue);
    struct target_view v = {0};
    if (t) target_look(t, b->time.mono_ms, &v);
    i64 since_ms = v.paused ? v.gone_ms : v.down_ms;
    return aged(since_ms ? b->time.mono_ms - since_ms : 0, PUSH_DOWN_MS, 0);
}

static struct condition refusing(const struct broker *b, const struct queue_alerting *qa) {
    bool lately = qa->ingest_look && b->alerts->looks - qa->ingest_look <= 1;
    return (struct condition){
        lately && qa->ingest_refused > INGEST_REFUSED_MOST, qa->ingest_refused, INGEST_REFUSED_MOST, 0, {0}};
}

bool alerts_concern(const struct broker *b, const struct queue_info *q) {
    const struct queue_alerting *qa = alerting_at(b, q->queue);
    bool any = (qa && (refusing(b, qa).holds || doubled_today(b, qa))) || relay_behind(b, q).holds;
    for (u32 i = 0; qa && !any && i < ALERT_COUNT; i++) any = qa->at[i].state != ALERT_IS_OK;
    return any;
}

void alerts_judge_queue(struct broker *b, const struct queue_info *q) {
    struct queue_alerting *qa = alerting_make(b, q->queue);
    if (!qa) return;
    const struct queue_config *said = rules_said(b, q->queue);
    const struct queue_live *live = queue_live(b, q->queue);
    const struct queue_watch *w = queue_watch(b, q->queue);
    struct counters c = since_start(b, q);
    judge(b, ALERT_DUPLICATES_VANISHED, q->queue, vanished(b, qa, q->queue, &c));
    judge(b, ALERT_DUPLICATES_HIGH, q->queue, many_duplicates(b, q->queue, said));
    judge(b, ALERT_LATE_REPLAYS, q->queue, late(b, q->queue, said));
    judge(b, ALERT_OLDEST_UNSETTLED, q->queue,
          about(aged(live->oldest_unsettled_ms, said->alerts.oldest_unsettled_ms, 0), live->started));
    judge(b, ALERT_DOUBLED_EFFECT, q->queue, doubled(b, qa, q->queue));
    judge(b, ALERT_DEAD_LETTERS, q->queue, dead(b, qa, q->queue, said, c.dead_lettered + (w ? w->refused : 0)));
    judge(b, ALERT_HELD_WAITING, q->queue,
          about(aged(live->oldest_held_ms, said->alerts.held_waiting_ms, 0), live->held));
    judge(b, ALERT_LAG, q->queue, lagging(q, live, said));
    judge(b, ALERT_LOSS_RATE, q->queue, losing(&c, said));
    judge(b, ALERT_GROUP_BLOCKED, q->queue,
          (struct condition){live->blocked_groups > 0, live->blocked_groups, 1, said->alerts.group_blocked_ms,
                             live->blocking});
    judge(b, ALERT_KEY_SKEW, q->queue, skewed(b, qa));
    judge(b, ALERT_RELAY_LAG, q->queue, relay_behind(b, q));
    judge(b, ALERT_INGEST_REFUSED, q->queue, refusing(b, qa));
    judge(b, ALERT_PUSH_DOWN, q->queue, target_down(b, q->queue));
}

/* ---- of the process */

static struct condition disk(const struct broker *b, const struct process_sample *p) {
    double least = config_in_force(b)->alerts.disk_low_ppm / 1e6;
    double free = p->around.disk_size ? (double)p->around.disk_free / (double)p->around.disk_size : 1;
    return (struct condition){room_disk_short(b) || free < least, free, least, 0, {0}};
}

static struct condition memory(const struct broker *b, const struct process_sample *p) {
    double most = config_in_force(b)->alerts.memory_high_ppm / 1e6;
    double used = p->memory_max ? (double)p->around.resident_bytes / (double)p->memory_max : 0;
    return (struct condition){core_memory_short(b->core) || used > most, used, most, 0, {0}};
}

static struct hist hist_since(const struct hist *now, const struct hist *then) {
    struct hist h = *now;
    for (u32 i = 0; i <= HIST_BOUNDS; i++) h.count[i] -= then->count[i];
    return h;
}

static struct condition slow(struct broker *b, const struct hist *now) {
    struct alerts *a = b->alerts;
    u32 minute = a->looks / STEPS_IN_MINUTE, hour = a->looks / STEPS_IN_HOUR;
    struct hist minutes = hist_since(now, &a->sync_minutes[(minute + 1) % (SYNC_MINUTES + 1)]);
    struct hist hours = hist_since(now, &a->sync_hours[(hour + 1) % (SYNC_HOURS + 1)]);
    a->sync_minutes[minute % (SYNC_MINUTES + 1)] = *now;
    a->sync_hours[hour % (SYNC_HOURS + 1)] = *now;
    double p99 = (double)hist_quantile(&minutes, hist_us, 99) / 1e6;
    double most = (double)hist_quantile(&hours, hist_us, 50) / 1e6 * config_in_force(b)->alerts.sync_slow;
    bool known = hour > 0 && hist_total(&minutes) >= SYNCS_LEAST && hist_total(&hours) >= 2 * hist_total(&minutes);
    return (struct condition){known && p99 > most, p99, most, 0, {0}};
}

/* What sources send is noted with their queues, which are judged next; of a queue that only a first message would make, with the
 * process: a secret that was wrong from the first day keeps that message out. */
static void look_at_sources(struct broker *b) {
    u16 queue;
    slice name;
    double refused;
    for (u32 i = 0; ingest_look(b, i, &name, &refused); i++) {
        struct queue_alerting *qa = alerting_make(b, core_queue_find(b->core, name, &queue) ? queue : 0);
        if (!qa) continue;
        if (qa->ingest_look != b->alerts->looks || refused > qa->ingest_refused) qa->ingest_refused = refused;
        qa->ingest_look = b->alerts->looks;
    }
}

void alerts_judge_process(struct broker *b) {
    struct process_sample p;
    if (!alerting_make(b, 0)) return;
    process_sample(b, &p);
    judge(b, ALERT_DISK_LOW, 0, disk(b, &p));
    judge(b, ALERT_MEMORY_HIGH, 0, memory(b, &p));
    judge(b, ALERT_SYNC_SLOW, 0, slow(b, &p.journal.sync_us));
    b->alerts->looks++;
    look_at_sources(b);
    judge(b, ALERT_INGEST_REFUSED, 0, refusing(b, alerting_at(b, 0)));
    b->alerts->judged = true;
}

/* ---- looking at them */

u32 alerts_firing(const struct broker *b, u16 queue) {
    const struct queue_alerting *qa = alerting_at(b, queue);
    u32 count = 0;
    for (u32 i = 0; qa && i < ALERT_COUNT; i++) count += qa->at[i].state == ALERT_IS_FIRING;
    return count;
}

/* Those of the process are queue 0's. */
static bool may_see(const struct broker *b, const struct caller *who, u32 queue) {
    if (caller_may_everywhere(who, RIGHT_OBSERVE)) return true;
    return queue && caller_may(who, RIGHT_OBSERVE, core_queue_name(b->core, (u16)queue));
}

void put_alert_metrics(const struct broker *b, const struct caller *who, struct buf *out) {
    struct queue_info q;
    for (u32 queue = 0; queue < b->alerts->cap; queue++) {
        const struct queue_alerting *qa = b->alerts->of[queue];
        for (u32 i = 0; qa && i < ALERT_COUNT; i++) {
            if (qa->at[i].state != ALERT_IS_FIRING || !may_see(b, who, queue)) continue;
            buf_printf(out, "hapax_alerts{name=\"%s\"", alert_name((enum alert)i));
            if (queue) core_queue_info(b->core, b->now, (u16)queue, &q);
            if (queue) buf_printf(out, ",queue=\"%.*s\"", (int)q.name.n, q.name.p);
            buf_lit(out, "} 1\n");
        }
    }
}

void api_alerts(struct call *c) {
    const struct alerts *a = c->b->alerts;
    struct buf *body = &c->b->scratch->body;
    bool all;
    u32 shown = 0;
    if (!param_bool(c, "all", &all)) return reply_failure(c);
    buf_reset(body);
    buf_lit(body, "{\"items\":[");
    for (u32 i = 0; i < ALERT_COUNT; i++)
        for (u32 queue = 0; queue < a->cap && shown < LIST_LIMIT_MAX; queue++) {
            u8 state = a->of[queue] ? a->of[queue]->at[gravest_first[i]].state : ALERT_IS_OK;
            if (all ? state == ALERT_IS_OK : state != ALERT_IS_FIRING) continue;
            if (!may_see(c->b, c->who, queue)) continue;
            if (shown++) buf_char(body, ',');
            put_item(c->b, body, (enum alert)gravest_first[i], (u16)queue);
        }
    buf_printf(body, "],\"judged\":%s}", a->judged ? "true" : "false");
    reply_json(c, 200, buf_slice(body));
}
