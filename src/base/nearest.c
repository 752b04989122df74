#include "base/base.h"

enum { NAME_MAX = 63 };

/* Edit distance with insertions, deletions and replacements. */
static size_t distance(slice a, slice b) {
    size_t row[NAME_MAX + 2];
    for (size_t j = 0; j <= b.n; j++) row[j] = j;
    for (size_t i = 1; i <= a.n; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b.n; j++) {
            size_t best = diagonal + (a.p[i - 1] != b.p[j - 1]);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[b.n];
}

const char *nearest_name(slice typed, const char *(*name_at)(const void *ctx, size_t i), const void *ctx) {
    const char *best = NULL;
    size_t best_distance = 3; /* more than two slips is another word */
    for (size_t i = 0; name_at(ctx, i); i++) {
        slice name = slice_str(name_at(ctx, i));
        if (typed.n > NAME_MAX || name.n > NAME_MAX) continue;
        size_t d = distance(typed, name);
        if (d >= best_distance || d >= name.n) continue;
        best = name_at(ctx, i);
        best_distance = d;
    }
    return best;
}
