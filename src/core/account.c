/* Accounts: queues that share one bound. Sums that follow from the queues' own, kept as those change so that a send asks one
 * number. Which queue is in which account, and what may be in one, is said anew at every start: no record holds it. */
#include "core/state.h"

static void sums_move(struct account_sums *from, struct account_sums *to, const struct queue *q) {
    from->queues--, to->queues++;
    from->pending -= q->unsettled - q->refused_copies, to->pending += q->unsettled - q->refused_copies;
    from->bytes -= q->bytes, to->bytes += q->bytes;
}

static void move_to(struct core *c, struct queue *q, u16 account) {
    CHECK(account <= c->account_count && !(q->deleted && account));
    if (q->account != account) sums_move(&c->accounts[q->account].sums, &c->accounts[account].sums, q);
    q->account = account;
}

void account_leave(struct core *c, struct queue *q) {
    move_to(c, q, ACCOUNT_NONE);
}

void core_accounts_set(struct core *c, const struct account_limits *limits, u16 count) {
    for (u32 id = 1; id <= c->queue_count; id++) account_leave(c, queue_mut(c, (u16)id));
    c->accounts = mem_realloc(c->accounts, (count + 1u) * sizeof *c->accounts);
    for (u32 i = 1; i <= count; i++) c->accounts[i] = (struct account){.limits = limits[i - 1]};
    c->account_count = count;
}

void core_queue_account(struct core *c, u16 queue, u16 account) {
    move_to(c, queue_mut(c, queue), account);
}

struct account_sums core_account_sums(const struct core *c, u16 account) {
    CHECK(account && account <= c->account_count);
    return c->accounts[account].sums;
}

enum account_verdict account_has_room(const struct core *c, const struct queue *q, size_t bytes) {
    const struct account *a = &c->accounts[q->account];
    if (a->limits.pending && a->sums.pending >= a->limits.pending) return ACCOUNT_PENDING;
    if (a->limits.bytes && a->sums.bytes + bytes > a->limits.bytes) return ACCOUNT_BYTES;
    return ACCOUNT_OK;
}
