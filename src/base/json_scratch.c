#include "base/json_priv.h"

enum { CHUNK_BYTES = 2000, TABLE_FIRST = 64 };

struct chunk {
    struct chunk *next;
    size_t used, cap;
    char bytes[];
};

/* An entry belongs to the set only while its generation is the set's: clearing is one increment, whatever the
 * table's size, so a large object costs nothing to the small ones after it. */
struct name {
    slice text;
    u32 hash, generation;
};

struct name_set {
    struct name *table; /* open addressing; the size is a power of two */
    size_t size, count;
    u32 generation;
};

struct json_scratch {
    struct chunk *chunks; /* the newest first */
    bool keyed;
    struct siphash_key key;
    struct name_set sets[JSON_DEPTH_MAX + 1];
};

struct json_scratch *json_scratch_new(void) {
    return mem_zalloc(sizeof(struct json_scratch));
}

void json_scratch_free(struct json_scratch *s) {
    if (!s) return;
    for (struct chunk *c = s->chunks, *next; c; c = next) {
        next = c->next;
        mem_free(c);
    }
    for (int i = 0; i <= JSON_DEPTH_MAX; i++) mem_free(s->sets[i].table);
    mem_free(s);
}

char *json_scratch_reserve(struct json_scratch *s, size_t n) {
    struct chunk *c = s->chunks;
    if (!c || c->cap - c->used < n) {
        size_t cap = n > CHUNK_BYTES ? n : CHUNK_BYTES;
        c = mem_alloc(sizeof *c + cap);
        *c = (struct chunk){.next = s->chunks, .cap = cap};
        s->chunks = c;
    }
    return c->bytes + c->used;
}

void json_scratch_keep(struct json_scratch *s, size_t used) {
    CHECK(s->chunks && used <= s->chunks->cap - s->chunks->used);
    s->chunks->used += used;
}

void json_scratch_rewind(struct json_scratch *s) {
    while (s->chunks && s->chunks->next) {
        struct chunk *newest = s->chunks;
        s->chunks = newest->next;
        mem_free(newest);
    }
    if (s->chunks) s->chunks->used = 0;
}

/* Where the name is, or the free place where it belongs. */
static struct name *find(const struct name_set *set, slice text, u32 hash) {
    for (size_t i = hash;; i++) {
        struct name *at = &set->table[i & (set->size - 1)];
        if (at->generation != set->generation) return at;
        if (at->hash == hash && slice_eq(at->text, text)) return at;
    }
}

static void enlarge(struct name_set *set) {
    struct name *old = set->table;
    size_t old_size = set->size;
    set->size = old_size ? old_size * 2 : TABLE_FIRST;
    set->table = mem_zalloc(set->size * sizeof *set->table);
    if (set->generation == 0) set->generation = 1; /* 0 marks a place never used */
    for (size_t i = 0; i < old_size; i++) {
        if (old[i].generation == set->generation) *find(set, old[i].text, old[i].hash) = old[i];
    }
    mem_free(old);
}

/* The hash is keyed anew for each text: nobody can prepare names that all collide. */
bool json_names_add(struct json_scratch *s, int level, slice name) {
    if (!s->keyed) random_bytes(&s->key, sizeof s->key);
    s->keyed = true;
    struct name_set *set = &s->sets[level];
    if (set->count >= set->size / 2) enlarge(set);
    u32 hash = (u32)siphash(&s->key, name.p, name.n);
    struct name *at = find(set, name, hash);
    if (at->generation == set->generation) return false;
    *at = (struct name){name, hash, set->generation};
    set->count++;
    return true;
}

void json_names_clear(struct json_scratch *s, int level) {
    struct name_set *set = &s->sets[level];
    set->count = 0;
    if (++set->generation != 0) return;
    /* After 2^32 objects the numbers start again, so the old entries must really go. */
    memset(set->table, 0, set->size * sizeof *set->table);
    set->generation = 1;
}
