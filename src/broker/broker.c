/* The turn: time in, decisions through the core into the journal, replies out behind their position. */
#include "broker/broker_priv.h"

#define TURN_CHARGE_MS_MAX  1000           /* a stopped broker does not expire work nobody could settle */
#define TICK_BUDGET         2000u          /* moves a tick makes before it lets requests in again */
#define TICK_BUSY_MS        10             /* between two looks at the clock under load */
#define TICK_MS_MAX         250            /* the running clock is charged at least this often */
#define COMPACT_MS          4              /* between slices while there is nothing else to do */
#define UNSYNCED_PAUSE      (64ull << 20)  /* stop reading requests while this much waits for the disk */
#define ROOM_AHEAD_MIN      (8ull << 20)   /* room wanted beyond what is promised: at least this, ... */
#define ROOM_AHEAD_MAX      (512ull << 20) /* ... at most this, in between two seconds' worth */
#define ROOM_LOOK_MS        1000
#define ROOM_AHEAD_SEGMENTS 8u

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

/* ---- the core's sink: the journal, and whoever waits */

static void *sink_reserve(void *ctx, size_t body_max) {
    return journal_reserve(((struct broker *)ctx)->journal, body_max);
}

static u64 sink_append(void *ctx, u8 type, u8 version, size_t body) {
    struct broker *b = ctx;
    u64 pos = journal_append(b->journal, type, version, body), cost = journal_cost(body);
    b->after = pos + 1;
    b->room = b->room > cost ? b->room - cost : 0;
    b->room_used += cost;
    b->appended += cost;
    return pos;
}

/* Asked for every message, so not of the journal: what it said at the turn's end, less what was appended since. */
static u64 sink_room(void *ctx) {
    return ((struct broker *)ctx)->room;
}

static bool sink_need(void *ctx, u64 bytes) {
    struct broker *b = ctx;
    bool there = journal_need(b->journal, bytes);
    b->room = journal_room(b->journal);
    return there;
}

bool broker_room(struct broker *b, u64 bytes) {
    return sink_need(b, core_reserved_bytes(b->core) + bytes);
}

static void sink_outcome(void *ctx, const struct ref *ref) {
    wait_wake_outcome(ctx, ref);
}

static void sink_ready(void *ctx, u16 queue) {
    wait_wake_queue(ctx, queue);
}

/* ---- opening */

static hx_st replay_one(void *ctx, const struct journal_record *rec, struct errbuf *err) {
    struct broker *b = ctx;
    hx_st st = core_replay(b->core, rec->pos, rec->type, rec->version, rec->body, err);
    return st == ST_OK ? ST_OK : err_wrap(err, st, "journal position %llu", (unsigned long long)rec->pos);
}

hx_st broker_open(const struct broker_options *options, struct broker_time t, struct broker **out, struct errbuf *err) {
    struct broker *b = mem_zalloc(sizeof *b);
    b->options = *options;
    b->journal = options->journal;
    b->time = t;
    b->started_mono_ms = t.mono_ms;
    b->next_receipt = 1;
    b->next_task = (u64)t.wall_ms; /* an id of before the last start names nothing */
    for (u32 i = 0; i < TIME_MEMOS; i++) b->memos[i].second = INT64_MIN;
    struct core_options core = {.seed = options->seed};
    memcpy(&core.hash_key, options->secret, sizeof core.hash_key);
    b->core = core_new(&core);
    hx_st st = journal_replay(b->journal, replay_one, b, err);
    if (st == ST_OK) st = journal_start(b->journal, err);
    if (st != ST_OK) {
        broker_free(b);
        return st;
    }
    struct core_sink sink = {
        .ctx = b,
        .reserve = sink_reserve,
        .append = sink_append,
        .room = sink_room,
        .need = sink_need,
        .cost = journal_cost,
        .on_outcome = sink_outcome,
        .on_ready = sink_ready,
    };
    st = core_start(b->core, &sink, t.wall_ms, &b->now, err);
    b->config = config_default();
    if (st == ST_OK) queue_rules_load(b);
    if (st != ST_OK) {
        broker_free(b);
        return st;
    }
    broker_turn_end(b, t);
    *out = b;
    return ST_OK;
}

void broker_stop(struct broker *b, struct broker_time t) {
    broker_advance(b, t);
    core_stop(b->core, b->now);
    journal_flush(b->journal);
}

static void free_receipts(struct broker *b) {
    for (u32 i = 0; i < RECEIPT_CHAINS; i++)
        for (struct receipt *r = b->receipts[i], *next; r; r = next) {
            next = r->next;
            mem_free(r);
        }
}

void broker_free(struct broker *b) {
    while (b->heap_count) wait_end(b, b->heap[0]);
    task_free_all(b);
    free_receipts(b);
    queue_rules_free(b);
    effects_free(&b->effects);
    core_free(b->core);
    config_free(b->config);
    payload_view_free(&b->view);
    payload_view_free(&b->other_view);
    buf_free(&b->key_store);
    buf_free(&b->group_store);
    mem_free(b->polls);
    mem_free(b->woken);
    mem_free(b->heap);
    buf_free(&b->body);
    buf_free(&b->fields);
    buf_free(&b->scratch);
    buf_free(&b->lookup.base_store);
    buf_free(&b->lookup.arrivals_store);
    buf_free(&b->other.base_store);
    buf_free(&b->other.arrivals_store);
    mem_free(b->items);
    mem_free(b);
}

/* ---- fetch, then decide */

void broker_fetch(struct broker *b, u64 pos, u32 size_hint, struct buf *store, struct record *out) {
    struct journal_record rec;
    struct errbuf err = {{0}};
    hx_st st = journal_read(b->journal, pos, size_hint, &rec, &err);
    if (st == ST_OK) {
        buf_reset(store);
        if (!rec.lasting) buf_slice_add(store, rec.body); /* what is decided next appends, and may move it */
        st = record_decode(rec.type, rec.version, rec.lasting ? rec.body : buf_slice(store), out, &err);
    }
    if (st == ST_OK) return;
    /* P7: what was acknowledged cannot be read back. Going on would mean guessing. */
    log_line(LOG_ERROR, "cannot read back journal position %llu: %s: %s", (unsigned long long)pos, status_text(st),
             err.text);
    check_failed(__FILE__, __LINE__, "journal_read", "stored data cannot be read");
}

void broker_prefetch(struct broker *b, const u64 *hashes, u32 count) {
    struct ahead ahead[AHEAD_MAX];
    core_prefetch(b->core, hashes, count, ahead);
    for (u32 i = 0; i < count; i++) {
        if (ahead[i].pos) journal_prefetch(b->journal, ahead[i].pos, ahead[i].bytes);
        if (ahead[i].arrivals_pos) journal_prefetch(b->journal, ahead[i].arrivals_pos, ARRIVALS_BYTES);
    }
}

static void lookup_load(struct broker *b, struct lookup *l, const struct found *f) {
    l->seen = (struct seen){.at = *f};
    broker_fetch(b, f->pos, f->size_hint, &l->base_store, &l->base);
    if (f->message != MESSAGE_NONE) {
        CHECK(l->base.type == REC_MESSAGE);
        l->seen.message = &l->base.message;
    } else {
        CHECK(l->base.type == REC_SETTLE);
        l->seen.settle = &l->base.settle;
    }
}

static void lookup_load_arrivals(struct broker *b, struct lookup *l) {
    if (l->seen.at.arrivals_pos == 0 || core_arrivals_in_memory(b->core, l->seen.at.entry)) return;
    broker_fetch(b, l->seen.at.arrivals_pos, 0, &l->arrivals_store, &l->arrivals);
    CHECK(l->arrivals.type == REC_ARRIVALS);
    l->seen.arrivals = &l->arrivals.arrivals;
}

const struct ref *seen_ref(const struct seen *s) {
    return s->settle ? &s->settle->ref : &s->message->ref;
}

slice seen_key(const struct seen *s) {
    return s->settle ? s->settle->key : s->message->key;
}

enum state seen_state(struct broker *b, const struct seen *s) {
    if (s->settle) return (enum state)s->settle->state;
    struct message_view v;
    core_message_view(b->core, b->now, s->at.message, &v);
    return v.state;
}

struct seen *lookup_found(struct broker *b, struct lookup *l, const struct found *f) {
    lookup_load(b, l, f);
    lookup_load_arrivals(b, l);
    return &l->seen;
}

u64 seen_fingerprint(const struct seen *s) {
    return s->settle ? s->settle->fingerprint : s->message->fingerprint;
}

bool seen_in_force(struct broker *b, const struct seen *s) {
    return s->message || core_key_left_ms(b->core, b->now, s->settle) > 0;
}

/* Where keys once repeated one may be known several times: one that is past its window must not hide another. */
struct seen *lookup_key(struct broker *b, struct lookup *l, u16 queue, u64 hash, slice key) {
    struct core_cursor cursor = {0};
    struct found f, past;
    bool any_past = false;
    while (core_find(b->core, hash, &cursor, &f)) {
        if (f.queue != queue) continue;
        lookup_load(b, l, &f);
        if (!slice_eq(seen_key(&l->seen), key)) continue; /* a collision is no duplicate */
        if (seen_in_force(b, &l->seen)) {
            lookup_load_arrivals(b, l);
            return &l->seen;
        }
        past = f;
        any_past = true;
    }
    return any_past ? lookup_found(b, l, &past) : NULL;
}

struct seen *lookup_id(struct broker *b, struct lookup *l, u64 hash, u64 seq) {
    struct core_cursor cursor = {0};
    struct found f;
    while (core_find(b->core, hash, &cursor, &f)) {
        lookup_load(b, l, &f);
        if (seen_ref(&l->seen)->seq != seq) continue;
        lookup_load_arrivals(b, l);
        return &l->seen;
    }
    return NULL;
}

struct seen *broker_find_key(struct broker *b, u16 queue, u64 hash, slice key) {
    return lookup_key(b, &b->lookup, queue, hash, key);
}

struct seen *broker_find_id(struct broker *b, u64 hash, u64 seq) {
    return lookup_id(b, &b->lookup, hash, seq);
}

/* ---- time and turns */

static void cancel_ttls(struct broker *b) {
    for (u32 n = 0, no; n < TICK_BUDGET && (no = core_ttl_due(b->core, b->now)) != MESSAGE_NONE; n++) {
        struct message_view v;
        core_message_view(b->core, b->now, no, &v);
        struct seen *s = broker_find_id(b, v.ref.hash, v.ref.seq);
        CHECK(s);
        core_cancel(b->core, b->now, s, SL("ttl"));
    }
}

bool broker_tick(struct broker *b, struct broker_time t) {
    broker_advance(b, t);
    b->ticked_mono_ms = t.mono_ms;
    bool more = core_tick(b->core, b->now, TICK_BUDGET);
    cancel_ttls(b);
    task_run_all(b);
    wait_run_due(b);
    return more;
}

i64 broker_next_ms(const struct broker *b, struct broker_time t) {
    i64 next = core_next_ms(b->core, b->now, TICK_MS_MAX);
    if (b->compact_until && next > COMPACT_MS) next = COMPACT_MS;
    next = task_next_ms(b, next);
    if (b->heap_count && b->heap[0]->deadline_ms - t.mono_ms < next) next = b->heap[0]->deadline_ms - t.mono_ms;
    return next > 0 ? next : 0;
}

/* Room is preallocated in the background; how far ahead depends on how fast it has been going. */
static void look_ahead(struct broker *b) {
    u64 promised = core_reserved_bytes(b->core);
    if (promised > b->room_promised) b->room_used += promised - b->room_promised;
    b->room_promised = promised;
    if (b->now.run_ms - b->room_looked_run_ms < ROOM_LOOK_MS && b->room_ahead >= ROOM_AHEAD_MIN) return;
    b->room_ahead = b->room_used * 2;
    if (b->room_ahead < ROOM_AHEAD_MIN) b->room_ahead = ROOM_AHEAD_MIN;
    struct journal_stats s; /* small segments mean a small disk: others may want some of it too */
    journal_stats_get(b->journal, &s);
    u64 most = s.segment_bytes * ROOM_AHEAD_SEGMENTS < ROOM_AHEAD_MAX ? 2 * s.segment_bytes : ROOM_AHEAD_MAX;
    if (b->room_ahead > most) b->room_ahead = most;
    b->room_used = 0;
    b->room_looked_run_ms = b->now.run_ms;
}

void broker_turn_end(struct broker *b, struct broker_time t) {
    broker_advance(b, t);
    /* Under load turns follow each other without a timer ever coming up: time is looked at here too. */
    if (t.mono_ms - b->ticked_mono_ms >= TICK_BUSY_MS) broker_tick(b, t);
    wait_run(b);
    compact_some(b);
    look_ahead(b);
    journal_want(b->journal, core_reserved_bytes(b->core) + b->room_ahead);
    b->room = journal_room(b->journal);
    journal_flush(b->journal);
}

void broker_durable(struct broker *b, struct broker_time t, u64 position) {
    broker_advance(b, t);
    if (journal_failed(b->journal)) effects_stop(&b->effects);
    if (effects_run(&b->effects, b, position) && b->options.port.release)
        b->options.port.release(b->options.port.ctx, position);
}

bool broker_wants_pause(const struct broker *b) {
    struct journal_stats s;
    journal_stats_get(b->journal, &s);
    return s.unsynced_bytes > UNSYNCED_PAUSE;
}

void broker_drain(struct broker *b, struct broker_time t) {
    broker_advance(b, t);
    b->draining = true;
    wait_end_all(b);
}

void broker_gone(struct broker *b, struct broker_time t, void *user) {
    broker_advance(b, t);
    wait_end(b, user);
}

void broker_receipt(struct broker *b, struct broker_time t, u64 number, bool written) {
    broker_advance(b, t);
    struct receipt **at = &b->receipts[number % RECEIPT_CHAINS];
    while (*at && (*at)->number != number) at = &(*at)->next;
    struct receipt *r = *at;
    CHECK(r);
    *at = r->next;
    if (!written)
        for (u32 i = 0; i < r->count; i++) core_unlease(b->core, b->now, &r->leases[i].ref, r->leases[i].fence);
    mem_free(r);
}
