/* The world: clocks, turns, the lives of the broker, and the phases of a seed.
 *
 * A seed first draws a profile, in which every kind of fault is absent, rare or frequent; seeds that mix all evenly find
 * less than seeds that each push in a few directions. Then: the wild phase; in some seeds a day of running time, so that
 * windows end, and a second wild phase; then faults cease, tame clients clean up, and everything accepted has to come to
 * its end. */
#include "model.h"

#include <signal.h>
#include <stdlib.h>

#define SEGMENTS_AMPLE    80u
#define ROOM_PLENTY       1000000u
#define ROOM_KEPT         130000u /* the core's own headroom, and what one turn may add */
#define KEYS_MANY         150u
#define DRAIN_TURNS_MAX   1500u
#define WATCH_CLOCK_TURNS 16u
#define PARTS_MAX         2000u
#define TICKS_MAX         64u

struct tally tally;

static u32 some(struct rng *r, u32 rare, u32 frequent) {
    u64 n = rng_below(r, 10);
    return n < 4 ? 0 : n < 8 ? rare : frequent;
}

/* A disk that is full before the keys run out, and results as large as may never be refused. */
static void scarce(struct profile *p, struct rng *r) {
    p->segments = 12 + (u32)rng_below(r, 14);
    p->fat_result = rng_below(r, 2) ? 9000 : 0;
    if (p->fat_result) p->keys = KEYS_MANY;
    if (p->fat_result && p->queues > 2) p->queues = 2;
    if (p->fat_result) p->rules = p->operate = 0;
}

static struct profile profile_of(u64 seed) {
    struct rng r;
    rng_seed(&r, seed * 2654435761u + 17);
    struct profile p = {.seed = seed};
    p.queues = 1 + (u32)rng_below(&r, QUEUES_MOST);
    p.rules = some(&r, 300, 2000);
    p.operate = some(&r, 2000, 7000);
    p.keys = 6 + (u32)rng_below(&r, 55);
    p.groups = 1 + (u32)rng_below(&r, 5);
    p.turns = 250 + (u32)rng_below(&r, 500);
    p.producers = 1 + (u32)rng_below(&r, 6);
    p.consumers = 2 + (u32)rng_below(&r, 12);
    p.dt_ms = rng_below(&r, 3) == 0 ? 20 : rng_below(&r, 2) ? 200 : 700;
    p.segment_bytes = rng_below(&r, 2) ? 16384 : 32768;
    p.segments = SEGMENTS_AMPLE;
    if (rng_below(&r, 4) == 0) scarce(&p, &r);
    p.crash = some(&r, 60, 300);
    p.clean_restart = some(&r, 30, 150);
    p.stop = some(&r, 50, 300);
    p.wall_step = some(&r, 50, 500);
    p.fail_disk = some(&r, 30, 150);
    p.full_disk = some(&r, 30, 100);
    p.stall = some(&r, 50, 200);
    p.slow_disk = some(&r, 2000, 7000);
    p.lose_request = some(&r, 300, 2000);
    p.lose_reply = some(&r, 500, 3000);
    p.double_request = some(&r, 500, 3000);
    p.cut_poll = some(&r, 1000, 4000);
    p.unwritten = some(&r, 300, 1500);
    p.crash_in_recovery = some(&r, 2000, 5000);
    p.nack = some(&r, 1500, 5000);
    p.stale = some(&r, 2000, 5000);
    p.conflict = some(&r, 300, 1500);
    p.group = some(&r, 3000, 9000);
    p.delay = some(&r, 1000, 4000);
    p.ttl = some(&r, 1000, 4000);
    p.explicit_start = some(&r, 3000, 9000);
    p.batch = some(&r, 1000, 4000);
    p.prefer_wait = some(&r, 1000, 4000);
    p.big_result = some(&r, 500, 3000);
    p.drift = rng_below(&r, 2);
    p.long_run = rng_below(&r, 12) == 0;
    p.us_a_look = some(&r, 200, 2000);
    p.disk_beside = some(&r, 300, 3000);
    p.late_reading = some(&r, 1000, 6000);
    return p;
}

/* ---- lives */

static u64 ample(const struct world *w) {
    return (u64)w->profile.segment_bytes * SEGMENTS_AMPLE;
}

static void open_world(struct world *w, u64 seed) {
    w->profile = profile_of(seed);
    rng_seed(&w->rng, seed);
    rng_seed(&w->passing_rng, ~seed);
    w->mono_ms = 1000000;
    w->wall_ms = 1700000000000;
    w->inner = disk_sim_new(seed, (u64)w->profile.segments * w->profile.segment_bytes);
    w->disk = faulty_disk_new(w->inner, &w->faults);
    w->model = model_new(&w->arena, w->profile.queues, w->profile.keys);
    w->faults_on = true;
    outside_open(w, seed);
}

static hx_st boot(struct world *w, struct errbuf *err) {
    struct journal_file_options o = {.disk = w->disk, .segment_bytes = w->profile.segment_bytes, .manual = true};
    struct broker_options b = {.port = {.ctx = w, .respond = net_respond, .release = net_released, .now_us = world_us},
                               .seed = w->profile.seed + w->lives};
    w->journal = NULL;
    w->broker = NULL;
    w->released = 0;
    hx_st st = journal_file_open(&o, &w->journal, err);
    if (st != ST_OK) return st;
    journal_file_secret(w->journal, b.secret);
    b.journal = w->journal;
    if (w->outside) b.port.fetch = outside_fetch;
    return broker_open(&b, world_time(w), &w->broker, err);
}

/* Every look at the clock costs time, more in some seeds than in others: work is cut into parts at any point. Requests take
 * none: their own parts would have to be told to the model one by one (tests/unit/broker_test.c cuts those). */
u64 world_us(void *ctx) {
    struct world *w = ctx;
    if (!w->asking && !w->census) w->clock_us += w->profile.us_a_look;
    return w->clock_us;
}

static void drop_objects(struct world *w) {
    if (w->broker) broker_free(w->broker);
    if (w->journal) journal_close(w->journal);
    w->broker = NULL;
    w->journal = NULL;
}

static void crash_disk(struct world *w) {
    static const enum disk_sim_crash hows[] = {DISK_SIM_KILL, DISK_SIM_KILL, DISK_SIM_TEAR,
                                               DISK_SIM_TEAR, DISK_SIM_DROP, DISK_SIM_KEEP};
    u64 n = rng_below(&w->rng, 6);
    struct journal_stats s = {0};
    if (w->journal && w->broker) journal_stats_get(w->journal, &s);
    if (hows[n] == DISK_SIM_TEAR && s.unsynced_bytes) tally.torn_tails++;
    ++*(hows[n] == DISK_SIM_KILL ? &tally.kills : &tally.power_cuts);
    trace("crash, kind %u, %llu bytes unsynced", (u32)hows[n], (unsigned long long)s.unsynced_bytes);
    disk_sim_crash(w->inner, hows[n]);
    fault_clear(w->faults);
}

static void time_down(struct world *w) {
    i64 down = chance(w, 2000) ? between(w, 1000, 7200000) : between(w, 1, 5000);
    down += w->later_ms;
    w->later_ms = 0;
    w->stopped = false;
    w->mono_ms += down;
    w->wall_ms += down;
    if (w->faults_on && chance(w, w->profile.wall_step)) {
        i64 step = between(w, -100000, 100000);
        w->wall_ms += step;
        if (step < 0) w->hidden_ms -= step;
    }
}

static void start_life(struct world *w) {
    for (u32 tries = 0;; tries++) {
        struct errbuf err = {{0}};
        bool hurt = w->faults_on && tries < 4 && chance(w, w->profile.crash_in_recovery);
        if (hurt) fault_arm(w->faults, FAULT_DIE, (u32)rng_below(&w->rng, 30));
        w->lives++;
        hx_st st = boot(w, &err);
        if (st == ST_OK && !fault_fired(w->faults) && !journal_failed(w->journal)) break;
        bool excused = fault_fired(w->faults) || (st == ST_NO_SPACE && w->full_left);
        if (!excused) sim_fail("the broker does not start: %s: %s", status_text(st), err.text);
        if (st == ST_NO_SPACE) disk_sim_set_capacity(w->inner, ample(w));
        tally.crashes_in_recovery++;
        trace("died in recovery: %s", err.text);
        crash_disk(w);
        drop_objects(w);
    }
    fault_clear(w->faults);
}

static void work_until_idle(struct world *w) {
    for (u32 i = 0; i < 2000 && journal_file_work(w->journal); i++) {
    }
}

/* A figure of /v1/stats, as the broker says it itself. */
static i64 stats_figure(struct world *w, const char *part, const char *name) {
    struct http_reply reply;
    struct op op = {.kind = OP_STATS};
    i64 figure = 0;
    net_ask(w, &op, &reply);
    struct view stats = view_of(&w->scratch, reply.body);
    if (part) stats = view_of(&w->scratch, view_text(&stats, part));
    if (!view_i64(&stats, name, &figure)) sim_fail("no %s in the stats", name);
    arena_reset(&w->scratch);
    return figure;
}

/* Running time, P6: neither faster than what passed, nor slower. */
static void watch_clock(struct world *w) {
    i64 ran = stats_figure(w, NULL, "run_ms") - w->run_began_ms;
    if (ran != w->charged_ms)
        sim_fail("%lld ms of running time in this life, %lld passed", (long long)ran, (long long)w->charged_ms);
}

static void clock_begins(struct world *w) {
    w->charged_ms = 0;
    w->run_began_ms = stats_figure(w, NULL, "run_ms");
}

/* Every key and queue is asked for; the model finds out what the crash left. */
static void census(struct world *w) {
    struct http_reply reply;
    struct op op = {0};
    for (op.queue = 0; op.queue < w->profile.queues; op.queue++) {
        op.kind = OP_QUEUE;
        net_ask(w, &op, &reply);
        model_census_queue(w->model, op.queue, &reply, &w->scratch);
        for (u32 slot = 0; slot < model_slots(w->model); slot++) {
            arena_reset(&w->scratch);
            if (!model_census_ask(w->model, op.queue, slot, &op)) continue;
            net_ask(w, &op, &reply);
            model_census_key(w->model, op.queue, slot, &reply, &w->scratch);
        }
    }
    arena_reset(&w->scratch);
    model_census_end(w->model);
}

static void next_life(struct world *w, bool clean) {
    model_life_ends(w->model, clean);
    passing_life_ends(w);
    outside_life_ends(w);
    memset(w->tasks, 0, sizeof w->tasks);
    net_forget_all(w);
    drop_objects(w);
    time_down(w);
    start_life(w);
    trace("life %llu begins", (unsigned long long)w->lives);
    model_boot(w->model, w->mono_ms, w->wall_ms);
    work_until_idle(w);
    clock_begins(w);
    census(w);
    passing_life_begins(w);
    outside_boot(w);
    outside_life_begins(w);
    w->first_pos = 0;
}

bool world_dead(struct world *w) {
    return journal_failed(w->journal) != NULL;
}

static void die(struct world *w) {
    if (world_dead(w) && fault_fired(w->faults)) trace("the journal failed: %s", journal_failed(w->journal));
    if (world_dead(w) && !fault_fired(w->faults))
        sim_fail("the journal failed for no reason: %s", journal_failed(w->journal));
    crash_disk(w);
    next_life(w, false);
}

static void restart_cleanly(struct world *w) {
    trace("clean restart");
    broker_drain(w->broker, world_time(w));
    outside_drain(w);
    net_arrivals(w);
    if (!world_dead(w)) broker_turn_end(w->broker, world_time(w));
    if (!world_dead(w)) broker_stop(w->broker, world_time(w));
    w->stopped = true; /* and its clocks are written down */
    work_until_idle(w);
    if (world_dead(w)) {
        die(w);
        return;
    }
    net_release(w);
    net_forget_all(w);
    broker_free(w->broker);
    w->broker = NULL;
    journal_close(w->journal);
    w->journal = NULL;
    bool failed = fault_fired(w->faults);
    if (failed) crash_disk(w);
    tally.clean_restarts++;
    next_life(w, !failed);
}

/* ---- turns */

static void charge(struct world *w, i64 passed_ms) {
    w->charged_ms += passed_ms < 1000 ? passed_ms : 1000;
}

/* Requests share the turn's reading of the clock. Who hangs up brings one of his own, and those after him an older one. */
struct broker_time world_now(struct world *w) {
    if (w->faults_on && !w->stopped && w->profile.late_reading && chance(w, w->profile.late_reading)) {
        i64 passed = between(w, 0, 30);
        w->later_ms += passed;
        charge(w, passed);
        model_later(w->model, w->mono_ms + w->later_ms, w->wall_ms + w->later_ms);
    }
    struct broker_time t = world_time(w);
    t.mono_ms += w->later_ms;
    t.wall_ms += w->later_ms;
    return t;
}

static void pass_time(struct world *w, i64 ms) {
    const struct profile *p = &w->profile;
    if (ms < w->later_ms) ms = w->later_ms;
    charge(w, ms - w->later_ms);
    w->later_ms = 0;
    w->mono_ms += ms;
    w->wall_ms += ms;
    if (p->drift && w->mono_ms % 7 == 0) w->wall_ms += 1;
    if (w->faults_on && chance(w, p->wall_step)) {
        i64 step = between(w, -3600000, 3600000);
        ++*(step < 0 ? &tally.wall_steps_back : &tally.wall_steps_ahead);
        w->wall_ms += step;
    }
    model_time(w->model, w->mono_ms, w->wall_ms);
}

static i64 turn_ms(struct world *w) {
    if (w->faults_on && chance(w, w->profile.stop)) {
        tally.broker_stops++;
        return between(w, 1001, 600000);
    }
    return between(w, 0, 2 * (i64)w->profile.dt_ms) % 1001;
}

/* Little room: whatever the broker needs beyond what it has promised it may refuse. */
static void feel_disk(struct world *w) {
    u64 room = journal_room(w->journal);
    bool tight = room < ROOM_PLENTY && room < (u64)stats_figure(w, "journal", "reserved_bytes") + ROOM_KEPT;
    model_tight(w->model, tight);
}

/* The disk works beside the loop: a batch can become durable, or the journal fail, between any two requests. */
void world_beside(struct world *w) {
    if (!w->faults_on || !w->profile.disk_beside || !chance(w, w->profile.disk_beside)) return;
    for (u32 steps = (u32)between(w, 1, 6); steps && journal_file_work(w->journal); steps--) {
    }
}

static void disk_work(struct world *w) {
    const struct profile *p = &w->profile;
    if (w->stall_left > 0) {
        w->stall_left--;
        return;
    }
    if (w->faults_on && chance(w, p->stall)) {
        tally.sync_stalls++;
        w->stall_left = (u32)between(w, 5, 60);
        return;
    }
    if (w->faults_on && chance(w, p->slow_disk)) return;
    u32 steps = w->faults_on ? (u32)between(w, 1, 40) : 200;
    for (u32 i = 0; i < steps && journal_file_work(w->journal); i++) {
    }
}

static void watch_journal(struct world *w) {
    struct journal_stats s;
    journal_stats_get(w->journal, &s);
    if (s.tail <= s.durable) model_all_durable(w->model);
    if (w->first_pos && s.first > w->first_pos) tally.segments_dropped++;
    w->first_pos = s.first;
}

static void disk_weather(struct world *w) {
    const struct profile *p = &w->profile;
    if (w->full_left > 0 && --w->full_left == 0) disk_sim_set_capacity(w->inner, (u64)p->segments * p->segment_bytes);
    if (w->full_left == 0 && chance(w, p->full_disk)) {
        tally.disk_full_phases++;
        w->full_left = (u32)between(w, 20, 150);
        disk_sim_set_capacity(w->inner, 0);
    }
    /* One at a time: what a fault has broken may show only later, and must still be known as its work. */
    if (!chance(w, p->fail_disk) || fault_fired(w->faults)) return;
    enum fault_kind kind = rng_below(&w->rng, 3) ? FAULT_SYNC : FAULT_WRITE;
    if (rng_below(&w->rng, 3) == 0) kind = FAULT_DIE;
    tally.failed_syncs += kind == FAULT_SYNC;
    tally.failed_writes += kind == FAULT_WRITE;
    fault_arm(w->faults, kind, (u32)rng_below(&w->rng, 6));
}

/* The broker's part of a turn. Whether the journal has failed is asked when the turn is over, as the daemon does: until then
 * the broker goes on as if nothing had happened, and must be able to. */
static bool broker_part(struct world *w, bool clients) {
    for (u32 i = 0; i < 8 && broker_tick(w->broker, world_time(w)); i++) {
    }
    net_cuts(w);
    outside_work(w);
    if (clients) net_arrivals(w);
    world_beside(w);
    tally.failed_mid_turn += world_dead(w);
    /* What had to wait, as times to live do that are over all at once: the daemon's next turn comes without delay. */
    for (u32 i = 0; i < TICKS_MAX && broker_next_ms(w->broker, world_time(w)) == 0; i++)
        broker_tick(w->broker, world_time(w));
    broker_turn_end(w->broker, world_time(w));
    for (u32 i = 0; i < PARTS_MAX && !world_dead(w) && broker_unfinished(w->broker); i++) {
        broker_tick(w->broker, world_time(w)); /* work that was cut into parts goes on at once */
        broker_turn_end(w->broker, world_time(w));
    }
    return !world_dead(w);
}

static void turn(struct world *w, i64 ms, bool clients) {
    tally.turns++;
    pass_time(w, ms);
    feel_disk(w);
    trace("turn: mono %lld wall %lld", (long long)w->mono_ms, (long long)w->wall_ms);
    bool alive = broker_part(w, clients);
    if (alive) {
        model_turn_end(w->model);
        disk_work(w);
    }
    if (!alive || world_dead(w)) {
        die(w);
        return;
    }
    watch_journal(w);
    if (++w->turns % WATCH_CLOCK_TURNS == 0) watch_clock(w);
    net_release(w);
}

static void wild_phase(struct world *w, u32 turns) {
    w->faults_on = true;
    disk_sim_set_capacity(w->inner, (u64)w->profile.segments * w->profile.segment_bytes);
    for (u32 i = 0; i < turns; i++) {
        clients_act(w);
        passing_act(w);
        outside_act(w);
        disk_weather(w);
        turn(w, turn_ms(w), true);
        if (chance(w, w->profile.crash)) die(w);
        if (chance(w, w->profile.clean_restart)) restart_cleanly(w);
    }
}

/* P8: a small disk is filled until nothing more is accepted; all that was accepted must still be settled, with results as
 * large as promised. */
static void brim_phase(struct world *w) {
    const u32 lines = 10;
    w->faults_on = false;
    for (u32 key = 0; key + lines <= w->profile.keys; key += lines) {
        clients_fill(w, key, lines);
        turn(w, 10, true);
    }
    for (u32 i = 0; i < 120; i++) {
        clients_take(w);
        turn(w, 10, true);
    }
}

static void calm(struct world *w) {
    w->faults_on = false;
    w->stall_left = w->full_left = 0;
    fault_clear(w->faults);
    disk_sim_set_capacity(w->inner, ample(w));
}

/* A day and some: every window ends. A restart now and then, a request now and then. */
static void long_phase(struct world *w) {
    tally.long_runs++;
    calm(w);
    for (u32 i = 0; i < 88000; i++) {
        bool busy = i % 500 == 0;
        if (busy) clients_act(w);
        if (i % 50 == 0) passing_act(w);
        if (i % 50 == 25) outside_act(w);
        if (i % 29000 == 7000) restart_cleanly(w);
        if (i % 31000 == 13000) die(w);
        turn(w, 1000, true);
    }
}

/* Faults have ended: everything must come to its end, and nobody may wait for ever. */
static void last_phase(struct world *w) {
    calm(w);
    u32 turns = 0;
    u32 pushes = outside_calm(w);
    while (model_unsettled(w->model) > 0 || w->calls_live > 0 || pushes > 0) {
        if (turns++ == DRAIN_TURNS_MAX) {
            struct buf text = {0};
            model_describe_unsettled(w->model, &text);
            sim_fail("liveness: %u messages unsettled, %u calls open, %u pushes after %u turns without faults: %.*s",
                     model_unsettled(w->model), w->calls_live, pushes, turns, (int)text.len, text.p);
        }
        if (model_unsettled(w->model) > 0 && turns % 2) clients_drain(w);
        turn(w, between(w, 1, 1000), true);
        pushes = outside_calm(w);
    }
    outside_end(w);
    restart_cleanly(w);
    operator_checks_audit(w);
}

static void on_abort(int sig) {
    (void)sig;
    sim_fail("the broker aborted");
}

static void close_world(struct world *w) {
    broker_free(w->broker);
    journal_close(w->journal);
    disk_close(w->disk);
    for (u32 i = 0; i < CALLS_MAX; i++) buf_free(&w->late[i].bytes);
    arena_clear(&w->arena);
    arena_clear(&w->scratch);
    mem_free(w);
}

void sim_run(u64 seed) {
    struct world *w = mem_zalloc(sizeof *w);
    signal(SIGABRT, on_abort);
    open_world(w, seed);
    start_life(w);
    model_boot(w->model, w->mono_ms, w->wall_ms);
    work_until_idle(w);
    clock_begins(w);
    outside_boot(w);
    operator_starts(w);
    if (w->profile.fat_result) brim_phase(w);
    wild_phase(w, w->profile.turns);
    if (w->profile.long_run) {
        long_phase(w);
        wild_phase(w, w->profile.turns / 3);
    }
    last_phase(w);
    close_world(w);
}
