/* Operators' decisions about queues, messages and keys. All of them are signed (cli_decide) and land in the audit. */
#include <stdarg.h>
#include <stdio.h>

#include "base/json.h"
#include "cli/cli.h"

#define FLAG_YES                                                                                                       \
    { "yes", NULL, "go ahead without asking; needed where there is no terminal" }

/* method /v1/queues/<word 0><middle><last><tail> */
static int decide(struct cli *cli, const char *method, const char *middle, const char *last, const char *tail,
                  slice body) {
    struct buf target = {0};
    cli_queue_target(&target, args_word(cli, 0), middle, last, tail);
    int rc = cli_decide(cli, &(struct cli_decision){.method = method, .target = target.p, .body = body});
    buf_free(&target);
    return rc;
}

/* The same where the answer is no news: `done` tells what was done, of this queue or key. */
static PRINTF_LIKE(5, 6) int decide_said(struct cli *cli, const char *method, const char *middle, const char *last,
                                         const char *fmt, ...) {
    struct buf target = {0};
    char done[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(done, sizeof(done), fmt, args);
    va_end(args);
    cli_queue_target(&target, args_word(cli, 0), middle, last, "");
    int rc = cli_decide(cli, &(struct cli_decision){.method = method, .target = target.p, .done = done});
    buf_free(&target);
    return rc;
}

/* ---- queues */

const struct flag flags_queues_pause[] = {FLAGS_SIGNED, {0}};
const char about_queues_pause[] = "Sends, acks and running leases go on as before.";

static void show_paused(slice queue) {
    struct buf name = {0}, b = {0};
    member_text(queue, "name", &name);
    print_clean(&b, buf_slice(&name), false);
    bool paused = slice_eq(member_raw(queue, "paused"), SL("true"));
    buf_printf(&b, "%s %lld pending, %lld leased\n",
               paused ? " is paused:" : " hands out messages:", (long long)member_number(queue, "pending"),
               (long long)member_number(queue, "leased"));
    print_clean_buf(&b);
    buf_free(&name);
}

static int set_paused(struct cli *cli, const char *tail) {
    struct buf target = {0};
    cli_queue_target(&target, args_word(cli, 0), "", NULL, tail);
    int rc = cli_decide(cli, &(struct cli_decision){.method = "POST", .target = target.p, .show = show_paused});
    buf_free(&target);
    return rc;
}

int cmd_queues_pause(struct cli *cli) {
    return set_paused(cli, "/pause");
}

const struct flag flags_queues_resume[] = {FLAGS_SIGNED, {0}};
const char about_queues_resume[] = "";

int cmd_queues_resume(struct cli *cli) {
    return set_paused(cli, "/resume");
}

const struct flag flags_queues_purge[] = {
    {"state", "STATE", "only pending, held or dead ones; default: all of these"},
    FLAG_YES,
    FLAGS_SIGNED,
    {0},
};
const char about_queues_purge[] =
    "Settles the queue's waiting messages as cancelled: they will not be done, and their keys stay known, so that a\n"
    "sender's repeat is a duplicate and not new work. Messages under a lease are left alone.";

/* How many will be cancelled, for the question: "3 pending, 1 held and 0 dead". false: the broker did not tell, *rc says
 * how, and the user was told. */
static bool count_waiting(struct cli *cli, const char *state, struct buf *out, int *rc) {
    struct buf target = {0};
    hx_reply reply;
    cli_queue_target(&target, args_word(cli, 0), "", NULL, "");
    bool ok = cli_ask(cli, &(hx_request){.method = "GET", .target = target.p}, &reply, rc);
    slice queue = slice_of(reply.body.data, reply.body.size);
    if (ok && state)
        buf_printf(out, "%lld %s", (long long)member_number(queue, state), state);
    else if (ok)
        buf_printf(out, "%lld pending, %lld held and %lld dead", (long long)member_number(queue, "pending"),
                   (long long)member_number(queue, "held"), (long long)member_number(queue, "dead"));
    buf_char(out, '\0');
    hx_reply_free(&reply);
    buf_free(&target);
    return ok;
}

static bool purge_is_meant(struct cli *cli, const char *state, int *rc) {
    struct buf waiting = {0};
    if (args_has(cli, "yes")) return true;
    bool meant = count_waiting(cli, state, &waiting, rc) &&
                 cli_confirm(cli, rc, "Every %s message of %s will be cancelled, at this moment %s.",
                             state ? state : "pending, held and dead", args_word(cli, 0), waiting.p);
    buf_free(&waiting);
    return meant;
}

int cmd_queues_purge(struct cli *cli) {
    const char *state = args_get(cli, "state");
    if (state && strcmp(state, "pending") != 0 && strcmp(state, "held") != 0 && strcmp(state, "dead") != 0)
        return args_wrong(cli, "no state \"%s\" to purge: pending, held or dead", state);
    int rc;
    if (!purge_is_meant(cli, state, &rc)) return rc;
    struct buf body = {0};
    buf_char(&body, '{');
    if (state) json_put_member(&body, "state", slice_str(state));
    buf_char(&body, '}');
    rc = decide(cli, "POST", "", NULL, "/purge", buf_slice(&body));
    buf_free(&body);
    return rc;
}

const struct flag flags_queues_delete[] = {FLAG_YES, FLAGS_SIGNED, {0}};
const char about_queues_delete[] = "Forgets the queue with its rules and all its settled keys. Refused while it has "
                                   "unsettled messages, and for queues\n"
                                   "that a config file declares.";

int cmd_queues_delete(struct cli *cli) {
    int rc;
    if (!cli_confirm(cli, &rc, "%s, its rules and all its keys will be forgotten.", args_word(cli, 0))) return rc;
    return decide_said(cli, "DELETE", "", NULL, "%s is forgotten, with its rules and keys", args_word(cli, 0));
}

/* ---- messages */

const struct flag flags_messages_cancel[] = {FLAGS_SIGNED, {0}};
const char about_messages_cancel[] =
    "The key is remembered as cancelled: sending it again is a duplicate. A replay that is cancelled leaves the\n"
    "outcome before it.";

int cmd_messages_cancel(struct cli *cli) {
    const char *id = cli_message_id(cli);
    return id ? decide(cli, "POST", "/messages/", id, "/cancel", SL("{}")) : EXIT_USAGE;
}

const struct flag flags_revoke[] = {FLAGS_SIGNED, {0}};
const char about_revoke[] =
    "For a worker that hangs or is gone: the message is handed out again, looked up or held, as if its lease had run\n"
    "out now, and no crash is counted. Until somebody else has it the worker's token still counts: what it settles is\n"
    "settled, and if it extends the lease it has it back. Who holds leases: `hapax messages list QUEUE --state "
    "leased`.";

int cmd_revoke(struct cli *cli) {
    const char *id = cli_message_id(cli);
    return id ? decide(cli, "POST", "/messages/", id, "/revoke", SL("{}")) : EXIT_USAGE;
}

/* ---- keys */

const struct flag flags_key_forget[] = {FLAG_YES, FLAGS_SIGNED, {0}};
const char about_key_forget[] =
    "The key becomes unknown: whatever carries it next is new work and will be done. Refused while it is leased.";

int cmd_key_forget(struct cli *cli) {
    int rc;
    if (!cli_confirm(cli, &rc, "%s will be done again when it is sent again.", args_word(cli, 1))) return rc;
    return decide_said(cli, "DELETE", "/keys/", args_word(cli, 1), "%s is forgotten: what carries it next is new work",
                       args_word(cli, 1));
}

const struct flag flags_key_replay[] = {FLAGS_SIGNED, {0}};
const char about_key_replay[] = "Runs a settled key once more, on purpose, as its next generation: its effect key is "
                                "KEY~gN, so that downstreams do\n"
                                "it again too. Its last outcome stays until then, and stands again if the replay is\n"
                                "cancelled. Needs the payload (keep_payload). To re-send what was already done, "
                                "without doing it: `hapax replay`.";

int cmd_key_replay(struct cli *cli) {
    return decide(cli, "POST", "/keys/", args_word(cli, 1), "/replay", SL("{}"));
}

const struct flag flags_key_erase[] = {FLAG_YES, FLAGS_SIGNED, {0}};
const char about_key_erase[] =
    "Payload and result go for good, the key and its outcome stay: a repeat is still a duplicate. For privacy law.\n"
    "Refused while it is leased.";

int cmd_key_erase(struct cli *cli) {
    int rc;
    if (!cli_confirm(cli, &rc, "Payload and result of %s will be gone for good.", args_word(cli, 1))) return rc;
    return decide(cli, "POST", "/keys/", args_word(cli, 1), "/erase", SL("{}"));
}

/* ---- resolving */

#define FLAGS_RESOLVE                                                                                                  \
    {"as", "WHAT", "done, rejected, retry, dead; for a held conflict new or duplicate (required)"},                    \
        {"result", "TEXT", "the outcome, with done and rejected"},                                                     \
        {"file", "FILE", "read that result from a file, - for standard input"},                                        \
        {"content-type", "TYPE", "of the result"}, {                                                                   \
        "status", "N", "of a proxy's key: the status its callers are answered with"                                    \
    }
#define ABOUT_RESOLVE                                                                                                  \
    "done: it happened, with this result. rejected: it was refused, with this result. retry: it did not happen, run\n" \
    "it again. dead: set it aside. new: a held conflict is work of its own. duplicate: drop it."

const struct flag flags_key_resolve[] = {FLAGS_RESOLVE, FLAGS_SIGNED, {0}};
const char about_key_resolve[] = "Decides held or dead work by its key.\n" ABOUT_RESOLVE;
const struct flag flags_held_resolve[] = {FLAGS_RESOLVE, FLAGS_SIGNED, {0}};
const char about_held_resolve[] = "Decides held or dead work by its id.\n" ABOUT_RESOLVE;

/* A result that is no UTF-8 goes as base64. */
static void put_result(struct buf *body, slice result) {
    if (utf8_valid(result)) {
        json_put_member(body, "result", result);
        return;
    }
    json_put_name(body, "result_base64");
    buf_char(body, '"');
    buf_base64(body, result);
    buf_char(body, '"');
}

static int resolve(struct cli *cli, const char *middle) {
    static const char *const ways[] = {"done", "rejected", "retry", "dead", "new", "duplicate"};
    const char *as = args_get(cli, "as"), *text = args_get(cli, "result"), *file = args_get(cli, "file");
    const char *type = args_get(cli, "content-type"), *status = args_get(cli, "status");
    u64 number = 0;
    bool known = false;
    for (size_t i = 0; as && i < sizeof(ways) / sizeof(ways[0]); i++) known = known || strcmp(as, ways[i]) == 0;
    if (!known) return args_wrong(cli, "--as is done, rejected, retry, dead, new or duplicate");
    if (text && file) return args_wrong(cli, "both --result and --file were given");
    if (!utf8_valid(slice_str(type))) return args_wrong(cli, "--content-type is not UTF-8");
    if (status && !slice_u64(slice_str(status), &number)) return args_wrong(cli, "--status is a number, 200 to 599");
    struct buf result = {0}, body = {0};
    if (file && !cli_read_file(file, &result)) {
        buf_free(&result);
        return EXIT_USAGE;
    }
    if (text) buf_slice_add(&result, slice_str(text));
    buf_char(&body, '{');
    json_put_member(&body, "as", slice_str(as));
    if (text || file) put_result(&body, buf_slice(&result));
    if (type) json_put_member(&body, "content_type", slice_str(type));
    if (status) json_put_member_i64(&body, "status", (i64)number);
    buf_char(&body, '}');
    int rc = decide(cli, "POST", middle, args_word(cli, 1), "/resolve", buf_slice(&body));
    buf_free(&result);
    buf_free(&body);
    return rc;
}

int cmd_key_resolve(struct cli *cli) {
    return resolve(cli, "/keys/");
}

int cmd_held_resolve(struct cli *cli) {
    return cli_message_id(cli) ? resolve(cli, "/messages/") : EXIT_USAGE;
}
