#include "broker/room.h"

#include "broker/broker_priv.h"
#include "broker/report.h"

#define ROOM_AHEAD_MIN      (8ull << 20)   /* wanted beyond what is promised: at least this, ... */
#define ROOM_AHEAD_MAX      (512ull << 20) /* ... at most this, in between two seconds' worth */
#define ROOM_LOOK_MS        1000
#define ROOM_AHEAD_SEGMENTS 8u
/* The headroom, what a step reserves, and the frames of its records. */
#define STEP_BYTES (72u << 10)

struct room {
    u64 appended; /* since start */
    u64 used;     /* appended or newly promised since the last look */
    u64 promised; /* to accepted messages, and kept, at the end of the last turn */
    u64 kept;     /* back from the core, for answers that are still to come */
    u64 ahead;    /* wanted beyond that */
    i64 looked_run_ms;
    bool refused; /* since the end of the last turn the disk had no more to give */
    u64 lacking;  /* the most that was refused in this spell, beside what is promised */
    struct spell disk_short, memory_short;
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

/* The core compares numbers: what is kept back is not there for it. */
static void tell_core(struct broker *b) {
    u64 room = journal_room(b->journal), kept = b->room->kept;
    core_room_set(b->core, room > kept ? room - kept : 0);
}

bool room_to_spare(struct broker *b, u64 bytes) {
    u64 need = core_reserved_bytes(b->core) + bytes;
    if (core_room(b->core) >= need) return true;
    bool there = journal_need(b->journal, need + b->room->kept);
    tell_core(b);
    return there;
}

bool room_beside_promises(struct broker *b, u64 bytes) {
    struct room *r = b->room;
    if (room_to_spare(b, bytes)) return true;
    r->refused = true;
    if (r->lacking < bytes) r->lacking = bytes;
    return false;
}

void room_prepare(struct broker *b, u64 said) {
    room_beside_promises(b, said + STEP_BYTES);
}

bool room_promise(struct broker *b, u64 bytes) {
    if (!room_beside_promises(b, bytes + STEP_BYTES)) return false;
    b->room->kept += bytes;
    tell_core(b);
    return true;
}

void room_promise_end(struct broker *b, u64 bytes) {
    CHECK(b->room->kept >= bytes);
    b->room->kept -= bytes;
    tell_core(b);
}

u64 room_promised(const struct broker *b) {
    return core_reserved_bytes(b->core) + b->room->kept;
}

u64 room_lacking(const struct broker *b) {
    return b->room->lacking;
}

/* How far ahead depends on how fast it has been going. */
static void look(struct broker *b) {
    struct room *r = b->room;
    u64 promised = room_promised(b);
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

/* That nobody asked since does not make room: what was refused must fit. */
bool room_disk_short(const struct broker *b) {
    const struct room *r = b->room;
    return r->refused || (r->disk_short.on && core_room(b->core) < core_reserved_bytes(b->core) + r->lacking);
}

static void tell_disk(struct broker *b) {
    struct room *r = b->room;
    struct journal_stats s;
    enum spell_change change = spell_look(&r->disk_short, room_disk_short(b), b->now.run_ms);
    r->refused = false;
    if (!r->disk_short.on) r->lacking = 0;
    if (change == SPELL_SAME) return;
    journal_stats_get(b->journal, &s);
    struct log_field room = log_number("room_bytes", (i64)core_room(b->core)),
                     promised = log_number("promised_bytes", (i64)r->promised),
                     journal = log_number("journal_bytes", (i64)s.disk_bytes);
    if (change == SPELL_BEGINS)
        report(b, LOG_WARN, "disk_short", "the disk has no room for new work: sends get 507, settling goes on", room,
               promised, journal);
    else
        report(b, LOG_INFO, "disk_enough", "the disk has room for new work again", room, promised, journal);
}

static void tell_memory(struct broker *b) {
    struct core_memory m;
    enum spell_change change = spell_look(&b->room->memory_short, core_memory_short(b->core), b->now.run_ms);
    if (change == SPELL_SAME) return;
    core_memory(b->core, &m);
    struct log_field limit = log_number("limit_bytes", (i64)b->options.memory_max),
                     messages = log_number("messages", (i64)m.messages),
                     keys = log_number("settled_keys", (i64)m.settled_keys);
    if (change == SPELL_BEGINS)
        report(b, LOG_WARN, "memory_short",
               "the memory limit leaves no room for new work: sends get 507, settling goes on", limit, messages, keys);
    else
        report(b, LOG_INFO, "memory_enough", "the memory limit leaves room for new work again", limit, messages, keys);
}

void room_look_ahead(struct broker *b) {
    look(b);
    tell_disk(b);
    tell_memory(b);
    u64 ahead = b->room->ahead > b->room->lacking ? b->room->ahead : b->room->lacking;
    journal_want(b->journal, b->room->promised + ahead);
    tell_core(b);
}
