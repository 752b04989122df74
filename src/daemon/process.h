/* The process, and what the machine gives it: memory, descriptors, a disk. */
#ifndef HAPAX_DAEMON_PROCESS_H
#define HAPAX_DAEMON_PROCESS_H

#include "broker/broker.h"
#include "config/config.h"

/* Descriptors are shared out before anything takes one: however many connections come, the journal finds its own. */
struct process_files {
    u32 journal, connections, fetches;
};

/* Before anything secret is read: no core dumps, no debugger but root's (unless they are allowed), no program with more rights than
 * this one, and what it makes is nobody else's to read. */
void process_lock_down(bool allow_dumps);
/* ST_DENIED: there are too few. */
hx_st process_share_files(const struct config *config, struct process_files *out, struct errbuf *err);
/* As its control group says, or one above it; 0: no bound. root: where /proc and /sys are, "" but for a test. */
u64 process_memory_max(const char *root);
/* What is large goes back to the system when it is freed. */
void process_return_memory(void);
/* What unfinished requests and replies may take of it; of 0, which is no bound, as much as they ever may. */
u64 process_buffers_max(u64 memory_max);
/* In bytes: resident ones, to hold the meters against, and virtual ones. */
void process_memory(u64 *resident, u64 *virtual);
/* What of it concerns process and disk. */
void process_surroundings(struct surroundings *w, const char *data);

#endif
