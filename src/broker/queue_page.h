/* One queue: everything known of it, and the tag of its rules. */
#ifndef HAPAX_BROKER_QUEUE_PAGE_H
#define HAPAX_BROKER_QUEUE_PAGE_H

#include "base/base.h"

struct broker;

void put_queue_page(struct broker *br, struct buf *b, u16 queue, bool live);
/* "may":[...]: what whoever asks may do with it, so that a page offers nothing else. Nothing where nobody is asked for a token. */
void put_queue_rights(const struct broker *br, struct buf *b, slice queue);

#define ETAG_TEXT 18u /* 16 digits between quotes */
void queue_etag(struct broker *br, u16 queue, char out[ETAG_TEXT + 1]);

#endif
