/* Requests of one run differ only in their keys, so each is a copy of one rendered template with the keys' digits
 * patched in. Of a reply only the status, the length and a mark in the body are looked at. That keeps this side well
 * below the broker's cost, which is what makes it a measuring instrument and not a second suspect. */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "cli/load.h"

enum { SILENCE_MS = 30000, IN_MIN = 256 << 10, RUN_CHARS = 19, HEAD_MAX = 64 << 10 };

/* A request under way. */
struct flight {
    i64 sent_ns;
    u32 expect; /* messages an ack or batch speaks of; 0: a receive */
};

struct lane {
    int fd;
    struct buf out, in;
    size_t out_at;
    struct flight *flights; /* ring of `room` */
    u32 room, head, count;
    bool want_write, dry;
};

struct load {
    const struct load_options *o;
    struct load_result *r;
    struct errbuf *err;
    int epoll;
    struct lane *lanes;
    struct buf template;
    size_t key_at[2]; /* first key's offset, distance to the next line's */
    u32 keys;         /* in the template */
    u64 next, issued; /* key number; messages asked for */
    i64 now, stop_ns; /* now: of this turn */
    bool stopping;
    size_t length_at; /* where Content-Length was in the last head */
    struct buf scratch;
};

static i64 now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (i64)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

void load_run_name(char run[20]) {
    static const char digits[] = "0123456789abcdefghijklmnopqrstuv";
    u8 random[RUN_CHARS];
    random_bytes(random, sizeof(random));
    for (int i = 0; i < RUN_CHARS; i++) run[i] = digits[random[i] & 31];
    run[RUN_CHARS] = '\0';
}

/* ---- latency: 32 buckets to each power of two */

static u32 bucket_of(u64 ns) {
    if (ns < 32) return (u32)ns;
    u32 exponent = 63u - (u32)__builtin_clzll(ns);
    return (exponent - 4) * 32 + (u32)((ns >> (exponent - 5)) & 31);
}

static double bucket_top(u32 b) {
    if (b < 32) return b;
    u32 exponent = b / 32 + 4;
    return (double)((u64)(32 + b % 32 + 1) << (exponent - 5));
}

double load_percentile_us(const struct load_result *r, double p) {
    u64 total = 0, seen = 0;
    for (u32 i = 0; i < LOAD_BUCKETS; i++) total += r->histogram[i];
    u64 rank = (u64)((double)total * p);
    if (rank >= total && total) rank = total - 1;
    for (u32 i = 0; i < LOAD_BUCKETS; i++) {
        seen += r->histogram[i];
        if (seen > rank) return bucket_top(i) / 1000.0;
    }
    return 0;
}

/* ---- rendering */

static void put_head(struct load *l, const char *path, const char *fields, size_t body) {
    buf_printf(&l->template, "POST %s/v1/queues/%s%s HTTP/1.1\r\nHost: %s\r\nContent-Length: %zu\r\n%s\r\n",
               l->o->prefix, l->o->queue, path, l->o->authority, body, fields);
}

static void put_payload(struct buf *b, u32 bytes) {
    for (u32 i = 0; i < bytes; i++) buf_char(b, (char)('a' + i % 26));
}

static void put_blank_key(struct load *l, struct buf *b) {
    buf_add(b, l->o->run, RUN_CHARS);
    buf_lit(b, "-0000000000000000");
}

static void render_single(struct load *l) {
    struct buf fields = {0};
    buf_lit(&fields, "Content-Type: text/plain\r\nIdempotency-Key: \"");
    put_blank_key(l, &fields);
    buf_lit(&fields, "\"\r\n");
    buf_char(&fields, '\0');
    put_head(l, "/messages", fields.p, l->o->payload);
    l->key_at[0] = (size_t)((char *)memmem(l->template.p, l->template.len, l->o->run, RUN_CHARS) - l->template.p);
    l->keys = 1;
    put_payload(&l->template, l->o->payload);
    buf_free(&fields);
}

static void render_batch(struct load *l) {
    struct buf line = {0};
    buf_lit(&line, "{\"key\":\"");
    size_t key = line.len;
    put_blank_key(l, &line);
    buf_lit(&line, "\",\"payload\":\"");
    put_payload(&line, l->o->payload);
    buf_lit(&line, "\"}\n");
    put_head(l, "/batch", "Content-Type: application/x-ndjson\r\n", line.len * l->o->lines);
    l->key_at[0] = l->template.len + key;
    l->key_at[1] = line.len;
    l->keys = l->o->lines;
    for (u32 i = 0; i < l->keys; i++) buf_slice_add(&l->template, buf_slice(&line));
    buf_free(&line);
}

static void render_receive(struct load *l) {
    char path[64];
    snprintf(path, sizeof(path), "/receive?max=%u&lease=60s", l->o->lines);
    put_head(l, path, "", 0);
}

static void patch_number(char *key, u64 number) {
    static const char digits[] = "0123456789abcdef";
    for (char *p = key + LOAD_KEY_BYTES - 1; number; number >>= 4) *p-- = digits[number & 15];
}

/* ---- asking */

static void flight_add(const struct load *l, struct lane *lane, u32 expect) {
    CHECK(lane->count < lane->room);
    lane->flights[(lane->head + lane->count) % lane->room] = (struct flight){l->now, expect};
    lane->count++;
}

static bool may_ask(struct load *l) {
    if (!l->stopping && l->o->count && l->issued >= l->o->count) l->stopping = true;
    return !l->stopping;
}

/* One more of the template, with the next keys. */
static void ask(struct load *l, struct lane *lane) {
    size_t at = lane->out.len;
    buf_slice_add(&lane->out, buf_slice(&l->template));
    char *key = lane->out.p + at + l->key_at[0];
    for (u32 i = 0; i < l->keys; i++, key += l->key_at[1]) {
        patch_number(key, l->next);
        l->next++;
        if (l->o->mode == LOAD_DUP && l->next == l->o->known) l->next = 0;
    }
    l->issued += l->keys;
    flight_add(l, lane, l->keys);
}

static void ask_receive(struct load *l, struct lane *lane) {
    buf_slice_add(&lane->out, buf_slice(&l->template));
    flight_add(l, lane, 0);
}

/* What a receive brought is acked in one array. Returns how many. */
static u32 ask_ack(struct load *l, struct lane *lane, slice body) {
    static const char mark[] = "\"token\":\"";
    u32 n = 0;
    buf_reset(&l->scratch);
    for (slice rest = body;;) {
        const char *p = memmem(rest.p, rest.n, mark, sizeof(mark) - 1);
        if (!p) break;
        p += sizeof(mark) - 1;
        size_t left = (size_t)(rest.p + rest.n - p);
        const char *end = memchr(p, '"', left);
        if (!end) break;
        buf_slice_add(&l->scratch, n++ ? SL(",{\"token\":\"") : SL("[{\"token\":\""));
        buf_add(&l->scratch, p, (size_t)(end - p));
        buf_lit(&l->scratch, "\"}");
        rest = slice_of(end, (size_t)(rest.p + rest.n - end));
    }
    if (!n) return 0;
    buf_char(&l->scratch, ']');
    buf_printf(&lane->out,
               "POST %s/v1/ack HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
               l->o->prefix, l->o->authority, l->scratch.len);
    buf_slice_add(&lane->out, buf_slice(&l->scratch));
    flight_add(l, lane, n);
    l->issued += n;
    return n;
}

/* Keep as much under way as asked for. */
static void refill(struct load *l, struct lane *lane) {
    if (l->o->mode == LOAD_CONSUME) {
        if (lane->count == 0 && !lane->dry && may_ask(l)) ask_receive(l, lane);
        return;
    }
    while (lane->count < l->o->depth && may_ask(l)) ask(l, lane);
}

/* ---- checking answers */

static void wrong(struct load *l, u32 messages, int status, slice body) {
    if (!l->r->wrong)
        snprintf(l->r->wrong_first, sizeof(l->r->wrong_first), "HTTP %d: %.*s", status,
                 (int)(body.n < 200 ? body.n : 200), body.p);
    l->r->wrong += messages ? messages : 1;
}

static u32 count_mark(slice body, slice mark) {
    u32 n = 0;
    while (body.n) {
        const char *p = memmem(body.p, body.n, mark.p, mark.n);
        if (!p) break;
        n++;
        p += mark.n;
        body = slice_of(p, (size_t)(body.p + body.n - p));
    }
    return n;
}

/* The first line, or array element, that lacks the mark. */
static slice first_without(slice body, slice mark) {
    while (body.n) {
        const char *end = memchr(body.p, '}', body.n);
        slice piece = slice_of(body.p, end ? (size_t)(end - body.p) : body.n);
        if (!memmem(piece.p, piece.n, mark.p, mark.n) || !end) return piece;
        body = slice_of(end + 1, (size_t)(body.p + body.n - end - 1));
    }
    return body;
}

static void check_counted(struct load *l, u32 expect, int status, slice body, slice mark) {
    u32 good = status == 200 ? count_mark(body, mark) : 0;
    if (good > expect) good = expect;
    l->r->messages += good;
    if (good < expect) wrong(l, expect - good, status, status == 200 ? first_without(body, mark) : body);
}

static void check(struct load *l, struct lane *lane, u32 expect, int status, slice body) {
    switch (l->o->mode) {
    case LOAD_SINGLE:
        if (status == 202)
            l->r->messages++;
        else
            wrong(l, 1, status, body);
        return;
    case LOAD_DUP:
        if ((status == 200 || status == 202) && count_mark(body, SL("\"duplicate\":true")))
            l->r->messages++;
        else
            wrong(l, 1, status, body);
        return;
    case LOAD_BATCH:
        check_counted(l, expect, status, body, SL("\"outcome\":\"accepted\""));
        return;
    case LOAD_CONSUME:
        break;
    }
    if (expect) {
        check_counted(l, expect, status, body, SL("\"state\":\"done\""));
        return;
    }
    if (status != 200) wrong(l, 0, status, body);
    /* The ack and the next receive leave together. */
    if (ask_ack(l, lane, body) == 0)
        lane->dry = true;
    else if (may_ask(l))
        ask_receive(l, lane);
}

static bool length_here(slice head, size_t at, u64 *length) {
    static const char name[] = "\r\nContent-Length: ";
    enum { N = sizeof(name) - 1 };
    if (at + N >= head.n || !slice_eq_nocase(slice_of(head.p + at, N), slice_of(name, N))) return false;
    slice rest = slice_of(head.p + at + N, head.n - at - N), digits, tail;
    slice_cut(rest, '\r', &digits, &tail);
    return slice_u64(digits, length);
}

/* The field is mostly where it was last time. */
static bool find_length(struct load *l, slice head, u64 *length) {
    if (length_here(head, l->length_at, length)) return true;
    for (size_t at = 0; at < head.n; at++) {
        if (head.p[at] != '\r' || !length_here(head, at, length)) continue;
        l->length_at = at;
        return true;
    }
    return false;
}

/* One reply from the front of `in`. Returns its bytes, 0 if it is not whole yet; a malformed one sets *bad. */
static size_t take_reply(struct load *l, struct lane *lane, slice in, bool *bad) {
    const char *end = memmem(in.p, in.n < HEAD_MAX ? in.n : HEAD_MAX, "\r\n\r\n", 4);
    if (!end) return *bad = in.n >= HEAD_MAX, 0;
    slice head = slice_of(in.p, (size_t)(end - in.p) + 2), code;
    u64 length = 0, status = 0;
    code = slice_of(in.p + 9, 3);
    if (head.n < 14 || memcmp(in.p, "HTTP/1.1 ", 9) != 0 || !slice_u64(code, &status)) return *bad = true, 0;
    if (!find_length(l, head, &length) && status != 204) return *bad = true, 0;
    size_t total = head.n + 2 + length;
    if (in.n < total) return 0;
    if (lane->count == 0) return *bad = true, 0;
    struct flight f = lane->flights[lane->head];
    lane->head = (lane->head + 1) % lane->room;
    lane->count--;
    l->r->requests++;
    l->r->histogram[bucket_of((u64)(l->now - f.sent_ns))]++;
    check(l, lane, f.expect, (int)status, slice_of(in.p + head.n + 2, length));
    return total;
}

/* ---- moving bytes */

static hx_st lane_failed(struct load *l, const char *what) {
    return err_set(l->err, ST_IO, "connection to %s: %s", l->o->authority, what);
}

static hx_st lane_read(struct load *l, struct lane *lane) {
    buf_grow(&lane->in, IN_MIN);
    ssize_t n = recv(lane->fd, lane->in.p + lane->in.len, lane->in.cap - lane->in.len, MSG_DONTWAIT);
    if (n == 0) return lane_failed(l, "closed by the broker");
    if (n < 0) return errno == EAGAIN || errno == EINTR ? ST_OK : lane_failed(l, strerrordesc_np(errno));
    lane->in.len += (size_t)n;
    l->now = now_ns();
    if (l->stop_ns && l->now >= l->stop_ns) l->stopping = true;
    size_t at = 0;
    for (bool bad = false;;) {
        size_t took = take_reply(l, lane, slice_of(lane->in.p + at, lane->in.len - at), &bad);
        if (bad) return lane_failed(l, "an answer that is not HTTP, or to nothing asked");
        if (!took) break;
        at += took;
    }
    memmove(lane->in.p, lane->in.p + at, lane->in.len - at);
    lane->in.len -= at;
    return ST_OK;
}

static void want_write(struct load *l, struct lane *lane, bool want) {
    if (lane->want_write == want) return;
    lane->want_write = want;
    struct epoll_event ev = {.events = EPOLLIN | (want ? (u32)EPOLLOUT : 0u), .data.ptr = lane};
    CHECK(epoll_ctl(l->epoll, EPOLL_CTL_MOD, lane->fd, &ev) == 0);
}

static hx_st lane_write(struct load *l, struct lane *lane) {
    while (lane->out_at < lane->out.len) {
        ssize_t n =
            send(lane->fd, lane->out.p + lane->out_at, lane->out.len - lane->out_at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno != EAGAIN) return lane_failed(l, strerrordesc_np(errno));
        if (n < 0) break;
        lane->out_at += (size_t)n;
    }
    bool all = lane->out_at == lane->out.len;
    if (all) {
        buf_reset(&lane->out);
        lane->out_at = 0;
    }
    want_write(l, lane, !all);
    return ST_OK;
}

/* Read what is there, ask for more, write. */
static hx_st lane_turn(struct load *l, struct lane *lane, bool readable) {
    hx_st st = readable ? lane_read(l, lane) : ST_OK;
    if (st != ST_OK) return st;
    refill(l, lane);
    return lane->out.len ? lane_write(l, lane) : ST_OK;
}

static int connect_any(const struct load_options *o, int *error) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    if (getaddrinfo(o->host, o->port, &hints, &list) != 0) return *error = EHOSTUNREACH, -1;
    int fd = -1;
    for (struct addrinfo *ai = list; ai && fd < 0; ai = ai->ai_next) {
        fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, ai->ai_addr, ai->ai_addrlen) == 0) break;
        *error = errno;
        if (fd >= 0) close(fd);
        fd = -1;
    }
    freeaddrinfo(list);
    return fd;
}

static hx_st lane_open(struct load *l, struct lane *lane) {
    int error = 0, one = 1;
    lane->fd = connect_any(l->o, &error);
    if (lane->fd < 0) return err_set(l->err, ST_IO, "cannot reach %s: %s", l->o->authority, strerrordesc_np(error));
    setsockopt(lane->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    lane->room = l->o->depth + 2;
    lane->flights = mem_zalloc(lane->room * sizeof(struct flight));
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = lane};
    CHECK(epoll_ctl(l->epoll, EPOLL_CTL_ADD, lane->fd, &ev) == 0);
    return ST_OK;
}

static void lane_close(struct lane *lane) {
    if (lane->fd >= 0) close(lane->fd);
    buf_free(&lane->out);
    buf_free(&lane->in);
    mem_free(lane->flights);
}

static bool idle(const struct load *l) {
    for (u32 i = 0; i < l->o->connections; i++)
        if (l->lanes[i].count) return false;
    return true;
}

/* Until everything asked was answered and nothing more is to be asked. */
static hx_st run(struct load *l) {
    struct epoll_event events[64];
    l->now = now_ns();
    i64 start = l->now;
    if (l->o->for_ms) l->stop_ns = start + l->o->for_ms * 1000000;
    for (u32 i = 0; i < l->o->connections; i++) {
        hx_st st = lane_turn(l, &l->lanes[i], false);
        if (st != ST_OK) return st;
    }
    while (!idle(l)) {
        int n = epoll_wait(l->epoll, events, 64, SILENCE_MS);
        if (n == 0) return err_set(l->err, ST_TIMEOUT, "%s: no answer for %d s", l->o->authority, SILENCE_MS / 1000);
        for (int i = 0; i < n; i++) {
            hx_st st = lane_turn(l, events[i].data.ptr, (events[i].events & ~(u32)EPOLLOUT) != 0);
            if (st != ST_OK) return st;
        }
    }
    l->r->took_us = (now_ns() - start) / 1000;
    return ST_OK;
}

static void render(struct load *l) {
    switch (l->o->mode) {
    case LOAD_SINGLE:
    case LOAD_DUP:
        render_single(l);
        break;
    case LOAD_BATCH:
        render_batch(l);
        break;
    case LOAD_CONSUME:
        render_receive(l);
        break;
    }
}

/* Let the broker see the keys that will be repeated. */
static hx_st make_known(const struct load_options *o, struct errbuf *err) {
    struct load_options first = *o;
    struct load_result *r = mem_zalloc(sizeof(*r));
    first.mode = LOAD_SINGLE;
    first.for_ms = 0;
    first.first = 0;
    first.count = o->known;
    hx_st st = load_run(&first, r, err);
    if (st == ST_OK && r->wrong) st = err_set(err, ST_INVALID, "sending the keys to repeat: %s", r->wrong_first);
    mem_free(r);
    return st;
}

hx_st load_run(const struct load_options *o, struct load_result *r, struct errbuf *err) {
    CHECK(o->connections && o->depth && (o->for_ms || o->count || o->mode == LOAD_CONSUME));
    *r = (struct load_result){0};
    if (o->mode == LOAD_DUP) {
        hx_st st = make_known(o, err);
        if (st != ST_OK) return st;
    }
    struct load l = {.o = o, .r = r, .err = err, .epoll = epoll_create1(EPOLL_CLOEXEC), .next = o->first};
    if (l.epoll < 0) return err_set(err, ST_IO, "epoll: %s", strerrordesc_np(errno));
    if (o->mode == LOAD_DUP) l.next = 0;
    l.lanes = mem_zalloc(o->connections * sizeof(struct lane));
    for (u32 i = 0; i < o->connections; i++) l.lanes[i].fd = -1;
    render(&l);
    hx_st st = ST_OK;
    for (u32 i = 0; i < o->connections && st == ST_OK; i++) st = lane_open(&l, &l.lanes[i]);
    if (st == ST_OK) st = run(&l);
    r->next = l.next;
    for (u32 i = 0; i < o->connections; i++) lane_close(&l.lanes[i]);
    mem_free(l.lanes);
    buf_free(&l.template);
    buf_free(&l.scratch);
    close(l.epoll);
    return st;
}
