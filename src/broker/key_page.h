/* Everything known of a key: the answer to "why was this event ignored?", and to what is to be done about a held or dead
 * one. */
#ifndef HAPAX_BROKER_KEY_PAGE_H
#define HAPAX_BROKER_KEY_PAGE_H

#include "core/core.h"

struct broker;
struct call;

/* story: with the sentence and the timeline (story.h); not in lists. */
void put_key_page(struct broker *br, struct buf *b, const struct seen *s, bool story);
/* Those of the queue whose keys begin so, as the whole reply: api_find.c. */
void reply_keys_with(struct call *c, slice prefix);
/* As the whole reply. s == NULL: the call's failure is the reply. */
void reply_key_page(struct call *c, const struct seen *s);

#endif
