#include <stdlib.h>

#include "base/json.h"
#include "cli/cli.h"

#define TOKEN_TEXT "TOKEN is a message's token, or - for $HAPAX_TOKEN, which --exec sets. "

const struct flag flags_ack[] = {
    {"file", "FILE", "read the result from a file, - for standard input"},
    {"content-type", "TYPE", "of the result"},
    {"effect-id", "ID", "the effect's id in the downstream; two for one key reveal a doubled effect"},
    {0},
};
const char about_ack[] = TOKEN_TEXT "Repeating an ack is safe: the first one stands.";

const struct flag flags_nack[] = {
    {"class", "CLASS", "transient, poison, rejected, unknown (default) or absent"},
    {"reason", "TEXT", "kept with the attempt"},
    {"delay", "DURATION", "not again before this; the queue's backoff if that is longer"},
    {"result", "TEXT", "the outcome of a rejected message"},
    {"file", "FILE", "read that result from a file, - for standard input"},
    {"content-type", "TYPE", "of the result"},
    {0},
};
const char about_nack[] = TOKEN_TEXT
    "\ntransient: try again later. poison: never works, dead at once. rejected: a business outcome, settled.\n"
    "unknown: may have been done. absent: answers a reconcile delivery: looked up, did not happen.";

const struct flag flags_extend[] = {{"lease", "DURATION", "from now on, default 30s"}, {0}};
const char about_extend[] = TOKEN_TEXT;

const struct flag flags_step[] = {{"file", "FILE", "read the result from a file, - for standard input"}, {0}};
const char about_step[] = TOKEN_TEXT "\nPrints the step's recorded result: an earlier attempt's, if there was one.";

const struct flag flags_start[] = {{0}};
const char about_start[] = TOKEN_TEXT;

const struct flag flags_release[] = {{0}};
const char about_release[] = TOKEN_TEXT "No attempt is spent; you vouch that nothing was done.";

static const char *token_of(struct cli *cli) {
    const char *word = args_word(cli, 0);
    if (strcmp(word, "-") == 0) word = getenv("HAPAX_TOKEN");
    if (!word || !*word) args_wrong(cli, "no token: - needs HAPAX_TOKEN in the environment");
    return word && *word ? word : NULL;
}

/* Prints what a settling call came to. */
static int settled_show(struct cli *cli, hx_status st, hx_settled *settled, const hx_error *err) {
    int rc = EXIT_DONE;
    if (st != HX_OK)
        rc = cli_failed(cli, err, settled->json);
    else if (cli->json)
        print_json(settled->json);
    else
        print_page(slice_of(settled->json.data, settled->json.size));
    hx_settled_free(settled);
    return rc;
}

int cmd_ack(struct cli *cli) {
    struct buf result = {0};
    bool given;
    const char *token = token_of(cli);
    if (!token || !cli_client(cli, 0) || !cli_payload(cli, 1, false, &result, &given)) {
        buf_free(&result);
        return EXIT_USAGE;
    }
    hx_settled settled;
    hx_error err;
    hx_bytes bytes = given ? hx_bytes_of(result.p, result.len) : (hx_bytes){0};
    hx_status st =
        hx_ack(cli->client, token, bytes, args_get(cli, "content-type"), args_get(cli, "effect-id"), &settled, &err);
    buf_free(&result);
    return settled_show(cli, st, &settled, &err);
}

static bool class_of(struct cli *cli, hx_class *out) {
    const char *text = args_get(cli, "class");
    *out = HX_CLASS_UNKNOWN;
    if (!text) return true;
    for (hx_class c = HX_TRANSIENT; c <= HX_ABSENT; c++) {
        if (strcmp(text, hx_class_text(c)) != 0) continue;
        *out = c;
        return true;
    }
    args_wrong(cli, "no class \"%s\": transient, poison, rejected, unknown or absent", text);
    return false;
}

int cmd_nack(struct cli *cli) {
    hx_failure failure = {.reason = args_get(cli, "reason"), .content_type = args_get(cli, "content-type")};
    const char *token = token_of(cli), *file = args_get(cli, "file");
    if (!token || !class_of(cli, &failure.failure_class) || !args_duration(cli, "delay", &failure.delay_ms) ||
        !cli_client(cli, 0))
        return EXIT_USAGE;
    struct buf result = {0};
    if (file && !cli_read_file(file, &result)) {
        buf_free(&result);
        return EXIT_USAGE;
    }
    failure.result = file ? hx_bytes_of(result.p, result.len) : hx_str(args_get(cli, "result"));
    hx_settled settled;
    hx_error err;
    hx_status st = hx_nack(cli->client, token, &failure, &settled, &err);
    buf_free(&result);
    return settled_show(cli, st, &settled, &err);
}

int cmd_extend(struct cli *cli) {
    i64 lease = 30000;
    const char *token = token_of(cli);
    if (!token || !args_duration(cli, "lease", &lease) || !cli_client(cli, 0)) return EXIT_USAGE;
    hx_settled settled;
    hx_error err;
    hx_status st = hx_extend(cli->client, token, lease, &settled, &err);
    return settled_show(cli, st, &settled, &err);
}

int cmd_start(struct cli *cli) {
    const char *token = token_of(cli);
    if (!token || !cli_client(cli, 0)) return EXIT_USAGE;
    hx_settled settled;
    hx_error err;
    hx_status st = hx_start(cli->client, token, &settled, &err);
    return settled_show(cli, st, &settled, &err);
}

int cmd_release(struct cli *cli) {
    const char *token = token_of(cli);
    if (!token || !cli_client(cli, 0)) return EXIT_USAGE;
    hx_settled settled;
    hx_error err;
    hx_status st = hx_release(cli->client, token, &settled, &err);
    return settled_show(cli, st, &settled, &err);
}

int cmd_step(struct cli *cli) {
    struct buf result = {0};
    bool given;
    const char *token = token_of(cli);
    if (!token || !cli_client(cli, 0) || !cli_payload(cli, 2, false, &result, &given)) {
        buf_free(&result);
        return EXIT_USAGE;
    }
    hx_step_answer answer;
    hx_error err;
    hx_bytes bytes = given ? hx_bytes_of(result.p, result.len) : (hx_bytes){0};
    hx_status st = hx_step(cli->client, token, args_word(cli, 1), bytes, &answer, &err);
    int rc = EXIT_DONE;
    if (st != HX_OK)
        rc = cli_failed(cli, &err, answer.json);
    else if (cli->json)
        print_json(answer.json);
    else
        print_body(answer.result);
    hx_step_answer_free(&answer);
    buf_free(&result);
    return rc;
}
