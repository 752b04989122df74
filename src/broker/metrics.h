/* Metrics: the table of metrics.def, written for whoever asks. */
#ifndef HAPAX_BROKER_METRICS_H
#define HAPAX_BROKER_METRICS_H

#include "broker/access.h"
#include "broker/broker.h"
#include "broker/rations.h"
#include "core/core.h"

/* What the values of the process are taken from. */
struct process_sample {
    struct journal_stats journal;
    struct core_memory memory;
    struct surroundings around;
    struct rations_refused refused;
    u64 live_bytes, reserved_bytes, memory_max, queues, queues_shown, waiting;
    u64 unauthorized[REFUSED_COUNT];
};
void process_sample(struct broker *b, struct process_sample *out);

#define METRIC_TYPE_LIST(X)                                                                                            \
    X(COUNTER, "counter")                                                                                              \
    X(GAUGE, "gauge")                                                                                                  \
    X(HISTOGRAM, "histogram")
#define METRIC_TYPE_ENUM(name, text) METRIC_##name,
enum metric_type { METRIC_TYPE_LIST(METRIC_TYPE_ENUM) METRIC_TYPE_COUNT };
#undef METRIC_TYPE_ENUM
enum metric_scope { METRIC_QUEUE, METRIC_TARGET, METRIC_PROCESS };

struct metric {
    const char *name, *labels, *help;
    enum metric_scope scope;
    enum metric_type type;
    u32 unit;
};
u32 metric_count(void);
const struct metric *metric_at(u32 i);

/* ,"metrics":{...}: those of the process, for /v1/stats. */
void put_process_metrics(struct broker *b, struct buf *out);

#endif
