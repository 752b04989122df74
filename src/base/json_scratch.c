#include "base/json_priv.h"

enum { CHUNK_BYTES = 2000, TABLE_FIRST = 64 };

struct chunk {
    struct chunk *next;
    size_t used, cap;
    char bytes[];
};

/* The names of one open object: in the order they came, and a table that leads to them. A place of the table is no more than a
 * number, so that the table of a hundred thousand names stays near: it is looked into all over, once for each name.
 *
 * A place is taken only while its generation is the set's: clearing is one increment, whatever the table's size, so a large object
 * costs nothing to the small ones after it. */
struct name {
    slice text;
    u64 hash;
};

struct place {
    u32 name; /* its number */
    u16 tag;  /* of its hash: another name is rarely looked at to see that it is another */
    u16 generation;
};

struct name_set {
    struct name *names;
    struct place *table; /* open addressing; the size is a power of two, and there are half as many names */
    size_t size;
    u32 count;
    u16 generation;
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
    for (int i = 0; i <= JSON_DEPTH_MAX; i++) {
        mem_free(s->sets[i].names);
        mem_free(s->sets[i].table);
    }
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

static u16 tag_of(u64 hash) {
    return (u16)(hash >> 48);
}

static bool taken(const struct name_set *set, const struct place *at) {
    return at->generation == set->generation;
}

/* Where the name is, or the free place where it belongs. */
static struct place *find(const struct name_set *set, slice text, u64 hash) {
    for (size_t i = hash;; i++) {
        struct place *at = &set->table[i & (set->size - 1)];
        if (!taken(set, at)) return at;
        if (at->tag == tag_of(hash) && slice_eq(set->names[at->name].text, text)) return at;
    }
}

static struct place *free_place(const struct name_set *set, u64 hash) {
    size_t i = hash;
    while (taken(set, &set->table[i & (set->size - 1)])) i++;
    return &set->table[i & (set->size - 1)];
}

static void enlarge(struct name_set *set) {
    mem_free(set->table);
    set->size = set->size ? set->size * 2 : TABLE_FIRST;
    set->names = mem_realloc(set->names, set->size / 2 * sizeof *set->names);
    set->table = mem_zalloc(set->size * sizeof *set->table);
    set->generation = 1; /* 0 marks a place never used */
    for (u32 i = 0; i < set->count; i++) {
        u64 hash = set->names[i].hash;
        *free_place(set, hash) = (struct place){i, tag_of(hash), set->generation};
    }
}

/* The hash is keyed anew for each text: nobody can prepare names that all collide. */
bool json_names_add(struct json_scratch *s, int level, slice name) {
    if (!s->keyed) random_bytes(&s->key, sizeof s->key);
    s->keyed = true;
    struct name_set *set = &s->sets[level];
    if (set->count == set->size / 2) enlarge(set);
    u64 hash = siphash(&s->key, name.p, name.n);
    struct place *at = find(set, name, hash);
    if (taken(set, at)) return false;
    *at = (struct place){set->count, tag_of(hash), set->generation};
    set->names[set->count++] = (struct name){name, hash};
    return true;
}

void json_names_clear(struct json_scratch *s, int level) {
    struct name_set *set = &s->sets[level];
    set->count = 0;
    if (++set->generation != 0) return;
    /* After 2^16 objects the numbers start again, so the old places must really go. */
    memset(set->table, 0, set->size * sizeof *set->table);
    set->generation = 1;
}
