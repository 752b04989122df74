/* libhapax: the C client of Hapax, an exactly-once queue. This header is its reference manual.
 *
 * The idea in four lines. A producer sends a payload under a business key; however often the key comes back, the
 * broker admits it once and tells every duplicate what became of the original. A consumer works under a lease proven
 * by a token. Both make every call repeatable: this library repeats a call whose answer was lost, with the same key or
 * token, until it has an answer or its time is up. Only then does it say "unknown".
 *
 * Conventions, valid for everything below unless a function says otherwise:
 *
 *  Strings     are NUL-terminated UTF-8. Payloads and results are bytes (hx_bytes), with a content type.
 *  Time        is in milliseconds; points in time are Unix time. 0 in an option means "the default".
 *  Options     are plain structs: zero-initialise, set what you need. Arguments are copied or only used during the call.
 *  Results     that carry memory have a ..._free function. It takes what the call filled in (also after a failure) and a
 *              zeroed struct; it never frees the struct itself. Every `out` and `err` may be NULL.
 *  Errors      a function returns an hx_status and fills *err. err->applied is the part that matters: HX_APPLIED_NO means
 *              that nothing happened, HX_APPLIED_UNKNOWN that it may have: do the same call again, same key or token.
 *              HX_UNKNOWN always means the latter; so may HX_PROTOCOL.
 *              HX_DENIED is a matter for whoever hands out tokens: nothing was applied, and repeating it does not help.
 *  Retries     hx_send, hx_ack and the other calls repeat themselves when a connection is lost after something was
 *              written, or the broker itself says "unknown". A broker that could not be reached at all is reported at
 *              once as HX_UNREACHABLE, nothing applied, unless hx_options.patient is set. Refusals are never repeated by
 *              these calls; a sender and a consumer repeat refusals that pass by themselves.
 *  Threads     an hx_client, an hx_sender and an hx_consumer may be used by any number of threads at once. Result
 *              structs and hx_message belong to one thread at a time. No call touches signals, locale or other process
 *              state.
 *  Fork        a child must not use handles its parent opened, not even to close them. Sockets are close-on-exec.
 *  Memory      running out of memory ends the process (the broker's promises are made for that).
 */
#ifndef HAPAX_HAPAX_H
#define HAPAX_HAPAX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HX_API __attribute__((visibility("default")))

#define HX_DEFAULT_URL "http://127.0.0.1:4279"

/* What a call came to. One table makes the enum, the text and the name. */
#define HX_STATUS_MAP(X)                                                                                               \
    X(OK, "done")                                                                                                      \
    X(INVALID, "the request is malformed")                                                                             \
    X(NOT_FOUND, "no such queue, key or message")                                                                      \
    X(CONFLICT, "the key was used before with another payload")                                                        \
    X(FENCED, "the lease was lost")                                                                                    \
    X(SETTLED, "already settled otherwise")                                                                            \
    X(NOT_SETTLED, "not settled yet, or dead")                                                                         \
    X(TOO_LARGE, "larger than the broker allows")                                                                      \
    X(REFUSED, "refused by the broker")                                                                                \
    X(BUSY, "too much work in progress: try again later")                                                              \
    X(UNAVAILABLE, "the broker cannot serve this now: try again later")                                                \
    X(FULL, "the broker's storage is full")                                                                            \
    X(UNREACHABLE, "the broker cannot be reached")                                                                     \
    X(PROTOCOL, "the answer is not one a Hapax broker gives")                                                          \
    X(UNKNOWN, "no answer: not known whether applied")                                                                 \
    X(CANCELLED, "given up because a stop was asked for")                                                              \
    X(CLOSED, "the handle is being closed")                                                                            \
    X(DENIED, "the broker does not know the API token, or it may not do this")

#define HX_STATUS_ENUM(name, text) HX_##name,
typedef enum hx_status { HX_STATUS_MAP(HX_STATUS_ENUM) } hx_status;
#undef HX_STATUS_ENUM

HX_API const char *hx_status_text(hx_status status); /* "the broker cannot be reached"; never NULL, never freed */
HX_API const char *hx_status_name(hx_status status); /* "UNREACHABLE" */
HX_API const char *hx_version(void);                 /* of the library, "0.1.0" */

typedef enum hx_applied { HX_APPLIED_NO, HX_APPLIED_YES, HX_APPLIED_UNKNOWN } hx_applied;

/* No memory behind it: copy it, drop it. */
typedef struct hx_error {
    hx_status status;
    int http_status;        /* 0: no answer came */
    hx_applied applied;     /* whether the call took effect */
    bool retryable;         /* the same call may succeed later */
    int64_t retry_after_ms; /* the broker's wish, 0 if it has none */
    char code[48];          /* the broker's code, "key_reused"; or the library's own, "unreachable" */
    char detail[512];       /* one sentence for people */
} hx_error;

typedef struct hx_bytes {
    const void *data; /* NULL: there is no value at all (other than an empty one) */
    size_t size;
} hx_bytes;

static inline hx_bytes hx_bytes_of(const void *data, size_t size) {
    hx_bytes b;
    b.data = data;
    b.size = size;
    return b;
}
static inline hx_bytes hx_str(const char *text) {
    return hx_bytes_of(text, text ? strlen(text) : 0);
}

typedef enum hx_state {
    HX_STATE_NONE, /* not told */
    HX_STATE_PENDING,
    HX_STATE_LEASED,
    HX_STATE_HELD,
    HX_STATE_DEAD,
    HX_STATE_DONE,
    HX_STATE_REJECTED,
    HX_STATE_CANCELLED
} hx_state;

HX_API const char *hx_state_text(hx_state state); /* "pending", ... ; "" for HX_STATE_NONE */

/* ---- the client: a broker's address and a pool of connections */

typedef struct hx_client hx_client;

typedef struct hx_options {
    const char *url; /* http[s]://HOST[:PORT][/prefix]; NULL: HX_DEFAULT_URL. https is never given up for http */
    int connections; /* kept open between calls, default 8. More calls at once open more, and close them */
    int64_t connect_timeout_ms; /* default 3000 */
    int64_t timeout_ms;         /* for one call with all its repeats, default 15000; a long poll's wait comes on top */
    size_t reply_bytes_max;     /* larger replies are HX_PROTOCOL, default 256 MiB */
    bool patient;               /* keep trying a broker that cannot be reached until timeout_ms, too */
    /* Who the caller is, for a broker that asks. Wiped by hx_close, never part of an error. */
    const char *api_token; /* "hx_..."; NULL: none, or that of api_token_file */
    const char
        *api_token_file; /* a file with nothing else in it; read again when the broker refuses what it said (401) */
    bool insecure_token; /* send it to another machine unencrypted, too; hx_open refuses that otherwise */
    /* https: the broker's certificate must be valid, for this host, and signed by somebody trusted. PEM files. */
    const char *ca_file;   /* trust these and no others; NULL: the system's */
    const char *cert_file; /* shown to a broker that asks who connects; NULL: none */
    const char *key_file;  /* its key, without a passphrase; NULL: in cert_file, too */
} hx_options;

/* Checks the options; connects only when first used. On HX_OK the caller owns *out: hx_close ends it. */
HX_API hx_status hx_open(const hx_options *options, hx_client **out, hx_error *err);
/* How the broker was reached so far. */
typedef struct hx_security {
    bool encrypted;
    bool local;                        /* the URL names this machine itself */
    int64_t certificate_expires_at_ms; /* of the last one shown; 0: none was */
} hx_security;
HX_API void hx_security_get(hx_client *client, hx_security *out);
/* No call on it may be under way, its senders and consumers are closed before it. NULL is fine. */
HX_API void hx_close(hx_client *client);

/* ---- sending */

typedef struct hx_attr {
    const char *name, *value;
} hx_attr;

/* A message to be sent. Only key and payload are needed. */
typedef struct hx_draft {
    const char *key; /* 1-255 bytes without control characters. NULL: the queue derives it from the payload, or needs
                        none (at_least_once, at_most_once: then a send repeated for a lost answer is a second message) */
    hx_bytes payload;
    const char *content_type; /* NULL: application/octet-stream */
    const char *group;        /* FIFO group */
    int64_t delay_ms;         /* not delivered before */
    int64_t ttl_ms;           /* cancelled unless started by then; 0: no limit */
    const hx_attr *attrs;
    size_t attr_count;
    const char *request_id;               /* the caller's hop id, shown by the key inspector */
    const char *traceparent, *tracestate; /* hx_send only: a batch does not carry them */
} hx_draft;

typedef enum hx_outcome {
    HX_OUTCOME_NONE,
    HX_ACCEPTED,
    HX_DUPLICATE,
    HX_KEY_REUSED,
    HX_HELD /* the key is known with another payload, and the queue's rule is to let a person decide */
} hx_outcome;

/* The broker's word on one send. Everything in it lives until hx_receipt_free. */
typedef struct hx_receipt {
    hx_outcome outcome;
    bool retried;                                 /* the call repeated itself: a duplicate may be its own first try */
    hx_state state;                               /* of the original when a duplicate */
    const char *id;                               /* of the original when a duplicate or a conflict; "" if not told */
    const char *reason;                           /* why it is in that state; NULL if not told */
    hx_bytes result;                              /* the stored result; data == NULL: none */
    const char *content_type;                     /* of the result, or NULL */
    int64_t first_seen_ms, age_ms, expires_at_ms; /* 0: not told, or none */
    int64_t duplicates;
    hx_bytes json; /* the reply as it came */
    void *memory;  /* private */
} hx_receipt;

HX_API void hx_receipt_free(hx_receipt *receipt);

/* Send one message and wait for the durable answer. With wait_ms > 0: until it is settled, at most that long.
 * HX_OK: accepted, duplicate or held, see out->outcome. HX_CONFLICT: out->outcome is HX_KEY_REUSED; id and first_seen_ms are
 * the original's; nothing applied. HX_UNKNOWN: may or may not be in the queue; send it again with the same key. */
HX_API hx_status hx_send(hx_client *client, const char *queue, const hx_draft *draft, int64_t wait_ms, hx_receipt *out,
                         hx_error *err);

/* A sender takes messages from any number of threads and sends what has gathered while the last request was under way
 * as one batch: no timers, nothing waits on an idle sender. Messages of one group keep their order, except that one the
 * broker refused for a while and took later may come behind its successors. */
typedef struct hx_sender hx_sender;

typedef struct hx_sender_options {
    const char *queue;  /* required */
    int connections;    /* requests under way at once, default 1 */
    size_t batch_lines; /* most messages in a request, default 1000, at most 10000 */
    size_t batch_bytes; /* most bytes in a request (one larger message still goes alone), default 1 MiB */
    size_t memory_max;  /* bytes of unanswered messages, default 64 MiB */
    bool never_block;   /* at memory_max hx_send_async returns HX_BUSY; else it waits for room */
    int64_t timeout_ms; /* for one message, repeats included, default 30000 */
} hx_sender_options;

HX_API hx_status hx_sender_open(hx_client *client, const hx_sender_options *options, hx_sender **out, hx_error *err);

/* Called once for each message hx_send_async took, from one of the sender's threads; receipt and error are valid during
 * the call only. It must not call hx_sender_flush or hx_sender_close, nor hx_send_async on a sender that may block. */
typedef void (*hx_sent_fn)(void *ctx, hx_status status, const hx_receipt *receipt, const hx_error *error);

/* HX_OK: taken (copied), fn (may be NULL) will be called once. HX_BUSY: full and never_block set. HX_INVALID,
 * HX_CLOSED. Whatever is not HX_OK was not taken and fn is not called. The outcome passed to fn is as hx_send's;
 * HX_UNKNOWN only after timeout_ms of repeats. */
HX_API hx_status hx_send_async(hx_sender *sender, const hx_draft *draft, hx_sent_fn fn, void *ctx, hx_error *err);

/* The same with a handle to wait on. On HX_OK the caller owns *out: hx_future_free. */
typedef struct hx_future hx_future;
HX_API hx_status hx_send_future(hx_sender *sender, const hx_draft *draft, hx_future **out, hx_error *err);
/* true: answered; *status, *out (moved to the caller, hx_receipt_free) and *err are set, once. false: not within
 * wait_ms (negative: wait for ever, 0: just look). */
HX_API bool hx_future_wait(hx_future *future, int64_t wait_ms, hx_status *status, hx_receipt *out, hx_error *err);
HX_API void hx_future_free(hx_future *future); /* also before it was answered: the message is sent all the same */

/* Wait until everything taken before the call is answered. HX_OK, or HX_BUSY after wait_ms (negative: no limit). */
HX_API hx_status hx_sender_flush(hx_sender *sender, int64_t wait_ms);
/* Takes no more, waits for every answer (bounded by timeout_ms), then frees. Every fn has returned when it does. */
HX_API void hx_sender_close(hx_sender *sender);

/* ---- receiving and settling, by hand */

typedef enum hx_delivery {
    HX_DELIVERY_FIRST,    /* nobody was handed this before */
    HX_DELIVERY_RETRY,    /* handed out before: part of it, or all of it, may have been done and not acked */
    HX_DELIVERY_RECONCILE /* an earlier attempt's outcome is unknown: look it up downstream before doing anything */
} hx_delivery;

typedef struct hx_step_record {
    const char *name;
    hx_bytes result; /* data == NULL: recorded without one */
} hx_step_record;

/* A message under lease. Read-only; lives as long as what it came from (hx_received, or the handler's call). */
typedef struct hx_message {
    const char *id, *key, *queue; /* key "": sent without one, where the queue's rules allow that */
    const char *token;            /* proves the lease; opaque */
    const char *effect_key;       /* what to hand to downstreams as their idempotency key */
    int64_t fence; /* grows with every lease of anything; for conditional writes in the user's own store */
    int64_t attempt, failures, crashes, generation;
    hx_delivery delivery;
    const char *group; /* NULL: none */
    const hx_attr *attrs;
    size_t attr_count;
    hx_bytes payload;
    const char *content_type;
    int64_t first_seen_ms, enqueued_at_ms, lease_expires_at_ms;
    const hx_step_record *steps; /* finished in earlier attempts */
    size_t step_count;
    const char *traceparent, *tracestate; /* NULL: none */
    struct hx_message_private *priv;
} hx_message;

typedef struct hx_receive_options {
    int max;              /* messages, 1-1000, default 1 */
    int64_t wait_ms;      /* for the first one, at most 60000; default 0: do not wait */
    int64_t lease_ms;     /* default: the queue's */
    const char *consumer; /* a name for the inspector */
    bool explicit_start;  /* a reservation until hx_start: costs no attempt if it runs out. Use it when max > 1 */
} hx_receive_options;

typedef struct hx_received {
    size_t count;
    hx_message *const *messages;
    hx_bytes json; /* the reply as it came, the problem of a refusal too: free it then as well */
    void *memory;  /* private */
} hx_received;

/* HX_OK with count 0: nothing came. HX_UNKNOWN: messages may have been leased; they come back when that lease ends. */
HX_API hx_status hx_receive(hx_client *client, const char *queue, const hx_receive_options *options, hx_received *out,
                            hx_error *err);
HX_API void hx_received_free(hx_received *received);

typedef struct hx_settled {
    hx_state state;
    bool duplicate; /* this token had settled it before; the first answer stands */
    hx_bytes json;
    void *memory; /* private */
} hx_settled;

HX_API void hx_settled_free(hx_settled *settled);

/* All of these may be repeated with the same token and get the same answer. HX_FENCED: somebody else has it now, what
 * you did may be done again by them. HX_SETTLED: it is settled, but otherwise. HX_UNKNOWN: call again. */

/* Done. result.data == NULL: none. content_type NULL: text/plain if it is UTF-8, else application/octet-stream.
 * effect_id (may be NULL) names the effect in the downstream: two for one key are how doubled effects are seen. */
HX_API hx_status hx_ack(hx_client *client, const char *token, hx_bytes result, const char *content_type,
                        const char *effect_id, hx_settled *out, hx_error *err);

typedef enum hx_class {
    HX_TRANSIENT,     /* try again later */
    HX_POISON,        /* will never work: straight to dead */
    HX_REJECTED,      /* a business outcome, settled, with its result */
    HX_CLASS_UNKNOWN, /* may have been done */
    HX_ABSENT         /* answers HX_DELIVERY_RECONCILE: looked up, did not happen */
} hx_class;

typedef struct hx_failure {
    hx_class failure_class;
    const char *reason;
    int64_t delay_ms; /* not before this; the queue's backoff if that is longer */
    hx_bytes result;  /* for HX_REJECTED */
    const char *content_type;
} hx_failure;

HX_API const char *hx_class_text(hx_class failure_class); /* "transient", ... */
HX_API hx_status hx_nack(hx_client *client, const char *token, const hx_failure *failure, hx_settled *out,
                         hx_error *err);
HX_API hx_status hx_extend(hx_client *client, const char *token, int64_t lease_ms, hx_settled *out, hx_error *err);
HX_API hx_status hx_start(hx_client *client, const char *token, hx_settled *out, hx_error *err);
/* Give it back, no attempt spent. The caller vouches that nothing was done. */
HX_API hx_status hx_release(hx_client *client, const char *token, hx_settled *out, hx_error *err);

typedef struct hx_step_answer {
    bool recorded_before; /* result is the one recorded then, not the one just given */
    hx_bytes result;
    hx_bytes json;
    void *memory; /* private */
} hx_step_answer;

/* Record a finished step of a longer work; later attempts find it in message.steps. */
HX_API hx_status hx_step(hx_client *client, const char *token, const char *name, hx_bytes result, hx_step_answer *out,
                         hx_error *err);
HX_API void hx_step_answer_free(hx_step_answer *answer);

/* ---- waiting for a result */

typedef struct hx_result {
    hx_state state; /* done, rejected or cancelled; after HX_NOT_SETTLED what it was, if told */
    hx_bytes body;  /* size 0 if it settled without a result */
    const char *content_type;
    hx_bytes problem; /* a refusal's document, HX_NOT_SETTLED's too, as it came; to be freed as well */
    void *memory;     /* private */
} hx_result;

/* Wait until the key is settled, at most wait_ms (0: just look). HX_NOT_SETTLED: time is up, or it is dead (state
 * tells). HX_NOT_FOUND: the key is not known (never sent, or past its window). Changes nothing, so never "unknown". */
HX_API hx_status hx_wait(hx_client *client, const char *queue, const char *key, int64_t wait_ms, hx_result *out,
                         hx_error *err);
HX_API void hx_result_free(hx_result *result);

/* ---- consuming with a handler */

/* What the handler made of a message. */
typedef enum hx_verdict {
    HX_DONE,           /* ack, with the result set by hx_message_set_result */
    HX_FAIL_TRANSIENT, /* nack as ... */
    HX_FAIL_POISON,
    HX_FAIL_REJECTED, /* with the result */
    HX_FAIL_UNKNOWN,
    HX_FAIL_ABSENT,
    HX_GIVE_BACK,         /* release: nothing was done */
    HX_GIVE_BACK_AND_STOP /* release, and stop the consumer: this process cannot do this work */
} hx_verdict;

/* Runs on one of the worker threads. The message lives until it returns. */
typedef hx_verdict (*hx_handler_fn)(void *ctx, hx_message *message);
/* Runs on the renewing thread, so briefly: while it runs no lease is renewed. The handler may just be returning. */
typedef void (*hx_lease_lost_fn)(void *ctx, hx_message *message);
/* Something the consumer goes on after: a poll or a settling call that failed. message is NULL for a poll. A settling
 * call is repeated, and its lease renewed, until the broker takes it or refuses it for good, and this is told once in
 * every lease; after a stop it is repeated for one lease, after hx_consumer_hurry once more, then the message is left to
 * its lease and this is told as HX_CANCELLED. Runs on a worker or the polling thread. */
typedef void (*hx_trouble_fn)(void *ctx, hx_message *message, const hx_error *error);
/* A verdict is settled. The state is what the broker says became of the message. Runs on the worker. */
typedef void (*hx_settled_fn)(void *ctx, hx_message *message, hx_verdict verdict, const hx_settled *settled);

typedef struct hx_consumer hx_consumer;

typedef struct hx_consume_options {
    const char *queue;     /* required */
    hx_handler_fn handler; /* required */
    void *ctx;             /* for all of the functions */
    hx_lease_lost_fn on_lease_lost;
    hx_trouble_fn on_trouble;
    hx_settled_fn on_settled;
    int workers;          /* handlers at once, default 1 */
    int prefetch;         /* reserved beyond those, at most 1000 in all; default: as many as workers; < 0: none */
    int64_t lease_ms;     /* default 30000, whatever the queue says; at least 1000 */
    int64_t wait_ms;      /* of one long poll, default 20000, at most 60000; < 0: do not wait */
    int64_t messages_max; /* stop after handling this many; 0: no limit */
    int64_t idle_ms;      /* stop when nothing came for this long; 0: never; < 0: as soon as a poll comes back empty */
    const char *consumer; /* a name for the inspector */
    const struct hx_consume_gate *gate; /* hapax/gate.h: the handler runs behind a gate. NULL: none */
} hx_consume_options;

/* Starts the threads: one polls, one renews leases at a third of their length, `workers` run the handler. Messages are
 * taken as reservations and started when the handler begins, so prefetched ones cost nothing if this process dies.
 * The broker need not be up: polling goes on until it is. *out is set before the first of the caller's functions runs.
 */
HX_API hx_status hx_consume(hx_client *client, const hx_consume_options *options, hx_consumer **out, hx_error *err);
/* Ask it to stop: no new message is begun, the poll is given up. Returns at once; also from a handler. For a signal:
 * call it from a thread that waits for signals, not from the signal handler. */
HX_API void hx_consumer_stop(hx_consumer *consumer);
/* Stop, and do not wait for a broker that does not answer: what is being settled is tried once more, two seconds long. Running
 * handlers still finish. Returns at once; may follow a stop. */
HX_API void hx_consumer_hurry(hx_consumer *consumer);
/* Wait until it has stopped (asked to, or by messages_max, idle_ms or a verdict). true if so; wait_ms < 0: for ever. */
HX_API bool hx_consumer_wait(hx_consumer *consumer, int64_t wait_ms);
/* Stop, let running handlers finish and settle, give back what was reserved and not started, free. Not from a handler.
 */
HX_API void hx_consumer_close(hx_consumer *consumer);

typedef struct hx_consumer_stats {
    int64_t received, started, settled, leases_lost, trouble, given_back;
} hx_consumer_stats;
HX_API void hx_consumer_stats_get(hx_consumer *consumer, hx_consumer_stats *out);

/* For handlers. The message must be the one the handler was given. */

/* true once the lease is known, or must be assumed, to be gone: another consumer may be at it. Stop if you can. The
 * verdict is still reported; the broker decides. Safe from any thread while the handler runs. */
HX_API bool hx_message_lease_lost(const hx_message *message);
/* Copied; the last call wins. */
HX_API void hx_message_set_result(hx_message *message, hx_bytes result, const char *content_type);
HX_API void hx_message_set_reason(hx_message *message, const char *reason);
HX_API void hx_message_set_delay(hx_message *message, int64_t delay_ms); /* as hx_failure's: a floor */
HX_API void hx_message_set_effect_id(hx_message *message, const char *effect_id);

/* A step's work: fill *result with hx_value_set (or leave it: no result). Anything but HX_OK: not done, not recorded.
 */
typedef struct hx_value hx_value;
typedef hx_status (*hx_step_fn)(void *ctx, hx_message *message, hx_value *result);
HX_API void hx_value_set(hx_value *value, hx_bytes bytes); /* copied */

/* The recorded result of this step if an earlier attempt finished it, else run fn and record what it gives. *out lives
 * as long as the message. HX_FENCED: the lease is lost; fn was not run, or its result not recorded. HX_UNKNOWN: fn was
 * run, its record's fate is not known: return HX_FAIL_UNKNOWN unless the step can be repeated. */
HX_API hx_status hx_step_once(hx_message *message, const char *name, hx_step_fn fn, void *ctx, hx_bytes *out,
                              hx_error *err);

/* ---- anything else the broker serves */

typedef struct hx_request {
    const char *method;    /* "GET", "POST", ... */
    const char *target;    /* "/v1/stats", percent-encoded */
    const hx_attr *fields; /* further header fields */
    size_t field_count;
    hx_bytes body;
    const char *content_type;
    int64_t wait_ms; /* the broker may take this long on top of timeout_ms */
    bool once;       /* do not repeat it when the answer is lost */
} hx_request;

typedef struct hx_reply {
    int http_status;
    const char *content_type; /* "" if none */
    const char *etag;         /* "" if none; for If-Match */
    hx_bytes body;
    void *memory; /* private */
} hx_reply;

/* HX_OK for a 2xx answer; else what the problem document says. *out has the answer in both cases if there was one. */
HX_API hx_status hx_call(hx_client *client, const hx_request *request, hx_reply *out, hx_error *err);
HX_API void hx_reply_free(hx_reply *reply);

/* A line of an answer that goes on, without its line feed, valid during the call. false: it is enough. */
typedef bool (*hx_line_fn)(void *ctx, hx_bytes line);

/* Follows an answer that does not end by itself (GET /v1/events), on a connection of its own: hands over its lines, each of at
 * most 256 KiB, until the answer ends or `line` says that it is enough (HX_OK), or stop_fd (-1: none) becomes readable
 * (HX_CANCELLED). HX_UNREACHABLE: it did not begin, broke off, or nothing came for silence_ms; nothing is repeated: ask again,
 * with Last-Event-ID. Blocks meanwhile, and `line` is called from this thread. */
HX_API hx_status hx_follow(hx_client *client, const hx_request *request, int64_t silence_ms, int stop_fd,
                           hx_line_fn line, void *ctx, hx_error *err);

#ifdef __cplusplus
}
#endif

#endif
