/* CloudEvents 1.0 over HTTP, as a message: in every mode the data is the payload and the attributes are attributes, called
 * ce-NAME. So the same event is the same message, whichever way its sender wraps it. */
#ifndef HAPAX_BROKER_CLOUDEVENT_H
#define HAPAX_BROKER_CLOUDEVENT_H

#include "broker/attrs.h"
#include "broker/problem.h"
#include "net/http.h"

struct cloudevent {
    slice data, content_type;
    slice traceparent, tracestate, partition; /* of its extensions; empty: not said */
    bool said;                                /* it is one, and complete */
};

enum event_mode {
    EVENT_BINARY,     /* attributes in headers that begin with ce-; the body is the data */
    EVENT_STRUCTURED, /* one JSON object */
    EVENT_BATCH,      /* a JSON array of those */
    EVENT_NONE,       /* no CloudEvent */
    EVENT_FOREIGN,    /* in a format that is not read here */
};
enum event_mode event_mode(const struct http_request *req, slice content_type);

/* The event's parts are in the request or the text, in the attributes, or in `store`. false: the failure says what is missing. */
bool event_from_headers(const struct http_request *req, struct attrs *attrs, struct buf *store, struct cloudevent *e,
                        struct failure *f);
bool event_from_json(slice text, struct attrs *attrs, struct buf *store, struct cloudevent *e, struct failure *f);

#endif
