/* Memory, as P8 has it for the disk: what an accepted message may come to take is counted when it is accepted.
 *
 * A message grows. Each lease adds an attempt to its history, with the consumer's name and the reason of its failure, and a place
 * in a heap. None of that can be refused to what was accepted, so all of it is counted from the beginning, at its least: two attempts,
 * the first and the last, with BRIEF_NAME_BYTES of a name and BRIEF_REASON_BYTES of a reason. While there is more memory than that,
 * attempts are kept in full, and what they take is counted. Once all is counted that may be taken, memory is short: new messages and
 * steps are refused, names and reasons are cut to the least, and an attempt that was cut gives way to the next one (history_yield).
 * What then happens to accepted messages was counted before. The records have the cut texts: a restart comes to the same.
 *
 * A history that grows is moved, and malloc cannot use all of the holes it leaves: they were measured to be a third of what histories
 * take, and half is counted. One that begins while memory is short begins with all it will need.
 *
 * Not counted ahead, but bounded, and counted once they are there: a look-up that found nothing and operators' decisions, each as
 * brief as an attempt; a number of arrivals for each key; places in the heaps of groups. */
#include "core/core_priv.h"

#define ATTEMPT_BRIEF 80u /* an attempt of the least words, in the steps that a history grows by */
#define HISTORY_LEAST (16u + 2u * ATTEMPT_BRIEF)

_Static_assert(37u + BRIEF_NAME_BYTES + BRIEF_REASON_BYTES <= ATTEMPT_BRIEF, "an attempt that was cut fits");

u64 history_counted(const struct history *h) {
    u64 block = history_block(h), more = block + block / 2 + ATTEMPT_BRIEF;
    return more > HISTORY_LEAST ? more : HISTORY_LEAST;
}

u32 history_first_bytes(const struct core *c) {
    return core_memory_short(c) ? 2 * ATTEMPT_BRIEF : 0;
}

static u64 heap_bytes(u64 items) {
    return items * sizeof(struct heap_item);
}

static u64 heaps_bytes(const struct core *c) {
    return heap_bytes((u64)c->leases.top + c->delays.top + c->ttls.top);
}

/* All may be leased, all may be delayed, and all may be ready again after they were leased. */
static u64 heaps_counted(const struct core *c) {
    u64 n = c->message_count;
    return heap_bytes((c->leases.top > n ? c->leases.top : n) + (c->delays.top > n ? c->delays.top : n) + n +
                      c->ttls.top);
}

void core_memory(const struct core *c, struct core_memory *out) {
    *out = (struct core_memory){
        .index_bytes = index_bytes(&c->keys),
        .arrivals_bytes = c->written_bytes,
        .needed_bytes = c->needed.bytes,
        .message_bytes =
            (u64)c->message_chunk_count * MESSAGE_CHUNK * sizeof(struct message) + c->history_bytes + heaps_bytes(c),
        .group_bytes = c->group_bytes + index_bytes(&c->groups),
        .reserved_bytes = c->history_counted - c->history_bytes + heaps_counted(c) - heaps_bytes(c),
        .messages = c->message_count,
        .groups = c->group_count,
        .repeated_keys = c->repeated_keys,
    };
    out->settled_keys = c->keys.live_entries - c->message_count;
}

/* Of messages the most there ever were: theirs is not given back. */
static u64 memory_counted(const struct core *c) {
    return index_bytes(&c->keys) + c->written_bytes + c->needed.bytes + c->group_bytes + index_bytes(&c->groups) +
           (u64)c->messages_top * sizeof(struct message) + c->history_counted + heaps_counted(c);
}

bool core_memory_short(const struct core *c) {
    return c->options.memory_max && memory_counted(c) >= c->options.memory_max;
}

/* ---- as few words as were counted */

/* The first bytes, at most so many, and no character by half. */
static slice beginning(slice s, size_t most) {
    if (s.n <= most) return s;
    while (most && ((u8)s.p[most] & 0xc0u) == 0x80u) most--;
    return slice_of(s.p, most);
}

slice brief_name(const struct core *c, slice name) {
    return core_memory_short(c) ? beginning(name, BRIEF_NAME_BYTES) : name;
}

slice brief_reason(const struct core *c, slice reason, char store[BRIEF_REASON_BYTES]) {
    if (!core_memory_short(c)) return reason;
    slice mark = SL(HISTORY_CUT), kept = beginning(reason, BRIEF_REASON_BYTES - mark.n);
    if (kept.n) memcpy(store, kept.p, kept.n);
    memcpy(store + kept.n, mark.p, mark.n);
    return slice_of(store, kept.n + mark.n);
}
