/* The family's view of the file adapter: who owns what, and which file does what.
 *
 *   file.c     open, close, and the port's table; the essay
 *   create.c   meta file, mark and first segment of a new directory
 *   recover.c  what a crash left behind: where the journal ends, what is damage, replay
 *   start.c    makes the tail trustworthy and opens for appending
 *   append.c   the loop's side: reserve, append, flush, room
 *   commit.c   the committer: one batch at a time, written, synced, announced
 *   groom.c    the groomer: prepares and recycles segments, writes the mark
 *   read.c     reads one record, scans a segment
 *   map.c      durable records through memory, without a system call
 *   verify.c   explains a directory to a person
 *   segment.c  segment and spare files: names, heads, the list
 *   files.c    open files of segments, on demand
 *   mark.c     the mark's two slots
 *   format.c   the bytes
 *
 * Three parties touch a journal: the loop (the caller), the committer and the groomer. Without threads ("manual") they
 * are the same thread taking turns, and the locks are merely free. */
#ifndef HAPAX_JOURNAL_FILE_PRIV_H
#define HAPAX_JOURNAL_FILE_PRIV_H

#include "journal/file.h"
#include "journal/format.h"

#include <pthread.h>
#include <stdatomic.h>

#define SEGMENT_BYTES_MIN (8ull << 20) /* below this only for tests: a record may take half a segment at most */
#define SEGMENT_BYTES_MAX (64ull << 20)
#define BATCH_BYTES_MAX   (8ull << 20) /* soft: one larger record is let in */
#define SEGMENTS_RESERVED 2u           /* compaction's own (P8) */
#define SEGMENTS_SURPLUS  2u           /* spares kept beyond what is wanted, before they are given back */
#define SPARES_AT_ONCE    8u           /* made with one sync of the directory */
#define NAME_BYTES        40
#define SEGMENTS_KNOWN    256u
#define FILES_LEAST       4u /* two are in use at a time, the committer's and the loop's */
#define FILES_DEFAULT     64u
#define PREFETCH_MAX      128u /* records announced at a time */
#define MAP_LOOK_MS       250  /* after this long without reads, mapped pages are let go */

struct segment {
    u64 number, salt;
    char name[NAME_BYTES];
    u64 end; /* position where its batches end; set by recovery, or by the loop when it moves on */
    /* Under the lock, see files.c. */
    struct disk_file *file; /* NULL: not open */
    u32 file_users;
    u64 file_used;
    /* The loop's, see map.c. */
    const u8 *map;
    u8 *areas;
    /* Recovery's notes. */
    bool linked;                  /* part of the chain */
    bool first_head, first_whole; /* its first batch has a valid header; is valid altogether */
    struct batch_head first;
};

struct segment_list { /* consecutive numbers, oldest first */
    struct segment **at;
    size_t count, cap;
};

struct batch {
    struct batch *next;
    struct segment *segment;
    struct disk_file *file; /* from its write to its sync */
    u64 number, pos, prev_end;
    u32 records;
    u8 *bytes; /* header and records */
    size_t len, cap;
};

struct batch_list {
    struct batch *head, **end;
    size_t count;
};

struct spare {
    u32 id;
    u64 zeroed; /* bytes known to be written; the whole segment for a recycled one */
};

/* A window over one segment file, so that a walk costs few large reads. */
struct reader {
    u8 *buf;
    size_t cap, len, step;
    const struct segment *segment;
    u64 offset;
};

#define JOURNAL_FILE_MAGIC 0x6a66696cu

struct journal_file {
    struct journal port;
    u32 magic; /* while it is open */

    /* Set at open, never changed. */
    struct disk *disk;
    struct meta meta;
    u64 segment_bytes;
    size_t record_max; /* body */
    u64 record_slack;  /* what the end of a segment may waste */
    size_t batch_limit;
    bool manual, read_only;
    u32 files_max;
    void (*wake)(void *ctx);
    void *wake_ctx;

    /* The loop's. */
    bool started, locked;
    struct batch *open; /* NULL, being filled, or offered to the committer */
    bool open_offered;
    size_t reserved; /* body bytes of the reservation being filled */
    struct segment *active;
    u64 next_number, next_pos, last_end;
    u64 closed_bytes; /* handed over since start; the gaps between segments are not in it */
    u64 dropped_to;   /* segments below this number are dropped, though perhaps not yet gone */
    struct reader reader, scan_reader;
    struct segment *known[SEGMENTS_KNOWN]; /* by number; valid only from dropped_to on */
    u64 known_number[SEGMENTS_KNOWN];
    u32 mapped_areas;
    i64 mapped_look_ms;
    u64 misses_seen[2]; /* of the disk, at the last two looks */
    struct {
        const u8 *rest[PREFETCH_MAX], *end[PREFETCH_MAX]; /* of records announced: the lines behind the first */
        u32 next, count;
    } ahead;        /* only prefetched, never read: it does not matter what has become of the segments */
    u64 scanned_to; /* by the last scan */

    /* Recovery's result, for start. */
    struct {
        struct segment *last; /* holds the end of the journal */
        u64 end, next_number;
        bool clean;
        u64 torn_bytes; /* of a torn tail, as far as it can be told */
        u64 replayed_batches;
        bool in_place;          /* after an unclean end: no fresh segment is to be had */
        struct batch *unproven; /* the last batch, if the mark does not reach its end; where it is going to be */
        struct buf leftovers;   /* names of files to be recycled, each ended by NUL */
    } found;

    /* Shared, under the lock. */
    pthread_mutex_t lock;
    pthread_cond_t commit_wake, groom_wake, loop_wake;
    struct batch_list queue; /* closed, waiting for the committer */
    struct batch *offered;   /* the open one, free to be taken */
    struct batch *in_flight;
    struct batch_list idle; /* synced; contents stay readable until reused */
    struct segment_list segments;
    struct segment **open_segments; /* those with an open file, at most files_max */
    u32 open_count;
    u64 file_uses;
    struct spare *spares;
    size_t spare_count, spare_cap;
    u64 pin; /* segments from this number on must stay */
    u64 drop_to, drop_after;
    bool recycling; /* one that was dropped, and is off the list */
    u64 want;
    bool seal_mark;           /* a segment was left: the mark is due */
    bool loop_waits, starved; /* the loop needs a segment; there is none to be had */
    bool stopping, groom_asleep;
    bool no_room;         /* the last attempt to preallocate found the disk full... */
    i64 no_room_until_ms; /* ...and is not repeated before; without threads: not before somebody wants room again */
    bool asked;           /* the caller has said what it wants; until then no spare is given back */
    u64 batches, synced_bytes, sync_us_max;
    struct hist sync_us, batch_bytes;
    struct errbuf failure;

    /* Read by anybody. */
    _Atomic u64 durable;
    _Atomic(const char *) failed;
    _Atomic i64 last_commit_ms;

    /* The committer's. */
    bool written; /* manual: in_flight awaits its sync */

    /* The groomer's (the loop's before start and after the threads ended). */
    struct mark mark;
    struct disk_file *mark_file;
    i64 mark_ms;
    u64 mark_batches;
    i64 give_back_from_ms; /* a surplus spare */
    u32 spare_next;

    pthread_t committer, groomer;
};

/* What comes in through the port, or as a thread's argument, is one of these and still open. */
static inline struct journal_file *jf(void *journal) {
    struct journal_file *j = journal;
    CHECK(j && j->magic == JOURNAL_FILE_MAGIC);
    return j;
}
static inline u64 segment_base(const struct journal_file *j, u64 number) {
    return number * j->segment_bytes;
}
static inline u64 segment_start(const struct journal_file *j, u64 number) {
    return segment_base(j, number) + SEGMENT_HEAD;
}
static inline u64 segment_of(const struct journal_file *j, u64 pos) {
    return pos / j->segment_bytes;
}
static inline u64 offset_of(const struct journal_file *j, u64 pos) {
    return pos % j->segment_bytes;
}

/* file.c */
void file_fail(struct journal_file *j, const char *what, const char *name, u64 offset, int error);
static inline bool file_failed(struct journal_file *j) {
    return atomic_load(&j->failed) != NULL;
}

/* segment.c */
void segment_name(char out[NAME_BYTES], u64 number);
bool segment_name_parse(const char *name, u64 *number);
void spare_name(char out[NAME_BYTES], u32 id);
bool spare_name_parse(const char *name, u32 *id);
void segment_add(struct segment_list *list, struct segment *s);
struct segment *segment_find(const struct journal_file *j, u64 number); /* NULL if it is not kept */
void segment_free(struct journal_file *j, struct segment *s);
/* Heads the file `from` for `number` and names it so, each step synced. Says what failed in *what. */
int segment_make(struct journal_file *j, const char *from, u64 number, struct segment **out, const char **what);
/* Files of full length with nothing in them yet: the first *made of these names stand, durably, and of the others
 * nothing is left. Returns why there are not more, or 0. A name that has such a file already is as good. */
int spares_make(struct journal_file *j, char (*names)[NAME_BYTES], size_t count, size_t *made);
int spare_confirm(struct journal_file *j, u32 id); /* the file has all its room, synced; its name is not */
int segment_zero(struct journal_file *j, struct disk_file *f, u64 from, u64 to); /* offsets; synced */
int spare_zero(struct journal_file *j, u32 id, u64 from, u64 to);
void spare_add(struct journal_file *j, u32 id, u64 zeroed);

/* files.c */
/* The segment's file, opened if it is not; the caller's until file_give. */
int file_take(struct journal_file *j, struct segment *s, struct disk_file **out);
void file_give(struct journal_file *j, struct segment *s);
void file_forget(struct journal_file *j, struct segment *s); /* closes it, if it is open: the segment goes */

/* mark.c */
int mark_write(struct journal_file *j, const struct mark *m); /* takes the next sequence; j->mark is what was written */
hx_st mark_load(struct journal_file *j, struct errbuf *err);
int mark_create(struct journal_file *j, const struct mark *m);

/* create.c */
hx_st create_refuse_if_used(struct journal_file *j,
                            struct errbuf *err); /* journal files without the meta file that names them */
hx_st create_directory(struct journal_file *j, u64 segment_bytes, struct errbuf *err);

/* recover.c */
struct found_batch {
    struct batch_head head;
    const u8 *bytes; /* valid until the reader moves */
    bool head_ok, whole;
};
void reader_free(struct reader *r);
/* *out is NULL if the file ends before. */
hx_st reader_get(struct journal_file *j, struct reader *r, struct segment *s, u64 offset, size_t n, const u8 **out,
                 struct errbuf *err);
hx_st recover_batch_at(struct journal_file *j, struct reader *r, struct segment *s, u64 pos, struct found_batch *out,
                       struct errbuf *err);
hx_st recover_damage(struct journal_file *j, u64 pos, struct errbuf *err, const char *what);
hx_st recover_open(struct journal_file *j, struct errbuf *err);
hx_st recover_replay(struct journal *port, journal_each each, void *ctx, struct errbuf *err);

/* start.c */
/* After an unclean end: is there room to go on in a fresh segment? Takes it, or sets found.in_place. */
hx_st start_find_room(struct journal_file *j, struct errbuf *err);
hx_st start_appending(struct journal *port, struct errbuf *err);

/* append.c */
void *append_reserve(struct journal *port, size_t body_max);
u64 append_record(struct journal *port, u8 type, u8 version, size_t body);
void append_flush(struct journal *port);
u64 append_tail(const struct journal_file *j);
u64 append_room(struct journal *port);
bool append_need(struct journal *port, u64 bytes);
/* Segments beyond the reserve that `want` asks for; under the lock. */
u64 append_segments_wanted(const struct journal_file *j);

/* commit.c */
struct batch *batch_new(void);
void batch_free(struct batch *b);
void batch_room(struct batch *b, size_t more);
void batch_push(struct batch_list *list, struct batch *b);
struct batch *batch_pop(struct batch_list *list);
bool commit_step(struct journal_file *j); /* manual: write, or sync; false if there was nothing */
void *commit_thread(void *journal);

/* groom.c */
bool groom_step(struct journal_file *j);
bool groom_prepare(struct journal_file *j); /* one more segment ahead; false if that cannot be had */
/* The disk was full a moment ago, and asking again is not worth it yet. Under the lock. */
bool groom_full_for_now(const struct journal_file *j);
void *groom_thread(void *journal);

/* map.c */
/* A durable record in its mapped segment, of which *room bytes are left from there; NULL: use pread. */
const u8 *map_record(struct journal_file *j, u64 pos, struct segment **segment, u64 *room);
void map_prefetch(struct journal *port, const u64 *pos, const u32 *bytes, u32 count);
void map_look(struct journal_file *j); /* once in a while: lets pages go that nobody reads any more */

/* read.c */
hx_st read_record(struct journal *port, u64 pos, size_t size_hint, struct journal_record *out, struct errbuf *err);
hx_st read_scan(struct journal *port, u64 *cursor, u64 until, size_t max_bytes, const struct journal_wanted *wanted,
                struct errbuf *err);

#endif
