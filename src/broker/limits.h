/* The bounds of what requests may ask for. */
#ifndef HAPAX_BROKER_LIMITS_H
#define HAPAX_BROKER_LIMITS_H

#include "base/base.h"

#define SMALL_BODY_MAX    65536u
#define PAYLOAD_BYTES_MAX (1u << 20)
#define BATCH_BYTES_MAX   (8u << 20)
#define BATCH_LINES_MAX   10000u
#define SETTLE_BYTES_MAX  (8u << 20)
#define SETTLE_ITEMS_MAX  10000u
#define ITEM_VALUES_MAX   10000u /* in one item to settle, of whatever it says */
#define ATTRS_MAX         100u   /* of a message; as many as there can be header fields */
#define ATTRS_BYTES_MAX   16384u
#define GROUP_BYTES_MAX   255u
#define TYPE_BYTES_MAX    255u
#define RECEIVE_MAX       1000u
#define REPLY_BYTES_MAX                                                                                                \
    (16u << 20)              /* a reply stops growing here, whatever was asked for; lists, before what would pass it */
#define ESCAPED_GROWS     6u /* as many times as long a text may get in JSON: \u0001 */
#define WAIT_MS_MAX       60000
#define LEASE_MS_MIN      1000
#define LEASE_MS_MAX      ((i64)12 * 3600 * 1000)
#define DELAY_MS_MAX      ((i64)366 * 24 * 3600 * 1000)
#define LIST_LIMIT_MAX    1000u
#define QUEUES_ON_USE_MAX 10000u /* made by a first message; the others are left to those who ask for a queue */

#endif
