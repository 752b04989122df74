/* The seeded simulator: the real broker, core and file journal in a world where one number decides everything.
 *
 *   main.c    seeds, ranges, processes, TAP
 *   world.c   clocks, turns, the broker's lives: boot, crash, clean restart; the phases of a seed
 *   disk.c    a disk that fails on purpose, in front of the journal room's simulated disk
 *   net.c     calls between clients and broker: delayed, doubled, lost, cut off
 *   clients.c what clients do, well or badly behaved
 *   operator.c what operators do: rules, decisions, purges, replays, erasing
 *   policy.c  rules as they are drawn, and as PUT says them
 *   outside.c where pushes go, and what may be sent there
 *   model*.c  what the broker may answer (model.h)
 *   view.c    JSON replies taken apart
 *
 * Nothing here reads a clock or depends on an address: the same seed gives the same run. */
#ifndef HAPAX_SIM_SIM_H
#define HAPAX_SIM_SIM_H

#include "base/arena.h"
#include "broker/broker.h"
#include "journal/disk_sim.h"
#include "journal/file.h"

/* ---- what happened over a run, so that the simulator cannot silently stop testing something */
struct tally {
#define TALLY(name) u64 name;
#include "tally.def"
#undef TALLY
};
extern struct tally tally;

slice arena_printf(struct arena *a, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* ---- the trace, kept only while one seed is replayed */
void trace_open(bool to_stderr);
void trace(const char *fmt, ...) PRINTF_LIKE(1, 2);
extern bool tracing;
/* Something is wrong: says what and where, and ends the process with status 1. */
_Noreturn void sim_fail(const char *fmt, ...) PRINTF_LIKE(1, 2);

/* ---- requests as clients mean them */
enum verb_kind { DO_ACK, DO_NACK, DO_EXTEND, DO_STEP, DO_START, DO_RELEASE };
enum nack_class { NACK_TRANSIENT, NACK_UNKNOWN, NACK_POISON, NACK_REJECTED, NACK_ABSENT };
const char *verb_name(enum verb_kind v);
const char *nack_name(enum nack_class c);

#define OP_LIST_OF(X)                                                                                                  \
    X(SEND, "send")                                                                                                    \
    X(BATCH, "batch")                                                                                                  \
    X(RECEIVE, "receive")                                                                                              \
    X(SETTLE, "settle")                                                                                                \
    X(KEY, "key")                                                                                                      \
    X(MESSAGE, "message")                                                                                              \
    X(RESULT, "result")                                                                                                \
    X(LIST, "list")                                                                                                    \
    X(QUEUE, "queue")                                                                                                  \
    X(PUT, "put")                                                                                                      \
    X(PAUSE, "pause")                                                                                                  \
    X(RESUME, "resume")                                                                                                \
    X(CANCEL, "cancel")                                                                                                \
    X(REVOKE, "revoke")                                                                                                \
    X(RESOLVE, "resolve")                                                                                              \
    X(REDRIVE, "redrive")                                                                                              \
    X(TASK, "task")                                                                                                    \
    X(PURGE, "purge")                                                                                                  \
    X(REPLAY, "replay")                                                                                                \
    X(ERASE, "erase")                                                                                                  \
    X(FORGET, "forget")                                                                                                \
    X(AUDIT, "audit")                                                                                                  \
    X(STATS, "stats")
#define OP_ENUM(name, text) OP_##name,
enum op_kind { OP_LIST_OF(OP_ENUM) };
#undef OP_ENUM
const char *op_name(enum op_kind kind);

enum resolve_as { AS_DONE, AS_REJECTED, AS_RETRY, AS_DEAD, AS_NEW, AS_DUPLICATE, AS_COUNT };
const char *as_name(enum resolve_as as);

/* ---- a queue's rules, as the contract has them; the numbers stand for the words in policy.c */
enum { EXACTLY_ONCE, AT_LEAST_ONCE, AT_MOST_ONCE };
enum { UNKNOWN_RETRY, UNKNOWN_RECONCILE, UNKNOWN_HOLD };
enum { CONFLICT_REJECT, CONFLICT_HOLD, CONFLICT_NEW };
enum { DEAD_BLOCKS, DEAD_SKIPPED, DEAD_TAKES_GROUP };
#define FOREVER INT64_MAX

struct policy {
    u32 number; /* 0: the defaults nobody asked for. It is the dead lane's owner, so that GET tells which one is in force */
    u32 semantics, on_unknown, on_conflict, on_dead;
    i64 window_min, window_max; /* the same: fixed. FOREVER */
    i64 keep_ms, lease_ms, backoff_ms, backoff_max_ms;
    u32 transient, unknown, crashes;
    u32 limit; /* of unsettled messages; 0: none */
};
extern const struct policy policy_default;
struct world;
struct policy *policy_random(struct world *w, u32 queue);
void policy_text(const struct policy *p, struct buf *json);
bool policy_shown(const struct policy *p, slice queue_json, struct arena *scratch); /* does GET show these rules? */

struct message; /* the model's */

struct send_item {
    u32 key;
    bool keyless; /* at_least_once and at_most_once queues take that */
    u32 variant;  /* of the payload: another one is a conflict */
    u32 group;    /* 0: none */
    i64 delay_ms, ttl_ms;
    bool attr;
};

/* A lease as the model saw it handed out. Clients get to know it only when the reply is delivered. */
struct lease {
    struct message *message;
    slice token;
    u64 fence;
    bool explicit_start;
};

struct settle_item {
    const struct lease *lease;
    bool garbled;
    enum nack_class class;
    i64 delay_ms, lease_ms;
    slice result, effect_id, name;
    bool result_json;
};

struct op {
    enum op_kind kind;
    u32 number; /* of its call, for the trace */
    u32 queue;
    i64 wait_ms;
    /* send, batch; key and result use items[0].key */
    struct send_item *sends;
    u32 count;
    /* receive */
    u32 max;
    i64 lease_ms;
    bool explicit_start;
    /* settle */
    enum verb_kind verb;
    bool array;
    struct settle_item *settles;
    /* list, purge; what names one message: an id, or the text of a key */
    slice state, id, key;
    struct message *target;
    const struct policy *policy; /* put */
    enum resolve_as as;
    slice result;
    u32 rate;              /* redrive */
    bool dry_run, cancels; /* a redrive; a task */

    /* The model's notes. */
    bool parked;
    bool was_duplicate;        /* a parked send: how it would have been answered */
    struct message *waits_for; /* a parked send or result */
    i64 parked_mono;
    u64 saw;                  /* index of the latest move the reply tells of */
    struct message *told;     /* a repeat: its original, */
    u32 told_version;         /* and which version of it the reply tells of */
    bool deed;                /* an operator's, done: it has to be in the audit trail */
    struct message *promised; /* how long this one is remembered was told */
    i64 promised_until;       /* by the run clock */
    u64 task;                 /* its number, from the reply to a redrive */
    struct lease **leases;
    u32 lease_count;
};

/* Names and bytes of keys and payloads are functions of their numbers. */
slice queue_text(u32 queue);
slice key_text(struct arena *a, u32 key);
slice payload_text(struct arena *a, u32 queue, u32 key, u32 variant);
#define QUEUES_MOST 4u
slice group_text(struct arena *a, u32 group);

/* ---- a seed's character: which faults, how often, how busy */
struct profile {
    u64 seed;
    u32 queues, keys, groups;
    u32 turns;
    u32 producers, consumers;    /* calls each side keeps going */
    u32 dt_ms;                   /* typical length of a turn */
    u32 segment_bytes, segments; /* segments: how many the disk holds in the wild phase */
    /* chances in 10,000 per turn or per call */
    u32 crash, clean_restart, stop, wall_step, fail_disk, full_disk, stall;
    u32 lose_request, lose_reply, double_request, cut_poll, unwritten, crash_in_recovery, disk_beside, late_reading;
    u32 slow_disk;      /* chance that a turn does no disk work */
    u32 rules, operate; /* rules change, operators act */
    u32 nack, stale, conflict, group, delay, ttl, explicit_start, batch, prefer_wait, big_result, fat_result;
    bool long_run;
    bool drift;
    u32 us_a_look; /* what the broker's look at the clock costs: at 2000 the least work is more than its share of a turn */
};

/* ---- the world */
enum call_state { CALL_FREE, CALL_TRAVELLING, CALL_IN_BROKER, CALL_ANSWERED, CALL_RETURNING };

struct call {
    enum call_state state;
    struct op *op;
    void *user; /* the broker's */
    i64 at_ms;  /* when it arrives, or its reply does */
    i64 cut_ms; /* the client hangs up then; 0: never */
    bool lose_reply;
    u64 after, receipt;
    bool well_behaved; /* of the last phase: never lost */
    u32 actor;
};

#define CALLS_MAX 256u
#define HELD_MAX  48u

/* What somebody who makes and deletes queues knows of one of them. */
#define PASSING      3u
#define FORMERS_KEPT 8u
#define FORMER_ID    32u
#define FORMER_TOKEN 48u
struct passing {
    u32 life;                 /* 0: it is not there */
    u32 ended, ended_durably; /* lives up to this one are over; whatever a crash takes back */
    u64 deleted_at;           /* the position behind the last deletion */
    struct former {
        char id[FORMER_ID], token[FORMER_TOKEN];
    } used[FORMERS_KEPT], former[FORMERS_KEPT]; /* of this life, and of the one before */
    u32 used_count, former_count;
};

struct world {
    struct profile profile;
    struct rng rng;
    struct arena arena, scratch;
    struct model *model;

    i64 mono_ms, wall_ms, drift_acc;
    u64 clock_us;  /* only ever compared with itself */
    i64 later_ms;  /* what has passed since the turn began, for who reads the clock himself */
    i64 hidden_ms; /* of all that passed while it was down: the clock was set back meanwhile, and nobody can tell it */
    i64 charged_ms, run_began_ms; /* of this life: what its running clock must have counted, and where it began */
    u64 turns;
    struct disk *inner, *disk;
    struct faults *faults;
    struct journal *journal;
    struct broker *broker;
    u64 lives;
    u32 stall_left; /* turns without disk work left */
    u32 full_left;  /* turns with a full disk left */
    bool faults_on, draining, stopped;
    u64 released;  /* replies that wait for no more than this position may leave */
    u64 first_pos; /* of the journal, to see segments go */

    struct call calls[CALLS_MAX];
    u32 calls_live;
    u32 next_call;
    struct call *asking;       /* the call broker_request is working on */
    struct http_reply *census; /* where the answer to a question out of band goes */
    struct {
        struct call *call;
        struct http_reply reply;
        struct buf bytes; /* body, then fields */
    } late[CALLS_MAX];
    u32 late_count;

    u32 policies;           /* drawn so far */
    u64 tasks[QUEUES_MOST]; /* the last known of each queue */

    struct lease *held[HELD_MAX]; /* what consumers think they hold */
    struct lease *stale[HELD_MAX];
    u32 held_count, stale_count;

    struct passing passing[PASSING];
    u32 passing_lives;
    struct rng passing_rng;  /* of its own: what the others do is the same with and without it */
    struct outside *outside; /* NULL: nothing is pushed in this seed */
};

static inline struct broker_time world_time(const struct world *w) {
    return (struct broker_time){.mono_ms = w->mono_ms, .wall_ms = w->wall_ms};
}
static inline bool chance(struct world *w, u32 in_10000) {
    return rng_below(&w->rng, 10000) < in_10000;
}
static inline i64 between(struct world *w, i64 low, i64 high) {
    return low + (i64)rng_below(&w->rng, (u64)(high - low + 1));
}

/* world.c */
u64 world_us(void *ctx);
void sim_run(u64 seed);
bool world_dead(struct world *w);              /* the journal failed: the process has to go */
struct broker_time world_now(struct world *w); /* a reading of its own, in the middle of a turn */
void world_beside(struct world *w);            /* perhaps the disk gets something done */

/* disk.c */
enum fault_kind { FAULT_NONE, FAULT_SYNC, FAULT_WRITE, FAULT_DIE };
struct disk *faulty_disk_new(struct disk *inner, struct faults **out);
/* After `ops` more changing operations the next fitting one fails; FAULT_DIE: that one and all later ones do nothing. */
void fault_arm(struct faults *f, enum fault_kind kind, u32 ops);
bool fault_fired(const struct faults *f);
void fault_clear(struct faults *f);

/* net.c */
struct call *net_send(struct world *w, struct op *op, u32 actor, bool well_behaved);
void net_arrivals(struct world *w);
void net_cuts(struct world *w);
void net_release(struct world *w);
void net_released(void *ctx, u64 position);
void net_respond(void *ctx, void *conn, const struct http_reply *reply);
void net_forget_all(struct world *w); /* the process is gone, and every connection with it */
/* A question out of band, answered at once and durably: the census after a restart. The reply lives in w->scratch. */
void net_ask(struct world *w, struct op *op, struct http_reply *out);
void net_settle_late(struct world *w);

/* clients.c */
void clients_act(struct world *w);
void clients_delivered(struct world *w, const struct op *op, u32 actor);
void clients_fill(struct world *w, u32 from, u32 count); /* each queue gets these keys */
void clients_take(struct world *w);                      /* takes from each queue, and acks */
void clients_drain(struct world *w);                     /* one turn of well-behaved work */
struct op *op_new(struct world *w, enum op_kind kind);

/* operator.c */
struct op *operator_op(struct world *w); /* NULL: nothing to do */
void operator_starts(struct world *w);   /* gives queues their first rules */
void operator_drains(struct world *w, u32 queue);
void operator_checks_audit(struct world *w);

/* request.c */
struct request {
    struct http_request http;
    struct http_field fields[16];
};
void request_build(struct arena *a, const struct op *op, struct request *out);
void net_ask_built(struct world *w, struct request *r, struct http_reply *out);

/* passing.c: queues that come and go */
void passing_act(struct world *w);
void passing_life_ends(struct world *w);
void passing_life_begins(struct world *w);

/* outside.c */
void outside_open(struct world *w, u64 seed);
void outside_boot(struct world *w);
bool outside_fetch(void *ctx, u64 number, const struct outbound_request *r);
void outside_work(struct world *w);
void outside_act(struct world *w);
void outside_drain(struct world *w);
void outside_life_ends(struct world *w);
void outside_life_begins(struct world *w);
u32 outside_calm(struct world *w);
void outside_end(struct world *w);

/* view.c: a JSON object or array taken apart; texts are unescaped and live in the arena */
struct member {
    slice name, text, raw; /* text: of a string, else the raw value */
    bool is_string, is_null;
};
struct view {
    struct member *at;
    u32 count;
    bool ok, is_array;
};
struct view view_of(struct arena *a, slice json);
const struct member *view_get(const struct view *v, const char *name); /* NULL: not there */
slice view_text(const struct view *v, const char *name);               /* empty if absent */
bool view_i64(const struct view *v, const char *name, i64 *out);
bool view_is(const struct view *v, const char *name, const char *text);
bool view_true(const struct view *v, const char *name);
bool view_time(const struct view *v, const char *name, i64 *out);
/* {"content_type","body","encoding"}: the bytes. */
bool view_bytes(struct arena *a, const struct view *v, const char *name, slice *out);

#endif
