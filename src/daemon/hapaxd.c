/* hapaxd: the daemon. Plugs the broker into the network, the disk and the clock. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "base/json.h"
#include "base/log.h"
#include "base/pages.h"
#include "broker/broker.h"
#include "config/config.h"
#include "config/lint.h"
#include "daemon/doors.h"
#include "daemon/notify.h"
#include "daemon/process.h"
#include "daemon/relays.h"
#include "daemon/service.h"
#include "daemon/settings.h"
#include "journal/disk.h"
#include "journal/file.h"
#include "net/http.h"
#include "net/loop.h"
#include "net/outbound.h"

#define DRAIN_GRACE_MS 5000u
#define DRAIN_CALLS_MS                                                                                                 \
    30000u /* for requests to other servers: those that have not ended by then are cut, and unknown after the next start */
#define FINDINGS_TOLD 20u   /* of what hapax lint calls an error */
#define LINES_TOLD    1000u /* of what a reload changes, or of what is wrong with it */
#define TURN_LONG_US  20000u
#define DAY_MS        ((i64)24 * 3600 * 1000)

/* The config file being read again. */
struct reload {
    pthread_t thread;
    bool running; /* until the loop has taken what the thread made */
    atomic_bool done;
    struct loop *loop;
    const char *path;
    struct config_use use;
    const struct config *in_force;
    hx_st st;
    struct config *config;
    const struct doors *doors;
    struct new_certificates certificates;
    struct buf changes, errors;
    struct lint_report lint; /* of config */
};

struct daemon {
    struct loop *loop;
    struct http_server *server;
    struct doors doors;
    struct broker *broker;
    struct journal *journal;
    struct disk *disk;
    struct relays *relays;
    struct outbound *outbound;
    struct notify *notify;
    struct service *service;
    struct process_files files;
    struct loop_alarm *calls_over;             /* while stopping */
    bool stopping, served, paused, turn_timed; /* served: no client is left */
    struct broker_time turn_time;
    i64 wall_ahead_ms; /* of the monotonic clock */
    const struct settings *settings;
    struct reload reload;
    bool reload_again;
    i64 refused_ms;   /* wall clock: the last reload was refused, so the file is not what is in force; 0: it is */
    const char *data; /* the directory */
    i64 started_ms;   /* wall clock */
};

/* Cut to milliseconds each by itself, the clocks would be apart by one more or less from turn to turn, and what is promised for a time (a
 * key's end, a lease's) would waver by that. So it is cut how far they are apart, and a slip of one is none. */
static struct broker_time time_now(struct daemon *d) {
    i64 us = clock_mono_us(), ahead = (clock_wall_us() - us) / 1000, slip = ahead - d->wall_ahead_ms;
    if (slip < -1 || slip > 1) d->wall_ahead_ms = ahead;
    return (struct broker_time){.mono_ms = us / 1000, .wall_ms = us / 1000 + d->wall_ahead_ms, .mono_us = (u64)us};
}

/* Requests of one turn share its time: they are decided together anyway. */
static struct broker_time turn_time(struct daemon *d) {
    if (!d->turn_timed) d->turn_time = time_now(d);
    d->turn_timed = true;
    return d->turn_time;
}

/* ---- the broker's world */

static void respond(void *ctx, void *conn, const struct http_reply *reply) {
    (void)ctx;
    http_respond(conn, reply);
}

static void release(void *ctx, u64 position) {
    struct daemon *d = ctx;
    http_release(d->server, 0, position);
}

static bool feed(void *ctx, void *conn, slice bytes, u64 after) {
    (void)ctx;
    return http_feed(conn, bytes, (struct http_after){.position = after});
}

static void feed_end(void *ctx, void *conn) {
    (void)ctx;
    http_feed_end(conn);
}

static void keeps(void *ctx, void *conn, size_t bytes) {
    (void)ctx;
    http_conn_keeps(conn, bytes);
}

static u64 now_us(void *ctx) {
    (void)ctx;
    return (u64)clock_mono_us();
}

static void tell(void *ctx, slice id, slice json) {
    notify_tell(((struct daemon *)ctx)->notify, id, json);
}

static void fetched(void *ctx, u64 number, const struct outbound_answer *a) {
    struct daemon *d = ctx;
    broker_fetched(d->broker, turn_time(d), number, a);
}

static bool fetch_it(void *ctx, u64 number, const struct outbound_request *r) {
    struct daemon *d = ctx;
    return outbound_call(d->outbound, r, fetched, d, number) != NULL;
}

static void put_number(struct buf *b, const char *name, u64 v) {
    if (b->p[b->len - 1] != '{') buf_char(b, ',');
    buf_printf(b, "\"%s\":%llu", name, (unsigned long long)v);
}

static void put_config(const struct daemon *d, struct buf *b) {
    if (!d->settings->config) return;
    buf_lit(b, ",\"config\":{");
    json_put_member(b, "file", slice_str(d->settings->config));
    if (d->refused_ms) json_put_member_time(b, "refused_at", d->refused_ms);
    buf_char(b, '}');
}

static void world_stats(void *ctx, struct buf *b) {
    struct daemon *d = ctx;
    struct http_server_stats h;
    struct loop_stats l;
    u64 resident, virtual;
    http_server_stats_get(d->server, &h);
    loop_stats_get(d->loop, &l);
    process_memory(&resident, &virtual);
    buf_lit(b, ",\"http\":{");
    put_number(b, "connections", h.connections);
    put_number(b, "accepted", h.accepted);
    put_number(b, "requests", h.requests);
    put_number(b, "replies", h.replies);
    put_number(b, "bytes_in", h.bytes_in);
    put_number(b, "bytes_out", h.bytes_out);
    put_number(b, "refused", h.refused);
    put_number(b, "timeouts", h.timeouts);
    put_number(b, "evicted", h.evicted);
    put_number(b, "tls_handshakes", h.tls_handshakes);
    put_number(b, "tls_resumed", h.tls_resumed);
    put_number(b, "tls_failed", h.tls_failed);
    put_number(b, "tls_cut", h.tls_cut);
    buf_lit(b, "},\"loop\":{");
    put_number(b, "turns", l.turns);
    put_number(b, "turn_us_max", l.turn_us_max);
    buf_lit(b, "},\"process\":{");
    put_number(b, "pid", (u64)getpid());
    put_number(b, "resident_bytes", resident);
    buf_char(b, '}');
    put_config(d, b);
    doors_stats(&d->doors, b);
    relays_stats(d->relays, b);
    notify_stats(d->notify, b);
}

static void put_log(void *ctx, enum log_level level, const char *event, const char *msg, const struct log_field *fields,
                    size_t count) {
    (void)ctx;
    log_fields(level, event, msg, fields, count);
}

static i64 relay_oldest_ms(void *ctx, slice queue) {
    return relays_oldest_ms(((struct daemon *)ctx)->relays, queue);
}

static void surroundings(void *ctx, struct surroundings *w) {
    const struct daemon *d = ctx;
    struct http_server_stats h;
    struct loop_stats l;
    http_server_stats_get(d->server, &h);
    loop_stats_get(d->loop, &l);
    w->connections = h.connections;
    w->bytes_in = h.bytes_in;
    w->bytes_out = h.bytes_out;
    w->buffered_bytes = h.buffered;
    w->tls_full = h.tls_handshakes - h.tls_resumed;
    w->tls_resumed = h.tls_resumed;
    w->tls_failed = h.tls_failed;
    w->no_place = h.no_place;
    w->no_memory = h.no_memory;
    w->per_address = h.per_address;
    w->turn_us = l.turn_us;
    w->started_ms = d->started_ms;
    process_surroundings(w, d->data);
}

/* P7: nothing leaves after a failed write or sync. */
static void stop_if_failed(struct daemon *d) {
    const char *why = journal_failed(d->journal);
    if (!why) return;
    http_server_silence(d->server);
    log_line(LOG_ERROR, "durability_failed",
             "durability failed: %s. Nothing is answered any more; everything answered so far is on disk. "
             "Fix the disk, then start again: requests without an answer are to be repeated with their keys.",
             why);
    _exit(1);
}

static void on_tick(void *ctx);
static void end_reload(struct daemon *d);

static void arm_timer(struct daemon *d) {
    i64 ms = broker_next_ms(d->broker, time_now(d));
    loop_timer(d->loop, ms < 1 ? 1 : (u64)ms, on_tick, d);
}

/* It may come up in the turn that set it, which has had its end: what is left to do can wait for the next where that took long. */
static void on_tick(void *ctx) {
    struct daemon *d = ctx;
    if (loop_turn_us(d->loop) > TURN_LONG_US) return arm_timer(d);
    broker_tick(d->broker, time_now(d));
    broker_turn_end(d->broker, time_now(d));
    stop_if_failed(d);
    arm_timer(d);
}

static void set_paused(struct daemon *d, bool paused) {
    if (d->paused == paused) return;
    d->paused = paused;
    http_server_pause_reading(d->server, paused);
}

/* A batch is durable, or never will be. */
static void on_wake(void *ctx) {
    struct daemon *d = ctx;
    stop_if_failed(d);
    broker_durable(d->broker, time_now(d), journal_durable(d->journal));
    set_paused(d, broker_wants_pause(d->broker));
    end_reload(d);
}

static void wake(void *ctx) {
    loop_wake(((struct daemon *)ctx)->loop);
}

/* ---- the server's handler */

static void on_request(void *ctx, struct http_conn *conn, const struct http_request *req) {
    struct daemon *d = ctx;
    void *user = NULL;
    broker_request(d->broker, turn_time(d), conn, &user, req);
    if (user) http_conn_set_user(conn, user);
}

static void on_ahead(void *ctx, struct http_request *const *reqs, u32 count) {
    broker_ahead(((struct daemon *)ctx)->broker, reqs, count);
}

static u64 body_limit(void *ctx, struct http_request *head) {
    return broker_body_limit(((struct daemon *)ctx)->broker, head);
}

static void on_gone(void *ctx, struct http_conn *conn) {
    broker_gone(((struct daemon *)ctx)->broker, time_now(ctx), http_conn_user(conn));
}

static bool urgent(void *ctx, struct http_request *head) {
    return broker_urgent(((struct daemon *)ctx)->broker, head);
}

static bool hurry(void *ctx, struct http_conn *conn) {
    return broker_hurry(((struct daemon *)ctx)->broker, time_now(ctx), http_conn_user(conn));
}

static void on_receipt(void *ctx, u64 receipt, bool written) {
    broker_receipt(((struct daemon *)ctx)->broker, time_now(ctx), receipt, written);
}

static void on_turn_end(void *ctx) {
    struct daemon *d = ctx;
    d->turn_timed = false;
    broker_turn_end(d->broker, turn_time(d));
    d->turn_timed = false;
    set_paused(d, broker_wants_pause(d->broker));
    arm_timer(d);
}

static void render_error(void *ctx, u16 status, const char *code, const char *detail, struct buf *body) {
    (void)ctx;
    broker_render_problem(body, status, code, detail, false);
}

/* ---- ending */

static void stop_when_done(struct daemon *d) {
    if (d->stopping && d->served && broker_fetches(d->broker) == 0) loop_stop(d->loop);
}

static void on_drained(void *ctx) {
    struct daemon *d = ctx;
    d->served = true;
    stop_when_done(d);
}

/* Their leases are journaled, their outcomes are not: after the next start they are unknown, and treated as such. */
static void on_calls_over(void *ctx) {
    struct daemon *d = ctx;
    log_event(LOG_WARN, "calls_cut", "stopping does not wait any longer for requests to other servers",
              log_number("under_way", broker_fetches(d->broker)));
    loop_stop(d->loop);
}

/* Requests to others have ended in this turn. */
static void on_calls_ended(void *ctx) {
    struct daemon *d = ctx;
    on_turn_end(d);
    stop_when_done(d);
}

static void on_terminate(void *ctx) {
    struct daemon *d = ctx;
    if (d->stopping) return;
    d->stopping = true;
    service_stopping(d->service);
    log_line(LOG_INFO, "stopping", "stopping: no new connections, long polls end, what is being answered is finished");
    relays_stop(d->relays);
    broker_drain(d->broker, time_now(d));
    broker_turn_end(d->broker, time_now(d));
    u32 calls = broker_fetches(d->broker);
    if (calls) log_event(LOG_INFO, "stopping", "waiting for requests to other servers", log_number("under_way", calls));
    d->calls_over = loop_alarm_new(d->loop, on_calls_over, d);
    loop_alarm_set(d->calls_over, DRAIN_CALLS_MS);
    http_server_drain(d->server, calls ? DRAIN_CALLS_MS : DRAIN_GRACE_MS, on_drained, d);
}

/* ---- reading the config again */

static void log_lines(enum log_level level, slice text) {
    slice line;
    u32 told = 0;
    while (text.n) {
        slice_cut(text, '\n', &line, &text);
        if (line.n && told++ < LINES_TOLD) log_line(level, "config", "config: %.*s", (int)line.n, line.p);
    }
    if (told > LINES_TOLD) log_line(level, "config", "config: and %u further lines", told - LINES_TOLD);
}

/* Valid, and a promise broken sooner or later: whoever did not lint the file hears of it here. */
static void log_findings(const char *path, const struct lint_report *lint) {
    u32 told = 0;
    for (u32 i = 0; i < lint->count; i++) {
        const struct lint_finding *f = &lint->at[i];
        if (f->rule->severity != LINT_ERROR || told++ >= FINDINGS_TOLD) continue;
        log_event(LOG_WARN, "config_lint", f->text, log_text("queue", f->queue),
                  log_text("rule", slice_str(f->rule->code)), log_number("line", f->at.line));
    }
    if (told > FINDINGS_TOLD)
        log_line(LOG_WARN, "config_lint", "and %u more: hapax lint %s shows all", told - FINDINGS_TOLD, path);
}

static void log_lint(const char *path, const struct config *config) {
    struct lint_report lint = {0};
    if (path) lint_run(config, &lint);
    log_findings(path, &lint);
    lint_free(&lint);
}

/* Neither can change under a running broker. */
static void log_restart(const char *name, slice now, const char *at_start, const char *overridden) {
    if (overridden || slice_eq(now, slice_str(at_start))) return;
    log_line(LOG_WARN, "config", "config: %s is %.*s in the file now, and stays %s until a restart", name, (int)now.n,
             now.p, at_start);
}

static void look_at_doors(struct reload *r) {
    struct errbuf err = {{0}};
    if (!r->use.insecure_listen) r->st = doors_stay_guarded(r->doors, r->in_force, r->config, &err);
    if (r->st == ST_OK) r->st = doors_read_again(r->doors, r->config, &r->certificates, &r->changes, &err);
    if (r->st == ST_OK) return;
    buf_printf(&r->errors, "%s\n", err.text);
    config_free(r->config);
    r->config = NULL;
}

/* A file of thousands of queues takes longer to read than anybody should wait: a thread does it, and compares it with the one
 * in force, which stays as it is until the loop has heard from that thread. */
static void *read_config(void *ctx) {
    struct reload *r = ctx;
    r->st = config_load(r->path, &r->use, &r->config, &r->errors);
    if (r->st == ST_OK) config_diff(r->in_force, r->config, &r->changes);
    if (r->st == ST_OK) config_queues_compare(r->in_force, r->config);
    if (r->st == ST_OK) look_at_doors(r);
    if (r->st == ST_OK) lint_run(r->config, &r->lint);
    atomic_store_explicit(&r->done, true, memory_order_release);
    loop_wake(r->loop);
    return NULL;
}

static void begin_reload(struct daemon *d) {
    struct reload *r = &d->reload;
    *r = (struct reload){.path = d->settings->config,
                         .use = settings_use(d->settings),
                         .in_force = broker_config(d->broker),
                         .loop = d->loop,
                         .doors = &d->doors,
                         .running = true};
    service_reloading(d->service);
    CHECK(pthread_create(&r->thread, NULL, read_config, r) == 0);
}

static void limit_addresses(struct daemon *d) {
    http_server_per_address(d->server, broker_config(d->broker)->limits.per_address.connections);
}

static bool lets_all_in(const struct config *c) {
    return c->tokens.count == 0 && c->said[TOP_KEY_anonymous].line == 0;
}

static void put_in_force(struct daemon *d, struct reload *r) {
    const struct settings *s = d->settings;
    bool opens = lets_all_in(r->config) && !lets_all_in(r->in_force);
    struct errbuf err = {{0}};
    struct buf listen = {0};
    config_listen_text(r->config, &listen);
    log_restart("listen", buf_slice(&listen), s->file_listen, s->listen);
    log_restart("data", r->config->data, s->file_data, s->data);
    buf_free(&listen);
    r->st = broker_configure(d->broker, time_now(d), r->config, "SIGHUP", buf_slice(&r->changes), &err);
    if (r->st == ST_OK) {
        if (opens)
            log_line(LOG_WARN, "config", "config: no token is left: whoever reaches the broker may do everything");
        limit_addresses(d);
        doors_renew(&d->doors, d->server, &r->certificates);
        notify_configure(d->notify, &broker_config(d->broker)->alerts);
        outbound_forget(d->outbound);
        return;
    }
    config_free(r->config);
    buf_slice_add(&r->errors, slice_str(err.text));
}

static void free_reload(struct reload *r) {
    new_certificates_free(&r->certificates);
    buf_free(&r->changes);
    buf_free(&r->errors);
    lint_free(&r->lint);
}

/* All of it or nothing: what is wrong with the new one is said, a line for each mistake, and the old one goes on. */
static void end_reload(struct daemon *d) {
    struct reload *r = &d->reload;
    if (!r->running || !atomic_load_explicit(&r->done, memory_order_acquire)) return;
    CHECK(pthread_join(r->thread, NULL) == 0);
    r->running = false;
    if (r->st == ST_OK) put_in_force(d, r);
    d->refused_ms = r->st == ST_OK ? 0 : clock_wall_ms();
    if (r->st != ST_OK) {
        log_lines(LOG_ERROR, buf_slice(&r->errors));
        log_line(LOG_ERROR, "config_refused", "config: reload refused, the old rules stay");
    } else {
        log_lines(LOG_INFO, buf_slice(&r->changes));
        log_findings(r->path, &r->lint);
        log_line(LOG_INFO, "config_reload", "config: %s %s", r->path,
                 r->changes.len ? "is in force" : "says nothing new");
    }
    free_reload(r);
    broker_turn_end(d->broker, time_now(d));
    arm_timer(d);
    if (!d->stopping) service_ready(d->service);
    if (d->reload_again) begin_reload(d);
    d->reload_again = false;
}

/* While one is read, another is asked for: the file may have changed since it was opened. */
static void on_hangup(void *ctx) {
    struct daemon *d = ctx;
    if (!d->settings->config)
        return log_line(LOG_INFO, "config_reload", "SIGHUP: there is no configuration file to read again");
    if (d->reload.running)
        d->reload_again = true;
    else
        begin_reload(d);
}

static void abandon_reload(struct daemon *d) {
    struct reload *r = &d->reload;
    if (!r->running) return;
    CHECK(pthread_join(r->thread, NULL) == 0);
    if (r->st == ST_OK) config_free(r->config);
    free_reload(r);
}

/* Also after half a start: what is not there needs no end. */
static void finish(struct daemon *d) {
    if (d->server) http_server_close(d->server);
    abandon_reload(d);
    relays_free(d->relays);
    notify_free(d->notify);
    outbound_free(d->outbound);
    loop_alarm_free(d->calls_over);
    service_free(d->service);
    if (d->broker) broker_free(d->broker);
    if (d->journal) journal_close(d->journal);
    if (d->disk) disk_close(d->disk);
    if (d->loop) loop_free(d->loop);
    doors_free(&d->doors);
}

/* ---- starting */

static hx_st open_storage(struct daemon *d, const char *path, u32 files, struct errbuf *err) {
    hx_st st = disk_posix_open(path, true, &d->disk, err);
    if (st != ST_OK) return st;
    struct journal_file_options options = {.disk = d->disk, .files_max = files, .wake = wake, .wake_ctx = d};
    return journal_file_open(&options, &d->journal, err);
}

static void put_roughly(struct buf *b, i64 ms) {
    i64 second = 1000, hour = 3600 * second, unit = ms >= DAY_MS ? hour : ms >= hour ? 60 * second : second;
    buf_duration(b, ms / unit * unit);
    buf_char(b, 0);
}

/* What is charged cannot be taken back: a delay that is over is delivered, a time to live ends its message. */
static void log_downtime(const struct daemon *d) {
    i64 by_clock_ms, charged_ms;
    struct buf clock = {0}, charged = {0};
    broker_downtime(d->broker, &by_clock_ms, &charged_ms);
    if (by_clock_ms == 0 && charged_ms == 0) return;
    bool back = by_clock_ms < 0;
    put_roughly(&clock, back ? -by_clock_ms : by_clock_ms);
    put_roughly(&charged, charged_ms);
    if (d->settings->downtime) {
        log_line(LOG_INFO, "downtime",
                 "--downtime: delays and times to live have gone on by %s; the wall clock says %s%s", charged.p,
                 back ? "minus " : "", clock.p);
    } else if (back) {
        log_line(LOG_WARN, "downtime",
                 "the wall clock stands %s before the last time written down: no downtime is charged to delays "
                 "and times to live. --downtime says how long it was",
                 clock.p);
    } else if (charged_ms <= DAY_MS) {
        log_line(LOG_INFO, "downtime", "down for %s by the wall clock: delays and times to live have gone on by that",
                 clock.p);
    } else {
        log_line(LOG_WARN, "downtime",
                 "down for %s by the wall clock: delays and times to live have gone on by that, and what is due is "
                 "delivered or cancelled for good. Where the clock is wrong, --downtime says how long it was",
                 clock.p);
    }
    buf_free(&clock);
    buf_free(&charged);
}

/* The rules are the config's from the first request on; *config is taken. */
static hx_st open_broker(struct daemon *d, struct config **config, struct errbuf *err) {
    const char *addresses[LISTENERS_MAX];
    for (u32 i = 0; i < d->doors.count; i++) addresses[i] = d->doors.at[i].address.host;
    struct broker_options options = {
        .journal = d->journal,
        .port = {.ctx = d,
                 .respond = respond,
                 .release = release,
                 .feed = feed,
                 .feed_end = feed_end,
                 .keeps = keeps,
                 .now_us = now_us,
                 .stats = world_stats,
                 .notify = tell,
                 .fetch = fetch_it,
                 .surroundings = surroundings,
                 .relay_oldest_ms = relay_oldest_ms,
                 .log = put_log},
        .addresses = addresses,
        .address_count = d->doors.count,
        .own = relays_token(d->relays),
        .fetches_max = d->files.fetches,
        .downtime_said = d->settings->downtime != NULL,
        .downtime_ms = d->settings->downtime_ms,
    };
    journal_file_secret(d->journal, options.secret);
    random_bytes(&options.seed, sizeof options.seed);
    options.memory_max = settings_memory_max(d->settings);
    i64 began = clock_mono_ms();
    hx_st st = broker_open(&options, time_now(d), &d->broker, err);
    explicit_bzero(options.secret, sizeof options.secret);
    if (st != ST_OK) return st;
    struct journal_stats s;
    journal_stats_get(d->journal, &s);
    log_event(LOG_INFO, "replayed", "the journal is replayed", log_number("ms", clock_mono_ms() - began),
              log_number("bytes", (i64)s.used_bytes));
    log_downtime(d);
    st = broker_configure(d->broker, time_now(d), *config, NULL, SL(""), err);
    if (st != ST_OK) return st;
    *config = NULL;
    limit_addresses(d);
    return ST_OK;
}

static hx_st open_server(struct daemon *d, const struct place *p, u32 connections, struct errbuf *err) {
    struct http_handler handler = {
        .ctx = d,
        .on_request = on_request,
        .on_ahead = on_ahead,
        .body_limit = body_limit,
        .on_gone = on_gone,
        .on_receipt = on_receipt,
        .on_turn_end = on_turn_end,
        .urgent = urgent,
        .hurry = hurry,
        .render_error = render_error,
    };
    struct http_limits limits = {.connections_max = connections,
                                 .buffered_max = process_buffers_max(settings_memory_max(d->settings))};
    d->server = http_server_new(loop_uv(d->loop), &limits, &handler);
    hx_st st = doors_prepare(&d->doors, p, err);
    return st == ST_OK ? doors_bind(&d->doors, d->server, d->relays != NULL, err) : st;
}

/* Certificates and addresses come first: a start that finds one wrong, or one taken, leaves nothing behind. Clients are let in last. */
static hx_st start(struct daemon *d, const struct place *p, struct config **config, struct errbuf *err) {
    pages_ahead();
    d->loop = loop_new();
    loop_on_wake(d->loop, on_wake, d);
    d->service = service_new(d->loop);
    hx_st st = process_share_files(*config, &d->files, err);
    if (st != ST_OK) return st;
    d->outbound = outbound_new(loop_uv(d->loop), d->files.fetches + NOTIFY_AT_ONCE);
    outbound_on_ended(d->outbound, on_calls_ended, d);
    d->notify = notify_new(d->loop, d->outbound);
    notify_configure(d->notify, &(*config)->alerts);
    st = open_server(d, p, d->files.connections, err);
    if (st != ST_OK) return st;
    st = open_storage(d, p->data, d->files.journal, err);
    if (st == ST_OK) st = open_broker(d, config, err);
    if (st != ST_OK) return err_wrap(err, st, "data directory %s", p->data);
    return http_server_listen(d->server, err);
}

/* One line for whoever waits for it, all addresses in it; the log has a line for each. */
static void say_ready(const struct daemon *d) {
    char url[DOOR_URL_BYTES];
    printf("hapaxd ready on");
    for (u32 i = 0; i < d->doors.count; i++) {
        door_url(&d->doors, i, d->server, url);
        log_event(LOG_INFO, "listening", "hapaxd serves", log_text("url", slice_str(url)),
                  log_text("data", slice_str(d->data)), log_text("version", SL(HAPAX_VERSION)),
                  log_number("pid", getpid()));
        printf(" %s", url);
    }
    printf("\n");
    fflush(stdout);
}

static void serve(struct daemon *d) {
    loop_signal(d->loop, SIGTERM, on_terminate, d);
    loop_signal(d->loop, SIGINT, on_terminate, d);
    loop_signal(d->loop, SIGHUP, on_hangup, d);
    char url[DOOR_URL_BYTES];
    doors_relay_url(&d->doors, d->server, url);
    say_ready(d);
    if (d->doors.inside)
        log_event(LOG_INFO, "listening", "for its own relays, and nobody else", log_text("url", slice_str(url)));
    service_ready(d->service);
    relays_start(d->relays, url);
    arm_timer(d);
    loop_run(d->loop);
    broker_stop(d->broker, time_now(d));
    log_line(LOG_INFO, "stopped", "stopped");
}

int main(int argc, char **argv) {
    struct settings s = {0};
    struct daemon d = {.settings = &s};
    struct errbuf err = {{0}};
    struct place at;
    streams_hold();
    settings_parse(argc, argv, &s);
    process_lock_down(s.allow_dumps);
    process_return_memory();
    struct config *config = settings_config(&s);
    int status = settings_place(&s, config, &at);
    if (status == 0) log_lint(s.config, config);
    if (status == 0 && s.check_config) {
        status = doors_check(config) ? 0 : 1;
        if (status == 0)
            printf("%s: valid, %u queue%s\n", s.config, config_declared(config),
                   config_declared(config) == 1 ? "" : "s");
    } else if (status == 0) {
        signal(SIGPIPE, SIG_IGN);
        d.data = at.data;
        d.started_ms = clock_wall_ms();
        disk_posix_watch_maps();
        d.relays = relays_new(config);
        status = start(&d, &at, &config, &err) == ST_OK ? 0 : 1;
        if (status) log_line(LOG_ERROR, "start_failed", "hapaxd: %s", err.text);
        if (status == 0) serve(&d);
        finish(&d);
    }
    config_free(config);
    settings_free(&s);
    return status;
}
