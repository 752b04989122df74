/* Forgetting: settled keys in the order in which their windows end, and the memory they give back.
 *
 * Keys that settled in the same stretch of running time share a bucket (window.c says when it ends). What an EXPIRE record has
 * made unknown is freed a few entries at a time. */
#include "core/state.h"

#define BUCKETS_PER_WINDOW 256
#define WIDTH_MIN_MS       1000
#define KEPT_STRETCH_MS    600000

/* The first bucket that ends after this moment. */
static u32 bucket_lower(const struct queue *q, i64 run_ms) {
    u32 low = 0, high = q->bucket_count;
    while (low < high) {
        u32 mid = (low + high) / 2;
        if (q->buckets[mid].to_ms <= run_ms)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static struct bucket bucket_around(const struct queue *q, i64 run_ms, u32 at) {
    i64 width = q->rules.window_ms / BUCKETS_PER_WINDOW;
    if (width < WIDTH_MIN_MS) width = WIDTH_MIN_MS;
    struct bucket b = {.from_ms = run_ms / width * width};
    b.to_ms = b.from_ms + width;
    for (u32 i = 0; i < q->promise_count; i++) /* keys before and after such a moment have windows of their own */
        if (q->promises[i].until_run_ms <= run_ms && q->promises[i].until_run_ms > b.from_ms)
            b.from_ms = q->promises[i].until_run_ms;
    if (at > 0 && q->buckets[at - 1].to_ms > b.from_ms) b.from_ms = q->buckets[at - 1].to_ms;
    if (at < q->bucket_count && q->buckets[at].from_ms < b.to_ms) b.to_ms = q->buckets[at].from_ms;
    return b;
}

static struct bucket *bucket_for(struct queue *q, i64 run_ms) {
    u32 at = q->bucket_count;
    if (at > 0 && q->buckets[at - 1].to_ms > run_ms) { /* else the common case: a new one behind the last */
        if (q->buckets[at - 1].from_ms <= run_ms) return &q->buckets[at - 1];
        at = bucket_lower(q, run_ms);
        if (q->buckets[at].from_ms <= run_ms) return &q->buckets[at];
    }
    struct bucket b = bucket_around(q, run_ms, at);
    if (q->bucket_count == q->bucket_cap) {
        q->bucket_cap = q->bucket_cap ? q->bucket_cap * 2 : 16;
        q->buckets = mem_realloc(q->buckets, q->bucket_cap * sizeof *q->buckets);
    }
    if (at < q->bucket_count)
        memmove(q->buckets + at + 1, q->buckets + at, (q->bucket_count - at) * sizeof *q->buckets);
    q->bucket_count++;
    q->buckets[at] = b;
    return &q->buckets[at];
}

void window_cut(struct queue *q, i64 run_ms) {
    if (q->bucket_count == 0) return;
    struct bucket *last = &q->buckets[q->bucket_count - 1];
    if (last->from_ms <= run_ms && last->to_ms > run_ms + 1) last->to_ms = run_ms + 1;
}

void window_add(struct core *c, u32 entry, i64 settled_run_ms) {
    struct entry *e = index_entry(&c->keys, entry);
    struct queue *q = queue_mut(c, e->queue);
    q->settled_keys++;
    if (window_of(q, settled_run_ms) == WINDOW_FOREVER) return;
    struct bucket *b = bucket_for(q, settled_run_ms);
    e->next = b->head;
    e->bucketed = 1;
    b->head = entry;
    b->keys++;
}

/* What a settled key takes is given back: its bytes, its arrivals, its places in the journal and in the table. The entry stays, as
 * long as a bucket links it. */
static void key_free(struct core *c, u32 entry) {
    const struct entry *e = index_entry(&c->keys, entry);
    if (entry_former(c, e))
        c->live_bytes -= entry_size(e); /* the queue that had them is deleted */
    else
        live_off(c, e->queue, entry_size(e));
    arrivals_forget(c, entry);
    needed_over(&c->needed, e->at);
    index_remove(&c->keys, entry);
}

void window_remove(struct core *c, u32 entry) {
    struct entry *e = index_entry(&c->keys, entry);
    struct queue *q = queue_mut(c, e->queue);
    q->settled_keys--;
    key_free(c, entry);
    if (!e->bucketed) {
        index_release(&c->keys, entry);
        return;
    }
    bucket_for(q, (i64)e->settled_run_ms)->keys--;
    e->kind = ENTRY_GONE; /* still linked: freed with its bucket */
}

static void bucket_to_reap(struct core *c, struct queue *q, const struct bucket *b) {
    q->settled_keys -= b->keys;
    if (c->reaping_count == c->reaping_cap) {
        c->reaping_cap = c->reaping_cap ? c->reaping_cap * 2 : 16;
        c->reaping = mem_realloc(c->reaping, c->reaping_cap * sizeof *c->reaping);
    }
    c->reaping[c->reaping_count++] = *b;
}

/* What is forgotten, as few ranges as that takes: one that meets others takes them in. */
static void forgotten_note(struct queue *q, i64 from_run_ms, i64 upto_run_ms) {
    struct forgotten_range all = {.from_ms = from_run_ms, .upto_ms = upto_run_ms};
    u32 kept = 0;
    for (u32 i = 0; i < q->forgotten_count; i++) {
        struct forgotten_range *f = &q->forgotten[i];
        if (f->upto_ms < all.from_ms || f->from_ms > all.upto_ms) {
            q->forgotten[kept++] = *f;
            continue;
        }
        if (f->from_ms < all.from_ms) all.from_ms = f->from_ms;
        if (f->upto_ms > all.upto_ms) all.upto_ms = f->upto_ms;
    }
    q->forgotten = mem_realloc(q->forgotten, (kept + 1) * sizeof *q->forgotten);
    q->forgotten[kept] = all;
    q->forgotten_count = kept + 1;
}

void window_forget(struct core *c, struct queue *q, i64 from_run_ms, i64 upto_run_ms) {
    forgotten_note(q, from_run_ms, upto_run_ms);
    u32 kept = 0;
    for (u32 i = 0; i < q->bucket_count; i++) {
        const struct bucket *b = &q->buckets[i];
        if (b->from_ms >= from_run_ms && b->to_ms <= upto_run_ms)
            bucket_to_reap(c, q, b);
        else
            q->buckets[kept++] = *b;
    }
    q->bucket_count = kept;
}

static void reap(struct core *c, u32 entry) {
    const struct entry *e = index_entry(&c->keys, entry);
    if (e->kind == ENTRY_SETTLED) {
        INVARIANT(7, entry_forgotten(c, e));
        if (c->sink && c->sink->on_expired && !entry_former(c, e)) c->sink->on_expired(c->sink->ctx, e->queue, e->hash);
        key_free(c, entry);
    }
    index_release(&c->keys, entry);
}

bool window_reap(struct core *c, u32 *budget) {
    while (c->reaping_count > 0) {
        struct bucket *b = &c->reaping[c->reaping_count - 1];
        while (b->head != ENTRY_NONE) {
            if (*budget == 0) return true;
            --*budget;
            u32 entry = b->head;
            b->head = index_entry(&c->keys, entry)->next;
            reap(c, entry);
        }
        c->reaping_count--;
    }
    return false;
}

/* One sweep after the other, each to its end: however often queues are deleted, what lies last has its turn. */
void window_sweep_begin(struct core *c) {
    if (c->sweep_at)
        c->sweep_again = true;
    else
        c->sweep_at = 1;
}

void window_sweep(struct core *c, u32 *budget) {
    if (c->sweep_at == 0) return;
    for (; *budget > 0 && c->sweep_at < c->keys.entries_top; --*budget, c->sweep_at++) {
        const struct entry *e = index_entry(&c->keys, c->sweep_at);
        if (e->bucketed || !entry_former(c, e)) continue;
        key_free(c, c->sweep_at);
        index_release(&c->keys, c->sweep_at);
    }
    if (c->sweep_at < c->keys.entries_top) return;
    c->sweep_at = c->sweep_again ? 1 : 0;
    c->sweep_again = false;
}

/* ---- payloads kept for a replay */

void kept_add(struct core *c, struct queue *q, i64 settled_run_ms, u64 bytes) {
    i64 number = settled_run_ms / KEPT_STRETCH_MS;
    u32 at = q->kept_count;
    while (at > 0 && q->kept[at - 1].number > number) at--;
    live_on(c, q->id, bytes);
    if (at > 0 && q->kept[at - 1].number == number) {
        q->kept[at - 1].bytes += bytes;
        return;
    }
    if (q->kept_count == q->kept_cap) {
        q->kept_cap = q->kept_cap ? q->kept_cap * 2 : 16;
        q->kept = mem_realloc(q->kept, q->kept_cap * sizeof *q->kept);
    }
    memmove(q->kept + at + 1, q->kept + at, (q->kept_count - at) * sizeof *q->kept);
    q->kept[at] = (struct kept_stretch){.number = number, .bytes = bytes};
    q->kept_count++;
}

/* Their keys are gone, whatever the rules would keep. No bucket has any: then no key that settled in this time is known, but those that
 * are known for ever, which are in none. */
static bool stretch_forgotten(const struct queue *q, i64 from_ms, i64 upto_ms) {
    u32 at = bucket_lower(q, from_ms);
    bool bucketed = at < q->bucket_count && q->buckets[at].from_ms < upto_ms;
    if (!bucketed && window_of(q, from_ms) != WINDOW_FOREVER) return true;
    for (u32 i = 0; i < q->forgotten_count; i++)
        if (q->forgotten[i].from_ms <= from_ms && q->forgotten[i].upto_ms >= upto_ms) return true;
    return false;
}

void kept_expire(struct core *c) {
    for (u32 id = 1; id <= c->queue_count; id++) {
        struct queue *q = queue_mut(c, (u16)id);
        u32 over = 0;
        for (; over < q->kept_count; over++) {
            i64 end = (q->kept[over].number + 1) * KEPT_STRETCH_MS;
            bool kept = end + q->rules.keep_payload_ms > c->now.run_ms;
            if (kept && !stretch_forgotten(q, end - KEPT_STRETCH_MS, end)) break;
            live_off(c, q->id, q->kept[over].bytes);
        }
        if (over == 0) continue;
        q->kept_count -= over;
        memmove(q->kept, q->kept + over, q->kept_count * sizeof *q->kept);
    }
}
