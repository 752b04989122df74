/* Inside the broker: its state, and what its files offer each other. */
#ifndef HAPAX_BROKER_BROKER_PRIV_H
#define HAPAX_BROKER_BROKER_PRIV_H

#include "base/json.h"
#include "broker/broker.h"
#include "broker/effects.h"
#include "config/config.h"
#include "config/view.h"
#include "core/core.h"

#define SMALL_BODY_MAX    65536u
#define PAYLOAD_BYTES_MAX (1u << 20)
#define BATCH_BYTES_MAX   (8u << 20)
#define BATCH_LINES_MAX   10000u
#define SETTLE_BYTES_MAX  (8u << 20)
#define SETTLE_ITEMS_MAX  10000u
#define ATTRS_BYTES_MAX   16384u
#define GROUP_BYTES_MAX   255u
#define TYPE_BYTES_MAX    255u
#define RECEIVE_MAX       1000u
#define REPLY_BYTES_MAX   (16u << 20) /* a reply stops growing here, whatever was asked for */
#define WAIT_MS_MAX       60000
#define LEASE_MS_MIN      1000
#define LEASE_MS_MAX      ((i64)12 * 3600 * 1000)
#define DELAY_MS_MAX      ((i64)366 * 24 * 3600 * 1000)
#define LIST_LIMIT_MAX    1000u

#define PROBLEM_ENUM(code, status, retryable, title) PROBLEM_##code,
enum problem {
#define PROBLEM PROBLEM_ENUM
#include "broker/problem.def"
#undef PROBLEM
    PROBLEM_COUNT
};
#undef PROBLEM_ENUM

/* An error with its details, until it is rendered. `more` holds further JSON members ("\"id\":..."). */
struct failure {
    enum problem problem;
    struct buf detail, more;
    const char *allow;    /* 405: the methods there are */
    bool applied_unknown; /* else nothing happened */
};
void failure_set(struct failure *f, enum problem p, const char *fmt, ...) PRINTF_LIKE(3, 4);
u16 problem_status(enum problem p);
void failure_render(const struct failure *f, struct buf *body); /* without the closing brace: members may follow */

/* One request being answered. */
struct call {
    struct broker *b;
    void *conn;
    void **user;
    const struct http_request *req;
    slice arg[2];    /* decoded path arguments: queue, key or id */
    struct buf args; /* their memory */
    struct failure failure;
};

/* A request that is answered later: a poll for messages, or for an outcome, or the end of a task. */
enum wait_kind { WAIT_POLL, WAIT_SEND, WAIT_RESULT, WAIT_TASK };
struct wait {
    enum wait_kind kind;
    void *conn;
    i64 deadline_ms; /* monotonic */
    u32 heap_at;
    bool due;                 /* linked into the due list */
    struct wait *prev, *next; /* poll: its queue's list; outcome: its hash chain */
    struct wait *due_next;
    /* poll */
    u16 queue;
    u32 max, lease_ms;
    bool reserve_only;
    struct buf consumer;
    /* outcome */
    struct ref ref;
    bool duplicate; /* send: how it was answered at first */
    i64 wait_asked_s;
    struct task *task;
};

struct wait_list {
    struct wait *head, *tail;
};

#define OUTCOME_CHAINS 4096u

/* Leases handed out by a reply that has not left yet. */
struct receipt {
    u64 number;
    u32 count;
    struct receipt *next;
    struct receipt_lease {
        struct ref ref;
        u64 fence;
    } leases[];
};
#define RECEIPT_CHAINS 1024u

/* What a queue's rules mean to the broker. The core has its own copy of those it decides by. */
struct queue_rules {
    struct queue_config *config; /* NULL: nothing was said, the default rules */
    bool owned;                  /* else it is the file's, and belongs to broker.config */
    bool undeclared;             /* only declared queues take messages, and this is none */
    bool unreadable;             /* another version took its rules; config is NULL, and it takes no messages either */
    bool
        special; /* a message must be looked at before it is looked up; else its key is in the header, and that is all */
};

/* A key or message with its records read back; the memory behind struct seen. */
struct lookup {
    struct seen seen;
    struct record base, arrivals;
    struct buf base_store, arrivals_store;
};

#define TIME_MEMOS 64 /* seconds whose text is kept: of duplicates that come in any order */

struct broker {
    struct broker_options options;
    struct journal *journal;
    struct core *core;
    struct core_now now;
    struct broker_time time;
    i64 started_mono_ms, ticked_mono_ms;
    u64 after; /* position behind the last record appended: what a reply has seen */
    struct effects effects;
    bool draining;
    u16 last_queue; /* of the last request, and its name, which lives as long as the queue */
    slice last_queue_name;
    u64 appended; /* bytes, since start */
    u64 room, room_used, room_promised, room_ahead;
    i64 room_looked_run_ms;

    struct wait_list *polls; /* [queue] */
    u32 polls_cap;
    u16 *woken; /* queues that became ready */
    u32 woken_count, woken_cap;
    bool starved; /* a poll waits though something is ready: there was no room for the lease */
    struct wait *outcomes[OUTCOME_CHAINS];
    u32 outcome_waits;
    struct wait *due;
    struct wait **heap;
    u32 heap_count, heap_cap;

    struct receipt *receipts[RECEIPT_CHAINS];
    u64 next_receipt;

    struct config *config;           /* the file's, or what stands for one */
    struct queue_rules *queue_rules; /* [queue] */
    u32 queue_rules_cap;
    struct payload_view view, other_view; /* of the message at the door; of the one it is compared with */
    struct buf key_store, group_store;    /* what templates made of it */

    struct task *tasks; /* newest first */
    u32 tasks_running;
    u64 next_task;

    struct lookup lookup, other;      /* other: what a message is compared with while it is looked at */
    struct buf body, fields, scratch; /* reused per request */
    slice *items;                     /* of the array being settled */
    u32 items_cap;
    struct time_memo {
        i64 second; /* written as text before, and its text */
        char text[24];
    } memos[TIME_MEMOS];

    u64 compact_cursor, compact_until; /* until == 0: not compacting */
    u64 compact_appended;              /* what was appended up to the last slice, and when that was */
    i64 compact_mono_ms;
    bool compact_pressed; /* room is short */
    u64 compacted_segments;
    u64 erase_target; /* everything before it is being compacted because something was erased there; 0: nothing */
    i64 erase_began_ms;
};

/* broker.c */
void broker_advance(struct broker *b, struct broker_time t);
/* Read a record back; slices point into store. A failure is fatal: what was acknowledged cannot be read. */
void broker_fetch(struct broker *b, u64 pos, u32 size_hint, struct buf *store, struct record *out);
/* Find a key by its bytes, or a message or settled key by its id. The result lives until the next look-up. */
void broker_prefetch(struct broker *b, const u64 *hashes, u32 count);
struct seen *broker_find_key(struct broker *b, u16 queue, u64 hash, slice key);
struct seen *broker_find_id(struct broker *b, u64 hash, u64 seq);
/* The same into a look-up of the caller's choice. */
struct seen *lookup_key(struct broker *b, struct lookup *l, u16 queue, u64 hash, slice key);
struct seen *lookup_id(struct broker *b, struct lookup *l, u64 hash, u64 seq);
/* What core_find or core_walk yielded, read back. */
struct seen *lookup_found(struct broker *b, struct lookup *l, const struct found *f);
const struct ref *seen_ref(const struct seen *s);
slice seen_key(const struct seen *s);
u64 seen_fingerprint(const struct seen *s);
bool seen_in_force(struct broker *b, const struct seen *s); /* unsettled, or not past its window */
enum state seen_state(struct broker *b, const struct seen *s);
bool broker_room(struct broker *b, u64 bytes);           /* can that much be written beside what is promised? */
i64 wall_of_delay(const struct broker *b, i64 delay_ms); /* delay clock to wall clock */

/* reply.c */
void reply_json(struct call *c, u16 status, slice body);
void reply_with(struct broker *b, void *conn, u16 status, slice content_type, slice fields, slice body, u64 receipt);
void reply_failure(struct call *c);
bool fail(struct call *c, enum problem p, const char *fmt, ...) PRINTF_LIKE(3, 4); /* sets the failure; returns false */

/* parse.c: what requests say */
bool parse_queue_name(struct call *c, slice name);
bool queue_of_call(struct call *c, bool create, u16 *queue);
/* An Idempotency-Key field value in any of its three spellings. Scratch memory in `store`. */
bool parse_key_field(slice value, struct buf *store, slice *key, const char **why);
bool key_bytes_valid(slice key, const char **why);
bool parse_wait_param(struct call *c, i64 *wait_ms);
bool param_text(struct call *c, const char *name, struct buf *store, slice *out); /* empty if it is not given */
bool param_u64(struct call *c, const char *name, u64 low, u64 high, u64 fallback, u64 *out);
bool param_duration(struct call *c, const char *name, i64 low, i64 high, i64 fallback, i64 *out);
/* A duration in a JSON text: a string with a unit, or a number of seconds. The text is checked by duration_parse. */
bool json_duration(struct json *j, slice *out);

/* A result as a request says it: result or result_base64, content_type. */
struct result_said {
    slice text, base64, content_type;
    enum json_type type;
    bool given, base64_given;
};
/* Takes the member if it is one of these; else *taken is false and nothing was read. */
bool result_member(struct json *j, slice name, struct result_said *r, bool *taken);
bool result_mean(const struct result_said *r, struct buf *decoded, slice *content_type, slice *result,
                 struct failure *f);
/* Cut to at most max bytes, not inside a character. */
slice cut_text(slice s, size_t max);
bool text_ok(slice s, size_t max); /* UTF-8 without control characters, at most that long */
/* A time, or how long ago: RFC 3339 or a duration. Wall clock. */
bool parse_since(const struct broker *b, slice text, i64 *wall_ms);

/* queue_rules.c: the queues' rules as they are now */
const struct queue_rules *queue_rules_of(const struct broker *b, u16 queue);
/* After core_queue_set, _ensure or _delete: what the core has stored of this queue. config: taken, or NULL. */
void queue_rules_take(struct broker *b, u16 queue, struct queue_config *config);
void queue_rules_drop(struct broker *b, u16 queue);
void queue_rules_load(struct broker *b); /* at start: every queue of the journal */
void queue_rules_free(struct broker *b);

/* admit.c: everything that becomes a message comes in here */
struct admission {
    enum send_verdict verdict;
    struct send_out out, first; /* first: what led elsewhere */
    const struct seen *seen;    /* duplicate or conflict; NULL when accepted or held */
    enum state state;
    slice key; /* the one it is known by */
};
/* The queue's rules fill in key, group, fingerprint and hash of *in, whose key is what the sender gave or empty. */
bool admit_message(struct broker *b, struct send_in *in, header_lookup *header, void *header_ctx, struct admission *a,
                   struct failure *f);
/* The headers of a message as far as it remembers them: attributes, content type, group. ctx: struct send_in. */
slice said_header(void *ctx, slice name);
/* A copy of what failed the schema, tried again: admitted, known already, or as before. */
enum retrial { RETRIAL_ADMITTED, RETRIAL_KNOWN, RETRIAL_AS_BEFORE, RETRIAL_FULL };
enum retrial admit_again(struct broker *b, const struct ref *copy);

/* operator.c: who does what, and why */
#define DEED_LIST(X)                                                                                                   \
    X(PAUSE, "pause")                                                                                                  \
    X(RESUME, "resume")                                                                                                \
    X(PURGE, "purge")                                                                                                  \
    X(CANCEL, "cancel")                                                                                                \
    X(RESOLVE, "resolve")                                                                                              \
    X(REDRIVE, "redrive")                                                                                              \
    X(REPLAY, "replay")                                                                                                \
    X(ERASE, "erase")                                                                                                  \
    X(FORGET, "forget")                                                                                                \
    X(QUEUE_PUT, "queue_put")                                                                                          \
    X(QUEUE_DELETE, "queue_delete")                                                                                    \
    X(CONFIG_RELOAD, "config_reload")                                                                                  \
    X(DRILL, "drill")
#define DEED_ENUM(name, text) DEED_##name,
enum deed_kind { DEED_LIST(DEED_ENUM) DEED_COUNT };
#undef DEED_ENUM
struct deed {
    struct json json; /* keeps unescaped strings alive */
    slice by, note;
    slice as, state, class_name, reason, since;
    u64 max, rate;
    bool dry_run;
    struct result_said result;
};
/* The body, if there is one, and the headers. members: the names this call knows beside by and note, separated by blanks;
 * NULL: its body is something else. deed_free in any case. */
bool deed_read(struct call *c, struct deed *d, const char *members);
void deed_free(struct deed *d);
/* Into the audit trail, before it is done. s: the message or key it is about, or NULL. false: no room, the failure is set. */
bool deed_audit(struct call *c, const struct deed *d, enum deed_kind what, u16 queue, const struct seen *s,
                slice detail);
slice deed_text(enum deed_kind what);

/* why.c: why a message is where it is */
struct filter {
    bool by_class, refused;
    enum failure_class failure_class;
    i64 since_ms; /* wall clock; INT64_MIN: any time */
    struct buf reason;
};
bool filter_set(struct call *c, slice class_name, slice reason, slice since, struct filter *out);
void filter_free(struct filter *f);
bool filter_is_empty(const struct filter *f);
bool filter_passes(const struct filter *f, const struct message_view *v);
void why_text(const struct message_view *v, struct buf *out);
/* The last attempt, or the decision that put it there. */
bool why_last(const struct message_view *v, struct history_item *out);

/* task.c */
void task_run_all(struct broker *b);
void task_end_of_queue(struct broker *b, u16 queue);
void task_detach(struct task *t);
i64 task_next_ms(const struct broker *b, i64 at_most);
void task_free_all(struct broker *b);

/* wait.c */
struct wait *wait_new(struct broker *b, enum wait_kind kind, void *conn, void **user, i64 wait_ms);
void wait_end(struct broker *b, struct wait *w); /* unlink everywhere and free */
void wait_for_outcome(struct broker *b, struct wait *w, const struct ref *ref);
void wait_for_messages(struct broker *b, struct wait *w, u16 queue);
void wait_wake_outcome(struct broker *b, const struct ref *ref);
void wait_wake_queue(struct broker *b, u16 queue);
void wait_run(struct broker *b);     /* answer what can be answered */
void wait_run_due(struct broker *b); /* deadlines */
void wait_end_all(struct broker *b); /* answer everything as if its time were over */

/* api_*.c */
void api_send(struct call *c);
void api_batch(struct call *c);
void api_receive(struct call *c);
void api_ack(struct call *c);
void api_nack(struct call *c);
void api_extend(struct call *c);
void api_step(struct call *c);
void api_start(struct call *c);
void api_release(struct call *c);
void api_key(struct call *c);
void api_key_query(struct call *c);
void api_key_result(struct call *c);
void api_message(struct call *c);
void api_messages(struct call *c);
void api_cancel(struct call *c);
void api_resolve(struct call *c);
void api_resolve_key(struct call *c);
void api_replay(struct call *c);
void api_erase(struct call *c);
void api_forget(struct call *c);
void api_queues(struct call *c);
void api_queue(struct call *c);
void api_queue_put(struct call *c);
void api_queue_delete(struct call *c);
void api_purge(struct call *c);
void api_redrive(struct call *c);
void api_tasks(struct call *c);
void api_task(struct call *c);
void api_task_cancel(struct call *c);
void api_audit(struct call *c);
void api_drill(struct call *c);
void api_pause(struct call *c);
void api_resume(struct call *c);
void api_stats(struct call *c);
void api_health(struct call *c);
void api_ready(struct call *c);

void answer_poll(struct broker *b, struct wait *w, bool even_if_empty);
void answer_send(struct broker *b, struct wait *w);
void answer_result(struct broker *b, struct wait *w);
void answer_task(struct broker *b, struct wait *w);

/* api_keys.c: what a path names; NULL: the failure is set */
struct seen *seen_of_key(struct call *c, slice key);
struct seen *seen_of_id(struct call *c);

/* render.c */
void put_id(struct buf *b, const char *name, const struct ref *ref);
/* "name":"2026-…Z" as json_put_member_time, cheaper: most times of a turn lie in the same second. prefix: ,"name":" */
void put_time(struct broker *br, struct buf *b, slice prefix, i64 unix_ms);
#define put_time_member(br, b, name, ms) put_time(br, b, SL(",\"" name "\":\""), ms)
void put_bytes_members(struct buf *b, const char *body_name, slice bytes); /* "body":..,"encoding":.. */
void put_result(struct buf *b, slice content_type, slice result);
void put_expires(struct broker *br, struct buf *b, const struct rec_settle *settle);
void put_steps(struct buf *b, slice history);
void put_attrs(struct buf *b, slice attrs);
void put_key(struct buf *b, slice key); /* ,"key":"..." or null */
void put_said(struct buf *b, slice group, slice attrs, slice content_type, slice payload);

/* key_page.c */
void put_key_page(struct broker *br, struct buf *b, const struct seen *s);

/* rules.c: one queue with everything known of it */
void put_queue(struct broker *br, struct buf *b, u16 queue);
void reply_queue(struct call *c, u16 status, u16 queue);

/* parse.c: attributes as stored in a record. Names are lower-cased; false if the name is there already. */
bool attrs_add(struct buf *attrs, slice name, slice value);
bool attrs_next(slice attrs, size_t *at, slice *name, slice *value);

/* diff.c: which fields of two JSON payloads differ, as "changed":[...]; of a held conflict also what they say. Nothing if one
 * of them is no JSON. */
void put_changed(struct broker *br, struct buf *b, u16 queue, slice before, slice after, bool with_values);

/* compact.c */
void compact_some(struct broker *b);

#endif
