/* JSON for people: an object as a page, a list as a table. */
#include <stdio.h>

#include "base/json.h"
#include "cli/cli.h"

enum { COLUMNS_MAX = 32, DEPTH_MAX = 4 };

/* ---- values */

static bool ends(slice s, slice tail) {
    return s.n > tail.n && slice_eq(slice_of(s.p + s.n - tail.n, tail.n), tail);
}

/* first_seen -> "first seen", age_ms -> "age" */
static void put_label(struct buf *b, slice name) {
    if (ends(name, SL("_ms"))) name.n -= 3;
    size_t from = b->len;
    print_clean(b, name, false);
    for (size_t i = from; i < b->len; i++)
        if (b->p[i] == '_') b->p[i] = ' ';
}

/* Two units at most: "1h 5m", "350ms". */
static void put_span(struct buf *b, i64 ms, int units_max) {
    static const struct {
        i64 ms;
        const char *name;
    } units[] = {{86400000, "d"}, {3600000, "h"}, {60000, "m"}, {1000, "s"}, {1, "ms"}};
    if (ms <= 0) {
        buf_printf(b, "%lldms", (long long)ms);
        return;
    }
    int shown = 0;
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]) && shown < units_max; i++) {
        if (ms < units[i].ms) {
            if (shown) break;
            continue;
        }
        buf_printf(b, "%s%lld%s", shown ? " " : "", (long long)(ms / units[i].ms), units[i].name);
        ms %= units[i].ms;
        shown++;
    }
}

/* An array of names as a person lists them: "amount, currency". false: it is something else. */
static bool put_names(struct buf *b, slice raw) {
    struct json j;
    slice name;
    size_t from = b->len;
    json_init(&j, raw);
    bool ok = raw.n && json_peek(&j) == JSON_ARRAY && json_array(&j);
    while (ok && json_element(&j)) {
        ok = json_peek(&j) == JSON_STRING && json_string(&j, &name);
        if (!ok) break;
        if (b->len > from) buf_lit(b, ", ");
        print_clean(b, name, false);
    }
    json_free(&j);
    if (!ok) b->len = from;
    return ok;
}

/* A value as it stands in a cell or behind its label. */
static void put_value(struct buf *b, slice name, enum json_type type, slice raw) {
    struct json j;
    slice s;
    i64 n;
    bool yes;
    json_init(&j, raw);
    if (type == JSON_STRING && json_string(&j, &s))
        print_clean(b, s, false);
    else if (type == JSON_BOOL && json_bool(&j, &yes))
        buf_slice_add(b, yes ? SL("yes") : SL("no"));
    else if (type == JSON_NULL)
        buf_slice_add(b, slice_eq(name, SL("window_ms")) || ends(name, SL("_window_ms")) ? SL("forever") : SL("-"));
    else if (type == JSON_NUMBER && ends(name, SL("_ms")) && json_i64(&j, &n))
        put_span(b, n, 2);
    else if (type == JSON_NUMBER && ends(name, SL("_ms"))) /* with a fraction: 18.2 */
        buf_printf(b, "%.*sms", (int)raw.n, raw.p);
    else if (type != JSON_ARRAY || !put_names(b, raw))
        print_clean(b, raw, false);
    json_free(&j);
}

static enum tone tone_of(slice name, slice value) {
    bool count = slice_eq(name, SL("dead")) || slice_eq(name, SL("held"));
    bool flag = slice_eq(name, SL("paused")) || slice_eq(name, SL("pressed"));
    if (flag && slice_eq(value, SL("yes"))) return TONE_DOUBT;
    if (count && value.n && value.p[0] >= '1' && value.p[0] <= '9')
        return slice_eq(name, SL("dead")) ? TONE_BAD : TONE_DOUBT;
    return text_tone_of(value);
}

/* ---- lists */

static slice last_attempt(slice item) {
    struct json j;
    slice raw, last = SL("");
    enum json_type type;
    json_init(&j, member_raw(item, "attempts"));
    if (json_array(&j))
        while (json_element(&j) && json_value(&j, &type, &raw)) last = raw;
    json_free(&j);
    return last;
}

static void put_age_of(struct buf *b, slice object, const char *name) {
    struct buf text = {0};
    i64 at;
    if (member_text(object, name, &text) && rfc3339_parse(buf_slice(&text), &at)) {
        i64 age = clock_wall_ms() - at;
        put_span(b, age > 0 ? age : 0, 1);
    }
    buf_free(&text);
}

void column_key_alone(struct buf *b, slice item) {
    struct buf key = {0}, whole = {0};
    if (member_text(item, "key", &key) && key.len && member_text(item, "credential", &whole)) buf_char(&whole, '/');
    buf_slice_add(&whole, buf_slice(&key));
    print_clean(b, buf_slice(&whole), false);
    buf_free(&key);
    buf_free(&whole);
}

void column_key(struct buf *b, slice item) {
    struct buf text = {0};
    size_t before = b->len;
    column_key_alone(b, item);
    if (b->len == before && member_text(item, "id", &text)) print_clean(b, buf_slice(&text), false);
    buf_free(&text);
}

void column_age(struct buf *b, slice item) {
    put_age_of(b, item, "first_seen");
}

void column_consumer(struct buf *b, slice item) {
    struct buf text = {0};
    if (member_is(item, "state", SL("leased"))) member_text(last_attempt(item), "consumer", &text);
    print_clean(b, buf_slice(&text), false);
    buf_free(&text);
}

void column_leased_for(struct buf *b, slice item) {
    if (member_is(item, "state", SL("leased"))) put_age_of(b, last_attempt(item), "at");
}

/* To the second: in a list nobody needs more. */
void print_time(struct buf *b, slice object, const char *name) {
    struct buf text = {0};
    member_text(object, name, &text);
    if (text.len > 5 && text.p[text.len - 5] == '.') {
        text.len -= 5;
        buf_char(&text, 'Z');
    }
    print_clean(b, buf_slice(&text), false);
    buf_free(&text);
}

void column_at(struct buf *b, slice item) {
    print_time(b, item, "at");
}

static void put_column(struct buf *b, const struct column *c, slice item) {
    if (c->put) {
        c->put(b, item);
        return;
    }
    slice raw = member_raw(item, c->name);
    struct json j;
    json_init(&j, raw);
    if (raw.n && json_peek(&j) != JSON_NULL) put_value(b, slice_str(c->name), json_peek(&j), raw);
    json_free(&j);
}

static u32 put_titles(struct table *t, const struct column *columns) {
    u32 flexible = 0;
    for (u32 i = 0; columns[i].name; i++) {
        struct buf label = {0};
        put_label(&label, slice_str(columns[i].name));
        table_cell(t, buf_slice(&label));
        buf_free(&label);
        if (columns[i].flexible) flexible |= 1u << i;
    }
    table_row(t);
    return flexible;
}

static void put_item(struct table *t, const struct column *columns, slice item) {
    for (; columns->name; columns++) {
        struct buf b = {0};
        put_column(&b, columns, item);
        table_cell(t, buf_slice(&b));
        table_tone(t, tone_of(slice_str(columns->name), buf_slice(&b)));
        buf_free(&b);
    }
    table_row(t);
}

/* false: there was nothing to show. */
static bool put_array(struct buf *out, slice array, const struct column *columns, const char *indent) {
    struct json j;
    slice raw;
    enum json_type type;
    size_t rows = 0;
    struct table *t = table_new();
    table_head(t, put_titles(t, columns));
    json_init(&j, array);
    if (json_array(&j)) {
        while (json_element(&j) && json_value(&j, &type, &raw)) {
            if (type != JSON_OBJECT) continue;
            put_item(t, columns, raw);
            rows++;
        }
    }
    json_free(&j);
    struct buf text = {0};
    table_print(t, &text, indent);
    if (rows) buf_slice_add(out, buf_slice(&text));
    buf_free(&text);
    return rows > 0;
}

void print_list(slice json, const struct column *columns) {
    struct buf cursor = {0}, out = {0};
    if (!put_array(&out, member_raw(json, "items"), columns, "")) fprintf(stderr, "none\n");
    print_clean_buf(&out);
    if (member_text(json, "next_cursor", &cursor)) say("there are more: --cursor %.*s", (int)cursor.len, cursor.p);
    buf_free(&cursor);
}

/* ---- arrays in a page: their columns are what the objects have, the important ones first */

static bool has_column(const struct column *columns, size_t count, slice name) {
    for (size_t i = 0; i < count; i++)
        if (slice_eq(slice_str(columns[i].name), name)) return true;
    return false;
}

static void add_column(struct column *columns, size_t *count, slice name) {
    static const char *const texts[] = {"reason", "result", "request_id", "detail", "why", "before", "after"};
    if (*count == COLUMNS_MAX - 1 || has_column(columns, *count, name)) return;
    struct column c = {0};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        c.flexible = c.flexible || slice_eq(name, slice_str(texts[i]));
    char *copy = mem_zalloc(name.n + 1);
    if (name.n) memcpy(copy, name.p, name.n);
    c.name = copy;
    columns[(*count)++] = c;
}

static void collect_columns(struct column *columns, size_t *count, slice array) {
    struct json j;
    slice name;
    json_init(&j, array);
    if (json_array(&j)) {
        while (json_element(&j)) {
            if (json_peek(&j) != JSON_OBJECT) {
                json_skip(&j);
                continue;
            }
            json_object(&j);
            while (json_member(&j, &name)) {
                add_column(columns, count, name);
                json_skip(&j);
            }
        }
    }
    json_free(&j);
}

static bool put_inner_array(struct buf *out, slice name, slice array) {
    static const char *const attempts[] = {"attempt", "consumer", "ended",    "class",
                                           "reason",  "at",       "ended_at", "fence"};
    struct column all[COLUMNS_MAX] = {{0}}, columns[COLUMNS_MAX] = {{0}};
    size_t have = 0, count = 0;
    collect_columns(all, &have, array);
    if (slice_eq(name, SL("attempts")))
        for (size_t i = 0; i < sizeof(attempts) / sizeof(attempts[0]); i++)
            if (has_column(all, have, slice_str(attempts[i]))) add_column(columns, &count, slice_str(attempts[i]));
    for (size_t i = 0; i < have; i++) add_column(columns, &count, slice_str(all[i].name));
    bool shown = count && put_array(out, array, columns, "  ");
    for (size_t i = 0; i < have; i++) mem_free((char *)(uintptr_t)all[i].name);
    for (size_t i = 0; i < count; i++) mem_free((char *)(uintptr_t)columns[i].name);
    return shown;
}

/* ---- pages */

static void put_line(struct table *t, slice label, slice name, enum json_type type, slice raw) {
    struct buf value = {0};
    put_value(&value, name, type, raw);
    slice shown = slice_eq(raw, SL("[]")) ? SL("none") : buf_slice(&value);
    table_cell(t, label);
    table_cell(t, shown);
    if (slice_eq(label, name)) table_tone(t, tone_of(name, shown)); /* not of a counter that has a state's name */
    table_row(t);
    buf_free(&value);
}

/* What is text is seen to be; base64 has to be said. */
static bool is_plain_text(slice name, slice raw) {
    return slice_eq(name, SL("encoding")) && slice_eq(raw, SL("\"utf8\""));
}

/* The scalars of an object, with those of inner objects under "outer inner"; arrays of objects go to `tables`. Counters that
 * never counted are not worth a line. */
static void put_object(struct table *t, struct buf *tables, slice prefix, slice object, int depth) {
    struct json j;
    slice name, raw;
    enum json_type type;
    bool counters = slice_eq(prefix, SL("counters"));
    json_init(&j, object);
    bool open = json_object(&j);
    while (open && json_member(&j, &name) && json_value(&j, &type, &raw)) {
        struct buf label = {0}, rows = {0};
        buf_slice_add(&label, prefix);
        if (prefix.n) buf_char(&label, ' ');
        put_label(&label, name);
        if (type == JSON_OBJECT && depth < DEPTH_MAX) {
            put_object(t, tables, buf_slice(&label), raw, depth + 1);
        } else if (type == JSON_ARRAY && put_inner_array(&rows, name, raw)) {
            buf_char(tables, '\n');
            buf_slice_add(tables, buf_slice(&label));
            buf_char(tables, '\n');
            buf_slice_add(tables, buf_slice(&rows));
        } else if (!(counters && slice_eq(raw, SL("0"))) && !is_plain_text(name, raw)) {
            put_line(t, buf_slice(&label), name, type, raw);
        }
        buf_free(&rows);
        buf_free(&label);
    }
    json_free(&j);
}

void print_page(slice json) {
    struct buf out = {0}, tables = {0};
    struct table *t = table_new();
    put_object(t, &tables, SL(""), json, 0);
    table_print(t, &out, "");
    buf_slice_add(&out, buf_slice(&tables));
    buf_free(&tables);
    print_clean_buf(&out);
}

/* A member that repeats a rule; a count that only has a rule's name (dead) does not. */
static bool repeats_rule(slice config, slice name, slice raw) {
    char text[64];
    snprintf(text, sizeof(text), "%.*s", (int)name.n, name.p);
    return slice_eq(member_raw(config, text), raw);
}

void print_queue(slice json) {
    struct json j;
    slice name, raw;
    enum json_type type;
    struct buf once = {0};
    slice config = member_raw(json, "config");
    json_init(&j, json);
    buf_char(&once, '{');
    bool open = json_object(&j);
    while (open && json_member(&j, &name) && json_value(&j, &type, &raw)) {
        if (slice_eq(name, SL("config")) || slice_eq(name, SL("rules")) || repeats_rule(config, name, raw)) continue;
        if (once.len > 1) buf_char(&once, ',');
        json_put_string(&once, name);
        buf_char(&once, ':');
        buf_slice_add(&once, raw);
    }
    json_free(&j);
    if (config.n) json_put_member_raw(&once, "rule", config);
    buf_char(&once, '}');
    print_page(buf_slice(&once));
    buf_free(&once);
}

bool print_names(struct buf *b, slice object, const char *name) {
    return put_names(b, member_raw(object, name)) && b->len;
}
