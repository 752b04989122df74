/* Answers to everything but settling calls. */
#include "model_priv.h"

void model_saw(struct op *op, u64 index) {
    if (index > op->saw) op->saw = index;
}

bool model_refused(struct model *m, u32 status, const struct view *v) {
    if (status < 500) return false;
    bool half_done = status == 507 && view_is(v, "applied", "unknown"); /* a redrive or a purge that ran out of room */
    if (!half_done && !view_is(v, "applied", "no")) sim_fail("status %u does not say applied: no", status);
    if (status == 503 && view_is(v, "code", "shutting_down")) {
        tally.shutdown_refusals++;
        return true;
    }
    if (status != 507 || !m->tight)
        sim_fail("status %u (%.*s) for no reason", status, (int)view_text(v, "code").n, view_text(v, "code").p);
    tally.refused_full++;
    return true;
}

/* Refused for lack of room: whether the queue was made is not told. */
bool model_refused_by_queue(struct model *m, const struct op *op, u32 status, const struct view *v) {
    if (!model_refused(m, status, v)) return false;
    if (status == 507) m->queues[op->queue].unsure = true;
    return true;
}

/* ---- send */

static bool explain_known(const struct model *m, const struct message *msg, struct phase *next, void *ctx) {
    (void)msg, (void)ctx;
    return next->at != AT_FORGOTTEN && !model_is_over(m, next); /* past its window a key is new at the next look-up */
}

static bool explain_known_shown(const struct model *m, const struct message *msg, struct phase *next, void *ctx) {
    return explain_known(m, msg, next, NULL) && model_explain_shown(m, msg, next, ctx);
}

/* Past its window, or forgotten: another message takes its place. */
static bool explain_replaced(const struct model *m, const struct message *msg, struct phase *next, void *ctx) {
    (void)msg, (void)ctx;
    bool replaced = next->at == AT_FORGOTTEN || model_may_be_over(m, next);
    *next = (struct phase){.at = AT_FORGOTTEN, .superseded = next->superseded};
    return replaced;
}

/* Past its window a key is not shown any more, though its tokens may still be known for a while. */
bool model_explain_not_shown(const struct model *m, const struct message *msg, struct phase *next, void *ctx) {
    (void)msg, (void)ctx;
    return next->at == AT_FORGOTTEN || model_may_be_over(m, next);
}

/* ---- backpressure: at the limit nothing new, and until below four fifths of it */

static void unsettled_bounds(const struct model *m, u32 queue, u64 *low, u64 *high) {
    *low = *high = 0;
    for (u32 i = 0; i < m->live_count; i++) {
        struct set closed;
        u32 live = 0;
        if (m->live[i]->queue != queue) continue;
        model_set_close(m, m->live[i], m->live[i]->set, &closed);
        for (u32 p = 0; p < closed.count; p++) live += !model_phase_settled(&closed.at[p]);
        *low += live == closed.count;
        *high += live > 0;
    }
}

static void answered_pressed(struct model *m, const struct op *op, const struct view *v) {
    struct queue *q = &m->queues[op->queue];
    u64 low, high, limit = q->policy->limit;
    unsettled_bounds(m, op->queue, &low, &high);
    bool over = limit && high >= limit, still = limit && q->pressed && high * 5 >= limit * 4;
    if (!over && !still)
        sim_fail("429 at %llu unsettled messages of %llu", (unsigned long long)high, (unsigned long long)limit);
    if (!view_is(v, "applied", "no")) sim_fail("429 does not say applied: no");
    q->pressed = true;
    tally.backpressured++;
}

static void check_pressure(struct model *m, u32 queue) {
    struct queue *q = &m->queues[queue];
    u64 low, high, limit = q->policy->limit;
    if (!limit) return;
    unsettled_bounds(m, queue, &low, &high);
    if (low >= limit)
        sim_fail("admitted at %llu unsettled messages of %llu", (unsigned long long)low, (unsigned long long)limit);
    tally.flows_again += q->pressed;
    q->pressed = false;
}

/* ---- admission */

static bool on_its_own(const struct model *m, u32 queue, const struct send_item *item) {
    return item->keyless || policy_of(m, queue)->semantics == AT_LEAST_ONCE;
}

static u32 arrival_slot(struct model *m, u32 queue) {
    struct queue *q = &m->queues[queue];
    if (q->arrivals == ARRIVALS_MOST) sim_fail("the model: more arrivals than it has room for");
    return 3 * m->key_count + q->arrivals++;
}

static struct message *admit(struct model *m, struct op *op, u32 slot, const struct send_item *item, bool held) {
    struct message *old = *key_slot(m, op->queue, slot);
    if (old) {
        model_move_on(m, old, explain_replaced, NULL, "P2: admitted anew");
        tally.readmitted++;
    }
    check_pressure(m, op->queue);
    tally.accepted++;
    struct phase first = {.at = held ? AT_HELD : AT_PENDING, .conflict = held};
    struct message *msg = model_message_new(m, op->queue, slot, item, &first);
    model_saw(op, msg->versions[0].index);
    return msg;
}

/* What conflicts may get a key of its own: KEY~ and the fingerprint. */
static bool has_own_key(struct model *m, const struct op *op, const struct send_item *item, const struct view *v,
                        struct arena *scratch) {
    slice key = view_text(v, "key"), sent = key_text(scratch, item->key);
    if (on_its_own(m, op->queue, item) || slice_eq(key, sent)) return false;
    if (key.n != sent.n + 17 || memcmp(key.p, sent.p, sent.n) != 0 || key.p[sent.n] != '~')
        sim_fail("q%u/k%u is called %.*s", op->queue, item->key, (int)key.n, key.p);
    return true;
}

/* It gets one now: its first key is known with another payload, and the rules want it so. */
static bool gets_own_key(struct model *m, struct op *op, const struct send_item *item, const struct view *v,
                         struct arena *scratch) {
    if (!has_own_key(m, op, item, v, scratch)) return false;
    struct message *original = *key_slot(m, op->queue, item->key);
    if (!original || original->variant == item->variant) sim_fail("an own key for what is no conflict");
    if (policy_of(m, op->queue)->on_conflict == CONFLICT_REJECT) sim_fail("an own key for what is to be rejected");
    model_saw(op, model_move(m, original, explain_known, NULL, "conflict"));
    return true;
}

/* Admitted under its first key: then it is not known by one of its own. */
static void check_no_own_key(struct model *m, struct op *op, const struct send_item *item) {
    struct message *own = *key_slot(m, op->queue, slot_of_derived(m, item->key, item->variant));
    if (own) model_saw(op, model_move(m, own, model_explain_not_shown, NULL, "P2: admitted under its first key"));
}

static struct message *admitted(struct model *m, struct op *op, const struct send_item *item, const struct view *v,
                                struct arena *scratch) {
    bool hold = policy_of(m, op->queue)->on_conflict == CONFLICT_HOLD;
    if (on_its_own(m, op->queue, item)) return admit(m, op, arrival_slot(m, op->queue), item, false);
    if (!gets_own_key(m, op, item, v, scratch)) {
        check_no_own_key(m, op, item);
        return admit(m, op, item->key, item, false);
    }
    struct message *msg = admit(m, op, slot_of_derived(m, item->key, item->variant), item, hold);
    msg->name = arena_copy(m->arena, view_text(v, "key"));
    ++*(hold ? &tally.conflicts_held : &tally.conflicts_new);
    return msg;
}

static void duplicate_arrived(struct model *m, struct message *msg) {
    if (msg->dup_run < m->counted_run) msg->dups_safe = msg->dups_min;
    msg->dup_run = m->run;
    msg->dups++;
    msg->dups_min++;
}

static void answered_accepted(struct model *m, struct op *op, const struct send_item *item, u32 status,
                              const struct view *v, struct arena *scratch) {
    struct message *msg = op->parked && !op->was_duplicate ? op->waits_for : NULL;
    if (!msg && op->parked) sim_fail("a duplicate that waited is called accepted");
    if (!msg) msg = admitted(m, op, item, v, scratch);
    if (view_is(v, "outcome", "held") != (msg->set->at[0].conflict != 0))
        sim_fail("held, or not: it is called otherwise");
    model_check_identity(m, msg, v);
    struct shown shown = {.scratch = scratch, .view = *v, .state = view_text(v, "state")};
    model_saw(op, model_move(m, msg, model_explain_shown, &shown, "accepted"));
    bool settled = model_phase_settled(&msg->set->at[0]);
    if (status != (settled ? 200 : 202) || view_true(v, "duplicate")) sim_fail("accepted with status %u", status);
}

static void answered_duplicate(struct model *m, struct op *op, const struct send_item *item, u32 status,
                               const struct view *v, struct arena *scratch) {
    if (on_its_own(m, op->queue, item)) sim_fail("at_least_once, or without a key: there are no duplicates");
    bool own = !op->parked && has_own_key(m, op, item, v, scratch);
    u32 slot = own ? slot_of_derived(m, item->key, item->variant) : item->key;
    struct message *msg = op->parked ? op->waits_for : model_named(m, op->queue, slot, view_text(v, "id"));
    if (!msg) sim_fail("q%u/k%u was never accepted and is called a duplicate", op->queue, item->key);
    if (msg->variant != item->variant) sim_fail("q%u/k%u: another payload is called a duplicate", op->queue, item->key);
    if (op->parked && !op->was_duplicate) sim_fail("a first send that waited is called a duplicate");
    if (!op->parked) duplicate_arrived(m, msg);
    model_check_identity(m, msg, v);
    struct shown shown = {.scratch = scratch, .view = *v, .state = view_text(v, "state")};
    u64 index = model_move(m, msg, explain_known_shown, &shown, "duplicate");
    if (op->kind == OP_SEND && !op->parked && !own) {
        op->told = msg;
        op->told_version = msg->version_count - 1;
    } else {
        model_saw(op, index);
    }
    i64 duplicates;
    if (view_i64(v, "duplicates", &duplicates)) model_check_duplicates(msg, duplicates);
    model_promise(m, op, msg, v);
    bool settled = model_phase_settled(&msg->set->at[0]);
    tally.duplicates++;
    tally.duplicates_settled += settled;
    if (status != (settled ? 200 : 202) || !view_true(v, "duplicate")) sim_fail("a duplicate with status %u", status);
}

static void answered_conflict(struct model *m, struct op *op, const struct send_item *item, const struct view *v) {
    struct message *msg = model_named(m, op->queue, item->key, view_text(v, "id"));
    if (!msg || msg->variant == item->variant) sim_fail("q%u/k%u: 422 without a conflict", op->queue, item->key);
    if (policy_of(m, op->queue)->on_conflict != CONFLICT_REJECT) sim_fail("a conflict is rejected against the rules");
    if (!view_is(v, "applied", "no")) sim_fail("a conflict does not say applied: no");
    model_check_identity(m, msg, v);
    model_saw(op, model_move(m, msg, explain_known, NULL, "conflict"));
    tally.conflicts++;
}

static void answered_line(struct model *m, struct op *op, const struct send_item *item, u32 status,
                          const struct view *v, struct arena *scratch) {
    if (model_refused(m, status, v)) {
        if (op->parked) sim_fail("a send that waited got status %u", status);
        return;
    }
    if (status == 404 && op->parked && view_is(v, "code", "no_such_key"))
        model_saw(op, model_move(m, op->waits_for, model_explain_not_shown, NULL, "404 for a send that waited"));
    else if (status == 422 && view_is(v, "code", "key_reused"))
        answered_conflict(m, op, item, v);
    else if (status == 429 && view_is(v, "code", "backpressure"))
        answered_pressed(m, op, v);
    else if (status == 400 && item->keyless && view_is(v, "code", "key_missing") &&
             policy_of(m, op->queue)->semantics == EXACTLY_ONCE)
        tally.keys_missing++;
    else if (view_is(v, "outcome", "accepted") || view_is(v, "outcome", "held"))
        answered_accepted(m, op, item, status, v, scratch);
    else if (view_is(v, "outcome", "duplicate"))
        answered_duplicate(m, op, item, status, v, scratch);
    else
        sim_fail("a send got status %u, code %.*s", status, (int)view_text(v, "code").n, view_text(v, "code").p);
}

static bool has_line(slice fields, slice line) {
    for (size_t i = 0; i + line.n <= fields.n; i++)
        if (memcmp(fields.p + i, line.p, line.n) == 0) return true;
    return false;
}

static void answered_send(struct model *m, struct op *op, const struct http_reply *reply, struct arena *scratch) {
    struct view v = view_of(scratch, reply->body);
    if (reply->status < 500 && reply->status != 400) model_queue_touch(m, op->queue);
    if (reply->status == 507 || reply->status == 400) m->queues[op->queue].unsure = true;
    answered_line(m, op, &op->sends[0], reply->status, &v, scratch);
    bool duplicate = view_true(&v, "duplicate");
    if (duplicate != has_line(reply->fields, SL("Idempotent-Replayed: true\r\n")))
        sim_fail("Idempotent-Replayed is wrong");
    if (!op->parked) return;
    bool settled = reply->status == 200;
    ++*(settled ? &tally.waits_settled : &tally.waits_timed_out);
}

static void answered_batch(struct model *m, struct op *op, const struct http_reply *reply, struct arena *scratch) {
    slice rest = reply->body, line;
    if (reply->status != 200) {
        struct view v = view_of(scratch, reply->body);
        if (!model_refused_by_queue(m, op, reply->status, &v)) sim_fail("a batch got status %u", reply->status);
        return;
    }
    model_queue_touch(m, op->queue);
    tally.batches++;
    for (u32 i = 0; i < op->count; i++) {
        if (!slice_cut(rest, '\n', &line, &rest)) sim_fail("a batch of %u lines got %u back", op->count, i);
        struct view v = view_of(scratch, line);
        i64 status = 0;
        if (!view_i64(&v, "status", &status)) sim_fail("a batch line without a status");
        answered_line(m, op, &op->sends[i], (u32)status, &v, scratch);
    }
    if (rest.n) sim_fail("a batch of %u lines got more back", op->count);
}

/* ---- receive */

struct delivery {
    struct arena *scratch;
    const struct view *view;
    const struct op *op;
    u64 fence;
};

/* at_most_once: a delivery is the settlement. */
static void hand_out(const struct model *m, const struct message *msg, struct phase *p, u64 fence) {
    p->at = AT_DONE;
    p->end = END_HANDED_OUT;
    p->fence = fence;
    p->attempts++;
    p->started = 1;
    p->hidden = p->lookup = 0;
    p->result = p->content_type = p->reason = SL("");
    model_stamp(m, msg, p);
}

static bool explain_delivery(const struct model *m, const struct message *msg, struct phase *next, void *ctx) {
    const struct delivery *d = ctx;
    i64 attempt = 0, failures = 0, crashes = 0;
    if (next->at != AT_PENDING || m->delay < next->due) return false;
    if (model_ttl_may_be_over(m, msg, next) && model_ttl_late_ms(m, msg) >= 0) return false;
    view_i64(d->view, "attempt", &attempt);
    view_i64(d->view, "failures", &failures);
    view_i64(d->view, "crashes", &crashes);
    if (attempt != next->attempts + 1 || failures != next->failures + next->unknowns || crashes != next->crashes)
        return false;
    /* P5: what may have been done is looked up, never done again on the quiet. */
    if (!view_is(d->view, "delivery", next->reconcile ? "reconcile" : next->attempts ? "retry" : "first")) return false;
    if (!model_steps_match(d->scratch, d->view, next->steps)) return false;
    if (policy_of(m, msg->queue)->semantics == AT_MOST_ONCE && !next->reconcile) {
        hand_out(m, msg, next, d->fence);
        return true;
    }
    next->doubt = model_doubt(next);
    next->lookup = next->reconcile;
    next->at = AT_LEASED;
    next->end = END_OPEN;
    next->fence = d->fence;
    next->lease_ms = d->op->lease_ms ? d->op->lease_ms : policy_of(m, msg->queue)->lease_ms;
    next->lease_from = m->run;
    next->started = !d->op->explicit_start;
    next->attempts += next->started;
    next->hidden = 0;
    next->due = next->due_max = 0;
    return true;
}

static bool explain_beside(const struct model *m, const struct message *msg, struct phase *next, void *ctx) {
    const struct message *handed_out = ctx;
    (void)m;
    if (model_phase_settled(next)) return true;
    if (next->at == AT_LEASED) return false;
    bool aside = next->parked || next->conflict;
    return msg->order > handed_out->order || (aside && (next->at == AT_DEAD || next->at == AT_HELD));
}

/* FIFO: whatever came before it in its group must be settled by now or set aside, and nothing of it be in flight. */
static void check_group(struct model *m, struct message *msg) {
    if (msg->group == 0) return;
    tally.group_deliveries++;
    for (u32 i = m->live_count; i-- > 0;) {
        struct message *other = m->live[i];
        if (other == msg || other->queue != msg->queue || other->group != msg->group) continue;
        if (other->order < msg->order) {
            bool dead = other->set->at[0].at == AT_DEAD;
            ++*(dead ? &tally.group_skipped : &tally.group_passed);
        }
        model_move(m, other, explain_beside, msg, "FIFO: another message of its group was handed out");
    }
}

static struct message *message_shown(struct model *m, u32 queue, const struct view *v, struct arena *scratch) {
    slice id = view_text(v, "id"), key = view_text(v, "key");
    for (u32 s = 0; s < m->slot_count; s++) {
        struct message *msg = *key_slot(m, queue, s);
        if (msg && msg->id_known && slice_eq(slice_str(msg->id), id)) return msg;
    }
    for (u32 k = 0; k < m->key_count; k++)
        if (slice_eq(key_text(scratch, k), key)) return *key_slot(m, queue, k);
    return NULL;
}

static slice effect_key(const struct message *msg, const struct view *v, struct arena *scratch) {
    slice base = view_text(v, msg->keyless ? "id" : "key");
    if (msg->generation == 0) return base;
    return arena_printf(scratch, "%.*s~g%u", (int)base.n, base.p, msg->generation);
}

static void check_contents(const struct message *msg, const struct view *v, struct arena *scratch) {
    slice payload;
    if (!view_bytes(scratch, v, "payload", &payload) ||
        !slice_eq(payload, payload_text(scratch, msg->queue, msg->key, msg->variant)))
        sim_fail("q%u/k%u: the payload is not the one that was sent", msg->queue, msg->key);
    if (!slice_eq(view_text(v, "group"), msg->group ? group_text(scratch, msg->group) : SL("")))
        sim_fail("q%u/k%u: wrong group", msg->queue, msg->key);
    struct view attrs = view_of(scratch, view_text(v, "attrs"));
    if (attrs.count != msg->has_attr || (msg->has_attr && !view_is(&attrs, "color", "green")))
        sim_fail("q%u/k%u: wrong attributes", msg->queue, msg->key);
    if (!view_is(v, "content_type", "text/plain") || !slice_eq(view_text(v, "effect_key"), effect_key(msg, v, scratch)))
        sim_fail("q%u/k%u: wrong content type, generation or effect key", msg->queue, msg->key);
}

static void delivered_one(struct model *m, struct op *op, const struct view *v, struct arena *scratch) {
    struct delivery d = {.scratch = scratch, .view = v, .op = op};
    struct message *msg = message_shown(m, op->queue, v, scratch);
    if (!msg) sim_fail("a message was handed out that nobody sent");
    if (!slice_u64(view_text(v, "fence"), &d.fence)) sim_fail("a fence that is no number");
    if (d.fence <= m->fence_top)
        sim_fail("P3: fence %llu after %llu", (unsigned long long)d.fence, (unsigned long long)m->fence_top);
    m->fence_top = d.fence;
    model_check_identity(m, msg, v);
    check_contents(msg, v, scratch);
    bool again = msg->set->at[0].fence != 0;
    tally.delivered++;
    tally.redelivered += again;
    struct set before;
    model_set_close(m, msg, msg->set, &before);
    model_saw(op, model_move(m, msg, explain_delivery, &d, "handed out"));
    if (before.at[0].end == END_EXPIRED) ++*(before.at[0].started ? &tally.expired : &tally.reservations_expired);
    tally.lookups_handed_out += msg->set->at[0].lookup && msg->set->at[0].at == AT_LEASED;
    tally.handed_out_for_good += msg->set->at[0].end == END_HANDED_OUT;
    tally.generations += msg->generation > 0;
    check_group(m, msg);
    struct lease *lease = arena_alloc(m->arena, sizeof *lease);
    *lease = (struct lease){.message = msg, .fence = d.fence, .explicit_start = op->explicit_start};
    lease->token = arena_copy(m->arena, view_text(v, "token"));
    op->leases[op->lease_count++] = lease;
}

static void answered_receive(struct model *m, struct op *op, const struct http_reply *reply, struct arena *scratch) {
    struct view v = view_of(scratch, reply->body);
    if (model_refused_by_queue(m, op, reply->status, &v)) return;
    const struct member *list = view_get(&v, "messages");
    if (reply->status != 200 || !list) sim_fail("receive got status %u", reply->status);
    struct view items = view_of(scratch, list->raw);
    if (items.count && !m->queues[op->queue].exists && !m->queues[op->queue].unsure)
        sim_fail("queue %u hands out, and nobody made it", op->queue);
    if (items.count > op->max) sim_fail("%u messages for max=%u", items.count, op->max);
    if (items.count && m->queues[op->queue].paused) sim_fail("a paused queue hands out");
    op->leases = arena_alloc(m->arena, (items.count + 1) * sizeof(struct lease *));
    for (u32 i = 0; i < items.count; i++) {
        struct view item = view_of(scratch, items.at[i].raw);
        delivered_one(m, op, &item, scratch);
    }
    if (items.count && !reply->receipt) sim_fail("leases without a receipt");
    if (op->parked && items.count) tally.polls_woken++;
    if (items.count == 0) tally.polls_empty++;
    const struct message *ready = items.count < op->max ? model_any_ready(m, op->queue) : NULL;
    if (ready)
        sim_fail("receive got %u of %u although q%u/k%u was ready", items.count, op->max, ready->queue, ready->key);
}

/* ---- looking up */

static void count_taken(const struct message *msg, slice state) {
    tally.group_taken += msg->set->at[0].at == AT_PENDING && slice_eq(state, SL("dead"));
}

/* Of an operator's call or a look-up by id: the message as it is now. */
struct message *model_target(struct model *m, const struct op *op) {
    struct message *msg = op->target, *now = *key_slot(m, op->queue, msg->slot);
    if (op->id.n == 0 || (now && now->id_known && slice_eq(slice_str(now->id), op->id))) return now;
    return now == msg ? msg : NULL;
}

static void answered_key(struct model *m, struct op *op, const struct http_reply *reply, struct arena *scratch) {
    struct shown shown = {.scratch = scratch, .full = true, .view = view_of(scratch, reply->body)};
    struct message *msg =
        op->target ? model_target(m, op) : model_named(m, op->queue, op->sends[0].key, view_text(&shown.view, "id"));
    tally.lookups++;
    if (model_refused(m, reply->status, &shown.view)) return;
    if (reply->status == 404) {
        if (msg) model_saw(op, model_move(m, msg, model_explain_not_shown, NULL, "404 for a key"));
        return;
    }
    if (reply->status != 200 || !msg)
        sim_fail("a key that %s got status %u", msg ? "is known" : "is not", reply->status);
    shown.state = view_text(&shown.view, "state");
    model_check_identity(m, msg, &shown.view);
    model_saw(op, model_move(m, msg, model_explain_shown, &shown, "shown"));
    count_taken(msg, shown.state);
    if (view_i64(&shown.view, "duplicates", &shown.duplicates)) model_check_duplicates(msg, shown.duplicates);
    model_promise(m, op, msg, &shown.view);
}

struct raw_result {
    const struct http_reply *reply;
    slice state; /* of a problem */
};

static bool explain_result(const struct model *m, const struct message *msg, struct phase *next, void *ctx) {
    const struct raw_result *r = ctx;
    const struct http_reply *reply = r->reply;
    if (reply->status == 404) return model_explain_not_shown(m, msg, next, NULL);
    if (reply->status == 409) return model_shows_as(m, msg, next, r->state) && !model_phase_settled(next);
    if (!model_phase_settled(next) || next->at == AT_FORGOTTEN) return false;
    if (reply->status != (next->result.n ? 200 : 204)) return false;
    return slice_eq(reply->body, next->result) && has_line(reply->fields, slice_str(model_at_name((enum at)next->at)));
}

static void answered_result(struct model *m, struct op *op, const struct http_reply *reply, struct arena *scratch) {
    struct message *msg = op->parked ? op->waits_for : *key_slot(m, op->queue, op->sends[0].key);
    struct raw_result r = {.reply = reply};
    tally.lookups++;
    if (reply->status >= 400) {
        struct view v = view_of(scratch, reply->body);
        if (model_refused(m, reply->status, &v)) return;
        r.state = view_text(&v, "state");
    }
    if (!msg) {
        if (reply->status != 404) sim_fail("the result of an unknown key got status %u", reply->status);
        return;
    }
    model_saw(op, model_move(m, msg, explain_result, &r, "result"));
}

static bool surely_at(const struct model *m, const struct message *msg, slice state) {
    struct set closed;
    model_set_close(m, msg, msg->set, &closed);
    for (u32 i = 0; i < closed.count; i++)
        if (!slice_eq(slice_str(model_at_name((enum at)closed.at[i].at)), state)) return false;
    return !slice_eq(state, SL("pending")) || !model_may_be_taken(m, msg);
}

static void answered_list(struct model *m, struct op *op, const struct http_reply *reply, struct arena *scratch) {
    struct view v = view_of(scratch, reply->body);
    tally.lists++;
    if (model_refused(m, reply->status, &v) || (reply->status == 404 && !m->queues[op->queue].exists)) return;
    const struct member *list = view_get(&v, "items"), *cursor = view_get(&v, "next_cursor");
    if (reply->status != 200 || !list || !cursor) sim_fail("a list got status %u", reply->status);
    struct view items = view_of(scratch, list->raw);
    for (u32 i = 0; i < items.count; i++) {
        struct shown shown = {.scratch = scratch, .full = true, .view = view_of(scratch, items.at[i].raw)};
        struct message *msg = message_shown(m, op->queue, &shown.view, scratch);
        shown.state = view_text(&shown.view, "state");
        if (!msg || !slice_eq(shown.state, op->state))
            sim_fail("a list of %.*s holds something else", (int)op->state.n, op->state.p);
        model_check_identity(m, msg, &shown.view);
        model_saw(op, model_move(m, msg, model_explain_shown, &shown, "listed"));
        count_taken(msg, shown.state);
    }
    if (!cursor->is_null) return;
    u32 sure = 0;
    for (u32 i = 0; i < m->live_count; i++)
        sure += m->live[i]->queue == op->queue && surely_at(m, m->live[i], op->state);
    if (sure > items.count) sim_fail("%u are %.*s, %u listed", sure, (int)op->state.n, op->state.p, items.count);
}

/* ---- queues */

struct bounds {
    i64 low, high;
};

static void count_states(const struct model *m, u32 queue, struct bounds b[AT_FORGOTTEN + 1]) {
    memset(b, 0, (AT_FORGOTTEN + 1) * sizeof *b);
    for (u32 i = 0; i < m->live_count; i++) {
        struct set closed;
        bool can[AT_FORGOTTEN + 1] = {0};
        u32 kinds = 0;
        if (m->live[i]->queue != queue) continue;
        model_set_close(m, m->live[i], m->live[i]->set, &closed);
        for (u32 p = 0; p < closed.count; p++) can[closed.at[p].at] = true;
        if (can[AT_PENDING] && model_may_be_taken(m, m->live[i])) can[AT_DEAD] = true;
        for (u32 s = 0; s <= AT_FORGOTTEN; s++) kinds += can[s];
        for (u32 s = 0; s <= AT_FORGOTTEN; s++) {
            b[s].high += can[s];
            b[s].low += can[s] && kinds == 1;
        }
    }
}

void model_answered_queue(struct model *m, struct op *op, const struct http_reply *reply, struct arena *scratch) {
    static const enum at shown[] = {AT_PENDING, AT_LEASED, AT_HELD, AT_DEAD};
    struct view v = view_of(scratch, reply->body);
    struct bounds b[AT_FORGOTTEN + 1];
    if (model_refused_by_queue(m, op, reply->status, &v)) return;
    if (reply->status == 404) {
        if (m->queues[op->queue].exists) sim_fail("queue %u is gone", op->queue);
        return;
    }
    if ((op->kind == OP_QUEUE || op->kind == OP_RESUME) && !m->queues[op->queue].exists && !m->queues[op->queue].unsure)
        sim_fail("queue %u exists, and nobody made it", op->queue);
    if (reply->status != 200 && !(reply->status == 201 && op->kind == OP_PUT))
        sim_fail("a queue got status %u", reply->status);
    if (op->kind == OP_PAUSE || op->kind == OP_RESUME) {
        op->deed = m->queues[op->queue].paused != (op->kind == OP_PAUSE);
        model_queue_set(m, op->queue, op->kind == OP_PAUSE);
        tally.paused += op->kind == OP_PAUSE;
    }
    if (m->queues[op->queue].version_count) {
        const struct queue *q = &m->queues[op->queue];
        model_saw(op, q->versions[q->version_count - 1].index);
    }
    if (view_true(&v, "paused") != m->queues[op->queue].paused) sim_fail("queue %u: paused is wrong", op->queue);
    if (!policy_shown(policy_of(m, op->queue), reply->body, scratch))
        sim_fail("queue %u does not have the rules it was given (p%u)", op->queue, policy_of(m, op->queue)->number);
    count_states(m, op->queue, b);
    for (u32 i = 0; i < 4; i++) {
        i64 n = -1;
        view_i64(&v, model_at_name(shown[i]), &n);
        if (n < b[shown[i]].low || n > b[shown[i]].high)
            sim_fail("queue %u: %lld are %s; it must be %lld to %lld", op->queue, (long long)n, model_at_name(shown[i]),
                     (long long)b[shown[i]].low, (long long)b[shown[i]].high);
    }
}

/* ---- the doors */

void model_answered(struct model *m, struct op *op, const struct http_reply *reply, struct arena *scratch) {
    op->saw = 0;
    op->told = NULL;
    switch (op->kind) {
    case OP_SEND:
        answered_send(m, op, reply, scratch);
        break;
    case OP_BATCH:
        answered_batch(m, op, reply, scratch);
        break;
    case OP_RECEIVE:
        answered_receive(m, op, reply, scratch);
        break;
    case OP_SETTLE: {
        struct view v = view_of(scratch, reply->body);
        if (reply->status != 503 || !model_refused(m, reply->status, &v)) model_answered_settle(m, op, reply, scratch);
        break;
    }
    case OP_KEY:
    case OP_MESSAGE:
        answered_key(m, op, reply, scratch);
        break;
    case OP_RESULT:
        answered_result(m, op, reply, scratch);
        break;
    case OP_LIST:
        answered_list(m, op, reply, scratch);
        break;
    case OP_QUEUE:
    case OP_PAUSE:
    case OP_RESUME:
        model_answered_queue(m, op, reply, scratch);
        break;
    case OP_AUDIT:
    case OP_STATS:
        break; /* asked out of band only */
    default:
        model_answered_deed(m, op, reply, scratch);
    }
    if (op->parked) model_unpark(m, op);
}

static bool explain_unsettled(const struct model *m, const struct message *msg, struct phase *next, void *ctx) {
    (void)m, (void)msg, (void)ctx;
    return !model_phase_settled(next) && next->at != AT_DEAD;
}

/* A send that waits has been admitted, or is a duplicate of what is not settled yet. */
static void parked_send(struct model *m, struct op *op) {
    struct message *msg = *key_slot(m, op->queue, op->sends[0].key);
    struct set left;
    model_queue_touch(m, op->queue);
    op->was_duplicate = msg && model_set_filter(m, msg, msg->set, explain_unsettled, NULL, &left);
    if (tracing && msg) {
        struct buf text = {0};
        model_set_describe(msg->set, &text);
        trace("  #%u waits; its key was %.*s", op->number, (int)text.len, text.p);
        buf_free(&text);
    }
    if (!op->was_duplicate) {
        op->waits_for = admit(m, op, op->sends[0].key, &op->sends[0], false);
        return;
    }
    if (msg->variant != op->sends[0].variant) sim_fail("a conflict was made to wait");
    model_move(m, msg, explain_unsettled, NULL, "made to wait");
    duplicate_arrived(m, msg);
    op->waits_for = msg;
}

void model_parked(struct model *m, struct op *op) {
    if (op->wait_ms == 0) sim_fail("a request that did not ask to wait is not answered");
    if (op->kind == OP_RECEIVE) {
        bool there = m->queues[op->queue].exists; /* waiting does not make it */
        if (!op->lease_ms && there)
            op->lease_ms = policy_of(m, op->queue)->lease_ms; /* as it was when it was asked for */
        tally.polls_parked++;
        const struct message *ready = model_any_ready(m, op->queue);
        if (ready) sim_fail("a poll is made to wait although q%u/k%u is ready", ready->queue, ready->key);
    } else if (op->kind == OP_SEND) {
        tally.waits_parked++;
        parked_send(m, op);
    } else if (op->kind == OP_RESULT) {
        tally.waits_parked++;
        op->waits_for = *key_slot(m, op->queue, op->sends[0].key);
        if (!op->waits_for) sim_fail("waiting for the result of an unknown key");
        model_move(m, op->waits_for, explain_unsettled, NULL, "made to wait for a result");
    } else {
        sim_fail("a request that cannot wait is not answered");
    }
    op->parked = true;
    op->parked_mono = m->mono;
    m->parked[m->parked_count++] = op;
}

void model_unpark(struct model *m, const struct op *op) {
    for (u32 i = 0; i < m->parked_count; i++)
        if (m->parked[i] == op) {
            m->parked[i] = m->parked[--m->parked_count];
            return;
        }
}

void model_gone(struct model *m, struct op *op) {
    model_unpark(m, op);
}

/* A repeat waits for what it is told of its original, and for nothing that was decided since. Where time made that, it lies somewhere
 * behind the version before: a cut may be there too, but then the original is what was told. */
static void told_of_original(struct model *m, const struct op *op) {
    struct version *v = op->told->versions;
    u32 i = op->told_version;
    for (; i > 0 && v[i].noticed; i--) v[i - 1].set = v[op->told_version].set;
    if (v[i].index > m->floor) m->floor = v[i].index;
}

void model_delivered(struct model *m, const struct op *op) {
    if (op->saw > m->floor) m->floor = op->saw;
    if (op->told) told_of_original(m, op);
    if (op->promised && op->promised_until > op->promised->promised_until)
        op->promised->promised_until = op->promised_until;
    if (op->deed) {
        struct deed *deed = arena_alloc(m->arena, sizeof *deed);
        *deed = (struct deed){.next = m->deeds, .number = op->number};
        m->deeds = deed;
    }
    for (u32 i = 0; i < op->lease_count; i++)
        if (op->leases[i]->fence > m->fence_told) m->fence_told = op->leases[i]->fence;
}

/* Given back without an attempt; short of room it may have to run out instead. */
static bool explain_unwritten(const struct model *m, const struct message *msg, struct phase *next, void *ctx) {
    const struct lease *lease = ctx;
    (void)msg;
    if (next->fence != lease->fence || next->at != AT_LEASED) return true;
    next->attempts -= next->started;
    next->reconcile = next->lookup;
    next->at = AT_PENDING;
    next->end = END_UNDONE;
    next->since = m->run;
    next->due = next->due_max = 0;
    next->hidden = 1;
    return true;
}

void model_unwritten(struct model *m, const struct op *op) {
    for (u32 i = 0; i < op->lease_count; i++) {
        struct message *msg = op->leases[i]->message;
        struct set both;
        model_set_load(&both, msg->set);
        model_move(m, msg, explain_unwritten, op->leases[i], "undone");
        tally.leases_undone++;
        if (!m->tight) continue;
        for (u32 p = 0; p < msg->set->count; p++) model_set_add(&both, &msg->set->at[p]);
        msg->versions[msg->version_count - 1].set = msg->set = model_set_copy(m, &both);
    }
}

static void check_waiting(const struct model *m, const struct op *op) {
    if (m->turn_mono - op->parked_mono >= op->wait_ms)
        sim_fail("call %u asked to wait %lld ms and still waits after %lld ms", op->number, (long long)op->wait_ms,
                 (long long)(m->turn_mono - op->parked_mono));
    const struct message *ready = op->kind == OP_RECEIVE ? model_any_ready(m, op->queue) : NULL;
    if (ready) sim_fail("call %u waits for a message although q%u/k%u is ready", op->number, ready->queue, ready->key);
    if (op->waits_for && model_surely_settled(m, op->waits_for))
        sim_fail("call %u waits for an outcome that is there", op->number);
}

void model_turn_end(struct model *m) {
    for (u32 i = 0; i < m->parked_count; i++) check_waiting(m, m->parked[i]);
}
