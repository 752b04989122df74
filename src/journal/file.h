/* The file adapter of the journal port: preallocated, recycled segments; salted checksums; one fdatasync a batch.
 * Format and crash behaviour: the essay in file.c and docs/STORAGE.md.
 *
 * It reaches the disk only through `struct disk`, so the same code runs on the real file system (disk_posix.c, with a
 * committer and a groomer thread) and on a simulated disk that tears, loses and fails by a seed (disk_sim.c, driven
 * step by step). */
#ifndef HAPAX_JOURNAL_FILE_H
#define HAPAX_JOURNAL_FILE_H

#include "journal/disk.h"
#include "journal/journal.h"

/* Descriptors it takes at most beside those of files_max: directory, lock, mark, listing; spares being made; files being
 * opened before others are closed. */
#define JOURNAL_FILES_BESIDE 16u

struct journal_file_options {
    struct disk *disk;       /* borrowed; already opened on the data directory */
    u64 segment_bytes;       /* 0: chosen when the directory is created (4..64 MiB, by free space), then as stored */
    bool manual;             /* no threads: journal_file_work() does what they would do */
    void (*wake)(void *ctx); /* called from the committer when durable() moved or failed() was set; may be NULL */
    void *wake_ctx;
    bool read_only; /* for `hapax verify`: replay only, no lock, nothing written */
    u32 files_max;  /* segment files kept open at a time, 4 at least; 0: 64 */
};

/* Segments below 8 MiB are for tests: there a record's body may take half a segment less 256 bytes at most.
 *
 * Opens or creates. On success the caller owns *out; journal_close() ends it. */
hx_st journal_file_open(const struct journal_file_options *options, struct journal **out, struct errbuf *err);

/* Manual mode: do one pending piece of work (write a batch, sync it, groom). false when there was nothing to do. */
bool journal_file_work(struct journal *j);

/* 32 random bytes made with the data directory, never shown: the seed of the keyed hashes and of tokens. */
void journal_file_secret(struct journal *j, u8 out[32]);

/* Walks everything without writing a byte and says in words what is there: files, segments, batches, records, where the
 * journal ends, the mark, and the first damage with file and offset and what it means. ST_OK: it would start. */
hx_st journal_file_verify(struct disk *disk, struct buf *report, struct errbuf *err);

#endif
