#include "cli/load.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SILENCE_MS = 30000, READ_BYTES = 256 << 10, OPS_FIRST = 256, NUMBER_DIGITS = 12 };

static i64 nanoseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (i64)t.tv_sec * 1000000000 + t.tv_nsec;
}

size_t load_fail(struct load *l, hx_st st, const char *fmt, ...) {
    if (l->status != ST_OK) return 0;
    va_list args;
    va_start(args, fmt);
    vsnprintf(l->err->text, sizeof l->err->text, fmt, args);
    va_end(args);
    l->status = st;
    return 0;
}

/* ---- keys and payloads */

static u64 mix(u64 x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static const char hex[] = "0123456789abcdef";

void load_key(const struct load *l, u64 number, char key[LOAD_KEY_BYTES]) {
    u64 random[2] = {mix(l->o.seed + 2 * number), mix(~l->o.seed - 2 * number)};
    char *p = key;
    for (u32 i = 0; i < 20; i++) {
        if (i == 8 || i == 12 || i == 16) *p++ = '-';
        *p++ = hex[random[i / 10] >> (4 * (i % 10)) & 15];
    }
    *p++ = '-';
    for (int i = NUMBER_DIGITS - 1; i >= 0; i--, number >>= 4) p[i] = hex[number & 15];
}

static bool key_number(slice key, u64 *number) {
    if (key.n < LOAD_KEY_BYTES) return false;
    *number = 0;
    for (size_t i = LOAD_KEY_BYTES - NUMBER_DIGITS; i < LOAD_KEY_BYTES; i++) {
        const char *digit = key.p[i] ? strchr(hex, key.p[i]) : NULL;
        if (!digit) return false;
        *number = *number << 4 | (u64)(digit - hex);
    }
    return true;
}

static void filler_make(struct load *l) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789__";
    l->filler = mem_alloc(l->o.payload + 1);
    for (size_t i = 0; i < l->o.payload; i++) l->filler[i] = letters[mix(l->o.seed ^ i) & 63];
}

void load_payload(const struct load *l, const char key[LOAD_KEY_BYTES], char *payload) {
    u32 bytes = l->o.payload, named = bytes < LOAD_KEY_BYTES ? bytes : LOAD_KEY_BYTES;
    if (l->o.fill) {
        l->o.fill(key, payload, bytes);
        return;
    }
    memcpy(payload, key, named);
    memcpy(payload + named, l->filler + named, bytes - named);
}

/* The first time this message comes. */
static bool first_time(struct load *l, u64 number) {
    u64 bit = number - l->o.first;
    if (number < l->o.first || bit >= l->o.count)
        return load_fail(l, ST_INVALID, "message %llu was sent by another run", (unsigned long long)number);
    if (l->seen[bit / 8] & (1u << bit % 8))
        return load_fail(l, ST_INVALID, "message %llu was delivered twice", (unsigned long long)number);
    l->seen[bit / 8] = (u8)(l->seen[bit / 8] | (1u << bit % 8));
    return true;
}

bool load_received(struct load *l, slice key, slice payload) {
    char want[LOAD_KEY_BYTES];
    u64 number;
    if (!l->o.count) return true; /* whatever there is */
    if (!key_number(key.n ? key : payload, &number)) return load_fail(l, ST_INVALID, "delivered a foreign message");
    load_key(l, number, want);
    if (key.n && !slice_eq(key, slice_of(want, sizeof want)))
        return load_fail(l, ST_INVALID, "message %llu came with another's key", (unsigned long long)number);
    u32 named = l->o.payload < LOAD_KEY_BYTES ? l->o.payload : LOAD_KEY_BYTES;
    if (payload.n != l->o.payload || memcmp(payload.p, want, named) != 0 ||
        memcmp(payload.p + named, l->filler + named, payload.n - named) != 0)
        return load_fail(l, ST_INVALID, "message %llu came back changed", (unsigned long long)number);
    return first_time(l, number);
}

/* ---- latency */

static size_t bucket_of(u64 ns) {
    if (ns < LOAD_BUCKETS) return (size_t)ns;
    int shift = 63 - __builtin_clzll(ns) - 6;
    return (size_t)(shift + 1) * LOAD_BUCKETS + (size_t)((ns >> shift) - LOAD_BUCKETS);
}

static void latency_add(struct load_result *r, u64 ns) {
    r->latency[bucket_of(ns)]++;
    r->latencies++;
    if (ns > r->latency_max_ns) r->latency_max_ns = ns;
}

double load_percentile_us(const struct load_result *r, double p) {
    u64 rank = (u64)((double)r->latencies * p), before = 0;
    for (size_t i = 0; i < sizeof r->latency / sizeof r->latency[0]; i++) {
        before += r->latency[i];
        if (before <= rank) continue;
        u64 low = i < LOAD_BUCKETS ? i : (LOAD_BUCKETS + i % LOAD_BUCKETS) << (i / LOAD_BUCKETS - 1);
        return (double)low / 1000;
    }
    return (double)r->latency_max_ns / 1000;
}

double load_rate(const struct load_result *r) {
    return r->measured_seconds > 0 ? (double)r->counted / r->measured_seconds : 0;
}

/* ---- requests under way */

static void ops_grow(struct load_conn *c) {
    u32 size = c->op_mask + 1;
    struct load_op *grown = mem_alloc(2 * (size_t)size * sizeof *grown);
    for (u32 i = 0; i < size; i++) grown[(c->op_head + i) & (2 * size - 1)] = c->ops[(c->op_head + i) & c->op_mask];
    mem_free(c->ops);
    c->ops = grown;
    c->op_mask = 2 * size - 1;
}

void load_sent(struct load *l, struct load_conn *c, u32 kind, u64 first, u32 n) {
    if (c->op_tail - c->op_head == c->op_mask + 1) ops_grow(c);
    c->ops[c->op_tail++ & c->op_mask] = (struct load_op){l->now_ns, first, n, kind};
}

const struct load_op *load_next(struct load *l, struct load_conn *c) {
    if (c->op_head != c->op_tail) return &c->ops[c->op_head & c->op_mask];
    load_fail(l, ST_INVALID, "a reply nobody asked for");
    return NULL;
}

void load_done(struct load *l, struct load_conn *c, u32 n) {
    const struct load_op *op = &c->ops[c->op_head++ & c->op_mask];
    if (l->now_ns >= l->measure_ns && l->now_ns <= l->stop_ns) {
        l->r->counted += n;
        if (n) latency_add(l->r, (u64)(l->now_ns - op->sent_ns));
    }
    l->r->messages += n;
    l->r->requests++;
    l->end_ns = l->now_ns;
}

void load_idle(struct load *l, struct load_conn *c) {
    l->r->idle_fetches++;
    c->dry = true;
}

u64 load_take(struct load *l, u32 n) {
    u64 at = l->issued;
    l->issued += n;
    if (l->o.mode == LOAD_DUPLICATE) at = l->o.known > n ? mix(at) % (l->o.known / n) * n : 0;
    return l->o.first + at;
}

static bool may_issue(const struct load *l, const struct load_conn *c) {
    if (l->now_ns >= l->stop_ns) return false;
    if (l->o.mode == LOAD_CONSUME) return l->o.count ? l->r->messages < l->o.count : !c->dry;
    return l->o.count == 0 || l->issued < l->o.count;
}

static void top_up(struct load *l, struct load_conn *c) {
    while (c->slots_used < l->o.depth && may_issue(l, c)) {
        c->slots_used++;
        l->protocol->issue(l, c);
    }
}

/* ---- moving bytes */

static void lost(struct load *l, const char *why) {
    load_fail(l, ST_IO, "connection to %s: %s", l->o.authority, why);
}

static void watch(struct load *l, struct load_conn *c, bool write_too) {
    struct epoll_event e = {.events = EPOLLIN | (write_too ? (u32)EPOLLOUT : 0u), .data.ptr = c};
    if (c->want_write == write_too) return;
    epoll_ctl(l->epoll, EPOLL_CTL_MOD, c->fd, &e);
    c->want_write = write_too;
}

static void flush(struct load *l, struct load_conn *c) {
    while (c->out_at < c->out.len) {
        const char *p = c->out.p + c->out_at;
        size_t left = c->out.len - c->out_at;
        ssize_t n = c->secure ? load_tls_send(c->secure, p, left) : send(c->fd, p, left, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) {
            watch(l, c, true);
            return;
        }
        if (n < 0) {
            lost(l, strerrordesc_np(errno));
            return;
        }
        c->out_at += (size_t)n;
    }
    c->out_at = c->out.len = 0;
    watch(l, c, false);
}

static void take_replies(struct load *l, struct load_conn *c) {
    for (;;) {
        slice rest = slice_of(c->in.p + c->in_at, c->in.len - c->in_at);
        size_t used = rest.n && l->status == ST_OK ? l->protocol->reply(l, c, rest) : 0;
        if (used == 0) break;
        c->in_at += used;
    }
    if (c->in_at == 0) return;
    memmove(c->in.p, c->in.p + c->in_at, c->in.len - c->in_at);
    c->in.len -= c->in_at;
    c->in_at = 0;
}

static void receive(struct load *l, struct load_conn *c) {
    /* Of a record nothing may be left behind: the socket would not tell of it again. */
    for (ssize_t n = READ_BYTES; (n == READ_BYTES || c->secure) && l->status == ST_OK;) {
        buf_grow(&c->in, READ_BYTES);
        char *p = c->in.p + c->in.len;
        n = c->secure ? load_tls_recv(c->secure, p, READ_BYTES) : recv(c->fd, p, READ_BYTES, 0);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (n <= 0) {
            lost(l, n < 0 ? strerrordesc_np(errno) : "closed by the other side");
            return;
        }
        c->in.len += (size_t)n;
        take_replies(l, c);
    }
}

/* ---- a run */

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

static void open_one(struct load *l, struct load_conn *c) {
    int error = 0, one = 1;
    c->op_mask = OPS_FIRST - 1;
    c->ops = mem_alloc(OPS_FIRST * sizeof *c->ops);
    c->fd = connect_any(&l->o, &error);
    if (c->fd < 0) {
        load_fail(l, ST_IO, "cannot reach %s: %s", l->o.authority, strerrordesc_np(error));
        return;
    }
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct errbuf err;
    if (l->o.tls && !(c->secure = load_tls_begin(l->o.tls, c->fd, &err))) {
        load_fail(l, ST_IO, "cannot reach %s: %s", l->o.authority, err.text);
        return;
    }
    if (l->protocol->hello) l->protocol->hello(l, c);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
    CHECK(epoll_ctl(l->epoll, EPOLL_CTL_ADD, c->fd, &e) == 0);
}

static void open_all(struct load *l) {
    l->epoll = epoll_create1(EPOLL_CLOEXEC);
    CHECK(l->epoll >= 0);
    l->conns = mem_zalloc((size_t)l->o.connections * sizeof *l->conns);
    for (u32 i = 0; i < l->o.connections; i++) l->conns[i] = (struct load_conn){.fd = -1, .id = i};
    for (u32 i = 0; i < l->o.connections && l->status == ST_OK; i++) open_one(l, &l->conns[i]);
}

static void close_all(struct load *l) {
    for (u32 i = 0; i < l->o.connections; i++) {
        struct load_conn *c = &l->conns[i];
        if (l->o.tls) load_tls_end(l->o.tls, c->secure);
        if (c->fd >= 0) close(c->fd);
        buf_free(&c->in);
        buf_free(&c->out);
        mem_free(c->ops);
        mem_free(c->state);
    }
    mem_free(l->conns);
    mem_free(l->seen);
    mem_free(l->filler);
    buf_free(&l->scratch);
    close(l->epoll);
}

/* Nothing more to ask, and all that was asked is answered. */
static bool finished(const struct load *l) {
    if (l->o.mode == LOAD_CONSUME && l->o.count && l->r->messages >= l->o.count) return true;
    for (u32 i = 0; i < l->o.connections; i++) {
        const struct load_conn *c = &l->conns[i];
        if (c->op_head != c->op_tail || c->slots_used || may_issue(l, c)) return false;
    }
    return true;
}

static void turn(struct load *l) {
    struct epoll_event event[64];
    int n = epoll_wait(l->epoll, event, 64, SILENCE_MS);
    if (n == 0)
        load_fail(l, ST_TIMEOUT, "%s: no answer for %d s; %llu messages done", l->o.authority, SILENCE_MS / 1000,
                  (unsigned long long)l->r->messages);
    for (int i = 0; i < n && l->status == ST_OK; i++) {
        struct load_conn *c = event[i].data.ptr;
        l->now_ns = nanoseconds();
        if (event[i].events & ~(u32)EPOLLOUT) receive(l, c);
        if (l->status != ST_OK) return;
        top_up(l, c);
        flush(l, c);
    }
}

static void run(struct load *l) {
    bool timed = l->o.for_ms > 0;
    l->start_ns = l->end_ns = l->now_ns = nanoseconds();
    l->stop_ns = timed ? l->start_ns + l->o.for_ms * 1000000 : INT64_MAX;
    l->measure_ns = timed && l->o.count == 0 ? l->start_ns + l->o.for_ms * 100000 : l->start_ns;
    for (u32 i = 0; i < l->o.connections && l->status == ST_OK; i++) {
        top_up(l, &l->conns[i]);
        flush(l, &l->conns[i]);
    }
    while (l->status == ST_OK && !finished(l)) turn(l);
    i64 until = l->end_ns < l->stop_ns ? l->end_ns : l->stop_ns;
    l->r->measured_seconds = (double)(until - l->measure_ns) / 1e9;
    l->r->seconds = (double)(l->end_ns - l->start_ns) / 1e9;
}

hx_st load_run(const struct load_protocol *protocol, const struct load_options *o, struct load_result *r,
               struct errbuf *err) {
    CHECK(o->connections && o->depth && o->batch && (o->for_ms || o->count || o->mode == LOAD_CONSUME));
    CHECK(o->mode != LOAD_DUPLICATE || o->known);
    struct load l = {.protocol = protocol, .o = *o, .r = r, .err = err, .status = ST_OK};
    *r = (struct load_result){0};
    filler_make(&l);
    if (o->mode == LOAD_CONSUME && o->count) l.seen = mem_zalloc((size_t)(o->count / 8 + 1));
    open_all(&l);
    if (l.status == ST_OK) run(&l);
    close_all(&l);
    return l.status;
}
