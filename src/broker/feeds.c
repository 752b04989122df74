#include "broker/feeds.h"

#include <stdio.h>

#include "broker/broker_priv.h"
#include "broker/budget.h"
#include "broker/call.h"
#include "broker/event_page.h"
#include "broker/queue_rules.h"
#include "broker/waits.h"

#define TOGETHER_MS     100         /* what comes within so much leaves together */
#define KEEP_ALIVE_MS   15000       /* at the latest: a proxy must not take it for dead */
#define WRITE_BYTES     (64u << 10) /* at once; the rest with a later turn */
#define CLOCK_EVERY     64u         /* events looked at between two looks at the clock, */
#define TELLING         8u          /* where one that is told counts for so many */
#define SHARE_US_PER_MS 40          /* of the broker's time, for all of them */
#define LOOK_MS         2           /* they are looked at so often at most: their share of it is EVENTS_US */
#define WRITE_US        6           /* a write to a socket, and the reader it wakes, */
#define WRITE_US_PER    2048        /* and one more for each so many bytes */
#define TEXTS           1024u       /* of events, kept for the other readers; power of two */
#define TEXT_BYTES_MAX  (8u << 10)  /* longer ones are made anew for each */
#define RUN_BYTES       13u

_Static_assert(EVENTS_US == LOOK_MS * SHARE_US_PER_MS, "a look takes what was earned since the last");

struct feed {
    struct wait *wait; /* NULL: this place is free */
    struct feed_filter filter;
    u64 next; /* the number of the event it looks at next */
    i64 wrote_ms;
    u64 after; /* position of the last event it was told */
};

struct text {
    u64 number;
    struct buf bytes;
};

struct feeds {
    char run[RUN_BYTES + 1]; /* this process, among others that had the same events' numbers */
    struct feed at[FEEDS_MAX];
    u32 count, top, first; /* top: the places from there on are free; first: whose turn it is */
    i64 credit_us, credited_ms;
    i64 looked_ms;         /* at them all, or at as many as there was time for. Since then: */
    u64 heard;             /* the newest event then; a later one is news to those who had heard all, */
    i64 news_ms;           /* of whom the first may be told from here on; */
    i64 more_ms, alive_ms; /* the others' first; and when somebody has to hear that he is not forgotten */
    u64 dropped, gaps;
    struct buf out;
    struct text *texts; /* [number % TEXTS]; NULL: nobody reads */
};

struct feeds *feeds_new(const struct broker_options *options, struct broker_time t) {
    struct feeds *f = mem_zalloc(sizeof *f);
    struct siphash_key key;
    u64 made_of[2] = {(u64)t.wall_ms, options->seed};
    memcpy(&key, options->secret, sizeof key);
    u64 run = siphash(&key, made_of, sizeof made_of) >> 16;
    snprintf(f->run, sizeof f->run, "%012llx-", (unsigned long long)run);
    return f;
}

static void free_texts(struct feeds *f) {
    for (u32 i = 0; f->texts && i < TEXTS; i++) buf_free(&f->texts[i].bytes);
    mem_free(f->texts);
    f->texts = NULL;
    buf_free(&f->out);
}

static void leave(struct feeds *f, struct feed *d) {
    buf_free(&d->filter.queue);
    buf_free(&d->filter.key);
    buf_free(&d->filter.own);
    *d = (struct feed){0};
    while (f->top && f->at[f->top - 1].next == 0) f->top--;
    if (--f->count == 0) free_texts(f);
}

/* Its client went: broker_gone has ended the wait, and with it cleared our pointer. */
static bool gone(const struct feed *d) {
    return d->wait == NULL && d->next != 0;
}

static void drop(struct broker *b, struct feed *d) {
    if (d->wait) wait_end(b, d->wait);
    leave(b->feeds, d);
}

void feeds_free(struct broker *b) {
    struct feeds *f = b->feeds;
    for (u32 i = 0; i < FEEDS_MAX; i++)
        if (f->at[i].next) drop(b, &f->at[i]);
    mem_free(f);
}

static void end(struct broker *b, struct feed *d) {
    if (d->wait) b->options.port.feed_end(b->options.port.ctx, d->wait->conn);
    if (d->next) drop(b, d);
}

void feeds_end(struct broker *b) {
    for (u32 i = 0; i < FEEDS_MAX; i++) end(b, &b->feeds->at[i]);
}

/* Of its queue, or of any. */
static bool may_read(const struct feed *d) {
    const struct caller *who = d->wait->who;
    if (d->filter.queue.len) return caller_may(who, RIGHT_OBSERVE, buf_slice(&d->filter.queue));
    return who->anywhere & right_bit(RIGHT_OBSERVE);
}

void feeds_review(struct broker *b) {
    for (u32 i = 0; i < FEEDS_MAX; i++) {
        struct feed *d = &b->feeds->at[i];
        if (!d->wait) continue;
        d->wait->who = access_again(b, d->wait->who);
        if (!may_read(d)) end(b, d);
    }
}

void feeds_stats_get(const struct broker *b, struct feeds_stats *out) {
    const struct feeds *f = b->feeds;
    *out = (struct feeds_stats){.dropped = f->dropped, .gaps = f->gaps};
    for (u32 i = 0; i < f->top; i++) out->readers += f->at[i].wait != NULL;
}

/* ---- words */

static void put_id_line(const struct feeds *f, struct buf *b, u64 number) {
    buf_lit(b, "id: ");
    buf_add(b, f->run, RUN_BYTES);
    buf_dec(b, number);
    buf_char(b, '\n');
}

/* missed: how many; 0: not known. */
static void put_gap(struct broker *br, struct buf *b, u64 number, const char *why, u64 missed) {
    struct feeds *f = br->feeds;
    f->gaps++;
    put_id_line(f, b, number);
    buf_lit(b, "event: gap\ndata: {\"kind\":\"gap\"");
    json_put_member_time(b, "at", br->now.wall_ms);
    json_put_member(b, "reason", slice_str(why));
    if (missed) json_put_member_i64(b, "missed", (i64)missed);
    buf_lit(b, "}\n\n");
}

static void put_text(struct broker *br, struct buf *b, const struct event *e) {
    put_id_line(br->feeds, b, e->number);
    buf_lit(b, "event: ");
    buf_slice_add(b, slice_str(happening_text((enum happening_kind)e->kind)));
    buf_lit(b, "\ndata: ");
    put_event(br, b, e);
    buf_lit(b, "\n\n");
}

/* Most readers are told the same at about the same time. */
static void put_shared_text(struct broker *b, struct buf *out, const struct event *e) {
    struct text *t = &b->feeds->texts[e->number % TEXTS];
    if (t->number != e->number) {
        buf_reset(&t->bytes);
        put_text(b, &t->bytes, e);
        t->number = e->number;
    }
    buf_slice_add(out, buf_slice(&t->bytes));
    if (t->bytes.cap <= TEXT_BYTES_MAX) return;
    buf_free(&t->bytes);
    t->number = 0;
}

/* ---- coming */

static struct feed *free_place(struct feeds *f) {
    for (u32 i = 0; i < FEEDS_MAX; i++)
        if (f->at[i].next == 0) return &f->at[i];
    return NULL;
}

static void sweep(struct broker *b) {
    struct feeds *f = b->feeds;
    for (u32 i = 0; i < FEEDS_MAX; i++)
        if (gone(&f->at[i])) drop(b, &f->at[i]);
}

/* Where it goes on; what it cannot be told any more is said. */
static u64 resume(struct broker *b, slice last_id, struct buf *out) {
    u64 number, oldest = events_oldest(b), visible = events_visible(b);
    slice run, rest;
    if (last_id.n == 0) return visible + 1;
    if (!slice_starts(last_id, slice_of(b->feeds->run, RUN_BYTES))) {
        put_gap(b, out, oldest - 1, "the broker was restarted", 0);
        return oldest;
    }
    slice_cut(last_id, '-', &run, &rest);
    if (!slice_u64(rest, &number) || number > visible) {
        put_gap(b, out, visible, "no such id", 0);
        return visible + 1;
    }
    if (number + 1 >= oldest) return number + 1;
    put_gap(b, out, oldest - 1, "too long ago", oldest - 1 - number);
    return oldest;
}

/* Nobody is answered by time: it has no deadline. */
static void never(struct broker *b, struct wait *w, bool over) {
    (void)b;
    (void)w;
    (void)over;
}

static bool write_out(struct broker *b, struct feed *d) {
    struct feeds *f = b->feeds;
    const struct broker_port *port = &b->options.port;
    d->wrote_ms = b->time.mono_ms;
    if (port->feed(port->ctx, d->wait->conn, buf_slice(&f->out), d->after)) return true;
    f->dropped++;
    drop(b, d);
    return false;
}

static void begin(struct call *c) {
    struct broker *b = c->b;
    struct http_reply reply = {
        .status = 200,
        .content_type = SL("text/event-stream"),
        .fields = SL("Cache-Control: no-store\r\nX-Accel-Buffering: no\r\n"),
        .after = {.position = b->after},
        .feed = true,
    };
    respond(b, c->conn, &reply);
}

bool feed_open(struct call *c, const struct feed_filter *filter, slice last_id) {
    struct broker *b = c->b;
    struct feeds *f = b->feeds;
    if (f->count == FEEDS_MAX) sweep(b);
    struct feed *d = free_place(f);
    if (!d) return fail(c, PROBLEM_overloaded, "%u readers of events are connected, and no more can be", FEEDS_MAX);
    begin(c);
    if (c->req->method == HTTP_HEAD) return true;
    f->count++;
    if (!f->texts) f->texts = mem_zalloc(TEXTS * sizeof *f->texts);
    buf_reset(&f->out);
    buf_lit(&f->out, "retry: 2000\n");
    u64 next = resume(b, last_id, &f->out);
    put_id_line(f, &f->out, next - 1); /* without data it is no event: it only says where to resume */
    buf_char(&f->out, '\n');
    *d = (struct feed){.filter = *filter, .next = next, .after = b->after};
    if (d - f->at >= f->top) f->top = (u32)(d - f->at) + 1;
    d->wait = wait_new(b, c->conn, c->user, WAIT_NO_DEADLINE, never);
    d->wait->owner = &d->wait;
    f->more_ms = 0; /* whoever it is, the next look finds out */
    write_out(b, d);
    return true;
}

/* ---- going on */

/* The filter's queue, by its number as of now; 0: there is none of that name. */
static u16 filter_queue(const struct broker *b, const struct feed_filter *filter) {
    u16 queue = 0;
    if (filter->queue.len && !core_queue_find(b->core, buf_slice(&filter->queue), &queue)) return 0;
    return queue;
}

/* What is about the process as a whole, or about a queue that is no more, is for those who may see all of it. */
static bool may_hear(const struct broker *b, const struct caller *who, const struct event *e) {
    if (caller_may_everywhere(who, RIGHT_OBSERVE)) return true;
    slice name = event_queue_name(b, e);
    return name.n && caller_may(who, RIGHT_OBSERVE, name);
}

static bool wanted(const struct broker *b, const struct feed_filter *filter, u16 queue, const struct event *e) {
    if (filter->kinds && !(filter->kinds & 1u << e->kind)) return false;
    if (filter->queue.len && !(queue && event_is_of(b, e, queue))) return false;
    if (filter->key.len == 0) return true;
    if (!e->queue) return false;
    return core_hash(b->core, e->queue, buf_slice(&filter->key)) == e->hash ||
           (queue_rules_of(b, e->queue)->scoped && core_hash(b->core, e->queue, buf_slice(&filter->own)) == e->hash);
}

/* The ring has gone over its place. */
static void jump(struct broker *b, struct feed *d) {
    u64 visible = events_visible(b);
    put_gap(b, &b->feeds->out, visible, "more happened than could be told", visible + 1 - d->next);
    d->next = visible + 1;
}

/* What there is for it, until that is enough for once or the time is up. */
static void collect(struct broker *b, struct feed *d, struct budget *g) {
    struct feeds *f = b->feeds;
    u64 visible = events_visible(b);
    u16 queue = filter_queue(b, &d->filter);
    if (d->next < events_oldest(b)) jump(b, d);
    for (u32 work = 0; d->next <= visible && f->out.len < WRITE_BYTES;) {
        const struct event *e = event_at(b, d->next);
        d->next++;
        bool told = wanted(b, &d->filter, queue, e) && may_hear(b, d->wait->who, e);
        if (told) {
            INVARIANT(9, e->after <= b->durable);
            put_shared_text(b, &f->out, e);
            d->after = e->after;
        }
        work += told ? TELLING : 1;
        if (work < CLOCK_EVERY) continue;
        if (budget_spent(g)) return;
        work = 0;
    }
}

static bool due(const struct broker *b, const struct feed *d) {
    i64 passed = b->time.mono_ms - d->wrote_ms;
    return d->wait && (passed >= KEEP_ALIVE_MS || (passed >= TOGETHER_MS && d->next <= events_visible(b)));
}

static void serve(struct broker *b, struct feed *d, struct budget *g) {
    struct feeds *f = b->feeds;
    bool silent = b->time.mono_ms - d->wrote_ms >= KEEP_ALIVE_MS;
    buf_reset(&f->out);
    collect(b, d, g);
    if (f->out.len == 0 && silent) { /* and it need not come back to where it last heard something */
        buf_lit(&f->out, ": keep-alive\n");
        put_id_line(f, &f->out, d->next - 1);
        buf_char(&f->out, '\n');
    }
    if (f->out.len) budget_charge(g, WRITE_US + f->out.len / WRITE_US_PER);
    if (f->out.len) write_out(b, d);
}

/* What they took of the broker's time is paid back before they get more. */
static void earn(struct broker *b) {
    struct feeds *f = b->feeds;
    f->credit_us += (b->time.mono_ms - f->credited_ms) * SHARE_US_PER_MS;
    f->credited_ms = b->time.mono_ms;
    if (f->credit_us > EVENTS_US) f->credit_us = EVENTS_US;
}

static void look(struct broker *b) {
    struct feeds *f = b->feeds;
    struct budget g = budget_of(b, (u32)f->credit_us);
    for (u32 n = f->top; n && f->count; n--) {
        if (f->first >= f->top) f->first = 0;
        struct feed *d = &f->at[f->first];
        if (gone(d)) drop(b, d);
        if (due(b, d)) {
            if (budget_spent(&g)) break;
            serve(b, d, &g);
        }
        f->first++;
    }
    i64 left = budget_left_us(&g);
    if (left != INT64_MAX) f->credit_us = left;
}

static void lower(i64 *at_ms, i64 ms) {
    if (ms < *at_ms) *at_ms = ms;
}

static void look_ahead(struct broker *b) {
    struct feeds *f = b->feeds;
    f->heard = events_visible(b);
    f->news_ms = f->more_ms = f->alive_ms = INT64_MAX;
    for (u32 i = 0; i < f->top; i++) {
        const struct feed *d = &f->at[i];
        if (d->wait) lower(d->next <= f->heard ? &f->more_ms : &f->news_ms, d->wrote_ms + TOGETHER_MS);
        if (d->wait) lower(&f->alive_ms, d->wrote_ms + KEEP_ALIVE_MS);
    }
}

/* When they are to be looked at next, as far as is known now. */
static i64 next_look_ms(const struct broker *b) {
    const struct feeds *f = b->feeds;
    i64 at_ms = f->more_ms < f->alive_ms ? f->more_ms : f->alive_ms;
    if (f->news_ms < at_ms && events_visible(b) > f->heard) at_ms = f->news_ms;
    return at_ms > f->looked_ms + LOOK_MS ? at_ms : f->looked_ms + LOOK_MS;
}

/* Replies that may leave with this turn do so first, unless the disk is being waited for again. */
static bool others_first(const struct broker *b) {
    return b->durable > b->left && b->durable >= b->awaited;
}

void feeds_run(struct broker *b) {
    struct feeds *f = b->feeds;
    if (f->count == 0 || b->time.mono_ms < next_look_ms(b) || others_first(b)) return;
    earn(b);
    f->looked_ms = b->time.mono_ms;
    if (f->credit_us > 0) look(b);
    look_ahead(b);
}

i64 feeds_next_ms(const struct broker *b, i64 mono_ms, i64 at_most) {
    if (b->feeds->count == 0) return at_most;
    i64 left = next_look_ms(b) - mono_ms;
    if (left <= 0) left = LOOK_MS; /* it was put off in this turn; another one may come earlier */
    return left < at_most ? left : at_most;
}
