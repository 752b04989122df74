/* A shared answer: thousands may wait for the outcome of one message. It is looked up and rendered once for all who are
 * answered together, and its body is in memory once, however slowly they read. */
#ifndef HAPAX_BROKER_SHARED_H
#define HAPAX_BROKER_SHARED_H

#include "core/core.h"

struct broker;
struct shared;

struct shared *shared_new(void);
void shared_free(struct shared *s);

/* The answer last kept, if it was for this outcome in this form: sent to conn once more. false: it was not. */
bool shared_again(struct broker *b, void *conn, const struct ref *ref, u64 form);
/* The answer for those who wait for this outcome and asked for this form: sent to conn, and kept. `body` is taken. */
void shared_answer(struct broker *b, void *conn, const struct ref *ref, u64 form, u16 status, slice content_type,
                   slice fields, struct buf *body);
/* Something may be decided from here on: the answer is not the same any more. */
void shared_drop(struct broker *b);

#endif
