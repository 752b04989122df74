/* Operators' calls: who, what and why. Every deed is in the audit trail before it is done, and only if there is room for it
 * too: nothing is done unnamed, and what was refused is not in the trail. */
#ifndef HAPAX_BROKER_OPERATOR_H
#define HAPAX_BROKER_OPERATOR_H

#include "base/json.h"
#include "broker/parse.h"
#include "core/core.h"

struct call;

#define DEED_LIST(X)                                                                                                   \
    X(PAUSE, "pause")                                                                                                  \
    X(RESUME, "resume")                                                                                                \
    X(PURGE, "purge")                                                                                                  \
    X(CANCEL, "cancel")                                                                                                \
    X(RESOLVE, "resolve")                                                                                              \
    X(REDRIVE, "redrive")                                                                                              \
    X(REPLAY, "replay")                                                                                                \
    X(ERASE, "erase")                                                                                                  \
    X(FORGET, "forget")                                                                                                \
    X(QUEUE_PUT, "queue_put")                                                                                          \
    X(QUEUE_DELETE, "queue_delete")                                                                                    \
    X(CONFIG_RELOAD, "config_reload")                                                                                  \
    X(DRILL, "drill")
#define DEED_ENUM(name, text) DEED_##name,
enum deed_kind { DEED_LIST(DEED_ENUM) DEED_COUNT };
#undef DEED_ENUM
slice deed_text(enum deed_kind what);

struct deed {
    struct json json; /* keeps unescaped strings alive */
    slice by, note;
    slice as, state, class_name, reason, since;
    u64 max, rate;
    bool dry_run;
    struct result_said result;
};

/* The body, if there is one, and the headers. members: the names this call knows beside by and note, separated by blanks;
 * NULL: its body is something else. deed_free in any case. */
bool deed_read(struct call *c, struct deed *d, const char *members);
void deed_free(struct deed *d);
slice deed_who(const struct deed *d); /* who is named in the trail; "anonymous" if nobody said */
/* Into the audit trail, before it is done. s: the message or key it is about, or NULL. false: no room, the failure is set. */
bool deed_audit(struct call *c, const struct deed *d, enum deed_kind what, u16 queue, const struct seen *s,
                slice detail);

#endif
