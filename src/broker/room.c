#include "broker/room.h"

#include "broker/broker_priv.h"

#define ROOM_AHEAD_MIN      (8ull << 20)   /* wanted beyond what is promised: at least this, ... */
#define ROOM_AHEAD_MAX      (512ull << 20) /* ... at most this, in between two seconds' worth */
#define ROOM_LOOK_MS        1000
#define ROOM_AHEAD_SEGMENTS 8u

struct room {
    u64 left;     /* by the journal's last word, less what was appended since */
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

u64 room_left(const struct broker *b) {
    return b->room->left;
}

u64 room_appended(const struct broker *b) {
    return b->room->appended;
}

void room_take(struct broker *b, u64 bytes) {
    struct room *r = b->room;
    r->left = r->left > bytes ? r->left - bytes : 0;
    r->used += bytes;
    r->appended += bytes;
}

bool room_need(struct broker *b, u64 bytes) {
    bool there = journal_need(b->journal, bytes);
    b->room->left = journal_room(b->journal);
    return there;
}

bool room_beside_promises(struct broker *b, u64 bytes) {
    return room_need(b, core_reserved_bytes(b->core) + bytes);
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
    b->room->left = journal_room(b->journal);
}
