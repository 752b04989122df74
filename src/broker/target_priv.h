/* Inside a target: for target.c and targets.c. */
#ifndef HAPAX_BROKER_TARGET_PRIV_H
#define HAPAX_BROKER_TARGET_PRIV_H

#include "base/bucket.h"
#include "base/hist.h"
#include "broker/target.h"

struct target {
    struct target_rules rules;
    struct circuit circuit;
    struct bucket rate;
    i64 wait_ms; /* mono: not called before then */
    u32 in_flight;
    bool paused;
    i64 paused_ms;
    char paused_why[TARGET_ERROR_BYTES + 1];
    i64 gone_ms;
    bool let_go; /* freed when nothing is under way */
    u64 pushes[CLASS_COUNT], lookups;
    struct hist took_us;
    struct target_error error;

    /* targets.c's */
    u16 queue;
    bool told_down; /* the log has it */
    u64 place;
    i64 again_ms; /* mono */
    u32 heap_at;  /* 1 behind its place in the heap of those; 0: it is not there */
};

#endif
