/* Key templates: a key from what the message says about its intent, so that every copy of it, however late and from
 * whichever hop, gets the same key (M1).
 *
 *   shipment-milestone:${shipmentId}:${milestoneType}:${effectiveDate}
 *
 *   ${a.b[0]}      a field of the JSON payload (config/path.h); `${$.header.x}` if it is called like a namespace
 *   ${header.x}    a request header, any; attributes are headers: ${header.hapax-attr-region}
 *   ${cloudevent}  source and id of a CloudEvent, joined by ':'; from the payload in structured mode, from the headers
 *                  ce-source and ce-id in binary mode. The same event gets the same key in both
 *   $$             a dollar sign
 *
 * The same intent gives the same key. A value stands there in its canonical form (config/view.h): however a number is
 * written or a string escaped. A string and a number of the same text meet: 42 and "42" are one id, quoted by one sender
 * and not by another (numbers beyond 2^53 must be quoted in many languages), and a key that told them apart would do
 * the work twice. Who wants to refuse one of them says so in the schema.
 *
 * Different intents never give the same key. In values '%', ':' and control characters are percent-encoded; so is the
 * character that ends a value where the text behind it has no ':' (the '-' of "${a}-${b}", in a only). Two values
 * without text between them are refused. Hence a key can be taken apart again into the values it was made of.
 *
 * A field that is missing, null, empty, a list or an object makes no key: the message is refused, never keyed by half
 * of its intent. */
#ifndef HAPAX_CONFIG_TEMPLATE_H
#define HAPAX_CONFIG_TEMPLATE_H

#include "config/view.h"

enum { TEMPLATE_BYTES_MAX = 1024, TEMPLATE_FIELDS_MAX = 16, TEMPLATE_RESULT_MAX = 255 };

struct template;

/* On error *column says where: the byte of the text, from 1. */
hx_st template_compile(slice text, struct template **out, u32 *column, struct errbuf *err);
void template_free(struct template *t); /* NULL is fine */
slice template_text(const struct template *t);

/* Does the key end in ~g and digits? So end the effect keys of replays: the first replay of k hands k~g1 to the downstreams,
 * which would take it for the work of a message whose key is k~g1. No new message may be called so. */
bool key_names_replay(slice key);

/* What a template looks at. */
enum template_source { TEMPLATE_FIELD, TEMPLATE_HEADER, TEMPLATE_CLOUDEVENT };
struct template_field {
    enum template_source source;
    slice name; /* "a.b[0]"; of a header the lower-case name */
    u32 column;
};
u32 template_field_count(const struct template *t);
struct template_field template_field_at(const struct template *t, u32 i);

enum template_verdict {
    TEMPLATE_OK,
    TEMPLATE_NOT_JSON,   /* a field is wanted and the payload is no JSON */
    TEMPLATE_MISSING,    /* a field or header is not there, null or empty */
    TEMPLATE_NOT_SCALAR, /* a list or an object */
    TEMPLATE_BAD_VALUE,  /* a header that is not UTF-8, a number out of all bounds */
    TEMPLATE_TOO_LONG,   /* more than TEMPLATE_RESULT_MAX bytes */
    TEMPLATE_NO_HEADER,  /* of a call's header (call_template.h) */
};

/* Appends the key. On any other verdict than OK `out` is as it was and `why` is a sentence for the sender. */
enum template_verdict template_eval(const struct template *t, struct payload_view *v, struct buf *out,
                                    struct errbuf *why);
/* The same with its values as they are: for people to read. Different values may give the same text. */
enum template_verdict template_eval_plain(const struct template *t, struct payload_view *v, struct buf *out,
                                          struct errbuf *why);

#endif
