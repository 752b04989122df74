/* Matching in bounded time and memory. (regcomp and regexec of the C library overflow the stack on 210 bytes, take
 * gigabytes on thirty, and some texts make them quadratic; whoever may set a queue's rules could stop the broker.)
 *
 * Characters that no set of the pattern tells apart form a class, so an automaton's table has a few columns and not a
 * million. A state of the automaton is a set of instructions the program can be at. The automaton is made at once and not
 * while matching: then a pattern never changes, what it costs is known when it is accepted, and the few patterns whose
 * automaton is large (`^.{1,64}@.{1,255}$` has an exponential one) are matched by the program itself. */
#include <stdlib.h>

#include "config/pattern_priv.h"

enum {
    CLASSES_MAX = 256,
    ASCII = 128,
    STATES_MAX = 1024, /* of an automaton */
    ENTRIES_MAX = 8192,
    SET_WORDS = PATTERN_SETS_MAX / 64,
    WORDS_MAX = PATTERN_STATES_MAX / 64,
};

/* The code points from here to the next one's. */
struct interval {
    u32 from;
    u32 class;
};

struct class {
    u64 sets[SET_WORDS]; /* those it belongs to */
};

struct pattern {
    u8 ascii[ASCII]; /* the class of each */
    const struct class *classes;
    const struct interval *intervals; /* all others, in order */
    u32 class_count, interval_count;
    /* The automaton: for each state, at its number times class_count, where each class leads, in the same measure.
     * NULL: the program is followed instead. */
    const u16 *next;
    const u64 *ends; /* a bit for each state: a text that ends there is matched */
    u32 start;
    const struct instruction *program; /* NULL beside an automaton */
    u32 count;
};

enum { MATCHED, DEAD }; /* the first two states; no way leads out of them */

/* ---- classes */

static int by_code_point(const void *a, const void *b) {
    const struct interval *x = a, *y = b;
    return (x->from > y->from) - (x->from < y->from);
}

/* Wherever a set begins or ends, and where ASCII does. */
static u32 cut_intervals(const struct program *program, struct interval *out) {
    u32 ranges = (u32)(program->ranges.len / sizeof(struct code_range)), count = 0, kept = 0;
    out[count++].from = 0;
    out[count++].from = ASCII;
    for (u32 i = 0; i < ranges; i++) {
        out[count++].from = program_ranges(program, i)->from;
        out[count++].from = program_ranges(program, i)->to + 1;
    }
    qsort(out, count, sizeof *out, by_code_point);
    for (u32 i = 1; i < count; i++)
        if (out[i].from != out[kept].from && out[i].from < CODE_POINT_END) out[++kept] = out[i];
    return kept + 1;
}

static bool set_has(const struct program *program, u32 set, u32 c) {
    const struct code_range *at = program_ranges(program, program->sets[set].first),
                            *end = at + program->sets[set].count;
    while (at < end && at->to < c) at++;
    return at < end && at->from <= c;
}

static struct class class_at(const struct program *program, u32 c) {
    struct class class = {0};
    for (u32 i = 0; i < program->set_count; i++)
        if (set_has(program, i, c)) class.sets[i / 64] |= UINT64_C(1) << i % 64;
    return class;
}

/* False: too many of them. */
static bool find_classes(const struct program *program, struct interval *at, u32 count, struct class *classes,
                         u32 *class_count) {
    *class_count = 0;
    for (u32 i = 0; i < count; i++) {
        struct class class = class_at(program, at[i].from);
        u32 k = 0;
        while (k < *class_count && memcmp(&classes[k], &class, sizeof class) != 0) k++;
        if (k == CLASSES_MAX) return false;
        if (k == *class_count) classes[(*class_count)++] = class;
        at[i].class = k;
    }
    return true;
}

static const void *keep(struct arena *arena, const void *p, size_t bytes) {
    return memcpy(arena_alloc(arena, bytes ? bytes : 1), p, bytes);
}

static bool take_classes(struct pattern *p, const struct program *program, struct arena *arena) {
    struct class classes[CLASSES_MAX];
    size_t ranges = program->ranges.len / sizeof(struct code_range);
    struct interval *at = mem_alloc((2 * ranges + 2) * sizeof *at);
    u32 count = cut_intervals(program, at), i = 0;
    bool ok = find_classes(program, at, count, classes, &p->class_count);
    if (ok) {
        for (u32 c = 0; c < ASCII; c++) {
            if (i + 1 < count && at[i + 1].from == c) i++;
            p->ascii[c] = (u8)at[i].class;
        }
        p->classes = keep(arena, classes, p->class_count * sizeof classes[0]);
        p->intervals = keep(arena, at + i + 1, (count - i - 1) * sizeof *at);
        p->interval_count = count - i - 1;
    }
    mem_free(at);
    return ok;
}

static u32 class_of(const struct pattern *p, u32 c) {
    u32 low = 0, high = p->interval_count;
    if (c < ASCII) return p->ascii[c];
    while (high - low > 1) {
        u32 middle = (low + high) / 2;
        if (p->intervals[middle].from <= c)
            low = middle;
        else
            high = middle;
    }
    return p->intervals[low].class;
}

/* ---- following the program */

enum where { WITHIN = 0, AT_BEGIN = 1, AT_END = 2 };

/* Where it can be: SET and END instructions, for the others lead on by themselves. */
struct places {
    u32 count, waiting;
    bool matched;
    u16 at[PATTERN_STATES_MAX];
    u16 next[PATTERN_STATES_MAX]; /* still to be looked at */
    u64 seen[WORDS_MAX];          /* so each instruction gets there once */
};

static void places_clear(const struct pattern *p, struct places *to) {
    to->count = to->waiting = 0;
    to->matched = false;
    memset(to->seen, 0, (p->count + 63) / 64 * sizeof to->seen[0]);
}

static inline void go(struct places *to, u32 at) {
    u64 *word = &to->seen[at / 64], bit = UINT64_C(1) << at % 64;
    if (*word & bit) return;
    *word |= bit;
    to->next[to->waiting++] = (u16)at;
}

/* Everything that can be reached without a character from where it was let go. */
static void follow(const struct pattern *p, struct places *to, enum where where, u64 *work) {
    while (to->waiting) {
        u32 at = to->next[--to->waiting];
        struct instruction in = p->program[at];
        ++*work;
        switch ((enum pattern_op)in.op) {
        case OP_SPLIT:
            go(to, at + 1);
            go(to, (u32)((int)at + in.arg));
            break;
        case OP_JUMP:
            go(to, (u32)((int)at + in.arg));
            break;
        case OP_BEGIN:
            if (where & AT_BEGIN) go(to, at + 1);
            break;
        case OP_MATCH:
            to->matched = true;
            break;
        case OP_END:
        case OP_SET:
            if (in.op == OP_END && where & AT_END) go(to, at + 1);
            to->at[to->count++] = (u16)at;
        }
    }
}

static void begin(const struct pattern *p, struct places *to, u64 *work) {
    places_clear(p, to);
    go(to, 0);
    follow(p, to, AT_BEGIN, work);
}

/* Over one character; and a match may begin behind it. */
static void step(const struct pattern *p, const struct places *from, u32 class, struct places *to, u64 *work) {
    const struct class *c = &p->classes[class];
    places_clear(p, to);
    for (u32 i = 0; i < from->count; i++) {
        struct instruction in = p->program[from->at[i]];
        if (in.op == OP_SET && c->sets[in.arg / 64] >> in.arg % 64 & 1) go(to, from->at[i] + 1u);
    }
    *work += from->count;
    go(to, 0);
    follow(p, to, WITHIN, work);
}

/* Is a text matched that ends there? */
static bool matched_at_end(const struct pattern *p, const struct places *from, enum where where, u64 *work) {
    struct places to;
    places_clear(p, &to);
    for (u32 i = 0; i < from->count; i++)
        if (p->program[from->at[i]].op == OP_END) go(&to, from->at[i] + 1u);
    follow(p, &to, where | AT_END, work);
    return from->matched || to.matched;
}

static bool match_program(const struct pattern *p, slice text, u64 *work) {
    struct places places[2], *now = &places[0], *next = &places[1];
    begin(p, now, work);
    for (const char *at = text.p, *end = text.p + text.n; at < end && now->count && !now->matched;) {
        step(p, now, class_of(p, code_point(&at)), next, work);
        struct places *before = now;
        now = next;
        next = before;
    }
    return matched_at_end(p, now, text.n ? WITHIN : AT_BEGIN, work);
}

/* ---- the automaton */

struct maker {
    const struct pattern *p;
    u32 words, count, most; /* of a state's set; states */
    u64 *sets;
    u16 *next;
    u64 ends[STATES_MAX / 64];
    u16 table[2 * STATES_MAX]; /* states by their sets, open addressing; 0 is free */
    u64 work, work_most;
};

static u32 hash_set(const u64 *set, u32 words) {
    u64 h = 0;
    for (u32 i = 0; i < words; i++) h = (h ^ set[i] ^ h >> 29) * UINT64_C(0x9E3779B97F4A7C15);
    return (u32)(h >> 32);
}

/* What tells states apart: where the program can be, without what is only on the way there. */
static void set_of(const struct maker *m, const struct places *places, u64 *out) {
    memset(out, 0, m->words * sizeof *out);
    for (u32 i = 0; i < places->count; i++) out[places->at[i] / 64] |= UINT64_C(1) << places->at[i] % 64;
}

static void places_of(const struct maker *m, u32 state, struct places *out) {
    const u64 *set = m->sets + (size_t)state * m->words;
    places_clear(m->p, out);
    for (u32 i = 0; i < m->words; i++)
        for (u64 left = set[i]; left; left &= left - 1)
            out->at[out->count++] = (u16)(i * 64 + (u32)__builtin_ctzll(left));
}

/* False: there would be too many. */
static bool add_state(struct maker *m, const struct places *places, enum where where, u32 *out) {
    if (m->count == m->most) return false;
    set_of(m, places, m->sets + (size_t)m->count * m->words);
    if (matched_at_end(m->p, places, where, &m->work)) m->ends[m->count / 64] |= UINT64_C(1) << m->count % 64;
    *out = m->count++;
    return true;
}

/* The state of these places, new or known. The start is none of those: only there a text begins. */
static bool state_of(struct maker *m, const struct places *places, u32 *out) {
    u64 set[WORDS_MAX];
    *out = places->matched ? MATCHED : DEAD;
    if (places->matched || places->count == 0) return true;
    set_of(m, places, set);
    for (u32 i = hash_set(set, m->words);; i++) {
        u16 *at = &m->table[i % (2 * STATES_MAX)];
        m->work += m->words;
        if (*at == 0) return add_state(m, places, WITHIN, out) && (*at = (u16)*out, true);
        *out = *at;
        if (memcmp(m->sets + (size_t)*at * m->words, set, m->words * sizeof *set) == 0) return true;
    }
}

static bool fill_row(struct maker *m, u32 state) {
    struct places from, to;
    places_of(m, state, &from);
    for (u32 class = 0; class < m->p->class_count; class ++) {
        u32 next;
        step(m->p, &from, class, &to, &m->work);
        if (m->work > m->work_most || !state_of(m, &to, &next)) return false;
        m->next[state * m->p->class_count + class] = (u16)(next * m->p->class_count);
    }
    return true;
}

static bool make_states(struct maker *m, u32 *start) {
    struct places places;
    begin(m->p, &places, &m->work);
    *start = places.matched ? MATCHED : DEAD;
    for (u32 class = 0; class < m->p->class_count; class ++)
        m->next[m->p->class_count + class] = (u16)m->p->class_count;
    m->count = DEAD + 1;
    if (places.matched || places.count == 0) return true;
    if (!add_state(m, &places, AT_BEGIN, start)) return false;
    for (u32 state = *start; state < m->count; state++)
        if (!fill_row(m, state)) return false;
    return true;
}

/* If it is small, and the work to find that out is too. */
static void try_automaton(struct pattern *p, struct pattern_budget *budget, struct arena *arena) {
    u32 most = (budget->entries < ENTRIES_MAX ? budget->entries : ENTRIES_MAX) / p->class_count;
    if (most <= DEAD) return;
    struct maker *m = mem_zalloc(sizeof *m);
    m->p = p;
    m->words = (p->count + 63) / 64;
    m->most = most < STATES_MAX ? most : STATES_MAX;
    m->work_most = budget->work;
    m->sets = mem_alloc((size_t)m->most * m->words * sizeof *m->sets);
    m->next = mem_zalloc((size_t)m->most * p->class_count * sizeof *m->next);
    if (make_states(m, &p->start)) {
        p->start *= p->class_count;
        p->next = keep(arena, m->next, (size_t)m->count * p->class_count * sizeof *m->next);
        p->ends = keep(arena, m->ends, (m->count + 63) / 64 * sizeof m->ends[0]);
        budget->entries -= m->count * p->class_count;
    }
    budget->work -= m->work < budget->work ? m->work : budget->work;
    mem_free(m->sets);
    mem_free(m->next);
    mem_free(m);
}

/* Do these eight, all ASCII, lead from a state back to it? Most of a text is repeats of one set, and so no step waits for the one
 * before. */
static inline bool stays(const struct pattern *p, const u16 *state, u32 row, const char *at) {
    u32 left = 0;
    if (get_u64(at) & HIGH_BITS) return false;
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) left |= state[p->ascii[(u8)at[i]]] ^ row;
    return left == 0;
}

static bool match_automaton(const struct pattern *p, slice text, u64 *work) {
    const char *at = text.p, *end = text.p + text.n;
    const u16 *next = p->next;
    u32 row = p->start, dead = p->class_count;
    while (at < end && row > dead) {
        while (end - at >= 8 && stays(p, next + row, row, at)) at += 8;
        if (at == end) break;
        u32 class = (u8)*at < ASCII ? p->ascii[(u8)*at++] : class_of(p, code_point(&at));
        row = next[row + class];
    }
    *work += (size_t)(at - text.p);
    u32 state = row / p->class_count;
    return state == MATCHED || p->ends[state / 64] >> state % 64 & 1;
}

/* ---- both */

hx_st pattern_compile(slice text, struct pattern_budget *budget, struct arena *arena, struct pattern **out, u32 *column,
                      struct errbuf *err) {
    struct program *program = mem_alloc(sizeof *program);
    struct pattern *p = arena_alloc(arena, sizeof *p);
    *out = NULL;
    hx_st st = program_read(text, budget->states, program, column, err);
    if (st == ST_OK && !take_classes(p, program, arena))
        st = err_set(err, ST_INVALID, "tells more than %d kinds of characters apart", CLASSES_MAX);
    if (st == ST_OK) {
        p->program = program->at;
        p->count = program->count;
        budget->states -= program->count;
        try_automaton(p, budget, arena);
        p->program = p->next ? NULL : keep(arena, program->at, program->count * sizeof program->at[0]);
        *out = p;
    }
    program_free(program);
    mem_free(program);
    return st;
}

bool pattern_match(const struct pattern *p, slice text, u64 *work) {
    return p->next ? match_automaton(p, text, work) : match_program(p, text, work);
}

bool pattern_is_automaton(const struct pattern *p) {
    return p->next != NULL;
}
