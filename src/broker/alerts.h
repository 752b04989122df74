/* Alerts: judged by the broker itself, every ten seconds, from what series.h and watch.h have counted.
 *
 *   pending   its condition holds, but not for long enough yet
 *   firing    it held for that long
 *   resolved  it fired, and the condition has not held for half a minute; shown for a day
 *
 * Every change of state is a line in the log, an event, and a notification through the port. They are of this process: after
 * a restart an alert begins anew. Only what needs days to be known is journaled, the daily counts (core_day_end).
 *
 * A queue takes 2 KiB for this from the first time one of its conditions holds; at most ALERT_QUEUES_MAX queues do. */
#ifndef HAPAX_BROKER_ALERTS_H
#define HAPAX_BROKER_ALERTS_H

#include "config/alert_names.h"
#include "core/core.h"

struct broker;
struct caller;
struct alerts;
struct buf;
struct call;

#define ALERT_QUEUES_MAX 4096u

enum alert_state { ALERT_IS_OK, ALERT_IS_PENDING, ALERT_IS_FIRING, ALERT_IS_RESOLVED };

struct alerts *alerts_new(void);
void alerts_free(struct alerts *a);
void alerts_forget(struct broker *b, u16 queue); /* it was deleted */
void alerts_started(struct broker *b);           /* after recovery: what is to be told still */

/* After a queue's step of the series was written; and after all queues'. */
void alerts_judge_queue(struct broker *b, const struct queue_info *q);
void alerts_judge_process(struct broker *b);
/* Is there something to judge of a queue in which nothing has happened since the start? What it is about may lie outside: webhooks that
 * are all refused, a relay that does not get there. */
bool alerts_concern(const struct broker *b, const struct queue_info *q);
/* A message came from this origin under this key (hashes). Only in queues that have `origin`. */
void alerts_origin(struct broker *b, u16 queue, u64 origin, u64 key);

u32 alerts_firing(const struct broker *b, u16 queue); /* 0: of the process */
const char *alert_name(enum alert a);
const char *alert_state_text(enum alert_state s);
/* hapax_alerts{name,queue} of everything that fires. */
void put_alert_metrics(const struct broker *b, const struct caller *who, struct buf *out);

#endif
