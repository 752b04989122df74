#include "config/braces.h"

#include <ctype.h>

bool braces_close(slice text, size_t from, size_t *close) {
    bool quoted = false;
    for (size_t i = from; i < text.n; i++) {
        quoted ^= text.p[i] == '"';
        if (text.p[i] == '}' && !quoted) return *close = i, true;
    }
    return false;
}

static bool is_token_char(char c) {
    return isalnum((u8)c) || (c != '\0' && strchr("!#$%&'*+-.^_`|~", c));
}

hx_st braces_header(slice name, struct arena *arena, slice *lower, size_t *bad, struct errbuf *err) {
    char *p = arena_alloc(arena, name.n + 1);
    *bad = 0;
    if (name.n == 0) return err_set(err, ST_INVALID, "a header name is missing");
    for (size_t i = 0; i < name.n; i++) {
        p[i] = (char)tolower((u8)name.p[i]);
        *bad = i;
        if (!is_token_char(name.p[i])) return err_set(err, ST_INVALID, "this cannot stand in a header name");
    }
    *lower = slice_of(p, name.n);
    return ST_OK;
}
