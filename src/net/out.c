#include "net/server_priv.h"

#define COMPACT_BYTES (64u << 10) /* sent bytes worth moving the rest for */

struct http_out *http_out_new(void) {
    return mem_zalloc(sizeof(struct http_out));
}

void http_out_free(struct http_out *o) {
    buf_free(&o->bytes);
    mem_free(o->spans);
    mem_free(o);
}

void http_out_reset(struct http_out *o) {
    CHECK(o->first == o->count);
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
    CHECK(after.stream < HTTP_STREAMS);
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

size_t http_out_hold(struct http_out *o, const u64 *gates) {
    size_t i = o->first, open = o->first_start;
    for (; i < o->held && passes(&o->spans[i], gates); i++) open = o->spans[i].end;
    if (i == o->held) return 0;
    o->held = i;
    o->ready = open > o->sent ? open : o->sent;
    return o->ready - open;
}

u64 http_out_receipt(struct http_out *o, size_t upto) {
    while (o->first < o->count && o->first_start < upto) {
        struct http_span *m = &o->spans[o->first];
        u64 receipt = m->receipt;
        m->receipt = 0;
        if (receipt) return receipt;
        if (m->end > upto) return 0;
        o->first_start = m->end;
        o->first++;
        if (o->held < o->first) o->held = o->first;
    }
    return 0;
}

void http_out_compact(struct http_out *o) {
    size_t gone = o->sent;
    if (gone < COMPACT_BYTES || gone < o->bytes.len - gone) return;
    memmove(o->bytes.p, o->bytes.p + gone, o->bytes.len - gone);
    o->bytes.len -= gone;
    o->sent = 0;
    o->ready -= gone;
    o->first_start = 0; /* a span that is partly sent has told its receipt: its beginning does not matter any more */
    for (size_t i = o->first; i < o->count; i++) o->spans[i].end -= gone;
}
