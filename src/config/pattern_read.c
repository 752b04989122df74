/* From a pattern's text to its program, in one pass and without recursion: what a group or a repetition is about is the
 * piece of program written last, and pieces can be moved and copied as they stand. */
#include <stdlib.h>

#include "config/pattern_priv.h"

struct group {
    const char *opened;
    u32 start, branch; /* of its piece, and of the alternative being read */
    u32 jump; /* the last alternative's jump to the end, each naming the one before; 0: none, for a jump is never
                          the program's first instruction */
};

#define NO_PIECE UINT32_MAX

struct reader {
    const char *start, *p, *end;
    struct program *program;
    u32 piece; /* what a repetition here would be about */
    bool repeated;
    u32 depth;
    struct group groups[PATTERN_DEPTH_MAX + 1];
    u32 set_from; /* the ranges of the set being read */
    struct errbuf *err;
};

static hx_st wrong(struct reader *r, const char *at, const char *message) {
    r->p = at;
    return err_set(r->err, ST_INVALID, "%s", message);
}

/* ---- writing */

static hx_st need(struct reader *r, const char *at, u64 more) {
    struct program *out = r->program;
    if (more <= out->limit - out->count) return ST_OK;
    r->p = at;
    return err_set(r->err, ST_INVALID, "too large: with all repetitions written out it takes more than %s%u steps",
                   out->limit < PATTERN_STATES_MAX ? "what other patterns have left, " : "", out->limit);
}

/* There is room: need has been asked. */
static void put(struct program *out, enum pattern_op op, i64 arg) {
    CHECK(out->count < out->limit && arg >= INT16_MIN && arg <= INT16_MAX);
    out->at[out->count++] = (struct instruction){(int16_t)op, (int16_t)arg};
}

static void put_copy(struct program *out, const struct instruction *piece, u32 count) {
    CHECK(count <= out->limit - out->count);
    memcpy(out->at + out->count, piece, count * sizeof *piece);
    out->count += count;
}

static hx_st put_one(struct reader *r, const char *at, enum pattern_op op, i64 arg) {
    hx_st st = need(r, at, 1);
    if (st == ST_OK) put(r->program, op, arg);
    return st;
}

/* ---- sets of characters */

static void add_range(struct reader *r, u32 from, u32 to) {
    struct code_range range = {from, to};
    buf_add(&r->program->ranges, &range, sizeof range);
}

static u32 range_count(const struct program *p) {
    return (u32)(p->ranges.len / sizeof(struct code_range));
}

static int by_start(const void *a, const void *b) {
    const struct code_range *x = a, *y = b;
    return (x->from > y->from) - (x->from < y->from);
}

/* In order and apart: what touches becomes one. */
static void normalise(struct program *p, u32 first) {
    struct code_range *at = program_ranges(p, first);
    u32 count = range_count(p) - first, kept = 0;
    if (count == 0) return;
    qsort(at, count, sizeof *at, by_start);
    for (u32 i = 1; i < count; i++) {
        if (at[i].from > at[kept].to + 1)
            at[++kept] = at[i];
        else if (at[i].to > at[kept].to)
            at[kept].to = at[i].to;
    }
    p->ranges.len = (first + kept + 1) * sizeof *at;
}

/* All the others: the gaps, put behind and then moved to the front. */
static void complement(struct reader *r) {
    struct program *p = r->program;
    u32 first = r->set_from, end = range_count(p), next = 0;
    for (u32 i = first; i < end; i++) {
        struct code_range range = *program_ranges(p, i);
        if (range.from > next) add_range(r, next, range.from - 1);
        next = range.to + 1;
    }
    if (next < CODE_POINT_END) add_range(r, next, CODE_POINT_END - 1);
    u32 count = range_count(p) - end;
    memmove(program_ranges(p, first), program_ranges(p, end), count * sizeof(struct code_range));
    p->ranges.len = (first + count) * sizeof(struct code_range);
}

static void begin_set(struct reader *r) {
    r->set_from = range_count(r->program);
}

/* The set's number; one that is known already keeps its own. */
static u32 set_number(struct reader *r) {
    struct program *p = r->program;
    normalise(p, r->set_from);
    struct code_set set = {r->set_from, range_count(p) - r->set_from};
    const struct code_range *ranges = program_ranges(p, set.first);
    for (u32 i = 0; i < p->set_count; i++) {
        bool same = p->sets[i].count == set.count &&
                    memcmp(program_ranges(p, p->sets[i].first), ranges, set.count * sizeof *ranges) == 0;
        if (!same) continue;
        p->ranges.len = set.first * sizeof *ranges;
        return i;
    }
    CHECK(p->set_count < PATTERN_SETS_MAX); /* each was at least a byte of the text */
    p->sets[p->set_count] = set;
    return p->set_count++;
}

static hx_st put_set(struct reader *r, const char *at) {
    r->piece = r->program->count;
    return put_one(r, at, OP_SET, set_number(r));
}

static hx_st put_character(struct reader *r, const char *at, u32 c) {
    begin_set(r);
    add_range(r, c, c);
    return put_set(r, at);
}

/* ---- names of sets, and escapes */

static const struct {
    const char *name;
    const char *pairs; /* from and to, again and again */
} named[] = {
    {"alpha", "AZaz"}, {"digit", "09"},     {"alnum", "09AZaz"},         {"upper", "AZ"},
    {"lower", "az"},   {"space", "\t\r  "}, {"blank", "\t\t  "},         {"punct", "!/:@[`{~"},
    {"print", " ~"},   {"graph", "!~"},     {"cntrl", "\1\037\177\177"}, /* and NUL */ {"xdigit", "09AFaf"},
};

static void add_pairs(struct reader *r, const char *pairs) {
    for (; *pairs; pairs += 2) add_range(r, (u8)pairs[0], (u8)pairs[1]);
}

/* Of \d, \w and \s; NULL if it is another. */
static const char *escaped_set(char c) {
    return c == 'd' ? "09" : c == 'w' ? "09AZ__az" : c == 's' ? "\t\r  " : NULL;
}

static bool is_punctuation(char c) {
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
}

/* Behind the backslash: a single character, or 0 if it is none. */
static u32 escaped_character(char c) {
    if (is_punctuation(c) || c == ' ') return (u8)c;
    return c == 't' ? '\t' : c == 'n' ? '\n' : c == 'r' ? '\r' : 0;
}

static hx_st unknown_escape(struct reader *r, const char *at) {
    if (at + 1 < r->end && at[1] >= '1' && at[1] <= '9')
        return wrong(r, at, "back-references can take forever; not supported");
    return wrong(r, at,
                 at + 1 == r->end ? "a backslash at the end" : "no such escape: there are \\d \\w \\s \\t \\n \\r");
}

static hx_st read_escape(struct reader *r) {
    const char *at = r->p;
    char c = at + 1 < r->end ? at[1] : '\0';
    bool others = c == 'D' || c == 'W' || c == 'S';
    const char *pairs = escaped_set(others ? (char)(c - 'A' + 'a') : c);
    if (!pairs && !escaped_character(c)) return unknown_escape(r, at);
    r->p += 2;
    if (!pairs) return put_character(r, at, escaped_character(c));
    begin_set(r);
    add_pairs(r, pairs);
    if (others) complement(r);
    return put_set(r, at);
}

/* ---- brackets */

/* At "[:". */
static hx_st read_named(struct reader *r) {
    slice text = slice_of(r->p + 2, (size_t)(r->end - r->p) - 2);
    const char *close = memmem(text.p, text.n, ":]", 2);
    slice name = slice_of(text.p, close ? (size_t)(close - text.p) : 0);
    for (size_t i = 0; i < sizeof named / sizeof named[0]; i++) {
        if (!slice_eq(name, slice_str(named[i].name))) continue;
        add_pairs(r, named[i].pairs);
        if (name.p[0] == 'c') add_range(r, 0, 0);
        r->p = close + 2;
        return ST_OK;
    }
    return wrong(r, r->p,
                 "no such set: there are [:alpha:] [:digit:] [:alnum:] [:upper:] [:lower:] [:space:] [:blank:] "
                 "[:punct:] [:print:] [:graph:] [:cntrl:] [:xdigit:]");
}

/* One end of a range, or a character for itself. */
static hx_st read_end(struct reader *r, u32 *out) {
    if (*r->p != '\\') {
        *out = code_point(&r->p);
        return ST_OK;
    }
    *out = r->p + 1 < r->end ? escaped_character(r->p[1]) : 0;
    if (!*out) return unknown_escape(r, r->p);
    r->p += 2;
    return ST_OK;
}

static hx_st read_range(struct reader *r) {
    const char *at = r->p;
    u32 from, to;
    hx_st st = read_end(r, &from);
    if (st != ST_OK) return st;
    to = from;
    if (r->end - r->p >= 2 && r->p[0] == '-' && r->p[1] != ']') {
        r->p++;
        st = read_end(r, &to);
        if (st != ST_OK) return st;
    }
    if (to < from) return wrong(r, at, "the range ends before it begins");
    add_range(r, from, to);
    return ST_OK;
}

static hx_st read_item(struct reader *r) {
    char next = r->p + 1 < r->end ? r->p[1] : '\0';
    if (r->p[0] == '[' && next == ':') return read_named(r);
    if (r->p[0] == '[' && (next == '.' || next == '=')) return wrong(r, r->p, "[.x.] and [=x=] are not supported");
    const char *pairs = r->p[0] == '\\' ? escaped_set(next) : NULL;
    if (!pairs) return read_range(r);
    add_pairs(r, pairs);
    r->p += 2;
    return ST_OK;
}

static hx_st read_bracket(struct reader *r) {
    const char *at = r->p++;
    bool others = r->p < r->end && *r->p == '^', first = true;
    if (others) r->p++;
    begin_set(r);
    for (; r->p < r->end && (first || *r->p != ']'); first = false) {
        hx_st st = read_item(r);
        if (st != ST_OK) return st;
    }
    if (r->p >= r->end) return wrong(r, at, "the bracket opened here is not closed");
    r->p++;
    normalise(r->program, r->set_from);
    if (others) complement(r);
    return put_set(r, at);
}

/* ---- groups and alternatives */

static void open_group(struct reader *r, const char *at) {
    u32 here = r->program->count;
    r->groups[r->depth] = (struct group){at, here, here, 0};
    r->piece = NO_PIECE;
}

static hx_st read_open(struct reader *r) {
    const char *at = r->p++;
    bool plain = r->p == r->end || *r->p != '?';
    if (!plain && (r->end - r->p < 2 || r->p[1] != ':')) return wrong(r, at, "of (?...) there is only (?:...)");
    if (r->depth == PATTERN_DEPTH_MAX) return wrong(r, at, "groups nested too deeply");
    if (!plain) r->p += 2;
    r->depth++;
    open_group(r, at);
    return ST_OK;
}

/* The alternative read so far is one of two ways, and jumps to the group's end. */
static hx_st read_or(struct reader *r) {
    struct group *g = &r->groups[r->depth];
    struct program *out = r->program;
    hx_st st = need(r, r->p, 2);
    if (st != ST_OK) return st;
    memmove(out->at + g->branch + 1, out->at + g->branch, (out->count - g->branch) * sizeof out->at[0]);
    out->count++;
    u32 jump = out->count;
    put(out, OP_JUMP, g->jump);
    out->at[g->branch] = (struct instruction){OP_SPLIT, (int16_t)(out->count - g->branch)};
    g->jump = jump;
    g->branch = out->count;
    r->piece = NO_PIECE;
    r->p++;
    return ST_OK;
}

static void close_group(struct reader *r) {
    struct program *out = r->program;
    for (u32 at = r->groups[r->depth].jump, before; at; at = before) {
        before = (u32)out->at[at].arg;
        out->at[at].arg = (int16_t)(out->count - at);
    }
}

static hx_st read_close(struct reader *r) {
    if (r->depth == 0) return wrong(r, r->p, "a ')' without its '('; the character is written \\)");
    close_group(r);
    r->piece = r->groups[r->depth--].start;
    r->p++;
    return ST_OK;
}

/* ---- repetitions */

#define ENDLESS UINT32_MAX

static u64 repeated_size(u64 size, u32 least, u32 most) {
    if (most == ENDLESS) return least ? least * size + 1 : size + 2;
    return least * size + (most - least) * (size + 1);
}

/* The last piece, written down `least` times, then as often as it may also be left out. */
static hx_st repeat(struct reader *r, const char *at, u32 least, u32 most) {
    struct program *out = r->program;
    struct instruction piece[PATTERN_STATES_MAX];
    u32 size = out->count - r->piece;
    memcpy(piece, out->at + r->piece, size * sizeof piece[0]);
    out->count = r->piece;
    hx_st st = need(r, at, repeated_size(size, least, most));
    if (st != ST_OK) return st;
    for (u32 i = 0; i < least; i++) put_copy(out, piece, size);
    if (most == ENDLESS && least) {
        put(out, OP_SPLIT, -(i64)size);
    } else if (most == ENDLESS) {
        put(out, OP_SPLIT, (i64)size + 2);
        put_copy(out, piece, size);
        put(out, OP_JUMP, -(i64)size - 1);
    } else {
        for (u32 left = most - least; left; left--) {
            put(out, OP_SPLIT, (i64)left * (size + 1));
            put_copy(out, piece, size);
        }
    }
    return ST_OK;
}

/* Digits up to PATTERN_REPEAT_MAX; false if there is none. A larger number stays larger. */
static bool read_number(struct reader *r, u32 *out) {
    const char *from = r->p;
    for (*out = 0; r->p < r->end && *r->p >= '0' && *r->p <= '9'; r->p++)
        if (*out <= PATTERN_REPEAT_MAX) *out = *out * 10 + (u32)(*r->p - '0');
    return r->p > from;
}

/* Behind the brace. */
static hx_st read_bounds(struct reader *r, const char *at, u32 *least, u32 *most) {
    bool lower = read_number(r, least), comma = r->p < r->end && *r->p == ',';
    *most = *least;
    if (comma) {
        r->p++;
        if (!read_number(r, most)) *most = ENDLESS;
    }
    bool closed = r->p < r->end && *r->p == '}';
    if (!closed || (!lower && (!comma || *most == ENDLESS)))
        return wrong(r, at, "a repetition is {2}, {2,} or {2,5}; the character is written \\{");
    r->p++;
    if (*least > PATTERN_REPEAT_MAX || (*most != ENDLESS && *most > PATTERN_REPEAT_MAX))
        return wrong(r, at, "more than 1000 repetitions");
    if (*most < *least) return wrong(r, at, "the repetition's upper bound is below its lower one");
    return ST_OK;
}

static hx_st read_repetition(struct reader *r) {
    const char *at = r->p++;
    u32 least = *at == '+', most = *at == '?' ? 1 : ENDLESS;
    if (r->repeated && *at == '?') return wrong(r, at, "a lazy repetition matches the same texts: leave the ? out");
    if (r->repeated) return wrong(r, at, "a repetition of a repetition: put the inner one into parentheses");
    if (r->piece == NO_PIECE) return wrong(r, at, "nothing to repeat stands before this");
    hx_st st = *at == '{' ? read_bounds(r, at, &least, &most) : ST_OK;
    return st == ST_OK ? repeat(r, at, least, most) : st;
}

/* ---- reading */

static hx_st read_anchor(struct reader *r) {
    r->piece = NO_PIECE;
    hx_st st = put_one(r, r->p, *r->p == '^' ? OP_BEGIN : OP_END, 0);
    if (st == ST_OK) r->p++;
    return st;
}

static hx_st read_any(struct reader *r) {
    begin_set(r);
    add_range(r, 0, CODE_POINT_END - 1);
    return put_set(r, r->p++);
}

static hx_st read_next(struct reader *r) {
    const char *at = r->p;
    switch (*at) {
    case '(':
        return read_open(r);
    case ')':
        return read_close(r);
    case '|':
        return read_or(r);
    case '^':
    case '$':
        return read_anchor(r);
    case '[':
        return read_bracket(r);
    case '.':
        return read_any(r);
    case '\\':
        return read_escape(r);
    default:
        return put_character(r, at, code_point(&r->p));
    }
}

static hx_st read_all(struct reader *r) {
    open_group(r, r->p);
    while (r->p < r->end) {
        bool repetition = memchr("*+?{", *r->p, 4) != NULL;
        hx_st st = repetition ? read_repetition(r) : read_next(r);
        if (st != ST_OK) return st;
        r->repeated = repetition;
    }
    if (r->depth) return wrong(r, r->groups[r->depth].opened, "the group opened here is not closed");
    close_group(r);
    return put_one(r, r->p, OP_MATCH, 0);
}

hx_st program_read(slice text, u32 limit, struct program *out, u32 *column, struct errbuf *err) {
    struct reader r = {.start = text.p, .p = text.p, .end = text.p + text.n, .program = out, .err = err};
    hx_st st = ST_OK;
    out->limit = limit < PATTERN_STATES_MAX ? limit : PATTERN_STATES_MAX;
    out->count = out->set_count = 0;
    out->ranges = (struct buf){0};
    if (text.n > PATTERN_BYTES_MAX)
        st = wrong(&r, r.start + PATTERN_BYTES_MAX, "longer than 256 bytes");
    else if (!utf8_valid(text))
        st = wrong(&r, r.start, "not UTF-8");
    else
        st = read_all(&r);
    *column = (u32)(r.p - r.start) + 1;
    return st;
}

void program_free(struct program *p) {
    buf_free(&p->ranges);
}
