/* hapax inject: the events of a file as a feed delivers them on a bad day. Each comes up to so many times, spread over a time, out
 * of order and with changed fields if asked for; what the broker makes of it is counted. A repeat that is accepted, or that
 * contradicts its original, is a finding: the key or the fingerprint is made of what changes from try to try. */
#include <stdio.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "config/path.h"
#include "config/template.h"

enum { NAMED_MAX = 10, REPEAT_MAX = 1000, EVENTS_MAX = 10000000, CHANGES_MAX = 16 };

const struct flag flags_inject[] = {
    {"to", "QUEUE", "where they are sent; required"},
    {"key", "TEMPLATE", "the key of each, like order:${order_id}, where the queue makes none itself"},
    {"repeat", "N", "each comes one to N times, many once or twice, few often; default 6"},
    {"over", "DURATION", "all of it within that time, default at once"},
    {"reorder", NULL, "in any order; else each first comes where it stands in the file"},
    {"change", "FIELD", "what is another value at every repeat, such as sent_at; may be repeated"},
    {"seed", "N", "the same number gives the same feed; default 1"},
    {"dry-run", NULL, "only print what would be sent: when, which line, its key"},
    {0},
};
const char about_inject[] =
    "Each line of FILE (- for standard input) is a JSON payload. Counted are accepted, duplicates, conflicts, held and "
    "refused ones.\n"
    "done again: a repeat that was accepted although its event had been. Exit code 0: no repeat was done again and "
    "none\n"
    "contradicted its original; 1: some were, or some were refused; 3: of some it is not known.";

struct event {
    slice text;
    u64 line;
    bool taken; /* one of its arrivals was accepted */
};

struct arrival {
    u32 event, nth; /* nth: 0 for the first of its event that comes */
    i64 at_ms;
};

struct feed {
    struct cli *cli;
    const char *queue;
    struct template *key;
    struct path changes[CHANGES_MAX];
    u32 change_count;
    struct arena arena;
    struct event *events;
    struct arrival *arrivals;
    u32 event_count;
    size_t arrival_count;
    u64 accepted, duplicates, conflicts, held, refused, again, unknown, named;
    int ended; /* early, with this exit code */
};

/* ---- the file */

static bool read_events(struct feed *f, slice rest) {
    slice line;
    struct json_tape tape = {0};
    struct buf events = {0};
    bool ok = true;
    for (u64 number = 1; ok && rest.n; number++) {
        slice_cut(rest, '\n', &line, &rest);
        line = slice_trim(line);
        if (line.n && line.p[line.n - 1] == '\r') line.n--;
        if (line.n == 0) continue;
        struct event e = {.text = line, .line = number};
        ok = json_tape_read(&tape, line);
        if (!ok) say_wrong("line %llu is not JSON: %s", (unsigned long long)number, tape.error);
        if (ok && ++f->event_count > EVENTS_MAX) ok = (say_wrong("more than %d events", EVENTS_MAX), false);
        buf_add(&events, &e, sizeof e);
    }
    json_tape_free(&tape);
    f->events = (struct event *)(void *)events.p;
    if (ok && f->event_count == 0) ok = (say_wrong("there is no event in it"), false);
    return ok;
}

/* ---- when each comes */

static int by_time(const void *a, const void *b) {
    const struct arrival *x = a, *y = b;
    if (x->at_ms != y->at_ms) return x->at_ms < y->at_ms ? -1 : 1;
    if (x->event != y->event) return x->event < y->event ? -1 : 1;
    return (x->nth > y->nth) - (x->nth < y->nth);
}

static void plan(struct feed *f, u64 repeat, i64 over_ms, bool reorder, u64 seed) {
    struct rng rng;
    struct buf arrivals = {0};
    rng_seed(&rng, seed);
    u64 span = (u64)(over_ms > 0 ? over_ms : f->event_count); /* at once: only the order counts */
    for (u32 i = 0; i < f->event_count; i++) {
        u64 first = reorder ? rng_below(&rng, span) : span / 2 * i / f->event_count,
            times = 1 + rng_below(&rng, 1 + rng_below(&rng, repeat)); /* as feeds do: many once or twice, few often */
        for (u32 n = 0; n < times; n++) {
            u64 at = n ? first + rng_below(&rng, span - first) : first;
            struct arrival a = {.event = i, .nth = n, .at_ms = (i64)at};
            buf_add(&arrivals, &a, sizeof a);
        }
    }
    f->arrivals = (struct arrival *)(void *)arrivals.p;
    f->arrival_count = arrivals.len / sizeof *f->arrivals;
    CHECK(f->arrivals);
    qsort(f->arrivals, f->arrival_count, sizeof *f->arrivals, by_time);
    for (size_t i = 0; over_ms <= 0 && i < f->arrival_count; i++) f->arrivals[i].at_ms = 0;
}

/* ---- one arrival */

/* Another value of the same type: a number grows, a text gets a tail. */
static void put_changed(struct buf *out, const struct json_item *item, u32 nth) {
    if (item->type == JSON_NUMBER && item->integer && item->text_len < 18)
        buf_printf(out, "%lld", strtoll(item->text, NULL, 10) + nth);
    else if (item->type == JSON_STRING)
        buf_printf(out, "%.*s~%u", (int)item->text_len, item->text, nth);
    else
        buf_printf(out, "%u", nth);
}

static void change_field(const struct path *path, u32 nth, struct buf *text) {
    struct json_tape tape = {0};
    struct buf changed = {0};
    CHECK(json_tape_read(&tape, buf_slice(text)));
    u32 i = path_find(path, &tape);
    if (i) {
        CHECK(text->p);
        size_t from = (size_t)(tape.at[i].text - tape.copy), behind = from + tape.at[i].text_len;
        buf_add(&changed, text->p, from);
        put_changed(&changed, &tape.at[i], nth);
        buf_add(&changed, text->p + behind, text->len - behind);
        buf_free(text);
        *text = changed;
    }
    json_tape_free(&tape);
}

static bool make_key(struct feed *f, const struct event *e, slice payload, struct buf *key) {
    struct payload_view view = {0};
    struct errbuf why;
    if (!f->key) return true;
    payload_view_init(&view, payload, SL("application/json"), NULL, NULL);
    bool ok = template_eval(f->key, &view, key, &why) == TEMPLATE_OK;
    if (!ok) say_wrong("line %llu makes no key: %s", (unsigned long long)e->line, why.text);
    payload_view_free(&view);
    buf_char(key, '\0');
    return ok;
}

static void name_finding(struct feed *f, const struct event *e, const char *what, const char *why) {
    if (f->named++ < NAMED_MAX) say("line %llu %s%s", (unsigned long long)e->line, what, why);
}

static void count(struct feed *f, struct event *e, hx_status st, const hx_receipt *r, const hx_error *err) {
    bool before = e->taken;
    if (st == HX_OK && r->outcome == HX_ACCEPTED) {
        f->accepted++;
        e->taken = true;
        f->again += before;
        if (before) name_finding(f, e, "was done again: its key is made of something that changed", "");
    } else if (st == HX_OK) {
        f->duplicates += r->outcome == HX_DUPLICATE;
        f->held += r->outcome == HX_HELD;
        e->taken = true;
    } else if (st == HX_CONFLICT) {
        f->conflicts++;
        name_finding(f, e, "contradicts what came first under its key", "");
    } else {
        f->unknown += err->applied == HX_APPLIED_UNKNOWN;
        f->refused += err->applied != HX_APPLIED_UNKNOWN;
        name_finding(f, e, "was not taken: ", err->detail);
    }
}

/* false: nothing further is to be sent. */
static bool send_one(struct feed *f, const struct arrival *a, slice payload, const char *key) {
    struct event *e = &f->events[a->event];
    hx_draft draft = {.key = key, .content_type = "application/json", .payload = hx_bytes_of(payload.p, payload.n)};
    hx_receipt receipt = {0};
    hx_error err = {0};
    hx_client *client = cli_client(f->cli, 0);
    if (!client) return false;
    hx_status st = hx_send(client, f->queue, &draft, 0, &receipt, &err);
    count(f, e, st, &receipt, &err);
    hx_receipt_free(&receipt);
    bool hopeless = st == HX_UNREACHABLE || st == HX_NOT_FOUND || st == HX_DENIED; /* for the next one too */
    if (hopeless) f->ended = cli_exit_code(&err);
    return !hopeless;
}

static bool arrive(struct feed *f, const struct arrival *a) {
    CHECK(f->events && a->event < f->event_count);
    struct event *e = &f->events[a->event];
    struct buf text = {0}, key = {0};
    buf_slice_add(&text, e->text);
    for (u32 i = 0; a->nth && i < f->change_count; i++) change_field(&f->changes[i], a->nth, &text);
    bool ok = make_key(f, e, buf_slice(&text), &key);
    if (ok && args_has(f->cli, "dry-run")) {
        struct buf line = {0};
        buf_duration(&line, a->at_ms);
        buf_printf(&line, "\t%llu\t%s\t%.*s\n", (unsigned long long)e->line, f->key ? key.p : "", (int)text.len,
                   text.p);
        print_buf(&line);
        buf_free(&line);
    } else if (ok) {
        ok = send_one(f, a, buf_slice(&text), f->key ? key.p : NULL);
    }
    buf_free(&text);
    buf_free(&key);
    return ok;
}

/* ---- the whole feed */

static void show(const struct feed *f) {
    struct buf out = {0};
    u64 sent = f->accepted + f->duplicates + f->conflicts + f->held + f->refused + f->unknown;
    if (f->cli->json)
        buf_printf(
            &out,
            "{\"events\":%u,\"sent\":%llu,\"accepted\":%llu,\"duplicates\":%llu,\"conflicts\":%llu,\"held\":%llu,"
            "\"refused\":%llu,\"unknown\":%llu,\"done_again\":%llu}\n",
            f->event_count, (unsigned long long)sent, (unsigned long long)f->accepted,
            (unsigned long long)f->duplicates, (unsigned long long)f->conflicts, (unsigned long long)f->held,
            (unsigned long long)f->refused, (unsigned long long)f->unknown, (unsigned long long)f->again);
    else
        buf_printf(&out,
                   "%u event%s came %llu times: %llu accepted, %llu duplicates, %llu conflicts, %llu held, %llu "
                   "refused, %llu unknown; %llu done again\n",
                   f->event_count, text_plural(f->event_count), (unsigned long long)sent,
                   (unsigned long long)f->accepted, (unsigned long long)f->duplicates, (unsigned long long)f->conflicts,
                   (unsigned long long)f->held, (unsigned long long)f->refused, (unsigned long long)f->unknown,
                   (unsigned long long)f->again);
    print_buf(&out);
}

static int run(struct feed *f) {
    bool dry = args_has(f->cli, "dry-run"), stopped = false, ok = true;
    int stop_fd = dry ? -1 : cli_stop_fd();
    i64 began_ms = clock_mono_ms();
    for (size_t i = 0; ok && !stopped && i < f->arrival_count; i++) {
        i64 wait_ms = f->arrivals[i].at_ms - (clock_mono_ms() - began_ms);
        if (!dry) stopped = cli_stopped(stop_fd, wait_ms > 0 ? wait_ms : 0);
        if (!stopped) ok = arrive(f, &f->arrivals[i]);
    }
    if (dry) return ok ? EXIT_DONE : EXIT_REFUSED;
    if (stopped) say("stopped before the end of the feed");
    if (f->named > NAMED_MAX) say("and %llu more", (unsigned long long)(f->named - NAMED_MAX));
    show(f);
    if (f->ended) return f->ended;
    if (f->unknown || stopped) return EXIT_UNREACHABLE;
    if (!ok) return EXIT_REFUSED;
    return f->again || f->conflicts || f->refused || f->held ? EXIT_REFUSED : EXIT_DONE;
}

static bool read_flags(struct feed *f) {
    const char *key = args_get(f->cli, "key"), *field;
    struct errbuf err = {0};
    u32 column;
    f->queue = args_get(f->cli, "to");
    if (!f->queue) return args_wrong(f->cli, "--to QUEUE is missing"), false;
    if (key && template_compile(slice_str(key), &f->key, &column, &err) != ST_OK)
        return args_wrong(f->cli, "--key, character %u: %s", column, err.text), false;
    for (size_t at = 0; (field = args_next(f->cli, "change", &at));) {
        if (f->change_count == CHANGES_MAX) return args_wrong(f->cli, "more than %d --change", CHANGES_MAX), false;
        if (path_compile(slice_str(field), false, &f->arena, &f->changes[f->change_count++], &column, &err) != ST_OK)
            return args_wrong(f->cli, "--change, character %u: %s", column, err.text), false;
    }
    return true;
}

int cmd_inject(struct cli *cli) {
    struct feed f = {.cli = cli};
    struct buf text = {0};
    i64 repeat = 6, over_ms = 0, seed = 1;
    int rc = EXIT_USAGE;
    if (read_flags(&f) && args_number(cli, "repeat", 1, REPEAT_MAX, &repeat) && args_duration(cli, "over", &over_ms) &&
        args_number(cli, "seed", 0, INT64_MAX, &seed)) {
        rc = EXIT_REFUSED;
        if (cli_read_file(args_word(cli, 0), &text) && read_events(&f, buf_slice(&text))) {
            plan(&f, (u64)repeat, over_ms, args_has(cli, "reorder"), (u64)seed);
            rc = run(&f);
        }
    }
    template_free(f.key);
    arena_clear(&f.arena);
    mem_free(f.events);
    mem_free(f.arrivals);
    buf_free(&text);
    return rc;
}
