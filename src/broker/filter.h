/* Which of the held or the dead are meant: by failure class, by reason, by time, by name. */
#ifndef HAPAX_BROKER_FILTER_H
#define HAPAX_BROKER_FILTER_H

#include "core/core.h"

struct call;

#define FILTER_IDS_MAX 1000u

struct filter_id {
    u64 seq, hash;
};

struct filter {
    bool by_class, refused, by_id;
    enum failure_class failure_class;
    i64 since_ms; /* wall clock; INT64_MIN: any time */
    struct buf reason;
    bool payloads; /* whoever asks may see them: what they may not read is not told them by what is found, either */
    struct filter_id *ids; /* sorted */
    u32 id_count;
};

/* false: the call's failure is set. filter_free in any case. */
bool filter_set(struct call *c, slice class_name, slice reason, slice since, struct filter *out);
/* Only those of these ids pass: a JSON array of them. false: the call's failure is set. */
bool filter_set_ids(struct call *c, slice array, struct filter *f);
void filter_free(struct filter *f);
bool filter_passes(const struct filter *f, const struct message_view *v);

#endif
