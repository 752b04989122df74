/* Whatever happens, replayed equals live: random sequences of everything the core can do, under random rules that change on
 * the way. Every so often the journal is read into a second core, and all that can be seen of both must be the same; in
 * between it is compacted, and the first core is replaced by one that starts from the journal, as after a crash.
 *
 * On the first queue the broker looks unknown outcomes up, whatever else changes there. Each lease to be done is held against what is
 * written of the message: after an attempt whose outcome nobody knows nothing is done before a look-up or a person has
 * spoken (P5).
 *
 *   core_random_test [FIRST-LAST]     seeds; 1-40 unless given */
#include <stdlib.h>

#include "unit/core_world.h"

#define QUEUES   4u
#define ACCOUNTS 2u
#define TOKENS   24u
#define OPS      500u
#define HOUR     ((i64)3600 * 1000)
#define LOOKING  0u /* the queue where the broker looks up */
#define LOOKUPS  3u

static struct rng rng;
static u64 seed;
static struct leased tokens[TOKENS];
static u32 token_count;

static u64 roll(u64 sides) {
    return rng_below(&rng, sides);
}
static bool one_in(u64 n) {
    return roll(n) == 0;
}

/* ---- all that can be seen, as text */

struct line {
    u16 queue;
    u64 seq;
    char text[1024];
};
struct picture {
    struct line *lines;
    u32 count, cap;
};

static struct line *add_line(struct picture *p, u16 queue, u64 seq) {
    if (p->count == p->cap) {
        p->cap = p->cap ? p->cap * 2 : 256;
        p->lines = mem_realloc(p->lines, p->cap * sizeof *p->lines);
    }
    p->lines[p->count] = (struct line){.queue = queue, .seq = seq};
    return &p->lines[p->count++];
}

static int by_place(const void *x, const void *y) {
    const struct line *a = x, *b = y;
    if (a->queue != b->queue) return a->queue < b->queue ? -1 : 1;
    return a->seq < b->seq ? -1 : a->seq > b->seq;
}

static u32 sum(slice s) {
    return crc32c(0, s.p, s.n);
}

static void see_message(const struct core *c, struct picture *p, const struct seen *s) {
    struct message_view v;
    const struct rec_message *m = s->message;
    core_message_view(c, w.now, s->at.message, &v);
    struct line *l = add_line(p, v.ref.queue, v.ref.seq);
    snprintf(
        l->text, sizeof l->text,
        "%.*s %s ended %s gen %u attempts %u/%u/%u/%u fence %llu due %lld started %d delayed %d behind %d "
        "doubt %d reconcile %d lookup %d parked %d takes %d taken %d conflict %d refused %d history %08x payload %08x "
        "group %.*s former %08x lookups %u",
        (int)m->key.n, m->key.p, state_text(v.state), ended_text((enum ended)v.ended), v.generation, v.attempts,
        v.failures, v.unknowns, v.crashes, (unsigned long long)v.fence,
        v.state == STATE_PENDING ? (long long)v.due_ms : 0, v.started, v.delayed, v.behind, v.doubt, v.reconcile,
        v.lookup, v.parked, v.takes, v.taken, v.conflict, v.refused, sum(v.history), sum(m->payload), (int)m->group.n,
        m->group.p, sum(m->former), v.lookups);
}

static void see_settled(const struct core *c, struct picture *p, const struct seen *s) {
    const struct rec_settle *r = s->settle;
    if (core_key_left_ms(c, w.now, r) <= 0) return; /* how long it lingers after that is nobody's business */
    struct line *l = add_line(p, r->ref.queue, r->ref.seq);
    snprintf(l->text, sizeof l->text,
             "%.*s %s ended %s gen %u attempts %u result %08x http %08x history %08x erased %d restored %d kept %d "
             "left %lld",
             (int)r->key.n, r->key.p, state_text((enum state)r->state), ended_text((enum ended)r->ended), r->generation,
             r->attempts, sum(r->result), sum(r->http), sum(r->history), r->erased, r->restored,
             core_payload_kept(c, w.now, r), (long long)core_key_left_ms(c, w.now, r));
}

static void see_queue(const struct core *c, struct picture *p, u16 queue) {
    struct queue_info q;
    core_queue_info(c, w.now, queue, &q);
    struct line *l = add_line(p, queue, 0);
    if (q.deleted) {
        snprintf(l->text, sizeof l->text, "deleted");
        return;
    }
    snprintf(
        l->text, sizeof l->text,
        "%.*s paused %d/%d/%d looks %u/%u/%u config %.*s rules %08x window %lld learnt %lld promised %lld pending %llu "
        "leased %llu held %llu dead %llu unsettled %llu/%llu conflicts %llu refused %llu/%llu",
        (int)q.name.n, q.name.p, q.paused, q.push_paused, q.push_gone, q.rules.lookup_after_ms, q.rules.lookup_every_ms,
        q.rules.lookup_attempts, (int)q.config.n, q.config.p, q.rules.on_unknown * 1000u + q.rules.on_dead,
        (long long)q.rules.window_ms, (long long)q.oldest_replay_ms, (long long)q.promised_window_ms,
        (unsigned long long)(q.ready + q.delayed + q.behind), (unsigned long long)q.leased, (unsigned long long)q.held,
        (unsigned long long)q.dead, (unsigned long long)q.unsettled, (unsigned long long)q.unsettled_bytes,
        (unsigned long long)q.conflict_copies, (unsigned long long)q.refused_copies,
        (unsigned long long)q.refused_bytes);
}

/* Those that are not zero. */
static void see_counters(const struct core *c, struct picture *p, u16 queue) {
    struct queue_info q;
    core_queue_info(c, w.now, queue, &q);
    q.counters.keys_expired = 0; /* counted with their buckets, whose borders a restart may move */
    struct line *l = &p->lines[p->count - 1];
    size_t n = strlen(l->text);
#define COUNTER_TEXT(name)                                                                                             \
    if (q.counters.name)                                                                                               \
        n += (size_t)snprintf(l->text + n, sizeof l->text - n, " %s %llu", #name, (unsigned long long)q.counters.name);
    COUNTER_LIST(COUNTER_TEXT)
#undef COUNTER_TEXT
}

static void see_arrivals(const struct core *c, struct picture *p, const struct seen *s) {
    struct arrivals a;
    core_arrivals_view(c, s, &a);
    if (a.total == 0 || (s->settle && core_key_left_ms(c, w.now, s->settle) <= 0)) return;
    struct line *l = &p->lines[p->count - 1];
    size_t n = strlen(l->text);
    snprintf(l->text + n, sizeof l->text - n, " arrivals %llu/%llu last %u at %lld", (unsigned long long)a.total,
             (unsigned long long)a.duplicates, a.count, (long long)a.last[a.count - 1].at_ms);
}

static void see(const struct core *c, struct picture *p) {
    for (u32 queue = 1; queue <= core_queue_count(c); queue++) {
        struct queue_info info;
        core_queue_info(c, w.now, (u16)queue, &info);
        if (info.deleted) continue; /* its number is all that is left, and may be nobody's any more */
        see_queue(c, p, (u16)queue);
        see_counters(c, p, (u16)queue);
        u32 cursor = 0;
        struct found f;
        for (enum walk_verdict v; (v = core_walk(c, (u16)queue, 0, 1000, &cursor, &f)) != WALK_END;) {
            if (v != WALK_FOUND) continue;
            const struct seen *s = load(&f);
            if (s->message)
                see_message(c, p, s);
            else
                see_settled(c, p, s);
            see_arrivals(c, p, s);
        }
    }
    struct audit_at at;
    for (u64 before = 0; core_audit_prev(c, before, &at); before = at.number)
        snprintf(add_line(p, UINT16_MAX, at.number)->text, 64, "audit at %llu", (unsigned long long)at.pos);
    qsort(p->lines, p->count, sizeof *p->lines, by_place);
}

/* ---- the second core: what it writes goes nowhere */

static struct buf nowhere;
static void *nowhere_reserve(void *ctx, size_t max) {
    (void)ctx;
    buf_reset(&nowhere);
    buf_grow(&nowhere, max);
    return nowhere.p;
}
static u64 nowhere_append(void *ctx, u8 type, u8 version, size_t n) {
    (void)ctx, (void)type, (void)version, (void)n;
    return UINT64_MAX; /* an expiry at most, which nothing points at */
}
static void nowhere_outcome(void *ctx, const struct ref *ref) {
    (void)ctx, (void)ref;
}
static void nowhere_ready(void *ctx, u16 queue) {
    (void)ctx, (void)queue;
}

static void assert_carried(u64 pos) {
    if (core_carry_next(w.core, pos, pos + CARRY_STRETCH) != pos)
        fail_msg("seed %llu: compaction would pass over what is at %llu", (unsigned long long)seed,
                 (unsigned long long)pos);
}

/* What can be seen is where compaction looks. */
static void check_carried(void) {
    for (u32 queue = 1; queue <= core_queue_count(w.core); queue++) {
        u32 cursor = 0;
        struct found f;
        for (enum walk_verdict v; (v = core_walk(w.core, (u16)queue, 0, 1000, &cursor, &f)) != WALK_END;) {
            if (v != WALK_FOUND) continue;
            assert_carried(f.pos);
            if (f.arrivals_pos) assert_carried(f.arrivals_pos);
        }
    }
    struct audit_at at;
    for (u64 before = 0; core_audit_prev(w.core, before, &at); before = at.number) assert_carried(at.pos);
}

static void check(void) {
    static const struct core_sink sink = {
        NULL, nowhere_reserve, nowhere_append, sink_cost, nowhere_outcome, nowhere_ready, NULL, NULL};
    pass(1001);
    core_stop(w.core, w.now);
    struct core *twin = replayed_core();
    struct core_now now;
    struct errbuf err;
    assert_int_equal(core_start(twin, &sink, w.now.wall_ms, &now, &err), ST_OK);
    core_room_set(twin, w.room);
    while (core_tick(twin, w.now, 1000)) {
    }
    struct picture live = {0}, replayed = {0};
    see(w.core, &live);
    see(twin, &replayed);
    for (u32 i = 0; i < live.count || i < replayed.count; i++) {
        const char *a = i < live.count ? live.lines[i].text : "(nothing)";
        const char *b = i < replayed.count ? replayed.lines[i].text : "(nothing)";
        if (strcmp(a, b) != 0)
            fail_msg("seed %llu, queue %u, message %llu\n live     %s\n replayed %s", (unsigned long long)seed,
                     live.lines[i].queue, (unsigned long long)live.lines[i].seq, a, b);
    }
    assert_true(core_live_bytes(w.core) < 1u << 30 &&
                core_live_bytes(twin) < 1u << 30); /* nothing is taken off twice */
    assert_true(core_reserved_bytes(w.core) < 1u << 30 && core_reserved_bytes(twin) < 1u << 30);
    mem_free(live.lines);
    mem_free(replayed.lines);
    core_free(twin);
}

/* ---- accounts */

static u16 account_of_queue(slice name) {
    return name.n > 1 ? (u16)((u32)(name.p[1] - '0') % (ACCOUNTS + 1)) : 0; /* some are in none */
}

static void assign_accounts(void) {
    static const struct account_limits none[ACCOUNTS];
    core_accounts_set(w.core, none, ACCOUNTS);
    for (u32 queue = 1; queue <= core_queue_count(w.core); queue++) {
        struct queue_info q;
        core_queue_info(w.core, w.now, (u16)queue, &q);
        if (!q.deleted) core_queue_account(w.core, (u16)queue, account_of_queue(q.name));
    }
}

/* What was kept as things happened is what adding up says. */
static void check_accounts(void) {
    struct account_sums expected[ACCOUNTS + 1] = {0};
    for (u32 queue = 1; queue <= core_queue_count(w.core); queue++) {
        struct queue_info q;
        core_queue_info(w.core, w.now, (u16)queue, &q);
        u32 cursor = 0;
        u64 known = 0;
        struct found f;
        for (enum walk_verdict v; (v = core_walk(w.core, (u16)queue, 0, 1000, &cursor, &f)) != WALK_END;)
            if (v == WALK_FOUND) known += f.size_hint;
        assert_in_range(q.bytes, known, core_live_bytes(w.core));
        if (q.deleted) continue;
        struct account_sums *sums = &expected[account_of_queue(q.name)];
        sums->queues++;
        sums->pending += q.unsettled - q.refused_copies;
        sums->bytes += q.bytes;
    }
    for (u16 a = 1; a <= ACCOUNTS; a++) {
        struct account_sums sums = core_account_sums(w.core, a);
        assert_memory_equal(&sums, &expected[a], sizeof sums);
    }
}

/* ---- what can happen */

static void random_lookups(struct rules *r, u32 queue) {
    bool always = queue == LOOKING;
    if (!always && !one_in(3)) return;
    r->on_unknown = ON_UNKNOWN_RECONCILE;
    r->lookup_after_ms = (u32)roll(5000);
    r->lookup_every_ms = (u32)roll(5000);
    r->lookup_attempts = (u16)(always ? LOOKUPS : 1 + roll(4));
}

static void random_rules(struct rules *r, u32 queue) {
    *r = rules_default();
    r->semantics = one_in(2) ? SEMANTICS_EXACTLY_ONCE : (u8)roll(SEMANTICS_COUNT);
    r->on_unknown = (u8)roll(ON_UNKNOWN_COUNT);
    random_lookups(r, queue);
    r->on_conflict = (u8)roll(ON_CONFLICT_COUNT);
    r->on_dead = (u8)roll(ON_DEAD_COUNT);
    r->window_ms = one_in(5) ? WINDOW_FOREVER : (i64)(1 + roll(10)) * HOUR / 2;
    if (one_in(4)) {
        r->window_min_ms = HOUR / 4;
        r->window_max_ms = (i64)(1 + roll(8)) * HOUR;
    }
    r->keep_payload_ms = one_in(2) ? 0 : (i64)roll(3) * HOUR;
    r->transient_attempts = r->unknown_attempts = r->crash_attempts = (u16)(1 + roll(4));
    r->limit_pending = one_in(4) ? 5 + roll(20) : 0;
    r->refused_kept = (u32)roll(5);
}

static void queue_use(u32 n) {
    char name[8];
    snprintf(name, sizeof name, "q%u", n);
    if (core_queue_find(w.core, slice_str(name), &w.queue)) return;
    struct rules r;
    random_rules(&r, n);
    assert_true(core_queue_ensure(w.core, w.now, slice_str(name), &r, &w.queue));
    core_queue_account(w.core, w.queue, account_of_queue(slice_str(name)));
}

static void change_rules(u32 n) {
    char name[8], text[32];
    snprintf(name, sizeof name, "q%u", n);
    snprintf(text, sizeof text, "{\"v\":%u}", (u32)roll(1000));
    struct queue_spec spec = {.origin = ORIGIN_API, .config = slice_str(text)};
    random_rules(&spec.rules, n);
    assert_true(core_queue_set(w.core, w.now, slice_str(name), &spec, NULL, &w.queue));
    core_queue_account(w.core, w.queue, account_of_queue(slice_str(name)));
}

static struct seen *find_id(const struct ref *ref) {
    struct core_cursor cursor = {0};
    struct found f;
    while (core_find(w.core, ref->hash, &cursor, &f)) {
        struct seen *s = load(&f);
        if ((s->settle ? s->settle->ref.seq : s->message->ref.seq) == ref->seq) return s;
    }
    return NULL;
}

static const char *random_key(char *key, size_t n) {
    snprintf(key, n, "k%u", (u32)roll(25));
    return key;
}

static void do_send(void) {
    char key[8], payload[32], group[8], request[16];
    struct send_out out, second;
    snprintf(payload, sizeof payload, "payload %u", one_in(6) ? (u32)roll(3) : 0);
    snprintf(group, sizeof group, "g%u", (u32)roll(3));
    snprintf(request, sizeof request, "r%u", (u32)roll(1000));
    random_key(key, sizeof key);
    const struct rules *rules = core_queue_rules(w.core, w.queue);
    if (rules->semantics != SEMANTICS_EXACTLY_ONCE && one_in(3)) key[0] = 0;
    struct send_in in = sending(key, payload);
    in.group = one_in(2) ? slice_str(group) : SL("");
    in.request_id = slice_str(request);
    in.delay_ms = one_in(8) ? (i64)roll(20000) : 0;
    in.ttl_ms = one_in(8) ? 1 + (i64)roll(20000) : 0;
    if (core_send(w.core, w.now, &in, find(key), &out) != SEND_ELSEWHERE) return;
    char other[KEY_BYTES_MAX + 1] = {0};
    memcpy(other, out.other_key, out.other_key_len);
    core_send_conflict(w.core, w.now, &in, &out, find(other), &second);
}

/* P5, by what its history says: nobody may know what came of the last attempt at the work, unless somebody has said so since. */
static bool may_be_done(slice history) {
    bool unknown = false;
    struct history_item item;
    for (u32 at = 0; history_next(history, &at, &item);) {
        if (item.kind == HISTORY_DECISION && item.what == DECISION_RETRY) unknown = false;
        if (item.kind != HISTORY_ATTEMPT || item.ended == ENDED_OPEN) continue;
        if (!item.lookup)
            unknown |=
                item.ended == ENDED_EXPIRED || item.ended == ENDED_REVOKED || item.failure_class == CLASS_UNKNOWN;
        else if (item.failure_class == CLASS_ABSENT)
            unknown = false;
    }
    return !unknown;
}

static bool lease_next(u32 no, bool reserve_only, struct leased *l) {
    struct message_view v;
    struct lease_out out;
    core_message_view(w.core, w.now, no, &v);
    bool first = slice_eq(core_queue_name(w.core, w.queue), SL("q0")), may = may_be_done(v.history);
    struct lease_in in = {.lease_ms = (u32)(1000 + roll(10000)), .reserve_only = reserve_only, .consumer = SL("c")};
    if (core_lease(w.core, w.now, no, find_id(&v.ref)->message, &in, &out) != LEASE_OK) return false;
    if (first && !out.settled && out.delivery != DELIVERY_RECONCILE && !may)
        fail_msg("seed %llu: message %llu is done again, and nobody knows what came of it", (unsigned long long)seed,
                 (unsigned long long)v.ref.seq);
    if (first) assert_true(v.lookups < LOOKUPS);
    *l = (struct leased){.ok = true, .fence = out.fence, .ref = v.ref, .delivery = out.delivery};
    return true;
}

static void do_receive(void) {
    struct leased l;
    u32 no = one_in(2) ? core_next_lookup(w.core, w.queue) : core_next_ready(w.core, w.queue);
    if (no == MESSAGE_NONE || !lease_next(no, one_in(4), &l)) return;
    tokens[token_count++ % TOKENS] = l;
    if (one_in(10)) core_unlease(w.core, w.now, &l.ref, l.fence);
}

/* Only a lease that was not started is held. */
static bool may_be_held(const struct seen *s, u64 fence) {
    struct message_view v;
    if (!s->message) return false;
    core_message_view(w.core, w.now, s->at.message, &v);
    return v.fence == fence && v.state == STATE_LEASED && !v.started;
}

static void do_settle(void) {
    if (token_count == 0) return;
    const struct leased *l = &tokens[roll(token_count < TOKENS ? token_count : TOKENS)];
    struct seen *s = find_id(&l->ref);
    if (!s) return;
    char name[8], effect[8];
    snprintf(name, sizeof name, "s%u", (u32)roll(3));
    snprintf(effect, sizeof effect, "e%u", (u32)roll(20));
    struct settle_in in = {
        .verb = one_in(2) ? VERB_NACK : (enum verb)roll(VERB_RELEASE + 1),
        .fence = l->fence,
        .failure_class = (enum failure_class)(CLASS_TRANSIENT + roll(CLASS_COUNT - CLASS_TRANSIENT)),
        .lease_ms = one_in(2) ? 0 : (u32)(1000 + roll(5000)),
        .delay_ms = one_in(5) ? (i64)roll(60000) : 0,
        .hold = one_in(4),
        .reason = one_in(2) ? SL("some reason") : SL(""),
        .name = slice_str(name),
        .result = SL("the result"),
        .effect_id = one_in(3) ? slice_str(effect) : SL(""),
        .http = one_in(3) ? SL("201\r\nlocation: /7\r\n") : SL(""),
    };
    if (may_be_held(s, l->fence) && one_in(2)) in.verb = VERB_HOLD;
    struct settle_out out;
    core_settle(w.core, w.now, &in, s, &out);
}

/* Any unsettled message of the queue, or any settled key. */
static struct seen *pick(void) {
    u32 cursor = (u32)roll(200);
    struct found f;
    for (int round = 0; round < 2; round++, cursor = 0)
        for (enum walk_verdict v; (v = core_walk(w.core, w.queue, 0, 100, &cursor, &f)) != WALK_END;)
            if (v == WALK_FOUND && one_in(3)) return load(&f);
    return NULL;
}

static void do_operate(void) {
    struct seen *s = pick();
    if (!s) return;
    struct ref ref = s->settle ? s->settle->ref : s->message->ref;
    struct resolve_in in = {.as = (enum decision)(DECISION_DONE + roll(DECISION_DUPLICATE)), .result = SL("decided")};
    enum state state;
    struct send_out out;
    u32 count;
    struct audit_in deed = {.who = SL("ann"), .what = SL("something"), .why = SL("chance")};
    core_audit(w.core, w.now, w.queue, &deed);
    switch (roll(12)) {
    case 0:
        core_cancel(w.core, w.now, s, SL("cancelled"), NULL);
        break;
    case 1:
        core_erase(w.core, w.now, s, AUDIT("ann", "privacy"));
        break;
    case 2:
        core_forget(w.core, w.now, s, AUDIT("ann", ""));
        break;
    case 3:
    case 4:
        core_again(w.core, w.now, s, AUDIT("ann", ""), &out);
        break;
    case 5:
    case 6:
    case 7:
        core_redrive(w.core, w.now, &ref, SL("ann"), SL("fixed"), &count);
        break;
    default:
        core_resolve(w.core, w.now, s, &in, AUDIT("ann", ""), &state);
    }
}

static void do_refuse(void) {
    char payload[16];
    struct ref ref;
    snprintf(payload, sizeof payload, "bad %u", (u32)roll(8));
    struct send_in in = {
        .queue = w.queue, .fingerprint = core_fingerprint(w.core, slice_str(payload)), .payload = slice_str(payload)};
    core_refuse(w.core, w.now, &in, SL("not what was agreed"), &ref);
}

static void do_ttls(void) {
    for (u32 no; (no = core_ttl_due(w.core, w.now)) != MESSAGE_NONE;) {
        struct message_view v;
        core_message_view(w.core, w.now, no, &v);
        core_cancel(w.core, w.now, find_id(&v.ref), SL("ttl"), NULL);
    }
}

static void purge(void) {
    struct core_purge p = {.queue = w.queue, .only = STATE_COUNT};
    core_purge_begin(w.core, &p);
    for (u32 no; core_purge_next(w.core, &p, UINT32_MAX, &no) == WALK_FOUND;) {
        struct message_view v;
        core_message_view(w.core, w.now, no, &v);
        assert_int_equal(core_cancel(w.core, w.now, find_id(&v.ref), SL("purged"), NULL), CANCEL_OK);
    }
    core_purge_end(w.core, &p);
}

static void do_delete(u32 n) {
    purge();
    core_queue_delete(w.core, w.now, w.queue, NULL);
    queue_use(n);
}

/* A restart after a crash may find the journal's last batch moved: what names a record in it names the old place. */
static void do_restart(void) {
    u64 moved = one_in(3) ? roll(20) : 0;
    if (moved > w.count - w.first) moved = w.count - w.first;
    core_free(w.core);
    for (u64 i = w.count - moved, end = w.count; i < end; i++) {
        struct stored s = w.records[i];
        buf_reset(&w.scratch);
        buf_add(&w.scratch, s.body, s.n);
        sink_append(NULL, s.type, s.version, s.n);
        w.records[i].type = REC_NONE;
    }
    w.now.wall_ms += (i64)roll(5000);
    w.memory_max = one_in(3) ? 1 : 0; /* short of memory in some of its lives */
    start_core();
    assign_accounts();
}

/* The disk fills up, or there is room again. What was promised must fit all the while (P8). */
static void do_room(void) {
    w.metered = !w.metered;
    set_room(w.metered ? core_reserved_bytes(w.core) + 66000 + roll(20000) : 1u << 30);
}

static void one_thing(void) {
    u32 n = (u32)roll(QUEUES);
    if (one_in(15)) do_room();
    if (!w.metered) queue_use(n);
    switch (roll(40)) {
    case 0:
        pass((i64)roll(2 * HOUR));
        break;
    case 1:
        if (!w.metered) do_restart();
        break;
    case 2:
        if (w.metered) break;
        w.now.run_ms += (i64)roll(2 * HOUR);
        core_tick(w.core, w.now, (u32)roll(3)); /* what it forgets is not freed yet */
        if (one_in(3))
            carry_upto(w.first + roll(w.count - w.first + 1)); /* and it ends before the segment is dropped */
        else
            compact_upto(w.first + roll(w.count - w.first + 1));
        break;
    case 3:
        if (!w.metered) change_rules(n);
        break;
    case 4:
        core_queue_pause(w.core, w.now, w.queue, one_in(3), NULL);
        core_push_pause(w.core, w.now, w.queue, one_in(2), NULL);
        break;
    case 5:
        do_refuse();
        break;
    case 6:
        if (one_in(8)) purge();
        if (one_in(8) && !w.metered) do_delete(n);
        break;
    case 7:
    case 8:
    case 9:
    case 10:
    case 11:
        do_operate();
        break;
    default:
        switch (roll(4)) {
        case 0:
            pass((i64)roll(3000));
            do_ttls();
            break;
        case 1:
            do_receive();
            break;
        case 2:
            do_settle();
            break;
        default:
            do_send();
        }
    }
}

static void at_the_end_nothing_is_left_over(void) {
    for (u32 n = 0; n < QUEUES; n++) {
        queue_use(n);
        struct queue_info q;
        for (u32 tries = 0; tries < 1000; tries++) {
            pass(60000);
            purge();
            core_queue_info(w.core, w.now, w.queue, &q);
            if (q.unsettled == 0) break;
        }
        assert_int_equal(q.unsettled, 0);
        assert_int_equal(q.unsettled_bytes, 0);
        assert_int_equal(q.conflict_copies + q.refused_copies + q.refused_bytes, 0);
        if (q.paused) assert_int_equal(core_queue_pause(w.core, w.now, w.queue, false, NULL), PAUSE_OK);
        core_push_pause(w.core, w.now, w.queue, false, NULL);
    }
    struct core_memory m;
    core_memory(w.core, &m);
    assert_int_equal(m.messages + m.groups, 0);
    assert_int_equal(core_reserved_bytes(w.core), 0);
}

static u64 first_seed = 1, last_seed = 40;

static void replayed_equals_live_whatever_happens(void **state) {
    (void)state;
    for (seed = first_seed; seed <= last_seed; seed++) {
        setup(NULL);
        rng_seed(&rng, seed);
        token_count = 0;
        assign_accounts();
        queue_use(0);
        for (u32 i = 1; i <= OPS; i++) {
            one_thing();
            if (i % 50 != 0) continue;
            if (w.metered) do_room();
            check();
            check_carried();
            check_accounts();
        }
        compact();
        check();
        check_accounts();
        at_the_end_nothing_is_left_over();
        teardown(NULL);
    }
    buf_free(&nowhere);
}

int main(int argc, char **argv) {
    slice a, b;
    if (argc > 1 &&
        (!slice_cut(slice_str(argv[1]), '-', &a, &b) || !slice_u64(a, &first_seed) || !slice_u64(b, &last_seed)))
        return 2;
    const struct CMUnitTest tests[] = {cmocka_unit_test(replayed_equals_live_whatever_happens)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
