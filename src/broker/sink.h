/* Where the core's records go: into the journal, and to whoever waits for what they say. */
#ifndef HAPAX_BROKER_SINK_H
#define HAPAX_BROKER_SINK_H

#include "core/core.h"

struct broker;

struct core_sink sink_of(struct broker *b);

#endif
