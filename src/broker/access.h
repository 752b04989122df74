/* Access: who asks, and what they may do.
 *
 * A request shows a token (Authorization: Bearer hx_...) or none. Of a token only its SHA-256 is known, from the config file. To
 * compute one for every request would cost a tenth of what a send costs, so a token that was found right is known again by a
 * keyed hash of its text: two times NH (Black et al., UMAC) over its bytes, under keys drawn at start that nobody is ever shown.
 * Another text meets the same 256 bits with a chance below 2^-120, however it was chosen. Neither the text nor anything it could
 * be made of again is kept.
 *
 * What is compared with a secret is compared to its last byte, and a wrong token costs the same whatever it is: a miss in the
 * small table, one SHA-256, and a look at one bucket of a table whose buckets all have the same number of places.
 *
 * Whoever has no right at all on a queue is told what they would be told if it were not there (404); whoever has some, which one
 * is missing (403). */
#ifndef HAPAX_BROKER_ACCESS_H
#define HAPAX_BROKER_ACCESS_H

#include "config/config.h"

struct broker;
struct call;
struct access;
struct http_request;

#define CALLER_OWN UINT32_MAX /* this process's own */

/* A token in force, by one of its texts; or the anonymous one, of a call without any. Stands until the next reload. */
struct caller {
    slice name;
    slice tenant, prefix; /* empty: nobody's; prefix: of the queues it is confined to */
    u32 number;           /* of the token, from 1 in the file's order; 0: anonymous, or no right token; CALLER_OWN */
    const struct grants *patterns; /* on some queues */
    const u8 *hash;                /* NULL: without a token */
    i64 expires_ms;
    u8 bare;     /* rights on all queues (of its tenant) */
    u8 anywhere; /* rights it has on some queue at least */
    struct caller_memo *memo;
};

/* own: a token beside those of the config, in force whatever that says; borrowed. NULL: none. */
struct access *access_new(const struct token_config *own);
void access_free(struct access *a);
/* Another config is in force: callers of before are no more, and what they wait for ends unless they may still ask for it. */
void access_configure(struct broker *b, const struct config *config);
/* Nobody is asked for anything: there are no tokens, and `anonymous` says nothing. */
bool access_open(const struct broker *b);
/* May a call without a token do anything at all? */
bool access_anonymous(const struct broker *b);

/* Who shows this. Never NULL: a wrong token makes a caller who may do nothing. */
const struct caller *access_caller(struct broker *b, slice authorization);
const struct caller *access_by_token(struct broker *b, slice token); /* the bare token; empty: none is shown */

/* Whom a caller of before is now: after a reload, or when time has passed. */
const struct caller *access_again(struct broker *b, const struct caller *who);
/* With the clock: a token may have expired while somebody waits by it. */
void access_run(struct broker *b);
/* A request was answered with 401, with 403 `forbidden`. */
void access_refused(struct call *c);
void access_forbidden(struct call *c);

enum refused { REFUSED_MISSING, REFUSED_WRONG, REFUSED_EXPIRED, REFUSED_COUNT };
u64 access_refusals(const struct broker *b, enum refused why);

/* Is it the process's own token? Also where nobody is asked for one. */
bool access_own(struct broker *b, slice authorization);

/* Quietly, for filtering. */
bool caller_may(const struct caller *who, enum right r, slice queue);
bool caller_sees(const struct caller *who, slice queue); /* has any right on it */
/* On the process as a whole: a bare right, and no tenant's. */
bool caller_may_everywhere(const struct caller *who, enum right r);

/* May the request being decided see what messages of this queue carry, and what became of them? Beyond a request: yes. */
bool shows_payload(const struct broker *b, slice queue);
bool shows_result(const struct broker *b, slice queue);

/* Else the call's failure is set: 401, 403, or 404 as of a queue that is not there. */
bool may(struct call *c, enum right r, slice queue);
/* The same where no queue is named: the right on some queue, and the answer is about those; on the process. */
bool may_somewhere(struct call *c, enum right r);
bool may_everywhere(struct call *c, enum right r);

#endif
