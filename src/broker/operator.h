/* Operators' calls: who, what and why. The core writes a deed into the audit trail together with the deed itself: nothing is
 * done unnamed, and what was refused is not in the trail. */
#ifndef HAPAX_BROKER_OPERATOR_H
#define HAPAX_BROKER_OPERATOR_H

#include "base/json.h"
#include "broker/parse.h"
#include "core/core.h"

struct call;

/* Name, text, and whether it makes room: on a full disk the last of the headroom is for those. */
#define DEED_LIST(X)                                                                                                   \
    X(PAUSE, "pause", false)                                                                                           \
    X(RESUME, "resume", true)                                                                                          \
    X(PURGE, "purge", true)                                                                                            \
    X(CANCEL, "cancel", true)                                                                                          \
    X(REVOKE, "revoke", false)                                                                                         \
    X(RESOLVE, "resolve", false)                                                                                       \
    X(REDRIVE, "redrive", false)                                                                                       \
    X(TASK_CANCEL, "task_cancel", true)                                                                                \
    X(REPLAY, "replay", false)                                                                                         \
    X(ERASE, "erase", false)                                                                                           \
    X(FORGET, "forget", false)                                                                                         \
    X(QUEUE_PUT, "queue_put", false)                                                                                   \
    X(QUEUE_DELETE, "queue_delete", true)                                                                              \
    X(CONFIG_RELOAD, "config_reload", false)                                                                           \
    X(DRILL, "drill", false)                                                                                           \
    X(PUSH_PAUSE, "push_pause", false)                                                                                 \
    X(PUSH_RESUME, "push_resume", true)                                                                                \
    X(PUSH_TEST, "push_test", false)
#define DEED_ENUM(name, text, relieves) DEED_##name,
enum deed_kind { DEED_LIST(DEED_ENUM) DEED_COUNT };
#undef DEED_ENUM
slice deed_text(enum deed_kind what);

struct deed {
    struct json json; /* keeps unescaped strings alive */
    slice by, note;
    struct buf who; /* as the trail names them */
    slice as, state, class_name, reason, since;
    slice ids; /* an array, as it was written */
    u64 max, rate, status;
    bool dry_run;
    struct result_said result;
};

/* The body, if there is one, and the headers. members: the names this call knows beside by and note, separated by blanks;
 * NULL: its body is something else. deed_free in any case. */
bool deed_read(struct call *c, struct deed *d, const char *members);
void deed_free(struct deed *d);
/* Who is named in the trail: while nobody is asked for a token, what they say of themselves, or "anonymous". Else the token's
 * name, and behind a slash, which no token's name has, what its holder says: nobody is named as a token who did not show it. */
slice deed_who(const struct deed *d);
/* As the core writes it into the audit trail together with the deed. Borrows from *d. */
struct audit_in deed_named(const struct deed *d, enum deed_kind what, slice detail);
/* What is done in many steps is named before the first. false: no room, the failure is set. */
bool deed_audit(struct call *c, const struct deed *d, enum deed_kind what, u16 queue, slice detail);
bool deed_no_room(struct call *c); /* sets the failure; returns false */
/* Before a deed: what was said in it, and what of `s` it may write anew, may be written down (room.h). */
void deed_prepare(struct call *c, const struct deed *d, const struct seen *s);

#endif
