/* The load engine shared by every benchmark client (tests/bench/bench_*.c): one thread, epoll, pipelined connections.
 *
 * A client supplies a `struct protocol`: how to greet the server, how to write one request, how to take one reply.
 * Everything that decides a figure is here and so the same for all systems: which keys and payloads are sent, how many
 * requests are in flight, when counting starts and stops, how latency is taken, what is checked.
 *
 * Messages are numbered. Number i has a key (36 characters, looks like a UUID, a function of the seed and i) and a
 * payload of PAYLOAD_BYTES that starts with the key and the number, so that a consumer can tell which message it holds
 * and the engine can prove at the end that each came exactly once.
 *
 * Modes:
 *   send       new keys for --seconds (or --count of them); with --conns 1 --depth 1 this is the latency test
 *   batch      the same, --batch messages a request
 *   duplicate  keys from --first .. --first + --known - 1, picked at random: the server must say it knows them
 *   consume    take --count messages, --batch a fetch, settle each; ends when the last is settled
 *
 * A run without --count counts messages answered between the end of the warm-up (a tenth of the time) and the deadline;
 * what is in flight then is still awaited and checked. Any reply that is not the expected one ends the program with
 * status 1. The result is one JSON line on stdout. */
#ifndef HAPAX_BENCH_ENGINE_H
#define HAPAX_BENCH_ENGINE_H

#include "base/base.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define KEY_BYTES     36
#define PAYLOAD_BYTES 200
#define READ_BYTES    (256 * 1024)

enum mode { MODE_SEND, MODE_BATCH, MODE_DUPLICATE, MODE_CONSUME };

/* One request in flight. Replies come in order, so a connection's requests are a queue. */
struct op {
    i64 sent_ns;
    u64 first; /* number of the first message in it */
    u32 n;     /* messages in it */
    u32 kind;  /* the protocol's own */
};

struct conn {
    int fd;
    u32 id;
    bool want_write;
    struct buf in, out;
    size_t in_at, out_at; /* consumed from in, written from out */
    struct op *ops;
    u32 op_head, op_tail, op_mask; /* free-running positions in the ring */
    u32 slots_used;                /* of `depth` */
    void *state;                   /* the protocol's own */
};

#define HISTOGRAM_SUB 64
struct histogram {
    u64 count[HISTOGRAM_SUB * 58];
    u64 total, max;
};

struct bench;
struct protocol {
    const char *name;
    void (*hello)(struct bench *b, struct conn *c);                /* blocking; may use engine_ask */
    void (*issue)(struct bench *b, struct conn *c);                /* append one request to c->out */
    size_t (*reply)(struct bench *b, struct conn *c, slice bytes); /* take one reply: its length, 0 if not whole yet */
};

struct bench {
    const struct protocol *protocol;
    enum mode mode;
    int port, conns, depth;
    u32 batch;
    double seconds;
    u64 seed, first, count, known;
    const char *queue;
    const char *kind; /* of payload; what it means is the protocol's business */

    struct conn *conn;
    int epoll;
    i64 now_ns, start_ns, measure_ns, stop_ns, end_ns;
    u64 issued, done, counted; /* messages */
    u64 idle_fetches;
    struct histogram latency;
    u8 *seen; /* consume: one bit a message */
    char filler[PAYLOAD_BYTES];
};

_Noreturn static void fail(const struct bench *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
_Noreturn static void fail(const struct bench *b, const char *fmt, ...) {
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    fprintf(stderr, "bench %s: %s\n", b->protocol->name, text);
    exit(1);
}

static inline i64 nanoseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (i64)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- keys and payloads */

static inline u64 mix64(u64 x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static inline void key_write(const struct bench *b, u64 number, char key[KEY_BYTES]) {
    static const char digit[] = "0123456789abcdef";
    u64 half[2] = {mix64(b->seed + 2 * number), mix64(~b->seed - 2 * number)};
    const u8 *byte = (const u8 *)half;
    char *p = key;
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10) *p++ = '-';
        *p++ = digit[byte[i] >> 4];
        *p++ = digit[byte[i] & 15];
    }
}

#define NUMBER_AT     (KEY_BYTES + 1)
#define NUMBER_DIGITS 12
#define FILLER_AT     (NUMBER_AT + NUMBER_DIGITS + 1)

/* The key must have been written to `key`: callers need both. */
static inline void payload_write(const struct bench *b, u64 number, const char key[KEY_BYTES],
                                 char payload[PAYLOAD_BYTES]) {
    memcpy(payload, key, KEY_BYTES);
    payload[KEY_BYTES] = ' ';
    for (int i = NUMBER_DIGITS - 1; i >= 0; i--, number /= 10) payload[NUMBER_AT + i] = (char)('0' + number % 10);
    memcpy(payload + FILLER_AT - 1, b->filler + FILLER_AT - 1, PAYLOAD_BYTES - FILLER_AT + 1);
}

static inline void filler_init(struct bench *b) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789__";
    for (size_t i = 0; i < PAYLOAD_BYTES; i++) b->filler[i] = letters[mix64(b->seed ^ i) & 63];
    b->filler[FILLER_AT - 1] = ' ';
}

/* A delivered payload must be one of ours, whole, not seen before. `key` may be empty where a system has none. */
static inline void payload_received(struct bench *b, slice key, slice payload) {
    char want_key[KEY_BYTES], want[PAYLOAD_BYTES];
    u64 number;
    if (payload.n != PAYLOAD_BYTES) fail(b, "delivered a payload of %zu bytes", payload.n);
    if (!slice_u64(slice_of(payload.p + NUMBER_AT, NUMBER_DIGITS), &number)) fail(b, "delivered a foreign payload");
    key_write(b, number, want_key);
    payload_write(b, number, want_key, want);
    if (memcmp(want, payload.p, PAYLOAD_BYTES) != 0)
        fail(b, "message %llu came back changed", (unsigned long long)number);
    if (key.n && !slice_eq(key, slice_of(want_key, KEY_BYTES)))
        fail(b, "message %llu came with another's key", (unsigned long long)number);
    if (number < b->first || number - b->first >= b->count)
        fail(b, "message %llu was sent by another run", (unsigned long long)number);
    u64 bit = number - b->first;
    if (b->seen[bit / 8] & (1u << bit % 8)) fail(b, "message %llu was delivered twice", (unsigned long long)number);
    b->seen[bit / 8] = (u8)(b->seen[bit / 8] | (1u << bit % 8));
}

/* ---- latency: 64 buckets for every power of two of nanoseconds, so a figure is off by at most 1.6 % */

static inline size_t histogram_index(u64 ns) {
    if (ns < HISTOGRAM_SUB) return (size_t)ns;
    int shift = 63 - __builtin_clzll(ns) - 6;
    return (size_t)(shift + 1) * HISTOGRAM_SUB + (size_t)((ns >> shift) - HISTOGRAM_SUB);
}

static inline void histogram_add(struct histogram *h, u64 ns) {
    h->count[histogram_index(ns)]++;
    h->total++;
    if (ns > h->max) h->max = ns;
}

static inline double histogram_us(const struct histogram *h, double quantile) {
    u64 rank = (u64)((double)h->total * quantile), before = 0;
    for (size_t i = 0; i < sizeof h->count / sizeof h->count[0]; i++) {
        before += h->count[i];
        if (before <= rank) continue;
        u64 low = i < HISTOGRAM_SUB ? i : (HISTOGRAM_SUB + i % HISTOGRAM_SUB) << (i / HISTOGRAM_SUB - 1);
        return (double)low / 1000;
    }
    return (double)h->max / 1000;
}

/* ---- requests in flight */

/* Called by a protocol after it appended a request. */
static inline void engine_sent(struct bench *b, struct conn *c, u32 kind, u64 first, u32 n) {
    u32 size = c->op_mask + 1;
    if (c->op_tail - c->op_head == size) {
        struct op *grown = mem_alloc(2 * (size_t)size * sizeof *grown);
        for (u32 i = 0; i < size; i++) grown[(c->op_head + i) & (2 * size - 1)] = c->ops[(c->op_head + i) & c->op_mask];
        mem_free(c->ops);
        c->ops = grown;
        c->op_mask = 2 * size - 1;
    }
    c->ops[c->op_tail++ & c->op_mask] = (struct op){b->now_ns, first, n, kind};
}

/* The request the next reply answers. */
static inline struct op *engine_next(const struct bench *b, struct conn *c) {
    if (c->op_head == c->op_tail) fail(b, "a reply nobody asked for");
    return &c->ops[c->op_head & c->op_mask];
}

/* Its reply has come and was right: `n` messages are finished by it (0 for a fetch). */
static inline void engine_done(struct bench *b, struct conn *c, u32 n) {
    struct op *op = engine_next(b, c);
    if (b->now_ns >= b->measure_ns && b->now_ns <= b->stop_ns) {
        b->counted += n;
        if (n) histogram_add(&b->latency, (u64)(b->now_ns - op->sent_ns));
    }
    b->done += n;
    b->end_ns = b->now_ns;
    c->op_head++;
}

/* The request no longer counts against the depth: at once for a send, when all it brought is here for a fetch. */
static inline void engine_slot_free(struct conn *c) {
    c->slots_used--;
}

/* The number of the first of the next `n` messages to send; to repeat, those of some request picked at random. */
static inline u64 engine_take(struct bench *b, u32 n) {
    u64 at = b->issued;
    b->issued += n;
    if (b->mode == MODE_DUPLICATE) at = b->known > n ? mix64(at) % (b->known / n) * n : 0;
    return b->first + at;
}

static inline bool may_issue(const struct bench *b) {
    if (b->now_ns >= b->stop_ns) return false;
    if (b->mode == MODE_CONSUME) return b->done < b->count;
    return b->count == 0 || b->issued < b->count;
}

/* ---- sockets */

static inline int connect_loopback(const struct bench *b) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((u16)b->port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to) != 0)
        fail(b, "connect to port %d: %s", b->port, strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

/* Blocking, for greetings: write what is in c->out, then read until at least `want` more bytes are in c->in. */
static inline void engine_flush_wait(struct bench *b, struct conn *c) {
    while (c->out_at < c->out.len) {
        ssize_t n = write(c->fd, c->out.p + c->out_at, c->out.len - c->out_at);
        if (n <= 0) fail(b, "write: %s", strerror(errno));
        c->out_at += (size_t)n;
    }
    c->out_at = c->out.len = 0;
}

static inline void engine_read_wait(struct bench *b, struct conn *c) {
    buf_grow(&c->in, 4096);
    ssize_t n = read(c->fd, c->in.p + c->in.len, c->in.cap - c->in.len);
    if (n <= 0) fail(b, "the server hung up during the greeting");
    c->in.len += (size_t)n;
}

static inline slice engine_unread(const struct conn *c) {
    return slice_of(c->in.p + c->in_at, c->in.len - c->in_at);
}

/* Blocking, for greetings: the next line without its CRLF, valid until the next read. */
static inline slice engine_line_wait(struct bench *b, struct conn *c) {
    for (;;) {
        slice rest = engine_unread(c);
        const char *end = rest.n ? memmem(rest.p, rest.n, "\r\n", 2) : NULL;
        if (end) {
            c->in_at += (size_t)(end - rest.p) + 2;
            return slice_of(rest.p, (size_t)(end - rest.p));
        }
        engine_read_wait(b, c);
    }
}

static inline void watch(struct bench *b, struct conn *c, bool write_too) {
    struct epoll_event e = {.events = EPOLLIN | (write_too ? EPOLLOUT : 0u), .data.ptr = c};
    epoll_ctl(b->epoll, EPOLL_CTL_MOD, c->fd, &e);
    c->want_write = write_too;
}

static inline void flush(struct bench *b, struct conn *c) {
    while (c->out_at < c->out.len) {
        ssize_t n = write(c->fd, c->out.p + c->out_at, c->out.len - c->out_at);
        if (n < 0 && errno == EAGAIN) {
            if (!c->want_write) watch(b, c, true);
            return;
        }
        if (n < 0) fail(b, "write: %s", strerror(errno));
        c->out_at += (size_t)n;
    }
    c->out_at = c->out.len = 0;
    if (c->want_write) watch(b, c, false);
}

static inline void take_replies(struct bench *b, struct conn *c) {
    for (;;) {
        slice rest = engine_unread(c);
        size_t used = rest.n ? b->protocol->reply(b, c, rest) : 0;
        if (used == 0) break;
        c->in_at += used;
    }
    if (c->in_at == 0) return;
    memmove(c->in.p, c->in.p + c->in_at, c->in.len - c->in_at);
    c->in.len -= c->in_at;
    c->in_at = 0;
}

static inline void receive(struct bench *b, struct conn *c) {
    for (;;) {
        buf_grow(&c->in, READ_BYTES);
        ssize_t n = read(c->fd, c->in.p + c->in.len, READ_BYTES);
        if (n < 0 && errno == EAGAIN) return;
        if (n <= 0) fail(b, "the server closed the connection%s%s", n < 0 ? ": " : "", n < 0 ? strerror(errno) : "");
        c->in.len += (size_t)n;
        take_replies(b, c);
        if (n < READ_BYTES) return;
    }
}

static inline void top_up(struct bench *b, struct conn *c) {
    while (c->slots_used < (u32)b->depth && may_issue(b)) {
        c->slots_used++;
        b->protocol->issue(b, c);
    }
}

/* ---- a run */

static inline void open_all(struct bench *b) {
    b->epoll = epoll_create1(EPOLL_CLOEXEC);
    b->conn = mem_zalloc((size_t)b->conns * sizeof *b->conn);
    for (int i = 0; i < b->conns; i++) {
        struct conn *c = &b->conn[i];
        c->id = (u32)i;
        c->op_mask = 255;
        c->ops = mem_alloc((c->op_mask + 1) * sizeof *c->ops);
        c->fd = connect_loopback(b);
        if (b->protocol->hello) b->protocol->hello(b, c);
        fcntl(c->fd, F_SETFL, O_NONBLOCK);
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
        if (epoll_ctl(b->epoll, EPOLL_CTL_ADD, c->fd, &e) != 0) fail(b, "epoll: %s", strerror(errno));
    }
}

static inline bool all_answered(const struct bench *b) {
    for (int i = 0; i < b->conns; i++)
        if (b->conn[i].op_head != b->conn[i].op_tail) return false;
    return true;
}

static inline bool finished(const struct bench *b) {
    if (b->mode == MODE_CONSUME && b->done >= b->count) return true;
    return !may_issue(b) && all_answered(b);
}

static inline void turn(struct bench *b) {
    struct epoll_event event[64];
    int n = epoll_wait(b->epoll, event, 64, 30000);
    if (n == 0) fail(b, "no reply for 30 s; %llu messages done", (unsigned long long)b->done);
    for (int i = 0; i < n; i++) {
        struct conn *c = event[i].data.ptr;
        b->now_ns = nanoseconds();
        if (event[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(b, c);
        top_up(b, c);
        flush(b, c);
    }
}

static inline void run(struct bench *b) {
    bool timed = b->seconds > 0;
    b->start_ns = b->now_ns = nanoseconds();
    b->stop_ns = timed ? b->start_ns + (i64)(b->seconds * 1e9) : INT64_MAX;
    b->measure_ns = timed && b->count == 0 ? b->start_ns + (i64)(b->seconds * 1e8) : b->start_ns;
    for (int i = 0; i < b->conns; i++) {
        top_up(b, &b->conn[i]);
        flush(b, &b->conn[i]);
    }
    while (!finished(b)) turn(b);
}

static inline double cpu_seconds(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static inline void print_result(const struct bench *b, double cpu) {
    static const char *const mode_name[] = {"send", "batch", "duplicate", "consume"};
    i64 until = b->end_ns < b->stop_ns ? b->end_ns : b->stop_ns;
    double span = (double)(until - b->measure_ns) / 1e9, whole = (double)(b->end_ns - b->start_ns) / 1e9;
    printf("{\"system\":\"%s\",\"mode\":\"%s\",\"rate\":%.0f,\"messages\":%llu,\"seconds\":%.3f,"
           "\"p50_us\":%.1f,\"p99_us\":%.1f,\"max_us\":%.1f,\"client_cpu\":%.2f,\"idle_fetches\":%llu}\n",
           b->protocol->name, mode_name[b->mode], span > 0 ? (double)b->counted / span : 0, (unsigned long long)b->done,
           whole, histogram_us(&b->latency, 0.50), histogram_us(&b->latency, 0.99), (double)b->latency.max / 1000,
           whole > 0 ? cpu / whole : 0, (unsigned long long)b->idle_fetches);
}

static inline bool parse_mode(const char *text, enum mode *mode) {
    static const char *const name[] = {"send", "batch", "duplicate", "consume"};
    for (size_t i = 0; i < sizeof name / sizeof name[0]; i++)
        if (strcmp(text, name[i]) == 0) {
            *mode = (enum mode)i;
            return true;
        }
    return false;
}

static inline void parse_options(struct bench *b, int argc, char **argv) {
    static const struct option option[] = {{"port", 1, NULL, 'p'},  {"mode", 1, NULL, 'm'},  {"conns", 1, NULL, 'c'},
                                           {"depth", 1, NULL, 'd'}, {"batch", 1, NULL, 'b'}, {"seconds", 1, NULL, 's'},
                                           {"seed", 1, NULL, 'r'},  {"first", 1, NULL, 'f'}, {"count", 1, NULL, 'n'},
                                           {"known", 1, NULL, 'k'}, {"queue", 1, NULL, 'q'}, {"kind", 1, NULL, 't'},
                                           {NULL, 0, NULL, 0}};
    for (int c; (c = getopt_long(argc, argv, "", option, NULL)) != -1;) {
        unsigned long long v = optarg ? strtoull(optarg, NULL, 10) : 0;
        switch (c) {
        case 'p':
            b->port = (int)v;
            break;
        case 'm':
            if (!parse_mode(optarg, &b->mode)) fail(b, "no mode %s", optarg);
            break;
        case 'c':
            b->conns = (int)v;
            break;
        case 'd':
            b->depth = (int)v;
            break;
        case 'b':
            b->batch = (u32)v;
            break;
        case 's':
            b->seconds = strtod(optarg, NULL);
            break;
        case 'r':
            b->seed = v;
            break;
        case 'f':
            b->first = v;
            break;
        case 'n':
            b->count = v;
            break;
        case 'k':
            b->known = v;
            break;
        case 'q':
            b->queue = optarg;
            break;
        case 't':
            b->kind = optarg;
            break;
        default:
            exit(2);
        }
    }
    if (b->port <= 0 || b->conns <= 0 || b->depth <= 0 || b->batch == 0) fail(b, "port, conns, depth, batch: positive");
    if (b->known > b->batch) b->known -= b->known % b->batch; /* so that a request's keys are in a row */
    if (b->mode == MODE_DUPLICATE && b->known == 0) fail(b, "duplicate needs --known");
    if (b->mode == MODE_CONSUME && b->count == 0) fail(b, "consume needs --count");
    if (b->seconds <= 0 && b->count == 0) fail(b, "needs --seconds or --count");
}

static inline int bench_main(const struct protocol *protocol, int argc, char **argv) {
    static struct bench b = {.conns = 8, .depth = 64, .batch = 100, .seed = 1, .queue = "bench", .kind = "plain"};
    b.protocol = protocol;
    parse_options(&b, argc, argv);
    filler_init(&b);
    if (b.mode == MODE_CONSUME) b.seen = mem_zalloc((size_t)(b.count / 8 + 1));
    open_all(&b);
    double cpu = cpu_seconds();
    run(&b);
    print_result(&b, cpu_seconds() - cpu);
    if (b.mode == MODE_CONSUME && b.done < b.count) fail(&b, "consumed only %llu", (unsigned long long)b.done);
    return 0;
}

#endif
