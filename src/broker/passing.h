/* What passes through a proxy, and what does not: the path, the fields of a request on their way to the upstream, the head of its
 * answer on the way back. Pure: bytes in, bytes out.
 *
 * The head of an answer is kept as "STATUS\r\nname: value\r\n...", each line as it came. */
#ifndef HAPAX_BROKER_PASSING_H
#define HAPAX_BROKER_PASSING_H

#include "core/core.h"
#include "net/http.h"

/* NULL: it may go to the upstream. Else what is wrong with it: a segment that leads upwards, in whatever spelling, or a byte that
 * is no part of a path. */
const char *path_wrong(slice path);

/* The fields for the upstream, each "Name: value" and ended by a NUL, into `text`; and where each of them begins, with a NULL at the
 * end. Good until `text` changes. */
#define PASSED_FIELDS (HTTP_FIELDS_MAX + 2u)
void request_passes(const struct http_request *req, struct buf *text, const char *lines[PASSED_FIELDS]);

/* Of an answer's head: what is kept and told everybody, and what is for the first caller alone. lengths: Content-Length passes too,
 * as the answer to a HEAD. false: it is too large to be kept, or no answer. */
bool answer_passes(u32 status, slice head, bool lengths, struct buf *kept, struct buf *once);
/* A kept head. false: it is none. */
bool kept_head(slice kept, u16 *status, slice *lines);
/* Does one of these lines begin with this name, given in lower case? */
bool lines_name(slice lines, slice name);

#endif
