#include "cli/doctor.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "base/json.h"

#define FOUND_MAX     200u /* of one kind; the rest is counted */
#define LOW_PERCENT   10
#define HIGH_PERCENT  90
#define CLOCK_MS_MAX  2000
#define ROOM_MIN      ((i64)2 << 20) /* below that a message of 1 MiB may be refused */
#define ANSWER_MS_MAX 10000

const struct flag flags_doctor[] = {
    {"root", "DIR", "where the /proc and /sys of the broker's machine are; default /"},
    {0},
};
const char about_doctor[] =
    "Asks the broker for its stats, alerts, queues and targets, and looks at the machine if it runs on this one: disk, "
    "open\n"
    "files, clock, kernel settings, the file system of its data. Says what is wrong, the gravest first, and what to "
    "do;\n"
    "the pages it names are in docs/runbooks. Changes nothing. Exit code 1: something is wrong; 0: nothing is, though\n"
    "there may be advice; 3: the broker could not be reached. With a token it needs the right observe.";

enum level { WRONG, ADVICE };

static const struct {
    const char *ident, *runbook, *remedy;
    enum level level;
} findings[] = {
#define FINDING(ident, level, runbook, remedy) {#ident, runbook, remedy, level},
#include "cli/doctor.def"
#undef FINDING
};

struct doctor {
    struct cli *cli;
    u32 counts[FINDING_COUNT];
    struct buf told
        [FINDING_COUNT]; /* lines: a summary, tab, a runbook, tab, a remedy; of what a finding has itself, nothing */
};

static void add(struct doctor *d, enum finding what, slice summary, slice runbook, slice remedy) {
    struct buf *b = &d->told[what];
    if (d->counts[what]++ >= FOUND_MAX) return;
    print_clean(b, summary, false);
    buf_char(b, '\t');
    print_clean(b, runbook, false);
    buf_char(b, '\t');
    print_clean(b, remedy, false);
    buf_char(b, '\n');
}

void doctor_found(struct doctor *d, enum finding what, const char *fmt, ...) {
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    add(d, what, slice_str(text), slice_str(findings[what].runbook), slice_str(findings[what].remedy));
}

/* ---- the broker */

/* false: no answer, or a refusal; *status is 0 without an answer. */
static bool ask(struct doctor *d, const char *target, hx_reply *reply, hx_error *err) {
    hx_request request = {.method = "GET", .target = target};
    *reply = (hx_reply){0};
    return hx_call(d->cli->client, &request, reply, err) == HX_OK;
}

static slice body_of(const hx_reply *reply) {
    return slice_of(reply->body.data, reply->body.size);
}

static void put_size(char out[32], i64 bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double n = (double)bytes;
    u32 unit = 0;
    for (; n >= 1024 && unit < 4; unit++) n /= 1024;
    snprintf(out, 32, unit && n < 10 ? "%.1f %s" : "%.0f %s", n, units[unit]);
}

static bool is_true(slice object, const char *name) {
    return slice_eq(member_raw(object, name), SL("true"));
}

static void look_at_disk(struct doctor *d, slice stats) {
    slice metrics = member_raw(stats, "metrics"), journal = member_raw(stats, "journal");
    i64 free_bytes = member_number(metrics, "hapax_disk_free_bytes"),
        size = member_number(metrics, "hapax_disk_size_bytes");
    i64 room = member_number(journal, "room_bytes") - member_number(journal, "reserved_bytes");
    char left[32], all[32], own[32];
    if (size <= 0) return;
    put_size(left, free_bytes);
    put_size(all, size);
    put_size(own, room);
    if (free_bytes < member_number(journal, "segment_bytes") && room < ROOM_MIN)
        doctor_found(d, FOUND_disk_short, "The disk is full: %s of %s are free, and the journal has %s for new work.",
                     left, all, own);
    else if (free_bytes * 100 < size * LOW_PERCENT)
        doctor_found(d, FOUND_disk_low, "The disk has %lld %% free: %s of %s.", (long long)(free_bytes * 100 / size),
                     left, all);
}

static void look_at_memory(struct doctor *d, slice stats) {
    slice metrics = member_raw(stats, "metrics"), memory = member_raw(stats, "memory");
    i64 limit = member_number(metrics, "hapax_memory_bytes{kind=\"limit\"}");
    i64 used = member_number(metrics, "process_resident_memory_bytes");
    char most[32], now[32];
    put_size(most, limit);
    put_size(now, used);
    if (is_true(memory, "short"))
        doctor_found(d, FOUND_memory_short,
                     "The memory limit of %s is reached: %lld messages are pending, %lld keys remembered.", most,
                     (long long)member_number(memory, "pending_messages"),
                     (long long)member_number(memory, "settled_keys"));
    else if (limit > 0 && used * 100 > limit * HIGH_PERCENT)
        doctor_found(d, FOUND_memory_high, "The broker takes %s of the %s it may.", now, most);
}

static void look_at_files(struct doctor *d, slice stats) {
    slice metrics = member_raw(stats, "metrics");
    i64 open_files = member_number(metrics, "process_open_fds"), most = member_number(metrics, "process_max_fds");
    if (most <= 0) return;
    if (open_files * 100 > most * HIGH_PERCENT)
        doctor_found(d, FOUND_files_short, "%lld of the %lld files the broker may have open are.",
                     (long long)open_files, (long long)most);
    else if (most < 1024)
        doctor_found(d, FOUND_files_few, "The broker may have %lld files open, connections among them.",
                     (long long)most);
}

static void look_at_refusals(struct doctor *d, slice stats) {
    slice metrics = member_raw(stats, "metrics");
    i64 places = member_number(metrics, "hapax_refused_total{reason=\"connections\"}");
    i64 memory = member_number(metrics, "hapax_refused_total{reason=\"memory\"}");
    i64 clients = member_number(metrics, "hapax_refused_total{reason=\"address\"}") +
                  member_number(metrics, "hapax_refused_total{reason=\"token\"}");
    if (places + memory + clients <= 0) return;
    doctor_found(
        d, FOUND_turned_away,
        "Since it started it turned away %lld for want of connections, %lld for want of memory, %lld at a limit of "
        "their own.",
        (long long)places, (long long)memory, (long long)clients);
}

/* The broker's clock against ours, in the middle of the call: that far off it is at least. */
static void look_at_clock(struct doctor *d, slice stats, i64 asked_ms, i64 answered_ms) {
    struct buf text = {0}, by = {0};
    i64 there = 0;
    bool told = member_text(stats, "now", &text) && rfc3339_parse(buf_slice(&text), &there);
    i64 off = there < asked_ms ? asked_ms - there : there - answered_ms;
    buf_free(&text);
    if (!told || off <= CLOCK_MS_MAX) return;
    buf_duration(&by, off / 1000 * 1000);
    buf_char(&by, 0);
    doctor_found(d, FOUND_clock_differs, "The broker's clock is %s %s of this machine's.", by.p,
                 there < asked_ms ? "behind" : "ahead");
    buf_free(&by);
}

static void look_at_relay(struct doctor *d, slice relay) {
    struct buf queue = {0}, trouble = {0};
    member_text(relay, "queue", &queue);
    if (member_text(relay, "trouble", &trouble))
        doctor_found(d, FOUND_relay_trouble, "The relay to %.*s: %.*s", (int)queue.len, queue.p, (int)trouble.len,
                     trouble.p);
    buf_free(&queue);
    buf_free(&trouble);
}

void doctor_each(struct doctor *d, slice array, void (*look)(struct doctor *d, slice item)) {
    struct json j;
    enum json_type type;
    slice item;
    json_init(&j, array);
    bool is_array = array.n && json_array(&j);
    while (is_array && json_element(&j) && json_value(&j, &type, &item)) look(d, item);
    json_free(&j);
}

static void look_at_alert(struct doctor *d, slice alert) {
    struct buf text = {0}, runbook = {0}, owner = {0}, remedy = {0}, name = {0};
    if (!member_is(alert, "state", SL("firing"))) return;
    member_text(alert, "name", &name);
    buf_printf(&text, "%.*s", (int)name.len, name.p);
    if (member_raw(alert, "queue").n) buf_lit(&text, " of "), member_text(alert, "queue", &text);
    if (member_raw(alert, "key").n || member_raw(alert, "id").n) buf_lit(&text, ", "), column_key(&text, alert);
    buf_lit(&text, ": ");
    member_text(alert, "summary", &text);
    member_text(alert, "runbook", &runbook);
    if (member_text(alert, "owner", &owner))
        buf_printf(&remedy, "It is %.*s's to look after.", (int)owner.len, owner.p);
    const char *page = memrchr(runbook.p ? runbook.p : "", '/', runbook.len);
    size_t from = page ? (size_t)(page - runbook.p) + 1 : 0;
    add(d, FOUND_alert, buf_slice(&text), slice_of(runbook.p + from, runbook.len - from), buf_slice(&remedy));
    buf_free(&text);
    buf_free(&runbook);
    buf_free(&owner);
    buf_free(&remedy);
    buf_free(&name);
}

static void look_at_alerts(struct doctor *d) {
    hx_reply reply;
    hx_error err;
    if (ask(d, "/v1/alerts", &reply, &err)) {
        doctor_each(d, member_raw(body_of(&reply), "items"), look_at_alert);
        if (slice_eq(member_raw(body_of(&reply), "judged"), SL("false")))
            doctor_found(d, FOUND_alerts_not_judged, "The broker has not judged its alerts yet.");
    } else if (err.http_status == 404)
        doctor_found(d, FOUND_alerts_unknown, "The broker cannot be asked for alerts.");
    hx_reply_free(&reply);
}

static void look_at_queue(struct doctor *d, slice queue) {
    struct buf name = {0};
    i64 pending = member_number(queue, "pending"), dead = member_number(queue, "dead"),
        held = member_number(queue, "held");
    member_text(queue, "name", &name);
    buf_char(&name, 0);
    if (is_true(queue, "pressed")) doctor_found(d, FOUND_pressed, "Queue %s is at one of its limits.", name.p);
    if (is_true(queue, "paused"))
        doctor_found(d, FOUND_paused, "Queue %s is paused, and %lld message%s wait%s there.", name.p,
                     (long long)pending, text_plural((u64)pending), pending == 1 ? "s" : "");
    if (held)
        doctor_found(d, FOUND_held, "Queue %s holds %lld message%s: `hapax held list %s`", name.p, (long long)held,
                     text_plural((u64)held), name.p);
    if (dead)
        doctor_found(d, FOUND_dead, "Queue %s has %lld dead letter%s: `hapax dead list %s`", name.p, (long long)dead,
                     text_plural((u64)dead), name.p);
    buf_free(&name);
}

static void look_at_queues(struct doctor *d) {
    hx_reply reply;
    hx_error err;
    if (ask(d, "/v1/queues?limit=1000", &reply, &err))
        doctor_each(d, member_raw(body_of(&reply), "items"), look_at_queue);
    hx_reply_free(&reply);
}

static void look_at_target(struct doctor *d, slice target) {
    struct buf queue = {0}, why = {0}, since = {0};
    i64 waiting = member_number(target, "waiting");
    bool paused = member_is(target, "state", SL("paused")), closed = member_is(target, "state", SL("closed"));
    enum finding stopped = is_true(target, "gone") ? FOUND_target_gone : FOUND_target_paused;
    member_text(target, "queue", &queue);
    member_text(target, "since", &since);
    member_text(target, "why", &why);
    if (member_is(target, "state", SL("half_open"))) { /* its why is about the probe, which tells nothing yet */
        buf_lit(&why, "; before: ");
        member_text(member_raw(target, "last_error"), "detail", &why);
    }
    if (!closed)
        doctor_found(d, paused ? stopped : FOUND_target_down,
                     "The target of %.*s %s%s%.19s%s, and %lld message%s wait%s: %.*s.", (int)queue.len, queue.p,
                     paused ? "is paused" : "fails", since.len ? " since " : "", since.len ? since.p : "",
                     since.len ? "Z" : "", (long long)waiting, text_plural((u64)waiting), waiting == 1 ? "s" : "",
                     (int)why.len, why.p);
    buf_free(&queue);
    buf_free(&why);
    buf_free(&since);
}

static void look_at_targets(struct doctor *d) {
    hx_reply reply;
    hx_error err;
    if (ask(d, "/v1/targets?limit=1000", &reply, &err))
        doctor_each(d, member_raw(body_of(&reply), "items"), look_at_target);
    hx_reply_free(&reply);
}

/* A reload that was refused leaves tokens in force that the file does not have any more. */
static void look_at_config(struct doctor *d, slice stats) {
    slice config = member_raw(stats, "config");
    struct buf file = {0}, at = {0};
    if (member_text(config, "refused_at", &at) && member_text(config, "file", &file))
        doctor_found(d, FOUND_config_refused,
                     "The reload of %.*s at %.19sZ was refused: tokens, certificates and rules are those of before.",
                     (int)file.len, file.p, at.p);
    buf_free(&file);
    buf_free(&at);
}

static void look_at_strangers(struct doctor *d, slice stats) {
    slice metrics = member_raw(stats, "metrics");
    i64 wrong = member_number(metrics, "hapax_unauthorized_total{why=\"wrong\"}");
    i64 expired = member_number(metrics, "hapax_unauthorized_total{why=\"expired\"}");
    if (wrong + expired <= 0) return;
    doctor_found(d, FOUND_strangers,
                 "Since it started it was shown tokens it does not know %lld times, expired ones %lld times.",
                 (long long)wrong, (long long)expired);
}

static void look_at_tenant(struct doctor *d, slice tenant) {
    static const char *const limits[] = {"queues", "pending", "bytes"};
    struct buf name = {0};
    member_text(tenant, "name", &name);
    for (u32 i = 0; i < 3; i++) {
        slice l = member_raw(tenant, limits[i]);
        i64 used = member_number(l, "used"), most = member_number(l, "limit");
        if (most <= 0 || used < most || member_number(l, "refused") <= 0) continue;
        doctor_found(d, FOUND_tenant_full, "Tenant %.*s has all its limits.%s allows: %lld of %lld.", (int)name.len,
                     name.p, limits[i], (long long)used, (long long)most);
    }
    buf_free(&name);
}

/* Returns its process id, 0 if it told none; -1: it was not reached. */
static i64 look_at_broker(struct doctor *d) {
    hx_reply reply;
    hx_error err;
    i64 asked = clock_wall_ms(), pid = -1;
    bool answered = ask(d, "/v1/stats", &reply, &err);
    if (answered && !cli_is_answer(&reply)) {
        doctor_found(d, FOUND_unreachable, "What answers at %s is no Hapax broker.", d->cli->url);
    } else if (answered) {
        slice stats = body_of(&reply);
        look_at_clock(d, stats, asked, clock_wall_ms());
        look_at_disk(d, stats);
        look_at_memory(d, stats);
        look_at_refusals(d, stats);
        look_at_files(d, stats);
        doctor_each(d, member_raw(stats, "relays"), look_at_relay);
        look_at_config(d, stats);
        look_at_strangers(d, stats);
        doctor_each(d, member_raw(stats, "tenants"), look_at_tenant);
        pid = member_number(member_raw(stats, "process"), "pid");
        look_at_alerts(d);
        look_at_queues(d);
        look_at_targets(d);
        doctor_door(d, d->cli, stats);
    } else if (err.status == HX_PROTOCOL) {
        doctor_found(d, FOUND_unreachable, "What answers there is no Hapax broker: %s", err.detail);
    } else if (!doctor_kept_out(d, d->cli->url, &err)) {
        doctor_found(d, FOUND_unreachable, "The broker at %s does not answer: %s", d->cli->url, err.detail);
    }
    hx_reply_free(&reply);
    return pid;
}

/* ---- telling */

static u32 count_of(const struct doctor *d, enum level level) {
    u32 n = 0;
    for (u32 i = 0; i < FINDING_COUNT; i++) n += findings[i].level == level ? d->counts[i] : 0;
    return n;
}

static void each_told(const struct doctor *d, void (*tell)(struct buf *out, u32 n, u32 what, slice parts[3]),
                      struct buf *out) {
    u32 n = 0;
    for (u32 i = 0; i < FINDING_COUNT; i++) {
        slice lines = buf_slice(&d->told[i]), line, parts[3];
        while (lines.n) {
            slice_cut(lines, '\n', &line, &lines);
            slice_cut(line, '\t', &parts[0], &line);
            slice_cut(line, '\t', &parts[1], &parts[2]);
            tell(out, ++n, i, parts);
        }
    }
}

static void tell_json(struct buf *out, u32 n, u32 what, slice parts[3]) {
    if (n > 1) buf_char(out, ',');
    buf_char(out, '{');
    json_put_member(out, "level", findings[what].level == WRONG ? SL("wrong") : SL("advice"));
    json_put_member(out, "code", slice_str(findings[what].ident));
    json_put_member(out, "summary", parts[0]);
    json_put_member(out, "remedy", parts[2]);
    if (parts[1].n) json_put_member(out, "runbook", parts[1]);
    buf_char(out, '}');
}

#define INDENT 4u

static void tell_part(struct buf *out, slice text) {
    size_t columns = text_columns(STDOUT_FILENO);
    if (!text.n) return;
    buf_printf(out, "%*s", (int)INDENT, "");
    text_wrap(out, text, INDENT, INDENT, columns > 80 && !text_is_wide() ? 80 : columns);
    buf_char(out, '\n');
}

static void tell_text(struct buf *out, u32 n, u32 what, slice parts[3]) {
    size_t columns = text_columns(STDOUT_FILENO);
    bool wrong = findings[what].level == WRONG;
    char head[32];
    int width = snprintf(head, sizeof head, "%2u  ", n);
    buf_slice_add(out, slice_str(head));
    text_tone(out, wrong ? TONE_BAD : TONE_DOUBT, wrong ? SL("wrong: ") : SL("advice: "), STDOUT_FILENO);
    text_wrap(out, parts[0], (size_t)width + (wrong ? 7 : 8), INDENT, columns > 80 && !text_is_wide() ? 80 : columns);
    buf_char(out, '\n');
    tell_part(out, parts[2]);
    struct buf page = {0};
    if (parts[1].n) buf_printf(&page, "docs/runbooks/%.*s", (int)parts[1].n, parts[1].p);
    tell_part(out, buf_slice(&page));
    buf_free(&page);
}

static void tell(struct doctor *d) {
    struct buf out = {0};
    u32 wrong = count_of(d, WRONG), advice = count_of(d, ADVICE);
    if (d->cli->json) {
        buf_char(&out, '{');
        json_put_member_bool(&out, "ok", wrong == 0);
        json_put_name(&out, "findings");
        buf_char(&out, '[');
        each_told(d, tell_json, &out);
        buf_lit(&out, "]}\n");
        print_buf(&out);
        return;
    }
    each_told(d, tell_text, &out);
    if (wrong)
        buf_printf(&out, "%u thing%s wrong; advice: %u\n", wrong, wrong == 1 ? " is" : "s are", advice);
    else
        buf_printf(&out, "nothing is wrong; advice: %u\n", advice);
    print_clean_buf(&out);
}

int cmd_doctor(struct cli *cli) {
    struct doctor d = {.cli = cli};
    const char *root = args_get(cli, "root");
    if (!cli_client(cli, ANSWER_MS_MAX)) return EXIT_USAGE;
    i64 pid = look_at_broker(&d);
    if (pid >= 0) doctor_machine(&d, root ? root : "", pid);
    tell(&d);
    int rc = d.counts[FOUND_denied] ? EXIT_REFUSED
             : pid < 0              ? EXIT_UNREACHABLE
             : count_of(&d, WRONG)  ? EXIT_REFUSED
                                    : EXIT_DONE;
    for (u32 i = 0; i < FINDING_COUNT; i++) buf_free(&d.told[i]);
    return rc;
}
