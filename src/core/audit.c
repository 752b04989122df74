/* The audit trail: who did what, and why. Records are numbered, kept for a time, and carried by compaction until then; what
 * is in memory is where each one is. */
#include "core/state.h"

bool audit_deed(struct core *c, const struct audit_in *in, u16 queue, const struct ref *about, slice key, u64 room) {
    if (!in) return room == 0 || room_for_deed(c, room);
    char text[ID_TEXT + 1];
    struct buf id = {.p = text, .cap = sizeof text};
    if (about) core_id_text(about, &id);
    struct record r = {.type = REC_AUDIT};
    r.audit = (struct rec_audit){
        .number = c->audits.next_number + 1,
        .at_ms = c->now.wall_ms,
        .run_ms = c->now.run_ms,
        .queue = queue,
        .who = in->who,
        .what = in->what,
        .queue_name = queue ? queue_at(c, queue)->name : SL(""),
        .key = key,
        .id = buf_slice(&id),
        .why = in->why,
        .detail = in->detail,
    };
    CHECK(id.p == text);
    u64 bytes = c->sink->cost(record_size(&r)) + room;
    if (!(in->relieves ? room_for_relief(c, bytes) : room_for_deed(c, bytes))) return false;
    core_emit(c, &r);
    return true;
}

bool core_audit(struct core *c, struct core_now now, u16 queue, const struct audit_in *in) {
    c->now = now;
    return audit_deed(c, in, queue, NULL, SL(""), 0);
}

void core_audit_keep(struct core *c, i64 keep_ms) {
    c->options.audit_keep_ms = keep_ms;
}

/* The place of the first record with at least this number. */
static u32 audit_lower(const struct audit_index *x, u64 number) {
    u32 low = x->first, high = x->first + x->count;
    while (low < high) {
        u32 mid = low + (high - low) / 2;
        if (x->at[mid].number < number)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static void audit_make_room(struct audit_index *x) {
    if (x->first + x->count < x->cap) return;
    if (x->first > x->count) { /* most of it is what was let go */
        memmove(x->at, x->at + x->first, x->count * sizeof *x->at);
        x->first = 0;
        return;
    }
    x->cap = x->cap ? x->cap * 2 : 64;
    x->at = mem_realloc(x->at, x->cap * sizeof *x->at);
}

static void grow(struct core *c, u64 size) {
    c->live_bytes += size;
    c->audits.bytes += size;
}

static void shrink(struct core *c, u64 size) {
    c->live_bytes -= size;
    c->audits.bytes -= size;
}

void audit_apply(struct core *c, const struct rec_audit *r, u64 pos, u64 size) {
    struct audit_index *x = &c->audits;
    struct audit_item item = {.number = r->number, .pos = pos, .run_ms = r->run_ms, .size = (u32)size};
    if (r->number > x->next_number) x->next_number = r->number;
    audit_make_room(x);
    if (!c->sink) { /* in any order, and twice where it was carried: put in order when recovery ends */
        x->at[x->first + x->count++] = item;
        grow(c, size);
        return;
    }
    u32 at = audit_lower(x, r->number), end = x->first + x->count;
    if (at < end && x->at[at].number == r->number) { /* carried */
        shrink(c, x->at[at].size);
        grow(c, size);
        x->at[at] = item;
        return;
    }
    memmove(x->at + at + 1, x->at + at, (end - at) * sizeof *x->at);
    x->at[at] = item;
    x->count++;
    grow(c, size);
}

/* By number; of two with the same the later in the journal comes last. */
static bool in_order(const struct audit_item *a, const struct audit_item *b) {
    return a->number != b->number ? a->number < b->number : a->pos < b->pos;
}

static void merge(const struct audit_item *from, struct audit_item *to, u32 low, u32 mid, u32 high) {
    u32 a = low, b = mid;
    for (u32 i = low; i < high; i++) {
        bool left = a < mid && (b >= high || in_order(&from[a], &from[b]));
        to[i] = left ? from[a++] : from[b++];
    }
}

void audit_sort(struct core *c) {
    struct audit_index *x = &c->audits;
    CHECK(x->first == 0);
    if (x->count < 2) return;
    struct audit_item *from = x->at, *to = mem_alloc(x->cap * sizeof *to);
    for (u32 width = 1; width < x->count; width *= 2) {
        for (u32 low = 0; low < x->count; low += 2 * width) {
            u32 mid = low + width < x->count ? low + width : x->count, high = low + 2 * width;
            merge(from, to, low, mid, high < x->count ? high : x->count);
        }
        struct audit_item *swap = from;
        from = to;
        to = swap;
    }
    u32 kept = 0;
    for (u32 i = 0; i < x->count; i++) {
        if (i + 1 < x->count && from[i].number == from[i + 1].number)
            shrink(c, from[i].size); /* carried since */
        else
            from[kept++] = from[i];
    }
    x->at = from;
    x->count = kept;
    mem_free(to);
}

/* Whoever may operate could write without end: beyond the bound the oldest go before their time. */
void audit_expire(struct core *c) {
    struct audit_index *x = &c->audits;
    while (x->count &&
           (c->now.run_ms - x->at[x->first].run_ms >= c->options.audit_keep_ms || x->bytes > AUDIT_TRAIL_BYTES_MAX)) {
        shrink(c, x->at[x->first].size);
        x->first++;
        x->count--;
    }
}

void audit_carry(struct core *c, const struct rec_audit *old, u64 pos) {
    const struct audit_index *x = &c->audits;
    u32 at = audit_lower(x, old->number);
    if (at >= x->first + x->count || x->at[at].number != old->number || x->at[at].pos != pos) return;
    core_emit(c, &(struct record){.type = REC_AUDIT, .audit = *old});
}

bool core_audit_prev(const struct core *c, u64 before, struct audit_at *out) {
    const struct audit_index *x = &c->audits;
    u32 end = before == 0 ? x->first + x->count : audit_lower(x, before);
    if (end == x->first) return false;
    const struct audit_item *item = &x->at[end - 1];
    *out = (struct audit_at){.number = item->number, .pos = item->pos, .size_hint = item->size};
    return true;
}

void audit_free(struct core *c) {
    mem_free(c->audits.at);
}
