/* A queue's event types and what came of each, read from the broker's /metrics. */
#ifndef HAPAX_CLI_TYPES_H
#define HAPAX_CLI_TYPES_H

#include "config/explain.h"

#define TYPES_MAX 64u /* the broker tells 50 apart, and the others together */

struct types {
    size_t count;
    struct type_counts at[TYPES_MAX];
};

void types_read(struct types *t, slice queue, slice metrics);
void types_free(struct types *t);

#endif
