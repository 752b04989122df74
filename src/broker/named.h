/* What a request's path names: a queue, a key, a message. */
#ifndef HAPAX_BROKER_NAMED_H
#define HAPAX_BROKER_NAMED_H

#include "core/core.h"

struct broker;
struct call;
struct named_queue;

struct named_queue *named_queue_new(void);
void named_queue_free(struct named_queue *n);

/* false or NULL: the call's failure is set. */
bool queue_name_ok(struct call *c, slice name);
/* The queue of the call is not one that holds the keys of a proxy: nobody sends there, receives or gives it rules. */
bool not_of_a_proxy(struct call *c);
bool queue_known(struct call *c, u16 *queue); /* is there one of that name? Sets no failure */
bool queue_of_call(struct call *c, bool create, u16 *queue);
/* To send so large a payload to; it is made if there is room for the message in what its tenant may have. */
bool queue_to_send(struct call *c, size_t payload, u16 *queue);
/* To receive from: *queue is 0 if it is not there, but may come to be. */
bool queue_to_receive(struct call *c, u16 *queue);
bool queue_to_watch(struct call *c, slice name); /* it is there, or may come to be */
/* By the key, or the id, in the path. What is past its window is not there. */
struct seen *seen_of_key(struct call *c, slice key);
struct seen *seen_of_id(struct call *c);

/* The queue the last request named: requests come in runs of the same one. 0: none. The name lives as long as the queue. */
u16 last_queue(const struct broker *b, slice *name);
void last_queue_forget(struct broker *b);

#endif
