#include "net/server_priv.h"

#define COMPACT_BYTES (64u << 10) /* sent bytes worth moving the rest for */

/* ---- bodies */

struct http_body *http_body_take(struct buf *bytes) {
    struct http_body *b = mem_alloc(sizeof *b);
    *b = (struct http_body){.refs = 1, .bytes = *bytes};
    *bytes = (struct buf){0};
    return b;
}

slice http_body_bytes(const struct http_body *b) {
    return buf_slice(&b->bytes);
}

void http_body_release(struct http_body *b) {
    CHECK(b->refs > 0);
    if (--b->refs) return;
    CHECK(b->queued == 0);
    buf_free(&b->bytes);
    mem_free(b);
}

/* ---- the queue */

struct http_out *http_out_new(void) {
    return mem_zalloc(sizeof(struct http_out));
}

static void drop_body(struct http_out *o) {
    if (!o->body) return;
    CHECK(o->body->queued > 0);
    o->body->queued--;
    http_body_release(o->body);
    o->body = NULL;
    o->body_sent = 0;
}

void http_out_free(struct http_out *o) {
    drop_body(o);
    buf_free(&o->bytes);
    mem_free(o->spans);
    mem_free(o);
}

void http_out_reset(struct http_out *o) {
    CHECK(o->first == o->count && http_out_unsent(o) == 0);
    drop_body(o);
    buf_reset(&o->bytes);
    o->sent = o->ready = o->first_start = 0;
    o->first = o->held = o->count = 0;
}

static struct http_span *new_span(struct http_out *o) {
    if (o->spans && o->count == o->cap && o->first > o->cap / 2) {
        memmove(o->spans, o->spans + o->first, (o->count - o->first) * sizeof *o->spans);
        o->count -= o->first;
        o->held -= o->first;
        o->first = 0;
    }
    if (o->count == o->cap) {
        o->cap = o->cap ? o->cap * 2 : 8;
        o->spans = mem_realloc(o->spans, o->cap * sizeof *o->spans);
    }
    return &o->spans[o->count++];
}

/* And would be held by the same stream's hold: a reply that names no position is not. */
static bool waits_for_no_more(struct http_after a, struct http_after than) {
    if (a.position == 0) return than.position == 0;
    return a.stream == than.stream && a.position <= than.position;
}

void http_out_span(struct http_out *o, struct http_after after, u64 receipt) {
    struct http_span *last = o->count > o->first ? &o->spans[o->count - 1] : NULL;
    CHECK(after.stream < HTTP_STREAMS && !o->body);
    if (last && receipt == 0 && waits_for_no_more(after, last->after)) {
        last->end = o->bytes.len;
    } else {
        *new_span(o) = (struct http_span){.end = o->bytes.len, .after = after, .receipt = receipt};
    }
    if (o->held == o->count) o->ready = o->bytes.len;
}

static bool passes(const struct http_span *span, const u64 *gates) {
    return span->after.position <= gates[span->after.stream];
}

void http_out_release(struct http_out *o, const u64 *gates) {
    while (o->held < o->count && passes(&o->spans[o->held], gates)) o->ready = o->spans[o->held++].end;
    CHECK(o->sent <= o->ready && o->ready <= o->bytes.len);
}

void http_out_hold(struct http_out *o, const u64 *gates) {
    size_t i = o->first, open = o->first_start;
    for (; i < o->held && passes(&o->spans[i], gates); i++) open = o->spans[i].end;
    if (i == o->held) return;
    o->held = i;
    o->ready = open > o->sent ? open : o->sent; /* part of it may be out already: the rest stays */
}

void http_out_share(struct http_out *o, struct http_body *body) {
    CHECK(!o->body && o->first < o->count && body->bytes.len > 0);
    body->refs++;
    body->queued++;
    o->body = body;
    o->body_sent = 0;
}

u32 http_out_leaving(const struct http_out *o, slice runs[2]) {
    u32 n = 0;
    size_t own = o->ready - o->sent, body = http_out_ready(o) - own;
    if (own) runs[n++] = slice_of(o->bytes.p + o->sent, own);
    if (body) runs[n++] = slice_of(o->body->bytes.p + o->body_sent, body);
    return n;
}

void http_out_left(struct http_out *o, size_t n) {
    CHECK(n <= http_out_unsent(o));
    size_t left = o->bytes.len - o->sent, own = left < n ? left : n;
    o->sent += own;
    o->body_sent += n - own;
    if (o->ready < o->sent) o->ready = o->sent; /* it was called back, too late */
}

/* Its span must outlast the bytes before it: a hold may come. */
static bool body_waits(const struct http_out *o) {
    return o->first + 1 == o->count && http_out_body_unsent(o) > 0;
}

u64 http_out_receipt(struct http_out *o, size_t upto) {
    while (o->first < o->count) {
        struct http_span *m = &o->spans[o->first];
        if (o->first_start >= upto && m->end > upto) return 0; /* not begun */
        u64 receipt = m->receipt;
        m->receipt = 0;
        if (receipt) return receipt;
        if (m->end > upto || body_waits(o)) return 0;
        o->first_start = m->end;
        o->first++;
        if (o->held < o->first) o->held = o->first;
    }
    return 0;
}

/* The bytes not sent yet lie `to` behind the beginning from here on. Only when everything sent has been told. */
static void moved(struct http_out *o, size_t to) {
    size_t gone = o->sent;
    o->sent = to;
    o->ready = o->ready - gone + to;
    o->first_start = to; /* a span that is partly sent has told its receipt: its beginning does not matter any more */
    for (size_t i = o->first; i < o->count; i++) o->spans[i].end = o->spans[i].end - gone + to;
}

bool http_out_take(struct http_out *o, struct buf *made, size_t room) {
    struct buf own = o->bytes;
    size_t unsent = own.len - o->sent;
    CHECK(made->len >= room && !o->body);
    if (unsent > room) return false;
    memcpy(made->p + room - unsent, own.p + o->sent, unsent);
    o->bytes = *made;
    moved(o, room - unsent);
    *made = own;
    buf_reset(made);
    return true;
}

void http_out_compact(struct http_out *o) {
    size_t gone = o->sent;
    if (gone < COMPACT_BYTES || gone < o->bytes.len - gone) return;
    memmove(o->bytes.p, o->bytes.p + gone, o->bytes.len - gone);
    o->bytes.len -= gone;
    moved(o, 0);
}
