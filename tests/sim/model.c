/* The model's frame: sets of states, time, moves, and the cut a crash makes. */
#include "model_priv.h"

#include <stdio.h>

static const char *const at_names[] = {"pending", "leased",   "held",      "dead",
                                       "done",    "rejected", "cancelled", "forgotten"};
static const char *const end_names[] = {"never",  "open",      "acked",      "nacked",  "expired", "released",
                                        "undone", "cancelled", "handed_out", "decided", "revoked"};

const char *model_at_name(enum at at) {
    return at_names[at];
}

struct model *model_new(struct arena *arena, u32 queues, u32 keys) {
    struct model *m = arena_alloc(arena, sizeof *m);
    m->arena = arena;
    m->clean = true;
    m->queue_count = queues;
    m->key_count = keys;
    m->slot_count = 3 * keys + ARRIVALS_MOST;
    m->keys = arena_alloc(arena, queues * m->slot_count * sizeof(struct message *));
    m->queues = arena_alloc(arena, queues * sizeof(struct queue));
    for (u32 q = 0; q < queues; q++) {
        m->queues[q].policy = &policy_default;
        m->queues[q].plain = true;
        m->queues[q].window_most = policy_default.window_max;
        m->queues[q].changed_run = -1;
    }
    return m;
}

/* ---- time */

static void stretch(struct ahead *a, i64 ms) {
    if (ms < a->min) a->min = ms;
    if (ms > a->max) a->max = ms;
}

void model_later(struct model *m, i64 mono_ms, i64 wall_ms) {
    i64 passed = mono_ms - m->mono;
    m->run += passed < 1000 ? passed : 1000;
    if (passed > 1000) m->leapt_run = m->run;
    m->delay += passed;
    m->mono = mono_ms;
    m->wall = wall_ms;
    stretch(&m->ahead, m->delay - m->wall);
    stretch(&m->fresh, m->delay - m->wall);
}

void model_time(struct model *m, i64 mono_ms, i64 wall_ms) {
    model_later(m, mono_ms, wall_ms);
    m->turn_mono = mono_ms;
}

void model_tight(struct model *m, bool tight) {
    m->tight = tight;
    if (tight) m->loose_run = m->run;
}

/* The clocks are written down every 10 s at least. */
void model_all_durable(struct model *m) {
    if (m->run - m->mark.run < 12000) return;
    if (m->loose_run <= m->mark.run) m->counted_run = m->mark.run; /* there was room ever since */
    m->safe = m->mark;
    m->mark.run = m->run;
    m->mark.delay = m->delay;
    m->ahead = m->fresh;
    m->fresh.min = m->fresh.max = m->delay - m->wall;
}

/* ---- sets */

void model_set_load(struct set *to, const struct set *from) {
    memcpy(to, from, offsetof(struct set, at) + from->count * sizeof from->at[0]);
}

/* States that differ only in when time cancelled them are one, cancelled at some time between. */
static bool merge(struct phase *a, const struct phase *b) {
    if (a->at != AT_CANCELLED || b->at != AT_CANCELLED || a->settled_min == a->settled_max) return false;
    struct phase same = *b;
    same.settled_min = a->settled_min;
    same.settled_max = a->settled_max;
    same.settled_slip = a->settled_slip;
    if (memcmp(a, &same, sizeof same) != 0) return false;
    if (b->settled_min < a->settled_min) a->settled_min = b->settled_min;
    if (b->settled_max > a->settled_max) a->settled_max = b->settled_max;
    if (b->settled_slip < a->settled_slip) a->settled_slip = b->settled_slip;
    return true;
}

void model_set_add(struct set *s, const struct phase *p) {
    for (u32 i = 0; i < s->count; i++)
        if (memcmp(&s->at[i], p, sizeof *p) == 0 || merge(&s->at[i], p)) return;
    if (s->count == SET_MAX) {
        struct buf text = {0};
        model_set_describe(s, &text);
        sim_fail("the model: more than %u states of one message: %.*s", SET_MAX, (int)text.len, text.p);
    }
    s->at[s->count++] = *p;
}

bool model_phase_settled(const struct phase *p) {
    return p->at >= AT_DONE;
}

static bool noticed(const struct model *m, i64 late_ms) {
    return late_ms >= NOTICE_MS && !m->forgiving && !m->tight && m->run - m->loose_run > NOTICE_MS;
}

bool model_doubt(const struct phase *p) {
    return p->doubt || (ended_unsaid(p) && p->started);
}

void model_group_fate(const struct model *m, const struct message *msg, struct phase *p) {
    u32 rule = policy_of(m, msg->queue)->on_dead;
    if (p->at == AT_PENDING || msg->group == 0 || p->conflict) return;
    if (rule == DEAD_SKIPPED || p->parked)
        p->parked = 1;
    else if (rule == DEAD_TAKES_GROUP && p->at == AT_DEAD)
        p->takes = 1;
}

/* A lease is over: nobody knows what came of started work; a reservation counts as nothing. */
static struct phase over(const struct model *m, const struct message *msg, const struct phase *p, bool crash) {
    const struct policy *rules = policy_of(m, msg->queue);
    struct phase q = *p;
    q.at = AT_PENDING;
    q.end = crash || !p->started ? END_EXPIRED : END_REVOKED;
    q.due = q.due_max = 0;
    q.reconcile = p->lookup;
    q.parked = q.takes = 0;
    if (!p->started) {
        q.hidden = 1;
        return q;
    }
    q.reconcile = p->lookup || rules->on_unknown == UNKNOWN_RECONCILE;
    if (crash && ++q.crashes >= rules->crashes) q.at = q.reconcile ? AT_HELD : AT_DEAD;
    if (rules->on_unknown == UNKNOWN_HOLD) q.at = AT_HELD;
    model_group_fate(m, msg, &q);
    return q;
}

/* It ran out: started work counts as a crash. */
static struct phase expired(const struct model *m, const struct message *msg, const struct phase *p) {
    struct phase q = over(m, msg, p, true);
    q.since = p->lease_from + p->lease_ms;
    return q;
}

struct phase model_revoked(const struct model *m, const struct message *msg, const struct phase *p) {
    struct phase q = over(m, msg, p, false);
    q.since = m->run;
    return q;
}

void model_stamp(const struct model *m, const struct message *msg, struct phase *p) {
    const struct policy *rules = policy_of(m, msg->queue);
    p->settled_min = p->settled_max = m->run;
    p->settled_slip = m->run_slip;
    p->window_min = rules->window_min;
    p->window_max = rules->window_max;
    /* By its clock, which a crash puts back, the broker may take this for settled before the window was shortened. */
    const struct queue *q = &m->queues[msg->queue];
    if (m->run - (m->run_slip - q->changed_slip) <= q->changed_run && q->window_most > p->window_max)
        p->window_max = q->window_most;
    p->keep_least = rules->keep_ms;
    p->parked = p->takes = p->reconcile = 0;
    p->former = NULL;
}

static void effects_since(const struct model *m, struct phase *p, const struct note *since) {
    if (!since) return;
    effects_since(m, p, since->older);
    note_effect(m, &p->effects, since->name);
}

/* A replay was cancelled: the outcome before it stands, with what was reported since. */
static void restore(const struct model *m, struct phase *p) {
    const struct phase *was = p->former;
    const struct note *since = p->effects;
    p->restored = 1;
    p->at = was->at;
    p->reason = was->reason;
    p->result = was->result;
    p->content_type = was->content_type;
    p->steps = NULL;
    p->effects = was->effects;
    effects_since(m, p, since);
    p->effects_unsure |= was->effects_unsure;
    p->attempts = was->attempts;
    p->failures = was->failures;
    p->unknowns = was->unknowns;
    p->crashes = was->crashes;
    p->born = was->born;
}

void model_cancel(const struct model *m, const struct message *msg, struct phase *p, slice reason) {
    if (p->at == AT_LEASED) p->end = END_CANCELLED;
    p->at = AT_CANCELLED;
    p->reason = reason;
    if (p->former) restore(m, p);
    model_stamp(m, msg, p);
}

bool model_ttl_may_be_over(const struct model *m, const struct message *msg, const struct phase *p) {
    return p->attempts == 0 && msg->ttl_at && m->delay >= msg->ttl_at;
}

/* By how much, at least; negative: perhaps not yet. */
i64 model_ttl_late_ms(const struct model *m, const struct message *msg) {
    return m->delay - (m->delay_slip - msg->ttl_slip) - msg->ttl_at;
}

/* For how long it could have been noticed: since there is the message, and since the loop, which may have stood still, runs again. A
 * turn ends as many as it has time for before it lets requests in. */
static i64 ttl_seen_ms(const struct model *m, const struct message *msg, const struct phase *p) {
    i64 late = model_ttl_late_ms(m, msg), since = p->since > m->leapt_run ? p->since : m->leapt_run;
    return late < m->run - since ? late : m->run - since;
}

/* Some time ago, not told when: run time passes no faster than delay time. */
static struct phase out_of_ttl(const struct model *m, const struct message *msg, const struct phase *p) {
    struct phase q = *p;
    model_cancel(m, msg, &q, SL("ttl"));
    q.settled_min = m->run - (m->delay - msg->ttl_at);
    if (q.settled_min < p->since) q.settled_min = p->since;
    return q;
}

static i64 age_min(const struct model *m, const struct phase *p) {
    return m->run - (m->run_slip - p->settled_slip) - p->settled_max;
}

bool model_may_be_over(const struct model *m, const struct phase *p) {
    return p->at != AT_FORGOTTEN && model_phase_settled(p) && m->run - p->settled_min >= p->window_min;
}

bool model_is_over(const struct model *m, const struct phase *p) {
    return p->at != AT_FORGOTTEN && model_phase_settled(p) && age_min(m, p) >= p->window_max;
}

/* How long after its window a token may still be known. */
static bool surely_reaped(const struct model *m, const struct message *msg, const struct phase *p) {
    const i64 window = policy_default.window_min;
    return !m->forgiving && m->queues[msg->queue].plain && age_min(m, p) >= window + window / 256 + 5000;
}

struct phase model_redriven(const struct phase *p, i64 since) {
    struct phase q = *p;
    q.at = AT_PENDING;
    q.doubt = q.reconcile = model_doubt(p);
    q.end = END_DECIDED;
    q.failures = q.unknowns = q.crashes = 0;
    q.due = q.due_max = 0;
    q.parked = q.takes = 0;
    q.since = since;
    return q;
}

/* Each state, and what time may have made of it. A state that time must have ended by now is left out. */
static void close_one(const struct model *m, const struct message *msg, const struct phase *p, struct set *out) {
    const struct queue *queue = &m->queues[msg->queue];
    bool stays = true;
    struct phase next;
    if (p->at == AT_LEASED && m->run - p->lease_from >= p->lease_ms) {
        next = expired(m, msg, p);
        stays = !noticed(m, m->run - p->lease_from - p->lease_ms);
        close_one(m, msg, &next, out);
    }
    if (p->at == AT_DEAD && queue->redriving) {
        next = model_redriven(p, queue->redriving_from);
        model_set_add(out, &next);
    }
    if (!model_phase_settled(p) && p->at != AT_LEASED && model_ttl_may_be_over(m, msg, p)) {
        next = out_of_ttl(m, msg, p);
        stays = !noticed(m, ttl_seen_ms(m, msg, p));
        close_one(m, msg, &next, out);
    }
    if (model_may_be_over(m, p)) {
        next = (struct phase){.at = AT_FORGOTTEN};
        model_set_add(out, &next);
        stays = !surely_reaped(m, msg, p);
    }
    if (stays) model_set_add(out, p);
}

void model_set_close(const struct model *m, const struct message *msg, const struct set *in, struct set *out) {
    out->count = 0;
    for (u32 i = 0; i < in->count; i++) close_one(m, msg, &in->at[i], out);
}

bool model_set_filter(const struct model *m, const struct message *msg, const struct set *in, explain_fn explain,
                      void *ctx, struct set *out) {
    struct set closed;
    model_set_close(m, msg, in, &closed);
    out->count = 0;
    for (u32 i = 0; i < closed.count; i++) {
        struct phase next = closed.at[i];
        if (explain(m, msg, &next, ctx)) model_set_add(out, &next);
    }
    return out->count > 0;
}

static bool subset(const struct set *a, const struct set *b) {
    for (u32 i = 0; i < a->count; i++) {
        u32 k = 0;
        while (k < b->count && memcmp(&a->at[i], &b->at[k], sizeof a->at[i]) != 0) k++;
        if (k == b->count) return false;
    }
    return true;
}

struct set *model_set_copy(struct model *m, const struct set *s) {
    size_t bytes = offsetof(struct set, at) + s->count * sizeof s->at[0];
    struct set *copy = arena_alloc(m->arena, bytes);
    memcpy(copy, s, bytes);
    return copy;
}

static void version_push(struct model *m, struct message *msg, struct set *set, u64 index) {
    if (msg->version_count == msg->version_cap) {
        u32 cap = msg->version_cap ? msg->version_cap * 2 : 8;
        struct version *more = arena_alloc(m->arena, cap * sizeof *more);
        if (msg->version_count) memcpy(more, msg->versions, msg->version_count * sizeof *more);
        msg->versions = more;
        msg->version_cap = cap;
    }
    msg->versions[msg->version_count++] = (struct version){.index = index, .set = set};
    msg->set = set;
}

/* ---- those that are not surely settled */

static void live_add(struct model *m, struct message *msg) {
    if (m->live_count == m->live_cap) {
        u32 cap = m->live_cap ? m->live_cap * 2 : 64;
        struct message **more = arena_alloc(m->arena, cap * sizeof *more);
        if (m->live_count) memcpy(more, m->live, m->live_count * sizeof *more);
        m->live = more;
        m->live_cap = cap;
    }
    m->live[m->live_count++] = msg;
    msg->live_at = m->live_count;
}

static void live_update(struct model *m, struct message *msg) {
    bool live = false;
    for (u32 i = 0; i < msg->set->count; i++) live |= !model_phase_settled(&msg->set->at[i]);
    if (live && !msg->live_at) live_add(m, msg);
    if (live || !msg->live_at) return;
    struct message *last = m->live[--m->live_count];
    m->live[msg->live_at - 1] = last;
    last->live_at = msg->live_at;
    msg->live_at = 0;
}

void model_set_describe(const struct set *s, struct buf *out) {
    for (u32 i = 0; i < s->count; i++) {
        const struct phase *p = &s->at[i];
        buf_printf(out, "%s%s(%s%s%s%s%s, fence %llu, attempts %u, failures %u+%u, crashes %u", i ? " | " : "",
                   at_names[p->at], end_names[p->end], p->started ? ", started" : "",
                   p->reconcile ? ", to be looked up" : "", model_doubt(p) ? ", in doubt" : "",
                   p->conflict ? ", a conflict" : "", (unsigned long long)p->fence, p->attempts, p->failures,
                   p->unknowns, p->crashes);
        if (model_phase_settled(p))
            buf_printf(out, ", settled %lld to %lld, window %lld to %lld", (long long)p->settled_min,
                       (long long)p->settled_max, (long long)p->window_min, (long long)p->window_max);
        if (p->former) buf_printf(out, ", before %s", at_names[p->former->at]);
        buf_slice_add(out, p->restored ? SL(", restored)") : SL(")"));
    }
}

static void count_fate(const struct phase *p) {
    tally.ttl_cancelled += p->at == AT_CANCELLED && slice_eq(p->reason, SL("ttl"));
    tally.dead_by_crashes += p->at == AT_DEAD && p->end == END_EXPIRED;
}

u64 model_move_maybe(struct model *m, struct message *msg, explain_fn explain, void *ctx) {
    struct set both, moved;
    model_set_close(m, msg, msg->set, &both);
    if (!model_set_filter(m, msg, msg->set, explain, ctx, &moved)) return msg->versions[msg->version_count - 1].index;
    for (u32 i = 0; i < moved.count; i++) model_set_add(&both, &moved.at[i]);
    version_push(m, msg, model_set_copy(m, &both), ++m->moves);
    live_update(m, msg);
    return m->moves;
}

static bool leased(const struct phase *p) {
    return p->at == AT_LEASED;
}

static bool remembered(const struct phase *p) {
    return model_phase_settled(p) && p->at != AT_FORGOTTEN;
}

static bool no_longer(const struct set *before, const struct set *now, bool (*state)(const struct phase *)) {
    bool was = false, is = false;
    for (u32 i = 0; i < before->count; i++) was |= state(&before->at[i]);
    for (u32 i = 0; i < now->count; i++) is |= state(&now->at[i]);
    return was && !is;
}

/* It is known now that its lease ran out, or that its window did. When that was written down nobody said: a cut before it is
 * still possible. */
static bool ended_by_time(const struct set *before, const struct set *now) {
    return no_longer(before, now, leased) || no_longer(before, now, remembered);
}

static u64 move(struct model *m, struct message *msg, explain_fn explain, void *ctx, const char *what, bool anew) {
    struct set next;
    if (!model_set_filter(m, msg, msg->set, explain, ctx, &next)) {
        struct buf text = {0};
        struct set closed;
        model_set_close(m, msg, msg->set, &closed);
        model_set_describe(&closed, &text);
        sim_fail("%s: q%u/k%u (%s) can only be %.*s", what, msg->queue, msg->key, msg->id, (int)text.len, text.p);
    }
    if (!anew && subset(&next, msg->set) && !ended_by_time(msg->set, &next)) {
        if (next.count < msg->set->count)
            msg->versions[msg->version_count - 1].set = msg->set = model_set_copy(m, &next);
    } else {
        struct set closed;
        model_set_close(m, msg, msg->set, &closed);
        version_push(m, msg, model_set_copy(m, &next), ++m->moves);
        msg->versions[msg->version_count - 1].noticed = !anew && subset(&next, &closed);
        if (next.count == 1) count_fate(&next.at[0]);
    }
    live_update(m, msg);
    return msg->versions[msg->version_count - 1].index;
}

u64 model_move(struct model *m, struct message *msg, explain_fn explain, void *ctx, const char *what) {
    return move(m, msg, explain, ctx, what, false);
}

u64 model_move_on(struct model *m, struct message *msg, explain_fn explain, void *ctx, const char *what) {
    return move(m, msg, explain, ctx, what, true);
}

/* ---- messages and queues */

struct message *model_message_new(struct model *m, u32 queue, u32 slot, const struct send_item *item,
                                  const struct phase *first) {
    struct message *msg = arena_alloc(m->arena, sizeof *msg), **at = key_slot(m, queue, slot);
    *msg = (struct message){
        .prev = *at,
        .order = ++m->orders,
        .queue = queue,
        .slot = slot,
        .key = item->key,
        .keyless = item->keyless,
        .variant = item->variant,
        .group = item->group,
        .has_attr = item->attr,
        .name = slot < m->key_count ? key_text(m->arena, item->key) : SL(""),
        .born_wall = m->wall,
        .ttl_at = item->ttl_ms ? m->delay + item->ttl_ms : 0,
        .ttl_slip = m->delay_slip,
    };
    *at = msg;
    struct set set = {.count = 1};
    set.at[0] = *first;
    set.at[0].since = m->run;
    set.at[0].due_slip = m->delay_slip;
    if (item->delay_ms) set.at[0].due = set.at[0].due_max = m->delay + item->delay_ms;
    version_push(m, msg, model_set_copy(m, &set), ++m->moves);
    live_update(m, msg);
    return msg;
}

slice model_name(const struct model *m, const struct message *msg) {
    return policy_of(m, msg->queue)->semantics == AT_LEAST_ONCE ? SL("") : msg->name;
}

slice model_id(const struct message *msg) {
    return msg->id_known ? slice_str(msg->id) : SL("");
}

/* Ids are never used twice. */
static void check_id_unused(const struct model *m, const struct message *msg, slice id) {
    for (u32 i = 0; i < m->queue_count * m->slot_count; i++)
        for (const struct message *other = m->keys[i]; other; other = other->prev)
            if (other != msg && other->id_known && slice_eq(slice_str(other->id), id))
                sim_fail("id %.*s of q%u/k%u was used before, for q%u/k%u", (int)id.n, id.p, msg->queue, msg->key,
                         other->queue, other->key);
}

void model_learn_id(struct model *m, struct message *msg, slice id) {
    if (msg->id_known) {
        if (slice_eq(slice_str(msg->id), id)) return;
        sim_fail("P2: q%u/k%u has id %s, and is now called %.*s", msg->queue, msg->key, msg->id, (int)id.n, id.p);
    }
    if (id.n == 0 || id.n >= sizeof msg->id) sim_fail("an id of %zu bytes", id.n);
    check_id_unused(m, msg, id);
    memcpy(msg->id, id.p, id.n);
    msg->id_known = true;
}

struct message *model_named(struct model *m, u32 queue, u32 slot, slice id) {
    struct message **at = key_slot(m, queue, slot);
    for (struct message *msg = *at; msg; msg = msg->rival)
        if (msg->id_known && slice_eq(slice_str(msg->id), id)) return *at = msg;
    return *at;
}

static void queue_push(struct model *m, struct queue *q, u64 index) {
    if (q->version_count == q->version_cap) {
        u32 cap = q->version_cap ? q->version_cap * 2 : 8;
        struct queue_version *more = arena_alloc(m->arena, cap * sizeof *more);
        if (q->version_count) memcpy(more, q->versions, q->version_count * sizeof *more);
        q->versions = more;
        q->version_cap = cap;
    }
    q->versions[q->version_count++] =
        (struct queue_version){.index = index, .exists = q->exists, .paused = q->paused, .policy = q->policy};
}

void model_queue_touch(struct model *m, u32 queue) {
    struct queue *q = &m->queues[queue];
    if (q->exists) return;
    q->exists = true;
    queue_push(m, q, ++m->moves);
}

void model_queue_set(struct model *m, u32 queue, bool paused) {
    struct queue *q = &m->queues[queue];
    model_queue_touch(m, queue);
    if (q->paused == paused) return;
    q->paused = paused;
    queue_push(m, q, ++m->moves);
}

void model_queue_rules(struct model *m, u32 queue) {
    m->queues[queue].exists = true;
    queue_push(m, &m->queues[queue], ++m->moves);
}

bool model_surely_settled(const struct model *m, const struct message *msg) {
    struct set closed;
    model_set_close(m, msg, msg->set, &closed);
    for (u32 i = 0; i < closed.count; i++)
        if (!model_phase_settled(&closed.at[i])) return false;
    return true;
}

static bool surely_due(const struct model *m, const struct phase *p) {
    return p->due == 0 || m->delay - (m->delay_slip - p->due_slip) >= p->due_max;
}

/* ---- groups: in the order of admission, one at a time */

static bool keeps_others_back(const struct phase *p) {
    if (model_phase_settled(p)) return false;
    return p->at == AT_PENDING || p->at == AT_LEASED || !(p->parked || p->conflict);
}

static bool same_group(const struct message *a, const struct message *b) {
    return a != b && a->group == b->group && a->queue == b->queue;
}

static bool may_keep_back(const struct model *m, const struct message *other, const struct message *msg) {
    struct set closed;
    model_set_close(m, other, other->set, &closed);
    for (u32 i = 0; i < closed.count; i++) {
        if (closed.at[i].at == AT_LEASED) return true;
        if (other->order < msg->order && keeps_others_back(&closed.at[i])) return true;
    }
    return false;
}

bool model_may_wait(const struct model *m, const struct message *msg) {
    for (u32 i = 0; msg->group && i < m->live_count; i++)
        if (same_group(m->live[i], msg) && may_keep_back(m, m->live[i], msg)) return true;
    return false;
}

bool model_may_be_taken(const struct model *m, const struct message *msg) {
    for (u32 i = 0; msg->group && i < m->live_count; i++) {
        const struct message *other = m->live[i];
        struct set closed;
        if (!same_group(other, msg) || other->order > msg->order) continue;
        model_set_close(m, other, other->set, &closed);
        for (u32 p = 0; p < closed.count; p++)
            if (closed.at[p].at == AT_DEAD && closed.at[p].takes) return true;
    }
    return false;
}

bool model_shows_as(const struct model *m, const struct message *msg, const struct phase *p, slice state) {
    if (slice_eq(state, slice_str(at_names[p->at]))) return true;
    if (p->at != AT_PENDING || !slice_eq(state, SL("dead"))) return false;
    return m->forgiving ? msg->group != 0 : model_may_be_taken(m, msg); /* of its head nothing is known yet */
}

bool model_surely_ready(const struct model *m, const struct message *msg) {
    struct set closed;
    if (m->queues[msg->queue].paused) return false;
    model_set_close(m, msg, msg->set, &closed);
    for (u32 i = 0; i < closed.count; i++)
        if (closed.at[i].at != AT_PENDING || !surely_due(m, &closed.at[i])) return false;
    return !model_may_wait(m, msg);
}

const struct message *model_any_ready(const struct model *m, u32 queue) {
    if (m->tight || m->run - m->loose_run <= NOTICE_MS) return NULL;
    for (u32 i = 0; i < m->live_count; i++)
        if (m->live[i]->queue == queue && model_surely_ready(m, m->live[i])) return m->live[i];
    return NULL;
}

/* ---- a life ends, and the next begins */

void model_life_ends(struct model *m, bool clean) {
    m->clean = clean;
    m->counts_kept = clean && !m->tight && m->run - m->loose_run > NOTICE_MS;
    m->forgiving = true;
    m->parked_count = 0;
    if (clean) m->floor = m->moves;
    m->cuts = arena_alloc(m->arena, (m->moves - m->floor + 1) * sizeof *m->cuts);
    memset(m->cuts, 1, m->moves - m->floor + 1);
    m->stretches = NULL;
}

/* A start writes nothing: until its clocks surely are written down, the next one may go on from what the life before left. A
 * clean end writes them if there is room. */
static void clocks_restart(struct model *m, i64 wall_ms) {
    i64 before = m->delay, after;
    if (m->clean && !m->tight) {
        after = before + (wall_ms > m->wall ? wall_ms - m->wall : 0);
        m->ahead.min = m->ahead.max = before - m->wall;
        m->safe.delay = before;
    } else {
        after = m->ahead.max + wall_ms > before ? m->ahead.max + wall_ms : before;
        i64 least = m->ahead.min + wall_ms > m->safe.delay ? m->ahead.min + wall_ms : m->safe.delay;
        m->run_slip += m->run - m->safe.run;
        m->delay_slip += after > least ? after - least : 0;
    }
    m->delay = after;
    m->mark.run = m->safe.run = m->run;
    m->mark.delay = after;
    m->wall = wall_ms;
    m->fresh.min = m->fresh.max = after - wall_ms;
    stretch(&m->ahead, after - wall_ms);
}

static void rearm(const struct model *m, const struct set *closed, struct set *out) {
    for (u32 i = 0; i < closed->count; i++) {
        struct phase p = closed->at[i];
        if (p.at == AT_LEASED) p.lease_from = m->run;
        if (p.at != AT_LEASED && !model_phase_settled(&p)) p.since = m->run;
        model_set_add(out, &p);
    }
}

/* The states at the crash, as time had made them by then, by whatever rules were in force for a cut in [from, to), or had not
 * yet: what time does is written down too, and nobody was told of it. Live leases get their full length again. */
static void life_over(struct model *m, struct message *msg, struct set *out, const struct set *in, u64 from, u64 to) {
    struct queue *q = &m->queues[msg->queue];
    const struct policy *newest = q->policy;
    struct set closed;
    out->count = 0;
    for (u32 v = 0; v < q->version_count; v++) {
        bool over = v + 1 < q->version_count && q->versions[v + 1].index <= from;
        if (over || q->versions[v].index >= to) continue;
        q->policy = q->versions[v].policy;
        model_set_close(m, msg, in, &closed);
        rearm(m, &closed, out);
    }
    q->policy = newest;
    if (out->count == 0) {
        model_set_close(m, msg, in, &closed);
        rearm(m, &closed, out);
    }
    rearm(m, in, out);
}

void model_boot(struct model *m, i64 mono_ms, i64 wall_ms) {
    for (u32 i = 0; i < m->queue_count * m->slot_count; i++)
        for (struct message *msg = m->keys[i]; msg; msg = msg->prev)
            for (u32 v = 0; v < msg->version_count; v++) {
                u64 to = v + 1 < msg->version_count ? msg->versions[v + 1].index : m->moves + 1;
                u64 from = msg->versions[v].index > m->floor ? msg->versions[v].index : m->floor;
                struct set rearmed;
                if (to <= m->floor) continue;
                life_over(m, msg, &rearmed, msg->versions[v].set, from, to);
                msg->versions[v].set = model_set_copy(m, &rearmed);
            }
    for (u32 q = 0; q < m->queue_count; q++) m->queues[q].redriving = 0, m->queues[q].pressed = false;
    clocks_restart(m, wall_ms);
    m->mono = mono_ms;
    m->loose_run = m->run;
}

u32 model_slots(const struct model *m) {
    return m->slot_count;
}

bool model_census_ask(const struct model *m, u32 queue, u32 slot, struct op *op) {
    const struct message *msg = *key_slot(m, queue, slot);
    if (!msg) return false;
    op->key = op->id = SL("");
    bool repeats = msg->id_known && policy_of(m, queue)->semantics == AT_LEAST_ONCE;
    op->kind = slot < 3 * m->key_count && !repeats ? OP_KEY : OP_MESSAGE;
    if (op->kind == OP_KEY)
        op->key = msg->name;
    else
        op->id = slice_str(msg->id);
    return true;
}

/* ---- the census: which cuts explain what is there now? */

static void forbid(struct model *m, u64 from, u64 to) {
    for (u64 c = from; c < to; c++) m->cuts[c - m->floor] = false;
}

static bool any_cut(const struct model *m) {
    for (u64 c = m->floor; c <= m->moves; c++)
        if (m->cuts[c - m->floor]) return true;
    return false;
}

static void stretch_add(struct model *m, u32 slot, u64 from, u64 to, struct message *msg, const struct set *set,
                        i64 dups) {
    struct stretch *s = arena_alloc(m->arena, sizeof *s);
    *s = (struct stretch){.next = m->stretches, .from = from, .to = to, .slot = slot, .message = msg, .dups = dups};
    if (set) s->set = model_set_copy(m, set);
    m->stretches = s;
}

struct found {
    struct message *message;
    const struct version *version;
    u64 until; /* the next change of this key */
};

/* What the key is if the cut is there. */
static struct found key_at(const struct model *m, struct message *newest, u64 cut) {
    struct found f = {.until = m->moves + 1};
    for (struct message *msg = newest; msg; msg = msg->prev) {
        for (u32 v = msg->version_count; v-- > 0;) {
            if (msg->versions[v].index > cut) {
                f.until = msg->versions[v].index;
                continue;
            }
            f.message = msg;
            f.version = &msg->versions[v];
            return f;
        }
    }
    return f;
}

static bool explain_absent(const struct model *m, const struct message *msg, struct phase *next, void *ctx) {
    (void)msg, (void)ctx;
    return next->at == AT_FORGOTTEN || model_may_be_over(m, next);
}

static bool cut_explains(struct model *m, const struct found *f, const struct http_reply *reply, struct shown *shown,
                         struct set *out) {
    out->count = 0;
    if (!f->message) return reply->status == 404;
    if (reply->status == 404) return model_set_filter(m, f->message, f->version->set, explain_absent, NULL, out);
    slice id = view_text(&shown->view, "id");
    if (f->message->id_known && !slice_eq(slice_str(f->message->id), id)) return false;
    return model_set_filter(m, f->message, f->version->set, model_explain_shown, shown, out);
}

static void no_cut_left(const struct model *m, const char *what, u32 queue, u32 key, slice body) {
    struct buf text = {0};
    if (key != UINT32_MAX && *key_slot(m, queue, key)) {
        struct found f = key_at(m, *key_slot(m, queue, key), m->floor);
        if (f.message)
            model_set_describe(f.version->set, &text);
        else
            buf_lit(&text, "unknown");
    }
    sim_fail("P1: after the %s %s q%u/k%d is %.*s; told of by delivered replies (move %llu of %llu) was %.*s",
             m->clean ? "clean restart" : "crash", what, queue, (int)key, (int)(body.n < 700 ? body.n : 700), body.p,
             (unsigned long long)m->floor, (unsigned long long)m->moves, (int)text.len, text.p);
}

static void trace_stretch(u32 queue, u32 key, u64 from, u64 to, const struct found *f, const struct set *left) {
    struct buf text = {0};
    if (f->message) model_set_describe(f->version->set, &text);
    trace("  q%u/k%u, cut %llu to %llu: %s; was %.*s", queue, key, (unsigned long long)from, (unsigned long long)to - 1,
          left->count ? "possible" : "ruled out if it was known", (int)text.len, text.p);
    buf_free(&text);
}

void model_census_key(struct model *m, u32 queue, u32 key, const struct http_reply *reply, struct arena *scratch) {
    u32 slot = queue * m->slot_count + key;
    struct shown shown = {.scratch = scratch, .full = true};
    if (reply->status != 200 && reply->status != 404) sim_fail("census: status %u for a key", reply->status);
    shown.view = view_of(scratch, reply->body);
    shown.state = view_text(&shown.view, "state");
    shown.duplicates = -1;
    view_i64(&shown.view, "duplicates", &shown.duplicates);
    if (reply->status == 200) model_named(m, queue, key, view_text(&shown.view, "id"));
    for (u64 cut = m->floor; cut <= m->moves;) {
        struct found f = key_at(m, m->keys[slot], cut);
        struct set set;
        if (cut_explains(m, &f, reply, &shown, &set))
            stretch_add(m, slot, cut, f.until, f.message, &set, shown.duplicates);
        else
            forbid(m, cut, f.until);
        if (tracing) trace_stretch(queue, key, cut, f.until, &f, &set);
        cut = f.until;
    }
    if (!any_cut(m)) no_cut_left(m, "key", queue, key, reply->body);
}

static struct queue_version queue_at(const struct model *m, u32 queue, u64 cut, u64 *until) {
    const struct queue *q = &m->queues[queue];
    *until = m->moves + 1;
    for (u32 v = q->version_count; v-- > 0;) {
        if (q->versions[v].index <= cut) return q->versions[v];
        *until = q->versions[v].index;
    }
    return (struct queue_version){.policy = &policy_default};
}

void model_census_queue(struct model *m, u32 queue, const struct http_reply *reply, struct arena *scratch) {
    struct view v = view_of(scratch, reply->body);
    bool exists = reply->status == 200, paused = view_true(&v, "paused");
    m->queues[queue].policy = &policy_default;
    for (u64 cut = m->floor, until; cut <= m->moves; cut = until) {
        struct queue_version was = queue_at(m, queue, cut, &until);
        bool made_unseen = exists && !was.exists && m->queues[queue].unsure;
        bool same_rules = !exists || policy_shown(was.policy, reply->body, scratch);
        if (exists && same_rules) m->queues[queue].policy = was.policy;
        if ((was.exists != exists && !made_unseen) || (exists && was.paused != paused) || !same_rules)
            forbid(m, cut, until);
    }
    if (!any_cut(m)) no_cut_left(m, "queue", queue, UINT32_MAX, reply->body);
    m->queues[queue].exists = exists;
    m->queues[queue].paused = exists && paused;
}

static bool possible(const struct model *m, const struct stretch *s) {
    for (u64 c = s->from; c < s->to; c++)
        if (m->cuts[c - m->floor]) return true;
    return false;
}

static bool adopted(const struct model *m, const struct message *msg) {
    return msg && msg->version_count == 1 && msg->versions[0].index > m->moves;
}

/* What is left of a key: every state that some possible cut gives it. Later cuts come first. */
static void adopt(struct model *m, const struct stretch *s) {
    struct message **slot = &m->keys[s->slot], *msg = s->message;
    if (!msg) {
        if (!adopted(m, *slot)) *slot = NULL;
        return;
    }
    msg->dups_shown = s->dups;
    if (adopted(m, msg)) {
        struct set both; /* a second stretch of the same message */
        model_set_load(&both, msg->set);
        for (u32 i = 0; i < s->set->count; i++) model_set_add(&both, &s->set->at[i]);
        msg->versions[0].set = msg->set = model_set_copy(m, &both);
        return;
    }
    if (adopted(m, *slot)) {
        msg->rival = (*slot)->rival;
        (*slot)->rival = msg;
    } else {
        *slot = msg;
    }
    msg->version_count = 0;
    version_push(m, msg, s->set, m->moves + 1);
}

static u64 fence_at_least(const struct set *s) {
    u64 least = s->count ? s->at[0].fence : 0;
    for (u32 i = 1; i < s->count; i++)
        if (s->at[i].fence < least) least = s->at[i].fence;
    return least;
}

static void recount(struct model *m) {
    m->live_count = 0;
    m->fence_top = m->fence_told;
    for (u32 i = 0; i < m->queue_count * m->slot_count; i++) {
        for (struct message *msg = m->keys[i]; msg; msg = msg->prev) msg->live_at = 0;
        struct message *msg = m->keys[i];
        if (!msg) continue;
        live_update(m, msg);
        u64 fence = fence_at_least(msg->set);
        if (fence > m->fence_top) m->fence_top = fence;
        if (!m->counts_kept && msg->dup_run >= m->counted_run) msg->dups_min = msg->dups_safe;
        if (msg->dups_shown >= 0) model_check_duplicates(msg, msg->dups_shown);
    }
}

void model_census_end(struct model *m) {
    u64 last = m->moves;
    while (!m->cuts[last - m->floor]) last--;
    tally.moves_lost += m->moves - last;
    trace("census: cut at move %llu of %llu (%llu had to survive)", (unsigned long long)last,
          (unsigned long long)m->moves, (unsigned long long)m->floor);
    for (const struct stretch *s = m->stretches; s; s = s->next)
        if (possible(m, s)) adopt(m, s);
    for (u32 q = 0; q < m->queue_count; q++) {
        m->queues[q].version_count = 0;
        if (m->queues[q].exists) queue_push(m, &m->queues[q], m->moves + 1);
    }
    m->floor = ++m->moves;
    m->forgiving = false;
    recount(m);
}

/* ---- for clients and the last phase */

struct message *model_pick(struct model *m, struct rng *rng, u32 queue) {
    for (u32 tries = 0; tries < 16; tries++) {
        u64 slot = rng_below(rng, 3) ? rng_below(rng, m->key_count) : rng_below(rng, m->slot_count);
        struct message *msg = *key_slot(m, queue, (u32)slot);
        if (msg && msg->id_known) return msg;
    }
    return NULL;
}

bool model_takes_arrivals(const struct model *m, u32 queue) {
    return m->queues[queue].arrivals < ARRIVALS_MOST / 3;
}

u32 model_unsettled(const struct model *m) {
    u32 n = 0;
    for (u32 i = 0; i < m->live_count; i++) n += !model_surely_settled(m, m->live[i]);
    return n;
}

struct message *model_some_live(const struct model *m, struct rng *rng) {
    return m->live_count ? m->live[rng_below(rng, m->live_count)] : NULL;
}

void model_key_of(const struct message *msg, u32 *queue, u32 *key) {
    *queue = msg->queue;
    *key = msg->key;
}

u32 model_live(const struct model *m) {
    return m->live_count;
}

bool model_may_be_held(const struct model *m, const struct message *msg) {
    struct set closed;
    model_set_close(m, msg, msg->set, &closed);
    for (u32 i = 0; i < closed.count; i++)
        if (closed.at[i].at == AT_DEAD || closed.at[i].at == AT_HELD) return true;
    return false;
}

struct message *model_some_leased(const struct model *m, u32 queue) {
    for (u32 i = 0; i < m->live_count; i++) {
        struct message *msg = m->live[i];
        if (msg->queue == queue && msg->id_known && msg->set->at[0].at == AT_LEASED) return msg;
    }
    return NULL;
}

struct message *model_some_stuck(const struct model *m, u32 queue) {
    for (u32 i = 0; i < m->live_count; i++) {
        struct message *msg = m->live[i];
        if (msg->queue == queue && msg->id_known && model_may_be_held(m, msg)) return msg;
    }
    return NULL;
}

bool model_keeps_payloads(const struct model *m, u32 queue) {
    return policy_of(m, queue)->keep_ms > 0;
}

struct message *model_some_replay(const struct model *m, struct rng *rng) {
    u64 at = m->live_count ? rng_below(rng, m->live_count) : 0;
    for (u32 i = 0; i < m->live_count; i++) {
        struct message *msg = m->live[(at + i) % m->live_count];
        if (msg->generation && msg->id_known) return msg;
    }
    return NULL;
}

struct message *model_some_taken(const struct model *m, u32 queue) {
    for (u32 i = 0; i < m->live_count; i++) {
        struct message *msg = m->live[i];
        if (msg->queue == queue && msg->id_known && model_may_be_taken(m, msg)) return msg;
    }
    return NULL;
}

/* ---- the audit trail */

void model_audit_item(struct model *m, slice why) {
    u64 number;
    if (why.n < 2 || why.p[0] != 'n' || !slice_u64(slice_of(why.p + 1, why.n - 1), &number)) return;
    for (struct deed *d = m->deeds; d; d = d->next)
        if (d->number == number) d->found = true;
}

void model_audit_end(struct model *m) {
    for (const struct deed *d = m->deeds; d; d = d->next)
        if (!d->found) sim_fail("what call %u did is not in the audit trail", d->number);
}

void model_describe_unsettled(const struct model *m, struct buf *out) {
    for (u32 i = 0; i < m->live_count && i < 5; i++) {
        buf_printf(out, "%sq%u/k%u ", i ? "; " : "", m->live[i]->queue, m->live[i]->key);
        model_set_describe(m->live[i]->set, out);
    }
}
