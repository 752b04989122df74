/* P8: an accepted message has paid in advance, in room of the journal, for a lease, for the start of its work and for its
 * settlement; that a lease goes on takes no room. What else is to be written must fit beside all that was promised.
 *
 * It has also paid for being carried. Compaction has two segments of its own to write what is alive of the oldest one into, and
 * gets a segment back for it. That goes round as long as a copy is no longer than what it replaces. A message's is longer: its
 * record was written when it was admitted, the copy has its state and all of its history. The difference is reserved here, and
 * is nothing once it was carried (invariant 19). So a full disk can always be compacted, and compacting takes nothing that was
 * promised, whatever steps the messages have recorded.
 *
 * A queue that is paused, or whose pushing is, has paid for being resumed: its rules may be longer than all that deeds have. */
#include "core/state.h"

#define ATTEMPT_BYTES (40u + CONSUMER_BYTES_MAX) /* what an attempt adds to the history */
#define CARRIED_BYTES 64u                        /* a carried record's state, and its times */
#define LEASE_BYTES   (48u + CONSUMER_BYTES_MAX) /* a lease record's body */
#define START_BYTES   32u                        /* a start record's body */
/* A settle record's body beside key, request id and history. */
#define SETTLE_BYTES   (160u + 64u + WORDS_ALWAYS_FIT + RESULT_ALWAYS_FITS)
#define HEADROOM_BYTES ((u64)65536) /* clocks, queues, expiries: written without asking */

u64 lease_room(const struct core *c) {
    return c->sink->cost(LEASE_BYTES) + c->sink->cost(START_BYTES) + history_room(ATTEMPT_BYTES);
}

u64 history_room(u64 bytes) {
    return 2 * bytes;
}

u64 carry_room(const struct message *m) {
    u64 grown = m->history.len > m->history.written ? m->history.len - m->history.written : 0;
    return (m->carried ? 0 : CARRIED_BYTES) + ((grown + 7) & ~(u64)7); /* records are padded to that */
}

u64 settlement_room(const struct core *c, const struct message *m) {
    return c->sink->cost(SETTLE_BYTES + m->key_len + m->request_id_len + m->history.len + message_former(m));
}

u64 admission_room(const struct core *c, size_t key, size_t request_id) {
    return lease_room(c) + c->sink->cost(SETTLE_BYTES + key + request_id) + CARRIED_BYTES;
}

static u64 start_room(const struct core *c, const struct message *m) {
    return m->place == PLACE_LEASED && !m->started ? c->sink->cost(START_BYTES) : 0;
}

static u64 promised(const struct core *c, const struct message *m) {
    return settlement_room(c, m) + start_room(c, m) + (m->lease_paid ? lease_room(c) : 0) + carry_room(m);
}

void reserve_off(struct core *c, const struct message *m) {
    c->history_bytes -= history_block(&m->history);
    c->history_counted -= history_counted(&m->history);
    if (c->sink) c->reserved_bytes -= promised(c, m);
}

void reserve_on(struct core *c, const struct message *m) {
    c->history_bytes += history_block(&m->history);
    c->history_counted += history_counted(&m->history);
    if (c->sink) c->reserved_bytes += promised(c, m);
}

u64 resume_room(const struct core *c, const struct queue *q) {
    return c->sink ? ((u64)q->paused + q->push_paused) * c->sink->cost(q->size) : 0;
}

static bool room_beside(const struct core *c, u64 bytes, u64 headroom) {
    u64 need = c->reserved_bytes + bytes + headroom;
    return c->room >= need;
}

bool room_for(const struct core *c, u64 bytes) {
    return room_beside(c, bytes, HEADROOM_BYTES);
}

bool room_for_count(const struct core *c, u64 bytes) {
    return room_beside(c, bytes, HEADROOM_BYTES / 2);
}

bool room_for_deed(const struct core *c, u64 bytes) {
    return room_beside(c, bytes, HEADROOM_BYTES / 8 * 3);
}

bool room_for_relief(const struct core *c, u64 bytes) {
    return room_beside(c, bytes, HEADROOM_BYTES / 4);
}
