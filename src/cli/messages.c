/* Lists of messages: unsettled ones by state, the dead, the held; and one of them in full. */
#include "cli/cli.h"

#define FLAGS_PAGE                                                                                                     \
    {"limit", "N", "how many at most, 1 to 1000, default 50"}, {                                                       \
        "cursor", "CURSOR", "go on where a list ended: its next_cursor"                                                \
    }
#define FLAGS_FILTER                                                                                                   \
    {"class", "CLASS", "whose last attempt ended so: transient, unknown, poison, ..."},                                \
        {"reason", "TEXT", "whose last attempt's reason has this text in it"}, {                                       \
        "since", "WHEN", "of the last 1h, 7d, ..., or since a time like 2026-01-31T12:00:00Z"                          \
    }

/* `fixed` is the query's beginning, the flags named in `filters` follow. */
static int list(struct cli *cli, const char *fixed, const char *const *filters, void (*show)(slice json)) {
    i64 limit = 50;
    if (!args_number(cli, "limit", 1, 1000, &limit)) return EXIT_USAGE;
    struct buf target = {0}, query = {0};
    cli_queue_target(&target, args_word(cli, 0), "/messages?state=", NULL, "");
    target.len--;
    buf_printf(&target, "%s&limit=%lld", fixed, (long long)limit);
    cli_query(cli, &query, filters);
    if (query.p[0]) query.p[0] = '&';
    buf_add(&target, query.p, query.len);
    int rc = cli_list(cli, target.p, show);
    buf_free(&target);
    buf_free(&query);
    return rc;
}

static int show_one(struct cli *cli) {
    struct buf target = {0};
    const char *id = cli_message_id(cli);
    if (!id) return EXIT_USAGE;
    cli_queue_target(&target, args_word(cli, 0), "/messages/", id, "");
    int rc = cli_request(cli, "GET", target.p, SL(""), print_key);
    buf_free(&target);
    return rc;
}

const struct flag flags_messages_list[] = {
    {"state", "STATE", "pending (default), leased, held or dead"},
    FLAGS_PAGE,
    {0},
};
const char about_messages_list[] =
    "What has no key is named by its id. Leased ones have who works at them, and for how long.";

static void show_messages(slice json) {
    static const struct column columns[] = {{"key", column_key, false},
                                            {"age", column_age, false},
                                            {"consumer", column_consumer, false},
                                            {"leased_for", column_leased_for, false},
                                            {"attempt", NULL, false},
                                            {"group", NULL, true},
                                            {"reason", NULL, true},
                                            {"payload", NULL, true},
                                            {"id", NULL, false},
                                            {0}};
    print_list(json, columns);
}

int cmd_messages_list(struct cli *cli) {
    static const char *const states[] = {"pending", "leased", "held", "dead"};
    static const char *const filters[] = {NULL};
    const char *state = args_get(cli, "state");
    bool known = !state;
    for (size_t i = 0; i < sizeof(states) / sizeof(states[0]) && !known; i++) known = strcmp(state, states[i]) == 0;
    if (!known) return args_wrong(cli, "no state \"%s\": pending, leased, held or dead", state);
    return list(cli, state ? state : "pending", filters, show_messages);
}

const struct flag flags_messages_show[] = {{0}};
const char about_messages_show[] = "";

int cmd_messages_show(struct cli *cli) {
    return show_one(cli);
}

/* ---- the dead */

const struct flag flags_dead_list[] = {FLAGS_FILTER, FLAGS_PAGE, {0}};
const char about_dead_list[] =
    "Work that failed for good and waits for somebody: `hapax dead redrive` runs it again, `hapax key resolve` "
    "decides\n"
    "it, `hapax queues purge --state dead` drops it. refused: a copy of what failed the queue's schema; it was never\n"
    "admitted, and its sender was told.";

static void show_dead(slice json) {
    static const struct column columns[] = {{"key", column_key, false}, {"group", NULL, true},
                                            {"class", NULL, false},     {"age", column_age, false},
                                            {"reason", NULL, true},     {"attempt", NULL, false},
                                            {"refused", NULL, false},   {"payload", NULL, true},
                                            {"id", NULL, false},        {0}};
    print_list(json, columns);
}

int cmd_dead_list(struct cli *cli) {
    static const char *const filters[] = {"class", "reason", "since", NULL};
    return list(cli, "dead", filters, show_dead);
}

/* ---- the held */

const struct flag flags_held_list[] = {FLAGS_FILTER, FLAGS_PAGE, {0}};
const char about_held_list[] =
    "Work that only a person can decide: its outcome is not known, or a known key came with another payload. Then the\n"
    "table names the fields that differ. `hapax held show` tells all, `hapax held resolve` decides.";

static void show_held(slice json) {
    static const struct column columns[] = {{"key", column_key, false},
                                            {"held_because", NULL, false},
                                            {"changed", NULL, true},
                                            {"group", NULL, true},
                                            {"age", column_age, false},
                                            {"reason", NULL, true},
                                            {"class", NULL, false},
                                            {"attempt", NULL, false},
                                            {"payload", NULL, true},
                                            {"id", NULL, false},
                                            {0}};
    print_list(json, columns);
}

int cmd_held_list(struct cli *cli) {
    static const char *const filters[] = {"class", "reason", "since", NULL};
    return list(cli, "held", filters, show_held);
}

const struct flag flags_held_show[] = {{0}};
const char about_held_show[] =
    "Everything known of a held message: attempts, steps, arrivals, the payload, and for a conflict what differs.";

int cmd_held_show(struct cli *cli) {
    return show_one(cli);
}
