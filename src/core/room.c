/* P8: an accepted message has paid in advance, in room of the journal, for a lease and for its settlement. What else is to
 * be written must fit beside all that was promised. */
#include "core/state.h"

#define ATTEMPT_BYTES  (48u + CONSUMER_BYTES_MAX)        /* what an attempt adds to the history */
#define LEASE_BYTES    (64u + CONSUMER_BYTES_MAX)        /* a lease record's body */
#define SETTLE_BYTES   (160u + 64u + RESULT_ALWAYS_FITS) /* a settle record's body beside key, request id and history */
#define HEADROOM_BYTES 65536u                            /* clocks, queues, expiries: written without asking */

u64 lease_room(const struct core *c) {
    return c->sink->cost(LEASE_BYTES) + ATTEMPT_BYTES;
}

u64 settlement_room(const struct core *c, const struct message *m) {
    return c->sink->cost(SETTLE_BYTES + m->key_len + m->request_id_len + m->history.len);
}

u64 admission_room(const struct core *c, size_t key, size_t request_id) {
    return lease_room(c) + c->sink->cost(SETTLE_BYTES + key + request_id);
}

void reserve_off(struct core *c, const struct message *m) {
    c->history_bytes -= m->history.cap;
    if (!c->sink) return;
    c->reserved_bytes -= settlement_room(c, m) + (m->lease_paid ? lease_room(c) : 0);
}

void reserve_on(struct core *c, const struct message *m) {
    c->history_bytes += m->history.cap;
    if (!c->sink) return;
    c->reserved_bytes += settlement_room(c, m) + (m->lease_paid ? lease_room(c) : 0);
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
    return room_beside(c, bytes, HEADROOM_BYTES / 4);
}
