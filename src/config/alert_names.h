/* What the broker watches for: one list for the config's `alerts.off`, for what evaluates them and for what shows them. */
#ifndef HAPAX_CONFIG_ALERT_NAMES_H
#define HAPAX_CONFIG_ALERT_NAMES_H

/* Of a queue: it may be off there, or everywhere. */
#define QUEUE_ALERT_LIST(X)                                                                                            \
    X(DUPLICATES_VANISHED, "duplicates_vanished")                                                                      \
    X(DUPLICATES_HIGH, "duplicates_high")                                                                              \
    X(LATE_REPLAYS, "late_replays")                                                                                    \
    X(OLDEST_UNSETTLED, "oldest_unsettled")                                                                            \
    X(DOUBLED_EFFECT, "doubled_effect")                                                                                \
    X(DEAD_LETTERS, "dead_letters")                                                                                    \
    X(HELD_WAITING, "held_waiting")                                                                                    \
    X(LAG, "lag")                                                                                                      \
    X(LOSS_RATE, "loss_rate")                                                                                          \
    X(GROUP_BLOCKED, "group_blocked")                                                                                  \
    X(KEY_SKEW, "key_skew")                                                                                            \
    X(PUSH_DOWN, "push_down")                                                                                          \
    X(INGEST_REFUSED, "ingest_refused")                                                                                \
    X(RELAY_LAG, "relay_lag")

/* Of the process. */
#define PROCESS_ALERT_LIST(X)                                                                                          \
    X(DISK_LOW, "disk_low")                                                                                            \
    X(MEMORY_HIGH, "memory_high")                                                                                      \
    X(SYNC_SLOW, "sync_slow")

#define ALERT_LIST(X)                                                                                                  \
    QUEUE_ALERT_LIST(X)                                                                                                \
    PROCESS_ALERT_LIST(X)

#define ALERT_ENUM(name, text) ALERT_##name,
enum alert { ALERT_LIST(ALERT_ENUM) ALERT_COUNT };
#undef ALERT_ENUM

#endif
