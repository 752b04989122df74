/* History items in memory and on disk: u32 size of the whole item, u8 kind, then its fields. */
#include "core/record.h"

#define ITEM_HEAD     5u
#define ATTEMPT_BODY  (8u + 8u + 8u + 2u + 1u + 1u + 2u + 2u) /* fence at ended_at attempt ended class lens */
#define STEP_BODY     (2u + 2u + 4u)
#define EFFECT_BODY   2u
#define DECISION_BODY (8u + 1u + 2u + 2u) /* at what lens */
#define LOOKUP_BIT    0x80u               /* in an attempt's `ended` */

size_t history_item_size(const struct history_item *item) {
    switch (item->kind) {
    case HISTORY_ATTEMPT:
        return ITEM_HEAD + ATTEMPT_BODY + item->consumer.n + item->reason.n;
    case HISTORY_STEP:
        return ITEM_HEAD + STEP_BODY + item->name.n + item->content_type.n + item->result.n;
    case HISTORY_DECISION:
        return ITEM_HEAD + DECISION_BODY + item->consumer.n + item->reason.n;
    default:
        return ITEM_HEAD + EFFECT_BODY + item->name.n;
    }
}

static char *put_bytes(char *p, slice s) {
    if (s.n) memcpy(p, s.p, s.n);
    return p + s.n;
}

static void item_encode(const struct history_item *item, char *p) {
    put_u32(p, (u32)history_item_size(item));
    p[4] = (char)item->kind;
    p += ITEM_HEAD;
    switch (item->kind) {
    case HISTORY_ATTEMPT:
        put_u64(p, item->fence);
        put_u64(p + 8, (u64)item->at_ms);
        put_u64(p + 16, (u64)item->ended_ms);
        put_u16(p + 24, item->attempt);
        p[26] = (char)(item->ended | (item->lookup ? LOOKUP_BIT : 0));
        p[27] = (char)item->failure_class;
        put_u16(p + 28, (u16)item->consumer.n);
        put_u16(p + 30, (u16)item->reason.n);
        put_bytes(put_bytes(p + ATTEMPT_BODY, item->consumer), item->reason);
        break;
    case HISTORY_STEP:
        put_u16(p, (u16)item->name.n);
        put_u16(p + 2, (u16)item->content_type.n);
        put_u32(p + 4, (u32)item->result.n);
        put_bytes(put_bytes(put_bytes(p + STEP_BODY, item->name), item->content_type), item->result);
        break;
    case HISTORY_DECISION:
        put_u64(p, (u64)item->at_ms);
        p[8] = (char)item->what;
        put_u16(p + 9, (u16)item->consumer.n);
        put_u16(p + 11, (u16)item->reason.n);
        put_bytes(put_bytes(p + DECISION_BODY, item->consumer), item->reason);
        break;
    default:
        put_u16(p, (u16)item->name.n);
        put_bytes(p + EFFECT_BODY, item->name);
    }
}

static bool decode_attempt(const char *p, size_t n, struct history_item *out) {
    if (n < ATTEMPT_BODY) return false;
    out->fence = get_u64(p);
    out->at_ms = (i64)get_u64(p + 8);
    out->ended_ms = (i64)get_u64(p + 16);
    out->attempt = get_u16(p + 24);
    out->ended = (u8)((u8)p[26] & ~LOOKUP_BIT);
    out->lookup = (u8)p[26] & LOOKUP_BIT;
    out->failure_class = (u8)p[27];
    out->consumer = slice_of(p + ATTEMPT_BODY, get_u16(p + 28));
    out->reason = slice_of(p + ATTEMPT_BODY + out->consumer.n, get_u16(p + 30));
    return n == ATTEMPT_BODY + out->consumer.n + out->reason.n && out->ended < ENDED_COUNT &&
           out->failure_class < CLASS_COUNT;
}

static bool decode_step(const char *p, size_t n, struct history_item *out) {
    if (n < STEP_BODY) return false;
    out->name = slice_of(p + STEP_BODY, get_u16(p));
    out->content_type = slice_of(out->name.p + out->name.n, get_u16(p + 2));
    out->result = slice_of(out->content_type.p + out->content_type.n, get_u32(p + 4));
    return n == STEP_BODY + out->name.n + out->content_type.n + out->result.n;
}

static bool decode_effect(const char *p, size_t n, struct history_item *out) {
    if (n < EFFECT_BODY) return false;
    out->name = slice_of(p + EFFECT_BODY, get_u16(p));
    return n == EFFECT_BODY + out->name.n;
}

static bool decode_decision(const char *p, size_t n, struct history_item *out) {
    if (n < DECISION_BODY) return false;
    out->at_ms = (i64)get_u64(p);
    out->what = (u8)p[8];
    out->consumer = slice_of(p + DECISION_BODY, get_u16(p + 9));
    out->reason = slice_of(out->consumer.p + out->consumer.n, get_u16(p + 11));
    return n == DECISION_BODY + out->consumer.n + out->reason.n && out->what < DECISION_COUNT;
}

/* Of the whole item at `at`; 0: there is none, or it is nonsense. */
static u32 size_at(slice h, u32 at) {
    if (h.n - at < ITEM_HEAD) return 0;
    u32 size = get_u32(h.p + at);
    return size < ITEM_HEAD || size > h.n - at ? 0 : size;
}

static u8 kind_at(slice h, u32 at) {
    return (u8)h.p[at + 4];
}

bool history_next(slice h, u32 *at, struct history_item *out) {
    u32 size = size_at(h, *at);
    if (size == 0) return false;
    const char *p = h.p + *at;
    *out = (struct history_item){.kind = (u8)p[4]};
    bool good = false;
    switch (out->kind) {
    case HISTORY_ATTEMPT:
        good = decode_attempt(p + ITEM_HEAD, size - ITEM_HEAD, out);
        break;
    case HISTORY_STEP:
        good = decode_step(p + ITEM_HEAD, size - ITEM_HEAD, out);
        break;
    case HISTORY_EFFECT:
        good = decode_effect(p + ITEM_HEAD, size - ITEM_HEAD, out);
        break;
    case HISTORY_DECISION:
        good = decode_decision(p + ITEM_HEAD, size - ITEM_HEAD, out);
        break;
    default:
        break;
    }
    if (good) *at += size;
    return good;
}

bool history_valid(slice h) {
    u32 at = 0;
    struct history_item item;
    while (history_next(h, &at, &item)) {
    }
    return at == h.n;
}

static slice view(const struct history *h) {
    return slice_of(h->p, h->len);
}

/* Its capacity lies in front of the bytes: a message has no room for it, and only who makes a history longer asks. */
#define CAP_HEAD 8u

static u32 capacity(const struct history *h) {
    return h->p ? get_u32(h->p - CAP_HEAD) : 0;
}

void history_reserve(struct history *h, u32 len) {
    if (len <= capacity(h)) return;
    u32 cap = (len + 15) & ~15u; /* as much as malloc gives anyway */
    char *block = mem_realloc(h->p ? h->p - CAP_HEAD : NULL, CAP_HEAD + (size_t)cap);
    put_u32(block, cap);
    h->p = block + CAP_HEAD;
}

u64 history_block(const struct history *h) {
    return h->p ? (u64)CAP_HEAD + CAP_HEAD + capacity(h) : 0; /* malloc has a head of its own */
}

void history_begin(struct history *h, struct history_spares *s) {
    if (!h->p && s->count) h->p = s->at[--s->count];
}

void history_retire(struct history *h, struct history_spares *s) {
    if (!h->p || capacity(h) > HISTORY_SPARE_BYTES || s->count == HISTORY_SPARES) return history_free(h);
    s->at[s->count++] = h->p;
    *h = (struct history){0};
}

void history_spares_free(struct history_spares *s) {
    while (s->count) mem_free(s->at[--s->count] - CAP_HEAD);
}

static void splice(struct history *h, u32 at, u32 old_size, u32 new_size) {
    u32 len = h->len - old_size + new_size;
    history_reserve(h, len);
    memmove(h->p + at + new_size, h->p + at + old_size, h->len - at - old_size);
    h->len = len;
}

/* Of that kind if there are `kept`; the first `spared` are not counted as old. */
static void drop_oldest(struct history *h, u8 kind, u32 kept, u32 spared) {
    u32 count = 0, oldest = 0, oldest_size = 0;
    for (u32 at = 0, size; (size = size_at(view(h), at)) != 0; at += size) {
        if (kind_at(view(h), at) != kind || count++ != spared) continue;
        oldest = at;
        oldest_size = size;
    }
    if (count >= kept) splice(h, oldest, oldest_size, 0);
}

void history_append(struct history *h, const struct history_item *item) {
    u32 at = h->len, size = (u32)history_item_size(item);
    splice(h, at, 0, size);
    item_encode(item, h->p + at);
}

void history_add(struct history *h, const struct history_item *item) {
    if (item->kind == HISTORY_ATTEMPT) drop_oldest(h, HISTORY_ATTEMPT, HISTORY_ATTEMPTS_KEPT, 1);
    if (item->kind == HISTORY_DECISION) drop_oldest(h, HISTORY_DECISION, HISTORY_DECISIONS_KEPT, 0);
    history_append(h, item);
}

static bool find_attempt(const struct history *h, u64 fence, u32 *at) {
    slice all = view(h);
    *at = 0;
    for (u32 size; (size = size_at(all, *at)) != 0; *at += size)
        if (kind_at(all, *at) == HISTORY_ATTEMPT && get_u64(all.p + *at + ITEM_HEAD) == fence) return true;
    return false;
}

void history_end(struct history *h, const struct history_item *how) {
    u32 from;
    struct history_item item;
    if (!find_attempt(h, how->fence, &from)) {
        item = *how;
        item.kind = HISTORY_ATTEMPT;
        item.at_ms = how->ended_ms;
        history_add(h, &item);
        return;
    }
    char *body = h->p + from + ITEM_HEAD;
    if (how->attempt) put_u16(body + 24, how->attempt);
    if (get_u16(body + 30) == 0 && how->reason.n == 0) { /* nothing changes its length: the common end, an ack */
        put_u64(body + 16, (u64)how->ended_ms);
        body[26] = (char)(how->ended | ((u8)body[26] & LOOKUP_BIT));
        body[27] = (char)how->failure_class;
        return;
    }
    u32 at = from;
    CHECK(history_next(view(h), &at, &item));
    u32 old_size = at - from;
    item.ended = how->ended;
    item.ended_ms = how->ended_ms;
    item.failure_class = how->failure_class;
    item.reason = how->reason;
    /* The consumer's name lies inside what is about to move: take it along. */
    u32 size = (u32)history_item_size(&item);
    char *encoded = mem_alloc(size);
    item_encode(&item, encoded);
    splice(h, from, old_size, size);
    memcpy(h->p + from, encoded, size);
    mem_free(encoded);
}

static bool is_cut(slice reason) {
    slice mark = SL(HISTORY_CUT);
    return reason.n >= mark.n && memcmp(reason.p + reason.n - mark.n, mark.p, mark.n) == 0;
}

void history_yield(struct history *h) {
    struct history_item item;
    u32 first = UINT32_MAX, absent = UINT32_MAX;
    for (u32 at = 0, from = 0; history_next(view(h), &at, &item); from = at) {
        if (item.kind != HISTORY_ATTEMPT) continue;
        if (!item.lookup && first == UINT32_MAX) first = from;
        if (item.failure_class == CLASS_ABSENT) absent = from;
    }
    u32 dropped = 0;
    for (u32 at = 0, from = 0; history_next(view(h), &at, &item); from = at) {
        bool spared = from + dropped == first || from + dropped == absent;
        if (item.kind != HISTORY_ATTEMPT || spared || !is_cut(item.reason)) continue;
        splice(h, from, at - from, 0);
        dropped += at - from;
        at = from;
    }
}

void history_set_attempt(struct history *h, u64 fence, u16 attempt) {
    u32 from;
    if (find_attempt(h, fence, &from)) put_u16(h->p + from + ITEM_HEAD + 24, attempt);
}

void history_remove_attempt(struct history *h, u64 fence) {
    u32 from;
    if (find_attempt(h, fence, &from)) splice(h, from, size_at(view(h), from), 0);
}

void history_free(struct history *h) {
    if (h->p) mem_free(h->p - CAP_HEAD);
    *h = (struct history){0};
}

static bool last_of(slice h, u8 kind, struct history_item *out) {
    u32 last = UINT32_MAX;
    for (u32 at = 0, size; (size = size_at(h, at)) != 0; at += size)
        if (kind_at(h, at) == kind) last = at;
    return last != UINT32_MAX && history_next(h, &last, out);
}

bool history_last_attempt(slice h, struct history_item *out) {
    return last_of(h, HISTORY_ATTEMPT, out);
}

bool history_last_decision(slice h, struct history_item *out) {
    return last_of(h, HISTORY_DECISION, out);
}

bool history_find_step(slice h, slice name, struct history_item *out) {
    u32 at = 0;
    while (history_next(h, &at, out))
        if (out->kind == HISTORY_STEP && slice_eq(out->name, name)) return true;
    return false;
}

bool history_has_effect(slice h, slice effect_id, u32 *count) {
    u32 at = 0;
    bool found = false;
    struct history_item item;
    *count = 0;
    while (history_next(h, &at, &item)) {
        if (item.kind != HISTORY_EFFECT) continue;
        ++*count;
        if (slice_eq(item.name, effect_id)) found = true;
    }
    return found;
}
