#include "config/schema.h"

#include <stdio.h>
#include <stdlib.h>

#include "config/path.h"
#include "config/pattern.h"

#define TYPE_LIST(X)                                                                                                   \
    X(STRING, "string")                                                                                                \
    X(INTEGER, "integer")                                                                                              \
    X(NUMBER, "number")                                                                                                \
    X(BOOLEAN, "boolean")                                                                                              \
    X(OBJECT, "object")                                                                                                \
    X(ARRAY, "array")                                                                                                  \
    X(NULL, "null")

enum type {
#define TYPE_ENUM(name, text) TYPE_##name,
    TYPE_LIST(TYPE_ENUM)
#undef TYPE_ENUM
        TYPE_COUNT
};

static const char *const type_names[] = {
#define TYPE_NAME(name, text) text,
    TYPE_LIST(TYPE_NAME)
#undef TYPE_NAME
};

struct choice {
    enum json_type type;
    slice text; /* canonical */
};

struct field {
    const char *name; /* its path as it was first written */
    bool required;
    u8 types; /* one bit for each allowed; 0: any */
    u8 said;  /* a bit for each of `rules` */
    u32 choice_count;
    struct choice *choices;        /* as they were said */
    const struct choice **ordered; /* and for looking them up */
    struct pattern *pattern;
    const char *pattern_text;
    u32 length_max; /* 0: any */
};

struct schema {
    struct arena arena;
    u32 count;
    struct field fields[SCHEMA_FIELDS_MAX];
    struct path paths[SCHEMA_FIELDS_MAX]; /* of the fields */
    struct path_set set;
};

/* ---- what was said */

struct reading {
    struct schema *s;
    struct pattern_budget patterns;
    struct errbuf *err;
};

/* The field of that path, new or known, however it was written. NULL: said why. */
static struct field *field_of(struct reading *r, const struct node *said) {
    struct schema *s = r->s;
    struct errbuf why;
    struct path path;
    u32 column;
    if (said->kind != NODE_SCALAR) {
        node_error(said, r->err, "expected a field, found %s", node_kind_text(said));
        return NULL;
    }
    if (path_compile(said->text, false, &s->arena, &path, &column, &why) != ST_OK) {
        node_error(said, r->err, "\"%s\": %s (at its byte %u)", said->text.p, why.text, column);
        return NULL;
    }
    for (u32 i = 0; i < s->count; i++) {
        if (path_same(&s->paths[i], &path)) return &s->fields[i];
    }
    if (s->count == SCHEMA_FIELDS_MAX) {
        node_error(said, r->err, "more than %d fields", SCHEMA_FIELDS_MAX);
        return NULL;
    }
    s->fields[s->count].name = path.text.p;
    s->paths[s->count] = path;
    return &s->fields[s->count++];
}

static hx_st read_required(struct reading *r, const struct node *list) {
    if (list->kind != NODE_SEQ) return node_error(list, r->err, "expected a list of fields, as in [id, amount]");
    hx_st st = ST_OK;
    for (const struct node *said = list->first; said; said = said->next) {
        struct field *field = field_of(r, said);
        if (field)
            field->required = true;
        else
            st = ST_INVALID;
    }
    return st;
}

static hx_st read_type(struct reading *r, const struct node *said, u8 *types) {
    if (said->kind == NODE_SCALAR || said->kind == NODE_NULL) {
        for (int i = 0; i < TYPE_COUNT; i++) {
            if (!slice_eq(said->text, slice_str(type_names[i]))) continue;
            *types |= (u8)(1u << i);
            return ST_OK;
        }
    }
    return node_error(said, r->err, "expected string, integer, number, boolean, object, array or null, found %.*s",
                      (int)(said->text.n ? said->text.n : strlen(node_kind_text(said))),
                      said->text.n ? said->text.p : node_kind_text(said));
}

static hx_st read_types(struct reading *r, const struct node *said, struct field *field) {
    if (said->kind != NODE_SEQ) return read_type(r, said, &field->types);
    if (said->count == 0) return node_error(said, r->err, "no type in the list");
    hx_st st = ST_OK;
    for (const struct node *one = said->first; one; one = one->next) st = both(st, read_type(r, one, &field->types));
    return st;
}

static bool is_number(slice text) {
    struct json j;
    enum json_type type;
    slice raw;
    json_init(&j, text);
    bool ok = json_value(&j, &type, &raw) && json_end(&j) && type == JSON_NUMBER;
    json_free(&j);
    return ok;
}

static struct choice choice_of(struct schema *s, const struct node *said) {
    if (said->kind == NODE_NULL) return (struct choice){JSON_NULL, SL("null")};
    slice text = said->text;
    if (!said->quoted && (slice_eq(text, SL("true")) || slice_eq(text, SL("false"))))
        return (struct choice){JSON_BOOL, arena_copy(&s->arena, text)};
    struct buf canonical = {0};
    struct choice choice = {JSON_STRING, {0}};
    if (!said->quoted && is_number(text) && number_canonical(text, &canonical)) {
        choice.type = JSON_NUMBER;
        text = buf_slice(&canonical);
    }
    choice.text = arena_copy(&s->arena, text);
    buf_free(&canonical);
    return choice;
}

static int by_choice(const void *a, const void *b) {
    const struct choice *x = *(const struct choice *const *)a, *y = *(const struct choice *const *)b;
    if (x->type != y->type) return x->type < y->type ? -1 : 1;
    if (x->text.n != y->text.n) return x->text.n < y->text.n ? -1 : 1;
    return memcmp(x->text.p, y->text.p, x->text.n);
}

static hx_st read_enum(struct reading *r, const struct node *list, struct field *field) {
    if (list->kind != NODE_SEQ || list->count == 0)
        return node_error(list, r->err, "expected a list of values, as in [EUR, USD]");
    field->choices = arena_alloc(&r->s->arena, list->count * sizeof *field->choices);
    for (const struct node *said = list->first; said; said = said->next) {
        if (said->kind != NODE_SCALAR && said->kind != NODE_NULL)
            return node_error(said, r->err, "expected a value, found %s", node_kind_text(said));
        field->choices[field->choice_count++] = choice_of(r->s, said);
    }
    field->ordered = arena_alloc(&r->s->arena, list->count * sizeof *field->ordered);
    for (u32 i = 0; i < field->choice_count; i++) field->ordered[i] = &field->choices[i];
    qsort(field->ordered, field->choice_count, sizeof *field->ordered, by_choice);
    return ST_OK;
}

static hx_st read_pattern(struct reading *r, const struct node *said, struct field *field) {
    struct errbuf why;
    u32 column;
    if (said->kind != NODE_SCALAR) return node_error(said, r->err, "expected a regular expression");
    if (pattern_compile(said->text, &r->patterns, &r->s->arena, &field->pattern, &column, &why) != ST_OK)
        return node_error(said, r->err, "%s (at its byte %u)", why.text, column);
    field->pattern_text = arena_string(&r->s->arena, said->text);
    return ST_OK;
}

static hx_st read_max_length(struct reading *r, const struct node *said, struct field *field) {
    u64 value;
    bool good = said->kind == NODE_SCALAR && slice_u64(said->text, &value) && value > 0 && value <= UINT32_MAX;
    if (!good) return node_error(said, r->err, "expected a number of characters, from 1");
    field->length_max = (u32)value;
    return ST_OK;
}

/* All patterns of a schema together: 32 KiB of either kind, and a millisecond to make them. The longest texts visit each
 * step twice for each of SCHEMA_MATCHED_MAX characters: 8 million visits are the most a message can cost. */
static const struct pattern_budget patterns_of_a_schema = {.states = 4096, .entries = 16384, .work = 300000};

typedef hx_st rule_reader(struct reading *r, const struct node *said, struct field *field);

static const struct {
    slice name;
    rule_reader *read;
} rules[] = {
    {{"types", 5}, read_types},
    {{"enum", 4}, read_enum},
    {{"pattern", 7}, read_pattern},
    {{"max_length", 10}, read_max_length},
};

/* Of one rule, its number in `rules`. */
static hx_st read_rule(struct reading *r, const struct node *said, size_t rule) {
    struct field *field = field_of(r, said->name);
    if (!field) return ST_INVALID;
    if (field->said >> rule & 1)
        return node_error(said->name, r->err, "%s is the field %s, of which it is said already", said->name->text.p,
                          field->name);
    field->said |= (u8)(1u << rule);
    return rules[rule].read(r, said, field);
}

static hx_st read_rules(struct reading *r, const struct node *map, size_t rule) {
    if (map->kind != NODE_MAP) return node_error(map, r->err, "expected a map from fields, as in {amount: ...}");
    hx_st st = ST_OK;
    for (const struct node *said = map->first; said; said = said->next) st = both(st, read_rule(r, said, rule));
    return st;
}

static hx_st read_entry(struct reading *r, const struct node *said) {
    if (slice_eq(said->name->text, SL("required"))) return read_required(r, said);
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        if (slice_eq(said->name->text, rules[i].name)) return read_rules(r, said, i);
    }
    return node_error(said->name, r->err, "unknown key %s; a schema has required, types, enum, pattern and max_length",
                      said->name->text.p);
}

hx_st schema_from_tree(const struct node *said, struct schema **out, struct errbuf *err) {
    *out = NULL;
    if (said->kind != NODE_MAP) return node_error(said, err, "expected a map, as in {required: [id]}");
    struct schema *s = mem_zalloc(sizeof *s);
    struct reading r = {s, patterns_of_a_schema, err};
    hx_st st = ST_OK;
    for (const struct node *entry = said->first; entry; entry = entry->next) st = both(st, read_entry(&r, entry));
    if (st == ST_OK) {
        path_set_make(s->paths, s->count, &s->arena, &s->set);
        *out = s;
    } else {
        schema_free(s);
    }
    return st;
}

void schema_free(struct schema *s) {
    if (!s) return;
    arena_clear(&s->arena);
    mem_free(s);
}

/* ---- checking */

enum { SHOWN_MAX = 40 };

/* What was found, for the message: `text "abc..."`, `number 1.5`, `a list`. Raw JSON spelling has no control characters,
 * so it can be shown. */
static void put_found(const struct json_item *item, char *out, size_t size) {
    static const char *const kinds[] = {[JSON_STRING] = "text \"", [JSON_NUMBER] = "number ", [JSON_BOOL] = ""};
    if (item->type == JSON_NULL || item->type == JSON_ARRAY || item->type == JSON_OBJECT) {
        snprintf(out, size, "%s", item->type == JSON_NULL ? "null" : item->type == JSON_ARRAY ? "a list" : "an object");
        return;
    }
    size_t n = item->text_len;
    if (n > SHOWN_MAX) {
        n = SHOWN_MAX;
        while (n && ((u8)item->text[n] & 0xC0) == 0x80) n--; /* not in the middle of a character */
    }
    snprintf(out, size, "%s%.*s%s%s", kinds[item->type], (int)n, item->text, n < item->text_len ? "..." : "",
             item->type == JSON_STRING ? "\"" : "");
}

static bool mismatch(const struct field *field, const struct json_item *item, const char *expected,
                     struct errbuf *why) {
    char found[SHOWN_MAX * 2 + 32];
    put_found(item, found, sizeof found);
    err_set(why, ST_INVALID, "field %s: expected %s" SCHEMA_FOUND "%s", field->name, expected, found);
    return false;
}

static u8 types_of(const struct json_item *item) {
    switch (item->type) {
    case JSON_STRING:
        return 1u << TYPE_STRING;
    case JSON_NUMBER: {
        bool whole = item->integer || number_is_integer(json_item_text(item));
        return (u8)(1u << TYPE_NUMBER | (whole ? 1u << TYPE_INTEGER : 0));
    }
    case JSON_BOOL:
        return 1u << TYPE_BOOLEAN;
    case JSON_OBJECT:
        return 1u << TYPE_OBJECT;
    case JSON_ARRAY:
        return 1u << TYPE_ARRAY;
    default:
        return 1u << TYPE_NULL;
    }
}

static bool wrong_type(const struct field *field, const struct json_item *item, struct errbuf *why) {
    struct buf names = {0};
    for (int i = 0; i < TYPE_COUNT; i++) {
        if (field->types >> i & 1) buf_printf(&names, "%s%s", names.len ? " or " : "", type_names[i]);
    }
    buf_char(&names, '\0');
    mismatch(field, item, names.p, why);
    buf_free(&names);
    return false;
}

static bool is_choice(const struct field *field, const struct json_item *item, slice text) {
    struct choice sought = {item->type, text}, *key = &sought;
    return bsearch(&key, field->ordered, field->choice_count, sizeof *field->ordered, by_choice) != NULL;
}

static bool wrong_choice(const struct field *field, const struct json_item *item, struct errbuf *why) {
    struct buf names = {0};
    buf_lit(&names, "one of ");
    for (u32 i = 0; i < field->choice_count && names.len < 200; i++) {
        slice text = field->choices[i].text;
        buf_printf(&names, "%s%.*s", i ? ", " : "", (int)text.n, text.p);
    }
    buf_char(&names, '\0');
    mismatch(field, item, names.p, why);
    buf_free(&names);
    return false;
}

static bool too_long(const struct field *field, const struct json_item *item, struct errbuf *why) {
    char expected[48];
    snprintf(expected, sizeof expected, "at most %u characters", field->length_max);
    return mismatch(field, item, expected, why);
}

static bool no_match(const struct field *field, const struct json_item *item, struct errbuf *why) {
    char expected[PATTERN_BYTES_MAX + 32];
    snprintf(expected, sizeof expected, "a match of %s", field->pattern_text);
    return mismatch(field, item, expected, why);
}

static u32 characters(slice text) {
    u32 count = 0;
    for (size_t i = 0; i < text.n; i++) count += ((u8)text.p[i] & 0xC0) != 0x80;
    return count;
}

/* What is said about a scalar's text. */
static bool check_text(const struct field *field, const struct json_item *item, struct payload_view *v,
                       struct errbuf *why) {
    slice text = SL("null");
    if (item->type != JSON_NULL && !payload_view_scalar(v, item, &text))
        return mismatch(field, item, "text, a number, true or false", why);
    if (field->choices && !is_choice(field, item, text)) return wrong_choice(field, item, why);
    if (item->type == JSON_NULL) return true;
    if (field->length_max && text.n > field->length_max && characters(text) > field->length_max)
        return too_long(field, item, why);
    if (!field->pattern || (text.n <= SCHEMA_MATCHED_MAX && pattern_match(field->pattern, text, &v->work))) return true;
    return no_match(field, item, why);
}

/* `at`: the value there; 0 if there is none. */
static bool check_field(const struct field *field, u32 at, struct payload_view *v, struct errbuf *why) {
    if (at == 0) {
        if (field->required) err_set(why, ST_INVALID, "field %s is missing", field->name);
        return !field->required;
    }
    const struct json_item *item = &v->tape.at[at];
    if (field->types && !(field->types & types_of(item))) return wrong_type(field, item, why);
    if (item->type == JSON_NULL && field->required && !(field->types >> TYPE_NULL & 1)) {
        err_set(why, ST_INVALID, "field %s is null", field->name);
        return false;
    }
    bool about_text = field->choices || field->pattern || field->length_max;
    return !about_text || check_text(field, item, v, why);
}

static bool note_place(void *ctx, u64 fields, u32 at) {
    ((u32 *)ctx)[__builtin_ctzll(fields)] = at; /* no two fields have one place */
    return true;
}

bool schema_check(const struct schema *s, struct payload_view *v, struct errbuf *why) {
    u32 places[SCHEMA_FIELDS_MAX] __attribute__((uninitialized)); /* a few of them are used, and set */
    if (!payload_view_json(v)) {
        payload_view_why_not(v, why);
        return false;
    }
    memset(places, 0, s->count * sizeof places[0]);
    path_set_visit(&s->set, &v->tape, note_place, places, &v->work);
    for (u32 i = 0; i < s->count; i++) {
        if (!check_field(&s->fields[i], places[i], v, why)) return false;
    }
    return true;
}
