/* Pages: what a list is answered with, a part at a time.
 *
 * A page ends where it has as many items as were asked for, and where one more would make the reply longer than REPLY_BYTES_MAX. It
 * ends early when its time is up, which is looked at before each item, for one item may be a megabyte that grows while it is written;
 * but not while it is small, so that a short list comes whole however slow the machine is. */
#ifndef HAPAX_BROKER_PAGE_H
#define HAPAX_BROKER_PAGE_H

#include "broker/budget.h"

#define PAGE_LEAST_BYTES (256u << 10)

struct page {
    struct buf *body;
    struct budget g;
    u64 limit, shown;
    u32 least, looked; /* at so many items it looks however long that takes, if they are small */
    size_t from, item; /* in the body: where the page begins, and its last item */
};

/* {"items":[ behind what the body has. */
void page_begin(struct page *p, struct broker *b, struct buf *body, u64 limit, u32 least);
/* Asked before each item that is looked at, shown or not. */
bool page_full(struct page *p);
void page_item(struct page *p); /* one follows */
/* After it was written. false: it was too long, and is gone again: the page ends before it. */
bool page_keeps(struct page *p);

#endif
