/* A queue's event types, as the broker's metrics count them: lines like name{queue="q",type="t"} 5. */
#include "cli/types.h"

/* The next label of "a=\"b\",c=\"d\"}...": false at its end, or if it is none. The value is unescaped into `value`. */
static bool next_label(slice *rest, slice *name, struct buf *value) {
    buf_reset(value);
    if (rest->n && *rest->p == ',') *rest = slice_of(rest->p + 1, rest->n - 1);
    slice after;
    if (!slice_cut(*rest, '=', name, &after) || after.n == 0 || *after.p != '"') return false;
    for (size_t i = 1; i < after.n; i++) {
        if (after.p[i] == '"') {
            *rest = slice_of(after.p + i + 1, after.n - i - 1);
            return true;
        }
        bool escaped = after.p[i] == '\\' && i + 1 < after.n;
        if (escaped) i++;
        buf_char(value, escaped && after.p[i] == 'n' ? ' ' : after.p[i]);
    }
    return false;
}

/* Is it a sample of this queue that carries a type? Then *type has it, and *number what was counted. */
static bool read_sample(slice line, slice queue, struct buf *type, u64 *number) {
    slice name, rest, label, text, fraction;
    struct buf value = {0};
    bool ours = false;
    buf_reset(type);
    if (!slice_cut(line, '{', &name, &rest)) return false;
    while (next_label(&rest, &label, &value)) {
        if (slice_eq(label, SL("queue"))) ours = slice_eq(buf_slice(&value), queue);
        if (slice_eq(label, SL("type"))) buf_slice_add(type, buf_slice(&value));
    }
    buf_free(&value);
    if (!ours || type->len == 0 || rest.n < 2 || *rest.p != '}') return false;
    slice_cut(slice_of(rest.p + 2, rest.n - 2), ' ', &text, &rest);
    slice_cut(text, '.', &text, &fraction);
    return slice_u64(text, number);
}

static struct type_counts *counts_of(struct types *t, slice type) {
    for (size_t i = 0; i < t->count; i++)
        if (slice_eq(t->at[i].type, type)) return &t->at[i];
    if (t->count == TYPES_MAX) return NULL;
    char *copy = mem_alloc(type.n + 1);
    memcpy(copy, type.p, type.n);
    t->at[t->count].type = slice_of(copy, type.n);
    return &t->at[t->count++];
}

static void take_line(struct types *t, slice queue, slice line, struct buf *type) {
    u64 number;
    bool accepted = slice_starts(line, SL("hapax_accepted_total{"));
    bool duplicate = slice_starts(line, SL("hapax_duplicates_total{"));
    if (!accepted && !duplicate && !slice_starts(line, SL("hapax_conflicts_total{"))) return;
    if (!read_sample(line, queue, type, &number)) return;
    struct type_counts *c = counts_of(t, buf_slice(type));
    if (!c) return;
    *(accepted ? &c->accepted : duplicate ? &c->duplicates : &c->conflicts) += number;
}

void types_read(struct types *t, slice queue, slice metrics) {
    struct buf type = {0};
    slice line;
    *t = (struct types){0};
    while (metrics.n) {
        slice_cut(metrics, '\n', &line, &metrics);
        take_line(t, queue, line, &type);
    }
    buf_free(&type);
}

void types_free(struct types *t) {
    for (size_t i = 0; i < t->count; i++) mem_free((char *)(uintptr_t)t->at[i].type.p);
}
