/* Looking: keys, queues, messages, counters. */
#include <stdio.h>

#include "base/json.h"
#include "cli/cli.h"

/* /v1/queues/<queue><middle><last><tail>, encoded and NUL-terminated. */
static void queue_target(struct buf *b, const char *queue, const char *middle, const char *last, const char *tail) {
    buf_lit(b, "/v1/queues/");
    buf_percent_encode(b, slice_str(queue));
    buf_slice_add(b, slice_str(middle));
    if (last) buf_percent_encode(b, slice_str(last));
    buf_add(b, tail, strlen(tail) + 1);
}

static int request_queue(struct cli *cli, const char *method, const char *middle, const char *last, const char *tail,
                         void (*show)(slice json)) {
    struct buf target = {0};
    queue_target(&target, args_word(cli, 0), middle, last, tail);
    int rc = cli_request(cli, method, target.p, SL(""), show);
    buf_free(&target);
    return rc;
}

/* ---- keys */

const struct flag flags_key_show[] = {{0}};
const char about_key_show[] =
    "Answers \"why was this event ignored?\": every arrival of the key is counted, the last ones are\n"
    "listed with their kind: new, replay, late or conflict.";

int cmd_key_show(struct cli *cli) {
    return request_queue(cli, "GET", "/keys/", args_word(cli, 1), "", NULL);
}

const struct flag flags_key_result[] = {
    {"wait", "DURATION", "wait until it is settled, at most this long"},
    {0},
};
const char about_key_result[] = "The result goes to standard output byte for byte (with --json as an object). Exit "
                                "code 1: not settled, dead, or no such key.";

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
        rc = cli_failed(cli, &err, (hx_bytes){0});
    else if (cli->json)
        print_result_json(&result);
    else
        fwrite(result.body.data, 1, result.body.size, stdout);
    hx_result_free(&result);
    return rc;
}

/* ---- queues */

const struct flag flags_queues_list[] = {{0}};
const char about_queues_list[] = "";
const struct flag flags_queues_show[] = {{0}};
const char about_queues_show[] = "";
const struct flag flags_queues_pause[] = {{0}};
const char about_queues_pause[] = "Sends, acks and running leases go on as before.";
const struct flag flags_queues_resume[] = {{0}};
const char about_queues_resume[] = "";

static void show_queues(slice json) {
    static const char *const columns[] = {"name", "paused", "pending", "leased",          "held",
                                          "dead", "keys",   "delayed", "oldest_ready_ms", NULL};
    print_items(json, columns);
}

int cmd_queues_list(struct cli *cli) {
    return cli_request(cli, "GET", "/v1/queues", SL(""), show_queues);
}

int cmd_queues_show(struct cli *cli) {
    return request_queue(cli, "GET", "", NULL, "", NULL);
}

int cmd_queues_pause(struct cli *cli) {
    return request_queue(cli, "POST", "", NULL, "/pause", NULL);
}

int cmd_queues_resume(struct cli *cli) {
    return request_queue(cli, "POST", "", NULL, "/resume", NULL);
}

/* ---- messages */

const struct flag flags_messages_list[] = {
    {"state", "STATE", "pending (default), leased, held or dead"},
    {"limit", "N", "how many at most, default 50"},
    {"cursor", "CURSOR", "go on where a list ended: its next_cursor"},
    {0},
};
const char about_messages_list[] = "";

/* The table, and how to see the rest. */
static void show_messages(slice json) {
    static const char *const columns[] = {"id",      "key",        "state",   "reason", "group",
                                          "attempt", "first_seen", "payload", NULL};
    struct json j;
    slice name, cursor = SL("");
    print_items(json, columns);
    json_init(&j, json);
    if (json_object(&j)) {
        while (json_member(&j, &name)) {
            if (slice_eq(name, SL("next_cursor")) && json_peek(&j) == JSON_STRING)
                json_string(&j, &cursor);
            else
                json_skip(&j);
        }
    }
    if (cursor.n) say("there are more: --cursor %.*s", (int)cursor.n, cursor.p);
    json_free(&j);
}

int cmd_messages_list(struct cli *cli) {
    static const char *const states[] = {"pending", "leased", "held", "dead"};
    const char *state = args_get(cli, "state"), *cursor = args_get(cli, "cursor");
    i64 limit = 50;
    bool known = !state;
    for (size_t i = 0; i < sizeof(states) / sizeof(states[0]) && !known; i++) known = strcmp(state, states[i]) == 0;
    if (!known) return args_wrong(cli, "no state \"%s\": pending, leased, held or dead", state);
    if (!args_number(cli, "limit", 1, 1000, &limit)) return EXIT_USAGE;
    struct buf tail = {0};
    buf_printf(&tail, "?state=%s&limit=%lld", state ? state : "pending", (long long)limit);
    if (cursor) {
        buf_lit(&tail, "&cursor=");
        buf_percent_encode(&tail, slice_str(cursor));
    }
    buf_char(&tail, '\0');
    int rc = request_queue(cli, "GET", "/messages", NULL, tail.p, show_messages);
    buf_free(&tail);
    return rc;
}

const struct flag flags_messages_show[] = {{0}};
const char about_messages_show[] = "";

int cmd_messages_show(struct cli *cli) {
    return request_queue(cli, "GET", "/messages/", args_word(cli, 1), "", NULL);
}

const struct flag flags_messages_cancel[] = {
    {"by", "NAME", "who decides this, for the audit"},
    {"note", "TEXT", "and why"},
    {0},
};
const char about_messages_cancel[] = "The key is remembered as cancelled: sending it again is a duplicate.";

int cmd_messages_cancel(struct cli *cli) {
    struct buf target = {0}, body = {0};
    const char *by = args_get(cli, "by"), *note = args_get(cli, "note");
    if (!utf8_valid(slice_str(by)) || !utf8_valid(slice_str(note)))
        return args_wrong(cli, "--by or --note is not UTF-8");
    queue_target(&target, args_word(cli, 0), "/messages/", args_word(cli, 1), "/cancel");
    buf_char(&body, '{');
    if (by) json_put_member(&body, "by", slice_str(by));
    if (note) json_put_member(&body, "note", slice_str(note));
    buf_char(&body, '}');
    int rc = cli_request(cli, "POST", target.p, buf_slice(&body), NULL);
    buf_free(&target);
    buf_free(&body);
    return rc;
}

/* ---- counters */

const struct flag flags_stats[] = {{0}};
const char about_stats[] = "";

int cmd_stats(struct cli *cli) {
    return cli_request(cli, "GET", "/v1/stats", SL(""), NULL);
}
