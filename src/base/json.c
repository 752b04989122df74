/* The cursor.
 *
 * Nothing is allocated for ordinary texts. A string without escapes is a view of the text. To find a repeated member
 * name, an object's first names are remembered as offsets into the text, in one stack shared by all open objects
 * (names_from; its height is level[0], which no container uses), and compared one by one. An object moves its names
 * to a hash set in the scratch memory when that gets slow (more than INLINE_NAMES), when the stack is full, or when
 * a name had to be unescaped and so is not in the text as it reads.
 *
 * level[1..depth] describe the open containers: which kind, whether an element was seen (is a comma due?), where the
 * names are, and how many of them are on the stack. */
#include "base/json_priv.h"

enum {
    LEVEL_OBJECT = 0x80,
    LEVEL_STARTED = 0x40,
    LEVEL_HASHED = 0x20,
    LEVEL_COUNT = 0x1F, /* names on the stack */
    INLINE_NAMES = 16,
    STACK_NAMES = JSON_DEPTH_MAX + 1,
};

void json_init(struct json *j, slice text) {
    j->start = j->p = text.n ? text.p : "";
    j->end = j->start + text.n;
    j->error = NULL;
    j->error_at = 0;
    j->depth = 0;
    j->values_left = UINT32_MAX;
    j->scratch = NULL;
    j->level[0] = 0;
}

void json_free(struct json *j) {
    json_scratch_free(j->scratch);
    j->scratch = NULL;
}

static struct json_scratch *scratch_of(struct json *j) {
    if (!j->scratch) j->scratch = json_scratch_new();
    return j->scratch;
}

static bool fail_at(struct json *j, const char *at, const char *message) {
    if (j->error) return false;
    j->error = message;
    j->error_at = (size_t)(at - j->start);
    return false;
}

bool json_fail(struct json *j, const char *message) {
    return fail_at(j, j->p, message);
}

void json_error(const struct json *j, struct buf *out) {
    if (!j->error) return;
    buf_slice_add(out, slice_str(j->error));
    buf_lit(out, " at byte ");
    buf_dec(out, j->error_at);
}

/* The next byte that is not white space, still unread; -1 at the end of the text. */
static inline int next_byte(struct json *j) {
    j->p = json_skip_space(j->p, j->end);
    return j->p < j->end ? (u8)*j->p : -1;
}

/* Validate the string at the cursor and move behind it; *raw is what stands between the quotes. */
static bool scan_string(struct json *j, slice *raw, bool *escaped) {
    const char *from = j->p + 1, *p = from, *message;
    if (!json_lex_string(&p, j->end, escaped, &message)) return fail_at(j, p, message);
    *raw = slice_of(from, (size_t)(p - 1 - from));
    j->p = p;
    return true;
}

static slice unescape(struct json *j, slice raw) {
    struct json_scratch *s = scratch_of(j);
    char *out = json_scratch_reserve(s, raw.n);
    size_t n = json_lex_unescape(out, raw);
    json_scratch_keep(s, n);
    return slice_of(out, n);
}

static bool scan_number(struct json *j, bool *integer) {
    const char *p = j->p;
    if (!json_lex_number(&p, j->end, integer)) return fail_at(j, p, "expected a digit");
    j->p = p;
    return true;
}

static bool scan_word(struct json *j, slice word) {
    if (!slice_starts(slice_of(j->p, (size_t)(j->end - j->p)), word)) return fail_at(j, j->p, "expected a value");
    j->p += word.n;
    return true;
}

static enum json_type type_at(int c) {
    switch (c) {
    case '{':
        return JSON_OBJECT;
    case '[':
        return JSON_ARRAY;
    case '"':
        return JSON_STRING;
    case 't':
    case 'f':
        return JSON_BOOL;
    case 'n':
        return JSON_NULL;
    default:
        return c == '-' || (c >= '0' && c <= '9') ? JSON_NUMBER : JSON_NONE;
    }
}

enum json_type json_peek(struct json *j) {
    return j->error ? JSON_NONE : type_at(next_byte(j));
}

/* Is a value of this type next? */
static bool expect(struct json *j, enum json_type type) {
    static const char *const messages[] = {
        [JSON_NULL] = "expected null",       [JSON_BOOL] = "expected true or false",
        [JSON_NUMBER] = "expected a number", [JSON_STRING] = "expected a string",
        [JSON_ARRAY] = "expected an array",  [JSON_OBJECT] = "expected an object",
    };
    if (j->error) return false;
    return json_peek(j) == type || fail_at(j, j->p, messages[type]);
}

static bool enter(struct json *j, enum json_type type) {
    if (!expect(j, type)) return false;
    if (j->depth == JSON_DEPTH_MAX) return fail_at(j, j->p, "nested too deeply");
    j->p++;
    j->level[++j->depth] = type == JSON_OBJECT ? LEVEL_OBJECT : 0;
    return true;
}

bool json_object(struct json *j) {
    return enter(j, JSON_OBJECT);
}

bool json_array(struct json *j) {
    return enter(j, JSON_ARRAY);
}

static void leave(struct json *j) {
    u8 level = j->level[j->depth];
    j->level[0] = (u8)(j->level[0] - (level & LEVEL_COUNT));
    if (level & LEVEL_HASHED) json_names_clear(j->scratch, j->depth);
    j->depth--;
}

/* Move to the next item of the container, or behind its end: then false. */
static inline bool one_more(struct json *j) {
    return j->values_left-- > 0 || fail_at(j, j->p, "too many values");
}

static bool next_item(struct json *j, char close, const char *message) {
    int c = next_byte(j);
    if (c == close) {
        j->p++;
        leave(j);
        return false;
    }
    if (!(j->level[j->depth] & LEVEL_STARTED)) {
        j->level[j->depth] |= LEVEL_STARTED;
        return c >= 0 ? one_more(j) : fail_at(j, j->p, "the text ends inside a value");
    }
    if (c != ',') return fail_at(j, j->p, c < 0 ? "the text ends inside a value" : message);
    j->p++;
    return one_more(j);
}

static bool on_stack(const struct json *j, slice name) {
    size_t top = j->level[0], count = j->level[j->depth] & LEVEL_COUNT;
    for (size_t i = top - count; i < top; i++) {
        const char *seen = j->start + j->names_from[i];
        if ((size_t)(j->end - seen) > name.n && seen[name.n] == '"' && memcmp(seen, name.p, name.n) == 0) return true;
    }
    return false;
}

static void move_names_to_set(struct json *j) {
    u8 *level = &j->level[j->depth];
    struct json_scratch *s = scratch_of(j);
    for (; *level & LEVEL_COUNT; --*level) {
        const char *seen = j->start + j->names_from[--j->level[0]];
        const char *quote = memchr(seen, '"', (size_t)(j->end - seen));
        CHECK(json_names_add(s, j->depth, slice_of(seen, (size_t)(quote - seen))));
    }
    *level |= LEVEL_HASHED;
}

/* False if the open object has the name already. */
static bool remember_name(struct json *j, slice name, bool in_text) {
    u8 *level = &j->level[j->depth];
    if (!(*level & LEVEL_HASHED)) {
        bool fits = (*level & LEVEL_COUNT) < INLINE_NAMES && j->level[0] < STACK_NAMES;
        if (in_text && fits && name.p - j->start <= UINT32_MAX) {
            if (on_stack(j, name)) return false;
            j->names_from[j->level[0]++] = (u32)(name.p - j->start);
            ++*level;
            return true;
        }
        move_names_to_set(j);
    }
    return json_names_add(j->scratch, j->depth, name);
}

static bool scan_colon(struct json *j) {
    if (next_byte(j) != ':') return fail_at(j, j->p, "expected ':'");
    j->p++;
    return true;
}

bool json_member(struct json *j, slice *name) {
    if (j->error) return false;
    CHECK(j->depth > 0 && j->level[j->depth] & LEVEL_OBJECT);
    if (!next_item(j, '}', "expected ',' or '}'")) return false;
    if (next_byte(j) != '"') return fail_at(j, j->p, "expected a member name");
    const char *at = j->p;
    bool escaped;
    if (!scan_string(j, name, &escaped)) return false;
    if (escaped) *name = unescape(j, *name);
    if (!remember_name(j, *name, !escaped)) return fail_at(j, at, "repeated member name");
    return scan_colon(j);
}

bool json_element(struct json *j) {
    if (j->error) return false;
    CHECK(j->depth > 0 && !(j->level[j->depth] & LEVEL_OBJECT));
    return next_item(j, ']', "expected ',' or ']'");
}

bool json_string(struct json *j, slice *out) {
    bool escaped;
    if (!expect(j, JSON_STRING) || !scan_string(j, out, &escaped)) return false;
    if (escaped) *out = unescape(j, *out);
    return true;
}

bool json_bool(struct json *j, bool *out) {
    if (!expect(j, JSON_BOOL)) return false;
    bool v = *j->p == 't';
    if (!scan_word(j, v ? SL("true") : SL("false"))) return false;
    *out = v;
    return true;
}

bool json_null(struct json *j) {
    return expect(j, JSON_NULL) && scan_word(j, SL("null"));
}

bool json_i64(struct json *j, i64 *out) {
    bool integer;
    if (!expect(j, JSON_NUMBER)) return false;
    const char *from = j->p;
    if (!scan_number(j, &integer)) return false;
    if (!integer) return fail_at(j, from, "expected an integer");
    bool negative = *from == '-';
    const char *digits = from + negative;
    u64 v;
    if (!slice_u64(slice_of(digits, (size_t)(j->p - digits)), &v) || v > (u64)INT64_MAX + negative)
        return fail_at(j, from, "integer out of range");
    *out = negative ? (i64)-v : (i64)v;
    return true;
}

static bool scan_scalar(struct json *j, enum json_type type) {
    slice raw;
    bool unused;
    switch (type) {
    case JSON_STRING:
        return scan_string(j, &raw, &unused);
    case JSON_NUMBER:
        return scan_number(j, &unused);
    case JSON_BOOL:
        return scan_word(j, *j->p == 't' ? SL("true") : SL("false"));
    case JSON_NULL:
        return scan_word(j, SL("null"));
    default:
        return fail_at(j, j->p, j->p == j->end ? "the text ends where a value should be" : "expected a value");
    }
}

/* The containers a skipped value has open, as bits: 1 is an object. The innermost is the lowest. */
struct open_containers {
    u64 objects;
    int count;
};
_Static_assert(JSON_DEPTH_MAX <= 64, "one bit for each level");

/* Behind an opening bracket or a comma: the name, if this is an object. */
static bool scan_item_head(struct json *j, const struct open_containers *open) {
    if (!(open->objects & 1)) return true;
    slice raw;
    bool escaped;
    if (next_byte(j) != '"') return fail_at(j, j->p, "expected a member name");
    return scan_string(j, &raw, &escaped) && scan_colon(j);
}

/* Behind a value or an opening bracket: close what closes here. *more: another item follows, its head was read. */
static bool scan_item_tail(struct json *j, struct open_containers *open, bool *more) {
    *more = false;
    while (open->count) {
        bool object = open->objects & 1;
        int c = next_byte(j);
        if (c == ',') {
            j->p++;
            *more = true;
            return scan_item_head(j, open);
        }
        if (c < 0) return fail_at(j, j->p, "the text ends inside a value");
        if (c != (object ? '}' : ']')) return fail_at(j, j->p, object ? "expected ',' or '}'" : "expected ',' or ']'");
        j->p++;
        open->objects >>= 1;
        open->count--;
    }
    return true;
}

/* One pass, no recursion; the depth counts from the outermost container of the text. */
static bool scan_value(struct json *j) {
    struct open_containers open = {0};
    for (bool more = true; more;) {
        if (!one_more(j)) return false;
        enum json_type type = type_at(next_byte(j));
        if (type != JSON_OBJECT && type != JSON_ARRAY) {
            if (!scan_scalar(j, type) || !scan_item_tail(j, &open, &more)) return false;
            continue;
        }
        if (j->depth + open.count == JSON_DEPTH_MAX) return fail_at(j, j->p, "nested too deeply");
        j->p++;
        open.objects = open.objects << 1 | (type == JSON_OBJECT);
        open.count++;
        bool empty = next_byte(j) == (type == JSON_OBJECT ? '}' : ']');
        if (empty ? !scan_item_tail(j, &open, &more) : !scan_item_head(j, &open)) return false;
    }
    return true;
}

bool json_value(struct json *j, enum json_type *type, slice *raw) {
    if (j->error) return false;
    enum json_type found = json_peek(j);
    const char *from = j->p;
    if (!scan_value(j)) return false;
    *type = found;
    *raw = slice_of(from, (size_t)(j->p - from));
    return true;
}

bool json_skip(struct json *j) {
    return !j->error && scan_value(j);
}

bool json_end(struct json *j) {
    if (j->error) return false;
    int c = next_byte(j);
    if (j->depth) return fail_at(j, j->p, "the text ends inside a value");
    return c < 0 || fail_at(j, j->p, "unexpected bytes after the value");
}

struct json_mark json_mark(struct json *j) {
    next_byte(j);
    return (struct json_mark){.p = j->p, .depth = j->depth};
}

void json_back(struct json *j, struct json_mark to) {
    CHECK(j->depth >= to.depth);
    while (j->depth > to.depth) leave(j);
    j->p = to.p;
    j->error = NULL;
}
