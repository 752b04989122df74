#include "broker/fetch.h"

#include "broker/broker_priv.h"
#include "broker/effects.h"

#define NO_SLOT UINT32_MAX

/* A slot is named by its place and by how often it was used: an answer that comes for one that has ended is a mistake, and seen. */
struct slot {
    struct outbound_request *parked; /* until it leaves, in one piece of memory */
    fetch_done *done;
    u64 arg, bytes;
    i64 since_ms; /* mono: asked for */
    u32 uses;
    u32 next; /* in the list of those that are free, or were not taken */
    bool taken;
    bool late; /* not sent: the disk took as long as the call might have */
};

struct fetches {
    struct slot *slots;
    u32 cap, max, count;
    u32 free, refused; /* lists */
    u64 bytes, bytes_max;
};

struct fetches *fetches_new(u64 memory_max, u32 fetches_max) {
    struct fetches *f = mem_zalloc(sizeof *f);
    f->free = f->refused = NO_SLOT;
    f->max = fetches_max && fetches_max < FETCHES_MAX ? fetches_max : FETCHES_MAX;
    f->bytes_max = memory_max && memory_max / 8 < FETCH_BYTES_MAX ? memory_max / 8 : FETCH_BYTES_MAX;
    return f;
}

/* Headers may hold secrets. */
static void drop_parked(struct slot *s) {
    mem_free_wiped(s->parked);
    s->parked = NULL;
}

void fetches_free(struct fetches *f) {
    for (u32 i = 0; i < f->cap; i++) drop_parked(&f->slots[i]);
    mem_free(f->slots);
    mem_free(f);
}

/* ---- a copy that waits */

static size_t text_bytes(const char *text) {
    return strlen(text) + 1;
}

static char *put_text(char **at, const char *text) {
    size_t n = text_bytes(text);
    char *copy = memcpy(*at, text, n);
    *at += n;
    return copy;
}

/* Request, pointers to headers, texts, body: one piece, so that wiping it wipes all. */
static struct outbound_request *copy_request(const struct outbound_request *r) {
    u32 headers = 0;
    size_t texts = text_bytes(r->method) + text_bytes(r->url) + r->body.n;
    for (; r->headers && r->headers[headers]; headers++) texts += text_bytes(r->headers[headers]);
    struct outbound_request *copy = mem_alloc(sizeof *copy + (headers + 1) * sizeof(char *) + texts);
    const char **list = (const char **)(copy + 1);
    char *at = (char *)(list + headers + 1);
    *copy = *r;
    copy->method = put_text(&at, r->method);
    copy->url = put_text(&at, r->url);
    for (u32 i = 0; i < headers; i++) list[i] = put_text(&at, r->headers[i]);
    list[headers] = NULL;
    copy->headers = list;
    if (r->body.n) memcpy(at, r->body.p, r->body.n);
    copy->body = slice_of(at, r->body.n);
    return copy;
}

/* ---- slots */

static void grow(struct fetches *f) {
    u32 cap = f->cap ? f->cap * 2 : 64;
    f->slots = mem_realloc(f->slots, cap * sizeof *f->slots);
    memset(f->slots + f->cap, 0, (cap - f->cap) * sizeof *f->slots);
    for (u32 i = cap; i-- > f->cap;) {
        f->slots[i].next = f->free;
        f->free = i;
    }
    f->cap = cap;
}

static u32 take_slot(struct fetches *f) {
    if (f->free == NO_SLOT) grow(f);
    u32 i = f->free;
    f->free = f->slots[i].next;
    f->slots[i].taken = true;
    f->slots[i].uses++;
    f->count++;
    return i;
}

static u64 number_of(const struct fetches *f, u32 i) {
    return (u64)f->slots[i].uses << 32 | i;
}

static void give_back(struct fetches *f, u32 i) {
    struct slot *s = &f->slots[i];
    drop_parked(s);
    f->bytes -= s->bytes;
    f->count--;
    s->taken = false;
    s->next = f->free;
    f->free = i;
}

/* The slot is free before whoever asked is told: it may ask for the next one at once. */
static void end(struct broker *b, u32 i, const struct outbound_answer *a) {
    struct slot s = b->fetches->slots[i];
    give_back(b->fetches, i);
    s.done(b, s.arg, a);
}

/* ---- the way out */

u64 fetch_bytes(const struct outbound_request *r) {
    return r->body.n + r->answer_max + OUTBOUND_CALL_BYTES;
}

u32 fetches_left(const struct broker *b, u64 bytes) {
    const struct fetches *f = b->fetches;
    u64 left = bytes ? (f->bytes_max - f->bytes) / bytes : UINT32_MAX;
    if (!b->options.port.fetch) return 0;
    return left < f->max - f->count ? (u32)left : f->max - f->count;
}

bool fetch_room(const struct broker *b, u64 bytes) {
    return fetches_left(b, bytes) > 0;
}

/* All it depends on is durable. */
static void leave(struct broker *b, void *ctx, u64 arg) {
    struct fetches *f = ctx;
    u32 i = (u32)arg;
    struct slot *s = &f->slots[i];
    s->late = s->parked->total_ms && b->time.mono_ms - s->since_ms >= s->parked->total_ms;
    bool taken = !s->late && b->options.port.fetch(b->options.port.ctx, number_of(f, i), s->parked);
    drop_parked(s);
    if (taken) return;
    s->next = f->refused;
    f->refused = i;
}

bool fetch(struct broker *b, const struct outbound_request *r, fetch_done *done, u64 arg) {
    struct fetches *f = b->fetches;
    u64 bytes = fetch_bytes(r);
    if (!fetch_room(b, bytes)) return false;
    u32 i = take_slot(f);
    struct slot *s = &f->slots[i];
    s->parked = copy_request(r);
    s->done = done;
    s->arg = arg;
    s->bytes = bytes;
    s->since_ms = b->time.mono_ms;
    f->bytes += bytes;
    if (effect_after(b, b->after, leave, f, i)) return true;
    give_back(f, i);
    return false;
}

void fetches_run(struct broker *b) {
    struct fetches *f = b->fetches;
    struct outbound_answer none = {.end = OUTBOUND_NOT_SENT};
    u32 i = f->refused;
    f->refused = NO_SLOT; /* what is asked for meanwhile waits for the next turn */
    while (i != NO_SLOT) {
        u32 next = f->slots[i].next;
        none.why = f->slots[i].late ? "it had to wait too long for the disk" : "too many requests are under way";
        end(b, i, &none);
        i = next;
    }
}

void broker_fetched(struct broker *b, struct broker_time t, u64 number, const struct outbound_answer *a) {
    struct fetches *f = b->fetches;
    u32 i = (u32)number;
    broker_advance(b, t);
    CHECK(i < f->cap && f->slots[i].taken && !f->slots[i].parked && f->slots[i].uses == number >> 32);
    end(b, i, a);
}

u32 broker_fetches(const struct broker *b) {
    return b->fetches->count;
}
