#include "core/record.h"

#define NAME_CASE(name, text) text,
static const char *const record_names[] = {"none", RECORD_LIST(NAME_CASE)};
static const char *const state_names[] = {STATE_LIST(NAME_CASE)};
static const char *const ended_names[] = {ENDED_LIST(NAME_CASE)};
static const char *const class_names[] = {CLASS_LIST(NAME_CASE)};
static const char *const arrival_names[] = {ARRIVAL_LIST(NAME_CASE)};
static const char *const decision_names[] = {DECISION_LIST(NAME_CASE)};
static const char *const origin_names[] = {ORIGIN_LIST(NAME_CASE)};
#undef NAME_CASE

const char *record_name(u8 type) {
    return type < REC_COUNT ? record_names[type] : "unknown";
}
const char *state_text(enum state s) {
    CHECK(s < STATE_COUNT);
    return state_names[s];
}
const char *ended_text(enum ended e) {
    CHECK(e < ENDED_COUNT);
    return ended_names[e];
}
const char *class_text(enum failure_class c) {
    CHECK(c < CLASS_COUNT);
    return class_names[c];
}
const char *arrival_text(enum arrival_kind k) {
    CHECK(k < ARRIVAL_COUNT);
    return arrival_names[k];
}
const char *decision_text(enum decision d) {
    CHECK(d < DECISION_COUNT);
    return decision_names[d];
}
const char *origin_text(enum origin o) {
    CHECK(o < ORIGIN_COUNT);
    return origin_names[o];
}
bool decision_parse(slice text, enum decision *out) {
    for (u32 d = DECISION_DONE; d < DECISION_COUNT; d++) {
        if (!slice_eq(text, slice_str(decision_names[d]))) continue;
        *out = (enum decision)d;
        return true;
    }
    return false;
}
bool class_parse(slice text, enum failure_class *out) {
    for (u32 c = CLASS_TRANSIENT; c < CLASS_COUNT; c++) {
        if (!slice_eq(text, slice_str(class_names[c]))) continue;
        *out = (enum failure_class)c;
        return true;
    }
    return false;
}

/* ---- one description of each layout serves three ways: `io` writes a field, reads it, or counts the bytes it would take.
 * All of it is inlined into record_encode, record_decode and record_size, where the way is known and the rest of every
 * function falls away. */

#define INLINED inline __attribute__((always_inline))

enum io_way { IO_READ, IO_WRITE, IO_MEASURE };

struct io {
    enum io_way way;
    bool bad;
    u8 version;           /* of the layout: writing, always the newest */
    char *out;            /* writing: the next byte */
    const char *in, *end; /* reading */
    size_t sure;          /* reading: so many of them are there, known where the code is made */
    size_t size;          /* measuring: so far */
};

static INLINED void io_bytes(struct io *io, void *p, size_t n) {
    if (io->way == IO_MEASURE) {
        io->size += n;
    } else if (io->way == IO_WRITE) {
        memcpy(io->out, p, n);
        io->out += n;
    } else if (io->sure < n && (size_t)(io->end - io->in) < n) {
        io->bad = true;
        memset(p, 0, n);
    } else {
        memcpy(p, io->in, n);
        io->in += n;
        io->sure -= io->sure < n ? io->sure : n;
    }
}
/* Fixed fields of so many bytes come next: looked for once, not for each. */
static INLINED bool io_fixed(struct io *io, size_t n) {
    if (io->way != IO_READ) return true;
    if ((size_t)(io->end - io->in) < n) {
        io->bad = true;
        return false;
    }
    io->sure = n;
    return true;
}
/* The bytes of a string whose length was just written or read. */
static INLINED void io_text(struct io *io, slice *s, u32 n) {
    if (io->way == IO_MEASURE) {
        io->size += n;
        return;
    }
    if (io->way == IO_WRITE) {
        if (n) memcpy(io->out, s->p, n);
        io->out += n;
        return;
    }
    if ((size_t)(io->end - io->in) < n) {
        io->bad = true;
        n = 0;
    }
    *s = slice_of(io->in, n);
    io->in += n;
}
static INLINED void io_u8(struct io *io, u8 *v) {
    io_bytes(io, v, 1);
}
static INLINED void io_u16(struct io *io, u16 *v) {
    io_bytes(io, v, 2);
}
static INLINED void io_u32(struct io *io, u32 *v) {
    io_bytes(io, v, 4);
}
static INLINED void io_u64(struct io *io, u64 *v) {
    io_bytes(io, v, 8);
}
static INLINED void io_i64(struct io *io, i64 *v) {
    io_bytes(io, v, 8);
}
static INLINED void io_bool(struct io *io, bool *v) {
    u8 b = *v;
    io_u8(io, &b);
    if (io->way != IO_READ) return;
    if (b > 1) io->bad = true;
    *v = b == 1;
}
static INLINED void io_slice(struct io *io, slice *s) {
    u32 n = (u32)s->n;
    io_u32(io, &n);
    io_text(io, s, n);
}
/* Short strings: most are empty, so their length takes a byte, or three. */
static INLINED void io_short(struct io *io, slice *s) {
    u8 small = s->n < 255 ? (u8)s->n : 255;
    u16 n = (u16)s->n;
    io_u8(io, &small);
    if (small == 255)
        io_u16(io, &n);
    else
        n = small;
    io_text(io, s, n);
}
/* A history that is written was made by history.c: only what is read is looked through. */
static INLINED void io_history(struct io *io, slice *s) {
    io_slice(io, s);
    if (io->way == IO_READ && s->n && !history_valid(*s)) io->bad = true;
}

static INLINED void io_ref(struct io *io, struct ref *ref) {
    io_u64(io, &ref->hash);
    io_u64(io, &ref->seq);
    io_u16(io, &ref->queue);
}

/* Yes-or-no fields share a byte. A bit that this version does not have is nonsense. */
static INLINED void io_flags(struct io *io, u8 *flags, u8 all) {
    io_u8(io, flags);
    if (*flags & ~all) io->bad = true;
}

static INLINED void io_enum(struct io *io, u8 *v, u8 count) {
    io_u8(io, v);
    if (*v < count) return;
    io->bad = true;
    *v = 0;
}

static INLINED void io_clock(struct io *io, struct rec_clock *c) {
    io_u64(io, &c->next_seq);
    io_u64(io, &c->fence);
    io_i64(io, &c->wall_ms);
    io_i64(io, &c->run_ms);
    io_i64(io, &c->delay_ms);
    io_enum(io, &c->kind, CLOCK_KINDS);
}

/* Of version 1; later versions go on with io_rules_more. */
static INLINED void io_rules(struct io *io, struct rules *r) {
    io_i64(io, &r->window_ms);
    io_u32(io, &r->lease_ms);
    io_u16(io, &r->transient_attempts);
    io_u16(io, &r->unknown_attempts);
    io_u16(io, &r->crash_attempts);
    io_u32(io, &r->backoff_ms);
    io_u32(io, &r->backoff_max_ms);
}

static INLINED void io_rules_more(struct io *io, struct rules *r) {
    io_i64(io, &r->window_min_ms);
    io_i64(io, &r->window_max_ms);
    io_i64(io, &r->keep_payload_ms);
    io_enum(io, &r->semantics, SEMANTICS_COUNT);
    io_enum(io, &r->on_unknown, ON_UNKNOWN_COUNT);
    io_enum(io, &r->on_conflict, ON_CONFLICT_COUNT);
    io_enum(io, &r->on_dead, ON_DEAD_COUNT);
    io_u64(io, &r->limit_pending);
    io_u64(io, &r->limit_bytes);
    io_i64(io, &r->limit_lag_ms);
    io_u32(io, &r->refused_kept);
    io_u64(io, &r->refused_bytes);
}

static INLINED void io_rules_lookups(struct io *io, struct rules *r) {
    io_u32(io, &r->lookup_after_ms);
    io_u32(io, &r->lookup_every_ms);
    io_u16(io, &r->lookup_attempts);
}

#define COUNTER_ONE(name) +1u
#define COUNTERS          (0u COUNTER_LIST(COUNTER_ONE))
_Static_assert(COUNTERS <= 64, "a record of counts has a bit for each");
_Static_assert(sizeof(struct counters) == COUNTERS * sizeof(u64), "counters can be walked");

/* Of an older record there are fewer, and the rest stays zero. */
static INLINED void io_counters(struct io *io, struct counters *c) {
    u8 count = io->version == 1 ? COUNTERS_V1 : COUNTERS;
    u64 *all = &c->accepted;
    if (io->version > 1) io_u8(io, &count);
    if (count > COUNTERS) {
        io->bad = true;
        return;
    }
    for (u32 i = 0; i < count; i++) io_u64(io, &all[i]);
}

enum queue_flag {
    QUEUE_PAUSED = 1,
    QUEUE_DELETED = 2,
    QUEUE_PUSH_PAUSED = 4,
    QUEUE_LOOKUPS = 8, /* has rules for look-ups */
    QUEUE_PUSH_GONE = 16,
    QUEUE_FLAGS = 31,
    QUEUE_FLAGS_V4 = 3,
};

static u8 queue_flags(const struct rec_queue *q) {
    const struct rules *r = &q->rules;
    return (u8)((q->paused ? QUEUE_PAUSED : 0) | (q->deleted ? QUEUE_DELETED : 0) |
                (q->push_paused ? QUEUE_PUSH_PAUSED : 0) | (q->push_gone ? QUEUE_PUSH_GONE : 0) |
                (r->lookup_after_ms || r->lookup_every_ms || r->lookup_attempts ? QUEUE_LOOKUPS : 0));
}

static INLINED void io_promises(struct io *io, struct rec_queue *q) {
    io_u8(io, &q->promise_count);
    if (q->promise_count > PROMISES_MAX) {
        io->bad = true;
        q->promise_count = 0;
    }
    for (u32 i = 0; i < q->promise_count; i++) {
        io_i64(io, &q->promises[i].until_run_ms);
        io_i64(io, &q->promises[i].window_ms);
    }
}

static INLINED void io_queue(struct io *io, struct rec_queue *q) {
    u8 flags = queue_flags(q);
    io_u16(io, &q->queue);
    io_flags(io, &flags, io->version > 4 ? QUEUE_FLAGS : QUEUE_FLAGS_V4);
    q->paused = flags & QUEUE_PAUSED;
    q->deleted = flags & QUEUE_DELETED;
    q->push_paused = flags & QUEUE_PUSH_PAUSED;
    q->push_gone = flags & QUEUE_PUSH_GONE;
    io_i64(io, &q->created_ms);
    if (io->version == 1) q->rules = rules_default(); /* what it could not say was as by default */
    io_rules(io, &q->rules);
    io_counters(io, &q->counters);
    io_short(io, &q->name);
    if (io->version == 1) return;
    io_rules_more(io, &q->rules);
    if (flags & QUEUE_LOOKUPS) io_rules_lookups(io, &q->rules);
    io_enum(io, &q->origin, ORIGIN_COUNT);
    io_i64(io, &q->oldest_replay_ms);
    io_i64(io, &q->window_changed_ms);
    io_promises(io, q);
    io_slice(io, &q->config);
}

enum message_flag {
    MESSAGE_CARRIED = 1,
    MESSAGE_TIMED = 2,   /* rare: most messages save these bytes */
    MESSAGE_LINKED = 4,  /* names the message it conflicts with */
    MESSAGE_SPECIAL = 8, /* fresh, but it begins with a state, a generation or a history of its own */
    MESSAGE_REFUSED = 16,
    MESSAGE_FORMER = 32, /* a replay, with the outcome before it */
    MESSAGE_FLAGS = 63,
    MESSAGE_FLAGS_V2 = 31,
};

static u8 message_flags(const struct rec_message *m) {
    u8 flags = m->carried ? MESSAGE_CARRIED : 0;
    /* Carried, always: a delay that came later must not make the next copy longer than this one. */
    if (m->carried || m->due_ms != 0 || m->ttl_ms != 0 || m->replaces != 0) flags |= MESSAGE_TIMED;
    if (m->origin_seq != 0) flags |= MESSAGE_LINKED;
    if (!m->carried && (m->state != STATE_PENDING || m->generation != 0)) flags |= MESSAGE_SPECIAL;
    if (m->refused) flags |= MESSAGE_REFUSED;
    if (m->former.n) flags |= MESSAGE_FORMER;
    return flags;
}

/* Version 1 had a byte for each of the two flags it knew. */
static INLINED u8 io_message_flags(struct io *io, const struct rec_message *m) {
    u8 flags = message_flags(m);
    if (io->version > 1) {
        io_flags(io, &flags, io->version > 2 ? MESSAGE_FLAGS : MESSAGE_FLAGS_V2);
        return flags;
    }
    bool carried = false;
    u8 timed = 0;
    io_bool(io, &carried);
    io_u8(io, &timed);
    return (u8)((carried ? MESSAGE_CARRIED : 0) | (timed ? MESSAGE_TIMED : 0));
}

static INLINED void io_traits(struct io *io, u8 *traits) {
    if (io->version > 1) io_flags(io, traits, TRAIT_ALL);
}

_Static_assert(STATE_DEAD < 4 && ENDED_COUNT <= 32, "state, started and ended share a byte");

/* What stands first: four bytes, in version 5 as before, so that a carried copy of an older record is no longer than that was. */
static INLINED void io_message_stand(struct io *io, struct rec_message *m) {
    if (io->version < 5) {
        io_u8(io, &m->state);
        io_enum(io, &m->ended, ENDED_COUNT);
        io_traits(io, &m->traits);
        io_bool(io, &m->started);
        return;
    }
    u8 stand = (u8)(m->state | (m->started ? 4 : 0) | m->ended << 3);
    io_u8(io, &stand);
    m->state = stand & 3;
    m->started = stand & 4;
    m->ended = stand >> 3;
    if (m->ended >= ENDED_COUNT) io->bad = true;
    io_traits(io, &m->traits);
    io_u16(io, &m->lookups);
    if (m->lookups > LOOKUPS_MAX) io->bad = true;
}

static INLINED void io_message_state(struct io *io, struct rec_message *m) {
    io_message_stand(io, m);
    io_u32(io, &m->generation);
    io_u32(io, &m->lease_ms);
    io_u16(io, &m->attempts);
    io_u16(io, &m->failures);
    io_u16(io, &m->unknowns);
    io_u16(io, &m->crashes);
    io_u64(io, &m->fence);
    io_history(io, &m->history);
}

/* The outcome of an older generation of the same key, without what it would not need: nothing else belongs here. */
static bool former_fits(const struct rec_message *m) {
    struct rec_settle s;
    struct history_item item;
    if (m->refused || m->ttl_ms != 0 || m->traits & TRAIT_CONFLICT || !former_decode(m->former, &s)) return false;
    if (s.ref.hash != m->ref.hash || s.ref.queue != m->ref.queue || s.ref.seq >= m->ref.seq) return false;
    if (s.fingerprint != m->fingerprint || s.generation >= m->generation) return false;
    if (s.key.n || s.kept.is || s.carried || s.erased || s.erasing || s.restored) return false;
    for (u32 at = 0; history_next(s.history, &at, &item);)
        if (item.kind == HISTORY_STEP) return false;
    return true;
}

static INLINED void io_former(struct io *io, struct rec_message *m) {
    io_slice(io, &m->former);
    if (io->way == IO_READ && !io->bad && !former_fits(m)) io->bad = true;
}

#define MESSAGE_HEAD 35u /* its reference, fingerprint, time and flags */
static INLINED void io_message(struct io *io, struct rec_message *m) {
    if (!io_fixed(io, MESSAGE_HEAD)) return;
    io_ref(io, &m->ref);
    io_u64(io, &m->fingerprint);
    io_i64(io, &m->first_seen_ms);
    u8 flags = io_message_flags(io, m);
    m->carried = flags & MESSAGE_CARRIED;
    m->refused = flags & MESSAGE_REFUSED;
    if (flags & MESSAGE_TIMED) {
        io_i64(io, &m->due_ms);
        io_i64(io, &m->ttl_ms);
        io_u64(io, &m->replaces);
        io_u64(io, &m->replaces_seq);
    }
    if (flags & MESSAGE_LINKED) {
        io_u64(io, &m->origin_hash);
        io_u64(io, &m->origin_seq);
    }
    io_short(io, &m->key);
    io_short(io, &m->group);
    io_short(io, &m->content_type);
    io_short(io, &m->attrs);
    io_short(io, &m->traceparent);
    io_short(io, &m->tracestate);
    io_short(io, &m->request_id);
    io_slice(io, &m->payload);
    if (flags & MESSAGE_CARRIED) {
        io_message_state(io, m);
    } else if (flags & MESSAGE_SPECIAL) {
        io_u8(io, &m->state);
        io_flags(io, &m->traits, TRAIT_ALL);
        io_u32(io, &m->generation);
        io_history(io, &m->history);
    }
    if (flags & MESSAGE_FORMER) io_former(io, m);
    if (m->key.n > UINT8_MAX || m->request_id.n > UINT8_MAX) io->bad = true;
    if (m->state > STATE_DEAD) io->bad = true;
}

enum lease_flag { LEASE_STARTED = 1, LEASE_AGAIN = 2, LEASE_LOOKUP = 4, LEASE_FLAGS = 7 };

static INLINED void io_lease_flags(struct io *io, struct rec_lease *l) {
    if (io->version == 1) { /* a byte each, of the two there were */
        io_bool(io, &l->started);
        io_bool(io, &l->again);
        return;
    }
    u8 flags = (u8)((l->started ? LEASE_STARTED : 0) | (l->again ? LEASE_AGAIN : 0) | (l->lookup ? LEASE_LOOKUP : 0));
    io_flags(io, &flags, LEASE_FLAGS);
    l->started = flags & LEASE_STARTED;
    l->again = flags & LEASE_AGAIN;
    l->lookup = flags & LEASE_LOOKUP;
}

static INLINED void io_lease(struct io *io, struct rec_lease *l) {
    io_ref(io, &l->ref);
    io_u64(io, &l->fence);
    io_i64(io, &l->at_ms);
    io_u32(io, &l->lease_ms);
    io_u16(io, &l->attempts);
    io_lease_flags(io, l);
    io_short(io, &l->consumer);
}

static INLINED void io_return(struct io *io, struct rec_return *r) {
    io_ref(io, &r->ref);
    io_u64(io, &r->fence);
    io_i64(io, &r->at_ms);
    io_i64(io, &r->due_ms);
    io_enum(io, &r->ended, ENDED_COUNT);
    io_enum(io, &r->failure_class, CLASS_COUNT);
    io_enum(io, &r->state, STATE_DEAD + 1);
    io_traits(io, &r->traits);
    if (r->traits & TRAIT_TAKES) io_u32(io, &r->taken);
    if (io->version > 4 && r->traits & TRAIT_RECONCILE) io_u16(io, &r->lookups);
    if (r->lookups > LOOKUPS_MAX) io->bad = true;
    io_u16(io, &r->attempts);
    io_u16(io, &r->failures);
    io_u16(io, &r->unknowns);
    io_u16(io, &r->crashes);
    io_short(io, &r->reason);
}

enum settle_flag {
    SETTLE_BY_TOKEN = 1,
    SETTLE_CARRIED = 2,
    SETTLE_ERASED = 4,
    SETTLE_ERASING = 8,
    SETTLE_KEPT = 16,
    SETTLE_RESTORED = 32,
    SETTLE_HTTP = 64,
    SETTLE_FLAGS = 127,
    SETTLE_FLAGS_V4 = 63,
    SETTLE_FLAGS_V2 = 31,
};

/* Version 1 had a byte for each of the two flags it knew. */
static INLINED u8 io_settle_flags(struct io *io, const struct rec_settle *s) {
    u8 flags =
        (u8)((s->by_token ? SETTLE_BY_TOKEN : 0) | (s->carried ? SETTLE_CARRIED : 0) | (s->erased ? SETTLE_ERASED : 0) |
             (s->erasing ? SETTLE_ERASING : 0) | (s->kept.is ? SETTLE_KEPT : 0) | (s->restored ? SETTLE_RESTORED : 0) |
             (s->http.n ? SETTLE_HTTP : 0));
    if (io->version > 1) {
        io_flags(io, &flags, io->version > 4 ? SETTLE_FLAGS : io->version > 2 ? SETTLE_FLAGS_V4 : SETTLE_FLAGS_V2);
        return flags;
    }
    bool by_token = false, carried = false;
    io_bool(io, &by_token);
    io_bool(io, &carried);
    return (u8)((by_token ? SETTLE_BY_TOKEN : 0) | (carried ? SETTLE_CARRIED : 0));
}

static INLINED void io_kept(struct io *io, struct kept *k) {
    io_short(io, &k->group);
    io_short(io, &k->content_type);
    io_short(io, &k->attrs);
    io_short(io, &k->traceparent);
    io_short(io, &k->tracestate);
    io_slice(io, &k->payload);
}

static INLINED void io_settle(struct io *io, struct rec_settle *s) {
    io_ref(io, &s->ref);
    io_u64(io, &s->fingerprint);
    io_u64(io, &s->fence);
    io_i64(io, &s->first_seen_ms);
    io_i64(io, &s->settled_ms);
    io_i64(io, &s->settled_run_ms);
    io_u8(io, &s->state);
    io_u8(io, &s->ended);
    u8 flags = io_settle_flags(io, s);
    s->by_token = flags & SETTLE_BY_TOKEN;
    s->carried = flags & SETTLE_CARRIED;
    s->erased = flags & SETTLE_ERASED;
    s->erasing = flags & SETTLE_ERASING;
    s->kept.is = flags & SETTLE_KEPT;
    s->restored = flags & SETTLE_RESTORED;
    if (s->carried) io_u64(io, &s->from_pos);
    io_u32(io, &s->generation);
    io_u16(io, &s->attempts);
    io_u16(io, &s->failures);
    io_u16(io, &s->unknowns);
    io_u16(io, &s->crashes);
    io_short(io, &s->key);
    io_short(io, &s->request_id);
    io_short(io, &s->reason);
    io_short(io, &s->content_type);
    io_slice(io, &s->result);
    if (flags & SETTLE_HTTP) io_short(io, &s->http);
    io_history(io, &s->history);
    if (s->kept.is) io_kept(io, &s->kept);
    if (s->state < STATE_DONE || s->state >= STATE_COUNT || s->ended >= ENDED_COUNT) io->bad = true;
}

static INLINED void io_arrival(struct io *io, struct arrival *a) {
    io_i64(io, &a->at_ms);
    io_u8(io, &a->kind);
    io_short(io, &a->request_id);
    if (a->kind >= ARRIVAL_COUNT) io->bad = true;
}

static INLINED void io_arrivals(struct io *io, struct rec_arrivals *a) {
    io_ref(io, &a->ref);
    io_u64(io, &a->total);
    io_u64(io, &a->duplicates);
    io_u32(io, &a->fresh);
    io_u32(io, &a->fresh_conflicts);
    io_u32(io, &a->count);
    if (io->way != IO_READ) {
        io_text(io, &a->last, (u32)a->last.n);
        return;
    }
    if (a->count > ARRIVALS_KEPT) {
        io->bad = true;
        a->count = 0;
    }
    const char *from = io->in;
    struct arrival one = {0};
    for (u32 i = 0; i < a->count; i++) io_arrival(io, &one);
    a->last = slice_of(from, (size_t)(io->in - from));
}

static INLINED void io_decide(struct io *io, struct rec_decide *d) {
    io_ref(io, &d->ref);
    io_i64(io, &d->at_ms);
    io_i64(io, &d->due_ms);
    io_enum(io, &d->what, DECISION_COUNT);
    io_enum(io, &d->state, STATE_DEAD + 1);
    io_flags(io, &d->traits, TRAIT_ALL);
    io_u32(io, &d->taken);
    io_u16(io, &d->failures);
    io_u16(io, &d->unknowns);
    io_u16(io, &d->crashes);
    io_short(io, &d->group);
    io_short(io, &d->by);
    io_short(io, &d->note);
    if (d->state == STATE_LEASED) io->bad = true; /* nobody is given a lease by decree */
}

/* A bit for each counter that changes, then the changes. */
static INLINED void io_counts(struct io *io, struct rec_counts *c) {
    u64 *all = &c->add.accepted, present = 0;
    for (u32 i = 0; i < COUNTERS; i++)
        if (all[i]) present |= (u64)1 << i;
    io_u16(io, &c->queue);
    io_u64(io, &present);
    if (COUNTERS < 64 && present >> COUNTERS) io->bad = true;
    for (u32 i = 0; i < COUNTERS; i++)
        if (present >> i & 1) io_u64(io, &all[i]);
}

static INLINED void io_audit(struct io *io, struct rec_audit *a) {
    io_u64(io, &a->number);
    io_i64(io, &a->at_ms);
    io_i64(io, &a->run_ms);
    io_u16(io, &a->queue);
    io_short(io, &a->who);
    io_short(io, &a->what);
    io_short(io, &a->queue_name);
    io_short(io, &a->key);
    io_short(io, &a->id);
    io_short(io, &a->why);
    io_short(io, &a->detail);
    if (a->number == 0) io->bad = true;
}

static INLINED void io_record(struct io *io, struct record *r) {
    switch (r->type) {
    case REC_CLOCK:
        io_clock(io, &r->clock);
        break;
    case REC_QUEUE:
        io_queue(io, &r->queue);
        break;
    case REC_MESSAGE:
        io_message(io, &r->message);
        break;
    case REC_LEASE:
        io_lease(io, &r->lease);
        break;
    case REC_START:
        io_ref(io, &r->start.ref);
        io_u64(io, &r->start.fence);
        io_u16(io, &r->start.attempts);
        break;
    case REC_EXTEND:
        io_ref(io, &r->extend.ref);
        io_u64(io, &r->extend.fence);
        io_i64(io, &r->extend.at_ms);
        io_u32(io, &r->extend.lease_ms);
        io_u16(io, &r->extend.crashes);
        break;
    case REC_RETURN:
        io_return(io, &r->ret);
        break;
    case REC_STEP:
        io_ref(io, &r->step.ref);
        io_short(io, &r->step.name);
        io_short(io, &r->step.content_type);
        io_slice(io, &r->step.result);
        break;
    case REC_EFFECT:
        io_ref(io, &r->effect.ref);
        io_short(io, &r->effect.effect_id);
        break;
    case REC_SETTLE:
        io_settle(io, &r->settle);
        break;
    case REC_ARRIVALS:
        io_arrivals(io, &r->arrivals);
        break;
    case REC_EXPIRE:
        io_u16(io, &r->expire.queue);
        if (io->version > 1) io_i64(io, &r->expire.from_run_ms);
        io_i64(io, &r->expire.upto_run_ms);
        io_u64(io, &r->expire.keys);
        break;
    case REC_DECIDE:
        io_decide(io, &r->decide);
        break;
    case REC_FORGET:
        io_ref(io, &r->forget.ref);
        io_u64(io, &r->forget.from_pos);
        break;
    case REC_WINDOW:
        io_u16(io, &r->window.queue);
        io_i64(io, &r->window.at_ms);
        io_i64(io, &r->window.window_ms);
        io_i64(io, &r->window.oldest_replay_ms);
        break;
    case REC_COUNTS:
        io_counts(io, &r->counts);
        break;
    case REC_AUDIT:
        io_audit(io, &r->audit);
        break;
    case REC_DAY:
        io_u16(io, &r->day.queue);
        io_u32(io, &r->day.day);
        io_u64(io, &r->day.accepted);
        io_u64(io, &r->day.duplicates);
        break;
    case REC_NONE:
    case REC_COUNT:
        CHECK(false && "a record has a type");
    }
}

/* Writing and measuring leave the record as it is. */
static struct record *unchanged(const struct record *r) {
    return (struct record *)(uintptr_t)r;
}

size_t record_size(const struct record *r) {
    struct io io = {.way = IO_MEASURE, .version = RECORD_VERSION};
    io_record(&io, unchanged(r));
    return io.size;
}

size_t record_encode(const struct record *r, char *p) {
    struct io io = {.way = IO_WRITE, .version = RECORD_VERSION, .out = p};
    io_record(&io, unchanged(r));
    return (size_t)(io.out - p);
}

/* What must be zero before a record is read: of those that are read often only their own part. */
static size_t cleared_bytes(u8 type) {
    switch (type) {
    case REC_MESSAGE:
        return sizeof(struct rec_message);
    case REC_SETTLE:
        return sizeof(struct rec_settle);
    case REC_LEASE:
        return sizeof(struct rec_lease);
    case REC_ARRIVALS:
        return sizeof(struct rec_arrivals);
    default:
        return sizeof(struct record) - offsetof(struct record, clock);
    }
}

static __attribute__((noinline)) hx_st decode(u8 type, u8 version, slice body, struct record *out, struct errbuf *err) {
    if (version == 0) return err_set(err, ST_DAMAGED, "record type %u has no version", type);
    if (version > RECORD_VERSION)
        return err_set(err, ST_VERSION, "record type %u version %u was written by a newer hapaxd", type, version);
    if (type == REC_NONE || type >= REC_COUNT)
        return err_set(err, ST_VERSION, "record type %u is not known to this version", type);
    out->type = (enum record_type)type;
    out->about = 0;
    memset((char *)out + offsetof(struct record, clock), 0, cleared_bytes(type));
    struct io io = {.way = IO_READ, .in = body.p, .end = body.p + body.n, .version = version};
    io_record(&io, out);
    if (io.bad || io.in != io.end)
        return err_set(err, ST_DAMAGED, "a %s record of %zu bytes makes no sense", record_name(type), body.n);
    return ST_OK;
}

/* Most that are read back are messages of this version: for them the version is known where the code is made. Whatever is wrong
 * with one is said by the other way. */
hx_st record_decode(u8 type, u8 version, slice body, struct record *out, struct errbuf *err) {
    if (type != REC_MESSAGE || version != RECORD_VERSION) return decode(type, version, body, out, err);
    struct io io = {.way = IO_READ, .in = body.p, .end = body.p + body.n, .version = RECORD_VERSION};
    out->type = REC_MESSAGE;
    out->about = 0;
    out->message = (struct rec_message){0};
    io_message(&io, &out->message);
    return !io.bad && io.in == io.end ? ST_OK : decode(type, version, body, out, err);
}

size_t arrival_size(const struct arrival *a) {
    struct io io = {.way = IO_MEASURE, .version = RECORD_VERSION};
    struct arrival one = *a;
    io_arrival(&io, &one);
    return io.size;
}

void arrival_put(const struct arrival *a, char *p) {
    struct io io = {.way = IO_WRITE, .version = RECORD_VERSION, .out = p};
    struct arrival one = *a;
    io_arrival(&io, &one);
}

bool arrival_next(slice *last, struct arrival *out) {
    if (last->n == 0) return false;
    struct io io = {.way = IO_READ, .version = RECORD_VERSION, .in = last->p, .end = last->p + last->n};
    io_arrival(&io, out);
    *last = slice_of(io.in, (size_t)(io.end - io.in));
    return !io.bad;
}

void former_encode(const struct rec_settle *s, slice history, struct buf *out) {
    struct record r = {.type = REC_SETTLE, .settle = *s};
    r.settle.key = SL("");
    r.settle.kept = (struct kept){0};
    r.settle.carried = r.settle.restored = r.settle.erasing = false;
    r.settle.history = history;
    size_t size = record_size(&r);
    buf_char(out, (char)RECORD_VERSION);
    buf_grow(out, size);
    out->len += record_encode(&r, out->p + out->len);
}

bool former_decode(slice former, struct rec_settle *out) {
    if (former.n < 1 || former.n > FORMER_BYTES_MAX) return false;
    u8 version = (u8)former.p[0];
    if (version < FORMER_VERSION_MIN || version > RECORD_VERSION) return false;
    *out = (struct rec_settle){0};
    struct io io = {.way = IO_READ, .in = former.p + 1, .end = former.p + former.n, .version = version};
    io_settle(&io, out);
    return !io.bad && io.in == io.end;
}
