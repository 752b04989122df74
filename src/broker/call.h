/* A call: one request being answered, and the memory that is reused from one to the next. */
#ifndef HAPAX_BROKER_CALL_H
#define HAPAX_BROKER_CALL_H

#include "broker/ahead.h"
#include "broker/problem.h"
#include "config/view.h"
#include "net/http.h"

struct broker;
struct caller;

struct call {
    struct broker *b;
    void *conn;
    void **user;
    const struct http_request *req;
    const struct caller *who;
    bool plain;      /* the path has nothing to decode */
    slice arg[2];    /* decoded path arguments: queue, key or id */
    struct buf args; /* their memory */
    struct failure failure;
};

/* Where the last request went. Most ask for what the one before asked for. */
#define LAST_PATH_BYTES 120u
struct last_route {
    const struct route *route; /* NULL: none yet */
    slice args[2];             /* in `path` */
    size_t path_bytes;
    char path[LAST_PATH_BYTES];
};

/* What a large payload's fingerprint is by the rules of this version. */
#define REPRINTS 64u
struct reprint {
    u64 seq, print; /* of its message */
    u32 version;    /* rules_version; 0: none */
};

/* Valid until the next request or answer; what outlives a call is copied. */
struct scratch {
    struct last_route last;
    struct buf body, fields;              /* of the reply being made */
    struct payload_view view, other_view; /* of the payload being admitted; of the one it is compared with */
    struct buf key, group;                /* what templates made of the payload being admitted */
    struct derived derived;               /* and of those of the next requests, until these have come */
    struct buf scoped;                    /* a key as it is stored */
    struct buf history;                   /* of a message as it was before it was leased */
    bool drill;                           /* this request's sends try whether repeats are known */
    u64 compare_left;                     /* of payloads, in the pages of this request */
    struct reprint reprints[REPRINTS];    /* outlive it: whoever conflicts with a message once does so again */
};
struct scratch *scratch_new(void);
void scratch_free(struct scratch *s);

/* Sets the call's failure; returns false. */
bool fail(struct call *c, enum problem p, const char *fmt, ...) PRINTF_LIKE(3, 4);
void reply_failure(struct call *c);
#define NOT_KEPT "Cache-Control: no-store\r\n"
void reply_json(struct call *c, u16 status, slice body);
/* The reply waits for every record appended so far. receipt: of the leases it hands out, or 0. */
void reply_with(struct broker *b, void *conn, u16 status, slice content_type, slice fields, slice body, u64 receipt);
/* 200 with JSON of some size, made behind HTTP_HEAD_ROOM bytes: handed over rather than copied. */
void reply_made(struct broker *b, void *conn, struct buf *made, u64 receipt);
/* The only way a reply goes to the network. */
void respond(struct broker *b, void *conn, const struct http_reply *reply);
/* The same for one that saw only what is below a position. */
void reply_after(struct broker *b, void *conn, u64 after, u16 status, slice content_type, slice fields, slice body,
                 u64 receipt);
/* A request that waited, answered with a problem. */
void reply_late_failure(struct broker *b, void *conn, enum problem p, const char *detail);

#endif
