/* The groomer: everything that makes the commit path cheap, done before it is needed and off that path. It prepares the
 * next segment, recycles dropped ones, keeps as many spares as are wanted, and writes the mark.
 *
 * Running out of room happens here and nowhere else, while preallocating, before anything was promised; then room()
 * does not grow and it is tried again later. Every other failure is final (P7). */
#include "journal/file_priv.h"

#include <errno.h>
#include <time.h>

#define MARK_EVERY_MS      1000
#define MARK_EVERY_BATCHES 16 /* manual mode has no clock */
#define FULL_RETRY_MS      300
#define ZERO_STEP          (1u << 20)
#define ZERO_IDLE_MS       200 /* fresh spares are written over only while nobody commits */
#define GIVE_BACK_PER_MS   (256u << 10)
#define GIVE_BACK_AT_ONCE  4

static u64 ahead(const struct journal_file *j) {
    u64 newest = j->segments.at[j->segments.count - 1]->number;
    u64 active = j->active ? j->active->number : newest;
    return newest - active + j->spare_count;
}

static bool write_mark(struct journal_file *j, struct mark m) {
    m.durable = atomic_load(&j->durable);
    int rc = mark_write(j, &m);
    j->mark_ms = clock_mono_ms();
    if (rc) file_fail(j, "write and sync", "mark", 0, rc);
    return rc == 0;
}

/* ---- dropping */

/* The loop may be waiting to hear it. Under the lock. */
static void set_no_room(struct journal_file *j, bool none) {
    j->no_room = none;
    j->no_room_until_ms = clock_mono_ms() + FULL_RETRY_MS;
    pthread_cond_broadcast(&j->loop_wake);
}

bool groom_full_for_now(const struct journal_file *j) {
    return j->no_room && (j->manual || clock_mono_ms() < j->no_room_until_ms);
}

static void remove_spare(struct journal_file *j, size_t index) {
    j->spares[index] = j->spares[--j->spare_count];
}

/* A dropped file becomes a spare, counted when the name is durable. */
static void recycle(struct journal_file *j, struct segment *s) {
    char name[NAME_BYTES];
    u32 id = j->spare_next;
    spare_name(name, id);
    int rc = j->disk->ops->rename(j->disk, s->name, name);
    if (rc == 0) rc = j->disk->ops->sync_dir(j->disk);
    if (rc) file_fail(j, "rename", s->name, 0, rc);
    segment_free(j, s);
    if (rc) return;
    pthread_mutex_lock(&j->lock);
    spare_add(j, id, j->segment_bytes);
    j->recycling = false;
    set_no_room(j, false);
    pthread_mutex_unlock(&j->lock);
}

/* Takes the oldest segment off the list if it is dropped, what replaces it is durable, and nobody is reading it. */
static struct segment *take_dropped(struct journal_file *j) {
    struct segment *s = NULL;
    pthread_mutex_lock(&j->lock);
    struct segment_list *list = &j->segments;
    if (list->at[0]->number < j->drop_to && atomic_load(&j->durable) >= j->drop_after && list->at[0]->number < j->pin) {
        s = list->at[0];
        memmove(list->at, list->at + 1, --list->count * sizeof(struct segment *));
        j->recycling = true;
    }
    pthread_mutex_unlock(&j->lock);
    return s;
}

/* The mark forgets the segment before the file is touched: a crash in between leaves a file nobody asks for. */
static bool groom_drop(struct journal_file *j) {
    struct segment *s = take_dropped(j);
    if (!s) return false;
    struct mark m = j->mark;
    m.first = s->number + 1;
    if (write_mark(j, m))
        recycle(j, s);
    else
        segment_free(j, s);
    return true;
}

/* ---- preparing */

/* True if there is one at least. */
static bool add_spares(struct journal_file *j, u64 count) {
    char names[SPARES_AT_ONCE][NAME_BYTES];
    size_t made, most = count < SPARES_AT_ONCE ? (size_t)count : SPARES_AT_ONCE;
    u32 first = j->spare_next;
    for (u32 i = 0; i < most; i++) spare_name(names[i], first + i);
    j->spare_next += (u32)most;
    int rc = spares_make(j, names, most, &made);
    if (rc && !disk_is_full(rc)) file_fail(j, "preallocate", names[made], 0, rc);
    pthread_mutex_lock(&j->lock);
    for (u32 i = 0; i < made; i++) spare_add(j, first + i, 0);
    set_no_room(j, rc != 0);
    pthread_mutex_unlock(&j->lock);
    return made > 0;
}

static size_t best_spare(const struct journal_file *j) {
    size_t best = 0;
    for (size_t i = 1; i < j->spare_count; i++)
        if (j->spares[i].zeroed > j->spares[best].zeroed) best = i;
    return best;
}

static size_t worst_spare(const struct journal_file *j) {
    size_t worst = 0;
    for (size_t i = 1; i < j->spare_count; i++)
        if (j->spares[i].zeroed < j->spares[worst].zeroed) worst = i;
    return worst;
}

bool groom_prepare(struct journal_file *j) {
    if (file_failed(j) || (j->spare_count == 0 && !add_spares(j, 1))) return false;
    size_t index = best_spare(j);
    u64 number = j->segments.at[j->segments.count - 1]->number + 1;
    char name[NAME_BYTES];
    const char *what;
    struct segment *s;
    spare_name(name, j->spares[index].id);
    int rc = segment_make(j, name, number, &s, &what);
    if (rc) {
        file_fail(j, what, name, 0, rc);
        return false;
    }
    struct mark m = j->mark;
    m.prepared = number;
    bool marked = write_mark(j, m);
    pthread_mutex_lock(&j->lock);
    remove_spare(j, index);
    segment_add(&j->segments, s);
    pthread_cond_broadcast(&j->loop_wake);
    pthread_mutex_unlock(&j->lock);
    return marked;
}

static bool groom_next(struct journal_file *j) {
    pthread_mutex_lock(&j->lock);
    bool needed = j->segments.at[j->segments.count - 1] == j->active;
    bool none = j->spare_count == 0 && groom_full_for_now(j) && !j->loop_waits;
    pthread_mutex_unlock(&j->lock);
    if (!needed || none) return false;
    if (groom_prepare(j)) return true;
    pthread_mutex_lock(&j->lock);
    j->starved = true;
    pthread_cond_broadcast(&j->loop_wake);
    pthread_mutex_unlock(&j->lock);
    return false;
}

struct balance { /* of spares */
    u64 missing;
    bool surplus;
    bool grow, shrink; /* due now */
};

/* Surplus ones are given back one by one: where the file system tells the device what is free, removing a purge's worth of files
 * at once has others' syncs wait for a hundred times as long as they take. A few are none: lives that are short must not leave
 * more and more behind. */
static i64 give_back_ms(const struct journal_file *j) {
    return j->manual ? 0 : j->give_back_from_ms - clock_mono_ms();
}

static void gave_back(struct journal_file *j) {
    i64 each = (i64)(j->segment_bytes / GIVE_BACK_PER_MS);
    i64 at_once = clock_mono_ms() - (GIVE_BACK_AT_ONCE - 1) * each;
    j->give_back_from_ms = (j->give_back_from_ms > at_once ? j->give_back_from_ms : at_once) + each;
}

/* Under the lock. */
static struct balance weigh(const struct journal_file *j) {
    u64 have = ahead(j), target = append_segments_wanted(j) + SEGMENTS_RESERVED;
    u64 missing = have < target ? target - have : 0;
    bool surplus = have > target + SEGMENTS_SURPLUS && j->spare_count > 0 && j->asked;
    return (struct balance){
        .missing = missing,
        .surplus = surplus,
        .grow = missing > 0 && !groom_full_for_now(j),
        .shrink = surplus && give_back_ms(j) <= 0,
    };
}

static bool groom_spares(struct journal_file *j) {
    char name[NAME_BYTES];
    pthread_mutex_lock(&j->lock);
    struct balance due = weigh(j);
    if (due.shrink) {
        size_t index = worst_spare(j);
        spare_name(name, j->spares[index].id);
        remove_spare(j, index);
    }
    pthread_mutex_unlock(&j->lock);
    if (due.grow) return add_spares(j, due.missing);
    if (!due.shrink) return false;
    int rc = j->disk->ops->unlink(j->disk, name);
    if (rc) file_fail(j, "remove", name, 0, rc);
    gave_back(j);
    return true;
}

/* ---- the mark, and idle time */

static bool groom_mark(struct journal_file *j) {
    pthread_mutex_lock(&j->lock);
    bool sealed = j->seal_mark;
    u64 batches = j->batches;
    j->seal_mark = false;
    pthread_mutex_unlock(&j->lock);
    bool moved = atomic_load(&j->durable) != j->mark.durable;
    bool due =
        j->manual ? batches - j->mark_batches >= MARK_EVERY_BATCHES : clock_mono_ms() - j->mark_ms >= MARK_EVERY_MS;
    if (!moved || (!due && !sealed)) return false;
    j->mark_batches = batches;
    write_mark(j, j->mark);
    return true;
}

/* The spare to be used next, if it is a fresh one. */
static struct spare *unwritten_spare(const struct journal_file *j) {
    if (j->spare_count == 0) return NULL;
    struct spare *s = &j->spares[best_spare(j)];
    return s->zeroed < j->segment_bytes ? s : NULL;
}

/* It is written over in small steps while nobody commits, so that its later syncs are overwrites. */
static bool groom_zero(struct journal_file *j) {
    if (j->manual || !j->started || clock_mono_ms() - atomic_load(&j->last_commit_ms) < ZERO_IDLE_MS) return false;
    struct spare *s = unwritten_spare(j);
    if (!s) return false;
    u64 to = s->zeroed + ZERO_STEP < j->segment_bytes ? s->zeroed + ZERO_STEP : j->segment_bytes;
    char name[NAME_BYTES];
    spare_name(name, s->id);
    int rc = spare_zero(j, s->id, s->zeroed, to);
    if (rc) file_fail(j, "write", name, s->zeroed, rc);
    s->zeroed = to;
    return true;
}

bool groom_step(struct journal_file *j) {
    if (file_failed(j)) return false;
    return groom_next(j) || groom_drop(j) || groom_spares(j) || groom_mark(j) || groom_zero(j);
}

static i64 sooner(i64 a, i64 b) {
    i64 first = a < b ? a : b;
    return first > 0 ? first : 0;
}

/* How long until something may be due without anybody calling; negative: forever. Under the lock. The journal may have
 * moved since the mark was last looked at, so that it is overdue here: that is no time, not for ever. */
static i64 idle_ms(const struct journal_file *j) {
    i64 ms = INT64_MAX;
    struct balance spares = weigh(j);
    if (unwritten_spare(j)) ms = sooner(ms, ZERO_IDLE_MS);
    if (spares.missing > 0) ms = sooner(ms, FULL_RETRY_MS);
    if (spares.surplus) ms = sooner(ms, give_back_ms(j));
    if (atomic_load(&j->durable) != j->mark.durable)
        ms = sooner(ms, MARK_EVERY_MS - (clock_mono_ms() - j->mark_ms) + 1);
    return ms == INT64_MAX ? -1 : ms;
}

static void wait_for_work(struct journal_file *j) {
    i64 ms = idle_ms(j);
    if (ms < 0) {
        j->groom_asleep = true;
        pthread_cond_wait(&j->groom_wake, &j->lock);
        j->groom_asleep = false;
        return;
    }
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += ms / 1000;
    until.tv_nsec += ms % 1000 * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_cond_timedwait(&j->groom_wake, &j->lock, &until);
}

/* True if there is something to do that somebody may have signalled while nobody was listening. Under the lock. */
static bool called(const struct journal_file *j) {
    const struct segment_list *list = &j->segments;
    bool drop =
        list->at[0]->number < j->drop_to && atomic_load(&j->durable) >= j->drop_after && list->at[0]->number < j->pin;
    bool next = list->at[list->count - 1] == j->active && (j->loop_waits ? !j->starved : j->spare_count > 0);
    struct balance due = weigh(j);
    return drop || next || due.grow || due.shrink || j->seal_mark;
}

void *groom_thread(void *journal) {
    struct journal_file *j = jf(journal);
    pthread_mutex_lock(&j->lock);
    while (!j->stopping && !file_failed(j)) {
        pthread_mutex_unlock(&j->lock);
        bool did = groom_step(j);
        pthread_mutex_lock(&j->lock);
        if (!did && !j->stopping && !called(j) && !file_failed(j)) wait_for_work(j);
    }
    pthread_mutex_unlock(&j->lock);
    return NULL;
}
