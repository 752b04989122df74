#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/json.h"
#include "cli/cli.h"

hx_client *cli_client(struct cli *cli, int64_t timeout_ms) {
    if (cli->client) return cli->client;
    hx_options options = *cli_connect(cli);
    options.timeout_ms = timeout_ms;
    hx_error err;
    if (hx_open(&options, &cli->client, &err) == HX_OK) return cli->client;
    bool exposed = strcmp(err.code, "token_exposed") == 0;
    args_wrong(cli, "%s%s", err.detail, exposed ? ", or say --insecure-token if that is meant" : "");
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

/* Of rules that are wrong in several places: the detail has the first, here are the others. */
static void say_other_errors(slice problem) {
    struct json j;
    slice text, errors = member_raw(problem, "errors");
    json_init(&j, errors);
    bool first = true;
    if (errors.n && json_array(&j)) {
        for (; json_element(&j) && json_string(&j, &text); first = false)
            if (!first) say_wrong("%.*s", (int)text.n, text.p);
    }
    json_free(&j);
}

int cli_failed(struct cli *cli, const hx_error *err, hx_bytes problem_json) {
    if (cli->json && problem_json.size)
        print_json(problem_json);
    else if (cli->json)
        print_own_problem(err);
    struct buf changed = {0};
    print_names(&changed, slice_of(problem_json.data, problem_json.size), "changed");
    if (err->status == HX_UNREACHABLE && strcmp(err->code, "unreachable") != 0)
        say_wrong("%s.", err->detail); /* it runs, and the sentence says what is wrong with it */
    else if (err->status == HX_UNREACHABLE)
        say_wrong("%s. Is hapaxd running? Start it, or name another broker with --url or HAPAX_URL.", err->detail);
    else if (err->applied == HX_APPLIED_UNKNOWN)
        say_wrong("%s. It is not known whether this was applied: run the same command again, same key or token.",
                  err->detail);
    else if (err->http_status == 401)
        say_wrong("%s: %s. Name the file that has your token in HAPAX_API_TOKEN_FILE or with --api-token-file; "
                  "`hapax token new` makes one.",
                  err->code, err->detail);
    else if (err->status == HX_DENIED)
        say_wrong("%s: %s. Use a token that may, or have this right added to its `allow` in the broker's config.",
                  err->code, err->detail);
    else if (strcmp(err->code, "not_found") == 0) /* every path we ask for is there, unless --url has one of its own */
        say_wrong(
            "%s: %s. Is %s the broker's address? It has no path behind HOST:PORT, and an older broker may lack this.",
            err->code, err->detail, cli->url);
    else if (strcmp(err->code, "no_such_queue") == 0)
        say_wrong("%s: %s; `hapax queues list` names those that do", err->code, err->detail);
    else
        say_wrong("%s: %s%s%.*s", err->code, err->detail, changed.len ? "; changed: " : "", (int)changed.len,
                  changed.len ? changed.p : "");
    if (!cli->json) say_other_errors(slice_of(problem_json.data, problem_json.size));
    buf_free(&changed);
    return cli_exit_code(err);
}

/* A page of a proxy must not pass for "none". */
bool cli_is_answer(const hx_reply *reply) {
    slice body = slice_trim(slice_of(reply->body.data, reply->body.size));
    return body.n == 0 || *body.p == '{' || *body.p == '[';
}

static int not_an_answer(const struct cli *cli, const hx_request *request) {
    hx_error err = {.status = HX_PROTOCOL, .code = "protocol"};
    if (strcmp(request->method, "GET") != 0) err.applied = HX_APPLIED_UNKNOWN;
    snprintf(err.detail, sizeof(err.detail),
             "the answer of %s is no JSON: that is no Hapax broker, or something before it answered", cli->url);
    if (cli->json) print_own_problem(&err);
    say_wrong("%s", err.detail);
    return EXIT_UNREACHABLE;
}

bool cli_ask(struct cli *cli, const hx_request *request, hx_reply *reply, int *rc) {
    *reply = (hx_reply){0};
    *rc = EXIT_USAGE;
    hx_client *client = cli_client(cli, 0);
    if (!client) return false;
    hx_error err;
    *rc = EXIT_DONE;
    if (hx_call(client, request, reply, &err) != HX_OK) {
        *rc = cli_failed(cli, &err, reply->body);
    } else if (cli_is_answer(reply)) {
        return true;
    } else {
        *rc = not_an_answer(cli, request);
    }
    hx_reply_free(reply);
    return false;
}

void cli_show(const struct cli *cli, const hx_reply *reply, void (*show)(slice json)) {
    slice body = slice_of(reply->body.data, reply->body.size);
    if (body.n == 0) body = SL("{\"ok\":true}"); /* 204: nothing to add */
    if (cli->json)
        print_json(hx_bytes_of(body.p, body.n));
    else
        (show ? show : print_page)(body);
}

static hx_request request_of(const char *method, const char *target, slice body) {
    hx_request request = {.method = method, .target = target, .body = hx_bytes_of(body.p, body.n)};
    if (body.n) request.content_type = "application/json";
    return request;
}

int cli_request(struct cli *cli, const char *method, const char *target, slice body, void (*show)(slice json)) {
    hx_request request = request_of(method, target, body);
    hx_reply reply;
    int rc;
    if (cli_ask(cli, &request, &reply, &rc)) cli_show(cli, &reply, show);
    hx_reply_free(&reply);
    return rc;
}

#define LIST_PAGES_MAX 100000 /* of 10,000 messages looked at: more than a broker holds */

/* Where the list goes on, if a filter let nothing of this page through: what was looked for may be on the next. */
static bool empty_page(const hx_reply *reply, struct buf *cursor) {
    slice page = slice_of(reply->body.data, reply->body.size);
    if (!slice_eq(slice_trim(member_raw(page, "items")), SL("[]"))) return false;
    buf_reset(cursor);
    return member_text(page, "next_cursor", cursor);
}

int cli_list(struct cli *cli, const char *target, void (*show)(slice json)) {
    struct buf cursor = {0}, page = {0};
    bool more = true;
    int rc = EXIT_DONE;
    buf_slice_add(&cursor, slice_str(args_get(cli, "cursor")));
    for (u32 n = 0; more && n < LIST_PAGES_MAX; n++) {
        buf_reset(&page);
        buf_slice_add(&page, slice_str(target));
        if (cursor.len) buf_printf(&page, "%ccursor=", strchr(target, '?') ? '&' : '?');
        buf_percent_encode(&page, buf_slice(&cursor));
        buf_char(&page, '\0');
        hx_request request = request_of("GET", page.p, SL(""));
        hx_reply reply;
        more = cli_ask(cli, &request, &reply, &rc) && empty_page(&reply, &cursor);
        if (rc == EXIT_DONE && (!more || n + 1 == LIST_PAGES_MAX)) cli_show(cli, &reply, show);
        hx_reply_free(&reply);
    }
    buf_free(&page);
    buf_free(&cursor);
    return rc;
}

/* ---- decisions */

/* --by and --note as header fields, which borrow from the arguments. false: a usage error was printed. */
static bool sign(struct cli *cli, const char *note, hx_attr fields[2], size_t *count) {
    const char *by = args_get(cli, "by");
    if (!note) note = args_get(cli, "note");
    if (!by) by = getenv("USER");
    slice who = slice_str(by), why = slice_str(note);
    *count = 0;
    if (!utf8_valid(who) || !utf8_valid(why) || has_control(who) || has_control(why)) {
        args_wrong(cli, "--by or --note is not one line of UTF-8");
        return false;
    }
    if (who.n) fields[(*count)++] = (hx_attr){"Hapax-Actor", by};
    if (why.n) fields[(*count)++] = (hx_attr){"Hapax-Reason", note};
    return true;
}

/* Ctrl-C ends the waiting, not what was asked for: a purge of a million goes on without whoever began it. */
static void leave_it_to_the_broker(int number) {
    static const char text[] = "\nhapax: not waited for any longer. What was asked for is with the broker, and goes on "
                               "there: look at it before\n  you ask again (`hapax audit`)\n";
    (void)number;
    ssize_t n = write(STDERR_FILENO, text, sizeof(text) - 1);
    (void)n;
    _exit(EXIT_UNREACHABLE);
}

bool cli_ask_signed(struct cli *cli, const struct cli_decision *d, hx_reply *reply, int *rc) {
    hx_attr fields[3];
    hx_request request = request_of(d->method, d->target, d->body);
    *reply = (hx_reply){0};
    *rc = EXIT_USAGE;
    if (!sign(cli, d->note, fields, &request.field_count)) return false;
    if (d->etag) fields[request.field_count++] = (hx_attr){"If-Match", d->etag};
    request.fields = fields;
    request.once = true;
    struct sigaction leave = {.sa_handler = leave_it_to_the_broker}, before;
    sigaction(SIGINT, &leave, &before);
    bool ok = cli_ask(cli, &request, reply, rc);
    sigaction(SIGINT, &before, NULL);
    return ok;
}

static void say_done(const char *sentence) {
    struct buf b = {0};
    print_clean(&b, slice_str(sentence), false);
    buf_char(&b, '\n');
    print_clean_buf(&b);
}

int cli_decide(struct cli *cli, const struct cli_decision *d) {
    hx_reply reply;
    int rc;
    if (cli_ask_signed(cli, d, &reply, &rc)) {
        if (d->done && !cli->json)
            say_done(d->done);
        else
            cli_show(cli, &reply, d->show);
    }
    hx_reply_free(&reply);
    return rc;
}

bool cli_confirm(const struct cli *cli, int *rc, const char *fmt, ...) {
    char question[512], answer[16];
    if (args_has(cli, "yes")) return true;
    va_list args;
    va_start(args, fmt);
    vsnprintf(question, sizeof(question), fmt, args);
    va_end(args);
    *rc = EXIT_USAGE;
    if (!isatty(STDIN_FILENO) || !isatty(STDERR_FILENO)) {
        say("%s: nothing was done. %s There is no terminal to ask at: say --yes if that is meant.", cli->verb->name,
            question);
        return false;
    }
    *rc = EXIT_REFUSED;
    say("%s Type yes to go on:", question);
    if (fgets(answer, sizeof(answer), stdin) && strcmp(answer, "yes\n") == 0) return true;
    say("nothing was done");
    return false;
}

void cli_queue_target(struct buf *b, const char *queue, const char *middle, const char *last, const char *tail) {
    buf_lit(b, "/v1/queues/");
    buf_percent_encode(b, slice_str(queue));
    buf_slice_add(b, slice_str(middle));
    if (last) buf_percent_encode(b, slice_str(last));
    buf_add(b, tail, strlen(tail) + 1);
}

const char *cli_message_id(struct cli *cli) {
    const char *word = args_word(cli, 1);
    u8 bytes[16];
    if (hex_decode(slice_str(word), bytes, sizeof(bytes))) return word;
    args_wrong(cli, "\"%s\" is no id, which is 32 hex digits. If it is a key, `hapax key show %s %s` tells its id",
               word, args_word(cli, 0), word);
    return NULL;
}

void cli_query(struct cli *cli, struct buf *b, const char *const *names) {
    char mark = '?';
    for (; *names; names++) {
        const char *value = args_get(cli, *names);
        if (!value) continue;
        buf_printf(b, "%c%s=", mark, *names);
        buf_percent_encode(b, slice_str(value));
        mark = '&';
    }
    buf_char(b, '\0');
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
