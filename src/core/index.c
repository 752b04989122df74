#include "core/index.h"

#include "base/pages.h"

#define FIRST_BITS      12u
#define MOVE_PER_INSERT 64u      /* slots moved from the old table per insertion: growth ends long before the next */
#define GIVE_BACK       1048576u /* bytes of the old table returned to the system at a time */

static u64 slot_make(u64 hash, u32 no) {
    return (hash & ~(u64)0xffffffff) | no;
}
static u32 slot_entry(u64 slot) {
    return (u32)slot;
}
static u64 slot_home(const struct index_table *t, u64 slot) {
    return slot >> (64 - t->bits);
}
static u64 table_mask(const struct index_table *t) {
    return ((u64)1 << t->bits) - 1;
}
static size_t table_bytes(const struct index_table *t) {
    return ((size_t)1 << t->bits) * sizeof(u64);
}

static void table_map(struct index_table *t, u32 bits) {
    CHECK(bits <= 32);
    t->bits = bits;
    t->used = 0;
    t->slots = pages_map(table_bytes(t));
}

static void table_put(struct index_table *t, u64 slot) {
    u64 mask = table_mask(t);
    u64 i = slot_home(t, slot);
    while (t->slots[i] != 0) i = (i + 1) & mask;
    t->slots[i] = slot;
    t->used++;
}

/* Close the gap at i: pull back every later slot of the run that may stand at or before i. */
static void table_delete_at(struct index_table *t, u64 i) {
    u64 mask = table_mask(t);
    u64 j = i;
    for (;;) {
        j = (j + 1) & mask;
        if (t->slots[j] == 0) break;
        u64 home = slot_home(t, t->slots[j]);
        if (((j - home) & mask) < ((j - i) & mask)) continue; /* its home lies after the gap */
        t->slots[i] = t->slots[j];
        i = j;
    }
    t->slots[i] = 0;
    t->used--;
}

void index_init(struct index *ix) {
    memset(ix, 0, sizeof *ix);
    table_map(&ix->now, FIRST_BITS);
    ix->entries_top = 1; /* 0 is ENTRY_NONE */
}

void index_free(struct index *ix) {
    pages_unmap(ix->now.slots, table_bytes(&ix->now));
    if (ix->old.slots) pages_unmap(ix->old.slots, table_bytes(&ix->old));
    for (u32 i = 0; i < ix->chunk_count; i++) pages_unmap(ix->chunks[i], ENTRY_CHUNK * sizeof(struct entry));
    mem_free(ix->chunks);
    memset(ix, 0, sizeof *ix);
}

/* The old table shrinks from the front. Slots are moved in whole runs from the edge on, so that what is left is still a
 * valid table: a run is never cut in two, except by the table's end, where probing wraps. The wrapped part of a run
 * (slots at the very start whose home is near the end) is moved first and found again by rehoming into the new table. */
static void move_some(struct index *ix) {
    struct index_table *old = &ix->old;
    u64 cap = table_mask(old) + 1;
    for (u32 n = 0; ix->move_at < cap && (n < MOVE_PER_INSERT || old->slots[ix->move_at] != 0); n++, ix->move_at++) {
        u64 slot = old->slots[ix->move_at];
        if (slot == 0) continue;
        table_put(&ix->now, slot);
        old->slots[ix->move_at] = 0;
        old->used--;
    }
    u64 edge = ix->move_at * sizeof(u64) / GIVE_BACK * GIVE_BACK;
    if (edge > ix->freed_at) {
        pages_give_back((char *)old->slots + ix->freed_at, edge - ix->freed_at);
        ix->freed_at = edge;
    }
    if (ix->move_at < cap) return;
    CHECK(old->used == 0);
    pages_unmap(old->slots, table_bytes(old));
    old->slots = NULL;
}

static void grow_if_full(struct index *ix) {
    if (ix->old.slots) {
        move_some(ix);
        return;
    }
    if (ix->now.used * 5 < (table_mask(&ix->now) + 1) * 4) return; /* below 80 % */
    ix->old = ix->now;
    ix->move_at = 0;
    ix->freed_at = 0;
    table_map(&ix->now, ix->old.bits + 1);
}

static u32 entry_take(struct index *ix) {
    u32 no = ix->free_head;
    ix->live_entries++;
    if (no != ENTRY_NONE) {
        ix->free_head = index_entry(ix, no)->next;
        return no;
    }
    no = ix->entries_top++;
    CHECK(no != 0);
    u32 chunk = no >> ENTRY_CHUNK_BITS;
    if (chunk < ix->chunk_count) return no;
    if (ix->chunk_count == ix->chunk_cap) {
        ix->chunk_cap = ix->chunk_cap ? ix->chunk_cap * 2 : 64;
        ix->chunks = mem_realloc(ix->chunks, ix->chunk_cap * sizeof *ix->chunks);
    }
    ix->chunks[ix->chunk_count++] = pages_map(ENTRY_CHUNK * sizeof(struct entry));
    return no;
}

/* While growing, a key whose place in the old table has not been moved yet still goes there, and moves with its neighbours.
 * So the new table is filled from its start on, a page of memory at a time; keys put anywhere in it would have one turn
 * pay for all of its pages. False if its run ends with the table: a wrapped slot would come to lie behind the edge. */
static bool old_put(struct index *ix, u64 slot) {
    struct index_table *old = &ix->old;
    u64 i = slot_home(old, slot), cap = table_mask(old) + 1;
    if (i < ix->move_at) return false;
    while (i < cap && old->slots[i] != 0) i++;
    if (i == cap) return false;
    old->slots[i] = slot;
    old->used++;
    return true;
}

u32 index_insert(struct index *ix, u64 hash) {
    grow_if_full(ix);
    u32 no = entry_take(ix);
    *index_entry(ix, no) = (struct entry){.hash = hash, .kind = ENTRY_LIVE};
    u64 slot = slot_make(hash, no);
    if (!ix->old.slots || !old_put(ix, slot)) table_put(&ix->now, slot);
    return no;
}

static bool table_remove(struct index_table *t, u64 slot) {
    u64 mask = table_mask(t);
    for (u64 i = slot_home(t, slot); t->slots[i] != 0; i = (i + 1) & mask) {
        if (t->slots[i] != slot) continue;
        table_delete_at(t, i);
        return true;
    }
    return false;
}

void index_remove(struct index *ix, u32 no) {
    u64 slot = slot_make(index_entry(ix, no)->hash, no);
    if (table_remove(&ix->now, slot)) return;
    CHECK(ix->old.slots && table_remove(&ix->old, slot));
}

void index_release(struct index *ix, u32 no) {
    struct entry *e = index_entry(ix, no);
    *e = (struct entry){.kind = ENTRY_FREE, .next = ix->free_head};
    ix->free_head = no;
    ix->live_entries--;
}

/* One table's part of the search; *i is the next slot to look at. */
static u32 table_find(const struct index *ix, const struct index_table *t, u64 hash, u64 *i) {
    u64 mask = table_mask(t);
    for (; t->slots[*i & mask] != 0; ++*i) {
        u64 slot = t->slots[*i & mask];
        if ((slot ^ hash) >> 32 != 0) continue;
        if (index_entry(ix, slot_entry(slot))->hash != hash) continue;
        ++*i;
        return slot_entry(slot);
    }
    return ENTRY_NONE;
}

u32 index_find(const struct index *ix, u64 hash, struct index_cursor *c) {
    for (; c->phase < 4; c->phase++) {
        const struct index_table *t = c->phase < 2 ? &ix->now : &ix->old;
        if (c->phase >= 2 && !t->slots) break;
        if (c->phase % 2 == 0) {
            c->slot = hash >> (64 - t->bits);
            continue;
        }
        u32 no = table_find(ix, t, hash, &c->slot);
        if (no != ENTRY_NONE) return no;
    }
    return ENTRY_NONE;
}

static u32 table_guess(const struct index_table *t, u64 hash) {
    u64 mask = table_mask(t), i = hash >> (64 - t->bits);
    for (u64 slot; (slot = t->slots[i]) != 0; i = (i + 1) & mask)
        if ((slot ^ hash) >> 32 == 0) return slot_entry(slot);
    return ENTRY_NONE;
}

u32 index_guess(const struct index *ix, u64 hash) {
    u32 no = table_guess(&ix->now, hash);
    return no == ENTRY_NONE && ix->old.slots ? table_guess(&ix->old, hash) : no;
}

u64 index_bytes(const struct index *ix) {
    u64 bytes = table_bytes(&ix->now) + (u64)ix->chunk_count * ENTRY_CHUNK * sizeof(struct entry);
    if (ix->old.slots) bytes += table_bytes(&ix->old) - ix->freed_at;
    return bytes;
}
