/* A load generator for a running broker: one thread, epoll, requests rendered once and patched. It is the bench verb's
 * engine, free of flags and printing, so that a test program can drive it too. */
#ifndef HAPAX_CLI_LOAD_H
#define HAPAX_CLI_LOAD_H

#include "base/base.h"

#define LOAD_KEY_BYTES 36u

enum load_mode {
    LOAD_SINGLE,  /* one send a request, pipelined */
    LOAD_BATCH,   /* NDJSON batches */
    LOAD_DUP,     /* single sends of keys the broker knows already; sends them once before the clock starts */
    LOAD_CONSUME, /* receive many, ack them in one array */
};

struct load_options {
    const char *host, *port; /* for getaddrinfo */
    const char *authority;   /* for the Host field */
    const char *prefix;      /* before /v1; "" for none */
    const char *queue;       /* percent-encoded */
    enum load_mode mode;
    u32 connections, depth; /* depth: requests under way on each */
    u32 payload;            /* bytes */
    u32 lines;              /* of a batch, and most messages of a receive */
    i64 for_ms;             /* stop sending after this long; 0: no limit */
    u64 count;              /* or after this many messages; 0: no limit */
    u32 known;              /* LOAD_DUP: how many keys are repeated */
    u64 first;              /* LOAD_SINGLE, LOAD_BATCH: number of the first key; go on from result.next */
    char run[20];           /* the first 19 characters of every key: what makes this run's keys new */
};

#define LOAD_BUCKETS (64u * 32u)

struct load_result {
    u64 messages; /* answered as they should be */
    u64 requests;
    u64 wrong; /* answered otherwise, in messages */
    u64 next;
    char wrong_first[256]; /* the first of those answers */
    i64 took_us;
    u64 histogram[LOAD_BUCKETS]; /* of a request's time, see load_percentile_us */
};

/* Fills run with fresh random characters. */
void load_run_name(char run[20]);
/* ST_IO: a connection could not be made or was lost; ST_TIMEOUT: no answer for 30 s. Wrong answers are no error. */
hx_st load_run(const struct load_options *options, struct load_result *result, struct errbuf *err);
/* p in (0, 1]; the upper edge of the bucket, at most 3 % above the true value. */
double load_percentile_us(const struct load_result *result, double p);

#endif
