/* Where in a JSON payload: `a.b[0]`, compiled once, looked up in the tape of each message.
 *
 * Plain names are letters, digits, `_`, `-`, `@` and characters beyond ASCII; any other name is written `["odd.name"]`.
 * `[0]` counts from the front. `[*]` is every element of a list; only fingerprints allow it. A leading `$.` changes
 * nothing: it is for a field that is called like something else (`$.header.x`). */
#ifndef HAPAX_CONFIG_PATH_H
#define HAPAX_CONFIG_PATH_H

#include "base/arena.h"
#include "base/json_tape.h"

enum { PATH_STEPS_MAX = 16, PATH_INDEX_MAX = 1000000, PATHS_MAX = 64 };

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

/* Do they lead to the same places, however they are written? */
bool path_same(const struct path *a, const struct path *b);

/* The value there; 0 if there is none. The tape must have been read, the path must not contain [*]. */
u32 path_find(const struct path *path, const struct json_tape *tape);

/* ---- many at once
 *
 * Up to PATHS_MAX paths, followed together: whoever walks over a payload carries a bit for each path that has led there,
 * and asks at each member which of them go on. So every member is looked at once, however many paths there are, and finding
 * its name among theirs is a binary search, whatever the names and their hashes. */

/* What comes next on those paths that have come so far. */
struct path_level {
    u64 ends;   /* nothing: these have arrived */
    u64 each;   /* every element */
    u64 named;  /* a member of some name */
    u64 filter; /* a bit for each name's hash: most members are none of them */
    u32 name_count, index_count;
    struct path_name {
        u32 hash;
        slice name;
        u64 paths;
    } * names; /* in the order of their hashes, then of their bytes */
    struct path_index {
        u32 index;
        u64 paths;
    } * indices; /* in order */
};

struct path_set {
    u64 all;
    struct path_level levels[PATH_STEPS_MAX + 1];
};

/* The paths must outlive it; bit i is paths[i]. */
void path_set_make(const struct path *paths, u32 count, struct arena *arena, struct path_set *out);

u64 path_level_named(const struct path_level *level, const struct json_item *member);
u64 path_level_indexed(const struct path_level *level, u32 index);

/* Which of these go on with this member; with this element of a list. */
static inline u64 path_level_member(const struct path_level *level, u64 paths, const struct json_item *member) {
    if (!(level->filter >> (member->name_hash >> 26) & 1)) return 0;
    return paths & path_level_named(level, member);
}
static inline u64 path_level_element(const struct path_level *level, u64 paths, u32 index) {
    return paths & (level->each | (level->index_count ? path_level_indexed(level, index) : 0));
}

/* Everything the paths lead to, in the order of the payload, with those that lead there; until it returns false. *work grows
 * by the members and elements looked at. */
typedef bool path_visitor(void *ctx, u64 paths, u32 at);
void path_set_visit(const struct path_set *set, const struct json_tape *tape, path_visitor *each, void *ctx, u64 *work);

#endif
