/* The tape.
 *
 * The text is copied first, with a NUL and room behind it: the copy costs a fiftieth of the reading, and then no byte
 * needs to be asked whether it is the last. A NUL is wrong wherever it is met; only the message depends on whether it is
 * the end.
 *
 * Two passes, both without looking back. The first marks, sixty-four bytes at a time and without a branch, where a
 * string may end or needs a closer look; so that the second finds the end of a string with one shift, however long it
 * is. The second is one loop without recursion: a value is put on the tape; if it opens a container, that becomes the
 * innermost level; behind a complete value, levels are closed until a comma says that one goes on.
 *
 * Finding a repeated member name must be cheap for the objects people send and must not get slow for those an attacker
 * sends. Each open object has a filter of 256 bits over its names' hashes. A name whose bit is not set is new: that
 * settles most of them with one load. Otherwise the object's members are compared one by one, up to MEMBERS_COMPARED;
 * an object with more moves its names into a hash set, keyed, whose collisions nobody can prepare.
 *
 * A sender's texts are mostly of one shape: the same names in the same places, with other values. So each item is compared with
 * the one in its place of the text before, whose copy is still there. As long as both are at the same depth, and what leads
 * to the value, `"name":`, is the same bytes, the texts are in step: the objects that are open have had the same members, and
 * as no name came twice there, none does here. Nothing is hashed then, and no filter filled. Where they first differ the filters
 * of the open objects are made up for, and the rest is read as if there had been no text before. */
#include "base/json_tape.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "base/json_priv.h"

enum {
    BLOCK = 64,         /* also the room behind the copy */
    TEXT_MAX = 1 << 30, /* so that lengths and counts fit their fields */
    MEMBERS_COMPARED = 48,
    ITEMS_FIRST = 256,
    LEAD_MAX = 32,
    TOKEN_MAX = 12,       /* two escapes that make one character: the longest that can be wrong for want of its end */
    ITEMS_KEPT = 1 << 14, /* what a tape holds on to between texts: 640 KiB, and two copies of as much */
    COPY_KEPT = ITEMS_KEPT * 40,
};

struct level {
    u64 seen[4]; /* the filter */
    u32 item;    /* the container */
    u32 members;
    char close; /* '}' or ']' */
    u8 depth;
};

struct reader {
    struct json_tape *tape;
    const char *start, *end;                 /* of the copy; *end is a NUL */
    const char *stops;                       /* a bit for each byte of it, in its order */
    u32 known;                               /* items of the text before; 0: none, or no longer in step with it */
    bool cut;                                /* the text may end anywhere */
    struct level levels[JSON_DEPTH_MAX + 1]; /* each is initialised when it opens; the first is none */
};

static __attribute__((noinline)) const char *skip_spaces(const char *p) {
    while (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t') p++;
    return p;
}

static inline const char *skip_space(const char *p) {
    return __builtin_expect((u8)*p > ' ', 1) ? p : skip_spaces(p);
}

/* To what must come next, which mostly stands there at once. */
static inline const char *skip_space_to(const char *p, char c) {
    return __builtin_expect(*p == c, 1) ? p : skip_spaces(p);
}

/* Everything that reads returns the place behind what it read, or NULL after this. */
static __attribute__((cold, noinline)) const char *fail(struct reader *r, const char *at, const char *message) {
    r->tape->error = message;
    r->tape->error_at = (size_t)(at - r->start);
    return NULL;
}

/* ---- where strings end */

/* One bit for each byte that is not plain. */
static inline u64 stops_in_16(const char *p) {
    return sixteen_bits(json_unplain(sixteen_at(p)));
}

static inline u64 stops_in(const char *p) {
    return stops_in_16(p) | stops_in_16(p + 16) << 16 | stops_in_16(p + 32) << 32 | stops_in_16(p + 48) << 48;
}

void json_stops_plainly(const char *p, size_t blocks, u64 *stops) {
    for (; blocks; blocks--, p += BLOCK) *stops++ = stops_in(p);
}

#ifdef __x86_64__
__attribute__((target("avx2"))) static inline u64 stops_in_32(const char *p) {
    __m256i w = _mm256_loadu_si256((const __m256i *)(const void *)p);
    __m256i quote = _mm256_cmpeq_epi8(w, _mm256_set1_epi8('"'));
    __m256i backslash = _mm256_cmpeq_epi8(w, _mm256_set1_epi8('\\'));
    __m256i other = _mm256_cmpgt_epi8(_mm256_set1_epi8(' '), w);
    return (u32)_mm256_movemask_epi8(_mm256_or_si256(other, _mm256_or_si256(quote, backslash)));
}

__attribute__((target("avx2"))) static void mark_by_avx2(const char *p, size_t blocks, u64 *stops) {
    for (; blocks; blocks--, p += BLOCK) *stops++ = stops_in_32(p) | stops_in_32(p + 32) << 32;
}

static void (*mark)(const char *p, size_t blocks, u64 *stops) = json_stops_plainly;

__attribute__((constructor)) static void choose_mark(void) {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2")) mark = mark_by_avx2;
}

void json_stops(const char *p, size_t blocks, u64 *stops) {
    mark(p, blocks, stops);
}
#else
void json_stops(const char *p, size_t blocks, u64 *stops) {
    json_stops_plainly(p, blocks, stops);
}
#endif

static void swap_copies(struct json_tape *t) {
    char *copy = t->former;
    size_t cap = t->former_cap;
    t->former = t->copy;
    t->former_cap = t->copy_cap;
    t->copy = copy;
    t->copy_cap = cap;
}

/* What is behind the end is all NUL, hence a stop. There is a word more than needed: next_stop reads across. */
static void copy_and_mark(struct json_tape *t, slice text) {
    size_t blocks = text.n / BLOCK + 1, room = (blocks + 1) * BLOCK;
    swap_copies(t);
    if (t->copy_cap < room) {
        mem_free(t->copy);
        t->copy_cap = room + room / 2;
        t->copy = mem_alloc(t->copy_cap);
    }
    if (t->stops_cap < blocks + 1) {
        mem_free(t->stops);
        t->stops_cap = blocks + blocks / 2 + 2;
        t->stops = mem_alloc(t->stops_cap * sizeof *t->stops);
    }
    if (text.n) memcpy(t->copy, text.p, text.n);
    memset(t->copy + text.n, 0, blocks * BLOCK + BLOCK - text.n);
    json_stops(t->copy, blocks, t->stops);
    t->stops[blocks] = 0;
}

/* The first stop at or behind p, which is not behind the end. Most strings are shorter than the 57 bits or more that
 * one load sees, wherever they begin: a branch that is seldom wrong. */
static inline const char *next_stop(const struct reader *r, const char *p) {
    size_t at = (size_t)(p - r->start);
    for (;;) {
        u64 left = get_u64(r->stops + at / 8) >> at % 8;
        if (__builtin_expect(left != 0, 1)) return r->start + at + __builtin_ctzll(left);
        at = at / 8 * 8 + 64;
    }
}

/* From a stop that is no quote on. */
static __attribute__((noinline)) const char *string_end_slow(struct reader *r, const char *p, bool *escaped) {
    const char *message;
    while (*p != '"') {
        size_t n = json_lex_special(p, r->end, &message);
        if (n == 0) return fail(r, p, message);
        *escaped |= *p == '\\';
        p = next_stop(r, p + n);
    }
    return p;
}

/* Validates the string whose opening quote is at p; the place of its closing quote. */
static inline const char *string_end(struct reader *r, const char *p, bool *escaped) {
    *escaped = false;
    p = next_stop(r, p + 1);
    return *p == '"' ? p : string_end_slow(r, p, escaped);
}

/* ---- member names */

/* Eight bytes can be read from the name's beginning on, however short it is. No branch depends on the length. */
static inline u32 hash_in_text(const char *name, size_t n) {
    static const u64 masks[] = {
        0, 0xff, 0xffff, 0xffffff, 0xffffffff, 0xffffffffff, 0xffffffffffff, 0xffffffffffffff, 0xffffffffffffffff};
    size_t seen = n < 8 ? n : 8;
    u64 head = get_u64(name) & masks[seen], tail = get_u64(name + n - seen) & masks[seen];
    return (u32)((head * UINT64_C(0x9E3779B97F4A7C15) + (tail ^ n) * UINT64_C(0xD6E8FEB86659FD93)) >> 32) | 1;
}

u32 json_name_hash(slice name) {
    char padded[8] = {0};
    if (name.n >= 8) return hash_in_text(name.p, name.n);
    if (name.n) memcpy(padded, name.p, name.n);
    return hash_in_text(padded, name.n);
}

static slice unescaped(struct json_tape *t, slice raw) {
    if (!t->scratch) t->scratch = json_scratch_new();
    char *out = json_scratch_reserve(t->scratch, raw.n);
    size_t n = json_lex_unescape(out, raw);
    json_scratch_keep(t->scratch, n);
    return slice_of(out, n);
}

static u32 find_member(const struct json_item *items, u32 from, u32 end, slice name, u32 hash) {
    for (u32 i = from; i < end; i = items[i].next) {
        const struct json_item *item = &items[i];
        if (item->name_hash == hash && slice_eq(json_item_name(item), name)) return i;
    }
    return 0;
}

static __attribute__((noinline)) bool add_to_set(struct reader *r, const struct level *level, slice name) {
    struct json_tape *t = r->tape;
    if (!t->scratch) t->scratch = json_scratch_new();
    if (level->members == MEMBERS_COMPARED) {
        u32 i = level->item + 1;
        for (u32 left = level->members; left; left--, i = t->at[i].next)
            CHECK(json_names_add(t->scratch, level->depth, json_item_name(&t->at[i])));
    }
    return json_names_add(t->scratch, level->depth, name);
}

/* False if the open object has the name already; item `at` is to get it. */
static inline bool remember_name(struct reader *r, struct level *level, u32 at, slice name, u32 hash) {
    u64 *word = &level->seen[hash >> 30], bit = UINT64_C(1) << (hash >> 24 & 63), seen = *word;
    *word = seen | bit;
    bool is_new = true;
    if (__builtin_expect(level->members >= MEMBERS_COMPARED, 0))
        is_new = add_to_set(r, level, name);
    else if (__builtin_expect((seen & bit) != 0, 0))
        is_new = !find_member(r->tape->at, level->item + 1, at, name, hash);
    level->members++;
    return is_new;
}

/* What leads from a name to its value, if that is not long and the name not escaped. */
static inline u8 lead_of(const char *quote, const char *value, bool escaped) {
    size_t n = (size_t)(value - quote);
    return n <= LEAD_MAX && !escaped ? (u8)n : 0;
}

static inline const char *read_name(struct reader *r, struct level *level, const char *p, u32 at,
                                    struct json_item *item) {
    const char *from = p;
    bool escaped;
    if (*p != '"') return fail(r, p, "expected a member name");
    const char *quote = string_end(r, p, &escaped);
    if (!quote) return NULL;
    slice name = slice_of(p + 1, (size_t)(quote - p - 1));
    if (escaped) name = unescaped(r->tape, name);
    u32 hash = escaped ? json_name_hash(name) : hash_in_text(name.p, name.n);
    if (!remember_name(r, level, at, name, hash)) return fail(r, p, "repeated member name");
    item->name = name.p;
    item->name_len = (u32)name.n;
    item->name_hash = hash;
    p = skip_space_to(quote + 1, ':');
    if (*p != ':') return fail(r, p, "expected ':'");
    p = skip_space(p + 1);
    item->lead = lead_of(from, p, escaped);
    return p;
}

/* ---- in step with the text before */

/* Of 1 to LEAD_MAX bytes; as many can be read of either as a block has. */
static inline bool same_lead(const char *a, const char *b, u32 n) {
    u32 same = sixteen_bits(sixteen_at(a) == sixteen_at(b));
    if (n <= 16) return (~same & ((1u << n) - 1)) == 0;
    return same == 0xffff && sixteen_bits(sixteen_at(a + n - 16) == sixteen_at(b + n - 16)) == 0xffff;
}

/* Does the item at p go on in step? was: the one in its place. */
static inline bool in_step(const struct level *level, const char *p, const struct json_item *was) {
    if (was->depth != level->depth) return false;
    return level->close != '}' || (was->lead && same_lead(p, was->name - 1, was->lead));
}

/* Out of step before item `at`: the names so far of all objects that are open. */
static __attribute__((noinline)) void fall_out_of_step(struct reader *r, struct level *level, u32 at) {
    const struct json_item *items = r->tape->at;
    r->known = 0;
    for (struct level *l = r->levels + 1; l <= level; l++) {
        u32 last = l < level ? l[1].item : at; /* which is open itself */
        for (u32 i = l->item + 1; l->close == '}' && i < at; i = i == last ? at : items[i].next)
            CHECK(remember_name(r, l, i, json_item_name(&items[i]), items[i].name_hash));
    }
}

/* ---- values */

static inline const char *read_string(struct reader *r, const char *p, struct json_item *item) {
    bool escaped;
    const char *quote = string_end(r, p, &escaped);
    if (!quote) return NULL;
    item->type = JSON_STRING;
    item->escaped = escaped;
    item->text = p + 1;
    item->text_len = (u32)(quote - p - 1);
    return quote + 1;
}

static inline bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* Most numbers are a few digits, the first of them no zero. */
static inline const char *read_number(struct reader *r, const char *p, struct json_item *item) {
    const char *behind = p;
    bool integer = true;
    if (*p != '0')
        while (is_digit(*behind)) behind++;
    if (behind == p || *behind == '.' || (*behind | 0x20) == 'e') {
        behind = p;
        if (!json_lex_number(&behind, r->end, &integer)) return fail(r, behind, "expected a digit");
    }
    item->type = JSON_NUMBER;
    item->integer = integer;
    item->text_len = (u32)(behind - p);
    return behind;
}

static inline const char *read_word(struct reader *r, const char *p, struct json_item *item, enum json_type type,
                                    const char *word, size_t n) {
    if (memcmp(p, word, n) != 0) return fail(r, p, "expected a value");
    item->type = type;
    item->text_len = (u32)n;
    return p + n;
}

/* A string, a number or a word. */
static inline const char *read_scalar(struct reader *r, const char *p, struct json_item *item) {
    switch (*p) {
    case '"':
        return read_string(r, p, item);
    case 't':
        return read_word(r, p, item, JSON_BOOL, "true", 4);
    case 'f':
        return read_word(r, p, item, JSON_BOOL, "false", 5);
    case 'n':
        return read_word(r, p, item, JSON_NULL, "null", 4);
    default:
        if (*p == '-' || is_digit(*p)) return read_number(r, p, item);
        return fail(r, p, p == r->end ? "the text ends where a value should be" : "expected a value");
    }
}

static struct level *open_level(struct reader *r, struct level *level, struct json_item *item, u32 at) {
    bool object = *item->text == '{';
    if (level->depth == JSON_DEPTH_MAX) return fail(r, item->text, "nested too deeply"), NULL;
    item->type = object ? JSON_OBJECT : JSON_ARRAY;
    level[1] = (struct level){.item = at, .close = object ? '}' : ']', .depth = (u8)(level->depth + 1)};
    return level + 1;
}

/* `behind` its bracket; `next` is the item that comes next. */
static inline void close_level(struct reader *r, const struct level *level, const char *behind, u32 next) {
    struct json_item *item = &r->tape->at[level->item];
    item->next = next;
    item->text_len = (u32)(behind - item->text);
    if (level->members > MEMBERS_COMPARED) json_names_clear(r->tape->scratch, level->depth);
}

static const char *fail_in_container(struct reader *r, const struct level *level, const char *p) {
    if (p == r->end) return fail(r, p, "the text ends inside a value");
    return fail(r, p, level->close == '}' ? "expected ',' or '}'" : "expected ',' or ']'");
}

/* The text cannot be read on. If it was cut there, its first `whole` items are what it says, and all that is open ends here. */
static __attribute__((cold, noinline)) const char *stop(struct reader *r, struct level *level, u32 whole) {
    struct json_tape *t = r->tape;
    if (!r->cut || whole == 0 || (size_t)(r->end - r->start) - t->error_at >= TOKEN_MAX) return NULL;
    const struct json_item *last = &t->at[whole - 1];
    if (last->type == JSON_NUMBER && last->text + last->text_len == r->end) whole--; /* it may have had more digits */
    for (; level > r->levels; level--) close_level(r, level, r->end, whole);
    t->count = whole;
    return r->end;
}

static __attribute__((noinline)) void more_items(struct json_tape *t) {
    t->cap = t->cap ? t->cap * 2 : ITEMS_FIRST;
    t->at = mem_realloc(t->at, t->cap * sizeof *t->at);
}

/* The outermost value, with all that is in it. Behind a complete value, what closes there is closed, until a comma says that a
 * level goes on. */
static const char *read_items(struct reader *r, const char *p) {
    struct json_tape *t = r->tape;
    struct level *level = r->levels;
    u32 count = 0;
    for (;;) {
        if (count == t->cap) more_items(t);
        struct json_item *item = &t->at[count];
        if (r->known && !(count < r->known && in_step(level, p, item))) fall_out_of_step(r, level, count);
        item->depth = level->depth;
        if (level->close != '}') {
            item->name = NULL;
            item->name_len = item->name_hash = item->lead = 0;
        } else if (r->known) {
            item->name = p + 1;
            p = skip_space(p + item->lead);
        } else if (!(p = read_name(r, level, p, count, item))) {
            return stop(r, level, count);
        }
        item->text = p;
        item->escaped = item->integer = item->marked = false;
        item->next = ++count;
        if (*p == '{' || *p == '[') {
            level = open_level(r, level, item, count - 1);
            if (!level) return NULL;
            p = skip_space(p + 1);
            if (*p != level->close) {
                if (p == r->end) return fail_in_container(r, level, p), stop(r, level, count);
                continue;
            }
        } else if (!(p = read_scalar(r, p, item))) {
            return stop(r, level, count - 1);
        }
        for (; level > r->levels; level--) {
            p = skip_space(p);
            if (*p == ',') break;
            if (*p++ != level->close) return fail_in_container(r, level, p - 1), stop(r, level, count);
            close_level(r, level, p, count);
        }
        if (level == r->levels) break;
        p = skip_space(p + 1);
    }
    t->count = count;
    return p;
}

static void prepare(struct json_tape *t) {
    if (t->cap > ITEMS_KEPT || t->copy_cap > COPY_KEPT) json_tape_free(t);
    t->count = 0;
    t->error = NULL;
    if (t->scratch) json_scratch_rewind(t->scratch);
}

static bool read_text(struct json_tape *t, slice text, bool cut) {
    struct reader r
        __attribute__((uninitialized)); /* 3 KiB of levels, each set when it opens: not zeroed for every text */
    prepare(t);
    if (text.n > TEXT_MAX) {
        t->error = "too long";
        t->error_at = TEXT_MAX;
        return false;
    }
    copy_and_mark(t, text);
    r.tape = t;
    r.start = t->copy;
    r.end = r.start + text.n;
    r.stops = (const char *)t->stops;
    r.known = t->known;
    r.cut = cut;
    t->known = 0;
    r.levels[0].close = '\0';
    r.levels[0].depth = 0;
    const char *p = read_items(&r, skip_space(r.start));
    if (p && (p = skip_space(p)) < r.end) p = fail(&r, p, "unexpected bytes after the value");
    if (p) {
        t->known = t->error ? 0 : t->count;
        return true;
    }
    /* The sets of the objects still open are not clear. */
    json_scratch_free(t->scratch);
    t->scratch = NULL;
    return false;
}

bool json_tape_read(struct json_tape *t, slice text) {
    return read_text(t, text, false);
}

bool json_tape_read_cut(struct json_tape *t, slice text) {
    return read_text(t, text, true);
}

void json_tape_free(struct json_tape *t) {
    mem_free(t->at);
    mem_free(t->stops);
    mem_free(t->copy);
    mem_free(t->former);
    json_scratch_free(t->scratch);
    *t = (struct json_tape){0};
}

/* ---- looking */

u32 json_tape_member(const struct json_tape *t, u32 object, slice name, u32 hash) {
    const struct json_item *item = &t->at[object];
    return item->type == JSON_OBJECT ? find_member(t->at, object + 1, item->next, name, hash) : 0;
}

u32 json_tape_element(const struct json_tape *t, u32 array, u32 index) {
    const struct json_item *item = &t->at[array];
    if (item->type != JSON_ARRAY) return 0;
    u32 i = array + 1;
    while (i < item->next && index--) i = t->at[i].next;
    return i < item->next ? i : 0;
}

void json_item_string(const struct json_item *item, struct buf *out) {
    CHECK(item->type == JSON_STRING);
    buf_grow(out, item->text_len);
    if (item->escaped)
        out->len += json_lex_unescape(out->p + out->len, json_item_text(item));
    else
        buf_slice_add(out, json_item_text(item));
}
