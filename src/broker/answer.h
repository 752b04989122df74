/* Answers of other servers, read: what their heads say, what of a head is kept beside a result, and values of a JSON body. A head is
 * lines "name: value\r\n" as they came; whoever made them is not trusted. */
#ifndef HAPAX_BROKER_ANSWER_H
#define HAPAX_BROKER_ANSWER_H

#include "config/config.h"
#include "config/path.h"
#include "config/view.h"
#include "net/outbound.h"

#define ANSWER_WAIT_MS_MAX 3600000

/* The next line, from *at == 0 on; false: no more. The name is as it came. */
bool answer_next(slice head, size_t *at, slice *name, slice *value);
/* The first field of that name, which is in small letters. Empty: there is none. */
slice answer_field(slice head, slice name);
/* How long it asks not to be called (Retry-After, in seconds or as a date), at most ANSWER_WAIT_MS_MAX; 0: it does not. */
i64 answer_wait_ms(slice head, i64 wall_ms);
/* The Content-Type, or what stands for none that could be kept. */
slice answer_content_type(slice head);
/* What a SETTLE keeps of it (core/record.h: rec_settle.http): the status, the fields named in `keep` as far as there is room, and
 * whether the body was cut. Names in small letters. */
void answer_put_head(struct buf *out, u32 status, slice head, const struct texts *keep, bool truncated);
/* What came, in words for whoever asks why: "answered 422: no such slot", "not sent: …". `ours`: what follows of it, which may be
 * empty: "answered 404, not sent again: no such slot". The end of it may be the target's own words: the beginning of its body, or where it redirects to.
 * Of those nobody knows what they repeat of the payload, so they are for those alone who may see payloads. */
void answer_put_reason(struct buf *out, const struct outbound_answer *a, const char *ours);
/* Any reason, for somebody who may see payloads, or who may not. */
slice answer_reason(slice reason, bool payloads);
/* A view of its body, of which `truncated` says that there was more. */
void answer_view(struct payload_view *body, slice bytes, bool truncated);
/* The string, number or truth there as text of at most 255 plain bytes. Empty: nothing of that kind. */
slice answer_value(struct payload_view *body, const struct path *path);
/* Is there anything but null? A page of some proxy, or half an answer, does not tell; nor does an answer that was cut if it is not in
 * what was read of it: it may have been behind the cut. */
enum answer_says { ANSWER_SAYS_NOTHING, ANSWER_HAS, ANSWER_HAS_NOT };
enum answer_says answer_says(struct payload_view *body, const struct path *path);

#endif
