/* Problems: what an error says, until it is rendered (RFC 9457). */
#ifndef HAPAX_BROKER_PROBLEM_H
#define HAPAX_BROKER_PROBLEM_H

#include "base/base.h"

#define PROBLEM_ENUM(code, status, retryable, title) PROBLEM_##code,
enum problem {
#define PROBLEM PROBLEM_ENUM
#include "broker/problem.def"
#undef PROBLEM
    PROBLEM_COUNT
};
#undef PROBLEM_ENUM

/* `more` holds further JSON members ("\"id\":..."). */
struct failure {
    enum problem problem;
    struct buf detail, more;
    const char *allow;    /* 405: the methods there are */
    i64 retry_ms;         /* 429, 503, 507: when to try again, if that is known */
    bool applied_unknown; /* else nothing happened */
    u16 status;           /* 0: the problem's own */
    u64 compare_left;     /* how many bytes of payloads may still be compared to say what changed */
};

/* Returns false, so that a check can fail with one expression. */
bool failure_set(struct failure *f, enum problem p, const char *fmt, ...) PRINTF_LIKE(3, 4);
void failure_free(struct failure *f);
u16 problem_status(enum problem p);
u16 failure_status(const struct failure *f);
bool problem_retryable(enum problem p);
void failure_render(const struct failure *f, struct buf *body); /* without the closing brace: members may follow */

#endif
