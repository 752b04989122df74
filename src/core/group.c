/* FIFO groups: only the head may be handed out, so one is in flight at most and order holds.
 *
 * Nearly all messages of a group come in the order of their numbers: they are a list. One that comes late, because it was
 * parked or because compaction carried it past younger ones, goes into a heap beside it. The head is the least of both.
 * Putting one back into a group of a million is then a matter of twenty steps, not of a walk along it.
 *
 * A message that is dead or held stays linked and blocks its group, unless it was parked: then it is a member that is not
 * linked, and comes back to where its number belongs, before younger ones. If one of those is in flight just then, the
 * head waits for it.
 *
 * A dead head that takes its group along makes the others dead without a record of their own: they are dead as long as their
 * head is that. A group may have a million members, so they follow their head a few at a time. Until they all have, some still
 * stand where the head left them: nobody is handed out meanwhile who should not be, for only the head ever is, and that one
 * is put right at once. How many have not followed is known, so the walk is over when there are none, whoever comes and goes
 * while it goes round. */
#include "core/state.h"

#define FOLLOW_AT_ONCE 1000u /* members, with the record that moves their head; the others with the clock */

static struct group *group_at(const struct core *c, u32 entry) {
    return (struct group *)(uintptr_t)index_entry(&c->groups, entry)->at;
}

static u32 head_of(const struct core *c, const struct group *g) {
    if (g->late.count == 0) return g->first;
    if (g->first == MESSAGE_NONE || (u64)g->late.at[0].when_ms < message_at(c, g->first)->seq)
        return g->late.at[0].message;
    return g->first;
}

bool is_behind(const struct core *c, u32 no) {
    const struct message *m = message_at(c, no);
    if (m->group == ENTRY_NONE) return false;
    const struct group *g = group_at(c, m->group);
    return head_of(c, g) != no || (g->leased != MESSAGE_NONE && g->leased != no);
}

u32 core_group_ahead(const struct core *c, u32 no) {
    if (!is_behind(c, no)) return MESSAGE_NONE;
    const struct group *g = group_at(c, message_at(c, no)->group);
    return g->leased != MESSAGE_NONE && g->leased != no ? g->leased : head_of(c, g);
}

bool is_group_head(const struct core *c, u32 no) {
    const struct message *m = message_at(c, no);
    return m->group != ENTRY_NONE && !m->parked && head_of(c, group_at(c, m->group)) == no;
}

bool is_taken(const struct core *c, u32 no) {
    const struct message *m = message_at(c, no);
    return m->group != ENTRY_NONE && group_at(c, m->group)->took && head_of(c, group_at(c, m->group)) != no;
}

void group_leased(struct core *c, const struct message *m, u32 no) {
    if (m->group != ENTRY_NONE) group_at(c, m->group)->leased = no;
}

/* ---- the group itself */

static u64 group_hash(const struct core *c, u16 queue, slice name) {
    struct siphash_key key = c->options.hash_key;
    key.k0 ^= 0x67726f7570ull ^ ((u64)queue << 40);
    return siphash(&key, name.p, name.n);
}

static struct group *group_find(const struct core *c, u16 queue, slice name, u64 hash) {
    struct index_cursor cursor = {0};
    for (u32 e; (e = index_find(&c->groups, hash, &cursor)) != ENTRY_NONE;) {
        struct group *g = group_at(c, e);
        if (g->queue == queue && slice_eq(slice_of(g->name, g->name_len), name)) return g;
    }
    return NULL;
}

static struct group *group_make(struct core *c, u16 queue, slice name, u64 hash) {
    struct group *g = mem_alloc(sizeof *g + name.n);
    *g = (struct group){.hash = hash, .late.kind = HEAP_LATE, .queue = queue, .name_len = (u16)name.n};
    memcpy(g->name, name.p, name.n);
    g->entry = index_insert(&c->groups, hash);
    index_entry(&c->groups, g->entry)->at = (u64)(uintptr_t)g;
    c->group_bytes += sizeof *g + name.n;
    c->group_count++;
    return g;
}

/* ---- groups whose members have yet to follow their head */

static u32 astray(const struct group *g) {
    return g->took ? g->behind : g->taken;
}

static void moving_add(struct core *c, struct group *g) {
    if (g->moving) return;
    if (c->moving_count == c->moving_cap) {
        c->moving_cap = c->moving_cap ? c->moving_cap * 2 : 16;
        c->moving = mem_realloc(c->moving, c->moving_cap * sizeof *c->moving);
    }
    c->moving[c->moving_count++] = g->entry;
    g->moving = c->moving_count;
}

static void moving_remove(struct core *c, struct group *g) {
    if (!g->moving) return;
    u32 last = c->moving[--c->moving_count];
    c->moving[g->moving - 1] = last;
    group_at(c, last)->moving = g->moving;
    g->moving = 0;
}

static void group_end(struct core *c, struct group *g) {
    moving_remove(c, g);
    c->group_bytes -= sizeof *g + g->name_len + g->late.cap * sizeof *g->late.at;
    c->group_count--;
    index_remove(&c->groups, g->entry);
    index_release(&c->groups, g->entry);
    mem_free(g->late.at);
    mem_free(g);
}

/* ---- its members */

static void replace_pending(struct core *c, u32 no) {
    unplace_message(c, no);
    place_pending(c, no, false);
}

void group_placed(struct core *c, const struct message *m, bool placed) {
    struct group *g = group_at(c, m->group);
    *(m->place == PLACE_BEHIND ? &g->behind : &g->taken) += placed ? 1 : UINT32_MAX;
}

static u32 next_member(const struct core *c, struct group *g) {
    if (g->at == MESSAGE_NONE && g->late_at >= g->late.count) { /* round again */
        g->at = g->first;
        g->late_at = 0;
    }
    if (g->at == MESSAGE_NONE) return g->late.at[g->late_at++].message;
    u32 no = g->at;
    g->at = message_at(c, no)->group_next;
    return no;
}

static void follow(struct core *c, struct group *g, u32 *budget) {
    for (; astray(g) && *budget; --*budget) {
        u32 no = next_member(c, g);
        const struct message *m = message_at(c, no);
        if (g->took ? m->place == PLACE_BEHIND : m->taken) replace_pending(c, no);
    }
    if (astray(g))
        moving_add(c, g);
    else
        moving_remove(c, g);
}

bool groups_follow(struct core *c, u32 *budget) {
    while (c->moving_count && *budget) follow(c, group_at(c, c->moving[c->moving_count - 1]), budget);
    return c->moving_count != 0;
}

/* The head is dead and takes the others along, or does so no longer. */
static void group_take(struct core *c, struct group *g, bool takes) {
    u32 at_once = FOLLOW_AT_ONCE;
    g->took = takes;
    g->at = g->first;
    g->late_at = 0;
    follow(c, g, &at_once);
}

/* After its head changed, or what the head is: the others follow, and the head's turn may have come. */
static void group_refresh(struct core *c, struct group *g) {
    u32 first = head_of(c, g);
    const struct message *head = message_at(c, first);
    bool takes = first != MESSAGE_NONE && head->takes && head->place == PLACE_DEAD;
    if (takes != g->took) group_take(c, g, takes);
    if (first == MESSAGE_NONE) return;
    bool behind = is_behind(c, first), offered = is_ready(head->place) || head->place == PLACE_DELAYED;
    if (head->taken || (behind ? offered : head->place == PLACE_BEHIND)) replace_pending(c, first);
}

void group_follow(struct core *c, u32 no) {
    u32 entry = message_at(c, no)->group;
    if (entry != ENTRY_NONE) group_refresh(c, group_at(c, entry));
}

static void link_last(struct core *c, struct group *g, u32 no) {
    struct message *m = message_mut(c, no);
    m->group_prev = g->last;
    m->group_next = MESSAGE_NONE;
    if (g->last == MESSAGE_NONE)
        g->first = no;
    else
        message_mut(c, g->last)->group_next = no;
    g->last = no;
}

static void link_first(struct core *c, struct group *g, u32 no) {
    struct message *m = message_mut(c, no);
    m->group_prev = MESSAGE_NONE;
    m->group_next = g->first;
    message_mut(c, g->first)->group_prev = no;
    g->first = no;
}

/* By admission order, wherever in the journal it stood. */
static void group_link(struct core *c, struct group *g, u32 no) {
    struct message *m = message_mut(c, no);
    u32 old_head = head_of(c, g);
    if (g->last == MESSAGE_NONE || m->seq > message_at(c, g->last)->seq) {
        link_last(c, g, no);
    } else if (m->seq < message_at(c, g->first)->seq) {
        link_first(c, g, no);
    } else {
        m->late = true;
        c->group_bytes -= g->late.cap * sizeof *g->late.at;
        heap_push(c, &g->late, no, (i64)m->seq);
        c->group_bytes += g->late.cap * sizeof *g->late.at;
    }
    if (old_head == MESSAGE_NONE || head_of(c, g) == old_head) return;
    const struct message *was = message_at(c, old_head);
    if (is_ready(was->place) || was->place == PLACE_DELAYED) replace_pending(c, old_head);
    group_refresh(c, g);
}

static void group_unlink(struct core *c, struct group *g, u32 no) {
    struct message *m = message_mut(c, no);
    if (g->at == no) g->at = m->group_next;
    if (m->late) {
        heap_remove(c, &g->late, no);
        m->late = false;
        m->group_prev = MESSAGE_NONE;
        return;
    }
    if (m->group_prev != MESSAGE_NONE)
        message_mut(c, m->group_prev)->group_next = m->group_next;
    else
        g->first = m->group_next;
    if (m->group_next != MESSAGE_NONE)
        message_mut(c, m->group_next)->group_prev = m->group_prev;
    else
        g->last = m->group_prev;
    m->group_prev = m->group_next = MESSAGE_NONE;
}

void group_join(struct core *c, u32 no, slice name, bool parked) {
    struct message *m = message_mut(c, no);
    u64 hash = group_hash(c, m->queue, name);
    struct group *g = group_find(c, m->queue, name, hash);
    if (!g) g = group_make(c, m->queue, name, hash);
    m->group = g->entry;
    m->parked = parked;
    g->members++;
    if (!parked) group_link(c, g, no);
}

void group_leave(struct core *c, u32 no) {
    struct message *m = message_mut(c, no);
    if (m->group == ENTRY_NONE) return;
    struct group *g = group_at(c, m->group);
    if (!m->parked) group_unlink(c, g, no);
    m->group = ENTRY_NONE;
    if (--g->members == 0)
        group_end(c, g);
    else
        group_refresh(c, g);
}

void group_park(struct core *c, u32 no, bool parked) {
    struct message *m = message_mut(c, no);
    if (m->group == ENTRY_NONE || m->parked == parked) return;
    m->parked = parked;
    if (parked)
        group_unlink(c, group_at(c, m->group), no);
    else
        group_link(c, group_at(c, m->group), no);
}

/* How many die with this head, or come back with it. */
u32 group_waiting(const struct core *c, u32 head) {
    const struct message *m = message_at(c, head);
    const struct group *g = group_at(c, m->group);
    return g->behind + g->taken - (m->place == PLACE_BEHIND || m->taken);
}
