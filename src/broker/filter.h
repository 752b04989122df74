/* Which of the held or the dead are meant: by failure class, by reason, by time. */
#ifndef HAPAX_BROKER_FILTER_H
#define HAPAX_BROKER_FILTER_H

#include "core/core.h"

struct call;

struct filter {
    bool by_class, refused;
    enum failure_class failure_class;
    i64 since_ms; /* wall clock; INT64_MIN: any time */
    struct buf reason;
};

/* false: the call's failure is set. filter_free in any case. */
bool filter_set(struct call *c, slice class_name, slice reason, slice since, struct filter *out);
void filter_free(struct filter *f);
bool filter_passes(const struct filter *f, const struct message_view *v);

#endif
