/* A disk in memory for tests: what was synced is kept apart from what was only written, and a crash decides by the
 * seed what becomes of the rest. Nothing in it depends on time or addresses: the same calls give the same bytes.
 * For one thread. */
#ifndef HAPAX_JOURNAL_DISK_SIM_H
#define HAPAX_JOURNAL_DISK_SIM_H

#include "journal/disk.h"

#define DISK_SIM_SECTOR 512u /* a write is torn between sectors, never inside one */

enum disk_sim_crash {
    DISK_SIM_KILL, /* the process died, the machine lives: the page cache stays, still unsynced */
    DISK_SIM_KEEP, /* power cut after the cache happened to be written out */
    DISK_SIM_DROP, /* power cut: nothing unsynced survives, no byte and no name */
    DISK_SIM_TEAR, /* power cut: any subset of unsynced sectors, lengths and names survives */
};

enum disk_sim_fault {
    DISK_SIM_EIO,
    DISK_SIM_ENOSPC,
    DISK_SIM_SHORT, /* a write (or read) does half of what was asked; other operations: EIO */
};

/* The caller owns *it: disk_close(). */
struct disk *disk_sim_new(u64 seed, u64 capacity_bytes);

/* Clears faults and stops; handles that are still open do nothing any more, and the lock is free. A journal on the disk
 * should have been closed before, behind disk_sim_stop_at(d, 0) so that closing it has no effect either. */
void disk_sim_crash(struct disk *d, enum disk_sim_crash how);

/* Operations so far (open, pread, pwrite, sync, allocate, rename, unlink, list, sync_dir, lock). */
u64 disk_sim_ops(struct disk *d);
/* From operation number `op` (0 is the first ever) on, nothing has any effect and everything fails: the process is
 * gone, to be followed by disk_sim_crash(). */
void disk_sim_stop_at(struct disk *d, u64 op);
bool disk_sim_stopped(struct disk *d);
/* Operation number `op` fails that way; persistent: and all later ones that can fail so. A failed sync loses an
 * arbitrary part of what it should have written, and calls it clean. */
void disk_sim_fail_at(struct disk *d, u64 op, enum disk_sim_fault fault, bool persistent);
/* How many operations a fault was served to. */
u64 disk_sim_failed_ops(struct disk *d);
void disk_sim_set_capacity(struct disk *d, u64 capacity_bytes);

/* Hands of the operator, effective at once and durable: look into a file, replace it, remove it, damage it.
 * disk_sim_get: false if there is no such file. disk_sim_flip: xor one byte. */
bool disk_sim_get(struct disk *d, const char *name, struct buf *out);
void disk_sim_put(struct disk *d, const char *name, slice bytes);
void disk_sim_remove(struct disk *d, const char *name);
bool disk_sim_flip(struct disk *d, const char *name, u64 offset, u8 mask);
void disk_sim_each(struct disk *d, disk_each each, void *ctx);

#endif
