#include "broker/receipts.h"

#include "broker/broker_priv.h"
#include "broker/room.h"

#define UNLEASE_BYTES 256u /* what giving one back writes down */

#define CHAINS        1024u
#define RECEIPT_MAGIC 0x72637074u

struct receipt {
    u32 magic;
    u32 count, cap;
    u64 number;
    struct receipt *next;
    struct {
        struct ref ref;
        u64 fence;
    } leases[];
};

struct receipts {
    u64 next_number;
    struct receipt *chains[CHAINS];
};

struct receipts *receipts_new(void) {
    struct receipts *r = mem_zalloc(sizeof *r);
    r->next_number = 1;
    return r;
}

void receipts_free(struct receipts *r) {
    for (u32 i = 0; r && i < CHAINS; i++)
        for (struct receipt *one = r->chains[i], *next; one; one = next) {
            next = one->next;
            mem_free(one);
        }
    mem_free(r);
}

struct receipt *receipt_add(struct receipt *r, const struct ref *ref, u64 fence) {
    if (!r || r->count == r->cap) {
        u32 cap = r ? r->cap * 2 : 1;
        bool first = !r;
        r = mem_realloc(r, sizeof *r + cap * sizeof r->leases[0]);
        if (first) *r = (struct receipt){.magic = RECEIPT_MAGIC};
        r->cap = cap;
    }
    r->leases[r->count].ref = *ref;
    r->leases[r->count++].fence = fence;
    return r;
}

u64 receipts_keep(struct broker *b, struct receipt *r) {
    struct receipts *all = b->receipts;
    if (!r) return 0;
    CHECK(r->magic == RECEIPT_MAGIC && r->count && r->number == 0);
    r->number = all->next_number++;
    r->next = all->chains[r->number % CHAINS];
    all->chains[r->number % CHAINS] = r;
    return r->number;
}

void receipts_end(struct broker *b, u64 number, bool written) {
    struct receipt **at = &b->receipts->chains[number % CHAINS];
    while (*at && (*at)->number != number) at = &(*at)->next;
    struct receipt *r = *at;
    CHECK(r && r->magic == RECEIPT_MAGIC); /* told twice, or never handed out */
    *at = r->next;
    if (!written) room_prepare(b, (u64)r->count * UNLEASE_BYTES);
    for (u32 i = 0; !written && i < r->count; i++) core_unlease(b->core, b->now, &r->leases[i].ref, r->leases[i].fence);
    r->magic = 0;
    mem_free(r);
}
