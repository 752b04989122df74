#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/json.h"
#include "cli/top.h"

enum { PAGES_MAX = 10, NAME_LEAST = 17, ROWS_LEAST = 5 };

const struct top_sort top_sorts[] = {
    {'r', "rate", FIGURE_IN},      {'l', "lag", FIGURE_LAG},
    {'u', "dup", FIGURE_REPEATS},  {'d', "dead", FIGURE_DEAD},
    {'h', "held", FIGURE_HELD},    {'b', "blkd", FIGURE_BLOCKED},
    {'a', "alert", FIGURE_ALERTS}, {'c', "cons", FIGURE_CONSUMERS},
    {'n', "name", FIGURE_COUNT},   {0},
};

const struct top_sort *top_sort_of(char key) {
    for (const struct top_sort *s = top_sorts; s->key; s++)
        if (s->key == key) return s;
    return NULL;
}

/* ---- what the broker says */

static void drop_rows(struct top_view *v) {
    for (size_t i = 0; i < v->count; i++) buf_free(&v->rows[i].name);
    mem_free(v->rows);
}

void view_free(struct top_view *v) {
    drop_rows(v);
    buf_free(&v->alerts);
    buf_free(&v->stats);
    *v = (struct top_view){0};
}

static double number_of(slice raw) {
    char text[32];
    if (raw.n == 0 || raw.n >= sizeof text) return 0;
    memcpy(text, raw.p, raw.n);
    text[raw.n] = 0;
    return strtod(text, NULL);
}

static void read_figure(struct top_row *row, slice name, slice raw) {
    static const char *const members[] = {
#define FIGURE_MEMBER(ident, member) member,
        FIGURE_LIST(FIGURE_MEMBER)
#undef FIGURE_MEMBER
    };
    for (size_t i = 0; i < FIGURE_COUNT; i++)
        if (*members[i] && slice_eq(name, slice_str(members[i]))) row->of[i] = number_of(raw);
}

/* All of an item in one pass: it is long, and there may be thousands. */
static void read_row(struct top_row *row, slice item, bool live) {
    struct json j;
    slice name, raw;
    enum json_type type;
    json_init(&j, item);
    if (json_object(&j))
        while (json_member(&j, &name) && json_value(&j, &type, &raw)) {
            if (type == JSON_NUMBER) read_figure(row, name, raw);
            if (type == JSON_OBJECT && !live && slice_eq(name, SL("live"))) read_row(row, raw, true);
            if (slice_eq(name, SL("paused")) && slice_eq(raw, SL("true"))) row->paused = true;
        }
    json_free(&j);
    if (!live) member_text(item, "name", &row->name);
}

static void add_queue(struct top_view *v, slice item) {
    if (v->count == v->cap) {
        v->cap = v->cap ? v->cap * 2 : 64;
        v->rows = mem_realloc(v->rows, v->cap * sizeof *v->rows);
    }
    struct top_row *row = &v->rows[v->count++];
    *row = (struct top_row){0};
    read_row(row, item, false);
    if (row->of[FIGURE_WAITED] > row->of[FIGURE_LAG]) row->of[FIGURE_LAG] = row->of[FIGURE_WAITED];
}

static int by_name(const void *a, const void *b) {
    const struct top_row *x = a, *y = b;
    size_t least = x->name.len < y->name.len ? x->name.len : y->name.len;
    int order = least ? memcmp(x->name.p, y->name.p, least) : 0;
    if (order) return order;
    return x->name.len < y->name.len ? -1 : x->name.len > y->name.len;
}

/* The rows are sorted by name while they are put together. */
static struct top_row *row_named(struct top_view *v, slice item) {
    struct top_row sought = {0};
    member_text(item, "queue", &sought.name);
    struct top_row *row =
        v->count && sought.name.len ? bsearch(&sought, v->rows, v->count, sizeof *v->rows, by_name) : NULL;
    buf_free(&sought.name);
    return row;
}

static void add_consumer(struct top_view *v, slice item) {
    struct top_row *row = row_named(v, item);
    if (member_number(item, "count") == 0) return;
    v->consumer_count++;
    if (row) row->of[FIGURE_CONSUMERS]++;
}

static void add_clean(struct buf *b, slice item, const char *name, const char *before) {
    struct buf text = {0};
    if (member_text(item, name, &text) && text.len) {
        buf_slice_add(b, slice_str(before));
        print_clean(b, buf_slice(&text), false);
    }
    buf_free(&text);
}

static void add_alert(struct top_view *v, slice item) {
    struct top_row *row = row_named(v, item);
    if (!member_is(item, "state", SL("firing"))) return;
    v->alert_count++;
    if (row) row->of[FIGURE_ALERTS]++;
    add_clean(&v->alerts, item, "name", "");
    add_clean(&v->alerts, item, "queue", " ");
    add_clean(&v->alerts, item, member_raw(item, "key").n ? "key" : "id", " ");
    add_clean(&v->alerts, item, "summary", ": ");
    buf_char(&v->alerts, '\n');
}

static void each_item(struct top_view *v, slice json, void (*add)(struct top_view *v, slice item)) {
    struct json j;
    enum json_type type;
    slice item, items = member_raw(json, "items");
    json_init(&j, items);
    bool is_array = items.n && json_array(&j);
    while (is_array && json_element(&j) && json_value(&j, &type, &item)) add(v, item);
    json_free(&j);
}

static bool ask(struct cli *cli, const char *target, hx_reply *reply, hx_error *err) {
    return hx_call(cli->client, &(hx_request){.method = "GET", .target = target}, reply, err) == HX_OK;
}

static slice body_of(const hx_reply *reply) {
    return slice_of(reply->body.data, reply->body.size);
}

/* The page's queues; *cursor names the next, or is empty. */
static bool load_queues(struct top_view *v, struct cli *cli, struct buf *cursor, hx_error *err) {
    struct buf target = {0};
    hx_reply reply;
    buf_lit(&target, "/v1/queues?live=true&limit=1000");
    if (cursor->len) buf_lit(&target, "&cursor="), buf_percent_encode(&target, buf_slice(cursor));
    buf_char(&target, 0);
    bool ok = ask(cli, target.p, &reply, err);
    buf_reset(cursor);
    if (ok) {
        each_item(v, body_of(&reply), add_queue);
        member_text(body_of(&reply), "next_cursor", cursor);
    }
    hx_reply_free(&reply);
    buf_free(&target);
    return ok;
}

static bool load_all_queues(struct top_view *v, struct cli *cli, hx_error *err) {
    struct buf cursor = {0};
    bool ok = true;
    for (int page = 0; ok && page < PAGES_MAX && (page == 0 || cursor.len); page++)
        ok = load_queues(v, cli, &cursor, err);
    v->more_queues = cursor.len > 0;
    buf_free(&cursor);
    if (v->count) qsort(v->rows, v->count, sizeof *v->rows, by_name);
    return ok;
}

/* A list that the broker may not have, being older: then there is nothing in it. */
static bool load_list(struct top_view *v, struct cli *cli, const char *target,
                      void (*add)(struct top_view *v, slice json), hx_error *err) {
    hx_reply reply;
    bool ok = ask(cli, target, &reply, err);
    if (ok) add(v, body_of(&reply));
    hx_reply_free(&reply);
    return ok || err->http_status == 404;
}

/* Gravest first, as they come. */
static void add_alerts(struct top_view *v, slice json) {
    each_item(v, json, add_alert);
    v->not_judged = slice_eq(member_raw(json, "judged"), SL("false"));
}

static void add_consumers(struct top_view *v, slice json) {
    each_item(v, json, add_consumer);
}

static bool load_stats(struct top_view *v, struct cli *cli, hx_error *err) {
    hx_reply reply;
    bool ok = ask(cli, "/v1/stats", &reply, err);
    if (ok) buf_slice_add(&v->stats, body_of(&reply));
    hx_reply_free(&reply);
    return ok;
}

bool view_load(struct top_view *v, struct cli *cli, hx_error *err) {
    struct top_view fresh = {0};
    bool ok = load_stats(&fresh, cli, err) && load_all_queues(&fresh, cli, err) &&
              load_list(&fresh, cli, "/v1/consumers", add_consumers, err) &&
              load_list(&fresh, cli, "/v1/alerts", add_alerts, err);
    if (!ok) {
        view_free(&fresh);
        return false;
    }
    view_free(v);
    *v = fresh;
    return true;
}

/* ---- the frame */

static int by_figure(const void *a, const void *b, void *ctx) {
    const struct top_row *x = a, *y = b;
    const struct top_sort *sort = ctx;
    double p = sort->by == FIGURE_COUNT ? 0 : x->of[sort->by], q = sort->by == FIGURE_COUNT ? 0 : y->of[sort->by];
    if (p < q) return 1;
    return p > q ? -1 : by_name(a, b);
}

static void put_padded(struct buf *b, slice text, size_t width) {
    for (size_t n = text.n; n < width; n++) buf_char(b, ' ');
    buf_slice_add(b, text);
}

/* In at most six columns. */
static void put_amount(struct buf *b, double v, bool rate) {
    static const char units[] = " kMGT";
    size_t unit = 0;
    for (; v >= 9999.5 && units[unit + 1]; unit++) v /= 1000;
    if (unit)
        buf_printf(b, "%.1f%c", v, units[unit]);
    else
        buf_printf(b, rate && v < 99.95 ? "%.1f" : "%.0f", v);
}

static void put_lag(struct buf *b, double ms) {
    static const struct {
        double ms;
        const char *unit;
    } units[] = {{86400000, "d"}, {3600000, "h"}, {60000, "m"}, {1000, "s"}};
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (ms < units[i].ms * (i == 3 ? 1 : 2)) continue; /* 90s rather than 1m */
        buf_printf(b, "%.0f%s", ms / units[i].ms, units[i].unit);
        return;
    }
    if (ms > 0)
        buf_printf(b, "%.0fms", ms);
    else
        buf_char(b, '0');
}

static const struct top_column {
    const char *title;
    enum figure figure;
    size_t width;
    enum tone tone; /* of what is not zero */
} columns_shown[] = {
    {"in/s", FIGURE_IN, 7, TONE_PLAIN},      {"out/s", FIGURE_OUT, 7, TONE_PLAIN},
    {"dup", FIGURE_REPEATS, 6, TONE_PLAIN},  {"lag", FIGURE_LAG, 7, TONE_PLAIN},
    {"ready", FIGURE_READY, 8, TONE_PLAIN},  {"leased", FIGURE_LEASED, 7, TONE_PLAIN},
    {"dead", FIGURE_DEAD, 6, TONE_BAD},      {"held", FIGURE_HELD, 5, TONE_DOUBT},
    {"blkd", FIGURE_BLOCKED, 5, TONE_DOUBT}, {"cons", FIGURE_CONSUMERS, 5, TONE_PLAIN},
};
enum { COLUMN_COUNT = sizeof columns_shown / sizeof columns_shown[0] };

static void put_figure(struct buf *b, const struct top_column *c, double v) {
    struct buf text = {0};
    if (c->figure == FIGURE_REPEATS)
        buf_printf(&text, "%.1f%%", v * 100);
    else if (c->figure == FIGURE_LAG)
        put_lag(&text, v);
    else
        put_amount(&text, v, c->figure == FIGURE_IN || c->figure == FIGURE_OUT);
    for (size_t n = text.len; n < c->width; n++) buf_char(b, ' ');
    text_tone(b, v > 0 ? c->tone : TONE_PLAIN, buf_slice(&text), STDOUT_FILENO);
    buf_free(&text);
}

/* How many columns of figures find room beside a name, and how wide they are: the last ones go first. */
static size_t figures_that_fit(size_t columns, size_t *width) {
    size_t count = 0;
    for (*width = 0; count < COLUMN_COUNT; count++) {
        if (columns < NAME_LEAST + *width + columns_shown[count].width) break;
        *width += columns_shown[count].width;
    }
    return count;
}

/* The first column: what the terminal leaves, or what the longest name takes. */
static size_t name_width(const struct top_view *v, size_t columns, size_t figures) {
    size_t width = NAME_LEAST;
    if (columns != SIZE_MAX) return columns > figures + 3 ? columns - figures : 3;
    for (size_t i = 0; i < v->count; i++)
        if (v->rows[i].name.len + 2 > width) width = v->rows[i].name.len + 2;
    return width;
}

/* "! name" while an alert fires for it. */
static void put_name(struct buf *b, const struct top_row *row, size_t width) {
    struct buf clean = {0}, cut = {0};
    bool alert = row->of[FIGURE_ALERTS] > 0;
    print_clean(&clean, buf_slice(&row->name), false);
    size_t taken = text_cut(&cut, buf_slice(&clean), width - 2);
    text_tone(b, TONE_BAD, alert ? SL("! ") : SL(""), STDOUT_FILENO);
    text_tone(b, row->paused ? TONE_DOUBT : TONE_PLAIN, buf_slice(&cut), STDOUT_FILENO);
    for (size_t n = taken + (alert ? 2 : 0); n < width; n++) buf_char(b, ' ');
    buf_free(&clean);
    buf_free(&cut);
}

static void put_title(struct buf *out, size_t name, size_t count, const struct top_sort *sort) {
    struct buf line = {0};
    buf_lit(&line, "queue");
    for (size_t n = line.len; n < name; n++) buf_char(&line, ' ');
    for (size_t i = 0; i < count; i++) {
        struct buf title = {0};
        buf_printf(&title, "%s%s", columns_shown[i].figure == sort->by ? ">" : "", columns_shown[i].title);
        put_padded(&line, buf_slice(&title), columns_shown[i].width);
        buf_free(&title);
    }
    text_tone(out, TONE_HEAD, buf_slice(&line), STDOUT_FILENO);
    buf_char(out, '\n');
    buf_free(&line);
}

static void put_cut_line(struct buf *out, enum tone tone, slice clean, size_t columns) {
    struct buf cut = {0};
    text_cut(&cut, clean, columns);
    text_tone(out, tone, buf_slice(&cut), STDOUT_FILENO);
    buf_char(out, '\n');
    buf_free(&cut);
}

static void put_summary(const struct top_view *v, struct cli *cli, const struct top_frame *f, struct buf *out) {
    struct buf line = {0};
    slice stats = buf_slice(&v->stats);
    buf_lit(&line, "hapax ");
    add_clean(&line, stats, "version", "");
    buf_lit(&line, "  ");
    print_clean(&line, slice_str(cli->url), false);
    bool whole = member_raw(stats, "uptime_ms").n > 0; /* a tenant is told of its queues alone */
    if (whole) buf_lit(&line, "  up ");
    if (whole) put_lag(&line, (double)member_number(stats, "uptime_ms"));
    put_cut_line(out, TONE_HEAD, buf_slice(&line), f->columns);
    buf_reset(&line);
    static const char *const sums[] = {"queues", "pending", "leased", "held", "dead"};
    for (size_t i = 0; whole && i < sizeof sums / sizeof sums[0]; i++) {
        buf_printf(&line, "%s%s ", i ? "  " : "", sums[i]);
        put_amount(&line, (double)member_number(stats, sums[i]), false);
    }
    buf_printf(&line, "%sconsumers %zu  alerts ", whole ? "  " : "", v->consumer_count);
    if (v->not_judged && !v->alert_count)
        buf_lit(&line, "not judged yet");
    else
        buf_printf(&line, "%zu", v->alert_count);
    put_cut_line(out, TONE_PLAIN, buf_slice(&line), f->columns);
    buf_free(&line);
}

/* In at most so many lines, the last of which says what found no room. Returns how many. */
static size_t put_alerts(const struct top_view *v, const struct top_frame *f, size_t lines, struct buf *out) {
    slice rest = buf_slice(&v->alerts), line;
    size_t shown = v->alert_count <= lines ? v->alert_count : lines ? lines - 1 : 0;
    for (size_t n = 0; n < v->alert_count && n < lines; n++) {
        struct buf text = {0};
        slice_cut(rest, '\n', &line, &rest);
        buf_lit(&text, "! ");
        if (n < shown)
            buf_slice_add(&text, line);
        else
            buf_printf(&text, "and %zu more: hapax alerts", v->alert_count - shown);
        put_cut_line(out, TONE_BAD, buf_slice(&text), f->columns);
        buf_free(&text);
    }
    return v->alert_count <= lines ? v->alert_count : lines;
}

static void put_help(const struct top_frame *f, struct buf *out) {
    struct buf line = {0};
    buf_lit(&line, "sort:");
    for (const struct top_sort *s = top_sorts; s->key; s++)
        buf_printf(&line, s == f->sort ? " [%c %s]" : " %c %s", s->key, s->title);
    buf_lit(&line, "  q quit");
    put_cut_line(out, TONE_HEAD, buf_slice(&line), f->columns);
    buf_free(&line);
}

static void put_row(const struct top_row *row, size_t name, size_t count, struct buf *out) {
    put_name(out, row, name);
    for (size_t i = 0; i < count; i++) put_figure(out, &columns_shown[i], row->of[columns_shown[i].figure]);
    buf_char(out, '\n');
}

static void put_left_out(const struct top_view *v, size_t shown, size_t columns, struct buf *out) {
    char text[64];
    if (shown == v->count && !v->more_queues) return;
    snprintf(text, sizeof text, "... and %zu queues more%s", v->count - shown, v->more_queues ? ", at least" : "");
    put_cut_line(out, TONE_PLAIN, slice_str(text), columns);
}

/* The queues have five lines for themselves, or as many as they need; alerts get the rest. */
static size_t lines_for_alerts(const struct top_view *v, size_t left) {
    size_t rows = v->count < ROWS_LEAST ? v->count : ROWS_LEAST;
    return left > rows ? left - rows : left ? 1 : 0;
}

void view_put(struct top_view *v, struct cli *cli, const struct top_frame *f, struct buf *out) {
    size_t width, count = figures_that_fit(f->columns, &width), name = name_width(v, f->columns, width);
    size_t taken = 4u + (f->trouble ? 1u : 0u) + (f->help ? 1u : 0u), left = SIZE_MAX, shown = 0;
    if (f->lines != SIZE_MAX) left = f->lines > taken ? f->lines - taken : 0;
    if (f->trouble) put_cut_line(out, TONE_BAD, slice_str(f->trouble), f->columns);
    if (v->stats.len) put_summary(v, cli, f, out);
    size_t alerts = put_alerts(v, f, lines_for_alerts(v, left), out);
    if (left != SIZE_MAX) left -= alerts;
    if (v->stats.len) put_title(out, name, count, f->sort);
    if (v->count) qsort_r(v->rows, v->count, sizeof *v->rows, by_figure, (void *)(uintptr_t)f->sort);
    for (; shown < v->count && shown < left; shown++) put_row(&v->rows[shown], name, count, out);
    put_left_out(v, shown, f->columns, out);
    if (f->help) put_help(f, out);
}
