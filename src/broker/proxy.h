/* Proxies: ANY /gate/NAME/... goes to the upstream NAME stands for, and however often a call with a key comes, once.
 *
 * A call with a key is a message of the queue gate:NAME under SCOPE/KEY. It is admitted, and leased in the same turn by the broker
 * itself; the request leaves when that is durable (P1), and the answer when its settlement is. The settlement is what is
 * answered from then on: status, fields and body as the upstream gave them. Whoever comes while it runs waits for it.
 *
 * What the upstream has certainly not done, or may be asked again (`store: final`), frees the key: the lease is given back and the
 * key forgotten in one turn. So a message that waits in such a queue means that nobody works on it and nothing was sent, and it
 * is forgotten wherever it is met: after a crash between two records, an operator's `retry`, a look-up that found nothing.
 *
 * Whatever else ends without a whole answer is unknown (P5): the message is held, or looked up (`reconcile`), and nothing goes to
 * the upstream under its key before somebody has said what became of it. A lease that nobody in this process works on was a former
 * process's: it is unknown as soon as somebody asks, or when it runs out.
 *
 * Calls without a key, and those that change nothing (GET, HEAD, OPTIONS), pass through: nothing is kept of them. */
#ifndef HAPAX_BROKER_PROXY_H
#define HAPAX_BROKER_PROXY_H

#include "net/http.h"

struct broker;
struct config;
struct gates;

/* What became of a call. */
#define GATE_LIST(X)                                                                                                   \
    X(EXECUTED, "executed")           /* answered by the upstream, and stored */                                       \
    X(FREED, "freed")                 /* answered by the upstream with a status that frees the key */                  \
    X(TOO_LARGE, "too_large")         /* answered with more than is kept */                                            \
    X(UNKNOWN, "unknown")             /* sent, and no whole answer came */                                             \
    X(UNREACHABLE, "unreachable")     /* nothing was sent */                                                           \
    X(REPLAYED, "replayed")           /* a repeat: got what is stored */                                               \
    X(JOINED, "joined")               /* a repeat that waited: got what the first got, which was not stored */         \
    X(IN_PROGRESS, "in_progress")     /* a repeat, while the first is under way */                                     \
    X(STILL_UNKNOWN, "still_unknown") /* a repeat, before anybody has said what became of the first */                 \
    X(CONFLICT, "conflict")                                                                                            \
    X(PASSED, "passed") /* without a key */                                                                            \
    X(REFUSED, "refused")
#define GATE_ENUM(name, text) GATE_##name,
enum gate_result { GATE_LIST(GATE_ENUM) GATE_RESULTS };
#undef GATE_ENUM
const char *gate_result_text(enum gate_result r);

struct gates *gates_new(void);
void gates_free(struct broker *b);
void gates_configure(struct broker *b, const struct config *config);
/* How much of a body is taken. HTTP_BODY_UNWANTED: there is no such proxy, or not for this caller. */
u64 proxy_body_limit(struct broker *b, struct http_request *head, slice name);

/* There is something to hand out in a queue; it is looked at when the turn ends. */
void gates_ready(struct broker *b, u16 queue);
void gates_renew(struct broker *b); /* with the clock, and before it runs leases out: those of calls under way go on */
void gates_run(struct broker *b);   /* at the end of a turn */

/* Of a proxy, since the process began; proxies that have gone from the config keep theirs. */
struct gate_counts {
    slice name;
    u64 at[GATE_RESULTS];
};
u32 gate_count(const struct broker *b);
const struct gate_counts *gate_counts_at(const struct broker *b, u32 i);

#endif
