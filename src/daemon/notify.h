/* Notifications: whoever `alerts.notify` names is told of every alert whose state changed, by a signed POST that is repeated until
 * the answer is a 2xx.
 *
 * What waits is in memory and bounded: of each alert of each queue the newest state only, and of NOTIFY_WAITING_MAX alerts. After
 * a restart alerts are evaluated anew, and told anew. All on the loop's thread. */
#ifndef HAPAX_DAEMON_NOTIFY_H
#define HAPAX_DAEMON_NOTIFY_H

#include "config/config.h"
#include "net/loop.h"
#include "net/outbound.h"

#define NOTIFY_WAITING_MAX 1000u
#define NOTIFY_AT_ONCE     4u /* requests under way: one slow answer does not keep the others waiting */

struct notify;

/* outbound: borrowed; it has room for NOTIFY_AT_ONCE calls beside all others. */
struct notify *notify_new(struct loop *loop, struct outbound *outbound);
void notify_free(struct notify *n); /* before the loop and outbound; what is under way is given up. NULL is fine */

/* From the config in force, at start and after each reload: what waits goes to the new address, under the new secrets, at once. */
void notify_configure(struct notify *n, const struct top_alerts *c);
/* As broker_port.notify. */
void notify_tell(struct notify *n, slice id, slice json);
/* Members for /v1/stats: "notify":{...}. */
void notify_stats(const struct notify *n, struct buf *b);

#endif
