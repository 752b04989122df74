/* A message as its queue's template, schema and fingerprint see it: the payload, read as JSON once and only if somebody
 * asks, and the request's headers. One view serves one message after the other and keeps its memory. */
#ifndef HAPAX_CONFIG_VIEW_H
#define HAPAX_CONFIG_VIEW_H

#include "base/json_tape.h"

/* The value of a request header, by its lower-case name; .p is NULL if it was not sent. The bytes live as long as the
 * message is looked at. */
typedef slice header_lookup(void *ctx, slice name);

/* Zero-initialise to start; payload_view_free to end. */
struct payload_view {
    slice payload, content_type;
    bool cut;              /* the payload is the beginning of a longer one; false after payload_view_init */
    header_lookup *header; /* NULL: there are none */
    void *header_ctx;
    struct json_tape tape; /* of the payload, once payload_view_json has said true */
    enum { VIEW_UNREAD, VIEW_JSON, VIEW_NOT_JSON } state;
    struct buf text, spelling, ranking; /* for canonical forms */
    u64 work; /* units of work spent on it since payload_view_init: members looked at, steps of patterns */
};

/* The slices are borrowed until the next call. */
void payload_view_init(struct payload_view *v, slice payload, slice content_type, header_lookup *header, void *ctx);
void payload_view_free(struct payload_view *v);

/* Is the payload one JSON value, or the beginning of one if it was cut? Its content type is not asked: many a sender leaves it out. */
bool payload_view_json(struct payload_view *v);
/* "the payload is not JSON: expected ',' or '}' at byte 17", after payload_view_json has said false. */
void payload_view_why_not(const struct payload_view *v, struct errbuf *why);
slice payload_view_header(struct payload_view *v, slice name);

/* The canonical text of a string, number, true or false: the same for every way JSON can spell the value.
 *  - strings: their characters, unescaped. No Unicode normalisation: precomposed and combining spellings differ.
 *  - numbers: exact decimal, never rounded. 1, 1.0, 10e-1 are "1"; -0 is "0"; 1e400 stays "1e400".
 * False: an exponent beyond +-999999999, or no scalar. Valid until the next call. */
bool payload_view_scalar(struct payload_view *v, const struct json_item *item, slice *out);

/* The canonical form of a JSON number's text, appended; false as above. */
bool number_canonical(slice text, struct buf *out);
/* Is it canonical as it stands? May say no where it is. */
bool number_is_plain(slice text);
/* Is it a whole number, however it is spelled? */
bool number_is_integer(slice text);

#endif
