#include "broker/room.h"

#include "broker/broker_priv.h"

#define ROOM_AHEAD_MIN      (8ull << 20)   /* wanted beyond what is promised: at least this, ... */
#define ROOM_AHEAD_MAX      (512ull << 20) /* ... at most this, in between two seconds' worth */
#define ROOM_LOOK_MS        1000
#define ROOM_AHEAD_SEGMENTS 8u
/* The headroom, what a step reserves, and the frames of its records. */
#define STEP_BYTES (72u << 10)

struct room {
    u64 appended; /* since start */
    u64 used;     /* appended or newly promised since the last look */
    u64 promised; /* to accepted messages, at the end of the last turn */
    u64 ahead;    /* wanted beyond that */
    i64 looked_run_ms;
};

struct room *room_new(void) {
    return mem_zalloc(sizeof(struct room));
}

void room_free(struct room *r) {
    mem_free(r);
}

u64 room_appended(const struct broker *b) {
    return b->room->appended;
}

void room_take(struct broker *b, u64 bytes) {
    b->room->used += bytes;
    b->room->appended += bytes;
}

bool room_beside_promises(struct broker *b, u64 bytes) {
    u64 need = core_reserved_bytes(b->core) + bytes;
    if (core_room(b->core) >= need) return true;
    bool there = journal_need(b->journal, need);
    core_room_set(b->core, journal_room(b->journal));
    return there;
}

void room_prepare(struct broker *b, u64 said) {
    room_beside_promises(b, said + STEP_BYTES);
}

/* How far ahead depends on how fast it has been going. */
static void look(struct broker *b) {
    struct room *r = b->room;
    u64 promised = core_reserved_bytes(b->core);
    if (promised > r->promised) r->used += promised - r->promised;
    r->promised = promised;
    if (b->now.run_ms - r->looked_run_ms < ROOM_LOOK_MS && r->ahead >= ROOM_AHEAD_MIN) return;
    r->ahead = r->used * 2;
    if (r->ahead < ROOM_AHEAD_MIN) r->ahead = ROOM_AHEAD_MIN;
    struct journal_stats s; /* small segments mean a small disk: others may want some of it too */
    journal_stats_get(b->journal, &s);
    u64 most = s.segment_bytes * ROOM_AHEAD_SEGMENTS < ROOM_AHEAD_MAX ? 2 * s.segment_bytes : ROOM_AHEAD_MAX;
    if (r->ahead > most) r->ahead = most;
    r->used = 0;
    r->looked_run_ms = b->now.run_ms;
}

void room_look_ahead(struct broker *b) {
    look(b);
    journal_want(b->journal, b->room->promised + b->room->ahead);
    core_room_set(b->core, journal_room(b->journal));
}
