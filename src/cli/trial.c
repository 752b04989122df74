#include "cli/trial.h"

#include "base/arena.h"
#include "config/payload_diff.h"

/* The first message of a key. */
struct first {
    u64 hash, fingerprint, number;
    slice key, payload, content_type;
};

/* 64-bit keyed hashes stand for values: a set of them only has to count. */
struct value_set {
    u64 *table; /* open addressing, 0 is free; the size is a power of two */
    size_t size, count;
};

/* What the template looks at, each on its own. */
struct watched {
    struct template *template;
    struct value_set values;
    struct trial_field field;
};

struct trial {
    const struct template *key;
    const struct fingerprint *fingerprint;
    const struct schema *schema;
    struct arena arena;
    struct siphash_key hash_key;
    struct payload_view view, first_view;
    struct buf text;
    struct trial_counts counts;
    struct first *table; /* open addressing; a free place has no key */
    size_t size;
    struct trial_conflict conflicts[TRIAL_EXAMPLES];
    struct trial_reason reasons[TRIAL_REASONS];
    struct trial_field changed[TRIAL_CHANGED];
    u32 conflict_count, reason_count, changed_count, watched_count;
    struct watched watched[TEMPLATE_FIELDS_MAX];
};

static void watch(struct trial *t, struct template_field field) {
    struct watched *w = &t->watched[t->watched_count];
    struct errbuf err;
    u32 column;
    buf_reset(&t->text);
    buf_lit(&t->text, "${");
    if (field.source == TEMPLATE_HEADER) buf_lit(&t->text, "header.");
    buf_slice_add(&t->text, field.name);
    buf_char(&t->text, '}');
    CHECK(template_compile(buf_slice(&t->text), &w->template, &column, &err) == ST_OK);
    w->field.name = field.name;
    t->watched_count++;
}

struct trial *trial_new(const struct template *key, const struct fingerprint *fingerprint,
                        const struct schema *schema) {
    struct trial *t = mem_zalloc(sizeof *t);
    t->key = key;
    t->fingerprint = fingerprint;
    t->schema = schema;
    random_bytes(&t->hash_key, sizeof t->hash_key);
    for (u32 i = 0; i < template_field_count(key); i++) watch(t, template_field_at(key, i));
    return t;
}

void trial_free(struct trial *t) {
    for (u32 i = 0; i < t->watched_count; i++) {
        template_free(t->watched[i].template);
        mem_free(t->watched[i].values.table);
    }
    payload_view_free(&t->view);
    payload_view_free(&t->first_view);
    buf_free(&t->text);
    arena_clear(&t->arena);
    mem_free(t->table);
    mem_free(t);
}

/* ---- tables */

static struct first *place_of(struct first *table, size_t size, u64 hash, slice key) {
    for (size_t i = hash;; i++) {
        struct first *at = &table[i & (size - 1)];
        if (!at->key.p || (at->hash == hash && slice_eq(at->key, key))) return at;
    }
}

static void enlarge(struct trial *t) {
    size_t size = t->size ? t->size * 2 : 1024;
    struct first *table = mem_zalloc(size * sizeof *table);
    for (size_t i = 0; i < t->size; i++) {
        const struct first *old = &t->table[i];
        if (old->key.p) *place_of(table, size, old->hash, old->key) = *old;
    }
    mem_free(t->table);
    t->table = table;
    t->size = size;
}

static bool put_value(u64 *table, size_t size, u64 value) {
    size_t i = value & (size - 1);
    for (; table[i]; i = (i + 1) & (size - 1)) {
        if (table[i] == value) return false;
    }
    table[i] = value;
    return true;
}

static void value_add(struct value_set *set, u64 value) {
    if (set->count >= set->size / 2) {
        size_t size = set->size ? set->size * 2 : 1024;
        u64 *table = mem_zalloc(size * sizeof *table);
        for (size_t i = 0; i < set->size; i++) {
            if (set->table[i]) put_value(table, size, set->table[i]);
        }
        mem_free(set->table);
        set->table = table;
        set->size = size;
    }
    set->count += put_value(set->table, set->size, value | 1);
}

/* ---- one message */

static void fail(struct trial *t, u64 number, const char *why) {
    slice text = slice_str(why);
    t->counts.failures++;
    u32 i = 0;
    while (i < t->reason_count && !slice_eq(t->reasons[i].text, text)) i++;
    if (i == TRIAL_REASONS) return;
    if (i == t->reason_count) {
        t->reasons[i] = (struct trial_reason){arena_copy(&t->arena, text), 0, number};
        t->reason_count++;
    }
    t->reasons[i].count++;
}

static void watch_values(struct trial *t) {
    struct errbuf why;
    for (u32 i = 0; i < t->watched_count; i++) {
        struct watched *w = &t->watched[i];
        buf_reset(&t->text);
        if (template_eval(w->template, &t->view, &t->text, &why) != TEMPLATE_OK) continue;
        value_add(&w->values, siphash(&t->hash_key, t->text.p, t->text.len));
        w->field.count = w->values.count;
    }
}

struct changes {
    struct trial *t;
    struct trial_conflict *conflict; /* NULL: enough examples */
};

static bool note_change(void *ctx, slice path, const struct json_item *before, const struct json_item *after) {
    struct changes *c = ctx;
    struct trial *t = c->t;
    (void)before;
    (void)after;
    if (path.n && !fingerprint_looks_at(t->fingerprint, path)) return true;
    slice name = path.n ? path : SL("the whole payload");
    if (c->conflict && c->conflict->changed_count < TRIAL_CHANGED)
        c->conflict->changed[c->conflict->changed_count++] = arena_copy(&t->arena, name);
    u32 i = 0;
    while (i < t->changed_count && !slice_eq(t->changed[i].name, name)) i++;
    if (i == TRIAL_CHANGED) return true;
    if (i == t->changed_count) t->changed[t->changed_count++] = (struct trial_field){arena_copy(&t->arena, name), 0};
    t->changed[i].count++;
    return true;
}

static void conflict(struct trial *t, const struct first *first, u64 number) {
    struct trial_conflict unshown, *shown = &unshown;
    t->counts.conflicts++;
    if (t->conflict_count < TRIAL_EXAMPLES) shown = &t->conflicts[t->conflict_count++];
    *shown = (struct trial_conflict){.key = first->key, .first = first->number, .second = number};
    struct changes c = {t, shown == &unshown ? NULL : shown};
    payload_view_init(&t->first_view, first->payload, first->content_type, NULL, NULL);
    shown->compared = payload_diff(&t->first_view, &t->view, UINT32_MAX, note_change, &c);
}

void trial_add(struct trial *t, const struct trial_message *m) {
    struct errbuf why = {0};
    t->counts.messages++;
    payload_view_init(&t->view, m->payload, m->content_type, m->header, m->header_ctx);
    buf_reset(&t->text);
    if ((t->schema && !schema_check(t->schema, &t->view, &why)) ||
        template_eval(t->key, &t->view, &t->text, &why) != TEMPLATE_OK) {
        fail(t, m->number, why.text);
        return;
    }
    if (key_names_replay(buf_slice(&t->text))) {
        fail(t, m->number, "the key ends in ~g and digits, as the effect keys of replays do");
        return;
    }
    if (t->counts.keys >= t->size / 2) enlarge(t);
    u64 hash = siphash(&t->hash_key, t->text.p, t->text.len);
    u64 fingerprint = fingerprint_eval(t->fingerprint, &t->view, &t->hash_key);
    struct first *first = place_of(t->table, t->size, hash, buf_slice(&t->text));
    if (!first->key.p) {
        slice key = arena_copy(&t->arena, buf_slice(&t->text));
        *first = (struct first){hash, fingerprint, m->number, key, m->payload, m->content_type};
        t->counts.keys++;
    } else if (first->fingerprint == fingerprint) {
        t->counts.repeats++;
    } else {
        conflict(t, first, m->number);
    }
    watch_values(t);
}

/* ---- what came out */

struct trial_counts trial_counts(const struct trial *t) {
    return t->counts;
}

const struct trial_conflict *trial_conflicts(const struct trial *t, u32 *count) {
    *count = t->conflict_count;
    return t->conflicts;
}

const struct trial_reason *trial_reasons(const struct trial *t, u32 *count) {
    *count = t->reason_count;
    return t->reasons;
}

const struct trial_field *trial_changed(const struct trial *t, u32 *count) {
    *count = t->changed_count;
    return t->changed;
}

const struct trial_field *trial_narrowing(const struct trial *t) {
    const struct trial_field *found = NULL;
    if (t->counts.keys < 2 || t->counts.repeats || t->counts.conflicts || t->watched_count < 2) return NULL;
    bool another_repeats = false;
    for (u32 i = 0; i < t->watched_count; i++) {
        const struct trial_field *field = &t->watched[i].field;
        if (field->count < t->counts.keys)
            another_repeats = true;
        else if (!found)
            found = field;
    }
    return another_repeats ? found : NULL;
}
