/* Call templates: the addresses and headers of what the broker calls, from what the message says.
 *
 *   https://terminal.example/slots/${container}?key=${hapax.effect_key}
 *
 *   ${a.b[0]}            a field of the JSON payload (config/path.h); `${$.hapax.x}` if it is called like a namespace
 *   ${header.x}          what is kept of the headers it was sent with: hapax-attr-NAME, hapax-group, hapax-request-id,
 *                        content-type, traceparent
 *   ${hapax.key}         its key; ${hapax.effect_key} what downstreams are handed; ${hapax.id} its id
 *   $$                   a dollar sign
 *
 * Whoever sends a message chooses what the values are, never whom the broker calls. In an address they stand in the path
 * and the query alone, and of a value everything but letters, digits and - . _ ~ is percent-encoded: it can end neither its
 * segment nor its parameter. An empty value is refused, and so is one that makes a segment `.` or `..`, which servers and
 * clients take out together with the one before. In a header a value with a control character is refused.
 *
 * What a call is made of is a caller's business: a value that is refused is the message's mistake, and no other try mends it. */
#ifndef HAPAX_CONFIG_CALL_TEMPLATE_H
#define HAPAX_CONFIG_CALL_TEMPLATE_H

#include "base/arena.h"
#include "config/template.h"

enum call_kind { CALL_URL, CALL_HEADER };

enum { CALL_TEMPLATE_BYTES_MAX = 2048, CALL_URL_BYTES_MAX = 8192, CALL_HEADER_BYTES_MAX = 4096 };

struct call_template;

/* Lives in the arena. On error *column says where: the byte of the text, from 1. */
hx_st call_template_compile(slice text, enum call_kind kind, struct arena *arena, struct call_template **out,
                            u32 *column, struct errbuf *err);
/* A header's value that is what it is: nothing in it is looked at. */
struct call_template *call_template_verbatim(slice text, struct arena *arena);

slice call_template_text(const struct call_template *t);    /* as it was written */
bool call_template_is_plain(const struct call_template *t); /* without any ${} */
/* The next ${header.x} it has, from *part on, which starts at 0; false: no more. */
bool call_template_header(const struct call_template *t, u32 *part, slice *name);
/* Of an address: "https://host:port", as it was written. */
slice call_template_origin(const struct call_template *t);

/* What the broker knows of the message. */
struct call_vars {
    slice key, effect_key, id;
};

/* Appends what it makes. On any other verdict than OK `out` is as it was and `why` is a sentence for the message's reason.
 * TEMPLATE_NO_HEADER comes of CALL_HEADER alone: the message was sent without the header that is named; the call goes
 * without this one. */
enum template_verdict call_template_eval(const struct call_template *t, struct payload_view *v,
                                         const struct call_vars *vars, struct buf *out, struct errbuf *why);

#endif
