/* top: what it shows. top_view.c reads the broker's answers and makes a frame of them; top.c has the terminal and the time. */
#ifndef HAPAX_CLI_TOP_H
#define HAPAX_CLI_TOP_H

#include "cli/cli.h"

#define FIGURE_LIST(X)                                                                                                 \
    X(IN, "accepted_per_s")                                                                                            \
    X(OUT, "settled_per_s")                                                                                            \
    X(REPEATS, "duplicate_ratio")                                                                                      \
    X(LAG, "oldest_ready_ms") /* or WAITED, whichever is longer */                                                     \
    X(WAITED, "wait_p95_ms")                                                                                           \
    X(READY, "ready")                                                                                                  \
    X(LEASED, "leased")                                                                                                \
    X(DEAD, "dead")                                                                                                    \
    X(HELD, "held")                                                                                                    \
    X(BLOCKED, "blocked_groups")                                                                                       \
    X(CONSUMERS, "") /* counted from the list of them */                                                               \
    X(ALERTS, "")
#define FIGURE_ENUM(name, member) FIGURE_##name,
enum figure { FIGURE_LIST(FIGURE_ENUM) FIGURE_COUNT };
#undef FIGURE_ENUM

struct top_row {
    struct buf name;
    double of[FIGURE_COUNT];
    bool paused;
};

/* What the broker said last. */
struct top_view {
    struct top_row *rows;
    size_t count, cap;
    struct buf alerts; /* firing: a clean line each */
    size_t alert_count;
    struct buf stats; /* as it came */
    size_t consumer_count;
    bool more_queues, not_judged;
};

void view_free(struct top_view *v);
/* Asks for everything; the old view stays if that fails. */
bool view_load(struct top_view *v, struct cli *cli, hx_error *err);

/* What a queue is sorted by: one key of the keyboard each. */
struct top_sort {
    char key;
    const char *title;
    enum figure by;
};
extern const struct top_sort top_sorts[];
const struct top_sort *top_sort_of(char key); /* NULL: no such key */

struct top_frame {
    const struct top_sort *sort;
    size_t columns, lines; /* SIZE_MAX: as many as it takes */
    const char *trouble;   /* NULL: all is well */
    bool help;             /* with the line that names the keys */
};
/* Clean text, coloured for a terminal; each line ends with a line feed and fits. */
void view_put(struct top_view *v, struct cli *cli, const struct top_frame *f, struct buf *out);

#endif
