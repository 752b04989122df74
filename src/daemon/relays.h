/* The relays a config asks for: each reads an outbox in somebody's PostgreSQL and sends its rows to this broker, through
 * the front door like any other client. On threads of their own; a database that is away is waited for, never a reason
 * for the broker to stop. */
#ifndef HAPAX_DAEMON_RELAYS_H
#define HAPAX_DAEMON_RELAYS_H

#include "config/config.h"

struct relays;

/* What the config says of them, copied. NULL if it has none. */
struct relays *relays_new(const struct config *config);
/* The token they show, which may send to their queues and look at their rules; drawn by relays_new. NULL: there are no relays. */
const struct token_config *relays_token(const struct relays *r);
/* url: where this broker serves by now. NULL is fine, here and below. */
void relays_start(struct relays *r, const char *url);
/* No new batches; does not wait. */
void relays_stop(struct relays *r);
/* Waits for their end, which may need an answer from the broker or its silence: call it when the loop has ended. Ends *r. */
void relays_free(struct relays *r);
/* The age of the oldest row that waits to be sent to this queue; 0: none, or it is not known. */
i64 relays_oldest_ms(struct relays *r, slice queue);
/* ,"relays":[...] as /v1/stats shows them. */
void relays_stats(struct relays *r, struct buf *json);

#endif
