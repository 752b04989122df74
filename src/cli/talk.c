#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/json.h"
#include "cli/cli.h"

hx_client *cli_client(struct cli *cli, int64_t timeout_ms) {
    if (cli->client) return cli->client;
    hx_options options = {.url = cli->url, .timeout_ms = timeout_ms};
    hx_error err;
    if (hx_open(&options, &cli->client, &err) != HX_OK) args_wrong(cli, "%s", err.detail);
    return cli->client;
}

int cli_stop_fd(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    return signalfd(-1, &set, SFD_CLOEXEC);
}

int cli_exit_code(const hx_error *err) {
    if (err->status == HX_OK) return EXIT_DONE;
    bool no_answer = err->status == HX_UNREACHABLE || err->status == HX_PROTOCOL || err->status == HX_CANCELLED;
    return no_answer || err->applied == HX_APPLIED_UNKNOWN ? EXIT_UNREACHABLE : EXIT_REFUSED;
}

/* What --json prints when there was no answer to print. */
static void print_own_problem(const hx_error *err) {
    struct buf b = {0};
    char type[64];
    snprintf(type, sizeof(type), "urn:hapax:%s", err->code);
    buf_char(&b, '{');
    json_put_member(&b, "type", slice_str(type));
    json_put_member(&b, "title", slice_str(hx_status_text(err->status)));
    json_put_member_i64(&b, "status", err->http_status);
    json_put_member(&b, "detail", utf8_valid(slice_str(err->detail)) ? slice_str(err->detail) : SL(""));
    json_put_member(&b, "code", slice_str(err->code));
    json_put_member_bool(&b, "retryable", err->retryable);
    json_put_member(&b, "applied", err->applied == HX_APPLIED_UNKNOWN ? SL("unknown") : SL("no"));
    buf_lit(&b, "}\n");
    print_buf(&b);
}

int cli_failed(struct cli *cli, const hx_error *err, hx_bytes problem_json) {
    if (cli->json && problem_json.size)
        print_json(problem_json);
    else if (cli->json)
        print_own_problem(err);
    if (err->status == HX_UNREACHABLE)
        say("%s. Is hapaxd running? Start it, or name another broker with --url or HAPAX_URL.", err->detail);
    else if (err->applied == HX_APPLIED_UNKNOWN)
        say("%s. It is not known whether this was applied: run the same command again, same key or token.",
            err->detail);
    else
        say("%s: %s", err->code, err->detail);
    return cli_exit_code(err);
}

int cli_request(struct cli *cli, const char *method, const char *target, slice body, void (*show)(slice json)) {
    hx_client *client = cli_client(cli, 0);
    if (!client) return EXIT_USAGE;
    hx_request request = {.method = method, .target = target, .body = hx_bytes_of(body.p, body.n)};
    if (body.n) request.content_type = "application/json";
    hx_reply reply;
    hx_error err;
    hx_status st = hx_call(client, &request, &reply, &err);
    int rc = EXIT_DONE;
    if (st != HX_OK)
        rc = cli_failed(cli, &err, reply.body);
    else if (cli->json)
        print_json(reply.body);
    else
        (show ? show : print_page)(slice_of(reply.body.data, reply.body.size));
    hx_reply_free(&reply);
    return rc;
}

/* ---- files */

static bool read_all(FILE *f, const char *name, struct buf *out) {
    for (;;) {
        buf_grow(out, 65536);
        size_t n = fread(out->p + out->len, 1, 65536, f);
        out->len += n;
        if (n == 0) break;
    }
    if (!ferror(f)) return true;
    say("cannot read %s: %s", name, strerrordesc_np(errno));
    return false;
}

bool cli_read_file(const char *path, struct buf *out) {
    if (strcmp(path, "-") == 0) {
        if (isatty(STDIN_FILENO)) say("reading from the terminal; end with Ctrl-D");
        return read_all(stdin, "standard input", out);
    }
    FILE *f = fopen(path, "rb");
    if (!f) {
        say("cannot open %s: %s", path, strerrordesc_np(errno));
        return false;
    }
    bool ok = read_all(f, path, out);
    fclose(f);
    return ok;
}

bool cli_payload(struct cli *cli, int word, bool or_stdin, struct buf *out, bool *given) {
    const char *text = args_word(cli, word), *file = args_get(cli, "file");
    *given = text || file || or_stdin;
    if (text && file) {
        args_wrong(cli, "both an argument and --file were given");
        return false;
    }
    buf_grow(out, 1); /* never NULL, even when empty */
    if (text)
        buf_slice_add(out, slice_str(text));
    else if (file || or_stdin)
        return cli_read_file(file ? file : "-", out);
    return true;
}
