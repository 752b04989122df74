/* Ingest: webhooks come in by POST /in/{source} and become messages of the source's queue.
 *
 * In this order: size, signature over the raw bytes, content type, what it is (a CloudEvent or plain), schema, key. What is not
 * verified is only counted. The key is the queue's template; else a CloudEvent's source and id; else what the sender
 * calls the event (webhook-id, Stripe's id, GitHub's delivery), behind the source's name. An Idempotency-Key is not looked at:
 * whoever can set a header is not who signed it.
 *
 * Senders repeat what is not answered with a 2xx, for days or not at all. So a 2xx means: it is durable here, as a message, as
 * a repeat of one, or as a copy in the dead lane that waits for a person. */
#ifndef HAPAX_BROKER_INGEST_H
#define HAPAX_BROKER_INGEST_H

#include "net/http.h"

struct broker;
struct config;
struct ingest;

#define INGEST_LOOKS 61u /* the last ten minutes, and the one before them */

/* What became of an arrival. */
#define INGEST_LIST(X)                                                                                                 \
    X(ACCEPTED, "accepted")                                                                                            \
    X(DUPLICATE, "duplicate")                                                                                          \
    X(HELD, "held")           /* in conflict, for a person to decide */                                                \
    X(CONFLICT, "conflict")   /* with what stands under its key; a copy is kept */                                     \
    X(REFUSED, "refused")     /* failed the schema or made no key; a copy is kept */                                   \
    X(LOST, "lost")           /* one of these two, and no copy could be kept */                                        \
    X(SIGNATURE, "signature") /* not verified */                                                                       \
    X(MEDIA, "media")         /* a type or coding that is not taken */                                                 \
    X(MALFORMED, "malformed") /* not what it says it is, or without a key */                                           \
    X(TOO_LARGE, "too_large")                                                                                          \
    X(PUT_OFF, "put_off") /* to be sent again: no room, over a limit */
#define INGEST_ENUM(name, text) INGEST_##name,
enum ingest_outcome { INGEST_LIST(INGEST_ENUM) INGEST_OUTCOMES };
#undef INGEST_ENUM
const char *ingest_outcome_text(enum ingest_outcome o);

struct ingest *ingest_new(void);
void ingest_free(struct ingest *g);
void ingest_configure(struct broker *b, const struct config *config);
/* How much of a body is taken. HTTP_BODY_UNWANTED: there is no such source. */
u64 ingest_body_limit(struct broker *b, const struct http_request *head, slice source);

/* Of a source, since the process began, by its number; sources that have gone from the config keep theirs. */
struct ingest_counts {
    slice name;
    u64 at[INGEST_OUTCOMES];
    struct {
        u64 all, refused;
    } before[INGEST_LOOKS]; /* as they stood at the last looks, by their numbers */
    u32 looks;
};
/* Every ten seconds, for the alert: the share of what source i of the config sent in the last ten minutes that was refused, 0 if
 * it sent little. false: there is no such source. */
bool ingest_look(struct broker *b, u32 i, slice *queue, double *refused);
u32 ingest_count(const struct broker *b);
const struct ingest_counts *ingest_counts_at(const struct broker *b, u32 i);

#endif
