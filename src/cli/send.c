#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

#include "base/json.h"
#include "cli/cli.h"

const struct flag flags_send[] = {
    {"key", "KEY", "the business key: what makes two sends the same one; not needed where the queue derives it"},
    {"file", "FILE", "read the payload from a file, - for standard input"},
    {"content-type", "TYPE", "kept and handed to the consumer"},
    {"group", "GROUP", "messages of one group are delivered one after the other"},
    {"delay", "DURATION", "not before this much later"},
    {"ttl", "DURATION", "cancel it unless it is started by then"},
    {"attr", "NAME=VALUE", "an attribute for the consumer; may be repeated"},
    {"request-id", "ID", "your own id of this attempt, shown by `hapax key show`"},
    {"wait", "DURATION", "wait for the result, at most this long"},
    {"batch", "FILE", "send the lines of an NDJSON file, - for standard input, instead of one payload"},
    {0},
};

const char about_send[] =
    "The payload is the second argument, --file, or standard input. Sending the same key again is safe: a duplicate "
    "gets\n"
    "the original's state and result. A line of a batch is {\"key\",\"payload\" or "
    "\"payload_base64\",\"content_type\"?,\n"
    "\"group\"?,\"delay\"?,\"ttl\"?,\"attrs\"?,\"request_id\"?}; bad lines fail alone and make the exit code 1.";

/* ---- one */

static bool attrs_read(struct cli *cli, struct buf *list, struct buf *text) {
    const char *given;
    size_t count = 0;
    for (size_t at = 0; (given = args_next(cli, "attr", &at)); count++) {
        if (!strchr(given, '=')) return args_wrong(cli, "--attr \"%s\" is not NAME=VALUE", given), false;
        buf_add(text, given, strlen(given) + 1);
    }
    /* Pointers only now: the text has stopped moving. */
    char *p = text->p;
    for (size_t i = 0; i < count; i++) {
        size_t n = strlen(p) + 1;
        char *value = strchr(p, '=');
        *value = '\0';
        hx_attr attr = {p, value + 1};
        buf_add(list, &attr, sizeof(attr));
        p += n;
    }
    return true;
}

static void show_receipt(const hx_receipt *r) {
    struct buf b = {0};
    buf_slice_add(&b, r->outcome == HX_ACCEPTED ? SL("accepted ")
                      : r->outcome == HX_HELD   ? SL("another payload under a known key: kept apart as ")
                                                : SL("duplicate of "));
    print_clean(&b, slice_str(r->id), false);
    buf_printf(&b, ": %s", hx_state_text(r->state));
    if (r->reason) {
        buf_lit(&b, " (");
        print_clean(&b, slice_str(r->reason), false);
        buf_char(&b, ')');
    }
    if (r->first_seen_ms) {
        buf_lit(&b, ", first seen ");
        buf_rfc3339(&b, r->first_seen_ms);
    }
    if (r->expires_at_ms) {
        buf_lit(&b, ", remembered until ");
        buf_rfc3339(&b, r->expires_at_ms);
    }
    buf_char(&b, '\n');
    print_buf(&b);
    if (r->result.size) print_body(r->result);
}

static int send_failed(struct cli *cli, const hx_draft *draft, const hx_error *err, hx_bytes problem) {
    hx_error here = *err;
    if (!draft->key && strcmp(err->code, "key_missing") == 0) /* the broker speaks of its header field */
        snprintf(here.detail, sizeof(here.detail),
                 "name the intent with --key, e.g. --key order-1234-capture: repeats of a key take effect once");
    return cli_failed(cli, &here, problem);
}

static int send_draft(struct cli *cli, const hx_draft *draft, i64 wait) {
    hx_client *client = cli_client(cli, 0);
    if (!client) return EXIT_USAGE;
    hx_receipt receipt;
    hx_error err;
    hx_status st = hx_send(client, args_word(cli, 0), draft, wait, &receipt, &err);
    int rc = EXIT_DONE;
    if (st != HX_OK)
        rc = send_failed(cli, draft, &err, receipt.json);
    else if (cli->json)
        print_json(receipt.json);
    else
        show_receipt(&receipt);
    hx_receipt_free(&receipt);
    return rc;
}

static int send_one(struct cli *cli) {
    i64 wait = 0;
    struct buf payload = {0}, attrs = {0}, text = {0};
    hx_draft draft = {.key = args_get(cli, "key"),
                      .content_type = args_get(cli, "content-type"),
                      .group = args_get(cli, "group"),
                      .request_id = args_get(cli, "request-id")};
    if (!args_duration(cli, "delay", &draft.delay_ms) || !args_duration(cli, "ttl", &draft.ttl_ms) ||
        !args_duration(cli, "wait", &wait))
        return EXIT_USAGE;
    int rc = EXIT_USAGE;
    bool given;
    if (attrs_read(cli, &attrs, &text)) {
        draft.attrs = (const hx_attr *)(void *)attrs.p;
        draft.attr_count = attrs.len / sizeof(hx_attr);
        if (cli_payload(cli, 1, true, &payload, &given)) {
            draft.payload = hx_bytes_of(payload.p, payload.len);
            rc = send_draft(cli, &draft, wait);
        }
    }
    buf_free(&payload);
    buf_free(&attrs);
    buf_free(&text);
    return rc;
}

/* ---- many */

enum { LINES_MAX = 1000, BYTES_MAX = 4 << 20 };

enum { REASONS_MAX = 20 };

struct tally {
    u64 line, accepted, duplicate, held, refused;
    u64 unshown; /* refused for yet other reasons */
    struct reason {
        struct buf text;
        u64 first, last, count;
    } reasons[REASONS_MAX];
    u32 reason_count;
};

/* Each reason is told once, with the first line it met; a batch that is wrong throughout has one reason. */
static void tally_refused(struct tally *t, slice text) {
    u32 i = 0;
    t->refused++;
    while (i < t->reason_count && !slice_eq(buf_slice(&t->reasons[i].text), text)) i++;
    if (i == REASONS_MAX) {
        t->unshown++;
        return;
    }
    struct reason *r = &t->reasons[i];
    if (i == t->reason_count) {
        t->reason_count++;
        r->first = t->line;
        buf_slice_add(&r->text, text);
        say_wrong("line %llu: %.*s", (unsigned long long)t->line, (int)text.n, text.p);
    }
    r->last = t->line;
    r->count++;
}

static void tally_rest(struct tally *t) {
    for (u32 i = 0; i < t->reason_count; i++) {
        struct reason *r = &t->reasons[i];
        if (r->count > 1)
            say_wrong("as line %llu: %llu more, the last is line %llu", (unsigned long long)r->first,
                      (unsigned long long)r->count - 1, (unsigned long long)r->last);
        buf_free(&r->text);
    }
    if (t->unshown) say_wrong("%llu more for other reasons; --json has them all", (unsigned long long)t->unshown);
}

/* One line of the reply. */
static void tally_line(struct tally *t, slice line) {
    struct json j;
    slice name, s, outcome = SL(""), code = SL(""), detail = SL("");
    json_init(&j, line);
    if (json_object(&j)) {
        while (json_member(&j, &name)) {
            if (json_peek(&j) != JSON_STRING)
                json_skip(&j);
            else if (!json_string(&j, &s))
                break;
            else if (slice_eq(name, SL("outcome")))
                outcome = s;
            else if (slice_eq(name, SL("code")))
                code = s;
            else if (slice_eq(name, SL("detail")))
                detail = s;
        }
    }
    t->line++;
    if (slice_eq(outcome, SL("accepted")))
        t->accepted++;
    else if (slice_eq(outcome, SL("duplicate")))
        t->duplicate++;
    else if (slice_eq(outcome, SL("held")))
        t->held++;
    else {
        struct buf text = {0}, changed = {0};
        print_names(&changed, line, "changed");
        buf_printf(&text, "%.*s: %.*s", (int)code.n, code.p, (int)detail.n, detail.p);
        if (changed.len) buf_printf(&text, "; changed: %.*s", (int)changed.len, changed.p);
        tally_refused(t, buf_slice(&text));
        buf_free(&text);
        buf_free(&changed);
    }
    json_free(&j);
}

static void tally_reply(struct tally *t, slice body) {
    while (body.n) {
        slice line, rest;
        slice_cut(body, '\n', &line, &rest);
        tally_line(t, line);
        body = rest;
    }
}

static void tally_print(const struct tally *t) {
    printf("accepted %llu, duplicate %llu, ", (unsigned long long)t->accepted, (unsigned long long)t->duplicate);
    if (t->held) printf("held %llu, ", (unsigned long long)t->held);
    printf("refused %llu\n", (unsigned long long)t->refused);
}

/* A piece of whole lines from the front of *rest. */
static slice next_piece(slice *rest) {
    size_t at = 0;
    for (int lines = 0; lines < LINES_MAX && at < rest->n; lines++) {
        const char *end = memchr(rest->p + at, '\n', rest->n - at);
        size_t next = end ? (size_t)(end - rest->p) + 1 : rest->n;
        if (at && next > BYTES_MAX) break;
        at = next;
    }
    slice piece = slice_of(rest->p, at);
    *rest = slice_of(rest->p + at, rest->n - at);
    return piece;
}

static int send_piece(struct cli *cli, const char *target, slice piece, struct tally *tally) {
    hx_request request = {.method = "POST",
                          .target = target,
                          .body = hx_bytes_of(piece.p, piece.n),
                          .content_type = "application/x-ndjson"};
    hx_reply reply;
    hx_error err;
    hx_status st = hx_call(cli->client, &request, &reply, &err);
    int rc = EXIT_DONE;
    if (st != HX_OK) {
        rc = cli_failed(cli, &err, reply.body);
        say("stopped after line %llu", (unsigned long long)tally->line);
    } else {
        if (cli->json) print_json(reply.body);
        tally_reply(tally, slice_of(reply.body.data, reply.body.size));
    }
    hx_reply_free(&reply);
    return rc;
}

/* The file or pipe, a few megabytes of it at a time: it may be larger than memory, or never end. */
struct source {
    const char *name;
    int fd;
    struct buf held; /* read, and not sent */
    bool over, failed;
};

static bool source_open(struct source *s, const char *path) {
    bool standard = strcmp(path, "-") == 0;
    *s = (struct source){.name = standard ? "standard input" : path};
    s->fd = standard ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (s->fd < 0) say("cannot open %s: %s", path, strerrordesc_np(errno));
    if (s->fd >= 0 && standard && isatty(s->fd)) say("reading from the terminal; end with Ctrl-D");
    return s->fd >= 0;
}

/* Waits for the first bytes, and takes with them what is there already. */
static void source_read(struct source *s) {
    struct pollfd more = {.fd = s->fd, .events = POLLIN};
    do {
        buf_grow(&s->held, BYTES_MAX);
        ssize_t n = read(s->fd, s->held.p + s->held.len, BYTES_MAX);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) say("cannot read %s: %s", s->name, strerrordesc_np(errno));
        s->failed = n < 0;
        s->over = n <= 0;
        if (n > 0) s->held.len += (size_t)n;
    } while (!s->over && s->held.len < BYTES_MAX && poll(&more, 1, 0) > 0);
}

/* The whole lines of what is held. At the end, and of a line that is longer than any the broker takes, what there is. */
static slice source_lines(const struct source *s) {
    const char *end = s->held.len ? memrchr(s->held.p, '\n', s->held.len) : NULL;
    if ((s->over && !s->failed) || (!end && s->held.len >= 2ull * BYTES_MAX)) return buf_slice(&s->held);
    return slice_of(s->held.p, end ? (size_t)(end - s->held.p) + 1 : 0);
}

static int send_lines(struct cli *cli, const char *target, struct source *s, struct tally *tally) {
    int rc = EXIT_DONE;
    while (rc == EXIT_DONE && !s->over) {
        source_read(s);
        slice lines = source_lines(s);
        for (slice rest = lines; rest.n && rc == EXIT_DONE;) rc = send_piece(cli, target, next_piece(&rest), tally);
        s->held.len -= lines.n;
        memmove(s->held.p, s->held.p + lines.n, s->held.len);
    }
    return rc == EXIT_DONE && s->failed ? EXIT_USAGE : rc;
}

static int send_batch(struct cli *cli) {
    struct buf target = {0};
    struct source source;
    struct tally tally = {0};
    if (args_word(cli, 1) || args_has(cli, "key") || args_has(cli, "file"))
        return args_wrong(cli, "with --batch, keys and payloads are in the file");
    if (!cli_client(cli, 0) || !source_open(&source, args_get(cli, "batch"))) return EXIT_USAGE;
    buf_lit(&target, "/v1/queues/");
    buf_percent_encode(&target, slice_str(args_word(cli, 0)));
    buf_add(&target, "/batch", sizeof("/batch"));
    int rc = send_lines(cli, target.p, &source, &tally);
    tally_rest(&tally);
    if (!cli->json) tally_print(&tally);
    if (source.fd != STDIN_FILENO) close(source.fd);
    buf_free(&source.held);
    buf_free(&target);
    return rc == EXIT_DONE && tally.refused ? EXIT_REFUSED : rc;
}

int cmd_send(struct cli *cli) {
    return args_has(cli, "batch") ? send_batch(cli) : send_one(cli);
}
