/* tail: events as they come, a line for each. */
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "cli/cli.h"

enum { SILENCE_MS = 45000, RETRY_MS = 1000, KIND_WIDTH = 9, KEY_LEAST = 24, BESIDE_KEY = 56 };

const struct flag flags_tail[] = {
    {"key", "KEY", "of this key only"},
    {"kind", "KINDS", "of these kinds only, with commas between them"},
    {0},
};
const char about_tail[] =
    "One line for each event, once it is on the broker's disk: when, what, queue, key, and the rest. With\n"
    "--json the event's object. Kinds: accepted, duplicate, conflict, delivered, settled, failed, dead, held,\n"
    "resolved, expired, alert, audit, config.\n"
    "When the broker is gone it is tried again until it is back, and goes on where it was. What cannot be told\n"
    "any more is said as a gap. Ends with Ctrl-C.";

struct tail {
    struct cli *cli;
    struct buf last_id, data; /* data: of the event being read */
    bool away;                /* the broker is, and it was said */
};

static void put_member(struct buf *b, slice event, const char *name, const char *before, const char *after) {
    struct buf text = {0};
    if (member_text(event, name, &text) && text.len) {
        buf_slice_add(b, slice_str(before));
        print_clean(b, buf_slice(&text), false);
        buf_slice_add(b, slice_str(after));
    }
    buf_free(&text);
}

/* What is special about it. */
static void put_rest(struct buf *b, slice event) {
    static const struct {
        const char *name, *before, *after;
    } parts[] = {{"delivery", " ", ""}, {"arrival", " ", ""}, {"state", " ", ""},      {"class", " ", ""},
                 {"decision", " ", ""}, {"name", " ", ""},    {"what", " ", ""},       {"consumer", " to ", ""},
                 {"by", " by ", ""},    {"who", " by ", ""},  {"reason", " \"", "\""}, {"request_id", " request ", ""}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        bool ends = !member_is(event, "kind", SL("delivered")) && i == 7;
        put_member(b, event, parts[i].name, ends ? " from " : parts[i].before, parts[i].after);
    }
    if (member_raw(event, "age_ms").n) {
        buf_lit(b, " after ");
        buf_duration(b, member_number(event, "age_ms"));
    }
    if (member_raw(event, "missed").n) buf_printf(b, " %lld missed", (long long)member_number(event, "missed"));
}

/* The hour and the rest of a time; what has another form is left out. */
static void put_clock(struct buf *b, slice event) {
    struct buf at = {0};
    member_text(event, "at", &at);
    if (at.len == 24)
        print_clean(b, slice_of(at.p + 11, 12), false);
    else
        buf_lit(b, "            ");
    buf_free(&at);
}

static void put_key(struct buf *b, slice event, size_t columns) {
    struct buf key = {0};
    size_t most = columns == SIZE_MAX ? SIZE_MAX : columns > BESIDE_KEY + KEY_LEAST ? columns - BESIDE_KEY : KEY_LEAST;
    column_key_alone(&key, event);
    if (key.len) buf_char(b, ' ');
    text_cut(b, buf_slice(&key), most);
    buf_free(&key);
}

static enum tone tone_of(slice event, slice kind) {
    struct buf state = {0};
    member_text(event, "state", &state);
    enum tone tone = text_tone_of(state.len ? buf_slice(&state) : kind);
    if (slice_eq(kind, SL("gap"))) tone = TONE_DOUBT;
    buf_free(&state);
    return tone;
}

static void put_line(struct buf *out, slice event, bool with_queue) {
    struct buf line = {0}, kind = {0};
    size_t columns = text_columns(STDOUT_FILENO);
    put_clock(out, event);
    buf_char(out, ' ');
    put_member(&kind, event, "kind", "", "");
    text_tone(out, tone_of(event, buf_slice(&kind)), buf_slice(&kind), STDOUT_FILENO);
    for (size_t n = kind.len; n < KIND_WIDTH; n++) buf_char(&line, ' ');
    if (with_queue) put_member(&line, event, "queue", " ", "");
    put_key(&line, event, columns);
    put_rest(&line, event);
    size_t taken = 13 + kind.len;
    text_cut(out, buf_slice(&line), columns == SIZE_MAX ? SIZE_MAX : columns > taken ? columns - taken : 1);
    buf_char(out, '\n');
    buf_free(&line);
    buf_free(&kind);
}

static bool show(struct tail *t) {
    struct buf out = {0};
    if (t->cli->json)
        print_json((hx_bytes){t->data.p, t->data.len});
    else
        put_line(&out, buf_slice(&t->data), args_word(t->cli, 0) == NULL);
    print_clean_buf(&out);
    return print_flush();
}

static bool field(slice line, slice name, struct buf *out) {
    if (!slice_starts(line, name)) return false;
    buf_reset(out);
    buf_slice_add(out, slice_of(line.p + name.n, line.n - name.n));
    return true;
}

static bool on_line(void *ctx, hx_bytes bytes) {
    struct tail *t = ctx;
    slice line = slice_of(bytes.data, bytes.size);
    if (t->away) say("connected again");
    t->away = false;
    if (line.n) {
        if (!field(line, SL("id: "), &t->last_id)) field(line, SL("data: "), &t->data);
        return true;
    }
    bool more = t->data.len == 0 || show(t);
    buf_reset(&t->data);
    return more;
}

static void put_target(struct cli *cli, struct buf *b) {
    static const char *const filters[] = {"key", "kind", NULL};
    buf_lit(b, "/v1/events");
    cli_query(cli, b, filters);
    const char *queue = args_word(cli, 0);
    if (!queue) return;
    b->len = strlen(b->p); /* the NUL goes to the end again */
    buf_slice_add(b, memchr(b->p, '?', b->len) ? SL("&queue=") : SL("?queue="));
    buf_percent_encode(b, slice_str(queue));
    buf_char(b, '\0');
}

/* Its first message may be what is waited for; but whoever mistyped it would wait for ever. */
static void say_if_absent(struct cli *cli) {
    struct buf target = {0};
    hx_reply reply = {0};
    hx_error err;
    const char *queue = args_word(cli, 0);
    if (!queue) return;
    cli_queue_target(&target, queue, "", NULL, "");
    hx_request request = {.method = "GET", .target = target.p};
    if (hx_call(cli->client, &request, &reply, &err) != HX_OK && strcmp(err.code, "no_such_queue") == 0)
        say("there is no queue %s so far", queue);
    hx_reply_free(&reply);
    buf_free(&target);
}

/* One connection, from the last id on. */
static hx_status follow(struct tail *t, const char *target, int stop_fd, hx_error *err) {
    char id[128];
    snprintf(id, sizeof id, "%.*s", (int)t->last_id.len, t->last_id.p);
    hx_attr resume = {.name = "Last-Event-ID", .value = id};
    hx_request request = {.method = "GET", .target = target, .fields = &resume, .field_count = id[0] ? 1 : 0};
    buf_reset(&t->data);
    return hx_follow(t->cli->client, &request, SILENCE_MS, stop_fd, on_line, t, err);
}

/* It may come back by itself. */
static bool passes(const struct tail *t, const hx_error *err) {
    if (err->status == HX_OK) return true; /* the broker ended it */
    return t->last_id.len && (err->status == HX_UNREACHABLE || err->retryable);
}

int cmd_tail(struct cli *cli) {
    struct tail t = {.cli = cli};
    struct buf target = {0};
    hx_error err;
    if (!cli_client(cli, 0)) return EXIT_USAGE;
    int stop_fd = cli_stop_fd(), rc = EXIT_DONE;
    signal(SIGPIPE, SIG_DFL); /* whoever read this has seen enough */
    put_target(cli, &target);
    say_if_absent(cli);
    for (bool stopped = false; !stopped;) {
        hx_status st = follow(&t, target.p, stop_fd, &err);
        if (st == HX_CANCELLED || ferror(stdout)) break;
        if (!passes(&t, &err)) {
            rc = cli_failed(cli, &err, (hx_bytes){0});
            break;
        }
        if (!t.away) say("the broker is gone; trying again");
        t.away = true;
        stopped = cli_stopped(stop_fd, RETRY_MS);
    }
    close(stop_fd);
    buf_free(&t.last_id);
    buf_free(&t.data);
    buf_free(&target);
    return rc;
}
