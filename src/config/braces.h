/* Braces: what stands between ${ and } in a template of any kind. What it means there is the template's business. */
#ifndef HAPAX_CONFIG_BRACES_H
#define HAPAX_CONFIG_BRACES_H

#include "base/arena.h"
#include "base/base.h"

/* Where the closing brace is; a quoted name may contain one. */
bool braces_close(slice text, size_t from, size_t *close);
/* The name of a header, in small letters. On error *bad is its byte that is wrong. */
hx_st braces_header(slice name, struct arena *arena, slice *lower, size_t *bad, struct errbuf *err);

#endif
