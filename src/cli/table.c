/* Tables. Into a file or a pipe every cell goes whole: somebody searches there. On a terminal they fit it: a table with a head
 * has its columns in the order of their importance, the first is never cut or left out, those marked flexible are cut, and
 * those that find no room are left out from the right, which is said. When the first column alone takes more than half of the
 * terminal it gets lines of its own. */
#include <unistd.h>

#include "cli/cli.h"

enum { COLUMNS_MAX = 32, FLEXIBLE_LEAST = 20, CELL_MAX = 60, CELL_WIDE_MAX = 1000, GAP = 2 };

struct cell {
    size_t at, bytes, width;
    enum tone tone;
    bool last; /* of its row */
};

struct table {
    struct buf text, cells;
    bool head, wraps;
    u32 flexible; /* a bit a column */
};

struct layout {
    size_t widths[COLUMNS_MAX];
    bool shown[COLUMNS_MAX], right[COLUMNS_MAX];
    size_t count;
    bool stacked;
};

static struct buf left_out; /* the titles of what was left out, over all tables */

struct table *table_new(void) {
    return mem_zalloc(sizeof(struct table));
}

void table_cell(struct table *t, slice clean) {
    struct cell c = {t->text.len, clean.n, text_width(clean), TONE_PLAIN, false};
    buf_slice_add(&t->text, clean);
    buf_add(&t->cells, &c, sizeof(c));
}

static struct cell *cells_of(const struct table *t, size_t *count) {
    *count = t->cells.len / sizeof(struct cell);
    return (struct cell *)(void *)t->cells.p;
}

void table_tone(struct table *t, enum tone tone) {
    size_t n;
    struct cell *cells = cells_of(t, &n);
    if (n) cells[n - 1].tone = tone;
}

void table_row(struct table *t) {
    size_t n;
    struct cell *cells = cells_of(t, &n);
    if (n) cells[n - 1].last = true;
}

void table_head(struct table *t, u32 flexible) {
    t->head = true;
    t->flexible = flexible;
}

void table_wraps(struct table *t) {
    t->wraps = true;
}

/* ---- the layout */

static slice text_of(const struct table *t, const struct cell *c) {
    return slice_of(t->text.p + c->at, c->bytes);
}

static bool is_number(slice s) {
    for (size_t i = 0; i < s.n; i++)
        if ((s.p[i] < '0' || s.p[i] > '9') && s.p[i] != ',' && s.p[i] != '.') return false;
    return true;
}

static size_t natural_width(const struct table *t, const struct cell *c, size_t column) {
    size_t most = t->flexible >> column & 1 ? (text_is_wide() ? CELL_WIDE_MAX : CELL_MAX) : SIZE_MAX;
    return c->width < most ? c->width : most;
}

/* A column nobody has anything to say in is not shown; one of numbers is set to the right. */
static void measure(const struct table *t, struct layout *l) {
    size_t n, column = 0;
    const struct cell *cells = cells_of(t, &n);
    bool first_row = true;
    for (size_t i = 0; i < COLUMNS_MAX; i++) l->right[i] = t->head;
    for (size_t i = 0; i < n; i++) {
        size_t c = column < COLUMNS_MAX ? column : COLUMNS_MAX - 1, width = natural_width(t, &cells[i], c);
        bool title = t->head && first_row;
        if (width > l->widths[c]) l->widths[c] = width;
        if (!title && cells[i].bytes) l->shown[c] = true;
        if (!title && !is_number(text_of(t, &cells[i]))) l->right[c] = false;
        if (c >= l->count) l->count = c + 1;
        column = cells[i].last ? 0 : column + 1;
        first_row = first_row && !cells[i].last;
    }
    l->shown[0] = true;
    if (t->head) return;
    for (size_t i = 0; i < l->count; i++) l->shown[i] = true;
}

static size_t least_width(const struct table *t, const struct layout *l, size_t c) {
    bool flexible = t->flexible >> c & 1;
    return flexible && l->widths[c] > FLEXIBLE_LEAST ? FLEXIBLE_LEAST : l->widths[c];
}

/* What the shown columns need at least, from column `from` on. */
static size_t least_total(const struct table *t, const struct layout *l, size_t from) {
    size_t total = 0;
    for (size_t c = from; c < l->count; c++)
        if (l->shown[c]) total += least_width(t, l, c) + (total ? GAP : 0);
    return total;
}

static void leave_out(const struct table *t, struct layout *l, size_t c) {
    size_t n;
    const struct cell *titles = cells_of(t, &n);
    l->shown[c] = false;
    if (left_out.len) buf_lit(&left_out, ", ");
    buf_slice_add(&left_out, text_of(t, &titles[c]));
}

/* Flexible columns share what is left, those on the left first. */
static void hand_out(const struct table *t, struct layout *l, size_t from, size_t spare) {
    for (size_t c = from; c < l->count; c++) {
        size_t least = least_width(t, l, c), more = l->widths[c] - least;
        if (!l->shown[c]) continue;
        if (more > spare) more = spare;
        l->widths[c] = least + more;
        spare -= more;
    }
}

static void fit(const struct table *t, struct layout *l, size_t room) {
    l->stacked = l->count > 1 && room != SIZE_MAX && l->widths[0] > room / 2 && least_total(t, l, 0) > room;
    size_t from = l->stacked ? 1 : 0;
    if (l->stacked) room = room > GAP ? room - GAP : 1;
    for (size_t c = l->count - 1; c > from && least_total(t, l, from) > room; c--)
        if (l->shown[c]) leave_out(t, l, c);
    size_t least = least_total(t, l, from);
    hand_out(t, l, from, room > least ? room - least : 0);
}

/* ---- the rows */

static void pad(struct buf *b, size_t n) {
    while (n--) buf_char(b, ' ');
}

/* A cell that is not cut may be longer than its column is wide: it pushes its row, and the others are not padded to it. */
static void put_cell(const struct table *t, const struct cell *c, size_t width, bool right, bool last, bool title,
                     struct buf *out) {
    struct buf cut = {0};
    size_t most = isatty(STDOUT_FILENO) ? width : SIZE_MAX;
    size_t taken = text_cut(&cut, c->bytes || title || !t->head ? text_of(t, c) : SL("-"), most);
    size_t rest = width > taken ? width - taken : 0;
    if (right) pad(out, rest);
    text_tone(out, title ? TONE_HEAD : c->tone, buf_slice(&cut), STDOUT_FILENO);
    if (!right && !last) pad(out, rest);
    buf_free(&cut);
}

static size_t last_shown(const struct layout *l) {
    size_t last = 0;
    for (size_t c = 0; c < l->count; c++)
        if (l->shown[c]) last = c;
    return last;
}

static void put_row(const struct table *t, const struct layout *l, const struct cell *row, size_t n, bool title,
                    const char *indent, struct buf *out) {
    size_t last = last_shown(l);
    buf_slice_add(out, slice_str(indent));
    for (size_t c = 0; c < n && c < l->count; c++) {
        if (!l->shown[c]) continue;
        bool over = c == last || c + 1 == n, own_line = c == 0 && l->stacked && last > 0;
        put_cell(t, &row[c], l->widths[c], l->right[c] && !own_line, over || own_line, title, out);
        if (over) break;
        if (own_line) {
            buf_char(out, '\n');
            buf_slice_add(out, slice_str(indent));
        }
        pad(out, GAP);
    }
    buf_char(out, '\n');
}

/* The last column under itself, for texts: its head stays beside it. */
static void put_wrapped_row(const struct table *t, const struct layout *l, const struct cell *row, size_t n,
                            const char *indent, size_t room, struct buf *out) {
    size_t at = strlen(indent);
    buf_slice_add(out, slice_str(indent));
    for (size_t c = 0; c + 1 < n; c++) {
        put_cell(t, &row[c], l->widths[c], false, false, false, out);
        pad(out, GAP);
        at += l->widths[c] + GAP;
    }
    text_wrap(out, text_of(t, &row[n - 1]), at, at, room);
    buf_char(out, '\n');
}

void table_print(struct table *t, struct buf *out, const char *indent) {
    struct layout l = {0};
    size_t n, columns = text_columns(STDOUT_FILENO), taken = strlen(indent);
    const struct cell *cells = cells_of(t, &n);
    measure(t, &l);
    if (t->head) fit(t, &l, columns == SIZE_MAX ? columns : columns > taken ? columns - taken : 1);
    for (size_t from = 0, i = 0; i < n; i++) {
        if (!cells[i].last) continue;
        if (t->wraps)
            put_wrapped_row(t, &l, &cells[from], i + 1 - from, indent, columns < 100 ? columns : 80, out);
        else
            put_row(t, &l, &cells[from], i + 1 - from, t->head && from == 0, indent, out);
        from = i + 1;
    }
    buf_free(&t->text);
    buf_free(&t->cells);
    mem_free(t);
}

void table_say_left_out(void) {
    if (left_out.len) say("no room for: %.*s (--wide shows all)", (int)left_out.len, left_out.p);
    buf_free(&left_out);
}
