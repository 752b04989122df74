#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "base/json.h"
#include "cli/cli.h"

enum { COLUMNS_MAX = 32, CELL_MAX = 60, DEPTH_MAX = 4 };

/* ---- clean text */

/* Bytes of the UTF-8 character at the front of `s`, 0 if it is none. *code gets its number. */
static size_t character(slice s, u32 *code) {
    u8 c = (u8)s.p[0];
    size_t n = c < 0x80 ? 1 : c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
    if (n > s.n || !utf8_valid(slice_of(s.p, n))) return 0;
    *code = n == 1 ? c : c & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) *code = *code << 6 | ((u8)s.p[i] & 0x3f);
    return n;
}

/* Characters that move the cursor, start an escape or reorder what is shown. */
static bool drives_terminal(u32 code) {
    return code < 0x20 || (code >= 0x7f && code < 0xa0) || (code >= 0x200b && code <= 0x200f) ||
           (code >= 0x2028 && code <= 0x202e) || (code >= 0x2060 && code <= 0x206f) || code == 0xfeff;
}

void print_clean(struct buf *b, slice s, bool lines) {
    while (s.n) {
        u32 code = 0;
        size_t n = character(s, &code);
        if (n == 0)
            buf_printf(b, "\\x%02x", (unsigned)(u8)s.p[0]);
        else if (lines && (code == '\n' || code == '\t'))
            buf_char(b, (char)code);
        else if (drives_terminal(code))
            buf_printf(b, code < 0x100 ? "\\x%02x" : "\\u%04x", (unsigned)code);
        else
            buf_add(b, s.p, n);
        size_t skip = n ? n : 1;
        s = slice_of(s.p + skip, s.n - skip);
    }
}

void print_for(struct buf *b, slice text, int fd) {
    if (isatty(fd))
        print_clean(b, text, true);
    else
        buf_slice_add(b, text);
}

void print_buf(struct buf *b) {
    if (b->len) fwrite(b->p, 1, b->len, stdout);
    buf_free(b);
    *b = (struct buf){0};
}

void print_json(hx_bytes json) {
    fwrite(json.data, 1, json.size, stdout);
    const char *p = json.data;
    if (json.size && p[json.size - 1] != '\n') putchar('\n');
}

void print_body(hx_bytes body) {
    struct buf b = {0};
    print_clean(&b, slice_of(body.data, body.size), true);
    if (b.len && b.p[b.len - 1] != '\n') buf_char(&b, '\n');
    print_buf(&b);
}

void say(const char *fmt, ...) {
    char text[2048];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    struct buf b = {0};
    buf_lit(&b, "hapax: ");
    print_clean(&b, slice_str(text), true);
    buf_char(&b, '\n');
    fwrite(b.p, 1, b.len, stderr);
    buf_free(&b);
}

/* ---- tables */

struct cell {
    size_t at, bytes, width;
    bool last; /* of its row */
};

struct table {
    struct buf text, cells;
};

struct table *table_new(void) {
    return mem_zalloc(sizeof(struct table));
}

static size_t width_of(slice s) {
    size_t n = 0;
    for (size_t i = 0; i < s.n; i++) n += ((u8)s.p[i] & 0xc0) != 0x80;
    return n;
}

void table_cell(struct table *t, slice clean) {
    struct cell c = {t->text.len, clean.n, width_of(clean), false};
    buf_slice_add(&t->text, clean);
    buf_add(&t->cells, &c, sizeof(c));
}

static struct cell *cells_of(const struct table *t, size_t *count) {
    *count = t->cells.len / sizeof(struct cell);
    return (struct cell *)(void *)t->cells.p;
}

void table_row(struct table *t) {
    size_t n;
    struct cell *cells = cells_of(t, &n);
    if (n) cells[n - 1].last = true;
}

static void pad(struct buf *b, size_t n) {
    while (n--) buf_char(b, ' ');
}

void table_print(struct table *t, struct buf *out, const char *indent) {
    size_t widths[COLUMNS_MAX] = {0}, n, column = 0;
    struct cell *cells = cells_of(t, &n);
    for (size_t i = 0; i < n; i++) {
        size_t c = column < COLUMNS_MAX ? column : COLUMNS_MAX - 1;
        if (cells[i].width > widths[c]) widths[c] = cells[i].width;
        column = cells[i].last ? 0 : column + 1;
    }
    column = 0;
    for (size_t i = 0; i < n; i++) {
        if (column == 0) buf_slice_add(out, slice_str(indent));
        buf_add(out, t->text.p + cells[i].at, cells[i].bytes);
        size_t c = column < COLUMNS_MAX ? column : COLUMNS_MAX - 1;
        if (cells[i].last)
            buf_char(out, '\n');
        else
            pad(out, widths[c] - cells[i].width + 2);
        column = cells[i].last ? 0 : column + 1;
    }
    buf_free(&t->text);
    buf_free(&t->cells);
    mem_free(t);
}

/* ---- JSON for people */

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
static void put_span(struct buf *b, i64 ms) {
    static const struct {
        i64 ms;
        const char *name;
    } units[] = {{86400000, "d"}, {3600000, "h"}, {60000, "m"}, {1000, "s"}, {1, "ms"}};
    if (ms <= 0) {
        buf_printf(b, "%lldms", (long long)ms);
        return;
    }
    int shown = 0;
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]) && shown < 2; i++) {
        if (ms < units[i].ms) {
            if (shown) break;
            continue;
        }
        buf_printf(b, "%s%lld%s", shown ? " " : "", (long long)(ms / units[i].ms), units[i].name);
        ms %= units[i].ms;
        shown++;
    }
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
        buf_char(b, '-');
    else if (type == JSON_NUMBER && ends(name, SL("_ms")) && json_i64(&j, &n))
        put_span(b, n);
    else
        print_clean(b, raw, false);
    json_free(&j);
}

/* To CELL_MAX characters. */
static void cut_to_cell(struct buf *b) {
    size_t characters = 0;
    for (size_t i = 0; i < b->len; i++) {
        if (((u8)b->p[i] & 0xc0) == 0x80 || ++characters <= CELL_MAX) continue;
        b->len = i;
        buf_lit(b, "...");
        return;
    }
}

static void cell_value(struct table *t, slice name, enum json_type type, slice raw) {
    struct buf b = {0};
    put_value(&b, name, type, raw);
    cut_to_cell(&b);
    table_cell(t, buf_slice(&b));
    buf_free(&b);
}

struct columns {
    char *names[COLUMNS_MAX];
    size_t count;
};

static int column_of(const struct columns *c, slice name) {
    for (size_t i = 0; i < c->count; i++)
        if (slice_eq(slice_str(c->names[i]), name)) return (int)i;
    return -1;
}

static void column_add(struct columns *c, slice name) {
    if (c->count == COLUMNS_MAX || column_of(c, name) >= 0) return;
    char *copy = mem_zalloc(name.n + 1);
    if (name.n) memcpy(copy, name.p, name.n);
    c->names[c->count++] = copy;
}

/* The names used in an array of objects, in the order they appear. */
static void columns_collect(struct columns *c, slice array) {
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
                column_add(c, name);
                json_skip(&j);
            }
        }
    }
    json_free(&j);
}

static void object_row(struct table *t, const struct columns *c, slice object) {
    slice raw[COLUMNS_MAX] = {{0}};
    enum json_type types[COLUMNS_MAX] = {JSON_NONE};
    struct json j;
    slice name;
    json_init(&j, object);
    if (json_object(&j)) {
        while (json_member(&j, &name)) {
            int i = column_of(c, name);
            if (i < 0)
                json_skip(&j);
            else
                json_value(&j, &types[i], &raw[i]);
        }
    }
    for (size_t i = 0; i < c->count; i++) {
        if (types[i] == JSON_NONE)
            table_cell(t, SL("-"));
        else
            cell_value(t, slice_str(c->names[i]), types[i], raw[i]);
    }
    table_row(t);
    json_free(&j);
}

/* Keep only the wanted columns, in the wanted order. */
static void columns_choose(struct columns *c, const char *const *wanted) {
    struct columns chosen = {0};
    for (; *wanted; wanted++)
        if (column_of(c, slice_str(*wanted)) >= 0) column_add(&chosen, slice_str(*wanted));
    for (size_t i = 0; i < c->count; i++) mem_free(c->names[i]);
    *c = chosen;
}

/* wanted: the names of the columns, NULL for all there are. false: there was nothing to show. */
static bool put_array(struct buf *out, slice array, const char *const *wanted, const char *indent) {
    struct columns c = {0};
    columns_collect(&c, array);
    if (wanted) columns_choose(&c, wanted);
    if (c.count == 0) return false;
    struct table *t = table_new();
    for (size_t i = 0; i < c.count; i++) {
        struct buf label = {0};
        put_label(&label, slice_str(c.names[i]));
        table_cell(t, buf_slice(&label));
        buf_free(&label);
    }
    table_row(t);
    struct json j;
    json_init(&j, array);
    if (json_array(&j)) {
        while (json_element(&j)) {
            enum json_type type;
            slice raw;
            if (!json_value(&j, &type, &raw)) break;
            if (type == JSON_OBJECT) object_row(t, &c, raw);
        }
    }
    json_free(&j);
    table_print(t, out, indent);
    for (size_t i = 0; i < c.count; i++) mem_free(c.names[i]);
    return true;
}

/* The scalars of an object, with those of inner objects under "outer inner"; arrays of objects go to `tables`. */
static void put_object(struct table *t, struct buf *tables, slice prefix, slice object, int depth) {
    struct json j;
    slice name, raw;
    enum json_type type;
    json_init(&j, object);
    if (!json_object(&j)) goto out;
    while (json_member(&j, &name) && json_value(&j, &type, &raw)) {
        struct buf label = {0};
        buf_slice_add(&label, prefix);
        if (prefix.n) buf_char(&label, ' ');
        put_label(&label, name);
        struct buf rows = {0};
        if (type == JSON_OBJECT && depth < DEPTH_MAX) {
            put_object(t, tables, buf_slice(&label), raw, depth + 1);
        } else if (type == JSON_ARRAY && put_array(&rows, raw, NULL, "  ")) {
            buf_char(tables, '\n');
            buf_slice_add(tables, buf_slice(&label));
            buf_char(tables, '\n');
            buf_slice_add(tables, buf_slice(&rows));
        } else {
            struct buf value = {0};
            put_value(&value, name, type, raw);
            table_cell(t, buf_slice(&label));
            table_cell(t, slice_eq(buf_slice(&value), SL("[]")) ? SL("none") : buf_slice(&value));
            table_row(t);
            buf_free(&value);
        }
        buf_free(&rows);
        buf_free(&label);
    }
out:
    json_free(&j);
}

void print_page(slice json) {
    struct buf out = {0}, tables = {0};
    struct table *t = table_new();
    put_object(t, &tables, SL(""), json, 0);
    table_print(t, &out, "");
    buf_slice_add(&out, buf_slice(&tables));
    buf_free(&tables);
    print_buf(&out);
}

static bool has_member(slice object, slice wanted) {
    struct json j;
    slice name;
    bool found = false;
    json_init(&j, object);
    if (object.n && json_object(&j))
        while (json_member(&j, &name) && json_skip(&j)) found = found || slice_eq(name, wanted);
    json_free(&j);
    return found;
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
        if (slice_eq(name, SL("config")) || slice_eq(name, SL("rules")) || has_member(config, name)) continue;
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

static void print_items(slice json, const char *const *wanted) {
    struct json j;
    slice name, raw;
    enum json_type type;
    struct buf out = {0};
    json_init(&j, json);
    if (json_object(&j)) {
        while (json_member(&j, &name) && json_value(&j, &type, &raw)) {
            if (slice_eq(name, SL("items")) && !put_array(&out, raw, wanted, "")) fprintf(stderr, "none\n");
        }
    }
    json_free(&j);
    print_buf(&out);
}

void print_list(slice json, const char *const *wanted) {
    struct buf cursor = {0};
    print_items(json, wanted);
    if (member_text(json, "next_cursor", &cursor)) say("there are more: --cursor %.*s", (int)cursor.len, cursor.p);
    buf_free(&cursor);
}
