/* hapax replay: send again what was accepted before, through the normal door, and see that nothing happens.
 *
 * What was not checked is not green: a message whose payload is gone counts against the rate, and none of them may be. The
 * drill is in the audit trail before its first message is sent.
 *
 * It has two halves. First everything to be sent is gathered into a spool file of batch lines: then the number is
 * known, the list cannot change under way, and --dry-run ends here. Second, the lines are sent in chunks and the
 * answers counted: a duplicate is a no-op, which is what a replay should be; anything else is a finding.
 *
 * A chunk whose answer was lost is sent again, and then what the first try may have admitted comes back as a duplicate.
 * Its age tells: what is younger than the first try was not there before, and counts as new. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/json.h"
#include "cli/cli.h"

enum {
    CHUNK_LINES = 500,
    CHUNK_BYTES = 1 << 20,
    PATIENCE_MS = 30000, /* with a broker that is away; backpressure is waited out */
    WAIT_MS = 1000,
    YOUNGER_MS = 1000,    /* the broker's time of an arrival may lie a little before it */
    NAMED_MAX = 10,       /* findings named one by one */
    WHOLE = 100000,       /* 100 %, in thousandths of a percent */
    REPORT_EVERY_MS = 100 /* the progress bar */
};

const struct flag flags_replay[] = {
    {"since", "WHEN", "what was accepted in the last 24h, 7d, ..., or since a time like 2026-01-31T12:00:00Z"},
    {"file", "FILE", "the lines of an NDJSON file instead, as `hapax send --batch` takes them; - for standard input"},
    {"rate", "N", "at most this many a second"},
    {"dry-run", NULL, "only count what would be sent"},
    {"expect", "PERCENT", "the no-op rate that is a success, default 100%"},
    {"approved-by", "NAME", "who approved this; kept with every arrival and in the audit"},
    FLAGS_SIGNED,
    {0},
};
const char about_replay[] =
    "Sends again what the queue accepted before, as far as its payloads are kept (keep_payload), and counts the "
    "answers.\n"
    "no-op: a duplicate, nothing was done. conflict: the key is known with another payload. new: it was accepted and "
    "will\n"
    "be done: its key was forgotten or never known. unchecked: its payload is no longer kept. Backpressure is waited "
    "out.\n"
    "Running it again is safe. at_most_once queues are not replayed: what was handed out there is not remembered.\n"
    "Exit code 0: all was checked and the no-op rate is at least --expect; 1: not so, or there was nothing to send; 3: "
    "not\n"
    "all of it is known.";

struct drill {
    struct cli *cli;
    const char *queue;
    bool derives_key, derives_group; /* the queue does, from the payload */
    char request_id[160], note[640]; /* with the arrivals; in the audit */
    FILE *spool;
    u64 lines, bytes, gone; /* in the spool; payloads no longer kept */
    u64 sent, no_op, conflict, fresh, refused, named;
    i64 rate, expect, began_ms, reported_ms;
    bool told; /* that there is something to wait for */
};

static void pause_ms(i64 ms) {
    if (ms <= 0) return;
    struct timespec t = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000L};
    while (nanosleep(&t, &t) < 0 && errno == EINTR) continue;
}

/* ---- gathering */

static void spool_line(struct drill *d, struct buf *line) {
    buf_char(line, '\n');
    fwrite(line->p, 1, line->len, d->spool);
    d->lines++;
    d->bytes += line->len;
    buf_reset(line);
}

/* A listed message as a line of a batch. */
static void spool_item(void *ctx, slice item) {
    struct drill *d = ctx;
    struct buf line = {0};
    buf_char(&line, '{');
    if (!accepted_payload(&line, item)) {
        d->gone++;
        buf_free(&line);
        return;
    }
    if (!d->derives_key) accepted_copy(&line, item, "key");
    accepted_copy(&line, item, "credential"); /* in a queue whose keys are their senders' */
    if (!d->derives_group) accepted_copy(&line, item, "group");
    json_put_member(&line, "request_id", slice_str(d->request_id));
    buf_char(&line, '}');
    spool_line(d, &line);
    buf_free(&line);
}

/* A line of the user's file, with the approver if it names no request of its own. What is no object goes as it is: the
 * broker refuses it by its number. */
static void spool_text(struct drill *d, slice text) {
    struct buf line = {0};
    buf_slice_add(&line, text);
    if (text.n > 2 && text.p[0] == '{' && text.p[text.n - 1] == '}' && !member_raw(text, "request_id").n) {
        line.len--;
        json_put_member(&line, "request_id", slice_str(d->request_id));
        buf_char(&line, '}');
    }
    spool_line(d, &line);
    buf_free(&line);
}

static bool gather_file(struct drill *d, int *rc) {
    struct buf file = {0};
    bool ok = cli_read_file(args_get(d->cli, "file"), &file);
    slice line, rest = buf_slice(&file);
    while (ok && rest.n) {
        slice_cut(rest, '\n', &line, &rest);
        line = slice_trim(line);
        if (line.n && line.p[line.n - 1] == '\r') line.n--;
        if (line.n) spool_text(d, line);
    }
    buf_free(&file);
    *rc = EXIT_USAGE;
    return ok;
}

/* ---- sending */

static void show_bar(struct drill *d, bool last) {
    enum { WIDTH = 30 };
    static const char full[WIDTH + 1] = "##############################",
                                   empty[WIDTH + 1] = "..............................";
    i64 now = clock_mono_ms();
    if (!isatty(STDERR_FILENO) || (!last && now - d->reported_ms < REPORT_EVERY_MS)) return;
    d->reported_ms = now;
    int part = (int)(d->sent * WIDTH / (d->lines ? d->lines : 1));
    i64 ms = now - d->began_ms > 0 ? now - d->began_ms : 1;
    fprintf(stderr, "\r\033[K[%.*s%.*s] %llu of %llu, %llu no-op, %llu a second", part, full, WIDTH - part, empty,
            (unsigned long long)d->sent, (unsigned long long)d->lines, (unsigned long long)d->no_op,
            (unsigned long long)(d->sent * 1000 / (u64)ms));
    if (last) fputc('\n', stderr);
    fflush(stderr);
}

/* The first findings by name: an operator wants to look them up. */
static void name_finding(struct drill *d, const char *what, slice answer) {
    struct buf key = {0}, code = {0}, detail = {0}, changed = {0};
    if (d->named++ >= NAMED_MAX) return;
    if (isatty(STDERR_FILENO)) fputs("\r\033[K", stderr);
    member_text(answer, "key", &key);
    member_text(answer, "code", &code);
    member_text(answer, "detail", &detail);
    print_names(&changed, answer, "changed");
    if (key.len)
        say("line %llu: %s: %.*s", (unsigned long long)d->sent, what, (int)key.len, key.p);
    else if (changed.len)
        say("line %llu: %s: changed: %.*s", (unsigned long long)d->sent, what, (int)changed.len, changed.p);
    else
        say("line %llu: %s: %.*s: %.*s", (unsigned long long)d->sent, what, (int)code.len, code.p, (int)detail.len,
            detail.p);
    buf_free(&key);
    buf_free(&code);
    buf_free(&detail);
    buf_free(&changed);
}

static void count(struct drill *d, u64 *counter, const char *finding, slice answer) {
    d->sent++;
    ++*counter;
    if (finding) name_finding(d, finding, answer);
}

/* One line's answer. false: it is to be sent again. since_ms: how long ago an unanswered try was made, -1: none was. */
static bool line_answered(struct drill *d, slice answer, i64 since_ms) {
    if (member_is(answer, "outcome", SL("accepted"))) {
        count(d, &d->fresh, "new", answer);
    } else if (member_is(answer, "outcome", SL("duplicate"))) {
        bool own = since_ms >= 0 && member_number(answer, "age_ms") <= since_ms + YOUNGER_MS;
        count(d, own ? &d->fresh : &d->no_op, own ? "new" : NULL, answer);
    } else if (member_is(answer, "outcome", SL("held")) || member_is(answer, "code", SL("key_reused"))) {
        count(d, &d->conflict, "conflict", answer);
    } else if (slice_eq(member_raw(answer, "retryable"), SL("true"))) {
        return false;
    } else {
        count(d, &d->refused, "refused", answer);
    }
    return true;
}

/* Leaves in *hand the lines to be sent again. */
static void chunk_answered(struct drill *d, struct buf *hand, slice answers, i64 since_ms) {
    struct buf left = {0};
    slice lines = buf_slice(hand), line, answer;
    while (lines.n) {
        slice_cut(lines, '\n', &line, &lines);
        slice_cut(answers, '\n', &answer, &answers);
        if (line_answered(d, answer, since_ms)) continue;
        buf_slice_add(&left, line);
        buf_char(&left, '\n');
    }
    buf_free(hand);
    *hand = left;
}

/* One request; what has its answer leaves the hand. lost_ms: when a try was made whose answer was lost, 0: none was. */
static hx_error try_chunk(struct drill *d, const char *target, struct buf *hand, i64 lost_ms) {
    hx_request request = {.method = "POST",
                          .target = target,
                          .body = hx_bytes_of(hand->p, hand->len),
                          .content_type = "application/x-ndjson",
                          .once = true};
    hx_reply reply;
    hx_error err;
    if (hx_call(d->cli->client, &request, &reply, &err) == HX_OK) {
        i64 since_ms = lost_ms ? clock_mono_ms() - lost_ms : -1;
        chunk_answered(d, hand, slice_of(reply.body.data, reply.body.size), since_ms);
    }
    hx_reply_free(&reply);
    return err;
}

/* May the rest be taken a little later? */
static bool passes(const hx_error *err) {
    return err->status == HX_OK || err->status == HX_BUSY || err->status == HX_UNAVAILABLE || err->status == HX_FULL ||
           err->status == HX_UNREACHABLE || err->status == HX_UNKNOWN;
}

static void wait_for_room(struct drill *d, const hx_error *err) {
    bool away = err->status == HX_UNREACHABLE || err->status == HX_UNKNOWN;
    if (!d->told)
        say(away ? "the broker is away: waiting for it" : "the broker presses back: waiting until it takes more");
    d->told = true;
    pause_ms(err->retry_after_ms > 0 ? err->retry_after_ms : WAIT_MS);
}

/* Ctrl-C: what was asked gets its answer, and the count is told. A second one ends it as usual. */
static volatile sig_atomic_t stop_asked;

static void ask_to_stop(int number) {
    (void)number;
    stop_asked = 1;
}

/* Until every line has its answer. */
static int send_chunk(struct drill *d, const char *target, struct buf *hand) {
    i64 began = clock_mono_ms(), heard = began, lost = 0;
    while (hand->len) {
        hx_error err = try_chunk(d, target, hand, lost);
        if (err.applied == HX_APPLIED_UNKNOWN) lost = began;
        if (err.status == HX_OK || err.status == HX_BUSY) heard = clock_mono_ms();
        if (!passes(&err) || clock_mono_ms() - heard > PATIENCE_MS) return cli_failed(d->cli, &err, (hx_bytes){0});
        if (hand->len && stop_asked) return EXIT_REFUSED;
        if (hand->len) wait_for_room(d, &err);
        show_bar(d, false);
    }
    return stop_asked && d->sent < d->lines ? EXIT_REFUSED : EXIT_DONE;
}

/* The next lines of the spool. */
static void take_chunk(struct drill *d, struct buf *hand) {
    char *line = NULL;
    size_t room = 0, most = CHUNK_LINES;
    if (d->rate && (d->rate + 3) / 4 < CHUNK_LINES) most = (size_t)(d->rate + 3) / 4; /* four a second, and evenly */
    for (size_t n = 0; n < most && hand->len < CHUNK_BYTES; n++) {
        ssize_t got = getline(&line, &room, d->spool);
        if (got <= 0) break;
        buf_add(hand, line, (size_t)got);
    }
    free(line);
}

static int send_all(struct drill *d) {
    struct buf target = {0}, hand = {0};
    int rc = EXIT_DONE;
    cli_queue_target(&target, d->queue, "", NULL, "/batch?drill=true");
    rewind(d->spool);
    d->began_ms = clock_mono_ms();
    sigaction(SIGINT, &(struct sigaction){.sa_handler = ask_to_stop, .sa_flags = (int)SA_RESETHAND}, NULL);
    for (;;) {
        take_chunk(d, &hand);
        if (!hand.len || (rc = send_chunk(d, target.p, &hand)) != EXIT_DONE) break;
        if (d->rate) pause_ms(d->began_ms + (i64)d->sent * 1000 / d->rate - clock_mono_ms());
    }
    show_bar(d, true);
    if (rc != EXIT_DONE) say("stopped after %llu of %llu", (unsigned long long)d->sent, (unsigned long long)d->lines);
    buf_free(&target);
    buf_free(&hand);
    return rc;
}

/* ---- the result */

/* Of all there is to check, not only of what could be. */
static u64 total(const struct drill *d) {
    return d->lines + d->gone;
}

static i64 no_op_rate(const struct drill *d) {
    u64 all = total(d);
    return all ? (i64)(d->no_op * WHOLE / all) : 0;
}

static void put_percent(struct buf *b, i64 thousandths) {
    buf_printf(b, "%lld.%03lld", (long long)(thousandths / 1000), (long long)(thousandths % 1000));
    while (b->p[b->len - 1] == '0') b->len--;
    if (b->p[b->len - 1] == '.') b->len--;
}

static void put_result_json(const struct drill *d, bool ok, struct buf *b) {
    const char *approver = args_get(d->cli, "approved-by");
    buf_char(b, '{');
    json_put_member(b, "queue", slice_str(d->queue));
    json_put_member_i64(b, "sent", (i64)d->sent);
    json_put_member_i64(b, "no_op", (i64)d->no_op);
    json_put_member_i64(b, "conflict", (i64)d->conflict);
    json_put_member_i64(b, "new", (i64)d->fresh);
    json_put_member_i64(b, "refused", (i64)d->refused);
    json_put_member_i64(b, "payload_gone", (i64)d->gone);
    json_put_member_i64(b, "checked", (i64)d->sent);
    json_put_member_i64(b, "total", (i64)total(d));
    json_put_name(b, "no_op_percent");
    put_percent(b, no_op_rate(d));
    json_put_name(b, "expected_percent");
    put_percent(b, d->expect);
    json_put_member_bool(b, "ok", ok);
    if (approver) json_put_member(b, "approved_by", slice_str(approver));
    buf_lit(b, "}\n");
}

static void put_result_text(const struct drill *d, struct buf *b) {
    const struct {
        const char *name;
        u64 n;
    } rows[] = {{"no-op", d->no_op},
                {"conflict", d->conflict},
                {"new", d->fresh},
                {"refused", d->refused},
                {"unchecked", total(d) - d->sent}};
    buf_printf(b, "%-12s%llu of %llu\n", "checked", (unsigned long long)d->sent, (unsigned long long)total(d));
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        buf_printf(b, "%-12s%llu\n", rows[i].name, (unsigned long long)rows[i].n);
    buf_printf(b, "%-12s", "no-op rate");
    put_percent(b, no_op_rate(d));
    buf_lit(b, " %, expected ");
    put_percent(b, d->expect);
    buf_lit(b, " %\n");
}

static int result(const struct drill *d, int rc) {
    bool ok = rc == EXIT_DONE && d->sent && !d->gone && d->no_op * WHOLE >= (u64)d->expect * d->sent;
    struct buf b = {0};
    if (d->cli->json && rc == EXIT_DONE)
        put_result_json(d, ok, &b);
    else if (!d->cli->json)
        put_result_text(d, &b);
    print_buf(&b);
    if (d->gone)
        say("checked %llu of %llu: the payloads of the others are no longer kept (keep_payload)",
            (unsigned long long)d->sent, (unsigned long long)total(d));
    if (rc == EXIT_DONE && !d->sent) say("nothing was sent");
    return rc != EXIT_DONE ? rc : ok ? EXIT_DONE : EXIT_REFUSED;
}

static int dry_result(const struct drill *d) {
    struct buf b = {0};
    if (d->cli->json) {
        buf_char(&b, '{');
        json_put_member(&b, "queue", slice_str(d->queue));
        json_put_member_bool(&b, "dry_run", true);
        json_put_member_i64(&b, "would_send", (i64)d->lines);
        json_put_member_i64(&b, "bytes", (i64)d->bytes);
        json_put_member_i64(&b, "payload_gone", (i64)d->gone);
        buf_lit(&b, "}\n");
    } else {
        buf_printf(&b, "would send %llu message%s, %llu byte%s\n", (unsigned long long)d->lines, text_plural(d->lines),
                   (unsigned long long)d->bytes, text_plural(d->bytes));
        if (d->gone)
            buf_printf(&b,
                       "%llu more have no payload any longer: they cannot be checked, and the drill will not pass\n",
                       (unsigned long long)d->gone);
    }
    print_buf(&b);
    return d->lines ? EXIT_DONE : EXIT_REFUSED;
}

/* ---- the whole */

/* "98%", "98" or "99.5%", in thousandths of a percent. */
static bool read_percent(const struct cli *cli, i64 *out) {
    const char *text = args_get(cli, "expect");
    if (!text) return true;
    slice s = slice_str(text), whole, part;
    u64 w = 0, p = 0;
    if (s.n && s.p[s.n - 1] == '%') s.n--;
    bool point = slice_cut(s, '.', &whole, &part);
    bool ok = slice_u64(whole, &w) && w <= 100 && (!point || (part.n <= 3 && slice_u64(part, &p)));
    for (size_t i = part.n; i < 3; i++) p *= 10;
    *out = (i64)(w * 1000 + p);
    if (ok && *out <= WHOLE) return true;
    args_wrong(cli, "--expect \"%s\" is not a percentage like 98%% or 99.5%%", text);
    return false;
}

static bool read_approver(struct drill *d) {
    const char *approver = args_get(d->cli, "approved-by");
    slice s = slice_str(approver);
    if (s.n > 100 || !utf8_valid(s) || has_control(s))
        return args_wrong(d->cli, "--approved-by is not a name of at most 100 bytes"), false;
    const char *note = args_get(d->cli, "note");
    snprintf(d->request_id, sizeof(d->request_id), s.n ? "replay, approved by %s" : "replay", approver);
    int n = snprintf(d->note, sizeof(d->note), "%s%s%s%s", s.n ? "approved by " : "", s.n ? approver : "",
                     s.n && note ? ": " : "", note ? note : "");
    if (n >= (int)sizeof(d->note)) return args_wrong(d->cli, "--note is too long"), false;
    return true;
}

/* Is a repeat recognised there? If not, a replay is no drill: it does the work again. */
static bool is_repeatable(const struct drill *d, slice rules) {
    if (member_is(rules, "semantics", SL("at_most_once"))) {
        say("%s is at_most_once: what was handed out is not remembered, and would be handed out again. Nothing was "
            "sent.",
            d->queue);
        return false;
    }
    if (!member_is(rules, "semantics", SL("at_least_once")) || args_has(d->cli, "expect")) return true;
    say("%s is at_least_once: every message would be appended once more. With --expect 0%% it is done.", d->queue);
    return false;
}

/* What the queue makes of a message by itself is left to it. false: refused or not reachable. */
static bool read_rules(struct drill *d, int *rc) {
    struct buf target = {0};
    hx_reply reply;
    cli_queue_target(&target, d->queue, "", NULL, "");
    hx_request request = {.method = "GET", .target = target.p};
    bool ok = cli_ask(d->cli, &request, &reply, rc);
    slice rules = member_raw(slice_of(reply.body.data, reply.body.size), "config");
    if (ok) {
        d->derives_key = member_raw(rules, "key").n > 0;
        d->derives_group = member_raw(rules, "order_by").n > 0;
    }
    if (ok && !is_repeatable(d, rules)) {
        *rc = EXIT_REFUSED;
        ok = false;
    }
    hx_reply_free(&reply);
    buf_free(&target);
    return ok;
}

/* Into the audit trail. false: it is not there, so nothing is sent. */
static bool announce(struct drill *d, int *rc) {
    struct buf target = {0}, body = {0};
    hx_reply reply;
    const char *since = args_get(d->cli, "since");
    cli_queue_target(&target, d->queue, "", NULL, "/drill");
    buf_char(&body, '{');
    json_put_member_i64(&body, "messages", (i64)d->lines);
    if (since) json_put_member(&body, "since", slice_str(since));
    buf_char(&body, '}');
    struct cli_decision decision = {.method = "POST", .target = target.p, .body = buf_slice(&body), .note = d->note};
    bool ok = cli_ask_signed(d->cli, &decision, &reply, rc);
    hx_reply_free(&reply);
    buf_free(&target);
    buf_free(&body);
    return ok;
}

static int run(struct drill *d) {
    int rc = EXIT_DONE;
    if (args_has(d->cli, "dry-run")) return dry_result(d);
    if (d->lines && !announce(d, &rc)) return rc;
    return result(d, send_all(d));
}

int cmd_replay(struct cli *cli) {
    struct drill d = {.cli = cli, .queue = args_word(cli, 0), .expect = WHOLE};
    int rc;
    if (!args_has(cli, "since") == !args_has(cli, "file")) return args_wrong(cli, "expected either --since or --file");
    if (!args_number(cli, "rate", 1, 1000000, &d.rate) || !read_percent(cli, &d.expect) || !read_approver(&d))
        return EXIT_USAGE;
    if (!read_rules(&d, &rc)) return rc;
    d.spool = tmpfile();
    if (!d.spool) {
        say("cannot make a temporary file: %s", strerrordesc_np(errno));
        return EXIT_REFUSED;
    }
    bool ok = args_has(cli, "file") ? gather_file(&d, &rc)
                                    : accepted_each(cli, d.queue, args_get(cli, "since"), spool_item, &d, &rc);
    if (ok && (fflush(d.spool) != 0 || ferror(d.spool))) {
        say("cannot write the temporary file: %s", strerrordesc_np(errno));
        rc = EXIT_REFUSED;
        ok = false;
    }
    if (ok) rc = run(&d);
    fclose(d.spool);
    return rc;
}
