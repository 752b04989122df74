#include "config/call_template.h"

#include <ctype.h>

#include "config/braces.h"
#include "config/path.h"

enum part_kind { PART_TEXT, PART_FIELD, PART_HEADER, PART_KEY, PART_EFFECT_KEY, PART_ID };

struct part {
    enum part_kind kind;
    slice text; /* literal text; the header's name; hapax.x */
    struct path path;
};

enum { PARTS_MAX = 2 * TEMPLATE_FIELDS_MAX + 1, PORT_MAX = 65535, HOST_BYTES_MAX = 253 };

struct call_template {
    enum call_kind kind;
    slice text, origin;
    u32 count, values;
    struct part *parts;
};

/* ---- compiling */

struct compiler {
    struct call_template *t;
    struct arena *arena;
    slice text;
    size_t at;
    struct buf literal; /* gathered since the last value */
    struct part parts[PARTS_MAX];
    struct errbuf *err;
};

static hx_st wrong(struct compiler *c, size_t at, const char *message) {
    c->at = at;
    return err_set(c->err, ST_INVALID, "%s", message);
}

static void add_literal(struct compiler *c) {
    if (c->literal.len == 0) return;
    c->parts[c->t->count++] = (struct part){.kind = PART_TEXT, .text = arena_copy(c->arena, buf_slice(&c->literal))};
    buf_reset(&c->literal);
}

static hx_st compile_header(struct compiler *c, slice name, size_t at, struct part *part) {
    size_t bad;
    *part = (struct part){.kind = PART_HEADER};
    hx_st st = braces_header(name, c->arena, &part->text, &bad, c->err);
    if (st != ST_OK) c->at = at + bad;
    return st;
}

static hx_st compile_variable(struct compiler *c, slice inside, size_t at, struct part *part) {
    static const struct {
        const char *name;
        enum part_kind kind;
    } known[] = {{"hapax.key", PART_KEY}, {"hapax.effect_key", PART_EFFECT_KEY}, {"hapax.id", PART_ID}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (slice_eq(inside, slice_str(known[i].name))) {
            *part = (struct part){.kind = known[i].kind, .text = slice_str(known[i].name)};
            return ST_OK;
        }
    return wrong(c, at,
                 "there are ${hapax.key}, ${hapax.effect_key} and ${hapax.id}; a field of that name is ${$.hapax...}");
}

static hx_st compile_field(struct compiler *c, slice inside, size_t at, struct part *part) {
    u32 column;
    *part = (struct part){.kind = PART_FIELD};
    hx_st st = path_compile(inside, false, c->arena, &part->path, &column, c->err);
    part->text = part->path.text;
    if (st != ST_OK) c->at = at + column - 1;
    return st;
}

/* What stands between the braces, at this byte of the template. */
static hx_st compile_inside(struct compiler *c, slice inside, size_t at, struct part *part) {
    const slice header = SL("header."), own = SL("hapax.");
    if (inside.n == 0) return wrong(c, at, "a field name is missing between the braces");
    if (slice_starts(inside, header))
        return compile_header(c, slice_of(inside.p + header.n, inside.n - header.n), at + header.n, part);
    return slice_starts(inside, own) ? compile_variable(c, inside, at, part) : compile_field(c, inside, at, part);
}

/* At "${". */
static hx_st compile_value(struct compiler *c) {
    struct call_template *t = c->t;
    size_t open = c->at, close;
    if (!braces_close(c->text, open + 2, &close)) return wrong(c, open, "the brace opened here is not closed");
    if (t->values == TEMPLATE_FIELDS_MAX) return wrong(c, open, "more than 16 fields");
    add_literal(c);
    hx_st st = compile_inside(c, slice_of(c->text.p + open + 2, close - open - 2), open + 2, &c->parts[t->count]);
    if (st != ST_OK) return st;
    t->count++;
    t->values++;
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

/* Of an address: what may stand in a path or a query as it is. A '%' without its two digits would make an escape of the value
 * behind it. */
static hx_st check_literal(struct compiler *c) {
    char ch = c->text.p[c->at];
    if (c->t->kind != CALL_URL) return ST_OK;
    if (ch == '#') return wrong(c, c->at, "a fragment is never sent: leave it out");
    if (ch <= ' ' || ch > '~' || strchr("\"<>\\^`{|}", ch))
        return wrong(c, c->at, "this cannot stand in an address: percent-encode it");
    bool escape = c->at + 2 < c->text.n && isxdigit((u8)c->text.p[c->at + 1]) && isxdigit((u8)c->text.p[c->at + 2]);
    return ch == '%' && !escape ? wrong(c, c->at, "a percent sign without two hexadecimal digits") : ST_OK;
}

static hx_st compile_parts(struct compiler *c) {
    hx_st st = ST_OK;
    while (st == ST_OK && c->at < c->text.n) {
        if (c->text.p[c->at] == '$') {
            st = compile_dollar(c);
            continue;
        }
        st = check_literal(c);
        if (st == ST_OK) buf_char(&c->literal, c->text.p[c->at++]);
    }
    add_literal(c);
    return st;
}

/* ---- addresses */

static hx_st check_port(struct compiler *c, slice port, size_t at) {
    u64 number;
    bool good = slice_u64(port, &number) && number >= 1 && number <= PORT_MAX;
    return good ? ST_OK : wrong(c, at, "a port is a number from 1 to 65535");
}

static hx_st check_name(struct compiler *c, slice host, size_t at) {
    if (host.n == 0) return wrong(c, at, "has no host");
    if (host.n > HOST_BYTES_MAX) return wrong(c, at, "a host name has at most 253 characters");
    for (size_t i = 0; i < host.n; i++)
        if (!isalnum((u8)host.p[i]) && !strchr("-._", host.p[i]))
            return wrong(c, at + i, "this cannot stand in a host name");
    return ST_OK;
}

/* "host:port" or "[address]:port". */
static hx_st check_authority(struct compiler *c, slice authority, size_t at) {
    slice host, port;
    bool numeric = authority.n && authority.p[0] == '[';
    const char *close = numeric ? memchr(authority.p, ']', authority.n) : NULL;
    if (memchr(authority.p, '@', authority.n)) return wrong(c, at, "has a user name or password before the host");
    if (numeric && !close) return wrong(c, at, "the bracket opened here is not closed");
    if (!numeric) {
        bool has_port = slice_cut(authority, ':', &host, &port);
        hx_st st = check_name(c, host, at);
        return st == ST_OK && has_port ? check_port(c, port, at + host.n + 1) : st;
    }
    size_t end = (size_t)(close + 1 - authority.p);
    for (size_t i = 1; i + 1 < end; i++)
        if (!isxdigit((u8)authority.p[i]) && !strchr(":.", authority.p[i]))
            return wrong(c, at + i, "this cannot stand in an address between brackets");
    if (end == authority.n) return ST_OK;
    if (authority.p[end] != ':') return wrong(c, at + end, "expected : and a port behind the bracket");
    return check_port(c, slice_of(authority.p + end + 1, authority.n - end - 1), at + end + 1);
}

/* Scheme, host and port are the template's own; everything behind them may have values. */
static hx_st find_origin(struct compiler *c) {
    slice text = c->text, scheme = slice_starts(text, SL("https://")) ? SL("https://") : SL("http://");
    if (!slice_starts(text, scheme)) return wrong(c, 0, "does not begin with https:// or http://");
    size_t end = scheme.n;
    while (end < text.n && !strchr("/?#", text.p[end])) end++;
    slice authority = slice_of(text.p + scheme.n, end - scheme.n);
    const char *value = memmem(authority.p, authority.n, "${", 2);
    if (value)
        return wrong(c, (size_t)(value - text.p),
                     "a value may stand in the path and the query only: no message decides whom the broker calls");
    c->t->origin = slice_of(c->t->text.p, end);
    return check_authority(c, authority, scheme.n);
}

/* What a segment means once it is decoded: `.` and `..` are taken out by clients and servers, in any spelling. A segment made of
 * text and values is none of these if none of its values is. */
static bool is_dots(slice segment) {
    size_t dots = 0;
    for (size_t i = 0; i < segment.n; dots++) {
        bool plain = segment.p[i] == '.';
        bool escaped =
            segment.n - i >= 3 && memcmp(segment.p + i, "%2", 2) == 0 && tolower((u8)segment.p[i + 2]) == 'e';
        if (!plain && !escaped) return false;
        i += plain ? 1 : 3;
    }
    return dots == 1 || dots == 2;
}

/* path: from its first slash on, or empty; a query may follow. */
static bool has_dots(slice path) {
    slice rest, segment, query;
    slice_cut(path, '?', &rest, &query);
    for (bool more = true; more;) {
        more = slice_cut(rest, '/', &segment, &rest);
        if (is_dots(segment)) return true;
    }
    return false;
}

static hx_st check_segments(struct compiler *c) {
    const struct call_template *t = c->t;
    slice path = slice_of(t->text.p + t->origin.n, t->text.n - t->origin.n);
    return has_dots(path) ? wrong(c, t->origin.n, "has . or .. in its path: write where it leads") : ST_OK;
}

static hx_st compile(struct compiler *c) {
    if (c->text.n == 0) return wrong(c, 0, "empty");
    if (c->text.n > CALL_TEMPLATE_BYTES_MAX) return wrong(c, CALL_TEMPLATE_BYTES_MAX, "longer than 2048 bytes");
    if (!utf8_valid(c->text) || has_control(c->text)) return wrong(c, 0, "a control character, or not UTF-8");
    hx_st st = c->t->kind == CALL_URL ? find_origin(c) : ST_OK;
    if (st == ST_OK) st = compile_parts(c);
    return st == ST_OK && c->t->kind == CALL_URL ? check_segments(c) : st;
}

hx_st call_template_compile(slice text, enum call_kind kind, struct arena *arena, struct call_template **out,
                            u32 *column, struct errbuf *err) {
    struct call_template *t = arena_alloc(arena, sizeof *t);
    *t = (struct call_template){.kind = kind, .text = arena_copy(arena, text)};
    struct compiler c = {.t = t, .arena = arena, .text = t->text, .err = err};
    hx_st st = compile(&c);
    buf_free(&c.literal);
    t->parts = arena_alloc(arena, t->count * sizeof *t->parts);
    if (t->count) memcpy(t->parts, c.parts, t->count * sizeof *t->parts);
    *column = (u32)c.at + 1;
    *out = st == ST_OK ? t : NULL;
    return st;
}

struct call_template *call_template_verbatim(slice text, struct arena *arena) {
    struct call_template *t = arena_alloc(arena, sizeof *t);
    *t = (struct call_template){.kind = CALL_HEADER, .text = arena_copy(arena, text), .count = 1};
    t->parts = arena_alloc(arena, sizeof *t->parts);
    t->parts[0] = (struct part){.kind = PART_TEXT, .text = t->text};
    return t;
}

slice call_template_text(const struct call_template *t) {
    return t->text;
}

bool call_template_is_plain(const struct call_template *t) {
    return t->values == 0;
}

bool call_template_header(const struct call_template *t, u32 *part, slice *name) {
    while (*part < t->count && t->parts[*part].kind != PART_HEADER) ++*part;
    if (*part == t->count) return false;
    *name = t->parts[(*part)++].text;
    return true;
}

slice call_template_origin(const struct call_template *t) {
    return t->origin;
}

/* ---- evaluating */

struct evaluation {
    const struct call_template *t;
    struct payload_view *v;
    const struct call_vars *vars;
    struct buf *out;
    struct errbuf *why;
};

static const char *kind_text(const struct call_template *t) {
    return t->kind == CALL_URL ? "url" : "header";
}

static enum template_verdict refuse(const struct evaluation *e, enum template_verdict verdict, slice name,
                                    const char *how) {
    err_set(e->why, ST_INVALID, "the %s's %.*s %s", kind_text(e->t), (int)name.n, name.p, how);
    return verdict;
}

static size_t most(const struct evaluation *e) {
    return e->t->kind == CALL_URL ? CALL_URL_BYTES_MAX : CALL_HEADER_BYTES_MAX;
}

static enum template_verdict put_value(const struct evaluation *e, slice name, slice value) {
    if (value.n == 0) return refuse(e, TEMPLATE_MISSING, name, "is empty");
    if (value.n > most(e)) return refuse(e, TEMPLATE_TOO_LONG, name, "is too long");
    if (!utf8_valid(value)) return refuse(e, TEMPLATE_BAD_VALUE, name, "is not UTF-8");
    if (e->t->kind == CALL_URL) {
        if (is_dots(value)) return refuse(e, TEMPLATE_BAD_VALUE, name, "is . or .., which names nothing");
        buf_percent_encode(e->out, value);
        return TEMPLATE_OK;
    }
    if (has_control(value)) return refuse(e, TEMPLATE_BAD_VALUE, name, "has a control character");
    buf_slice_add(e->out, value);
    return TEMPLATE_OK;
}

static enum template_verdict put_field(const struct evaluation *e, const struct part *part) {
    slice text;
    if (!payload_view_json(e->v)) {
        payload_view_why_not(e->v, e->why);
        return TEMPLATE_NOT_JSON;
    }
    u32 at = path_find(&part->path, &e->v->tape);
    const struct json_item *item = &e->v->tape.at[at];
    if (at == 0) return refuse(e, TEMPLATE_MISSING, part->text, "is missing");
    if (item->type == JSON_NULL) return refuse(e, TEMPLATE_MISSING, part->text, "is null");
    if (item->type == JSON_OBJECT || item->type == JSON_ARRAY)
        return refuse(e, TEMPLATE_NOT_SCALAR, part->text,
                      item->type == JSON_OBJECT ? "is an object; it needs text, a number, true or false"
                                                : "is a list; it needs text, a number, true or false");
    if (!payload_view_scalar(e->v, item, &text))
        return refuse(e, TEMPLATE_BAD_VALUE, part->text, "is a number out of all bounds");
    return put_value(e, part->text, text);
}

static enum template_verdict put_header(const struct evaluation *e, slice name) {
    slice value = payload_view_header(e->v, name);
    if (value.n) return put_value(e, name, value);
    return refuse(e, e->t->kind == CALL_URL ? TEMPLATE_MISSING : TEMPLATE_NO_HEADER, name,
                  "was not sent with the message");
}

static enum template_verdict put_part(const struct evaluation *e, const struct part *part) {
    switch (part->kind) {
    case PART_TEXT:
        buf_slice_add(e->out, part->text);
        return TEMPLATE_OK;
    case PART_HEADER:
        return put_header(e, part->text);
    case PART_KEY:
        return put_value(e, part->text, e->vars->key);
    case PART_EFFECT_KEY:
        return put_value(e, part->text, e->vars->effect_key);
    case PART_ID:
        return put_value(e, part->text, e->vars->id);
    case PART_FIELD:
        break;
    }
    return put_field(e, part);
}

enum template_verdict call_template_eval(const struct call_template *t, struct payload_view *v,
                                         const struct call_vars *vars, struct buf *out, struct errbuf *why) {
    struct evaluation e = {t, v, vars, out, why};
    size_t from = out->len;
    enum template_verdict verdict = TEMPLATE_OK;
    for (u32 i = 0; i < t->count && verdict == TEMPLATE_OK; i++) verdict = put_part(&e, &t->parts[i]);
    if (verdict == TEMPLATE_OK && out->len - from > most(&e)) {
        err_set(why, ST_INVALID, "the %s is longer than %zu bytes", kind_text(t), most(&e));
        verdict = TEMPLATE_TOO_LONG;
    }
    if (verdict != TEMPLATE_OK) out->len = from;
    return verdict;
}
