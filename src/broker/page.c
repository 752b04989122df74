#include "broker/page.h"

#include "broker/limits.h"

#define END_BYTES 128u /* what closes a page: the cursor */

void page_begin(struct page *p, struct broker *b, struct buf *body, u64 limit, u32 least) {
    *p = (struct page){.body = body, .g = budget_of(b, REQUEST_US), .limit = limit, .least = least, .from = body->len};
    buf_lit(body, "{\"items\":[");
}

bool page_full(struct page *p) {
    if (p->shown == p->limit || p->body->len >= REPLY_BYTES_MAX - END_BYTES) return true;
    bool small = p->looked++ < p->least && p->body->len - p->from < PAGE_LEAST_BYTES;
    return !small && p->looked > 1 && budget_spent(&p->g);
}

void page_item(struct page *p) {
    p->item = p->body->len;
    if (p->shown++) buf_char(p->body, ',');
}

bool page_keeps(struct page *p) {
    if (p->shown == 1 || p->body->len <= REPLY_BYTES_MAX - END_BYTES) return true;
    p->body->len = p->item;
    p->shown--;
    return false;
}
