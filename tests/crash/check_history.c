/* check_history: judges a history of what clients asked and were told, and says where the broker broke its word.
 *
 * The judge knows the HTTP contract and nothing of the broker's insides. A history is text, one event a line, in the
 * order in which one observer on one clock saw the events:
 *
 *   time_us process op phase number queue key value id token fence group result extra
 *
 *   op      send recv ack nack extend step start release list drained
 *   phase   invoke (about to ask) | ok (answered 2xx) | fail (answered: not applied) | info (unknown: no answer)
 *   number  1, 2, 3, ... per call; an invoke introduces it, the outcome repeats it. A batch is several calls, a receive
 *           is one call with an `ok` line for each message (or one without an id when it got none).
 *   value   digest of everything the producer handed in for the consumer: payload, content type, attributes
 *   result  digest of a settlement's result (on ack/nack invoke and in the answers to duplicates)
 *   extra   name=value pairs joined by commas: dup lease delay start crashes failures steps state class code ttl
 *           verify (times in ms; verify=1 marks the sends that ask, after the drain, what became of each key)
 *   -       a field that does not apply. Fields are compared as text, only the numbers are read as numbers.
 *
 * Two rules make the verdicts certain rather than likely. A call takes effect at one moment between its invoke and
 * its outcome (an `info` one perhaps, and at any later time), so "before" means: the outcome of one lies before the
 * invoke of the other. And fences are granted in growing order, so of two leases the one with the lower fence was
 * granted first, whatever the clock of the observer says. A lease is live at least until its receive was *invoked*
 * plus its length, so a second one that was *answered* before that instant overlaps for sure (a slop, 200 ms unless
 * told otherwise, forgives a broker that reads its clock once per turn).
 *
 * In a FIFO group the sends come from one process, one request at a time, each repeated until its outcome is known;
 * hence the numbers of the first invokes are the order in which the group must be worked off.
 *
 * Everything is one pass over the text, one radix sort of the leases by fence, and one pass over the messages: the
 * time grows with the number of lines and nothing else. Exit: 0 no violation, 1 violations, 2 unusable history. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* What can be wrong. One table makes the enum, the summary and its explanations. */
#define VERDICTS(X)                                                                                                    \
    X(LOST, "lost", "accepted, but neither delivered nor settled by anybody")                                          \
    X(UNEXPECTED, "unexpected", "delivered, but never sent or only refused")                                           \
    X(ALTERED, "altered", "delivered with other bytes, type, attributes or group than sent")                           \
    X(CONFLICT, "conflict", "one key taken with two payloads, or its own payload refused")                             \
    X(DUP_MESSAGE, "dup-message", "one key admitted twice, or one id for two keys")                                    \
    X(DUP_DELIVERY, "dup-delivery", "delivered again after it was settled")                                            \
    X(DOUBLE_SETTLE, "double-settle", "two settlements of one message accepted")                                       \
    X(STALE, "stale-ack", "a superseded or spent token was accepted")                                                  \
    X(REFUSED, "wrongly-refused", "a token was refused although nothing had superseded it")                            \
    X(OVERLAP, "overlap", "two live leases in one FIFO group")                                                         \
    X(EARLY, "early", "delivered again before its lease, delay or backoff had run out")                                \
    X(LATE, "late", "begun although its time to live was over")                                                        \
    X(FENCE, "fence", "a fence that repeats or does not grow")                                                         \
    X(ORDER, "order", "delivered out of its group's order")                                                            \
    X(DIVERGENT, "divergent-replay", "a duplicate was told another outcome than the first one")                        \
    X(STEPS, "steps", "a recorded step is missing from a later delivery, or nobody recorded it")                       \
    X(MISCOUNT, "miscount", "failures or crashes counted that nobody caused, or caused and not counted")               \
    X(DEAD, "dead", "dead without reason, or poison that is not in the dead lane")                                     \
    X(STUCK, "stuck", "not drained after the faults ended")

#define VERDICT_ENUM(name, word, text) V_##name,
enum verdict { VERDICTS(VERDICT_ENUM) V_COUNT };
#undef VERDICT_ENUM

struct verdict_text {
    const char *word, *meaning;
};
#define VERDICT_TEXT(name, word, text) {word, text},
static const struct verdict_text verdict_texts[] = {VERDICTS(VERDICT_TEXT)};
#undef VERDICT_TEXT

enum { WITNESSES_SHOWN = 5, QUEUES_MAX = 64, CRASHES_TO_DEAD = 3, TRANSIENT_TO_DEAD = 6 };

enum op_kind { OP_SEND, OP_RECV, OP_ACK, OP_NACK, OP_EXTEND, OP_STEP, OP_START, OP_RELEASE, OP_LIST, OP_DRAINED };
static const char *const op_names[] = {"send", "recv",  "ack",     "nack", "extend",
                                       "step", "start", "release", "list", "drained"};
enum phase { PH_INVOKE, PH_OK, PH_FAIL, PH_INFO };
static const char *const phase_names[] = {"invoke", "ok", "fail", "info"};
enum state { ST_NONE, ST_PENDING, ST_LEASED, ST_HELD, ST_DEAD, ST_DONE, ST_REJECTED, ST_CANCELLED };
static const char *const state_names[] = {"-", "pending", "leased", "held", "dead", "done", "rejected", "cancelled"};
enum class { CL_NONE, CL_TRANSIENT, CL_POISON, CL_REJECTED, CL_UNKNOWN, CL_ABSENT };
static const char *const class_names[] = {"-", "transient", "poison", "rejected", "unknown", "absent"};

static bool is_settled(enum state s) {
    return s >= ST_DONE;
}

struct text {
    const char *p;
    size_t n;
};

struct event {
    uint64_t line;
    int64_t time;
    enum op_kind op;
    enum phase phase;
    uint64_t number, fence;
    uint64_t queue, key, value, id, token, group, result; /* hashes of the text; 0 for "-" */
    struct text queue_text, key_text, code;
    int64_t lease_ms, delay_ms, ttl_ms;
    int64_t crashes, failures, steps; /* -1: not given */
    enum state state;
    enum class class;
    bool dup, explicit_start, verify;
};

#define NONE  UINT32_MAX
#define NEVER INT64_MAX

/* A value tried under a key. Most keys have one. */
struct attempt {
    uint64_t value;
    int64_t first_invoke;
    int64_t delay_us;
    uint32_t asked, failed;
    bool refused_as_reused;
    uint32_t next;
};

/* A result offered for a message by an ack or a rejecting nack. */
struct offer {
    uint64_t result;
    uint32_t next;
    bool stands; /* accepted as the first settlement */
};

struct lease {
    uint64_t fence, token;
    uint32_t msg, next; /* next lease of the same message */
    uint64_t line;
    int64_t invoke, answered;
    int64_t live_until; /* at least; moved by extends and by settling calls */
    int64_t runs_out;   /* at the earliest; moved by extends alone */
    int64_t gap_until;  /* after a nack: not before */
    int64_t crashes, failures, steps;
    bool explicit_start, started; /* started: the start call was not refused */
    bool spent;                   /* settled, nacked or released, known applied */
    bool maybe_ran_out;           /* but perhaps not in time */
    bool maybe_spent;             /* the same, unknown */
    bool nack_failure, maybe_nack_failure;
    enum op_kind spent_by;
    uint32_t steps_ok, steps_maybe;
    uint32_t settling_calls;  /* ack, nack, release: asked and not refused */
    uint64_t refused_on_line; /* told `fenced` here; 0 never */
};

struct message {
    uint64_t id;
    struct text key;
    uint32_t queue, group, in_group; /* in_group: next message sent to the same group */
    uint32_t attempts, offers, leases;
    uint64_t first_number, line;
    int64_t first_invoke, first_ok, ttl_us;
    uint64_t value; /* the admitted one, 0 unknown */
    uint64_t settled_fence, settled_line, poison_fence;
    int64_t settled_ok;          /* when the final settlement was answered; NEVER */
    enum state settled_as, told; /* told: what a duplicate heard last when settled or dead */
    uint64_t told_result;
    uint32_t poison, poison_ok, transient, unknown;
    bool accepted, known, done_asked, rejected_asked, told_result_set, listed_dead, delivered;
};

struct group {
    uint64_t name;
    uint32_t first, last;  /* messages in send order */
    uint32_t recent_lease; /* while walking leases by fence: the one with the latest live_until */
};

struct queue {
    uint64_t name;
    struct text text;
    uint64_t lost_receives, lost_starts; /* without an answer: all, and those that began work by themselves */
    bool dead_listed;
};

struct call {
    int64_t invoke, delay_us, lease_us;
    uint64_t floor; /* recv: highest fence known when it was asked */
    uint64_t result;
    uint32_t target; /* send: message; settle: lease */
    uint32_t attempt, offer;
    uint8_t kind, class;
    bool known, ended, explicit_start, verify;
};

/* Growable arrays and a hash from 64-bit names to indexes. */
struct vec {
    void *p;
    size_t n, cap, size;
};

struct map {
    uint64_t *keys;
    uint32_t *values;
    size_t n, cap;
};

static struct vec messages = {.size = sizeof(struct message)}, leases = {.size = sizeof(struct lease)},
                  attempts = {.size = sizeof(struct attempt)}, offers = {.size = sizeof(struct offer)},
                  groups = {.size = sizeof(struct group)}, calls = {.size = sizeof(struct call)};
static struct map by_key, by_id, by_token, by_fence, by_group;
static struct queue queues[QUEUES_MAX];
static uint32_t queue_count;
static uint64_t violations[V_COUNT];
static uint64_t fence_known; /* highest fence in an answered receive */
static int64_t slop_us = 200000;
static bool drained_seen, drained_ok;
static uint64_t count_sends_ok, count_deliveries, count_settled, count_redelivered, count_recovered, count_info,
    count_duplicates, count_refused_stale, count_conflicts;
static int64_t last_time;

static _Noreturn void unusable(uint64_t line, const char *why) {
    printf("line %" PRIu64 ": unusable history: %s\n", line, why);
    exit(2);
}

static void *grown(void *p, size_t bytes) {
    void *q = realloc(p, bytes);
    if (!q) {
        fprintf(stderr, "check_history: out of memory\n");
        exit(2);
    }
    return q;
}

static uint32_t vec_add(struct vec *v) {
    if (v->n == v->cap) {
        v->cap = v->cap ? v->cap * 2 : 1024;
        v->p = grown(v->p, v->cap * v->size);
    }
    memset((char *)v->p + v->n * v->size, 0, v->size);
    return (uint32_t)v->n++;
}

static struct message *message_at(uint32_t i) {
    return (struct message *)messages.p + i;
}
static struct lease *lease_at(uint32_t i) {
    return (struct lease *)leases.p + i;
}
static struct attempt *attempt_at(uint32_t i) {
    return (struct attempt *)attempts.p + i;
}
static struct offer *offer_at(uint32_t i) {
    return (struct offer *)offers.p + i;
}
static struct group *group_at(uint32_t i) {
    return (struct group *)groups.p + i;
}

static size_t map_slot(const struct map *m, uint64_t key) {
    size_t i = (size_t)(key * 0x9e3779b97f4a7c15u >> 20) & (m->cap - 1);
    while (m->keys[i] && m->keys[i] != key) i = (i + 1) & (m->cap - 1);
    return i;
}

static void map_grow(struct map *m) {
    struct map old = *m;
    m->cap = old.cap ? old.cap * 2 : 4096;
    m->keys = calloc(m->cap, sizeof *m->keys);
    m->values = grown(NULL, m->cap * sizeof *m->values);
    if (!m->keys) unusable(0, "out of memory");
    for (size_t i = 0; i < old.cap; i++) {
        if (!old.keys[i]) continue;
        size_t slot = map_slot(m, old.keys[i]);
        m->keys[slot] = old.keys[i];
        m->values[slot] = old.values[i];
    }
    free(old.keys);
    free(old.values);
}

/* The place of key's value, NONE in it when the key is new. Keys are never 0. */
static uint32_t *map_get(struct map *m, uint64_t key) {
    if (m->n * 2 >= m->cap) map_grow(m);
    size_t slot = map_slot(m, key);
    if (!m->keys[slot]) {
        m->keys[slot] = key;
        m->values[slot] = NONE;
        m->n++;
    }
    return &m->values[slot];
}

static uint64_t mixed(uint64_t a, uint64_t b) {
    __extension__ unsigned __int128 wide = (unsigned __int128)(a ^ 0x9e3779b97f4a7c15u) * (b ^ 0xd6e8feb86659fd93u);
    uint64_t h = (uint64_t)wide ^ (uint64_t)(wide >> 64);
    return h ? h : 1;
}

static uint64_t hash_text(struct text t) {
    if (t.n == 1 && t.p[0] == '-') return 0;
    uint64_t h = t.n;
    while (t.n >= 8) {
        uint64_t w;
        memcpy(&w, t.p, 8);
        h = mixed(h, w);
        t.p += 8;
        t.n -= 8;
    }
    uint64_t w = 0;
    memcpy(&w, t.p, t.n);
    return mixed(h ^ (uint64_t)t.n << 56, w);
}

/* Reporting. */

static void violation(enum verdict v, const struct message *m, uint64_t line, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

static void violation(enum verdict v, const struct message *m, uint64_t line, const char *fmt, ...) {
    if (violations[v]++ >= WITNESSES_SHOWN) return;
    printf("VIOLATION %s", verdict_texts[v].word);
    if (m)
        printf(" queue %.*s key %.*s", (int)queues[m->queue].text.n, queues[m->queue].text.p, (int)m->key.n, m->key.p);
    if (line) printf(" line %" PRIu64, line);
    printf(": ");
    va_list args;
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    putchar('\n');
}

static uint32_t queue_find(const struct event *e) {
    for (uint32_t i = 0; i < queue_count; i++)
        if (queues[i].name == e->queue) return i;
    if (queue_count == QUEUES_MAX) unusable(e->line, "too many queues");
    queues[queue_count] = (struct queue){.name = e->queue, .text = e->queue_text};
    return queue_count++;
}

/* Sends. */

static void group_join(struct message *m, uint32_t index, uint64_t name) {
    m->group = NONE;
    m->in_group = NONE;
    if (!name) return;
    uint32_t *slot = map_get(&by_group, mixed(queues[m->queue].name, name));
    if (*slot == NONE) {
        *slot = vec_add(&groups);
        *group_at(*slot) = (struct group){.name = name, .first = index, .last = index, .recent_lease = NONE};
    } else {
        struct group *g = group_at(*slot);
        message_at(g->last)->in_group = index;
        g->last = index;
    }
    m->group = *slot;
}

static uint32_t message_find(const struct event *e) {
    if (!e->key || !e->queue) unusable(e->line, "no queue or key");
    return *map_get(&by_key, mixed(e->queue, e->key));
}

static uint32_t message_new(const struct event *e) {
    uint32_t index = vec_add(&messages);
    *map_get(&by_key, mixed(e->queue, e->key)) = index;
    struct message *m = message_at(index);
    *m = (struct message){.key = e->key_text,
                          .queue = queue_find(e),
                          .attempts = NONE,
                          .offers = NONE,
                          .leases = NONE,
                          .first_number = e->number,
                          .line = e->line,
                          .first_invoke = e->time,
                          .first_ok = NEVER,
                          .ttl_us = e->ttl_ms * 1000,
                          .settled_ok = NEVER};
    group_join(m, index, e->group);
    return index;
}

static uint32_t attempt_find(const struct message *m, uint64_t value) {
    uint32_t i = m->attempts;
    while (i != NONE && attempt_at(i)->value != value) i = attempt_at(i)->next;
    return i;
}

static void send_invoke(const struct event *e, struct call *c) {
    c->target = message_find(e);
    if (c->target == NONE) c->target = message_new(e);
    struct message *m = message_at(c->target);
    c->attempt = attempt_find(m, e->value);
    if (c->attempt == NONE) {
        c->attempt = vec_add(&attempts);
        *attempt_at(c->attempt) = (struct attempt){
            .value = e->value, .first_invoke = e->time, .delay_us = e->delay_ms * 1000, .next = m->attempts};
        m->attempts = c->attempt;
    }
    attempt_at(c->attempt)->asked++;
}

/* Every place that shows an id for a key comes here. */
static void id_seen(uint32_t index, uint64_t id, uint64_t line) {
    struct message *m = message_at(index);
    if (!id) unusable(line, "an answer without an id");
    if (m->id && m->id != id) violation(V_DUP_MESSAGE, m, line, "a second id for this key");
    uint32_t *slot = map_get(&by_id, mixed(queues[m->queue].name, id));
    if (*slot == NONE) *slot = index;
    if (*slot != index) violation(V_DUP_MESSAGE, m, line, "its id belongs to another key");
    m->id = id;
}

/* What a duplicate is told about a settled message: it must never change, and must be a result somebody offered. */
static void told_settled(struct message *m, const struct event *e) {
    if (e->state == ST_CANCELLED && e->time < m->first_invoke + m->ttl_us - slop_us)
        violation(V_EARLY, m, e->line, "cancelled before its time to live was over");
    if (m->told_result_set && (m->told != e->state || m->told_result != e->result))
        violation(V_DIVERGENT, m, e->line, "told %s now, %s before, or another result", state_names[e->state],
                  state_names[m->told]);
    m->told = e->state;
    m->told_result = e->result;
    m->told_result_set = true;
}

static void send_ok(const struct event *e, const struct call *c) {
    struct message *m = message_at(c->target);
    const struct attempt *a = attempt_at(c->attempt);
    count_sends_ok++;
    id_seen(c->target, e->id, e->line);
    if (e->dup) {
        count_duplicates++;
        if (!m->known && !m->delivered) count_recovered++;
    } else if (m->accepted || m->known) {
        violation(V_DUP_MESSAGE, m, e->line, "accepted as new a second time");
    }
    if (c->verify && !is_settled(e->state) && e->state != ST_DEAD)
        violation(V_STUCK, m, e->line, "%s after the drain", state_names[e->state]);
    m->accepted |= !e->dup;
    if (m->value && m->value != a->value) violation(V_CONFLICT, m, e->line, "two payloads taken under one key");
    m->value = a->value;
    m->known = true;
    if (e->time < m->first_ok) m->first_ok = e->time;
    if (is_settled(e->state)) {
        told_settled(m, e);
    } else {
        if (m->told_result_set || (m->settled_ok < c->invoke))
            violation(V_DIVERGENT, m, e->line, "told %s after it was settled", state_names[e->state]);
        m->told = e->state;
    }
}

static void send_fail(const struct event *e, const struct call *c) {
    struct attempt *a = attempt_at(c->attempt);
    a->failed++;
    if (e->code.n == 10 && memcmp(e->code.p, "key_reused", 10) == 0) {
        a->refused_as_reused = true;
        count_conflicts++;
    }
}

/* Deliveries. */

static void delivery_matches(const struct event *e, struct message *m, const struct call *c) {
    uint32_t a = attempt_find(m, e->value);
    uint64_t group = m->group == NONE ? 0 : group_at(m->group)->name;
    if (a == NONE || e->group != group) {
        violation(V_ALTERED, m, e->line, "not what was sent under this key");
        return;
    }
    if (m->value && m->value != e->value) violation(V_CONFLICT, m, e->line, "delivered the payload that was refused");
    m->value = e->value;
    const struct attempt *sent = attempt_at(a);
    if (sent->delay_us && e->time < sent->first_invoke + sent->delay_us - slop_us)
        violation(V_EARLY, m, e->line, "delivered before its delay was over");
    if (m->ttl_us && m->leases == NONE && !queues[m->queue].lost_receives && m->first_ok != NEVER &&
        c->invoke > m->first_ok + m->ttl_us + slop_us)
        violation(V_LATE, m, e->line, "delivered for the first time after its time to live");
    if (m->told_result_set && m->told == ST_CANCELLED)
        violation(V_DUP_DELIVERY, m, e->line, "told cancelled before, delivered now");
    if (c->invoke > m->settled_ok)
        violation(V_DUP_DELIVERY, m, e->line, "settled on line %" PRIu64 ", asked for after that", m->settled_line);
}

static void fence_grows(const struct event *e, const struct call *c, const struct message *m, uint32_t lease) {
    if (!e->fence) unusable(e->line, "a delivery without a fence");
    uint32_t *slot = map_get(&by_fence, e->fence);
    if (*slot != NONE)
        violation(V_FENCE, m, e->line, "fence %" PRIu64 " was used on line %" PRIu64, e->fence, lease_at(*slot)->line);
    else if (e->fence <= c->floor)
        violation(V_FENCE, m, e->line, "fence %" PRIu64 " after %" PRIu64 " had been seen", e->fence, c->floor);
    *slot = lease;
    if (e->fence > fence_known) fence_known = e->fence;
}

static void recv_ok(const struct event *e, const struct call *c) {
    if (!e->id) return;
    count_deliveries++;
    uint32_t index = message_find(e);
    bool sent = index != NONE;
    if (!sent) index = message_new(e);
    id_seen(index, e->id, e->line);
    struct message *m = message_at(index);
    m->delivered = true;
    if (sent)
        delivery_matches(e, m, c);
    else
        violation(V_UNEXPECTED, m, e->line, "never sent");
    uint32_t l = vec_add(&leases);
    *lease_at(l) = (struct lease){.fence = e->fence,
                                  .token = e->token,
                                  .msg = index,
                                  .next = m->leases,
                                  .line = e->line,
                                  .invoke = c->invoke,
                                  .answered = e->time,
                                  .live_until = c->invoke + c->lease_us - slop_us,
                                  .runs_out = c->invoke + c->lease_us - slop_us,
                                  .crashes = e->crashes,
                                  .failures = e->failures,
                                  .steps = e->steps,
                                  .explicit_start = c->explicit_start,
                                  .started = !c->explicit_start};
    fence_grows(e, c, m, l);
    if (m->leases != NONE) count_redelivered++;
    m->leases = l;
    uint32_t *slot = map_get(&by_token, e->token);
    if (*slot != NONE) violation(V_FENCE, m, e->line, "its token was handed out before");
    *slot = l;
}

/* Settling calls. */

static bool is_settling(enum op_kind op) {
    return op == OP_ACK || op == OP_NACK || op == OP_RELEASE;
}

static void settle_invoke(const struct event *e, struct call *c) {
    c->target = *map_get(&by_token, e->token);
    if (c->target == NONE) unusable(e->line, "a token nobody was given");
    struct message *m = message_at(lease_at(c->target)->msg);
    lease_at(c->target)->settling_calls += is_settling(e->op);
    c->offer = NONE;
    bool rejects = e->op == OP_NACK && e->class == CL_REJECTED;
    if (e->op != OP_ACK && !rejects) return;
    c->offer = vec_add(&offers);
    *offer_at(c->offer) = (struct offer){.result = e->result, .next = m->offers};
    m->offers = c->offer;
    m->done_asked |= e->op == OP_ACK;
    m->rejected_asked |= rejects;
}

/* A newer lease of the same message that somebody already held when the call was made, or NONE. */
static uint32_t newer_lease_before(const struct lease *l, int64_t invoke) {
    for (uint32_t i = message_at(l->msg)->leases; i != NONE; i = lease_at(i)->next)
        if (lease_at(i)->fence > l->fence && lease_at(i)->answered < invoke) return i;
    return NONE;
}

static void token_was_valid(const struct event *e, const struct call *c) {
    const struct lease *l = lease_at(c->target);
    const struct message *m = message_at(l->msg);
    uint32_t newer = newer_lease_before(l, c->invoke);
    if (newer != NONE)
        violation(V_STALE, m, e->line,
                  "%s taken for fence %" PRIu64 ", but fence %" PRIu64 " was out since line %" PRIu64, op_names[e->op],
                  l->fence, lease_at(newer)->fence, lease_at(newer)->line);
    else if (l->spent && l->spent_by != e->op)
        violation(V_STALE, m, e->line, "%s taken with a token spent by %s", op_names[e->op], op_names[l->spent_by]);
}

/* The answer to a repeated call (dup) proves an earlier one with this token took effect, perhaps one never answered. */
static void settled_finally(const struct event *e, const struct call *c, enum state as) {
    struct lease *l = lease_at(c->target);
    struct message *m = message_at(l->msg);
    if (m->settled_ok != NEVER) {
        if (!e->dup || m->settled_fence != l->fence || m->settled_as != as)
            violation(V_DOUBLE_SETTLE, m, e->line, "settled on line %" PRIu64 " already", m->settled_line);
        return;
    }
    count_settled++;
    m->settled_ok = e->time;
    m->settled_line = e->line;
    m->settled_fence = l->fence;
    m->settled_as = as;
    if (c->offer != NONE && !e->dup) offer_at(c->offer)->stands = true;
}

static void nack_counts(const struct event *e, const struct call *c, bool certain) {
    struct lease *l = lease_at(c->target);
    struct message *m = message_at(l->msg);
    enum class class = (enum class)c->class;
    if (class == CL_POISON) m->poison++;
    if (class == CL_POISON && certain) {
        m->poison_ok++;
        m->poison_fence = l->fence;
    }
    if (class == CL_TRANSIENT) m->transient++;
    if (class == CL_UNKNOWN) m->unknown++;
    l->maybe_nack_failure |= class == CL_TRANSIENT || class == CL_UNKNOWN;
    l->nack_failure |= certain && class == CL_TRANSIENT;
    if (certain && e->op == OP_NACK && c->delay_us) l->gap_until = c->invoke + c->delay_us - slop_us;
}

/* The lease ends when the call took effect, at the earliest when it was made. */
static void lease_ends(struct lease *l, const struct call *c) {
    if (c->invoke < l->live_until) l->live_until = c->invoke;
}

static void settle_ok(const struct event *e, const struct call *c) {
    struct lease *l = lease_at(c->target);
    if (!e->dup)
        token_was_valid(e, c);
    else if (is_settling(e->op) && l->settling_calls < 2)
        violation(V_DIVERGENT, message_at(l->msg), e->line, "%s called a repetition, but it is the first",
                  op_names[e->op]);
    switch (e->op) {
    case OP_ACK:
        lease_ends(l, c);
        settled_finally(e, c, ST_DONE);
        break;
    case OP_NACK:
        lease_ends(l, c);
        if (c->class == CL_REJECTED) settled_finally(e, c, ST_REJECTED);
        if (!e->dup) nack_counts(e, c, true);
        break;
    case OP_RELEASE:
        lease_ends(l, c);
        break;
    case OP_EXTEND:
        l->live_until = l->runs_out = c->invoke + c->lease_us - slop_us;
        break;
    case OP_STEP:
        if (!e->dup) l->steps_ok++;
        break;
    case OP_START:
        l->started = true;
        break;
    default:
        break;
    }
    if (is_settling(e->op)) {
        l->spent = true;
        l->spent_by = e->op;
    }
}

static void settle_info(const struct event *e, const struct call *c) {
    struct lease *l = lease_at(c->target);
    if (e->op == OP_EXTEND) {
        int64_t shortened = c->invoke + c->lease_us - slop_us;
        if (shortened < l->live_until) l->live_until = shortened;
    }
    if (e->op == OP_STEP) l->steps_maybe++;
    if (e->op == OP_START) l->started = true;
    if (!is_settling(e->op)) return;
    lease_ends(l, c);
    l->maybe_spent = true;
    if (e->op == OP_NACK) nack_counts(e, c, false);
}

static bool code_is(const struct event *e, const char *code) {
    return e->code.n == strlen(code) && memcmp(e->code.p, code, e->code.n) == 0;
}

/* A refusal must have a reason. `fenced` is judged at the end: the newer lease's answer may still be on its way. */
static void settle_fail(const struct event *e, const struct call *c) {
    struct lease *l = lease_at(c->target);
    const struct message *m = message_at(l->msg);
    l->settling_calls -= is_settling(e->op);
    if (code_is(e, "fenced")) {
        count_refused_stale++;
        l->refused_on_line = e->line;
    } else if (code_is(e, "settled")) {
        count_refused_stale++;
        bool asked = m->done_asked || m->rejected_asked || m->poison || l->spent || l->maybe_spent;
        bool timed_out = m->ttl_us && e->time >= m->first_invoke + m->ttl_us - slop_us;
        if (!asked && !timed_out)
            violation(V_REFUSED, m, e->line, "%s refused as settled, nobody settled it", op_names[e->op]);
    }
}

/* Bookkeeping around the whole pass. */

static void list_item(const struct event *e) {
    uint32_t q = queue_find(e);
    if (e->state == ST_DEAD) queues[q].dead_listed = true;
    if (!e->id) return;
    uint32_t index = *map_get(&by_id, mixed(e->queue, e->id));
    if (index == NONE) {
        violation(V_UNEXPECTED, NULL, e->line, "listed as %s, but its id was never told", state_names[e->state]);
        return;
    }
    struct message *m = message_at(index);
    if (e->state == ST_DEAD)
        m->listed_dead = true;
    else
        violation(V_STUCK, m, e->line, "still %s after the drain", state_names[e->state]);
}

static void on_invoke(const struct event *e) {
    while (calls.n <= e->number) vec_add(&calls);
    struct call *c = (struct call *)calls.p + e->number;
    if (c->known) unusable(e->line, "a call number used twice");
    *c = (struct call){.invoke = e->time,
                       .delay_us = e->delay_ms * 1000,
                       .lease_us = e->lease_ms * 1000,
                       .floor = fence_known,
                       .result = e->result,
                       .target = NONE,
                       .kind = (uint8_t)e->op,
                       .class = (uint8_t)e->class,
                       .known = true,
                       .explicit_start = e->explicit_start,
                       .verify = e->verify};
    if (e->op == OP_SEND)
        send_invoke(e, c);
    else if (e->op != OP_RECV)
        settle_invoke(e, c);
}

static void on_outcome(const struct event *e) {
    struct call *c = e->number < calls.n ? (struct call *)calls.p + e->number : NULL;
    if (!c || !c->known || c->kind != e->op) unusable(e->line, "an outcome without its invoke");
    if (c->ended && e->op != OP_RECV) unusable(e->line, "a second outcome");
    c->ended = true;
    if (e->phase == PH_INFO) count_info++;
    if (e->op == OP_SEND) {
        if (e->phase == PH_OK) send_ok(e, c);
        if (e->phase == PH_FAIL) send_fail(e, c);
    } else if (e->op == OP_RECV) {
        if (e->phase == PH_OK) recv_ok(e, c);
        if (e->phase == PH_INFO) {
            struct queue *q = &queues[queue_find(e)];
            q->lost_receives++;
            q->lost_starts += !c->explicit_start;
        }
    } else {
        struct lease *l = lease_at(c->target);
        if (!l->spent)
            l->maybe_ran_out |= e->time > l->runs_out; /* a crash was counted before the call came, perhaps */
        if (e->phase == PH_OK) settle_ok(e, c);
        if (e->phase == PH_INFO) settle_info(e, c);
        if (e->phase == PH_FAIL) settle_fail(e, c);
    }
}

static void on_event(const struct event *e) {
    if (e->time < last_time) unusable(e->line, "time runs backwards");
    last_time = e->time;
    if (e->op == OP_LIST) {
        list_item(e);
    } else if (e->op == OP_DRAINED) {
        drained_seen = true;
        drained_ok = e->phase == PH_OK;
    } else if (e->phase == PH_INVOKE) {
        on_invoke(e);
    } else {
        on_outcome(e);
    }
}

/* Reading lines. */

static bool take_field(struct text *rest, struct text *field) {
    if (!rest->n) return false;
    const char *space = memchr(rest->p, ' ', rest->n);
    field->p = rest->p;
    field->n = space ? (size_t)(space - rest->p) : rest->n;
    size_t used = field->n + (space ? 1 : 0);
    rest->p += used;
    rest->n -= used;
    return field->n > 0;
}

static bool read_number(struct text t, uint64_t *out) {
    uint64_t v = 0;
    if (!t.n || t.n > 19) return false;
    for (size_t i = 0; i < t.n; i++) {
        if (t.p[i] < '0' || t.p[i] > '9') return false;
        v = v * 10 + (uint64_t)(t.p[i] - '0');
    }
    *out = v;
    return true;
}

static int read_word(struct text t, const char *const *words, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (strlen(words[i]) == t.n && memcmp(words[i], t.p, t.n) == 0) return (int)i;
    return -1;
}
#define READ_WORD(t, words) read_word((t), (words), sizeof(words) / sizeof((words)[0]))

static bool name_is(struct text t, const char *name) {
    return t.n == strlen(name) && memcmp(t.p, name, t.n) == 0;
}

static bool read_pair(struct event *e, struct text name, struct text value) {
    uint64_t n = 0;
    bool number = read_number(value, &n);
    int word;
    if (name_is(name, "code")) {
        e->code = value;
        return true;
    }
    if (name_is(name, "state")) {
        word = READ_WORD(value, state_names);
        e->state = word < 0 ? ST_NONE : (enum state)word;
        return word >= 0;
    }
    if (name_is(name, "class")) {
        word = READ_WORD(value, class_names);
        e->class = word < 0 ? CL_NONE : (enum class)word;
        return word >= 0;
    }
    if (name_is(name, "start")) {
        e->explicit_start = name_is(value, "explicit");
        return true;
    }
    if (!number) return false;
    if (name_is(name, "dup")) e->dup = n != 0;
    if (name_is(name, "verify")) e->verify = n != 0;
    if (name_is(name, "lease")) e->lease_ms = (int64_t)n;
    if (name_is(name, "ttl")) e->ttl_ms = (int64_t)n;
    if (name_is(name, "delay")) e->delay_ms = (int64_t)n;
    if (name_is(name, "crashes")) e->crashes = (int64_t)n;
    if (name_is(name, "failures")) e->failures = (int64_t)n;
    if (name_is(name, "steps")) e->steps = (int64_t)n;
    return true;
}

static bool read_extra(struct event *e, struct text extra) {
    if (extra.n == 1 && extra.p[0] == '-') return true;
    while (extra.n) {
        const char *comma = memchr(extra.p, ',', extra.n);
        size_t n = comma ? (size_t)(comma - extra.p) : extra.n;
        const char *equals = memchr(extra.p, '=', n);
        if (!equals) return false;
        size_t name_n = (size_t)(equals - extra.p);
        struct text name = {extra.p, name_n}, value = {equals + 1, n - name_n - 1};
        if (!read_pair(e, name, value)) return false;
        extra.p += n + (comma ? 1 : 0);
        extra.n -= n + (comma ? 1 : 0);
    }
    return true;
}

enum { FIELD_COUNT = 14 };

static void read_line(struct text line, uint64_t number) {
    struct text f[FIELD_COUNT];
    struct event e = {.line = number, .crashes = -1, .failures = -1, .steps = -1};
    for (int i = 0; i < FIELD_COUNT; i++)
        if (!take_field(&line, &f[i])) unusable(number, "fourteen fields expected");
    uint64_t time = 0;
    int op = READ_WORD(f[2], op_names), phase = READ_WORD(f[3], phase_names);
    if (!read_number(f[0], &time) || op < 0 || phase < 0 || !read_number(f[4], &e.number))
        unusable(number, "bad time, op, phase or number");
    if (!name_is(f[10], "-") && !read_number(f[10], &e.fence)) unusable(number, "bad fence");
    if (!read_extra(&e, f[13])) unusable(number, "bad extra field");
    e.time = (int64_t)time;
    e.op = (enum op_kind)op;
    e.phase = (enum phase)phase;
    e.queue_text = f[5];
    e.key_text = f[6];
    e.queue = hash_text(f[5]);
    e.key = hash_text(f[6]);
    e.value = hash_text(f[7]);
    e.id = hash_text(f[8]);
    e.token = hash_text(f[9]);
    e.group = hash_text(f[11]);
    e.result = hash_text(f[12]);
    on_event(&e);
}

static uint64_t read_history(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0) {
        perror(path);
        exit(2);
    }
    if (st.st_size == 0) unusable(0, "empty");
    const char *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
    if (p == MAP_FAILED) {
        perror(path);
        exit(2);
    }
    close(fd);
    const char *end = p + st.st_size;
    uint64_t number = 0;
    while (p < end) {
        const char *newline = memchr(p, '\n', (size_t)(end - p));
        if (!newline) unusable(number + 1, "the last line is cut");
        read_line((struct text){p, (size_t)(newline - p)}, ++number);
        p = newline + 1;
    }
    return number; /* the mapping stays: witnesses point into it */
}

/* The judgement over leases: walk them in the order of their fences. */

static uint32_t *leases_by_fence(void) {
    size_t n = leases.n;
    uint32_t *from = grown(NULL, (n + 1) * sizeof *from), *to = grown(NULL, (n + 1) * sizeof *to);
    for (size_t i = 0; i < n; i++) from[i] = (uint32_t)i;
    for (unsigned shift = 0; shift < 64; shift += 16) {
        size_t *start = calloc(65537, sizeof *start);
        if (!start) unusable(0, "out of memory");
        for (size_t i = 0; i < n; i++) start[(lease_at(from[i])->fence >> shift & 0xffff) + 1]++;
        for (size_t i = 0; i < 65536; i++) start[i + 1] += start[i];
        for (size_t i = 0; i < n; i++) to[start[lease_at(from[i])->fence >> shift & 0xffff]++] = from[i];
        free(start);
        uint32_t *swap = from;
        from = to;
        to = swap;
    }
    free(to);
    return from;
}

static bool maybe_crashed(const struct lease *l) {
    return l->started && (!l->spent || l->maybe_ran_out);
}

/* What the earlier leases of a message add up to, carried from lease to lease in the order of fences. */
struct past {
    uint32_t last; /* the lease before this one, NONE at first */
    uint64_t crashes_max, failures_min, failures_max, steps_min, steps_max;
};

static void judge_against_past(const struct lease *l, const struct past *past, const struct message *m) {
    uint64_t lost = queues[m->queue].lost_starts;
    if (l->crashes >= 0 && (uint64_t)l->crashes > past->crashes_max + lost)
        violation(V_MISCOUNT, m, l->line, "%" PRId64 " crashes told, at most %" PRIu64 " happened", l->crashes,
                  past->crashes_max + lost);
    if (l->failures >= 0 && ((uint64_t)l->failures > past->failures_max || (uint64_t)l->failures < past->failures_min))
        violation(V_MISCOUNT, m, l->line, "%" PRId64 " failures told, %" PRIu64 " to %" PRIu64 " happened", l->failures,
                  past->failures_min, past->failures_max);
    if (l->steps >= 0 && ((uint64_t)l->steps > past->steps_max || (uint64_t)l->steps < past->steps_min))
        violation(V_STEPS, m, l->line, "%" PRId64 " steps came back, %" PRIu64 " to %" PRIu64 " were recorded",
                  l->steps, past->steps_min, past->steps_max);
    if (past->last == NONE) return;
    const struct lease *before = lease_at(past->last);
    if (l->answered < before->live_until)
        violation(V_EARLY, m, l->line, "the lease of line %" PRIu64 " had %" PRId64 " ms to go", before->line,
                  (before->live_until - l->answered) / 1000);
    if (l->answered < before->gap_until)
        violation(V_EARLY, m, l->line, "nacked with a delay that had %" PRId64 " ms to go",
                  (before->gap_until - l->answered) / 1000);
}

static void past_add(struct past *past, const struct lease *l, uint32_t index) {
    past->last = index;
    if (maybe_crashed(l)) past->crashes_max++;
    if (l->maybe_nack_failure) past->failures_max++;
    if (l->nack_failure) past->failures_min++;
    past->steps_min += l->steps_ok;
    past->steps_max += l->steps_ok + l->steps_maybe;
}

static void judge_group(const struct lease *l, uint32_t index) {
    const struct message *m = message_at(l->msg);
    if (m->group == NONE) return;
    struct group *g = group_at(m->group);
    if (g->recent_lease != NONE) {
        const struct lease *before = lease_at(g->recent_lease);
        if (before->msg != l->msg && l->answered < before->live_until)
            violation(V_OVERLAP, m, l->line, "the lease of line %" PRIu64 " in its group had %" PRId64 " ms to go",
                      before->line, (before->live_until - l->answered) / 1000);
    }
    if (g->recent_lease == NONE || lease_at(g->recent_lease)->live_until < l->live_until) g->recent_lease = index;
}

static void judge_leases(void) {
    uint32_t *sorted = leases_by_fence();
    struct past *pasts = calloc(messages.n + 1, sizeof *pasts);
    if (!pasts) unusable(0, "out of memory");
    for (size_t i = 0; i < messages.n; i++) pasts[i].last = NONE;
    for (size_t i = 0; i < leases.n; i++) {
        const struct lease *l = lease_at(sorted[i]);
        struct past *past = &pasts[l->msg];
        judge_against_past(l, past, message_at(l->msg));
        past_add(past, l, sorted[i]);
        judge_group(l, sorted[i]);
    }
    free(pasts);
    free(sorted);
}

/* The judgement over messages. */

static void judge_origin(const struct message *m) {
    for (uint32_t i = m->attempts; i != NONE; i = attempt_at(i)->next) {
        const struct attempt *a = attempt_at(i);
        bool admitted = m->value && a->value == m->value;
        if (admitted && a->refused_as_reused)
            violation(V_CONFLICT, m, m->line, "its own payload was refused as reused");
        if (admitted && m->delivered && a->failed == a->asked)
            violation(V_UNEXPECTED, m, m->line, "delivered, but every send of it was refused");
    }
}

/* A delivery with a higher fence than the accepted settlement: it was granted after that lease, so either the message
 * came back after it was settled, or the settlement of a superseded token was taken. */
static void judge_after_settlement(const struct message *m) {
    uint64_t newest = 0;
    for (uint32_t i = m->leases; i != NONE; i = lease_at(i)->next) {
        const struct lease *l = lease_at(i);
        if (l->fence > newest) newest = l->fence;
        if (m->poison_ok && l->fence > m->poison_fence)
            violation(V_DEAD, m, l->line, "delivered although it was nacked as poison before");
        if (m->settled_ok == NEVER || l->fence <= m->settled_fence || l->invoke > m->settled_ok) continue;
        violation(V_DUP_DELIVERY, m, l->line, "fence %" PRIu64 ", but fence %" PRIu64 " settled it on line %" PRIu64,
                  l->fence, m->settled_fence, m->settled_line);
    }
    if (queues[m->queue].lost_receives) return; /* one of them may have been the newer lease */
    for (uint32_t i = m->leases; i != NONE; i = lease_at(i)->next)
        if (lease_at(i)->fence == newest && lease_at(i)->refused_on_line)
            violation(V_REFUSED, m, lease_at(i)->refused_on_line, "told fenced, but there is no newer lease");
}

static void judge_result(const struct message *m) {
    if (!m->told_result_set || (m->told == ST_CANCELLED && m->settled_ok == NEVER)) return;
    bool offered = false;
    uint64_t stands = 0;
    bool one_stands = false;
    for (uint32_t i = m->offers; i != NONE; i = offer_at(i)->next) {
        const struct offer *o = offer_at(i);
        offered |= o->result == m->told_result;
        if (!o->stands) continue;
        one_stands = true;
        stands = o->result;
    }
    if (m->settled_ok != NEVER && m->settled_as != m->told)
        violation(V_DIVERGENT, m, m->line, "settled as %s, told as %s", state_names[m->settled_as],
                  state_names[m->told]);
    else if (!offered || (one_stands && stands != m->told_result))
        violation(V_DIVERGENT, m, m->line, "told a result that is not the one it was settled with");
}

static uint64_t crashes_possible(const struct message *m) {
    uint64_t n = queues[m->queue].lost_starts;
    for (uint32_t i = m->leases; i != NONE; i = lease_at(i)->next) n += maybe_crashed(lease_at(i));
    return n;
}

static void judge_dead(const struct message *m) {
    bool dead = m->told == ST_DEAD || m->listed_dead;
    bool reason = m->poison || m->transient >= TRANSIENT_TO_DEAD || m->unknown + crashes_possible(m) >= CRASHES_TO_DEAD;
    if (dead && !reason) violation(V_DEAD, m, m->line, "dead, but nobody gave it a reason to be");
    if (dead && m->settled_ok != NEVER) violation(V_DEAD, m, m->settled_line, "dead, but it was settled");
    if (m->poison_ok && m->settled_ok == NEVER && m->told != ST_NONE && m->told != ST_DEAD)
        violation(V_DEAD, m, m->line, "nacked as poison, told %s", state_names[m->told]);
    if (queues[m->queue].dead_listed && (m->told == ST_DEAD) != m->listed_dead && m->told != ST_NONE)
        violation(V_DEAD, m, m->line, m->listed_dead ? "in the dead list, but not dead" : "dead, but not in the list");
}

static void judge_fate(const struct message *m) {
    if (!m->known) return;
    bool poison = m->poison > 0, settled = m->settled_ok != NEVER;
    bool maybe_settled = m->done_asked || m->rejected_asked;
    if (m->told_result_set) {
        bool timed_out = m->told == ST_CANCELLED && m->ttl_us;
        if (!maybe_settled && !timed_out)
            violation(V_LOST, m, m->line, "told %s, but nobody made it so", state_names[m->told]);
    } else if (m->told == ST_DEAD || m->listed_dead) {
        if (!m->delivered && !queues[m->queue].lost_receives) violation(V_LOST, m, m->line, "dead without a delivery");
    } else if (!settled && !maybe_settled && !poison) {
        violation(V_LOST, m, m->line, m->delivered ? "delivered, never settled, gone" : "accepted, never delivered");
    }
}

static void judge_order(const struct group *g) {
    uint64_t highest = 0;
    uint32_t holder = NONE;
    for (uint32_t i = g->first; i != NONE; i = message_at(i)->in_group) {
        const struct message *m = message_at(i);
        uint64_t own_highest = 0;
        for (uint32_t k = m->leases; k != NONE; k = lease_at(k)->next) {
            const struct lease *l = lease_at(k);
            if (l->fence > own_highest) own_highest = l->fence;
            if (l->fence < highest)
                violation(V_ORDER, m, l->line, "delivered while %.*s, sent before it, was not finished",
                          (int)message_at(holder)->key.n, message_at(holder)->key.p);
        }
        if (own_highest < highest) continue;
        highest = own_highest;
        holder = i;
    }
}

static void judge_messages(void) {
    for (uint32_t i = 0; i < messages.n; i++) {
        const struct message *m = message_at(i);
        judge_origin(m);
        judge_after_settlement(m);
        judge_result(m);
        judge_dead(m);
        judge_fate(m);
    }
    for (uint32_t i = 0; i < groups.n; i++) judge_order(group_at(i));
}

static int summary(uint64_t lines) {
    uint64_t total = 0;
    for (int v = 0; v < V_COUNT; v++) {
        if (!violations[v]) continue;
        printf("%-16s %" PRIu64 "  (%s)\n", verdict_texts[v].word, violations[v], verdict_texts[v].meaning);
        total += violations[v];
    }
    printf("history: %" PRIu64 " lines, %zu keys, %" PRIu64 " sends answered, %" PRIu64 " deliveries, %" PRIu64
           " settled\n",
           lines, messages.n, count_sends_ok, count_deliveries, count_settled);
    printf("allowed: %" PRIu64 " redelivered, %" PRIu64 " duplicates, %" PRIu64 " conflicts refused, %" PRIu64
           " stale tokens refused, %" PRIu64 " unknown calls, %" PRIu64 " recovered\n",
           count_redelivered, count_duplicates, count_conflicts, count_refused_stale, count_info, count_recovered);
    printf("violations: %" PRIu64 "\n", total);
    return total ? 1 : 0;
}

int main(int argc, char **argv) {
    const char *path = NULL;
    bool need_drain = true;
    for (int i = 1; i < argc; i++) {
        uint64_t ms = 0;
        if (strcmp(argv[i], "--no-drain") == 0) {
            need_drain = false;
        } else if (strcmp(argv[i], "--slop-ms") == 0 && i + 1 < argc) {
            i++;
            if (!read_number((struct text){argv[i], strlen(argv[i])}, &ms)) path = NULL;
            slop_us = (int64_t)ms * 1000;
        } else {
            path = argv[i];
        }
    }
    if (!path) {
        fprintf(stderr, "usage: check_history [--slop-ms N] [--no-drain] FILE\n");
        return 2;
    }
    uint64_t lines = read_history(path);
    judge_leases();
    judge_messages();
    if (need_drain && !drained_seen) violation(V_STUCK, NULL, 0, "the history has no end: nobody drained the queues");
    if (need_drain && drained_seen && !drained_ok) violation(V_STUCK, NULL, 0, "the queues did not become empty");
    return summary(lines);
}
