/* What the benchmark's clients share beside the load generator (src/cli/load.h): options, the greeting of a protocol, the result
 * as one JSON line on stdout. Anything that is not as expected ends the program with status 1. */
#ifndef HAPAX_BENCH_CLIENT_H
#define HAPAX_BENCH_CLIENT_H

#include "cli/load.h"

#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define PAYLOAD_BYTES 200

_Noreturn static inline void fail(const struct load *l, const char *fmt, ...) PRINTF_LIKE(2, 3);
_Noreturn static inline void fail(const struct load *l, const char *fmt, ...) {
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    fprintf(stderr, "bench %s: %s\n", l->protocol->name, text);
    exit(1);
}

static inline const struct load_op *next_op(struct load *l, struct load_conn *c) {
    const struct load_op *op = load_next(l, c);
    if (!op) fail(l, "%s", l->err->text);
    return op;
}

/* ---- greetings: the socket blocks */

static inline void flush_wait(struct load *l, struct load_conn *c) {
    while (c->out_at < c->out.len) {
        ssize_t n = write(c->fd, c->out.p + c->out_at, c->out.len - c->out_at);
        if (n <= 0) fail(l, "write: %s", strerror(errno));
        c->out_at += (size_t)n;
    }
    c->out_at = c->out.len = 0;
}

static inline void read_wait(struct load *l, struct load_conn *c) {
    buf_grow(&c->in, 4096);
    ssize_t n = read(c->fd, c->in.p + c->in.len, c->in.cap - c->in.len);
    if (n <= 0) fail(l, "the server hung up during the greeting");
    c->in.len += (size_t)n;
}

static inline slice unread(const struct load_conn *c) {
    return slice_of(c->in.p + c->in_at, c->in.len - c->in_at);
}

/* The next line without its CRLF, valid until the next read. */
static inline slice line_wait(struct load *l, struct load_conn *c) {
    for (;;) {
        slice rest = unread(c);
        const char *end = rest.n ? memmem(rest.p, rest.n, "\r\n", 2) : NULL;
        if (end) {
            c->in_at += (size_t)(end - rest.p) + 2;
            return slice_of(rest.p, (size_t)(end - rest.p));
        }
        read_wait(l, c);
    }
}

/* ---- a run */

static inline double cpu_seconds(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static const char *const mode_names[] = {"send", "batch", "duplicate", "consume"};

static inline void print_result(const char *system, enum load_mode mode, const struct load_result *r, double cpu) {
    printf("{\"system\":\"%s\",\"mode\":\"%s\",\"rate\":%.0f,\"messages\":%llu,\"seconds\":%.3f,"
           "\"p50_us\":%.1f,\"p99_us\":%.1f,\"max_us\":%.1f,\"client_cpu\":%.2f,\"idle_fetches\":%llu}\n",
           system, mode_names[mode], load_rate(r), (unsigned long long)r->messages, r->seconds,
           load_percentile_us(r, 0.50), load_percentile_us(r, 0.99), (double)r->latency_max_ns / 1000,
           r->seconds > 0 ? cpu / r->seconds : 0, (unsigned long long)r->idle_fetches);
}

static inline enum load_mode mode_named(const char *text) {
    for (size_t i = 0; i < sizeof mode_names / sizeof mode_names[0]; i++)
        if (strcmp(text, mode_names[i]) == 0) return (enum load_mode)i;
    fprintf(stderr, "no mode %s\n", text);
    exit(2);
}

/* The first connection's session is resumed by all others. */
static inline struct load_tls *tls_trusting(const char *ca_file) {
    struct errbuf err = {{0}};
    struct load_tls *tls = load_tls_new(&(struct load_tls_options){.host = "127.0.0.1", .ca_file = ca_file}, &err);
    if (tls) return tls;
    fprintf(stderr, "%s: %s\n", ca_file, err.text);
    exit(2);
}

static inline const char *token_field(const char *token) {
    static char field[128];
    snprintf(field, sizeof field, "\r\nAuthorization: Bearer %s", token);
    return field;
}

/* *kind: of payload, for a client that has several. */
static inline void parse_options(struct load_options *o, const char **kind, int argc, char **argv) {
    static const struct option option[] = {{"port", 1, NULL, 'p'},   {"mode", 1, NULL, 'm'},  {"conns", 1, NULL, 'c'},
                                           {"depth", 1, NULL, 'd'},  {"batch", 1, NULL, 'b'}, {"seconds", 1, NULL, 's'},
                                           {"seed", 1, NULL, 'r'},   {"first", 1, NULL, 'f'}, {"count", 1, NULL, 'n'},
                                           {"known", 1, NULL, 'k'},  {"queue", 1, NULL, 'q'}, {"kind", 1, NULL, 't'},
                                           {"cacert", 1, NULL, 'C'}, {"token", 1, NULL, 'T'}, {NULL, 0, NULL, 0}};
    for (int c; (c = getopt_long(argc, argv, "", option, NULL)) != -1;) {
        unsigned long long v = optarg ? strtoull(optarg, NULL, 10) : 0;
        switch (c) {
        case 'p':
            o->port = optarg;
            break;
        case 'm':
            o->mode = mode_named(optarg);
            break;
        case 'c':
            o->connections = (u32)v;
            break;
        case 'd':
            o->depth = (u32)v;
            break;
        case 'b':
            o->batch = (u32)v;
            break;
        case 's':
            o->for_ms = (i64)(strtod(optarg, NULL) * 1000);
            break;
        case 'r':
            o->seed = v;
            break;
        case 'f':
            o->first = v;
            break;
        case 'n':
            o->count = v;
            break;
        case 'k':
            o->known = v;
            break;
        case 'q':
            o->queue = optarg;
            break;
        case 't':
            *kind = optarg;
            break;
        case 'T':
            o->fields = token_field(optarg);
            break;
        case 'C':
            o->tls = tls_trusting(optarg);
            break;
        default:
            exit(2);
        }
    }
    if (o->known > o->batch) o->known -= o->known % o->batch; /* so that a request's keys are in a row */
    bool enough = o->mode == LOAD_CONSUME ? o->count > 0 : o->mode == LOAD_DUPLICATE ? o->known > 0 : true;
    if (!o->port || !o->connections || !o->depth || !o->batch || !enough || (!o->for_ms && !o->count)) {
        fprintf(stderr, "--port, and --seconds or --count; duplicate needs --known, consume --count\n");
        exit(2);
    }
}

static inline struct load_options bench_options(const char **kind, int argc, char **argv) {
    struct load_options o = {.host = "127.0.0.1",
                             .authority = "127.0.0.1",
                             .prefix = "",
                             .queue = "bench",
                             .connections = 8,
                             .depth = 64,
                             .payload = PAYLOAD_BYTES,
                             .batch = 100,
                             .seed = 1};
    parse_options(&o, kind, argc, argv);
    return o;
}

static inline int bench_run(const struct load_protocol *protocol, const struct load_options *o) {
    static struct load_result r;
    struct errbuf err = {{0}};
    double cpu = cpu_seconds();
    if (load_run(protocol, o, &r, &err) != ST_OK) {
        fprintf(stderr, "bench %s: %s\n", protocol->name, err.text);
        return 1;
    }
    load_tls_free(o->tls);
    print_result(protocol->name, o->mode, &r, cpu_seconds() - cpu);
    return 0;
}

static inline int bench_main(const struct load_protocol *protocol, int argc, char **argv) {
    const char *kind = "plain";
    struct load_options o = bench_options(&kind, argc, argv);
    return bench_run(protocol, &o);
}

#endif
