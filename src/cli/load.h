/* A load generator: one thread, epoll, pipelined connections. `hapax bench` drives a broker with it; the benchmark's clients
 * (tests/bench) drive everything with it, so that what decides a figure is the same for all systems: which keys and payloads
 * are sent, how many requests are under way, when counting starts and stops, how latency is taken, what is checked.
 *
 * A protocol says how to write one request and how to take one reply. Messages are numbered. Number i has a key of 36
 * characters that looks like a UUID, a function of seed and number that ends with the number, and a payload that starts with
 * the key: whoever holds either can tell which message it is, and that it came exactly once can be proven.
 *
 *   send       new keys
 *   batch      the same, `batch` messages a request
 *   duplicate  keys of the `known` ones from `first` on, picked at random: the server must say that it knows them
 *   consume    take messages, `batch` a fetch, and settle each: those `count` from `first` on, each once; or, without a
 *              count, whatever there is until there is no more
 *
 * A timed run counts what is answered between the end of the warm-up (a tenth of the time) and its end; what is under way then
 * is still awaited and checked. The first answer that is not the expected one ends the run. */
#ifndef HAPAX_CLI_LOAD_H
#define HAPAX_CLI_LOAD_H

#include <sys/types.h>

#include "base/base.h"

#define LOAD_KEY_BYTES 36u

enum load_mode { LOAD_SEND, LOAD_BATCH, LOAD_DUPLICATE, LOAD_CONSUME };

struct load_options {
    const char *host, *port;    /* for getaddrinfo */
    const char *authority;      /* for the Host field */
    struct load_tls *tls;       /* NULL: plain */
    const char *fields;         /* more header lines, each with its line end before it; NULL: none */
    const char *prefix, *queue; /* of the path: before /v1, "" for none; percent-encoded */
    enum load_mode mode;
    u32 connections, depth; /* depth: requests under way on each */
    u32 payload;            /* bytes */
    u32 batch;              /* messages of a batch, and at most of a fetch */
    i64 for_ms;             /* stop asking after this long; 0: no limit */
    u64 count;              /* or after this many messages; 0: no limit */
    u64 seed, first, known; /* known: a multiple of `batch` where that is sent */
    /* What is sent instead of the usual payload, and whether the server has to find the key in it. */
    void (*fill)(const char key[LOAD_KEY_BYTES], char *payload, u32 bytes);
    bool keyless;
};

/* 64 buckets for every power of two of nanoseconds, so a figure is off by at most 1.6 %. */
#define LOAD_BUCKETS 64u
struct load_result {
    u64 messages, counted; /* answered; of these, while it was measured */
    u64 requests, idle_fetches;
    double seconds, measured_seconds;
    u64 latency[LOAD_BUCKETS * 58u], latencies, latency_max_ns; /* of requests that messages were finished by */
};

/* One request under way. Replies come in order, so a connection's requests are a queue. */
struct load_op {
    i64 sent_ns;
    u64 first; /* number of the first message in it */
    u32 n;     /* messages in it */
    u32 kind;  /* the protocol's own */
};

struct load_conn {
    int fd;
    void *secure; /* load_tls's; NULL: plain */
    u32 id;
    bool want_write, dry; /* dry: a fetch brought nothing */
    struct buf in, out;
    size_t in_at, out_at; /* consumed from in, written from out */
    struct load_op *ops;
    u32 op_head, op_tail, op_mask; /* free-running positions in the ring */
    u32 slots_used;                /* of `depth` */
    void *state;                   /* the protocol's own */
};

struct load;
struct load_protocol {
    const char *name;
    void (*hello)(struct load *l, struct load_conn *c);                /* with the socket still blocking; may be NULL */
    void (*issue)(struct load *l, struct load_conn *c);                /* append one request to c->out */
    size_t (*reply)(struct load *l, struct load_conn *c, slice bytes); /* take one: its length, 0 if not whole yet */
};

struct load {
    const struct load_protocol *protocol;
    struct load_options o;
    struct load_result *r;
    hx_st status;
    struct errbuf *err;
    int epoll;
    struct load_conn *conns;
    i64 now_ns, start_ns, measure_ns, stop_ns, end_ns;
    u64 issued;
    u8 *seen; /* consume: one bit a message */
    char *filler;
    struct buf scratch; /* the protocol's own */
};

extern const struct load_protocol load_hapax; /* written against the HTTP contract alone */

/* ST_IO: a connection could not be made or was lost; ST_TIMEOUT: no answer for 30 s; ST_INVALID: a wrong answer. */
hx_st load_run(const struct load_protocol *protocol, const struct load_options *options, struct load_result *result,
               struct errbuf *err);
double load_percentile_us(const struct load_result *result, double p); /* p in [0, 1) */
double load_rate(const struct load_result *result);                    /* messages a second, while it was measured */

/* ---- load_tls.c */

struct load_tls_options {
    const char *host;                           /* whose certificate it must be; borrowed */
    const char *ca_file, *cert_file, *key_file; /* as of hx_options */
};
struct load_tls *load_tls_new(const struct load_tls_options *o, struct errbuf *err); /* NULL: *err says why */
void load_tls_free(struct load_tls *t);
/* With the socket still blocking. NULL: *err says why. load_tls_end ends it; the first one's session is resumed by the next run. */
void *load_tls_begin(struct load_tls *t, int fd, struct errbuf *err);
void load_tls_end(struct load_tls *t, void *secure);
ssize_t load_tls_send(void *secure, const void *p, size_t n); /* as send and recv */
ssize_t load_tls_recv(void *secure, void *p, size_t n);

/* ---- for protocols */

/* Ends the run; the first reason counts. Returns 0, for `reply` to return. */
size_t load_fail(struct load *l, hx_st st, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* The number of the first of the next `n` messages to send; to repeat, those of some request picked at random. */
u64 load_take(struct load *l, u32 n);
void load_key(const struct load *l, u64 number, char key[LOAD_KEY_BYTES]);
void load_payload(const struct load *l, const char key[LOAD_KEY_BYTES], char *payload);
/* A request was appended. */
void load_sent(struct load *l, struct load_conn *c, u32 kind, u64 first, u32 n);
/* The request the next reply answers; NULL, and the run ends, if nobody asked. */
const struct load_op *load_next(struct load *l, struct load_conn *c);
/* Its reply has come and was right: `n` messages are finished by it (0 for a fetch). */
void load_done(struct load *l, struct load_conn *c, u32 n);
/* It no longer counts against the depth: at once for a send, when all it brought is here for a fetch. */
static inline void load_slot_free(struct load_conn *c) {
    c->slots_used--;
}
/* A delivered message must be one of ours, whole, not seen before. `key` may be empty where a system has none. */
bool load_received(struct load *l, slice key, slice payload);
/* A fetch brought nothing. */
void load_idle(struct load *l, struct load_conn *c);

#endif
