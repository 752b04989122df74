/* Looking: keys, queues, counters, the audit trail. */
#include <stdio.h>

#include "base/json.h"
#include "cli/cli.h"

static int request_queue(struct cli *cli, const char *method, const char *middle, const char *last, const char *tail,
                         void (*show)(slice json)) {
    struct buf target = {0};
    cli_queue_target(&target, args_word(cli, 0), middle, last, tail);
    int rc = cli_request(cli, method, target.p, SL(""), show);
    buf_free(&target);
    return rc;
}

/* ---- keys */

const struct flag flags_key_show[] = {{0}};
const char about_key_show[] =
    "Answers \"why was this event ignored?\": in one sentence, then with everything that "
    "happened to the key, a line each:\n"
    "arrivals (new intent, expected replay, late replay, conflict), hand-outs, steps, how "
    "attempts ended, decisions. Steps\n"
    "and effects are kept without their time; they stand under the hand-out they belong to.\n"
    "What was not counted or listed is left out; --json has every member. A line feed inside a "
    "value is shown as ↵.";

int cmd_key_show(struct cli *cli) {
    return request_queue(cli, "GET", "/keys/", args_word(cli, 1), "", print_key);
}

const struct flag flags_key_find[] = {{"limit", "N", "how many at most, 1 to 1000, default 100"}, {0}};
const char about_key_find[] = "A bounded search, in no order: of a large queue a part is looked at, and that is said.";

static void say_if_cut(slice json) {
    if (slice_eq(member_raw(json, "complete"), SL("false"))) say("there may be more: not everything was searched");
}

/* A search. Nothing found is exit code 1, as everywhere. */
static int search(struct cli *cli, const char *target, void (*show)(slice json)) {
    hx_request request = {.method = "GET", .target = target};
    hx_reply reply;
    int rc;
    if (!cli_ask(cli, &request, &reply, &rc)) return rc;
    cli_show(cli, &reply, show);
    if (slice_eq(member_raw(slice_of(reply.body.data, reply.body.size), "items"), SL("[]"))) rc = EXIT_REFUSED;
    hx_reply_free(&reply);
    return rc;
}

static void show_keys_found(slice json) {
    static const struct column columns[] = {
        {"key", column_key_alone, true}, {"state", NULL, false}, {"at", column_at, false}, {"id", NULL, false}, {0}};
    print_list(json, columns);
    say_if_cut(json);
}

int cmd_key_find(struct cli *cli) {
    static const char *const names[] = {"limit", NULL};
    struct buf target = {0};
    cli_queue_target(&target, args_word(cli, 0), "/keys", NULL, "");
    target.len--;
    cli_query(cli, &target, names);
    target.p[target.len - 1] = args_get(cli, "limit") ? '&' : '?';
    buf_lit(&target, "prefix=");
    buf_percent_encode(&target, slice_str(args_word(cli, 1)));
    buf_char(&target, 0);
    int rc = search(cli, target.p, show_keys_found);
    buf_free(&target);
    return rc;
}

const struct flag flags_find[] = {
    {"request-id", "ID", "what a sender called its request"},
    {"trace-id", "ID", "a trace, or a whole traceparent: a flow over several queues is one list"},
    {"key", "KEY", "in whichever queue"},
    {"id", "ID", "of a message"},
    {0},
};
const char about_find[] =
    "One of the flags is given. Everything the latest events tell of the messages it leads to, in the order of time. "
    "Request\n"
    "and trace ids are known among the last 65,536 events of this process; keys and ids as long as they are kept.";

static void show_found(slice json) {
    static const struct column columns[] = {
        {"at", column_at, false},        {"kind", NULL, false},    {"queue", NULL, false},
        {"key", column_key_alone, true}, {"consumer", NULL, true}, {"state", NULL, false},
        {"request_id", NULL, true},      {"id", NULL, false},      {0}};
    print_list(json, columns);
    say_if_cut(json);
}

int cmd_find(struct cli *cli) {
    static const char *const flags[] = {"request-id", "trace-id", "key", "id"};
    static const char *const names[] = {"request_id", "trace_id", "key", "id"};
    struct buf target = {0};
    u32 given = 0;
    for (u32 i = 0; i < 4; i++) {
        const char *value = args_get(cli, flags[i]);
        if (!value || given++) continue;
        buf_printf(&target, "/v1/find?%s=", names[i]);
        buf_percent_encode(&target, slice_str(value));
        buf_char(&target, 0);
    }
    const char *bare = args_word(cli, 0);
    int rc = bare ? args_wrong(cli, "what is \"%s\"? Say --key, --id, --request-id or --trace-id before it", bare)
             : given == 1 ? search(cli, target.p, show_found)
                          : args_wrong(cli, "one of --request-id, --trace-id, --key and --id says what to look for");
    buf_free(&target);
    return rc;
}

const struct flag flags_key_result[] = {
    {"wait", "DURATION", "wait until it is settled, at most this long"},
    {0},
};
const char about_key_result[] = "The result goes to standard output byte for byte (with --json as an object); at a "
                                "terminal, control characters in it "
                                "are made visible. Exit code 1: not settled, dead, or no such key.";

static void print_result_json(const hx_result *r) {
    struct buf b = {0};
    slice body = slice_of(r->body.data, r->body.size);
    bool text = utf8_valid(body);
    buf_char(&b, '{');
    json_put_member(&b, "state", slice_str(hx_state_text(r->state)));
    json_put_member(&b, "content_type", slice_str(r->content_type));
    json_put_name(&b, "body");
    if (text)
        json_put_string(&b, body);
    else
        buf_char(&b, '"'), buf_base64(&b, body), buf_char(&b, '"');
    json_put_member(&b, "encoding", text ? SL("utf8") : SL("base64"));
    buf_lit(&b, "}\n");
    print_buf(&b);
}

int cmd_key_result(struct cli *cli) {
    i64 wait = 0;
    if (!args_duration(cli, "wait", &wait) || !cli_client(cli, 0)) return EXIT_USAGE;
    hx_result result;
    hx_error err;
    hx_status st = hx_wait(cli->client, args_word(cli, 0), args_word(cli, 1), wait, &result, &err);
    int rc = EXIT_DONE;
    if (st != HX_OK)
        rc = cli_failed(cli, &err, result.problem);
    else if (cli->json)
        print_result_json(&result);
    else
        print_bytes(result.body);
    hx_result_free(&result);
    return rc;
}

/* ---- queues */

const struct flag flags_queues_list[] = {
    {"limit", "N", "how many at most, 1 to 1000, default 100"},
    {"cursor", "CURSOR", "go on where a list ended: its next_cursor"},
    {0},
};
const char about_queues_list[] =
    "State: paused (hands nothing out), or pressed (at one of its limits: sends are told to wait).";
const struct flag flags_queues_show[] = {{0}};
const char about_queues_show[] = "";

/* What a queue does out of the ordinary. */
static void column_queue_state(struct buf *b, slice item) {
    bool paused = slice_eq(member_raw(item, "paused"), SL("true"));
    bool pressed = slice_eq(member_raw(item, "pressed"), SL("true"));
    if (paused) buf_lit(b, "paused");
    if (pressed) buf_slice_add(b, paused ? SL(", pressed") : SL("pressed"));
}

static void show_queues(slice json) {
    static const struct column columns[] = {{"name", NULL, false},
                                            {"pending", NULL, false},
                                            {"leased", NULL, false},
                                            {"held", NULL, false},
                                            {"dead", NULL, false},
                                            {"state", column_queue_state, false},
                                            {"oldest_ready_ms", NULL, false},
                                            {"delayed", NULL, false},
                                            {"keys", NULL, false},
                                            {0}};
    print_list(json, columns);
}

int cmd_queues_list(struct cli *cli) {
    static const char *const filters[] = {"limit", NULL};
    struct buf target = {0};
    buf_lit(&target, "/v1/queues");
    cli_query(cli, &target, filters);
    int rc = cli_list(cli, target.p, show_queues);
    buf_free(&target);
    return rc;
}

int cmd_queues_show(struct cli *cli) {
    return request_queue(cli, "GET", "", NULL, "", print_queue);
}

/* ---- the broker */

const struct flag flags_stats[] = {{0}};
const char about_stats[] = "";

int cmd_stats(struct cli *cli) {
    return cli_request(cli, "GET", "/v1/stats", SL(""), NULL);
}

const struct flag flags_consumers[] = {{0}};
const char about_consumers[] = "The names given to receive (--consumer): how many leases each holds, since when the "
                               "oldest, and when it last spoke.\n"
                               "Those that hold nothing are listed for an hour. Leases of receivers without a name are "
                               "counted on a line without one.";

static void column_oldest(struct buf *b, slice item) {
    print_time(b, item, "oldest");
}

static void column_last_seen(struct buf *b, slice item) {
    print_time(b, item, "last_seen");
}

static void show_consumers(slice json) {
    static const struct column columns[] = {{"name", NULL, true},
                                            {"queue", NULL, false},
                                            {"count", NULL, false},
                                            {"oldest", column_oldest, false},
                                            {"last_seen", column_last_seen, false},
                                            {0}};
    print_list(json, columns);
    if (slice_eq(member_raw(json, "complete"), SL("false")))
        say("there are more leases than were looked at: those are counted without a name");
}

int cmd_consumers(struct cli *cli) {
    struct buf target = {0};
    buf_lit(&target, "/v1/consumers");
    if (args_word(cli, 0)) buf_lit(&target, "?queue="), buf_percent_encode(&target, slice_str(args_word(cli, 0)));
    buf_char(&target, 0);
    int rc = cli_request(cli, "GET", target.p, SL(""), show_consumers);
    buf_free(&target);
    return rc;
}

const struct flag flags_audit[] = {
    {"queue", "QUEUE", "of this queue only"},
    {"who", "NAME", "by this person only"},
    {"what", "VERB",
     "only pause, resume, purge, cancel, revoke, resolve, redrive, replay, drill, erase, forget, queue_put, "
     "push_pause, ..."},
    {"since", "WHEN", "of the last 24h, 7d, ..., or since a time like 2026-01-31T12:00:00Z"},
    {"limit", "N", "how many at most"},
    {"cursor", "CURSOR", "go on where a list ended: its next_cursor"},
    {0},
};
const char about_audit[] =
    "What operators decided: when, who, what and why, newest first. Nothing in it can be changed.";

static void show_audit(slice json) {
    static const struct column columns[] = {{"at", column_at, false}, {"who", NULL, false}, {"what", NULL, false},
                                            {"queue", NULL, false},   {"key", NULL, false}, {"why", NULL, true},
                                            {"detail", NULL, true},   {"id", NULL, false},  {0}};
    print_list(json, columns);
}

int cmd_audit(struct cli *cli) {
    static const char *const filters[] = {"queue", "who", "what", "since", "limit", NULL};
    struct buf target = {0};
    buf_lit(&target, "/v1/audit");
    cli_query(cli, &target, filters);
    int rc = cli_list(cli, target.p, show_audit);
    buf_free(&target);
    return rc;
}
