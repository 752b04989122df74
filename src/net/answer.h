/* The head of an answer, line by line as it comes: what is kept of it, and which status counts. */
#ifndef HAPAX_NET_ANSWER_H
#define HAPAX_NET_ANSWER_H

#include "base/base.h"

struct answer_head {
    struct buf lines; /* "name: value\r\n" each */
    u32 status;       /* of the last status line; 0: none yet */
    u32 bytes;        /* of all lines, those that are not kept too */
    bool ended;       /* the empty line behind a status from 200 on was there */
    bool kept;        /* the last line was: a folded one goes on with it */
};

/* One line with its line break, in turn: interim answers (1xx) are forgotten when the next one begins, trailers are not kept.
 * A line with a control character in it, or without a name, is left out: whoever passes the head on could be made to speak
 * for it. false: this is no head of HTTP/1, or longer than `max`. */
bool answer_head_line(struct answer_head *h, slice line, u32 max);

#endif
