#include "broker/attrs.h"

bool attrs_add(struct buf *attrs, slice name, slice value) {
    char len[2];
    size_t start = attrs->len, at = 0;
    put_u16(len, (u16)name.n);
    buf_add(attrs, len, 2);
    for (size_t i = 0; i < name.n; i++)
        buf_char(attrs, name.p[i] >= 'A' && name.p[i] <= 'Z' ? (char)(name.p[i] + 32) : name.p[i]);
    slice known, ignored, lower = slice_of(attrs->p + start + 2, name.n);
    while (at < start && attrs_next(slice_of(attrs->p, start), &at, &known, &ignored))
        if (slice_eq(known, lower)) return false;
    put_u16(len, (u16)value.n);
    buf_add(attrs, len, 2);
    buf_slice_add(attrs, value);
    return true;
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
