/* The turn: time in, decisions through the core into the journal, replies out behind their position. */
#include "broker/access.h"
#include "broker/alerts.h"
#include "broker/broker_priv.h"
#include "broker/browsers.h"
#include "broker/budget.h"
#include "broker/call.h"
#include "broker/compaction.h"
#include "broker/consumers.h"
#include "broker/effects.h"
#include "broker/events.h"
#include "broker/feeds.h"
#include "broker/fetch.h"
#include "broker/ingest.h"
#include "broker/jobs.h"
#include "broker/lookup.h"
#include "broker/named.h"
#include "broker/proxy.h"
#include "broker/push.h"
#include "broker/queue_rules.h"
#include "broker/rations.h"
#include "broker/receipts.h"
#include "broker/render.h"
#include "broker/report.h"
#include "broker/room.h"
#include "broker/route.h"
#include "broker/series.h"
#include "broker/shared.h"
#include "broker/sink.h"
#include "broker/target.h"
#include "broker/target_reach.h"
#include "broker/tasks.h"
#include "broker/tenants.h"
#include "broker/traffic.h"
#include "broker/waits.h"
#include "broker/watch.h"

#define TURN_CHARGE_MS_MAX 1000  /* a stopped broker does not expire work nobody could settle */
#define TICK_BUDGET        2000u /* moves a tick makes before it lets requests in again */
#define MEMORY_BESIDE      (512ull << 20)
#define TICK_BUSY_MS       10            /* between two looks at the clock under load */
#define TICK_MS_MAX        250           /* the running clock is charged at least this often */
#define COMPACT_MS         4             /* between slices while there is nothing else to do */
#define LAZY_MS            20            /* records that nobody waits for are synced no later ... */
#define LAZY_BYTES         (128u << 10)  /* ... and no more of them at a time */
#define UNSYNCED_PAUSE     (64ull << 20) /* stop reading requests while this much waits for the disk */

/* Time never goes back in here, whoever calls: callers may have read their clocks at different moments of a turn. */
void broker_advance(struct broker *b, struct broker_time t) {
    i64 passed = t.mono_ms - b->time.mono_ms;
    if (passed < 0) return; /* an older reading: what lies between was charged already */
    b->now.run_ms += passed < TURN_CHARGE_MS_MAX ? passed : TURN_CHARGE_MS_MAX;
    b->now.delay_ms += passed;
    b->now.wall_ms = t.wall_ms;
    b->time = t;
}

i64 wall_of_delay(const struct broker *b, i64 delay_ms) {
    return b->now.wall_ms + (delay_ms - b->now.delay_ms);
}

/* ---- opening and ending */

static hx_st replay_one(void *ctx, const struct journal_record *rec, struct errbuf *err) {
    struct broker *b = broker_of(ctx);
    hx_st st = core_replay(b->core, rec->pos, rec->type, rec->version, rec->body, err);
    return st == ST_OK ? ST_OK : err_wrap(err, st, "journal position %llu", (unsigned long long)rec->pos);
}

/* Of the process's memory: what buffers, tables that double and the rest may take beside the core is left to them. */
static u64 core_share(u64 process_max) {
    u64 beside = process_max / 3 < MEMORY_BESIDE ? process_max / 3 : MEMORY_BESIDE;
    return process_max ? process_max - process_max / 10 - beside : 0;
}

static struct broker *broker_new(const struct broker_options *options, struct broker_time t) {
    struct broker *b = mem_zalloc(sizeof *b);
    struct core_options core = {
        .seed = options->seed,
        .memory_max = core_share(options->memory_max),
        .downtime_said = options->downtime_said,
        .downtime_ms = options->downtime_ms,
    };
    memcpy(&core.hash_key, options->secret, sizeof core.hash_key);
    b->magic = BROKER_MAGIC;
    b->options = *options;
    b->journal = options->journal;
    b->time = t;
    b->started_mono_ms = t.mono_ms;
    b->core = core_new(&core);
    b->effects = effects_new();
    b->fetches = fetches_new(options->memory_max, options->fetches_max);
    b->room = room_new();
    b->rulebook = rulebook_new();
    b->tenants = tenants_new();
    b->waits = waits_new();
    b->shared = shared_new();
    b->receipts = receipts_new();
    b->consumers = consumers_new();
    b->jobs = jobs_new();
    b->tasks = tasks_new((u64)t.wall_ms); /* an id of before the last start names nothing */
    b->compaction = compaction_new();
    b->reports = reports_new();
    b->named = named_queue_new();
    b->time_texts = time_texts_new();
    b->lookup = lookup_new();
    b->other = lookup_new();
    b->scratch = scratch_new();
    b->access = access_new(options->own);
    b->ingest = ingest_new();
    b->gates = gates_new();
    b->pushes = pushes_new();
    b->targets = targets_new();
    b->tests = target_tests_new();
    b->rations = rations_new();
    b->browsers = browsers_new(options->addresses, options->address_count);
    b->watch = watch_new();
    b->series = series_new();
    b->alerts = alerts_new();
    b->traffic = traffic_new(route_count() + 1);
    b->events = events_new();
    b->feeds = feeds_new(options, t);
    return b;
}

static hx_st start(struct broker *b, struct broker_time t, struct errbuf *err) {
    struct core_sink sink = sink_of(b);
    hx_st st = journal_replay(b->journal, replay_one, b, err);
    if (st == ST_OK) st = journal_start(b->journal, err);
    if (st == ST_OK) st = core_start(b->core, &sink, t.wall_ms, &b->now, err);
    if (st != ST_OK) return st;
    rulebook_load(b);
    watch_started(b);
    alerts_started(b);
    return ST_OK;
}

hx_st broker_open(const struct broker_options *options, struct broker_time t, struct broker **out, struct errbuf *err) {
    struct broker *b = broker_new(options, t);
    hx_st st = start(b, t, err);
    if (st != ST_OK) {
        broker_free(b);
        return st;
    }
    broker_turn_end(b, t);
    *out = b;
    return ST_OK;
}

void broker_downtime(const struct broker *b, i64 *by_clock_ms, i64 *charged_ms) {
    struct core_downtime down = core_downtime(b->core);
    *by_clock_ms = down.by_clock_ms;
    *charged_ms = down.charged_ms;
}

static void hand_over(struct broker *b) {
    b->handed_over = b->after;
    b->handed_over_mono_ms = b->time.mono_ms;
    journal_flush(b->journal);
}

static i64 lazy_left_ms(const struct broker *b) {
    return b->handed_over_mono_ms + LAZY_MS - b->time.mono_ms;
}

/* Repeats counted, clocks, what compaction carries: nobody waits for such records. They go along with the first that somebody does
 * wait for, because a sync costs the loop too: threads to wake, and the disk's interrupts. */
static void hand_over_due(struct broker *b) {
    bool due = lazy_left_ms(b) <= 0 || b->after - b->handed_over >= LAZY_BYTES;
    /* What was handed over is not gone: a batch that waits for a sync to end is taken back when a record is added to it. */
    if (b->awaited > b->durable || (due && b->after > b->handed_over)) hand_over(b);
}

void broker_stop(struct broker *b, struct broker_time t) {
    broker_advance(b, t);
    core_stop(b->core, b->now);
    hand_over(b);
}

void broker_free(struct broker *b) {
    gates_free(b);
    jobs_free(b);
    feeds_free(b);
    waits_free(b);
    tasks_free(b->tasks);
    shared_free(b->shared);
    receipts_free(b->receipts);
    consumers_free(b->consumers);
    rulebook_free(b->rulebook);
    tenants_free(b->tenants);
    fetches_free(b->fetches);
    effects_free(b->effects);
    room_free(b->room);
    compaction_free(b->compaction);
    reports_free(b->reports);
    named_queue_free(b->named);
    time_texts_free(b->time_texts);
    lookup_free(b->lookup);
    lookup_free(b->other);
    scratch_free(b->scratch);
    access_free(b->access);
    ingest_free(b->ingest);
    pushes_free(b->pushes);
    targets_free(b->targets);
    target_tests_free(b->tests);
    rations_free(b->rations);
    browsers_free(b->browsers);
    watch_free(b->watch);
    series_free(b->series);
    alerts_free(b->alerts);
    traffic_free(b->traffic);
    events_free(b->events);
    core_free(b->core);
    b->magic = 0;
    mem_free(b);
}

/* ---- time and turns */

static void cancel_ttls(struct broker *b) {
    struct budget g = budget_of(b, TTLS_US);
    for (u32 n = 0, no; n < TICK_BUDGET && (no = core_ttl_due(b->core, b->now)) != MESSAGE_NONE; n++) {
        if (budget_spent(&g)) return;
        struct message_view v;
        core_message_view(b->core, b->now, no, &v);
        struct seen *s = lookup_id(b, b->lookup, v.ref.hash, v.ref.seq);
        CHECK(s);
        core_cancel(b->core, b->now, s, SL("ttl"), NULL);
    }
}

bool broker_tick(struct broker *b, struct broker_time t) {
    broker_advance(b, t);
    b->ticked_mono_ms = t.mono_ms;
    gates_renew(b);
    room_prepare(b, core_tick_bytes(b->core, TICK_BUDGET));
    bool more = core_tick(b->core, b->now, TICK_BUDGET);
    cancel_ttls(b);
    tasks_run(b);
    waits_run_due(b);
    series_run(b);
    access_run(b);
    return more;
}

i64 broker_next_ms(const struct broker *b, struct broker_time t) {
    i64 next = core_next_ms(b->core, b->now, TICK_MS_MAX);
    if (compaction_under_way(b) && next > COMPACT_MS) next = COMPACT_MS;
    if (b->after > b->handed_over && next > lazy_left_ms(b)) next = lazy_left_ms(b);
    next =
        feeds_next_ms(b, t.mono_ms, waits_next_ms(b, t.mono_ms, pushes_next_ms(b, t.mono_ms, tasks_next_ms(b, next))));
    return broker_unfinished(b) || next < 0 ? 0 : next;
}

bool broker_unfinished(const struct broker *b) {
    return jobs_waiting(b) || waits_unfinished(b) || pushes_unfinished(b);
}

void broker_turn_end(struct broker *b, struct broker_time t) {
    broker_advance(b, t);
    /* Under load turns follow each other without a timer ever coming up: time is looked at here too. */
    if (t.mono_ms - b->ticked_mono_ms >= TICK_BUSY_MS) broker_tick(b, t);
    fetches_run(b);
    jobs_run(b);
    b->turn_us = 0;
    waits_run(b);
    gates_run(b);
    pushes_run(b);
    room_look_ahead(b);
    hand_over_due(b);
    compaction_run(b); /* while the disk works, as the next */
    feeds_run(b);
    b->left = b->durable;
}

void broker_durable(struct broker *b, struct broker_time t, u64 position) {
    broker_advance(b, t);
    if (journal_failed(b->journal))
        effects_stop(b);
    else
        b->durable = position;
    traffic_durable(b, position);
    if (effects_run(b, position) && b->options.port.release) b->options.port.release(b->options.port.ctx, position);
    hand_over_due(b);
}

bool broker_wants_pause(const struct broker *b) {
    struct journal_stats s;
    journal_stats_get(b->journal, &s);
    return s.unsynced_bytes > UNSYNCED_PAUSE;
}

void broker_drain(struct broker *b, struct broker_time t) {
    broker_advance(b, t);
    b->draining = true;
    waits_answer_all(b);
    feeds_end(b);
}

void broker_gone(struct broker *b, struct broker_time t, void *user) {
    broker_advance(b, t);
    jobs_gone(wait_of_user(user));
    wait_end(b, wait_of_user(user));
}

bool broker_hurry(struct broker *b, struct broker_time t, void *user) {
    broker_advance(b, t);
    return wait_hurry(b, wait_of_user(user));
}

void broker_receipt(struct broker *b, struct broker_time t, u64 number, bool written) {
    broker_advance(b, t);
    receipts_end(b, number, written);
}
