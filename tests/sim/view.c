/* Replies taken apart. */
#include "sim.h"

#include "base/json.h"

#include <stdarg.h>
#include <stdio.h>

slice arena_printf(struct arena *a, const char *fmt, ...) {
    char text[512];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    CHECK(n >= 0 && (size_t)n < sizeof text);
    return arena_copy(a, slice_of(text, (size_t)n));
}

static struct member *view_room(struct arena *a, struct view *v) {
    if ((v->count & (v->count - 1)) == 0 && (v->count == 0 || v->count >= 16)) {
        u32 cap = v->count ? v->count * 2 : 16;
        struct member *more = arena_alloc(a, cap * sizeof *more);
        if (v->count) memcpy(more, v->at, v->count * sizeof *more);
        v->at = more;
    }
    return &v->at[v->count++];
}

static bool take_value(struct arena *a, struct json *j, struct member *m) {
    enum json_type type = json_peek(j);
    m->is_null = type == JSON_NULL;
    m->is_string = type == JSON_STRING;
    if (m->is_string) {
        slice text;
        if (!json_string(j, &text)) return false;
        m->text = arena_copy(a, text);
        return true;
    }
    bool ok = json_value(j, &type, &m->raw);
    m->text = m->raw;
    return ok;
}

struct view view_of(struct arena *a, slice text) {
    struct view v = {0};
    struct json j;
    slice name;
    json_init(&j, text);
    v.is_array = json_peek(&j) == JSON_ARRAY;
    bool ok = v.is_array ? json_array(&j) : json_object(&j);
    if (v.is_array)
        while (ok && json_element(&j)) ok = take_value(a, &j, view_room(a, &v));
    else
        while (ok && json_member(&j, &name)) {
            struct member *m = view_room(a, &v);
            m->name = arena_copy(a, name);
            ok = take_value(a, &j, m);
        }
    v.ok = json_end(&j) && ok;
    json_free(&j);
    return v;
}

const struct member *view_get(const struct view *v, const char *name) {
    for (u32 i = 0; i < v->count; i++)
        if (slice_eq(v->at[i].name, slice_str(name))) return &v->at[i];
    return NULL;
}

slice view_text(const struct view *v, const char *name) {
    const struct member *m = view_get(v, name);
    return m ? m->text : SL("");
}

bool view_i64(const struct view *v, const char *name, i64 *out) {
    slice text = view_text(v, name);
    bool minus = text.n && text.p[0] == '-';
    if (minus) text = slice_of(text.p + 1, text.n - 1);
    u64 n;
    if (!slice_u64(text, &n) || n > INT64_MAX) return false;
    *out = minus ? -(i64)n : (i64)n;
    return true;
}

bool view_is(const struct view *v, const char *name, const char *text) {
    return slice_eq(view_text(v, name), slice_str(text));
}

bool view_true(const struct view *v, const char *name) {
    return view_is(v, name, "true");
}

bool view_time(const struct view *v, const char *name, i64 *out) {
    return rfc3339_parse(view_text(v, name), out);
}

bool view_bytes(struct arena *a, const struct view *v, const char *name, slice *out) {
    const struct member *m = view_get(v, name);
    if (!m || !m->is_string) return false;
    *out = m->text;
    if (view_is(v, "encoding", "utf8")) return true;
    struct buf bytes = {0};
    bool ok = view_is(v, "encoding", "base64") && buf_base64_decode(&bytes, m->text);
    if (ok) *out = arena_copy(a, buf_slice(&bytes));
    buf_free(&bytes);
    return ok;
}
