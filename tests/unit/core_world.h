/* The core on a journal of its own that lives in memory, for its unit tests: sending, leasing and settling by key, restarts
 * (all records applied again) and compaction (old ones carried and dropped). Included once by each program. */
#ifndef HAPAX_TESTS_UNIT_CORE_WORLD_H
#define HAPAX_TESTS_UNIT_CORE_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "core/core.h"

struct stored {
    u8 type, version;
    size_t n;
    char *body;
};

static struct world {
    struct core *core;
    struct core_now now;
    struct stored *records;
    u64 first, count, cap;
    struct buf scratch;
    u64 room;
    bool metered; /* more than there is must never be appended */
    u32 outcomes, readies;
    u16 queue, shard;
    u64 memory_max;
    bool downtime_said; /* there was none, whatever the wall clock says */
    struct buf store, arrivals_store;
    struct record base, arrivals;
    struct seen seen;
} w;

/* No two begin in the same stretch. */
static inline u64 pos_of(u64 index) {
    return (index + 1) * CARRY_STRETCH;
}
static inline u64 index_at(u64 pos) {
    assert_true(pos % CARRY_STRETCH == 0 && pos >= pos_of(w.first) && pos < pos_of(w.count));
    return pos / CARRY_STRETCH - 1;
}

static inline void *sink_reserve(void *ctx, size_t max) {
    (void)ctx;
    buf_reset(&w.scratch);
    buf_grow(&w.scratch, max);
    return w.scratch.p;
}
static inline u64 sink_append(void *ctx, u8 type, u8 version, size_t n) {
    (void)ctx;
    if (w.count == w.cap) {
        w.cap = w.cap ? w.cap * 2 : 1024;
        w.records = mem_realloc(w.records, w.cap * sizeof *w.records);
    }
    if (w.metered) assert_true(core_room(w.core) >= n + 80);
    struct stored *s = &w.records[w.count++];
    *s = (struct stored){.type = type, .version = version, .n = n, .body = mem_alloc(n + 1)};
    memcpy(s->body, w.scratch.p, n);
    return pos_of(w.count - 1);
}
static inline u64 sink_cost(size_t n) {
    return n + 80;
}
static inline void sink_outcome(void *ctx, const struct ref *ref) {
    (void)ctx, (void)ref;
    w.outcomes++;
}
static inline void sink_ready(void *ctx, u16 queue) {
    (void)ctx, (void)queue;
    w.readies++;
}

static inline void set_room(u64 bytes) {
    w.room = bytes;
    core_room_set(w.core, bytes);
}
#define AUDIT(by, because) (&(struct audit_in){.who = SL(by), .what = SL("test"), .why = SL(because)})

/* A core that has read the journal and was not started. */
static inline struct core *replayed_core(void) {
    struct core_options options = {.hash_key = {11, 22},
                                   .seed = 5,
                                   .shard = w.shard,
                                   .memory_max = w.memory_max,
                                   .downtime_said = w.downtime_said};
    struct errbuf err;
    struct core *c = core_new(&options);
    for (u64 i = w.first; i < w.count; i++) {
        struct stored *s = &w.records[i];
        if (s->type == REC_NONE) continue; /* moved away */
        hx_st st = core_replay(c, pos_of(i), s->type, s->version, slice_of(s->body, s->n), &err);
        if (st != ST_OK) fail_msg("replay of record %llu: %s", (unsigned long long)i + 1, err.text);
    }
    return c;
}

static inline void start_core(void) {
    struct core_sink sink = {NULL, sink_reserve, sink_append, sink_cost, sink_outcome, sink_ready, NULL, NULL};
    struct errbuf err;
    w.core = replayed_core();
    assert_int_equal(core_start(w.core, &sink, w.now.wall_ms, &w.now, &err), ST_OK);
    core_room_set(w.core, w.room);
}

static inline void pass(i64 ms) {
    w.now.wall_ms += ms;
    w.now.run_ms += ms;
    w.now.delay_ms += ms;
    while (core_tick(w.core, w.now, 100)) {
    }
}

static inline void restart_after(i64 down_ms) {
    core_free(w.core);
    w.now.wall_ms += down_ms;
    start_core();
}

static inline struct seen *load(const struct found *f) {
    struct errbuf err;
    struct stored *s = &w.records[index_at(f->pos)];
    buf_reset(&w.store);
    buf_add(&w.store, s->body, s->n);
    assert_int_equal(record_decode(s->type, s->version, buf_slice(&w.store), &w.base, &err), ST_OK);
    w.seen = (struct seen){.at = *f};
    if (f->message)
        w.seen.message = &w.base.message;
    else
        w.seen.settle = &w.base.settle;
    if (f->arrivals_pos) {
        s = &w.records[index_at(f->arrivals_pos)];
        buf_reset(&w.arrivals_store);
        buf_add(&w.arrivals_store, s->body, s->n);
        assert_int_equal(record_decode(s->type, s->version, buf_slice(&w.arrivals_store), &w.arrivals, &err), ST_OK);
        w.seen.arrivals = &w.arrivals.arrivals;
    }
    return &w.seen;
}

static inline struct seen *find(const char *key) {
    struct core_cursor cursor = {0};
    struct found f;
    while (core_find(w.core, core_hash(w.core, w.queue, slice_str(key)), &cursor, &f)) {
        struct seen *s = load(&f);
        if (slice_eq(s->settle ? s->settle->key : s->message->key, slice_str(key))) return s;
    }
    return NULL;
}

static inline struct send_in sending(const char *key, const char *payload) {
    return (struct send_in){
        .queue = w.queue,
        .hash = core_hash(w.core, w.queue, slice_str(key)),
        .fingerprint = core_fingerprint(w.core, slice_str(payload)),
        .key = slice_str(key),
        .payload = slice_str(payload),
    };
}

static inline enum send_verdict send_full(const char *key, const char *payload, const char *group, i64 delay, i64 ttl,
                                          struct send_out *out) {
    struct send_in in = sending(key, payload);
    in.group = slice_str(group ? group : "");
    in.delay_ms = delay;
    in.ttl_ms = ttl;
    struct send_out ignored;
    return core_send(w.core, w.now, &in, find(key), out ? out : &ignored);
}
static inline enum send_verdict send(const char *key, const char *payload) {
    return send_full(key, payload, NULL, 0, 0, NULL);
}

struct leased {
    bool ok;
    u64 fence;
    struct ref ref;
    u16 attempt;
    enum delivery delivery;
    char key[KEY_BYTES_MAX + 1];
};

static inline struct leased receive_by(slice consumer, u32 lease_ms, bool reserve_only) {
    struct leased l = {0};
    u32 no = core_next_ready(w.core, w.queue);
    if (no == MESSAGE_NONE) return l;
    struct message_view v;
    core_message_view(w.core, w.now, no, &v);
    struct core_cursor cursor = {0};
    struct found f;
    while (core_find(w.core, v.ref.hash, &cursor, &f) && f.message != no) {
    }
    load(&f);
    struct lease_in in = {.lease_ms = lease_ms, .reserve_only = reserve_only, .consumer = consumer};
    struct lease_out out;
    enum lease_verdict verdict = core_lease(w.core, w.now, no, &w.base.message, &in, &out);
    if (verdict == LEASE_TTL_OVER) return receive_by(consumer, lease_ms, reserve_only);
    if (verdict != LEASE_OK) return l;
    l = (struct leased){.ok = true, .fence = out.fence, .ref = v.ref, .attempt = out.attempt, .delivery = out.delivery};
    memcpy(l.key, w.base.message.key.p, w.base.message.key.n);
    return l;
}
static inline struct leased receive_as(u32 lease_ms, bool reserve_only) {
    return receive_by(SL("tester"), lease_ms, reserve_only);
}
static inline struct leased receive(void) {
    return receive_as(30000, false);
}

static inline enum settle_verdict settle_as(const struct leased *l, struct settle_in in, struct settle_out *out) {
    struct core_cursor cursor = {0};
    struct found f;
    struct settle_out ignored;
    in.fence = l->fence;
    while (core_find(w.core, l->ref.hash, &cursor, &f)) {
        struct seen *s = load(&f);
        if ((s->settle ? s->settle->ref.seq : s->message->ref.seq) == l->ref.seq)
            return core_settle(w.core, w.now, &in, s, out ? out : &ignored);
    }
    fail_msg("nothing known of %s", l->key);
    return SETTLE_FULL;
}
static inline enum settle_verdict ack(const struct leased *l, const char *result) {
    return settle_as(l, (struct settle_in){.verb = VERB_ACK, .result = slice_str(result)}, NULL);
}
static inline enum settle_verdict nack(const struct leased *l, enum failure_class c) {
    return settle_as(l, (struct settle_in){.verb = VERB_NACK, .failure_class = c, .reason = SL("because")}, NULL);
}
static inline enum settle_verdict verb(const struct leased *l, enum verb v) {
    return settle_as(l, (struct settle_in){.verb = v}, NULL);
}

static inline enum state state_of(const char *key) {
    struct seen *s = find(key);
    assert_non_null(s);
    if (s->settle) return (enum state)s->settle->state;
    struct message_view v;
    core_message_view(w.core, w.now, s->at.message, &v);
    return v.state;
}

static inline int setup(void **state) {
    (void)state;
    memset(&w, 0, sizeof w);
    w.now = (struct core_now){.wall_ms = 1800000000000};
    w.room = 1u << 30;
    start_core();
    struct rules rules = rules_default();
    assert_true(core_queue_ensure(w.core, w.now, SL("q"), &rules, &w.queue));
    return 0;
}

static inline int teardown(void **state) {
    (void)state;
    core_free(w.core);
    for (u64 i = 0; i < w.count; i++) mem_free(w.records[i].body);
    mem_free(w.records);
    buf_free(&w.scratch);
    buf_free(&w.store);
    buf_free(&w.arrivals_store);
    return 0;
}

static inline void carry_upto(u64 end) {
    struct errbuf err;
    for (u64 pos = pos_of(w.first); (pos = core_carry_next(w.core, pos, pos_of(end))) < pos_of(end);
         pos += CARRY_STRETCH) {
        struct record r;
        struct stored *s = &w.records[index_at(pos)];
        assert_int_equal(record_decode(s->type, s->version, slice_of(s->body, s->n), &r, &err), ST_OK);
        core_carry(w.core, w.now, &r, pos);
    }
}
/* Carry everything up to `end` and drop it, as the broker does with the oldest segment. */
static inline void compact_upto(u64 end) {
    carry_upto(end);
    core_carry_end(w.core, w.now, pos_of(end));
    w.first = end;
}
static inline void compact(void) {
    compact_upto(w.count);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

#endif
