/* Why a key can be taken apart again. Let a value be followed by the text S and, later, by another value. Some ASCII
 * character of S is the value's guard: ':' if S has one, else another that percent-encoding never produces. The value
 * does not contain its guard, which is encoded in it. So the first guard behind the value's beginning is the one in
 * S, whose place in S is known: there the value ends. The last value ends where the text behind it begins. And
 * the encoding of one value can be undone, as '%' itself is encoded. */
#include "config/template.h"

#include "base/sixteen.h"
#include "config/braces.h"
#include "config/path.h"

enum part_kind { PART_TEXT, PART_FIELD, PART_HEADER, PART_CLOUDEVENT };

struct part {
    enum part_kind kind;
    char guard; /* of a value: to be encoded besides what always is; 0: none */
    u32 column;
    slice text; /* literal text; the header's name */
    struct path path;
};

enum { PARTS_MAX = 2 * TEMPLATE_FIELDS_MAX + 1 };

struct template {
    struct arena arena;
    slice text;
    u32 count, fields;
    struct part parts[PARTS_MAX];
};

/* ---- compiling */

struct compiler {
    struct template *t;
    slice text;
    size_t at;
    struct buf literal; /* gathered since the last value */
    size_t literal_at;
    struct errbuf *err;
};

static hx_st wrong(struct compiler *c, size_t at, const char *message) {
    c->at = at;
    return err_set(c->err, ST_INVALID, "%s", message);
}

static bool is_value(const struct part *part) {
    return part->kind != PART_TEXT;
}

static void add_literal(struct compiler *c) {
    if (c->literal.len == 0) return;
    struct part *part = &c->t->parts[c->t->count++];
    part->kind = PART_TEXT;
    part->column = (u32)c->literal_at + 1;
    part->text = arena_copy(&c->t->arena, buf_slice(&c->literal));
    buf_reset(&c->literal);
}

static hx_st compile_header(struct compiler *c, slice name, size_t at, struct part *part) {
    size_t bad;
    part->kind = PART_HEADER;
    hx_st st = braces_header(name, &c->t->arena, &part->text, &bad, c->err);
    if (st != ST_OK) c->at = at + bad;
    return st;
}

static hx_st compile_field(struct compiler *c, slice inside, size_t at, struct part *part) {
    u32 column;
    part->kind = PART_FIELD;
    hx_st st = path_compile(inside, false, &c->t->arena, &part->path, &column, c->err);
    if (st != ST_OK) c->at = at + column - 1;
    return st;
}

/* name( or name: — what other template languages have and this one does not. */
static hx_st refuse_strange(struct compiler *c, slice inside, size_t at) {
    for (size_t i = 0; i < inside.n && inside.p[i] != '['; i++) {
        if (inside.p[i] == '(') return wrong(c, at, "unknown function: templates have none");
        if (inside.p[i] == ':' || inside.p[i] == '|')
            return wrong(c, at, "unknown namespace: there are fields, ${header.NAME} and ${cloudevent}");
    }
    return ST_OK;
}

/* What stands between the braces, at this byte of the template. */
static hx_st compile_inside(struct compiler *c, slice inside, size_t at, struct part *part) {
    const slice header = SL("header.");
    if (inside.n == 0) return wrong(c, at, "a field name is missing between the braces");
    hx_st st = refuse_strange(c, inside, at);
    if (st != ST_OK) return st;
    if (slice_starts(inside, header))
        return compile_header(c, slice_of(inside.p + header.n, inside.n - header.n), at + header.n, part);
    if (!slice_eq(inside, SL("cloudevent"))) return compile_field(c, inside, at, part);
    part->kind = PART_CLOUDEVENT;
    part->text = arena_copy(&c->t->arena, inside);
    return ST_OK;
}

/* At "${". */
static hx_st compile_value(struct compiler *c) {
    struct template *t = c->t;
    size_t open = c->at, close;
    if (!braces_close(c->text, open + 2, &close)) return wrong(c, open, "the brace opened here is not closed");
    if (t->fields == TEMPLATE_FIELDS_MAX) return wrong(c, open, "more than 16 fields");
    add_literal(c);
    if (t->count && is_value(&t->parts[t->count - 1]))
        return wrong(c, open,
                     "two fields need text between them, best ':'; else different intents could meet in one key");
    struct part *part = &t->parts[t->count];
    part->column = (u32)open + 1;
    hx_st st = compile_inside(c, slice_of(c->text.p + open + 2, close - open - 2), open + 2, part);
    if (st != ST_OK) return st;
    t->count++;
    t->fields++;
    c->at = close + 1;
    return ST_OK;
}

static hx_st compile_dollar(struct compiler *c) {
    char next = c->at + 1 < c->text.n ? c->text.p[c->at + 1] : '\0';
    if (next == '{') return compile_value(c);
    if (next != '$') return wrong(c, c->at, "a field is written ${name}, a dollar sign $$");
    buf_char(&c->literal, '$');
    c->at += 2;
    return ST_OK;
}

static hx_st compile_parts(struct compiler *c) {
    while (c->at < c->text.n) {
        if (c->literal.len == 0) c->literal_at = c->at;
        if (c->text.p[c->at] == '$') {
            hx_st st = compile_dollar(c);
            if (st != ST_OK) return st;
        } else {
            buf_char(&c->literal, c->text.p[c->at++]);
        }
    }
    add_literal(c);
    if (c->t->fields == 0) return wrong(c, 0, "no field in it: it would be the same for every message");
    return ST_OK;
}

/* The character of the text behind a value that tells where the value ends; 0 if there is none fit for it. */
static char guard_of(slice text) {
    if (memchr(text.p, ':', text.n)) return ':';
    for (size_t i = 0; i < text.n; i++) {
        char ch = text.p[i];
        bool in_encoding = ch == '%' || (ch >= '0' && ch <= '9') || (ch >= 'A' && ch <= 'F');
        if (!in_encoding && (u8)ch < 0x80) return ch;
    }
    return '\0';
}

static hx_st set_guards(struct compiler *c) {
    struct template *t = c->t;
    for (u32 i = 0; i + 2 < t->count; i++) {
        struct part *part = &t->parts[i];
        if (!is_value(part)) continue;
        part->guard = guard_of(part[1].text);
        if (!part->guard)
            return wrong(c, part[1].column - 1,
                         "this text does not tell where the field before it ends; put a ':' into it");
    }
    return ST_OK;
}

bool key_names_replay(slice key) {
    size_t at = key.n;
    while (at && key.p[at - 1] >= '0' && key.p[at - 1] <= '9') at--;
    return at < key.n && at >= 2 && key.p[at - 1] == 'g' && key.p[at - 2] == '~';
}

/* Its last text alone may settle that no key it makes could be taken. */
static hx_st check_end(struct compiler *c) {
    const struct part *last = &c->t->parts[c->t->count - 1];
    if (is_value(last) || !key_names_replay(last->text)) return ST_OK;
    return wrong(c, last->column - 1, "a key cannot end in ~g and digits: so end the effect keys of replays");
}

static hx_st compile(struct compiler *c) {
    if (c->text.n == 0) return wrong(c, 0, "the template is empty");
    if (c->text.n > TEMPLATE_BYTES_MAX) return wrong(c, TEMPLATE_BYTES_MAX, "longer than 1024 bytes");
    if (!utf8_valid(c->text) || has_control(c->text)) return wrong(c, 0, "has characters a key cannot have");
    hx_st st = compile_parts(c);
    if (st == ST_OK) st = check_end(c);
    return st == ST_OK ? set_guards(c) : st;
}

hx_st template_compile(slice text, struct template **out, u32 *column, struct errbuf *err) {
    struct template *t = mem_zalloc(sizeof *t);
    struct compiler c = {.t = t, .text = text, .err = err};
    hx_st st = compile(&c);
    buf_free(&c.literal);
    *column = (u32)c.at + 1;
    *out = NULL;
    if (st != ST_OK) {
        template_free(t);
        return st;
    }
    t->text = arena_copy(&t->arena, text);
    *out = t;
    return ST_OK;
}

void template_free(struct template *t) {
    if (!t) return;
    arena_clear(&t->arena);
    mem_free(t);
}

slice template_text(const struct template *t) {
    return t->text;
}

u32 template_field_count(const struct template *t) {
    return t->fields;
}

struct template_field template_field_at(const struct template *t, u32 i) {
    static const enum template_source sources[] = {
        [PART_FIELD] = TEMPLATE_FIELD, [PART_HEADER] = TEMPLATE_HEADER, [PART_CLOUDEVENT] = TEMPLATE_CLOUDEVENT};
    CHECK(i < t->fields);
    const struct part *part = t->parts;
    for (;; part++) {
        if (is_value(part) && i-- == 0) break;
    }
    return (struct template_field){sources[part->kind], part->kind == PART_FIELD ? part->path.text : part->text,
                                   part->column};
}

/* ---- evaluating */

struct evaluation {
    struct payload_view *v;
    struct buf *out;
    struct errbuf *why;
    bool plain; /* values are not encoded */
};

static enum template_verdict refuse(const struct evaluation *e, enum template_verdict verdict, const char *what,
                                    slice name, const char *how) {
    err_set(e->why, ST_INVALID, "%s %.*s %s", what, (int)name.n, name.p, how);
    return verdict;
}

static inline bool must_encode(const char *p, size_t left, char guard) {
    u8 c = (u8)*p;
    bool common = (c >= '&' && c <= '9') || (c >= ';' && c <= '~');
    if (common) return c == (u8)guard;
    if (c < 0x20 || c == 0x7f || c == '%' || c == ':' || c == (u8)guard) return true;
    /* The control characters from U+0080 to U+009F, both of their bytes. */
    if (c == 0xc2) return left > 1 && (u8)p[1] < 0xa0;
    return c >= 0x80 && c < 0xa0 && (u8)p[-1] == 0xc2;
}

/* A bit for each of sixteen that may have to be encoded. */
static inline u32 unplain(sixteen v, char guard) {
    return sixteen_bits((v < 0x20) | (v == 0x7f) | (v == '%') | (v == ':') | (v == guard));
}

/* To the first of them. The last sixteen overlap those before. */
static const char *skip_plain(const char *p, const char *end, char guard) {
    size_t n = (size_t)(end - p);
    u32 hits;
    if (n < 16) return unplain(sixteen_of_few(p, n), guard) ? p : end;
    for (; end - p > 16; p += 16)
        if ((hits = unplain(sixteen_at(p), guard))) return p + __builtin_ctz(hits);
    hits = unplain(sixteen_at(end - 16), guard);
    return hits ? end - 16 + __builtin_ctz(hits) : end;
}

static void put_encoded(struct buf *out, slice value, char guard) {
    static const char hex[] = "0123456789ABCDEF";
    const char *p = value.p, *end = p + value.n;
    while (p < end) {
        const char *from = p;
        p = skip_plain(p, end, guard);
        while (p < end && !must_encode(p, (size_t)(end - p), guard)) p++;
        buf_add(out, from, (size_t)(p - from));
        if (p == end) return;
        buf_add(out, (char[]){'%', hex[(u8)*p >> 4], hex[(u8)*p & 15]}, 3);
        p++;
    }
}

static void put_value(const struct evaluation *e, slice value, char guard) {
    if (e->plain)
        buf_slice_add(e->out, value);
    else
        put_encoded(e->out, value, guard);
}

/* A value of the payload; `name` as it is called in messages. */
static enum template_verdict put_field(const struct evaluation *e, u32 at, slice name, char guard) {
    const struct json_item *item = &e->v->tape.at[at];
    slice text;
    if (at == 0) return refuse(e, TEMPLATE_MISSING, "field", name, "is missing");
    if (item->type == JSON_NULL) return refuse(e, TEMPLATE_MISSING, "field", name, "is null");
    if (item->type == JSON_OBJECT || item->type == JSON_ARRAY)
        return refuse(e, TEMPLATE_NOT_SCALAR, "field", name,
                      item->type == JSON_OBJECT ? "is an object; a key needs text, a number, true or false"
                                                : "is a list; a key needs text, a number, true or false");
    if (!payload_view_scalar(e->v, item, &text))
        return refuse(e, TEMPLATE_BAD_VALUE, "field", name, "is a number out of all bounds");
    if (text.n == 0) return refuse(e, TEMPLATE_MISSING, "field", name, "is empty: it names nothing");
    put_value(e, text, guard);
    return TEMPLATE_OK;
}

static enum template_verdict put_header(const struct evaluation *e, slice name, slice value, char guard) {
    if (!value.p) return refuse(e, TEMPLATE_MISSING, "header", name, "is missing");
    if (value.n == 0) return refuse(e, TEMPLATE_MISSING, "header", name, "is empty: it names nothing");
    if (!utf8_valid(value)) return refuse(e, TEMPLATE_BAD_VALUE, "header", name, "is not UTF-8");
    put_value(e, value, guard);
    return TEMPLATE_OK;
}

static enum template_verdict not_json(const struct evaluation *e) {
    payload_view_why_not(e->v, e->why);
    return TEMPLATE_NOT_JSON;
}

/* In binary mode an attribute is a header, percent-encoded where it is not plain ASCII. */
static enum template_verdict put_event_header(const struct evaluation *e, slice name, char guard) {
    slice value = payload_view_header(e->v, name);
    buf_reset(&e->v->text);
    if (value.p && buf_percent_decode(&e->v->text, value)) value = buf_slice(&e->v->text);
    return put_header(e, name, value, guard);
}

static enum template_verdict put_event_field(const struct evaluation *e, slice name, char guard) {
    u32 at = json_tape_member(&e->v->tape, 0, name, json_name_hash(name));
    return put_field(e, at, name, guard);
}

static bool is_structured_event(struct payload_view *v) {
    const slice type = SL("application/cloudevents");
    if (v->content_type.n >= type.n && slice_eq_nocase(slice_of(v->content_type.p, type.n), type)) return true;
    return !payload_view_header(v, SL("ce-id")).p;
}

static enum template_verdict put_event(const struct evaluation *e, char guard) {
    bool structured = is_structured_event(e->v);
    if (structured && !payload_view_json(e->v)) return not_json(e);
    enum template_verdict verdict =
        structured ? put_event_field(e, SL("source"), ':') : put_event_header(e, SL("ce-source"), ':');
    if (verdict != TEMPLATE_OK) return verdict;
    buf_char(e->out, ':');
    return structured ? put_event_field(e, SL("id"), guard) : put_event_header(e, SL("ce-id"), guard);
}

static enum template_verdict put_part(const struct evaluation *e, const struct part *part) {
    switch (part->kind) {
    case PART_TEXT:
        buf_slice_add(e->out, part->text);
        return TEMPLATE_OK;
    case PART_HEADER:
        return put_header(e, part->text, payload_view_header(e->v, part->text), part->guard);
    case PART_CLOUDEVENT:
        return put_event(e, part->guard);
    default:
        if (!payload_view_json(e->v)) return not_json(e);
        return put_field(e, path_find(&part->path, &e->v->tape), part->path.text, part->guard);
    }
}

static enum template_verdict eval(const struct template *t, const struct evaluation *e) {
    struct buf *out = e->out;
    size_t from = out->len;
    enum template_verdict verdict = TEMPLATE_OK;
    for (u32 i = 0; i < t->count && verdict == TEMPLATE_OK; i++) {
        verdict = put_part(e, &t->parts[i]);
        if (verdict == TEMPLATE_OK && out->len - from > TEMPLATE_RESULT_MAX) {
            err_set(e->why, ST_INVALID, "the key is longer than %d bytes", TEMPLATE_RESULT_MAX);
            verdict = TEMPLATE_TOO_LONG;
        }
    }
    if (verdict != TEMPLATE_OK) out->len = from;
    return verdict;
}

enum template_verdict template_eval(const struct template *t, struct payload_view *v, struct buf *out,
                                    struct errbuf *why) {
    return eval(t, &(struct evaluation){v, out, why, false});
}

enum template_verdict template_eval_plain(const struct template *t, struct payload_view *v, struct buf *out,
                                          struct errbuf *why) {
    return eval(t, &(struct evaluation){v, out, why, true});
}
