/* Where in a JSON payload: `a.b[0]`, compiled once, looked up in the tape of each message.
 *
 * Plain names are letters, digits, `_`, `-`, `@` and characters beyond ASCII; any other name is written `["odd.name"]`.
 * `[0]` counts from the front. `[*]` is every element of a list; only fingerprints allow it. A leading `$.` changes
 * nothing: it is for a field that is called like something else (`$.header.x`). */
#ifndef HAPAX_CONFIG_PATH_H
#define HAPAX_CONFIG_PATH_H

#include "base/arena.h"
#include "base/json_tape.h"

enum { PATH_STEPS_MAX = 16, PATH_INDEX_MAX = 1000000 };

struct path_step {
    enum { STEP_NAME, STEP_INDEX, STEP_EACH } kind;
    u32 hash, index;
    slice name;
};

struct path {
    slice text; /* as it was written */
    u32 count;
    struct path_step *steps;
};

/* Everything is copied into the arena. On failure *column is the byte of the text, from 1. */
hx_st path_compile(slice text, bool each_allowed, struct arena *arena, struct path *out, u32 *column,
                   struct errbuf *err);

/* The value there; 0 if there is none. The tape must have been read, the path must not contain [*]. */
u32 path_find(const struct path *path, const struct json_tape *tape);

#endif
