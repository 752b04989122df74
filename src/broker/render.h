/* The parts replies are made of. */
#ifndef HAPAX_BROKER_RENDER_H
#define HAPAX_BROKER_RENDER_H

#include "base/json.h"
#include "core/core.h"

struct broker;
struct time_texts;

struct time_texts *time_texts_new(void);
void time_texts_free(struct time_texts *t);

void put_id(struct buf *b, const char *name, const struct ref *ref);
/* ,"name":"2026-…Z" as json_put_member_time, cheaper: most times of a turn lie in the same few seconds. */
#define put_time_member(br, b, name, ms) (buf_lit(b, ",\"" name "\":\""), put_time(br, b, ms))
void put_time(struct broker *br, struct buf *b, i64 unix_ms); /* with the quote that closes it */
char *write_time(struct broker *br, char *to, i64 unix_ms); /* RFC3339_BYTES, where there is room; returns their end */
void put_key(struct buf *b, slice key);                     /* "key":"..." or null */
void put_key_text(struct buf *b, slice key);                /* without the name */
void put_bytes_members(struct buf *b, const char *body_name, slice bytes); /* "body":..,"encoding":.. */
void put_result(struct buf *b, slice content_type, slice result);
/* "result":... or, for whoever may not see it, that it is not shown. */
void put_result_member(struct buf *b, bool shown, slice content_type, slice result);
/* Of a settled key: its result, and the head of the HTTP answer that was, if it was one. */
void put_settled_result(struct buf *b, bool shown, const struct rec_settle *s);
void put_expires(struct broker *br, struct buf *b, const struct rec_settle *settle);
/* Of a replay that is not settled: "previous":{ and the outcome before it, which *s is then; the caller closes it. false: nothing. */
bool put_previous(struct buf *b, bool payloads, bool shown, const struct rec_message *m, struct rec_settle *s);
void put_steps(struct buf *b, bool shown, slice history);
void put_attrs(struct buf *b, slice attrs);
/* What the sender said beside the key; shown: attributes and payload too. */
void put_said(struct buf *b, bool shown, slice group, slice attrs, slice content_type, slice payload);

#endif
