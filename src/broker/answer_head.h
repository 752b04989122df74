/* The head of an HTTP answer as it is kept beside the result that was its body: "201\r\n", then lines "name: value\r\n", at most
 * HTTP_HEAD_BYTES_MAX in all. A line of our own says that the body was longer than what is kept of it. */
#ifndef HAPAX_BROKER_ANSWER_HEAD_H
#define HAPAX_BROKER_ANSWER_HEAD_H

#include "base/base.h"

/* To make one: begin, then the fields, their names in small letters. false, and nothing is added: there is no room for it, or it would
 * break the lines. */
void answer_head_begin(struct buf *head, u32 status, bool truncated);
bool answer_head_add(struct buf *head, slice name, slice value);

u32 answer_head_status(slice head); /* 0: it is empty, or nonsense */
bool answer_head_truncated(slice head);
/* The fields of the answer, one after the other, ours left out. *at starts at 0. */
bool answer_head_next(slice head, size_t *at, slice *name, slice *value);

/* ,"http":{"status":201,"headers":{…}} and, if so, ,"truncated":true; nothing of an empty one. Fields of one name are joined by a
 * comma. Beyond ANSWER_FIELDS_SHOWN the rest is left out, and it says so. */
#define ANSWER_FIELDS_SHOWN 128u
void put_answer_head(struct buf *b, slice head);

#endif
