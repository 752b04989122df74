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
 * an object with more moves its names into a hash set, keyed, whose collisions nobody can prepare. */
#include "base/json_tape.h"

#include "base/json_priv.h"

enum {
    BLOCK = 64,         /* also the room behind the copy */
    TEXT_MAX = 1 << 30, /* so that lengths and counts fit their fields */
    MEMBERS_COMPARED = 48,
    ITEMS_FIRST = 256,
    ITEMS_KEPT = 1 << 14, /* what a tape holds on to between texts: 640 KiB, and a copy of as much */
    COPY_KEPT = ITEMS_KEPT * 40,
};

struct level {
    u64 seen[4]; /* the filter */
    u32 item;    /* the container */
    u32 members;
    char close; /* '}' or ']' */
};

struct reader {
    struct json_tape *tape;
    const char *start, *end;                 /* of the copy; *end is a NUL */
    const char *stops;                       /* a bit for each byte of it, in its order */
    struct level *top;                       /* the innermost open one; levels[0] if none is */
    struct level levels[JSON_DEPTH_MAX + 1]; /* each is initialised when it opens */
};

static inline int depth_of(const struct reader *r) {
    return (int)(r->top - r->levels);
}

static inline const char *skip_space(const char *p) {
    while ((u8)*p <= ' ' && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')) p++;
    return p;
}

/* Everything that reads returns the place behind what it read, or NULL after this. */
static __attribute__((cold, noinline)) const char *fail(struct reader *r, const char *at, const char *message) {
    r->tape->error = message;
    r->tape->error_at = (size_t)(at - r->start);
    return NULL;
}

/* ---- where strings end */

/* One bit for each byte that is a quote, a backslash, a control character or part of a longer UTF-8 sequence. */
#ifdef __SSE2__
static u64 stops_in(const char *p) {
    const __m128i quote = _mm_set1_epi8('"'), backslash = _mm_set1_epi8('\\'), space = _mm_set1_epi8(' ');
    u64 all = 0;
    for (int i = 0; i < BLOCK; i += 16) {
        __m128i w = _mm_loadu_si128((const __m128i *)(const void *)(p + i));
        __m128i either = _mm_or_si128(_mm_cmpeq_epi8(w, quote), _mm_cmpeq_epi8(w, backslash));
        /* As signed numbers, control characters and bytes from 0x80 on are below the space. */
        __m128i stops = _mm_or_si128(either, _mm_cmpgt_epi8(space, w));
        all |= (u64)(u32)_mm_movemask_epi8(stops) << i;
    }
    return all;
}
#else
static u64 stops_in(const char *p) {
    u64 all = 0;
    for (int i = 0; i < BLOCK; i++) {
        u8 c = (u8)p[i];
        all |= (u64)(c == '"' || c == '\\' || c < ' ' || c >= 0x80) << i;
    }
    return all;
}
#endif

/* What is behind the end is all NUL, hence a stop. There is a word more than needed: next_stop reads across. */
static void copy_and_mark(struct json_tape *t, slice text) {
    size_t blocks = text.n / BLOCK + 1, room = (blocks + 1) * BLOCK;
    if (t->copy_cap < room) {
        mem_free(t->copy);
        mem_free(t->stops);
        t->copy_cap = room + room / 2;
        t->copy = mem_alloc(t->copy_cap);
        t->stops = mem_alloc((t->copy_cap / BLOCK + 2) * sizeof *t->stops);
    }
    if (text.n) memcpy(t->copy, text.p, text.n);
    memset(t->copy + text.n, 0, blocks * BLOCK + BLOCK - text.n);
    for (size_t i = 0; i < blocks; i++) t->stops[i] = stops_in(t->copy + i * BLOCK);
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

static inline u32 mix(u64 head, u64 tail, size_t n) {
    u64 h = (head ^ n) * UINT64_C(0x9E3779B97F4A7C15);
    h = (h ^ h >> 32 ^ tail) * UINT64_C(0xD6E8FEB86659FD93);
    return (u32)(h >> 32) | 1;
}

/* Eight bytes can be read from the name's beginning on, however short it is. No branch depends on the length. */
static inline u32 hash_in_text(slice name) {
    size_t n = name.n;
    u64 head = get_u64(name.p), tail = get_u64(name.p + (n > 8 ? n - 8 : 0));
    u64 mask = n < 8 ? ~(~UINT64_C(0) << 8 * n) : ~UINT64_C(0);
    return mix(head & mask, tail & mask, n);
}

u32 json_name_hash(slice name) {
    char padded[8] = {0};
    if (name.n >= 8) return hash_in_text(name);
    if (name.n) memcpy(padded, name.p, name.n);
    return hash_in_text(slice_of(padded, name.n));
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
            CHECK(json_names_add(t->scratch, depth_of(r), json_item_name(&t->at[i])));
    }
    return json_names_add(t->scratch, depth_of(r), name);
}

/* False if the open object has the name already. The newest item on the tape is to get it. */
static inline bool remember_name(struct reader *r, struct level *level, slice name, u32 hash) {
    u64 *word = &level->seen[hash >> 6 & 3], bit = UINT64_C(1) << (hash >> 8 & 63), seen = *word;
    *word = seen | bit;
    bool is_new = true;
    if (level->members >= MEMBERS_COMPARED)
        is_new = add_to_set(r, level, name);
    else if (seen & bit)
        is_new = !find_member(r->tape->at, level->item + 1, r->tape->count - 1, name, hash);
    level->members++;
    return is_new;
}

static inline const char *read_name(struct reader *r, struct level *level, const char *p, struct json_item *item) {
    bool escaped;
    if (*p != '"') return fail(r, p, "expected a member name");
    const char *quote = string_end(r, p, &escaped);
    if (!quote) return NULL;
    slice name = slice_of(p + 1, (size_t)(quote - p - 1));
    if (escaped) name = unescaped(r->tape, name);
    u32 hash = escaped ? json_name_hash(name) : hash_in_text(name);
    if (!remember_name(r, level, name, hash)) return fail(r, p, "repeated member name");
    item->name = name.p;
    item->name_len = (u32)name.n;
    item->name_hash = hash;
    p = skip_space(quote + 1);
    return *p == ':' ? skip_space(p + 1) : fail(r, p, "expected ':'");
}

/* ---- values */

static inline const char *read_string(struct reader *r, const char *p, struct json_item *item) {
    const char *quote = string_end(r, p, &item->escaped);
    if (!quote) return NULL;
    item->type = JSON_STRING;
    item->text = p + 1;
    item->text_len = (u32)(quote - p - 1);
    return quote + 1;
}

static const char *read_number(struct reader *r, const char *p, struct json_item *item) {
    const char *behind = p;
    if (!json_lex_number(&behind, r->end, &item->integer)) return fail(r, behind, "expected a digit");
    item->type = JSON_NUMBER;
    item->text_len = (u32)(behind - p);
    return behind;
}

static const char *read_word(struct reader *r, const char *p, struct json_item *item, enum json_type type, slice word) {
    if (!slice_starts(slice_of(p, (size_t)(r->end - p)), word)) return fail(r, p, "expected a value");
    item->type = (u8)type;
    item->text_len = (u32)word.n;
    return p + word.n;
}

static const char *open_level(struct reader *r, const char *p, struct json_item *item, enum json_type type) {
    if (depth_of(r) == JSON_DEPTH_MAX) return fail(r, p, "nested too deeply");
    item->type = (u8)type;
    *++r->top = (struct level){.item = r->tape->count - 1, .close = type == JSON_OBJECT ? '}' : ']'};
    return p + 1;
}

static inline const char *read_value(struct reader *r, const char *p, struct json_item *item) {
    item->text = p;
    item->escaped = item->integer = item->marked = false;
    item->next = r->tape->count;
    switch (*p) {
    case '"':
        return read_string(r, p, item);
    case '{':
        return open_level(r, p, item, JSON_OBJECT);
    case '[':
        return open_level(r, p, item, JSON_ARRAY);
    case 't':
        return read_word(r, p, item, JSON_BOOL, SL("true"));
    case 'f':
        return read_word(r, p, item, JSON_BOOL, SL("false"));
    case 'n':
        return read_word(r, p, item, JSON_NULL, SL("null"));
    default:
        if (*p == '-' || (*p >= '0' && *p <= '9')) return read_number(r, p, item);
        return fail(r, p, p == r->end ? "the text ends where a value should be" : "expected a value");
    }
}

static const char *close_level(struct reader *r, const char *behind) {
    const struct level *level = r->top;
    struct json_item *item = &r->tape->at[level->item];
    item->next = r->tape->count;
    item->text_len = (u32)(behind - item->text);
    if (level->members > MEMBERS_COMPARED) json_names_clear(r->tape->scratch, depth_of(r));
    r->top--;
    return behind;
}

static const char *fail_in_container(struct reader *r, const char *p) {
    if (p == r->end) return fail(r, p, "the text ends inside a value");
    return fail(r, p, r->top->close == '}' ? "expected ',' or '}'" : "expected ',' or ']'");
}

/* Behind a value: close what closes here, move over the comma if one level goes on. */
static inline const char *read_tail(struct reader *r, const char *p) {
    while (r->top > r->levels) {
        p = skip_space(p);
        if (*p == ',') return skip_space(p + 1);
        if (*p != r->top->close) return fail_in_container(r, p);
        p = close_level(r, p + 1);
    }
    return p;
}

/* Behind an opening bracket: an empty container is complete. */
static inline const char *read_head(struct reader *r, const char *p) {
    p = skip_space(p);
    if (*p == r->top->close) return read_tail(r, close_level(r, p + 1));
    return p == r->end ? fail_in_container(r, p) : p;
}

static inline struct json_item *new_item(struct json_tape *t) {
    if (t->count == t->cap) {
        t->cap = t->cap ? t->cap * 2 : ITEMS_FIRST;
        t->at = mem_realloc(t->at, t->cap * sizeof *t->at);
    }
    return &t->at[t->count++];
}

/* One item with its name, and whatever ends behind it. */
static inline const char *read_item(struct reader *r, const char *p) {
    struct json_item *item = new_item(r->tape);
    struct level *level = r->top;
    item->name = NULL;
    item->name_len = item->name_hash = 0;
    if (level->close == '}' && !(p = read_name(r, level, p, item))) return NULL;
    p = read_value(r, p, item);
    if (!p) return NULL;
    return r->top == level ? read_tail(r, p) : read_head(r, p);
}

static void prepare(struct json_tape *t) {
    if (t->cap > ITEMS_KEPT || t->copy_cap > COPY_KEPT) json_tape_free(t);
    t->count = 0;
    t->error = NULL;
    if (t->scratch) json_scratch_rewind(t->scratch);
}

bool json_tape_read(struct json_tape *t, slice text) {
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
    r.top = r.levels;
    r.top->close = '\0';
    const char *p = skip_space(r.start);
    do p = read_item(&r, p);
    while (p && r.top > r.levels);
    if (p && (p = skip_space(p)) < r.end) p = fail(&r, p, "unexpected bytes after the value");
    if (p) return true;
    /* The sets of the objects still open are not clear. */
    json_scratch_free(t->scratch);
    t->scratch = NULL;
    return false;
}

void json_tape_free(struct json_tape *t) {
    mem_free(t->at);
    mem_free(t->stops);
    mem_free(t->copy);
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
