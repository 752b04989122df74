/* A broker on a disk in memory, with a clock that only the test moves, and its clients. */
#ifndef HAPAX_TESTS_BROKER_WORLD_H
#define HAPAX_TESTS_BROKER_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/json.h"
#include "broker/broker.h"
#include "broker/effects.h"
#include "config/config.h"
#include "core/core.h"
#include "journal/disk_sim.h"
#include "journal/file.h"

static struct world {
    struct disk *disk;
    struct journal *journal;
    struct broker *broker;
    struct broker_time t;
    u32 answers;
    u16 status;
    u64 clock_us, us_a_look; /* what each look at the clock costs */
    size_t kept;             /* what the broker last said it keeps for a request */
    u64 after, released;     /* what the last reply waits for; what may leave */
    struct buf body, fields, log;
    const char *last_sentence; /* of the last line of the log */
    u64 memory_max;
    const char *address;       /* where it is served */
    const char *authorization; /* what the next requests show; NULL: nothing */
    struct surroundings around;
    i64 relay_oldest_ms;
    struct buf notices; /* "id json\n" */
    /* Requests to other servers. */
    u64 fetches[64]; /* their numbers; at most so many are taken */
    u32 fetch_count, fetch_room, fetches_max;
    struct buf fetched; /* "METHOD url header header body\n" of the last */
    char token[TOKEN_TEXT + 1], id[ID_TEXT + 1];
} w;

static inline void remember(slice body, const char *name, char *out, size_t bytes) {
    const char *at = memmem(body.p, body.n, name, strlen(name));
    if (at) memcpy(out, at + strlen(name), bytes);
}

static inline void respond(void *ctx, void *conn, const struct http_reply *reply) {
    (void)ctx, (void)conn;
    w.answers++;
    w.status = reply->status;
    w.after = reply->after.position;
    buf_reset(&w.body);
    buf_slice_add(&w.body, reply->body);
    buf_char(&w.body, 0);
    buf_reset(&w.fields);
    buf_slice_add(&w.fields, reply->fields);
    buf_char(&w.fields, 0);
    if (reply->body.n == 0) return;
    remember(reply->body, "\"token\":\"", w.token, TOKEN_TEXT);
    remember(reply->body, "\"id\":\"", w.id, ID_TEXT);
}

static inline void keeps(void *ctx, void *conn, size_t bytes) {
    (void)ctx, (void)conn;
    w.kept = bytes;
}

static inline void release(void *ctx, u64 position) {
    (void)ctx;
    w.released = position;
}

static inline void surroundings(void *ctx, struct surroundings *out) {
    (void)ctx;
    *out = w.around;
}

static inline i64 relay_oldest_ms(void *ctx, slice queue) {
    (void)ctx, (void)queue;
    return w.relay_oldest_ms;
}

static inline void notified(void *ctx, slice id, slice json) {
    (void)ctx;
    if (w.notices.len) w.notices.len--; /* of the 0 */
    buf_printf(&w.notices, "%.*s %.*s\n", (int)id.n, id.p, (int)json.n, json.p);
    buf_char(&w.notices, 0);
}

static inline bool take_fetch(void *ctx, u64 number, const struct outbound_request *r) {
    (void)ctx;
    if (w.fetch_count == w.fetch_room) return false;
    w.fetches[w.fetch_count++] = number;
    buf_reset(&w.fetched);
    buf_printf(&w.fetched, "%s %s", r->method, r->url);
    for (u32 i = 0; r->headers[i]; i++) buf_printf(&w.fetched, " %s", r->headers[i]);
    buf_printf(&w.fetched, " %.*s\n", (int)r->body.n, r->body.p);
    buf_char(&w.fetched, 0);
    return true;
}

static inline u64 now_us(void *ctx) {
    (void)ctx;
    return w.clock_us += w.us_a_look;
}

/* "disk_short room_bytes=7 ...\n" */
static inline void hear(void *ctx, enum log_level level, const char *event, const char *msg,
                        const struct log_field *fields, size_t count) {
    (void)ctx, (void)level;
    w.last_sentence = msg;
    if (w.log.len) w.log.len--; /* of the 0 */
    buf_printf(&w.log, "%s", event);
    for (size_t i = 0; i < count; i++) {
        const struct log_field *f = &fields[i];
        if (f->name && f->kind == LOG_FIELD_TEXT) buf_printf(&w.log, " %s=%.*s", f->name, (int)f->text.n, f->text.p);
        if (f->kind == LOG_FIELD_EVERY) buf_lit(&w.log, " every");
        if (f->name && f->kind == LOG_FIELD_NUMBER) buf_printf(&w.log, " %s=%lld", f->name, (long long)f->number);
    }
    buf_lit(&w.log, "\n\0");
}

/* How often it was said. */
static inline u32 heard(const char *part) {
    u32 n = 0;
    for (const char *at = w.log.p; w.log.len && (at = strstr(at, part)); at++) n++;
    return n;
}

static inline void open_broker(void) {
    struct errbuf err;
    struct journal_file_options jo = {.disk = w.disk, .segment_bytes = 1u << 20, .manual = true};
    assert_int_equal(journal_file_open(&jo, &w.journal, &err), ST_OK);
    struct broker_options bo = {.journal = w.journal,
                                .memory_max = w.memory_max,
                                .fetches_max = w.fetches_max,
                                .addresses = &w.address,
                                .address_count = w.address != NULL,
                                .port = {.respond = respond,
                                         .release = release,
                                         .keeps = keeps,
                                         .now_us = now_us,
                                         .log = hear,
                                         .surroundings = surroundings,
                                         .relay_oldest_ms = relay_oldest_ms,
                                         .fetch = take_fetch,
                                         .notify = notified}};
    journal_file_secret(w.journal, bo.secret);
    hx_st st = broker_open(&bo, w.t, &w.broker, &err);
    if (st != ST_OK) print_error("%s\n", err.text);
    assert_int_equal(st, ST_OK);
}

static inline void work(void) {
    broker_turn_end(w.broker, w.t);
    while (journal_file_work(w.journal)) {
    }
    broker_durable(w.broker, w.t, journal_durable(w.journal));
}

static inline void pass(i64 ms) {
    w.t.mono_ms += ms;
    w.t.wall_ms += ms;
    broker_tick(w.broker, w.t);
    work();
}

static inline void close_broker(void) {
    broker_stop(w.broker, w.t);
    work();
    broker_free(w.broker);
    journal_close(w.journal);
}

static inline int set_up(void **state) {
    (void)state;
    memset(&w, 0, sizeof w);
    w.fetch_room = sizeof w.fetches / sizeof w.fetches[0];
    w.disk = disk_sim_new(1, 256u << 20);
    w.t = (struct broker_time){.mono_ms = 1000, .wall_ms = 1800000000000};
    open_broker();
    return 0;
}

static inline int tear_down(void **state) {
    (void)state;
    close_broker();
    disk_close(w.disk);
    buf_free(&w.body);
    buf_free(&w.fields);
    buf_free(&w.log);
    buf_free(&w.notices);
    buf_free(&w.fetched);
    return 0;
}

static inline void restart(void) {
    close_broker();
    open_broker();
}

static const char *const methods[] = {
    [HTTP_GET] = "GET", [HTTP_POST] = "POST", [HTTP_PUT] = "PUT", [HTTP_DELETE] = "DELETE"};

/* "POST /v1/...?query" with a key (or NULL) and a body, in a turn that has not ended yet. Returns the status; 0: not answered
 * yet, and *user is set. */
static inline u16 submit(const char *line, const char *key, slice body, void **user) {
    struct http_request req = {.body = body, .body_length = body.n, .authorization = slice_str(w.authorization)};
    slice method, target, path;
    slice_cut(slice_str(line), ' ', &method, &target);
    for (u32 i = 0; i < sizeof methods / sizeof methods[0]; i++)
        if (methods[i] && slice_eq(method, slice_str(methods[i]))) req.method = (enum http_method)i;
    slice_cut(target, '?', &path, &req.query);
    req.path = path;
    struct http_field fields[] = {{SL("Idempotency-Key"), slice_str(key)}};
    req.fields = fields;
    req.field_count = key ? 1 : 0;
    void *waits = NULL;
    u32 before = w.answers;
    broker_request(w.broker, w.t, &w, &waits, &req);
    if (user) *user = waits;
    return w.answers == before ? 0 : w.status;
}

/* The same, and the turn ends; what was waiting may be answered with it. */
static inline u16 request(const char *line, const char *key, slice body, void **user) {
    u32 before = w.answers;
    submit(line, key, body, user);
    work();
    return w.answers == before ? 0 : w.status;
}

static inline u16 call(const char *line, const char *body) {
    return request(line, NULL, slice_str(body), NULL);
}

static inline u16 send(const char *queue, const char *key, const char *payload) {
    char line[128];
    snprintf(line, sizeof line, "POST /v1/queues/%s/messages", queue);
    return request(line, key, slice_str(payload), NULL);
}

static inline void assert_said(const char *part) {
    if (!strstr(w.body.p, part)) print_error("no %s in %s\n", part, w.body.p);
    assert_non_null(strstr(w.body.p, part));
}

static inline u16 settle(const char *verb, const char *more) {
    char line[32], body[256];
    snprintf(line, sizeof line, "POST /v1/%s", verb);
    snprintf(body, sizeof body, "{\"token\":\"%s\"%s}", w.token, more);
    return call(line, body);
}

static inline void send_many(const char *queue, const char *prefix, u32 count) {
    char line[64], path[64];
    snprintf(path, sizeof path, "POST /v1/queues/%s/batch", queue);
    struct buf body = {0};
    for (u32 i = 0; i < count; i++) {
        snprintf(line, sizeof line, "{\"key\":\"%s%u\",\"payload\":\"x\"}\n", prefix, i);
        buf_slice_add(&body, slice_str(line));
    }
    assert_int_equal(request(path, NULL, buf_slice(&body), NULL), 200);
    buf_free(&body);
}

/* So many messages, all dead. */
static inline void make_dead(const char *queue, u32 count) {
    char path[64];
    send_many(queue, "d", count);
    snprintf(path, sizeof path, "POST /v1/queues/%s/receive", queue);
    for (u32 i = 0; i < count; i++) {
        assert_int_equal(call(path, ""), 200);
        assert_int_equal(settle("nack", ",\"class\":\"poison\""), 200);
    }
}

/* by NULL: as at start. */
static inline hx_st configure_by(const char *by, const char *yaml, struct errbuf *err) {
    struct config *config;
    struct buf errors = {0};
    hx_st st = config_parse(slice_str(yaml), "hapax.yaml", &(struct config_use){0}, &config, &errors);
    assert_int_equal(st, ST_OK);
    struct buf changes = {0};
    if (by) config_diff(broker_config(w.broker), config, &changes);
    st = broker_configure(w.broker, w.t, config, by, buf_slice(&changes), err);
    buf_free(&changes);
    if (st != ST_OK) config_free(config);
    work();
    return st;
}

static inline hx_st configure(const char *yaml, struct errbuf *err) {
    return configure_by("test", yaml, err);
}

static inline void restart_with(const char *yaml) {
    struct errbuf err = {{0}};
    restart();
    assert_int_equal(configure_by(NULL, yaml, &err), ST_OK);
}

static inline void reload(const char *yaml) {
    struct errbuf err = {{0}};
    hx_st st = configure(yaml, &err);
    if (st != ST_OK) print_error("%s\n", err.text);
    assert_int_equal(st, ST_OK);
}

#endif
