#include "broker/attrs.h"

#include "broker/limits.h"
#include "broker/parse.h"

#define NAME_BYTES_MAX 255u

static void add_part(struct buf *b, slice part) {
    char len[2];
    put_u16(len, (u16)part.n);
    buf_add(b, len, 2);
    buf_slice_add(b, part);
}

static bool known(const struct attrs *a, slice name) {
    slice other, value;
    for (size_t at = 0; attrs_next(buf_slice(&a->bytes), &at, &other, &value);)
        if (slice_eq(other, name)) return true;
    return false;
}

const char *attrs_add(struct attrs *a, slice name, slice value, bool *too_large) {
    char lower[NAME_BYTES_MAX];
    *too_large = false;
    if (name.n == 0 || !text_ok(name, NAME_BYTES_MAX)) return "a name has 1 to 255 bytes of plain UTF-8";
    if (!text_ok(value, SIZE_MAX)) return "a value is not plain UTF-8";
    for (size_t i = 0; i < name.n; i++)
        lower[i] = name.p[i] >= 'A' && name.p[i] <= 'Z' ? (char)(name.p[i] + 32) : name.p[i];
    *too_large =
        a->count == ATTRS_MAX || value.n > ATTRS_BYTES_MAX || a->bytes.len + 4 + name.n + value.n > ATTRS_BYTES_MAX;
    if (*too_large) return "there are more than 100, or they take more than 16384 bytes";
    if (known(a, slice_of(lower, name.n))) return "a name is given twice, case aside";
    add_part(&a->bytes, slice_of(lower, name.n));
    add_part(&a->bytes, value);
    a->count++;
    return NULL;
}

void attrs_reset(struct attrs *a) {
    buf_reset(&a->bytes);
    a->count = 0;
}

void attrs_free(struct attrs *a) {
    buf_free(&a->bytes);
}

static bool attr_part(slice attrs, size_t *at, slice *out) {
    if (attrs.n - *at < 2) return false;
    size_t n = get_u16(attrs.p + *at);
    if (attrs.n - *at - 2 < n) return false;
    *out = slice_of(attrs.p + *at + 2, n);
    *at += 2 + n;
    return true;
}

bool attrs_next(slice attrs, size_t *at, slice *name, slice *value) {
    return attr_part(attrs, at, name) && attr_part(attrs, at, value);
}
