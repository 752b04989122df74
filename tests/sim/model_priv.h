/* Inside the model. */
#ifndef HAPAX_SIM_MODEL_PRIV_H
#define HAPAX_SIM_MODEL_PRIV_H

#include "model.h"

#define NOTICE_MS     1000 /* how late a lease or a time to live that ran out may be noticed */
#define SET_MAX       64u
#define PARKED_MAX    CALLS_MAX
#define EFFECTS_KEPT  16u
#define ARRIVALS_MOST 400u /* of a queue: messages that no key leads to, or more than one */

enum at { AT_PENDING, AT_LEASED, AT_HELD, AT_DEAD, AT_DONE, AT_REJECTED, AT_CANCELLED, AT_FORGOTTEN };
enum end {
    END_NEVER,
    END_OPEN,
    END_ACKED,
    END_NACKED,
    END_EXPIRED,
    END_RELEASED,
    END_UNDONE,
    END_CANCELLED,
    END_HANDED_OUT,
    END_DECIDED, /* the token of the last lease died by it */
    END_REVOKED, /* started work; a reservation that was revoked is one that ran out */
};

struct note { /* a step or an effect id; the newest first */
    const struct note *older;
    slice name, content_type, result;
};

/* One state a message may be in. Compared byte by byte: always built from a zeroed one. */
struct phase {
    u64 fence; /* of the newest lease */
    i64 lease_ms, lease_from;
    i64 due, due_max, due_slip;
    i64 since; /* run clock: pending at least from then on */
    i64 settled_min, settled_max, settled_slip;
    i64 window_min, window_max; /* what a settled one was promised; an adaptive window is somewhere between */
    i64 keep_least;             /* the shortest keep_payload since its settlement */
    slice result, content_type, reason;
    const struct note *steps, *effects;
    const struct phase *former; /* of a replay: the outcome before it, as far as that is shown */
    i64 born;                   /* restored: when the outcome's own message first came; 0: as its message */
    u32 attempts, failures, unknowns, crashes;
    u32 at, end;
    u32 started, by_token;            /* started: the newest lease was */
    u32 hidden;                       /* the newest lease left no attempt in the history */
    u32 lookup, reconcile;            /* the newest lease is a look-up; the next one must be */
    u32 doubt;                        /* of former leases: nobody has said what came of them */
    u32 conflict;                     /* a held arrival under a known key */
    u32 parked, takes;                /* dead or held beside its group; dead with its group */
    u32 erased, superseded, restored; /* restored: by cancelling a replay */
    u32 effects_unsure;               /* an effect id of a refused ack may have been dropped for lack of room */
};

/* Kept ones have room for what they hold only: load and copy, never assign. */
struct set {
    u32 count;
    struct phase at[SET_MAX];
};

struct version {
    u64 index; /* the move that made it */
    struct set *set;
    bool noticed; /* time alone may have made it, at any moment since the one before: the index is when it was seen */
};

struct message {
    struct message *prev;  /* the same key's former one, past its window */
    struct message *rival; /* a former one that the key may as well be: past their windows both, a crash hides which */
    u64 order;             /* of admission */
    u32 queue, slot, key, variant, group, generation;
    bool keyless;
    slice name; /* the text of its key; that of an arrival which got its own is learned */
    i64 promised_until;
    bool id_known, has_attr, json_type;
    char id[40];
    i64 born_wall, ttl_at, ttl_slip;
    struct set *set; /* of the last version */
    struct version *versions;
    u32 version_count, version_cap;
    u64 dups, dups_min, dups_safe;
    i64 dup_run, dups_shown;
    u32 live_at; /* place in the list of those not surely settled, + 1 */
};

struct queue_version {
    u64 index;
    bool exists, paused;
    const struct policy *policy;
};
struct queue {
    bool exists, paused;
    const struct policy *policy;
    bool pressed;  /* may be refusing until it is below four fifths of its limit */
    u32 redriving; /* tasks under way: each may redrive any dead one at any time */
    i64 redriving_from;
    i64 window_most, changed_run, changed_slip; /* the longest there was; when the rules changed last */
    bool plain; /* never had other rules than the defaults: only there it is known when tokens are forgotten */
    u32 arrivals;
    bool unsure; /* it may have been made by a request that was refused */
    struct queue_version *versions;
    u32 version_count, version_cap;
};

/* A stretch of cuts, and what the census makes of a key if the cut is there. */
struct stretch {
    struct stretch *next;
    u64 from, to; /* [from, to) */
    u32 slot;
    struct message *message; /* NULL: the key is not known */
    struct set *set;
    i64 dups;
};

struct deed {
    struct deed *next;
    u32 number;
    bool found;
};

struct model {
    struct arena *arena;
    u32 queue_count, key_count, slot_count;
    struct message **keys; /* [queue * slot_count + slot]; slots: slot_of_*() */
    struct queue *queues;
    struct message **live;
    u32 live_count, live_cap;

    i64 mono, turn_mono, wall, run, delay, run_slip, delay_slip;
    struct ahead {
        i64 min, max;
    } ahead, fresh; /* of the delay clock before the wall clock, since the safe clocks; since the mark */
    struct {
        i64 run, delay;
    } safe, mark; /* clocks that surely are written down; the next such */
    i64 counted_run; /* duplicates that came before it surely are written down; for the others there may have been no room */
    bool counts_kept; /* of the life that ended: all of them are */
    bool tight;
    i64 loose_run; /* since when there has been room */
    i64 leapt_run; /* when the loop last ran again after it had stood still */

    u64 moves, floor, orders, era; /* era: index at the last census */
    u64 fence_top, fence_told;

    struct deed *deeds; /* told of by delivered replies */

    struct op *parked[PARKED_MAX];
    u32 parked_count;

    /* The census. */
    bool clean, forgiving; /* forgiving: what was noticed may have been lost again */
    bool *cuts;            /* [moves - floor + 1] */
    struct stretch *stretches;
};

/* model.c */
struct message *model_message_new(struct model *m, u32 queue, u32 slot, const struct send_item *item,
                                  const struct phase *first);
void model_learn_id(struct model *m, struct message *msg, slice id);
/* The message of this key, or that of its rivals which has this id, and is the key's from here on. */
struct message *model_named(struct model *m, u32 queue, u32 slot, slice id);
void model_set_load(struct set *to, const struct set *from);
void model_set_add(struct set *s, const struct phase *p);
struct set *model_set_copy(struct model *m, const struct set *s);
void model_set_close(const struct model *m, const struct message *msg, const struct set *in, struct set *out);
bool model_phase_settled(const struct phase *p);
void model_stamp(const struct model *m, const struct message *msg, struct phase *p); /* settled now */
bool model_doubt(const struct phase *p);
/* The lease is over, and its holder said nothing: its token still counts. */
static inline bool ended_unsaid(const struct phase *p) {
    return p->end == END_EXPIRED || p->end == END_REVOKED;
}
struct phase model_revoked(const struct model *m, const struct message *msg, const struct phase *p);
/* The window of a settled state: it may be, it is over. */
bool model_may_be_over(const struct model *m, const struct phase *p);
bool model_is_over(const struct model *m, const struct phase *p);
/* Dead or held from now on: what that means for its group. */
void model_group_fate(const struct model *m, const struct message *msg, struct phase *p);
bool model_may_be_taken(const struct model *m, const struct message *msg);
bool model_may_wait(const struct model *m, const struct message *msg); /* for others of its group */
struct phase model_redriven(const struct phase *p, i64 since);
/* Its state as a reply names it. */
bool model_shows_as(const struct model *m, const struct message *msg, const struct phase *p, slice state);
void model_cancel(const struct model *m, const struct message *msg, struct phase *p, slice reason);
bool model_ttl_may_be_over(const struct model *m, const struct message *msg, const struct phase *p);
i64 model_ttl_late_ms(const struct model *m, const struct message *msg);
bool model_surely_settled(const struct model *m, const struct message *msg);
bool model_surely_ready(const struct model *m, const struct message *msg);
const struct message *model_any_ready(const struct model *m, u32 queue); /* NULL: none for certain */
void model_queue_set(struct model *m, u32 queue, bool paused);
void model_queue_touch(struct model *m, u32 queue);
void model_queue_rules(struct model *m, u32 queue); /* its policy is another one now */
const char *model_at_name(enum at at);
void model_set_describe(const struct set *s, struct buf *out);
void model_unpark(struct model *m, const struct op *op);

/* Does this state explain what was seen? Then *next, a copy of it, is moved on. */
typedef bool (*explain_fn)(const struct model *m, const struct message *msg, struct phase *next, void *ctx);
/* Keeps what explains; false if nothing does. */
bool model_set_filter(const struct model *m, const struct message *msg, const struct set *in, explain_fn explain,
                      void *ctx, struct set *out);
/* The same for the message itself; fails the seed if nothing explains it. Returns the move's index. */
u64 model_move(struct model *m, struct message *msg, explain_fn explain, void *ctx, const char *what);
/* The same, and what was possible before stays so for a cut before this: the request made it so, it does not tell of it. */
u64 model_move_on(struct model *m, struct message *msg, explain_fn explain, void *ctx, const char *what);
/* The same, or nothing happened: both are kept. */
u64 model_move_maybe(struct model *m, struct message *msg, explain_fn explain, void *ctx);

/* Slots of a queue: its keys; those that conflicting arrivals got for themselves; arrivals on their own. */
static inline struct message **key_slot(const struct model *m, u32 queue, u32 slot) {
    return &m->keys[queue * m->slot_count + slot];
}
static inline u32 slot_of_derived(const struct model *m, u32 key, u32 variant) {
    return m->key_count + key * 2 + variant;
}
static inline const struct policy *policy_of(const struct model *m, u32 queue) {
    return m->queues[queue].policy;
}

/* model_view.c: what a reply shows of a message */
struct shown {
    struct arena *scratch;
    struct view view;
    slice state;
    i64 duplicates;
    bool full; /* a key's whole view: counts, steps, attempts too */
};
bool model_explain_shown(const struct model *m, const struct message *msg, struct phase *next, void *shown);
bool model_result_matches(struct arena *scratch, const struct view *v, const struct phase *p);
bool model_lease_matches(const struct model *m, const struct view *v, const struct phase *p);
bool model_steps_match(struct arena *scratch, const struct view *v, const struct note *steps);
void model_check_identity(struct model *m, struct message *msg, const struct view *v);
void model_check_duplicates(struct message *msg, i64 shown);
void model_promise(const struct model *m, struct op *op, struct message *msg, const struct view *v);

/* model_reply.c: parts of answers that operators' calls share */
void model_saw(struct op *op, u64 index);
bool model_refused(struct model *m, u32 status, const struct view *v);
bool model_refused_by_queue(struct model *m, const struct op *op, u32 status, const struct view *v);
bool model_explain_not_shown(const struct model *m, const struct message *msg, struct phase *next, void *ctx);
void model_answered_queue(struct model *m, struct op *op, const struct http_reply *reply, struct arena *scratch);
struct message *model_target(struct model *m, const struct op *op);

/* model_operate.c */
bool model_answered_deed(struct model *m, struct op *op, const struct http_reply *reply, struct arena *scratch);

/* model_settle.c */
void model_answered_settle(struct model *m, struct op *op, const struct http_reply *reply, struct arena *scratch);
void note_add(const struct model *m, const struct note **list, slice name, slice content_type, slice result);
void note_effect(const struct model *m, const struct note **effects, slice id); /* once, while there is room */

#endif
