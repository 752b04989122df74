/* Windows: how long a settled key is remembered, and how it is forgotten.
 *
 * A key lives for its queue's window from its settlement, counted in running time. Keys that settled in the same stretch
 * of time (a 256th of the window) share a bucket. When a bucket's last key is past its window, one EXPIRE record says
 * so; from then on its keys are unknown. Their entries are freed a few at a time, so that forgetting a million keys stalls
 * nobody. A look-up before that judges by the exact time. */
#include "core/core_priv.h"

#define BUCKETS_PER_WINDOW 256
#define WIDTH_MIN_MS       1000

i64 window_width_ms(const struct queue *q) {
    i64 width = q->rules.window_ms / BUCKETS_PER_WINDOW;
    return width > WIDTH_MIN_MS ? width : WIDTH_MIN_MS;
}

i64 window_left_ms(const struct queue *q, i64 settled_run_ms, i64 run_ms) {
    if (q->rules.window_ms == WINDOW_FOREVER) return INT64_MAX;
    return settled_run_ms + q->rules.window_ms - run_ms;
}

bool entry_forgotten(const struct core *c, const struct entry *e) {
    return e->kind == ENTRY_SETTLED && (i64)e->settled_run_ms < queue_at(c, e->queue)->forgotten_run_ms;
}

/* The first bucket whose number is at least this. */
static u32 bucket_lower(const struct queue *q, i64 number) {
    u32 low = 0, high = q->bucket_count;
    while (low < high) {
        u32 mid = (low + high) / 2;
        if (q->buckets[mid].number < number)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static struct bucket *bucket_for(struct queue *q, i64 number) {
    u32 at = q->bucket_count;
    if (at == 0 || q->buckets[at - 1].number < number) {
        /* the common case: the newest one, or a new one after it */
    } else if (q->buckets[at - 1].number == number) {
        return &q->buckets[at - 1];
    } else {
        at = bucket_lower(q, number);
        if (q->buckets[at].number == number) return &q->buckets[at];
    }
    if (q->bucket_count == q->bucket_cap) {
        q->bucket_cap = q->bucket_cap ? q->bucket_cap * 2 : 16;
        q->buckets = mem_realloc(q->buckets, q->bucket_cap * sizeof *q->buckets);
    }
    if (at < q->bucket_count)
        memmove(q->buckets + at + 1, q->buckets + at, (q->bucket_count - at) * sizeof *q->buckets);
    q->bucket_count++;
    q->buckets[at] = (struct bucket){.number = number};
    return &q->buckets[at];
}

void window_add(struct core *c, u32 entry) {
    struct entry *e = index_entry(&c->keys, entry);
    struct queue *q = queue_at(c, e->queue);
    q->settled_keys++;
    if (q->rules.window_ms == WINDOW_FOREVER) return;
    struct bucket *b = bucket_for(q, (i64)e->settled_run_ms / window_width_ms(q));
    e->next = b->head;
    e->bucketed = 1;
    b->head = entry;
    b->keys++;
}

void window_remove(struct core *c, u32 entry) {
    struct entry *e = index_entry(&c->keys, entry);
    struct queue *q = queue_at(c, e->queue);
    q->settled_keys--;
    index_remove(&c->keys, entry);
    if (!e->bucketed) {
        index_release(&c->keys, entry);
        return;
    }
    bucket_for(q, (i64)e->settled_run_ms / window_width_ms(q))->keys--;
    e->kind = ENTRY_GONE; /* still linked: freed with its bucket */
}

void window_forget(struct core *c, struct queue *q, i64 upto_run_ms) {
    if (upto_run_ms > q->forgotten_run_ms) q->forgotten_run_ms = upto_run_ms;
    u32 n = bucket_lower(q, upto_run_ms / window_width_ms(q));
    for (u32 i = 0; i < n; i++) {
        q->settled_keys -= q->buckets[i].keys;
        if (c->reaping_count == c->reaping_cap) {
            c->reaping_cap = c->reaping_cap ? c->reaping_cap * 2 : 16;
            c->reaping = mem_realloc(c->reaping, c->reaping_cap * sizeof *c->reaping);
        }
        c->reaping[c->reaping_count++] = q->buckets[i];
    }
    if (n == 0) return;
    memmove(q->buckets, q->buckets + n, (q->bucket_count - n) * sizeof *q->buckets);
    q->bucket_count -= n;
}

static void reap(struct core *c, u32 entry) {
    struct entry *e = index_entry(&c->keys, entry);
    if (e->kind == ENTRY_SETTLED) {
        INVARIANT(7, entry_forgotten(c, e));
        c->live_bytes -= entry_size(e);
        arrivals_forget(c, entry);
        index_remove(&c->keys, entry);
    }
    index_release(&c->keys, entry);
}

bool window_reap(struct core *c, u32 budget) {
    while (c->reaping_count > 0) {
        struct bucket *b = &c->reaping[c->reaping_count - 1];
        while (b->head != ENTRY_NONE) {
            if (budget-- == 0) return true;
            u32 entry = b->head;
            b->head = index_entry(&c->keys, entry)->next;
            reap(c, entry);
        }
        c->reaping_count--;
    }
    return false;
}

void window_decide(struct core *c) {
    for (u32 id = 1; id <= c->queue_count; id++) {
        struct queue *q = queue_at(c, (u16)id);
        i64 width = window_width_ms(q), upto = 0;
        u64 keys = 0;
        for (u32 i = 0; i < q->bucket_count; i++) {
            i64 end = (q->buckets[i].number + 1) * width;
            if (window_left_ms(q, end, c->now.run_ms) > 0) break;
            upto = end;
            keys += q->buckets[i].keys;
        }
        if (upto == 0) continue;
        core_emit(c,
                  &(struct record){.type = REC_EXPIRE, .expire = {.queue = q->id, .upto_run_ms = upto, .keys = keys}});
    }
}
