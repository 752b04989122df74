#include "core/record.h"

#define NAME_CASE(name, text) text,
static const char *const record_names[] = {"none", RECORD_LIST(NAME_CASE)};
static const char *const state_names[] = {STATE_LIST(NAME_CASE)};
static const char *const ended_names[] = {ENDED_LIST(NAME_CASE)};
static const char *const class_names[] = {CLASS_LIST(NAME_CASE)};
static const char *const arrival_names[] = {ARRIVAL_LIST(NAME_CASE)};
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
bool class_parse(slice text, enum failure_class *out) {
    for (u32 c = CLASS_TRANSIENT; c < CLASS_COUNT; c++) {
        if (!slice_eq(text, slice_str(class_names[c]))) continue;
        *out = (enum failure_class)c;
        return true;
    }
    return false;
}

/* ---- one description of each layout serves both ways: `io` either writes the field or reads it. All of it is inlined into
 * record_encode and record_decode, where the direction is known and half of every function falls away. */

#define INLINED inline __attribute__((always_inline))

struct io {
    bool writing;
    bool bad;
    char *out;            /* writing: the next byte */
    const char *in, *end; /* reading */
};

static INLINED void io_bytes(struct io *io, void *p, size_t n) {
    if (io->writing) {
        memcpy(io->out, p, n);
        io->out += n;
    } else if ((size_t)(io->end - io->in) < n) {
        io->bad = true;
        memset(p, 0, n);
    } else {
        memcpy(p, io->in, n);
        io->in += n;
    }
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
    if (io->writing) return;
    if (b > 1) io->bad = true;
    *v = b == 1;
}
static INLINED void io_slice(struct io *io, slice *s) {
    u32 n = (u32)s->n;
    io_u32(io, &n);
    if (io->writing) {
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
/* Short strings: most are empty, so their length takes a byte, or three. */
static INLINED void io_short(struct io *io, slice *s) {
    u8 small = s->n < 255 ? (u8)s->n : 255;
    u16 n = (u16)s->n;
    io_u8(io, &small);
    if (small == 255)
        io_u16(io, &n);
    else
        n = small;
    if (io->writing) {
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

static INLINED void io_ref(struct io *io, struct ref *ref) {
    io_u64(io, &ref->hash);
    io_u64(io, &ref->seq);
    io_u16(io, &ref->queue);
}

static INLINED void io_clock(struct io *io, struct rec_clock *c) {
    io_u64(io, &c->next_seq);
    io_u64(io, &c->fence);
    io_i64(io, &c->wall_ms);
    io_i64(io, &c->run_ms);
    io_i64(io, &c->delay_ms);
    io_bool(io, &c->boot);
}

static INLINED void io_queue(struct io *io, struct rec_queue *q) {
    io_u16(io, &q->queue);
    io_bool(io, &q->paused);
    io_i64(io, &q->created_ms);
    io_i64(io, &q->rules.window_ms);
    io_u32(io, &q->rules.lease_ms);
    io_u16(io, &q->rules.transient_attempts);
    io_u16(io, &q->rules.unknown_attempts);
    io_u16(io, &q->rules.crash_attempts);
    io_u32(io, &q->rules.backoff_ms);
    io_u32(io, &q->rules.backoff_max_ms);
#define COUNTER_IO(name) io_u64(io, &q->counters.name);
    COUNTER_LIST(COUNTER_IO)
#undef COUNTER_IO
    io_short(io, &q->name);
}

static INLINED void io_message(struct io *io, struct rec_message *m) {
    io_ref(io, &m->ref);
    io_u64(io, &m->fingerprint);
    io_i64(io, &m->first_seen_ms);
    io_bool(io, &m->carried);
    u8 timed = m->due_ms != 0 || m->ttl_ms != 0 || m->replaces != 0; /* rare: most messages save these bytes */
    io_u8(io, &timed);
    if (timed) {
        io_i64(io, &m->due_ms);
        io_i64(io, &m->ttl_ms);
        io_u64(io, &m->replaces);
        io_u64(io, &m->replaces_seq);
    }
    io_short(io, &m->key);
    io_short(io, &m->group);
    io_short(io, &m->content_type);
    io_short(io, &m->attrs);
    io_short(io, &m->traceparent);
    io_short(io, &m->tracestate);
    io_short(io, &m->request_id);
    io_slice(io, &m->payload);
    if (!m->carried) return;
    io_u8(io, &m->state);
    io_u8(io, &m->ended);
    io_bool(io, &m->started);
    io_u32(io, &m->generation);
    io_u32(io, &m->lease_ms);
    io_u16(io, &m->attempts);
    io_u16(io, &m->failures);
    io_u16(io, &m->unknowns);
    io_u16(io, &m->crashes);
    io_u64(io, &m->fence);
    io_slice(io, &m->history);
    if (m->state > STATE_DEAD || m->ended >= ENDED_COUNT || !history_valid(m->history)) io->bad = true;
}

static INLINED void io_lease(struct io *io, struct rec_lease *l) {
    io_ref(io, &l->ref);
    io_u64(io, &l->fence);
    io_i64(io, &l->at_ms);
    io_u32(io, &l->lease_ms);
    io_u16(io, &l->attempts);
    io_bool(io, &l->started);
    io_bool(io, &l->again);
    io_short(io, &l->consumer);
}

static INLINED void io_return(struct io *io, struct rec_return *r) {
    io_ref(io, &r->ref);
    io_u64(io, &r->fence);
    io_i64(io, &r->at_ms);
    io_i64(io, &r->due_ms);
    io_u8(io, &r->ended);
    io_u8(io, &r->failure_class);
    io_u8(io, &r->state);
    io_u16(io, &r->attempts);
    io_u16(io, &r->failures);
    io_u16(io, &r->unknowns);
    io_u16(io, &r->crashes);
    io_short(io, &r->reason);
    if (r->ended >= ENDED_COUNT || r->failure_class >= CLASS_COUNT || r->state > STATE_DEAD) io->bad = true;
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
    io_bool(io, &s->by_token);
    io_bool(io, &s->carried);
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
    io_slice(io, &s->history);
    if (s->state < STATE_DONE || s->state >= STATE_COUNT || s->ended >= ENDED_COUNT) io->bad = true;
    if (!history_valid(s->history)) io->bad = true;
}

static INLINED void io_arrivals(struct io *io, struct rec_arrivals *a) {
    io_ref(io, &a->ref);
    io_u64(io, &a->total);
    io_u64(io, &a->duplicates);
    io_u32(io, &a->fresh);
    io_u32(io, &a->fresh_conflicts);
    io_u32(io, &a->count);
    if (a->count > ARRIVALS_KEPT) {
        io->bad = true;
        a->count = 0;
    }
    for (u32 i = 0; i < a->count; i++) {
        io_i64(io, &a->last[i].at_ms);
        io_u8(io, &a->last[i].kind);
        io_short(io, &a->last[i].request_id);
        if (a->last[i].kind >= ARRIVAL_COUNT) io->bad = true;
    }
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
        io_i64(io, &r->expire.upto_run_ms);
        io_u64(io, &r->expire.keys);
        break;
    case REC_NONE:
    case REC_COUNT:
        CHECK(!"a record has a type");
    }
}

/* Every fixed part and length prefix together stays below this; the byte strings come on top. */
#define FIXED_MAX 320u

static size_t arrivals_bytes(const struct rec_arrivals *a) {
    size_t n = 0;
    for (u32 i = 0; i < a->count; i++) n += 12 + a->last[i].request_id.n;
    return n;
}

size_t record_size_max(const struct record *r) {
    switch (r->type) {
    case REC_QUEUE:
        return FIXED_MAX + r->queue.name.n;
    case REC_MESSAGE: {
        const struct rec_message *m = &r->message;
        return FIXED_MAX + m->key.n + m->group.n + m->content_type.n + m->attrs.n + m->traceparent.n + m->tracestate.n +
               m->request_id.n + m->payload.n + m->history.n;
    }
    case REC_LEASE:
        return FIXED_MAX + r->lease.consumer.n;
    case REC_RETURN:
        return FIXED_MAX + r->ret.reason.n;
    case REC_STEP:
        return FIXED_MAX + r->step.name.n + r->step.content_type.n + r->step.result.n;
    case REC_EFFECT:
        return FIXED_MAX + r->effect.effect_id.n;
    case REC_SETTLE: {
        const struct rec_settle *s = &r->settle;
        return FIXED_MAX + s->key.n + s->request_id.n + s->reason.n + s->content_type.n + s->result.n + s->history.n;
    }
    case REC_ARRIVALS:
        return FIXED_MAX + arrivals_bytes(&r->arrivals);
    default:
        return FIXED_MAX;
    }
}

size_t record_encode(const struct record *r, char *p) {
    struct io io = {.writing = true, .out = p};
    io_record(&io, (struct record *)(uintptr_t)r); /* writing leaves it as it is */
    return (size_t)(io.out - p);
}

/* What must be zero before a record is read: of the large ones only their own part, and of a list what is not counted. */
static size_t cleared_bytes(u8 type) {
    switch (type) {
    case REC_MESSAGE:
        return sizeof(struct rec_message);
    case REC_SETTLE:
        return sizeof(struct rec_settle);
    case REC_ARRIVALS:
        return offsetof(struct rec_arrivals, last);
    default:
        return sizeof(struct record) - offsetof(struct record, clock);
    }
}

hx_st record_decode(u8 type, u8 version, slice body, struct record *out, struct errbuf *err) {
    if (version > RECORD_VERSION)
        return err_set(err, ST_VERSION, "record type %u version %u was written by a newer hapaxd", type, version);
    if (type == REC_NONE || type >= REC_COUNT)
        return err_set(err, ST_VERSION, "record type %u is not known to this version", type);
    out->type = (enum record_type)type;
    memset((char *)out + offsetof(struct record, clock), 0, cleared_bytes(type));
    struct io io = {.in = body.p, .end = body.p + body.n};
    io_record(&io, out);
    if (io.bad || io.in != io.end)
        return err_set(err, ST_DAMAGED, "a %s record of %zu bytes makes no sense", record_name(type), body.n);
    return ST_OK;
}
