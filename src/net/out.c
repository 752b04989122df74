#include "net/server_priv.h"

#define COMPACT_BYTES (64u << 10) /* sent bytes worth moving the rest for */

struct http_out *http_out_new(void) {
    return mem_zalloc(sizeof(struct http_out));
}

void http_out_free(struct http_out *o) {
    buf_free(&o->bytes);
    mem_free(o->marks);
    mem_free(o);
}

void http_out_reset(struct http_out *o) {
    CHECK(o->first == o->count);
    buf_reset(&o->bytes);
    o->sent = o->ready = o->first_start = 0;
    o->first = o->held = o->count = 0;
}

static struct http_mark *new_mark(struct http_out *o) {
    if (o->marks && o->count == o->cap && o->first > o->cap / 2) {
        memmove(o->marks, o->marks + o->first, (o->count - o->first) * sizeof *o->marks);
        o->count -= o->first;
        o->held -= o->first;
        o->first = 0;
    }
    if (o->count == o->cap) {
        o->cap = o->cap ? o->cap * 2 : 8;
        o->marks = mem_realloc(o->marks, o->cap * sizeof *o->marks);
    }
    return &o->marks[o->count++];
}

void http_out_mark(struct http_out *o, u64 after, u64 receipt) {
    struct http_mark *last = o->count > o->first ? &o->marks[o->count - 1] : NULL;
    if (last && receipt == 0 && after <= last->after) {
        last->end = o->bytes.len;
    } else {
        *new_mark(o) = (struct http_mark){.end = o->bytes.len, .after = after, .receipt = receipt};
    }
    if (o->held == o->count) o->ready = o->bytes.len;
}

void http_out_release(struct http_out *o, u64 released) {
    while (o->held < o->count && o->marks[o->held].after <= released) o->ready = o->marks[o->held++].end;
}

u64 http_out_receipt(struct http_out *o, size_t upto) {
    while (o->first < o->count && o->first_start < upto) {
        struct http_mark *m = &o->marks[o->first];
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
    o->first_start = 0; /* a mark that is partly sent has told its receipt: its beginning does not matter any more */
    for (size_t i = o->first; i < o->count; i++) o->marks[i].end -= gone;
}
