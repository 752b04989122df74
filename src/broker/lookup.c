#include "broker/lookup.h"

#include "broker/broker_priv.h"
#include "broker/report.h"

struct lookup {
    struct seen seen;
    struct record base, arrivals;
    struct buf base_store, arrivals_store;
};

struct lookup *lookup_new(void) {
    return mem_zalloc(sizeof(struct lookup));
}

void lookup_free(struct lookup *l) {
    if (!l) return;
    buf_free(&l->base_store);
    buf_free(&l->arrivals_store);
    mem_free(l);
}

static void fetch(struct broker *b, u64 pos, u32 size_hint, struct buf *store, struct record *out) {
    struct journal_record rec;
    struct errbuf err; /* 512 bytes, which nobody clears for a read that works */
    err.text[0] = 0;
    hx_st st = journal_read(b->journal, pos, size_hint, &rec, &err);
    if (st == ST_OK) {
        b->read_back += rec.body.n;
        buf_reset(store);
        if (!rec.lasting) buf_slice_add(store, rec.body); /* what is decided next appends, and may move it */
        st = record_decode(rec.type, rec.version, rec.lasting ? rec.body : buf_slice(store), out, &err);
    }
    if (st == ST_OK) return;
    report(b, LOG_ERROR, "read_failed", "a record of the journal cannot be read back", log_number("position", (i64)pos),
           log_text("status", slice_str(status_text(st))), log_text("detail", slice_str(err.text)));
    check_failed(__FILE__, __LINE__, "journal_read", "stored data cannot be read");
}

const struct record *lookup_record(struct broker *b, struct lookup *l, u64 pos, u32 size_hint) {
    fetch(b, pos, size_hint, &l->base_store, &l->base);
    return &l->base;
}

void lookup_ahead(struct broker *b, const u64 *hashes, u32 count, bool *unsettled) {
    struct ahead ahead;
    u32 records = core_prefetch(b->core, hashes, count, &ahead);
    journal_prefetch(b->journal, ahead.pos, ahead.bytes, records);
    for (u32 i = 0; i < count; i++) unsettled[i] = !ahead.settled[i];
}

void lookup_ahead_to_settle(struct broker *b, const u64 *hashes, u32 count) {
    struct ahead ahead;
    u32 records = core_prefetch_to_settle(b->core, hashes, count, &ahead);
    journal_prefetch(b->journal, ahead.pos, ahead.bytes, records);
}

static void load(struct broker *b, struct lookup *l, const struct found *f) {
    l->seen = (struct seen){.at = *f};
    fetch(b, f->pos, f->size_hint, &l->base_store, &l->base);
    if (f->message != MESSAGE_NONE) {
        CHECK(l->base.type == REC_MESSAGE);
        l->seen.message = &l->base.message;
    } else {
        CHECK(l->base.type == REC_SETTLE);
        l->seen.settle = &l->base.settle;
    }
}

static void load_arrivals(struct broker *b, struct lookup *l) {
    if (l->seen.at.arrivals_pos == 0 || core_arrivals_in_memory(b->core, l->seen.at.entry)) return;
    fetch(b, l->seen.at.arrivals_pos, 0, &l->arrivals_store, &l->arrivals);
    CHECK(l->arrivals.type == REC_ARRIVALS);
    l->seen.arrivals = &l->arrivals.arrivals;
}

const struct ref *seen_ref(const struct seen *s) {
    return s->settle ? &s->settle->ref : &s->message->ref;
}

slice seen_key(const struct seen *s) {
    return s->settle ? s->settle->key : s->message->key;
}

u64 seen_fingerprint(const struct seen *s) {
    return s->settle ? s->settle->fingerprint : s->message->fingerprint;
}

i64 seen_first_ms(const struct seen *s) {
    return s->settle ? s->settle->first_seen_ms : s->message->first_seen_ms;
}

u64 seen_after(const struct broker *b, const struct seen *s) {
    u64 own = s->at.pos + 1, others = s->settle ? b->ruled : b->moved;
    if (own > b->after) own = 0; /* nothing was written since the start, and all that was replayed is durable */
    return own > others ? own : others;
}

bool seen_in_force(struct broker *b, const struct seen *s) {
    return s->message || core_key_left_ms(b->core, b->now, s->settle) > 0;
}

enum state seen_state(struct broker *b, const struct seen *s) {
    if (s->settle) return (enum state)s->settle->state;
    return core_message_state(b->core, s->at.message);
}

struct seen *lookup_found(struct broker *b, struct lookup *l, const struct found *f) {
    load(b, l, f);
    load_arrivals(b, l);
    return &l->seen;
}

/* Where keys once repeated one may be known several times: one that is past its window must not hide another. */
struct seen *lookup_key(struct broker *b, struct lookup *l, u16 queue, u64 hash, slice key) {
    struct core_cursor cursor = {0};
    struct found f, past;
    bool any_past = false;
    while (core_find(b->core, hash, &cursor, &f)) {
        if (f.queue != queue) continue;
        load(b, l, &f);
        if (!slice_eq(seen_key(&l->seen), key)) continue; /* a collision is no duplicate */
        if (seen_in_force(b, &l->seen)) {
            load_arrivals(b, l);
            return &l->seen;
        }
        past = f;
        any_past = true;
    }
    return any_past ? lookup_found(b, l, &past) : NULL;
}

struct seen *lookup_to_settle(struct broker *b, struct lookup *l, u64 hash, u64 seq) {
    struct core_cursor cursor = {0};
    struct found f;
    while (core_find_to_settle(b->core, hash, &cursor, &f)) {
        load(b, l, &f);
        if (seen_ref(&l->seen)->seq == seq) return &l->seen;
    }
    return NULL;
}

struct seen *lookup_id(struct broker *b, struct lookup *l, u64 hash, u64 seq) {
    struct core_cursor cursor = {0};
    struct found f;
    while (core_find(b->core, hash, &cursor, &f)) {
        load(b, l, &f);
        if (seen_ref(&l->seen)->seq != seq) continue;
        load_arrivals(b, l);
        return &l->seen;
    }
    return NULL;
}
